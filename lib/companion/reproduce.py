"""The batch run: every notebook through papermill, but for those that are up to date.

A notebook's key is a hash of all that its results are made from: its cells and parameters, the
profile, the data, both packages, the versions of others, what the notebooks that it needs have
left, and the runs that it reads. The executed copy keeps the key, and a hash of each file that the
notebook left. So nothing else is recorded, and a notebook is up to date where both are as now.

A notebook's metadata says what must be known of it, all of it optional:

    "attnconv": {"per_run": true}                it is executed once for each preset and seed
    "attnconv": {"needs": ["03", "04:learned"]}  it comes after these, or their jobs of one preset,
                                                 and reads what they left
    "attnconv": {"reads": ["resnet18"]}          it shows runs of these presets, or of all (*),
                                                 also where the profile trains none
    "attnconv": {"alone": true}                  it measures time: nothing else runs beside it

No torch is imported before the data are looked at.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from importlib import metadata
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import psutil
from filelock import FileLock, Timeout
from nbclient.exceptions import DeadKernelError

from attnconv.config import REPOSITORY, ConfigError
from companion.pages import FRONT, clean, export_html, write_page
from companion.profile import Profile, load_profile

if TYPE_CHECKING:
    from companion.workspace import Workspace

LIBRARY = Path(__file__).parents[1]  # the folder of both packages
# Processes that begin with all that notebooks are executed by, and without torch or its threads.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["companion.reproduce", "papermill"])


@dataclass
class Job:
    """One execution of one notebook."""

    name: str  # also the executed copy's file name
    folder: Path
    notebook: nbformat.NotebookNode  # as it was read: changes meanwhile are for the next batch run
    about: dict[str, Any]  # what the notebook's metadata says
    run: tuple[Any, ...]  # preset and seed, where there is an execution for each, or nothing
    needs: list[str] = field(default_factory=list)  # names of other jobs


Jobs = dict[str, Job]  # by name


def digest(*parts: Any) -> str:
    """A hash of anything that JSON can hold."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_file(file: Path) -> str:
    """A hash of a file's content; empty where there is no such file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""


def digest_work(work: Workspace) -> str:
    """A hash of what all notebooks are made from: profile, data, both packages, all versions. A
    profile that shows the record's runs, too, depends on which there are."""
    from attnconv.training.data import ARRAYS
    from companion.workspace import RECORD

    images = [hashlib.sha256(getattr(work.data, name).numpy().data).hexdigest() for name in ARRAYS]
    hashes = {}
    for file in LIBRARY.glob("[ac]*[nv]/**/[!.]*.*[!~]"):  # both packages, no editor's copies
        if "__pycache__" not in file.parts:
            hashes[str(file.relative_to(LIBRARY))] = digest_file(file)
    versions = sorted(f"{one.name} {one.version}" for one in metadata.distributions())
    profile = work.profile.model_dump(exclude={"description"})
    shown = [] if work.profile.study else sorted(path.name for path in RECORD.glob("*/*-seed*"))
    return digest(profile, work.about, images, hashes, versions, sys.version, shown)


def plan(notebooks: Path, profile: Profile) -> Jobs:
    """Every job by name, each after those that it needs. graphlib's `CycleError` where notebooks
    need each other."""
    jobs: Jobs = {}
    for path in sorted(notebooks.glob("[0-9][0-9]_*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        about = notebook.metadata.get("attnconv", {})
        runs = itertools.product(profile.runs, profile.seeds)
        for run in runs if about.get("per_run") else [()]:
            name = f"{path.stem}-{run[0]}-seed{run[1]}" if run else path.stem
            jobs[name] = Job(name, notebooks, notebook, about, run)
    for job in jobs.values():
        for word in job.about.get("needs", []):
            job.needs += named(jobs, word)
    order = TopologicalSorter({name: job.needs for name, job in jobs.items()})
    return {name: jobs[name] for name in order.static_order()}


def named(jobs: Jobs, word: str) -> list[str]:
    """The jobs that a word names: with ``03`` all of notebook 03, with ``03:learned`` those of one
    preset. `ConfigError` if there is no such notebook."""
    number, _, preset = word.partition(":")
    found = [name for name in jobs if name[:2] == number.zfill(2)]
    if not found:
        known = ", ".join(sorted({name[:2] for name in jobs}))
        raise ConfigError(f"There is no notebook {word!r} to run. Notebooks: {known}.")
    return [name for name in found if not preset or preset in jobs[name].run]


def select(jobs: Jobs, only: Iterable[str]) -> tuple[list[str], Jobs]:
    """The jobs that words name, all without a word; and these with all that they need, in order."""
    asked: list[str] = []
    for word in only:
        found = named(jobs, word)
        if not found:
            raise ConfigError(f"{word!r} is no job of this profile.")
        asked += found
    asked = asked or [*jobs]
    wanted = {*asked}
    for name in reversed(jobs):
        if name in wanted:
            wanted.update(jobs[name].needs)
    return asked, {name: job for name, job in jobs.items() if name in wanted}


@dataclass
class Batch:
    """A batch run under way."""

    jobs: Jobs  # each after those that it needs
    common: str  # hash of what all are made from
    output: Path
    folders: list[Path]  # where runs lie: the output folder, the record
    forced: list[str]  # jobs that are done again though they are up to date
    at_once: int
    dry: bool  # nothing is run: it is only said what would be
    parameters: dict[str, str]  # of all notebooks
    pages: dict[str, str]  # of each notebook, by its number
    left: dict[str, dict[str, str]] = field(default_factory=dict)  # by jobs that are done: hashes
    failed: set[str] = field(default_factory=set)
    running: dict[str, BaseProcess] = field(default_factory=dict)

    def key(self, job: Job) -> str:
        """A hash of all that a job's results are made from, once its needs are done."""
        results, runs = {}, {}
        patterns = ["-seed".join(map(str, job.run))]
        patterns += job.about.get("reads", [])
        for name in job.needs:
            patterns += self.jobs[name].run[:1]  # of every seed
            for result, was in self.left[name].items():
                if not result.startswith("notebooks"):  # its page shows its cells, too
                    results[result] = was
        for folder, pattern in itertools.product(self.folders, patterns):
            for file in folder.glob(f"runs/{pattern}-*/model.safetensors"):
                runs[file.parent.name] = digest_file(file)
        cells = [[cell.cell_type, cell.source] for cell in job.notebook.cells]
        return digest(cells, job.about, job.run, self.common, results, runs)

    def is_done(self, job: Job) -> bool:
        """Whether a job is up to date: made from what is there now, and all it left is as it was.
        Its needs are done."""
        made = said_by(self.output, job.name)
        same = made["key"] == self.key(job) and job.name not in self.forced
        for name, was in made["files"].items():
            same = same and digest_file(self.output / name) == was
        if same:
            self.left[job.name] = made["files"]
        return same

    def run(self) -> bool:
        """Run all; whether all went well."""
        waiting = [*self.jobs.values()]
        try:
            while waiting or self.running:
                waiting = [job for job in waiting if not self.begin(job)]
                for name, process in [*self.running.items()]:
                    process.join(0.2)
                    if process.exitcode is None:
                        continue
                    del self.running[name]
                    if process.exitcode:
                        self.fail(self.jobs[name], "failed")
                    else:
                        say("done", self.jobs[name])
                        self.left[name] = said_by(self.output, name)["files"]
        finally:  # a notebook still runs only where this was interrupted
            for process in self.running.values():
                process.terminate()
                process.join()
        return not self.failed

    def begin(self, job: Job) -> bool:
        """Start a job, or settle it without, if its turn has come."""
        beside = [self.jobs[name] for name in self.running]
        alone = [other.about.get("alone") for other in [job, *beside]]
        crowded = beside and any(alone) or len(beside) == self.at_once
        if self.failed.intersection(job.needs):
            self.fail(job, "to do" if self.dry else "not run")
        elif crowded or not self.left.keys() >= {*job.needs}:
            return False
        elif self.is_done(job):
            say("up to date", job)
        elif self.dry:
            self.fail(job, "to do")
        else:
            say("start", job)
            self.running[job.name] = self.start(job)
        return True

    def start(self, job: Job) -> BaseProcess:
        known = replace(self, running={})  # processes cannot be handed over
        process = FORKED.Process(target=execute, args=(known, job, dict(os.environ)))
        process.start()
        return process

    def fail(self, job: Job, status: str) -> None:
        """Note that a job is not done: what needs it is not run."""
        say(status, job)
        self.failed.add(job.name)


def execute(batch: Batch, job: Job, environment: dict[str, str]) -> None:
    """Run a notebook, in a process group of its own, and move what it left into place. Of a failed
    one the notebook is kept, as far as it came."""
    os.environ |= environment
    os.setsid()
    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=end_with_runner, daemon=True).start()
    stage = batch.output / ".running" / job.name
    copy = stage / "results" / "notebooks" / f"{job.name}.ipynb"
    copy.parent.mkdir(parents=True)
    threads = cores() if job.about.get("alone") else max(1, cores() // batch.at_once)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ |= {
        "TQDM_DISABLE": "1",
        "ATTNCONV_STATIC": "1",
        "ATTNCONV_RESULTS": str(stage / "results"),
        "IPYTHONDIR": str(stage),  # the user's settings and kernels do not count
        "JUPYTER_DATA_DIR": str(stage),
        "JUPYTER_PATH": "",
        "MPLBACKEND": "",  # the kernel shows figures in the notebook
    }
    import papermill

    parameters = batch.parameters | dict(zip(("preset", "seed"), job.run, strict=False))
    planned = stage / copy.name
    nbformat.write(job.notebook, planned)
    kept = batch.output / "failed" / copy.name
    kept.unlink(missing_ok=True)
    try:
        papermill.execute_notebook(
            planned,
            copy,
            parameters,
            cwd=str(job.folder),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            extra_arguments=[
                "--log-level=CRITICAL",
                "--InlineBackend.print_figure_kwargs={'bbox_inches': None}",  # else drawn twice
            ],
        )
    except (papermill.PapermillExecutionError, DeadKernelError) as error:
        kept.parent.mkdir(exist_ok=True)
        copy.replace(kept)
        sys.exit(f"{str(error).strip().splitlines()[-1]}\n{kept}")
    clean(copy, batch.pages)
    if job.name[:2] != FRONT:
        export_html(copy, batch.pages)
    move_into_place(stage / "results", copy, batch.key(job), batch.output)


def end(*_: Any) -> None:
    """End this process and its kernel."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os.killpg(0, signal.SIGKILL)


def end_with_runner() -> None:
    """End when the runner is gone, even by ``kill -9``."""
    runner = multiprocessing.parent_process()
    assert runner
    runner.join()
    end()


def said_by(output: Path, name: str) -> dict[str, Any]:
    """What an executed copy says of itself: its key, and what was left. Nothing where it is not
    as it was written."""
    try:
        notebook = nbformat.read(output / "notebooks" / f"{name}.ipynb", as_version=4)
        made = notebook.metadata["made"]
        whole = made["copy"] == digest(notebook.cells)
    except Exception:  # nbformat raises many kinds
        whole = False
    return made if whole else {"key": "", "files": {}}


def move_into_place(results: Path, copy: Path, key: str, output: Path) -> None:
    """Move what a notebook left to where it belongs. What it left before and leaves no more goes.
    The executed copy says at last that all is there."""
    executed = nbformat.read(copy, as_version=4)
    left = {}
    for file in results.rglob("*"):
        if file.is_file() and file != copy:
            left[file.relative_to(results).as_posix()] = digest_file(file)
    for name in said_by(output, copy.stem)["files"].keys() - left.keys():
        (output / name).unlink(missing_ok=True)
    shutil.copytree(results, output, copy_function=os.replace, dirs_exist_ok=True)
    executed.metadata["made"] = {"key": key, "copy": digest(executed.cells), "files": left}
    nbformat.write(executed, output / "notebooks" / copy.name)


def say(status: str, job: Job) -> None:
    """A line about a job."""
    print(f"{status:<11} {job.name}", flush=True)


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reproduce(
    profile: str = "quick",
    *,
    data: str = "",
    only: Iterable[str] = (),
    force: bool = False,
    jobs: int | None = None,
    output: str | Path = "",
    dry: bool = False,
    notebooks: Path = REPOSITORY / "notebooks",
) -> int:
    """Run a folder's notebooks in one of its ``profiles``; the exit status. See ``attnconv
    reproduce -h``. Raises `ConfigError` or `DataError` where nothing can begin."""
    if profile.endswith(".yaml"):
        profile = os.path.abspath(profile)  # notebooks run in another folder
    file = notebooks / "profiles" / f"{profile.removesuffix('.yaml')}.yaml"
    planned = plan(notebooks, load_profile(file))
    asked, wanted = select(planned, only)

    from attnconv.training.data import MissingData, find_data
    from companion import workspace  # imports torch, with which the data are read

    if data not in ("", "embedded", "cifar10"):
        data = str(find_data(data))  # absolute: notebooks run in another folder
    work = workspace.open_workspace(str(file), data=data, output=output)
    folder = work.folder
    if notebooks.resolve() in (folder, folder / "notebooks"):
        raise ConfigError(f"Results are not written over {folder}; choose another folder.")
    if dry and not find_data(work.source):
        raise MissingData(
            f"{work.source} is not on this machine. It is downloaded when first used, or bring it: "
            "--data PATH (make: DATA=PATH)."
        )
    for job in wanted.values():
        if job.run and not work.find(work.name(*job.run)):
            model, _ = work.check(*job.run)
            if min(model.grid) < 3:  # no room for a small kernel
                raise ConfigError(
                    f"Images of {model.image_size} pixels are too small: take larger."
                )

    pages: dict[str, str] = {}  # of a notebook with several runs, that of the quadratic model
    for name in sorted(planned):
        if name[:2] not in pages or name.endswith("-quadratic-seed0"):
            pages[name[:2]] = f"{name}.html"
    batch = Batch(
        wanted,
        digest_work(work),
        folder,
        [folder, workspace.RECORD] if work.record and work.profile.recorded else [folder],
        asked if force else [],
        # Small models train faster side by side, each on one core.
        max(1, jobs or (1 if shutil.which("nvidia-smi") else min(4, cores()))),
        dry,
        {"profile": profile, "data": data, "output": os.path.relpath(folder, notebooks.resolve())},
        pages,
    )
    print(f"The {profile} profile: {work.profile.description}")
    print(f"{len(wanted)} jobs, data: {work.source}, output: {folder}", flush=True)
    if dry:
        batch.run()
        return 0
    good = run_alone(batch)
    print(f"What was found, from its first page: {write_page(folder, work.runs())}", flush=True)
    if good and folder == workspace.OUTPUTS / "reproduced" / work.profile.name:
        from companion.compare import compare

        return compare(workspace.RECORD, folder, {name[:2] for name in wanted})
    return 0 if good else 1


def run_alone(batch: Batch) -> bool:
    """Run all, as the only process in its folder; whether all went well. SIGTERM ends it as Ctrl-C
    does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    unfinished = batch.output / ".running"
    try:
        with FileLock(batch.output / ".lock", timeout=0):
            shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed
            try:
                return batch.run()
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except Timeout:
        raise ConfigError(f"Another process is at work in {batch.output}; wait for it.") from None
