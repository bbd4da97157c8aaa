"""What verdicts are decided by: numbers of finished runs, one for each layer.

Where a function gives two rows, (2, layers), the first is before training, the second after it."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from attnconv.heads import kernel_cells, shift_maps
from attnconv.training.runs import Run

POINT = 1.0
"""Points of accuracy that a convolution in the place of a layer may cost."""
SMALL = 7
"""Side of the largest kernel that is called small."""
NEARER = 0.75
"""Training made a layer a convolution if its relative error fell to this share or less."""

Measure = Callable[[Run], NDArray]


def named(run: Run) -> str:
    """A run in a table: its model, seed, length, width, and a start that is not the paper's."""
    if run.model.kind == "resnet":  # has no hidden width
        return run.label
    name = f"{run.label}, hidden {run.model.hidden}"
    if all(run.model.kernel_per_layer):
        name += ", a CNN"
    elif run.model.kind == "quadratic" and run.model.centre_start != "gaussian":
        name += f", from {run.model.centre_start}"
    return name


def by_layer(runs: Sequence[Run], measures: Mapping[str, Measure]) -> pd.DataFrame:
    """A row for each run and measure, or two (before training, after it); a column a layer."""
    rows = []
    for run in runs:
        for what, measure in measures.items():
            *before, after = np.atleast_2d(measure(run))
            rows += [[named(run), f"{what}, before training", *row] for row in before]
            rows.append([named(run), what, *after])
    table = pd.DataFrame(dict(enumerate(row)) for row in rows)  # of as many layers as each has
    layers = [f"layer {number}" for number in range(1, table.shape[1] - 1)]
    return table.set_axis(["network", "what", *layers], axis=1)


def each(measure: Measure, runs: Sequence[Run]) -> NDArray:
    """Of runs of as many layers: (runs, layers), or (runs, 2, layers)."""
    return np.array([measure(run) for run in runs])


# --- layers as convolutions


def sizes(run: Run) -> list[int]:
    """Sides of the small kernels that were tried, from 1 on."""
    return [size for size in run.swaps["sizes"].tolist() if size <= SMALL]


def lead(right: NDArray, others: NDArray) -> tuple[NDArray, NDArray]:
    """Points by which answers (..., n) to the same images are ahead of others, and their standard
    error, paired image by image: (...) each.
    """
    points = 100 * (right.astype(float) - others)
    return points.mean(-1), points.std(-1) / math.sqrt(points.shape[-1])


def lost(run: Run, size: int, doubts: float = 0) -> NDArray:
    """Points lost by the convolution of that size that is read out of a layer, in its place.

    And so many standard errors of them."""
    place = run.swaps["sizes"].tolist().index(size)
    points, errors = lead(run.swaps["whole"], run.swaps["alone"][:, place])
    return points + doubts * errors


def smallest(run: Run) -> NDArray:
    """Side of the smallest convolution that can replace a layer, 0 where no small one can.

    It surely costs less than a `POINT`, by two standard errors, and a 1 × 1 surely more."""
    looks_around = lost(run, 1, -2) > POINT
    found = np.zeros(len(looks_around), int)
    for size in sizes(run)[:0:-1]:
        found[looks_around & (lost(run, size, 2) < POINT)] = size
    return found


def error(run: Run) -> NDArray:
    """Relative error as this convolution, else as the largest small one: two rows."""
    sides = smallest(run)
    sides[sides == 0] = sizes(run)[-1]
    places = np.searchsorted(run.swaps["sizes"], sides)
    return run.swaps["error"][:, np.arange(len(sides)), places]


def learned(run: Run) -> NDArray:
    """Whether a small convolution can replace a layer, and training brought it near to this."""
    before, after = error(run)
    return (smallest(run) > 0) & (after <= NEARER * before)


# --- Gaussian heads


def pixels(run: Run) -> NDArray:
    """Pixels of the 3 × 3 around the query that have a sharp head, with over half of it on them."""
    mass, centres = run.heads["mass"][-1], run.heads["parameter_centre"][-1]
    return kernel_cells(mass, centres, 3).sum((1, 2))


def snapped(run: Run) -> NDArray:
    """The same of the heads before training, if each were sharp on its nearest pixel."""
    centres = run.heads["parameter_centre"][0]
    return kernel_cells(np.ones(centres.shape[:2]), centres, 3).sum((1, 2))


def near(run: Run) -> NDArray:
    """Heads with over half of their attention in the 5 × 5, of a query with room on all sides."""
    height, width = run.model.grid
    around = shift_maps(_gaussians(run), (height - 1, width - 1), 2)
    return (around.sum((-2, -1)) > 0.5).sum(-1)


def left(run: Run) -> NDArray:
    """Share of a layer's attention (%) that is left when what heads have in common counts once."""
    maps = _gaussians(run)
    heads = np.isfinite(maps[..., 0, 0]).sum(-1)
    return 100 * np.nanmax(maps, 2).sum((-2, -1)) / heads


def _gaussians(run: Run) -> NDArray:
    """What heads give to each shift of the grid: (2, layers, heads, 2 H - 1, 2 W - 1)."""
    height, width = run.model.grid
    centres, precision = run.heads["parameter_centre"][[0, -1]], run.heads["precision"][[0, -1]]
    shifts = np.moveaxis(np.mgrid[1 - height : height, 1 - width : width], 0, -1)
    away = shifts - centres[..., None, None, :]
    logits = -np.einsum("...yxi,...ij,...yxj->...yx", away, precision, away) / 2
    return torch.from_numpy(logits).flatten(-2).softmax(-1).view(logits.shape).numpy()


def farthest(run: Run) -> NDArray:
    """How far from the query the farthest head of Gaussians is centred, in pixels.

    Heads wider than the image look nowhere, so their centres do not count."""
    precision = np.nan_to_num(run.heads["precision"][[0, -1]])
    flattest = np.linalg.eigvalsh(precision).min(-1)  # 1 / (standard deviation)^2, at its largest
    is_narrow = flattest * min(run.model.grid) ** 2 > 1
    centres = np.linalg.norm(run.heads["parameter_centre"][[0, -1]], axis=-1)
    return np.where(is_narrow, centres, 0).max(-1)


def long_range(run: Run) -> NDArray:
    """Heads whose mean shift is longer than a quarter of the image's side."""
    shifts = np.linalg.norm(run.heads["centre"][[0, -1]], axis=-1)
    return (shifts > min(run.model.grid) / 4).sum(-1)


# --- learned heads, after training


def taps(run: Run) -> NDArray:
    """Pixels of the 7 × 7 around the query that have a head with over half of it on the pixel."""
    maps, query = run.attention["mean"][0], run.attention["queries"][0]
    return kernel_cells(maps.max((2, 3)), _peaks(maps) - query, 7).sum((1, 2))


def _peaks(maps: NDArray) -> NDArray:
    """The pixel that has the most of each map (..., H, W): (..., 2)."""
    highest = maps.reshape(*maps.shape[:-2], -1).argmax(-1)
    return np.stack(np.unravel_index(highest, maps.shape[-2:]), -1)


def far(run: Run) -> NDArray:
    """Heads that reach farther than any did before training."""
    reach = run.heads["reach"]
    return (reach[-1] > np.nanmax(reach[0])).sum(1)


def mirrored(run: Run, axis: int) -> NDArray:
    """How alike heads that are not local are to their mirror image: 0 up-down, 1 left-right.

    The correlation of the logarithms of their row sums, or column sums, with the query in the
    middle; NaN in a layer without such heads."""
    maps, query = run.attention["mean"][0], run.attention["queries"][0]
    is_wide = np.nansum(shift_maps(maps, query, 2), (2, 3)) < 0.5  # of its mass in the 5 × 5
    profile = maps.sum(3 - axis)
    place = query[axis]
    room = min(place, profile.shape[-1] - 1 - place)
    height = np.log(np.maximum(profile[..., place - room : place + room + 1], 1e-12))
    height -= height.mean(-1, keepdims=True)
    alike = (height * height[..., ::-1]).sum(-1) / (height**2).sum(-1)
    return _mean_over_heads(alike, is_wide)


def _mean_over_heads(values: NDArray, chosen: NDArray) -> NDArray:
    """Of the chosen heads of each layer (layers, heads); NaN where there is none: (layers,)."""
    return np.ma.masked_array(values, ~chosen | np.isnan(values)).mean(1).filled(np.nan)


def follow(run: Run) -> NDArray:
    """Heads that follow the query."""
    return following(run)[0].sum(1)


def following(run: Run) -> tuple[NDArray, NDArray]:
    """Heads (L, h) whose attention has a peak that stays at one shift (L, h, 2) as the query moves.

    At each query that was kept, the peak lies at this shift, where over half of what exceeds evenly
    spread attention lies within a pixel of it. And the whole pattern, as the query moves, agrees
    nine tenths as well as between two halves of the images."""
    maps, queries = run.attention["mean"].astype(float), run.attention["queries"]
    shifts = _peaks(maps) - queries[:, None, None]  # (Q, L, h, 2)
    above = np.maximum(maps - 1 / math.prod(maps.shape[3:]), 0)
    padded = np.pad(above, [(0, 0)] * 3 + [(1, 1)] * 2)
    around = sliding_window_view(padded, (3, 3), (3, 4)).sum((-2, -1))
    at_peak = np.where(maps == maps.max((3, 4), keepdims=True), around, 0).max((3, 4))
    peaked = (at_peak > above.sum((3, 4)) / 2) & (shifts == shifts[0]).all(-1)
    moved, same = run.attention["halves"]
    return peaked.all(0) & (moved >= 0.9 * same), shifts[0]


def by_content(run: Run, follows: bool) -> NDArray:
    """Share (%) of what makes scores vary that content decides, of heads that follow or others.

    A mean over heads; NaN in a layer without such heads."""
    fixed = run.attention["shares"][0]
    chosen = following(run)[0] == follows
    return _mean_over_heads(100 * (1 - fixed), chosen)
