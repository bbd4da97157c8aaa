"""Pictures beside verdicts: what was counted, and what it is held against."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import seaborn
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from attnconv.figures import style
from attnconv.figures.style import DASHED, DOUBLE, PALETTE, SINGLE, Look, array, entry, styled

_MORE, _AS_MANY, _FEWER = PALETTE[2], "#4d4d4d", PALETTE[3]


@styled
def taps_and_chance(covered: Mapping[str, ArrayLike], by_chance: ArrayLike, taps: int) -> Figure:
    """Taps that each layer covers, over the distribution by chance: ``{when: (layers,)}`` and (draws,), of so many.

    A number is a layer; those that cover as many stand beside each other, "1–6" if they follow on each other.
    """
    figure = style.new_figure(SINGLE, 1.7 + 0.25 * len(covered))
    ax = figure.add_subplot()
    share = 100 * np.bincount(np.asarray(by_chance), minlength=taps + 1) / np.size(by_chance)
    ax.bar(np.arange(taps + 1), share, 0.9, color="0.85")
    ax.set(xlabel=f"Taps covered, of {taps}", ylabel="Fresh layers,\nsnapped (%)", xlim=(-0.6, taps + 0.6))
    ax.set_xticks(np.arange(0, taps + 1, 1 if taps < 12 else 2))
    top = share.max()
    for row, (when, counts) in enumerate(reversed(list(covered.items())), 1):
        height = top * (1 + 0.16 * row)
        ax.text(-0.08, height, when, ha="right", va="center", transform=ax.get_yaxis_transform(), color=PALETTE[0])
        for count in np.unique(counts):
            alike = 1 + np.flatnonzero(np.asarray(counts) == count)
            run = len(alike) > 2 and len(alike) == alike[-1] - alike[0] + 1
            layers = f"{alike[0]}–{alike[-1]}" if run else " ".join(map(str, alike))
            ax.text(count, height, layers, ha="center", va="center", color=PALETTE[0], fontweight="bold")
    ax.set_ylim(0, top * (1 + 0.16 * (len(covered) + 0.8)))
    ax.set_yticks([tick for tick in ax.get_yticks() if tick <= top])
    return figure


@styled
def taps_gained(runs: pd.DataFrame, by_chance: Mapping[tuple[str, str], ArrayLike]) -> Figure:
    """Taps of a 3 x 3 kernel before training and after it, a line a run: a row for each level of each factor.

    ``runs`` has a row for each run and layer, with columns ``factor``, ``level``, ``seed``, ``layer``, taps ``before``
    and ``after``, and ``accuracy`` (%), which the last panel shows. ``by_chance``: for each (factor, level) the taps
    that fresh layers cover whose heads snap, (draws,). The more of them have a count, the darker it is.
    """
    levels, layers = list(by_chance), sorted(runs["layer"].unique())
    row, seed = runs.set_index(["factor", "level"]).index.map(levels.index), runs["seed"].rank(method="dense")
    runs = runs.assign(y=row + 0.22 * (seed - (1 + seed.max()) / 2))  # seeds of a level beside each other
    shares = [np.bincount(counts, minlength=10) / len(counts) for counts in map(np.asarray, by_chance.values())]
    figure = style.new_figure(DOUBLE, 0.8 + 0.21 * len(levels))
    axes = figure.subplots(1, len(layers) + 1, sharey=True, width_ratios=[2] * len(layers) + [1.1])
    look: Look = {"s": 9, "linewidths": 0.8, "zorder": 3, "clip_on": False}
    for ax, layer in zip(axes, layers, strict=False):
        own = runs[runs["layer"] == layer]
        change = np.sign(own["after"] - own["before"]).astype(int)
        colours = np.array([_FEWER, _AS_MANY, _MORE])[1 + change]
        ax.pcolormesh(range(10), range(len(levels)), shares, cmap="Greys", vmin=0, vmax=1.6, shading="nearest")
        ax.hlines(own["y"], own["before"], own["after"], colours, linewidth=0.9)
        ax.scatter(own["before"], own["y"], facecolors="white", edgecolors=colours, **look)
        ax.scatter(own["after"], own["y"], color=colours, **look)
        ax.set(title=f"Layer {layer}", xlabel="Taps covered, of 9", xticks=range(10), xlim=(-0.5, 9.5))
    own = runs[runs["layer"] == layers[0]]
    axes[-1].scatter(own["accuracy"], own["y"], marker="D", color=PALETTE[0], **look)
    axes[-1].set(title="Accuracy", xlabel="Test accuracy (%)")
    for ax in axes:
        for place in range(1, len(levels)):
            if levels[place][0] != levels[place - 1][0]:
                ax.axhline(place - 0.5, color="0.3", linewidth=0.5)
    axes[0].set_yticks(range(len(levels)), [": ".join(level) for level in levels])
    axes[0].invert_yaxis()
    mark: Look = {"linestyle": "none", "marker": "o", "color": _MORE}
    handles: list[Artist] = [entry("before training", markerfacecolor="white", **mark)]
    handles += [entry("after, more taps", **mark), entry("after, fewer", **mark | {"color": _FEWER})]
    handles += [entry("after, as many", **mark | {"color": _AS_MANY})]
    style.legend_below(figure, [*handles, Patch(color="0.8", label="fresh layers whose heads snap")], 3)
    return figure


@styled
def agreement_and_ceiling(moved: ArrayLike, same: ArrayLike, following: ArrayLike) -> Figure:
    """How far heads follow the query, over how far images agree at all: (layers, heads) each, in [0, 1].

    On the line a head's pattern moves with the query as well as two halves of the images agree without moving. Filled
    marks are heads that are ``following`` the query (`claims.following`).
    """
    moved, same = array(moved, "moved (layers, heads)"), array(same, "same (layers, heads)")
    figure = style.new_figure(SINGLE, 3.3)
    ax = figure.add_subplot()
    colours = seaborn.color_palette("flare", len(moved))
    for layer, colour in enumerate(colours):
        filled = np.asarray(following)[layer]
        look: Look = {"s": 18, "edgecolors": [colour], "linewidths": 0.9, "zorder": 3, "clip_on": False}
        ax.scatter(same[layer], moved[layer], facecolors=np.where(filled, 1, 0)[:, None] * [[*colour, 1]], **look)
    low = 0.05 * np.floor(20 * np.nanmin([moved, same]))
    line: Look = {"color": "0.3", "linewidth": 0.9}
    ax.plot([low, 1], [low, 1], **line)
    ax.plot([low / 0.9, 1], [low, 0.9], linestyle=DASHED, **line)
    ax.set(xlabel="Two halves of the images, same query", ylabel="Two halves of the images,\nquery moved")
    ax.set(xlim=(low, 1), ylim=(low, 1), aspect="equal")
    titles, dot = style.layer_titles(len(moved)), {"linestyle": "none", "marker": "o"}
    handles = [entry(title, color=colour, **dot) for title, colour in zip(titles, colours, strict=True)]
    handles += [entry("as well as images agree", **line), entry("nine tenths of it", linestyle=DASHED, **line)]
    handles += [entry("a peak that follows", color="0.3", **dot)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


@styled
def score_shares(shares: ArrayLike, following: ArrayLike) -> Figure:
    """What makes the scores of content heads vary, in three parts (3, layers, heads): a panel a layer, a bar a head.

    The parts are those of `heads.score_shares`. Heads are ordered by the first; the numbers of those that are
    ``following`` the query (`claims.following`) are bold and framed.
    """
    shares = array(shares, "shares (3, layers, heads)")
    layers = shares.shape[1]
    figure = style.new_figure(DOUBLE, 2.3)
    axes = figure.subplots(1, layers, sharey=True, squeeze=False)[0]
    names = ("the same for every image and query", "with what the query holds", "comparison of contents")
    colours = (PALETTE[0], PALETTE[6], PALETTE[1])
    titles = style.layer_titles(layers)
    for ax, title, parts, kept in zip(axes, titles, shares.swapaxes(0, 1), np.asarray(following), strict=True):
        order = np.argsort(-parts[0])
        parts = 100 * parts[:, order]
        starts = np.cumsum(parts, axis=0) - parts
        for name, part, start, colour in zip(names, parts, starts, colours, strict=True):
            ax.bar(np.arange(len(part)), part, 0.86, start, color=colour, label=name)
        ax.set(title=title, xlabel="Head")
        ax.set_xticks(range(len(order)), order + 1, fontsize=6.5)
        ax.tick_params(axis="x", length=0)
        for label, head in zip(ax.get_xticklabels(), order, strict=True):
            label.set(weight="bold", bbox={"boxstyle": "square,pad=0.12", "fill": False}) if kept[head] else None
        ax.grid(axis="y")
    axes[0].set(ylabel="Variance of the scores (%)")
    style.legend_below(figure, axes[0].containers, 3)
    return figure
