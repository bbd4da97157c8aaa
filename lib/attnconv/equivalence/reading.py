"""The convolution that is inside an attention layer, and what it leaves out, with a bound.

The way back from `attnconv.equivalence.surgery`: each shift Delta of a head is a tap of weight P_h(q, q + Delta) W^h.
So a positional layer is a convolution with one tap for each pixel; a small kernel is the part of it that is near.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnconv.attention import LearnedAttention, PositionalAttention, QuadraticAttention
from attnconv.equivalence.surgery import TapAttention, times
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

    kernel_size: tuple[int, ...]
    size: tuple[int, int]
    """Height and width of the grid at whose central query the probabilities were read."""
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
) -> tuple[nn.Conv1d | nn.Conv2d, KernelReport]:
    """Read the convolution out of an attention layer: W_Delta = sum_h P_h(q, q + Delta) W^h at the central query q.

    Args:
        layer: `QuadraticAttention`, `LearnedAttention`, or a `TapAttention`, which gives back the convolution that it
            came from, stride and all. From the others comes a Conv2d (channels first) with ``padding="same"``; it
            agrees in the interior, as attention renormalizes at the borders and zero padding does not.
        kernel_size: None for a round trip: each head must then be one tap of a square kernel, or of the kernel the
            `TapAttention` was made from (Lemma 1's bijection), to a quarter of a pixel.
        size: (H, W) of the grid whose central query (H // 2, W // 2) is read. P depends on it, as the softmax is over
            the pixels that exist. Default: max_size x max_size for a `LearnedAttention`; for the others 33 x 33, or
            more if the kernel needs it.
    """
    if not isinstance(layer, (QuadraticAttention, LearnedAttention)):
        raise TypeError(
            f"{type(layer).__name__} is not a QuadraticAttention or LearnedAttention: a convolution can be read only "
            "where attention depends on positions alone."
        )
    tap = layer if isinstance(layer, TapAttention) else None
    dilation, groups = (tap.dilation, tap.groups) if tap else ((1, 1), 1)
    kernel = _kernel_of(layer, kernel_size)
    taps = tap_shifts(kernel, dilation)
    default = [max(INTERIOR, 2 * d * (k - 1) + 1) for k, d in zip(kernel, dilation, strict=True)]
    if tap:  # reflection and wrapping need an image larger than the padding
        default = [max(n, 1 + max(pads)) for n, pads in zip(default, tap.pads, strict=True)]
        default[: 2 - tap.dimensions] = [1] * (2 - tap.dimensions)
    elif isinstance(layer, LearnedAttention):
        default = [layer.max_size] * 2
    height, width = default if size is None else _pair("size", size, 2)

    conv = _empty_conv(layer, kernel)
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
        weight = layer.value.weight.unflatten(1, (layer.heads, layer.channels // groups))  # (D, h, C/groups)
        conv.weight.copy_(torch.einsum("ht,dhc->dct", p[:, i, j], weight).view_as(conv.weight))
        if conv.bias is not None:
            conv.bias.copy_(layer.value.bias)

        left_out = p.clone()
        left_out[:, i, j] = 0
        outside = left_out.sum((1, 2))  # summed as it is: 1 - sum inside would lose small masses
        blocks = weight.unflatten(0, (groups, -1)).permute(2, 0, 1, 3)  # (h, groups, D/groups, C/groups)
        bound = (outside * torch.linalg.matrix_norm(blocks, 2).amax(1)).sum()
        alike = torch.einsum("dhc,dgc->hg", weight, weight)  # <W^h, W^g>
        lost, whole = ((alike * (t.flatten(1) @ t.flatten(1).T)).sum().clamp_min(0).sqrt() for t in (left_out, p))
        error, relative = lost / math.sqrt(layer.channels), lost / whole.clamp_min(torch.finfo(exact).tiny)
    numbers = (number.item() for number in (bound, error, relative))
    return conv, KernelReport(tuple(conv.kernel_size), (height, width), outside, *numbers)


def _kernel_of(layer: PositionalAttention, kernel_size: int | tuple[int, ...] | None) -> tuple[int, int]:
    """Rows and columns of the kernel to read; with None, those of the grid that the heads must form."""
    tap = layer if isinstance(layer, TapAttention) else None
    if kernel_size is not None:
        kernel = _pair("kernel_size", kernel_size, tap.dimensions if tap else 2)
        kernel = (1, *kernel)[-2:]
        if tap and kernel != tap.kernel_size:
            raise ValueError(
                f"kernel_size = {kernel_size} is not the {times(tap.kernel_size)} that this layer's padding and "
                "stride were made for; leave it out."
            )
        return kernel
    if isinstance(layer, LearnedAttention):
        raise ValueError("A LearnedAttention has no centres to tell its kernel from; pass kernel_size.")
    side = math.isqrt(layer.heads)
    if not tap and (side**2 != layer.heads or not side):
        raise ValueError(
            f"{layer.heads} heads do not form a square grid of taps; pass kernel_size to read the nearest kernel."
        )
    kernel, dilation = (tap.kernel_size, tap.dilation) if tap else ((side, side), (1, 1))
    wanted = {tuple(shift) for shift in tap_shifts(kernel, dilation).tolist()}
    found = set()
    for head, centre in enumerate(layer.centres.tolist()):
        nearest = tuple(round(c) for c in centre)
        off_grid = max(abs(c - n) for c, n in zip(centre, nearest, strict=True)) > 0.25 or nearest not in wanted
        if off_grid or nearest in found:
            why = "is at no tap of it" if off_grid else f"shares the tap {nearest} with another head"
            raise ValueError(
                f"The heads do not form a {times(kernel)} grid, one head per tap: head {head}, centred at "
                f"({centre[0]:.3g}, {centre[1]:.3g}), {why}. Pass kernel_size to read the nearest convolution."
            )
        found.add(nearest)
    return kernel


def _central_probabilities(layer: PositionalAttention, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """P of the central query over all keys (h, H, W), and the shifts of the keys' rows (H,) and columns (W,)."""
    if isinstance(layer, TapAttention):
        queries = [layer.queries(n, axis).cpu() for axis, n in ((0, height), (1, width))]
    else:
        queries = [torch.arange(n) for n in (height, width)]
    centre = [len(q) // 2 for q in queries]
    if layer.separable:
        row, column = (layer.axis_probabilities(n, a)[:, centre[a]] for a, n in ((0, height), (1, width)))
        p = row[:, :, None] * column[:, None, :]
    else:
        p = layer.probabilities(height, width)[:, centre[0], centre[1]]
    rows, columns = (torch.arange(n) - q[c] for n, q, c in zip(p.shape[1:], queries, centre, strict=True))
    return p, rows, columns


def _empty_conv(layer: PositionalAttention, kernel: tuple[int, int]) -> nn.Conv1d | nn.Conv2d:
    """A convolution for this layer's kernel, weights not set; that of a `TapAttention` has its stride, padding, ..."""
    value = layer.value
    like = {"bias": value.bias is not None, "device": value.weight.device, "dtype": value.weight.dtype}
    if not isinstance(layer, TapAttention):
        return nn.utils.skip_init(nn.Conv2d, layer.channels, layer.out_channels, kernel, padding="same", **like)
    n = layer.dimensions
    like |= {"stride": layer.stride[-n:], "padding": layer.padding, "dilation": layer.dilation[-n:]}
    like |= {"groups": layer.groups, "padding_mode": layer.padding_mode}
    kind = (nn.Conv1d, nn.Conv2d)[n - 1]
    return nn.utils.skip_init(kind, layer.channels, layer.out_channels, kernel[-n:], **like)


def _pair(name: str, value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """One number per dimension, from one number or a sequence: the argument of that name."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * dimensions
    if len(values) != dimensions or not all(isinstance(v, int) and v >= 1 for v in values):
        raise ValueError(f"{name} = {value!r} must be a whole number, at least 1, or {dimensions} of them.")
    return values
