"""What is up to date in a batch run: one rule, by content.

The manifest records the content of all that a job's results were made from, and of all that it made. The job is done
again when anything in it has changed.

What a notebook writes into figures/ and tables/ begins with its number. Where it is executed once per preset and seed,
the name also says which: 03-learning-curve-quadratic-seed0.png.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from attnconv.config import PRESETS, Profile, to_dict
from attnconv.plan import Job
from attnconv.runs import read_json
from attnconv.workspace import REPOSITORY

LIBRARY = Path(__file__).parent


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


def reached(sources: Iterable[str]) -> tuple[set[Path], set[str]]:
    """What code can reach by imports, wherever they stand in it: this library's files, and names of other packages."""
    files: set[Path] = set()
    packages: set[str] = set()
    todo = [("", source) for source in sources]  # the package that relative imports start from, and code
    while todo:
        package, source = todo.pop()
        for name in _imported(source, package):
            parts = name.split(".")
            packages.add(parts[0])
            for place in itertools.accumulate(parts, Path.joinpath, initial=LIBRARY.parent):
                for file in {place / "__init__.py", place.with_suffix(".py")} - files:
                    if file.is_relative_to(LIBRARY) and file.is_file():
                        files.add(file)
                        todo.append((".".join(file.parent.relative_to(LIBRARY.parent).parts), file.read_text("utf-8")))
    return files | _data_files(files), packages - {LIBRARY.name, *sys.stdlib_module_names}


@functools.cache
def _imported(source: str, package: str) -> list[str]:
    """Dotted names that may be modules. Lines for IPython are left out; a cell that is no Python fails when it runs."""
    names: list[str] = []
    with contextlib.suppress(SyntaxError, ImportError):
        for node in ast.walk(ast.parse(re.sub(r"(?m)^\s*[%!].*", "", source))):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                base = importlib.util.resolve_name(base, package) if node.level else base
                names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def _data_files(modules: set[Path]) -> set[Path]:
    """Scripts and styles that these modules name, and those that no module of the library names."""
    texts = {module: module.read_text("utf-8") for module in LIBRARY.rglob("*.py")}
    files = [f for f in LIBRARY.rglob("*") if f.is_file() and f.suffix not in (".py", ".pyc")]
    named = {file: {module for module, text in texts.items() if file.name in text} for file in files}
    return {file for file, by in named.items() if not by or by & modules}


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return importlib.metadata.packages_distributions()


def version_of(distribution: str) -> str | None:
    """An installed distribution's version."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)


def inputs(job: Job, profile: Profile, data: str | None, output: Path) -> dict[str, Any]:
    """All that a job's results are made from, by name. ``data`` is the hash of the data set's content.

    Of the profile, these are the configurations of the models whose runs the notebook makes or reads. Where it reads
    none, they are those of the models that its code names.
    """
    notebook = nbformat.read(job.notebook.path, as_version=4)
    cells = [[cell.cell_type, cell.source, cell.metadata.get("tags", [])] for cell in notebook.cells]
    code = [source for kind, source, tags in cells if kind == "code" and "parameters" not in tags]
    files, packages = reached(code)
    found = {
        "the notebook": digest([cells, notebook.metadata.get("attnconv", {})]),
        "its parameters": digest({n: v for n, v in job.parameters.items() if n not in ("output", "data")}),
        "the data": data or file_hash(output / "strip.npz"),
        "requirements.lock": file_hash(REPOSITORY / "requirements.lock"),
        "python": platform.python_version(),
    }
    found |= {name: version_of(_distributions().get(name, [name])[0]) for name in sorted(packages)}
    found |= {file.relative_to(LIBRARY.parent).as_posix(): file_hash(file) for file in sorted(files)}

    presets = set(profile.runs)
    for weights in sorted(output.glob("runs/*/model.safetensors")):  # an unfinished run is nobody's input
        try:
            config = read_json(weights.parent / "config.json", dict)
            preset, seed = config["preset"], config["train"]["seed"]
            presets.add(preset)
            read = job.reads_run(preset, seed)
        except (KeyError, TypeError):
            read = bool(job.reads)  # damaged: whoever reads it will say so
        for file in sorted(weights.parent.glob("[!.]*")) if read else ():
            found |= {file.relative_to(output).as_posix(): file_hash(file)} if file.is_file() else {}

    if job.reads:
        used = {preset for preset in presets if any(job.reads_run(preset, seed) for seed in profile.seeds)}
    else:
        used = {preset for preset in PRESETS if re.search(rf"""["']{preset}["']""", "\n".join(code))}
    for preset in sorted(PRESETS.keys() & used):
        for seed in [job.run[1]] if job.run else profile.seeds:
            model, train = map(to_dict, profile.configs(preset, seed))
            found[f"the profile's {preset}, seed {seed}"] = digest([model, train | {"checkpoint_seconds": None}])
    found["the profile's data"] = [profile.train_images, profile.test_images, profile.recorded]
    return found


def results(job: Job, output: Path) -> dict[str, str | None]:
    """All that a job made, by name."""
    own = re.compile(rf"-{re.escape(job.run[0])}-seed{job.run[1]}(?!\d)" if job.run else "")
    files = [output / "notebooks" / f"{job.name}{suffix}" for suffix in (".ipynb", ".html")]
    files += [output / name for name in job.notebook.makes]
    for folder in ("figures", "tables"):
        files += [f for f in sorted(output.glob(f"{folder}/{job.notebook.number}-*")) if own.search(f.name)]
    return {file.relative_to(output).as_posix(): file_hash(file) for file in files}
