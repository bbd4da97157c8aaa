"""Every equal form of mixing gives the dense definition and its gradients, costs what it should, and is never stale."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnconv import attention
from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention

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


def assert_equal_to_dense(layer, x, tolerance):
    """Against the dense definition in float64."""
    dense = copy.deepcopy(layer).double()
    dense.mixing = "dense"
    for ours, exact in zip(with_gradients(layer, x), with_gradients(dense, x.double()), strict=True):
        assert (ours - exact).norm() <= tolerance * max(1.0, exact.norm().item())


@pytest.fixture
def small_chunks(monkeypatch):
    """Several chunks of images and blocks of queries, the last ones smaller, on grids that a test can afford."""
    monkeypatch.setattr(attention, "CHUNK", 900)
    monkeypatch.setattr(attention, "BLOCK", 3 * 1000)
    monkeypatch.setattr(attention, "LARGE_GRID", 1)


FORMS = [("isotropic", "separable"), ("learned", "separable"), ("full", "auto"), ("content", "auto")]


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
    monkeypatch.setattr(attention, "_eager_on_cpu", lambda x: False)
    monkeypatch.setattr(attention._Separable, "apply", lambda *_: pytest.fail("this is the form for CPUs"))
    assert_equal_to_dense(make(kind, mixing="separable").double(), torch.randn(3, 5, 7, 5).double(), 1e-12)


@pytest.mark.parametrize("kind", ["isotropic", "full"])
def test_no_heads_and_no_images(kind):
    layer = make(kind, heads=0)
    x = torch.randn(2, 9, 9, 5)
    torch.testing.assert_close(layer(x), layer.value.bias.expand(2, 9, 9, -1))
    assert make(kind)(x[:0]).shape == (0, 9, 9, 4)


@pytest.mark.parametrize("kind", ["isotropic", "full"])
def test_gradients_against_finite_differences_over_several_chunks(kind, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK", 12)
    monkeypatch.setattr(attention, "BLOCK", 1)
    layer = make(kind, 2, 2, 2, mixing="separable" if kind == "isotropic" else "auto").double()
    x = torch.randn(3, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def forward(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(forward, (x, *values))


def test_a_second_derivative_is_refused_rather_than_wrong():
    layer = make("isotropic", mixing="separable")
    x = torch.randn(1, 3, 4, 5, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


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


# Precision and compilation


@pytest.mark.parametrize("kind", ["isotropic", "learned", "full", "content"])
def test_autocast_to_bfloat16_stays_close(kind):
    layer = make(kind)
    x = torch.randn(2, 9, 10, 5)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x), atol=0.05, rtol=0.05)


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


@pytest.mark.parametrize("kind", ["isotropic", "full"])
def test_autocast_makes_no_copy_of_p_for_each_image(kind):
    layer = make(kind, mixing="dense")
    x = torch.randn(20, 9, 10, 5, requires_grad=True)
    sizes = []
    with torch.autocast("cpu", torch.bfloat16):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.append(t.untyped_storage().nbytes()) or t, lambda t: t
        ):
            layer(x)
    assert max(sizes) <= 4 * 3 * 90**2


@pytest.mark.parametrize("kind", ["isotropic", "learned", "content"])
def test_compiles_as_one_graph(kind):
    layer = make(kind)
    x = torch.randn(2, 9, 10, 5)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))


# Cost


def flops(layer, x, backward):
    with FlopCounterMode(display=False) as counter:
        out = layer(x)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("grid", [(12, 20), (30, 7)])
def test_operations_stay_linear_in_rows_plus_columns(grid):
    """Nobody makes it quadratic again. Backward: twice the values, three times mixing (it is done again)."""
    (height, width), heads, channels, out = grid, 3, 8, 6
    layer = make("isotropic", heads, channels, out)
    x = torch.randn(2, *grid, channels, requires_grad=True)
    values = 2 * 2 * height * width * heads * channels * out
    mixing = 2 * 2 * height * width * heads * (height + width) * channels
    with torch.no_grad():
        assert flops(layer, x, backward=False) == values + mixing
    assert flops(layer, x, backward=True) == 3 * values + 4 * mixing


def test_training_stores_the_input_and_no_averages():
    layer = make("isotropic", heads=9, channels=8)
    x = torch.randn(4, 12, 12, 8, requires_grad=True)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        layer(x)
    assert max(sizes) == x.numel()  # the averages of nine heads would be nine times that


def test_a_full_covariance_stores_less_than_p(small_chunks):
    layer = make("full", heads=3)
    x = torch.randn(2, 12, 12, 5, requires_grad=True)
    stored = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: stored.update({t.data_ptr(): t}) or t, lambda t: t):
        layer(x)
    assert sum(t.numel() for t in stored.values()) < 3 * 144**2 / 2


def test_dropout_on_large_grids_goes_by_blocks_with_one_mask_for_the_batch(small_chunks):
    layer = make("isotropic", dropout=0.5)
    x = torch.randn(1, 12, 12, 5).expand(2, -1, -1, -1)
    out = layer(x)
    torch.testing.assert_close(out[0], out[1])
    assert not torch.allclose(out, layer.eval()(x), atol=1e-3)
    layer.train()
    parameter = layer.centres  # the mask of the backward pass is that of the forward pass
    torch.manual_seed(0)
    grad = torch.autograd.grad(layer(x).sum(), parameter)[0]
    torch.manual_seed(0)
    torch.testing.assert_close(torch.autograd.grad(layer(x).sum(), parameter)[0], grad)


# Probabilities kept in inference


def change_in_place(layer):
    with torch.no_grad():
        layer.centres[0, 0] += 1


def change_data(layer):
    layer.centres.data[0, 0] += 1  # PyTorch's version counters do not see this


def change_state(layer):
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})


def change_parameter(layer):
    layer.spreads = torch.nn.Parameter(layer.spreads.detach() * 2)


def change_by_training(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(torch.randn(1, 9, 10, 5)).square().sum().backward()
    optimizer.step()


CHANGES = [change_in_place, change_data, change_state, change_parameter, change_by_training]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_kept_probabilities_are_never_stale(change, mode):
    layer = make("isotropic", mixing="separable")
    x = torch.randn(2, 9, 10, 5)
    with mode():
        before = layer(x)
    change(layer)
    with mode():
        after = layer(x)
    fresh = make("isotropic", mixing="separable")
    fresh.load_state_dict(layer.state_dict())
    torch.testing.assert_close(after, fresh(x))
    assert not torch.allclose(before, after, atol=1e-4)


def test_kept_probabilities_are_of_the_images_size_and_type(monkeypatch):
    layer = make("learned", mixing="separable")
    calls = []
    axis_logits = layer.axis_logits
    monkeypatch.setattr(layer, "axis_logits", lambda *a: calls.append(a) or axis_logits(*a))
    with torch.no_grad():
        for grid in ((9, 10), (9, 10), (10, 9)):
            layer(torch.randn(1, *grid, 5))
    assert calls == [(9, 0), (10, 1), (10, 0), (9, 1)]
    layer = make("learned", mixing="separable")
    x = torch.randn(1, 10, 9, 5)
    for dtype in (torch.float32, torch.float64):
        with torch.no_grad():
            kept = layer.to(dtype)(x.to(dtype))
        torch.testing.assert_close(layer(x.to(dtype)), kept)
