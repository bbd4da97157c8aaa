"""The head explorer: an image with a query pixel, and beside it where every head of every layer looks.

`explore` shows it in a notebook; `Explorer.export_html` writes it as one file that needs neither Python nor a network.
Both run the same front end (front/explorer.js). Arrays go to the browser once and are drawn there, so that moving the
query never waits for Python: of quadratic heads the centres and Sigma^{-1}, of learned ones the scores by shift of each
axis, of heads with content the scores of one image. In a notebook, Python answers what needs the model, such as another
image or a changed head. An exported page holds the weights, and a Web Worker answers (front/worker.js).

arrays.py packs what is sent, images.py reads what is shown, sides.py is one model with its answers, and edits.py what a
reader changes in it.
"""

from __future__ import annotations

import html
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import traitlets
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnconv import figures
from attnconv.explorer import assets
from attnconv.explorer.arrays import ExplorerError, array, as_text, pack
from attnconv.explorer.edits import SIGMAS
from attnconv.explorer.images import pool_of, size_of
from attnconv.explorer.sides import Side, run_title, side_of
from attnconv.training.data import normalize
from attnconv.training.runs import Run, find_runs, writing

_Shown = tuple[NDArray[np.uint8], str, int | None]
"""An image (H, W, C), its title, its class."""

EXPORT_LIMIT, SITE_LIMIT = 15_000_000, 5_000_000
"""Bytes of an exported page, and of each page of a site. What does not fit (more images, averages) is left out."""
SITE_IMAGES = "explorer-images.js"
"""Of a site: the images that all its pages show."""
AVERAGED_IMAGES = 32
"""Images over which attention with content is averaged (the paper: 100)."""
STRIP = 100
"""Images on which right answers are counted, before heads are changed and after."""
TRIED, SURE = 8, 0.9
"""The explorer opens on the clearest of so many images to whose class the model gives more than this probability."""


class Explorer(assets.Widget):
    """Show where every head of a model looks, for any query pixel of any image.

    Args:
        subject: a finished run or its folder; the runs beside it can then be chosen and compared. An
            `attnconv.models.AttentionNet`. Or a network that `attnconv.equivalence.convert` made.
        images: a `Dataset` (its test images); a path, a Pillow image, an array (height, width, channels), or a list of
            them; an array of all, (N, height, width, channels). Arrays are uint8 or floats in [0, 1], and their
            channels may come first. What does not fit is cropped and resized. None: the run's own data where it is on
            this machine, else pictures of the sample.
        labels: the images' classes (N,), whole numbers.
        classes: names of the classes.
        mean, std: of every channel, for pixels in [0, 1], as the model was trained with. Default: the run's, the data
            set's, or those of CIFAR-10 for colour and of Fashion-MNIST for grey.
        title: what the view is called.

    ``state`` is what the reader has chosen, such as the query; it may be set from Python.

    Raises:
        ExplorerError: the model has no attention heads, or what is given does not fit it.
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
        labels: Any = None,
        classes: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        title: str | None = None,
    ):
        first = side_of(subject, size_of(images), title)
        self._sides = [first]
        self._pool = pool_of(images, first, labels, classes, mean, std)
        self._runs = self._find_runs(first.run)
        self._labelled = [] if self._pool.labels is None else self._pool.some(STRIP)
        self._index = self._first()  # of the image that was chosen last
        self._shown: _Shown = self._from_pool(self._index)
        super().__init__(
            sides=[first.arrays],
            image=self._look([self._shown])[0],
            choices=dict(
                runs=[dict(name=name, title=run_title(run)) for name, run in self._runs.items()],
                classes=list(self._pool.classes),
                by_class=self._pool.labels is not None,
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
        """The image on which it opens: a clear one that the model is right about, and sure of."""
        found, labels = self._pool.clear(STRIP)[:TRIED], self._pool.labels
        if labels is not None and self._sides[0].classes:
            seen = self._sides[0].look(self._inputs(self._pool.images[found]), maps=False)
            said = [one["probabilities"][labels[i]] for one, i in zip(seen, found, strict=True)]
            found = [i for i, p in zip(found, said, strict=True) if p > SURE] or [found[int(np.argmax(said))]]
        return found[0] if found else 0

    def _find_runs(self, run: Run | None) -> dict[str, Run]:
        """This run and those beside it that take the same images."""
        if run is None:
            return {}
        shape = [getattr(run.model, name) for name in ("image_size", "image_channels", "classes")]
        beside = [r for r in find_runs(run.path.parent) if r.model.kind != "resnet"]
        beside = [r for r in beside if not any(r.model.kernel_per_layer)]
        fits = [r for r in beside if [r.model.image_size, r.model.image_channels, r.model.classes] == shape]
        return {r.path.name: r for r in fits} | {run.path.name: run}

    # -- what Python answers

    def _receive(self, _: Any, message: dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        """Do what the page asks (`kind`): image, open, heads, examine, right, average, run, compare, export."""
        try:
            getattr(self, f"_answer_{message['kind']}")(message, buffers)
        except Exception as error:  # the reader sees the page, not the kernel's log
            kind = "" if isinstance(error, ExplorerError) else f"{type(error).__name__}: "
            self.send(dict(kind="notice", text=f"{kind}{error}"))
        finally:
            self.send(dict(kind="done", id=message.get("id")))

    def _answer_hello(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        """That it is answered is the answer."""

    def _answer_image(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        """Another image; of one class, if the page names one."""
        label, labels = message["class"], self._pool.labels
        fit = range(len(self._pool.images)) if label is None else np.flatnonzero(labels == label).tolist()
        others = [index for index in fit if index != self._index]
        if not others:
            raise ExplorerError("There is no other image of that class.")
        self._index = random.choice(others)
        self._show(self._from_pool(self._index))

    def _answer_open(self, message: dict[str, Any], buffers: Sequence[bytes]) -> None:
        """An image of the reader's own, which the page has cropped and resized."""
        shape = *self._sides[0].image_size, self._sides[0].image_channels
        pixels = np.frombuffer(buffers[0], np.uint8).reshape(shape)
        self._show((pixels, message["name"][:80], None))

    def _answer_heads(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        seen = self._sides[0].look(self._inputs([self._shown[0]]), message["edits"])[0]
        self.edited = dict(seen, heads=message["edits"])

    def _answer_examine(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        image, what = self._inputs([self._shown[0]]), (message[name] for name in ("edits", "layer", "head", "size"))
        self.send(dict(self._sides[0].examine(image, *what), kind="examined", key=message["key"]))

    def _answer_right(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        """Whether the model is right about some of the labelled images, with changed heads."""
        chosen = self._labelled[message["from"] : message["to"]]
        seen = self._sides[0].look(self._inputs(self._pool.images[chosen]), message["edits"], maps=False)
        answers = np.argmax([one["probabilities"] for one in seen], axis=-1)
        right = (answers == [self._from_pool(index)[2] for index in chosen]).tolist()
        self.send(dict(kind="right", key=message["key"], right=right, **{"from": message["from"]}))

    def _answer_average(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        self.average = self._averages(16)

    def _answer_run(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        self._set_sides([side_of(self._runs[message["name"]]), *self._sides[1:]])

    def _answer_compare(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        other = [] if message["name"] is None else [side_of(self._runs[message["name"]])]
        self._set_sides([self._sides[0], *other])

    def _answer_export(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        self.state = message.get("state") or self.state  # newer than what the page saved last
        self.send(dict(kind="file", name="attention-heads.html", type="text/html"), [self.page().encode()])

    def _set_sides(self, sides: list[Side]) -> None:
        same, self._sides = sides[0] is self._sides[0], sides  # beside another run, changed heads stay changed
        with self.hold_sync():
            self.average, self.edited, self.state = [], {}, self.state if same else self.state | dict(edits={})
            self.sides = [side.arrays for side in sides]
            self.image = self._look([self._shown])[0]

    def _from_pool(self, index: int) -> _Shown:
        label = None if self._pool.labels is None else int(self._pool.labels[index])
        return self._pool.images[index], self._pool.title(index), label

    def _inputs(self, pixels: Sequence[NDArray] | NDArray) -> Tensor:
        device = next(self._sides[0].model.parameters()).device
        return normalize(torch.from_numpy(np.stack(list(pixels))).to(device), self._pool.mean, self._pool.std)

    def _look(self, shown: Sequence[_Shown], bits: int = 16, maps: bool = True) -> list[dict[str, Any]]:
        """What the page needs of these images."""
        inputs = self._inputs([one[0] for one in shown])
        seen = zip(*[side.look(inputs, bits=bits, maps=maps) for side in self._sides], strict=True)
        return [
            dict(pixels=array(pixels), title=title, label=label, sides=list(sides))
            for (pixels, title, label), sides in zip(shown, seen, strict=True)
        ]

    def _show(self, shown: _Shown) -> None:
        self._shown = shown
        with self.hold_sync():
            self.edited = {}
            self.image = self._look([self._shown])[0]

    def _averages(self, bits: int) -> list[Any]:
        inputs = self._inputs(self._pool.images[:AVERAGED_IMAGES])
        return [side.average(inputs, bits) if side.content else None for side in self._sides]

    # -- the same view elsewhere

    def figure(self) -> Figure:
        """The view as a matplotlib figure: one image, its query pixel, every head of the first model."""
        side = self._sides[0]
        height, width = side.grid
        row, column = (self.state.get("query") or (height // 2, width // 2))[:2]
        maps = side.maps((row, column), self._inputs([self._shown[0]]))
        draw = figures.many_heads_on_image if maps.shape[1] > 16 else figures.attention_on_image
        return draw(self._shown[0], (row, column), maps, caption=self._shown[1])

    def page(self, limit: int = EXPORT_LIMIT, site: Mapping[str, Run] | None = None) -> str:
        """The explorer as one HTML page of at most ``limit`` bytes, which needs neither Python nor a network.

        It holds what is drawn of the models, the image shown now and its prediction, also with the heads as they are
        changed now; then, while there is room, the first model's weights, with which the page predicts by itself, the
        average over images, and images of every class with their predictions. As one of the pages of a ``site``, by
        file, it leads to the others, and the images are in a file beside them.

        Raises:
            ExplorerError: not even the image shown now fits.
        """
        image = self._inputs([self._shown[0]])
        tree: dict[str, Any] = dict(sides=self.sides, choices=self.choices, state=dict(self.state))
        tree |= dict(average=[], gallery=[])
        places = [(map(int, at.split(".")), change) for at, change in self.state.get("edits", {}).items()]
        changed = [dict(zip(("layer", "head"), place, strict=False)) | change for place, change in places]
        if changed:
            tree["edited"] = dict(self._sides[0].look(image, changed, bits=8)[0], heads=changed)
        title, head = f"Where does each head look? {self.sides[0]['title']}", ""
        if site and (run := self._sides[0].run):
            tree |= dict(model=run.preset, pages={run.preset: file for file, run in site.items()})
            links = {
                file: f"href='{file}'{' aria-current=page' * (one.path == run.path)}" for file, one in site.items()
            }
            head = "".join(f"<a {links[file]}>{html.escape(one.title)}</a>\n" for file, one in site.items())
            head = f"<nav id='models' aria-label='Models'>{head}</nav><script src='{SITE_IMAGES}'></script>\n"
        frame = assets.page(title, "explorer", "@DATA@", self._png, heading=False, worker="worker.js", head=head)
        room = (limit - len(frame.encode())) * 4 // 5 - len(pack(tree))  # `as_text` writes 5 bytes for 4

        def fits(part: Any) -> bool:
            nonlocal room
            size = len(pack(part)) + 100
            if size > room:
                return False
            room -= size
            return True

        weights, content = self._sides[0].weights, any(side.content for side in self._sides)
        fit = fits(shown := self._look([self._shown], bits=8, maps=False)[0])
        if weights and fits(weights):
            tree["sides"] = [self.sides[0] | dict(weights=weights), *self.sides[1:]]
        # A page that predicts also computes where the heads of its first model look.
        maps = content and ("weights" not in tree["sides"][0] or len(self._sides) > 1)
        if maps:
            fit = fits(shown := self._look([self._shown], bits=8)[0])
        if not fit:
            raise ExplorerError(f"The page would be larger than {limit / 1e6:g} MB: explore a smaller model.")
        tree["image"] = shown
        if content and not site and fits(average := self._averages(8)):
            tree["average"] = average
        chosen = self._pool.some(min(60, len(self._pool.classes) or 60) if maps else STRIP)
        few = [one for one in map(self._from_pool, chosen) if one[1] != self._shown[1]]
        for start in range(0, len(few), step := 1 if maps else 10):
            more = self._look(few[start : start + step], bits=8, maps=maps)
            if site:
                more = [one | dict(pixels=one["title"]) for one in more]
            if not fits(more):
                break
            tree["gallery"] += more
        return frame.replace("@DATA@", as_text(pack(tree)))

    def export_site(self, folder: str | Path) -> list[Path]:
        """Write a page for this run, ``explorer.html``, and one for each other model that was trained beside it.

        They lead to one another, and show images that are in one file beside them.
        """
        first = self._sides[0].run
        if not first:
            raise ExplorerError("Only runs have others beside them: use export_html for a model alone.")
        runs = {run.preset: run for run in reversed(self._runs.values()) if not run.train.start_from}
        site = {f"explorer-{preset}.html": run for preset, run in sorted(runs.items()) if preset != first.preset}
        site = {"explorer.html": first} | site
        shown = {title: array(pixels) for pixels, title, _ in map(self._from_pool, self._pool.some(STRIP))}
        images = Path(folder) / SITE_IMAGES
        with writing(images) as temporary:
            temporary.write_text(f"globalThis.attnconvImages = {json.dumps(as_text(pack(shown)))};\n")
        for file, run in site.items():
            explorer = self if run is first else Explorer(run, self._pool)
            with writing(images.with_name(file)) as temporary:
                temporary.write_text(explorer.page(SITE_LIMIT, site))
        return [images.with_name(file) for file in site]


explore = Explorer  # as one says it in a notebook
