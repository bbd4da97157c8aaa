"""What attnconv has no more and companion's present files still use. To be removed with them."""

import contextlib
import hashlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from ruamel.yaml import YAML

from attnconv.config import Config, ConfigError
from attnconv.training.runs import RunError

LEFTOVERS = ".*.part"


def read_yaml(text: str) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:
        why = " ".join(str(error).split()).partition(" To suppress this check")[0]
        raise ConfigError(f"not valid YAML: {why}") from error


def read_json(file: Path, kind: Any) -> Any:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if file.is_file() and isinstance(value := json.loads(file.read_bytes()), kind):
            return value
    return kind()


def config_hash(*configs: Any) -> str:
    plain = [c.model_dump(mode="json") if isinstance(c, Config) else c for c in configs]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def held(folder: Path, *, wait: bool) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=-1 if wait else 0):
            yield
    except Timeout:
        raise RunError(f"Another process is at work in {folder}; wait for it.") from None


def said(*command: str) -> str | None:
    try:
        here = Path(__file__).parent
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
