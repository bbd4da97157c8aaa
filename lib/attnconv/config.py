"""Configurations: what a model is, how it is trained, and the paper's runs as presets.

Everything here is plain data: frozen dataclasses that refuse wrong values when they are made, so that a
mistake costs a second and not a night. No torch is imported: the batch runner checks a profile with this module
before anything runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

Kind = Literal["quadratic", "learned", "learned_content", "resnet"]
"""Which encoding a network's attention uses; ``resnet`` is the convolutional baseline."""


class ConfigError(ValueError):
    """A configuration value that cannot work; the message names the value, the limit and the remedy."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A network of the paper (section 4). The defaults are the paper's quadratic model on CIFAR-10."""

    kind: Kind = "quadratic"
    covariance: Literal["isotropic", "full"] = "isotropic"
    """Quadratic encoding only: one spread per head, or a full 2x2 matrix (paper's appendix)."""
    image_size: tuple[int, int] = (32, 32)
    """Height and width of the input, in pixels."""
    image_channels: int = 3
    classes: int = 10
    downsampling: int = 2
    """Side of the invertible space-to-depth patches: 32x32x3 becomes 16x16x12 at 2."""
    layers: int = 6
    heads: int | tuple[int, ...] = 9
    """Heads per layer: one number, or one per layer (after pruning)."""
    hidden: int = 400
    mlp: int = 512
    key_size: int | None = None
    """Learned encoding with content: size of a head's queries and keys; None is ``hidden``, as in the paper."""
    dropout: float = 0.1
    """After each sub-layer's projection."""
    attention_dropout: float = 0.0
    """On the probabilities, one mask for the batch; 0.1 in the paper and its presets. Training then takes the dense
    form, as a mask breaks the product of rows and columns; our small profiles go without."""
    centre_std: float = 2.0
    """Standard deviation of where the centres start, per coordinate, in pixels of the down-sampled grid."""
    centre_start: Literal["gaussian", "disc"] = "gaussian"
    """Centres start drawn from N(0, centre_std), as in the paper, or evenly over a disc, so that no two start alike."""
    spread_start: float = 1.0
    """Spreads (entries of Sigma^{-1/2}) start at this value + N(0, 0.01)."""
    resnet_width: int = 64
    """ResNet only: channels of the first stage."""

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self, "image_size", len(self.image_size) == 2 and min(self.image_size) >= 1, "two sizes >= 1")
        for name in ("image_channels", "classes", "downsampling", "layers", "hidden", "mlp", "resnet_width"):
            _require(self, name, getattr(self, name) >= 1, "at least 1")
        _require(self, "classes", self.classes >= 2, "at least 2")
        if isinstance(self.heads, tuple):
            _require(self, "heads", len(self.heads) == self.layers, f"one number per layer ({self.layers})")
            _require(self, "heads", min(self.heads) >= 0, "no negative number of heads")
        else:
            _require(self, "heads", self.heads >= 1, "at least 1")
        for name in ("dropout", "attention_dropout"):
            _require(self, name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        _require(self, "key_size", self.key_size is None or self.key_size >= 2, "None or at least 2")
        if self.kind == "learned_content":
            _require(self, "key_size", (self.key_size or self.hidden) % 2 == 0, "even: half rows, half columns")
        _require(self, "centre_std", self.centre_std >= 0, "at least 0")
        if self.kind != "quadratic" and self.covariance != "isotropic":
            raise ConfigError(f"covariance = {self.covariance!r} exists for kind 'quadratic' only, not {self.kind!r}.")

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
        return self.heads if isinstance(self.heads, tuple) else (self.heads,) * self.layers


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training recipe. The defaults are the paper's (section 4)."""

    epochs: int = 300
    batch_size: int = 100
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    """``muon``: Muon for the matrices (and convolution kernels) between input and classifier, AdamW for the rest."""
    lr: float = 0.1
    """Peak learning rate, after the warm-up; with Muon, that of the matrices."""
    adamw_lr: float = 0.003
    """With Muon: peak learning rate of what AdamW trains."""
    position_lr: float | None = None
    """Learning rate of centres and spreads; None is ``lr``, the paper's way."""
    momentum: float = 0.9
    """Of SGD and Muon, or AdamW's first beta."""
    beta2: float = 0.99
    """AdamW's second beta."""
    weight_decay: float = 1e-4
    """Never on centres and spreads; with AdamW and Muon on matrices only."""
    label_smoothing: float = 0.0
    """Share of each label that is spread evenly over all classes."""
    warmup: float = 0.05
    """Share of all steps over which the learning rate rises linearly; a cosine to zero follows."""
    clip: float | None = None
    """Largest gradient norm (centres and spreads aside); None does not clip."""
    augment: bool = True
    """Pad by 4 and crop, flip left-right: each image its own draw."""
    validation: int = 0
    """Training images to hold out, balanced by class; their accuracy is reported beside the test accuracy."""
    seed: int = 0
    start_from: str | None = None
    """Preset whose finished run (same seed) gives the first weights; its degenerate heads are dropped."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """``auto``: bfloat16 autocast where the device is faster with it (`attnconv.precision`), float32 elsewhere."""
    compile: bool | Literal["reduce-overhead", "max-autotune"] | None = None
    """``torch.compile`` the network, in that mode if one is named (both use CUDA graphs); None: on CUDA only."""
    checkpoint_seconds: float = 60.0
    """A checkpoint is written after an epoch (where epochs are short: not more often than costs 5% of the time), and
    inside an epoch when this much time has passed."""

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("epochs", "batch_size"):
            _require(self, name, getattr(self, name) >= 1, "at least 1")
        for name in ("lr", "adamw_lr", "position_lr", "clip"):
            value = getattr(self, name)
            _require(self, name, value is None or (value > 0 and math.isfinite(value)), "positive and finite")
        for name in ("momentum", "beta2", "warmup", "label_smoothing"):
            _require(self, name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        _require(self, "weight_decay", self.weight_decay >= 0, "at least 0")
        _require(self, "validation", self.validation >= 0, "at least 0")
        _require(self, "seed", 0 <= self.seed < 2**31, "in [0, 2^31)")
        _require(self, "checkpoint_seconds", self.checkpoint_seconds >= 0, "at least 0")


def _check_types(config: Any) -> None:
    """Refuse values of the wrong type; turn lists into tuples and whole numbers into floats where a float is due."""
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if isinstance(value, list):
            value = tuple(value)
        if isinstance(value, int) and not isinstance(value, bool) and _fits(0.5, hint) and not _fits(value, hint):
            value = float(value)
        if not _fits(value, hint):
            remedy = ""
            with contextlib.suppress(ValueError, TypeError):  # YAML reads 1e-3 as text, 1.0e-3 as a number
                remedy = f" In YAML, write {float(value):f}." if isinstance(value, str) else ""
            raise ConfigError(
                f"{type(config).__name__}.{name} = {value!r} ({type(value).__name__}) is not {_describe(hint)}.{remedy}"
            )
        object.__setattr__(config, name, value)


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint) and not isinstance(value, bool)
    if origin is tuple:
        options = typing.get_args(hint)
        if not isinstance(value, tuple):
            return False
        if options[-1] is Ellipsis:
            return all(_fits(v, options[0]) for v in value)
        return len(value) == len(options) and all(_fits(v, o) for v, o in zip(value, options, strict=True))
    if hint in (int, float):
        return type(value) is hint
    if origin is dict:
        return isinstance(value, dict)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(option) for option in typing.get_args(hint))
    if hint is types.NoneType:
        return "None"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(hint, str(hint))


def _require(config: Any, name: str, ok: bool, limit: str) -> None:
    if not ok:
        raise ConfigError(f"{type(config).__name__}.{name} = {getattr(config, name)!r} must be: {limit}.")


def from_dict(cls: type, values: dict[str, Any]) -> Any:
    """Build a configuration from a mapping; an unknown name is an error that suggests the nearest known one."""
    return replace(cls(), values)


def replace(config: Any, changes: dict[str, Any]) -> Any:
    """`dataclasses.replace` that refuses unknown names and suggests the nearest known one."""
    known = {f.name for f in dataclasses.fields(config)}
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known names: {', '.join(sorted(known))}."
            raise ConfigError(f"{type(config).__name__} has no value named {name!r}.{hint}")
    return dataclasses.replace(config, **changes)


def to_dict(config: Any) -> dict[str, Any]:
    """The inverse of `from_dict`, ready for JSON (tuples become lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def config_hash(*configs: Any) -> str:
    """Eight hexadecimal digits that name these configurations (dataclasses or plain values)."""
    plain = [to_dict(c) if dataclasses.is_dataclass(c) else c for c in configs]
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

PRESETS: dict[str, Preset] = {
    "resnet18": Preset("ResNet18", ModelConfig(kind="resnet")),
    "quadratic": Preset("SA quadratic", _QUADRATIC),
    "quadratic_full": Preset("SA quadratic, full covariance", _FULL),
    "quadratic_pruned": Preset("SA quadratic, full covariance, pruned", _FULL, _FINE_TUNE),
    "quadratic_16": Preset("SA quadratic, 16 heads", replace(_QUADRATIC, {"heads": 16})),
    "learned": Preset("SA learned", ModelConfig(kind="learned", attention_dropout=0.1)),
    "learned_content": Preset("SA learned + content", ModelConfig(kind="learned_content", attention_dropout=0.1)),
}
"""The paper's runs (section 4 and appendix), at the paper's size and recipe. The order is that of our tables."""


def preset(name: str) -> Preset:
    """The preset of that name; an unknown name is an error that suggests the nearest one."""
    if name not in PRESETS:
        near = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"There is no preset {name!r}.{hint} Presets: {', '.join(PRESETS)}.")
    return PRESETS[name]


_BY_DATA = "it is that of the images; choose other data"
_SETTLED = {
    **dict.fromkeys(("image_size", "image_channels", "classes"), _BY_DATA),
    "kind": f"it is the preset's; choose another preset ({', '.join(PRESETS)})",
}
"""Values of `ModelConfig` that no profile or command changes, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How large a reproduction is: a YAML file of ``notebooks/profiles``, checked when it is read."""

    name: str
    description: str = ""
    data: str = "embedded"
    """``embedded``, ``cifar10``, ``fashion-mnist``, or a path (see `attnconv.data.load_data`)."""
    recorded: bool = False
    """Its runs are kept in the repository: they stand in for training, whichever copy of the data is here, or none."""
    train_images: int | None = None
    """Use only that many training images, balanced by class; None uses all."""
    test_images: int | None = None
    runs: tuple[str, ...] = ("quadratic", "learned", "learned_content", "resnet18")
    """Presets that the batch run trains, in this order."""
    seeds: tuple[int, ...] = (0,)
    model: dict[str, Any] = field(default_factory=dict)
    """Changes to every preset's `ModelConfig`."""
    train: dict[str, Any] = field(default_factory=dict)
    """Changes to every preset's `TrainConfig`."""
    presets: dict[str, Any] = field(default_factory=dict)
    """Changes to one preset: ``{preset: {model: {...}, train: {...}}}``; they come last."""

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("train_images", "test_images"):
            value = getattr(self, name)
            _require(self, name, value is None or value >= 1, "None or at least 1")
        _require(self, "runs", len(self.runs) >= 1, "at least one preset")
        _require(self, "seeds", len(self.seeds) >= 1, "at least one seed")
        for name, changes in self.presets.items():
            where = f"Profile {self.name!r}, preset {name!r}"
            if not isinstance(changes, dict | None):
                raise ConfigError(f"{where}: {changes!r} must be sections, as in {{train: {{epochs: 3}}}}.")
            for section, values in (changes or {}).items():
                if section not in ("model", "train"):
                    raise ConfigError(f"{where}: unknown section {section!r}.")
                if not isinstance(values, dict | None):
                    raise ConfigError(f"{where}: {section} = {values!r} must hold 'name: value' lines.")
        for name in {*self.runs, *self.presets, *PRESETS}:
            for seed in self.seeds:
                self.configs(name, seed)

    def configs(
        self,
        preset_name: str,
        seed: int | None = None,
        model_changes: dict[str, Any] | None = None,
        train_changes: dict[str, Any] | None = None,
    ) -> tuple[ModelConfig, TrainConfig]:
        """A preset's two configurations in this profile; changes given here come last. Seed None is the first seed.

        Image size, channels and classes are CIFAR-10's until the data set is known (`for_images`). A run that starts
        from another one has its model.
        """
        base, own = preset(preset_name), self.presets.get(preset_name) or {}
        seed = self.seeds[0] if seed is None else seed
        train = {**self.train, **(own.get("train") or {}), "seed": seed, **(train_changes or {})}
        recipe = replace(base.train, train)
        changes = {**(own.get("model") or {}), **(model_changes or {})}
        if (start := recipe.start_from) is not None:
            if base.model.kind != "quadratic" or preset(start).model != base.model:
                raise ConfigError(
                    f"{preset_name!r} cannot start from {start!r}: heads are pruned of quadratic models only, and both "
                    "presets must be of one model, as 'quadratic_pruned' and 'quadratic_full' are."
                )
            if changes:
                raise ConfigError(
                    f"{preset_name!r} has the model of the run that it starts from, {start!r}, so "
                    f"{next(iter(changes))} cannot be changed: change {start!r} in the profile."
                )
            changes = (self.presets.get(start) or {}).get("model") or {}
        model = {**self.model, **changes}
        for name, remedy in _SETTLED.items():
            if name in model:
                raise ConfigError(f"ModelConfig.{name} = {model[name]!r} cannot be set: {remedy}.")
        return replace(base.model, model), recipe


def scaled(recipe: TrainConfig, batch_size: int) -> dict[str, Any]:
    """Changes that bring a recipe to another batch size, learning rates in proportion where it is SGD (linear scaling).

    The paper's recipe is SGD at batch 100; with AdamW, whose steps do not grow with the gradient, rates stay.
    """
    changes: dict[str, Any] = {"batch_size": batch_size}
    if recipe.optimizer == "sgd" and batch_size >= 1:
        rates = {name: getattr(recipe, name) for name in ("lr", "position_lr")}
        factor = batch_size / recipe.batch_size
        changes |= {name: round(rate * factor, 10) for name, rate in rates.items() if rate is not None}
    return changes


def for_images(model: ModelConfig, size: tuple[int, int], channels: int, classes: int) -> ModelConfig:
    """The same model for images of that size (height, width), number of channels and of classes."""
    return replace(model, {"image_size": tuple(size), "image_channels": channels, "classes": classes})


def load_profile(path: str | Path) -> Profile:
    """Read a profile, or raise `ConfigError` that names the file and the offending value."""
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        raise ConfigError(f"There is no profile {path.stem!r} in {path.parent}. Profiles there: {known}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}. Name a profile that can.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold 'name: value' lines.")
    try:
        return replace(Profile(name=path.stem), {**values, "name": path.stem})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
