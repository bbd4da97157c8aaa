"""Toy notebooks and toy runs for the runner's tests: nothing but cells that take no time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one process a core, each with one thread
os.environ.setdefault(
    "CUDA_VISIBLE_DEVICES", ""
)  # toys say and give the same on all machines (CONTRIBUTING.md)

LONG = """
    test_notebooks test_explorer_browser test_reproduce test_record test_training test_swapping
    test_precision test_compare test_figures test_others test_equivalence test_knobs
    test_playground_browser test_site_browser test_explorer test_data
    test_workspace test_benchmarks test_setup
""".split()
"""Files that take longest. The first and the fourth keep two cores busy, whatever the other worker
does: so the fourth comes when a good deal is done, and what is left when it ends is short.
"""


def pytest_configure() -> None:
    """A suite started in the background may inherit that Ctrl-C and SIGHUP are ignored. What it
    starts must not.

    A hook, because a process that a test starts under nohup imports this file too, and is to stay
    as it was started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_runtest_setup() -> None:
    """Each test draws the same numbers, whatever ran before it in its process."""
    import torch  # not before its threads are set, above

    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, so that no core waits for one of them at the end."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


PARAMETERS = "profile = 'toy'\ndata = 'embedded'\noutput = '.'\n"
PER_RUN = PARAMETERS + "preset = 'quadratic'\nseed = 0\n"
RESULT = """import os, pathlib
file = pathlib.Path(os.environ['ATTNCONV_RESULTS'], {!r})
file.parent.mkdir(parents=True, exist_ok=True)
file.write_text({!r})"""
"""A cell that leaves a result, as `Workspace.save_figure` does."""


class Toys:
    """A folder of notebooks with a profile ``toy``, and the output folder of their runs."""

    def __init__(self, folder: Path) -> None:
        self.notebooks, self.output = folder / "notebooks", folder / "outputs"
        (self.notebooks / "profiles").mkdir(parents=True)
        self.profile("runs: [quadratic, learned]\n")

    def profile(self, text: str) -> None:
        (self.notebooks / "profiles" / "toy.yaml").write_text(text)

    def add(self, name: str, *cells: str, parameters: str = PARAMETERS, **notes: object) -> Path:
        """Write a notebook; ``notes`` is its metadata for the runner. Every execution adds a
        line to LOG.
        """
        first = nbformat.v4.new_code_cell(
            parameters, id="parameters", metadata={"tags": ["parameters"]}
        )
        preset = "(f':{preset}' if 'preset' in globals() else '')"
        log = f"open('LOG', 'a').write({name[:2]!r} + {preset} + '\\n');"
        cells = [
            nbformat.v4.new_code_cell(source, id=f"cell-{i}")
            for i, source in enumerate([log, *cells])
        ]
        notebook = nbformat.v4.new_notebook(
            cells=[first, *cells], metadata={"attnconv": notes} if notes else {}
        )
        path = self.notebooks / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return path

    def executed(self) -> list[str]:
        """What ran since the last call, in order."""
        log = self.notebooks / "LOG"
        lines = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


def result(name: str, text: str = "x") -> str:
    return RESULT.format(name, text)


def write(file: Path, content: str | bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    return Toys(tmp_path)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A Chromium, as `browser.chromium` starts it."""
    from browser import chromium

    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """A JupyterLab, as `browser.jupyterlab` starts it, on ``lab.folder``."""
    from browser import jupyterlab

    folder = tmp_path_factory.mktemp("notebooks")
    with jupyterlab(folder, tmp_path_factory.mktemp("jupyter")) as lab:
        lab.folder = folder
        yield lab


@pytest.fixture
def show(browser: object, request: pytest.FixtureRequest) -> Iterator[Callable]:
    """Open a file as `browser.opened` does: a ``Seen`` of the test's module. There must have
    been no errors.
    """
    from browser import opened

    pages = []

    def show(file: Path, link: str = "", **options: object) -> object:
        pages.append(opened(browser, file, link, **options))
        return request.module.Seen(pages[-1])

    yield show
    for page in pages:
        assert not page.errors
        page.close()
