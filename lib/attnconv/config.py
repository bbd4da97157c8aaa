"""Configurations: what a model is, how it is trained, and the paper's runs as presets.

They refuse wrong values when they are made: a mistake costs a second, not a night. No torch is
imported.
"""

import hashlib
import json
from pathlib import Path
from reprlib import repr as shown  # a value as a message shows it: never longer than a line
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Strict,
    ValidationError,
    model_validator,
)

_ABOVE = Path(__file__).resolve().parents[2]
REPOSITORY = _ABOVE if (_ABOVE / "notebooks").is_dir() else Path.cwd()
"""Where notebooks, data and outputs are: the clone that holds this library, else the current
folder."""


class ConfigError(ValueError):
    """A configuration value that cannot work; the message names the value and the limit."""


class Config(BaseModel):
    """What both configurations share: strict types, no unknown names, no change once made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        """`ConfigError` in one line, with pydantic's own messages."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            said = []
            for one in error.errors():
                value = f"{'.'.join(map(str, one['loc']))} = {shown(one['input'])}: "
                said.append(value + one["msg"] if one["loc"] else one["msg"])
            raise ConfigError(f"{type(self).__name__}: {'; '.join(said)}") from None


AnyConfig = TypeVar("AnyConfig", bound=Config)
Size = Annotated[int, Field(ge=1, le=2**12)]  # larger ones ask for more memory than there is
EachLayer = Annotated[tuple[NonNegativeInt, ...], Strict(False)]  # YAML and JSON give lists
Share = Annotated[float, Field(ge=0, lt=1)]


class ModelConfig(Config):
    """A network of the paper (section 4). The defaults are its quadratic model on CIFAR-10."""

    kind: Literal["quadratic", "learned", "learned_content", "resnet"] = "quadratic"
    # Quadratic only: a spread for each head, or a 2x2 matrix.
    covariance: Literal["isotropic", "full"] = "isotropic"
    # Height and width of the input, in pixels.
    image_size: Annotated[tuple[Size, Size], Strict(False)] = (32, 32)
    image_channels: Size = 3
    classes: Annotated[int, Field(ge=2)] = 10
    # Side of the invertible space-to-depth patches: 32x32x3 becomes 16x16x12 at 2.
    downsampling: Size = 2
    layers: Size = 6
    # One number for all layers, or one for each, as after pruning.
    heads: Size | EachLayer = 9
    # Sides of convolutions in the place of the first layers' attention; 0 where attention stays.
    kernels: EachLayer = ()
    hidden: Size = 400
    mlp: Size = 512
    # Of a head's queries and keys, with content. None is ``hidden``, as in the paper.
    key_size: Size | None = None
    dropout: Share = 0.1  # after each sub-layer's projection
    # Of the probabilities, one mask for a batch; needs attention's dense form.
    attention_dropout: Share = 0.0
    # Of the normal distribution that centres are drawn from, in pixels of the down-sampled grid.
    centre_std: NonNegativeFloat = 2.0
    # Drawn as in the paper; evenly over a disc; or head h exactly on tap h of a square kernel,
    # whatever ``centre_std`` is. With content: on taps, or as in the paper.
    centre_start: Literal["gaussian", "disc", "taps"] = "gaussian"
    # Spreads, the entries of Sigma^{-1/2}, start at this value + N(0, 0.01).
    spread_start: PositiveFloat = 1.0
    # Channels of its first stage, an eighth of its last. With fewer than 8, convolutions of torch
    # 2.15 write beyond their memory on CPUs without AVX-512.
    resnet_width: Annotated[Size, Field(ge=8)] = 64

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if isinstance(self.heads, tuple) and len(self.heads) != self.layers:
            raise ValueError(f"heads = {self.heads} must be {self.layers}, one a layer")
        attention_layers = 0 if self.kind == "resnet" else self.layers
        if len(self.kernels) > attention_layers:
            raise ValueError(f"kernels = {self.kernels} must be one per attention layer")
        if not all(side == 0 or side % 2 for side in self.kernels):
            raise ValueError(f"kernels = {self.kernels} must be odd, or 0 where attention stays")
        return self

    @model_validator(mode="after")
    def _check_encoding(self) -> Self:
        if self.covariance == "full" and self.kind != "quadratic":
            raise ValueError("covariance = 'full' must be isotropic, if not kind quadratic")
        on_taps = self.centre_start == "taps" and self.kind in ("quadratic", "learned_content")
        odd_squares = [side**2 for side in range(1, 65, 2)]
        if on_taps and isinstance(self.heads, int) and self.heads not in odd_squares:
            raise ValueError(f"heads = {self.heads} must be an odd number's square, to be on taps")
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the grid that attention works on, in (down-sampled) pixels."""
        height, width = self.image_size
        side = self.downsampling
        if height % side or width % side:
            raise ConfigError(f"downsampling = {side} must divide the image size {height}x{width}.")
        return height // side, width // side

    @property
    def kernel_per_layer(self) -> tuple[int, ...]:
        """Side of the convolution in each layer's place, 0 where attention is."""
        return (*self.kernels, *(0,) * (self.layers - len(self.kernels)))

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """Attention heads in each layer, 0 where a convolution is in their place."""
        heads = self.heads if isinstance(self.heads, tuple) else (self.heads,) * self.layers
        pairs = zip(heads, self.kernel_per_layer, strict=True)
        return tuple(0 if kernel else number for number, kernel in pairs)


class TrainConfig(Config):
    """A training recipe. The defaults are the paper's (section 4)."""

    epochs: PositiveInt = 300
    batch_size: PositiveInt = 100
    # Muon for the matrices between input and classifier, then AdamW for the rest.
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    # Peak learning rate, after the warm-up; with Muon, that of the matrices.
    lr: PositiveFloat = 0.1
    adamw_lr: PositiveFloat = 0.003  # with Muon: peak learning rate of what AdamW trains
    # Of centres and spreads. None is that of all others, the paper's way.
    position_lr: PositiveFloat | None = None
    # Of a learned encoding, which then is neither decayed nor clipped. None: as all others.
    encoding_lr: PositiveFloat | None = None
    momentum: Share = 0.9  # of SGD and Muon, or AdamW's first beta
    beta2: Share = 0.99  # AdamW's second beta
    # Never on centres and spreads; with AdamW and Muon on matrices only.
    weight_decay: NonNegativeFloat = 1e-4
    label_smoothing: Share = 0.0  # of each label, spread evenly over all classes
    # Of all steps: over these the learning rate rises linearly, then it falls as a cosine to zero.
    warmup: Share = 0.05
    clip: PositiveFloat | None = None  # largest gradient norm, centres and spreads aside
    augment: bool = True  # pad by 4 and crop, flip left-right: each image its own draw
    # So many only, drawn by the seed and repeated: as many steps as with all of them.
    images: PositiveInt | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    # The name of the run folder that the first weights come from.
    start_from: str | None = None
    # Of products in training; auto is bfloat16 where the device has instructions for it.
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool = False  # whether ``torch.compile`` makes the steps

    @property
    def rest_lr(self) -> float:
        """Peak learning rate of what has none of its own, outside the matrices of Muon."""
        return self.adamw_lr if self.optimizer == "muon" else self.lr


def replace(config: AnyConfig, changes: dict[str, Any]) -> AnyConfig:
    """The same configuration with some values changed, checked as if it were new."""
    return type(config)(**{**dict(config), **changes})


def for_images(model: ModelConfig, data: Any) -> ModelConfig:
    """The same model for the images and classes of a `training.data.Dataset`."""
    *size, channels = data.train_images.shape[1:]
    return replace(
        model, {"image_size": size, "image_channels": channels, "classes": len(data.classes)}
    )


def identity(model: ModelConfig, train: TrainConfig, about: dict[str, Any]) -> str:
    """Eight hexadecimal digits for all that a run's result follows from.

    These are the values of model and recipe that are not the defaults, and what says which images
    they are of ``about`` (`Dataset.about`). What only changes the speed does not count, nor does
    the form of the data: any whole copy of CIFAR-10 gives the same digits.
    """
    parts = [
        model.model_dump(mode="json", exclude_defaults=True),
        train.model_dump(mode="json", exclude_defaults=True, exclude={"precision", "compile"}),
        [about[name] for name in ("name", "classes", "train_images", "test_images", "mean", "std")],
    ]
    if "digest" in about:  # of all but the whole CIFAR-10
        parts.append(about["digest"])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def run_name(preset: str, model: ModelConfig, train: TrainConfig, about: dict[str, Any]) -> str:
    """The name of a run's folder, ``{preset}-seed{seed}-{digits}``: the digits are its `identity`.

    Where the run goes on from another one, ``model`` is as it was asked for, before any head is
    pruned.
    """
    return f"{preset}-seed{train.seed}-{identity(model, train, about)}"


class Preset(NamedTuple):
    """One run of the paper: a title for figures and tables, a model and a recipe.

    ``start`` is the preset whose finished run, of the same seed, gives the first weights. What is
    done to that network first is the ``change``: "prune" drops its degenerate heads, "swap" puts
    the convolutions that ``model.kernels`` names in its first layers' place, "" does nothing.
    """

    title: str
    model: ModelConfig
    train: TrainConfig = TrainConfig()
    start: str | None = None
    change: str = ""


_QUADRATIC = ModelConfig(kind="quadratic", attention_dropout=0.1)
_FULL = replace(_QUADRATIC, {"covariance": "full"})
_FINE_TUNE = TrainConfig(epochs=100, lr=0.01)
_LONGER = TrainConfig(epochs=15, lr=0.01)
PRESETS: dict[str, Preset] = {
    # The paper's runs (section 4 and appendix); tables have this order.
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
    # Ours: controls that go on from these, and a network whose first layers were swapped.
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
