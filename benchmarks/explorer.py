"""The head explorer in a browser: hover and drag to repaint, changed head to new prediction,
opening in JupyterLab.

    python benchmarks/explorer.py [--hovers 200] [--questions 20]

Needs Debian's chromium and Playwright's Python package. All is timed for networks of the evening's
size (6 layers of 9 heads, 96 channels, 16 x 16 pixels), untrained. Hovering and dragging: from the
pointer's event (and from the start of drawing) to the end of drawing. The first number includes the
browser's own wait: it holds pointer events back until the display's next frame. The page then draws
in the event itself, so that the frame already shows it. A new image and a
changed head: from the question in the page to the frame after the worker's answer."""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attnconv.config import ModelConfig
from attnconv.models import build_model
from companion.explorer import explore
from companion.workspace import open_workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import chromium, jupyterlab, notebook_of, playwright, run_all  # noqa: E402
from test_explorer_browser import Seen  # noqa: E402

PREPARE = """\
import numpy as np
from attnconv.config import ModelConfig
from companion.explorer import explore
from attnconv.models import build_model
model = build_model(ModelConfig(kind={kind!r}, hidden=96, mlp=192, key_size=16))
data = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)"""
SHOW = "import time\nprint('begins', time.time())\nexplorer = explore(model, images=data)\nexplorer"
ANSWER = """async (root, ask) => {
    const x = root.attnconv, start = performance.now();
    const before = x.host.edited;
    ask === "image" ? x.newImage() : x.edit((edit) => { edit.off = !edit.off; });
    const waits = () => !x.host.edited || x.host.edited === before;
    while (waits()) await new Promise((done) => setTimeout(done));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
}"""


def median(seen: Seen) -> str:
    """Milliseconds from the pointer's event to the end of drawing, and of drawing alone."""
    timings = seen.root.evaluate("root => root.attnconv.timings")
    event = [t["event"] for t in timings if t["event"] is not None]
    script = statistics.median(t["script"] for t in timings)
    return (
        f"median {statistics.median(event):.1f} ms of {len(event)} (drawing alone {script:.1f} ms)"
    )


def hovering(browser: playwright.Browser, kind: str, folder: Path, hovers: int) -> None:
    """Exported page, 6 x 9 heads at 16 x 16: the front end is the widget's."""
    torch.manual_seed(0)
    config = ModelConfig(kind=kind, hidden=96, mlp=192, key_size=16)
    page = browser.new_page(viewport=dict(width=1280, height=900))
    file = explore(build_model(config), images=open_workspace("evening").data).export_html(
        folder / f"{kind}.html"
    )
    page.goto(file.as_uri())
    seen = Seen(page)
    seen.root.evaluate("root => { root.attnconv.timings.length = 0; }")
    for step in range(hovers):
        page.mouse.move(*seen.point(step * 5 % 16, step * 3 % 16))
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    print(f"hover to repaint, {kind}: {median(seen)}; page {file.stat().st_size / 1e6:.1f} MB")
    if kind == "quadratic":
        dragging(seen, hovers)
    for layer in (0, config.layers - 1):
        seen.root.evaluate("(root, layer) => root.attnconv.setLayer(layer)", layer)
        seen.studied()
        times = [seen.root.evaluate(ANSWER, "head") for _ in range(5)]
        print(
            f"changed head of layer {layer + 1} to new prediction in the page, {kind}: median "
            f"{statistics.median(times):.0f} ms"
        )
    page.close()


def dragging(seen: Seen, moves: int) -> None:
    """A head of the first layer, round in circles."""
    x, y = seen.head(0)
    seen.page.mouse.move(x, y)
    seen.page.mouse.down()
    seen.root.evaluate("root => { root.attnconv.timings.length = 0; }")
    for step in range(moves):
        seen.page.mouse.move(x + 20 * math.sin(step / 3), y + 20 * math.cos(step / 3))
        seen.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    print(f"drag to repaint, quadratic: {median(seen)}")
    seen.page.mouse.up()
    seen.studied()


def questions(browser: playwright.Browser, kind: str, lab: Callable, repeats: int) -> None:
    """The widget in JupyterLab: opening, a new image, a changed head."""
    page = browser.new_page(viewport=dict(width=1500, height=1100))
    page.goto(lab(kind, notebook_of(PREPARE.format(kind=kind), SHOW)))
    run_all(page)
    seen = Seen(page)
    opened = time.time()
    begins = float(page.get_by_text("begins").last.text_content().split()[-1])
    print(f"opening in JupyterLab, {kind}: {opened - begins:.1f} s after the model is loaded")
    for ask, words in (("image", "new image"), ("head", "changed head")):
        times = [seen.root.evaluate(ANSWER, ask) for _ in range(repeats)]
        print(
            f"{words} to new prediction in JupyterLab, {kind}: median "
            f"{statistics.median(times):.0f} ms"
        )
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the head explorer in a browser.")
    parser.add_argument("--hovers", type=int, default=200)
    parser.add_argument("--questions", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        for kind in ("quadratic", "learned", "learned_content"):
            hovering(browser, kind, folder, arguments.hovers)
        (folder / "jupyter").mkdir()
        with jupyterlab(folder, folder / "jupyter") as lab:
            for kind in ("quadratic", "learned_content"):
                questions(browser, kind, lab, arguments.questions)


if __name__ == "__main__":
    main()
