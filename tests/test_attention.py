"""Every layer against an independent float64 reference, gradients against finite differences, and
what holds of each encoding by itself.
"""

import math

import numpy as np
import pytest
import torch

import reference
from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention, layers
from attnconv.attention.mixing import mix_dense

KINDS = ["isotropic", "full", "learned", "content"]


def make(kind, channels=3, out=4, heads=2, size=6, **options):
    if kind in ("isotropic", "full"):
        return QuadraticAttention(channels, out, heads, **{"covariance": kind} | options)
    if kind == "learned":
        return LearnedAttention(channels, out, heads, max_size=size, **options)
    return ContentAttention(channels, out, heads, max_size=size, **{"key_size": 4} | options)


def arrays(layer):
    return {name: value.detach().numpy() for name, value in layer.state_dict().items()}


def reference_scores(kind, layer, x):
    """Scores of one image (H, W, C) by the naive formulas."""
    p, (height, width) = arrays(layer), x.shape[:2]
    if kind in ("isotropic", "full"):
        return reference.quadratic_scores(p["centres"], p["spreads"], height, width)
    if kind == "learned":
        names = ("row_embedding", "column_embedding", "row_scores", "column_scores")
        return reference.learned_scores(*(p[name] for name in names), height, width)
    query, key = ((p[f"{name}.weight"], p[f"{name}.bias"]) for name in ("query", "key"))
    return reference.content_scores(
        x, query, key, p["row_embedding"], p["column_embedding"], layer.heads
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grid", [(3, 5), (5, 4), (1, 1), (1, 6)])
def test_layer_equals_naive_float64_reference(kind, grid):
    layer = make(kind).double()
    x = torch.randn(2, *grid, 3, dtype=torch.float64)
    p = arrays(layer)
    for image, out in zip(x, layer(x), strict=True):
        scores = reference_scores(kind, layer, image.numpy())
        expected = reference.attention(image.numpy(), scores, p["value.weight"], p["value.bias"])
        np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_against_finite_differences(kind):
    layer = make(kind, channels=2, out=2, size=3).double()
    x = torch.randn(2, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def forward(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(forward, (x, *values))


@pytest.mark.parametrize("spread", [10.0, 100.0])
def test_long_thin_heads_cost_no_precision(spread):
    layer = QuadraticAttention(1, 1, 4, covariance="full")
    turn = 2 * math.pi * torch.rand(4)
    turned = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], -1).view(4, 2, 2)
    with torch.no_grad():  # 10 pixels long, 1 / spread thin
        layer.spreads.copy_(turned @ torch.tensor([[spread, 0.0], [0.0, 0.1]]) @ turned.mT)
    p = layer.probabilities(12, 12).detach().numpy()
    scores = reference.quadratic_scores(
        *(value.double().detach().numpy() for value in (layer.centres, layer.spreads)), 12, 12
    )
    for h, i, j in np.ndindex(4, 12, 12):
        np.testing.assert_allclose(
            p[h, i, j], reference.softmax(scores[h, i, j]), atol=2e-6 * spread
        )


def test_precision_is_the_square_of_spreads():
    layer = make("full")
    with torch.no_grad():
        layer.spreads.copy_(torch.randn_like(layer.spreads))  # far from symmetric
    torch.testing.assert_close(layer.precision(), layer.spreads.transpose(1, 2) @ layer.spreads)
    layer = make("isotropic")
    torch.testing.assert_close(layer.precision()[0], layer.spreads[0] ** 2 * torch.eye(2))


def test_no_product_takes_weights_that_change_no_sum(monkeypatch):
    """Those below 1e-38 would take a CPU a hundred times as long."""
    seen = []
    monkeypatch.setattr(layers, "mix_dense", lambda x, p: seen.append(p) or mix_dense(x, p))
    make("full")(torch.rand(1, 16, 16, 3))
    [p] = seen
    assert ((p == 0) | (p > 1e-20)).all() and (p == 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_probability_dropout_is_one_mask_for_the_batch_and_off_in_evaluation(kind):
    layer, plain = make(kind, dropout=0.5).double(), make(kind).double()
    x = torch.randn(4, 4, 3).double().expand(2, 4, 4, 3)
    plain.load_state_dict(layer.state_dict())
    out = layer(x)
    assert not torch.allclose(out, plain(x), atol=1e-4)
    assert torch.allclose(out[0], out[1]) == (kind != "content")
    torch.testing.assert_close(layer.eval()(x), plain(x))


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_input_is_named(kind):
    with pytest.raises(ValueError, match=r"channels last.*\(1, 3, 4, 4\)"):
        make(kind)(torch.randn(1, 3, 4, 4))


@pytest.mark.parametrize("kind", ["learned", "content"])
def test_images_beyond_the_encoding_are_refused(kind):
    with pytest.raises(ValueError, match="max_size >= 9"):
        make(kind, size=6)(torch.randn(1, 9, 4, 3))


@pytest.mark.parametrize(
    ("kind", "options", "cause"),
    [
        ("isotropic", {"covariance": "round"}, "'isotropic', 'full'"),
        ("isotropic", {"centre_start": "disk"}, "'disk' is not one of 'gaussian', 'disc', 'taps'"),
        ("content", {"key_size": 3}, "even"),
    ],
)
def test_choices_that_cannot_be_are_refused(kind, options, cause):
    with pytest.raises(ValueError, match=cause):
        make(kind, **options)


def test_a_full_covariance_has_no_probabilities_along_one_axis():
    with pytest.raises(ValueError, match="does not factor into rows x columns; use probabilities"):
        make("full").axis_probabilities(4, 0)


@pytest.mark.parametrize("heads", [1, 9, 16])
def test_a_start_on_a_disc_has_the_standard_deviation_and_no_two_heads_alike(heads):
    torch.manual_seed(3)
    centres = QuadraticAttention(2, 3, heads, centre_start="disc", centre_std=0.6).centres.detach()
    assert centres.norm(dim=1).max() <= 1.2
    torch.testing.assert_close(centres.square().mean(), torch.tensor(0.36))
    if heads > 1:
        distances = torch.pdist(centres)
        assert distances.min() > 0.6 * 1.2 * (torch.pi / heads) ** 0.5  # a share of the disc each


@pytest.mark.parametrize(("heads", "side"), [(1, 1), (4, 3), (9, 3), (25, 5)])
def test_a_start_on_taps_has_head_h_exactly_on_tap_h(heads, side):
    centres = QuadraticAttention(2, 3, heads, centre_start="taps", centre_std=0.6).centres.detach()
    taps = np.array(list(np.ndindex(side, side))) - side // 2
    np.testing.assert_array_equal(centres, taps[:heads])


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_content_heads_that_start_on_taps_look_as_quadratic_ones_whatever_the_pixels_hold(alpha):
    torch.manual_seed(0)
    layer = ContentAttention(3, 4, heads=9, max_size=7, key_size=6).double()
    layer.start_on_taps(alpha)
    quadratic = QuadraticAttention(3, 4, heads=9, centre_start="taps").double()
    torch.nn.init.constant_(quadratic.spreads, math.sqrt(2 * alpha))
    x = torch.randn(2, 7, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        layer.probabilities(x), quadratic.probabilities(7, 5).expand(2, -1, -1, -1, -1, -1)
    )
    quadratic.value.load_state_dict(layer.value.state_dict())
    torch.testing.assert_close(layer(x), quadratic(x))
    layer(x).square().sum().backward()
    for weight in (
        layer.query.weight,
        layer.row_embedding,
    ):  # content can come in, and centres can move
        assert weight.grad.abs().max() > 1e-6


@pytest.mark.parametrize(
    "away", [(10_000.0, 0.3), (0.3, -10_000.0), (10_000.0, -10_000.0), (2.4, 0.3)]
)
@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_centres_far_off_the_image_cost_no_precision(covariance, away):
    """A part of the scores that is a million times larger must not round the others away."""
    layer = QuadraticAttention(3, 2, heads=2, covariance=covariance)
    with torch.no_grad():
        layer.centres.copy_(torch.tensor([away, (0.4, 0.7)]))
        if covariance == "isotropic":  # far away so wide that it varies
            layer.spreads[0] = 0.01 if max(away) >= 10_000 else 10.0
        if covariance == "full":
            far = [[0.8, 0.0], [0.0, 0.6]] if max(away) < 10_000 else [[3e-3, 1e-3], [0.0, 2e-3]]
            layer.spreads.copy_(torch.tensor([far, [[0.7, 0.2], [0.1, 0.5]]]))
    p = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
    scores = reference.quadratic_scores(p["centres"], p["spreads"], 5, 6)
    found = layer.probabilities(5, 6).detach()
    for h, i, j in np.ndindex(2, 5, 6):
        np.testing.assert_allclose(found[h, i, j], reference.softmax(scores[h, i, j]), atol=1e-6)
    image = torch.randn(1, 5, 6, 3)
    expected = reference.attention(
        image[0].double().numpy(), scores, p["value.weight"], p["value.bias"]
    )
    np.testing.assert_allclose(layer(image)[0].detach(), expected, atol=3e-6)


def test_keys_too_short_for_a_start_on_taps_are_refused():
    with pytest.raises(ValueError, match="key_size = 2 must be at least 4"):
        ContentAttention(4, 4, 9, 8, key_size=2).start_on_taps(2.0)
