"""A figure with knobs: what it draws is what the figure function draws; in a notebook, and in a
real JupyterLab.
"""

from __future__ import annotations

import ast
import base64
import io
import itertools
from typing import Any

import ipywidgets
import nbformat
import numpy as np
import pytest
from PIL import Image

from attnconv import heads
from browser import needs_browser, notebook_of, playwright, run_all
from companion import figures
from companion.explorer import Knobs
from companion.workspace import REPOSITORY

CELLS = {
    "02": ("nb02-03", "nb02-05", "nb02-constant", "nb02-07", "nb02-turn"),
}
"""What the knobs of each notebook need, and last the cell that shows them."""
MOVES = {
    "02": ("alpha", "ArrowRight", 0.8),
}
"""For each: a knob, the key that is pressed on it, its new value."""


def draw(shift, name="a"):
    maps = np.zeros((1, 1, 3, 3))
    maps[0, 0, 1, shift] = 1
    return figures.attention_grid(maps, titles=[name])


def knobs(**options):
    return Knobs(
        draw,
        shift=ipywidgets.IntSlider(1, min=0, max=2),
        name=ipywidgets.Dropdown(options="ab"),
        **options,
    )


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


def test_pictures_drawn_ahead_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def counted(place):
        drawn.append(place)
        return draw(place)

    def make():
        drawn.clear()
        return Knobs(
            counted, ahead=True, place=ipywidgets.SelectionSlider(options=range(3), value=2)
        )

    shown = make()
    assert sorted(drawn) == [0, 1, 2]
    shown.knobs["place"].value = 0
    assert len(drawn) == 3
    monkeypatch.setenv("ATTNCONV_STATIC", "1")
    make()
    assert drawn == [2]


def test_agreement_of_one_query_is_a_part_of_that_of_all() -> None:
    p, others = (
        np.random.default_rng(0).dirichlet(np.ones(20), (2, 1, 20)).reshape(2, 1, *[4, 5] * 2)
    )
    middle = others[:, 2, 2], (2, 2)
    queries = [query for query in np.ndindex(4, 5) if query != (2, 2)]
    found = [heads.in_common(p[:, *query], query, *middle) for query in queries]
    common, weight = np.array(found)[..., 0].T
    expected = (common * weight).sum() / weight.sum()
    np.testing.assert_allclose(heads.translation_consistency(p, others), expected)


# --- in the notebooks
# -----------------------------------------------------------------------------------------------


def code_of(number: str, profile: str, data: str = "", output: str = "") -> list[str]:
    """The cells that show the knobs of a notebook, and what they need."""
    [path] = (REPOSITORY / "notebooks").glob(f"{number}_*.ipynb")
    sources = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    given = f"profile, data, output = {profile!r}, {data!r}, {output!r}"
    return [given, *(sources[name] for name in CELLS[number])]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The cells that show the knobs of each notebook, and what they need; in the smoke profile."""
    output = str(tmp_path_factory.mktemp("smoke"))
    return {number: code_of(number, "smoke", output=output) for number in CELLS}


@pytest.fixture(scope="module")
def shown(cells: dict[str, list[str]]) -> dict[str, Knobs]:
    """The knobs of each notebook."""
    found = {}
    for number, sources in cells.items():
        names: dict[str, Any] = {}
        *before, last = ast.parse("\n".join(sources)).body
        exec(compile(ast.Module(before, []), number, "exec"), names)
        found[number] = eval(compile(ast.Expression(last.value), number, "eval"), names)
        found[number].names = names
    return found


@pytest.fixture
def one(shown: dict[str, Knobs], request: pytest.FixtureRequest) -> Any:
    """Knobs as they begin, also after the test."""
    widget = shown[request.param]
    start = {name: knob.value for name, knob in widget.knobs.items()}
    yield widget
    for name, value in start.items():
        widget.knobs[name].value = value


@pytest.mark.parametrize("one", CELLS, indirect=True)
def test_every_knob_of_the_notebooks_changes_the_picture(one: Knobs) -> None:
    for name, knob in one.knobs.items():
        before, start = one.image.value, knob.value
        values = list(knob.options) if hasattr(knob, "options") else [knob.min, knob.max]
        values = [value[1] if isinstance(value, tuple) else value for value in values]
        knob.value = next(value for value in values if value != start)
        assert (pixels(one.image.value) != pixels(before)).any(), name
        knob.value = start
        assert one.image.value == before


@pytest.mark.parametrize("one", ["02"], indirect=True)
def test_02_says_what_misses_the_pixel_on_the_centre(one: Knobs) -> None:
    """In the middle it is the closed form, but for what the border cuts; where there is no such
    pixel, all.
    """
    for name, value in {"alpha": 2.0, "query_row": 10, "query_column": 0}.items():
        one.knobs[name].value = value
    said = [text.get_text().split() for text in one.figure().axes[0].texts[:4]]
    expected = f"{float(one.names['missed_mass'](one.names['torch'].tensor(2.0))):.0%}"
    assert [words[-2] for words in said] == [expected, "100%", "100%", "100%"]
    assert said[0][3] == f"{100 - int(expected[:-1])}%" and said[2][3:] == said[3][3:]


@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_browser)])
def test_knobs_in_a_real_jupyterlab(browser, lab, cells, shown, mark: None) -> None:
    """A key on a knob: its value is said, and the picture is the one that Python draws for it."""
    page = browser.new_page(viewport=dict(width=1400, height=1400))
    page.goto(lab("knobs", notebook_of(*itertools.chain(*cells.values()))))
    run_all(page)
    page.locator(".attnconv-knobs").nth(len(cells) - 1).wait_for(timeout=180_000)
    for place, (number, (name, key, value)) in enumerate(MOVES.items()):
        widget, root = shown[number], page.locator(".attnconv-knobs").nth(place)
        picture, start = root.locator("img"), widget.knobs[name].value
        assert (seen(picture) == pixels(widget.image.value)).all(), number
        knob = root.locator(".widget-inline-hbox", has=page.get_by_text(name, exact=True))
        before = picture.get_attribute("src")
        knob.locator("[role=slider]").press(key)
        page.wait_for_function(
            "([img, src]) => img.src !== src", arg=[picture.element_handle(), before]
        )
        assert knob.locator(".widget-readout").text_content() == f"{value:.2f}"
        widget.knobs[name].value = value
        assert (seen(picture) == pixels(widget.image.value)).all(), number
        widget.knobs[name].value = start
    assert not any(
        picture.is_visible() for picture in page.locator(".attnconv-last").all()
    )  # they live
    page.close()


def seen(picture: playwright.Locator) -> np.ndarray:
    """The pixels of a picture in the page."""
    text = picture.evaluate("""async (img) => {
        await img.decode();
        const bytes = new Uint8Array(await (await fetch(img.src)).arrayBuffer());
        return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    }""")
    return pixels(base64.b64decode(text))
