"""The playground in a real browser: as the offline page with the network off, and as the
widget's front end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attnconv.config import ModelConfig
from attnconv.models import build_model
from browser import MISNAMED, SETTLED, Shown, as_widget, needs_browser, opened, playwright
from companion.explorer import Playground, explore
from companion.pages import write_page

pytestmark = needs_browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("playground") / "page.html"
    path.write_text(Playground().page())
    return path


class Seen(Shown):
    """A playground on a page: what it shows, and what a reader can do."""

    name, rests = "playground", "!x.flight"

    def apart(self) -> float:
        self.idle()
        return self.get("x.sums.apart")

    def told(self) -> str:
        """The difference as the reader sees it."""
        self.idle()
        return self.root.locator(".pg-apart").text_content()

    def words(self) -> str:
        return (
            self.root.locator(".pg-equation").text_content()
            + self.root.locator(".pg-words").text_content()
        )

    def pixels(self, selector: str) -> np.ndarray:
        self.idle()
        return self.canvas(self.root.locator(selector))

    def image(self, name: str) -> np.ndarray:
        order = ["picture", "convolved", "total", "difference"]
        return self.pixels(f".pg-frame >> nth={order.index(name)} >> canvas")

    def dot(self, head: int) -> playwright.Locator:
        return self.root.locator(".pg-dot").nth(head)

    def drag_head(self, head: int, rows: float, columns: float) -> None:
        """Drag a head by so many cells."""
        self.dot(head).scroll_into_view_if_needed()
        box, cell = self.dot(head).bounding_box(), self.get("x.cell")
        self.drag(
            (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2),
            (columns * cell, rows * cell),
        )
        self.idle()


@pytest.fixture
def seen(show: Callable[..., Seen], file: Path) -> Seen:
    return show(file)


def test_the_heads_are_the_convolution_until_one_is_dragged_off(seen: Seen):
    assert seen.told() == "largest: 0" and "Theorem 1" in seen.words()
    assert (seen.image("convolved") == seen.image("total")).all() and np.ptp(
        seen.image("difference")
    ) == 0
    plane = seen.pixels(".pg-plane")
    seen.drag_head(5, -0.5, 0.4)
    assert seen["heads"][5]["centre"] == pytest.approx([-0.5, 1.4], abs=0.05)
    assert (
        seen.apart() > 0.1 and "≠" in seen.words() and "Head 6 looks at q + (−0.5" in seen.words()
    )
    assert (seen.image("convolved") != seen.image("total")).any() and np.ptp(
        seen.image("difference")
    ) > 50
    assert (plane != seen.pixels(".pg-plane")).any()
    seen.drag_head(5, 0.45, -0.37)  # nearly back: it falls onto the tap
    assert seen["heads"][5]["centre"] == [0, 1] and seen.told() == "largest: 0"
    seen.drag_head(3, 0, 1)  # a whole shift
    assert "a convolution still" in seen.words() and seen.apart() > 0.1
    seen.press("Heads, take your taps")
    assert seen.told() == "largest: 0"
    seen.press("Scatter")
    assert seen.apart() > 0.1


def test_heads_are_taken_away_brought_back_and_share_a_place(seen: Seen):
    seen.dot(3).click()
    assert not seen["heads"][3]["on"]
    assert seen.dot(3).get_attribute("aria-pressed") == "false"
    largest = seen.get("Math.max(...x.sums.seen[3])")
    assert seen.apart() == pytest.approx(2 * largest) and "Without head 4" in seen.words()
    seen.root.locator(".pg-tile").nth(3).click()
    assert seen.told() == "largest: 0" and seen["heads"][3]["on"]
    seen.dot(1).click()  # its weight is 0
    assert seen.told() == "largest: 0" and "nothing is missing" in seen.words()

    # Two heads on one tap stand side by side, where both can be hit.
    seen.drag_head(4, 0, -1)
    first, last = (seen.dot(head).bounding_box() for head in (3, 4))
    assert abs(first["x"] - last["x"]) + abs(first["y"] - last["y"]) > 8
    seen.dot(4).click()
    assert seen.told() == "largest: 0" and not seen["heads"][4]["on"]


def test_a_blur_and_a_border_are_no_convolution(seen: Seen):
    curve = seen.pixels(".pg-curve")
    slider = seen.root.locator("input[type=range]")
    slider.fill(str(round(np.log(0.05), 2)))
    assert seen.apart() > 0.1 and seen["alpha"] == pytest.approx(0.05, rel=0.01)
    assert "softmax" in seen.words() and (curve != seen.pixels(".pg-curve")).any()
    slider.press("End")
    assert seen["alpha"] == 50 and seen.told() == "largest: 0"
    zeros = seen.root.get_by_label("zeros around the picture")
    zeros.uncheck()
    assert seen.apart() > 0.1 and "border differs" in seen.words()
    difference = seen.image("difference")
    assert np.ptp(difference[1:-1, 1:-1]) == 0 and np.ptp(difference) > 50
    zeros.check()
    assert seen.told() == "largest: 0"
    seen.press("Start again")
    seen.page.wait_for_function("location.hash.includes('kernel=sobel-x')")


def test_kernels_chosen_and_typed(seen: Seen):
    before = seen.image("convolved")
    seen.choose("Kernel", "emboss")
    assert (before != seen.image("convolved")).any() and seen.told() == "largest: 0"
    emboss = seen["kernel"]
    cell = seen.root.locator(".pg-cells input").nth(4)
    cell.fill("-2.5")  # "your own" numbers, from now on
    seen.idle()
    assert seen["preset"] is None and seen.told() == "largest: 0"
    assert seen["kernel"] == [*emboss[:4], -2.5, *emboss[5:]]
    cell.fill("")
    cell.blur()
    assert cell.input_value() == "-2.5"
    kernel = np.reshape(seen["kernel"], (3, 3))
    for size in (5, 4, 3):  # they stay, around the middle
        seen.choose("Size", str(size))
        first = (size - 1) // 2 - 1
        now = np.reshape(seen["kernel"], (size, size))
        assert (now[first : first + 3, first : first + 3] == kernel).all()
        assert len(seen["heads"]) == size**2 and seen.told() == "largest: 0"


def test_the_pictures_are_the_arrays(seen: Seen):
    """With a kernel of both signs, and a head off its tap: red above zero, blue below, each in
    its own picture.
    """
    seen.choose("Kernel", "sobel-x")
    seen.drag_head(5, -0.5, 0.4)
    shape, ramp, wide = seen.get(
        "[[x.picture.height, x.picture.width], [...x.ramp], x.scale.range]"
    )
    for name in ("convolved", "total", "difference"):
        values, image = np.reshape(seen.get(f"[...x.sums.{name}]"), shape), seen.image(name)
        place = np.round(128 + 128 * np.clip(values / wide, -1, 1)).astype(int)
        np.testing.assert_allclose(image, np.reshape(ramp, (-1, 3))[place], atol=2)
        redder = image[..., 0] - image[..., 2]
        assert redder[values > 0.1 * wide].min() > 0 > redder[values < -0.1 * wide].max()


def test_pictures_and_ones_own(seen: Seen, show: Callable[..., Seen], file: Path, tmp_path: Path):
    looks = [seen.image("picture")]
    for name in ("boot", "shapes", "pixel"):
        seen.choose("Picture", name)
        looks.append(seen.image("picture"))
        assert seen.told() == "largest: 0"
    assert [len(look) for look in looks] == [64, 28, 64, 15]
    Image.linear_gradient("L").resize((300, 200)).save(tmp_path / "own.png")
    (tmp_path / "no.png").write_text("no picture")
    choose = seen.root.locator("input[type=file]")
    choose.set_input_files(tmp_path / "no.png")
    seen.root.locator(".ax-notice", has_text="no.png is not a picture").wait_for()
    choose.set_input_files(tmp_path / "own.png")
    seen.wait("x.state.image === 'own'")
    own = seen.image("picture")
    assert (
        own.shape == (64, 64, 3)
        and own[0].mean() < 20
        and own[-1].mean() > 235
        and seen.told() == "largest: 0"
    )
    seen.press("Copy link")
    seen.root.get_by_text("Your own picture is not in it.").wait_for()
    other = show(file, seen.page.evaluate("location.hash.slice(1)"))
    assert "picture of its author's own" in other.root.locator(".ax-notice").inner_text()
    assert other["image"] == "hopper"
    assert seen.root.locator(".ax-notice").is_hidden()
    seen.get("void (x.file.click = () => { window.dialogs = (window.dialogs ?? 0) + 1; })")
    for name, dialogs in (
        ("boot", 0),
        ("own", 1),
    ):  # another one is asked for, and this one is shown until then
        seen.choose("Picture", name)
        assert seen.page.evaluate("window.dialogs ?? 0") == dialogs and seen["image"] == name


def test_keys_alone(seen: Seen):
    seen.dot(4).focus()
    seen.idle()
    assert "Head 5" in seen.root.locator(".pg-about").text_content()
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Shift+ArrowUp"):
        seen.page.keyboard.press(key)
    seen.idle()
    assert seen["heads"][4]["centre"] == pytest.approx([-0.3, 0.5])
    seen.idle()
    assert "looks at shift (−0.3, +0.5)" in seen.dot(4).get_attribute("aria-label")
    for key in ("Alt+ArrowUp", "Control+Backspace", "Meta+ArrowLeft"):  # the browser's
        seen.dot(4).press(key)
    assert seen["heads"][4]["centre"] == pytest.approx([-0.3, 0.5]) and seen["heads"][4]["on"]
    seen.page.keyboard.press("Enter")
    assert not seen["heads"][4]["on"]
    seen.page.keyboard.press("Enter")
    seen.page.keyboard.press("Delete")
    assert not seen["heads"][4]["on"]
    for control in seen.root.locator(
        "button, input:not([type=file]), select, canvas[tabindex]"
    ).all():
        # of a list: its options
        named = "n => n.labels?.length || n.ariaLabel || (!n.options && n.textContent.trim())"
        assert control.evaluate(named), control
    assert not seen.page.evaluate(MISNAMED)


def test_a_link_holds_the_state(show: Callable[..., Seen], seen: Seen, file: Path):
    seen.choose("Kernel", "sharpen")
    seen.drag_head(1, 0, -0.6)
    seen.root.get_by_label("zeros around the picture").uncheck()
    seen.page.wait_for_function(
        "location.hash.includes('padding=0') && location.hash.includes('heads=')"
    )
    state = seen.state()
    other = show(file, seen.page.evaluate("location.hash.slice(1)"))
    there = other.state()
    assert [there[n] for n in ("preset", "padding", "query")] == [
        state[n] for n in ("preset", "padding", "query")
    ]
    assert there["heads"][1]["centre"] == pytest.approx(state["heads"][1]["centre"], abs=1e-3)
    assert other.apart() == pytest.approx(seen.apart(), abs=1e-2)
    # before it hears of the link
    rests = "document.querySelector('.attnconv-playground').attnconv.settle()"
    other.page.evaluate(f"location.hash = 'kernel=blur&size=4'; {rests}")
    other.wait("x.state.size === 4")
    assert other.told() == "largest: 0"


@pytest.mark.parametrize("size", [3, 5])
def test_on_a_phone(show: Callable[..., Seen], file: Path, size: int):
    seen = show(
        file, f"size={size}", viewport=dict(width=375, height=812), has_touch=True, is_mobile=True
    )
    assert seen.page.evaluate("document.documentElement.scrollWidth") == 375
    boxes = [dot.bounding_box() for dot in seen.root.locator(".pg-dot").all()]
    assert min(min(box["width"], box["height"]) for box in boxes) >= (43.5 if size == 3 else 40)
    middles = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    assert (
        min(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a in middles for b in middles if a != b) >= 40
    )
    table = seen.root.locator(".pg-scroll").evaluate("n => n.scrollWidth - n.clientWidth")
    assert table <= (0 if size == 3 else 12)
    for control in seen.root.locator("select, .ax-row button:visible").all():
        assert control.bounding_box()["height"] >= 44
    seen.dot(3).tap()
    assert not seen["heads"][3]["on"]
    frame = seen.root.locator(".pg-frame").first
    frame.scroll_into_view_if_needed()
    frame.tap(position=dict(x=10, y=10))
    assert max(seen["query"]) < 8


def test_dark(seen: Seen):
    background = "n => getComputedStyle(n).backgroundColor"
    light = seen.root.evaluate(background)
    assert seen.image("difference").mean() > 230
    seen.page.emulate_media(color_scheme="dark")
    assert seen.image("difference").mean() < 40 and seen.root.evaluate(background) != light


def test_the_pages_lead_back_to_the_index(browser: playwright.Browser, tmp_path: Path):
    """Where the index led to them; alone they have no such link."""
    Playground().export_html(tmp_path / "playground.html")
    torch.manual_seed(0)
    small = ModelConfig(
        image_size=(28, 28), image_channels=1, downsampling=4, layers=1, heads=2, hidden=4, mlp=4
    )
    explore(build_model(small)).export_html(tmp_path / "explorer.html")
    index = write_page(tmp_path, [])
    page = opened(browser, index)
    for name, words in (
        ("playground", "Move the heads"),
        ("explorer", "Look into a trained network"),
    ):
        page.get_by_role("link", name=words).click()
        page.locator("[class^=attnconv] canvas").first.wait_for()
        page.get_by_role("link", name="First page").click()
        page.wait_for_url(index.as_uri())
        page.goto((tmp_path / f"{name}.html").as_uri())
        page.locator("[class^=attnconv] canvas").first.wait_for()
        assert page.get_by_role("link", name="First page").count() == 0
        page.goto(index.as_uri())
    assert not page.errors
    page.close()


def test_the_widget_s_front_end(browser: playwright.Browser):
    """What anywidget does with it: a model with traits, two views, a state that comes from
    Python, removal.
    """
    widget = Playground(0.7)
    traits = dict(pictures=widget.pictures, colours=widget.colours, state=widget.state)
    page = as_widget(browser, "playground", traits, views=2)
    page.set_viewport_size(dict(width=900, height=900))
    seen = Seen(page)
    assert seen["alpha"] == 0.7 and seen.root.evaluate("r => r.classList.contains('pg-middle')")
    page.evaluate("model.set('state', 'kernel=blur&size=5')")
    seen.idle()
    assert seen["size"] == 5 and seen.told() == "largest: 0"
    seen.dot(0).click()
    page.wait_for_function("model.traits.state.includes('heads=')")
    page.evaluate(
        "document.getElementById('view1').hidden = false"
    )  # a view that was hidden when it was made
    page.wait_for_function(
        "document.querySelector('#view1 .attnconv-playground').attnconv.timings.length"
    )
    assert page.evaluate("document.querySelector('#view1 .pg-plane').width") > 200
    # JupyterLab hides it while themes change.
    page.evaluate("document.getElementById('view0').style.display = 'none'")
    page.evaluate("document.documentElement.style.setProperty('--jp-layout-color0', '#111')")
    page.evaluate("document.body.setAttribute('data-jp-theme-name', 'JupyterLab Dark')")
    page.evaluate(SETTLED)
    page.evaluate("document.getElementById('view0').style.display = ''")
    assert seen.dot(0).bounding_box()["width"] > 25 and seen.pixels(".pg-plane").shape[0] > 200
    assert seen.image("difference").mean() < 40
    page.evaluate("ends.forEach((end) => end())")
    assert (
        page.evaluate("calls['change:state'].length") == 0 and page.locator(".pg-dot").count() == 0
    )
    assert not page.errors
    page.close()
