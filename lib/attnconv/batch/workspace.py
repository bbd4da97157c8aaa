"""What a notebook works with: a profile, a data set, and the output folder of one reproduction.

work = open_workspace("quick")
run = work.run("quadratic")        # trains it if no finished run is there
work.save_figure(figure, "04-centres", "Centres of all heads.", run)
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnconv.analysis.claims import Claims
from attnconv.config import ConfigError, ModelConfig, Profile, TrainConfig, for_images, load_profile, replace
from attnconv.training.runs import Run, find_runs, identity, writing

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.animation import Animation
    from matplotlib.figure import Figure

    from attnconv.training.data import Dataset

REPOSITORY = Path(__file__).resolve().parents[3]
PROFILES = REPOSITORY / "notebooks" / "profiles"
NAMED_DATA = ("embedded", "cifar10", "fashion-mnist")
"""Data sets known by name; anything else is a path."""
_described = itertools.count(1)  # figures, in the order in which the index shows them


@dataclass(frozen=True)
class Workspace:
    """One reproduction: outputs/<name>/{runs, figures, tables}."""

    profile: Profile
    source: str
    """Where the data comes from (see `attnconv.training.data.load_data`)."""
    folder: Path

    @cached_property
    def data(self) -> Dataset:
        """The data set, cut to the profile's size; loaded on first use, and downloaded where it is not here."""
        from attnconv.training.data import load_data

        if self.strip:
            return load_data(self.strip)
        return load_data(self.source).first(self.profile.train_images, self.profile.test_images)

    @cached_property
    def strip(self) -> Path | None:
        """Images that are kept with recorded runs, an npz file, where they must stand in for a missing data set."""
        from attnconv.training.data import MissingData, find_data

        file = self.folder / "strip.npz"
        if file.is_file():
            try:
                find_data(self.source)
            except MissingData:
                return file
        return None

    def configs(self, name: str, seed: int | None = None, **changes: Any) -> tuple[ModelConfig, TrainConfig]:
        """A preset's configurations for this profile and data; ``changes`` as in `Profile.configs`."""
        model, train = self.profile.configs(name, seed, **changes)
        data = self.data
        return for_images(model, data.image_size, data.image_channels, len(data.classes)), train

    def run(
        self,
        name: str,
        seed: int | None = None,
        *,
        model_changes: dict[str, Any] | None = None,
        train_changes: dict[str, Any] | None = None,
        fresh: bool = False,
        kept_in: str = "runs",
    ) -> Run:
        """A preset's finished run: the one that is there, or else one trained (or resumed) now.

        Every configuration has a folder of its own, so a run is never overwritten by another. Where the profile says
        ``recorded``, a run that was kept stands in for training, from whichever copy of the data it was made.
        ``fresh`` asks for a run of this very data instead. ``kept_in``: the folder of run folders.
        """
        from attnconv.training import train
        from attnconv.training.data import MissingData

        changes = dict(model_changes=model_changes, train_changes=train_changes)
        model, recipe = self.configs(name, seed, **changes)
        if self.profile.recorded and not fresh:
            if kept := self._kept(name, model, recipe, kept_in, changed=any(changes.values())):
                return kept
        if self.strip:
            raise MissingData(
                f"{name}, seed {recipe.seed}, is not among the recorded runs in {self.folder / kept_in}. To train it, "
                f"say where the data set {self.source} is: --data PATH (make: DATA=PATH)."
            )
        start = self.run(recipe.start_from, recipe.seed, fresh=fresh) if recipe.start_from else None
        digits = identity(model, recipe, self.data.key, start and start.config["hash"])
        folder = self.folder / kept_in / f"{name}-seed{recipe.seed}-{digits}"
        return train(model, recipe, self.data, folder, preset=name, start=start)

    def _kept(self, name: str, model: ModelConfig, recipe: TrainConfig, kept_in: str, *, changed: bool) -> Run | None:
        """The recorded run of these configurations. Unless they were ``changed``, one of another recipe will do."""
        free = {"heads": 1} if recipe.start_from else {}  # pruning leaves each run its own
        alike = [run for run in find_runs(self.folder / kept_in) if (run.preset, run.train.seed) == (name, recipe.seed)]
        exact = [r for r in alike if r.train == recipe and replace(r.model, free) == replace(model, free)]
        if exact or changed:
            return next(iter(exact), None)
        return max(alike, key=lambda run: run.train.epochs, default=None)

    def attention(self, run: Run) -> dict[str, np.ndarray]:
        """What a run's heads attend to (see `heads.measure_attention`): as kept in its folder, or measured now."""
        file = run.path / "attention.npz"
        if not file.is_file():
            from attnconv.analysis.heads import measure_attention
            from attnconv.training.checkpoints import load_run

            model, _ = load_run(run.path)
            with writing(file) as temporary:
                np.savez_compressed(temporary, **measure_attention(model, self.data))
        return Run(run.path).attention

    def swaps(self, run: Run) -> dict[str, np.ndarray]:
        """What a run loses by convolutions in place of its layers (`swaps.measure_swaps`): as kept, or measured now."""
        file = run.path / "swaps.npz"
        if not file.is_file():
            from attnconv.analysis.swaps import measure_swaps, untrained
            from attnconv.training.checkpoints import load_run

            model, _ = load_run(run.path)
            with writing(file) as temporary:
                np.savez_compressed(temporary, **measure_swaps(model, untrained(run), self.data))
        return Run(run.path).swaps

    def runs(self) -> list[Run]:
        """All finished runs in this workspace, those dropped in from elsewhere too."""
        return find_runs(self.folder / "runs")

    def save_figure(
        self, figure: Figure | Animation, name: str, caption: str, *runs: Run, frames_per_second: float = 10
    ) -> None:
        """Write figures/<name>.pdf and .png, or an animation as .gif; the index page shows caption and runs."""
        from matplotlib.animation import Animation

        from attnconv.figures import save, save_animation

        moving = isinstance(figure, Animation)
        for suffix in (".gif",) if moving else (".pdf", ".png"):
            with writing(self.folder / "figures" / f"{name}{suffix}") as temporary:
                if moving:
                    save_animation(figure, temporary, frames_per_second)
                else:
                    save(figure, temporary)
        note = {"caption": caption, "runs": [run.path.name for run in runs], "place": next(_described)}
        with writing(self.folder / "figures" / f"{name}.json") as temporary:
            temporary.write_text(json.dumps(note) + "\n")

    def save_table(self, frame: pd.DataFrame, name: str) -> None:
        """Write tables/<name>.md, .csv and .tex, without the frame's index. The LaTeX wants the package booktabs."""
        known = frame.astype(object).where(frame.notna(), None)  # what is missing is a dash, not "nan"
        forms = {
            ".md": known.to_markdown(index=False, floatfmt=".8g", missingval="—") + "\n",
            ".csv": frame.to_csv(index=False),
            ".tex": frame.to_latex(index=False, float_format="%.8g", na_rep="---", escape=True),
        }
        for suffix, text in forms.items():
            with writing(self.folder / "tables" / f"{name}{suffix}") as temporary:
                temporary.write_text(text)

    def claims(self, name: str) -> Claims:
        """A list to check claims in, and to save as tables/<name>.json."""
        return Claims(self.folder / "tables" / f"{name}.json")


def open_workspace(profile: str = "quick", *, data: str | None = None, output: str | Path | None = None) -> Workspace:
    """A workspace for a profile of ``notebooks/profiles`` (or a path to a YAML file).

    ``data`` replaces the profile's data; ``output`` the folder ``outputs/<profile>`` of the repository.
    """
    path = Path(profile) if str(profile).endswith(".yaml") else PROFILES / f"{profile}.yaml"
    chosen = load_profile(path)
    return Workspace(chosen, data or chosen.data, output_folder(chosen, data, output))


def output_folder(profile: Profile, data: str | None = None, output: str | Path | None = None) -> Path:
    """Where a profile's results go: outputs/<profile>, or outputs/<profile>-<data> for another data set than its own.

    A path to a copy of CIFAR-10 is the profile's own if that is. A few digits tell folders of one name apart.
    """
    if output:
        return absolute(output)
    own = not data or data == profile.data
    if not own and profile.data == "cifar10" and data not in NAMED_DATA:
        from attnconv.training.data import may_be_cifar10  # imports torch, which takes a second

        own = may_be_cifar10(data)
    if own:
        return REPOSITORY / "outputs" / profile.name
    path = absolute(data)
    word = "".join(c if c.isalnum() else "-" for c in path.name.lower()).strip("-")
    digits = "" if data in NAMED_DATA else "-" + hashlib.sha256(os.fsencode(path)).hexdigest()[:4]
    return REPOSITORY / "outputs" / f"{profile.name}-{word or 'data'}{digits}"


def absolute(path: str | Path) -> Path:
    """A path from the root, links and ~ resolved; `ConfigError` where that cannot be."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, no such user
        raise ConfigError(f"{path} cannot be resolved ({error}). Name another.") from error
