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
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import traitlets
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnconv.training.data import normalize
from attnconv.training.runs import Run, find_runs, write
from companion import figures
from companion.explorer import assets
from companion.explorer.arrays import ExplorerError, array, as_text, pack
from companion.explorer.edits import SIGMAS
from companion.explorer.images import pool_of, size_of
from companion.explorer.sides import Side, run_title, side_of

WEIGHTS_LIMIT, SITE_LIMIT = (
    10_000_000,
    3_500_000,
)  # bytes of the weights in a page, and in each page of a site
SITE_IMAGES = "explorer-images.js"  # of a site: the images that all its pages show
AVERAGED_IMAGES = 32  # over which attention with content is averaged (the paper: 100)
STRIP = 100  # images on which right answers are counted, before heads are changed and after


class Explorer(assets.Widget):
    """Show where every head of a model looks, for any query pixel of any image.

    Args: subject: a finished run or its folder, an `AttentionNet`, or a network that
        `attnconv.equivalence.convert` made. The runs beside a run can be chosen and compared.
        images: a `Dataset` (its test images); a path, a Pillow image, an array of one image (H, W,
        C) or of several (N, H, W, C), or a list of these. Arrays are uint8 or floats in [0, 1];
        what does not fit is cropped and resized. None: the run's own data where it is on this
        machine, else pictures of the sample. mean, std: of every channel, for pixels in [0, 1], as
        the model was trained with. Default: the run's, the data set's, or those of CIFAR-10 for
        colour and of Fashion-MNIST for grey.

    ``state`` is what the reader has chosen, such as the query; it may be set from Python.
    """

    _esm = assets.script("explorer.js")
    _css = assets.style("explorer.css")
    sides: traitlets.List[Any] = traitlets.List().tag(sync=True)
    image = traitlets.Dict().tag(sync=True)
    average: traitlets.List[Any] = traitlets.List().tag(sync=True)
    edited = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        subject: Any,
        images: Any = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ):
        first = side_of(subject, size_of(images))
        self._sides = [first]
        self._pool = pool_of(images, first, mean, std)
        self._runs = _beside(first.run) if first.run else {}
        self._labelled = self._pool.some(STRIP) if self._pool.labels.size else []
        self._index = self._first()  # of the image that was chosen last
        self._shown = self._pool.shown(self._index)
        super().__init__(
            sides=[first.arrays],
            image=self._look([self._shown])[0],
            choices=dict(
                runs=[dict(name=name, title=run_title(run)) for name, run in self._runs.items()],
                classes=list(self._pool.classes),
                sigmas=list(SIGMAS),
                colours=figures.head_colours(20),
                labelled=len(self._labelled),
                mean=list(self._pool.mean),
                std=list(self._pool.std),
                averaged=min(AVERAGED_IMAGES, len(self._pool.images)),
            ),
        )
        self.on_msg(self._receive)

    def _first(self) -> int:
        """The image on which it opens: of the eight clearest ones (mean times standard deviation of
        their brightness) the first to whose class the model gives more than 0.9; if there is none,
        the one to which it gives most."""
        if not self._labelled:
            return 0
        light = self._pool.images[self._labelled].mean(-1).reshape(len(self._labelled), -1)
        clear = np.array(self._labelled)[np.argsort(-light.mean(1) * light.std(1), kind="stable")][
            :8
        ].tolist()
        sure = [
            p[label] for p, label in zip(self._says(clear), self._pool.labels[clear], strict=True)
        ]
        return next(
            (index for index, p in zip(clear, sure, strict=True) if p > 0.9),
            clear[int(np.argmax(sure))],
        )

    # -- what Python answers

    def _receive(self, _: Any, message: dict[str, Any], buffers: Sequence[Any] = ()) -> None:
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

    def _answer(self, message: dict[str, Any], buffers: Sequence[Any]) -> None:
        side, edits = self._sides[0], message.get("edits", ())
        match message["kind"]:
            case "hello":  # that it is answered is the answer
                pass
            case "image":  # another one; of one class, if the page names one
                label, labels = message["class"], self._pool.labels
                fit = (
                    range(len(self._pool.images))
                    if label is None
                    else np.flatnonzero(labels == label).tolist()
                )
                if not (others := [index for index in fit if index != self._index]):
                    raise ExplorerError("There is no other image of that class.")
                self._index = random.choice(others)
                self._show(self._pool.shown(self._index))
            case "open":  # an image of the reader's own, which the page has cropped and resized
                pixels = np.frombuffer(buffers[0], np.uint8).reshape(
                    *side.image_size, side.image_channels
                )
                self._show(dict(pixels=pixels, title=message["name"][:80], label=None))
            case "heads":  # the prediction with changed heads
                self.edited = dict(side.look(self._input, edits)[0], heads=edits)
            case "examine":  # what one layer and one head do
                seen = side.examine(
                    self._input, edits, message["layer"], message["head"], message["size"]
                )
                self.send(dict(seen, kind="examined", key=message["key"]))
            case (
                "right"
            ):  # whether the model is right about some of the labelled images, with changed heads
                chosen = self._labelled[message["from"] : message["to"]]
                right = (
                    np.argmax(self._says(chosen, edits), axis=-1) == self._pool.labels[chosen]
                ).tolist()
                self.send(
                    dict(kind="right", key=message["key"], right=right, **{"from": message["from"]})
                )
            case "average":
                self.average = self._averages(16)
            case "run":
                self._set_sides([side_of(self._runs[message["name"]]), *self._sides[1:]])
            case "compare":
                other = [] if message["name"] is None else [side_of(self._runs[message["name"]])]
                self._set_sides([side, *other])
            case "export":
                self.state = (
                    message.get("state") or self.state
                )  # newer than what the page saved last
                about = dict(
                    kind="file", id=message.get("id"), name="attention-heads.html", type="text/html"
                )
                self.send(about, [self.page().encode()])
            case kind:
                raise ValueError(f"{kind!r} is no question that is answered.")

    def _set_sides(self, sides: list[Side]) -> None:
        same, self._sides = (
            sides[0] is self._sides[0],
            sides,
        )  # beside another run, changed heads stay changed
        with self.hold_sync():
            self.average, self.state = [], self.state if same else self.state | dict(edits={})
            self.sides = [side.arrays for side in sides]
            self._show(self._shown)

    def _show(self, shown: dict[str, Any]) -> None:
        self._shown = shown
        with self.hold_sync():
            self.edited = {}
            self.image = self._look([shown])[0]

    @property
    def _input(self) -> Tensor:
        """The image shown now as the models take it."""
        return self._inputs([self._shown["pixels"]])

    def _inputs(self, pixels: Iterable[NDArray]) -> Tensor:
        device = next(self._sides[0].model.parameters()).device
        return normalize(
            torch.from_numpy(np.stack(list(pixels))).to(device), self._pool.mean, self._pool.std
        )

    def _says(self, chosen: list[int], edits: Sequence[dict] = ()) -> list[list[float]]:
        """What the model, with some changes, says of these images: class probabilities."""
        seen = self._sides[0].look(self._inputs(self._pool.images[chosen]), edits, maps=False)
        return [one["probabilities"] for one in seen]

    def _look(
        self, shown: Sequence[dict[str, Any]], bits: int = 16, maps: bool = True
    ) -> list[dict[str, Any]]:
        """What the page needs of these images."""
        inputs = self._inputs(one["pixels"] for one in shown)
        seen = [side.look(inputs, bits=bits, maps=maps) for side in self._sides]
        return [
            one | dict(pixels=array(one["pixels"]), sides=sides)
            for one, *sides in zip(shown, *seen, strict=True)
        ]

    def _averages(self, bits: int) -> list[Any]:
        inputs = self._inputs(self._pool.images[:AVERAGED_IMAGES])
        return [side.average(inputs, bits) if side.content else None for side in self._sides]

    # -- the same view elsewhere

    def figure(self) -> Figure:
        """The view as a matplotlib figure: one image, its query pixel, every head of the first
        model.
        """
        side = self._sides[0]
        height, width = side.grid
        row, column = (self.state.get("query") or (height // 2, width // 2))[:2]
        maps = side.maps((row, column), self._input)
        return figures.attention_on_image(
            self._shown["pixels"], (row, column), maps, caption=self._shown["title"]
        )

    def page(self, site: Mapping[str, Run] | None = None) -> str:
        """The explorer as one HTML page, which needs neither Python nor a network.

        It holds what is drawn of the models, the image shown now and its prediction, also with the
        heads as they are changed now; the first model's weights, if they are not too many, with
        which the page predicts by itself; the average over images; and images of every class with
        their predictions, unless each needs maps from Python. As one of the pages of a ``site``, by
        file, it leads to the others, and the images are in a file beside them."""
        side, state = self._sides[0], dict(self.state)
        tree: dict[str, Any] = dict(
            sides=self.sides, choices=self.choices, state=state, average=[], gallery=[]
        )
        places = [
            (map(int, at.split(".")), change) for at, change in state.get("edits", {}).items()
        ]
        if changed := [
            dict(zip(("layer", "head"), place, strict=False)) | change for place, change in places
        ]:
            tree["edited"] = dict(side.look(self._input, changed, bits=8)[0], heads=changed)
        title, head = f"Where does each head look? {self.sides[0]['title']}", ""
        if site and (run := side.run):
            tree |= dict(model=run.preset, pages={run.preset: file for file, run in site.items()})
            here = {
                file: " aria-current=page" * (one.path == run.path) for file, one in site.items()
            }
            links = [
                f"<a href='{file}'{here[file]}>{html.escape(one.title)}</a>\n"
                for file, one in site.items()
            ]
            head = f"<nav id='models' aria-label='Models'>{''.join(links)}</nav><script src='{SITE_IMAGES}'></script>\n"
        if predicts := bool(side.weights) and len(pack(side.weights)) <= (
            SITE_LIMIT if site else WEIGHTS_LIMIT
        ):
            tree["sides"] = [self.sides[0] | dict(weights=side.weights), *self.sides[1:]]
        # A page that predicts also computes where the heads of its first model look.
        content = any(one.content for one in self._sides)
        maps = content and not (predicts and len(self._sides) == 1)
        tree["image"] = self._look([self._shown], bits=8, maps=maps)[0]
        if content and not site:
            tree["average"] = self._averages(8)
        chosen = map(self._pool.shown, () if maps else self._pool.some(STRIP))
        few = [one for one in chosen if one["title"] != self._shown["title"]]
        for start in range(0, len(few), 10):
            more = self._look(few[start : start + 10], bits=8, maps=False)
            tree["gallery"] += [one | dict(pixels=one["title"]) for one in more] if site else more
        return assets.page(
            title, "explorer", as_text(pack(tree)), self._png, worker="worker.js", head=head
        )

    def export_site(self, folder: str | Path) -> list[Path]:
        """Write a page for this run, ``explorer.html``, and one for each other model that was
        trained beside it: of several runs the longest."""
        first = self._sides[0].run
        if not first:
            raise ExplorerError(
                "Only runs have others beside them: use export_html for a model alone."
            )
        by_length = sorted(reversed(self._runs.values()), key=lambda run: run.train.epochs)
        runs = {run.preset: run for run in by_length if not run.train.start_from}
        site = {
            f"explorer-{preset}.html": run
            for preset, run in sorted(runs.items())
            if preset != first.preset
        }
        site = {"explorer.html": first} | site
        shown = {
            one["title"]: array(one["pixels"])
            for one in map(self._pool.shown, self._pool.some(STRIP))
        }
        images = Path(folder) / SITE_IMAGES
        write(images, f"globalThis.attnconvImages = {json.dumps(as_text(pack(shown)))};\n")
        for file, run in site.items():
            explorer = self if run is first else Explorer(run, self._pool)
            write(images.with_name(file), explorer.page(site))
            if explorer is not self:  # else the kernel and the browser would keep it
                explorer.close()
        return [images.with_name(file) for file in site]


def _beside(run: Run) -> dict[str, Run]:
    """This run and those beside it that take the same images, have heads in every layer, and
    still have weights.
    """
    takes = attrgetter("image_size", "image_channels", "classes")

    def fits(one: Run) -> bool:
        attention = one.model.kind != "resnet" and not any(one.model.kernel_per_layer)
        return attention and takes(one.model) == takes(run.model) and not one.without_weights

    return {one.path.name: one for one in find_runs(run.path.parent, fits)} | {run.path.name: run}


explore = Explorer  # as one says it in a notebook
