"""What a notebook works with: a profile, a data set, and the output folder of one reproduction.

work = open_workspace("quick")
run = work.run("quadratic")        # trains it if no finished run is there
work.save_figure(figure, "04-centres", "Centres of all heads.", run)
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnconv.config import (
    PRESETS,
    REPOSITORY,
    ModelConfig,
    TrainConfig,
    for_images,
    replace,
    run_name,
)
from attnconv.equivalence.swapping import READ_ON, swap, unswap
from attnconv.heads import AVERAGED, measure_attention, pruned
from attnconv.models import Network, build_model
from attnconv.training import load_run, train
from attnconv.training.data import Dataset, MissingData, find_data, load_data, normalize
from attnconv.training.runs import Run, find_runs
from companion.profile import Profile, load_profile
from companion.swaps import measure_swaps, untrained

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from companion.claims import Claims

OUTPUTS = (REPOSITORY / "outputs").resolve()
RECORD = OUTPUTS / "evening"
"""The committed record: runs are looked up in it, and never written to it."""
PROFILES = REPOSITORY / "notebooks" / "profiles"
_described = itertools.count(1)  # figures, in the order in which the index shows them


@dataclass(frozen=True)
class Workspace:
    """One reproduction: outputs/<name>/{runs, study, figures, tables}."""

    profile: Profile
    source: str  # of the data: see `attnconv.training.data.load_data`
    folder: Path
    record: Path | None = None  # a second folder, in which runs are looked up only
    shown_in: Path | None = None  # where figures and tables go, if not in ``folder``

    @property
    def results(self) -> Path:
        """Where figures and tables go: ``folder``, or what a batch run moves there at the end."""
        return Path(os.environ.get("ATTNCONV_RESULTS") or self.shown_in or self.folder)

    @cached_property
    def recorded(self) -> Workspace:
        """The record's profile and few images. Figures and tables go where this one's go."""
        if self.profile.recorded:
            return self
        profile = load_profile(PROFILES / f"{RECORD.name}.yaml")
        source = str(RECORD / "strip.npz")
        return Workspace(profile, source, self.folder / RECORD.name, RECORD, self.results)

    @cached_property
    def for_study(self) -> Workspace:
        """What a notebook on many short runs works with: this workspace, where its profile has a
        ``study``; else the record's."""
        if self.profile.study:
            return self
        name = self.profile.name
        print(f"Shown: short runs from the record ({RECORD.name}). {name} does not train them.")
        return self.recorded

    def home(self, run: Run) -> Workspace:
        """The workspace whose images a run was trained on: the record's, of a run of the record."""
        return self.recorded if run.path.is_relative_to(RECORD) else self

    @cached_property
    def strip(self) -> Path | None:
        """The record's few images, where they stand in for the data set. The record itself is
        drawn from them, so that everyone can draw it again."""
        if self.record and self.profile.recorded:
            strip = self.record / "strip.npz"
            chosen = self.source == str(strip) or self.folder == self.record
            if chosen or not find_data(self.source):
                return strip
        return None

    @cached_property
    def data(self) -> Dataset:
        """The data set, cut to the profile's size; downloaded where it is not here."""
        if self.strip:
            return load_data(self.strip)
        return load_data(self.source).first(self.profile.train_images, self.profile.test_images)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What a run keeps of its data: with the strip, what the recorded runs keep."""
        if not self.strip:
            return self.data.about()
        return find_runs(self.strip.parent / "runs")[0].config["data"]

    def configs(
        self, name: str, seed: int | None = None, *, start: Run | None = None, **changes: Any
    ) -> tuple[ModelConfig, TrainConfig]:
        """A preset's configurations for this profile and data. ``start``: the run whose weights
        come first, where that is not the preset's; ``changes`` as in `Profile.configs`."""
        model, recipe = self.profile.configs(name, seed, **changes)
        _, height, width, channels = self.data.train_images.shape
        model = for_images(model, (height, width), channels, len(self.data.classes))
        first = PRESETS[name].start
        if start:
            recipe = replace(recipe, {"start_from": start.path.name})
        elif first:
            recipe = replace(recipe, {"start_from": self.name(first, recipe.seed)})
        return model, recipe

    def name(self, name: str, seed: int | None = None, **how: Any) -> str:
        """The name of a preset's run folder; ``how`` as in `configs`."""
        return run_name(name, *self.configs(name, seed, **how), self.about)

    def check(self, name: str, seed: int | None = None, **changes: Any) -> None:
        """Raise what would keep this preset from being trained, in a second: a `ConfigError` or
        `DataError`; `MissingData` where the data set is not on this machine."""
        model, recipe = self.configs(name, seed, **changes)
        if self.strip:
            raise MissingData(
                f"{name}, seed {recipe.seed}, is not among the recorded runs. To train it, say"
                f" where {self.source} is: --data PATH (make: DATA=PATH)."
            )
        with torch.device("meta"):  # shapes only
            build_model(model)
        self.data.for_training(recipe)

    def run(
        self,
        name: str,
        seed: int | None = None,
        *,
        kept_in: str = "runs",
        start: Run | None = None,
        **changes: Any,
    ) -> Run:
        """A preset's finished run: the one that is here or in the record, or else one trained (or
        resumed) now, in the folder ``kept_in``. All else as in `configs`.

        A profile without a ``study`` trains what it lists in ``runs``. Any other preset, unless
        something is changed, is that of the record, which was trained on other images: see `home`.

        Raises `MissingData` where it would be trained and the data set is not on this machine."""
        folder = self.name(name, seed, start=start, **changes)
        found = self.find(folder)
        if found:
            return found
        listed = name in self.profile.runs or self.profile.study
        if not listed and self.record and not start and not any(changes.values()):
            found = self.recorded.run(name, seed)
            place = f"{RECORD.name}, {found.path.name}"
            name = self.profile.name
            print(f"Shown: {found.title}, from the record ({place}). {name} does not train it.")
            return found
        self.check(name, seed, start=start, **changes)
        model, recipe = self.configs(name, seed, start=start, **changes)
        network, preset = None, PRESETS[name]
        if start:
            network = first_network(start, model, "", self.data)
        elif preset.start:
            first = self.run(preset.start, recipe.seed)
            network = first_network(first, model, preset.change, self.data)
        where = self.folder / kept_in / folder
        return train(model, recipe, self.data, where, preset=name, start=network)

    def find(self, folder: str) -> Run | None:
        """The finished run of that name, here or in the record."""
        for place in (self.folder, self.record or self.folder):
            for kind in ("runs", "study"):
                run = Run(place / kind / folder)
                if run.finished:
                    return run
        return None

    def runs(self, kept_in: str = "runs") -> list[Run]:
        """All finished runs in this workspace, those dropped in from elsewhere too. Of the record,
        all where it is this profile's, else those that are as the profile says."""
        found = find_runs(self.folder / kept_in)
        here = {run.path.name for run in found}
        for run in find_runs(self.record / kept_in) if self.record else []:
            if run.path.name not in here:
                if self.profile.recorded or run.path.name == self.name(run.preset, run.train.seed):
                    found.append(run)
        return found

    def attention(self, run: Run) -> dict[str, NDArray]:
        """What a run's heads attend to, kept or measured now: see `heads.measure_attention`."""
        if self.home(run) is not self:
            return self.recorded.attention(run)
        if not self._kept(run, "attention"):
            network, _ = load_run(run.path)
            data = self.data
            images = normalize(data.test_images[:AVERAGED], data.mean, data.std)
            pixels, labels = data.test_images.numpy(), data.test_labels.numpy()
            self._keep(run, "attention", measure_attention(network, images, pixels, labels))
        return run.attention

    def swaps(self, run: Run, images: int | None = None) -> dict[str, NDArray]:
        """What a run loses by convolutions in its layers' place (see `swaps.measure_swaps`), kept
        or measured now, on the profile's ``swap_images`` at most, and ``images``.

        Empty where it is not kept and cannot be measured: the record's images are too few to count
        answers, and some recorded runs have no weights."""
        if self.home(run) is not self:
            return self.recorded.swaps(run, images)
        kept = self._kept(run, "swaps")
        if not self.strip and (run.path / "model.safetensors").is_file():
            some = self.data.first(None, self.profile.swap_images).first(None, images)
            if not kept or int(kept["images"]) < len(some.test_labels):
                first = None if run.train.start_from else untrained(run)
                self._keep(run, "swaps", measure_swaps(load_run(run.path)[0], first, some))
        return run.swaps

    def _own(self, run: Run) -> Path:
        """The folder for what is measured of a run: its own, but for one of the record."""
        if run.path.is_relative_to(self.folder):
            return run.path
        return self.folder / "measured" / run.path.name

    def _kept(self, run: Run, what: str) -> dict[str, NDArray]:
        """What was measured of a run, here or in the record. The run has it from now on: claims
        ask the run, not the workspace."""
        vars(run)[what] = getattr(Run(self._own(run)), what) or getattr(Run(run.path), what)
        return vars(run)[what]

    def _keep(self, run: Run, what: str, measured: Mapping[str, Any]) -> None:
        own = self._own(run)
        own.mkdir(parents=True, exist_ok=True)
        unfinished = own / f".{what}.npz"
        np.savez_compressed(unfinished, **measured)
        os.replace(unfinished, own / f"{what}.npz")
        self._kept(run, what)

    def save_figure(
        self,
        figure: Figure | Sequence[Figure],
        name: str,
        caption: str,
        *runs: Run,
        frames_per_second: int = 10,
    ) -> None:
        """Write figures/<name>.pdf and .png, or frames as a .gif; the index shows caption and
        runs."""
        from companion.figures import save, save_animation  # training does without seaborn

        file = self.results / "figures" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(figure, Sequence):
            save_animation(figure, f"{file}.gif", frames_per_second)
        else:
            save(figure, f"{file}.pdf")
            save(figure, f"{file}.png")
        names = list(dict.fromkeys(run.path.name for run in runs))  # a run may be drawn twice
        note = {"caption": caption, "runs": names, "place": next(_described)}
        Path(f"{file}.json").write_text(json.dumps(note) + "\n")

    def save_table(self, frame: pd.DataFrame, name: str) -> None:
        """Write tables/<name>.md, .csv and .tex, without the frame's index. The LaTeX wants the
        package booktabs."""
        file = self.results / "tables" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        known = frame.astype(object).where(frame.notna(), None)  # a dash, not "nan"
        markdown = known.to_markdown(index=False, floatfmt=".8g", missingval="—")
        Path(f"{file}.md").write_text(markdown + "\n")
        frame.to_csv(f"{file}.csv", index=False)
        frame.to_latex(f"{file}.tex", index=False, float_format="%.8g", na_rep="---", escape=True)

    def claims(self, name: str) -> Claims:
        """A list to check claims in, and to save as tables/<name>.json."""
        from companion.claims import Claims  # training does without pandas

        return Claims(self.results / "tables" / f"{name}.json")


def first_network(start: Run, model: ModelConfig, change: str, data: Dataset) -> Network:
    """The network of a finished run, as another run goes on from it: without its degenerate heads
    ("prune"); with its first layers swapped for convolutions of ``model.kernels`` ("swap"); with
    attention for its convolutions where ``model`` has none, as sharp as ``spread_start``."""
    network = load_run(start.path)[0].cpu()
    if change == "prune":
        return pruned(network)
    if change == "swap":
        sizes = {layer: size for layer, size in enumerate(model.kernels, 1) if size}
        images = normalize(data.train_images[:READ_ON], data.mean, data.std)
        return swap(network, sizes, images=images)
    if network.config.kernels and not model.kernels:
        return unswap(network, model.spread_start)
    return network


def open_workspace(profile: str = "quick", *, data: str = "", output: str | Path = "") -> Workspace:
    """A workspace for a profile of ``notebooks/profiles`` (or a path to a YAML file). ``data``
    replaces the profile's data, ``output`` the folder for results: see `output_folder`."""
    file = Path(profile) if profile.endswith(".yaml") else PROFILES / f"{profile}.yaml"
    chosen = load_profile(file)
    source = data or chosen.data
    folder = Path(output).expanduser().resolve() if output else output_folder(chosen, source)
    record = None if os.environ.get("ATTNCONV_RETRAIN") else RECORD
    return Workspace(chosen, source, folder, record)


def output_folder(profile: Profile, source: str) -> Path:
    """Where results go: outputs/<profile>, beside the record outputs/reproduced/<profile>; with
    other data than the profile's, outputs/<profile>-<data>. Any copy of CIFAR-10 is CIFAR-10."""
    if source != profile.data:
        is_a_copy = profile.data == "cifar10" == load_data(source).name
        if not is_a_copy:
            return OUTPUTS / f"{profile.name}-{Path(source).name}"
    return OUTPUTS / ("reproduced" if profile.recorded else "") / profile.name
