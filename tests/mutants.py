"""Whether the tests can fail: each mistake of mutants.txt is made in a copy of the tree, and its
tests must see it.

Run by hand, as ``python tests/mutants.py`` or ``make mutants``; what all tests together cost, it
costs some ten times. It ends with status 1 where a mistake is not seen, or cannot be made any more.
An entry of the list, between blank lines, is

    @ file: what is wrong           (the file from the repository's root)
    - the text as it is             (one line or several; it stands in the file exactly once)
    + what takes its place
    > test_file.py::test_name       (each of those must see it, from tests/; one in a line)
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
LIST = TESTS / "mutants.txt"
PATIENCE = 300
"""Seconds after which tests that hang count as failed."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "torchvision", "seaborn", "hypothesis", "papermill", "anywidget"]
)
"""What tests import besides the library: once for all mutants."""


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    file: str
    what: str
    before: str
    after: str
    tests: tuple[str, ...]

    def fault(self) -> str:
        """Why it cannot be made; empty if it can."""
        for test in self.tests:
            place, _, name = test.partition("::")
            if f"def {name.partition('[')[0]}(" not in (TESTS / place).read_text("utf-8"):
                return f"there is no test {test}"
        found = (ROOT / self.file).read_text("utf-8").count(self.before)
        return "" if found == 1 else f"its text stands there {found} times"


def read(text: str) -> list[Mutant]:
    """The entries of a list."""
    mutants = []
    for block in text.split("\n\n"):
        parts: dict[str, list[str]] = {mark: [] for mark in "@-+>"}
        for line in block.splitlines():
            if line and not line.startswith("#"):
                parts[line[0]].append(line[2:])
        if any(parts.values()):
            [place] = parts["@"]
            file, _, what = place.partition(": ")
            before, after = ("\n".join(parts[mark]) for mark in "-+")
            assert before != after and parts[">"], place
            mutants.append(Mutant(file, what, before, after, tuple(parts[">"])))
    return mutants


def copied_to(place: Path) -> Path:
    """What git knows or would add, in another place; data and outputs, which no mutant changes,
    are links.
    """
    command = "git ls-files -z --cached --others --exclude-standard".split()
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if not name.startswith(("data/", "outputs/")) and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    for name in ("data", "outputs"):
        (place / name).symlink_to(ROOT / name)
    return place


def fails(tests: tuple[str, ...], tree: Path) -> bool:
    """Whether one of these tests fails in a tree. `RuntimeError` where they cannot be run."""
    with tempfile.NamedTemporaryFile("r") as log:
        process = FORKS.Process(target=run_tests, args=(tests, tree, log.name))
        process.start()
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
            return True
        said = log.read()
    # 0: all passed, 1: one failed, 2: one could not even be read, which is to fail; else: there is
    # no such test
    if process.exitcode not in (0, 1, 2):
        raise RuntimeError(f"{' '.join(tests)} cannot be run: {said[-1500:]}")
    return process.exitcode != 0


def run_tests(tests: tuple[str, ...], tree: Path, log: str) -> NoReturn:
    """In a process of its own, with the library of that tree; it exits as pytest does."""
    output = os.open(log, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ |= {"PYTHONPATH": str(tree / "lib"), "PYTHONDONTWRITEBYTECODE": "1"}
    # A file that is changed twice in a second would be taken for what it was.
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(tree / "lib"), str(tree / "tests")]
    os.chdir(tree / "tests")
    import pytest

    sys.exit(int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests])))


def outcome(mutant: Mutant) -> str:
    """What becomes of it: ``seen``, ``NOT SEEN`` or ``does not apply any more``."""
    if fault := mutant.fault():
        return f"does not apply any more: {fault}"
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied_to(Path(folder))
        file = tree / mutant.file
        file.write_text(file.read_text("utf-8").replace(mutant.before, mutant.after), "utf-8")
        return "seen" if all(fails((test,), tree) for test in mutant.tests) else "NOT SEEN"


def main() -> int:
    options = argparse.ArgumentParser(
        description="Make each mistake of mutants.txt in a copy; its tests must see it."
    )
    options.add_argument("--only", nargs="+", default=[], help="entries with one of these words")
    options.add_argument("--jobs", type=int, default=1, help="so many at a time (default: 1)")
    given = options.parse_args()
    mutants = [
        one
        for one in read(LIST.read_text("utf-8"))
        if not given.only or any(w in f"{one.file}: {one.what}" for w in given.only)
    ]
    seen = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, found in zip(mutants, pool.map(outcome, mutants), strict=True):
            seen += found == "seen"
            print(f"{found:<9} {mutant.file}: {mutant.what}", flush=True)
    print(f"{seen} of {len(mutants)} seen")
    return 0 if seen == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
