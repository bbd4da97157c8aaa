"""A real browser for the tests of what front/ shows, and a JupyterLab to open it in."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import numpy as np
import pytest
from PIL import Image

from companion.explorer.assets import script, style
from companion.workspace import REPOSITORY

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
    ),
]
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
}
PHONE = dict(viewport=dict(width=390, height=700), has_touch=True, is_mobile=True)
# Controls whose name lacks the words that are seen on them, which are what one says to the page.
MISNAMED = """[...document.querySelectorAll("a[aria-label], button[aria-label]:not([role=switch])")]
    .filter((one) => /\\w/.test(one.innerText) && !one.ariaLabel.includes(one.innerText.trim()))
    .map((one) => one.ariaLabel)"""
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@contextlib.contextmanager
def chromium() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: playwright.Browser, file: Path, link: str = "", **options) -> playwright.Page:
    """A page of a file alone, with the network off. ``page.errors``: those of its scripts, and
    what it asked for.
    """
    options = dict(viewport=dict(width=1280, height=900), reduced_motion="reduce") | options
    page = browser.new_page(offline=True, **options)
    page.errors = []
    page.on(
        "request",
        lambda request: request.url.startswith("http") and page.errors.append(request.url),
    )
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(f"{file.as_uri()}#{link}" if link else file.as_uri())
    return page


class Shown:
    """What a page shows in the element ``.attnconv-<name>``, whose object (``x``) is its property
    ``attnconv``.

    A subclass has the ``name``, and ``rests``: what of ``x`` is true at rest."""

    def __init__(self, page: playwright.Page):
        self.page, self.root = page, page.locator(f".attnconv-{self.name}").first
        self.root.wait_for(timeout=180_000)
        self.wait("x?.timings.length")

    def state(self) -> dict:
        return self.root.evaluate("root => structuredClone(root.attnconv.state)")

    def __getitem__(self, name: str):
        """Of its state, the value of that name."""
        return self.state()[name]

    def get(self, expression: str):
        """The value of an expression about ``x``."""
        return self.root.evaluate(f"(root) => {{ const x = root.attnconv; return {expression}; }}")

    def wait(self, condition: str, timeout: float = 60_000) -> None:
        """Wait until an expression about ``x`` is true."""
        find = f"const x = document.querySelector('.attnconv-{self.name}').attnconv"
        self.page.wait_for_function(f"(() => {{ {find}; return {condition}; }})()", timeout=timeout)

    def idle(self, condition: str = "true") -> None:
        """Wait until an expression about ``x`` is true, nothing is awaited any more, and all is
        drawn.
        """
        self.wait(f"{self.rests} && ({condition})")
        self.page.evaluate(SETTLED)

    def field(self, name: str) -> playwright.Locator:
        return self.root.locator(f"label.ax-field:has(> span:text-is('{name}')) select")

    def choose(self, field: str, value: str) -> None:
        self.field(field).select_option(value)
        self.idle()

    def press(self, text: str) -> None:
        self.root.get_by_role("button", name=text, exact=True).first.click()
        self.idle()

    def canvas(self, locator: playwright.Locator) -> np.ndarray:
        """A canvas as the reader sees it: (H, W, 3)."""
        content = urllib.request.urlopen(locator.evaluate("canvas => canvas.toDataURL()")).read()
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)

    def drag(self, start: tuple[float, float], away: tuple[float, float]) -> None:
        """Drag with the mouse, in a few moves; in pixels of the page, across and down."""
        self.page.mouse.move(*start)
        self.page.mouse.down()
        for part in (0.3, 0.7, 1):
            self.page.mouse.move(start[0] + part * away[0], start[1] + part * away[1])
        self.page.mouse.up()


def finger(
    page: playwright.Page, places: list[tuple[float, float]], then: Callable[[], object]
) -> None:
    """Put a finger on the first of some places in the window, move it over the others, and lift
    it; ``then`` each.
    """
    session = page.context.new_cdp_session(page)
    for number, place in enumerate([*places, None]):
        kind = "touchEnd" if place is None else "touchMove" if number else "touchStart"
        points = [] if place is None else [dict(x=place[0], y=place[1])]
        session.send("Input.dispatchTouchEvent", dict(type=kind, touchPoints=points))
        then()


def as_widget(
    browser: playwright.Browser, name: str, traits: dict, data: bytes = b"", views: int = 1
) -> playwright.Page:
    """A page that does with a front end what anywidget does: a ``model`` with traits, among them
    ``data``, and views of it in #view0 ...

    On the page, ``tell`` says what Python would, and ``ends`` remove the views.
    """
    page = browser.new_page(viewport=dict(width=1000, height=900))
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    hidden = "".join(f"<div id=view{view} {'hidden' * (view > 0)}></div>" for view in range(views))
    page.set_content(f"<style>{style(f'{name}.css')}</style>{hidden}")
    page.evaluate(
        """async ([code, traits, data, views]) => {
            const file = new Blob([code], { type: "text/javascript" });
            const { default: widget } = await import(URL.createObjectURL(file));
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            traits.data = new DataView(bytes.buffer);
            const calls = (window.calls = {});
            window.tell = (message) => calls["msg:custom"].forEach((act) => act(message, [bytes]));
            window.model = {
                traits,
                get: (name) => traits[name],
                set(name, value) {
                    traits[name] = value;
                    (calls[`change:${name}`] || []).forEach((act) => act());
                },
                save_changes() {},
                send() {},
                on(name, act) { (calls[name] ||= []).push(act); },
                off(name, act) { calls[name] = calls[name].filter((one) => one !== act); },
            };
            window.ends = Array.from({ length: views }, (_, view) =>
                widget.render({ model, el: document.getElementById(`view${view}`) }));
        }""",
        [script(f"{name}.js"), traits, base64.b64encode(data).decode(), views],
    )
    return page


def notebook_of(*code: str) -> nbformat.NotebookNode:
    """A notebook with these cells, for which JupyterLab asks for no kernel."""
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(one) for one in code], metadata=KERNEL
    )


@contextlib.contextmanager
def jupyterlab(folder: Path, own: Path) -> Iterator[Callable[[str, nbformat.NotebookNode], str]]:
    """A JupyterLab on a folder, with all that it writes in ``own``.

    ``lab(name, notebook)`` writes a notebook there, and gives the address that opens it alone.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
    }
    places |= {
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
        "JUPYTER_DATA_DIR": "data",
    }
    environment = os.environ | {name: str(own / place) for name, place in places.items()}
    environment |= {
        "TQDM_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY / "lib"),
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
    ]
    command += [
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.port_retries=0",
    ]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    for name, settings in (
        (
            "apputils-extension/notification",
            {"fetchNews": "false", "checkForUpdates": False},
        ),  # no question in the way
        (
            "notebook-extension/tracker",
            {"windowingMode": "none"},
        ),  # cells out of sight stay in the page
    ):
        file = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(settings))
    with (
        open(own / "log", "w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as server,
    ):
        address = f"http://127.0.0.1:{port}"
        for _ in range(300):
            if server.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{address}/api?token={token}", timeout=2).close()
                break
            except OSError:
                time.sleep(0.2)
        try:
            assert server.poll() is None, (own / "log").read_text()

            def lab(name: str, notebook: nbformat.NotebookNode) -> str:
                nbformat.write(notebook, folder / f"{name}.ipynb")
                return f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?token={token}"

            yield lab
        finally:
            server.terminate()
            server.wait(20)


def menu(page: playwright.Page, name: str, item: str) -> None:
    page.locator(".lm-MenuBar-itemLabel", has_text=name).first.click()
    page.locator(".lm-Menu-itemLabel", has_text=item).first.click()


def run_all(page: playwright.Page) -> None:
    """Run all cells of the notebook that JupyterLab has opened."""
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for(timeout=60_000)
    page.get_by_text("| Idle").wait_for(
        timeout=60_000
    )  # a kernel that is not there yet would run nothing
    menu(page, "Run", "Run All Cells")
