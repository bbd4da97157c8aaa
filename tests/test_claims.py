"""Claims and their verdicts; the scoreboard of the paper's claims."""

import json
import os
from pathlib import Path

import nbformat
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnconv.analysis.claims import PAPER_CLAIMS, Claim, Claims, read_claims, scoreboard

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def saved(folder, name, *claims):
    made = Claims(folder / "tables" / f"{name}.json")
    for claim in claims:
        made.check(*claim[:3], paper=claim[3] if len(claim) > 3 else "")
    made.save()
    return made


def test_claims_are_saved_and_shown(tmp_path):
    made = saved(tmp_path, "01-claims", ("A", True, "1 of 1"), ("B", np.False_, "0 of 1"), ("C", None, "1 of 2"))
    shown = [claim._repr_markdown_() for claim in made]
    assert "**holds here**" in shown[0] and "**does not hold here**" in shown[1] and "**is undecided here**" in shown[2]
    assert read_claims(made.file) == list(made)
    assert json.loads(made.file.read_text())[1] == {"text": "B", "holds": False, "evidence": "0 of 1", "paper": ""}


def test_a_claim_of_the_paper_must_be_one():
    with pytest.raises(ValueError, match="'gird' is no claim of the paper: theorem, .*grid"):
        Claim("A", True, "1", "gird")


@pytest.mark.parametrize(
    "text", ["", "{}", "[1, null]", '[{"text": "A"}]', '[{"text": "A", "holds": 1, "evidence": "e", "paper": []}]']
)
def test_what_is_damaged_is_passed_over(tmp_path, text):
    file = tmp_path / "claims.json"
    file.write_text(text)
    assert read_claims(file) == [] == read_claims(tmp_path / "nothing.json")
    file.unlink()
    os.mkfifo(file)  # would never end
    assert read_claims(file) == []


def test_damage_takes_claims_away_but_never_changes_a_verdict(tmp_path):
    made = saved(tmp_path, "04-claims", ("A", True, "1", "grid"), ("B", False, "0"), ("C", None, "?", "reach"))
    content = made.file.read_bytes()

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def damage(data):
        at, kind = data.draw(st.integers(0, len(content) - 1)), data.draw(st.sampled_from(["cut", "flip", "type"]))
        damaged = content[:at]
        if kind == "flip":
            damaged += bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]
        elif kind == "type":
            values = json.loads(content)
            name = data.draw(st.sampled_from(["text", "holds", "evidence", "paper"]))
            values[at % 3][name] = data.draw(st.sampled_from([5, -1.5, "yes", [], {}, [[1]]]))
            damaged = json.dumps(values).encode()
        made.file.write_bytes(damaged)
        left = iter(made)
        for claim in read_claims(made.file):  # those that are left, in their order
            assert any(one.holds is claim.holds and one.paper == claim.paper for one in left)
            assert isinstance(claim.text, str) and isinstance(claim.evidence, str)

    damage()


def test_the_scoreboard_has_every_claim_of_the_paper_and_none_of_ours(tmp_path):
    saved(tmp_path / "one", "04-claims-quadratic", ("Grid here", True, "8 and 8", "grid"), ("Ours", True, "1"))
    saved(tmp_path / "one", "05-claims", ("Learned", None, "?", "reach"), ("Content", True, "!", "reach"))
    saved(tmp_path / "two", "04-claims-quadratic", ("Grid there", False, "3 and 4", "grid"))
    board = scoreboard({"one": tmp_path / "one", "two": tmp_path / "two"})
    assert [claim for claim, _ in board] == list(PAPER_CLAIMS.values())
    found = {claim.text: checked for claim, checked in board}
    grid, reach = (found[PAPER_CLAIMS[key].text] for key in ("grid", "reach"))
    assert [c.evidence for c in grid["one"]] == ["8 and 8"] and [c.holds for c in grid["two"]] == [False]
    assert [c.text for c in reach["one"]] == ["Learned", "Content"] and "two" not in reach
    assert sum(len(checked) for checked in found.values()) == 3  # one folder for reach, two for the grid


def test_every_claim_of_the_paper_is_checked_by_its_notebook():
    for key, claim in PAPER_CLAIMS.items():
        [notebook] = NOTEBOOKS.glob(f"{claim.notebook}_*.ipynb")
        code = "".join(c.source for c in nbformat.read(notebook, as_version=4).cells if c.cell_type == "code")
        assert f'"{key}"' in code, f"{notebook.name} does not check {key}"
        assert claim.figure.startswith(f"{claim.notebook}-"), f"{key} rests on a picture of another notebook"
