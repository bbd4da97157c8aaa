"""Where heads look, as points and circles over shifts: figures 3 and 4 of the paper, and heads as a
kernel's taps.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike, NDArray

from companion.figures import style
from companion.figures.style import DOUBLE, SINGLE, array, head_colours, styled

COVERED = "#CFE3F5"
"""The tint of a pixel that has a sharp head."""


@styled
def gaussian_heads(
    centres: ArrayLike,
    precision: ArrayLike | None = None,
    *,
    grid: tuple[int, int],
    half_width: float = math.inf,
    titles: Sequence[str] = (),
    rows: Sequence[str] = (),
    paths: ArrayLike | None = None,
    dropped: ArrayLike | None = None,
    covered: NDArray | None = None,
) -> Figure:
    """Heads as Gaussians over shifts, a panel a layer (figures 3, 4 and the appendix).

    A dot is a head's centre, and an ellipse holds half of its Gaussian. What is larger than the
    panel, or beyond it, is not seen.

    Args:
        centres: (panels, heads, 2), in pixels; NaN for heads that do not exist.
        precision: (panels, heads, 2, 2), Sigma^{-1}; zero or NaN for a head that is no Gaussian.
        grid: height and width of the image in pixels. Panels end where the shifts from its central
            query end.
        half_width: of the panels, in pixels, where they show less than that.
        titles: of the panels or, with ``rows``, of the columns of panels; else layers by number.
        rows: names of several rows of panels, epochs for example, each with all titles.
        paths: (steps, panels, heads, 2), where the centres were during training: faint lines.
        dropped: (panels, any, 2), centres of heads that were pruned: crosses.
        covered: (panels, k, k) bool, the shifts from -(k // 2) on that have a sharp head: tinted.
    """
    centres = array(centres, "centres (panels, heads, 2)")
    titles = titles or [f"Layer {n}" for n in range(1, 1 + len(centres) // (len(rows) or 1))]
    figure, axes = _panels(titles, rows)
    for panel, (ax, heads) in enumerate(zip(axes, centres, strict=True)):
        _draw_shifts(ax, half_width, grid)
        ax.set_prop_cycle(color=head_colours(centres.shape[1]))  # each call draws every head once
        if covered is not None:
            _draw_covered(ax, covered[panel])
        if paths is not None:
            rows_of, columns_of = np.moveaxis(np.asarray(paths)[:, panel], -1, 0)
            ax.plot(columns_of, rows_of, linewidth=0.9, alpha=0.5, label="way since the start")
        if precision is not None:
            rows_of, columns_of = _outlines(heads, np.asarray(precision)[panel])
            ax.plot(columns_of, rows_of, linewidth=0.9, label="half of its Gaussian")
        ax.plot(
            heads[None, :, 1],
            heads[None, :, 0],
            "o",
            markersize=4.5 if half_width < math.inf else 2.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
            label="centre of a head",
        )
        if dropped is not None:
            row, column = np.transpose(np.asarray(dropped)[panel])
            ax.plot(column, row, "x", color="black", markersize=7, label="dropped")
    style.legend_below(figure)
    for shown in figure.legends[0].legend_handles:
        if isinstance(shown, Line2D):
            shown.set_color("0.4")  # a colour is a head's
    return figure


def _panels(titles: Sequence[str], rows: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A figure with a square panel for each title, or for each row and title."""
    down, across = (len(rows), len(titles)) if rows else style.rows_and_columns(len(titles))
    side = min(1.8 if rows else 2.4, (DOUBLE - 0.5) / across)
    figure = style.new_figure(max(SINGLE, across * side + 0.5), down * (side + 0.1) + 0.55)
    grid = figure.subplots(down, across, squeeze=False)
    for ax in grid[-1]:
        ax.set_xlabel("Column shift (pixels)")
    for place, ax in enumerate(grid[:, 0]):
        name = f"{rows[place]}\n" if rows else ""
        ax.set_ylabel(f"{name}Row shift (pixels)")
    axes = list(grid.flat)
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(title)
    while len(axes) > len(titles) * (len(rows) or 1):
        axes.pop().remove()
    return figure, axes


def _draw_shifts(ax: Axes, half_width: float, grid: tuple[int, int]) -> None:
    """The pixels of the image around its central query (H // 2, W // 2), as far as shown."""
    limits = []
    for side in grid:
        first = -(side // 2) - 0.5
        limits.append(np.clip([-half_width, half_width], first, first + side))
    (top, bottom), (left, right) = limits
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.spines[:].set_visible(True)
    ax.locator_params(nbins=6, integer=True, steps=[1, 2, 3, 4, 5, 10])
    between = np.arange(-max(grid), max(grid)) + 0.5  # pixels; ticks there take longer to draw
    ax.vlines(between, top, bottom, "0.9", linewidth=0.4, zorder=0.5)
    ax.hlines(between, left, right, "0.9", linewidth=0.4, zorder=0.5)
    ax.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, linewidth=1.3, label="query pixel"))


def _draw_covered(ax: Axes, covered: NDArray) -> None:
    """Tint the covered pixels of the k x k kernel, (k, k), and outline the kernel."""
    first = -(len(covered) // 2) - 0.5
    for row, column in np.argwhere(covered) + first:
        said = "pixel with a sharp head"
        ax.add_patch(Rectangle((column, row), 1, 1, facecolor=COVERED, zorder=0.4, label=said))
    ax.add_patch(Rectangle((first, first), *covered.shape, fill=False, color="0.5", label="kernel"))


def _outlines(centres: NDArray, precision: NDArray) -> NDArray:
    """The ellipses that hold half of Gaussians (h, 2) and (h, 2, 2): (2, points, h).

    Half axes of flat directions end far outside of any panel: a head that smears over a line shows
    as two lines, a uniform one not at all."""
    values, vectors = np.linalg.eigh(np.nan_to_num(precision))
    half_axes = np.sqrt(2 * math.log(2) / np.maximum(values, 1e-7))  # (h, 2)
    angle = np.linspace(0, 2 * np.pi, 201)
    circle = np.stack([np.cos(angle), np.sin(angle)], -1)  # (points, 2)
    return np.einsum("hri,hi,pi->rph", vectors, half_axes, circle) + centres.T[:, None]
