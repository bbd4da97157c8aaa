"""Attention maps and images: figures 5 to 10 of the paper, and what heads make of a photograph.

All maps of a figure are one picture, a montage, on one scale. Pixels outside the image are NaN in
a map, and hatched."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from companion.figures.style import (
    DOUBLE,
    MAP_COLOURS,
    QUERY_COLOUR,
    SIGNED_COLOURS,
    SINGLE,
    Look,
    array,
    new_figure,
    styled,
)

FOOT = 0.6  # inches below the maps, for the colour bar
HALO = [withStroke(linewidth=2.6, foreground="white")]  # around a frame on a photograph


def frame_pixel(ax: Axes, pixel: ArrayLike, side: int = 1, **look) -> None:
    """Frame a pixel (row, column) of an image, or a square of that side around it."""
    row, column = np.asarray(pixel)
    look = {"edgecolor": QUERY_COLOUR, "facecolor": "none"} | look
    ax.add_patch(Rectangle((column - side / 2, row - side / 2), side, side, **look))


def colour_bar(figure: Figure, scale: Look, label: str) -> None:
    """A horizontal colour bar at the foot of a figure that has no layout engine."""
    width, height = figure.get_size_inches()
    ax = figure.add_axes((0.5 - 1.3 / width, 0.37 / height, 2.6 / width, 0.09 / height))
    bar = figure.colorbar(
        ScalarMappable(**scale),
        ax,
        ticks=MaxNLocator(4),
        orientation="horizontal",
        format="{x:.3g}",
        label=label,
    )
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)


def outline(ax: Axes, image: NDArray, corner: tuple[int, int]) -> None:
    """Outline an image whose first pixel (row, column) is at that corner. Hatches show where the
    picture that is drawn over them is empty."""
    height, width = image.shape
    place = (corner[1] - 0.5, corner[0] - 0.5), width, height
    if np.isnan(image).any():
        ax.add_patch(
            Rectangle(
                *place, facecolor="0.93", edgecolor="0.7", linewidth=0, zorder=-1, hatch="//////"
            )
        )
    ax.add_patch(Rectangle(*place, fill=False, edgecolor="0.6", linewidth=0.4, clip_on=False))


@styled
def attention_grid(
    maps: ArrayLike,
    query: ArrayLike | None = None,
    order: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
    names: Sequence[Sequence[str]] | None = None,
    room: tuple[float, float] = (0.0, 0.0),
) -> Figure:
    """Attention probabilities, a row a layer and a column a head (figures 5 to 7), on one scale.

    Heads that do not exist (NaN) are left out.

    Args:
        maps: (layers, heads, height, width), windows around the query (`heads.shift_maps`, the
            paper's 7 x 7) or whole images; hatched where they leave the image (NaN).
        query: the query pixel's row and column in the maps, framed, or some that broadcast to
            (layers, heads, 2); None is the middle.
        order: (layers, heads), which head comes at each place, from near to far for example.
        titles: (layers,); None is the number of a layer.
        names: (layers, heads), written above the maps; None is the number of a head.
        room: inches that are left free at the left of the maps, and their least height.
    """
    maps = array(maps, "maps (layers, heads, height, width)")
    layers, heads, height, width = maps.shape
    middle = height // 2, width // 2
    queries = np.broadcast_to(middle if query is None else query, (layers, heads, 2))
    order = np.broadcast_to(np.arange(heads) if order is None else order, (layers, heads))
    titles = titles or [f"Layer {layer + 1}" for layer in range(layers)]
    names = names or [[f"Head {head + 1}" for head in range(heads)]] * layers

    # Inches: what is free at the left and above each map, and the longer side of a map.
    left = 0.18 + room[0] + 0.058 * max(map(len, titles))
    head_room = 0.17 + 0.11 * max(name.count("\n") for row in names for name in row)
    longest = min(0.8 if heads > 4 else 1.5, max(0.5, 8.6 / layers - head_room))
    # Pixels: what is free beside and above each map, and the whole montage.
    beside = max(1, round(0.06 * width))
    across = heads * (width + beside)
    pixel = min(longest / max(height, width), (DOUBLE - left) / across)  # inches
    above = math.ceil(head_room / pixel)
    montage = np.full((layers * (height + above), across), np.nan)

    wide = max(SINGLE, left + across * pixel)
    tall = max(len(montage) * pixel, room[1]) + FOOT
    figure = new_figure(wide, tall, layout=None)
    left += (wide - left - across * pixel) / 2
    size = across * pixel / wide, len(montage) * pixel / tall
    ax = figure.add_axes((left / wide, 1 - size[1], *size), frame_on=False, xticks=[], yticks=[])
    for layer, column in np.ndindex(layers, heads):
        head = int(order[layer, column])
        top = layer * (height + above) + above
        start = column * (width + beside)
        if column == 0:
            beyond = -0.5 - 0.05 / pixel
            ax.text(beyond, top + height / 2, titles[layer], ha="right", va="center")
        if not np.isnan(maps[layer, head]).all():
            montage[top : top + height, start : start + width] = maps[layer, head]
            outline(ax, maps[layer, head], (top, start))
            at, over = start + (width - 1) / 2, top - 0.5 - 0.03 / pixel
            ax.text(at, over, names[layer][head], ha="center", va="bottom", fontsize=6.5)
            thickness = np.clip(0.15 * 72 * pixel, 0.4, 0.9)
            frame_pixel(ax, queries[layer, head] + (top, start), linewidth=thickness)

    most = np.nanmax(maps) or 1.0
    # Square roots keep faint heads visible.
    scale: Look = {"norm": PowerNorm(0.5, vmin=0, vmax=most), "cmap": MAP_COLOURS}
    ax.imshow(montage, **scale)
    colour_bar(figure, scale, "Attention probability (square-root scale)")
    return figure


@styled
def attention_on_image(
    image: NDArray, query: tuple[int, int], maps: ArrayLike, caption: str = ""
) -> Figure:
    """One image with its query pixel, and beside it where every head of every layer looks (figures
    8 to 10).

    ``image`` (height, width, 1 or 3), uint8, as large as the maps or a multiple of them (attention
    works on the down-sampled grid); ``maps`` (layers, heads, H, W); ``query``: row and column in
    the maps."""
    figure = attention_grid(maps, query, room=(1.5, 1.9))
    wide, tall = figure.get_size_inches()
    size = 1.35 / wide, 1.35 / tall
    place = 0.08 / wide, 1 - 0.17 / tall - size[1], *size
    ax = figure.add_axes(place, anchor="NW", xticks=[], yticks=[])
    grid = np.shape(maps)[2:]
    extent = -0.5, grid[1] - 0.5, grid[0] - 0.5, -0.5  # in pixels of the grid
    ax.imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent)
    frame_pixel(ax, query, linewidth=1.2, path_effects=HALO)
    ax.set_xlabel(f"{caption}\nquery at row {query[0]}, column {query[1]}".strip(), loc="left")
    return figure


@styled
def signed_images(
    images: Sequence[ArrayLike],
    titles: Sequence[str],
    photo: ArrayLike | None = None,
    query: tuple[int, int] | None = None,
    label: str = "Value",
) -> Figure:
    """Images (H, W) side by side on one scale that is white at zero.

    ``photo`` (H, W): the input, in [0, 1], drawn first and in grey; ``query``: its row and column,
    framed together with the 3 x 3 pixels around it, on the first image.
    """
    signed = [array(image, "image (H, W)") for image in images]
    height, width = signed[0].shape
    side = min(1.9, (DOUBLE - 0.2) / len(titles))
    figure = new_figure(max(SINGLE, 0.2 + side * len(titles)), 0.8 + side * height / width)
    axes = list(
        figure.subplots(1, len(titles), squeeze=False, subplot_kw={"xticks": [], "yticks": []})[0]
    )
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title)
        ax.spines[:].set(visible=True, color="0.6", linewidth=0.4)
    if photo is not None:
        axes[0].imshow(photo, cmap="gray", vmin=0, vmax=1)
    most = max(np.nanmax(np.abs(image)) for image in signed) or 1.0
    scale: Look = {"norm": Normalize(-most, most), "cmap": SIGNED_COLOURS}
    for ax, image in zip(axes[photo is not None :], signed, strict=True):
        ax.imshow(image, **scale)
    if query:
        frame_pixel(axes[0], query, side=3, linewidth=1.3, path_effects=HALO)
        frame_pixel(axes[0], query, facecolor=QUERY_COLOUR, linewidth=0)
    figure.colorbar(
        ScalarMappable(**scale),
        ax=axes,
        location="bottom",
        fraction=0.05,
        aspect=30,
        shrink=0.5,
        format="{x:.3g}",
        label=label,
    )
    return figure
