"""The files of front/ as widgets and pages take them: one script, one style sheet, one page."""

import base64
import html
import re
import string
from pathlib import Path

from companion.pictures import of_256_colours

FRONT = Path(__file__).with_name("front")
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


def _text(name: str) -> str:
    return (FRONT / name).read_text("utf-8")


def script(name: str) -> str:
    """A module of front/ as one text, each import replaced by its module: anywidget and a page
    take a single file.
    """
    return _with_imports(name, set())


def _with_imports(name: str, there: set[str]) -> str:
    if name in there:
        return ""
    there.add(name)
    return _IMPORT.sub(lambda found: _with_imports(found[1], there), _text(name))


def style(name: str) -> str:
    """A style sheet of front/ after the colours that all share."""
    shown = _text("playground.css") if name == "story.css" else ""
    return _text("theme.css") + shown + _text(name)


def page(title: str, name: str, data: str, picture: bytes, head: str = "") -> str:
    """One HTML file that needs no network: ``name``.js, its style, its data, and a PNG for readers
    without scripts.

    ``head`` is HTML that stands above all."""
    return string.Template(_text("page.html")).substitute(
        name=name,
        open=f"open{name.title()}",
        title=html.escape(title),
        style=style(f"{name}.css"),
        head=head,
        picture=base64.b64encode(of_256_colours(picture)).decode(),
        data=data,
        code=script(f"{name}.js").replace("</script", "<\\/script"),
    )


def worker() -> str:
    """The explorer's Web Worker as a classic script: a page that was opened as a file may load no
    module from a text.
    """
    return re.sub("^export ", "", script("worker.js"), flags=re.MULTILINE)
