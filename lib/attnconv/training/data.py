"""Images: CIFAR-10 in any of its usual forms, Fashion-MNIST, the embedded sample; and batches made on the device.

A data set is read once into four tensors, moved whole to the device, and stays uint8. What happens per batch
(shuffling, pad-and-crop, flips, normalisation) is a few tensor operations there: no worker processes, no Python per
image, no wait for the GPU. How each form is recognised and read is in `attnconv.training.forms`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from attnconv.training import forms
from attnconv.training.forms import ARRAYS, CIFAR10_CLASSES, SPLITS, DataError, Source, content_of, reading_data

REPOSITORY_DATA = Path(__file__).resolve().parents[3] / "data"
FASHION_MNIST_CLASSES = tuple("T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot".split(","))
# What `content_key` gives for the published idx files and for the embedded sample.
FASHION_MNIST_KEY = "92a2f8c9d7f6975fcb68208016759210b9be46eca0aaa8511930a5aa944b63b3"
SAMPLE_KEY = "fa086e380daed098d0cf73df9491c262ba86da6dffb89c77ea244fda824b92e4"
# Mean and standard deviation per channel, pixels in [0, 1]: the original code's for CIFAR-10, else the usual ones.
STATISTICS = {"cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))}
STATISTICS |= dict.fromkeys(("fashion-mnist", "fashion-mnist-sample"), ((0.2860,), (0.3530,)))

PAD = 4  # pixels of black around an image before it is cropped to its size again


class MissingData(DataError):
    """A data set that was asked for by name is in none of its usual places."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of two splits, exactly as published and in that order."""

    name: str  # cifar10, fashion-mnist, fashion-mnist-sample, or the folder's name
    form: str  # what it was read from, for people: "Parquet, JPEG images", "idx files", ...
    key: str  # hex sha256 that names the content; a subset has its own
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

    def about(self) -> dict:
        """What a run's config.json says of its data."""
        about = dict(name=self.name, form=self.form, key=self.key, classes=list(self.classes))
        about |= dict(train_images=len(self.train_labels), test_images=len(self.test_labels))
        return about | dict(mean=list(self.mean), std=list(self.std))

    def to(self, device: torch.device | str) -> Dataset:
        """The same data on that device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ARRAYS})

    def first(self, train: int | None, test: int | None) -> Dataset:
        """This many images of each split: the first ones of each class, equally many of each where that is possible.

        Their order is kept. None, or a number larger than the split, keeps the whole split.
        """
        train = None if train is None or train >= len(self.train_labels) else train
        test = None if test is None or test >= len(self.test_labels) else test
        if train is None and test is None:
            return self
        kept = {"train": balanced(self.train_labels, train), "test": balanced(self.test_labels, test)}
        arrays = {name: getattr(self, name)[kept[name.split("_")[0]]] for name in ARRAYS}
        return replace(self, key=_digest(self.key, "first", train, test).hex(), **arrays)

    def hold_out(self, n: int, seed: int) -> tuple[Dataset, Tensor, Tensor]:
        """The data without n training images, and those n for validation: images (n, H, W, C) and labels (n,).

        The seed draws them, equally many of each class where that is possible. The test split is untouched.
        """
        self.check_hold_out(n)
        images, labels = self.train_images, self.train_labels
        shuffled = torch.randperm(len(labels), generator=_generator("hold out", seed)).to(labels.device)
        held = shuffled[balanced(labels[shuffled], n)].sort().values
        keep = torch.ones_like(labels, dtype=torch.bool)
        keep[held] = False
        key = _digest(self.key, "hold out", n, seed).hex() if n else self.key
        return replace(self, key=key, train_images=images[keep], train_labels=labels[keep]), images[held], labels[held]

    def check_hold_out(self, n: int) -> None:
        """Refuse, with `DataError`, more validation images than `hold_out` can take."""
        total = len(self.train_labels)
        if not 0 <= n < total:
            raise DataError(f"{n} validation images cannot be held out of {total}: choose 0 to {total - 1}.")


def balanced(labels: Tensor, n: int | None) -> Tensor:
    """Sorted indices of n labels: the first of every class, then the second of every class, and so on."""
    counts = torch.bincount(labels)
    by_class = labels.argsort(stable=True)
    rank = torch.empty_like(labels)  # how many of the same class come before
    rank[by_class] = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[by_class]]
    return (rank * len(counts) + labels).argsort()[:n].sort().values


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _generator(*parts: object) -> torch.Generator:
    """A CPU generator that depends on these values only. They are hashed, because torch keeps 32 bits of a seed."""
    return torch.Generator().manual_seed(int.from_bytes(_digest(*parts)[:4], "little"))


# Batches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plan:
    """The order of one epoch's n images, and the crop and flip of each: position i is image ``order[i]``.

    ``rows``, ``columns`` and ``flips`` are None without augmentation.
    """

    order: Tensor  # int64 (n,), a permutation
    rows: Tensor | None = None  # int64 (n,): where the crop starts in the padded image, 0 to 8; 4 is the middle
    columns: Tensor | None = None
    flips: Tensor | None = None  # bool (n,): mirrored left-right


def epoch_plan(n: int, *, seed: int, epoch: int, augment: bool, device: torch.device | str = "cpu") -> Plan:
    """The plan of one epoch for n images: a function of its arguments only, so that a resumed run repeats it exactly.

    Drawn on the CPU, so the same on every device; no global generator is touched.
    """
    generator = _generator("epoch", seed, epoch)
    order = torch.randperm(n, generator=generator)
    if not augment:
        return Plan(order.to(device))
    rows, columns = torch.randint(0, 2 * PAD + 1, (2, n), generator=generator)
    flips = torch.rand(n, generator=generator) < 0.5
    return Plan(order.to(device), rows.to(device), columns.to(device), flips.to(device))


def augment(images: Tensor, rows: Tensor, columns: Tensor, flips: Tensor) -> Tensor:
    """Pad (B, H, W, C) with black, crop each image to (H, W) at its own row and column (0 to 2 PAD), then mirror it.

    The same as torchvision's RandomCrop(padding=PAD) and RandomHorizontalFlip, in one gather for the whole batch.
    """
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
    mean, std = (torch.as_tensor(values, dtype=torch.float32, device=images.device) for values in (mean, std))
    return images.float().div_(255).sub_(mean).div_(std).permute(0, 3, 1, 2)


def batches(
    images: Tensor, labels: Tensor, plan: Plan | None, batch_size: int, mean: tuple, std: tuple, start: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images (B, C, H, W) and labels (B,) of one epoch, from step ``start`` on; the last may be smaller.

    Without a plan: all images in their own order, as for evaluation. Everything stays on the device of ``images``,
    and Python never waits for it.
    """
    mean, std = (torch.tensor(values, device=images.device) for values in (mean, std))
    for first in range(start * batch_size, len(labels), batch_size):
        part = slice(first, first + batch_size)
        if plan is None:
            x, y = images[part], labels[part]
        else:
            x, y = images[plan.order[part]], labels[plan.order[part]]
            if plan.flips is not None:
                x = augment(x, plan.rows[part], plan.columns[part], plan.flips[part])
        yield normalize(x, mean, std), y


# Finding and reading -------------------------------------------------------------------------------------------


def find_data(source: str | Path = "embedded") -> Source:
    """Find ``embedded``, ``cifar10``, ``fashion-mnist`` or what lies at a path; nothing is decoded or downloaded.

    Raises `MissingData` when a named set is not here, `DataError` for a path that does not exist or is not recognised.
    """
    root = _data_folder()
    also = sorted({*root.glob("cifar10*")} - {*root.glob("cifar100*")})
    named = {
        "embedded": [folder / "fashion-mnist-sample" for folder in (root, REPOSITORY_DATA)],
        "cifar10": [root / forms.BATCHES, root / forms.ARCHIVE, *also],
        "fashion-mnist": [root / "FashionMNIST", root / "fashion-mnist", Path("/usr/share/datasets/fashion-mnist")],
    }
    places = named.get(str(source), [Path(os.path.expanduser(source)).absolute()])
    with reading_data(source):
        for path in filter(Path.exists, places):
            found = forms.recognise(path)
            if source == "embedded":
                return replace(found, form=forms.EMBEDDED)
            return replace(found, name=source) if source in named else found
    tried = ", ".join(map(str, places))
    if source in named:
        remedy = " In a clone, 'git checkout data' restores it." if source == "embedded" else ""
        raise MissingData(f"{source} is not on this machine: looked for {tried}.{remedy}")
    raise DataError(f"There is no file or folder {tried!r}. Name one that exists, or one of {', '.join(named)}.")


def _data_folder() -> Path:
    """Where downloads and caches go: $ATTNCONV_DATA, or else the repository's ``data``."""
    return Path(os.path.expanduser(os.environ.get("ATTNCONV_DATA") or REPOSITORY_DATA)).absolute()


def may_be_cifar10(path: str) -> bool:
    """Whether CIFAR-10 lies at a path, as far as can be told before its images are read."""
    from pyarrow import BufferReader
    from pyarrow.parquet import read_metadata

    with contextlib.suppress(DataError), reading_data(path):
        source = find_data(path)
        if source.form != forms.PARQUET:
            return source.form in (forms.BATCHES, forms.ARCHIVE) or source.name == "cifar10"
        # Such files do not say what they are, but how many images they hold.
        splits = [[read_metadata(BufferReader(content_of(file))) for file in getattr(source, s)] for s in SPLITS]
        return tuple(sum(part.num_rows for part in split) for split in splits) == forms.CIFAR10_IMAGES
    return False


def content_key(source: Source) -> str:
    """Hex sha256 of the source's content: form, splits, classes of image folders, and every byte of every file."""
    digest = hashlib.sha256(source.form.encode())
    for split in SPLITS:
        for file in getattr(source, split):
            content = content_of(file)
            where = f"{split} {file.parent.name}" if source.form == forms.FOLDERS else split
            digest.update(f"\0{where}\0{len(content)}\0".encode(errors="surrogateescape"))
            digest.update(content)
    if source.form == forms.EMBEDDED and digest.hexdigest() != SAMPLE_KEY:
        raise DataError(f"{source.path}: checksum mismatch, the file is damaged. Restore it with 'git checkout data'.")
    return digest.hexdigest()


def _download(name: str, missing: MissingData) -> None:
    """Let torchvision fetch and verify a data set; only a complete one is moved to where it is looked for."""
    from torchvision.datasets import CIFAR10, FashionMNIST

    kind, folder = (CIFAR10, forms.BATCHES) if name == "cifar10" else (FashionMNIST, "FashionMNIST")
    root, patience = _data_folder(), socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)  # seconds without a byte; torchvision would wait for ever
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as temporary:
            kind(temporary, download=True)
            if not (root / folder).exists():  # else another process was faster
                os.rename(Path(temporary, folder), root / folder)
    except Exception as error:
        remedy = f"Bring its published files to {root / folder} yourself, or use 'embedded', which needs no download."
        raise MissingData(f"{missing} The download failed ({type(error).__name__}: {error}). {remedy}") from error
    finally:
        socket.setdefaulttimeout(patience)


def load_data(source: str | Path = "embedded", *, progress: bool = True) -> Dataset:
    """The data set ``embedded``, ``cifar10``, ``fashion-mnist``, or whatever a path holds (see `forms.FORMS`).

    The two full sets are downloaded when they are not found. Encoded images are decoded once; the pixels are cached
    in the folder for data, under the key of the source's content. ``progress=False``, or ATTNCONV_QUIET=1, shows no
    bar. Raises `DataError` naming file, row and remedy.
    """
    progress = progress and os.environ.get("ATTNCONV_QUIET") != "1"
    try:
        found = find_data(source)
    except MissingData as missing:
        if source == "embedded":
            raise
        _download(str(source), missing)
        found = find_data(source)
    key = content_key(found)
    with reading_data(found.path):
        content = forms.read(found, _data_folder() / "cache" / f"{key}.npz", progress)

    images, name = content["train_images"], found.name
    if content["classes"] == CIFAR10_CLASSES and images.shape[1:] == (32, 32, 3):
        name = "cifar10"
    elif key == FASHION_MNIST_KEY:
        name, content["classes"] = "fashion-mnist", FASHION_MNIST_CLASSES
    elif name in ("cifar10", "fashion-mnist"):
        what = f"images {tuple(images.shape)}, classes {', '.join(content['classes'][:10])}"
        raise DataError(f"{found.path} is not {name} as published: {what}. Rename it, and give its path as the source.")
    if beside := sorted(path.name for path in found.path.glob("val*")):
        warnings.warn(f"{found.path}: {', '.join(beside)} is not read, only train and test are.", stacklevel=2)
    for split in SPLITS:
        if absent := set(range(len(content["classes"]))) - set(content[f"{split}_labels"].tolist()):
            names = ", ".join(content["classes"][i] for i in sorted(absent)[:10])
            warnings.warn(f"{found.path}: {len(absent)} classes have no {split} images: {names}.", stacklevel=2)
    channels = [images[..., c].numpy() for c in range(images.shape[3])]
    measured = tuple(c.mean().item() / 255 for c in channels), tuple(c.std().item() / 255 or 1.0 for c in channels)
    mean, std = STATISTICS.get(name, measured)
    return Dataset(name=name, key=key, mean=mean, std=std, **content)
