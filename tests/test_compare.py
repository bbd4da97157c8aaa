"""A reproduction beside a committed record: the record is read, never written, and what differs
is named."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from companion.compare import compare, differences
from conftest import Toys, result, write

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({"a": [1, 2.5]}, {"a": [1, 2.5000001]}, []),  # rounding
        ({"a": [1, 2.5]}, {"a": [1, 2.501]}, [": a: 2: 2.5 in the record, 2.501 here"]),
        (
            {"a": 1},
            {"b": 1},
            [": a: 1 in the record, None here", ": b: None in the record, 1 here"],
        ),
        ([1, 2], [1], [": [1, 2] in the record, [1] here"]),
        ("holds", "fails", [": holds in the record, fails here"]),
        (math.nan, math.nan, []),
        (0.0, 7e-9, []),
        (None, 0, [": None in the record, 0 here"]),
    ],
)
def test_values_differ_but_for_rounding(one, other, named):
    assert list(differences(one, other)) == named


def draw(folder: Path, **changes: str) -> Path:
    """What notebooks 02 and 03 leave."""
    files = {
        "tables/02-taps.csv": "model,taps\nattention,8.25\nCNN,\n",
        "tables/02-claims.json": json.dumps([{"claim": "grid", "holds": True}]),
        "figures/02-a.json": json.dumps({"caption": "Heads.", "place": 1}),
        "figures/02-a.png": "a picture",
        "figures/02-a.pdf": "never the same",
        "figures/03-a.png": "a picture",
    }
    for name, text in (files | changes).items():
        write(folder / name, text)
    return folder


@pytest.mark.parametrize(
    ("changes", "pictures", "named"),
    [
        ({}, 0, []),
        ({"figures/02-a.png": "another", "figures/02-a.pdf": "x"}, 1, []),
        ({"tables/02-taps.csv": "model,taps\nattention,8.25000001\nCNN,\n"}, 0, []),
        (
            {"tables/02-taps.csv": "model,taps\nattention,8.5\nCNN,\n"},
            0,
            ["tables/02-taps.csv: 1: taps: 8.25 in the record, 8.5 here"],
        ),
        (
            {"tables/02-claims.json": json.dumps([{"claim": "grid", "holds": None}])},
            0,
            ["tables/02-claims.json: 1: holds: True in the record, None here"],
        ),
        (
            {"figures/02-a.json": json.dumps({"caption": "Head.", "place": 1})},
            0,
            ["figures/02-a.json: caption: Heads. in the record, Head. here"],
        ),
        ({"figures/02-new.png": "a"}, 0, ["figures/02-new.png: only here"]),
    ],
)
def test_tables_must_be_the_same_and_pictures_may_differ(
    tmp_path, changes, pictures, named, capsys
):
    record, folder = draw(tmp_path / "record"), draw(tmp_path / "drawn", **changes)
    (folder / "figures" / "03-a.png").unlink()  # of a notebook that was not asked for
    assert compare(record, folder, {"02"}) == (1 if named else 0)
    out = capsys.readouterr().out
    assert f"pictures of other bytes: {pictures} " in out
    assert [line.strip() for line in out.splitlines() if line.startswith("    ")] == named
    assert compare(record, folder, {"03"}) == 1
    assert "figures/03-a.png: only in the record" in capsys.readouterr().out


TABLE = result("tables/02-taps.csv", "taps\n8.25\n")


COMMANDS = """import contextlib, io, json, sys
from companion.cli import main
for line in sys.stdin:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = main(json.loads(line))
    print(json.dumps([status, out.getvalue(), error.getvalue()]), flush=True)
"""
"""One process for several commands: most of a command's time is that of imports."""


def test_after_a_reproduction_git_status_is_clean_and_a_difference_is_an_error(tmp_path):
    def git(*command: str) -> str:
        options = dict(cwd=tmp_path, capture_output=True, text=True, check=True)
        return subprocess.run(["git", *command], **options).stdout

    def attnconv(*words: str) -> SimpleNamespace:
        process.stdin.write(json.dumps(["reproduce", "--profile", "evening", *words]) + "\n")
        process.stdin.flush()
        status, out, error = json.loads(process.stdout.readline())
        return SimpleNamespace(returncode=status, stdout=out, stderr=error)

    toys = Toys(tmp_path)
    for name in ("lib", "data/fashion-mnist-sample"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in (".gitignore", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    toys.add("02_a", TABLE)
    profile = toys.notebooks / "profiles" / "evening.yaml"
    write(profile, "recorded: true\nruns: [quadratic]\n")
    sample = next((tmp_path / "data" / "fashion-mnist-sample").glob("*.npz"))
    record, drawn = toys.output / "evening", toys.output / "reproduced" / "evening"
    record.mkdir(parents=True)
    shutil.copy(sample, record / "strip.npz")
    run = next((ROOT / "outputs" / "evening" / "runs").glob("quadratic-seed0-*"))
    shutil.copytree(run, record / "runs" / run.name)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMANDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "lib")},
    )

    with process:
        done = attnconv("--output", "outputs/evening")
        assert done.returncode == 0 and "Beside the record" not in done.stdout, done.stderr
        assert (record / "tables" / "02-taps.csv").is_file() and not drawn.exists()
        toys.executed()
        git("init", "--quiet")
        git("add", "--all")
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        git(*names, "commit", "--quiet", "--message", "The record")

        done = attnconv()
        assert done.returncode == 0 and "differences in tables: 0\n" in done.stdout, done.stderr
        toys.executed()
        assert not git("status", "--porcelain", "--untracked-files=all")
        toys.add("02_a", TABLE.replace("8.25", "8.5"))
        done = attnconv("--profile", str(profile))
        assert done.returncode == 1 and "8.25 in the record, 8.5 here" in done.stdout
        write(profile.with_name("other.yaml"), "runs: [quadratic]\n")
        done = attnconv("--profile", "other", "--output", "outputs/evening")
        assert done.returncode == 2 and "not written over" in done.stderr
