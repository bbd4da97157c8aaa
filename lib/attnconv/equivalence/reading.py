"""The convolution that is inside an attention layer, and what it leaves out, with a bound.

The way back from `attnconv.equivalence.surgery`: each shift Delta of a head is a tap of weight P_h(q, q + Delta) W^h.
So a positional layer is a convolution with one tap for each pixel; a small kernel is the part of it that is near.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnconv.attention import LearnedAttention, PositionalAttention, QuadraticAttention
from attnconv.attention.mixing import scores
from attnconv.equivalence.surgery import TapAttention, rows_and_columns, times
from attnconv.equivalence.theorem import tap_shifts

INTERIOR = 33
"""Side of the grid at whose central query a quadratic layer is read: it has all shifts of the paper's 16x16 grid."""


@dataclass(frozen=True)
class KernelReport:
    """What `attention_to_conv` leaves out, for a query far enough from the borders to see what the central one sees.

    The part left out is sum_h sum_{Delta outside} P_h(Delta) X_{q + Delta} W^h, so its norm is at most ``bound`` times
    the largest pixel norm |X_k|. The two errors are exact expectations over white noise: there each shift adds
    |sum_h P_h(Delta) W^h|^2 to the output's mean square, independently of the others.
    """

    outside: Tensor
    """(h,): attention mass of each head on shifts that are not taps of the kernel."""
    bound: float
    """sum_h outside_h |W^h|_2, with the spectral norm: the largest output error per unit of pixel norm."""
    error: float
    """Root mean square of |attention - convolution|, per unit of that of a pixel's norm; at most ``bound``."""
    relative_error: float
    """The same as a share of the output: |attention - convolution| / |attention - bias|, each root mean square."""


def attention_to_conv(
    layer: PositionalAttention,
    kernel_size: int | tuple[int, ...] | None = None,
    size: int | tuple[int, int] | None = None,
    padding_mode: str = "replicate",
) -> tuple[nn.Conv1d | nn.Conv2d, KernelReport]:
    """Read the convolution out of an attention layer: W_Delta = sum_h P_h(q, q + Delta) W^h at the central query q.

    Args:
        layer: `QuadraticAttention`, `LearnedAttention`, or a `TapAttention`, which gives back the convolution that it
            came from, stride and all. From the others comes a Conv2d (channels first) with ``padding="same"``.
        kernel_size: of the convolution. A `TapAttention` has its own.
        size: (H, W) of the grid whose central query (H // 2, W // 2) is read. P depends on it, as the softmax is over
            the pixels that exist. Default: max_size x max_size for a `LearnedAttention`; for the others 33 x 33, or
            more if the kernel needs it.
        padding_mode: what that Conv2d sees beyond the border. A sharp head whose pixel does not exist looks at the
            nearest one that does, which is ``replicate``. On real images it comes nearest to trained layers of all
            kinds (notebook 07). In the first three layers of a quadratic model that began on a small disc the relative
            error at 5 x 5 is 0.01 to 0.06, with ``zeros`` 0.24 to 0.59, and 0.42 to 1.1 where the taps that exist
            share the whole weight.
    """
    if not isinstance(layer, (QuadraticAttention, LearnedAttention)):
        raise TypeError(
            f"{type(layer).__name__} is not a QuadraticAttention or LearnedAttention: a convolution can be read only "
            "where attention depends on positions alone."
        )
    conv, kernel = _empty_conv(layer, kernel_size, padding_mode)
    dilation = rows_and_columns(conv.dilation, 2)
    taps = tap_shifts(kernel, dilation)
    if size is not None:
        height, width = _whole_numbers("size", size, 2)
    elif isinstance(layer, LearnedAttention):
        height = width = layer.max_size
    else:
        height, width = (max(INTERIOR, 2 * d * (k - 1) + 1) for k, d in zip(kernel, dilation, strict=True))
        height = 1 if isinstance(conv, nn.Conv1d) else height

    exact = torch.promote_types(conv.weight.dtype, torch.float32)
    with torch.no_grad():
        layer = copy.deepcopy(layer).to(exact)
        p, rows, columns = _central_probabilities(layer, height, width)
        i, j = taps[:, 0] - rows[0], taps[:, 1] - columns[0]
        if min(i.min(), j.min()) < 0 or i.max() >= len(rows) or j.max() >= len(columns):
            remedy = f"max_size = {layer.max_size}" if isinstance(layer, LearnedAttention) else "a larger size"
            raise ValueError(
                f"A {times(kernel)} kernel needs shifts up to {int(taps.abs().max())}, which the central query of a "
                f"{height}x{width} grid does not have ({remedy}). Take a smaller kernel or a larger grid."
            )
        weight = layer.value.weight.unflatten(1, (layer.heads, layer.channels // conv.groups))  # (D, h, C/groups)
        conv.weight.copy_(torch.einsum("ht,dhc->dct", p[:, i, j], weight).view_as(conv.weight))
        if conv.bias is not None:
            conv.bias.copy_(layer.value.bias)

        left_out = p.clone()
        left_out[:, i, j] = 0
        outside = left_out.sum((1, 2))  # summed as it is: 1 - sum inside would lose small masses
        blocks = weight.unflatten(0, (conv.groups, -1)).permute(2, 0, 1, 3)  # (h, groups, D/groups, C/groups)
        bound = (outside * torch.linalg.matrix_norm(blocks, 2).amax(1)).sum()
        alike = torch.einsum("dhc,dgc->hg", weight, weight)  # <W^h, W^g>
        lost, whole = ((alike * (t.flatten(1) @ t.flatten(1).T)).sum().clamp_min(0).sqrt() for t in (left_out, p))
        error, relative = lost / math.sqrt(layer.channels), lost / whole.clamp_min(torch.finfo(exact).tiny)
    return conv, KernelReport(outside, bound.item(), error.item(), relative.item())


def _empty_conv(
    layer: PositionalAttention, kernel_size: int | tuple[int, ...] | None, padding_mode: str
) -> tuple[nn.Conv1d | nn.Conv2d, tuple[int, int]]:
    """The convolution to read, weights not set, and its kernel's rows and columns."""
    tap = layer if isinstance(layer, TapAttention) else None
    dimensions = tap.dimensions if tap else 2
    if kernel_size is not None:
        kernel = rows_and_columns(_whole_numbers("kernel_size", kernel_size, dimensions), dimensions)
    elif tap:
        kernel = tap.kernel_size
    else:
        raise ValueError(f"A {type(layer).__name__} can be read with a kernel of any size; pass kernel_size.")
    options: dict[str, Any] = {"padding": "same", "padding_mode": padding_mode}
    if tap:
        if kernel != tap.kernel_size:
            raise ValueError(
                f"kernel_size = {kernel_size} is not the {times(tap.kernel_size)} that this layer's padding and "
                "stride were made for; leave it out."
            )
        options = {"stride": tap.stride, "padding": tap.padding, "dilation": tap.dilation[-dimensions:]}
        options |= {"groups": tap.groups, "padding_mode": tap.padding_mode}
    bias, weight = layer.value.bias is not None, layer.value.weight
    options |= {"bias": bias, "device": weight.device, "dtype": weight.dtype}
    kind = (nn.Conv1d, nn.Conv2d)[dimensions - 1]
    return nn.utils.skip_init(kind, layer.channels, layer.out_channels, kernel[-dimensions:], **options), kernel


def _central_probabilities(layer: PositionalAttention, height: int, width: int) -> tuple[Tensor, list[int], list[int]]:
    """P of the central query over all keys (h, H, W), and the shifts of the keys' rows (H,) and columns (W,)."""
    axes = [layer.shifts(length, axis) for axis, length in enumerate((height, width))]  # (Q, H), (R, W)
    middle = [len(shifts) // 2 for shifts in axes]
    query = (torch.tensor([place], device=axes[0].device) for place in middle)
    logits = scores(*query, *layer.score_terms(height, width))[:, 0]
    p = logits.flatten(1).softmax(1).view_as(logits)
    rows, columns = (shifts[place].tolist() for shifts, place in zip(axes, middle, strict=True))
    return p, rows, columns


def _whole_numbers(name: str, value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """One number per dimension, from one number or a sequence: the argument of that name."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * dimensions
    if len(values) != dimensions or not all(isinstance(v, int) and v >= 1 for v in values):
        raise ValueError(f"{name} = {value!r} must be a whole number, at least 1, or {dimensions} of them.")
    return values
