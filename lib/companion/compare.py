"""How a reproduction compares with the record beside which it was drawn, file by file.

Tables must be the same: numbers but for rounding, words to the letter. Pictures are told apart by
their bytes alone, and are not judged: another Matplotlib draws a few pixels otherwise, and times,
which are measured anew, stand in pictures only."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TABLES, PICTURES = (".csv", ".json"), (".png", ".gif")


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """What differs in two values as JSON has them: a line for each, with its place."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one | other:
            yield from differences(one.get(name), other.get(name), f"{where}: {name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True), 1):
            yield from differences(*pair, f"{where}: {number}")
    elif isinstance(one, int | float) and isinstance(other, int | float):
        if not np.isclose(one, other, equal_nan=True):
            yield f"{where}: {one} in the record, {other} here"
    elif one != other:
        yield f"{where}: {one} in the record, {other} here"


def read(file: Path) -> Any:
    """A table's content as JSON has it, a row after another."""
    if file.suffix == ".csv":
        return pd.read_csv(file).to_dict("records")
    return json.loads(file.read_text("utf-8"))


def compare(record: Path, folder: Path, numbers: set[str]) -> int:
    """Say how a folder compares with the record, in what notebooks of these ``numbers`` left; the
    exit status, 1 where tables differ or a file is missing or new."""
    names = {
        file.relative_to(place).as_posix()
        for place in (record, folder)
        for kind in ("tables", "figures")
        for file in place.glob(f"{kind}/*")
        if file.name[:2] in numbers and file.suffix in TABLES + PICTURES
    }
    redrawn, differ = [], []
    for name in sorted(names):
        before, now = record / name, folder / name
        if not before.is_file() or not now.is_file():
            differ.append(f"{name}: only {'here' if now.is_file() else 'in the record'}")
        elif now.suffix in TABLES:
            differ += differences(read(before), read(now), name)
        elif before.read_bytes() != now.read_bytes():
            redrawn.append(name)
    print(f"\nBeside the record {record}, which was only read: {len(names)} tables and pictures.")
    print(f"  pictures of other bytes: {len(redrawn)} {' '.join(redrawn[:10])}")
    print("\n    ".join([f"  differences in tables: {len(differ)}", *differ]), flush=True)
    return 1 if differ else 0
