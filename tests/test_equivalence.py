"""Theorem 1 both ways: against PyTorch's convolutions over all their arguments, whole networks of
every family, and code that convolves in its own way.
"""

import copy
import math
import sys
import weakref
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.feature_extraction import create_feature_extractor

from attnconv import equivalence
from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention
from attnconv.equivalence import (
    TapAttention,
    attention_to_conv,
    conv_to_attention,
    convert,
    missed_mass,
)
from attnconv.models import predict

MODES = ["zeros", "reflect", "replicate", "circular"]


@st.composite
def cases(draw, dimensions=2, groups=None):
    """A convolution in float64, and an input of any size that it takes, down to the smallest
    (below the kernel's).
    """

    def per_axis(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(dimensions))

    kernel, dilation = per_axis(1, 5), per_axis(1, 3)
    groups, mode = groups or draw(st.integers(1, 3)), draw(st.sampled_from(MODES))
    channels = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 2))
    padding = draw(
        st.one_of(st.just("valid"), st.just("same"), st.integers(0, 3), st.just(per_axis(0, 6)))
    )
    stride = 1 if padding == "same" else per_axis(1, 3)
    torch.manual_seed(draw(st.integers(0, 99)))
    kind = nn.Conv2d if dimensions == 2 else nn.Conv1d
    options = {"bias": draw(st.booleans()), "padding_mode": mode, "dtype": torch.float64}
    conv = kind(*channels, kernel, stride, padding, dilation, groups, **options)

    size = []
    for axis, (k, d) in enumerate(zip(kernel, dilation, strict=True)):
        reach = d * (k - 1)
        padded = (
            {"valid": 0, "same": reach}.get(padding)
            if isinstance(padding, str)
            else 2 * conv.padding[axis]
        )
        beside = (padded + 1) // 2
        smallest = {"reflect": beside + 1, "circular": beside}.get(mode, 1)
        size.append(draw(st.integers(0, 6)) + max(1, reach + 1 - padded, smallest))
    return conv, torch.randn(draw(st.integers(1, 3)), channels[0], *size, dtype=torch.float64)


def weights_of(layer):
    """Value matrices W^h of a layer without groups: (h, C, D)."""
    return layer.value.weight.detach().unflatten(1, (layer.heads, -1)).permute(1, 2, 0)


@given(st.one_of(cases(), cases(dimensions=1)))
@settings(max_examples=150, deadline=None)
def test_every_convolution_is_attention_and_can_be_read_back(case):
    """Outputs and gradients, also of the whole softmax: where positions are trained, no pixel is
    picked directly.
    """
    conv, x = case
    layer, x = conv_to_attention(conv), x.requires_grad_()
    expected = conv(x)
    target = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * target).sum(), [x, *conv.parameters()])
    for moving in (False, True):
        layer.centres.requires_grad_(moving)
        output = layer(x)
        assert output.shape == expected.shape and layer(x[:0]).shape == expected[:0].shape
        assert (output - expected).abs().max() <= 1e-12 * expected.abs().max().clamp_min(1e-3)
        weights = [p for p in (layer.weight, layer.bias) if p is not None]
        found = torch.autograd.grad((output * target).sum(), [x, *weights])
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    again, outside = attention_to_conv(layer)
    assert type(again) is type(conv)
    torch.testing.assert_close(again(x), expected, rtol=0, atol=1e-9)
    assert outside.abs().max() == 0


@given(cases(groups=1), st.sampled_from([0.3, 2.0, 104.0, 800.0]))
@settings(max_examples=50, deadline=None)
def test_the_output_is_what_the_probabilities_say(case, alpha):
    """P from the full softmax over all key pixels, times the padded pixels, times the value
    matrices: nothing else.
    """
    conv, x = case
    layer = conv_to_attention(conv, alpha)
    with torch.no_grad():
        p = layer.probabilities(*x.shape[2:])
        assert p.shape[0] == layer.heads == math.prod(conv.kernel_size)
        assert torch.allclose(p.sum((-2, -1)), torch.ones_like(p[..., 0, 0]), atol=1e-12)
        expected = torch.einsum("hqrkl,bckl,hcd->bdqr", p, layer.pad(x), weights_of(layer))
        if conv.bias is not None:
            expected += conv.bias[:, None, None]
        assert torch.allclose(layer(x), expected, atol=1e-10)
    assert torch.allclose(layer(x), expected, atol=1e-10)


@pytest.mark.parametrize("alpha", [20.0, 60.0, 104.0, 800.0])
@pytest.mark.parametrize("centre", [0.0, 0.3, 0.5, 40.0, math.nan, math.inf])
def test_pixels_are_picked_only_where_the_softmax_is_one_hot(centre, alpha):
    layer = conv_to_attention(nn.Conv2d(1, 1, 3, padding=1), alpha)
    x = torch.randn(1, 1, 9, 9)
    with torch.no_grad():
        layer.centres[:, 1] += centre
        p = layer.probabilities(9, 9)
        assert layer._picks() == (alpha > 40 and centre == 0)
        assert not layer._picks() or (p.amax((-2, -1)) == 1).all()
        expected = torch.einsum("hqrkl,kl,h->qr", p, layer.pad(x)[0, 0], layer.weight.flatten())
        torch.testing.assert_close(layer(x)[0, 0], expected + layer.bias, equal_nan=True)
        x[0, 0, 4, 5] = math.nan  # spoils what sees it, and nothing else
        assert not layer._picks() or layer(x).isnan().sum() == 9
    p = conv_to_attention(nn.Conv2d(1, 1, 3), 104.0).probabilities(9, 9)
    assert p.unique().tolist() == [0, 1]


def test_positions_have_gradients_and_they_are_right():
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 2, 2, stride=2, padding=1, dtype=torch.float64)
    layer = conv_to_attention(conv, alpha=1.0)
    x = torch.randn(1, 2, 4, 3, dtype=torch.float64)

    def output(centres, spreads):
        return torch.func.functional_call(layer, {"centres": centres, "spreads": spreads}, x)

    assert torch.autograd.gradcheck(output, (layer.centres, layer.spreads))


def test_what_was_frozen_stays_frozen_and_one_hot_positions_are():
    conv = nn.Conv2d(2, 3, 3)
    trained = {name for name, p in conv_to_attention(conv).named_parameters() if p.requires_grad}
    assert trained == {"weight", "bias"}  # no gradient reaches one-hot positions
    assert all(p.requires_grad for p in conv_to_attention(conv, alpha=5.0).parameters())
    frozen = convert(nn.Sequential(conv).requires_grad_(False), 5.0)
    assert not any(p.requires_grad for p in frozen.parameters())
    moving = conv_to_attention(conv)
    moving.centres.requires_grad_()
    moving(torch.randn(1, 2, 5, 5)).sum().backward()
    assert not moving.centres.grad.any()  # zero, where picked pixels would have none


@given(st.floats(0.3, 30))
@settings(max_examples=25, deadline=None)
def test_missed_mass_has_its_closed_form(alpha):
    """Measured at a query at least 13 pixels from each border, so that what the borders cut off
    is below 1e-10.
    """
    layer = conv_to_attention(nn.Conv2d(1, 1, 1, dtype=torch.float64), np.float64(alpha))
    p = layer.probabilities(27, 27)[0, 13, 13]
    assert abs((p.sum() - p[13, 13]).item() - missed_mass(alpha)) < 1e-10
    s = sum(math.exp(-alpha * n * n) for n in range(-40, 41))
    both = missed_mass(torch.tensor([alpha, alpha], dtype=torch.float64))
    assert both[1] == pytest.approx(1 - 1 / s**2, abs=1e-14)
    # lost in 1 - 1/S^2 as it stands
    assert missed_mass(50.0) == pytest.approx(4 * math.exp(-50), rel=1e-12)
    with pytest.raises(ValueError, match="positive"):
        missed_mass(-alpha)


def test_theorem_1_as_the_paper_states_it():
    """A plain layer of K^2 heads on the padded image is the convolution, and its scores are
    Lemma 2's.
    """
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 5, padding=2, dtype=torch.float64)
    x = torch.randn(2, 8, 6, 3, dtype=torch.float64)
    expected = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    layer = equivalence.theorem_1(conv.weight, conv.bias)
    assert layer.heads == 25
    assert torch.allclose(equivalence.padded_attention(layer, x, margin=2), expected, atol=1e-12)
    assert not torch.allclose(layer(x), expected)  # the border
    plain = equivalence.theorem_1(conv.weight, None)(x) + conv.bias
    assert torch.allclose(plain[:, 2:-2, 2:-2], expected[:, 2:-2, 2:-2], atol=1e-12)
    soft = equivalence.theorem_1(conv.weight, conv.bias, alpha=0.7)
    shifts = torch.cartesian_prod(torch.arange(-4, 5), torch.arange(-2, 5))
    p = equivalence.quadratic_scores(shifts, soft.centres, 0.7).softmax(-1)
    assert torch.allclose(p, soft.probabilities(9, 7)[:, 4, 2].flatten(1), atol=1e-12)


@pytest.mark.parametrize("alpha", [0, -1, math.nan, math.inf])
def test_what_theorem_1_does_not_cover_is_refused(alpha):
    for make in (
        lambda: equivalence.theorem_1(torch.randn(2, 3, 3, 3), None, alpha),
        lambda: conv_to_attention(nn.Conv2d(1, 1, 1), alpha),
    ):
        with pytest.raises(ValueError, match="alpha = .* must be a positive number"):
            make()


# The way back.


def quadratic(covariance="isotropic", heads=4, spread=0.7):
    return QuadraticAttention(5, 3, heads, covariance, spread_start=spread, centre_std=1.5).double()


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("size", [(7, 5), (6, 9), None])
@pytest.mark.parametrize("kind", ["isotropic", "full", "learned", "depthwise"])
def test_the_kernel_is_the_sum_over_heads_of_probability_times_value_matrix(kind, size, kernel):
    torch.manual_seed(0)
    rows, columns = kernel, kernel + (kind == "depthwise")
    if kind == "learned":
        layer = LearnedAttention(5, 3, 4, max_size=9, dropout=0.1).double()
    elif kind == "depthwise":
        conv = nn.Conv2d(5, 10, (rows, columns), groups=5, dtype=torch.float64)
        layer = conv_to_attention(conv, alpha=0.4)
        layer.centres.data += torch.randn_like(layer.centres)
    else:
        layer = quadratic(kind)
    conv, outside = attention_to_conv(layer, kernel, size)
    assert conv.kernel_size == (rows, columns) and layer.training
    assert conv.padding_mode == ("zeros" if kind == "depthwise" else "replicate")
    # all shifts of the paper's grid, or all that there are
    p = layer.probabilities(*size or ((9, 9) if kind == "learned" else (33, 33)))
    i, j = p.shape[1] // 2, p.shape[2] // 2  # the central query
    top, left = i, j  # the kernel's corner
    if kind != "depthwise":
        top, left = i - (rows - 1) // 2, j - (columns - 1) // 2
    near = p[:, i, j, top : top + rows, left : left + columns]
    torch.testing.assert_close(conv.weight, torch.einsum("hij,hcd->dcij", near, weights_of(layer)))
    torch.testing.assert_close(outside, 1 - near.sum((1, 2)))


def test_a_layer_without_heads_is_a_convolution_of_zeros():
    conv, outside = attention_to_conv(QuadraticAttention(2, 3, 0), 3)
    assert not conv.weight.any() and conv.bias.shape == (3,)
    assert len(outside) == 0


def test_refusals_of_the_way_back_name_their_cause():
    for arguments, cause in [
        ((LearnedAttention(2, 2, 9, max_size=6), 7), r"kernel of \(7, 7\) .* 6x6 grid .*max_size"),
        ((quadratic(), 7, (5, 5)), "5x5 grid .*a larger size"),
    ]:
        with pytest.raises(ValueError, match=cause):
            attention_to_conv(*arguments)
    with pytest.raises(TypeError, match="ContentAttention"):
        attention_to_conv(ContentAttention(2, 2, 9, max_size=6, key_size=2), 3)


# Whole networks.

NETWORKS = ["resnet18", "resnext50_32x4d", "mobilenet_v2", "efficientnet_b0", "densenet121"]
NETWORKS += ["convnext_tiny", "vgg11_bn"]


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks(name):
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, num_classes=10).double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    converted = convert(network)
    taps = [m for m in converted.modules() if isinstance(m, TapAttention)]
    assert len(taps) == sum(isinstance(m, nn.Conv2d) for m in network.modules()) > 0
    others = {type(m) for m in network.modules()} - {nn.Conv2d}
    assert {type(m) for m in converted.modules()} == {*others, TapAttention}
    with torch.no_grad():
        expected, output = network(x), converted(x)
    assert (output - expected).abs().max() <= 1e-12 * expected.abs().max() != 0


def test_a_converted_network_is_a_copy_that_can_be_trained_and_saved(tmp_path):
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 2, 3, padding=1)
    tail = nn.ReLU(), conv, nn.Flatten(), nn.Linear(32, 3)
    network = nn.Sequential(conv, nn.BatchNorm2d(2), *tail)
    network.register_parameter("tied", conv.weight)
    state = torch.random.get_rng_state()
    converted = convert(network, alpha=4.0)
    assert torch.equal(state, torch.random.get_rng_state())
    assert converted[0] is converted[3] and converted[1] is not network[1] and network[0] is conv
    assert converted.tied is converted[0].weight is not conv.weight and type(conv) is nn.Conv2d
    x = torch.randn(8, 2, 4, 4)
    before = {name: p.detach().clone() for name, p in converted.named_parameters()}
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.1)
    F.cross_entropy(converted(x), torch.arange(8) % 3).backward()
    optimizer.step()
    assert not any(torch.equal(p, before[name]) for name, p in converted.named_parameters())
    torch.save(converted.state_dict(), tmp_path / "network.pt")
    again = convert(network, alpha=1.0)
    again.load_state_dict(torch.load(tmp_path / "network.pt"))
    assert torch.equal(converted.eval()(x), again.eval()(x))


def test_the_stand_in_has_what_a_convolution_has():
    conv = nn.Conv2d(3, 4, (2, 3), dilation=(1, 2))
    conv.index = 7  # as YOLO's parents do
    layer = conv_to_attention(conv)
    assert layer.centres.tolist() == [[i, j] for i in (0, 1) for j in (-2, 0, 2)]
    assert torch.equal(weights_of(layer), conv.weight.flatten(2).permute(2, 1, 0))
    assert {*vars(conv)} <= {*vars(layer)} and layer.index == 7
    assert [*layer.state_dict()] == ["weight", "bias", "centres", "spreads"]
    x = torch.randn(1, 3, 9, 9)
    twice = layer._conv_forward(x, 2 * conv.weight, None)
    torch.testing.assert_close(twice, conv._conv_forward(x, 2 * conv.weight, None))
    with pytest.raises(ValueError, match="2 pixels, padded, are less than the kernel's 5"):
        layer(torch.zeros(1, 3, 9, 2))
    for conv.stride, conv.dilation, conv.padding in ((2, 2), (2, 2), (2, 2)), (1, 2, "same"):
        torch.testing.assert_close(conv_to_attention(conv)(x), conv(x))  # set later


# Code of their own: each network is held against its copy, in which nothing convolves.


class Same(nn.Conv2d):
    """Pads by what the image's size asks for, as EfficientNet's ports do."""

    def forward(self, x):
        numbers = zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
        height, width = (max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in numbers)
        x = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Standardised(nn.Conv2d):
    def forward(self, x):
        mean, std = (f(self.weight, (1, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        return self._conv_forward(x, (self.weight - mean) / std, self.bias)


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, (4, 0)))


class Around(nn.Module):
    """A parent that has a convolution somewhere, and calls it in some way."""

    def __init__(self, **parts):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.call(x)


class LowRank(Around):
    def forward(self, x):
        return self.conv._conv_forward(x, self.conv.weight + 1, self.conv.bias)


class Reads(Around):
    @torch.no_grad()
    def forward(self, x):
        return F.conv2d(x, self.conv.weight, stride=self.conv.stride, padding="same")


class Blur(Around):
    def forward(self, x):
        return smooth(self.conv(x))


def smooth(x):
    kernel = torch.ones(1, 1, 3, 3).to(x) / 9
    return torch.cat([F.conv2d(one, kernel, stride=2) for one in x.split(1, dim=1)], dim=1)


class Changing(Around):
    def forward(self, x):
        with torch.no_grad():
            self.conv.weight.div_(self.conv.weight.norm())
        return self.conv(x)


class Keeping(Around):
    def forward(self, x):
        self.kept = [self.conv(x)]
        return self.kept[0].mean((2, 3))


class Hidden(Around):
    """A convolution where `named_modules` does not look."""

    def __init__(self, box, find):
        super().__init__(box=box, find=find)
        object.__setattr__(self, "trunk", self.conv)

    def forward(self, x):
        return self.trunk(self.find(self.box)(x))


def by_default(conv):
    def call(x, conv=conv):
        return conv(x)

    return call


def hooked():
    conv = nn.Conv2d(3, 4, 3)
    conv.register_forward_hook(lambda module, inputs, output: 2 * output)
    return conv


def conv(**options):
    return nn.Conv2d(3, 3, 3, dtype=torch.float64, **options)


OWN = {
    "same": lambda: nn.Sequential(Same(3, 8, 3, 2), Same(8, 8, 5, groups=8)),
    "standardised": lambda: Standardised(3, 4, 3, padding=2),
    "causal": lambda: Causal(3, 4, 3, dilation=2),
    "low rank": LowRank,
    "reads": Reads,
    "blur": Blur,
    "changing": Changing,
    "activation": Keeping,
    "old spectral norm": lambda: nn.utils.spectral_norm(conv()),
    "old weight norm": lambda: nn.utils.weight_norm(conv()),
    "weight norm": lambda: parametrizations.weight_norm(conv()),
    "spectral norm": lambda: parametrizations.spectral_norm(conv()),
    "pruned": lambda: prune.l1_unstructured(conv(), "weight", 0.5),
    "hook": hooked,
    "extractor": lambda: create_feature_extractor(torchvision.models.resnet18(), ["layer2"]),
    "set": lambda: Hidden({conv()}, lambda box: next(iter(box))),
    "deque": lambda: Hidden(deque([[conv()]]), lambda box: box[0][0]),
    "namespace": lambda: Hidden(SimpleNamespace(conv=conv()), lambda box: box.conv),
    "torchvision's blur": lambda: torchvision.transforms.GaussianBlur(3, sigma=1.0),
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.filterwarnings("ignore")  # the old norms are deprecated
def test_code_of_its_own_runs_and_attention_takes_the_product(kind):
    torch.manual_seed(0)
    network = nn.Sequential(OWN[kind]()).double().eval()
    x = torch.randn(2, 3, 20, *([] if kind == "causal" else [23]), dtype=torch.float64)
    network(x)  # may leave an activation behind
    before = copy.deepcopy(network.state_dict())
    converted = convert(network, check=x)
    assert before.keys() <= converted.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert [m.training for m in network.modules()] == [m.training for m in converted.modules()]
    with torch.no_grad(), FlopCounterMode(display=False) as flops:
        found = tree_leaves(convert(converted)(x))
    assert not any("conv" in str(name) for name in flops.get_flop_counts()["Global"])
    for one, other in zip(found, tree_leaves(network(x)), strict=True):
        assert (one - other).abs().max() <= 1e-12 * other.abs().max()


def test_the_gradient_goes_through_code_of_its_own():
    torch.manual_seed(0)
    network = nn.Sequential(Same(3, 4, 3, 2), Standardised(4, 4, 3, groups=2)).double()
    x = torch.randn(2, 3, 9, 10, dtype=torch.float64)
    for net in (network, copy.deepcopy(convert(network))):
        net(x).square().sum().backward()
        for one, other in zip(net.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-9)
    # Its heads are as soft as the others'.
    assert (convert(network, 2.0)(x) - network(x)).abs().max() > 0.01


def holding(conv):
    return lambda x: conv(x)


class Itself(nn.Sequential):
    def __deepcopy__(self, memo):
        return self


def holding_itself(hold):
    parent = Around()
    parent.call = hold(parent.conv)
    return parent


def with_weak_reference(conv):
    conv.parent = weakref.ref(conv)
    return conv


def with_forward(network):
    network.forward = holding(network[0])
    return network


REFUSED = {
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(1, 1, 3),
    "Conv3d": lambda: nn.Conv3d(1, 1, 3),
    "LazyConv2d": lambda: nn.LazyConv2d(1, 3),
    "DeformConv2d": lambda: torchvision.ops.DeformConv2d(1, 1, 3),
    "quantized|Conv2d": lambda: torch.ao.nn.quantized.Conv2d(1, 1, 3),
    "ScriptModule": lambda: torch.jit.script(nn.ReLU()),
    "GraphModule": lambda: torch.export.export(conv(), (torch.ones(1, 3, 5, 5).double(),)).module(),
    "Sequential": lambda: with_forward(nn.Sequential(conv())),
    "share it with the network": lambda: holding_itself(holding),
    "the copy would share it": lambda: holding_itself(by_default),
    "share it with the": lambda: holding_itself(lambda conv: holding(conv.weight)),
    "would share it": lambda: Itself(conv()),
    "copy would share it": lambda: with_weak_reference(conv()),
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.filterwarnings("ignore")  # torch.jit and torch.ao are deprecated
def test_what_cannot_be_converted_is_refused_with_its_place(words):
    with pytest.raises((TypeError, ValueError), match=f"^0.head.*({words})"):
        convert(nn.Sequential(nn.ModuleDict({"head": REFUSED[words]()})))


@pytest.mark.parametrize("conv", [nn.Conv1d(2, 4, 3, groups=2), nn.Conv2d(2, 4, 3)])
def test_images_are_taken_as_a_convolution_takes_them(conv):
    """One alone, and no other number of channels; the result can be flattened by ``view``."""
    layer = conv_to_attention(conv)
    x = torch.randn(5, 2, *[8] * len(conv.kernel_size))
    torch.testing.assert_close(layer(x[0]), conv(x[0]))
    torch.testing.assert_close(layer(x).view(5, -1), conv(x).view(5, -1))
    for other in (x[:, :1], torch.cat([x, x], dim=1)):
        with pytest.raises(RuntimeError):
            layer(other)


@pytest.mark.filterwarnings("ignore")  # the old norm is deprecated
def test_where_heads_look_is_read_whatever_works_out_the_weights():
    layer = convert(nn.utils.weight_norm(nn.Conv2d(3, 4, 3)))
    layer.centres.data = layer.centres.flip(0)
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(attention_to_conv(layer)[0](x), layer(x))


@pytest.mark.parametrize("numbers", [{"stride": (2,)}, {"padding": (1,)}, {"dilation": [2]}])
def test_one_number_in_a_tuple_is_for_both_axes(numbers):
    conv, x = nn.Conv2d(3, 4, 3, **numbers), torch.randn(2, 3, 9, 10)
    torch.testing.assert_close(conv_to_attention(conv)(x), conv(x))


def test_a_gpu_has_all_that_a_pass_needs(monkeypatch):
    """Of tensors that only know where they are; so whether heads are one-hot is not looked up."""
    monkeypatch.setattr(TapAttention, "_picks", lambda layer: True)
    layer = conv_to_attention(nn.Conv2d(3, 4, 3))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert layer.to("cuda")(torch.randn(2, 3, 8, 8, device="cuda")).device.type == "cuda"


def test_code_of_its_own_may_convolve_one_image_alone():
    network, x = Standardised(3, 4, 3), torch.randn(3, 8, 8)
    torch.testing.assert_close(convert(network)(x), network(x))


def test_an_example_is_held_against_the_largest_answer_by_its_type():
    network = nn.Sequential(*[nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)]).bfloat16()
    convert(network, check=torch.randn(2, 8, 8, 8).bfloat16())
    convert(network.float(), check=1e9 * torch.randn(2, 8, 32, 32))  # the smallest are far off


def test_an_example_finds_what_cannot_be_seen():
    class Calls(Around):
        def call(self, x):
            return torch.ops.aten.conv2d.default(x, self.conv.weight)

    class Asks(Around):
        def forward(self, x):
            return self.conv(x) * isinstance(self.conv, nn.Conv2d) / 1e6

    x = torch.randn(1, 3, 8, 8)
    for kind, words, subject in (
        (ValueError, "Convolutions still run", Calls()),
        (AssertionError, r"not close: they differ by 1.0e\+00 of", Asks()),
        (ValueError, "a list_iterator has no tensors", Around(call=lambda x: iter([x]))),
        (TypeError, "takes a torch.nn.Module, not 'resnet18'", "resnet18"),
    ):
        with pytest.raises(kind, match=words):
            convert(subject, check=(x,))
    transposed = Around(call=lambda x: F.conv_transpose2d(x, torch.ones(3, 1, 2, 2)))
    by_time = Around(call=lambda x: torch.conv_tbc(x[0], torch.ones(1, 8, 2), torch.ones(2)))
    for other, name in (transposed, "conv_transpose2d"), (by_time, "conv_tbc"):
        with pytest.raises(TypeError, match=f"cannot stand for {name}"):
            convert(other)(x)
    with pytest.raises(SystemExit):  # as Ctrl-C, no Exception
        convert(Around(call=sys.exit))(x)
    assert torch._C._len_torch_function_stack() == 0
    convert(Around(call=lambda x: x.masked_fill(x > 0, -torch.inf)), check=x)
    convert(Around(call=lambda x: x.sub_(1) * 2), check=x)  # it changes its input
    with pytest.raises(TypeError, match="takes a Conv1d or Conv2d, not a Linear"):
        conv_to_attention(nn.Linear(2, 2))


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
def test_converted_networks_work_in_other_tools():
    """Where nobody can look whether heads are one-hot, the softmax is computed."""
    torch.manual_seed(0)
    convs = [nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 3, groups=2)]
    network = nn.Sequential(*convs, Same(4, 4, 3)).eval()
    x = torch.randn(2, 4, 15, 16)
    attention = convert(network)
    batch = {"input": {0: torch.export.Dim("batch", max=64)}}
    with torch.no_grad():
        expected = network(x)
        exported = torch.export.export(attention, (x,), dynamic_shapes=batch).module()
        torch.testing.assert_close(exported(x[:1].repeat(5, 1, 1, 1))[4], expected[0])
        for tool in (exported, torch.jit.trace(attention, (x,)), make_fx(attention)(x), attention):
            torch.testing.assert_close(tool(x), expected)
        torch.export.export(attention[:3], (x,), strict=True)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert attention(torch.randn(2, 4, 15, 16)).shape == expected.shape
        with torch.autocast("cpu", torch.bfloat16):
            for layer, one in zip(attention, network, strict=True):
                y = torch.randn(1, one.in_channels, 9, 9)
                torch.testing.assert_close(layer(y), one(y), rtol=0.03, atol=0.03)  # types, too
        assert attention.to("meta")(x.to("meta")).shape == expected.shape


@pytest.mark.parametrize(("dtype", "reach"), [(torch.bfloat16, 300), (torch.float16, 2500)])
def test_positions_keep_their_digits_in_half_precision(dtype, reach):
    """bfloat16 has no 257, float16 no 2049: the heads would look at other pixels."""
    conv = nn.Conv1d(1, 2, 3, dilation=reach).to(dtype)
    x = torch.randn(1, 1, 2 * reach + 50).to(dtype)
    for layer in (conv_to_attention(conv), conv_to_attention(conv, alpha=30.0)):
        with torch.no_grad():
            torch.testing.assert_close(layer(x), conv(x), atol=0.03, rtol=0.03)


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is made inside."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [one.nbytes for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self.bytes = max(self.bytes, *sizes)
        return result


def test_a_long_signal_takes_memory_that_is_linear_in_its_length():
    conv = nn.Conv1d(2, 3, 9, padding=4)
    layer = conv_to_attention(conv)
    x = torch.randn(1, 2, 200_000)
    with torch.no_grad(), Largest() as largest:
        y = layer(x)
    torch.testing.assert_close(y, conv(x), rtol=0, atol=1e-5)
    assert largest.bytes < 20 * x.nbytes


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.cfloat])
def test_networks_of_other_types_are_given_images_in_their_own(dtype):
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).to(dtype)
    assert predict(convert(network), torch.randn(1, 1, 5, 5)).dtype == dtype
