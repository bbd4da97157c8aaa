"""What bfloat16 costs in digits: of a layer, and of a whole network's gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F

from attnconv.config import ModelConfig
from attnconv.models import build_model
from test_mixing import KINDS, make, with_gradients


@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_bfloat16_are_near_those_in_float64_with_all_gradients(kind):
    torch.manual_seed(0)
    tolerance = 0.02 if kind == "content" else 0.008
    layer, x = make(kind, 9, 8, 8), torch.randn(64, 6, 11, 8)
    exact = with_gradients(copy.deepcopy(layer).double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        ours = with_gradients(layer, x)
    assert ours[0].dtype == torch.bfloat16 and all(t.dtype == torch.float32 for t in ours[1:])
    for a, b in zip(ours, exact, strict=True):
        assert (a - b).norm() < tolerance * max(5, b.norm())
        assert kind != "isotropic" or (a - b).norm() < 0.01 * b.norm()


def gradients(network, forward, x, y, bfloat16):
    """The gradient of every parameter, in float64."""
    network.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = forward(x)
    F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y).backward()
    return {name: parameter.grad.double() for name, parameter in network.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        ("quadratic", False),
        ("full", False),
        ("learned", False),
        ("learned_content", False),
        ("quadratic", True),
    ],
)
def test_gradients_in_bfloat16_are_near_those_in_float64(kind, compiled):
    """Of every parameter, over 12,800 pixels: sums that are taken in bfloat16 stand still long
    before that.
    """
    torch.manual_seed(0)
    own = dict(kind="quadratic", covariance="full") if kind == "full" else dict(kind=kind)
    config = ModelConfig(**own, layers=6, heads=4, hidden=16, mlp=32, key_size=8, dropout=0.0)
    network = build_model(config)
    x, y = torch.randn(50, 3, 32, 32), torch.randint(10, (50,))
    double = copy.deepcopy(network).double()
    exact = gradients(double, double, x.double(), y, bfloat16=False)
    forward = torch.compile(network, dynamic=False) if compiled else network
    # Compiled for a CPU without instructions for bfloat16, torch 2.15 gives NaN.
    found = gradients(network, forward, x, y, torch.cpu._is_avx512_bf16_supported() or not compiled)
    for name, gradient in exact.items():
        if not name.endswith("key.bias"):  # the softmax ignores it: its gradient is zero
            error = (found[name] - gradient).norm() / gradient.norm()
            assert error < 0.08, f"{name}: {error:.2f}"
