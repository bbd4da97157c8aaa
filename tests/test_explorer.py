"""The explorer without a browser: what it sends, what it answers, what it refuses, and the front
end's arithmetic.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import gzip
import hashlib
import itertools
import json
import re
import shutil
import struct
import types
from pathlib import Path

import ipywidgets
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attnconv import heads
from attnconv.attention import QuadraticAttention
from attnconv.config import ModelConfig, TrainConfig
from attnconv.equivalence import attention_to_conv, convert, swap
from attnconv.models import build_model, predict
from attnconv.training import train
from attnconv.training.data import load_data
from attnconv.training.runs import Run, identity
from companion.explorer import ExplorerError, edited, explore, quantize, widget
from companion.explorer.arrays import as_text, rounded
from companion.explorer.images import _own_data, fitting, pool_of
from companion.explorer.sides import side_of
from node import in_node, needs_node, run_tests

SMALL = dict(
    image_size=(28, 28),
    image_channels=1,
    downsampling=4,
    layers=2,
    heads=3,
    hidden=8,
    mlp=8,
    dropout=0.0,
)
KINDS = {
    "quadratic": dict(kind="quadratic"),
    "full": dict(kind="quadratic", covariance="full"),
    "learned": dict(kind="learned"),
    "content": dict(kind="learned_content", key_size=4),
}


def model_of(kind: str, **changes):
    torch.manual_seed(1)
    return build_model(ModelConfig(**(SMALL | KINDS[kind] | changes))).eval()


@pytest.fixture(scope="module")
def data():
    return load_data("embedded").first(60, 40)


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    recipe = TrainConfig(epochs=2, batch_size=30, optimizer="adamw", lr=1e-3, augment=False)
    made = {k: ModelConfig(**(SMALL | KINDS[k])) for k in ("quadratic", "content")}
    made["swapped"] = ModelConfig(**(SMALL | KINDS["quadratic"] | dict(kernels=(3,))))
    trained = {k: train(config, recipe, data, folder / k, preset=k) for k, config in made.items()}

    # Another network in a finished run's folder, which takes no time to train.
    other = shutil.copytree(folder / "quadratic", folder / "resnet")
    config, weights = (
        ModelConfig(**SMALL | dict(kind="resnet", resnet_width=8)),
        other / "model.safetensors",
    )
    safetensors.torch.save_model(build_model(config), weights)
    about = trained["quadratic"].config | dict(
        preset="resnet", model=config.model_dump(mode="json")
    )
    about["hash"] = identity(about["model"], about["train"], about["data"]["key"])
    about["weights"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    (other / "config.json").write_text(json.dumps(about))
    return trained | dict(resnet=Run(other))


def asked(explorer, **message) -> list:
    """What the explorer sends when the page asks for something, as (content, buffers)."""
    sent = []
    explorer.send = lambda content, buffers=None: sent.append((content, buffers))
    explorer._receive(explorer, message | {"id": 7}, message.pop("buffers", []))
    assert sent[-1][0] == {"kind": "done", "id": 7}
    return sent[:-1]


def notice(explorer, **message) -> str:
    (sent,) = asked(explorer, **message)
    assert sent[0]["kind"] == "notice"
    return sent[0]["text"]


# --- arrays


def restored(packed: dict) -> np.ndarray:
    arrays = {
        n: np.frombuffer(a["data"], a["dtype"]).reshape(a["shape"]) for n, a in packed.items()
    }
    return arrays["low"][..., None] + arrays["step"][..., None] * arrays["codes"].astype(np.float64)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([8, 16]), st.floats(1e-3, 1e3), st.floats(-50, 50)
)
def test_quantization_stays_within_half_a_step(
    seed: int, bits: int, scale: float, shift: float
) -> None:
    values = (np.random.default_rng(seed).standard_normal((3, 2, 17)) * scale + shift).astype(
        np.float32
    )
    values[0] = shift  # a constant row
    step = np.ptp(values.astype(np.float64), axis=-1) / (2**bits - 1)
    bound = 0.5 * step * 1.001 + 4e-7 * np.abs(values).max(-1)  # and the rounding of float32
    assert (np.abs(restored(quantize(values, bits)) - values).max(-1) <= bound).all()


# --- the front end's arithmetic


@needs_node
def test_the_front_end_with_node() -> None:
    run_tests("explorer.test.mjs")


def modelled(explorer, source: str):
    """What node answers about the explorer's first ``model``, as ``out``."""
    start = "const model = new heads.Model(tree.sides[0]);"
    return in_node(start + source, dict(sides=explorer.sides, image=explorer.image))


@needs_node
@pytest.mark.parametrize("kind", KINDS)
def test_the_browser_computes_what_the_model_does(kind: str, data) -> None:
    """Maps and numbers of explorer.js against `heads`, at a corner and inside, all layers and
    heads.
    """
    model = model_of(kind)
    explorer = explore(model, images=data)
    parts, places = ("full", "position", "content"), ((0, 6), (3, 2))
    code = f"""
        model.setScores(tree.image.sides[0].maps);
        const out = [];
        for (const part of {list(parts)}) for (const query of {json.dumps(places)})
            for (let l = 0; l < 2; l++) for (let h = 0; h < 3; h++) {{
                const map = model.probabilities(l, h, query, new Float32Array(49), part);
                out.push([[...map], heads.describe(map, 7, 7, query)]);
            }}"""
    answers = iter(modelled(explorer, code))
    inputs = model.layer_inputs(explorer._input)
    for part, (row, column) in itertools.product(parts, places):
        for layer, x in zip(model.attention_layers, inputs, strict=True):
            if kind == "content":
                with torch.no_grad():
                    content, position = layer.score_parts(x)
                logits = {"full": content + position, "content": content, "position": position}[
                    part
                ][0]
                maps = logits[:, row, column].flatten(-2).softmax(-1).view(3, 7, 7).numpy()
            else:
                maps = heads.query_maps(layer, (row, column), 7, 7)
            told = heads.describe(maps, (row, column))
            expected = dict(
                centre=told.centre, reach=told.reach, entropy=told.entropy, mass=maps.max((1, 2))
            )
            expected["covariance"] = told.covariance[:, [0, 0, 1], [0, 1, 1]]
            for head in range(3):
                map_, numbers = next(answers)
                np.testing.assert_allclose(
                    np.reshape(map_, (7, 7)), maps[head], rtol=2e-3, atol=1e-6
                )
                for name, values in expected.items():
                    np.testing.assert_allclose(numbers[name], values[head], atol=2e-3, err_msg=name)


@needs_node
@pytest.mark.parametrize("kind", ["quadratic", "full", "learned"])
def test_the_browser_reads_the_kernel_that_python_reads(kind: str, data) -> None:
    model, sizes = model_of(kind), (1, 3, 5)
    code = f"""const out = {list(sizes)}.flatMap((size) =>
        [0, 1].map((l) => heads.kernelOf(model, l, heads.readLayer(model, l).maps, size)));"""
    cases = itertools.product(sizes, model.attention_layers)
    for (size, layer), read in zip(cases, modelled(explore(model, images=data), code), strict=True):
        conv, report = attention_to_conv(layer, size, size=(7, 7))
        norms = conv.weight.flatten(2).norm(dim=(0, 1))
        np.testing.assert_allclose(read["norms"], norms.detach(), rtol=1e-4)
        np.testing.assert_allclose(read["outside"], report.outside, rtol=1e-3, atol=1e-6)
        assert read["error"] == pytest.approx(report.relative_error, rel=1e-3)
        alone = layer.value.weight.unflatten(1, (3, 8)).norm(dim=(0, 2)).detach().numpy()
        maps = heads.query_maps(layer, (3, 3), 7, 7)[
            :, 3 - size // 2 : 4 + size // 2, 3 - size // 2 : 4 + size // 2
        ]
        np.testing.assert_allclose(read["parts"], maps.reshape(3, -1) * alone[:, None], rtol=1e-3)


@needs_node
@pytest.mark.parametrize("count", [9, 16])
def test_the_browser_counts_taps_as_python_does(count: int, data) -> None:
    model = model_of("quadratic", heads=count, layers=6)
    generator, grid = torch.Generator().manual_seed(count), model.config.grid
    with torch.no_grad():
        for layer in model.attention_layers:
            layer.centres.copy_(1.3 * torch.randn(count, 2, generator=generator))
            layer.spreads.copy_(1 + 2 * torch.rand(count, generator=generator))
        model.attention_layers[0].centres[0] = torch.tensor([-9.0, 2])
        model.attention_layers[0].spreads[:2] = torch.tensor([9.0, 0.01])
    code = "const out = model.heads.map((_, l) => ({ ...heads.readLayer(model, l), maps: 0 }));"
    read = modelled(explore(model, images=data), code)
    measured = heads.geometry(model.attention_layers, *grid)
    size = {9: 3, 16: 4}[count]
    covered = heads.kernel_cells(measured["mass"], measured["parameter_centre"], size).sum((1, 2))
    assert [one["covered"] for one in read] == covered.tolist() and len(set(covered)) > 2
    taps = heads.taps(measured["mass"], measured["parameter_centre"], grid)
    assert [[head["kind"] == "tap" for head in one["heads"]] for one in read] == taps.tolist()
    assert [head["kind"] for head in read[0]["heads"][:2]] == ["outside", "uniform"]


@needs_node
def test_a_nearly_singular_head_is_the_same_in_the_browser(data) -> None:
    """Its scale is one that Sigma^{-1} in 32 bits does not tell: it comes from Python."""
    sides, expected = [], []
    for away, sigma in itertools.product((1e-1, 1e-3, 1e-4, 0.0), (0.7, 2.0)):
        model = model_of("full")
        with torch.no_grad():
            model.attention_layers[1].spreads[2] = torch.tensor([[1, 1], [1, 1 + away]])
        sides.append(dict(side=side_of(model).arrays, edit=dict(centre=[0.3, -0.2], sigma=sigma)))
        with edited(model, [dict(layer=1, head=2) | sides[-1]["edit"]]):
            expected.append(heads.query_maps(model.attention_layers[1], (3, 3), 7, 7)[2])
    code = """const out = tree.map(({ side, edit }) => {
        const model = Object.assign(new heads.Model(side), { edits: { "1.2": edit } });
        return model.probabilities(1, 2, [3, 3], new Float32Array(49));
    });"""
    np.testing.assert_allclose(np.reshape(in_node(code, sides), (8, 7, 7)), expected, atol=0.01)


EDITS = [
    dict(layer=0, head=1, off=True),
    dict(layer=1, head=2, centre=[2.0, -1.25], sigma=0.8),
    dict(layer=1, head=0, sigma=3.0),
]


def network_of(explorer, shown) -> dict:
    """What a page's worker needs: the model with its weights, and images."""
    side, normal = (
        explorer._sides[0],
        dict(mean=list(explorer._pool.mean), std=list(explorer._pool.std)),
    )
    weighted = side.arrays | dict(weights=side.weights)
    return dict(side=weighted, normal=normal, images=[one["pixels"].tobytes() for one in shown])


def kept(edits: list[dict]) -> dict:
    """Changes as a page keeps them, by layer or layer and head."""
    places = [
        ".".join(str(edit[name]) for name in ("layer", "head") if name in edit) for edit in edits
    ]
    changes = [{name: edit[name] for name in edit.keys() - {"layer", "head"}} for edit in edits]
    return dict(zip(places, changes, strict=True))


@needs_node
@pytest.mark.parametrize("kind", KINDS)
def test_the_browser_predicts_what_python_does(kind: str, data) -> None:
    """Predictions with and without changed heads, and what a layer and a head do, on several
    images; in both orders.
    """
    model = model_of(
        kind, hidden=15, mlp=13, layers=3
    )  # odd: the browser sums four rows and two outputs at a time
    with torch.no_grad():
        model.classifier.weight *= 20  # so that something is predicted
    explorer = explore(model, images=data)
    side, shown = explorer._sides[0], [explorer._pool.shown(index) for index in range(4)]
    edits = [edit for edit in EDITS if kind in ("quadratic", "full") or edit.get("off")]
    tree = network_of(explorer, shown) | dict(edits=kept(edits))
    code = """
        const net = new network.Network(tree.side, tree.normal);
        const out = tree.images.map((values) => {
            net.setImage({ height: 28, width: 28, channels: 1, values });
            const [before, after] = [net.predict({}), net.predict(tree.edits)];
            const seen = net.examine(1, 2, 3, tree.edits);
            return { before, after, seen, again: net.predict({}) };
        });"""
    for answer, one in zip(in_node(code, tree), shown, strict=True):
        image = explorer._inputs([one["pixels"]])
        (before,), (after,) = side.look(image), side.look(image, edits)
        seen = side.examine(image, edits, 1, 2, 3)
        assert np.ptp(before["probabilities"]) > 0.2
        for got, expected in (
            (answer["before"], before["probabilities"]),
            (answer["again"], before["probabilities"]),
            (answer["after"], after["probabilities"]),
            (answer["seen"]["head"]["probabilities"], seen["head"]["probabilities"]),
        ):
            np.testing.assert_allclose(got, expected, atol=1e-2)
        np.testing.assert_allclose(
            answer["seen"]["head"]["output"], seen["head"]["output"], rtol=0.02, atol=1e-3
        )
        assert answer["seen"]["head"]["share"] == pytest.approx(seen["head"]["share"], abs=1e-2)
        assert (answer["seen"]["kernel"] is None) == (kind == "content")
        if kind != "content":
            assert answer["seen"]["kernel"]["error"] == pytest.approx(
                seen["kernel"]["error"], abs=1e-2
            )
            replaced = seen["kernel"]["probabilities"]
            np.testing.assert_allclose(
                answer["seen"]["kernel"]["probabilities"], replaced, atol=1e-2
            )
            for got, expected in zip(
                answer["seen"]["kernel"]["outputs"], seen["kernel"]["outputs"], strict=True
            ):
                np.testing.assert_allclose(got, expected, rtol=0.02, atol=1e-3)


@needs_node
@pytest.mark.parametrize("kind", ["quadratic", "learned", "content"])
def test_the_browser_predicts_past_a_layer_without_heads(kind: str, data) -> None:
    """Such a layer adds its bias alone."""
    model = model_of(kind, heads=(0, 3))
    with torch.no_grad():
        model.classifier.weight *= 20
        model.attention_layers[0].value.bias.copy_(torch.linspace(-2, 2, 8))
    explorer = explore(model, images=data)
    shown = explorer._pool.shown(0)
    code = """
        const net = new network.Network(tree.side, tree.normal);
        net.setImage({ height: 28, width: 28, channels: 1, values: tree.images[0] });
        const out = net.predict({ "1.2": { off: true } });"""
    edits = [dict(layer=1, head=2, off=True)]
    (expected,) = explorer._sides[0].look(explorer._inputs([shown["pixels"]]), edits)
    np.testing.assert_allclose(
        in_node(code, network_of(explorer, [shown])), expected["probabilities"], atol=1e-2
    )


@needs_node
@pytest.mark.parametrize("kind", ["quadratic", "full", "learned"])
def test_a_layer_is_swapped_in_the_browser_as_in_python(kind: str, data) -> None:
    """Logits with one layer, and two, as convolutions, read from the layers with their heads as
    they are changed.
    """
    model = model_of(kind, hidden=16, mlp=12, layers=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                parameter.half()
            )  # as a page holds them: what is left are roundings of sums
        model.classifier.weight *= 16
    explorer = explore(model, images=data)
    shown = [explorer._pool.shown(index) for index in range(3)]
    changed = [edit for edit in EDITS if kind != "learned" or edit.get("off")]
    places = [{}, {1: 3}, {1: 3, 0: 3}, {}, {1: 5}, {1: 5, 0: 3}]
    asked_for = [
        changed + [dict(layer=layer, kernel=side) for layer, side in place.items()]
        for place in places
    ]
    code = """
        const net = new network.Network(tree.side, tree.normal);
        const out = tree.images.map((values) => {
            net.setImage({ height: 28, width: 28, channels: 1, values });
            return tree.edits.map((edits) => net.logits(edits));
        });"""
    tree = network_of(explorer, shown) | dict(edits=[kept(edits) for edits in asked_for])
    images = explorer._inputs(one["pixels"] for one in shown)
    expected = []
    with edited(model, changed):
        for place in places:
            expected.append(
                predict(swap(model, {layer + 1: side for layer, side in place.items()}), images)
            )
    np.testing.assert_allclose(in_node(code, tree), torch.stack(expected, dim=1), atol=1e-3)
    for edits, logits in zip(asked_for, expected, strict=True):
        with edited(model, edits[::-1]):  # in any order
            torch.testing.assert_close(predict(model, images), logits)
        answer = [one["probabilities"] for one in explorer._sides[0].look(images, edits)]
        np.testing.assert_allclose(answer, logits.softmax(-1), rtol=1e-4, atol=1e-6)
    for some in (expected[:3], [expected[0], *expected[4:]]):
        assert all((a - b).abs().max() > 0.1 for a, b in itertools.combinations(some, 2))


# --- images


def read(image: object, size: tuple[int, int], channels: int) -> np.ndarray:
    return fitting(image, size, channels)[0]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_any_mode_and_size_is_read(mode: str, tmp_path) -> None:
    file = tmp_path / ("a.tiff" if mode in ("CMYK", "YCbCr") else "a.png")
    for size, channels in itertools.product([(1, 1), (640, 31), (28, 28)], (1, 3)):
        Image.new(mode, size).save(file)
        assert read(file, (28, 20), channels).shape == (28, 20, channels)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_pixels_that_would_be_clipped_are_refused(mode: str, tmp_path) -> None:
    Image.new(mode, (9, 9)).save(tmp_path / "a.tiff")
    with pytest.raises(
        ExplorerError, match=rf"a.tiff cannot be read.*pixels are of mode {mode}.* 8 bits a channel"
    ):
        read(tmp_path / "a.tiff", (16, 16), 1)


def test_rows_stay_rows() -> None:
    darker = read(Image.linear_gradient("L"), (28, 20), 1)[..., 0].astype(int)
    assert (darker == darker[:, :1]).all() and (np.diff(darker[:, 0]) > 0).all()


def test_transparency_is_laid_on_white_and_the_middle_is_kept() -> None:
    image = Image.new("RGBA", (300, 100), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (100, 0, 200, 100))
    pixels = read(image, (10, 10), 3)
    assert (np.abs(pixels.astype(int) - [0, 0, 255]) < 25).all()  # the middle square
    assert (read(Image.new("LA", (9, 9), (0, 0)), (4, 4), 1) == 255).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation: int, tmp_path) -> None:
    upright = Image.new("L", (40, 40))
    upright.paste(255, (0, 0, 20, 20))  # the corner at the upper left
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}.get(orientation)
    stored = upright if turn is None else upright.transpose(Image.Transpose(turn))
    stored.save(tmp_path / "a.jpg", exif=exif, quality=95)
    with Image.open(tmp_path / "a.jpg") as image:
        for given in (tmp_path / "a.jpg", image):
            pixels = read(given, (8, 8), 1)[..., 0]
            assert pixels[:3, :3].min() > 200 and pixels[5:].max() < 60 and pixels[:, 5:].max() < 60


def test_bad_files_are_refused_by_name(tmp_path) -> None:
    Image.effect_noise((200, 200), 60).save(tmp_path / "good.jpg")
    good = (tmp_path / "good.jpg").read_bytes()
    file = tmp_path / "cat.jpg"
    for content in (
        good[: len(good) // 2],
        b"",
        b"no image",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ):
        file.write_bytes(content)
        with pytest.raises(ExplorerError, match=r"cat.jpg cannot be read as an image"):
            read(file, (28, 28), 1)


def test_images_can_be_given_in_many_forms(data, tmp_path) -> None:
    Image.new("RGB", (50, 80)).save(tmp_path / "a.png")
    files = [tmp_path / "a.png", str(tmp_path / "a.png"), Image.new("L", (9, 9))]
    for images in (*files, files):
        assert fitting(images, (28, 28), 1).shape[1:] == (28, 28, 1)
    array = data.test_images[:5]
    first = (array.permute(0, 3, 1, 2) / 255).numpy()  # channels first
    for images in (array, array.numpy(), array[0], [array[:2], array[2:]], array / 255, first):
        assert (fitting(images, (28, 28), 1)[0] == array[0].numpy()).all()
    for shape in (
        (2, 32, 32, 3),
        (2, 3, 64, 40),
        (30, 50, 1),
        (30, 50, 3),
    ):  # of any size, and in any order
        for images in (
            np.full(shape, 77, np.uint8),
            torch.full(shape, 77 / 255),
            torch.full(shape, 77 / 255, dtype=torch.bfloat16),
            np.full(shape, 77 / 255),
        ):
            assert (fitting(images, (28, 28), 1) == 77).all()
    mixed = [
        np.full((28, 28, 1), 77 / 255),
        torch.full((1, 3, 40, 40), 77, dtype=torch.uint8),
        Image.new("L", (9, 9), 77),
    ]
    assert (fitting(mixed, (28, 28), 1) == 77).all()
    for images, words in (
        (np.zeros((2, 5, 5, 5), np.uint8), "or neither"),
        (np.zeros((7, 9, 11), np.uint8), "or neither"),
        (np.zeros((3, 28, 28), np.uint8), "or neither"),  # one in colour, or three grey ones
        (np.zeros((28, 28), np.uint8), "or neither"),
        (torch.full((1, 28, 28, 1), torch.inf, dtype=torch.bfloat16), "to inf; they must be"),
        (np.zeros((1, 28, 28, 1), int), "int64 from 0 to 0; they must be uint8"),
        (
            np.full((1, 28, 28, 1), -0.1),
            r"from -0.1 to -0.1; they must be uint8, or floats in \[0, 1\]",
        ),
        (np.full((1, 28, 28, 1), np.nan), r"in \[0, 1\]"),
        (np.zeros((0, 28, 28, 1), np.uint8), "are empty"),
        ([], "is empty"),
        ("no/such.png", "no/such.png cannot be read"),
        (7, "of type int: give paths, Pillow images, or arrays"),
        ({"image": array}, "of type dict"),
        (
            [np.full((28, 28, 1), 2.0)],
            r"from 2.0 to 2.0; they must be uint8, or floats in \[0, 1\]",
        ),
    ):
        with pytest.raises(ExplorerError, match=words) as refused:
            fitting(images, (28, 28), 1)
        assert "\n" not in str(refused.value)
    assert explore(model_of("quadratic"), images=files).image["pixels"]["shape"] == [28, 28, 1]
    colour = model_of("quadratic", image_size=(32, 32), image_channels=3)
    explorer = explore(
        colour
    )  # no data here: pictures of the sample, which are of none of its classes
    assert explorer.image["pixels"]["shape"] == [32, 32, 3] and explorer.image["title"] == "image 0"


def test_labels_of_the_sample_are_not_those_of_other_data() -> None:
    """A run on images of another set, which is not at hand, shows the sample's pictures without
    its classes.
    """
    side = side_of(model_of("quadratic"))
    for name, known in (("fashion-mnist-sample", True), ("mine", False)):
        run = types.SimpleNamespace(config=dict(data=dict(name=name, classes=list("abcdefghij"))))
        pool = pool_of(None, dataclasses.replace(side, run=run))
        assert pool.labels.any() == known and len(pool.images) == 1000


def test_nothing_is_downloaded_to_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an unpacking was cut off, pictures of the sample are shown."""
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name in ("data_batch_1", "test_batch"):
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(b"half")
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path))
    monkeypatch.setattr(
        "attnconv.training.data._download", lambda: pytest.fail("it was downloaded")
    )
    side = types.SimpleNamespace(image_size=(32, 32), image_channels=3, classes=10)
    assert torch.equal(_own_data(side, "cifar10"), load_data("embedded").test_images)


def test_labels_of_images_that_are_handed_over_are_of_the_classes_that_the_model_knows(
    data,
) -> None:
    """As many classes are not yet the same: a shirt is not a truck."""
    side = side_of(model_of("quadratic"))
    for name, classes, known in (
        ("mine", list(data.classes), True),
        (data.name, list("abcdefghij"), True),
        ("mine", list("abcdefghij"), False),
    ):
        run = types.SimpleNamespace(config=dict(data=dict(name=name, classes=classes)))
        pool = pool_of(data, dataclasses.replace(side, run=run))
        assert pool.labels.any() == known and pool.classes == tuple(classes)


# --- what Python answers


def test_it_opens_on_a_clear_image_that_the_model_is_sure_of(data) -> None:
    model, images = model_of("quadratic"), data.test_images[:20]
    with torch.no_grad():
        model.classifier.weight *= 1000
    inputs = explore(model, images=images)._inputs(images.numpy())
    answers = predict(model, inputs).softmax(-1).max(-1)
    assert (answers.values > 0.9).all()
    light = images.float().mean(-1).flatten(1)
    first, second, *_ = (-light.mean(1) * light.std(1, correction=0)).argsort(stable=True).tolist()
    labels = answers.indices.clone()
    labelled = dataclasses.replace(data, test_images=images, test_labels=labels)
    assert explore(model, images=labelled)._index == first != 0
    labels[first] = (labels[first] + 1) % 10  # it is wrong about the clearest
    assert explore(model, images=labelled)._index == second
    assert explore(model, images=images)._index == 0  # no labels: the first that was given


def test_what_was_counted_with_the_run_goes_along(tmp_path: Path) -> None:
    side = side_of(model_of("quadratic"))
    assert side.arrays["counted"] is None
    alone = np.array([[[1, 0, 1, 1], [0, 0, 0, 1]], [[1, 1, 1, 1], [0, 0, 1, 1]]], bool)
    swaps = dict(
        sizes=np.array([1, 3]), images=np.array(4), whole=np.array([1, 1, 0, 1], bool), alone=alone
    )
    counted = dataclasses.replace(side, run=types.SimpleNamespace(swaps=swaps))._counted()
    assert counted == dict(images=4, sizes=[1, 3], attention=3, alone=[[3, 1], [4, 2]])


def test_what_goes_with_the_images_can_be_given(data) -> None:
    """By a data set, and the statistics of arrays by themselves."""
    model, names = model_of("quadratic"), tuple(f"kind {n}" for n in range(10))
    images, labels = data.test_images[:2], torch.tensor([3, 9])
    mine = dataclasses.replace(
        data, classes=names, test_images=images, test_labels=labels, mean=(0.5,), std=(0.25,)
    )
    for about in (dict(images=mine), dict(images=images, mean=[0.5], std=[0.25])):
        explorer = explore(model, **about)
        first = explorer._index
        assert explorer.image["title"] == (
            f"test image {first}: kind {labels[first]}" if len(about) == 1 else "image 0"
        )
        inputs = (images[first : first + 1].permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
        expected = predict(model, inputs).softmax(-1)[0]
        np.testing.assert_allclose(explorer.image["sides"][0]["probabilities"], expected, rtol=1e-4)
    with pytest.raises(
        ExplorerError, match="images are of 1 classes, but the model tells 10 apart"
    ):
        explore(model, images=dataclasses.replace(data, classes=("one",)))
    with pytest.raises(ExplorerError, match="mean = .* a number for each of the 1 channels"):
        explore(model, images=images, mean=[1, 2, 3])
    colour = model_of("quadratic", image_size=(32, 32), image_channels=3)
    pool = explore(colour, images=images, mean=np.array([0.5, 0.25, 1]), std=torch.ones(3))._pool
    assert (pool.mean, pool.std) == ((0.5, 0.25, 1.0), (1.0, 1.0, 1.0))


def test_a_converted_network_is_explored(tmp_path) -> None:
    torch.manual_seed(0)
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(6, 6, 5, padding=2, groups=2),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(6, 4),
    )
    network = convert(cnn, alpha=3.0).eval()
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 24), dtype=np.uint8)
    explorer = explore(network, images=images)
    side = explorer.sides[0]
    assert (side["heads"], side["encoding"], side["title"]) == ([9, 25], "quadratic", "Sequential")
    assert "grids of their own" in side["note"] and explorer.image["pixels"]["shape"] == [20, 24, 3]
    expected = predict(network, explorer._input).softmax(-1)[0]
    np.testing.assert_allclose(explorer.image["sides"][0]["probabilities"], expected, rtol=1e-4)

    # A head that is off is a tap of 0, and all shares add up to 1; the layer's own convolution is
    # what it came from.
    edit = dict(layer=1, head=7, off=True)
    asked(explorer, kind="heads", edits=[edit])
    without = copy.deepcopy(cnn)
    with torch.no_grad():
        without[2].weight[:, :, 1, 2] = 0
    close = predict(convert(without, 3.0), explorer._input).softmax(-1)[0]
    np.testing.assert_allclose(explorer.edited["probabilities"], close, rtol=1e-4)
    shares = []
    for head in range(9):
        ((seen, _),) = asked(explorer, kind="examine", layer=0, head=head, size=3, edits=[], key="")
        shares.append(seen["head"]["share"])
        assert seen["head"]["shape"] == [10, 12] and len(seen["head"]["output"]) == 120
    assert sum(shares) == pytest.approx(1, abs=1e-3) and seen["kernel"] is None
    swapped = [dict(layer=0, kernel=3)]
    assert (
        "only a layer of an AttentionNet" in notice(explorer, kind="heads", edits=swapped)
        and "swaps" not in side
    )
    assert (
        "weights"
        not in tree_of(explorer.export_html(tmp_path / "page.html").read_text())["sides"][0]
    )
    assert explorer.figure().axes


def test_a_layer_that_the_network_does_not_use_is_shown_without_answers() -> None:
    class Spare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = torch.nn.Conv2d(1, 2, 3), torch.nn.Conv2d(1, 1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    explorer = explore(convert(Spare()), images=np.zeros((1, 9, 12, 1), np.uint8))
    assert explorer.sides[0]["heads"] == [9, 9] and explorer.choices["classes"] == []
    seen = [
        asked(explorer, kind="examine", layer=n, head=1, size=3, edits=[], key="")[0][0]
        for n in (0, 1)
    ]
    assert seen[0]["head"]["shape"] == [7, 10] and seen[1]["head"] is None
    assert explorer.page() and explorer.figure().axes


def test_what_cannot_be_explored_is_refused_in_a_sentence(runs) -> None:
    sequences = convert(torch.nn.Sequential(torch.nn.Conv1d(2, 2, 3)))
    parts = (
        torch.nn.Conv2d(3, 2, 3),
        torch.nn.Flatten(),
        torch.nn.Linear(7, 2),
    )  # for images of no size
    for subject, words in (
        (runs["resnet"], "ResNet18 has no attention heads"),
        (torch.nn.Linear(2, 2), "A Linear has no attention heads.*convert"),
        (torch.nn.Conv2d(3, 3, 3), "A Conv2d has no attention heads"),
        (
            QuadraticAttention(3, 3, 4),
            "A QuadraticAttention has no attention heads to explore.*an AttentionNet",
        ),
        (sequences, "A Sequential has no attention heads to explore over images"),
        (swap(model_of("quadratic"), {2: 3}), "Layer 2 of this network is a convolution"),
        (
            model_of("quadratic", heads=(0, 0)),
            "All heads of this AttentionNet are pruned: there is nothing to explore",
        ),
        (
            convert(torch.nn.Sequential(*parts)),
            "fails on 32 x 32 pixels with 3 channels .*Give images= of the size",
        ),
        (7, "type int cannot be explored"),
    ):
        with pytest.raises(ExplorerError, match=words) as refused:
            explore(subject)
        assert "\n" not in str(refused.value)


def test_a_run_brings_its_path_and_its_neighbours(runs, data) -> None:
    explorer = explore(runs["quadratic"], images=data)
    assert [run["name"] for run in explorer.choices["runs"]] == [
        "quadratic",
        "content",
    ]  # with heads in every layer
    assert explorer.sides[0]["path"]["epochs"] == 3
    for name in ("centres", "precisions"):
        now = np.frombuffer(explorer.sides[0][name]["data"], np.float32)
        last = np.frombuffer(explorer.sides[0]["path"][name]["data"], np.float32).reshape(3, -1)[-1]
        np.testing.assert_allclose(last, now, rtol=1e-4)
    assert (
        explore(str(runs["quadratic"].path)).sides[0]["name"] == "quadratic"
    )  # its folder, and its own data


def test_runs_without_their_weights_are_not_offered(runs, data, tmp_path) -> None:
    for name in ("quadratic", "content"):
        shutil.copytree(runs[name].path, tmp_path / name)
    config = tmp_path / "content" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"weights_kept": False}))
    (tmp_path / "content" / "model.safetensors").unlink()
    explorer = explore(tmp_path / "quadratic", images=data)
    assert [run["name"] for run in explorer.choices["runs"]] == ["quadratic"]


def test_another_image_by_class(runs, data) -> None:
    explorer = explore(runs["quadratic"], images=data)
    for label in (3, 3, 9, None, None, None):
        before = explorer.image["title"]
        assert asked(explorer, kind="image", **{"class": label}) == []
        assert explorer.image["title"] != before and (
            label is None or explorer.image["label"] == label
        )
        shown = np.frombuffer(explorer.image["pixels"]["data"], np.uint8).reshape(1, 28, 28, 1)
        assert (data.test_images.numpy() == shown).all((1, 2, 3)).any()
    assert "no other image" in notice(explorer, kind="image", **{"class": 77})
    titles = []
    for _ in range(12):  # in no order
        asked(explorer, kind="image", **{"class": None})
        titles.append(int(re.search(r"\d+", explorer.image["title"])[0]))
    assert len(set(np.diff(titles))) > 3


def test_an_image_of_the_reader(data) -> None:
    """The page sends its pixels, cropped and resized."""
    explorer = explore(model_of("quadratic"), images=data)
    pixels = np.arange(784, dtype=np.uint8)
    assert asked(explorer, kind="open", name="a.png", buffers=[memoryview(pixels.tobytes())]) == []
    assert explorer.image["title"] == "a.png" and explorer.image["label"] is None
    assert explorer.image["pixels"]["data"] == pixels.tobytes()
    assert "ValueError" in notice(explorer, kind="open", name="b.png", buffers=[b"too few"])
    assert explorer.image["title"] == "a.png"  # what was shown stays


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_and_its_heads_are_examined(kind: str, data) -> None:
    """Against the definitions, computed one by one; the shares of all heads add up to 1, and all
    are put back.
    """
    model = model_of(kind)
    before = copy.deepcopy(model.state_dict())
    explorer = explore(model, images=data)
    question = dict(
        kind="examine", layer=1, size=3, key="k", edits=[dict(layer=0, head=1, off=True)]
    )
    with edited(model, question["edits"]), torch.no_grad():
        image = explorer._input
        x, layer = model.layer_inputs(image)[1], model.attention_layers[1]
        whole = layer(x) - layer.value.bias
        shares = []
        for head in range(3):
            ((seen, _),) = asked(explorer, **question, head=head)
            assert (seen["kind"], seen["key"]) == ("examined", "k")
            with edited(model, [dict(layer=1, head=h, off=True) for h in range(3) if h != head]):
                own = layer(x) - layer.value.bias
            output = np.reshape(seen["head"]["output"], (7, 7))
            np.testing.assert_allclose(output, own[0].norm(dim=-1), rtol=1e-3, atol=1e-5)
            with edited(model, [dict(layer=1, head=head, off=True)]):
                np.testing.assert_allclose(
                    seen["head"]["probabilities"], predict(model, image).softmax(-1)[0], 1e-4
                )
            shares.append(seen["head"]["share"])
        assert sum(shares) == pytest.approx(1, abs=1e-4)
        assert (seen["kernel"] is None) == (kind == "content")
        if kind != "content":
            conv, _ = attention_to_conv(layer, 3, size=(7, 7))
            replaced = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            apart = replaced - layer(x)
            assert seen["kernel"]["error"] == pytest.approx(
                (apart.norm() / whole.norm()).item(), rel=1e-3
            )
            with layer.register_forward_hook(lambda *_: replaced):
                told = predict(model, image).softmax(-1)[0]
            np.testing.assert_allclose(seen["kernel"]["probabilities"], told, rtol=1e-3)
            for told, output in zip(seen["kernel"]["outputs"], (layer(x), replaced), strict=True):
                norms = (output - layer.value.bias)[0].norm(dim=-1)
                np.testing.assert_allclose(told, norms.flatten(), rtol=1e-3)

            # The same where the convolution is in the layer's place already; a head is what it
            # makes of that.
            there = question | dict(edits=[*question["edits"], dict(layer=1, kernel=3)], size=5)
            ((now, _),) = asked(explorer, **there, head=2)
            assert all(now["kernel"][name] == seen["kernel"][name] for name in ("error", "outputs"))
            assert (
                now["kernel"]["probabilities"]
                == explorer._sides[0].look(image, there["edits"])[0]["probabilities"]
            )
            with edited(model, [dict(layer=1, head=2, off=True)]):
                own = replaced - attention_to_conv(layer, 3, (7, 7))[0](
                    x.permute(0, 3, 1, 2)
                ).permute(0, 2, 3, 1)
            np.testing.assert_allclose(
                now["head"]["output"], own[0].norm(dim=-1).flatten(), rtol=1e-3, atol=1e-5
            )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_right_answers_are_counted(data) -> None:
    model = model_of("quadratic")
    explorer = explore(model, images=data)
    assert explorer.choices["labelled"] == 40
    edits = [dict(layer=0, head=h, off=True) for h in range(3)]
    for changes in ([], edits, [dict(layer=1, kernel=3)]):
        counted = []
        for part in (0, 25):
            ((answer, _),) = asked(
                explorer, kind="right", edits=changes, key="k", to=part + 25, **{"from": part}
            )
            assert (answer["key"], answer["from"]) == ("k", part) and json.dumps(answer)
            counted += answer["right"]
        with edited(model, changes):
            logits = predict(model, explorer._inputs(list(data.test_images.numpy())))
        assert counted == (logits.argmax(-1) == data.test_labels).tolist()
    assert explore(model, images=data.test_images).choices["labelled"] == 0


@pytest.mark.parametrize("kind", ["quadratic", "full"])
def test_an_edit_sets_centre_and_sigma(kind: str) -> None:
    model = model_of(kind)
    layer = model.attention_layers[1]
    shape = layer.precision()[2] / layer.precision()[2].det().sqrt()
    with edited(model, [dict(layer=1, head=2, centre=[1.5, -2], sigma=0.5)]):
        assert layer.centres[2].tolist() == [1.5, -2]
        assert layer.precision()[2].det().item() ** -0.25 == pytest.approx(0.5, rel=1e-4)
        torch.testing.assert_close(layer.precision()[2] / layer.precision()[2].det().sqrt(), shape)
    with torch.no_grad():
        layer.spreads[0] = 0
    with edited(model, [dict(layer=1, head=0, sigma=2)]):  # had no scale: becomes round
        torch.testing.assert_close(layer.precision()[0], torch.eye(2) / 4)


def test_senseless_edits_are_refused_and_nothing_is_left(data) -> None:
    explorer, content = (explore(model_of(kind), images=data) for kind in ("quadratic", "content"))
    answer = predict(explorer._sides[0].model, explorer._input)
    for edit, words in (
        (dict(layer=2, head=0), "no layer 2"),
        (dict(layer=-1, head=0), "no layer -1"),
        (dict(layer=0, head=3), "no head 3"),
        (dict(layer=0, head=None), "no head None"),
        (dict(layer=0, head=0, sigma=float("nan")), "sigma"),
        (dict(layer=0, head=0, sigma=0), "sigma"),
        (dict(layer=0, head=0, centre=[0, float("inf")]), "centre"),
        (dict(layer=2, kernel=3), "no layer 2"),
        (dict(layer=1, kernel=4), "side 4 does not fit: it must be an odd number, at most 7"),
        (dict(layer=1, kernel=9), "side 9"),
        (dict(layer=1, kernel="3"), "side '3'"),
    ):
        assert words in notice(
            explorer, kind="heads", edits=[dict(layer=0, head=1, off=True), edit]
        )
        assert torch.equal(answer, predict(explorer._sides[0].model, explorer._input))
    assert "not look at content" in notice(content, kind="heads", edits=[dict(layer=0, kernel=3)])


def test_the_average_is_that_of_the_probabilities(data) -> None:
    model = model_of("content")
    explorer = explore(model, images=data.test_images[:6])
    asked(explorer, kind="average")
    inputs = model.layer_inputs(explorer._inputs(list(data.test_images[:6].numpy())))
    for layer, x, sent in zip(model.attention_layers, inputs, explorer.average[0], strict=True):
        content, position = layer.score_parts(x)
        for part, scores in {
            "full": content + position,
            "position": position,
            "content": content,
        }.items():
            expected = scores.flatten(-2).softmax(-1).mean(0).detach().numpy()
            close = torch.from_numpy(restored(sent[part])).softmax(-1).numpy()
            np.testing.assert_allclose(close, expected, rtol=1e-3)


def test_runs_are_chosen_and_compared(runs, data) -> None:
    explorer = explore(runs["quadratic"], images=data)
    asked(explorer, kind="compare", name="content")
    assert [side["encoding"] for side in explorer.sides] == ["quadratic", "content"]
    assert len(explorer.image["sides"]) == 2 and "maps" in explorer.image["sides"][1]
    asked(explorer, kind="run", name="content")
    asked(explorer, kind="compare", name=None)
    assert [side["encoding"] for side in explorer.sides] == ["content"]
    for message in (
        dict(kind="compare", name="../x"),
        dict(kind="format the disk"),
        dict(kind="open"),
    ):
        assert "Error" in notice(explorer, **message)  # a notice, not a dead kernel


# --- elsewhere


def tree_of(page: str) -> dict:
    text = re.search(r"<script id='data' type='text/plain'>(.*?)</script>", page)[1]
    return tree_in(text)


def tree_in(text: str) -> dict:
    raw = gzip.decompress(base64.b85decode(text.replace(",", "<")))
    (length,) = struct.unpack("<I", raw[:4])
    return json.loads(raw[4 : 4 + length])


def test_the_page_is_one_file_without_the_network(runs, data, tmp_path) -> None:
    explorer = explore(runs["content"], images=data)
    page = explorer.export_html(tmp_path / "deep" / "page.html").read_text()
    visible = re.sub(r"<script id='data'.*?</script>|base64,[^']*", "", page)
    paper = (
        "https://arxiv.org/abs/1911.03584"  # a link to follow: nothing else there is of the network
    )
    assert visible.count(paper) == 1
    visible = visible.replace(paper, "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|https?://|@import|url\(""", visible)
    assert page.count("<noscript><img") == 1 and "openPage(document)" in page
    tree = tree_of(page)
    assert (
        tree["average"] and len(tree["gallery"]) == 39
    )  # all test images but the one that is shown
    assert explorer.page() == page  # the same bytes each time


@pytest.mark.parametrize("kind", ["quadratic", "content"])
def test_the_page_is_of_the_view_as_it_is(kind: str, runs, data) -> None:
    """The state comes with the question, and the prediction of changed heads with the page."""
    explorer = explore(runs[kind], images=data)
    assert "edited" not in tree_of(explorer.page())
    edit = dict(layer=1, head=2, off=True)
    edits, places = [edit], {"1.2": dict(off=True)}
    if kind == "quadratic":
        edits, places = [dict(layer=0, kernel=3), edit], {"0": dict(kernel=3)} | places
    ((_, (page,)),) = asked(explorer, kind="export", state=dict(head=2, edits=places))
    tree = tree_of(page.decode())
    assert tree["state"]["head"] == 2 and tree["edited"]["heads"] == edits
    asked(explorer, kind="heads", edits=edits)
    np.testing.assert_allclose(
        tree["edited"]["probabilities"], explorer.edited["probabilities"], rtol=1e-5
    )
    assert ("maps" in tree["edited"]) == (kind == "content")
    asked(explorer, kind="run", name="quadratic")  # another model: its heads are not changed
    assert "edited" not in tree_of(explorer.page())


def test_the_page_leaves_out_weights_that_are_too_many(data, monkeypatch) -> None:
    """It then shows where heads look with maps that Python computed, which are too large for
    many images.
    """
    content, quadratic = (explore(model_of(kind), images=data) for kind in ("content", "quadratic"))
    assert "maps" not in tree_of(content.page())["image"]["sides"][0]
    monkeypatch.setattr(widget, "WEIGHTS_LIMIT", 1000)
    tree = tree_of(content.page())
    assert (
        "weights" not in tree["sides"][0]
        and "maps" in tree["image"]["sides"][0]
        and not tree["gallery"]
    )
    tree = tree_of(quadratic.page())
    assert "weights" not in tree["sides"][0] and len(tree["gallery"]) == 39


def test_a_site_has_a_page_for_each_model_and_pictures_once(runs, data, tmp_path) -> None:
    explorer = explore(runs["quadratic"], images=data)
    widgets = ipywidgets.widgets.widget._instances
    alive = {key for key, one in widgets.items() if isinstance(one, widget.Explorer)}
    pages = explorer.export_site(tmp_path)
    assert {
        key for key, one in widgets.items() if isinstance(one, widget.Explorer)
    } == alive  # the other's is closed
    assert [page.name for page in pages] == ["explorer.html", "explorer-content.html"]
    files = {"explorer.html", "explorer-content.html", "explorer-images.js"}
    assert {file.name for file in tmp_path.iterdir()} == files
    beside = tree_in((tmp_path / "explorer-images.js").read_text().split('"')[1])
    for page, name in zip(pages, ("quadratic", "content"), strict=True):
        text = page.read_text()
        tree, links = tree_of(text), re.findall(r"<a href='([^']+)'( aria-current=page)?>", text)
        assert tree["model"] == name and tree["pages"] == {
            "quadratic": "explorer.html",
            "content": "explorer-content.html",
        }
        assert links == [(file.name, " aria-current=page" * (file == page)) for file in pages]
        assert tree["sides"][0]["name"] == runs[name].path.name and "weights" in tree["sides"][0]
        assert (
            len(tree["gallery"]) > 30
            and {one["pixels"] for one in tree["gallery"]} <= beside.keys()
        )
        assert isinstance(tree["image"]["pixels"], dict)  # so that the page shows something alone
    with pytest.raises(ExplorerError, match="others beside"):
        explore(model_of("quadratic"), images=data).export_site(tmp_path)


@needs_node
def test_bytes_travel_as_text() -> None:
    contents = [bytes(range(250, 250 - length, -1)) for length in range(9)]
    texts = [as_text(content) for content in contents]
    assert "<" not in "".join(texts)
    got = in_node("const out = tree.map((text) => [...page.fromText(text)]);", texts)
    assert got == [list(content) for content in contents]


def test_matrices_travel_in_few_bits_and_short_vectors_in_half_precision() -> None:
    values = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    for sent, bits in ((values, 6), (values[0], 10)):
        high, low = (np.frombuffer(part, np.uint8).astype(np.uint16) for part in rounded(sent))
        got = (high << 8 | low).view(np.float16).astype(np.float32).reshape(sent.shape)
        off = np.abs(got / sent.numpy() - 1)
        assert (
            2 ** -(bits + 2) < off.max() <= 2 ** -(bits + 1) + 2**-11
        )  # half precision rounds, too


def test_a_network_with_dozens_of_heads_is_one_picture() -> None:
    torch.manual_seed(0)
    convs = [torch.nn.Conv2d(3, 2, 7, padding=3), torch.nn.Conv2d(2, 2, 3, padding=1)]
    cnn = torch.nn.Sequential(*convs)
    figure = explore(convert(cnn), images=np.zeros((1, 32, 32, 3), np.uint8)).figure()
    *maps, _ = figure.axes[0].images
    assert (
        len(figure.axes) == 2
        and len(maps) == 49 + 9
        and np.sum([m.get_array() for m in maps]) == pytest.approx(58)
    )
    titles = [text.get_text() for text in figure.axes[0].texts if text.get_ha() == "right"]
    assert titles == ["Layer 1", "", "", "", "", "Layer 2"]


@pytest.mark.slow
def test_a_model_of_the_paper_s_size_with_content_fits_into_a_page() -> None:
    """Its scores alone are 5 of the 15 MB."""
    config = ModelConfig(kind="learned_content", hidden=32, mlp=32, key_size=32)
    page = explore(build_model(config)).page()
    assert tree_of(page)["image"] and len(page) < 15e6


def test_examining_a_head_knows_no_dropout():
    config = ModelConfig(layers=2, hidden=8, mlp=8, image_size=(16, 16), attention_dropout=0.5)
    explorer = explore(
        build_model(config).train(),
        np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), dtype=np.uint8),
    )
    seen = [explorer._sides[0].examine(explorer._input, [], 1, head, 3) for head in range(9)]
    assert sum(one["head"]["share"] for one in seen) == pytest.approx(1, abs=1e-5)
    assert len({one["kernel"]["error"] for one in seen}) == 1


@pytest.mark.parametrize("kind", ["quadratic", "learned", "learned_content"])
def test_a_layer_that_has_lost_all_its_heads_can_be_explored(kind):
    config = ModelConfig(
        kind=kind, layers=2, heads=(0, 2), hidden=8, mlp=8, key_size=4, image_size=(16, 16)
    )
    explorer = explore(
        build_model(config),
        np.random.default_rng(0).integers(0, 255, (3, 16, 16, 3), dtype=np.uint8),
    )
    explorer.figure()
    assert explorer.page()


def test_the_still_picture_of_a_page_is_of_the_view(data) -> None:
    explorer = explore(model_of("quadratic"), images=data)
    before, explorer.state = explorer.page(), dict(query=[0, 0])
    first, second = (
        re.search("<noscript><img.+?base64,([^']+)", page)[1] for page in (before, explorer.page())
    )
    assert first != second
