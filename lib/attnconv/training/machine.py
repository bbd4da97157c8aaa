"""The machine that a run is made on: its devices, what a run folder says of it, and its signals
to stop.
"""

import atexit
import contextlib
import functools
import os
import platform
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm.auto import tqdm

from attnconv import __version__
from attnconv.config import ConfigError, errors_as
from attnconv.training.runs import said


@dataclass(frozen=True)
class Computation:
    """One way to compute."""

    bfloat16: bool = False  # products in bfloat16 (autocast)
    onednn: bool = False
    compiled: bool = False

    def autocast(self, device: torch.device) -> torch.autocast:
        """For a forward pass and its loss."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16)

    def __str__(self) -> str:
        products = "bfloat16" if self.bfloat16 else "float32"
        return f"{products}, compiled" if self.compiled else products


def choose(device: torch.device, precision: str = "float32") -> Computation:
    """bfloat16 where ``precision`` asks for it, or is "auto" and the device has instructions."""
    if device.type == "cpu":
        has = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        has = has and "ONEDNN_MAX_CPU_ISA" not in os.environ
    else:
        has = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return Computation(precision == "bfloat16" or (precision == "auto" and has))


def best_device() -> torch.device:
    """CUDA where there is one (under torchrun, this process's own), else the CPU."""
    cuda = f"cuda:{os.environ['LOCAL_RANK']}" if "LOCAL_RANK" in os.environ else "cuda"
    return torch.device(cuda if torch.cuda.is_available() else "cpu")


def to_be_compiled(
    device: torch.device, computation: Computation, asked: bool | None, images: int
) -> bool:
    """Whether a run of so many images is compiled: as ``asked`` or, if that is None, where it pays.
    That is for long runs on CUDA, and on a CPU in bfloat16 (1.1 to 1.3 times faster; float32 gains
    nothing)."""
    rule = images >= 100_000 and (
        device.type == "cuda" or computation.bfloat16
    )  # to compile takes half a minute
    return (rule if asked is None else asked) and compiler_works(device)


@functools.cache
def compiler_works(device: torch.device) -> bool:
    """Whether ``torch.compile`` has what it needs there, a C++ compiler first of all: tried on
    one addition.
    """
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
    except Exception as error:  # of dozens of kinds, for what is missing
        why = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        remedy = "Install g++ and Python's headers."
        warnings.warn(
            f"Training is not compiled ({why}): the same, a little slower. {remedy}", stacklevel=2
        )
        return False
    return True


def environment(device: torch.device) -> dict[str, str | int | None]:
    """Where a run is made, by which code, and when: versions, device, threads, command, commit,
    date.
    """
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    program = Path(sys.argv[0])
    by_command = program.stem == "attnconv" or program.parts[-2:] == ("attnconv", "__main__.py")
    tracked = said(
        "git", "ls-files", "--error-unmatch", __file__
    )  # not installed somewhere in another repository
    return dict(
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=" ".join(["attnconv", *sys.argv[1:]]) if by_command else None,
        commit=(tracked and said("git", "rev-parse", "HEAD")) or os.environ.get("ATTNCONV_COMMIT"),
        attnconv=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        device=gpu or f"{os.cpu_count()} CPU cores, {platform.machine()}",
        threads=torch.get_num_threads(),
    )


def progress_bar(total: int, done: int = 0, drawn: bool = True, leave: bool = True) -> tqdm:
    """A bar that counts images. A log gets few redrawings of it, and none with ATTNCONV_QUIET=1."""
    quiet = not drawn or os.environ.get("ATTNCONV_QUIET") == "1"
    often = sys.stderr.isatty() or "ipykernel" in sys.modules
    look = dict(
        disable=quiet,
        unit=" images",
        leave=leave,
        dynamic_ncols=True,
        mininterval=0.1 if often else 30,
    )
    return tqdm(total=total, initial=min(done, total), **look)


@contextlib.contextmanager
def signals_to_stop() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and SIGHUP set an event and break nothing off; a second one raises
    KeyboardInterrupt at once. A signal that is ignored, as SIGHUP is under nohup, stays ignored."""
    event = threading.Event()

    def ask(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    main = (
        threading.current_thread() is threading.main_thread()
    )  # Python lets no other thread set handlers
    with contextlib.ExitStack() as restored:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ():
            if (before := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                restored.callback(signal.signal, number, before)
                signal.signal(number, ask)
        yield event


class Team:
    """The processes that torchrun started for one run. Alone, which is the rule, each method gives
    back what it got.

    Each takes its share of every batch, and gradients are averaged: one process and several follow
    the same loss curve (BatchNorm aside: on a CPU each process normalises by its own share)."""

    def __init__(self) -> None:
        """`ConfigError` where the variables that torchrun sets do not fit together, or lead to
        no other process.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        given = {name: os.environ[name] for name in names if name in os.environ}
        asked = ", ".join(f"{name}={value}" for name, value in given.items())
        what = f"This training has no team of processes, as {asked} asks for"
        with errors_as(
            ConfigError,
            what,
            "torchrun sets these variables; to train with one process, unset them.",
        ):
            self.size, self.rank = int(given.get("WORLD_SIZE", "1")), int(given.get("RANK", "0"))
            if not 0 <= self.rank < self.size:
                raise ValueError(f"of {self.size} processes none has rank {self.rank}")
            if self.size > 1 and not dist.is_initialized():
                socket.getaddrinfo(
                    given.get("MASTER_ADDR"), 0
                )  # torch would ask for an unknown host for minutes
                if cuda := torch.cuda.is_available():
                    torch.cuda.set_device(best_device())
                dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
                atexit.register(dist.destroy_process_group)
        self.leads = self.rank == 0  # one process writes the run folder and speaks to the user

    def align(self, model: nn.Module) -> None:
        """Give every process the first one's weights. On GPUs, BatchNorm normalises by the whole
        batch from now on.
        """
        if self.size > 1:
            for value in model.state_dict().values():
                first = value.contiguous()
                dist.broadcast(first, 0)
                value.copy_(first)
            if torch.cuda.is_available():
                nn.SyncBatchNorm.convert_sync_batchnorm(model)

    def average_gradients(self, model: nn.Module) -> None:
        """Make each gradient its mean over processes."""
        # All go in one piece. `DistributedDataParallel` groups them anew after the first step of a
        # session, and sums in other groups are rounded otherwise: a resumed run would not end with
        # the same bits.
        if self.size > 1:
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            means = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
            for gradient, part in zip(
                gradients, means.split([g.numel() for g in gradients]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))

    def share(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        """This process's images and labels of a batch, and their weight: the mean over processes
        is the batch's.
        """
        own = slice(self.rank, None, self.size)
        weight = len(y[own]) * self.size / len(y)
        if not weight:
            own = slice(1)  # no image is left for this process, but all must go through the model
        return x[own], y[own], weight

    def mean(self, value: Tensor) -> Tensor:
        """The mean over processes."""
        if self.size > 1:
            dist.all_reduce(value)
            value = value / self.size
        return value

    def any(self, own: bool) -> bool:
        """Whether it is so in any process; all wait here for each other. It goes between CPUs,
        not over a GPU.
        """
        return self.mean(torch.tensor(float(own))).item() > 0

    def stacked(self, value: Tensor) -> Tensor:
        """What each process has, by rank: (processes, ...)."""
        values = [value.clone() for _ in range(self.size)]
        if self.size > 1:
            dist.all_gather(values, value)
        return torch.stack(values)
