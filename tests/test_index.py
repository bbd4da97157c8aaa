"""The site of an output folder: self-contained, complete, safe with any text and any damage; the README's tables."""

import json
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from attnconv.analysis.claims import PAPER_CLAIMS, Claims
from attnconv.batch import pages
from attnconv.batch.pages import RECORD, export_html, write_page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from tables import readme_tables  # noqa: E402

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
PAGES = {path.stem: f"{path.stem}.html" for path in NOTEBOOKS}


@pytest.fixture
def output(tmp_path):
    for folder in ("figures", "tables", "notebooks"):
        (tmp_path / folder).mkdir()
    return tmp_path


def test_the_page_shows_figures_tables_and_verdicts_and_needs_no_other_file(output):
    Image.new("RGB", (3, 2)).save(output / "figures" / "04-centres.png")
    Image.new("RGB", (3, 2)).save(output / "figures" / "05-plain.png")
    note = {"caption": "Heads <& centres>", "runs": ["quadratic-seed0-aa"]}
    (output / "figures" / "04-centres.json").write_text(json.dumps(note))
    (output / "tables" / "06-table1.csv").write_text('model,accuracy\nResNet18,"93,8"\n')
    check(output, "04-claims", "hybrid", False, "3 < 4")
    check(output, "04-claims-2", "free-start", None, "-")
    cells = [nbformat.v4.new_markdown_cell("# Accuracy <i>versus</i> ResNet\n\nText.")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), output / "notebooks" / "06_acc<b>&'%23-x.ipynb")
    (output / "notebooks" / ".running-06_acc.ipynb").write_text("{}")
    page = write_page(output).read_text()
    assert "Heads &lt;&amp; centres&gt; " in page and "quadratic-seed0-aa" in page
    assert "does not hold here" in page and "is undecided here" in page and "3 &lt; 4" in page
    assert "<th>accuracy" in page and "<td>93,8" in page
    assert "06 Accuracy &lt;i&gt;versus&lt;/i&gt; ResNet</h2>" in page and ".running" not in page
    assert "notebooks/06_acc%3Cb%3E%26%27%2523-x.ipynb" in page and "acc<b>" not in page
    assert page.count("data:image/png;base64,") == 2 and 'alt="plain"' in page
    assert not re.search(r'(src|href)="(https?:|/)', page)
    assert re.findall(r'id="(n\d\d)"', page) == ["n04", "n05", "n06"]


def test_an_empty_folder_gives_a_page_and_the_explorer_a_link(tmp_path):
    page = write_page(tmp_path).read_text()
    assert "<h1>" in page and "explorer.html" not in page
    (tmp_path / "explorer.html").touch()
    assert 'href="explorer.html?site"' in write_page(tmp_path).read_text()


def test_figures_stand_in_the_order_of_their_notebook(output):
    for name, place in (("04-a", 3), ("04-b", 1), ("04-c", 2)):
        Image.new("RGB", (3, 2)).save(output / "figures" / f"{name}.png")
        (output / "figures" / f"{name}.json").write_text(json.dumps({"caption": name, "place": place}))
    assert re.findall(r'alt="(04-.)"', write_page(output).read_text()) == ["04-b", "04-c", "04-a"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[3, {}]", '[{"text": 1, "holds": [], "evidence": {}}]', "\x00"])
def test_damaged_files_leave_a_page(output, text):
    Image.new("RGB", (3, 2)).save(output / "figures" / "04-a.png")
    for file in ("figures/04-a.json", "tables/04-claims.json", "tables/04-t.csv", "notebooks/04_heads.ipynb"):
        (output / file).write_text(text)
    (output / "runs" / "a").mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl", "model.safetensors"):
        (output / "runs" / "a" / name).write_text(text)
    assert "04 heads</h2>" in write_page(output).read_text()


def test_files_without_end_or_of_no_sensible_size_leave_a_page_with_everything_else(output):
    for name in ("04-a.png", "04-b.png"):
        Image.new("RGB", (3, 2)).save(output / "figures" / name)
    os.mkfifo(output / "figures" / "04-a.json")
    os.mkfifo(output / "figures" / "04-c.png")
    (output / "tables" / "04-t.csv").write_text("a,b\n1,2\n" + '"' + "x" * 200_000)  # a cell that is not closed
    for name in ("figures/04-b.png", "figures/04-a.gif", "tables/04-u.csv", "notebooks/04_heads.ipynb"):
        with (output / name).open("wb") as sparse:
            sparse.truncate(2**40)
    page = write_page(output).read_text()
    assert page.count("data:image/") == page.count('alt="a"') == 1 and "<td>2" not in page


def test_any_damage_leaves_a_page_with_everything_else(output):
    Image.new("RGB", (3, 2)).save(output / "figures" / "04-a.png")
    claims = [{"key": "hybrid", "about": "It is so", "holds": True, "evidence": ["3 < 4"]}]
    (output / "figures" / "04-a.json").write_text(json.dumps({"caption": "Heads", "runs": ["r"], "place": 1}))
    (output / "tables" / "04-claims.json").write_text(json.dumps(claims))
    (output / "tables" / "04-t.csv").write_text('model,accuracy\nResNet18,"93,8"\n')
    cells = [nbformat.v4.new_markdown_cell("# Where heads look")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), output / "notebooks" / "04_heads.ipynb")
    files = {file: file.read_bytes() for file in sorted(output.glob("*/04*"))}
    signs = ["<figcaption>Heads", "data:image/png", "It is so", "holds here", "<td>93,8", "Where heads look</h2>"]
    page = write_page(output).read_text()
    assert all(sign in page for sign in signs)
    of_file = {"04-a.json": signs[:1], "04-a.png": signs[:2], "04-claims.json": signs[2:4], "04-t.csv": signs[4:5]}

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(list(files)), st.sampled_from(["cut", "flip", "delete"]), st.floats(0, 0.9999), st.data())
    def damage(file, kind, where, data):
        content = files[file]
        at = int(where * len(content))
        bit = 1 << data.draw(st.integers(0, 7))
        damaged = content[:at] + (bytes([content[at] ^ bit]) + content[at + 1 :] if kind == "flip" else b"")
        file.write_bytes(damaged) if kind != "delete" else file.unlink()
        page = write_page(output).read_text()
        file.write_bytes(content)
        may_miss = of_file.get(file.name, signs[5:])
        assert all(sign in page for sign in signs if sign not in may_miss) and "does not hold here" not in page

    damage()


def test_an_executed_notebook_becomes_a_page_that_the_index_links_to(output):
    cells = [nbformat.v4.new_markdown_cell("# Heads"), nbformat.v4.new_code_cell("1 + 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), output / "notebooks" / "04_heads.ipynb")
    export_html(output / "notebooks" / "04_heads.ipynb", output / "notebooks" / "04_heads.html")
    assert "<title>Heads</title>" in (output / "notebooks" / "04_heads.html").read_text()
    assert 'href="notebooks/04_heads.html"' in write_page(output).read_text()


def check(output, name, key, holds, evidence):
    Claims(output / "tables" / f"{name}.json").record(key, holds, [evidence])


@pytest.mark.parametrize(("holds", "word"), [(True, "Yes."), (False, "No."), (None, "Undecided.")])
def test_the_landing_screen_answers_from_what_was_checked(output, monkeypatch, holds, word):
    monkeypatch.setattr(pages, "RECORD", output / "no record beside it")
    check(output, "04-claims", "grid", holds, "layers 1 and 2 cover 8 and 9 taps")
    start, board = write_page(output).read_text().split('id="scoreboard"')
    answers = dict(re.findall(r"<dt>(.*?)\n(.*?)(?=<dt>|</dl>)", start, re.DOTALL))
    assert list(answers) == [claim.question for claim in PAPER_CLAIMS.values() if claim.question] and len(answers) == 5
    answer = answers.pop(PAPER_CLAIMS["grid"].question)
    assert word in answer and "Layers 1 and 2 cover 8 and 9 taps." in answer
    assert all("Not checked here yet: notebook 0" in text for text in answers.values())
    assert board.count("<summary") == 1 and board.count("not checked") == len(PAPER_CLAIMS) - 1


def test_trained_models_are_listed_with_their_data_and_accuracy(output):
    assert 'id="runs"' not in write_page(output).read_text()
    (output / "runs").symlink_to(RECORD / "runs")
    runs = write_page(output).read_text().split('id="runs"')[1]
    [row] = [line.split("<td") for line in runs.splitlines() if "quadratic-seed0" in line]
    assert row[2:] == [">SA quadratic", ' class="number">20', ">JPEG copy of CIFAR-10", ' class="number">87.52%']


def test_figures_of_the_paper_stand_in_its_order_with_the_verdict_that_rests_on_them(output):
    captions = {"06-accuracy": "Curves (figure 2).", "04-b": "Heads (figure 10).", "04-c": "More (appendix)."}
    captions |= {
        "05-x": "Ours, of no figure.",
        PAPER_CLAIMS["grid"].figure: "Grid (figure 4).",
        "05-y": "(to figure 6)",
    }
    for name, caption in captions.items():
        Image.new("RGB", (3, 2)).save(output / "figures" / f"{name}.png")
        (output / "figures" / f"{name}.json").write_text(json.dumps({"caption": caption}))
    check(output, "04-claims", "grid", False, "1 of 9 taps")
    page = write_page(output).read_text()
    paper, rest = page.split('id="figures"')[1].split('id="notebooks"')
    grid = PAPER_CLAIMS["grid"].figure
    assert re.findall(r'figure id="(.*?)"', paper) == ["06-accuracy", grid, "05-y", "04-b", "04-c"]
    assert re.findall(r"<h3>(.*?)</h3>", paper) == ["Figure 2", "Figure 4", "Figure 6", "Figure 10", "Appendix"]
    assert re.findall(r'figure id="(.*?)"', rest) == ["05-x"]
    assert "Does not hold here" in paper.split(f'id="{grid}"')[1].split("</figure>")[0]
    assert paper.count("hold here") == 1


def test_table_1_has_a_link_numbers_on_the_right_and_a_dash_for_what_is_missing(output):
    rows = ["Model,Accuracy (%),Against the paper", "SA quadratic,87.25,not comparable: hidden 96", "ResNet18,87.5,"]
    (output / "tables" / "06-table1.csv").write_text("\n".join(rows))
    page = write_page(output).read_text()
    assert '<a href="#06-table1">Table 1</a>' in page
    table = page.split('id="06-table1"')[1].split("</table>")[0]
    assert '<td>ResNet18<td class="number">87.5<td class="number">—' in table
    assert '<th>Model<th class="number">Accuracy (%)' in table


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_formulas_and_links_of_every_notebook_work_without_a_network(path, tmp_path):
    export_html(path, tmp_path / PAGES[path.stem], PAGES)
    page = (tmp_path / PAGES[path.stem]).read_text()
    formulas = re.findall(r"<math.*?</math>", page, re.DOTALL)
    source = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    assert len(formulas) == sum(len(re.findall(r"\$\$.+?\$\$|\$[^$]+?\$", text, re.DOTALL)) for text in source)
    assert not any("\\" in formula for formula in formulas)  # a command that is not known stays as it was
    assert not re.search(r'(src|<link[^>]*href)="https?:', page)
    inside = {link for link in re.findall(r'href="([^"#]+)"', page) if "://" not in link}
    assert inside <= {"../index.html", *PAGES.values()}
    place = NOTEBOOKS.index(path)
    for step, kind in ((-1, "prev"), (1, "next")):
        beside = NOTEBOOKS[place + step].stem if 0 <= place + step < len(NOTEBOOKS) else None
        assert re.findall(rf'href="(.*?)" rel="{kind}"', page) == ([PAGES[beside]] if beside else [])


def test_what_players_and_widgets_ask_of_the_network_is_left_out(output):
    data = {"text/html": '<link rel="stylesheet"\nhref="https://example.org/font.css"><p>film</p>'}
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "a"}, "text/plain": "a bar in words"}
    outputs = [nbformat.v4.new_output("display_data", one) for one in (data, widget)]
    cell = nbformat.v4.new_code_cell("1", outputs=outputs)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), output / "notebooks" / "04_heads.ipynb")
    export_html(output / "notebooks" / "04_heads.ipynb", output / "a.html")
    page = (output / "a.html").read_text()
    assert "<p>film</p>" in page and "example.org" not in page
    assert "a bar in words" in page and "<script" not in page


def test_a_formula_that_cannot_be_read_stays_as_it_was_written(output):
    cell = nbformat.v4.new_markdown_cell(r"Right: $a < b$. Wrong: $\left( x < y$. Right again: $c$.")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), output / "notebooks" / "04_heads.ipynb")
    export_html(output / "notebooks" / "04_heads.ipynb", output / "a.html")
    page = (output / "a.html").read_text()
    assert page.count("<math") == 2 and "<code>\\left( x &lt; y</code>" in page and "$" not in page


# The README


def test_the_tables_of_the_readme_are_those_of_the_committed_records():
    text = (ROOT / "README.md").read_text()
    for table in readme_tables().split("\n\n"):
        assert table in text, "paste what docs/tables.py prints"


def test_the_readme_shows_verdicts_and_accuracies_of_a_record(output):
    check(output, "04-claims-quadratic", "local", False, "-")
    check(output, "05-claims", "local", None, "-")
    (output / "tables" / "06-table1.csv").write_text("Model,Accuracy (%)\nSA quadratic,87.251\nSA new,60\n")
    board, accuracies = readme_tables({"mine": output, "empty": output / "nowhere"}).split("\n\n")
    [local] = [line for line in board.splitlines() if PAPER_CLAIMS["local"].text in line]
    assert "does not hold, is undecided" in local.split("|")[-3] and local.split("|")[-2].strip() == "—"
    assert all((ROOT / link).is_file() for link in re.findall(r"\((notebooks/.*?)\)", board))
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in accuracies.splitlines()}
    assert rows["SA quadratic"] == ["93.8", "93.65", "87.3", "—"] and rows["SA new"] == ["—", "—", "60.0", "—"]


def test_the_readme_leads_to_every_notebook_and_to_its_executed_copy_where_one_is_kept():
    text = (ROOT / "README.md").read_text()
    links = set(re.findall(r"\]\(([^)#:]+)\)", text))
    assert {f"notebooks/{path.name}" for path in NOTEBOOKS} <= links
    kept = [*(ROOT / "outputs" / "evening" / "notebooks").glob("*.ipynb")]
    assert {path.relative_to(ROOT).as_posix() for path in kept if not path.stem.startswith("03")} <= links
    assert all((ROOT / link).exists() for link in links)
