"""Claims of the paper, and ours: each with its sentence, how it is tested, and what was found.

claims.yaml has the sentences, where the paper says them, what is tested and why that is fair.
`verdicts` has a function for each. A notebook writes

    claims = work.claims("04-claims")
    claims.grid(run)                      # shows the card, and records it in tables/04-claims.json
"""

import contextlib
import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from attnconv.training.runs import Run, write
from companion._old import config_hash, read_json, read_yaml
from companion import verdicts
from companion.evidence import VERDICTS, in_words


@dataclass(frozen=True)
class Sentence:
    """What is claimed and how it is tested: an entry of claims.yaml, which explains the fields."""

    text: str
    figure: str
    test: str
    section: str = ""
    paper: str = "holds"

    @property
    def digest(self) -> str:
        """Of the sentence and its test: another one has other verdicts."""
        return config_hash(self.text, self.test)

    @property
    def source(self) -> str:
        if not self.section:
            return "Ours, not the paper's"
        return f"The paper, {'section ' * self.section[0].isdigit()}{self.section}"


_ENTRIES = read_yaml(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
SENTENCES = {key: Sentence(**about) for key, about in _ENTRIES.items()}
PAPER_CLAIMS = {key: sentence for key, sentence in SENTENCES.items() if sentence.section}


@dataclass(
    frozen=True, config=ConfigDict(strict=True, extra="forbid")
)  # "no" must not become undecided
class Claim:
    """A claim that was checked, one of `SENTENCES`, which shows itself as a card."""

    key: str
    about: str  # the runs that were looked at, in words; empty where no run was
    holds: bool | None  # None: it cannot be told
    evidence: list[str]
    test: str = ""  # `Sentence.digest` when it was checked
    where: str = ""  # of what it holds, where that is not all

    def __post_init__(self) -> None:
        if self.key not in SENTENCES:
            raise ValueError(
                f"{self.key!r} is no claim of claims.yaml: {', '.join(SENTENCES)} are."
            )

    @property
    def verdict(self) -> str:
        return in_words(self.holds, self.where)

    def html(self, closed: bool = False) -> str:
        """The card; ``closed``, so that test and evidence show at a click."""
        escape, sentence = partial(html.escape, quote=False), SENTENCES[self.key]
        verdict = f"{VERDICTS[self.holds].capitalize()} here{', ' * bool(self.where)}{self.where}"
        # who says it, and the runs looked at
        source = f"{sentence.source}{'; here: ' * bool(self.about)}{self.about}."
        listed = "".join(f"<li>{escape(line)}</li>" for line in self.evidence)
        return (
            f'<blockquote class="claim {VERDICTS[self.holds].replace(" ", "-")}">'
            f"<b>{verdict}</b> · {escape(sentence.text)}<br><i>{escape(source)}</i>"
            f"<details{'' if closed else ' open'}><summary>Test and evidence</summary>"
            f"<p>{escape(sentence.test)}</p><ul>{listed}</ul></details></blockquote>"
        )

    _repr_html_ = html


class Claims:
    """The claims of one notebook: ``claims.grid(run)`` checks one, shows it and keeps it in the
    file.
    """

    def __init__(self, file: Path):
        self.file = file
        self.made: list[Claim] = []

    def __getattr__(self, name: str) -> Callable[..., Claim]:
        key = name.replace("_", "-")
        if key not in SENTENCES:
            raise AttributeError(f"There is no claim {name!r}: {', '.join(SENTENCES)} are.")

        def check(*given: Any, about: str = "") -> Claim:
            flat = [
                one
                for value in given
                for one in (value if isinstance(value, (list, tuple)) else [value])
            ]
            runs = dict.fromkeys(run.label for run in flat if isinstance(run, Run))
            holds, evidence, *where = getattr(verdicts, name)(*given)
            return self.record(key, holds, evidence, about or "; ".join(runs), *where)

        return check

    def record(
        self, key: str, holds: bool | None, evidence: list[str], about: str = "", where: str = ""
    ) -> Claim:
        """Keep a claim in the file, in place of what was said of it about the same runs, and
        return it to be shown.
        """
        evidence = [re.sub(r"(?<!\w)-(?=\d)", "−", line) for line in evidence]
        holds = None if holds is None else bool(holds)  # no NumPy
        claim = Claim(key, about, holds, evidence, SENTENCES[key].digest, where)
        self.made = [one for one in self.made if (one.key, one.about) != (key, about)] + [claim]
        write(self.file, json.dumps([asdict(one) for one in self.made], indent=1) + "\n")
        return claim


def read_claims(file: Path) -> list[Claim]:
    """What a notebook recorded; nothing of a file that is missing or damaged, nor of an entry of
    another form.
    """
    found = []
    for value in read_json(file, list):
        with contextlib.suppress(TypeError, ValueError):
            found.append(Claim(**value))
    return found


def recorded(folder: Path) -> dict[str, list[Claim]]:
    """What was recorded in an output folder: for each of `SENTENCES` the claims that were
    checked, by today's test.
    """
    claims = [
        claim
        for file in sorted((folder / "tables").glob("??-claims.json"))
        for claim in read_claims(file)
    ]
    todays = [claim for claim in claims if claim.test == SENTENCES[claim.key].digest]
    return {key: [claim for claim in todays if claim.key == key] for key in SENTENCES}


def board(folders: Mapping[str, Path]) -> pd.DataFrame:
    """Every claim of the paper: where it stands, what the paper reports, and the verdict in each
    folder.
    """
    by_folder = {name: recorded(folder) for name, folder in folders.items()}
    rows = []
    for key, one in PAPER_CLAIMS.items():
        found = {
            name: dict.fromkeys(claim.verdict for claim in claims[key])
            for name, claims in by_folder.items()
        }
        row = {
            "The paper says": one.text,
            "Where": one.section,
            "Notebook": one.figure[:2],
            "Paper": one.paper,
        }
        rows.append(row | {name: "; ".join(said) or "—" for name, said in found.items()})
    return pd.DataFrame(rows)
