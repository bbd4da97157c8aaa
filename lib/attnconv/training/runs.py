"""Run folders: the only thing that training hands on. Everything downstream reads them, from any
machine.

A run folder holds ``config.json`` (enough to rebuild the model), ``metrics.jsonl`` (a line an
epoch), ``heads.npz`` (what every head did after every epoch), ``predictions.npz`` (the class given
to each test image), ``model.safetensors`` (written last: it marks a finished run) and, while a run
is under way, ``checkpoint/`` (for resuming only). ``attention.npz`` (what heads attend to) and
``swaps.npz`` (what is lost by convolutions in layers' place) are measured when they are first asked
for. Figures need no more, so they can be made again without the data. No torch is imported."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import ArrayLike, NDArray

from attnconv.config import PRESETS, Config, ModelConfig, TrainConfig, config_hash, errors_as

# its pixels differ: an accuracy on it is not quite one on CIFAR-10 itself
JPEG_COPY = "JPEG copy of CIFAR-10"
Json = TypeVar("Json", dict, list)


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message names the folder and the remedy."""


def identity(
    model: ModelConfig | dict, train: TrainConfig | dict, data_key: str, start: str | None = None
) -> str:
    """Eight hexadecimal digits for what determines a run's result: model, recipe, data, the run
    it starts from.
    """
    recipe = {name: value for name, value in dict(train).items() if name != "checkpoint_seconds"}
    return config_hash(model, recipe, data_key, start)


def data_key(about: dict[str, Any]) -> str:
    """Hex sha256 of what names a data set, whatever form its copy has."""
    names = ("name", "classes", "train_images", "test_images", "mean", "std")
    return config_hash(*(about[name] for name in names))


class _Config(Config, extra="allow"):
    """What is read of config.json; all else is kept as it is."""

    preset: str
    hash: str
    model: ModelConfig
    train: TrainConfig
    data: dict[str, Any]  # see `Dataset.about`
    weights: str | None = None  # hex sha256 of model.safetensors, once the run is finished
    weights_kept: bool = (
        True  # false: a finished run whose weights were left out of a record, and its measures kept
    )


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Whatever goes wrong while a file of a run folder is read becomes one `RunError` that names
    it.
    """
    folder = file.parent.parent if file.parent.name == "checkpoint" else file.parent
    with errors_as(
        RunError, f"{file} is damaged", f"Bring it back, or remove {folder} and train again."
    ):
        if not file.is_file():  # a pipe might never end
            raise ValueError("it is no regular file" if file.exists() else "it is missing")
        yield


def read_json(file: Path, kind: type[Json]) -> Json:
    """What a file holds; empty where it is missing or damaged, or holds something else."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if file.is_file() and isinstance(value := json.loads(file.read_bytes()), kind):
            return value
    return kind()


def write_arrays(file: Path, arrays: Mapping[str, ArrayLike]) -> None:
    """Write an npz file, whole or not at all."""
    with writing(file) as temporary:
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]  # NumPy's stub fears that one is allow_pickle


@dataclass(frozen=True)
class Run:
    """A run folder, read lazily. What is read is checked: `RunError` names the file that is
    damaged.
    """

    path: Path

    @cached_property
    def _parsed(self) -> _Config:
        if not (file := self.path / "config.json").exists():
            raise RunError(
                f"{self.path} is no run folder: no config.json is there. Name another, or train a new one."
            )
        with reading(file):
            return _checked(file.read_bytes())

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.json``: preset, hash, model, train, data, environment, sessions, and the
        weights' checksum.
        """
        return self._parsed.model_dump(mode="json")

    @cached_property
    def model(self) -> ModelConfig:
        return self._parsed.model

    @cached_property
    def train(self) -> TrainConfig:
        return self._parsed.train

    @property
    def preset(self) -> str:
        return self._parsed.preset

    @property
    def title(self) -> str:
        """The model's name in figures and tables."""
        return PRESETS[self.preset].title if self.preset in PRESETS else self.preset

    @property
    def label(self) -> str:
        """Which run it is, in a few words."""
        return f"{self.title}, seed {self.train.seed}, {self.train.epochs} epoch{'s' * (self.train.epochs > 1)}"

    @property
    def data_title(self) -> str:
        """The data set's name in texts. A copy of CIFAR-10 that JPEG has changed is called one."""
        data = self.config["data"]
        return JPEG_COPY if data["name"] == "cifar10" and "JPEG" in data["form"] else data["name"]

    @property
    def without_weights(self) -> bool:
        """Whether it is finished, and its weights were left out (docs/record.md)."""
        return not (self.path / "model.safetensors").exists() and not self._parsed.weights_kept

    @property
    def finished(self) -> bool:
        """Whether the weights are there and whole, or were left out."""
        file = self.path / "model.safetensors"
        if not file.is_file():
            return (self.path / "config.json").exists() and self.without_weights
        with reading(file):  # it may be nobody's to read
            about = file.stat()
            return _sha256(file, about.st_size, about.st_mtime_ns) == self.config.get("weights")

    def finished_as(self, name: str) -> bool:
        """Whether it is the run of that `identity`, and finished; another run in its folder is
        refused.
        """
        if (self.path / "config.json").is_file() and self.config["hash"] != name:
            other = (
                f"a run of another configuration or data set ({self.config['hash']}, not {name})"
            )
            raise RunError(f"{self.path} holds {other}; give this run a folder of its own.")
        return self.finished

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """One dictionary an epoch: train_loss, train_accuracy, test_loss, test_accuracy, lr,
        seconds, ...
        """
        file = self.path / "metrics.jsonl"
        ended = (self.path / "model.safetensors").exists() or self.without_weights
        if not ended and not file.exists():
            return []
        with reading(file):
            lines = [json.loads(line) for line in file.read_bytes().splitlines()]
            wanted = self.train.epochs if ended else len(lines)
            numbers = all(type(value) in (int, float) for line in lines for value in line.values())
            if not numbers or [line["epoch"] for line in lines] != list(range(1, wanted + 1)):
                raise ValueError(
                    f"its {len(lines)} lines are not numbers of each of {wanted} epochs"
                )
            return lines

    @property
    def test_accuracy(self) -> float:
        """Of the last epoch, never of the best: in [0, 1]."""
        if not self.metrics:
            raise RunError(f"{self.path} has no finished epoch yet.")
        return self.metrics[-1]["test_accuracy"]

    @cached_property
    def heads(self) -> dict[str, NDArray]:
        """Head geometry before training and after every epoch: each (epochs + 1, layers, heads,
        ...), see `heads`.
        """
        return self._arrays("heads.npz", needed=self.finished and self.model.kind != "resnet")

    @cached_property
    def right(self) -> NDArray | None:
        """Whether the trained network is right about each test image, in the data's order: (N,);
        None if not kept.
        """
        kept = self._arrays("predictions.npz", needed=self.without_weights)
        return kept["predicted"] == kept["label"] if kept else None

    @cached_property
    def right_at_start(self) -> NDArray | None:
        """The same before its first step, where it goes on from another run and this was kept."""
        kept = self._arrays("predictions.npz")
        return kept["start"] == kept["label"] if "start" in kept else None

    @cached_property
    def attention(self) -> dict[str, NDArray]:
        """What its heads attend to after training, as `heads.measure_attention` found it; empty
        if not asked yet.
        """
        arrays = self._arrays("attention.npz")
        for name in {"mean", "single"} & arrays.keys():  # float16 on disk
            maps = arrays[name].astype(np.float32)
            arrays[name] = maps / maps.sum((-2, -1), keepdims=True)
        return arrays

    @cached_property
    def swaps(self) -> dict[str, NDArray]:
        """What it loses by convolutions in place of its layers, as `swaps.measure_swaps` found it;
        empty if not asked. Answers are bool, an image each (n): ``alone`` and ``up_to`` (L, S, n),
        ``fitted``, ``shuffled``, ``whole`` (n)."""
        found = self._arrays("swaps.npz")
        for name in {
            "alone",
            "up_to",
            "fitted",
            "shuffled",
            "whole",
        } & found.keys():  # bits on disk
            found[name] = np.unpackbits(found[name], axis=-1, count=int(found["images"])).astype(
                bool
            )
        return found

    def _arrays(self, name: str, needed: bool = False) -> dict[str, NDArray]:
        """The arrays of an npz file; empty where there is none."""
        file = self.path / name
        if not needed and not file.exists():
            return {}
        with reading(file), np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)

    def check(self) -> None:
        """Read all that is small: `RunError` names the first file that is damaged."""
        _ = self.config, self.metrics, self.heads, self.right
        if not self.finished:
            raise RunError(
                f"{self.path / 'model.safetensors'} is damaged or missing; train the run again."
            )


@lru_cache(1024)  # a notebook on hundreds of recorded runs looks for each of them among all
def _checked(content: bytes) -> _Config:
    """What a config.json of this content says."""
    found = json.loads(content)
    parsed = _Config(**found)
    named = identity(found["model"], found["train"], parsed.data["key"])
    if (
        parsed.hash != named and parsed.train.start_from is None
    ):  # else the run it starts from is part of it
        raise ValueError("it is not what was written")
    return parsed


@lru_cache
def _sha256(file: Path, size: int, changed: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def find_runs(folder: str | Path, wanted: Callable[[Run], bool] = lambda run: True) -> list[Run]:
    """All finished runs below a folder, in the presets' order, then by seed and name. What is
    damaged, or no run of this library, is left out with a warning that names it. ``wanted``: by
    their configuration, those to read."""
    order, runs = {name: place for place, name in enumerate(PRESETS)}, []
    for file in Path(folder).glob("*/config.json"):
        run = Run(file.parent)
        if (run.path / "model.safetensors").exists() or not read_json(file, dict).get(
            "weights_kept", True
        ):
            try:
                if wanted(run):
                    run.check()
                    runs.append(run)
            except RunError as error:
                warnings.warn(f"The run folder {run.path.name} is left out: {error}", stacklevel=2)
    return sorted(
        runs, key=lambda run: (order.get(run.preset, len(order)), run.train.seed, run.path.name)
    )


LEFTOVERS = (
    f".*-{8 * '[0-9a-f]'}.*"  # names of temporary files, which a process that was killed leaves
)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: gives a temporary path beside it, moved into place when it
    is on the disk. An `OSError` names the file, its disk, and how much room is left there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file)
        os.replace(temporary, path)
    except OSError as error:
        disk = next(place for place in path.resolve().parents if place.is_mount())
        room = f"the disk at {disk} has {shutil.disk_usage(disk).free >> 20} MiB left"
        raise OSError(
            error.errno or errno.EIO, f"{error.strerror or error} ({room})", str(path)
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write(file: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, as `writing` does."""
    with writing(file) as temporary:  # names of files, of which a text may speak, may be no UTF-8
        temporary.write_bytes(
            content if isinstance(content, bytes) else content.encode(errors="replace")
        )


@contextlib.contextmanager
def held(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold a folder for this process. Another one there is waited for or, if not ``wait``, a
    `RunError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        taken = lock.acquire(timeout=0)
    except Timeout:
        if not wait:
            raise RunError(
                f"Another process is at work in {folder}; wait for it, or choose another folder."
            ) from None
        print(
            f"Another process is at work in {folder}: waiting for it.", file=sys.stderr, flush=True
        )
        taken = lock.acquire()
    with taken:
        yield


def said(*command: str) -> str | None:
    """What a command answers, run in this repository; None where it fails or is not there."""
    try:
        here = Path(__file__).parent
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
