"""What attention heads do, in one vocabulary for all encodings: centre, spread, reach, grid,
content.

Everything is measured on probabilities, so quadratic, learned and content heads are described
alike. A *map* is what heads attend to at one query pixel: (..., H, W), each summing to 1, with its
query (row, column). A *shift* is key minus query, in pixels of the grid that the layer works on,
rows then columns, rows pointing down.

The results are numpy arrays. Layers with fewer heads are padded: a head that is not there is NaN in
and NaN out. First come heads at one query, then layers, the heads of a layer together, what content
changes, and all that is kept of a trained network.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from attnconv.attention import ContentAttention, QuadraticAttention
from attnconv.attention.layers import first_centres
from attnconv.config import ModelConfig, replace
from attnconv.models import Attention, AttentionNet, Convolution

Query = tuple[int, int]
"""A query pixel: (row, column)."""

GEOMETRY_IMAGES = 32
"""Images over which the attention of content heads is averaged when their geometry is recorded."""
AVERAGED = 100
"""Images over which attention with content is averaged: the paper's number."""
AT_ONCE = 10
"""Images whose whole P exists at a time."""
SINGLE_IMAGES = (0, 7, 23)
"""Images whose attention is kept one by one."""
TAP_MASS = 0.5
"""A head with more than this share of its attention on one shift is sharp: it covers that tap, and
no other.
"""


class Description(NamedTuple):
    """What each map of `describe` shows. Lengths are in pixels; arrays have the maps' leading axes
    (...).
    """

    centre: NDArray  # (..., 2), mean shift, sum_k P(k) (k - q)
    covariance: NDArray  # (..., 2, 2), of the shift around the centre, squared pixels
    # probability on the whole shift nearest to the centre: 1 for a head that is one tap of a kernel
    mass: NDArray
    reach: NDArray  # mean distance from the query, sum_k P(k) |k - q|: how far the head looks


def describe(maps: ArrayLike, query: Query) -> Description:
    """Describe what heads attend to at one query pixel: maps (..., H, W), each summing to 1.

    The paper reads centres off the parameters of its Gaussian heads (section 4, figures 3 and 4).
    This measures them on the probabilities of any head, so one whose centre lies outside the image
    shows up where it really looks. `ValueError` where the query lies outside the maps.
    """
    p = np.asarray(maps, dtype=float)
    _check(query, p.shape)
    shift = np.argwhere(np.ones(p.shape[-2:])) - np.array(query, dtype=float)  # (N, 2)
    p = p.reshape(*p.shape[:-2], len(shift))
    centre = p @ shift
    offset = shift - centre[..., None, :]  # (..., N, 2)
    nearest = (shift == np.rint(centre)[..., None, :]).all(-1)  # (..., N), true at one pixel
    return Description(
        centre=centre,
        covariance=np.einsum("...n,...nd,...ne->...de", p, offset, offset),
        mass=(p * nearest).sum(-1),
        reach=p @ np.linalg.norm(shift, axis=1),
    )


def shift_maps(maps: ArrayLike, query: Query, radius: int) -> NDArray:
    """The window of maps (..., H, W) around the query, (..., 2 radius + 1, 2 radius + 1): NaN
    outside the image. `ValueError` where the query lies outside the maps.
    """
    p = np.asarray(maps, dtype=float)
    _check(query, p.shape)
    row, column = query
    side = 2 * radius + 1
    margins = [(0, 0)] * (p.ndim - 2) + [(radius, radius)] * 2
    return np.pad(p, margins, constant_values=np.nan)[..., row : row + side, column : column + side]


def _check(query: Query, shape: tuple[int, ...]) -> None:
    height, width = shape[-2:]
    if not (0 <= query[0] < height and 0 <= query[1] < width):
        raise ValueError(f"query = {tuple(query)} is not a pixel of a {height} x {width} grid.")


@torch.no_grad()
def query_maps(
    layer: Attention,
    query: Query,
    height: int,
    width: int,
    features: Tensor | None = None,
) -> NDArray:
    """The layer's ``probabilities`` at one query pixel, float32: (h, H, W).

    With content, P depends on the images: ``features`` (B, H, W, C), the layer's input, is then
    needed, and the result is (B, h, H, W). `ValueError` where they are missing, or the query lies
    outside the grid.
    """
    _check(query, (height, width))
    with torch.autocast(next(layer.parameters()).device.type, enabled=False):
        if not isinstance(layer, ContentAttention):
            maps = layer.probabilities(height, width, query)
        elif features is None or features.shape[1:3] != (height, width):
            raise ValueError(f"Content needs features (B, {height}, {width}, C) of the images.")
        else:
            parts = features.to(layer.query.weight).split(AT_ONCE)
            maps = torch.cat([layer.probabilities(part)[:, :, *query] for part in parts])
    return maps.float().cpu().numpy()


def network_maps(
    layers: list[Attention | Convolution],
    query: Query,
    grid: tuple[int, int],
    features: list[Tensor] | None,
) -> NDArray:
    """The `query_maps` of all layers, averaged over images where they depend on them: (L, h, H, W),
    NaN where a layer has fewer heads.
    """
    found = np.full((len(layers), max(one.heads for one in layers), *grid), np.nan, np.float32)
    for index, layer in enumerate(layers):
        if isinstance(layer, Convolution):
            continue
        maps = query_maps(layer, query, *grid, features[index] if features else None)
        found[index, : layer.heads] = maps.mean(0) if maps.ndim == 4 else maps
    return found


@torch.no_grad()
def geometry(
    layers: list[Attention | Convolution],
    height: int,
    width: int,
    features: list[Tensor] | None = None,
) -> dict[str, NDArray]:
    """The geometry of all heads of a network, cheap enough to record after every epoch (figures 3,
    4).

    Measured at the central query (H // 2, W // 2) of the H x W grid. With content, ``features[l]``
    (B, H, W, C) is the input of layer l, and its map is averaged over these B images before it is
    described, as in the paper's figure 6.

    Returns:
        float32 arrays (layers, most heads of a layer, ...), NaN where a layer has fewer heads:
        those of `Description` and, for quadratic layers, the parameters ``parameter_centre`` (..,
        2) and ``precision`` (.., 2, 2), Sigma^{-1}, and the `products` of heads, (.., most heads).
    """
    query = height // 2, width // 2
    found = describe(network_maps(layers, query, (height, width), features), query)._asdict()
    found["parameter_centre"] = np.full_like(found["centre"], np.nan)
    found["precision"] = np.full_like(found["covariance"], np.nan)
    mass = found["mass"]
    found["products"] = np.full((*mass.shape, mass.shape[1]), np.nan)
    for index, layer in enumerate(layers):
        if isinstance(layer, QuadraticAttention):
            found["parameter_centre"][index, : layer.heads] = layer.centres.cpu()
            found["precision"][index, : layer.heads] = layer.precision().cpu()
            found["products"][index, : layer.heads, : layer.heads] = products(layer)
    return {name: values.astype(np.float32) for name, values in found.items()}


def products(layer: Attention) -> Tensor:
    """<W^h, W^g> of a layer's heads, the columns of its value matrix: (h, h), float64. A kernel's
    tap is sum_h P_h W^h, so the norms of taps need no other weights.
    """
    weight = layer.value.weight.detach().double().cpu()
    by_head = weight.T.reshape(layer.heads, layer.channels * len(weight))
    return by_head @ by_head.T


@torch.no_grad()
def network_geometry(model: nn.Module, images: Tensor) -> dict[str, NDArray]:
    """The `geometry` of a network's heads, without dropout. Empty for a ResNet.

    With content it depends on the ``images`` (B, channels, H, W), normalised, on the model's
    device: of a run the first `GEOMETRY_IMAGES` of the test split.
    """
    if not isinstance(model, AttentionNet):
        return {}
    features = None
    if model.config.kind == "learned_content":
        features = model.layer_inputs(images)
    return geometry(model.attention_layers, *model.config.grid, features)


@torch.no_grad()
def degenerate(layer: QuadraticAttention) -> NDArray:
    """Which heads the paper's rule drops: (heads,) bool (section 4, generalized quadratic
    encoding).

    Full covariance: the condition number of Sigma^{-1} exceeds 1000 (the head smears over a line),
    or its largest eigenvalue is below 1e-5 (it averages everything). Isotropic: spread^2 < 1e-5. A
    head that is not finite counts too.
    """
    precision = layer.precision().double().cpu()  # (h, 2, 2)
    finite = precision.isfinite().all((1, 2)) & layer.centres.cpu().isfinite().all(-1)
    precision[~finite] = 0.0  # so that it has eigenvalues, and is dropped
    smallest, largest = torch.linalg.eigvalsh(precision).T
    return ((largest > 1000 * smallest) | (largest < 1e-5)).numpy()


@torch.no_grad()
def prune(layer: QuadraticAttention) -> None:
    """Drop a layer's `degenerate` heads; the heads that stay contribute exactly what they did.

    MHSA is a sum over heads (section 1): head h adds its average of the pixels times the columns
    [h C, (h + 1) C) of ``value.weight``. Dropping its centre, spread and columns removes that part
    and nothing else. The bias stays.
    """
    keep = torch.from_numpy(~degenerate(layer))
    layer.heads = int(keep.sum())
    # Only their data change: frozen weights stay frozen.
    layer.centres.data = layer.centres[keep]
    layer.spreads.data = layer.spreads[keep]
    layer.value.weight.data = layer.value.weight[:, keep.repeat_interleave(layer.channels)]
    layer.value.in_features = layer.heads * layer.channels


def pruned(network: AttentionNet) -> AttentionNet:
    """The network itself, each of its quadratic layers without the `degenerate` heads."""
    for layer in network.attention_layers:
        if isinstance(layer, QuadraticAttention):
            prune(layer)
    network.config = replace(
        network.config, {"heads": tuple(layer.heads for layer in network.attention_layers)}
    )
    return network


def kernel_cells(mass: ArrayLike, centre: ArrayLike, kernel_size: int) -> NDArray:
    """The taps of a k x k kernel that have a head: (..., k, k) bool, rows then columns, from
    -(k // 2) on.

    Lemma 1 wants a bijection between heads and taps; section 4 finds such grids in early layers. A
    head covers the whole shift nearest to its ``centre`` (..., h, 2), in pixels, if its ``mass``
    (..., h) there exceeds `TAP_MASS`.
    """
    tap = np.moveaxis(np.indices((kernel_size, kernel_size)), 0, -1) - kernel_size // 2  # (k, k, 2)
    sharp = (np.asarray(mass) > TAP_MASS)[..., None, None]
    nearest = (np.rint(centre)[..., None, None, :] == tap).all(-1)
    return (sharp & nearest).any(-3)


def taps_by_chance(config: ModelConfig, kernel_size: int, draws: int = 20_000) -> NDArray:
    """Taps of a k x k kernel that fresh layers of a quadratic model cover once heads snap: whole
    numbers, (draws,), the same at each call.

    Each draw is the start of one layer, as large as the largest of ``config``. Its heads become
    sharp, each on its nearest pixel: what is covered beyond that, training has done.
    """
    with torch.random.fork_rng(devices=[]):  # torch's own generator stays as it is
        torch.manual_seed(0)
        start = config.centre_start, max(config.heads_per_layer), config.centre_std
        centres = first_centres(*start, (draws,)).numpy()
    return kernel_cells(np.ones(centres.shape[:2]), centres, kernel_size).sum((-2, -1))


def translation_consistency(probabilities: NDArray, others: NDArray | None = None) -> NDArray:
    """Whether heads keep their shifts as the query moves, as a convolution would: P (..., H, W, H,
    W) -> (...).

    Section 4 (figures 6, 7) sees it in layers 2 and 3 of the model with content. The map at each
    query is held against the one at the central query (H // 2, W // 2), of ``others`` if they are
    given (P of the same heads on other images): the mean of sum min(P, P_0), 1 for a positional
    head, as `in_common` weighs it. NaN where no query can be compared.
    """
    height, width = probabilities.shape[-2:]
    middle = height // 2, width // 2
    at_middle = (probabilities if others is None else others)[..., *middle, :, :]
    weights = np.zeros(probabilities.shape[:-4])
    agreement = np.zeros_like(weights)
    for query in np.ndindex(height, width):
        if query != middle:
            common, weight = in_common(probabilities[..., *query, :, :], query, at_middle, middle)
            weights += weight
            agreement += common
    return agreement / np.where(weights > 0, weights, np.nan)


def in_common(
    maps: ArrayLike, query: Query, others: ArrayLike, other: Query
) -> tuple[NDArray, NDArray]:
    """What maps (..., H, W) at one query share with others at another one, shift by shift, times
    its weight; and the weight: (...) each.

    Near a border some shifts leave the image, so both are cut to the shifts that both queries have,
    and renormalized. The weight is the product of what the two cuts keep: a cut that keeps nothing
    counts for nothing.
    """
    radius = max(np.shape(maps)[-2:]) - 1
    a, b = shift_maps(maps, query, radius), shift_maps(others, other, radius)
    both = np.isfinite(a + b)  # the shifts that both queries have
    a, b = np.where(both, [a, b], 0)
    kept_of_a, kept_of_b = np.sum([a, b], (-2, -1), keepdims=True)
    # a / kept_of_a and b / kept_of_b, times the weight
    common = np.minimum(a * kept_of_b, b * kept_of_a).sum((-2, -1))
    return common, (kept_of_a * kept_of_b)[..., 0, 0]


@torch.no_grad()
def score_shares(layer: ContentAttention, x: Tensor) -> NDArray:
    """What makes a head's score vary over the keys, for images x (B, H, W, C): (3, h), each column
    summing to 1.

    The score q . k + q . r (section 4.3) has three parts: ``qbar . r``, of the mean query vector
    over all images and pixels, is the same for every image and query, as a positional head's score
    is; the rest of ``q . r`` differs with what the query pixel holds; ``q . k`` compares contents.
    The softmax ignores what is constant over the keys, so each query's mean over keys is removed. A
    part's share is its covariance with the score over the score's variance, both averaged over
    queries and images; it leaves [0, 1] where parts cancel. NaN for a head whose score is constant.
    """
    # Queries are linear: of the mean image all are the mean one.
    fixed = _over_keys(layer.score_parts(x.mean((0, 1, 2)).expand_as(x[:1]))[1])
    shared = np.zeros((3, layer.heads))
    for image in x.split(1):
        content, position = (_over_keys(part) for part in layer.score_parts(image))
        parts = torch.stack([fixed, position - fixed, content])  # (3, h, N, N)
        shared += (parts * (content + position)).mean((2, 3)).cpu().numpy()
    variance = shared.sum(0)  # the parts add up to the score
    return shared / np.where(variance > 0, variance, np.nan)


def _over_keys(part: Tensor) -> Tensor:
    """A part of one image's scores (1, h, H, W, H, W) in float64, less its mean over the keys: (h,
    N, N).
    """
    part = part[0].double().flatten(-4, -3).flatten(-2)
    return part - part.mean(-1, keepdim=True)


@torch.no_grad()
def measure_attention(model: AttentionNet, images: Tensor, pixels: NDArray) -> dict[str, NDArray]:
    """What every head attends to. It is all that the figures need: weights and images are not read
    again.

    Args:
        images: normalised, (N, channels, H', W'); with content the first `AVERAGED` count.
        pixels: of the same images, uint8 (N, H', W', channels).

    Returns:
        ``queries`` (Q, 2) and ``mean`` (Q, L, h, H, W) float16: P at these queries, NaN for heads
        that a layer does not have. With content, it is over the images, and there are also:
        ``halves`` (2, L, h), what two halves of these images agree on (`translation_consistency`),
        with the query moved and with the same query, which is the most that the first can be;
        ``shares`` (3, L, h) of `score_shares`; the ``pixels`` (n, H', W', channels) of
        `SINGLE_IMAGES`, and ``single`` (n, Q, L, h, H, W) float16.
    """
    layers = model.attention_layers
    height, width = model.config.grid
    places = [  # the middle, and three off it: figures 7 to 10 move the query
        (height // 2, width // 2),
        (height // 4, width // 4),
        (height // 3, width // 2),
        (2 * height // 3, width // 3),
    ]
    queries = np.array(places)

    def at_queries(features: list[Tensor] | None) -> NDArray:  # (Q, L, h, H, W)
        maps = [network_maps(layers, query, (height, width), features) for query in places]
        return np.stack(maps).astype(np.float16)

    if model.config.kind != "learned_content":
        return {"queries": queries, "mean": at_queries(None)}
    images = images[:AVERAGED].to(next(model.parameters()).device)
    inputs = model.layer_inputs(images)
    mean = at_queries(inputs)
    chosen = [image for image in SINGLE_IMAGES if image < len(images)]
    numbers = np.full((5, *mean.shape[1:3]), np.nan)
    for index, (layer, x) in enumerate(zip(layers, inputs, strict=True)):
        if isinstance(layer, ContentAttention):
            first, second = (
                mean_probabilities(layer, half).cpu().numpy() for half in x.tensor_split(2)
            )
            moved = translation_consistency(first, second)
            unmoved = np.minimum(first, second).sum((-2, -1)).mean((-2, -1))
            numbers[:, index, : layer.heads] = [moved, unmoved, *score_shares(layer, x)]
    return {
        "queries": queries,
        "mean": mean,
        "halves": numbers[:2],
        "shares": numbers[2:],
        "single": np.stack([at_queries([x[[image]] for x in inputs]) for image in chosen]),
        "pixels": pixels[chosen],
    }


def mean_probabilities(layer: ContentAttention, x: Tensor) -> Tensor:
    """P averaged over images x (B, H, W, C): (h, H, W, H, W)."""
    total: Any = sum(layer.probabilities(part).sum(0) for part in x.split(AT_ONCE))
    return total / len(x)
