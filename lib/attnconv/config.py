"""Configurations: what a model is, how it is trained, and the paper's runs as presets.

They refuse wrong values when they are made: a mistake costs a second, not a night. No torch is
imported."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as shown  # a value as a message shows it: never longer than a line
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)
from ruamel.yaml import YAML

_BELOW = [Path(__file__).resolve().parents[2], Path.cwd(), *Path.cwd().parents]
# Where notebooks, data and outputs are: the clone that holds this library or the current folder,
# else that folder.
REPOSITORY = next(
    (folder for folder in _BELOW if (folder / "notebooks" / "profiles").is_dir()), Path.cwd()
)


class ConfigError(ValueError):
    """A configuration value that cannot work; the message names the value and the limit."""


@contextlib.contextmanager
def errors_as(kind: type[ValueError], what: str, remedy: str) -> Iterator[None]:
    """Whatever goes wrong here becomes an error of that kind, in one line: what failed, why, and
    the remedy.
    """
    try:
        yield
    except kind:
        raise
    except Exception as error:  # the readers of damaged files raise dozens of kinds
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise kind(f"{what} ({why}). {remedy}") from error


class Config(BaseModel):
    """What all configurations share: strict types, no unknown names, no change once made,
    `ConfigError` in one line.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            said = []  # pydantic's own messages; a value that may have two types has two
            for one in error.errors(include_url=False)[:3]:
                name = ".".join(map(str, (type(self).__name__, *one["loc"])))
                where = f"{name} = {shown(one['input'])}: " if one["loc"] else ""
                said.append(where + one["msg"].removeprefix("Value error, "))
            raise ConfigError(" ".join("; ".join(said).split())) from None


def read_yaml(text: str) -> Any:
    """What a YAML 1.2 text says. `ConfigError` in one line where it is none, or where a name
    stands twice.
    """
    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:  # a wrong value may raise any kind
        why = " ".join(str(error).split()).partition(" To suppress this check")[0]
        raise ConfigError(f"not valid YAML: {why}") from error


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigError(f"{twice[0]!r} stands twice; name it once.")
    return values


Size = Annotated[
    int, Field(ge=1, le=2**14)
]  # larger layers and images ask for more memory than there is
Few = Annotated[int, Field(ge=1, le=1000)]
FewOrNone = Annotated[int, Field(ge=0, le=1000)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
AsTuple = Strict(False)  # for tuples: YAML and JSON give lists
Seeds = Annotated[tuple[Seed, ...], AsTuple, Field(min_length=1), AfterValidator(_once)]
Names = Annotated[tuple[str, ...], AsTuple, Field(min_length=1), AfterValidator(_once)]
AnyConfig = TypeVar("AnyConfig", bound=Config)


class ModelConfig(Config):
    """A network of the paper (section 4). The defaults are the paper's quadratic model on
    CIFAR-10.
    """

    kind: Literal["quadratic", "learned", "learned_content", "resnet"] = (
        "quadratic"  # its encoding, or the baseline
    )
    covariance: Literal["isotropic", "full"] = (
        "isotropic"  # quadratic only: a spread per head, or a 2x2 matrix
    )
    image_size: Annotated[tuple[Size, Size], AsTuple] = (
        32,
        32,
    )  # height and width of the input, in pixels
    image_channels: Size = 3
    classes: Annotated[int, Field(ge=2, le=10**6)] = 10
    downsampling: Size = (
        2  # side of the invertible space-to-depth patches: 32x32x3 becomes 16x16x12 at 2
    )
    layers: Few = 6
    heads: Few | Annotated[tuple[FewOrNone, ...], AsTuple] = (
        9  # per layer: one number, or one each (after pruning)
    )
    kernels: Annotated[
        tuple[FewOrNone, ...], AsTuple
    ] = ()  # convolutions in the first layers' place; 0: attention
    hidden: Annotated[int, Field(ge=1, le=2**12)] = 400  # wider models take tens of gigabytes
    mlp: Size = 512
    key_size: Size | None = (
        None  # of a head's queries and keys, with content; None is ``hidden``, as in the paper
    )
    dropout: Share = 0.1  # after each sub-layer's projection
    attention_dropout: Share = (
        0.0  # of the probabilities, one mask for the batch; needs attention's dense form
    )
    centre_std: NotNegative = (
        2.0  # of where the centres start, per coordinate, in pixels of the down-sampled grid
    )
    centre_start: Literal["gaussian", "disc", "taps"] = (
        "gaussian"  # drawn as in the paper, evenly over a disc, or
    )
    # head h exactly on tap h of a square kernel, whatever ``centre_std`` is; with content, on taps
    # or as the paper's
    spread_start: Positive = (
        1.0  # spreads (entries of Sigma^{-1/2}) start at this value + N(0, 0.01)
    )
    # channels of its first stage, an eighth of its last; with fewer than 8, convolutions of torch
    # 2.15 write beyond their memory on CPUs without AVX-512
    resnet_width: Annotated[int, Field(ge=8, le=2**11)] = 64

    @model_validator(mode="after")
    def _together(self) -> ModelConfig:
        size = "key_size" if self.key_size else "hidden"
        taps = self.kind in ("quadratic", "learned_content") and self.centre_start == "taps"
        taps = taps and isinstance(self.heads, int)  # else pruned
        square = self.heads in [side**2 for side in range(1, 32, 2)]
        for wrong, name, limit in (
            (
                isinstance(self.heads, tuple) and len(self.heads) != self.layers,
                "heads",
                f"{self.layers}, one a layer",
            ),
            (
                len(self.kernels) > (0 if self.kind == "resnet" else self.layers),
                "kernels",
                "one per attention layer",
            ),
            (
                any(k and k % 2 == 0 for k in self.kernels),
                "kernels",
                "odd, or 0 where attention stays",
            ),
            (
                self.kind == "learned_content" and getattr(self, size) % 2,
                size,
                "even: half rows, half columns",
            ),
            (
                taps and not square,
                "heads",
                "the square of an odd number, to start on the taps of a kernel",
            ),
            (
                taps and self.kind != "quadratic" and getattr(self, size) < 4,
                size,
                "at least 4, to start on taps",
            ),
            (
                self.kind != "quadratic" and self.covariance == "full",
                "covariance",
                "isotropic, if not kind quadratic",
            ),
        ):
            if wrong:
                raise ConfigError(
                    f"ModelConfig.{name} = {shown(getattr(self, name))} must be {limit}."
                )
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid that attention works on, in (down-sampled) pixels."""
        (height, width), side = self.image_size, self.downsampling
        if height % side or width % side:
            raise ConfigError(
                f"ModelConfig.downsampling = {side} must divide the image size {height}x{width}."
            )
        return height // side, width // side

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """Attention heads in each layer, 0 where a convolution is in their place."""
        heads = self.heads if isinstance(self.heads, tuple) else (self.heads,) * self.layers
        return tuple(
            0 if kernel else h for h, kernel in zip(heads, self.kernel_per_layer, strict=True)
        )

    @property
    def kernel_per_layer(self) -> tuple[int, ...]:
        """Side of the convolution in each layer's place, 0 where attention is."""
        return (*self.kernels, *(0,) * (self.layers - len(self.kernels)))


class TrainConfig(Config):
    """A training recipe. The defaults are the paper's (section 4)."""

    epochs: Count = 300
    batch_size: Count = 100
    optimizer: Literal["sgd", "adamw", "muon"] = (
        "sgd"  # muon: for matrices between input and classifier, else AdamW
    )
    lr: Positive = 0.1  # peak learning rate, after the warm-up; with Muon, that of the matrices
    adamw_lr: Positive = 0.003  # with Muon: peak learning rate of what AdamW trains
    position_lr: Positive | None = (
        None  # learning rate of centres and spreads; None: `rest_lr`, the paper's way
    )
    encoding_lr: Positive | None = (
        None  # of a learned encoding, then neither decayed nor clipped; None: as all others
    )
    momentum: Share = 0.9  # of SGD and Muon, or AdamW's first beta
    beta2: Share = 0.99  # AdamW's second beta
    weight_decay: NotNegative = (
        1e-4  # never on centres and spreads; with AdamW and Muon on matrices only
    )
    label_smoothing: Share = 0.0  # share of each label that is spread evenly over all classes
    # share of all steps over which the learning rate rises linearly; a cosine to zero follows
    warmup: Share = 0.05
    clip: Positive | None = (
        None  # largest gradient norm (centres and spreads aside); None does not clip
    )
    augment: bool = True  # pad by 4 and crop, flip left-right: each image its own draw
    validation: Annotated[int, Field(ge=0, le=10**9)] = (
        0  # training images to hold out and test on, balanced by class
    )
    images: Count | None = (
        None  # so many only, drawn by the seed and repeated: as many steps as with all of them
    )
    seed: Seed = 0
    start_from: str | None = None  # preset whose finished run (same seed) gives the first weights
    prune: bool = True  # whether the degenerate heads of that run are dropped first
    precision: Literal["auto", "float32", "bfloat16"] = (
        "auto"  # auto: bfloat16 where the device has it built in
    )
    compile: bool | None = (
        None  # whether ``torch.compile`` makes the steps; None: `machine.to_be_compiled` decides
    )
    checkpoint_seconds: NotNegative = (
        60.0  # between checkpoints inside an epoch; each epoch ends with one too
    )

    @property
    def rest_lr(self) -> float:
        """Peak learning rate of what has none of its own, outside the matrices that Muon trains."""
        return self.adamw_lr if self.optimizer == "muon" else self.lr


def replace(config: AnyConfig, changes: dict[str, Any]) -> AnyConfig:
    """The same configuration with some values changed, checked as if it were new."""
    return type(config)(**{**dict(config), **changes})


# Fields that came after runs were recorded, and their defaults, which do not count: those runs keep
# their names.
_LATER: dict[str, Any] = {"encoding_lr": None, "images": None, "kernels": [], "prune": True}


def config_hash(*configs: Any) -> str:
    """Eight hexadecimal digits that name these configurations (or plain values)."""
    plain = [c.model_dump(mode="json") if isinstance(c, Config) else c for c in configs]
    plain = [
        {n: v for n, v in c.items() if (n, v) not in _LATER.items()} if isinstance(c, dict) else c
        for c in plain
    ]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


class Preset(NamedTuple):
    """One run of the paper: a model, a recipe and a title for figures and tables."""

    title: str
    model: ModelConfig
    train: TrainConfig = TrainConfig()
    start: str | None = None
    change: str = ""


_QUADRATIC = ModelConfig(kind="quadratic", attention_dropout=0.1)
_FULL = replace(_QUADRATIC, {"covariance": "full"})
_FINE_TUNE = TrainConfig(epochs=100, lr=0.01)
_LONGER = TrainConfig(epochs=15, lr=0.01)
PRESETS: dict[
    str, Preset
] = {  # the paper's runs (section 4 and appendix), then ours; our tables have this order
    "resnet18": Preset("ResNet18", ModelConfig(kind="resnet")),
    "quadratic": Preset("SA quadratic", _QUADRATIC),
    "quadratic_full": Preset("SA quadratic, full covariance", _FULL),
    "quadratic_pruned": Preset(
        "SA quadratic, full covariance, pruned", _FULL, _FINE_TUNE, "quadratic_full", "prune"
    ),
    "quadratic_16": Preset("SA quadratic, 16 heads", replace(_QUADRATIC, {"heads": 16})),
    "learned": Preset("SA learned", ModelConfig(kind="learned", attention_dropout=0.1)),
    "learned_content": Preset(
        "SA learned + content", ModelConfig(kind="learned_content", attention_dropout=0.1)
    ),
    # What the paper does not have: controls that go on from its runs, and the network whose first
    # layers were swapped.
    "quadratic_full_longer": Preset(
        "SA quadratic, full covariance, trained on", _FULL, _FINE_TUNE, "quadratic_full"
    ),
    "quadratic_longer": Preset("SA quadratic, trained on", _QUADRATIC, _LONGER, "quadratic"),
    "hybrid": Preset(
        "SA quadratic, first layers swapped, trained on",
        replace(_QUADRATIC, {"kernels": [3]}),
        _LONGER,
        "quadratic",
        "swap",
    ),
}


def for_images(
    model: ModelConfig, size: tuple[int, int], channels: int, classes: int
) -> ModelConfig:
    """The same model for images of that size (height, width), with so many channels and classes."""
    return replace(
        model, {"image_size": tuple(size), "image_channels": channels, "classes": classes}
    )


def run_name(preset: str, model: ModelConfig, train: TrainConfig, about: dict[str, Any]) -> str:
    """The name of a run's folder: it stands for all that the run's result depends on."""
    shown = [
        {name: value for name, value in config if value != type(config).model_fields[name].default}
        for config in (model, train)
    ]
    for name in ("precision", "compile", "checkpoint_seconds"):
        shown[1].pop(name, None)
    names = ("name", "classes", "train_images", "test_images", "mean", "std")
    data = {name: about[name] for name in names}
    text = json.dumps([*shown, data], sort_keys=True, default=str)
    digits = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{preset}-seed{train.seed}-{digits}"
