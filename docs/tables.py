"""Draw the tables of README and docs from the committed records: ``.venv/bin/python
docs/tables.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from companion.claims import SENTENCES, board, recorded
from companion.results import PAPER_TABLE, REPRODUCTION_2021

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
RECORDS = {"evening": ROOT / "outputs" / "evening", "quick": ROOT / "docs" / "quick"}
"""Columns of the tables: output folders, or copies of their tables."""


def verdicts(folders: Mapping[str, Path]) -> str:
    """Each claim of the paper with what was found in a folder."""
    (folder,) = folders.values()
    table = board(folder)
    table["Notebook"] = [_link(number) for number in table["Notebook"]]
    return _markdown(table.to_numpy().tolist(), list(table.columns))


def _link(number: str) -> str:
    """A link from docs to a notebook's executed copy."""
    [file] = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
    return f"[{number}](../outputs/evening/notebooks/{file.name})"


def seeds(folders: Mapping[str, Path]) -> str:
    """Each claim that compares networks by seed: all differences, their error, and what decides."""
    (folder,) = folders.values()
    rows = []
    for key, claim in recorded(folder).items():
        pairs = pd.DataFrame(claim.table[: claim.networks])
        if "difference" in pairs:
            differences = [f"{one:+.2f}".replace("-", "−") for one in pairs["difference"]]
            chance = 2 * pairs["standard error"].max()
            row = [", ".join(differences), f"± {chance:.2f}" if chance > 0 else "—"]
            rows.append([SENTENCES[key].text, *row, SENTENCES[key].decides])
    return _markdown(rows, ["Claim", "Difference, by seed", "Chance", "The claim"])


def accuracies(folders: Mapping[str, Path], ours_too: bool = True) -> str:
    """Test accuracy of each model, the paper's and each folder's, ± over seeds, with epochs.
    ``ours_too``: also of models that the paper's table does not have.
    """
    ours = {}
    for name, folder in folders.items():
        ours[name] = _accuracies(folder / "tables" / "06-table1.csv")
    head = ["Test accuracy (%)", "Paper", "2021"]
    titles = dict.fromkeys(PAPER_TABLE)
    for name, found in ours.items():
        head += [name, "epochs"]
        titles |= dict.fromkeys(found if ours_too else ())
    rows = []
    for title in titles:
        row = [title, PAPER_TABLE.get(title, "—"), REPRODUCTION_2021.get(title, "—")]
        for found in ours.values():
            row += found.get(title, ["—", "—"])
        rows.append(row)
    return _markdown(rows, head, colalign=("left", *["right"] * (len(head) - 1)))


def table1(folders: Mapping[str, Path]) -> str:
    """The paper's four models."""
    return accuracies(folders, ours_too=False)


def _accuracies(file: Path) -> dict[str, list[str]]:
    """By model: accuracy and epochs."""
    if not file.is_file():
        return {}
    found = {}
    for row in pd.read_csv(file).to_dict("records"):
        accuracy = f"{row['Accuracy (%)']:.1f}"
        if row["Seeds"] > 1:
            accuracy = f"{row['Accuracy (%)']:.2f} ± {row['±']:.2f}"
        found[row["Model"]] = [accuracy, f"{row['Epochs']}"]
    return found


def _markdown(rows: list[list[str]], head: list[str], **how: tuple[str, ...]) -> str:
    return tabulate(rows, head, tablefmt="pipe", disable_numparse=True, **how)


def drawn(text: str, folders: Mapping[str, Path] = RECORDS) -> str:
    """A page with its tables drawn anew: each stands between ``<!-- verdicts: evening, quick
    -->`` and ``<!-- -->``.
    """

    def table(match: re.Match[str]) -> str:
        draw = {"verdicts": verdicts, "seeds": seeds, "accuracies": accuracies, "table1": table1}
        chosen = {name: folders[name] for name in match[3].split(", ")}
        return f"{match[1]}\n\n{draw[match[2]](chosen)}\n\n<!-- -->"

    return re.sub(
        r"(<!-- (verdicts|seeds|accuracies|table1): ([\w, ]+) -->).*?<!-- -->",
        table,
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(drawn(page.read_text("utf-8")), "utf-8")
