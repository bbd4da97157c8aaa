"""Averaging by P and by its two factors gives the same, costs what it should, and so do the layers
that use it.
"""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention
from attnconv.attention.mixing import mix_dense, mix_separable

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
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize(("heads", "images"), [(3, 4), (1, 1), (0, 4), (3, 0)])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [((5, 5), (7, 7)), ((2, 5), (4, 7)), ((1, 1), (6, 6)), ((3, 6), (1, 1)), ((9, 9), (3, 8))],
)
def test_both_ways_to_average_are_the_definition(heads, images, rows, columns):
    row, column = (
        torch.randn(heads, *axis, dtype=torch.float64).softmax(-1)
        for axis in (rows, columns)  # of each (queries, keys)
    )
    x = torch.randn(images, rows[1], columns[1], 3, dtype=torch.float64)
    p = row[:, :, None, :, None] * column[:, None, :, None, :]  # (h, Q, R, H, W)
    expected = x.new_zeros(images, rows[0], columns[0], heads, 3)
    for head in range(heads):
        for i, j in torch.cartesian_prod(torch.arange(rows[0]), torch.arange(columns[0])):
            expected[:, i, j, head] = (p[head, i, j, :, :, None] * x).sum((1, 2))
    expected = expected.flatten(-2)
    torch.testing.assert_close(mix_separable(x, row, column), expected)
    torch.testing.assert_close(mix_dense(x, p), expected)
    of_each_image = p.expand(images, *p.shape) + torch.arange(images).view(-1, 1, 1, 1, 1, 1)
    for image, one, mixed in zip(x, of_each_image, mix_dense(x, of_each_image), strict=True):
        torch.testing.assert_close(mixed, mix_dense(image[None], one)[0])


@pytest.mark.parametrize("kind", ["isotropic", "learned"])
@pytest.mark.parametrize("grid", GRIDS)
def test_factors_and_the_whole_of_p_give_the_same_outputs_and_gradients(kind, grid):
    layer = make(kind).double()
    dense = copy.deepcopy(layer)
    dense.forward = lambda x: dense.value(mix_dense(x, dense.probabilities(*grid)))
    x = torch.randn(5, *grid, 5, dtype=torch.float64)
    torch.testing.assert_close(with_gradients(layer, x), with_gradients(dense, x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("heads", [1, 3])
def test_float32_is_near_float64_with_all_gradients(kind, grid, heads):
    layer = make(kind, heads)
    x = torch.randn(5, *grid, 5)
    exact = with_gradients(copy.deepcopy(layer).double(), x.double())
    for ours, wanted in zip(with_gradients(layer, x), exact, strict=True):
        assert (ours - wanted).norm() <= 1e-5 * max(1.0, wanted.norm().item())


def test_content_adds_up_its_two_parts_to_the_scores_that_p_is_made_of():
    layer, x = make("content").double(), torch.randn(2, 4, 5, 5, dtype=torch.float64)
    content, position = layer.score_parts(x)
    p = (content + position).flatten(-2).softmax(-1).view_as(content)
    torch.testing.assert_close(p, layer.probabilities(x))


@pytest.mark.parametrize("kind", KINDS)
def test_no_heads_and_no_images(kind):
    layer, x = make(kind, heads=0), torch.randn(2, 9, 9, 5)
    torch.testing.assert_close(layer(x), layer.value.bias.expand(2, 9, 9, -1))
    assert make(kind)(x[:0]).shape == (0, 9, 9, 4)


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


# Cost


def flops(layer, x, backward):
    with FlopCounterMode(display=False) as counter:
        out = layer(x)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("grid", [(12, 20), (30, 7)])
def test_operations_stay_linear_in_rows_plus_columns(grid):
    """Nobody makes it quadratic again; where probabilities drop out, P is built."""
    (height, width), heads, channels, out = grid, 3, 8, 6
    layer = make("isotropic", heads, channels, out, dropout=0.1)
    x = torch.randn(2, *grid, channels, requires_grad=True)
    pixels = 2 * height * width
    values = 2 * pixels * heads * channels * out
    averages = 2 * pixels * heads * (height + width) * channels
    dense = 2 * pixels * heads * height * width * channels
    layer.eval()
    assert flops(layer, x, backward=False) == values + averages
    assert flops(layer, x, backward=True) == 3 * (values + averages)
    assert flops(layer.train(), x, backward=True) == 3 * (values + dense)


def stored(layer, x):
    """Numbers that each tensor kept for the backward pass holds, by its place in memory."""
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes() // tensor.itemsize
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        layer(x)
    return found.values()


def test_training_in_rows_and_columns_stores_averages_and_no_p():
    layer = make("isotropic", heads=2)
    x = torch.randn(1, 30, 30, 5, requires_grad=True)
    assert max(stored(layer, x)) == 2 * x.numel()  # the averages of two heads; P has 2 * 900**2


@pytest.mark.parametrize("kind", ["isotropic", "full"])
def test_autocast_makes_no_copy_of_p_for_each_image(kind):
    layer = make(kind, dropout=0.1)
    x = torch.randn(20, 9, 10, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert max(stored(layer, x)) < 4 * 3 * 90**2  # of 20 images
