"""The site of an output folder in a real browser with the network off: phone and desktop, light
and dark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import nbformat
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from attnconv.training.runs import Run, find_runs
from browser import MISNAMED, SETTLED, needs_browser, playwright
from companion import pages
from companion.claims import SENTENCES, SIGNS, Claim, Claims
from companion.explorer.counts import counted_swaps
from companion.pages import export_html, write_page
from companion.workspace import RECORD

pytestmark = needs_browser
STILLS = re.findall(
    r'call step\(.*"(\S+)"\)', (Path(pages.__file__).with_name("story.html.j2")).read_text()
)
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
    outputs = [
        nbformat.v4.new_output("display_data", {"text/html": text, "text/plain": "-"})
        for text in [*(card.html() for card in cards), wide]
    ]
    cells = [
        nbformat.v4.new_markdown_cell("# What was found\n\n**Does it learn to be one?**"),
        nbformat.v4.new_code_cell("1"),
    ]
    cells[1].outputs = outputs
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells), output / "notebooks" / "00_what_was_found.ipynb"
    )
    captions = dict.fromkeys(STILLS, "A still.") | {
        "04-gaussian-heads-quadratic": "Heads (figure 4).",
        "05-wide": "A picture of no figure of the paper.",
    }
    for name, caption in captions.items():
        Image.new("RGB", (1800, 600), "white").save(output / "figures" / f"{name}.png")
        (output / "figures" / f"{name}.json").write_text(json.dumps({"caption": caption}))
    order = {"04": "04_heads.html", "05": "05_learned.html"}
    for name in ("04_heads", "05_learned"):
        code = nbformat.v4.new_code_cell("x = 1  # " + "a long line " * 20)
        text = nbformat.v4.new_markdown_cell(FORMULAS)
        nbformat.write(
            nbformat.v4.new_notebook(cells=[text, code]), output / "notebooks" / f"{name}.ipynb"
        )
        export_html(output / "notebooks" / f"{name}.ipynb", order)
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
    page.wait_for_load_state()  # a click that leads on does not wait for the styles
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


NAMES = ["slide", "lift", "soften", "film", "swap", "kinds", "own"]


def scroll(page: playwright.Page, step: str, part: float = 0.5) -> None:
    """Scroll until a part of a step is read, and all is drawn."""
    page.locator(".attnconv-story").wait_for()
    page.evaluate(
        """([id, part]) => {
            const { top, height } = document.getElementById(id).getBoundingClientRect();
            const line = innerHeight * (innerWidth < 760 ? 0.8 : 0.5);
            scrollTo(0, scrollY + top + part * height - line);
        }""",
        [step, part],
    )
    page.locator(f"#story[data-step={step}]").wait_for()
    page.evaluate(SETTLED)


def said(page: playwright.Page) -> str:
    page.evaluate(SETTLED)
    return page.locator(".st-said").inner_text()


def looks(page: playwright.Page, layer: int) -> np.ndarray:
    """Where the page says that a layer's heads look."""
    label = page.locator(".st-plot canvas").nth(layer).get_attribute("aria-label")
    return np.array(re.findall(r"\((.*?),(.*?)\)", label), float)


def record(preset: str) -> Run:
    return next(run for run in find_runs(RECORD / "runs") if run.preset == preset)


def test_every_step_fits_and_can_be_read(page: playwright.Page, site: Path):
    page.goto(site.as_uri())
    for step in NAMES:
        scroll(page, step)
        assert fits(page) and page.evaluate(LOWEST_CONTRAST) >= 4.5, step  # the WCAG's bound
        for shown in (".attnconv-story nav", f"#{step} h2", f"#{step} p >> nth=0"):
            box = page.locator(shown).bounding_box()
            assert box["y"] >= 0, (step, shown)
            assert box["y"] + box["height"] <= page.viewport_size["height"], (step, shown)
    assert len(page.locator(".st-text").inner_text().split()) <= 250
    assert not page.evaluate(MISNAMED)


@LIGHT
def test_nine_heads_add_up_until_the_difference_is_blank(page, site: Path):
    page.goto(site.as_uri())
    apart = page.locator(".pg-apart")
    scroll(page, "slide", 0.6)
    clip = page.locator(".pg-figures canvas").nth(1).evaluate("c => c.style.clipPath")
    products = page.locator(".pg-card-table td:nth-child(4)").all_inner_texts()
    *products, total = [float(text.replace("−", "-")) for text in products]
    assert clip.startswith("polygon") and len(products) == 9
    assert sum(products) == pytest.approx(total, abs=0.005)
    scroll(page, "lift", 0.5)
    assert 0 < page.locator(".pg-dot[aria-pressed=true]").count() < 9
    assert apart.inner_text() != "largest: 0"
    scroll(page, "lift", 0.9)
    assert page.locator(".pg-dot[aria-pressed=true]").count() == 9
    assert apart.inner_text() == "largest: 0"
    scroll(page, "soften", 0.39)
    assert apart.inner_text() != "largest: 0"
    scroll(page, "soften", 0.7)  # no zeros around it
    assert apart.inner_text() != "largest: 0" and not page.locator(".pg-check input").is_checked()
    scroll(page, "soften", 0.98)
    assert apart.inner_text() == "largest: 0"


@LIGHT
def test_a_guess_stands_beside_the_recorded_film(page, site: Path):
    run = record("quadratic")
    page.goto(site.as_uri())
    scroll(page, "film", 0.2)
    history, guess = run.heads["parameter_centre"], page.locator(".st-guess")
    layer = page.locator(".st-plot").evaluate_all("all => all.findIndex((one) => one.children[1])")
    head = int(re.search(r"of head (\d)", said(page))[1]) - 1
    np.testing.assert_allclose(looks(page, layer), history[0, layer], atol=0.051)
    box, plot = (guess.bounding_box(), page.locator(".st-plot").nth(layer).bounding_box())
    middle = [box[at] + box[size] / 2 for at, size in (("x", "width"), ("y", "height"))]
    to = [plot[at] + plot[size] * (0.5 + 2 / 11) for at, size in (("x", "width"), ("y", "height"))]
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(*to, steps=3)
    page.mouse.up()
    guess.press("ArrowUp")  # from (2, 2) to (1.75, 2)
    scroll(page, "film", 0.98)
    for place in range(6):
        np.testing.assert_allclose(looks(page, place), history[-1, place], atol=0.051)
    off = np.hypot(*(history[-1, layer, head] - (1.75, 2)))
    accuracy = 100 * run.metrics[-1]["test_accuracy"]
    assert f"guess is {off:.1f} pixels off" in said(page) and f"{accuracy:.1f}%" in said(page)


@LIGHT
def test_the_bar_moves_at_once_to_what_was_counted(page, site: Path):
    page.goto(site.as_uri())
    scroll(page, "swap")
    counts = counted_swaps(record("quadratic"))
    chosen = 0
    for size, layer in ((3, 0), (3, 3), (7, 5), (7, 3)):
        page.get_by_role("button", name=f"{size} × {size}").click()
        page.get_by_role("switch", name=f"Layer {layer + 1} as").click()
        chosen ^= 2**layer
        now, whole, images = counts[size][chosen]
        bar = page.locator(".st-swap .ax-meter i")
        text, width = said(page), bar.evaluate("one => one.style.width")
        shares = [f"{100 * right / images:.1f}%" for right in (now, whole)]
        assert f"{shares[0]} of {images:,}" in text and shares[1] in text
        assert float(width[:-1]) == pytest.approx(100 * now / images, abs=0.01)
        assert page.get_by_role("switch", checked=True).count() == chosen.bit_count()
        cheap = [key.bit_count() for key, of in counts[size].items() if of[1] - of[0] < of[2] / 100]
        solved = whole - now < images / 100 and chosen.bit_count() >= max(cheap)
        assert ("No larger set" in text) == solved


@LIGHT
def test_of_sets_that_nobody_counted_the_page_says_nothing(page, tmp_path):
    run = copytree(record("quadratic").path, tmp_path / "run")
    for name, words in ("subsets", "0.7 points fewer"), ("swaps", "not counted"):
        (run / f"{name}.npz").unlink()
        page.goto(write_page(tmp_path, [Run(run)]).as_uri())
        scroll(page, "swap")
        page.get_by_role("button", name="7 × 7").click()
        for layer in "12":
            page.get_by_role("switch", name=f"Layer {layer} as").click()
        assert words in said(page) and "No larger set" not in said(page)


@LIGHT
def test_with_the_image_only_heads_that_see_content_move(page, site: Path, tmp_path: Path):
    page.goto(site.as_uri())
    scroll(page, "swap")
    plot = page.locator(".st-plot canvas").first
    seen = plot.evaluate("canvas => canvas.toDataURL()")
    scroll(page, "kinds")

    def drawn() -> list[str]:
        page.evaluate(SETTLED)
        of_row = "[...row.querySelectorAll('canvas')].map((canvas) => canvas.toDataURL()).join()"
        return page.locator(".st-row").evaluate_all(f"rows => rows.map((row) => {of_row})")

    def moved() -> list[str]:
        return page.locator(".st-row span").all_inner_texts()

    before = drawn()
    page.get_by_role("button", name="Another image").click()
    assert [a == b for a, b in zip(before, drawn(), strict=True)] == [True, True, False]
    assert moved()[:2] == ["moved 0.0 pixels"] * 2 and moved()[2] != "moved 0.0 pixels"
    before = drawn()
    page.locator(".st-image").press("ArrowLeft")
    assert all(a != b for a, b in zip(before, drawn(), strict=True))
    before = drawn()
    Image.linear_gradient("L").save(tmp_path / "own.png")  # a picture of one's own is in every step
    scroll(page, "own")
    page.locator(".attnconv-story .st-own input").set_input_files(tmp_path / "own.png")
    page.locator(".st-said", has_text="own.png takes the place").wait_for()
    assert page.evaluate("document.querySelector('#story').attnconv.play.state.image") == "own"
    scroll(page, "swap")
    assert plot.evaluate("canvas => canvas.toDataURL()") != seen  # it lies below the heads
    scroll(page, "kinds")
    assert [a == b for a, b in zip(before, drawn(), strict=True)] == [True, True, False]


def test_the_steps_by_keyboard_and_without_motion(browser: playwright.Browser, site: Path):
    context = browser.new_context(reduced_motion="reduce", offline=True)
    page = context.new_page()
    page.goto(site.as_uri())
    page.locator(".attnconv-story nav a").nth(3).press("Enter")
    page.locator("#story[data-step=film]").wait_for()
    before = looks(page, 0)
    scroll(page, "film", 0.9)  # scrolling moves nothing
    assert (looks(page, 0) == before).all() and "Before training" in said(page)
    page.get_by_role("button", name="Next epoch").press("Enter")
    assert "After epoch 1:" in said(page) and (looks(page, 0) != before).any()
    page.get_by_role("slider", name="Epoch").press("End")
    assert "Your guess is" in said(page)
    page.locator(".attnconv-story nav a").nth(4).press("Enter")
    page.locator("#story[data-step=swap]").wait_for()
    switch = page.get_by_role("switch", name="Layer 1 as")
    switch.press(" ")
    page.evaluate(SETTLED)
    assert switch.get_attribute("aria-checked") == "true"
    scroll(page, "lift", 0.3)
    assert page.locator(".pg-apart").inner_text() == "largest: 0"  # its end, at once
    context.close()


def test_without_scripts_every_step_has_a_still(browser: playwright.Browser, site: Path):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(site.as_uri())
    for step in NAMES[:-1]:
        assert page.locator(f"#{step} img").bounding_box()["width"] > 100, step
    assert page.locator("main > noscript img").is_visible() and fits(page)
    context.close()


@LIGHT
def test_a_verdict_opens_to_its_evidence_and_a_link_to_a_folded_picture_unfolds_it(
    page, site: Path
):
    page.goto(site.with_name("found.html").as_uri())
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
    page.goto(f"{site.with_name('found.html').as_uri()}#05-wide")
    picture.wait_for(state="visible")
    assert picture.bounding_box()["width"] <= page.viewport_size["width"] and fits(page)


def test_executed_notebooks_are_pages_with_formulas_that_lead_on_and_back(
    page: playwright.Page, site: Path
):
    page.goto(site.with_name("found.html").as_uri())
    held = "all => all.every((one) => one.scrollWidth <= one.clientWidth || one.tabIndex === 0)"
    assert page.locator("pre, table").evaluate_all(held) and not page.locator("th:empty").count()
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
    assert page.url == site.with_name("found.html").as_uri()
