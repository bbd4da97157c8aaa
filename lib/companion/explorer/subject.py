"""What is explored, one model: what the browser needs of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from attnconv import heads
from attnconv.attention import LearnedAttention, QuadraticAttention
from attnconv.config import ModelConfig
from attnconv.models import AttentionNet, predict
from attnconv.training import load_run
from attnconv.training.runs import Arrays, Run
from companion.explorer.packing import Tree, array, in_halves, padded, rounded

SIGMAS = (0.05, 50.0)
"""Least and largest standard deviation of a Gaussian head, in pixels of the grid."""


class ExplorerError(ValueError):
    """Something the explorer was asked and cannot do; its message is shown in the page."""


@dataclass(frozen=True)
class Subject:
    """A model to explore, as `subject_of` makes it."""

    model: AttentionNet
    run: Run | None

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def encoding(self) -> str:
        """quadratic, learned or content."""
        return "content" if self.config.kind == "learned_content" else self.config.kind

    @property
    def title(self) -> str:
        return f"{self.run.title}, seed {self.run.train.seed}" if self.run else "model"

    @cached_property
    def layers(self) -> tuple[Any, ...]:
        return tuple(self.model.attention_layers)

    @cached_property
    def arrays(self) -> Tree:
        """All of the model that a page needs: where its heads look, and the weights with which
        the page predicts."""
        grid = self.config.grid
        found: Tree = dict(
            name=self.run.path.name if self.run else "model",
            title=self.title,
            grid=list(grid),
            heads=[layer.heads for layer in self.layers],
            encoding=self.encoding,
            downsampling=self.config.downsampling,
            path=self._path(),
            weights={name: in_halves(values) for name, values in self.weights.items()},
        )
        if self.encoding == "quadratic":
            found["centres"] = self._each(lambda layer: layer.centres)
            found["precisions"] = self._each(QuadraticAttention.precision)
            found["sigmas"] = self._each(sigmas_of)
        if self.encoding == "learned":
            found["rows"] = self._each(_scores_by_shift, grid[0], 0)
            found["columns"] = self._each(_scores_by_shift, grid[1], 1)
        if self.encoding != "content":
            most = max(found["heads"])
            found["products"] = self._each(
                lambda layer: F.pad(heads.products(layer), (0, most - layer.heads))
            )
        return found

    def _each(self, of: Callable[..., Tensor], *details: int) -> Tree:
        """What every layer has of its heads (h, ...), in one array."""
        return array(padded([of(layer, *details) for layer in self.layers]))

    def _path(self) -> Tree | None:
        """Where the heads were before training and after every epoch; for Gaussians all that P
        and kernels need. ``accuracy``: on test images, after each epoch.
        """
        if not self.run or "centre" not in self.run.heads:
            return None
        recorded = self.run.heads
        names = dict(measured="centre", covariances="covariance")
        if self.encoding == "quadratic":
            names = dict(centres="parameter_centre", precisions="precision", products="products")
        path: Tree = {name: array(recorded[own]) for name, own in names.items() if own in recorded}
        path["epochs"] = len(recorded["centre"])
        path["accuracy"] = [epoch["test_accuracy"] for epoch in self.run.metrics]
        return path

    @cached_property
    def weights(self) -> Arrays:
        """The parameters with which the page predicts, `rounded`, but for those of positions."""
        found = {}
        for name, values in self.model.state_dict().items():
            if not values.half().isfinite().all():
                raise ExplorerError(f"{name} is not finite, or above 65,504: no page can hold it.")
            of_positions = ".attention." in name and ".value." not in name
            if self.encoding == "content" or not of_positions:
                found[name] = rounded(values)
        return found

    def says(self, images: Tensor) -> Tensor:
        """Class probabilities of each image (B, C, H, W)."""
        return predict(self.model, images.to(self.layers[0].value.weight)).float().softmax(-1)

    @torch.no_grad()
    def maps(self, query: tuple[int, int], image: Tensor) -> NDArray:
        """P of every layer at a query of the grid: (L, h, H, W), NaN where a layer has fewer
        heads.
        """
        seen = None
        if self.encoding == "content":
            seen = self.model.layer_inputs(image.to(self.layers[0].value.weight))
        return heads.network_maps([*self.layers], query, self.config.grid, seen)


def sigmas_of(layer: QuadraticAttention) -> Tensor:
    """det(Sigma)^(1/4) of every head, from its Sigma^{-1/2}: (h,); 0 where it has no such scale."""
    spreads = layer.spreads.detach().double()
    scales = spreads.abs() if spreads.dim() == 1 else spreads.det().abs().sqrt()
    return torch.where(scales >= 1e-6, 1 / scales, 0)


def _scores_by_shift(layer: LearnedAttention, length: int, axis: int) -> Tensor:
    """Learned scores of every shift along an axis, read from its two outer queries."""
    scores = layer.axis_logits(length, axis)  # (h, query, key)
    return torch.cat([scores[:, -1, :-1], scores[:, 0]], dim=-1)


def subject_of(given: Any) -> Subject:
    """A model to explore: of a run, a run's folder, or an `AttentionNet`."""
    run = None
    if isinstance(given, Run | str | Path):
        given, run = load_run(given.path if isinstance(given, Run) else given)
    if not isinstance(given, AttentionNet) or not any(given.config.heads_per_layer):
        raise ExplorerError(
            f"A {type(given).__name__} has no attention heads to explore here. Take a run of "
            "another preset, or an AttentionNet."
        )
    if any(given.config.kernel_per_layer):
        raise ExplorerError(
            "A layer of this network is a convolution, without heads: explore the network that it "
            "was swapped in."
        )
    return Subject(given, run)
