"""Any convolution, and whole networks, as attention.

`attnconv.equivalence.theorem` is the idea. Here it meets all that convolutions have besides a kernel: strides,
dilations, groups, paddings, one dimension. `conv_to_attention` turns one layer around, `convert` a whole network;
`TapAttention` is what they build. `rank_limited` is the paper's appendix on small heads.

Shape letters as in `attnconv.attention`: B images, C and D channels, h heads; H x W pixels of the input, H' x W' of the
padded input, Q x R of the output (the queries).
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from tqdm.auto import tqdm

from attnconv.attention import QuadraticAttention
from attnconv.equivalence.theorem import ALPHA, tap_shifts, value_matrices
from attnconv.mixing import in_torch_func, mix_separable
from attnconv.precision import choose, computing

MIXED = 2**22
"""Mixed values (images x queries x heads x channels) to hold at a time, if one image has no more: 16 MiB in float32."""


class TapAttention(QuadraticAttention):
    """Quadratic attention with one head per kernel tap, in the place of a `Conv2d` or `Conv1d` (Theorem 1).

    Takes and returns what the convolution does, **channels first**: (B, C, H, W) -> (B, D, Q, R), or (B, C, L) for a
    Conv1d, which is an image of one row. Inside, all is channels last like the other layers (`attend`); the output is
    a channels-last tensor in memory, seen channels first.

    - Borders (the paper's remedy): the input is padded as the convolution pads it, keys are all H' x W' pixels of the
      padded image, and queries are its interior pixels only.
    - A stride attends from every stride-th query; a dilation moves the heads apart.
    - The value matrices are the kernel: ``weight`` and ``bias`` are the convolution's own parameters, of the same
      shapes and names, for whatever reads, ties or assigns them. ``value.weight`` (D, h C/groups) shows them as
      attention layers hold them; with groups, W^h is block-diagonal, and these are its blocks.

    What was trained in the convolution is trained here. ``centres`` and ``spreads`` are float32 at least, as bfloat16
    has no shift of 257 pixels. They are frozen where the softmax is exactly one-hot, as it passes them no gradient:
    heads that are to move want an alpha of 3 to 10.

    The constructor takes the parameters of ``conv`` over; `conv_to_attention` leaves ``conv`` as it is.
    """

    def __init__(self, conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA):
        if not (alpha > 0 and math.isfinite(alpha)):
            raise ValueError(f"alpha = {alpha} must be positive and finite.")
        for hook in conv._forward_pre_hooks.values():  # of pruning, which makes the weight in every forward pass
            hook(conv, ())
        weight, bias = (None if t is None else _own_parameter(t) for t in (conv.weight, conv.bias))
        kernel, dimensions = weight.shape[2:], weight.dim() - 2
        channels = conv.groups * weight.shape[1]
        kind = torch.promote_types(weight.dtype, torch.float32)
        if 2 * alpha > torch.finfo(kind).max:
            raise ValueError(
                f"alpha = {alpha} is too large for {kind}: choose less than {torch.finfo(kind).max / 2:.2g}."
            )
        with torch.device("meta"):  # every parameter is set below: no random numbers drawn, no memory used
            super().__init__(channels, len(weight), math.prod(kernel))
        del self._modules["value"]  # `weight` takes its place
        self.in_channels, self.groups, self.dimensions = channels, conv.groups, dimensions
        self.kernel_size = _rows_and_columns(kernel, dimensions)
        self.dilation = _rows_and_columns(conv.dilation, dimensions)
        self.stride = _rows_and_columns(conv.stride, dimensions)
        self.padding, self.padding_mode = conv.padding, conv.padding_mode
        self.pads = _pads(conv, kernel)

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
        self._kept: tuple | None = None  # see `_selected`

    @property
    def value(self) -> SimpleNamespace:
        """W^h and b as attention layers hold them: ``weight`` (D, h C/groups), ``bias`` (D,) or None."""
        return SimpleNamespace(weight=value_matrices(self.weight), bias=self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        positions = {name: getattr(self, name).data for name in ("centres", "spreads")}
        super()._apply(fn, recurse)
        for name, exact in positions.items():
            parameter = getattr(self, name)
            if parameter.dtype in (torch.float16, torch.bfloat16):  # `half()`: they stay where they are
                parameter.data = exact.to(parameter.device)
        return self

    def queries(self, length: int, axis: int) -> Tensor:
        """Where the queries are along one axis (0 rows, 1 columns), in pixels of the padded image: (Q,) or (R,)."""
        padded, dilation, kernel = length + sum(self.pads[axis]), self.dilation[axis], self.kernel_size[axis]
        extent = dilation * (kernel - 1) + 1
        if padded < extent:
            raise ValueError(
                f"A {('height', 'width')[axis]} of {length} is {padded} with padding, less than the {extent} pixels "
                f"that the kernel of {kernel} at dilation {dilation} covers; no query has all its taps."
            )
        stride = _rows_and_columns(self.stride, self.dimensions)[axis]
        return torch.arange(0, padded - extent + 1, stride, device=self.centres.device) + dilation * (kernel - 1) // 2

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
                f"TapAttention takes {self.dimensions + 2}-D input {takes}, channels first, as the convolution it "
                f"replaces; it was given {x.dim()}-D input {tuple(x.shape)}. Use `attend` for channels last."
            )
        x = self.pad(x)
        if self.dimensions == 1:
            x = x.unsqueeze(2)
        y = self.attend(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y.squeeze(2) if self.dimensions == 1 else y

    def attend(self, x: Tensor) -> Tensor:
        """The attention itself, channels last, on an image that is padded already: (B, H', W', C) -> (B, Q, R, D)."""
        size = [x.shape[1 + axis] - sum(self.pads[axis]) for axis in (0, 1)]  # without padding
        queries = [len(self.queries(length, axis)) for axis, length in enumerate(size)]
        at_once = max(1, MIXED // (math.prod(queries) * self.heads * self.channels))
        with computing(choose(x.device), x.device):
            parts = [self._project(self._mix(part, *size)) for part in x.contiguous().split(at_once)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unflatten(1, queries)

    def _mix(self, x: Tensor, height: int, width: int) -> Tensor:
        """Average pixels by P = P_row (x) P_col, never built: x (B, H', W', C) -> (B, Q R, h C).

        Where heads are sharp, the softmax is exactly one-hot in floating point: its product with the pixels picks one
        pixel for each query and head. They are picked directly, unless the positions want gradients.
        """
        moving = torch.is_grad_enabled() and (self.centres.requires_grad or self.spreads.requires_grad)
        pixels = None if moving or in_torch_func() else self._selected(height, width)
        if pixels is None:
            row, column = (self.axis_probabilities(n, axis).to(x.dtype) for axis, n in ((0, height), (1, width)))
            return mix_separable(x, row, column).flatten(1, 2)
        x = x.flatten(1, 2)  # (B, H' W', C)
        x = x if isinstance(pixels, slice) else x.index_select(1, pixels)  # (B, Q R h, C)
        return x.unflatten(1, (-1, self.heads)).flatten(2)

    def _selected(self, height: int, width: int) -> Tensor | slice | None:
        """`_one_hot_pixels`, kept from call to call until the size, the stride, a centre or a spread changes."""
        key = (height, width, self.stride, self.centres.device)
        if self._kept is None or self._kept[0] != key or not all(map(torch.equal, self._kept[1], self._positions())):
            with torch.inference_mode(False), torch.no_grad():
                pixels = self._one_hot_pixels(height, width)
                self._kept = (key, [t.clone() for t in self._positions()], pixels)
        return self._kept[2]

    def _one_hot_pixels(self, height: int, width: int) -> Tensor | slice | None:
        """The pixel that each head sees at each query (Q R h,), a slice if that is every pixel in order.

        None where P is not one-hot.
        """
        found = [self.axis_probabilities(n, axis).max(-1) for axis, n in ((0, height), (1, width))]
        if not all(bool((p == 1).all()) for p, _ in found):
            return None
        rows, columns = (keys.T for _, keys in found)  # (Q, h), (R, h)
        total = [n + sum(pads) for n, pads in zip((height, width), self.pads, strict=True)]
        pixels = (rows[:, None] * total[1] + columns).flatten()
        every = torch.arange(math.prod(total), device=pixels.device)
        return slice(None) if torch.equal(pixels, every) else pixels

    def _positions(self) -> tuple[Tensor, Tensor]:
        return self.centres.detach(), self.spreads.detach()

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


def _own_parameter(weight: Tensor) -> nn.Parameter:
    """The parameter itself, which others may share; for a weight that is computed (parametrized, pruned) its value."""
    if isinstance(weight, nn.Parameter):
        return weight
    return nn.Parameter(weight.detach().clone(), weight.requires_grad)


def _rows_and_columns(value: Any, dimensions: int) -> tuple[int, int]:
    """A convolution's stride, dilation, ... for two axes: a Conv1d has one row, and one number may stand for both."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    values = values * dimensions if len(values) == 1 else values
    return (*(1,) * (2 - dimensions), *values)[-2:]


def _pads(conv: nn.Conv1d | nn.Conv2d, kernel: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(before, after) of rows, and of columns."""
    n = len(kernel)
    if conv.padding_mode != "zeros":  # this is what the convolution reads then, last axis first
        both = conv._reversed_padding_repeated_twice
        pairs = [(both[2 * axis], both[2 * axis + 1]) for axis in reversed(range(n))]
    elif conv.padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, _rows_and_columns(conv.dilation, n)[-n:], strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        padding = 0 if conv.padding == "valid" else conv.padding
        pairs = [(p, p) for p in _rows_and_columns(padding, n)[-n:]]
    return ((0, 0), *pairs)[-2:]


def conv_to_attention(conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA) -> TapAttention:
    """The attention layer that computes what this convolution does (Theorem 1), with copies of its weights.

    Any kernel size, stride, dilation, groups, padding, padding mode and bias; the same device, dtype and layout
    (channels first). Head h is tap h of the kernel, row by row: its centre is the tap's shift, its value matrix the
    tap's slice of the kernel. ``alpha`` is Lemma 2's sharpness: with the default every softmax is exactly one-hot; a
    smaller one leaves ``missed_mass(alpha)`` around each tap, and gives the positions a gradient. A parametrization or
    pruning is computed once: its present value is the weight.
    """
    _check_convolution(conv, "")
    return TapAttention(copy.deepcopy(conv, _computed(conv)), alpha)


def convert(network: nn.Module, alpha: float = ALPHA, progress: bool = True, check: Tensor | None = None) -> nn.Module:
    """A copy of the network in which every `Conv2d` and `Conv1d` is self-attention; its outputs are the same.

    Everything else (norms, pooling, linear layers) is copied as it is, and weights that are tied stay tied. Fast under
    `torch.no_grad`.

    Args:
        network: stays as it is, the state of its parametrizations too.
        alpha: as for `conv_to_attention`.
        progress: a bar that names the layer at work; the environment variable ``ATTNCONV_QUIET=1`` hides it too.
        check: images for both networks, in evaluation mode; a ValueError names the first layer whose output differs.
    """
    modules = list(network.named_modules())
    for name, module in modules:  # all of them first: a refusal costs no time
        if isinstance(module, (_ConvNd, torch.jit.ScriptModule)):
            _check_convolution(module, name)
    convolutions = [(name, module) for name, module in modules if isinstance(module, _ConvNd)]
    copies = _computed(network)  # deepcopy's memo: what it finds here it takes for the copy, wherever it is used
    quiet = not progress or os.environ.get("ATTNCONV_QUIET") == "1"
    with tqdm(convolutions, disable=quiet, desc="to attention", unit="layer") as bar:
        for name, module in bar:
            bar.set_postfix_str(name or type(module).__name__)
            copies[id(module)] = TapAttention(copy.deepcopy(module, copies), alpha)
    converted = copy.deepcopy(network, copies)
    if check is not None:
        _compare(network, converted, check)
    return converted


def _computed(network: nn.Module) -> dict[int, Any]:
    """A memo for deepcopy, which refuses tensors that were computed: pruned weights, for one."""
    tensors = [t for module in network.modules() for t in vars(module).values() if isinstance(t, Tensor)]
    return {id(t): t.detach().clone() for t in tensors if not t.is_leaf}


@torch.no_grad()
def _compare(network: nn.Module, converted: nn.Module, images: Tensor) -> None:
    """Raise if a layer's output differs between the two, in evaluation mode; the first one to differ is named."""
    outputs: list[tuple[str, Tensor]] = []
    kinds = {name: type(module).__name__ for name, module in network.named_modules()}

    def run(model: nn.Module, seen: Callable[[str, Tensor], None]) -> None:
        model = copy.deepcopy(model, _computed(model)).eval()  # hooks and modes are those of a copy
        for name, module in model.named_modules():
            if name in kinds:
                module.register_forward_hook(
                    lambda _, __, y, name=name: seen(name, y) if isinstance(y, Tensor) else None
                )
        model(images)

    def compare(name: str, y: Tensor) -> None:
        expected = next((y for other, y in left if other == name), None)
        scale = 0.0 if expected is None else expected.nan_to_num().abs().max().item()
        close = scale * torch.finfo(y.dtype).eps ** 0.5 if y.is_floating_point() else 0.0
        if expected is None or y.shape != expected.shape or not torch.allclose(y, expected, 0, close, equal_nan=True):
            where = f"{name} ({kinds[name]})" if name else f"The network ({kinds[name]})"
            raise ValueError(
                f"{where} is the first layer whose output differs as attention. It or what feeds it computes in a way "
                "that its modules do not show, or alpha is too small (`missed_mass`); convert the parts that agree."
            )

    run(network, lambda name, y: outputs.append((name, y.clone())))  # before anything writes into it
    left = iter(outputs)
    run(converted, compare)


def _check_convolution(module: nn.Module, name: str) -> None:
    """Refuse what Theorem 1 does not cover, saying why; ``name`` is the module's path in its network."""
    title = type(module).__name__

    def refuse(why: str, error: type[Exception] = ValueError) -> NoReturn:
        raise error(f"{name}: {title} {why}" if name else f"{title} {why}")

    if isinstance(module, _ConvTransposeNd):
        refuse(
            "is a transposed convolution: its taps spread pixels out instead of gathering them, which is not attention "
            "over the input's pixels. Only Conv1d and Conv2d can be converted.",
            TypeError,
        )
    if not isinstance(module, (nn.Conv1d, nn.Conv2d)):
        refuse("is not a Conv1d or Conv2d; attention here is over rows and columns.", TypeError)
    own = nn.Conv2d if isinstance(module, nn.Conv2d) else nn.Conv1d
    methods = ("__call__", "forward", "_conv_forward")
    if any(getattr(type(module), m) is not getattr(own, m) or m in vars(module) for m in methods):
        refuse(
            f"computes in its own way (a subclass, or a method set on this one); only a plain {own.__name__} can be "
            f"converted. Put what it adds into a module around a plain {own.__name__}.",
            TypeError,
        )
    if nn.parameter.is_lazy(module._parameters.get("weight")):
        refuse("has no weights yet (lazy module): run the network once, then convert it.")
    if module._forward_hooks or module._backward_hooks or module._backward_pre_hooks:
        kind = "forward" if module._forward_hooks else "backward"
        refuse(
            f"has {kind} hooks, and attention would come without them: remove them (`handle.remove()`), or register "
            "them on a module around it."
        )
    others = [h for h in module._forward_pre_hooks.values() if not isinstance(h, BasePruningMethod)]
    if others:
        names = ", ".join(getattr(hook, "__name__", type(hook).__name__) for hook in others)
        refuse(
            f"has forward pre-hooks ({names}), and attention would come without them: remove them, an old-style norm "
            "by `nn.utils.remove_spectral_norm` or `remove_weight_norm`, or use `nn.utils.parametrizations`."
        )
    if is_parametrized(module):  # its weight would be computed, which may change its state
        return
    if "weight" not in module._parameters and not module._forward_pre_hooks:
        refuse(
            "has a weight that is not a parameter: something around it computes it anew, and would not find what it "
            "reads. Use `nn.utils.parametrize`, or assign an `nn.Parameter`."
        )
    if module.weight.is_complex():
        refuse(
            f"has complex weights ({module.weight.dtype}); softmax attention is real. Convert the real and the "
            "imaginary part as two convolutions."
        )
    if not module.weight.is_floating_point():
        refuse(f"has weights of {module.weight.dtype}; a floating-point type is needed.")


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
        weight = layer.weight.flatten(2).unflatten(0, (layer.groups, -1))  # (groups, D/groups, C/groups, h)
        u, s, v = torch.linalg.svd(weight.permute(3, 0, 1, 2), full_matrices=False)
        rest = s.flatten(1).argsort(dim=1, descending=True)[:, head_dim:]
        kept = s.flatten(1).scatter(1, rest, 0.0).view_as(s)
        low = ((u * kept[..., None, :]) @ v).permute(1, 2, 3, 0).reshape(layer.weight.shape)
        tiny = torch.finfo(low.dtype).tiny  # of a kernel that is all zero nothing is lost
        error = (low - layer.weight).norm() / layer.weight.norm().clamp_min(tiny)
        size = [2 * d * (k - 1) + 8 for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
        size[: 2 - layer.dimensions] = [1] * (2 - layer.dimensions)
        noise = torch.randn(4, *size, layer.channels, generator=torch.Generator().manual_seed(0)).to(low)
        full = layer.attend(noise)
        layer.weight.copy_(low)
        signal = full if layer.bias is None else full - layer.bias
        output_error = (layer.attend(noise) - full).norm() / signal.norm().clamp_min(tiny)
    return layer, RankReport(head_dim, error.item(), output_error.item())


def times(sizes: tuple[int, ...]) -> str:
    """(3, 5) -> 3x5."""
    return "x".join(map(str, sizes))
