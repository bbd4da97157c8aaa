"""Claims: what a notebook checks, its verdict, and the scoreboard of the paper's claims. No torch is imported here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnconv.runs import read_json, writing

VERDICTS = {True: "holds", False: "does not hold", None: "is undecided"}


@dataclass(frozen=True)
class PaperClaim:
    """What the paper says, in our words."""

    text: str
    section: str
    """Where, in the paper."""
    figure: str
    """File name, without its suffix, of the picture that the verdict rests on."""
    paper: str = "holds"
    reproduction: str = "—"
    """What the reproduction of 2021 reports about it; a dash where we know of nothing."""

    @property
    def notebook(self) -> str:
        """Number of the notebook that checks it."""
        return self.figure[:2]

    @property
    def paper_figure(self) -> int | None:
        """The number of the paper's figure that it is about, the last of them if there are two."""
        words = re.search(r"figures? (\d+)(?: and (\d+))?", self.section)
        return int(words[2] or words[1]) if words else None


PAPER_CLAIMS = {
    "theorem": PaperClaim(
        "K² heads with a relative encoding can be any K × K convolution.", "Theorem 1", "01-sum-of-heads"
    ),
    "borders": PaperClaim("Padding the input makes both agree at the borders too.", "3, remarks", "01-border"),
    "three-numbers": PaperClaim(
        "An encoding of three numbers a shift lets a head attend to one pixel exactly.", "Lemma 2", "02-hardening"
    ),
    "matches-resnet": PaperClaim(
        "The quadratic encoding is as accurate as ResNet18.",
        "4, figure 2 and table 1",
        "06-accuracy",
        "93.8 against 93.8",
        "93.65 against 94.63",
    ),
    "quadratic-ahead": PaperClaim(
        "The learned encoding is less accurate than the quadratic one.",
        "4, table 1",
        "06-accuracy",
        "91.8 against 93.8",
        "90.36 against 93.65",
    ),
    "content-lower": PaperClaim(
        "With content, accuracy is lower.",
        "4, table 1",
        "06-accuracy",
        "87.1 against 91.8",
        "86.36 against 90.36",
    ),
    "content-harder": PaperClaim("With content, the model is harder to train.", "4.3", "06-accuracy"),
    "grid": PaperClaim(
        "Quadratic heads of the early layers form a grid around the query.",
        "4.2, figures 3 and 4",
        "04-grid-quadratic",
    ),
    "apart": PaperClaim("These heads do not overlap.", "4.2, figure 4", "04-gaussian-heads-quadratic"),
    "reach": PaperClaim("Deeper layers look further.", "4.2, figure 4", "04-reach-quadratic"),
    "single-pixels": PaperClaim(
        "Learned heads of layers 1 to 3 attend to single pixels.", "4.3, figure 5", "05-learned-7x7"
    ),
    "constant-shift": PaperClaim(
        "With content, some heads of layers 2 and 3 keep their shift when the query moves.",
        "4.3, figures 6 and 7",
        "05-content-other-query",
    ),
    "position-wins": PaperClaim(
        "With content, position matters more than content.", "4.3, figure 6", "05-content-share"
    ),
    "pruned": PaperClaim(
        "Degenerate heads of a full covariance can be dropped without loss.",
        "appendix",
        "04-appendix-quadratic_pruned",
    ),
    "sixteen": PaperClaim("Sixteen heads fill a larger grid.", "appendix", "04-appendix-quadratic_16"),
    "flops": PaperClaim(
        "The linear layers of the quadratic model take 6.2 billion FLOPs.", "table 1", "09-flops", "6.2 billion"
    ),
}
"""The paper's claims, in its order. A notebook that checks one says so: ``claims.check(..., paper="grid")``."""


_KEYS = ("", *PAPER_CLAIMS)


@dataclass(frozen=True)
class Claim:
    """A claim, checked here. A notebook's cell that ends in one shows it."""

    text: str
    holds: bool | None
    """None: the noise is too large to tell."""
    evidence: str
    """The numbers that decided, in words."""
    paper: str = ""
    """The claim of the paper that this is, a key of `PAPER_CLAIMS`; empty for a check of our own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", None if self.holds is None else bool(self.holds))  # NumPy's truth is not JSON
        if self.paper and self.paper not in PAPER_CLAIMS:
            raise ValueError(f"paper = {self.paper!r} is not a claim of the paper. Known: {', '.join(PAPER_CLAIMS)}.")

    @property
    def verdict(self) -> str:
        return VERDICTS[self.holds]

    def _repr_markdown_(self) -> str:
        return f"> *{self.text}* — **{self.verdict} here**: {self.evidence}"

    def __repr__(self) -> str:
        return f"{self.text}: {self.verdict} here ({self.evidence})"


class Claims(list[Claim]):
    """The claims of one notebook, to be saved in one file."""

    def __init__(self, file: Path):
        super().__init__()
        self.file = file

    def check(self, text: str, holds: bool | None, evidence: str, *, paper: str = "") -> Claim:
        """Add a claim, and return it to be shown."""
        self.append(Claim(text, holds, evidence, paper))
        return self[-1]

    def save(self) -> None:
        """Write each claim, whether it holds here, and the evidence."""
        with writing(self.file) as temporary:
            temporary.write_text(json.dumps([asdict(claim) for claim in self], indent=1) + "\n")


def read_claims(file: Path) -> list[Claim]:
    """What `Claims.save` wrote; nothing of a file that is missing or damaged, nor of an entry of another form."""
    return [Claim(**value) for value in read_json(file, list) if _is_claim(value)]


def _is_claim(value: Any) -> bool:
    """Whether all of a claim is there and nothing else, each part of its type: "no" must not become undecided."""
    kinds = {"text": str, "holds": bool | None, "evidence": str}
    whole = isinstance(value, dict) and kinds.keys() <= value.keys() <= Claim.__dataclass_fields__.keys()
    return whole and all(isinstance(value[k], v) for k, v in kinds.items()) and value.get("paper", "") in _KEYS


def scoreboard(outputs: Mapping[str, Path]) -> list[tuple[PaperClaim, dict[str, list[Claim]]]]:
    """Each claim of the paper with what was found of it: by output folder's name, the claims checked there."""
    found: dict[str, dict[str, list[Claim]]] = {key: {} for key in PAPER_CLAIMS}
    for name, folder in outputs.items():
        for file in sorted((folder / "tables").glob("*-claims*.json")):
            for claim in read_claims(file):
                if claim.paper:
                    found[claim.paper].setdefault(name, []).append(claim)
    return [(PAPER_CLAIMS[key], checked) for key, checked in found.items()]
