"""The head explorer: an image with a query pixel, and beside it where every head of every layer looks.

`explore` shows it in a notebook; `Explorer.export_html` writes it as one file that needs neither Python nor a network.
Both run the same front end (front/explorer.js, front/explorer.css): arrays go to the browser once and are drawn there,
so that moving the query never waits for Python. What is sent depends on the encoding:

- quadratic: centres and Sigma^{-1} (of every epoch, where a run recorded them), so the browser computes P itself;
- learned: the scores by shift of each axis, likewise exact;
- with content, P depends on the image: the scores q . k of one image, quantized, and the two axes of q . r.

Python answers what needs the model: another image, a changed head, another run, an average over images.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import math
import struct
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import numpy as np
import PIL
import torch
import traitlets
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageCms, ImageOps
from torch import Tensor

from attnconv import figures, heads
from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention
from attnconv.data import STATISTICS, DataError, Dataset, find_data, load_data, normalize
from attnconv.explorer import assets
from attnconv.models import AttentionNet, predict
from attnconv.runs import Run, find_runs, writing
from attnconv.training import load_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRONT_END = assets.FRONT / "explorer.js"

FILE_LIMIT = 32 * 2**20
"""Bytes of an image file that a reader may upload."""
PIXEL_LIMIT = 64_000_000
"""Pixels of such an image: more is refused before it is decoded."""
_Shown = tuple[NDArray[np.uint8], str, int | None]
"""An image (H, W, C), its title, its class."""

EXPORT_LIMIT = 15_000_000
"""Bytes of an exported page. What does not fit (more images, averages) is left out."""
AVERAGED_IMAGES = 32
"""Images over which attention with content is averaged (the paper: 100)."""
AVERAGE_FLOOR = 1e-6
"""Averaged probabilities travel as logarithms, and none below this share of the row's largest is told from it."""
SIGMAS = (0.05, 50.0)
"""Smallest and largest standard deviation that the slider of a Gaussian head gives, in pixels of the grid."""


class ExplorerError(ValueError):
    """Something the explorer was asked and cannot do; its message is shown in the page."""


# --- arrays for the browser ---------------------------------------------------------------------------------------


def quantize(values: ArrayLike, bits: int = 8) -> dict[str, Any]:
    """Rows of finite numbers (..., n) as whole ones of 8 or 16 bits; each row has its own offset and step.

    ``low + step * code`` is within step / 2 of the value, step = (max - min) / (2^bits - 1) of the row. A softmax
    over a row changes by at most a factor exp(step).
    """
    values = np.asarray(values, dtype=np.float32)
    low, high = values.min(-1), values.max(-1)
    step = (high - low) / (2**bits - 1)
    codes = np.rint((values - low[..., None]) / np.where(step > 0, step, 1)[..., None])
    codes = codes.clip(0, 2**bits - 1).astype({8: np.uint8, 16: np.uint16}[bits])
    return {"codes": _array(codes), "low": _array(low), "step": _array(step)}


def _array(values: ArrayLike) -> dict[str, Any]:
    """An array for the browser: little-endian uint8, uint16 or float32."""
    values = np.asarray(values)
    if values.dtype not in (np.uint8, np.uint16):
        values = values.astype(np.float32)
    return {"dtype": values.dtype.name, "shape": list(values.shape), "data": values.tobytes()}


def pack(tree: Any) -> bytes:
    """A tree of dictionaries, lists, numbers, texts and bytes as one gzip file: length, JSON, then all bytes."""
    blobs: list[bytes] = []
    start = 0

    def plain(node: Any) -> Any:
        nonlocal start
        if isinstance(node, bytes):
            start += (padding := -start % 4)  # typed arrays want aligned offsets
            blobs.extend((bytes(padding), node))
            start += len(node)
            return {"$bytes": [start - len(node), len(node)]}
        if isinstance(node, dict):
            return {key: plain(value) for key, value in node.items()}
        return [plain(value) for value in node] if isinstance(node, list | tuple) else node

    header = json.dumps(plain(tree), allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    return gzip.compress(struct.pack("<I", len(header)) + header + b"".join(blobs), 6, mtime=0)


# --- images -------------------------------------------------------------------------------------------------------


def read_image(content: bytes, size: tuple[int, int], channels: int, name: str = "The file") -> NDArray[np.uint8]:
    """Any image file as a model wants it: (height, width, channels), uint8.

    EXIF rotation is applied, transparency laid on white, the middle cropped to the model's aspect ratio, then resized.

    Raises:
        ExplorerError: too large, or not an image that Pillow reads; the message says which, for the page.
    """
    if len(content) > FILE_LIMIT:
        raise ExplorerError(f"{name} has {len(content) / 2**20:.0f} MB; at most {FILE_LIMIT >> 20} MB are read.")
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > PIXEL_LIMIT:
                raise ExplorerError(
                    f"{name} has {image.width} x {image.height} pixels; at most {PIXEL_LIMIT // 1_000_000} million are "
                    "read. Make it smaller first."
                )
            image.draft("RGB", (size[1] * 4, size[0] * 4))  # JPEG: decode no more than needed
            image = _eight_bit(ImageOps.exif_transpose(image)).convert("L" if channels == 1 else "RGB")
    except ExplorerError:
        raise
    except PIL.UnidentifiedImageError:
        raise ExplorerError(
            f"{name} is not an image that can be read. PNG, JPEG, WebP, GIF, TIFF and BMP can."
        ) from None
    except Exception as error:  # Pillow's plugins raise what they like on damaged files
        raise ExplorerError(f"{name} is damaged or no image ({error}).") from error
    image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.LANCZOS)
    return np.asarray(image, dtype=np.uint8).reshape(*size, channels)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Modes that ``convert`` would clip or refuse: 16 and 32 bits by their own range, alpha laid on white, Lab."""
    if image.mode[0] in "IF":
        values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0, neginf=0)
        low, high = values.min(), values.max()
        return Image.fromarray(((values - low) * (255 / ((high - low) or 1))).astype(np.uint8))
    if image.mode == "LAB":
        return ImageCms.profileToProfile(
            image, ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image


@dataclass(frozen=True)
class _Pool:
    """The images that can be chosen."""

    name: str
    images: NDArray[np.uint8]  # (N, H, W, C)
    labels: NDArray | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of_class(self, label: int | None) -> NDArray:
        """Indices of the images of a class, or of all."""
        return np.arange(len(self.images)) if label is None else np.flatnonzero(self.labels == label)

    def title(self, index: int) -> str:
        kind = "" if self.labels is None else f": {self.classes[self.labels[index]]}"
        return f"{self.name} {index}{kind}"

    def few(self, each: int, most: int) -> list[int]:
        """The first images of every class, or of all."""
        if self.labels is None:
            return list(range(min(len(self.images), most)))
        firsts = [self.of_class(label)[:each] for label in range(len(self.classes))]
        return sorted(np.concatenate(firsts).tolist())[:most]


def _pool(images: Any, model: AttentionNet, run: Run | None) -> _Pool:
    """``images`` as `explore` takes it."""
    size, channels, classes = model.config.image_size, model.config.image_channels, model.config.classes
    about = run.config.get("data", {}) if run else {}
    names = tuple(about.get("classes", ())) or tuple(str(i) for i in range(classes))
    usual = STATISTICS["cifar10" if channels == 3 else "fashion-mnist"] if channels in (1, 3) else None
    mean, std = (tuple(about[k]) if k in about else usual[i] for i, k in enumerate(("mean", "std")))
    if images is None:
        images = _own_data(about.get("name"), size, channels)
    if isinstance(images, Dataset):
        pool = _Pool(
            "test image",
            images.test_images.cpu().numpy(),
            images.test_labels.cpu().numpy(),
            images.classes,
            tuple(about.get("mean", images.mean)),
            tuple(about.get("std", images.std)),
        )
    else:
        if isinstance(images, Sequence) and not isinstance(images, str | bytes) and len(images):
            images = np.stack([_picture(image, size, channels) for image in images])
        values = images.cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
        values = values[..., None] if values.ndim == 3 else values
        if values.dtype != np.uint8:
            raise ExplorerError(f"images are {values.dtype}; they must be uint8, (N, height, width, channels).")
        pool = _Pool("image", values, None, names, mean, std)
    if pool.images.shape[1:] != (*size, channels) or not len(pool.images) or len(pool.classes) != classes:
        raise ExplorerError(
            f"images of shape {pool.images.shape} and {len(pool.classes)} classes do not fit the model: it takes "
            f"(N, {size[0]}, {size[1]}, {channels}) and {classes} classes. Give images=work.data, or image files."
        )
    return pool


def _picture(image: Any, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """One of a list: a path, a file's bytes, a Pillow image, or an array that has the right shape."""
    if isinstance(image, Image.Image):
        file = io.BytesIO()
        image.save(file, "PNG" if image.mode not in ("F", "CMYK") else "TIFF")
        image = file.getvalue()
    if isinstance(image, str | Path):
        return read_image(Path(image).read_bytes(), size, channels, Path(image).name)
    if isinstance(image, bytes):
        return read_image(image, size, channels)
    return image.cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)


def _own_data(name: str | None, size: tuple[int, int], channels: int) -> Dataset | NDArray:
    """The data that a run names, where it is on this machine (nothing is downloaded); else a drawn picture."""
    source = "embedded" if name in (None, "fashion-mnist-sample") else name
    if source in ("embedded", "cifar10", "fashion-mnist"):
        with contextlib.suppress(DataError):
            find_data(source)
            data = load_data(source, progress=False)
            if name or (data.image_size, data.image_channels) == (tuple(size), channels):
                return data
    rows, columns = np.mgrid[: size[0], : size[1]] / np.array(size, float)[:, None, None] - 0.5
    ring = np.abs(np.hypot(rows, columns) - 0.3) < 0.07
    picture = np.where(ring, 235, 60 + 90 * (columns + 0.5))
    return np.repeat(picture.astype(np.uint8)[None, ..., None], channels, -1)


# --- one model ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """A model to explore, and the run it comes from, if any."""

    model: AttentionNet
    run: Run | None

    @property
    def layers(self) -> list:
        return self.model.attention_layers

    @property
    def content(self) -> bool:
        return isinstance(self.layers[0], ContentAttention)

    @cached_property
    def arrays(self) -> dict[str, Any]:
        """What the browser needs of the model, whatever the image."""
        config = self.model.config
        height, width = config.grid
        side = dict(
            name=self.run.path.name if self.run else "model",
            title=_run_title(self.run) if self.run else "model",
            grid=[height, width],
            heads=[layer.heads for layer in self.layers],
            encoding=config.kind if config.kind != "learned_content" else "content",
            path=self._path(),
        )
        if config.kind == "quadratic":
            described = heads.geometry(self.layers, height, width)
            side |= dict(
                centres=_array(described["parameter_centre"]),
                precisions=_array(described["precision"]),
            )
        elif config.kind == "learned":
            scores = [
                [_by_shift(layer, length, axis) for layer in self.layers] for axis, length in enumerate(config.grid)
            ]
            side |= dict(rows=_array(_padded(scores[0])), columns=_array(_padded(scores[1])))
        return side

    def _path(self) -> dict[str, Any] | None:
        """Where the heads were before training and after every epoch; for Gaussians all that P needs."""
        recorded = self.run.heads if self.run else {}
        if "centre" not in recorded:
            return None
        path = dict(epochs=len(recorded["centre"]), measured=_array(recorded["centre"]))
        if self.model.config.kind == "quadratic":
            path |= dict(centres=_array(recorded["parameter_centre"]), precisions=_array(recorded["precision"]))
        return path

    @torch.no_grad()
    def look(self, images: Tensor, edits: Sequence[dict] = (), bits: int = 16) -> list[dict[str, Any]]:
        """For each image (B, C, H, W): class probabilities and, with content, scores; with some heads changed."""
        with edited(self.model, edits):
            answers = predict(self.model, images).float().softmax(-1).tolist()
            seen = [dict(probabilities=answer) for answer in answers]
            for one, image in zip(seen, images[:, None] if self.content else (), strict=self.content):
                parts = [layer.score_parts(x) for layer, x in zip(self.layers, self._inputs(image), strict=True)]
                one["maps"] = [_scores(content[0], position[0], bits) for content, position in parts]
        return seen

    @torch.no_grad()
    def average(self, images: Tensor, bits: int = 16) -> list[dict[str, Any]]:
        """Attention averaged over images, layer by layer: log P of the full score, of position and of content only."""
        sums: list[list] = [[0.0, 0.0, 0.0] for _ in self.layers]
        for some in images.split(4):  # few at a time: a batch of paper size would fill the memory
            for total, layer, x in zip(sums, self.layers, self._inputs(some), strict=True):
                content, position = (part.flatten(-2) for part in layer.score_parts(x))  # (B, h, H, W, N)
                for i, logits in enumerate((content + position, position, content)):
                    total[i] = total[i] + logits.softmax(-1).sum(0) / len(images)
        names = ("full", "position", "content")
        return [{n: quantize(_logarithm(p), bits) for n, p in zip(names, total, strict=True)} for total in sums]

    def _inputs(self, image: Tensor) -> list[Tensor]:
        self.model.eval()
        return self.model.layer_inputs(image)


def _run_title(run: Run) -> str:
    return f"{run.title}, seed {run.train.seed} ({100 * run.test_accuracy:.1f}%)"


def _by_shift(layer: LearnedAttention, length: int, axis: int) -> NDArray:
    """Scores along one axis by shift -(length - 1) .. length - 1: (h, 2 length - 1), from the two outer queries."""
    with torch.no_grad():
        logits = layer.axis_logits(length, axis).float().cpu().numpy()  # (h, query, key)
    return np.concatenate([logits[:, -1, :-1], logits[:, 0]], axis=-1)


def _padded(layers: Sequence[NDArray]) -> NDArray:
    """Arrays (h, ...) of layers stacked, NaN where a layer has fewer heads."""
    most = max(len(layer) for layer in layers)
    pads = [[(0, most - len(layer))] + [(0, 0)] * (layer.ndim - 1) for layer in layers]
    return np.stack([np.pad(layer, pad, constant_values=np.nan) for layer, pad in zip(layers, pads, strict=True)])


def _scores(content: Tensor, position: Tensor, bits: int) -> dict[str, Any]:
    """Both parts of a layer's score, each (h, H, W, H, W); the position's is a row term plus a column term."""
    columns = position[..., 0, :]
    rows = position[..., :, 0] - position[..., :1, 0]
    content = content.flatten(-2)
    parts = dict(content=content, rows=rows, columns=columns)
    return {name: quantize(part.float().cpu().numpy(), bits) for name, part in parts.items()}


def _logarithm(p: Tensor) -> NDArray:
    p = p.float().cpu().numpy()
    return np.log(np.maximum(p, AVERAGE_FLOOR * p.max(-1, keepdims=True)))


@contextlib.contextmanager
def edited(model: AttentionNet, edits: Sequence[dict[str, Any]]) -> Iterator[None]:
    """The model with some heads changed, inside a ``with`` block; its parameters are put back afterwards.

    An edit names a ``layer`` and a ``head`` (from 0) and any of: ``off`` (true: the head adds nothing), and for
    Gaussian heads ``centre`` (row, column; pixels) and ``sigma``, the standard deviation det(Sigma)^(1/4) in pixels:
    a full covariance keeps its shape and is scaled.

    Raises:
        ExplorerError: there is no such head, or a value that is no finite number in range.
    """
    saved: dict[torch.nn.Parameter, Tensor] = {}

    def keep(parameter: torch.nn.Parameter) -> Tensor:
        saved.setdefault(parameter, parameter.detach().clone())
        return parameter.detach()  # shares its memory

    try:
        for edit in edits:
            layer, head = _head_of(model, edit)
            if edit.get("off"):
                channels = slice(head * layer.channels, (head + 1) * layer.channels)
                keep(layer.value.weight)[:, channels] = 0
            if isinstance(layer, QuadraticAttention):
                if edit.get("centre") is not None:
                    centre = [_number(value, "centre", -1000, 1000) for value in edit["centre"]]
                    keep(layer.centres)[head] = torch.tensor(centre).to(layer.centres)
                if edit.get("sigma") is not None:
                    sigma = _number(edit["sigma"], "sigma", *SIGMAS)
                    spreads = keep(layer.spreads)
                    spreads[head] = _rescaled(spreads[head], sigma)
        yield
    finally:
        with torch.no_grad():
            for parameter, values in saved.items():
                parameter.copy_(values)


def _edit(place: str, change: dict[str, Any]) -> dict[str, Any]:
    """A head as the page's state holds it, "layer.head" and what was changed, as `edited` takes it."""
    layer, head = map(int, place.split("."))
    return dict(layer=layer, head=head, **change)


def _head_of(model: AttentionNet, edit: dict[str, Any]) -> tuple[Any, int]:
    layers = model.attention_layers
    layer, head = edit.get("layer"), edit.get("head")
    if not isinstance(layer, int) or not 0 <= layer < len(layers):
        raise ExplorerError(f"There is no layer {layer!r}: the model has {len(layers)}.")
    if not isinstance(head, int) or not 0 <= head < layers[layer].heads:
        raise ExplorerError(f"Layer {layer + 1} has no head {head!r}: it has {layers[layer].heads}.")
    return layers[layer], head


def _number(value: Any, name: str, low: float, high: float) -> float:
    if not isinstance(value, int | float) or not low <= value <= high:
        raise ExplorerError(f"{name} = {value!r} must be a number from {low:g} to {high:g}.")
    return float(value)


def _rescaled(spread: Tensor, sigma: float) -> Tensor:
    """Sigma^{-1/2} of a head, scaled so that det(Sigma)^(1/4) is sigma; round where it has no such scale."""
    if spread.dim() == 0:
        return torch.full_like(spread, math.copysign(1 / sigma, spread.item()))
    scale = spread.double().det().abs().sqrt()
    if not scale.isfinite() or scale < 1e-6:
        return torch.eye(2).to(spread) / sigma
    return (spread.double() / (scale * sigma)).to(spread)


# --- the widget ---------------------------------------------------------------------------------------------------


def explore(run_or_model: Run | AttentionNet | str | Path, images: Any = None) -> Explorer:
    """Show where every head of a model looks, for any query pixel of any image.

    Args:
        run_or_model: a finished run, its folder, or a model (`attnconv.models.AttentionNet`). With a run, the other
            runs beside it can be chosen and compared.
        images: a `Dataset` (its test images), uint8 images (N, height, width, channels), or a list of image files
            (paths, bytes, Pillow images). None: the run's own data where it is on this machine.

    Raises:
        ExplorerError: the model has no attention, or the images do not fit it.
    """
    return Explorer(run_or_model, images)


def _side(run_or_model: Run | AttentionNet | str | Path) -> _Side:
    if isinstance(run_or_model, AttentionNet):
        side = _Side(run_or_model, None)
    else:
        model, run = load_run(run_or_model.path if isinstance(run_or_model, Run) else run_or_model)
        side = _Side(model, run)
    if not isinstance(side.model, AttentionNet) or not any(layer.heads for layer in side.layers):
        raise ExplorerError(
            f"A {type(side.model).__name__} has no attention heads to explore; take a run of another preset."
        )
    return side


class Explorer(anywidget.AnyWidget):
    """The head explorer as a widget; `explore` makes it. ``state`` is what the reader has chosen, such as the query."""

    _esm = assets.script("explorer.js")
    _css = assets.style("explorer.css")
    sides = traitlets.List().tag(sync=True)
    image = traitlets.Dict().tag(sync=True)
    average = traitlets.List().tag(sync=True)
    edited = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, run_or_model: Run | AttentionNet | str | Path, images: Any = None):
        first = _side(run_or_model)
        self._sides = [first]
        self._pool = _pool(images, first.model, first.run)
        self._runs = self._find_runs(first.run)
        self._random = np.random.default_rng(0)
        self._uploads: dict[str, list[bytes]] = {}
        self._shown: _Shown = self._from_pool(self._pool.few(1, 1)[0])
        super().__init__(
            sides=[first.arrays],
            image=self._look([self._shown])[0],
            choices=dict(
                runs=[dict(name=name, title=_run_title(run)) for name, run in self._runs.items()],
                classes=list(self._pool.classes),
                by_class=self._pool.labels is not None,
                sigmas=list(SIGMAS),
                colours=figures.head_colours(20),
                averaged=min(AVERAGED_IMAGES, len(self._pool.images)),
                file_limit=FILE_LIMIT,
            ),
        )
        self.on_msg(self._receive)

    def _find_runs(self, run: Run | None) -> dict[str, Run]:
        """This run and those beside it that take the same images."""
        if run is None:
            return {}
        shape = [getattr(run.model, name) for name in ("image_size", "image_channels", "classes")]
        beside = [r for r in find_runs(run.path.parent) if r.model.kind != "resnet"]
        fits = [r for r in beside if [r.model.image_size, r.model.image_channels, r.model.classes] == shape]
        return {r.path.name: r for r in fits} | {run.path.name: run}

    # -- what Python answers

    def handle(self, message: dict[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Do what the page asks (`kind`): image, upload, heads, average, run, compare, export.

        Raises:
            ExplorerError: it cannot be done; the message is for the reader.
        """
        actions = dict(
            image=self._choose_image,
            upload=self._upload,
            heads=self._change_heads,
            average=self._average,
            run=self._choose_run,
            compare=self._compare,
            export=self._send_page,
        )
        if message.get("kind") not in actions:
            raise ExplorerError(f"The page asked for {message.get('kind')!r}, which this version does not know.")
        actions[message["kind"]](message, buffers)

    def _receive(self, _: Any, message: dict[str, Any], buffers: Sequence[Any]) -> None:
        try:
            self.handle(message, [bytes(buffer) for buffer in buffers])
        except ExplorerError as error:
            self.send(dict(kind="notice", text=str(error)))
        except Exception as error:  # the reader sees the page, not the kernel's log
            self.send(dict(kind="notice", text=f"{type(error).__name__}: {error}"))
        finally:
            self.send(dict(kind="done", id=message.get("id")))

    def _choose_image(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        label = message.get("class")
        if label is not None and (self._pool.labels is None or not 0 <= int(label) < len(self._pool.classes)):
            raise ExplorerError(f"There is no class {label!r} to choose from.")
        found = self._pool.of_class(label)
        if not len(found):
            raise ExplorerError(f"No image is of class {self._pool.classes[label]}.")
        self._show(self._from_pool(int(self._random.choice(found))))

    def _upload(self, message: dict[str, Any], buffers: Sequence[bytes]) -> None:
        """A file in parts, since one message to a Jupyter server holds 10 MB at most."""
        name, part, parts = str(message.get("name", "The file"))[:80], int(message["part"]), int(message["parts"])
        if part == 0:
            self._uploads = {name: []}  # one at a time: a new one drops what an interrupted one left
        received = self._uploads.get(name, [])
        received.append(b"".join(buffers))
        if len(received) != part + 1 or sum(map(len, received)) > FILE_LIMIT:
            self._uploads.clear()
            raise ExplorerError(f"{name} did not arrive whole, or has over {FILE_LIMIT >> 20} MB. Choose it again.")
        if part + 1 == parts:
            self._uploads.clear()
            config = self._sides[0].model.config
            pixels = read_image(b"".join(received), config.image_size, config.image_channels, name)
            self._show((pixels, name, None))

    def _change_heads(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        edits = message.get("edits") or []
        seen = self._sides[0].look(self._inputs([self._shown[0]]), edits)[0]
        self.edited = dict(seen, serial=message.get("serial", 0), heads=edits)

    def _average(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        self.average = self._averages(16)

    def _choose_run(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        self._set_sides([self._open(message.get("name")), *self._sides[1:]])

    def _compare(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        other = [] if message.get("name") is None else [self._open(message["name"])]
        self._set_sides([self._sides[0], *other])

    def _send_page(self, message: dict[str, Any], _: Sequence[bytes]) -> None:
        self.state = message.get("state") or self.state  # newer than what the page saved last
        self.send(dict(kind="file", name="attention-heads.html", type="text/html"), [self.page().encode()])

    def _open(self, name: Any) -> _Side:
        if name not in self._runs:
            raise ExplorerError(f"There is no run {name!r} in {', '.join(self._runs) or 'this explorer'}.")
        return _side(self._runs[name])

    def _set_sides(self, sides: list[_Side]) -> None:
        same, self._sides = sides[0] is self._sides[0], sides  # beside another run, changed heads stay changed
        with self.hold_sync():
            self.average, self.edited, self.state = [], {}, self.state if same else self.state | dict(edits={})
            self.sides = [side.arrays for side in sides]
            self.image = self._look([self._shown])[0]

    def _from_pool(self, index: int) -> _Shown:
        label = None if self._pool.labels is None else int(self._pool.labels[index])
        return self._pool.images[index], self._pool.title(index), label

    def _inputs(self, pixels: Sequence[NDArray]) -> Tensor:
        device = next(self._sides[0].model.parameters()).device
        return normalize(torch.from_numpy(np.stack(pixels)).to(device), self._pool.mean, self._pool.std)

    def _look(self, shown: Sequence[_Shown], bits: int = 16) -> list[dict[str, Any]]:
        """What the page needs of these images."""
        inputs = self._inputs([one[0] for one in shown])
        seen = zip(*[side.look(inputs, bits=bits) for side in self._sides], strict=True)
        return [
            dict(pixels=_array(pixels), title=title, label=label, sides=list(sides))
            for (pixels, title, label), sides in zip(shown, seen, strict=True)
        ]

    def _show(self, shown: _Shown) -> None:
        self._shown = shown
        with self.hold_sync():
            self.edited = {}
            self.image = self._look([self._shown])[0]

    def _averages(self, bits: int) -> list[Any]:
        chosen = self._pool.images[: min(AVERAGED_IMAGES, len(self._pool.images))]
        inputs = self._inputs(chosen)
        return [side.average(inputs, bits) if side.content else None for side in self._sides]

    # -- the same view elsewhere

    def figure(self) -> Figure:
        """The view as a matplotlib figure: one image, its query pixel, every head of the first model."""
        side = self._sides[0]
        height, width = side.model.config.grid
        row, column = (self.state.get("query") or (height // 2, width // 2))[:2]
        inputs = side._inputs(self._inputs([self._shown[0]])) if side.content else [None] * len(side.layers)
        maps = []
        with torch.no_grad():
            for layer, x in zip(side.layers, inputs, strict=True):
                p = heads.query_maps(layer, (row, column), height, width, x)
                maps.append(p[0] if p.ndim == 4 else p)
        return figures.attention_on_image(self._shown[0], (row, column), _padded(maps), caption=self._shown[1])

    @cached_property
    def _png(self) -> bytes:
        file = io.BytesIO()
        self.figure().savefig(file, format="png", dpi=110)
        return file.getvalue()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return assets.shown(super()._repr_mimebundle_(**options), self._png, repr(self))

    def page(self, limit: int = EXPORT_LIMIT) -> str:
        """The explorer as one HTML page of at most ``limit`` bytes, which needs neither Python nor a network.

        It holds the models, the image shown now and its prediction, also with the heads as they are changed now; then,
        while there is room, the average over images and images of every class with their predictions.

        Raises:
            ExplorerError: not even the image shown now fits.
        """
        tree = dict(sides=self.sides, choices=self.choices, average=[], gallery=[], state=dict(self.state))
        tree["image"] = self._look([self._shown], bits=8)[0]
        changed = [_edit(place, change) for place, change in self.state.get("edits", {}).items()]
        if changed:  # the page cannot ask what the model makes of them
            inputs = self._inputs([self._shown[0]])
            tree["edited"] = dict(self._sides[0].look(inputs, changed, bits=8)[0], heads=changed)
        frame = self._frame()
        room = (limit - len(frame.encode())) * 3 // 4 - len(pack(tree))  # base64 writes 4 bytes for 3
        if room < 0:
            raise ExplorerError(f"The page would be larger than {limit / 1e6:g} MB: explore a smaller model.")
        content = any(side.content for side in self._sides)
        if content:
            average = self._averages(8)
            if (size := len(pack(average)) + 100) <= room:
                tree["average"], room = average, room - size
        few = map(self._from_pool, self._pool.few(1 if content else 3, 60))
        few = [one for one in few if one[1] != self._shown[1]]
        for start in range(0, len(few), step := 1 if content else 60):
            more = self._look(few[start : start + step], bits=8)
            if (size := len(pack(more)) + 100) > room:
                break
            tree["gallery"] += more
            room -= size
        return frame.replace("@DATA@", base64.b64encode(pack(tree)).decode())

    def _frame(self) -> str:
        """The page without its data."""
        return assets.page(f"Attention heads: {self.sides[0]['title']}", "explorer", "@DATA@", self._png)

    def export_html(self, path: str | Path) -> Path:
        """Write `page` to a file and return its path."""
        path = Path(path)
        with writing(path) as temporary:
            temporary.write_text(self.page())
        return path
