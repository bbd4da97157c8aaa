"""The explorer in a real browser: in JupyterLab on notebook 08, and as an exported file with the
network off.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from PIL import Image

from attnconv.config import ModelConfig
from attnconv.equivalence import swap
from attnconv.models import build_model, predict
from attnconv.training import load_run
from attnconv.training.data import load_data
from attnconv.training.runs import Run
from browser import (
    PHONE,
    Shown,
    as_widget,
    finger,
    menu,
    needs_browser,
    notebook_of,
    playwright,
    run_all,
)
from companion.explorer import Explorer, explore
from companion.explorer.counts import FILE, count_swaps
from companion.workspace import REPOSITORY, open_workspace
from edits import edited
from node import in_node

pytestmark = needs_browser


def changed_heads(state: dict) -> list[dict]:
    """The heads and layers that the page's state holds as changed, as `edited` takes them."""
    places = [(map(int, at.split(".")), change) for at, change in state["edits"].items()]
    return [dict(zip(("layer", "head"), place, strict=False)) | change for place, change in places]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of the smoke profile, as notebook 08 finds them in its output folder."""
    work = open_workspace("smoke", output=tmp_path_factory.mktemp("explorer") / "out")
    return {name: work.run(name) for name in ("quadratic", "learned_content")}


@pytest.fixture(scope="module")
def pages(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The exported page of each run."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: explore(run).export_html(folder / f"{name}.html") for name, run in runs.items()}


class Seen(Shown):
    """An explorer on a page: what it shows, and what a reader can do."""

    name, rests = "explorer", "x.pending.size === 0 && !x.waiting"

    def part(self, name: str) -> playwright.Locator:
        """What has the class ``ax-<name>``."""
        return self.root.locator(f".ax-{name}")

    def words(self, name: str) -> str:
        return self.part(name).inner_text()

    def studied(self) -> None:
        """Wait until it is also known what the chosen layer and head do."""
        self.idle()
        self.wait("x.rested && !x.pending.size && x.seen?.key === x.lookKey()")

    def all_layers(self) -> None:
        """All heads of all layers, with the lists to choose from."""
        if not self["all"]:
            self.press("Show all layers")

    def layer(self, number: int) -> None:
        """Choose a layer, counted from 1."""
        self.part("tab > button:first-child").nth(number - 1).click()
        self.idle()

    def head(self, number: int) -> tuple[float, float]:
        """Where a head's dot is in the plot of its layer, on the page."""
        canvas = self.part("centres").first
        canvas.evaluate("node => node.scrollIntoView({ block: 'center' })")
        self.idle()
        box, place = canvas.bounding_box(), self.get(f"x.panel.card.places[{number}]")
        return box["x"] + place["x"], box["y"] + place["y"]

    def drag_head(self, number: int, rows: float, columns: float) -> None:
        """Drag a head's dot by so many pixels of the grid."""
        scale = self.get("x.panel.card.plot.side / (2 * x.panel.card.range)")
        self.drag(self.head(number), (columns * scale, rows * scale))
        self.idle()

    def pixels(self, name: str = "grid") -> np.ndarray:
        return self.canvas(self.part(name).first)

    def point(self, row: int, column: int) -> tuple[float, float]:
        height, width = self.get("x.model.grid")
        box = self.part("image").bounding_box()
        return box["x"] + (column + 0.5) * box["width"] / width, box["y"] + (row + 0.5) * box[
            "height"
        ] / height

    def hover(self, row: int, column: int) -> None:
        self.part("image").scroll_into_view_if_needed()
        self.page.mouse.move(*self.point(row, column))
        self.idle()

    def click(self, row: int, column: int) -> None:
        self.page.mouse.click(*self.point(row, column))
        self.idle()

    def slide(self, name: str, value: float) -> None:
        self.root.get_by_label(name, exact=True).fill(str(value))
        self.idle()


def changed(before: np.ndarray, after: np.ndarray) -> bool:
    return before.shape != after.shape or bool((before != after).any())


def files(folder: Path) -> tuple[Path, Path]:
    """A good picture and a broken one."""
    good, broken = folder / "good.png", folder / "broken.jpg"
    Image.linear_gradient("L").resize((300, 200)).convert("RGBA").save(good)
    file = io.BytesIO()
    Image.effect_noise((200, 200), 50).save(file, "JPEG")
    broken.write_bytes(file.getvalue()[:2000])
    return good, broken


def hover_and_click(seen: Seen) -> None:
    """The part that needs no Python: the same in JupyterLab and in the exported file."""
    seen.all_layers()
    seen.hover(1, 1)
    assert seen["query"] == [1, 1]
    before, zoom = seen.pixels(), seen.pixels("zoom")
    seen.hover(4, 5)
    assert seen["query"] == [4, 5] and not seen["locked"]
    assert changed(before, seen.pixels()) and changed(zoom, seen.pixels("zoom"))

    seen.click(4, 5)
    seen.hover(0, 0)
    assert seen["query"] == [4, 5] and seen["locked"]
    before = seen.pixels()
    for key in ("ArrowUp", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        seen.part("image").press(key)
    seen.idle()
    assert seen["query"] == [3, 4]
    assert changed(before, seen.pixels())
    seen.part("image").press("Escape")
    assert not seen["locked"]

    seen.choose("Layer", "0")
    seen.choose("Head", "0")
    zoom, title = seen.pixels("zoom"), seen.part("detail h3").first.text_content()
    box = seen.get("x.panel.box")
    x, y = (
        box["left"] + 2.5 * (box["wide"] + box["gap"]),
        box["top"] + box["down"] + box["tall"] / 2,
    )
    seen.part("grid").first.click(position=dict(x=x, y=y))
    seen.idle()
    assert (seen["layer"], seen["head"]) == (1, 2)
    assert title == "Layer 1, head 1"
    assert seen.part("detail h3").first.text_content() == "Layer 2, head 3"
    assert changed(zoom, seen.pixels("zoom"))
    assert "px" in seen.part("numbers").first.text_content()


def test_the_explorer_in_jupyterlab(runs, lab, browser, show, tmp_path):
    notebook = nbformat.read(REPOSITORY / "notebooks" / "08_explore_the_heads.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    given = {"profile": "smoke", "output": str(runs["quadratic"].path.parents[1])}
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in given.items())
    page = browser.new_page(viewport=dict(width=1500, height=1100))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(lab("explorer", notebook))
    run_all(page)
    seen = Seen(page)
    seen.root.scroll_into_view_if_needed()
    hover_and_click(seen)

    # JupyterLab does not take the keys of lists and sliders for commands on its cells.
    cells, head = seen.page.locator(".jp-Notebook .jp-Cell"), seen["head"]
    number = cells.count()
    slider = seen.root.get_by_label("centre row", exact=True)
    for control, keys in (
        (seen.field("Head"), ["ArrowDown"]),
        (slider, ["ArrowUp", "ArrowRight"]),
        (seen.field("Class"), ["d", "d"]),
    ):
        control.focus()
        was = control.input_value()
        for key in keys:
            seen.page.keyboard.press(key)
        seen.idle()
        focused = control.evaluate("node => node === document.activeElement")
        assert control.input_value() != was and focused and cells.count() == number, keys
    assert seen["head"] == head + 1
    seen.choose("Class", "")
    seen.field("Head").press("ArrowUp")
    seen.press("Reset all")

    # A slider: the map at once, then the prediction; and back.
    before, answer = seen.pixels(), seen.part("predictions").first.text_content()
    seen.slide("centre row", 3)
    seen.wait("x.host.edited.heads.length === 1")
    assert seen["edits"]["1.2"]["centre"][0] == 3
    assert changed(before, seen.pixels())
    assert "→" in seen.part("predictions").first.text_content()
    seen.press("Reset head")
    seen.idle("x.host.edited.heads.length === 0")
    assert seen.part("predictions").first.text_content() == answer and not changed(
        before, seen.pixels()
    )

    # The layer as a convolution.
    seen.root.get_by_label("this layer as a convolution").check()
    seen.studied()
    assert seen["edits"]["1"] == dict(kernel=3) and np.ptp(seen.pixels("response")) > 50
    seen.press("Undo")

    # Another run, and back.
    for content in ("true", "false"):
        wanted = "content" if content == "true" else "quadratic"
        other = seen.field("Model").locator("option", has_text=wanted).first
        seen.field("Model").select_option(other.get_attribute("value"))
        seen.idle(f"x.model.content === {content} && x.host.before")
    assert not words_out_of_sight(seen)

    with page.expect_download() as download:
        seen.root.get_by_text("Save PNG").click()
    assert Image.open(download.value.path()).size[0] > 1000
    with page.expect_download(timeout=60_000) as download:
        # At once after a change, before the state was saved.
        seen.root.evaluate(
            "({ attnconv: x }) => { x.set({ whole: !x.state.whole }); x.exportPage(); }"
        )
    file, whole = tmp_path / "explorer.html", seen["whole"]
    caption = seen.part("caption").text_content()
    download.value.save_as(file)
    page.close()
    assert not errors

    seen = show(file, color_scheme="dark")
    hover_and_click(seen)
    assert seen["whole"] == whole
    assert seen.part("caption").text_content() == caption


WIDGETS = """from attnconv.config import ModelConfig
from companion.explorer import Playground, explore
from attnconv.models import build_model
sizes = dict(hidden=8, mlp=8, layers=1, heads=4, downsampling=4)
sizes |= dict(image_size=(28, 28), image_channels=1)
explore(build_model(ModelConfig(**sizes)))"""


def test_a_saved_notebook_shows_pictures_without_its_kernel_and_a_new_kernel_is_named_at_once(
    browser, lab
):
    address = lab("saved", notebook_of(WIDGETS, "Playground()"))
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
    page.locator(".ax-notice", has_text="Run this cell again").wait_for(timeout=30_000)
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
    for place in (0, 1):
        picture = page.locator(".attnconv-last img").nth(place)
        picture.wait_for(timeout=30_000)
        picture.scroll_into_view_if_needed()
        assert picture.bounding_box()["width"] > 300
    page.wait_for_timeout(3000)  # by then JupyterLab has given up on the models
    for words in ("Error displaying widget", "Loading widget"):
        assert not any(one.is_visible() for one in page.get_by_text(words).all())
    page.close()


def test_an_exported_content_model(pages, show):
    seen = show(pages["learned_content"])
    hover_and_click(seen)
    for field, value in (("Score", "content"), ("Score", "position"), ("Show", "centres")):
        before = seen.pixels()
        seen.choose(field, value)
        assert changed(before, seen.pixels()), (field, value)
    seen.studied()
    assert "no convolution" in seen.words("swap")
    assert seen.root.get_by_label("this layer as a convolution").is_disabled()
    assert (
        seen.get("(x.panel.headTitle.textContent = '', x.picturePage().width)") > 500
    )  # before it was drawn


def test_touch_moves_the_query_and_the_page_is_labelled(pages, show):
    seen = show(pages["quadratic"], **PHONE)
    page, before = seen.page, seen.pixels()
    page.touchscreen.tap(*seen.point(5, 1))
    seen.idle()
    assert seen["query"] == [5, 1] and seen["locked"]
    image, grid = (seen.part(name).first.bounding_box() for name in ("image", "grid"))
    assert changed(before, seen.pixels())
    assert (
        image["y"] > 0
        and image["y"] + image["height"] < grid["y"] < grid["y"] + grid["height"] < 700
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
    page.touchscreen.tap(*seen.point(5, 1))
    assert not seen["locked"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
    page.wait_for_timeout(400)
    assert "row 5, column 1" in seen.part("image").get_attribute("aria-label")
    for control in seen.root.locator(
        "select:visible, input:visible, canvas:visible, button:visible"
    ).all():
        # The text of a list is that of its options: no name.
        named = "n => n.ariaLabel || n.labels?.length || (!n.options && n.textContent.trim())"
        assert control.evaluate(named), control


@pytest.mark.parametrize("kind", ["quadratic", "learned_content"])
def test_the_film_moves_between_the_epochs(runs, pages, show, kind):
    seen, replayed = show(pages[kind], reduced_motion="no-preference"), kind == "quadratic"
    heads = runs[kind].heads["parameter_centre" if replayed else "centre"]  # (epochs, L, h, 2)
    path = heads[:, 0, 0]
    seen.studied()
    frames = seen.root.evaluate("""async ({ attnconv: x }) => {
        const frames = [];
        x.film.play();
        while (x.film.rolls) {
            await new Promise((done) => requestAnimationFrame(done));
            const { model: { epoch }, panel } = x;
            const [trail] = panel.trails(0);
            if (epoch !== null) frames.push([epoch, ...panel.shape(0, 0).centre, trail.length]);
        }
        return frames;
    }""")
    epochs, centres, lengths = np.split(np.array(frames), [1, 3], axis=1)
    assert len(set(epochs[:, 0])) > 4 * len(path) and (np.diff(epochs[:, 0]) >= 0).all()
    expected = [np.interp(epochs[:, 0], np.arange(len(path)), path[:, axis]) for axis in (0, 1)]
    np.testing.assert_allclose(centres.T, expected, atol=1e-4)
    assert (lengths == np.floor(epochs) + 1 + (epochs % 1 > 0)).all()

    # It stops at an epoch, and where motion is not wanted, it goes on by one epoch.
    seen.root.evaluate("({ attnconv: x }) => x.film.play()")
    seen.wait("x.model.epoch % 1 > 0")
    seen.root.evaluate("({ attnconv: x }) => x.film.stop()")
    seen.idle()
    epoch = seen["epoch"]
    assert epoch is None or epoch == int(epoch) == seen.get("x.model.epoch")
    seen = show(pages[kind])
    for epoch in (0, 1):
        seen.root.get_by_role("button", name="Next epoch").click()
        seen.idle()
        assert seen.get("[x.film.rolls, x.model.epoch]") == [False, epoch]

    # What an epoch shows: of heads that are learned with content, only where they are.
    slider, card = (seen.root.locator(one).first for one in (".ax-epoch input", ".ax-layer"))
    drawn = []
    for epoch in (slider.get_attribute("max"), "1", "0"):
        slider.fill(epoch)
        seen.idle()
        drawn.append(seen.pixels("centres"))
        assert seen.part("kernel").first.is_visible() == replayed
    assert changed(drawn[0], drawn[1]) and changed(drawn[1], drawn[2])
    if replayed:  # the kernel is that of the epoch: before training, here
        layer = seen.get("x.state.layer")
        products = runs[kind].heads["products"][0, layer]
        maps = np.array(seen.get(f"x.panel.read({layer}).maps.map((map) => [...map])"))
        norms = np.sqrt(np.einsum("hn,hg,gn->n", maps, products, maps))
        shown = seen.get("x.panel.card.inside.norms")
        reach = round(len(shown) ** 0.5) // 2
        height, width = seen.get("x.model.grid")
        norms = norms.reshape(height, width)
        rows = slice(height // 2 - reach, height // 2 + reach + 1)
        columns = slice(width // 2 - reach, width // 2 + reach + 1)
        np.testing.assert_allclose(shown, norms[rows, columns].ravel(), rtol=1e-4)
    assert ("matrices only at the end" in card.inner_text()) == (not replayed)
    centres = [shape["centre"] for shape in seen.get("x.panel.shapes(0)")]
    np.testing.assert_allclose(centres, heads[0, 0], atol=1e-5)
    assert seen.part("zoom").first.is_visible() == replayed


def test_a_saved_picture_is_of_all_parts_and_sharp(grid, show):
    """It is composed of canvases that are drawn for it, with twice the screen's pixels."""
    seen = show(grid[1])
    sizes = """root => {
        const sizes = [], { drawImage } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.drawImage = function (canvas, ...more) {
            if (more.length === 2) sizes.push([canvas.width, parseFloat(canvas.style.width)]);
            drawImage.call(this, canvas, ...more);
        };
        const whole = root.attnconv.picturePage();
        CanvasRenderingContext2D.prototype.drawImage = drawImage;
        return [sizes, whole.width];
    }"""
    seen.studied()
    shown = seen.pixels()
    sources, wide = seen.root.evaluate(sizes)
    assert len(sources) >= 7 and all(abs(pixels - 2 * width) <= 1 for pixels, width in sources)
    assert wide > 1400
    assert np.abs(shown - seen.pixels()).max() <= 32  # the page is as it was, but for smoothing
    clearing = """(root, part) => {
        const x = root.attnconv, { panel } = x, node = root.querySelector(`.ax-${part}`);
        panel.draw = function () {
            Object.getPrototypeOf(this).draw.call(this);
            if (node?.getContext) node.getContext("2d").clearRect(0, 0, 999, 999);
            else if (node) node.textContent = "?";
        };
        const picture = x.picturePage().toDataURL();
        delete panel.draw;
        return picture;
    }"""
    whole = seen.root.evaluate(clearing, "none")
    for part in ("zoom", "centres", "kernel", "numbers dd", "class > :last-child", "detail h3"):
        assert seen.root.evaluate(clearing, part) != whole, part


GRID = torch.cartesian_prod(torch.arange(-1.0, 2), torch.arange(-1.0, 2))


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Explorer, Path]:
    """A model whose first layer is a 3 x 3 kernel but for a head, and its page."""
    torch.manual_seed(0)
    config = ModelConfig(
        image_size=(28, 28), image_channels=1, downsampling=4, layers=2, heads=9, hidden=12, mlp=8
    )
    model = build_model(config).eval()
    with torch.no_grad():
        for layer in model.attention_layers:
            layer.centres.copy_(GRID)
            layer.spreads.fill_(5)
        model.attention_layers[0].centres[4] = torch.tensor([0.0, -1])
        model.attention_layers[1].centres[0] = torch.tensor([-20.0, 3])
        model.attention_layers[1].spreads[1:] = 0.9
        model.classifier.weight *= 6
    explorer = explore(model, images=load_data("embedded").first(10, 20))
    return explorer, explorer.export_html(tmp_path_factory.mktemp("grid") / "page.html")


def python_says(explorer: Explorer, seen: Seen) -> np.ndarray:
    """What Python predicts for the image and the changes that a page shows."""
    pixels = np.array(seen.get("[...x.host.image.pixels.data]"), np.uint8).reshape(1, 28, 28, 1)
    with edited(explorer._subject.model, changed_heads(seen.state())):
        return explorer._subject.says(explorer._inputs(pixels))[0].numpy()


def ramp() -> np.ndarray:
    """The colours of all pictures, from little to much: (256, 3)."""
    return np.reshape(in_node("const out = [...draw.RAMP];"), (256, 3))


def test_a_layer_is_a_kernel(grid, show):
    file = grid[1]
    seen = show(file)
    card = seen.part("layer").first
    reading, swapped = card.locator(".ax-reading"), card.locator(".ax-swap")
    assert "8 of 9 taps of a 3 × 3 kernel" in card.inner_text()
    kinds = seen.get("[0, 1].map((l) => x.panel.read(l).heads.map(({kind}) => kind))")
    assert kinds == [9 * ["tap"], ["outside"] + 8 * ["blur"]]
    seen.studied()
    assert "its output is <0.01% off" in swapped.inner_text()  # taps, at the borders too
    assert "white noise" in reading.inner_text() and np.ptp(seen.pixels("output")) > 50

    # Each tap of the kernel has the colour of its norm, at its place.
    norms = np.array(seen.get("x.panel.card.around.norms"))
    colours = ramp()
    drawn, window = seen.pixels("kernel"), round(len(norms) ** 0.5)
    for tap, norm in enumerate(norms):
        row, column = (int((place + 0.2) * len(drawn) / window) for place in divmod(tap, window))
        level = round(255 * norm / norms.max())
        np.testing.assert_allclose(drawn[row, column], colours[level], atol=4, err_msg=str(tap))

    # A tap under the pointer, or a finger, names its heads; another size is another kernel.
    kernel = card.locator(".ax-kernel")
    box = kernel.bounding_box()
    seen.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    seen.idle()
    for words in ("Tap (+0, −1)", "head 4 (", "head 5 ("):
        assert words in card.inner_text()
    before, text = seen.pixels("kernel"), reading.inner_text()
    card.get_by_label("Size of the kernel").select_option("1")
    seen.idle()
    assert changed(before, seen.pixels("kernel")) and reading.inner_text() != text
    seen = show(file, **PHONE)
    kernel = seen.part("kernel").first
    kernel.scroll_into_view_if_needed()
    seen.idle()
    box = kernel.bounding_box()
    kernel.tap(position=dict(x=0.3 * box["width"], y=0.5 * box["height"]))
    seen.idle()
    assert "Tap (+0, −1)" in seen.part("layer").first.inner_text()


def near(pixels: np.ndarray, colour: tuple[int, int, int]) -> tuple[float, float]:
    """The middle (y, x) of all pixels of nearly that colour."""
    rows, columns = np.nonzero(np.abs(pixels - colour).max(-1) < 30)
    return (rows.min() + rows.max() + 1) / 2, (columns.min() + columns.max() + 1) / 2


def test_maps_show_what_they_say(show, tmp_path):
    """Heads that look at one pixel each, on a grid that is no square: each thing is where the
    numbers say.
    """
    torch.manual_seed(0)
    config = ModelConfig(
        image_size=(28, 40), image_channels=3, downsampling=4, layers=2, heads=3, hidden=6, mlp=8
    )
    model, query, vermilion = build_model(config).eval(), (3, 5), (0xD5, 0x5E, 0)
    shifts = torch.tensor([[[1, -4], [2, 3], [-1, 1]], [[1, 2], [-1, -3], [0, 3]]])
    with torch.no_grad():
        for layer, centres in zip(model.attention_layers, shifts, strict=True):
            layer.centres.copy_(centres)
            layer.spreads.fill_(12)
    image = np.kron(
        np.random.default_rng(0).integers(0, 256, (7, 10, 3)), np.ones((4, 4, 1))
    ).astype(np.uint8)
    seen = show(explore(model, images=image[None]).export_html(tmp_path / "page.html"))
    seen.all_layers()
    seen.click(*query)

    picture = seen.pixels("image")
    cell = picture.shape[0] / 7
    assert near(picture, vermilion) == pytest.approx([(n + 0.5) * cell for n in query], abs=1.5)
    for row, column in ((0, 0), (6, 1), (2, 9)):
        at = picture[int((row + 0.5) * cell), int((column + 0.5) * cell)]
        np.testing.assert_allclose(at, image[4 * row, 4 * column], atol=2)

    pixels, box = seen.pixels(), seen.get("x.panel.box")
    for layer, head in np.ndindex(2, 3):
        x, y = box["left"] + head * (box["wide"] + box["gap"]), box["top"] + layer * box["down"]
        tile = pixels[int(y) : int(y) + box["tall"] - 8, int(x) : int(x) + box["wide"]]
        height, width = box["tall"] / 7, box["wide"] / 10
        assert near(tile, vermilion) == pytest.approx(
            [(query[0] + 0.5) * height, (query[1] + 0.5) * width], abs=1.5
        )
        cells = [
            [tile[int((i + 0.5) * height), int((j + 0.5) * width)].sum() for j in range(10)]
            for i in range(1, 6)
        ]
        brightest = np.unravel_index(np.argmax(cells), (5, 10))
        assert (brightest[0] + 1 - query[0], brightest[1] - query[1]) == tuple(
            shifts[layer, head].tolist()
        ), (layer, head)

    bar, colours = seen.canvas(seen.part("scale").first)[0], ramp()
    np.testing.assert_array_equal(bar[[0, -1]], colours[[0, -1]])


def test_layers_as_convolutions(grid, show):
    """From tabs and card: prediction and pictures are those of Python's `swap`; undone, reset, kept
    in a link.
    """
    explorer, file = grid
    model, shown = explorer._subject.model, explorer._inputs(explorer._shown["pixels"][None])
    seen = show(file)
    seen.layer(2)
    seen.drag_head(7, 0.4, 0.6)
    seen.root.get_by_label("head on").uncheck()
    seen.studied()
    answer, card = seen.words("predictions"), seen.part("swap")
    heads = changed_heads(seen.state())
    switch = card.get_by_role("checkbox", name="this layer as a convolution")
    sizes = card.get_by_role("combobox")
    assert sizes.locator("option").all_inner_texts() == [f"{n} × {n}" for n in (1, 3, 5, 7)]
    switch.press("Space")
    for size in (5, 3):
        sizes.select_option(str(size))
        seen.studied()
        assert changed_heads(seen.state()) == [dict(layer=1, kernel=size), *heads]
        with edited(model, heads):
            now = predict(swap(model, {2: size}), shown).softmax(-1)[0].numpy()
        assert seen.get("x.saysNow()") == pytest.approx(now, abs=1e-2)
    outputs = np.array(seen.get("x.seen.kernel.outputs"))

    # Both pictures have one scale: the same number, the same colour.
    pictures = [seen.canvas(card.locator(".ax-response").nth(i)) for i in (0, 1)]
    cells = [round((cell + 0.5) * len(pictures[0]) / 7) for cell in range(7)]
    found = np.array([picture[np.ix_(cells, cells)].reshape(-1, 3) for picture in pictures])
    level = np.rint(255 * (outputs - outputs.min()) / np.ptp(outputs)).astype(int)
    assert abs(found - ramp()[level]).max() <= 2
    assert "now a 3 × 3 convolution" in seen.words("layer h3")

    # The other layer too, from its tab; one size for all.
    tab = seen.root.get_by_role("switch", name="Layer 1 as a 3 × 3 convolution")
    tab.click()
    seen.idle()
    assert tab.get_attribute("aria-checked") == "true" and seen["layer"] == 1
    sizes.select_option("5")
    seen.idle()
    assert [seen["edits"][place] for place in "01"] == 2 * [dict(kernel=5)]
    for _ in range(2):
        seen.press("Undo")

    # In a link, and on another image; step by step back.
    seen.studied()
    other = show(file, seen.page.evaluate("location.hash.slice(1)"))
    other.studied()
    assert other["edits"] == seen["edits"]
    assert other.part("swap").get_by_role("checkbox").is_checked()
    other.press("Random image")
    other.studied()
    assert other.get("x.saysNow()") == pytest.approx(python_says(explorer, other), abs=1e-2)
    other.press("Reset all")
    assert not other.part("swap").get_by_role("checkbox").is_checked()
    for size in ("5", "3"):
        seen.press("Undo")
        assert sizes.input_value() == size and switch.is_checked()
    seen.press("Undo")
    assert not switch.is_checked() and seen.words("predictions") == answer


SCREENS = dict(
    small=dict(width=1280, height=720),
    large=dict(width=1400, height=900),
    phone=dict(width=390, height=844),
)


@pytest.mark.parametrize("name", SCREENS)
def test_the_first_screen_asks_and_shows_one_layer(grid, show, name):
    touch = dict(has_touch=True, is_mobile=True) if name == "phone" else {}
    seen = show(grid[1], viewport=SCREENS[name], **touch)
    parts = ["h1", ".ax-image", ".ax-grid", ".ax-centres"]
    parts += [".ax-says"] if touch else [".ax-kernel", ".ax-predictions", ".ax-swap input"]
    for theme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=theme)
        seen.idle(f"x.colours.dark === {str(theme == 'dark').lower()} && !x.frame")
        for part in parts:
            box = seen.root.locator(part).first.bounding_box()
            assert box["y"] >= 0 and box["y"] + box["height"] <= SCREENS[name]["height"], part
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
        assert seen.part("badges button").count() == 9
        assert seen.field("Show").is_hidden() and seen.field("Layer").is_hidden()

        # The maps are drawn over the image: brightest where a head looks, one pixel above and left
        # of the query.
        box, (row, column) = seen.get("x.panel.box"), seen["query"]
        picture, cell = seen.pixels() @ [0.299, 0.587, 0.114], box["wide"] / 7
        places = [[round(box[at] + (n + 0.2) * cell) for n in range(7)] for at in ("top", "left")]
        light = picture[np.ix_(places[0][1:], places[1])]
        assert np.unravel_index(np.argmax(light), (6, 7)) == (row - 2, column - 1)


@pytest.mark.parametrize(
    "screen", [PHONE, dict(viewport=dict(width=1280, height=720))], ids=["phone", "desktop"]
)
def test_words_stay_in_sight(pages, show, screen):
    """In the tour; and what a head is, under the pointer or on a tap."""
    seen = show(pages["quadratic"], **screen)
    assert not words_out_of_sight(seen)
    tip, word = seen.part("tip:visible"), seen.part("badges button").nth(1)
    word.tap() if screen is PHONE else word.hover()
    assert len(tip.inner_text()) > 20
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= seen.page.viewport_size["width"]
    seen.page.keyboard.press("Escape")
    assert tip.count() == 0


@pytest.mark.parametrize("screen", [PHONE, {}], ids=["phone", "desktop"])
def test_right_answers_stay_in_sight_and_follow_the_swaps(runs, show, tmp_path, screen):
    """All choices, as they were counted with the run; epochs; and what was not counted."""
    folder = shutil.copytree(runs["quadratic"].path, tmp_path / runs["quadratic"].path.name)
    (folder / "swaps.npz").unlink(missing_ok=True)  # a notebook of another test measures them
    model, data = load_run(folder)[0], load_data("embedded").first(10, 40)
    images = explore(model, images=data)._inputs(data.test_images.numpy())
    right = count_swaps(model, images, data.test_labels, (3, 7))
    right = 38 - np.arange(right.size).reshape(right.shape)  # no two alike
    np.savez(folder / FILE, images=40, sizes=(3, 7), right=right)
    seen = show(explore(folder, images=data).export_html(tmp_path / "page.html"), **screen)
    bar, tabs = seen.part("accuracy"), seen.part("tab")

    def told(choice: int, size: int = 0) -> bool:
        """Whether the bar says and shows what was counted."""
        seen.idle()
        share = right[size, choice] / 40
        wide = bar.locator("i").evaluate("node => parseFloat(node.style.width)")
        assert wide == pytest.approx(100 * share, abs=0.01)
        return f"{share:.1%}" in bar.inner_text()

    seen.idle()
    lost = [f"{100 * (right[0, choice] - right[0, 0]) / 40:+.1f}" for choice in (1, 2)]
    tabs_say = [tab.inner_text().replace("−", "-") for tab in tabs.all()]
    assert all(number in said for number, said in zip(lost, tabs_say, strict=True))
    assert told(0)
    for layer, choice in ((1, 2), (0, 3), (1, 1)):
        tabs.nth(layer).get_by_role("switch").click()
        assert told(choice)
    seen.root.get_by_label("Size of the kernel").select_option("7")
    assert told(1, 1)
    seen.page.evaluate("scrollTo(0, 700)")
    seen.idle()
    tall, box = seen.page.viewport_size["height"], bar.bounding_box()
    assert 0 <= box["y"] and box["y"] + box["height"] <= tall
    bar.get_by_role("button", name="Undo").click()
    assert told(1)
    seen.root.get_by_label("head on").uncheck()
    seen.idle()
    assert "not counted" in bar.inner_text()
    seen.press("Reset all")
    assert told(0)
    seen.part("epoch input").first.fill("1")
    seen.idle()
    assert f"{runs['quadratic'].metrics[0]['test_accuracy']:.1%} after epoch 1" in bar.inner_text()


def test_it_opens_on_the_best_kernel_near_the_query(show, tmp_path):
    """The other layers' heads are far apart; one of the kernel's is so far away that an arrow
    points to it.
    """
    explorer = page_of(tmp_path, downsampling=2, layers=3, heads=9)
    with torch.no_grad():
        for layer, apart in zip(explorer._subject.layers, (3, 1, 5), strict=True):
            layer.centres.copy_(apart * GRID)
            layer.spreads.fill_(5)
        explorer._subject.layers[1].centres[0] = torch.tensor([0.0, 6])
    seen = show(explore(explorer._subject.model).export_html(tmp_path / "page.html"))
    card = seen.part("layer").first
    assert seen["layer"] == 1 and "8 of 9 taps" in card.inner_text()
    near, half = seen.get("[x.panel.card.range, x.panel.card.plot.side / 2]")
    places = seen.get("x.panel.card.places")
    assert near == 2.5 and [place.get("far") for place in places] == [0] + 8 * [None]
    assert places[8]["x"] == pytest.approx(half * (1 + 1 / 2.5))
    picture = seen.pixels("centres")
    seen.press("Show the whole field")
    assert seen.get("x.panel.card.range") > 5 and changed(picture, seen.pixels("centres"))
    assert seen["whole"]
    seen.press("Zoom to the query")
    assert not changed(picture, seen.pixels("centres"))
    seen.layer(3)
    assert card.get_by_role("button", name="Show the whole field").is_hidden()


def test_heads_are_dragged(grid, show):
    explorer, file = grid
    seen = show(file)
    # A click only chooses, the right button not even that; a drag that rests is one step.
    mouse = seen.page.mouse
    for button in ("left", "right"):
        x, y = seen.head(2)
        mouse.move(x, y)
        mouse.down(button=button)
        mouse.move(x + (2 if button == "left" else 30), y + 1)
        mouse.up(button=button)
        seen.idle()
        assert seen["head"] == 2 and seen["edits"] == {}, button
    maps, kernel = seen.pixels(), seen.pixels("kernel")
    seen.drag_head(4, 0.3, 0.9)
    dragged = seen["edits"]["0.4"]["centre"]
    assert dragged == pytest.approx([0.3, -0.1], abs=0.1) and seen["head"] == 4
    assert changed(maps, seen.pixels()) and changed(kernel, seen.pixels("kernel"))
    assert "9 of 9 taps" in seen.part("layer").first.inner_text()
    seen.drag_head(4, -0.25, 0.05)  # near a whole shift it falls onto it
    assert seen["edits"]["0.4"]["centre"] == [0, 0]

    # The handle on the ring makes it wider.
    box = seen.part("centres").first.bounding_box()
    at = seen.get("""(() => {
        const { card } = x.panel, { side } = card.plot;
        for (let a = 0; a < side; a++)
            for (let b = 0; b < side; b++) if (card.grip(a, b, false)?.ring) return [a, b];
    })()""")
    seen.drag((box["x"] + at[0] + 1, box["y"] + at[1] + 1), (25, 25))
    seen.idle()
    assert seen["edits"]["0.4"]["sigma"] > 0.4

    # One step back for each of them, and forth again.
    edits = seen["edits"]
    for _ in range(3):
        seen.press("Undo")
    assert seen["edits"] == {} and not changed(kernel, seen.pixels("kernel"))
    for _ in range(3):
        seen.press("Redo")
    assert seen["edits"] == edits

    # Arrow keys on the plot; what is done to all heads.
    for key in ("ArrowDown", "Shift+ArrowRight"):
        seen.part("centres").first.press(key)
    assert seen["edits"]["0.4"]["centre"] == [0.25, 0.05]
    seen.layer(2)
    seen.press("Make it a grid")
    assert "9 of 9 taps" in seen.part("layer").first.inner_text()
    centres = [seen["edits"][f"1.{head}"]["centre"] for head in range(9)]
    assert sorted(centres) == GRID.tolist() and centres[0] == [-1, -1]
    seen.press("Undo")
    assert not [place for place in seen["edits"] if place.startswith("1.")]
    seen.press("Redo")

    # The page predicts what Python does, also on another image; the changes stay.
    seen.studied()
    for _ in range(2):
        assert seen.get("x.saysNow()") == pytest.approx(python_says(explorer, seen), abs=1e-2)
        assert "→" in seen.words("predictions")
        seen.press("Random image")
        seen.studied()


def test_an_image_of_the_reader(grid, show, tmp_path):
    """The page predicts for it; a link cannot hold it, and says so."""
    explorer, file = grid
    seen = show(file)
    first = seen.words("caption")
    choose, (good, broken) = seen.root.locator("input[type=file]"), files(tmp_path)
    seen.drag_head(2, 1, 1)
    choose.set_input_files(broken)
    seen.root.locator(".ax-notice", has_text="broken.jpg is not an image").wait_for()
    choose.set_input_files(good)
    seen.wait("x.caption.textContent === 'good.png'")
    seen.studied()
    own = seen.pixels("image")
    assert own[0].mean() < 20 and own[-1].mean() > 235  # from dark to light, all of its height
    assert seen.get("x.saysNow()") == pytest.approx(python_says(explorer, seen), abs=1e-2)
    assert len(seen["edits"]) == 1 and seen.part("tools .ax-notice").is_hidden()
    link, told = copied(seen)
    assert "does not hold good.png" in told
    for screen in ({}, PHONE):
        other = show(file, link, **screen)
        other.studied()
        assert other.words("caption") == first
        assert other["edits"] == seen["edits"]
        notice = other.part("notice:visible")
        box = notice.bounding_box()
        assert (
            "picture of its author's own" in notice.inner_text() and box["y"] + box["height"] < 700
        )
    other.press("Random image")
    assert notice.count() == 0


def test_a_finger_drags_a_head(grid, show):
    """Past others, with its layer as a convolution; the page stays where it is, and the
    prediction in sight.
    """
    seen, tall = show(grid[1], **PHONE), PHONE["viewport"]["height"]
    seen.studied()

    def says_in_sight() -> None:
        seen.idle()
        box = says.bounding_box()
        assert 0 <= box["y"] and box["y"] + box["height"] <= tall

    def drag(*places: tuple[float, float]) -> None:
        """Put a finger on head 9, move it to these places from there, and lift it."""
        x, y = seen.head(8)
        finger(
            seen.page, [(x, y), *((x + right, y + down) for right, down in places)], says_in_sight
        )
        seen.studied()

    says = seen.part("says")
    before = says.inner_text()
    drag(*[(-20 * step, -20 * step) for step in range(1, 6)])
    best = seen.get("x.host.choices.classes")[int(np.argmax(seen.get("x.saysNow()")))]
    assert (
        says.inner_text() != before
        and best in says.inner_text()
        and "before: " in says.inner_text()
    )
    seen.page.evaluate("scrollTo(0, 600)")
    assert says.bounding_box()["y"] < tall

    seen.press("Undo")
    seen.root.get_by_label("this layer as a convolution").check()
    seen.studied()
    seen.head(8)
    cell, start = (
        seen.get("x.panel.card.plot.side / (2 * x.panel.card.range)"),
        seen.page.evaluate("scrollY"),
    )
    assert cell > 22  # heads on neighbouring shifts are a finger apart
    drag((20, 10), (40, 40))
    assert seen["edits"]["0.8"]["centre"] == pytest.approx([1 + 40 / cell, 1 + 40 / cell], abs=0.2)
    assert seen.page.evaluate("scrollY") == start
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")


def test_the_tour_and_the_words(grid, show):
    seen = show(grid[1], viewport=dict(width=1280, height=2000))
    told, lit = [], []
    focused = "document.activeElement.textContent"
    seen.press("Take the tour")
    assert seen.page.evaluate(focused) == "Next"  # the button that was pressed is gone
    for _ in range(5):
        told.append(seen.words("tour > :first-child"))
        lit.append(seen.part("lit").get_attribute("class"))
        seen.press("Done" if len(told) == 5 else "Next")
    assert [text[:2] for text in told] == [f"{n}." for n in range(1, 6)] and len(set(lit)) == 5
    assert "kernel" in told[2] and seen.part("lit").count() == 0
    assert seen.page.evaluate(focused) == "Take the tour"
    seen.root.get_by_text("What the words mean").click()
    words = seen.part("glossary dt").all_inner_texts()
    names = seen.part("numbers dt")
    assert set(names.all_inner_texts()) <= set(words)  # every number is explained
    names.filter(has_text="entropy").click()
    assert "How undecided" in seen.words("hint")

    # The words on the tiles: one for each head, with a sentence of its own.
    seen = show(grid[1])
    tip = seen.part("tip:visible")
    for head, meaning in ((1, "more than half"), (5, "same shift as head 4")):
        seen.root.get_by_role("button", name=f"Head {head}:").focus()
        assert meaning in tip.inner_text()
    seen.press("Show all layers")
    for control in seen.part("top label:visible").all():
        control.locator("select").focus()
        control.hover()
        assert tip.inner_text(), control.inner_text()


def words_out_of_sight(seen: Seen) -> list[str]:
    """Steps of the tour whose words are not in the window, or hide the beginning of what they
    speak of.
    """
    wrong, tall = [], seen.page.viewport_size["height"]
    shown = """node => {
        const { left, top, bottom } = node.getBoundingClientRect();
        const at = (y) => document.elementFromPoint(left + 9, y);
        return [top + 3, bottom - 3].every((y) => node.contains(at(y)));
    }"""
    seen.press("Take the tour")
    for step in range(1, 6):
        words, lit = (seen.part(name).first for name in ("tour", "lit"))
        box, place = words.bounding_box(), lit.bounding_box()
        if not (words.evaluate(shown) and box["y"] + box["height"] <= place["y"] <= tall - 40):
            wrong.append(f"step {step}: words {box}, lit {place}")
        seen.root.locator(
            ".ax-tour button:visible", has_text="Done" if step == 5 else "Next"
        ).click()
        seen.idle()
    return wrong


def copied(seen: Seen) -> tuple[str, str]:
    """The view's link, after its #, and what is said about it, beside the button and in the
    window.
    """
    button = seen.root.get_by_role("button", name="Copy link")
    button.click()
    told = seen.part("tools [role=status]")
    seen.page.wait_for_function("node => node.textContent", arg=told.element_handle())
    box, near = told.bounding_box(), button.bounding_box()
    assert (
        near["y"] <= box["y"] < near["y"] + 60
        and box["y"] + box["height"] <= seen.page.viewport_size["height"]
    )
    return seen.page.evaluate("location.hash.slice(1)"), told.inner_text()


def test_a_link_holds_the_view(pages, show):
    """The image, the query, the changed head, and the epoch; what it changes can be undone."""
    seen = show(file := pages["quadratic"])
    first = seen.words("caption")
    seen.press("Random image")
    seen.layer(2)
    seen.root.get_by_role("button", name="Head 4:").click()
    seen.idle()
    seen.slide("centre row", 1.5)
    seen.root.get_by_label("Size of the kernel").select_option("5")
    seen.hover(2, 5)
    seen.click(2, 5)
    seen.all_layers()
    seen.choose("Show", "centres")
    seen.studied()
    link, told = copied(seen)
    assert told in ("Copied.", "The address bar has the link.")
    other = show(file, link)
    other.studied()
    captions = [one.words("caption") for one in (seen, other)]
    assert captions[0] == captions[1] != first
    names = ("query", "locked", "layer", "head", "size", "view")
    assert [other[name] for name in names] == [[2, 5], True, 1, 3, 5, "centres"]
    own = other["edits"]
    assert list(own) == ["1.3"] and own == seen["edits"]
    assert other.get("x.saysNow()") == seen.get("x.saysNow()")
    for name in ("image", "grid"):
        assert not changed(seen.pixels(name), other.pixels(name))
    off = "{ '0.5': { off: true } }"
    other.page.evaluate(  # the page rests, and saves its view, before it hears of the link
        "location.hash = encodeURIComponent(JSON.stringify("
        f"{{ image: 'of another page', epoch: 1, layer: 0, head: 1, edits: {off} }}));"
        "document.querySelector('.attnconv-explorer').attnconv.settle()"
    )
    other.wait("x.state.layer === 0 && x.state.head === 1")
    assert list(other["edits"]) == ["0.5"]
    assert "after epoch 1" in other.words("panel > h2")
    assert "does not hold the image of this link" in other.words("view")
    other.idle()
    other.press("Undo")
    assert other["edits"] == own
    assert show(file, "%7B%22layer%22:")["query"] == [3, 3]  # damaged


def in_a_notebook(browser, explorer: Explorer, views: int = 1, **state):
    """A page that does with the front end what anywidget does."""
    return as_widget(browser, "explorer", dict(state=state), explorer.data, views)


def test_python_sets_the_view_and_reads_it(browser, grid):
    """What anywidget does with the front end: a model whose state changes on either side."""
    page = in_a_notebook(browser, grid[0], edits={"0.0": dict(off=True)})
    seen = Seen(page)
    seen.idle("x.host.edited?.heads.length === 1")  # changes that come with the state are predicted
    page.evaluate(
        "model.set('state', { ...model.get('state'), layer: 1, head: 5, all: true, "
        "view: 'centres', query: [0, 6] })"
    )
    assert [seen[name] for name in ("layer", "head", "view", "query")] == [1, 5, "centres", [0, 6]]
    seen.field("Head").select_option(label="2")
    page.wait_for_function("model.traits.state.head === 1")
    assert page.evaluate("model.traits.state.layer") == 1

    # A file that another view of the widget asked for is not downloaded here, too.
    asked = page.evaluate(
        """() => {
            const x = document.querySelector(".attnconv-explorer").attnconv, got = [];
            x.download = () => got.push(1);
            x.exportPage();
            for (const id of [x.exporting + 1, x.exporting])
                tell({ kind: "file", id, name: "a", type: "a" });
            return got.length;
        }"""
    )
    assert asked == 1

    # A model that was chosen in vain is not named as the one that is shown; another one is shown
    # anew, without what was changed of the former one.
    seen.get(
        "(x.run.append(new Option('Another', 'another')), (x.run.value = 'another'), "
        "x.told('notice', 'No.'))"
    )
    seen.wait("x.run.value === x.model.name")
    first = seen.root.element_handle()
    page.evaluate("model.traits.state = { ...model.traits.state, edits: {} }")
    page.evaluate("model.set('data', model.traits.data)")
    page.wait_for_function(
        "first => first.attnconv.model && !first.attnconv.past.length", arg=first
    )
    seen.wait("x.host.before")
    assert not seen["edits"]
    page.evaluate("ends.forEach((end) => end())")
    assert seen.root.locator("*").count() == 0 and not page.errors
    page.close()


def test_two_views_of_one_widget_are_of_one_mind(browser, grid):
    """What is chosen in one goes to the other by the state."""
    page = in_a_notebook(browser, grid[0], views=2)
    page.wait_for_function(
        "[...document.querySelectorAll('#view0 > div, #view1 > div')].every((n) => n.attnconv)"
    )
    known = page.evaluate("""() => {
        const ids = ["view0", "view1"];
        const views = ids.map((id) => document.getElementById(id).firstChild.attnconv);
        views[0].set({ head: 2 });
        views[0].settle();
        return views[1].state.head;
    }""")
    assert known == 2
    page.close()


def test_the_keyboard_keeps_its_place(grid, show):
    seen, active = show(grid[1]), "document.activeElement.textContent"
    seen.slide("centre row", 2)
    for button, then in (("Undo", "Redo"), ("Redo", "Undo"), ("Reset all", "Undo")):
        seen.root.get_by_role("button", name=button, exact=True).press("Enter")
        seen.idle()
        assert seen.page.evaluate(active) == then
    # Layers, heads and what is done to them are one stop each; arrow keys go on from there.
    seen.part("tab button").first.focus()
    for name in ("Layer 1 as a 3 × 3 convolution", "Layer 2"):
        seen.page.keyboard.press("ArrowRight")
        label = "document.activeElement.ariaLabel || document.activeElement.innerText"
        assert seen.page.evaluate(label).startswith(name)
    stops = set()
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        stops.add(seen.page.evaluate("document.activeElement.outerHTML.slice(0, 120)"))
    assert len(stops) <= 26  # one of them is the page itself


def page_of(folder: Path, **config) -> Explorer:
    """An explorer of a small network, and its page in a folder."""
    torch.manual_seed(0)
    shape = dict(image_size=(28, 28), image_channels=1, downsampling=4, hidden=6, mlp=8)
    explorer = explore(build_model(ModelConfig(**(shape | config))).eval())
    explorer.export_html(folder / "page.html")
    return explorer


def test_layers_without_heads(show, tmp_path):
    """They are chosen without one, and it opens on another layer."""
    page_of(tmp_path, layers=2, heads=(2, 0))
    seen = show(tmp_path / "page.html")
    seen.all_layers()
    seen.choose("Show", "centres")
    box = seen.get("x.panel.box")
    place = dict(x=box["left"] + box["wide"] + box["gap"] + 20, y=box["top"] + 20)
    seen.part("grid").click(position=place)
    seen.idle()
    assert [seen[name] for name in ("layer", "head")] == [1, 0]
    assert seen.get("x.panel.doesBox.hidden")  # nothing is left of what was said of another
    seen.choose("Layer", "0")
    assert seen.get("x.head.length") == 2
    page_of(tmp_path, kind="learned", layers=2, heads=(0, 2))
    assert show(tmp_path / "page.html")["layer"] == 1
