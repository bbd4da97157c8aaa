"""A figure with knobs: what it draws is what the figure function draws; in a notebook, and in a real JupyterLab."""

from __future__ import annotations

import base64
import io
import time
from pathlib import Path

import ipywidgets
import nbformat
import numpy as np
import pytest
from PIL import Image

from attnconv import figures
from attnconv.analysis import heads
from attnconv.batch.workspace import REPOSITORY, open_workspace
from attnconv.explorer import Knobs, assets
from browser import jupyterlab, needs_browser, playwright, run_all

NOTEBOOKS = REPOSITORY / "notebooks"
CELLS = {"02": "nb02-turn", "04": "nb04-knob", "05": "nb05-knob", "10": "nb10-knob"}


def draw(shift, name="a"):
    maps = np.zeros((1, 1, 3, 3))
    maps[0, 0, 1, shift] = 1
    return figures.attention_grid(maps, titles=[name])


def knobs(**options):
    return Knobs(draw, shift=ipywidgets.IntSlider(1, min=0, max=2), name=ipywidgets.Dropdown(options="ab"), **options)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_a_knob_changes_the_picture_to_what_the_figure_function_draws() -> None:
    shown = knobs()
    before = shown.image.value
    shown.knobs["shift"].value = 2
    assert (pixels(before) != pixels(shown.image.value)).any()
    assert [knob.description for knob in shown.knobs.values()] == ["shift", "name"]
    file = io.BytesIO()
    draw(2, "a").savefig(file, format="png", dpi=96)
    np.testing.assert_array_equal(pixels(shown.image.value), pixels(file.getvalue()))
    shown.knobs["shift"].value = 1
    assert shown.image.value == before


def test_panels_stay_where_they_are_though_names_grow() -> None:
    def lines(size):
        return figures.lines({"": {"a": ([0, 1], [0, 10**size])}}, "x" * (size + 1), "y")

    shown = Knobs(lines, size=ipywidgets.IntSlider(0, max=9))
    left = lambda: (pixels(shown.image.value).min(2) < 90).sum(0).argmax()  # noqa: E731  # the column of the axis
    first = left()
    shown.knobs["size"].value = 6
    assert left() == first


def test_pictures_drawn_ahead_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def counted(place):
        drawn.append(place)
        return draw(place)

    def make():
        drawn.clear()
        return Knobs(counted, ahead=True, place=ipywidgets.SelectionSlider(options=range(3), value=2))

    shown = make()
    assert sorted(drawn) == [0, 1, 2]
    shown.knobs["place"].value = 0
    assert len(drawn) == 3
    monkeypatch.setenv("ATTNCONV_STATIC", "1")
    make()
    assert drawn == [2]


def test_it_is_a_picture_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict] = []
    monkeypatch.setattr(assets, "display", lambda bundle, **_: shown.append(bundle))
    monkeypatch.setenv("ATTNCONV_STATIC", "1")
    knobs()._ipython_display_()
    [bundle] = shown
    assert set(bundle) == {"image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    monkeypatch.delenv("ATTNCONV_STATIC")
    knobs()._ipython_display_()
    _, live, picture = shown
    assert "application/vnd.jupyter.widget-view+json" in live and "attnconv-last" in picture["text/html"]


def test_agreement_of_one_query_is_a_part_of_that_of_all() -> None:
    random = np.random.default_rng(0)
    p, others = random.dirichlet(np.ones(20), (2, 4, 5)).reshape(2, 4, 5, 4, 5)
    p, others = p[None], others[None]  # one head
    found = [heads.in_common(p[:, *query], query, others[:, 2, 2], (2, 2)) for query in np.ndindex(4, 5)]
    del found[2 * 5 + 2]
    common, weight = np.array(found)[..., 0].T
    expected = (common * weight).sum() / weight.sum()
    np.testing.assert_allclose(heads.translation_consistency(p, others), expected)
