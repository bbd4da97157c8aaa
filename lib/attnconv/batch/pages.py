"""The site of an output folder: its index, and the executed notebooks as pages, all from one template.

All of it opens without a network: pictures are inside, formulas are MathML. No torch is imported here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import nbformat
import numpy as np
from latex2mathml.converter import convert as to_mathml
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from attnconv.batch.plan import title_of
from attnconv.training.runs import Run, find_runs, read_json, writing

FRONT = "00"
"""Number of the notebook that is the index."""
FINDINGS = (
    ("01-sum-of-heads", "Exactly", "Nine heads are a 3 × 3 convolution: a theorem, and code."),
    ("07-swaps", "By what they do", "Put convolutions in the place of trained layers: where does it cost?"),
    ("06-accuracy", "As accurate?", "Attention beside a ResNet, epoch by epoch."),
)
"""Of the first screen: a figure, a title, a sentence."""
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
"""Forms of output that a page shows, the first that there is. A widget would need scripts from the network."""


def write(target: Path, **content: Any) -> None:
    """Write a page of this content; ``body`` makes it that of a notebook, else it is the index."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.get_template("page.html.j2").render(content)
    with writing(target) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")  # names of files may be no UTF-8


class _WithMathML(IPythonRenderer):
    """Markdown whose formulas a browser shows by itself."""

    def inline_math(self, body: str, display: str = "inline") -> str:
        try:
            return to_mathml(body, xmlns="", display=display).replace(' xmlns=""', "")  # HTML knows it without
        except Exception:  # of many kinds; what cannot be read as LaTeX stays as it was written
            return f"<code>{self.escape_html(body)}</code>"

    def block_math(self, body: str) -> str:
        return self.inline_math(body, display="block")


def export_html(notebook: Path, target: Path, pages: Mapping[str, str] | None = None) -> None:
    """Write an executed notebook as a page that needs no other file and no network.

    ``pages``: the page of each notebook by the notebook's name without suffix, in reading order. Links between
    notebooks lead there, other links within the repository to the index.
    """
    pages = pages or {}
    order = ["", *pages.values(), ""]
    place = next((i for i, name in enumerate(pages, 1) if target.stem.startswith(name)), 0)
    write(
        target,
        title=title_of(notebook),
        body=Markup(_body(notebook, pages)),
        before=order[place - 1] if place else "",
        after=order[place + 1] if place else "",
        **_code_colours(),
    )


def _body(notebook: Path, pages: Mapping[str, str], *, code: bool = True) -> str:
    """An executed notebook as HTML, with formulas as MathML, without links to the network's fonts and scripts."""
    markdown = MarkdownWithMath(renderer=_WithMathML(escape=False))
    shown = {"NbConvertBase": {"display_data_priority": SHOWN}}
    exporter = HTMLExporter(template_name="basic", filters={"markdown2html": markdown.render}, config=Config(shown))
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    exporter.exclude_input = not code
    body, _ = exporter.from_notebook_node(nbformat.read(notebook, as_version=4))
    body = re.sub(r'<link [^>]*href="https?:[^>]*>', "", body)  # Matplotlib's player asks for a font of icons
    body = re.sub(r'href="\.\./[^"]*"', 'href="../index.html"', body)
    return re.sub(r'href="([^"/:]+)\.ipynb"', lambda m: f'href="{pages.get(m[1], m[1] + ".html")}"', body)


def _code_colours() -> dict[str, Markup]:
    styles = {"light": "default", "dark": "github-dark"}
    return {name: Markup(HtmlFormatter(style=style).get_style_defs(".highlight")) for name, style in styles.items()}


def write_page(output: Path) -> Path:
    """Write ``index.html`` into an output folder: notebook 00 as it was executed there, then all files by notebook.

    It stands on the files in the folder alone, so it can be written again at any time.
    """
    sections: dict[str, dict[str, Any]] = {}
    for file in sorted(output.glob("*/[0-9][0-9][-_]*")):
        if not file.is_file():
            continue
        section = sections.setdefault(file.name[:2], dict(title="", notebooks=[], tables=[], pictures=[]))
        match file.parent.name, file.suffix:
            case "notebooks", ".ipynb":
                section["title"] = title_of(file)
                section["notebooks"].append(file)
            case "tables", ".csv":
                section["tables"].append(file)
            case "figures", ".png" | ".gif":
                section["pictures"].append(_picture(file))
    for section in sections.values():
        section["pictures"].sort(key=lambda picture: (picture["place"], picture["name"]))  # as the notebook shows them
    front, body = sections.pop(FRONT, None), ""
    if front:
        first = [section["notebooks"][0].stem for section in sections.values() if section["notebooks"]]
        pages = {stem.partition("-")[0]: f"notebooks/{stem}.html" for stem in first}
        with contextlib.suppress(Exception):  # nbformat raises many kinds; without it the page shows the rest
            body = _body(front["notebooks"][0], pages, code=False)
    runs = find_runs(output / "runs")
    write(
        output / "index.html",
        name=output.name,
        found=Markup(body),
        sections=sections,
        links=[name for name in ("playground", "explorer") if (output / f"{name}.html").is_file()],
        runs=runs,
        film=next((_film(run) for run in runs if run.preset == "quadratic"), None),
        script=Markup(Path(__file__).with_name("front.js").read_text("utf-8")),
        shown=[one for one in FINDINGS if (output / "figures" / f"{one[0]}.png").is_file()],
    )
    return output / "index.html"


def _film(run: Run) -> dict[str, Any]:
    """The layer whose heads sit on most pixels of a 3 x 3 kernel, as the first screen shows it: centres by epoch."""
    from attnconv.figures import head_colours  # imports seaborn, which takes a second

    centres, mass = run.heads["parameter_centre"], run.heads["mass"][-1]
    on_taps = (np.abs(centres[-1]) < 1.5).all(-1) & (mass > 0.5)
    layer = int(on_taps.sum(1).argmax())
    heads = [
        [[round(float(x), 2) for x in head] for head in epoch if np.isfinite(head).all()] for epoch in centres[:, layer]
    ]
    return {"layer": layer + 1, "data": json.dumps({"centres": heads, "colours": head_colours(len(heads[0]))})}


def _picture(file: Path) -> dict[str, Any]:
    """A figure with its note."""
    note = read_json(file.with_suffix(".json"), dict)
    return dict(
        name=file.name,
        caption=str(note.get("caption") or file.stem[3:].replace("-", " ")),
        runs=note["runs"] if isinstance(note.get("runs"), list) else [],
        place=note["place"] if isinstance(note.get("place"), int) else 0,
    )
