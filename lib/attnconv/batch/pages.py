"""The site of an output folder: its index, and the executed notebooks as pages, all from one template.

All of it opens without a network: pictures are inside, formulas are MathML. No torch is imported here.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from latex2mathml.converter import convert as to_mathml
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from attnconv.analysis.claims import read_claims, scoreboard
from attnconv.batch.plan import title_of
from attnconv.batch.workspace import REPOSITORY
from attnconv.training.runs import find_runs, read_json, writing

RECORD = REPOSITORY / "outputs" / "evening"
"""The record that is committed: its verdicts stand beside those of every other output folder."""
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
"""Forms of output that a page shows, the first that there is. A widget would need scripts from the network."""
LARGE = 2**28
"""Bytes. A larger file is no result of a notebook, and is left out."""


def write(target: Path, **content: Any) -> None:
    """Write a page of this content; ``body`` makes it that of a notebook, else it is the index."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["sentence"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    environment.tests["number"] = lambda text: re.fullmatch(r"[-+−]?\d+(\.\d+)?(e[-+]?\d+)?|—", str(text))
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
    markdown = MarkdownWithMath(renderer=_WithMathML(escape=False))
    shown = {"NbConvertBase": {"display_data_priority": SHOWN}}
    exporter = HTMLExporter(template_name="basic", filters={"markdown2html": markdown.render}, config=Config(shown))
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    body, _ = exporter.from_notebook_node(nbformat.read(notebook, as_version=4))
    body = re.sub(r'<link [^>]*href="https?:[^>]*>', "", body)  # Matplotlib's player asks for a font of icons
    body = re.sub(r'href="\.\./[^"]*"', 'href="../index.html"', body)
    body = re.sub(r'href="([^"/:]+)\.ipynb"', lambda m: f'href="{pages.get(m[1], m[1] + ".html")}"', body)
    order = ["", *pages.values(), ""]
    place = next((i for i, name in enumerate(pages, 1) if target.stem.startswith(name)), 0)
    write(
        target,
        title=title_of(notebook),
        body=Markup(body),
        before=order[place - 1] if place else "",
        after=order[place + 1] if place else "",
        light=Markup(HtmlFormatter(style="default").get_style_defs(".highlight")),
        dark=Markup(HtmlFormatter(style="github-dark").get_style_defs(".highlight")),
    )


def write_page(output: Path) -> Path:
    """Write ``index.html`` into an output folder: what was found, the paper's figures, then all else by notebook.

    It stands on the files in the folder alone, so it can be written again at any time.
    """
    sections: dict[str, dict[str, Any]] = {}
    for file in sorted(output.glob("*/[0-9][0-9][-_]*")):
        if not (file.is_file() and file.name.isprintable() and file.stat().st_size <= LARGE):
            continue  # of no notebook
        empty: dict[str, Any] = dict(title="", notebooks=[], tables=[], pictures=[], claims=[])
        section = sections.setdefault(file.name[:2], empty)
        match file.parent.name, file.suffix:
            case "notebooks", ".ipynb":
                section["title"] = title_of(file)
                section["notebooks"].append(file)
            case "tables", ".csv":
                section["tables"].append((file.stem, _table(file)))
            case "tables", ".json":
                section["claims"] += [claim for claim in read_claims(file) if not claim.sentence.section]
            case "figures", ".png" | ".gif":
                section["pictures"].append(_picture(file))
    for section in sections.values():
        section["pictures"].sort(key=lambda picture: (picture["place"], picture["stem"]))  # as the notebook shows them
    folders = {folder.name: folder for folder in (RECORD, output) if (folder / "tables").is_dir()}
    write(
        output / "index.html",
        name=output.name,
        columns=list(folders),
        board=scoreboard(folders),
        sections=dict(sorted(sections.items())),
        pictures=[picture for section in sections.values() for picture in section["pictures"]],
        links=[name for name in ("explorer", "playground") if (output / f"{name}.html").is_file()],
        runs=find_runs(output / "runs"),
    )
    return output / "index.html"


def _picture(file: Path) -> dict[str, Any]:
    """A figure with its note. ``figure`` is the paper's that it belongs to: a number, 1000 for the appendix, or 0."""
    note = read_json(file.with_suffix(".json"), dict)
    caption = str(note.get("caption") or file.stem[3:].replace("-", " "))
    of_the_paper = re.search(r"\((?:to )?(?:figure (\d+)|appendix)\)", caption)
    return dict(
        stem=file.stem,
        source=f"data:image/{file.suffix[1:]};base64,{base64.b64encode(file.read_bytes()).decode()}",
        caption=caption,
        figure=int(of_the_paper[1] or 1000) if of_the_paper else 0,
        runs=note["runs"] if isinstance(note.get("runs"), list) else [],
        place=note["place"] if isinstance(note.get("place"), int) else 0,
    )


def _table(file: Path) -> list[list[str]]:
    """A table's rows, the head first, with a dash for what is missing; empty if damaged."""
    with file.open(newline="", errors="replace") as lines, contextlib.suppress(csv.Error):  # a cell without end
        return [[cell or "—" for cell in row] for row in csv.reader(lines) if row]
    return []
