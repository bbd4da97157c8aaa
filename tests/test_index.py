"""The page of everything: self-contained, complete, and safe with any text and any damage."""

import json
import re

import nbformat
import pytest
from PIL import Image

from attnconv.pages import export_html, write_page


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
    claims = [{"text": "It is so", "holds": False, "evidence": "3 < 4"}, {"text": "?", "holds": None, "evidence": "-"}]
    (output / "tables" / "04-claims.json").write_text(json.dumps(claims))
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
    assert {"#n04", "#n05", "#n06"} == set(re.findall(r"#n\d\d", page))


def test_an_empty_folder_gives_a_page_and_the_explorer_a_link(tmp_path):
    page = write_page(tmp_path).read_text()
    assert "<h1>" in page and "explorer.html" not in page
    (tmp_path / "explorer.html").touch()
    assert 'href="explorer.html"' in write_page(tmp_path).read_text()


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


def test_an_executed_notebook_becomes_a_page_that_the_index_links_to(output):
    cells = [nbformat.v4.new_markdown_cell("# Heads"), nbformat.v4.new_code_cell("1 + 1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), output / "notebooks" / "04_heads.ipynb")
    export_html(output / "notebooks" / "04_heads.ipynb", output / "notebooks" / "04_heads.html")
    assert "<title>Heads</title>" in (output / "notebooks" / "04_heads.html").read_text()
    assert 'href="notebooks/04_heads.html"' in write_page(output).read_text()
