"""What is up to date in a batch run on toy notebooks: what is done again after a change, and
what is not.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import nbformat
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import companion.reproduce as runner
from companion import cli, fresh
from companion.profile import load_profile
from companion.reproduce import reproduce
from conftest import PER_RUN, Toys, damaged, planned, put_run, write


@pytest.fixture
def library(tmp_path: Path, monkeypatch) -> Path:
    """Files to change, which the runner takes for those of the library."""
    write(tmp_path / "lib" / "attnconv" / "models.py", "1")
    write(tmp_path / "lib" / "companion" / "explorer" / "front" / "explorer.js", "2")
    write(tmp_path / "requirements.lock", "torch==1")
    monkeypatch.setattr(fresh, "LIBRARY", tmp_path / "lib")
    monkeypatch.setattr(fresh, "REPOSITORY", tmp_path)
    return tmp_path


def a_batch(toys: Toys, jobs: dict | None = None) -> runner.Batch:
    profile = load_profile(toys.notebooks / "profiles" / "toy.yaml")
    return runner.Batch(jobs or planned(toys), profile, "embedded", toys.output, set(), 1, {})


def to_do(batch: runner.Batch) -> set[str]:
    return short(name for name, job in batch.jobs.items() if batch.reason(job, batch.inputs(job)))


def short(names: Iterable[str]) -> set[str]:
    """As in ALL."""
    return {
        re.sub(r"_[a-z]+(-([a-z]+)-seed0)?", lambda m: f":{m[2]}" if m[2] else "", name)
        for name in names
    }


ALL = {"00", "01", "03:quadratic", "03:learned", "04", "06", "08", "09", "10"}
MADE_OR_READ = {
    "explorer.html": {"08"},
    "figures/03-curve-learned-seed0.png": {"03:learned"},
    "figures/04-a.png": {"04"},
    "tables/04-a.csv": {"00", "04"},
    "notebooks/01_theory.ipynb": {"01"},
    "notebooks/04_heads.html": {"04"},
    "runs/learned-seed0-0/attention.npz": {"03:learned", "06"},
    "runs/quadratic-seed0-0/model.safetensors": {"03:quadratic", "04", "06", "08"},
    "study/learned-seed0-0/heads.npz": {"10"},
}
"""Some outputs, and what is done again when one of them is no longer the same."""


PROFILE = "runs: [quadratic, learned]\nseeds: [0]\ntrain: {lr: 0.1}\n"


@pytest.fixture
def record(toys: Toys, library: Path, monkeypatch):
    """A folder in which everything is up to date, and what would be done again: a function
    without arguments.
    """
    monkeypatch.setattr(
        runner, "said", functools.cache(runner.said)
    )  # git and others are asked once
    toys.profile(PROFILE)
    toys.add("00_front", needs=["04"], reads=["tables/*.csv"])
    toys.add("01_theory")
    toys.add("03_train", parameters=PER_RUN, per_run=True)
    toys.add("04_heads", needs=["03:quadratic"])
    toys.add("06_all", needs=["03"])
    toys.add("08_explore", needs=["03:quadratic"])
    toys.add("09_costs")
    toys.add("10_study", reads=["study/learned/*"])
    for name in ("quadratic", "learned"):
        put_run(toys, name)
        put_run(toys, name, kind="study")
        write(toys.output / "figures" / f"03-curve-{name}-seed0.png", name)
    write(toys.output / "runs" / "learned-seed0-0" / "attention.npz", "4")
    write(toys.output / "figures" / "04-a.png", "a")
    write(toys.output / "tables" / "04-a.csv", "a")
    write(toys.output / "explorer.html", "page")

    first = a_batch(toys)
    for name, job in first.jobs.items():
        made = [f"notebooks/{name}{suffix}" for suffix in (".ipynb", ".html")]
        for file in made:
            write(toys.output / file, name)
        made += [file for file, jobs in MADE_OR_READ.items() if jobs - {"00"} == short([name])]
        made = {
            file: fresh.file_hash(toys.output / file)
            for file in made
            if not file.startswith("study/")
        }
        entry = {"status": "done", "made_from": first.inputs(job), "made": made}
        first.manifest["notebooks"][name] = entry
    write(toys.output / "manifest.json", json.dumps(first.manifest))

    assert to_do(a_batch(toys)) == set()
    return lambda: to_do(a_batch(toys))


def test_any_damage_to_an_output_repeats_what_made_or_reads_it(toys: Toys, record) -> None:
    batch = a_batch(toys)
    users: dict[str, set[str]] = {}
    for job, entry in batch.manifest["notebooks"].items():
        read = [
            name for name in entry["made_from"] if name.startswith(("runs/", "study/", "tables/"))
        ]
        for name in [*entry["made"], *read]:
            users.setdefault(name, set()).update(short([job]))
    assert {name: users[name] for name in MADE_OR_READ} == MADE_OR_READ

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def damage(data) -> None:
        name = data.draw(st.sampled_from(sorted(users)))
        file = toys.output / name
        before = file.read_bytes()
        after = data.draw(st.sampled_from(["deleted", "damaged"]))
        content = None if after == "deleted" else damaged(before, data.draw)
        assume(content != before)
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        again = to_do(batch)
        file.write_bytes(before)  # a new time changes nothing for the next example
        # A run whose config.json no longer says of which model it is counts for everyone who reads
        # runs.
        assert users[name] <= again and (again == users[name] or name.endswith("config.json"))

    damage()


def test_any_damage_to_the_manifest_is_a_repeat_and_never_an_error(toys: Toys, record) -> None:
    file = toys.output / "manifest.json"
    content, jobs = file.read_bytes(), planned(toys)
    whole = json.loads(content)["notebooks"]

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def damage(data) -> None:
        file.write_bytes(damaged(content, data.draw))
        batch = a_batch(toys, jobs)
        batch.manifest["data"] |= {"sha256": whole["01_theory"]["made_from"]["the data"]}
        for name, job in jobs.items():
            repeated = batch.reason(job, batch.inputs(job))
            assert (
                repeated
                or batch.manifest["notebooks"][name]["made_from"] == whole[name]["made_from"]
            )
        batch._save()  # and the next run can read it
        assert (
            json.loads(file.read_bytes())["notebooks"].keys() == batch.manifest["notebooks"].keys()
        )

    damage()


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("attnconv", "models.py"),
        ("companion", "explorer/front/explorer.js"),
        ("companion", "new.css"),
    ],
)
def test_every_file_of_the_library_counts(record, library: Path, package: str, file: str) -> None:
    with (library / "lib" / package / file).open("a") as stream:
        stream.write("more")
    assert record() == ALL
    (library / "lib" / package / file).unlink()
    assert record() == (set() if file == "new.css" else ALL)


@pytest.mark.parametrize(
    ("old", "new", "jobs"),
    [("runs:", "description: other words\nruns:", set()), ("lr: 0.1", "lr: 0.2", ALL)],
)
def test_the_profile_counts_but_for_its_description(
    toys: Toys, record, old: str, new: str, jobs: set[str]
) -> None:
    toys.profile(PROFILE.replace(old, new))
    assert record() == jobs


def test_data_and_installed_packages_count(record, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runner, "content_key", lambda source: "other")
        assert record() == ALL
    with monkeypatch.context() as patch:
        patch.setattr(fresh, "installed", lambda: "others")
        assert record() == ALL
    assert record() == set()


def test_parameters_count_but_for_where_data_and_output_are(toys: Toys, record) -> None:
    batch = a_batch(toys)
    job = batch.jobs["04_heads"]
    before = batch.inputs(job)

    def changed(**parameters: object) -> list[str]:
        return fresh.changed(
            before, batch.inputs(dataclasses.replace(job, parameters=job.parameters | parameters))
        )

    assert changed(seed=1) == ["its parameters"] and changed(data="x", output="/y") == []


def test_python_and_every_locked_package_count(monkeypatch) -> None:
    before, version = fresh.installed.__wrapped__(), fresh.importlib.metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(fresh.platform, "python_version", lambda: "3.99")
        assert fresh.installed.__wrapped__() != before
    asked = []
    monkeypatch.setattr(
        fresh.importlib.metadata, "version", lambda name: asked.append(name) or version(name)
    )
    assert fresh.installed.__wrapped__() == before and {"torch", "matplotlib"} < {*asked}
    lines = (fresh.REPOSITORY / "requirements.lock").read_text("utf-8").splitlines()
    assert asked == [line.partition("==")[0] for line in lines if not line.startswith("#")]
    monkeypatch.setattr(
        fresh.importlib.metadata, "version", lambda n: "9.9" if n == "torch" else version(n)
    )
    assert fresh.installed.__wrapped__() != before


def test_a_notebook_counts_by_its_cells_and_needs_alone(toys: Toys, record) -> None:
    path = toys.notebooks / "04_heads.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].execution_count = 7
    notebook.metadata["kernelspec"] = {"name": "other", "display_name": "Other"}
    nbformat.write(notebook, path)
    assert record() == set()
    needs = dict(notebook.metadata["attnconv"])
    for more, tags, jobs in (
        ({"reads": ["study/none/*"]}, [], {"04"}),
        ({}, ["solution"], {"04"}),
        ({}, [], set()),
    ):
        notebook.metadata["attnconv"] = needs | more
        notebook.cells[-1].metadata["tags"] = tags
        nbformat.write(notebook, path)
        assert record() == jobs
    notebook.cells[-1].source += "  # changed"
    nbformat.write(notebook, path)
    assert record() == {"04"}


def test_of_runs_beside_only_finished_ones_of_a_wanted_kind_count(toys: Toys, record) -> None:
    put_run(toys, "quadratic", name="1", finished=False)
    put_run(toys, "quadratic", seed=7, name="2", finished=False)
    write(toys.output / "runs" / "quadratic-seed0-0" / "attention.npz", "joins it later")
    write(toys.output / "runs" / "quadratic-seed0-0" / ".lock", "")
    assert record() == set()
    put_run(toys, "learned_content")  # dropped in, of no profile
    assert record() == {"06"}
    put_run(toys, "quadratic", seed=7)
    assert record() == {"04", "06", "08"}
    config = toys.output / "runs" / "quadratic-seed7-0" / "config.json"
    config.write_text("[" * 100_000)  # of a damaged run nobody knows who reads it
    assert record() == {"03:quadratic", "03:learned", "04", "06", "08"}


def test_runs_of_the_record_beside_are_inputs(toys: Toys, record, monkeypatch) -> None:
    made = put_run(toys, "quadratic", seed=7)
    made.parent.parent.joinpath("beside", "runs").mkdir(parents=True)
    made.rename(toys.output / "beside" / "runs" / made.name)
    assert record() == set()
    monkeypatch.setattr(fresh, "record_of", lambda output: toys.output / "beside")
    assert record() == {"04", "06", "08"}


def test_short_runs_are_inputs_of_who_reads_them_but_for_one_that_joins(toys: Toys, record) -> None:
    joined = put_run(toys, "learned", seed=1, kind="study")
    assert record() == set()
    for file in [*joined.iterdir(), *(toys.output / "study" / "quadratic-seed0-0").iterdir()]:
        file.unlink()
    assert record() == set()
    config = toys.output / "study" / "learned-seed0-0" / "config.json"
    config.write_text(config.read_text().replace("{", '{"weights_kept": false, ', 1))
    assert record() == {"10"}
    (config.parent / "model.safetensors").unlink()
    assert record() == {"10"}
    (config.parent / "metrics.jsonl").write_text("3")
    assert record() == {"10"}


def test_a_dry_run_says_what_would_be_done_and_why_and_writes_nothing(
    toys: Toys, record, capsys, monkeypatch
) -> None:
    def said(**options) -> str:
        before = {file: file.stat().st_mtime_ns for file in toys.output.parent.rglob("*")}
        assert (
            reproduce("toy", notebooks=toys.notebooks, output=toys.output, dry=True, **options) == 0
        )
        assert {file: file.stat().st_mtime_ns for file in toys.output.parent.rglob("*")} == before
        return capsys.readouterr().out

    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(runner, "gpus", list)
    out = said()
    assert out.count("up to date") == len(ALL) and out.endswith("0 to do. Nothing was run.\n")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("Missing: ")] == [
        "C++",
        "GPU.",
    ]
    (toys.output / "tables" / "04-a.csv").write_text("damaged")
    (toys.output / "figures" / "03-curve-learned-seed0.png").write_text("damaged")
    out = said()
    assert "to do       04 heads   (changed: tables/04-a.csv)" in out
    assert (
        "to do       06 all   (if it changes with 03 train, learned, seed 0)" in out
        and "4 to do" in out
    )
    assert "2 to do" in said(only=["06"]) and "01 theory   (forced)" in said(
        only=["01"], force=True
    )
    toys.add("06_all", "1", needs=["03"])
    toys.add("11_front", needs=["04"])
    assert "06 all   (changed: the notebook)" in said() and "11 front   (not done yet)" in said()


def test_a_dry_run_without_the_data_set_says_so(
    toys: Toys, tmp_path: Path, capsys, monkeypatch
) -> None:
    toys.add("02_theory")
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path / "no data"))
    options = dict(notebooks=toys.notebooks, output=toys.output, data="cifar10", dry=True)
    assert reproduce("toy", **options) == 2 and not toys.output.exists()
    assert "Missing: data set cifar10." in capsys.readouterr().out
    write(toys.output / "strip.npz", "stands in for it")
    assert reproduce("toy", **options) == 0


def test_a_damaged_manifest_means_that_nothing_is_done(toys: Toys, record) -> None:
    for text in (
        "{",
        "[]",
        '{"notebooks": 3}',
        '{"notebooks": {"01_theory": 3}}',
        "\x00",
        "[" * 100_000,
    ):
        (toys.output / "manifest.json").write_text(text)
        assert record() == ALL
    (toys.output / "manifest.json").unlink()
    os.mkfifo(toys.output / "manifest.json")  # would never end
    assert record() == ALL


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_cannot_be_written_is_said_in_one_line(
    toys: Toys, record, number, monkeypatch, capsys
) -> None:
    def fail(path: Path, content: str) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(runner, "write", fail)
    monkeypatch.setattr(runner, "reproduce", functools.partial(reproduce, notebooks=toys.notebooks))
    assert cli.main(["reproduce", "--profile", "toy", "--output", str(toys.output)]) == 2
    error = capsys.readouterr().err
    assert (
        error.startswith("attnconv: ") and error.count("\n") == 1 and os.strerror(number) in error
    )
