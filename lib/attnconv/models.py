"""The networks of the paper (section 4): attention-only networks and the ResNet18 they are held
against.

All take images as torchvision's models do, (B, channels, H, W), already normalised, and give logits
(B, classes)."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnconv.attention import (
    ContentAttention,
    LearnedAttention,
    PositionalAttention,
    QuadraticAttention,
)
from attnconv.attention.precision import choose, computing
from attnconv.config import ModelConfig
from attnconv.training.data import Dataset, batches


class Convolution(nn.Module):
    """A convolution in the place of an attention layer: channels last, (B, H, W, C) -> (B, H, W,
    D).

    Beyond the border it sees the nearest pixel of the image, as a sharp head does.
    `attnconv.equivalence.swap` makes such layers; ``report`` then says what they leave out."""

    heads = 0
    report: Any = None

    def __init__(self, channels: int, out_channels: int, kernel_size: int):
        super().__init__()
        self.channels, self.out_channels = channels, out_channels
        self.conv = nn.Conv2d(
            channels, out_channels, kernel_size, padding="same", padding_mode="replicate"
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def extra_repr(self) -> str:
        report = self.report
        return (
            f"in the place of attention; relative error on {report.on} {report.relative_error:.2g}"
            if report
            else ""
        )


Attention = PositionalAttention | ContentAttention


def build_attention(config: ModelConfig, heads: int) -> Attention:
    """One attention layer of the network: ``hidden`` channels in and out."""
    sizes = (config.hidden, config.hidden, heads)
    dropout = config.attention_dropout
    if config.kind == "quadratic":
        own = config.model_dump(
            include={"covariance", "centre_std", "centre_start", "spread_start"}
        )
        return QuadraticAttention(*sizes, dropout=dropout, **own)
    if config.kind == "learned":
        return LearnedAttention(*sizes, max_size=max(config.grid), dropout=dropout)
    layer = ContentAttention(
        *sizes, max_size=max(config.grid), key_size=config.key_size, dropout=dropout
    )
    if config.centre_start == "taps":
        layer.start_on_taps(config.spread_start**2 / 2)
    return layer


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` in the type of its parameters, whatever type autocast gave its input."""

    def forward(self, x: Tensor) -> Tensor:
        # In bfloat16 PyTorch's kernel for CPUs adds up its parameters' gradients in bfloat16, up to
        # 110% off.
        return super().forward(x.to(self.weight.dtype))


class Block(nn.Module):
    """One layer: attention, then a perceptron of two linear maps; each with dropout, a residual
    and LayerNorm after.
    """

    attention: Attention | Convolution

    def __init__(self, config: ModelConfig, heads: int, kernel: int = 0):
        super().__init__()
        hidden = config.hidden
        self.attention = (
            Convolution(hidden, hidden, kernel) if kernel else build_attention(config, heads)
        )
        self.output = nn.Linear(hidden, hidden)
        self.norm1 = LayerNorm(hidden, eps=1e-12)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, config.mlp), nn.GELU(), nn.Linear(config.mlp, hidden)
        )
        self.norm2 = LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, hidden) -> (B, H, W, hidden)."""
        x = self.norm1(x + self.dropout(self.output(self.attention(x))))
        return self.norm2(x + self.dropout(self.mlp(x)))


class AttentionNet(nn.Module):
    """Attention only: space-to-depth, a linear map, ``layers`` blocks, the average over pixels,
    a linear classifier.
    """

    kept: list[list[int]] | None = (
        None  # of a pruned network: the numbers of the heads that stayed, by layer
    )

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        _ = config.grid  # refuses a down-sampling that does not divide the image
        self.embed = nn.Linear(config.image_channels * config.downsampling**2, config.hidden)
        each = zip(config.heads_per_layer, config.kernel_per_layer, strict=True)
        blocks = nn.ModuleList(Block(config, heads, kernel) for heads, kernel in each)
        self.blocks = cast(
            Sequence[Block], blocks
        )  # torch says that a list holds modules, not which
        self.classifier = nn.Linear(config.hidden, config.classes)

    @property
    def attention_layers(self) -> list[Attention | Convolution]:
        """The attention layers, or the convolutions in their place, first to last."""
        return [block.attention for block in self.blocks]

    def pixels(self, images: Tensor) -> Tensor:
        """Images (B, channels, H, W) -> what the first layer sees, (B, H / s, W / s, hidden), s
        the down-sampling.
        """
        patches = F.pixel_unshuffle(
            images, self.config.downsampling
        )  # invertible: no pixel is lost
        return self.embed(patches.permute(0, 2, 3, 1))

    def layer_inputs(self, images: Tensor) -> list[Tensor]:
        """What each attention layer sees in evaluation mode, first to last: each (B, H / s, W /
        s, hidden).
        """
        inputs = [self.pixels(images)]
        with evaluating(self):
            for block in self.blocks[:-1]:
                inputs.append(block(inputs[-1]))
        return inputs

    def forward(self, images: Tensor) -> Tensor:
        x = self.pixels(images)
        for block in self.blocks:
            x = block(x)
        return self.classifier(x.mean(dim=(1, 2)))


class ResNet18(nn.Module):
    """ResNet18 for small images: torchvision's blocks behind a 3x3 stem without pooling (paper's
    baseline).
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        from torchvision.models.resnet import (
            BasicBlock,
        )  # brings torch's compiler along, which takes a second or two

        self.config = config
        width = config.resnet_width
        stem = nn.Conv2d(config.image_channels, width, 3, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU())
        stages = [nn.Sequential(BasicBlock(width, width), BasicBlock(width, width))]
        for out in (
            2 * width,
            4 * width,
            8 * width,
        ):  # at half the height and width of the stage before
            shortcut = nn.Sequential(
                nn.Conv2d(out // 2, out, 1, 2, bias=False), nn.BatchNorm2d(out)
            )
            stages.append(
                nn.Sequential(BasicBlock(out // 2, out, 2, shortcut), BasicBlock(out, out))
            )
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(8 * width, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.stages(self.stem(images)).mean(dim=(2, 3)))


Network = AttentionNet | ResNet18


def build_model(config: ModelConfig) -> Network:
    """The network that a configuration describes, freshly initialised from torch's global
    generator.
    """
    return ResNet18(config) if config.kind == "resnet" else AttentionNet(config)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode inside; afterwards each of its modules has its own mode
    again.
    """
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    """Logits in evaluation mode, without gradients; the model's mode is left as it was. Images are
    taken in the type of its parameters.
    """
    with evaluating(model):
        return model(images.to(next(model.parameters(), images).dtype))


class Evaluation(NamedTuple):
    """Mean cross-entropy (nats), share of right answers in [0, 1], and the class given to each
    image: int64 (N,).
    """

    loss: float
    accuracy: float
    predicted: Tensor


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, *others: Tensor) -> Evaluation:
    """Evaluation mode, no augmentation, every image once: of the test split, or of ``others``,
    (images, labels).
    """
    device = next(model.parameters()).device
    images, labels = (part.to(device) for part in others or (data.test_images, data.test_labels))
    with computing(choose(device), device):
        logits = torch.cat(
            [predict(model, x) for x, _ in batches(images, labels, None, 500, data.mean, data.std)]
        )
    loss, predicted = F.cross_entropy(logits.double(), labels), logits.argmax(1)
    return Evaluation(loss.item(), (predicted == labels).double().mean().item(), predicted.cpu())
