"""Toy notebooks for the runner's tests: nothing but cells that take no time."""

from __future__ import annotations

import signal
from pathlib import Path

import nbformat
import pytest

# A suite that is started in the background may inherit that Ctrl-C and SIGHUP are ignored. What it starts must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

PARAMETERS = "profile = 'toy'\ndata = 'embedded'\noutput = '.'\n"


class Toys:
    """A folder of notebooks with a profile ``toy``, and the output folder of their runs."""

    def __init__(self, folder: Path) -> None:
        self.notebooks, self.output = folder / "notebooks", folder / "outputs"
        (self.notebooks / "profiles").mkdir(parents=True)
        self.profile("runs: [quadratic, learned]\n")

    def profile(self, text: str) -> None:
        (self.notebooks / "profiles" / "toy.yaml").write_text(text)

    def add(self, name: str, *cells: str, parameters: str = PARAMETERS, **notes: object) -> Path:
        """Write a notebook; ``notes`` is its metadata for the runner. Every execution adds a line to LOG."""
        first = nbformat.v4.new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]})
        log = (
            "open('LOG', 'a').write(" + repr(name[:2]) + " + (f':{preset}' if 'preset' in globals() else '') + '\\n');"
        )
        cells = [nbformat.v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate([log, *cells])]
        notebook = nbformat.v4.new_notebook(cells=[first, *cells], metadata={"attnconv": notes} if notes else {})
        path = self.notebooks / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return path

    def executed(self) -> list[str]:
        """What ran since the last call, in order."""
        log = self.notebooks / "LOG"
        lines = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    return Toys(tmp_path)
