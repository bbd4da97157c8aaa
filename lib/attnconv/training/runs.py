"""Run folders: the only thing that training hands on. Everything downstream reads them.

``config.json`` (enough to rebuild the model), ``metrics.jsonl`` (a line an epoch), ``heads.npz``
(what every head did before training and after each epoch), ``predictions.npz`` (the class given to
each test image), ``model.safetensors`` (written last: it says that the run is finished) and, while
a run is under way, ``checkpoint.pt``. A record may keep a finished run without its weights: then
the empty file ``no-weights`` stands in their place. What is measured of a finished run is kept
beside these: ``attention.npz`` (what heads attend to), ``swaps.npz`` (what is lost by convolutions
in layers' place). No torch is imported.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnconv.config import PRESETS, ModelConfig, TrainConfig

Arrays = dict[str, NDArray]


class RunError(ValueError):
    """A run folder that cannot be used as asked; the message names the file and the remedy."""

    remedy = "Bring it back, or delete {} and train again."


@contextlib.contextmanager
def reading(place: str | Path, kind: Any = RunError) -> Iterator[None]:
    """Whatever goes wrong while a file is read becomes one error that names it, and its remedy."""
    try:
        yield
    except kind:
        raise
    except Exception as error:  # the readers of damaged files raise dozens of kinds
        why = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = kind.remedy.format(Path(place).parent)
        raise kind(f"{place} cannot be read ({why}). {remedy}") from error


def write(file: Path, content: str | bytes | Mapping[str, ArrayLike]) -> None:
    """Write text, bytes or the arrays of an npz file, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}")  # what a kill leaves of it, the next one replaces
    if isinstance(content, Mapping):
        np.savez_compressed(unfinished, **content)  # type: ignore[arg-type]
    else:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(unfinished, file)


@dataclass(frozen=True)
class Run:
    """A run folder, read lazily. `RunError` names a file that cannot be read."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json: preset, model, train, data, and how it was made (``environment``)."""
        file = self.path / "config.json"
        with reading(file):
            return json.loads(file.read_bytes())

    @cached_property
    def model(self) -> ModelConfig:
        with reading(self.path / "config.json"):
            return ModelConfig(**self.config["model"])

    @cached_property
    def train(self) -> TrainConfig:
        with reading(self.path / "config.json"):
            return TrainConfig(**self.config["train"])

    @property
    def preset(self) -> str:
        return self.config["preset"]

    @property
    def title(self) -> str:
        """The model's name in figures and tables."""
        return PRESETS[self.preset].title if self.preset in PRESETS else self.preset

    @property
    def label(self) -> str:
        """Which run it is, in a few words."""
        plural = "s" if self.train.epochs > 1 else ""
        return f"{self.title}, seed {self.train.seed}, {self.train.epochs} epoch{plural}"

    @property
    def without_weights(self) -> bool:
        """Whether it is finished, and a record keeps it without its weights (docs/record.md)."""
        return (self.path / "no-weights").is_file()

    @property
    def begun(self) -> bool:
        """Whether it has finished epochs to go on from."""
        return (self.path / "checkpoint.pt").is_file()

    @property
    def finished(self) -> bool:
        """Whether its weights, which are written last, are there or were left out."""
        return (self.path / "model.safetensors").is_file() or self.without_weights

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """A dictionary a finished epoch: train_loss, train_accuracy, test_loss, test_accuracy,
        lr, seconds.
        """
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        with reading(file):
            return [json.loads(line) for line in file.read_text().splitlines()]

    @property
    def test_accuracy(self) -> float:
        """Of the last epoch, never of the best: in [0, 1]."""
        return self.metrics[-1]["test_accuracy"]

    @cached_property
    def heads(self) -> Arrays:
        """Head geometry before training and after every epoch: (epochs + 1, layers, heads, ...)."""
        return self.arrays("heads.npz")

    @cached_property
    def right(self) -> NDArray:
        """Whether the trained network is right about each test image, in the data's order: (N,)."""
        answers = self.arrays("predictions.npz")
        return answers["predicted"] == answers["label"]

    @cached_property
    def attention(self) -> Arrays:
        """What its heads attend to, as `heads.measure_attention` found it; empty if not asked."""
        arrays = self.arrays("attention.npz")
        for name, values in arrays.items():
            if values.dtype == np.float16:  # maps, coarsely
                maps = values.astype(np.float32)
                arrays[name] = maps / maps.sum((-2, -1), keepdims=True)
        return arrays

    @cached_property
    def swaps(self) -> Arrays:
        """What it loses by convolutions in its layers' place, as `measure_swaps` found it; empty
        if not asked.

        Answers are bool, one for each of n images: ``alone`` and ``up_to`` (layers, sizes, n),
        ``fitted``, ``shuffled``, ``whole`` (n).
        """
        arrays = self.arrays("swaps.npz")
        for name, values in arrays.items():
            if values.dtype == np.uint8:  # answers, as bits
                bits = np.unpackbits(values, axis=-1, count=int(arrays["images"]))
                arrays[name] = bits.astype(bool)
        return arrays

    def arrays(self, name: str) -> Arrays:
        """The arrays of an npz file of the folder; none where it is not there."""
        file = self.path / name
        if not file.exists():
            return {}
        with reading(file), np.load(file) as arrays:
            return dict(arrays)


def find_runs(folder: str | Path) -> list[Run]:
    """All finished runs of a folder, in the presets' order, then by seed and name."""

    def place(run: Run) -> tuple[int, int, str]:
        order = [*PRESETS, run.preset]  # others come last
        return order.index(run.preset), run.train.seed, run.path.name

    runs = [Run(file.parent) for file in Path(folder).glob("*/config.json")]
    return sorted((run for run in runs if run.finished), key=place)
