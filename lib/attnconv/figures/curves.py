"""Curves, bars and points: accuracy, what layers do over training and depth, approximations, and costs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from attnconv.figures.maps import draw_map, probability_scale
from attnconv.figures.style import (
    DASHED,
    DOTTED,
    DOUBLE,
    MODELS,
    PALETTE,
    SINGLE,
    by_rows,
    checked,
    drawable,
    layer_colours,
    model_colours,
    new_figure,
    ramp,
    rows_and_columns,
    styled,
)

_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def _line(label: str, **look) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], label=label, **{"color": "0.4"} | look)


def _one_panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    ax = figure.add_subplot()
    ax.grid(axis="y")
    return figure, ax


def _legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    figure.legend(handles=by_rows(list(handles), columns), loc="outside lower center", ncols=columns)


# --- accuracy: figure 2 -------------------------------------------------------------------------------------------


@styled
def accuracy_curves(curves: Mapping[str, ArrayLike], published: Mapping[str, float] | None = None) -> Figure:
    """Test accuracy over epochs, a line a model (figure 2): ``{title: (seeds, epochs)}``, accuracies in [0, 1].

    The line is the mean over seeds and the band runs from the worst to the best seed. Curves may differ in length; NaN
    marks epochs that a seed has not seen. ``published``: accuracies in [0, 1] by title, drawn as dotted levels.

    Raises:
        ValueError: no curves, or one that is not (seeds, epochs).
    """
    drawable(curves, "curves")
    figure = new_figure(DOUBLE, 2.7, layout=None)
    ax = figure.add_axes((0.08, 0.15, 0.56, 0.81))
    ends = []
    for title, colour in model_colours(curves).items():
        values = 100 * checked(curves[title], 2, name=title, shape="(seeds, epochs)")
        values = values[:, np.isfinite(values).any(0)]
        epochs = 1 + np.arange(values.shape[1])
        mean = np.nanmean(values, axis=0)
        ax.plot(epochs, mean, color=colour, label=title, marker="o" if len(epochs) == 1 else None)
        if len(values) > 1:
            low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
            ax.fill_between(epochs, low, high, color=colour, alpha=0.2, linewidth=0)
        ends.append((epochs[-1], mean[-1], title, colour))
    last = max(x for x, *_ in ends)
    for level in sorted(set((published or {}).values())):
        titles = ", ".join(title for title, accuracy in published.items() if accuracy == level)
        ax.axhline(100 * level, color="0.45", linestyle=DOTTED, linewidth=0.9, zorder=1)
        ends.append((last, 100 * level, f"published: {titles}", "0.4"))
    ax.set(xlabel="Epoch", ylabel="Test accuracy (%)")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.margins(x=0.01)
    ax.grid(axis="y")
    _label_ends(ax, ends)
    return figure


def _label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write beside the axes, from the top down, what each line (x, y, title, colour) is and where it ends."""
    ends = sorted(ends, key=lambda end: -end[1])
    low, high = ax.get_ylim()
    wanted = np.array([(y - low) / (high - low) for _, y, *_ in ends])
    room = 0.075 * np.arange(len(ends))  # for the labels above, in heights of the axes
    places = np.minimum.accumulate(wanted + room) - room
    places = np.maximum(places, room[::-1] - 0.1)  # room for the labels below
    for (x, y, title, colour), place in zip(ends, places, strict=True):
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)}
        look = {"va": "center", "color": colour, "fontsize": 6.5, "arrowprops": arrow, "annotation_clip": False}
        ax.annotate(f"{title} {y:.1f}", (x, y), xytext=(1.05, place), textcoords=ax.transAxes, **look)


# --- layers over training and depth -------------------------------------------------------------------------------


@styled
def reach_over_training(reach: Mapping[str, ArrayLike], grid: tuple[int, int]) -> Figure:
    """How far each layer looks during training, a panel a model: ``{title: (epochs, layers)}``, in pixels.

    A layer's reach is the mean over its heads of the mean distance from the query (`heads.Description`). One scale for
    all models. Two levels tell the reach, from the central query of an image of that height and width, of attention
    that is spread evenly, and the distance of the farthest pixel.
    """
    drawable(reach, "reach")
    values = [checked(v, 2, name=title, shape="(epochs, layers)") for title, v in reach.items()]
    colours = layer_colours(max(v.shape[1] for v in values))
    distance = np.hypot(*(np.indices(grid) - np.reshape(grid, (2, 1, 1)) // 2))
    levels = {"attention spread evenly": (distance.mean(), DASHED), "farthest pixel": (distance.max(), DOTTED)}
    rows, columns = rows_and_columns(len(reach))
    figure = new_figure(SINGLE if columns == 1 else DOUBLE, rows * 1.75 + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for ax in axes[len(reach) :]:
        ax.remove()
    for place, (ax, title, lines) in enumerate(zip(axes, reach, values, strict=False)):
        for layer, colour in zip(lines.T, colours, strict=False):
            ax.plot(layer, color=colour, marker="o" if len(lines) == 1 else None)
        for name, (level, dashes) in levels.items():
            ax.axhline(level, color="0.4", linewidth=0.8, linestyle=dashes, label=name, zorder=1)
        ax.set_title(textwrap.fill(title, 36))
        ax.set_xlabel("Epoch" if place + columns >= len(reach) else "")
        ax.set_ylabel("Reach (pixels)" if place % columns == 0 else "")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.grid(axis="y")
    axes[0].set_ylim(bottom=0)
    handles = [_line(f"layer {i + 1}", color=c) for i, c in enumerate(colours)]
    handles += [_line(name, linewidth=0.8, linestyle=dashes) for name, (_, dashes) in levels.items()]
    _legend_below(figure, handles, len(handles) if columns > 1 else 3)
    return figure


@styled
def kernel_closeness(shares: ArrayLike, sizes: Sequence[int], uniform: Sequence[float], start: ArrayLike) -> Figure:
    """How close each layer is to a k x k convolution: shares (layers, sizes) of its attention inside k x k windows.

    Shares are in [0, 1], of the window around the query, mean over heads (`heads.kernel_mass`). ``start`` (layers,
    sizes): before training, hollow; ``uniform`` (sizes,): of attention spread evenly, dashed.
    """
    shape = f"(layers, {len(sizes)} sizes)"
    shares, start = (100 * checked(v, 2, name="shares", shape=shape) for v in (shares, start))
    figure, ax = _one_panel(SINGLE, 2.2)
    layers, colours = 1 + np.arange(len(shares)), ramp("crest", len(sizes))
    for colour, after, before, level in zip(colours, shares.T, start.T, uniform, strict=True):
        ax.plot(layers, after, color=colour, marker="o", clip_on=False, zorder=3)
        ax.plot(layers, before, "o", markerfacecolor="white", color=colour, clip_on=False, zorder=2.5)
        ax.axhline(100 * level, color=colour, linewidth=0.7, linestyle=DASHED)
    ax.set(ylim=(0, 100), xlim=(0.7, len(shares) + 0.3), xticks=layers, xlabel="Layer", ylabel="Attention inside (%)")
    handles = [_line(f"{k} × {k}", color=c, marker="o") for k, c in zip(sizes, colours, strict=True)]
    handles.append(_line("uniform attention", linewidth=0.7, linestyle=DASHED))
    handles.append(_line("before training", marker="o", markerfacecolor="white", linestyle="none"))
    _legend_below(figure, handles, 3)
    return figure


@styled
def content_share(shares: ArrayLike) -> Figure:
    """Content's share of what makes the score vary, by layer: a point for each of (layers, heads), 1 is all of it.

    See `heads.content_share`: it leaves [0, 1] where content and position cancel. Bars are layer means.
    """
    shares = 100 * checked(shares, 2, name="shares", shape="(layers, heads)")
    layers = len(shares)
    figure, ax = _one_panel(SINGLE, 2.3)
    for layer, values in enumerate(shares):
        if np.isfinite(values).any():
            _points_and_mean(ax, layer + 1, values, PALETTE[0], 0.3)
    low, high = np.nanmin(shares, initial=0), np.nanmax(shares, initial=100)
    room = 0.04 * (high - low)
    ax.set(xlim=(0.5, layers + 0.5), ylim=(low - room * (low < 0), high + room * (high > 100)))
    for edge in (0, 100):
        ax.axhline(edge, color="0.75", linewidth=0.6, zorder=0)
    ax.set(xticks=1 + np.arange(layers), xlabel="Layer", ylabel="Share of the score's variance\nowed to content (%)")
    point = {"marker": "o", "linestyle": "none", "color": PALETTE[0]}
    _legend_below(figure, [_line("a head", **point), _line("mean of the layer", color="black", linewidth=1.4)], 2)
    return figure


def _points_and_mean(ax: Axes, x: float, values: NDArray, colour: str, half_width: float, **look) -> None:
    """A point for each value (n,), side by side around x, and a black bar at their mean."""
    places = x + (np.linspace(-0.85, 0.85, len(values)) * half_width if len(values) > 1 else np.zeros(1))
    look = {"s": 12, "color": colour, "edgecolor": "white", "linewidth": 0.3, "clip_on": False, "zorder": 3} | look
    ax.scatter(places, values, **look)
    ax.hlines(np.nanmean(values), x - half_width, x + half_width, color="black", linewidth=1.4, zorder=2)


@styled
def coverage_grid(factors: Mapping[str, Mapping[str, Mapping[str, ArrayLike]]]) -> Figure:
    """How what was varied decides whether heads form a kernel: a panel for each factor, its levels side by side.

    Above, how many of the nine cells of a 3 x 3 kernel have a head, in layers 1 and 2: a point for each seed, and a
    line through the means. Below, test accuracy.

    ``{factor: {level: values}}``. The values of a level are ``covered`` (seeds, 2), cells of layers 1 and 2;
    ``accuracy`` (seeds,), in [0, 1]; and ``chance``, the cells that heads placed at random cover, dashed.
    """
    drawable(factors, "factors")
    figure = new_figure(DOUBLE, 3.4)
    widths = [len(levels) for levels in factors.values()]
    axes = figure.subplots(2, len(factors), squeeze=False, sharex="col", sharey="row", width_ratios=widths)
    layers = [("layer 1", layer_colours(2)[0], "o", -0.1), ("layer 2", layer_colours(2)[1], "s", 0.1)]
    for (cells, accuracy), (factor, levels) in zip(axes.T, factors.items(), strict=True):
        covered = [checked(v["covered"], 2, name="covered", shape="(seeds, 2)") for v in levels.values()]
        for layer, (_, *look) in enumerate(layers):
            _levels(cells, [seeds[:, layer] for seeds in covered], *look)
        right = [100 * checked(v["accuracy"], 1, name="accuracy", shape="(seeds,)") for v in levels.values()]
        _levels(accuracy, right, PALETTE[0], "D", 0)
        for place, values in enumerate(levels.values()):
            cells.hlines(values["chance"], place - 0.4, place + 0.4, color="0.4", linewidth=0.9, linestyle=DASHED)
        cells.set(title=factor, ylim=(-0.3, 9.3), yticks=(0, 3, 6, 9))
        names = [textwrap.fill(level, 6) for level in levels]
        accuracy.set(xlim=(-0.5, len(names) - 0.5), xticks=range(len(names)), xticklabels=names)
        for ax in (cells, accuracy):
            ax.grid(axis="y")
    axes[0, 0].set_ylabel("Cells covered, of 9")
    axes[1, 0].set_ylabel("Test accuracy (%)")
    handles = [_line(name, color=colour, marker=marker) for name, colour, marker, _ in layers]
    handles.append(_line("accuracy", color=PALETTE[0], marker="D"))
    handles.append(_line("cells by chance", linewidth=0.9, linestyle=DASHED))
    _legend_below(figure, handles, len(handles))
    return figure


def _levels(ax: Axes, values: Sequence[NDArray], colour: str, marker: str, shift: float) -> None:
    """Points for the seeds of each level, a little aside, and a line through their means."""
    x = np.arange(len(values)) + shift
    ax.plot(x, [np.nanmean(seeds) for seeds in values], color=colour, marker="_", markersize=9, zorder=2)
    for place, seeds in zip(x, values, strict=True):
        ax.scatter(
            np.full(len(seeds), place), seeds, s=14, marker=marker, color=colour, alpha=0.6, zorder=3, linewidth=0
        )


# --- theory: how exactly heads are taps ---------------------------------------------------------------------------


@styled
def hardening(
    alphas: Sequence[float], maps: ArrayLike, missed: ArrayLike, curve: tuple[ArrayLike, ArrayLike]
) -> Figure:
    """A quadratic head hardening into one tap as alpha grows (Lemma 2).

    ``alphas`` (A,); ``maps`` (A, k, k): the head's attention around its query, which is in the middle; ``missed`` (A,):
    the measured probability outside its shift; ``curve``: (alpha, missed mass) of the closed form 1 - 1 / S(alpha)^2
    with S = sum_n exp(-alpha n^2). Masses of exactly 0 sit on the lower edge as triangles.
    """
    alphas, missed = np.asarray(alphas, dtype=float), np.asarray(missed, dtype=float)
    maps = checked(maps, 3, name="maps", shape="(alphas, k, k)")
    if not len(alphas) == len(maps) == len(missed):
        raise ValueError(f"{len(alphas)} alphas, {len(maps)} maps and {len(missed)} missed masses do not match.")
    figure = new_figure(DOUBLE, 3.4)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1, 1.55))
    scale, middle = probability_scale(1), (maps.shape[1] // 2, maps.shape[2] // 2)
    axes = upper.subplots(1, len(alphas), squeeze=False)[0]
    for ax, alpha, values in zip(axes, alphas, maps, strict=True):
        draw_map(ax, values, scale, middle)
        ax.set(aspect="equal", title=f"α = {alpha:g}")
    bar = upper.colorbar(scale, ax=list(axes), ticks=[0, 0.1, 0.5, 1], format=_PLAIN, fraction=0.03, pad=0.01)
    bar.set_label("Probability")
    bar.outline.set_linewidth(0.4)
    _draw_missed(lower.add_subplot(), alphas, missed, curve)
    return figure


def _draw_missed(ax: Axes, alphas: NDArray, missed: NDArray, curve: tuple[ArrayLike, ArrayLike]) -> None:
    """The lower panel of `hardening`."""
    positive = missed > 0
    floor = 10.0 ** math.floor(math.log10(max(missed[positive].min(initial=1), 1e-16)) - 1)
    x, y = (np.asarray(values, dtype=float) for values in curve)
    ax.plot(x, np.where(y >= floor, y, np.nan), color="0.3", label="closed form", zorder=2)
    ax.plot(alphas[positive], missed[positive], "o", color=PALETTE[0], label="measured", zorder=3)
    if not positive.all():
        zero = alphas[~positive]
        ax.plot(zero, np.full(len(zero), floor), "v", color=PALETTE[3], label="exactly 0", clip_on=False, zorder=3)
    ax.set(xscale="log", yscale="log", ylim=(floor, 2), xlabel="α (per squared pixel)", ylabel="Mass outside the shift")
    ax.xaxis.set_major_formatter(_PLAIN)
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(which="major")
    ax.legend(loc="lower left")


@styled
def rank_curves(curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]]) -> Figure:
    """What heads of dimension D_h lose of a convolution (Theorem 1 and the appendix), a colour a convolution.

    ``{title: (head dimensions, best, plain)}``: ``best`` (solid) is the share of the output lost with the D_h largest
    singular values of every tap, ``plain`` (dashed) with the first D_h output channels right and no others. Both are
    norms over norms; values below 1e-4 are drawn as zero.
    """
    drawable(curves, "curves")
    figure, ax = _one_panel(SINGLE, 2.8)
    looks = [{"color": colour, "marker": marker} for colour, marker in zip(PALETTE, "osD^vPX<>*", strict=True)]
    for index, (dims, best, plain) in enumerate(curves.values()):
        best, plain = (100 * np.where(np.asarray(v) < 1e-4, 0, v) for v in (best, plain))
        look = looks[index % len(looks)]
        ax.plot(dims, best, clip_on=False, zorder=3, **look)
        ax.plot(dims, plain, linestyle=DASHED, linewidth=0.9, markerfacecolor="white", clip_on=False, zorder=2, **look)
    ax.set(xlabel="Dimension of a head, $D_h$", ylabel="Output lost (%)", ylim=(0, 100))
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    handles = [_line(title, **looks[index % len(looks)]) for index, title in enumerate(curves)]
    handles += [_line("$D_h$ largest singular values"), _line("first $D_h$ channels", linestyle=DASHED, linewidth=0.9)]
    _legend_below(figure, handles, 2)
    return figure


@styled
def agreement(expected: ArrayLike, given: ArrayLike) -> Figure:
    """Logits of a CNN and of its attention-only copy (images, classes): one against the other, and how far apart."""
    expected, given = (checked(v, 2, name="logits", shape="(images, classes)").ravel() for v in (expected, given))
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


@styled
def kernel_reading(sizes: Sequence[int], outside: ArrayLike, outside_at_start: ArrayLike, lost: ArrayLike) -> Figure:
    """How much of each attention layer is a k x k convolution, read out of it (`equivalence.attention_to_conv`).

    For every layer and size of kernel: ``outside`` (layers, sizes, heads) attention mass off the kernel, a point a
    head, NaN where there is none, and the same before training, of which the means are shown; ``lost`` (layers, sizes)
    the expected share of the output that the kernel misses.
    """
    shape = "(layers, sizes, heads)"
    inside, start = (100 - 100 * checked(v, 3, name="outside", shape=shape) for v in (outside, outside_at_start))
    lost = 100 * checked(lost, 2, name="lost", shape="(layers, sizes)")
    figure = new_figure(DOUBLE, 2.45)
    left, right = figure.subplots(1, 2)
    layers, half = 1 + np.arange(len(inside)), 0.36 / len(sizes)  # of the place of a size
    diamond = {"marker": "D", "color": "black", "markerfacecolor": "white", "linestyle": "none", "markersize": 3}
    for index, colour in enumerate(ramp("crest", len(sizes))):
        x = layers + (2 * index + 1 - len(sizes)) * half
        for place, values in zip(x, inside[:, index], strict=True):
            _points_and_mean(left, place, values, colour, 0.8 * half, s=7, linewidth=0)
        left.plot(x, np.nanmean(start[:, index], axis=-1), clip_on=False, zorder=4, **diamond)
        right.bar(x, lost[:, index], width=1.7 * half, color=colour, label=f"{sizes[index]} × {sizes[index]}")
    left.set(ylabel="Attention inside the kernel (%)", ylim=(0, 100), title="Heads")
    right.set(ylabel="Output that the kernel misses (%)", ylim=(0, max(100, np.nanmax(lost))), title="Output")
    for ax in (left, right):
        ax.set(xlabel="Layer", xticks=layers, xlim=(0.5, len(layers) + 0.5))
        ax.grid(axis="y")
    handles = [*right.containers, _line("mean of the heads", color="black", linewidth=1.4)]
    handles.append(_line("their mean before training", **diamond))
    _legend_below(figure, handles, len(handles))
    return figure


# --- one run ------------------------------------------------------------------------------------------------------


@styled
def lines(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    xlabel: str,
    ylabel: str,
    levels: Mapping[str, float] | None = None,
    log: bool = False,
) -> Figure:
    """Curves by name, each (x (n,), y (n,)), and dashed ``levels``, from 0 up or, with ``log``, over three decades."""
    figure, ax = _one_panel(SINGLE, 2.0)
    for (name, (x, y)), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(x, y, color=colour, label=name)
    for (name, level), shade in zip((levels or {}).items(), ("0.6", "0"), strict=False):
        ax.axhline(level, color=shade, linewidth=0.8, linestyle=DASHED, label=name)
    highest = max(np.max(y) for _, y in curves.values())
    ax.set(xlabel=xlabel, ylabel=ylabel, yscale="log" if log else "linear")
    ax.set_ylim((highest / 1000, 2 * highest) if log else (0, None))
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if len(curves) + len(levels or {}) > 1:
        figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def learning_curve(metrics: Sequence[Mapping[str, float]]) -> Figure:
    """Loss and accuracy of one run after every epoch: the lines of its metrics.jsonl, as dictionaries."""
    epochs = [line["epoch"] for line in metrics]
    figure = new_figure(DOUBLE, 2.1)
    kinds = (("loss", 1, "Loss (nats)"), ("accuracy", 100, "Accuracy (%)"))
    for ax, (name, factor, unit) in zip(figure.subplots(1, 2), kinds, strict=True):
        for split, colour in (("train", PALETTE[0]), ("validation", PALETTE[2]), ("test", PALETTE[1])):
            if f"{split}_{name}" in metrics[0]:
                values = [factor * line[f"{split}_{name}"] for line in metrics]
                ax.plot(epochs, values, color=colour, marker="o" if len(epochs) <= 30 else None, label=split)
        ax.set(xlabel="Epoch", ylabel=unit)
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
        ax.grid(which="major")
        ax.legend()
    return figure


# --- what attention costs -----------------------------------------------------------------------------------------


@styled
def cost_growth(
    curves: Mapping[str | tuple[str, str], tuple[ArrayLike, ArrayLike]],
    bounds: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    label: str = "Time (ms)",
) -> Figure:
    """How a cost grows with the side of the grid, on log-log axes, with lower bounds as dotted lines.

    Each curve is (sides (G,), costs (G,) or (G, 3)): the three are the median, the smallest and the largest, drawn as
    a bar. Each bound is (sides (G,), costs (G,)). The name of a curve may be a pair: the first word then decides on its
    colour and the second on its mark, hollow from the second on.
    """
    figure, ax = _one_panel(DOUBLE, 3.1)
    handles, pairs = [], [name if isinstance(name, tuple) else (name, "") for name in curves]
    first, second = (list(dict.fromkeys(words)) for words in zip(*pairs, strict=True))
    for (one, other), (sides, costs) in zip(pairs, curves.values(), strict=True):
        costs = np.asarray(costs, dtype=float).reshape(len(sides), -1)
        spread = np.abs(costs[:, 1:].T - costs[:, 0]) if costs.shape[1] == 3 else None
        colour, kind = PALETTE[first.index(one) % len(PALETTE)], second.index(other)
        marker = "osD^vP"[(kind if len(second) > 1 else first.index(one)) % 6]
        look = {"marker": marker, "markersize": 4, "elinewidth": 0.8, "capsize": 1.5, "color": colour}
        look |= {"markerfacecolor": "white", "linestyle": DASHED} if kind else {}
        look["label"] = ", ".join(filter(None, (one, other)))
        handles.append(ax.errorbar(sides, costs[:, 0], yerr=spread, **look))
    for (name, (sides, costs)), dashes in zip((bounds or {}).items(), (DOTTED, (0, (4, 1, 1, 1))), strict=False):
        handles += ax.plot(sides, costs, color="0.35", linestyle=dashes, linewidth=1.1, label=f"at least: {name}")
    ax.set(xscale="log", yscale="log", xlabel="Side of the grid (pixels)", ylabel=label)
    sides = sorted({side for sides, _ in curves.values() for side in sides})
    ax.set_xticks(sides, [f"{side:g}" for side in sides])
    ax.xaxis.minorticks_off()
    figure.legend(handles=handles, loc="outside right center")
    return figure


@styled
def stacked_costs(rows: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """A horizontal bar for each row, made of its parts in the given order; the sum is written at its end.

    A single row has no other to be compared with: its parts are drawn one below the other instead.
    """
    drawable(rows, "rows")
    title, frame = "", pd.DataFrame(rows).fillna(0.0)  # (parts, rows)
    if len(rows) == 1:
        (title,) = frame
        frame = frame.T
    figure, ax = _one_panel(DOUBLE, max(1.5, 0.65 + 0.3 * frame.shape[1]))
    ax.grid(visible=False)
    frame.T.plot.barh(stacked=True, ax=ax, width=0.62, color=PALETTE[: len(frame)], legend=False)
    totals = [f"{total:.3g}" if total < 100 else f"{total:,.0f}" for total in frame.sum()]
    ax.bar_label(ax.containers[-1], totals, padding=3, fontsize=7)
    ax.set(title=title, xlabel=label, xlim=(0, 1.12 * frame.sum().max()))
    ax.invert_yaxis()
    if len(frame) > 1:
        figure.legend(loc="outside right center")
    return figure


@styled
def cost_ratios(costs: Mapping[str, tuple[float, float]], texts: Mapping[str, tuple[str, str]]) -> Figure:
    """What the attention-only network costs, as a multiple of the CNN: ``{quantity: (CNN, attention)}``.

    ``texts``: how to write the two numbers of each quantity.
    """
    drawable(costs, "costs")
    names, y = list(costs), np.arange(len(costs))
    ratios = np.array([attention / cnn for cnn, attention in costs.values()])
    figure, ax = _one_panel(DOUBLE, 0.24 * len(names) + 0.75)
    ax.hlines(y, 1, ratios, color=MODELS["SA quadratic"], linewidth=1.6)
    ax.plot(ratios, y, "o", color=MODELS["SA quadratic"], label="attention only", markersize=5, zorder=3)
    ax.axvline(1, color="black", linewidth=1.2, zorder=2)
    for place, (name, ratio) in enumerate(zip(names, ratios, strict=True)):
        shown = f"{ratio:.3g}×" if ratio < 1000 else f"{ratio:,.0f}×"
        text = f"{shown}   ({texts[name][0]} → {texts[name][1]})"
        offset = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 6.5}
        ax.annotate(text, (max(ratio, 1), place), **offset)
    left, high = min(ratios.min(), 1) / 1.25, max(ratios.max(), 1)
    right = left * (high / left) ** (1 / 0.68)  # room for the longest text
    ax.set(xscale="log", xlim=(left, right), ylim=(len(names) - 0.4, -0.6), yticks=y, yticklabels=names)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if right / left < 1000 else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    ax.xaxis.minorticks_off()
    ax.set_xlabel("Attention-only network, as a multiple of the CNN (black line)")
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return figure
