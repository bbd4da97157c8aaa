"""What attention heads do, in one vocabulary for all encodings: centre, spread, reach, grid,
content.

Everything is measured on probabilities, so quadratic, learned and content heads are described
alike. A *map* is what
heads attend to at one query pixel: (..., H, W), each summing to 1, with its query (row, column). A
*shift* is key minus query, in pixels of the grid that the layer works on, rows then columns, rows
pointing down. Functions take and return numpy arrays; a head that is not there (layers with fewer
heads are padded) is NaN in and NaN out. First come heads at one query, then layers, the heads of a
layer together, what content changes, and all that is kept of a trained network."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from attnconv.attention import ContentAttention, PositionalAttention, QuadraticAttention
from attnconv.attention.layers import evenly_on_a_disc
from attnconv.attention.mixing import scores
from attnconv.config import ModelConfig, replace
from attnconv.models import Attention, AttentionNet, Convolution

if TYPE_CHECKING:
    from attnconv.training.data import Dataset

Query = tuple[int, int]
"""A query pixel: (row, column)."""

GEOMETRY_IMAGES = 32
"""Test images over which the attention of content heads is averaged when their geometry is
recorded.
"""
TAP_MASS = 0.5
"""A head with more than this share of its attention on one shift is sharp: it covers that tap,
and no other.
"""


class Description(NamedTuple):
    """What each map of `describe` shows. Lengths are in pixels; arrays have the maps' leading
    axes (...).
    """

    centre: NDArray  # (..., 2), mean shift, sum_k P(k) (k - q)
    covariance: NDArray  # (..., 2, 2), of the shift around the centre, squared pixels
    # probability on the whole shift nearest to the centre: 1 for a head that is one tap of a kernel
    mass: NDArray
    entropy: NDArray  # -sum_k P log P in nats: 0 for one pixel, log(H W) for a uniform map
    reach: NDArray  # mean distance from the query, sum_k P(k) |k - q|: how far the head looks


def describe(maps: ArrayLike, query: Query) -> Description:
    """Describe what heads attend to at one query pixel: maps (..., H, W), each summing to 1.

    The paper reads centres off the parameters of its Gaussian heads (section 4, figures 3 and 4);
    this measures them on the probabilities of any head, so one whose centre lies outside the image
    shows up where it really looks."""
    p = _checked(maps, query)
    width, shift = (
        p.shape[-1],
        np.argwhere(np.ones(p.shape[-2:])) - np.array(query, dtype=float),
    )  # (N, 2)
    p = p.reshape(*p.shape[:-2], len(shift))
    centre = p @ shift
    offset = shift - centre[..., None, :]  # (..., N, 2)
    nearest = np.clip(np.rint(np.nan_to_num(centre)), shift[0], shift[-1])
    index = ((nearest - shift[0]) @ (width, 1)).astype(int)
    return Description(
        centre=centre,
        covariance=np.einsum("...n,...nd,...ne->...de", p, offset, offset),
        mass=np.take_along_axis(p, index[..., None], -1)[..., 0],
        entropy=-(p * np.log(np.where(p > 0, p, 1.0))).sum(-1) + 0.0,  # no minus zero
        reach=p @ np.linalg.norm(shift, axis=-1),
    )


def taps(mass: ArrayLike, centre: ArrayLike, grid: tuple[int, int]) -> NDArray:
    """Heads that act as one tap of a kernel: (...) bool, ``mass`` (...) above `TAP_MASS` nearest
    their centre.

    ``centre`` (..., 2) is the learned one of a Gaussian head; of other heads the measured one. The
    pixel at that shift must be on the image (``grid`` H, W) at its central query: for a centre
    outside, the softmax takes the nearest pixel that is left, whatever the shift. NaN (a head that
    is not there) gives False."""
    pixel = np.rint(np.asarray(centre)) + (grid[0] // 2, grid[1] // 2)
    return (np.asarray(mass) > TAP_MASS) & ((pixel >= 0) & (pixel < grid)).all(-1)


def shift_maps(maps: ArrayLike, query: Query, radius: int) -> NDArray:
    """The window of maps (..., H, W) around the query, (..., 2 radius + 1, 2 radius + 1): NaN
    outside the image.
    """
    p, (row, column), side = _checked(maps, query), query, 2 * radius + 1
    padded = np.pad(p, [(0, 0)] * (p.ndim - 2) + [(radius, radius)] * 2, constant_values=np.nan)
    return padded[..., row : row + side, column : column + side]


def _checked(maps: ArrayLike, query: Query) -> NDArray:
    """Maps in float64. `ValueError` where the query lies outside them."""
    p = np.asarray(maps, dtype=float)
    if p.ndim < 2 or not (0 <= query[0] < p.shape[-2] and 0 <= query[1] < p.shape[-1]):
        raise ValueError(
            f"query = {tuple(query)} is not a pixel of maps of shape {p.shape}, the last two being H x W."
        )
    return p


@torch.no_grad()
def query_maps(
    layer: PositionalAttention | ContentAttention,
    query: Query,
    height: int,
    width: int,
    features: Tensor | None = None,
) -> NDArray:
    """The layer's ``probabilities`` at one query pixel, float32, without building P for the others:
    (h, H, W).

    With content, P depends on the images: ``features`` (B, H, W, C), the layer's input, is then
    needed, and the result is (B, h, H, W)."""
    (row, column), device = query, next(layer.parameters()).device
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f"query = {tuple(query)} is not a pixel of a {height} x {width} grid.")
    with torch.autocast(device.type, enabled=False):
        if isinstance(layer, ContentAttention):
            if features is None or features.shape[1:3] != (height, width):
                raise ValueError(
                    f"ContentAttention needs features (B, {height}, {width}, C): P depends on the images."
                )
            x = features.to(device, layer.query.weight.dtype)
            q = layer.query(x[:, row, column]).unflatten(
                -1, (layer.heads, layer.key_size)
            )  # (B, h, K)
            keys = layer.key.weight.unflatten(
                0, (layer.heads, layer.key_size)
            )  # their bias is the same for all pixels
            by_axis = layer.position_logits(q[:, :, None, None].expand(-1, -1, height, width, -1))
            by_row, by_column = (logits[:, :, row, column] for logits in by_axis)
            position = by_row[..., :, None] + by_column[..., None, :]
            logits = (
                torch.einsum("bhk,hkc,bijc->bhij", q, keys, x) + position
            ) / layer.key_size**0.5  # (B, h, H, W)
        else:
            rows, columns = torch.tensor([[row], [column]], device=device)
            logits = scores(rows, columns, *layer.score_terms(height, width))[:, 0]  # (h, H, W)
        return logits.flatten(-2).softmax(-1).view_as(logits).float().cpu().numpy()


@torch.no_grad()
def geometry(
    layers: Sequence[Attention | Convolution],
    height: int,
    width: int,
    features: Sequence[Tensor] | None = None,
) -> dict[str, NDArray]:
    """The geometry of all heads of a network, cheap enough to record after every epoch (figures 3,
    4).

    Measured at the central query (H // 2, W // 2) of the H x W grid. With content, ``features[l]``
    (B, H, W, C) is the input of layer l, and its map is averaged over these B images before it is
    described, as in the paper's figure 6.

    Returns: float32 arrays (layers, most heads of a layer, ...), NaN where a layer has fewer heads:
        those of `Description` and, for quadratic layers, the parameters ``parameter_centre`` (..,
        2) and ``precision`` (.., 2, 2), Sigma^{-1}."""
    heads = max((layer.heads for layer in layers), default=0)
    shapes = {"centre": (2,), "covariance": (2, 2), "mass": (), "entropy": (), "reach": ()}
    shapes |= {"parameter_centre": (2,), "precision": (2, 2)}
    result = {
        name: np.full((len(layers), heads, *shape), np.nan, np.float32)
        for name, shape in shapes.items()
    }
    query = height // 2, width // 2
    for index, layer in enumerate(layers):
        if isinstance(layer, Convolution) or not layer.heads:
            continue
        maps = query_maps(
            layer, query, height, width, None if features is None else features[index]
        )
        found = describe(maps.mean(0) if maps.ndim == 4 else maps, query)._asdict()
        if isinstance(layer, QuadraticAttention):
            found["parameter_centre"] = layer.centres.float().cpu().numpy()
            found["precision"] = layer.precision().float().cpu().numpy()
        for name, values in found.items():
            result[name][index, : layer.heads] = values
    return result


@torch.no_grad()
def network_geometry(model: nn.Module, images: Tensor) -> dict[str, NDArray]:
    """The `geometry` of a network's heads, without dropout; with content over normalised images
    (B, channels, H, W), of which `GEOMETRY_IMAGES` are enough. Empty for a ResNet.
    """
    if not isinstance(model, AttentionNet):
        return {}
    content = model.config.kind == "learned_content"
    return geometry(
        model.attention_layers, *model.config.grid, model.layer_inputs(images) if content else None
    )


def degenerate(layer: QuadraticAttention) -> NDArray:
    """Which heads the paper's rule drops: (heads,) bool (section 4, generalized quadratic
    encoding).

    Full covariance: the condition number of Sigma^{-1} exceeds 1000 (the head smears over a line),
    or its largest eigenvalue is below 1e-5 (it averages everything). Isotropic: spread^2 < 1e-5. A
    head that is not finite counts too."""
    spreads = layer.spreads.detach().double().cpu().numpy()
    spreads = spreads[:, None, None] * np.eye(2) if spreads.ndim == 1 else spreads
    finite = np.isfinite(spreads).all((-2, -1)) & np.isfinite(
        layer.centres.detach().cpu().numpy()
    ).all(-1)
    singular = np.linalg.svd(
        np.where(finite[:, None, None], spreads, 0.0), compute_uv=False
    )  # largest first
    largest, smallest = (
        singular[:, 0] ** 2,
        singular[:, 1] ** 2,
    )  # eigenvalues of Sigma^{-1} = S^T S
    return ~finite | (largest > 1000 * smallest) | (largest < 1e-5)


def prune(layer: QuadraticAttention) -> list[int]:
    """Drop a layer's `degenerate` heads; the heads that stay contribute exactly what they did.
    Gives their numbers.

    MHSA is a sum over heads (section 1): head h adds its average of the pixels times the columns [h
    C, (h + 1) C) of
    ``value.weight``, so dropping its centre, spread and columns removes that part and nothing else.
    The bias stays."""
    keep = torch.from_numpy(~degenerate(layer)).to(layer.centres.device)
    blocks = layer.value.weight.unflatten(1, (layer.heads, layer.channels))[:, keep]  # (D, h, C)
    layer.heads = int(keep.sum())
    layer.centres = nn.Parameter(layer.centres.detach()[keep], layer.centres.requires_grad)
    layer.spreads = nn.Parameter(layer.spreads.detach()[keep], layer.spreads.requires_grad)
    layer.value.weight = nn.Parameter(blocks.detach().flatten(1), layer.value.weight.requires_grad)
    layer.value.in_features = layer.heads * layer.channels
    return keep.nonzero().flatten().tolist()


def pruned(network: AttentionNet) -> AttentionNet:
    """The network itself, with every layer pruned. Its ``kept`` has the numbers of the heads
    that stay, by layer.
    """
    network.kept = [
        prune(layer) if isinstance(layer, QuadraticAttention) else list(range(layer.heads))
        for layer in network.attention_layers
    ]
    network.config = replace(network.config, {"heads": tuple(map(len, network.kept))})
    return network


def kernel_cells(mass: ArrayLike, centre: ArrayLike, kernel_size: int) -> NDArray:
    """The taps of a k x k kernel that have a head: (..., k, k) bool, rows then columns; of an odd k
    from -(k // 2) on.

    Lemma 1 wants a bijection between heads and taps; section 4 finds such grids in early layers. A
    head covers the whole shift nearest to its ``centre`` (..., h, 2), in pixels, if its ``mass``
    (..., h) there exceeds `TAP_MASS`. An even k x k kernel has the query at one of its four middle
    taps: at the one with which most taps are covered, which
    is not told: count its cells, do not draw them.
    """
    reach, starts = (
        kernel_size // 2,
        2 - kernel_size % 2,
    )  # of an even kernel the first row has two choices
    steps, shift = np.arange(-reach, reach + 1), np.rint(np.asarray(centre, dtype=float))
    sharp = (np.asarray(mass) > TAP_MASS)[..., None, None]
    in_row, in_column = (
        shift[..., 0, None] == steps,
        shift[..., 1, None] == steps,
    )  # (..., h, steps)
    covered = (sharp & in_row[..., :, None] & in_column[..., None, :]).any(
        -3
    )  # (..., steps, steps)
    kernels = np.lib.stride_tricks.sliding_window_view(
        covered, (kernel_size, kernel_size), (-2, -1)
    )
    choices = kernels.reshape(*covered.shape[:-2], starts**2, kernel_size, kernel_size)
    best = choices.sum((-2, -1)).argmax(-1)[..., None, None, None]
    return np.take_along_axis(choices, best, axis=-3)[..., 0, :, :]


def taps_by_chance(
    config: ModelConfig, kernel_size: int, draws: int = 20_000, seed: int = 0
) -> NDArray:
    """Taps of a k x k kernel that fresh layers of a quadratic model cover once heads snap: whole
    numbers, (draws,).

    Each draw is the start of one layer, as large as the largest of ``config``. Its heads become
    sharp, each on its
    nearest pixel: what is covered beyond that, training has done.
    """
    heads = max(config.heads_per_layer)
    if config.centre_start == "taps":  # each head on its own
        return np.full(draws, min(heads, kernel_size**2))
    with torch.random.fork_rng(devices=[]):  # torch's own generator stays as it is
        torch.manual_seed(seed)
        if config.centre_start == "gaussian":
            centres = torch.randn(draws, heads, 2)
        else:  # one arrangement, which each layer turns by an angle of its own
            angle = 2 * math.pi * torch.rand(draws)
            turn = torch.stack(
                [angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1
            ).unflatten(1, (2, 2))
            centres = evenly_on_a_disc(heads) @ turn
    shifts = config.centre_std * centres.numpy()
    return kernel_cells(np.ones(shifts.shape[:2]), shifts, kernel_size).sum((-2, -1))


def translation_consistency(probabilities: ArrayLike, others: ArrayLike | None = None) -> NDArray:
    """Whether heads keep their shifts as the query moves, as a convolution would: P (..., H, W, H,
    W) -> (...).

    Section 4 (figures 6, 7) sees it in layers 2 and 3 of the model with content. The map at each
    query is held against the one at the central query (H // 2, W // 2), of ``others`` if they are
    given (P of the same heads on other images): the mean of sum min(P, P_0), 1 for a positional
    head, as `in_common` weighs it. NaN where no query can be compared."""
    p = np.asarray(probabilities)
    q = p if others is None else np.asarray(others)
    height, width = p.shape[-2:]
    middle = height // 2, width // 2
    weights, agreement = np.zeros(p.shape[:-4]), np.zeros(p.shape[:-4])
    at_middle = q[..., middle[0], middle[1], :, :]
    for row, column in np.ndindex(height, width):
        if (row, column) != middle:
            common, weight = in_common(p[..., row, column, :, :], (row, column), at_middle, middle)
            weights += weight
            agreement += weight * common
    with np.errstate(invalid="ignore", divide="ignore"):
        return agreement / weights


def in_common(
    maps: ArrayLike, query: Query, others: ArrayLike, other: Query
) -> tuple[NDArray, NDArray]:
    """What maps (..., H, W) at one query share with others at another one, shift by shift; and its
    weight: (...) each.

    Near a border some shifts leave the image, so both are cut to the shifts that both queries have,
    and renormalized. The weight is the product of what the two cuts keep: a cut that keeps nothing
    counts for nothing."""
    a, b = np.asarray(maps, dtype=float), np.asarray(others, dtype=float)
    up, left = np.minimum(query, other)
    down, right = np.array(a.shape[-2:]) - np.maximum(
        query, other
    )  # shifts from -up to down - 1, and so on
    a, b = (
        m[..., i - up : i + down, j - left : j + right] for m, (i, j) in ((a, query), (b, other))
    )
    mass_a, mass_b = a.sum((-2, -1)), b.sum((-2, -1))
    a, b = (m / np.where(s > 0, s, 1)[..., None, None] for m, s in ((a, mass_a), (b, mass_b)))
    return np.minimum(a, b).sum((-2, -1)), mass_a * mass_b


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
    height, width, scale = x.shape[1], x.shape[2], layer.key_size**-0.5
    mean_query = layer.query(x).mean((0, 1, 2)).unflatten(0, (1, layer.heads, 1, 1, layer.key_size))
    rows, columns = layer.position_logits(mean_query.expand(-1, -1, height, width, -1))
    fixed = _over_keys(scale * (rows[..., :, None] + columns[..., None, :]))[0]  # (h, N, N)
    shared = np.zeros((3, layer.heads))
    for image in x.split(1):
        content, position = (_over_keys(part)[0] for part in layer.score_parts(image))
        for number, part in enumerate((fixed, position - fixed, content)):
            shared[number] += (part * (content + position)).mean((1, 2)).cpu().numpy()
    total = shared.sum(0)  # the parts add up to the score
    return shared / np.where(total > 0, total, np.nan)


def _over_keys(part: Tensor) -> Tensor:
    """A part of the scores (..., H, W, H, W) in float64, less its mean over the keys: (..., N,
    N).
    """
    part = part.double().flatten(-4, -3).flatten(-2)
    return part - part.mean(-1, keepdim=True)


AVERAGED = 100
"""Test images over which attention with content is averaged: the paper's number."""
SINGLE_IMAGES = (0, 7, 23)
"""Test images whose attention is kept one by one."""


@torch.no_grad()
def measure_attention(model: AttentionNet, data: "Dataset") -> dict[str, np.ndarray]:
    """What every head attends to. It is all that the figures need: weights and images are not read
    again.

    Returns: ``queries`` (Q, 2) and ``mean`` (Q, L, h, H, W) float16: P at these queries, NaN for
        heads that a layer does not have. With content, it is over the first `AVERAGED` test images,
        and there are also: ``halves`` (2, L, h), what two halves of these images agree on
        (`translation_consistency`), with the query moved and with the same query, which is the most
        that the first can be; ``shares`` (3, L, h) of `score_shares`; ``images`` (n,), their
        ``pixels`` (n, H', W', C) and ``labels`` (n,), and ``single`` (n, Q, L, h, H, W) float16.
    """
    from attnconv.training.data import normalize

    layers, (height, width) = model.attention_layers, model.config.grid
    content = model.config.kind == "learned_content"
    device = next(model.parameters()).device
    x = normalize(data.test_images[: AVERAGED if content else 0].to(device), data.mean, data.std)
    inputs = (
        model.layer_inputs(x) if content else [x] * len(layers)
    )  # without content nobody looks at them
    images = [image for image in SINGLE_IMAGES if image < len(x)]

    middle = height // 2, width // 2  # and three off it: figures 7 to 10 move the query
    places = [
        middle,
        (height // 4, width // 4),
        (height // 3, width // 2),
        (2 * height // 3, width // 3),
    ]
    shape = (len(places), len(layers), max(layer.heads for layer in layers), height, width)
    mean, single = (
        np.full(shape, np.nan, np.float16),
        np.full((len(images), *shape), np.nan, np.float16),
    )
    halves, shares = np.full((2, *shape[1:3]), np.nan), np.full((3, *shape[1:3]), np.nan)
    for index, (layer, seen) in enumerate(zip(layers, inputs, strict=True)):
        if isinstance(layer, Convolution):
            continue
        for q, query in enumerate(places):
            maps = query_maps(
                layer, query, height, width, seen
            )  # with content (B, h, H, W), else (h, H, W)
            mean[q, index, : layer.heads] = maps.mean(0) if content else maps
            if content:
                single[:, q, index, : layer.heads] = maps[images]
        if isinstance(layer, ContentAttention):
            first, second = (_mean_probabilities(layer, half) for half in seen.tensor_split(2))
            halves[0, index, : layer.heads] = translation_consistency(first, second)
            halves[1, index, : layer.heads] = np.minimum(first, second).sum((-2, -1)).mean((-2, -1))
            shares[:, index, : layer.heads] = score_shares(layer, seen)
    found = dict(queries=np.array(places), mean=mean)
    if content:
        found |= dict(halves=halves, shares=shares, images=np.array(images), single=single)
        found |= dict(
            pixels=data.test_images[images].cpu().numpy(),
            labels=data.test_labels[images].cpu().numpy(),
        )
    return found


def _mean_probabilities(layer: ContentAttention, x: Tensor) -> NDArray:
    """P averaged over images x (B, H, W, C), ten of which exist at a time: (h, H, W, H, W)."""
    return torch.stack([layer.probabilities(part).sum(0) for part in x.split(10)]).sum(
        0
    ).cpu().numpy() / len(x)
