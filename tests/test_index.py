"""The index page: self-contained, complete, and safe with any text."""

import json
import re

from PIL import Image

from attnconv.index import write_index


def test_the_page_shows_figures_tables_and_verdicts_and_needs_no_other_file(tmp_path):
    for folder in ("figures", "tables", "notebooks"):
        (tmp_path / folder).mkdir()
    Image.new("RGB", (3, 2)).save(tmp_path / "figures" / "04-centres.png")
    Image.new("RGB", (3, 2)).save(tmp_path / "figures" / "05-plain.png")
    note = {"caption": "Heads <& centres>", "runs": ["quadratic-seed0-aa"]}
    (tmp_path / "figures" / "04-centres.json").write_text(json.dumps(note))
    (tmp_path / "tables" / "06-table1.csv").write_text('model,accuracy\nResNet18,"93,8"\n')
    claims = [{"text": "It is so", "holds": False, "evidence": "3 < 4"}, {"text": "?", "holds": None, "evidence": "-"}]
    (tmp_path / "tables" / "04-claims.json").write_text(json.dumps(claims))
    (tmp_path / "notebooks" / "06_accuracy.ipynb").write_text("{}")
    page = write_index(tmp_path).read_text()
    assert "Heads &lt;&amp; centres&gt; " in page and "quadratic-seed0-aa" in page
    assert "does not hold here" in page and "is undecided here" in page and "3 &lt; 4" in page and "<td>93,8" in page
    assert page.count("data:image/png;base64,") == 2 and 'alt="plain"' in page
    assert not re.search(r'(src|href)="(https?:|/)', page)
    assert {"#n04", "#n05", "#n06"} == set(re.findall(r"#n\d\d", page))


def test_an_empty_folder_gives_a_page_and_the_explorer_a_link(tmp_path):
    page = write_index(tmp_path).read_text()
    assert "<h1>" in page and "explorer.html" not in page
    (tmp_path / "explorer.html").touch()
    assert 'href="explorer.html"' in write_index(tmp_path).read_text()


def test_figures_stand_in_the_order_of_their_notebook(tmp_path):
    (tmp_path / "figures").mkdir()
    for name, place in (("04-a", 3), ("04-b", 1), ("04-c", 2)):
        Image.new("RGB", (3, 2)).save(tmp_path / "figures" / f"{name}.png")
        (tmp_path / "figures" / f"{name}.json").write_text(json.dumps({"caption": name, "place": place}))
    assert re.findall(r'alt="(04-.)"', write_index(tmp_path).read_text()) == ["04-b", "04-c", "04-a"]
