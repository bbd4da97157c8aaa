"""Data: every form is read exactly; what is wrong is refused with its place, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import urllib.error
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.datasets import CIFAR10, FashionMNIST

from attnconv import data, forms
from attnconv.data import CIFAR10_CLASSES, DataError, MissingData, content_key, find_data, load_data

PARTS = ("images", "labels")

# Each writer puts the same kind of thing on disk: {"train": (images, labels), "test": ...} ------------------------


def some(train=40, test=20, shape=(32, 32, 3), classes=10) -> dict:
    rng = np.random.default_rng(0)
    return {
        split: (rng.integers(0, 256, (n, *shape), dtype=np.uint8), rng.permutation(np.arange(n) % classes))
        for split, n in (("train", train), ("test", test))
    }


def encoded(pixels: np.ndarray, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, form, **options)
    return file.getvalue()


def write_parquet(path: Path, images, labels, *, image="img", label="label", info=None, plain=None) -> None:
    """Images are arrays, or bytes as they are; ``plain``: a binary type instead of the Hub's struct."""
    images = [i if isinstance(i, bytes | None) else encoded(i) for i in images]
    struct_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = pa.array(images, plain) if plain else pa.array([{"bytes": i, "path": None} for i in images], struct_type)
    table = pa.table({image: column, label: pa.array(labels)})
    if info is not None:
        features = {label: {"names": info}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, write_page_checksum=True)


def parquet(folder: Path, splits: dict, train=("train.parquet",), test=("test.parquet",), **options) -> Path:
    for split, names in (("train", train), ("test", test)):
        images, labels = splits[split]
        for name, rows in zip(names, np.array_split(np.arange(len(labels)), len(names)), strict=True):
            write_parquet(folder / name, [images[i] for i in rows], [labels[i] for i in rows], **options)
    return folder


def folders(folder: Path, splits: dict, classes=CIFAR10_CLASSES) -> Path:
    for split, (images, labels) in splits.items():
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = folder / split / classes[label] / f"{i:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(image))
    return folder


def by_class(splits: dict) -> dict:
    """In the order of class folders."""
    orders = {split: np.argsort(labels, kind="stable") for split, (_, labels) in splits.items()}
    return {split: tuple(array[orders[split]] for array in arrays) for split, arrays in splits.items()}


def idx(folder: Path, splits: dict, zipped=False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = splits[split]
        for name, array in (("images-idx3", images.squeeze(-1)), ("labels-idx1", labels.astype(np.uint8))):
            content = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
            file = folder / f"{prefix}-{name}-ubyte{'.gz' * zipped}"
            file.write_bytes(gzip.compress(content) if zipped else content)
    return folder


def npz(file: Path, splits: dict, **more) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"{s}_{part}": array for s, both in splits.items() for part, array in zip(PARTS, both, strict=True)}
    arrays |= more
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file


def batches(folder: Path, splits: dict, monkeypatch) -> Path:
    """The published layout, five training batches; torchvision's checksums are replaced by these files' own."""
    folder.mkdir(parents=True)
    pickles = {"batches.meta": {"label_names": list(CIFAR10_CLASSES)}}
    (images, labels), (test, test_labels) = (splits[s] for s in ("train", "test"))
    parts = {f"data_batch_{i + 1}": (images[i::5], labels[i::5]) for i in range(5)} | {
        "test_batch": (test, test_labels)
    }
    for name, (some_images, some_labels) in parts.items():
        rows = some_images.transpose(0, 3, 1, 2).reshape(len(some_images), -1)
        pickles[name] = {"data": rows, "labels": some_labels.tolist()}
    sums = {}
    for name, content in pickles.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in parts if name != "test_batch"])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    splits["train"] = tuple(
        np.concatenate([part[k] for name, part in parts.items() if name != "test_batch"]) for k in (0, 1)
    )
    return folder


def archive(file: Path, splits: dict, monkeypatch) -> Path:
    folder = batches(file.parent / "unpacked" / "cifar-10-batches-py", splits, monkeypatch)
    with tarfile.open(file, "w:gz") as tar:
        tar.add(folder, folder.name)
    shutil.rmtree(folder.parent)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(file.read_bytes()).hexdigest())
    return file


# Checks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path) -> Path:
    """Where caches and downloads go."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def cifar(monkeypatch) -> dict:
    """Images that count as CIFAR-10."""
    monkeypatch.setattr(forms, "CIFAR10_IMAGES", (40, 20))
    return some()


def assert_holds(dataset, splits) -> None:
    for split, (images, labels) in splits.items():
        found, found_labels = getattr(dataset, f"{split}_images"), getattr(dataset, f"{split}_labels")
        assert found.dtype == torch.uint8 and found_labels.dtype == torch.int64
        np.testing.assert_array_equal(found.numpy(), images)
        np.testing.assert_array_equal(found_labels.numpy(), labels)


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def refused(source, root, *words: str) -> None:
    """A `DataError` with these words; nothing may have been written."""
    before = everything(root)
    with pytest.raises(DataError) as caught:
        load_data(source, root=root, progress=False)
    for word in words:
        assert word in str(caught.value), caught.value
    assert everything(root) == before


# The embedded sample ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    return load_data("embedded")


def test_embedded_sample(sample, monkeypatch, root):
    assert (sample.name, sample.form, sample.key) == ("fashion-mnist-sample", "embedded sample", data.SAMPLE_KEY)
    assert sample.classes == data.FASHION_MNIST_CLASSES
    assert (sample.image_size, sample.image_channels) == ((28, 28), 1)
    assert sample.train_labels.bincount().tolist() == [600] * 10
    assert sample.test_labels.bincount().tolist() == [100] * 10
    x = data.normalize(sample.train_images, sample.mean, sample.std)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    monkeypatch.setenv("ATTNCONV_DATA", str(root))  # it is found whatever the data folder, and nothing is written
    assert find_data().path == find_data(root=data.REPOSITORY_DATA).path and everything(root) == []
    content, folder = find_data().path.read_bytes(), find_data().path.parent
    assert "Zalando SE" in (folder / "LICENSE").read_text() and len(content) < 4e6
    assert hashlib.sha256(content).hexdigest() in (folder / "README.md").read_text()


def test_damaged_or_missing_embedded_sample(root, tmp_path, monkeypatch):
    content = bytearray(find_data("embedded").path.read_bytes())
    content[1_000_000] ^= 1
    (root / "fashion-mnist-sample").mkdir()
    (root / "fashion-mnist-sample" / "fashion-mnist-sample.npz").write_bytes(content)
    refused("embedded", root, str(root), "checksum mismatch", "git checkout")
    monkeypatch.setattr(data, "REPOSITORY_DATA", tmp_path)
    with pytest.raises(MissingData, match="embedded is not on this machine"):
        load_data("embedded", root=tmp_path)


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").exists(), reason="needs dataset-fashion-mnist")
def test_fashion_mnist_of_debian_and_the_sample_made_of_it(tmp_path, root, sample):
    script = data.REPOSITORY_DATA / "fashion-mnist-sample" / "make_sample.py"
    subprocess.run([sys.executable, script, "--output", tmp_path / "a.npz"], check=True, capture_output=True)
    assert (tmp_path / "a.npz").read_bytes() == find_data("embedded").path.read_bytes()
    loaded = load_data("fashion-mnist", root=root)
    assert (loaded.name, loaded.classes, len(loaded.train_labels)) == (
        "fashion-mnist",
        data.FASHION_MNIST_CLASSES,
        60000,
    )
    assert torch.equal(loaded.first(6000, 1000).train_images, sample.train_images)


# Every form ------------------------------------------------------------------------------------------------------

HUB = dict(
    train=[f"plain_text/train-0000{i}-of-00002.parquet" for i in (0, 1)],
    test=["plain_text/test-00000-of-00001.parquet"],
)
SPLIT_FOLDERS = dict(train=[f"data/train/000{i}.parquet" for i in (0, 1)], test=["data/test/0000.parquet"])
CIFAR10_FORMS = {
    "cifar-10-batches-py": lambda p, splits, m: batches(p / "cifar-10-batches-py", splits, m),
    "batches, renamed": lambda p, splits, m: batches(p / "batches", splits, m),
    "batches, by the parent": lambda p, splits, m: batches(p / "in" / "cifar-10-batches-py", splits, m).parent,
    "archive": lambda p, splits, m: archive(p / "cifar-10-python.tar.gz", splits, m),
    "archive, by the parent": lambda p, splits, m: archive(p / "cifar-10-python.tar.gz", splits, m).parent,
    "Parquet": lambda p, splits, m: parquet(p / "c", splits),
    "Parquet, the Hub's": lambda p, splits, m: parquet(p / "c", splits, **HUB, image="image", label="labels"),
    "Parquet, split folders": lambda p, splits, m: parquet(p / "c", splits, **SPLIT_FOLDERS, info=CIFAR10_CLASSES),
    "Parquet, binary": lambda p, splits, m: parquet(p / "c", splits, plain=pa.binary(), info=None),
    "Parquet, large binary": lambda p, splits, m: parquet(p / "c", splits, plain=pa.large_binary()),
    "npz": lambda p, splits, m: npz(p / "c.npz", splits),
    "npz, by its folder": lambda p, splits, m: npz(p / "c" / "x.npz", splits, classes=np.array(CIFAR10_CLASSES)).parent,
}


@pytest.mark.parametrize("form", CIFAR10_FORMS)
def test_cifar10_in_each_form(tmp_path, root, cifar, monkeypatch, form):
    (tmp_path / "copy").mkdir()
    loaded = load_data(CIFAR10_FORMS[form](tmp_path / "copy", cifar, monkeypatch), root=root, progress=False)
    assert_holds(loaded, cifar)
    assert (loaded.name, loaded.classes) == ("cifar10", CIFAR10_CLASSES)
    assert (loaded.mean, loaded.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def test_image_folders(tmp_path, root, cifar):
    loaded = load_data(folders(tmp_path / "copy", cifar), root=root, progress=False)
    assert_holds(loaded, by_class(cifar))
    assert (loaded.name, loaded.classes, loaded.form) == ("cifar10", CIFAR10_CLASSES, "image folders")
    gray = some(6, 4, (8, 10, 1), 2)
    loaded = load_data(folders(tmp_path / "gray", gray, ("cat", "yak")), root=root, progress=False)
    assert_holds(loaded, by_class(gray))
    assert (loaded.name, loaded.classes, loaded.image_size) == ("gray", ("cat", "yak"), (8, 10))
    np.testing.assert_allclose((loaded.mean, loaded.std), [[f(gray["train"][0] / 255)] for f in (np.mean, np.std)])


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files(root, monkeypatch, zipped):
    splits = some(30, 10, (28, 28, 1))
    folder = idx(root / "FashionMNIST" / "raw", splits, zipped)
    own = load_data(folder, root=root)
    assert_holds(own, splits)
    assert (own.name, own.form, own.classes) == ("raw", "idx files", tuple("0123456789"))
    refused("fashion-mnist", root, str(folder), "not fashion-mnist as published")
    monkeypatch.setattr(data, "FASHION_MNIST_KEY", own.key)  # the same key, packed or not, or both
    idx(folder, splits, zipped=not zipped)
    for source in ("fashion-mnist", folder, root):
        loaded = load_data(source, root=root)
        assert (loaded.name, loaded.mean, loaded.classes) == ("fashion-mnist", (0.286,), data.FASHION_MNIST_CLASSES)


def test_names_statistics_and_jpeg_of_parquet(tmp_path, root, cifar):
    jpeg = {s: ([encoded(i, "JPEG", quality=95) for i in images], labels) for s, (images, labels) in cifar.items()}
    folder = parquet(tmp_path / "digits", jpeg, info=list("0123456789"))
    for _ in range(2):  # the second time from the cache
        loaded = load_data(folder, root=root, progress=False)
        assert (loaded.name, loaded.classes, loaded.form) == ("digits", tuple("0123456789"), "Parquet, JPEG images")
        np.testing.assert_allclose(loaded.mean, cifar["train"][0].mean((0, 1, 2)) / 255, atol=0.05)


@pytest.mark.parametrize(("classes", "train", "test"), [(2, 40, 20), (9, 40, 20), (11, 40, 20), (10, 50, 20)])
def test_other_images_of_the_same_size_are_not_taken_for_cifar10(tmp_path, root, cifar, classes, train, test):
    splits = some(train, test, classes=classes)
    loaded = load_data(npz(tmp_path / "mine.npz", splits), root=root)
    assert (loaded.name, loaded.classes) == ("mine", tuple(map(str, range(classes))))
    np.testing.assert_allclose(loaded.mean, splits["train"][0].mean((0, 1, 2)) / 255)


def test_cifar10_by_name_finds_what_lies_in_the_data_folder(root, cifar):
    parquet(root / "cifar10-jpeg", cifar)
    (root / "cifar100").mkdir()
    assert_holds(load_data("cifar10", root=root, progress=False), cifar)
    shutil.rmtree(root)
    folders(root / "cifar10", some(4, 4, (8, 8, 1), 2), ("cat", "yak"))
    with pytest.raises(DataError, match="not cifar10 as published"):
        load_data("cifar10", root=root, progress=False)


def test_gray_palette_and_alpha(tmp_path, root):
    pixels = np.full((8, 8, 3), (255, 0, 51), np.uint8)
    palette = io.BytesIO()
    Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE).save(palette, "PNG")
    images = [pixels, palette.getvalue(), encoded(np.dstack([pixels, pixels[..., 0]]))]
    folder = parquet(tmp_path / "c", {"train": (images, [0, 1, 0]), "test": (images[:2], [0, 1])})
    np.testing.assert_array_equal(load_data(folder, root=root, progress=False).train_images, np.stack([pixels] * 3))


# Cache and key ---------------------------------------------------------------------------------------------------


def test_cache_is_used_and_made_again_when_damaged(tmp_path, root, cifar, monkeypatch):
    folder = parquet(tmp_path / "copy", cifar)
    first = load_data(folder, root=root, progress=False)
    assert everything(root) == ["cache", f"cache/{first.key}.npz"]
    cache = root / "cache" / f"{first.key}.npz"
    whole = cache.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(forms, "_read_encoded", None)
        second = load_data(folder, root=root, progress=False)
        assert_holds(second, cifar)
        assert (first.name, first.form, first.classes) == (second.name, second.form, second.classes)
    for damaged in (whole[:-1000], whole[:5000] + b"x" + whole[5001:], b""):
        cache.write_bytes(damaged)
        assert_holds(load_data(folder, root=root, progress=False), cifar)
        assert len(cache.read_bytes()) == len(whole) and len(everything(root)) == 2
    shutil.rmtree(root / "cache")
    (root / "cache").write_text("a file in the way")
    assert_holds(load_data(folder, root=root, progress=False), cifar)
    assert everything(root) == ["cache"]


def test_key_follows_the_content(tmp_path, cifar):
    folder = parquet(tmp_path / "copy", cifar)
    key = content_key(find_data(folder))
    assert content_key(find_data(folder.rename(tmp_path / "moved"))) == key
    cifar["test"][0][3, 4, 5, 1] ^= 1
    assert content_key(find_data(parquet(tmp_path / "moved", cifar))) != key
    folder = folders(tmp_path / "folders", cifar)
    key = content_key(find_data(folder))
    last = sorted((folder / "train" / "airplane").iterdir())[-1]
    last.rename(folder / "train" / "automobile" / "0.png")  # the same bytes in the same order, of another class
    assert content_key(find_data(folder)) != key


# Damage ----------------------------------------------------------------------------------------------------------

SMALL = some(12, 6, (8, 8, 1), 3)
DAMAGED_FORMS = {  # form: whether every byte is under a checksum
    "batches": (lambda p, m: batches(p / "cifar-10-batches-py", some(10, 5, classes=5), m), True),
    "archive": (lambda p, m: archive(p / "cifar-10-python.tar.gz", some(10, 5, classes=5), m), True),
    "npz": (lambda p, m: npz(p / "x.npz", SMALL, classes=np.array(["a", "b", "c"])), True),
    "gz": (lambda p, m: idx(p, SMALL, zipped=True), True),
    "idx": (lambda p, m: idx(p, SMALL), False),
    "Parquet": (lambda p, m: parquet(p, SMALL, info=["a", "b", "c"]), False),
    "folders": (lambda p, m: folders(p, SMALL, ("a", "b", "c")), False),
}


@pytest.mark.filterwarnings("ignore:.*have no")
@pytest.mark.parametrize("form", DAMAGED_FORMS)
def test_damage_is_refused_harmless_or_gives_another_key(tmp_path, monkeypatch, form):
    """Where a form has no checksum of its own, the key tells: no run is misnamed."""
    write, summed = DAMAGED_FORMS[form]
    home = tmp_path / "home"
    home.mkdir()
    write(home, monkeypatch)
    whole = load_data(home, root=tmp_path / "root", progress=False)
    files = sorted(file for file in home.rglob("*") if file.is_file())

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(
        st.integers(0, len(files) - 1),
        st.sampled_from(["cut", "delete", "flip"]),
        st.floats(0, 0.9999),
        st.integers(0, 7),
    )
    def damage(which, kind, where, bit):
        file = files[which]
        content = file.read_bytes()
        at = int(where * len(content))
        damaged = content[:at] + (bytes([content[at] ^ 1 << bit]) + content[at + 1 :]) * (kind == "flip")
        try:
            file.unlink() if kind == "delete" else file.write_bytes(damaged)
            loaded = load_data(home, root=tmp_path / "root", progress=False)
        except DataError as error:
            assert str(home) in str(error)
            return
        finally:
            file.write_bytes(content)
        same = all(torch.equal(getattr(loaded, name), getattr(whole, name)) for name in data.ARRAYS)
        assert (same and loaded.classes == whole.classes) or (not summed and loaded.key != whole.key)

    damage()


# Refusals --------------------------------------------------------------------------------------------------------


def test_paths_that_hold_no_data(tmp_path, root, cifar):
    refused(tmp_path / "nowhere", root, "nowhere", "'embedded'")
    refused("~nouser/cifar10", root, "~nouser/cifar10", "There is no file or folder")
    refused("x" * 5000, root, "x" * 5000)
    folder = tmp_path / "stuff"
    folder.mkdir()
    refused(folder, root, "holds: nothing")
    (folder / "notes.txt").write_text("hello")
    refused(folder, root, "notes.txt", "Parquet", "image folders", "idx files", "cifar-10-batches-py", "npz")
    refused(folder / "notes.txt", root, str(folder / "notes.txt"), "Understood are")
    for name in ("a", "b"):
        parquet(folder / name, cifar)
    refused(folder, root, "2 data sets", str(folder / "a"), "Name one")


def test_cifar10_files_missing_or_of_another_checksum_are_never_unpickled(tmp_path, root, cifar, monkeypatch):
    class Evil:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "evil", "ran"))

    file = batches(tmp_path / "cifar-10-batches-py", cifar, monkeypatch) / "data_batch_3"
    file.write_bytes(pickle.dumps(Evil()))
    refused(file.parent, root, str(file), "checksum", "Get it again")
    assert not (tmp_path / "evil").exists()
    file.unlink()
    refused(file.parent, root, str(file), "missing")
    (root / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b half")
    refused("cifar10", root, str(root / "cifar-10-python.tar.gz"), "checksum")


def test_parquet_rows_that_cannot_be_used(tmp_path, root, cifar):
    images, labels = cifar["train"]
    parquet(tmp_path / "c", cifar)
    file = tmp_path / "c" / "train.parquet"
    turned, frames = Image.Exif(), [Image.fromarray(image) for image in images[:3]]
    turned[274] = 6
    apng = io.BytesIO()
    frames[0].save(apng, "PNG", save_all=True, append_images=frames[1:])
    for content, *words in (
        (b"no image", "cannot identify image"),
        (b"", "cannot identify image"),
        (None, "no image bytes"),
        (encoded(images[0])[:-60], "cannot be read"),
        (encoded(images[0], "TIFF"), "cannot identify image"),  # not among FORMATS, nor is EPS
        (encoded(images[0][:, :31]), "(32, 31, 3)", "(32, 32, 3)"),
        (encoded(images[0][..., :1]), "(32, 32, 1)", "all gray or all RGB"),
        (encoded(np.zeros((32, 32), np.uint16)), "I;16", "8-bit"),
        (encoded(images[0], "JPEG", exif=turned), "EXIF orientation 6"),
        (apng.getvalue(), "3 frames"),
    ):
        write_parquet(file, [*images[:7], content, *images[8:]], labels)
        refused(file.parent, root, f"{file}, row 7", *words)
    write_parquet(file, images, [None if i == 5 else int(x) for i, x in enumerate(labels)])
    refused(file.parent, root, f"{file}, row 5", "label")
    write_parquet(file, images, labels.astype(str))
    refused(file.parent, root, f"{file}, row 0", "label")


def test_parquet_tables_that_cannot_be_used(tmp_path, root, cifar):
    folder = parquet(tmp_path / "c", cifar)
    file, (images, labels) = folder / "train.parquet", cifar["train"]
    for options, *words in (
        (dict(image="picture"), "picture", "img or image"),
        (dict(label="target"), "target", "label or labels"),
        (dict(info=5), "the classes are 5"),
        (dict(info=["a"] * 10), "a name of its own"),
        (dict(info=[["a", "b"], ["c", "d"]]), "the classes are"),
        (dict(info=["a", "b\ud800"]), "the classes are"),
        (dict(info=list("abcdefghi")), "label 9 is out of range", "9 classes"),
    ):
        write_parquet(file, images, labels, **options)
        refused(folder, root, str(folder), *words)
    write_parquet(file, images, labels, info=None)
    assert load_data(folder, root=root, progress=False).classes == CIFAR10_CLASSES
    shutil.rmtree(root / "cache")
    table = pq.read_table(file)
    pq.write_table(table.append_column("img", table["img"]), file)
    refused(folder, root, str(file), "'img', 'label', 'img'")
    pq.write_table(table.slice(0, 0), file)
    refused(folder, root, str(folder), "train split", "at least 1")
    file.unlink()
    refused(folder, root, str(folder), "train split", "at least 1")
    pq.write_table(table, folder / "train-00000-of-00003.parquet")
    refused(folder, root, "1 files like train-00000-of-00003.parquet, not 3")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("bad", [10, 57, -1, 2**63 + 5])
def test_label_out_of_range(tmp_path, root, cifar, split, bad):
    labels = [bad if i == 17 else int(label) for i, label in enumerate(cifar[split][1])]
    splits = cifar | {split: (cifar[split][0], np.array(labels, np.uint64 if bad > 0 else np.int64))}
    file = npz(tmp_path / "x.npz", splits, classes=np.arange(10))
    refused(file, root, f"{file}, {split} split, row 17: label {bad} is out of range", "10 classes")
    folder = parquet(tmp_path / "c", splits, info=CIFAR10_CLASSES)
    refused(folder, root, str(folder), "row 17", "label")


def test_folders_that_cannot_be_used(tmp_path, root):
    splits, classes = some(9, 6, (8, 8, 1), 3), ("a", "b", "c")
    folder = folders(tmp_path / "c", splits, classes)

    @contextlib.contextmanager
    def wrong(file: Path, content: bytes | None):
        file.parent.mkdir(exist_ok=True)
        os.mkfifo(file) if content is None else file.write_bytes(content)
        yield
        file.unlink()

    image, place = encoded(splits["train"][0][0]), folder / "train" / "b"
    for file, content, *words in (
        (place / "x.png", b"no image", "cannot identify image"),
        (place / "notes.txt", b"hello", "cannot be read", "remove it"),  # nothing is skipped in silence
        (place / "pipe.png", None, "no regular file"),
        (folder / "train" / "d" / "x.png", image, "['d'] is only in one split"),
    ):
        with wrong(file, content):
            refused(folder, root, str(folder if file.parent.name == "d" else file), *words)
    shutil.rmtree(folder / "train" / "d")
    with wrong(folder / "test" / "x.png", image):
        refused(folder, root, str(folder), "test has ['x.png'] loose")
    with wrong(folder / "val" / "x.png", image), pytest.warns(UserWarning, match="val is not read"):
        assert_holds(load_data(folder, root=root, progress=False), by_class(splits))
    (folder / "val").rmdir()
    shutil.rmtree(root / "cache")
    with wrong(place / ".DS_Store", b"of a Mac"):
        assert_holds(load_data(folder, root=root, progress=False), by_class(splits))
    (place / "more").mkdir()
    refused(folder, root, str(place / "more"), "no regular file")
    (place / "more").rmdir()
    shutil.rmtree(folder / "test")
    refused(folder, root, str(folder / "test"), "No such file")
    one = folders(tmp_path / "one", some(4, 4, (8, 8, 1), 1), ("cat",))
    refused(one, root, "the classes are ['cat']", "two or more")


def test_class_folders_that_are_not_utf8(tmp_path, root):
    folder = folders(tmp_path / "c", some(8, 8, (8, 8, 1), 2), ("cat", os.fsdecode(b"g\xe9ant")))
    refused(folder, root, str(folder), r"g\udce9ant")


def test_classes_without_images_are_said(tmp_path, root):
    splits = {"train": some(9, 6, (4, 4), 3)["train"], "test": some(9, 6, (4, 4), 2)["test"]}
    with pytest.warns(UserWarning, match="x.npz: 1 classes have no test images: c"):
        load_data(npz(tmp_path / "x.npz", splits, classes=np.array(["a", "b", "c"])), root=root)


def test_wrong_npz_files(tmp_path, root):
    splits = some(4, 4, (5, 6), 2)
    images, labels = splits["train"]
    for change, *words in (
        (dict(test_images=images[:3]), "(3, 5, 6)", "(4,)", "test split"),
        (dict(train_images=images.astype(np.float32)), "float32", "uint8"),
        (dict(train_images=np.zeros((4, 5, 6, 2), np.uint8)), "(4, 5, 6, 2)"),
        (dict(train_images=images[:, :0], test_images=images[:, :0]), "(4, 0, 6)", "at least 1"),
        (dict(train_labels=labels.astype(float)), "float64", "whole numbers"),
        (dict(train_labels=labels[:, None]), "(4, 1)"),
        (dict(train_labels=np.array([0, None, 1, 1], object)), "Object arrays"),
        (dict(test_images=np.zeros((4, 5, 7), np.uint8)), "(4, 5, 7, 1)", "(4, 5, 6, 1)"),
        (dict(train_labels=None), "lacks train_labels"),
        (dict(val_images=images), "['val_images']"),
        (dict(classes=np.array("cat")), "the classes are 'cat'"),
        (dict(classes=np.array([["a", "b"]])), "[['a', 'b']]"),
        (dict(classes=np.array(["a", "a"])), "['a', 'a']"),
    ):
        file = npz(tmp_path / "mine.npz", splits, **change)
        refused(file, root, str(file), *words)
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (192414534860800,), }"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    for content, *words in ((member, "cannot be read"), (b"no array", "images |S8 ()")):
        npz(file, splits, train_images=None)
        with zipfile.ZipFile(file, "a") as members:
            members.writestr("train_images.npy", content)
        refused(file, root, str(file), *words)
    np.save(tmp_path / "array.npy", images)
    (tmp_path / "array.npy").rename(file)
    refused(file, root, str(file), "cannot be read")


def test_reading_is_bounded(tmp_path, root, monkeypatch):
    splits = {split: (images * 0, labels) for split, (images, labels) in some(40, 20, (64, 64, 1)).items()}
    sources = [npz(tmp_path / "x.npz", splits), idx(tmp_path / "plain", splits), idx(tmp_path / "packed", splits, True)]
    sources += [parquet(tmp_path / "parquet", splits), folders(tmp_path / "folders", splits)]
    with (
        zipfile.ZipFile(sources[0]) as whole,
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in whole.namelist():
            bomb.writestr(name, whole.read(name))
    monkeypatch.setattr(forms, "LIMIT", 40 * 64 * 64 - 1)
    for source in (*sources, tmp_path / "bomb.npz"):
        refused(source, root, str(source), f"{forms.LIMIT:,}")


def test_wrong_idx_files(tmp_path, root):
    folder = idx(tmp_path / "idx", some(30, 10, (28, 28, 1)))
    file = folder / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for content, *words in (
        (whole[:-1], str(file), "cannot reshape"),
        (whole[:6], str(file), "cannot be read"),
        (b"\0\0\x0d" + whole[3:], str(file), "no idx file of unsigned bytes"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 29, 28, 28) + whole[16:-784], "(29, 28, 28)", "(30,)"),
    ):
        file.write_bytes(content)
        refused(folder, root, *words)
    file.unlink()
    refused(folder, root, str(folder), "lacks train_images")


# Download --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist"])
def test_no_network(tmp_path, root, monkeypatch, name):
    def offline(self):
        (Path(self.root) / "half.tar.gz").write_bytes(b"half")
        assert socket.getdefaulttimeout() == 30
        raise urllib.error.URLError("no route to host")

    for kind in (CIFAR10, FashionMNIST):
        monkeypatch.setattr(kind, "download", offline)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: exists(path) and not path.is_relative_to("/usr/share"))
    refused(name, root, str(root), "no route to host", "'embedded'")
    assert socket.getdefaulttimeout() is None


def test_downloaded_cifar10_is_moved_to_the_data_folder(tmp_path, root, cifar, monkeypatch):
    file = archive(tmp_path / "cifar-10-python.tar.gz", cifar, monkeypatch)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    monkeypatch.setattr(handler.func, "log_message", lambda *_: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{file.name}")
        with monkeypatch.context() as patch:
            patch.setattr(CIFAR10, "tgz_md5", "0" * 32)  # torchvision checks the sum of what it fetched
            refused("cifar10", root, "The download failed", "corrupted", str(root / "cifar-10-batches-py"))
        assert_holds(load_data("cifar10", root=root, progress=False), cifar)
        server.shutdown()
    assert_holds(load_data("cifar10", root=root, progress=False), cifar)  # not fetched again
    assert {path.name for path in root.iterdir()} == {"cifar-10-batches-py", "cache"}


# Subsets ---------------------------------------------------------------------------------------------------------


def test_first_keeps_the_first_of_each_class_in_order(sample):
    small = sample.first(205, 100)
    assert sorted(small.train_labels.bincount().tolist()) == [20] * 5 + [21] * 5
    assert small.test_labels.bincount().tolist() == [10] * 10
    expected = sorted(
        row for c in range(10) for row in (sample.train_labels == c).nonzero()[: 21 if c < 5 else 20, 0].tolist()
    )
    assert torch.equal(small.train_images, sample.train_images[expected])
    assert torch.equal(small.train_labels, sample.train_labels[expected])


def test_first_of_an_unbalanced_split_takes_what_there_is():
    labels = torch.tensor([0] * 9 + [1] * 2 + [2] * 9)
    assert labels[data._balanced(labels, 12)].bincount().tolist() == [5, 2, 5]


def test_key_of_a_subset_is_its_own(sample):
    variants = [sample, sample.first(100, None), sample.first(101, None), sample.first(None, 100),
                sample.hold_out(10, 0)[0], sample.hold_out(10, 1)[0], sample.hold_out(20, 0)[0]]  # fmt: skip
    assert len({v.key for v in variants}) == len(variants)
    for same in (sample.first(None, None), sample.first(6000, 99999), sample.hold_out(0, 0)[0]):
        assert same.key == sample.key and torch.equal(same.train_images, sample.train_images)
    assert sample.first(100, 5000).key == sample.first(100, None).key


def test_hold_out_splits_the_training_images(sample):
    small = sample.first(600, 100)
    rest, images, labels = small.hold_out(95, seed=3)
    assert images.shape == (95, 28, 28, 1) and sorted(labels.bincount().tolist()) == [9] * 5 + [10] * 5
    assert rest.train_images.shape[0] == 505 and torch.equal(rest.test_images, small.test_images)

    def sorted_rows(*parts):
        return sorted(row.tobytes() for part in parts for row in part.numpy())

    assert sorted_rows(rest.train_images, images) == sorted_rows(small.train_images)
    again = small.hold_out(95, seed=3)
    assert torch.equal(again[1], images) and not torch.equal(small.hold_out(95, seed=4)[1], images)
    for n in (-1, 600):
        with pytest.raises(DataError, match="choose 0 to 599"):
            small.hold_out(n, 0)
    with pytest.raises(DataError, match="at least 1"):
        small.first(0, None)


def test_strip_keeps_what_it_says(tmp_path, sample):
    file = tmp_path / "strip.npz"
    data.save_strip(sample, file, train=3, test=20)
    strip = data.load_strip(file)
    assert (strip.name, strip.classes, strip.mean, strip.std) == (sample.name, sample.classes, sample.mean, sample.std)
    assert torch.equal(strip.train_images, sample.train_images[:3]) and strip.train_labels.dtype == torch.int64
    assert torch.equal(strip.test_labels, sample.test_labels[:20]) and "first 20 test images" in strip.form
    content = file.read_bytes()
    for damaged in (content[:1000], content.replace(b"about.npy", b"abouT.npy"), b""):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{file} is damaged.*git checkout"):
            data.load_strip(file)


# Batches ---------------------------------------------------------------------------------------------------------


def test_plan_is_a_function_of_seed_and_epoch():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    plan = data.epoch_plan(5000, seed=1, epoch=2, augment=True)
    again = data.epoch_plan(5000, seed=1, epoch=2, augment=True)
    assert torch.equal(torch.get_rng_state(), state)
    names = ("order", "rows", "columns", "flips")
    assert all(torch.equal(getattr(plan, name), getattr(again, name)) for name in names)
    assert torch.equal(plan.order.sort().values, torch.arange(5000))
    for offsets in (plan.rows, plan.columns):
        assert offsets.unique().tolist() == list(range(9))
    assert not torch.equal(plan.rows, plan.columns)
    assert 0.45 < plan.flips.float().mean() < 0.55
    for other in (
        data.epoch_plan(5000, seed=2, epoch=1, augment=True),
        data.epoch_plan(5000, seed=1, epoch=3, augment=True),
    ):
        assert not any(torch.equal(getattr(plan, name), getattr(other, name)) for name in names)
    plain = data.epoch_plan(5000, seed=1, epoch=2, augment=False)
    assert torch.equal(plain.order, plan.order) and plain.rows is plain.columns is plain.flips is None


@pytest.mark.parametrize("channels", [1, 3])
def test_augment_equals_torchvision(channels):
    from torchvision.transforms.v2 import functional as tv

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (200, 7, 12, channels), dtype=torch.uint8, generator=generator)
    plan = data.epoch_plan(200, seed=0, epoch=0, augment=True)
    assert {0, 8} <= set(plan.rows.tolist()) and {0, 8} <= set(plan.columns.tolist())
    result = data.augment(images, plan.rows, plan.columns, plan.flips)
    assert result.dtype == torch.uint8
    for i, image in enumerate(images.permute(0, 3, 1, 2)):
        expected = tv.crop(tv.pad(image, [4]), int(plan.rows[i]), int(plan.columns[i]), 7, 12)
        expected = tv.horizontal_flip(expected) if plan.flips[i] else expected
        assert torch.equal(result[i].permute(2, 0, 1), expected), i


def test_normalize_equals_torchvision(cifar):
    from torchvision.transforms.v2 import functional as tv

    images = torch.from_numpy(cifar["train"][0])
    mean, std = data.STATISTICS["cifar10"]
    result = data.normalize(images, mean, std)
    expected = tv.normalize(images.permute(0, 3, 1, 2).float() / 255, mean, std)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
    assert result.shape == (40, 3, 32, 32) and result.is_contiguous(memory_format=torch.channels_last)
    assert data.normalize(images, mean, std, torch.bfloat16).dtype == torch.bfloat16


def test_batches_follow_the_plan_from_any_step(sample):
    small = sample.first(103, None)
    images, labels, statistics = small.train_images, small.train_labels, (small.mean, small.std)
    plan = data.epoch_plan(103, seed=0, epoch=1, augment=True)
    steps = list(data.batches(images, labels, plan, 20, *statistics))
    assert [len(y) for _, y in steps] == [20, 20, 20, 20, 20, 3]
    assert torch.equal(torch.cat([y for _, y in steps]), labels[plan.order])
    whole = data.normalize(data.augment(images[plan.order], plan.rows, plan.columns, plan.flips), *statistics)
    assert torch.equal(torch.cat([x for x, _ in steps]), whole)
    resumed = list(data.batches(images, labels, plan, 20, *statistics, start=4))
    assert len(resumed) == 2 and torch.equal(resumed[0][0], steps[4][0])
    assert list(data.batches(images, labels, plan, 20, *statistics, start=6)) == []

    plain = data.epoch_plan(103, seed=0, epoch=1, augment=False)
    x = torch.cat([x for x, _ in data.batches(images, labels, plain, 20, *statistics)])
    assert torch.equal(x, data.normalize(images[plan.order], *statistics))
    x = torch.cat([x for x, _ in data.batches(images, labels, None, 20, *statistics)])
    assert torch.equal(x, data.normalize(images, *statistics))


def test_dataset_moves_to_a_device(sample):
    assert sample.to("meta").train_images.device.type == "meta" and sample.train_images.device.type == "cpu"
