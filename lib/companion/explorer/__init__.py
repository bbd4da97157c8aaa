# ruff: noqa: F401 (what is imported here is what the package offers)
"""What can be tried in a browser: the playground for Theorem 1, the explorer of a trained model,
figures with knobs.
"""

from companion.explorer.explorer import Explorer, explore
from companion.explorer.knobs import Knobs
from companion.explorer.packing import pack
from companion.explorer.playground import Playground
from companion.explorer.subject import ExplorerError
