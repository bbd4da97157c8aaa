"""Every figure and table of the paper, and some of our own: arrays in, a matplotlib `Figure` out.

Nothing is trained, loaded or measured here. Conventions of all figures: shifts and pixels count rows, then columns, and
rows point down as in an image; layers and heads are numbered from 1; a head keeps its colour in every figure
(`head_colours`) and so does a model (`model_colours`). An array may be NaN where there is nothing: layers with fewer
heads, encodings without a covariance, pixels outside the image. The style is `attnconv.mplstyle`, and the same arrays
give the same bytes (`save`).
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.animation import Animation, FuncAnimation, PillowWriter
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm, to_hex, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike, NDArray

from attnconv.runs import writing

SINGLE, DOUBLE = 3.3, 6.9
"""Widths of one and of two columns of a journal, in inches."""

STYLE = Path(__file__).with_name("attnconv.mplstyle")
MAP_COLOURS = sns.blend_palette(["white", *sns.color_palette("mako_r", 12)], as_cmap=True)
"""From white (no attention) to black."""
QUERY_COLOUR = "#D55E00"
"""The frame of the query pixel on attention maps and images; over plain grids the query is black, as in the paper."""

_BASE = ("#0173B2", "#DE8F05", "#029E73", "#D55E00", "#CC78BC", "#8C613C", "#56B4E9", "#FBAFE4", "#949494", "#ECE133")
_DOTTED = (0, (1, 1.6))
_MARKERS = ("o", "s", "D", "^")
_MODELS = {
    "ResNet18": "#000000",
    "SA quadratic": "#0072B2",
    "SA quadratic, full covariance": "#56B4E9",
    "SA quadratic, full covariance, pruned": "#CC79A7",
    "SA quadratic, 16 heads": "#009E73",
    "SA learned": "#E69F00",
    "SA learned + content": "#D55E00",
}
_FREE = ("#882255", "#8C613C", "#332288", "#999933", "#949494", "#FBAFE4", "#ECE133")
"""For models of other titles: none looks like one above."""


# --- colours, style, files ----------------------------------------------------------------------------------------


def head_colours(heads: int) -> list[str]:
    """One colour for each head, the same in every figure: the first of 16 heads has the colour of the first of 9.

    Ten colours that colour-blind readers tell apart (seaborn's, from Okabe and Ito), then the same darkened; from the
    eleventh head on the marker changes too.
    """
    darker = [to_hex([0.55 * part for part in to_rgb(colour)]) for colour in _BASE]
    return [(list(_BASE) + darker)[head % 20] for head in range(heads)]


def model_colours(titles: Iterable[str]) -> dict[str, str]:
    """One colour for each model title: fixed for the paper's runs, the next free one for others, by name."""
    titles = list(titles)
    others = sorted(set(titles) - set(_MODELS))
    return {t: _MODELS[t] if t in _MODELS else _FREE[others.index(t) % len(_FREE)] for t in titles}


def layer_colours(layers: int) -> list[str]:
    """One colour for each layer, light to dark with depth."""
    return [to_hex(c) for c in sns.color_palette("flare", max(layers, 2))][:layers]


def styled(function: Callable) -> Callable:
    """Run a function under the library's style, whatever the session has set."""

    @functools.wraps(function)
    def under_style(*args, **kwargs):
        with plt.style.context(["default", STYLE]):
            return function(*args, **kwargs)

    return under_style


@styled
def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write ``path`` + .pdf and .png, each whole or not at all; the same figure gives the same bytes.

    Fonts are embedded (TrueType), and the files hold no date and no version.
    """
    path = Path(path)
    nothing = {
        ".pdf": dict.fromkeys(("CreationDate", "ModDate", "Producer", "Creator")),
        ".png": {"Software": None},
    }
    _settle(figure)
    files = []
    for suffix, metadata in nothing.items():
        files.append(path.with_name(path.name + suffix))
        with writing(files[-1]) as temporary:
            figure.savefig(temporary, format=suffix[1:], metadata=metadata)
    return files


@styled
def save_animation(animation: Animation, path: str | Path, frames_per_second: float = 10) -> Path:
    """Write an animation as a GIF, through pillow, whole or not at all; ``.gif`` is added to the path if missing."""
    path = Path(path)
    path = path if path.suffix == ".gif" else path.with_name(path.name + ".gif")
    with writing(path) as temporary:
        animation.save(temporary, writer=PillowWriter(fps=frames_per_second), dpi=110)
    return path


def _figure(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """A figure of that size in inches. It is shown where it is returned, not where it is made: pyplot lets go of it."""
    figure = plt.figure(figsize=(width, height), layout=layout)
    plt.close(figure)
    return figure


def _settle(figure: Figure) -> None:
    """Lay the figure out for good: each drawing moves nested panels a little until the layout has settled."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        for _ in range(3):
            figure.draw_without_rendering()
        figure.set_layout_engine("none")


def _marker(head: int) -> str:
    return _MARKERS[head // 10 % len(_MARKERS)]


def _panels(count: int, most: int = 3) -> tuple[int, int]:
    """Rows and columns for that many panels, filled evenly."""
    rows = math.ceil(count / most)
    return rows, math.ceil(count / rows)


def _titles(names: Sequence[str] | None, count: int, word: str) -> list[str]:
    if names is not None and len(names) != count:
        raise ValueError(f"{len(names)} titles were given for {count} panels.")
    return [f"{word} {index + 1}" for index in range(count)] if names is None else list(names)


def _array(values: ArrayLike, *dimensions: int, name: str, shape: str) -> NDArray:
    values = np.asarray(values, dtype=float)
    if values.ndim not in dimensions or (values.shape and not values.size):
        raise ValueError(f"{name} has shape {values.shape}; it must be {shape}, none of them empty.")
    return values


def _apart(values: ArrayLike, gap: float) -> NDArray:
    """The positions nearest to these values (least squares) that keep their order and stay a gap apart."""
    values = np.asarray(values, dtype=float)
    order = np.argsort(values, kind="stable")
    blocks: list[list[float]] = []  # [mean, size]: pool neighbours that would cross, as isotonic regression does
    for place, value in enumerate(values[order]):
        blocks.append([value - place * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [[(a * n + b * m) / (n + m), n + m]]
    result = np.empty_like(values)
    result[order] = np.repeat([b[0] for b in blocks], [int(b[1]) for b in blocks]) + gap * np.arange(len(values))
    return result


def _label_ends(ax: Axes, ends: Sequence[tuple[float, str, str]], height: float, wrap: int) -> None:
    """Write (y, label, colour) right of the axes, next to where each line ends, without overlaps.

    ``height``: of the axes, in inches, about.
    """
    low, high = ax.get_ylim()
    labels = [textwrap.fill(label, wrap) for _, label, _ in ends]
    gap = max(label.count("\n") + 1 for label in labels) * 8.5 / 72 / height
    places = _apart([(y - low) / (high - low) for y, _, _ in ends], gap)
    places += max(0, gap / 2 - places.min())
    places -= max(0, places.max() + gap / 2 - 1)  # the block stays beside the axes
    for (_, _, colour), label, place in zip(ends, labels, places, strict=True):
        ax.annotate(
            label,
            (1, place),
            xycoords="axes fraction",
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=6.5,
            annotation_clip=False,
        )


# --- accuracy: figure 2 and table 1 -------------------------------------------------------------------------------


@styled
def accuracy_curves(curves: Mapping[str, ArrayLike], label: str = "Test accuracy (%)") -> Figure:
    """Accuracy over epochs, a line a model (figure 2): ``{title: (seeds, epochs)}``, accuracies in [0, 1].

    The line is the mean over seeds and the band runs from the worst to the best seed. Curves may differ in length; NaN
    marks epochs that a seed has not seen.

    Raises:
        ValueError: no curves, or one that is not (seeds, epochs).
    """
    if not curves:
        raise ValueError("curves is empty: there is nothing to draw.")
    wide = len(curves) > 4 or max(map(len, curves)) > 22
    height = 2.4
    figure = _figure(DOUBLE if wide else SINGLE, height)
    ax = figure.add_subplot()
    ends = []
    for title, colour in model_colours(curves).items():
        values = 100 * _array(curves[title], 2, name=title, shape="(seeds, epochs)")
        values = values[:, np.isfinite(values).any(0)]
        epochs = 1 + np.arange(values.shape[1])
        mean = np.nanmean(values, axis=0)
        marker = {"marker": "o"} if len(epochs) == 1 else {}
        ax.plot(epochs, mean, color=colour, label=title, **marker)
        if len(values) > 1:
            low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
            ax.fill_between(epochs, low, high, color=colour, alpha=0.2, linewidth=0)
        ends.append((mean[-1], f"{title} {mean[-1]:.1f}", colour))
    ax.set(xlabel="Epoch", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.margins(x=0.01)
    ax.grid(axis="y")
    _label_ends(ax, ends, 0.8 * height, wrap=44 if wide else 16)
    return figure


PAPER_TABLE: dict[str, dict[str, float]] = {
    "ResNet18": {"accuracy": 93.8, "parameters": 11.2e6, "flops": 1.1e9},
    "SA quadratic": {"accuracy": 93.8, "parameters": 12.1e6, "flops": 6.2e9},
    "SA learned": {"accuracy": 91.8, "parameters": 12.3e6, "flops": 6.2e9},
    "SA learned + content": {"accuracy": 87.1, "parameters": 29.5e6, "flops": 15e9},
}
"""Table 1 of the paper, by model title: test accuracy (%) on CIFAR-10, parameters, FLOPs as it counts them."""

REPRODUCTION_2021: dict[str, float] = {
    "ResNet18": 94.63,
    "SA quadratic": 93.65,
    "SA quadratic, 16 heads": 93.11,
    "SA learned": 90.36,
    "SA learned, 16 heads": 91.15,
    "SA learned + content": 86.36,
    "SA learned + content, 16 heads": 85.56,
    "SA learned + content, shared attention": 91.00,
}
"""Test accuracy (%) of Prabhu & Varma, ML Reproducibility Challenge 2020, by model title."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One model's row of `results_table`."""

    model: str
    """Its title."""
    accuracies: Sequence[float]
    """Test accuracy of each seed, in [0, 1]."""
    parameters: int
    flops_paper: float
    """FLOPs of one image's forward pass as the paper counts: linear maps and convolutions only."""
    flops_dense: float
    """All matrix products, attention averaged densely."""
    flops_separable: float
    """The same with separable encodings mixed along rows, then columns."""
    seconds: float
    """Training time of a seed, mean."""
    published: str = ""
    """The title by which the published numbers are found, if another."""
    comparable: bool = True
    """Whether data, model and recipe are the paper's, so that its numbers may judge ours."""
    why: str = ""
    """Why not, in a few words."""


def results_table(rows: Sequence[Result], tolerance: float = 1.0) -> dict[str, str]:
    """Table 1 with ours, the paper's and the 2021 reproduction's numbers: ``markdown``, ``csv`` and ``latex`` texts.

    Accuracies are means over seeds, +- the sample standard deviation from two seeds on. The verdict says whether our
    mean lies within ``tolerance`` points of the paper's, where the two may be compared. The CSV holds plain numbers;
    the LaTeX wants the package booktabs.
    """
    heading = (
        "Model",
        "Accuracy here (%)",
        "Paper (%)",
        "Reproduction 2021 (%)",
        "Against the paper",
        "Parameters",
        "FLOPs as in the paper",
        "FLOPs exact, dense",
        "FLOPs exact, separable",
        "Training time",
    )
    cells, plain = [], []
    for row in rows:
        values = 100 * np.asarray(row.accuracies, dtype=float)
        mean = values.mean() if values.size else math.nan
        std = values.std(ddof=1) if values.size > 1 else math.nan
        title = row.published or row.model
        paper = PAPER_TABLE.get(title, {}).get("accuracy", math.nan)
        published = REPRODUCTION_2021.get(title, math.nan)
        verdict = _verdict(row, mean - paper, tolerance)
        accuracy = "—" if math.isnan(mean) else f"{mean:.2f}" + ("" if math.isnan(std) else f" ± {std:.2f}")
        cells.append(
            (
                row.model,
                f"{accuracy} (n = {values.size})",
                "—" if math.isnan(paper) else f"{paper:.1f}",
                "—" if math.isnan(published) else f"{published:.2f}",
                verdict,
                _short(row.parameters),
                _short(row.flops_paper),
                _short(row.flops_dense),
                _short(row.flops_separable),
                _duration(row.seconds),
            )
        )
        counts = (row.parameters, row.flops_paper, row.flops_dense, row.flops_separable)
        numbers = [*(round(count) for count in counts), "" if math.isnan(row.seconds) else round(row.seconds, 1)]
        exact = [round(float(v), 4) for v in (mean, std, paper, published)]
        exact = ["" if math.isnan(v) else v for v in exact]
        plain.append([row.model, exact[0], exact[1], values.size, *exact[2:], verdict, *numbers])

    text = io.StringIO()
    names = "model accuracy accuracy_std seeds paper_accuracy reproduction_2021_accuracy verdict parameters".split()
    names += ["flops_paper", "flops_dense", "flops_separable", "train_seconds"]
    csv.writer(text, lineterminator="\n").writerows([names, *plain])
    return {
        "markdown": _markdown(heading, cells),
        "csv": text.getvalue(),
        "latex": _latex(heading, cells),
    }


def _verdict(row: Result, difference: float, tolerance: float) -> str:
    if not row.comparable:
        return f"not comparable: {row.why}" if row.why else "not comparable"
    if math.isnan(difference):
        return "no number in the paper" if (row.published or row.model) not in PAPER_TABLE else "not run"
    difference = round(difference, 2) + 0.0
    word = "agrees" if abs(difference) <= tolerance else "differs"
    note = f"; {row.why}" if row.why else ""
    return f"{word}: {difference:+.2f} points (tolerance {tolerance:g})".replace("-", "−") + note


def _short(number: float) -> str:
    """1.23e7 -> 12.3M."""
    if not math.isfinite(number):
        return "—"
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 0.9995 * limit:
            return f"{number / limit:.3g}{letter}"
    return f"{number:.0f}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "—"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"


def _markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _latex(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    special = {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    special |= {"^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "—": "---"}

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(special.get(c, c) for c in cell) for cell in cells) + r" \\"

    body = [r"\begin{tabular}{l" + "r" * (len(heading) - 1) + "}", r"\toprule", line(heading), r"\midrule"]
    return "\n".join([*body, *map(line, rows), r"\bottomrule", r"\end{tabular}", ""])


# --- centres: figures 3 and 4 -------------------------------------------------------------------------------------


def _half_width(centres: NDArray, asked: float | None) -> float:
    """Half the side of the square of shifts to show: asked for, or what the centres need, at most 8.5 pixels."""
    if asked is not None:
        return float(asked)
    finite = np.abs(centres[np.isfinite(centres)])
    return min(max(math.ceil(finite.max(initial=0) - 1e-6) + 1.5, 2.5), 8.5)


def _pixel_axes(ax: Axes, half: float, row_label: bool, column_label: bool, ticks: int = 9) -> None:
    """Axes over shifts, rows pointing down, with the pixel grid and the query pixel in black."""
    ax.set(xlim=(-half, half), ylim=(half, -half), aspect="equal")
    for spine in ax.spines.values():
        spine.set_visible(True)
    borders = np.arange(-math.floor(half), math.floor(half) + 2) - 0.5
    borders = borders[np.abs(borders) < half]
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(ticks, integer=True, symmetric=True, steps=[1, 2, 4, 10]))
    for border in borders:
        ax.axhline(border, color="0.9", linewidth=0.4, zorder=0)
        ax.axvline(border, color="0.9", linewidth=0.4, zorder=0)
    ax.add_patch(Rectangle((-0.5, -0.5), 1, 1, facecolor="black", linewidth=0, zorder=1, label="query"))
    if row_label:
        ax.set_ylabel("Row shift (pixels)")
    else:
        ax.tick_params(labelleft=False)
    if column_label:
        ax.set_xlabel("Column shift (pixels)")
    else:
        ax.tick_params(labelbottom=False)


def _outside_text(centres: NDArray, half: float) -> str:
    count = int((np.abs(centres) > half).any(-1).sum())
    return f"{count} head{'s' * (count > 1)} outside" if count else ""


def _outside(ax: Axes, centres: NDArray, half: float, always: bool = False) -> Text | None:
    """Say in the emptiest corner how many centres lie outside the axes, if any or ``always``, covering none inside."""
    if not (always or _outside_text(centres, half)):
        return None
    inside = centres[(np.abs(centres) <= half).all(-1)] / half
    corners = [(1, 1), (1, -1), (-1, -1), (-1, 1)]  # row, column
    nearest = [np.abs((inside - corner) / (1, 2)).max(-1).min(initial=1) for corner in corners]
    row, column = corners[int(np.argmax(np.round(nearest, 6)))]
    place = {"ha": "right" if column > 0 else "left", "va": "bottom" if row > 0 else "top"}
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}
    at = 0.5 + 0.48 * column, 0.5 - 0.48 * row
    return ax.text(
        *at, _outside_text(centres, half), transform=ax.transAxes, fontsize=6.5, bbox=box, zorder=4.5, **place
    )


def _centre_points(ax: Axes, centres: NDArray, size: float = 18) -> list:
    points = []
    for head, colour in enumerate(head_colours(len(centres))):
        row, column = centres[head]
        look = {"color": colour, "marker": _marker(head), "edgecolor": "white", "linewidth": 0.5, "zorder": 5}
        points.append(ax.scatter([column], [row], s=size, **look))
    return points


def _head_handles(heads: int) -> list[Line2D]:
    look = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.5, "markersize": 5}
    return [
        Line2D([], [], color=colour, marker=_marker(head), label=f"{head + 1}", **look)
        for head, colour in enumerate(head_colours(heads))
    ]


def _with_head_legend(
    width: float, height: float, heads: int, extra: Sequence[Line2D] = ()
) -> tuple[Figure, SubFigure]:
    """A figure, and the part of that size in inches for its panels: below lie the heads, and under them the extras."""
    columns = min(heads, int((width - 0.2) / 0.3))
    handles, band = _head_handles(heads), 0.19 + 0.14 * math.ceil(heads / columns)
    figure = _figure(width, height + band + (0.13 if extra else 0))
    panels, foot = figure.subfigures(2, 1, height_ratios=(height, figure.get_size_inches()[1] - height))
    close = {"borderaxespad": 0.2, "borderpad": 0.1, "columnspacing": 0.8, "labelspacing": 0.3}
    first = {"handles": _by_rows(handles, columns), "ncols": columns, "title": "Head", "handletextpad": 0.1}
    foot.legend(loc="upper center", **first, **close)
    if extra:
        foot.legend(handles=extra, loc="lower center", ncols=len(extra), **close)
    return figure, panels


def _query_handle() -> Line2D:
    return Line2D([], [], color="black", marker="s", linestyle="none", markersize=5, label="query pixel")


def _by_rows(entries: list, columns: int) -> list:
    """Reorder legend entries, which fill columns, so that they read along rows."""
    return [entry for column in range(columns) for entry in entries[column::columns]]


def _layer_panels(
    layers: int, heads: int, titles: Sequence[str] | None, half: float, extra: Sequence[Line2D] = (), above: float = 0
) -> tuple[Figure, SubFigure, list[Axes]]:
    """A figure, its part above the legend, and one pixel grid a layer, all with the same axes.

    ``above``: inches to leave for a heading.
    """
    rows, columns = _panels(layers)
    side = {1: SINGLE - 0.6, 2: 2.6}.get(columns, (DOUBLE - 0.6) / columns)
    size = min(DOUBLE, columns * side + 0.5), rows * (side + 0.21) + 0.28 + above
    figure, panels = _with_head_legend(*size, heads, [_query_handle(), *extra])
    axes = []
    for layer, title in enumerate(_titles(titles, layers, "Layer")):
        ax = panels.add_subplot(rows, columns, layer + 1)
        _pixel_axes(ax, half, row_label=layer % columns == 0, column_label=layer + columns >= layers)
        ax.set_title(title)
        axes.append(ax)
    return figure, panels, axes


def _history(history: ArrayLike, epochs: Sequence[int] | None) -> tuple[NDArray, NDArray]:
    """A history as (E, L, h, 2), and its epoch numbers."""
    history = _array(history, 3, 4, name="history", shape="(epochs, heads, 2) or (epochs, layers, heads, 2)")
    history = history[:, None] if history.ndim == 3 else history
    epochs = np.arange(len(history)) if epochs is None else np.asarray(epochs)
    if len(epochs) != len(history):
        raise ValueError(f"{len(epochs)} epoch numbers were given for {len(history)} recorded epochs.")
    return history, epochs


@styled
def centre_paths(
    history: ArrayLike,
    half_width: float | None = None,
    epochs: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    unit: str = "epoch",
) -> Figure:
    """The way of every head's centre during training, over the pixel grid (figure 3, as paths): a panel a layer.

    ``history`` (epochs, heads, 2) or (epochs, layers, heads, 2): shifts in pixels. Hollow marks are the first epoch,
    full ones the last. ``half_width``: of the grid shown, in pixels; None fits all, up to 8.5. ``epochs``: the recorded
    epochs' numbers, from 0 if not given; ``unit``: what they count.
    """
    history, epochs = _history(history, epochs)
    half = _half_width(history[[0, -1]], half_width)
    look = {"color": "0.4", "marker": "o", "linestyle": "none", "markersize": 4}
    extra = [
        Line2D([], [], markerfacecolor="white", label=f"{unit} {epochs[0]}", **look),
        Line2D([], [], label=f"{unit} {epochs[-1]}", **look),
    ]
    figure, _, axes = _layer_panels(*history.shape[1:3], titles, half, extra)
    for layer, ax in enumerate(axes):
        for head, colour in enumerate(head_colours(history.shape[2])):
            row, column = history[:, layer, head].T
            ax.plot(column, row, color=colour, linewidth=0.9, alpha=0.85, zorder=3)
            look = {"facecolor": "white", "edgecolor": colour, "linewidth": 0.9, "marker": _marker(head)}
            ax.scatter(column[:1], row[:1], s=14, zorder=4, **look)
        _centre_points(ax, history[-1, layer])
        _outside(ax, history[-1, layer], half)
    return figure


@styled
def centre_panels(
    history: ArrayLike,
    chosen: Sequence[int],
    half_width: float | None = None,
    epochs: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Every head's centre at chosen epochs (figure 3, the paper's view): a row a layer, a column an epoch.

    ``history`` and ``epochs`` as in `centre_paths`; ``chosen`` are epoch numbers.

    Raises:
        ValueError: an epoch was chosen that is not recorded.
    """
    history, epochs = _history(history, epochs)
    missing = sorted(set(chosen) - set(epochs.tolist()))
    if missing or not len(chosen):
        raise ValueError(f"chosen = {list(chosen)}: epochs {missing} are not among the recorded {epochs.tolist()}.")
    half = _half_width(history[[int(np.flatnonzero(epochs == e)[0]) for e in chosen]], half_width)
    layers, columns = history.shape[1], len(chosen)
    side = min(1.6, (DOUBLE - 0.75) / columns)
    size = max(SINGLE, columns * side + 0.75), layers * (side + 0.04) + 0.55
    figure, panels = _with_head_legend(*size, history.shape[2], [_query_handle()])
    for layer, title in enumerate(_titles(titles, layers, "Layer")):
        for place, epoch in enumerate(chosen):
            ax = panels.add_subplot(layers, columns, layer * columns + place + 1)
            _pixel_axes(ax, half, row_label=False, column_label=False, ticks=5)
            centres = history[int(np.flatnonzero(epochs == epoch)[0]), layer]
            _centre_points(ax, centres, size=12)
            _outside(ax, centres, half)
            if layer == 0:
                ax.set_title(f"Epoch {epoch}")
            if place == 0 and (layers > 1 or titles):
                ax.set_ylabel(title)
            ax.tick_params(labelbottom=layer == layers - 1, labelleft=place == 0)
    panels.supxlabel("Column shift (pixels)")
    panels.supylabel("Row shift (pixels)")
    return figure


@styled
def centre_animation(
    history: ArrayLike,
    precision: ArrayLike | None = None,
    half_width: float | None = None,
    epochs: Sequence[int] | None = None,
    titles: Sequence[str] | None = None,
    frames_per_second: float = 10,
) -> FuncAnimation:
    """Every head's centre moving during training, a frame an epoch, a panel a layer (figure 3, animated).

    ``history`` and ``epochs`` as in `centre_paths`; ``precision`` (epochs, layers, heads, 2, 2) adds the ellipse that
    holds half of each Gaussian. `save_animation` writes a GIF; ``to_jshtml()`` gives an interactive player.
    """
    history, epochs = _history(history, epochs)
    half = _half_width(history, half_width)
    figure, panels, axes = _layer_panels(*history.shape[1:3], titles, half, above=0.25)
    heading = panels.suptitle(f"Epoch {epochs[-1]}")
    points = [_centre_points(ax, history[0, layer], size=24) for layer, ax in enumerate(axes)]
    notes = [_outside(ax, history[-1, layer], half, always=True) for layer, ax in enumerate(axes)]
    ellipses = {}
    if precision is not None:
        precision = np.asarray(precision, dtype=float).reshape(*history.shape[:3], 2, 2)
        for layer, ax in enumerate(axes):
            for head, colour in enumerate(head_colours(history.shape[2])):
                patch = Ellipse((0, 0), 0, 0, facecolor="none", edgecolor=colour, linewidth=0.9, zorder=4)
                ellipses[layer, head] = ax.add_patch(patch)
    _settle(figure)  # the panels must not move between frames

    def draw(frame: int) -> list:
        heading.set_text(f"Epoch {epochs[frame]}")
        for layer, heads in enumerate(points):
            notes[layer].set_text(_outside_text(history[frame, layer], half))
            for head, point in enumerate(heads):
                point.set_offsets([history[frame, layer, head, ::-1]])
        for (layer, head), patch in ellipses.items():
            _place_ellipse(patch, history[frame, layer, head], precision[frame, layer, head], 0.5, half)
        return []

    return FuncAnimation(figure, draw, frames=len(history), interval=1000 / frames_per_second, blit=False)


def _place_ellipse(patch: Ellipse, centre: NDArray, precision: NDArray, share: float, half: float) -> None:
    """Shape the ellipse within which a Gaussian head holds that share of its mass; hide it where there is none.

    Half axes are sqrt(-2 log(1 - share)) / sqrt(eigenvalue of Sigma^{-1}); those of (nearly) flat directions are cut
    far outside the axes, so that a head which smears over a line shows as two parallel lines.
    """
    patch.set_visible(bool(np.isfinite(precision).all() and np.isfinite(centre).all()))
    if not patch.get_visible():
        return
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    far = 100 * half
    lengths = math.sqrt(-2 * math.log1p(-share)) / np.sqrt(np.maximum(values, far**-2))
    patch.set_visible(bool(values.max() > far**-2))
    row, column = vectors[:, 0]
    patch.set_center((centre[1], centre[0]))
    patch.set_width(2 * lengths[0])
    patch.set_height(2 * lengths[1])
    patch.set_angle(math.degrees(math.atan2(row, column)))


@styled
def gaussian_heads(
    centres: ArrayLike,
    precision: ArrayLike | None = None,
    half_width: float | None = None,
    titles: Sequence[str] | None = None,
    heading: str = "",
) -> Figure:
    """The heads of all layers as Gaussians over shifts (figure 4 and the appendix): equal axes, the query black.

    ``centres`` (layers, heads, 2), in pixels; ``precision`` (layers, heads, 2, 2), Sigma^{-1}: a solid ellipse holds
    50% and a dotted one 90% of each Gaussian. NaN, or None, where a head is no Gaussian; a singular one
    shows as a strip.
    """
    centres = _array(centres, 3, name="centres", shape="(layers, heads, 2)")
    shape = (*centres.shape[:2], 2, 2)
    precision = np.full(shape, np.nan) if precision is None else np.asarray(precision, dtype=float).reshape(shape)
    half = _half_width(centres, half_width)
    extra = []
    if np.isfinite(precision).any():
        extra = [
            Line2D([], [], color="0.4", linewidth=0.9, label="50% of the mass"),
            Line2D([], [], color="0.4", linewidth=0.9, linestyle=_DOTTED, label="90%"),
        ]
    figure, panels, axes = _layer_panels(*centres.shape[:2], titles, half, extra, above=0.25 if heading else 0)
    if heading:
        panels.suptitle(heading)
    for layer, ax in enumerate(axes):
        for head, colour in enumerate(head_colours(centres.shape[1])):
            for share, line in ((0.5, "-"), (0.9, _DOTTED)):
                look = {"edgecolor": colour, "linewidth": 0.9, "linestyle": line, "zorder": 3}
                patch = ax.add_patch(Ellipse((0, 0), 0, 0, facecolor="none", **look))
                _place_ellipse(patch, centres[layer, head], precision[layer, head], share, half)
        _centre_points(ax, centres[layer])
        _outside(ax, centres[layer], half)
    return figure


# --- attention maps: figures 5 to 10 ------------------------------------------------------------------------------


def _maps(maps: ArrayLike, query: tuple[int, int] | None) -> tuple[NDArray, tuple[int, int]]:
    maps = _array(maps, 4, name="maps", shape="(layers, heads, height, width)")
    query = (maps.shape[2] // 2, maps.shape[3] // 2) if query is None else query
    if not (0 <= query[0] < maps.shape[2] and 0 <= query[1] < maps.shape[3]):
        raise ValueError(f"query = {tuple(query)} is no pixel of maps of {maps.shape[2]} x {maps.shape[3]}.")
    return maps, query


def _map_scale(maps: NDArray) -> ScalarMappable:
    """One scale for all maps, from 0 to the largest probability; its square root keeps faint heads visible."""
    largest = np.nanmax(maps, initial=0) or 1.0
    return ScalarMappable(PowerNorm(0.5, vmin=0, vmax=largest), MAP_COLOURS)


def _draw_map(ax: Axes, values: NDArray, scale: ScalarMappable, query: tuple[int, int]) -> None:
    """One map with its query pixel framed; pixels outside the image (NaN) are hatched."""
    ax.patch.set(facecolor="0.93", edgecolor="0.7", hatch="//////", linewidth=0)
    ax.imshow(np.ma.masked_invalid(values), norm=scale.norm, cmap=scale.cmap, aspect="auto", interpolation="nearest")
    pixel = ax.bbox.width * 72 / ax.figure.dpi / values.shape[1]  # in points
    frame = {"edgecolor": QUERY_COLOUR, "linewidth": min(max(0.15 * pixel, 0.4), 0.9)}
    ax.add_patch(Rectangle((query[1] - 0.5, query[0] - 0.5), 1, 1, fill=False, **frame))
    _frame(ax)


def _frame(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set(visible=True, color="0.6", linewidth=0.4)


def _axes_in_inches(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place given in inches from the left and the top of the figure."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, 1 - (top + height) / h, width / w, height / h))


def _scale_bar(figure: Figure, scale: ScalarMappable, left: float, width: float) -> None:
    """A horizontal colour bar in the lowest half inch of the figure."""
    height = figure.get_size_inches()[1]
    length = min(2.6, width)
    ax = _axes_in_inches(figure, left + (width - length) / 2, height - 0.46, length, 0.09)
    bar = figure.colorbar(scale, cax=ax, orientation="horizontal")
    ticks = [scale.norm.vmax]  # the largest, and round numbers where they have room
    for tick in (step * 10.0**power for power in range(0, -9, -1) for step in (5, 2, 1)):
        if 0.1 <= math.sqrt(tick / scale.norm.vmax) <= math.sqrt(ticks[-1] / scale.norm.vmax) - 0.12:
            ticks.append(tick)
    bar.set_ticks([0, *ticks[::-1]], labels=["0", *(f"{tick:.2g}" for tick in ticks[::-1])])
    bar.ax.xaxis.set_minor_locator(NullLocator())
    bar.set_label("Attention probability (square-root scale)")
    bar.outline.set_linewidth(0.4)


def _head_label(ax: Axes, head: int, text: str) -> None:
    """The head's mark and name above its map."""
    look = {"color": head_colours(head + 1)[head], "marker": _marker(head), "linewidth": 0, "clip_on": False}
    top = ax.get_position().height * ax.figure.get_size_inches()[1]
    left = ax.get_position().width * ax.figure.get_size_inches()[0]
    offset = 0.065 / top
    ax.scatter([0.045 / left], [1 + offset], s=11, transform=ax.transAxes, **look)
    ax.text(0.115 / left, 1 + offset, text, transform=ax.transAxes, va="center_baseline", fontsize=6.5)


def _map_grid(
    figure: Figure,
    maps: NDArray,
    scale: ScalarMappable,
    query: tuple[int, int],
    order: NDArray,
    titles: Sequence[str],
    left: float,
    top: float,
    cell: tuple[float, float],
) -> None:
    """Layers x heads of maps, in cells of that width and height, from a place given in inches."""
    gap, above = _GAPS
    for layer, title in enumerate(titles):
        y = top + layer * (cell[1] + above) + above
        w, h = figure.get_size_inches()
        figure.text((left - 0.07) / w, 1 - (y + cell[1] / 2) / h, title, ha="right", va="center", fontsize=7)
        for place, head in enumerate(order[layer]):
            if np.isnan(maps[layer, head]).all():
                continue
            ax = _axes_in_inches(figure, left + place * (cell[0] + gap), y, *cell)
            _draw_map(ax, maps[layer, head], scale, query)
            _head_label(ax, head, f"{head + 1}")


_GAPS = (0.045, 0.16)
"""Between maps of a grid, in inches: columns, and rows (room for the head's name)."""


def _order(order: ArrayLike | None, maps: NDArray) -> NDArray:
    layers, heads = maps.shape[:2]
    order = np.broadcast_to(np.arange(heads), (layers, heads)) if order is None else np.asarray(order)
    if order.shape != (layers, heads) or not (np.sort(order, -1) == np.arange(heads)).all():
        raise ValueError(f"order must hold the heads 0 .. {heads - 1} of each of the {layers} layers once.")
    return order


def _cell(available: float, heads: int, aspect: float, largest: float = 0.8) -> tuple[float, float]:
    """Width and height of a map in inches, so that all heads fit beside each other."""
    width = min(largest, (available - (heads - 1) * _GAPS[0]) / heads, largest / aspect)
    return width, width * aspect


@styled
def attention_grid(
    maps: ArrayLike,
    query: tuple[int, int] | None = None,
    order: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Attention probabilities, a row a layer and a column a head (figures 5 to 7), on one scale.

    ``maps`` (layers, heads, height, width): windows around the query (`heads.shift_maps`, the paper's 7 x 7) or whole
    images; hatched where they leave the image (NaN). ``query``: the query pixel's row and column in the maps, framed;
    None is the middle. ``order`` (layers, heads): which head comes at each place, such as `heads.reach_order`; a head's
    mark and number tell which it is.
    """
    maps, query = _maps(maps, query)
    layers, heads = maps.shape[:2]
    order, scale, titles = _order(order, maps), _map_scale(maps), _titles(titles, layers, "Layer")
    left = 0.18 + 0.058 * max(map(len, titles))
    cell = _cell(DOUBLE - left - 0.08, heads, maps.shape[2] / maps.shape[3])
    wide = heads * (cell[0] + _GAPS[0]) - _GAPS[0]
    width = max(SINGLE, left + wide + 0.08)
    left += (width - left - wide - 0.08) / 2
    figure = _figure(width, layers * (cell[1] + _GAPS[1]) + 0.64, layout=None)
    _map_grid(figure, maps, scale, query, order, titles, left, 0.02, cell)
    _scale_bar(figure, scale, left if wide > 2.6 else (width - 2.6) / 2, max(wide, 2.6))
    return figure


@styled
def attention_on_image(
    image: ArrayLike,
    query: tuple[int, int],
    maps: ArrayLike,
    order: ArrayLike | None = None,
    caption: str = "",
    titles: Sequence[str] | None = None,
) -> Figure:
    """One image with its query pixel, and beside it where every head of every layer looks (figures 8 to 10).

    ``image`` (height, width) or (height, width, 1 or 3), in [0, 1] or 0 .. 255, as large as the maps or a multiple of
    them (attention works on the down-sampled grid); ``maps`` (layers, heads, H, W); ``query``: row and column in the
    maps.
    """
    maps, query = _maps(maps, query)
    layers, heads = maps.shape[:2]
    image = np.asarray(image)
    image = image / 255 if image.dtype == np.uint8 else image
    image = image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image
    scale_rows, scale_columns = image.shape[0] / maps.shape[2], image.shape[1] / maps.shape[3]
    order, scale, titles = _order(order, maps), _map_scale(maps), _titles(titles, layers, "Layer")

    aspect = image.shape[0] / image.shape[1]
    picture = min(1.35, 1.35 / aspect)
    left = 0.1 + picture + 0.2 + 0.058 * max(map(len, titles))
    cell = _cell(DOUBLE - left - 0.08, heads, maps.shape[2] / maps.shape[3], largest=0.7)
    wide = heads * (cell[0] + _GAPS[0]) - _GAPS[0]
    width = max(SINGLE, left + wide + 0.08)
    tall = max(layers * (cell[1] + _GAPS[1]), picture * aspect + 0.5)
    figure = _figure(width, tall + 0.64, layout=None)
    ax = _axes_in_inches(figure, 0.08, 0.02 + _GAPS[1], picture, picture * aspect)
    ax.imshow(np.clip(image, 0, 1), cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    row, column = query[0] * scale_rows - 0.5, query[1] * scale_columns - 0.5
    ax.add_patch(Rectangle((column, row), scale_columns, scale_rows, fill=False, edgecolor=QUERY_COLOUR, linewidth=1.2))
    _frame(ax)
    text = (f"{caption}\n" if caption else "") + f"query at row {query[0]}, column {query[1]}"
    ax.set_xlabel(text, loc="left")
    _map_grid(figure, maps, scale, query, order, titles, left, 0.02, cell)
    _scale_bar(figure, scale, left if wide > 2.6 else (width - 2.6) / 2, max(wide, 2.6))
    return figure


@styled
def atlas(
    maps: ArrayLike,
    query: tuple[int, int] | None = None,
    numbers: Mapping[str, ArrayLike] | None = None,
    titles: Sequence[str] | None = None,
) -> list[Figure]:
    """Every head with its numbers, a page a layer, on one scale for all pages.

    ``maps`` (layers, heads, height, width) and ``query`` as in `attention_grid`; ``numbers``: arrays (layers, heads,
    ...) by name, of which ``centre`` (.., 2), ``parameter_centre`` (.., 2), ``reach``, ``radius90``, ``mass`` and
    ``entropy`` are written below each map (what `heads.describe` and `heads.geometry` give).
    """
    maps, query = _maps(maps, query)
    layers, heads = maps.shape[:2]
    scale, pages = _map_scale(maps), []
    lines = [_atlas_lines(numbers or {}, layer, heads) for layer in range(layers)]
    below = 0.05 + 0.125 * max(len(text) for page in lines for text in page)
    columns = heads if heads <= 3 else math.ceil(math.sqrt(heads))
    gap, left, aspect = 0.28, 0.1, maps.shape[2] / maps.shape[3]
    width = min(1.9, (DOUBLE - 2 * left - (columns - 1) * gap) / columns, 1.9 / aspect)
    cell = (width, width * aspect)
    page_width = max(SINGLE, 2 * left + columns * width + (columns - 1) * gap)
    left = (page_width - columns * width - (columns - 1) * gap) / 2
    for layer, title in enumerate(_titles(titles, layers, "Layer")):
        there = [head for head in range(heads) if not np.isnan(maps[layer, head]).all()]
        rows = max(1, math.ceil(len(there) / columns))
        figure = _figure(page_width, 0.3 + rows * (cell[1] + 0.2 + below) + 0.64, layout=None)
        top = 1 - 0.16 / figure.get_size_inches()[1]
        figure.text(left / page_width, top, title, va="center", fontsize=8, weight="bold")
        for place, head in enumerate(there):
            x = left + place % columns * (width + gap)
            y = 0.3 + place // columns * (cell[1] + 0.2 + below) + 0.16
            ax = _axes_in_inches(figure, x, y, *cell)
            _draw_map(ax, maps[layer, head], scale, query)
            _head_label(ax, head, f"Head {head + 1}")
            text = "\n".join(lines[layer][head])
            ax.annotate(text, (0, 0), xycoords="axes fraction", xytext=(0, -4), textcoords="offset points", va="top")
        _scale_bar(figure, scale, 0.35, page_width - 0.7)
        pages.append(figure)
    return pages


def _atlas_lines(numbers: Mapping[str, ArrayLike], layer: int, heads: int) -> list[list[str]]:
    formats = {
        "centre": lambda v: "centre ({:+.1f}, {:+.1f})".format(*(np.round(v, 1) + 0.0)),
        "parameter_centre": lambda v: "learned Δ ({:+.1f}, {:+.1f})".format(*(np.round(v, 1) + 0.0)),
        "reach": lambda v: f"reach {v:.1f} px",
        "radius90": lambda v: f"90% within {v:.1f} px",
        "mass": lambda v: f"mass on a pixel {v:.2f}",
        "entropy": lambda v: f"entropy {v:.2f} nats",
    }
    known = [name for name in formats if name in numbers]
    return [
        [formats[name](np.asarray(numbers[name])[layer, head]).replace("-", "−") for name in known]
        for head in range(heads)
    ]


# --- layers over training and depth -------------------------------------------------------------------------------


@styled
def reach_over_training(reach: Mapping[str, ArrayLike], epochs: Mapping[str, Sequence[int]] | None = None) -> Figure:
    """How far each layer looks during training, a panel a model: ``{title: (epochs, layers)}``, in pixels.

    A layer's reach is the mean over its heads of the mean distance from the query (`heads.Description`). ``epochs``:
    the recorded epochs' numbers by title, from 0 if not given. One scale for all models.
    """
    if not reach:
        raise ValueError("reach is empty: there is nothing to draw.")
    values = {t: _array(v, 2, name=t, shape="(epochs, layers)") for t, v in reach.items()}
    rows, columns = _panels(len(values))
    depth = max(v.shape[1] for v in values.values())
    height = 1.75
    figure = _figure(SINGLE if columns == 1 else DOUBLE, rows * height + 0.3)
    top = max(np.nanmax(v, initial=0) for v in values.values()) or 1
    for place, (title, lines) in enumerate(values.items()):
        ax = figure.add_subplot(rows, columns, place + 1)
        x = np.arange(len(lines)) if epochs is None or title not in epochs else epochs[title]
        for layer, colour in enumerate(layer_colours(depth)[: lines.shape[1]]):
            marker = {"marker": "o"} if len(lines) == 1 else {}
            ax.plot(x, lines[:, layer], color=colour, label=f"layer {layer + 1}", **marker)
        ax.set(ylim=(0, 1.05 * top))
        ax.set_title(textwrap.fill(title, 36 if columns > 1 else 50))
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.grid(axis="y")
        if place % columns == 0:
            ax.set_ylabel("Reach (pixels)")
        else:
            ax.tick_params(labelleft=False)
        if place + columns >= len(values):
            ax.set_xlabel("Epoch")
    handles = [Line2D([], [], color=c, label=f"layer {i + 1}") for i, c in enumerate(layer_colours(depth))]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(depth, 6 if columns > 1 else 3))
    return figure


@styled
def kernel_closeness(
    shares: Mapping[str, ArrayLike], sizes: Sequence[int] = (1, 3, 5, 7), uniform: Sequence[float] | None = None
) -> Figure:
    """How close each layer is to a k x k convolution, a panel a model: ``{title: (layers, sizes)}``, shares in [0, 1].

    The share of a layer's attention inside the k x k window around the query, mean over heads (`heads.kernel_mass`).
    ``uniform`` (sizes,): the same for attention spread evenly, dashed.
    """
    if not shares:
        raise ValueError("shares is empty: there is nothing to draw.")
    rows, columns = _panels(len(shares))
    figure = _figure(SINGLE if columns == 1 else DOUBLE, rows * 1.75 + 0.3)
    colours = [to_hex(c) for c in sns.color_palette("crest", max(len(sizes), 2))]
    for place, (title, values) in enumerate(shares.items()):
        values = 100 * _array(values, 2, name=title, shape=f"(layers, {len(sizes)} sizes)")
        ax = figure.add_subplot(rows, columns, place + 1)
        x = 1 + np.arange(len(values))
        for index in range(len(sizes)):
            ax.plot(x, values[:, index], color=colours[index], marker="o", clip_on=False, zorder=3)
            if uniform is not None:
                ax.axhline(100 * uniform[index], color=colours[index], linewidth=0.7, linestyle=(0, (4, 2)))
        ax.set(ylim=(0, 100), xlim=(0.7, len(values) + 0.3), xticks=x)
        ax.set_title(textwrap.fill(title, 36 if columns > 1 else 50))
        ax.grid(axis="y")
        if place % columns == 0:
            ax.set_ylabel("Attention inside (%)")
        else:
            ax.tick_params(labelleft=False)
        if place + columns >= len(shares):
            ax.set_xlabel("Layer")
    handles = [Line2D([], [], color=c, marker="o", label=f"{k} × {k}") for k, c in zip(sizes, colours, strict=False)]
    if uniform is not None:
        handles.append(Line2D([], [], color="0.4", linewidth=0.7, linestyle=(0, (4, 2)), label="uniform attention"))
    per_row = len(handles) if columns > 1 else 3
    figure.legend(handles=_by_rows(handles, per_row), loc="outside lower center", ncols=per_row)
    return figure


@styled
def content_share(shares: ArrayLike) -> Figure:
    """Content's share of what makes the score vary, by layer and head: (layers, heads), 0 position to 1 content.

    See `heads.content_share`: it leaves [0, 1] where content and position cancel. Bars are layer means.
    """
    shares = 100 * _array(shares, 2, name="shares", shape="(layers, heads)")
    layers, heads = shares.shape
    mean = Line2D([], [], color="black", linewidth=1.4, label="mean of the layer")
    figure, panel = _with_head_legend(SINGLE, 2.1, heads, [mean])
    ax = panel.add_subplot()
    spread = np.linspace(-0.28, 0.28, heads) if heads > 1 else np.zeros(1)
    for head, colour in enumerate(head_colours(heads)):
        look = {"color": colour, "marker": _marker(head), "edgecolor": "white", "linewidth": 0.4}
        ax.scatter(1 + np.arange(layers) + spread[head], shares[:, head], s=16, zorder=3, clip_on=False, **look)
    for layer in range(layers):
        if np.isfinite(shares[layer]).any():
            mean = np.nanmean(shares[layer])
            ax.plot([layer + 0.62, layer + 1.38], [mean, mean], color="black", linewidth=1.4, zorder=2)
    low, high = np.nanmin(shares, initial=0), np.nanmax(shares, initial=100)
    room = 0.04 * (high - low)
    ax.set(xlim=(0.5, layers + 0.5), ylim=(low - room * (low < 0), high + room * (high > 100)))
    for edge in (0, 100):
        ax.axhline(edge, color="0.75", linewidth=0.6, zorder=0)
    ax.set(xticks=1 + np.arange(layers), xlabel="Layer", ylabel="Share of the score's variance\nowed to content (%)")
    ax.grid(axis="y")
    return figure


# --- theory: notebook 02 ------------------------------------------------------------------------------------------


@styled
def hardening(
    alphas: Sequence[float], maps: ArrayLike, missed: ArrayLike, curve: tuple[ArrayLike, ArrayLike] | None = None
) -> Figure:
    """A quadratic head hardening into one tap as alpha grows (Lemma 2).

    ``alphas`` (A,); ``maps`` (A, k, k): the head's attention around its query, which is in the middle; ``missed`` (A,):
    the measured probability outside its shift; ``curve``: (alpha, missed mass) of the closed form 1 - 1 / S(alpha)^2
    with S = sum_n exp(-alpha n^2). Masses of exactly 0 sit on the lower edge as triangles.
    """
    alphas = np.asarray(alphas, dtype=float)
    maps = _array(maps, 3, name="maps", shape="(alphas, k, k)")
    missed = np.asarray(missed, dtype=float)
    if not len(alphas) == len(maps) == len(missed):
        raise ValueError(f"{len(alphas)} alphas, {len(maps)} maps and {len(missed)} missed masses do not match.")
    figure = _figure(DOUBLE, 3.4)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1, 1.55))
    scale = ScalarMappable(PowerNorm(0.5, vmin=0, vmax=1), MAP_COLOURS)
    axes = upper.subplots(1, len(alphas), squeeze=False)[0]
    for ax, alpha, values in zip(axes, alphas, maps, strict=True):
        _draw_map(ax, values, scale, (values.shape[0] // 2, values.shape[1] // 2))
        ax.set_aspect("equal")
        ax.set_title(f"α = {alpha:g}")
    bar = upper.colorbar(scale, ax=list(axes), ticks=[0, 0.1, 0.5, 1], fraction=0.03, pad=0.01)
    bar.ax.set_yticklabels(["0", "0.1", "0.5", "1"])
    bar.set_label("Probability")
    bar.outline.set_linewidth(0.4)

    ax = lower.add_subplot()
    positive = missed > 0
    floor = 10.0 ** math.floor(math.log10(max(missed[positive].min(initial=1), 1e-16)) - 1)
    if curve is not None:
        x, y = (np.asarray(values, dtype=float) for values in curve)
        ax.plot(x, np.where(y >= floor, y, np.nan), color="0.3", label="closed form", zorder=2)
    ax.plot(alphas[positive], missed[positive], "o", color=_BASE[0], label="measured", zorder=3)
    if not positive.all():
        zero = alphas[~positive]
        ax.plot(zero, np.full(len(zero), floor), "v", color=_BASE[3], label="exactly 0", clip_on=False, zorder=3)
    ax.set(xscale="log", yscale="log", ylim=(floor, 2), xlabel="α (per squared pixel)", ylabel="Mass outside the shift")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(which="major")
    ax.legend(loc="lower left")
    return figure


@styled
def separability_timing(sides: Sequence[int], dense: ArrayLike, separable: ArrayLike, what: str = "forward") -> Figure:
    """Time of one attention layer, dense against separable, over the grid's side, both axes logarithmic.

    ``sides`` (G,) pixels; ``dense``, ``separable`` (G,) or (G, repeats) seconds, NaN where a layer did not fit. Lines
    are medians, bars run from the fastest to the slowest repeat, and the ratio of the medians is written at each side.
    """
    sides = np.asarray(sides, dtype=float)
    figure = _figure(SINGLE, 2.4)
    ax = figure.add_subplot()
    medians = []
    for values, label, colour, marker in (
        (dense, "dense", _MODELS["SA learned + content"], "s"),
        (separable, "separable", _MODELS["SA quadratic"], "o"),
    ):
        values = 1000 * np.asarray(values, dtype=float).reshape(len(sides), -1)
        middle = np.median(values, axis=1)
        bars = np.abs(np.stack([values.min(1), values.max(1)]) - middle)
        look = {"marker": marker, "markersize": 4, "elinewidth": 0.8, "capsize": 1.5, "color": colour}
        ax.errorbar(sides, middle, yerr=bars if values.shape[1] > 1 else None, label=label, **look)
        medians.append(middle)
    for side, slow, fast in zip(sides, *medians, strict=True):
        if np.isfinite(slow) and np.isfinite(fast):
            look = {"textcoords": "offset points", "ha": "right", "fontsize": 6.5, "color": "0.2"}
            ratio = f"{slow / fast:.2g}" if slow / fast < 100 else f"{slow / fast:.0f}"
            ax.annotate(f"{ratio}×", (side, max(slow, fast)), xytext=(-3, 4), **look)
    ax.set(xscale="log", yscale="log", xlabel="Side of the grid (pixels)", ylabel=f"Time of a {what} pass (ms)")
    ax.xaxis.set_major_locator(FixedLocator(sides))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.margins(x=0.18, y=0.14)
    ax.grid(which="major")
    ax.legend(loc="upper left")
    return figure


# --- one run ------------------------------------------------------------------------------------------------------


@styled
def image_rows(rows: Sequence[ArrayLike], names: Sequence[str], labels: Sequence[str]) -> Figure:
    """Images in rows: each row (n, H, W, 1 or 3), uint8, has a label at its left; ``names`` (n,) stand above."""
    columns = len(rows[0])
    figure = _figure(DOUBLE, 0.25 + len(rows) * DOUBLE / (columns + 0.5))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, images, label in zip(axes, rows, labels, strict=True):
        for ax, image in zip(line, np.asarray(images), strict=True):
            ax.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(label)
    for ax, name in zip(axes[0], names, strict=True):
        ax.set_title(textwrap.fill(name, 10), fontsize=6.5)
    return figure


@styled
def learning_rate(epochs: ArrayLike, rates: Mapping[str, ArrayLike]) -> Figure:
    """Learning rates over a training: ``epochs`` (n,), and for each group of parameters by name its rates (n,)."""
    figure = _figure(SINGLE, 1.7)
    ax = figure.add_subplot()
    for (name, values), colour in zip(rates.items(), _BASE, strict=False):
        ax.plot(epochs, values, color=colour, label=name)
    ax.set(yscale="log" if len(rates) > 1 else "linear", xlabel="Epoch", ylabel="Learning rate")
    peaks = [np.max(values) for values in rates.values()]
    ax.set_ylim((min(peaks) / 100, 2 * max(peaks)) if len(rates) > 1 else (0, 1.08 * peaks[0]))
    ax.grid(which="major")
    if len(rates) > 1:
        ax.legend(loc="lower left")
    return figure


@styled
def learning_curve(metrics: Sequence[Mapping[str, float]]) -> Figure:
    """Loss and accuracy of one run after every epoch: the lines of its metrics.jsonl, as dictionaries."""
    epochs = [line["epoch"] for line in metrics]
    figure = _figure(DOUBLE, 2.1)
    for ax, name, factor, unit in zip(
        figure.subplots(1, 2), ("loss", "accuracy"), (1, 100), ("Loss (nats)", "Accuracy (%)"), strict=True
    ):
        for split, colour in (("train", _BASE[0]), ("validation", _BASE[2]), ("test", _BASE[1])):
            if f"{split}_{name}" in metrics[0]:
                values = [factor * line[f"{split}_{name}"] for line in metrics]
                ax.plot(epochs, values, color=colour, marker="o" if len(epochs) <= 30 else None, label=split)
        ax.set(xlabel="Epoch", ylabel=unit)
        ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
        ax.grid(which="major")
        ax.legend()
    return figure


# --- convolution as attention ---

_SIGNED = sns.blend_palette(["#053061", "#2166ac", "#6baed6", "white", "#f4906a", "#b2182b", "#67001f"], as_cmap=True)
"""Blue below zero, white at zero, red above."""


def _signed_scale(images: Sequence[NDArray]) -> ScalarMappable:
    """One scale for all signed images, symmetric around zero."""
    largest = max(np.abs(image).max() for image in images) or 1.0
    return ScalarMappable(Normalize(-largest, largest), _SIGNED)


def _signed_bar(figure: Figure, scale: ScalarMappable, label: str) -> None:
    """The colour bar of signed images, in the lowest half inch of the figure."""
    width, height = figure.get_size_inches()
    ax = _axes_in_inches(figure, (width - 2.6) / 2, height - 0.46, 2.6, 0.09)
    bar = figure.colorbar(scale, cax=ax, orientation="horizontal", ticks=MaxNLocator(4, symmetric=True))
    bar.set_label(label)
    bar.outline.set_linewidth(0.4)


@styled
def signed_images(
    images: Sequence[ArrayLike],
    titles: Sequence[str],
    photo: ArrayLike | None = None,
    query: tuple[int, int] | None = None,
    label: str = "Value",
) -> Figure:
    """Images (H, W) side by side on one scale that is white at zero, so that an empty panel is a difference of nothing.

    ``photo`` (H, W): the input, in [0, 1], drawn first and in grey; ``query``: its row and column, framed on the photo
    together with the 3 x 3 pixels around it.
    """
    images = [_array(image, 2, name="image", shape="(H, W)") for image in images]
    scale, titles = _signed_scale(images), _titles(titles, len(images) + (photo is not None), "Image")
    shown = images if photo is None else [_array(photo, 2, name="photo", shape="(H, W)"), *images]
    side = min(1.9, (DOUBLE - 0.1) / len(shown) - 0.1)
    aspect = max(image.shape[0] / image.shape[1] for image in shown)
    width = max(SINGLE, len(shown) * (side + 0.1) + 0.1)
    figure = _figure(width, 0.22 + side * aspect + 0.6, layout=None)
    left = (width - len(shown) * (side + 0.1) + 0.1) / 2
    for place, (image, title) in enumerate(zip(shown, titles, strict=True)):
        ax = _axes_in_inches(figure, left + place * (side + 0.1), 0.22, side, side * image.shape[0] / image.shape[1])
        grey = photo is not None and place == 0
        look = {"cmap": "gray", "vmin": 0, "vmax": 1} if grey else {"cmap": scale.cmap, "norm": scale.norm}
        ax.imshow(image, aspect="auto", interpolation="nearest", **look)
        ax.set_title(title)
        _frame(ax)
        if grey and query is not None:
            for reach, line in ((1.5, 0.9), (0.5, 0.9)):
                corner = query[1] - reach, query[0] - reach
                frame = {"edgecolor": QUERY_COLOUR, "linewidth": line}
                ax.add_patch(Rectangle(corner, 2 * reach, 2 * reach, fill=False, **frame))
    _signed_bar(figure, scale, label)
    return figure


@styled
def sum_of_heads(maps: ArrayLike, weights: Sequence[float], parts: ArrayLike) -> Figure:
    """A convolution of one channel as a sum over heads (Theorem 1), a column a head.

    Above, ``maps`` (h, k, k): where each head looks from the query in the middle. Then ``parts`` (h, H, W): what the
    head adds to the output, its ``weights`` (h,) times the image it sees; and below, the sum so far.
    """
    maps, parts = (_array(values, 3, name="maps and parts", shape="(heads, rows, columns)") for values in (maps, parts))
    if not len(maps) == len(weights) == len(parts):
        raise ValueError(f"{len(maps)} maps, {len(weights)} weights and {len(parts)} parts do not match.")
    sums = parts.cumsum(0)
    probability, scale = _map_scale(maps), _signed_scale([*parts, *sums])
    side, shape = _cell(DOUBLE - 0.72, len(maps), 1)[0], parts.shape[1] / parts.shape[2]
    heights, width = (side, side * shape, side * shape), 0.72 + len(maps) * (side + _GAPS[0]) - _GAPS[0]
    figure = _figure(max(width, SINGLE), 0.2 + sum(heights) + 0.2 + 0.06 + 0.6, layout=None)
    tops = np.cumsum([0.2, heights[0] + 0.2, heights[1] + 0.06])
    names = ("Where the\nhead looks", "What it\nadds", "Sum so far")
    for row, (top, height, name) in enumerate(zip(tops, heights, names, strict=True)):
        at = (0.03 / width, 1 - (top + height / 2) / figure.get_size_inches()[1])
        figure.text(*at, name, va="center", fontsize=7)
        for head in range(len(maps)):
            ax = _axes_in_inches(figure, 0.67 + head * (side + _GAPS[0]), top, side, height)
            if row == 0:
                _draw_map(ax, maps[head], probability, (maps.shape[1] // 2, maps.shape[2] // 2))
                _head_label(ax, head, f"Head {head + 1}")
                ax.set_xlabel(f"× {weights[head]:+g}".replace("-", "−") if weights[head] else "× 0", labelpad=2)
            else:
                image = (parts, sums)[row - 1][head]
                ax.imshow(image, cmap=scale.cmap, norm=scale.norm, aspect="auto", interpolation="nearest")
                _frame(ax)
    _signed_bar(figure, scale, "Value (white: zero)")
    return figure


@styled
def kernel_grids(kernels: Mapping[str, tuple[ArrayLike, tuple[int, int]]], half_width: float = 4.5) -> Figure:
    """Where the heads of different convolutions look: ``{title: (centres (h, 2), stride (rows, columns))}``.

    Shifts are from the query in black; other queries of the layer are grey squares, as many as its stride leaves. The
    layers differ in heads, so colours only tell neighbours apart.
    """
    if not kernels:
        raise ValueError("kernels is empty: there is nothing to draw.")
    rows, columns = _panels(len(kernels))
    side = (DOUBLE - 0.6) / 3
    figure = _figure(columns * side + 0.5, rows * (side + 0.16) + 0.5)
    reach = np.arange(-math.ceil(half_width), math.ceil(half_width) + 1)
    for place, (title, (centres, stride)) in enumerate(kernels.items()):
        ax = figure.add_subplot(rows, columns, place + 1)
        last = place + columns >= len(kernels)
        _pixel_axes(ax, half_width, row_label=place % columns == 0, column_label=last)
        centres = _array(centres, 2, name=title, shape="(heads, 2)")
        others = [
            (r, c) for r in reach[reach % stride[0] == 0] for c in reach[reach % stride[1] == 0] if (r, c) != (0, 0)
        ]
        for r, c in others:
            ax.add_patch(
                Rectangle((c - 0.5, r - 0.5), 1, 1, facecolor="0.86", edgecolor="white", linewidth=0.5, zorder=0.5)
            )
        _centre_points(ax, centres, size=20)
        _outside(ax, centres, half_width)
        ax.set_title(title)
    handles = [
        _query_handle(),
        Line2D([], [], color="0.86", marker="s", linestyle="none", markersize=5, label="other queries"),
        Line2D([], [], color=_BASE[0], marker="o", linestyle="none", markersize=4.5, label="centre of a head"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


@styled
def rank_curves(curves: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]]) -> Figure:
    """What heads of dimension D_h lose of a convolution (Theorem 1 and the appendix).

    ``{title: (head dimensions, best, plain)}``: ``best`` is the share of the output lost with the D_h largest singular
    values of every tap, ``plain`` (dashed) with the first D_h output channels right and no others. Both are norms over
    norms; values below 1e-4 are drawn as zero.
    """
    if not curves:
        raise ValueError("curves is empty: there is nothing to draw.")
    figure = _figure(SINGLE, 2.3)
    ax = figure.add_subplot()
    for index, (title, (dims, best, plain)) in enumerate(curves.items()):
        best, plain = (100 * np.where(np.asarray(v) < 1e-4, 0, v) for v in (best, plain))
        ax.plot(dims, plain, color="0.5", linewidth=0.7, linestyle=(0, (4, 2)))
        look = {"color": head_colours(index + 1)[index], "marker": _MARKERS[index % len(_MARKERS)]}
        ax.plot(dims, best, label=title, clip_on=False, zorder=3, **look)
    ax.set(xlabel="Dimension of a head, $D_h$", ylabel="Output lost (%)", ylim=(0, 100))
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.grid(axis="y")
    handles, _ = ax.get_legend_handles_labels()
    handles.append(Line2D([], [], color="0.5", linewidth=0.7, linestyle=(0, (4, 2)), label="first $D_h$ channels"))
    ax.legend(handles=handles, loc="upper right")
    return figure


@styled
def agreement(expected: ArrayLike, given: ArrayLike, names: tuple[str, str] = ("CNN", "attention only")) -> Figure:
    """Logits of two networks for the same images (n, classes): one against the other, and how far they are apart."""
    expected, given = (_array(v, 2, name="logits", shape="(images, classes)").ravel() for v in (expected, given))
    figure = _figure(DOUBLE, 2.3)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
    ends = min(expected.min(), given.min()), max(expected.max(), given.max())
    left.plot(ends, ends, color="0.6", linewidth=0.7, zorder=1)
    left.plot(expected, given, ".", color=_BASE[0], markersize=1.5, alpha=0.5, rasterized=True, zorder=2)
    left.set(xlabel=f"Logit, {names[0]}", ylabel=f"Logit, {names[1]}", aspect="equal")
    apart = np.abs(given - expected) / max(np.abs(expected).max(), np.finfo(float).tiny)
    floor = 1e-9
    bins = np.geomspace(floor, max(1e-5, 2 * apart.max()), 40)
    right.hist(np.maximum(apart, floor), bins=bins, weights=np.full(apart.size, 100 / apart.size), color=_BASE[0])
    right.axvline(np.finfo(np.float32).eps, color="0.3", linestyle=_DOTTED)
    note = {"xycoords": ("data", "axes fraction"), "xytext": (3, -2), "textcoords": "offset points"}
    right.annotate("float32 rounding", (np.finfo(np.float32).eps, 1), va="top", fontsize=6.5, **note)
    right.set(xscale="log", xlabel="Difference / largest logit (exact ones at the left end)", ylabel="Logits (%)")
    right.grid(axis="y")
    return figure


@styled
def cost_ratios(costs: Mapping[str, tuple[float, float]], texts: Mapping[str, tuple[str, str]]) -> Figure:
    """What the attention-only network costs, as a multiple of the CNN: ``{quantity: (CNN, attention)}``.

    ``texts``: how to write the two numbers of each quantity.
    """
    if not costs:
        raise ValueError("costs is empty: there is nothing to draw.")
    names = list(costs)
    ratios = np.array([costs[name][1] / costs[name][0] for name in names])
    figure = _figure(DOUBLE, 0.24 * len(names) + 0.75)
    ax = figure.add_subplot()
    y = np.arange(len(names))
    ax.hlines(y, 1, ratios, color=_MODELS["SA quadratic"], linewidth=1.6)
    ax.plot(ratios, y, "o", color=_MODELS["SA quadratic"], label="attention only", markersize=5, zorder=3)
    ax.axvline(1, color="black", linewidth=1.2, zorder=2)
    low, high = min(ratios.min(), 1), max(ratios.max(), 1)
    for place, name in enumerate(names):
        first, second = texts[name]
        shown = f"{ratios[place]:.3g}×" if ratios[place] < 1000 else f"{ratios[place]:,.0f}×"
        text = f"{shown}   ({first} → {second})"
        ax.annotate(
            text, (max(ratios[place], 1), place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=6.5
        )
    left = low / 1.25
    right = left * (high / left) ** (1 / 0.68)  # room for the longest text
    ax.set(xscale="log", xlim=(left, right), ylim=(len(names) - 0.4, -0.6), yticks=y, yticklabels=names)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("Attention-only network, as a multiple of the CNN (black line)")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    return figure


@styled
def fine_tuning(losses: ArrayLike, references: Mapping[str, float], smooth: int = 5) -> Figure:
    """Loss at every step (steps,), thin, and its running mean; ``references``: losses on the same images, dashed."""
    losses = _array(losses, 1, name="losses", shape="(steps,)")
    smooth = max(1, min(smooth, len(losses)))
    figure = _figure(SINGLE, 2.0)
    ax = figure.add_subplot()
    mean = np.convolve(losses, np.ones(smooth) / smooth, mode="valid")
    ax.plot(np.arange(len(losses)), losses, color=_BASE[0], linewidth=0.6, alpha=0.5)
    ax.plot(np.arange(len(mean)) + (smooth - 1) / 2, mean, color=_BASE[0], linewidth=1.4)
    for (name, value), shade in zip(references.items(), ("0.6", "0"), strict=False):
        ax.axhline(value, color=shade, linewidth=0.8, linestyle=(0, (4, 2)), label=name)
    ax.set(xlabel="Step", ylabel="Training loss (nats)", ylim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.grid(axis="y")
    if references:
        ax.legend()
    return figure


@styled
def kernel_reading(
    sizes: Sequence[int], outside: ArrayLike, lost: ArrayLike, error: ArrayLike, bound: ArrayLike
) -> Figure:
    """How much of each attention layer is a k x k convolution, read out of it (`equivalence.attention_to_conv`).

    For every layer and size of kernel: ``outside`` (layers, sizes, heads) attention mass off the kernel, a dot a head;
    ``lost`` (layers, sizes) share of the output that the kernel misses, measured; ``error`` and ``bound`` (layers,
    sizes) largest output error per unit of pixel norm, measured and guaranteed. NaN: no such head.
    """
    outside = _array(outside, 3, name="outside", shape="(layers, sizes, heads)")
    lost, error, bound = (
        _array(v, 2, name="lost, error, bound", shape="(layers, sizes)") for v in (lost, error, bound)
    )
    layers, heads = outside.shape[0], outside.shape[2]
    figure = _figure(DOUBLE, 2.45)
    axes = figure.subplots(1, 3)
    shades = [to_hex(c) for c in sns.color_palette("crest", max(len(sizes), 2))]
    places = 1 + np.arange(layers)
    group = np.linspace(-0.26, 0.26, len(sizes)) if len(sizes) > 1 else np.zeros(1)
    step = 0.52 / max(len(sizes) - 1, 1)
    for index, colour in enumerate(shades[: len(sizes)]):
        x = places + group[index]
        jitter = np.linspace(-0.3, 0.3, heads) * step if heads > 1 else np.zeros(1)
        inside = 100 * (1 - outside[:, index])
        spread = (x[:, None] + jitter).ravel()
        axes[0].scatter(
            spread, inside.ravel(), s=7, color=colour, edgecolor="none", alpha=0.55, clip_on=False, zorder=3
        )
        axes[0].hlines(
            np.nanmean(inside, axis=1), x - 0.4 * step, x + 0.4 * step, color=colour, linewidth=1.6, zorder=4
        )
        axes[1].bar(x, 100 * lost[:, index], width=0.8 * step, color=colour)
        drawn = {"color": colour, "markersize": 4, "linestyle": "none", "clip_on": False}
        axes[2].vlines(x, error[:, index], bound[:, index], color=colour, linewidth=0.7)
        axes[2].plot(x, error[:, index], marker="o", zorder=3, **drawn)
        axes[2].plot(x, bound[:, index], marker="_", markeredgewidth=1.6, zorder=3, **drawn | {"markersize": 6})
    labels = ("Attention inside the kernel (%)", "Output that the kernel misses (%)", "Error per unit of pixel norm")
    for ax, name, title in zip(axes, labels, ("Heads", "Output", "Error and its bound"), strict=True):
        ax.set(xlabel="Layer", ylabel=name, xticks=places, xlim=(0.5, layers + 0.5))
        ax.set_title(title)
        ax.grid(axis="y", which="major")
    axes[0].set_ylim(0, 100)
    axes[1].set_ylim(0, max(1.05 * 100 * np.nanmax(lost), 1))
    axes[2].set_yscale("log")
    handles = [Rectangle((0, 0), 1, 1, color=c, label=f"{k} × {k}") for k, c in zip(sizes, shades, strict=False)]
    handles.append(Line2D([], [], color="0.4", linewidth=1.6, label="mean of the heads"))
    handles.append(Line2D([], [], color="0.4", marker="o", linestyle="none", label="measured"))
    bar = {"marker": "_", "markeredgewidth": 1.6, "markersize": 6}
    handles.append(Line2D([], [], color="0.4", linestyle="none", label="bound", **bar))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


# ---- What attention costs -------------------------------------------------------------------------------------------


@styled
def cost_growth(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    bounds: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    label: str = "Time (ms)",
    axis: str = "Side of the grid (pixels)",
) -> Figure:
    """How a cost grows with the side of the grid, on log-log axes, with lower bounds as dotted lines.

    Each curve is (sides (G,), costs (G,) or (G, 3)): the three are the median, the smallest and the largest, drawn as
    a bar. Each bound is (sides (G,), costs (G,)).
    """
    figure = _figure(DOUBLE, 3.1)
    ax = figure.add_subplot()
    every = sorted({int(side) for sides, _ in curves.values() for side in np.atleast_1d(sides)})
    for index, (name, (sides, costs)) in enumerate(curves.items()):
        costs = np.asarray(costs, dtype=float).reshape(len(sides), -1)
        spread = np.abs(costs[:, 1:].T - costs[:, 0]) if costs.shape[1] == 3 else None
        look = {"marker": "osD^vP"[index % 6], "markersize": 3.5, "elinewidth": 0.8, "capsize": 1.5}
        ax.errorbar(sides, costs[:, 0], yerr=spread, label=name, color=_BASE[index % len(_BASE)], **look)
    for (name, (sides, costs)), dashes in zip((bounds or {}).items(), (_DOTTED, (0, (4, 2))), strict=False):
        ax.plot(sides, costs, color="0.35", linestyle=dashes, linewidth=1.1, label=f"at least: {name}")
    ax.set(xscale="log", yscale="log", xlabel=axis, ylabel=label)
    ax.xaxis.set_major_locator(FixedLocator(every))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7, frameon=False)
    return figure


@styled
def stacked_costs(rows: Mapping[str, Mapping[str, float]], label: str) -> Figure:
    """One horizontal bar for each row, made of its parts in the given order; the sum is written at its end."""
    figure = _figure(DOUBLE, max(1.5, 0.65 + 0.38 * len(rows)))
    ax = figure.add_subplot()
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    left = np.zeros(len(rows))
    for index, name in enumerate(names):
        widths = np.array([parts.get(name, 0.0) for parts in rows.values()], dtype=float)
        ax.barh(range(len(rows)), widths, left=left, height=0.62, label=name, color=_BASE[index % len(_BASE)])
        left += widths
    for place, total in enumerate(left):
        ax.annotate(
            f"{total:.3g}" if total < 100 else f"{total:,.0f}",
            (total, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set(xlabel=label, xlim=(0, 1.12 * left.max()))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    if len(names) > 1:
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=7, frameon=False)
    return figure
