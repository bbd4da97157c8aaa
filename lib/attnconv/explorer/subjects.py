"""What can be explored: a run, a model of this library, any network that has its attention layers, a single layer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention
from attnconv.equivalence import TapAttention
from attnconv.explorer.images import ExplorerError
from attnconv.explorer.sides import Side
from attnconv.models import AttentionNet, predict
from attnconv.training.checkpoints import load_run
from attnconv.training.runs import Run

ATTENTION = (QuadraticAttention, LearnedAttention, ContentAttention)
DRAWN = 33
"""Largest side of the grid on which the heads of a network with grids of its own are drawn."""
USUAL = (32, 32)
"""Size of the images of a network that does not say which it takes, if none are given."""


class Alone(nn.Module):
    """A single attention layer as a network that predicts nothing: images (B, C, H, W) -> logits (B, 0)."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        if self.layer.channels == images.shape[1]:
            self.layer(images if isinstance(self.layer, TapAttention) else images.permute(0, 2, 3, 1))
        return images.new_zeros(len(images), 0)


def side_of(subject: Any, size: tuple[int, int] | None = None, title: str | None = None) -> Side:
    """A model to explore, from all that `explore` takes; ``size`` is that of the images that were given.

    Raises:
        ExplorerError: it has no attention heads, or heads that cannot be drawn; the message says which.
    """
    run = None
    if isinstance(subject, Run | str | Path):
        subject, run = load_run(subject.path if isinstance(subject, Run) else subject)
    if not isinstance(subject, nn.Module):
        raise ExplorerError(
            f"An object of type {type(subject).__name__} cannot be explored: give a run, its folder, a network, or an "
            "attention layer."
        )
    if isinstance(subject, AttentionNet):
        config = subject.config
        if any(config.kernel_per_layer):
            first = next(number for number, kernel in enumerate(config.kernel_per_layer, 1) if kernel)
            raise ExplorerError(
                f"Layer {first} of this network is a convolution, which has no heads: explore the network that "
                "it was swapped in, and switch the layer there."
            )
        encoding = "content" if config.kind == "learned_content" else config.kind
        shape = (config.grid, tuple(config.image_size), config.image_channels, config.classes)
        side = Side(subject, run, tuple(subject.attention_layers), encoding, *shape, title=title)
    else:
        side = _of_network(subject, size, title)
    if not any(layer.heads for layer in side.layers):
        raise ExplorerError(f"All heads of this {type(subject).__name__} are pruned: there is nothing to explore.")
    return side


def _of_network(model: nn.Module, size: tuple[int, int] | None, title: str | None) -> Side:
    kind = type(model).__name__
    model = Alone(model) if isinstance(model, ATTENTION) else model
    layers = tuple(module for module in model.modules() if isinstance(module, ATTENTION))
    if not layers:
        raise ExplorerError(
            f"A {kind} has no attention heads to explore; take a run of another preset, or turn its convolutions into "
            "attention: attnconv.equivalence.convert(model)."
        )
    if any(isinstance(layer, ContentAttention) for layer in layers):
        raise ExplorerError(f"Heads that look at content can be explored in an AttentionNet only, not in a {kind}.")
    if any(isinstance(layer, TapAttention) and layer.dimensions == 1 for layer in layers):
        raise ExplorerError(f"This {kind} has layers for sequences (Conv1d); the explorer shows images only.")
    learned = [isinstance(layer, LearnedAttention) for layer in layers]
    if len(set(learned)) > 1:
        raise ExplorerError(f"This {kind} has Gaussian and learned heads; the explorer shows models of one kind.")
    channels = layers[0].channels if layers[0].channels in (1, 3) else 3
    size = size or (USUAL if not isinstance(model, Alone) else (16, 16))
    note = ""
    if isinstance(model, Alone):
        grid = size
        if layers[0].channels != channels:
            note = f"The layer takes {layers[0].channels} channels, no images: only where its heads look is shown."
    else:
        grid = (_reach(layers),) * 2
        note = f"The network's layers have grids of their own: all heads are drawn on {grid[0]} x {grid[1]} pixels."
    if learned[0]:
        grid = tuple(min(n, *(layer.max_size for layer in layers)) for n in grid)
    side = (grid, size, channels, _classes(model, size, channels))
    return Side(model, None, layers, "learned" if learned[0] else "quadratic", *side, title=title or kind, note=note)


def _reach(layers: tuple[nn.Module, ...]) -> int:
    """An odd side of a grid that shows nearly all centres, with some room around them."""
    far = [layer.centres.detach().abs().max().item() for layer in layers if hasattr(layer, "centres") and layer.heads]
    return min(DRAWN, max(9, 2 * round(max(far, default=0)) + 3))


def _classes(model: nn.Module, size: tuple[int, int], channels: int) -> int:
    """How many classes it tells apart: 0 if its output is something else."""
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            answer = predict(copy.deepcopy(model), torch.zeros(1, channels, *size, device=device))
    except Exception as error:  # networks raise what they like
        raise ExplorerError(
            f"The network fails on images of {size[0]} x {size[1]} pixels with {channels} channels ({error}). "
            "Give images= of the size that it takes."
        ) from error
    return answer.shape[1] if isinstance(answer, Tensor) and answer.dim() == 2 else 0
