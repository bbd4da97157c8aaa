"""The site of an output folder: self-contained, complete, safe with any text; the
README's tables."""

import json
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from attnconv.training.runs import find_runs
from companion.claims import SENTENCES, Claim, Claims
from companion.pages import export_html, write_page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import tables  # noqa: E402

RECORD = ROOT / "outputs" / "evening"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
BESIDE = {"../playground.html?site=explorer", "../explorer.html?site=playground"}
PAGES = {path.name[:2]: f"{path.stem}.html" for path in NOTEBOOKS} | {"00": "../found.html"}


@pytest.fixture
def output(tmp_path):
    for folder in ("figures", "tables", "notebooks"):
        (tmp_path / folder).mkdir()
    return tmp_path


def markdown(text):
    return nbformat.v4.new_markdown_cell(text)


def put(output, name, *cells):
    """An executed notebook; the index is made of 00."""
    nbformat.write(
        nbformat.v4.new_notebook(cells=list(cells)), output / "notebooks" / f"{name}.ipynb"
    )
    return output / "notebooks" / f"{name}.ipynb"


def picture(output, name, **note):
    Image.new("RGB", (3, 2)).save(output / "figures" / f"{name}.png")
    if note:
        (output / "figures" / f"{name}.json").write_text(json.dumps(note))


def found_in(output, runs=()):
    """The page of what was found."""
    return write_page(output, runs).with_name("found.html").read_text()


def exported(output, *cells):
    """The page of a notebook with these cells."""
    copy = put(output, "04_heads", *cells)
    export_html(copy, {})
    return copy.with_suffix(".html").read_text()


def test_what_was_found_is_notebook_00_then_all_files_by_notebook(output):
    picture(output, "04-centres", caption="Heads <& centres>", runs=["quadratic-seed0-aa"])
    picture(output, "05-plain")
    (output / "tables" / "06-table1.csv").write_text('model,accuracy\nResNet18,"93,8"\n')
    put(output, "06_acc<b>&'%23-x", markdown("# Accuracy <i>versus</i> ResNet\n\nText."))
    card = Claim("grid", "does not", "3 < 4")
    shown = nbformat.v4.new_output("display_data", {"text/html": card.html(), "text/plain": "card"})
    text = "# What was found\n\nSee [06](06_acc<b>&'%23.ipynb), [07](07_none.ipynb), "
    text += "[the data](../data/README.md)."
    put(
        output,
        "00_what_was_found",
        markdown(text),
        nbformat.v4.new_code_cell("show(1)", outputs=[shown]),
    )
    page = found_in(output)
    found, rest = page.split('id="notebooks"')
    assert "What was found" in found and "✘" in found and "3 &lt; 4" in found
    assert "show(1)" not in page and "00 What was found" not in rest
    assert "Heads &lt;&amp; centres&gt; " in rest and "quadratic-seed0-aa" in rest
    assert "06 Accuracy &lt;i&gt;versus&lt;/i&gt; ResNet</h2>" in rest
    assert "notebooks/06_acc%3Cb%3E%26%27%2523-x.ipynb" in rest and "acc<b>" not in rest
    assert (
        page.count('src="figures/0') == 2
        and 'alt="05-plain"' in page
        and 'href="tables/06-table1.csv"' in page
    )
    assert not re.search(r'src="(https?:|/)|href="/', page)
    assert not re.findall(r'href="(https?:[^"]+)"', page)
    assert re.findall(r'id="(n\d\d)"', page) == ["n04", "n05", "n06"]


def test_executed_notebooks_are_pages_to_which_the_index_and_its_links_lead(output):
    put(output, "03_train-learned-seed0", markdown("# Train"))
    put(output, "03_train-quadratic-seed0", markdown("# Train"))
    put(
        output,
        "00_what_was_found",
        markdown("# Found\n\n[03](03_train-learned-seed0.ipynb) [04](04_heads.ipynb#x)"),
    )
    assert "<title>Heads</title>" in exported(output, markdown("# Heads"))
    found, rest = found_in(output).split('id="notebooks"')
    assert (
        'href="notebooks/03_train-learned-seed0.html"' in found
        and 'href="notebooks/04_heads.html"' in rest
    )


def test_an_empty_folder_gives_a_page_and_the_explorer_a_link(tmp_path):
    page = found_in(tmp_path)
    assert "What was found</h1>" in page and "explorer.html" not in page
    (tmp_path / "explorer.html").touch()
    assert 'href="explorer.html?site="' in found_in(tmp_path)


def test_trained_models_are_listed_with_their_data_and_accuracy(output):
    assert 'id="runs"' not in found_in(output)
    runs = found_in(output, find_runs(RECORD / "runs")).split('id="runs"')[1]
    [row] = [line.split("<td") for line in runs.splitlines() if "quadratic-seed0" in line]
    assert row[2:] == [
        ">SA quadratic",
        ' class="number">20',
        ">JPEG copy of CIFAR-10",
        ' class="number">88.31%',
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_formulas_and_links_of_every_notebook_work_without_a_network(path, tmp_path):
    (tmp_path / "notebooks").mkdir()
    copy = Path(shutil.copy(path, tmp_path / "notebooks"))
    export_html(copy, PAGES)
    page = copy.with_suffix(".html").read_text()
    formulas = re.findall(r"<math.*?</math>", page, re.DOTALL)
    source = [
        cell.source
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown"
    ]
    assert len(formulas) == sum(
        len(re.findall(r"\$\$.+?\$\$|\$[^$]+?\$", text, re.DOTALL)) for text in source
    )
    assert not any(
        "\\" in formula for formula in formulas
    )  # a command that is not known stays as it was
    assert not re.search(r'(src|<link[^>]*href)="https?:', page)
    inside = {link for link in re.findall(r'href="([^"#]+)"', page) if "://" not in link}
    assert inside <= {
        "../index.html",
        "../found.html",
        "../style.css",
        *PAGES.values(),
        *{f"../notebooks/{name}" for name in PAGES.values()},
        *BESIDE,
    }
    place = NOTEBOOKS.index(path)
    for step, kind in ((-1, "prev"), (1, "next")):
        beside = NOTEBOOKS[place + step].name[:2] if 0 <= place + step < len(NOTEBOOKS) else None
        assert re.findall(rf'href="(.*?)" rel="{kind}"', page) == (
            [PAGES[beside]] if beside else []
        )


def test_a_widget_is_shown_in_words(output):
    widget = {
        "application/vnd.jupyter.widget-view+json": {"model_id": "a"},
        "text/plain": "a bar in words",
    }
    shown = nbformat.v4.new_output("display_data", widget)
    page = exported(output, nbformat.v4.new_code_cell("1", outputs=[shown]))
    assert "a bar in words" in page and "<script" not in page


def test_a_formula_that_cannot_be_read_stays_as_it_was_written(output):
    text = r"Right: $a < b$. Wrong: $\left( x < y$. Right again: $c$."
    page = exported(output, markdown("# Formulas"), markdown(text))
    assert page.count("<math") == 2 and "<code>\\left( x &lt; y</code>" in page and "$" not in page


# The README


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_the_pages_are_those_of_the_committed_records(page):
    text = page.read_text()
    assert text.count("<!-- -->") >= 1 and tables.drawn(text) == text, "run docs/tables.py"


def test_tables_show_verdicts_and_accuracies_of_a_record(output):
    Claims(output / "tables" / "04-claims.json").record(Claim("local", "does not", "3 of 9 heads"))
    rows = ["Model,Accuracy (%),±,Seeds,Epochs", "SA quadratic,87.251,0.12,2,20", "SA new,60,,1,3"]
    (output / "tables" / "06-table1.csv").write_text("\n".join(rows))
    folders = {"mine": output, "empty": output / "nowhere"}
    board = tables.verdicts({"mine": output})
    [local] = [line for line in board.splitlines() if SENTENCES["local"].text in line]
    assert [cell.strip() for cell in local.split("|")[3:5]] == ["✘", "3 of 9 heads"]
    assert all(
        (ROOT / "docs" / link).is_file() for link in re.findall(r"\((\S*notebooks/.*?)\)", board)
    )
    lines = tables.accuracies(folders).splitlines()
    found = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in lines
    }
    assert found["Test accuracy (%)"] == ["Paper", "2021", "mine", "epochs", "empty", "epochs"]
    assert found["SA quadratic"] == ["93.8", "93.65", "87.25 ± 0.12", "20", "—", "—"]
    assert found["SA new"] == ["—", "—", "60.0", "3", "—", "—"]
    page = "a\n<!-- accuracies: mine -->\nstale 1\n<!-- -->\nb <!-- verdicts: mine --><!-- -->"
    assert (
        "stale 1" not in tables.drawn(page, folders)
        and tables.drawn(page, folders).count("87.25 ± 0.12") == 1
    )


def test_links_of_the_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
