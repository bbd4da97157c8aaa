"""How a reproduction compares with the record beside which it was drawn: file by file, statement by
statement.

A statement is a cell of a table, a claim's verdict, a line of its evidence, or a value of a
figure's note. Each must be the same, but for rounding. Pictures and executed notebooks are told
apart by their bytes alone, and are not judged: times, which are measured anew, stand in these only,
and all other numbers in the statements, too."""

import csv
import json
import re
import textwrap
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

from attnconv.training.runs import read_json
from companion.plan import Job

NUMBER = re.compile(r"[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?%?")
TINY = Decimal("1e-5")  # numbers below this are errors of rounding, which differ between machines


def statements(file: Path) -> dict[str, str]:
    """What a file in tables/ or figures/ states, by name; nothing of a file of another form."""
    if file.suffix == ".csv":
        with file.open(newline="", errors="replace") as lines:
            rows = enumerate(csv.DictReader(lines), 1)
            return {
                f"{column}, row {number}": str(cell)
                for number, row in rows
                for column, cell in row.items()
            }
    if file.suffix == ".json" and "-claims" in file.stem:
        found = {}
        for claim in read_json(file, list):
            found[f"{claim['key']}, sign"] = claim["sign"]
            found[f"{claim['key']}, number"] = claim["number"]
            for number, row in enumerate(claim["table"], 1):
                for column, cell in row.items():
                    found[f"{claim['key']}, {column}, row {number}"] = str(cell)
        return found
    if file.suffix == ".json":
        return {
            name: json.dumps(value, ensure_ascii=False)
            for name, value in read_json(file, dict).items()
        }
    return {}


def alike(one: str, other: str) -> bool:
    """Whether two statements have the same words, and numbers that differ by no more than rounding:
    a unit of the last digit, or a part in a million, or both are tiny. Whole numbers count
    something: they are equal, or percentages."""
    numbers = zip(NUMBER.findall(one), NUMBER.findall(other), strict=False)
    return NUMBER.split(one) == NUMBER.split(other) and all(_near(*pair) for pair in numbers)


def _near(one: str, other: str) -> bool:
    a, b = (Decimal(text.strip("%").replace(",", "").replace("−", "-")) for text in (one, other))
    if not re.search("[.e%]", one + other):
        return a == b
    unit = Decimal(1).scaleb(max(int(number.as_tuple().exponent) for number in (a, b)))
    return abs(a - b) <= max(unit, abs(a) / 10**6) or max(abs(a), abs(b)) < TINY


def compare(
    record: Path, folder: Path, jobs: dict[str, Job], made: dict[str, Iterable[str]]
) -> int:
    """Say how what was ``made`` in a folder, by job, compares with the record; the exit status, 1
    if they differ. ``jobs`` are all of the profile. A notebook with a job that made nothing now was
    not asked for as a whole."""
    partly = {job.notebook.number for name, job in jobs.items() if name not in made}
    kept = [file for file in record.glob("*/[0-9][0-9][-_]*") if file.name[:2] not in partly]
    names = {file.relative_to(record).as_posix() for file in kept}.union(*made.values())

    found: dict[str, list[str]] = {kind: [] for kind in ("bytes", "same", "rounded", "differ")}
    for name in sorted(names):
        before, now = record / name, folder / name
        if not (before.is_file() and now.is_file()):
            found["differ"].append(
                f"{name}: {'not in the record' if now.is_file() else 'only in the record'}"
            )
            continue
        if before.read_bytes() != now.read_bytes().replace(
            b"outputs/reproduced/", b"outputs/"
        ):  # as a parameter says
            found["bytes"].append(name)
        stated, states = statements(before), statements(now)
        for key in stated | states:
            one, other = stated.get(key, "nothing"), states.get(key, "nothing")
            kind = "same" if one == other else "rounded" if alike(one, other) else "differ"
            found[kind].append(f"{name}: {key}: {one} in the record, {other} here")

    number = {kind: len(entries) for kind, entries in found.items()}
    others = f"; not {textwrap.shorten('; '.join(found['bytes']), 500)}" if found["bytes"] else ""
    print(f"\nBeside the record {record}, which was only read:")
    print(f"  files of the same bytes: {len(names) - number['bytes']} of {len(names)}{others}")
    print(
        f"  statements of claims, tables, captions: {number['same']} the same, {number['rounded']} but for rounding"
    )
    print("\n    ".join([f"  differ: {number['differ']}", *found["differ"]]), flush=True)
    return 1 if found["differ"] else 0
