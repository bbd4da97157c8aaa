"""Widgets that are pictures too, in a notebook without its kernel, and pages of their own."""

import base64
import io
import os
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets
from IPython.display import display
from matplotlib.figure import Figure

from attnconv.training.runs import write

# In JupyterLab a widget that lives hides the picture after it; one that does not is hidden itself.
_CELL = ".jp-OutputArea-child"
_LIVES = ":has(.attnconv-explorer, .attnconv-playground, .attnconv-knobs)"
_STYLE = (
    f"<style>{_CELL}{_LIVES} + {_CELL}:has(> * .attnconv-last), "
    f"{_CELL}:has(+ {_CELL} .attnconv-last):not({_LIVES}) {{ display: none }}</style>"
)


def synced(default: Any) -> traitlets.Any:
    """A trait that the browser has too."""
    return traitlets.Any(default).tag(sync=True)


class Pictured(ipywidgets.DOMWidget):
    """A widget that is also a picture, ``figure()``."""

    def figure(self) -> Figure:
        raise NotImplementedError

    def png(self) -> bytes:
        """The figure as a PNG."""
        file = io.BytesIO()
        self.figure().savefig(file, format="png", dpi=110)
        return file.getvalue()

    def _ipython_display_(self) -> None:
        """Show itself, then its picture, which is hidden while it lives.

        So a saved notebook that is opened without its kernel shows the picture. In one output with
        the widget the picture would be of no use: JupyterLab takes the widget, and then says that
        it has no model."""
        text = f"{type(self).__name__}: run this cell to use it."
        picture = base64.b64encode(self.png()).decode()
        if os.environ.get("ATTNCONV_STATIC") == "1":  # as in batch runs
            display({"image/png": picture, "text/plain": text}, raw=True)
            return
        live = self._repr_mimebundle_()
        bundle, notes = live if isinstance(live, tuple) else (live, {})
        display({**bundle, "text/plain": text}, metadata=notes, raw=True)
        image = f"<img alt='{text}' src='data:image/png;base64,{picture}'>"
        kept = f"<div class='attnconv-last'>{_STYLE}{image}</div>"
        display({"text/html": kept, "text/plain": text}, raw=True)


class Widget(Pictured, anywidget.AnyWidget):
    """A widget that is also a picture, ``figure()``, and an HTML page of its own, ``page()``."""

    def page(self) -> str:
        raise NotImplementedError

    def export_html(self, path: str | Path) -> Path:
        """Write `page` to a file and return its path."""
        path = Path(path)
        write(path, self.page())
        return path
