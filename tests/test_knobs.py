"""Sliders where a page is in front of the kernel, and else one picture."""

import pytest

from attnconv import knobs


@pytest.fixture
def shown(monkeypatch):
    """What a call displays."""
    things = []
    monkeypatch.setattr(knobs, "display", things.append)
    return things


def square(side=3.0):
    return f"a square of {side}"


@pytest.mark.parametrize(
    "environment, live",
    [
        ({}, False),
        ({"JPY_SESSION_NAME": "01.ipynb"}, True),
        ({"JPY_SESSION_NAME": "01.ipynb", "ATTNCONV_STATIC": "1"}, False),
        ({"VSCODE_PID": "7"}, True),
    ],
)
def test_a_notebook_is_live_where_a_page_is_in_front_of_it(environment, live):
    assert knobs.is_live(environment) is live


def test_an_executed_notebook_shows_the_picture_of_the_defaults(shown, monkeypatch):
    monkeypatch.setattr(knobs, "is_live", lambda: False)
    knobs.turn(square, side=(1.0, 5.0, 0.5))
    assert shown == ["a square of 3.0"]


def test_a_live_notebook_shows_a_slider_for_each_argument(shown, monkeypatch):
    monkeypatch.setattr(knobs, "is_live", lambda: True)
    knobs.turn(square, side=(1.0, 5.0, 0.5))
    [sliders] = shown
    slider, picture = sliders.children
    assert (slider.min, slider.max, slider.step, slider.value) == (1.0, 5.0, 0.5, 3.0)
    assert not slider.continuous_update
    slider.value = 4.5
    assert sliders.result == "a square of 4.5"
