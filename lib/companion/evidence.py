"""What verdicts are decided by: numbers of finished runs, and words for them."""

import itertools
import math
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnconv.heads import kernel_cells, shift_maps
from attnconv.training.runs import Run

VERDICTS = {True: "holds", False: "does not hold", None: "is undecided"}
Verdict = tuple[bool | None, list[str]]
"""And the evidence, a line for each number that decided."""
Placed = tuple[bool | None, list[str], str]
"""And, in words, of what it holds, where that is not all."""
POINTS = 1.0
"""Points of accuracy that a convolution in the place of a layer may cost."""
NEARER = 0.75
"""A layer became more of a convolution if its relative error fell to this share or less."""
SMALL = 7
"""Side of the largest kernel that is called small: heads on pixels around the query."""


def in_words(holds: bool | None, where: str = "") -> str:
    """A verdict, and of what it holds, where that is not all."""
    return ", ".join(filter(None, (VERDICTS[holds], where)))


def of_every_seed(check: Callable[..., Verdict | Placed]) -> Callable[..., Placed]:
    """A verdict on one run becomes one on runs of several seeds: what they share, None and a count
    where they differ.

    The evidence is that of the first run, and a line of each other's, with its first number.
    """

    @wraps(check)
    def of_all(*runs: Run) -> Placed:
        seeds, found = [run.train.seed for run in runs], [check(run) for run in runs]
        holds, places = [one[0] for one in found], ["".join(one[2:]) for one in found]
        said = [
            f"seed {seed} {in_words(one, where)}"
            for seed, one, where in zip(seeds, holds, places, strict=True)
        ]
        lines = [
            *found[0][1],
            *(f"{words}; {one[1][0]}" for words, one in zip(said[1:], found[1:], strict=True)),
        ]
        if len({*holds}) == 1:
            of_seeds = zip(seeds, places, strict=True)
            other = [
                f"seed {seed} {place or 'not'}" for seed, place in of_seeds if place != places[0]
            ]
            return holds[0], lines, "; ".join(filter(None, [places[0], *other]))
        part = all("in part" in place for one, place in zip(holds, places, strict=True) if one)
        counts = (
            f"holds {'in part ' * (part and any(holds))}in {holds.count(True) or 'none'} of "
            f"{len(runs)} networks"
        )
        counts += f", fails in {holds.count(False)}" * (False in holds)
        return None, [*lines, f"seeds differ: {said[0]}"], counts

    return of_all


class SmallConvolutions(NamedTuple):
    """Layers (L,) in whose place a convolution of at most `SMALL` costs less than `POINTS`, and
    a 1 × 1 more.
    """

    fine: NDArray  # bool: where this is sure
    unsure: NDArray  # bool: where the noise is too large to tell
    # place, among the sizes measured, of the smallest that surely costs less; 0 where none does
    smallest: NDArray
    before: NDArray  # relative error of the layer as that convolution, before training
    after: NDArray
    sides: NDArray  # of these smallest convolutions, in pixels
    lines: list[str]  # the numbers in words

    def words(self, layers: NDArray) -> str:
        errors = zip(self.sides, self.before, self.after, strict=True)
        return "; ".join(as_convolution(n, *layer) for n, layer in enumerate(errors) if layers[n])

    def nearer(self, share: float) -> NDArray:
        """Where it is sure, and training brought the error down to this share or less."""
        return self.fine & (self.after <= share * self.before)


def small_convolutions(run: Run) -> SmallConvolutions:
    """As a run's ``swaps`` have them: sure is what holds with two paired standard errors on top."""
    sizes = run.swaps["sizes"]
    lost = 100 * (run.swaps["whole"].astype(float) - run.swaps["alone"])  # (L, S, images)
    lost, error = (
        lost.mean(-1),
        lost.std(-1) / math.sqrt(lost.shape[-1]),
    )  # points, and the paired standard error
    least, most = lost - 2 * error, lost + 2 * error
    small = (sizes > 1) & (sizes <= SMALL)
    fits = small & (most < POINTS) & (least[:, sizes == 1] > POINTS)  # (L, S)
    may_fit = small & (least < POINTS) & (most[:, sizes == 1] > POINTS)
    fine, smallest = (
        fits.any(1),
        fits.argmax(1),
    )  # where none fits, the first, which is left out below
    before, after = run.swaps["error"][:, np.arange(len(fits)), smallest]
    lines = [
        f"points lost with a {size} × {size} convolution in one layer's place: "
        f"{by_layer(points, '.1f')}"
        for size, points in zip(sizes, lost.T, strict=True)
        if size <= SMALL
    ]
    found = SmallConvolutions(
        fine, may_fit.any(1) & ~fine, smallest, before, after, sizes[smallest], lines
    )
    which = (
        "the smallest convolution in one layer's place that surely costs less than a point (two "
        "standard errors)"
    )
    lines.insert(0, f"{which}: {found.words(fine) or 'none'}")
    return found


def following(run: Run) -> tuple[NDArray, NDArray]:
    """Heads (L, h) whose attention has a peak that stays at one shift (L, h, 2) as the query moves.

    At each query that was kept, the peak lies at this shift, where over half of what exceeds evenly
    spread attention lies within a pixel of it; over all queries, heads agree nine tenths as well as
    two halves of the images do."""
    maps, queries = run.attention["mean"].astype(float), run.attention["queries"]
    places = peaks(maps)
    shifts = places - queries[:, None, None]  # (Q, L, h, 2)
    above = np.maximum(maps - 1 / math.prod(maps.shape[3:]), 0)
    around = np.zeros(maps.shape[:3])
    for index in np.ndindex(around.shape):
        around[index] = np.nansum(shift_maps(above[index], tuple(places[index]), radius=1))
    peaked = (around > 0.5 * above.sum((3, 4))) & (shifts == shifts[0]).all(-1)
    moved, same = run.attention["halves"]
    return peaked.all(0) & (moved >= 0.9 * same), shifts[0]


def gaussians(centres: NDArray, precision: NDArray, grid: tuple[int, int]) -> NDArray:
    """What heads (..., 2) give to each shift that an image of that size has: (..., 2 H - 1, 2 W
    - 1).
    """
    row, column = (
        np.arange(1 - side, side) - centres[..., axis, None] for axis, side in enumerate(grid)
    )
    (a, b), (c, d) = np.moveaxis(precision[..., None], (-3, -2), (0, 1))
    logits = (
        (a * row**2)[..., None]
        + (d * column**2)[..., None, :]
        + ((b + c) * row)[..., None] * column[..., None, :]
    )
    logits *= -0.5
    weights = np.exp(logits - logits.max((-2, -1), keepdims=True))
    return weights / weights.sum((-2, -1), keepdims=True)


def redrawn(centres: NDArray, sharp: NDArray, draws: int, random: np.random.Generator) -> NDArray:
    """Centres (h, 2) from a normal distribution, with exactly the mean and the spread of these:
    (draws, h, 2).

    Heads that are ``sharp`` (h,) then move to their nearest pixels: trained ones sit on pixels,
    too."""
    drawn = random.standard_normal((draws, *centres.shape))
    drawn = (drawn - drawn.mean(1, keepdims=True)) / np.maximum(drawn.std(1, keepdims=True), 1e-12)
    drawn = centres.mean(0) + centres.std(0) * drawn
    return np.where(sharp[:, None], np.rint(drawn), drawn)


def shares_left(run: Run, epoch: int, draws: int, random: np.random.Generator) -> NDArray:
    """What is left of each layer's attention, in heads, when duplicates count once: (layers with
    heads, 1 + draws).

    First as it is, then with centres `redrawn`.
    """
    shares = []
    of_layers = [run.heads[name][epoch] for name in ("parameter_centre", "precision", "mass")]
    for centres, precision, mass in zip(*of_layers, strict=True):
        if (who := np.isfinite(centres).all(-1)).any():
            each = (centres[who], *redrawn(centres[who], mass[who] > 0.5, draws, random))
            shares.append(
                [gaussians(one, precision[who], run.model.grid).max(0).sum() for one in each]
            )
    return np.array(shares)


def pixels_of_heads(
    mass: NDArray, centres: NDArray
) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray]:
    """Of the 3 × 3 around the query, how many pixels have a sharp head, in each layer: five (L,).

    ``mass`` (L, h), after training; ``centres`` (2, L, h, 2), before and after. First if the heads
    at the start were sharp where they stood; then after training, sharp being over 50%, 40%, 60% of
    a head's attention; last whether those over 50% lie above, below, left and right of the query.
    """
    snapped = kernel_cells(np.ones_like(mass), centres[0], 3)
    after = [kernel_cells(kept, centres[1], 3) for kept in (mass, mass > 0.4, mass > 0.6)]
    around = np.array(
        [{0, 2} <= {*rows} & {*columns} for rows, columns in map(np.nonzero, after[0])]
    )
    own, loose, strict = (cells.sum((1, 2)) for cells in after)
    return snapped.sum((1, 2)), own, loose, strict, around


def peaks(maps: NDArray) -> NDArray:
    """The pixel that has the most of each map (..., H, W): (..., 2)."""
    highest = maps.reshape(*maps.shape[:-2], -1).argmax(-1)
    return np.stack(np.unravel_index(highest, maps.shape[-2:]), -1)


def distinct(shifts: NDArray, chosen: NDArray) -> list[set[tuple[int, int]]]:
    """The shifts (L, h, 2), whole numbers, of each layer's chosen heads (L, h), each shift once."""
    return [
        {(int(a), int(b)) for a, b in of_layer[heads]}
        for of_layer, heads in zip(shifts, chosen, strict=True)
    ]


def symmetry(maps: NDArray, query: NDArray) -> tuple[NDArray, NDArray]:
    """Left-right, then up-down (2, L, h): how alike maps (L, h, H, W) are to their mirror images,
    through the query.

    First the correlation of their column sums, or row sums, `mirrored`; then whether the two
    highest are at mirrored places."""
    alike, twins = [], []
    for profile, place in ((maps.sum(2), query[1]), (maps.sum(3), query[0])):
        side = min(place, profile.shape[-1] - 1 - place)
        profile = profile[..., place - side : place + side + 1]  # the query in the middle
        alike.append(mirrored(profile))
        twins.append(np.argsort(profile, axis=-1)[..., -2:].sum(-1) == 2 * side)
    return np.array(alike), np.array(twins)


def mirrored(profile: NDArray) -> NDArray:
    """Correlation of the logarithm of a profile (..., n) with that of its mirror image; 0 where
    it is flat.
    """
    height = np.log(np.maximum(profile, 1e-12))
    height = height - height.mean(-1, keepdims=True)
    square = (height**2).sum(-1)
    return (height * height[..., ::-1]).sum(-1) / np.where(square > 1e-12, square, np.inf)


def by_signs(differences: NDArray) -> tuple[float, float]:
    """How often differences (n,), their signs drawn anew, sum to as much as these do; and how
    often to as little.
    """
    sums = np.array(list(itertools.product((1, -1), repeat=len(differences)))) @ differences
    return by_chance(sums, differences.sum())


def by_chance(drawn: NDArray, found: float) -> tuple[float, float]:
    """How often what chance drew (n,) is as much as what was found; and how often as little."""
    return float((drawn >= found - 1e-12).mean()), float((drawn <= found + 1e-12).mean())


def by_kind(values: NDArray, who: NDArray) -> NDArray:
    """Mean over layers of what heads of a kind have on average, then of the others: ``who`` (N,
    L, h) -> (2, N).
    """
    return np.array([((values * kind).sum(-1) / kind.sum(-1)).mean(-1) for kind in (who, ~who)])


def listed(values: ArrayLike, form: str) -> str:
    numbers = (int(value) if form == "d" else float(value) for value in np.asarray(values))
    return ", ".join("—" if math.isnan(number) else format(number, form) for number in numbers)


def by_layer(
    values: ArrayLike, form: str, of: int | None = None, before: ArrayLike | None = None
) -> str:
    """A number for each layer, of at most ``of``; and the same ``before`` training."""
    words = (
        f"{listed(values, form)}{f' of {of}' if of else ''} in layers 1 to "
        f"{len(np.asarray(values))}"
    )
    return words if before is None else f"{words}; before training {listed(before, form)}"


def as_convolution(layer: int, side: int, before: float, after: float) -> str:
    return (
        f"layer {layer + 1} as {side} × {side}: relative error {after:.2f}, before training "
        f"{before:.2f}"
    )


def numbered(layers: NDArray) -> str:
    return listed(np.flatnonzero(layers) + 1, "d") or "none"


def different_rates(one: Run, other: Run) -> list[str]:
    """Learning rates of two runs where they differ, a line each: of the weights; of the
    encoding, if both learn one.
    """
    rates = {"learning rates": [run.train.lr for run in (one, other)]}
    if all(run.model.kind.startswith("learned") for run in (one, other)):
        rates["learning rates of the encoding"] = [
            run.train.encoding_lr or run.train.rest_lr for run in (one, other)
        ]
    return [
        f"{words} {first:g} and {second:g}"
        for words, (first, second) in rates.items()
        if first != second
    ]


def significance(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
