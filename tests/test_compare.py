"""A reproduction beside a committed record: the record is read, never written, and what differs
is named.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import companion.reproduce as runner
from attnconv.config import ConfigError
from companion import workspace
from companion.claims import Claim, Claims
from companion.compare import alike, compare, statements
from companion.fresh import changed, inputs
from companion.profile import load_profile
from companion.reproduce import reproduce
from companion.workspace import open_workspace
from conftest import Toys, planned, put_run, write

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("87.52% of 10,000 images", "87.52% of 10,000 images", True),
        ("87.52%", "87.53%", True),
        ("87.52%", "87.54%", False),
        ("share 94%", "share 95%", True),
        ("share 94%", "share 96%", False),
        ("8 of 9 taps", "7 of 9 taps", False),
        ("10,000 images", "10,001 images", False),
        ("off by 7e-08", "off by 3e-07", True),  # errors of rounding
        ("off by 7e-08", "off by 3e-05", False),
        ("−0.04 points", "-0.05 points", True),
        ("-0.04 points", "0.04 points", False),
        ("0.1 here", "0.1 there", False),
        ("0.1, 0.2", "0.1", False),
        ("0.123456789", "0.123456791", True),  # a part in a million
        ("0.123456789", "0.123457989", False),
        ("nothing", "0.1", False),
    ],
)
def test_statements_are_alike_in_all_but_rounding(one: str, other: str, same: bool) -> None:
    assert alike(one, other) is alike(other, one) is same


@pytest.fixture
def beside(toys: Toys, tmp_path: Path, monkeypatch) -> tuple[Path, Path]:
    """A record and the folder that is drawn beside it; both are empty."""
    monkeypatch.setattr(workspace, "OUTPUTS", tmp_path)
    monkeypatch.setattr(workspace, "REPRODUCED", tmp_path / "reproduced")
    return toys.output, tmp_path / "reproduced" / toys.output.name


def draw(
    folder: Path, ms: float = 3.5, accuracy: float = 87.52, taps: str = "8 of 9", holds: bool = True
) -> dict[str, list[str]]:
    """What notebooks 02 and 03 leave, and what each has made."""
    claims = Claims(folder / "tables" / "02-claims.json")
    table = [{"accuracy": accuracy}]
    claims.record(Claim("grid", "holds" if holds else "does not", f"{taps} taps", table))
    write(folder / "tables" / "02-taps.csv", f"model,taps\nattention,{taps}\n")
    write(
        folder / "figures" / "02-a.json",
        json.dumps({"caption": "Heads.", "runs": ["a"], "place": 1}) + "\n",
    )
    write(folder / "figures" / "02-a.png", f"a picture {ms}")
    place = "outputs/reproduced/toy" if "reproduced" in folder.parts else "outputs/toy"
    write(folder / "notebooks" / "02_a.ipynb", f"output = {place}")
    write(folder / "figures" / "03-a.png", "a picture")
    made = [file.relative_to(folder).as_posix() for file in folder.glob("*/*")]
    return {
        "02_a": [name for name in made if "/02" in name],
        "03_a": [name for name in made if "/03" in name],
    }


def test_what_a_file_states_has_names(tmp_path: Path) -> None:
    draw(tmp_path)
    table = {"model, row 1": "attention", "taps, row 1": "8 of 9"}
    assert statements(tmp_path / "tables" / "02-taps.csv") == table
    claims = {
        "grid, sign": "holds",
        "grid, number": "8 of 9 taps",
        "grid, accuracy, row 1": "87.52",
    }
    assert statements(tmp_path / "tables" / "02-claims.json") == claims
    assert statements(tmp_path / "figures" / "02-a.json") == {
        "caption": '"Heads."',
        "runs": '["a"]',
        "place": "1",
    }
    assert statements(tmp_path / "figures" / "02-a.png") == {}


@pytest.mark.parametrize(
    ("other", "said", "named"),
    [
        ({}, "files of the same bytes: 6 of 6\n", []),
        ({"ms": 9.5}, "files of the same bytes: 5 of 6; not figures/02-a.png\n", []),
        ({"accuracy": 87.53}, "captions: 7 the same, 1 but for rounding\n", []),
        (
            {"accuracy": 87.54},
            "differ: 1",
            ["grid, accuracy, row 1: 87.52 in the record, 87.54 here"],
        ),
        (
            {"holds": False},
            "differ: 1",
            ["grid, sign: holds in the record, does not here"],
        ),
        (
            {"taps": "7 of 9"},
            "differ: 2",
            ["claims.json: grid, number", "taps.csv: taps, row 1: 8 of 9"],
        ),
    ],
)
def test_pictures_may_differ_and_each_statement_that_does_is_named(
    toys: Toys, beside, other: dict, said: str, named: list[str], capsys
) -> None:
    toys.add("02_a")
    toys.add("03_a")
    record, folder = beside
    draw(record)
    assert compare(record, folder, planned(toys), draw(folder, **other)) == (1 if named else 0)
    out = capsys.readouterr().out
    listed = [line for line in out.splitlines() if line.startswith("    ")]
    assert said in out and len(listed) == len(named)
    assert all(name in line for name, line in zip(named, listed, strict=True))


def test_a_file_that_is_missing_or_new_is_named_but_not_one_of_a_notebook_that_was_not_asked_for(
    toys: Toys, beside, capsys
) -> None:
    for name in ("02_a", "03_a"):
        toys.add(name)
    record, folder = beside
    draw(record)
    made = draw(folder)
    (folder / "figures" / "03-a.png").unlink()
    assert compare(record, folder, planned(toys), {"02_a": made["02_a"]}) == 0
    write(folder / "figures" / "02-b.png", "new")
    assert (
        compare(record, folder, planned(toys), made | {"02_a": [*made["02_a"], "figures/02-b.png"]})
        == 1
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "    figures/02-b.png: not in the record",
        "    figures/03-a.png: only in the record",
    ]


def test_the_records_runs_are_links_and_what_is_measured_of_them_stays_outside_the_record(
    toys: Toys, beside
) -> None:
    record, folder = beside
    toys.add("02_a", reads=["runs/*", "runs/quadratic/*"])
    run = put_run(toys, "quadratic")
    put_run(toys, "learned", kind="study")
    write(record / "strip.npz", "images")
    [job] = planned(toys).values()
    profile = load_profile(toys.notebooks / "profiles" / "toy.yaml")
    before, kept = (
        inputs(job, profile, None, folder),
        {file: file.read_bytes() for file in record.rglob("*.*")},
    )
    assert (
        before["the data"] and before[f"runs/{run.name}/model.safetensors"] and not folder.exists()
    )

    for _ in range(2):  # again, as the next notebook does
        assert open_workspace("smoke", output=folder).folder == folder
    assert inputs(job, profile, None, folder) == before
    assert {file.relative_to(folder) for file in folder.rglob("*.*")} == {
        file.relative_to(record) for file in kept
    }
    assert all(
        file.is_symlink() and not os.readlink(file).startswith("/") for file in folder.rglob("*.*")
    )
    assert not folder.joinpath("runs", run.name).is_symlink()
    write(folder / "runs" / run.name / "attention.npz", "measured")
    assert changed(before, inputs(job, profile, None, folder)) == []
    assert {file: file.read_bytes() for file in record.rglob("*.*")} == kept

    assert open_workspace("smoke", output=record.with_name("other")).folder == record.with_name(
        "other"
    )
    assert not record.with_name("other").exists()  # of no record


def test_a_checkpoint_in_the_record_is_not_linked(toys: Toys, beside) -> None:
    """A maintainer may be training there; a training of the same run beside it would write into
    it.
    """
    record, folder = beside
    run = put_run(toys, "quadratic", finished=False)
    write(run / "checkpoint" / "state.pt", "half")
    write(record / "strip.npz", "images")
    open_workspace("smoke", output=folder)
    assert (folder / "runs" / run.name / "config.json").is_symlink()
    assert not (folder / "runs" / run.name / "checkpoint").exists()


def test_the_record_is_not_drawn_with_images_that_not_everyone_has(
    toys: Toys, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(runner, "OUTPUTS", tmp_path)
    toys.add("02_a")
    write(tmp_path / "toy" / "strip.npz", "images")
    with pytest.raises(ConfigError, match="The data set is here .*drawn from its own images"):
        reproduce("toy", notebooks=toys.notebooks, record=True)


def test_what_is_trained_again_has_a_folder_of_its_own_beside_which_there_is_no_record(
    toys: Toys, beside, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(runner, "OUTPUTS", tmp_path)
    toys.profile("recorded: true\nruns: [quadratic]\n")
    toys.add("02_a")
    write(tmp_path / "toy" / "strip.npz", "images")
    assert reproduce("toy", notebooks=toys.notebooks, dry=True) == 0
    said = capsys.readouterr().out
    assert (
        f"output: {tmp_path / 'reproduced' / 'toy'}\n" in said
        and f"The record {tmp_path / 'toy'} is read" in said
    )
    assert reproduce("toy", notebooks=toys.notebooks, dry=True, retrain=True) == 0
    said = capsys.readouterr().out
    assert f"output: {tmp_path / 'toy-retrained'}\n" in said and "The record" not in said


CELL = """
from companion.workspace import open_workspace
from attnconv.training.runs import writing
from companion.claims import Claim

work = open_workspace(profile, data=data, output=output)
with writing(work.folder / "runs" / "a-seed0-0" / "attention.npz") as temporary:
    temporary.write_text("measured")
claims = work.claims("02-claims")
claims.record(Claim("grid", "holds", "8 of 9 taps"))
"""


COMMANDS = """
import contextlib, io, json, sys
from companion.cli import main

for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        status = main(json.loads(line))
    print(json.dumps([status, said.getvalue()]), flush=True)
"""
"""A process that runs the command once for each line of words: to start one anew takes longer
than all else here.
"""


def test_after_a_reproduction_git_status_is_clean_and_a_difference_is_an_error(
    tmp_path: Path, request
) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path / "lib"),
        "ATTNCONV_DATA": str(ROOT / "data"),
    }

    def call(*command: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=environment
        )

    def attnconv(*words: str) -> subprocess.CompletedProcess:
        print(
            json.dumps(["reproduce", "--profile", "evening", *words]), file=runs.stdin, flush=True
        )
        status, said = json.loads(runs.stdout.readline())
        return subprocess.CompletedProcess(words, status, said, "")

    def status() -> str:
        toys.executed()
        return call("git", "status", "--porcelain", "--untracked-files=all").stdout

    toys = Toys(tmp_path)
    shutil.copytree(
        ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copytree(
        ROOT / "data" / "fashion-mnist-sample", tmp_path / "data" / "fashion-mnist-sample"
    )
    for name in (".gitignore", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    write(toys.notebooks / "profiles" / "evening.yaml", "recorded: true\nruns: [quadratic]\n")
    path = toys.add("02_a", CELL)
    record, folder = toys.output / "evening", toys.output / "reproduced" / "evening"
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    runs = subprocess.Popen(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, env=environment, **pipes
    )
    request.addfinalizer(runs.communicate)  # at the end of its input it ends

    done = attnconv("--record")
    assert toys.executed() == ["02"], done.stdout + done.stderr
    assert done.returncode == 0 and "Beside the record" not in done.stdout, (
        done.stdout + done.stderr
    )
    assert (record / "notebooks" / "02_a.ipynb").is_file() and not folder.exists()
    (record / "runs" / "a-seed0-0" / "attention.npz").rename(
        record / "runs" / "a-seed0-0" / "heads.npz"
    )
    call("git", "init", "--quiet")
    call("git", "add", "--all")
    call(
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "--quiet",
        "--message",
        "The record",
    )
    assert not status()

    done = attnconv()
    assert done.returncode == 0 and not status(), done.stdout + done.stderr
    said = (f"output: {folder}\n", f"The record {record} is read, never written", "differ: 0")
    assert all(words in done.stdout for words in said)
    assert {"heads.npz", "attention.npz"} == {
        file.name for file in (folder / "runs" / "a-seed0-0").iterdir()
    }
    assert (folder / "index.html").is_file() and (folder / "notebooks" / "02_a.html").is_file()

    path.write_text(path.read_text().replace("8 of 9", "5 of 9"))
    done = attnconv()
    assert done.returncode == 1 and status() == " M notebooks/02_a.ipynb\n"
    assert (
        "tables/02-claims.json: grid, number: 8 of 9 taps in the record, 5 of 9 taps here"
        in done.stdout
    )
