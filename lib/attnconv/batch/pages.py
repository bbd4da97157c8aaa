"""The site of an output folder: its index, and the executed notebooks as pages, all from one template.

All of it opens without a network: there is one style sheet, pictures are those in ``figures/``, or else inside, and
formulas are MathML. No torch is imported here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
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
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from attnconv.batch.plan import title_of
from attnconv.training.runs import Run, find_runs, read_json, writing

FRONT = "00"
"""Number of the notebook that is the index."""
LINKS = {"playground": "Move the heads", "explorer": "Look into a trained network"}
"""Pages beside the index, and the buttons that lead there."""
ON_TAPS, IN_FULL = 0.5, 0.01
"""A head is a tap with more than this share of its attention on one pixel; a layer may be swapped for that loss."""
SHOWN = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/plain"]
"""Forms of output that a page shows, the first that there is. A widget would need scripts from the network."""


def write(target: Path, **content: Any) -> None:
    """Write a page of this content, and the style sheet; ``body`` makes it that of a notebook, else it is the index."""
    site = target.parent.parent if "body" in content else target.parent
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.get_template("page.html.j2").render(content)
    with writing(target) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="replace")  # names of files may be no UTF-8
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    with writing(site / "style.css") as temporary:
        own = Path(__file__).with_name("page.css").read_text("utf-8")
        temporary.write_text(f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n{own}")


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
    """Write an executed notebook as a page of a site, the file ``<site>/notebooks/<name>.html``.

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
        links=LINKS if {name[:2] for name in pages} >= {"01", "08"} else {},  # the notebooks that write them
    )


def _body(notebook: Path, pages: Mapping[str, str], *, code: bool = True) -> str:
    """An executed notebook as HTML, with formulas as MathML, without links to the network's fonts and scripts.

    ``code``: whether it is a page of its own, with its code, or part of the index.
    """
    executed = nbformat.read(notebook, as_version=4)
    _link_figures(executed, notebook.parent.parent / "figures", "../figures/" if code else "figures/")
    markdown = MarkdownWithMath(renderer=_WithMathML(escape=False))
    shown = {"NbConvertBase": {"display_data_priority": SHOWN}}
    exporter = HTMLExporter(template_name="basic", filters={"markdown2html": markdown.render}, config=Config(shown))
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    exporter.exclude_input = not code
    body, _ = exporter.from_notebook_node(executed)
    body = re.sub(r'<link [^>]*href="https?:[^>]*>', "", body)  # Matplotlib's player asks for a font of icons
    body = re.sub(r'href="\.\./[^"]*"', 'href="../index.html"', body)
    return re.sub(r'href="([^"/:]+)\.ipynb"', lambda m: f'href="{pages.get(m[1], m[1] + ".html")}"', body)


def _link_figures(notebook: nbformat.NotebookNode, figures: Path, address: str) -> None:
    """Put links to figures in the place of pictures in outputs that were saved as those, and of players of animations.

    A cell names in its source the figures that it saves or shows, with gaps {...} in an f-string.
    """
    saved = sorted((_picture(file) for file in figures.glob("[0-9]*.*") if file.suffix in (".png", ".gif")), key=_order)
    for cell in notebook.cells:
        words = re.findall(r'f?"(\d\d-[^"\n]+)"', cell.source if cell.cell_type == "code" else "")
        patterns = [re.sub(r"\\\{.*?\\\}", ".+", re.escape(word)) for word in dict.fromkeys(words)]
        named = [one for p in patterns for one in saved if re.fullmatch(p, one["name"].rpartition(".")[0])]
        for suffix, kind in (".png", "image/png"), (".gif", 'class="animation"'):
            figures_here = [figure for figure in named if figure["name"].endswith(suffix)]
            outputs = [output for output in cell.get("outputs", ()) if kind in str(output.get("data", {}))]
            if len(outputs) != len(figures_here):
                continue
            for output, figure in zip(outputs, figures_here, strict=True):
                image = Markup('<img alt="{}" src="{}" loading="lazy">')
                image = image.format(figure["caption"], address + quote(figure["name"]))
                output["data"] = {"text/html": str(image)}


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
        section["pictures"].sort(key=_order)
    front, body = sections.pop(FRONT, None), ""
    first = {number: section["notebooks"][0].stem for number, section in sections.items() if section["notebooks"]}
    if front:
        pages = {stem.partition("-")[0]: f"notebooks/{stem}.html" for stem in first.values()}
        with contextlib.suppress(Exception):  # nbformat raises many kinds; without it the page shows the rest
            body = _body(front["notebooks"][0], pages, code=False)
    runs = find_runs(output / "runs")
    quadratic = next((run for run in runs if run.preset == "quadratic"), None)
    write(
        output / "index.html",
        name=output.name,
        found=Markup(body),
        sections=sections,
        links={name: text for name, text in LINKS.items() if (output / f"{name}.html").is_file()},
        runs=runs,
        film=quadratic and _film(quadratic),
        findings=_findings(output, runs, {number: f"notebooks/{stem}.html" for number, stem in first.items()}),
        script=Markup(Path(__file__).with_name("front.js").read_text("utf-8")),
    )
    return output / "index.html"


def _film(run: Run) -> dict[str, Any]:
    """The layer whose heads end on most different taps of a 3 x 3 kernel: centres and precisions by epoch."""
    from attnconv.figures import head_colours  # imports seaborn, which takes a second

    centres, precision = run.heads["parameter_centre"], np.sqrt(np.abs(np.linalg.det(run.heads["precision"])))
    ends, sharp = np.rint(centres[-1]), run.heads["mass"][-1] > ON_TAPS
    taps = [len({*map(tuple, at[on & (np.abs(at) < 2).all(-1)])}) for at, on in zip(ends, sharp, strict=True)]
    layer = int(np.argmax(taps))
    there = np.isfinite(centres[0, layer]).all(-1)  # of fewer heads than in other layers
    heads = np.concatenate([centres[:, layer], precision[:, layer, :, None]], -1)[:, there].round(3)
    data = {"heads": heads.tolist(), "colours": head_colours(heads.shape[1])}
    return {"layer": layer + 1, "heads": heads.shape[1], "data": json.dumps(data)}


def _findings(output: Path, runs: Sequence[Run], pages: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the first screen says, in words that follow the record: a title, a sentence, what its picture shows."""
    from attnconv.analysis.claims import recorded
    from attnconv.figures import head_colours

    claims, found = recorded(output), []

    def add(number: str, title: str, text: str, **shown: Any) -> None:
        found.append(dict(page=pages.get(number, "#found"), title=title, text=text, **shown))

    for claim in claims["theorem"][:1]:
        title = {True: "Exactly", False: "Not exactly, here", None: "Exactly?"}[claim.holds]
        text = f"Nine heads are a 3 × 3 convolution: a theorem, and here as code. {_sentence(claim.evidence)}"
        add("01", title, text, colours=head_colours(9))
    by_preset = {run.preset: run for run in reversed(runs)}
    if (run := by_preset.get("quadratic")) and (swaps := run.swaps):
        size = max(s for s in swaps["sizes"] if s <= 5)
        alone, whole = swaps["alone"].mean(-1)[:, list(swaps["sizes"]).index(size)], swaps["whole"].mean()
        fine = whole - alone <= IN_FULL
        text = (
            f"{fine.sum()} of {len(fine)} trained layers can each be swapped for a {size} × {size} convolution, which "
        )
        text += f"costs a point of accuracy at most. Accuracy with one layer swapped; {whole:.1%} with none."
        bars = [(share, f"{share:.0%}", ok) for share, ok in zip(alone.tolist(), fine.tolist(), strict=True)]
        add("07", "By what they do" if fine.any() else "Not by what they do", text, bars=bars)
    both = [by_preset[name] for name in ("quadratic", "resnet18") if name in by_preset]
    for claim in claims["matches-resnet"][: len(both) // 2]:
        title = {True: "As accurate as a ResNet", False: "Less accurate than a ResNet", None: "As accurate?"}[
            claim.holds
        ]
        curves = [100 * np.array([line["test_accuracy"] for line in run.metrics]) for run in both]
        low, high = min(map(np.min, curves)), max(map(np.max, curves))
        lines = []
        for curve, name, colour in zip(curves, ("attention", "ResNet"), ("var(--blue)", "var(--ink)"), strict=True):
            across = 4 + 190 * np.arange(1, len(curve) + 1) / max(map(len, curves))
            down = 90 - 84 * (curve - low) / max(high - low, 1e-9)
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
            lines.append(dict(points=points, text=f"{name} {curve[-1]:.1f}%", colour=colour))
        add("06", title, _sentence(claim.evidence), lines=lines)
    return found


def _sentence(evidence: Sequence[str]) -> str:
    """The first line of evidence as a sentence."""
    return f"{evidence[0][:1].upper()}{evidence[0][1:]}." if evidence else ""


def _order(picture: dict[str, Any]) -> tuple[int, str]:
    """As the notebook shows its figures."""
    return picture["place"], picture["name"]


def _picture(file: Path) -> dict[str, Any]:
    """A figure with its note."""
    note = read_json(file.with_suffix(".json"), dict)
    return dict(
        name=file.name,
        caption=str(note.get("caption") or file.stem[3:].replace("-", " ")),
        runs=note["runs"] if isinstance(note.get("runs"), list) else [],
        place=note["place"] if isinstance(note.get("place"), int) else 0,
    )
