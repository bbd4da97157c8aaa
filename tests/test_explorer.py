"""The explorer without a browser: what it sends, what it answers, what it refuses, and the front
end's arithmetic.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import gzip
import itertools
import json
import re
import shutil
import struct
import types

import ipywidgets
import numpy as np
import pytest
import torch
from PIL import Image

from attnconv import heads
from attnconv.config import ModelConfig, TrainConfig
from attnconv.equivalence import attention_to_conv, convert, swap
from attnconv.models import build_model, predict
from attnconv.training import load_run, train
from attnconv.training.data import load_data
from attnconv.training.runs import Run
from companion.explorer import Explorer, ExplorerError, explore, explorer
from companion.explorer.counts import FILE, count_swaps, counted_swaps, keep_counts
from companion.explorer.images import fitting, pool_of
from companion.explorer.story import networks
from companion.explorer.subject import Subject, subject_of
from edits import edited
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
POSITIONAL = ("quadratic", "full", "learned")


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
    kinds = {name: KINDS[name] for name in ("quadratic", "content")}
    kinds["swapped"] = KINDS["quadratic"] | dict(kernels=(3,))
    kinds["resnet"] = dict(kind="resnet", resnet_width=8)
    configs = {name: ModelConfig(**(SMALL | kind)) for name, kind in kinds.items()}
    return {
        name: train(config, recipe, data.first(20, 20), folder / name, preset=name)
        for name, config in configs.items()
    }


def asked(view: Explorer, **message) -> list:
    """What the explorer sends when the page asks for something, as (content, buffers)."""
    sent = []
    view.send = lambda content, buffers=None: sent.append((content, buffers))
    view._receive(view, message | {"id": 7}, message.pop("buffers", []))
    assert sent[-1][0] == {"kind": "done", "id": 7}
    return sent[:-1]


def notice(view: Explorer, **message) -> str:
    (sent,) = asked(view, **message)
    assert sent[0]["kind"] == "notice"
    return sent[0]["text"]


def unpacked(packed: dict) -> np.ndarray:
    return np.frombuffer(packed["data"], packed["dtype"]).reshape(packed["shape"])


def unzipped(content: bytes) -> dict:
    raw = gzip.decompress(content)
    (length,) = struct.unpack("<I", raw[:4])
    return json.loads(raw[4 : 4 + length])


def tree_of(page: str) -> dict:
    text = re.search(r"<script id='data' type='text/plain'>(.*?)</script>", page)[1]
    return unzipped(base64.b85decode(text.replace(",", "<")))


# --- the front end's arithmetic


@needs_node
def test_the_front_end_with_node():
    run_tests("explorer.test.mjs")


def modelled(side: Subject, source: str):
    """What node answers about a ``model``, as ``out``."""
    return in_node("const model = new heads.Model(tree);" + source, dict(side.arrays, counted={}))


def as_sent(model):
    """The model with the weights that a page has."""
    sent = copy.deepcopy(model).float()
    weights = subject_of(sent).weights
    with torch.no_grad():
        for name, values in sent.named_parameters():
            if name in weights:
                values.copy_(torch.from_numpy(weights[name].astype(np.float32)))
    return sent


@needs_node
@pytest.mark.parametrize("kind", KINDS)
def test_the_browser_computes_what_the_model_does(kind: str, data):
    """Maps and numbers of heads.js, at a corner and inside, all layers and heads. Where content
    matters, the scores come from network.js.
    """
    model = as_sent(model_of(kind))
    view = explore(model, images=data)
    parts, places = ("full", "position", "content"), ((0, 6), (3, 2))
    code = f"""
        const model = net.heads, found = [];
        net.allScores({{}})?.forEach((scores, layer) => model.setScores(layer, scores));
        for (const part of {list(parts)}) for (const query of {json.dumps(places)})
            for (let l = 0; l < 2; l++) for (let h = 0; h < 3; h++) {{
                const map = model.probabilities(l, h, query, new Float32Array(49), part);
                found.push([[...map], heads.describe(map, 7, 7, query)]);
            }}
        return found;"""
    (answers,) = in_network(code, view, [view._shown], [])
    answers = iter(answers)
    image = view._inputs(view._shown["pixels"][None])
    layers = list(zip(model.attention_layers, model.layer_inputs(image), strict=True))
    for part, query, (layer, x) in itertools.product(parts, places, layers):
        maps = heads.query_maps(layer, query, 7, 7, x).reshape(-1, 7, 7)
        if part != "full" and kind == "content":
            logits = layer.score_parts(x)[part == "position"][0, :, *query].detach()
            maps = logits.flatten(-2).softmax(-1).view(3, 7, 7).numpy()
        told = heads.describe(maps, query)
        expected = {"centre": told.centre, "reach": told.reach, "mass": maps.max((1, 2))}
        flat = maps.reshape(3, 49).astype(float)
        expected["entropy"] = torch.special.entr(torch.from_numpy(flat)).sum(1).numpy()
        covariances = [np.cov(np.indices((7, 7)).reshape(2, -1), aweights=p, ddof=0) for p in flat]
        expected["covariance"] = np.array(covariances)[:, [0, 0, 1], [0, 1, 1]]
        for head in range(3):
            seen, numbers = next(answers)
            np.testing.assert_allclose(np.reshape(seen, (7, 7)), maps[head], rtol=2e-3, atol=1e-6)
            for name, values in expected.items():
                np.testing.assert_allclose(numbers[name], values[head], atol=2e-3, err_msg=name)


@needs_node
@pytest.mark.parametrize("kind", POSITIONAL)
def test_the_browser_reads_the_kernel_that_python_reads(kind: str):
    model, sizes = model_of(kind), (1, 3, 5)
    code = f"""const out = {list(sizes)}.flatMap((size) =>
        [0, 1].map((l) => heads.kernelOf(model, l, heads.readLayer(model, l).maps, size)));"""
    answers = modelled(subject_of(model), code)
    for (size, layer), read in zip(
        itertools.product(sizes, model.attention_layers), answers, strict=True
    ):
        conv, outside = attention_to_conv(layer, size, size=(7, 7))
        close = dict(rtol=1e-3, atol=1e-6)
        norms = conv.weight.detach().flatten(2).norm(dim=(0, 1))
        np.testing.assert_allclose(read["norms"], norms, **close)
        np.testing.assert_allclose(read["outside"], outside, **close)
        weight = layer.value.weight.detach().unflatten(1, (3, 8))
        alone = weight.norm(dim=(0, 2)).numpy()
        inside = slice(3 - size // 2, 4 + size // 2)
        maps = heads.query_maps(layer, (3, 3), 7, 7)[:, inside, inside].reshape(3, -1)
        np.testing.assert_allclose(read["parts"], maps * alone[:, None], **close)
        whole = torch.einsum("hij,dhc->dcij", layer.probabilities(7, 7, (3, 3)).detach(), weight)
        left_out = whole.clone()
        left_out[..., inside, inside] = 0
        # Over white noise.
        np.testing.assert_allclose(read["error"], left_out.norm() / whole.norm(), **close)


@needs_node
@pytest.mark.parametrize("count, size", [(9, 3), (16, 4)])
def test_the_browser_counts_taps_as_python_does(count: int, size: int):
    model = model_of("quadratic", heads=count, layers=6)
    with torch.no_grad():
        for layer in model.attention_layers:
            layer.centres.copy_(1.3 * torch.randn(count, 2))
            layer.spreads.copy_(1 + 2 * torch.rand(count))
        layer.centres[0] = torch.tensor([-9.0, 2])
        layer.spreads[:2] = torch.tensor([9.0, 0.01])
    code = "const out = model.heads.map((_, l) => ({ ...heads.readLayer(model, l), maps: 0 }));"
    read = modelled(subject_of(model), code)
    found = heads.geometry(model.attention_layers, 7, 7)
    where = found["mass"], found["parameter_centre"]
    cells = heads.kernel_cells(*where, size | 1)
    # an even kernel lies where it covers most
    starts = itertools.product(range(2 - size % 2), repeat=2)
    windows = [cells[:, r : r + size, c : c + size].sum((1, 2)) for r, c in starts]
    covered = np.max(windows, axis=0)
    assert [one["covered"] for one in read] == covered.tolist() and len(set(covered)) > 2
    kinds = np.array([[head["kind"] for head in one["heads"]] for one in read])
    on_image = (abs(where[1].round()) <= 3).all(-1)
    np.testing.assert_array_equal(kinds == "tap", (where[0] > heads.TAP_MASS) & on_image)
    assert kinds[-1, :2].tolist() == ["outside", "uniform"]


@needs_node
def test_a_nearly_singular_head_is_the_same_in_the_browser():
    """Its scale is one that Sigma^{-1} in 32 bits does not tell: it comes from Python."""
    sides, expected = [], []
    for away, sigma in itertools.product((1e-1, 1e-3, 1e-4, 0.0), (0.7, 2.0)):
        model, edit = model_of("full"), dict(centre=[0.3, -0.2], sigma=sigma)
        with torch.no_grad():
            model.attention_layers[1].spreads[2] = torch.tensor([[1, 1], [1, 1 + away]])
        sides.append(dict(side=subject_of(model).arrays, edit=edit))
        with edited(model, [dict(edit, layer=1, head=2)]):
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


def edits_of(kind: str) -> list[dict]:
    return [edit for edit in EDITS if kind in ("quadratic", "full") or edit.get("off")]


def in_network(code: str, view: Explorer, shown: list[dict], edits: list[list[dict]]):
    """What node answers with the weights of a page, as ``net``, about each of some images and all
    ``edits``, as pages keep them.
    """
    kept = [
        {f"{e['layer']}.{e['head']}" if "head" in e else f"{e['layer']}": e for e in some}
        for some in edits
    ]
    tree = dict(
        side=view._subject.arrays,
        normal=dict(mean=list(view._pool.mean), std=list(view._pool.std)),
        images=[one["pixels"].tobytes() for one in shown],
        edits=kept,
    )
    start = "const net = new network.Network(tree.side, tree.normal);"
    image = "net.setImage({ height: 28, width: 28, channels: 1, values });"
    return in_node(f"{start} const out = tree.images.map((values) => {{ {image} {code} }});", tree)


def off(layer: int, *heads: int) -> list[dict]:
    return [dict(layer=layer, head=head, off=True) for head in heads]


@needs_node
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, (3, 3, 0)])
def test_the_browser_predicts_what_python_does(kind: str, count, data):
    """Predictions with and without changed heads, in both orders, and what a layer and a head do,
    against the definitions. A layer without heads adds its bias alone.
    """
    sizes = dict(hidden=15, mlp=13, layers=3)  # odd: the browser sums four rows, two outputs a time
    model = model_of(kind, heads=count, **sizes)
    with torch.no_grad():
        model.classifier.weight *= 20  # so that something is predicted
        model.attention_layers[2].value.bias.copy_(torch.linspace(-2, 2, 15))
    view = explore(model, images=data)
    shown = [view._pool.shown(index) for index in range(3)]
    code = """const [before, after] = tree.edits.map((edits) => net.predict(edits));
        return { before, after, seen: net.examine(1, 2, 3, tree.edits[1]), again: net.predict({}),
                 shares: [0, 1, 2].map((head) => net.examine(1, head, 3, {}).head.share) };"""
    edits, sent = edits_of(kind), as_sent(model)
    layer = sent.attention_layers[1]

    def says(image: torch.Tensor, changes: list[dict]) -> torch.Tensor:
        with edited(sent, changes):
            return predict(sent, image).softmax(-1)[0]

    def layer_of(image: torch.Tensor, changes: list[dict]) -> torch.Tensor:
        """The layer's output without its bias, its input being that with ``edits`` alone."""
        with edited(sent, edits):
            x = sent.layer_inputs(image)[1]
        with edited(sent, changes), torch.no_grad():
            return layer(x) - layer.value.bias

    def norms(output: torch.Tensor) -> torch.Tensor:
        return output[0].norm(dim=-1).flatten()

    for answer, one in zip(in_network(code, view, shown, [[], edits]), shown, strict=True):
        image = view._inputs(one["pixels"][None])
        before = says(image, [])
        assert np.ptp(before) > 0.2
        close = dict(rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(answer["before"], before, atol=2e-5)
        np.testing.assert_allclose(answer["after"], says(image, edits), atol=2e-5)
        np.testing.assert_allclose(answer["again"], before, atol=2e-5)
        assert sum(answer["shares"]) == pytest.approx(1, abs=1e-4)
        head, kernel = answer["seen"]["head"], answer["seen"]["kernel"]
        own = layer_of(image, [*edits, *off(1, 0, 1)])
        np.testing.assert_allclose(head["output"], norms(own), **close)
        np.testing.assert_allclose(
            head["probabilities"], says(image, [*edits, *off(1, 2)]), **close
        )
        assert (kernel is None) == (kind == "content")
        if not kernel:
            continue
        there = [*edits, dict(layer=1, kernel=3)]
        attention, convolution = layer_of(image, edits), layer_of(image, there)
        for told, output in zip(kernel["outputs"], (attention, convolution), strict=True):
            np.testing.assert_allclose(told, norms(output), **close)
        error = (convolution - attention).norm() / attention.norm()
        assert kernel["error"] == pytest.approx(error.item(), rel=1e-3)
        np.testing.assert_allclose(kernel["probabilities"], says(image, there), **close)


@needs_node
@pytest.mark.parametrize("kind", POSITIONAL)
def test_a_layer_is_swapped_in_the_browser_as_in_python(kind: str, data):
    """Logits with one layer, and two, as convolutions, read from the layers with their heads as
    they are changed.
    """
    model = model_of(kind, hidden=16, mlp=12, layers=3)
    with torch.no_grad():
        model.classifier.weight *= 16
    view = explore(model, images=data)
    shown, sent = [view._pool.shown(index) for index in range(3)], as_sent(model)
    images = view._inputs(np.stack([one["pixels"] for one in shown]))
    changed = edits_of(kind)
    places = [{}, {1: 3}, {1: 3, 0: 3}, {1: 5, 0: 3}]
    edits = [[*changed, *(dict(layer=n, kernel=s) for n, s in some.items())] for some in places]
    with edited(sent, changed):
        swaps = [swap(sent, {n + 1: size for n, size in some.items()}) for some in places]
        expected = torch.stack([predict(network, images) for network in swaps])
    code = "return tree.edits.map((edits) => net.logits(edits));"
    got = torch.tensor(in_network(code, view, shown, edits)).transpose(0, 1)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=0)
    assert (expected.diff(dim=0).abs().amax((1, 2)) > 0.1).all()
    for some, logits in zip(edits, expected, strict=True):
        with edited(sent, some[::-1]):  # in any order
            torch.testing.assert_close(predict(sent, images), logits)


# --- images


def test_the_middle_is_kept_upright_and_on_white(tmp_path):
    image = Image.new("RGBA", (300, 100), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (100, 0, 200, 100))
    image.paste((0, 0, 0, 0), (100, 50, 200, 100))
    exif = Image.Exif()
    exif[0x0112] = 6  # it is to be turned by a quarter: what is below comes to the left
    image.save(tmp_path / "a.png", exif=exif)
    left, right = np.split(fitting(tmp_path / "a.png", (10, 10), 3)[0].astype(int), 2, axis=1)
    assert (left[:, :4] > 230).all() and (abs(right[:, 1:] - [0, 0, 255]) < 25).all()


def test_images_can_be_given_in_many_forms(data, tmp_path):
    Image.new("L", (50, 80), 77).save(tmp_path / "a.png")
    array = data.test_images[:5]
    for images in (array, array.numpy(), array[0], [array[:2], array[2:]]):
        assert (fitting(images, (28, 28), 1)[0] == array[0].numpy()).all()
    mirrored = fitting(array.numpy()[:, :, ::-1], (28, 28), 1)
    assert (mirrored == array.flip(2).numpy()).all()
    torch.from_numpy(mirrored)  # no negative strides
    shapes = (2, 32, 32, 3), (30, 50, 1)
    grey = [np.full(shape, 77, np.uint8) for shape in shapes]
    grey += [tmp_path / "a.png", str(tmp_path / "a.png"), Image.new("RGB", (9, 9), (77, 77, 77))]
    for images in (*grey, grey):
        assert (fitting(images, (28, 28), 1) == 77).all()


def test_images_that_cannot_be_shown_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "half.jpg").write_bytes(b"no image")
    for images, words in (
        (tmp_path / "half.jpg", "half.jpg"),
        (np.zeros((2, 3, 28, 28), np.uint8), "or not"),
        (np.zeros((1, 28, 28, 1), int), "must be uint8"),
        (torch.zeros(28, 28, 1, dtype=torch.bfloat16), "are bfloat16; they must be uint8"),
        (np.zeros((0, 28, 28, 1), np.uint8), "empty"),
        ([], "empty"),
        (7, "type int"),
    ):
        with pytest.raises(ExplorerError, match=words) as refused:
            fitting(images, (28, 28), 1)
        assert "\n" not in str(refused.value)


def test_labels_are_of_the_classes_that_the_model_knows(data):
    """As many classes are not yet the same: a shirt is not a truck. Of images that are not at hand,
    those of the sample are shown, without its classes.
    """
    side, other = subject_of(model_of("quadratic")), list("abcdefghij")
    for images, name, classes, known in (
        (data, "mine", list(data.classes), True),
        (data, data.name, other, True),
        (data, "mine", other, False),
        (None, data.name, other, True),
        (None, "mine", other, False),
    ):
        run = types.SimpleNamespace(config=dict(data=dict(name=name, classes=classes)))
        pool = pool_of(images, dataclasses.replace(side, run=run))
        assert pool.labels.any() == known and pool.classes == tuple(classes)


def test_what_goes_with_the_images_can_be_given(data):
    """By a data set, and the statistics of arrays by themselves."""
    model, own = model_of("quadratic"), dict(mean=(0.5,), std=(0.25,))
    images = data.test_images[:1]
    mine = dict(classes=tuple("abcdefghij"), test_images=images, test_labels=torch.tensor([3]))
    mine = dataclasses.replace(data, **mine, **own)
    for title, about in (
        ("test image 0: d", dict(images=mine)),
        ("image 0", dict(images=images, **own)),
    ):
        data_of_it = explore(model, **about)._content()
        assert [one["title"] for one in data_of_it["images"]] == [title]
        assert [data_of_it["choices"][name] for name in ("mean", "std")] == [[0.5], [0.25]]
    with pytest.raises(ExplorerError, match="are of 1 classes, but the model tells 10 apart"):
        explore(model, images=dataclasses.replace(data, classes=("one",)))
    with pytest.raises(ExplorerError, match="mean = .* a number for each of the 1 channels"):
        explore(model, images=images, mean=[1, 2, 3])


# --- what is explored


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_images_take_the_type_of_the_network(kind: str, dtype: torch.dtype, data):
    view = explore(model_of(kind).to(dtype), images=data)
    assert view.figure().axes and view.page()


def test_what_cannot_be_explored_is_refused_in_a_sentence(runs):
    wide = model_of("learned")
    wide.attention_layers[0].row_scores.data[0] = 1e5
    for subject, words in (
        (runs["resnet"], "ResNet18 has no attention heads"),
        (convert(torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3))), "no attention heads to explore"),
        (swap(model_of("quadratic"), {2: 3}), "is a convolution, without heads"),
        (model_of("quadratic", heads=(0, 0)), "no attention heads"),
        (wide, "row_scores is not finite, or above"),
    ):
        with pytest.raises(ExplorerError, match=words) as refused:
            explore(subject)
        assert "\n" not in str(refused.value)


def test_a_run_brings_its_path_its_counts_and_its_neighbours(runs, data, tmp_path):
    told = explore(runs["quadratic"], images=data)._content()
    side = told["side"]
    assert [run["name"] for run in told["choices"]["runs"]] == ["quadratic", "content"]
    assert side["path"]["epochs"] == 3 and side["counted"] == {}
    accuracy = [epoch["test_accuracy"] for epoch in runs["quadratic"].metrics]
    assert side["path"]["accuracy"] == accuracy
    for name in ("centres", "precisions", "products"):
        path = unpacked(side["path"][name])
        np.testing.assert_allclose(path[-1], unpacked(side[name]), rtol=1e-4)
    folder = shutil.copytree(runs["quadratic"].path, tmp_path / "one")
    shutil.copytree(runs["content"].path, tmp_path / "gone")
    (tmp_path / "gone" / "model.safetensors").unlink()  # as they are left out of a record
    about = shutil.copytree(runs["content"].path, tmp_path / "others") / "config.json"
    about.write_text(about.read_text().replace("Trouser", "Skirt"))  # of other classes
    other = explore(str(folder))  # and its own data
    assert [run["name"] for run in other._content()["choices"]["runs"]] == ["one"]


def test_the_first_page_shows_the_longest_run_of_a_preset(runs):
    longer = Run(runs["quadratic"].path)
    vars(longer)["train"] = TrainConfig(epochs=9)
    assert networks([runs["quadratic"], longer])["quadratic"] is longer


def test_every_choice_of_layers_is_counted(runs, data, tmp_path):
    """As `swap` and `predict` answer; kept with the run, and told where nothing better is."""
    folder = shutil.copytree(runs["quadratic"].path, tmp_path / "run")
    model = load_run(folder)[0]
    with torch.no_grad():
        model.classifier.weight *= 50
        for layer in model.attention_layers:
            layer.value.weight *= 5
            layer.spreads.fill_(0.3)  # wide: a small convolution says something else
    images = explore(model, images=data)._inputs(data.test_images.numpy())
    labels = predict(model, images).argmax(-1)
    right = count_swaps(model, images, labels, (3, 5))
    for place, size in enumerate((3, 5)):
        for choice, layers in enumerate(([], [1], [2], [1, 2])):
            swapped = swap(model, dict.fromkeys(layers, size)) if layers else model
            expected = (predict(swapped, images).argmax(-1) == labels).sum()
            assert right[place, choice] == expected, (size, layers)
    assert len({*right.flatten().tolist()}) > 2

    assert counted_swaps(Run(folder)) == {}
    keep_counts(folder, "embedded", 20)
    with np.load(folder / FILE) as kept:
        assert kept["images"] == 20 and kept["right"].shape == (2, 4)
        first = kept["right"][0].tolist()
    known = counted_swaps(Run(folder))
    assert known[3] == {choice: (count, first[0], 20) for choice, count in enumerate(first)}
    alone = np.packbits([[[1, 0, 1, 1], [0, 0, 0, 1]], [[1, 1, 1, 1], [0, 0, 1, 1]]], axis=-1)
    counts = dict(sizes=[1, 3], images=4, alone=alone, up_to=alone, whole=alone[0, 0])
    np.savez(folder / "swaps.npz", **counts)
    known = counted_swaps(Run(folder))
    assert known[1] == {0: (3, 3, 4), 1: (3, 3, 4), 2: (4, 3, 4), 3: (4, 3, 4)}
    assert known[3][2] == (2, 3, 4) and known[7] and counted_swaps(runs["content"]) == {}


# --- what Python answers


def test_it_opens_on_a_clear_image_that_the_model_is_sure_of(data):
    model, images = model_of("quadratic"), data.test_images[:20]
    with torch.no_grad():
        model.classifier.weight *= 1000
    view = explore(model, images=images)
    assert view._clear_image() == 0  # no labels: the first that was given
    labels = predict(model, view._inputs(images.numpy())).argmax(-1)
    light = images.float().mean(-1).flatten(1)
    first, second, *_ = (light.mean(1) * light.std(1)).argsort(descending=True).tolist()
    labelled = dataclasses.replace(data, test_images=images, test_labels=labels)
    assert explore(model, images=labelled)._clear_image() == first != 0
    labels[first] = (labels[first] + 1) % 10  # it is wrong about the clearest
    assert explore(model, images=labelled)._clear_image() == second


def test_runs_are_chosen(runs, data):
    view = explore(runs["quadratic"], images=data)
    view.state = dict(edits={"0.1": dict(off=True)}, layer=1)
    assert unzipped(view.data)["side"]["encoding"] == "quadratic"
    assert asked(view, kind="run", name="content") == []
    assert unzipped(view.data)["side"]["encoding"] == "content"
    assert view.state == dict(edits={}, layer=1)  # another model: its heads are not changed
    assert explore(runs["quadratic"], images=data).state is not Explorer.state.default_value
    for message in (dict(kind="run", name="../x"), dict(kind="export")):
        assert "Error" in notice(view, **message)  # a notice, not a dead kernel


# --- pages and pictures


def test_the_page_is_one_file_without_the_network_and_of_the_view(runs, data, tmp_path):
    view = explore(runs["content"], images=data)
    page = view.export_html(tmp_path / "deep" / "page.html").read_text()
    visible = re.sub(r"<script id='data'.*?</script>|base64,[^']*", "", page)
    paper = "https://arxiv.org/abs/1911.03584"  # a link to follow: nothing else is of the network
    assert visible.count(paper) == 1
    visible = visible.replace(paper, "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)|https?://|@import|url\(""", visible)
    assert page.count("<noscript><img") == 1 and "openExplorer(document)" in page
    tree = tree_of(page)
    assert len(tree["images"]) == 40 and tree["side"]["weights"]
    assert view.page() == page  # the same bytes each time
    state = dict(head=2, query=[0, 0], edits={"1.2": dict(off=True)})
    image = dict(title="mine.png", label=None)
    pixels = np.arange(784, dtype=np.uint8).tobytes()
    question = dict(kind="export", state=state, image=image, buffers=[memoryview(pixels)])
    ((_, (content,)),) = asked(view, **question)  # newer than what was saved
    tree = tree_of(content.decode())
    assert tree["state"] == state and len(tree["images"]) == 41
    assert tree["images"][0]["title"] == "mine.png"
    still = [re.search("<noscript><img.+?base64,([^']+)", p)[1] for p in (page, content.decode())]
    assert still[0] != still[1]


def test_a_site_has_a_page_for_each_model(runs, data, tmp_path, monkeypatch):
    view = explore(runs["quadratic"], images=data)

    def alive() -> set:
        widgets = ipywidgets.widgets.widget._instances.items()
        return {key for key, one in widgets if isinstance(one, Explorer)}

    before = alive()
    pages = view.export_site(tmp_path)
    assert alive() == before  # the other's is closed
    assert [page.name for page in pages] == ["explorer.html", "explorer-content.html"]
    for page, name in zip(pages, ("quadratic", "content"), strict=True):
        text = page.read_text()
        tree, links = tree_of(text), re.findall(r"<a href='([^']+)'( aria-current=page)?>", text)
        names = dict(quadratic="explorer.html", content="explorer-content.html")
        assert (tree["model"], tree["pages"]) == (name, names)
        assert "'a%23b'" in explorer._links({"a#b": runs[name]}, runs[name])
        assert links == [(file.name, " aria-current=page" * (file == page)) for file in pages]
        assert tree["side"]["name"] == runs[name].path.name and len(tree["images"]) == 40
    monkeypatch.setattr(explorer, "SITE_LIMIT", 100)
    assert [page.name for page in view.export_site(tmp_path)] == ["explorer.html"]
    with pytest.raises(ExplorerError, match="others beside"):
        explore(model_of("quadratic"), images=data).export_site(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_has_lost_all_its_heads_can_be_explored(kind: str, data):
    model = model_of(kind, heads=(0, 2))
    model.blocks[1].mlp = model.blocks[0].mlp  # layers may share weights
    view = explore(model, images=data)
    assert view.figure().axes and view.page()
    assert "blocks.1.mlp.0.weight" in view._subject.weights
