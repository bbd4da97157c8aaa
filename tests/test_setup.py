"""The three lists of dependencies stay in step, and a machine's own torch is left alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import save_file

from attnconv import doctor
from attnconv.constraints import ROOT, constraints, lock_from_report, read_lock, requirements

LOCK = ROOT / "requirements.lock"


@pytest.mark.parametrize("name", sorted(requirements()))
def test_the_lock_satisfies_pyproject(name: str) -> None:
    assert name in read_lock(), f"{name} is not in requirements.lock: run `make lock`"
    assert requirements()[name].specifier.contains(read_lock()[name])


def test_the_lock_is_exact_versions_and_nothing_else() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9A-Za-z.]*", line), line
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names))
    assert not [name for name in names if name.startswith(("nvidia", "cuda")) or name in ("triton", "attnconv")]
    assert "://" not in LOCK.read_text() and "index" not in LOCK.read_text()


def test_the_environment_file_gives_conda_users_the_same() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    *plain, by_pip = environment["dependencies"]
    assert plain == [f"python{project['requires-python']}", "pip"]
    assert by_pip["pip"] == ["--constraint requirements.lock", "--editable ."]
    assert "://" not in (ROOT / "environment.yml").read_text()


def test_every_locked_version_is_a_constraint_on_a_bare_machine() -> None:
    assert dict(line.split("==") for line in constraints(read_lock(), requirements(), {})) == read_lock()


def test_a_machine_with_torch_keeps_it() -> None:
    machine = {"torch": "2.6.0+cu124", "numpy": "1.26.4", "sympy": "1.13.1", "scipy": "1.0.0"}
    lines = list(constraints(read_lock(), requirements(), machine))
    names = {line.split("==")[0] for line in lines}
    assert "torch==2.6.0+cu124" in lines
    assert not names & {"numpy", "sympy"}  # kept as they are: torch was built for them
    assert "torchvision" not in names  # pip finds the one for this torch
    assert f"scipy=={read_lock()['scipy']}" in lines  # too old for us


def test_a_torch_that_is_too_old_is_replaced() -> None:
    lines = list(constraints(read_lock(), requirements(), {"torch": "2.5.1", "torchvision": "0.20.1"}))
    assert {f"torch=={read_lock()['torch']}", f"torchvision=={read_lock()['torchvision']}"} <= set(lines)


def test_a_torch_of_a_vendor_build_counts() -> None:
    assert "torch==2.7.0a0+7c8ec84" in constraints(read_lock(), requirements(), {"torch": "2.7.0a0+7c8ec84"})


def test_the_lock_is_made_from_a_pip_report() -> None:
    versions = {"Jinja2": "3.1", "nvidia-cublas": "13", "triton": "3", "typing_extensions": "4", "attnconv": "0.1.0"}
    report = {"install": [{"metadata": {"name": n, "version": v}} for n, v in versions.items()]}
    lines = [line for line in lock_from_report(report).splitlines() if not line.startswith("#")]
    assert lines == ["jinja2==3.1", "typing-extensions==4"]


def test_the_constraints_need_only_the_standard_library_and_pip() -> None:
    code = "import sys; sys.modules['packaging'] = None; import attnconv.constraints; assert 'yaml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT / "lib")


@pytest.mark.parametrize("target", ["reproduce", "paper", "test", "lint", "lab", "explore", "bench", "doctor"])
def test_every_target_sets_up_first(target: str, tmp_path) -> None:
    command = ["make", "--dry-run", f"VENV={tmp_path / 'venv'}", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "-m venv" in done.stdout and "--editable '.[test]'" in done.stdout


def test_make_passes_what_the_user_asks_for() -> None:
    command = ["make", "-n", "-o", ".venv/ready", "reproduce", "DATA=/some where", "JOBS=2", "ONLY=03 04", "FORCE=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    words = " ".join(done.stdout.replace("\\\n", " ").split())
    assert "reproduce --profile 'quick' --jobs '2' --data '/some where' --only 03 04 --force" in words


def dry_run(*words: str, path: str = "/usr/bin:/bin") -> str:
    command = ["make", "-n", "-o", ".venv/ready", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={"PATH": path}).stdout


def test_every_benchmark_is_part_of_make_bench() -> None:
    said = dry_run("bench")
    for file in (ROOT / "benchmarks").glob("*.py"):
        assert f"benchmarks/{file.name}" in said


@pytest.mark.parametrize("user", [0, 1000])
def test_jupyterlab_starts_for_root_too(user: int, tmp_path) -> None:
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    for target in ("lab", "explore"):
        assert ("--allow-root" in dry_run(target, path=f"{tmp_path}:/usr/bin:/bin")) == (user == 0)


@pytest.mark.parametrize("target", ["paper", "reproduce"])
def test_the_profile_can_come_from_the_environment(target: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PROFILE": "paper"}
    command = ["make", "-n", "-o", ".venv/ready", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
    assert "--profile 'paper'" in done.stdout


def test_a_missing_python_is_said_with_a_remedy(tmp_path) -> None:
    command = ["make", f"VENV={tmp_path / 'venv'}", "PYTHON=python-that-is-not-there", "lint"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "Install Python 3.11 or newer" in done.stdout


def test_the_doctor_finds_nothing_wrong_here(capsys: pytest.CaptureFixture) -> None:
    assert doctor.doctor() == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    for word in ("torch", "cores", "kernel", "data: embedded", "All is well."):
        assert word in out


def test_the_doctor_gives_a_remedy_for_what_is_missing(capsys: pytest.CaptureFixture, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "version_of", lambda name: {"numpy": None, "torch": "2.5.1"}.get(name, "999"))
    assert doctor.doctor() == 1
    out = capsys.readouterr().out
    assert re.search(r"!!  numpy +missing\n +needs numpy>=.*make clean", out)
    assert re.search(r"!!  torch +2.5.1\n +needs torch>=2.6", out)
    assert "2 to put right" in out


def test_the_doctor_finds_a_damaged_sample(capsys: pytest.CaptureFixture, monkeypatch, tmp_path: Path) -> None:
    file = tmp_path / "fashion-mnist-sample" / "fashion-mnist-sample.npz"
    file.parent.mkdir()
    file.write_bytes(b"garbage")
    folder = tmp_path / "cifar10"
    for split in ("train", "test"):
        (folder / split / "cat").mkdir(parents=True)
        (folder / split / "cat" / "0.png").write_bytes(b"garbage")
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path))
    lines = {what: (state, remedy) for what, state, remedy in doctor.data()}
    state, remedy = lines["data: embedded"]
    assert state == "damaged" and str(file) in remedy and "git checkout data" in remedy
    assert lines["data: cifar10"] == (f"found, not verified: image folders, {folder}", "")


def test_the_doctor_says_how_far_runs_are(tmp_path: Path) -> None:
    data = dict(name="n", form="f", key="k", classes=[], train_images=1, test_images=1, mean=[], std=[])
    config = dict(preset="quadratic", hash="h", model={}, train={"epochs": 3}, data=data)
    epoch = dict(train_loss=1.0, train_accuracy=0.5, test_loss=1.0, test_accuracy=0.843, lr=0.1)
    for name, finished in (("a", True), ("b", False), ("c", False)):
        folder = tmp_path / "quick" / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config) if name != "c" else "{")
        lines = [json.dumps({"epoch": i + 1, **epoch}) + "\n" for i in range(3 if finished else 1)]
        (folder / "metrics.jsonl").write_text("".join(lines))
        if finished:
            save_file({}, folder / "model.safetensors")
    (a, b, c) = doctor.runs(tmp_path)
    assert a == ("run: quick/a", "finished, 84.3% test accuracy", "")
    assert b == ("run: quick/b", "epoch 1 of 3, resumes when trained again, 84.3% test accuracy", "")
    assert "damaged" in c[1] and c[2]
