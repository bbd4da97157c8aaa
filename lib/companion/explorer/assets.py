"""The files of front/ as the widgets and the offline pages take them: one script, one style
sheet, one page.
"""

import base64
import html
import io
import os
import re
import string
from pathlib import Path

import anywidget
import ipywidgets
from IPython.display import display

from attnconv.training.runs import write
from companion.figures.style import of_256_colours

FRONT = Path(__file__).with_name("front")
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


def script(name: str, there: set[str] | None = None) -> str:
    """A module of front/ as one text, each import replaced by its module: anywidget and a page
    take a single file.
    """
    there = set() if there is None else there  # modules that need not come again
    if name in there:
        return ""
    there.add(name)
    return _IMPORT.sub(lambda found: script(found[1], there), (FRONT / name).read_text("utf-8"))


def style(name: str) -> str:
    """A style sheet of front/ after the colours that all share."""
    return (FRONT / "theme.css").read_text("utf-8") + (FRONT / name).read_text("utf-8")


def page(title: str, name: str, data: str, picture: bytes, worker: str = "", head: str = "") -> str:
    """One HTML file that needs no network: ``name``.js, its style, its data, and a PNG for readers
    without scripts.

    ``head`` is HTML that stands above all. ``worker`` is the module that the page starts as a Web
    Worker, from its
    text: as a classic script, since a page that was opened as a file may load no module from a
    text."""
    code, work = (
        script(file).replace("</script", "<\\/script") if file else ""
        for file in (f"{name}.js", worker)
    )
    work = re.sub("^export ", "", work, flags=re.MULTILINE)
    parts = dict(
        name=name,
        title=html.escape(title),
        style=style(f"{name}.css"),
        code=code,
        worker=work,
        data=data,
    )
    png = base64.b64encode(of_256_colours(picture)).decode()
    return string.Template((FRONT / "page.html").read_text("utf-8")).substitute(
        parts, head=head, picture=png
    )


_CHILD, _LIVES = (
    ".jp-OutputArea-child",
    ":has(.attnconv-explorer, .attnconv-playground, .attnconv-knobs)",
)
# in JupyterLab a widget that lives hides the picture after it; one that does not is hidden itself
_KEPT = (
    f"<style>{_CHILD}{_LIVES} + {_CHILD}:has(> * .attnconv-last), "
    f"{_CHILD}:has(+ {_CHILD} .attnconv-last):not({_LIVES}) {{ display: none }}</style>"
)


class Pictured(ipywidgets.DOMWidget):
    """A widget that is also a picture, ``figure()``."""

    @property
    def _png(self) -> bytes:
        file = io.BytesIO()
        self.figure().savefig(file, format="png", dpi=110)
        return file.getvalue()

    def _ipython_display_(self) -> None:
        """Show itself, then its picture, which is hidden while it lives.

        So a saved notebook that is opened without its kernel shows the picture. In one output with
        it the picture would
        be of no use: JupyterLab takes the widget, and then says that it has no model. With
        ``ATTNCONV_STATIC=1``, as in batch runs, only the picture."""
        picture, text = (
            base64.b64encode(self._png).decode(),
            f"{type(self).__name__}: run this cell to use it.",
        )
        if os.environ.get("ATTNCONV_STATIC") == "1":
            display({"image/png": picture, "text/plain": text}, raw=True)
            return
        live = self._repr_mimebundle_()
        bundle, notes = live if isinstance(live, tuple) else (live, {})
        display({**(bundle or {}), "text/plain": text}, metadata=notes, raw=True)
        kept = f"<div class='attnconv-last'>{_KEPT}<img alt='{text}' src='data:image/png;base64,{picture}'></div>"
        display({"text/html": kept, "text/plain": text}, raw=True)


class Widget(Pictured, anywidget.AnyWidget):
    """A widget that is also a picture, ``figure()``, and an HTML page of its own, ``page()``."""

    def export_html(self, path: str | Path) -> Path:
        """Write `page` to a file and return its path."""
        path = Path(path)
        write(path, self.page())
        return path
