"""Run folders: the only thing that training hands on. Everything downstream reads them, from any machine.

A run folder holds ``config.json`` (enough to rebuild the model), ``metrics.jsonl`` (a line an epoch), ``heads.npz``
(what every head did after every epoch), ``model.safetensors`` (written last: it marks a finished run) and, while a
run is under way, ``checkpoint/`` (optimizer and random state, for resuming only). ``predictions.npz`` (the class that
the trained network gives each test image) and ``attention.npz`` (what its heads attend to) are what figures and
comparisons need of the data: with them, they are made again where the data set is missing. No torch is imported here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attnconv.config import PRESETS, ModelConfig, TrainConfig, config_hash, from_dict, to_dict


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message names the folder and the remedy."""


def identity(model: ModelConfig, train: TrainConfig, data_key: str, start: str | None = None) -> str:
    """Eight hexadecimal digits for what determines a run's result: model, recipe, data, the run it starts from."""
    recipe = {name: value for name, value in to_dict(train).items() if name != "checkpoint_seconds"}
    return config_hash(model, recipe, data_key, start)


@dataclass(frozen=True)
class Run:
    """A run folder, read lazily."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.json``: preset, title, hash, model, train, data, environment."""
        try:
            return json.loads((self.path / "config.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} is no run folder: it has no config.json.") from None
        except json.JSONDecodeError as error:
            raise RunError(
                f"{self.path / 'config.json'} is damaged ({error}); remove the folder and train again."
            ) from None

    @property
    def preset(self) -> str:
        return self.config["preset"]

    @property
    def title(self) -> str:
        """The model's name in figures and tables."""
        return PRESETS[self.preset].title if self.preset in PRESETS else self.preset

    @cached_property
    def model(self) -> ModelConfig:
        return from_dict(ModelConfig, self.config["model"])

    @cached_property
    def train(self) -> TrainConfig:
        return from_dict(TrainConfig, self.config["train"])

    @property
    def finished(self) -> bool:
        return (self.path / "model.safetensors").is_file()

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """One dictionary an epoch: train_loss, train_accuracy, test_loss, test_accuracy, lr, seconds, ..."""
        file = self.path / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    @property
    def test_accuracy(self) -> float:
        """Of the last epoch, never of the best: in [0, 1]."""
        if not self.metrics:
            raise RunError(f"{self.path} has no finished epoch yet.")
        return self.metrics[-1]["test_accuracy"]

    @cached_property
    def heads(self) -> dict[str, np.ndarray]:
        """Head geometry before training and after every epoch: each (epochs + 1, layers, heads, ...), see `heads`."""
        return _arrays(self.path / "heads.npz")

    @cached_property
    def right(self) -> np.ndarray | None:
        """Whether the trained network is right about each test image, in the data's order: (N,); None if not kept."""
        kept = _arrays(self.path / "predictions.npz")
        return kept["predicted"] == kept["label"] if kept else None

    @cached_property
    def attention(self) -> dict[str, np.ndarray]:
        """What its heads attend to after training, as `heads.measure_attention` found it; empty if not asked yet."""
        arrays = _arrays(self.path / "attention.npz")
        for name in {"mean", "single"} & arrays.keys():  # float16 on disk
            maps = arrays[name].astype(np.float32)
            arrays[name] = maps / maps.sum((-2, -1), keepdims=True)
        return arrays


def _arrays(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        return {}
    with np.load(file) as arrays:
        return dict(arrays)


def find_runs(folder: str | Path) -> list[Run]:
    """All finished runs below a folder, in the presets' order, then by seed and name."""
    order = {name: place for place, name in enumerate(PRESETS)}
    runs = [Run(file.parent) for file in Path(folder).glob("*/config.json")]
    runs = [run for run in runs if run.finished]
    return sorted(runs, key=lambda run: (order.get(run.preset, len(order)), run.train.seed, run.path.name))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: gives a temporary path beside it, moved into place at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; a second one that wants to train it is refused.

    With ATTNCONV_WAIT=1, as in a batch run, whose notebooks may need the same missing run, the second one waits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if os.environ.get("ATTNCONV_WAIT") != "1":
                raise RunError(f"{folder} is being trained by another process; wait for it or stop it first.") from None
            print(f"{folder.name} is being trained by another process; waiting for it.", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
