"""Attention layers out, convolutions in: what a trained network loses says how far its layers *are*
convolutions.

`swap` reads the convolution of a given size out of a layer (`attention_to_conv`) and puts it in the
layer's place. Nothing is trained, so no threshold and no picture stands between the question and
the answer."""

import copy
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnconv.attention import ContentAttention, tap_shifts
from attnconv.config import replace
from attnconv.equivalence.reading import KernelReport, attention_to_conv
from attnconv.equivalence.theorem import theorem_1
from attnconv.models import Attention, AttentionNet, Convolution

# of a least-squares fit, as a share of the mean square of what taps see: it matters to unseen ones
# alone
RIDGE = 1e-6
# training images over which attention with content is averaged, and to which kernels are fitted
READ_ON = 200
AT_ONCE = 20  # images whose patches, or probabilities, exist at a time


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
    own grid. ``network.blocks[layer - 1].attention.report`` says what was left out, and
    ``config.kernels`` of the copy which layers were swapped, so `build_model` makes such a network,
    too.

    Args: images: (B, channels, H, W), normalised; for layers with content, which have another P for
        every image: its mean over these and over all queries that have the shift is read. A few
        hundred training images will do. fit: such images, for any layer. Each convolution is then
        not read but fitted: by least squares the nearest one to what its layer computes on these
        images. The fairest opponent that attention can have.

    Raises: TypeError: the network is no `AttentionNet`. ValueError: there is no such layer, or it
        is a convolution already; an even size; no images for content."""
    if not isinstance(network, AttentionNet):
        raise TypeError(
            f"swap takes an AttentionNet; a {type(network).__name__} has no attention layers to swap."
        )
    swapped, network = (
        copy.deepcopy(network),
        copy.deepcopy(network).eval(),
    )  # whatever its mode, without dropout
    layers, grid, kernels = (
        network.attention_layers,
        network.config.grid,
        list(network.config.kernel_per_layer),
    )
    largest = (
        2 * ((min(grid) - 1) // 2) + 1
    )  # a larger one has taps that the query in the middle does not see
    shown = images if fit is None else fit
    seen: list[Any] = [None] * len(layers) if shown is None else network.layer_inputs(shown)
    for number, size in kernel_sizes.items():
        if not isinstance(number, Integral) or not 1 <= number <= len(layers):
            raise ValueError(
                f"There is no layer {number!r}: the network has layers 1 to {len(layers)}."
            )
        layer, x = layers[number - 1], seen[number - 1]
        if isinstance(layer, Convolution):
            raise ValueError(
                f"Layer {number} is a convolution already. Swap in the network that it came from."
            )
        if not isinstance(size, Integral) or size not in range(1, largest + 1, 2):
            where = f"Layer {number}: a kernel of side {size!r} cannot lie around a pixel of {grid[0]}x{grid[1]}"
            raise ValueError(f"{where}; its side is an odd number, at most {largest}.")
        size = int(size)  # NumPy's, too
        if not isinstance(layer, ContentAttention):
            conv, report = attention_to_conv(layer, size, grid)
            weight, outside = conv.weight, report.outside
        elif x is not None:
            weight, outside = mean_kernel(layer, x, size)
        else:
            raise ValueError(
                f"Layer {number} looks at content, so its attention is a mean over images: pass images=."
            )
        place = (
            Convolution(layer.channels, layer.out_channels, size).to(weight).train(swapped.training)
        )
        place.conv.load_state_dict({"weight": weight, "bias": layer.value.bias})
        if fit is not None:
            fit_kernel(place, layer, x)
            outside = None
        if fit is not None or isinstance(layer, ContentAttention):
            report = KernelReport(outside, relative_errors([place], layer, x)[0], "images")
        place.report = report
        swapped.blocks[number - 1].attention = place
        kernels[number - 1] = size
    last = max((number for number, size in enumerate(kernels, 1) if size), default=0)
    swapped.config = replace(network.config, {"kernels": kernels[:last]})
    return swapped


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
        if isinstance(layer := block.attention, Convolution):
            assert layer.conv.bias is not None
            block.attention = theorem_1(layer.conv.weight, layer.conv.bias, spread**2 / 2).train(
                layer.training
            )
            block.attention.dropout = config.attention_dropout
    heads = [layer.heads for layer in attention.attention_layers]
    start = {"kernels": [], "heads": heads[0] if len({*heads}) == 1 else heads}
    attention.config = replace(config, start | {"centre_start": "taps", "spread_start": spread})
    return attention


@torch.no_grad()
def relative_errors(convs: Sequence[nn.Module], layer: Attention, x: Tensor) -> list[float]:
    """|layer - conv| / |layer - bias| of each convolution on what the layer sees, x (B, H, W,
    C); root mean squares.
    """
    lost, whole = [0.0] * len(convs), 0.0
    for part in x.split(AT_ONCE):
        out = layer(part)
        whole += (out - layer.value.bias).double().square().sum().item()
        for n, conv in enumerate(convs):
            lost[n] += (conv(part) - out).double().square().sum().item()
    return [(one / max(whole, torch.finfo(torch.float64).tiny)) ** 0.5 for one in lost]


@torch.no_grad()
def mean_kernel(layer: ContentAttention, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The convolution inside the mean attention over images x (B, H, W, C): kernel (D, C, K, K),
    mass outside (h,).

    The weight of a tap is the mean of P over the images and over all queries from which its shift
    leads to a pixel."""
    total = x.new_zeros(())
    for part in x.split(AT_ONCE // 4):
        total = total + layer.probabilities(part).sum(0)  # (h, H, W, H, W)
    total, shifts = total / len(x), tap_shifts((size, size)).tolist()
    taps = [total.diagonal(row, 1, 3).diagonal(column, 1, 2).mean((1, 2)) for row, column in shifts]
    mass = torch.stack(taps, dim=1)  # (h, K K)
    weight = layer.value.weight.unflatten(1, (layer.heads, layer.channels))
    kernel = torch.einsum("ht,dhc->dct", mass, weight).unflatten(2, (size, size))
    return kernel, (1 - mass.sum(1)).clamp_min(0)


@torch.no_grad()
def fit_kernel(place: Convolution, layer: Attention, x: Tensor) -> None:
    """Set the convolution to the one that is nearest to the layer on x (B, H, W, C), by least
    squares, bias and all.

    What is fitted is a correction to the present kernel, so taps that the images say nothing about
    stay as they are."""
    conv, size = place.conv, place.conv.kernel_size[0]
    unknowns = layer.channels * size**2 + 1
    gram = torch.zeros(unknowns, unknowns, dtype=torch.float64, device=x.device)
    moment = torch.zeros(unknowns, layer.out_channels, dtype=torch.float64, device=x.device)
    margin = (size // 2,) * 4
    for part in x.split(AT_ONCE):
        left = (layer(part) - place(part)).flatten(0, 2)  # (n, D)
        patches = F.unfold(
            F.pad(part.permute(0, 3, 1, 2), margin, conv.padding_mode), size
        )  # (b, C K K, N)
        patches = F.pad(patches.transpose(1, 2).flatten(0, 1), (0, 1), value=1.0)  # (n, C K K + 1)
        gram += patches.T @ patches
        moment += patches.T @ left
    if not (gram.isfinite().all() and moment.isfinite().all()):
        raise ValueError(
            "No kernel can be fitted: on these images the layer sees, or gives, what is not finite."
        )
    ridge, failed = RIDGE * gram.diagonal().mean(), True
    while failed:  # float32 sums may leave the matrix a little less than positive
        gram.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(gram)
        ridge = 10 * ridge
    found = torch.cholesky_solve(moment, factor).to(conv.weight)
    assert conv.bias is not None
    conv.load_state_dict(
        dict(
            weight=conv.weight + found[:-1].T.reshape(conv.weight.shape), bias=conv.bias + found[-1]
        )
    )
