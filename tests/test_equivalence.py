"""Theorem 1 both ways: against PyTorch's convolutions over all their arguments, and whole
networks of every family.
"""

import math
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from attnconv import equivalence
from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention
from attnconv.cost import PeakMemory
from attnconv.equivalence import (
    TapAttention,
    attention_to_conv,
    conv_to_attention,
    convert,
    missed_mass,
)

MODES = ["zeros", "reflect", "replicate", "circular"]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Thousands of tiny operations: threads only wait for each other, for minutes on a machine
    with other work.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
        before_or_after = (padded + 1) // 2
        smallest = {"reflect": before_or_after + 1, "circular": before_or_after}.get(mode, 1)
        size.append(draw(st.integers(0, 6)) + max(1, reach + 1 - padded, smallest))
    return conv, torch.randn(draw(st.integers(1, 3)), channels[0], *size, dtype=torch.float64)


def weights_of(layer):
    """Value matrices W^h of a layer without groups: (h, C, D)."""
    return layer.value.weight.detach().unflatten(1, (layer.heads, -1)).permute(1, 2, 0)


@given(st.one_of(cases(), cases(dimensions=1)))
@settings(max_examples=150, deadline=None)
def test_every_convolution_is_attention(case):
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
    for axis, n in enumerate(x.shape[2:]):
        rows = layer.axis_probabilities(n, axis)
        assert torch.allclose(rows.sum(-1), torch.ones_like(rows[..., 0]), atol=1e-12)


def test_the_layer_is_quadratic_attention_with_one_head_per_tap():
    conv = nn.Conv2d(3, 4, (2, 3), dilation=(1, 2))
    layer = conv_to_attention(conv)
    assert isinstance(layer, QuadraticAttention)
    assert layer.centres.tolist() == [[i, j] for i in (0, 1) for j in (-2, 0, 2)]
    assert torch.equal(weights_of(layer), conv.weight.flatten(2).permute(2, 1, 0))
    assert torch.allclose(layer.precision(), 2 * equivalence.ALPHA * torch.eye(2).expand(6, 2, 2))


def test_a_soft_head_of_a_conv1d_spills_along_its_one_row_alone():
    _, report = attention_to_conv(
        conv_to_attention(nn.Conv1d(1, 1, 3, dtype=torch.float64), alpha=0.5)
    )
    mass = [math.exp(-0.5 * n**2) for n in range(-16, 17)]
    assert report.outside[1].item() == pytest.approx(1 - sum(mass[15:18]) / sum(mass), abs=1e-12)


@pytest.mark.parametrize("moving", [False, True])
def test_moving_a_head_changes_the_output_and_only_through_the_probabilities(moving):
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, padding=1, dtype=torch.float64)
    layer, x = conv_to_attention(conv), torch.randn(1, 2, 6, 5, dtype=torch.float64)
    layer.centres.requires_grad_(moving)
    before = layer(x).detach()
    with torch.no_grad():
        layer.centres[4, 1] += 1  # the middle tap now looks one pixel to the right
    after = layer(x).detach()
    layer.centres.data[4, 1] -= 1  # behind autograd's back: the version counter does not see it
    assert torch.equal(layer(x), before)
    padded = F.pad(x, (1, 2, 1, 1))
    change = torch.einsum(
        "bchw,dc->bdhw", padded[:, :, 1:-1, 2:-1] - x, conv.weight[:, :, 1, 1]
    ).detach()
    interior = (..., slice(None), slice(0, -1))
    assert torch.allclose((after - before)[interior], change[interior], atol=1e-12)
    assert (after - before).abs().max() > 0.1


def test_inference_does_not_get_in_the_way_of_training():
    layer = conv_to_attention(nn.Conv2d(2, 3, 3))
    layer.centres.requires_grad_(False), layer.spreads.requires_grad_(False)
    x = torch.randn(1, 2, 5, 5)
    with torch.inference_mode():
        layer(x)
    layer(x.requires_grad_()).sum().backward()  # uses the probabilities that inference has listed
    assert x.grad.abs().max() > 0


def test_positions_have_gradients_and_they_are_right():
    torch.manual_seed(0)
    layer = conv_to_attention(
        nn.Conv2d(2, 2, 2, stride=2, padding=1, dtype=torch.float64), alpha=1.0
    )
    x = torch.randn(1, 2, 4, 3, dtype=torch.float64)

    def output(centres, spreads):
        return torch.func.functional_call(layer, {"centres": centres, "spreads": spreads}, x)

    assert torch.autograd.gradcheck(output, (layer.centres, layer.spreads))
    sharp = conv_to_attention(nn.Conv2d(2, 2, 3), alpha=5.0)
    sharp(torch.randn(1, 2, 6, 6)).square().sum().backward()
    assert sharp.centres.grad.abs().max() > 1e-4 and sharp.spreads.grad.abs().max() > 1e-4


def test_float32_is_exactly_one_hot_from_104_on():
    p = conv_to_attention(nn.Conv2d(1, 1, 3), alpha=104.0).probabilities(9, 9)
    assert set(p.unique().tolist()) == {0.0, 1.0}
    p = conv_to_attention(nn.Conv2d(1, 1, 3, dtype=torch.float64)).probabilities(9, 9)
    assert set(p.unique().tolist()) == {0.0, 1.0}


@given(st.floats(0.3, 30))
@settings(max_examples=25, deadline=None)
def test_missed_mass_has_its_closed_form(alpha):
    """Measured at a query at least 13 pixels from each border, so that what the borders cut off
    is below 1e-10.
    """
    layer = conv_to_attention(nn.Conv2d(1, 1, 1, dtype=torch.float64), alpha)
    p = layer.probabilities(27, 27)[0, 13, 13]
    measured = p.sum() - p[13, 13]
    assert abs(measured.item() - missed_mass(alpha)) < 1e-10
    s = sum(math.exp(-alpha * n * n) for n in range(-40, 41))
    assert abs(missed_mass(alpha) - (1 - 1 / s**2)) < 1e-14


def test_missed_mass_of_very_sharp_and_of_no_heads():
    assert missed_mass(50.0) == pytest.approx(
        4 * math.exp(-50), rel=1e-12
    )  # lost in 1 - 1/S^2 as it stands
    alphas = torch.tensor([[0.5, 1.0], [2.0, 1000.0]])
    assert missed_mass(alphas).tolist() == [
        [missed_mass(a) for a in row] for row in alphas.tolist()
    ]
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            missed_mass(alpha)


NETWORKS = [
    "resnet18",
    "resnext50_32x4d",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "densenet121",
]
NETWORKS += ["convnext_tiny", "vgg11_bn"]


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks(name):
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, num_classes=10).eval()
    x = torch.randn(2, 3, 32, 32)
    converted = convert(network)
    taps = [m for m in converted.modules() if isinstance(m, TapAttention)]
    assert len(taps) == sum(isinstance(m, nn.Conv2d) for m in network.modules()) > 0
    assert not any(isinstance(m, nn.Conv2d) for m in converted.modules())
    with torch.no_grad():
        expected, output = network(x), converted(x)
    assert expected.std() > 0
    assert (output - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_converted_network_is_a_copy_that_can_be_trained_and_saved(tmp_path):
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 2, 3, padding=1)
    network = nn.Sequential(
        conv, nn.BatchNorm2d(2), nn.ReLU(), conv, nn.Flatten(), nn.Linear(32, 3)
    )
    state = torch.random.get_rng_state()
    converted = convert(network, alpha=4.0)
    assert torch.equal(state, torch.random.get_rng_state())
    assert converted[0] is converted[3] and converted[1] is not network[1] and network[0] is conv
    assert converted.training and not convert(network.eval())[0].training
    x = torch.randn(8, 2, 4, 4)
    optimizer = torch.optim.SGD(converted.parameters(), lr=0.1)
    losses, before = [], converted[0].centres.detach().clone()
    for _ in range(20):
        loss = F.cross_entropy(converted(x), torch.arange(8) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0] and not torch.equal(converted[0].centres, before)
    torch.save(converted.state_dict(), tmp_path / "network.pt")
    again = convert(network, alpha=1.0)
    again.load_state_dict(torch.load(tmp_path / "network.pt"))
    converted.eval(), again.eval()
    with torch.no_grad():
        assert torch.equal(converted(x), again(x))
    with torch.inference_mode():
        assert torch.equal(converted(x), again(x))


@given(st.one_of(cases(), cases(dimensions=1)))
@settings(max_examples=40, deadline=None)
def test_round_trip_returns_the_convolution(case):
    conv, x = case
    again, report = attention_to_conv(conv_to_attention(conv))
    assert (again.weight - conv.weight).abs().max() <= 1e-6 and type(again) is type(conv)
    assert (conv.bias is None) == (again.bias is None)
    with torch.no_grad():
        assert torch.allclose(again(x), conv(x), atol=1e-6)
    assert report.outside.abs().max() == 0 and report.relative_error < 1e-12


def quadratic(covariance="isotropic", heads=4, spread=0.7):
    return QuadraticAttention(5, 3, heads, covariance, spread_start=spread, centre_std=1.5).double()


@pytest.mark.parametrize("kind", ["isotropic", "full"])
def test_a_large_kernel_is_the_whole_layer_in_the_interior(kind):
    torch.manual_seed(0)
    layer = quadratic(kind, spread=2.0)
    conv, report = attention_to_conv(layer, 15)
    assert report.outside.max() < 1e-6
    x = torch.randn(1, 5, 21, 19, dtype=torch.float64)
    with torch.no_grad():
        difference = layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) - conv(x)
    assert difference[:, :, 9:-9, 9:-9].abs().max() < 1e-6
    assert (
        difference.abs().max() > 1e-3
    )  # at the borders attention renormalizes, zero padding does not


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(7, 5), (6, 9)])
@pytest.mark.parametrize("kind", ["isotropic", "full", "learned", "depthwise"])
def test_the_kernel_is_the_sum_over_heads_of_probability_times_value_matrix(kind, size, kernel):
    torch.manual_seed(0)
    rows, columns = kernel, kernel + (kind == "depthwise")
    if kind == "learned":
        layer = LearnedAttention(5, 3, 4, max_size=9, dropout=0.1).double()
    elif kind == "depthwise":
        layer = conv_to_attention(
            nn.Conv2d(5, 10, (rows, columns), groups=5, dtype=torch.float64), alpha=0.4
        )
        layer.centres.data += torch.randn_like(layer.centres)
    else:
        layer = quadratic(kind)
    conv, report = attention_to_conv(layer, None if kind == "depthwise" else kernel, size)
    assert conv.kernel_size == (rows, columns) and layer.training
    assert conv.padding_mode == ("zeros" if kind == "depthwise" else "replicate")
    p = layer.probabilities(*size)  # (h, Q, R, H, W)
    i, j = p.shape[1] // 2, p.shape[2] // 2  # the central query
    top, left = (
        (i, j) if kind == "depthwise" else (i - (rows - 1) // 2, j - (columns - 1) // 2)
    )  # the kernel's corner
    near = p[:, i, j, top : top + rows, left : left + columns]
    torch.testing.assert_close(conv.weight, torch.einsum("hij,hcd->dcij", near, weights_of(layer)))
    torch.testing.assert_close(report.outside, 1 - near.sum((1, 2)))
    assert 0 < report.outside.min() and 0 < report.relative_error


def test_a_quadratic_layer_is_read_where_it_has_all_shifts_of_the_paper():
    layer = quadratic(spread=0.15)  # so wide that the grid's size shows
    conv, _ = attention_to_conv(layer, 3)
    zeros, _ = attention_to_conv(
        layer, 3, padding_mode="zeros"
    )  # as one likes it beyond the border
    assert zeros.padding_mode == "zeros" and torch.equal(zeros.weight, conv.weight)
    p = layer.probabilities(33, 33)[:, 16, 16, 15:18, 15:18]
    torch.testing.assert_close(conv.weight, torch.einsum("hij,hcd->dcij", p, weights_of(layer)))


def hooked(register, *hook):
    """A convolution with something that `register` left on it."""
    conv = nn.Conv2d(2, 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old norms are deprecated
        getattr(conv, register)(*hook) if isinstance(register, str) else register(conv)
    return conv


@pytest.mark.parametrize(
    ("module", "cause"),
    [
        (
            nn.ConvTranspose2d(1, 1, 3),
            r"ConvTranspose2d is not a Conv1d or Conv2d; .*\(a transposed",
        ),
        (nn.LazyConvTranspose2d(1, 3), "a transposed convolution"),
        (nn.Conv3d(1, 1, 3), "Conv3d is not a Conv1d or Conv2d"),
        (nn.LazyConv2d(1, 3), "has hooks.*run a lazy module once"),
        (nn.Conv2d(1, 1, 3, dtype=torch.complex64), "real numbers"),
        (
            hooked("register_forward_hook", lambda *_: None),
            "has hooks, which attention would lack: remove",
        ),
        (hooked("register_full_backward_hook", lambda *_: None), "has hooks"),
        (hooked("register_full_backward_pre_hook", lambda *_: None), "has hooks"),
        (hooked("register_forward_pre_hook", lambda *_: None), "has hooks"),
        (hooked(nn.utils.spectral_norm), "has hooks.*spectral norms by `nn.utils`"),
        (hooked(nn.utils.weight_norm), "has hooks.*weight or spectral norms"),
        (hooked(lambda conv: prune.l1_unstructured(conv, "weight", 0.5)), "has hooks.*pruning"),
        (
            nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3)),
            "not a parameter.*remove_parametrizations",
        ),
        (nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 3), "bias"), "not a parameter"),
        (
            type("Conv2d", (nn.Module,), {"__module__": "torch.ao.nn.quantized.modules.conv"})(),
            "Conv2d is not a",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused(module, cause):
    with pytest.raises(TypeError, match=cause):
        conv_to_attention(module)
    with pytest.raises(TypeError, match=f"^0.head: .*{cause}"):
        convert(nn.Sequential(nn.ModuleDict({"head": module})))


def test_other_refusals_name_their_cause():
    with pytest.raises(TypeError, match="Linear is not a Conv1d or Conv2d"):
        conv_to_attention(nn.Linear(2, 2))
    for network in (None, "resnet18"):
        with pytest.raises(TypeError, match=f"convert takes a torch.nn.Module, not {network!r}"):
            convert(network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.script(nn.Sequential(nn.ReLU()))
    with pytest.raises(TypeError, match="Script"):
        convert(scripted)
    network = nn.Sequential(nn.ReLU())
    network[0].branches = [nn.Conv2d(2, 2, 3)]
    with pytest.raises(ValueError, match="^0 holds modules in a plain list.*nn.ModuleList"):
        convert(network)
    limits = [(a, torch.float32) for a in ("3", None, 0.0, -1.0, math.inf, math.nan, 1e39, 1.8e38)]
    for alpha, dtype in [*limits, (1e308, torch.float64)]:
        said = (
            f"{re.escape(f'alpha = {alpha!r} must be a positive number')}, and for {dtype} at most"
        )
        with pytest.raises(ValueError, match=said):
            conv_to_attention(nn.Conv2d(1, 1, 1, dtype=dtype), alpha)
    layer = conv_to_attention(nn.Conv2d(2, 1, (3, 5), dilation=2))
    for shape in [(2, 9, 9), (9, 9), (1, 1, 2, 9, 9), (1, 3, 9, 9)]:
        with pytest.raises(ValueError, match=f"4-D input .*{len(shape)}-D input"):
            layer(torch.zeros(shape))
    with pytest.raises(ValueError, match="3-D input"):
        conv_to_attention(nn.Conv1d(2, 1, 3))(torch.zeros(1, 2, 9, 9))
    for size, cause in [((4, 9), "height of 4 .* 5 pixels"), ((5, 8), "width of 8 .* 9 pixels")]:
        with pytest.raises(ValueError, match=cause):
            layer(torch.zeros(1, 2, *size))


def test_modules_in_plain_containers_are_refused_unless_pytorch_sees_them_as_well():
    for held in ({"left": nn.Conv2d(2, 2, 3)}, [[nn.Conv2d(2, 2, 3)]]):
        network = nn.Sequential(nn.ReLU())
        network[0].branches = held
        with pytest.raises(
            ValueError, match="^0 holds modules in a plain list or dict.*nn.ModuleDict"
        ):
            convert(network)
    network = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU())
    network.backwards = [network[1], network[0]]
    converted = convert(network)
    assert isinstance(converted[0], TapAttention)
    assert converted.backwards[0] is converted[1] and converted.backwards[1] is converted[0]


def test_refusals_of_the_way_back_name_their_cause():
    layer, learned = conv_to_attention(nn.Conv2d(2, 2, 3)), LearnedAttention(2, 2, 9, max_size=6)
    for arguments, cause in [
        ((layer, 5), "kernel_size = 5: this layer's convolution has its own"),
        ((quadratic(),), "kernel_size = None must be a whole number"),
        ((quadratic(), 0), "kernel_size = 0"),
        ((quadratic(), "3"), "kernel_size = '3' must be a whole number"),
        ((quadratic(), (3, 3)), "kernel_size = .* must be a whole number"),
        ((learned, 7), "7x7 kernel .* 6x6 grid .*max_size = 6"),
        ((learned, 5, (4, 4)), "5x5 kernel .* 4x4 grid .*a larger size"),
        ((quadratic(), 7, (5, 5)), "7x7 kernel .* 5x5 grid .*a larger size"),
    ]:
        with pytest.raises(ValueError, match=cause):
            attention_to_conv(*arguments)
    with pytest.raises(TypeError, match="ContentAttention"):
        attention_to_conv(ContentAttention(2, 2, 9, max_size=6, key_size=2), 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_gpu(dtype):
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    network = torchvision.models.resnet18(num_classes=10).eval().to("cuda", dtype)
    x = torch.randn(2, 3, 64, 64, device="cuda", dtype=dtype)
    converted = convert(network)
    with torch.no_grad():
        expected, output = network(x), converted(x)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert (output - expected).abs().max() <= tolerance * expected.abs().max()
    converted(x).sum().backward()
    _, report = attention_to_conv(converted.conv1)
    assert not report.outside.any()


def test_what_was_frozen_stays_frozen_and_one_hot_positions_are():
    conv = nn.Conv2d(2, 3, 3)
    trained = {name for name, p in conv_to_attention(conv).named_parameters() if p.requires_grad}
    assert trained == {"weight", "bias"}  # no gradient reaches one-hot positions
    assert all(p.requires_grad for p in conv_to_attention(conv, alpha=5.0).parameters())
    for alpha in (5.0, equivalence.ALPHA):
        frozen = convert(nn.Sequential(conv).requires_grad_(False), alpha)
        assert not any(p.requires_grad for p in frozen.parameters())
        conv.requires_grad_()


def test_a_pixel_that_is_not_a_number_spoils_what_sees_it_and_nothing_else():
    conv = nn.Conv2d(2, 3, 3, padding=1)
    x = torch.randn(1, 2, 9, 10)
    x[0, 0, 4, 5] = math.nan
    layer = conv_to_attention(conv)
    expected = conv(x).isnan()
    assert torch.equal(layer(x).isnan(), expected) and 0 < expected.sum() < expected.numel()


def test_theorem_1_as_the_paper_states_it():
    """A plain layer of K^2 heads on the padded image is the convolution, and its scores are
    Lemma 2's.
    """
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, 5, padding=2, dtype=torch.float64)
    x = torch.randn(2, 3, 8, 6, dtype=torch.float64)
    layer = equivalence.theorem_1(conv.weight, conv.bias)
    assert layer.heads == 25
    with torch.no_grad():
        output = equivalence.padded_attention(layer, x.permute(0, 2, 3, 1), margin=2).permute(
            0, 3, 1, 2
        )
        assert torch.allclose(output, conv(x), atol=1e-12)
        assert not torch.allclose(
            layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), conv(x)
        )  # the border
    soft = equivalence.theorem_1(conv.weight, conv.bias, alpha=0.7)
    shifts = torch.cartesian_prod(torch.arange(9.0), torch.arange(7.0)).double() - torch.tensor(
        [4, 2]
    )
    p = equivalence.quadratic_scores(shifts, soft.centres, 0.7).softmax(-1)
    assert torch.allclose(p, soft.probabilities(9, 7)[:, 4, 2].flatten(1), atol=1e-12)


# What was once wrong without a word


@pytest.mark.parametrize(("dtype", "reach"), [(torch.bfloat16, 300), (torch.float16, 2500)])
@pytest.mark.parametrize("later", [False, True])
def test_positions_keep_their_digits_in_half_precision(dtype, reach, later):
    """bfloat16 has no 257, float16 no 2049: the heads would look at other pixels."""
    conv = nn.Conv1d(1, 2, 3, dilation=reach)
    layer = conv_to_attention(conv).to(dtype) if later else conv_to_attention(conv.to(dtype))
    conv, x = conv.to(dtype), torch.randn(1, 1, 2 * reach + 50).to(dtype)
    with torch.no_grad():
        assert layer.centres.dtype == torch.float32 and layer.centres[0, 1] == -reach
        torch.testing.assert_close(layer(x), conv(x), atol=0.03, rtol=0.03)


@pytest.mark.parametrize("method", ["forward", "_conv_forward", "__call__"])
@pytest.mark.parametrize("subclass", [False, True])
def test_a_convolution_that_computes_in_its_own_way_is_refused(method, subclass):
    own = type("Own", (nn.Conv2d,), {method: lambda self, *inputs: None} if subclass else {})
    conv = own(1, 1, 3)
    if not subclass:
        setattr(conv, method, lambda *inputs: None)
    with pytest.raises(TypeError, match="^0: .*own way.*module around"):
        convert(nn.Sequential(conv))


class Assigns(nn.Module):
    """Parents that meddle with their convolution's weight in every forward pass, or read it."""

    def __init__(self, way):
        super().__init__()
        self.conv, self.way = nn.Conv2d(2, 2, 3, padding=1), way

    def forward(self, x):
        weight = self.conv.weight
        if self.way == "parameter":
            self.conv.weight = nn.Parameter(weight / weight.norm())
        elif self.way == "in place":
            with torch.no_grad():
                self.conv.weight.div_(weight.norm())
        return (
            self.conv(x.to(self.conv.weight.dtype)) * self.conv.weight[0].numel()
            + self.conv.bias.sum()
        )


@pytest.mark.parametrize("way", ["parameter", "in place", "reads"])
def test_parents_find_and_change_the_weight_as_before(way):
    network = Assigns(way)
    x = torch.randn(1, 2, 5, 6)
    converted = convert(network)
    torch.testing.assert_close(converted(x), network(x))
    torch.testing.assert_close(converted.conv.weight, network.conv.weight)


def test_tied_weights_stay_tied():
    network = nn.ModuleDict(
        {"a": nn.Conv2d(2, 2, 3), "b": nn.Conv2d(2, 2, 3, stride=2), "c": nn.Bilinear(3, 3, 2)}
    )
    network["b"].weight = network["a"].weight
    network["c"].register_parameter("kernel", network["a"].weight)
    converted = convert(network)
    assert converted["a"].weight is converted["b"].weight is converted["c"].kernel
    assert converted["a"].weight is not network["a"].weight
    assert torch.equal(converted["a"].weight, network["a"].weight)


def test_the_network_that_is_converted_stays_as_it_is():
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
    )
    before = {name: value.clone() for name, value in network.train().state_dict().items()}
    convert(network)
    assert conv_to_attention(network[0]).weight.shape == (3, 2, 3, 3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training and not network[1]._forward_hooks


def test_numbers_set_later_are_read_as_the_convolution_reads_them():
    x = torch.randn(1, 2, 11, 12)
    for mode in MODES[:2]:
        conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode)
        conv.stride, conv.dilation, conv.padding = 2, 2, 2
        torch.testing.assert_close(conv_to_attention(conv)(x), conv(x))


@pytest.mark.parametrize("dilation", [1, 3])
def test_what_is_around_a_conv1d_finds_its_numbers_as_before(dilation):
    """A causal one is padded by its parent, by as much as its kernel reaches."""

    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 3, 5, dilation=dilation)

        def forward(self, x):
            reach = (self.conv.kernel_size[0] - 1) * self.conv.dilation[0]
            return self.conv(F.pad(x, (reach, 0)))

    network, x = Causal(), torch.randn(1, 2, 20)
    torch.testing.assert_close(convert(network)(x), network(x))


@pytest.mark.parametrize("options", [{}, {"alpha": 2.0}, {"groups": 2}])
def test_vmap_and_gradients_of_torch_func_go_through(options):
    alpha = options.pop("alpha", equivalence.ALPHA)
    conv = nn.Conv2d(2, 2, 3, padding=1, **options)
    layer, x = conv_to_attention(conv, alpha), torch.randn(3, 2, 2, 9, 10)
    torch.testing.assert_close(torch.vmap(layer)(x), torch.stack([layer(part) for part in x]))
    values = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(values, x):
        return torch.func.functional_call(layer, values, (x,)).square().sum()

    found = torch.vmap(torch.func.grad(loss), (None, 0))(values, x)["weight"]
    exact = [torch.autograd.grad(layer(part).square().sum(), layer.weight)[0] for part in x]
    torch.testing.assert_close(found, torch.stack(exact))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_are_read_from_half_precision(dtype):
    torch.manual_seed(0)
    layer = QuadraticAttention(4, 3, 4)
    exact, _ = attention_to_conv(layer, 3)
    conv, report = attention_to_conv(layer.to(dtype), 3)
    assert (
        conv.weight.dtype == dtype
        and layer.value.weight.dtype == dtype
        and 0 < report.relative_error
    )
    torch.testing.assert_close(conv.weight.float(), exact.weight, atol=0.02, rtol=0.05)
    again, report = attention_to_conv(conv_to_attention(conv))
    assert torch.equal(again.weight, conv.weight) and not report.outside.any()


def test_a_layer_without_heads_is_a_convolution_of_zeros():
    conv, report = attention_to_conv(QuadraticAttention(2, 3, 0), 3)
    assert not conv.weight.any() and conv.bias.shape == (3,)
    assert (report.relative_error, len(report.outside)) == (0, 0)


@pytest.mark.parametrize("kind", ["isotropic", "full", "converted"])
def test_errors_of_the_report_are_expectations_over_white_noise(kind):
    """Against the mean over many random images at the query that was read."""
    torch.manual_seed(1)
    if kind == "converted":
        layer = conv_to_attention(
            nn.Conv2d(4, 6, 3, padding=1, groups=2, dtype=torch.float64), alpha=0.5
        )
    else:
        layer = QuadraticAttention(4, 6, 4, kind, spread_start=0.7).double()
    conv, report = attention_to_conv(layer, None if kind == "converted" else 3, size=(11, 11))
    x = torch.randn(4000, 4, 11, 11, dtype=torch.float64)
    with torch.no_grad():
        y = layer(x) if kind == "converted" else layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        lost, whole = (
            (t[..., 5, 5]).square().sum(1).mean().sqrt()
            for t in (y - conv(x), y - conv.bias[:, None, None])
        )
    assert report.relative_error == pytest.approx((lost / whole).item(), rel=0.03)


def test_threads_share_a_converted_network():
    """Images of different sizes at once: each thread gets the answers to its own."""
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, padding=1)
    layer = conv_to_attention(conv).eval()
    images = [torch.randn(1, 2, 5 + n, 12 - n) for n in range(8)]
    with torch.no_grad():
        right = [conv(x) for x in images]

        def ask(n):
            places = [(n + i) % 8 for i in range(100)]
            return sum(
                not torch.allclose(layer(images[place]), right[place], atol=1e-5)
                for place in places
            )

        def under_no_grad(n):
            with torch.no_grad():
                return ask(n)

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(under_no_grad, range(8))) == 0


def test_a_long_signal_takes_memory_that_is_linear_in_its_length():
    conv = nn.Conv1d(2, 3, 9, padding=4)
    layer = conv_to_attention(conv)
    x = torch.randn(1, 2, 200_000)
    with torch.no_grad(), PeakMemory() as memory:
        y = layer(x)
    torch.testing.assert_close(y, conv(x), rtol=0, atol=1e-5)
    assert memory.peak < 100 * x.nbytes


@pytest.mark.parametrize("centre", [0.0, 0.3, 0.5, -7.4, 40.0, math.nan, math.inf])
@pytest.mark.parametrize("alpha", [3.0, 20.0, 60.0, 800.0])
def test_pixels_are_picked_where_and_only_where_the_softmax_is_one_hot(centre, alpha):
    """A soft head beyond the border is one-hot, too, and goes through its softmax all the same."""
    layer = conv_to_attention(nn.Conv2d(1, 1, 3, padding=1), alpha)
    x = torch.randn(1, 1, 9, 9)
    with torch.no_grad():
        layer.centres[:, 1] += centre
        p = layer.probabilities(9, 9)
        one_hot = bool((p.amax((-2, -1)) == 1).all())
        assert layer._one_hot() == one_hot or (one_hot and centre == 40 and alpha == 3)
        expected = (
            torch.einsum("hqrkl,kl,h->qr", p, layer.pad(x)[0, 0], layer.weight.flatten())
            + layer.bias
        )
        torch.testing.assert_close(layer(x)[0, 0], expected, equal_nan=True)


def test_converted_networks_work_in_other_tools():
    """Exported, traced or without values, nobody can look whether heads are one-hot: the softmax
    is then computed.
    """
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding=1, groups=2),
    ).eval()
    x = torch.randn(2, 3, 9, 10)
    attention = convert(network)
    with torch.no_grad():
        expected = attention(x)  # its choice of pixels is kept from here on
        batch = {"input": {0: torch.export.Dim("batch", max=64)}}
        for strict in (False, True):
            exported = torch.export.export(
                attention, (x,), dynamic_shapes=batch, strict=strict
            ).module()
            torch.testing.assert_close(exported(x), expected)
            torch.testing.assert_close(exported(x[:1].repeat(5, 1, 1, 1))[4], expected[0])
        torch.testing.assert_close(torch.jit.trace(attention, (x,))(x), expected)
        assert attention.to("meta")(x.to("meta")).shape == expected.shape


@pytest.mark.parametrize("alpha", [0, -1, math.nan, math.inf, 1e39, "3"])
def test_theorem_1_refuses_what_is_no_sharpness(alpha):
    with pytest.raises(ValueError, match="alpha = .* must be a positive number"):
        equivalence.theorem_1(torch.randn(2, 3, 3, 3), torch.zeros(2), alpha)


def test_theorem_1_takes_what_a_convolution_has():
    conv, x = nn.Conv2d(3, 2, 3, padding=1, bias=False), torch.randn(1, 3, 9, 9)
    y = equivalence.theorem_1(conv.weight, conv.bias)(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    torch.testing.assert_close(y[..., 1:-1, 1:-1], conv(x)[..., 1:-1, 1:-1])
    for alpha in (np.float32(800), np.int64(800)):
        torch.testing.assert_close(conv_to_attention(conv, alpha)(x), conv(x))
    with pytest.raises(ValueError, match="see conv_to_attention"):
        equivalence.theorem_1(nn.Conv1d(3, 2, 3).weight, None)
    taps = equivalence.tap_shifts((3, 3))
    scores = equivalence.quadratic_scores(taps, taps.float(), 3.0)  # shifts are whole numbers
    expected = -3.0 * (taps[:, None] - taps).square().sum(-1).float()
    torch.testing.assert_close(scores.softmax(-1), expected.softmax(-1))
