"""Any convolution, and whole networks, as attention.

`attnconv.equivalence.theorem` is the idea. Here it meets all that convolutions have besides a
kernel: strides, dilations, groups, paddings, one dimension. Shape letters as in
`attnconv.attention`, and H' x W' pixels of the padded input, Q x R of the output (the queries)."""

import copy
import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_leaves

from attnconv.attention import QuadraticAttention, tap_shifts
from attnconv.attention.mixing import mix_separable
from attnconv.equivalence.theorem import ALPHA, checked_alpha, value_matrices

MIXED = (
    2**22
)  # values (images x queries x heads x channels) to hold at a time, if one image has no more: 16 MiB


class TapAttention(QuadraticAttention):
    """Quadratic attention with one head per kernel tap, in the place of a `Conv2d` or `Conv1d`
    (Theorem 1).

    Takes and returns what the convolution does, **channels first**: (B, C, H, W) -> (B, D, Q, R),
    or (B, C, L) for a Conv1d, which is an image of one row.

    - Borders (the paper's remedy): the input is padded as the convolution pads it, keys are all H'
      x W' pixels of the padded image, and queries are its interior pixels only.
    - A stride attends from every stride-th query; a dilation moves the heads apart.
    - The value matrices are the kernel: ``weight`` and ``bias`` are the convolution's own
      parameters.

    ``centres`` and ``spreads`` are float32 at least, as bfloat16 has no shift of 257 pixels. They
    are trained if the kernel is, but frozen where the softmax is exactly one-hot, as it passes them
    no gradient: heads that are to move want an alpha of 3 to 10. `axis_logits(length, axis)` and
    what is made of it take the length without padding, and give (h, Q, H') or (h, R, W'). The
    constructor takes the parameters of ``conv`` over; `conv_to_attention` does not."""

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA):
        weight, bias = conv.weight, conv.bias
        exact = torch.promote_types(weight.dtype, torch.float32)
        alpha = checked_alpha(alpha, exact)
        out_channels, channels, *kernel = weight.shape
        with torch.device(
            "meta"
        ):  # every parameter is set below: no random numbers drawn, no memory used
            super().__init__(conv.groups * channels, out_channels, math.prod(kernel))
            # Strides and the like may have been set later, one for all axes: a fresh convolution
            # makes them tuples.
            kind: Any = (nn.Conv1d, nn.Conv2d)[len(kernel) - 1]
            fresh = kind(
                1,
                1,
                kernel,
                conv.stride,
                conv.padding,
                conv.dilation,
                padding_mode=conv.padding_mode,
            )
        del self._modules["value"]  # `weight` takes its place
        self.in_channels, self.groups, self.dimensions = self.channels, conv.groups, len(kernel)
        self.padding, self.padding_mode = conv.padding, conv.padding_mode
        # As the convolution has them, for what reads them; and for rows and columns, of which a
        # Conv1d has one row.
        self.kernel_size, self.stride, self.dilation = numbers = (
            tuple(kernel),
            fresh.stride,
            fresh.dilation,
        )
        self.by_axis = [(1, *each)[-2:] for each in numbers]
        # Pixels added before and after, the last axis first. Only with zeros does a convolution
        # work them out anew.
        self._amounts = (
            fresh if conv.padding_mode == "zeros" else conv
        )._reversed_padding_repeated_twice

        # Where the softmax is exactly one-hot no gradient reaches positions, and weight decay alone
        # would move them.
        trained = weight.requires_grad and math.exp(-alpha) >= torch.finfo(exact).smallest_normal
        centres = tap_shifts(*self.by_axis[::2]).to(
            weight.device, exact
        )  # of the kernel's size and its dilation
        self.centres = nn.Parameter(centres, requires_grad=trained)
        self.spreads = nn.Parameter(
            torch.full_like(centres[:, 0], math.sqrt(2 * alpha)), requires_grad=trained
        )

        # In memory the kernel lies as the value matrices do, so that seeing it as such costs
        # nothing.
        values = value_matrices(weight.data).contiguous()
        weight.data = values.unflatten(1, (self.heads, -1)).transpose(1, 2).view(weight.shape)
        self.weight, self.bias = weight, bias
        self.train(conv.training)

    @property
    def value(self) -> SimpleNamespace:  # type: ignore[override]  # of other layers a module; here shown, never set
        """W^h (with groups, its blocks) as attention layers hold them: ``weight`` (D, h
        C/groups), ``bias`` (D,).
        """
        return SimpleNamespace(weight=value_matrices(self.weight), bias=self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        centres, spreads = self.centres.data, self.spreads.data
        super()._apply(fn, recurse)
        if (
            self.centres.dtype.itemsize < 4
        ):  # after `half()` and the like, positions are still what they were
            self.centres.data, self.spreads.data = (
                t.to(self.weight.device) for t in (centres, spreads)
            )
        return self

    def _padded(self, length: int, axis: int) -> int:
        """Pixels of an axis (0 rows, 1 columns), padding included: H' or W'."""
        return length + sum(self._amounts[2 - 2 * axis : 4 - 2 * axis])

    def queries(self, length: int, axis: int) -> range:
        """Where the queries are along one axis (0 rows, 1 columns), in pixels of the padded
        image: Q or R of them.
        """
        padded, (kernel, stride, dilation) = (
            self._padded(length, axis),
            [each[axis] for each in self.by_axis],
        )
        reach = dilation * (kernel - 1)
        if padded <= reach:
            side = f"{('height', 'width')[axis]} of {length} ({padded} with padding)"
            raise ValueError(
                f"A {side} is less than a kernel of {kernel} at dilation {dilation}: {reach + 1} pixels."
            )
        return range(reach // 2, padded - reach + reach // 2, stride)

    def shifts(self, length: int, axis: int) -> Tensor:
        """Shift of each pixel of the padded image from each query: (Q, H') or (R, W')."""
        places = range(self._padded(length, axis)), self.queries(length, axis)
        keys, queries = (torch.tensor(pixels, device=self.centres.device) for pixels in places)
        return keys - queries[:, None]

    def pad(self, x: Tensor) -> Tensor:
        """(..., H, W) -> (..., H', W'), as the convolution pads."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, self._amounts, mode) if any(self._amounts) else x

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, Q, R), or for a Conv1d (B, C, L) -> (B, D, R)."""
        if x.dim() != self.dimensions + 2 or x.shape[1] != self.channels:
            takes = f"{self.dimensions + 2}-D input (B, {self.channels}, {'H, W' if self.dimensions == 2 else 'L'})"
            raise ValueError(
                f"TapAttention takes {takes}, channels first, not {x.dim()}-D input {tuple(x.shape)}."
            )
        size = (1, *x.shape[2:])[-2:]
        queries = [len(self.queries(length, axis)) for axis, length in enumerate(size)]
        x = self.pad(x)
        x = x.unsqueeze(2) if self.dimensions == 1 else x
        x = x.permute(0, 2, 3, 1).contiguous()  # (B, H', W', C)
        at_once = max(1, MIXED // (math.prod(queries) * self.heads * self.channels))
        parts = [self._project(self._mix(part, *size)) for part in x.split(at_once)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts)  # (B, Q R, D)
        y = y.unflatten(1, queries).permute(0, 3, 1, 2)
        return y.squeeze(2) if self.dimensions == 1 else y

    def _mix(self, x: Tensor, height: int, width: int) -> Tensor:
        """Average pixels by P = P_row (x) P_col, never built: x (B, H', W', C) -> (B, Q R, h C).

        Where every softmax is exactly one-hot in floating point, each query and head picks one
        pixel. These are picked directly, unless positions want gradients, or cannot be read: in
        torch.func, or while a graph is made."""
        moving = torch.is_grad_enabled() and (
            self.centres.requires_grad or self.spreads.requires_grad
        )
        unseen = (
            torch._C._functorch.peek_interpreter_stack() is not None
            or torch.compiler.is_exporting()
            or torch.jit.is_tracing()
            or self.centres.is_meta
        )
        if moving or unseen or not self._one_hot():
            row, column = (
                self.axis_probabilities(n, axis).to(x.dtype)
                for axis, n in ((0, height), (1, width))
            )
            return mix_separable(x, row, column).flatten(1, 2)
        queries, centres = (
            (self.queries(height, 0), self.queries(width, 1)),
            tuple(map(tuple, self.centres.tolist())),
        )
        pixels = _nearest_pixels(centres, queries, x.shape[1:3], x.device)
        x = x.flatten(1, 2)  # (B, H' W', C)
        x = x if isinstance(pixels, slice) else x.index_select(1, pixels)  # (B, Q R h, C)
        return x.unflatten(1, (-1, self.heads)).flatten(2)

    def _one_hot(self) -> bool:
        """Whether every softmax, rounded, is one-hot, as the pixel next to the nearest has no
        weight beside it.

        With a the distance of a centre from the nearest pixel along an axis, the next is at 1 - a,
        and its weight is exp(-1/2 spread^2 ((1 - a)^2 - a^2)); beyond the border it is less. NaN is
        not one-hot."""
        least = -math.log(torch.finfo(self.centres.dtype).eps / 8)
        heads = zip(self.centres.tolist(), self.spreads.tolist(), strict=True)
        return all(
            0.5 * spread**2 * abs(1 - 2 * (c % 1)) > least
            for centre, spread in heads
            for c in centre
        )

    def _project(self, mixed: Tensor) -> Tensor:
        """Each head's value matrix and their sum: (B, Q R, h C) -> (B, Q R, D)."""
        values = value_matrices(self.weight)
        if self.groups == 1:
            return F.linear(mixed, values, self.bias)
        mixed, values = mixed.unflatten(-1, (self.heads, -1)), values.unflatten(1, (self.heads, -1))
        values = values.unflatten(0, (self.groups, -1))  # (groups, D/groups, h, C/groups)
        if (
            self.channels == self.groups
        ):  # depthwise: W^h is diagonal, and this four times faster than the einsum
            y = mixed.new_zeros(1)
            for head in range(self.heads):
                y = torch.addcmul(y, mixed[:, :, head, :, None], values[:, :, head, 0])
        else:
            y = torch.einsum("bnhgc,gdhc->bngd", mixed.unflatten(-1, (self.groups, -1)), values)
        return y.flatten(-2) if self.bias is None else y.flatten(-2) + self.bias

    def extra_repr(self) -> str:
        own = ("heads", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
        return ", ".join(
            [f"{self.channels}, {self.out_channels}", *(f"{n}={getattr(self, n)!r}" for n in own)]
        )


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def _nearest_pixels(
    centres: tuple[tuple[float, float], ...],
    queries: tuple[range, range],
    size: tuple[int, int],
    device: torch.device,
) -> Tensor | slice:
    """The pixel nearest to each query plus each centre, in an image of that size: (Q R h,), of its
    pixels in order.

    A slice if that is every pixel in order, as with a kernel of one tap: then nothing is copied.
    """
    nearest = torch.tensor(centres, dtype=torch.float64).round().long()  # (h, 2)
    rows, columns = (
        torch.tensor(queries[axis])[:, None] + nearest[:, axis] for axis in (0, 1)
    )  # (Q, h), (R, h)
    pixels = (
        rows.clamp(0, size[0] - 1)[:, None] * size[1] + columns.clamp(0, size[1] - 1)
    ).flatten()
    return slice(None) if torch.equal(pixels, torch.arange(math.prod(size))) else pixels.to(device)


def conv_to_attention(conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA) -> TapAttention:
    """The attention layer that computes what this convolution does (Theorem 1), with copies of its
    weights.

    Head h is tap h of the kernel, row by row: its centre is the tap's shift, its value matrix the
    tap's slice of the kernel. ``alpha`` is Lemma 2's sharpness: with the default every softmax is
    exactly one-hot; a smaller one leaves ``missed_mass(alpha)`` around each tap of a `Conv2d`, and
    gives the positions a gradient. A convolution whose weight is computed anew in every forward
    pass (parametrized, pruned) is refused."""
    return TapAttention(copy.deepcopy(_checked(conv)), alpha)


def convert(network: nn.Module, alpha: float = ALPHA) -> nn.Module:
    """A copy of the network in which every `Conv2d` and `Conv1d` is self-attention; its outputs are
    the same.

    Everything else is copied as it is. Fast under `torch.no_grad`. ``alpha`` is that of
    `conv_to_attention`. Kernels
    lie in memory as value matrices do: safetensors, and what flattens weights, want them made
    ``contiguous()`` first.
    Outputs lie channels last: a network that flattens them with ``view`` wants ``flatten`` or
    ``reshape`` there."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, not {network!r}.")
    convolutions, known = [], {*network.modules()}
    for name, module in network.named_modules():
        held = tree_leaves(
            [many for many in vars(module).values() if isinstance(many, (list, tuple, dict))]
        )
        if any(isinstance(one, nn.Module) and one not in known for one in held):
            why = "holds modules in a plain list or dict, where PyTorch does not see them (nor their weights)"
            remedy = "put them into an nn.ModuleList or nn.ModuleDict, then convert"
            raise ValueError(f"{name or type(module).__name__} {why}: {remedy}.")
        # torch.ao's quantized ones are no convolutions to Python, and hold packed integers.
        quantized = "quantized" in type(module).__module__ and "Conv" in type(module).__name__
        if quantized or isinstance(module, (_ConvNd, torch.jit.ScriptModule)):
            convolutions.append(_checked(module, name))
    copies: dict[
        int, Any
    ] = {}  # deepcopy's memo: what it finds here it takes for the copy, wherever it is used
    for conv in convolutions:
        copies[id(conv)] = TapAttention(copy.deepcopy(conv, copies), alpha)
    return copy.deepcopy(network, copies)


def _checked(module: nn.Module, name: str = "") -> nn.Conv1d | nn.Conv2d:
    """The module itself, if Theorem 1 covers it; else an error says why not, with its path in
    the network.
    """
    own = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Conv1d
    methods = ("__call__", "forward", "_conv_forward")
    if not isinstance(module, own):
        why = "is not a Conv1d or Conv2d; attention gathers pixels (a transposed convolution spreads them out)"
    elif any(getattr(type(module), m) is not getattr(own, m) or m in vars(module) for m in methods):
        why = (
            f"computes in its own way: put what it adds into a module around a plain {own.__name__}"
        )
    elif any(
        vars(module)[f"_{kind}_hooks"]
        for kind in ("forward", "forward_pre", "backward", "backward_pre")
    ):
        ways = "remove those of pruning, weight or spectral norms by `nn.utils`, and run a lazy module once"
        why = f"has hooks, which attention would lack: {ways}"
    elif (
        not {"weight", "bias"} <= module._parameters.keys() or not module.weight.is_floating_point()
    ):
        remedy = "`nn.utils.parametrize.remove_parametrizations` makes it one"
        why = f"has a weight or bias that is not a parameter of real numbers: {remedy}"
    else:
        return module
    raise TypeError(f"{name}{name and ': '}{type(module).__name__} {why}.")
