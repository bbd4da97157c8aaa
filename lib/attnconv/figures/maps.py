"""Attention maps and images: figures 5 to 10 of the paper, and how a convolution becomes heads (figure 1, notebook 01).

Pixels outside the image are NaN in a map, and hatched.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from attnconv.figures.style import (
    DOUBLE,
    MAP_COLOURS,
    PALETTE,
    QUERY_COLOUR,
    SIGNED_COLOURS,
    SINGLE,
    checked,
    head_colours,
    new_figure,
    panel_titles,
    styled,
)

_ABOVE, _FOOT = 0.17, 0.6
"""Inches above each row of maps, for a name, and at the foot of the figure, for a colour bar."""


# --- grids of maps ------------------------------------------------------------------------------------------------


def _map_axes(
    rows: int,
    columns: int,
    aspect: float,
    *,
    left: float = 0.1,
    widest: float = 0.8,
    beside: float = 0.05,
    above: float = _ABOVE,
    below: float = 0.0,
    lowest: float = 0.0,
) -> tuple[Figure, NDArray]:
    """A figure and its grid of panels (rows, columns) above the room for a colour bar.

    ``aspect``: height over width of a panel. In inches: ``left``, room at the left of the grid; ``widest``, a panel's
    longest side; ``beside``, ``above`` and ``below``, room around panels; ``lowest``, the least height of the grid.
    """
    width = min(widest, widest / aspect, (DOUBLE - left - 0.1 + beside) / columns - beside)
    height, across = width * aspect, columns * (width + beside) - beside
    down = rows * (height + above + below)
    wide, tall = max(SINGLE, left + across + 0.1), max(down, lowest) + _FOOT
    left += (wide - left - across - 0.1) / 2
    figure = new_figure(wide, tall, layout=None)
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    figure.subplots_adjust(
        left=left / wide,
        right=(left + across) / wide,
        top=1 - above / tall,
        bottom=1 - (down - below) / tall,
        wspace=beside / width,
        hspace=(above + below) / height,
    )
    for ax in axes.ravel():
        ax.spines[:].set(visible=True, color="0.6", linewidth=0.4)
    return figure, axes


def _bar(figure: Figure, scale: ScalarMappable, label: str, ticks: object) -> None:
    """A horizontal colour bar in the lowest half inch of the figure."""
    width, height = figure.get_size_inches()
    ax = figure.add_axes((0.5 - 1.3 / width, 0.37 / height, 2.6 / width, 0.09 / height))
    plain = FuncFormatter(lambda value, _: f"{value:.2g}".replace("-", "−"))
    bar = figure.colorbar(scale, cax=ax, orientation="horizontal", ticks=ticks, format=plain, label=label)
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)


def probability_scale(largest: float) -> ScalarMappable:
    """Probabilities from 0 to the largest; the scale is that of their square roots, which keeps faint heads visible."""
    return ScalarMappable(PowerNorm(0.5, vmin=0, vmax=largest or 1.0), MAP_COLOURS)


def _probability_bar(figure: Figure, scale: ScalarMappable) -> None:
    """The colour bar of maps; its ticks end with the largest probability."""
    ticks = scale.norm.vmax * np.array([0, 0.02, 0.1, 0.3, 0.6, 1])
    _bar(figure, scale, "Attention probability (square-root scale)", ticks)


def _checked_maps(maps: ArrayLike, query: ArrayLike | None) -> tuple[NDArray, NDArray]:
    """The maps, and the query pixel of each head: (heads, 2)."""
    maps = checked(maps, 4, name="maps", shape="(layers, heads, height, width)")
    heads, height, width = maps.shape[1:]
    query = np.array((height // 2, width // 2) if query is None else query)
    if (query < 0).any() or (query >= (height, width)).any():
        raise ValueError(f"query = {tuple(query.tolist())} is not a pixel of maps of {height} x {width}.")
    return maps, np.broadcast_to(query, (heads, 2))


def draw_map(ax: Axes, values: NDArray, scale: ScalarMappable, query: Sequence[int]) -> None:
    """One map in its frame, its query pixel framed."""
    ax.patch.set(facecolor="0.93", edgecolor="0.7", hatch="//////", linewidth=0)
    ax.imshow(np.ma.masked_invalid(values), norm=scale.norm, cmap=scale.cmap, aspect="auto")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color="0.6", linewidth=0.4)
    pixel = ax.bbox.width * 72 / ax.get_figure(root=True).dpi / values.shape[1]  # in points
    _frame_pixel(ax, query, linewidth=np.clip(0.15 * pixel, 0.4, 0.9))


def _frame_pixel(ax: Axes, pixel: Sequence[float], size: tuple[float, float] = (1, 1), **look) -> None:
    """Frame a pixel of that size (rows, columns), or any rectangle around that centre."""
    corner = pixel[1] - size[1] / 2, pixel[0] - size[0] / 2
    ax.add_patch(Rectangle(corner, size[1], size[0], **{"edgecolor": QUERY_COLOUR, "facecolor": "none"} | look))


def _name_row(ax: Axes, name: str) -> None:
    """Write a row's name at the left of its first panel."""
    middle = {"xy": (-0.08, 0.5), "xycoords": "axes fraction", "ha": "right", "va": "center"}
    ax.annotate(name, annotation_clip=False, **middle)


def _draw_grid(
    maps: NDArray, query: NDArray, order: ArrayLike | None, titles: Sequence[str], largest: float | None = None, **room
) -> tuple[Figure, NDArray]:
    """Layers x heads of maps above their colour bar; heads that do not exist leave their place empty.

    ``room``: as `_map_axes` takes it; ``left`` without the titles.
    """
    layers, heads, height, width = maps.shape
    order = np.broadcast_to(np.arange(heads), (layers, heads)) if order is None else np.asarray(order)
    if order.shape != (layers, heads) or not (np.sort(order, -1) == np.arange(heads)).all():
        raise ValueError(f"order must hold the heads 0 .. {heads - 1} of each of the {layers} layers once.")
    room["left"] += 0.058 * max(map(len, titles))
    figure, axes = _map_axes(layers, heads, height / width, **room)
    scale = probability_scale(np.nanmax(maps, initial=0) if largest is None else largest)
    for layer, title in enumerate(titles):
        _name_row(axes[layer, 0], title)
        for ax, head in zip(axes[layer], order[layer], strict=True):
            if np.isnan(maps[layer, head]).all():
                ax.set(frame_on=False)
                continue
            draw_map(ax, maps[layer, head], scale, query[head])
            ax.set_title(f"{head + 1}", pad=2, fontsize=6.5)
    _probability_bar(figure, scale)
    return figure, axes


@styled
def attention_grid(
    maps: ArrayLike,
    query: ArrayLike | None = None,
    order: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Figure:
    """Attention probabilities, a row a layer and a column a head (figures 5 to 7), on one scale.

    Args:
        maps: (layers, heads, height, width), windows around the query (`heads.shift_maps`, the paper's 7 x 7) or whole
            images; hatched where they leave the image (NaN).
        query: the query pixel's row and column in the maps, framed, or one for each head (heads, 2); None is the
            middle.
        order: (layers, heads), which head comes at each place, such as `heads.reach_order`. The number above a map is
            that of the head within its layer.
        titles: of the layers.
        names: of the columns, instead of the heads' numbers.
    """
    maps, query = _checked_maps(maps, query)
    layers, heads = maps.shape[:2]
    lines = max((name.count("\n") for name in names or ()), default=0)
    room = {"left": 0.18, "widest": 0.8 if heads > 4 else 1.5, "above": _ABOVE + 0.11 * lines}
    figure, axes = _draw_grid(maps, query, order, panel_titles(titles, layers, "Layer"), **room)
    for ax, name in zip(axes[0], panel_titles(names, heads, "Head") if names else (), strict=False):
        ax.set_title(name, pad=2, fontsize=6.5)
    return figure


@styled
def attention_on_image(
    image: ArrayLike,
    query: tuple[int, int],
    maps: ArrayLike,
    order: ArrayLike | None = None,
    caption: str = "",
    largest: float | None = None,
) -> Figure:
    """One image with its query pixel, and beside it where every head of every layer looks (figures 8 to 10).

    ``image`` (height, width) or (height, width, 1 or 3), in [0, 1] or 0 .. 255, as large as the maps or a multiple of
    them (attention works on the down-sampled grid); ``maps`` (layers, heads, H, W); ``query``: row and column in the
    maps; ``order`` as in `attention_grid`; ``largest``: the probability that is black, for figures that are to be
    compared, None for the largest here.
    """
    maps, queries = _checked_maps(maps, query)
    image = np.asarray(image)
    image = image / 255 if image.dtype == np.uint8 else image
    aspect = image.shape[0] / image.shape[1]
    side = min(1.35, 1.35 / aspect)  # the picture's width, in inches
    room = {"left": 0.3 + side, "widest": 0.7, "lowest": _ABOVE + side * aspect + 0.3}
    figure, _ = _draw_grid(maps, queries, order, panel_titles(None, len(maps), "Layer"), largest, **room)

    wide, tall = figure.get_size_inches()
    corner = 0.08 / wide, 1 - (_ABOVE + side * aspect) / tall
    ax = figure.add_axes((*corner, side / wide, side * aspect / tall), xticks=[], yticks=[], frame_on=False)
    ax.imshow(np.clip(image, 0, 1), cmap="gray", vmin=0, vmax=1, aspect="auto")
    pixel = image.shape[0] / maps.shape[2], image.shape[1] / maps.shape[3]  # of the maps, in pixels of the image
    middle = [(place + 0.5) * step - 0.5 for place, step in zip(query, pixel, strict=True)]
    _frame_pixel(ax, middle, pixel, linewidth=1.2, path_effects=[withStroke(linewidth=2.2, foreground="white")])
    place = f"query at row {query[0]}, column {query[1]}"
    ax.set_xlabel(f"{caption}\n{place}" if caption else place, loc="left")
    return figure


_NUMBERS: dict[str, Callable] = {
    "centre": lambda v: "centre ({:+.1f}, {:+.1f})".format(*(np.round(v, 1) + 0.0)),
    "parameter_centre": lambda v: "learned Δ ({:+.1f}, {:+.1f})".format(*(np.round(v, 1) + 0.0)),
    "reach": lambda v: f"reach {v:.1f} px",
    "mass": lambda v: f"mass on a pixel {v:.2f}",
    "entropy": lambda v: f"entropy {v:.2f} nats",
}
"""How a head's numbers are written in the atlas."""


@styled
def atlas(
    maps: ArrayLike, query: tuple[int, int], numbers: Mapping[str, ArrayLike], titles: Sequence[str] | None = None
) -> list[Figure]:
    """Every head with its numbers, a page a layer, on one scale for all pages.

    ``maps`` (layers, heads, height, width) and ``query`` as in `attention_grid`; ``numbers``: arrays (layers, heads,
    ...) by name, of which those named in `_NUMBERS` are written below each map (`heads.describe` and `heads.geometry`
    give them).
    """
    maps, query = _checked_maps(maps, query)
    scale = probability_scale(np.nanmax(maps, initial=0))
    known = {name: np.asarray(values) for name, values in numbers.items() if name in _NUMBERS}
    return [
        _atlas_page(maps[layer], scale, query, {name: values[layer] for name, values in known.items()}, title)
        for layer, title in enumerate(panel_titles(titles, len(maps), "Layer"))
    ]


def _atlas_page(
    maps: NDArray, scale: ScalarMappable, query: NDArray, numbers: Mapping[str, NDArray], title: str
) -> Figure:
    """The heads of one layer (heads, height, width), those that exist."""
    there = [head for head in range(len(maps)) if not np.isnan(maps[head]).all()]
    columns = len(maps) if len(maps) <= 3 else math.ceil(math.sqrt(len(maps)))
    rows = max(1, math.ceil(len(there) / columns))
    room = {"left": 0.15, "widest": 1.75, "beside": 0.28, "above": 0.3, "below": 0.125 * len(numbers)}
    figure, axes = _map_axes(rows, columns, maps.shape[1] / maps.shape[2], **room)
    figure.suptitle(title, x=0.02, y=1 - 0.04 / figure.get_figheight(), va="top", ha="left", weight="bold")
    for ax in axes.ravel()[len(there) :]:
        ax.remove()
    for ax, head in zip(axes.ravel(), there, strict=False):
        draw_map(ax, maps[head], scale, query[head])
        ax.set_title(f"Head {head + 1}", pad=2)
        lines = [_NUMBERS[name](values[head]).replace("-", "−") for name, values in numbers.items()]
        ax.set_xlabel("\n".join(lines), loc="left", labelpad=2)
    _probability_bar(figure, scale)
    return figure


@styled
def image_rows(rows: Sequence[ArrayLike], names: Sequence[str], labels: Sequence[str]) -> Figure:
    """Images in rows: each row (n, H, W, 1 or 3), uint8, has a label at its left; ``names`` (n,) stand above."""
    columns = len(rows[0])
    figure = new_figure(DOUBLE, 0.25 + len(rows) * DOUBLE / (columns + 0.5))
    axes = figure.subplots(len(rows), columns, squeeze=False, subplot_kw={"xticks": [], "yticks": []})
    for ax, image in zip(axes.ravel(), np.concatenate(rows), strict=True):
        ax.imshow(image, cmap="gray", vmin=0, vmax=255)
        ax.spines[:].set_visible(False)
    for ax, label in zip(axes[:, 0], labels, strict=True):
        ax.set_ylabel(label)
    for ax, name in zip(axes[0], names, strict=True):
        ax.set_title(textwrap.fill(name, 10), fontsize=6.5)
    return figure


# --- convolution as attention -------------------------------------------------------------------------------------


def _signed_scale(images: Sequence[NDArray]) -> ScalarMappable:
    """One scale for all signed images, symmetric around zero."""
    largest = max(np.abs(image).max() for image in images) or 1.0
    return ScalarMappable(Normalize(-largest, largest), SIGNED_COLOURS)


def _draw_signed(ax: Axes, image: NDArray, scale: ScalarMappable) -> None:
    ax.imshow(image, cmap=scale.cmap, norm=scale.norm, aspect="auto")


def _signed_bar(figure: Figure, scale: ScalarMappable, label: str) -> None:
    _bar(figure, scale, label, MaxNLocator(4, symmetric=True))


@styled
def signed_images(
    images: Sequence[ArrayLike],
    titles: Sequence[str],
    photo: ArrayLike | None = None,
    query: tuple[int, int] | None = None,
    label: str = "Value",
) -> Figure:
    """Images (H, W) side by side on one scale that is white at zero.

    Where an image is too close to zero to be seen, its largest value is written on it.

    ``photo`` (H, W): the input, in [0, 1], drawn first and in grey; ``query``: its row and column, framed on the photo
    together with the 3 x 3 pixels around it.
    """
    images = [checked(image, 2, name="image", shape="(H, W)") for image in images]
    scale, titles = _signed_scale(images), panel_titles(titles, len(images) + (photo is not None), "Image")
    aspect = max(image.shape[0] / image.shape[1] for image in images)
    figure, axes = _map_axes(1, len(titles), aspect, widest=1.9, beside=0.1, above=0.22)
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title)
    for ax, image in zip(axes[0, len(titles) - len(images) :], images, strict=True):
        _draw_signed(ax, image, scale)
        if np.abs(image).max() < 0.01 * scale.norm.vmax:
            note = f"zero everywhere\n(at most {np.abs(image).max():.0e})" if image.any() else "zero everywhere"
            ax.text(0.5, 0.5, note, transform=ax.transAxes, ha="center", va="center", color="0.35")
    if photo is not None:
        _draw_photo(axes[0, 0], checked(photo, 2, name="photo", shape="(H, W)"), query)
    _signed_bar(figure, scale, label)
    return figure


def _draw_photo(ax: Axes, photo: NDArray, query: tuple[int, int] | None) -> None:
    ax.imshow(photo, cmap="gray", vmin=0, vmax=1, aspect="auto")
    if query is not None:
        halo = withStroke(linewidth=2.8, foreground="white")
        _frame_pixel(ax, query, (3, 3), linewidth=1.3, path_effects=[halo])
        _frame_pixel(ax, query, facecolor=QUERY_COLOUR, linewidth=0)


@styled
def sum_of_heads(maps: ArrayLike, weights: Sequence[float], parts: ArrayLike) -> Figure:
    """A convolution of one channel as a sum over heads (Theorem 1), a column a head.

    Above, ``maps`` (h, k, k): where each head looks from the query in the middle. Then ``parts`` (h, H, W): what the
    head adds to the output, its ``weights`` (h,) times the image it sees; and below, the sum so far.
    """
    maps, parts = (
        checked(values, 3, name="maps and parts", shape="(heads, rows, columns)") for values in (maps, parts)
    )
    if not len(maps) == len(weights) == len(parts):
        raise ValueError(f"{len(maps)} maps, {len(weights)} weights and {len(parts)} parts do not match.")
    sums = parts.cumsum(0)
    probability, signed = probability_scale(maps.max()), _signed_scale([*parts, *sums])
    figure, axes = _map_axes(3, len(maps), parts.shape[1] / parts.shape[2], left=0.72, above=0.2)
    for ax, name in zip(axes[:, 0], ("Where the\nhead looks", "What it\nadds", "Sum so far"), strict=True):
        _name_row(ax, name)
    for head, (top, middle, bottom) in enumerate(axes.T):
        draw_map(top, maps[head], probability, (maps.shape[1] // 2, maps.shape[2] // 2))
        top.set_title(f"Head {head + 1}", pad=2)
        _draw_signed(middle, parts[head], signed)
        middle.set_title(f"× {weights[head]:+g}".replace("-", "−") if weights[head] else "× 0", pad=2)
        _draw_signed(bottom, sums[head], signed)
    _signed_bar(figure, signed, "Value (white: zero)")
    return figure


@styled
def schema() -> Figure:
    """The paper's idea in one picture (its figure 1): nine heads that look at nine shifts are a 3 x 3 convolution.

    From left to right: an image with a query pixel; nine heads, each of which attends to one shift from the query, in
    its colour; their value matrices, which are the taps of a kernel; and what they add up to, the output at the query.
    """
    figure = new_figure(DOUBLE, 2.9, layout=None)
    patch = np.random.default_rng(3).uniform(0.6, 0.95, (5, 5))
    image = _schema_panel(figure, (0.12, 0.8), 1.4, patch, "Image $X$, query pixel $q$", query=(2, 2))
    kernel = _schema_panel(figure, (4.32, 0.9), 1.2, np.ones((3, 3)), "Value matrices $W^h$:\nthe taps of a kernel")
    output = _schema_panel(figure, (5.98, 1.05), 0.9, np.ones((5, 5)), "Output at $q$:\ntheir sum", query=(2, 2))
    for head, colour in enumerate([*head_colours(8), PALETTE[9]]):  # the ninth is as grey as the pixels
        row, column = divmod(head, 3)
        shift = f"({row - 1:+d}, {column - 1:+d})".replace("-", "−").replace("+0", "0")
        place = 1.98 + 0.7 * column, 1.66 - 0.75 * row
        looks = _schema_panel(figure, place, 0.54, patch, shift, query=(2, 2))
        for ax, at in ((image, (row + 1, column + 1)), (looks, (row + 1, column + 1)), (kernel, (row, column))):
            ax.add_patch(Rectangle(at[::-1], 1, 1, facecolor=colour, linewidth=0, label="tap"))
        kernel.text(column + 0.5, row + 0.5, f"$W^{head + 1}$", ha="center", va="center", fontsize=9.5)
    output.add_patch(Rectangle((2, 2), 1, 1, facecolor="0.45", linewidth=0, label="sum"))
    for x in (1.75, 4.14, 5.75):
        figure.text(x / DOUBLE, 1.5 / 2.9, "→", ha="center", va="center", fontsize=15)
    figure.text(2.95 / DOUBLE, 2.5 / 2.9, "Nine heads: each attends\nto one shift $Δ_h$", ha="center", fontsize=7.5)
    formula = r"$\mathrm{Output}_q \;=\; \sum_h X_{q + \Delta_h} W^h \;=\; \mathrm{Conv}(X)_q$"
    figure.text(5.55 / DOUBLE, 0.4 / 2.9, formula, ha="center", fontsize=9.5)
    return figure


def _schema_panel(
    figure: Figure, corner: tuple[float, float], side: float, patch: NDArray, title: str, query: tuple | None = None
) -> Axes:
    """Grey pixels in a square at a place in inches from the lower left, the query framed."""
    width, height = figure.get_size_inches()
    ax = figure.add_axes((corner[0] / width, corner[1] / height, side / width, side / height), xticks=[], yticks=[])
    ax.pcolormesh(patch, cmap="gray", vmin=0, vmax=1, edgecolor="0.8", linewidth=0.4)
    ax.invert_yaxis()
    ax.set_frame_on(False)
    ax.set_title(title, fontsize=6.5 if side < 0.6 else 7.5, pad=2 if side < 0.6 else 4)
    if query:
        ax.add_patch(
            Rectangle(query[::-1], 1, 1, fill=False, edgecolor="black", linewidth=0.9 if side < 0.6 else 1.6, zorder=4)
        )
    return ax
