"""``attnconv doctor``: what this machine has, and for everything that is missing a remedy."""

from __future__ import annotations

import importlib
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from attnconv import __version__
from attnconv.constraints import requirements
from attnconv.reproduce import cores, device, version_of
from attnconv.runs import Run, RunError
from attnconv.sources import DataError, MissingData, find_data, read_sample
from attnconv.workspace import REPOSITORY

Line = tuple[str, str, str]
"""What, its state, and a remedy: empty where all is well."""

NEEDED_DISK = 2 * 2**30
"""Free bytes that data and runs may need."""


def software() -> Iterator[Line]:
    """Python and the dependencies, against what pyproject.toml asks for."""
    fine = sys.version_info >= (3, 11)
    yield "Python", platform.python_version(), "" if fine else "needs 3.11 or newer: make PYTHON=/path/to/python"
    yield "attnconv", __version__, ""
    for name, wanted in requirements(extras=()).items():
        version = version_of(name)
        fine = version is not None and wanted.specifier.contains(version, prereleases=True)
        remedy = "" if fine else f"needs {wanted}: set up again with 'make clean' and 'make doctor'"
        yield name, version or "missing", remedy
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # a torchvision of another torch fails in many ways
        yield "torchvision", f"does not import: {error}", "install the torchvision that belongs to this torch"


def hardware() -> Iterator[Line]:
    """Processor, memory, disk, GPU."""
    here = device()
    memory = f", {here['memory_gib']} GiB of memory" if here["memory_gib"] else ""
    yield "machine", f"{here['cpu']}, {cores()} cores{memory}", ""
    disk = shutil.disk_usage(REPOSITORY).free
    remedy = "" if disk > NEEDED_DISK else f"make room: {NEEDED_DISK / 2**30:.0f} GiB may be needed"
    yield "disk", f"{disk / 2**30:.0f} GiB free", remedy
    try:
        import torch
    except Exception as error:
        yield "GPU", "unknown", f"torch does not import ({error}): set up again with 'make clean' and 'make doctor'"
        return
    if torch.cuda.is_available():
        yield "GPU", ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())), ""
    elif here["gpu"]:
        named = ", ".join(here["gpu"])
        yield "GPU", f"{named}, which torch {torch.__version__} cannot use", "install a torch built for its driver"
    else:
        yield "GPU", "none: the quick profile needs none, the paper profile does", ""


def kernel() -> Iterator[Line]:
    """The notebooks' kernel is this interpreter's own."""
    try:
        importlib.import_module("ipykernel")
    except ImportError as error:
        yield "kernel", f"does not import: {error}", "set up again with 'make clean' and 'make doctor'"
    else:
        yield "kernel", sys.executable, ""


def data() -> Iterator[Line]:
    """The data sets that can be named. Only the embedded one must be there, and only its bytes are verified."""
    for name in ("embedded", "cifar10", "fashion-mnist"):
        try:
            found = find_data(name)
            if name == "embedded":
                read_sample(found.path)
        except MissingData as error:
            if name == "embedded":
                yield f"data: {name}", "missing", str(error)
            else:
                yield f"data: {name}", "not here: downloaded when first used, or bring it with --data PATH", ""
        except DataError as error:
            yield f"data: {name}", "damaged", str(error)
        else:
            verified = "" if name == "embedded" else "found, not verified: "
            yield f"data: {name}", f"{verified}{found.form}, {found.path}", ""


def runs(outputs: Path = REPOSITORY / "outputs") -> Iterator[Line]:
    """Run folders, finished or not."""
    for file in sorted(outputs.glob("*/runs/*/config.json")):
        name = f"run: {file.parents[2].name}/{file.parent.name}"
        try:
            run = Run(file.parent)
            epochs, lines, finished = run.train.epochs, run.metrics, run.finished
        except RunError as error:
            yield name, "damaged", str(error)
            continue
        accuracy = f", {lines[-1]['test_accuracy']:.1%} test accuracy" if lines else ""
        state = "finished" if finished else f"epoch {len(lines)} of {epochs}, resumes when trained again"
        yield name, state + accuracy, ""


def doctor() -> int:
    """Print all of it; the exit status is 1 when something is missing."""
    troubles = 0
    for part in (software, hardware, kernel, data, runs):
        for what, state, remedy in part():
            troubles += bool(remedy)
            print(f"{'!!' if remedy else 'ok'}  {what:<20} {state}")
            if remedy:
                print(f"    {'':<20} {remedy}")
    print("\nAll is well." if not troubles else f"\n{troubles} to put right (!! above).")
    return 1 if troubles else 0
