"""Attention layers out, convolutions in: the swapped layer against the attention layer, and what
the network loses.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnconv.config import ConfigError, ModelConfig, replace
from attnconv.cost import attention_flops, cost
from attnconv.equivalence import attention_to_conv, convert, swap, unswap
from attnconv.equivalence.swapping import RIDGE, relative_errors
from attnconv.heads import geometry
from attnconv.models import Convolution, build_model, predict
from attnconv.training import evaluate, load_run
from attnconv.training.data import load_data, normalize
from companion import swaps
from companion.workspace import REPOSITORY, open_workspace

MODEL = ModelConfig(
    image_size=(16, 12),
    layers=3,
    heads=9,
    hidden=6,
    mlp=8,
    key_size=4,
    spread_start=2.5,
    centre_std=0.6,
)
"""On 8 x 6 pixels."""


def network(**changes):
    return build(replace(MODEL, changes))


def build(config):
    torch.manual_seed(1)
    return build_model(config).eval()


def some(count=4, seed=0):
    return torch.randn(count, 3, 16, 12, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_a_layer_of_one_hot_heads_is_its_convolution_everywhere(covariance):
    net = network(covariance=covariance)
    with torch.no_grad():
        for layer in net.attention_layers:
            layer.centres.copy_(torch.randint(-1, 2, layer.centres.shape))
            layer.spreads.copy_(40 * torch.eye(2) if covariance == "full" else torch.tensor(40.0))
        made = swap(net, {1: 3, 2: 5, 3: 3})
        pairs = zip(made.attention_layers, net.attention_layers, strict=True)
        for (swapped, layer), x in zip(pairs, net.layer_inputs(some()), strict=True):
            torch.testing.assert_close(swapped(x), layer(x), rtol=0, atol=1e-6)  # the border too
            assert relative_errors([swapped], layer, x)[0] < 1e-6 and swapped.outside.max() < 1e-6
        torch.testing.assert_close(made(some()), net(some()), rtol=0, atol=1e-5)
        missed = swap(net, {2: 1})  # a kernel without the taps that heads look at
    layer, x = net.attention_layers[1], net.layer_inputs(some())[1]
    assert relative_errors([missed.attention_layers[1]], layer, x)[0] > 0.3


def test_the_swapped_network_is_a_copy_that_trains_is_rebuilt_and_converts():
    net = network()
    before = copy.deepcopy(net.state_dict())
    made = swap(net, {np.int64(1): np.int64(3), 3: 5})
    assert [type(layer) is Convolution for layer in made.attention_layers] == [True, False, True]
    assert made.config.kernels == (3, 0, 5) and made.config.heads_per_layer == (0, 9, 0)
    assert net.config.kernels == ()
    assert not any(module.training for module in made.modules())
    F.cross_entropy(made(some()), torch.arange(4)).backward()
    torch.optim.SGD(made.parameters(), lr=0.1).step()
    read = swap(net, {1: 3}).attention_layers[0].conv.weight
    assert not torch.equal(made.attention_layers[0].conv.weight, read)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])

    again = build_model(made.config)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.eval()(some()), made(some()))
    torch.testing.assert_close(convert(made)(some()), made(some()), rtol=0, atol=1e-5)
    assert swap(made, {2: 3}).config.kernels == (3, 3, 5)


def test_what_a_swapped_network_costs_and_what_its_heads_do():
    plain, made = MODEL, replace(MODEL, {"kernels": (3, 0, 5)})
    assert [3 * flops for flops in attention_flops(made)] == list(
        attention_flops(plain)
    )  # one layer of three is left
    pixels, hidden = 8 * 6, 6
    convolutions = 2 * pixels * hidden**2 * (9 + 25)
    values = 2 * pixels * hidden * (9 * hidden)
    assert cost(made).paper == cost(plain).paper - 2 * values + convolutions
    found = geometry(build_model(made).attention_layers, 8, 6)
    assert np.isnan(found["mass"][[0, 2]]).all() and np.isfinite(found["mass"][1]).all()


def test_kernels_are_read_on_the_network_s_own_grid():
    net = network(spread_start=0.3)  # so wide that the grid's size shows
    layer = net.attention_layers[0]
    p = layer.probabilities(8, 6)[:, 4, 3, 3:6, 2:5]
    expected = torch.einsum("hij,dhc->dcij", p, layer.value.weight.unflatten(1, (9, 6)))
    torch.testing.assert_close(swap(net, {1: 3}).attention_layers[0].conv.weight, expected)


def test_content_is_read_as_the_mean_over_images_and_queries():
    net, images, size = network(kind="learned_content", spread_start=1.0), some(5), 3
    swapped = swap(net, {2: size}, images=images).attention_layers[1]
    layer, x = net.attention_layers[1], net.layer_inputs(images)[1]
    with torch.no_grad():
        p = layer.probabilities(x).double()
        mass = torch.zeros(9, size, size).double()
        for a, b in itertools.product(range(size), repeat=2):
            seen = []
            for i, j in itertools.product(range(8), range(6)):
                if 0 <= i + a - 1 < 8 and 0 <= j + b - 1 < 6:
                    seen.append(p[:, :, i, j, i + a - 1, j + b - 1].mean(0))
            mass[:, a, b] = torch.stack(seen).mean(0)
        weight = layer.value.weight.double().unflatten(1, (layer.heads, layer.channels))
        kernel = torch.einsum("hab,dhc->dcab", mass, weight)
        torch.testing.assert_close(swapped.conv.weight.double(), kernel, rtol=1e-4, atol=1e-6)
        lost = (swapped(x) - layer(x)).norm() / (layer(x) - layer.value.bias).norm()
    assert relative_errors([swapped], layer, x) == pytest.approx([lost.item()], rel=1e-4)
    torch.testing.assert_close(swapped.outside.double(), 1 - mass.sum((1, 2)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["quadratic", "learned_content"])
def test_the_fitted_kernel_is_the_least_squares_one(kind):
    net, images = network(kind=kind), some(12)
    swapped = swap(net, {2: 3}, fit=images).attention_layers[1]
    read = swap(net, {2: 3}, images=images).attention_layers[1]
    layer, x = net.attention_layers[1], net.layer_inputs(images)[1].detach()
    with torch.no_grad():
        padded = F.pad(x.permute(0, 3, 1, 2), (1, 1, 1, 1), "replicate")
        patches = F.unfold(padded, 3).transpose(1, 2).flatten(0, 1).double()
        patches = F.pad(patches, (0, 1), value=1.0)
        target, got, before = (one(x).flatten(0, 2).double() for one in (layer, swapped, read))
        gram = patches.T @ patches
        ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram)).double()
        change = torch.linalg.solve(gram + ridge, patches.T @ (target - before))
        torch.testing.assert_close(got, before + patches @ change, rtol=0, atol=1e-3)
        best = torch.linalg.lstsq(patches, target, rcond=1e-5, driver="gelsd").solution
    error = (got - target).norm().item()
    assert error == pytest.approx((patches @ best - target).norm().item(), rel=1e-3)
    assert error < 0.95 * (before - target).norm()  # nearer than the one that is read
    assert swapped.outside is None


def test_what_cannot_be_swapped_is_refused():
    net = network()
    for sizes, said in (
        ({4: 3}, "There is no layer 4: the network has layers 1 to 3"),
        ({0: 3}, "There is no layer 0"),
        ({1: 4}, "Layer 1 cannot become a 4x4 convolution: .* odd, here at most 5"),
        ({1: 7}, "at most 5"),
        ({1: -1}, "odd"),
    ):
        with pytest.raises(ValueError, match=said):
            swap(net, sizes)
    with pytest.raises(ValueError, match="must not be a convolution already"):
        swap(swap(net, {1: 3}), {1: 3})
    with pytest.raises(ValueError, match="content is read as a mean .* pass images="):
        swap(network(kind="learned_content"), {2: 3})
    with pytest.raises(TypeError, match="as an integer"):
        swap(net, {1: 3.7})
    with pytest.raises(TypeError, match="a ResNet18 has no attention"):
        swap(build_model(replace(MODEL, {"kind": "resnet", "resnet_width": 8})), {1: 3})


@pytest.fixture(scope="module")
def data():
    return load_data("embedded").first(100, 60)


@pytest.mark.parametrize("kind", ["quadratic", "learned_content"])
def test_what_a_network_loses_is_counted_image_by_image(kind, data, monkeypatch):
    monkeypatch.setattr(swaps, "READ_ON", 20)
    monkeypatch.setattr(swaps, "COMPARED", 10)
    config = replace(
        MODEL, {"kind": kind, "image_size": (28, 28), "image_channels": 1, "downsampling": 4}
    )
    torch.manual_seed(0)
    start, net = build_model(config).eval(), build_model(config).eval()
    with torch.no_grad():
        for layer in net.attention_layers:
            layer.value.weight.mul_(10)  # else answers hardly depend on what is swapped
    found = swaps.measure_swaps(net, start, data)
    assert found["sizes"].tolist() == [1, 3, 5, 7] and found["fitted_sizes"].tolist() == [3, 5]
    shown = normalize(data.train_images[:20], data.mean, data.std)
    images = {"images": shown} if kind == "learned_content" else {}

    def check(name, *where, model):
        kept = np.unpackbits(found[name][where], count=60).astype(bool)
        assert (kept == (evaluate(model, data).predicted == data.test_labels).numpy()).all()

    check("whole", model=net)
    for s, size in enumerate((1, 3, 5, 7)):
        check("alone", 1, s, model=swap(net, {2: size}, **images))
        check("up_to", 1, s, model=swap(net, {1: size, 2: size}, **images))
    check("shuffled", 2, 0, model=swaps._shuffled(swap(net, {1: 3, 2: 3, 3: 3}, **images)))
    check("fitted", 2, 1, model=swap(net, {1: 5, 2: 5, 3: 5}, fit=shown))
    tests = normalize(data.test_images[:10], data.mean, data.std)

    def error(one, x):
        made = swap(one, {3: 5}, **images).attention_layers[2]
        return pytest.approx(relative_errors([made], one.attention_layers[2], x)[0], rel=1e-4)

    for when, one in enumerate((start, net)):
        assert found["error"][when, 2, 2] == error(one, one.layer_inputs(tests)[2])


def test_what_began_as_another_network_has_no_errors_before_training(data, monkeypatch):
    monkeypatch.setattr(swaps, "READ_ON", 20)
    config = replace(MODEL, {"image_size": (28, 28), "image_channels": 1, "downsampling": 4})
    known, unknown = (
        swaps.measure_swaps(build(config), first, data) for first in (build(config), None)
    )
    assert np.isnan(unknown["error"][0]).all() and np.isfinite(known["error"]).all()
    np.testing.assert_array_equal(unknown["error"][1], known["error"][1])
    with pytest.raises(
        ConfigError, match="On 2 x 2 pixels no layer .* take a smaller downsampling"
    ):
        swaps.measure_swaps(build(replace(config, {"downsampling": 14})), None, data)


def test_convolutions_become_heads_on_their_taps_and_answer_alike():
    cnn = network(kernels=[3, 5, 3])
    made = unswap(cnn, 12.0)
    assert all(isinstance(layer, Convolution) for layer in cnn.attention_layers), "a copy"
    assert made.config.heads_per_layer == (9, 25, 9) and made.config.kernels == ()
    with torch.no_grad():
        answers = cnn(some())
        torch.testing.assert_close(made(some()), answers, rtol=0, atol=1e-5)  # at the border, too
        soft, softer = (
            (unswap(cnn, spread)(some()) - answers).abs().max() for spread in (4.0, 1.0)
        )
    assert 1e-5 < soft < 0.01 < softer
    for layer, conv in zip(made.attention_layers, cnn.attention_layers, strict=True):
        assert layer.spreads.detach() == pytest.approx(12.0) and layer.centres.requires_grad
        back, _ = attention_to_conv(layer, conv.conv.kernel_size[0], cnn.config.grid)
        torch.testing.assert_close(back.weight, conv.conv.weight, rtol=0, atol=1e-5)
    again = build_model(made.config)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.eval()(some()), made(some()))

    same = network(kernels=[3, 3, 3], attention_dropout=0.3)
    made = unswap(same, 4.0)
    start = {"kernels": [], "centre_start": "taps", "spread_start": 4.0}
    assert made.config == replace(same.config, start)
    assert {layer.dropout for layer in made.attention_layers} == {0.3}
    with pytest.raises(ValueError, match="this network is learned, isotropic"):
        unswap(network(kind="learned", kernels=[3]), 4.0)


def test_shuffled_taps_are_the_same_taps_in_other_places():
    net = network()
    plain, shuffled = swap(net, {1: 3, 2: 3, 3: 3}), swaps._shuffled(swap(net, {1: 3, 2: 3, 3: 3}))
    for a, b in zip(plain.attention_layers, shuffled.attention_layers, strict=True):
        a, b = (layer.conv.weight.flatten(2) for layer in (a, b))
        assert torch.equal(a.sort(-1).values, b.sort(-1).values) and not torch.equal(a, b)


def test_the_record_says_what_its_networks_do():
    """Answers in swaps.npz, of the first test images, which are kept with the record: given
    again by the weights.
    """
    work = open_workspace("evening", output=REPOSITORY / "outputs" / "evening")
    data, checked = load_data(work.folder / "strip.npz"), 0
    for run in work.runs():
        # Content is read on training images, which are not kept; nor are all weights.
        if run.swaps and not run.without_weights and run.preset != "learned_content":
            checked += 1
            net, _ = load_run(run.path)
            images = normalize(data.test_images, data.mean, data.std)
            for sizes, kept in (
                ({1: 3, 2: 3, 3: 3}, run.swaps["up_to"][2, 1]),
                ({5: 5}, run.swaps["alone"][4, 2]),
            ):
                swapped = swap(net, sizes)
                logits = torch.cat([predict(swapped, part) for part in images.split(20)])
                given = logits.argmax(1) == data.test_labels
                assert (kept[:100] == given.numpy()).mean() >= 0.99  # another CPU rounds otherwise
            if run.swaps["images"] == run.config["data"]["test_images"]:
                assert run.swaps["whole"].mean() == pytest.approx(run.test_accuracy, abs=2e-4)
    assert checked


@pytest.mark.parametrize("kind", ["quadratic", "learned_content"])
@pytest.mark.parametrize("how", ["fit", "images"])
def test_swapping_knows_no_dropout(kind, how):
    net, x = network(kind=kind, layers=2, dropout=0.5, attention_dropout=0.5), some(20)
    training, evaluated = (
        swap(net.train(mode), {1: 3, 2: 3}, **{how: x}) for mode in (True, False)
    )
    for one, other in zip(training.parameters(), evaluated.parameters(), strict=True):
        assert torch.equal(one, other)
    first, other = (swapped.attention_layers[0] for swapped in (training, evaluated))
    assert first.training and not other.training, "the copy keeps the network's mode"
