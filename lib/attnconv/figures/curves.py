"""Curves, bars and points: accuracy, what layers do over training and depth, approximations, and costs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import seaborn
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from attnconv.figures import style
from attnconv.figures.style import DASHED, DOTTED, DOUBLE, PALETTE, SINGLE, Look, array, styled

Curves = Mapping[str, tuple[Sequence[float] | NDArray, ArrayLike]]
"""``{name: (x (n,), y (n,))}``."""


def _line(label: str, **look) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], label=label, **{"color": "0.4"} | look)


def _one_panel(width: float, height: float, grid: Literal["x", "y"] | None = "y") -> tuple[Figure, Axes]:
    figure = style.new_figure(width, height)
    ax = figure.add_subplot()
    if grid:
        ax.grid(axis=grid)
    return figure, ax


def _legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """A legend that reads along rows: matplotlib fills its columns first."""
    by_rows = [handle for column in range(columns) for handle in handles[column::columns]]
    figure.legend(handles=by_rows, loc="outside lower center", ncols=columns)


# --- accuracy: figure 2 -------------------------------------------------------------------------------------------


@styled
def accuracy_curves(curves: Mapping[str, ArrayLike], published: Mapping[str, float]) -> Figure:
    """Test accuracy over epochs and at the end, a colour a model (figure 2): ``{title: (seeds, epochs)}``, in [0, 1].

    Left, a panel for each length of training: a line is the mean over seeds, and its band runs from the worst to the
    best. NaN marks epochs that a seed has not seen. Then a row a model, the best first: its last epoch, with a bar over
    seeds. Right, on an axis of its own, the accuracy in [0, 1] that was ``published`` of some of them.
    """
    percent = {title: 100 * array(values, f"{title} (seeds, epochs)") for title, values in curves.items()}
    percent = {title: seeds[:, np.isfinite(seeds).any(0)] for title, seeds in percent.items()}
    ends = {title: seeds[:, -1][np.isfinite(seeds[:, -1])] for title, seeds in percent.items()}
    order = sorted(ends, key=lambda title: float(ends[title].mean()))  # from the bottom up
    lengths = sorted({seeds.shape[1] for seeds in percent.values()}, reverse=True)
    figure = style.new_figure(DOUBLE, max(2.1, 0.9 + 0.26 * len(order)))
    widths = [max(length / lengths[0], 0.22) * 2.2 for length in lengths]
    widths += [1, 1] if published else [1]
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    panels, dots = axes[: len(lengths)], axes[len(lengths) :]
    for title, colour in style.model_colours(curves).items():
        seeds, place = percent[title], order.index(title)
        ax, epochs = panels[lengths.index(seeds.shape[1])], 1 + np.arange(seeds.shape[1])
        ax.plot(epochs, np.nanmean(seeds, 0), color=colour, label=title, marker="o" if len(epochs) == 1 else None)
        ax.fill_between(epochs, np.nanmin(seeds, 0), np.nanmax(seeds, 0), color=colour, alpha=0.2, linewidth=0)
        dots[0].hlines(place, ends[title].min(), ends[title].max(), color=colour, linewidth=2, alpha=0.4)
        _name_mark(dots[0], ends[title].mean(), place, colour, title, fill=colour)
        if title in published:
            _name_mark(dots[1], 100 * published[title], place, colour, title, fill="white")
    low, high = min(np.nanmin(v) for v in percent.values()), max(np.nanmax(v) for v in percent.values())
    for ax, length in zip(panels, lengths, strict=True):
        ax.set(title=f"{length} epoch{'s' * (length > 1)}", xlabel="Epoch", ylim=(low - 2, high + 2))
        ax.xaxis.set_major_locator(MaxNLocator(max(1, 6 * length // lengths[0]), integer=True))
        ax.tick_params(labelleft=ax is panels[0])
        ax.grid(axis="y")
    panels[0].set_ylabel("Test accuracy (%)")
    for ax, title in zip(dots, ("Last epoch (%)", "Published (%)"), strict=False):
        ax.set(title=title, ylim=(-0.6, len(order) - 0.4), yticks=range(len(order)), yticklabels=[])
        ax.margins(x=0.25)
        ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        ax.grid(axis="y")
    dots[0].set_yticklabels([textwrap.fill(title, 19) for title in order])
    return figure


def _name_mark(ax: Axes, value: float, place: int, colour: str, title: str, fill: str) -> None:
    """A model's accuracy (%) as a mark, with its number above."""
    ax.plot(value, place, "o", color=colour, markerfacecolor=fill, markersize=4.5, label=title)
    ax.annotate(f"{value:.1f}", (value, place), (0, 4), textcoords="offset points", ha="center", fontsize=6.5)


# --- layers over training and depth -------------------------------------------------------------------------------


@styled
def lines(
    panels: Mapping[str, Curves],
    xlabel: str,
    ylabel: str = "",
    levels: Mapping[str, float] | None = None,
    log: bool = False,
    colours: Sequence = PALETTE,
) -> Figure:
    """Curves in one or more panels: ``{title: {name: (x (n,), y (n,))}}``, each panel with the same colours in order.

    The vertical axis goes from 0 up or, with ``log``, over three decades; panels share it if it has a ``ylabel``.
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
        ax.set_ylim((highest / 1000, 2 * highest) if log else (0, max(1.05 * highest, ax.get_ylim()[1])))
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    handles = max((ax.lines for ax in axes), key=len)
    if len(handles) > 1:
        _legend_below(figure, handles, len(handles) if len(axes) > 1 else min(3, len(handles)))
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
    return lines(panels, "Epoch", "Reach (pixels)", levels, colours=colours)


@styled
def accuracy_by_depth(table: pd.DataFrame, chance: float, layers: str = "up to") -> Figure:
    """What is left of networks whose layers are convolutions: a panel a model, a line for each size of kernel.

    ``table`` as of `results.swap_table`. ``layers``: those of its rows that are drawn, the first layers up to each, or
    each ``alone``. Levels are the whole network and ``chance`` (%). Bars run over seeds.
    """
    table = table[table["layers"] == layers]
    models = list(table["model"].unique())
    sizes = sorted(table.loc[table["how"] == "read", "kernel"].unique())
    colours = dict(zip(sizes, seaborn.color_palette("crest", len(sizes)), strict=True))
    below = "Layers that are convolutions" if layers == "up to" else "Layer that is a convolution"
    figure, axes = style.panels(models, 1.9, below, "Test accuracy (%)")
    shuffled: Look = {"color": "0.55", "linestyle": DASHED, "linewidth": 0.9}
    whole: Look = {"color": "black", "linewidth": 0.9}
    floor: Look = {"color": "0.5", "linestyle": DOTTED, "linewidth": 0.8}
    for ax, model in zip(axes, models, strict=True):
        own, named = table[table["model"] == model], (ax.get_xlabel(), ax.get_ylabel())
        look: Look = {"x": "layer", "y": "accuracy", "ax": ax, "errorbar": ("pi", 100), "err_style": "bars"}
        seaborn.lineplot(own[own["how"] == "shuffled"], legend=False, **look, **shuffled)
        read = own[own["how"] == "read"]
        seaborn.lineplot(read, hue="kernel", palette=colours, marker="o", legend=False, **look)
        ax.axhline(own["whole"].mean(), zorder=1, **whole)
        ax.axhline(chance, zorder=1, **floor)
        depth = range(1, own["layer"].max() + 1)
        ax.set_xticks(depth, [f"1–{n}" if n > 1 and layers == "up to" else f"{n}" for n in depth])
        ax.set(ylim=(0, 100), xlabel=named[0], ylabel=named[1])
    handles = [_line(f"{k} × {k}", color=colour, marker="o") for k, colour in colours.items()]
    handles += [_line("3 × 3, taps shuffled", **shuffled), _line("attention everywhere", **whole)]
    _legend_below(figure, [*handles, _line("chance", **floor)], 4 if len(axes) > 1 else 2)
    return figure


@styled
def error_before_and_after(errors: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """How badly each layer is met by a convolution, before training and after: ``{model: (before, after)}``.

    Both (layers,), relative errors of the layer's output. Hollow marks are before training, an arrow leads from them.
    """
    figure, axes = style.panels(list(errors), 1.6, "Layer", "Relative error\nas a convolution")
    most = max(np.max(values) for pair in errors.values() for values in pair)
    for ax, pair in zip(axes, errors.values(), strict=True):
        layers = range(1, np.size(pair[0]) + 1)
        for layer, start, end in zip(layers, *(array(values, "errors (layers)") for values in pair), strict=True):
            colour = PALETTE[2] if end < start else PALETTE[3]
            if abs(end - start) > 0.03 * most:
                arrow: Look = {"arrowstyle": "-|>", "color": colour, "lw": 1, "mutation_scale": 6}
                arrow |= {"shrinkA": 2.5, "shrinkB": 0}
                ax.annotate("", (layer, end), (layer, start), arrowprops=arrow)
            ax.plot(layer, start, "o", color=colour, markerfacecolor="white", zorder=3, clip_on=False)
            ax.plot(layer, end, "o", color=colour, zorder=3, clip_on=False)
        ax.axhline(1, color="0.5", linewidth=0.8, linestyle=DOTTED, zorder=1)
        ax.set(xticks=layers, xlim=(0.5, len(layers) + 0.5), ylim=(0, max(1.1, 1.05 * most)))
    mark: Look = {"linestyle": "none", "marker": "o"}
    handles = [_line("before training", markerfacecolor="white", **mark), _line("after", **mark)]
    handles += [_line("nearer to a convolution", color=PALETTE[2]), _line("farther from one", color=PALETTE[3])]
    handles += [_line("nothing but the bias", color="0.5", linestyle=DOTTED, linewidth=0.8)]
    _legend_below(figure, handles, 5 if len(axes) > 1 else 2)
    return figure


@styled
def content_share(shares: ArrayLike, untrained: ArrayLike) -> Figure:
    """Content's share of what makes the score vary, by layer: a point for each of (layers, heads), 1 is all of it.

    See `heads.content_share`: it leaves [0, 1] where content and position cancel. Bars are layer means, of the
    ``untrained`` shares (layers, heads) too.
    """
    after, before = (100 * array(values, "shares (layers, heads)") for values in (shares, untrained))
    layers, aside = 1 + np.arange(len(after)), np.linspace(-0.255, 0.255, after.shape[1])
    figure, ax = _one_panel(SINGLE, 2.3)
    look: Look = {"color": PALETTE[0], "edgecolor": "white", "linewidth": 0.3, "clip_on": False, "zorder": 3}
    ax.scatter(layers[:, None] + aside, after, 12, label="a head", **look)
    means, first = (pd.DataFrame(values).mean(axis=1) for values in (after, before))  # of the heads that are there
    ax.hlines(means, layers - 0.3, layers + 0.3, color="black", linewidth=1.4, zorder=2, label="mean of the layer")
    ax.hlines(first, layers - 0.3, layers + 0.3, color="0.45", linestyle="--", linewidth=1, label="untrained mean")
    ax.set(xlabel="Layer", ylabel="Share of the score's variance\nowed to content (%)")
    ax.set(xlim=(0.5, len(after) + 0.5), xticks=layers)
    ax.set_ylim(np.nanmin(1.05 * after, initial=0), np.nanmax(1.05 * after, initial=100))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


# --- theory: how exactly heads are taps ---------------------------------------------------------------------------


@styled
def rank_curves(curves: Mapping[str, tuple[Sequence[int], ArrayLike, ArrayLike]]) -> Figure:
    """What heads of dimension D_h lose of a convolution (Theorem 1 and the appendix), a colour a convolution.

    ``{title: (head dimensions, best, plain)}``: ``best`` (solid) is the share of the output lost with the D_h largest
    singular values of every tap, ``plain`` (dashed) with the first D_h output channels right and no others. Both are
    norms over norms; values below 1e-4 are drawn as zero.
    """
    figure, ax = _one_panel(SINGLE, 2.8)
    handles = []
    for (title, (dims, *losses)), colour, marker in zip(curves.items(), PALETTE, "osD^vPX<>*", strict=False):
        best, plain = (100 * np.where(np.asarray(v) < 1e-4, 0, v) for v in losses)
        look: Look = {"color": colour, "marker": marker, "clip_on": False}
        handles += ax.plot(dims, best, zorder=3, label=title, **look)
        ax.plot(dims, plain, linestyle=DASHED, linewidth=0.9, markerfacecolor="white", zorder=2, **look)
    ax.set(xlabel="Dimension of a head, $D_h$", ylabel="Output lost (%)", ylim=(0, 100))
    ax.set_xticks(sorted({dim for dims, _, _ in curves.values() for dim in dims}))
    handles += [_line("$D_h$ largest singular values"), _line("first $D_h$ channels", linestyle=DASHED, linewidth=0.9)]
    _legend_below(figure, handles, 2)
    return figure


@styled
def agreement(expected: ArrayLike, given: ArrayLike) -> Figure:
    """How far the logits of an attention-only copy are from those of its CNN, both (images, classes).

    Differences are counted in roundings: one is float32's epsilon times the largest logit. Left they stand over the
    CNN's logit, right is how many there are of each size.
    """
    logits, other = (array(v, "logits (images, classes)").ravel() for v in (expected, given))
    rounding = np.finfo(np.float32).eps * max(np.abs(logits).max(), np.finfo(float).tiny)
    apart = (other - logits) / rounding
    figure = style.new_figure(DOUBLE, 2.2)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    left.plot(logits, apart, ".", color=PALETTE[0], markersize=1.5, alpha=0.3, rasterized=True)
    bins = np.linspace(-1, 1, 42) * max(2, 1.1 * np.abs(apart).max())
    right.hist(apart, bins, weights=np.full(apart.size, 100 / apart.size), orientation="horizontal", color=PALETTE[0])
    for ax in (left, right):
        ax.axhspan(-1, 1, color="0.9", linewidth=0, zorder=0, label="one rounding of the largest logit")
        ax.axhline(0, color="0.5", linewidth=0.6, zorder=1)
    left.set(xlabel="Logit of the CNN", ylabel="Attention only − CNN\n(roundings)", ylim=bins[[0, -1]])
    right.set(xlabel="Logits (%)")
    right.legend(loc="upper right")
    return figure


# --- what attention costs -----------------------------------------------------------------------------------------


@styled
def cost_growth(
    curves: Curves, bounds: Curves | None = None, label: str = "Time (ms)", slopes: Sequence[int] = ()
) -> Figure:
    """How a cost grows with the side of the grid, on log-log axes; each line's name stands at its end.

    Each curve is (sides (G,), costs (G,) or (G, 3)): the three are the median, the smallest and the largest, drawn as
    a bar. A curve's name may have two parts, with a comma: the first decides on its colour, the second on its mark and
    dashes. Each bound is (sides (G,), costs (G,)), dotted, in the colour of the curve whose name it begins with, or
    grey. ``slopes``: powers of the side, from a curve's start each.
    """
    figure, ax = _one_panel(DOUBLE, 3.1)
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
    for slope, (x, costs) in zip(slopes, curves.values(), strict=False):
        y = np.ravel(costs)[0] * np.divide(x, x[0]) ** slope
        ax.plot(x, y, color="0.5", linestyle=DASHED, linewidth=0.6, label=f"slope {slope}")
    ax.set(xscale="log", yscale="log", xlabel="Side of the grid (pixels)", ylabel=label)
    sides = sorted({side for sides, _ in curves.values() for side in sides})
    ax.set_xticks(sides, [f"{side:g}" for side in sides])
    ax.xaxis.minorticks_off()
    _name_ends(ax)
    return figure


def _name_ends(ax: Axes) -> None:
    """Write each line's name at its right end; of names that would touch, the upper one stands higher."""
    taken: dict[float, float] = {}  # at this end: the height up to which names stand, in points
    for x, y, name in sorted((*np.asarray(one.get_xydata())[-1], str(one.get_label())) for one in ax.lines):
        at = ax.transData.transform((x, y))[1] * 72 / ax.figure.dpi
        taken[x] = place = max(at, taken.get(x, -np.inf) + 8)
        ax.annotate(name, (x, y), (6, place - at), textcoords="offset points", va="center", fontsize=6.5)


@styled
def stacked_costs(rows: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """A horizontal bar for each row, made of its parts in the given order; the sum is written at its end."""
    frame = pd.DataFrame(rows).fillna(0.0).T  # (rows, parts)
    figure, ax = _one_panel(DOUBLE, max(1.5, 0.65 + 0.3 * len(frame)), grid=None)
    totals, starts = frame.sum(axis=1), frame.cumsum(axis=1) - frame
    for part, colour in zip(frame, PALETTE, strict=False):
        bars = ax.barh(frame.index, frame[part], 0.62, left=starts[part], color=colour, label=str(part))
    ax.bar_label(bars, [_short(total) for total in totals], padding=3)
    ax.set(xlabel=label, xlim=(0, 1.12 * totals.max()))
    ax.invert_yaxis()
    if frame.shape[1] > 1:
        figure.legend(loc="outside right center")
    return figure


@styled
def cost_ratios(costs: Mapping[str, tuple[float, float]]) -> Figure:
    """What the attention-only network costs, as a multiple of the CNN: ``{quantity: (CNN, attention)}``."""
    ratios = np.array([attention / cnn for cnn, attention in costs.values()])
    figure, ax = _one_panel(DOUBLE, 0.24 * len(costs) + 0.75, grid="x")
    bars = ax.barh(list(costs), ratios - 1, 0.5, left=1, color=style.MODELS["SA quadratic"])
    ax.bar_label(bars, [f"{_short(ratio)}×" for ratio in ratios], padding=3)
    ax.axvline(1, color="black", linewidth=1.2)
    left, right = min(ratios.min(), 1) / 1.25, max(ratios.max(), 1)
    ax.set(xscale="log", xlim=(left, right * (right / left) ** 0.1))
    ax.set_xlabel("Attention-only network, as a multiple of the CNN (black line)")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.xaxis.minorticks_off()
    ax.invert_yaxis()
    return figure


def _short(value: float) -> str:
    """A number with three digits, or more if it is large."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
