"""The images that an explorer shows: the run's own data, a reader's files, arrays."""

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from attnconv.config import for_images
from attnconv.training.data import (
    STATISTICS,
    DataError,
    Dataset,
    balanced,
    find_data,
    load_data,
    pixels,
)
from companion.explorer.subject import ExplorerError, Subject


@dataclass(frozen=True)
class Pool:
    """The images that can be chosen."""

    name: str
    images: NDArray[np.uint8]  # (N, H, W, C)
    labels: NDArray[np.int64]  # (N,); empty: not known
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def shown(self, index: int) -> dict[str, Any]:
        """An image (H, W, C) by ``pixels``, ``title`` and ``label``."""
        label = int(self.labels[index]) if self.labels.size else None
        kind = "" if label is None else f": {self.classes[label]}"
        return dict(pixels=self.images[index], title=f"{self.name} {index}{kind}", label=label)

    def some(self, count: int) -> list[int]:
        """So many images, as many of each class as there can be; the first ones where there are
        no labels.
        """
        labels = self.labels if self.labels.size else np.zeros(len(self.images), np.int64)
        return balanced(torch.from_numpy(labels), count).tolist()


def pool_of(images: Any, side: Subject, mean: Any = None, std: Any = None) -> Pool:
    """The images that `explore` was given, as the model takes them, with the words and numbers
    that go with them.
    """
    if isinstance(images, Pool):
        return images
    about = side.run.config["data"] if side.run else {}
    if images is None:
        images = _own_data(side, about.get("name"))
    name = "image"
    labels = np.zeros(0, np.int64)
    if isinstance(images, Dataset):
        labels = _known_labels(images, side, about)
        about = images.about() | about
        name = "test image"
        images = images.test_images
    config = side.config
    usual = STATISTICS["cifar10" if config.image_channels == 3 else "fashion-mnist-sample"]
    mean = tuple(map(float, about.get("mean", usual[0]) if mean is None else mean))
    std = tuple(map(float, about.get("std", usual[1]) if std is None else std))
    if {len(mean), len(std)} != {config.image_channels}:
        needed = f"a number for each of the {config.image_channels} channels"
        raise ExplorerError(f"mean = {mean} and std = {std} must have {needed}.")
    values = fitting(images, config.image_size, config.image_channels)
    classes = about.get("classes") or map(str, range(config.classes))
    return Pool(name, values, labels, tuple(classes), mean, std)


def _known_labels(images: Dataset, side: Subject, about: dict[str, Any]) -> NDArray[np.int64]:
    """The test images' labels; none where the model's run was on other classes than these."""
    known, told = len(images.classes), side.config.classes
    if told != known:
        raise ExplorerError(f"The images are of {known} classes, but the model tells {told} apart.")
    labels = images.test_labels.cpu().numpy()
    same_name = about.get("name", images.name) == images.name
    same_classes = tuple(about.get("classes", ())) == images.classes
    return labels if same_name or same_classes else labels[:0]


def fitting(images: Any, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """A path, a Pillow image, an array of one image or several, or a list of such, cropped to that
    size: (N, height, width, channels) in 8 bits."""
    if isinstance(images, list | tuple):
        if not images:
            raise ExplorerError("images is empty: give at least one.")
        return np.concatenate([fitting(one, size, channels) for one in images])
    if isinstance(images, np.ndarray | Tensor):
        values = _several(images)
    else:
        try:
            values = pixels(images)[None]
        except Exception as error:  # Pillow's plugins raise what they like on damaged files
            raise ExplorerError(
                f"{images}, of type {type(images).__name__}, cannot be read as an image: {error}. "
                "Give paths, Pillow images, or arrays."
            ) from error
    if values.shape[1:] == (*size, channels):
        return values
    return np.stack([_cropped(one, size, channels) for one in values])


def _several(images: NDArray | Tensor) -> NDArray[np.uint8]:
    """Arrays as (N, height, width, channels) in 8 bits; one image may come alone."""
    kind = str(images.dtype).removeprefix("torch.")
    if kind != "uint8":
        raise ExplorerError(f"images are {kind}; they must be uint8, from 0 to 255.")
    values = np.ascontiguousarray(images.cpu() if isinstance(images, Tensor) else images)
    values = values[None] if values.ndim == 3 else values
    if values.ndim != 4 or values.shape[-1] not in (1, 3) or not values.size:
        raise ExplorerError(
            f"images of shape {values.shape} are empty, or not (N, height, width, channels) with "
            "1 or 3 channels."
        )
    return values


def _cropped(image: NDArray, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """The middle of an image (H, W, 1 or 3) in the model's aspect ratio, resized: (height, width,
    channels).
    """
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    picture = picture.convert("L" if channels == 1 else "RGB")
    picture = ImageOps.fit(picture, size[::-1], Image.Resampling.LANCZOS)
    return np.asarray(picture).reshape(*size, channels)


def _own_data(side: Subject, name: str | None) -> Dataset | Tensor:
    """The data that a run names, where it is on this machine (nothing is downloaded); else pictures
    of the sample.

    Labels come along only with the data of that name; for a model alone, with a sample that is as
    its images are."""
    if name == "cifar10":
        with contextlib.suppress(DataError):
            path = find_data(name)
            if path:
                return load_data(path)
    sample = load_data("embedded")
    fits = name == sample.name if name else for_images(side.config, sample) == side.config
    return sample if fits else sample.test_images
