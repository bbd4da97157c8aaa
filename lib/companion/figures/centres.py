"""Where heads look, as points and Gaussians over shifts: figures 3 and 4 of the paper, and heads
as a kernel's taps.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation
from matplotlib.typing import MarkerType
from numpy.typing import ArrayLike, NDArray

from companion.figures import style
from companion.figures.style import (
    DOTTED,
    DOUBLE,
    SINGLE,
    Look,
    array,
    head_colours,
    head_marker,
    styled,
)

# pixels shown beyond the shifts that exist: room for the image's frame, and none for a tick
_MARGIN = 0.45
_COVERED, _OUTSIDE = "#CFE3F5", "0.88"
_HALF, _MOST, _FLAT = (
    "50% of the Gaussian",
    "90%, where it fits",
    "50% circle larger than the panel",
)
_ENTRIES: dict[
    str, Look
] = {  # of the legend; what is drawn bears the name, as its label or its group (gid)
    "query pixel": {
        "marker": "s",
        "color": "black",
        "markerfacecolor": "none",
        "markeredgewidth": 1.3,
    },
    "kernel": {
        "marker": "s",
        "color": "0.5",
        "markerfacecolor": "none",
        "markeredgewidth": 0.8,
        "markersize": 7,
    },
    _HALF: {"linestyle": "-", "linewidth": 0.9},
    _MOST: {"linestyle": DOTTED, "linewidth": 0.9},
    _FLAT: {"marker": "o", "markerfacecolor": "white", "markeredgewidth": 1.1},
    "beyond the panel": {"marker": ">"},
    "start and path": {"marker": "o", "linestyle": "-", "alpha": 0.4, "markersize": 3.5},
    "dropped": {"marker": "x", "color": "black"},
    "tap covered": {"marker": "s", "color": _COVERED, "markersize": 6},
    "outside the image": {"marker": "s", "color": _OUTSIDE, "markersize": 6},
}


def _image(grid: tuple[int, int]) -> NDArray:
    """The edges of the image, as shifts from its central query (H // 2, W // 2): (rows and
    columns, low and high).
    """
    return np.array([[-(side // 2) - 0.5, side - side // 2 - 0.5] for side in grid])


def _shift_panels(
    titles: Sequence[str], half_width: ArrayLike, grid: tuple[int, int], rows: Sequence[str] = ()
) -> tuple[Figure, list[Axes], NDArray]:
    """A figure with panels over shifts, and room for legends; its panels; what they show, (panels,
    2, low and high).

    There is a panel for each title or, with names of ``rows``, for each title and row. It shows
    shifts up to ``half_width`` (one, or one for each title), as far as shifts exist."""
    down, across = (len(rows), len(titles)) if rows else style.rows_and_columns(len(titles))
    widths = np.tile(np.broadcast_to(half_width, len(titles)), len(rows) or 1)
    low, high = _image(grid).T[..., None]  # of rows and of columns, (2, 1) each
    views = np.multiply.outer(widths, [[-1.0, 1.0]] * 2).clip(low - _MARGIN, high + _MARGIN)
    widest = (DOUBLE - 0.5) / across
    side = min(1.6, widest) if rows else {1: SINGLE - 0.6, 2: 2.6}.get(across, widest)
    size = (
        np.clip(across * side + 0.5, SINGLE, DOUBLE),
        down * (side + (0 if rows else 0.21)) + 0.95,
    )
    figure = style.new_figure(*size)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    while len(axes) > len(views):
        axes.pop().remove()
    between = "\n" if rows else " "  # narrow panels
    for place, (ax, view) in enumerate(zip(axes, views, strict=True)):
        row, column = divmod(place, across)
        _draw_shifts(ax, view, grid)
        ax.set_title(titles[place] if place < len(titles) else "")
        ax.set_xlabel(f"Column shift{between}(pixels)" if place + across >= len(views) else "")
        ax.set_ylabel("" if column else f"{rows[row] if rows else ''}\nRow shift (pixels)".strip())
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(5 if rows else 9, integer=True, steps=[1, 2, 4, 10]))
        ax.tick_params(
            labelbottom=place + across >= len(views) or widths[place] != widths[place + across]
        )
        ax.tick_params(labelleft=column == 0 or widths[place] != widths[place - 1])
    return figure, axes, views


def _draw_shifts(ax: Axes, view: NDArray, grid: tuple[int, int]) -> None:
    """The pixel grid, the query's frame, and grey where the image of the central query ends."""
    (top, bottom), (left, right) = view
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.spines[:].set_visible(True)
    for draw, (low, high), ends in ((ax.hlines, *view), (ax.vlines, *view[::-1])):
        draw(
            np.arange(math.ceil(low), math.floor(high) + 2) - 0.5,
            *ends,
            color="0.9",
            linewidth=0.4,
            zorder=0.2,
        )
    (top, bottom), (left, right) = _image(grid)
    image: Look = {"facecolor": "white", "edgecolor": "0.35", "linewidth": 0.8, "zorder": 0.1}
    ax.add_patch(Rectangle((left, top), right - left, bottom - top, label="image", **image))
    ax.patch.set(
        facecolor=_OUTSIDE,
        label="outside the image" if (np.abs(view) > np.abs(_image(grid))).any() else "",
    )
    ax.add_patch(
        Rectangle((-0.5, -0.5), 1, 1, fill=False, linewidth=1.3, zorder=2, label="query pixel")
    )


def _add_legends(figure: Figure, heads: int) -> None:
    """Below the panels: the heads at the left, and what else was drawn at the right."""
    rows = 3 if figure.get_figwidth() > 1.2 * SINGLE else 5
    white: Look = {
        "linestyle": "none",
        "markersize": 5.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.5,
    }
    marks = [
        {"color": colour, "marker": head_marker(head)}
        for head, colour in enumerate(head_colours(heads))
    ]
    by_head = [
        Line2D([], [], label=f"{head + 1}", **white | mark) for head, mark in enumerate(marks)
    ]
    plain: Look = {"linestyle": "none", "markersize": 4.5, "color": "0.4"}
    drawn = {
        name
        for ax in figure.axes
        for one in ax.get_children()
        for name in (one.get_label(), one.get_gid())
    }
    kinds = [
        Line2D([], [], label=name, **plain | look)
        for name, look in _ENTRIES.items()
        if name in drawn
    ]
    title = "Head" if len(figure.axes) == 1 else "Head (marks hold within\na network's layer only)"
    for handles, heading, side in ((by_head, title, "left"), (kinds, None, "right")):
        look: Look = {
            "loc": f"outside lower {side}",
            "alignment": "left",
            "columnspacing": 0.8,
            "labelspacing": 0.3,
        }
        figure.legend(handles=handles, ncols=math.ceil(len(handles) / rows), title=heading, **look)


def _petals(places: NDArray, near: float) -> NDArray:
    """How far to move marks (n, 2) nearer than that, in their diameters, to stand like petals
    around their place.
    """
    close = np.linalg.norm(places[:, None] - places, axis=-1) < near  # (n, n), the mark itself too
    count, index = close.sum(1), np.tril(close, -1).sum(1)
    radius = np.where(count > 1, 0.5 / np.sin(np.pi / np.maximum(count, 2)), 0)
    angle = 2 * np.pi * index / np.maximum(count, 1)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)


def _ellipse(precision: NDArray, share: float) -> tuple[NDArray, float]:
    """The ellipse that holds a share of a Gaussian with that precision: half axes, longer first,
    and angle in degrees.

    Half axes of flat directions are cut far outside of any panel: a head that smears over a line
    shows as two lines."""
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    axes = np.sqrt(-2 * math.log1p(-share) / np.maximum(values, 1e-7))
    return axes, math.degrees(math.atan2(*vectors[:, 0]))


def _draw_heads(
    ax: Axes,
    centres: NDArray,
    precision: NDArray,
    view: NDArray,
    shares: Mapping[str, float],
    size: float,
) -> None:
    """Heads (h, 2): a mark at each centre, or an arrow at the panel's edge, and an ellipse for each
    share of the mass.

    A mark is hollow, and has no ellipse, if the panel is too small for the ellipse that holds half
    of it, even across."""
    places, room = np.clip(centres, *view.T), np.ptp(view, axis=1)
    moved = _petals(places, near=0.02 * room.max()) * math.sqrt(size) / 72  # inches
    for head in np.flatnonzero(~np.isnan(centres).any(1)).tolist():
        colour, ellipses = head_colours(head + 1)[head], np.isfinite(precision[head]).all()
        flat = bool(ellipses and _ellipse(precision[head], 0.5)[0].min() > room.min() / 2)
        (down, right), beyond = (
            centres[head] - places[head],
            bool((centres[head] != places[head]).any()),
        )
        arrow: MarkerType = (3, 0, round(math.degrees(math.atan2(-down, right))) - 90)
        look: Look = {
            "facecolor": "white" if flat else colour,
            "edgecolor": colour if flat else "white",
        }
        look |= {
            "linewidth": 1.1 if flat else 0.5,
            "clip_on": False,
            "zorder": 5,
            "label": f"head {head + 1}",
        }
        look |= {
            "gid": "beyond the panel" if beyond else _FLAT if flat else None,
            "s": size * (2.5 if beyond else 1),
        }
        x, y = moved[head]
        aside = ax.transData + ScaledTranslation(x, y, ax.figure.dpi_scale_trans)
        ax.scatter(
            *places[head, ::-1],
            marker=arrow if beyond else head_marker(head),
            transform=aside,
            **look,
        )
        for name, share in shares.items() if ellipses and not flat else ():
            (width, height), angle = _ellipse(precision[head], share)
            if share > 0.5 and width > 0.4 * room.min():
                continue  # circles that the panel cuts tell little, and hide the others
            look = {
                "fill": False,
                "edgecolor": colour,
                "zorder": 3,
                "angle": angle,
                "label": name,
                **_ENTRIES[name],
            }
            ax.add_patch(Ellipse(tuple(centres[head, ::-1]), 2 * width, 2 * height, **look))


def panel_widths(centres: ArrayLike) -> NDArray:
    """For each layer the smallest `half_width` that shows all its centres (..., layers, heads,
    2): 2.5, 5 or whole.
    """
    shifts = np.moveaxis(np.abs(centres), -3, 0)  # (layers, ..., heads, 2)
    farthest = np.nanmax(shifts, axis=tuple(range(1, shifts.ndim)), initial=0)
    return np.select([farthest < 2.5, farthest < 5], [2.5, 5.0], math.inf)


@styled
def gaussian_heads(
    centres: ArrayLike,
    precision: NDArray | None = None,
    *,
    grid: tuple[int, int],
    half_width: ArrayLike = math.inf,
    titles: Sequence[str] = (),
    rows: Sequence[str] = (),
    paths: ArrayLike | None = None,
    dropped: NDArray | None = None,
    covered: NDArray | None = None,
) -> Figure:
    """The heads of all layers as Gaussians over shifts (figures 3, 4 and the appendix), a panel for
    each layer.

    A solid ellipse holds 50% of a head's Gaussian, up to ten heads a dotted one 90%, where it fits
    well; a singular head shows as a strip. The mark is hollow where half of the head's mass does
    not fit into the panel. Marks that coincide stand side by side around their place. An arrow at
    the edge stands for a centre beyond it.

    Args:
        centres: (panels, heads, 2), in pixels; NaN for heads that do not exist.
        precision: (panels, heads, 2, 2), Sigma^{-1}; NaN, or None, where a head is not a Gaussian.
        grid: height and width of the image in pixels. Panels end where the shifts from its central
            query end.
        half_width: of the panels, in pixels, where they show less than that; one, or one a layer
            (`panel_widths`).
        rows: names of several rows of small panels, epochs for example, each with all layers, which
            have ``titles``.
        paths: (steps, panels, heads, 2), where the centres were during training: a faint line that
            a dot begins.
        dropped: (panels, any, 2), centres of heads that were pruned: crosses.
        covered: (panels, k, k) bool, the shifts from -(k // 2) on that count as covered: tinted,
            and counted above where there is one row.
    """
    centres = array(centres, "centres (panels, heads, 2)")
    titles = titles or [f"Layer {layer + 1}" for layer in range(len(centres) // (len(rows) or 1))]
    if covered is not None and not rows:
        titles = [f"{t}: {c.sum()} of {c.size} taps" for t, c in zip(titles, covered, strict=True)]
    shown = np.broadcast_to(half_width, len(titles)).astype(float).tolist()
    if len(set(shown)) > 1 and not rows:  # panels are compared, so each names its scale
        scales = ["whole image" if math.isinf(width) else f"±{width:g} px" for width in shown]
        titles = [f"{title} ({scale})" for title, scale in zip(titles, scales, strict=True)]
    if precision is None:
        precision = np.full((*centres.shape, 2), np.nan)
    shares = {_HALF: 0.5, _MOST: 0.9} if centres.shape[1] <= 10 else {_HALF: 0.5}
    ways = None if paths is None else array(paths, "paths (steps, panels, heads, 2)")
    figure, axes, views = _shift_panels(titles, half_width, grid, rows)
    for panel, (ax, view, of_layer) in enumerate(zip(axes, views, centres, strict=True)):
        _draw_heads(
            ax, of_layer, precision[panel], view, shares, 11 if rows else 22
        )  # square points of a mark
        if ways is not None:
            _draw_paths(ax, ways[:, panel])
        if dropped is not None:
            row, column = np.clip(dropped[panel], *view.T).T
            ax.scatter(
                column,
                row,
                18,
                "black",
                marker="x",
                linewidth=0.9,
                clip_on=False,
                zorder=4,
                label="dropped",
            )
        if covered is not None:
            _draw_covered(ax, covered[panel])
    _add_legends(figure, centres.shape[1])
    return figure


def _draw_paths(ax: Axes, paths: NDArray) -> None:
    """The way of each head (steps, h, 2), and a dot where it begins."""
    for head, colour in enumerate(head_colours(paths.shape[1])):
        row, column = paths[:, head].T
        ax.plot(
            column, row, color=colour, linewidth=0.9, alpha=0.5, zorder=2.5, label="start and path"
        )
        ax.plot(
            column[:1],
            row[:1],
            head_marker(head),
            color=colour,
            markersize=2.8,
            alpha=0.5,
            zorder=2.6,
        )


def _draw_covered(ax: Axes, covered: NDArray) -> None:
    """Tint the covered taps of the k x k kernel, (k, k), and outline the kernel."""
    first = -(len(covered) // 2) - 0.5
    look: Look = {"facecolor": _COVERED, "edgecolor": "white", "zorder": 0.4}
    for row, column in np.argwhere(covered) + first:
        ax.add_patch(Rectangle((column, row), 1, 1, label="tap covered", **look))
    edge: Look = {
        "fill": False,
        "edgecolor": "0.5",
        "linewidth": 0.8,
        "zorder": 0.5,
        "label": "kernel",
    }
    ax.add_patch(Rectangle((first, first), *covered.shape, **edge))
