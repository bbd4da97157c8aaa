"""Data: every form is read exactly, pictures as viewers show them; what is wrong is refused by its
place.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.datasets import CIFAR10, FashionMNIST
from torchvision.transforms.v2 import functional as tv

from attnconv.config import ModelConfig, TrainConfig, identity
from attnconv.training import data, train
from attnconv.training.data import (
    ARRAYS,
    CIFAR10_CLASSES,
    SPLITS,
    DataError,
    MissingData,
    find_data,
    load_data,
    pixels,
)

# Writers: each puts four arrays on disk, named as in `data.ARRAYS`, and gives the path


def some(train=40, test=20, shape=(32, 32, 3), classes=10) -> dict[str, np.ndarray]:
    """Random images, and labels of each class in random order."""
    rng, arrays = np.random.default_rng(0), {}
    for split, n in (("train", train), ("test", test)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        arrays[f"{split}_labels"] = rng.permutation(np.arange(n) % classes)
    return arrays


SMALL, GRAY = some(12, 6, (8, 7, 3), 3), some(12, 6, (8, 7, 1), 3)
PETS = ("cat", "ox", "yak")


def with_row_7(value: object, name: str = "train_images") -> dict:
    """`SMALL` with another value in row 7 of one array."""
    return SMALL | {name: [*SMALL[name][:7], value, *SMALL[name][8:]]}


def labelled(label) -> dict:
    """`SMALL` with other labels: what the function makes of each."""
    names = [f"{split}_labels" for split in SPLITS]
    return SMALL | {name: [label(int(one)) for one in SMALL[name]] for name in names}


def by_class(arrays: dict) -> dict:
    """The same in the order of class folders."""
    orders = {split: np.argsort(arrays[f"{split}_labels"], kind="stable") for split in SPLITS}
    return {name: array[orders[name.split("_")[0]]] for name, array in arrays.items()}


def encoded(image: np.ndarray | Image.Image, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image.squeeze())
    picture.save(file, form, **options)
    return file.getvalue()


def parquet(
    folder: Path, arrays: dict, *, image="img", label="label", kind=None, names=(), shards=1, **more
) -> Path:
    """Images are arrays, or bytes as they are; ``kind``: their type, instead of the Hub's struct;
    ``names``: of the classes, in the Hub's metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    features = {label: {"names": list(names), "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    for split in SPLITS:
        images = [
            i if isinstance(i, bytes | None) else encoded(i) for i in arrays[f"{split}_images"]
        ]
        rows = images if kind else [{"bytes": i, "path": "0.png"} for i in images]
        labels = arrays[f"{split}_labels"]
        table = pa.table({image: pa.array(rows, kind), label: pa.array(labels), **more})
        if names:
            table = table.replace_schema_metadata(about)
        for shard, part in enumerate(np.array_split(np.arange(len(table)), shards)):
            pq.write_table(table.take(part), folder / f"{split}-{shard:05}.parquet")
    return folder


def folders(folder: Path, arrays: dict, classes=CIFAR10_CLASSES, below="") -> Path:
    for split in SPLITS:
        for i, label in enumerate(arrays[f"{split}_labels"]):
            file = folder / split / classes[label] / below / f"{i:04}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(arrays[f"{split}_images"][i]))
    return folder


def npz(file: Path, arrays: dict) -> Path:
    np.savez(file, **arrays, classes=CIFAR10_CLASSES, form="Parquet")
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


def spoiled(folder: Path, name: str, content: bytes) -> Path:
    """The folder with this content in that file of it."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


# Checks


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    """The data folder: where downloads go."""
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setenv("ATTNCONV_DATA", str(folder))
    return folder


def assert_holds(dataset, arrays: dict) -> None:
    for name, array in arrays.items():
        found = getattr(dataset, name)
        assert found.dtype == (torch.uint8 if name.endswith("images") else torch.int64)
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.numpy(), array)


def refused(source: str | Path, *words: object) -> None:
    """A `DataError` of one line with these words, and with the path that was given."""
    with pytest.raises(DataError) as caught:
        load_data(source)
    for word in (*words, source):
        assert str(word) in str(caught.value)
    assert "\n" not in str(caught.value) and " object at 0x" not in str(caught.value)


@pytest.fixture(scope="module")
def sample():
    return load_data("embedded")


# Every form


def test_embedded_sample(sample):
    assert (sample.name, sample.form) == ("fashion-mnist-sample", "embedded sample")
    assert sample.classes == tuple(FashionMNIST.classes)
    assert sample.train_images.shape[1:] == (28, 28, 1)
    assert sample.train_labels.bincount().tolist() == [600] * 10
    assert sample.test_labels.bincount().tolist() == [100] * 10
    assert (sample.mean, sample.std) == ((0.286,), (0.353,))
    folder = find_data().parent
    assert "Zalando SE" in (folder / "LICENSE").read_text()
    digits = hashlib.sha256(find_data().read_bytes()).hexdigest()
    assert digits in (folder / "README.md").read_text()


CIFAR10_FORMS = {
    "cifar-10-batches-py": lambda p, arrays, m: batches(p / "cifar-10-batches-py", arrays, m),
    "Parquet": lambda p, arrays, m: parquet(p / "cifar10", arrays),
    "Parquet, the Hub's": lambda p, arrays, m: parquet(
        p / "c", arrays, image="image", label="labels", names=CIFAR10_CLASSES, shards=2
    ),
    "strip": lambda p, arrays, m: npz(p / "c.npz", arrays),
    "image folders": lambda p, arrays, m: folders(p / "c", arrays),
}


@pytest.mark.parametrize("form", CIFAR10_FORMS)
def test_cifar10_in_each_form(tmp_path, monkeypatch, form):
    arrays = some()
    loaded = load_data(CIFAR10_FORMS[form](tmp_path, arrays, monkeypatch))
    assert_holds(loaded, by_class(arrays) if form == "image folders" else arrays)
    assert (loaded.name, loaded.classes) == ("cifar10", CIFAR10_CLASSES)
    assert (loaded.mean, loaded.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert loaded.form == ("Parquet" if form == "strip" else form.partition(",")[0])
    about = loaded.about()
    assert (about["name"], about["train_images"], about["test_images"]) == ("cifar10", 40, 20)


def test_ten_numbers_are_airplane_and_so_on_only_in_a_folder_called_cifar10(tmp_path, root):
    digits = tuple("zero one two three four five six seven eight nine".split())
    for names, classes in (((), tuple("0123456789")), (digits, digits)):
        loaded = load_data(parquet(tmp_path / "mine", some(), names=names))
        assert (loaded.name, loaded.classes) == ("mine", classes)
        assert loaded.train_labels.tolist() == some()["train_labels"].tolist()
        np.testing.assert_allclose(loaded.mean, some()["train_images"].mean((0, 1, 2)) / 255)
    assert_holds(load_data(parquet(root / "cifar10", some())), some())
    assert_holds(load_data("cifar10"), some())
    parquet(root / "cifar10", some(), names=digits)
    refused(root / "cifar10", "not CIFAR-10", "Rename it")
    refused(folders(tmp_path / "fashion-mnist-sample", GRAY, PETS), "Rename it")


def test_image_folders(tmp_path):
    """At any depth and behind links; hidden files and folders are none, statistics are measured."""
    folder = folders(tmp_path / "my.gray", GRAY, PETS)
    (folder / "train" / "yak").rename(tmp_path / "kept")
    (folder / "train" / "yak").symlink_to(tmp_path / "kept")
    (folder / "train" / "ox").rename(tmp_path / "ox")
    (folder / "train" / "ox").mkdir()
    (tmp_path / "ox").rename(folder / "train" / "ox" / "at home")
    spoiled(folder, "train/yak/.DS_Store", b"of a Mac")
    shutil.copytree(folder / "test" / "cat", folder / "test" / ".ipynb_checkpoints")
    loaded = load_data(folder)
    assert_holds(loaded, by_class(GRAY))
    assert (loaded.name, loaded.classes) == ("my.gray", ("cat", "ox", "yak"))
    assert (loaded.form, *loaded.train_images.shape[1:]) == ("image folders", 8, 7, 1)
    measured = [[f(GRAY["train_images"] / 255)] for f in (np.mean, np.std)]
    np.testing.assert_allclose((loaded.mean, loaded.std), measured)


def test_jpegs_are_called_so(tmp_path):
    images = {f"{s}_images": [encoded(i, "JPEG") for i in SMALL[f"{s}_images"]] for s in SPLITS}
    loaded = load_data(parquet(tmp_path / "c", SMALL | images))
    assert loaded.form == "Parquet, JPEG images"
    with Image.open(io.BytesIO(images["train_images"][7])) as image:
        np.testing.assert_array_equal(loaded.train_images[7], np.asarray(image))


@pytest.mark.parametrize(
    ("label", "names", "classes"),
    [
        (lambda k: k, (), ("0", "1", "2")),
        (lambda k: 9 * k + 2, (), ("2", "11", "20")),
        (lambda k: k, PETS, PETS),
        (lambda k: PETS[k], (), PETS),
    ],
)
@pytest.mark.parametrize("kind", [None, pa.large_binary()])
def test_columns_of_parquet_are_known_by_their_types(tmp_path, label, names, classes, kind):
    folder = parquet(tmp_path, labelled(label), image="x", label="y", kind=kind, names=names)
    loaded = load_data(folder)
    assert_holds(loaded, SMALL)
    assert loaded.classes == classes


def test_a_dictionary_and_other_columns(tmp_path):
    arrays = labelled(lambda k: PETS[k])
    arrays |= {f"{s}_labels": pa.array(arrays[f"{s}_labels"]).dictionary_encode() for s in SPLITS}
    assert_holds(load_data(parquet(tmp_path / "one", arrays, label="of")), SMALL)
    for label in ("of", "label"):
        for file in parquet(tmp_path / label, arrays, label=label).iterdir():
            table = pq.read_table(file)
            pq.write_table(table.append_column("id", pa.array(range(len(table)))), file)
    assert_holds(load_data(tmp_path / "label"), SMALL)
    refused(tmp_path / "of", "train-00000.parquet", "'id': 'int64'", "'of': 'dictionary", "Needed")


# Pictures

UPRIGHT = Image.new("RGB", (24, 16))
UPRIGHT.paste("white", (0, 0, 12, 8))  # the corner at the upper left


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_viewers_show_it(form, orientation):
    turn = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}.get(orientation)
    stored = UPRIGHT if turn is None else UPRIGHT.transpose(Image.Transpose(turn))
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = pixels(io.BytesIO(encoded(stored, form, exif=exif, quality=95)))
    assert found.shape == (16, 24, 3) and found.dtype == np.uint8
    assert found[:6, :10].min() > 200 and found[10:].max() < 60 and found[:, 14:].max() < 60


CUT_OUT = Image.new("RGBA", (8, 8))
CUT_OUT.paste((200, 60, 30, 255), (2, 2, 6, 6))


@pytest.mark.parametrize(
    ("image", "form", "options"),
    [
        (CUT_OUT, "PNG", {}),
        (CUT_OUT, "TIFF", {}),
        (CUT_OUT.quantize(4), "PNG", {}),
        (CUT_OUT.convert("RGB"), "PNG", {"transparency": (0, 0, 0)}),
        (CUT_OUT.convert("L"), "PNG", {"transparency": 0}),
    ],
)
def test_what_is_transparent_is_white(image, form, options):
    found = pixels(io.BytesIO(encoded(image, form, **options)))
    grey = image.mode[0] == "L"
    expected = np.full((8, 8, 1 if grey else 3), 255, np.uint8)
    expected[2:6, 2:6] = 98 if grey else (200, 60, 30)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("mode", "form", "channels"),
    [("1", "PNG", 1), ("L", "BMP", 1), ("P", "GIF", 3), ("RGB", "PPM", 3), ("CMYK", "JPEG", 3)],
)
def test_every_mode_becomes_grey_or_rgb(mode, form, channels):
    white = Image.new("RGB", (7, 8), "white").convert(mode)
    for image in (white, io.BytesIO(encoded(white, form))):
        np.testing.assert_array_equal(pixels(image), np.full((8, 7, channels), 255))


# Refusals

IMAGE = SMALL["train_images"][0]
SIXTEEN = np.zeros((8, 7), np.uint16)
FLAGS = some(6, 6) | {f"{split}_labels": [True] * 6 for split in SPLITS}


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda p: None, "no data set|embedded or cifar10|cifar-10-batches-py|train/<class>/"),
        (lambda p: os.unlink(parquet(p, SMALL) / "test-00000.parquet"), "no test images"),
        (lambda p: spoiled(p, "train.parquet", b"x"), "train.parquet cannot be read|Copy it"),
        (lambda p: parquet(p, SMALL, kind=pa.list_(pa.uint8())), "Needed are one of images"),
        (lambda p: parquet(p, labelled(float)), "Needed are|'label': 'double'"),
        (lambda p: parquet(p, labelled(lambda k: [k, 1])), "Needed are|'label': 'list"),
        (lambda p: parquet(p, FLAGS, camera=["a"] * 6), "Needed are|'label': 'bool'"),
    ],
)
def test_data_that_cannot_be_used(tmp_path, write, words):
    write(tmp_path / "of")
    refused(tmp_path / "of", *words.split("|"))


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"text", "cannot be read|GIF, JPEG, PNG|remove it"),
        (None, "no image of the formats BMP, GIF"),
        (encoded(IMAGE, "EPS"), "no image of"),  # Pillow would start another program
        (SIXTEEN, "I;16|8 bits a channel"),
        (IMAGE[:, :6], "(8, 6, 3)|(8, 7, 3)"),
        (IMAGE[..., :1], "(8, 7, 1)|(8, 7, 3)"),
    ],
)
def test_an_image_is_refused_by_its_row(tmp_path, image, words):
    refused(parquet(tmp_path, with_row_7(image)), "train-00000.parquet, row 7", *words.split("|"))


@pytest.mark.parametrize(
    ("arrays", "names", "words"),
    [
        (with_row_7(None, "train_labels"), (), "row 7: the label None"),
        (with_row_7(-1, "train_labels"), PETS, "row 7: the label -1"),
        (with_row_7(3, "train_labels"), PETS, "row 7: the label 3"),
        (with_row_7(57, "train_labels"), (), "not in both splits|[57]"),
    ],
)
def test_labels_are_refused_by_their_row(tmp_path, arrays, names, words):
    refused(parquet(tmp_path, arrays, names=names), *words.split("|"))


def test_shards_that_lack_one_or_differ_in_their_classes_are_refused(tmp_path):
    folder = parquet(tmp_path / "of", SMALL, shards=2)
    for file in sorted(folder.iterdir()):
        file.rename(folder / f"{file.stem}-of-00002-b42ccd.parquet")  # older ones have a hash
    assert_holds(load_data(folder), SMALL)
    (folder / "train-00001-of-00002-b42ccd.parquet").unlink()
    refused(folder, "train-00000-of-00002-b42ccd.parquet", "there are 1 such files")
    folder = parquet(tmp_path / "named", SMALL, names=PETS)
    again = parquet(tmp_path / "again", SMALL, names=PETS[::-1])
    (again / "train-00000.parquet").rename(folder / "train-1.parquet")
    refused(folder, "number the classes differently")


def test_a_class_is_the_same_in_either_form_of_its_name(tmp_path):
    for split, form in zip(SPLITS, ("NFC", "NFD"), strict=True):
        for name in ("chien", unicodedata.normalize(form, "café")):
            spoiled(tmp_path, f"{split}/{name}/1.png", encoded(IMAGE))
    assert load_data(tmp_path).classes == ("café", "chien")


def test_what_is_no_image_in_a_folder_is_refused_by_name(tmp_path):
    refused(spoiled(folders(tmp_path, SMALL), "train/bird/x.txt", b"0"), "bird/x.txt", "GIF")
    (tmp_path / "train" / "bird" / "x.txt").unlink()
    refused(spoiled(tmp_path, "test/d/x.png", encoded(IMAGE)), "not in both splits", "['d']")
    (tmp_path / "train" / "empty").mkdir()
    refused(tmp_path, "train/empty has no images")


def test_cifar10_of_other_checksums_is_never_unpickled(tmp_path, monkeypatch):
    folder = batches(tmp_path / "cifar-10-batches-py", some(), monkeypatch)
    (folder / "data_batch_3").write_bytes(b"another pickle")
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("it was unpickled"))
    refused(folder, "not found or corrupted", "remove it")


# Download


def test_an_archive_in_the_data_folder_is_unpacked_and_not_downloaded(root, monkeypatch):
    folder = batches(root / "elsewhere" / "cifar-10-batches-py", some(), monkeypatch)
    with tarfile.open(root / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(folder, folder.name)
    shutil.rmtree(folder.parent)
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(root / "cifar-10-python.tar.gz"))
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/none")
    assert find_data("cifar10") is None
    assert_holds(load_data("cifar10"), some())
    (root / "cifar-10-python.tar.gz").unlink()
    assert_holds(load_data("cifar10"), some())


def test_a_download_that_fails_says_what_to_bring(root, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:9/{CIFAR10.filename}")
    with pytest.raises(MissingData, match=f"to {root} .*Bring {CIFAR10.url} there, or use 'emb"):
        load_data("cifar10")


# Subsets


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 30))
def test_balanced_subsets_are_the_first_of_each_class_in_order(labels, n):
    turns = sorted(range(len(labels)), key=lambda i: (labels[:i].count(labels[i]), labels[i]))
    assert data.balanced(torch.tensor(labels), n).tolist() == sorted(turns[:n])


def test_the_first_images(sample):
    first = sample.first(101, 100)
    kept = data.balanced(sample.train_labels, 101)
    assert torch.equal(first.train_images, sample.train_images[kept])
    assert torch.equal(first.train_labels, sample.train_labels[kept])
    assert first.test_labels.bincount().tolist() == [10] * 10 and len(first.test_images) == 100
    for same in (sample.first(None, None), sample.first(6000, 99999)):
        assert all(torch.equal(getattr(same, n), getattr(sample, n)) for n in data.ARRAYS)
    by_class = replace(first, train_labels=first.train_labels.sort().values)
    assert not by_class.few("train", 9)[1].equal(first.train_images[:9])  # all of one class


def test_few_images_are_balanced_nested_and_repeated_to_as_many_as_there_are(sample):
    # 600 training images that are their numbers, to see which ones are taken.
    whole = replace(sample.first(600, 100), train_images=torch.arange(600))
    fewer: set[int] = set()
    for n in (1, 20, 25, 95, 500, 10_000):
        found = whole.for_training(TrainConfig(images=n, seed=3))
        chosen = found.train_images
        assert torch.equal(found.train_labels, whole.train_labels[chosen])
        times = chosen.bincount(minlength=600)
        assert len(chosen) == 600 and (times > 0).sum() == min(n, 600)
        assert times.max() - times[times > 0].min() <= 1, "each as often"
        assert fewer <= {*chosen.tolist()}
        fewer = {*chosen.tolist()}
    few = [whole.for_training(TrainConfig(images=20, seed=seed)) for seed in (3, 4)]
    assert whole.train_labels[few[0].train_images.unique()].bincount().tolist() == [2] * 10
    assert not torch.equal(few[0].train_images, few[1].train_images)


def test_data_of_ones_own_are_told_apart_by_every_image_and_label(sample):
    whole = replace(sample, name="cifar10", train_labels=torch.zeros(50_000))
    assert "digest" not in whole.about(), "its runs keep their names"
    for called in ("own", "cifar10", sample.name):  # parts of these
        own = replace(sample.first(30, 20), name=called)
        known = set()
        for name in (None, *ARRAYS):
            changed = {name: getattr(own, name).flip(0)} if name else {}
            known.add(identity(ModelConfig(), TrainConfig(), replace(own, **changed).about()))
        assert len(known) == 5


def test_only_images_and_labels_of_a_data_set_are_trained_on(sample, tmp_path):
    own = sample.first(30, 20)
    wrong = [
        ("train_images", own.train_images / 255),
        ("test_images", own.test_images[..., 0]),
        ("test_images", own.test_images[:, 1:]),
        ("train_labels", own.train_labels[:10]),
        ("train_labels", own.train_labels[:, None]),
        ("test_labels", own.test_labels + 1),
    ]
    for name, values in wrong:
        split = name.partition("_")[0]
        with pytest.raises(DataError, match=rf"{split} images and labels must be uint8 \(N, "):
            train(
                ModelConfig(),
                TrainConfig(epochs=1),
                replace(own, **{name: values}),
                tmp_path / "run",
            )
    assert not (tmp_path / "run").exists()


def digest(*tensors: torch.Tensor) -> str:
    parts = [tensor.contiguous().numpy().tobytes() for tensor in tensors]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def test_what_recorded_runs_were_trained_on_stays(sample):
    """Seeds draw the same images, orders, crops and flips as when those runs were made."""
    plan = data.epoch_plan(1000, seed=3, epoch=4, augment=True)
    few = sample.for_training(TrainConfig(images=7, seed=3)).train_images
    assert digest(plan.order, *plan.crops, few) == "d2936eeb3e01"


# Batches


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
    assert torch.equal(torch.stack(drawn(augment=False)), order[None])


@pytest.mark.parametrize("channels", [1, 3])
def test_augment_equals_torchvision(channels):
    images = torch.from_numpy(some(200, shape=(7, 12, channels))["train_images"])
    rows, columns, flips = data.epoch_plan(200, seed=0, epoch=0, augment=True).crops
    assert {0, 8} <= {*rows.tolist()} and {0, 8} <= {*columns.tolist()}
    result = data.augment(images, rows, columns, flips)
    assert result.dtype == torch.uint8 and result.is_contiguous()
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


@pytest.mark.parametrize("augment", [True, False, None])
def test_batches_follow_the_plan(sample, augment):
    small = sample.first(103, None)
    images, labels, statistics = small.train_images, small.train_labels, (small.mean, small.std)
    plan = None
    if augment is not None:
        plan = data.epoch_plan(103, seed=0, epoch=1, augment=augment)
    steps = list(data.batches(images, labels, plan, 20, *statistics))
    assert [len(y) for _, y in steps] == [20, 20, 20, 20, 20, 3]
    if plan:
        images, labels = images[plan.order], labels[plan.order]
    if augment:
        images = data.augment(images, *plan.crops)
    assert torch.equal(torch.cat([y for _, y in steps]), labels)
    assert torch.equal(torch.cat([x for x, _ in steps]), data.normalize(images, *statistics))
