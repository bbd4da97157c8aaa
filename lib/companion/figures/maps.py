"""Attention maps and images: figures 5 to 10 of the paper, and how a convolution becomes heads
(figure 1).

Pixels outside the image are NaN in a map, and hatched. A scale says how values become colours: a
norm and a colour map."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from companion.figures import style
from companion.figures.style import DOUBLE, SINGLE, Look, array, new_figure, styled

_ABOVE, _FOOT, _GAP = (
    0.17,
    0.6,
    0.05,
)  # inches above rows of maps (names), at the foot (a colour bar), between maps


def _grid(
    shape: tuple[int, int],
    aspect: float,
    left: float = 0.1,
    side: float = 0.8,
    above: float = _ABOVE,
    least: float = 0,
) -> tuple[Figure, NDArray, tuple[float, float]]:
    """A figure with room for a grid of maps and a colour bar, each map's top left corner (rows,
    columns, 2), its size.

    ``aspect``: height over width of a map. All else is in inches, from the figure's top left
    corner: ``left``, room at the left of the grid; ``side``, a map's longer one at most; ``above``,
    room above each row; ``least`` height."""
    rows, columns = shape
    width = min(side, side / aspect, (DOUBLE - left - 0.1 + _GAP) / columns - _GAP)
    height, across = width * aspect, columns * (width + _GAP) - _GAP
    wide, tall = max(SINGLE, left + across + 0.1), max(rows * (height + above), least) + _FOOT
    left += (wide - left - across - 0.1) / 2
    steps = np.indices((rows, columns))[::-1].transpose(1, 2, 0)  # columns, then rows
    corners = (left, above) + steps * (width + _GAP, height + above)
    return new_figure(wide, tall, layout=None), corners, (width, height)


def _axes(figure: Figure, corner: ArrayLike, size: ArrayLike) -> Axes:
    """Axes with that top left corner and that size, in inches."""
    (x, y), (width, height), (wide, tall) = (
        np.asarray(corner),
        np.asarray(size),
        figure.get_size_inches(),
    )
    return figure.add_axes(
        (x / wide, 1 - (y + height) / tall, width / wide, height / tall), xticks=[], yticks=[]
    )


def _page(figure: Figure) -> Axes:
    """Axes all over the figure, in inches from its top left corner. One is drawn far sooner than
    one for each map.
    """
    wide, tall = figure.get_size_inches()
    ax = _axes(figure, (0, 0), (wide, tall))
    ax.set(xlim=(0, wide), ylim=(tall, 0), autoscale_on=False, frame_on=False)
    return ax


def _bar(figure: Figure, scale: Look, label: str, ticks: Sequence[float] | None = None) -> None:
    """A horizontal colour bar in the lowest half inch of the figure."""
    width, height = figure.get_size_inches()
    ax = _axes(figure, (width / 2 - 1.3, height - 0.46), (2.6, 0.09))
    look: Look = {"orientation": "horizontal", "format": "{x:.3g}", "label": label}
    bar = figure.colorbar(
        ScalarMappable(**scale), ax, ticks=ticks or MaxNLocator(4, symmetric=True), **look
    )
    bar.minorticks_off()
    bar.outline.set_linewidth(0.4)


def _draw(
    page: Axes,
    image: NDArray,
    corner: NDArray,
    size: ArrayLike,
    scale: Look,
    name: str,
    query: ArrayLike | None = None,
) -> None:
    """An image (H, W) in the colours of its scale; what is NaN is hatched. The query pixel of a
    map is framed.
    """
    (x, y), (width, height) = corner, np.asarray(size)
    if np.isnan(image).any():
        outside: Look = {
            "facecolor": "0.93",
            "edgecolor": "0.7",
            "hatch": "//////",
            "linewidth": 0,
            "zorder": -1,
        }
        page.add_patch(Rectangle((x, y), width, height, **outside))
    page.imshow(
        np.ma.masked_invalid(image), extent=(x, x + width, y + height, y), aspect="auto", **scale
    )
    page.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="0.6", linewidth=0.4))
    page.text(x + width / 2, y - 0.03, name, ha="center", va="bottom", fontsize=6.5)
    if query is not None:
        pixel = np.divide((height, width), image.shape)
        place = (np.asarray(query) + 0.5) * pixel + (y, x)
        _frame_pixel(page, place, pixel, linewidth=np.clip(0.15 * 72 * pixel[1], 0.4, 0.9))


def _frame_pixel(ax: Axes, pixel: ArrayLike, size: ArrayLike = (1, 1), **look) -> None:
    """Frame a pixel of that size (rows, columns), or any rectangle around that centre."""
    (height, width), (row, column) = np.asarray(size), np.asarray(pixel)
    look = {"edgecolor": style.QUERY_COLOUR, "facecolor": "none"} | look
    ax.add_patch(Rectangle((column - width / 2, row - height / 2), width, height, **look))


def _probability_scale(largest: float) -> Look:
    """Probabilities from 0 to the largest; the scale is that of their square roots, which keeps
    faint heads visible.
    """
    return {"norm": PowerNorm(0.5, vmin=0, vmax=largest or 1.0), "cmap": style.MAP_COLOURS}


@styled
def attention_grid(
    maps: ArrayLike,
    query: ArrayLike | None = None,
    order: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
    names: Sequence[Sequence[str]] | None = None,
    largest: float | None = None,
    room: tuple[float, float] = (0.0, 0.0),
) -> Figure:
    """Attention probabilities, a row a layer and a column a head (figures 5 to 7), on one scale.

    Heads that do not exist (NaN) are left out. A layer of more than 16 heads goes on in the next
    row.

    Args:
        maps: (layers, heads, height, width), windows around the query (`heads.shift_maps`, the
            paper's 7 x 7) or whole images; hatched where they leave the image (NaN).
        query: the query pixel's row and column in the maps, framed, or some that broadcast to
            (layers, heads, 2); None is the middle.
        order: (layers, heads), which head comes at each place, from near to far for example.
        names: (layers, heads), written above the maps; None is the number of a head. Layers have
            ``titles``.
        largest: the probability that is black, for figures that are to be compared; None is the
            largest here.
        room: inches that are left free at the left of the grid, and its least height.
    """
    maps = array(maps, "maps (layers, heads, height, width)")
    layers, heads, height, width = maps.shape
    queries = np.broadcast_to(
        (height // 2, width // 2) if query is None else query, (layers, heads, 2)
    )
    order = np.broadcast_to(np.arange(heads) if order is None else order, (layers, heads))
    titles = titles or [f"Layer {layer + 1}" for layer in range(layers)]
    names = names or [[f"Head {head + 1}" for head in range(heads)]] * layers
    columns, rows = heads if heads <= 16 else 12, []
    for layer, title in enumerate(titles):
        there = [head for head in order[layer] if not np.isnan(maps[layer, head]).all()]
        rows += [
            (layer, there[n : n + columns], "" if n else title)
            for n in range(0, len(there), columns)
        ]
    left = 0.18 + room[0] + 0.058 * max(map(len, titles))
    above = _ABOVE + 0.11 * max(name.count("\n") for row in names for name in row)
    side = min(
        0.8 if heads > 4 else 1.5, max(0.5, 8.6 / len(rows) - above)
    )  # what is higher does not fit on a page
    figure, corners, size = _grid((len(rows), columns), height / width, left, side, above, room[1])
    top = (np.nanmax(maps) if largest is None else largest) or 1.0
    scale, page = _probability_scale(top), _page(figure)
    for (layer, there, title), places in zip(rows, corners, strict=True):
        for head, corner in zip(there, places, strict=False):
            _draw(
                page,
                maps[layer, head],
                corner,
                size,
                scale,
                names[layer][head],
                queries[layer, head],
            )
        page.text(places[0, 0] - 0.05, places[0, 1] + size[1] / 2, title, ha="right", va="center")
    ticks = np.asarray(LogLocator(subs=(1, 2, 5)).tick_values(top / 15, top))
    ticks = ticks[(ticks > top / 15) & (ticks < 0.75 * top)]
    _bar(figure, scale, "Attention probability (square-root scale)", [0, *ticks, top])
    return figure


@styled
def attention_on_image(
    image: NDArray,
    query: tuple[int, int],
    maps: ArrayLike,
    order: ArrayLike | None = None,
    caption: str = "",
    largest: float | None = None,
) -> Figure:
    """One image with its query pixel, and beside it where every head of every layer looks (figures
    8 to 10).

    ``image`` (height, width, 1 or 3), uint8, as large as the maps or a multiple of them (attention
    works on the down-sampled grid); ``maps`` (layers, heads, H, W); ``query``: row and column in
    the maps; ``order`` and ``largest`` as in `attention_grid`."""
    height, width = size = (
        np.array(image.shape[:2]) * 1.35 / max(image.shape[:2])
    )  # of the picture, in inches
    room = width + 0.12, _ABOVE + height + 0.3
    figure = attention_grid(maps, query, order, largest=largest, room=room)
    page, (y, x), pixel = (
        figure.axes[0],
        (_ABOVE, 0.08),
        size / np.shape(maps)[2:],
    )  # a pixel of the maps
    page.imshow(
        image, cmap="gray", vmin=0, vmax=255, extent=(x, x + width, y + height, y), aspect="auto"
    )
    edge = [withStroke(linewidth=2.2, foreground="white")]
    _frame_pixel(
        page, (np.array(query) + 0.5) * pixel + (y, x), pixel, linewidth=1.2, path_effects=edge
    )
    page.text(
        x,
        y + height + 0.05,
        f"{caption}\nquery at row {query[0]}, column {query[1]}".strip(),
        va="top",
    )
    return figure


def _signed_scale(images: Sequence[NDArray]) -> Look:
    """One scale for all signed images, symmetric around zero."""
    largest = max(np.abs(image).max() for image in images) or 1.0
    return {"norm": Normalize(-largest, largest), "cmap": style.SIGNED_COLOURS}


@styled
def signed_images(
    images: Sequence[ArrayLike],
    titles: Sequence[str],
    photo: ArrayLike | None = None,
    query: tuple[int, int] | None = None,
    label: str = "Value",
) -> Figure:
    """Images (H, W) side by side on one scale that is white at zero; what is too close to it says
    its largest value.

    ``photo`` (H, W): the input, in [0, 1], drawn first and in grey; ``query``: its row and column,
    framed together with the 3 x 3 pixels around it, on the photo or, without one, on every image.
    """
    signed = [array(image, "image (H, W)") for image in images]
    scale = _signed_scale(signed)
    aspect = max(image.shape[0] / image.shape[1] for image in signed)
    figure, corners, size = _grid((1, len(titles)), aspect, side=1.9, above=0.22)
    axes = [_axes(figure, corner, size) for corner in corners[0]]
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title)
        ax.spines[:].set(visible=True, color="0.6", linewidth=0.4)
    if photo is not None:
        axes[0].imshow(photo, cmap="gray", vmin=0, vmax=1, aspect="auto")
    if query:
        edge = [withStroke(linewidth=2.8, foreground="white")]
        for ax in axes if photo is None else axes[:1]:
            _frame_pixel(ax, query, (3, 3), linewidth=1.3, path_effects=edge)
            _frame_pixel(ax, query, facecolor=style.QUERY_COLOUR, linewidth=0)
    for ax, image in zip(axes[photo is not None :], signed, strict=True):
        ax.imshow(image, aspect="auto", **scale)
        most = np.abs(image).max()
        if most < 0.01 * scale["norm"].vmax:
            note = f"at most {most:.0e}" if most else "zero everywhere"
            ax.text(0.5, 0.5, note, transform=ax.transAxes, ha="center", va="center", color="0.35")
    _bar(figure, scale, label)
    return figure


@styled
def sum_of_heads(maps: ArrayLike, weights: Sequence[float], parts: ArrayLike) -> Figure:
    """A convolution of one channel as a sum over heads (Theorem 1), a column a head.

    Above, ``maps`` (h, k, k): where each head looks from the query in the middle. Then ``parts``
    (h, H, W): what the head adds to the output, its ``weights`` (h,) times the image it sees; and
    below, the sum so far."""
    maps, parts = (
        array(values, "maps or parts (heads, rows, columns)") for values in (maps, parts)
    )
    sums = parts.cumsum(0)
    probability, signed = _probability_scale(maps.max()), _signed_scale([parts, sums])
    figure, corners, (width, height) = _grid(
        (3, len(maps)), parts.shape[1] / parts.shape[2], left=0.72, above=0.2
    )
    page, side = _page(figure), min(width, height)
    for name, (x, y) in zip(
        ("Where the\nhead looks", "What it\nadds", "Sum so far"), corners[:, 0], strict=True
    ):
        page.text(x - 0.05, y + height / 2, name, ha="right", va="center")
    centre = maps.shape[1] // 2, maps.shape[2] // 2
    for head, (top, middle, bottom) in enumerate(corners.swapaxes(0, 1)):
        times = f"× {weights[head]:+g}".replace("-", "−") if weights[head] else "× 0"
        square = top + ((width - side) / 2, height - side)
        _draw(page, maps[head], square, (side, side), probability, f"Head {head + 1}", centre)
        _draw(page, parts[head], middle, (width, height), signed, times)
        _draw(page, sums[head], bottom, (width, height), signed, "")
    _bar(figure, signed, "Value, lower two rows (white: zero); first row: black is one")
    return figure


@styled
def schema() -> Figure:
    """The paper's idea in one picture (its figure 1): nine heads that look at nine shifts are a 3 x
    3 convolution.

    From left to right: an image with its query; the heads, in colour; their value matrices, the
    taps; the output."""
    figure, square = (
        new_figure(DOUBLE, 2.9),
        {"xticks": [], "yticks": [], "aspect": "equal", "frame_on": False},
    )
    widths = 2.6, 1, 1, 1, 2.2, 1.7  # image, heads, kernel, output
    axes = figure.subplot_mosaic("i012ko;i345ko;i678ko", width_ratios=widths, subplot_kw=square)
    patch = (
        np.random.default_rng(3).uniform(0.6, 0.95, (5, 5, 1)).repeat(3, axis=2)
    )  # grey: (rows, columns, RGB)
    ninth = style.PALETTE[9]  # that of the ninth head is as grey as the pixels
    taps = np.reshape([to_rgb(colour) for colour in (*style.head_colours(8), ninth)], (3, 3, 3))
    pixels = {"i": patch.copy(), "k": taps, "o": np.ones((5, 5, 3))}
    pixels["i"][1:4, 1:4], pixels["o"][2, 2] = taps, 0.45
    titles = {"i": "Image $X$, query pixel $q$", "o": "Output at $q$:\ntheir sum"}
    titles["k"] = "Value matrices $W^h$:\nthe taps of a kernel"
    for head, (row, column) in enumerate(np.ndindex(3, 3)):
        pixels[f"{head}"] = patch.copy()
        pixels[f"{head}"][1 + row, 1 + column] = taps[row, column]
        titles[f"{head}"] = f"({row - 1:+d}, {column - 1:+d})".replace("-", "−").replace("+0", "0")
        centred: Look = {"ha": "center", "va": "center"}
        axes["k"].text(column + 0.5, row + 0.5, f"$W^{head + 1}$", fontsize=9.5, **centred)
    titles["1"] = f"Nine heads: each attends to one\nshift $Δ_h$ (rows, columns)\n\n{titles['1']}"
    for name, ax in axes.items():
        ax.pcolormesh(pixels[name], edgecolor="0.8", linewidth=0.4)
        ax.set_title(titles[name])
        ax.invert_yaxis()
        if name != "k":
            _frame_pixel(ax, (2.5, 2.5), edgecolor="black", linewidth=1.2, zorder=4)
    for name, x in (("i", 1.12), ("k", -0.12), ("o", -0.16)):
        axes[name].annotate("→", (x, 0.5), xycoords="axes fraction", fontsize=15, **centred)
    figure.supxlabel(
        r"$\mathrm{Output}_q \;=\; \sum_h X_{q + \Delta_h} W^h \;=\; \mathrm{Conv}(X)_q$",
        fontsize=12.5,
    )
    return figure
