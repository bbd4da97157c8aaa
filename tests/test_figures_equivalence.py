"""Figures of notebooks 01 and 07: their structure, without looking at pixels."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from attnconv import figures
from attnconv.equivalence import tap_shifts

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 12, 10))
TAPS = np.eye(9).reshape(9, 3, 3)
COSTS = {"Parameters": (100, 127), "Time": (0.5, 5.0)}
TEXTS = {"Parameters": ("100", "127"), "Time": ("500 ms", "5 s")}
OUTSIDE = RNG.random((2, 3, 4))
OUTSIDE[1, :, 3] = np.nan
LOST, ERROR = RNG.random((2, 2, 3))

DRAWN = {
    "signed_images": lambda: figures.signed_images(IMAGES[:2], ["In", "a", "b"], photo=abs(IMAGES[2]), query=(3, 4)),
    "sum_of_heads": lambda: figures.sum_of_heads(TAPS, np.arange(9) - 4.0, RNG.normal(size=(9, 12, 10))),
    "kernel_grids": lambda: figures.kernel_grids(
        {"3": (tap_shifts((3, 3)), (1, 1)), "s": (tap_shifts((2, 2)), (2, 2))}
    ),
    "rank_curves": lambda: figures.rank_curves({"4 to 2": ([1, 2, 3], [0.5, 1e-7, 0], [0.7, 0, 0])}),
    "agreement": lambda: figures.agreement(IMAGES[0], IMAGES[0]),
    "cost_ratios": lambda: figures.cost_ratios(COSTS, TEXTS),
    "fine_tuning": lambda: figures.fine_tuning([3.0, 2.0, 1.0], {"softened": 3.5, "the CNN": 0.5}),
    "kernel_reading": lambda: figures.kernel_reading((3, 5, 7), OUTSIDE, LOST, ERROR, 2 * ERROR),
}


@pytest.mark.parametrize("name", DRAWN)
def test_figures_fit_a_journal_and_stay_out_of_pyplot(name):
    before = plt.get_fignums()
    figure = DRAWN[name]()
    figure.draw_without_rendering()
    assert plt.get_fignums() == before
    assert 3.2 < figure.get_size_inches()[0] <= figures.DOUBLE
    texts = [text for text in figure.findobj(plt.Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts if not text.get_text().startswith("$\\mathdefault")) >= 6.5


def test_signed_images_share_a_scale_that_is_white_at_zero():
    figure = DRAWN["signed_images"]()
    photo, *signed = [ax.images[0] for ax in figure.axes[:3]]
    limits = {image.get_clim() for image in signed}
    assert limits == {(-abs(IMAGES[:2]).max(), abs(IMAGES[:2]).max())}
    np.testing.assert_allclose(signed[0].cmap(signed[0].norm(0.0)), 1, atol=0.01)
    assert photo.get_clim() == (0, 1)
    frames = [patch.get_bbox().bounds for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert frames == [(2.5, 1.5, 3, 3), (3.5, 2.5, 1, 1)], "the nine pixels around row 3, column 4, and itself"
    assert figures.signed_images([np.zeros((4, 4))], ["nothing"]).axes[0].images[0].get_clim() == (-1, 1)
    with pytest.raises(ValueError, match="3 titles"):
        figures.signed_images(IMAGES[:2], ["a", "b", "c"])


def test_sum_of_heads_ends_in_the_sum():
    parts = RNG.normal(size=(9, 12, 10))
    figure = figures.sum_of_heads(TAPS, np.arange(9) - 4.0, parts)
    panels = [ax for ax in figure.axes if ax.images]
    assert len(panels) == 27
    np.testing.assert_allclose(panels[26].images[0].get_array(), parts.sum(0))
    np.testing.assert_allclose(panels[17].images[0].get_array(), parts[8])
    assert [panel.get_xlabel() for panel in panels[3:6]] == ["× −1", "× 0", "× +1"]
    with pytest.raises(ValueError, match="9 maps, 8 weights"):
        figures.sum_of_heads(TAPS, np.ones(8), parts)


def test_kernel_grids_show_heads_and_the_queries_that_a_stride_leaves():
    figure = figures.kernel_grids({"all": (tap_shifts((3, 3)), (1, 1)), "some": (tap_shifts((2, 2)), (2, 3))}, 2.5)
    dots = [sorted(tuple(c.get_offsets()[0][::-1]) for c in ax.collections) for ax in figure.axes]
    assert dots == [sorted(map(tuple, tap_shifts(k).tolist())) for k in ((3, 3), (2, 2))]
    others = [[patch.get_bbox().bounds for patch in ax.patches if patch.get_label() != "query"] for ax in figure.axes]
    assert len(others[0]) == 7 * 7 - 1
    assert all((x + 0.5) % 3 == 0 and (y + 0.5) % 2 == 0 for x, y, _, _ in others[1])
    with pytest.raises(ValueError, match="empty"):
        figures.kernel_grids({})


def test_rank_curves_take_rounding_for_zero():
    ax = DRAWN["rank_curves"]().axes[0]
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [50, 0, 0])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["4 to 2", "first $D_h$ channels"]


def test_agreement_counts_all_logits_also_those_that_are_equal():
    given = IMAGES[0].copy()
    given[0, 0] += 1e-3
    for other in (IMAGES[0], given):
        left, right = figures.agreement(IMAGES[0], other).axes
        assert len(left.lines[1].get_xdata()) == IMAGES[0].size
        assert sum(bar.get_height() for bar in right.patches) == pytest.approx(100)


def test_cost_ratios_are_attention_over_cnn():
    ax = DRAWN["cost_ratios"]().axes[0]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), [1.27, 10])
    assert [text.get_text() for text in ax.texts] == ["1.27×   (100 → 127)", "10×   (500 ms → 5 s)"]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(COSTS)
    cheaper = figures.cost_ratios({"Time": (2.0, 1.0)}, {"Time": ("2 s", "1 s")}).axes[0]
    assert cheaper.get_xlim()[0] < 0.5 < 1 < cheaper.get_xlim()[1]


def test_fine_tuning_starts_at_zero_loss_and_takes_few_steps():
    ax = DRAWN["fine_tuning"]().axes[0]
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 3.5
    assert len(figures.fine_tuning([1.0], {}).axes[0].lines) == 2


def test_kernel_reading_draws_errors_below_bounds():
    heads, output, error = DRAWN["kernel_reading"]().axes
    drawn = np.concatenate([c.get_offsets().filled(np.nan) for c in heads.collections if hasattr(c, "get_sizes")])
    assert np.isfinite(drawn).all(1).sum() == np.isfinite(OUTSIDE).sum()
    assert sorted(bar.get_height() for bar in output.patches) == pytest.approx(sorted(100 * LOST.ravel()))
    measured, bound = error.lines[0].get_ydata(), error.lines[1].get_ydata()
    np.testing.assert_allclose(bound, 2 * measured)
    with pytest.raises(ValueError, match="layers, sizes, heads"):
        figures.kernel_reading((3,), LOST, LOST, ERROR, ERROR)
