"""What a notebook works with: a profile, a data set, and the output folder of one reproduction.

work = open_workspace("quick")
run = work.run("quadratic")        # trains it if no finished run is there
work.save_figure(figure, "04-centres", "Centres of all heads.", run)
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnconv.config import ModelConfig, Profile, TrainConfig, for_images, load_profile
from attnconv.runs import Run, find_runs, identity, writing
from attnconv.sources import MissingData, find_data

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from attnconv.data import Dataset

REPOSITORY = Path(__file__).resolve().parents[2]
PROFILES = REPOSITORY / "notebooks" / "profiles"
RECORD = REPOSITORY / "outputs" / "paper"
"""What was made at the paper's scale."""
_described = itertools.count(1)


@dataclass(frozen=True)
class Workspace:
    """One reproduction: outputs/<name>/{runs, figures, tables}."""

    profile: Profile
    source: str
    """Where the data comes from (see `attnconv.data.load_data`)."""
    folder: Path

    @cached_property
    def data(self) -> Dataset:
        """The data set, cut to the profile's size; loaded on first use."""
        from attnconv.data import load_data

        return load_data(self.source).first(self.profile.train_images, self.profile.test_images)

    @property
    def has_data(self) -> bool:
        """Whether the data set is on this machine; if not, asking for ``data`` downloads it."""
        try:
            return "data" in vars(self) or bool(find_data(self.source))
        except MissingData:
            return False

    def configs(self, name: str, seed: int | None = None, **changes: Any) -> tuple[ModelConfig, TrainConfig]:
        """A preset's configurations for this profile and data; ``changes`` as in `Profile.configs`."""
        if not self.has_data and not any(changes.values()) and (record := self.record(name, seed)):
            return record.model, record.train
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
    ) -> Run:
        """A preset's finished run: the one that is there, or the recorded one, or else one trained (or resumed) now.

        Every configuration has a folder of its own, so a run is never overwritten by another. A record (a run brought
        here from another machine) stands in for training whatever data it was made from, and says so; not for changed
        configurations, nor where ``fresh`` asks for a run of this very data and recipe.
        """
        from attnconv.training import train

        changes = dict(model_changes=model_changes, train_changes=train_changes)
        record = None if fresh or any(changes.values()) else self.record(name, seed)
        own = [run for run in self.runs() if run.preset == name and not run.recorded] if record else []
        if record and not (own and self.has_data):
            return _told(record)
        model, recipe = self.configs(name, seed, **changes)
        start = self.run(recipe.start_from, recipe.seed, fresh=fresh) if recipe.start_from else None
        digits = identity(model, recipe, self.data.key, start and start.config["hash"])
        folder = self.folder / "runs" / f"{name}-seed{recipe.seed}-{digits}"
        if record and not Run(folder).finished:
            return _told(record)
        return train(model, recipe, self.data, folder, preset=name, start=start)

    def record(self, name: str, seed: int | None = None) -> Run | None:
        """The recorded run of a preset and seed, if there is one: of several, one with the profile's own recipe."""
        recipe = self.profile.configs(name, seed)[1]
        found = [run for run in self.runs() if run.recorded and (run.preset, run.train.seed) == (name, recipe.seed)]
        return max(found, key=lambda run: (run.train == recipe, run.train.epochs, run.path.name), default=None)

    def attention(self, run: Run) -> dict[str, np.ndarray]:
        """What a run's heads attend to (see `record.measure_attention`): as kept in its folder, or measured now."""
        if not (run.path / "attention.npz").is_file():
            from attnconv.record import save_attention

            save_attention(run, self.data)
        return Run(run.path).attention

    def runs(self) -> list[Run]:
        """All finished runs in this workspace, those dropped in from elsewhere too."""
        return find_runs(self.folder / "runs")

    def save_figure(self, figure: Figure, name: str, caption: str, *runs: Run) -> None:
        """Write figures/<name>.pdf and .png; the index page shows the caption and the runs that the figure is of."""
        from attnconv.figures import save

        save(figure, self.folder / "figures" / name)
        self.describe_figure(name, caption, *runs)

    def describe_figure(self, name: str, caption: str, *runs: Run) -> None:
        """Write figures/<name>.json for the index page: a caption, the figure's runs, its place in turn."""
        note = {"caption": caption, "runs": [run.path.name for run in runs], "place": next(_described)}
        with writing(self.folder / "figures" / f"{name}.json") as temporary:
            temporary.write_text(json.dumps(note) + "\n")

    def save_table(self, table: dict[str, str], name: str) -> None:
        """Write tables/<name>.md, .csv and .tex from a table's ``markdown``, ``csv`` and ``latex`` forms."""
        for form, suffix in (("markdown", ".md"), ("csv", ".csv"), ("latex", ".tex")):
            with writing(self.folder / "tables" / f"{name}{suffix}") as temporary:
                temporary.write_text(table[form])

    def claims(self, table: str) -> Claims:
        """A list to check claims about trained models in, and to save as tables/<table>.json."""
        return Claims(self, table)

    def save_claims(self, claims: list[Claim], name: str) -> None:
        """Write tables/<name>.json: each claim, whether it holds here, and the evidence."""
        with writing(self.folder / "tables" / f"{name}.json") as temporary:
            temporary.write_text(json.dumps([vars(claim) for claim in claims], indent=1) + "\n")


def _told(record: Run) -> Run:
    """The run, after a word about what it is."""
    where, data = record.config["environment"]["device"], record.config["data"]
    recipe = f"{record.train.epochs} epochs, batch {record.train.batch_size}"
    print(f"{record.title}: the recorded run {record.path.name} ({recipe}, {data['name']}, {data['form']}; {where})")
    return record


def open_workspace(profile: str = "quick", *, data: str | None = None, output: str | Path | None = None) -> Workspace:
    """A workspace for a profile of ``notebooks/profiles`` (or a path to a YAML file).

    ``data`` replaces the profile's data; ``output`` the folder ``outputs/<profile>`` of the repository.
    """
    path = Path(profile) if str(profile).endswith(".yaml") else PROFILES / f"{profile}.yaml"
    chosen = load_profile(path)
    return Workspace(chosen, data or chosen.data, output_folder(chosen, data, output))


def output_folder(profile: Profile, data: str | None = None, output: str | Path | None = None) -> Path:
    """Where a profile's results go: outputs/<profile>, or outputs/<profile>-<data> when other data is asked for."""
    if output:
        return Path(output).expanduser().resolve()
    if not data or data == profile.data or profile.data != "embedded":
        return REPOSITORY / "outputs" / profile.name
    word = "".join(c if c.isalnum() else "-" for c in Path(data).resolve().name.lower()).strip("-")
    return REPOSITORY / "outputs" / f"{profile.name}-{word or 'data'}"


VERDICTS = {True: "holds", False: "does not hold", None: "is undecided"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, checked here. A notebook's cell that ends in one shows it."""

    text: str
    holds: bool | None
    """None: the noise is too large to tell."""
    evidence: str
    """The numbers that decided, in words."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", None if self.holds is None else bool(self.holds))  # NumPy's truth is not JSON

    @property
    def verdict(self) -> str:
        return VERDICTS[self.holds]

    def _repr_markdown_(self) -> str:
        return f"> *{self.text}* — **{self.verdict} here**: {self.evidence}"

    def __repr__(self) -> str:
        return f"{self.text}: {self.verdict} here ({self.evidence})"


class Claims(list[Claim]):
    """The claims of one notebook about trained models; see `Workspace.claims`."""

    def __init__(self, work: Workspace, table: str):
        super().__init__()
        self.work, self.table = work, table

    def check(self, text: str, holds: bool | None, evidence: str) -> Claim:
        """Add a claim, and return it to be shown.

        Where it does not hold, the evidence goes on with what the record at the paper's scale says of the same claim.
        """
        if not holds and self.work.profile.name != RECORD.name:
            file = RECORD / "tables" / f"{self.table}.json"
            saved = json.loads(file.read_text()) if file.is_file() else []
            there = [Claim(**claim) for claim in saved if claim["text"] == text]
            said = f"{there[0].verdict}, {there[0].evidence}" if there else "not recorded yet"
            evidence = f"{evidence} (at the paper's scale: {said})"
        self.append(Claim(text, holds, evidence))
        return self[-1]

    def save(self) -> None:
        self.work.save_claims(self, self.table)
