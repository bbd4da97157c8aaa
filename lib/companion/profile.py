"""Profiles: how large a reproduction is. No torch is imported."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator
from ruamel.yaml import YAML

from attnconv.config import PRESETS, Config, ConfigError, ModelConfig, TrainConfig, replace

SETTLED = ("image_size", "image_channels", "classes", "kind", "start_from", "seed")
"""Values that the images, the preset, or the list of seeds settle."""
Changes = dict[str, Any]
"""Names of `ModelConfig`, or of `TrainConfig`, and their values."""
Configs = tuple[ModelConfig, TrainConfig]


class Profile(Config):
    """How large a reproduction is: a YAML file of ``notebooks/profiles``."""

    name: str
    description: str = ""
    data: str = "embedded"  # ``embedded``, ``cifar10``, or a path (`training.data.load_data`)
    recorded: bool = False  # its runs are committed: results are drawn beside the record
    train_images: PositiveInt | None = None  # only so many of each split, balanced by class
    test_images: PositiveInt | None = None
    swap_images: PositiveInt | None = None  # test images that are answered with layers swapped
    runs: list[str] = Field(  # what the batch run trains
        default=["quadratic", "learned", "learned_content", "resnet18"], min_length=1
    )
    seeds: list[int] = Field(default=[0], min_length=1)
    model: Changes = {}  # to every preset
    train: Changes = {}
    presets: dict[str, dict[Literal["model", "train"], Changes]] = {}  # to one; they come last
    study: dict[str, Any] = {}  # of short runs, as notebooks 04, 10 and 11 read it

    @model_validator(mode="after")
    def _every_run(self) -> Self:
        for preset in {*PRESETS, *self.runs, *self.presets}:
            for seed in self.seeds:
                self.configs(preset, seed)
        return self

    def configs(
        self,
        preset: str,
        seed: int | None = None,
        model_changes: Changes | None = None,
        train_changes: Changes | None = None,
    ) -> Configs:
        """A preset's two configurations, for CIFAR-10's images. Changes given here come last.
        Raises `ConfigError`."""
        if preset not in PRESETS:
            raise ConfigError(f"There is no preset {preset!r}. There are {', '.join(PRESETS)}.")
        base = PRESETS[preset]
        own = self.presets.get(preset, {})
        model = own.get("model", {}) | (model_changes or {})
        train = self.train | own.get("train", {}) | (train_changes or {})
        if base.start:  # the model is that of the run whose weights come first
            others = model.keys() - ({"kernels"} if base.change == "swap" else {})
            if others:
                raise ConfigError(
                    f"{preset}: {min(others)} is that of {base.start}. Change it there."
                )
            model = self.presets.get(base.start, {}).get("model", {}) | model
        model = self.model | model
        for name in SETTLED:
            if name in model | train:
                raise ConfigError(
                    f"{name} cannot be changed: choose other data, another preset, or --seed (in a "
                    "profile: seeds)."
                )
        chosen = self.seeds[0] if seed is None else seed
        try:
            return replace(base.model, model), replace(base.train, train | {"seed": chosen})
        except ConfigError as error:
            raise ConfigError(f"{preset}: {error}") from None


def read_yaml(text: str) -> Any:
    """What a YAML text says, or a `ConfigError` in one line."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:  # a wrong value may raise any kind
        raise ConfigError(f"not valid YAML: {' '.join(str(error).split())}") from None


def load_profile(path: str | Path) -> Profile:
    """Read a profile. Raises `ConfigError` that names the file and the offending value."""
    path = Path(path)
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise ConfigError(
            f"There is no profile {path.stem!r} in {path.parent}, which has {known or 'none'}. They"
            " come with a clone of the repository."
        )
    try:
        said = {**read_yaml(path.read_text("utf-8")), "name": path.stem}
        data = said.get("data")
        if isinstance(data, str) and data not in ("embedded", "cifar10"):  # a path beside it
            said["data"] = str(path.absolute().parent / Path(data).expanduser())
        return Profile(**said)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None
