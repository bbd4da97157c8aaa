"""What can be explored: a run, an `AttentionNet`, a network whose convolutions were turned into attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnconv.explorer.images import ExplorerError
from attnconv.explorer.sides import Side, layers_of
from attnconv.models import AttentionNet, predict
from attnconv.training.checkpoints import load_run
from attnconv.training.runs import Run

DRAWN = 33
"""Largest side of the grid on which the heads of a network with grids of its own are drawn."""
USUAL = (32, 32)
"""Size of the images of a network that does not say which it takes, if none are given."""


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
            f"A value of type {type(subject).__name__} cannot be explored: give a run, its folder, or a network."
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
        shape = (config.grid, config.image_size, config.image_channels, config.classes)
        side = Side(subject, run, encoding, *shape, title=title)
    else:
        side = _of_converted(subject, size, title)
    if not any(layer.heads for layer in side.layers):
        raise ExplorerError(f"All heads of this {type(subject).__name__} are pruned: there is nothing to explore.")
    return side


def _of_converted(model: nn.Module, size: tuple[int, int] | None, title: str | None) -> Side:
    kind, layers = type(model).__name__, layers_of(model)
    if not layers:
        raise ExplorerError(
            f"A {kind} has no attention heads to explore. Take a run of another preset, an AttentionNet, or a network "
            "whose convolutions are attention: attnconv.equivalence.convert(model)."
        )
    if any(layer.dimensions == 1 for layer in layers):
        raise ExplorerError(f"This {kind} has layers for sequences (Conv1d); the explorer shows images only.")
    # An odd side that shows nearly all centres, with some room around them.
    far = max(layer.centres.detach().abs().max().item() for layer in layers)
    side = min(DRAWN, max(9, 2 * round(far) + 3))
    note = f"The network's layers have grids of their own: all heads are drawn on {side} x {side} pixels."
    channels, size = layers[0].channels if layers[0].channels == 1 else 3, size or USUAL
    classes = _classes(model, size, channels)
    return Side(model, None, "quadratic", (side, side), size, channels, classes, title or kind, note)


def _classes(model: nn.Module, size: tuple[int, int], channels: int) -> int:
    """How many classes it tells apart: 0 if its output is something else."""
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            answer = predict(model, torch.zeros(1, channels, *size, device=device))
    except Exception as error:  # networks raise what they like
        raise ExplorerError(
            f"The network fails on images of {size[0]} x {size[1]} pixels with {channels} channels ({error}). "
            "Give images= of the size that it takes."
        ) from error
    return answer.shape[1] if isinstance(answer, Tensor) and answer.dim() == 2 else 0
