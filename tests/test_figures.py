"""Figures: what is drawn, where, in which colour and under which name is held against the arrays.
Never pixels, but for what is cut off at an edge.

Panels are taken row by row, and legends by the look of their entries.
"""

import itertools
import math
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.legend import Legend
from matplotlib.patches import Rectangle
from matplotlib.quiver import Quiver
from matplotlib.text import Text
from PIL import Image

from attnconv.config import PRESETS
from companion import figures
from companion.figures import style

GREY = "#999999"  # of outlines
LAYERS, HEADS, GRID = 3, 9, (17, 17)
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(0, 1.5, (LAYERS, HEADS, 2))
HISTORY = CENTRES * np.linspace(2, 1, 5)[:, None, None, None]  # (epochs, layers, heads, 2)
PRECISION = np.broadcast_to([[1.0, 0.3], [0.3, 0.25]], (LAYERS, HEADS, 2, 2)).copy()
IMAGES = RNG.normal(size=(3, 12, 10))
MAPS, PHOTO = (
    RNG.dirichlet(np.full(35, 0.2), (LAYERS, HEADS)).reshape(LAYERS, HEADS, 5, 7),
    RNG.random((12, 10)),
)
ERRORS = {"A": ([0.9, 0.1, 0.5], [0.2, 0.6, 0.5]), "B": ([1.0], [0.3])}


EVERYTHING = {
    "attention_grid": lambda: figures.attention_grid(MAPS),
    "attention_on_image": lambda: figures.attention_on_image(
        np.zeros((10, 14, 3), np.uint8), (1, 2), MAPS, caption="A"
    ),
    "error_before_and_after": lambda: figures.error_before_and_after(ERRORS),
    "gaussian_heads": lambda: figures.gaussian_heads(
        CENTRES, PRECISION, grid=(7, 7), paths=HISTORY
    ),
    "signed_images": lambda: figures.signed_images(
        IMAGES[:2], ["In", "a", "b"], photo=PHOTO, query=(3, 4)
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
    """The maps of a montage, row by row: each with its values, its name, and the pixels that are
    framed, as (column, row) of the map."""
    page = figure.axes[0]
    picture = page.images[0].get_array().filled(np.nan)
    outlines = [p.get_bbox().bounds for p in page.patches if to_hex(p.get_edgecolor()) == GREY]
    found = []
    for x, y, width, height in outlines:
        left, top = round(x + 0.5), round(y + 0.5)
        image = picture[top : top + round(height), left : left + round(width)]
        words = [t.get_text() for t in page.texts if x < t.get_position()[0] < x + width]
        places = [t.get_position()[1] for t in page.texts if x < t.get_position()[0] < x + width]
        above = max((place, word) for place, word in zip(places, words, strict=True) if place < y)
        framed = [
            (p.get_x() - x, p.get_y() - y)
            for p in page.patches
            if to_hex(p.get_edgecolor()) == style.QUERY_COLOUR.lower()
        ]
        inside = [[c, r] for c, r in framed if 0 <= c < width and 0 <= r < height]
        found.append((image, above[1], inside))
    return found


def labelled(artists, label):
    return [artist for artist in artists if artist.get_label() == label]


def legend(figure):
    """Label -> its entry, of all legends."""
    return {
        t.get_text(): h
        for one in figure.findobj(Legend)
        for t, h in zip(one.texts, one.legend_handles, strict=True)
    }


def moves(ax):
    """Kind -> where its arrows lead from and to, (n, 2) each."""
    found = {}
    for arrows, _, filled in zip(
        ax.collections, ax.collections[1:], ax.collections[2:], strict=False
    ):
        if isinstance(arrows, Quiver):
            starts = np.reshape(arrows.XY, (-1, 2))
            found[filled.get_label()] = starts, starts + np.stack([arrows.U, arrows.V], -1)
    return found


def axis_names(figure):
    """Names of the horizontal and the vertical axis, panel by panel."""
    return [(ax.get_xlabel(), ax.get_ylabel()) for ax in panels(figure)]


# --- colours, style, files


def test_everything_is_tried():
    own = {name for name, value in vars(figures).items() if getattr(value, "__wrapped__", None)}
    assert own == {*EVERYTHING, "save", "save_animation"}


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_figure_is_readable_at_a_column_width(name):
    with plt.rc_context({"font.size": 30, "axes.facecolor": "red", "axes.grid": True}):
        figure = EVERYTHING[name]()
    assert style.SINGLE - 0.11 <= figure.get_figwidth() <= style.DOUBLE + 1e-6
    assert not plt.get_fignums(), "pyplot must not keep figures"
    style.settle(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., :3] < 250
    assert ink.any()
    assert not any(edge.any() for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1]))
    sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_text()]
    assert 6.5 <= min(sizes) and max(sizes) <= 15


def test_heads_and_models_keep_their_colours_and_are_told_apart():
    sixteen = figures.head_colours(16)
    assert sixteen[:9] == figures.head_colours(9)
    pairs = itertools.combinations(map(to_rgb, sixteen[:9]), 2)
    assert min(math.dist(a, b) for a, b in pairs) > 0.15
    titles = [preset.title for preset in PRESETS.values()]
    assert set(titles) <= set(style.MODELS), "every preset has a colour of its own"
    assert [*style.model_colours(["mine", "SA learned"])] == ["mine", "SA learned"]
    rgb = [to_rgb(colour) for colour in style.model_colours([*titles, "mine", "yours"]).values()]
    assert min(math.dist(a, b) for a, b in itertools.combinations(rgb, 2)) > 0.2
    assert style.SIGNED_COLOURS(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.02), "zero is white"


def test_files_are_the_same_each_time_need_no_torch_and_embed_fonts(tmp_path):
    code = """
import sys, numpy as np
from companion import figures
figure = figures.gaussian_heads(np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2)), grid=(7, 7))
figures.save(figure, sys.argv[1])
sys.exit('torch' in sys.modules)"""
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-c", code, tmp_path / name], check=True)
    for suffix in (".pdf", ".png"):
        one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
        assert one == two
    pdf = (tmp_path / "one.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"Date" not in pdf and b"/Type3" not in pdf
    with Image.open(tmp_path / "one.png") as image:
        assert image.info.keys() == {"dpi"}


def test_figures_are_the_frames_of_an_animation(tmp_path):
    frames = [figures.gaussian_heads(CENTRES[:1, :2] + n, grid=(7, 7)) for n in range(3)]
    figures.save_animation(frames, tmp_path / "centres.gif")
    with Image.open(tmp_path / "centres.gif") as image:
        assert (image.n_frames, image.info["duration"], image.info["loop"]) == (3, 200, 0)


# --- centres


def outlines(ax):
    """The ellipse of each head, (points, 2) of row and column."""
    return [line.get_xydata()[:, ::-1] for line in labelled(ax.lines, "half of its Gaussian")]


def test_gaussian_heads_are_drawn_where_they_are():
    precision = PRECISION.copy()
    precision[0, 0], precision[0, 1] = np.nan, [[1, 0], [0, 0]]
    figure = figures.gaussian_heads(CENTRES, precision, half_width=8.5, grid=GRID)
    axes = panels(figure)
    assert [ax.get_title() for ax in axes] == ["Layer 1", "Layer 2", "Layer 3"]
    assert axis_names(figure)[:2] == [
        ("Column shift (pixels)", "Row shift (pixels)"),
        ("Column shift (pixels)", ""),
    ]
    (query,) = labelled(axes[0].patches, "query pixel")
    assert query.get_bbox().bounds == (-0.5, -0.5, 1, 1)
    for ax, centres in zip(axes, CENTRES, strict=True):
        assert ax.get_xlim() == (-8.5, 8.5) and ax.get_ylim() == (8.5, -8.5), "rows point down"
        shown = [one.get_xydata()[:, ::-1] for one in labelled(ax.lines, "centre of a head")]
        np.testing.assert_allclose(np.concatenate(shown), centres)
        drawn = labelled(ax.lines, "centre of a head") + labelled(ax.lines, "half of its Gaussian")
        assert [to_hex(line.get_color()) for line in drawn] == 2 * [
            colour.lower() for colour in figures.head_colours(9)
        ]

    for away, centre in zip(outlines(axes[1]), CENTRES[1], strict=True):
        scores = np.einsum("ni,ij,nj->n", away - centre, PRECISION[1, 0], away - centre)
        np.testing.assert_allclose(scores, 2 * math.log(2), rtol=1e-3)  # half of the mass
    none, strip, *_ = outlines(axes[0])
    assert abs(none).max() > 1000 and abs(strip[:, 1]).max() > 1000, "open at both ends"
    assert np.ptp(strip[:, 0]) == pytest.approx(2 * math.sqrt(2 * math.log(2)), rel=1e-3)


@pytest.mark.parametrize(("grid", "low", "high"), [((7, 7), -3.5, 3.5), ((16, 16), -8.5, 7.5)])
def test_axes_end_where_shifts_end(grid, low, high):
    ax = panels(figures.gaussian_heads(CENTRES * 9, grid=grid))[0]
    assert ax.get_xlim() == (low, high) and ax.get_ylim() == (high, low)


def test_rows_are_named_and_panels_have_their_width():
    steps = HISTORY[[0, 4]].reshape(-1, HEADS, 2)
    look = {"half_width": 2, "rows": ["Epoch 0", "Epoch 4"]}
    figure = figures.gaussian_heads(steps, grid=(16, 16), **look)
    axes = panels(figure)
    assert [ax.get_title() for ax in axes] == ["Layer 1", "Layer 2", "Layer 3", "", "", ""]
    below, left = zip(*axis_names(figure), strict=True)
    assert left == ("Epoch 0\nRow shift (pixels)", "", "", "Epoch 4\nRow shift (pixels)", "", "")
    assert below == ("",) * 3 + ("Column shift (pixels)",) * 3
    assert [ax.get_xlim() for ax in axes] == [(-2, 2)] * 6


def test_paths_dropped_heads_and_covered_pixels():
    dropped = np.full((LAYERS, 2, 2), np.nan)
    dropped[1, 0] = 2, -1
    covered = np.zeros((LAYERS, 3, 3), bool)
    covered[0, 0, 2] = covered[0, 1, 1] = True
    look = {"paths": HISTORY, "dropped": dropped, "covered": covered}
    figure = figures.gaussian_heads(CENTRES, grid=GRID, **look)
    axes = panels(figure)
    ways = [line.get_xydata()[:, ::-1] for line in labelled(axes[2].lines, "way since the start")]
    np.testing.assert_allclose(ways, HISTORY[:, 2].swapaxes(0, 1))
    crosses = [labelled(ax.lines, "dropped")[0].get_xydata() for ax in axes]
    assert [cross[~np.isnan(cross)].tolist() for cross in crosses] == [[], [-1, 2], []]
    name = "pixel with a sharp head"
    tinted = [[p.get_bbox().bounds[:2] for p in labelled(ax.patches, name)] for ax in axes]
    assert tinted == [[(0.5, -1.5), (-0.5, -0.5)], [], []]  # up and right of the query, and it
    assert {"way since the start", "dropped", name} <= set(legend(figure))


# --- maps


def test_attention_grid():
    maps = MAPS * np.array([1, 0.5, 2])[:, None, None, None]  # one layer's scale is not all layers'
    order = np.stack([RNG.permutation(HEADS) for _ in range(LAYERS)])
    figure = figures.attention_grid(maps, (1, 2), order=order)
    places = np.ndindex(LAYERS, HEADS)
    for (layer, place), (image, name, framed) in zip(places, tiles(figure), strict=True):
        head = order[layer, place]
        np.testing.assert_array_equal(image, maps[layer, head])
        assert name == f"Head {head + 1}" and framed == [[2, 1]], "rows point down"
    bar, (picture,) = colour_bar(figure), figure.axes[0].images
    assert (picture.norm.vmin, picture.norm.vmax) == (0, maps.max())
    assert (bar.norm.vmin, bar.norm.vmax) == (0, maps.max()) and bar.cmap is picture.cmap
    titles = [text for text in figure.axes[0].texts if text.get_ha() == "right"]
    assert [text.get_text() for text in titles] == ["Layer 1", "Layer 2", "Layer 3"]
    heights = [text.get_position()[1] for text in titles]
    assert heights == sorted(heights) and figure.axes[0].yaxis_inverted(), "the first on top"


@pytest.mark.parametrize("given", [[[[1, 2]], [[3, 4]]], [[0, 0], [1, 1], [2, 2], [3, 5]]])
def test_queries_of_rows_and_of_heads_are_framed(given):
    found = [framed for *_, framed in tiles(figures.attention_grid(MAPS[:2, :4], given))]
    assert found == np.broadcast_to(given, (2, 4, 2))[..., ::-1].reshape(8, 1, 2).tolist()


def test_outside_the_image_is_hatched_and_missing_heads_are_left_out():
    maps = MAPS.copy()
    maps[0, :, :2], maps[1, 4:] = np.nan, np.nan
    figure = figures.attention_grid(maps)
    assert [name for _, name, _ in tiles(figure)] == [f"Head {n}" for n in "1234567891234123456789"]
    assert len([patch for patch in figure.axes[0].patches if patch.get_hatch()]) == HEADS
    with pytest.raises(ValueError, match=r"shape \(9, 5, 7\) was given for maps \(layers, heads"):
        figures.attention_grid(MAPS[0])


@pytest.mark.parametrize("shape", [(10, 14, 3), (10, 14, 1)])
def test_attention_on_image(shape):
    image = (255 * RNG.random(shape)).astype(np.uint8)
    figure = figures.attention_on_image(image, (1, 2), MAPS, caption="Ship")
    *_, ax = figure.axes
    np.testing.assert_array_equal(np.squeeze(ax.images[0].get_array()), np.squeeze(image))
    assert ax.images[0].get_extent() == [-0.5, 6.5, 4.5, -0.5], "in pixels of the maps"
    assert [patch.get_bbox().bounds for patch in ax.patches] == [(1.5, 0.5, 1, 1)]
    assert len(tiles(figure)) == LAYERS * HEADS
    assert ax.get_xlabel() == "Ship\nquery at row 1, column 2"


def test_names_stand_above_their_heads_and_leave_room():
    notes = [[f"Head {row}{column}\nreach\nentropy" for column in "012"] for row in "012"]
    figure = figures.attention_grid(MAPS[:, :3], names=notes, titles=["Layer 4", "", ""])
    assert [name for _, name, _ in tiles(figure)] == [*itertools.chain(*notes)]
    page = figure.axes[0]
    (text,) = [text for text in page.texts if text.get_text() == notes[1][0]]
    _, (bottom, top) = (
        text.get_window_extent().transformed(page.transData.inverted()).get_points().T
    )
    height = MAPS.shape[2]
    first, second, _ = sorted(
        {p.get_y() for p in page.patches if to_hex(p.get_edgecolor()) == GREY}
    )
    assert first + height < top < bottom < second


def test_signed_images_share_a_scale_that_is_white_at_zero():
    figure = EVERYTHING["signed_images"]()
    axes, bar = panels(figure), colour_bar(figure)
    photo, *signed = [ax.images[0] for ax in axes]
    np.testing.assert_array_equal(photo.get_array(), PHOTO)
    largest = abs(IMAGES[:2]).max()
    for image, values in zip(signed, IMAGES[:2], strict=True):
        np.testing.assert_array_equal(image.get_array(), values)
        assert image.get_clim() == (-largest, largest) and image.cmap is style.SIGNED_COLOURS
    assert (bar.norm.vmin, bar.norm.vmax) == (-largest, largest) and bar.ax.get_xlabel() == "Value"
    assert [ax.get_title() for ax in axes] == ["In", "a", "b"]
    frames = [patch.get_bbox().bounds for patch in axes[0].patches if isinstance(patch, Rectangle)]
    assert frames == [(2.5, 1.5, 3, 3), (3.5, 2.5, 1, 1)], "row 3, column 4, and around"
    assert colour_bar(figures.signed_images([[[np.nan, 1.0]], [[2.0, 0.0]]], "ab")).norm.vmax == 2


# --- curves


def test_error_before_and_after_points_from_the_start_to_the_end():
    figure = EVERYTHING["error_before_and_after"]()
    for ax, (title, errors) in zip(panels(figure), ERRORS.items(), strict=True):
        assert ax.get_title() == title
        for kind, (starts, ends) in moves(ax).items():
            layers = starts[:, 0].astype(int)
            for places, values in zip((starts, ends), errors, strict=True):
                expected = np.stack([layers, np.take(values, layers - 1)], 1)
                np.testing.assert_allclose(places, expected)
            assert ((ends < starts)[:, 1] == (kind == "after: smaller")).all()
    entries = ["before training", "after: smaller", "after: larger", "the bias alone"]
    assert list(legend(figure)) == entries
    error = "Relative error as a\n3 × 3 convolution"
    assert axis_names(figure) == [("Layer", error), ("Layer", "")]
    seeds = {"C": [[[0.9, 0.5], [0.2, 0.6]], [[0.8, 0.4], [0.1, 0.3]]]}
    (ax,) = panels(figures.error_before_and_after(seeds))
    starts, _ = moves(ax)["after: smaller"]
    np.testing.assert_allclose(starts, [[0.9, 0.9], [1.1, 0.8], [2.1, 0.4]])  # beside each other
