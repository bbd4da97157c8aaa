"""The lists of dependencies stay in step, `make` passes on what it is told."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from attnconv import __version__
from companion import cli

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED = dict(line.split("==") for line in LOCK.splitlines() if not line.startswith("#"))


EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [
    line
    for line in [*PROJECT["dependencies"], *EXTRAS["notebooks"], *EXTRAS["test"]]
    if "attnconv" not in line
]


def test_the_lock_satisfies_pyproject():
    for line in NEEDED:
        wanted = Requirement(line)
        assert wanted.specifier.contains(LOCKED[wanted.name]), f"{line}: run `make lock`"


def test_the_lock_is_exact_versions_and_nothing_else():
    assert len(LOCKED) > 50 and list(LOCKED) == sorted(LOCKED)
    for name, version in LOCKED.items():
        assert re.fullmatch(r"[a-z0-9-]+", name) and re.fullmatch(r"\d[0-9A-Za-z.]*", version), name
        assert not name.startswith(("nvidia", "cuda", "triton", "attnconv"))
    assert "://" not in LOCK and "index" not in LOCK


def test_the_environment_file_gives_conda_users_the_same():
    text = (ROOT / "environment.yml").read_text()
    assert yaml.safe_load(text)["dependencies"] == [f"python{PROJECT['requires-python']}", "uv"]
    assert "uv pip install --constraint requirements.lock --editable '.[notebooks]'" in text
    assert "://" not in text


def test_the_library_alone_needs_no_jupyter():
    alone = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert not alone & {"jupyterlab", "ipykernel", "papermill", "matplotlib", "pandas", "nbconvert"}


def test_every_file_of_the_library_is_in_the_wheel():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = set()
    for package in setup["packages"]:
        for pattern in ["*.py", *setup["package-data"].get(package, [])]:
            packed |= set((ROOT / "lib" / package.replace(".", "/")).glob(pattern))
    listed = subprocess.run(["git", "ls-files", "lib"], cwd=ROOT, capture_output=True, text=True)
    files = {ROOT / name for name in listed.stdout.split() if (ROOT / name).exists()}
    assert len(files) > 40 and files - packed == set()


def test_what_others_are_told_of_the_project_is_so():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert citation["preferred-citation"]["url"] in (ROOT / "README.md").read_text()


def test_no_line_of_the_front_end_is_too_long():
    files = [file for kind in ("js", "css", "html") for file in (ROOT / "lib").rglob(f"*.{kind}")]
    longest = {file.name: max(map(len, file.read_text().split("\n"))) for file in files}
    assert len(files) > 10 and max(longest.values()) <= 120, longest


def make(*words: str, path: str = "/usr/bin:/bin", fails: bool = False, **environment: str) -> str:
    command = ["make", "-o", ".venv/ready", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={"PATH": path, **environment}
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout


def arguments(*words: str, **environment: str) -> list[str]:
    """What the command would be called with."""
    return re.findall(r"\[(.*?)\]", make("ATTNCONV=printf [%s]", *words, **environment), re.DOTALL)


@pytest.mark.parametrize(
    "target", ["reproduce", "paper", "test", "lint", "lab", "explore", "bench", "lock"]
)
def test_every_target_sets_up_first(target: str, tmp_path):
    said = make("--dry-run", f"VENV={tmp_path / 'venv'}", target)
    assert "-m venv" in said and "--editable '.[test]'" in said


@pytest.mark.parametrize(("flags", "own"), [("", False), ("--system-site-packages", True)])
def test_a_machine_keeps_its_own_torch_when_asked(flags: str, own: bool, tmp_path):
    said = make("--dry-run", f"VENV={tmp_path / 'venv'}", f"VENV_FLAGS={flags}", "lint")
    [command] = re.findall(r"^grep .*requirements.lock", said, re.MULTILINE)
    kept = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert ("torch==" in kept, "pillow==" in kept) == (not own, True)


def test_make_passes_what_the_user_asks_for():
    assert arguments("reproduce") == ["reproduce", "--profile", "quick"]
    asked = arguments("reproduce", "DATA=fol der/o'brien;\"x", "JOBS=2", "FORCE=1", "DRY=1")
    assert asked[3:] == ["--jobs", "2", "--data", "fol der/o'brien;\"x", "--force", "--dry"]
    assert arguments("reproduce", "FORCE=0", "DRY=0")[3:] == []
    for given, told in {"0": "\n", "1": "1\n"}.items():
        show = "ATTNCONV=printenv ATTNCONV_RETRAIN; true"
        assert make(show, "reproduce", f"RETRAIN={given}") == told


def test_packages_are_compiled_once_though_the_environment_forbids_it():
    show = "ATTNCONV=printenv PYTHONDONTWRITEBYTECODE; true"
    assert make(show, "reproduce", PYTHONDONTWRITEBYTECODE="1") == ""


@pytest.mark.parametrize("words", ["03 04", "*", "01 --force", "--force", "$HOME `id` 'a"])
def test_only_is_words_to_which_neither_the_shell_nor_the_command_gives_a_meaning(
    words: str, monkeypatch
):
    only = arguments("reproduce", ONLY=words)[-1]
    assert only == f"--only={words}"
    asked = {}
    monkeypatch.setattr("companion.reproduce.reproduce", lambda **told: asked.update(told) or 0)
    assert cli.main(["reproduce", only]) == 0
    assert asked["only"] == words.split() and not asked["force"]


@pytest.mark.parametrize("target", ["paper", "reproduce"])
def test_the_profile_can_come_from_the_target_or_the_environment(target: str):
    assert arguments(target, PROFILE="paper")[:3] == ["reproduce", "--profile", "paper"]
    assert arguments("paper", "OUTPUT=a b")[1:] == ["--profile", "paper", "--output", "a b"]


def test_only_make_record_writes_the_record():
    where = ["--profile", "evening", "--output", "outputs/evening"]
    assert arguments("record", "ONLY=01")[1:] == [*where, "--only=01"]


def test_the_command_says_its_version():
    words = [sys.executable, "-m", "companion", "--version"]
    assert __version__ in subprocess.run(words, capture_output=True, text=True).stdout


def test_every_benchmark_is_part_of_make_bench():
    """But for what is shared, and what wants a GPU."""
    said = make("-n", "bench")
    others = {"measure.py", "gpu.py", "pieces.py"}
    files = {file.name for file in (ROOT / "benchmarks").glob("*.py")} - others
    assert all(f"benchmarks/{name}" in said for name in files)


@pytest.mark.parametrize("user", [0, 1000])
def test_jupyterlab_starts_for_root_too(user: int, tmp_path):
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (tmp_path / "id").chmod(0o755)
    assert ("--allow-root" in make("-n", "lab", path=f"{tmp_path}:/usr/bin:/bin")) == (user == 0)


def test_a_missing_python_is_said_with_a_remedy(tmp_path):
    said = make(f"VENV={tmp_path / 'venv'}", "PYTHON=python-that-is-not-there", "lint", fails=True)
    assert "Install Python 3.11 or newer" in said


def test_a_missing_package_is_said_with_a_remedy(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nbformat", None)
    monkeypatch.delitem(sys.modules, "companion.reproduce", raising=False)
    assert cli.main(["reproduce"]) == 2
    error = capsys.readouterr().err
    assert "nbformat" in error and "[notebooks]" in error and error.count("\n") == 1


def test_a_training_needs_nothing_that_only_notebooks_need():
    """`attnconv train` imports the workspace where pandas, Matplotlib and Jupyter may not be
    installed.
    """
    extra = ("pandas", "matplotlib", "seaborn", "nbformat", "papermill", "IPython")
    code = f"import sys; sys.modules |= dict.fromkeys({extra}); import companion.workspace"
    subprocess.run([sys.executable, "-c", code], check=True)
