"""requirements.lock: writing it (`make lock`) and turning it into pip's constraints (the Makefile's other targets).

Runs before anything is installed, so it needs nothing but the standard library and pip.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

try:
    from packaging.requirements import Requirement
except ImportError:  # a fresh virtual environment: pip brings its own copy
    from pip._vendor.packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
HEADER = """\
# Exact versions of everything that attnconv installs. Regenerate with `make lock` on Python 3.11: the oldest supported,
# so that every version here has a build for it. pip reads this file as constraints: only what a machine needs is
# installed. CUDA's libraries and triton are left out: torch names their exact versions itself, where it uses them.
"""
_LEFT_TO_TORCH = re.compile(r"^(nvidia|cuda)-|^(triton|pytorch-triton)$")


def normal(name: str) -> str:
    """A distribution's name as indexes compare it: ``Foo_bar`` is ``foo-bar``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(extras: tuple[str, ...] = ("test",)) -> dict[str, Requirement]:
    """What pyproject.toml asks for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {normal(requirement.name): requirement for requirement in map(Requirement, lines)}


def read_lock(path: Path = ROOT / "requirements.lock") -> dict[str, str]:
    """Versions by name."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def lock_from_report(report: dict) -> str:
    """The text of requirements.lock from the report of ``pip install --dry-run --report``."""
    found = {normal(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}
    names = sorted(name for name in found if name != "attnconv" and not _LEFT_TO_TORCH.search(name))
    return HEADER + "".join(f"{name}=={found[name]}\n" for name in names)


def constraints(lock: dict[str, str], wanted: dict[str, Requirement], machine: dict[str, str]) -> Iterator[str]:
    """The lock as constraints, except that a package the machine already has, in a version that will do, is kept.

    ``machine``: versions by name of what lies outside the virtual environment. A torch that will do is held at exactly
    its version, and torchvision is then left open: pip must find the torchvision for this torch, not the other way.
    """
    kept = {
        name
        for name, version in machine.items()
        if name not in wanted or wanted[name].specifier.contains(version, prereleases=True)
    }
    for name, version in lock.items():
        if name == "torch" and name in kept:
            yield f"torch=={machine[name]}"
        elif name not in kept and not (name == "torchvision" and "torch" in kept):
            yield f"{name}=={version}"


def machine_packages() -> dict[str, str]:
    """Packages that this virtual environment sees and does not hold itself (``--system-site-packages``)."""
    inside = Path(sys.prefix).resolve()
    outside = [d for d in importlib.metadata.distributions() if inside not in Path(d.locate_file("")).resolve().parents]
    return {normal(d.name): d.version for d in reversed(outside) if d.name}


def main(arguments: list[str]) -> None:
    """No argument: print this environment's constraints. A pip report's path: print the lock made from it."""
    if arguments:
        print(lock_from_report(json.loads(Path(arguments[0]).read_text())), end="")
        return
    machine = machine_packages()
    if "torch" in machine:
        print(f"Using the machine's torch {machine['torch']}.", file=sys.stderr)
    print(*constraints(read_lock(), requirements(), machine), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
