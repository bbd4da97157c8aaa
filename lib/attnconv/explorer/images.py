"""The images that an explorer shows: the run's own data, a reader's files, arrays."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from attnconv.training.data import STATISTICS, DataError, Dataset, balanced, find_data, load_data

if TYPE_CHECKING:
    from attnconv.explorer.sides import Side

FILE_LIMIT = 32 * 2**20
"""Bytes of an image file that a reader may upload."""
STRIP = 100
"""Images on which right answers are counted, before heads are changed and after."""
PIXEL_LIMIT = 64_000_000
"""Pixels of such an image: more is refused before it is decoded."""


class ExplorerError(ValueError):
    """Something the explorer was asked and cannot do; its message is shown in the page."""


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
            return _cropped(image, size, channels)
    except ExplorerError:
        raise
    except PIL.UnidentifiedImageError:
        raise ExplorerError(
            f"{name} is not an image that can be read. PNG, JPEG, WebP, GIF, TIFF and BMP can."
        ) from None
    except Exception as error:  # Pillow's plugins raise what they like on damaged files
        raise ExplorerError(f"{name} is damaged or no image ({error}).") from error


def _cropped(image: Image.Image, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """The middle of an image in the model's aspect ratio, upright and resized: (height, width, channels)."""
    image = _eight_bit(ImageOps.exif_transpose(image)).convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.LANCZOS)
    return np.asarray(image, dtype=np.uint8).reshape(*size, channels)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Modes that ``convert`` would clip or refuse: 16 and 32 bits by their own range, alpha laid on white."""
    if image.mode[0] in "IF":
        values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0, neginf=0)
        low, high = values.min(), values.max()
        return Image.fromarray(((values - low) * (255 / ((high - low) or 1))).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image


@dataclass(frozen=True)
class Pool:
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

    def some(self, count: int) -> list[int]:
        """So many images, as many of each class as there can be; the first ones where there are no labels."""
        if self.labels is None:
            return list(range(min(len(self.images), count)))
        return balanced(torch.from_numpy(self.labels), count).tolist()


def pool_of(
    images: Any,
    side: Side,
    labels: Any = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Pool:
    """The images that `explore` was given, as the model takes them, with the words and numbers that go with them."""
    size, channels = side.image_size, side.image_channels
    about = dict(side.run.config.get("data", {})) if side.run else {}
    if images is None:
        images = _own_data(about.get("name"), size, channels)
    name = "image"
    if isinstance(images, Dataset):
        about = dict(classes=images.classes, mean=images.mean, std=images.std) | about
        name, labels, images = "test image", images.test_labels, images.test_images
    values = _fitting(images, size, channels)
    usual = STATISTICS["cifar10" if channels == 3 else "fashion-mnist-sample"]
    mean, std = (tuple(g or about.get(n, u)) for g, n, u in zip((mean, std), ("mean", "std"), usual, strict=True))
    names = tuple(classes or about.get("classes", ()) or map(str, range(side.classes)))
    if side.classes and len(names) != side.classes:
        raise ExplorerError(f"{len(names)} classes are named, but the model tells {side.classes} apart.")
    for what, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != channels:
            raise ExplorerError(f"{what} = {numbers} must have a number for each of the {channels} channels.")
    labels = None if labels is None or not side.classes else np.asarray(labels).astype(int)
    if labels is not None and (labels.shape != (len(values),) or not set(labels.tolist()) <= set(range(len(names)))):
        raise ExplorerError(f"labels must be {len(values)} whole numbers from 0 to {len(names) - 1}, one for an image.")
    return Pool(name, values, labels, names if side.classes else (), mean, std)


def size_of(images: Any) -> tuple[int, int] | None:
    """Height and width of the images, where they are arrays or a data set; files are of any size."""
    if isinstance(images, Dataset):
        return images.image_size
    return _channels_last(images).shape[1:3] if isinstance(images, np.ndarray | Tensor) else None


def _fitting(images: Any, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """What was given as images, (N, height, width, channels) in 8 bits, of that size and with so many channels."""
    if isinstance(images, np.ndarray | Tensor):
        values = _channels_last(images)
        if values.shape[1:] == (*size, channels):
            return values
        images = [Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image) for image in values]
    pictures = images if isinstance(images, list | tuple) else [images]
    if not pictures:
        raise ExplorerError("images is empty: give at least one.")
    return np.stack([_picture(image, size, channels) for image in pictures])


def _channels_last(images: NDArray | Tensor) -> NDArray[np.uint8]:
    """Arrays as (N, height, width, channels): channels may come first, and one image may come alone."""
    values = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    shape = values.shape
    if values.ndim == 3:
        values = values[None]
    if values.ndim == 4 and values.shape[-1] not in (1, 3):
        values = values.transpose(0, 2, 3, 1)
    if values.ndim != 4 or values.shape[-1] not in (1, 3):
        raise ExplorerError(
            f"images of shape {tuple(shape)} are neither (N, height, width, channels) nor (N, channels, height, width) "
            "with 1 or 3 channels."
        )
    if not values.size:
        raise ExplorerError("images is empty: give at least one.")
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= 0 and values.max() <= 1):
            raise ExplorerError(
                f"images are {values.dtype} from {values.min():g} to {values.max():g}; they must be in [0, 1], as they "
                "are before mean and std are taken off."
            )
        values = np.rint(255 * values).astype(np.uint8)
    if values.dtype != np.uint8:
        raise ExplorerError(f"images are {values.dtype}; they must be uint8, or floats in [0, 1].")
    return np.ascontiguousarray(values)


def _picture(image: Any, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """A Pillow image or a path as the model takes it: (height, width, channels)."""
    if isinstance(image, Image.Image):
        return _cropped(image, size, channels)
    if not isinstance(image, str | Path):
        raise ExplorerError(
            f"images is of type {type(image).__name__}: give paths, Pillow images, or one array of all."
        )
    try:
        return read_image(Path(image).read_bytes(), size, channels, Path(image).name)
    except OSError as error:
        raise ExplorerError(f"{image} cannot be read: {error.strerror}.") from error


def _own_data(name: str | None, size: tuple[int, int], channels: int) -> Dataset | NDArray:
    """The data that a run names, where it is on this machine (nothing is downloaded); else a drawn picture."""
    source = "embedded" if name in (None, "fashion-mnist-sample") else name
    if source in ("embedded", "cifar10"):
        with contextlib.suppress(DataError):
            find_data(source)
            data = load_data(source)
            if name or (data.image_size, data.image_channels) == (size, channels):
                return data
    rows, columns = np.mgrid[: size[0], : size[1]] / np.array(size, float)[:, None, None] - 0.5
    ring = np.abs(np.hypot(rows, columns) - 0.3) < 0.07
    picture = np.where(ring, 235, 60 + 90 * (columns + 0.5))
    return np.repeat(picture.astype(np.uint8)[None, ..., None], channels, -1)
