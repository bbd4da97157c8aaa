"""Lines, points and tables of numbers: what layers do over training and depth, and costs."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from companion.figures import style
from companion.figures.style import DASHED, DOTTED, PALETTE, Look, legend_below, styled

Curves = Mapping[str, tuple[Sequence[float] | NDArray, ArrayLike]]  # {name: (x (n,), y (n,))}
_BETTER, _ALIKE, _WORSE = PALETTE[2], "#4d4d4d", PALETTE[3]


@styled
def lines(
    panels: Mapping[str, Curves],
    xlabel: str,
    ylabel: str = "",
    levels: Mapping[str, float] | None = None,
    log: bool = False,
    colours: Sequence = PALETTE,
) -> Figure:
    """Curves in one or more panels: ``{title: {name: (x (n,), y (n,))}}``, each panel with the same
    colours in order.

    The vertical axis begins at 0 or below or, with ``log``, over three decades; panels share it if
    it has a ``ylabel``. ``levels``: up to two values by name, drawn across every panel."""
    figure, axes = style.panels(list(panels), 1.75, xlabel, ylabel)
    for ax, curves in zip(axes, panels.values(), strict=True):
        for (name, (x, y)), colour in zip(curves.items(), colours, strict=False):
            ax.plot(x, y, color=colour, label=name, marker="o" if len(x) == 1 else None)
        for (name, level), dashes in zip((levels or {}).items(), (DASHED, DOTTED), strict=False):
            ax.axhline(level, color="0.4", linewidth=0.8, linestyle=dashes, label=name, zorder=1)
        drawn = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
        lowest, highest = np.nanmin(drawn), np.nanmax(drawn)
        if log:
            ax.set_yscale("log")
            ax.set_ylim(highest / 1000, 2 * highest)
        elif lowest < 0:
            ax.axhline(0, color="0.4", linewidth=0.8, zorder=1)
        else:
            ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    handles = max((ax.get_legend_handles_labels()[0] for ax in axes), key=len)
    if len(handles) > 1:
        legend_below(figure, handles)
    return figure


@styled
def points_lost(table: pd.DataFrame, layers: str = "alone") -> Figure:
    """Points of accuracy lost where layers become convolutions, in numbers: a panel a model, a row
    a kernel, a column a layer.

    ``table`` as of `results.swap_table`; of its networks those with one such layer, "alone", or
    those whose first ``layers`` are convolutions, "up to" each. Of several seeds, the mean. Less
    than a point is bold."""
    table = table[table["layers"] == layers]
    kinds = {"read": "", "fitted": ", fitted", "shuffled": ", shuffled"}
    table = table.assign(order=table["how"].map([*kinds].index))
    rows = table[["order", "how", "kernel"]].drop_duplicates().sort_values(["order", "kernel"])
    rows = rows.set_index(["how", "kernel"]).index
    names = [f"{side} × {side}{kinds[how]}" for how, side in rows]
    xlabel = "Layer that is a convolution" if layers == "alone" else "Layers that are convolutions"
    models = list(table["model"].unique())
    figure, axes = style.panels(models, 0.45 + 0.21 * len(rows), xlabel, "Kernel")
    for ax, model in zip(axes, models, strict=True):
        own = table[table["model"] == model].assign(lost=lambda each: -each["difference"])
        lost = own.pivot_table(index=["how", "kernel"], columns="layer", values="lost")
        lost = lost.reindex(rows)
        words = lost.round(1).add(0.0).map("{:.1f}".format)  # no −0.0
        words = words.replace("-", "−", regex=True)
        scale = SymLogNorm(1, vmin=-0.2, vmax=100)
        look: Look = {"cmap": style.MAP_COLOURS, "norm": scale, "cbar": False, "linewidths": 1}
        seaborn.heatmap(lost, annot=words, fmt="", annot_kws={"size": 7}, ax=ax, **look)
        small = lost.to_numpy()[lost.notna()] < 1
        for text, bold in zip(ax.texts, small, strict=True):
            text.set_fontweight("bold" if bold else "normal")
        ticks = [str(n) if layers == "alone" or n == 1 else f"1–{n}" for n in lost.columns]
        ax.set_xticklabels(ticks)
        ax.set_yticklabels(names, rotation=0)
        ax.tick_params(length=0)
        ax.grid(False)
        seeds = own["seed"].nunique()
        several = f", {seeds} seeds" if seeds > 1 else ""
        ax.set_title(f"{model}\naccuracy {own['whole'].mean():.2f}%{several}")
        ax.set(xlabel=xlabel if ax.get_xlabel() else "", ylabel="")
    return figure


@styled
def error_before_and_after(errors: Mapping[str, ArrayLike]) -> Figure:
    """Relative errors of 3 x 3 convolutions in layers' places, before training and after, an arrow
    a layer: ``{model: (2, layers)}``, or of several seeds (seeds, 2, layers), which stand beside
    each other."""
    named = "Relative error as a\n3 × 3 convolution"
    figure, axes = style.panels(list(errors), 1.6, "Layer", named)
    dot: Look = {"s": 10, "linewidths": 0.8, "zorder": 3, "clip_on": False}
    arrow: Look = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "inches"}
    arrow |= {"width": 0.9 / 72, "headlength": 9, "headaxislength": 9}
    for ax, values in zip(axes, errors.values(), strict=True):
        layers = np.arange(1, np.shape(values)[-1] + 1)
        before, after = np.moveaxis(np.reshape(values, (-1, 2, len(layers))), 1, 0)
        seeds = len(before)
        aside = 0.2 * (np.arange(seeds) - (seeds - 1) / 2)
        x = layers + aside[:, None]  # (seeds, layers), as before and after
        ax.scatter([], [], facecolors="white", edgecolors=_ALIKE, label="before training", **dot)
        kinds = {"smaller": (_BETTER, after < before), "larger": (_WORSE, after >= before)}
        for name, (colour, which) in kinds.items():
            places, start, end = x[which], before[which], after[which]
            ax.quiver(places, start, 0 * places, end - start, color=colour, **arrow)
            ax.scatter(places, start, facecolors="white", edgecolors=colour, **dot)
            ax.scatter(places, end, color=colour, label=f"after: {name}", **dot)
        unknown = np.isnan(before)
        if unknown.any():  # a run that goes on from another one
            label = "after (before: not measured)"
            ax.scatter(x[unknown], after[unknown], color=_ALIKE, label=label, **dot)
        look: Look = {"color": "0.5", "linewidth": 0.8, "linestyle": DOTTED, "zorder": 1}
        ax.axhline(1, label="the constant alone", **look)
        ax.set(xticks=layers, xlim=(0.5, len(layers) + 0.5))
        if seeds > 1:
            ax.set_title(f"{ax.get_title()}, {seeds} seeds")
    axes[0].set_ylim(0, max(1.1, axes[0].get_ylim()[1]))  # of all panels
    legend_below(figure)
    return figure
