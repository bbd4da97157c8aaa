"""What is up to date in a batch run: one rule, by content.

The manifest records the content of all that a job's results were made from, the whole library among it, and of all that
it made. The job is done again when anything in it has changed.

What a notebook writes into figures/ and tables/ begins with its number. Where it is executed once per preset and seed,
the name also says which: 03-learning-curve-quadratic-seed0.png.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import re
from pathlib import Path
from typing import Any

import nbformat

from attnconv.batch.plan import Job
from attnconv.batch.workspace import REPOSITORY
from attnconv.config import Profile
from attnconv.training.runs import read_json

LIBRARY = Path(__file__).parents[1]


def digest(value: Any) -> str:
    """A hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_hash(file: Path) -> str | None:
    """A hash of a file's content; None where there is no such file, or none that is regular."""
    with contextlib.suppress(OSError, ValueError):  # too long a name, a loop of links, a zero byte in a manifest's name
        if file.is_file():
            with file.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of inputs that are not as they were.

    A file that joins a run folder, such as attention.npz, changes nothing for a notebook that was made without it.
    """
    known = {name.rpartition("/")[0] for name in before if name.startswith("runs/")}
    joined = [name for name in now if name not in before and name.rpartition("/")[0] not in known]
    return [name for name in before if now.get(name) != before[name]] + joined


@functools.cache
def installed() -> str:
    """A hash of Python's version and those of the packages in requirements.lock, as they are installed."""
    versions: dict[str, str | None] = {}
    for name in re.findall(r"(?m)^([\w.-]+)==", (REPOSITORY / "requirements.lock").read_text("utf-8")):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return digest([platform.python_version(), versions])


def inputs(job: Job, profile: Profile, data: str | None, output: Path) -> dict[str, Any]:
    """All that a job's results are made from, by name. ``data`` is the hash of the data set's content."""
    notebook = nbformat.read(job.notebook.path, as_version=4)
    cells = [[cell.cell_type, cell.source, cell.metadata.get("tags", [])] for cell in notebook.cells]
    found = {
        "the notebook": digest([cells, notebook.metadata.get("attnconv", {})]),
        "its parameters": digest({n: v for n, v in job.parameters.items() if n not in ("output", "data")}),
        "the profile": digest(profile.model_dump(exclude={"description"})),
        "the data": data or file_hash(output / "strip.npz"),
        "requirements.lock": file_hash(REPOSITORY / "requirements.lock"),
        "installed packages": installed(),
    }
    files = sorted(file for file in LIBRARY.rglob("*") if file.is_file() and file.suffix != ".pyc")
    found |= {file.relative_to(LIBRARY.parent).as_posix(): file_hash(file) for file in files}

    for weights in sorted(output.glob("runs/*/model.safetensors")):  # an unfinished run is nobody's input
        try:
            config = read_json(weights.parent / "config.json", dict)
            read = job.reads_run(config["preset"], config["train"]["seed"])
        except (KeyError, TypeError):
            read = bool(job.reads)  # damaged: whoever reads it will say so
        for file in sorted(weights.parent.glob("[!.]*")) if read else ():
            found |= {file.relative_to(output).as_posix(): file_hash(file)} if file.is_file() else {}
    return found


def results(job: Job, output: Path) -> dict[str, str | None]:
    """All that a job made, by name."""
    own = re.compile(rf"-{re.escape(job.run[0])}-seed{job.run[1]}(?!\d)" if job.run else "")
    files = [output / "notebooks" / f"{job.name}{suffix}" for suffix in (".ipynb", ".html")]
    files += [output / name for name in job.notebook.makes]
    for folder in ("figures", "tables"):
        files += [f for f in sorted(output.glob(f"{folder}/{job.notebook.number}-*")) if own.search(f.name)]
    return {file.relative_to(output).as_posix(): file_hash(file) for file in files}
