"""What a notebook works with: a profile, a data set, and the output folder of one reproduction.

work = open_workspace("quick")
run = work.run("quadratic")        # trains it if no finished run is there
work.save_figure(figure, "04-centres", "Centres of all heads.", run)
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnconv.config import REPOSITORY, ModelConfig, TrainConfig, for_images, replace
from attnconv.heads import measure_attention
from attnconv.training import load_run, train
from attnconv.training.data import Dataset, MissingData, find_data, load_data
from attnconv.training.runs import Run, data_key, find_runs, identity, write, write_arrays, writing
from companion.profile import Profile, load_profile
from companion.swaps import measure_swaps, untrained

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from companion.claims import Claims

OUTPUTS = Path(os.path.realpath(REPOSITORY / "outputs"))
REPRODUCED = (
    OUTPUTS / "reproduced"
)  # where profiles are drawn whose record is committed, in outputs/<profile>
PROFILES = REPOSITORY / "notebooks" / "profiles"
NAMED_DATA = ("embedded", "cifar10")  # anything else is a path
_described = itertools.count(1)  # figures, in the order in which the index shows them


@dataclass(frozen=True)
class Workspace:
    """One reproduction: outputs/<name>/{runs, figures, tables}."""

    profile: Profile
    source: str  # of the data: see `attnconv.training.data.load_data`
    folder: Path

    @property
    def results(self) -> Path:
        """Where figures, tables and pages are written: ``folder``, or what a batch run moves
        there at the end.
        """
        return Path(os.environ.get("ATTNCONV_RESULTS") or self.folder)

    @cached_property
    def data(self) -> Dataset:
        """The data set, cut to the profile's size; downloaded where it is not here."""
        if self.strip:
            return load_data(self.strip)
        return load_data(self.source).first(self.profile.train_images, self.profile.test_images)

    @cached_property
    def strip(self) -> Path | None:
        """Images kept with recorded runs, an npz file that stands in where the data set is not
        here.
        """
        file = self.folder / "strip.npz"
        return file if not find_data(self.source) and file.is_file() else None

    def configs(
        self, name: str, seed: int | None = None, **changes: Any
    ) -> tuple[ModelConfig, TrainConfig]:
        """A preset's configurations for this profile and data; ``changes`` as in
        `Profile.configs`.
        """
        model, train = self.profile.configs(name, seed, **changes)
        return for_images(
            model, self.data.image_size, self.data.image_channels, len(self.data.classes)
        ), train

    def run(
        self,
        name: str,
        seed: int | None = None,
        *,
        fresh: bool = False,
        kept_in: str = "runs",
        start: Run | None = None,
        **changes: dict[str, Any],
    ) -> Run:
        """A preset's finished run: the one that is there, or else one trained (or resumed) now.

        Every configuration has a folder of its own in ``kept_in``. ``changes`` as in `configs`.
        ``start``: the run that it goes on from, with all of its heads, where that is not the
        preset's. Unless ``fresh``, a kept run of any copy of the data stands in where the profile
        says ``recorded`` and the record's images lie beside it. `MissingData` where none is kept
        and no data is here."""
        model, recipe = self.configs(name, seed, **changes)
        recipe = replace(recipe, {"start_from": start.preset, "prune": False}) if start else recipe
        if self.profile.recorded and not fresh and (self.folder / "strip.npz").is_file():
            if kept := self._kept(
                name, model, recipe, kept_in, start, changed=bool(start or any(changes.values()))
            ):
                return kept
        if self.strip:
            missing = f"{name}, seed {recipe.seed}, is not among the recorded runs in {self.folder / kept_in}"
            if fresh:
                missing = (
                    f"{self.source} is not on this machine, to train {name}, seed {recipe.seed}"
                )
            raise MissingData(
                f"{missing}. To train it, say where {self.source} is: --data PATH (make: DATA=PATH)."
            )
        if recipe.start_from and not start:
            start = self.run(recipe.start_from, recipe.seed, fresh=fresh)
        key = data_key(self.data.about())
        digits = identity(model, recipe, key, start.config["hash"] if start else None)
        folder = self.folder / kept_in / f"{name}-seed{recipe.seed}-{digits}"
        return train(model, recipe, self.data, folder, preset=name, start=start)

    def _kept(
        self,
        name: str,
        model: ModelConfig,
        recipe: TrainConfig,
        kept_in: str,
        start: Run | None,
        *,
        changed: bool,
    ) -> Run | None:
        """The recorded run of these configurations. Unless they were ``changed``, one of another
        recipe will do.
        """
        free = {"heads": 1} if recipe.start_from else {}  # pruning leaves each run its own

        def exact(run: Run) -> bool:
            same = not start or run.config.get("start") == start.config["hash"]
            return same and run.train == recipe and replace(run.model, free) == replace(model, free)

        def alike(run: Run) -> bool:
            return (run.preset, run.train.seed) == (name, recipe.seed) and (
                exact(run) or not changed
            )

        there = [
            run
            for place in dict.fromkeys((kept_in, "runs"))
            for run in find_runs(self.folder / place, alike)
        ]
        return max(there, key=lambda run: (exact(run), run.train.epochs), default=None)

    def attention(self, run: Run) -> dict[str, np.ndarray]:
        """What a run's heads attend to (see `heads.measure_attention`): as kept in its folder,
        or measured now.
        """
        if not (file := run.path / "attention.npz").is_file():
            write_arrays(file, measure_attention(load_run(run.path)[0], self.data))
        return Run(run.path).attention

    def swaps(self, run: Run, images: int | None = None) -> dict[str, np.ndarray]:
        """What a run loses by convolutions in its layers' place (see `swaps.measure_swaps`): as
        kept, or measured now.

        On the profile's ``swap_images`` at most, and ``images``. Empty where it was not kept and
        the data set is not
        here: the images of a record are too few to count answers.
        """
        kept = Run(run.path).swaps
        if not self.strip and not (kept and run.without_weights):
            some = self.data.first(None, self.profile.swap_images).first(None, images)
            if not kept or int(kept["images"]) < len(some.test_labels):
                first = None if run.train.start_from else untrained(run)
                write_arrays(
                    run.path / "swaps.npz", measure_swaps(load_run(run.path)[0], first, some)
                )
        return Run(run.path).swaps

    def runs(self) -> list[Run]:
        """All finished runs in this workspace, those dropped in from elsewhere too."""
        return find_runs(self.folder / "runs")

    def save_figure(
        self,
        figure: Figure | Sequence[Figure],
        name: str,
        caption: str,
        *runs: Run,
        frames_per_second: int = 10,
    ) -> None:
        """Write figures/<name>.pdf and .png, or frames as a .gif; the index page shows caption
        and runs.
        """
        from companion.figures import save, save_animation  # training does without seaborn

        for suffix in (".gif",) if isinstance(figure, Sequence) else (".pdf", ".png"):
            with writing(self.results / "figures" / f"{name}{suffix}") as file:
                if isinstance(figure, Sequence):
                    save_animation(figure, file, frames_per_second)
                else:
                    save(figure, file)
        names = list(dict.fromkeys(run.path.name for run in runs))  # a run may be drawn twice
        note = {"caption": caption, "runs": names, "place": next(_described)}
        write(self.results / "figures" / f"{name}.json", json.dumps(note) + "\n")

    def save_table(self, frame: pd.DataFrame, name: str) -> None:
        """Write tables/<name>.md, .csv and .tex, without the frame's index. The LaTeX wants the
        package booktabs.
        """
        known = frame.astype(object).where(
            frame.notna(), None
        )  # what is missing is a dash, not "nan"
        latex = frame.to_latex(index=False, float_format="%.8g", na_rep="---", escape=True)
        markdown = known.to_markdown(index=False, floatfmt=".8g", missingval="—") + "\n"
        for suffix, text in (
            (".md", markdown),
            (".csv", frame.to_csv(index=False)),
            (".tex", latex),
        ):
            write(self.results / "tables" / f"{name}{suffix}", text)

    def claims(self, name: str) -> Claims:
        """A list to check claims in, and to save as tables/<name>.json."""
        from companion.claims import Claims  # training does without pandas

        return Claims(self.results / "tables" / f"{name}.json")


def open_workspace(
    profile: str = "quick", *, data: str | None = None, output: str | Path | None = None
) -> Workspace:
    """A workspace for a profile of ``notebooks/profiles`` (or a path to a YAML file), in its
    `output_folder`. ``data`` replaces the profile's data."""
    chosen = load_profile(
        Path(profile) if profile.endswith(".yaml") else PROFILES / f"{profile}.yaml"
    )
    folder = output_folder(chosen, data, output)
    if record := record_of(folder):
        # Linked file by file: what a notebook measures of a run joins the links, and the record
        # stays as it is.
        patterns = ("runs/*/[!.]*", "study/*/[!.]*", "strip.npz")
        for kept in (
            file for pattern in patterns for file in record.glob(pattern) if file.is_file()
        ):  # no checkpoints
            link = folder / kept.relative_to(record)
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(os.path.relpath(kept, link.parent))
    return Workspace(chosen, data or chosen.data, folder)


def output_folder(
    profile: Profile, data: str | None = None, output: str | Path | None = None
) -> Path:
    """Where a profile's results go: outputs/<profile>, or outputs/<profile>-<data> for another data
    set than its own.

    A profile whose record is committed has its results beside it, in outputs/reproduced/<profile>.
    Any copy of CIFAR-10 is the data of a profile of CIFAR-10. A few digits tell folders of one name
    apart."""
    if output:
        return absolute(output)
    own = (REPRODUCED if profile.recorded else OUTPUTS) / profile.name
    if not data or data == profile.data:
        return own
    if data in NAMED_DATA:
        return OUTPUTS / f"{profile.name}-{data}"
    if profile.data == "cifar10" and load_data(data).name == "cifar10":
        return own
    path = absolute(data)
    word, digits = (
        re.sub(r"[\W_]", "-", path.name.lower()),
        hashlib.sha256(os.fsencode(path)).hexdigest()[:4],
    )
    return OUTPUTS / f"{profile.name}-{word}-{digits}"


def record_of(folder: Path) -> Path | None:
    """The committed record beside which a folder is drawn: outputs/<name> for
    outputs/reproduced/<name>, else None.
    """
    return OUTPUTS / folder.name if folder.parent == REPRODUCED else None


def absolute(path: str | Path) -> Path:
    """A path from the root, with links and ~ resolved as far as that is possible."""
    return Path(os.path.realpath(os.path.expanduser(path)))
