"""The batch run: notebooks through papermill, each in a kernel of its own.

`plan` says what there is to do, `fresh` what is up to date, `pages` shows what came out. A notebook
writes into its own folder, and its results move into place together when it is done. Run folders
stay where they are, for resuming."""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning import LocalProvisioner

from attnconv.config import ConfigError
from attnconv.training.data import data_folder, find_data, load_data
from attnconv.training.runs import LEFTOVERS, data_key, held, read_json, said, write
from companion.compare import compare
from companion.fresh import LIBRARY, Inputs, changed, file_hash, inputs, whole
from companion.pages import FRONT, export_html, write_page
from companion.plan import Job, plan, read_notebook, select
from companion.profile import Profile, load_profile
from companion.workspace import NAMED_DATA, OUTPUTS, REPOSITORY, absolute, output_folder, record_of


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """Names of this machine's NVIDIA GPUs, without importing torch."""
    return (said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or "").splitlines()


@dataclass
class Batch:
    """A batch run under way: what is done, what runs, what is recorded."""

    jobs: dict[str, Job]
    profile: Profile
    data: str
    output: Path
    force: set[str]  # names of jobs that are done again though they are up to date
    at_once: int
    pages: Mapping[str, str]  # of each notebook, by its number

    def __post_init__(self) -> None:
        self.status: dict[str, str] = {}
        self.kernels: dict[str, int] = {}
        self.stopped = False
        packages = ("attnconv", "torch", "torchvision", "numpy", "matplotlib")
        versions = {name: importlib.metadata.version(name) for name in packages}
        entries = read_json(self.output / "manifest.json", dict).get("notebooks")
        entries = entries if isinstance(entries, dict) else {}
        self.manifest: dict[str, Any] = {
            "profile": self.profile.name,
            "commit": said("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"),
            "versions": versions | {"python": platform.python_version()},
            "device": {
                "cpu": platform.processor() or platform.machine(),
                "cores": cores(),
                "gpu": gpus(),
            },
            "data": {},
            "notebooks": {name: entry for name, entry in entries.items() if whole(entry)},
        }

    def inputs(self, job: Job) -> Inputs:
        """A job's inputs now. The data's hash is missing as long as the data is to be
        downloaded.
        """
        about = self.manifest["data"]
        if "sha256" not in about and find_data(self.data):
            described = load_data(self.data).about()
            about |= {"name": described["name"], "form": described["form"]}
            about |= {"sha256": data_key(described)}
        return inputs(job, self.profile, about.get("sha256"), self.output)

    def reason(self, job: Job, now: Inputs) -> str:
        """Why a job is to be done; empty when it is up to date."""
        entry = self.manifest["notebooks"].get(job.name, {})
        if job.name in self.force:
            return "forced"
        if entry.get("status") != "done":
            return "not done yet"
        names = changed(entry["made_from"], now)
        names += [
            name for name, made in entry["made"].items() if file_hash(self.output / name) != made
        ]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return f"changed: {', '.join(names[:2])}{more}" if names else ""

    def dry(self) -> int:
        """Say what a run would do and what is missing, and write no result; the exit status, 2
        without the data set.
        """
        no_data = False
        for job in self.jobs.values():
            now = self.inputs(job)
            first = [self.jobs[need].title for need in job.needs if self.status[need] == "to do"]
            reason = self.reason(job, now) or (
                f"if it changes with {'; '.join(first)}" if first else ""
            )
            no_data |= bool(reason) and now["the data"] is None
            self._settle(job, "to do" if reason else "up to date", reason)
        if not shutil.which(os.environ.get("CXX", "g++")):
            print(
                "Missing: C++ compiler (g++). Long trainings on a CPU are not compiled: the same, a little slower."
            )
        if not gpus():
            print("Missing: GPU. Only the paper profile needs one.")
        if no_data:
            print(
                f"Missing: data set {self.data}. It is downloaded when first used, or bring it: --data PATH."
            )
        print(f"{[*self.status.values()].count('to do')} to do. Nothing was run.")
        return 2 if no_data else 0

    def run(self) -> int:
        """Run all; the exit status."""
        try:
            with ThreadPoolExecutor(self.at_once) as pool:
                try:
                    self._run(pool)
                finally:  # kernels still run only where this was interrupted
                    self.stopped = True
                    for name in list(self.kernels):
                        self._end_kernel(name)
        finally:
            remove_leftovers(self.output)
            self._save()
        return 0 if set(self.status.values()) <= {"done", "up to date"} else 1

    def _run(self, pool: ThreadPoolExecutor) -> None:
        waiting, under_way = list(self.jobs.values()), dict[Future, tuple[Job, Inputs, float]]()
        while waiting or under_way:
            beside = [job for job, *_ in under_way.values()]
            alone = any(job.notebook.alone for job in beside)
            ended = {name for name, status in self.status.items() if status != "start"}
            ready = (
                job
                for job in waiting
                if ended >= {*job.needs} and not (beside and (alone or job.notebook.alone))
            )
            if len(beside) < self.at_once and (job := next(ready, None)):
                waiting.remove(job)
                if now := self._begin(job):
                    under_way[pool.submit(self._execute, job)] = job, now, time.time()
                continue
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                self._finish(*under_way.pop(future), future.result())

    def _begin(self, job: Job) -> Inputs:
        """The inputs of a job that is to be done now; empty where it is up to date or cannot
        run.
        """
        if broken := [need for need in job.needs if self.status[need] in ("failed", "not run")]:
            words = [
                f"{self.jobs[n].title}, which {self.status[n].replace('not', 'did not')}"
                for n in broken
            ]
            self._settle(job, "not run", f"needs {'; '.join(words)}")
            return {}
        now = self.inputs(job)
        reason = self.reason(job, now)
        self._settle(job, "start" if reason else "up to date", reason)
        return now if reason else {}

    def _settle(self, job: Job, status: str, note: str) -> None:
        self.status[job.name] = status
        place = list(self.jobs).index(job.name) + 1
        print(
            f"{place:>3}/{len(self.jobs)} {status:<11} {job.title}{f'   ({note})' if note else ''}",
            flush=True,
        )

    def _finish(self, job: Job, before: Inputs, started: float, failure: list[str]) -> None:
        """Move what a job made into place, and record it. Of a failed one the notebook is kept,
        in failed/.
        """
        kept, seconds = (
            self.output / "failed" / f"{job.name}.ipynb",
            round(time.time() - started, 1),
        )
        made, made_from = self.manifest["notebooks"].get(job.name, {}).get("made", {}), Inputs()
        if failure:
            with contextlib.suppress(FileNotFoundError):
                kept.parent.mkdir(exist_ok=True)
                os.replace(self._stage(job) / "notebooks" / kept.name, kept)
        else:
            kept.unlink(missing_ok=True)
            made = move_into_place(self._stage(job), self.output, made)
            # What was there at the start counts as it was then; runs and data that the notebook
            # itself brought, as now.
            made_from = self.inputs(job) | {name: value for name, value in before.items() if value}
        status = "failed" if failure else "done"
        about = {"status": status, "commit": self.manifest["commit"], "seconds": seconds}
        self.manifest["notebooks"][job.name] = about | {"made": made, "made_from": made_from}
        self._save()
        self._settle(job, status, str(timedelta(seconds=round(seconds))))
        if failure:
            failure += [f"The notebook as far as it came: {kept}"] if kept.is_file() else []
            print("\n".join(f"      {line}" for line in failure), flush=True)

    def _stage(self, job: Job) -> Path:
        """Where a job's results are until it is done."""
        return self.output / ".running" / job.name / "results"

    def _execute(self, job: Job) -> list[str]:
        """Run a notebook: lines that say what went wrong, or none."""
        batch, copy = self, self._stage(job) / "notebooks" / f"{job.name}.ipynb"
        log = tempfile.TemporaryFile(
            "w+", errors="replace"
        )  # what a kernel says before or after its notebook
        environment = os.environ | {
            "ATTNCONV_QUIET": "1",
            "ATTNCONV_STATIC": "1",
            "ATTNCONV_DATA": str(
                data_folder()
            ),  # a relative one is meant from here, not from the notebooks' folder
            "ATTNCONV_RESULTS": str(self._stage(job)),
            "IPYTHONDIR": str(
                self._stage(job).with_name("ipython")
            ),  # without the user's start-up files
            "PYTHONSTARTUP": "",
            "MPLBACKEND": "",  # the kernel shows figures in the notebook
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(LIBRARY.parent), os.environ.get("PYTHONPATH")])
            ),
        }
        if self.at_once > 1 and not job.notebook.alone:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.at_once)))

        class Kernel(AsyncKernelManager):
            """Of this very interpreter, whatever kernels the user has registered. It ends by itself
            when the runner is gone, even by ``kill -9``: ipykernel watches its parent."""

            @property
            def kernel_spec(self) -> KernelSpec:
                command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
                return KernelSpec(argv=command, display_name="Python 3", language="python")

            async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]  # theirs is async, too
                await super().start_kernel(
                    **options | {"env": environment, "stdout": log, "stderr": log}
                )
                if isinstance(self.provisioner, LocalProvisioner) and self.provisioner.pid:
                    batch.kernels[job.name] = self.provisioner.pid
                if batch.stopped:
                    batch._end_kernel(job.name)

        try:
            copy.parent.mkdir(parents=True)
            papermill.execute_notebook(
                *(
                    str(path).replace("{", "{{").replace("}", "}}")
                    for path in (job.notebook.path, copy)
                ),  # it formats
                parameters=job.parameters,
                kernel_manager_class=Kernel,
                resources={"metadata": {"path": str(job.notebook.path.parent)}},
                **dict(
                    kernel_name="python3", language="python", start_timeout=120, iopub_timeout=60
                ),
                progress_bar=False,
            )
            without_notes(
                copy,
                {n: page.removesuffix(".html") for n, page in self.pages.items() if n != FRONT},
            )
            if job.notebook.number != FRONT:
                export_html(copy, copy.with_suffix(".html"), self.pages)
            return []
        except Exception as error:
            log.seek(0)
            memory = (
                ", perhaps for lack of memory" if type(error).__name__ == "DeadKernelError" else ""
            )
            text = f"{log.read()[-2000:]}\n{type(error).__name__}: {error}{memory}"
            lines = re.sub(r"\x1b\[[0-9;]*m", "", text).strip("\n").splitlines()  # without colours
            return ["The error's last lines:", *(f"  | {line}" for line in lines[-20:])]
        finally:
            self._end_kernel(job.name)
            log.close()

    def _end_kernel(self, name: str) -> None:
        """End a kernel, if it still runs, and every process that it started."""
        if pid := self.kernels.pop(name, None):
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _save(self) -> None:
        write(self.output / "manifest.json", json.dumps(self.manifest, indent=1) + "\n")


def reproduce(
    profile_name: str = "quick",
    *,
    data: str | None = None,
    only: Iterable[str] = (),
    force: bool = False,
    at_once: int | None = None,
    output: str | Path | None = None,
    retrain: bool = False,
    record: bool = False,
    dry: bool = False,
    notebooks: Path = REPOSITORY / "notebooks",
) -> int:
    """Run a folder's notebooks in one of its ``profiles``; the exit status. See ``attnconv
    reproduce -h``. Raises `ConfigError`, `DataError` or `RunError` where nothing can begin."""
    if (
        at_once is None
    ):  # small models train faster side by side, each on one core, than one by one on all cores
        at_once = 1 if gpus() else min(4, cores())
    if at_once < 1:
        raise ConfigError(f"--jobs {at_once} must be at least 1.")
    if Path(profile_name).name != profile_name:  # notebooks find it by its name alone
        raise ConfigError(
            f"--profile {profile_name} must be the name of a file in {notebooks / 'profiles'}."
        )
    profile = load_profile(notebooks / "profiles" / f"{profile_name}.yaml")
    folder = OUTPUTS / profile.name if record else output_folder(profile, data, output)
    if retrain:  # beside what is there, which stays to be compared with
        folder = OUTPUTS / f"{folder.name}-retrained"
    if (folder / "notebooks").resolve() == notebooks.resolve():
        raise ConfigError(
            f"Results in {folder} would be written over its notebooks; choose another folder."
        )
    if not record and folder.parent == OUTPUTS and (folder / "strip.npz").is_file():
        raise ConfigError(
            f"{folder} is a committed record: --record writes it, other results need another folder."
        )
    data = data or profile.data
    found = find_data(data)
    if record and found and (folder / "strip.npz").is_file():
        why = "but the record is drawn from its own images, as everyone can draw it again"
        remedy = "For this command, let ATTNCONV_DATA name an empty folder"
        raise ConfigError(f"The data set is here ({found}), {why}. {remedy}.")
    data = data if data in NAMED_DATA else str(absolute(data))
    given = {
        "profile": profile.name,
        "data": data,
        "output": os.path.relpath(folder, notebooks.resolve()),
    }
    jobs = plan(map(read_notebook, sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))), profile, given)
    wanted = select(jobs, only or {job.notebook.number for job in jobs.values()})
    forced = {name for name, asked in wanted.items() if asked and force}
    first = {job.notebook.number: name for name, job in reversed(jobs.items())}
    pages = {
        number: "../index.html" if number == FRONT else f"{first[number]}.html"
        for number in sorted(first)
    }
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # stop as Ctrl-C does; what nohup ignores stays ignored
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    with contextlib.nullcontext() if dry else held(folder, wait=False):
        batch = Batch(
            {name: jobs[name] for name in wanted}, profile, data, folder, forced, at_once, pages
        )
        print(f"The {profile.name} profile: {profile.description or 'no description'}")
        print(f"{len(wanted)} jobs, data: {data}, output: {folder}", flush=True)
        if beside := record_of(folder):
            print(
                f"The record {beside} is read, never written, and compared with at the end.",
                flush=True,
            )
        if dry:
            return batch.dry()
        remove_leftovers(folder)
        try:
            status = batch.run()
        except KeyboardInterrupt:
            done = sum(s in ("done", "up to date") for s in batch.status.values())
            print(
                f"\nStopped, {done} of {len(wanted)} jobs are done. To resume, run the same command again."
            )
            return 130
        print(f"All that was found, on one page: {write_page(folder)}", flush=True)
        if status or not (beside and beside.is_dir()):
            return status
        made = {name: batch.manifest["notebooks"][name]["made"] for name in wanted}
        return compare(beside, folder, jobs, made)


def move_into_place(stage: Path, output: Path, before: Iterable[str]) -> Inputs:
    """Move a job's results to where they belong; their hashes. What it made ``before`` and makes
    no more is removed.
    """
    files = {
        file.relative_to(stage).as_posix(): file
        for file in sorted(stage.rglob("*"))
        if file.is_file()
    }
    made = {name: file_hash(file) for name, file in files.items()}
    for name, file in files.items():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, output / name)
    for name in before:
        if (
            re.fullmatch(r"(figures|tables)/[^/]+", name)
            and name not in made
            and file_hash(output / name)
        ):
            (output / name).unlink()
    return made


def without_notes(notebook: Path, copies: Mapping[str, str]) -> None:
    """Remove what names this machine's folders, its memory or the time of day, and the state of
    widgets. Pictures have 256 colours, which is a third of the size. Links lead to these ``copies``
    of notebooks, by number."""
    from companion.figures.style import of_256_colours  # imports Matplotlib, which takes a second

    executed = nbformat.read(notebook, as_version=4)
    for part in (executed, *executed.cells):
        for name in ("papermill", "execution", "widgets"):
            part.metadata.pop(name, None)
    for cell in executed.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        if (
            cell.cell_type == "markdown"
        ):  # a notebook that ran for several models has no copy of its own name
            cell.source = re.sub(
                r"(?<=]\()(\d\d)_\w+(?=\.ipynb)", lambda m: copies.get(m[1], m[0]), cell.source
            )
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            if "text/plain" in data:
                data["text/plain"] = re.sub(r" at 0x[0-9a-f]+>", ">", data["text/plain"])
            if "image/png" in data:
                data["image/png"] = b64encode(of_256_colours(b64decode(data["image/png"]))).decode()
    nbformat.write(executed, notebook)


def remove_leftovers(folder: Path) -> None:
    """Remove what unfinished jobs wrote, and what a killed runner left half-written."""
    shutil.rmtree(folder / ".running", ignore_errors=True)
    for file in folder.glob(LEFTOVERS):
        file.unlink(missing_ok=True)
