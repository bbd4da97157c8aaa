"""Figures: what is drawn is asked for (positions, counts, labels), never pixels, but for what is cut off at an edge."""

import io
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
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.text import Text
from PIL import Image

from attnconv import figures
from attnconv.config import PRESETS
from attnconv.equivalence import tap_shifts
from attnconv.figures import style

LAYERS, HEADS, GRID = 3, 9, (17, 17)
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(0, 1.5, (LAYERS, HEADS, 2))
HISTORY = CENTRES * np.linspace(2, 1, 5)[:, None, None, None]  # (epochs, layers, heads, 2)
PRECISION = np.broadcast_to([[1.0, 0.3], [0.3, 0.25]], (LAYERS, HEADS, 2, 2)).copy()
SHARES, IMAGES = RNG.random((LAYERS, HEADS)), RNG.normal(size=(3, 12, 10))
CURVES = {"ResNet18": RNG.random((3, 8)), "SA learned": RNG.random((1, 8))}
SEEDS = {"covered": np.array([[3, 4], [5, 8]]), "accuracy": np.array([0.6, 0.8]), "chance": 3.5}
FACTORS = {"Start": {"wide": SEEDS, "close": SEEDS | {"chance": 4.5}}, "Rate": {"0.1": SEEDS}}
LINES = {"a": ([0, 1], [1, 0.1]), "b": ([0, 1], [2, 0.2])}


def some_maps(layers=LAYERS, heads=HEADS, height=5, width=7):
    maps = np.random.default_rng(1).random((layers, heads, height, width)) ** 4
    return maps / maps.sum((-2, -1), keepdims=True)


def panels(figure):
    """Axes with a title, that is without colour bars."""
    return [ax for ax in figure.axes if ax.get_title()]


def shown(figure):
    """Axes with an image, without colour bars."""
    return [ax for ax in figure.axes if ax.images]


def marks(ax):
    """Head -> its mark."""
    return {int(c.get_label()[5:]): c for c in ax.collections if c.get_label().startswith("head ")}


def labelled(artists, label):
    return [artist for artist in artists if artist.get_label() == label]


def legend(figure):
    """Labels of all legends."""
    legends = figure.findobj(plt.matplotlib.legend.Legend)
    return [text.get_text() for one in legends for text in one.get_texts()]


MAPS, PHOTO = some_maps(), np.full((10, 14, 3), 99, np.uint8)
EVERYTHING = {
    "accuracy_curves": lambda: figures.accuracy_curves(CURVES, {"SA learned": 0.9}),
    "agreement": lambda: figures.agreement(IMAGES[0], IMAGES[0]),
    "attention_grid": lambda: figures.attention_grid(MAPS),
    "attention_on_image": lambda: figures.attention_on_image(PHOTO, (1, 2), MAPS, caption="Ship"),
    "content_share": lambda: figures.content_share(SHARES, SHARES / 2),
    "cost_growth": lambda: figures.cost_growth({"a": ([8, 16], [[2, 1, 3], [4, 3, 9]])}, {"b": ([8, 16], [1, 1])}),
    "cost_ratios": lambda: figures.cost_ratios({"Parameters: 100 → 127": (100, 127), "Time: 0.5 s → 5 s": (0.5, 5.0)}),
    "coverage_grid": lambda: figures.coverage_grid(FACTORS),
    "gaussian_heads": lambda: figures.gaussian_heads(CENTRES, PRECISION, grid=(7, 7), paths=HISTORY),
    "image_rows": lambda: figures.image_rows([np.zeros((3, 8, 8, 1))], ["a", "b", "c"], ["published"]),
    "accuracy_by_depth": lambda: figures.accuracy_by_depth(swapped(), 10),
    "error_before_and_after": lambda: figures.error_before_and_after({"A": (RNG.random(LAYERS), RNG.random(LAYERS))}),
    "kernel_grids": lambda: figures.kernel_grids({"3": (tap_shifts((3, 3)), (1, 1)), "centres": (CENTRES[0], (2, 2))}),
    "lines": lambda: figures.lines({"": LINES}, "x", "y", {"c": 2.5}, log=True),
    "rank_curves": lambda: figures.rank_curves({"4 to 2": ([1, 2, 3], [0.5, 1e-7, 0], [0.7, 0, 0])}),
    "reach_over_training": lambda: figures.reach_over_training({"SA learned": RNG.random((5, LAYERS))}, (7, 7)),
    "schema": figures.schema,
    "signed_images": lambda: figures.signed_images(IMAGES[:2], ["In", "a", "b"], photo=abs(IMAGES[2]), query=(3, 4)),
    "stacked_costs": lambda: figures.stacked_costs({"x": {"p": 1.0, "q": 2.0}, "y": {"p": 4.0}}, "GFLOP"),
    "sum_of_heads": lambda: figures.sum_of_heads(np.eye(9).reshape(9, 3, 3), np.arange(9) - 4.0, RNG.random((9, 5, 5))),
}
"""Every figure function on ordinary arrays."""


# --- colours, style, files ----------------------------------------------------------------------------------------


def test_everything_is_tried():
    own = {name for name, value in vars(figures).items() if getattr(value, "__wrapped__", None)}
    assert own == {*EVERYTHING, "save", "centre_animation"}


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_figure_is_readable_at_a_column_width(name):
    with plt.rc_context({"font.size": 30, "axes.titlesize": 30, "axes.facecolor": "red", "axes.grid": True}):
        figure = EVERYTHING[name]()
        assert plt.rcParams["font.size"] == 30
    assert style.SINGLE - 0.11 <= figure.get_figwidth() <= style.DOUBLE + 1e-6
    assert not plt.get_fignums(), "pyplot must not keep figures"
    style.settle(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., :3] < 250
    assert ink.any() and not any(edge.any() for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1])), "cut off"
    sizes = {t.get_fontsize() for t in figure.findobj(Text) if t.get_text()}
    assert 6.5 <= min(sizes) and max(sizes) <= 15


def test_heads_keep_their_colours_and_sixteen_are_told_apart():
    nine, sixteen = figures.head_colours(9), figures.head_colours(16)
    assert sixteen[:9] == nine and len(set(sixteen)) == 16
    assert len({(c, style.head_marker(h)) for h, c in enumerate(figures.head_colours(40))}) == 40
    alike = [heads for heads in itertools.combinations(range(16), 2) if len({style.head_marker(h) for h in heads}) == 1]
    assert min(math.dist(to_rgb(sixteen[a]), to_rgb(sixteen[b])) for a, b in alike) > 0.15, "other colours"


def test_models_keep_their_colours():
    titles = [preset.title for preset in PRESETS.values()]
    colours = style.model_colours(titles)
    assert len(set(colours.values())) == len(titles), "every preset has a colour of its own"
    some = style.model_colours(["mine", "SA learned", "another"])
    assert some["SA learned"] == colours["SA learned"]
    assert some == style.model_colours(["another", "SA learned", "mine"])
    rgb = [to_rgb(colour) for colour in style.model_colours([*titles, *(f"other {n}" for n in range(5))]).values()]
    assert min(math.dist(a, b) for a, b in itertools.combinations(rgb, 2)) > 0.2


def test_files_are_the_same_each_time_need_no_torch_and_embed_fonts(tmp_path):
    code = (
        "import sys, numpy as np; from attnconv import cli, figures, reproduce;"
        "figure = figures.gaussian_heads(np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2)), grid=(7, 7));"
        "figures.save(figure, sys.argv[1]); figures.save(figure, sys.argv[2]); sys.exit('torch' in sys.modules)"
    )
    one, two = ([tmp_path / f"{name}.pdf", tmp_path / f"{name}.png"] for name in ("one", "two"))
    environment = {**os.environ, "PYTHONHASHSEED": "1", "MPLBACKEND": "agg"}
    subprocess.run([sys.executable, "-c", code, *map(str, one)], check=True, env=environment)
    figure = figures.gaussian_heads(np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2)), grid=(7, 7))
    for file in two:
        figures.save(figure, file)
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two], "another process"
    pdf = one[0].read_bytes()
    assert b"/FontFile2" in pdf and b"Date" not in pdf and b"/Type3" not in pdf
    with Image.open(one[1]) as image:
        assert image.info.keys() == {"dpi"}
    assert "mpl-data" in findfont("DejaVu Sans", fallback_to_default=False)
    with pytest.raises(ValueError, match="must end in .pdf or .png"):
        figures.save(figures.schema(), tmp_path / "three.svg")


def test_256_colours_are_enough_for_ramps():
    """A picture with all colours of both ramps and of grey: none moves by more than 5 of 255, so there are no bands."""
    ramp = np.linspace(0, 1, 800)
    rows = [colours(ramp)[:, :3] for colours in (style.MAP_COLOURS, style.SIGNED_COLOURS, plt.get_cmap("gray"))]
    before, content = np.repeat(np.rint(255 * np.array(rows)).astype(np.uint8), 40, axis=0), io.BytesIO()
    Image.fromarray(before).save(content, "PNG", dpi=(200, 200))
    with Image.open(io.BytesIO(style.of_256_colours(content.getvalue()))) as image:
        assert image.mode == "P" and np.abs(np.asarray(image.convert("RGB"), int) - before).max() <= 5


# --- centres ------------------------------------------------------------------------------------------------------


def test_gaussian_heads_are_drawn_where_they_are():
    precision = PRECISION.copy()
    precision[0, 0], precision[0, 1] = np.nan, [[1, 0], [0, 0]]
    axes = panels(figures.gaussian_heads(CENTRES, precision, half_width=8.5, grid=GRID))
    assert [ax.get_title() for ax in axes] == ["Layer 1", "Layer 2", "Layer 3"]
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in axes}) == 1, "equal axes"
    low, high = axes[0].get_ylim()
    assert low > high, "rows point down"
    assert axes[0].get_ylabel() == "Row shift (pixels)" and axes[0].get_xlabel() == "Column shift (pixels)"
    assert [p.get_bbox().bounds for p in labelled(axes[0].patches, "query pixel")] == [(-0.5, -0.5, 1, 1)]
    for head, mark in marks(axes[1]).items():
        np.testing.assert_allclose(mark.get_offsets()[0], CENTRES[1, head - 1, ::-1])
        assert to_hex(mark.get_facecolor()[0]) == figures.head_colours(HEADS)[head - 1].lower()

    strip, *others = [p for p in axes[0].patches if isinstance(p, Ellipse)]
    assert len(others) == 2 * 8 - 1, "nothing is drawn of the head that is no Gaussian"
    assert max(strip.get_width(), strip.get_height()) > 4 * low, "open at both ends"
    solid, dotted = [p for p in axes[1].patches if isinstance(p, Ellipse)][:2]
    for ellipse, share in ((solid, 0.5), (dotted, 0.9)):
        outline = ellipse.get_path().transformed(ellipse.get_patch_transform())
        away = outline.vertices[:-1:3, ::-1] - CENTRES[1, 0]  # between these are control points
        scores = np.einsum("ni,ij,nj->n", away, PRECISION[1, 0], away)
        np.testing.assert_allclose(scores, -2 * math.log(1 - share), rtol=1e-3)
    assert solid.get_linestyle() in ("-", "solid") and dotted.get_linestyle() not in ("-", "solid")


def test_flat_heads_look_flat():
    precision = np.eye(2) * np.array([0.0, 1e-3, 0.3, 9.0])[:, None, None]  # uniform, wide, half a mass of 2 px, sharp
    centres = np.zeros((1, 4, 2)) + np.arange(4)[:, None] / 2
    figure = figures.gaussian_heads(centres, precision[None], grid=(6, 6))
    faces = [to_hex(mark.get_facecolor()[0]) for mark in marks(figure.axes[0]).values()]
    assert faces[:2] == ["#ffffff"] * 2 and "#ffffff" not in faces[2:]
    assert len([p for p in figure.axes[0].patches if isinstance(p, Ellipse)]) == 4, "of the two that are not flat"
    assert "flat: 50% do not fit in" in legend(figure)
    assert "flat: 50% do not fit in" not in legend(EVERYTHING["gaussian_heads"]())


def test_coincident_heads_stand_side_by_side():
    centres = np.array([[[1, 1], [1, 1], [1, 1], [0, 0]]], dtype=float)
    ax = figures.gaussian_heads(centres, half_width=3, grid=GRID).axes[0]
    places = [mark.get_offset_transform().transform(mark.get_offsets()[0]) for mark in marks(ax).values()]
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
        assert max(abs(tick) for tick in ax.get_xticks() if x - 0.45 < tick < x + width + 0.45) <= grid[1] // 2
    assert panels(figures.gaussian_heads(far, half_width=2, grid=grid))[0].get_xlim() == (-2, 2)


def test_small_panels_stand_row_by_row_and_number_their_ticks_where_they_have_windows_of_their_own():
    layers, widths = [0, 1, 2, 0], [2, 2, 2, math.inf]
    figure = figures.gaussian_heads(CENTRES[layers], half_width=widths, grid=(16, 16), titles=list("abcd"), columns=2)
    figure.draw_without_rendering()
    axes = panels(figure)
    assert "".join(ax.get_title() for ax in axes) == "abcd"
    assert [bool(ax.get_ylabel()) for ax in axes] == [True, False] * 2
    (left, top), (right, same), (below, bottom), _ = np.round([ax.get_position().p0 for ax in axes], 6)
    assert left == below < right and top == same > bottom
    assert [ax.get_xlim() for ax in axes] == [(-2, 2)] * 3 + [(-8.95, 7.95)]
    assert [ax.xaxis.get_tick_params()["labelbottom"] for ax in axes] == [False, True, True, True]
    assert [ax.yaxis.get_tick_params()["labelleft"] for ax in axes] == [True, False, True, True]


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
    figure = figures.gaussian_heads(CENTRES, paths=HISTORY, dropped=dropped, covered=covered, half_width=9, grid=GRID)
    axes = panels(figure)
    ways = [line.get_xydata() for line in labelled(axes[2].lines, "before training")]
    np.testing.assert_allclose(ways, HISTORY[:, 2].swapaxes(0, 1)[..., ::-1])
    ghosts = [labelled(ax.collections, "dropped")[0].get_offsets().compressed().tolist() for ax in axes]
    assert ghosts == [[], [-1, 2], []]
    taps = [[p.get_bbox().bounds[:2] for p in labelled(ax.patches, "tap covered")] for ax in axes]
    assert taps == [[(0.5, -1.5), (-0.5, -0.5)], [], []]  # up and right of the query, and the query
    assert [ax.get_title() for ax in axes] == [f"Layer {n}: {c} of 9 taps" for n, c in ((1, 2), (2, 0), (3, 0))]
    assert {"before training", "dropped", "tap covered"} <= set(legend(figure))
    with pytest.raises(ValueError, match="given for paths"):
        figures.gaussian_heads(CENTRES, paths=CENTRES, grid=GRID)


def test_centre_animation(tmp_path):
    history, precision = HISTORY[:3, :1, :2].copy(), np.broadcast_to(PRECISION, (5, *PRECISION.shape))[:3, :1, :2]
    history[2, 0, 0] = 9, 0  # beyond the panel
    animation = figures.centre_animation(history, precision, (7, 7))
    figures.save_animation(animation, tmp_path / "centres.gif")
    with Image.open(tmp_path / "centres.gif") as image:
        assert image.n_frames == 3
    again = figures.centre_animation(history, precision, (7, 7))
    assert figures.player(again) == (html := figures.player(animation)) and html.count("data:image/png") == 3
    ax = panels(animation._fig)[0]
    assert "beyond the panel" in legend(animation._fig)
    for frame in (2, 0):
        animation._draw_frame(frame)
        offsets = [mark.get_offsets()[0] for mark in marks(ax).values()]
        np.testing.assert_allclose(offsets, np.clip(history[frame, 0, :, ::-1], -3.95, 3.95))
        ellipses = [p.get_center() for p in ax.patches if isinstance(p, Ellipse)]
        np.testing.assert_allclose(ellipses, history[frame, 0, :, ::-1])


def test_kernel_grids_show_heads_and_the_queries_that_a_stride_leaves():
    kernels = {"all": ((3, 3), (1, 1)), "some": ((2, 2), (2, 3))}
    shifts = {title: (tap_shifts(size), stride) for title, (size, stride) in kernels.items()}
    figure = figures.kernel_grids(shifts)
    others = [[p.get_bbox().bounds[:2] for p in labelled(ax.patches, "other queries")] for ax in figure.axes]
    for ax, (centres, _) in zip(figure.axes, shifts.values(), strict=True):
        (heads,) = labelled(ax.collections, "centre of a head")
        np.testing.assert_allclose(heads.get_offsets(), np.asarray(centres)[:, ::-1])
    assert [len(squares) for squares in others] == [9 * 9 - 1, 5 * 3 - 1]
    assert all((x + 0.5) % 3 == 0 and (y + 0.5) % 2 == 0 for x, y in others[1])


# --- maps ---------------------------------------------------------------------------------------------------------


def test_attention_grid():
    maps = some_maps()
    maps[1] /= 2
    maps[2] *= 2  # so that one layer's scale is not all layers'
    order = np.stack([RNG.permutation(HEADS) for _ in range(LAYERS)])
    figure = figures.attention_grid(maps, (1, 2), order=order)
    axes = shown(figure)
    assert {(ax.images[0].norm.vmin, ax.images[0].norm.vmax) for ax in axes} == {(0, maps.max())}, "one scale"
    for (layer, place), ax in zip(np.ndindex(LAYERS, HEADS), axes, strict=True):
        head = order[layer, place]
        np.testing.assert_array_equal(ax.images[0].get_array(), maps[layer, head])
        assert ax.get_title() == f"{head + 1}" and ax.get_ylim()[0] > ax.get_ylim()[1], "rows point down"
        assert [query.get_bbox().bounds for query in ax.patches] == [(1.5, 0.5, 1, 1)]
    assert [t.get_text() for ax in axes for t in ax.texts] == ["Layer 1", "Layer 2", "Layer 3"]
    ticks = [t.get_text() for t in figure.axes[-1].get_xticklabels()]
    assert ticks[0] == "0" and ticks[-1] == f"{maps.max():.2g}"
    figure = figures.attention_grid(some_maps(1, 2, 4, 12), [(0, 0), (3, 9)], names=[["a row", "a column"]])
    assert [ax.get_title() for ax in shown(figure)] == ["a row", "a column"]
    frames = [query.get_bbox().bounds[:2] for ax in shown(figure) for query in ax.patches]
    assert frames == [(-0.5, -0.5), (8.5, 2.5)], "a query for each head"
    box = shown(figure)[0].get_position()
    assert box.height * figure.get_figheight() / (box.width * figure.get_figwidth()) == pytest.approx(4 / 12)


def test_outside_the_image_is_hatched_and_missing_heads_are_left_out():
    maps = some_maps()
    maps[..., :2, :], maps[1, 4:] = np.nan, np.nan
    axes = shown(figures.attention_grid(maps))
    assert len(axes) == 2 * HEADS + 4
    assert axes[0].images[0].get_array().mask[:2].all() and axes[0].patch.get_hatch()


def test_arrays_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(9, 5, 7\) was given for maps \(layers, heads, height, width\)"):
        figures.attention_grid(some_maps()[0])


@pytest.mark.parametrize("shape", [(10, 14, 3), (10, 14, 1)])
def test_attention_on_image(shape):
    image = (255 * RNG.random(shape)).astype(np.uint8)
    *rest, picture = shown(figures.attention_on_image(image, (1, 2), some_maps(), caption="Ship", largest=0.75))
    np.testing.assert_array_equal(np.squeeze(picture.images[0].get_array()), np.squeeze(image))
    (query,) = picture.patches  # a pixel of the grid is 2 x 2 of the image's
    assert query.get_bbox().bounds == (3.5, 1.5, 2, 2)
    assert rest[0].images[0].norm.vmax == 0.75 and len(rest) == LAYERS * HEADS
    assert picture.get_xlabel() == "Ship\nquery at row 1, column 2"


def test_names_stand_above_their_heads_and_leave_room():
    maps = some_maps(3, 3)
    maps[2, 2] = np.nan
    names = [[f"Head {3 * row + column}\nreach\nentropy" for column in range(3)] for row in range(3)]
    figure = figures.attention_grid(maps, names=names, titles=["Layer 4", "", ""])
    axes = shown(figure)
    assert [ax.get_title() for ax in axes] == list(itertools.chain(*names))[:8]
    figure.draw_without_rendering()
    lowest = min(ax.title.get_window_extent().y0 for ax in axes[:3])
    highest = max(ax.title.get_window_extent().y1 for ax in axes[3:6])
    assert highest < axes[0].get_window_extent().y0 < axes[0].get_window_extent().y1 < lowest


def test_signed_images_share_a_scale_that_is_white_at_zero():
    figure = EVERYTHING["signed_images"]()
    *signed, photo = sorted((ax.images[0] for ax in shown(figure)), key=lambda image: image.get_clim()[0])
    assert {image.get_clim() for image in signed} == {(-abs(IMAGES[:2]).max(), abs(IMAGES[:2]).max())}
    np.testing.assert_allclose(signed[0].cmap(signed[0].norm(0.0)), 1, atol=0.01)
    frames = [patch.get_bbox().bounds for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert photo.get_clim() == (0, 1) and frames == [(2.5, 1.5, 3, 3), (3.5, 2.5, 1, 1)], "row 3, column 4, and around"
    for ax in shown(figures.signed_images(IMAGES[:2], "ab", query=(3, 4))):  # no photo: on every image
        assert [patch.get_bbox().bounds for patch in ax.patches] == frames
    panels = shown(figures.signed_images([*IMAGES[:1], 1e-6 * IMAGES[1]], "ab"))
    texts = [[t.get_text() for t in ax.texts] for ax in panels]
    assert texts[0] == [] and texts[1][0].startswith("zero everywhere\n(at most"), "an empty panel says so"
    assert shown(figures.signed_images([np.zeros((4, 4))], ["nothing"]))[0].images[0].get_clim() == (-1, 1)


def test_sum_of_heads_ends_in_the_sum():
    parts = RNG.normal(size=(9, 12, 10))
    axes = shown(figures.sum_of_heads(np.eye(9).reshape(9, 3, 3), np.arange(9) - 4.0, parts))
    np.testing.assert_allclose(axes[26].images[0].get_array(), parts.sum(0))
    np.testing.assert_allclose(axes[17].images[0].get_array(), parts[8])
    assert [ax.get_title() for ax in axes[12:15]] == ["× −1", "× 0", "× +1"]


def test_schema_has_a_head_for_each_tap():
    image, kernel, output, *heads = figures.schema().axes
    taps = [labelled(ax.patches, "tap") for ax in heads]
    shifts = [(p.get_y() - 2, p.get_x() - 2) for (p,) in taps]
    assert shifts == [tuple(shift) for shift in tap_shifts((3, 3)).tolist()]
    assert [ax.get_title().split("\n")[-1] for ax in heads[:3]] == ["(−1, −1)", "(−1, 0)", "(−1, +1)"]
    for ax, first in ((image, 1), (kernel, 0)):  # the same colours at the same places
        for tap, (head,) in zip(labelled(ax.patches, "tap"), taps, strict=True):
            assert tap.get_facecolor() == head.get_facecolor()
            assert (tap.get_x() - first, tap.get_y() - first) == (head.get_x() - 1, head.get_y() - 1)
    assert [p.get_bbox().bounds for p in labelled(output.patches, "sum")] == [(2, 2, 1, 1)]


# --- curves -------------------------------------------------------------------------------------------------------


def test_accuracy_curves():
    values = np.array([[0.1, 0.5, 0.9], [0.3, 0.7, np.nan]])
    curves = {"SA quadratic": [[0.2, 0.4]], "ResNet18": values}
    figure = figures.accuracy_curves(curves, {"SA quadratic": 0.95, "ResNet18": 0.95})
    (ax,) = figure.axes
    quadratic, resnet, level, other = ax.lines
    np.testing.assert_allclose(resnet.get_ydata(), [20, 60, 90])
    np.testing.assert_array_equal(quadratic.get_xdata(), [1, 2])
    assert level.get_ydata()[0] == pytest.approx(95) and level.get_color() == quadratic.get_color()
    assert level._unscaled_dash_pattern != other._unscaled_dash_pattern, "one does not hide the other"
    assert ax.collections[1].get_paths()[0].get_extents().y0 == pytest.approx(10), "the band"
    published = ["SA quadratic 95.0, published", "ResNet18 95.0, published"]
    assert legend(figure) == [*published, "ResNet18 90.0", "SA quadratic 40.0"], "from the top down"
    with pytest.raises(ValueError, match="given for SA quadratic"):
        figures.accuracy_curves({"SA quadratic": [0.1, 0.2]}, {})
    figures.accuracy_curves({"SA quadratic, full covariance (hidden 32, 1 epoch)": [[0.1, 0.2]]}, {})


def test_reach_over_training_has_two_yardsticks():
    reach = {"SA quadratic": np.ones((4, 3)), "SA learned": 2 * np.ones((6, 2))}
    figure = figures.reach_over_training(reach, (2, 2))  # the query sees itself, two neighbours and the diagonal
    quadratic, learned = panels(figure)
    assert (len(quadratic.lines), len(learned.lines)) == (3 + 2, 2 + 2) and quadratic.get_ylim() == learned.get_ylim()
    assert quadratic.get_ylim()[0] == 0 and quadratic.get_ylim()[1] >= 2
    assert [a.get_color() for a in quadratic.lines[:2]] == [a.get_color() for a in learned.lines[:2]]
    levels = {line.get_label(): line.get_ydata()[0] for line in quadratic.lines[3:]}
    assert levels == {"attention spread evenly": pytest.approx((2 + 2**0.5) / 4), "farthest pixel": 2**0.5}


def test_coverage_grid_shows_every_seed_and_the_means():
    figure = EVERYTHING["coverage_grid"]()
    cells, rate, accuracy, _ = figure.axes
    assert [ax.get_title() for ax in (cells, rate)] == ["Start", "Rate"]
    assert [line.get_ydata().tolist() for line in cells.lines] == [[4, 4], [6, 6]], "means of layers 1 and 2"
    points = np.concatenate([c.get_offsets() for c in cells.collections if len(c.get_offsets()) == 2])
    assert sorted(points[:, 1]) == [3, 3, 4, 4, 5, 5, 8, 8]
    assert accuracy.lines[0].get_ydata().tolist() == pytest.approx([70, 70])
    assert [label.get_text() for label in accuracy.get_xticklabels()] == ["wide", "close"]
    chance = [c.get_segments()[0] for c in cells.collections if hasattr(c, "get_segments")]
    np.testing.assert_allclose(chance, [[[-0.4, 3.5], [0.4, 3.5]], [[0.6, 4.5], [1.4, 4.5]]])


def swapped(models=("A", "B"), depth=3, seeds=(0,)):
    """A table as of `results.swap_table`, with an accuracy of its own for each row."""
    rows = []
    for (m, model), layers, layer, (how, kernel), seed in itertools.product(
        enumerate(models), ("alone", "up to"), range(1, depth + 1), (("read", 1), ("read", 5), ("shuffled", 3)), seeds
    ):
        accuracy = 80 - 30 * m - 5 * layer + kernel + (layers == "alone") - 2 * (how == "shuffled") + 4 * seed
        row = dict(model=model, layers=layers, layer=layer, how=how, kernel=kernel, seed=seed, accuracy=accuracy)
        rows.append(row | {"whole": 90 - 30 * m})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("layers", ["up to", "alone"])
def test_accuracy_by_depth_draws_each_kernel_in_each_model(layers):
    table = swapped()
    figure = figures.accuracy_by_depth(table, 10, layers)
    assert [ax.get_title() for ax in figure.axes] == ["A", "B"]
    names = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert names == (["1", "1–2", "1–3"] if layers == "up to" else ["1", "2", "3"])
    colour = {line.get_label(): line.get_color() for line in figure.legends[0].get_lines()}
    assert {*colour} == {"1 × 1", "5 × 5", "3 × 3, taps shuffled", "attention everywhere", "chance"}
    for ax, model in zip(figure.axes, ("A", "B"), strict=True):
        for how, kernel, label in (("read", 1, "1 × 1"), ("read", 5, "5 × 5"), ("shuffled", 3, "3 × 3, taps shuffled")):
            own = table[(table["model"] == model) & (table["layers"] == layers)]
            own = own[(own["how"] == how) & (own["kernel"] == kernel)]
            same = [one for one in ax.lines if to_rgb(one.get_color()) == to_rgb(colour[label])]
            (line,) = [one for one in same if len(one.get_xdata()) == 3 and one.get_linestyle() != "None"]
            np.testing.assert_allclose(line.get_ydata(), own["accuracy"])
            np.testing.assert_allclose(line.get_xdata(), [1, 2, 3])
        levels = {line.get_color(): line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1]}
        assert levels == {"black": {"A": 90, "B": 60}[model], "0.5": 10}
    two = figures.accuracy_by_depth(swapped(seeds=(0, 1)), 10, layers)
    means = next(ln for ln in two.axes[0].lines if to_rgb(ln.get_color()) == to_rgb(colour["1 × 1"]))
    one = table[(table["model"] == "A") & (table["layers"] == layers) & (table["kernel"] == 1)]["accuracy"]
    np.testing.assert_allclose(means.get_ydata(), one + 2)  # the mean over seeds


def test_error_before_and_after_points_from_the_start_to_the_end():
    figure = figures.error_before_and_after({"A": ([0.9, 0.1, 0.5], [0.2, 0.6, 0.5]), "B": ([1.0], [0.3])})
    ax = figure.axes[0]
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    filled = [line for line in ax.lines if line.get_marker() == "o" and line not in hollow]
    assert [line.get_ydata()[0] for line in hollow] == [0.9, 0.1, 0.5]
    assert [line.get_ydata()[0] for line in filled] == [0.2, 0.6, 0.5]
    arrows = {(a.xyann[1], a.xy[1]): a.arrow_patch.get_edgecolor() for a in ax.texts}
    assert list(arrows) == [(0.9, 0.2), (0.1, 0.6)]  # none where nothing moved
    entries = {line.get_label(): to_rgb(line.get_color()) for line in figure.legends[0].get_lines()}
    assert [c[:3] for c in arrows.values()] == [entries["nearer to a convolution"], entries["farther from one"]]
    assert figure.axes[1].get_title() == "B"


def test_content_share_keeps_what_leaves_the_scale():
    shares = np.full((LAYERS, 16), 0.25)
    shares[1, 3], shares[2] = -0.5, np.nan
    ax = figures.content_share(shares, np.full((LAYERS, 16), 0.1)).axes[0]
    assert ax.get_ylim()[0] < -50 and ax.get_ylim()[1] == 100
    (points,) = labelled(ax.collections, "a head")
    assert len(points.get_offsets().compressed().reshape(-1, 2)) == 32
    (means,) = labelled(ax.collections, "mean of the layer")
    np.testing.assert_allclose([segment[0, 1] for segment in means.get_segments() if len(segment)], [25, 25 - 75 / 16])
    (first,) = labelled(ax.collections, "untrained mean")
    np.testing.assert_allclose([segment[0, 1] for segment in first.get_segments()], [10] * LAYERS)


def test_rank_curves_match_dashed_to_solid():
    curves = {"4 to 2": ([1, 2, 3], [0.5, 1e-7, 0], [0.7, 0, 0]), "other": ([1], [0.1], [0.2])}
    figure = figures.rank_curves(curves)
    best, plain, other, _ = figure.axes[0].lines
    np.testing.assert_allclose(best.get_ydata(), [50, 0, 0])  # rounding is taken for zero
    assert plain.get_color() == best.get_color() != other.get_color() and plain.get_marker() == best.get_marker()
    assert figure.axes[0].get_xticks().tolist() == [1, 2, 3]
    assert plain.get_linestyle() == "--" and best.get_linestyle() == "-"


def test_agreement_counts_all_logits_also_those_that_are_equal():
    given = IMAGES[0].copy()
    given[0, 0] += 1e-3
    for other in (IMAGES[0], given):
        left, right = figures.agreement(IMAGES[0], other).axes
        assert len(left.lines[1].get_xdata()) == IMAGES[0].size
        assert sum(bar.get_height() for bar in right.patches) == pytest.approx(100)


def test_costs():
    ax = EVERYTHING["cost_ratios"]().axes[0]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), [1.27, 10])
    assert [text.get_text() for text in ax.texts] == ["1.27×", "10×"]
    cheaper = figures.cost_ratios({"Time": (2.0, 1.0)}).axes[0]
    assert cheaper.get_xlim()[0] < 0.5 < 1 < cheaper.get_xlim()[1]

    assert [text.get_text() for text in EVERYTHING["stacked_costs"]().axes[0].texts] == ["3", "4"]

    names = [f"{form}, {size}" for form in ("dense", "separable") for size in ("C = 64", "C = 400")]
    figure = figures.cost_growth({name: ([8, 16], [1, 2]) for name in names})
    looks = [(line.get_color(), line.get_marker()) for line in figure.axes[0].lines]
    assert looks[0][0] == looks[1][0] != looks[2][0] and looks[0][1] == looks[2][1] != looks[1][1], "two by two"
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.texts] == names, "at the lines' ends"
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert all(lower.y1 <= upper.y0 + 0.5 for lower, upper in itertools.pairwise(boxes)), "equal ends, and yet apart"
    ax = figures.cost_growth({"a": ([8, 16], [[2, 1, 3], [9, 8, 9]]), "b": ([8, 16], [1, 2])}, slopes=(4, 3)).axes[0]
    assert len({line.get_linestyle() for line in ax.lines[:2]}) == 2 and ax.lines[2].get_label() == "slope 4"
    np.testing.assert_allclose([line.get_ydata() for line in ax.lines[2:]], [[2, 2 * 2**4], [1, 2**3]])
    ax = EVERYTHING["cost_growth"]().axes[0]
    assert ax.get_xscale() == ax.get_yscale() == "log" and [t.get_text() for t in ax.get_xticklabels()] == ["8", "16"]
    np.testing.assert_allclose([segment[:, 1] for segment in ax.collections[0].get_segments()], [[1, 3], [3, 9]])


def test_lines_have_levels_and_start_at_zero_or_span_three_decades():
    ax = figures.lines({"": {"a": ([0, 1], [4, 2])}}, "x", "y", {"b": 1}).axes[0]
    assert [line.get_ydata()[0] for line in ax.lines] == [4, 1] and ax.get_yscale() == "linear"
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] >= 4
    assert EVERYTHING["lines"]().axes[0].get_ylim() == pytest.approx((0.0025, 5))
    assert legend(EVERYTHING["lines"]()) == ["a", "b", "c"]
    assert not legend(figures.lines({"": {"a": ([0], [1])}}, "x", "y"))


def test_panels_of_lines_share_an_axis_that_has_a_name():
    accuracy = {"train": ([1, 2], [30, 60]), "test": ([1, 2], [20, 50]), "nowhere": ([1, 2], [np.nan, np.nan])}
    panels = {"Loss": {"train": ([1, 2], [2, 1])}, "Accuracy": accuracy}
    left, right = figures.lines(panels, "Epoch").axes
    assert left.get_ylim()[1] < 3 < 60 <= right.get_ylim()[1]
    assert left.lines[0].get_color() == right.lines[0].get_color()
    figure = figures.lines(panels, "Epoch", "Value")
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim() and figure.axes[0].get_ylim()[1] >= 60
    assert legend(figure) == ["train", "test", "nowhere"]
