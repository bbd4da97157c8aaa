"""What can be tried in a browser: the head explorer of a trained model."""

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

__all__ = ["FRONT_END", "Explorer", "ExplorerError", "edited", "explore", "pack", "quantize", "read_image"]
