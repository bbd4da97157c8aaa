"""Any convolution, and whole networks, as attention.

`attnconv.equivalence.theorem` is the idea. Here it meets all that convolutions have besides a kernel: strides,
dilations, groups, paddings, one dimension. `conv_to_attention` turns one layer around, `convert` a whole network;
`TapAttention` is what they build.

Shape letters as in `attnconv.attention`: B images, C and D channels, h heads; H x W pixels of the input, H' x W' of the
padded input, Q x R of the output (the queries).
"""

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from attnconv.attention import QuadraticAttention
from attnconv.attention.mixing import in_torch_func, mix_separable
from attnconv.attention.precision import choose, computing
from attnconv.equivalence.theorem import ALPHA, tap_shifts, value_matrices

MIXED = 2**22
"""Mixed values (images x queries x heads x channels) to hold at a time, if one image has no more: 16 MiB in float32."""

KEPT = 8
"""Image sizes for which a layer keeps the pixels that its heads see."""


class TapAttention(QuadraticAttention):
    """Quadratic attention with one head per kernel tap, in the place of a `Conv2d` or `Conv1d` (Theorem 1).

    Takes and returns what the convolution does, **channels first**: (B, C, H, W) -> (B, D, Q, R), or (B, C, L) for a
    Conv1d, which is an image of one row. In memory the output is channels last, like that of the other layers.

    - Borders (the paper's remedy): the input is padded as the convolution pads it, keys are all H' x W' pixels of the
      padded image, and queries are its interior pixels only.
    - A stride attends from every stride-th query; a dilation moves the heads apart.
    - The value matrices are the kernel: ``weight`` and ``bias`` are the convolution's own parameters, of the same
      shapes and names, for whatever reads, ties or assigns them. ``value.weight`` (D, h C/groups) shows them as
      attention layers hold them; with groups, W^h is block-diagonal, and these are its blocks.

    What was trained in the convolution is trained here. ``centres`` and ``spreads`` are float32 at least, as bfloat16
    has no shift of 257 pixels. They are frozen where the softmax is exactly one-hot, as it passes them no gradient:
    heads that are to move want an alpha of 3 to 10. `axis_logits(length, axis)` and what is made of it take the length
    without padding, and give (h, Q, H') or (h, R, W'). The constructor takes the parameters of ``conv`` over;
    `conv_to_attention` leaves ``conv`` as it is.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA):
        weight, bias = conv.weight, conv.bias
        kind = torch.promote_types(weight.dtype, torch.float32)
        largest = torch.finfo(kind).max / 2  # spreads are squared
        if not isinstance(alpha, (int, float)) or not 0 < alpha <= largest:
            raise ValueError(f"alpha = {alpha!r} must be a positive number, and for {kind} at most {largest:.2g}.")
        out_channels, channels, *kernel = weight.shape
        with torch.device("meta"):  # every parameter is set below: no random numbers drawn, no memory used
            super().__init__(conv.groups * channels, out_channels, math.prod(kernel))
        del self._modules["value"]  # `weight` takes its place
        self.in_channels, self.groups, self.dimensions = self.channels, conv.groups, len(kernel)
        self.kernel_size = rows_and_columns(kernel, self.dimensions)
        self.dilation = rows_and_columns(conv.dilation, self.dimensions)
        self.stride, self.padding, self.padding_mode = conv.stride, conv.padding, conv.padding_mode
        self._amounts = _amounts(conv, kernel)

        # Where the softmax is exactly one-hot no gradient reaches positions, and weight decay alone would move them.
        trained = weight.requires_grad and math.exp(-alpha) >= torch.finfo(kind).smallest_normal
        centres = tap_shifts(self.kernel_size, self.dilation).to(weight.device, kind)
        self.centres = nn.Parameter(centres, requires_grad=trained)
        self.spreads = nn.Parameter(torch.full_like(centres[:, 0], math.sqrt(2 * alpha)), requires_grad=trained)

        # In memory the kernel lies as the value matrices do, so that seeing it as such costs nothing.
        values = value_matrices(weight.data).contiguous()
        weight.data = values.unflatten(1, (self.heads, -1)).transpose(1, 2).view(weight.shape)
        self.weight, self.bias = weight, bias
        self.train(conv.training)
        self._kept: dict[tuple, tuple[Tensor, Tensor | slice | None]] = {}  # see `_selected`

    @property
    def value(self) -> SimpleNamespace:  # type: ignore[override]  # of other layers a module; here shown, never set
        """W^h and b as attention layers hold them: ``weight`` (D, h C/groups), ``bias`` (D,) or None."""
        return SimpleNamespace(weight=value_matrices(self.weight), bias=self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        exact = self.centres.data, self.spreads.data
        super()._apply(fn, recurse)
        for parameter, before in zip((self.centres, self.spreads), exact, strict=True):
            if parameter.dtype in (torch.float16, torch.bfloat16):  # `half()`: they stay where they are
                parameter.data = before.to(parameter.device)
        return self

    def _padded(self, length: int, axis: int) -> int:
        """Pixels of an axis (0 rows, 1 columns), padding included: H' or W'."""
        return length + sum(self._amounts[2 - 2 * axis : 4 - 2 * axis])

    def queries(self, length: int, axis: int) -> Tensor:
        """Where the queries are along one axis (0 rows, 1 columns), in pixels of the padded image: (Q,) or (R,)."""
        padded, dilation, kernel = self._padded(length, axis), self.dilation[axis], self.kernel_size[axis]
        extent = dilation * (kernel - 1) + 1
        if padded < extent:
            side = f"{('height', 'width')[axis]} of {length} ({padded} with padding)"
            raise ValueError(f"A {side} is less than a kernel of {kernel} at dilation {dilation}: {extent} pixels.")
        stride = rows_and_columns(self.stride, self.dimensions)[axis]
        return torch.arange(0, padded - extent + 1, stride, device=self.centres.device) + dilation * (kernel - 1) // 2

    def shifts(self, length: int, axis: int) -> Tensor:
        """Shift of each pixel of the padded image from each query: (Q, H') or (R, W')."""
        keys = torch.arange(self._padded(length, axis), device=self.centres.device)
        return keys - self.queries(length, axis)[:, None]

    def pad(self, x: Tensor) -> Tensor:
        """(..., H, W) -> (..., H', W'), as the convolution pads."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, self._amounts, mode) if any(self._amounts) else x

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, Q, R), or for a Conv1d (B, C, L) -> (B, D, R)."""
        if x.dim() != self.dimensions + 2 or x.shape[1] != self.channels:
            takes = f"{self.dimensions + 2}-D input (B, {self.channels}, {'H, W' if self.dimensions == 2 else 'L'})"
            raise ValueError(f"TapAttention takes {takes}, channels first, not {x.dim()}-D input {tuple(x.shape)}.")
        size = (1, *x.shape[2:])[-2:]
        x = self.pad(x)
        x = x.unsqueeze(2) if self.dimensions == 1 else x
        x = x.permute(0, 2, 3, 1).contiguous()  # (B, H', W', C)
        queries = [len(self.queries(length, axis)) for axis, length in enumerate(size)]
        at_once = max(1, MIXED // (math.prod(queries) * self.heads * self.channels))
        compiled = torch.compiler.is_compiling()  # how products are computed is then the compiler's choice
        with contextlib.nullcontext() if compiled else computing(choose(x.device), x.device):
            parts = [self._project(self._mix(part, *size)) for part in x.split(at_once)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts)  # (B, Q R, D)
        y = y.unflatten(1, queries).permute(0, 3, 1, 2)
        return y.squeeze(2) if self.dimensions == 1 else y

    def _mix(self, x: Tensor, height: int, width: int) -> Tensor:
        """Average pixels by P = P_row (x) P_col, never built: x (B, H', W', C) -> (B, Q R, h C).

        Where heads are sharp, the softmax is exactly one-hot in floating point: its product with the pixels picks one
        pixel for each query and head. These pixels are picked directly, unless the positions want gradients, or their
        values cannot be read: in torch.func, or while a graph is traced or exported.
        """
        moving = torch.is_grad_enabled() and (self.centres.requires_grad or self.spreads.requires_grad)
        unseen = in_torch_func() or torch.compiler.is_exporting() or torch.jit.is_tracing() or self.centres.is_meta
        pixels = None if moving or unseen else self._selected(height, width)
        if pixels is None:
            row, column = (self.axis_probabilities(n, axis).to(x.dtype) for axis, n in ((0, height), (1, width)))
            return mix_separable(x, row, column).flatten(1, 2)
        x = x.flatten(1, 2)  # (B, H' W', C)
        x = x if isinstance(pixels, slice) else x.index_select(1, pixels)  # (B, Q R h, C)
        return x.unflatten(1, (-1, self.heads)).flatten(2)

    def _selected(self, height: int, width: int) -> Tensor | slice | None:
        """The pixel that each head sees at each query (Q R h,), a slice if that is every pixel in order.

        None where P is not one-hot. Kept for the last sizes, until the stride, a centre or a spread changes. Threads
        may share a layer: what one keeps does not touch what another returns.
        """
        key = (height, width, self.stride, self.centres.device)
        positions = torch.cat([self.centres.detach().flatten(), self.spreads.detach()])
        kept = self._kept.get(key)
        if kept is None or not torch.equal(kept[0], positions):
            with torch.inference_mode(False), torch.no_grad():
                rows, columns = (self._one_hot(length, axis) for axis, length in ((0, height), (1, width)))
                pixels: Tensor | slice | None = None
                if rows is not None and columns is not None:
                    total = [self._padded(length, axis) for axis, length in ((0, height), (1, width))]
                    pixels = (rows[:, None] * total[1] + columns).flatten()
                    if len(pixels) == math.prod(total) and bool((pixels.diff() == 1).all()):
                        pixels = slice(None)
            kept = positions, pixels
            self._kept = dict([*self._kept.items(), (key, kept)][-KEPT:])
        return kept[1]

    def _one_hot(self, length: int, axis: int) -> Tensor | None:
        """The key that each head sees along an axis at each query (Q, h); None where attention is not one-hot.

        It is the key nearest to the query plus the centre, if the next nearest has no weight beside it: memory is
        linear in the length, as no softmax is made.
        """
        last = self._padded(length, axis) - 1
        place = self.queries(length, axis)[:, None] + self.centres[:, axis].double()  # (Q, h)
        nearest = place.round().clamp(0, last)
        beside = torch.where(place >= nearest, nearest + 1, nearest - 1)  # the next nearest, where it exists
        beside = torch.where((beside < 0) | (beside > last), 2 * nearest - beside, beside)
        gap = 0.5 * self.spreads.double().square() * ((beside - place).square() - (nearest - place).square())
        certain = (torch.exp(-gap) < torch.finfo(self.centres.dtype).eps / 8).all() if last else True
        return nearest.long() if certain else None

    def _project(self, mixed: Tensor) -> Tensor:
        """Each head's value matrix and their sum: (B, Q R, h C) -> (B, Q R, D)."""
        values = value_matrices(self.weight)
        if self.groups == 1:
            return F.linear(mixed, values, self.bias)
        mixed, values = mixed.unflatten(-1, (self.heads, -1)), values.unflatten(1, (self.heads, -1))
        values = values.unflatten(0, (self.groups, -1))  # (groups, D/groups, h, C/groups)
        if self.channels == self.groups:  # depthwise: W^h is diagonal, and this four times faster than the einsum
            y = mixed.new_zeros(1)
            for head in range(self.heads):
                y = torch.addcmul(y, mixed[:, :, head, :, None], values[:, :, head, 0])
        else:
            y = torch.einsum("bnhgc,gdhc->bngd", mixed.unflatten(-1, (self.groups, -1)), values)
        return y.flatten(-2) if self.bias is None else y.flatten(-2) + self.bias

    def extra_repr(self) -> str:
        return (
            f"{self.channels}, {self.out_channels}, heads={self.heads} ({times(self.kernel_size)} taps), "
            f"stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}, groups={self.groups}, "
            f"padding_mode={self.padding_mode!r}"
        )


def rows_and_columns(value: int | Sequence[int], dimensions: int) -> tuple[int, int]:
    """A convolution's stride, dilation, ... for two axes: a Conv1d has one row, and one number may stand for both."""
    values = (value,) if isinstance(value, int) else tuple(value)
    rows, columns = (1, *(values * dimensions if len(values) == 1 else values))[-2:]
    return rows, columns


def _amounts(conv: nn.Conv1d | nn.Conv2d, kernel: list[int]) -> list[int]:
    """Pixels that the convolution adds before and after, the last axis first, as `F.pad` takes them."""
    if conv.padding_mode == "zeros":  # reads its padding in every forward pass; the other modes have worked it out
        n = len(kernel)
        padding = conv.padding if isinstance(conv.padding, str) else rows_and_columns(conv.padding, n)[-n:]
        dilation = rows_and_columns(conv.dilation, n)[-n:]
        options: dict[str, Any] = {"kernel_size": kernel, "padding": padding, "dilation": dilation, "device": "meta"}
        conv = (nn.Conv1d, nn.Conv2d)[n - 1](1, 1, **options)
    return list(conv._reversed_padding_repeated_twice)


def conv_to_attention(conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA) -> TapAttention:
    """The attention layer that computes what this convolution does (Theorem 1), with copies of its weights.

    Any kernel size, stride, dilation, groups, padding, padding mode and bias; the same device, dtype and layout
    (channels first). Head h is tap h of the kernel, row by row: its centre is the tap's shift, its value matrix the
    tap's slice of the kernel. ``alpha`` is Lemma 2's sharpness: with the default every softmax is exactly one-hot; a
    smaller one leaves ``missed_mass(alpha)`` around each tap, and gives the positions a gradient. A convolution whose
    weight is computed anew in every forward pass (parametrized, pruned) is refused.
    """
    return TapAttention(copy.deepcopy(_plain_convolution(conv, "")), alpha)


def convert(network: nn.Module, alpha: float = ALPHA) -> nn.Module:
    """A copy of the network in which every `Conv2d` and `Conv1d` is self-attention; its outputs are the same.

    Everything else (norms, pooling, linear layers) is copied as it is, and weights that are tied stay tied. The network
    that is given stays as it is. Fast under `torch.no_grad`. ``alpha`` is that of `conv_to_attention`.
    """
    if not isinstance(network, nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, not {network!r}.")
    for name, module in network.named_modules():
        held = [one for many in vars(module).values() if isinstance(many, (list, tuple)) for one in many]
        if any(isinstance(one, nn.Module) for one in held):
            why = "holds modules in a plain list, where PyTorch does not see them (nor their weights)"
            raise ValueError(f"{name or type(module).__name__} {why}: put them into an nn.ModuleList, then convert.")
    kinds = (_ConvNd, torch.jit.ScriptModule)
    found = {n: m for n, m in network.named_modules() if isinstance(m, kinds) or _is_quantized_convolution(m)}
    convolutions = [_plain_convolution(module, name) for name, module in found.items()]
    # deepcopy's memo: what it finds here it takes for the copy, wherever it is used. It copies no tensor that was
    # computed, such as the pruned weight of a linear layer.
    tensors = [t for module in network.modules() for t in vars(module).values() if isinstance(t, Tensor)]
    copies: dict[int, Any] = {id(t): t.detach().clone() for t in tensors if not t.is_leaf}
    for conv in convolutions:
        copies[id(conv)] = TapAttention(copy.deepcopy(conv, copies), alpha)
    return copy.deepcopy(network, copies)


def _is_quantized_convolution(module: nn.Module) -> bool:
    """Whether it is one of torch.ao's, which are no convolutions to Python and hold packed integers."""
    return "quantized" in type(module).__module__ and "Conv" in type(module).__name__


def _plain_convolution(module: nn.Module, name: str) -> nn.Conv1d | nn.Conv2d:
    """The module itself, if Theorem 1 covers it; else an error says why, with ``name``, its path in the network."""

    def refuse(why: str, error: type[Exception] = ValueError) -> NoReturn:
        raise error(f"{name}{name and ': '}{type(module).__name__} {why}")

    if not isinstance(module, (nn.Conv1d, nn.Conv2d)):
        why = "attention gathers pixels, along rows and columns (a transposed convolution spreads them out)"
        refuse(f"is not a Conv1d or Conv2d; {why}.", TypeError)
    own = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Conv1d
    methods = ("__call__", "forward", "_conv_forward")
    if any(getattr(type(module), m) is not getattr(own, m) or m in vars(module) for m in methods):
        why = "computes in its own way (a subclass, or a method set on this one)"
        refuse(f"{why}: put what it adds into a module around a plain {own.__name__}.", TypeError)
    if isinstance(module._parameters.get("weight"), nn.UninitializedParameter):
        refuse("has no weights yet (lazy module): run the network once, then convert it.")
    kinds = (module._forward_hooks, module._backward_hooks, module._backward_pre_hooks, module._forward_pre_hooks)
    if hooks := [hook for kind in kinds for hook in kind.values()]:
        names = ", ".join(getattr(hook, "__name__", type(hook).__name__) for hook in hooks)
        ways = "`handle.remove()`; those of `nn.utils`: `prune.remove`, `remove_spectral_norm`, `remove_weight_norm`"
        refuse(f"has hooks ({names}), which attention would lack: remove them ({ways}), or hook a module around it.")
    if not {"weight", "bias"} <= module._parameters.keys():
        why = "has a weight or bias that is not a parameter, but computed anew"
        refuse(f"{why}: make it a parameter, as `nn.utils.parametrize.remove_parametrizations` does.")
    if not module.weight.is_floating_point():
        refuse(f"has weights of {module.weight.dtype}: convert the real and imaginary part of complex weights apart.")
    return module


def times(sizes: tuple[int, ...]) -> str:
    """(3, 5) -> 3x5."""
    return "x".join(map(str, sizes))
