"""Verdicts: each claim of claims.yaml is a function here, from finished runs to what was found.

It returns a sign, a number in words with its unit, and a table of all figures. The sign follows
from the number by the line `decides` of claims.yaml. Where a function takes ``runs`` and
``others``, ``runs`` decide, and ``others`` are further rows of the table."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from attnconv.heads import taps_by_chance
from attnconv.training.runs import Run
from companion import results
from companion import statistics as stats
from companion.statistics import by_layer, each

HOLDS, IN_PART, DOES_NOT, OPEN = "holds", "in part", "does not", "open"
Verdict = tuple[str, str, pd.DataFrame]
Runs = Sequence[Run]
NOTHING: Verdict = (OPEN, "not measured", pd.DataFrame())
GRID, PART_OF_GRID = 8, 5
"""Pixels of the 3 × 3 around the query, of nine, that make a grid, and a part of one."""
ENCODINGS = {"quadratic": "Gaussian heads", "learned": "learned", "learned_content": "content"}
Measures = dict[str, stats.Measure]
SWAPPED: Measures = {
    "side as a small convolution (0: none)": stats.smallest,
    "relative error as this, or as 7 × 7": stats.error,
}


def graded(value: float, holds: float = 1, in_part: float = 1) -> str:
    """The sign of a number, by the least that holds and the least that holds in part."""
    if value >= holds:
        return HOLDS
    return IN_PART if value >= in_part else DOES_NOT


def directed(gaps: pd.Series, doubts: ArrayLike = 0.0) -> str:
    """Whether differences, a seed each, are all above zero, or all below, by more than doubts."""
    if gaps.empty:
        return OPEN
    if (gaps > doubts).all():
        return HOLDS
    return DOES_NOT if (-gaps > doubts).all() else OPEN


def in_seeds(gaps: pd.Series, unit: str) -> str:
    """The mean of differences, a seed each, and in how many seeds they have its sign."""
    if gaps.empty:
        return "not measured"
    words = f"{gaps.mean():+.2g} {unit}".replace("-", "−")
    alike = (gaps * gaps.mean() > 0).sum()
    if len(gaps) == 1:
        return words
    return f"{words} on average, the same sign in {alike} of {len(gaps)} seeds"


# --- theory


def theorem(difference: float) -> Verdict:
    """``difference``: the layer's output from the convolution's, at most, of outputs of size 1."""
    table = pd.DataFrame({"largest difference": [difference]})
    return graded(difference < 1e-5), f"the same to {difference:.0e} of the largest output", table


def borders(inside: float, border: float, padded: float) -> Verdict:
    """Largest differences at inner and at border pixels, and everywhere on a padded input."""
    table = pd.DataFrame({"inside": [inside], "at the border": [border], "padded": [padded]})
    agrees = max(inside, padded) < 1e-5 < border
    return (
        graded(agrees),
        f"they differ by {padded:.0e} with padding, by {border:.1g} without",
        table,
    )


def three_numbers(alphas: ArrayLike, missed: ArrayLike, formula: ArrayLike) -> Verdict:
    """Attention outside the pixel at each alpha, measured and by the formula 1 - 1 / S(alpha)^2."""
    table = pd.DataFrame({"α": alphas, "missed": missed, "by the formula": formula})
    off = (table["missed"] - table["by the formula"]).abs().max()
    exact = table["α"][table["missed"] == 0].min()
    return (
        graded(off < 1e-6 and exact > 0),
        f"all attention on the pixel from α = {exact:g} on",
        table,
    )


def flops(linear: float, separable: float, dense: float) -> Verdict:
    """Of the paper's quadratic model: linear layers only, with the averaging along rows and
    columns, with whole P.
    """
    counts = {"linear layers": linear, "with averaging by axis": separable, "dense": dense}
    table = pd.DataFrame([counts]) / 1e9
    billions = f"{linear / 1e9:.1f}"
    return graded(billions == "6.2"), f"{billions} billion in linear layers alone", table


# --- Gaussian heads


def grid(runs: Runs, others: Runs = ()) -> Verdict:
    """On how many pixels around the query do sharp heads sit?"""
    found = each(stats.pixels, runs)  # (runs, layers)
    layers = (found >= PART_OF_GRID).sum()
    by_chance = (taps_by_chance(runs[0].model, 3) >= PART_OF_GRID).mean() * found.size
    words = f"{PART_OF_GRID} of 9 pixels or more in {layers} of {found.size} layers"
    number = f"{words} ({by_chance:.1f} by chance)"
    measures = {"pixels with a sharp head": stats.pixels, "of the start, made sharp": stats.snapped}
    table = by_layer([*runs, *others], measures)
    return graded(found.max(1).min(), GRID, PART_OF_GRID), number, table


def local(runs: Runs, others: Runs = ()) -> Verdict:
    """Do most heads of the first two layers look at the 5 × 5 around the query?"""
    heads = runs[0].model.heads_per_layer[:2]
    if len(heads) < 2:
        return NOTHING
    before, after = each(stats.near, runs)[..., :2].mean(0).round(1)
    of = " and ".join(map(str, dict.fromkeys(heads)))
    words = f"{after[0]:g} and {after[1]:g} of {of} heads"
    number = f"{words} in layers 1 and 2 ({before[0]:g} and {before[1]:g} before training)"
    table = by_layer([*runs, *others], {"heads that look nearby": stats.near})
    return graded((2 * after > heads).sum(), 2), number, table


def farther(runs: Runs, others: Runs = ()) -> Verdict:
    """Do deeper layers have heads that look farther than all of the first two layers' do?"""
    away = each(stats.farthest, runs)  # (runs, 2, layers)
    deeper = away.shape[2] - 2
    if deeper < 1:
        return NOTHING
    beyond = away[..., 2:] >= away[..., :2].max(-1, keepdims=True) + 1
    before, after = beyond.sum(-1).mean(0)
    number = f"{after:.2g} of {deeper} deeper layers ({before:.2g} before training)"
    table = by_layer([*runs, *others], {"pixels to the farthest centre": stats.farthest})
    return graded(after * (after > before), deeper / 2), number, table


def apart(runs: Runs) -> Verdict:
    """How much attention is left when what heads of a layer have in common counts once?"""
    before, after = each(stats.left, runs).mean((0, 2))
    number = f"{after:.0f}% of the attention does not overlap ({before:.0f}% before training)"
    table = by_layer(runs, {"attention that does not overlap (%)": stats.left})
    return graded(after, 90, before), number, table


def sixteen(runs: Runs) -> Verdict:
    """Are there layers that are small convolutions, and heads that look far?"""
    layers = (each(stats.smallest, runs) > 0).sum(-1).mean()
    learned = each(stats.learned, runs).sum(-1).mean()
    heads = each(stats.long_range, runs)[:, 1].sum(-1).mean()
    small = f"{layers:.2g} layers are small convolutions, {learned:.2g} learned to be"
    number = f"{small}; {heads:.2g} heads look far"
    table = by_layer(runs, {"heads that look far": stats.long_range} | SWAPPED)
    return graded(sum([layers >= 1, heads >= 1]), 2), number, table


# --- all encodings


def learns_convolution(runs: Runs, others: Runs = ()) -> Verdict:
    """In how many layers, by encoding, did training make a small convolution?"""
    if not runs:
        return NOTHING
    learned = np.concatenate([stats.learned(run) for run in runs])
    kinds = np.array([run.model.kind for run in runs for _ in range(run.model.layers)])
    words = []
    for kind, encoding in ENCODINGS.items():
        of_kind = learned[kinds == kind]
        if of_kind.size:
            words.append(f"{of_kind.sum()} of {of_kind.size} ({encoding})")
    measures: Measures = {
        f"points lost by a {size} × {size}": partial(stats.lost, size=size)
        for size in min(map(stats.sizes, runs))
    }
    table = by_layer([*runs, *others], measures | SWAPPED | {"learned": stats.learned})
    number = ", ".join(words).replace(" (", " layers (", 1)
    return graded(learned.mean(), 1 / 2, 1 / 10), number, table


# --- learned heads


def single_pixels(runs: Runs) -> Verdict:
    """Do heads look at single pixels around the query, each at one of its own?"""
    found = each(stats.taps, runs).sum(1)
    heads = sum(runs[0].model.heads_per_layer)
    table = by_layer(runs, {"pixels that have a head of their own": stats.taps})
    number = f"{found.mean():.2g} of {heads} heads" + ", on average" * (len(runs) > 1)
    return graded(found.min(), heads / 10), number, table


def symmetric(runs: Runs) -> Verdict:
    """Are heads that are not local symmetric left-right, and do some look far?"""
    across, upright = (partial(stats.mirrored, axis=axis) for axis in (1, 0))
    far = "heads that reach farther"
    table = by_layer(runs, {far: stats.far, "left-right": across, "up-down": upright})
    of_each = table.set_index(["network", "what"]).mean(axis=1).unstack()
    alike = of_each.mean()
    words = f"correlation {alike['left-right']:.2f} left-right, {alike['up-down']:.2f} up-down"
    ahead = (of_each["left-right"] > of_each["up-down"]).all()
    return graded(sum([ahead, (of_each[far] > 0).all()]), 2), words.replace("nan", "—"), table


def constant_shift(runs: Runs) -> Verdict:
    """Do heads of layers 2 and 3 look at pixels at a fixed shift, and follow the query?"""
    found = each(stats.follow, runs)[:, 1:3]  # (runs, 2)
    heads = runs[0].model.heads_per_layer[1:3]
    if len(heads) < 2:
        return NOTHING
    number = f"{found.sum(1).mean():.2g} of {sum(heads)} heads of layers 2 and 3"
    number += ", on average" * (len(runs) > 1)
    table = by_layer(runs, {"heads that follow the query": stats.follow})
    return graded(int(found.all()) + int(found.any()), 2), number, table


def content_use(runs: Runs) -> Verdict:
    """Does content decide more in heads that do not follow the query, in their own layer?"""
    theirs, others = (partial(stats.by_content, follows=kind) for kind in (True, False))
    gaps = pd.Series([pd.Series(others(run) - theirs(run)).mean() for run in runs]).dropna()
    number = in_seeds(gaps, "percentage points of the scores' variance")
    measures: Measures = {
        "heads that follow the query": stats.follow,
        "by content (%), of these": theirs,
        "by content (%), of others": others,
    }
    return directed(gaps), number, by_layer(runs, measures)


# --- accuracy


def compared(
    runs: Runs, others: Runs, way: int = 1, margin: float = 0, of: str = "test_accuracy"
) -> Verdict:
    """Are runs above (``way`` 1) or below (-1) others of their seeds, but for a margin?

    By more than two standard errors, in each seed; open where one was trained for longer."""
    table = results.ahead(runs, others, of)
    if table.empty:
        return NOTHING
    sign = directed(way * table["difference"] + margin, 2 * table["standard error"].fillna(0))
    as_long = runs[0].train.epochs == others[0].train.epochs
    unit = "points" if of == "test_accuracy" else "nats of training loss"
    number = in_seeds(table["difference"], unit)
    return sign if as_long else OPEN, number, table


matches_resnet = partial(compared, margin=1)
quadratic_ahead = content_lower = partial(compared, way=-1)  # who should be below comes first
content_harder = partial(compared, of="train_loss")


def pruned(runs: Runs, whole: Runs, control: Runs) -> Verdict:
    """``whole``: runs whose heads were dropped; ``control``: these, trained on with all heads."""
    sign, number, table = compared(runs, control, margin=1)
    heads = sum(whole[0].model.heads_per_layer)
    dropped = heads - sum(runs[0].model.heads_per_layer)
    table = pd.concat([table, results.ahead(runs, whole)])
    return sign if dropped else OPEN, f"{number}, without {dropped} of {heads} heads", table


# --- ours


def more_than_snapping(runs: Runs, others: Runs = ()) -> Verdict:
    """Taps covered after training, less those of the start's heads, each made sharp."""
    more = each(stats.pixels, runs) - each(stats.snapped, runs)  # (runs, layers)
    gaps = pd.Series(more[:, :2].mean(1))
    measures = {"taps covered": stats.pixels, "of the start, made sharp": stats.snapped}
    table = by_layer([*runs, *others], measures)
    return directed(gaps), in_seeds(gaps, "taps a layer"), table


def convolution_start(
    runs: Runs, others: Runs, more: Mapping[str, tuple[Runs, Runs]] | None = None
) -> Verdict:
    """Runs from two starts; and ``more`` pairs by name, which do not decide."""
    sign, number, table = compared(runs, others)
    tables = [table.assign(which="decides")]
    for name, pair in (more or {}).items():
        tables.append(results.ahead(*pair).assign(which=name))
    return sign, number, pd.concat(tables)
