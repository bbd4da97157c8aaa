"""Figures: their structure, without looking at pixels, and a few pixel baselines.

`ATTNCONV_NEW_BASELINES=1 pytest tests/test_figures.py` draws the baselines anew; look at them before
they are committed.
"""

import csv
import io
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import findfont
from matplotlib.patches import Ellipse, Rectangle
from matplotlib.text import Text
from PIL import Image

from attnconv import figures
from attnconv.config import PRESETS

BASELINES = Path(__file__).parent / "baselines"
LAYERS, HEADS = 3, 9
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(0, 1.5, (LAYERS, HEADS, 2))
HISTORY = CENTRES * np.linspace(2, 1, 5)[:, None, None, None]  # (epochs, layers, heads, 2)
PRECISION = np.broadcast_to(np.diag([1.0, 0.25]), (LAYERS, HEADS, 2, 2)).copy()


def some_maps(layers=LAYERS, heads=HEADS, height=5, width=7):
    maps = np.random.default_rng(1).random((layers, heads, height, width)) ** 4
    return maps / maps.sum((-2, -1), keepdims=True)


def panels(figure):
    """Axes with a title, that is without colour bars."""
    return [ax for ax in figure.axes if ax.get_title()]


def heads_drawn(ax):
    """Colour -> (column, row) of every head's mark."""
    return {to_hex(c.get_facecolor()[0]): tuple(c.get_offsets()[0]) for c in ax.collections if len(c.get_facecolor())}


MAPS, SHARES = some_maps(), RNG.random((LAYERS, HEADS))
CURVES = {"ResNet18": RNG.random((3, 8)), "SA learned": RNG.random((1, 8))}
EVERYTHING = {
    "accuracy_curves": lambda: figures.accuracy_curves(CURVES),
    "centre_paths": lambda: figures.centre_paths(HISTORY),
    "centre_panels": lambda: figures.centre_panels(HISTORY[:, 0], [0, 2, 4]),
    "gaussian_heads": lambda: figures.gaussian_heads(CENTRES, PRECISION),
    "attention_grid": lambda: figures.attention_grid(MAPS),
    "attention_on_image": lambda: figures.attention_on_image(RNG.random((10, 14, 3)), (1, 2), MAPS, caption="Ship"),
    "atlas": lambda: figures.atlas(MAPS, None, {"centre": CENTRES, "reach": SHARES})[0],
    "reach_over_training": lambda: figures.reach_over_training({"SA learned": RNG.random((5, LAYERS))}),
    "kernel_closeness": lambda: figures.kernel_closeness({"SA learned": RNG.random((LAYERS, 4))}, uniform=[0.1] * 4),
    "content_share": lambda: figures.content_share(SHARES),
    "hardening": lambda: figures.hardening([1, 9], MAPS[0, :2, :, 1:6], [0.5, 0], ([1, 2], [0.5, 0.1])),
    "separability_timing": lambda: figures.separability_timing([8, 16], [0.1, 0.5], [0.1, 0.2]),
}
"""Every figure function on ordinary arrays."""


# --- colours, style, files ----------------------------------------------------------------------------------------


def test_heads_keep_their_colours():
    nine, sixteen = figures.head_colours(9), figures.head_colours(16)
    assert sixteen[:9] == nine and len(set(sixteen)) == 16
    assert len({(c, figures._marker(h)) for h, c in enumerate(figures.head_colours(40))}) == 40
    light = [sum(to_rgb(colour)) for colour in sixteen]
    assert min(light) > 0.3, "black is the query's"


def test_a_head_has_one_colour_in_all_figures():
    expected = figures.head_colours(HEADS)
    for ax in (
        panels(figures.gaussian_heads(CENTRES))[1],
        panels(figures.centre_paths(HISTORY))[1],
        panels(figures.centre_panels(HISTORY, [4]))[0].figure.axes[1],
    ):
        drawn = heads_drawn(ax)
        for head, colour in enumerate(expected):
            np.testing.assert_allclose(drawn[colour.lower()], CENTRES[1, head, ::-1])


def test_models_keep_their_colours():
    titles = [preset.title for preset in PRESETS.values()]
    colours = figures.model_colours(titles)
    assert len(set(colours.values())) == len(titles), "every preset has a colour of its own"
    some = figures.model_colours(["mine", "SA learned", "another"])
    assert some["SA learned"] == colours["SA learned"]
    assert some == figures.model_colours(["another", "SA learned", "mine"])
    others = [f"other {number}" for number in range(5)]
    rgb = [to_rgb(colour) for colour in figures.model_colours([*titles, *others]).values()]
    assert min(math.dist(a, b) for a, b in itertools.combinations(rgb, 2)) > 0.2


def test_heads_outside_are_counted_in_a_corner_without_heads():
    centres = np.array([[[1.9, 1.9], [1.9, -1.9], [-1.9, -1.9], [9, 9], [-9, 0]]])  # the upper right corner is free
    (text,) = figures.gaussian_heads(centres, half_width=2).axes[0].texts
    assert text.get_text() == "2 heads outside"
    assert text.get_position()[0] > 0.9 and text.get_position()[1] > 0.9
    animation = figures.centre_animation(np.stack([centres, centres / 9]), half_width=2)
    (text,) = animation._fig.axes[0].texts
    for frame, said in ((1, ""), (0, "2 heads outside")):
        animation._draw_frame(frame)
        assert text.get_text() == said


def test_style_is_the_same_whatever_the_session_has_set():
    with plt.rc_context({"font.size": 30, "axes.titlesize": 30, "axes.facecolor": "red", "axes.grid": True}):
        ax = figures.gaussian_heads(CENTRES).axes[0]
        assert plt.rcParams["font.size"] == 30
    assert ax.title.get_fontsize() == 7.5 and ax.get_facecolor() == (1, 1, 1, 1)


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_figure_is_readable_at_a_column_width(name):
    figure = EVERYTHING[name]()
    assert figures.SINGLE - 1e-6 <= figure.get_figwidth() <= figures.DOUBLE + 1e-6
    assert not plt.get_fignums(), "pyplot must not keep figures"
    figures._settle(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., :3] < 250
    assert ink.any() and not any(edge.any() for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1])), "cut off"
    assert all(t.get_fontsize() >= 6.5 for t in figure.findobj(Text) if t.get_text())


def test_save_is_deterministic_and_embeds_fonts(tmp_path):
    code = (
        "import sys, numpy as np; from attnconv import figures;"
        "figures.save(figures.gaussian_heads(np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2))), sys.argv[1])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "MPLBACKEND": "agg"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "deep" / "one")], check=True, env=environment)
    figure = figures.gaussian_heads(np.zeros((1, 2, 2)), np.ones((1, 2, 2, 2)))
    two, three = figures.save(figure, tmp_path / "two.x"), figures.save(figure, tmp_path / "three")
    assert [file.name for file in two] == ["two.x.pdf", "two.x.png"]
    one = [tmp_path / "deep" / "one.pdf", tmp_path / "deep" / "one.png"]
    for files in zip(one, two, three, strict=True):
        assert len({file.read_bytes() for file in files}) == 1, "another process, the same figure again"
    pdf = two[0].read_bytes()
    assert b"/FontFile2" in pdf and b"Date" not in pdf and b"/Type3" not in pdf
    with Image.open(two[1]) as image:
        assert image.info.keys() == {"dpi"}
    assert len(list(tmp_path.iterdir())) == 5, "no temporary files stay"


def test_the_font_comes_with_matplotlib():
    assert "mpl-data" in findfont("DejaVu Sans", fallback_to_default=False)


def test_no_torch_is_imported():
    code = "import sys, attnconv.figures; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- accuracy -----------------------------------------------------------------------------------------------------


def test_accuracy_curves():
    values = np.array([[0.1, 0.5, 0.9], [0.3, 0.7, np.nan]])
    figure = figures.accuracy_curves({"ResNet18": values, "SA quadratic": [[0.2, 0.4]]})
    (ax,) = figure.axes
    resnet, quadratic = ax.lines
    np.testing.assert_allclose(resnet.get_ydata(), [20, 60, 90])
    np.testing.assert_array_equal(quadratic.get_xdata(), [1, 2])
    (band,) = ax.collections
    assert band.get_paths()[0].get_extents().y0 == pytest.approx(10)
    assert {t.get_text() for t in ax.texts} == {"ResNet18 90.0", "SA quadratic\n40.0"}
    assert ax.get_xlabel() == "Epoch" and ax.get_ylabel() == "Test accuracy (%)"
    with pytest.raises(ValueError, match="SA quadratic has shape"):
        figures.accuracy_curves({"SA quadratic": [0.1, 0.2]})
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.accuracy_curves({})


def test_labels_at_line_ends_do_not_overlap():
    titles = [preset.title for preset in PRESETS.values()]
    figure = figures.accuracy_curves({title: [[0.1, 0.9 + 1e-4 * i]] for i, title in enumerate(titles)})
    figures._settle(figure)
    boxes = sorted((t.get_window_extent() for t in figure.axes[0].texts), key=lambda box: box.y0)
    assert all(low.y1 <= high.y0 + 1 for low, high in zip(boxes, boxes[1:], strict=False))


@pytest.mark.parametrize(
    ("values", "gap", "expected"),
    [([0.0, 5.0], 1, [0, 5]), ([1.0, 1.0], 1, [0.5, 1.5]), ([2.0, 1.0, 1.5], 1, [2.5, 0.5, 1.5]), ([3.0], 1, [3])],
)
def test_apart(values, gap, expected):
    np.testing.assert_allclose(figures._apart(values, gap), expected)


RESULTS = [
    figures.Result("ResNet18", [0.9463, 0.9451, 0.947], 11_173_962, 1.1e9, 1.11e9, 1.11e9, 4521),
    figures.Result("SA quadratic", [0.9231], 12_100_000, 6.2e9, 9e9, 6.5e9, 80_000),
    figures.Result("SA learned + content", [0.4], 10, 1, 1, 1, 12.3, comparable=False, why="Fashion_MNIST, 6 epochs"),
    figures.Result("mine | 50% & more", [], 10, 1, 1, 1, float("nan")),
]


def test_results_table():
    table = figures.results_table(RESULTS)
    rows = list(csv.DictReader(io.StringIO(table["csv"])))
    assert [row["verdict"] for row in rows] == [
        "agrees: +0.81 points (tolerance 1)",
        "differs: −1.49 points (tolerance 1)",
        "not comparable: Fashion_MNIST, 6 epochs",
        "no number in the paper",
    ]
    assert float(rows[0]["accuracy"]) == pytest.approx(94.6133)
    assert float(rows[0]["accuracy_std"]) == pytest.approx(np.std([94.63, 94.51, 94.7], ddof=1), abs=1e-4)
    assert (rows[0]["seeds"], rows[0]["parameters"], rows[0]["paper_accuracy"]) == ("3", "11173962", "93.8")
    assert rows[1]["accuracy_std"] == "" and rows[3]["accuracy"] == "" and rows[3]["train_seconds"] == ""

    lines = table["markdown"].splitlines()
    assert len(lines) == 6 and len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "| 94.61 ± 0.10 (n = 3) | 93.8 | 94.63 |" in lines[2] and "| 11.2M | 1.1B | 1.11B |" in lines[2]
    assert "| 92.31 (n = 1) |" in lines[3] and "22 h 13 min" in lines[3]
    latex = table["latex"]
    assert r"mine | 50\% \& more" in latex and r"Fashion\_MNIST" in latex and r"94.61 $\pm$ 0.10" in latex
    assert latex.count(r"\\") == 5 and latex.startswith(r"\begin{tabular}")
    assert figures.results_table([])["csv"].count("\n") == 1


def test_published_numbers_belong_to_the_presets():
    titles = {preset.title for preset in PRESETS.values()}
    assert set(figures.PAPER_TABLE) <= titles
    assert {"ResNet18", "SA quadratic", "SA quadratic, 16 heads", "SA learned"} <= set(figures.REPRODUCTION_2021)


# --- centres ------------------------------------------------------------------------------------------------------


def test_gaussian_heads():
    precision = PRECISION.copy()
    precision[0, 0], precision[0, 1], precision[0, 2] = np.nan, [[1, 0], [0, 0]], 0
    figure = figures.gaussian_heads(CENTRES, precision)
    axes = panels(figure)
    assert [ax.get_title() for ax in axes] == ["Layer 1", "Layer 2", "Layer 3"]
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in axes}) == 1, "equal axes"
    low, high = axes[0].get_ylim()
    assert low > high, "rows point down"
    assert axes[0].get_ylabel() == "Row shift (pixels)" and axes[0].get_xlabel() == "Column shift (pixels)"
    black = [p for p in axes[0].patches if isinstance(p, Rectangle) and p.get_facecolor() == (0, 0, 0, 1)]
    assert [p.get_bbox().bounds for p in black] == [(-0.5, -0.5, 1, 1)]

    first = [p for p in axes[0].patches if isinstance(p, Ellipse)]
    visible = [p.get_visible() for p in first]
    assert visible == [False] * 2 + [True] * 2 + [False] * 2 + [True] * 12  # NaN, a strip, flat: nothing to draw
    strip = max(first[2].get_width(), first[2].get_height())
    assert strip > 4 * low, "open at both ends"
    solid, dotted = (p for p in axes[1].patches[1:3])
    radius = np.sqrt(-2 * np.log(0.5)), np.sqrt(-2 * np.log(0.1))
    # Precision diag(1, 1/4): one pixel of standard deviation along rows, two along columns.
    extents = [p.get_path().transformed(p.get_patch_transform()).get_extents() for p in (solid, dotted)]
    for extent, r in zip(extents, radius, strict=True):
        np.testing.assert_allclose([extent.width, extent.height], [4 * r, 2 * r], rtol=1e-3)
    np.testing.assert_allclose(solid.get_center(), CENTRES[1, 0, ::-1])
    assert solid.get_linestyle() in ("-", "solid") and dotted.get_linestyle() not in ("-", "solid")


def test_a_tilted_gaussian_tilts_the_right_way():
    # Long along the direction (1, 1): rows down and columns right.
    covariance = np.array([[2.0, 1.5], [1.5, 2.0]])
    figure = figures.gaussian_heads(np.zeros((1, 1, 2)), np.linalg.inv(covariance)[None, None])
    ellipse = next(p for p in figure.axes[0].patches if isinstance(p, Ellipse))
    x, y = ellipse.get_path().transformed(ellipse.get_patch_transform()).vertices.T  # columns, rows
    assert np.corrcoef(x, y)[0, 1] > 0.5
    assert np.ptp(x) == pytest.approx(np.ptp(y), rel=1e-3)


def test_far_and_missing_heads():
    centres = CENTRES.copy()
    centres[0, 0], centres[1, :], centres[2, 0] = (30, 0), np.nan, np.nan
    axes = panels(figures.gaussian_heads(centres))
    assert axes[0].get_xlim() == (-8.5, 8.5)
    assert [[t.get_text() for t in ax.texts] for ax in axes] == [["1 head outside"], [], []]
    wide = panels(figures.gaussian_heads(centres, half_width=31))[0]
    assert not wide.texts and wide.get_xlim() == (-31, 31)
    assert panels(figures.gaussian_heads(np.full((2, 4, 2), np.nan)))


def test_centre_paths_run_from_first_to_last():
    figure = figures.centre_paths(HISTORY, epochs=[0, 10, 20, 30, 40])
    ax = panels(figure)[2]
    lines = [line for line in ax.lines if len(line.get_xdata()) == len(HISTORY)]
    assert len(lines) == HEADS
    for head, line in enumerate(lines):
        np.testing.assert_allclose(line.get_xydata(), HISTORY[:, 2, head, ::-1])
    labels = [t.get_text() for legend in figure.findobj(plt.matplotlib.legend.Legend) for t in legend.get_texts()]
    assert labels[-2:] == ["epoch 0", "epoch 40"] and [str(h + 1) for h in range(HEADS)] == labels[:HEADS]
    assert len(panels(figures.centre_paths(HISTORY[:, 0]))) == 1
    with pytest.raises(ValueError, match="2 epoch numbers were given for 5"):
        figures.centre_paths(HISTORY, epochs=[0, 1])
    with pytest.raises(ValueError, match="history has shape"):
        figures.centre_paths(HISTORY[0, 0])


def test_centre_panels_pick_their_epochs():
    figure = figures.centre_panels(HISTORY, [0, 40], epochs=[0, 10, 20, 30, 40])
    assert len(figure.axes) == 2 * LAYERS and [ax.get_title() for ax in figure.axes[:2]] == ["Epoch 0", "Epoch 40"]
    np.testing.assert_allclose(list(heads_drawn(figure.axes[2]).values())[0], HISTORY[0, 1, 0, ::-1])
    with pytest.raises(ValueError, match=r"epochs \[3\] are not among"):
        figures.centre_panels(HISTORY, [0, 3], epochs=[0, 10, 20, 30, 40])


def test_centre_animation(tmp_path):
    history, precision = HISTORY[:3, :1, :2], np.broadcast_to(PRECISION, (5, *PRECISION.shape))[:3, :1, :2]
    files = []
    for name in ("centres", "again.gif"):
        animation = figures.centre_animation(history, precision, epochs=[0, 2, 4])
        files.append(figures.save_animation(animation, tmp_path / name))
    assert files[0].name == "centres.gif" and files[0].read_bytes() == files[1].read_bytes()
    with Image.open(files[0]) as image:
        assert image.n_frames == 3
    ax = panels(animation._fig)[0]
    np.testing.assert_allclose(list(heads_drawn(ax).values()), history[-1, 0, :, ::-1])
    np.testing.assert_allclose([p.get_center() for p in ax.patches[1:]], history[-1, 0, :, ::-1])


# --- maps ---------------------------------------------------------------------------------------------------------


def shown(figure):
    return [ax for ax in figure.axes if ax.images]


def test_attention_grid():
    maps = some_maps()
    maps[1] /= 2
    maps[2] *= 2  # so that one layer's scale is not all layers'
    order = np.stack([RNG.permutation(HEADS) for _ in range(LAYERS)])
    figure = figures.attention_grid(maps, (1, 2), order=order)
    axes = shown(figure)
    assert len(axes) == LAYERS * HEADS
    assert {(ax.images[0].norm.vmin, ax.images[0].norm.vmax) for ax in axes} == {(0, maps.max())}, "one scale"
    for place, ax in enumerate(axes):
        layer, head = place // HEADS, order[place // HEADS][place % HEADS]
        np.testing.assert_array_equal(ax.images[0].get_array(), maps[layer, head])
        assert [t.get_text() for t in ax.texts] == [str(head + 1)]
        assert to_hex(ax.collections[0].get_facecolor()[0]) == figures.head_colours(HEADS)[head].lower()
        (query,) = ax.patches
        assert query.get_bbox().bounds == (1.5, 0.5, 1, 1)
        assert ax.get_ylim()[0] > ax.get_ylim()[1], "rows point down"
    (bar,) = [ax for ax in figure.axes if not ax.images]
    assert "probability" in bar.get_xlabel()
    ticks = [t.get_text() for t in bar.get_xticklabels()]
    assert ticks[0] == "0" and ticks[-1] == f"{maps.max():.2g}" and 3 <= len(ticks) <= 8
    assert [t.get_text() for t in figure.texts] == ["Layer 1", "Layer 2", "Layer 3"]


def test_maps_are_drawn_in_proportion():
    figure = figures.attention_grid(some_maps(height=4, width=12))
    box = shown(figure)[0].get_position()
    assert box.height * figure.get_figheight() / (box.width * figure.get_figwidth()) == pytest.approx(4 / 12)


def test_outside_the_image_is_hatched_and_missing_heads_are_left_out():
    maps = some_maps()
    maps[..., :2, :], maps[1, 4:] = np.nan, np.nan
    axes = shown(figures.attention_grid(maps))
    assert len(axes) == 2 * HEADS + 4
    assert axes[0].images[0].get_array().mask[:2].all() and axes[0].patch.get_hatch()


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (6, 1), (1, 16), (6, 16)])
def test_grids_of_other_sizes(layers, heads):
    figure = figures.attention_grid(some_maps(layers, heads))
    assert len(shown(figure)) == layers * heads
    for ax in figure.axes:
        box = ax.get_position()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 1 and box.y1 <= 1


def test_maps_refuse_what_they_cannot_show():
    with pytest.raises(ValueError, match="query = .5, 0. is no pixel of maps of 5 x 7"):
        figures.attention_grid(some_maps(), (5, 0))
    with pytest.raises(ValueError, match="order must hold the heads 0 .. 8"):
        figures.attention_grid(some_maps(), order=np.zeros((LAYERS, HEADS), int))
    with pytest.raises(ValueError, match="maps has shape"):
        figures.attention_grid(some_maps()[0])
    with pytest.raises(ValueError, match="2 titles were given for 3"):
        figures.attention_grid(some_maps(), titles=["a", "b"])


@pytest.mark.parametrize("shape", [(10, 14, 3), (10, 14, 1), (10, 14)])
def test_attention_on_image(shape):
    image = (255 * RNG.random(shape)).astype(np.uint8)
    figure = figures.attention_on_image(image, (1, 2), some_maps(), caption="Ship")
    picture, *rest = shown(figure)
    np.testing.assert_allclose(np.squeeze(picture.images[0].get_array()), np.squeeze(image) / 255)
    (query,) = picture.patches  # a pixel of the grid is 2 x 2 of the image's
    assert query.get_bbox().bounds == (3.5, 1.5, 2, 2)
    assert picture.get_xlabel() == "Ship\nquery at row 1, column 2" and len(rest) == LAYERS * HEADS


def test_atlas_has_a_page_a_layer():
    maps = some_maps()
    maps[2, 7:] = np.nan
    pages = figures.atlas(maps, (0, 0), {"centre": CENTRES, "reach": np.full((LAYERS, HEADS), 1.26), "other": 3})
    assert [len(shown(page)) for page in pages] == [9, 9, 7]
    assert [page.texts[0].get_text() for page in pages] == ["Layer 1", "Layer 2", "Layer 3"]
    numbers = shown(pages[1])[3].texts[1].get_text()
    row, column = CENTRES[1, 3]
    assert numbers == f"centre ({row:+.1f}, {column:+.1f})\nreach 1.3 px".replace("-", "−")
    assert len({ax.images[0].norm.vmax for page in pages for ax in shown(page)}) == 1


# --- layers, theory -----------------------------------------------------------------------------------------------


def test_reach_over_training():
    reach = {"SA quadratic": np.ones((4, 3)), "SA learned": 2 * np.ones((6, 2))}
    figure = figures.reach_over_training(reach, {"SA learned": [0, 2, 4, 6, 8, 10]})
    quadratic, learned = panels(figure)
    assert len(quadratic.lines) == 3 and len(learned.lines) == 2
    np.testing.assert_array_equal(learned.lines[0].get_xdata(), [0, 2, 4, 6, 8, 10])
    assert quadratic.get_ylim() == learned.get_ylim() == (0, 2.1)
    assert [a.get_color() for a in quadratic.lines[:2]] == [a.get_color() for a in learned.lines]


def test_kernel_closeness():
    figure = figures.kernel_closeness({"SA quadratic": [[0.1, 0.2, 0.3, 1]]}, uniform=[0.01, 0.1, 0.2, 0.4])
    (ax,) = panels(figure)
    solid = [line for line in ax.lines if line.get_marker() == "o"]
    np.testing.assert_allclose([line.get_ydata()[0] for line in solid], [10, 20, 30, 100])
    said = [t.get_text() for t in figure.legends[0].get_texts()]  # columns first: two rows of at most three
    assert said == ["1 × 1", "7 × 7", "3 × 3", "uniform attention", "5 × 5"]


def test_content_share():
    shares = np.full((LAYERS, 16), 0.25)
    shares[1, 3], shares[2] = -0.5, np.nan
    figure = figures.content_share(shares)
    ax = figure.axes[0]
    assert ax.get_ylim()[0] < -50 and ax.get_ylim()[1] == 100
    means = [line.get_ydata()[0] for line in ax.lines if line.get_color() == "black"]
    np.testing.assert_allclose(means, [25, 25 - 75 / 16])


def test_hardening():
    figure = figures.hardening(
        [1, 10, 104], some_maps(1, 3, 5, 5)[0], [0.5, 1e-4, 0], ([1, 10, 100], [0.5, 1e-4, 1e-40])
    )
    assert [ax.get_title() for ax in shown(figure)] == ["α = 1", "α = 10", "α = 104"]
    ax = next(ax for ax in figure.axes if ax.get_xlabel())
    curve, measured, zero = ax.lines
    np.testing.assert_array_equal(measured.get_ydata(), [0.5, 1e-4])
    assert zero.get_ydata() == ax.get_ylim()[0] and np.isnan(curve.get_ydata()[2])
    with pytest.raises(ValueError, match="do not match"):
        figures.hardening([1], some_maps(1, 3)[0], [0.5])


def test_separability_timing():
    dense = np.array([[1, 2, 3], [40, 40, 40], [np.nan] * 3])
    figure = figures.separability_timing([8, 16, 32], dense, [[1, 1, 1], [4, 4, 4], [9, 9, 9]])
    ax = figure.axes[0]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert [t.get_text() for t in ax.texts] == ["2×", "10×"]
    assert [container.get_label() for container in ax.containers] == ["dense", "separable"]


# --- pixels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian_heads", "attention_grid", "centre_paths"])
def test_baselines(name, tmp_path):
    """The picture is that of the baseline, but for what another version of matplotlib or FreeType may change."""
    if name == "attention_grid":
        maps = some_maps(2, 4)
        maps[:, 0, :2] = np.nan
        figure = figures.attention_grid(maps, (2, 2), order=[[3, 2, 1, 0], [0, 1, 2, 3]])
    else:
        c = np.array([(r, k) for r in (-1, 0, 1) for k in (-1, 0, 1)], float) * np.array([1, 2])[:, None, None]
        precision = np.array([[2.0, 0.5], [0.5, 1.0]]) * np.ones((2, 9, 1, 1))
        history = c * np.array([3.0, 2.0, 1.0])[:, None, None, None]
        figure = figures.gaussian_heads(c, precision) if name == "gaussian_heads" else figures.centre_paths(history)
    _, file = figures.save(figure, tmp_path / name)
    baseline = BASELINES / f"{name}.png"
    with Image.open(file) as image:
        image = image.convert("RGB")
    image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    if os.environ.get("ATTNCONV_NEW_BASELINES") == "1":
        BASELINES.mkdir(exist_ok=True)
        image.save(baseline, optimize=True)
    with Image.open(baseline) as expected:
        expected = expected.convert("RGB")
    assert image.size == expected.size
    difference = np.abs(np.asarray(image, float) - np.asarray(expected, float)) / 255
    assert difference.mean() < 0.01 and (difference.max(-1) > 0.25).mean() < 0.02
