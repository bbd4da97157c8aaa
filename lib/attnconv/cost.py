"""What a network costs: parameters and floating-point operations, as the paper counts them and exactly.

A multiply-add is two FLOPs. Normalisation, softmax, activations and additions are left out, as everywhere in the field.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnconv.config import ModelConfig, replace
from attnconv.models import build_model


@dataclass(frozen=True)
class Cost:
    """FLOPs of one image's forward pass."""

    parameters: int
    paper: int
    """Linear maps and convolutions only: the paper's Table 1 leaves the averaging by attention out."""
    dense: int
    """All matrix products, with the N x N probabilities of every head built."""
    separable: int
    """The same where encodings that factor are mixed along rows, then columns; equals ``dense`` elsewhere."""


def cost(config: ModelConfig) -> Cost:
    """Count a model without running it: no memory is allocated."""
    with torch.device("meta"):
        model = build_model(config)
    linear = linear_flops(model, config)
    scores, dense, separable = (sum(per_layer) for per_layer in zip(*attention_flops(config), strict=True))
    parameters = sum(p.numel() for p in model.parameters())
    return Cost(parameters, linear, linear + scores + dense, linear + scores + separable)


def linear_flops(model: nn.Module, config: ModelConfig) -> int:
    """FLOPs of all `nn.Linear` and `nn.Conv2d` for one image: what the paper's Table 1 counts."""
    total = 0

    def count(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Linear):
            total += 2 * output.numel() * module.in_features
        else:
            total += 2 * output.numel() * module.weight[0].numel()

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    try:
        model.eval()(_meta_images(config))
    finally:
        for hook in hooks:
            hook.remove()
    return total


def attention_flops(config: ModelConfig) -> list[tuple[int, int, int]]:
    """Per layer, for one image: FLOPs of (the scores, mixing dense, mixing separable).

    With N = H W pixels, C channels, h heads and keys of size K: mixing is 2 h N^2 C dense and 2 h N (H + W) C
    separable; content scores are 2 h N^2 K for q . k and h N (H + W) K for q . r, half of q for rows and half for
    columns. Scores of the positional encodings do not depend on the images: none are counted.
    """
    if config.kind == "resnet":
        return [(0, 0, 0)]
    height, width = config.grid
    pixels = height * width
    factors = config.kind == "learned" or (config.kind == "quadratic" and config.covariance == "isotropic")
    layers = []
    for heads in config.heads_per_layer:
        scores = 0
        if config.kind == "learned_content":
            key_size = config.key_size or config.hidden
            scores = 2 * heads * pixels**2 * key_size + heads * pixels * (height + width) * key_size
        dense = 2 * heads * pixels**2 * config.hidden
        separable = 2 * heads * pixels * (height + width) * config.hidden if factors else dense
        layers.append((scores, dense, separable))
    return layers


def counted_flops(config: ModelConfig, mixing: str = "auto") -> int:
    """FLOPs of one image's forward pass as PyTorch's own counter sees them, on the meta device."""
    config = replace(config, {"attention_dropout": 0.0})
    with torch.device("meta"):
        model = build_model(config).eval()
        for layer in getattr(model, "attention_layers", []):
            layer.mixing = mixing
        with FlopCounterMode(display=False) as counter:
            model(_meta_images(config))
    return counter.get_total_flops()


def _meta_images(config: ModelConfig) -> torch.Tensor:
    return torch.empty(1, config.image_channels, *config.image_size, device="meta")
