"""What a layer truly costs on this machine: time in turns, peak memory in a process of its own, and
a lower bound.

A layer can be no faster than its matrix products at the machine's best rate. Timings are taken in
turns, so that a busy machine slows all alike."""

from __future__ import annotations

import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.benchmark import Timer

from attnconv.attention import ContentAttention, QuadraticAttention
from attnconv.attention.mixing import mix_dense
from attnconv.config import ModelConfig, TrainConfig
from attnconv.cost import cost
from attnconv.models import build_model
from attnconv.training import build_optimizers

FORMS = ("separable", "dense", "full covariance", "content", "conv 3x3", "value projection")
"""What can be measured: attention in four forms, and what a convolution and the value projection
alone cost.
"""


class Dense(QuadraticAttention):
    """The same by all of P, as if it did not factor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(mix_dense(x, self.probabilities(*x.shape[1:3])))


@dataclass(frozen=True)
class Case:
    """One layer on random images."""

    form: str
    side: int
    """H = W, pixels."""
    channels: int = 64
    """C = D."""
    heads: int = 9
    batch: int = 1
    training: bool = True
    """Forward and backward; else forward only, without gradients."""
    bfloat16: bool = False
    """Products in bfloat16 (autocast); else in float32."""

    def call(self) -> Callable[[], object]:
        """A function that does it once."""
        layer, inputs = (
            self._layer(),
            self.channels * (self.heads if self.form == "value projection" else 1),
        )
        x = torch.randn(self.batch, self.side, self.side, inputs)
        x = x.permute(0, 3, 1, 2) if self.form == "conv 3x3" else x

        def once() -> object:
            leaf = x.detach().requires_grad_(self.training)
            with torch.set_grad_enabled(self.training):
                with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
                    out = layer(leaf)
                return self.training and torch.autograd.grad(
                    out, [leaf, *layer.parameters()], torch.ones_like(out)
                )

        return once

    def _layer(self) -> nn.Module:
        sizes = (self.channels, self.channels, self.heads)
        if self.form == "content":
            return ContentAttention(*sizes, max_size=self.side, key_size=16)
        if self.form == "conv 3x3":
            return nn.Conv2d(self.channels, self.channels, 3, padding=1).to(
                memory_format=torch.channels_last
            )
        if self.form == "value projection":
            return nn.Linear(self.heads * self.channels, self.channels)
        if self.form == "full covariance":
            return QuadraticAttention(*sizes, covariance="full")
        return (Dense if self.form == "dense" else QuadraticAttention)(*sizes)

    @property
    def flops(self) -> int:
        """Of the matrix products, with nothing computed twice: those of the definition in this
        form.
        """
        pixels, c, h = self.side**2, self.channels, self.heads
        values = 2 * pixels * h * c * c
        mixing = {
            "separable": 2 * self.side,
            "dense": pixels,
            "full covariance": pixels,
            "content": pixels,
        }
        total = values + 2 * pixels * h * c * mixing.get(self.form, 0)
        if self.form == "content":
            total += 2 * pixels * h * 16 * (2 * c + pixels + self.side)  # q and k, q . k, q . r
        if self.form == "conv 3x3":
            total = 2 * pixels * 9 * c * c
        return self.batch * total * (3 if self.training else 1)


def in_turns(
    calls: Mapping[str, Callable[[], object]], repeats: int, budget: float = 60.0
) -> dict[str, list[float]]:
    """Seconds of every call in every round, after one to warm up. Beyond ``budget`` seconds,
    three rounds will do.
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - started > budget:
            break
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - before)
    return times


def matrix_rate(bfloat16: bool = False) -> float:
    """FLOP/s of this project's typical product at the best that the CPU reaches, by either
    library.
    """
    rows, inner, columns = 4096, 576, 64
    kind, best = torch.bfloat16 if bfloat16 else torch.float32, math.inf
    names = {
        "x": torch.randn(rows, inner, dtype=kind),
        "weight": torch.randn(columns, inner, dtype=kind),
    }
    timer = Timer(
        "torch.nn.functional.linear(x, weight)", globals=names, num_threads=torch.get_num_threads()
    )
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    # "bf16" lets oneDNN multiply, in float32 but for CPUs with AMX.
    libraries = [before] if torch.cpu._is_amx_tile_supported() else [before, "bf16"]
    for library in libraries:
        setting.fp32_precision = library
        times = timer.blocked_autorange(min_run_time=0.3).times
        best = min(best, *times)  # other work can only make it slower
    setting.fp32_precision = before
    return 2 * rows * inner * columns / best


def peak_memory(case: Case) -> int:
    """Bytes that a case adds to a fresh process at its peak, by the operating system's count."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_peak_memory, case, torch.get_num_threads()).result()


def _peak_memory(case: Case, threads: int) -> int:
    torch.set_num_threads(threads)
    replace(case, side=4, batch=1).call()()  # what libraries allocate once
    call = case.call()
    before = highest_memory()
    call()
    return highest_memory() - before


def highest_memory() -> int:
    """The most memory that this process ever held, in bytes."""
    if sys.platform == "linux":  # getrusage counts what a process held before it became this one
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def training_step(model: ModelConfig, recipe: TrainConfig) -> Callable[[], float]:
    """A function that takes steps on random images (forward, backward, clipping, optimizer) and
    times the last. Products are in bfloat16 where the recipe says so, else in float32.
    """
    network = build_model(model)
    optimizers = build_optimizers(network, recipe)
    images = torch.randn(recipe.batch_size, model.image_channels, *model.image_size)
    labels = torch.randint(0, model.classes, (recipe.batch_size,))
    half = recipe.precision == "bfloat16"

    def step() -> None:
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = network(images)
        F.cross_entropy(logits.float(), labels).backward()
        if recipe.clip is not None:
            nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        for optimizer in optimizers:
            optimizer.step()

    def settled() -> float:
        """Seconds of a step after one that the memory's allocator learns from."""
        step()
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    return settled


def step_flops(model: ModelConfig, batch: int) -> int:
    """Of a training step's matrix products, with nothing computed twice: three times the forward
    pass.
    """
    return 3 * batch * cost(model).separable
