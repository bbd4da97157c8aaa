"""The playground for Theorem 1: a kernel, one attention head for each of its taps, and what both
make of a picture.

`Playground` shows it in a notebook; its ``export_html`` writes one file that needs neither Python
nor a network. All arithmetic is done in the browser (front/maths.js), for one channel in and one
out. Python sends the pictures, and
a state as text: what the link of the offline page has after its ``#``.
"""

import base64
import json

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from attnconv.equivalence import conv_to_attention
from companion import figures
from companion.explorer import assets
from companion.explorer.packing import Tree
from companion.explorer.widgets import Widget, synced


def pictures() -> list[Tree]:
    """The pictures to choose from, as front/pictures.json describes them, with their pixels: (H, W)
    in 8 bits.
    """
    found = json.loads((assets.FRONT / "pictures.json").read_text("utf-8"))
    for about in found:
        with Image.open(assets.FRONT / f"{about['name']}.png") as picture:
            about["width"], about["height"] = picture.size
            about["data"] = base64.b64encode(picture.tobytes()).decode()
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
        pixels = np.frombuffer(base64.b64decode(about["data"]), np.uint8)
        photo = torch.from_numpy(pixels / 255).float().view(1, about["height"], about["width"])
        sobel = nn.Conv2d(1, 1, 3, padding=1, bias=False).float().requires_grad_(False)
        sobel.weight[0, 0] = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
        expected = sobel(photo[None])[0, 0]
        got = conv_to_attention(sobel, self._alpha)(photo[None])[0, 0]
        apart = (got - expected).abs().max().item()
        titles = [
            "Picture",
            "Conv2d",
            f"Nine heads, α = {self._alpha:g}",
            f"Difference: at most {apart:.1g}",
        ]
        images = [image.numpy() for image in (expected, got, got - expected)]
        return figures.signed_images(images, titles, photo=photo[0].numpy(), query=about["query"])

    def page(self) -> str:
        """The playground as one HTML page, which needs neither Python nor a network."""
        data = {name: getattr(self, name) for name in ("pictures", "colours", "state", "start")}
        title = "A convolution is attention with one head per tap"
        return assets.page(title, "playground", json.dumps(data), self.png())
