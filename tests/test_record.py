"""The record of the evening: its runs are whole, and what was drawn from them is drawn again
without the data set.
"""

import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest

from attnconv.training.runs import find_runs
from companion.profile import load_profile
from companion.workspace import RECORD, REPOSITORY
from forked import command

KEPT = {path.name[:2] for path in (RECORD / "notebooks").glob("*.ipynb")}
"""Numbers of the notebooks whose executed copies are kept."""
LEFT_OUT = {"00", "01", "02", "09"}
"""They read no run, or, as 00, need all others. tests/test_notebooks.py runs them."""


def content(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_it_is_drawn_again_beside_itself_without_the_data_set_and_says_the_same(tmp_path):
    """The longest test comes first: xdist gives a worker its next file when two tests are left."""
    for name in ("lib", "notebooks", "outputs/evening", "data/fashion-mnist-sample"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    shutil.copy(REPOSITORY / "requirements.lock", tmp_path)
    record = tmp_path / "outputs/evening"
    output = tmp_path / "outputs/reproduced/evening"
    before = content(record)
    numbers = KEPT - LEFT_OUT
    words = ["reproduce", "--profile", "evening", "--only", *numbers]
    done = command(*words, library=tmp_path / "lib", ATTNCONV_DATA=str(tmp_path / "no data"))
    assert done.returncode == 0, done.stdout + done.stderr  # 1 where it says something else
    assert "differences in tables: 0\n" in done.stdout
    assert content(record) == before
    assert not (output / "runs").exists() and not (output / "study").exists()  # nothing was trained
    assert numbers <= {path.name[:2] for path in output.glob("figures/*.png")}
    assert (output / "explorer.html").stat().st_size < 15e6


@pytest.mark.filterwarnings("error")  # a damaged run would be left out with a warning
def test_its_runs_are_whole_and_finished():
    profile = load_profile(REPOSITORY / "notebooks/profiles/evening.yaml")
    runs = {(run.preset, run.train.seed): run for run in find_runs(RECORD / "runs")}
    assert runs.keys() >= {(name, seed) for name in profile.runs for seed in profile.seeds}
    for name in profile.runs:
        assert len(runs[name, 0].right) == 10_000
    assert find_runs(RECORD / "study")


def test_it_is_small_and_names_no_folder_of_a_machine():
    named = subprocess.run(
        ["git", "ls-files", "-z", RECORD], cwd=REPOSITORY, capture_output=True, text=True
    )
    files = [REPOSITORY / name for name in named.stdout.split("\0") if name] or [*RECORD.rglob("*")]
    files = [file for file in files if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 75e6
    text = "".join(
        re.sub("[A-Za-z0-9+/]{500,}", "", file.read_text())  # without pictures: letters by chance
        for file in files
        if file.suffix in (".ipynb", ".json", ".jsonl", ".html", ".md")
    )
    assert not re.search("/(home|root|tmp)/", text)


def test_its_copies_are_of_whole_notebooks_and_link_to_each_other():
    for page in RECORD.rglob("*.html"):
        assert "No description" not in page.read_text()  # of a picture
    for path in (RECORD / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, 4).cells
        code = [c for c in cells if c.cell_type == "code" and c.source]
        assert all(c.execution_count for c in code), path.name
        links = re.findall(
            r"\]\(([^):#]+)\)", "".join(c.source for c in cells if c.cell_type == "markdown")
        )
        assert links and all((path.parent / link).is_file() for link in links), path.name
