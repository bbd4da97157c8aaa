"""The site of an output folder: its index, and the executed notebooks as pages, all from one
template.

All of it opens without a network: pictures are those in ``figures/``, or else inside, and formulas
are MathML. The template has the words, this file the numbers."""

import contextlib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import nbformat
import numpy as np
from latex2mathml.converter import convert as to_mathml
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from numpy.typing import NDArray
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from attnconv.heads import kernel_cells
from attnconv.training.runs import Run, find_runs, write
from companion._old import read_json
from companion.claims import recorded
from companion.plan import title_of

FRONT = "00"  # number of the notebook that is the index
# Pages beside the index, and the buttons that lead there.
LINKS = {"playground": "Move the heads", "explorer": "Look into a trained network"}
IN_FULL = 0.01  # a layer may be swapped for this loss of accuracy
# Forms of output that a page shows, the first that there is. A widget would need scripts from the
# network.
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
# Files that the index lists, and the folders that they are in.
LISTED = {".ipynb": "notebooks", ".csv": "tables", ".png": "figures", ".gif": "figures"}
_HERE = Path(__file__).parent
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
)
_PAGE = _TEMPLATES.get_template(
    "page.html.j2"
)  # of a notebook, if it is given a ``body``; else the index


class _WithMathML(IPythonRenderer):
    """Markdown whose formulas a browser shows by itself."""

    def inline_math(self, body: str, display: str = "inline") -> str:
        try:
            return to_mathml(body, xmlns="", display=display).replace(
                ' xmlns=""', ""
            )  # HTML knows it without
        except Exception:  # of many kinds; what cannot be read as LaTeX stays as it was written
            return f"<code>{self.escape_html(body)}</code>"

    def block_math(self, body: str) -> str:
        return self.inline_math(body, display="block")


def export_html(notebook: Path, target: Path, pages: Mapping[str, str] | None = None) -> None:
    """Write an executed notebook as a page of a site, the file ``<site>/notebooks/<name>.html``.
    ``pages``: the page of each notebook by its number, in reading order. Links to notebooks lead
    there, others in the repository to the index."""
    pages = pages or {}
    links = LINKS if pages.keys() >= {"01", "08"} else {}  # the notebooks that write them
    body = Markup(_body(notebook, pages))
    write(
        target,
        _PAGE.render(
            title=title_of(notebook), body=body, number=target.name[:2], pages=pages, links=links
        ),
    )


def _body(notebook: Path, pages: Mapping[str, str], *, code: bool = True) -> str:
    """An executed notebook as HTML that asks the network for nothing; without its code, as a
    part of the index.
    """
    executed = nbformat.read(notebook, as_version=4)
    _link_figures(
        executed, notebook.parent.parent / "figures", "../figures/" if code else "figures/"
    )
    markdown = MarkdownWithMath(renderer=_WithMathML(escape=False))
    shown = Config({"NbConvertBase": {"display_data_priority": SHOWN}})
    exporter = HTMLExporter(
        template_name="basic", filters={"markdown2html": markdown.render}, config=shown
    )
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    exporter.exclude_input = not code
    body, _ = exporter.from_notebook_node(executed)
    body = re.sub(
        r'<link [^>]*href="https?:[^>]*>', "", body
    )  # an output may ask for a style sheet
    body = re.sub(r'href="\.\./[^"]*"', 'href="../index.html"', body)
    return re.sub(
        r'href="([^"/:]+)\.ipynb"', lambda m: f'href="{pages.get(m[1][:2], m[1] + ".html")}"', body
    )


def _link_figures(notebook: nbformat.NotebookNode, figures: Path, address: str) -> None:
    """Put links to figures in the place of pictures in outputs that were saved as those, and of
    animations. A cell names in its source the figures that it saves or shows, with gaps {...} in an
    f-string."""
    saved = _pictures(figures.glob("[0-9]*.*"))
    image = Markup('<img alt="{}" src="{}" loading="lazy">')
    for cell in notebook.cells:
        words = dict.fromkeys(
            re.findall(r'"(\d\d-[^"\n]+)"', cell.source if cell.cell_type == "code" else "")
        )
        for suffix, kind in (".png", "image/png"), (".gif", 'class="animation"'):
            names = [re.sub(r"\{.*?\}", "*", word) + suffix for word in words]
            named = [
                one for name in names for one in saved if fnmatch.fnmatchcase(one["name"], name)
            ]
            outputs = [
                output for output in cell.get("outputs", ()) if kind in str(output.get("data", {}))
            ]
            for output, figure in (
                zip(outputs, named, strict=True) if len(outputs) == len(named) else ()
            ):
                output["data"] = {
                    "text/html": str(
                        image.format(figure["caption"], address + quote(figure["name"]))
                    )
                }


def write_page(output: Path) -> Path:
    """Write ``index.html`` into an output folder: notebook 00 as it was executed there, then all
    files by notebook. With it comes the style sheet of all pages. Both follow from the files in the
    folder alone."""
    from companion.figures import head_colours  # imports seaborn, which takes a second

    sections: dict[str, dict[str, list[Path]]] = {}
    for file in sorted(file for file in output.glob("*/[0-9][0-9][-_]*") if file.is_file()):
        section = sections.setdefault(file.name[:2], {folder: [] for folder in LISTED.values()})
        if LISTED.get(file.suffix) == file.parent.name:
            section[file.parent.name].append(file)
    front, found = sections.pop(FRONT, None), ""
    pages = {
        number: f"notebooks/{s['notebooks'][0].stem}.html"
        for number, s in sections.items()
        if s["notebooks"]
    }
    with contextlib.suppress(
        Exception
    ):  # nbformat raises many kinds; without notebook 00 the page shows the rest
        found = _body(front["notebooks"][0], pages, code=False) if front else ""
    runs = find_runs(output / "runs")
    first = first_runs(output, runs)
    quadratic = first.get("quadratic")
    index = _PAGE.render(
        name=output.name,
        found=Markup(found),
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
    write(output / "index.html", index)
    light, dark = (
        HtmlFormatter(style=name).get_style_defs(".highlight")
        for name in ("default", "github-dark")
    )
    dark = f"@media (prefers-color-scheme: dark) {{ {dark} }}"
    write(output / "style.css", "\n".join([light, dark, (_HERE / "page.css").read_text("utf-8")]))
    return output / "index.html"


def first_runs(output: Path, runs: Sequence[Run]) -> dict[str, Run]:
    """Of each preset one run: the first that notebook 03 has drawn here, or else the first."""
    notes = output.glob("figures/03-learning-curve-*.json")
    drawn = {name for note in notes for name in read_json(note, dict).get("runs", [])}
    return {
        run.preset: run for run in sorted(reversed(runs), key=lambda run: run.path.name in drawn)
    }


def _film(run: Run) -> dict[str, Any]:
    """The layer whose heads end on most taps of a 3 x 3 kernel: row, column and precision by
    epoch and head.
    """
    centres, precision = (
        run.heads["parameter_centre"],
        np.sqrt(np.abs(np.linalg.det(run.heads["precision"]))),
    )
    layer = int(kernel_cells(run.heads["mass"][-1], centres[-1], 3).sum((1, 2)).argmax())
    there = np.isfinite(centres[0, layer]).all(-1)  # of fewer heads than in other layers
    heads = np.concatenate([centres[:, layer], precision[:, layer, :, None]], -1, dtype=float)[
        :, there
    ]
    return {"layer": layer + 1, "heads": heads.round(3).tolist()}


def _swaps(swaps: Mapping[str, NDArray]) -> dict[str, Any]:
    """Accuracy with no layer swapped for a convolution, and with each: whether it is a point
    lower at most.
    """
    sizes, whole = swaps["sizes"].tolist(), swaps["whole"].mean()
    size = max(size for size in sizes if size <= 5)
    alone = swaps["alone"][:, sizes.index(size)].mean(-1)
    return {
        "size": size,
        "whole": whole,
        "bars": list(zip(alone, whole - alone <= IN_FULL, strict=True)),
    }


def _pictures(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Figures with their notes, as the notebook shows them."""
    found = []
    for file in files:
        if file.suffix in (".png", ".gif"):
            note = {"caption": file.stem[3:].replace("-", " "), "runs": [], "place": 0}
            found.append(note | read_json(file.with_suffix(".json"), dict) | {"name": file.name})
    return sorted(found, key=lambda picture: (picture["place"], picture["name"]))
