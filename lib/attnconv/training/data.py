"""Images: CIFAR-10, the embedded sample of Fashion-MNIST, or your own; and batches on the device.

A data set is read once into four tensors, moved whole to the device, and stays uint8. What happens
to a batch is a few tensor operations there: no worker processes, no Python per image, no wait for
the GPU.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from attnconv.config import REPOSITORY, TrainConfig, shown
from attnconv.training.runs import reading

SAMPLE = REPOSITORY / "data" / "fashion-mnist-sample" / "fashion-mnist-sample.npz"
SPLITS = ("train", "test")
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
CIFAR10_CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
BATCHES = "cifar-10-batches-py"  # the folder of CIFAR-10 as it is published
Floats = tuple[float, ...]  # one for each channel
# Mean and standard deviation per channel, pixels in [0, 1]: the original code's for CIFAR-10, else
# the usual ones.
STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "fashion-mnist-sample": ((0.2860,), (0.3530,)),
}
# Arrow's types of columns that may hold labels.
LABELS = ("int", "uint", "string", "large_string", "dictionary")
FORMATS = "BMP GIF JPEG PNG PPM TIFF WEBP".split()  # of images, as Pillow names them
FORMS = f"""Name embedded or cifar10, or the path of {BATCHES}, of a folder with train*.parquet \
and test*.parquet, or of one with train/<class>/ and test/<class>/ (images)"""
PAD = 4  # pixels of black around an image before it is cropped to its size again


class DataError(ValueError):
    """Data that cannot be used; the message names the file, the row where there is one, and the
    remedy.
    """

    remedy = "Copy it again, replace it or remove it."


class MissingData(DataError):
    """A data set that was asked for by name is not on this machine."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of two splits, exactly as published and in that order."""

    name: str  # cifar10, fashion-mnist-sample, or the folder's name
    form: str  # what it was read from: "Parquet, JPEG images", "image folders", ...
    classes: tuple[str, ...]
    train_images: Tensor = field(repr=False)  # uint8 (N, H, W, C)
    train_labels: Tensor = field(repr=False)  # int64 (N,)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    mean: Floats  # pixels in [0, 1]
    std: Floats

    def check(self) -> None:
        """Raise a `DataError` if this is nothing to train on: see the fields above."""
        for split in SPLITS:
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            found = images.dtype, labels.dtype, images.dim(), images.shape[1:], labels.shape
            wanted = torch.uint8, torch.int64, 4, self.train_images.shape[1:], images.shape[:1]
            fits = found == wanted and len(labels) > 0
            if not fits or labels.min() < 0 or labels.max() >= len(self.classes):
                raise DataError(
                    f"{split} images and labels must be uint8 (N, H, W, C), of one size, and int64 "
                    f"(N,), from 0 to {len(self.classes) - 1}, not {images.dtype} "
                    f"{tuple(images.shape)} and {labels.dtype} {shown(labels.tolist())}."
                )

    def about(self) -> dict[str, Any]:
        """What a run's config.json says of its data; of all but the whole CIFAR-10 a digest,
        too.
        """
        about = {name: getattr(self, name) for name in ("name", "form", "classes", "mean", "std")}
        about |= {"train_images": len(self.train_labels), "test_images": len(self.test_labels)}
        if self.name != "cifar10" or len(self.train_labels) < 50_000:
            digest = 0
            for name in ARRAYS:
                digest = zlib.crc32(getattr(self, name).cpu().numpy().tobytes(), digest)
            about["digest"] = digest
        return about

    def to(self, device: torch.device | str) -> Dataset:
        """The same data on that device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ARRAYS})

    def first(self, train: int | None, test: int | None) -> Dataset:
        """This many images of each split, in their order: the first of each class, as many of each
        as can be. None, or a number larger than the split, keeps the whole split."""
        fewer = self._only("test", balanced(self.test_labels, test))
        return fewer._only("train", balanced(self.train_labels, train))

    def few(self, split: str, n: int) -> tuple[Tensor, Tensor]:
        """The first n images of a split, or any n where they come class by class: normalised, (n,
        channels, H, W), and as they are."""
        images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
        if labels.diff().count_nonzero() < len(self.classes):
            images = images[torch.randperm(len(images), generator=_generator("few"))]
        return normalize(images[:n], self.mean, self.std), images[:n]

    def for_training(self, config: TrainConfig) -> Dataset:
        """The data that a recipe trains on: no more than its ``images``, over and over until they
        are as many as before. The seed draws them, as many of each class as can be; more images
        hold the fewer ones.
        """
        if config.images is None:
            return self
        labels = self.train_labels
        order = torch.randperm(len(labels), generator=_generator("few", config.seed))
        order = order.to(labels)
        few = order[balanced(labels[order], config.images)]
        return self._only("train", few[torch.arange(len(labels)) % len(few)])  # again and again

    def _only(self, split: str, which: Tensor) -> Dataset:
        """The data with those images of a split, by index."""
        names = f"{split}_images", f"{split}_labels"
        return replace(self, **{name: getattr(self, name)[which] for name in names})


def balanced(labels: Tensor, n: int | None) -> Tensor:
    """Sorted indices of n labels: the first of every class, then the second of every class, and
    so on.
    """
    seen = F.one_hot(labels).cumsum(0)  # (N, classes): so many of each class up to here
    rank = seen.gather(1, labels[:, None])[:, 0]
    turn = rank * seen.shape[1] + labels
    return turn.argsort()[:n].sort().values


def _generator(*parts: object) -> torch.Generator:
    """A CPU generator that depends on these values only. They are hashed, because torch keeps 32
    bits of a seed.
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


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
    order = torch.randperm(n, generator=generator).to(device)
    if not augment:
        return Plan(order)
    rows, columns = torch.randint(0, 2 * PAD + 1, (2, n), generator=generator).to(device)
    flips = torch.rand(n, generator=generator) < 0.5
    return Plan(order, (rows, columns, flips.to(device)))


def augment(images: Tensor, rows: Tensor, columns: Tensor, flips: Tensor) -> Tensor:
    """Pad (B, H, W, C) with black, crop each image to (H, W) at its own row and column (0 to 2
    PAD), then mirror it: torchvision's RandomCrop(padding=PAD) and RandomHorizontalFlip, for the
    whole batch at once."""
    _, height, width, _ = images.shape
    # (B, 9, 9, C, H, W), a view
    crops = F.pad(images, (0, 0, PAD, PAD, PAD, PAD)).unfold(1, height, 1).unfold(2, width, 1)
    which = torch.arange(len(images), device=images.device)
    cropped = crops[which, rows, columns].permute(0, 2, 3, 1)
    return torch.where(flips[:, None, None, None], cropped.flip(2), cropped).contiguous()


def normalize(images: Tensor, mean: Tensor | tuple, std: Tensor | tuple) -> Tensor:
    """uint8 (B, H, W, C) to (pixel / 255 - mean) / std as (B, C, H, W), channels last in memory."""
    mean = torch.as_tensor(mean, device=images.device)
    std = torch.as_tensor(std, device=images.device)
    return images.float().div_(255).sub_(mean).div_(std).permute(0, 3, 1, 2)


def batches(
    images: Tensor, labels: Tensor, plan: Plan | None, batch_size: int, mean: Floats, std: Floats
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images (B, C, H, W) and labels (B,) of one epoch; the last batch may be smaller.
    Without a plan all are in their own order. All stays on the device of ``images``, and Python
    never waits for it."""
    statistics = [torch.tensor(values, device=images.device) for values in (mean, std)]
    for first in range(0, len(labels), batch_size):
        part = slice(first, first + batch_size)
        which = part if plan is None else plan.order[part]
        x = images[which]
        if plan and plan.crops:
            x = augment(x, *(each[part] for each in plan.crops))
        yield normalize(x, *statistics), labels[which]


def data_folder() -> Path:
    """Where CIFAR-10 is and downloads go: $ATTNCONV_DATA, or else ``data``, in the repository."""
    return REPOSITORY / Path(os.environ.get("ATTNCONV_DATA") or "data").expanduser()


def find_data(source: str | Path = "embedded") -> Path | None:
    """Where ``embedded``, ``cifar10`` or the data set at a path lies. Nothing is read or
    downloaded: None where CIFAR-10 is not on this machine.
    """
    if source == "embedded":
        return SAMPLE
    if source == "cifar10":
        return next(filter(Path.exists, [data_folder() / BATCHES, data_folder() / "cifar10"]), None)
    return Path(os.path.abspath(os.path.expanduser(source)))


def load_data(source: str | Path = "embedded") -> Dataset:
    """The data set ``embedded``, ``cifar10``, or what lies at a path (see `FORMS`). CIFAR-10 is
    downloaded where it is missing.

    A copy of CIFAR-10 in any form is known as ``cifar10``: by its images' size and the names of its
    classes. Parquet files may lack these names; then 0 to 9 are taken for them in a folder that is
    called ``cifar10``, and nowhere else.

    Raises `DataError` that names file, row and remedy; `MissingData` where the download fails."""
    path = find_data(source) or _download()
    if not path.exists():
        raise DataError(f"There is no data set at {path}. {FORMS}.")
    with reading(path, DataError):
        form, names, *arrays = _read(path)
    classes = tuple(map(str, names))
    if len(classes) < 2:
        raise DataError(f"{path} has one class, {classes[0]}. Training needs two or more.")
    if path.name == "cifar10" and classes == tuple("0123456789"):
        classes = CIFAR10_CLASSES
    tensors = {}
    for name, values in zip(ARRAYS, arrays, strict=True):
        tensor = torch.as_tensor(values)
        if name.endswith("labels"):
            tensors[name] = tensor.long()
        else:  # grey ones may lack their channel
            tensors[name] = tensor.reshape(*tensor.shape[:3], -1).contiguous()
    images = tensors["train_images"]
    name = path.name.removesuffix(".npz")
    # Others have its classes, too, but it has 5,000 images of each.
    few = tensors["train_labels"].bincount().max() <= 5000
    if few and classes == CIFAR10_CLASSES and images.shape[1:] == (32, 32, 3):
        name = "cifar10"
    elif name in STATISTICS and path != SAMPLE:
        raise DataError(f"{path} is not CIFAR-10 or the sample. Rename it, and give its path.")
    mean, std = STATISTICS.get(name) or _statistics(images.numpy())
    return Dataset(name, form, classes, mean=mean, std=std, **tensors)


def _statistics(images: np.ndarray) -> tuple[Floats, Floats]:
    """Mean and standard deviation per channel, pixels in [0, 1]; 1 where all pixels are the
    same.
    """
    channels = np.moveaxis(images, -1, 0)
    mean = tuple(float(values.mean()) / 255 for values in channels)
    return mean, tuple(float(values.std()) / 255 or 1.0 for values in channels)


def _download() -> Path:
    """Let torchvision fetch CIFAR-10 into `data_folder`, or unpack the archive there. It checks
    sums.
    """
    from torchvision.datasets import CIFAR10

    root = data_folder()
    try:
        CIFAR10(root, download=True)
    except Exception as error:  # of the network, the disk or the archive
        raise MissingData(
            f"cifar10 cannot be brought to {root} ({error}). Bring {CIFAR10.url} there, or use "
            "'embedded', which needs no download."
        ) from error
    return root / BATCHES


def _read(path: Path) -> tuple[Any, ...]:
    """The form of a data set, the names of its classes, and its `ARRAYS`."""
    if path.suffix == ".npz":  # the embedded sample, or the images of a record
        with np.load(path) as file:
            form = str(file.get("form", "embedded sample"))
            return form, file["classes"], *(file[name] for name in ARRAYS)
    if path.name != BATCHES:
        return _decoded(path)
    from torchvision.datasets import CIFAR10

    # Unpickled if all checksums are right.
    train = CIFAR10(path.parent)
    test = CIFAR10(path.parent, train=False)
    return BATCHES, CIFAR10_CLASSES, train.data, train.targets, test.data, test.targets


# An image's file and row there, the encoded image, its class: what classes are sorted by, its name.
Row = tuple[str, bytes, tuple]


def _decoded(path: Path) -> tuple[Any, ...]:
    """What `_read` gives, of Parquet files or, where there are none, of image folders. Images must
    be of one size, and all grey or all in colour.
    """
    parquet = any(path.glob("train*.parquet"))
    form = "Parquet" if parquet else "image folders"
    images = defaultdict(list)
    labels = defaultdict(list)
    for split in SPLITS:
        rows = _parquet_rows(path, split) if parquet else _folder_rows(path / split)
        for place, content, label in rows:
            with reading(place, DataError):
                image = pixels(io.BytesIO(content))
            images[split].append(image)
            labels[split].append(label)
            first = images["train"][0].shape
            if image.shape != first:
                raise DataError(f"{place} is {image.shape}, others are {first}. Make all alike.")
        if not images[split]:
            raise DataError(f"There are no {split} images in {path}. {FORMS}.")
    classes = sorted({*labels["train"]})
    if len(classes) > len({label[0] for label in classes}):
        raise DataError(f"{path}: its files number the classes differently: {classes}.")
    differing = sorted({*classes} ^ {*labels["test"]})
    if differing:
        raise DataError(
            f"{path}: not in both splits are the classes {[label[-1] for label in differing]}."
        )
    if content.startswith(b"\xff\xd8"):  # the last one, as the others are
        form += ", JPEG images"
    arrays: list[Any] = []
    for split in SPLITS:
        arrays += [np.stack(images[split]), [classes.index(label) for label in labels[split]]]
    return form, [label[-1] for label in classes], *arrays


def _folder_rows(folder: Path) -> Iterator[Row]:
    """All files below the folder of each class, at any depth, but for what begins with a dot."""
    for name in sorted(glob("*/**", root_dir=folder, recursive=True)):
        file = folder / name
        if not file.is_dir():
            # macOS decomposes names.
            label = (unicodedata.normalize("NFC", Path(name).parts[0]),)
            yield str(file), file.read_bytes(), label
        elif not glob("*", root_dir=file):
            raise DataError(f"{file} has no images. {DataError.remedy}")


def _parquet_rows(path: Path, split: str) -> Iterator[Row]:
    """The rows of a split's Parquet files. Labels are whole numbers from 0 on, which the Hub's
    metadata may name, or words.
    """
    from pyarrow.parquet import ParquetFile

    files = sorted(path.glob(f"{split}*.parquet"))
    for file in files:
        _, of, rest = file.stem.partition("-of-")  # as the Hub names its shards
        if of and int(rest.partition("-")[0]) != len(files):  # a hash may follow
            raise DataError(f"{file}: there are {len(files)} such files. Copy the others, too.")
        with reading(file, DataError):
            table = ParquetFile(file).read()
            image, label = _columns(file, table.schema)
            about = json.loads((table.schema.metadata or {}).get(b"huggingface", "{}"))
            names = about.get("info", {}).get("features", {}).get(label, {}).get("names")
        for number, row in enumerate(table.to_pylist()):
            content, value = row[image], row[label]
            if isinstance(content, dict):  # the Hub's form
                content = content["bytes"]
            # -1 is the Hub's mark of an image without a label
            known = value in range(len(names)) if names else value is not None and value != -1
            if not known:
                raise DataError(f"{file}, row {number}: the label {value} names no class.")
            yield f"{file}, row {number}", content, (value, names[value]) if names else (value,)


def _columns(file: Path, schema: Any) -> tuple[str, str]:
    """The columns of images and of labels in a Parquet file, by their types. Where more than one
    may hold labels, it is that called label or labels.
    """
    kinds = {column.name: str(column.type) for column in schema}
    images = [name for name, kind in kinds.items() if "binary" in kind]
    words = [name for name, kind in kinds.items() if kind.startswith(LABELS)]
    labels = [name for name in kinds if name in ("label", "labels")] or words
    if len(images) != 1 or len(labels) != 1 or labels[0] not in words:
        raise DataError(
            f"{file} has the columns {kinds}. Needed are one of images (binary), one of labels "
            "(whole numbers or words), or called label."
        )
    return images[0], labels[0]


def pixels(image: str | Path | io.BytesIO | Image.Image) -> np.ndarray:
    """An image file, or an image of Pillow's, as viewers show it: uint8 (H, W, 1) of grey ones,
    (H, W, 3) of all others.

    It is turned as its EXIF orientation says, and laid on white where it is transparent; of several
    frames it is the first, of colours with 16 bits the upper 8. Raises ValueError where it is none
    of `FORMATS`, and where grey ones have more than 8 bits."""
    if not isinstance(image, Image.Image):
        try:
            image = Image.open(image, formats=FORMATS)
        except UnidentifiedImageError:
            raise ValueError(f"it is no image of the formats {', '.join(FORMATS)}") from None
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        raise ValueError(f"its pixels are of mode {image.mode}: save it with 8 bits a channel")
    channels = "L" if image.mode in ("1", "L", "LA") else "RGB"
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return np.atleast_3d(np.asarray(image.convert(channels)))
