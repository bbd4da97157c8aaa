"""The playground for Theorem 1: a kernel, one attention head for each of its taps, and what both
make of a picture.

`Playground` shows it in a notebook; its ``export_html`` writes one file that needs neither Python
nor a network. All arithmetic is done in the browser (front/maths.js), for one channel in and one
out. Python sends the pictures, and
a state as text: what the link of the offline page has after its ``#``.
"""

import base64
import json
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from attnconv.equivalence import conv_to_attention
from companion import figures
from companion.explorer import assets
from companion.explorer.widgets import Widget, synced

# files of front/ to choose from: name, title, source, and the query's row and column at first
PICTURES = (
    ("hopper", "Grace Hopper", "Rear Admiral Grace Hopper. US Navy, public domain.", [38, 20]),
    ("boot", "Ankle boot", "From Fashion-MNIST. Zalando SE, MIT licence.", [14, 14]),
    ("shapes", "Shapes", "Drawn by a formula.", [32, 20]),
    ("pixel", "One bright pixel", "Its output is the kernel, turned by half a turn.", [7, 6]),
)


def pictures() -> list[dict[str, Any]]:
    """`PICTURES` with their pixels, (H, W) in 8 bits."""
    found = []
    for name, title, credit, query in PICTURES:
        with Image.open(assets.FRONT / f"{name}.png") as picture:
            (width, height), data = picture.size, base64.b64encode(picture.tobytes()).decode()
        found.append(
            dict(
                name=name,
                title=title,
                credit=credit,
                height=height,
                width=width,
                data=data,
                query=query,
            )
        )
    return found


class Playground(Widget):
    """Theorem 1 at work: choose a kernel and a picture, move its heads, and compare their sum with
    `Conv2d`.

    ``alpha`` is the sharpness of the heads at the start (Lemma 2): from 0.02, a blur, to 50, one
    pixel. ``state`` is what the reader has set, as text. It may be set from Python: ``widget.state
    = "kernel=blur&size=5&alpha=0.7"``."""

    _esm = assets.script("playground.js")
    _css = assets.style("playground.css")
    pictures = synced([])
    colours = synced([])
    state = synced("")
    start = synced("")  # the state that "Start again" leads to

    def __init__(self, alpha: float = 50.0):
        if not 0.02 <= alpha <= 50:
            raise ValueError(f"alpha = {alpha} must be from 0.02 (a blur) to 50 (one pixel).")
        self._alpha = float(alpha)
        start = f"alpha={alpha:g}"
        super().__init__(
            pictures=pictures(), colours=figures.head_colours(20), state=start, start=start
        )

    def figure(self) -> Figure:
        """A still picture of the start: the photograph, Conv2d, the sum of nine heads, their
        difference.
        """
        about = self.pictures[0]
        pixels = np.frombuffer(base64.b64decode(about["data"]), np.uint8).reshape(
            about["height"], about["width"]
        )
        photo = torch.from_numpy(pixels / 255).float()
        conv = nn.Conv2d(1, 1, 3, padding=1, bias=False).requires_grad_(False)
        conv.weight[0, 0] = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])  # Sobel's kernel
        expected, got = (
            layer(photo[None, None])[0, 0] for layer in (conv, conv_to_attention(conv, self._alpha))
        )
        apart = (got - expected).abs().max().item()
        titles = [
            "Picture",
            "Conv2d",
            f"Nine heads, α = {self._alpha:g}",
            f"Difference: at most {apart:.1g}",
        ]
        images = [image.numpy() for image in (expected, got, got - expected)]
        return figures.signed_images(
            images, titles, photo=photo.numpy(), query=tuple(about["query"])
        )

    def page(self) -> str:
        """The playground as one HTML page, which needs neither Python nor a network."""
        data = json.dumps(
            dict(pictures=self.pictures, colours=self.colours, state=self.state, start=self.start)
        )
        return assets.page(
            "A convolution is attention with one head per tap", "playground", data, self.png()
        )
