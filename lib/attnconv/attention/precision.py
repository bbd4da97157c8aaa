"""How products are computed: decided in one place, by what the device is, and undone when the work
is done.

A CPU can multiply matrices in three ways that differ by factors of two to five: float32 by
PyTorch's default library (MKL, which takes a slow path on AMD), float32 by oneDNN, and bfloat16
where it has instructions for that. Training may use bfloat16 (``precision="auto"``); what is called
float32 is float32 on every device. Nothing is timed: a choice that wavered would change the bits of
a run."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Computation:
    """One way to compute."""

    bfloat16: bool = (
        False  # products in bfloat16 (autocast); sums, parameters, norms and losses in float32
    )
    onednn: bool = False  # on a CPU: float32 products by oneDNN rather than MKL
    compiled: bool = (
        False  # the network's steps go through ``torch.compile``: the same sums, in another order
    )

    def autocast(self, device: torch.device) -> torch.autocast:
        """For a forward pass and its loss."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16)

    def __str__(self) -> str:
        products = "bfloat16" if self.bfloat16 else "float32, oneDNN" if self.onednn else "float32"
        return f"{products}, compiled" if self.compiled else products


def choose(device: torch.device, precision: str = "float32") -> Computation:
    """The fastest computation that the device has and ``precision`` allows; ``auto`` allows both
    types.
    """
    if (
        device.type == "cpu"
    ):  # its instructions for bfloat16 count unless oneDNN is told to do without
        has = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        has = has and "ONEDNN_MAX_CPU_ISA" not in os.environ
        onednn = _is_amd() and _onednn_is_float32()
    else:
        has, onednn = (
            device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False),
            False,
        )
    return Computation(precision == "bfloat16" or (precision == "auto" and has), onednn)


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # mallopt(3)
_users = 0


@contextlib.contextmanager
def computing(computation: Computation, device: torch.device) -> Iterator[None]:
    """Compute like this inside (forward passes within `Computation.autocast`); settings are put
    back afterwards.

    On a CPU, oneDNN's setting is left alone where the process has chosen one
    (`torch.set_float32_matmul_precision`). And glibc keeps the memory of arrays that are freed: to
    give large ones back to the system and have each page of the next array fault again is a quarter
    of a training step. On a GPU convolutions in float32 would round their factors to TF32, ten bits
    of a fraction; here they do not."""
    global _users
    if device.type != "cpu":
        allowed, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
        try:
            yield
        finally:
            torch.backends.cudnn.allow_tf32 = allowed
        return
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch's stub does not know it
    before = products.fp32_precision
    change = computation.onednn and before == "none" and _onednn_is_float32()
    _users += 1
    try:
        if _users == 1:
            _mallopt({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1})
        if change:
            products.fp32_precision = "bf16"
        yield
    finally:
        if change:
            products.fp32_precision = before
        _users -= 1
        if not _users:  # what glibc itself settles on where arrays are large
            _mallopt({_MMAP_MAX: 65536, _MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: 2**26})


@functools.cache
def _is_amd() -> bool:
    """Whether AMD made the CPU: there oneDNN was 1.2 to 2.4 times as fast as MKL (Zen 4, two
    virtual machines).
    """
    with contextlib.suppress(OSError):  # only Linux has this file
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    return False


def _onednn_is_float32() -> bool:
    """PyTorch's way to oneDNN's products allows bfloat16 inside, and CPUs with AMX make use of
    that.
    """
    return torch.backends.mkldnn.is_available() and not torch.cpu._is_amx_tile_supported()


def _mallopt(values: dict[int, int]) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in values.items():
            mallopt(name, value)
