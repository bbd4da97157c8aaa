"""The convolution that is inside an attention layer, and what it leaves out.

The way back from `attnconv.equivalence.surgery`: each shift Delta of a head is a tap of weight
P_h(q, q + Delta) W^h. So a positional layer is a convolution with one tap for each pixel; a small
kernel is the part of it that is near."""

from typing import Any

import torch
from torch import Tensor, nn

from attnconv.attention import LearnedAttention, PositionalAttention, tap_shifts
from attnconv.equivalence.surgery import PLAIN, TapAttention

# side of the grid at whose centre a quadratic layer is read: all shifts of the paper's 16x16 grid
INTERIOR = 33


@torch.no_grad()
def attention_to_conv(
    layer: PositionalAttention,
    kernel_size: int = 3,
    size: tuple[int, int] | None = None,
) -> tuple[nn.Conv1d | nn.Conv2d, Tensor]:
    """Read the convolution out of an attention layer: W_Delta = sum_h P_h(q, q + Delta) W^h at the
    central query q. And what it leaves out: the mass of each head on shifts that are no taps, (h,).

    Args:
        layer: `QuadraticAttention`, `LearnedAttention`, or a `TapAttention`, which gives back the
            convolution that it came from, stride and all. From the others comes a Conv2d (channels
            first) with ``padding="same"``. Beyond the border it sees the nearest pixel that exists,
            as a sharp head does (notebook 07).
        kernel_size: side of the kernel. A `TapAttention` has its own.
        size: (H, W) of the grid whose central query (H // 2, W // 2) is read. P depends on it, as
            the softmax is over the pixels that exist. Default: max_size x max_size for a
            `LearnedAttention`; for the others 33 x 33, or more if the kernel needs it.
    """
    if not isinstance(layer, PositionalAttention):
        raise TypeError(
            "A convolution is read where attention depends on positions alone, not from a "
            f"{type(layer).__name__}."
        )
    conv = _empty_conv(layer, kernel_size)
    taps = tap_shifts((1, *conv.kernel_size)[-2:], (1, *conv.dilation)[-2:])  # (K K, 2)
    if size is None:
        side = max(INTERIOR, 2 * int(taps.abs().max()) + 1)
        side = layer.max_size if isinstance(layer, LearnedAttention) else side
        size = (side, side) if isinstance(conv, nn.Conv2d) else (1, side)

    rows, columns = layer.shifts(size[0], 0), layer.shifts(size[1], 1)  # (Q, H), (R, W)
    middle = len(rows) // 2, len(columns) // 2
    p = layer.probabilities(*size, middle)  # (h, H, W)
    # Where the taps are: its first key is at the shift (rows[q, 0], columns[r, 0]).
    i, j = (taps - torch.tensor([rows[middle[0], 0], columns[middle[1], 0]])).T
    if min(i.min(), j.min()) < 0 or i.max() >= p.shape[1] or j.max() >= p.shape[2]:
        raise ValueError(
            f"A kernel of {conv.kernel_size} needs shifts that the central query of a {size[0]}x"
            f"{size[1]} grid does not have: take a larger size, or max_size, or a smaller kernel."
        )
    set_kernel(conv, layer, p[:, i, j])
    # Outside is summed as it is: 1 - sum inside would lose small masses.
    p[:, i, j] = 0
    return conv, p.sum((1, 2))


def set_kernel(conv: Any, layer: Any, mass: Tensor) -> None:
    """Give a convolution the layer's bias, and the kernel W_Delta = sum_h mass_h(Delta) W^h: the
    mass of each head on each tap is (h, taps).
    """
    each = (layer.heads, layer.channels // conv.groups)
    weight = layer.value.weight.unflatten(1, each)  # (D, h, C/groups)
    conv.weight.copy_(torch.einsum("ht,dhc->dct", mass, weight).view_as(conv.weight))
    if conv.bias is not None:
        conv.bias.copy_(layer.value.bias)


def _empty_conv(layer: Any, kernel_size: Any) -> Any:
    """The convolution to read, its weights still to be set."""
    kind: Any = nn.Conv2d
    options: Any = {"padding": "same", "padding_mode": "replicate"}
    if isinstance(layer, TapAttention):
        kind, kernel_size = PLAIN[layer.dimensions - 1], layer.kernel_size
        for name in ("stride", "padding", "dilation", "groups", "padding_mode"):
            options[name] = getattr(layer, name)
        options["bias"] = layer.bias is not None
    return kind(layer.channels, layer.out_channels, kernel_size, **options).to(layer.value.weight)
