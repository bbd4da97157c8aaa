"""One model of an explorer: what the browser needs of it, and what Python answers about it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from attnconv.analysis import heads
from attnconv.attention import LearnedAttention, PositionalAttention, QuadraticAttention
from attnconv.equivalence import TapAttention, attention_to_conv
from attnconv.explorer.arrays import array, padded, quantize
from attnconv.explorer.images import ExplorerError
from attnconv.models import Attention, AttentionNet, predict
from attnconv.training.runs import Run

AVERAGE_FLOOR = 1e-6
"""Averaged probabilities travel as logarithms, and none below this share of the row's largest is told from it."""
SIGMAS = (0.05, 50.0)
"""Smallest and largest standard deviation that the slider of a Gaussian head gives, in pixels of the grid."""


@dataclass(frozen=True)
class Side:
    """A model to explore, as `attnconv.explorer.subjects.side_of` makes it."""

    model: torch.nn.Module
    run: Run | None
    encoding: str
    """``quadratic``, ``learned`` or ``content``."""
    grid: tuple[int, int]
    """Height and width of the grid on which the heads are drawn."""
    image_size: tuple[int, int]
    image_channels: int
    classes: int
    """0: it predicts no classes."""
    title: str | None = None
    note: str = ""
    """What a reader should know who sees its heads."""

    @cached_property
    def layers(self) -> tuple[Any, ...]:
        """Its attention layers, first to last."""
        return layers_of(self.model)

    @property
    def content(self) -> bool:
        return self.encoding == "content"

    @property
    def swaps(self) -> bool:
        """Whether a convolution can take a layer's place."""
        return isinstance(self.model, AttentionNet) and not self.content

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """What the browser needs of the model, whatever the image."""
        side: dict[str, Any] = dict(
            name=self.run.path.name if self.run else "model",
            title=self.title or (run_title(self.run) if self.run else "model"),
            note=self.note,
            grid=list(self.grid),
            heads=[layer.heads for layer in self.layers],
            encoding=self.encoding,
            path=self._path(),
        )
        if isinstance(self.model, AttentionNet):
            side |= dict(downsampling=self.model.config.downsampling, swaps=self.swaps)
        if not self.content:
            side["gram"] = array(_grams(self.layers))
        if self.encoding == "quadratic":
            side["centres"] = array(padded([layer.centres for layer in self.layers]))
            side["precisions"] = array(padded([layer.precision() for layer in self.layers]))
            side["sigmas"] = array(padded([[_sigma(spread) for spread in layer.spreads] for layer in self.layers]))
        elif self.encoding == "learned":
            for name, axis in ("rows", 0), ("columns", 1):
                side[name] = array(padded([_by_shift(layer, self.grid[axis], axis) for layer in self.layers]))
        return side

    def _path(self) -> dict[str, Any] | None:
        """Where the heads were before training and after every epoch; for Gaussians all that P needs."""
        recorded = self.run.heads if self.run else {}
        if "centre" not in recorded:
            return None
        path = dict(epochs=len(recorded["centre"]), measured=array(recorded["centre"]))
        if self.encoding != "quadratic":
            path |= dict(covariances=array(recorded["covariance"]))
        else:
            path |= dict(centres=array(recorded["parameter_centre"]), precisions=array(recorded["precision"]))
        return path

    @cached_property
    def weights(self) -> dict[str, bytes] | None:
        """All parameters by name, in half precision; None for a network that only Python can compute."""
        if not isinstance(self.model, AttentionNet):
            return None
        return {name: value.detach().half().cpu().numpy().tobytes() for name, value in self.model.named_parameters()}

    @torch.no_grad()
    def look(
        self, images: Tensor, edits: Sequence[dict] = (), bits: int = 16, maps: bool = True
    ) -> list[dict[str, Any]]:
        """For each image (B, C, H, W): class probabilities and, with content, scores; with some changes (`edited`)."""
        maps = maps and self.content
        with edited(self.model, edits):
            seen: list[dict[str, Any]] = [dict(probabilities=answer) for answer in self._probabilities(images)]
            for one, image in zip(seen, images[:, None] if maps else (), strict=maps):
                parts = [layer.score_parts(x) for layer, x in zip(self.layers, self._inputs(image), strict=True)]
                one["maps"] = [_scores(content[0], position[0], bits) for content, position in parts]
        return seen

    @torch.no_grad()
    def average(self, images: Tensor, bits: int = 16) -> list[dict[str, Any]]:
        """Attention averaged over images, layer by layer: log P of the full score, of position and of content only."""
        sums: list[list] = [[0.0, 0.0, 0.0] for _ in self.layers]
        for some in images.split(4):  # few at a time: a batch of paper size would fill the memory
            for total, layer, x in zip(sums, self.layers, self._inputs(some), strict=True):
                content, position = (part.flatten(-2) for part in layer.score_parts(x))  # (B, h, H, W, N)
                for i, logits in enumerate((content + position, position, content)):
                    total[i] = total[i] + logits.softmax(-1).sum(0) / len(images)
        names = ("full", "position", "content")
        return [{n: quantize(_logarithm(p), bits) for n, p in zip(names, total, strict=True)} for total in sums]

    @torch.no_grad()
    def examine(
        self, image: Tensor, edits: Sequence[dict], layer: int | None, head: int | None, size: int | None
    ) -> dict[str, Any]:
        """What one layer and one of its heads do to an image (1, C, H, W), with some changes (`edited`).

        Returns:
            ``kernel``: `_as_convolution`, of the side that is already in the layer's place, else ``size``; None where
            no convolution can be.
            ``head``: its ``output``, the norm (H, W) of sum_k P(q, k) X_k W^h at every pixel q; its ``share`` of the
            layer's output y, <y_h, y> / |y|^2, which add up to 1; the ``probabilities`` without it. Of a convolution
            in the layer's place, the head's part. None of a layer that the network does not use.
        """
        attention, _ = head_of(self.layers, dict(layer=layer, head=head))
        size = next((edit["kernel"] for edit in edits if edit.get("kernel") and edit.get("layer") == layer), size)
        channels = 0 if isinstance(attention, TapAttention) else -1  # dimension of the channels in one image's output
        with edited(self.model, edits):
            if (passed := self._through(attention, image)) is None:
                return dict(kernel=None, head=None)
            x, y = passed
            whole = y - attention(torch.zeros_like(x))  # without the bias
            with edited(self.model, [dict(layer=layer, head=head, off=True)]):
                own = y - attention(x)
                without = self._probabilities(image)[0]
            kernel = self._as_convolution(attention, x, size, image) if size and self.swaps else None
        output, share = own[0].norm(dim=channels), (own * whole).sum() / whole.square().sum().clamp_min(1e-12)
        told = dict(output=output.flatten().tolist(), shape=list(output.shape), share=share.item())
        return dict(kernel=kernel, head=told | dict(probabilities=without))

    def _as_convolution(self, layer: PositionalAttention, x: Tensor, size: int, image: Tensor) -> dict[str, Any]:
        """A layer with the input x against the size x size convolution that `attention_to_conv` reads from it.

        ``error`` is |attention - convolution| / |attention - bias|; ``outputs`` are the norms (H, W) of both at every
        pixel, without the bias; ``probabilities`` are the model's with the convolution in the layer's place.
        """
        attended, replaced = layer.forward(x), _convolved(layer, x, size, self.grid)  # past a hook in its place
        with layer.register_forward_hook(lambda *_: replaced):
            probabilities = self._probabilities(image)[0]
        both = [one[0] - layer.value.bias for one in (attended, replaced)]
        error = (both[1] - both[0]).norm() / both[0].norm().clamp_min(1e-12)
        outputs = [one.norm(dim=-1).flatten().tolist() for one in both]
        return dict(error=error.item(), outputs=outputs, probabilities=probabilities)

    def _through(self, layer: torch.nn.Module, image: Tensor) -> tuple[Tensor, Tensor] | None:
        """What a layer is given for an image, and what it answers; None if it is not used."""
        seen: list[tuple[Tensor, Tensor]] = []
        with layer.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output))):
            predict(self.model, image)
        return seen[-1] if seen else None

    @torch.no_grad()
    def maps(self, query: tuple[int, int], image: Tensor) -> NDArray:
        """P of every layer at a query of the grid: (L, h, H, W), NaN where a layer has fewer heads."""
        inputs = self._inputs(image) if self.content else [None] * len(self.layers)
        each = zip(self.layers, inputs, strict=True)
        found = [heads.query_maps(_plain(layer), query, *self.grid, x) for layer, x in each]
        return padded([p[0] if self.content else p for p in found]).numpy()

    def _probabilities(self, images: Tensor) -> list[list[float]]:
        if not self.classes:
            return [[]] * len(images)
        return predict(self.model, images).float().softmax(-1).tolist()

    def _inputs(self, image: Tensor) -> list[Tensor]:
        assert isinstance(self.model, AttentionNet)  # only these look at content
        return self.model.eval().layer_inputs(image)


def run_title(run: Run) -> str:
    return f"{run.title}, seed {run.train.seed} ({100 * run.test_accuracy:.1f}%)"


def _by_shift(layer: LearnedAttention, length: int, axis: int) -> Tensor:
    """Scores along one axis by shift -(length - 1) .. length - 1: (h, 2 length - 1), from the two outer queries."""
    with torch.no_grad():
        logits = layer.axis_logits(length, axis)  # (h, query, key)
    return torch.cat([logits[:, -1, :-1], logits[:, 0]], dim=-1)


def _scores(content: Tensor, position: Tensor, bits: int) -> dict[str, Any]:
    """Both parts of a layer's score, each (h, H, W, H, W); the position's is a row term plus a column term."""
    rows = position[..., :, 0] - position[..., :1, 0]
    parts = dict(content=content.flatten(-2), rows=rows, columns=position[..., 0, :])
    return {name: quantize(part, bits) for name, part in parts.items()}


def _logarithm(p: Tensor) -> Tensor:
    return p.maximum(AVERAGE_FLOOR * p.amax(-1, keepdim=True)).log()


def layers_of(model: torch.nn.Module) -> tuple[Any, ...]:
    """The attention layers of an `AttentionNet` or a converted network, first to last."""
    if isinstance(model, AttentionNet):
        return tuple(model.attention_layers)
    return tuple(module for module in model.modules() if isinstance(module, TapAttention))


@contextlib.contextmanager
def edited(model: torch.nn.Module, edits: Sequence[dict[str, Any]]) -> Iterator[None]:
    """The model with some changes, inside a ``with`` block; all is put back afterwards.

    An edit of a head names a ``layer`` and a ``head`` (from 0) and any of: ``off`` (true: the head adds nothing), and
    for Gaussian heads ``centre`` (row, column; pixels) and ``sigma``, the standard deviation det(Sigma)^(1/4) in
    pixels: a full covariance keeps its shape and is scaled.

    An edit of a ``layer`` with a ``kernel`` puts the convolution of that side in its place, as
    `attnconv.equivalence.swap` does. It is read from the layer with its heads as they are changed.

    Raises:
        ExplorerError: there is no such head, a value that is no finite number in range, or no such convolution.
    """
    layers = layers_of(model)
    saved = [(parameter, parameter.detach().clone()) for layer in layers for parameter in layer.parameters()]
    places = contextlib.ExitStack()
    try:
        with torch.no_grad():
            for edit in edits:
                if edit.get("kernel") is None:
                    _edit(*head_of(layers, edit), edit)
                else:
                    places.enter_context(_swapped(model, layer_of(layers, edit), edit))
        yield
    finally:
        places.close()
        with torch.no_grad():
            for parameter, values in saved:
                parameter.copy_(values)


def _swapped(model: torch.nn.Module, layer: Any, edit: dict[str, Any]) -> RemovableHandle:
    """Put a convolution in a layer's place, until what is returned is closed."""
    size = edit["kernel"]
    if not isinstance(model, AttentionNet) or not isinstance(layer, PositionalAttention):
        raise ExplorerError(
            f"Layer {edit['layer'] + 1} cannot be a convolution here: only a layer of an AttentionNet can that does "
            "not look at content."
        )
    grid = model.config.grid
    sizes = range(1, min(grid) + 1, 2)
    if size not in sizes:
        raise ExplorerError(f"A kernel of side {size!r} does not fit: it must be an odd number, at most {sizes[-1]}.")
    # Read anew whenever it computes: its heads may be changed after this.
    return layer.register_forward_hook(lambda layer, inputs, _: _convolved(layer, inputs[0], size, grid))


def _edit(layer: Any, head: int, edit: dict[str, Any]) -> None:
    if edit.get("off") and isinstance(layer, TapAttention):
        row, column = divmod(head, layer.kernel_size[1])
        layer.weight[:, :, row, column] = 0
    elif edit.get("off"):
        layer.value.weight[:, head * layer.channels : (head + 1) * layer.channels] = 0
    if isinstance(layer, QuadraticAttention):
        if edit.get("centre") is not None:
            centre = [_number(value, "centre", -1000, 1000) for value in edit["centre"]]
            layer.centres[head] = torch.tensor(centre).to(layer.centres)
        if edit.get("sigma") is not None:
            layer.spreads[head] = _rescaled(layer.spreads[head], _number(edit["sigma"], "sigma", *SIGMAS))


def _plain(layer: Attention) -> Attention:
    """A layer that attends over the pixels of any grid; of a `TapAttention` its heads, without stride and padding."""
    if not isinstance(layer, TapAttention):
        return layer
    plain = QuadraticAttention(1, 1, layer.heads)
    plain.centres, plain.spreads = layer.centres, layer.spreads
    return plain


def _convolved(layer: PositionalAttention, x: Tensor, size: int, grid: tuple[int, int]) -> Tensor:
    """What the size x size convolution that is read from a layer makes of its input, (B, H, W, C) both."""
    conv, _ = attention_to_conv(layer, size, size=grid)
    return conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def head_of(layers: Sequence[torch.nn.Module], edit: dict[str, Any]) -> tuple[Any, int]:
    """The layer that an edit names, and the head's number in it."""
    layer, head = layer_of(layers, edit), edit.get("head")
    if not isinstance(head, int) or not 0 <= head < layer.heads:
        raise ExplorerError(f"Layer {edit['layer'] + 1} has no head {head!r}: it has {layer.heads}.")
    return layer, head


def layer_of(layers: Sequence[torch.nn.Module], edit: dict[str, Any]) -> Any:
    """The layer that an edit names."""
    number = edit.get("layer")
    if not isinstance(number, int) or not 0 <= number < len(layers):
        raise ExplorerError(f"There is no layer {number!r}: the model has {len(layers)}.")
    return layers[number]


def _number(value: Any, name: str, low: float, high: float) -> float:
    if not isinstance(value, int | float) or not low <= value <= high:
        raise ExplorerError(f"{name} = {value!r} must be a number from {low:g} to {high:g}.")
    return float(value)


def _sigma(spread: Tensor) -> float:
    """det(Sigma)^(1/4) of a head, from its Sigma^{-1/2}; 0 where it has no such scale."""
    scale = spread.detach().double()
    scale = scale.abs() if spread.dim() == 0 else scale.det().abs().sqrt()
    return 1 / scale.item() if scale.isfinite() and scale >= 1e-6 else 0.0


def _rescaled(spread: Tensor, sigma: float) -> Tensor:
    """Sigma^{-1/2} of a head, scaled so that det(Sigma)^(1/4) is sigma; round where it has no such scale."""
    if spread.dim() == 0:
        return torch.full_like(spread, math.copysign(1 / sigma, spread.item()))
    if not (before := _sigma(spread)):
        return torch.eye(2).to(spread) / sigma
    return (spread.double() * (before / sigma)).to(spread)


@torch.no_grad()
def _grams(layers: Sequence[PositionalAttention]) -> Tensor:
    """<W^h, W^g> of the heads of every layer: (L, h, h), 0 where a layer has fewer. With them norms need no weights."""
    most = max(layer.heads for layer in layers)
    grams = torch.zeros(len(layers), most, most, dtype=torch.float64)
    for gram, layer in zip(grams, layers, strict=True):
        weight = layer.value.weight.double().unflatten(1, (layer.heads, -1))  # (D, h, C)
        gram[: layer.heads, : layer.heads] = torch.einsum("dhc,dgc->hg", weight, weight)
    return grams
