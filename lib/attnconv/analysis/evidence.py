"""What verdicts are decided by: numbers of finished runs, and words for them."""

import math
from collections.abc import Callable
from functools import wraps

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnconv.analysis.heads import shift_maps
from attnconv.training.runs import Run

VERDICTS = {True: "holds", False: "does not hold", None: "is undecided"}
Verdict = tuple[bool | None, list[str]]
"""And the evidence, a line for each number that decided."""
Placed = tuple[bool | None, list[str], str]
"""And, in words, of what it holds, where that is not all."""
POINTS = 1.0
"""Points of accuracy that a convolution in the place of a layer may cost."""
SMALL = 7
"""Side of the largest kernel that is called small: heads on pixels around the query."""


def in_words(holds: bool | None, where: str = "") -> str:
    """A verdict, and of what it holds, where that is not all."""
    return ", ".join(filter(None, (VERDICTS[holds], where)))


def of_every_seed(check: Callable[..., Verdict | Placed]) -> Callable[..., Placed]:
    """A verdict on one run becomes one on runs of several seeds: what they share, None and a count where they differ.

    The evidence is that of the first run, and a line of each other's, with its first number.
    """

    @wraps(check)
    def of_all(*runs: Run) -> Placed:
        seeds, found = [run.train.seed for run in runs], [check(run) for run in runs]
        holds, places = [one[0] for one in found], ["".join(one[2:]) for one in found]
        said = [f"seed {seed} {in_words(one, where)}" for seed, one, where in zip(seeds, holds, places, strict=True)]
        lines = [*found[0][1], *(f"{words}; {one[1][0]}" for words, one in zip(said[1:], found[1:], strict=True))]
        if len({*holds}) == 1:
            other = [f"seed {seed} {where}" for seed, where in zip(seeds, places, strict=True) if where != places[0]]
            return holds[0], lines, "; ".join(filter(None, [places[0], *other]))
        part = all("in part" in place for one, place in zip(holds, places, strict=True) if one)
        counts = f"holds {'in part ' * (part and any(holds))}in {holds.count(True) or 'none'} of {len(runs)} networks"
        counts += f", fails in {holds.count(False)}" * (False in holds)
        return None, [*lines, f"seeds differ: {said[0]}"], counts

    return of_all


def small_convolutions(run: Run) -> tuple[NDArray, NDArray, NDArray, list[str], NDArray]:
    """Layers where a convolution of at most `SMALL` costs less than `POINTS`, and a 1 × 1 more: three (L,) bool.

    First the layers where this is sure; then those where the noise is too large to tell; then those of the first where
    the smallest such convolution is at most half as far from the layer as before training. Then the numbers in words,
    and the place of this smallest size among those measured, (L,) int.
    """
    sizes = run.swaps["sizes"]
    lost = 100 * (run.swaps["whole"].astype(float) - run.swaps["alone"])  # (L, S, images)
    lost, error = lost.mean(-1), lost.std(-1) / math.sqrt(lost.shape[-1])  # points, and the paired standard error
    least, most = lost - 2 * error, lost + 2 * error
    small = (sizes > 1) & (sizes <= SMALL)
    fits = small & (most < POINTS) & (least[:, sizes == 1] > POINTS)  # (L, S)
    may_fit = small & (least < POINTS) & (most[:, sizes == 1] > POINTS)
    fine, smallest = fits.any(1), fits.argmax(1)  # where none fits, the first, which is left out below
    before, after = run.swaps["error"][:, np.arange(len(fits)), smallest]
    lines = [
        f"points lost with a {size} × {size} convolution in one layer's place: {by_layer(points, '.1f')}"
        for size, points in zip(sizes, lost.T, strict=True)
        if size <= SMALL
    ]
    decisive = [
        f"{layer + 1} as {size} × {size} {after[layer]:.2f}, before training {before[layer]:.2f}"
        for layer, size in enumerate(sizes[smallest])
        if fine[layer]
    ]
    words = "relative error of the smallest that surely costs less than a point (two standard errors): layer"
    lines += [f"{words} {'; '.join(decisive) or 'none'}"]
    became = after <= before / 2
    return fine, may_fit.any(1) & ~fine, fine & became, lines, smallest


def following(run: Run) -> tuple[NDArray, NDArray]:
    """Heads (L, h) whose attention has a peak that stays at one shift (L, h, 2) as the query moves.

    At each query that was kept, the peak lies at this shift, where over half of what exceeds evenly spread attention
    lies within a pixel of it; over all queries, heads agree nine tenths as well as two halves of the images do.
    """
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
    """What heads (..., 2) give to each shift that an image of that size has: (..., 2 H - 1, 2 W - 1)."""
    row, column = (np.arange(1 - side, side) - centres[..., axis, None] for axis, side in enumerate(grid))
    (a, b), (c, d) = np.moveaxis(precision[..., None], (-3, -2), (0, 1))
    logits = (a * row**2)[..., None] + (d * column**2)[..., None, :] + ((b + c) * row)[..., None] * column[..., None, :]
    logits *= -0.5
    weights = np.exp(logits - logits.max((-2, -1), keepdims=True))
    return weights / weights.sum((-2, -1), keepdims=True)


def redrawn(centres: NDArray, sharp: NDArray, draws: int, random: np.random.Generator) -> NDArray:
    """Centres (h, 2) from a normal distribution, with exactly the mean and the spread of these: (draws, h, 2).

    Heads that are ``sharp`` (h,) then move to their nearest pixels: trained ones sit on pixels, too.
    """
    drawn = random.standard_normal((draws, *centres.shape))
    drawn = (drawn - drawn.mean(1, keepdims=True)) / np.maximum(drawn.std(1, keepdims=True), 1e-12)
    drawn = centres.mean(0) + centres.std(0) * drawn
    return np.where(sharp[:, None], np.rint(drawn), drawn)


def peaks(maps: NDArray) -> NDArray:
    """The pixel that has the most of each map (..., H, W): (..., 2)."""
    highest = maps.reshape(*maps.shape[:-2], -1).argmax(-1)
    return np.stack(np.unravel_index(highest, maps.shape[-2:]), -1)


def distinct(shifts: NDArray, chosen: NDArray) -> list[set[tuple[int, int]]]:
    """The shifts (L, h, 2), whole numbers, of each layer's chosen heads (L, h), each shift once."""
    return [{(int(a), int(b)) for a, b in of_layer[heads]} for of_layer, heads in zip(shifts, chosen, strict=True)]


def mirrored(profile: NDArray) -> NDArray:
    """Correlation of the logarithm of a profile (..., n) with that of its mirror image; 0 where it is flat."""
    height = np.log(np.maximum(profile, 1e-12))
    height = height - height.mean(-1, keepdims=True)
    square = (height**2).sum(-1)
    return (height * height[..., ::-1]).sum(-1) / np.where(square > 1e-12, square, np.inf)


def listed(values: ArrayLike, form: str) -> str:
    numbers = (int(value) if form == "d" else float(value) for value in np.asarray(values))
    return ", ".join("—" if math.isnan(number) else format(number, form) for number in numbers)


def by_layer(values: ArrayLike, form: str, of: int | None = None, before: ArrayLike | None = None) -> str:
    """A number for each layer, of at most ``of``; and the same ``before`` training."""
    words = f"{listed(values, form)}{f' of {of}' if of else ''} in layers 1 to {len(np.asarray(values))}"
    return words if before is None else f"{words}; before training {listed(before, form)}"


def numbered(layers: NDArray) -> str:
    return listed(np.flatnonzero(layers) + 1, "d") or "none"


def significance(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
