"""Profiles: how large a reproduction is. No torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt, Strict, model_validator

from attnconv.config import (
    PRESETS,
    Config,
    ConfigError,
    ModelConfig,
    TrainConfig,
    replace,
    shown,
)
from companion._old import read_yaml


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigError(f"{twice[0]!r} stands twice; name it once.")
    return values


Count, AsTuple = PositiveInt, Strict(False)
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Seeds = Annotated[tuple[Seed, ...], AsTuple, Field(min_length=1), AfterValidator(_once)]
Names = Annotated[tuple[str, ...], AsTuple, Field(min_length=1), AfterValidator(_once)]

_SETTLED = {  # values that no profile or command changes, and what to do instead
    **dict.fromkeys(
        ("image_size", "image_channels", "classes"), "it is that of the images; choose other data"
    ),
    **dict.fromkeys(
        ("kind", "start_from"), f"it is the preset's; choose another preset ({', '.join(PRESETS)})"
    ),
    "seed": "a profile has seeds: [...] beside train:, a command --seed",
}


class Study(Config):
    """A grid of short runs, beside the profile's own (notebooks 10 and 11)."""

    seeds: Seeds = (0,)
    model: dict[
        str, Any
    ] = {}  # changes to the quadratic preset's `ModelConfig`, after the profile's
    train: dict[str, Any] = {}  # changes to its `TrainConfig`
    longer: Study | None = (
        None  # of a few longer runs there: their seeds, and changes that come after the above
    )
    starts: dict[
        str, Study
    ] = {}  # of one network, trained from several starts: changes that come after the above
    images: Annotated[
        tuple[Count, ...], AsTuple, AfterValidator(_once)
    ] = ()  # numbers of training images to try
    few: Study | None = (
        None  # several starts on few images and on many (notebook 11): changes as in ``longer``
    )
    content: Study | None = (
        None  # of ``few``: the same with the learned encoding and content, after its changes
    )


class Profile(Config):
    """How large a reproduction is: a YAML file of ``notebooks/profiles``, checked when it is
    read.
    """

    name: str
    description: str = ""
    data: str = "embedded"  # ``embedded``, ``cifar10``, or a path (`training.data.load_data`)
    # its runs are in the repository: they stand in for training, with any copy of the data
    recorded: bool = False
    train_images: Count | None = (
        None  # use only that many training images, balanced by class; None uses all
    )
    test_images: Count | None = None
    swap_images: Count | None = (
        None  # test images that are answered with layers swapped (notebook 07)
    )
    runs: Names = (
        "quadratic",
        "learned",
        "learned_content",
        "resnet18",
    )  # what the batch run trains, in this order
    seeds: Seeds = (0,)
    model: dict[str, Any] = {}  # changes to every preset's `ModelConfig`
    train: dict[str, Any] = {}  # changes to every preset's `TrainConfig`
    presets: dict[
        str, dict[Literal["model", "train"], dict[str, Any]]
    ] = {}  # changes to one preset; they come last
    study: Study = Study()  # the many short runs of notebooks 05, 06, 10 and 11

    @model_validator(mode="after")
    def _every_run(self) -> Profile:
        for name in {*self.runs, *self.presets, *PRESETS}:
            self.configs(name)
        self._every_part("quadratic", self.study, {}, {})
        return self

    def _every_part(
        self, preset: str, study: Study, model: dict[str, Any], train: dict[str, Any]
    ) -> None:
        """Refuse a study, or a part of it, that gives no configuration: each part's changes come
        after the above.
        """
        model, train = model | study.model, train | study.train
        self.configs(preset, None, model, train)
        for part in (study.longer, study.few, *study.starts.values()):
            if part:
                self._every_part(preset, part, model, train)
        if study.content:
            self._every_part("learned_content", study.content, model, train)

    def configs(
        self,
        preset: str,
        seed: int | None = None,
        model_changes: dict | None = None,
        train_changes: dict | None = None,
    ) -> tuple[ModelConfig, TrainConfig]:
        """A preset's two configurations; changes given here come last. Images are CIFAR-10's
        until `for_images`.
        """
        if preset not in PRESETS:
            raise ConfigError(
                f"There is no preset {shown(preset)}. There are {', '.join(PRESETS)}."
            )
        base, own = PRESETS[preset], self.presets.get(preset, {})
        model = {**own.get("model", {}), **(model_changes or {})}
        if start := base.start:  # then it has that run's model, but for kernels
            if other := [name for name in model if name != "kernels"]:
                raise ConfigError(
                    f"{preset}: {other[0]} cannot be changed, it is that of {start!r}. Change it there."
                )
            model = {**self.presets.get(start, {}).get("model", {}), **model}
        model = {**self.model, **model}
        train = {**self.train, **own.get("train", {}), **(train_changes or {})}
        for name, value in {**model, **train}.items():
            if name in _SETTLED:
                raise ConfigError(f"{name} = {shown(value)} cannot be set here: {_SETTLED[name]}.")
        seed = self.seeds[0] if seed is None else seed
        return replace(base.model, model), replace(base.train, {**train, "seed": seed})


def load_profile(path: str | Path) -> Profile:
    """Read a profile, or raise `ConfigError` that names the file and the offending value."""
    path = Path(path)
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        remedy = (
            ""
            if path.parent.is_dir()
            else " They come with a clone of the repository: run the command in one."
        )
        raise ConfigError(
            f"There is no profile {path.stem!r} in {path.parent}. Profiles there: {known}.{remedy}"
        )
    try:
        return Profile(**{**read_yaml(path.read_text(encoding="utf-8")), "name": path.stem})
    except (
        OSError,
        ValueError,
        TypeError,
    ) as error:  # TypeError: no 'name: value' lines, or a name that is no text
        raise ConfigError(f"{path}: {error}") from None
