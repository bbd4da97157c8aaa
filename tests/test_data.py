"""Data: every form is read exactly; what is wrong is refused with its place, and leaves nothing
behind.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import itertools
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from torchvision.transforms.v2 import functional as tv

from attnconv.training import data
from attnconv.training.data import (
    CIFAR10_CLASSES,
    SPLITS,
    DataError,
    MissingData,
    content_key,
    find_data,
    load_data,
)
from attnconv.training.runs import held
from conftest import assert_waits

# Writers: each puts four arrays on disk, named as in `data.ARRAYS`, and gives the path of what it
# wrote ------------


def some(train=40, test=20, shape=(32, 32, 3), classes=10) -> dict[str, np.ndarray]:
    """Random images, and labels of each class in random order."""
    rng, arrays = np.random.default_rng(0), {}
    for split, n in (("train", train), ("test", test)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        arrays[f"{split}_labels"] = rng.permutation(np.arange(n) % classes)
    return arrays


SMALL, GRAY = some(12, 6, (8, 7, 3), 3), some(12, 6, (8, 7, 1), 3)


def with_row_7(value: object, name: str = "train_images") -> dict:
    """`SMALL` with another value in row 7 of one array."""
    return SMALL | {name: [*SMALL[name][:7], value, *SMALL[name][8:]]}


def by_class(arrays: dict) -> dict:
    """The same in the order of class folders."""
    orders = {split: np.argsort(arrays[f"{split}_labels"], kind="stable") for split in SPLITS}
    return {name: array[orders[name.split("_")[0]]] for name, array in arrays.items()}


def encoded(pixels: np.ndarray, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(file, form, **options)
    return file.getvalue()


def parquet(
    folder: Path, arrays: dict, *, image="img", label="label", plain=None, shards=1
) -> Path:
    """Images are arrays, or bytes as they are; ``plain``: a binary type instead of the Hub's
    struct.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        images = [
            i if isinstance(i, bytes | None) else encoded(i) for i in arrays[f"{split}_images"]
        ]
        column = (
            pa.array(images, plain)
            if plain
            else pa.array([{"bytes": i, "path": "0.png"} for i in images])
        )
        table = pa.table({image: column, label: pa.array(arrays[f"{split}_labels"])})
        for shard, rows in enumerate(np.array_split(np.arange(len(table)), shards)):
            name = f"{split}-{shard:05}-of-{shards:05}" if shards > 1 else split
            pq.write_table(table.take(rows), folder / f"{name}.parquet")
    return folder


def folders(folder: Path, arrays: dict, classes=CIFAR10_CLASSES) -> Path:
    for split in SPLITS:
        for i, label in enumerate(arrays[f"{split}_labels"]):
            file = folder / split / classes[label] / f"{i:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(arrays[f"{split}_images"][i]))
    return folder


def npz(file: Path, arrays: dict, **more) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **{name: array for name, array in (arrays | more).items() if array is not None})
    return file


def md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


def batches(folder: Path, arrays: dict, monkeypatch) -> Path:
    """The published layout, five training batches; torchvision's checksums are replaced by these
    files' own.
    """
    folder.mkdir(parents=True)
    for split in SPLITS:
        files = [folder / name for name, _ in getattr(CIFAR10, f"{split}_list")]
        parts = [
            np.array_split(arrays[f"{split}_{part}"], len(files)) for part in ("images", "labels")
        ]
        for file, images, labels in zip(files, *parts, strict=True):
            rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            file.write_bytes(pickle.dumps({"data": rows, "labels": labels.tolist()}))
        monkeypatch.setattr(CIFAR10, f"{split}_list", [[file.name, md5(file)] for file in files])
    meta = folder / "batches.meta"
    meta.write_bytes(pickle.dumps({"label_names": list(CIFAR10_CLASSES)}))
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5(meta)})
    return folder


def archive(file: Path, arrays: dict, monkeypatch) -> Path:
    folder = batches(file.parent / "unpacked" / "cifar-10-batches-py", arrays, monkeypatch)
    with tarfile.open(file, "w:gz") as tar:
        tar.add(folder, folder.name)
    shutil.rmtree(folder.parent)
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(file))
    return file


def spoiled(folder: Path, name: str, content: bytes) -> Path:
    """The folder with this content in that file of it."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


def flip(file: Path, at: int) -> None:
    """One bit of that byte."""
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


# Checks
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    """The data folder: where caches and downloads go."""
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setenv("ATTNCONV_DATA", str(folder))
    monkeypatch.setenv("ATTNCONV_QUIET", "1")
    return folder


@pytest.fixture
def cifar(monkeypatch) -> dict:
    """Images that count as CIFAR-10."""
    monkeypatch.setattr(data, "CIFAR10_IMAGES", (40, 20))
    return some()


def assert_holds(dataset, arrays: dict) -> None:
    for name, array in arrays.items():
        found = getattr(dataset, name)
        assert found.dtype == (torch.uint8 if name.endswith("images") else torch.int64)
        np.testing.assert_array_equal(found.numpy(), array)


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def refused(source: str | Path, *words: object) -> None:
    """A `DataError` of one line with these words, and with the path that was given; nothing may
    have been written.
    """
    root = Path(os.environ["ATTNCONV_DATA"])
    before = everything(root)
    with pytest.raises(DataError) as caught:
        load_data(source)
    for word in (*words, source if isinstance(source, Path) else ""):
        assert str(word) in str(caught.value)
    assert "\n" not in str(caught.value) and everything(root) == before


# The embedded sample
# ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    return load_data("embedded")


def test_embedded_sample(sample, root):
    assert (sample.name, sample.form) == ("fashion-mnist-sample", "embedded sample")
    assert (
        sample.key == "fa086e380daed098d0cf73df9491c262ba86da6dffb89c77ea244fda824b92e4"
    )  # names recorded runs
    assert sample.classes == tuple(FashionMNIST.classes)
    assert (sample.image_size, sample.image_channels) == ((28, 28), 1)
    assert sample.train_labels.bincount().tolist() == [600] * 10
    assert sample.test_labels.bincount().tolist() == [100] * 10
    x = data.normalize(sample.train_images, sample.mean, sample.std)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02
    # It is found whatever the data folder, and nothing is written.
    assert find_data().path.is_relative_to(data.REPOSITORY_DATA) and everything(root) == []
    content, folder = find_data().path.read_bytes(), find_data().path.parent
    assert "Zalando SE" in (folder / "LICENSE").read_text() and len(content) < 4e6
    assert hashlib.sha256(content).hexdigest() in (folder / "README.md").read_text()


def test_damaged_or_missing_embedded_sample(tmp_path, monkeypatch):
    folder = find_data("embedded").path.parent
    monkeypatch.setattr(data, "REPOSITORY_DATA", tmp_path)
    flip(shutil.copytree(folder, tmp_path / folder.name) / "fashion-mnist-sample.npz", 1_000_000)
    refused("embedded", tmp_path, "cannot be read", "replace it")
    shutil.rmtree(tmp_path / folder.name)
    with pytest.raises(
        DataError, match="There is no data set.*fashion-mnist-sample.npz.*git checkout data"
    ):
        load_data("embedded")


@pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").exists(), reason="needs dataset-fashion-mnist"
)
def test_the_sample_is_made_of_fashion_mnist(tmp_path):
    script = data.REPOSITORY_DATA / "fashion-mnist-sample" / "make_sample.py"
    subprocess.run(
        [sys.executable, script, "--output", tmp_path / "a.npz"], check=True, capture_output=True
    )
    assert (tmp_path / "a.npz").read_bytes() == find_data("embedded").path.read_bytes()


# Every form
# ------------------------------------------------------------------------------------------------------

CIFAR10_FORMS = {
    "cifar-10-batches-py": lambda p, arrays, m: batches(p / "cifar-10-batches-py", arrays, m),
    "Parquet": lambda p, arrays, m: parquet(p / "c", arrays),
    "Parquet, the Hub's": lambda p, arrays, m: parquet(
        p / "c", arrays, image="image", label="labels", shards=2
    ),
    "Parquet, large binary": lambda p, arrays, m: parquet(p / "c", arrays, plain=pa.large_binary()),
    "strip": lambda p, arrays, m: npz(p / "c.npz", arrays, classes=CIFAR10_CLASSES, form="Parquet"),
    "image folders": lambda p, arrays, m: folders(p / "c", arrays),
}


@pytest.mark.parametrize("form", CIFAR10_FORMS)
def test_cifar10_in_each_form(tmp_path, cifar, monkeypatch, form):
    loaded = load_data(CIFAR10_FORMS[form](tmp_path, cifar, monkeypatch))
    assert_holds(loaded, by_class(cifar) if form == "image folders" else cifar)
    assert (loaded.name, loaded.classes) == ("cifar10", CIFAR10_CLASSES)
    assert (loaded.mean, loaded.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert loaded.form == ("Parquet" if form == "strip" else form.partition(",")[0])


def test_cifar10_as_published_may_lie_in_a_folder_of_any_name(tmp_path, root, cifar, monkeypatch):
    folder = batches(tmp_path / "my cifar", cifar, monkeypatch)
    loaded = load_data(folder)
    assert_holds(loaded, cifar)
    assert loaded.name == "cifar10" and loaded.train_images.is_contiguous()
    folder.rename(root / "cifar10")
    assert_holds(load_data("cifar10"), cifar)


def test_own_images_in_folders(tmp_path):
    folder = folders(tmp_path / "my.gray", GRAY, ("cat", "ox", "yak"))
    spoiled(folder, "train/yak/.DS_Store", b"of a Mac")
    (folder / "train" / "empty").mkdir()
    loaded = load_data(folder)
    assert_holds(loaded, by_class(GRAY))
    assert (loaded.name, loaded.form, loaded.classes) == (
        "my.gray",
        "image folders",
        ("cat", "ox", "yak"),
    )
    assert loaded.image_size == (8, 7)
    measured = [[f(GRAY["train_images"] / 255)] for f in (np.mean, np.std)]
    np.testing.assert_allclose((loaded.mean, loaded.std), measured)


def test_statistics_and_jpeg_of_other_images(tmp_path):
    arrays = some(classes=9)
    jpeg = {
        f"{split}_images": [encoded(i, "JPEG", quality=95) for i in arrays[f"{split}_images"]]
        for split in SPLITS
    }
    folder = parquet(tmp_path / "digits", arrays | jpeg)
    for _ in range(2):  # the second time from the cache
        loaded = load_data(folder)
        assert (loaded.name, loaded.classes, loaded.form) == (
            "digits",
            tuple("012345678"),
            "Parquet, JPEG images",
        )
        np.testing.assert_allclose(
            loaded.mean, arrays["train_images"].mean((0, 1, 2)) / 255, atol=0.05
        )
        with Image.open(io.BytesIO(jpeg["train_images"][7])) as image:
            np.testing.assert_array_equal(loaded.train_images[7], np.asarray(image))


@pytest.mark.parametrize(
    ("classes", "train", "size"), [(2, 40, 32), (11, 40, 32), (10, 50, 32), (10, 40, 28)]
)
def test_other_images_are_not_taken_for_cifar10(tmp_path, cifar, classes, train, size):
    arrays = some(train, 20, (size, size, 3), classes=classes)
    loaded = load_data(parquet(tmp_path / "mine", arrays))
    assert (loaded.name, loaded.classes) == ("mine", tuple(map(str, range(classes))))
    np.testing.assert_allclose(loaded.mean, arrays["train_images"].mean((0, 1, 2)) / 255)


def test_labels_need_not_be_0_1_2(tmp_path):
    arrays = SMALL | {f"{split}_labels": SMALL[f"{split}_labels"] * 5 + 2 for split in SPLITS}
    loaded = load_data(parquet(tmp_path / "c", arrays))
    assert_holds(loaded, SMALL)
    assert loaded.classes == ("2", "7", "12")


def test_cifar10_by_name_finds_what_lies_in_the_data_folder(root, cifar):
    parquet(root / "cifar10", cifar)
    assert_holds(load_data("cifar10"), cifar)
    shutil.rmtree(root)
    folders(root / "cifar10", GRAY)
    with pytest.raises(DataError, match="not CIFAR-10 as published"):
        load_data("cifar10")


def test_gray_palette_and_alpha(tmp_path):
    pixels = np.full((8, 8, 3), (255, 0, 51), np.uint8)
    palette = io.BytesIO()
    Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE).save(palette, "PNG")
    images = [pixels, palette.getvalue(), encoded(np.dstack([pixels, pixels[..., 0]]))]
    arrays = {
        "train_images": images,
        "train_labels": [0, 1, 0],
        "test_images": images[:2],
        "test_labels": [0, 1],
    }
    np.testing.assert_array_equal(
        load_data(parquet(tmp_path / "c", arrays)).train_images, np.stack([pixels] * 3)
    )


# Cache and key
# ---------------------------------------------------------------------------------------------------


def test_cache_is_used_and_made_again_when_damaged(tmp_path, root, cifar, monkeypatch):
    folder = parquet(tmp_path / "copy", cifar)
    first = load_data(folder)
    assert everything(root) == ["cache", f"cache/{first.key}.npz"]
    cache = root / "cache" / f"{first.key}.npz"
    whole = cache.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(data, "_decoded", None)
        second = load_data(folder)
        assert_holds(second, cifar)
        assert (first.name, first.form, first.classes) == (second.name, second.form, second.classes)
    for damaged in (whole[:-1000], whole[:5000] + b"x" + whole[5001:], b""):
        cache.write_bytes(damaged)
        assert_holds(load_data(folder), cifar)
        assert len(cache.read_bytes()) == len(whole) and len(everything(root)) == 2
    shutil.rmtree(root / "cache")
    (root / "cache").write_text("a file in the way")
    assert_holds(load_data(folder), cifar)
    assert everything(root) == ["cache"]


def test_key_follows_the_content(tmp_path, cifar):
    folder = parquet(tmp_path / "copy", cifar)
    key = content_key(find_data(folder))
    assert content_key(find_data(folder.rename(tmp_path / "moved"))) == key
    cifar["test_images"][3, 4, 5, 1] ^= 1
    assert content_key(find_data(parquet(tmp_path / "moved", cifar))) != key
    folder = folders(tmp_path / "folders", cifar)
    key = content_key(find_data(folder))
    last = sorted((folder / "train" / "airplane").iterdir())[-1]
    last.rename(
        folder / "train" / "automobile" / "0.png"
    )  # the same bytes in the same order, of another class
    assert content_key(find_data(folder)) != key


@pytest.mark.parametrize(
    ("train", "test", "key"),
    [
        (
            "train.parquet",
            "test.parquet",
            "fa069f67a1bb9f84cabd6b47351b806f83a64e5d9664a0b9f2b2abe9f20bba91",
        ),
        (
            "train/cat/1.png",
            "test/ox/2.png",
            "d960387ef4f320ccf8640cdff344b74f6e073d8217e547fb99d5b61c5075f4ec",
        ),
        (
            "data_batch_1",
            "test_batch",
            "3506d739c5fa5f2508a3c8f67a37bde7381a44294ff43341a93389485b06f004",
        ),
    ],
)
def test_the_keys_that_name_recorded_runs_stay(tmp_path, train, test, key):
    """As the first version gave them."""
    assert content_key(find_data(spoiled(spoiled(tmp_path, train, b"a"), test, b"bc"))) == key


# Damage
# ----------------------------------------------------------------------------------------------------------

SUMMED = ("cifar-10-batches-py", "strip")  # every byte is under a checksum


@pytest.mark.parametrize("form", [*SUMMED, "Parquet, the Hub's", "image folders"])
def test_damage_is_refused_harmless_or_gives_another_key(tmp_path, monkeypatch, form):
    """Where a form has no checksum of its own, the key tells: no run is misnamed."""
    home = CIFAR10_FORMS[form](tmp_path / "home", some(10, 5, classes=5), monkeypatch)
    whole = load_data(home)
    files = sorted(file for file in home.parent.rglob("*") if file.is_file())
    kinds = st.sampled_from(["cut", "delete", "flip"])

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(files), kinds, st.floats(0, 0.9999), st.integers(0, 7))
    def damage(file, kind, where, bit):
        content = file.read_bytes()
        at = int(where * len(content))
        damaged = content[:at] + (bytes([content[at] ^ 1 << bit]) + content[at + 1 :]) * (
            kind == "flip"
        )
        try:
            file.unlink() if kind == "delete" else file.write_bytes(damaged)
            loaded = load_data(home)
        except DataError as error:
            assert str(home) in str(error)
            return
        finally:
            file.write_bytes(content)
        same = all(torch.equal(getattr(loaded, name), getattr(whole, name)) for name in data.ARRAYS)
        assert (same and loaded.classes == whole.classes) or (
            form not in SUMMED and loaded.key != whole.key
        )

    damage()


def test_cifar10_files_missing_or_of_another_checksum_are_never_unpickled(
    tmp_path, cifar, monkeypatch
):
    class Evil:
        def __reduce__(self):
            return (Path.write_text, (tmp_path / "evil", "ran"))

    file = batches(tmp_path / "cifar-10-batches-py", cifar, monkeypatch) / "data_batch_3"
    file.write_bytes(pickle.dumps(Evil()))
    refused(file.parent, "not found or corrupted", "Copy it again")
    assert not (tmp_path / "evil").exists()
    file.unlink()
    refused(file.parent, "not found or corrupted")


# Refusals
# --------------------------------------------------------------------------------------------------------

IMAGES = SMALL["train_images"]
IMAGE = IMAGES[0]
FEWER = {"test_labels": SMALL["test_labels"] % 2}


@pytest.mark.parametrize("source", ["~nouser/cifar10", "x" * 5000, "a\nb"])
def test_paths_that_cannot_be(source):
    with pytest.raises(DataError):
        load_data(source)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda p: None, ["no data set", "Name embedded or cifar10", "parquet", "train/<class>/"]),
        (lambda p: p.mkdir(), ["no data set", "cifar-10-batches-py"]),
        (lambda p: p.write_bytes(b"hello"), ["no data set"]),
        (lambda p: os.unlink(parquet(p, SMALL) / "train.parquet"), ["no data set"]),
        (lambda p: shutil.rmtree(folders(p, SMALL) / "test"), ["no data set"]),
        # Parquet: an image, a label, a table
        (
            lambda p: parquet(p, with_row_7(b"no image")),
            ["train row 7", "cannot identify image", "remove it"],
        ),
        (
            lambda p: parquet(p, with_row_7(encoded(IMAGE, "TIFF"))),
            ["row 7", "cannot identify image"],
        ),  # as of EPS
        (lambda p: parquet(p, with_row_7(None)), ["train row 7", "cannot be read"]),
        (lambda p: parquet(p, with_row_7(encoded(IMAGE)[:-60])), ["train row 7", "cannot be read"]),
        (
            lambda p: parquet(p, with_row_7(IMAGE[:, :6, :1])),
            ["row 7", "(8, 6, 1)", "(8, 7, 3)", "make all alike"],
        ),
        (
            lambda p: parquet(p, SMALL | {"test_images": IMAGES[:6, 1:]}),
            ["test row 0", "(7, 7, 3)", "(8, 7, 3)"],
        ),
        (
            lambda p: parquet(p, with_row_7(np.zeros((8, 7), np.uint16))),
            ["train row 7", "I;16", "8-bit"],
        ),
        (lambda p: parquet(p, with_row_7(None, "train_labels")), ["cannot be read"]),
        (
            lambda p: parquet(p, with_row_7(57, "train_labels")),
            ["[0, 1, 2, 57] in train, [0, 1, 2] in test"],
        ),
        (
            lambda p: parquet(p, SMALL | FEWER),
            ["the classes are [0, 1, 2] in train, [0, 1] in test", "both the same"],
        ),
        (
            lambda p: parquet(p, SMALL, image="picture"),
            ["train.parquet", "picture", "img or image"],
        ),
        (
            lambda p: parquet(p, SMALL, label="target"),
            ["train.parquet", "target", "label or labels"],
        ),
        (
            lambda p: parquet(p, SMALL | {"test_images": [], "test_labels": []}),
            ["test.parquet", "and rows"],
        ),
        # Image folders
        (
            lambda p: spoiled(folders(p, SMALL), "train/bird/x.png", b"0"),
            ["bird/x.png", "cannot identify image"],
        ),
        (
            lambda p: spoiled(folders(p, SMALL), "train/bird/x.txt", b"0"),
            ["bird/x.txt", "cannot be read", "remove it"],
        ),
        (
            lambda p: spoiled(folders(p, SMALL), "train/d/x.png", b"0"),
            ["'d'] in train", "both the same"],
        ),
        # The strip of a record
        (lambda p: npz(p / "x.npz", SMALL), ["x.npz", "classes"]),
        (
            lambda p: npz(
                p / "x.npz", SMALL, classes="a", train_labels=np.array([0, None], object)
            ),
            ["x.npz", "Object"],
        ),
        (
            lambda p: npz(p / "x.npz", SMALL, classes=["a", "b"]),
            ["x.npz", "its labels are not", "from 0 to 1"],
        ),
        (
            lambda p: npz(
                p / "x.npz",
                SMALL | {"test_images": SMALL["test_images"] / 255},
                classes=["a", "b", "c"],
            ),
            ["x.npz", "its images are not uint8"],
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)
def test_data_that_cannot_be_used(tmp_path, write, words):
    write(tmp_path / "of")
    file = tmp_path / "of" / "x.npz"
    refused(file if file.exists() else tmp_path / "of", *words)


# Download
# --------------------------------------------------------------------------------------------------------


def test_no_network(root, monkeypatch):
    def offline(self):
        assert socket.getdefaulttimeout() == 30
        raise RuntimeError("Error downloading:\nno route to host")

    monkeypatch.setattr(CIFAR10, "download", offline)
    (root / ".lock").touch()
    refused("cifar10", root, "no route to host", "'embedded'")
    assert socket.getdefaulttimeout() is None


def test_cifar10_is_downloaded_once_and_again_where_it_is_damaged(
    tmp_path, root, cifar, monkeypatch, capsys
):
    file = archive(tmp_path / "cifar-10-python.tar.gz", cifar, monkeypatch)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    monkeypatch.setattr(handler.func, "log_message", lambda *_: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{file.name}")
        with monkeypatch.context() as patch:
            patch.setattr(
                CIFAR10, "tgz_md5", "0" * 32
            )  # torchvision checks the sum of what it fetched
            with pytest.raises(
                MissingData, match="The download failed.*corrupted.*cifar-10-batches-py"
            ) as failed:
                load_data("cifar10")
            assert "\n" not in str(failed.value)
        (root / "cifar-10-python.tar.gz").write_bytes(
            b"half"
        )  # as a download leaves it that was cut off
        with ThreadPoolExecutor() as pool:
            with held(root, wait=False):  # another notebook downloads
                second = pool.submit(load_data, "cifar10")
                assert_waits(second, capsys)
            assert_holds(second.result(timeout=60), cifar)
        server.shutdown()
    assert_holds(load_data("cifar10"), cifar)  # not fetched again
    assert {path.name for path in root.iterdir()} == {
        ".lock",
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    }


def test_an_archive_in_the_data_folder_is_unpacked_and_not_downloaded(root, cifar, monkeypatch):
    archive(root / "cifar-10-python.tar.gz", cifar, monkeypatch)
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/none")
    assert_holds(load_data("cifar10"), cifar)
    assert_holds(load_data("cifar10"), cifar)


# Subsets
# ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 30))
def test_balanced_subsets_are_the_first_of_each_class_in_order(labels, n):
    turns = sorted(range(len(labels)), key=lambda i: (labels[:i].count(labels[i]), labels[i]))
    assert data.balanced(torch.tensor(labels), n).tolist() == sorted(turns[:n])


def test_a_subset_has_a_key_of_its_own(sample):
    variants = [
        sample.first(*n) for n in ((None, None), (100, None), (101, None), (None, 100), (None, 200))
    ]
    variants += [sample.hold_out(n, seed)[0] for n, seed in ((10, 0), (10, 1), (20, 0))]
    assert len({v.key for v in variants}) == len(variants)
    kept = data.balanced(sample.train_labels, 101)
    assert torch.equal(variants[2].train_images, sample.train_images[kept])
    assert torch.equal(variants[2].train_labels, sample.train_labels[kept])
    assert variants[3].test_labels.bincount().tolist() == [10] * 10
    for same in (sample.first(None, None), sample.first(6000, 99999), sample.hold_out(0, 0)[0]):
        assert same.key == sample.key and torch.equal(same.train_images, sample.train_images)
    assert sample.first(100, 5000).key == sample.first(100, None).key


def test_hold_out_splits_the_training_images(sample):
    small = sample.first(600, 100)
    rest, images, labels = small.hold_out(95, seed=3)
    assert (
        images.shape == (95, 28, 28, 1) and sorted(labels.bincount().tolist()) == [9] * 5 + [10] * 5
    )
    assert rest.train_images.shape[0] == 505 and torch.equal(rest.test_images, small.test_images)

    def sorted_rows(*parts):
        return sorted(row.tobytes() for part in parts for row in part.numpy())

    assert sorted_rows(rest.train_images, images) == sorted_rows(small.train_images)
    again = small.hold_out(95, seed=3)
    assert torch.equal(again[1], images) and not torch.equal(small.hold_out(95, seed=4)[1], images)
    for n in (-1, 600):
        with pytest.raises(DataError, match="choose 0 to 599"):
            small.hold_out(n, 0)


def test_few_images_are_balanced_nested_and_repeated_to_as_many_as_there_are(sample):
    small = sample.first(600, 100)
    small = replace(small, train_images=torch.arange(600))  # to see which ones

    def chosen(n, seed=3):
        found = small.few(n, seed)
        assert torch.equal(found.train_labels, small.train_labels[found.train_images])
        return found.train_images

    few = {n: chosen(n) for n in (1, 20, 25, 95, 600, 10_000)}
    for n, indices in few.items():
        times = indices.bincount(minlength=600)
        assert len(indices) == 600 and (times > 0).sum() == min(n, 600)
        assert times[times > 0].max() - times[times > 0].min() <= 1, "each as often"
    for fewer, more in itertools.pairwise(few.values()):
        assert set(fewer.tolist()) <= set(more.tolist())
    assert small.train_labels[few[20].unique()].bincount().tolist() == [2] * 10
    assert torch.equal(chosen(20), few[20]), "the same again"
    others = [set(chosen(20, seed).tolist()) for seed in range(3)]
    assert not any(a & b == a for a, b in itertools.combinations(others, 2))
    assert max(few[20].tolist()) > 100, "not the first ones"


# Batches
# ---------------------------------------------------------------------------------------------------------


def test_plan_is_a_function_of_seed_and_epoch():
    def drawn(**changes):
        plan = data.epoch_plan(5000, **{"seed": 1, "epoch": 2, "augment": True} | changes)
        return [plan.order, *plan.crops]

    state = torch.get_rng_state()
    first = order, rows, columns, flips = drawn()
    assert all(map(torch.equal, first, drawn())) and torch.equal(torch.get_rng_state(), state)
    assert torch.equal(order.sort().values, torch.arange(5000)) and not torch.equal(rows, columns)
    assert rows.unique().tolist() == columns.unique().tolist() == list(range(9))
    assert 0.45 < flips.float().mean() < 0.55
    for another in (drawn(seed=2, epoch=1), drawn(epoch=3)):
        assert not any(map(torch.equal, first, another))
    plain = drawn(augment=False)
    assert torch.equal(plain[0], order) and len(plain) == 1


@pytest.mark.parametrize("channels", [1, 3])
def test_augment_equals_torchvision(channels):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (200, 7, 12, channels), dtype=torch.uint8, generator=generator)
    rows, columns, flips = data.epoch_plan(200, seed=0, epoch=0, augment=True).crops
    assert {0, 8} <= set(rows.tolist()) and {0, 8} <= set(columns.tolist())
    result = data.augment(images, rows, columns, flips)
    assert result.dtype == torch.uint8
    for i, image in enumerate(images.permute(0, 3, 1, 2)):
        expected = tv.crop(tv.pad(image, [4]), int(rows[i]), int(columns[i]), 7, 12)
        expected = tv.horizontal_flip(expected) if flips[i] else expected
        assert torch.equal(result[i].permute(2, 0, 1), expected), i


def test_normalize_equals_torchvision():
    images = torch.from_numpy(some()["train_images"])
    mean, std = data.STATISTICS["cifar10"]
    result = data.normalize(images, mean, std)
    expected = tv.normalize(images.permute(0, 3, 1, 2).float() / 255, mean, std)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
    assert result.shape == (40, 3, 32, 32) and result.is_contiguous(
        memory_format=torch.channels_last
    )


def test_batches_follow_the_plan_from_any_step(sample):
    small = sample.first(103, None)
    images, labels, statistics = small.train_images, small.train_labels, (small.mean, small.std)
    plan = data.epoch_plan(103, seed=0, epoch=1, augment=True)
    steps = list(data.batches(images, labels, plan, 20, *statistics))
    assert [len(y) for _, y in steps] == [20, 20, 20, 20, 20, 3]
    assert torch.equal(torch.cat([y for _, y in steps]), labels[plan.order])
    whole = data.normalize(data.augment(images[plan.order], *plan.crops), *statistics)
    assert torch.equal(torch.cat([x for x, _ in steps]), whole)
    resumed = list(data.batches(images, labels, plan, 20, *statistics, start=4))
    assert len(resumed) == 2 and torch.equal(resumed[0][0], steps[4][0])
    assert list(data.batches(images, labels, plan, 20, *statistics, start=6)) == []

    plain = data.epoch_plan(103, seed=0, epoch=1, augment=False)
    x = torch.cat([x for x, _ in data.batches(images, labels, plain, 20, *statistics)])
    assert torch.equal(x, data.normalize(images[plan.order], *statistics))
    x = torch.cat([x for x, _ in data.batches(images, labels, None, 20, *statistics)])
    assert torch.equal(x, data.normalize(images, *statistics))


def test_hidden_folders_are_no_classes(tmp_path):
    folder = folders(tmp_path / "mine", SMALL)
    for split in SPLITS:
        shutil.copytree(next((folder / split).glob("*")), folder / split / ".ipynb_checkpoints")
    assert not any(name.startswith(".") for name in load_data(folder).classes)


def test_an_unpacking_that_was_cut_off_is_done_again(root, monkeypatch):
    archive(root / "cifar-10-python.tar.gz", some(), monkeypatch)
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/none")
    whole = load_data("cifar10")
    (root / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"half")
    (root / "cifar-10-batches-py" / "data_batch_5").unlink()
    assert load_data("cifar10").key == whole.key
