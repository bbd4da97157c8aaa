"""How products are computed: decided in one place, by what the device has, and undone when the work is done.

A CPU can multiply matrices in three ways that differ by factors of two to five: float32 by PyTorch's default library
(MKL, which takes a slow path on AMD), float32 by oneDNN, and bfloat16 where it has instructions for that. Training may
use bfloat16 (``precision="auto"``); what is called float32 is float32 on every CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

FASTER = 1.2
"""A way of computing is taken when it is faster than the plain one by this factor: less is noise."""


@dataclass(frozen=True)
class Computation:
    """One way to compute."""

    bfloat16: bool = False
    """Products in bfloat16 (autocast); sums over chunks, parameters, norms and losses in float32."""
    onednn: bool = False
    """On a CPU: float32 products by oneDNN rather than MKL."""

    def autocast(self, device: torch.device) -> torch.autocast:
        """For a forward pass and its loss."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16)

    def __str__(self) -> str:
        return "bfloat16" if self.bfloat16 else "float32, oneDNN" if self.onednn else "float32"


def choose(device: torch.device, precision: str = "float32") -> Computation:
    """The fastest computation that the device has and ``precision`` allows; ``auto`` allows both types."""
    if device.type != "cpu":
        has = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return Computation(bfloat16=precision == "bfloat16" or (precision == "auto" and has))
    speed = _speed_of_products()
    onednn = _onednn_is_float32() and speed["oneDNN"] > FASTER * speed["plain"]
    has = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    faster = has and speed["bfloat16"] > FASTER * speed["oneDNN" if onednn else "plain"]
    return Computation(precision == "bfloat16" or (precision == "auto" and faster), onednn)


@contextlib.contextmanager
def computing(computation: Computation, device: torch.device) -> Iterator[None]:
    """Compute like this inside (forward passes within `Computation.autocast`); settings are put back afterwards.

    oneDNN's setting is left alone where the process has chosen one (`torch.set_float32_matmul_precision`).
    """
    before = torch.backends.mkldnn.matmul.fp32_precision
    change = device.type == "cpu" and computation.onednn and before == "none" and _onednn_is_float32()
    with _memory_kept() if device.type == "cpu" else contextlib.nullcontext():
        try:
            if change:
                torch.backends.mkldnn.matmul.fp32_precision = "bf16"
            yield
        finally:
            if change:
                torch.backends.mkldnn.matmul.fp32_precision = before


def _onednn_is_float32() -> bool:
    """PyTorch's way to oneDNN's products allows bfloat16 inside, and CPUs with AMX make use of that."""
    return torch.backends.mkldnn.is_available() and not torch.cpu._is_amx_tile_supported()


@functools.cache
def _speed_of_products() -> dict[str, float]:
    """Products a second each way, of this project's usual size, on one core. Measured once a process, in some 50 ms.

    The ways take turns and the best round counts, in time on the processor, so that a busy machine does not change the
    answer: the same machine must always compute the same bits.
    """
    x, weight = torch.randn(1024, 576), torch.randn(64, 576)
    operands = {"plain": (x, weight), "oneDNN": (x, weight), "bfloat16": (x.bfloat16(), weight.bfloat16())}
    setting, threads = torch.backends.mkldnn.matmul, torch.get_num_threads()
    before, seconds = setting.fp32_precision, dict.fromkeys(operands, math.inf)
    try:
        torch.set_num_threads(1)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for _ in range(20):
                for name, (a, b) in operands.items():
                    setting.fp32_precision = "bf16" if name == "oneDNN" else "ieee"
                    start = time.thread_time()
                    F.linear(a, b)
                    seconds[name] = min(seconds[name], time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
        setting.fp32_precision = before
    return {name: 1 / best for name, best in seconds.items()}


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # mallopt(3)
_users = 0


@contextlib.contextmanager
def _memory_kept() -> Iterator[None]:
    """Let glibc keep the memory of arrays that are freed.

    Else it gives that of large ones back to the system, and every page of the next array faults again: a quarter of a
    training step.
    """
    global _users
    _users += 1
    if _users == 1:
        _mallopt({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1})
    try:
        yield
    finally:
        _users -= 1
        if not _users:  # what glibc itself settles on where arrays are large
            _mallopt({_MMAP_MAX: 65536, _MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: 2**26})


def _mallopt(values: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in values.items():
            mallopt(name, value)
