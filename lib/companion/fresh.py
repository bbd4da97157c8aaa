"""What is up to date in a batch run: one rule, by content.

The manifest records the content of all that a job's results were made from, the whole library among
it, and of all that it made. The job is done again when anything in it has changed."""

import contextlib
import fnmatch
import functools
import hashlib
import importlib.metadata
import json
import platform
import re
from pathlib import Path
from typing import Any

from companion._old import read_json
from companion.plan import Job
from companion.profile import Profile
from companion.workspace import REPOSITORY, record_of

LIBRARY = Path(__file__).parents[1]  # the folder of both packages
Inputs = dict[str, str | None]  # hashes by name; None where there is nothing


def digest(value: Any) -> str:
    """A hash of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def file_hash(file: Path) -> str | None:
    """A hash of a file's content; None where there is no such file, or none that is regular."""
    with contextlib.suppress(
        OSError, ValueError
    ):  # too long a name, a loop of links, a zero byte in a manifest's name
        if file.is_file():
            return hashlib.sha256(file.read_bytes()).hexdigest()
    return None


@functools.cache
def installed() -> str:
    """A hash of Python's version and those of the packages in requirements.lock, as they are
    installed.
    """
    found = {}
    for name in re.findall(
        r"(?m)^([\w.-]+)==", (REPOSITORY / "requirements.lock").read_text("utf-8")
    ):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return digest([platform.python_version(), found])


def inputs(job: Job, profile: Profile, data: str | None, output: Path) -> Inputs:
    """Hashes of all that a job's results are made from, by name. ``data`` is the hash of the data
    set's content. Runs and images of the record beside which a folder is drawn count as the
    folder's, where links to them will be."""
    places = [*dict.fromkeys((record_of(output) or output, output))]
    notebook = read_json(job.notebook.path, dict)
    cells = [
        [one["cell_type"], "".join(one["source"]), one["metadata"].get("tags", [])]
        for one in notebook["cells"]
    ]
    found: Inputs = {
        "the notebook": digest([cells, notebook["metadata"].get("attnconv", {})]),
        "its parameters": digest(
            {n: v for n, v in job.parameters.items() if n not in ("output", "data")}
        ),
        "the profile": digest(profile.model_dump(exclude={"description"})),
        "the data": data or file_hash(places[0] / "strip.npz"),
        "installed packages": installed(),
    }
    packages = [
        file for name in ("attnconv", "companion") for file in sorted((LIBRARY / name).rglob("*"))
    ]
    files = [file for file in packages if file.is_file() and file.suffix != ".pyc"]
    found |= {file.relative_to(LIBRARY.parent).as_posix(): file_hash(file) for file in files}

    patterns = [pattern for pattern in job.reads if pattern.startswith(("tables/", "figures/"))]
    found |= {
        file.relative_to(output).as_posix(): file_hash(file)
        for p in patterns
        for file in output.glob(p)
    }

    for folder in (
        file.parent for place in places for file in sorted(place.glob("*/*/config.json"))
    ):
        kind, config = folder.parent.name, read_json(folder / "config.json", dict)
        if not (folder / "model.safetensors").exists() and not (folder / "no-weights").exists():
            continue  # an unfinished run is nobody's input
        read = [pattern for pattern in job.reads if pattern.startswith(f"{kind}/")]
        with contextlib.suppress(
            KeyError, TypeError
        ):  # a damaged run counts for all who may read it
            name = f"{kind}/{config['preset']}/{config['train']['seed']}"
            read = [pattern for pattern in read if fnmatch.fnmatchcase(name, pattern)]
        files = [file for file in sorted(folder.glob("[!.]*")) if read and file.is_file()]
        found |= {f"{kind}/{folder.name}/{file.name}": file_hash(file) for file in files}
    return found


def whole(entry: Any) -> bool:
    """Whether an entry of the manifest says what a job was made from, and what it made."""
    return isinstance(entry, dict) and all(
        isinstance(entry.get(part), dict) for part in ("made", "made_from")
    )


def changed(before: Inputs, now: Inputs) -> list[str]:
    """Names of inputs that are not as they were. A file that joins a run folder, such as
    attention.npz, changes nothing for a notebook that was made without it; nor does a run that
    joins study/: each is found by its configuration."""
    known = {name.rpartition("/")[0] for name in before if name.startswith("runs/")}
    joined = [name for name in now if name not in before and name.rpartition("/")[0] not in known]
    joined = [name for name in joined if not name.startswith("study/")]
    return [name for name in before if now.get(name) != before[name]] + joined
