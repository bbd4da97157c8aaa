"""Images: CIFAR-10 in any of its usual forms, Fashion-MNIST, the embedded sample; and batches made on the device.

A data set is read once into four tensors, moved whole to the device, and stays uint8. What happens per batch
(shuffling, pad-and-crop, flips, normalisation) are a few tensor operations on that device: no worker processes, no
Python per image, no wait for the GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import pickle
import shutil
import socket
import tarfile
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm

from attnconv import sources
from attnconv.runs import writing
from attnconv.sources import CIFAR10_CLASSES, FASHION_MNIST_CLASSES, DataError, MissingData, Source

__all__ = ["DataError", "Dataset", "Plan", "augment", "batches", "epoch_plan", "load_data", "normalize"]

PAD = 4
"""Pixels of black around an image before it is cropped to its size again."""

STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "fashion-mnist-sample": ((0.2860,), (0.3530,)),
}
"""Mean and standard deviation per channel, pixels in [0, 1]: the original code's for CIFAR-10, the usual ones else."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels of two splits, exactly as published and in that order."""

    name: str
    """``cifar10``, ``fashion-mnist``, ``fashion-mnist-sample``, or the folder's name."""
    form: str
    """What it was read from, for people: "Parquet, JPEG images", "idx files", ..."""
    key: str
    """Hex sha256 that names the content; a subset has its own."""
    classes: tuple[str, ...]
    train_images: Tensor = field(repr=False)
    """uint8 (N, H, W, C)"""
    train_labels: Tensor = field(repr=False)
    """int64 (N,)"""
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    mean: tuple[float, ...]
    """Per channel, pixels in [0, 1]."""
    std: tuple[float, ...]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width, in pixels."""
        return self.train_images.shape[1], self.train_images.shape[2]

    @property
    def image_channels(self) -> int:
        return self.train_images.shape[3]

    def to(self, device: torch.device | str) -> Dataset:
        """The same data on that device."""
        names = ("train_images", "train_labels", "test_images", "test_labels")
        return dataclasses.replace(self, **{name: getattr(self, name).to(device) for name in names})

    def first(self, train: int | None, test: int | None) -> Dataset:
        """The first images of each class, that many in all and as equally many of each class as there are.

        Published order is kept. None, or more than there is, keeps the whole split.
        """
        if (train is not None and train < 1) or (test is not None and test < 1):
            raise DataError(f"first(train={train}, test={test}) must keep at least 1 image of each split.")
        train = None if train is None or train >= len(self.train_labels) else train
        test = None if test is None or test >= len(self.test_labels) else test
        if train is None and test is None:
            return self
        kept, kept_test = _balanced(self.train_labels, train), _balanced(self.test_labels, test)
        return dataclasses.replace(
            self,
            key=_subset_key(self.key, "first", train, test),
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            test_images=self.test_images[kept_test],
            test_labels=self.test_labels[kept_test],
        )

    def hold_out(self, n: int, seed: int) -> tuple[Dataset, Tensor, Tensor]:
        """The data without n of its training images, and these: images (n, H, W, C) and labels (n,), for validation.

        They are drawn with the seed, equally many of each class where that is possible. The test split is untouched.
        """
        self.check_hold_out(n)
        total = len(self.train_labels)
        shuffled = torch.randperm(total, generator=_generator("hold out", seed)).to(self.train_labels.device)
        held = shuffled[_balanced(self.train_labels[shuffled], n)].sort().values
        keep = torch.ones_like(self.train_labels, dtype=torch.bool)
        keep[held] = False
        rest = dataclasses.replace(
            self,
            key=_subset_key(self.key, "hold out", n, seed) if n else self.key,
            train_images=self.train_images[keep],
            train_labels=self.train_labels[keep],
        )
        return rest, self.train_images[held], self.train_labels[held]

    def check_hold_out(self, n: int) -> None:
        """Refuse, with `DataError`, more validation images than `hold_out` can take."""
        total = len(self.train_labels)
        if not 0 <= n < total:
            raise DataError(
                f"{n} validation images cannot be held out of {total} training images: choose 0 to {total - 1}."
            )


def _balanced(labels: Tensor, n: int | None) -> Tensor:
    """Sorted indices of n labels: the first of every class, then the second of every class, and so on."""
    counts = torch.bincount(labels)
    by_class = labels.argsort(stable=True)
    rank = torch.empty_like(labels)  # how many of the same class come before
    rank[by_class] = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[by_class]]
    return (rank * len(counts) + labels).argsort()[:n].sort().values


def _subset_key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def save_strip(data: Dataset, path: Path, train: int = 20, test: int = 100) -> None:
    """Keep a data set's first images of each split, with its name and statistics (see `load_strip`)."""
    about = dict(name=data.name, form=f"the first {test} test images, {data.form}", mean=data.mean, std=data.std)
    arrays = {name: getattr(data, name).cpu().numpy() for name in vars(data) if name.endswith(("_images", "_labels"))}
    arrays = {name: values[: train if name.startswith("train") else test] for name, values in arrays.items()}
    with writing(path) as temporary:
        np.savez_compressed(temporary, classes=np.array(data.classes), about=json.dumps(about), **arrays)


def load_strip(path: Path) -> Dataset:
    """The data set that `save_strip` kept a part of, as far as it goes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")))
        classes = tuple(map(str, arrays.pop("classes")))
        about |= {name: tuple(about[name]) for name in ("mean", "std")}
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return Dataset(key=hashlib.sha256(path.read_bytes()).hexdigest(), classes=classes, **about, **tensors)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}). Restore it with 'git checkout {path.parent}'.") from error


def _generator(*parts: object) -> torch.Generator:
    """A CPU generator that depends on these values only. Hashed: torch would keep 32 bits of a plain sum."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


# Loading ---------------------------------------------------------------------------------------------------------


def load_data(source: str | Path = "embedded", *, root: str | Path | None = None, progress: bool = True) -> Dataset:
    """The data set ``embedded``, ``cifar10``, ``fashion-mnist``, or whatever a path holds (`sources.FORMS`).

    The two full sets are downloaded when they are not found. Encoded images are decoded once; the pixels are cached
    in ``root/cache`` under the key of the source's content. ``root`` is $ATTNCONV_DATA, or else the repository's
    ``data``. ``progress=False``, or ATTNCONV_QUIET=1, shows no bar.

    Raises `DataError` naming file, row and remedy; nothing is left behind then.
    """
    root = sources.data_root(root)
    try:
        found = sources.find_data(source, root)
    except MissingData as missing:
        if source == "embedded":
            raise
        _download(str(source), root, missing)
        found = sources.find_data(source, root)

    key = sources.content_key(found)
    cache = root / "cache" / f"{key}.v2.safetensors" if found.form in _ENCODED else None
    content = _read_cache(cache) if cache else None
    if content is None:
        hidden = not progress or os.environ.get("ATTNCONV_QUIET") == "1" or not cache
        with tqdm(desc=f"Reading {found.name}", unit=" images", disable=hidden, leave=False) as bar:
            content = _READERS[found.form](found, bar)
        _check(content, found.path)
        if cache:
            _write_cache(cache, content)

    train, test, classes = content.train, content.test, content.classes
    name = found.name
    if name == "cifar10" or (classes == CIFAR10_CLASSES and train.images.shape[1:] == (32, 32, 3)):
        if classes != CIFAR10_CLASSES or train.images.shape[1:] != (32, 32, 3):
            raise DataError(
                f"{found.path} is not CIFAR-10: {len(train.labels)} and {len(test.labels)} images "
                f"{_shape(train.images)}, classes {', '.join(classes[:10])}. Move it, or give its path as the source."
            )
        name = "cifar10"
    mean, std = STATISTICS.get(name) or _statistics(train.images)
    return Dataset(
        name=name,
        form=found.form + ", JPEG images" * content.jpeg,
        key=key,
        classes=classes,
        train_images=torch.from_numpy(train.images),
        train_labels=torch.from_numpy(train.labels),
        test_images=torch.from_numpy(test.images),
        test_labels=torch.from_numpy(test.labels),
        mean=mean,
        std=std,
    )


@dataclass
class _Split:
    images: np.ndarray  # uint8 (N, H, W, C)
    labels: np.ndarray  # int64 (N,)
    place: Callable[[int], str]  # names the file and row of an image, for errors


@dataclass
class _Content:
    train: _Split
    test: _Split
    classes: tuple[str, ...] = ()  # empty: not known, `_check` fills it in
    jpeg: bool = False  # decoded from JPEG: not the published pixels


def _check(content: _Content, path: Path) -> None:
    """Refuse splits that don't fit each other or their classes; make labels int64 and images (N, H, W, C)."""
    for split in (content.train, content.test):
        images, labels = split.images, split.labels
        fits = images.dtype == np.uint8 and images.ndim in (3, 4) and images.shape[3:] in ((), (1,), (3,))
        if not fits or 0 in images.shape[1:]:
            raise DataError(
                f"{split.place(0)}: images are {images.dtype} {images.shape}; they must be uint8 (N, H, W), "
                "(N, H, W, 1) or (N, H, W, 3), H and W at least 1."
            )
        if labels.dtype.kind not in "iu" or labels.ndim != 1:
            raise DataError(f"{split.place(0)}: labels are {labels.dtype} {labels.shape}; they must be integers (N,).")
        if len(images) != len(labels):
            raise DataError(
                f"{split.place(0)}: {len(images)} images, but {len(labels)} labels. Copy both files of the split again."
            )
        if not len(images):
            raise DataError(f"{split.place(0)}: this split is empty. Add its images.")
        split.images = images if images.ndim == 4 else images[..., None]
    if content.train.images.shape[1:] != content.test.images.shape[1:]:
        raise DataError(
            f"{content.test.place(0)}: test images are {_shape(content.test.images)}, training images "
            f"{_shape(content.train.images)}. Bring both to one size and number of channels."
        )
    if not content.classes:
        present = np.unique(content.train.labels)
        present = present[present >= 0]
        gapless = int(np.argmax(np.append(present, -1) != np.arange(len(present) + 1)))  # labels 0, 1, ... in use
        counts = len(content.train.labels), len(content.test.labels)
        cifar10 = counts == sources.CIFAR10_IMAGES and content.train.images.shape[1:] == (32, 32, 3) and gapless == 10
        content.classes = CIFAR10_CLASSES if cifar10 else tuple(map(str, range(max(gapless, 1))))
    for split in (content.train, content.test):
        wrong = np.flatnonzero((split.labels < 0) | (split.labels >= len(content.classes)))
        if len(wrong):
            raise DataError(
                f"{split.place(wrong[0])}: label {split.labels[wrong[0]]} is out of range, the "
                f"{len(content.classes)} classes are 0 to {len(content.classes) - 1}. Correct or remove that row."
            )
        split.labels = split.labels.astype(np.int64)
    if len(content.classes) < 2:
        raise DataError(
            f"{path} has one class only, {content.classes[0]!r}: there is nothing to tell apart. Add another's images."
        )


def _shape(images: np.ndarray) -> str:
    return "x".join(map(str, images.shape[1:]))


def _statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, pixels in [0, 1]; a constant channel gets the deviation 1."""
    values, mean, std = np.arange(256) / 255, [], []
    for channel in range(images.shape[3]):
        share = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        mean.append(float(share @ values))
        std.append(math.sqrt(share @ (values - mean[-1]) ** 2) or 1.0)
    return tuple(mean), tuple(std)


# Reading each form -----------------------------------------------------------------------------------------------


def _read_npz(source: Source, bar: tqdm) -> _Content:
    path = source.path
    content = sources.read_sample(path) if source.form == sources.EMBEDDED else sources.read_file(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, zlib.error, AttributeError) as error:
        raise DataError(f"{path} is no readable npz file, it may be truncated ({error}). Copy it again.") from error
    missing = {"train_images", "train_labels", "test_images", "test_labels"} - set(arrays)
    if missing:
        raise DataError(f"{path} has no arrays {', '.join(sorted(missing))}; it has {', '.join(arrays) or 'none'}.")
    train, test = (
        _Split(arrays[f"{s}_images"], arrays[f"{s}_labels"], lambda i, s=s: f"{path}, {s} split, row {i}")
        for s in ("train", "test")
    )
    return _Content(train, test, tuple(map(str, arrays.get("classes", ()))))


def _read_idx(source: Source, bar: tqdm) -> _Content:
    splits = []
    for images, labels in (source.train, source.test):
        arrays = [_idx_array(images, 3, source), _idx_array(labels, 1, source)]
        splits.append(_Split(*arrays, lambda i, images=images: f"{images}, row {i}"))
    return _Content(*splits, FASHION_MNIST_CLASSES if source.name == "fashion-mnist" else ())


def _idx_array(file: Path, axes: int, source: Source) -> np.ndarray:
    """An idx file of unsigned bytes: two zeros, 8, the number of axes, their big-endian lengths, then the values."""
    content = sources.read_file(file)
    published = sources.FASHION_MNIST_SHA256[file.name.removesuffix(".gz")]
    shape = np.frombuffer(content[4 : 4 + 4 * axes].ljust(4 * axes, b"\0"), ">u4").astype(int)
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) != 4 + 4 * axes + math.prod(shape.tolist()):
        raise DataError(
            f"{file} is damaged or truncated: its {len(content)} bytes are no idx file of {axes} axes (header says "
            f"{'x'.join(map(str, shape))}). Copy it again."
        )
    if source.name == "fashion-mnist" and hashlib.sha256(content).hexdigest() != published:
        raise DataError(
            f"{file}: checksum mismatch, these are not Fashion-MNIST's published bytes. Delete the file and get it "
            "again (Debian's package dataset-fashion-mnist has it); another set can be used by giving its path."
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


def _read_batches(source: Source, bar: tqdm) -> _Content:
    return _batches_content(source, {file.name: sources.read_file(file) for file in (*source.train, *source.test)})


def _read_archive(source: Source, bar: tqdm) -> _Content:
    from torchvision.datasets import CIFAR10

    content = sources.read_file(source.path)
    _require_md5(source.path, content, CIFAR10.tgz_md5)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = {Path(m.name).name: archive.extractfile(m).read() for m in archive if m.isfile()}
    return _batches_content(source, files)


def _batches_content(source: Source, files: dict[str, bytes]) -> _Content:
    """CIFAR-10's own pickles. They are opened only after their published checksums were found right."""
    from torchvision.datasets import CIFAR10

    splits = []
    for published in (CIFAR10.train_list, CIFAR10.test_list):
        images, labels, rows = [], [], []
        for name, md5 in published:
            _require_md5(source.path / name, files[name], md5)
            batch = pickle.loads(files[name], encoding="latin1")
            images.append(batch["data"].reshape(-1, 3, 32, 32))
            labels += batch["labels"]
            rows += [f"{source.path / name}, row {row}" for row in range(len(batch["labels"]))]
        pixels = np.concatenate(images).transpose(0, 2, 3, 1)
        splits.append(_Split(np.ascontiguousarray(pixels), np.array(labels), rows.__getitem__))
    return _Content(*splits, CIFAR10_CLASSES)


def _require_md5(file: Path, content: bytes, md5: str) -> None:
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise DataError(
            f"{file}: checksum mismatch, its {len(content)} bytes are not the published ones (md5 {md5}); it may be "
            f"truncated. Delete {file} and copy or download it again."
        )


def _read_parquet(source: Source, bar: tqdm) -> _Content:
    files = (*source.train, *source.test)
    heads = {file: _parquet_head(file) for file in files}
    bar.reset(sum(rows for rows, *_ in heads.values()))
    splits, jpeg, shape = [], False, None
    for split in (source.train, source.test):
        rows = (row for file in split for row in _parquet_rows(file, *heads[file][1:3]))
        content, some_jpeg = _decode(rows, sum(heads[file][0] for file in split), split[0], shape, bar)
        splits.append(content)
        shape, jpeg = content.images.shape[1:], jpeg or some_jpeg
    return _Content(*splits, heads[files[0]][3], jpeg)


def _parquet_head(file: Path) -> tuple[int, str, str, tuple[str, ...]]:
    """Number of rows, the image and the label column, and the class names where the file has them."""
    from pyarrow import parquet, types

    with _readable_parquet(file), parquet.ParquetFile(file) as table:
        rows, schema = table.metadata.num_rows, table.schema_arrow

    def encoded(kind) -> bool:
        struct = types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        return struct or types.is_binary(kind) or types.is_large_binary(kind)

    images = [f.name for f in schema if f.name in ("img", "image") and encoded(f.type)]
    labels = [f.name for f in schema if f.name in ("label", "labels") and types.is_integer(f.type)]
    if not images or not labels:
        raise DataError(
            f"{file} has the columns {', '.join(f'{f.name} ({f.type})' for f in schema)}; needed are img or image "
            "(binary, or a struct with bytes) and label or labels (whole numbers). Name them so, as on the Hugging "
            "Face hub."
        )
    try:
        names = json.loads(schema.metadata[b"huggingface"])["info"]["features"][labels[0]]["names"]
    except (KeyError, TypeError, ValueError):
        names = ()
    return rows, images[0], labels[0], tuple(map(str, names))


def _parquet_rows(file: Path, image: str, label: str) -> Iterator[tuple[str, bytes, int]]:
    from pyarrow import parquet, types

    row = 0
    with _readable_parquet(file), parquet.ParquetFile(file, page_checksum_verification=True) as table:
        for batch in table.iter_batches(1000, columns=[image, label]):
            column = batch.column(image)
            column = column.field("bytes") if types.is_struct(column.type) else column
            for content, value in zip(column.to_pylist(), batch.column(label).to_pylist(), strict=True):
                if content is None or value is None:
                    what = "image bytes" if content is None else "label"
                    raise DataError(f"{file}, row {row}: there is no {what}. Remove that row, or copy the file again.")
                yield f"{file}, row {row}", content, value
                row += 1


@contextlib.contextmanager
def _readable_parquet(file: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} is no readable Parquet file, it may be truncated ({error}). Copy it again.") from error


def _read_folders(source: Source, bar: tqdm) -> _Content:
    classes = sorted({file.parent.name for file in source.train})
    for file in source.test:
        if file.parent.name not in classes:
            raise DataError(
                f"{file}: its class {file.parent.name!r} has no training images; there are {', '.join(classes[:10])}. "
                "Give both splits the same class folders."
            )
    bar.reset(len(source.train) + len(source.test))
    splits, jpeg, shape = [], False, None
    for split in (source.train, source.test):
        rows = ((str(file), sources.read_file(file), classes.index(file.parent.name)) for file in split)
        content, some_jpeg = _decode(rows, len(split), split[0], shape, bar)
        splits.append(content)
        shape, jpeg = content.images.shape[1:], jpeg or some_jpeg
    return _Content(*splits, tuple(classes), jpeg)


def _decode(
    rows: Iterable[tuple[str, bytes, int]], count: int, file: Path, shape: tuple[int, ...] | None, bar: tqdm
) -> tuple[_Split, bool]:
    """Decode (place, encoded image, label) rows of one split; also whether any image was a JPEG.

    Every image must have the shape (H, W, C), or that of the first one where ``shape`` is None.
    """
    images, labels, places, jpeg = None, np.empty(count, np.int64), [], False
    for i, (place, content, label) in enumerate(rows):
        pixels = _decode_image(place, content, shape)
        if images is None:
            shape, images = pixels.shape, np.empty((count, *pixels.shape), np.uint8)
        if not -(2**63) <= label < 2**63:  # of an unsigned column
            raise DataError(f"{place}: label {label} is out of range. Correct or remove that row.")
        images[i], labels[i] = pixels, label
        places.append(place)
        jpeg = jpeg or content[:2] == b"\xff\xd8"
        bar.update()
    if images is None:
        raise DataError(f"{file}: this split is empty. Add its images, or copy the file again.")
    return _Split(images, labels, places.__getitem__), jpeg


def _decode_image(place: str, content: bytes, shape: tuple[int, ...] | None) -> np.ndarray:
    """uint8 (H, W, C): gray or RGB. Palettes become RGB, an alpha channel is dropped."""
    from PIL import Image, UnidentifiedImageError

    modes = {"L": "L", "1": "L", "LA": "L", "RGB": "RGB", "P": "RGB", "PA": "RGB", "RGBA": "RGB"}
    try:
        with Image.open(io.BytesIO(content)) as image:
            if shape is not None and (image.height, image.width) != tuple(shape[:2]):
                raise DataError(
                    f"{place}: the image is {image.height}x{image.width} pixels, the first one of this data set is "
                    f"{shape[0]}x{shape[1]}. Bring all images to one size."
                )
            if image.mode not in modes:
                raise DataError(f"{place}: pixels of kind {image.mode}; convert the image to 8-bit RGB or gray.")
            pixels = np.asarray(image.convert(modes[image.mode]))
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise nearly anything on damaged bytes
        why = "not an image" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(f"{place}: the image cannot be decoded ({why}). Replace it, or copy the file again.") from error
    pixels = pixels if pixels.ndim == 3 else pixels[..., None]
    if shape is not None and pixels.shape != tuple(shape):
        raise DataError(
            f"{place}: the image has {pixels.shape[2]} channels, the first one of this data set has {shape[2]}. "
            "Make all images gray, or all RGB."
        )
    return pixels


_READERS: dict[str, Callable[[Source, tqdm], _Content]] = {
    sources.EMBEDDED: _read_npz,
    sources.NPZ: _read_npz,
    sources.IDX: _read_idx,
    sources.BATCHES: _read_batches,
    sources.ARCHIVE: _read_archive,
    sources.PARQUET: _read_parquet,
    sources.FOLDERS: _read_folders,
}
_ENCODED = (sources.PARQUET, sources.FOLDERS, sources.ARCHIVE)
"""Forms that take time to decode, so that their pixels are cached."""


# Cache -----------------------------------------------------------------------------------------------------------


def _checksum(tensors: dict[str, Tensor], *texts: str) -> str:
    crc = zlib.crc32(json.dumps(texts).encode())
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].numpy(), crc)
    return f"{crc:08x}"


def _read_cache(path: Path) -> _Content | None:
    """The cached content, or None where there is none that is whole."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            meta = file.metadata()
        if meta["crc32"] != _checksum(tensors, meta["classes"], meta["jpeg"]):
            raise ValueError("checksum mismatch")
        train, test = (
            _Split(tensors[f"{s}_images"].numpy(), tensors[f"{s}_labels"].numpy(), lambda i: f"{path}, row {i}")
            for s in ("train", "test")
        )
        return _Content(train, test, tuple(json.loads(meta["classes"])), json.loads(meta["jpeg"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        warnings.warn(f"{path} is damaged ({error}); it is made again.", stacklevel=3)
        return None


def _write_cache(path: Path, content: _Content) -> None:
    """Write next to the cache file, then rename: a process killed meanwhile leaves no half-written cache."""
    from safetensors.torch import save_file

    tensors = {
        f"{name}_{part}": torch.from_numpy(getattr(getattr(content, name), part))
        for name in ("train", "test")
        for part in ("images", "labels")
    }
    meta = {"classes": json.dumps(content.classes), "jpeg": json.dumps(content.jpeg)}
    meta["crc32"] = _checksum(tensors, *meta.values())
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob("*.partial"):  # by processes that were killed
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink(missing_ok=True)
        handle, temporary = tempfile.mkstemp(".partial", path.stem[:16], path.parent)
        os.close(handle)
        save_file(tensors, temporary, meta)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # safetensors reports a full disk in its own way
        warnings.warn(
            f"Decoded images cannot be cached in {path.parent} ({error}); they will be decoded again next time. "
            "Set ATTNCONV_DATA to a folder that can be written.",
            stacklevel=3,
        )
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


# Download --------------------------------------------------------------------------------------------------------


def _download(name: str, root: Path, missing: MissingData) -> None:
    """Let torchvision fetch and verify a data set in a folder of its own; only a complete one is moved to ``root``."""
    from torchvision import datasets

    kind, folder = {
        "cifar10": (datasets.CIFAR10, sources.BATCHES),
        "fashion-mnist": (datasets.FashionMNIST, "FashionMNIST"),
    }[name]
    by_hand = {
        "cifar10": f"fetch {datasets.CIFAR10.url} (md5 {datasets.CIFAR10.tgz_md5}) on another machine and put it into "
        f"{root} as it is; a Parquet copy or image folders do as well: give their path as the source",
        "fashion-mnist": "install Debian's package dataset-fashion-mnist, or put its four idx files into "
        f"{root / 'FashionMNIST' / 'raw'}",
    }[name]
    created = not root.exists()
    temporary = None
    patience = socket.getdefaulttimeout()
    try:
        root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".download-", dir=root))
        socket.setdefaulttimeout(30)  # seconds without a byte; torchvision would wait for ever
        kind(temporary, download=True)
        try:
            os.replace(temporary / folder, root / folder)
        except OSError:
            if not (root / folder).is_dir():  # else another process was faster
                raise
    except Exception as error:
        raise DataError(
            f"{missing} The download failed ({type(error).__name__}: {error}). By hand: {by_hand}. "
            "Or use the source 'embedded', which needs no download."
        ) from error
    finally:
        socket.setdefaulttimeout(patience)
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        if created and root.exists() and not any(root.iterdir()):
            root.rmdir()


# Batches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Plan:
    """What one epoch does to n images: position i of the epoch is image ``order[i]``, cropped and flipped its own way.

    ``rows``, ``columns`` and ``flips`` are None without augmentation.
    """

    order: Tensor
    """int64 (n,), a permutation"""
    rows: Tensor | None = None
    """int64 (n,): where the crop starts in the padded image, 0 to 8; 4 is the middle."""
    columns: Tensor | None = None
    flips: Tensor | None = None
    """bool (n,): mirrored left-right"""


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


def augment(images: Tensor, rows: Tensor, columns: Tensor, flips: Tensor, pad: int = PAD) -> Tensor:
    """Pad (B, H, W, C) with black, crop each image to (H, W) at its own row and column (0 to 2 pad), then mirror it.

    The same as torchvision's RandomCrop(padding=pad) and RandomHorizontalFlip, in one gather for the whole batch.
    """
    batch, height, width, _ = images.shape
    device = images.device
    padded = F.pad(images, (0, 0, pad, pad, pad, pad))
    x = torch.arange(width, device=device)
    x = torch.where(flips[:, None], width - 1 - x, x) + columns[:, None]  # (B, W)
    y = torch.arange(height, device=device) + rows[:, None]  # (B, H)
    which = torch.arange(batch, device=device)[:, None, None]
    return padded[which, y[:, :, None], x[:, None, :]]


def normalize(
    images: Tensor, mean: Tensor | tuple[float, ...], std: Tensor | tuple[float, ...], dtype=torch.float32
) -> Tensor:
    """uint8 (B, H, W, C) to (pixel / 255 - mean) / std as (B, C, H, W), channels last in memory."""
    mean = torch.as_tensor(mean, dtype=torch.float32, device=images.device)
    std = torch.as_tensor(std, dtype=torch.float32, device=images.device)
    return images.float().div_(255).sub_(mean).div_(std).to(dtype).permute(0, 3, 1, 2)


def batches(
    images: Tensor,
    labels: Tensor,
    plan: Plan | None,
    batch_size: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Normalised images (B, C, H, W) and labels (B,) of one epoch, from step ``start`` on; the last may be smaller.

    Without a plan: all images in their own order, as for evaluation. Everything stays on the device of ``images``,
    and nothing waits for it.
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
