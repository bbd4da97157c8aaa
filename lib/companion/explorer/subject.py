"""What is explored, one model: what the browser needs of it, and what Python answers about it."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from attnconv import heads
from attnconv.attention import LearnedAttention, QuadraticAttention
from attnconv.equivalence import TapAttention
from attnconv.models import AttentionNet, evaluating, predict
from attnconv.training import load_run
from attnconv.training.runs import Run
from companion.explorer.edits import Edits, ExplorerError, edited, layers_of, sigmas_of
from companion.explorer.packing import Tree, array, padded, quantize, rounded

LEAST = 1e-6  # of a row's largest P: what is below it is told as that


@dataclass(frozen=True)
class Subject:
    """A model to explore, as `subject_of` makes it."""

    model: Any
    run: Run | None
    encoding: str  # quadratic, learned or content
    grid: tuple[int, int]  # height and width on which the heads are drawn
    image_size: tuple[int, int]
    image_channels: int
    classes: int  # 0: it predicts none
    title: str
    note: str = ""  # what a reader should know who sees its heads

    @cached_property
    def layers(self) -> tuple[Any, ...]:
        return layers_of(self.model)

    @property
    def content(self) -> bool:
        return self.encoding == "content"

    @property
    def swaps(self) -> bool:
        """Whether a convolution can take a layer's place."""
        return isinstance(self.model, AttentionNet) and not self.content

    # -- what the browser needs, whatever the image

    @cached_property
    def arrays(self) -> Tree:
        """The model without its weights."""
        found: Tree = dict(
            name=self.run.path.name if self.run else "model",
            title=self.title,
            note=self.note,
            grid=list(self.grid),
            heads=[layer.heads for layer in self.layers],
            encoding=self.encoding,
            path=self._path(),
            swaps=self.swaps,
            counted=self._counted(),
        )
        if self.encoding == "quadratic":
            found["centres"] = self._each(lambda layer: layer.centres)
            found["precisions"] = self._each(QuadraticAttention.precision)
            found["sigmas"] = self._each(sigmas_of)
        if self.encoding == "learned":
            found["rows"] = self._each(_scores_by_shift, self.grid[0], 0)
            found["columns"] = self._each(_scores_by_shift, self.grid[1], 1)
        if not self.content:
            most = max(found["heads"])
            found["gram"] = array(torch.stack([_gram(layer, most) for layer in self.layers]))
        return found

    def _each(self, of: Callable[..., Tensor], *details: int) -> Tree:
        """What every layer has of its heads (h, ...), in one array."""
        return array(padded([of(layer, *details) for layer in self.layers]))

    def _counted(self) -> Tree | None:
        """Right answers on so many test images, as they were counted with the run: with attention,
        and with a convolution of each of the ``sizes`` in the place of each layer alone, (L, S).
        """
        swaps = self.run.swaps if self.run and self.swaps else {}
        if not swaps:
            return None
        return dict(
            images=int(swaps["images"]),
            sizes=swaps["sizes"].tolist(),
            attention=int(swaps["whole"].sum()),
            alone=swaps["alone"].sum(-1).tolist(),
        )

    def _path(self) -> Tree | None:
        """Where the heads were before training and after every epoch; for Gaussians all that P
        needs.
        """
        recorded = self.run.heads if self.run else {}
        if "centre" not in recorded:
            return None
        names = dict(measured="centre", covariances="covariance")
        if self.encoding == "quadratic":
            names = dict(centres="parameter_centre", precisions="precision")
        path = {name: array(recorded[own]) for name, own in names.items()}
        return dict(path, epochs=len(recorded["centre"]))

    @cached_property
    def weights(self) -> dict[str, NDArray]:
        """The parameters with which the page predicts, `rounded`, but for those of positions, which
        `arrays` has. Empty for a network that only Python can compute.
        """
        found = {}
        for name, values in self.model.named_parameters():
            of_positions = ".attention." in name and ".value." not in name and not self.content
            if isinstance(self.model, AttentionNet) and not of_positions:
                found[name] = rounded(values)
        return found

    @cached_property
    def as_sent(self) -> "Subject":
        """The model with these weights: it says what the page says."""
        model = copy.deepcopy(self.model).float()
        weights = {name: torch.from_numpy(values) for name, values in self.weights.items()}
        model.load_state_dict(weights, strict=False)
        return dataclasses.replace(self, model=model)

    # -- what Python answers about images (B, C, H, W), with some changes (`edited`)

    def _input(self, images: Tensor) -> Tensor:
        return images.to(self.layers[0].value.weight)  # its type and its device

    def says(self, images: Tensor, edits: Edits = ()) -> list[list[float]]:
        """Class probabilities of each image."""
        with edited(self.model, edits):
            answers = predict(self.model, self._input(images))
        return answers.float().softmax(-1).tolist() if self.classes else [[]] * len(images)

    def look(self, image: Tensor, edits: Edits = (), bits: int = 16) -> Tree:
        """Of one image: class probabilities and, with content, scores in so many bits, if any."""
        seen: Tree = dict(probabilities=self.says(image, edits)[0])
        if self.content and bits:
            with edited(self.model, edits):
                seen["maps"] = [_packed(parts, bits) for parts in self._scores(image)]
        return seen

    @torch.no_grad()
    def _scores(self, image: Tensor) -> list[Tensor]:
        """Both parts of every layer's score, of content and of position: (2, h, H, W, H, W)."""
        inputs = self.model.layer_inputs(self._input(image))
        each = zip(self.layers, inputs, strict=True)
        return [torch.cat(layer.score_parts(x)) for layer, x in each]

    def average(self, images: Tensor, bits: int) -> list[Tree]:
        """Attention averaged over images, layer by layer: log P of the full score, of position and
        of content only.
        """
        sums: list[Any] = [0] * len(self.layers)
        for image in images.split(1):
            for number, (content, position) in enumerate(self._scores(image)):
                scores = torch.stack([content + position, position, content]).flatten(-2)
                sums[number] = sums[number] + scores.softmax(-1) / len(images)
        found = []
        for p in sums:
            logs = p.maximum(LEAST * p.amax(-1, keepdim=True)).log()
            full, position, content = (quantize(part, bits) for part in logs)
            found.append(dict(full=full, position=position, content=content))
        return found

    @torch.no_grad()
    def examine(self, image: Tensor, edits: Edits, layer: int, head: int, size: int) -> Tree:
        """What one layer and one of its heads do to an image.

        ``kernel``: the layer against its convolution of that ``size``, which may be in its place
        already; None where there can be none. ``error`` is |attention - convolution| / |attention -
        bias|, ``outputs`` the norms (H, W) of both without the bias, ``probabilities`` those with
        the convolution.
        ``head``: its ``output``, the norm (H, W) of sum_k P(q, k) X_k W^h; its ``share`` of the
        layer's output y, <y_h, y> / |y|^2, which add up to 1; the ``probabilities`` without it.
        None where the network skips the layer."""
        attention, passed = self.layers[layer], []
        with evaluating(self.model), edited(self.model, edits):
            with attention.register_forward_hook(lambda _, x, y: passed.append((x[0], y))):
                self.says(image)
            if not passed:
                return dict(kernel=None, head=None)
            x, y = passed[-1]
            bias = attention(torch.zeros_like(x))
            without, answer = self._changed(image, x, dict(layer=layer, head=head, off=True))
            own, whole = y - without, y - bias
            output = own[0].norm(dim=0 if isinstance(attention, TapAttention) else -1)
            seen: Tree = dict(probabilities=answer, shape=list(output.shape))
            seen["output"] = output.flatten().tolist()
            seen["share"] = (own * whole).sum().item() / _length(whole) ** 2
            if not self.swaps:
                return dict(kernel=None, head=seen)
            replaced, answer = self._changed(image, x, dict(layer=layer, kernel=size))
            both = [attention.forward(x) - bias, replaced - bias]  # `forward`: past what is there
            kernel: Tree = dict(probabilities=answer)
            kernel["outputs"] = [one.norm(dim=-1).flatten().tolist() for one in both]
            kernel["error"] = _length(both[1] - both[0]) / _length(both[0])
        return dict(kernel=kernel, head=seen)

    def _changed(self, image: Tensor, x: Tensor, edit: Tree) -> tuple[Tensor, list[float]]:
        """With a change of a layer: what it makes of its input, and what the model says."""
        with edited(self.model, [edit]):
            return self.layers[edit["layer"]](x), self.says(image)[0]

    @torch.no_grad()
    def maps(self, query: tuple[int, int], image: Tensor) -> NDArray:
        """P of every layer at a query of the grid: (L, h, H, W), NaN where a layer has fewer
        heads.
        """
        found = []
        inputs = self.model.layer_inputs(self._input(image)) if self.content else self.layers
        for layer, x in zip(self.layers, inputs, strict=True):
            if isinstance(
                layer, TapAttention
            ):  # its heads on this grid, without stride and padding
                tap, layer = layer, QuadraticAttention(1, 1, layer.heads)
                layer.centres, layer.spreads = tap.centres, tap.spreads
            maps = heads.query_maps(layer, query, *self.grid, x if self.content else None)
            found.append(torch.from_numpy(maps).flatten(0, -3))
        return padded(found).numpy()


def _packed(parts: Tensor, bits: int) -> Tree:
    """Both parts of a layer's score; the position's is a row term plus a column term."""
    content, position = parts
    rows = position[..., :, 0] - position[..., :1, 0]
    each = dict(content=content.flatten(-2), rows=rows, columns=position[..., 0, :])
    return {name: quantize(part, bits) for name, part in each.items()}


def _scores_by_shift(layer: LearnedAttention, length: int, axis: int) -> Tensor:
    """Learned scores of every shift along an axis, read from its two outer queries."""
    scores = layer.axis_logits(length, axis)  # (h, query, key)
    return torch.cat([scores[:, -1, :-1], scores[:, 0]], dim=-1)


def _length(values: Tensor) -> float:
    """The root of the sum of squares, never 0."""
    return values.norm().clamp_min(1e-12).item()


def _gram(layer: Any, most: int) -> Tensor:
    """<W^h, W^g> of a layer's heads. With them norms of kernels need no weights."""
    weight = layer.value.weight.detach().double().cpu()
    by_head = weight.T.reshape(layer.heads, weight.numel() // max(1, layer.heads))
    missing = most - layer.heads
    return F.pad(by_head @ by_head.T, (0, missing) * 2)


def subject_of(given: Any, size: tuple[int, int] | None = None) -> Subject:
    """A model to explore, from all that `explore` takes; ``size`` is that of the images that were
    given.
    """
    run = None
    if isinstance(given, Run | str | Path):
        given, run = load_run(given.path if isinstance(given, Run) else given)
    kind = type(given).__name__
    layers = layers_of(given) if isinstance(given, nn.Module) else ()
    if not any(layer.heads for layer in layers) or any(
        getattr(layer, "dimensions", 2) == 1 for layer in layers
    ):
        takes = "a run of another preset, an AttentionNet, or convert(a network of Conv2d)"
        raise ExplorerError(
            f"A {kind} has no attention heads to explore over images. Take {takes}."
        )
    if not isinstance(given, AttentionNet):
        return _of_converted(given, layers, size or (32, 32))
    config = given.config
    if any(config.kernel_per_layer):
        instead = "explore the network that it was swapped in"
        raise ExplorerError(f"A layer of this network is a convolution, without heads: {instead}.")
    encoding = "content" if config.kind == "learned_content" else config.kind
    shape = (config.grid, config.image_size, config.image_channels, config.classes)
    return Subject(given, run, encoding, *shape, run_title(run) if run else "model")


def _of_converted(model: nn.Module, layers: Sequence[Any], size: tuple[int, int]) -> Subject:
    """A network that `attnconv.equivalence.convert` made."""
    channels = 1 if layers[0].channels == 1 else 3
    try:
        answer = predict(model, torch.zeros(1, channels, *size).to(layers[0].value.weight))
    except Exception as error:  # networks raise what they like
        form = f"{size[0]} x {size[1]} pixels with {channels} channels"
        remedy = "Give images= of the size it takes."
        raise ExplorerError(f"The network fails on {form} ({error}). {remedy}") from error
    classes = answer.shape[1] if isinstance(answer, Tensor) and answer.dim() == 2 else 0
    # An odd side, 33 at most, that shows nearly all centres with some room around them.
    far = max(layer.centres.detach().abs().max().item() for layer in layers)
    side = min(33, max(9, 2 * round(far) + 3))
    note = f"Each layer has a grid of its own: all heads are drawn on {side} x {side} pixels."
    shape = ((side, side), size, channels, classes)
    return Subject(model, None, "quadratic", *shape, type(model).__name__, note)


def run_title(run: Run) -> str:
    return f"{run.title}, seed {run.train.seed} ({100 * run.test_accuracy:.1f}%)"
