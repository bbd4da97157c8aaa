"""The companion's command, with kernels that are forked, for two long tests.

Torch, pandas and seaborn take longer to import than most notebooks of the smoke profile to run. The
server that jobs are forked from imports them once, and each job's kernel is a fork of the job. All
else is the runner's own; tests/test_reproduce.py starts kernels as users do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any


def command(*words: str, library: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What became of ``attnconv`` with these words, of the packages in a folder."""
    path = os.pathsep.join([str(library), str(Path(__file__).parent)])
    return subprocess.run(
        [sys.executable, __file__, *words],
        capture_output=True,
        text=True,
        timeout=2400,
        env=os.environ | {"PYTHONPATH": path} | variables,
        cwd=library.parent,
    )


class Kernel(ForkProcess):
    """A kernel that waits until jupyter_client starts one. To jupyter_client it is the
    `subprocess.Popen` that it expects."""

    stdin = stdout = stderr = None

    def __init__(self) -> None:
        super().__init__()
        self.receives, self.sends = multiprocessing.Pipe(duplex=False)

    def launch(self, command: list[str], *, env: dict[str, str], **_: Any) -> Kernel:
        """In place of jupyter_client's ``launch_kernel``."""
        self.sends.send((command, env, os.getcwd()))
        return self

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def run(self) -> None:
        """Wait for the command, then do as a new process with it would."""
        self.sends.close()  # so that it ends where this process ends first
        [_, _, _, *arguments], environment, folder = self.receives.recv()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ |= environment
        os.chdir(folder)
        import matplotlib
        import torch
        from ipykernel.kernelapp import IPKernelApp

        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
        matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"
        arguments.append("--matplotlib=inline")
        arguments.append(f"--IPKernelApp.parent_handle={os.getppid()}")  # it ends with this
        IPKernelApp.launch_instance(arguments)


def fork_kernels() -> None:
    """Import what notebooks import; from now on papermill's kernels are forks of this process."""
    import ipykernel.kernelapp  # noqa: F401
    import papermill
    import torchvision  # noqa: F401
    from jupyter_client.provisioning import local_provisioner

    import companion.explorer  # noqa: F401
    import companion.figures  # noqa: F401

    execute_notebook = papermill.execute_notebook

    def execute(*given: Any, **options: Any) -> Any:
        kernel = Kernel()
        kernel.start()
        assert kernel.pid
        os.setpgid(kernel.pid, kernel.pid)  # jupyter_client ends a kernel with its group
        local_provisioner.launch_kernel = kernel.launch  # type: ignore[assignment]
        return execute_notebook(*given, **options)

    papermill.execute_notebook = execute


if __name__ == "__main__":
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads do not outlive a fork
    from companion import cli, reproduce

    reproduce.FORKED.set_forkserver_preload(["companion.reproduce", "papermill", "forked"])
    sys.exit(cli.main())
elif __name__ == "forked":
    fork_kernels()
