"""The machine that a run is made on: its device, what is said of it in the run's folder, and its signals to stop."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import torch


def best_device() -> torch.device:
    """CUDA where there is one (under torchrun, this process's own), else the CPU."""
    cuda = f"cuda:{os.environ['LOCAL_RANK']}" if "LOCAL_RANK" in os.environ else "cuda"
    return torch.device(cuda if torch.cuda.is_available() else "cpu")


def environment(device: torch.device) -> dict[str, str | int | None]:
    """Where a run is made, by which code, and when: versions, device, threads, command, commit, date."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    by_command = Path(sys.argv[0]).stem in ("attnconv", "__main__")
    return dict(
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=" ".join(["attnconv", *sys.argv[1:]]) if by_command else None,
        commit=_commit(),
        attnconv=importlib.metadata.version("attnconv"),
        torch=torch.__version__,
        python=platform.python_version(),
        device=gpu or f"{os.cpu_count()} CPU cores, {platform.machine()}",
        threads=torch.get_num_threads(),
    )


def _commit() -> str | None:
    """The commit of this code: git's answer, else $ATTNCONV_COMMIT (for a copy of the repository without .git)."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return os.environ.get("ATTNCONV_COMMIT")


@contextlib.contextmanager
def signals_to_stop() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and SIGHUP set an event and break nothing off; a second one raises KeyboardInterrupt at once.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    event = threading.Event()

    def ask(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    main = threading.current_thread() is threading.main_thread()  # Python lets no other thread set handlers
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, ask)
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
