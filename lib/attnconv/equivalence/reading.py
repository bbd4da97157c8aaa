"""The convolution that is inside an attention layer, and what it leaves out.

The way back from `attnconv.equivalence.surgery`: each shift Delta of a head is a tap of weight
P_h(q, q + Delta) W^h. So a positional layer is a convolution with one tap for each pixel; a small
kernel is the part of it that is near."""

import copy
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from attnconv.attention import LearnedAttention, PositionalAttention, QuadraticAttention, tap_shifts
from attnconv.attention.mixing import scores
from attnconv.equivalence.surgery import TapAttention

# side of the grid at whose centre a quadratic layer is read: all shifts of the paper's 16x16 grid
INTERIOR = 33


@dataclass(frozen=True)
class KernelReport:
    """What a convolution in the place of an attention layer leaves out."""

    outside: (
        Tensor | None
    )  # (h,): mass of each head on shifts that are no taps of the kernel; None for a fitted one
    relative_error: float
    """|attention - convolution| / |attention - bias|, each a root mean square. From
    `attention_to_conv` its expectation over white noise, where each shift adds |sum_h P_h(Delta)
    W^h|^2 to the output's mean square, for a query that sees what the central one sees; from
    `attnconv.equivalence.swap`, where images were needed, measured on them."""
    on: str = "white noise"  # or images


def attention_to_conv(
    layer: PositionalAttention,
    kernel_size: int | None = None,
    size: tuple[int, int] | None = None,
    padding_mode: str = "replicate",
) -> tuple[nn.Conv1d | nn.Conv2d, KernelReport]:
    """Read the convolution out of an attention layer: W_Delta = sum_h P_h(q, q + Delta) W^h at the
    central query q.

    Args: layer: `QuadraticAttention`, `LearnedAttention`, or a `TapAttention`, which gives back the
        convolution that it came from, stride and all. From the others comes a Conv2d (channels
        first) with ``padding="same"``. kernel_size: side of the kernel. A `TapAttention` has its
        own. size: (H, W) of the grid whose central query (H // 2, W // 2) is read. P depends on it,
        as the softmax is over the pixels that exist. Default: max_size x max_size for a
        `LearnedAttention`; for the others 33 x 33, or more if the kernel needs it. padding_mode:
        what that Conv2d sees beyond the border. A sharp head whose pixel does not exist looks at
        the nearest one that does, which is ``replicate``: on real images the nearest to trained
        layers of all kinds (notebook 07)."""
    if not isinstance(layer, (QuadraticAttention, LearnedAttention)):
        kind = type(layer).__name__
        raise TypeError(
            f"A convolution is read where attention depends on positions alone, not from a {kind}."
        )
    conv, kernel, dilation = _empty_conv(layer, kernel_size, padding_mode)
    if size is not None:
        height, width = size
    elif isinstance(layer, LearnedAttention):
        height = width = layer.max_size
    else:
        height, width = (
            max(INTERIOR, 2 * d * (k - 1) + 1) for k, d in zip(kernel, dilation, strict=True)
        )
        height = 1 if isinstance(conv, nn.Conv1d) else height

    exact = torch.promote_types(conv.weight.dtype, torch.float32)
    with torch.no_grad():
        layer = copy.deepcopy(layer).to(exact)
        p, first = _central_probabilities(layer, height, width)
        i, j = (tap_shifts(kernel, dilation) - first).T  # where the taps are
        if min(i.min(), j.min()) < 0 or i.max() >= p.shape[1] or j.max() >= p.shape[2]:
            learned = (
                isinstance(layer, LearnedAttention) and size is None
            )  # then the grid is as large as it can be
            remedy = f"max_size = {layer.max_size}" if learned else "a larger size"
            needs = (
                f"shifts that the central query of a {height}x{width} grid does not have ({remedy})"
            )
            raise ValueError(f"A {kernel[0]}x{kernel[1]} kernel needs {needs}.")
        weight = layer.value.weight.unflatten(
            1, (layer.heads, layer.channels // conv.groups)
        )  # (D, h, C/groups)
        conv.weight.copy_(torch.einsum("ht,dhc->dct", p[:, i, j], weight).view_as(conv.weight))
        if conv.bias is not None:
            conv.bias.copy_(layer.value.bias)

        left_out = p.clone()
        left_out[:, i, j] = 0
        outside = left_out.sum((1, 2))  # summed as it is: 1 - sum inside would lose small masses
        alike = torch.einsum("dhc,dgc->hg", weight, weight)  # <W^h, W^g>
        lost, whole = (
            (alike * (t.flatten(1) @ t.flatten(1).T)).sum().clamp_min(0).sqrt()
            for t in (left_out, p)
        )
    return conv, KernelReport(outside, (lost / whole.clamp_min(torch.finfo(exact).tiny)).item())


def _empty_conv(
    layer: PositionalAttention, kernel_size: int | None, padding_mode: str
) -> tuple[nn.Conv1d | nn.Conv2d, tuple[int, ...], tuple[int, ...]]:
    """The convolution to read, weights not set, and the rows and columns of its kernel and its
    dilation.
    """
    weight, bias = layer.value.weight, layer.value.bias
    options: dict[str, Any] = {
        "bias": bias is not None,
        "device": weight.device,
        "dtype": weight.dtype,
    }
    if isinstance(layer, TapAttention):
        if kernel_size is not None:
            raise ValueError(
                f"kernel_size = {kernel_size!r}: this layer's convolution has its own; leave it out."
            )
        (kernel, _, dilation), n = layer.by_axis, layer.dimensions
        options |= {"stride": layer.stride, "dilation": layer.dilation, "groups": layer.groups}
        options |= {"padding": layer.padding, "padding_mode": layer.padding_mode}
    elif isinstance(kernel_size, Integral) and kernel_size >= 1:  # NumPy's, too
        kernel, dilation, n = (int(kernel_size),) * 2, (1, 1), 2
        options |= {"padding": "same", "padding_mode": padding_mode}
    else:
        raise ValueError(f"kernel_size = {kernel_size!r} must be a whole number, at least 1.")
    kind = (nn.Conv1d, nn.Conv2d)[n - 1]
    conv = nn.utils.skip_init(kind, layer.channels, layer.out_channels, kernel[-n:], **options)
    return conv, kernel, dilation


def _central_probabilities(
    layer: PositionalAttention, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """P of the central query over all keys (h, H, W), and the shift (rows, columns) of the first
    key: (2,).
    """
    axes = [
        layer.shifts(length, axis) for axis, length in enumerate((height, width))
    ]  # (Q, H), (R, W)
    middle = [len(shifts) // 2 for shifts in axes]
    query = torch.tensor(middle, device=axes[0].device)[:, None]
    logits = scores(*query, *layer.score_terms(height, width))[:, 0]
    first = torch.tensor(
        [int(shifts[place, 0]) for shifts, place in zip(axes, middle, strict=True)]
    )
    return logits.flatten(1).softmax(1).view_as(logits), first
