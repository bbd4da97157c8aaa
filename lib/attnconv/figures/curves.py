"""Curves, bars and points: accuracy, what layers do over training and depth, approximations, and costs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from attnconv.figures import style
from attnconv.figures.style import DASHED, DOTTED, DOUBLE, PALETTE, Look, array, entry, legend_below, styled

Curves = Mapping[str, tuple[Sequence[float] | NDArray, ArrayLike]]
"""``{name: (x (n,), y (n,))}``."""


# --- accuracy: figure 2 -------------------------------------------------------------------------------------------


@styled
def accuracy_curves(curves: Mapping[str, ArrayLike], published: Mapping[str, float]) -> Figure:
    """Test accuracy over epochs and at the end, a colour a model (figure 2): ``{title: (seeds, epochs)}``, in [0, 1].

    Left, a panel for each length of training: a line is the mean over seeds, and its band runs from the worst to the
    best. NaN marks epochs that a seed has not seen. Then a row a model, the longest trainings first, of these the best:
    its last epoch, with a bar over seeds. Right, on an axis of its own, the accuracy in [0, 1] that was ``published``
    of some of them.
    """
    rows = [
        (title, epoch, 100 * accuracy)
        for title, seeds in curves.items()
        for seed in array(seeds, f"{title} (seeds, epochs)")
        for epoch, accuracy in enumerate(seed, 1)
    ]
    frame = pd.DataFrame(rows, columns=["model", "epoch", "percent"]).dropna()
    frame["epochs"] = frame.groupby("model")["epoch"].transform("max")
    lengths, colours = sorted(set(frame["epochs"]), reverse=True), style.model_colours(curves)
    ends = frame[frame["epoch"] == frame["epochs"]].groupby("model")["percent"].agg(["mean", "min", "max"])
    ends["epochs"] = frame.groupby("model")["epochs"].first()
    ends = ends.sort_values(["epochs", "mean"])  # from the bottom up

    figure = style.new_figure(DOUBLE, max(2.1, 0.9 + 0.26 * len(ends)))
    widths = [*(max(length / lengths[0], 0.22) * 2.2 for length in lengths), 1, *([1] if published else [])]
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    for ax, length in zip(axes, lengths, strict=False):
        look: Look = {"palette": colours, "errorbar": ("pi", 100), "err_kws": {"linewidth": 0}, "legend": False}
        look["marker"] = "o" if length == 1 else None
        seaborn.lineplot(frame[frame["epochs"] == length], x="epoch", y="percent", hue="model", ax=ax, **look)
        ax.set(title=f"{length} epoch{'s' if length > 1 else ''}", xlabel="Epoch", ylabel="Test accuracy (%)")
        ax.set_ylim(frame["percent"].min() - 2, frame["percent"].max() + 2)
        ax.xaxis.set_major_locator(MaxNLocator(max(1, 6 * length // lengths[0]), integer=True))
        ax.label_outer()
        ax.grid(axis="y")
    dots = axes[len(lengths) :]
    dots[0].hlines(range(len(ends)), ends["min"], ends["max"], [colours[t] for t in ends.index], linewidth=2, alpha=0.4)
    for place, (title, value) in enumerate(ends["mean"].items()):
        _name_mark(dots[0], value, place, colours[title], title, fill=colours[title])
        if title in published:
            _name_mark(dots[1], 100 * published[title], place, colours[title], title, fill="white")
    for ax, heading in zip(dots, ("Last epoch (%)", "Published (%)"), strict=False):
        ax.set(title=heading, ylim=(-0.6, len(ends) - 0.4), yticks=range(len(ends)), yticklabels=[])
        ax.margins(x=0.25)
        ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        ax.grid(axis="y")
        for below in np.flatnonzero(np.diff(ends["epochs"])):  # what was trained for as long stands together
            ax.axhline(below + 0.5, color="0.3", linewidth=0.5)
    dots[0].set_yticklabels([textwrap.fill(title, 19) for title in ends.index])
    for label, title in zip(dots[0].get_yticklabels(), ends.index, strict=True):
        label.set_color(colours[title])
    return figure


def _name_mark(ax: Axes, value: float, place: int, colour: str, title: str, fill: str) -> None:
    """A model's accuracy (%) as a mark, with its number above."""
    ax.plot(value, place, "o", color=colour, markerfacecolor=fill, markersize=4.5, label=title)
    ax.annotate(f"{value:.1f}", (value, place), (0, 4), textcoords="offset points", ha="center", fontsize=6.5)


@styled
def by_images(table: pd.DataFrame, ylabel: str = "") -> Figure:
    """What came of networks that were trained on more and more images: a panel a measure or layer, a line a start.

    ``table`` has a row for each network and panel: ``panel``, ``start``, ``images``, ``seed`` and ``value``. Lines are
    means over seeds, and bars run from the worst to the best. Starts stand a little beside each other, on a logarithmic
    axis of images. Panels share a vertical axis, from zero on, if it has a name.
    """
    starts, titles = list(table["start"].unique()), list(table["panel"].unique())
    figure, axes = style.panels(titles, 2.2, "Training images", ylabel, DOUBLE)
    for ax, title in zip(axes, titles, strict=True):
        own = table[table["panel"] == title]
        for place, start in enumerate(starts):
            found = own[own["start"] == start].groupby("images")["value"].agg(["mean", "min", "max"])
            mean, low, high = found.to_numpy(float).T
            look: Look = {"color": PALETTE[place], "marker": "osD^vPX<>"[place], "markersize": 3.5}
            beside = found.index.to_numpy() * 1.05 ** (place - (len(starts) - 1) / 2)
            ax.errorbar(beside, mean, (mean - low, high - mean), label=start, elinewidth=0.8, capsize=1.5, **look)
        ax.set_xscale("log")
        ax.set_xticks(sorted(own["images"].unique()), [f"{n:,}" for n in sorted(own["images"].unique())])
        ax.xaxis.minorticks_off()
    if ylabel:
        axes[0].set_ylim(np.multiply((-0.03, 1.05), table["value"].max()))  # marks at zero are whole
    handles = [entry(start, color=PALETTE[n], marker="osD^vPX<>"[n], markersize=3.5) for n, start in enumerate(starts)]
    legend_below(figure, handles, 4)
    return figure


# --- layers over training and depth -------------------------------------------------------------------------------


@styled
def lines(
    panels: Mapping[str, Curves],
    xlabel: str,
    ylabel: str = "",
    levels: Mapping[str, float] | None = None,
    log: bool = False,
    colours: Sequence = PALETTE,
    names_at_ends: bool = False,
) -> Figure:
    """Curves in one or more panels: ``{title: {name: (x (n,), y (n,))}}``, each panel with the same colours in order.

    The vertical axis goes from 0 up or, with ``log``, over three decades; panels share it if it has a ``ylabel``.
    ``levels``: up to two values by name, drawn across every panel. The names stand in a legend, or those of curves at
    their right ends.
    """
    figure, axes = style.panels(list(panels), 1.75, xlabel, ylabel)
    for ax, curves in zip(axes, panels.values(), strict=True):
        for (name, (x, y)), colour in zip(curves.items(), colours, strict=False):
            ax.plot(x, y, color=colour, label=name, marker="o" if len(x) == 1 else None)
        own = list(ax.lines)
        for (name, level), dashes in zip((levels or {}).items(), (DASHED, DOTTED), strict=False):
            ax.axhline(level, color="0.4", linewidth=0.8, linestyle=dashes, label=name, zorder=1)
        highest = max(np.nanmax(np.asarray(line.get_ydata()), initial=0) for line in ax.lines)
        ax.set_yscale("log" if log else "linear")
        ax.set_ylim((highest / 1000, 2 * highest) if log else (0, max(1.05 * highest, ax.get_ylim()[1])))
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        if names_at_ends:
            _name_ends(ax, own)
    handles = list(max(axes, key=lambda ax: len(ax.lines)).lines)
    handles = handles[-len(levels or {}) :] if names_at_ends else handles
    if len(handles) > 1:
        legend_below(figure, handles, len(handles) if len(axes) > 1 else min(3, len(handles)))
    return figure


@styled
def reach_over_training(reach: Mapping[str, NDArray], grid: tuple[int, int]) -> Figure:
    """How far each layer looks during training, a panel a model: ``{title: (epochs, layers)}``, in pixels.

    A layer's reach is the mean over its heads of the mean distance from the query (`heads.Description`). There are two
    levels, for the query in the middle of an image of that height and width: the reach of attention that is spread
    evenly, and the distance of the farthest pixel.
    """
    panels: dict[str, Curves] = {
        title: {f"layer {n + 1}": (np.arange(len(values)), layer) for n, layer in enumerate(values.T)}
        for title, values in reach.items()
    }
    distance = np.hypot(*(np.indices(grid) - np.reshape(grid, (2, 1, 1)) // 2))
    levels = {"attention spread evenly": distance.mean(), "farthest pixel": distance.max()}
    colours = seaborn.color_palette("flare", max(map(len, panels.values())))
    return lines(panels, "Epoch", "Reach (pixels)", levels, colours=colours, names_at_ends=True)


@styled
def points_lost_by_depth(table: pd.DataFrame, chance: float, layers: str = "up to") -> Figure:
    """What networks lose when layers become convolutions: a panel a model, a line for each size of kernel.

    ``table`` as of `results.swap_table`. ``layers`` says which of its networks are drawn: those whose first layers are
    convolutions, "up to" each layer, or those with one such layer, "alone", as marks. The axis of points lost is linear
    up to one point, and logarithmic beyond. Bars run over seeds. Horizontal lines are the network without convolutions,
    whose accuracy (%) stands above, one point, and ``chance`` (%).
    """
    table = table[table["layers"] == layers].assign(lost=-table["difference"])
    models, alone = list(table["model"].unique()), layers == "alone"
    sizes = sorted(table.loc[table["how"] == "read", "kernel"].unique())
    below = "Layer that is a convolution" if alone else "Layers that are convolutions"
    figure, axes = style.panels(models, 2.0, below, "Points of accuracy lost")
    for ax, model in zip(axes, models, strict=True):
        own, named = table[table["model"] == model], (ax.get_xlabel(), ax.get_ylabel())
        look: Look = {"x": "layer", "y": "lost", "ax": ax, "errorbar": ("pi", 100), "err_style": "bars"}
        look["legend"] = False
        looks = zip(sizes, seaborn.color_palette("crest", len(sizes)), "Xs^Dov"[: len(sizes)], strict=True)
        for kernel, colour, shape in looks:
            read = own[(own["how"] == "read") & (own["kernel"] == kernel)]
            mark: Look = {"color": colour, "marker": shape, "markeredgewidth": 0, "linestyle": "" if alone else "-"}
            seaborn.lineplot(read, label=f"{kernel} × {kernel}", **mark, **look)
        dashes: Look = {"color": "0.55", "linestyle": DASHED, "linewidth": 0.9}
        if (shuffled := own[own["how"] == "shuffled"]).size:
            seaborn.lineplot(shuffled, label="3 × 3, taps shuffled", **dashes, **look)
        whole = own["whole"].mean()
        level: Look = {"linewidth": 0.8, "zorder": 1}
        ax.axhline(0, color="black", label="attention everywhere", **level)
        ax.axhline(1, color="black", linestyle=(0, (1, 3)), label="one point", **level)
        ax.axhline(whole - chance, color="0.5", linestyle=DOTTED, label="chance", **level)
        depth = range(1, own["layer"].max() + 1)
        ax.set_xticks(depth, [f"{n}" if alone or n == 1 else f"1–{n}" for n in depth])
        ax.set_yscale("symlog", linthresh=1)
        ax.set_yticks([0, 1, 3, 10, 30, 100], ["0", "1", "3", "10", "30", "100"], minor=False)
        ax.set(ylim=(110, min(-0.6, 1.1 * own["lost"].min())), xlabel=named[0], ylabel=named[1])
        ax.set_title(f"{model}\n{whole:.1f}%")
        ax.yaxis.minorticks_off()
    legend_below(figure, axes[0].get_legend_handles_labels()[0], 5 if len(axes) > 1 else 3)
    return figure


@styled
def error_before_and_after(errors: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """The error of a convolution in a layer's place, before training and after: ``{model: (before, after)}``.

    Both are relative errors of the layers' outputs, (layers,). An arrow leads from a hollow mark, before training, to a
    filled one.
    """
    figure, axes = style.panels(list(errors), 1.6, "Layer", "Relative error\nas a convolution")
    most = max(np.max(values) for pair in errors.values() for values in pair)
    for ax, pair in zip(axes, errors.values(), strict=True):
        before, after = (array(values, "errors (layers)") for values in pair)
        layers, colours = range(1, len(before) + 1), np.where(after < before, PALETTE[2], PALETTE[3])
        look: Look = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "inches", "width": 1 / 72}
        ax.quiver(layers, before, 0 * after, after - before, color=colours, headlength=9, headaxislength=9, **look)
        ax.scatter(layers, before, 12, "white", edgecolor=colours, linewidth=1, zorder=3, clip_on=False)
        ax.scatter(layers, after, 12, colours, linewidth=1, zorder=3, clip_on=False)
        ax.axhline(1, color="0.5", linewidth=0.8, linestyle=DOTTED, zorder=1)
        ax.set(xticks=layers, xlim=(0.5, len(layers) + 0.5), ylim=(0, max(1.1, 1.05 * most)))
    mark: Look = {"linestyle": "none", "marker": "o"}
    handles = [entry("before training", markerfacecolor="white", **mark), entry("after", **mark)]
    handles += [entry("nearer to a convolution", color=PALETTE[2]), entry("farther from one", color=PALETTE[3])]
    handles += [entry("nothing but the bias", color="0.5", linestyle=DOTTED, linewidth=0.8)]
    legend_below(figure, handles, 5 if len(axes) > 1 else 2)
    return figure


# --- what attention costs -----------------------------------------------------------------------------------------


@styled
def cost_growth(curves: Curves, bounds: Curves | None = None, label: str = "Time (ms)") -> Figure:
    """How a cost grows with the side of the grid, on log-log axes; each line's name stands at its end.

    Each curve is (sides (G,), costs (G,) or (G, 3)): the three are the median, the smallest and the largest, drawn as
    a bar. A curve's name may have two parts, with a comma: the first decides on its colour, the second on its mark and
    dashes. Each bound is (sides (G,), costs (G,)), dotted, in the colour of the curve whose name it begins with, or
    grey.
    """
    figure, (ax,) = style.panels([""], 2.6, "Side of the grid (pixels)", label, DOUBLE)
    parts = [name.partition(", ")[::2] for name in curves]
    first, second = (list(dict.fromkeys(words)) for words in zip(*parts, strict=True))
    colours = dict(zip(first, PALETTE, strict=False))
    marks = list(zip("osD^vP", ("-", DASHED, "-.", ":", (0, (8, 1.5)), (0, (6, 1, 1, 1))), strict=True))
    for (one, other), name, (sides, costs) in zip(parts, curves, curves.values(), strict=True):
        middle, *spread = np.reshape(costs, (len(sides), -1)).T
        mark, dashes = marks[second.index(other) if other else first.index(one)]
        face = "white" if second.index(other) else colours[one]
        look: Look = {"color": colours[one], "marker": mark, "linestyle": dashes, "markerfacecolor": face}
        ax.plot(sides, middle, label=name, markersize=4, **look)
        ax.vlines(sides, *(spread or (middle, middle)), color=colours[one], linewidth=0.8)
    for name, (sides, costs) in (bounds or {}).items():
        ax.plot(sides, costs, color=colours.get(name.partition(", ")[0], "0.35"), linestyle=DOTTED, label=name)
    sides = sorted({side for sides, _ in curves.values() for side in sides})
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(sides, [f"{side:g}" for side in sides])
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.minorticks_off()
    _name_ends(ax, ax.lines)
    return figure


def _name_ends(ax: Axes, curves: Iterable[Line2D]) -> None:
    """Write each curve's name at its right end; names that would touch stand above each other."""
    from scipy.optimize import isotonic_regression  # takes a second

    ends: dict[float, list[tuple[float, Line2D]]] = {}  # by place along the axis: heights there, in points
    for curve in curves:
        x, y = np.asarray(curve.get_xydata())[-1]
        ends.setdefault(x, []).append((ax.transData.transform((x, y))[1] * 72 / ax.figure.dpi, curve))
    for there in ends.values():
        there.sort(key=lambda end: end[0])
        heights, steps = np.array([height for height, _ in there]), 8.0 * np.arange(len(there))
        raised = isotonic_regression(heights - steps).x + steps - heights  # as near to the lines as can be
        for (_, curve), rise in zip(there, raised, strict=True):
            look: Look = {"textcoords": "offset points", "va": "center", "fontsize": 6.5, "color": curve.get_color()}
            ax.annotate(str(curve.get_label()), np.asarray(curve.get_xydata())[-1], (6, rise), **look)


@styled
def stacked_costs(rows: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """A horizontal bar for each row, made of its parts in the given order; the sum is written at its end."""
    frame = pd.DataFrame(rows).fillna(0.0).T  # (rows, parts)
    figure, (ax,) = style.panels([""], max(1.0, 0.15 + 0.3 * len(frame)), label, width=DOUBLE)
    totals, starts = frame.sum(axis=1), frame.cumsum(axis=1) - frame
    for part, colour in zip(frame, PALETTE, strict=False):
        bars = ax.barh(frame.index, frame[part], 0.62, left=starts[part], color=colour, label=str(part))
        room = (frame[part] > 0.08 * totals.max()) & (frame[part] < totals)  # for its own number, beside the sum
        inside = [_short(value) if fits else "" for value, fits in zip(frame[part], room, strict=True)]
        ax.bar_label(bars, inside, label_type="center", color="white")
    ax.bar_label(bars, [_short(total) for total in totals], padding=3)
    ax.set_xlim(0, 1.12 * totals.max())
    ax.grid(False)
    ax.invert_yaxis()
    if frame.shape[1] > 1:
        figure.legend(loc="outside right center")
    return figure


@styled
def cost_ratios(costs: Mapping[str, tuple[float, float]]) -> Figure:
    """What the attention-only network costs, as a multiple of the CNN: ``{quantity: (CNN, attention)}``."""
    ratios = np.array([attention / cnn for cnn, attention in costs.values()])
    name = "Attention-only network, as a multiple of the CNN (black line)"
    figure, (ax,) = style.panels([""], 0.24 * len(costs) + 0.25, name, width=DOUBLE)
    ax.grid(False, axis="y")
    ax.grid(axis="x")
    bars = ax.barh(list(costs), ratios - 1, 0.5, left=1, color=style.MODELS["SA quadratic"])
    ax.bar_label(bars, [f"{ratio:#.3g}".rstrip(".") + "×" for ratio in ratios], padding=3)
    ax.axvline(1, color="black", linewidth=1.2)
    left, right = min(ratios.min(), 1) / 1.25, max(ratios.max(), 1)
    ax.set(xscale="log", xlim=(left, right * (right / left) ** 0.1))
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.xaxis.minorticks_off()
    ax.invert_yaxis()
    return figure


def _short(value: float) -> str:
    """A number with three digits, or more if it is large."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
