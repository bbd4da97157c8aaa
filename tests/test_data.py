"""Data: every form is recognised and read exactly, everything wrong is refused and leaves nothing behind."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attnconv import data, sources
from attnconv.data import DataError, augment, batches, epoch_plan, load_data, normalize
from attnconv.sources import CIFAR10_CLASSES, IDX_FILES, content_key, find_data

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def root(tmp_path):
    """Where caches and downloads go."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def cifar(monkeypatch):
    """Forty training and twenty test images that count as CIFAR-10: {split: (images, labels)}."""
    monkeypatch.setattr(sources, "CIFAR10_IMAGES", (40, 20))
    rng = np.random.default_rng(0)
    return {
        split: (rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.permutation(np.arange(n) % 10))
        for split, n in (("train", 40), ("test", 20))
    }


def png(pixels: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels, **options).save(file, "PNG")
    return file.getvalue()


def write_parquet(path: Path, images, labels, column="img", label="label", features=None) -> None:
    """Images are arrays, or the bytes that should stand in the file."""
    encoded = [{"bytes": i if isinstance(i, bytes | None) else png(i), "path": None} for i in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {column: pa.array(encoded, kind), label: pa.array([None if x is None else int(x) for x in labels])}
    )
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_parquet_copy(folder: Path, splits: dict, **options) -> Path:
    for split, (images, labels) in splits.items():
        write_parquet(folder / f"{split}.parquet", images, labels, **options)
    return folder


def write_batches(folder: Path, splits: dict, monkeypatch) -> Path:
    """The published layout, five training batches; torchvision's checksums are replaced by these files' own."""
    from torchvision.datasets import CIFAR10

    folder.mkdir(parents=True)
    sums = {}
    parts = {f"data_batch_{i + 1}": ("train", slice(i * 8, i * 8 + 8)) for i in range(5)}
    for name, (split, rows) in (parts | {"test_batch": ("test", slice(None))}).items():
        images, labels = (array[rows] for array in splits[split])
        batch = {"data": images.transpose(0, 3, 1, 2).reshape(len(images), -1), "labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "train_list", [[f"data_batch_{i}", sums[f"data_batch_{i}"]] for i in range(1, 6)])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    return folder


def write_folders(folder: Path, splits: dict, classes=CIFAR10_CLASSES) -> Path:
    for split, (images, labels) in splits.items():
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            file = folder / split / classes[label] / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(image))
    return folder


def write_idx(folder: Path, zipped: bool, train=30, test=10) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    rng, splits = np.random.default_rng(1), {}
    for split, prefix, n in (("train", "train", train), ("test", "t10k", test)):
        images, labels = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), (np.arange(n) % 10).astype(np.uint8)
        splits[split] = images[..., None], labels
        for name, head, array in (
            (f"{prefix}-images-idx3-ubyte", struct.pack(">4B3I", 0, 0, 8, 3, n, 28, 28), images),
            (f"{prefix}-labels-idx1-ubyte", struct.pack(">4BI", 0, 0, 8, 1, n), labels),
        ):
            content = head + array.tobytes()
            (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return splits


def publish_idx(folder: Path, monkeypatch) -> None:
    """Let these idx files count as the published Fashion-MNIST."""
    for name in IDX_FILES:
        file = next(folder.glob(name + "*"))
        monkeypatch.setitem(sources.FASHION_MNIST_SHA256, name, hashlib.sha256(sources.read_file(file)).hexdigest())


def assert_holds(dataset, splits) -> None:
    for split, (images, labels) in splits.items():
        found, found_labels = getattr(dataset, f"{split}_images"), getattr(dataset, f"{split}_labels")
        assert found.dtype == torch.uint8 and found_labels.dtype == torch.int64
        np.testing.assert_array_equal(found.numpy(), images)
        np.testing.assert_array_equal(found_labels.numpy(), labels)


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def refused(source, root, *words: str) -> str:
    """The message of the `DataError`; it must hold these words, and nothing may have been written."""
    before = everything(root)
    with pytest.raises(DataError) as caught:
        load_data(source, root=root, progress=False)
    for word in words:
        assert word in str(caught.value), caught.value
    assert everything(root) == before
    return str(caught.value)


# The embedded sample ---------------------------------------------------------------------------------------------


def test_embedded_sample_is_balanced_and_normalised(root):
    sample = load_data(root=root)
    assert (sample.name, sample.form) == ("fashion-mnist-sample", "embedded sample")
    assert sample.classes == sources.FASHION_MNIST_CLASSES
    assert (sample.image_size, sample.image_channels) == ((28, 28), 1)
    assert sample.train_labels.bincount().tolist() == [600] * 10
    assert sample.test_labels.bincount().tolist() == [100] * 10
    x = normalize(sample.train_images, sample.mean, sample.std)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    assert everything(root) == []


def test_embedded_sample_comes_with_its_licence_and_true_checksum():
    folder = sources.REPOSITORY_DATA / "fashion-mnist-sample"
    assert "Zalando SE" in (folder / "LICENSE").read_text()
    assert sources.SAMPLE_SHA256 in (folder / "README.md").read_text()
    assert sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) < 4e6


def test_embedded_sample_is_found_whatever_the_data_folder(root, monkeypatch):
    monkeypatch.setenv("ATTNCONV_DATA", str(root))
    assert load_data().name == "fashion-mnist-sample"


def test_damaged_embedded_sample_is_refused(root):
    folder = root / "fashion-mnist-sample"
    folder.mkdir()
    content = bytearray(find_data("embedded").path.read_bytes())
    content[1_000_000] ^= 1
    (folder / "fashion-mnist-sample.npz").write_bytes(content)
    refused("embedded", root, str(folder), "checksum mismatch", "git checkout")


def test_sample_script_picks_the_first_of_each_class_and_repeats_itself(tmp_path):
    splits = write_idx(tmp_path / "idx", zipped=True, train=6500, test=1100)
    script = sources.REPOSITORY_DATA / "fashion-mnist-sample" / "make_sample.py"
    for name in ("a.npz", "b.npz"):
        command = [sys.executable, script, tmp_path / "idx", "--output", tmp_path / name]
        subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    expected = {s: tuple(array[:n] for array in splits[s]) for s, n in (("train", 6000), ("test", 1000))}
    assert_holds(load_data(tmp_path / "a.npz", root=tmp_path), expected)  # labels go 0 to 9, again and again


@pytest.mark.skipif(not sources.DEBIAN_FASHION_MNIST.exists(), reason="needs Debian's dataset-fashion-mnist")
def test_sample_script_rebuilds_the_committed_bytes(tmp_path):
    script = sources.REPOSITORY_DATA / "fashion-mnist-sample" / "make_sample.py"
    subprocess.run([sys.executable, script, "--output", tmp_path / "a.npz"], check=True, capture_output=True)
    assert hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest() == sources.SAMPLE_SHA256


# Every form ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "parent", "archive"])
def test_published_cifar10_batches(tmp_path, root, cifar, monkeypatch, inside):
    from torchvision.datasets import CIFAR10

    folder = write_batches(tmp_path / "copy" / "cifar-10-batches-py", cifar, monkeypatch)
    source = folder.parent if inside == "parent" else folder
    if inside == "archive":
        source = tmp_path / "cifar-10-python.tar.gz"
        with tarfile.open(source, "w:gz") as archive:
            archive.add(folder, "cifar-10-batches-py")
        monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(source.read_bytes()).hexdigest())
    loaded = load_data(source, root=root, progress=False)
    assert_holds(loaded, cifar)
    assert (loaded.name, loaded.classes) == ("cifar10", CIFAR10_CLASSES)
    assert loaded.mean == (0.4914, 0.4822, 0.4465) and loaded.std == (0.2023, 0.1994, 0.2010)


@pytest.mark.parametrize(
    ("files", "column", "label"),
    [
        ({"train": ["train.parquet"], "test": ["test.parquet"]}, "img", "label"),
        (
            {
                "train": [f"plain_text/train-0000{i}-of-00002.parquet" for i in (0, 1)],
                "test": ["plain_text/test-00000-of-00001.parquet"],
            },
            "image",
            "labels",
        ),
        ({"train": [f"data/train/{i}.parquet" for i in (9, 10)], "test": ["data/test/0.parquet"]}, "img", "label"),
    ],
)
def test_parquet_in_each_layout(tmp_path, root, cifar, files, column, label):
    for split, names in files.items():
        images, labels = cifar[split]
        for name, rows in zip(names, np.array_split(np.arange(len(labels)), len(names)), strict=True):
            write_parquet(tmp_path / "copy" / name, images[rows], labels[rows], column, label)
    loaded = load_data(tmp_path / "copy", root=root, progress=False)
    assert_holds(loaded, cifar)
    assert (loaded.name, loaded.form, loaded.classes) == ("cifar10", "Parquet", CIFAR10_CLASSES)


def test_parquet_says_its_class_names_and_that_it_is_jpeg(tmp_path, root, cifar):
    def jpeg(pixels):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=95)
        return file.getvalue()

    digits = {"label": {"names": list("0123456789")}}
    copy = {split: ([jpeg(i) for i in images], labels) for split, (images, labels) in cifar.items()}
    loaded = load_data(write_parquet_copy(tmp_path / "digits", copy, features=digits), root=root, progress=False)
    assert (loaded.name, loaded.classes, loaded.form) == ("digits", tuple("0123456789"), "Parquet, JPEG images")
    np.testing.assert_allclose(loaded.mean, cifar["train"][0].mean((0, 1, 2)) / 255, atol=0.05)
    again = load_data(tmp_path / "digits", root=root, progress=False)  # from the cache
    assert (again.classes, again.form, again.mean) == (loaded.classes, loaded.form, loaded.mean)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_parquet_with_plain_bytes(tmp_path, root, cifar, kind):
    for split, (images, labels) in cifar.items():
        table = pa.table({"image": pa.array(map(png, images), kind), "label": labels})
        pq.write_table(table, tmp_path / f"{split}.parquet")
    assert_holds(load_data(tmp_path, root=root, progress=False), cifar)


def test_image_folders(tmp_path, root, cifar):
    loaded = load_data(write_folders(tmp_path / "copy", cifar), root=root, progress=False)
    by_class = {s: tuple(array[np.argsort(labels, kind="stable")] for array in (images, labels))
                for s, (images, labels) in cifar.items()}  # fmt: skip
    assert_holds(loaded, by_class)
    assert (loaded.name, loaded.classes) == ("cifar10", CIFAR10_CLASSES)


def test_image_folders_with_other_classes_and_gray_images(tmp_path, root):
    images = np.arange(6 * 8 * 10, dtype=np.uint8).reshape(6, 8, 10, 1)
    splits = {"train": (images[:4], [0, 0, 1, 1]), "test": (images[4:], [0, 1])}
    loaded = load_data(write_folders(tmp_path / "copy", splits, ("cat", "yak")), root=root, progress=False)
    assert_holds(loaded, splits)
    assert (loaded.name, loaded.classes, loaded.image_size) == ("copy", ("cat", "yak"), (8, 10))
    np.testing.assert_allclose(loaded.mean, (images[:4] / 255).mean())
    np.testing.assert_allclose(loaded.std, (images[:4] / 255).std())


@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist_idx_files(root, monkeypatch, zipped):
    folder = root / "FashionMNIST" / "raw"
    splits = write_idx(folder, zipped)
    publish_idx(folder, monkeypatch)
    for source in ("fashion-mnist", folder):
        loaded = load_data(source, root=root)
        assert_holds(loaded, splits)
        assert (loaded.name, loaded.form, loaded.mean, loaded.std) == ("fashion-mnist", "idx files", (0.286,), (0.353,))
        assert loaded.classes == sources.FASHION_MNIST_CLASSES


def test_key_of_idx_files_does_not_depend_on_gzip(tmp_path):
    for name in ("a", "b"):
        write_idx(tmp_path / name, zipped=name == "a")
    assert content_key(find_data(tmp_path / "a")) == content_key(find_data(tmp_path / "b"))


@pytest.mark.skipif(not sources.DEBIAN_FASHION_MNIST.exists(), reason="needs Debian's dataset-fashion-mnist")
def test_fashion_mnist_of_debian(root):
    loaded = load_data("fashion-mnist", root=root)
    assert loaded.train_images.shape == (60000, 28, 28, 1) and loaded.test_images.shape == (10000, 28, 28, 1)
    np.testing.assert_allclose((loaded.train_images.numpy() / 255).mean(), 0.2860, atol=5e-5)
    sample = load_data("embedded")
    first = loaded.first(6000, 1000)
    assert torch.equal(first.train_images, sample.train_images) and torch.equal(first.test_labels, sample.test_labels)


def test_npz_without_names(tmp_path, root):
    images, labels = np.zeros((4, 5, 6), np.uint8), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    loaded = load_data(tmp_path / "mine.npz", root=root)
    assert (loaded.name, loaded.classes, loaded.image_size, loaded.std) == ("mine", ("0", "1"), (5, 6), (1.0,))


@pytest.mark.parametrize(("classes", "count"), [(2, 40), (9, 40), (11, 44), (10, 50)])
def test_other_images_of_the_same_size_are_not_taken_for_cifar10(tmp_path, root, cifar, classes, count):
    rng = np.random.default_rng(2)
    images, labels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % classes
    test = {"test_images": images[:20], "test_labels": labels[:20]}
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=labels, **test)
    loaded = load_data(tmp_path / "mine.npz", root=root)
    assert (loaded.name, loaded.classes) == ("mine", tuple(map(str, range(classes))))
    np.testing.assert_allclose(loaded.mean, images.mean((0, 1, 2)) / 255)


def test_cifar10_by_name_finds_what_lies_in_the_data_folder(root, cifar):
    write_parquet_copy(root / "cifar10-jpeg", cifar)
    (root / "cifar100").mkdir()
    assert_holds(load_data("cifar10", root=root, progress=False), cifar)


def test_palette_and_alpha_become_rgb(tmp_path, root):
    pixels = np.full((8, 8, 3), (255, 0, 51), np.uint8)
    files = []
    for image in (Image.fromarray(pixels), Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE)):
        files.append(io.BytesIO())
        image.save(files[-1], "PNG")
    files.append(io.BytesIO())
    Image.fromarray(np.dstack([pixels, np.full((8, 8), 9, np.uint8)])).save(files[-1], "PNG")
    images = [file.getvalue() for file in files]
    loaded = load_data(write_parquet_copy(tmp_path / "c", {"train": (images, [0, 1, 0]), "test": (images[:1], [0])}),
                       root=root, progress=False)  # fmt: skip
    np.testing.assert_array_equal(loaded.train_images.numpy(), np.stack([pixels] * 3))


def test_sources_need_no_torch(tmp_path):
    code = (
        "import sys; from attnconv.sources import *; from attnconv import sources as s; s.content_key(s.find_data());"
    )
    code += "assert not {'torch', 'numpy', 'torchvision', 'pyarrow', 'PIL'} & set(sys.modules), 'imported'"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_data_imports_no_readers_until_used():
    code = "import sys, attnconv.data; assert not {'torchvision', 'pyarrow', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


# Cache and key ---------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path, cifar):
    return write_parquet_copy(tmp_path / "copy", cifar)


def test_second_load_comes_from_the_cache(copy, root, cifar, monkeypatch):
    first = load_data(copy, root=root, progress=False)
    assert everything(root) == ["cache", f"cache/{first.key}.v2.safetensors"]
    monkeypatch.setitem(data._READERS, sources.PARQUET, None)
    second = load_data(copy, root=root, progress=False)
    assert_holds(second, cifar)
    assert (first.key, first.name, first.form) == (second.key, second.name, second.form)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("damage", ["truncated", "flipped", "renamed", "empty", "header"])
def test_damaged_cache_is_made_again(copy, root, cifar, damage):
    load_data(copy, root=root, progress=False)
    [cache] = (root / "cache").iterdir()
    whole = cache.read_bytes()
    flipped = bytearray(whole)
    flipped[-5000] ^= 4
    damaged = {"truncated": whole[:-1000], "flipped": flipped, "renamed": whole.replace(b"horse", b"house")}
    cache.write_bytes(damaged.get(damage, b"x" * 8000 if damage == "header" else b""))
    with pytest.warns(UserWarning, match="damaged"):
        assert_holds(load_data(copy, root=root, progress=False), cifar)
    assert cache.stat().st_size == len(whole)
    load_data(copy, root=root, progress=False)  # whole again: a warning would be an error


def test_half_written_cache_is_never_read_and_goes_away(copy, root, cifar, monkeypatch):
    import safetensors.torch

    def killed(tensors, path, meta):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(safetensors.torch, "save_file", killed)
        load_data(copy, root=root, progress=False)
    assert everything(root) == ["cache"]
    left = root / "cache" / "left.partial"  # by a process that had no time to clean up
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    loaded = load_data(copy, root=root, progress=False)
    assert_holds(loaded, cifar)
    assert everything(root) == ["cache", f"cache/{loaded.key}.v2.safetensors"]


def test_cache_appears_whole_by_a_rename_in_its_folder(copy, root, cifar, monkeypatch):
    moves, replace = [], os.replace

    def watched(old, new):
        moves.append((Path(old).parent == Path(new).parent, Path(new).exists(), Path(old).stat().st_size))
        replace(old, new)

    monkeypatch.setattr(os, "replace", watched)
    load_data(copy, root=root, progress=False)
    [cache] = (root / "cache").iterdir()
    assert moves == [(True, False, cache.stat().st_size)]


def test_without_a_place_for_the_cache_it_warns_and_goes_on(copy, root, cifar):
    (root / "cache").write_text("a file in the way")
    with pytest.warns(UserWarning, match="cannot be cached"):
        assert_holds(load_data(copy, root=root, progress=False), cifar)
    assert everything(root) == ["cache"]


def test_key_follows_the_content(tmp_path, copy, root, cifar):
    keys = {load_data(copy, root=root, progress=False).key}
    moved = tmp_path / "moved"
    copy.rename(moved)
    assert load_data(moved, root=root, progress=False).key in keys
    cifar["test"][0][3, 4, 5, 1] ^= 1
    write_parquet_copy(moved, cifar)
    changed = load_data(moved, root=root, progress=False)
    assert changed.key not in keys
    assert_holds(changed, cifar)


def test_key_of_image_folders_knows_the_class(tmp_path, cifar):
    folder = write_folders(tmp_path / "copy", cifar)
    before = content_key(find_data(folder))
    last = sorted((folder / "train" / "airplane").iterdir())[-1]
    last.rename(folder / "train" / "automobile" / "0.png")
    assert content_key(find_data(folder)) != before


# Refusals --------------------------------------------------------------------------------------------------------


def test_missing_path(tmp_path, root):
    refused(tmp_path / "nowhere", root, "nowhere", "'embedded'")


def test_unrecognised_folder_says_what_is_there_and_what_is_understood(tmp_path, root):
    folder = tmp_path / "stuff"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello")
    refused(folder, root, "notes.txt", "Parquet", "image folders", "idx files", "cifar-10-batches-py", "npz")
    refused(folder / "notes.txt", root, "notes.txt", "a file of 5 bytes")
    (folder / "notes.txt").unlink()
    refused(folder, root, "holds nothing")


def test_two_data_sets_in_one_folder(tmp_path, root, cifar):
    for name in ("a", "b"):
        write_parquet_copy(tmp_path / "both" / name, cifar)
    refused(tmp_path / "both", root, "2 data sets", str(tmp_path / "both" / "a"), "Name one")


@pytest.mark.parametrize("name", ["data_batch_3", "test_batch"])
def test_cifar10_batches_missing_truncated_or_changed(tmp_path, root, cifar, monkeypatch, name):
    file = write_batches(tmp_path / "cifar-10-batches-py", cifar, monkeypatch) / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    refused(file.parent, root, str(file), "checksum mismatch", "Delete")

    class Evil:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "evil", "ran"))

    file.write_bytes(pickle.dumps(Evil()))
    refused(file.parent, root, str(file), "checksum mismatch")
    assert not (tmp_path / "evil").exists()  # never unpickled
    file.unlink()
    refused(file.parent, root, name, "misses")


def test_truncated_archive(root):
    (root / "cifar-10-python.tar.gz").write_bytes(b"\x1f\x8b half")
    refused("cifar10", root, str(root / "cifar-10-python.tar.gz"), "checksum mismatch", "Delete")


def test_truncated_parquet(copy, root):
    for damaged in ("test.parquet", "train.parquet"):
        file = copy / damaged
        file.write_bytes(file.read_bytes()[:-100])
        refused(copy, root, str(file), "truncated")


def test_damaged_parquet_pages(copy, root):
    file = copy / "train.parquet"
    content = bytearray(file.read_bytes())
    content[20:200] = bytes(180)
    file.write_bytes(content)
    refused(copy, root, str(file), "copy" if "row" in refused(copy, root) else "Copy")


def test_missing_split_and_missing_shard(tmp_path, copy, root):
    (copy / "test.parquet").rename(copy / "train-00000-of-00003.parquet")
    refused(copy, root, "3 shards", "train-00000-of-00003.parquet")
    (copy / "train-00000-of-00003.parquet").unlink()
    refused(copy, root, "no test*.parquet", "train.parquet")
    refused(copy / "train.parquet", root, "train.parquet", "folder")


def test_wrong_columns(tmp_path, root, cifar):
    folder = write_parquet_copy(tmp_path / "c", cifar, column="picture")
    refused(folder, root, str(folder / "train.parquet"), "picture (struct", "label (int64)", "img or image")
    folder = write_parquet_copy(tmp_path / "d", cifar, label="target")
    refused(folder, root, str(folder / "train.parquet"), "target (int64)", "label or labels")
    pq.write_table(pa.table({"img": [1, 2], "label": ["a", "b"]}), folder / "train.parquet")
    refused(folder, root, "img (int64)", "label (string)", "(binary, or a struct with bytes)")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("bad", [10, 57, -1])
def test_label_out_of_range(tmp_path, root, cifar, split, bad):
    cifar[split][1][17] = bad
    features = {"label": {"names": list(CIFAR10_CLASSES)}}
    folder = write_parquet_copy(tmp_path / "c", cifar, features=features)
    refused(folder, root, str(folder / f"{split}.parquet"), "row 17", f"label {bad}", "0 to 9")


def test_label_out_of_range_where_the_file_names_no_classes(tmp_path, root, cifar):
    cifar["train"][1][17] = 57
    folder = write_parquet_copy(tmp_path / "c", cifar)
    refused(folder, root, "train.parquet, row 17", "label 57", "0 to 9")


def test_a_label_beyond_int64_is_out_of_range(tmp_path, root, cifar):
    folder = write_parquet_copy(tmp_path / "c", cifar)
    labels = cifar["train"][1].astype(np.uint64)
    labels[17] = 2**63 + 5
    images = pa.array([png(image) for image in cifar["train"][0]])
    pq.write_table(pa.table({"img": images, "label": labels}), folder / "train.parquet")
    refused(folder, root, "train.parquet, row 17", f"label {2**63 + 5} is out of range")
    (images, _), (test, test_labels) = cifar["train"], cifar["test"]
    arrays = dict(train_images=images, train_labels=labels, test_images=test, test_labels=test_labels)
    np.savez(tmp_path / "mine.npz", **arrays)
    refused(tmp_path / "mine.npz", root, "train split, row 17", f"label {2**63 + 5} is out of range")


@pytest.mark.parametrize("split", ["train", "test"])
def test_undecodable_image(tmp_path, root, cifar, split):
    images = list(cifar[split][0])
    for bad in (b"no image", b"", png(images[0])[:-60]):
        images[11] = bad
        folder = write_parquet_copy(tmp_path / "c", cifar | {split: (images, cifar[split][1])})
        message = refused(folder, root, str(folder / f"{split}.parquet"), "row 11", "cannot be decoded")
        assert "0x" not in message and ("not an image" in message) == (len(bad) < 10)
    images[11] = None
    folder = write_parquet_copy(tmp_path / "c", cifar | {split: (images, cifar[split][1])})
    refused(folder, root, "row 11", "no image bytes")


def test_missing_label(tmp_path, root, cifar):
    labels = [None if i == 5 else x for i, x in enumerate(cifar["train"][1])]
    folder = write_parquet_copy(tmp_path / "c", cifar | {"train": (cifar["train"][0], labels)})
    refused(folder, root, "train.parquet, row 5", "no label")


def test_undecodable_file_in_image_folders(tmp_path, root, cifar):
    folder = write_folders(tmp_path / "c", cifar)
    file = next((folder / "test" / "frog").iterdir())
    file.write_bytes(b"no image")
    refused(folder, root, str(file), "cannot be decoded")


def test_images_of_another_size_or_channels_or_depth(tmp_path, root, cifar):
    for bad, words in (
        (np.zeros((32, 31, 3), np.uint8), ("32x31", "32x32")),
        (np.zeros((32, 32, 1), np.uint8), ("1 channels", "has 3")),
        (np.zeros((32, 32), np.uint16), ("I;16", "8-bit")),
    ):
        images = list(cifar["test"][0])
        images[7] = png(bad)
        folder = write_parquet_copy(tmp_path / "c", cifar | {"test": (images, cifar["test"][1])})
        refused(folder, root, str(folder / "test.parquet"), "row 7", *words)


def test_empty_splits(tmp_path, root, cifar):
    folder = write_parquet_copy(tmp_path / "c", cifar | {"test": ([], [])})
    refused(folder, root, str(folder / "test.parquet"), "empty")
    folder = write_folders(tmp_path / "f", {"train": cifar["train"]})
    (folder / "test" / "frog").mkdir(parents=True)
    refused(folder, root, str(folder / "test"), "no images")


def test_test_split_with_another_class(tmp_path, root):
    images = np.zeros((3, 4, 4, 1), np.uint8)
    folder = write_folders(tmp_path / "c", {"train": (images, [0, 1, 1]), "test": (images, [0, 1, 2])}, ("a", "b", "c"))
    refused(folder, root, str(folder / "test" / "c"), "'c'", "a, b")


def test_one_class_only(tmp_path, root):
    images = np.zeros((3, 4, 4, 1), np.uint8)
    folder = write_folders(tmp_path / "c", {"train": (images, [0, 0, 0]), "test": (images, [0, 0, 0])}, ("cat",))
    refused(folder, root, f"{folder} has one class only, 'cat'", "Add")


def test_damaged_idx_files(tmp_path, root, monkeypatch):
    folder = tmp_path / "idx"
    write_idx(folder, zipped=False)
    file = folder / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    refused(folder, root, str(file), "truncated", "30x28x28")
    file.write_bytes(whole[:6])
    refused(folder, root, str(file), "truncated")
    file.write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 29, 28, 28) + whole[16:-784])
    refused(folder, root, str(file), "29 images, but 30 labels")
    file.unlink()
    refused(folder, root, file.name, "misses")


def test_damaged_gzip(tmp_path, root):
    folder = tmp_path / "idx"
    write_idx(folder, zipped=True)
    for name in IDX_FILES:
        file = folder / f"{name}.gz"
        whole = file.read_bytes()
        file.write_bytes(whole[:-20])
        refused(folder, root, str(file), "truncated")
        file.write_bytes(whole)


def test_fashion_mnist_with_a_changed_byte(root, monkeypatch):
    folder = root / "FashionMNIST" / "raw"
    write_idx(folder, zipped=False)
    publish_idx(folder, monkeypatch)
    file = folder / "train-images-idx3-ubyte"
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    refused("fashion-mnist", root, str(file), "checksum mismatch")


def test_wrong_npz_files(tmp_path, root):
    file = tmp_path / "mine.npz"
    images, labels = np.zeros((4, 5, 6), np.uint8), np.array([0, 1, 1, 0])
    good = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    for change, words in (
        ({"test_images": images[:3]}, ("3 images", "4 labels", "test split")),
        ({"train_images": images.astype(np.float32)}, ("float32", "uint8")),
        ({"train_images": np.zeros((4, 5, 6, 2), np.uint8)}, ("(4, 5, 6, 2)",)),
        ({"train_images": images[:, :0], "test_images": images[:, :0]}, ("(4, 0, 6)", "at least 1")),
        ({"train_labels": labels.astype(float)}, ("float64", "integers")),
        ({"test_images": np.zeros((4, 5, 7), np.uint8)}, ("5x7x1", "5x6x1")),
        ({"test_labels": np.array([0, 1, 2, 0])}, ("test split, row 2", "label 2", "0 to 1")),
        ({"train_labels": np.array([[0]] * 4)}, ("(4, 1)",)),
        ({"train_labels": np.array([0, None, 1, 1], object)}, ("Object arrays",)),
    ):
        np.savez(file, **(good | change))
        refused(file, root, str(file), *words)
    np.savez(file, images=images)
    refused(file, root, str(file), "train_images", "it has images")
    np.savez(file, **good)
    file.write_bytes(file.read_bytes()[:-50])
    refused(file, root, str(file), "truncated")


def test_something_else_under_the_name_cifar10(root):
    images = np.zeros((4, 8, 8, 1), np.uint8)
    write_folders(root / "cifar10", {"train": (images, [0, 1, 0, 1]), "test": (images, [0, 1, 0, 1])}, ("cat", "yak"))
    with pytest.raises(DataError, match="not CIFAR-10"):
        load_data("cifar10", root=root, progress=False)


# Download --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist"])
def test_no_network(tmp_path, root, monkeypatch, name):
    from torchvision import datasets

    def offline(self):
        (Path(self.root) / "half.tar.gz").write_bytes(b"half")
        assert socket.getdefaulttimeout() == 30
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(sources, "DEBIAN_FASHION_MNIST", tmp_path / "not installed")
    for kind in (datasets.CIFAR10, datasets.FashionMNIST):
        monkeypatch.setattr(kind, "download", offline)
    refused(name, root, str(root), "no route to host", "By hand", "'embedded'")
    refused(name, tmp_path / "new", "no route to host")
    assert not (tmp_path / "new").exists() and socket.getdefaulttimeout() is None


@pytest.fixture
def local_server(monkeypatch):
    """A function that serves a folder on this machine and gives its address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def serve(folder: Path) -> str:
        handler = functools.partial(QuietHandler, directory=folder)
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


def test_downloaded_cifar10_is_moved_to_the_data_folder(tmp_path, root, cifar, monkeypatch, local_server):
    from torchvision.datasets import CIFAR10

    copy = write_batches(tmp_path / "served" / "cifar-10-batches-py", cifar, monkeypatch)
    meta = pickle.dumps({"label_names": list(CIFAR10_CLASSES)})
    (copy / "batches.meta").write_bytes(meta)
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": hashlib.md5(meta).hexdigest()})
    served = tmp_path / "http" / "served.tar.gz"
    served.parent.mkdir()
    with tarfile.open(served, "w:gz") as archive:
        archive.add(copy, copy.name)
    monkeypatch.setattr(CIFAR10, "url", f"{local_server(served.parent)}/served.tar.gz")
    monkeypatch.setattr(CIFAR10, "tgz_md5", "0" * 32)
    refused("cifar10", root, "corrupted", "By hand")  # torchvision checks the sum of what it fetched

    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(served.read_bytes()).hexdigest())
    assert_holds(load_data("cifar10", root=root, progress=False), cifar)
    assert [p.name for p in root.iterdir()] == ["cifar-10-batches-py"]
    served.unlink()
    assert_holds(load_data("cifar10", root=root, progress=False), cifar)  # not fetched again


# Subsets ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    return load_data("embedded")


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


# Batches ---------------------------------------------------------------------------------------------------------


def test_plan_is_a_function_of_seed_and_epoch():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    plan = epoch_plan(5000, seed=1, epoch=2, augment=True)
    again = epoch_plan(5000, seed=1, epoch=2, augment=True)
    assert torch.equal(torch.get_rng_state(), state)
    names = ("order", "rows", "columns", "flips")
    assert all(torch.equal(getattr(plan, name), getattr(again, name)) for name in names)
    assert torch.equal(plan.order.sort().values, torch.arange(5000))
    for offsets in (plan.rows, plan.columns):
        assert offsets.unique().tolist() == list(range(9))
    assert not torch.equal(plan.rows, plan.columns)
    assert 0.45 < plan.flips.float().mean() < 0.55
    for other in (epoch_plan(5000, seed=2, epoch=1, augment=True), epoch_plan(5000, seed=1, epoch=3, augment=True)):
        assert not any(torch.equal(getattr(plan, name), getattr(other, name)) for name in names)
    plain = epoch_plan(5000, seed=1, epoch=2, augment=False)
    assert torch.equal(plain.order, plan.order) and plain.rows is plain.columns is plain.flips is None


@pytest.mark.parametrize("channels", [1, 3])
def test_augment_equals_torchvision(channels):
    from torchvision.transforms.v2 import functional as tv

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (200, 7, 12, channels), dtype=torch.uint8, generator=generator)
    plan = epoch_plan(200, seed=0, epoch=0, augment=True)
    assert {0, 8} <= set(plan.rows.tolist()) and {0, 8} <= set(plan.columns.tolist())
    result = augment(images, plan.rows, plan.columns, plan.flips)
    assert result.dtype == torch.uint8
    for i, image in enumerate(images.permute(0, 3, 1, 2)):
        expected = tv.crop(tv.pad(image, [4]), int(plan.rows[i]), int(plan.columns[i]), 7, 12)
        expected = tv.horizontal_flip(expected) if plan.flips[i] else expected
        assert torch.equal(result[i].permute(2, 0, 1), expected), i


def test_normalize_equals_torchvision(cifar):
    from torchvision.transforms.v2 import functional as tv

    images = torch.from_numpy(cifar["train"][0])
    mean, std = data.STATISTICS["cifar10"]
    result = normalize(images, mean, std)
    expected = tv.normalize(images.permute(0, 3, 1, 2).float() / 255, mean, std)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
    assert result.shape == (40, 3, 32, 32) and result.is_contiguous(memory_format=torch.channels_last)
    assert normalize(images, mean, std, torch.bfloat16).dtype == torch.bfloat16


def test_batches_follow_the_plan_from_any_step(sample):
    small = sample.first(103, None)
    images, labels, statistics = small.train_images, small.train_labels, (small.mean, small.std)
    plan = epoch_plan(103, seed=0, epoch=1, augment=True)
    steps = list(batches(images, labels, plan, 20, *statistics))
    assert [len(y) for _, y in steps] == [20, 20, 20, 20, 20, 3]
    assert torch.equal(torch.cat([y for _, y in steps]), labels[plan.order])
    whole = normalize(augment(images[plan.order], plan.rows, plan.columns, plan.flips), *statistics)
    assert torch.equal(torch.cat([x for x, _ in steps]), whole)
    resumed = list(batches(images, labels, plan, 20, *statistics, start=4))
    assert len(resumed) == 2 and torch.equal(resumed[0][0], steps[4][0])
    assert list(batches(images, labels, plan, 20, *statistics, start=6)) == []

    plain = epoch_plan(103, seed=0, epoch=1, augment=False)
    x = torch.cat([x for x, _ in batches(images, labels, plain, 20, *statistics)])
    assert torch.equal(x, normalize(images[plan.order], *statistics))
    x = torch.cat([x for x, _ in batches(images, labels, None, 20, *statistics)])
    assert torch.equal(x, normalize(images, *statistics))


def test_dataset_moves_to_a_device(sample):
    assert sample.to("meta").train_images.device.type == "meta" and sample.train_images.device.type == "cpu"
