"""Images: CIFAR-10, the embedded sample of Fashion-MNIST, or your own; and batches made on the
device.

A data set is read once into four tensors, moved whole to the device, and stays uint8. What happens
to a batch is a few
tensor operations there: no worker processes, no Python per image, no wait for the GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from attnconv.config import REPOSITORY, errors_as
from attnconv.training.runs import held, writing

REPOSITORY_DATA = REPOSITORY / "data"
SPLITS = ("train", "test")
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR10_IMAGES = (
    50_000,
    10_000,
)  # Parquet files do not name their classes: these counts tell CIFAR-10
# Mean and standard deviation per channel, pixels in [0, 1]: the original code's for CIFAR-10, else
# the usual ones.
STATISTICS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "fashion-mnist-sample": ((0.2860,), (0.3530,)),
}
PAD = 4  # pixels of black around an image before it is cropped to its size again


class DataError(ValueError):
    """Data that cannot be used; the message names the file, the row where there is one, and the
    remedy.
    """


class MissingData(DataError):
    """A data set that was asked for by name is not on this machine."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of two splits, exactly as published and in that order."""

    name: str  # cifar10, fashion-mnist-sample, or the folder's name
    form: str  # what it was read from: "Parquet, JPEG images", "image folders", ...
    key: str = field(
        default="", kw_only=True
    )  # hex sha256 that names the content; a subset has its own
    classes: tuple[str, ...]
    train_images: Tensor = field(repr=False)  # uint8 (N, H, W, C)
    train_labels: Tensor = field(repr=False)  # int64 (N,)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    mean: tuple[float, ...]  # per channel, pixels in [0, 1]
    std: tuple[float, ...]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self.train_images.shape[1], self.train_images.shape[2]

    @property
    def image_channels(self) -> int:
        return self.train_images.shape[3]

    def about(self) -> dict[str, Any]:
        """What a run's config.json says of its data."""
        about = {
            name: getattr(self, name) for name in ("name", "form", "key", "classes", "mean", "std")
        }
        return about | {
            "train_images": len(self.train_labels),
            "test_images": len(self.test_labels),
        }

    def for_training(self, config: Any) -> Dataset:
        """The data that a recipe trains and tests on."""
        rest = self.hold_out(config.validation, config.seed)[0]
        return rest.few(config.images, config.seed) if config.images else rest

    def to(self, device: torch.device | str) -> Dataset:
        """The same data on that device."""
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in ARRAYS}
        return replace(self, **moved)

    def first(self, train: int | None, test: int | None) -> Dataset:
        """This many images of each split, in their order: the first of each class, as many of each
        as can be. None, or a number larger than the split, keeps the whole split."""
        train = None if train is None or train >= len(self.train_labels) else train
        test = None if test is None or test >= len(self.test_labels) else test
        if train is None and test is None:
            return self
        kept = {
            "train": balanced(self.train_labels, train),
            "test": balanced(self.test_labels, test),
        }
        arrays: dict[str, Any] = {
            name: getattr(self, name)[kept[name.split("_")[0]]] for name in ARRAYS
        }
        return replace(self, key=_digest(self.key, "first", train, test).hex(), **arrays)

    def hold_out(self, n: int, seed: int) -> tuple[Dataset, Tensor, Tensor]:
        """The data without n training images, and those n for validation: images (n, H, W, C) and
        labels (n,). The seed draws them, as many of each class as can be."""
        images, labels, total = self.train_images, self.train_labels, len(self.train_labels)
        if not 0 <= n < total:
            raise DataError(
                f"{n} validation images cannot be held out of {total}: choose 0 to {total - 1}."
            )
        held = torch.zeros_like(labels, dtype=torch.bool)
        held[_drawn(labels, n, "hold out", seed)] = True
        key = _digest(self.key, "hold out", n, seed).hex() if n else self.key
        rest = replace(self, key=key, train_images=images[~held], train_labels=labels[~held])
        return rest, images[held], labels[held]

    def few(self, n: int, seed: int) -> Dataset:
        """The data with n of its training images, over and over until they are as many as before;
        its key stays. The seed draws them, as many of each class as can be; more images hold the
        fewer ones."""
        chosen, total = _drawn(self.train_labels, n, "few", seed), len(self.train_labels)
        which = chosen.repeat(-(-total // len(chosen)))[:total]
        return replace(
            self, train_images=self.train_images[which], train_labels=self.train_labels[which]
        )


def balanced(labels: Tensor, n: int | None) -> Tensor:
    """Sorted indices of n labels: the first of every class, then the second of every class, and
    so on.
    """
    counts = torch.bincount(labels)
    by_class = labels.argsort(stable=True)
    rank = torch.empty_like(labels)  # how many of the same class come before
    rank[by_class] = (
        torch.arange(len(labels), device=labels.device)
        - (counts.cumsum(0) - counts)[labels[by_class]]
    )
    return (rank * len(counts) + labels).argsort()[:n].sort().values


def _drawn(labels: Tensor, n: int, purpose: str, seed: int) -> Tensor:
    """Indices of n labels, drawn by the seed: as many of each class as can be."""
    shuffled = torch.randperm(len(labels), generator=_generator(purpose, seed)).to(labels.device)
    return shuffled[balanced(labels[shuffled], n)]


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _generator(*parts: object) -> torch.Generator:
    """A CPU generator that depends on these values only. They are hashed, because torch keeps 32
    bits of a seed.
    """
    return torch.Generator().manual_seed(int.from_bytes(_digest(*parts)[:4], "little"))


class Plan(NamedTuple):
    """The order of one epoch's n images; with augmentation also the crop and flip of image
    ``order[i]``, at i.
    """

    order: Tensor  # int64 (n,), a permutation
    # Row and column where the crop starts in the padded image, int64 (n,), 0 to 8; whether it is
    # mirrored, bool (n,).
    crops: tuple[Tensor, ...] = ()


def epoch_plan(
    n: int, *, seed: int, epoch: int, augment: bool, device: torch.device | str = "cpu"
) -> Plan:
    """The plan of one epoch for n images: a function of its arguments only, so that a resumed run
    repeats it exactly. It is drawn on the CPU, so the same on every device."""
    generator = _generator("epoch", seed, epoch)
    order = torch.randperm(n, generator=generator)
    if not augment:
        return Plan(order.to(device))
    rows, columns = torch.randint(0, 2 * PAD + 1, (2, n), generator=generator)
    flips = torch.rand(n, generator=generator) < 0.5
    return Plan(order.to(device), tuple(part.to(device) for part in (rows, columns, flips)))


def augment(images: Tensor, rows: Tensor, columns: Tensor, flips: Tensor) -> Tensor:
    """Pad (B, H, W, C) with black, crop each image to (H, W) at its own row and column (0 to 2
    PAD), then mirror it: torchvision's RandomCrop(padding=PAD) and RandomHorizontalFlip, in one
    gather for the whole batch."""
    batch, height, width, _ = images.shape
    device = images.device
    padded = F.pad(images, (0, 0, PAD, PAD, PAD, PAD))
    x = torch.arange(width, device=device)
    x = torch.where(flips[:, None], width - 1 - x, x) + columns[:, None]  # (B, W)
    y = torch.arange(height, device=device) + rows[:, None]  # (B, H)
    which = torch.arange(batch, device=device)[:, None, None]
    return padded[which, y[:, :, None], x[:, None, :]]


def normalize(images: Tensor, mean: Tensor | tuple, std: Tensor | tuple) -> Tensor:
    """uint8 (B, H, W, C) to (pixel / 255 - mean) / std as (B, C, H, W), channels last in memory."""
    mean, std = (
        torch.as_tensor(values, dtype=torch.float32, device=images.device) for values in (mean, std)
    )
    return images.float().div_(255).sub_(mean).div_(std).permute(0, 3, 1, 2)


def batches(
    images: Tensor,
    labels: Tensor,
    plan: Plan | None,
    batch_size: int,
    mean: tuple,
    std: tuple,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images (B, C, H, W) and labels (B,) of one epoch, from step ``start`` on; the last
    may be smaller. Without a plan all are in their own order. All stays on the device of
    ``images``, and Python never waits for it."""
    statistics = [torch.tensor(values, device=images.device) for values in (mean, std)]
    for first in range(start * batch_size, len(labels), batch_size):
        part = slice(first, first + batch_size)
        which = part if plan is None else plan.order[part]
        x, y = images[which], labels[which]
        if plan and plan.crops:
            x = augment(x, *(each[part] for each in plan.crops))
        yield normalize(x, *statistics), y


EMBEDDED, NPZ, PARQUET, FOLDERS = "embedded sample", "npz", "Parquet", "image folders"
BATCHES = "cifar-10-batches-py"  # as CIFAR-10 is published
LAYOUTS = (  # of a folder: a form, and its files of both splits
    (BATCHES, "data_batch_*", "test_batch"),
    (PARQUET, "train*.parquet", "test*.parquet"),
    (FOLDERS, "train/*/*", "test/*/*"),
)
FORMS = f"""Name embedded or cifar10, or the path of {BATCHES}, of a folder with train*.parquet and test*.parquet \
(columns img, label), or of one with train/<class>/ and test/<class>/ (images)"""
SAMPLE = "fashion-mnist-sample/fashion-mnist-sample.npz"


class Source(NamedTuple):
    """A data set on disk. An npz file holds both splits, and is listed under train."""

    name: str
    form: str
    path: Path  # the folder that holds the files, or the one file
    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()


def find_data(source: str | Path = "embedded") -> Source | None:
    """Find ``embedded``, ``cifar10`` or what lies at a path; nothing is decoded or downloaded. None
    where CIFAR-10 is not on this machine yet; `DataError` where nothing else is that can be
    read."""
    root, name = data_folder(), str(source)
    named = {"embedded": [REPOSITORY_DATA / SAMPLE], "cifar10": [root / BATCHES, root / "cifar10"]}
    with reading_data(source):
        for path in (places := named.get(name) or [Path(source).expanduser().absolute()]):
            if path.suffix == ".npz" and path.is_file():
                return Source(path.stem, EMBEDDED if name == "embedded" else NPZ, path, (path,))
            for form, *patterns in LAYOUTS:
                # Nothing hidden: `glob` leaves out what begins with a dot.
                files = [
                    sorted(filter(Path.is_file, map(path.joinpath, glob(p, root_dir=path))))
                    for p in patterns
                ]
                if all(files):
                    return Source(
                        name if name in named else path.name, form, path, *map(tuple, files)
                    )
    if name == "cifar10":
        return None
    remedy = (
        "'git checkout data' restores it in a clone of the repository"
        if name == "embedded"
        else FORMS
    )
    raise DataError(f"There is no data set that can be read at {places[0]}. {remedy}.")


def data_folder() -> Path:
    """Where downloads and caches go: $ATTNCONV_DATA, or else the repository's ``data``."""
    return Path(os.environ.get("ATTNCONV_DATA") or REPOSITORY_DATA).expanduser().absolute()


def content_key(source: Source) -> str:
    """Hex sha256 of a source: its form, its splits, the classes of image folders, and every byte
    of every file.
    """
    digest = hashlib.sha256(source.form.encode())
    for split in SPLITS:
        for file in getattr(source, split):
            with reading_data(file):
                content = file.read_bytes()
            where = f"{split} {file.parent.name}" if source.form == FOLDERS else split
            digest.update(f"\0{where}\0{len(content)}\0".encode(errors="surrogateescape"))
            digest.update(content)
    return digest.hexdigest()


def _unpacked(folder: Path) -> bool:
    """Whether CIFAR-10 is whole there: another process may be unpacking it, or one was cut off."""
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    return all(
        check_integrity(str(folder / name), md5)
        for name, md5 in [*CIFAR10.train_list, *CIFAR10.test_list]
    )


def _download() -> Source | None:
    """Let torchvision fetch CIFAR-10 into the data folder, or unpack the archive there. It
    checks what it gets.
    """
    from torchvision.datasets import CIFAR10

    root, patience = data_folder(), socket.getdefaulttimeout()
    remedy = f"Bring its published files to {root / BATCHES} yourself, or use 'embedded', which needs no download."
    socket.setdefaulttimeout(30)  # seconds without a byte; torchvision would wait for ever
    try:
        with errors_as(MissingData, f"cifar10 is not in {root}. The download failed", remedy):
            with held(root, wait=True):  # notebooks that run side by side need one copy
                CIFAR10(root, download=True)
    finally:
        socket.setdefaulttimeout(patience)
    return find_data("cifar10")


def load_data(source: str | Path = "embedded") -> Dataset:
    """The data set ``embedded``, ``cifar10``, or what lies at a path (see `FORMS`).

    CIFAR-10 is downloaded where it is missing. Decoded images are cached in the folder for data.
    Raises `DataError` naming file, row and remedy."""
    found = find_data(source)
    if found is None or (
        str(source) == "cifar10" and found.form == BATCHES and not _unpacked(found.path)
    ):
        found = _download()
    assert found, "a download that does not fail brings it"
    key = content_key(found)
    with reading_data(found.path):
        arrays = _read(found, key)
        tensors: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in ARRAYS}
        for part, values in tensors.items():  # gray images get the one channel that they may lack
            tensors[part] = (
                values.reshape(*values.shape[:3], -1) if "images" in part else values.long()
            )
        classes, form = tuple(map(str, arrays["classes"])), str(arrays.get("form", found.form))
        if not all(tensors[f"{split}_images"].dtype == torch.uint8 for split in SPLITS):
            raise ValueError("its images are not uint8, from 0 to 255")
        labels = torch.cat([tensors[f"{split}_labels"] for split in SPLITS])
        if ((labels < 0) | (labels >= len(classes))).any():
            raise ValueError(
                f"its labels are not whole numbers from 0 to {len(classes) - 1}, of its classes"
            )
    images, counts = (
        tensors["train_images"],
        tuple(len(tensors[f"{split}_labels"]) for split in SPLITS),
    )
    if (
        classes == tuple("0123456789")
        and counts == CIFAR10_IMAGES
        and images.shape[1:] == (32, 32, 3)
    ):
        classes = CIFAR10_CLASSES
    is_cifar10 = classes == CIFAR10_CLASSES and images.shape[1:] == (32, 32, 3)
    if found.name == "cifar10" and not is_cifar10:
        raise DataError(
            f"{found.path} is not CIFAR-10 as published. Rename it, and give its path as the source."
        )
    name = "cifar10" if is_cifar10 else found.name
    mean, std = STATISTICS.get(name) or _statistics(images)
    return Dataset(name=name, form=form, key=key, classes=classes, mean=mean, std=std, **tensors)


def _statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels in [0, 1]; 1 where all pixels are the
    same.
    """
    channels = [images[..., c].numpy() for c in range(images.shape[3])]
    return tuple(c.mean().item() / 255 for c in channels), tuple(
        c.std().item() / 255 or 1.0 for c in channels
    )


def _read(source: Source, key: str) -> dict[str, Any]:
    """The `ARRAYS` of a source, its classes and, where it is not the source's, its form."""
    if source.form in (NPZ, EMBEDDED):
        with np.load(source.path) as arrays:
            return dict(arrays)
    if source.form == BATCHES:  # torchvision unpickles CIFAR-10 only if all its checksums are right
        from torchvision.datasets import CIFAR10

        here: Any = type("Here", (CIFAR10,), {"base_folder": ""})  # the folder may have any name
        train, test = (here(source.path, train=split == "train") for split in SPLITS)
        values = map(np.ascontiguousarray, (train.data, train.targets, test.data, test.targets))
        return dict(zip(ARRAYS, values, strict=True)) | {"classes": train.classes}
    cache = data_folder() / "cache" / f"{key}.npz"
    with (
        contextlib.suppress(Exception),
        np.load(cache) as arrays,
    ):  # missing or damaged: it is made again
        return dict(arrays)
    decoded = _decoded(source)
    with contextlib.suppress(OSError), writing(cache) as temporary:
        np.savez(temporary, **decoded)
    return decoded


def _decoded(source: Source) -> dict[str, Any]:
    """What `_read` gives, of image folders and Parquet files. Images must be of one size, and
    all gray or all RGB.
    """
    rows = {split: _rows(source, split) for split in SPLITS}
    classes, others = (sorted({label for *_, label in part}) for part in rows.values())
    if classes != others:
        raise DataError(
            f"{source.path}: the classes are {classes} in train, {others} in test. Give both the same."
        )
    arrays: dict[str, Any] = {"form": source.form}
    for split, part in rows.items():
        images: list[np.ndarray] = []
        for place, content, _ in part:
            with reading_data(place):
                images.append(_pixels(content))
                if images[-1].shape != (first := arrays.get("train_images", images)[0].shape):
                    raise ValueError(
                        f"it is {images[-1].shape}, the first image {first}; make all alike"
                    )
        arrays[f"{split}_images"] = np.array(images)
        arrays[f"{split}_labels"] = np.array([classes.index(label) for *_, label in part])
    if rows["train"][0][1].startswith(b"\xff\xd8"):
        arrays["form"] += ", JPEG images"
    return arrays | {"classes": classes}


def _rows(source: Source, split: str) -> list[tuple[str, bytes, Any]]:
    """The place, the encoded image and the label of each image of a split."""
    from pyarrow.parquet import read_table

    files = getattr(source, split)
    if source.form == FOLDERS:
        return [(str(file), file.read_bytes(), file.parent.name) for file in files]
    table = read_table([*files]).to_pydict()
    images, labels = table.get("img", table.get("image")), table.get("label", table.get("labels"))
    if not images or not labels:
        raise DataError(
            f"{files[0]} has columns {[*table]}. Needed are img or image, label or labels, and rows."
        )
    encoded = [image["bytes"] if isinstance(image, dict) else image for image in images]
    return [
        (f"{source.path}, {split} row {row}", encoded[row], label)
        for row, label in enumerate(labels)
    ]


def _pixels(content: bytes) -> np.ndarray:
    """uint8 (H, W, 1) or (H, W, 3) of an encoded image. Palettes become RGB, an alpha channel is
    dropped.
    """
    with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "BMP", "PPM", "WEBP")) as image:
        if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
            raise ValueError(f"its pixels are of kind {image.mode}; save it as 8-bit gray or RGB")
        return np.atleast_3d(
            np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
        )


def reading_data(place: object) -> contextlib.AbstractContextManager[None]:
    """Whatever a library raises on a damaged or foreign file becomes one `DataError` that names
    the place.
    """
    return errors_as(
        DataError, f"{place} cannot be read", "Copy it again, replace it or remove it."
    )
