"""Every equal form of mixing gives the dense definition and its gradients, costs what it should,
and is never stale.
"""

import copy
import subprocess
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention, mixing

KINDS = ["isotropic", "learned", "full", "content"]
GRIDS = [(9, 10), (13, 8), (1, 12), (7, 1), (1, 1)]


def make(kind, heads=3, channels=5, out=4, size=16, **options):
    if kind == "learned":
        return LearnedAttention(channels, out, heads, max_size=size, **options)
    if kind == "content":
        return ContentAttention(channels, out, heads, max_size=size, key_size=4, **options)
    return QuadraticAttention(channels, out, heads, covariance=kind, **options)


def with_gradients(layer, x):
    """The output, and the gradients of a fixed linear function of it for x and every parameter."""
    x = x.detach().requires_grad_()
    out = layer(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out.dtype)
    wanted = [x, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), wanted, allow_unused=True)]


def dense_twin(layer):
    """The same parameters in float64 and plain operations on all of P: the reference for
    derivatives.
    """
    twin = copy.deepcopy(layer).double()
    twin.mixing = "dense"
    twin.value.register_forward_hook(lambda *_: None)  # a hook on the values means plain operations
    return twin


def assert_equal_to_dense(layer, x, tolerance):
    """The output and its gradients, against the dense definition."""
    for ours, exact in zip(
        with_gradients(layer, x), with_gradients(dense_twin(layer), x.double()), strict=True
    ):
        assert (ours - exact).norm() <= tolerance * max(1.0, exact.norm().item())


@pytest.fixture
def small_chunks(monkeypatch):
    """Several chunks of images and blocks of queries, the last ones smaller, on grids that a
    test can afford.
    """
    monkeypatch.setattr(mixing, "CHUNK", 8 * 900)
    monkeypatch.setattr(mixing, "BLOCK", 3 * 1000)
    monkeypatch.setattr(mixing, "STORED", 3 * 2**14)


FORMS = [
    ("isotropic", "separable"),
    ("learned", "separable"),
    ("full", "auto"),
    ("content", "auto"),
]


@pytest.mark.parametrize(("kind", "mixing"), FORMS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("heads", [1, 3])
def test_every_form_equals_the_dense_definition(kind, mixing, grid, heads, small_chunks):
    layer = make(kind, heads, mixing=mixing)
    x = torch.randn(5, *grid, 5)
    assert_equal_to_dense(layer, x, 1e-5)
    assert_equal_to_dense(layer.double(), x.double(), 1e-12)


@pytest.mark.parametrize("kind", ["isotropic", "learned"])
def test_the_form_for_gpus_equals_the_dense_definition(kind, monkeypatch):
    monkeypatch.setattr(mixing, "_eager_on_cpu", lambda x: False)
    monkeypatch.setattr(mixing, "_by_chunks", lambda *_: pytest.fail("this is the form for CPUs"))
    assert_equal_to_dense(
        make(kind, mixing="separable").double(), torch.randn(3, 5, 7, 5).double(), 1e-12
    )


class Elsewhere(torch.Tensor):
    """Numbers of a CPU that say they are on a GPU, so that its form is taken."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


@pytest.mark.parametrize(("key_size", "channels"), [(4, 5), (16, 3), (2, 30)])
def test_content_in_the_form_for_gpus_equals_that_for_cpus(key_size, channels, monkeypatch):
    """PyTorch's kernel wants one width for all, a multiple of 8; queries or pixels may be the
    wider ones.
    """
    layer = ContentAttention(channels, 4, 3, max_size=8, key_size=key_size).double()
    x = torch.randn(2, 5, 7, channels, dtype=torch.float64)
    with torch.no_grad():
        q, k = layer._queries_and_keys(x)
        others = k, *layer.position_logits(q), x
        expected = mixing.attend_content(q, *others)
        monkeypatch.setattr(
            mixing, "_attend_to_all", lambda *_: pytest.fail("this is the form for CPUs")
        )
        found = mixing.attend_content(q.as_subclass(Elsewhere), *others)
    torch.testing.assert_close(torch.from_numpy(found.numpy()), expected)


@pytest.mark.parametrize(("kind", "form"), [*FORMS[::2], ("isotropic", "dense")])
def test_no_heads_and_no_images(kind, form):
    layer, x = make(kind, heads=0, mixing=form), torch.randn(2, 9, 9, 5)
    torch.testing.assert_close(layer(x), layer.value.bias.expand(2, 9, 9, -1))
    assert make(kind, mixing=form)(x[:0]).shape == (0, 9, 9, 4)


# Every derivative, in each form


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", [torch.sum, lambda t: t.square().sum(), lambda t: t.exp().sum()])
def test_second_derivatives_are_those_of_the_dense_form(kind, loss, small_chunks, monkeypatch):
    monkeypatch.setattr(mixing, "SMALL_GRID", 0)
    layer = make(kind, 2, 3, 2, size=5).double()
    x = torch.randn(3, 4, 5, 3, dtype=torch.float64)
    results = []
    for one in (layer, dense_twin(layer)):
        leaf = x.clone().requires_grad_()
        wanted = [leaf, *one.parameters()]
        first = torch.autograd.grad(loss(one(leaf)), wanted, create_graph=True)
        seeds = [torch.linspace(-1, 1, g.numel(), dtype=torch.float64).view_as(g) for g in first]
        mixed = sum((g * s).sum() for g, s in zip(first, seeds, strict=True))
        results.append(
            torch.autograd.grad(mixed, wanted, allow_unused=True, materialize_grads=True)
        )
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_functional_call_uses_the_parameters_it_is_given_in_both_passes(
    kind, dropout, small_chunks
):
    layer = make(kind, dropout=dropout)
    others = {name: p.detach() + 0.3 * torch.randn_like(p) for name, p in layer.named_parameters()}
    twin = copy.deepcopy(layer)
    twin.load_state_dict(others)
    x = torch.randn(2, 9, 10, 5)
    others = {name: p.requires_grad_() for name, p in others.items()}
    torch.manual_seed(0)
    ours = torch.autograd.grad(
        torch.func.functional_call(layer, others, (x,)).square().sum(), list(others.values())
    )
    torch.manual_seed(0)
    exact = torch.autograd.grad(twin(x).square().sum(), list(twin.parameters()))
    torch.testing.assert_close(ours, exact)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_changed_between_forward_and_backward_never_gives_wrong_gradients(
    kind, small_chunks
):
    layer = make(kind)
    x = torch.randn(2, 9, 10, 5)
    exact = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    refused = []
    for name, parameter in layer.named_parameters():
        out = layer(x).square().sum()
        with torch.no_grad():
            parameter.add_(1)
        try:
            gradients = torch.autograd.grad(out, list(layer.parameters()))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error) or "changed in place" in str(
                error
            )
            refused.append(name)
        else:  # what the backward pass reads was made in the forward pass
            torch.testing.assert_close(gradients, exact)
        with torch.no_grad():
            parameter.sub_(1)
        exact = torch.autograd.grad(
            layer(x).square().sum(), list(layer.parameters())
        )  # rounded anew
    assert refused
    assert "value.weight" in refused or kind in (
        "isotropic",
        "learned",
    )  # whose W^h are copied in the forward pass


@pytest.mark.parametrize("kind", ["isotropic", "full", "content"])
def test_eval_between_forward_and_backward_changes_nothing(kind, small_chunks):
    layer = make(kind, dropout=0.4)
    x = torch.randn(2, 9, 10, 5)
    gradients = []
    for between in (layer.train, layer.eval):
        layer.train().zero_grad()
        torch.manual_seed(0)
        out = layer(x).square().sum()
        between()
        out.backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_and_the_gradients_of_torch_func(kind, small_chunks):
    layer = make(kind, size=10).double()
    x = torch.randn(4, 2, 9, 10, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(layer)(x), torch.stack([layer(part) for part in x]))
    values = dict(layer.named_parameters())

    def loss(values, x):
        return torch.func.functional_call(layer, values, (x,)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(
        values, x
    )  # a gradient for each part
    for name, parameter in values.items():
        exact = [torch.autograd.grad(loss(values, part), parameter)[0] for part in x]
        torch.testing.assert_close(each[name], torch.stack(exact))


@pytest.mark.parametrize("kind", KINDS)
def test_results_in_bfloat16_are_close_and_gradients_summed_in_float32(kind, monkeypatch):
    monkeypatch.setattr(
        mixing, "CHUNK", 2**12
    )  # many chunks: sums in bfloat16 would be wrong by one percent
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


@pytest.mark.parametrize("frozen", ["centres", "value.weight", "x"])
def test_what_needs_no_gradient_gets_none(frozen):
    layer = make("isotropic", mixing="separable")
    x = torch.randn(2, 3, 4, 5, requires_grad=frozen != "x")
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name != frozen)
    layer(x).sum().backward()
    assert (x.grad is None) == (frozen == "x")
    assert all((p.grad is None) == (name == frozen) for name, p in layer.named_parameters())


def test_layers_without_a_bias_and_with_hooks_on_the_values_work():
    layer = make("isotropic", mixing="separable")
    seen = []
    handle = layer.value.register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(2, 9, 10, 5)
    hooked = layer(x)
    handle.remove()
    torch.testing.assert_close(layer(x), hooked)
    assert seen == [1]
    layer.value.bias = None
    assert_equal_to_dense(layer, x, 1e-5)


@pytest.mark.parametrize(
    "register", ["register_full_backward_hook", "register_full_backward_pre_hook"]
)
def test_backward_hooks_on_the_values_are_called(register):
    layer, seen = make("isotropic", mixing="separable"), []
    getattr(layer.value, register)(lambda *_: seen.append(1))
    layer(torch.randn(2, 9, 10, 5)).sum().backward()
    assert seen == [1]


# Precision and compilation


@pytest.mark.parametrize("kind", ["isotropic", "full", "learned"])
def test_autocast_does_not_move_heads(kind):
    """Scores are made in float32: in bfloat16 a narrow ellipse would lose its small eigenvalue."""
    layer = make(kind)
    with torch.no_grad():
        if kind == "full":
            turned = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
            layer.spreads.copy_(torch.diag(torch.tensor([10.0, 1 / 3])) @ turned)
        elif kind == "learned":
            layer.row_scores.mul_(20)
        with torch.autocast("cpu", torch.bfloat16):
            p = layer.probabilities(9, 10)
        torch.testing.assert_close(p, layer.probabilities(9, 10), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["isotropic", "learned", "content"])
def test_compiles_as_one_graph(kind):
    layer = make(kind)
    x = torch.randn(2, 9, 10, 5)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))


@pytest.mark.parametrize(
    ("device", "side", "form"),
    [
        ("cpu", 8, "mix_dense"),
        ("cpu", 16, "mix_separable"),
        ("cuda", 16, "mix_dense"),
        ("cuda", 17, "mix_separable"),
    ],
)
def test_small_grids_take_one_product(device, side, form, monkeypatch):
    """Which form is taken, also on a GPU: tensors that hold no numbers need none."""
    taken = []
    for name in ("mix_dense", "mix_separable"):
        real = getattr(mixing, name)
        monkeypatch.setattr(
            mixing, name, lambda *given, name=name, real=real: taken.append(name) or real(*given)
        )
    with FakeTensorMode(), torch.device(device):
        y = QuadraticAttention(4, 5, 9)(torch.randn(2, side, side, 4))
    assert (taken, y.shape, y.device.type) == ([form], (2, side, side, 5), device)


@pytest.mark.parametrize(
    ("device", "key_size", "channels", "fused"),
    [
        ("cpu", 8, 4, 0),
        ("cuda", 248, 4, 1),
        ("cuda", 250, 4, 0),
        ("cuda", 8, 256, 1),
        ("cuda", 8, 257, 0),
    ],
)
def test_long_keys_take_products(device, key_size, channels, fused, monkeypatch):
    """With content a GPU's fused kernel is taken up to 256 numbers: key, rows (4) and columns
    (4), or channels.
    """
    taken, real = [], mixing.F.scaled_dot_product_attention
    monkeypatch.setattr(
        mixing.F, "scaled_dot_product_attention", lambda *a, **o: taken.append(1) or real(*a, **o)
    )
    with FakeTensorMode(), torch.device(device):
        y = ContentAttention(channels, 5, 3, max_size=4, key_size=key_size)(
            torch.randn(2, 4, 4, channels)
        )
    assert (len(taken), y.shape, y.device.type) == (fused, (2, 4, 4, 5), device)


# Cost


def flops(layer, x, backward):
    with FlopCounterMode(display=False) as counter:
        out = layer(x)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("grid", [(12, 20), (30, 7)])
def test_operations_stay_linear_in_rows_plus_columns(grid):
    """Nobody makes it quadratic again. Backward: the averages and the projection are made again."""
    (height, width), heads, channels, out = grid, 3, 8, 6
    layer = make("isotropic", heads, channels, out)
    x = torch.randn(2, *grid, channels, requires_grad=True)
    values = 2 * 2 * height * width * heads * channels * out
    rows, columns = (2 * 2 * height * width * heads * n for n in (height * channels, width * out))
    with torch.no_grad():
        assert flops(layer, x, backward=False) == values + rows + columns
    assert flops(layer, x, backward=True) == 4 * values + 4 * rows + 3 * columns
    # On any other device plain operations: both averages before the projection, and P over all
    # pixels if it is dense.
    layer, x = layer.to("meta"), x.to("meta")
    assert flops(layer, x, backward=False) == values + rows + rows * width // height
    layer.mixing = "dense"
    assert flops(layer, x, backward=False) == values + rows * width


def stored(layer, x):
    """Numbers that each tensor kept for the backward pass holds, by its place in memory."""
    found = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: found.update({t.data_ptr(): t.untyped_storage().nbytes() // t.itemsize}) or t,
        lambda t: t,
    ):
        layer(x)
    return found.values()


def test_training_stores_the_input_and_no_averages():
    layer = make("isotropic", heads=9, channels=8)
    x = torch.randn(4, 12, 12, 8, requires_grad=True)
    assert max(stored(layer, x)) == x.numel()  # the averages of nine heads would be nine times that


@pytest.mark.parametrize("kind", ["isotropic", "full"])
def test_autocast_makes_no_copy_of_p_for_each_image(kind):
    with torch.autocast("cpu", torch.bfloat16):
        assert (
            max(stored(make(kind, mixing="dense"), torch.randn(20, 9, 10, 5, requires_grad=True)))
            <= 3 * 90**2
        )


def test_a_full_covariance_stores_less_than_p(small_chunks):
    assert sum(stored(make("full"), torch.randn(2, 12, 12, 5, requires_grad=True))) < 3 * 144**2 / 2


def test_dropout_on_large_grids_goes_by_blocks_with_one_mask_for_the_batch(small_chunks):
    layer = make("isotropic", dropout=0.5).double()
    layer.value.bias = None
    x = torch.randn(1, 12, 12, 5, dtype=torch.float64).expand(2, -1, -1, -1).requires_grad_()
    out = layer(x)
    torch.testing.assert_close(out[0], out[1])
    assert not torch.allclose(out, layer.eval()(x), atol=1e-3)
    [gradient] = torch.autograd.grad(
        out.square().sum(), x
    )  # the mask of the backward pass is that of the forward pass
    torch.testing.assert_close((gradient * x).sum(), 2 * out.square().sum())


def test_predictions_do_not_wait_for_the_compiler():
    """The first `checkpoint` imports it, which takes two seconds: the explorer would open that
    much later.
    """
    code = """
import sys, torch
from attnconv.attention import QuadraticAttention
with torch.no_grad():
    QuadraticAttention(2, 2, heads=2)(torch.rand(1, 4, 4, 2))
assert "torch._dynamo" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)
