"""Claims: what a notebook checks, its verdict, and the scoreboard of the paper's claims. No torch is imported here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from attnconv.training.runs import read_json, writing

VERDICTS = {True: "holds", False: "does not hold", None: "is undecided"}


@dataclass(frozen=True)
class PaperClaim:
    """What the paper says, in our words: an entry of claims.yaml."""

    text: str
    section: str
    """Where, in the paper."""
    figure: str
    """File name, without its suffix, of the picture that the verdict rests on."""
    paper: str = "holds"
    reproduction: str = "—"
    """What the reproduction of 2021 reports about it; a dash where we know of nothing."""
    question: str = ""
    """What it answers on the landing screen of a page."""

    @property
    def notebook(self) -> str:
        """Number of the notebook that checks it."""
        return self.figure[:2]


PAPER_CLAIMS = {
    key: PaperClaim(**about)
    for key, about in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items()
}


def _known(key: str) -> str:
    if key and key not in PAPER_CLAIMS:
        raise ValueError(f"{key!r} is no claim of the paper: {', '.join(PAPER_CLAIMS)} are.")
    return key


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))  # "no" must not become undecided
class Claim:
    """A claim, checked here. A notebook's cell that ends in one shows it."""

    text: str
    holds: bool | None
    """None: the noise is too large to tell."""
    evidence: str
    """The numbers that decided, in words."""
    paper: Annotated[str, AfterValidator(_known)] = ""
    """The claim of the paper that this is, a key of `PAPER_CLAIMS`; empty for a check of our own."""

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
        holds = None if holds is None else bool(holds)  # NumPy's truth is not JSON
        self.append(Claim(text, holds, evidence, paper))
        return self[-1]

    def save(self) -> None:
        """Write each claim, whether it holds here, and the evidence."""
        with writing(self.file) as temporary:
            temporary.write_text(json.dumps([asdict(claim) for claim in self], indent=1) + "\n")


def read_claims(file: Path) -> list[Claim]:
    """What `Claims.save` wrote; nothing of a file that is missing or damaged, nor of an entry of another form."""
    found = []
    for value in read_json(file, list):
        with contextlib.suppress(ValidationError, TypeError):
            found.append(Claim(**value))
    return found


def scoreboard(outputs: Mapping[str, Path]) -> list[tuple[PaperClaim, dict[str, list[Claim]]]]:
    """Each claim of the paper with what was found of it: by output folder's name, the claims checked there."""
    found: dict[str, dict[str, list[Claim]]] = {key: {} for key in PAPER_CLAIMS}
    for name, folder in outputs.items():
        for file in sorted((folder / "tables").glob("*-claims*.json")):
            for claim in read_claims(file):
                if claim.paper:
                    found[claim.paper].setdefault(name, []).append(claim)
    return [(PAPER_CLAIMS[key], checked) for key, checked in found.items()]
