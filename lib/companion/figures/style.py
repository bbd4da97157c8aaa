"""What all figures share: widths, colours, the style sheet, panels, and how a figure becomes a
file.
"""

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import rc_params_from_file
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from seaborn import color_palette

from companion.pictures import COVERAGE, SETTLED, of_256_colours

SINGLE, DOUBLE = 3.5, 7.0  # widths of one and of two columns of a journal, in inches
Look = dict[str, Any]  # how something is drawn, in Matplotlib's words

MAP_COLOURS = LinearSegmentedColormap.from_list(
    "maps", ["white", *color_palette("mako_r", 12)]
)  # white: no attention
SIGNED_COLOURS = LinearSegmentedColormap.from_list(  # blue below zero, white at zero, red above
    "signed", ["#053061", "#2166ac", "#6baed6", "white", "#f4906a", "#b2182b", "#67001f"]
)
QUERY_COLOUR = "#D55E00"  # frames the query on maps and images; on grids of shifts it is black
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.6))

STYLE = Path(__file__).with_name("attnconv.mplstyle")
PALETTE: list[str] = rc_params_from_file(STYLE)["axes.prop_cycle"].by_key()["color"]
"""Twenty colours that colour-blind readers tell apart: seaborn's ten, then Paul Tol's muted
scheme, for heads from the eleventh on, which have another mark, too."""
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


def head_colours(heads: int) -> list[str]:
    """One colour for each head, the first of 16 as the first of 9. Colours link panels of one
    layer only."""
    return [PALETTE[head % len(PALETTE)] for head in range(heads)]


def model_colours(titles: Iterable[str]) -> dict[str, str]:
    """One colour for each model title: fixed for the paper's runs, the last of the palette for
    others, by name; grey where there are more."""
    titles = list(titles)
    others = sorted(set(titles) - set(MODELS))
    colours = MODELS | dict(zip(others, reversed(PALETTE), strict=False))
    return {title: colours.get(title, "0.5") for title in titles}


styled = plt.style.context(["default", STYLE])
"""Decorates a function that draws: it runs under the library's style, whatever the session has
set."""


@styled
def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as <path>.pdf and <path>.png, fonts embedded. Without date and version, they
    are the same each time."""
    settle(figure)
    dated = "CreationDate", "Producer", "Creator"
    figure.savefig(f"{path}.pdf", metadata=dict.fromkeys(dated))
    content = io.BytesIO()
    figure.savefig(content, metadata={"Software": None})
    Path(f"{path}.png").write_bytes(of_256_colours(content.getvalue()))


@styled
def save_animation(frames: Sequence[Figure], path: str | Path) -> None:
    """Write figures with the same panels, which stay in their places, as the frames of a .gif
    file for screens, five a second."""
    pictures = []
    for figure in frames:
        settle(figure, frames[0])
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=110)
        pictures.append(Image.open(content).convert("RGB").quantize(128, COVERAGE, SETTLED))
    first, *others = pictures
    first.save(
        path,
        "GIF",
        save_all=True,
        append_images=others,
        duration=200,  # milliseconds
        loop=0,
    )


def new_figure(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """A figure of that size in inches. It is shown where it is returned, not where it is made:
    pyplot lets go of it."""
    figure = plt.figure(figsize=(width, height), layout=layout)
    plt.close(figure)
    return figure


def settle(figure: Figure, like: Figure | None = None) -> None:
    """Lay the figure out for good: anew, or in far less time as one with the same panels, which
    is laid out already."""
    engine = figure.get_layout_engine()
    if engine is None:
        return
    if like in (None, figure):
        engine.execute(figure)
    figure.set_layout_engine(None)
    for ax, other in zip(figure.axes, (like or figure).axes, strict=True):
        ax.set_position(other.get_position(original=True))


def rows_and_columns(panels: int) -> tuple[int, int]:
    """Rows and columns for that many panels, at most three in a row, filled evenly."""
    rows = math.ceil(panels / 3)
    return rows, math.ceil(panels / rows)


def panels(
    titles: Sequence[str], height: float, xlabel: str, ylabel: str = "", width: float | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel of that height, in inches, for each title. They share a vertical
    axis that has a name."""
    rows, columns = rows_and_columns(len(titles))
    figure = new_figure(width or (SINGLE if columns == 1 else DOUBLE), rows * height + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=bool(ylabel)).flatten()
    for ax in axes[len(titles) :]:
        ax.remove()
    for place, title in enumerate(titles):
        axes[place].set_title(textwrap.fill(title, 28))
        axes[place].grid(axis="y")
        if place + columns >= len(titles):  # no panel is below
            axes[place].set_xlabel(xlabel)
        if place % columns == 0:
            axes[place].set_ylabel(ylabel)
    return figure, list(axes[: len(titles)])


def legend_below(figure: Figure) -> None:
    """A legend of what is named in any panel, each name once."""
    found: dict[str, Artist] = {}
    for ax in figure.axes:
        handles, names = ax.get_legend_handles_labels()
        found |= zip(names, handles, strict=True)
    columns = int(figure.get_figwidth() / 1.17)  # names of up to 18 letters
    figure.legend(handles=[*found.values()], loc="outside lower center", ncols=columns)


def array(values: ArrayLike, shape: str) -> NDArray:
    """The values as an array of floats. ``shape`` says what they are and has a name for each
    axis: "maps (h, H, W)"."""
    values = np.asarray(values, dtype=float)
    if values.ndim != shape.rpartition("(")[2].count(",") + 1:  # a title before it may have commas
        raise ValueError(f"An array of shape {values.shape} was given for {shape}.")
    return values
