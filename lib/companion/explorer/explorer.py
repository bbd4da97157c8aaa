"""The head explorer: an image with a query pixel, and beside it where every head of every layer
looks.

`explore` shows it in a notebook; `Explorer.export_html` writes it as one file that needs neither
Python nor a network. Both run the same front end (front/explorer.js) on the same data, which hold
the model's weights: a Web Worker predicts with them (front/worker.js). In a notebook, Python is
asked for another run and for the file only."""

import html
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnconv.training.data import normalize
from attnconv.training.runs import Run, find_runs, write
from companion import figures
from companion.explorer import assets
from companion.explorer.counts import counted_swaps
from companion.explorer.images import pool_of
from companion.explorer.packing import Tree, array, as_text, pack
from companion.explorer.subject import SIGMAS, ExplorerError, subject_of
from companion.explorer.widgets import Widget, synced

IMAGES = 100  # that come with a page
SITE_LIMIT = 30_000_000  # bytes of a run's weights; larger ones make no page of a site


class Explorer(Widget):
    """Show where every head of a model looks, for any query pixel of any image.

    Args:
        subject: a finished run or its folder, or an `AttentionNet`. The runs beside a run can be
            chosen.
        images: a `Dataset` (100 of its test images); a path, a Pillow image, an array of one image
            (H, W, C) or of several (N, H, W, C), or a list of these; the first 100. Arrays are
            uint8; what does not fit is cropped and resized. None: the run's own data where it is on
            this machine, else pictures of the sample.
        mean, std: of every channel, for pixels in [0, 1], as the model was trained with. Default:
            the run's, the data set's, or those of CIFAR-10 for colour and of Fashion-MNIST for
            grey.

    ``state`` is what the reader has chosen, such as the query; it may be set from Python.
    """

    _esm = assets.script("explorer.js")
    _css = assets.style("explorer.css")
    data = synced(b"")  # all that a view needs
    state = synced({})

    def __init__(
        self,
        subject: Any,
        images: Any = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ):
        self._subject = subject_of(subject)
        self._pool = pool_of(images, self._subject, mean, std)
        self._runs = _beside(self._subject.run) if self._subject.run else {}
        self._chosen = self._pool.some(IMAGES)
        self._shown = self._pool.shown(self._clear_image())
        super().__init__(data=pack(self._content()), state={})
        self.on_msg(self._receive)

    def _clear_image(self) -> int:
        """The image on which it opens: of the eight clearest ones (mean times standard deviation of
        their brightness) the first to whose class the model gives more than 0.9; if there is none,
        the one to which it gives most."""
        if not self._pool.labels.size:
            return 0
        chosen = np.array(self._chosen)
        light = self._pool.images[chosen].mean(-1).reshape(len(chosen), -1)
        order = np.argsort(-light.mean(1) * light.std(1), kind="stable")
        clear = chosen[order[:8]]
        answers = self._subject.says(self._inputs(self._pool.images[clear])).cpu().numpy()
        sure = answers[range(len(clear)), self._pool.labels[clear]]
        return int(clear[np.argmax(sure.clip(max=0.9))])

    def _inputs(self, pixels: NDArray) -> Tensor:
        return normalize(torch.tensor(pixels), self._pool.mean, self._pool.std)

    # -- what Python answers

    def _receive(self, _: Any, message: Tree, buffers: Sequence[Any] = ()) -> None:
        """Do what the page asks. What fails is told there: the reader sees the page, not the
        kernel's log.
        """
        try:
            match message["kind"]:
                case "run":
                    self._subject = subject_of(self._runs[message["name"]])
                    self.state = self.state | dict(edits={})
                    self.data = pack(self._content())
                case "export":  # of what is shown now, which Python may not have yet
                    self.state = message["state"]
                    pixels = np.frombuffer(buffers[0], np.uint8)
                    pixels = pixels.reshape(self._shown["pixels"].shape)
                    self._shown = dict(message["image"], pixels=pixels)
                    file = dict(kind="file", name="attention-heads.html", type="text/html")
                    self.send(dict(file, id=message["id"]), [self.page().encode()])
        except Exception as error:
            kind = "" if isinstance(error, ExplorerError) else f"{type(error).__name__}: "
            self.send(dict(kind="notice", text=f"{kind}{error}"))
        finally:
            self.send(dict(kind="done", id=message.get("id")))

    def _content(self) -> Tree:
        """All that the front end needs, the image that is shown first."""
        pool, side = self._pool, self._subject
        images = [pool.shown(index) for index in self._chosen]
        others = [image for image in images if image["title"] != self._shown["title"]]
        return dict(
            side=dict(side.arrays, counted=counted_swaps(side.run)),
            images=[dict(one, pixels=array(one["pixels"])) for one in (self._shown, *others)],
            state=self.state,
            worker=assets.worker(),
            choices=dict(
                runs=[dict(name=name, title=run.label) for name, run in self._runs.items()],
                classes=list(pool.classes),
                sigmas=list(SIGMAS),
                colours=figures.head_colours(20),
                mean=list(pool.mean),
                std=list(pool.std),
            ),
        )

    # -- the same view elsewhere

    def figure(self) -> Figure:
        """The view as a matplotlib figure: one image, its query pixel, every head as it was
        trained. The image is the first one, or the one of the last export from the page.
        """
        middle = [length // 2 for length in self._subject.config.grid]
        query = self.state.get("query", middle)
        pixels = self._shown["pixels"]
        maps = self._subject.maps(query, self._inputs(pixels[None]))
        return figures.attention_on_image(pixels, query, maps, caption=self._shown["title"])

    def page(self, site: Mapping[str, Run] | None = None) -> str:
        """The explorer as one HTML page, which needs neither Python nor a network: the model, the
        image of `figure`, the heads as they are changed now, and images of every class. As one of
        the pages of a ``site``, by file, it leads to the others."""
        data, head, run = self._content(), "", self._subject.run
        if site and run:
            data["model"] = run.preset
            data["pages"] = {one.preset: file for file, one in site.items()}
            head = _links(site, run)
        title = f"Where does each head look? {self._subject.title}"
        return assets.page(title, "explorer", as_text(pack(data)), self.png(), head)

    def export_site(self, folder: str | Path) -> list[Path]:
        """Write a page for this run, ``explorer.html``, and one for each other model that was
        trained beside it: of several runs the longest. Very large models are left out."""
        folder, first = Path(folder), self._subject.run
        if not first:
            raise ExplorerError(
                "Only runs have others beside them: use export_html for a model alone."
            )
        site = {"explorer.html": first}
        for run in sorted(self._runs.values(), key=lambda run: -run.train.epochs):
            small = (run.path / "model.safetensors").stat().st_size <= SITE_LIMIT
            if run.preset != first.preset and not run.train.start_from and small:
                site.setdefault(f"explorer-{run.preset}.html", run)
        for file, run in site.items():
            explorer = self if run is first else Explorer(run, self._pool)
            write(folder / file, explorer.page(site))
            if explorer is not self:  # else the kernel and the browser would keep it
                explorer.close()
        return [folder / file for file in site]


def _links(site: Mapping[str, Run], here: Run) -> str:
    """Links to all pages of a site."""
    links = ""
    for file, run in site.items():
        current = " aria-current=page" * (run.path == here.path)
        links += f"<a href='{quote(file)}'{current}>{html.escape(run.title)}</a>\n"
    return f"<nav id='models' aria-label='Models'>{links}</nav>\n"


def _beside(run: Run) -> dict[str, Run]:
    """This run and those beside it, by name, that take the same images for the same classes, have
    heads in every layer, and still have weights.
    """
    takes = itemgetter("classes", "mean", "std")  # for channels and pixels of some size
    found = {}
    for one in find_runs(run.path.parent):
        attention = one.model.kind != "resnet" and not any(one.model.kernel_per_layer)
        if (
            attention
            and not one.without_weights
            and takes(one.config["data"]) == takes(run.config["data"])
        ):
            found[one.path.name] = one
    return found | {run.path.name: run}


explore = Explorer  # as one says it in a notebook
