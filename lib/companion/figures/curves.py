"""Curves and bars: accuracy, what layers do over training and depth, and costs."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from companion.figures import style
from companion.figures.style import (
    DASHED,
    DOTTED,
    DOUBLE,
    PALETTE,
    Look,
    array,
    legend_below,
    styled,
)

Curves = Mapping[str, tuple[Sequence[float] | NDArray, ArrayLike]]  # {name: (x (n,), y (n,))}
_MARKS = "osD^vPX<>"


@styled
def accuracy_curves(curves: Mapping[str, ArrayLike], published: Mapping[str, float]) -> Figure:
    """Test accuracy over epochs and at the end, a colour a model (figure 2): ``{title: (seeds,
    epochs)}``, in [0, 1].

    Left, a panel for each length of training: a line is the mean over seeds, its band runs from the
    worst to the best. NaN marks epochs that a seed has not seen. Then a row a model, the longest
    trainings first, of these the best: its last epoch, with a bar over seeds. Right, the accuracy
    in [0, 1] that was ``published`` of some of them."""
    tables = {
        title: pd.DataFrame(100 * array(seeds, f"{title} (seeds, epochs)"))
        for title, seeds in curves.items()
    }
    frame = pd.concat(tables, names=["model"]).rename(
        columns=lambda column: column + 1
    )  # epochs count from 1
    frame = (
        frame.melt(var_name="epoch", value_name="percent", ignore_index=False)
        .dropna()
        .reset_index("model")
    )
    frame["epochs"] = frame.groupby("model")["epoch"].transform("max")
    lengths, colours = sorted(set(frame["epochs"]), reverse=True), style.model_colours(curves)
    last = frame[frame["epoch"] == frame["epochs"]].groupby(["model", "epochs"])["percent"]
    ends = (
        last.agg(["mean", "min", "max"]).reset_index("epochs").sort_values(["epochs", "mean"])
    )  # from the bottom up
    figure = style.new_figure(DOUBLE, max(2.1, 0.9 + 0.26 * len(ends)))
    widths = [2.2 * max(length / lengths[0], 0.22) for length in lengths] + [1] * (
        2 if published else 1
    )
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    for ax, length in zip(axes, lengths, strict=False):
        look: Look = {
            "palette": colours,
            "errorbar": ("pi", 100),
            "err_kws": {"linewidth": 0},
            "legend": False,
        }
        look["marker"] = "o" if length == 1 else None
        seaborn.lineplot(
            frame[frame["epochs"] == length], x="epoch", y="percent", hue="model", ax=ax, **look
        )
        ax.set(
            title=f"{length} epoch{'s' if length > 1 else ''}",
            xlabel="Epoch",
            ylabel="Test accuracy (%)",
        )
        ax.set_ylim(frame["percent"].min() - 2, frame["percent"].max() + 2)
        ax.xaxis.set_major_locator(
            MaxNLocator(max(1, 6 * length // lengths[0]), integer=True, steps=[1, 2, 5, 10])
        )
        ax.label_outer()
        ax.grid(axis="y")
    dots = axes[len(lengths) :]
    for ax in dots[1:]:
        ax.sharex(dots[0])  # what was published can be held against what was reached
    dots[0].hlines(
        range(len(ends)),
        ends["min"],
        ends["max"],
        [colours[t] for t in ends.index],
        linewidth=2,
        alpha=0.4,
    )
    for place, (title, mean) in enumerate(ends["mean"].items()):
        marks = [
            (mean, colours[title]),
            *([(100 * published[title], "white")] if title in published else []),
        ]
        for ax, (value, fill) in zip(dots, marks, strict=False):
            ax.plot(
                value,
                place,
                "o",
                color=colours[title],
                markerfacecolor=fill,
                markersize=4.5,
                label=title,
            )
            ax.annotate(
                f"{value:.1f}",
                (value, place),
                (0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=6.5,
            )
    for ax, heading in zip(dots, ("Last epoch (%)", "Published (%)"), strict=False):
        ax.set(title=heading, ylim=(-0.6, len(ends) - 0.4), yticks=range(len(ends)), yticklabels=[])
        ax.margins(x=0.3)
        ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        ax.grid(axis="y")
        for below in np.flatnonzero(
            np.diff(ends["epochs"])
        ):  # what was trained for as long stands together
            ax.axhline(below + 0.5, color="0.3", linewidth=0.5)
    dots[0].set_yticklabels([textwrap.fill(title, 19) for title in ends.index])
    return figure


@styled
def by_images(
    table: pd.DataFrame, ylabel: str = "", order: Sequence[str] = (), level: float | None = None
) -> Figure:
    """What came of networks that were trained on more and more images: a panel a measure or layer,
    a line a start.

    ``table`` has a row for each network and panel: ``panel``, ``start``, ``images``, ``seed`` and
    ``value``. Lines are means over seeds, bars run from the worst to the best. Starts stand a
    little beside each other; their ``order`` decides colours and marks. Panels share a vertical
    axis, from zero on, if it has a name. A dotted line is at
    ``level``, the constant alone.
    """
    titles, starts = list(table["panel"].unique()), list(order) or list(table["start"].unique())
    there = [
        start for start in starts if start in set(table["start"])
    ]  # of an order that names more
    beside = (1.05 if len(titles) < 3 else 1.12) ** (
        table["start"].map(there.index) - (len(there) - 1) / 2
    )
    table = table.assign(beside=table["images"] * beside)
    figure, axes = style.panels(titles, 2.2, "Training images", ylabel, DOUBLE)
    for ax, title in zip(axes, titles, strict=True):
        own = table[table["panel"] == title]
        for start, colour, mark in zip(
            starts, cycle([*PALETTE[:7], "0.3"]), cycle(_MARKS), strict=False
        ):
            if start in set(table["start"]):
                _means(
                    ax,
                    own[own["start"] == start],
                    "beside",
                    "value",
                    start,
                    color=colour,
                    marker=mark,
                    capsize=1.5,
                )
        if level is not None:
            ax.axhline(
                level,
                color="0.5",
                linewidth=0.8,
                linestyle=DOTTED,
                zorder=1,
                label="the constant alone",
            )
        images = sorted(own["images"].unique())
        ax.set_xscale("log")
        ax.set_xticks(images, [f"{n:,}" for n in images])
        ax.xaxis.minorticks_off()
    if ylabel:
        axes[0].set_ylim(
            np.multiply((-0.03, 1.05), table["value"].max())
        )  # marks at zero are whole
    legend_below(figure)
    return figure


def _means(ax: Axes, rows: pd.DataFrame, x: str, y: str, name: str, **look) -> None:
    """A line through the means at each x, with bars from the worst to the best."""
    found = rows.groupby(x)[y].agg(["mean", "min", "max"])
    _bars(ax, found.index, found.to_numpy(float).T, name, **look)


def _bars(ax: Axes, x: ArrayLike, values: ArrayLike, name: str, **look) -> None:
    """A line with a bar at each mark: ``values`` (3, n) are its heights, where bars begin, and
    where they end.
    """
    middle, low, high = np.asarray(values)
    line, *_ = ax.errorbar(
        np.asarray(x, float), middle, (middle - low, high - middle), elinewidth=0.8, **look
    )
    line.set_label(name)


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
    it has a ``ylabel``.
    ``levels``: up to two values by name, drawn across every panel.
    """
    figure, axes = style.panels(list(panels), 1.75, xlabel, ylabel)
    for ax, curves in zip(axes, panels.values(), strict=True):
        for (name, (x, y)), colour in zip(curves.items(), colours, strict=False):
            ax.plot(x, y, color=colour, label=name, marker="o" if len(x) == 1 else None)
        for (name, level), dashes in zip((levels or {}).items(), (DASHED, DOTTED), strict=False):
            ax.axhline(level, color="0.4", linewidth=0.8, linestyle=dashes, label=name, zorder=1)
        highest = max(np.nanmax(np.asarray(line.get_ydata()), initial=0) for line in ax.lines)
        ax.set_yscale("log" if log else "linear")
        lowest = min(
            0, 1.2 * min(np.nanmin(np.asarray(line.get_ydata()), initial=0) for line in ax.lines)
        )
        ax.set_ylim(
            (highest / 1000, 2 * highest)
            if log
            else (lowest, max(1.05 * highest, ax.get_ylim()[1]))
        )
        if lowest < 0:
            ax.axhline(0, color="0.4", linewidth=0.8, zorder=1)
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        last = max((np.max(x) for x, _ in curves.values()), default=0)  # no tick beyond it
        ax.set_xlim(right=min(ax.get_xlim()[1], last + 0.04 * np.ptp(ax.get_xlim())))
    handles = max((ax.get_legend_handles_labels()[0] for ax in axes), key=len)
    if len(handles) > 1:
        legend_below(figure, handles)
    return figure


@styled
def reach_over_training(reach: Mapping[str, NDArray], grid: tuple[int, int]) -> Figure:
    """How far each layer looks during training, a panel a model: ``{title: (epochs, layers)}``, in
    pixels.

    A layer's reach is the mean over its heads of the mean distance from the query
    (`heads.Description`). Two levels are those of a query in the middle of such an image: attention
    that is spread evenly, and the farthest pixel."""
    panels: dict[str, Curves] = {
        title: {
            f"_layer {n}": (range(len(values)), layer) for n, layer in enumerate(values.T, 1)
        }  # not in the legend
        for title, values in reach.items()
    }
    distance = np.hypot(*(np.indices(grid) - np.reshape(grid, (2, 1, 1)) // 2))
    levels = {"attention spread evenly": distance.mean(), "farthest pixel": distance.max()}
    colours = seaborn.color_palette("viridis", max(map(len, panels.values())))
    figure = lines(panels, "Epoch", "Mean reach of a layer (pixels)", levels, colours=colours)
    for ax, values in zip(figure.axes, reach.values(), strict=True):
        order = np.argsort(values[-1], kind="stable")[
            : np.isfinite(values[-1]).sum()
        ]  # not of layers without heads
        apart = np.flatnonzero(np.diff(values[-1, order]) > 0.065 * ax.get_ylim()[1]) + 1
        for layers in np.split(
            order, apart
        ):  # the numbers of lines that end together stand together
            where = 1.01, values[-1, layers].mean()
            look: Look = {
                "xycoords": ax.get_yaxis_transform(),
                "textcoords": "offset points",
                "fontsize": 6.5,
            }
            for place, layer in enumerate(
                layers[::-1]
            ):  # the highest line's first, each in its line's colour
                beside: Look = {"color": colours[layer], "weight": "bold", "va": "center"}
                ax.annotate(f"{layer + 1}", where, (2 + 7 * place, 0), **look, **beside)
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
    xlabel = "This layer is a convolution" if layers == "alone" else "Layers that are convolutions"
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
            text.set_weight("bold" if bold else "normal")
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
def points_lost_by_depth(table: pd.DataFrame, chance: float, layers: str = "up to") -> Figure:
    """What networks lose when layers become convolutions: a panel a model, a line for each size of
    kernel.

    ``table`` as of `results.swap_table`; of its networks those whose first ``layers`` are
    convolutions, "up to" each, or those with one such layer, "alone". The axis is linear up to a
    point, and logarithmic beyond. Bars run over seeds; the title says how many, and the network's
    accuracy. Lines across are the network as it is, one point, and ``chance`` (%)."""
    table = table[table["layers"] == layers].assign(lost=-table["difference"])
    models, alone = list(table["model"].unique()), layers == "alone"
    sizes = sorted(table.loc[table["how"] == "read", "kernel"].unique())
    crest = seaborn.color_palette("crest", len(sizes))
    # Marks of a layer stand beside each other, and bars of one depth.
    shifts = (0.13 if alone else 0.05) * (np.arange(len(sizes)) - (len(sizes) - 1) / 2)
    below = "Layer that is a convolution" if alone else "Layers that are convolutions"
    top = min(
        -0.6, 1.1 * table.loc[table["how"] != "fitted", "lost"].min()
    )  # of all panels, which share the axis
    lost = "Points of accuracy lost\n(linear to 1, then logarithmic)"
    figure, axes = style.panels(models, 2.0 if len(models) > 1 else 2.7, below, lost)
    for ax, model in zip(axes, models, strict=True):
        own = table[table["model"] == model]
        read, shuffled = own[own["how"] == "read"], own[own["how"] == "shuffled"]
        for kernel, shift, colour, mark in zip(sizes, shifts, crest, cycle("Xs^Dov"), strict=False):
            look: Look = {
                "color": colour,
                "marker": mark,
                "markeredgewidth": 0,
                "linestyle": "" if alone else "-",
            }
            of_size = read[read["kernel"] == kernel]
            _means(
                ax,
                of_size.assign(layer=of_size["layer"] + shift),
                "layer",
                "lost",
                f"{kernel} × {kernel}",
                **look,
            )
        if len(shuffled):
            look = {"color": "0.55", "linestyle": DASHED, "linewidth": 0.9}
            _means(ax, shuffled, "layer", "lost", "3 × 3, taps shuffled", **look)
        whole = own["whole"].mean()
        ax.axhline(0, color="black", linewidth=0.8, zorder=1, label="attention everywhere")
        ax.axhline(
            1, color="black", linewidth=0.8, zorder=1, linestyle=(0, (1, 3)), label="one point"
        )
        ax.axhline(
            whole - chance, color="0.5", linewidth=0.8, zorder=1, linestyle=DOTTED, label="chance"
        )
        depth = range(1, own["layer"].max() + 1)
        ax.set_xticks(depth, [f"{n}" if alone or n == 1 else f"1–{n}" for n in depth])
        ax.set_yscale("symlog", linthresh=1)
        ax.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"], minor=False)
        several = f", {n} seeds" if (n := own["seed"].nunique()) > 1 else ""
        ax.set(ylim=(110, top), title=f"{model}\naccuracy {whole:.2f}%{several}")
        ax.yaxis.minorticks_off()
    legend_below(figure)
    return figure


@styled
def cost_growth(curves: Curves, bounds: Curves | None = None, label: str = "Time (ms)") -> Figure:
    """How a cost grows with the side of the grid, on log-log axes.

    Each curve is (sides (G,), costs (G,) or (G, 3)): the median, the smallest and the largest,
    drawn as a bar. Each bound (sides (G,), costs (G,)) is dotted, its name at its end, in the
    colour of the curve named before its comma."""
    figure, (ax,) = style.panels([""], 2.6, "Side of the grid (pixels)", label, DOUBLE)
    colours = dict(zip(curves, cycle(PALETTE), strict=False)) | {
        "rows × columns": PALETTE[2]
    }  # in each such figure
    for (name, (sides, costs)), mark in zip(curves.items(), cycle(_MARKS), strict=False):
        middle, low, high = np.broadcast_to(np.reshape(costs, (len(sides), -1)), (len(sides), 3)).T
        _bars(ax, sides, (middle, low, high), name, color=colours[name], marker=mark, markersize=4)
    for name, (sides, costs) in (bounds or {}).items():
        colour = colours.get(name.partition(",")[0], "0.35")
        ax.plot(sides, costs, color=colour, linestyle=DOTTED)
        look: Look = {
            "textcoords": "offset points",
            "va": "center",
            "fontsize": 6.5,
            "color": colour,
        }
        look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # hides the grid
        ax.annotate(name, (sides[-1], np.asarray(costs)[-1]), (6, 0), **look)
    sides = sorted({side for sides, _ in curves.values() for side in sides})
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(sides, [f"{side:g}" for side in sides])
    ax.margins(y=0.08)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.minorticks_off()
    figure.legend(loc="outside right center")
    return figure


@styled
def stacked_costs(rows: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """A horizontal bar for each row, made of its parts in the given order; the sum is written at
    its end.
    """
    frame = pd.DataFrame(rows).fillna(0.0).T  # (rows, parts)
    totals = frame.sum(axis=1)
    texts = frame.assign(total=totals).map(
        lambda value: f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    )
    fits = frame.gt(0.08 * totals.max()) & frame.lt(
        totals, axis=0
    )  # room for a part's own number, beside the sum
    figure, (ax,) = style.panels([""], max(1.0, 0.15 + 0.3 * len(frame)), label, width=DOUBLE)
    frame.plot.barh(stacked=True, width=0.62, color=PALETTE[: frame.shape[1]], legend=False, ax=ax)
    containers: list[Any] = ax.containers
    for bars, part in zip(containers, frame, strict=True):
        ax.bar_label(bars, texts[part].where(fits[part], ""), label_type="center", color="white")
    ax.bar_label(bars, texts["total"], padding=3)
    ax.set(xlim=(0, 1.12 * totals.max()), xlabel=label, ylabel="")
    ax.grid(False)
    ax.invert_yaxis()
    if frame.shape[1] > 1:
        figure.legend(loc="outside right center")
    return figure
