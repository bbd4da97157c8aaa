"""Curves, bars and points: accuracy, what layers do over training and depth, approximations, and costs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from attnconv.figures.style import (
    DASHED,
    DOTTED,
    DOUBLE,
    MODELS,
    PALETTE,
    SINGLE,
    array,
    model_colours,
    new_figure,
    ordered_colours,
    rows_and_columns,
    styled,
)


def _line(label: str, **look) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], label=label, **{"color": "0.4"} | look)


def _one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    ax = figure.add_subplot()
    ax.grid(axis="y")
    return figure, ax


def _legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """A legend that reads along rows: matplotlib fills its columns first."""
    by_rows = [handle for column in range(columns) for handle in handles[column::columns]]
    figure.legend(handles=by_rows, loc="outside lower center", ncols=columns)


# --- accuracy: figure 2 -------------------------------------------------------------------------------------------


@styled
def accuracy_curves(curves: Mapping[str, ArrayLike], published: Mapping[str, float]) -> Figure:
    """Test accuracy over epochs, a line a model (figure 2): ``{title: (seeds, epochs)}``, accuracies in [0, 1].

    The line is the mean over seeds and the band runs from the worst to the best seed. Curves may differ in length; NaN
    marks epochs that a seed has not seen. ``published``: accuracies in [0, 1] of some of the models, drawn as dotted
    levels. The legend says where each line ends, the highest first.
    """
    figure, ax = _one_panel(DOUBLE, 2.7)
    colours = model_colours(curves)
    for title, colour in colours.items():
        values = 100 * array(curves[title], f"{title} (seeds, epochs)")
        values = values[:, np.isfinite(values).any(0)]
        epochs, mean = 1 + np.arange(values.shape[1]), np.nanmean(values, axis=0)
        ax.plot(epochs, mean, color=colour, label=f"{title} {mean[-1]:.1f}", marker="o" if len(epochs) == 1 else None)
        ax.fill_between(epochs, np.nanmin(values, 0), np.nanmax(values, 0), color=colour, alpha=0.2, linewidth=0)
    for index, (title, accuracy) in enumerate(published.items()):
        level = {"label": f"{title} {100 * accuracy:.1f}, published", "linestyle": (1.3 * index, DOTTED[1])}
        ax.axhline(100 * accuracy, color=colours[title], zorder=1, **level)  # dots of equal levels alternate
    ax.set(xlabel="Epoch", ylabel="Test accuracy (%)")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.margins(x=0.01)
    figure.legend(handles=sorted(ax.lines, key=lambda line: -line.get_ydata()[-1]), loc="outside right upper")
    return figure


# --- layers over training and depth -------------------------------------------------------------------------------


@styled
def lines(
    panels: Mapping[str, Mapping[str, tuple[ArrayLike, ArrayLike]]],
    xlabel: str,
    ylabel: str = "",
    levels: Mapping[str, float] | None = None,
    log: bool = False,
    colours: Sequence[str] = PALETTE,
) -> Figure:
    """Curves in one or more panels: ``{title: {name: (x (n,), y (n,))}}``, each panel with the same colours in order.

    The vertical axis goes from 0 up or, with ``log``, over three decades; panels share it if it has a ``ylabel``.
    ``levels``: up to two values by name, drawn across every panel.
    """
    rows, columns = rows_and_columns(len(panels))
    figure = new_figure(SINGLE if columns == 1 else DOUBLE, rows * 1.75 + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=bool(ylabel)).ravel()
    for ax in axes[len(panels) :]:
        ax.remove()
    for place, (ax, (title, curves)) in enumerate(zip(axes, panels.items(), strict=False)):
        for (name, (x, y)), colour in zip(curves.items(), colours, strict=False):
            ax.plot(x, y, color=colour, label=name, marker="o" if len(x) == 1 else None)
        for (name, level), dashes in zip((levels or {}).items(), (DASHED, DOTTED), strict=False):
            ax.axhline(level, color="0.4", linewidth=0.8, linestyle=dashes, label=name, zorder=1)
        highest = np.nanmax(np.concatenate([line.get_ydata() for line in ax.lines]))
        ax.set_yscale("log" if log else "linear")
        ax.set_ylim((highest / 1000, 2 * highest) if log else (0, max(1.05 * highest, ax.get_ylim()[1])))
        ax.set(title=textwrap.fill(title, 36), xlabel=xlabel if place + columns >= len(panels) else "")
        ax.set_ylabel(ylabel if place % columns == 0 else "")
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        ax.grid(axis="y")
    handles = max((ax.lines for ax in axes[: len(panels)]), key=len)
    if len(handles) > 1:
        _legend_below(figure, handles, len(handles) if columns > 1 else min(3, len(handles)))
    return figure


@styled
def reach_over_training(reach: Mapping[str, ArrayLike], grid: tuple[int, int]) -> Figure:
    """How far each layer looks during training, a panel a model: ``{title: (epochs, layers)}``, in pixels.

    A layer's reach is the mean over its heads of the mean distance from the query (`heads.Description`). Two levels
    tell the reach, from the central query of an image of that height and width, of attention that is spread evenly, and
    the distance of the farthest pixel.
    """
    panels = {
        title: {f"layer {n + 1}": (np.arange(len(values)), layer) for n, layer in enumerate(np.transpose(values))}
        for title, values in reach.items()
    }
    distance = np.hypot(*(np.indices(grid) - np.reshape(grid, (2, 1, 1)) // 2))
    levels = {"attention spread evenly": distance.mean(), "farthest pixel": distance.max()}
    colours = ordered_colours("flare", max(map(len, panels.values())))
    return lines(panels, "Epoch", "Reach (pixels)", levels, colours=colours)


@styled
def accuracy_by_depth(table: pd.DataFrame, chance: float, layers: str = "up to") -> Figure:
    """What is left of networks whose layers are convolutions: a panel a model, a line for each size of kernel.

    ``table`` as of `results.swap_table`. ``layers``: those of its rows that are drawn, the first layers up to each, or
    each ``alone``. Levels are the whole network and ``chance`` (%). Bars run over seeds.
    """
    import seaborn  # takes a second

    table = table[table["layers"] == layers]
    sizes = sorted(table.loc[table["how"] == "read", "kernel"].unique())
    colours = dict(zip(sizes, ordered_colours("crest", len(sizes)), strict=True))
    models = list(table["model"].unique())
    rows, columns = rows_and_columns(len(models))
    figure = new_figure(SINGLE if columns == 1 else DOUBLE, rows * 1.9 + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for place, (ax, model) in enumerate(zip(axes, models, strict=False)):
        own = table[table["model"] == model]
        ax.axhline(own["whole"].mean(), color="black", linewidth=0.9, zorder=1)
        ax.axhline(chance, color="0.5", linewidth=0.8, linestyle=DOTTED, zorder=1)
        look = dict(x="layer", y="accuracy", ax=ax, legend=False, errorbar=("pi", 100), err_style="bars")
        control = own[own["how"] == "shuffled"]
        seaborn.lineplot(control, color="0.55", linestyle=DASHED, linewidth=0.9, **look)
        seaborn.lineplot(own[own["how"] == "read"], hue="kernel", palette=colours, marker="o", **look)
        depth = int(own["layer"].max())
        names = ["1", *(f"1–{n}" for n in range(2, depth + 1))] if layers == "up to" else None
        ax.set_xticks(range(1, depth + 1), names)
        ax.set(title=textwrap.fill(model, 34), ylim=(0, 100), ylabel="" if place % columns else "Test accuracy (%)")
        below = "Layers that are convolutions" if names else "Layer that is a convolution"
        ax.set_xlabel(below if place + columns >= len(models) else "")
        ax.grid(axis="y")
    for ax in axes[len(models) :]:
        ax.remove()
    handles = [_line(f"{k} × {k}", color=colour, marker="o") for k, colour in colours.items()]
    handles += [_line("3 × 3, taps shuffled", color="0.55", linestyle=DASHED, linewidth=0.9)]
    handles += [_line("attention everywhere", color="black", linewidth=0.9)]
    handles += [_line("chance", color="0.5", linestyle=DOTTED, linewidth=0.8)]
    _legend_below(figure, handles, 4 if columns > 1 else 2)
    return figure


@styled
def error_before_and_after(errors: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """How badly each layer is met by a convolution, before training and after: ``{model: (before, after)}``.

    Both (layers,), relative errors of the layer's output. Hollow marks are before training, an arrow leads from them.
    """
    rows, columns = rows_and_columns(len(errors))
    figure = new_figure(SINGLE if columns == 1 else DOUBLE, rows * 1.6 + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    most = max(np.max(values) for pair in errors.values() for values in pair)
    for place, (ax, (model, pair)) in enumerate(zip(axes, errors.items(), strict=False)):
        before, after = (array(values, "errors (layers)") for values in pair)
        layers = 1 + np.arange(len(before))
        for layer, start, end in zip(layers, before, after, strict=True):
            colour = PALETTE[2] if end < start else PALETTE[3]
            if abs(end - start) > 0.03 * most:
                arrow = {
                    "arrowstyle": "-|>",
                    "color": colour,
                    "shrinkA": 2.5,
                    "shrinkB": 0,
                    "lw": 1,
                    "mutation_scale": 6,
                }
                ax.annotate("", (layer, end), (layer, start), arrowprops=arrow)
            ax.plot(layer, start, "o", color=colour, markerfacecolor="white", zorder=3, clip_on=False)
            ax.plot(layer, end, "o", color=colour, zorder=3, clip_on=False)
        ax.axhline(1, color="0.5", linewidth=0.8, linestyle=DOTTED, zorder=1)
        ax.set(title=textwrap.fill(model, 34), xticks=layers, ylim=(0, max(1.1, 1.05 * most)))
        ax.set(xlim=(0.5, len(layers) + 0.5), xlabel="Layer" if place + columns >= len(errors) else "")
        ax.set_ylabel("Relative error\nas a convolution" if place % columns == 0 else "")
        ax.grid(axis="y")
    for ax in axes[len(errors) :]:
        ax.remove()
    look = {"linestyle": "none", "marker": "o"}
    handles = [_line("before training", markerfacecolor="white", **look), _line("after", **look)]
    handles += [_line("nearer to a convolution", color=PALETTE[2]), _line("farther from one", color=PALETTE[3])]
    handles += [_line("nothing but the bias", color="0.5", linestyle=DOTTED, linewidth=0.8)]
    _legend_below(figure, handles, 5 if columns > 1 else 2)
    return figure


@styled
def content_share(shares: ArrayLike, untrained: ArrayLike) -> Figure:
    """Content's share of what makes the score vary, by layer: a point for each of (layers, heads), 1 is all of it.

    See `heads.content_share`: it leaves [0, 1] where content and position cancel. Bars are layer means, of the
    ``untrained`` shares (layers, heads) too.
    """
    shares = 100 * array(shares, "shares (layers, heads)")
    layers, aside = 1 + np.arange(len(shares)), np.linspace(-0.255, 0.255, shares.shape[1])
    figure, ax = _one_panel(SINGLE, 2.3)
    look = {"s": 12, "color": PALETTE[0], "edgecolor": "white", "linewidth": 0.3, "clip_on": False, "zorder": 3}
    ax.scatter(layers[:, None] + aside, shares, label="a head", **look)
    before = 100 * array(untrained, "untrained (layers, heads)")
    means, first = (pd.DataFrame(values).mean(axis=1) for values in (shares, before))  # of the heads that are there
    ax.hlines(means, layers - 0.3, layers + 0.3, color="black", linewidth=1.4, zorder=2, label="mean of the layer")
    ax.hlines(first, layers - 0.3, layers + 0.3, color="0.45", linestyle="--", linewidth=1, label="untrained mean")
    for edge in (0, 100):
        ax.axhline(edge, color="0.75", linewidth=0.6, zorder=0)
    ax.set(xlabel="Layer", ylabel="Share of the score's variance\nowed to content (%)")
    ax.set(xlim=(0.5, len(shares) + 0.5), xticks=layers)
    ax.set_ylim(np.nanmin(1.05 * shares, initial=0), np.nanmax(1.05 * shares, initial=100))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@styled
def coverage_grid(factors: Mapping[str, Mapping[str, Mapping[str, NDArray]]]) -> Figure:
    """How what was varied decides whether heads form a kernel: a panel for each factor, its levels side by side.

    Above, how many of the nine taps of a 3 x 3 kernel have a head, in layers 1 and 2: a point for each seed, and a
    line through the means. Below, test accuracy.

    ``{factor: {level: values}}``. The values of a level are ``covered`` (seeds, 2), taps of layers 1 and 2;
    ``accuracy`` (seeds,), in [0, 1]; and ``chance``, the taps that heads placed at random cover, dashed.
    """
    figure = new_figure(DOUBLE, 3.4)
    widths = [len(levels) for levels in factors.values()]
    axes = figure.subplots(2, len(factors), squeeze=False, sharex="col", sharey="row", width_ratios=widths)
    first, second = ordered_colours("flare", 2)
    for (taps, accuracy), (factor, levels) in zip(axes.T, factors.items(), strict=True):
        _levels(taps, [v["covered"][:, 0] for v in levels.values()], first, "o", -0.1)
        _levels(taps, [v["covered"][:, 1] for v in levels.values()], second, "s", 0.1)
        _levels(accuracy, [100 * v["accuracy"] for v in levels.values()], PALETTE[0], "D", 0)
        for place, values in enumerate(levels.values()):
            taps.hlines(values["chance"], place - 0.4, place + 0.4, color="0.4", linewidth=0.9, linestyle=DASHED)
        taps.set(title=factor, ylim=(-0.3, 9.3), yticks=(0, 3, 6, 9))
        names = [textwrap.fill(level, 6) for level in levels]
        accuracy.set(xlim=(-0.5, len(names) - 0.5), xticks=range(len(names)), xticklabels=names)
        for ax in (taps, accuracy):
            ax.grid(axis="y")
    axes[0, 0].set_ylabel("Taps covered, of 9")
    axes[1, 0].set_ylabel("Test accuracy (%)")
    handles = [_line("layer 1", color=first, marker="o"), _line("layer 2", color=second, marker="s")]
    handles.append(_line("accuracy", color=PALETTE[0], marker="D"))
    handles.append(_line("taps by chance", linewidth=0.9, linestyle=DASHED))
    _legend_below(figure, handles, 4)
    return figure


def _levels(ax: Axes, values: Sequence[NDArray], colour: str, marker: str, shift: float) -> None:
    """Points for the seeds of each level, a little aside, and a line through their means."""
    x = np.arange(len(values)) + shift
    ax.plot(x, [seeds.mean() for seeds in values], color=colour, marker="_", markersize=9, zorder=2)
    look = {"s": 14, "marker": marker, "color": colour, "alpha": 0.6, "zorder": 3, "linewidth": 0}
    for place, seeds in zip(x, values, strict=True):
        ax.scatter(np.full(len(seeds), place), seeds, **look)


# --- theory: how exactly heads are taps ---------------------------------------------------------------------------


@styled
def rank_curves(curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]]) -> Figure:
    """What heads of dimension D_h lose of a convolution (Theorem 1 and the appendix), a colour a convolution.

    ``{title: (head dimensions, best, plain)}``: ``best`` (solid) is the share of the output lost with the D_h largest
    singular values of every tap, ``plain`` (dashed) with the first D_h output channels right and no others. Both are
    norms over norms; values below 1e-4 are drawn as zero.
    """
    figure, ax = _one_panel(SINGLE, 2.8)
    handles = []
    for (title, (dims, best, plain)), colour, marker in zip(curves.items(), PALETTE, "osD^vPX<>*", strict=False):
        best, plain = (100 * np.where(np.asarray(v) < 1e-4, 0, v) for v in (best, plain))
        look = {"color": colour, "marker": marker, "clip_on": False}
        handles += ax.plot(dims, best, zorder=3, label=title, **look)
        ax.plot(dims, plain, linestyle=DASHED, linewidth=0.9, markerfacecolor="white", zorder=2, **look)
    ax.set(xlabel="Dimension of a head, $D_h$", ylabel="Output lost (%)", ylim=(0, 100))
    ax.set_xticks(sorted({dim for dims, _, _ in curves.values() for dim in dims}))
    handles += [_line("$D_h$ largest singular values"), _line("first $D_h$ channels", linestyle=DASHED, linewidth=0.9)]
    _legend_below(figure, handles, 2)
    return figure


@styled
def agreement(expected: ArrayLike, given: ArrayLike) -> Figure:
    """Logits of a CNN and of its attention-only copy (images, classes): one against the other, and how far apart."""
    expected, given = (array(v, "logits (images, classes)").ravel() for v in (expected, given))
    figure = new_figure(DOUBLE, 2.3)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    ends = min(expected.min(), given.min()), max(expected.max(), given.max())
    left.plot(ends, ends, color="0.6", linewidth=0.7, zorder=1)
    left.plot(expected, given, ".", color=PALETTE[0], markersize=1.5, alpha=0.5, rasterized=True, zorder=2)
    left.set(xlabel="Logit, CNN", ylabel="Logit, attention only", aspect="equal")
    apart = np.abs(given - expected) / max(np.abs(expected).max(), np.finfo(float).tiny)
    floor = 1e-9
    bins = np.geomspace(floor, max(1e-5, 2 * apart.max()), 40)
    right.hist(np.maximum(apart, floor), bins=bins, weights=np.full(apart.size, 100 / apart.size), color=PALETTE[0])
    right.axvline(np.finfo(np.float32).eps, color="0.3", linestyle=DOTTED, label="float32 rounding")
    right.set(xscale="log", xlabel="Difference / largest logit (exact ones at the left end)", ylabel="Logits (%)")
    right.grid(axis="y")
    right.legend(loc="upper right")
    return figure


# --- what attention costs -----------------------------------------------------------------------------------------


@styled
def cost_growth(
    curves: Mapping[str, tuple[Sequence[float], ArrayLike]],
    bounds: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    label: str = "Time (ms)",
    slopes: Sequence[int] = (),
) -> Figure:
    """How a cost grows with the side of the grid, on log-log axes; each line's name stands at its end.

    Each curve is (sides (G,), costs (G,) or (G, 3)): the three are the median, the smallest and the largest, drawn as
    a bar. Each bound is (sides (G,), costs (G,)), in grey. A curve's name may have two parts, with a comma: the first
    decides on its colour, the second on its mark and dashes. ``slopes``: powers of the side, from a curve's start each.
    """
    figure, ax = _one_panel(DOUBLE, 3.1)
    parts = [name.partition(", ")[::2] for name in curves]
    first, second = (list(dict.fromkeys(words)) for words in zip(*parts, strict=True))
    marks = list(zip("osD^vP", ("-", DASHED, (0, (6, 1, 1, 1)), (0, (2, 1)), (0, (8, 1.5)), (0, (1, 1))), strict=True))
    for (one, other), name, (sides, costs) in zip(parts, curves, curves.values(), strict=True):
        middle, *spread = np.reshape(costs, (len(sides), -1)).T
        colour, mark = first.index(one), second.index(other)
        look = {"color": PALETTE[colour], "markersize": 4, "markerfacecolor": "white" if mark else PALETTE[colour]}
        look["marker"], look["linestyle"] = marks[mark if other else colour]
        ax.plot(sides, middle, label=name, **look)
        ax.vlines(sides, *(spread or (middle, middle)), color=PALETTE[colour], linewidth=0.8)
    for (name, (sides, costs)), dashes in zip((bounds or {}).items(), (DOTTED, (0, (4, 1, 1, 1))), strict=False):
        ax.plot(sides, costs, color="0.35", linestyle=dashes, linewidth=1.1, label=f"at least: {name}")
    for slope, (x, y) in zip(slopes, [line.get_data() for line in ax.lines], strict=False):
        ax.plot(x, y[0] * (x / x[0]) ** slope, color="0.5", linestyle=DASHED, linewidth=0.6, label=f"slope {slope}")
    ax.set(xscale="log", yscale="log", xlabel="Side of the grid (pixels)", ylabel=label)
    sides = sorted({side for sides, _ in curves.values() for side in sides})
    ax.set_xticks(sides, [f"{side:g}" for side in sides])
    ax.xaxis.minorticks_off()
    _name_ends(ax)
    return figure


def _name_ends(ax: Axes) -> None:
    """Write each line's name at its right end; of names that would touch, the upper one stands higher."""
    taken: dict[float, float] = {}  # at this end: the height up to which names stand, in points
    for line in sorted(ax.lines, key=lambda line: line.get_ydata()[-1]):
        end = line.get_xydata()[-1]
        at = ax.transData.transform(end)[1] * 72 / ax.get_figure(root=True).dpi
        taken[end[0]] = place = max(at, taken.get(end[0], -np.inf) + 8)
        ax.annotate(line.get_label(), end, (6, place - at), textcoords="offset points", va="center", fontsize=6.5)


@styled
def stacked_costs(rows: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """A horizontal bar for each row, made of its parts in the given order; the sum is written at its end."""
    frame = pd.DataFrame(rows).fillna(0.0).T  # (rows, parts)
    figure, ax = _one_panel(DOUBLE, max(1.5, 0.65 + 0.3 * len(frame)))
    ax.grid(visible=False)
    frame.plot.barh(stacked=True, ax=ax, width=0.62, color=PALETTE[: frame.shape[1]], legend=False)
    totals = frame.sum(axis=1)
    texts = [f"{total:.3g}" if total < 100 else f"{total:,.0f}" for total in totals]
    ax.bar_label(ax.containers[-1], texts, padding=3, fontsize=7)
    ax.set(xlabel=label, xlim=(0, 1.12 * totals.max()))
    ax.invert_yaxis()
    if frame.shape[1] > 1:
        figure.legend(loc="outside right center")
    return figure


@styled
def cost_ratios(costs: Mapping[str, tuple[float, float]]) -> Figure:
    """What the attention-only network costs, as a multiple of the CNN: ``{quantity: (CNN, attention)}``."""
    names, y = list(costs), np.arange(len(costs))
    ratios = np.array([attention / cnn for cnn, attention in costs.values()])
    figure, ax = _one_panel(DOUBLE, 0.24 * len(names) + 0.75)
    ax.hlines(y, 1, ratios, color=MODELS["SA quadratic"], linewidth=1.6)
    ax.plot(ratios, y, "o", color=MODELS["SA quadratic"], markersize=5, zorder=3)
    ax.axvline(1, color="black", linewidth=1.2, zorder=2)
    for place, ratio in enumerate(ratios):
        text = f"{ratio:.3g}×" if ratio < 1000 else f"{ratio:,.0f}×"
        ax.annotate(text, (max(ratio, 1), place), (6, 0), textcoords="offset points", va="center")
    left, right = min(ratios.min(), 1) / 1.25, max(ratios.max(), 1)
    ax.set(xscale="log", xlim=(left, right * (right / left) ** 0.1), ylim=(len(names) - 0.4, -0.6))
    ax.set_yticks(y, names)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if right / left < 1000 else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.xaxis.minorticks_off()
    ax.set_xlabel("Attention-only network, as a multiple of the CNN (black line)")
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return figure
