"""What a network costs: parameters and floating-point operations, as the paper counts them and
exactly.

A multiply-add is two FLOPs. Normalisation, softmax, activations and additions are left out, as
everywhere in the field."""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from attnconv.config import ModelConfig
from attnconv.models import build_model


@dataclass(frozen=True)
class Cost:
    """FLOPs of one image's forward pass."""

    parameters: int
    # linear maps and convolutions only: the paper's Table 1 leaves the averaging by attention out
    paper: int
    dense: int  # all matrix products, with the N x N probabilities of every head built
    # where encodings that factor are mixed along rows, then columns; equals ``dense`` elsewhere
    separable: int


def cost(config: ModelConfig) -> Cost:
    """Count a model without running it: no memory is allocated."""
    # In inference mode linear maps may be batched, too.
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(False), torch.device("meta"), counter:
        model = build_model(config).eval()
        model(torch.empty(1, config.image_channels, *config.image_size))
    # The products of attention are batched, those of linear maps and convolutions are not.
    batched = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
    paper = counter.get_total_flops() - batched
    parameters = sum(parameter.numel() for parameter in model.parameters())
    scores, dense, separable = attention_flops(config)
    return Cost(parameters, paper, paper + scores + dense, paper + scores + separable)


def attention_flops(config: ModelConfig) -> tuple[int, int, int]:
    """FLOPs of one image in all layers: of (the scores, mixing dense, mixing separable).

    With N = H W pixels, C channels, h heads and keys of size K: mixing is 2 h N^2 C dense and 2 h N
    (H + W) C separable; content scores are 2 h N^2 K for q . k and h N (H + W) K for q . r, half of
    q for rows and half for columns. Scores of the positional encodings do not depend on the images:
    none are counted."""
    if config.kind == "resnet":
        return 0, 0, 0
    height, width = config.grid
    pixels = height * width
    heads = sum(config.heads_per_layer)
    dense = 2 * heads * pixels**2 * config.hidden
    if config.kind == "learned_content":
        key_size = config.key_size or config.hidden
        return heads * pixels * (2 * pixels + height + width) * key_size, dense, dense
    if config.covariance == "full":
        return 0, dense, dense
    return 0, dense, 2 * heads * pixels * (height + width) * config.hidden
