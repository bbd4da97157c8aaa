"""Attention layers out, convolutions in: what a trained network loses says how far its layers *are*
convolutions.

`swap` reads the convolution of a given size out of a layer (`attention_to_conv`) and puts it in the
layer's place. Nothing is trained, so no threshold and no picture stands between the question and
the answer."""

import copy
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnconv.attention import ContentAttention, tap_shifts
from attnconv.config import replace
from attnconv.equivalence.reading import attention_to_conv, set_kernel
from attnconv.equivalence.theorem import theorem_1
from attnconv.heads import mean_probabilities
from attnconv.models import Attention, AttentionNet, Convolution

# of a least-squares fit, as a share of the mean square of what taps see: it matters to unseen ones
# alone
RIDGE = 1e-6
# training images over which attention with content is averaged, and to which kernels are fitted
READ_ON = 200
AT_ONCE = 20  # images whose patches exist at a time


@torch.no_grad()
def swap(
    network: AttentionNet,
    kernel_sizes: Mapping[int, int],
    *,
    images: Tensor | None = None,
    fit: Tensor | None = None,
) -> AttentionNet:
    """A copy of a network in which the attention of some layers is a convolution: {layer: kernel
    size}, the first is 1.

    Each convolution is the one that `attention_to_conv` reads out of its layer, on the network's
    own grid. ``network.blocks[layer - 1].attention.outside`` says what was left out, and
    ``config.kernels`` of the copy which layers were swapped, so `build_model` makes such a network,
    too.

    Args:
        images: (B, channels, H, W), normalised; for layers with content, which have another P for
            every image: its mean over these and over all queries that have the shift is read. A few
            hundred training images will do.
        fit: such images, for any layer. Each convolution is then not read but fitted: by least
            squares the nearest one to what its layer computes on these images. The fairest opponent
            that attention can have.

    Raises:
        TypeError: no `AttentionNet`; no whole number.
        ValueError: there is no such layer, or it is a convolution already; an even size; no images
            for content.
    """
    if not isinstance(network, AttentionNet):
        raise TypeError(
            f"swap takes an AttentionNet; a {type(network).__name__} has no attention to swap."
        )
    swapped = copy.deepcopy(network)
    kernels = list(network.config.kernel_per_layer)
    shown = images if fit is None else fit
    seen: Any = [None] * len(kernels) if shown is None else network.layer_inputs(shown)
    for number, size in kernel_sizes.items():
        number, size = index(number), index(size)  # NumPy's, too
        _check(network, number, size)
        layer: Any = swapped.attention_layers[number - 1].eval()  # no dropout
        x = seen[number - 1]
        place = _in_place_of(layer, size, network.config.grid, x)
        if fit is not None:
            fit_kernel(place, layer, x)
        swapped.blocks[number - 1].attention = place.train(swapped.training)
        kernels[number - 1] = size
    while kernels and not kernels[-1]:
        kernels.pop()
    swapped.config = replace(network.config, {"kernels": kernels})
    return swapped


def _check(network: AttentionNet, number: int, size: int) -> None:
    """Raise a ValueError if no convolution of this size can be put in this layer's place."""
    layers = network.attention_layers
    # A larger one has taps that the query in the middle does not see.
    sizes = range(1, min(network.config.grid) + 1, 2)
    if not 1 <= number <= len(layers):
        raise ValueError(f"There is no layer {number}: the network has layers 1 to {len(layers)}.")
    if isinstance(layers[number - 1], Convolution) or size not in sizes:
        raise ValueError(
            f"Layer {number} cannot become a {size}x{size} convolution: a kernel's side is odd, "
            f"here at most {sizes[-1]}, and the layer must not be a convolution already."
        )


def _in_place_of(layer: Any, size: int, grid: tuple[int, int], x: Any) -> Convolution:
    """The convolution that is read out of a layer, for content on what it sees, x (B, H, W, C)."""
    place: Any = Convolution(layer.channels, size)
    if not isinstance(layer, ContentAttention):
        place.conv, place.outside = attention_to_conv(layer, size, grid)
        return place
    if x is None:
        raise ValueError("Attention by content is read as a mean over images: pass images=.")
    mass = mean_mass(layer, x, size)
    set_kernel(place.to(layer.value.weight).conv, layer, mass)
    place.outside = (1 - mass.sum(1)).clamp_min(0)
    return place


@torch.no_grad()
def unswap(network: AttentionNet, spread: float) -> AttentionNet:
    """The way back: a copy of a network in which each convolution is quadratic attention, a head on
    each of its taps.

    Theorem 1 as it stands, with heads of this ``spread``: Lemma 2's alpha is spread^2 / 2.
    `build_model` makes such a network from its config, too."""
    config = network.config
    if (config.kind, config.covariance) != ("quadratic", "isotropic"):
        raise ValueError(
            f"Heads on taps are isotropic; this network is {config.kind}, {config.covariance}."
        )
    attention = copy.deepcopy(network)
    for block in attention.blocks:
        place = block.attention
        if isinstance(place, Convolution):
            layer = theorem_1(place.conv.weight, place.conv.bias, spread**2 / 2)
            layer.dropout = config.attention_dropout
            block.attention = layer.train(place.training)
    heads = [layer.heads for layer in attention.attention_layers]
    start = {
        "kernels": [],
        "centre_start": "taps",
        "spread_start": spread,
        "heads": heads[0] if len(set(heads)) == 1 else heads,
    }
    attention.config = replace(config, start)
    return attention


@torch.no_grad()
def relative_errors(convs: Sequence[nn.Module], layer: Attention, x: Tensor) -> list[float]:
    """|layer - conv| / |layer - bias| of each convolution on what the layer sees, x (B, H, W,
    C); root mean squares.
    """
    totals = torch.zeros(1 + len(convs)).double().to(x.device)
    for part in x.split(AT_ONCE):
        out = layer(part)
        differences = [out - layer.value.bias, *(conv(part) - out for conv in convs)]
        totals += torch.stack([one.double().square().sum() for one in differences])
    whole, *lost = totals.sqrt().tolist()
    return [one / max(whole, 1e-150) for one in lost]


def mean_mass(layer: ContentAttention, x: Tensor, size: int) -> Tensor:
    """Mass of each head on each tap of a K x K kernel, over images x (B, H, W, C): (h, K K).

    It is the mean of P over the images and over all queries from which the tap's shift leads to a
    pixel."""
    p = mean_probabilities(layer, x)  # (h, H, W, H, W)
    taps = [
        p.diagonal(row, 1, 3).diagonal(column, 1, 2).mean((1, 2))
        for row, column in tap_shifts((size, size)).tolist()
    ]
    return torch.stack(taps, dim=1)


def fit_kernel(place: Convolution, layer: Attention, x: Tensor) -> None:
    """Set the convolution to the one that is nearest to the layer on x (B, H, W, C), by least
    squares, bias and all.

    What is fitted is a correction to the present kernel, so taps that the images say nothing about
    stay as they are."""
    conv: Any = place.conv
    gram: Any = 0
    moment: Any = 0
    for part in x.split(AT_ONCE):
        left = (layer(part) - place(part)).flatten(0, 2)  # (n, D)
        padded = F.pad(
            part.permute(0, 3, 1, 2), conv._reversed_padding_repeated_twice, conv.padding_mode
        )
        patches = F.unfold(padded, conv.kernel_size).transpose(1, 2).flatten(0, 1)  # (n, C K K)
        patches = F.pad(patches, (0, 1), value=1.0)  # the bias sees a 1
        gram = gram + (patches.T @ patches).double()
        moment = moment + (patches.T @ left).double()
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    change = torch.linalg.solve(gram, moment).to(conv.weight)
    conv.weight += change[:-1].T.reshape(conv.weight.shape)
    conv.bias += change[-1]
    place.outside = None
