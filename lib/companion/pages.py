"""The site of an output folder: its first page, what was found, and the executed notebooks as
pages.

All of it opens without a network: pictures are those in ``figures/``, or else inside, and formulas
are MathML. The template has the words, this file the numbers."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import nbformat
from latex2mathml.converter import convert as to_mathml
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from traitlets.config import Config

from companion.pictures import of_256_colours

if TYPE_CHECKING:
    from attnconv.training.runs import Run

FRONT = "00"  # number of the notebook that says what was found
# Pages beside these, and the links that lead there.
LINKS = {"playground": "Move the heads", "explorer": "Look into a trained network"}
# Forms of output that a page shows, the first that there is: a widget would need the network.
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
_HERE = Path(__file__).parent
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
_PAGE = _TEMPLATES.get_template("page.html.j2")  # of a notebook, and ``found.html``
_STEPS = _TEMPLATES.get_template("story.html.j2")


def title_of(path: Path) -> str:
    """A notebook's first line, its heading."""
    heading = nbformat.read(path, as_version=4).cells[0].source
    return heading.partition("\n")[0].removeprefix("# ")


def clean(copy: Path, pages: Mapping[str, str]) -> None:
    """Make of an executed notebook what is kept: one cell shows the parameters that were given,
    links lead to other copies, pictures have 256 colours, no progress bars are left, and nothing
    tells the time of day."""
    executed = nbformat.read(copy, as_version=4)
    given = executed.metadata["papermill"]["parameters"]
    for cell in [*executed.cells]:
        tags = cell.metadata.get("tags", [])
        if "parameters" in tags:
            cell.source = with_values(cell.source, given)
        if "injected-parameters" in tags:
            executed.cells.remove(cell)
    for part in (executed, *executed.cells):
        for name in ("papermill", "execution", "widgets"):
            part.metadata.pop(name, None)
    for cell in executed.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(
                r"(?<=\]\()(\d\d)_\w+(?=\.ipynb)",
                lambda link: pages.get(link[1], link[0]).removesuffix(".html"),
                cell.source,
            )
        for output in [*cell.get("outputs", ())]:
            data = output.get("data", {})
            if "application/vnd.jupyter.widget-view+json" in data:  # a progress bar
                cell.outputs.remove(output)
            if "image/png" in data:
                png = of_256_colours(b64decode(data["image/png"]))
                data["image/png"] = b64encode(png).decode()
    nbformat.write(executed, copy)


def with_values(source: str, given: Mapping[str, Any]) -> str:
    """A cell of default values, a line each, with those that were given in their place."""
    lines = []
    for line in source.splitlines():
        name, _, default = line.partition(" = ")
        if name in given:
            _, mark, comment = default.partition("  #")
            line = f"{name} = {json.dumps(given[name])}{mark}{comment}"
        lines.append(line)
    return "\n".join(lines)


class _WithMathML(IPythonRenderer):
    """Markdown whose formulas a browser shows by itself."""

    def inline_math(self, body: str, display: str = "inline") -> str:
        try:
            return to_mathml(body, xmlns="", display=display).replace(' xmlns=""', "")
        except Exception:  # of many kinds; what cannot be read as LaTeX stays as it was written
            return f"<code>{self.escape_html(body)}</code>"

    def block_math(self, body: str) -> str:
        return self.inline_math(body, display="block")


def export_html(notebook: Path, pages: Mapping[str, str]) -> None:
    """Write an executed notebook, ``<site>/notebooks/<name>.ipynb``, as a page beside it.
    ``pages``: the page of each notebook by its number, in reading order."""
    page = _PAGE.render(
        title=title_of(notebook),
        body=_body(notebook),
        number=notebook.name[:2],
        pages={one: "../found.html" if one == FRONT else page for one, page in pages.items()},
        links=LINKS,
    )
    notebook.with_suffix(".html").write_text(page, "utf-8")


def _body(notebook: Path, *, in_found: bool = False) -> Markup:
    """An executed notebook as HTML that asks the network for nothing; as a part of
    ``found.html`` without its code. Links to notebooks lead to their pages, others there."""
    exporter = HTMLExporter(
        template_name="basic",
        filters={"markdown2html": MarkdownWithMath(renderer=_WithMathML(escape=False)).render},
        config=Config({"NbConvertBase": {"display_data_priority": SHOWN}}),
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_input=in_found,
    )
    body, _ = exporter.from_filename(str(notebook))
    root = "" if in_found else "../"
    body = re.sub(r"<(pre|table)\b", r'<\1 tabindex="0"', body)  # what scrolls, also by keyboard
    body = re.sub(r"<th\b[^>]*>(\s|&nbsp;)*</th>", "<td></td>", body)  # an empty cell heads nothing
    body = re.sub(rf'href="(\.\./|{FRONT}_)[^"]*"', f'href="{root}found.html"', body)
    return Markup(re.sub(r'href="([^"/:]+)\.ipynb', rf'href="{root}notebooks/\1.html', body))


def write_page(output: Path, runs: Sequence[Run]) -> Path:
    """Write ``index.html``, the first page, into an output folder, and ``found.html``: notebook 00
    as it was executed there, then all files by notebook, and the trained runs. With them comes the
    style sheet of all pages."""
    from companion.explorer.story import networks, story

    sections: Any = defaultdict(lambda: defaultdict(list))
    for suffix in ("ipynb", "csv", "png", "gif"):
        for file in sorted(output.glob(f"*/[0-9][0-9][-_]*.{suffix}")):
            sections[file.name[:2]][file.parent.name].append(file)
    front = sections.pop(FRONT, {}).get("notebooks")
    links = {name: text for name, text in LINKS.items() if (output / f"{name}.html").is_file()}
    found = _PAGE.render(
        name=output.name,
        found=front and _body(front[0], in_found=True),
        sections=sorted(sections.items()),
        links=links,
        runs=runs,
        note_of=_note_of,
        title_of=title_of,
    )
    (output / "found.html").write_text(found, "utf-8")
    shown = networks(runs)
    stills = [file.stem for file in output.glob("figures/*.png")]
    steps = _STEPS.render(kinds=shown, links=links, stills=stills)
    page = output / "index.html"
    page.write_text(story(shown, steps), "utf-8")
    shutil.copy(_HERE / "page.css", output / "style.css")
    return page


def _note_of(picture: Path) -> dict[str, Any]:
    """A figure's caption and runs, as `Workspace.save_figure` noted them."""
    note = picture.with_suffix(".json")
    return json.loads(note.read_text()) if note.is_file() else {"caption": picture.stem}
