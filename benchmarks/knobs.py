"""The figures with knobs of notebooks 02, 04, 05 and 10, in JupyterLab: from a key on a knob to the new picture.

    python benchmarks/knobs.py [--profile evening] [--data PATH] [--keys 10]

Needs Debian's chromium and Playwright's Python package, and the recorded runs of the profile. Every picture is new: it
has not been drawn before; those of notebooks 04 and 10 are drawn ahead, when their cell runs.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import KERNEL, chromium, jupyterlab, playwright, run_all  # noqa: E402
from test_knobs import CELLS, NOTEBOOKS  # noqa: E402

LISTEN = """root => {
    root.times = [];
    for (const kind of ["keydown", "change"]) {
        root.addEventListener(kind, () => { root.began = performance.now(); }, true);
    }
    root.querySelector("img").addEventListener("load", () => root.times.push(performance.now() - root.began));
}"""


def turned(page: playwright.Page, root: playwright.Locator, knob: playwright.Locator, keys: int) -> list[float]:
    """Milliseconds of each turn of a knob, from one end of it."""
    if (options := knob.locator("select")).count():
        turns = [
            lambda value=value: options.select_option(value)
            for value in options.locator("option").all_inner_texts()[1:]
        ]
    else:
        slider = knob.locator("[role=slider]")
        slider.press("Home")
        turns = [lambda: slider.press("ArrowRight")] * keys
    times = []
    for turn in turns:
        page.wait_for_timeout(400)  # what came before is drawn
        root.evaluate("root => { root.times.length = 0; }")
        turn()
        page.wait_for_timeout(400)
        times += root.evaluate("root => root.times")  # none at the knob's other end
    return times


def opened(browser: playwright.Browser, address: str, folder: Path, number: str, start: str) -> playwright.Page:
    """A page of JupyterLab with the cells that a notebook's knobs need."""
    [path] = NOTEBOOKS.glob(f"{number}_*.ipynb")
    sources = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    code = [start, *(sources[name] for name in CELLS[number] if name in sources)]  # not what makes a test shorter
    cells = [nbformat.v4.new_code_cell(source) for source in code]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), folder / f"{number}.ipynb")
    page = browser.new_page(viewport=dict(width=1400, height=1400))
    page.goto(address.replace("/lab/", f"/lab/workspaces/{number}/").format(notebook=f"{number}.ipynb"))
    run_all(page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the figures with knobs in a browser.")
    parser.add_argument("--profile", default="evening")
    parser.add_argument("--data", default="")
    parser.add_argument("--keys", type=int, default=10)
    arguments = parser.parse_args()
    start = f"profile, data, output, preset, seed = {arguments.profile!r}, {arguments.data!r}, '', 'quadratic', None"
    with tempfile.TemporaryDirectory() as name, chromium() as browser, jupyterlab(Path(name), Path(name)) as address:
        for number in CELLS:
            page = opened(browser, address, Path(name), number, start)
            root = page.locator(".attnconv-knobs")
            root.wait_for(timeout=180_000)
            root.evaluate(LISTEN)
            for knob in root.locator(".widget-inline-hbox").all():
                times = turned(page, root, knob, arguments.keys)
                words = f"median {statistics.median(times):.0f} ms, longest {max(times):.0f}, of {len(times)}"
                print(f"{number}, {knob.locator('label').inner_text()}: {words}")
            page.close()


if __name__ == "__main__":
    main()
