"""The forms that images come in, and how each is read: strictly, and never more of it than `LIMIT`.

A file may be damaged, foreign or made to harm. Only the published CIFAR-10 is unpickled, once all its checksums are
right. What cannot be used is refused with a `DataError` that names the file, the row and the remedy.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from attnconv.training.runs import writing

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_IMAGES = (50_000, 10_000)  # by these counts a copy that names no classes is recognised
SPLITS = ("train", "test")
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
EMBEDDED, BATCHES, ARCHIVE = "embedded sample", "cifar-10-batches-py", "cifar-10-python.tar.gz"
PARQUET, FOLDERS, IDX, NPZ = "Parquet", "image folders", "idx files", "npz"
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
LAYOUTS = (
    (BATCHES, "data_batch_*", "test_batch"),
    (IDX, "train-*-ubyte", "t10k-*-ubyte"),
    (IDX, "train-*-ubyte.gz", "t10k-*-ubyte.gz"),
    (PARQUET, "train*.parquet", "test*.parquet"),
    (PARQUET, "train/*.parquet", "test/*.parquet"),
    (FOLDERS, "train/*/*", "test/*/*"),
)
FORMS = f"""These can be read:
  {BATCHES} with its seven files, or {ARCHIVE}, as published
  Parquet: train*.parquet and test*.parquet (shards too), columns img or image (bytes) and label or labels
  image folders: train/<class>/ and test/<class>/ with {", ".join(FORMATS)} files, and no others
  idx files: train-images-idx3-ubyte, train-labels-idx1-ubyte, and t10k-... for the test split, plain or .gz
  npz: {", ".join(ARRAYS)}, classes if they have names, and no others"""
LIMIT = 2 * 2**30  # bytes of one file, packed or unpacked, and of the pixels of one split


class DataError(ValueError):
    """Data that cannot be used; the message names the file, the row where there is one, and the remedy."""


@dataclass(frozen=True)
class Source:
    """Files of a recognised form, by split. An npz file or an archive holds both splits, and is listed under train."""

    name: str
    form: str
    path: Path
    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()


def recognise(path: Path) -> Source:
    """The data set at a path, or in the one place below it (two levels at most) that holds one."""
    for places in ([path], path.glob("*"), path.glob("*/*")):
        found = [source for place in sorted(places) if (source := _look(place))]
        found = [source for source in found if source.form != ARCHIVE] or found  # an archive beside its own content
        if len(found) > 1:
            raise DataError(f"{path} holds {len(found)} data sets. Name one: {', '.join(str(s.path) for s in found)}.")
        if found:
            return found[0]
    names = ", ".join(sorted(child.name for child in path.glob("*"))[:10])
    raise DataError(f"There is no data set that can be read at {path}; it holds: {names or 'nothing'}.\n{FORMS}")


def _look(path: Path) -> Source | None:
    """The data set that lies directly at this path, if one does."""
    if path.suffix == ".npz" or path.name == ARCHIVE:
        return Source(path.stem, NPZ if path.suffix == ".npz" else ARCHIVE, path, (path,))
    for form, *patterns in LAYOUTS:
        splits = [tuple(sorted(f for f in path.glob(pattern) if f.name[0] != ".")) for pattern in patterns]
        for split in splits:
            shards = {int(n) for file in split for n in re.findall(r"-of-(\d+)\.parquet", file.name)}
            if shards - {len(split)}:
                raise DataError(
                    f"{path}: {len(split)} files like {split[0].name}, not {max(shards)}. Bring the others."
                )
        if any(splits):
            return Source(path.name, form, path, *splits)
    return None


def read(source: Source, cache: Path, progress: bool) -> dict:
    """The data set, as `checked` gives it. Decoded images are cached, or decoded each time where that fails."""
    if source.form in (PARQUET, FOLDERS):
        with contextlib.suppress(DataError):
            return checked(read_npz(cache), cache)
        content = checked(_read_encoded(source, progress), source.path)
        with contextlib.suppress(OSError), writing(cache) as temporary:
            np.savez(temporary, **content)
        return content
    if source.form in (BATCHES, ARCHIVE):
        arrays = _read_cifar10(source.path)
    else:
        arrays = _read_idx(source) if source.form == IDX else read_npz(source.path)
    return checked(arrays, source.path, source.form)


def read_npz(file: Path) -> dict:
    """The arrays of an npz file, which must be those of a data set."""
    with reading_data(file):
        arrays = read_arrays(file, LIMIT)
    if unknown := arrays.keys() - {*ARRAYS, "classes", "form"}:
        raise DataError(f"{file} has {sorted(unknown)[:9]}; it should hold {', '.join(ARRAYS)} and classes only.")
    return arrays


def _read_idx(source: Source) -> dict:
    """Two zero bytes, 8 for unsigned bytes, the number of axes, their big-endian lengths, then the values."""
    arrays = {}
    if max(len(source.train), len(source.test)) > 2:
        raise DataError(f"{source.path} has more idx files than images and labels of two splits. Remove the others.")
    for name, files in (("train", source.train), ("test", source.test)):
        for file in files:
            content = content_of(file)
            with reading_data(file):
                if content[:3] != b"\0\0\x08":
                    raise ValueError("not an idx file of unsigned bytes")
                shape = np.frombuffer(content, ">u4", content[3], offset=4)
                values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)
            arrays[f"{name}_{file.name.split('-')[1]}"] = values
    return arrays


def _read_cifar10(path: Path) -> dict:
    """Through torchvision. The published files are pickles: they are opened only if all their checksums are right."""
    from torchvision.datasets import CIFAR10, utils

    published = [*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])]
    for name, md5 in published if path.is_dir() else [("", CIFAR10.tgz_md5)]:
        if not utils.check_integrity(path / name, md5):
            state = f"missing, or its checksum is not the published one (md5 {md5})"
            raise DataError(f"{path / name} is {state}. Download it again. Images of your own need another form.")
    if not path.is_dir():
        with tempfile.TemporaryDirectory() as unpacked:
            utils.extract_archive(path, unpacked)
            return _read_cifar10(Path(unpacked, BATCHES))
    here = type("CIFAR10", (CIFAR10,), {"base_folder": path.name})  # whatever the folder is called
    train, test = here(path.parent, train=True), here(path.parent, train=False)
    arrays = (train.data, np.array(train.targets), test.data, np.array(test.targets))
    return dict(zip(ARRAYS, arrays, strict=True)) | {"classes": CIFAR10_CLASSES}


def _read_encoded(source: Source, progress: bool) -> dict:
    """Decode the images of class folders or Parquet files, all of one size and kind."""
    arrays = {"form": source.form}
    for split in SPLITS:
        images, labels = [], []
        classes, rows = _folder_rows(source, split) if source.form == FOLDERS else _parquet_rows(source, split)
        arrays.setdefault("classes", classes)
        for place, content, label in tqdm(rows, f"Reading {split}", unit=" images", disable=not progress, leave=False):
            pixels = _decoded(place, content)
            if images and pixels.shape != images[0].shape:
                sizes = f"the image is {pixels.shape}, the first one {images[0].shape}"
                raise DataError(f"{place}: {sizes}. Bring all to one size, and make all gray or all RGB.")
            images.append(pixels)
            labels.append(label)
            bounded(len(images) * pixels.size, LIMIT)
            if content[:2] == b"\xff\xd8":
                arrays["form"] = f"{source.form}, JPEG images"
        arrays |= {f"{split}_images": np.array(images), f"{split}_labels": np.array(labels)}
    return arrays


def _folder_rows(source: Source, split: str) -> tuple[list[str], Iterator[tuple[str, bytes, int]]]:
    """The classes, and (place, encoded image, label) of each file."""
    from torchvision.datasets.folder import find_classes

    (train, labels), (test, _) = (find_classes(source.path / name) for name in SPLITS)
    loose = [file.name for file in sorted((source.path / split).glob("[!.]*")) if not file.is_dir()]
    if train != test or loose:
        odd = f"{split} has {loose[:9]} loose" if loose else f"{sorted({*train} ^ {*test})} is only in one split"
        raise DataError(f"{source.path}: {odd}. Give both splits the same class folders, and nothing else.")
    return train, ((str(file), content_of(file), labels[file.parent.name]) for file in getattr(source, split))


def _parquet_rows(source: Source, split: str) -> tuple[list[str], list[tuple[str, bytes, int]]]:
    """The classes if the first file names them, and (place, encoded image, label) of each row."""
    from pyarrow import BufferReader
    from pyarrow.parquet import ParquetFile

    classes, rows = None, []
    for file in getattr(source, split):
        with reading_data(file), ParquetFile(BufferReader(content_of(file)), page_checksum_verification=True) as table:
            schema = table.schema_arrow
            wanted = ("img", "image"), ("label", "labels")
            found = [[name for name in schema.names if name in pair] for pair in wanted]
            if [len(names) for names in found] != [1, 1]:
                raise DataError(f"{file} has columns {schema.names}. Needed are one img or image, one label or labels.")
            bounded(sum(table.metadata.row_group(i).total_byte_size for i in range(table.num_row_groups)), LIMIT)
            images, labels = (table.read(names)[0].to_pylist() for names in found)
            about = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
            feature = about.get("info", {}).get("features", {}).get(found[1][0], {})
            classes = (feature.get("names") or []) if classes is None else classes
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = f"{file}, row {row}"
            content = image.get("bytes") if isinstance(image, dict) else image
            if not isinstance(content, bytes) or not isinstance(label, int) or label.bit_length() > 63:
                raise DataError(f"{place}: no image bytes, or a label that is not a whole number. Remove that row.")
            rows.append((place, content, label))
    return classes or [], rows


def _decoded(place: str, content: bytes) -> np.ndarray:
    """uint8 (H, W, 1) or (H, W, 3). Palettes become RGB, an alpha channel is dropped."""
    from PIL import Image

    kinds = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "PA": "RGB", "RGB": "RGB", "RGBA": "RGB"}
    with reading_data(place), Image.open(io.BytesIO(content), formats=FORMATS) as image:
        bounded(3 * image.width * image.height, LIMIT)
        frames, orientation = getattr(image, "n_frames", 1), image.getexif().get(274, 1)
        if image.mode not in kinds or frames > 1 or orientation != 1:
            what = f"{frames} frames, pixels of kind {image.mode}, EXIF orientation {orientation}"
            raise DataError(f"{place}: {what}. Save it as one upright image, 8-bit RGB or gray.")
        return np.atleast_3d(np.asarray(image.convert(kinds[image.mode])))


def checked(arrays: dict, path: Path, form: str = "") -> dict:
    """Refuse splits that do not fit each other or their classes. Gives classes, form, and the four tensors."""
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise DataError(f"{path} lacks {', '.join(missing)}. Add what is missing.")
    arrays = {name: np.asarray(values) for name, values in ({"form": form, "classes": ()} | arrays).items()}
    for split in SPLITS:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        fits = images.dtype == np.uint8 and images.shape[3:] in ((), (1,), (3,)) and images.ndim >= 3 and images.size
        if not fits or labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
            given = f"images {images.dtype} {images.shape}, labels {labels.dtype} {labels.shape}"
            wanted = "images uint8 (N, H, W), (N, H, W, 1) or (N, H, W, 3), labels whole numbers (N,), N at least 1"
            raise DataError(f"{path}, {split} split: {given}. Needed are {wanted}.")
        arrays[f"{split}_images"] = np.require(images.reshape(*images.shape[:3], -1), requirements=["C", "W"])
    shapes = [arrays[f"{split}_images"].shape for split in SPLITS]
    if shapes[0][1:] != shapes[1][1:]:
        raise DataError(f"{path}: images are {shapes[0]} in train, {shapes[1]} in test. Bring all to one size.")

    classes = arrays["classes"].tolist()
    if classes == []:  # known by the labels 0, 1, ... in use
        present = np.unique(arrays["train_labels"])
        count = int(np.argmin(np.isin(np.arange(len(present) + 1), present)))
        cifar10 = [shape[0] for shape in shapes] == [*CIFAR10_IMAGES] and shapes[0][1:] == (32, 32, 3) and count == 10
        classes = list(CIFAR10_CLASSES if cifar10 else range(count))
    names = tuple(map(str, classes)) if arrays["classes"].ndim == 1 else ()
    if len(names) < 2 or len({*names}) != len(names) or not "".join(names).isprintable():
        raise DataError(f"{path}: the classes are {classes!a}. Needed are two or more, each with a name of its own.")
    for split in SPLITS:
        labels = arrays[f"{split}_labels"]
        for row in np.flatnonzero((labels < 0) | (labels >= len(names)))[:1]:
            place = f"{path}, {split} split, row {row}: label {labels[row]}"
            raise DataError(f"{place} is out of range, there are {len(names)} classes. Correct or remove that row.")
        arrays[f"{split}_labels"] = labels.astype(np.int64)
    return {name: torch.from_numpy(arrays[name]) for name in ARRAYS} | {"classes": names, "form": str(arrays["form"])}


def content_of(file: Path) -> bytes:
    """A file's bytes, no more than `LIMIT`; unpacked where it is an idx file in gzip."""
    with reading_data(file):
        content = read_small(file, LIMIT)
        if file.name.endswith("ubyte.gz"):
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(LIMIT + 1)
            bounded(len(content), LIMIT)
        return content


@contextlib.contextmanager
def reading_data(place: object) -> Iterator[None]:
    """Whatever a library raises on a damaged or foreign file becomes one `DataError` that names the place."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{place} cannot be read ({why}). Copy it again, replace it or remove it.") from error


def read_small(file: Path, limit: int | None = None) -> bytes:
    """A file's bytes. `ValueError` where it is no regular file, which might never end, or larger than the limit."""
    if not file.is_file():
        raise ValueError("it is no regular file" if file.exists() else "it is missing")
    bounded(file.stat().st_size, limit)
    return file.read_bytes()


def read_arrays(file: Path, limit: int | None = None) -> dict[str, np.ndarray]:
    """The arrays of an npz file, none of them unpickled. `ValueError` as above, also by the size when unpacked."""
    with np.load(io.BytesIO(read_small(file, limit)), allow_pickle=False) as arrays:
        members = arrays.zip.infolist()
        if len(members) > 99:
            raise ValueError(f"it holds {len(members)} arrays, no more than 99 are read")
        bounded(sum(member.file_size for member in members), limit)
        return dict(arrays)


def bounded(size: int, limit: int | None = None) -> None:
    """`ValueError` for more bytes than the limit, which is `LIMIT` unless another is given."""
    if size > (limit or LIMIT):
        raise ValueError(f"it has {size:,} bytes, no more than {limit or LIMIT:,} are read")
