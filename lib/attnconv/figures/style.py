"""What all figures share: widths, colours, the style sheet, and how a figure becomes a file."""

from __future__ import annotations

import functools
import hashlib
import io
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import Animation
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import ArrayLike, NDArray
from PIL import Image

SINGLE, DOUBLE = 3.5, 7.0
"""Widths of one and of two columns of a journal, in inches."""
FRAME_DPI = 110
"""Dots an inch of an animation, which is seen on screens only."""
_FRAME = r"(?<=base64,)[^\"]+"
"""A frame in the HTML of Matplotlib's player."""

STYLE = Path(__file__).with_name("attnconv.mplstyle")
_MAKO = ("#b7e6c5", "#82d8b0", "#50c6ad", "#3cb2ad", "#359baa", "#3485a5", "#3670a0", "#3b589a", "#414184", "#3c3162")
MAP_COLOURS = LinearSegmentedColormap.from_list("maps", ["white", *_MAKO, "#312140", "#1f1220"])
"""From white (no attention) to black: seaborn's mako_r. Copied, as importing seaborn takes a second."""
_SIGNED = ["#053061", "#2166ac", "#6baed6", "white", "#f4906a", "#b2182b", "#67001f"]
SIGNED_COLOURS = LinearSegmentedColormap.from_list("signed", _SIGNED)
"""Blue below zero, white at zero, red above."""
QUERY_COLOUR = "#D55E00"
"""The frame of the query pixel on maps and images; over plain grids of shifts its frame is black."""
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.6))

PALETTE = ("#0173B2", "#DE8F05", "#029E73", "#D55E00", "#CC78BC", "#8C613C", "#56B4E9", "#FBAFE4", "#949494", "#ECE133")
"""Ten colours that colour-blind readers tell apart (seaborn's, from Okabe and Ito)."""
_SECOND = ("#332288", "#999933", "#CC6677", "#44AA99", "#882255", "#DDCC77", "#117733", "#AA4499", "#88CCEE", "#661100")
"""Ten more (Paul Tol's muted scheme), for heads from the eleventh on, which have another mark too."""
_MARKERS = ("o", "s", "D", "^")
MODELS = {
    "ResNet18": "#000000",
    "SA quadratic": "#0072B2",
    "SA quadratic, full covariance": "#56B4E9",
    "SA quadratic, full covariance, pruned": "#CC79A7",
    "SA quadratic, 16 heads": "#009E73",
    "SA learned": "#E69F00",
    "SA learned + content": "#D55E00",
}
_OTHER_MODELS = ("#882255", "#8C613C", "#332288", "#999933", "#949494", "#FBAFE4", "#ECE133")
"""For models of other titles: none looks like one above."""


def ordered_colours(ramp: str, count: int) -> list:
    """That many colours of one of seaborn's ramps, for things that have an order, such as layers."""
    from seaborn import color_palette  # takes a second

    return color_palette(ramp, count)


def head_colours(heads: int) -> list[str]:
    """One colour for each head of a layer: the first of 16 heads has the colour of the first of 9.

    Heads of different layers have nothing to do with each other, so the colours link panels of one layer only.
    """
    return [(PALETTE + _SECOND)[head % 20] for head in range(heads)]


def head_marker(head: int) -> str:
    """A head's mark: another one after each ten heads."""
    return _MARKERS[head // 10 % len(_MARKERS)]


def model_colours(titles: Iterable[str]) -> dict[str, str]:
    """One colour for each model title: fixed for the paper's runs, the next free one for others, by name."""
    titles = list(titles)
    others = sorted(set(titles) - set(MODELS))
    return {t: MODELS[t] if t in MODELS else _OTHER_MODELS[others.index(t) % len(_OTHER_MODELS)] for t in titles}


def styled(function: Callable) -> Callable:
    """Run a function under the library's style, whatever the session has set."""

    @functools.wraps(function)
    def under_style(*args, **kwargs):
        with plt.style.context(["default", STYLE]):
            return function(*args, **kwargs)

    return under_style


@styled
def save(figure: Figure, path: str | Path) -> None:
    """Write a figure to a .pdf or .png file: fonts embedded, and neither date nor version in it.

    The same figure gives the same bytes. A .png has 256 colours, a third of the size.
    """
    path = Path(path)
    if path.suffix not in (".pdf", ".png"):
        raise ValueError(f"path = {path} must end in .pdf or .png.")
    settle(figure)
    if path.suffix == ".pdf":
        figure.savefig(path, metadata=dict.fromkeys(("CreationDate", "ModDate", "Producer", "Creator")))
        return
    content = io.BytesIO()
    figure.savefig(content, format="png")
    path.write_bytes(of_256_colours(content.getvalue()))


def of_256_colours(png: bytes) -> bytes:
    """With 256 colours, each close to its own: few of our figures' colours move by more than 10 of 255."""
    picture, content = Image.open(io.BytesIO(png)), io.BytesIO()
    few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(content, "PNG", dpi=picture.info.get("dpi"))
    return content.getvalue()


def save_animation(animation: Animation, path: str | Path, frames_per_second: float = 10) -> None:
    """Write an animation to a .gif file."""
    frames = re.findall(_FRAME, _drawn(animation, frames_per_second))
    first, *others = [Image.open(io.BytesIO(b64decode(frame))).convert("RGB") for frame in frames]
    first.save(path, save_all=True, append_images=others, duration=1000 / frames_per_second, loop=0)


def player(animation: Animation, frames_per_second: float = 10) -> str:
    """An animation as HTML, with buttons. The same one gives the same text: Matplotlib's random name is replaced."""
    html = _drawn(animation, frames_per_second)
    html = re.sub(_FRAME, lambda frame: b64encode(of_256_colours(b64decode(frame[0]))).decode(), html)
    random = re.search(r'id="_anim_img([0-9a-f]{32})"', html)[1]
    return html.replace(random, hashlib.sha256(html.replace(random, "").encode()).hexdigest()[:8])


@styled
def _drawn(animation: Animation, frames_per_second: float) -> str:
    """Matplotlib's player, with every frame as a PNG. Matplotlib keeps it: the frames are drawn once."""
    with plt.rc_context({"savefig.dpi": FRAME_DPI}):
        return animation.to_jshtml(frames_per_second, default_mode="once")


def new_figure(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """A figure of that size in inches. It is shown where it is returned, not where it is made: pyplot lets go of it."""
    figure = plt.figure(figsize=(width, height), layout=layout)
    plt.close(figure)
    return figure


def settle(figure: Figure) -> None:
    """Lay the figure out for good: each drawing moves nested panels a little until the layout has settled."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        for _ in range(3):
            figure.draw_without_rendering()
        figure.set_layout_engine("none")


def rows_and_columns(panels: int) -> tuple[int, int]:
    """Rows and columns for that many panels, at most three in a row, filled evenly."""
    rows = math.ceil(panels / 3)
    return rows, math.ceil(panels / rows)


def layer_titles(layers: int) -> list[str]:
    """Layers are numbered from 1."""
    return [f"Layer {layer + 1}" for layer in range(layers)]


def array(values: ArrayLike, shape: str) -> NDArray:
    """The values as an array of floats. ``shape`` says what they are and has a name for each axis: "maps (h, H, W)"."""
    values = np.asarray(values, dtype=float)
    if values.ndim != shape.rpartition("(")[2].count(",") + 1:  # a title before it may have commas
        raise ValueError(f"An array of shape {values.shape} was given for {shape}.")
    return values
