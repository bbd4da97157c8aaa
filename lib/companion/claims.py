"""Claims of the paper, and ours: each with its sentence, how it is tested, and what was found.

claims.yaml has the sentences, what is tested and what decides; `verdicts` a function for each. A
notebook writes

    claims = work.claims("04-claims")
    claims.grid(runs, others)         # shows the card, and records it in tables/04-claims.json
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from attnconv.training.runs import Run, write
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
    runs: list[str] = field(default_factory=list)  # names of all that are in the table

    def html(self) -> str:
        """The card: sign, number and sentence; how it was tested and all figures at a click."""
        said = SENTENCES[self.key]
        table = pd.DataFrame(self.table)
        figures = table.to_html(index=False, border=0, na_rep="—", float_format="{:.4g}".format)
        source = f"The paper, {said.section}" if said.section else "Ours, not the paper's"
        sure = {0: "", 1: "One network decides."}.get(
            self.networks, f"{self.networks} networks decide, which differ in their seeds."
        )
        return (
            f'<blockquote class="claim {self.sign.replace(" ", "-")}">'
            f'<b title="{self.sign}">{SIGNS[self.sign]} {escape(self.number)}</b><br>'
            f"{escape(said.text)} <i>{escape(source)}</i>"
            f"<details><summary>Test and figures</summary><p>{escape(said.test)} "
            f"It {escape(said.decides)}. {sure}</p>{figures}</details></blockquote>"
        )

    _repr_html_ = html


class Claims:
    """The claims of one notebook: ``claims.grid(runs)`` checks one, shows it and keeps it in the
    file.
    """

    def __init__(self, file: Path):
        self.file = file
        self.made: dict[str, Claim] = {}

    def __getattr__(self, name: str) -> Callable[..., Claim]:
        key = name.replace("_", "-")
        if key not in SENTENCES:
            raise AttributeError(f"There is no claim {name!r}: {', '.join(SENTENCES)} are.")

        def check(*given: Any) -> Claim:
            sign, number, table = getattr(verdicts, name)(*given)
            rows = json.loads(table.to_json(orient="records", double_precision=15))
            names = dict.fromkeys(run.path.name for run in _runs(given))
            claim = Claim(key, sign, number, rows, len(_runs(given[0])), [*names])
            self.record(claim)
            return claim

        return check

    def record(self, claim: Claim) -> None:
        """Keep a claim in the file, in place of what was said of it."""
        self.made[claim.key] = claim
        claims = [asdict(claim) for claim in self.made.values()]
        write(self.file, json.dumps(claims, indent=1, ensure_ascii=False) + "\n")


def _runs(given: Any) -> list[Run]:
    """All runs in an argument: it is one, or holds some, or holds none."""
    if isinstance(given, dict):
        given = [*given.values()]
    if isinstance(given, list | tuple):
        return sum(map(_runs, given), [])
    return [given] if isinstance(given, Run) else []


def recorded(folder: Path) -> dict[str, Claim]:
    """What was recorded in an output folder, by key; nothing of a file that cannot be read."""
    found = {}
    for file in sorted((folder / "tables").glob("??-claims.json")):
        with suppress(ValueError, TypeError):  # damaged, or of an older form
            for entry in json.loads(file.read_text("utf-8")):
                claim = Claim(**entry)
                found[claim.key] = claim
    return {key: found[key] for key in SENTENCES if key in found}


def board(folder: Path) -> pd.DataFrame:
    """Every claim of the paper, and what was found: a sign and a number."""
    found = recorded(folder)
    rows = []
    for key, said in SENTENCES.items():
        if said.section:
            row = {"The paper says": said.text, "Where": said.section, "": "", "Found": "—"}
            if key in found:
                row |= {"": SIGNS[found[key].sign], "Found": found[key].number}
            rows.append(row | {"Notebook": said.figure[:2]})
    return pd.DataFrame(rows)
