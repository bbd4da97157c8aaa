"""Verdicts: each claim of claims.yaml is a function here, from finished runs (or numbers) to what
was found.

Every function returns the verdict and the evidence, a line for each number that decided; some,
where it holds. The verdict is None where the noise is too large to tell, or something is missing.
`claims` makes cards of them. First comes the theorem, then quadratic heads, learned ones, and
accuracy."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from attnconv.cost import cost
from attnconv.heads import shift_maps, taps_by_chance
from attnconv.training.runs import Run
from companion import evidence, results
from companion.evidence import (
    Placed,
    Verdict,
    by_layer,
    listed,
    numbered,
    of_every_seed,
    significance,
)

LEVEL = 0.05  # of significance: how often chance may give at least what was found
DRAWS = 1000
# of the largest entropy that attention can have: from there on it is called spread all but evenly
EVEN = 0.95
OVERLAP = (
    2 / 3
)  # where less of heads' attention is left when duplicates count once, heads are said to overlap
NOT_TRAINED = "one of the two models is not among the runs"
NOT_MEASURED = "what convolutions in the layers' places cost was not measured for this run"


def theorem(difference: float) -> Verdict:
    """``difference``: the largest between the layer's output and the convolution's, of outputs
    of size 1.
    """
    return difference < 1e-5, [f"largest difference {difference:.0e} of the largest output"]


def borders(inside: float, border: float, padded: float) -> Verdict:
    """Largest differences at inner pixels, at border pixels, and everywhere once the input is
    padded.
    """
    lines = [f"without padding: {inside:.1g} inside, {border:.1g} at the border"]
    return inside < 1e-5 < border and padded < 1e-5, [
        *lines,
        f"with padding: {padded:.1g} everywhere",
    ]


def three_numbers(alphas: ArrayLike, missed: ArrayLike, formula: ArrayLike) -> Verdict:
    """Attention outside the pixel at each alpha, measured and by the formula 1 - 1 / S(alpha)^2."""
    alphas, missed, formula = (
        np.asarray(values, dtype=float) for values in (alphas, missed, formula)
    )
    off, exact = np.abs(missed - formula).max(), alphas[missed == 0]
    lines = [f"largest difference from the formula {off:.0e}"]
    lines += (
        [f"exactly zero from alpha = {exact.min():g} on"]
        if len(exact)
        else ["nowhere exactly zero"]
    )
    return off < 1e-6 and len(exact) > 0 and bool((missed[alphas >= exact.min()] == 0).all()), lines


def flops(linear: float, separable: float, dense: float) -> Placed:
    """Of the paper's quadratic model: linear layers only, with the averaging along rows and
    columns, with whole P.
    """
    more = (
        f"with the averaging {dense / 1e9:.1f} billion, or {separable / 1e9:.1f} along rows and "
        "columns"
    )
    lines = [f"{linear / 1e9:.2f} billion in linear layers alone", more]
    return round(linear / 1e9, 1) == 6.2, lines, "of its linear layers alone"


def learns_convolution(runs: Sequence[Run]) -> Placed:
    """Do most networks have a layer that training made a small convolution, wherever its heads
    are?
    """
    if not runs or not all(run.swaps for run in runs):
        return None, [NOT_MEASURED], ""
    lines, sure, possible = [], 0, 0
    for run in runs:
        small = evidence.small_convolutions(run)
        learned = small.nearer(evidence.NEARER)
        unknown = small.unsure | (
            small.fine & np.isnan(small.before)
        )  # a run that goes on from another: NaN
        sure, possible = sure + int(learned.any()), possible + int((learned | unknown).any())
        lines.append(f"{run.title}, seed {run.train.seed}: {small.words(learned) or 'no layer'}")
    holds = True if 2 * sure > len(runs) else None if 2 * possible > len(runs) else False
    return holds, lines, f"in {sure} of {len(runs)} networks" * bool(sure)


@of_every_seed
def grid(run: Run) -> Placed:
    """Is there a layer that training made a small convolution, by moving heads to pixels of their
    own?

    The words are the layers, and whether these pixels lie on all four sides of the query.
    """
    if "put_back" not in run.swaps:
        return None, [NOT_MEASURED], ""
    small, sizes = evidence.small_convolutions(run), run.swaps["sizes"]
    mass, centres = run.heads["mass"][-1], run.heads["parameter_centre"][[0, -1]]
    sharp, moved = mass > 0.5, pd.DataFrame(np.linalg.norm(centres[1] - centres[0], axis=-1))
    snapped, own, loose, strict, around = evidence.pixels_of_heads(mass, centres)
    errors = np.concatenate([run.swaps["error"], run.swaps["put_back"]])  # (4, L, sizes)
    there, back = small.fine & (own > 4), errors[2, np.arange(len(own)), small.smallest]
    made = there & (own > snapped) & small.nearer(evidence.NEARER)
    made &= back >= (small.before + small.after) / 2  # half of the gain is lost
    four = (
        "{:.2f} before training, {:.2f} after, {:.2f} with centres put back, {:.2f} with "
        "sharpness put back"
    )
    words = (
        f"layer {n + 1} as {sizes[k]} × {sizes[k]}: {four.format(*errors[:, n, k])}"
        for n in np.flatnonzero(there)
        for k in np.flatnonzero((sizes == 3) | (sizes == small.sides[n]))
    )
    lot = (taps_by_chance(run.model, 3) >= own.max()).mean()
    lines = [
        f"pixels of the 3 × 3 around the query that have a sharp head: {by_layer(own, 'd')} (if "
        f"sharp were over 40%, {listed(loose, 'd')}; over 60%, {listed(strict, 'd')}); five or "
        f"more, on all sides: layer {numbered((own > 4) & around)}. Layers with five of these that "
        f"a small convolution can replace, and its relative error: {'; '.join(words) or 'none'}. "
        f"Made by moving: {'layer ' * bool(made.any())}{numbered(made)}",
        *small.lines,
        "heads with over half of their attention on a pixel: "
        f"{by_layer(sharp.sum(1), 'd', sharp.shape[1])}; mean distance that these heads moved, in "
        f"pixels: {listed(moved.where(sharp).mean(axis=1), '.1f')}",
        "pixels that the start's heads would have, each made sharp on its nearest: "
        f"{listed(snapped, 'd')}",
        f"by chance, of {len(own)} layers so snapped, one or more has {own.max()} pixels or more: "
        f"p = {1 - (1 - lot) ** len(own):.2f}",
    ]
    where = f"in layer {numbered(made & around)} of {len(own)}" if (made & around).any() else ""
    if made.any() and not where:
        where = f"in part: in layer {numbered(made)} of {len(own)}, not on all sides of the query"
    return (
        (
            True
            if made.any()
            else None
            if ((small.fine | small.unsure) & (own > 4)).any()
            else False
        ),
        lines,
        where,
    )


@of_every_seed
def local(run: Run) -> Placed:
    """Do most heads of the first two layers look at the 5 x 5 around the query? The words are
    whether they began so.
    """
    there, grid = np.isfinite(run.heads["centre"][-1]).all(-1), run.model.grid  # (L, h)
    shifts = evidence.gaussians(
        run.heads["parameter_centre"][[0, -1]], run.heads["precision"][[0, -1]], grid
    )
    near = np.nansum(shift_maps(shifts, (grid[0] - 1, grid[1] - 1), 2), (-2, -1))  # (2, L, h)
    (before, after), (_, low), (_, high) = ((near > share).sum(-1) for share in (0.5, 0.4, 0.6))
    even = (run.heads["entropy"][-1] > EVEN * math.log(math.prod(grid))).sum(1)
    lines = [
        "heads with over half of their attention in the 5 × 5 around the query: "
        f"{by_layer(after, 'd', there.shape[1], before)}; now over 40%: {listed(low, 'd')}; 60%: "
        f"{listed(high, 'd')}",
        f"heads whose attention is spread all but evenly over the image: {by_layer(even, 'd')}",
    ]
    if not there[:2].any(1).all():
        return None, [*lines, "there are no heads in the first two layers"], ""
    began, holds = ((2 * counts > there.sum(1))[:2] for counts in (before, after))
    return (
        bool(holds.all()),
        lines,
        f"from the start in layer {numbered(began)}" * bool(holds.all() and began.any()),
    )


@of_every_seed
def farther(run: Run) -> Verdict:
    """Do deeper layers have heads that look farther than all of the first two layers' do?"""
    away = np.linalg.norm(run.heads["centre"][[0, -1]], axis=-1)  # (2, L, h), before and after
    farthest = np.where(np.isfinite(away), away, 0).max(-1)  # (2, L)
    if farthest.shape[1] < 3 or not np.isfinite(away[1, :2]).any():
        return None, ["there are no deeper layers, or no heads in the first two"]
    before, after = (farthest[:, 2:] >= farthest[:, :2].max(1, keepdims=True) + 1).sum(1)
    deeper = farthest.shape[1] - 2
    lines = [
        "farthest mean shift of a head, in pixels: "
        f"{by_layer(farthest[1], '.1f', before=farthest[0])}",
        f"deeper layers with a head at least a pixel farther than all of layers 1 and 2: {after} "
        f"of {deeper}; before training {before}",
        f"mean reach, in pixels: {by_layer(np.nanmean(run.heads['reach'][-1], axis=1), '.1f')}",
    ]
    return (
        True if 2 * after >= deeper and after > before else False if after == 0 else None
    ), lines


@of_every_seed
def apart_by_lot(run: Run) -> Verdict:
    """Do heads duplicate less of each other's attention than the same heads elsewhere, more so
    than at the start?
    """
    there, random = (
        np.isfinite(run.heads["parameter_centre"][-1]).all(-1),
        np.random.default_rng(0),
    )  # (L, h)
    if not there.any():
        return None, ["there are no heads"]
    start, end = (
        evidence.shares_left(run, epoch, DRAWS, random) for epoch in (0, -1)
    )  # (L, 1 + DRAWS)
    heads = there.sum(1)[there.any(1)]
    lead, lead_at_start = (
        100 * (of[:, 0].sum() - of[:, 1:].sum(0)) / heads.sum() for of in (end, start)
    )
    whole = 100 * end[:, 0].sum() / heads.sum()
    # Where no draw can do worse, or better, both are 1: sharp heads that are far apart, or a single
    # one.
    p, p_less = ((1 + (sign * lead <= 1e-9).sum()) / (1 + DRAWS) for sign in (1, -1))
    p_more = (1 + (lead <= lead_at_start).sum()) / (1 + DRAWS)
    lines = [
        "lead over what was drawn anew, all layers together, in percent of the attention: "
        f"{lead.mean():.1f} ({whole:.1f} against {whole - lead.mean():.1f}); {significance(p)}",
        f"attention that is left when duplicates count once: {listed(end[:, 0] / heads, '.0%')} "
        f"in layers {numbered(there.any(1))}; before training {listed(start[:, 0] / heads, '.0%')}",
        f"the same heads, centres drawn anew, mean: {listed(end[:, 1:].mean(1) / heads, '.0%')}",
        f"the lead before training: {lead_at_start.mean():.1f}; as much added by chance "
        f"{significance(p_more)}",
        "layers where heads do overlap, with less than two thirds left: "
        + numbered(
            np.isin(
                np.arange(len(there)), np.flatnonzero(there.any(1))[end[:, 0] < OVERLAP * heads]
            )
        ),
    ]
    return (True if max(p, p_more) < LEVEL else False if p_less < LEVEL else None), lines


def apart(run: Run) -> Placed:
    """The paper says more than that heads overlap less than at random, so the verdict says that
    it is of the test.
    """
    holds, lines, _ = apart_by_lot(run)
    return (
        holds,
        lines,
        "in part: less than at random; whether they cover the space is not tested" * bool(holds),
    )


def sixteen(run: Run) -> Placed:
    """Are there layers that are small convolutions, and heads that look far? The words are which
    layers began so.
    """
    limit, centres = min(run.model.grid) / 4, run.heads["centre"][[0, -1]]
    before, after = (np.linalg.norm(centres, axis=-1) > limit).sum(-1)  # (L,)
    words = f"heads with a centre of attention farther than {limit:g} pixels"
    lines = [f"{words}: {by_layer(after, 'd', centres.shape[2], before)}"]
    if not run.swaps:
        return None, [*lines, NOT_MEASURED], ""
    small = evidence.small_convolutions(run)
    became = small.nearer(0.5)
    lines += [
        *small.lines,
        f"layers that are small convolutions: {numbered(small.fine)}; twice as near as they began: "
        f"{numbered(became)}",
    ]
    if after.sum() <= before.sum():
        return (None if after.any() else False), lines, ""
    words = "local layers began near to convolutions" * bool(small.fine.any() and not became.any())
    return (True if small.fine.any() else None if small.unsure.any() else False), lines, words


def pruned(run: Run, whole: Run, control: Run | None) -> Placed:
    """``whole``: the run whose heads were dropped; ``control``: that run, trained on for as long
    with all its heads.
    """
    heads = whole.model.heads_per_layer, run.model.heads_per_layer
    lines = [f"heads before: {by_layer(heads[0], 'd')}; after: {listed(heads[1], 'd')}"]
    lines += [f"test accuracy with all heads {100 * whole.test_accuracy:.1f}%"]
    if run.right_at_start is not None:
        lines += [
            "without the degenerate ones, before it was trained on "
            f"{100 * run.right_at_start.mean():.1f}%"
        ]
    if heads[0] == heads[1]:
        return None, [*lines, "no head was degenerate, so none was dropped"], ""
    if control is None:
        return None, [*lines, "the opponent, trained on with all heads, is not among the runs"], ""
    holds, words = results.ahead([run], [control], margin=evidence.POINTS)
    epochs = f"{run.train.epochs} epoch{'s' * (run.train.epochs > 1)}"
    lines += [f"trained on for {epochs}, without them against with all: {words}"]
    return holds, lines, results.rests_on(holds, [run], [control], evidence.POINTS)


@of_every_seed
def single_pixels(run: Run) -> Verdict:
    """Are there heads on pixels around the query, each on one of its own, and more than at
    random?
    """
    from scipy.stats import binom

    maps, query = run.attention["mean"][0].astype(float), run.attention["queries"][0]
    single, shifts = maps.max((2, 3)) > 0.5, evidence.peaks(maps) - query
    near = single & (abs(shifts) <= 3).all(-1)
    own, lot = (
        evidence.distinct(shifts, near),
        (abs(np.indices(run.model.grid).T - query) <= 3).all(-1).mean(),
    )
    different, count = sum(map(len, own)), int(single.sum())
    chance, fewer = (
        float(binom.sf(different - 1, count, lot)),
        binom.cdf(near.sum(), count, lot) < LEVEL,
    )
    lines = [
        "heads with over half of their attention on one pixel: "
        f"{by_layer(single.sum(1), 'd', maps.shape[1])}",
        "different pixels of the 7 × 7 around the query among theirs: "
        f"{by_layer([len(one) for one in own], 'd')}",
        "their shifts: "
        f"{', '.join(sorted(f'({a:+d}, {b:+d})' for a, b in set().union(*own))) or 'none'}",
        f"together {different} of {count}; at random {significance(chance)}",
    ]
    return (True if chance < LEVEL else False if fewer or not count else None), lines


@of_every_seed
def symmetric(run: Run) -> Verdict:
    """Are patterns that are not local symmetric left-right, more than up-down, and do some heads
    look far?
    """
    maps, query = run.attention["mean"][0].astype(float), run.attention["queries"][0]
    wide = (np.nansum(shift_maps(maps, query, 2), (2, 3)) < 0.5) & ~np.isnan(maps).any(
        (2, 3)
    )  # (L, h)
    if not wide.any():
        return False, ["all heads are local"]
    (across, upright), twins = evidence.symmetry(maps, query)
    pairs = (wide & twins).sum((1, 2))
    reach_before, reach = run.heads["reach"][0], run.heads["reach"][-1]
    far, count = (reach > np.nanmax(reach_before)).sum(1), np.isfinite(reach).sum()
    p_far = math.comb(2 * count - far.sum(), count) / math.comb(
        2 * count, count
    )  # so many in front, of both together
    more = np.array(
        [(a - u)[w].mean() for a, u, w in zip(across, upright, wide, strict=True) if w.any()]
    )
    p, p_less = evidence.by_signs(more)
    lines = [
        f"left-right more than up-down: {significance(p)}; heads whose two highest columns are "
        f"each other's mirror image: {pairs[0]}; two highest rows: {pairs[1]}; heads that reach "
        f"farther than any did before training: {far.sum()}, {significance(p_far)}",
        f"heads that are not local: {by_layer(wide.sum(1), 'd')}",
        "correlation of their profiles with the mirror image, mean: left-right "
        f"{across[wide].mean():.2f}, up-down {upright[wide].mean():.2f}",
        f"left-right less up-down: {listed(more, '.2f')} in layers {numbered(wide.any(1))} "
        f"(the least p that so many layers allow: {2.0 ** -len(more):.2g})",
        f"heads that reach farther than {np.nanmax(reach_before):.1f} pixels: {by_layer(far, 'd')}",
    ]
    return (
        True if max(p, p_far) < LEVEL and pairs[0] > pairs[1] else False if p_less < LEVEL else None
    ), lines


@of_every_seed
def constant_shift(run: Run) -> Verdict:
    """Do heads of layers 2 and 3 look at pixels at a fixed shift, and follow the query?"""
    moved, same = run.attention["halves"]
    kept, shifts = evidence.following(run)
    lines = [
        f"heads with a peak that follows the query: {by_layer(kept.sum(1), 'd', kept.shape[1])}"
    ]
    if len(kept) < 3:
        return None, [*lines, "the network has no layer 3"]
    for layer, head in np.argwhere(kept[1:3]) + (1, 0):
        lines += [
            f"head {head + 1} of layer {layer + 1}: shift ({listed(shifts[layer, head], 'd')}); "
            f"agreement of two halves of the images {same[layer, head]:.2f}, with the query moved "
            f"{moved[layer, head]:.2f}"
        ]
    different = [len(of_layer) for of_layer in evidence.distinct(shifts[1:3], kept[1:3])]
    return (True if min(different) > 1 else False if max(different) == 0 else None), lines


@of_every_seed
def content_use(run: Run) -> Verdict:
    """Does content decide more in heads that do not follow the query than in those that do, in
    their own layer?
    """
    fixed, questions, content = run.attention["shares"]
    kept, _ = evidence.following(run)
    lines = [
        "of what makes scores vary, the same for every image and query: "
        f"{by_layer(np.nanmean(fixed, axis=1), '.0%')}",
        f"with what the query holds: {by_layer(np.nanmean(questions, axis=1), '.0%')}",
        f"comparison of contents: {by_layer(np.nanmean(content, axis=1), '.0%')}",
    ]
    decided = content + questions  # the query's content decides on the second part
    if kept.any() and not kept.all():
        lines += [
            "what content decides, over all layers: of heads that follow the query "
            f"{np.nanmean(decided[kept]):.0%}, of others {np.nanmean(decided[~kept]):.0%} (layers "
            "differ anyway, so this does not decide)"
        ]
    mixed = (
        kept.any(1) & ~kept.all(1) & np.isfinite(decided).all(1)
    )  # not where a layer has fewer heads than others
    if not mixed.any():
        return None, ["no layer has both heads that follow the query and others", *lines]
    follow, random = kept[mixed], np.random.default_rng(0)
    shuffled = np.stack(
        [follow, *(random.permuted(follow, axis=1) for _ in range(DRAWS))]
    )  # (1 + DRAWS, L, h)
    theirs, others = evidence.by_kind(decided[mixed], shuffled)
    more = others - theirs
    p, p_less = evidence.by_chance(more, more[0])
    alone = np.diff(evidence.by_kind(content[mixed], shuffled), axis=0)[0]
    lines = [
        f"heads that follow the query: {by_layer(kept.sum(1), 'd')}; where both kinds are, what "
        f"content decides of theirs {theirs[0]:.0%}, of the others' {others[0]:.0%}; "
        f"{significance(p)}",
        *lines,
        "a second look, which does not decide: of a comparison of contents alone "
        + significance(evidence.by_chance(alone, alone[0])[0]),
    ]
    return (True if p < LEVEL else False if p_less < LEVEL else None), lines


@of_every_seed
def free_start(run: Run) -> Verdict:
    """Did layer 1 of a learned model become a convolution?"""
    if not run.swaps:
        return None, [NOT_MEASURED]
    small = evidence.small_convolutions(run)
    lines = small.lines + [
        evidence.as_convolution(0, size, *errors)
        for size, *errors in zip(run.swaps["sizes"], *run.swaps["error"][:, 0], strict=True)
        if 1 < size <= evidence.SMALL
    ]
    return (
        True if small.nearer(0.5)[0] else None if small.fine[0] or small.unsure[0] else False
    ), lines


def hybrid(made: Sequence[Run], control: Sequence[Run], first: Sequence[Run]) -> Placed:
    """``control``: the attention network, trained on for as long; ``first``: that network before
    it was trained on.
    """
    holds, lines, words = _ahead(made, control, evidence.POINTS)
    if not (made and control and first):
        return None, lines, ""
    lines += (
        ["less accurate beyond chance; a point is allowed"]
        if results.ahead(control, made)[0]
        else []
    )
    lines += [
        "against the attention network before either was trained on: "
        f"{results.ahead(made, first)[1]}"
    ]
    own, other = cost(made[0].model), cost(control[0].model)
    ratios = own.parameters / other.parameters, own.separable / other.separable
    return holds, [*lines, f"parameters × {ratios[0]:.2f}, FLOPs × {ratios[1]:.2f}"], words


def _ahead(better: Sequence[Run], worse: Sequence[Run], margin: float = 0.0) -> Placed:
    """As `results.ahead`; undecided where a longer training may be the reason."""
    if not (better and worse):
        return None, [NOT_TRAINED], ""
    holds, words = results.ahead(better, worse, margin)
    images = better[0].config["data"]["test_images"]
    lines = [
        f"test accuracy {words}",
        f"{images:,} test images of {better[0].data_title}, seeds: {len(better)} and {len(worse)}",
    ]
    epochs = better[0].train.epochs, worse[0].train.epochs
    if epochs[0] != epochs[1]:
        shared = min(epochs)
        a, b = (100 * results.curves(runs)[:, shared - 1].mean() for runs in (better, worse))
        lines += [
            f"trained for {epochs[0]} and {epochs[1]} epochs; after {shared} of them {a:.1f}% "
            f"against {b:.1f}%"
        ]
        lead, error = a - b + margin, math.sqrt((a * (100 - a) + b * (100 - b)) / images)
        holds = holds if holds == (lead > 0) and abs(lead) > 2 * error else None
    lines += evidence.different_rates(better[0], worse[0])
    return holds, lines, results.rests_on(holds, better, worse, margin)


quadratic_ahead = content_lower = _ahead  # who should be ahead comes first
matches_resnet = partial(_ahead, margin=2.0)


def content_harder(learned: Sequence[Run], content: Sequence[Run]) -> Placed:
    """By the training loss at the end, where all rates have fallen to zero; for trainings of one
    length.
    """
    if not (learned and content):
        return None, [NOT_TRAINED], ""
    ends = [pd.DataFrame([run.metrics[-1] for run in runs]) for runs in (content, learned)]
    losses, accuracies = (
        [end[name].mean() for end in ends] for name in ("train_loss", "train_accuracy")
    )
    gap, seeds = losses[0] - losses[1], min(map(len, ends))
    noise = results.loss_noise(content, learned)
    recipes = content[0].train, learned[0].train
    rates = [
        f"{one.lr:g} of the weights, {one.encoding_lr or one.rest_lr:g} of the encoding"
        for one in recipes
    ]
    lines = [
        f"training loss at the end {losses[0]:.3f} with content, {losses[1]:.3f} without; noise "
        f"{noise:.3f}{'' if seeds > 1 else ', as short runs spread'}; seeds: {len(content)} and "
        f"{len(learned)}",
        f"training accuracy at the end {accuracies[0]:.1%} and {accuracies[1]:.1%}",
        f"learning rates with content {rates[0]}; without {rates[1]}; "
        f"epochs {recipes[0].epochs} and {recipes[1].epochs}",
    ]
    slower = recipes[0].lr / recipes[1].lr
    where = f"at {slower:g} times the learning rate" * (slower < 1)
    return (
        (None if recipes[0].epochs != recipes[1].epochs or abs(gap) <= noise else bool(gap > 0)),
        lines,
        where,
    )


def more_than_snapping(taps: NDArray, snapped: NDArray) -> Verdict:
    """Taps covered after training and by snapping before it, of the same seeds: (seeds,) each."""
    gain = taps - snapped
    lines = [
        f"taps covered {taps.mean():.1f}, by snapping alone {snapped.mean():.1f}; seeds: "
        f"{len(gain)}"
    ]
    if len(gain) < 2:
        return None, [*lines, "a single seed, so the noise is not known"]
    error = gain.std(ddof=1) / math.sqrt(len(gain))
    asked = results.surely(len(gain) - 1)
    lines += [
        f"difference {gain.mean():+.1f}, standard error {error:.1f}; {asked:.1f} standard errors "
        "are needed"
    ]
    sure = error > 0 and abs(gain.mean()) > asked * error
    return (bool(gain.mean() > 0) if sure else None), lines


def convolution_start(
    taps: Mapping[int, Sequence[Run]],
    paper: Mapping[int, Sequence[Run]],
    others: Mapping[str, Mapping[int, Sequence[Run]]],
) -> Verdict:
    """Runs from two starts, and from others by name, by the number of their training images; the
    fewest decide.
    """
    fewest = min(taps)
    pairs = {f"{images:,} images": (taps[images], paper[images]) for images in sorted(taps)}
    pairs |= {
        f"{fewest:,} images, against {name}": (taps[fewest], runs[fewest])
        for name, runs in others.items()
    }
    found = {which: results.ahead(*pair) for which, pair in pairs.items()}
    chance = {
        True: "; ahead, beyond chance",
        False: "; behind, beyond chance",
        None: "; within the noise",
    }
    seeds = len(taps[fewest])
    lines = [
        f"{which}: {words}{chance[ahead] * (seeds > 1)}" for which, (ahead, words) in found.items()
    ]
    if seeds < 2:
        return None, [*lines, "a single seed, so the noise is not known"]
    return found[f"{fewest:,} images"][0], [*lines, f"seeds: {seeds}"]
