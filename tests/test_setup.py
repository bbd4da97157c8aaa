"""The lists of dependencies stay in step, `make` passes on what it is told, and the doctor always answers."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from attnconv.batch import doctor
from attnconv.training.runs import identity, write_record

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED = dict(line.split("==") for line in LOCK.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]])
def test_the_lock_satisfies_pyproject(line: str) -> None:
    wanted = Requirement(line)
    assert wanted.specifier.contains(LOCKED[wanted.name]), "run `make lock`"


def test_the_lock_is_exact_versions_and_nothing_else() -> None:
    assert len(LOCKED) > 50 and list(LOCKED) == sorted(LOCKED)
    for name, version in LOCKED.items():
        assert re.fullmatch(r"[a-z0-9-]+", name) and re.fullmatch(r"[0-9][0-9A-Za-z.]*", version), name
        assert not name.startswith(("nvidia", "cuda")) and name not in ("triton", "attnconv")
    assert "://" not in LOCK and "index" not in LOCK and LOCKED["torch"] != "2.13.0"
    assert {"pydantic-core", "annotated-types", "typing-inspection"} <= LOCKED.keys()


def test_the_environment_file_gives_conda_users_the_same() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *plain, by_pip = environment["dependencies"]
    assert plain == [f"python{PROJECT['requires-python']}", "pip"]
    assert by_pip["pip"] == ["--constraint requirements.lock", "--editable ."]
    assert "://" not in (ROOT / "environment.yml").read_text()


def make(*words: str, path: str = "/usr/bin:/bin", fails: bool = False, **environment: str) -> str:
    command = ["make", "-o", ".venv/ready", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"PATH": path, **environment})
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout


def arguments(*words: str, **environment: str) -> list[str]:
    """What the command would be called with."""
    return re.findall(r"\[(.*?)\]", make("RUN=printf [%s]", *words, **environment), re.DOTALL)


@pytest.mark.parametrize("target", ["reproduce", "paper", "test", "lint", "lab", "explore", "bench", "doctor", "lock"])
def test_every_target_sets_up_first(target: str, tmp_path) -> None:
    said = make("--dry-run", f"VENV={tmp_path / 'venv'}", target)
    assert "-m venv" in said and "--editable '.[test]'" in said


@pytest.mark.parametrize(("flags", "own"), [("", False), ("--system-site-packages", True)])
def test_a_machine_keeps_its_own_torch_when_asked(flags: str, own: bool, tmp_path) -> None:
    said = make("--dry-run", f"VENV={tmp_path / 'venv'}", f"VENV_FLAGS={flags}", "lint")
    [command] = re.findall(r"^grep .*requirements.lock", said, re.MULTILINE)
    kept = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    left_out = {name for name, version in LOCKED.items() if f"{name}=={version}" not in kept}
    assert left_out == ({"torch", "torchvision", "numpy", "sympy"} if own else set())


def test_make_passes_what_the_user_asks_for() -> None:
    assert arguments("reproduce") == ["attnconv", "reproduce", "--profile", "quick"]
    asked = arguments("reproduce", "DATA=fol der/o'brien;\"x", "JOBS=2", "ONLY=03 04", "FORCE=1", "RETRAIN=0")
    assert asked[4:] == ["--jobs", "2", "--data", "fol der/o'brien;\"x", "--only", "03", "04", "--force"]


@pytest.mark.parametrize("target", ["paper", "reproduce"])
def test_the_profile_can_come_from_the_target_or_the_environment(target: str) -> None:
    assert arguments(target, PROFILE="paper")[:4] == ["attnconv", "reproduce", "--profile", "paper"]
    assert arguments("paper", "OUTPUT=a b")[2:] == ["--profile", "paper", "--output", "a b"]


def test_every_benchmark_is_part_of_make_bench() -> None:
    said = make("-n", "bench")
    for file in {*(ROOT / "benchmarks").glob("*.py")} - {ROOT / "benchmarks" / "measure.py"}:  # what the others share
        assert f"benchmarks/{file.name}" in said


@pytest.mark.parametrize("user", [0, 1000])
def test_jupyterlab_starts_for_root_too(user: int, tmp_path) -> None:
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    for target in ("lab", "explore"):
        assert ("--allow-root" in make("-n", target, path=f"{tmp_path}:/usr/bin:/bin")) == (user == 0)


def test_a_missing_python_is_said_with_a_remedy(tmp_path) -> None:
    said = make(f"VENV={tmp_path / 'venv'}", "PYTHON=python-that-is-not-there", "lint", fails=True)
    assert "Install Python 3.11 or newer" in said


def test_the_doctor_finds_nothing_wrong_here(capsys: pytest.CaptureFixture) -> None:
    assert doctor.doctor() == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    for word in ("torch>=", "GPU", "disk", "data: embedded", "All is well."):
        assert word in out


def test_the_doctor_says_what_is_missing_and_never_fails_itself(capsys, monkeypatch, tmp_path: Path) -> None:
    versions = {"numpy": "1.0", "torch": "2.5.1"}
    monkeypatch.setattr(doctor.metadata, "version", lambda name: versions.get(name, "999"))
    monkeypatch.setitem(sys.modules, "torchvision", None)  # it does not import
    monkeypatch.setitem(sys.modules, "attnconv.batch.run", None)
    file = tmp_path / "fashion-mnist-sample" / "fashion-mnist-sample.npz"
    file.parent.mkdir()
    file.write_bytes(b"garbage")
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path))
    assert doctor.doctor() == 1
    out = capsys.readouterr().out
    assert re.search(r"!!  numpy>=\S+ +ValueError: 1.0, but needed is numpy>=", out)
    assert re.search(r"!!  torch>=2.9 +.*2.5.1", out) and re.search(r"!!  torchvision>=\S+ +ModuleNotFoundError", out)
    assert re.search(r"!!  data: embedded .*git checkout data", out) and "!!  GPU" in out
    assert "5 to put right" in out and "make clean" in out


def test_the_doctor_answers_where_nothing_at_all_is_installed() -> None:
    command = [sys.executable, "-S", "-m", "attnconv", "doctor"]  # -S: no site-packages
    done = subprocess.run(command, cwd=ROOT / "lib", capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 1 and not done.stderr and "!!  torch" in done.stdout
    done = subprocess.run([*command[:-1], "train", "quadratic"], cwd=ROOT / "lib", capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "attnconv doctor" in done.stderr


def test_the_doctor_says_how_far_runs_are(tmp_path: Path, monkeypatch, capsys) -> None:
    data = dict(name="n", form="f", key="k", classes=[], train_images=1, test_images=1, mean=[], std=[])
    config = dict(preset="quadratic", hash=identity({}, {"epochs": 3}, "k"), model={}, train={"epochs": 3}, data=data)
    config |= dict(weights=hashlib.sha256(b"weights").hexdigest())
    epoch = dict(train_loss=1.0, train_accuracy=0.5, test_loss=1.0, test_accuracy=0.843, lr=0.1)
    for name, epochs in (("a", 3), ("b", 1), ("c", 1)):
        folder = tmp_path / "outputs" / "quick" / "runs" / name
        write_record(folder, config, [{"epoch": i + 1, **epoch} for i in range(epochs)], {})
        if name == "a":
            (folder / "model.safetensors").write_bytes(b"weights")
        if name == "c":
            (folder / "config.json").write_text("{")
    (tmp_path / "pyproject.toml").write_text("project.dependencies = []\n")
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert doctor.doctor() == 1
    out = capsys.readouterr().out
    assert "run: quick/a         finished, 84.3% test accuracy" in out
    assert "run: quick/b         1 of 3 epochs, can be resumed" in out and "!!  run: quick/c" in out
