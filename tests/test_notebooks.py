"""Every notebook: committed clean, and run from top to bottom in the smoke profile by the batch
runner.
"""

import ast
import json
import re
from unittest.mock import Mock

import nbformat
import numpy as np
import pytest

from attnconv.equivalence import missed_mass
from companion.profile import load_profile
from companion.workspace import PROFILES, REPOSITORY
from forked import command

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("[0-9]*.ipynb"))
BLANKS = {"01": [2.0, 0.0, -2.0], "02": np.log(400)}
"""Notebooks with an answer that a later cell judges in words, and the right one."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in code) == 1
    assert notebook.metadata.kernelspec.name == "python3"
    assert max(len(cell.source.splitlines()) for cell in code) <= 40
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_ask_let_predict_answer_and_lead_on(path):
    cells = nbformat.read(path, as_version=4).cells
    text = [cell.source if cell.cell_type == "markdown" else "" for cell in cells]
    whole = "\n".join(text)
    assert "?" in text[0] and "| Reading | Running |" in text[0]
    assert len(re.findall(r"<summary>Answer</summary>\s*\S", whole)) >= 2 or path.name.startswith(
        "00"
    )
    assert "https://arxiv.org/abs/1911.03584" in whole
    linked = set(re.findall(r"\]\((\d\d_\w+\.ipynb)\)", whole))
    assert linked <= {other.name for other in NOTEBOOKS} - {path.name} and len(linked) >= 2
    [answer] = [
        i
        for i, source in enumerate(text)
        if re.search(r"^## (The answer|Answer)$", source, re.MULTILINE)
    ]
    words = (
        text[answer].split("Answer")[-1].split()
    )  # true of every run; else computed from this one
    assert len(words) > 40 or re.search(r"Markdown\(\s*f?\"", cells[answer + 1].source)
    assert re.search(r"\*\*Next:\*\*", "\n".join(text[answer:]))


@pytest.mark.parametrize("number", BLANKS)
def test_a_later_cell_says_whether_the_blank_is_empty_right_or_wrong(number):
    [path] = [path for path in NOTEBOOKS if path.name.startswith(number)]
    sources = [
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"
    ]
    [blank] = [place for place, source in enumerate(sources) if source.startswith("answer = ...")]
    [check] = [source for source in sources[blank:] if "answer is ..." in source]
    verdict = ast.unparse(ast.parse(check).body[-1])
    right = BLANKS[number]
    given = {"Fill in the answer above.": ..., "Right.": right, "Not so": np.add(right, 1)}
    for said, answer in given.items():
        names = {"np": np, "missed_mass": missed_mass, "right": right, "answer": answer}
        assert eval(verdict, names).startswith(said)


GIVEN = {
    "04": {"chance": np.array([1, 5, 9]), "cells": np.ones((1, 6, 3, 3)), "layers": 6},
    "05": {"rows": np.arange(3.0), "columns": np.arange(2), "query": (0, 0), "figures": Mock()},
}
"""What stands before the solution of a blank, by notebook."""


@pytest.mark.parametrize("number", GIVEN)
def test_the_cells_after_a_blank_solve_it_and_refuse_what_is_wrong(number):
    [path] = [path for path in NOTEBOOKS if path.name.startswith(number)]
    cells = nbformat.read(path, as_version=4).cells
    [place] = [i for i, cell in enumerate(cells) if "solution" in cell.metadata.get("tags", [])]
    assert cells[place - 1].source.splitlines()[-1].startswith("answer = ...")
    both = "\n".join(cell.source for cell in cells[place : place + 2])
    one_map = np.outer(np.arange(3), np.arange(2))
    names = GIVEN[number] | {"np": np, "one_map": one_map, "answer": ...}
    exec(both, names)
    names["answer"] += 0.2
    with pytest.raises(AssertionError, match="Not so"):
        exec(both, names)


def smoke(output):
    """What a batch run of the smoke profile says."""
    words = ["reproduce", "--profile", "smoke", "--output", str(output)]
    done = command(*words, library=NOTEBOOKS[0].parents[1] / "lib")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """The output folder of the smoke profile."""
    output = tmp_path_factory.mktemp("smoke")
    smoke(output)
    return output


def test_every_notebook_runs(reproduced):
    profile = load_profile(PROFILES / "smoke.yaml")
    expected = len(NOTEBOOKS) - 1 + len(profile.runs) * len(profile.seeds)  # 03 once per run
    assert len(list((reproduced / "notebooks").glob("*.ipynb"))) == expected


def test_every_notebook_leaves_its_figures_or_claims(reproduced):
    assert "What was found" in (reproduced / "found.html").read_text()
    for path in NOTEBOOKS[1:]:
        made = [
            *reproduced.glob(f"figures/{path.name[:2]}-*.png"),
            *reproduced.glob(f"tables/{path.name[:2]}-*.json"),
        ]
        assert made or (path.name.startswith("08") and (reproduced / "explorer.html").is_file()), (
            path.name
        )
    for figure in reproduced.glob("figures/*.png"):
        assert figure.with_suffix(".pdf").stat().st_size > 1000
    assert (reproduced / "tables" / "06-table1.csv").is_file()


def test_claims_are_computed_and_arithmetic_ones_hold(reproduced):
    claims = [
        claim
        for file in reproduced.glob("tables/*claims*.json")
        for claim in json.loads(file.read_text())
    ]
    assert len(claims) > 10 and all(claim["number"] for claim in claims)
    signs = {claim["key"]: claim["sign"] for claim in claims}
    assert {signs[key] for key in ("theorem", "borders", "three-numbers", "flops")} == {"holds"}


def test_the_executed_explorer_is_a_picture(reproduced):
    [copy] = (reproduced / "notebooks").glob("08*.ipynb")
    executed = nbformat.read(copy, as_version=4)
    assert "widgets" not in executed.metadata
    [shown] = [
        output.data
        for cell in executed.cells
        if cell.source.endswith("\nexplorer")
        for output in cell.outputs
    ]
    assert "image/png" in shown and not any("widget" in kind for kind in shown)


def test_a_second_run_does_nothing(reproduced):
    before = {file: file.stat().st_mtime_ns for file in reproduced.glob("figures/*")}
    assert "up to date" in smoke(reproduced)
    assert {file: file.stat().st_mtime_ns for file in reproduced.glob("figures/*")} == before
