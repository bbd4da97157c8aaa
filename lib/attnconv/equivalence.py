"""Theorem 1 as code, in both directions: a convolution as self-attention, and the convolution inside attention.

A convolution adds up one matrix product per tap, Conv(X)_q = sum_Delta X_{q + Delta} W_Delta + b. An attention layer
adds up one per head, MHSA(X)_q = sum_h sum_k P_h(q, k) X_k W^h + b. A head whose P puts all its mass on one shift
k - q = Delta is therefore one tap (the paper's Lemma 1), and the quadratic encoding has such heads (Lemma 2): centre
Delta, and a spread so sharp that the softmax is one-hot.

- `conv_to_attention` turns one layer around, `convert` a whole network; `TapAttention` is what they build.
- `attention_to_conv` reads a convolution back, and reports what it leaves out.
- `missed_mass` says how far from one-hot a Gaussian head is; `rank_limited` what small heads cost (the appendix).

Shape letters as in `attnconv.attention`: B images, C and D channels, h heads; H x W pixels of the input, H' x W' of the
padded input, Q x R of the output (the queries).
"""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from tqdm.auto import tqdm

from attnconv.attention import LearnedAttention, PositionalAttention, QuadraticAttention
from attnconv.precision import choose, computing

ALPHA = 800.0
"""Sharpness (Lemma 2) at which a softmax is exactly one-hot: exp(-alpha) is 0 beyond 104 in float32, 745 in float64."""

CHUNK = 2**22
"""Mixed values (images x queries x heads x channels) to hold at a time, if one image has no more: 16 MiB in float32."""

INTERIOR = 33
"""Side of the grid at whose central query a quadratic layer is read: it has all shifts of the paper's 16x16 grid."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def missed_mass(alpha: float | Tensor, dimensions: int = 2) -> float | Tensor:
    """Attention mass that an isotropic Gaussian head leaves off its centre: 1 - 1/S^dimensions.

    S = sum over n in Z of exp(-alpha n^2), for an integer centre far from the borders: the probability at the centre
    is 1/S along each axis. About 4 exp(-alpha) in two dimensions. Takes a number, or a tensor elementwise (float64).
    """
    a = torch.as_tensor(alpha, dtype=torch.float64)
    if not (a > 0).all():
        raise ValueError(f"alpha = {alpha} must be positive: the mass of a flat head has no centre.")
    terms = math.ceil(math.sqrt(40 / a.min().item())) + 1  # exp(-40) is below float64's rounding
    n = torch.arange(1, terms + 1, dtype=torch.float64, device=a.device)
    beside = 2 * torch.exp(-a[..., None] * n.square()).sum(-1)  # S - 1, without cancellation
    missed = -torch.expm1(-dimensions * torch.log1p(beside))
    return missed if isinstance(alpha, Tensor) else missed.item()


def tap_shifts(kernel_size: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Tensor:
    """Shift (rows, columns) of every tap of a kernel, row by row: (taps, 2).

    Tap t of K looks dilation (t - (K-1)/2) pixels away from the query, rounded so that shifts are whole pixels; an even
    kernel has one tap more to the right, like PyTorch's padding='same'.
    """
    axes = [torch.arange(k) * d - _anchor(k, d) for k, d in zip(kernel_size, dilation, strict=True)]
    return torch.cartesian_prod(*axes)


def _anchor(kernel: int, dilation: int) -> int:
    """Where the query pixel sits under the kernel, along one axis: pixels from the first tap."""
    return dilation * (kernel - 1) // 2


class TapAttention(QuadraticAttention):
    """Quadratic attention with one head per kernel tap, in the place of a `Conv2d` or `Conv1d` (Theorem 1).

    Takes and returns what the convolution does, **channels first**: (B, C, H, W) -> (B, D, Q, R), or (B, C, L) for a
    Conv1d, which is an image of one row. Inside, all is channels last like the other layers (`attend`); the output is
    a channels-last tensor in memory, seen channels first.

    - Borders (the paper's remedy): the input is padded as the convolution pads it, keys are all H' x W' pixels of the
      padded image, and queries are its interior pixels only.
    - A stride attends from every stride-th query; a dilation moves the heads apart.
    - Groups: W^h is block-diagonal, and ``value.weight`` (D, h C/groups) holds only the blocks. Without groups it is
      the (D, h C) of every attention layer.

    What was trained in the convolution is trained here. ``centres`` and ``spreads`` are frozen where the softmax is
    exactly one-hot, as it passes them no gradient: heads that are to move want an alpha of 3 to 10.
    """

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA):
        if not (alpha > 0 and math.isfinite(alpha)):
            raise ValueError(f"alpha = {alpha} must be positive and finite.")
        for hook in conv._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod):  # the weight is made in every forward pass
                hook(conv, ())
        flat = (1,) * (2 - len(conv.kernel_size))  # a Conv1d is a kernel of one row
        kernel_size, dilation = (*flat, *conv.kernel_size), (*flat, *conv.dilation)
        weight, heads = conv.weight, math.prod(kernel_size)
        with torch.device("meta"):  # every parameter is set below: no random numbers drawn, no memory used
            super().__init__(conv.in_channels // conv.groups, conv.out_channels, heads)
        self.channels, self.groups, self.dimensions = conv.in_channels, conv.groups, weight.dim() - 2
        self.kernel_size, self.stride, self.dilation = kernel_size, (*flat, *conv.stride), dilation
        self.padding, self.padding_mode = conv.padding, conv.padding_mode
        if conv.padding == "same":
            totals = [d * (k - 1) for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
            pads = [(total // 2, total - total // 2) for total in totals]
        else:
            pads = [(p, p) for p in ((0,) * self.dimensions if conv.padding == "valid" else conv.padding)]
        self.pads = ((0, 0), *pads)[-2:]  # (before, after) of rows, of columns
        spread = torch.tensor(math.sqrt(2 * alpha), dtype=weight.dtype)
        if not spread.square().isfinite():
            largest = torch.finfo(weight.dtype).max / 2
            raise ValueError(f"alpha = {alpha} is too large for {weight.dtype}: choose less than {largest:.2g}.")
        centres = tap_shifts(kernel_size, dilation).to(weight)
        # Where the softmax is exactly one-hot no gradient reaches positions, and weight decay alone would move them.
        smallest = torch.finfo(weight.dtype).smallest_normal
        trained = weight.requires_grad and math.exp(-alpha) >= smallest
        self.centres = nn.Parameter(centres, requires_grad=trained)
        self.spreads = nn.Parameter(torch.full_like(centres[:, 0], spread.item()), requires_grad=trained)
        # (D, C/groups, *kernel) -> (D, taps x C/groups): the taps' slices side by side, as nn.Linear stores W^h.
        values = weight.detach().flatten(2).transpose(1, 2).flatten(1)
        self.value.weight = nn.Parameter(values.clone(), requires_grad=weight.requires_grad)
        bias = None if conv.bias is None else nn.Parameter(conv.bias.detach().clone(), conv.bias.requires_grad)
        self.value.bias = bias
        self.train(conv.training)
        self._table: tuple | None = None

    def _title(self) -> str:
        return "TapAttention"

    def queries(self, length: int, axis: int) -> Tensor:
        """Where the queries are along one axis (0 rows, 1 columns), in pixels of the padded image: (Q,) or (R,)."""
        padded = length + sum(self.pads[axis])
        extent = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
        if padded < extent:
            name = "height" if axis == 0 else "width"
            raise ValueError(
                f"A {name} of {length} is {padded} with padding, less than the {extent} pixels that the kernel of "
                f"{self.kernel_size[axis]} at dilation {self.dilation[axis]} covers; no query has all its taps."
            )
        first = _anchor(self.kernel_size[axis], self.dilation[axis])
        return torch.arange(0, padded - extent + 1, self.stride[axis], device=self.centres.device) + first

    def axis_logits(self, length: int, axis: int) -> Tensor:
        """Score of each query for each pixel of the padded image, along one axis: (h, Q, H') or (h, R, W').

        ``length`` is the input's, without padding. `axis_probabilities` is the softmax of these scores, and
        `probabilities(height, width)` is (h, Q, R, H', W').
        """
        keys = torch.arange(length + sum(self.pads[axis]), device=self.centres.device)
        shift = keys - self.queries(length, axis)[:, None]
        offset = shift - self.centres[:, axis, None, None]
        return -0.5 * self.spreads[:, None, None].square() * offset.square()

    def pad(self, x: Tensor) -> Tensor:
        """(..., H, W) -> (..., H', W'), as the convolution pads."""
        amounts = [*self.pads[1], *self.pads[0]][: 2 * (x.dim() - 2)]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, amounts, mode) if any(amounts) else x

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, Q, R), or for a Conv1d (B, C, L) -> (B, D, R)."""
        if x.dim() != self.dimensions + 2 or x.shape[1] != self.channels:
            takes = f"(B, {self.channels}, {'H, W' if self.dimensions == 2 else 'L'})"
            raise ValueError(
                f"{self._title()} takes {self.dimensions + 2}-D input {takes}, channels first, as the convolution it "
                f"replaces; it was given {x.dim()}-D input {tuple(x.shape)}. Use `attend` for channels last."
            )
        x = self.pad(x)
        if self.dimensions == 1:
            x = x.unsqueeze(2)
        y = self.attend(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y.squeeze(2) if self.dimensions == 1 else y

    def attend(self, x: Tensor) -> Tensor:
        """The attention itself, channels last, on an image that is padded already: (B, H', W', C) -> (B, Q, R, D)."""
        with computing(choose(x.device), x.device):
            return self._attend(x.contiguous())

    def _attend(self, x: Tensor) -> Tensor:
        height, width = (x.shape[1 + axis] - sum(self.pads[axis]) for axis in (0, 1))
        size = len(self.queries(height, 0)), len(self.queries(width, 1))
        if len(x) == 0:
            return x.new_zeros(0, *size, self.out_channels)
        at_once = max(1, CHUNK // (math.prod(size) * self.heads * self.channels))
        parts = [self._project(self._mix(part, height, width)) for part in x.split(at_once)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unflatten(1, size)

    def _mix(self, x: Tensor, height: int, width: int) -> Tensor:
        """Average pixels by P = P_row (x) P_col, never built: x (B, H', W', C) -> (B, Q R, h, C).

        The rows of P are softmax outputs, and when heads are sharp nearly all of their entries are exactly 0 in
        floating point. Unless gradients for the positions are wanted, only the others are multiplied: a sparse matrix
        product with the same probabilities, 2 to 40 times faster on ResNet-50's layers (2 cores) than the dense one,
        which takes rows, then columns, head by head.
        """
        table = None
        if not (torch.is_grad_enabled() and (self.centres.requires_grad or self.spreads.requires_grad)):
            table = self._nonzero_probabilities(height, width, x.dtype)
        batch, padded_height, padded_width, channels = x.shape
        if table is not None:
            keys, weights = table
            pixels = x.flatten(1, 2)  # (B, H' W', C)
            if weights is None:  # P is one-hot: its product is a selection, and without shift or stride the pixels
                mixed = pixels if keys is None else pixels.index_select(1, keys)
            else:  # one row of P per (query, head): sum_k P(q, k) X_k over the listed keys
                rows = [F.embedding_bag(keys, image, mode="sum", per_sample_weights=weights) for image in pixels]
                mixed = torch.stack(rows)
            return mixed.reshape(batch, -1, self.heads, channels)
        rows, columns = (self.axis_probabilities(n, axis).to(x.dtype) for axis, n in ((0, height), (1, width)))
        mixed = []
        for row, column in zip(rows, columns, strict=True):  # (Q, H'), (R, W')
            y = torch.bmm(row.expand(batch, -1, -1), x.flatten(2)).view(-1, padded_width, channels)  # (B Q, W', C)
            mixed.append(torch.bmm(column.expand(len(y), -1, -1), y).view(batch, -1, channels))
        return torch.stack(mixed, dim=2)

    def _nonzero_probabilities(
        self, height: int, width: int, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None] | None:
        """The entries of P that are not 0: pixels and probabilities, each (Q R h, entries); None if they are too many.

        Where each row has one entry, a 1: pixels (Q R h,) and None; and None for both where these are all, in order.
        Kept from call to call until the size or a centre or a spread changes.
        """
        key = (height, width, dtype, self.centres.device)
        if self._table is not None and self._table[0] == key:
            _, centres, spreads, table = self._table
            if torch.equal(centres, self.centres) and torch.equal(spreads, self.spreads):
                return table
        with torch.inference_mode(False), torch.no_grad():
            rows, columns = (self.axis_probabilities(n, axis).to(dtype) for axis, n in ((0, height), (1, width)))
            counts = [int((p > 0).sum(-1).max()) for p in (rows, columns)]
            padded_height, padded_width = rows.shape[-1], columns.shape[-1]
            table = None
            if math.prod(counts) <= max(1, (padded_height + padded_width) // 8):
                (row_p, row), (column_p, column) = (p.topk(n) for p, n in zip((rows, columns), counts, strict=True))
                # (h, Q, m) and (h, R, n) -> (Q, 1, h, m, 1) and (1, R, h, 1, n): the product lists P's entries.
                across = [t.transpose(0, 1)[:, None, :, :, None] for t in (row_p, row)]
                along = [t.transpose(0, 1)[None, :, :, None, :] for t in (column_p, column)]
                pixels = across[1] * padded_width + along[1]
                weights = across[0] * along[0]
                keys, weights = (t.reshape(-1, math.prod(counts)) for t in (pixels, weights))
                if math.prod(counts) == 1 and bool((weights == 1).all()):
                    keys, weights = keys.flatten(), None
                    every = torch.arange(padded_height * padded_width, device=keys.device)
                    keys = None if torch.equal(keys, every) else keys
                table = keys, weights
            self._table = (key, self.centres.detach().clone(), self.spreads.detach().clone(), table)
        return table

    def _project(self, mixed: Tensor) -> Tensor:
        """Each head's value matrix and their sum: (B, Q R, h, C) -> (B, Q R, D)."""
        if self.groups == 1:
            return self.value(mixed.flatten(-2))
        values = self.value.weight.unflatten(1, (self.heads, -1)).unflatten(0, (self.groups, -1))
        if self.channels == self.groups:  # depthwise: W^h is diagonal, and this four times faster than the einsum
            y = mixed.new_zeros(1)
            for head in range(self.heads):
                y = torch.addcmul(y, mixed[:, :, head, :, None], values[:, :, head, 0])
        else:
            y = torch.einsum("bnhgc,gdhc->bngd", mixed.unflatten(-1, (self.groups, -1)), values)
        return y.flatten(-2) if self.value.bias is None else y.flatten(-2) + self.value.bias

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, {self.out_channels}, heads={self.heads} ({_times(self.kernel_size)} taps), "
            f"stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}, groups={self.groups}, "
            f"padding_mode={self.padding_mode!r}"
        )


def conv_to_attention(conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA) -> TapAttention:
    """The attention layer that computes what this convolution does (Theorem 1), with copies of its weights.

    Any kernel size, stride, dilation, groups, padding, padding mode and bias; the same device, dtype and layout
    (channels first). Head h is tap h of the kernel, row by row: its centre is the tap's shift, its value matrix the
    tap's slice of the kernel. ``alpha`` is Lemma 2's sharpness: with the default every softmax is exactly one-hot; a
    smaller one leaves ``missed_mass(alpha)`` around each tap, and gives the positions a gradient.
    """
    _check_convolution(conv, "")
    return TapAttention(conv, alpha)


def convert(network: nn.Module, alpha: float = ALPHA, progress: bool = True) -> nn.Module:
    """A copy of the network in which every `Conv2d` and `Conv1d` is self-attention; its outputs are the same.

    Everything else (norms, pooling, linear layers) is copied as it is. A progress bar names the layer at work; no bar
    with ``progress=False`` or the environment variable ``ATTNCONV_QUIET=1``. Fast under `torch.no_grad`.
    """
    modules = list(network.named_modules())
    for name, module in modules:  # all of them first: a refusal costs no time
        if isinstance(module, (nn.modules.conv._ConvNd, torch.jit.ScriptModule)):
            _check_convolution(module, name)
    convolutions = [(name, module) for name, module in modules if isinstance(module, _CONVOLUTIONS)]
    replaced = {}  # deepcopy's memo: what it finds here it takes for the copy, wherever the module is used
    quiet = not progress or os.environ.get("ATTNCONV_QUIET") == "1"
    with tqdm(convolutions, disable=quiet, desc="to attention", unit="layer") as bar:
        for name, module in bar:
            bar.set_postfix_str(name or type(module).__name__)
            replaced[id(module)] = TapAttention(module, alpha)
    return copy.deepcopy(network, replaced)


def _check_convolution(module: nn.Module, name: str) -> None:
    """Refuse what Theorem 1 does not cover, saying why; ``name`` is the module's path in its network."""
    where, title = f"{name}: " if name else "", type(module).__name__
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        raise TypeError(
            f"{where}{title} is a transposed convolution: its taps spread pixels out instead of gathering them, which "
            "is no attention over the input's pixels. Only Conv1d and Conv2d can be converted."
        )
    if not isinstance(module, _CONVOLUTIONS):
        raise TypeError(f"{where}{title} is not a Conv1d or Conv2d; attention here is over rows and columns.")
    own = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Conv1d
    if any(getattr(type(module), method) is not getattr(own, method) for method in ("forward", "_conv_forward")):
        raise TypeError(f"{where}{title} computes in its own way; only a plain {own.__name__} can be converted.")
    if nn.parameter.is_lazy(module.weight):
        raise ValueError(f"{where}{title} has no weights yet (lazy module): run the network once, then convert it.")
    if module.weight.is_complex():
        raise ValueError(
            f"{where}{title} has complex weights ({module.weight.dtype}); softmax attention is real. Convert the real "
            "and the imaginary part as two convolutions."
        )
    if not module.weight.is_floating_point():
        raise ValueError(f"{where}{title} has weights of {module.weight.dtype}; a floating-point type is needed.")
    if module._forward_hooks:
        raise ValueError(
            f"{where}{title} has forward hooks, and attention would come without them: remove them "
            "(`handle.remove()`), or register them on a module around it."
        )
    others = [h for h in module._forward_pre_hooks.values() if not isinstance(h, BasePruningMethod)]
    if others:
        names = ", ".join(getattr(hook, "__name__", type(hook).__name__) for hook in others)
        raise ValueError(
            f"{where}{title} has forward pre-hooks ({names}), and attention would come without them: remove them, an "
            "old-style norm by `nn.utils.remove_spectral_norm` or `remove_weight_norm`, or use "
            "`nn.utils.parametrizations`."
        )


@dataclass(frozen=True)
class KernelReport:
    """What `attention_to_conv` leaves out, for a query far enough from the borders to see what the central one sees.

    The part left out is sum_h sum_{Delta outside} P_h(Delta) X_{q + Delta} W^h, so its norm is at most ``bound`` times
    the largest pixel norm |X_k|.
    """

    kernel_size: tuple[int, ...]
    size: tuple[int, int]
    """Height and width of the grid at whose central query the probabilities were read."""
    outside: Tensor
    """(h,): attention mass of each head on shifts that are no tap of the kernel."""
    bound: float
    """sum_h outside_h |W^h|_2, with the spectral norm: the largest output error per unit of pixel norm."""
    error: float
    """Measured on random images at the central query: largest |attention - convolution| / largest |X_k|."""
    relative_error: float
    """The same as a share of the output: |attention - convolution| / |attention - bias|, over all the images."""


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
    dilation = tap.dilation if tap else (1, 1)
    kernel = _kernel_of(layer, kernel_size)
    taps = tap_shifts(kernel, dilation)
    default = [max(INTERIOR, 2 * d * (k - 1) + 1) for k, d in zip(kernel, dilation, strict=True)]
    if tap:  # reflection and wrapping need an image larger than the padding
        default = [max(n, 1 + max(pads)) for n, pads in zip(default, tap.pads, strict=True)]
        default[: 2 - tap.dimensions] = [1] * (2 - tap.dimensions)
    elif isinstance(layer, LearnedAttention):
        default = [layer.max_size] * 2
    height, width = default if size is None else _pair("size", size, 2)

    with torch.no_grad():
        p, rows, columns = _central_probabilities(layer, height, width)
        i, j = taps[:, 0] - rows[0], taps[:, 1] - columns[0]
        if min(i.min(), j.min()) < 0 or i.max() >= len(rows) or j.max() >= len(columns):
            remedy = f"max_size = {layer.max_size}" if isinstance(layer, LearnedAttention) else "a larger size"
            raise ValueError(
                f"A {_times(kernel)} kernel needs shifts up to {int(taps.abs().max())}, which the central query of a "
                f"{height}x{width} grid does not have ({remedy}). Take a smaller kernel or a larger grid."
            )
        at_taps = p[:, i, j]  # (h, taps)
        weight = layer.value.weight.unflatten(1, (layer.heads, -1))  # (D, h, C/groups): W^h transposed
        kernels = torch.einsum("ht,dhc->dct", at_taps.to(weight.dtype), weight)
        conv = _empty_conv(layer, kernel)
        conv.weight.copy_(kernels.view_as(conv.weight))
        if conv.bias is not None:
            conv.bias.copy_(layer.value.bias)

        inside = torch.zeros_like(p, dtype=torch.bool)
        inside[:, i, j] = True
        outside = p.masked_fill(inside, 0).sum((1, 2))  # summed as it is: 1 - sum inside would lose small masses
        blocks = weight.unflatten(0, (conv.groups, -1)).permute(2, 0, 1, 3)  # (h, groups, D/groups, C/groups)
        norms = torch.linalg.matrix_norm(blocks.to(p.dtype), 2).amax(1)
        bound = (outside * norms).sum().item()
        error, relative = _measure(layer, conv, height, width)
    return conv, KernelReport(tuple(conv.kernel_size), (height, width), outside, bound, error, relative)


def _kernel_of(layer: PositionalAttention, kernel_size: int | tuple[int, ...] | None) -> tuple[int, int]:
    """Rows and columns of the kernel to read; with None, those of the grid that the heads must form."""
    tap = layer if isinstance(layer, TapAttention) else None
    if kernel_size is not None:
        kernel = _pair("kernel_size", kernel_size, tap.dimensions if tap else 2)
        kernel = (1, *kernel)[-2:]
        if tap and kernel != tap.kernel_size:
            raise ValueError(
                f"kernel_size = {kernel_size} is not the {_times(tap.kernel_size)} that this layer's padding and "
                "stride were made for; leave it out."
            )
        return kernel
    if isinstance(layer, LearnedAttention):
        raise ValueError("A LearnedAttention has no centres to tell its kernel from; pass kernel_size.")
    side = math.isqrt(layer.heads)
    if not tap and side**2 != layer.heads:
        raise ValueError(
            f"{layer.heads} heads are no square grid of taps; pass kernel_size to read the nearest kernel."
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
                f"The heads are no {_times(kernel)} grid, one head per tap: head {head}, centred at "
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
    weight = layer.value.weight
    like = {"bias": layer.value.bias is not None, "device": weight.device, "dtype": weight.dtype}
    if not isinstance(layer, TapAttention):
        return nn.utils.skip_init(nn.Conv2d, layer.channels, layer.out_channels, kernel, padding="same", **like)
    n = layer.dimensions
    like |= {"stride": layer.stride[-n:], "padding": layer.padding, "dilation": layer.dilation[-n:]}
    like |= {"groups": layer.groups, "padding_mode": layer.padding_mode}
    kind = (nn.Conv1d, nn.Conv2d)[n - 1]
    return nn.utils.skip_init(kind, layer.channels, layer.out_channels, kernel[-n:], **like)


def _measure(layer: PositionalAttention, conv: nn.Conv1d | nn.Conv2d, height: int, width: int) -> tuple[float, float]:
    """Error and relative error of `KernelReport`, on four random images of that size."""
    weight = conv.weight
    x = torch.randn(4, layer.channels, height, width, generator=torch.Generator().manual_seed(0)).to(weight)
    training = layer.training
    layer.eval()  # no dropout
    if isinstance(layer, TapAttention):
        x = x.squeeze(2) if layer.dimensions == 1 else x
        attention = layer(x)
    else:
        attention = layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    layer.train(training)
    centre = (slice(None), slice(None), *(n // 2 for n in attention.shape[2:]))
    attention, difference = attention[centre], (attention - conv(x))[centre]  # (4, D)
    signal = attention if conv.bias is None else attention - conv.bias
    error = difference.norm(dim=1).max() / x.norm(dim=1).max()
    relative = difference.norm() / signal.norm().clamp_min(torch.finfo(signal.dtype).tiny)
    return error.item(), relative.item()


@dataclass(frozen=True)
class RankReport:
    """What heads of a limited dimension lose of a convolution (`rank_limited`)."""

    head_dim: int
    weight_error: float
    """Share of the kernel lost: |W - W'| / |W|, Frobenius norms over all taps."""
    output_error: float
    """Share of the output lost, measured on white noise, where it is ``weight_error`` in expectation."""


def rank_limited(conv: nn.Conv1d | nn.Conv2d, head_dim: int, alpha: float = ALPHA) -> tuple[TapAttention, RankReport]:
    """The best attention layer for this convolution whose heads have dimension D_h = ``head_dim``, and what it loses.

    W^h = W_val^h W_out^h has rank at most D_h, so each tap is cut to its D_h largest singular values, which is best in
    Frobenius norm (Eckart-Young). Nothing is lost from D_h = min(C, D) on (Theorem 1 says D; the input limits it too).
    With groups, the singular values of a block-diagonal W^h are those of its blocks, and the largest D_h of all stay.
    """
    if head_dim < 1:
        raise ValueError(f"head_dim = {head_dim} must be at least 1.")
    layer = conv_to_attention(conv, alpha)
    with torch.no_grad():
        weight = layer.value.weight.unflatten(1, (layer.heads, -1)).unflatten(0, (layer.groups, -1))
        u, s, v = torch.linalg.svd(weight.permute(2, 0, 1, 3), full_matrices=False)  # (h, groups, D/groups, C/groups)
        rest = s.flatten(1).argsort(dim=1, descending=True)[:, head_dim:]
        kept = s.flatten(1).scatter(1, rest, 0.0).view_as(s)
        low = ((u * kept[..., None, :]) @ v).permute(1, 2, 0, 3).flatten(0, 1).flatten(1)
        tiny = torch.finfo(low.dtype).tiny  # of a kernel that is all zero nothing is lost
        error = (low - layer.value.weight).norm() / layer.value.weight.norm().clamp_min(tiny)
        size = [2 * d * (k - 1) + 8 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        size[: 2 - layer.dimensions] = [1] * (2 - layer.dimensions)
        noise = torch.randn(4, *size, layer.channels, generator=torch.Generator().manual_seed(0)).to(low)
        full = layer.attend(noise)
        layer.value.weight.copy_(low)
        signal = full if layer.value.bias is None else full - layer.value.bias
        output_error = (layer.attend(noise) - full).norm() / signal.norm().clamp_min(tiny)
    return layer, RankReport(head_dim, error.item(), output_error.item())


def _pair(name: str, value: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """One number per dimension, from one number or a sequence: the argument of that name."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * dimensions
    if len(values) != dimensions or not all(isinstance(v, int) and v >= 1 for v in values):
        raise ValueError(f"{name} = {value!r} must be a whole number, at least 1, or {dimensions} of them.")
    return values


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
