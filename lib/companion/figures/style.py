"""What all figures share: widths, colours, the style sheet, panels, and how a figure becomes a
file.
"""

import io
import math
import string
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from seaborn import color_palette

SINGLE, DOUBLE = 3.5, 7.0  # widths of one and of two columns of a journal, in inches
Look = dict[str, Any]  # how something is drawn, in Matplotlib's words

MAP_COLOURS = LinearSegmentedColormap.from_list(
    "maps", ["white", *color_palette("mako_r", 12)]
)  # white: no attention
SIGNED_COLOURS = LinearSegmentedColormap.from_list(  # blue below zero, white at zero, red above
    "signed", ["#053061", "#2166ac", "#6baed6", "white", "#f4906a", "#b2182b", "#67001f"]
)
QUERY_COLOUR = (
    "#D55E00"  # the query pixel's frame on maps and images; over plain grids of shifts it is black
)
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.6))

PALETTE = (
    "#0173B2",
    "#DE8F05",
    "#029E73",
    "#D55E00",
    "#CC78BC",
    "#8C613C",
    "#56B4E9",
    "#FBAFE4",
    "#949494",
    "#ECE133",
)
"""Ten colours that colour-blind readers tell apart: seaborn's, the faint ones last."""
_SECOND = (
    "#332288",
    "#999933",
    "#CC6677",
    "#44AA99",
    "#882255",
    "#DDCC77",
    "#117733",
    "#AA4499",
    "#88CCEE",
    "#661100",
)
"""Ten more (Paul Tol's muted scheme), for heads from the eleventh on, which have another mark
too.
"""
_MARKERS = ("o", "s", "D", "^")
MODELS = {
    "ResNet18": "#000000",
    "SA quadratic": "#0072B2",
    "SA quadratic, full covariance": "#56B4E9",
    "SA quadratic, full covariance, pruned": "#CC79A7",
    "SA quadratic, 16 heads": "#009E73",
    "SA learned": "#E69F00",
    "SA learned + content": "#D55E00",
    "SA quadratic, full covariance, trained on": "#882255",
    "SA quadratic, trained on": "#8C613C",
    "SA quadratic, first layers swapped, trained on": "#332288",
}
_OTHER_MODELS = (
    "#999933",
    "#949494",
    "#FBAFE4",
    "#ECE133",
)  # for other titles: none looks like one above


def head_colours(heads: int) -> list[str]:
    """One colour for each head, the first of 16 as the first of 9. Colours link panels of one
    layer only.
    """
    return [(PALETTE + _SECOND)[head % 20] for head in range(heads)]


def head_marker(head: int) -> str:
    """A head's mark: another one after each ten heads."""
    return _MARKERS[head // 10 % len(_MARKERS)]


def model_colours(titles: Iterable[str]) -> dict[str, str]:
    """One colour for each model title: fixed for the paper's runs, the next free one for others,
    by name.
    """
    titles = list(titles)
    others = sorted(set(titles) - set(MODELS))
    return {
        t: MODELS[t] if t in MODELS else _OTHER_MODELS[others.index(t) % len(_OTHER_MODELS)]
        for t in titles
    }


styled = plt.style.context(["default", Path(__file__).with_name("attnconv.mplstyle")])
"""Decorates a function that draws: it runs under the library's style, whatever the session has
set.
"""


@styled
def save(figure: Figure, path: str | Path) -> None:
    """Write a figure to a .pdf or .png file, fonts embedded. Without date and version, it is the
    same each time.
    """
    pdf = Path(path).suffix == ".pdf"
    settle(figure)
    figure.savefig(
        path,
        metadata=dict.fromkeys(("CreationDate", "Producer", "Creator") if pdf else ("Software",)),
    )
    if not pdf:
        Path(path).write_bytes(of_256_colours(Path(path).read_bytes()))


def of_256_colours(png: bytes) -> bytes:
    """The same picture in a third of the bytes: with all colours, the committed record would be
    79 MB, not 54.
    """
    picture, content = Image.open(io.BytesIO(png)), io.BytesIO()
    few = picture.convert("RGB").quantize(
        256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE
    )
    few.save(content, "PNG", dpi=picture.info.get("dpi"), optimize=True)
    return content.getvalue()


@styled
def save_animation(frames: Iterable[Figure], path: str | Path, frames_per_second: int = 10) -> None:
    """Write figures with the same panels, which stay in their places, as the frames of a .gif
    file for screens.
    """
    pictures: list[Image.Image] = []
    for figure in (frames := list(frames)):
        content = io.BytesIO()
        settle(figure, frames[0] if pictures else None)
        figure.savefig(content, format="png", dpi=110)
        pictures.append(Image.open(content).convert("RGB"))
    palette = pictures[-1].quantize(
        128, Image.Quantize.MAXCOVERAGE, kmeans=1
    )  # one of all: what stays is written once
    first, *others = (
        picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures
    )
    first.save(
        path,
        "GIF",
        save_all=True,
        append_images=others,
        duration=round(1000 / frames_per_second),
        loop=0,
    )


def new_figure(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """A figure of that size in inches. It is shown where it is returned, not where it is made:
    pyplot lets go of it.
    """
    figure = plt.figure(figsize=(width, height), layout=layout)
    plt.close(figure)
    return figure


def settle(figure: Figure, like: Figure | None = None) -> None:
    """Lay the figure out for good: anew, or in far less time as one with the same panels, which
    is laid out already.
    """
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        for _ in range(
            0 if like else 3
        ):  # each time moves nested panels a little, until the layout has settled
            engine.execute(figure)
        figure.set_layout_engine("none")
        for ax, other in zip(figure.axes, like.axes, strict=True) if like else ():
            ax.set_position(other.get_position(original=True))


def rows_and_columns(panels: int) -> tuple[int, int]:
    """Rows and columns for that many panels, at most three in a row, filled evenly."""
    rows = math.ceil(panels / 3)
    return rows, math.ceil(panels / rows)


def panels(
    titles: Sequence[str], height: float, xlabel: str, ylabel: str = "", width: float | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel of that height, in inches, for each title. They share a vertical
    axis that has a name.
    """
    rows, columns = rows_and_columns(len(titles))
    figure = new_figure(width or (SINGLE if columns == 1 else DOUBLE), rows * height + 0.5)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=bool(ylabel)).flat)
    while len(axes) > len(titles):
        axes.pop().remove()
    for place, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        ax.set_title(textwrap.fill(title, 36 if columns < 3 else 20))  # beside its letter
        ax.set_title(
            string.ascii_lowercase[place] if len(titles) > 1 else "", loc="left", weight="bold"
        )
        ax.set_xlabel(xlabel if place + columns >= len(titles) else "")  # no panel is below
        ax.set_ylabel(ylabel if place % columns == 0 else "")
        ax.grid(axis="y")
    return figure, axes


def legend_below(figure: Figure, handles: Sequence[Artist] = ()) -> None:
    """A legend of what the first panel names, or of ``handles``; it reads along rows, and as
    many fit into one.
    """
    handles = handles or figure.axes[0].get_legend_handles_labels()[0]
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = min(len(handles), max(1, int(figure.get_figwidth() / (0.3 + 0.047 * longest))))
    by_rows = [
        handle for column in range(columns) for handle in handles[column::columns]
    ]  # Matplotlib fills columns
    figure.legend(handles=by_rows, loc="outside lower center", ncols=columns)


def array(values: ArrayLike, shape: str) -> NDArray:
    """The values as an array of floats. ``shape`` says what they are and has a name for each
    axis: "maps (h, H, W)".
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != shape.rpartition("(")[2].count(",") + 1:  # a title before it may have commas
        raise ValueError(f"An array of shape {values.shape} was given for {shape}.")
    return values
