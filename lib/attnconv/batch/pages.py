"""The site of an output folder: its index, and the executed notebooks as pages.

All of it opens without a network: pictures are inside, formulas are MathML. No torch is imported here.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
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

from attnconv.analysis.claims import Claim, read_claims, scoreboard
from attnconv.batch.plan import title_of
from attnconv.batch.workspace import REPOSITORY
from attnconv.config import PRESETS
from attnconv.training.runs import Run, find_runs, read_json, writing

RECORD = REPOSITORY / "outputs" / "evening"
"""The record that is committed: its verdicts stand beside those of every other output folder."""
WORDS = {True: ("holds", "hold"), False: ("does not hold", "do not hold"), None: ("is undecided", "are undecided")}
"""Verdicts of one claim, and of several."""
APPENDIX = 1000
"""Stands for the number of the appendix's figures, which come last."""
TABLE_1 = "06-table1"
COLUMNS = {
    "Accuracy (%)": "here, %",
    "Paper (%)": "paper, %",
    "Reproduction 2021 (%)": "2021, %",
    "Epochs": "epochs",
    "Parameters (M)": "parameters, M",
    "GFLOPs as in the paper": "GFLOPs, linear layers",
    "GFLOPs, dense": "GFLOPs, dense",
    "GFLOPs, separable": "GFLOPs, rows × columns",
}
"""Of Table 1, as the index shows it."""
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
"""Forms of output that a page shows, the first that there is. A widget would need scripts from the network."""
NUMBER = re.compile(r"[-+−]?\d+(\.\d+)?(e[-+]?\d+)?( ± \d+(\.\d+)?)?")


@functools.cache
def _template(name: str) -> jinja2.Template:
    """A kind of page; what all kinds share is in base.html.j2."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals["colour"] = lambda claim: {True: "yes", False: "no"}.get(claim.holds, "soft")
    environment.filters["sentence"] = lambda text: f"{text[:1].upper()}{text[1:]}"
    environment.filters["counted"] = lambda pairs: ", ".join(f"{n} {word}{'s' * (n > 1)}" for n, word in pairs if n)
    environment.tests["number"] = lambda text: text == "—" or NUMBER.fullmatch(text)
    return environment.get_template(name)


# ---- executed notebooks -------------------------------------------------------------------------------------------


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
    names = [name for name in pages if target.stem.startswith(name)]
    order = list(pages.values())
    place = list(pages).index(names[0]) if names else None
    page = _template("notebook.html.j2").render(
        title=title_of(notebook),
        body=Markup(body),
        before=order[place - 1] if place else None,
        after=order[place + 1] if names and place + 1 < len(order) else None,
        light=Markup(HtmlFormatter(style="default").get_style_defs(".highlight")),
        dark=Markup(HtmlFormatter(style="github-dark").get_style_defs(".highlight")),
    )
    with writing(target) as temporary:
        temporary.write_text(page)


# ---- the index ----------------------------------------------------------------------------------------------------


def write_page(output: Path) -> Path:
    """Write ``index.html`` into an output folder: what was found, the paper's figures, then all else by notebook.

    It stands on the files in the folder alone, so it can be written again at any time.
    """
    sections: dict[str, dict[str, Any]] = {}
    table_1: list[list[str]] = []
    for file in sorted(output.glob("*/[0-9][0-9][-_]*")):
        if not (file.is_file() and file.name.isprintable()):
            continue  # of no notebook
        empty = dict(title="", notebooks=[], tables=[], pictures=[], claims=[])
        section = sections.setdefault(file.name[:2], empty)
        match file.parent.name, file.suffix:
            case "notebooks", ".ipynb":
                section["title"] = title_of(file)
                section["notebooks"].append(file)
            case "tables", ".csv":
                if file.stem == TABLE_1:
                    table_1 = _as_one_reads_it(_table(file))
                else:
                    section["tables"].append(_table(file))
            case "tables", ".json":
                run = file.stem.partition("-claims-")[2]  # empty where it is about several
                section["claims"] += [(run, claim) for claim in read_claims(file) if not claim.paper]
            case "figures", ".png" | ".gif":
                section["pictures"].append(_picture(file))
    for section in sections.values():
        section["pictures"].sort(key=lambda picture: (picture["place"], picture["name"]))  # as the notebook shows them
    pictures = [picture for section in sections.values() for picture in section["pictures"]]
    runs = find_runs(output / "runs")
    folders = {folder.name: folder for folder in (RECORD, output) if (folder / "tables").is_dir()}
    board = scoreboard(folders)
    found = {claim: checked.get(output.name, []) for claim, checked in board}
    page = _template("page.html.j2").render(
        name=output.name,
        trained=_trained(runs, table_1),
        recipe=_recipe(runs),
        answers=[(claim, checked) for claim, checked in found.items() if claim.question],
        verdicts=_counted(found.values()),
        columns=list(folders),
        board=board,
        table_1=table_1,
        pictures=pictures,
        appendix=APPENDIX,
        rests_on=lambda stem: [one for claim, checked in found.items() if claim.figure == stem for one in checked],
        pictured={picture["stem"] for picture in pictures},
        explorer=(output / "explorer.html").is_file(),
        playground=(output / "playground.html").is_file(),
        runs=runs,
        sections=dict(sorted(sections.items())),
    )
    with writing(output / "index.html") as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")  # names of files may be no UTF-8
    return output / "index.html"


def _picture(file: Path) -> dict[str, Any]:
    note = read_json(file.with_suffix(".json"), dict)
    caption = str(note.get("caption") or file.stem[3:].replace("-", " "))
    of_the_paper = re.search(r"\((?:to )?(?:figure (\d+)|appendix)\)", caption)
    return dict(
        name=file.name,
        stem=file.stem,
        source=f"data:image/{file.suffix[1:]};base64,{base64.b64encode(file.read_bytes()).decode()}",
        caption=caption,
        figure=int(of_the_paper[1] or APPENDIX) if of_the_paper else None,
        runs=note["runs"] if isinstance(note.get("runs"), list) else [],
        place=note["place"] if isinstance(note.get("place"), int) else 0,
    )


def _trained(runs: Sequence[Run], table_1: list[list[str]]) -> str:
    """What was trained here, in a sentence: how many models, how large, on which data. Empty if none was."""
    if not runs:
        return ""
    head, *rows = table_1 or [[]]
    cells = [row[head.index("parameters, M")] for row in rows] if "parameters, M" in head else []
    sizes = [float(cell) for cell in cells if re.fullmatch(r"\d+(\.\d+)?", cell)]
    size = f", {min(sizes):.2g} to {max(sizes):.2g} million parameters (the paper's have 11 to 30)" if sizes else ""
    data = ", ".join(sorted({run.data_title for run in runs}))
    return f"Here: {len(runs)} trained model{'s' * (len(runs) > 1)}{size}; data: {data}."


def _recipe(runs: Sequence[Run]) -> str:
    """What heads here owe to a recipe that is not the paper's, in words; empty if nothing."""
    theirs, words = PRESETS["quadratic"], {}  # a sentence or two for each preset, of its first run
    names = ("centre_start", "centre_std", "spread_start")
    for run in runs:
        ours, base = ([getattr(model, name) for name in names] for model in (run.model, theirs.model))
        if run.preset == "quadratic" and (run.train.position_lr or ours != base):
            rate = f", and learn at a rate of their own ({run.train.position_lr:g})" if run.train.position_lr else ""
            words.setdefault(
                run.preset,
                f"Quadratic heads here start {_start(*ours)}{rate}. The paper's start {_start(*base)} and learn at the "
                "rate of the weights. Notebook 10 shows what that does.",
            )
        if run.model.kind.startswith("learned") and run.train.encoding_lr:
            words.setdefault(
                run.preset,
                f"The encoding of {run.title} learns at a rate of its own ({run.train.encoding_lr:g}); notebook 05 "
                "shows what that does.",
            )
    return " ".join(words.values())


def _start(kind: str, width: float, sharpness: float) -> str:
    way = "evenly over a disc around the query" if kind == "disc" else "at random around the query"
    return f"{way} (standard deviation {width:g} pixels, sigma {1 / sharpness:g})"


def _table(file: Path) -> list[list[str]]:
    """A table's rows, the head first, without columns that are empty; a dash for what is missing. Empty if damaged."""
    rows = []
    with file.open(newline="", errors="replace") as lines, contextlib.suppress(csv.Error):  # a cell without end
        rows = [row for row in csv.reader(lines) if row]
    columns = [column for column in itertools.zip_longest(*rows, fillvalue="") if any(column[1:])]
    return [[cell or "—" for cell in row] for row in zip(*columns, strict=True)]


def _as_one_reads_it(rows: list[list[str]]) -> list[list[str]]:
    """Table 1 with the columns that matter, and what keeps a row from comparison below its model's name."""
    head, *body = rows or [[]]
    if not {"Model", *COLUMNS} <= set(head):
        return rows
    read = []
    for row in (dict(zip(head, row, strict=True)) for row in body):
        note, spread = row.get("Against the paper", "—"), row.get("±", "—")
        accuracy = row["Accuracy (%)"] + (f" ± {spread}" if spread != "—" else "")
        model = row["Model"] + (f"\n{note}" if note != "—" else "")
        read.append([model, accuracy, *(row[name] for name in list(COLUMNS)[1:])])
    return [["model", *COLUMNS.values()], *read]


def _counted(found: Iterable[Sequence[Claim]]) -> str:
    """How many of the paper's claims hold here, do not, or are undecided, in a sentence without its stop."""
    kinds = [{claim.holds for claim in checked} for checked in found if checked]
    words = [(kinds.count({holds}), WORDS[holds]) for holds in WORDS]
    words.append((sum(len(kind) > 1 for kind in kinds), ("differs from model to model",) * 2))
    said = ", ".join(f"{number} {one if number == 1 else several}" for number, (one, several) in words if number)
    return f"Checked here: {len(kinds)}. Of these {said}" if kinds else "None has been checked here yet"
