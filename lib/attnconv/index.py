"""One self-contained page of everything a reproduction made: figures with captions, tables, the verdicts on claims.

It stands on the files in an output folder alone, so it can be written again at any time. No torch is imported.
"""

from __future__ import annotations

import base64
import csv
import html
import json
from pathlib import Path

from attnconv.runs import Run, find_runs, writing
from attnconv.workspace import VERDICTS

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --soft: #666; --line: #d8d8d8; --back: #fff;
  --yes: #00634b; --no: #a33c00 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a8a8a8; --line: #444; --back: #191919;
  --yes: #5fd0ae; --no: #ff9a5c } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem }
h2 { font-size: 1.25rem; margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem }
figure { margin: 2rem 0 } figure img { max-width: 100%; background: #fff; border-radius: 3px }
figcaption, .soft { color: var(--soft); font-size: .9rem } a { color: inherit }
table { border-collapse: collapse; font-size: .85rem } .scroll { overflow-x: auto }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
.yes { color: var(--yes) } .no { color: var(--no) }
nav a { margin-right: 1rem }
"""


CLASSES = {True: "yes", False: "no", None: "soft"}


def write_index(folder: Path) -> Path:
    """Write ``index.html`` into an output folder: a section a notebook, pictures inside, no other file needed."""
    notes = {file.stem: json.loads(file.read_text()) for file in folder.glob("figures/*.json")}
    executed = {}
    for file in sorted(folder.glob("notebooks/*.ipynb")):
        executed.setdefault(file.name[:2], []).append(file)
    pictures = [*folder.glob("figures/*.png"), *folder.glob("figures/*.gif")]
    pictures.sort(key=lambda file: (notes.get(file.stem, {}).get("place", 0), file.name))  # as notebooks show them
    numbers = sorted({file.name[:2] for file in pictures} | set(executed))
    sections = [_section(number, folder, pictures, notes, executed.get(number, [])) for number in numbers]
    title = f"attnconv: {html.escape(folder.name)}"
    links = " ".join(f'<a href="#n{number}">{number}</a>' for number in numbers)
    explorer = (
        '<p><a href="explorer.html">The head explorer</a>: hover over an image, all heads answer.</p>'
        if (folder / "explorer.html").is_file()
        else ""
    )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        "<p>Figures, tables and verdicts of <em>On the Relationship between Self-Attention and Convolutional "
        "Layers</em>, reproduced. Every picture is also in <code>figures/</code>, all but the animations as PDF.</p>"
        f"{explorer}<nav>Notebooks: {links}</nav>"
        f"{_runs(find_runs(folder / 'runs'))}{''.join(sections)}</html>\n"
    )
    with writing(folder / "index.html") as temporary:
        temporary.write_text(page)
    return folder / "index.html"


def _runs(runs: list[Run]) -> str:
    rows = [["run folder", "model", "epochs", "data", "test accuracy, last epoch"]]
    for run in runs:
        accuracy = f"{100 * run.test_accuracy:.2f}%"
        rows.append([run.path.name, run.title, str(run.train.epochs), run.config["data"]["name"], accuracy])
    return _table(rows) if runs else ""


def _section(number: str, folder: Path, pictures: list[Path], notes: dict[str, dict], notebooks: list[Path]) -> str:
    title = notebooks[0].stem.split("-")[0][3:].replace("_", " ") if notebooks else ""
    links = ", ".join(f'<a href="notebooks/{file.name}">{html.escape(file.stem)}</a>' for file in notebooks)
    parts = [f'<h2 id="n{number}">{number} {html.escape(title)}</h2><p class="soft">{links}</p>']
    for file in sorted(folder.glob(f"tables/{number}-*.csv")):
        with file.open(newline="") as lines:
            parts.append(_table(list(csv.reader(lines))))
    for picture in pictures:
        if picture.name.startswith(number):
            parts.append(_figure(picture, notes.get(picture.stem, {})))
    claims = [
        claim | {"run": file.stem.partition("-claims-")[2]}  # empty where it is about several
        for file in sorted(folder.glob(f"tables/{number}-*.json"))
        for claim in json.loads(file.read_text())
    ]
    if claims:
        rows = "".join(
            f'<tr><td>{html.escape(c["run"])}<td>{html.escape(c["text"])}<td class="{CLASSES[c["holds"]]}">'
            f"{VERDICTS[c['holds']]} here<td>{html.escape(c['evidence'])}"
            for c in claims
        )
        parts.append(f'<div class="scroll"><table><tr><th>run<th>claim<th>verdict<th>evidence{rows}</table></div>')
    return "".join(parts)


def _figure(picture: Path, note: dict) -> str:
    kind = picture.suffix[1:]
    caption = html.escape(note.get("caption") or picture.stem[3:].replace("-", " "))
    runs = ", ".join(note.get("runs", []))
    source = f' <span class="soft">From {html.escape(runs)}.</span>' if runs else ""
    data = base64.b64encode(picture.read_bytes()).decode()
    return (
        f'<figure><img alt="{caption}" src="data:image/{kind};base64,{data}">'
        f"<figcaption>{caption}{source} <code>{picture.name}</code></figcaption></figure>"
    )


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in body)
    return f'<div class="scroll"><table><tr>{"".join(f"<th>{html.escape(cell)}" for cell in head)}{cells}</table></div>'
