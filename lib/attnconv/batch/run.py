"""The batch run: notebooks through papermill, each in a kernel of its own.

`plan` says what there is to do, `fresh` what is up to date, `pages` shows what came out. No torch is imported here.
"""

from __future__ import annotations

import contextlib
import graphlib
import json
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from papermill.exceptions import PapermillExecutionError
from tabulate import tabulate
from tqdm import tqdm

from attnconv import __version__
from attnconv.batch.fresh import changed, file_hash, inputs, results
from attnconv.batch.pages import export_html, write_page
from attnconv.batch.plan import Job, plan, read_notebook, select, with_needs
from attnconv.batch.workspace import NAMED_DATA, REPOSITORY, absolute, output_folder
from attnconv.config import ConfigError, Profile, load_profile
from attnconv.training.runs import RunError, held, locked, read_json, said, writing

LIBRARY = Path(__file__).parents[1]


# ---- this machine -------------------------------------------------------------------------------------------------


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> dict[str, Any]:
    """The machine, in words, without importing torch."""
    model, memory = platform.processor() or platform.machine(), None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1]
    gpus = said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or ""
    return {"cpu": model, "cores": cores(), "memory_gib": memory, "gpu": gpus.splitlines()}


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


# ---- the batch run ------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    """A batch run under way: what is done, what runs, what is recorded."""

    jobs: dict[str, Job]
    profile: Profile
    data: str
    output: Path
    force: set[str]
    at_once: int
    pages: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.status: dict[str, str] = {}
        self.kernels: dict[str, int] = {}
        self.stopped = False
        self.left = {name: job.notebook.cells for name, job in self.jobs.items()}
        terminal = sys.stdout.isatty() and sys.stderr.isatty()
        self.bar = tqdm(total=sum(self.left.values()), unit=" cells", disable=not terminal, dynamic_ncols=True)
        before = read_json(self.output / "manifest.json", dict).get("notebooks")
        before = before if isinstance(before, dict) else {}
        dirty = said("git", "status", "--porcelain")
        self.manifest = {
            "profile": self.profile.name,
            "commit": said("git", "rev-parse", "HEAD"),
            "dirty": None if dirty is None else bool(dirty),
            "versions": {"attnconv": __version__, "python": platform.python_version()}
            | {name: metadata.version(name) for name in ("torch", "torchvision", "numpy", "matplotlib")},
            "device": device(),
            "seeds": list(self.profile.seeds),
            "data": {"asked": self.data if self.data in NAMED_DATA else Path(self.data).name},
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "seconds": 0.0,
            "notebooks": {name: entry for name, entry in before.items() if isinstance(entry, dict)},
        }

    def inputs(self, job: Job) -> dict[str, Any]:
        """A job's inputs now. The data's hash is missing as long as the data is to be downloaded."""
        about = self.manifest["data"]
        if "sha256" not in about:
            from attnconv.training.data import (  # imports torch, which takes a second
                MissingData,
                content_key,
                find_data,
            )

            with contextlib.suppress(MissingData):
                source = find_data(self.data)
                about |= {"name": source.name, "form": source.form, "sha256": content_key(source)}
        return inputs(job, self.profile, about.get("sha256"), self.output)

    def reasons(self, job: Job, now: dict[str, Any]) -> list[str]:
        """Why a job is to be done; empty when it is up to date."""
        entry = self.manifest["notebooks"].get(job.name, {})
        before, made = entry.get("made_from"), entry.get("made")
        if job.name in self.force:
            return ["--force"]
        if entry.get("status") != "done" or not isinstance(before, dict) or not isinstance(made, dict):
            return ["not done yet"]
        return changed(before, now) + [name for name in made if file_hash(self.output / name) != made[name]]

    def run(self) -> int:
        """Run all; the exit status."""
        started = time.time()
        try:
            with ThreadPoolExecutor(self.at_once) as pool:
                try:
                    self._run(pool)
                except BaseException:
                    self.stopped = True
                    for name in list(self.kernels):
                        self._end_kernel(name)
                    raise
        finally:
            remove_leftovers(self.output)
            self.bar.close()
            self.manifest["seconds"] = round(time.time() - started, 1)
            self._save()
        return 0 if set(self.status.values()) <= {"done", "up to date"} else 1

    def _run(self, pool: ThreadPoolExecutor) -> None:
        order = graphlib.TopologicalSorter({name: job.needs for name, job in self.jobs.items()})
        order.prepare()
        ready: list[str] = []
        under_way: dict[Future, str] = {}
        while order.is_active():
            ready = sorted([*ready, *order.get_ready()], key=list(self.jobs).index)
            if name := next((name for name in ready if self._has_room(name, under_way.values())), None):
                ready.remove(name)
                if future := self._begin(self.jobs[name], pool):
                    under_way[future] = name
                else:
                    order.done(name)
                continue
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                name = under_way.pop(future)
                self._finish(self.jobs[name], *future.result())
                order.done(name)

    def _has_room(self, name: str, others: Iterable[str]) -> bool:
        beside = [self.jobs[other] for other in others]
        if any(job.notebook.alone for job in [self.jobs[name], *beside]):
            return not beside
        return len(beside) < self.at_once

    def _begin(self, job: Job, pool: ThreadPoolExecutor) -> Future | None:
        """Start a job, unless it is up to date or cannot run."""
        broken = [need for need in job.needs if self.status[need] in ("failed", "not run")]
        if broken:
            words = [f"{self.jobs[n].title}, which {self.status[n].replace('not', 'did not')}" for n in broken]
            return self._settle(job, "not run", f"needs {'; '.join(words)}")
        now = self.inputs(job)
        if not (reasons := self.reasons(job, now)):
            return self._settle(job, "up to date")
        self._say(job, "start", f"{reasons[0]}{f' and {len(reasons) - 1} more' if len(reasons) > 1 else ''}")
        return pool.submit(self._execute, job, now)

    def _settle(self, job: Job, status: str, note: str = "") -> None:
        self.status[job.name] = status
        self.bar.total -= self.left[job.name]
        self.bar.refresh()
        self._say(job, status, note)

    def _say(self, job: Job, status: str, note: str) -> None:
        place = list(self.jobs).index(job.name) + 1
        self.bar.set_postfix_str(", ".join(name[:2] for name in self.kernels), refresh=False)
        tqdm.write(f"{place:>3}/{len(self.jobs)} {status:<11} {job.title}{f'   ({note})' if note else ''}")
        sys.stdout.flush()

    def _finish(self, job: Job, before: dict[str, Any], started: float, failure: list[str]) -> None:
        """Record a job that has ended."""
        copy = self._copy(job)
        with contextlib.suppress(FileNotFoundError):
            without_notes(self._copy(job, ".running-"))
            os.replace(self._copy(job, ".running-"), copy)
        entry = {
            "status": "failed" if failure else "done",
            "started": datetime.fromtimestamp(started).astimezone().isoformat(timespec="seconds"),
            "seconds": round(time.time() - started, 1),
            "commit": self.manifest["commit"],
            "parameters": {name: value for name, value in job.parameters.items() if name not in ("output", "data")},
        }
        if not failure:
            # What was there at the start counts as it was then; runs and data that the notebook itself brought, as now.
            known = {name: value for name, value in before.items() if value is not None}
            entry |= {"made_from": self.inputs(job) | known, "made": results(job, self.output)}
        self.manifest["notebooks"][job.name] = entry
        self._save()
        self._settle(job, entry["status"], tqdm.format_interval(entry["seconds"]))
        if failure:
            kept = [f"the notebook as far as it came: {shown(copy)}"] if copy.is_file() else []
            tqdm.write("\n".join(f"      {line}" for line in [*failure, *kept]))

    def _copy(self, job: Job, prefix: str = "") -> Path:
        return self.output / "notebooks" / f"{prefix}{job.name}.ipynb"

    def _execute(self, job: Job, before: dict[str, Any]) -> tuple[dict[str, Any], float, list[str]]:
        """Run a notebook: its inputs and the time at the start, and lines that say what went wrong, or none."""
        started, failure = time.time(), []
        log = tempfile.TemporaryFile("w+", errors="replace")  # what a kernel says before or after its notebook
        batch = self
        environment = {**os.environ, "ATTNCONV_QUIET": "1", "ATTNCONV_STATIC": "1"}
        environment["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(LIBRARY.parent), os.environ.get("PYTHONPATH")]))
        environment.pop("MPLBACKEND", None)  # the kernel shows figures in the notebook
        if self.at_once > 1 and not job.notebook.alone:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.at_once)))

        class Kernel(AsyncKernelManager):
            """Of this very interpreter, whatever kernels the user has registered.

            It ends by itself when the runner is gone, even by ``kill -9``: ipykernel watches its parent.
            """

            @property
            def kernel_spec(self) -> KernelSpec:
                command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
                return KernelSpec(argv=command, display_name="Python 3", language="python")

            async def start_kernel(self, **options: Any) -> None:
                await super().start_kernel(**options | {"env": environment, "stdout": log, "stderr": log})
                batch.kernels[job.name] = self.provisioner.pid
                if batch.stopped:
                    batch._end_kernel(job.name)

        def count(**_: Any) -> None:
            self.left[job.name] -= 1
            self.bar.update()

        def plain(path: Path) -> str:
            return str(path).replace("{", "{{").replace("}", "}}")  # papermill formats paths

        try:
            papermill.execute_notebook(
                plain(job.notebook.path),
                plain(self._copy(job, ".running-")),
                parameters=job.parameters,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=120,
                iopub_timeout=60,
                kernel_manager_class=Kernel,
                resources={"metadata": {"path": str(job.notebook.path.parent)}},
                on_cell_executed=count,
            )
            export_html(self._copy(job, ".running-"), self._copy(job).with_suffix(".html"), self.pages)
        except PapermillExecutionError as error:
            failure = _last("the cell", error.source, 6)
            failure += _last("the error", "\n".join(error.traceback) or f"{error.ename}: {error.evalue}", 14)
        except Exception as error:
            log.seek(0)
            died = type(error).__name__ == "DeadKernelError"
            words = "The kernel died, perhaps for lack of memory." if died else f"{type(error).__name__}: {error}"
            failure = _last("the error", f"{log.read()[-2000:]}\n{words}", 14)
        finally:
            self._end_kernel(job.name)
            log.close()
        return before, started, failure

    def _end_kernel(self, name: str) -> None:
        """End a kernel, if it still runs, and every process that it started."""
        if pid := self.kernels.pop(name, None):
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _save(self) -> None:
        with writing(self.output / "manifest.json") as temporary:
            temporary.write_text(json.dumps(self.manifest, indent=1) + "\n")

    def summary(self) -> str:
        """What was done, and where it is."""
        entries = self.manifest["notebooks"]
        ended = {name: status in ("done", "failed") for name, status in self.status.items()}
        times = [entries[name]["seconds"] if ended[name] else None for name in self.jobs]
        rows = zip([job.title for job in self.jobs.values()], map(self.status.get, self.jobs), times, strict=True)
        text = ["", tabulate(rows, headers=("notebook", "status", "seconds")), ""]
        text += [f"in all {tqdm.format_interval(self.manifest['seconds'])}, record: {shown(self.output)}/manifest.json"]
        return "\n".join([*text, f"figures, tables and claims on one page: {shown(write_page(self.output))}"])


def _last(what: str, text: str, lines: int) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).strip("\n")  # without colours
    return [f"{what}'s last lines:", *(f"  | {line}" for line in text.splitlines()[-lines:])]


def reproduce(
    profile_name: str = "quick",
    *,
    data: str | None = None,
    only: Iterable[str] = (),
    force: bool = False,
    at_once: int | None = None,
    output: str | Path | None = None,
    retrain: bool = False,
    notebooks: Path = REPOSITORY / "notebooks",
) -> int:
    """Run a folder's notebooks in one of its ``profiles``; the exit status. See ``attnconv reproduce -h``."""
    if at_once is None:
        # Small models train faster side by side, each on one core, than one after the other on all.
        at_once = 1 if device()["gpu"] else min(4, cores())
    if at_once < 1:
        raise ConfigError(f"--jobs {at_once} must be at least 1.")
    profile = load_profile(notebooks / "profiles" / f"{profile_name}.yaml")
    folder = output_folder(profile, data, output)
    if retrain and not output:  # beside what is there, which stays to be compared with
        folder = folder.with_name(f"{folder.name}-retrained")
    data = data or profile.data
    if data not in NAMED_DATA or data == "embedded":  # the others may still be downloaded
        from attnconv.training.data import find_data

        find_data(data)
    data = data if data in NAMED_DATA else str(absolute(data))
    paths = sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise ConfigError(f"There are no notebooks in {notebooks}; run from a clone of the repository.")
    given = {"profile": profile.name, "data": data, "output": os.path.relpath(folder, notebooks.resolve())}
    jobs = plan(map(read_notebook, paths), profile, given)
    chosen = select(jobs, only) if only else set(jobs)
    wanted = with_needs(jobs, chosen)
    pages: dict[str, str] = {}
    for name, job in jobs.items():
        pages.setdefault(job.notebook.path.stem, f"{name}.html")

    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):  # stop as Ctrl-C does; what nohup ignores stays ignored
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
    with held(folder, wait=False):
        remove_leftovers(folder)
        print(f"Reproducing in the {profile.name} profile: {profile.description or 'no description'}")
        print(f"{len(wanted)} to run, data: {data}, output: {shown(folder)}", flush=True)
        extra = [job.title for name, job in wanted.items() if name not in chosen]
        if extra:
            print(f"Needed first, where not up to date: {'; '.join(extra)}", flush=True)
        batch = Batch(wanted, profile, data, folder, chosen if force else set(), at_once, pages)
        try:
            status = batch.run()
        except KeyboardInterrupt:
            done = sum(s in ("done", "up to date") for s in batch.status.values())
            print(f"\nStopped, {done} of {len(wanted)} notebooks are done. To resume, run the same command again.")
            return 130
        print(batch.summary(), flush=True)
        return status


def without_notes(notebook: Path) -> None:
    """Remove what names this machine's folders, its memory or the time of day. The state of widgets goes, too."""
    executed = nbformat.read(notebook, as_version=4)
    for part in (executed, *executed.cells):
        for name in ("papermill", "execution", "widgets"):
            part.metadata.pop(name, None)
    for cell in executed.cells:
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.id = "injected-parameters"
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            if "text/plain" in data:
                data["text/plain"] = re.sub(r" at 0x[0-9a-f]+>", ">", data["text/plain"])
    nbformat.write(executed, notebook)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed runs left half-written (see `runs.writing`), but nothing where a model is being trained."""
    half = re.compile(r"\..+-[a-z0-9_]{8}(\.\w+)?|\.running-.+\.ipynb")
    places = [folder, *(folder / name for name in ("notebooks", "figures", "tables"))]
    kept = (folder / "runs", folder / "study")
    places += [place for runs in kept for pattern in ("*/", "*/checkpoint/") for place in runs.glob(pattern)]
    for place in places:
        files = [file for file in place.glob(".*") if half.fullmatch(file.name) and file.is_file()]
        run = next((p for p in (place, place.parent) if p.parent in kept), None)
        with contextlib.suppress(RunError), locked(run, wait=False) if run and files else contextlib.nullcontext():
            for file in files:
                file.unlink(missing_ok=True)
