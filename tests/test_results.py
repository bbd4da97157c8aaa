"""Table 1: what it says of a run, and the files that it becomes."""

import csv
import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from attnconv import results
from attnconv.config import PRESETS, Profile
from attnconv.results import Result
from attnconv.workspace import Workspace

RESULTS = [
    Result("ResNet18", [0.9463, 0.9451, 0.947], 11_173_962, 1.1e9, 1.11e9, 1.11e9, 60),
    Result("SA learned", [0.9231], 12.3e6, 6.2e9, 7e9, 6.5e9, 80_000, why="JPEG copy of CIFAR-10"),
    Result("mine | 50% & more", [0.5], 1e6, 1e9, 1e9, 1e9, 6, "SA quadratic", False, "Fashion_MNIST, 6 epochs"),
    Result("another", [], 1e6, 1e9, 1e9, 1e9, math.nan),
    Result("SA quadratic", [], 1e6, 1e9, 1e9, 1e9, math.nan),
]


def test_results_table():
    table = results.results_table(RESULTS)
    assert table["Model"].tolist() == [row.model for row in RESULTS]
    assert table["Against the paper"].tolist() == [
        "agrees: +0.81 points (tolerance 1)",
        "agrees: +0.51 points (tolerance 1); JPEG copy of CIFAR-10",
        "not comparable: Fashion_MNIST, 6 epochs",
        "no number in the paper",
        "not run",
    ]
    first = table.iloc[0]
    assert first["Accuracy (%)"] == 94.61 and first["Seeds"] == 3 and first["Parameters (M)"] == 11.2
    assert first["±"] == pytest.approx(np.std([94.63, 94.51, 94.7], ddof=1), abs=0.006)
    assert math.isnan(table["±"][1]) and table["Training (min)"].tolist()[:2] == [1, 1330]
    assert table["Paper (%)"].tolist()[:3] == [93.8, 91.8, 93.8], "by the published title"
    assert "differs: +0.81" in results.results_table(RESULTS[:1], tolerance=0.5)["Against the paper"][0]
    small = results.results_table([dataclasses.replace(RESULTS[0], parameters=4_234)])
    assert small["Parameters (M)"][0] == 0.00423, "three digits of whatever size"
    assert results.results_table([]).empty


def test_a_table_becomes_three_files(tmp_path):
    work = Workspace(Profile(name="p"), "embedded", tmp_path)
    frame = results.results_table(RESULTS)
    work.save_table(frame, "table")
    markdown, plain, latex = ((tmp_path / "tables" / f"table.{form}").read_text() for form in ("md", "csv", "tex"))
    lines = markdown.splitlines()
    assert len(lines) == 7 and "94.61" in lines[2] and "11.2 " in lines[2] and "—" in lines[3]
    rows = list(csv.DictReader(plain.splitlines()))
    assert rows[2]["Model"] == "mine | 50% & more" and rows[3]["Accuracy (%)"] == ""
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "tables" / "table.csv"), frame, check_dtype=False)
    assert r"mine | 50\% \& more" in latex and r"Fashion\_MNIST" in latex and "94.61" in latex and "---" in latex
    assert not list(tmp_path.rglob(".*")), "no temporary file stays"


def test_published_numbers_belong_to_the_presets():
    titles = {preset.title for preset in PRESETS.values()}
    assert set(results.PAPER_TABLE) <= titles
    assert {"ResNet18", "SA quadratic", "SA quadratic, 16 heads", "SA learned"} <= set(results.REPRODUCTION_2021)
