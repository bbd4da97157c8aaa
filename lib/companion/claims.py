"""Claims of the paper, and ours: each with its sentence, how it is tested, and what was found.

claims.yaml has the sentences, what is tested and what decides; `verdicts` a function for each. A
notebook writes

    claims = work.claims("04-claims")
    claims.grid(runs, others)         # shows the card, and records it in tables/04-claims.json
"""

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from attnconv.training.runs import write
from companion import verdicts

SIGNS = {"holds": "✔", "in part": "◐", "does not": "✘", "open": "?"}


@dataclass(frozen=True)
class Sentence:
    """What is claimed and how it is tested: an entry of claims.yaml."""

    text: str
    figure: str
    test: str
    decides: str
    section: str = ""


_ENTRIES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
SENTENCES = {key: Sentence(**entry) for key, entry in _ENTRIES.items()}


@dataclass(frozen=True)
class Claim:
    """A claim that was checked, one of `SENTENCES`, which shows itself as a card."""

    key: str
    sign: str
    number: str
    table: list[dict[str, Any]] = field(default_factory=list)
    networks: int = 0  # that decided

    def html(self) -> str:
        """The card: sign, number and sentence; how it was tested and all figures at a click."""
        said = SENTENCES[self.key]
        table = pd.DataFrame(self.table)
        figures = table.to_html(index=False, border=0, na_rep="—", float_format="{:.4g}".format)
        source = f"The paper, {said.section}" if said.section else "Ours, not the paper's"
        sure = f"Networks that decide: {self.networks}." if self.networks else ""
        return (
            f'<blockquote class="claim {self.sign.replace(" ", "-")}">'
            f'<b title="{self.sign}">{SIGNS[self.sign]} {escape(self.number)}</b><br>'
            f"{escape(said.text)} <i>{escape(source)}</i>"
            f"<details><summary>Test and figures</summary><p>{escape(said.test)} "
            f"The claim {escape(said.decides)}. {sure}</p>{figures}</details></blockquote>"
        )

    _repr_html_ = html


@dataclass
class Claims:
    """The claims of one notebook: ``claims.grid(runs)`` checks one, shows it and keeps it in the
    file.
    """

    file: Path
    made: dict[str, Claim] = field(default_factory=dict)

    def __getattr__(self, name: str) -> partial[Claim]:
        key = name.replace("_", "-")
        if key not in SENTENCES:
            raise AttributeError(f"There is no claim {name!r}: {', '.join(SENTENCES)} are.")
        return partial(self.check, key, getattr(verdicts, name))

    def check(self, key: str, verdict: Any, *given: Any) -> Claim:
        """What a verdict finds of what it is given; where that is a list, of runs that decide."""
        sign, number, table = verdict(*given)
        rows = json.loads(table.to_json(orient="records", double_precision=15))
        networks = len(given[0]) if isinstance(given[0], list) else 0
        claim = Claim(key, sign, number, rows, networks)
        self.record(claim)
        return claim

    def record(self, claim: Claim) -> None:
        """Keep a claim in the file, in place of what was said of it."""
        self.made[claim.key] = claim
        claims = [asdict(claim) for claim in self.made.values()]
        write(self.file, json.dumps(claims, indent=1, ensure_ascii=False) + "\n")


def recorded(folder: Path) -> dict[str, Claim]:
    """What was recorded in an output folder, by key."""
    found = {}
    for file in sorted((folder / "tables").glob("??-claims.json")):
        for entry in json.loads(file.read_text("utf-8")):
            found[entry["key"]] = Claim(**entry)
    return {key: found[key] for key in SENTENCES if key in found}


def board(folder: Path) -> pd.DataFrame:
    """Every claim of the paper, and what was found: a sign and a number."""
    found = recorded(folder)
    rows = []
    for key, said in SENTENCES.items():
        sign, number = "", "—"
        if key in found:
            sign, number = SIGNS[found[key].sign], found[key].number
        if said.section:
            rows.append([said.text, said.section, sign, number, said.figure[:2]])
    return pd.DataFrame(rows, columns=["The paper says", "Where", "", "Found", "Notebook"])
