"""Where heads look, as points and Gaussians over shifts: figures 3 and 4 of the paper, and heads as a kernel's taps.

Shifts count rows, then columns, from the query pixel, whose frame is black; rows point down as in an image.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.animation import FuncAnimation
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
    array,
    head_colours,
    head_marker,
    layer_titles,
    new_figure,
    rows_and_columns,
    settle,
    styled,
)

_MARGIN = 0.45
"""Pixels shown beyond the shifts that exist: room for the image's frame, and none for a tick."""
_COVERED, _OUTSIDE, _OTHER = "#CFE3F5", "0.88", "0.84"

_HALF, _MOST, _FLAT = "50% of the mass", "90%", "flat: 50% do not fit in"
_ENTRIES = {
    "query pixel": {"marker": "s", "color": "black", "markerfacecolor": "none", "markeredgewidth": 1.3},
    _HALF: {"linestyle": "-", "linewidth": 0.9},
    _MOST: {"linestyle": DOTTED, "linewidth": 0.9},
    _FLAT: {"marker": "o", "markerfacecolor": "white", "markeredgewidth": 1.1},
    "beyond the panel": {"marker": ">"},
    "before training": {"marker": "o", "linestyle": "-", "alpha": 0.4, "markersize": 3.5},
    "dropped": {"marker": "x", "color": "0.55"},
    "tap covered": {"marker": "s", "color": _COVERED, "markersize": 6},
    "outside the image": {"marker": "s", "color": _OUTSIDE, "markersize": 6},
    "other queries": {"marker": "s", "color": _OTHER, "markersize": 6},
    "centre of a head": {"marker": "o", "color": PALETTE[0]},
}
"""How the legend shows each kind of mark. What is drawn bears the kind's name, as its label or its group (gid)."""


# --- grids of shifts ----------------------------------------------------------------------------------------------


def _image(grid: tuple[int, int]) -> NDArray:
    """The edges of the image, as shifts from its central query (H // 2, W // 2): (rows and columns, low and high)."""
    return np.array([[-(side // 2) - 0.5, side - side // 2 - 0.5] for side in grid])


def _shift_panels(
    titles: Sequence[str], half_width: ArrayLike, grid: tuple[int, int] | None = None, columns: int | None = None
) -> tuple[Figure, NDArray, NDArray]:
    """A figure with a panel over shifts for each title, and room for legends; its panels, and what they show.

    At most three panels stand in a row, or as many small ones as ``columns`` says. They show shifts up to
    ``half_width`` (one, or one for each), as far as shifts exist: (panels, rows and columns, low and high).
    """
    widths = np.broadcast_to(half_width, len(titles))
    views = np.multiply.outer(widths, [[-1.0, 1.0]] * 2)
    if grid:
        low, high = _image(grid).T
        views = np.clip(views, low[:, None] - _MARGIN, high[:, None] + _MARGIN)
    small, columns = columns is not None, columns or rows_and_columns(len(titles))[1]
    rows, widest = math.ceil(len(titles) / columns), (DOUBLE - 0.5) / columns
    side = min(1.6, widest, 7 / rows) if small else {1: SINGLE - 0.6, 2: 2.6}.get(columns, widest)
    figure = new_figure(np.clip(columns * side + 0.5, SINGLE, DOUBLE), rows * (side + 0.21) + 0.95)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(titles) :]:
        ax.remove()
    for place, (ax, title) in enumerate(zip(axes, titles, strict=False)):
        _draw_shifts(ax, views[place], grid)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5 if small else 9, integer=True, steps=[1, 2, 4, 10]))
        lowest, first = place + columns >= len(titles), place % columns == 0
        ax.tick_params(labelbottom=lowest or widths[place] != widths[place + columns])
        ax.tick_params(labelleft=first or widths[place] != widths[place - 1])
        ax.set(title=title, xlabel="Column shift (pixels)" if lowest else "")
        ax.set_ylabel("Row shift (pixels)" if first else "")
    return figure, axes[: len(titles)], views


def _draw_shifts(ax: Axes, view: NDArray, grid: tuple[int, int] | None) -> None:
    """The pixel grid, the query's frame, and grey where the image of the central query ends."""
    (top, bottom), (left, right) = view
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.spines[:].set_visible(True)
    for draw, (low, high), across in ((ax.hlines, *view), (ax.vlines, *view[::-1])):
        borders = np.arange(math.ceil(low), math.floor(high) + 2) - 0.5
        draw(borders, *across, color="0.9", linewidth=0.4, zorder=0.2)
    if grid:
        (top, bottom), (left, right) = _image(grid)
        edge = {"facecolor": "white", "edgecolor": "0.35", "linewidth": 0.8, "zorder": 0.1}
        ax.add_patch(Rectangle((left, top), right - left, bottom - top, label="image", **edge))
        ax.set_facecolor(_OUTSIDE)
        if (np.abs(view) > np.abs(_image(grid))).any():
            ax.patch.set_label("outside the image")
    frame = {"fill": False, "edgecolor": "black", "linewidth": 1.3, "zorder": 2}
    ax.add_patch(Rectangle((-0.5, -0.5), 1, 1, label="query pixel", **frame))


def _add_legends(figure: Figure, heads: int = 0) -> None:
    """Below the panels: the heads at the left, and what else was drawn at the right."""
    rows = 3 if figure.get_figwidth() > 1.2 * SINGLE else 5
    plain = {"linestyle": "none", "markersize": 4.5, "color": "0.4"}
    white = plain | {"markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 5.5}
    handles = [
        Line2D([], [], label=f"{head + 1}", **white | {"color": colour, "marker": head_marker(head)})
        for head, colour in enumerate(head_colours(heads))
    ]
    layers = len(figure.axes)
    title = "Head" if layers == 1 else "Head (colours hold\nwithin a layer only)"
    close = {"columnspacing": 0.8, "labelspacing": 0.3, "alignment": "left"}
    if heads:
        figure.legend(handles=handles, ncols=math.ceil(heads / rows), title=title, loc="outside lower left", **close)
    drawn = {name for ax in figure.axes for one in ax.get_children() for name in (one.get_label(), one.get_gid())}
    handles = [Line2D([], [], label=name, **plain | look) for name, look in _ENTRIES.items() if name in drawn]
    place = f"outside lower {'right' if heads else 'center'}"
    figure.legend(handles=handles, ncols=math.ceil(len(handles) / (rows if heads else 1)), loc=place, **close)


# --- heads as marks -----------------------------------------------------------------------------------------------


def _petals(places: NDArray, near: float) -> NDArray:
    """How far to move marks (n, 2) that would hide each other, in their diameters: (n, 2).

    Marks nearer to each other than ``near`` stand around their place like petals, each touching the next.
    """
    close = np.linalg.norm(places[:, None] - places, axis=-1) < near  # (n, n), the mark itself too
    count, index = close.sum(1), np.tril(close, -1).sum(1)
    radius = np.where(count > 1, 0.5 / np.sin(np.pi / np.maximum(count, 2)), 0)
    angle = 2 * np.pi * index / np.maximum(count, 1)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)


def _is_flat(precision: NDArray, view: NDArray) -> bool:
    """Whether the panel is too small for the ellipse that holds half of the Gaussian, even across."""
    steepest = np.linalg.eigvalsh((precision + precision.T) / 2).max()
    return 2 * math.log(2) / max(steepest, 1e-12) > (np.ptp(view, axis=1).min() / 2) ** 2


def _draw_ellipse(ax: Axes, centre: NDArray, precision: NDArray, share: float, view: NDArray, **look) -> Ellipse:
    """The ellipse that holds a share of a Gaussian with precision Sigma^{-1}.

    Half axes are sqrt(-2 log(1 - share)) / sqrt(eigenvalue). Those of flat directions are cut far outside the axes, so
    that a head which smears over a line shows as two parallel lines.
    """
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    far = 100 * np.ptp(view)
    width, height = 2 * math.sqrt(-2 * math.log1p(-share)) / np.sqrt(np.maximum(values, far**-2))
    angle = math.degrees(math.atan2(*vectors[:, 0]))
    look |= {"facecolor": "none", "linewidth": 0.9, "zorder": 3}
    return ax.add_patch(Ellipse(centre[::-1], width, height, angle=angle, **look))


def _draw_mark(ax: Axes, head: int, centre: NDArray, moved: NDArray, view: NDArray, colour: str, flat: bool) -> Artist:
    """A head's mark at its centre, ``moved`` diameters aside; an arrow at the edge for a centre beyond the panel."""
    size = 22
    place = np.clip(centre, *view.T)
    (down, right), beyond = centre - place, bool((centre != place).any())
    marker = (3, 0, math.degrees(math.atan2(-down, right)) - 90) if beyond else head_marker(head)
    look = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5}
    if flat:
        look = {"facecolor": "white", "edgecolor": colour, "linewidth": 1.1}
    look |= {"label": f"head {head + 1}", "gid": "beyond the panel" if beyond else _FLAT if flat else None}
    inches = moved * math.sqrt(size) / 72
    aside = ax.transData + ScaledTranslation(*inches, ax.get_figure(root=True).dpi_scale_trans)
    size *= 2.5 if beyond else 1
    return ax.scatter(*place[::-1, None], s=size, marker=marker, transform=aside, clip_on=False, zorder=5, **look)


def _draw_heads(
    ax: Axes, centres: NDArray, view: NDArray, precision: NDArray | None, shares: Mapping[str, float]
) -> list[Artist]:
    """Marks of all heads (h, 2), hollow for flat ones; the others have an ellipse for each share of the mass."""
    moved = _petals(np.clip(centres, *view.T), near=0.02 * np.ptp(view, axis=1).max())
    drawn = []
    for head, colour in enumerate(head_colours(len(centres))):
        if not np.isfinite(centres[head]).all():
            continue
        gaussian = precision is not None and np.isfinite(precision[head]).all()
        flat = gaussian and _is_flat(precision[head], view)
        drawn.append(_draw_mark(ax, head, centres[head], moved[head], view, colour, flat))
        if gaussian and not flat:
            for name, share in shares.items():
                look = {"edgecolor": colour, "linestyle": _ENTRIES[name]["linestyle"], "label": name}
                drawn.append(_draw_ellipse(ax, centres[head], precision[head], share, view, **look))
    return drawn


# --- figures 3 and 4 ----------------------------------------------------------------------------------------------


def panel_widths(centres: ArrayLike) -> NDArray:
    """For each layer the smallest `half_width` that shows all its centres (..., layers, heads, 2): 2.5, 5 or whole."""
    shifts = np.moveaxis(np.abs(centres), -3, 0)  # (layers, ..., heads, 2)
    farthest = np.nanmax(shifts, axis=tuple(range(1, shifts.ndim)), initial=0)
    return np.select([farthest < 2.5, farthest < 5], [2.5, 5.0], math.inf)


@styled
def gaussian_heads(
    centres: ArrayLike,
    precision: ArrayLike | None = None,
    *,
    grid: tuple[int, int],
    half_width: ArrayLike = math.inf,
    titles: Sequence[str] | None = None,
    columns: int | None = None,
    paths: ArrayLike | None = None,
    dropped: ArrayLike | None = None,
    covered: ArrayLike | None = None,
) -> Figure:
    """The heads of all layers as Gaussians over shifts (figures 3, 4 and the appendix), a panel for each layer.

    A solid ellipse holds 50% of a head's mass and a dotted one 90%; a singular head shows as a strip. The mark is
    hollow where the head is flat: half of its mass does not fit into the panel. Marks that coincide stand side by side
    around their place. An arrow at the edge stands for a centre beyond it.

    Args:
        centres: (layers, heads, 2), in pixels; NaN for heads that do not exist.
        precision: (layers, heads, 2, 2), Sigma^{-1}; NaN, or None, where a head is not a Gaussian.
        grid: height and width of the image in pixels. Panels end where the shifts from its central query end.
        half_width: of the panels, in pixels, if they are to show less than that; one, or one for each (`panel_widths`).
        titles: of the layers.
        columns: panels in a row, which are then small; None is at most three.
        paths: (steps, layers, heads, 2), the centres' way here during training: faint, from a dot where it begins.
        dropped: (layers, any, 2), centres of heads that were pruned: grey crosses.
        covered: (layers, k, k) bool, the shifts from -(k // 2) on that count as covered: tinted, and counted above.
    """
    centres = array(centres, "centres (layers, heads, 2)")
    titles = titles or layer_titles(len(centres))
    if covered is not None:
        titles = [f"{t}: {np.sum(c)} of {np.size(c)} taps" for t, c in zip(titles, covered, strict=True)]
    figure, axes, views = _shift_panels(titles, half_width, grid, columns)
    for layer, (ax, view, of_layer) in enumerate(zip(axes, views, centres, strict=True)):
        _draw_heads(ax, of_layer, view, None if precision is None else precision[layer], {_HALF: 0.5, _MOST: 0.9})
        if paths is not None:
            _draw_paths(ax, array(paths, "paths (steps, layers, heads, 2)")[:, layer])
        if dropped is not None:
            ghosts = np.clip(dropped[layer], *view.T).T[::-1]
            ax.scatter(*ghosts, s=18, marker="x", color="0.55", linewidth=0.9, clip_on=False, zorder=4, label="dropped")
        if covered is not None:
            _draw_covered(ax, covered[layer])
    _add_legends(figure, centres.shape[1])
    return figure


def _draw_paths(ax: Axes, paths: NDArray) -> None:
    """The way of each head (steps, h, 2), and a dot where it begins."""
    for head, colour in enumerate(head_colours(paths.shape[1])):
        row, column = paths[:, head].T
        ax.plot(column, row, color=colour, linewidth=0.9, alpha=0.5, zorder=2.5, label="before training")
        ax.plot(column[:1], row[:1], head_marker(head), color=colour, markersize=2.8, alpha=0.5, zorder=2.6)


def _draw_covered(ax: Axes, covered: NDArray) -> None:
    """Tint the covered taps of the k x k kernel (k, k), and outline the grid."""
    first = -(len(covered) // 2) - 0.5
    look = {"facecolor": _COVERED, "edgecolor": "white", "linewidth": 0.6, "zorder": 0.4, "label": "tap covered"}
    for row, column in np.argwhere(covered):
        ax.add_patch(Rectangle((first + column, first + row), 1, 1, **look))
    ax.add_patch(Rectangle((first, first), *covered.shape, fill=False, edgecolor="0.5", linewidth=0.8, zorder=0.5))


@styled
def centre_animation(history: NDArray, precision: NDArray, grid: tuple[int, int]) -> FuncAnimation:
    """Every head's centre moving during training, a frame an epoch, a panel a layer (figure 3, animated).

    ``history`` (epochs, layers, heads, 2), shifts in pixels, before training and after each epoch; ``grid`` as in
    `gaussian_heads`; ``precision`` (epochs, layers, heads, 2, 2) gives the ellipse that
    holds half of each Gaussian, NaN where there is none. `save_animation` writes a GIF; `player` gives one
    with buttons.
    """
    epochs, layers, heads, _ = history.shape
    figure, axes, (view, *_) = _shift_panels(layer_titles(layers), math.inf, grid)
    heading = figure.suptitle("Epoch 0")
    drawn: list[Artist] = []

    def draw(epoch: int) -> list[Artist]:
        heading.set_text(f"Epoch {epoch}")
        while drawn:
            drawn.pop().remove()
        for layer, ax in enumerate(axes):
            drawn.extend(_draw_heads(ax, history[epoch, layer], view, precision[epoch, layer], {_HALF: 0.5}))
        return drawn

    draw(epochs - 1)  # what the last frame shows is in the legend
    _add_legends(figure, heads)
    settle(figure)  # the panels must not move between frames
    return FuncAnimation(figure, draw, frames=epochs)


# --- heads as taps of a kernel ------------------------------------------------------------------------------------


@styled
def kernel_grids(kernels: Mapping[str, tuple[ArrayLike, tuple[int, int]]]) -> Figure:
    """Where the heads of different convolutions look: ``{title: (centres (h, 2), stride)}``.

    Shifts are from the query, framed in black; other queries of the layer are grey squares, as many as its stride
    (rows, columns) leaves.
    """
    figure, axes, (view, *_) = _shift_panels(list(kernels), 4.5)
    around = np.arange(-4, 5)
    square = {"facecolor": _OTHER, "edgecolor": "white", "linewidth": 0.5, "zorder": 0.5, "label": "other queries"}
    for ax, (centres, (down, right)) in zip(axes, kernels.values(), strict=True):
        for row, column in itertools.product(around[around % down == 0], around[around % right == 0]):
            if row or column:
                ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **square))
        look = {"color": PALETTE[0], "edgecolor": "white", "linewidth": 0.5, "zorder": 5, "label": "centre of a head"}
        ax.scatter(*np.clip(array(centres, "centres (heads, 2)"), *view.T).T[::-1], s=20, **look)
    _add_legends(figure)
    return figure
