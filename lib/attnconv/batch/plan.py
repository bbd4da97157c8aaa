"""What a batch run has to do: notebooks, and a job for each execution of one.

A notebook says in its metadata what the runner must know, and in its cell tagged ``parameters`` what it can be told:

    "attnconv": {"per_run": true}               executed once per preset and seed of the profile
    "attnconv": {"needs": ["03:quadratic"]}     comes after notebook 03's run of that preset (or after all of "03")
    "attnconv": {"alone": true}                 it measures time: nothing else runs beside it
    "attnconv": {"makes": ["explorer.html"]}    what it writes into the output folder itself
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import graphlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from attnconv.config import ConfigError, Profile

GIVEN = ("profile", "data", "output")
"""Parameters that every notebook is given; per-run notebooks get ``preset`` and ``seed`` too."""


@dataclass(frozen=True)
class Notebook:
    """A notebook as the runner sees it."""

    path: Path
    title: str
    cells: int
    """Code cells, with the one that papermill adds."""
    per_run: bool = False
    needs: tuple[str, ...] = ()
    alone: bool = False
    makes: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        return self.path.name[:2]


@dataclass(frozen=True)
class Job:
    """One execution of one notebook."""

    name: str
    """Also the executed copy's file name."""
    notebook: Notebook
    parameters: dict[str, Any]
    run: tuple[str, int] | None = None
    """Preset and seed, where there is an execution for each."""
    needs: tuple[str, ...] = ()
    """Names of other jobs."""
    reads: frozenset[tuple[str | None, int | None]] = frozenset()
    """Presets and seeds whose run folders are among its inputs. None stands for any, runs from elsewhere included."""

    @property
    def title(self) -> str:
        words = f", {self.run[0]}, seed {self.run[1]}" if self.run else ""
        return f"{self.notebook.number} {self.notebook.title}{words}"

    def is_of(self, preset: str) -> bool:
        return not preset or bool(self.run and self.run[0] == preset)

    def reads_run(self, preset: str, seed: int) -> bool:
        return not self.reads.isdisjoint([(preset, seed), (preset, None), (None, None)])


def read_notebook(path: Path) -> Notebook:
    """A notebook's parameters and needs; `ConfigError` when the runner cannot work with it."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds
        raise ConfigError(f"{path} is not a readable notebook ({error}); restore it with git.") from error
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    tagged = [cell.source for cell in code if "parameters" in cell.metadata.get("tags", [])]
    try:
        names = [node for node in ast.walk(ast.parse("".join(tagged[:1]))) if isinstance(node, ast.Name)]
    except SyntaxError as error:
        raise ConfigError(f"{path.name}: its cell tagged 'parameters' is not valid Python ({error}).") from error
    notes = notebook.metadata.get("attnconv", {})
    lists = {name: tuple(map(str, notes.get(name, ()))) for name in ("needs", "makes")}
    switches = {name: bool(notes.get(name)) for name in ("per_run", "alone")}
    found = Notebook(path, title_of(path), len(code) + 1, **switches, **lists)
    parameters = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    missing = [name for name in (*GIVEN, *(("preset", "seed") if found.per_run else ())) if name not in parameters]
    if missing:
        raise ConfigError(f"{path.name}: a code cell tagged 'parameters' must also set {', '.join(missing)}.")
    return found


def title_of(path: Path) -> str:
    """A notebook's heading, or else words from its file's name."""
    with contextlib.suppress(Exception):  # nbformat raises many kinds
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown" and cell.source.startswith("# "):
                return cell.source.partition("\n")[0][2:].strip()
    return path.stem.partition("-")[0][3:].replace("_", " ")


def plan(notebooks: Iterable[Notebook], profile: Profile, given: dict[str, Any]) -> dict[str, Job]:
    """Every job of a profile, in the order of notebooks and of the profile's runs."""
    jobs: dict[str, Job] = {}
    for notebook in notebooks:
        for run in itertools.product(profile.runs, profile.seeds) if notebook.per_run else [None]:
            parameters = given | ({"preset": run[0], "seed": run[1]} if run else {})
            name = f"{notebook.path.stem}-{run[0]}-seed{run[1]}" if run else notebook.path.stem
            jobs[name] = Job(name, notebook, parameters, run)
    jobs = {name: _linked(job, list(jobs.values()), profile) for name, job in jobs.items()}
    try:
        graphlib.TopologicalSorter({name: job.needs for name, job in jobs.items()}).prepare()
    except graphlib.CycleError as error:
        circle = ", ".join(sorted({jobs[name].notebook.path.name for name in error.args[1]}))
        raise ConfigError(f"These notebooks need each other in a circle: {circle}. Correct their 'needs'.") from None
    return jobs


def _linked(job: Job, jobs: list[Job], profile: Profile) -> Job:
    """The job with what its notebook's metadata and its preset say that it needs and reads."""
    needed: list[Job] = []
    reads: set[tuple[str | None, int | None]] = {job.run} if job.run else set()
    for word in job.notebook.needs:
        number, _, preset = word.partition(":")
        others = [other for other in jobs if other.notebook.number == number]
        if not others:
            raise ConfigError(f"{job.notebook.path.name} needs notebook {number}, which is not there.")
        # A preset that this profile does not run is not needed: the notebook says so itself, or trains it.
        needed += [other for other in others if other.is_of(preset)]
        reads |= {(preset or None, None)} if any(other.run for other in others) else set()
    if job.run and (start := profile.configs(*job.run)[1].start_from):
        first = (start, job.run[1])
        needed += [other for other in jobs if other.notebook == job.notebook and other.run == first]
        reads.add(first)
    return dataclasses.replace(job, needs=tuple(dict.fromkeys(o.name for o in needed)), reads=frozenset(reads))


def select(jobs: dict[str, Job], only: Iterable[str]) -> set[str]:
    """The jobs that ``--only`` names: ``03``, or ``03:quadratic`` for one of its presets."""
    chosen: set[str] = set()
    for word in only:
        number, _, preset = word.partition(":")
        found = {n for n, job in jobs.items() if job.notebook.number == number.zfill(2) and job.is_of(preset)}
        if not found:
            known = [job.notebook.number for job in jobs.values()]
            known += [f"{job.notebook.number}:{job.run[0]}" for job in jobs.values() if job.run]
            raise ConfigError(f"There is no notebook {word!r} to run. Known: {', '.join(dict.fromkeys(known))}.")
        chosen |= found
    return chosen


def with_needs(jobs: dict[str, Job], chosen: set[str]) -> dict[str, Job]:
    """The chosen jobs and all that they need."""
    wanted = set(chosen)
    while more := {need for name in wanted for need in jobs[name].needs} - wanted:
        wanted |= more
    return {name: job for name, job in jobs.items() if name in wanted}
