"""Figures: what is drawn, where, in which colour and under which name is held against the arrays.
Never pixels, but for what is cut off at an edge.

Panels are taken row by row, and legends by the look of their entries.
"""

import itertools
import math
import os
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import findfont
from matplotlib.legend import Legend
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.quiver import Quiver
from matplotlib.text import Text
from PIL import Image

from attnconv.config import PRESETS
from attnconv.equivalence import tap_shifts
from companion import figures
from companion.figures import style

LAYERS, HEADS, GRID = 3, 9, (17, 17)
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(0, 1.5, (LAYERS, HEADS, 2))
HISTORY = CENTRES * np.linspace(2, 1, 5)[:, None, None, None]  # (epochs, layers, heads, 2)
PRECISION = np.broadcast_to([[1.0, 0.3], [0.3, 0.25]], (LAYERS, HEADS, 2, 2)).copy()
IMAGES = RNG.normal(size=(3, 12, 10))
SHARES, HALVES = (
    RNG.dirichlet([1, 1, 1], (LAYERS, HEADS)).transpose(2, 0, 1),
    RNG.uniform(0.5, 1, (2, LAYERS, HEADS)),
)
FOLLOWING = HALVES[0] > 0.7
MAPS, PHOTO = (
    RNG.dirichlet(np.full(35, 0.2), (LAYERS, HEADS)).reshape(LAYERS, HEADS, 5, 7),
    RNG.random((12, 10)),
)
ACCURACIES = {
    "SA quadratic": [[0.2, 0.4]],
    "ResNet18": np.array([[0.1, 0.5, 0.9], [0.3, 0.7, 0.8]]),
}
ERRORS = {"A": ([0.9, 0.1, 0.5], [0.2, 0.6, 0.5]), "B": ([1.0], [0.3])}
COSTS = {"dense": ([8, 16], [[2, 1, 3], [4, 3, 9]]), "large": ([8, 16], [5, 7]), "conv": ([8], [1])}
PARTS = {"x": {"p": 1.0, "q": 2.0}, "y": {"p": 4.0}}
LINES = {
    "Loss": {"a": ([0, 1], [1, 0.1]), "b": ([0, 1], [2, 0.2])},
    "Error": {"a": ([0, 1], [3, 4])},
}


def seeds_of_levels():
    """Two factors, three levels, two seeds, two layers."""
    names = itertools.product(
        [("Start", "wide"), ("Start", "close"), ("Rate", "0.1")], (0, 1), (1, 2)
    )
    rows = [(*level, seed, layer, n % 9) for n, (level, seed, layer) in enumerate(names)]
    frame = pd.DataFrame(rows, columns=["factor", "level", "seed", "layer", "after"])
    frame["accuracy"] = 50 + frame["seed"] + 2 * (frame["level"] == "wide")
    return frame.assign(before=(3 * frame["after"] + 1) % 8)


def swapped(seeds=(0,)):
    """A table as of `results.swap_table`: two models, three layers, with an accuracy of its own
    for each row.
    """
    kinds = ("read", 1), ("read", 5), ("shuffled", 3)
    rows = []
    for m, layers, layer, (how, kernel), seed in itertools.product(
        (0, 1), ("alone", "up to"), (1, 2, 3), kinds, seeds
    ):
        lost = 5 * layer + 10 - kernel - (layers == "alone") + 2 * (how == "shuffled") - 4 * seed
        row = dict(model="AB"[m], layers=layers, layer=layer, how=how, kernel=kernel, seed=seed)
        rows.append(row | {"whole": 90 - 30 * m, "difference": -lost})
    return pd.DataFrame(rows)


def by_start():
    """Seven starts, three numbers of images, three seeds, two layers; the last start has one
    layer only.
    """
    names = itertools.product(("Layer 1", "Layer 2"), range(7), (500, 2000, 50_000), (0, 1, 3))
    rows = [(panel, f"start {s}", n, seed, s + n / 1e4 + 3 * seed) for panel, s, n, seed in names]
    frame = pd.DataFrame(rows, columns=["panel", "start", "images", "seed", "value"])
    return frame[(frame["panel"] == "Layer 1") | (frame["start"] != "start 6")]


CHANCE = {("Start", "wide"): [3, 3], ("Start", "close"): [4, 5], ("Rate", "0.1"): [9, 9]}
EVERYTHING = {
    "accuracy_curves": lambda: figures.accuracy_curves(
        ACCURACIES, {"SA quadratic": 0.95, "ResNet18": 0.93}
    ),
    "agreement_and_ceiling": lambda: figures.agreement_and_ceiling(*HALVES, FOLLOWING),
    "attention_grid": lambda: figures.attention_grid(MAPS),
    "attention_on_image": lambda: figures.attention_on_image(
        np.zeros((10, 14, 3), np.uint8), (1, 2), MAPS, caption="A"
    ),
    "by_images": lambda: figures.by_images(by_start(), "Taps"),
    "cost_growth": lambda: figures.cost_growth(
        COSTS, {"dense, alone": ([8, 16], [1, 2]), "floor": ([8, 16], [1, 1])}
    ),
    "error_before_and_after": lambda: figures.error_before_and_after(ERRORS),
    "gaussian_heads": lambda: figures.gaussian_heads(
        CENTRES, PRECISION, grid=(7, 7), paths=HISTORY
    ),
    "lines": lambda: figures.lines(LINES, "x", "y", {"c": 2.5}, log=True),
    "points_lost_by_depth": lambda: figures.points_lost_by_depth(swapped(), 10),
    "reach_over_training": lambda: figures.reach_over_training(
        {"SA learned": RNG.random((5, LAYERS))}, (7, 7)
    ),
    "schema": figures.schema,
    "score_shares": lambda: figures.score_shares(SHARES, FOLLOWING),
    "signed_images": lambda: figures.signed_images(
        IMAGES[:2], ["In", "a", "b"], photo=PHOTO, query=(3, 4)
    ),
    "stacked_costs": lambda: figures.stacked_costs(PARTS, "GFLOP"),
    "taps_and_chance": lambda: figures.taps_and_chance(
        {"before": [4, 7, 4], "after": [9, 8, 0]}, [4, 4, 6, 9], 9
    ),
    "taps_gained": lambda: figures.taps_gained(seeds_of_levels(), CHANCE),
    "sum_of_heads": lambda: figures.sum_of_heads(
        np.eye(9).reshape(9, 3, 3), np.arange(9) - 4.0, RNG.random((9, 5, 5))
    ),
}
"""Every figure function on ordinary arrays."""


def panels(figure):
    """Axes row by row, without colour bars."""
    return [ax for ax in figure.axes if not hasattr(ax, "_colorbar")]


def colour_bar(figure):
    (ax,) = [ax for ax in figure.axes if hasattr(ax, "_colorbar")]
    return ax._colorbar


def tiles(figure):
    """The maps of a page, row by row: each with its image, its name, and what is framed, in its
    own pixels.
    """
    page, found = figure.axes[0], []
    for image in page.images:
        left, right, below, above = image.get_extent()
        size = image.get_size()[::-1]  # columns and rows
        framed = [
            p.get_xy()
            for p in page.patches
            if to_hex(p.get_edgecolor()) == style.QUERY_COLOUR.lower()
        ]
        corners = [
            np.subtract(corner, (left, above)) / (right - left, below - above) * size
            for corner in framed
        ]
        words = [
            t.get_text()
            for t in page.texts
            for x, y in [t.get_position()]
            if left < x < right and 0 < above - y < 0.05
        ]
        inside = [
            corner.round(6).tolist()
            for corner in corners
            if ((-1e-6 < corner) & (corner < size)).all()
        ]
        found.append((image, "".join(words), inside))
    return found


def marks(ax):
    """Head -> its mark."""
    return {int(c.get_label()[5:]): c for c in ax.collections if c.get_label().startswith("head ")}


def labelled(artists, label):
    return [artist for artist in artists if artist.get_label() == label]


def look(line):
    """What tells a line from others."""
    return (
        to_hex(line.get_color()),
        line.get_marker(),
        line.get_linestyle() if line.get_linewidth() else "None",
    )


def legend(figure):
    """Label -> its entry, of all legends."""
    legends = figure.findobj(Legend)
    return {
        t.get_text(): h
        for one in legends
        for t, h in zip(one.texts, one.legend_handles, strict=True)
    }


def colours(figure):
    """Label -> colour of its entry, of all legends."""
    entries = legend(figure).items()
    return {
        name: to_hex(e.get_facecolor() if hasattr(e, "get_facecolor") else e.get_color())
        for name, e in entries
    }


def moves(ax):
    """Kind -> its colour, and where its arrows lead from and to, (n, 2) each: there are a hollow
    and a filled mark.
    """
    found = {}
    for arrows, hollow, filled in zip(
        ax.collections, ax.collections[1:], ax.collections[2:], strict=False
    ):
        if isinstance(arrows, Quiver):
            starts, ends = hollow.get_offsets().data, filled.get_offsets().data
            np.testing.assert_allclose(np.reshape(arrows.XY, (-1, 2)), starts)
            np.testing.assert_allclose(np.stack([arrows.U, arrows.V], -1), ends - starts, atol=1e-9)
            looks = [arrows.get_facecolor(), hollow.get_edgecolor(), filled.get_facecolor()]
            (colour,) = {to_hex(look[0]) for look in looks}
            assert to_hex(hollow.get_facecolor()[0]) == "#ffffff"
            found[filled.get_label()] = colour, starts, ends
    return found


def names(ticks):
    return [label.get_text() for label in ticks]


def axis_names(figure):
    """Names of the horizontal and the vertical axis, panel by panel."""
    return [(ax.get_xlabel(), ax.get_ylabel()) for ax in panels(figure)]


# --- colours, style, files


def test_everything_is_tried():
    own = {name for name, value in vars(figures).items() if getattr(value, "__wrapped__", None)}
    assert own == {*EVERYTHING, "save", "save_animation"}


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_figure_is_readable_at_a_column_width(name):
    with plt.rc_context(
        {"font.size": 30, "axes.titlesize": 30, "axes.facecolor": "red", "axes.grid": True}
    ):
        figure = EVERYTHING[name]()
        assert plt.rcParams["font.size"] == 30
    assert style.SINGLE - 0.11 <= figure.get_figwidth() <= style.DOUBLE + 1e-6
    assert not plt.get_fignums(), "pyplot must not keep figures"
    style.settle(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., :3] < 250
    assert ink.any() and not any(edge.any() for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1])), (
        "cut off"
    )
    sizes = {t.get_fontsize() for t in figure.findobj(Text) if t.get_text()}
    assert 6.5 <= min(sizes) and max(sizes) <= 15


def test_heads_keep_their_colours_and_sixteen_are_told_apart():
    nine, sixteen = figures.head_colours(9), figures.head_colours(16)
    assert sixteen[:9] == nine and len(set(sixteen)) == 16
    assert len({(c, style.head_marker(h)) for h, c in enumerate(figures.head_colours(40))}) == 40
    alike = [
        heads
        for heads in itertools.combinations(range(16), 2)
        if len({style.head_marker(h) for h in heads}) == 1
    ]
    assert min(math.dist(to_rgb(sixteen[a]), to_rgb(sixteen[b])) for a, b in alike) > 0.15, (
        "other colours"
    )


def test_models_keep_their_colours():
    titles = [preset.title for preset in PRESETS.values()]
    assert set(titles) <= set(style.MODELS), "every preset has a colour of its own"
    some = style.model_colours(["mine", "SA learned", "another"])
    assert some["SA learned"] == style.MODELS["SA learned"]
    assert some == style.model_colours(["another", "SA learned", "mine"])
    rgb = [
        to_rgb(colour)
        for colour in style.model_colours([*titles, *(f"other {n}" for n in range(4))]).values()
    ]
    assert min(math.dist(a, b) for a, b in itertools.combinations(rgb, 2)) > 0.2
    assert style.MODELS["SA quadratic"] == "#0072B2", "blue in every figure of the record"


def test_scales_run_from_white_to_black_and_from_blue_to_red():
    white, dark = (style.MAP_COLOURS(end)[:3] for end in (0.0, 1.0))
    assert min(white) == 1 and max(dark) < 0.2
    (red, _, blue), middle, (red_above, _, blue_above) = (
        style.SIGNED_COLOURS(x)[:3] for x in (0.2, 0.5, 0.8)
    )
    assert blue > red and red_above > blue_above and min(middle) > 0.98


def test_files_are_the_same_each_time_need_no_torch_and_embed_fonts(tmp_path):
    code = (
        "import sys, numpy as np; from companion import figures;figure = "
        "figures.gaussian_heads(np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2)), grid=(7, "
        "7));figures.save(figure, sys.argv[1]); figures.save(figure, sys.argv[2]); "
        "sys.exit('torch' in sys.modules)"
    )
    one, two = ([tmp_path / f"{name}.pdf", tmp_path / f"{name}.png"] for name in ("one", "two"))
    environment = {**os.environ, "PYTHONHASHSEED": "1", "MPLBACKEND": "agg"}
    subprocess.run([sys.executable, "-c", code, *map(str, one)], check=True, env=environment)
    figure = figures.gaussian_heads(np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2)), grid=(7, 7))
    for file in two:
        figures.save(figure, file)
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two], (
        "another process"
    )
    pdf = one[0].read_bytes()
    assert b"/FontFile2" in pdf and b"Date" not in pdf and b"/Type3" not in pdf
    with Image.open(one[1]) as image:
        assert image.info.keys() == {"dpi"}
    assert "mpl-data" in findfont("DejaVu Sans", fallback_to_default=False)


# --- centres


def test_gaussian_heads_are_drawn_where_they_are():
    precision = PRECISION.copy()
    precision[0, 0], precision[0, 1] = np.nan, [[1, 0], [0, 0]]
    figure = figures.gaussian_heads(CENTRES, precision, half_width=8.5, grid=GRID)
    axes = panels(figure)
    assert [ax.get_title() for ax in axes] == ["Layer 1", "Layer 2", "Layer 3"]
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in axes}) == 1, "equal axes"
    low, high = axes[0].get_ylim()
    assert low > high, "rows point down"
    assert axis_names(figure) == [
        ("Column shift (pixels)", "Row shift (pixels)" if not n else "") for n in range(3)
    ]
    assert [p.get_bbox().bounds for p in labelled(axes[0].patches, "query pixel")] == [
        (-0.5, -0.5, 1, 1)
    ]
    entries = colours(figure)
    for (layer, ax), (head, colour) in itertools.product(
        enumerate(axes), enumerate(figures.head_colours(HEADS), 1)
    ):
        mark = marks(ax)[head]
        np.testing.assert_allclose(mark.get_offsets()[0], CENTRES[layer, head - 1, ::-1])
        assert to_hex(mark.get_facecolor()[0]) == colour.lower() == entries[str(head)]

    strip, *others = [p for p in axes[0].patches if isinstance(p, Ellipse)]
    assert len(others) == 2 * 7, (
        "nothing of the head that is no Gaussian; of the strip only the half"
    )
    assert max(strip.get_width(), strip.get_height()) > 4 * low, "open at both ends"
    solid, dotted = [p for p in axes[1].patches if isinstance(p, Ellipse)][:2]
    for ellipse, share, name in (
        (solid, 0.5, "50% of the Gaussian"),
        (dotted, 0.9, "90%, where it fits"),
    ):
        outline = ellipse.get_path().transformed(ellipse.get_patch_transform())
        away = outline.vertices[:-1:3, ::-1] - CENTRES[1, 0]  # between these are control points
        scores = np.einsum("ni,ij,nj->n", away, PRECISION[1, 0], away)
        np.testing.assert_allclose(scores, -2 * math.log(1 - share), rtol=1e-3)
        drawn = ellipse.get_linestyle() in ("-", "solid")
        assert drawn == (legend(figure)[name].get_linestyle() == "-") == (share == 0.5)


def test_flat_heads_look_flat_and_of_sixteen_only_the_half_is_drawn():
    precision = (
        np.eye(2) * np.array([0.0, 1e-3, 0.3, 9.0])[:, None, None]
    )  # uniform, wide, half a mass of 2 px, sharp
    centres = np.zeros((1, 4, 2)) + np.arange(4)[:, None] / 2
    figure = figures.gaussian_heads(centres, precision[None], grid=(6, 6))
    faces = [to_hex(mark.get_facecolor()[0]) for mark in marks(figure.axes[0]).values()]
    assert faces[:2] == ["#ffffff"] * 2 and "#ffffff" not in faces[2:]
    assert len([p for p in figure.axes[0].patches if isinstance(p, Ellipse)]) == 3, (
        "of the two that are not flat; 90% of the wider would be cut"
    )
    assert "50% circle larger than the panel" in legend(figure)
    sixteen = figures.gaussian_heads(
        np.zeros((1, 16, 2)), np.tile(np.eye(2), (1, 16, 1, 1)), grid=GRID
    )
    assert len([p for p in sixteen.axes[0].patches if isinstance(p, Ellipse)]) == 16
    assert {"90%, where it fits", "50% circle larger than the panel"}.isdisjoint(legend(sixteen))


def test_coincident_heads_stand_side_by_side():
    centres = np.array([[[1, 1], [1, 1], [1, 1], [0, 0]]], dtype=float)
    ax = figures.gaussian_heads(centres, half_width=3, grid=GRID).axes[0]
    places = [
        mark.get_offset_transform().transform(mark.get_offsets()[0]) for mark in marks(ax).values()
    ]
    diameter = math.sqrt(marks(ax)[1].get_sizes()[0]) / 72 * ax.get_figure(root=True).dpi
    for a, b in itertools.combinations(places, 2):
        assert math.dist(a, b) > 0.99 * diameter
    np.testing.assert_allclose(places[3], ax.transData.transform((0, 0)))  # alone: where it is
    np.testing.assert_allclose(np.mean(places[:3], axis=0), ax.transData.transform((1, 1)))


def test_centres_beyond_the_panel_are_arrows_at_its_edge():
    centres = np.array([[[0, 9], [-9, 0], [1, 1], [np.nan, np.nan]]])
    figure = figures.gaussian_heads(centres, half_width=3, grid=GRID)
    right, up, inside = marks(figure.axes[0]).values()
    np.testing.assert_allclose(right.get_offsets()[0], (3, 0))  # column, row
    np.testing.assert_allclose(up.get_offsets()[0], (0, -3))
    np.testing.assert_allclose(right.get_paths()[0].vertices[:, 0].max(), 0.5)  # its tip
    np.testing.assert_allclose(up.get_paths()[0].vertices[:, 1].max(), 0.5)
    assert len(right.get_paths()[0].vertices) < len(inside.get_paths()[0].vertices)
    assert "beyond the panel" in legend(figure)
    assert "beyond the panel" not in legend(figures.gaussian_heads(centres, grid=(23, 23)))


def test_axes_end_where_shifts_end():
    far = CENTRES * 9
    for grid, frame in (((7, 6), (-3.5, -3.5, 6, 7)), ((16, 16), (-8.5, -8.5, 16, 16))):
        ax = panels(figures.gaussian_heads(far, grid=grid))[0]
        (image,) = labelled(ax.patches, "image")
        assert image.get_bbox().bounds == frame  # column, row, width, height
        x, y, width, height = frame
        assert ax.get_xlim() == pytest.approx((x - 0.45, x + width + 0.45))
        assert ax.get_ylim() == pytest.approx((y + height + 0.45, y - 0.45))
        assert (
            max(abs(tick) for tick in ax.get_xticks() if x - 0.45 < tick < x + width + 0.45)
            <= grid[1] // 2
        )
    assert panels(figures.gaussian_heads(far, half_width=2, grid=grid))[0].get_xlim() == (-2, 2)


def test_where_panels_have_other_scales_each_says_how_much_it_shows():
    taps = np.ones((3, 3, 3), bool)
    figure = figures.gaussian_heads(
        CENTRES, half_width=[2.5, 5, math.inf], grid=(16, 16), covered=taps
    )
    scales = ("±2.5 px", "±5 px", "whole image")
    assert [ax.get_title() for ax in panels(figure)] == [
        f"Layer {layer}: 9 of 9 taps ({scale})" for layer, scale in enumerate(scales, 1)
    ]


def test_epochs_stand_in_rows_that_are_named_once():
    steps = HISTORY[[0, 4]].reshape(-1, HEADS, 2)
    figure = figures.gaussian_heads(
        steps, half_width=[2, 2, math.inf], grid=(16, 16), rows=["Epoch 0", "Epoch 4"]
    )
    axes = panels(figure)
    for ax, centres in zip(axes, steps, strict=True):
        np.testing.assert_allclose(
            marks(ax)[1].get_offsets()[0], np.clip(centres[0, ::-1], *ax.get_xlim())
        )
    assert [ax.get_title() for ax in axes] == ["Layer 1", "Layer 2", "Layer 3", "", "", ""]
    below, left = zip(*axis_names(figure), strict=True)
    assert left == ("Epoch 0\nRow shift (pixels)", "", "", "Epoch 4\nRow shift (pixels)", "", "")
    assert below == ("",) * 3 + ("Column shift\n(pixels)",) * 3
    assert [ax.get_xlim() for ax in axes] == [(-2, 2), (-2, 2), (-8.95, 7.95)] * 2
    assert [ax.yaxis.get_tick_params()["labelleft"] for ax in axes] == [True, False, True] * 2


def test_panel_widths_show_all_heads_of_a_layer():
    centres = np.zeros((2, 4, 3, 2))  # (epochs, layers, heads, 2)
    centres[0, 1, 0], centres[1, 2, 1], centres[0, 3, 2] = (0, -2.6), (5.1, 0), np.nan
    assert figures.panel_widths(centres).tolist() == [2.5, 5, math.inf, 2.5]
    assert figures.panel_widths(centres[0]).tolist() == [2.5, 5, 2.5, 2.5]


def test_paths_dropped_heads_and_covered_taps():
    dropped = np.full((LAYERS, 2, 2), np.nan)
    dropped[1, 0] = 2, -1
    covered = np.zeros((LAYERS, 3, 3), bool)
    covered[0, 0, 2] = covered[0, 1, 1] = True
    figure = figures.gaussian_heads(
        CENTRES, grid=GRID, paths=HISTORY, dropped=dropped, covered=covered
    )
    axes = panels(figure)
    ways = np.stack([line.get_xydata() for line in labelled(axes[2].lines, "start and path")])
    np.testing.assert_allclose(ways, HISTORY[:, 2].swapaxes(0, 1)[..., ::-1])
    ghosts = [
        labelled(ax.collections, "dropped")[0].get_offsets().compressed().tolist() for ax in axes
    ]
    assert ghosts == [[], [-1, 2], []]
    taps = [[p.get_bbox().bounds[:2] for p in labelled(ax.patches, "tap covered")] for ax in axes]
    assert taps == [[(0.5, -1.5), (-0.5, -0.5)], [], []]  # up and right of the query, and the query
    assert [ax.get_title() for ax in axes] == [
        f"Layer {n}: {c} of 9 taps" for n, c in ((1, 2), (2, 0), (3, 0))
    ]
    tint = to_hex(labelled(axes[0].patches, "tap covered")[0].get_facecolor())
    assert {"start and path", "dropped"} <= set(legend(figure)) and colours(figure)[
        "tap covered"
    ] == tint
    with pytest.raises(ValueError, match="given for paths"):
        figures.gaussian_heads(CENTRES, paths=CENTRES, grid=GRID)


def test_figures_are_the_frames_of_an_animation(tmp_path):
    frames = [figures.gaussian_heads(CENTRES[:1, :2] + n, grid=(7, 7)) for n in range(3)]
    figures.save_animation(frames, tmp_path / "centres.gif", frames_per_second=5)
    with Image.open(tmp_path / "centres.gif") as image:
        assert image.n_frames == 3 and image.info["duration"] == 200 and image.info["loop"] == 0


# --- maps


def test_attention_grid():
    maps = (
        MAPS * np.array([1, 0.5, 2])[:, None, None, None]
    )  # so that one layer's scale is not all layers'
    order = np.stack([RNG.permutation(HEADS) for _ in range(LAYERS)])
    figure = figures.attention_grid(maps, (1, 2), order=order)
    bar = colour_bar(figure)
    for (layer, place), (image, name, framed) in zip(
        np.ndindex(LAYERS, HEADS), tiles(figure), strict=True
    ):
        head = order[layer, place]
        np.testing.assert_array_equal(image.get_array(), maps[layer, head])
        assert (image.norm.vmin, image.norm.vmax) == (0, maps.max()), "one scale"
        assert image.cmap is bar.cmap is style.MAP_COLOURS and bar.norm is image.norm, (
            "that of the colour bar"
        )
        assert name == f"Head {head + 1}" and framed == [[2, 1]], "rows point down"
    lowest, *_ = figure.axes[0].get_ylim()
    assert (
        lowest
        == figure.get_figheight()
        > tiles(figure)[-1][0].get_extent()[2]
        > tiles(figure)[0][0].get_extent()[2]
    )
    titles = [text.get_text() for text in figure.axes[0].texts if text.get_ha() == "right"]
    assert titles == ["Layer 1", "Layer 2", "Layer 3"]
    ticks = names(bar.ax.get_xticklabels())
    assert ticks[:-1] == ["0", "0.1", "0.2", "0.5"]
    assert float(ticks[-1]) == pytest.approx(maps.max(), abs=0.005), "the end has a number"
    assert bar.ax.get_xlabel().startswith("Attention prob")
    left, right, below, above = tiles(figures.attention_grid(MAPS[:1, :2, :4]))[0][0].get_extent()
    assert (below - above) / (right - left) == pytest.approx(4 / 7), "pixels are square"


@pytest.mark.parametrize("given", [[[[1, 2]], [[3, 4]]], [[0, 0], [1, 1], [2, 2], [3, 5]]])
def test_queries_of_rows_and_of_heads_are_framed(given):
    found = [framed for *_, framed in tiles(figures.attention_grid(MAPS[:2, :4], given))]
    assert found == np.broadcast_to(given, (2, 4, 2))[..., None, ::-1].reshape(8, 1, 2).tolist()


def test_outside_the_image_is_hatched_and_missing_heads_are_left_out():
    maps = MAPS.copy()
    maps[0, :, :2], maps[1, 4:] = np.nan, np.nan
    figure = figures.attention_grid(maps)
    assert [name for _, name, _ in tiles(figure)] == [f"Head {n}" for n in "1234567891234123456789"]
    assert tiles(figure)[0][0].get_array().mask[:2].all()
    assert len([patch for patch in figure.axes[0].patches if patch.get_hatch()]) == HEADS


def test_arrays_of_another_shape_are_refused():
    with pytest.raises(
        ValueError, match=r"shape \(9, 5, 7\) was given for maps \(layers, heads, height, width\)"
    ):
        figures.attention_grid(MAPS[0])


@pytest.mark.parametrize("shape", [(10, 14, 3), (10, 14, 1)])
def test_attention_on_image(shape):
    image = (255 * RNG.random(shape)).astype(np.uint8)
    figure = figures.attention_on_image(image, (1, 2), MAPS, caption="Ship", largest=0.75)
    *rest, (picture, _, framed) = tiles(figure)
    np.testing.assert_array_equal(np.squeeze(picture.get_array()), np.squeeze(image))
    assert picture.get_extent()[1] < min(image.get_extent()[0] for image, *_ in rest)
    assert framed == [[4, 2]], "a pixel of the grid is 2 x 2 of the image's"
    assert rest[0][0].norm.vmax == 0.75 and len(rest) == LAYERS * HEADS
    assert figure.axes[0].texts[-1].get_text() == "Ship\nquery at row 1, column 2"


def test_names_stand_above_their_heads_and_leave_room():
    maps = MAPS[:, :3].copy()
    maps[2, 2] = np.nan
    notes = [
        [f"Head {3 * row + column}\nreach\nentropy" for column in range(3)] for row in range(3)
    ]
    figure = figures.attention_grid(maps, names=notes, titles=["Layer 4", "", ""])
    assert [name for _, name, _ in tiles(figure)] == list(itertools.chain(*notes))[:8]
    inside = figure.axes[0].transData.inverted()
    for image, name, _ in tiles(figure)[3:6]:
        (text,) = [text for text in figure.axes[0].texts if text.get_text() == name]
        top = text.get_window_extent().transformed(inside).y1
        assert tiles(figure)[0][0].get_extent()[2] < top < image.get_extent()[3]


def test_more_heads_than_fit_into_a_row_go_on_in_the_next():
    maps = np.full((2, 30, 2, 2), np.nan)
    maps[0], maps[1, :9] = 0.25, 0.25
    figure = figures.attention_grid(maps)
    assert [name for _, name, _ in tiles(figure)] == [
        f"Head {n}" for n in (*range(1, 31), *range(1, 10))
    ]
    rows = [round(image.get_extent()[2], 6) for image, *_ in tiles(figure)]
    assert [rows.count(row) for row in sorted(set(rows))] == [12, 12, 6, 9]
    left, right, below, above = tiles(figures.attention_grid(np.full((40, 9, 2, 2), 0.25)))[-1][
        0
    ].get_extent()
    assert right - left == pytest.approx(0.5), "of many layers maps stay large enough to be seen"


def test_signed_images_share_a_scale_that_is_white_at_zero():
    figure = EVERYTHING["signed_images"]()
    axes, bar = panels(figure), colour_bar(figure)
    photo, *signed = [ax.images[0] for ax in axes]
    np.testing.assert_array_equal(photo.get_array(), PHOTO)
    largest = abs(IMAGES[:2]).max()
    for image, values in zip(signed, IMAGES[:2], strict=True):
        np.testing.assert_array_equal(image.get_array(), values)
        assert (
            image.get_clim() == (-largest, largest)
            and image.cmap is bar.cmap is style.SIGNED_COLOURS
        )
    assert bar.norm is signed[0].norm and bar.ax.get_xlabel() == "Value"
    assert [ax.get_title() for ax in axes] == ["In", "a", "b"]
    frames = [patch.get_bbox().bounds for patch in axes[0].patches if isinstance(patch, Rectangle)]
    assert photo.get_clim() == (0, 1) and frames == [(2.5, 1.5, 3, 3), (3.5, 2.5, 1, 1)], (
        "row 3, column 4, and around"
    )
    for ax in panels(
        figures.signed_images(IMAGES[:2], "ab", query=(3, 4))
    ):  # no photo: on every image
        assert [patch.get_bbox().bounds for patch in ax.patches] == frames
    texts = [
        [t.get_text() for t in ax.texts]
        for ax in panels(figures.signed_images([IMAGES[0], 1e-6 * IMAGES[1]], "ab"))
    ]
    assert texts[0] == [] and texts[1] == [f"at most {1e-6 * abs(IMAGES[1]).max():.0e}"], (
        "an empty panel says so"
    )
    nothing = panels(figures.signed_images([np.zeros((4, 4))], ["nothing"]))[0]
    assert (
        nothing.images[0].get_clim() == (-1, 1) and nothing.texts[0].get_text() == "zero everywhere"
    )


def test_sum_of_heads_ends_in_the_sum():
    parts, looks = RNG.normal(size=(9, 12, 10)), np.eye(9).reshape(9, 3, 3)
    figure = figures.sum_of_heads(looks, np.arange(9) - 4.0, parts)
    for column, expected in enumerate((looks, parts, parts.cumsum(0))):
        shown = [image.get_array() for image, *_ in tiles(figure)[column::3]]
        np.testing.assert_allclose(shown, expected)
    words = [name for _, name, _ in tiles(figure)]
    assert words[:6:3] == ["Head 1", "Head 2"] and words[10:19:3] == ["× −1", "× 0", "× +1"]
    left = [text.get_text() for text in figure.axes[0].texts if text.get_ha() == "right"]
    assert left == ["Where the\nhead looks", "What it\nadds", "Sum so far"]
    (looking, _, framed), (adding, *_) = tiles(figure)[:2]
    assert framed == [[1, 1]] and colour_bar(figure).norm is adding.norm is not looking.norm


def test_schema_has_a_head_for_each_tap():
    axes, palette = (
        {ax.get_label(): ax for ax in figures.schema().axes},
        [*figures.head_colours(8), style.PALETTE[9]],
    )
    pixels = {name: ax.collections[0].get_array() for name, ax in axes.items()}
    matrices = {text.get_text(): text.get_position() for text in axes["k"].texts}
    for head, (row, column) in enumerate(tap_shifts((3, 3)).int().tolist()):
        look = pixels[f"{head}"]
        assert np.argwhere(np.ptp(look, axis=-1)).tolist() == [[2 + row, 2 + column]], (
            "in colour; the rest is grey"
        )
        colours = (
            look[2 + row, 2 + column],
            pixels["i"][2 + row, 2 + column],
            pixels["k"][1 + row, 1 + column],
        )
        assert {to_hex(colour) for colour in colours} == {palette[head].lower()}, (
            "of a head, its pixel and its tap"
        )
        assert matrices[f"$W^{head + 1}$"] == (1.5 + column, 1.5 + row)
        shift = f"({row:+d}, {column:+d})".replace("-", "−").replace("+0", "0")
        assert axes[f"{head}"].get_title().split("\n")[-1] == shift
    assert np.argwhere(pixels["o"][..., 0] < 1).tolist() == [[2, 2]]
    places = [axes[f"{head}"].get_position() for head in range(9)]
    assert places[0].y0 > places[3].y1 and places[0].x1 < places[1].x0, "rows point down"
    assert all(ax.get_ylim()[0] > ax.get_ylim()[1] for ax in axes.values())
    frames = {name: [p.get_bbox().bounds for p in ax.patches] for name, ax in axes.items()}
    assert all(
        frame == ([] if name == "k" else [(2, 2, 1, 1)]) for name, frame in frames.items()
    ), "the query"


# --- curves


def test_accuracy_curves():
    figure = EVERYTHING["accuracy_curves"]()
    long, short, last, paper = panels(figure)
    assert [ax.get_title() for ax in (long, short, last, paper)] == [
        "3 epochs", "2 epochs", "Last epoch (%)", "Published (%)"
    ]  # fmt: skip
    assert axis_names(figure) == [("Epoch", "Test accuracy (%)"), ("Epoch", ""), ("", ""), ("", "")]
    for ax, title, mean in ((long, "ResNet18", [20, 60, 85]), (short, "SA quadratic", [20, 40])):
        (line,) = ax.lines
        np.testing.assert_allclose(line.get_xydata(), [*enumerate(mean, 1)])
        assert line.get_color() == style.MODELS[title] and ax.get_ylim() == long.get_ylim()
    assert long.collections[0].get_paths()[0].get_extents().extents[[1, 3]] == pytest.approx(
        [10, 90]
    ), "the band"
    assert names(last.get_yticklabels()) == ["SA quadratic", "ResNet18"], "the best at the top"
    (bars,) = last.collections
    np.testing.assert_allclose(
        bars.get_segments(), [[(40, 0), (40, 0)], [(80, 1), (90, 1)]]
    )  # over seeds
    for ax, values in (
        (last, {"SA quadratic": 40, "ResNet18": 85}),
        (paper, {"SA quadratic": 95, "ResNet18": 93}),
    ):
        for place, (title, value) in enumerate(values.items()):
            (dot,) = labelled(ax.lines, title)
            np.testing.assert_allclose(dot.get_xydata()[0], (value, place))
            assert dot.get_color() == style.MODELS[title]
            assert dot.get_markerfacecolor() == (dot.get_color() if ax is last else "white")
            assert {text.get_text(): text.xy[1] for text in ax.texts}[f"{value:.1f}"] == place
    with pytest.raises(ValueError, match="given for SA quadratic"):
        figures.accuracy_curves({"SA quadratic": [0.1, 0.2]}, {})
    assert (
        len(figures.accuracy_curves({"SA quadratic, (hidden 32, 1 epoch)": [[0.1]]}, {}).axes) == 2
    )


def test_lines_have_levels_and_start_at_zero_or_span_three_decades():
    figure = EVERYTHING["lines"]()
    for ax, (title, curves) in zip(panels(figure), LINES.items(), strict=True):
        assert ax.get_title() == title and ax.get_yscale() == "log"
        for colour, (name, (x, y)) in zip(style.PALETTE, curves.items(), strict=False):
            (line,) = labelled(ax.lines, name)
            assert to_hex(line.get_color()) == colour.lower()
            np.testing.assert_allclose(line.get_xydata(), np.transpose([x, y]))
            assert look(line) == look(legend(figure)[name])
        (level,) = labelled(ax.lines, "c")
        assert set(level.get_ydata()) == {2.5} and look(level) == look(legend(figure)["c"])
    assert list(legend(figure)) == ["a", "b", "c"] and axis_names(figure) == [("x", "y"), ("x", "")]
    assert panels(figure)[0].get_ylim() == panels(figure)[1].get_ylim() == pytest.approx((0.004, 8))
    figure = figures.lines(
        {"": {"a": ([0, 1], [4, 2]), "nowhere": ([1, 2], [np.nan, np.nan])}}, "x", "y", {"b": 1}
    )
    assert figure.axes[0].get_ylim()[0] == 0 and figure.axes[0].get_ylim()[1] >= 4
    assert not legend(figures.lines({"": {"a": ([0], [1])}}, "x", "y"))
    four = figures.lines(dict.fromkeys("abcd", LINES["Loss"]), "x", "y")
    assert axis_names(four) == [("", "y"), ("", ""), ("x", "y"), ("x", "")], (
        "at the bottom and at the left"
    )
    five = figures.lines(dict.fromkeys("abcde", LINES["Loss"]), "x", "y")
    assert [below for below, _ in axis_names(five)] == ["", "", "x", "x", "x"], (
        "where no panel is below"
    )
    left, right = figures.lines(LINES, "x").axes  # no name: an axis of its own for each
    assert left.get_ylim()[1] < 3 < right.get_ylim()[1]


def test_legends_read_along_rows():
    figure = figures.lines({"": {25 * name: ([0, 1], [1, 2]) for name in "abcde"}}, "x")
    figure.draw_without_rendering()
    texts = [(text.get_window_extent(), text.get_text()) for text in figure.legends[0].texts]
    placed = sorted((-round(box.y0), box.x0, name[0]) for box, name in texts)
    assert "".join(name for *_, name in placed) == "abcde" and len({y for y, *_ in placed}) == 3


def test_reach_over_training_has_two_yardsticks_and_counts_layers_from_one():
    reach = {"SA quadratic": RNG.random((4, 3)), "SA learned": RNG.random((6, 2))}
    figure = figures.reach_over_training(
        reach, (2, 2)
    )  # the query sees itself, two neighbours and the diagonal
    entries = legend(figure)
    assert list(entries) == [
        "attention spread evenly",
        "farthest pixel",
    ]  # layers are named at their lines' ends
    for ax, (title, values) in zip(panels(figure), reach.items(), strict=True):
        assert ax.get_title() == title and ax.get_ylim()[0] == 0
        curves = {f"_layer {layer}": curve for layer, curve in enumerate(values.T, 1)}
        for name, curve in (
            curves | {"attention spread evenly": (2 + 2**0.5) / 4, "farthest pixel": 2**0.5}
        ).items():
            (line,) = labelled(ax.lines, name)
            np.testing.assert_allclose(
                line.get_ydata(), np.broadcast_to(curve, len(line.get_xdata()))
            )
            assert line.get_xdata()[0] == 0 and (
                name in curves or look(line) == look(entries[name])
            )
    assert axis_names(figure) == [("Epoch", "Mean reach of a layer (pixels)"), ("Epoch", "")]
    (ax,) = figures.reach_over_training(
        {"SA learned": np.array([[1, 1, 1, 1], [5, 2.1, 3.5, 2]])}, (7, 7)
    ).axes
    ends = [
        (text.get_text(), *text.xy, text.get_position()[0]) for text in ax.texts
    ]  # from the lowest line up
    assert ends == [
        ("2", 1.01, 2.05, 2),
        ("4", 1.01, 2.05, 9),
        ("3", 1.01, 3.5, 2),
        ("1", 1.01, 5, 2),
    ]
    for text in ax.texts:
        assert text.get_color() == labelled(ax.lines, f"_layer {text.get_text()}")[0].get_color()
    (ax,) = figures.reach_over_training({"Hybrid": np.array([[np.nan, 3, 4, 6]] * 2)}, (7, 7)).axes
    assert [text.get_text() for text in ax.texts] == [
        "2",
        "3",
        "4",
    ]  # a layer without heads has no number


def test_a_long_title_stays_clear_of_its_panels_letter():
    names = ["SA quadratic", "SA quadratic, full covariance", "SA quadratic, 16 heads"]
    figure = figures.reach_over_training(dict.fromkeys(names, RNG.random((4, 3))), (7, 7))
    figure.draw_without_rendering()
    for ax in panels(figure):
        letter, title = (text.get_window_extent() for text in (ax._left_title, ax.title))
        assert letter.x1 < title.x0 and letter.width > 0


@pytest.mark.parametrize("layers", ["up to", "alone"])
def test_points_lost_by_depth_draws_each_kernel_in_each_model(layers):
    table = swapped()
    figure = figures.points_lost_by_depth(table, 10, layers)
    axes, entries = panels(figure), legend(figure)
    assert [ax.get_title() for ax in axes] == ["A\naccuracy 90.00%", "B\naccuracy 60.00%"]
    assert names(axes[0].get_xticklabels()) == (
        ["1", "1–2", "1–3"] if layers == "up to" else ["1", "2", "3"]
    )
    below = "Layers that are convolutions" if layers == "up to" else "Layer that is a convolution"
    assert axis_names(figure) == [
        (below, "Points of accuracy lost\n(linear to 1, then logarithmic)"),
        (below, ""),
    ]
    kinds = {"1 × 1": ("read", 1), "5 × 5": ("read", 5), "3 × 3, taps shuffled": ("shuffled", 3)}
    assert set(entries) == {*kinds, "attention everywhere", "one point", "chance"}
    for ax, (model, own) in zip(
        axes, table[table["layers"] == layers].groupby("model"), strict=True
    ):
        assert ax.get_ylim()[0] > ax.get_ylim()[1], "what loses nothing is on top"
        for label, (how, kernel) in kinds.items():
            (line,) = labelled(ax.lines, label)
            lost = -own[(own["how"] == how) & (own["kernel"] == kernel)]["difference"]
            aside = {"1 × 1": -0.5, "5 × 5": 0.5}.get(label, 0) * (
                0.13 if layers == "alone" else 0.05
            )
            np.testing.assert_allclose(
                line.get_xydata(), np.transpose([[1 + aside, 2 + aside, 3 + aside], lost])
            )
            assert (line.get_linestyle() == "None") == (layers == "alone" and how == "read"), (
                "layers are not joined"
            )
            assert look(line) == look(entries[label])
        for name, level in {
            "attention everywhere": 0,
            "one point": 1,
            "chance": {"A": 80, "B": 50}[model],
        }.items():
            (line,) = labelled(ax.lines, name)
            assert line.get_ydata()[0] == level and look(line) == look(entries[name])
    gains = table.assign(
        difference=table["difference"].where(table["model"] == "B", 3.0)
    )  # A gains, B does not
    assert [
        ax.get_ylim()[1] for ax in panels(figures.points_lost_by_depth(gains, 10, layers))
    ] == pytest.approx([-3.3] * 2)
    none = figures.points_lost_by_depth(table[table["how"] == "read"], 10, layers)
    assert "3 × 3, taps shuffled" not in legend(none), "what is not drawn is not named"
    two = panels(figures.points_lost_by_depth(swapped(seeds=(0, 1)), 10, layers))[0]
    assert two.get_title().endswith(", 2 seeds")
    (one,) = labelled(axes[0].lines, "1 × 1")
    (mean,) = labelled(two.lines, "1 × 1")
    np.testing.assert_allclose(mean.get_ydata(), one.get_ydata() - 2)  # over seeds
    (bars,) = two.containers[0][2]
    np.testing.assert_allclose(
        [segment[:, 1] for segment in bars.get_segments()], mean.get_ydata()[:, None] + [-2, 2]
    )


def test_error_before_and_after_points_from_the_start_to_the_end():
    figure = EVERYTHING["error_before_and_after"]()
    seeds = [[[0.9, 0.5], [0.2, 0.6]], [[0.8, 0.4], [0.1, 0.3]]]
    (both,) = panels(figures.error_before_and_after({"C": seeds}))
    (_, fell, to), (_, rose, up) = (
        moves(both)[kind] for kind in ("after: smaller", "after: larger")
    )
    np.testing.assert_allclose(
        fell, [[0.9, 0.9], [1.1, 0.8], [2.1, 0.4]]
    )  # seeds beside each other
    np.testing.assert_allclose(to[:, 1], [0.2, 0.1, 0.3])
    np.testing.assert_allclose([rose[0], up[0]], [[1.9, 0.5], [1.9, 0.6]])
    for ax, (title, (before, after)) in zip(panels(figure), ERRORS.items(), strict=True):
        smaller, larger = (moves(ax)[kind] for kind in ("after: smaller", "after: larger"))
        for kind, (colour, starts, ends) in moves(ax).items():
            layers = starts[:, 0].astype(int)
            np.testing.assert_allclose(starts, np.stack([layers, np.take(before, layers - 1)], 1))
            np.testing.assert_allclose(ends, np.stack([layers, np.take(after, layers - 1)], 1))
            assert (
                (ends < starts)[:, 1] == (kind == "after: smaller")
            ).all() and colour == colours(figure)[kind]
        assert len(smaller[1]) + len(larger[1]) == len(before) and smaller[0] != larger[0]
        assert ax.get_title() == title and ax.get_xticks().tolist() == list(
            range(1, len(before) + 1)
        )
    assert list(legend(figure)) == [
        "before training",
        "after: smaller",
        "after: larger",
        "the constant alone",
    ]
    assert colours(figure)["before training"] == "#ffffff"
    (ax,) = panels(
        figures.error_before_and_after(
            {"goes on from another run": [[np.nan] * 3, [0.2, 0.4, 0.6]]}
        )
    )
    (after,) = [one for one in ax.collections if one.get_label() == "after (before: not measured)"]
    np.testing.assert_allclose(after.get_offsets(), [[1, 0.2], [2, 0.4], [3, 0.6]])
    assert axis_names(figure) == [
        ("Layer", "Relative error as a\n3 × 3 convolution"),
        ("Layer", ""),
    ]


def test_taps_of_each_layer_stand_above_their_number_and_over_chance():
    figure = EVERYTHING["taps_and_chance"]()
    (ax,) = figure.axes
    bars = {round(bar.get_x() + 0.45): bar.get_height() for bar in ax.patches}
    assert bars == {taps: {4: 50, 6: 25, 9: 25}.get(taps, 0) for taps in range(10)}
    rows = {
        text.get_text(): text.get_position()[1]
        for text in ax.texts
        if text.get_text() in ("before", "after")
    }
    assert rows["before"] > rows["after"] > 50 >= max(ax.get_yticks()), "above the bars, in order"
    layers = {
        (*text.get_position(), text.get_text()) for text in ax.texts if text.get_text() not in rows
    }
    before = {(4, rows["before"], "1 3"), (7, rows["before"], "2")}
    assert layers == before | {
        (9, rows["after"], "1"),
        (8, rows["after"], "2"),
        (0, rows["after"], "3"),
    }
    assert axis_names(figure) == [("Taps covered, of 9", "Fresh layers,\nsnapped (%)")]


def test_agreement_stands_over_its_ceiling():
    figure, (moved, same) = EVERYTHING["agreement_and_ceiling"](), HALVES
    (ax,), marks = figure.axes, legend(figure)
    entries = {
        name: to_hex(mark.get_edgecolor()[0])
        for name, mark in marks.items()
        if name.startswith("Layer")
    }
    assert not any(marks[name].get_facecolor()[:, 3].any() for name in entries), (
        "filled means that the peak follows"
    )
    for layer in range(LAYERS):
        name = f"Layer {layer + 1}"
        for marks, which in zip(
            ax.collections[2 * layer :], (FOLLOWING[layer], ~FOLLOWING[layer]), strict=False
        ):
            np.testing.assert_allclose(
                marks.get_offsets(), np.stack([same[layer], moved[layer]], 1)[which]
            )
            assert {to_hex(c) for c in marks.get_edgecolor()} == {entries[name]}
        assert to_hex(ax.collections[2 * layer].get_facecolor()[0]) == entries[name], (
            "filled where a peak follows"
        )
        assert not ax.collections[2 * layer + 1].get_facecolor()[:, 3].any()
    for name, slope in (("as images agree", 1), ("nine tenths of it", 0.9)):
        (line,) = labelled(ax.lines, name)
        np.testing.assert_allclose(line.get_ydata(), slope * line.get_xdata())
        assert look(line) == look(legend(figure)[name])
    assert axis_names(figure) == [
        (
            "Agreement of two halves\nof the images, same query",
            "Agreement of two halves\nof the images, query moved",
        )
    ]


def test_score_shares_pile_up_in_each_layer():
    figure = EVERYTHING["score_shares"]()
    entries = legend(figure)
    parts = [
        "the same for every image and query",
        "with what the query holds",
        "comparison of contents",
    ]
    assert set(entries) == {*parts, "framed: follows the query"}
    for layer, ax in enumerate(panels(figure)):
        own = 100 * SHARES[:, layer, np.argsort(-SHARES[0, layer])]
        for part, name, bars in zip(range(3), parts, ax.containers, strict=True):
            assert {to_hex(bar.get_facecolor()) for bar in bars} == {colours(figure)[name]}
            np.testing.assert_allclose([bar.get_height() for bar in bars], own[part])
            np.testing.assert_allclose([bar.get_y() for bar in bars], own[:part].sum(0))
        assert ax.get_title() == f"Layer {layer + 1}"
        order = np.argsort(-SHARES[0, layer])
        assert names(ax.get_xticklabels()) == [f"{head + 1}" for head in order]
        framed = [label.get_bbox_patch() is not None for label in ax.get_xticklabels()]
        assert framed == FOLLOWING[layer, order].tolist()
    assert axis_names(figure) == [
        ("Head", "" if n else "Variance of the scores (%)") for n in range(LAYERS)
    ]


def test_taps_gained_lead_from_before_to_after_beside_what_chance_gives():
    figure, frame = EVERYTHING["taps_gained"](), seeds_of_levels()
    *taps, accuracy = panels(figure)
    assert [ax.get_title() for ax in (*taps, accuracy)] == ["Layer 1", "Layer 2", "Accuracy"]
    assert names(taps[0].get_yticklabels()) == ["Start: wide", "Start: close", "Rate: 0.1"]
    assert taps[0].get_ylim()[0] > taps[0].get_ylim()[1]  # the first on top
    rows = [0, 0, 1, 1, 2, 2] + np.array([-0.11, 0.11] * 3)
    for layer, ax in enumerate(taps, 1):
        own = frame[frame["layer"] == layer]
        np.testing.assert_allclose(
            ax.collections[0].get_array()[[0, 1, 2], [3, 4, 9]], [1, 0.5, 1]
        )  # chance
        for kind, way in {"after: fewer": -1, "after: as many": 0, "after: more taps": 1}.items():
            colour, starts, ends = moves(ax)[kind]
            which = np.sign(own["after"] - own["before"]).to_numpy() == way
            np.testing.assert_allclose(starts, np.stack([own["before"], rows], 1)[which])
            np.testing.assert_allclose(ends, np.stack([own["after"], rows], 1)[which])
            assert colours(figure)[kind] == colour or not which.any()
    assert (
        len({colour for name, colour in colours(figure).items() if name.startswith("after")}) == 3
    )
    [marks] = accuracy.collections
    np.testing.assert_allclose(
        marks.get_offsets(), np.stack([frame[frame["layer"] == 1]["accuracy"], rows], 1)
    )


def test_a_line_a_start_over_numbers_of_images_with_bars_from_worst_to_best():
    table = by_start()
    figure = figures.by_images(table, "Taps")
    for title, ax in zip(("Layer 1", "Layer 2"), panels(figure), strict=True):
        own = table[table["panel"] == title]
        assert ax.get_title() == title and ax.get_xscale() == "log"
        assert -1 < ax.get_ylim()[0] < 0 and ax.get_ylim()[1] > table["value"].max()
        assert names(ax.get_xticklabels()) == ["500", "2,000", "50,000"]
        lines = {
            line.get_label(): (line, bars)
            for line, _, (bars,) in ax.containers
            if len(line.get_xdata())
        }
        assert list(lines) == list(own["start"].unique())
        places = [line.get_xdata() for line, _ in lines.values()]
        assert all((a < b).all() for a, b in itertools.pairwise(places)), "beside each other"
        np.testing.assert_allclose(
            places, np.broadcast_to([500, 2000, 50_000], np.shape(places)), rtol=0.2
        )
        for start, (line, bars) in lines.items():
            found = own[own["start"] == start].groupby("images")["value"]
            np.testing.assert_allclose(line.get_ydata(), found.mean())
            ends = np.array([segment[:, 1] for segment in bars.get_segments()])
            np.testing.assert_allclose(ends, np.stack([found.min(), found.max()], 1))
            assert look(line) == look(legend(figure)[start])
    assert len({look(entry) for entry in legend(figure).values()}) == 7
    assert axis_names(figure) == [("Training images", "Taps"), ("Training images", "")]
    marked = [ax.lines[-1].get_ydata() for ax in panels(figures.by_images(table, "Taps", level=4))]
    assert [list(height) for height in marked] == [[4, 4]] * len(panels(figure))
    order = [
        *table["start"].unique(),
        *(f"another {n}" for n in range(9)),
    ]  # of which the table has none
    again = [
        line.get_xdata()
        for line, *_ in panels(figures.by_images(table, "Taps", order=order))[0].containers
    ]
    first = [line.get_xdata() for line, *_ in panels(figure)[0].containers]
    np.testing.assert_array_equal(again, first)
    free = figures.by_images(table.assign(value=table["value"] - 5))
    assert min(ax.get_ylim()[0] for ax in panels(free)) < -4, (
        "without a name panels have axes of their own"
    )


def test_cost_growth_names_each_line():
    figure = EVERYTHING["cost_growth"]()
    (ax,), entries = figure.axes, legend(figure)
    for (name, (sides, costs)), (line, _, (bars,)) in zip(
        COSTS.items(), ax.containers, strict=True
    ):
        costs = np.reshape(costs, (len(sides), -1))
        np.testing.assert_allclose(line.get_xydata(), np.transpose([sides, costs[:, 0]]))
        spread = [(segment[0, 1], segment[1, 1]) for segment in bars.get_segments()]
        np.testing.assert_allclose(
            spread, costs[:, [1, 2]] if costs.shape[1] == 3 else costs[:, [0, 0]]
        )
        assert look(line) == look(entries[name])
    assert list(entries) == list(COSTS) and len({look(entry) for entry in entries.values()}) == 3
    bound, floor = ax.lines[-2:]
    assert {text.get_text(): text.xy for text in ax.texts} == {
        "dense, alone": (16, 2),
        "floor": (16, 1),
    }
    assert (
        bound.get_color()
        == entries["dense"].get_color()
        != floor.get_color()
        not in colours(figure).values()
    )
    assert ax.get_xscale() == ax.get_yscale() == "log" and names(ax.get_xticklabels()) == [
        "8",
        "16",
    ]
    assert axis_names(figure) == [("Side of the grid (pixels)", "Time (ms)")]


def test_stacked_costs_name_rows_and_parts():
    figure = EVERYTHING["stacked_costs"]()
    (ax,), found = figure.axes, {}
    places = dict(zip(ax.get_yticks(), names(ax.get_yticklabels()), strict=True))
    for bars in ax.containers:
        assert colours(figure)[bars.get_label()] == to_hex(bars[0].get_facecolor())
        for bar in bars:
            row = found.setdefault(places[round(bar.get_y() + bar.get_height() / 2)], {})
            assert bar.get_x() == pytest.approx(sum(row.values())), "on top of the others"
            row |= {bars.get_label(): bar.get_width()} if bar.get_width() else {}
    assert found == PARTS and ax.get_ylim()[0] > ax.get_ylim()[1], "the first row at the top"
    assert names(ax.texts) == ["1", "", "2", "", "3", "4"], (
        "each part, and the sum; a bar of one part has its sum only"
    )
    assert ax.get_xlabel() == "GFLOP"
