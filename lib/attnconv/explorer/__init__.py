"""What can be tried in a browser: the playground for Theorem 1, and the head explorer of a trained model."""

from attnconv.explorer.playground import Playground, export_playground, playground
from attnconv.explorer.widget import (
    FRONT_END,
    Explorer,
    ExplorerError,
    edited,
    explore,
    pack,
    quantize,
    read_image,
)

__all__ = ["FRONT_END", "Explorer", "ExplorerError", "Playground", "edited", "explore", "export_playground", "pack"]
__all__ += ["playground", "quantize", "read_image"]
