"""Changes that a reader makes to a model: heads moved, sharpened or switched off, layers as
convolutions.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnconv.attention import PositionalAttention, QuadraticAttention
from attnconv.equivalence import TapAttention, attention_to_conv
from attnconv.models import AttentionNet
from companion.explorer.arrays import ExplorerError

SIGMAS = (
    0.05,
    50.0,
)  # smallest and largest standard deviation of a Gaussian head, in pixels of the grid


def layers_of(model: nn.Module) -> tuple[Any, ...]:
    """The attention layers of an `AttentionNet` or a converted network, first to last."""
    if isinstance(model, AttentionNet):
        return tuple(model.attention_layers)
    return tuple(module for module in model.modules() if isinstance(module, TapAttention))


@contextlib.contextmanager
def edited(model: nn.Module, edits: Sequence[dict[str, Any]]) -> Iterator[None]:
    """The model with some changes, inside a ``with`` block; all is put back afterwards.

    An edit of a head names a ``layer`` and a ``head`` (from 0) and any of: ``off`` (true: the head
    adds nothing), and for Gaussian heads ``centre`` (row, column; pixels) and ``sigma``, the
    standard deviation det(Sigma)^(1/4) in
    pixels: a full covariance keeps its shape and is scaled.

    An edit of a ``layer`` with a ``kernel`` puts the convolution of that side in its place, as
    `attnconv.equivalence.swap` does. It is read from the layer with its heads as they are changed.
    An `ExplorerError` says what there is not: such a head, value or convolution."""
    layers = layers_of(model)
    with contextlib.ExitStack() as undo:
        for edit in edits:
            if edit.get("layer") not in range(len(layers)):
                raise ExplorerError(
                    f"There is no layer {edit.get('layer')!r}: the model has {len(layers)}."
                )
            layer = layers[edit["layer"]]
            if edit.get("kernel") is not None:
                undo.enter_context(_swapped(model, layer, edit))
                continue
            for part, value in _changes(layer, edit):
                undo.callback(part.copy_, part.clone())
                part.copy_(torch.as_tensor(value))
        yield


def _swapped(model: nn.Module, layer: Any, edit: dict[str, Any]) -> RemovableHandle:
    """Put a convolution in a layer's place, until what is returned is closed."""
    if not isinstance(model, AttentionNet) or not isinstance(layer, PositionalAttention):
        which = "only a layer of an AttentionNet can that does not look at content"
        raise ExplorerError(f"Layer {edit['layer'] + 1} cannot be a convolution here: {which}.")
    size, grid = edit["kernel"], model.config.grid
    sizes = range(1, min(grid) + 1, 2)
    if size not in sizes:
        raise ExplorerError(
            f"A kernel of side {size!r} does not fit: it must be an odd number, at most {sizes[-1]}."
        )
    # Read anew whenever it computes: its heads may be changed after this.
    return layer.register_forward_hook(
        lambda layer, inputs, _: convolved(layer, inputs[0], size, grid)
    )


def _changes(layer: Any, edit: dict[str, Any]) -> Iterator[tuple[Tensor, Any]]:
    """The parts of a layer's parameters that an edit of a head changes, each with what is to be
    there.
    """
    head: Any = edit.get("head")
    if head not in range(layer.heads):
        raise ExplorerError(
            f"Layer {edit['layer'] + 1} has no head {head!r}: it has {layer.heads}."
        )
    if edit.get("off") and isinstance(layer, TapAttention):
        row, column = divmod(head, layer.kernel_size[1])
        yield layer.weight.detach()[:, :, row, column], 0
    elif edit.get("off"):
        yield layer.value.weight.detach()[:, head * layer.channels : (head + 1) * layer.channels], 0
    if isinstance(layer, QuadraticAttention):
        if edit.get("centre") is not None:
            yield (
                layer.centres.detach()[head],
                [_number(value, "centre", -1000, 1000) for value in edit["centre"]],
            )
        if edit.get("sigma") is not None:
            spread = layer.spreads.detach()[head]
            yield spread, _rescaled(spread, _number(edit["sigma"], "sigma", *SIGMAS))


def convolved(layer: PositionalAttention, x: Tensor, size: int, grid: tuple[int, int]) -> Tensor:
    """What the size x size convolution that is read from a layer makes of its input, (B, H, W,
    C) both.
    """
    conv, _ = attention_to_conv(layer, size, size=grid)
    return conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def _number(value: Any, name: str, low: float, high: float) -> float:
    if not isinstance(value, int | float) or not low <= value <= high:
        raise ExplorerError(f"{name} = {value!r} must be a number from {low:g} to {high:g}.")
    return float(value)


def sigma_of(spread: Tensor) -> float:
    """det(Sigma)^(1/4) of a head, from its Sigma^{-1/2}; 0 where it has no such scale."""
    scale = spread.double().abs() if spread.dim() == 0 else spread.double().det().abs().sqrt()
    return 1 / scale.item() if scale.isfinite() and scale >= 1e-6 else 0.0


def _rescaled(spread: Tensor, sigma: float) -> Tensor:
    """Sigma^{-1/2} of a head, scaled so that det(Sigma)^(1/4) is sigma; round where it has no
    such scale.
    """
    if spread.dim() == 0:
        return torch.full_like(spread, 1 / sigma)  # whatever its sign: the score takes its square
    if not (before := sigma_of(spread)):
        return torch.eye(2).to(spread) / sigma
    return (spread.double() * (before / sigma)).to(spread)
