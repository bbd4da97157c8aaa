"""The head explorer: an image with a query pixel, and beside it where every head of every layer
looks.

`explore` shows it in a notebook; `Explorer.export_html` writes it as one file that needs neither
Python nor a network. Both run the same front end (front/explorer.js), which draws arrays that it
gets once: moving the query never waits. In a notebook, Python answers what needs the model, such as
another image or a changed head. An exported page holds the weights, and a Web Worker answers
(front/worker.js)."""

import html
import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnconv.training.data import normalize
from attnconv.training.runs import Run, find_runs
from companion import figures
from companion.explorer import assets
from companion.explorer.edits import SIGMAS, Edits, ExplorerError
from companion.explorer.images import pool_of, size_of
from companion.explorer.packing import Tree, array, as_text, in_halves, pack
from companion.explorer.subject import Subject, run_title, subject_of
from companion.explorer.widgets import Widget, synced

WEIGHTS_LIMIT = 10_000_000  # bytes of the weights in a page
SITE_IMAGES = "explorer-images.js"  # of a site: the images that all its pages show
AVERAGED_IMAGES = 32  # over which attention with content is averaged (the paper: 100)
STRIP = 100  # images on which right answers are counted, before heads are changed and after


class Explorer(Widget):
    """Show where every head of a model looks, for any query pixel of any image.

    Args:
        subject: a finished run or its folder, an `AttentionNet`, or a network that
            `attnconv.equivalence.convert` made. The runs beside a run can be chosen and compared.
        images: a `Dataset` (its test images); a path, a Pillow image, an array of one image (H, W,
            C) or of several (N, H, W, C), or a list of these. Arrays are uint8 or floats in [0, 1];
            what does not fit is cropped and resized. None: the run's own data where it is on this
            machine, else pictures of the sample.
        mean, std: of every channel, for pixels in [0, 1], as the model was trained with. Default:
            the run's, the data set's, or those of CIFAR-10 for colour and of Fashion-MNIST for
            grey.

    ``state`` is what the reader has chosen, such as the query; it may be set from Python.
    """

    _esm = assets.script("explorer.js")
    _css = assets.style("explorer.css")
    sides = synced([])
    image = synced({})
    average = synced([])
    edited = synced({})
    choices = synced({})
    state = synced({})

    def __init__(
        self,
        subject: Any,
        images: Any = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ):
        first = subject_of(subject, size_of(images))
        pool = pool_of(images, first, mean, std)
        self._sides, self._pool = [first], pool
        self._runs = _beside(first.run) if first.run else {}
        self._labelled = pool.some(STRIP) if pool.labels.size else []
        self._index = self._clear_image()  # the image that was chosen last
        self._shown = pool.shown(self._index)
        runs = [dict(name=name, title=run_title(run)) for name, run in self._runs.items()]
        choices = dict(
            runs=runs,
            classes=list(pool.classes),
            sigmas=list(SIGMAS),
            colours=figures.head_colours(20),
            labelled=len(self._labelled),
            mean=list(pool.mean),
            std=list(pool.std),
            averaged=min(AVERAGED_IMAGES, len(pool.images)),
        )
        super().__init__(sides=[first.arrays], image=self._look(self._shown), choices=choices)
        self.on_msg(self._receive)

    def _clear_image(self) -> int:
        """The image on which it opens: of the eight clearest ones (mean times standard deviation of
        their brightness) the first to whose class the model gives more than 0.9; if there is none,
        the one to which it gives most."""
        if not self._labelled:
            return 0
        light = self._pool.images[self._labelled].mean(-1).reshape(len(self._labelled), -1)
        order = np.argsort(-light.mean(1) * light.std(1), kind="stable")
        clear = np.array(self._labelled)[order[:8]].tolist()
        answers = np.array(self._says(clear))
        sure = answers[range(len(clear)), self._pool.labels[clear]]
        return clear[np.argmax(sure.clip(max=0.9))]

    # -- what Python answers

    def _receive(self, _: Any, message: Tree, buffers: Sequence[Any] = ()) -> None:
        """Do what the page asks. What fails is told there: the reader sees the page, not the
        kernel's log.
        """
        try:
            self._answer(message, buffers)
        except Exception as error:
            kind = "" if isinstance(error, ExplorerError) else f"{type(error).__name__}: "
            self.send(dict(kind="notice", text=f"{kind}{error}"))
        finally:
            self.send(dict(kind="done", id=message.get("id")))

    def _answer(self, message: Tree, buffers: Sequence[Any]) -> None:
        side, edits = self._sides[0], message.get("edits", ())
        match message["kind"]:
            case "image":
                self._index = random.choice(self._others(message["class"]))
                self._show(self._pool.shown(self._index))
            case "open":  # an image of the reader's own, which the page has cropped and resized
                pixels = np.frombuffer(buffers[0], np.uint8).reshape(self._shown["pixels"].shape)
                self._show(dict(pixels=pixels, title=message["name"][:80], label=None))
            case "heads":  # the prediction with changed heads
                self.edited = dict(side.look(self._input, edits), heads=edits)
            case "examine":  # what one layer and one head do
                which = [message[name] for name in ("layer", "head", "size")]
                seen = side.examine(self._input, edits, *which)
                self.send(dict(message, **seen, kind="examined"))
            case "right":  # of some labelled images, with changed heads
                chosen = self._labelled[message["from"] : message["to"]]
                right = np.argmax(self._says(chosen, edits), -1) == self._pool.labels[chosen]
                self.send(dict(message, right=right.tolist()))
            case "average":
                self.average = self._averages(16)
            case "run":
                self._set_sides([subject_of(self._runs[message["name"]]), *self._sides[1:]])
            case "compare":
                names = [message["name"]] if message["name"] else []
                self._set_sides([side, *(subject_of(self._runs[name]) for name in names)])
            case "export":  # the state is newer than what the page saved last
                self.state = message["state"]
                file = dict(kind="file", name="attention-heads.html", type="text/html")
                self.send(dict(file, id=message["id"]), [self.page().encode()])

    def _others(self, label: int | None) -> list[int]:
        """The images that are not shown; of one class, if it is named."""
        fits = (
            np.full(len(self._pool.images), True) if label is None else self._pool.labels == label
        )
        others = np.flatnonzero(fits)
        others = others[others != self._index].tolist()
        if not others:
            raise ExplorerError("There is no other image of that class.")
        return others

    def _set_sides(self, sides: list[Subject]) -> None:
        same = sides[0] is self._sides[0]  # beside another run, changed heads stay changed
        self._sides = sides
        with self.hold_sync():
            self.average = []
            self.state = self.state if same else self.state | dict(edits={})
            self.sides = [side.arrays for side in sides]
            self._show(self._shown)

    def _show(self, shown: Tree) -> None:
        self._shown = shown
        with self.hold_sync():
            self.edited = {}
            self.image = self._look(shown)

    @property
    def _input(self) -> Tensor:
        """The image shown now as the models take it."""
        return self._inputs(self._shown["pixels"][None])

    def _inputs(self, pixels: NDArray) -> Tensor:
        return normalize(torch.tensor(pixels), self._pool.mean, self._pool.std)

    def _says(self, chosen: list[int], edits: Edits = ()) -> list[list[float]]:
        """What the model, with some changes, says of these images: class probabilities."""
        return self._sides[0].says(self._inputs(self._pool.images[chosen]), edits)

    def _look(self, shown: Tree, sides: Sequence[Subject] = (), bits: int = 16) -> Tree:
        """What the page needs of an image; of scores with content so many bits, if any."""
        image = self._inputs(shown["pixels"][None])
        seen = [side.look(image, bits=bits) for side in sides or self._sides]
        return dict(shown, pixels=array(shown["pixels"]), sides=seen)

    def _averages(self, bits: int) -> list[Any]:
        images = self._inputs(self._pool.images[:AVERAGED_IMAGES])
        return [side.average(images, bits) if side.content else None for side in self._sides]

    # -- the same view elsewhere

    def figure(self) -> Figure:
        """The view as a matplotlib figure: one image, its query pixel, every head of the first
        model.
        """
        side = self._sides[0]
        middle = [length // 2 for length in side.grid]
        row, column = self.state.get("query", middle)
        maps = side.maps((row, column), self._input)
        pixels, title = self._shown["pixels"], self._shown["title"]
        return figures.attention_on_image(pixels, (row, column), maps, caption=title)

    def page(self, site: Mapping[str, Run] | None = None) -> str:
        """The explorer as one HTML page, which needs neither Python nor a network.

        It holds what is drawn of the models, the image shown now and its prediction, also with the
        heads as they are changed now; the first model's weights, if they are not too many, with
        which the page predicts by itself; the average over images; and images of every class with
        their predictions, unless each needs maps from Python. As one of the pages of a ``site``, by
        file, it leads to the others, and the images are in a file beside them."""
        sides = [side.arrays for side in self._sides]
        first, *others = self._sides
        weights = {name: in_halves(values) for name, values in first.weights.items()}
        predicts = 0 < len(weights) and len(pack(weights)) <= WEIGHTS_LIMIT
        if predicts:
            sampling = first.model.config.downsampling
            sides[0] = dict(sides[0], weights=weights, downsampling=sampling)
            first = first.as_sent  # and computes by itself where its heads look
        maps = any(side.content for side in (others if predicts else self._sides))
        look = partial(self._look, sides=[first, *others], bits=8 if maps else 0)
        tree: Tree = dict(sides=sides, choices=self.choices, state=self.state, average=[])
        tree["image"] = look(self._shown)
        tree["gallery"] = [] if maps else [look(one) for one in self._strip(but=self._shown)]
        if not site:
            tree["average"] = self._averages(8)
        head = ""
        if site and first.run:
            tree["model"] = first.run.preset
            tree["pages"] = {run.preset: file for file, run in site.items()}
            tree["gallery"] = [dict(one, pixels=one["title"]) for one in tree["gallery"]]
            head = _links(site, first.run)
        title, data = f"Where does each head look? {first.title}", as_text(pack(tree))
        return assets.page(title, "explorer", data, self.png(), assets.worker(), head)

    def _strip(self, but: Tree | None = None) -> list[Tree]:
        """The images that come with a page."""
        images = [self._pool.shown(index) for index in self._pool.some(STRIP)]
        return [one for one in images if not but or one["title"] != but["title"]]

    def export_site(self, folder: str | Path) -> list[Path]:
        """Write a page for this run, ``explorer.html``, and one for each other model that was
        trained beside it: of several runs the longest."""
        folder, first = Path(folder), self._sides[0].run
        if not first:
            remedy = "use export_html for a model alone"
            raise ExplorerError(f"Only runs have others beside them: {remedy}.")
        site = {"explorer.html": first}
        for run in sorted(self._runs.values(), key=lambda run: -run.train.epochs):
            if run.preset != first.preset and not run.train.start_from:
                site.setdefault(f"explorer-{run.preset}.html", run)
        images = {one["title"]: array(one["pixels"]) for one in self._strip()}
        text = json.dumps(as_text(pack(images)))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SITE_IMAGES).write_text(f"globalThis.attnconvImages = {text};\n")
        for file, run in site.items():
            explorer = self if run is first else Explorer(run, self._pool)
            (folder / file).write_text(explorer.page(site), "utf-8")
            if explorer is not self:  # else the kernel and the browser would keep it
                explorer.close()
        return [folder / file for file in site]


def _links(site: Mapping[str, Run], here: Run) -> str:
    """Links to all pages of a site, and the images that they share."""
    links = ""
    for file, run in site.items():
        current = " aria-current=page" * (run.path == here.path)
        links += f"<a href='{file}'{current}>{html.escape(run.title)}</a>\n"
    nav = f"<nav id='models' aria-label='Models'>{links}</nav>"
    return f"{nav}<script src='{SITE_IMAGES}'></script>\n"


def _beside(run: Run) -> dict[str, Run]:
    """This run and those beside it, by name, that take the same images, have heads in every layer,
    and still have weights.
    """
    takes = attrgetter("image_size", "image_channels", "classes")
    found = {}
    for one in find_runs(run.path.parent):
        attention = one.model.kind != "resnet" and not any(one.model.kernel_per_layer)
        weights = (one.path / "model.safetensors").exists()
        if attention and weights and takes(one.model) == takes(run.model):
            found[one.path.name] = one
    return found | {run.path.name: run}


explore = Explorer  # as one says it in a notebook
