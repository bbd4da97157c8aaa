# ruff: noqa: F401 (what is imported here is what the package offers)
"""What can be tried in a browser: the playground for Theorem 1, the explorer of a trained model, figures with knobs."""

from attnconv.explorer.arrays import ExplorerError, pack, quantize
from attnconv.explorer.edits import edited
from attnconv.explorer.knobs import Knobs
from attnconv.explorer.playground import Playground
from attnconv.explorer.widget import Explorer, explore
