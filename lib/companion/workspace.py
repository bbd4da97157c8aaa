"""What a notebook works with: a profile, a data set, and the output folder of one reproduction.

work = open_workspace("quick")
run = work.run("quadratic")        # trains it if no finished run is there
work.save_figure(figure, "04-centres", "Centres of all heads.", run)
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from attnconv.config import (
    PRESETS,
    REPOSITORY,
    ConfigError,
    ModelConfig,
    for_images,
    replace,
    run_name,
)
from attnconv.equivalence import swap
from attnconv.heads import AVERAGED, measure_attention, pruned
from attnconv.models import Network, build_model
from attnconv.training import load_run, train
from attnconv.training.data import Dataset, MissingData, find_data, load_data
from attnconv.training.runs import Arrays, Run, find_runs, write
from companion.profile import Configs, Profile, load_profile
from companion.swaps import measure_swaps, untrained

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from companion.claims import Claims

OUTPUTS = (REPOSITORY / "outputs").resolve()
RECORD = OUTPUTS / "evening"
"""The committed record: runs are looked up in it, and never written to it."""
STRIP = RECORD / "strip.npz"
"""The record's few images. They stand in for the data set, so that everyone can draw it again."""
PROFILES = REPOSITORY / "notebooks" / "profiles"


@dataclass(frozen=True)
class Workspace:
    """One reproduction: outputs/<name>/{runs, study, figures, tables}."""

    profile: Profile
    source: str  # of the data: see `attnconv.training.data.load_data`
    folder: Path
    record: Path | None = None  # a second folder, in which runs are looked up only

    @property
    def results(self) -> Path:
        """Where figures and tables go: ``folder``, or what a batch run moves there at the end."""
        return Path(os.environ.get("ATTNCONV_RESULTS") or self.folder)

    def banner(self) -> None:
        """Say at the top of a notebook that its text speaks of the record, where this is not."""
        if not self.profile.recorded:
            print(
                f"Numbers and figures are of the profile {self.profile.name}. "
                "The text speaks of the record."
            )

    @property
    def strip(self) -> bool:
        """Whether the record's few images stand in for the data set."""
        return self.source == str(STRIP)

    @cached_property
    def data(self) -> Dataset:
        """The data set, cut to the profile's size; downloaded where it is not here."""
        return load_data(self.source).first(self.profile.train_images, self.profile.test_images)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What a run keeps of its data: with the strip, what the recorded runs keep."""
        if self.strip:
            return find_runs(RECORD / "runs")[0].config["data"]
        return self.data.about()

    @cached_property
    def recorded(self) -> Workspace:
        """The record's profile and few images. Results go where this workspace's go."""
        profile = load_profile(PROFILES / f"{RECORD.name}.yaml")
        return Workspace(profile, str(STRIP), self.folder, RECORD)

    @property
    def for_study(self) -> Workspace:
        """What notebooks on many short runs work with: this workspace, where its profile has a
        ``study``; else the record's."""
        if self.profile.study:
            return self
        print(f"Shown: short runs from the record ({RECORD.name}).")
        return self.recorded

    def configs(self, name: str, seed: int | None = None, **changes: Any) -> Configs:
        """A preset's configurations for this profile and data; ``changes`` as in
        `Profile.configs`."""
        model, recipe = self.profile.configs(name, seed, **changes)
        first = PRESETS[name].start
        if first:
            recipe = replace(recipe, {"start_from": self.name(first, recipe.seed)})
        return for_images(model, self.data), recipe

    def name(self, name: str, seed: int | None = None, **changes: Any) -> str:
        """The name of a preset's run folder."""
        return run_name(name, *self.configs(name, seed, **changes), self.about)

    def check(self, name: str, seed: int | None = None, **changes: Any) -> Configs:
        """As `configs`. Raises, in a second, what would keep this preset from being trained: a
        `ConfigError` or `DataError`; `MissingData` where the data set is not on this machine."""
        model, recipe = self.configs(name, seed, **changes)
        if self.strip:
            raise MissingData(
                f"{name}, seed {recipe.seed}, is not among the recorded runs. To train it, say"
                f" where {self.profile.data} is: --data PATH (make: DATA=PATH)."
            )
        if any(side > min(model.grid) for side in model.kernels):
            raise ConfigError(f"{name}: kernels = {model.kernels} must fit the grid, {model.grid}.")
        build_model(model)
        return model, recipe

    def run(
        self, name: str, seed: int | None = None, *, kept_in: str = "runs", **changes: Any
    ) -> Run:
        """A preset's finished run: the one that is here or in the record, or else one trained (or
        resumed) now, in the folder ``kept_in``. ``changes`` as in `configs`.

        A profile without a ``study`` trains what it lists in ``runs``. Any other preset, unless
        something is changed, is the record's, which was trained on other images.

        Raises `MissingData` where it would be trained and the data set is not on this machine."""
        folder = self.name(name, seed, **changes)
        found = self.find(folder)
        if found:
            return found
        is_trained = name in self.profile.runs or self.profile.study or any(changes.values())
        if self.record and not is_trained:
            run = self.recorded.run(name, seed)
            print(f"Shown: {run.title}, from the record ({RECORD.name}, {run.path.name}).")
            return run
        model, recipe = self.check(name, seed, **changes)
        preset, start = PRESETS[name], None
        if preset.start:
            here = Workspace(self.profile, self.source, self.folder)  # not another of the record's
            first = self.find(str(recipe.start_from)) or here.run(preset.start, recipe.seed)
            start = first_network(first, model, preset.change)
        return train(
            model, recipe, self.data, self.folder / kept_in / folder, preset=name, start=start
        )

    def find(self, folder: str) -> Run | None:
        """The finished run of that name, here or in the record."""
        places = [self.folder, self.record or self.folder]
        runs = [Run(place / kind / folder) for place in places for kind in ("runs", "study")]
        return next((run for run in runs if run.finished), None)

    def runs(self, kept_in: str = "runs") -> list[Run]:
        """All finished runs on these images, those dropped in from elsewhere too. Of the record,
        all where it is this profile's, else those that are as the profile says."""
        runs = find_runs(self.record / kept_in) if self.record else []
        if not self.profile.recorded:
            runs = [run for run in runs if run.path.name == self.name(run.preset, run.train.seed)]
        found = {run.path.name: run for run in runs + find_runs(self.folder / kept_in)}
        own = self.about.get("digest")  # the whole CIFAR-10 has none
        return [one for one in found.values() if one.config["data"].get("digest") == own]

    def attention(self, run: Run) -> Arrays:
        """What a run's heads attend to, kept or measured now: see `heads.measure_attention`. Of a
        recorded run it is what the record keeps: empty of some."""
        if run.path.is_relative_to(self.folder) and not run.attention:
            images, pixels = self.data.few("test", AVERAGED)
            with FileLock(run.path / ".lock"):  # notebooks run side by side: the first one measures
                if not Run(run.path).attention:
                    network, _ = load_run(run.path)
                    measured = measure_attention(network, images, pixels.numpy())
                    write(run.path / "attention.npz", measured)
            del vars(run)["attention"]  # it is read again
        return run.attention

    def swaps(self, run: Run, images: int | None = None) -> Arrays:
        """What a run loses by convolutions in its layers' place (see `swaps.measure_swaps`), kept
        or measured now, on the profile's ``swap_images`` at most, and ``images``. Of a recorded run
        it is what the record keeps: empty of some."""
        some = self.data.first(None, self.profile.swap_images).first(None, images)
        wanted = len(some.test_labels)
        can_be_measured = run.path.is_relative_to(self.folder) and not self.strip
        if can_be_measured and run.swaps.get("images", 0) < wanted:
            with FileLock(run.path / ".lock"):
                if Run(run.path).swaps.get("images", 0) < wanted:
                    first = None if run.train.start_from else untrained(run)
                    measured = measure_swaps(load_run(run.path)[0], first, some)
                    write(run.path / "swaps.npz", measured)
            del vars(run)["swaps"]  # it is read again
        return run.swaps

    def save_figure(
        self,
        figure: Figure | Sequence[Figure],
        name: str,
        caption: str,
        *runs: Run,
    ) -> None:
        """Write figures/<name>.pdf and .png, or frames as a .gif; the index shows caption and
        runs."""
        from companion.figures import save, save_animation  # training does without seaborn

        file = self.results / "figures" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(figure, Sequence):
            save_animation(figure, f"{file}.gif")
        else:
            save(figure, file)
        # A run may be drawn twice.
        note = {"caption": caption, "runs": [*dict.fromkeys(run.path.name for run in runs)]}
        Path(f"{file}.json").write_text(json.dumps(note) + "\n")

    def save_table(self, frame: pd.DataFrame, name: str) -> None:
        """Write tables/<name>.csv, without the frame's index."""
        write(self.results / "tables" / f"{name}.csv", frame.to_csv(index=False))

    def claims(self, name: str) -> Claims:
        """A list to check claims in, and to save as tables/<name>.json."""
        from companion.claims import Claims  # training does without pandas

        return Claims(self.results / "tables" / f"{name}.json")


def first_network(start: Run, model: ModelConfig, change: str) -> Network:
    """The network of a finished run, as another run goes on from it: without its degenerate heads
    ("prune"); with its first layers swapped for convolutions of ``model.kernels`` ("swap")."""
    network = load_run(start.path)[0].cpu()
    if change == "prune":
        return pruned(network)
    if change == "swap":
        return swap(network, {layer: size for layer, size in enumerate(model.kernels, 1) if size})
    return network


def open_workspace(profile: str = "quick", *, data: str = "", output: str | Path = "") -> Workspace:
    """A workspace for a profile of ``notebooks/profiles`` (or a path to a YAML file). ``data``
    replaces the profile's data, ``output`` the folder for results: see `output_folder`. With
    $ATTNCONV_RETRAIN nothing comes from the record.

    The record is drawn from its strip, and so is all beside it where the data set is not here."""
    file = Path(profile) if profile.endswith(".yaml") else PROFILES / f"{profile}.yaml"
    chosen = load_profile(file)
    source = data or chosen.data
    folder = Path(output).expanduser().resolve() if output else output_folder(chosen, source)
    is_record = chosen.recorded and folder == RECORD
    if folder.is_relative_to(RECORD) and not is_record:
        raise ConfigError(f"Results are not written over {folder}; choose another folder.")
    record = None if os.environ.get("ATTNCONV_RETRAIN") else RECORD
    if record and (is_record or chosen.recorded and not find_data(source)):
        source = str(STRIP)
    return Workspace(chosen, source, folder, record)


def output_folder(profile: Profile, source: str) -> Path:
    """Where results go: outputs/<profile>, beside the record outputs/reproduced/<profile>, trained
    anew outputs/<profile>-retrained; with other data than the profile's, outputs/<profile>-<data>.
    Any copy of CIFAR-10 is CIFAR-10."""
    is_own = source == profile.data or profile.data == "cifar10" == load_data(source).name
    name = profile.name if is_own else f"{profile.name}-{Path(os.path.abspath(source)).name}"
    if os.environ.get("ATTNCONV_RETRAIN"):
        return OUTPUTS / f"{name}-retrained"
    return OUTPUTS / ("reproduced" if is_own and profile.recorded else "") / name
