"""One model of an explorer: what can be explored, what the browser needs of it, what Python
answers about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from attnconv import heads
from attnconv.attention import PositionalAttention, QuadraticAttention
from attnconv.equivalence import TapAttention
from attnconv.models import Attention, AttentionNet, evaluating, predict
from attnconv.training import load_run
from attnconv.training.runs import Run
from companion.explorer.arrays import ExplorerError, array, padded, quantize, rounded
from companion.explorer.edits import convolved, edited, layers_of, sigma_of

Edits = Sequence[dict[str, Any]]  # as `edited` takes them


@dataclass(frozen=True)
class Side:
    """A model to explore, as `side_of` makes it."""

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

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """What the browser needs of the model, whatever the image."""
        side: dict[str, Any] = dict(
            name=self.run.path.name if self.run else "model",
            title=self.title,
            note=self.note,
            grid=list(self.grid),
            heads=[layer.heads for layer in self.layers],
            encoding=self.encoding,
            path=self._path(),
        )
        if isinstance(self.model, AttentionNet):
            side |= dict(
                downsampling=self.model.config.downsampling,
                swaps=self.swaps,
                counted=self._counted(),
            )
        if not self.content:
            side["gram"] = array(
                torch.stack([_gram(layer, max(side["heads"])) for layer in self.layers])
            )
        if self.encoding == "quadratic":
            side["centres"] = array(padded([layer.centres for layer in self.layers]))
            side["precisions"] = array(padded([layer.precision() for layer in self.layers]))
            side["sigmas"] = array(
                padded([[sigma_of(spread) for spread in layer.spreads] for layer in self.layers])
            )
        elif self.encoding == "learned":
            for name, axis in ("rows", 0), ("columns", 1):
                scores = [
                    layer.axis_logits(self.grid[axis], axis) for layer in self.layers
                ]  # (h, query, key) each
                by_shift = [
                    torch.cat([s[:, -1, :-1], s[:, 0]], dim=-1) for s in scores
                ]  # from the two outer queries
                side[name] = array(padded(by_shift))
        return side

    def _counted(self) -> dict[str, Any] | None:
        """Right answers on all test images, as they were counted with the run: with attention, and
        with a convolution of each of the ``sizes`` in the place of each layer alone, (L, S)."""
        if not self.swaps or not self.run or not (swaps := self.run.swaps):
            return None
        sizes, alone = swaps["sizes"].tolist(), swaps["alone"].sum(-1).tolist()
        return dict(
            images=int(swaps["images"]),
            sizes=sizes,
            attention=int(swaps["whole"].sum()),
            alone=alone,
        )

    def _path(self) -> dict[str, Any] | None:
        """Where the heads were before training and after every epoch; for Gaussians all that P
        needs.
        """
        recorded = self.run.heads if self.run else {}
        if "centre" not in recorded:
            return None
        names = dict(measured="centre", covariances="covariance")
        if self.encoding == "quadratic":
            names = dict(centres="parameter_centre", precisions="precision")
        return dict(epochs=len(recorded["centre"])) | {
            name: array(recorded[own]) for name, own in names.items()
        }

    @cached_property
    def weights(self) -> dict[str, tuple[bytes, bytes]]:
        """All parameters by name, `rounded`; empty for a network that only Python can compute."""
        network = isinstance(self.model, AttentionNet)
        return {name: rounded(value) for name, value in self.model.named_parameters() if network}

    @torch.no_grad()
    def look(
        self, images: Tensor, edits: Edits = (), bits: int = 16, maps: bool = True
    ) -> list[dict[str, Any]]:
        """For each image (B, C, H, W): class probabilities and, with content, scores; with some
        changes (`edited`).
        """
        with edited(self.model, edits):
            seen: list[dict[str, Any]] = [
                dict(probabilities=answer) for answer in self._probabilities(images)
            ]
            if maps and self.content:
                for one, image in zip(seen, images.split(1), strict=True):
                    each = zip(self.layers, self.model.layer_inputs(image), strict=True)
                    parts = [layer.score_parts(x) for layer, x in each]
                    one["maps"] = [
                        _scores(content[0], position[0], bits) for content, position in parts
                    ]
        return seen

    @torch.no_grad()
    def average(self, images: Tensor, bits: int) -> list[dict[str, Any]]:
        """Attention averaged over images, layer by layer: log P of the full score, of position and
        of content only.

        What is below a millionth of its row's largest P is told as that.
        """
        sums: list[dict[str, Any]] = [dict(full=0, position=0, content=0) for _ in self.layers]
        for some in images.split(4):  # few at a time: a batch of paper size would fill the memory
            for total, layer, x in zip(
                sums, self.layers, self.model.layer_inputs(some), strict=True
            ):
                content, position = (
                    part.flatten(-2) for part in layer.score_parts(x)
                )  # (B, h, H, W, N)
                for name, logits in dict(
                    full=content + position, position=position, content=content
                ).items():
                    total[name] = total[name] + logits.softmax(-1).sum(0) / len(images)
        return [
            {
                name: quantize(p.maximum(1e-6 * p.amax(-1, keepdim=True)).log(), bits)
                for name, p in total.items()
            }
            for total in sums
        ]

    @torch.no_grad()
    def examine(
        self, image: Tensor, edits: Edits, layer: int, head: int, size: int | None
    ) -> dict[str, Any]:
        """What one layer and one of its heads do to an image (1, C, H, W), with some changes
        (`edited`).

        ``kernel``: the layer against its convolution, of the side that is in its place already,
        else ``size``; None where there can be none. ``error`` is |attention - convolution| /
        |attention - bias|, ``outputs`` the norms (H, W) of both without the bias, ``probabilities``
        those with the convolution.
        ``head``: its ``output``, the norm (H, W) of sum_k P(q, k) X_k W^h; its ``share`` of the
        layer's output y, <y_h, y> / |y|^2, which add up to 1; the ``probabilities`` without it.
        None where the network skips the layer."""
        attention = self.layers[layer]
        size = next(
            (edit["kernel"] for edit in edits if edit.get("kernel") and edit.get("layer") == layer),
            size,
        )
        passed: list[tuple[Tensor, Tensor]] = []
        kernel = None
        with evaluating(self.model), edited(self.model, edits):
            with attention.register_forward_hook(
                lambda _, inputs, output: passed.append((inputs[0], output))
            ):
                predict(self.model, image)
            if not passed:
                return dict(kernel=None, head=None)
            x, y = passed[-1]
            whole = y - attention(torch.zeros_like(x))  # without the bias
            with edited(self.model, [dict(layer=layer, head=head, off=True)]):
                own = y - attention(x)
                without = self._probabilities(image)[0]
            if size and self.swaps:
                outputs = (
                    attention.forward(x),
                    convolved(attention, x, size, self.grid),
                )  # past a hook in its place
                both = [one[0] - attention.value.bias for one in outputs]
                error = (both[1] - both[0]).norm() / both[0].norm().clamp_min(1e-12)
                with edited(self.model, [dict(layer=layer, kernel=size)]):
                    kernel = dict(error=error.item(), probabilities=self._probabilities(image)[0])
                kernel["outputs"] = [one.norm(dim=-1).flatten().tolist() for one in both]
        channels = (
            0 if isinstance(attention, TapAttention) else -1
        )  # dimension of the channels in one image's output
        output, share = (
            own[0].norm(dim=channels),
            (own * whole).sum() / whole.square().sum().clamp_min(1e-12),
        )
        told = dict(output=output.flatten().tolist(), shape=list(output.shape), share=share.item())
        return dict(kernel=kernel, head=told | dict(probabilities=without))

    @torch.no_grad()
    def maps(self, query: tuple[int, int], image: Tensor) -> NDArray:
        """P of every layer at a query of the grid: (L, h, H, W), NaN where a layer has fewer
        heads.
        """
        inputs = self.model.layer_inputs(image) if self.content else [None] * len(self.layers)
        each = zip(self.layers, inputs, strict=True)
        found = [heads.query_maps(_plain(layer), query, *self.grid, x) for layer, x in each]
        return padded([p[0] if self.content else p for p in found]).numpy()

    def _probabilities(self, images: Tensor) -> list[list[float]]:
        if not self.classes:
            return [[]] * len(images)
        return predict(self.model, images).float().softmax(-1).tolist()


def side_of(subject: Any, size: tuple[int, int] | None = None) -> Side:
    """A model to explore, from all that `explore` takes; ``size`` is that of the images that
    were given.
    """
    run = None
    if isinstance(subject, Run | str | Path):
        subject, run = load_run(subject.path if isinstance(subject, Run) else subject)
    if not isinstance(subject, nn.Module):
        kind = type(subject).__name__
        raise ExplorerError(
            f"A value of type {kind} cannot be explored: give a run, its folder, or a network."
        )
    if isinstance(subject, AttentionNet):
        config = subject.config
        if swapped := [
            number for number, kernel in enumerate(config.kernel_per_layer, 1) if kernel
        ]:
            why = "is a convolution, which has no heads: explore the network that it was swapped in"
            raise ExplorerError(f"Layer {swapped[0]} of this network {why}.")
        encoding = "content" if config.kind == "learned_content" else config.kind
        shape = (config.grid, config.image_size, config.image_channels, config.classes)
        side = Side(subject, run, encoding, *shape, run_title(run) if run else "model")
    else:
        side = _of_converted(subject, size or (32, 32))
    if not any(layer.heads for layer in side.layers):
        raise ExplorerError(
            f"All heads of this {type(subject).__name__} are pruned: there is nothing to explore."
        )
    return side


def _of_converted(model: nn.Module, size: tuple[int, int]) -> Side:
    kind, layers = type(model).__name__, layers_of(model)
    if not layers or any(layer.dimensions == 1 for layer in layers):
        takes = "a run of another preset, an AttentionNet, or attnconv.equivalence.convert(a network of Conv2d)"
        raise ExplorerError(
            f"A {kind} has no attention heads to explore over images. Take {takes}."
        )
    channels = 1 if layers[0].channels == 1 else 3
    try:
        answer = predict(
            model, torch.zeros(1, channels, *size, device=next(model.parameters()).device)
        )
    except Exception as error:  # networks raise what they like
        form = f"{size[0]} x {size[1]} pixels with {channels} channels"
        raise ExplorerError(
            f"The network fails on {form} ({error}). Give images= of the size it takes."
        ) from error
    classes = answer.shape[1] if isinstance(answer, Tensor) and answer.dim() == 2 else 0
    # An odd side, 33 at most, that shows nearly all centres with some room around them.
    far = max(layer.centres.detach().abs().max().item() for layer in layers)
    side = min(33, max(9, 2 * round(far) + 3))
    note = f"The network's layers have grids of their own: all heads are drawn on {side} x {side} pixels."
    return Side(model, None, "quadratic", (side, side), size, channels, classes, kind, note)


def run_title(run: Run) -> str:
    return f"{run.title}, seed {run.train.seed} ({100 * run.test_accuracy:.1f}%)"


def _scores(content: Tensor, position: Tensor, bits: int) -> dict[str, Any]:
    """Both parts of a layer's score, each (h, H, W, H, W); the position's is a row term plus a
    column term.
    """
    rows = position[..., :, 0] - position[..., :1, 0]
    parts = dict(content=content.flatten(-2), rows=rows, columns=position[..., 0, :])
    return {name: quantize(part, bits) for name, part in parts.items()}


def _plain(layer: Attention) -> Attention:
    """A layer that attends over the pixels of any grid; of a `TapAttention` its heads, without
    stride and padding.
    """
    if not isinstance(layer, TapAttention):
        return layer
    plain = QuadraticAttention(1, 1, layer.heads)
    plain.centres, plain.spreads = layer.centres, layer.spreads
    return plain


def _gram(layer: PositionalAttention, most: int) -> Tensor:
    """<W^h, W^g> of a layer's heads, 0 where it has fewer than ``most``. With them norms need no
    weights.
    """
    weight = layer.value.weight.detach().double().cpu()
    weight = weight.unflatten(1, (layer.heads, weight.shape[1] // max(1, layer.heads)))  # (D, h, C)
    return F.pad(torch.einsum("dhc,dgc->hg", weight, weight), (0, most - layer.heads) * 2)
