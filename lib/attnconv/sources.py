"""Where the images are: find a data set and recognise its form by looking, before anything is read or decoded.

No torch is imported, only the standard library: `attnconv doctor` and the batch runner use this module alone.
`attnconv.data.load_data` reads what is found here.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY_DATA = Path(__file__).resolve().parents[2] / "data"
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package ``dataset-fashion-mnist`` puts the idx files."""

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_MNIST_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
CIFAR10_IMAGES = (50_000, 10_000)
"""How many the two splits have: CIFAR-10 is known by this where a copy names no classes."""
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp")

SAMPLE_SHA256 = "428fdc812d63d68df69bd846a0765e33128f4f88bcfaa4431995dc5a99332350"
FASHION_MNIST_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Sums of the unpacked idx files."""

EMBEDDED, BATCHES, ARCHIVE = "embedded sample", "cifar-10-batches-py", "cifar-10-python.tar.gz"
PARQUET, FOLDERS, IDX, NPZ = "Parquet", "image folders", "idx files", "npz"

FORMS = f"""Understood are:
  {BATCHES}: the folder with data_batch_1 to 5 and test_batch, or {ARCHIVE}
  Parquet: train*.parquet and test*.parquet (shards too), columns img or image (bytes) and label or labels
  image folders: train/<class>/*.png and test/<class>/*.png ({", ".join(s[1:] for s in IMAGE_SUFFIXES)})
  idx files: {", ".join(IDX_FILES)}, plain or .gz
  npz: train_images, train_labels, test_images, test_labels, and classes if they have names"""


class DataError(ValueError):
    """Data that cannot be used; the message names the file, the row where there is one, and the remedy."""


class MissingData(DataError):
    """A data set asked for by its name is on none of its usual places."""


@dataclass(frozen=True)
class Source:
    """Files of a recognised form. For idx files a split is (images, labels); npz and archive list their one file."""

    name: str
    form: str
    path: Path
    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()


def data_root(root: str | Path | None = None) -> Path:
    """The folder for downloads and caches: the argument, else $ATTNCONV_DATA, else the repository's ``data``."""
    return Path(root or os.environ.get("ATTNCONV_DATA") or REPOSITORY_DATA).expanduser().absolute()


def find_data(source: str | Path = "embedded", root: str | Path | None = None) -> Source:
    """Find ``embedded``, ``cifar10``, ``fashion-mnist`` or what lies at a path; nothing is decoded or downloaded.

    Raises `MissingData` when a named set is not here (the first of them is never downloaded, the others can be),
    `DataError` for a path that does not exist, is not recognised, or misses files.
    """
    root = data_root(root)
    if source == "embedded":
        candidates = [folder / "fashion-mnist-sample/fashion-mnist-sample.npz" for folder in (root, REPOSITORY_DATA)]
        for path in filter(Path.is_file, candidates):
            return Source("fashion-mnist-sample", EMBEDDED, path, (path,))
        raise MissingData(
            f"The embedded sample is not at {candidates[-1]}. It belongs to the repository: install attnconv from a "
            "clone with 'pip install -e .', and restore the file with 'git checkout data'."
        )
    if source == "cifar10":
        named = sorted(p for p in root.glob("cifar10*") if not p.name.startswith("cifar100"))
        candidates = [root / BATCHES, root / ARCHIVE, *named]
    elif source == "fashion-mnist":
        candidates = [root / "FashionMNIST", root / "fashion-mnist", DEBIAN_FASHION_MNIST]
    else:
        path = Path(source).expanduser()
        if not path.exists():
            raise DataError(
                f"There is no file or folder {path.absolute()}. "
                "Name one that exists, or one of 'embedded', 'cifar10', 'fashion-mnist'."
            )
        return recognise(path)
    for path in filter(Path.exists, candidates):
        found = recognise(path)
        # The name is what was asked for; `load_data` holds the content against it.
        return Source(source, found.form, found.path, found.train, found.test)
    tried = ", ".join(map(str, candidates))
    raise MissingData(f"{source} is not on this machine: looked for {tried}.")


def recognise(path: Path) -> Source:
    """The data set at a path, or in the one folder below it (two levels at most) that holds one."""
    path = path.absolute()
    try:
        level = [path]
        for _ in range(3):
            found = [source for source in map(_look, level) if source]
            if len(found) > 1:
                places = ", ".join(f"{s.path} ({s.form})" for s in found)
                raise DataError(f"{path} holds {len(found)} data sets: {places}. Name one of these.")
            if found:
                return found[0]
            level = [child for folder in level if folder.is_dir() for child in _children(folder) if child.is_dir()]
        names = [p.name + "/" * p.is_dir() for p in _children(path)] if path.is_dir() else []
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}. Check its permissions.") from error
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    shown = f"the folder holds {listed or 'nothing'}" if path.is_dir() else f"a file of {path.stat().st_size} bytes"
    raise DataError(f"{path} is no data set that is understood: {shown}.\n{FORMS}")


def _look(path: Path) -> Source | None:
    """The data set that lies directly at this path. One that is only half there is an error."""
    if path.is_file():
        if path.name.endswith((".tar.gz", ".tgz")):
            return Source("cifar10", ARCHIVE, path, (path,))
        if path.suffix == ".npz":
            return Source(path.stem, NPZ, path, (path,))
        if path.suffix == ".parquet":
            raise DataError(
                f"{path} is one file of a Parquet copy: name its folder, with train*.parquet and test*.parquet."
            )
        return None

    names = {child.name for child in _children(path)}
    if any(re.fullmatch(r"data_batch_\d", name) for name in names):
        train, test = [path / f"data_batch_{i}" for i in range(1, 6)], [path / "test_batch"]
        _require_files(path, [*train, *test])
        return Source("cifar10", BATCHES, path, tuple(train), tuple(test))
    if names & {name + end for name in IDX_FILES for end in ("", ".gz")}:
        files = [path / (name if name in names else f"{name}.gz") for name in IDX_FILES]
        _require_files(path, files)
        published = hashlib.sha256(read_file(files[3])).hexdigest() == FASHION_MNIST_SHA256[IDX_FILES[3]]
        return Source("fashion-mnist" if published else path.name, IDX, path, tuple(files[:2]), tuple(files[2:]))
    splits = [_parquet_files(path, split) for split in ("train", "test")]
    if any(splits):
        for split, files in zip(("train", "test"), splits, strict=True):
            if not files:
                raise DataError(f"{path} has no {split}*.parquet beside {_listed(sum(splits, ()))}. Add that split.")
        return Source(path.name, PARQUET, path, *splits)
    splits = [_image_files(path / split) for split in ("train", "test")]
    if any(splits):
        for split, files in zip(("train", "test"), splits, strict=True):
            if not files:
                raise DataError(f"{path / split} has no images in folders of classes. Put them in {split}/<class>/.")
        classes = tuple(sorted({file.parent.name for file in splits[0]}))
        return Source("cifar10" if classes == CIFAR10_CLASSES else path.name, FOLDERS, path, *splits)
    if ARCHIVE in names:
        return Source("cifar10", ARCHIVE, path / ARCHIVE, (path / ARCHIVE,))
    arrays = sorted(name for name in names if name.endswith(".npz"))
    if len(arrays) == 1:
        return Source(path.name, NPZ, path / arrays[0], (path / arrays[0],))
    return None


def _children(folder: Path) -> list[Path]:
    return sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=_natural)


def _natural(path: Path) -> tuple:
    """Sorts shard-2 before shard-10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name) if part)


def _parquet_files(folder: Path, split: str) -> tuple[Path, ...]:
    """A split's file or shards, in order: train.parquet, train-00000-of-00002.parquet, train/0000.parquet."""
    files = [p for p in _children(folder) if p.suffix == ".parquet" and re.match(rf"{split}(?![a-z])", p.name)]
    if not files and (folder / split).is_dir():
        files = [p for p in _children(folder / split) if p.suffix == ".parquet"]
    for file in files:
        total = re.search(r"-of-(\d+)\.parquet$", file.name)
        if total and int(total[1]) != len(files):
            raise DataError(
                f"{file} is one of {int(total[1])} shards, but {len(files)} files of that split are here: "
                f"{_listed(files)}. Copy the missing shards, remove what does not belong."
            )
    return tuple(files)


def _image_files(split: Path) -> tuple[Path, ...]:
    """Images of split/<class>/, classes in alphabetical order, files in natural order."""
    if not split.is_dir():
        return ()
    classes = sorted((p for p in _children(split) if p.is_dir()), key=lambda p: p.name)
    return tuple(file for c in classes for file in _children(c) if file.suffix.lower() in IMAGE_SUFFIXES)


def _require_files(folder: Path, files: Iterable[Path]) -> None:
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{folder} misses {', '.join(missing)}. Copy the whole folder again, or unpack it again.")


def _listed(files: Iterable[Path]) -> str:
    names = [file.name for file in files]
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")


def read_file(file: Path) -> bytes:
    """A file's bytes, unpacked where it is an idx file in gzip; `DataError` when it cannot be read."""
    try:
        content = file.read_bytes()
        return gzip.decompress(content) if file.name.endswith("ubyte.gz") else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read, it may be truncated ({error}). Copy it again.") from error


def read_sample(file: Path) -> bytes:
    """The embedded sample's bytes; `DataError` unless they are those of the repository."""
    content = read_file(file)
    if hashlib.sha256(content).hexdigest() != SAMPLE_SHA256:
        raise DataError(f"{file}: checksum mismatch, the file is damaged. Restore it with 'git checkout data'.")
    return content


def content_key(source: Source) -> str:
    """Hex sha256 of the source's content: form, splits, classes of image folders, and every byte of every file."""
    digest = hashlib.sha256(source.form.encode())
    for split, files in (("train", source.train), ("test", source.test)):
        for file in files:
            content = read_file(file)
            where = f"{split} {file.parent.name}" if source.form == FOLDERS else split
            digest.update(f"\0{where}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
