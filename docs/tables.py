"""Draw the tables of README and docs from the committed records: ``.venv/bin/python
docs/tables.py``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from companion.claims import board
from companion.results import PAPER_TABLE, REPRODUCTION_2021

ROOT = Path(__file__).resolve().parents[1]
RECORDS = {"evening": ROOT / "outputs" / "evening", "quick": ROOT / "docs" / "quick"}
"""Columns of the tables: output folders, or copies of their tables."""


def verdicts(folders: Mapping[str, Path]) -> str:
    """Each claim of the paper with what was found in a folder, as Markdown."""
    (folder,) = folders.values()
    table = board(folder)
    table["Notebook"] = [f"[{number}](../{_source(number)})" for number in table["Notebook"]]
    return tabulate(
        table.to_numpy().tolist(), list(table.columns), tablefmt="pipe", disable_numparse=True
    )


def accuracies(folders: Mapping[str, Path]) -> str:
    """Test accuracy of each model as Markdown, the paper's and each folder's, ± over seeds, with
    epochs.
    """
    ours = {
        name: _accuracies(folder / "tables" / "06-table1.csv") for name, folder in folders.items()
    }
    titles = dict.fromkeys([*PAPER_TABLE, *itertools.chain(*ours.values())])
    head = [
        "Test accuracy (%)",
        "Paper",
        "2021",
        *(title for name in folders for title in (name, "epochs")),
    ]
    rows = [
        [title, PAPER_TABLE.get(title, "—"), REPRODUCTION_2021.get(title, "—")]
        + [cell for found in ours.values() for cell in found.get(title, ("—", "—"))]
        for title in titles
    ]
    align = ("left", *["right"] * (len(head) - 1))
    return tabulate(rows, head, tablefmt="pipe", disable_numparse=True, colalign=align)


def _source(number: str) -> str:
    return next(
        f"outputs/evening/notebooks/{file.name}"
        for file in (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    )


def _accuracies(file: Path) -> dict[str, tuple[str, str]]:
    """By model: accuracy and epochs."""
    if not file.is_file():
        return {}
    table = pd.read_csv(file).set_index("Model")[["Accuracy (%)", "±", "Seeds", "Epochs"]]
    return {
        model: (f"{a:.2f} ± {spread:.2f}" if seeds > 1 else f"{a:.1f}", f"{epochs}")
        for model, a, spread, seeds, epochs in table.itertuples()
    }


def drawn(text: str, folders: Mapping[str, Path] = RECORDS) -> str:
    """A page with its tables drawn anew: each stands between ``<!-- verdicts: evening, quick
    -->`` and ``<!-- -->``.
    """

    def table(match: re.Match[str]) -> str:
        draw = {"verdicts": verdicts, "accuracies": accuracies}[match[2]]
        chosen = {name: folders[name] for name in match[3].split(", ")}
        return f"{match[1]}\n\n{draw(chosen)}\n\n<!-- -->"

    return re.sub(
        r"(<!-- (verdicts|accuracies): ([\w, ]+) -->).*?<!-- -->", table, text, flags=re.DOTALL
    )


PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(drawn(page.read_text("utf-8")), "utf-8")
