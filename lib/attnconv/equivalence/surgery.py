"""Any convolution, and whole networks, as attention.

`attnconv.equivalence.theorem` is the idea. Here it meets all that convolutions have besides a
kernel: strides, dilations, groups, paddings, one dimension. Shape letters as in
`attnconv.attention`, and H' x W' pixels of the padded input, Q x R of the output (the queries)."""

import copy
import functools
import gc
import inspect
import math
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.utils import _ntuple, _reverse_repeat_tuple
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from attnconv.attention import QuadraticAttention, tap_shifts
from attnconv.attention.mixing import mix_separable
from attnconv.equivalence.theorem import ALPHA, checked_alpha, value_matrices

# values (images x queries x heads x channels) to hold at a time, if one image has no more: 16 MiB
MIXED = 2**22
# Functions that attention takes where a module's own code calls them, and those that it cannot.
TAKEN = {"conv1d", "conv2d", "_conv_forward"}
OTHERS = {f"conv_transpose{n}d" for n in (1, 2, 3)} | {"conv3d", "deform_conv2d"}


class TapAttention(QuadraticAttention):
    """Quadratic attention with one head per kernel tap, in the place of a `Conv2d` or `Conv1d`
    (Theorem 1). `conv_to_attention` and `convert` make it.

    Takes and returns what the convolution does, **channels first**: (B, C, H, W) -> (B, D, Q, R),
    or (B, C, L) for a Conv1d, which is an image of one row.

    - Borders (the paper's remedy): the input is padded as the convolution pads it, keys are all H'
      x W' pixels of the padded image, and queries are its interior pixels only.
    - A stride attends from every stride-th query; a dilation moves the heads apart.
    - The value matrices are the kernel: ``weight`` and ``bias`` are the convolution's own
      parameters. All its other attributes are there, too.

    ``centres`` and ``spreads`` are float32 at least, as bfloat16 has no shift of 257 pixels. They
    are trained if the kernel is, but frozen where the softmax is exactly one-hot, as it passes them
    no gradient: heads that are to move want an alpha of 3 to 10. `axis_logits(length, axis)` and
    what is made of it take the length without padding, and give (h, Q, H') or (h, R, W')."""

    weight: Tensor
    bias: Tensor | None
    padding_mode: str
    dimensions: int
    by_axis: list[tuple[int, ...]]  # kernel size, stride and dilation, each of rows and columns
    added: list[int]  # pixels of padding before and after, the last axis first

    @property
    def value(self) -> Any:  # type: ignore[override]  # of other layers a module; here only shown
        """W^h (with groups, its blocks) as attention layers hold them: ``weight`` (D, h
        C/groups), ``bias`` (D,).
        """
        return SimpleNamespace(weight=value_matrices(self.weight), bias=self.bias)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self.centres.data, self.spreads.data
        super()._apply(fn, recurse)
        if self.centres.dtype.itemsize < 4:  # `half()` and the like would lose their digits
            self.centres.data, self.spreads.data = (t.to(self.weight.device) for t in before)
        return self

    def _padded(self, length: int, axis: int) -> int:
        """Pixels of an axis (0 rows, 1 columns), padding included: H' or W'."""
        return length + sum(self.added[2 - 2 * axis : 4 - 2 * axis])

    def queries(self, length: int, axis: int) -> Tensor:
        """Where the queries are along one axis (0 rows, 1 columns), in pixels of the padded
        image: (Q,) or (R,).
        """
        kernel, stride, dilation = (each[axis] for each in self.by_axis)
        reach = dilation * (kernel - 1)
        last = self._padded(length, axis) - reach
        if last < 1:
            raise ValueError(f"{length} pixels, padded, are less than the kernel's {reach + 1}.")
        first = reach // 2
        return torch.arange(first, first + last, stride, device=self.centres.device)

    def shifts(self, length: int, axis: int) -> Tensor:
        """Shift of each pixel of the padded image from each query: (Q, H') or (R, W')."""
        keys = torch.arange(self._padded(length, axis), device=self.centres.device)
        return keys - self.queries(length, axis)[:, None]

    def pad(self, x: Tensor) -> Tensor:
        """(..., H, W) -> (..., H', W'), as the convolution pads."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, self.added, mode) if any(self.added) else x

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, Q, R), or for a Conv1d (B, C, L) -> (B, D, R)."""
        return self._conv_forward(x, self.weight, self.bias)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`forward` with another kernel, under the name that code around a `Conv2d` may call."""
        if x.dim() == self.dimensions + 1:  # one image
            return self._conv_forward(x[None], weight, bias)[0]
        if x.dim() != self.dimensions + 2 or x.shape[1] != self.channels:
            takes = f"(B, {self.channels}, {'H, W' if self.dimensions == 2 else 'L'})"
            raise ValueError(f"TapAttention takes {takes}, channels first, not {tuple(x.shape)}.")
        height, width = (1, *x.shape[2:])[-2:]
        queries = len(self.queries(height, 0)), len(self.queries(width, 1))
        x = self.pad(x).flatten(2).mT.contiguous()  # (B, H' W', C)
        at_once = max(1, MIXED // (math.prod(queries) * self.heads * self.channels))
        values = value_matrices(weight)
        mixed = (self._mix(part, height, width) for part in x.split(at_once))
        parts = [self._project(part, values, bias) for part in mixed]
        y = parts[0] if len(parts) == 1 else torch.cat(parts)  # (B, Q R, D)
        return y.mT.unflatten(2, queries[-self.dimensions :])

    def _mix(self, x: Tensor, height: int, width: int) -> Tensor:
        """Average pixels by P = P_row (x) P_col, never built: x (B, H' W', C) -> (B, Q R, h C).

        Where every softmax is exactly one-hot in floating point, each query and head picks one
        pixel. These are picked directly, unless positions want gradients."""
        trained = self.centres.requires_grad or self.spreads.requires_grad
        if (torch.is_grad_enabled() and trained) or not self._one_hot():
            row = self.axis_probabilities(height, 0).to(x.dtype)
            column = self.axis_probabilities(width, 1).to(x.dtype)
            x = x.unflatten(1, (row.shape[2], column.shape[2]))
            return mix_separable(x, row, column).flatten(1, 2)
        rows, columns = self._nearest(height, 0), self._nearest(width, 1)
        pixels = rows[:, None] * self._padded(width, 1) + columns  # (Q, R, h)
        # A kernel of one tap picks every pixel in order: then nothing need be copied.
        if pixels.numel() != x.shape[1] or self.centres.tolist() != [[0, 0]]:
            x = x.index_select(1, pixels.flatten())
        return x.unflatten(1, (-1, self.heads)).flatten(2)

    def _nearest(self, length: int, axis: int) -> Tensor:
        """The pixel nearest to each query plus each centre, along one axis: (Q, h) or (R, h)."""
        place = self.queries(length, axis)[:, None] + self.centres.detach()[:, axis]
        return place.round().clamp(0, self._padded(length, axis) - 1).long()

    def _one_hot(self) -> bool:
        """Whether every softmax, rounded, is one-hot: each centre is on a pixel, beside which the
        next, of weight exp(-spread^2 / 2), is lost in float64, too.

        False where nobody can look: while a graph is made, or without values."""
        unseen = type(self.centres) is not nn.Parameter or self.centres.is_meta
        if unseen or torch.compiler.is_exporting():
            return False
        on_pixels = all(c.is_integer() for centre in self.centres.tolist() for c in centre)
        return on_pixels and all(spread**2 > 80 for spread in self.spreads.tolist())

    def _project(self, mixed: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Each head's value matrix and their sum: (B, Q R, h C) -> (B, Q R, D)."""
        if self.groups == 1:
            return F.linear(mixed, values, bias)
        mixed = mixed.unflatten(-1, (self.heads, self.groups, -1))
        values = values.unflatten(1, (self.heads, -1)).unflatten(0, (self.groups, -1))
        y = torch.einsum("bnhgc,gdhc->bngd", mixed, values).flatten(-2)
        return y if bias is None else y + bias.to(y.dtype)  # the type that autocast chose

    def extra_repr(self) -> str:
        return f"{_ConvNd.extra_repr(self)}, heads={self.heads}"  # type: ignore[arg-type]


def _take_over(conv: Any, weight: Tensor, alpha: float) -> TapAttention:
    """Make a convolution with this kernel attention: the same object, parameters and attributes,
    with heads.
    """
    exact = torch.promote_types(weight.dtype.to_real(), torch.float32)
    alpha = checked_alpha(alpha, exact)
    conv.__class__ = TapAttention
    conv.channels = conv.in_channels
    conv.heads = math.prod(conv.kernel_size)
    conv.dimensions = len(conv.kernel_size)
    # A Conv1d has one row. Numbers may have been set later, one for all axes.
    tuples: Any = _ntuple(conv.dimensions)
    numbers = (conv.kernel_size, conv.stride, conv.dilation)
    conv.by_axis = [(1, *tuples(each))[-2:] for each in numbers]
    # Only with zeros does a convolution look at its padding again in each pass.
    conv.added = conv._reversed_padding_repeated_twice
    if conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
        conv.added = _reverse_repeat_tuple(tuples(conv.padding), 2)

    kernel, _, dilation = conv.by_axis
    centres = tap_shifts(kernel, dilation).to(weight.device, exact)
    spreads = torch.full_like(centres[:, 0], math.sqrt(2 * alpha))
    # Where the softmax is exactly one-hot no gradient reaches positions, and weight decay alone
    # would move them.
    soft = math.exp(-alpha) >= torch.finfo(exact).smallest_normal
    conv.centres = nn.Parameter(centres, requires_grad=weight.requires_grad and soft)
    conv.spreads = nn.Parameter(spreads, requires_grad=weight.requires_grad and soft)
    return conv


def conv_to_attention(conv: nn.Conv1d | nn.Conv2d, alpha: float = ALPHA) -> TapAttention:
    """The attention layer that computes what this convolution does (Theorem 1), with copies of its
    weights.

    Head h is tap h of the kernel, row by row: its centre is the tap's shift, its value matrix the
    tap's slice of the kernel. ``alpha`` is Lemma 2's sharpness: with the default every softmax is
    exactly one-hot; a smaller one leaves ``missed_mass(alpha)`` around each tap of a `Conv2d`, and
    gives the positions a gradient. A TypeError if it is no plain `Conv1d` or `Conv2d`; `convert`
    takes those that have code of their own."""
    layer = convert(conv, alpha)
    if not isinstance(layer, TapAttention):
        raise TypeError(f"conv_to_attention takes a Conv1d or Conv2d, not a {type(conv).__name__}.")
    return layer


def convert(network: nn.Module, alpha: float = ALPHA, *, check: Any = None) -> nn.Module:
    """A copy of the network in which every convolution is self-attention; its outputs are the same.

    Each `Conv2d` and `Conv1d` becomes a `TapAttention`. A module whose own code convolves, as with
    `F.conv2d` and weights or paddings that it works out itself, becomes a subclass: its code runs,
    and attention takes the products. Everything else is copied as it is. The copy shares nothing
    with the network; activations that it keeps are copied without their graph.

    Args:
        alpha: that of `conv_to_attention`.
        check: an example input, or a tuple of inputs. The network and its copy then answer it in
            evaluation mode, and no convolution may run.

    Raises:
        TypeError: attention cannot stand for a module.
        ValueError: the copy leads back to the network, or a convolution still runs.
        AssertionError: the answers to ``check`` differ.

    Outputs lie channels last: a network that flattens them with ``view`` wants ``flatten`` or
    ``reshape`` there. Fast under `torch.no_grad`."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, not {network!r}.")
    originals = set()
    detached = {}
    for place, thing in _held_by(network):
        if isinstance(thing, nn.Module):
            _refuse(thing, place)
            originals.add(id(thing))
        elif isinstance(thing, Tensor) and not thing.is_leaf:
            detached[id(thing)] = thing.detach().clone()
    # deepcopy takes what it finds in its memo for the copy, and adds to it.
    converted = copy.deepcopy(network, dict(detached))
    for place, thing in list(_held_by(converted)):
        if id(thing) in originals:
            raise ValueError(
                f"{place or 'The network'} leads to a {type(thing).__name__} of the original: a "
                "function holds it, or it copies as itself. Keep modules as attributes alone."
            )
        _let_attend(thing, alpha)
    modes = {name: module.training for name, module in network.named_modules()}
    for name, module in converted.named_modules():
        if module.training != modes[name]:  # a copy of a torch.fx graph is in training mode
            module.train(modes[name])
    if check is not None:
        inputs = check if isinstance(check, tuple) else (check,)
        _compare(copy.deepcopy(converted), copy.deepcopy(network, detached), inputs)
    return converted


@torch.no_grad()
def _compare(converted: nn.Module, network: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise an error if the converted network answers otherwise, or a convolution runs in it."""
    with FlopCounterMode(display=False) as flops:
        found = converted.eval()(*inputs)
    if any("conv" in str(operation) for operation in flops.get_flop_counts()["Global"]):
        raise ValueError(
            "Convolutions still run in the copy: code calls them that is not seen from the classes "
            "of its modules. Call F.conv2d in a module's forward."
        )
    torch.testing.assert_close(found, network.eval()(*inputs), rtol=1e-3, atol=1e-3)


def _held_by(network: nn.Module) -> Iterator[tuple[str, Any]]:
    """All that a network holds, itself first, each with its place: what attributes, containers and
    the variables of functions lead to.
    """
    known = set()
    waiting: list[tuple[str, Any]] = [("", network)]
    for place, thing in waiting:  # grows meanwhile, so that the nearest come first
        if id(thing) in known or isinstance(thing, (type, ModuleType)):
            continue
        known.add(id(thing))
        yield place, thing
        if isinstance(thing, nn.Module):
            parts = {**thing._modules, **vars(thing)}
            waiting.extend((f"{place}.{name}".strip("."), part) for name, part in parts.items())
        elif isinstance(thing, FunctionType):
            waiting.append((place, thing.__closure__))
        else:
            waiting.extend((place, part) for part in gc.get_referents(thing))


def _refuse(module: nn.Module, place: str) -> None:
    """Raise a TypeError if attention cannot stand for what a module computes."""
    kind: Any = type(module)
    names = _names_used(kind)
    title = f"{kind.__module__}.{kind.__name__}"
    graph = isinstance(module, torch.fx.GraphModule)
    if (
        isinstance(module, torch.jit.ScriptModule)
        or (isinstance(module, _ConvNd) and not isinstance(module, (nn.Conv1d, nn.Conv2d)))
        or ("Conv" in title and ("quantized" in title or ".Lazy" in title))
        or names & OTHERS
        or (graph and names & {*TAKEN, "convolution"})
        or "forward" in vars(module)
    ):
        raise TypeError(
            f"{place or 'The network'}: attention cannot stand for this {kind.__name__}. It takes "
            "Conv1d, Conv2d, and classes whose code calls these or their functions; no transposed, "
            "3-D, deformable, lazy or quantized convolution, no script, no graph that calls "
            "functions, no forward set on an instance (so convert first, then compile)."
        )


def _let_attend(thing: Any, alpha: float) -> None:
    """Make a convolution attention, and let attention take those that a module's own code calls."""
    kind: Any = type(thing)
    if kind in (nn.Conv1d, nn.Conv2d):
        _take_over(thing, thing.weight, alpha)
    elif isinstance(thing, nn.Module) and kind is not TapAttention:
        if isinstance(thing, _ConvNd) or _names_used(kind) & TAKEN:
            thing.__class__ = _by_attention(kind, alpha)


@functools.cache
def _names_used(kind: type) -> set[str]:
    """Names of functions and attributes in the code of a class, and in functions that this code
    calls by name; less PyTorch's own code.
    """
    names: set[str] = set()
    known = set()
    waiting = [member for base in kind.__mro__ for member in vars(base).values()]
    for member in waiting:  # grows meanwhile
        function = inspect.unwrap(member)
        code = getattr(function, "__code__", function)
        own = not str(getattr(function, "__module__", "")).startswith("torch.")
        if isinstance(code, CodeType) and own and code not in known:
            known.add(code)
            names.update(code.co_names)
            waiting.extend(code.co_consts)  # functions inside
            beside = getattr(function, "__globals__", {})
            waiting.extend(beside.get(name) for name in code.co_names)
    return names


class _Attending(TorchFunctionMode):
    """Inside, attention takes the convolutions that any code calls."""

    def __init__(self, alpha: float):
        super().__init__()
        self.alpha = alpha

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]
        function = self.convolve if name in TAKEN else func
        return function(*args, **(kwargs or {}))

    def convolve(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *numbers: Any, **named: Any
    ) -> Tensor:
        """`F.conv1d` and `F.conv2d`: numbers are stride, padding, dilation, groups, as there."""
        kind: Any = nn.Conv2d if weight.dim() == 4 else nn.Conv1d
        sizes = (input.shape[1 - weight.dim()], weight.shape[0], tuple(weight.shape[2:]))
        conv = kind(*sizes, *numbers, **named, bias=False, device="meta")
        return _take_over(conv, weight, self.alpha)._conv_forward(input, weight, bias)


@functools.cache
def _by_attention(kind: Any, alpha: float) -> type:
    """A subclass whose code runs as it is, but for convolutions: attention takes them."""

    class ByAttention(kind):
        def forward(self, *inputs: Any, **options: Any) -> Any:
            with _Attending(alpha):
                return super().forward(*inputs, **options)

    ByAttention.__name__ = f"{kind.__name__}ByAttention"
    return ByAttention
