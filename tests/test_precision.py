"""How products are computed is chosen by what is fast, means what it says, and leaves the
process as it was.
"""

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from attnconv.attention import QuadraticAttention, precision
from attnconv.attention.precision import Computation, choose, computing
from attnconv.config import ModelConfig
from attnconv.models import build_model

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("bfloat16", "amx", "amd", "auto", "float32"),
    [
        (True, False, True, Computation(True, True), Computation(False, True)),  # Zen 4 and later
        (False, False, True, Computation(False, True), Computation(False, True)),
        (True, True, False, Computation(True, False), Computation()),
        (
            True,
            True,
            True,
            Computation(True, False),
            Computation(),
        ),  # AMX: oneDNN's way would be bfloat16
        (False, False, False, Computation(), Computation()),
    ],
)
def test_what_is_fast_is_taken_and_float32_stays_float32(
    monkeypatch, bfloat16, amx, amd, auto, float32
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(precision, "_is_amd", lambda: amd)
    assert (choose(CPU, "auto"), choose(CPU, "float32")) == (auto, float32)
    assert choose(CPU, "bfloat16").bfloat16
    monkeypatch.setenv(
        "ONEDNN_MAX_CPU_ISA", "AVX2"
    )  # bfloat16 is slow then, whatever the CPU says of itself
    assert not choose(CPU, "auto").bfloat16


@pytest.mark.parametrize("before", ["none", "ieee", "bf16"])
def test_the_setting_is_put_back_and_a_chosen_one_respected(before):
    setting = torch.backends.mkldnn.matmul
    try:
        setting.fp32_precision = before
        with pytest.raises(ZeroDivisionError), computing(Computation(onednn=True), CPU):
            inside = setting.fp32_precision
            with computing(Computation(), CPU):
                assert setting.fp32_precision == inside  # nested, as evaluation is in training
            raise ZeroDivisionError
        assert inside == (
            "bf16" if before == "none" and not torch.cpu._is_amx_tile_supported() else before
        )
        assert setting.fp32_precision == before
    finally:
        setting.fp32_precision = "none"
    assert precision._users == 0


@pytest.mark.parametrize("before", [True, False])
def test_on_a_gpu_convolutions_in_float32_are_float32(before, monkeypatch):
    """To set and to put back takes no GPU."""
    setting, gpu = torch.backends.cudnn, torch.device("cuda")
    monkeypatch.setattr(setting, "allow_tf32", before)
    with pytest.raises(ZeroDivisionError), computing(Computation(), gpu):
        with computing(Computation(bfloat16=True), gpu):
            assert not setting.allow_tf32
        assert not setting.allow_tf32  # nested, as evaluation is in training
        raise ZeroDivisionError
    assert setting.allow_tf32 == before


def test_float32_by_any_library_is_float32():
    """Errors of bfloat16 are a hundred times larger. On AMX the setting is refused, so this
    holds there too.
    """
    layer, x = QuadraticAttention(64, 64, 9), torch.randn(4, 16, 16, 64)
    exact = layer.double()(x.double())
    layer.float()
    for computation in (Computation(), Computation(onednn=True)):
        with computing(computation, CPU):
            out = layer(x)
        assert (out - exact).norm() < 1e-6 * exact.norm()


def test_the_choice_is_the_same_in_every_process():
    """A choice that wavered would change the bits of a run: a resumed one, or one that is made
    again.
    """
    code = "import torch; from attnconv.attention.precision import choose; "
    code += "print(repr(choose(torch.device('cpu'), 'auto')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(choose(CPU, "auto"))


def gradients(network, forward, x, y, bfloat16):
    """The gradient of every parameter, in float64."""
    network.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = forward(x)
    exact = torch.promote_types(logits.dtype, torch.float32)
    F.cross_entropy(logits.to(exact), y).backward()
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
    full = dict(kind="quadratic", covariance="full")
    own = full if kind == "full" else dict(kind=kind)
    config = ModelConfig(**own, layers=6, heads=4, hidden=16, mlp=32, key_size=8, dropout=0.0)
    network = build_model(config)
    x, y = torch.randn(50, 3, 32, 32), torch.randint(10, (50,))
    double = copy.deepcopy(network).double()
    exact = gradients(double, double, x.double(), y, bfloat16=False)
    forward = torch.compile(network, dynamic=False) if compiled else network
    # Compiled for a CPU without instructions for bfloat16, torch 2.15 gives NaN; training takes
    # float32 there.
    bfloat16 = choose(CPU, "auto").bfloat16 or not compiled
    found = gradients(network, forward, x, y, bfloat16)
    for name, gradient in exact.items():
        if not name.endswith("key.bias"):  # the softmax ignores it: its gradient is zero
            error = (found[name] - gradient).norm() / gradient.norm()
            assert error < 0.08, f"{name}: {error:.2f}"
