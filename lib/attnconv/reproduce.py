"""The batch run: every notebook through papermill, each in a process and a kernel of its own.

A notebook says in its metadata what it needs, and in its cell tagged ``parameters`` what it can be told:

    "attnconv": {"per_run": true}               executed once per preset and seed of the profile
    "attnconv": {"needs": ["03:quadratic"]}     comes after notebook 03's run of that preset (or after all of "03")

What is done and unchanged is not done again. No torch is imported here.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from tqdm import tqdm

from attnconv import __version__
from attnconv.config import ConfigError, Profile, load_profile, to_dict
from attnconv.index import write_index
from attnconv.runs import writing
from attnconv.workspace import REPOSITORY, output_folder

GIVEN = ("profile", "data", "output")
"""Parameters that every notebook is given; per-run notebooks get ``preset`` and ``seed`` too."""
RUNNER_MODULES = ("reproduce", "index", "cli", "doctor", "constraints", "__main__")
"""Changes to these do not change what a notebook computes."""
VERSIONS = ("torch", "torchvision", "numpy", "scipy", "matplotlib", "papermill", "ipykernel")


class Anything:
    """Stands for a default that is not a literal: any value may replace it."""


@dataclass(frozen=True)
class Notebook:
    """A notebook as the runner sees it."""

    path: Path
    defaults: dict[str, Any]
    """Its parameters' default values."""
    per_run: bool
    needs: tuple[str, ...]
    alone: bool = False
    """It measures time: nothing else runs beside it."""

    @property
    def number(self) -> str:
        return self.path.name[:2]

    @property
    def title(self) -> str:
        return self.path.stem.replace("_", " ")


@dataclass(frozen=True)
class Job:
    """One execution of one notebook."""

    name: str
    """Also the executed copy's file name."""
    notebook: Notebook
    parameters: dict[str, Any]
    run: str = ""
    """Preset, and seed where there are several."""
    needs: tuple[str, ...] = ()
    """Names of other jobs."""
    trains: frozenset[tuple[str, int]] = frozenset()
    """Preset and seed that it executes."""
    reads: frozenset[tuple[str | None, int | None]] = frozenset()
    """Presets and seeds whose run folders are among its inputs; None is any, of this profile or dropped in."""

    @property
    def title(self) -> str:
        return f"{self.notebook.title} · {self.run}" if self.run else self.notebook.title


# ---- what there is to do ------------------------------------------------------------------------------------------


def read_notebook(path: Path) -> Notebook:
    """A notebook's parameters and needs; `ConfigError` when the runner cannot work with it."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds
        raise ConfigError(f"{path} is not a readable notebook ({error}); restore it with git.") from error
    cells = [c for c in notebook.cells if c.cell_type == "code" and "parameters" in c.metadata.get("tags", [])]
    if not cells:
        raise ConfigError(f"{path.name} has no code cell tagged 'parameters'; add one with {', '.join(GIVEN)}.")
    notes = notebook.metadata.get("attnconv", {})
    defaults, needs = _defaults(path, cells[0].source), tuple(notes.get("needs", ()))
    found = Notebook(path, defaults, bool(notes.get("per_run")), needs, bool(notes.get("alone")))
    missing = [name for name in (*GIVEN, *(("preset", "seed") if found.per_run else ())) if name not in found.defaults]
    if missing:
        raise ConfigError(f"{path.name}: its cell tagged 'parameters' must also set {', '.join(missing)}.")
    return found


def _defaults(path: Path, source: str) -> dict[str, Any]:
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise ConfigError(f"{path.name}: its cell tagged 'parameters' is not valid Python ({error}).") from error
    defaults = {}
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and getattr(statement, "value", None) is not None:
                try:
                    defaults[target.id] = ast.literal_eval(statement.value)
                except ValueError:
                    defaults[target.id] = Anything
    return defaults


def check_parameters(notebook: Notebook, parameters: dict[str, Any]) -> None:
    """Refuse parameters that the notebook does not have, or whose type differs from their default's."""
    for name, value in parameters.items():
        if name not in notebook.defaults:
            known = ", ".join(notebook.defaults)
            raise ConfigError(f"{notebook.path.name} has no parameter {name!r}. Its parameters: {known}.")
        default = notebook.defaults[name]
        if default is None or default is Anything:
            continue
        kinds = {int: (int,), float: (int, float), list: (list, tuple), tuple: (list, tuple)}
        kind = type(default)
        if type(value) not in kinds.get(kind, (kind,)):
            words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
            raise ConfigError(
                f"{notebook.path.name}: parameter {name} = {value!r} must be {words.get(kind, f'a {kind.__name__}')}, "
                f"like its default {default!r}."
            )


def plan(notebooks: Iterable[Notebook], profile: Profile, given: dict[str, Any]) -> dict[str, Job]:
    """Every job of a profile, each after those it needs."""
    jobs = {}
    for notebook in notebooks:
        runs = [(p, s) for p in profile.runs for s in profile.seeds] if notebook.per_run else [None]
        for run in runs:
            name = f"{notebook.path.stem}-{run[0]}-seed{run[1]}" if run else notebook.path.stem
            parameters = {**given, **({"preset": run[0], "seed": run[1]} if run else {})}
            check_parameters(notebook, parameters)
            words = "" if not run else run[0] if len(profile.seeds) == 1 else f"{run[0]}, seed {run[1]}"
            jobs[name] = Job(name, notebook, parameters, words, trains=frozenset([run] if run else []))
    jobs = {name: _with_needs(job, jobs.values(), profile) for name, job in jobs.items()}
    return _in_order(jobs)


def _with_needs(job: Job, jobs: Iterable[Job], profile: Profile) -> Job:
    jobs = list(jobs)
    numbers = {other.notebook.number for other in jobs}
    needed: list[Job] = []
    reads: set[tuple[str | None, int | None]] = set(job.trains)
    for word in job.notebook.needs:
        number, _, preset = str(word).partition(":")
        if number not in numbers:
            raise ConfigError(f"{job.notebook.path.name} needs notebook {number}, which is not there.")
        # A preset that this profile does not run is no need: the notebook says so itself, or trains it.
        others = [other for other in jobs if other.notebook.number == number]
        needed += [other for other in others if _runs(other, preset)]
        reads |= {(preset or None, None)} if any(other.trains for other in others) else set()
    for preset, seed in job.trains:
        start = profile.configs(preset, seed)[1].start_from
        starts = [o for o in jobs if o.notebook == job.notebook and (start, seed) in o.trains]
        needed += starts
        reads = reads.union(*(other.trains for other in starts))
    names = dict.fromkeys(other.name for other in needed)
    return dataclasses.replace(job, needs=tuple(names), reads=frozenset(reads))


def _runs(job: Job, preset: str) -> bool:
    return not preset or preset in {p for p, _ in job.trains}


def _in_order(jobs: dict[str, Job]) -> dict[str, Job]:
    ordered: dict[str, Job] = {}
    while len(ordered) < len(jobs):
        ready = [n for n, job in jobs.items() if n not in ordered and all(need in ordered for need in job.needs)]
        if not ready:
            circle = ", ".join(sorted({job.notebook.path.name for n, job in jobs.items() if n not in ordered}))
            raise ConfigError(f"These notebooks need each other in a circle: {circle}. Correct their 'needs'.")
        ordered[ready[0]] = jobs[ready[0]]
    return ordered


def select(jobs: dict[str, Job], only: Iterable[str]) -> set[str]:
    """The jobs that ``--only`` names: ``03``, or ``03:quadratic`` for one of its presets."""
    chosen: set[str] = set()
    for word in only:
        number, _, preset = word.partition(":")
        number = number.zfill(2)
        found = {name for name, job in jobs.items() if job.notebook.number == number and _runs(job, preset)}
        if not found:
            known = dict.fromkeys(job.notebook.number for job in jobs.values())
            runs = dict.fromkeys(f"{job.notebook.number}:{p}" for job in jobs.values() for p, _ in job.trains)
            raise ConfigError(f"There is no notebook {word!r} to run. Known: {', '.join([*known, *runs])}.")
        chosen |= found
    return chosen


def with_needs(jobs: dict[str, Job], chosen: set[str]) -> dict[str, Job]:
    """The chosen jobs and all that they need, in order."""
    wanted = set(chosen)
    for name in reversed(jobs):
        if name in wanted:
            wanted.update(jobs[name].needs)
    return {name: job for name, job in jobs.items() if name in wanted}


# ---- what is done already -----------------------------------------------------------------------------------------


def source_hash(path: Path) -> str:
    """Changes with a notebook's cells and needs, not with its outputs or execution counts."""
    notebook = nbformat.read(path, as_version=4)
    cells = [[cell.cell_type, cell.source, cell.metadata.get("tags", [])] for cell in notebook.cells]
    return _digest(cells, notebook.metadata.get("attnconv", {}))


def library_hash() -> str:
    """Changes with the library's version, code and styles (the runner itself aside)."""
    files = sorted(f for pattern in ("**/*.py", "*.mplstyle", "*/front/*") for f in Path(__file__).parent.glob(pattern))
    return _digest(__version__, [[f.name, _file_hash(f)] for f in files if f.stem not in RUNNER_MODULES])


def runs_hash(folder: Path, runs: Iterable[tuple[str | None, int | None]]) -> str:
    """Changes with the run folders of these presets and seeds (None: any), those copied from elsewhere too."""
    wanted, found = set(runs), []
    for file in sorted(folder.glob("*/config.json")):
        try:
            config = json.loads(file.read_text())
            preset, seed = config["preset"], config["train"]["seed"]
            of_them = not wanted.isdisjoint([(preset, seed), (preset, None), (None, None)])
        except (ValueError, KeyError, TypeError):
            of_them = True  # damaged: whoever reads it will say so
        if of_them:
            metrics = file.with_name("metrics.jsonl")
            found.append([file.parent.name, _file_hash(file), _file_hash(metrics) if metrics.is_file() else None])
    return _digest(found)


def _file_hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def read_manifest(file: Path) -> dict[str, Any]:
    """The last run's record; empty when there is none."""
    try:
        manifest = json.loads(file.read_text())
        return manifest if isinstance(manifest.get("notebooks"), dict) else {}
    except (OSError, ValueError, AttributeError):
        return {}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device() -> dict[str, Any]:
    """The machine, in words, without importing torch."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found[1] if found else model
    memory = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    gpus: list[str] = []
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            done = subprocess.run(query, capture_output=True, text=True, timeout=20)
            gpus = done.stdout.split("\n") if done.returncode == 0 else []
    return {"cpu": model, "cores": cores(), "memory_gib": memory, "gpu": [gpu.strip() for gpu in gpus if gpu.strip()]}


def version_of(name: str) -> str | None:
    """An installed distribution's version."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---- one notebook, in its own process -----------------------------------------------------------------------------


def _child() -> None:
    """Execute the notebook that the first line of standard input describes; end at once when that input closes.

    Events (kernel started, cell started, error) go to standard output, a JSON line each. Whatever ends the runner, even
    ``kill -9``, closes the input, so no kernel outlives it.
    """
    spec = json.loads(sys.stdin.readline())
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the kernel or a library prints must not look like an event
    kernels = []

    def tell(**event: Any) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    def stop_with_runner() -> None:
        os.read(0, 1)
        for kernel in kernels:
            with contextlib.suppress(Exception):
                kernel.cleanup_connection_file()
            _kill_group(kernel.provisioner.pid)
        os._exit(1)

    threading.Thread(target=stop_with_runner, daemon=True).start()

    import papermill
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec
    from papermill.exceptions import PapermillExecutionError

    class OwnKernel(AsyncKernelManager):
        """A kernel of this very interpreter, whatever kernels the user has registered under the same name."""

        @property
        def kernel_spec(self) -> KernelSpec:
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=command, display_name="Python 3", language="python")

        async def start_kernel(self, **options: Any) -> None:
            await super().start_kernel(**options)
            kernels.append(self)
            tell(kernel=self.provisioner.pid)

    def plain(path: str) -> str:
        return path.replace("{", "{{").replace("}", "}}")  # papermill formats paths

    notebook = nbformat.read(spec["notebook"], as_version=4)
    place = {cell.get("id"): i for i, cell in enumerate(c for c in notebook.cells if c.cell_type == "code")}
    try:
        papermill.execute_notebook(
            plain(spec["notebook"]),
            plain(spec["output"]),
            parameters=spec["parameters"],
            kernel_name="python3",
            language="python",
            cwd=spec["cwd"],
            progress_bar=False,
            start_timeout=120,
            iopub_timeout=60,
            kernel_manager_class=OwnKernel,
            on_cell_start=lambda cell, cell_index: tell(cell=place.get(cell.get("id"), 0) + 1, cells=len(place)),
        )
        tell(done=True)
    except PapermillExecutionError as error:
        tell(error="\n".join(error.traceback) or f"{error.ename}: {error.evalue}", source=error.source)
    except Exception as error:
        died = type(error).__name__ == "DeadKernelError"
        tell(error="The kernel died, perhaps for lack of memory." if died else f"{type(error).__name__}: {error}")


def _kill_group(pid: int | None) -> None:
    with contextlib.suppress(OSError, TypeError):
        os.killpg(pid, signal.SIGKILL)


@dataclass
class Running:
    """A notebook under way."""

    job: Job
    process: subprocess.Popen
    temporary: Path
    log: Any
    source: str
    """Its `source_hash` when it started."""
    started: float = field(default_factory=time.time)
    kernel: int | None = None
    cell: int = 0
    cells: int = 0
    result: dict[str, Any] = field(default_factory=dict)

    def stop(self) -> None:
        """End process and kernel, leaving the earlier executed copy as it was."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            _kill_group(self.process.pid)
        _kill_group(self.kernel)
        self.process.wait()
        self.temporary.unlink(missing_ok=True)


# ---- what the user sees -------------------------------------------------------------------------------------------


class Screen:
    """Lines for what happened, and on a terminal a bar for what is happening."""

    def __init__(self, total: int, done: dict[str, float]) -> None:
        self.interactive = sys.stdout.isatty() and sys.stderr.isatty()
        self.unicode = "utf" in (sys.stdout.encoding or "").lower()
        self.started, self.known, self.place, self.total = time.time(), done, {}, total
        self.bar = tqdm(
            total=total,
            disable=not self.interactive,
            dynamic_ncols=True,
            ascii=not self.unicode,
            file=sys.stdout,
            bar_format="{bar:16} {n_fmt}/{total_fmt} notebooks, {elapsed}{desc}",
        )

    def line(self, text: str) -> None:
        with self.bar.external_write_mode(file=sys.stdout) if self.interactive else contextlib.nullcontext():
            print(self._sayable(text), flush=True)

    def _sayable(self, text: str) -> str:
        return text if self.unicode else text.replace(" · ", " - ").encode("ascii", "replace").decode()

    def start(self, job: Job) -> None:
        if not self.interactive:
            self.place[job.name] = len(self.place) + 1
            self.line(f"{self._count(job)} start       {job.title}")

    def end(self, job: Job, status: str, note: str = "") -> None:
        self.place.setdefault(job.name, len(self.place) + 1)
        self.line(f"{self._count(job)} {status:<11} {job.title}{f'   {note}' if note else ''}")
        self.bar.update(1)

    def _count(self, job: Job) -> str:
        width = len(str(self.total))
        return f"[{self.place[job.name]:>{width}}/{self.total}]"

    def refresh(self, running: list[Running], waiting: list[Job], at_once: int) -> None:
        if not self.interactive:
            return
        left = [self._expect(r.job) for r in running] + [self._expect(job) for job in waiting]
        words = []
        if left and None not in left:
            passed = [min(time.time() - r.started, self._expect(r.job)) for r in running]
            words.append(f"about {clock((sum(left) - sum(passed)) / max(1, min(at_once, len(left))))} left")
        for r in running:
            name = r.job.title if len(running) == 1 else f"{r.job.notebook.number} {r.job.run}".strip()
            words.append(f"{name} ({r.cell}/{r.cells})" if r.cells else name)
        self.bar.set_description_str(self._sayable("".join(f" · {word}" for word in words)))

    def _expect(self, job: Job) -> float | None:
        """Seconds that a job will take: as last time, or like the same notebook's other runs."""
        if job.name in self.known:
            return self.known[job.name]
        alike = [seconds for name, seconds in self.known.items() if name.startswith(job.notebook.path.stem)]
        return sum(alike) / len(alike) if alike else None

    def close(self) -> None:
        self.bar.leave = False
        self.bar.close()


def clock(seconds: float) -> str:
    """Seconds in words that fit: 8.3 s, 47 s, 6 min 05 s, 3 h 20 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as their widest word; the first row is the heading, the last column is flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [word.ljust(width) for word, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1].rjust(widths[-1])]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


# ---- the batch run ------------------------------------------------------------------------------------------------


class Batch:
    """A batch run under way: what waits, what runs, what is recorded."""

    def __init__(self, jobs: dict[str, Job], profile: Profile, data: str, output: Path, force: set[str], at_once: int):
        self.jobs, self.profile, self.data, self.output = jobs, profile, data, output
        self.force, self.at_once = force, at_once
        self.status: dict[str, str] = {}
        self.running: dict[str, Running] = {}
        self.events: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
        self.library = library_hash()
        self._key: str | None = None
        self.file = output / "manifest.json"
        before = read_manifest(self.file).get("notebooks", {})
        self.manifest = {
            "profile": profile.name,
            "commit": _git("rev-parse", "HEAD"),
            "dirty": bool(status) if (status := _git("status", "--porcelain")) is not None else None,
            "versions": {"python": platform.python_version(), "attnconv": __version__}
            | {name: version_of(name) for name in VERSIONS},
            "device": device(),
            "seeds": list(profile.seeds),
            "data": {"asked": data if data in ("embedded", "cifar10", "fashion-mnist") else Path(data).name},
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "seconds": 0.0,
            "notebooks": before,
        }
        times = {name: entry["seconds"] for name, entry in before.items() if entry.get("status") == "done"}
        self.screen = Screen(len(jobs), times)

    # What is done

    def data_key(self) -> str | None:
        """The data's hash; None while it still has to be downloaded."""
        from attnconv.data import MissingData, content_key, find_data  # here, as it imports torch

        if self._key is None:
            with contextlib.suppress(MissingData):
                source = find_data(self.data)
                self._key = content_key(source)
                self.manifest["data"] |= {"name": source.name, "form": source.form, "sha256": self._key}
        return self._key

    def fingerprint(self, job: Job, source: str) -> str:
        """Changes with everything that determines what a notebook shows."""
        parameters = {name: value for name, value in job.parameters.items() if name not in ("output", "data")}
        upstream = [self.manifest["notebooks"].get(name, {}).get("fingerprint") for name in job.needs]
        runs = runs_hash(self.output / "runs", job.reads)
        return _digest(source, parameters, self.library, to_dict(self.profile), self.data_key(), upstream, runs)

    def up_to_date(self, job: Job) -> bool:
        entry = self.manifest["notebooks"].get(job.name, {})
        return (
            job.name not in self.force
            and entry.get("status") == "done"
            and all((self.output / name).is_file() for name in [self._copy(job), *entry.get("made", [])])
            and entry.get("fingerprint") == self.fingerprint(job, source_hash(job.notebook.path))
        )

    @staticmethod
    def _copy(job: Job) -> str:
        return f"notebooks/{job.name}.ipynb"

    # What happens

    def run(self) -> int:
        """Run all; the exit status."""
        started = time.time()
        try:
            while len(self.status) < len(self.jobs):
                self._start_what_can()
                self.screen.refresh(list(self.running.values()), self._waiting(), self.at_once)
                if self.running:
                    with contextlib.suppress(queue.Empty):
                        self._handle(*self.events.get(timeout=0.5))
        except BaseException:
            for running in self.running.values():
                running.stop()
            raise
        finally:
            self.screen.close()
            self.manifest["seconds"] = round(time.time() - started, 1)
            self._save()
        return 1 if any(status != "done" and status != "up to date" for status in self.status.values()) else 0

    def _waiting(self) -> list[Job]:
        return [job for name, job in self.jobs.items() if name not in self.status and name not in self.running]

    def _start_what_can(self) -> None:
        for job in self._waiting():
            state = {need: self.status.get(need) for need in job.needs}
            broken = [need for need, status in state.items() if status in ("failed", "not run")]
            if broken:
                self.status[job.name] = "not run"
                self.screen.end(job, "not run", f"needs {', '.join(self._said(n) for n in broken)}")
            elif None not in state.values() and self._has_room(job):
                if self.up_to_date(job):
                    self.status[job.name] = "up to date"
                    self.screen.end(job, "up to date")
                else:
                    self._start(job)

    def _has_room(self, job: Job) -> bool:
        if job.notebook.alone or any(running.job.notebook.alone for running in self.running.values()):
            return not self.running
        return len(self.running) < self.at_once

    def _said(self, name: str) -> str:
        return f"{self.jobs[name].title}, which {'failed' if self.status[name] == 'failed' else 'did not run'}"

    def _start(self, job: Job) -> None:
        folder = self.output / "notebooks"
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".running-{job.name}.ipynb"
        log = tempfile.TemporaryFile("w+", errors="replace")
        process = subprocess.Popen(
            [sys.executable, "-c", "from attnconv.reproduce import _child; _child()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # a Ctrl-C in the terminal is the runner's to handle
            env=self._environment(job),
        )
        running = Running(job, process, temporary, log, source_hash(job.notebook.path))
        self.running[job.name] = running
        self.screen.start(job)
        path = job.notebook.path
        spec = dict(notebook=str(path), output=str(temporary), parameters=job.parameters, cwd=str(path.parent))
        process.stdin.write(json.dumps(spec) + "\n")
        process.stdin.flush()
        threading.Thread(target=self._listen, args=(job.name, process.stdout), daemon=True).start()

    def _environment(self, job: Job) -> dict[str, str]:
        library = str(Path(__file__).resolve().parents[1])
        environment = {**os.environ, "ATTNCONV_QUIET": "1", "ATTNCONV_STATIC": "1"}
        environment["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH")]))
        environment.pop("MPLBACKEND", None)  # the kernel shows figures in the notebook
        if self.at_once > 1 and not job.notebook.alone:
            environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.at_once)))
        return environment

    def _listen(self, name: str, stream: Iterable[str]) -> None:
        for line in stream:
            with contextlib.suppress(ValueError):
                self.events.put((name, json.loads(line)))
        self.events.put((name, None))

    def _handle(self, name: str, event: dict[str, Any] | None) -> None:
        running = self.running[name]
        if event is None:
            del self.running[name]
            running.process.wait()
            _kill_group(running.kernel)
            self._finish(running)
        elif "kernel" in event:
            running.kernel = event["kernel"]
        elif "cell" in event:
            running.cell, running.cells = event["cell"], event["cells"]
        else:
            running.result = event

    def _finish(self, running: Running) -> None:
        job, seconds = running.job, time.time() - running.started
        succeeded = bool(running.result.get("done"))
        copy = self.output / self._copy(job)
        if running.temporary.is_file():
            os.replace(running.temporary, copy)
        entry = self.manifest["notebooks"][job.name] = {
            "status": "done" if succeeded else "failed",
            "started": datetime.fromtimestamp(running.started).astimezone().isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "commit": self.manifest["commit"],
            "parameters": {name: value for name, value in job.parameters.items() if name not in ("output", "data")},
        }
        self.status[job.name] = entry["status"]
        if succeeded:
            # Inputs as they are now: a run that this notebook trained is one of them next time.
            entry["fingerprint"] = self.fingerprint(job, running.source)
            entry["made"] = sorted(self._made_since(running))
            self.screen.known[job.name] = seconds
        self._save()
        self.screen.end(job, entry["status"], f"after {clock(seconds)}" if not succeeded else clock(seconds))
        if not succeeded:
            self.screen.line(self._failure(running, copy))
        running.log.close()

    def _made_since(self, running: Running) -> Iterator[str]:
        """Figures and tables of a job; names that begin with another notebook's number were made beside it."""
        others = {f"{job.notebook.number}-" for job in self.jobs.values()} - {f"{running.job.notebook.number}-"}
        for folder in ("figures", "tables"):
            for file in (self.output / folder).rglob("*"):
                if file.name.startswith(".") or file.name[:3] in others:
                    continue  # half-written by a job beside it, or another job's
                if file.is_file() and file.stat().st_mtime >= running.started:
                    yield file.relative_to(self.output).as_posix()

    def _failure(self, running: Running, copy: Path) -> str:
        running.log.seek(0)
        error = running.result.get("error") or "The process ended without a word.\n" + running.log.read()[-2000:]
        error = re.sub(r"\x1b\[[0-9;]*m", "", error)
        parts = []
        if source := running.result.get("source"):
            parts += ["the cell's last lines:", *_last(source, 6)]
        parts += ["the error's last lines:", *_last(error, 14)]
        if copy.is_file():
            parts.append(f"the notebook as far as it came: {shown(copy)}")
        return "\n".join(f"      {part}" for part in parts)

    def _save(self) -> None:
        with writing(self.file) as temporary:
            temporary.write_text(json.dumps(self.manifest, indent=1, ensure_ascii=False) + "\n")

    def summary(self) -> str:
        """What was done, and where it is."""
        rows = [("notebook", "run", "status", "time")]
        for name, job in self.jobs.items():
            entry = self.manifest["notebooks"].get(name, {})
            timed = self.status[name] in ("done", "failed") and "seconds" in entry
            rows.append((job.notebook.title, job.run, self.status[name], clock(entry["seconds"]) if timed else ""))
        text = ["", table(rows), ""]
        for folder in ("figures", "tables", "runs", "notebooks"):
            found = [p for p in (self.output / folder).glob("*") if not p.name.startswith(".")]
            text.append(f"{folder:<10} {shown(self.output / folder)} ({len(found)})")
        text.append(f"{'record':<10} {shown(self.file)}")
        text.append(f"{'all of it':<10} {shown(write_index(self.output))}: figures, tables and claims on one page")
        return "\n".join(text)


def _last(text: str, lines: int) -> list[str]:
    return [f"  | {line}" for line in text.rstrip().splitlines()[-lines:]]


def reproduce(
    profile_name: str = "quick",
    *,
    data: str | None = None,
    only: Iterable[str] = (),
    force: bool = False,
    at_once: int | None = None,
    output: str | Path | None = None,
    retrain: bool = False,
    parameters: dict[str, Any] | None = None,
    notebooks: Path = REPOSITORY / "notebooks",
) -> int:
    """Run a folder's notebooks in one of its ``profiles``; the exit status. See ``attnconv reproduce -h``."""
    if at_once is None:
        # Small models train faster side by side, each on one core, than one after the other on all.
        at_once = 1 if device()["gpu"] else min(4, cores())
    if at_once < 1:
        raise ConfigError(f"--jobs {at_once} must be at least 1.")
    profile = load_profile(notebooks / "profiles" / f"{profile_name}.yaml")
    given_data, data = data, _checked_data(data or profile.data)
    folder = output_folder(profile, given_data, output)
    if retrain and not output:  # beside what is there, which stays to be compared with
        folder = folder.with_name(f"{folder.name}-retrained")
    paths = sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise ConfigError(f"There are no notebooks in {notebooks}; run from a clone of the repository.")
    given = {"profile": profile.name, "data": data, "output": str(folder)}
    jobs = plan(map(read_notebook, paths), profile, given)
    chosen = select(jobs, only) if only else set(jobs)
    if parameters:
        jobs = {n: _changed(job, parameters, profile) if n in chosen else job for n, job in jobs.items()}
    wanted = with_needs(jobs, chosen)

    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder), _sigterm_as_ctrl_c():
        print(f"Reproducing in the {profile.name} profile: {profile.description or 'no description'}")
        print(f"{len(wanted)} to run, data: {data}, output: {shown(folder)}", flush=True)
        extra = [job.title for name, job in wanted.items() if name not in chosen]
        if extra:
            print(f"Needed first, where not up to date: {'; '.join(extra)}", flush=True)
        batch = Batch(wanted, profile, data, folder, chosen if force else set(), at_once)
        try:
            status = batch.run()
        except KeyboardInterrupt:
            done = sum(s in ("done", "up to date") for s in batch.status.values())
            print(f"\nStopped, {done} of {len(wanted)} notebooks are done. To resume, run the same command again.")
            return 130
        print(batch.summary())
        print(f"{'in all':<10} {clock(batch.manifest['seconds'])}", flush=True)
        return status


def _checked_data(data: str) -> str:
    """A known word as it is, a path made absolute; `DataError` when nothing can be read there."""
    from attnconv.data import find_data

    if data in ("embedded", "cifar10", "fashion-mnist"):
        if data == "embedded":
            find_data(data)
        return data  # the others may still be downloaded
    find_data(data)
    return str(Path(data).expanduser().resolve())


def _changed(job: Job, parameters: dict[str, Any], profile: Profile) -> Job:
    fixed = sorted({*GIVEN, "preset", "seed"} & set(parameters)) if job.trains else sorted(set(GIVEN) & set(parameters))
    if fixed:
        raise ConfigError(f"{fixed[0]!r} is given by the profile and the command's own options, not with -p.")
    check_parameters(job.notebook, parameters)
    changed = dataclasses.replace(job, parameters={**job.parameters, **parameters})
    names = ("preset", "seed", "model_changes", "train_changes")
    given = {n: v for n, v in {**job.notebook.defaults, **changed.parameters}.items() if v is not Anything}
    if given.get("preset") and set(names) & set(parameters):
        profile.configs(*map(given.get, names))  # a wrong value costs no time
    return changed


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"Another run is writing to {folder}; wait for it, or choose --output.") from None
        yield


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
