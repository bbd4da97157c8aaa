"""A figure with knobs: what it draws is what the figure function draws; those of the notebooks."""

import ast
import io

import ipywidgets
import nbformat
import numpy as np
from PIL import Image

from companion import figures
from companion.explorer import Knobs
from companion.figures.style import settle
from companion.workspace import REPOSITORY

CELLS = ("nb02-03", "nb02-05", "nb02-constant", "nb02-07", "nb02-turn")
"""What the knobs of notebook 02 need, and last the cell that shows them."""


def draw(shift, titles):
    return figures.signed_images([np.eye(3)[[shift]]] * len(titles), titles)


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def test_a_knob_changes_the_picture_to_what_the_figure_function_draws():
    slider = ipywidgets.IntSlider(1, min=0, max=2)
    shown = Knobs(draw, shift=slider, titles=ipywidgets.Dropdown(options=["a", "ab"]))
    before = shown.image.value
    assert [knob.description for knob in shown.knobs.values()] == ["shift", "titles"]
    for titles in ("a", "ab"):  # of one panel, of two
        slider.value, shown.knobs["titles"].value = 2, titles
        assert shown.image.value != before
        file = io.BytesIO()
        figure = draw(2, titles)
        settle(figure)
        figure.savefig(file, format="png", dpi=96)
        np.testing.assert_array_equal(pixels(shown.image.value), pixels(file.getvalue()))
    shown.knobs["titles"].value, slider.value = "a", 1
    assert shown.image.value == before


def test_every_knob_of_the_notebook_changes_the_picture(tmp_path):
    [path] = (REPOSITORY / "notebooks").glob("02_*.ipynb")
    sources = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    names = dict(profile="smoke", data="", output=str(tmp_path))
    *before, last = ast.parse("\n".join(sources[name] for name in CELLS)).body
    exec(compile(ast.Module(before, []), "02", "exec"), names)
    one = eval(compile(ast.Expression(last.value), "02", "eval"), names)
    for name, knob in one.knobs.items():
        shown, start = one.image.value, knob.value
        values = list(knob.options) if hasattr(knob, "options") else [knob.min, knob.max]
        values = [value[1] if isinstance(value, tuple) else value for value in values]
        knob.value = next(value for value in values if value != start)
        assert (pixels(one.image.value) != pixels(shown)).any(), name
        knob.value = start
        assert one.image.value == shown
