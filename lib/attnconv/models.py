"""The networks of the paper (section 4): attention-only networks and the ResNet18 they are held
against.

All take images as torchvision's models do, (B, channels, H, W), already normalised, and give logits
(B, classes)."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnconv.attention import (
    ContentAttention,
    LearnedAttention,
    PositionalAttention,
    QuadraticAttention,
)
from attnconv.config import ModelConfig

Attention = PositionalAttention | ContentAttention


class Convolution(nn.Module):
    """A convolution in the place of an attention layer: channels last, (B, H, W, C) -> (B, H, W,
    C).

    Beyond the border it sees the nearest pixel of the image, as a sharp head does.
    `attnconv.equivalence.swap` makes such layers; ``outside`` is then the mass of each
    head on shifts that are no taps, (h,); of a fitted one it is None."""

    heads = 0
    outside: Tensor | None = None

    def __init__(self, channels: int, kernel_size: int):
        super().__init__()
        self.conv = nn.Conv2d(
            channels, channels, kernel_size, padding="same", padding_mode="replicate"
        )

    @torch._disable_dynamo  # torch 2.15's compiler fails on the gradient of the padding
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def build_attention(config: ModelConfig, heads: int) -> Attention:
    """One attention layer of the network: ``hidden`` channels in and out."""
    hidden = config.hidden
    dropout = config.attention_dropout
    if config.kind == "quadratic":
        return QuadraticAttention(
            hidden,
            hidden,
            heads,
            covariance=config.covariance,
            centre_std=config.centre_std,
            centre_start=config.centre_start,
            spread_start=config.spread_start,
            dropout=dropout,
        )
    largest = max(config.grid)
    if config.kind == "learned":
        return LearnedAttention(hidden, hidden, heads, largest, dropout)
    layer = ContentAttention(hidden, hidden, heads, largest, config.key_size, dropout)
    if config.centre_start == "taps":
        layer.start_on_taps(alpha=config.spread_start**2 / 2)
    return layer


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` in the type of its parameters, whatever type autocast gave its input."""

    def forward(self, x: Tensor) -> Tensor:
        # In bfloat16 a CPU adds up its parameters' gradients in bfloat16, up to 110% off.
        return super().forward(x.to(self.weight.dtype))


class Block(nn.Module):
    """One layer: attention, then a perceptron of two linear maps; each with dropout, a residual
    and LayerNorm after.
    """

    attention: Attention | Convolution

    def __init__(self, config: ModelConfig, heads: int, kernel: int):
        super().__init__()
        hidden = config.hidden
        if kernel:
            self.attention = Convolution(hidden, kernel)
        else:
            self.attention = build_attention(config, heads)
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

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        _ = config.grid  # refuses a down-sampling that does not divide the image
        self.embed = nn.Linear(config.image_channels * config.downsampling**2, config.hidden)
        layers = zip(config.heads_per_layer, config.kernel_per_layer, strict=True)
        self.blocks: Any = nn.Sequential(*(Block(config, *layer) for layer in layers))
        self.classifier = nn.Linear(config.hidden, config.classes)

    @property
    def attention_layers(self) -> list[Attention | Convolution]:
        """The attention layers, or the convolutions in their place, first to last."""
        return [block.attention for block in self.blocks]

    def pixels(self, images: Tensor) -> Tensor:
        """Images (B, channels, H, W) -> what the first layer sees, (B, H / s, W / s, hidden), s
        the down-sampling.
        """
        # Invertible: no pixel is lost.
        return self.embed(F.pixel_unshuffle(images, self.config.downsampling).permute(0, 2, 3, 1))

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
        return self.classifier(self.blocks(self.pixels(images)).mean(dim=(1, 2)))


class ResNet18(nn.Module):
    """ResNet18 for small images: torchvision's blocks behind a 3x3 stem without pooling (paper's
    baseline).
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        # Brings PyTorch's compiler along, which takes a second or two.
        from torchvision.models.resnet import BasicBlock

        self.config = config
        width = config.resnet_width
        self.stem = nn.Sequential(
            nn.Conv2d(config.image_channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        stages = [nn.Sequential(BasicBlock(width, width), BasicBlock(width, width))]
        for _ in range(3):  # each at half the height and width of the stage before
            wider = 2 * width
            shortcut = nn.Sequential(
                nn.Conv2d(width, wider, 1, stride=2, bias=False), nn.BatchNorm2d(wider)
            )
            stages.append(
                nn.Sequential(BasicBlock(width, wider, 2, shortcut), BasicBlock(wider, wider))
            )
            width = wider
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(width, config.classes)
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
