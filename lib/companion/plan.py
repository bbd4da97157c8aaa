"""What a batch run has to do: notebooks, and a job for each execution of one.

A notebook's metadata says what the runner must know, all of it optional:

    "attnconv": {"per_run": true}                 it is executed once for each preset and seed of the profile
    "attnconv": {"needs": ["03", "04:learned"]}   it comes after these notebooks, or after their jobs of one preset
    "attnconv": {"reads": ["study/learned/*"]}    it reads these runs besides: folder/preset/seed
    "attnconv": {"reads": ["tables/*.json"]}      it reads what other notebooks made
    "attnconv": {"alone": true}                   it measures time: nothing else runs beside it
    "attnconv": {"part": "few"}                   it is left out where the profile's study has no such part
    "attnconv": {"after": "09"}                   its turn is right after that one's: it takes too long to be last
"""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import nbformat

from attnconv.config import PRESETS, Config, ConfigError
from companion.profile import AsTuple, Profile
Words = Annotated[tuple[str, ...], AsTuple]
GIVEN = (
    "profile",
    "data",
    "output",
)  # parameters of every notebook; with ``per_run`` also preset and seed


class Notebook(Config):
    """A notebook as the runner sees it; after the title, what its metadata may say."""

    path: Path
    title: str
    per_run: bool = False
    alone: bool = False
    part: Literal["", "few"] = ""
    after: str = ""
    needs: Words = ()
    reads: Words = ()

    @property
    def number(self) -> str:
        return self.path.name[:2]


@dataclass(frozen=True)
class Job:
    """One execution of one notebook."""

    name: str  # also the executed copy's file name
    notebook: Notebook
    parameters: dict[str, Any]
    run: tuple[str, int] | None = None  # preset and seed, where there is an execution for each
    needs: tuple[str, ...] = ()  # names of other jobs
    reads: frozenset[str] = (
        frozenset()
    )  # its inputs: patterns of ``folder/preset/seed``, where ``*`` stands for any

    @property
    def title(self) -> str:
        words = f", {self.run[0]}, seed {self.run[1]}" if self.run else ""
        return f"{self.notebook.number} {self.notebook.title}{words}"


def read_notebook(path: Path) -> Notebook:
    """A notebook's parameters and metadata; `ConfigError` when the runner cannot work with it."""
    try:
        content = nbformat.read(path, as_version=4)
        notebook = Notebook(path=path, title=title_of(path), **content.metadata.get("attnconv", {}))
    except Exception as error:  # nbformat raises many kinds
        raise ConfigError(
            f"{path} is not a readable notebook ({error}); restore it with git."
        ) from error
    cells = [cell for cell in content.cells if "parameters" in cell.metadata.get("tags", [])]
    wanted = (*GIVEN, "preset", "seed") if notebook.per_run else GIVEN
    if missing := [
        name for name in wanted if not any(re.search(rf"(?m)^{name}\b.*=", c.source) for c in cells)
    ]:
        raise ConfigError(
            f"{path.name}: a code cell tagged 'parameters' must also set {', '.join(missing)}."
        )
    return notebook


def title_of(path: Path) -> str:
    """A notebook's heading, or else words from its file's name."""
    with contextlib.suppress(Exception):  # nbformat raises many kinds
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "markdown" and cell.source.startswith("# "):
                return cell.source.partition("\n")[0][2:].strip()
    return path.stem.partition("-")[0][3:].replace("_", " ")


def plan(notebooks: Iterable[Notebook], profile: Profile, given: dict[str, Any]) -> dict[str, Job]:
    """Every job of a profile, each after those that it needs, else in the order of notebooks and of
    the profile's runs. `ConfigError` where notebooks need each other in a circle."""
    jobs: dict[str, Job] = {}
    for notebook in sorted(notebooks, key=lambda one: one.after or one.number):
        if notebook.part and not getattr(profile.study, notebook.part):
            continue
        for run in itertools.product(profile.runs, profile.seeds) if notebook.per_run else [None]:
            parameters = given | ({"preset": run[0], "seed": run[1]} if run else {})
            name = f"{notebook.path.stem}-{run[0]}-seed{run[1]}" if run else notebook.path.stem
            jobs[name] = Job(name, notebook, parameters, run)
    jobs = {name: _linked(job, list(jobs.values()), profile) for name, job in jobs.items()}
    ordered: dict[str, Job] = {}
    while waiting := {name: job for name, job in jobs.items() if name not in ordered}:
        ready = next(
            (name for name, job in waiting.items() if ordered.keys() >= {*job.needs}), None
        )
        if ready is None:
            raise ConfigError(
                f"These need each other in a circle: {', '.join(waiting)}. Correct 'needs'."
            )
        ordered[ready] = jobs[ready]
    return ordered


def _linked(job: Job, jobs: list[Job], profile: Profile) -> Job:
    """The job with what its notebook's metadata and its preset say that it needs and reads. What
    this profile does not
    run is not needed: the notebook does without it, or trains it."""
    needed, reads = list[Job](), {*job.notebook.reads}
    for word in job.notebook.needs:
        number, _, preset = word.partition(":")
        needed += named(jobs, word)
        reads |= {f"runs/{preset or '*'}/*" for one in named(jobs, number) if one.run}
    if job.run:
        preset, seed = job.run
        first = PRESETS[preset].start
        needed += [
            other for other in jobs if other.notebook == job.notebook and other.run == (first, seed)
        ]
        reads |= {f"runs/{one}/{seed}" for one in (preset, first) if one}
    return dataclasses.replace(
        job, needs=tuple(dict.fromkeys(o.name for o in needed)), reads=frozenset(reads)
    )


def named(jobs: Iterable[Job], word: str) -> list[Job]:
    """The jobs that a word names: with ``03`` all of notebook 03, with ``03:quadratic`` those of
    one preset.
    """
    number, colon, preset = word.partition(":")
    of_notebook = [job for job in jobs if job.notebook.number == number.zfill(2)]
    return (
        [job for job in of_notebook if job.run and job.run[0] == preset] if colon else of_notebook
    )


def select(jobs: dict[str, Job], only: Iterable[str]) -> dict[str, bool]:
    """The jobs that the words of ``--only`` name, and all that these need, in order; whether each
    was named. `ConfigError` for a word that names none."""
    wanted: dict[str, bool] = {}
    for word in only:
        if not (found := named(jobs.values(), word)):
            known = [job.notebook.number for job in jobs.values()]
            known += [f"{job.notebook.number}:{job.run[0]}" for job in jobs.values() if job.run]
            raise ConfigError(
                f"There is no notebook {word!r} to run. Known: {', '.join(dict.fromkeys(known))}."
            )
        wanted |= dict.fromkeys((job.name for job in found), True)
    while more := {need for name in wanted for need in jobs[name].needs} - wanted.keys():
        wanted |= dict.fromkeys(more, False)
    return {name: wanted[name] for name in jobs if name in wanted}
