"""Where heads look, as points and Gaussians over shifts: figures 3 and 4 of the paper, and heads as a kernel's taps.

Shifts count rows, then columns, from the query pixel, whose frame is black; rows point down as in an image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike, NDArray

from attnconv.figures.style import (
    DOTTED,
    DOUBLE,
    PALETTE,
    SINGLE,
    by_rows,
    checked,
    drawable,
    head_colours,
    head_marker,
    new_figure,
    panel_titles,
    rows_and_columns,
    settle,
    styled,
)

_HALF = {0.5: "-"}
"""The share of a Gaussian's mass that an ellipse holds, and how it is drawn."""
_MARGIN = 0.45
"""Pixels shown beyond the shifts that exist: room for the image's frame, and none for a tick."""
_COVERED, _OUTSIDE = "#CFE3F5", "0.88"


# --- grids of shifts ----------------------------------------------------------------------------------------------


def _image(grid: tuple[int, int]) -> NDArray:
    """The edges of the image, as shifts from its central query (H // 2, W // 2): (rows and columns, low and high)."""
    return np.array([[-(side // 2) - 0.5, side - side // 2 - 0.5] for side in grid])


def _view(centres: NDArray, half_width: float | None, grid: tuple[int, int] | None) -> NDArray:
    """The lowest and highest shift to show: (rows and columns, low and high).

    As far as asked for, or as the centres need, but not further than shifts exist (8.5 pixels where that is unknown).
    """
    if half_width is None:
        farthest = np.abs(centres[np.isfinite(centres)]).max(initial=0)
        half_width = max(math.ceil(farthest - 1e-6) + 1.5, 2.5)
        half_width = half_width if grid else min(half_width, 8.5)
    view = np.array([[-half_width, half_width]] * 2, dtype=float)
    if grid:
        low, high = _image(grid).T
        view = np.clip(view.T, low - _MARGIN, high + _MARGIN).T
    return view


def _shift_axes(ax: Axes, view: NDArray, grid: tuple[int, int] | None = None, ticks: int = 9) -> None:
    """Axes over shifts: the pixel grid, the query's frame, and grey where the image of the central query ends."""
    (top, bottom), (left, right) = view
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    for spine in ax.spines.values():
        spine.set_visible(True)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(ticks, integer=True, steps=[1, 2, 4, 10]))
    for draw, (low, high) in ((ax.axhline, view[0]), (ax.axvline, view[1])):
        for border in np.arange(math.ceil(low), math.floor(high) + 2) - 0.5:
            draw(border, color="0.9", linewidth=0.4, zorder=0.2)
    if grid:
        (top, bottom), (left, right) = _image(grid)
        ax.set_facecolor(_OUTSIDE)
        edge = {"facecolor": "white", "edgecolor": "0.35", "linewidth": 0.8, "zorder": 0.1}
        ax.add_patch(Rectangle((left, top), right - left, bottom - top, label="image", **edge))
    ax.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, edgecolor="black", linewidth=1.3, zorder=2, label="query"))


def _layer_panels(
    layers: int,
    heads: int,
    view: NDArray,
    grid: tuple[int, int] | None,
    titles: Sequence[str] | None,
    entries: Sequence[str],
    above: float = 0,
) -> tuple[Figure, SubFigure, list[Axes]]:
    """A figure, its part above the legend, and a grid of shifts for each layer, all with the same axes.

    ``above``: inches to leave for a heading.
    """
    rows, columns = rows_and_columns(layers)
    side = {1: SINGLE - 0.6, 2: 2.6}.get(columns, (DOUBLE - 0.6) / columns)
    size = min(DOUBLE, columns * side + 0.5), rows * (side + 0.21) + 0.28 + above
    figure, panels = _with_head_legend(*size, heads, entries, layers)
    axes = []
    for layer, title in enumerate(panel_titles(titles, layers, "Layer")):
        ax = panels.add_subplot(rows, columns, layer + 1)
        _shift_axes(ax, view, grid)
        ax.set_title(title)
        ax.tick_params(labelleft=layer % columns == 0, labelbottom=layer + columns >= layers)
        ax.set_ylabel("Row shift (pixels)" if layer % columns == 0 else "")
        ax.set_xlabel("Column shift (pixels)" if layer + columns >= layers else "")
        axes.append(ax)
    return figure, panels, axes


def _with_head_legend(
    width: float, height: float, heads: int, entries: Sequence[str], layers: int
) -> tuple[Figure, SubFigure]:
    """A figure, and its part for the panels, of that size in inches: below lie the heads, then the other marks."""
    columns, across = min(heads, int((width - 0.2) / 0.3)), int(width / 1.2)
    rows = math.ceil(len(entries) / across)
    figure = new_figure(width, height + 0.19 + 0.14 * math.ceil(heads / columns) + 0.15 * rows)
    panels, foot = figure.subfigures(2, 1, height_ratios=(height, figure.get_figheight() - height))
    look = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 5.5}
    handles = [
        Line2D([], [], color=colour, marker=head_marker(head), label=f"{head + 1}", **look)
        for head, colour in enumerate(head_colours(heads))
    ]
    close = {"borderaxespad": 0.2, "borderpad": 0.1, "columnspacing": 0.8, "labelspacing": 0.3}
    title = "Head" if layers == 1 else "Head (its colour holds within a layer only)"
    handles = by_rows(handles, columns)
    foot.legend(handles=handles, ncols=columns, title=title, loc="upper center", handletextpad=0.1, **close)
    across = math.ceil(len(entries) / rows)
    foot.legend(handles=by_rows(_entries(entries), across), ncols=across, loc="lower center", **close)
    return figure, panels


_ENTRIES = {
    "query pixel": {"marker": "s", "color": "black", "markerfacecolor": "none", "markeredgewidth": 1.3},
    "50% of the mass": {"linestyle": "-", "linewidth": 0.9},
    "90%": {"linestyle": DOTTED, "linewidth": 0.9},
    "flat: 50% do not fit in": {"marker": "o", "markerfacecolor": "white", "markeredgewidth": 1.1},
    "beyond the panel": {"marker": ">"},
    "before training": {"marker": "o", "linestyle": "-", "alpha": 0.4, "markersize": 3.5},
    "dropped": {"marker": "x", "color": "0.55"},
    "cell covered": {"marker": "s", "color": _COVERED, "markersize": 6},
    "outside the image": {"marker": "s", "color": _OUTSIDE, "markersize": 6},
    "other queries": {"marker": "s", "color": "0.84", "markersize": 6},
    "centre of a head": {"marker": "o", "color": PALETTE[0]},
}


def _entries(names: Sequence[str]) -> list[Line2D]:
    """Entries of the legend."""
    plain = {"color": "0.4", "linestyle": "none", "markersize": 4.5}
    return [Line2D([], [], label=name, **plain | _ENTRIES[name]) for name in names]


def _around(centres: NDArray, view: NDArray, grid: tuple[int, int] | None) -> list[str]:
    """Names of the entries for what every figure of centres may hold."""
    beyond = ((centres < view[:, 0]) | (centres > view[:, 1])).any()
    edge = grid is not None and (np.abs(view) > np.abs(_image(grid))).any()
    return ["query pixel", *["beyond the panel"] * bool(beyond), *["outside the image"] * bool(edge)]


# --- heads as marks -----------------------------------------------------------------------------------------------


def _petals(places: NDArray, near: float) -> NDArray:
    """How far to move marks that would hide each other, in their diameters: (n, 2).

    Marks nearer than ``near`` to the first of them stand around their place like petals, each touching the next.
    """
    groups: list[list[int]] = []
    for index in np.flatnonzero(np.isfinite(places).all(-1)):
        group = next((g for g in groups if np.hypot(*(places[g[0]] - places[index])) < near), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    moved = np.zeros_like(places)
    for group in groups:
        if len(group) > 1:
            angle = 2 * np.pi * np.arange(len(group)) / len(group)
            moved[group] = np.stack([np.cos(angle), np.sin(angle)], -1) / (2 * math.sin(np.pi / len(group)))
    return moved


def _is_flat(precision: NDArray, view: NDArray) -> bool:
    """Whether the panel is too small for the ellipse that holds half of the Gaussian, even across."""
    if not np.isfinite(precision).all():
        return False
    steepest = np.linalg.eigvalsh((precision + precision.T) / 2).max()
    return 2 * math.log(2) / max(steepest, 1e-12) > (np.ptp(view, axis=1).min() / 2) ** 2


def _ellipse(ax: Axes, centre: NDArray, precision: NDArray, share: float, view: NDArray, **look) -> Ellipse:
    """The ellipse that holds a share of a Gaussian with precision Sigma^{-1}.

    Half axes are sqrt(-2 log(1 - share)) / sqrt(eigenvalue). Those of flat directions are cut far outside the axes, so
    that a head which smears over a line shows as two parallel lines.
    """
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    far = 100 * np.ptp(view)
    width, height = 2 * math.sqrt(-2 * math.log1p(-share)) / np.sqrt(np.maximum(values, far**-2))
    angle = math.degrees(math.atan2(*vectors[:, 0]))
    return ax.add_patch(Ellipse((centre[1], centre[0]), width, height, angle=angle, facecolor="none", **look))


def _draw_marks(ax: Axes, centres: NDArray, view: NDArray, hollow: Sequence[bool]) -> list[Artist]:
    """A mark for each head (h, 2): side by side where they coincide, an arrow at the edge for those beyond it."""
    places, size = np.clip(centres, *view.T), 22
    diameter = math.sqrt(size) / 72  # inches
    moved = _petals(places, near=0.02 * np.ptp(view, axis=1).max()) * diameter
    marks = []
    for head, colour in enumerate(head_colours(len(centres))):
        if not np.isfinite(centres[head]).all():
            continue
        (row, column), (down, right) = places[head], centres[head] - places[head]
        beyond = bool(down or right)
        marker = (3, 0, math.degrees(math.atan2(-down, right)) - 90) if beyond else head_marker(head)
        faces = {"facecolor": "white", "edgecolor": colour, "linewidth": 1.1}
        if not hollow[head]:
            faces = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5}
        where = ax.transData + ScaledTranslation(*moved[head], ax.get_figure(root=True).dpi_scale_trans)
        bigger = size * (2.5 if beyond else 1)
        look = {"marker": marker, "s": bigger, "zorder": 5, "clip_on": False, "transform": where}
        marks.append(ax.scatter([column], [row], label=f"head {head + 1}", **look, **faces))
    return marks


def _draw_heads(
    ax: Axes, centres: NDArray, view: NDArray, precision: NDArray | None = None, shares: Mapping[float, object] = _HALF
) -> list[Artist]:
    """Marks of all heads (h, 2) and, for each share of the mass, an ellipse in that line style; flat heads hollow."""
    precision = np.full((len(centres), 2, 2), np.nan) if precision is None else precision
    flat = [_is_flat(matrix, view) for matrix in precision]
    drawn = _draw_marks(ax, centres, view, flat)
    for head, colour in enumerate(head_colours(len(centres))):
        known = np.isfinite(precision[head]).all() and np.isfinite(centres[head]).all()
        if known and not flat[head]:
            for share, line in shares.items():
                look = {"edgecolor": colour, "linewidth": 0.9, "linestyle": line, "zorder": 3}
                drawn.append(_ellipse(ax, centres[head], precision[head], share, view, **look))
    return drawn


# --- figures 3 and 4 ----------------------------------------------------------------------------------------------


@styled
def gaussian_heads(
    centres: ArrayLike,
    precision: ArrayLike | None = None,
    half_width: float | None = None,
    titles: Sequence[str] | None = None,
    heading: str = "",
    *,
    grid: tuple[int, int] | None = None,
    start: ArrayLike | None = None,
    dropped: ArrayLike | None = None,
    covered: ArrayLike | None = None,
) -> Figure:
    """The heads of all layers as Gaussians over shifts (figure 4 and the appendix), a panel for each layer.

    A solid ellipse holds 50% of a head's mass and a dotted one 90%; a singular head shows as a strip. The mark is
    hollow where the head is flat: half of its mass does not fit into the panel. Marks that coincide stand side by side
    around their place. An arrow at the edge stands for a centre beyond it.

    Args:
        centres: (layers, heads, 2), in pixels; NaN for heads that do not exist.
        precision: (layers, heads, 2, 2), Sigma^{-1}; NaN, or None, where a head is no Gaussian.
        half_width: of the panels, in pixels; None: as wide as the centres need.
        grid: height and width of the image in pixels. Panels end where the shifts from its central query end.
        start: (layers, heads, 2), centres before training: faint, and joined to those after it.
        dropped: (layers, any, 2), centres of heads that were pruned: grey crosses.
        covered: (layers, k, k) bool, the shifts from -(k // 2) on that count as covered: tinted, and counted above.
    """
    shape = "(layers, heads, 2)"
    centres = checked(centres, 3, name="centres", shape=shape)
    layers, heads = centres.shape[:2]
    known = precision is not None and bool(np.isfinite(precision).any())
    precision = np.full((layers, heads, 2, 2), np.nan) if precision is None else np.asarray(precision, dtype=float)
    every = centres if start is None else np.concatenate([centres, checked(start, 3, name="start", shape=shape)], 1)
    view, titles = _view(every, half_width, grid), panel_titles(titles, layers, "Layer")
    if covered is not None:
        titles = [f"{t}: {np.sum(c)} of {np.size(c)} cells" for t, c in zip(titles, covered, strict=True)]
    flat = any(_is_flat(matrix, view) for matrix in precision.reshape(-1, 2, 2))
    entries = _around(centres, view, grid) + ["50% of the mass", "90%"] * known + ["flat: 50% do not fit in"] * flat
    entries += ["before training"] * (start is not None) + ["dropped"] * (dropped is not None)
    entries += ["cell covered"] * (covered is not None)
    figure, panels, axes = _layer_panels(layers, heads, view, grid, titles, entries, above=0.25 if heading else 0)
    if heading:
        panels.suptitle(heading)
    for layer, ax in enumerate(axes):
        _draw_heads(ax, centres[layer], view, precision[layer], _HALF | {0.9: DOTTED})
        if start is not None:
            _draw_start(ax, every[layer, heads:], centres[layer])
        if dropped is not None:
            ghosts = np.clip(np.asarray(dropped, dtype=float)[layer], *view.T).T[::-1]
            ax.scatter(*ghosts, s=18, marker="x", color="0.55", linewidth=0.9, clip_on=False, zorder=4, label="dropped")
        if covered is not None:
            _draw_covered(ax, np.asarray(covered[layer], dtype=bool))
    return figure


def _draw_start(ax: Axes, start: NDArray, end: NDArray, ways: NDArray | None = None) -> None:
    """Where each head (h, 2) came from: a faint dot, and the way (steps, h, 2) from there, straight if not given."""
    ways = np.stack([start, end]) if ways is None else ways
    for head, colour in enumerate(head_colours(len(start))):
        row, column = ways[:, head].T
        ax.plot(column, row, color=colour, linewidth=0.9, alpha=0.5, zorder=2.5, label="way")
        ax.plot(column[:1], row[:1], head_marker(head), color=colour, markersize=2.8, alpha=0.5, zorder=2.6)


def _draw_covered(ax: Axes, covered: NDArray) -> None:
    """Tint the covered cells of the k x k grid (k, k), and outline the grid."""
    first = -(len(covered) // 2) - 0.5
    for row, column in np.argwhere(covered):
        cell = Rectangle((first + column, first + row), 1, 1, facecolor=_COVERED, edgecolor="white", linewidth=0.6)
        ax.add_patch(cell).set(zorder=0.4, label="covered")
    ax.add_patch(Rectangle((first, first), *covered.shape, fill=False, edgecolor="0.5", linewidth=0.8, zorder=0.5))


def _history(history: ArrayLike) -> NDArray:
    """A history as (E, L, h, 2)."""
    history = checked(history, 3, 4, name="history", shape="(epochs, heads, 2) or (epochs, layers, heads, 2)")
    return history[:, None] if history.ndim == 3 else history


@styled
def centre_paths(
    history: ArrayLike,
    half_width: float | None = None,
    titles: Sequence[str] | None = None,
    unit: str = "epoch",
    *,
    grid: tuple[int, int] | None = None,
) -> Figure:
    """The way of every head's centre during training, over the pixel grid (figure 3, as paths): a panel a layer.

    ``history`` (epochs, heads, 2) or (epochs, layers, heads, 2): shifts in pixels, before training and after each
    ``unit``. A faint dot is where a head starts. ``half_width`` and ``grid`` as in `gaussian_heads`.
    """
    history = _history(history)
    view = _view(history[[0, -1]], half_width, grid)
    entries = [*_around(history[-1], view, grid), "before training"]
    figure, panels, axes = _layer_panels(*history.shape[1:3], view, grid, titles, entries, above=0.25)
    panels.suptitle(f"{unit} 0 to {unit} {len(history) - 1}".capitalize())
    for layer, ax in enumerate(axes):
        _draw_start(ax, *history[[0, -1], layer], ways=history[:, layer])
        _draw_heads(ax, history[-1, layer], view)
    return figure


@styled
def centre_panels(history: ArrayLike, chosen: Sequence[int], *, grid: tuple[int, int] | None = None) -> Figure:
    """Every head's centre at chosen epochs (figure 3, the paper's view): a row a layer, a column an epoch.

    ``history`` and ``grid`` as in `centre_paths`; ``chosen``: epochs, 0 is before training.

    Raises:
        ValueError: an epoch was chosen that is not recorded.
    """
    history = _history(history)
    missing = sorted(set(chosen) - set(range(len(history))))
    if missing or not len(chosen):
        raise ValueError(
            f"chosen = {list(chosen)}: epochs {missing} are not among the recorded 0 .. {len(history) - 1}."
        )
    history = history[list(chosen)]
    view, (columns, layers, heads, _) = _view(history, None, grid), history.shape
    side = min(1.6, (DOUBLE - 0.75) / columns, 7.5 / layers)
    size = max(SINGLE, columns * side + 0.75), layers * (side + 0.04) + 0.55
    figure, panels = _with_head_legend(*size, heads, _around(history, view, grid), layers)
    axes = panels.subplots(layers, columns, squeeze=False, sharex=True, sharey=True)
    for layer, row in enumerate(axes):
        for place, ax in enumerate(row):
            _shift_axes(ax, view, grid, ticks=5)
            _draw_heads(ax, history[place, layer], view)
        row[0].set_ylabel(f"Layer {layer + 1}" if layers > 1 else "")
    for ax, epoch in zip(axes[0], chosen, strict=True):
        ax.set_title(f"Epoch {epoch}")
    panels.supxlabel("Column shift (pixels)")
    panels.supylabel("Row shift (pixels)")
    return figure


@styled
def centre_animation(
    history: ArrayLike,
    precision: ArrayLike | None = None,
    *,
    grid: tuple[int, int] | None = None,
    frames_per_second: float = 10,
) -> FuncAnimation:
    """Every head's centre moving during training, a frame an epoch, a panel a layer (figure 3, animated).

    ``history`` and ``grid`` as in `centre_paths`; ``precision`` (epochs, layers, heads, 2, 2) adds the ellipse that
    holds half of each Gaussian. `save_animation` writes a GIF; ``to_jshtml()`` gives a player.
    """
    history = _history(history)
    precision = np.nan if precision is None else np.asarray(precision, dtype=float)
    precision = np.broadcast_to(precision, (*history.shape, 2))
    view = _view(history, None, grid)
    entries = _around(history, view, grid)
    figure, panels, axes = _layer_panels(*history.shape[1:3], view, grid, None, entries, above=0.25)
    heading = panels.suptitle("Epoch 0")
    settle(figure)  # the panels must not move between frames
    drawn: list[Artist] = []

    def draw(frame: int) -> list[Artist]:
        heading.set_text(f"Epoch {frame}")
        while drawn:
            drawn.pop().remove()
        for layer, ax in enumerate(axes):
            drawn.extend(_draw_heads(ax, history[frame, layer], view, precision[frame, layer]))
        return drawn

    return FuncAnimation(figure, draw, frames=len(history), interval=1000 / frames_per_second, blit=False)


# --- heads as taps of a kernel ------------------------------------------------------------------------------------


@styled
def kernel_grids(kernels: Mapping[str, tuple[ArrayLike, tuple[int, ...]]], half_width: float = 4.5) -> Figure:
    """Where the heads of different convolutions look: ``{title: (centres (h, 2), stride)}``.

    Shifts are from the query, framed in black; other queries of the layer are grey squares, as many as its stride
    leaves. A stride is (rows, columns), or (columns,) for a convolution of one dimension, whose queries lie in a row.
    """
    drawable(kernels, "kernels")
    rows, columns = rows_and_columns(len(kernels))
    figure = new_figure(min(DOUBLE, columns * 2.1 + 0.6), rows * 2.3 + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    view = np.array([[-half_width, half_width]] * 2)
    for ax, (title, (centres, stride)) in zip(axes, kernels.items(), strict=False):
        centres = checked(centres, 2, name=title, shape="(heads, 2)")
        _shift_axes(ax, view, ticks=9)
        _draw_queries(ax, half_width, stride)
        places = np.clip(centres, *view.T)
        ax.scatter(*places.T[::-1], s=20, color=PALETTE[0], edgecolor="white", linewidth=0.5, zorder=5, label="heads")
        ax.set_title(title)
    for ax in axes[len(kernels) :]:
        ax.set_axis_off()
    axes[0].set_ylabel("Row shift (pixels)")
    axes[(rows - 1) * columns].set(xlabel="Column shift (pixels)", ylabel="Row shift (pixels)")
    keys = _entries(["query pixel", "other queries", "centre of a head"])
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure


def _draw_queries(ax: Axes, half_width: float, stride: tuple[int, ...]) -> None:
    """A grey square for each query of the layer but the one that is framed."""
    reach = np.arange(-math.ceil(half_width), math.ceil(half_width) + 1)
    rows = reach[reach % stride[0] == 0] if len(stride) == 2 else [0]
    for row in rows:
        for column in reach[reach % stride[-1] == 0]:
            if row or column:
                look = {"facecolor": "0.84", "edgecolor": "white", "linewidth": 0.5, "zorder": 0.5}
                ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, label="other query", **look))
