"""The site of an output folder: its index, and the executed notebooks as pages, all from one
template.

All of it opens without a network: pictures are those in ``figures/``, or else inside, and formulas
are MathML. The template has the words, this file the numbers."""

from __future__ import annotations

import fnmatch
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jinja2
import nbformat
import numpy as np
from latex2mathml.converter import convert as to_mathml
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

if TYPE_CHECKING:
    from attnconv.training.runs import Run

FRONT = "00"  # number of the notebook that is the index
# Pages beside the index, and the buttons that lead there.
LINKS = {"playground": "Move the heads", "explorer": "Look into a trained network"}
IN_FULL = 0.01  # a layer may be swapped for this loss of accuracy
# Forms of output that a page shows, the first that there is: a widget would need the network.
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
# Files that the index lists, and the folders that they are in.
LISTED = {".ipynb": "notebooks", ".csv": "tables", ".png": "figures", ".gif": "figures"}
_HERE = Path(__file__).parent
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
_PAGE = _TEMPLATES.get_template("page.html.j2")  # of a notebook, if it has a ``body``; or the index


def title_of(path: Path) -> str:
    """A notebook's heading, or else its file's name."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return cell.source.partition("\n")[0][2:].strip()
    return path.stem


def clean(copy: Path, parameters: Mapping[str, Any], pages: Mapping[str, str]) -> None:
    """Make of an executed notebook what is kept: its first cell shows the parameters that were
    given, links lead to other copies, pictures have 256 colours, and nothing tells this machine's
    memory or the time of day."""
    executed = nbformat.read(copy, as_version=4)
    tags = [cell.metadata.get("tags", []) for cell in executed.cells]
    pairs = zip(executed.cells, tags, strict=True)
    executed.cells = [cell for cell, tag in pairs if "injected-parameters" not in tag]
    for part in (executed, *executed.cells):
        for name in ("papermill", "execution", "widgets"):
            part.metadata.pop(name, None)
    for cell in executed.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = with_values(cell.source, parameters)
        if cell.cell_type == "markdown":  # a notebook of several runs has no copy of its own name
            cell.source = re.sub(
                r"(?<=\]\()(\d\d)_\w+\.ipynb", lambda link: copy_of(link, pages), cell.source
            )
        for output in cell.get("outputs", ()):
            clean_output(output.get("data", {}))
    nbformat.write(executed, copy)


def copy_of(link: re.Match[str], pages: Mapping[str, str]) -> str:
    """The executed copy of the notebook that a link names; the same link where there is none."""
    page = pages.get(link[1], FRONT)
    return link[0] if FRONT in (page, link[1]) else page.replace(".html", ".ipynb")


def clean_output(data: dict[str, str]) -> None:
    """Take addresses in memory out of an output, and two thirds of its picture's bytes."""
    from companion.figures.style import of_256_colours  # imports Matplotlib, which takes a second

    if "text/plain" in data:
        data["text/plain"] = re.sub(r" at 0x[0-9a-f]+>", ">", data["text/plain"])
    if "image/png" in data:
        data["image/png"] = b64encode(of_256_colours(b64decode(data["image/png"]))).decode()


def with_values(source: str, parameters: Mapping[str, Any]) -> str:
    """A cell of default values with those that were given in their place."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        name, equals, default = line.partition(" = ")
        if equals and name in parameters:
            _, mark, comment = default.partition("  #")
            lines[number] = f"{name} = {json.dumps(parameters[name])}{mark}{comment}"
    return "\n".join(lines)


class _WithMathML(IPythonRenderer):
    """Markdown whose formulas a browser shows by itself."""

    def inline_math(self, body: str, display: str = "inline") -> str:
        try:
            formula = to_mathml(body, xmlns="", display=display)
        except Exception:  # of many kinds; what cannot be read as LaTeX stays as it was written
            return f"<code>{self.escape_html(body)}</code>"
        return formula.replace(' xmlns=""', "")  # HTML knows it without

    def block_math(self, body: str) -> str:
        return self.inline_math(body, display="block")


def export_html(notebook: Path, pages: Mapping[str, str]) -> None:
    """Write an executed notebook, ``<site>/notebooks/<name>.ipynb``, as a page beside it.
    ``pages``: the page of each notebook by its number, in reading order. Links to notebooks lead
    there, others in the repository to the index."""
    links = LINKS if pages.keys() >= {"01", "08"} else {}  # the notebooks that write them
    body = Markup(_body(notebook, pages))
    about = {"number": notebook.name[:2], "pages": pages, "links": links}
    page = _PAGE.render(title=title_of(notebook), body=body, **about)
    notebook.with_suffix(".html").write_text(page, encoding="utf-8")


def _body(notebook: Path, pages: Mapping[str, str], *, code: bool = True) -> str:
    """An executed notebook as HTML that asks the network for nothing; without its code, as a
    part of the index."""
    executed = nbformat.read(notebook, as_version=4)
    _link_figures(executed, notebook.parents[1] / "figures", "../figures/" if code else "figures/")
    markdown = MarkdownWithMath(renderer=_WithMathML(escape=False))
    exporter = HTMLExporter(
        template_name="basic",
        filters={"markdown2html": markdown.render},
        config=Config({"NbConvertBase": {"display_data_priority": SHOWN}}),
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_input=not code,
    )
    body, _ = exporter.from_notebook_node(executed)
    body = re.sub(r'<link [^>]*href="https?:[^>]*>', "", body)  # an output may ask for a style
    body = re.sub(r'href="\.\./[^"]*"', 'href="../index.html"', body)
    return re.sub(
        r'href="([^"/:]+)\.ipynb"', lambda m: f'href="{pages.get(m[1][:2], m[1] + ".html")}"', body
    )


def _link_figures(notebook: nbformat.NotebookNode, figures: Path, address: str) -> None:
    """Put links to saved figures in the place of the same pictures in outputs. A cell names in its
    source the figures that it saves or shows, with gaps {...} in an f-string."""
    saved = _pictures(figures.glob("[0-9]*.*"))
    image = Markup('<img alt="{}" src="{}" loading="lazy">')
    for cell in notebook.cells:
        words = re.findall(r'"(\d\d-[^"\n]+)"', cell.source)
        for suffix, kind in (".png", "image/png"), (".gif", 'class="animation"'):
            shown = [one for one in cell.get("outputs", ()) if kind in str(one.get("data", {}))]
            patterns = dict.fromkeys(re.sub(r"\{.*?\}", "*", word) + suffix for word in words)
            named = [
                one for name in patterns for one in saved if fnmatch.fnmatchcase(one["name"], name)
            ]
            if len(shown) == len(named):
                for output, figure in zip(shown, named, strict=True):
                    link = image.format(figure["caption"], address + quote(figure["name"]))
                    output["data"] = {"text/html": str(link)}


def write_page(output: Path, runs: Sequence[Run]) -> Path:
    """Write ``index.html`` into an output folder: notebook 00 as it was executed there, then all
    files by notebook, and the trained runs. With it comes the style sheet of all pages."""
    from companion.claims import recorded
    from companion.figures import head_colours

    sections: dict[str, dict[str, list[Path]]] = {}
    for file in sorted(output.glob("*/[0-9][0-9][-_]*")):
        if LISTED.get(file.suffix) == file.parent.name:
            nothing: dict[str, list[Path]] = {folder: [] for folder in LISTED.values()}
            sections.setdefault(file.name[:2], nothing)[file.parent.name].append(file)
    front = sections.pop(FRONT, {}).get("notebooks")
    written = {number: one["notebooks"][0] for number, one in sections.items() if one["notebooks"]}
    pages = {number: f"notebooks/{copy.stem}.html" for number, copy in written.items()}
    found = _body(front[0], pages, code=False) if front else ""
    first = {run.preset: run for run in reversed(runs)}
    quadratic = first.get("quadratic")
    index = _PAGE.render(
        name=output.name,
        found=Markup(re.sub(r"(?<=<)(/?)h1", r"\1h2", found)),
        sections=sections,
        pages=pages,
        links={name: text for name, text in LINKS.items() if (output / f"{name}.html").is_file()},
        runs=runs,
        first=first,
        claims=recorded(output),
        film=quadratic and _film(quadratic),
        swaps=quadratic and quadratic.swaps and _swaps(quadratic.swaps),
        head_colours=head_colours,
        pictures=_pictures,
        title_of=title_of,
    )
    page = output / "index.html"
    page.write_text(index, encoding="utf-8")
    light, dark = (
        HtmlFormatter(style=name).get_style_defs(".highlight")
        for name in ("default", "github-dark")
    )
    dark = f"@media (prefers-color-scheme: dark) {{ {dark} }}"
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    (output / "style.css").write_text("\n".join([light, dark, style]), encoding="utf-8")
    return page


def _film(run: Run) -> dict[str, Any]:
    """The layer whose heads end on most taps of a 3 x 3 kernel: row, column and precision by
    epoch and head."""
    from attnconv.heads import kernel_cells

    centres = run.heads["parameter_centre"]
    taps = kernel_cells(run.heads["mass"][-1], centres[-1], 3).sum((1, 2))
    layer = int(taps.argmax())
    precision = np.sqrt(np.abs(np.linalg.det(run.heads["precision"][:, layer])))
    heads = np.concatenate([centres[:, layer], precision[..., None]], -1, dtype=float)
    there = np.isfinite(heads[0]).all(-1)  # of fewer heads than in other layers
    return {"layer": layer + 1, "heads": heads[:, there].round(3).tolist()}


def _swaps(swaps: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracy with no layer swapped for a convolution, and with each: whether it is a point
    lower at most."""
    size = max(size for size in swaps["sizes"].tolist() if size <= 5)
    whole = swaps["whole"].mean()
    alone = swaps["alone"][:, swaps["sizes"] == size].mean((1, 2))
    bars = list(zip(alone, whole - alone <= IN_FULL, strict=True))
    return {"size": size, "whole": whole, "bars": bars}


def _pictures(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Figures with their notes, in the order in which notebooks saved them."""
    found = []
    for file in files:
        note, about = file.with_suffix(".json"), {"caption": file.stem, "runs": [], "place": 0}
        if file.suffix in (".png", ".gif"):
            about |= json.loads(note.read_text()) if note.is_file() else {}
            found.append(about | {"name": file.name})
    return sorted(found, key=lambda picture: (picture["place"], picture["name"]))
