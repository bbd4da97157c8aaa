"""Any convolution, and whole networks, as attention.

`attnconv.equivalence.theorem` is the idea. Here it meets all that convolutions have besides a
kernel: strides, dilations, groups, paddings, one dimension. Shape letters as in
`attnconv.attention`, and H' x W' pixels of the padded input, Q x R of the output (the queries)."""

import copy
import gc
import math
import weakref
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from attnconv.attention import QuadraticAttention, tap_shifts
from attnconv.attention.mixing import mix_separable
from attnconv.equivalence.theorem import ALPHA, checked_alpha, value_matrices
from attnconv.models import evaluating

# Lemma 2's sharpness from which a softmax over pixels, heads on taps, is one-hot in float64, too.
ONE_HOT = 40.0
PLAIN = (nn.Conv1d, nn.Conv2d)
# Modules whose code calls no function that convolves, but for the convolutions themselves.
KNOWN = ("torch.nn.modules.", "torchvision.models.", "torchvision.ops.", "attnconv.")


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

    ``centres`` and ``spreads`` are trained if the kernel is, but frozen where the softmax is
    one-hot, as it passes them no gradient: heads that are to move want an alpha of 3 to 10.
    `axis_logits(length, axis)` and what is made of it take the length without padding, and give
    (h, Q, H') or (h, R, W')."""

    weight: Tensor
    bias: Tensor | None
    padding_mode: str
    dimensions: int
    by_axis: list[tuple[int, ...]]  # kernel size, stride and dilation, each of rows and columns
    added: list[int]  # pixels of padding before and after, the last axis first
    taps: Tensor  # where the centres are while the layer is the convolution

    @property
    def value(self) -> Any:  # type: ignore[override]  # of other layers a module; here only shown
        """W^h (with groups, its blocks) as attention layers hold them: ``weight`` (D, h
        C/groups), ``bias`` (D,).
        """
        return SimpleNamespace(weight=value_matrices(self.weight), bias=self.bias)

    def queries(self, length: int, axis: int) -> Tensor:
        """Where the queries are along one axis (0 rows, 1 columns), in pixels of the padded
        image: (Q,) or (R,).
        """
        kernel, stride, dilation = (each[axis] for each in self.by_axis)
        reach = dilation * (kernel - 1)
        last = self._padded(length, axis) - reach
        if last < 1:
            raise ValueError(f"{length} pixels, padded, are less than the kernel's {reach + 1}.")
        return reach // 2 + torch.arange(0, last, stride, device=self.centres.device)

    def shifts(self, length: int, axis: int) -> Tensor:
        """Shift of each pixel of the padded image from each query: (Q, H') or (R, W')."""
        keys = torch.arange(self._padded(length, axis), device=self.centres.device)
        return keys - self.queries(length, axis)[:, None]

    def _padded(self, length: int, axis: int) -> int:
        """Pixels of an axis (0 rows, 1 columns), padding included: H' or W'."""
        return length + sum(self.added[2 - 2 * axis : 4 - 2 * axis])

    def pad(self, x: Tensor) -> Tensor:
        """(..., H, W) -> (..., H', W'), as the convolution pads."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return nn.functional.pad(x, self.added, mode)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, Q, R), or for a Conv1d (B, C, L) -> (B, D, R)."""
        return self._conv_forward(x, self.weight, self.bias)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`forward` with another kernel, under the name that code around a `Conv2d` may call."""
        if x.dim() < weight.dim():  # one image alone
            return self._conv_forward(x[None], weight, bias)[0]
        height, width = (1, *x.shape[2:])[-2:]
        x = self.pad(x)
        if self.dimensions == 1:
            x = x.unsqueeze(2)
        x = x.permute(0, 2, 3, 1).contiguous()  # (B, H', W', C)
        matrices = weight.flatten(2).unflatten(0, (self.groups, -1))  # (g, D/g, C/g, h)
        # Another number of channels is refused.
        averages = self._averages(x, height, width).unflatten(4, (self.groups, weight.shape[1]))
        y = torch.einsum("bqrhgc,gdch->bgdqr", averages, matrices).flatten(1, 2)  # (B, D, Q, R)
        if bias is not None:
            y = y + bias.to(y.dtype)[:, None, None]  # the type that autocast chose
        if self.dimensions == 1:
            y = y.squeeze(2)
        return y.contiguous()

    def _averages(self, x: Tensor, height: int, width: int) -> Tensor:
        """What each head averages at each query: x (B, H', W', C) -> (B, Q, R, h, C).

        P = P_row (x) P_col is never built. Where every head is one-hot and on its own tap, its
        pixel is picked, unless positions want gradients."""
        trained = self.centres.requires_grad or self.spreads.requires_grad
        if self._picks() and not (trained and torch.is_grad_enabled()):
            taps = self.taps.to(self.centres.device)
            rows = self.queries(height, 0)[:, None] + taps[:, 0]
            columns = self.queries(width, 1)[:, None] + taps[:, 1]
            pixels = rows[:, None] * x.shape[2] + columns  # (Q, R, h)
            return x.flatten(1, 2).index_select(1, pixels.flatten()).unflatten(1, pixels.shape)
        rows = self.axis_probabilities(height, 0).to(x.dtype)
        columns = self.axis_probabilities(width, 1).to(x.dtype)
        return mix_separable(x, rows, columns).unflatten(3, (self.heads, -1))

    def _picks(self) -> bool:
        """Whether every head picks its tap's pixel, to rounding. False where nobody can look: while
        a graph is made, or without values.
        """
        unseen = type(self.centres) is not nn.Parameter or self.centres.is_meta
        if unseen or torch.compiler.is_exporting():
            return False
        sharp = all(spread**2 >= 2 * ONE_HOT for spread in self.spreads.tolist())
        return sharp and self.centres.tolist() == self.taps.tolist()


def _take_over(conv: Any, weight: Tensor, alpha: float) -> TapAttention:
    """Make a convolution with this kernel attention: the same object, parameters and attributes,
    with heads.
    """
    alpha = checked_alpha(alpha)
    conv.__class__ = TapAttention
    conv.channels = conv.in_channels
    conv.heads = math.prod(weight.shape[2:])
    conv.dimensions = len(conv.kernel_size)
    for name in ("stride", "padding", "dilation"):
        numbers = getattr(conv, name)
        if isinstance(numbers, int):  # set later
            numbers = (numbers,)
        if len(numbers) < conv.dimensions:  # one number is for both axes
            numbers = 2 * tuple(numbers)
        setattr(conv, name, numbers)
    # A Conv1d has one row.
    conv.by_axis = [(1, *each)[-2:] for each in (weight.shape[2:], conv.stride, conv.dilation)]
    # Only with zeros does a convolution look at its padding again in each pass.
    conv.added = conv._reversed_padding_repeated_twice
    if conv.padding_mode == "zeros":
        kind: Any = PLAIN[conv.dimensions - 1]
        now = kind(1, 1, weight.shape[2:], 1, conv.padding, conv.dilation, device="meta")
        conv.added = now._reversed_padding_repeated_twice

    kernel, _, dilation = conv.by_axis
    conv.taps = tap_shifts(kernel, dilation)
    # bfloat16 would have no shift of 257 pixels.
    centres = conv.taps.to(
        weight.device, torch.promote_types(weight.dtype.to_real(), torch.float32)
    )
    spreads = torch.full_like(centres[:, 0], math.sqrt(2 * alpha))
    # No gradient reaches one-hot positions, and weight decay alone would move them.
    trained = weight.requires_grad and alpha < ONE_HOT
    conv.centres = nn.Parameter(centres, trained)
    conv.spreads = nn.Parameter(spreads, trained)
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
    `F.conv2d` and weights or paddings that it works out itself, gets another ``forward``: its own
    code runs, and attention takes the products. Everything else is copied as it is. The copy shares
    nothing with the network; activations that it keeps are copied without their graph. Code that
    asks ``isinstance(layer, nn.Conv2d)`` finds no convolution any more: with ``check`` one sees it.

    Args:
        alpha: that of `conv_to_attention`.
        check: an example input, or a tuple of inputs. The network and its copy then answer it in
            evaluation mode, and no convolution may run.

    Raises:
        TypeError: attention cannot stand for a module.
        ValueError: the copy leads back to the network, or a convolution still runs.
        AssertionError: the answers to ``check`` differ by more than rounding: in float32, 1e-3 of
            the largest.

    Fast under `torch.no_grad`."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"convert takes a torch.nn.Module, not {network!r}.")
    named = *network.named_modules(), *network.named_parameters()
    places = {id(thing): name or "The network" for name, thing in named}
    for thing in _held_by(network):
        if isinstance(thing, nn.Module):
            _refuse(thing, places.setdefault(id(thing), "Out of sight"))
    converted = copied(network)
    for thing in _held_by(converted):
        if id(thing) in places:
            raise ValueError(
                f"{places[id(thing)]}: the copy would share it with the network. A function holds "
                "it, or it copies as itself. Keep modules and weights as attributes alone."
            )
        if type(thing) in PLAIN:
            _take_over(thing, thing.weight, alpha)
        elif isinstance(thing, nn.Module) and not thing.__module__.startswith(KNOWN):
            thing.forward = partial(_attend, thing, alpha)
    for name, module in converted.named_modules():  # a copied torch.fx graph is in training mode
        module.training = network.get_submodule(name).training
    if check is not None:
        _compare(converted, network, check if isinstance(check, tuple) else (check,))
    return converted


def copied(network: nn.Module) -> nn.Module:
    """A network's copy; activations that it keeps are copied without their graph."""
    known: dict[int, Any] = {}  # deepcopy takes what it finds in its memo for the copy
    for thing in _held_by(network):
        if isinstance(thing, Tensor) and not thing.is_leaf:
            known[id(thing)] = thing.detach().clone()
    return copy.deepcopy(network, known)


@torch.no_grad()
def _compare(converted: nn.Module, network: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise an error if the converted network answers otherwise, or a convolution runs in it."""
    with evaluating(converted), FlopCounterMode(display=False) as flops:
        found = converted(*tree_map_only(Tensor, torch.clone, inputs))  # it may change them
    if "conv" in str(flops.get_flop_counts().get("Global")):
        raise ValueError(
            "Convolutions still run in the copy. Call F.conv2d in a module's forward, and the "
            "module itself rather than its forward."
        )
    kind = next((one.dtype for one in network.parameters()), torch.float32)
    limit = 3 * math.sqrt(torch.finfo(kind).eps)  # 1e-3 in float32
    with evaluating(network):
        expected = network(*inputs)
    pairs = zip(tree_leaves(found), tree_leaves(expected), strict=True)
    tensors = [pair for pair in pairs if isinstance(pair[1], Tensor)]
    if not tensors:
        raise ValueError(f"check: a {type(expected).__name__} has no tensors to compare.")
    for one, other in tensors:
        differ = one != other  # not where both are infinite
        if differ.any():
            apart = (one - other)[differ].abs().max() / other[other.isfinite()].abs().max()
            if not apart <= limit:  # NaN, too
                raise AssertionError(
                    f"The answers are not close: they differ by {apart:.1e} of the network's "
                    f"largest. The limit is {limit:.1e}."
                )


def _held_by(network: nn.Module) -> list[Any]:
    """All that a network holds, itself first: what attributes, containers and the variables of
    functions lead to.
    """
    held: dict[int, Any] = {}
    waiting: list[Any] = [network]
    for thing in waiting:  # grows meanwhile
        if id(thing) not in held and not isinstance(thing, (type, ModuleType)):
            held[id(thing)] = thing
            if isinstance(thing, FunctionType):  # not its globals
                waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
            elif isinstance(thing, weakref.ref) and isinstance(thing(), nn.Module):
                waiting.append(thing())
            else:
                waiting += gc.get_referents(thing)
    return list(held.values())


def _refuse(module: nn.Module, place: str) -> None:
    """Raise a TypeError if attention cannot stand for what a module computes."""
    if (
        isinstance(module, torch.jit.ScriptModule)
        or any(map(_is_other, type(module).__mro__))
        or "aten.conv" in str(getattr(module, "code", ""))  # an exported graph
        or ("forward" in vars(module) and getattr(module.forward, "func", None) is not _attend)
    ):
        raise TypeError(
            f"{place}: attention cannot stand for this {type(module).__name__}. It takes Conv1d, "
            "Conv2d, and code that calls these or their functions; no transposed, 3-D, "
            "deformable, lazy or quantized convolution, no script, no exported graph, no forward "
            "set on an instance (so convert first, then compile)."
        )


def _is_other(kind: type) -> bool:
    """Whether a class is one of PyTorch's other convolutions."""
    called = kind.__name__.startswith(("Conv", "LazyConv", "DeformConv"))
    theirs = kind.__module__.startswith(("torch.", "torchvision.ops.deform"))
    return called and theirs and kind not in PLAIN


def _attend(module: nn.Module, alpha: float, *args: Any, **kwargs: Any) -> Any:
    """A module's own ``forward``, with attention for the convolutions that it calls."""
    with _Attending(alpha):
        return type(module).forward(module, *args, **kwargs)


@dataclass
class _Attending(TorchFunctionMode):
    """While a module's own code runs, attention takes the convolutions that it calls."""

    alpha: float

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name.startswith(("conv_transpose", "conv3d", "conv_tbc")):
            raise TypeError(f"Attention cannot stand for {name}, which a module's own code calls.")
        if name in ("conv1d", "conv2d"):
            func = self.convolve
        return func(*args, **(kwargs or {}))

    def convolve(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *numbers: Any, **named: Any
    ) -> Tensor:
        """`F.conv1d` and `F.conv2d`: numbers are stride, padding, dilation, groups, as there."""
        kind: Any = PLAIN[weight.dim() - 3]
        sizes = (input.shape[1 - weight.dim()], weight.shape[0], tuple(weight.shape[2:]))
        conv = kind(*sizes, *numbers, **named, bias=False, device="meta")
        return _take_over(conv, weight, self.alpha)._conv_forward(input, weight, bias)
