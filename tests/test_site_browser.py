"""The site of an output folder in a real browser with the network off: phone and desktop, light
and dark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from attnconv.training.runs import find_runs
from browser import PHONE, SETTLED, finger, needs_browser, playwright
from companion.claims import SENTENCES, SIGNS, Claim, Claims
from companion.pages import export_html, write_page

pytestmark = needs_browser
RECORD = Path(__file__).parents[1] / "outputs" / "evening"
SCREENS = {"phone": (390, 844), "desktop": (1280, 900)}
FORMULAS = r"""# A formula

Inline $W^h = W^h_{val} W^h_{out}$, and in a table:

| Letter | Meaning |
|---|---|
| $\widehat W$ | a matrix |

$$P = \mathrm{softmax}\big(\underbrace{XW_{qry}}_{Q}\,\underbrace{(XW_{key})^\top}_{K^\top}\big),
\qquad \mathrm{head}(X) = P\,X\,W_{val}$$

[Next](05_learned.ipynb)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with every kind of content, as wide as the real one: claims, Table 1, figures, two
    notebooks.
    """
    output = tmp_path_factory.mktemp("site")
    for folder in ("figures", "tables", "notebooks"):
        (output / folder).mkdir()
    claims = Claims(output / "tables" / "04-claims.json")
    table = [{"network": "a seed", "before training": 5, **{f"layer {n}": n for n in range(6)}}]
    cards = []
    for place, key in enumerate(SENTENCES):
        cards.append(Claim(key, [*SIGNS][place % 4], "8 of 9 taps", table))
        claims.record(cards[-1])
    wide = pd.DataFrame(
        {f"a column of many words {i}": [f"{i} by chance"] for i in range(14)}
    ).to_html(index=False)
    shown = [*(card.html() for card in cards), wide]
    outputs = [
        nbformat.v4.new_output("display_data", {"text/html": text, "text/plain": "-"})
        for text in shown
    ]
    cells = [
        nbformat.v4.new_markdown_cell("# What was found\n\n**Does it learn to be one?**"),
        nbformat.v4.new_code_cell("1"),
    ]
    cells[1].outputs = outputs
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells), output / "notebooks" / "00_what_was_found.ipynb"
    )
    captions = {
        "04-gaussian-heads-quadratic": "Heads (figure 4).",
        "05-wide": "A picture of no figure of the paper.",
    }
    for name, caption in captions.items():
        Image.new("RGB", (1800, 600), "white").save(output / "figures" / f"{name}.png")
        (output / "figures" / f"{name}.json").write_text(json.dumps({"caption": caption}))
    pages = {"04": "04_heads.html", "05": "05_learned.html"}
    for name in ("04_heads", "05_learned"):
        code = nbformat.v4.new_code_cell("x = 1  # " + "a long line " * 20)
        text = nbformat.v4.new_markdown_cell(FORMULAS)
        nbformat.write(
            nbformat.v4.new_notebook(cells=[text, code]), output / "notebooks" / f"{name}.ipynb"
        )
        export_html(output / "notebooks" / f"{name}.ipynb", pages)
    (output / "runs").symlink_to(RECORD / "runs")
    for name in ("playground", "explorer"):
        (output / f"{name}.html").write_text("<title>it</title>")
    return write_page(output, find_runs(output / "runs"))


@pytest.fixture(
    params=[(screen, scheme) for screen in SCREENS for scheme in ("light", "dark")], ids="-".join
)
def page(request: pytest.FixtureRequest, browser: playwright.Browser) -> Iterator[playwright.Page]:
    """A page without a network; what it asks of one, and its errors, must stay none."""
    screen, scheme = request.param
    width, height = SCREENS[screen]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    )
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda asked: asked.url.startswith(("file:", "data:")) or wrong.append(asked.url)
    )
    yield page
    context.close()
    assert not wrong


LIGHT = pytest.mark.parametrize(
    "page", [(screen, "light") for screen in SCREENS], ids="-".join, indirect=True
)
"""The dark scheme changes colours only."""


def fits(page: playwright.Page) -> bool:
    """Whether the page as a whole need not be moved sideways; wide tables and formulas move
    within it.
    """
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


LOWEST_CONTRAST = r"""(within) => {
  const rgb = (text) => text.match(/[\d.]+/g).map(Number)
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => linear(v / 255))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor)
      if (colour.length < 4 || colour[3] > 0) return colour
    }
    return [255, 255, 255]
  }
  const isText = (node) => node.nodeType === 3 && node.data.trim()
  const written = (element) => element.checkVisibility() && [...element.childNodes].some(isText)
  const words = [...document.querySelectorAll(`${within || "body"} *:not(script, style)`)]
  return Math.min(...words.filter(written).map((element) => {
    const both = [rgb(getComputedStyle(element).color), behind(element)]
    const [a, b] = both.map(light).sort((x, y) => y - x)
    return (a + 0.05) / (b + 0.05)
  }))
}"""
"""The smallest contrast of any text with what is behind it, as the WCAG defines it."""


DOTS = """[...document.querySelectorAll('.film .dot')].map((dot) => {
  const { e, f } = dot.transform.baseVal.consolidate().matrix
  return [f, e]
})"""
"""Where the film's heads are: rows, columns."""
COLOURED = """[...document.querySelectorAll('.film .tap')].map((one) =>
  [one.y, one.x].map((at) => at.baseVal.value + 0.5))"""
"""The taps of the kernel that have a head with most of its attention there."""
HALF = "document.querySelector('.film svg').viewBox.baseVal.width / 2"
"""From the film's middle to its rim, in pixels of the grid."""


def test_the_first_screen_asks_shows_heads_and_leads_on(page: playwright.Page, site: Path) -> None:
    page.goto(site.as_uri())
    assert fits(page) and page.evaluate(LOWEST_CONTRAST) >= 4.5  # the WCAG's bound
    for shown in (
        "h1 >> nth=0",
        ".film svg",
        "text=Move the heads",
        "text=Look into a trained network",
    ):
        box = page.locator(shown).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= page.viewport_size["height"], shown
    assert "Does it learn to be one?" in page.locator("h1").first.inner_text()


@LIGHT
def test_the_film_runs_once_from_the_start_to_the_end_and_heads_can_be_dragged(
    page, site: Path
) -> None:
    run = next(run for run in find_runs(RECORD / "runs") if run.preset == "quadratic")
    page.goto(site.as_uri())
    layer = int(re.search(r"layer (\d)", page.locator(".film figcaption").inner_text())[1]) - 1
    history = run.heads["parameter_centre"][:, layer]
    np.testing.assert_allclose(page.evaluate(DOTS), history[0], atol=0.3)
    assert page.evaluate(HALF) > np.abs(history[0]).max()  # the start is seen
    assert page.locator(".film output").inner_text() == "before training"
    page.locator(".film output", has_text=f"after {len(history) - 1} epochs").wait_for()
    page.wait_for_timeout(500)
    np.testing.assert_allclose(page.evaluate(DOTS), history[-1], atol=0.011)
    assert 1.5 < page.evaluate(HALF) < 2.7  # the end fills the frame
    sharp = run.heads["mass"][-1] > 0.5
    taps = [
        {tuple(tap) for tap in np.rint(run.heads["parameter_centre"][-1, i][on]).astype(int)}
        for i, on in enumerate(sharp)
    ]
    taps = [{tap for tap in some if np.abs(tap).max() <= 1} for some in taps]
    assert {tuple(tap) for tap in page.evaluate(COLOURED)} == taps[layer] and len(
        taps[layer]
    ) == max(map(len, taps))
    box = page.locator(".film .query").bounding_box()  # a pixel
    centre = page.locator(".film .dot circle").first.bounding_box()
    page.mouse.move(centre["x"] + centre["width"] / 2, centre["y"] + centre["height"] / 2)
    page.mouse.down()
    page.mouse.move(
        box["x"] + 2 * box["width"], box["y"] - box["height"]
    )  # 1.5 to the right and up
    page.mouse.up()
    np.testing.assert_allclose(page.evaluate(DOTS)[0], (-1.5, 1.5), atol=0.1)
    page.locator(".film .dot").nth(1).focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate(DOTS)[1][0] == pytest.approx(history[-1][1][0] + 0.25, abs=0.02)
    page.locator(".film button").click()
    np.testing.assert_allclose(page.evaluate(DOTS), history[0], atol=0.3)


def test_a_finger_drags_a_head_of_the_film_and_elsewhere_it_scrolls(
    browser: playwright.Browser, site: Path
) -> None:
    page = browser.new_page(**PHONE, reduced_motion="reduce", offline=True)
    page.goto(site.as_uri())

    def drag_up(x: float, y: float, pixels: int) -> None:
        finger(
            page,
            [(x, y - up) for up in range(0, pixels + 1, pixels // 10)],
            lambda: page.evaluate(SETTLED),
        )

    before, dot = page.evaluate(DOTS), page.locator(".film .dot circle").last.bounding_box()
    drag_up(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2, 60)
    assert page.evaluate(DOTS) != before and page.evaluate("scrollY") == 0
    picture = page.locator(".film svg").bounding_box()
    drag_up(picture["x"] + 8, picture["y"] + picture["height"] - 8, 150)
    page.wait_for_function("scrollY > 50")
    page.close()


def test_who_asks_for_less_motion_sees_the_end_at_once(
    browser: playwright.Browser, site: Path
) -> None:
    context = browser.new_context(reduced_motion="reduce", offline=True)
    page = context.new_page()
    page.goto(site.as_uri())
    first = page.evaluate(DOTS)
    page.wait_for_timeout(1500)
    assert page.evaluate(DOTS) == first
    run = next(run for run in find_runs(RECORD / "runs") if run.preset == "quadratic")
    ends = run.heads["parameter_centre"][-1]
    assert min(np.abs(layer - first).max() for layer in ends) < 0.011
    context.close()


@LIGHT
def test_a_verdict_opens_to_its_evidence_and_a_link_to_a_folded_picture_unfolds_it(
    page, site: Path
) -> None:
    page.goto(site.as_uri())
    assert page.locator(".claim").count() == len(SENTENCES)
    verdict = page.locator(".claim details").first
    folded = verdict.bounding_box()["height"]
    verdict.locator("summary").click()
    assert (
        verdict.bounding_box()["height"] > 2 * folded and "before training" in verdict.inner_text()
    )
    assert fits(page)  # the wide table scrolls by itself
    picture = page.locator("[id='05-wide'] img")
    assert not picture.is_visible()
    page.goto(f"{site.as_uri()}#05-wide")
    picture.wait_for(state="visible")
    assert picture.bounding_box()["width"] <= page.viewport_size["width"] and fits(page)


def test_executed_notebooks_are_pages_with_formulas_that_lead_on_and_back(
    page: playwright.Page, site: Path
) -> None:
    page.goto(site.as_uri())
    page.locator("#n04 a", has_text="executed notebook").click()
    assert page.title() == "A formula" and fits(page) and page.evaluate(LOWEST_CONTRAST) >= 4.5
    assert page.locator("math").count() == 3 and "$" not in page.locator("main").inner_text()
    wide, high = (
        page.locator("math[display=block]").bounding_box()[side] for side in ("width", "height")
    )
    assert (
        wide > 200 and high > 25
    )  # drawn, not written: the braces and what stands under them make it high
    page.locator("main a", has_text="Next").click()
    assert page.url.endswith("notebooks/05_learned.html")
    page.locator("a[rel=prev]").click()
    page.locator("nav a", has_text="All that was found").click()
    assert page.url == site.as_uri()
