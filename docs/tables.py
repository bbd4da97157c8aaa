"""Print the README's tables from the records that are committed: ``.venv/bin/python docs/tables.py``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from attnconv.analysis.claims import board
from attnconv.analysis.results import PAPER_TABLE, REPRODUCTION_2021

ROOT = Path(__file__).resolve().parents[1]
RECORDS = {"evening": ROOT / "outputs" / "evening", "quick": ROOT / "docs" / "quick"}
"""The README's columns: output folders, or copies of their tables."""


def readme_tables(folders: Mapping[str, Path] = RECORDS) -> str:
    """The README's scoreboard and accuracies as Markdown, a column an output folder; a dash for what is not there."""
    table = board(folders)
    links = [
        f"[{text}]({_source(number)})" for text, number in zip(table["The paper says"], table["Notebook"], strict=True)
    ]
    table = table.assign(**{"The paper says": links}).drop(columns="Notebook")
    verdicts = tabulate(table.to_numpy().tolist(), list(table.columns), tablefmt="pipe", disable_numparse=True)

    ours = {name: _accuracies(folder / "tables" / "06-table1.csv") for name, folder in folders.items()}
    titles = dict.fromkeys([*PAPER_TABLE, *itertools.chain(*ours.values())])
    head = ["Test accuracy (%)", "Paper", "2021", *folders]
    rows = [
        [title, PAPER_TABLE.get(title, {}).get("accuracy", "—"), REPRODUCTION_2021.get(title, "—")]
        + [accuracies.get(title, "—") for accuracies in ours.values()]
        for title in titles
    ]
    align = ("left", *["right"] * (len(head) - 1))
    return f"{verdicts}\n\n{tabulate(rows, head, tablefmt='pipe', disable_numparse=True, colalign=align)}"


def _source(number: str) -> str:
    return next(f"notebooks/{file.name}" for file in (ROOT / "notebooks").glob(f"{number}_*.ipynb"))


def _accuracies(file: Path) -> dict[str, str]:
    table = pd.read_csv(file).set_index("Model")["Accuracy (%)"] if file.is_file() else pd.Series(dtype=float)
    return {model: f"{accuracy:.1f}" for model, accuracy in table.items()}


if __name__ == "__main__":
    print(readme_tables())
