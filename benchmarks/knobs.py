"""The figure with knobs of notebook 02, in JupyterLab: from a key on a knob to the new picture.

    python benchmarks/knobs.py [--profile evening] [--data PATH] [--keys 10]

Needs Debian's chromium and Playwright's Python package.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import chromium, jupyterlab, notebook_of, playwright, run_all  # noqa: E402
from test_knobs import CELLS  # noqa: E402

LISTEN = """root => {
    root.times = [];
    for (const kind of ["keydown", "change"]) {
        root.addEventListener(kind, () => { root.began = performance.now(); }, true);
    }
    const shown = () => root.times.push(performance.now() - root.began);
    root.querySelector("img").addEventListener("load", shown);
}"""


def turned(
    page: playwright.Page, root: playwright.Locator, knob: playwright.Locator, keys: int
) -> list[float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the figures with knobs in a browser.")
    parser.add_argument("--profile", default="evening")
    parser.add_argument("--data", default="")
    parser.add_argument("--keys", type=int, default=10)
    arguments = parser.parse_args()
    [path] = (Path(__file__).resolve().parents[1] / "notebooks").glob("02_*.ipynb")
    sources = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    given = f"profile, data, output = {arguments.profile!r}, {arguments.data!r}, ''"
    with (
        tempfile.TemporaryDirectory() as name,
        chromium() as browser,
        jupyterlab(Path(name), Path(name)) as lab,
    ):
        page = browser.new_page(viewport=dict(width=1400, height=1400))
        page.goto(lab("02", notebook_of(given, *(sources[name] for name in CELLS))))
        run_all(page)
        root = page.locator(".attnconv-knobs")
        root.wait_for(timeout=180_000)
        root.evaluate(LISTEN)
        for knob in root.locator(".widget-inline-hbox").all():
            times = turned(page, root, knob, arguments.keys)
            print(
                f"{knob.locator('label').inner_text()}: median {statistics.median(times):.0f} ms, "
                f"longest {max(times):.0f}, of {len(times)}"
            )
        page.close()


if __name__ == "__main__":
    main()
