"""Widgets in a real JupyterLab when their kernel is new, or gone."""

from __future__ import annotations

from browser import needs_browser, notebook_of, playwright, run_all

pytestmark = needs_browser
CODE = """from attnconv.config import ModelConfig
from companion.explorer import Playground, explore
from attnconv.models import build_model
sizes = dict(hidden=8, mlp=8, layers=1, heads=4, downsampling=4)
sizes |= dict(image_size=(28, 28), image_channels=1)
explore(build_model(ModelConfig(**sizes)))"""


def menu(page: playwright.Page, name: str, item: str) -> None:
    page.locator(".lm-MenuBar-itemLabel", has_text=name).first.click()
    page.locator(".lm-Menu-itemLabel", has_text=item).first.click()


def test_a_saved_notebook_shows_pictures_without_its_kernel_and_a_new_kernel_is_named_at_once(
    browser, lab
) -> None:
    address = lab("saved", notebook_of(CODE, "Playground()"))
    page = browser.new_page(viewport=dict(width=1400, height=1200))
    page.goto(address)
    run_all(page)
    for name in ("explorer", "playground"):
        page.locator(f".attnconv-{name}").first.wait_for(timeout=180_000)
    assert not any(
        picture.is_visible() for picture in page.locator(".attnconv-last").all()
    )  # they live
    menu(page, "Kernel", "Restart Kernel…")
    page.locator(".jp-Dialog button", has_text="Restart").click()
    notice = page.locator(".ax-notice", has_text="Run this cell again")
    notice.wait_for(timeout=30_000)
    caption = page.locator(".ax-caption")  # what needs no kernel works on
    before = caption.inner_text()
    page.locator(".attnconv-explorer").get_by_role("button", name="Random image").click()
    assert caption.inner_text() != before
    menu(page, "File", "Save Notebook")
    for _ in range(20):  # a busy machine may take as long as it needs
        page.wait_for_timeout(1500)
        pictures = (lab.folder / "saved.ipynb").read_text().count("<div class='attnconv-last'>")
        if pictures == 2:
            break
    assert pictures == 2
    page.goto(address + "&reset")
    page.get_by_text("| Idle").wait_for(timeout=60_000)
    for picture in (
        page.locator(".attnconv-last img").nth(0),
        page.locator(".attnconv-last img").nth(1),
    ):
        picture.wait_for(timeout=30_000)
        picture.scroll_into_view_if_needed()
        assert picture.bounding_box()["width"] > 300
    page.wait_for_timeout(3000)  # by then JupyterLab has given up on the models
    assert not any(one.is_visible() for one in page.get_by_text("Error displaying widget").all())
    assert not any(one.is_visible() for one in page.get_by_text("Loading widget").all())
    page.close()
