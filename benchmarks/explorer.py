"""The head explorer in a browser: hover to repaint, new image and changed head to repaint, opening in JupyterLab.

    python benchmarks/explorer.py [--hovers 200] [--questions 20]

Needs Debian's chromium and Playwright's Python package. Hovering is timed for 6 x 9 heads at 16 x 16, from the
pointer's event (and from the start of drawing) to the end of drawing, in the frame that is then shown. What Python
answers is timed for a small model (3 layers, 9 heads, 7 x 7), from the question in the page to the frame after the
answer.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import torch

from attnconv.config import ModelConfig
from attnconv.explorer import explore
from attnconv.models import build_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import chromium, jupyterlab, playwright, run_all  # noqa: E402
from test_explorer_browser import Seen  # noqa: E402

KERNEL = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}}
PREPARE = """\
import torch
from attnconv.config import ModelConfig
from attnconv.data import load_data
from attnconv.explorer import explore
from attnconv.models import build_model
config = ModelConfig(kind={kind!r}, image_size=(28, 28), image_channels=1, downsampling=4, layers=3, hidden=64, mlp=128,
                     key_size=16)
model, data = build_model(config), load_data("embedded", progress=False).first(10, 1000)"""
SHOW = "import time\nprint('begins', time.time())\nexplorer = explore(model, images=data)\nexplorer"
ANSWER = """async (root, ask) => {
    const x = root.attnconv, start = performance.now();
    ask === "image" ? x.newImage() : x.edit((edit) => { edit.off = !edit.off; });
    while (x.pending.size || x.waiting) await new Promise((done) => setTimeout(done));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
}"""


def hovering(browser: playwright.Browser, kind: str, folder: Path, hovers: int) -> None:
    """Exported page, 6 x 9 heads at 16 x 16: the front end is the widget's."""
    torch.manual_seed(0)
    config = ModelConfig(kind=kind, hidden=32, mlp=32, key_size=32)
    page = browser.new_page(viewport=dict(width=1280, height=900))
    file = explore(build_model(config)).export_html(folder / f"{kind}.html")
    page.goto(file.as_uri())
    seen = Seen(page, folder)
    seen.root.evaluate("root => { root.attnconv.timings.length = 0; }")
    for step in range(hovers):
        page.mouse.move(*seen.point(step * 5 % 16, step * 3 % 16))
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    timings = seen.root.evaluate("root => root.attnconv.timings")
    event = [t["event"] for t in timings if t["event"] is not None]
    script = statistics.median(t["script"] for t in timings)
    print(
        f"hover to repaint, 6 x 9 heads at 16 x 16, {kind}: median {statistics.median(event):.1f} ms of {len(event)} "
        f"(drawing alone {script:.1f} ms); page {file.stat().st_size / 1e6:.1f} MB"
    )
    page.close()


def questions(browser: playwright.Browser, kind: str, folder: Path, address: str, repeats: int) -> None:
    """The widget in JupyterLab: opening, a new image, a changed head."""
    cells = [nbformat.v4.new_code_cell(source) for source in (PREPARE.format(kind=kind), SHOW)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), folder / f"{kind}.ipynb")
    page = browser.new_page(viewport=dict(width=1500, height=1100))
    own = address.replace("/lab/", f"/lab/workspaces/{kind}/")  # without the other kind's notebook in a tab
    page.goto(own.format(notebook=f"{kind}.ipynb"))
    run_all(page)
    seen = Seen(page, folder)
    opened = time.time()
    begins = float(page.get_by_text("begins").last.text_content().split()[-1])
    print(f"opening in JupyterLab, {kind}: {opened - begins:.1f} s after the model is loaded")
    for ask, words in (("image", "new image"), ("head", "changed head")):
        times = [seen.root.evaluate(ANSWER, ask) for _ in range(repeats)]
        print(f"{words} to repaint, 3 x 9 heads at 7 x 7, {kind}: median {statistics.median(times):.0f} ms")
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
        with jupyterlab(folder, folder / "jupyter") as address:
            for kind in ("quadratic", "learned_content"):
                questions(browser, kind, folder, address, arguments.questions)


if __name__ == "__main__":
    main()
