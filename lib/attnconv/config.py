"""Configurations: what a model is, how it is trained, and the paper's runs as presets.

Everything here is plain data: frozen pydantic models that refuse wrong values when they are made, so that a mistake
costs a second and not a night. No torch is imported: the batch runner checks a profile with this module before
anything runs.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator


class ConfigError(ValueError):
    """A configuration value that cannot work; the message names the value, the limit and the remedy."""


class Config(BaseModel):
    """What all configurations share: strict types, no unknown names, no change once made, `ConfigError` in one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explained(type(self), error, values) from None


def _explained(cls: type[Config], error: ValidationError, values: dict[str, Any]) -> ConfigError:
    """The first of pydantic's errors in this library's words."""
    errors = error.errors(include_url=False)
    first, place = errors[0], [str(part) for part in errors[0]["loc"]]
    if isinstance(own := first.get("ctx", {}).get("error"), ConfigError):
        return own  # of a validator below
    name, value = place[0], values.get(place[0])
    if first["type"] == "extra_forbidden":
        return ConfigError(f"{cls.__name__} has no value named {name!r}.{_nearest(name, cls.model_fields)}")
    if isinstance(value, dict):  # the entry, not all of them
        name, value = ".".join(place).removesuffix(".[key]"), first["input"]
    # A value of several possible types has an error for each.
    limits = dict.fromkeys(e["msg"].removeprefix("Input should ") for e in errors if str(e["loc"][0]) == place[0])
    text = f"{cls.__name__}.{name} = {shown(value)} must {', or '.join(limits)}."
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    quoted = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", value)
    return ConfigError(f"{text} Write it without quotes." if quoted else text)


# What pydantic writes, and what a reader of ours understands better; in this order.
_WORDS = {
    "must Field required": "must be given",
    "must Tuple should": "must",
    "a valid integer": "a whole number",
    "a valid tuple": "a list",
    "a valid dictionary": "'name: value' lines",
    "a valid": "a",
    " after validation": "",
}


def shown(value: Any) -> str:
    """A value as a message shows it: never longer than a line."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."


def _nearest(name: Any, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" Known names: {', '.join(known)}."


class _Loader(yaml.SafeLoader):
    """Numbers as in YAML 1.2. No aliases: they may never end. No name twice: one value would be forgotten."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases are not understood, write the value out", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [(name.tag, str(name.value)) for name, _ in node.value]
        if len({*names}) < len(names):
            raise yaml.MarkedYAMLError(problem="a name stands twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+$"), [*"+-0123456789"])
for _kind in (int, float):  # PyYAML alone takes 1e-3 for a text, 1:30 for 90 and 010 for 8
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind.__name__}", lambda self, node, kind=_kind: kind(node.value))


def read_yaml(text: str, place: object) -> Any:
    """What a YAML text says, or a `ConfigError` of one line that names the place it came from."""
    try:
        value = yaml.load(text, _Loader)
        json.dumps(value)  # no dates, sets or bytes: what was given is recorded as JSON
        return value
    except Exception as error:  # PyYAML raises many kinds
        raise ConfigError(f"{place} is not valid YAML: {' '.join(str(error).split())}. Correct it there.") from error


Size = Annotated[int, Field(ge=1, le=2**14)]
"""Of a layer or an image: larger ones ask for more memory than there is."""
Heads = Annotated[int, Field(ge=1, le=1000)]
Kernel = Annotated[int, Field(ge=0, le=2**10)]
HeadsLeft = Annotated[int, Field(ge=0, le=1000)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
AsTuple = Strict(False)
"""For tuples: YAML and JSON give lists."""
Seeds = Annotated[tuple[Seed, ...], AsTuple, Field(min_length=1)]
Names = Annotated[tuple[str, ...], AsTuple, Field(min_length=1)]


class ModelConfig(Config):
    """A network of the paper (section 4). The defaults are the paper's quadratic model on CIFAR-10."""

    kind: Literal["quadratic", "learned", "learned_content", "resnet"] = "quadratic"
    """Which encoding its attention uses; ``resnet`` is the convolutional baseline."""
    covariance: Literal["isotropic", "full"] = "isotropic"
    """Quadratic encoding only: one spread per head, or a full 2x2 matrix (paper's appendix)."""
    image_size: Annotated[tuple[Size, Size], AsTuple] = (32, 32)  # height and width of the input, in pixels
    image_channels: Size = 3
    classes: int = Field(10, ge=2, le=10**6)
    downsampling: Size = 2  # side of the invertible space-to-depth patches: 32x32x3 becomes 16x16x12 at 2
    layers: int = Field(6, ge=1, le=1000)
    heads: Heads | Annotated[tuple[HeadsLeft, ...], AsTuple] = 9
    """Heads per layer: one number, or one per layer (after pruning)."""
    kernels: Annotated[tuple[Kernel, ...], AsTuple] = ()
    """Sides of the convolutions in the place of the first layers' attention (see `attnconv.equivalence.swap`); 0 where
    attention stays, as it does in the layers for which none is given."""
    hidden: int = Field(400, ge=1, le=2**12)  # wider models take tens of gigabytes
    mlp: Size = 512
    key_size: Annotated[int, Field(ge=2, le=2**14)] | None = None
    """Learned encoding with content: size of a head's queries and keys; None is ``hidden``, as in the paper."""
    dropout: Share = 0.1  # after each sub-layer's projection
    attention_dropout: Share = 0.0
    """Of the probabilities, one mask for the whole batch; 0.1 in the paper and its presets. A mask breaks the product
    of rows and columns, so training then takes the dense form. Our small profiles go without it."""
    centre_std: NotNegative = 2.0
    """Standard deviation of where the centres start, per coordinate, in pixels of the down-sampled grid."""
    centre_start: Literal["gaussian", "disc"] = "gaussian"
    """Centres are drawn from N(0, centre_std), as in the paper, or laid evenly over a disc: no two start alike."""
    spread_start: Positive = 1.0  # spreads (entries of Sigma^{-1/2}) start at this value + N(0, 0.01)
    resnet_width: Annotated[int, Field(ge=1, le=2**11)] = 64
    """ResNet only: channels of the first stage; the last has eight times as many."""

    @model_validator(mode="after")
    def _together(self) -> ModelConfig:
        if isinstance(self.heads, tuple) and len(self.heads) != self.layers:
            raise ConfigError(f"ModelConfig.heads = {shown(self.heads)} must be one number per layer ({self.layers}).")
        if len(self.kernels) > (0 if self.kind == "resnet" else self.layers):
            raise ConfigError(f"ModelConfig.kernels = {shown(self.kernels)} must be one per attention layer at most.")
        if any(kernel and kernel % 2 == 0 for kernel in self.kernels):
            raise ConfigError(f"ModelConfig.kernels = {shown(self.kernels)} must be odd, or 0 where attention stays.")
        if self.kind == "learned_content" and (self.key_size or self.hidden) % 2:
            name = "key_size" if self.key_size else "hidden"
            raise ConfigError(f"ModelConfig.{name} = {getattr(self, name)} must be even: half rows, half columns.")
        if self.kind != "quadratic" and self.covariance != "isotropic":
            raise ConfigError(f"covariance = {self.covariance!r} exists for kind 'quadratic' only, not {self.kind!r}.")
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid that attention works on, in (down-sampled) pixels."""
        if any(size % self.downsampling for size in self.image_size):
            raise ConfigError(
                f"ModelConfig.downsampling = {self.downsampling} does not divide the image size "
                f"{self.image_size[0]}x{self.image_size[1]}; choose a divisor of {math.gcd(*self.image_size)}."
            )
        return self.image_size[0] // self.downsampling, self.image_size[1] // self.downsampling

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        heads = self.heads if isinstance(self.heads, tuple) else (self.heads,) * self.layers
        return tuple(0 if kernel else h for h, kernel in zip(heads, self.kernel_per_layer, strict=True))

    @property
    def kernel_per_layer(self) -> tuple[int, ...]:
        """Side of the convolution in each layer's place, 0 where attention is."""
        return (*self.kernels, *(0,) * (self.layers - len(self.kernels)))


class TrainConfig(Config):
    """A training recipe. The defaults are the paper's (section 4)."""

    epochs: Count = 300
    batch_size: Count = 100
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    """``muon``: Muon for the matrices (and convolution kernels) between input and classifier, AdamW for the rest."""
    lr: Positive = 0.1  # peak learning rate, after the warm-up; with Muon, that of the matrices
    adamw_lr: Positive = 0.003  # with Muon: peak learning rate of what AdamW trains
    position_lr: Positive | None = None  # learning rate of centres and spreads; None is ``lr``, the paper's way
    encoding_lr: Positive | None = None
    """Learning rate of a learned encoding's vectors, which then are neither decayed nor clipped; None, the paper's way:
    that of the other parameters."""
    momentum: Share = 0.9  # of SGD and Muon, or AdamW's first beta
    beta2: Share = 0.99  # AdamW's second beta
    weight_decay: NotNegative = 1e-4  # never on centres and spreads; with AdamW and Muon on matrices only
    label_smoothing: Share = 0.0  # share of each label that is spread evenly over all classes
    warmup: Share = 0.05  # share of all steps over which the learning rate rises linearly; a cosine to zero follows
    clip: Positive | None = None  # largest gradient norm (centres and spreads aside); None does not clip
    augment: bool = True  # pad by 4 and crop, flip left-right: each image its own draw
    validation: int = Field(0, ge=0, le=10**9)
    """Training images to hold out, balanced by class; their accuracy is reported beside the test accuracy."""
    seed: Seed = 0
    start_from: str | None = None
    """Preset whose finished run (same seed) gives the first weights."""
    prune: bool = True  # whether the degenerate heads of that run are dropped first
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """``auto``: bfloat16 autocast where the device has it built in (`attention.precision`), float32 elsewhere."""
    compile: bool | Literal["reduce-overhead", "max-autotune"] | None = None
    """``torch.compile`` the network, in that mode if one is named (both use CUDA graphs); None: on CUDA, and where
    it pays on a CPU (`attnconv.training.machine.to_be_compiled`)."""
    checkpoint_seconds: NotNegative = 60.0
    """A checkpoint is written after an epoch, and inside it when this much time has passed since the last one."""


AnyConfig = TypeVar("AnyConfig", bound=Config)


def from_dict(cls: type[AnyConfig], values: dict[str, Any]) -> AnyConfig:
    """Build a configuration from a mapping; an unknown name is an error that suggests the nearest known one."""
    if not isinstance(values, dict):
        raise ConfigError(f"{cls.__name__}: {shown(values)} must hold 'name: value' lines.")
    return cls(**{str(name): value for name, value in values.items()})


def replace(config: AnyConfig, changes: dict[str, Any]) -> AnyConfig:
    """The same configuration with some values changed, checked as if it were new."""
    return from_dict(type(config), {**dict(config), **changes})


def to_dict(config: Config) -> dict[str, Any]:
    """The inverse of `from_dict`, ready for JSON (tuples become lists)."""
    return config.model_dump(mode="json")


_LATER = {"encoding_lr": None, "kernels": [], "prune": True}
"""Values that came when runs had been recorded, and their defaults, which do not count: those runs keep their names."""


def config_hash(*configs: Any) -> str:
    """Eight hexadecimal digits that name these configurations (or plain values)."""
    plain = [to_dict(c) if isinstance(c, Config) else c for c in configs]
    for place, values in enumerate(plain):
        if isinstance(values, dict):
            plain[place] = {n: value for n, value in values.items() if n not in _LATER or value != _LATER[n]}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Preset:
    """One run of the paper: a model, a recipe and a title for figures and tables."""

    title: str
    model: ModelConfig
    train: TrainConfig = TrainConfig()


_QUADRATIC = ModelConfig(kind="quadratic", attention_dropout=0.1)
_FULL = replace(_QUADRATIC, {"covariance": "full"})
_FINE_TUNE = TrainConfig(epochs=100, lr=0.01, start_from="quadratic_full")
_LONGER = TrainConfig(epochs=15, lr=0.01, start_from="quadratic", prune=False)

PRESETS: dict[str, Preset] = {
    "resnet18": Preset("ResNet18", ModelConfig(kind="resnet")),
    "quadratic": Preset("SA quadratic", _QUADRATIC),
    "quadratic_full": Preset("SA quadratic, full covariance", _FULL),
    "quadratic_pruned": Preset("SA quadratic, full covariance, pruned", _FULL, _FINE_TUNE),
    "quadratic_16": Preset("SA quadratic, 16 heads", replace(_QUADRATIC, {"heads": 16})),
    "learned": Preset("SA learned", ModelConfig(kind="learned", attention_dropout=0.1)),
    "learned_content": Preset("SA learned + content", ModelConfig(kind="learned_content", attention_dropout=0.1)),
    # What the paper does not have: controls that go on from its runs, and the network whose first layers were swapped.
    "quadratic_full_longer": Preset(
        "SA quadratic, full covariance, trained on", _FULL, replace(_FINE_TUNE, {"prune": False})
    ),
    "quadratic_longer": Preset("SA quadratic, trained on", _QUADRATIC, _LONGER),
    "hybrid": Preset("SA quadratic, first layers swapped, trained on", replace(_QUADRATIC, {"kernels": [3]}), _LONGER),
}
"""The paper's runs (section 4 and appendix) at its size and recipe, then ours. The order is that of our tables."""


def preset(name: str) -> Preset:
    """The preset of that name; an unknown name is an error that suggests the nearest one."""
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {shown(name)}.{_nearest(name, PRESETS)}")
    return PRESETS[name]


_SETTLED = {
    **dict.fromkeys(("image_size", "image_channels", "classes"), "it is that of the images; choose other data"),
    **dict.fromkeys(("kind", "start_from"), f"it is the preset's; choose another preset ({', '.join(PRESETS)})"),
}
"""Values that no profile or command changes, and what to do instead."""

WithWords = BeforeValidator(lambda value: {str(n): v for n, v in value.items()} if isinstance(value, dict) else value)
"""YAML's names can be numbers or nothing."""


class Study(Config):
    """A grid of short runs, beside the profile's own (notebook 10)."""

    seeds: Seeds = (0,)
    model: dict[str, Any] = {}  # changes to the quadratic preset's `ModelConfig`, after the profile's
    train: dict[str, Any] = {}  # changes to its `TrainConfig`
    longer: Annotated[Study, WithWords] | None = None
    """Of a few longer runs in the same notebook: their seeds, and changes that come after the above."""


class Profile(Config):
    """How large a reproduction is: a YAML file of ``notebooks/profiles``, checked when it is read."""

    name: str
    description: str = ""
    data: str = "embedded"  # ``embedded``, ``cifar10``, ``fashion-mnist``, or a path (`training.data.load_data`)
    recorded: bool = False
    """Its runs are kept in the repository and stand in for training, with any copy of the data or with none."""
    train_images: Count | None = None  # use only that many training images, balanced by class; None uses all
    test_images: Count | None = None
    runs: Names = ("quadratic", "learned", "learned_content", "resnet18")  # what the batch run trains, in this order
    seeds: Seeds = (0,)
    model: dict[str, Any] = {}  # changes to every preset's `ModelConfig`
    train: dict[str, Any] = {}  # changes to every preset's `TrainConfig`
    presets: dict[str, dict[Literal["model", "train"], dict[str, Any]]] = {}
    """Changes to one preset: ``{preset: {model: {...}, train: {...}}}``; they come last."""
    study: Annotated[Study, WithWords] = Study()  # the many short runs of notebook 10

    @model_validator(mode="after")
    def _every_run(self) -> Profile:
        for name in {*self.runs, *self.presets, *PRESETS}:
            for seed in self.seeds:
                self.configs(name, seed)
        for more in (self.study, self.study.longer or Study()):
            self.configs("quadratic", None, {**self.study.model, **more.model}, {**self.study.train, **more.train})
        return self

    def configs(
        self,
        preset_name: str,
        seed: int | None = None,
        model_changes: dict[str, Any] | None = None,
        train_changes: dict[str, Any] | None = None,
    ) -> tuple[ModelConfig, TrainConfig]:
        """A preset's two configurations in this profile; changes given here come last. Seed None is the first seed.

        Image size, channels and classes are CIFAR-10's until the data set is known (`for_images`). A run that starts
        from another one has the same model as that one.
        """
        base, own = preset(preset_name), self.presets.get(preset_name, {})
        seed = self.seeds[0] if seed is None else seed
        train = {**self.train, **own.get("train", {}), "seed": seed, **(train_changes or {})}
        model = {**own.get("model", {}), **(model_changes or {})}
        if start := base.train.start_from:
            kernels = {name: model.pop(name) for name in ("kernels",) if name in model}
            if model:
                raise ConfigError(
                    f"{preset_name!r} has the model of the run that it starts from, {start!r}, so "
                    f"{next(iter(model))} cannot be changed: change {start!r} in the profile."
                )
            model = self.presets.get(start, {}).get("model", {}) | kernels
        model = {**self.model, **model}
        for name, value in {**model, **train}.items():
            if name in _SETTLED:
                raise ConfigError(f"{name} = {shown(value)} cannot be set: {_SETTLED[name]}.")
        return replace(base.model, model), replace(base.train, train)


def scaled(recipe: TrainConfig, batch_size: int) -> dict[str, Any]:
    """Changes that bring a recipe to another batch size, learning rates in proportion where it is SGD (linear scaling).

    The paper's recipe is SGD at batch 100; with AdamW, whose steps do not grow with the gradient, rates stay.
    """
    changes: dict[str, Any] = {"batch_size": batch_size}
    factor = replace(recipe, changes).batch_size / recipe.batch_size
    if recipe.optimizer == "sgd":
        rates = {"lr": recipe.lr, "position_lr": recipe.position_lr, "encoding_lr": recipe.encoding_lr}
        changes |= {name: round(rate * factor, 10) for name, rate in rates.items() if rate is not None}
    return changes


def for_images(model: ModelConfig, size: tuple[int, int], channels: int, classes: int) -> ModelConfig:
    """The same model for images of that size (height, width), number of channels and of classes."""
    return replace(model, {"image_size": tuple(size), "image_channels": channels, "classes": classes})


def load_profile(path: str | Path) -> Profile:
    """Read a profile, or raise `ConfigError` that names the file and the offending value."""
    path = Path(path)
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= 2**16):
            raise OSError("it is a directory, no regular file, or larger than 65,536 bytes")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        raise ConfigError(f"There is no profile {path.stem!r} in {path.parent}. Profiles there: {known}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}. Name a profile that can.") from error
    values = read_yaml(text, path)
    try:
        return from_dict(Profile, {**values, "name": path.stem} if isinstance(values, dict) else values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
