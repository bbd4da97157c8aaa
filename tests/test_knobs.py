"""A figure with knobs: what it draws is what the figure function draws; those of the notebooks."""

from __future__ import annotations

import ast
import io
from typing import Any

import ipywidgets
import nbformat
import numpy as np
import pytest
from PIL import Image

from companion import figures
from companion.explorer import Knobs
from companion.workspace import REPOSITORY

CELLS = {
    "02": ("nb02-03", "nb02-05", "nb02-constant", "nb02-07", "nb02-turn"),
}
"""What the knobs of each notebook need, and last the cell that shows them."""


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


def test_a_knob_changes_the_picture_to_what_the_figure_function_draws():
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


# --- in the notebooks
# -----------------------------------------------------------------------------------------------


def code_of(number: str, profile: str, data: str = "", output: str = "") -> list[str]:
    """The cells that show the knobs of a notebook, and what they need."""
    [path] = (REPOSITORY / "notebooks").glob(f"{number}_*.ipynb")
    sources = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    given = f"profile, data, output = {profile!r}, {data!r}, {output!r}"
    return [given, *(sources[name] for name in CELLS[number])]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Knobs]:
    """The knobs of each notebook, in the smoke profile."""
    found = {}
    output = str(tmp_path_factory.mktemp("smoke"))
    for number in CELLS:
        names: dict[str, Any] = {}
        sources = code_of(number, "smoke", output=output)
        *before, last = ast.parse("\n".join(sources)).body
        exec(compile(ast.Module(before, []), number, "exec"), names)
        found[number] = eval(compile(ast.Expression(last.value), number, "eval"), names)
    return found


@pytest.mark.parametrize("number", CELLS)
def test_every_knob_of_the_notebooks_changes_the_picture(shown, number: str):
    one = shown[number]
    for name, knob in one.knobs.items():
        before, start = one.image.value, knob.value
        values = list(knob.options) if hasattr(knob, "options") else [knob.min, knob.max]
        values = [value[1] if isinstance(value, tuple) else value for value in values]
        knob.value = next(value for value in values if value != start)
        assert (pixels(one.image.value) != pixels(before)).any(), name
        knob.value = start
        assert one.image.value == before
