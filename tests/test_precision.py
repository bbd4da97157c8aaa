"""How products are computed is chosen by what is fast, means what it says, and leaves the process as it was."""

import subprocess
import sys

import pytest
import torch

from attnconv.attention import QuadraticAttention, precision
from attnconv.attention.precision import Computation, choose, computing

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("bfloat16", "amx", "amd", "auto", "float32"),
    [
        (True, False, True, Computation(True, True), Computation(False, True)),  # Zen 4 and later
        (False, False, True, Computation(False, True), Computation(False, True)),
        (True, True, False, Computation(True, False), Computation()),
        (True, True, True, Computation(True, False), Computation()),  # AMX: oneDNN's way would be bfloat16
        (False, False, False, Computation(), Computation()),
    ],
)
def test_what_is_fast_is_taken_and_float32_stays_float32(monkeypatch, bfloat16, amx, amd, auto, float32):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(precision, "_is_amd", lambda: amd)
    assert (choose(CPU, "auto"), choose(CPU, "float32")) == (auto, float32)
    assert choose(CPU, "bfloat16").bfloat16
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # bfloat16 is slow then, whatever the CPU says of itself
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
        assert inside == ("bf16" if before == "none" and not torch.cpu._is_amx_tile_supported() else before)
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
    """Errors of bfloat16 are a hundred times larger. On AMX the setting is refused, so this holds there too."""
    layer, x = QuadraticAttention(64, 64, 9), torch.randn(4, 16, 16, 64)
    exact = layer.double()(x.double())
    layer.float()
    for computation in (Computation(), Computation(onednn=True)):
        with computing(computation, CPU):
            out = layer(x)
        assert (out - exact).norm() < 1e-6 * exact.norm()


def test_the_choice_is_the_same_in_every_process():
    """A choice that wavered would change the bits of a run: a resumed one, or one that is made again."""
    code = "import torch; from attnconv.attention.precision import choose; "
    code += "print(repr(choose(torch.device('cpu'), 'auto')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(choose(CPU, "auto"))
