"""Pictures beside verdicts: what was counted or measured, and what it is held against."""

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import ArrayLike, NDArray
from seaborn import color_palette

from companion.figures import style
from companion.figures.style import (
    DASHED,
    DOTTED,
    DOUBLE,
    PALETTE,
    SINGLE,
    Look,
    array,
    legend_below,
    styled,
)

_BETTER, _ALIKE, _WORSE = PALETTE[2], "#4d4d4d", PALETTE[3]


def _draw_moves(
    ax: Axes, before: NDArray, after: NDArray, kinds: Mapping[str, tuple[str, NDArray]]
) -> None:
    """An arrow from each place (x and y, n) before training, hollow, to that after it, filled;
    in its kind's colour.
    """
    look: Look = {"s": 10, "linewidths": 0.8, "zorder": 3, "clip_on": False}
    arrow: Look = {
        "angles": "xy",
        "scale_units": "xy",
        "scale": 1,
        "units": "inches",
        "width": 0.9 / 72,
    }
    ax.scatter([], [], facecolors="white", edgecolors=_ALIKE, label="before training", **look)
    for name, (colour, which) in kinds.items():
        ax.quiver(
            *before[:, which],
            *(after - before)[:, which],
            color=colour,
            headlength=9,
            headaxislength=9,
            **arrow,
        )
        ax.scatter(*before[:, which], facecolors="white", edgecolors=colour, **look)
        ax.scatter(*after[:, which], color=colour, label=f"after: {name}", **look)


@styled
def error_before_and_after(errors: Mapping[str, ArrayLike]) -> Figure:
    """Relative errors of 3 x 3 convolutions in layers' places, before training and after: ``{model:
    (2, layers)}``, or of several seeds (seeds, 2, layers), which stand beside each other."""
    figure, axes = style.panels(
        list(errors), 1.6, "Layer", "Relative error as a\n3 × 3 convolution"
    )
    for ax, values in zip(axes, errors.values(), strict=True):
        layers = np.arange(1, np.shape(values)[-1] + 1)
        before, after = np.moveaxis(
            np.reshape(values, (-1, 2, len(layers))), 1, 0
        )  # (seeds, layers) each
        beside = (layers + 0.2 * (np.arange(len(before)) - (len(before) - 1) / 2)[:, None]).ravel()
        before, after = before.ravel(), after.ravel()
        kinds = {"smaller": (_BETTER, after < before), "larger": (_WORSE, after >= before)}
        if (known := np.isfinite(before)).any():
            _draw_moves(ax, np.stack([beside, before]), np.stack([beside, after]), kinds)
        if not known.all():  # a run that goes on from another one
            look: Look = {"s": 10, "color": _ALIKE, "zorder": 3, "clip_on": False}
            ax.scatter(beside[~known], after[~known], label="after (before: not measured)", **look)
        ax.axhline(
            1, color="0.5", linewidth=0.8, linestyle=DOTTED, zorder=1, label="the constant alone"
        )
        ax.set(xticks=layers, xlim=(0.5, len(layers) + 0.5))
        if (seeds := before.size // len(layers)) > 1:
            ax.set_title(f"{ax.get_title()}, {seeds} seeds")
    axes[0].set_ylim(0, max(1.1, axes[0].get_ylim()[1]))  # of all panels
    legend_below(figure)
    return figure


@styled
def taps_and_chance(covered: Mapping[str, ArrayLike], by_chance: ArrayLike, taps: int) -> Figure:
    """Taps that each layer covers, over the distribution by chance: ``{when: (layers,)}`` and
    (draws,), of so many.

    A number is a layer; those that cover as many stand beside each other, "1–6" if they follow on
    each other."""
    figure = style.new_figure(SINGLE, 1.7 + 0.25 * len(covered))
    ax = figure.add_subplot(xlabel=f"Taps covered, of {taps}", ylabel="Fresh layers,\nsnapped (%)")
    share = 100 * np.bincount(np.asarray(by_chance), minlength=taps + 1) / np.size(by_chance)
    ax.bar(range(taps + 1), share, 0.9, color="0.85")
    ax.set(xlim=(-0.6, taps + 0.6), xticks=range(0, taps + 1, 1 if taps < 12 else 2))
    top = share.max()
    for row, (when, counts) in enumerate(reversed(list(covered.items())), 1):
        height = top * (1 + 0.16 * row)
        ax.text(
            -0.08,
            height,
            when,
            ha="right",
            va="center",
            transform=ax.get_yaxis_transform(),
            color=PALETTE[0],
        )
        for count in np.unique(counts):
            alike = 1 + np.flatnonzero(np.asarray(counts) == count)
            run = len(alike) > 2 and len(alike) == alike[-1] - alike[0] + 1
            layers = f"{alike[0]}–{alike[-1]}" if run else " ".join(map(str, alike))
            ax.text(
                count, height, layers, ha="center", va="center", color=PALETTE[0], fontweight="bold"
            )
    ax.set_ylim(0, top * (1 + 0.16 * (len(covered) + 0.8)))
    ax.set_yticks([tick for tick in ax.get_yticks() if tick <= top])
    return figure


@styled
def taps_gained(runs: pd.DataFrame, by_chance: Mapping[tuple[str, str], ArrayLike]) -> Figure:
    """Taps of a 3 x 3 kernel before training and after it, a line a run: a row for each level of
    each factor.

    ``runs`` has a row for each run and layer: ``factor``, ``level``, ``seed``, ``layer``, taps
    ``before`` and
    ``after``, and ``accuracy`` (%). ``by_chance``: for each (factor, level) the taps that fresh
    layers cover whose heads snap, (draws,): the more of them have a count, the darker it is."""
    levels, layers = list(by_chance), sorted(runs["layer"].unique())
    row, seed = (
        runs.set_index(["factor", "level"]).index.map(levels.index),
        runs["seed"].rank(method="dense"),
    )
    runs = runs.assign(
        y=row + 0.22 * (seed - (1 + seed.max()) / 2)
    )  # seeds of a level beside each other
    shares = [
        np.bincount(counts, minlength=10) / len(counts)
        for counts in map(np.asarray, by_chance.values())
    ]
    figure = style.new_figure(DOUBLE, 0.8 + 0.21 * len(levels))
    axes = figure.subplots(1, len(layers) + 1, sharey=True, width_ratios=[2] * len(layers) + [1.1])
    for ax, layer in zip(axes, layers, strict=False):
        before, after, y = (
            runs.loc[runs["layer"] == layer, ["before", "after", "y"]].to_numpy(float).T
        )
        ax.pcolormesh(
            range(10), range(len(levels)), shares, cmap="Greys", vmin=0, vmax=1.6, shading="nearest"
        )
        kinds = {"more taps": (_BETTER, after > before), "fewer": (_WORSE, after < before)}
        kinds["as many"] = _ALIKE, after == before
        _draw_moves(ax, np.stack([before, y]), np.stack([after, y]), kinds)
        ax.set(
            title=f"Layer {layer}", xlabel="Taps covered, of 9", xticks=range(10), xlim=(-0.5, 9.5)
        )
    own = runs[runs["layer"] == layers[0]]
    axes[-1].scatter(own["accuracy"], own["y"], 9, PALETTE[0], marker="D")
    axes[-1].set(title="Accuracy", xlabel="Test accuracy (%)")
    for place, ((factor, _), (other, _)) in enumerate(itertools.pairwise(levels)):
        for ax in axes if factor != other else ():
            ax.axhline(place + 0.5, color="0.3", linewidth=0.5)
    axes[0].set_yticks(range(len(levels)), [": ".join(level) for level in levels])
    axes[0].invert_yaxis()
    marks, _ = axes[0].get_legend_handles_labels()
    legend_below(
        figure,
        [*marks, Patch(color="0.8", label="fresh layers whose heads snap (darker: more often)")],
    )
    return figure


@styled
def agreement_and_ceiling(moved: ArrayLike, same: ArrayLike, following: ArrayLike) -> Figure:
    """How far heads follow the query, over how far images agree at all: (layers, heads) each, in
    [0, 1].

    On the line a head's pattern moves with the query as well as two halves of the images agree
    without moving. Filled marks are heads that are ``following`` the query
    (`analysis.evidence.following`)."""
    moved, same = array(moved, "moved (layers, heads)"), array(same, "same (layers, heads)")
    figure = style.new_figure(SINGLE, 3.3)
    ax = figure.add_subplot()
    for layer, colour in enumerate(color_palette("viridis", len(moved))):
        for which, face in (
            (np.asarray(following)[layer], colour),
            (~np.asarray(following)[layer], "none"),
        ):
            look: Look = {
                "s": 18,
                "edgecolors": [colour],
                "linewidths": 0.9,
                "zorder": 3,
                "clip_on": False,
            }
            name = None if face is colour else f"Layer {layer + 1}"
            ax.scatter(
                same[layer, which], moved[layer, which], facecolors=[face], label=name, **look
            )
    ax.scatter(
        [], [], color="0.3", label="follows the query"
    )  # a longer name would leave the legend one column
    low = 0.05 * np.floor(20 * np.nanmin([moved, same]))
    ax.plot([low, 1], [low, 1], color="0.3", linewidth=0.9, label="as images agree")
    ax.plot(
        [low / 0.9, 1],
        [low, 0.9],
        color="0.3",
        linewidth=0.9,
        linestyle=DASHED,
        label="nine tenths of it",
    )
    words = "Agreement of two halves\nof the images"
    ax.set(xlabel=f"{words}, same query", ylabel=f"{words}, query moved")
    ax.set(xlim=(low, 1), ylim=(low, 1), aspect="equal")
    legend_below(figure)
    return figure


@styled
def score_shares(shares: ArrayLike, following: ArrayLike) -> Figure:
    """What makes the scores of content heads vary, in three parts (3, layers, heads): a panel a
    layer, a bar a head.

    The parts are those of `heads.score_shares`. Heads are ordered by the first; the numbers of
    those that are ``following`` the query (`analysis.evidence.following`) are bold and framed."""
    shares = array(shares, "shares (3, layers, heads)")
    parts = [
        "the same for every image and query",
        "with what the query holds",
        "comparison of contents",
    ]
    figure = style.new_figure(DOUBLE, 2.3)
    axes = figure.subplots(1, shares.shape[1], sharey=True, squeeze=False)[0]
    for layer, ax in enumerate(axes):
        heads = pd.DataFrame(100 * shares[:, layer].T, columns=parts).sort_values(
            parts[0], ascending=False
        )
        look: Look = {"width": 0.86, "color": [PALETTE[0], PALETTE[6], PALETTE[1]], "legend": False}
        heads.plot.bar(stacked=True, ax=ax, xlabel="Head", title=f"Layer {layer + 1}", **look)
        ax.set_xticks(range(len(heads)), heads.index + 1, fontsize=6.5, rotation=0)
        ax.tick_params(axis="x", length=0)
        for label, head in zip(ax.get_xticklabels(), heads.index, strict=True):
            if np.asarray(following)[layer, head]:
                label.set(weight="bold", bbox={"boxstyle": "square,pad=0.12", "fill": False})
        ax.grid(axis="y")
    axes[0].set(ylabel="Variance of the scores (%)")
    legend_below(
        figure, [*axes[0].containers, Patch(fill=False, label="framed: follows the query")]
    )
    return figure
