"""The record of the evening: its runs are whole, and what was drawn from them is drawn again without the data set."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from attnconv.config import load_profile
from attnconv.training.runs import find_runs

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "outputs" / "evening"
KEPT = sorted({path.name[:2] for path in (RECORD / "notebooks").glob("*.ipynb")})
"""Numbers of the notebooks whose executed copies are kept."""
OF_MACHINE = {"09"}
"""They measure time."""


def content(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.filterwarnings("error")  # a damaged run would be left out with a warning
def test_its_runs_are_whole_and_finished():
    profile = load_profile(ROOT / "notebooks" / "profiles" / "evening.yaml")
    runs = {(run.preset, run.train.seed): run for run in find_runs(RECORD / "runs")}
    assert runs.keys() >= {(name, seed) for name in profile.runs for seed in profile.seeds}
    for name in profile.runs:
        assert runs[name, 0].right is not None and len(runs[name, 0].right) == 10_000
    assert find_runs(RECORD / "study")


def test_it_is_small_and_names_no_folder_of_a_machine():
    """What git keeps, that is: a reader's own `make reproduce PROFILE=evening` writes pages into that folder, too."""
    named = subprocess.run(["git", "ls-files", "-z", RECORD], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in named.stdout.split("\0") if name] or list(RECORD.rglob("*"))
    files = [file for file in files if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 75e6
    texts = [file.read_text() for file in files if file.suffix in (".ipynb", ".json", ".jsonl", ".html", ".md")]
    assert not any(place in text for text in texts for place in ("/home/", "/root/", "/tmp/"))


def test_its_copies_are_of_whole_notebooks():
    for path in (RECORD / "notebooks").glob("*.ipynb"):
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code" and cell.source]
        assert all(cell.execution_count for cell in cells), path.name


def test_it_is_drawn_again_without_the_data_set_and_nothing_is_trained(tmp_path):
    output = tmp_path / "evening"
    for folder in ("runs", "study"):
        shutil.copytree(RECORD / folder, output / folder)
    shutil.copy(RECORD / "strip.npz", output)
    before = content(output)
    numbers = [number for number in KEPT if number not in OF_MACHINE]
    command = [sys.executable, "-m", "attnconv", "reproduce", "--profile", "evening", "--output", str(output)]
    environment = os.environ | {"ATTNCONV_DATA": str(tmp_path / "no data")}
    done = subprocess.run([*command, "--only", *numbers], capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr

    after = content(output)
    assert {name: after[name] for name in before} == before  # no run was touched, none was added
    assert {Path(name).parts[:2] for name in after if name.startswith("runs/")} == {
        Path(name).parts[:2] for name in before if name.startswith("runs/")
    }
    for name in ("04-claims-quadratic", "06-claims"):  # these stand on run folders alone
        old, new = (json.loads((folder / "tables" / f"{name}.json").read_text()) for folder in (RECORD, output))
        assert new == old
    assert {path.name[:2] for path in output.glob("figures/*.png")} >= set(numbers) - {"08"}
    assert (output / "explorer.html").stat().st_size < 15 * 2**20
