"""The images that an explorer shows: the run's own data, a reader's files, arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from attnconv.explorer.arrays import ExplorerError
from attnconv.training.data import STATISTICS, DataError, Dataset, balanced, find_data, load_data

if TYPE_CHECKING:
    from attnconv.explorer.sides import Side


@dataclass(frozen=True)
class Pool:
    """The images that can be chosen."""

    name: str
    images: NDArray[np.uint8]  # (N, H, W, C)
    labels: NDArray | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def title(self, index: int) -> str:
        kind = "" if self.labels is None else f": {self.classes[self.labels[index]]}"
        return f"{self.name} {index}{kind}"

    def clear(self, count: int) -> list[int]:
        """So many labelled images of those of `some`, the brightest with the most contrast first: mean times standard
        deviation of their brightness."""
        if self.labels is None:
            return []
        chosen = self.some(count)
        light = self.images[chosen].mean(-1).reshape(len(chosen), -1)
        return [chosen[i] for i in np.argsort(-light.mean(1) * light.std(1), kind="stable")]

    def some(self, count: int) -> list[int]:
        """So many images, as many of each class as there can be; the first ones where there are no labels."""
        if self.labels is None:
            return list(range(min(len(self.images), count)))
        return balanced(torch.from_numpy(self.labels), count).tolist()


def pool_of(
    images: Any,
    side: Side,
    labels: Any,
    classes: Sequence[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Pool:
    """The images that `explore` was given, as the model takes them, with the words and numbers that go with them."""
    if isinstance(images, Pool):
        return images
    size, channels = side.image_size, side.image_channels
    about = dict(side.run.config.get("data", {})) if side.run else {}
    if images is None:
        images = _own_data(about.get("name"), size, channels)
    name = "image"
    if isinstance(images, Dataset):
        about = dict(classes=images.classes, mean=images.mean, std=images.std) | about
        name, labels, images = "test image", images.test_labels, images.test_images
    values = fitting(images, size, channels)
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


def fitting(images: Any, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """What was given as images, (N, height, width, channels) in 8 bits, of that size and with so many channels."""
    if isinstance(images, np.ndarray | Tensor):
        images = _channels_last(images)
        if images.shape[1:] == (*size, channels):
            return images
    pictures = images if isinstance(images, list | tuple | np.ndarray) else [images]
    if not len(pictures):
        raise ExplorerError("images is empty: give at least one.")
    return np.stack([_cropped(_picture(one), size, channels) for one in pictures])


def _channels_last(images: NDArray | Tensor) -> NDArray[np.uint8]:
    """Arrays as (N, height, width, channels) in 8 bits: channels may come first, and one image may come alone."""
    values = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    shape, kind = values.shape, values.dtype
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
    span = ""
    if np.issubdtype(kind, np.floating):
        span = f" from {values.min():g} to {values.max():g}"
        if values.min() >= 0 and values.max() <= 1:
            values = np.rint(255 * values).astype(np.uint8)
    if values.dtype != np.uint8:
        raise ExplorerError(
            f"images are {kind}{span}; they must be uint8, or floats in [0, 1], as they are before mean and std are "
            "taken off."
        )
    return np.ascontiguousarray(values)


def _picture(image: Any) -> Image.Image:
    """One of the images that `explore` was given, upright: a path, a Pillow image, or an array."""
    if isinstance(image, Image.Image):
        return ImageOps.exif_transpose(image)
    if isinstance(image, np.ndarray | Tensor) and image.ndim == 3:
        (values,) = _channels_last(image)
        return Image.fromarray(values.squeeze(-1) if values.shape[-1] == 1 else values)
    if not isinstance(image, str | Path):
        raise ExplorerError(
            f"One of the images is of type {type(image).__name__}: give paths, Pillow images, or arrays of uint8 or "
            "floats in [0, 1], (height, width, channels) each."
        )
    try:
        with Image.open(image) as file:
            return ImageOps.exif_transpose(file)
    except Exception as error:  # Pillow's plugins raise what they like on damaged files
        raise ExplorerError(f"{image} cannot be read as an image: {error}.") from error


def _cropped(image: Image.Image, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """The middle of an image in the model's aspect ratio, laid on white and resized: (height, width, channels)."""
    if image.mode[0] in "IF":  # Pillow would clip them
        raise ExplorerError(f"An image has pixels of mode {image.mode}: give 8 bits a channel, or floats in [0, 1].")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.LANCZOS)
    return np.asarray(image, dtype=np.uint8).reshape(*size, channels)


def _own_data(name: str | None, size: tuple[int, int], channels: int) -> Dataset | Tensor:
    """The data that a run names, where it is on this machine (nothing is downloaded); else pictures of the sample."""
    if name == "cifar10":
        with contextlib.suppress(DataError):
            find_data(name)
            return load_data(name)
    sample = load_data("embedded")
    fits = name == "fashion-mnist-sample" or (sample.image_size, sample.image_channels) == (size, channels)
    return sample if fits else sample.test_images
