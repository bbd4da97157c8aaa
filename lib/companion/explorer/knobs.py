"""A figure with knobs: sliders and lists in a notebook, and what a function of
`companion.figures` draws of them.
"""

import io
from collections.abc import Callable
from typing import Any

import ipywidgets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from companion.explorer.widgets import Pictured
from companion.figures.style import settle


class Knobs(Pictured, ipywidgets.VBox):
    """A function that draws a figure, and a control of ipywidgets for each of its arguments, by
    name.
    """

    def __init__(self, draw: Callable[..., Figure], **knobs: Any):
        self._draw, self.knobs = draw, knobs
        self._first: dict[int, Figure] = {}  # by its number of panels
        self.image = ipywidgets.Image(
            format="png", layout=ipywidgets.Layout(align_self="flex-start")
        )  # not stretched
        for name, knob in knobs.items():
            knob.description, knob.style.description_width = name.replace("_", " "), "initial"
            knob.observe(lambda _: self._show(), "value")
        row = ipywidgets.Box([*knobs.values()], layout=ipywidgets.Layout(flex_flow="row wrap"))
        super().__init__([row, self.image], _dom_classes=["attnconv-knobs"])
        self._show()

    def figure(self) -> Figure:
        """What the knobs say, as a figure."""
        return self._draw(**{name: knob.value for name, knob in self.knobs.items()})

    def _show(self) -> None:
        """Draw it. Panels stay where the first figure with as many has them, which saves most of
        the time.
        """
        figure, file = self.figure(), io.BytesIO()
        settle(figure, self._first.setdefault(len(figure.axes), figure))
        figure.set_dpi(96)
        FigureCanvasAgg(figure).print_png(file, pil_kwargs={"compress_level": 1})
        self.image.value = file.getvalue()
