"""Changes that a reader makes to a model: heads moved, sharpened or switched off, layers as
convolutions.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from attnconv.attention import PositionalAttention, QuadraticAttention
from attnconv.equivalence import attention_to_conv
from attnconv.models import AttentionNet
from companion.explorer.packing import Tree

Edits = Sequence[Tree]  # as `edited` takes them
SIGMAS = (0.05, 50.0)
"""Least and largest standard deviation of a Gaussian head, in pixels of the grid."""


class ExplorerError(ValueError):
    """Something the explorer was asked and cannot do; its message is shown in the page."""


@contextlib.contextmanager
def edited(model: AttentionNet, edits: Edits) -> Iterator[None]:
    """The model with some changes, inside a ``with`` block; all is put back afterwards.

    An edit of a head names a ``layer`` and a ``head`` (from 0) and any of: ``off`` (true: the head
    adds nothing), and for Gaussian heads ``centre`` (row, column; pixels) and ``sigma``, the
    standard deviation det(Sigma)^(1/4) in pixels: a full covariance keeps its shape and is scaled.

    An edit of a ``layer`` with a ``kernel`` puts the convolution of that side in its place, as
    `attnconv.equivalence.swap` does. It is read from the layer with its heads as they are changed.
    An `ExplorerError` says what there is not: such a head, value or convolution."""
    layers: Any = model.attention_layers
    with contextlib.ExitStack() as undo:
        for edit in edits:
            place: Any = edit.get("layer")
            if place not in range(len(layers)):
                raise ExplorerError(f"There is no layer {place!r}: the model has {len(layers)}.")
            layer = layers[place]
            if edit.get("kernel") is not None:
                undo.enter_context(_swapped(model, layer, edit))
                continue
            for part, value in _changes(layer, edit):
                undo.callback(part.copy_, part.clone())
                part.copy_(torch.as_tensor(value))
        yield


def _swapped(model: AttentionNet, layer: Any, edit: Tree) -> RemovableHandle:
    """Put a convolution in a layer's place, until what is returned is closed."""
    number, size = edit["layer"] + 1, edit["kernel"]
    if not isinstance(layer, PositionalAttention):
        which = "only a layer can that does not look at content"
        raise ExplorerError(f"Layer {number} cannot be a convolution here: {which}.")
    grid = model.config.grid
    if size not in range(1, min(grid) + 1, 2):
        fits = f"it must be an odd number, at most {min(grid)}"
        raise ExplorerError(f"A kernel of side {size!r} does not fit: {fits}.")

    def convolved(layer: PositionalAttention, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        # Read anew whenever it computes: its heads may be changed after this.
        conv, _ = attention_to_conv(layer, size, size=grid)
        return conv(inputs[0].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    return layer.register_forward_hook(convolved)


def _changes(layer: Any, edit: Tree) -> Iterator[tuple[Tensor, Any]]:
    """The parts of a layer's parameters that an edit of a head changes, each with what is to be
    there.
    """
    head: Any = edit.get("head")
    if head not in range(layer.heads):
        which = f"Layer {edit['layer'] + 1} has no head {head!r}"
        raise ExplorerError(f"{which}: it has {layer.heads}.")
    if edit.get("off"):
        yield _matrix(layer, head), 0
    if isinstance(layer, QuadraticAttention):
        if edit.get("centre") is not None:
            centre = [_number(value, "centre", -1000, 1000) for value in edit["centre"]]
            yield layer.centres.detach()[head], centre
        if edit.get("sigma") is not None:
            sigma = _number(edit["sigma"], "sigma", *SIGMAS)
            yield layer.spreads.detach()[head], _rescaled(layer, head, sigma)


def _matrix(layer: Any, head: int) -> Tensor:
    """W^h of a head, as a part of the layer's weights."""
    return layer.value.weight.detach()[:, head * layer.channels : (head + 1) * layer.channels]


def _number(value: Any, name: str, low: float, high: float) -> float:
    if not isinstance(value, int | float) or not low <= value <= high:
        raise ExplorerError(f"{name} = {value!r} must be a number from {low:g} to {high:g}.")
    return float(value)


def sigmas_of(layer: QuadraticAttention) -> Tensor:
    """det(Sigma)^(1/4) of every head, from its Sigma^{-1/2}: (h,); 0 where it has no such scale."""
    spreads = layer.spreads.detach().double()
    scales = spreads.abs() if spreads.dim() == 1 else spreads.det().abs().sqrt()
    return torch.where(scales >= 1e-6, 1 / scales, 0)


def _rescaled(layer: QuadraticAttention, head: int, sigma: float) -> Tensor:
    """Sigma^{-1/2} of a head, scaled so that det(Sigma)^(1/4) is sigma; round where it has no such
    scale.
    """
    spread, before = layer.spreads.detach()[head], sigmas_of(layer)[head]
    if spread.dim() == 0:
        return torch.full_like(spread, 1 / sigma)  # whatever its sign: the score takes its square
    return spread * before / sigma if before else torch.eye(2) / sigma
