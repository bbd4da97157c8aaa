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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue
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

    def fault(self, root: Path) -> str:
        """Why it cannot be made in a tree; empty if it can."""
        for test in self.tests:
            place, _, name = test.partition("::")
            file = root / "tests" / place
            if not file.is_file() or f"def {name.partition('[')[0]}(" not in file.read_text(
                "utf-8"
            ):
                return f"there is no test {test}"
        if not (root / self.file).is_file():
            return "there is no such file"
        found = (root / self.file).read_text("utf-8").count(self.before)
        return "" if found == 1 else f"its text stands there {found} times"


def read(text: str) -> list[Mutant]:
    """The entries of a list. `ValueError` names the line of one that is none."""
    mutants, lines = [], enumerate(text.splitlines(), 1)
    blocks = (
        list(block)
        for full, block in groupby(lines, key=lambda line: bool(line[1].strip()))
        if full
    )
    for block in blocks:
        entry = [(number, line) for number, line in block if not line.startswith("#")]
        if not entry:
            continue
        parts: dict[str, list[str]] = {mark: [] for mark in "@-+>"}
        for number, line in entry:
            mark, space, rest = line[:1], line[1:2], line[2:]
            if mark not in parts or space not in ("", " "):
                raise ValueError(
                    f"line {number}: {line!r} begins with none of '@ ', '- ', '+ ', '> ', '#'."
                )
            parts[mark].append(rest)
        file, colon, what = "".join(parts["@"]).partition(": ")
        if (
            len(parts["@"]) != 1
            or not (colon and what and all(parts.values()))
            or parts["-"] == parts["+"]
        ):
            raise ValueError(
                f"line {entry[0][0]}: an entry has one line '@ file: what is wrong', then '- ', '+ "
                "', which differ, and '> '."
            )
        mutants.append(
            Mutant(file, what, "\n".join(parts["-"]), "\n".join(parts["+"]), tuple(parts[">"]))
        )
    return mutants


def copy_of(root: Path, place: Path) -> Path:
    """What git knows or would add, in another place; data and outputs, which no mutant changes,
    are links.
    """
    command = "git ls-files -z --cached --others --exclude-standard".split()
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    names = listed.stdout.split("\0")
    for name in filter(None, names):
        if not name.startswith(("data/", "outputs/")) and (root / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, place / name)
    for name in ("data", "outputs"):
        (place / name).symlink_to(root / name)
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


def tried(mutants: list[Mutant], root: Path, at_once: int) -> Iterator[tuple[Mutant, str]]:
    """What became of each: ``seen``, ``NOT SEEN`` or ``does not apply any more``."""
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(at_once) as pool,
    ):
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(at_once):
            trees.put(copy_of(root, Path(folder, str(number))))

        def outcome(mutant: Mutant) -> str:
            if fault := mutant.fault(root):
                return f"does not apply any more: {fault}"
            tree = trees.get()
            file = tree / mutant.file
            sound = file.read_text("utf-8")
            try:
                file.write_text(sound.replace(mutant.before, mutant.after), "utf-8")
                return "seen" if all(fails((test,), tree) for test in mutant.tests) else "NOT SEEN"
            finally:
                file.write_text(sound, "utf-8")
                trees.put(tree)

        yield from zip(mutants, pool.map(outcome, mutants), strict=True)


def main() -> int:
    options = argparse.ArgumentParser(
        description="Make each mistake of mutants.txt in a copy; its tests must see it."
    )
    options.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="entries with one of these words"
    )
    options.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="so many at a time (default: 1)"
    )
    given = options.parse_args()
    mutants = [
        one
        for one in read(LIST.read_text("utf-8"))
        if not given.only or any(w in f"{one.file}: {one.what}" for w in given.only)
    ]
    seen = 0
    for mutant, outcome in tried(mutants, ROOT, max(1, given.jobs)):
        seen += outcome == "seen"
        print(f"{outcome:<9} {mutant.file}: {mutant.what}", flush=True)
    print(f"{seen} of {len(mutants)} seen")
    return 0 if seen == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
