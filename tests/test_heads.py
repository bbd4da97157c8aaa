"""Heads whose answer is known: planted shifts, uniform heads, row heads, H != W, one head,
padded heads.
"""

import copy
import math

import numpy as np
import pytest
import torch

from attnconv import heads
from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention
from attnconv.config import ModelConfig, replace
from attnconv.models import build_attention, build_model

H, W, QUERY = 7, 10, (3, 5)
NAN = math.nan


def planted(*shifts):
    """One-hot maps (h, H, W) at QUERY, one for each shift."""
    maps = np.zeros((len(shifts), H, W))
    for head, (row, column) in enumerate(shifts):
        maps[head, QUERY[0] + row, QUERY[1] + column] = 1
    return maps


def planted_probabilities(*shifts):
    """P (h, H, W, H, W) of heads that look at a shift, wrapping at the borders."""
    p = np.zeros((len(shifts), H, W, H, W))
    for head, (row, column) in enumerate(shifts):
        for i, j in np.ndindex(H, W):
            p[head, i, j, (i + row) % H, (j + column) % W] = 1
    return p


def quadratic(spreads, centres=0.0):
    """A quadratic layer with these parameters; its covariance is full if the spreads are
    matrices.
    """
    layer = QuadraticAttention(3, 4, len(spreads), "full" if np.ndim(spreads) == 3 else "isotropic")
    with torch.no_grad():
        layer.centres.copy_(torch.as_tensor(centres))
        layer.spreads.copy_(torch.as_tensor(np.asarray(spreads)))
    return layer


def with_content(**options):
    return ContentAttention(3, 4, 2, max_size=11, key_size=6, **options)


def layers():
    """One of each kind, of 2, 3, 4 and 2 heads; the last has content."""
    return [
        quadratic([0.7, 1.3], [(0.5, -1.5), (9, 9)]),
        QuadraticAttention(3, 4, 3, "full"),
        LearnedAttention(3, 4, 4, max_size=11),
        with_content(),
    ]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# --- one query


def test_a_description_is_what_its_words_say():
    p = np.random.default_rng(0).random((H, W)) ** 2
    p /= p.sum()
    found = heads.describe([p, *planted((-2, 3), (3, -5)), np.full((H, W), NAN)], QUERY)
    shifts = np.argwhere(p >= 0) - QUERY
    distance = np.hypot(*shifts.T)
    np.testing.assert_allclose(found.centre[0], p.ravel() @ shifts)
    np.testing.assert_allclose(found.covariance[0], np.cov(shifts.T, aweights=p.ravel(), ddof=0))
    np.testing.assert_allclose(found.reach, [p.ravel() @ distance, 13**0.5, 34**0.5, NAN])
    row, column = np.rint(found.centre[0]).astype(int) + QUERY
    np.testing.assert_array_equal(found.mass, [p[row, column], 1, 1, NAN])
    assert p[row, column] < p.max()
    assert np.isnan(found.centre[3]).all() and np.isnan(found.covariance[3]).all()


@pytest.mark.parametrize("query", [(-1, 0), (7, 0), (0, 10)])
def test_what_lies_outside_or_does_not_fit_is_refused(query):
    with pytest.raises(ValueError, match="is not a pixel of a 7 x 10 grid"):
        heads.describe(planted((0, 0)), query)
    with pytest.raises(ValueError, match="is not a pixel of a 7 x 10 grid"):
        heads.query_maps(quadratic([1.0]), query, H, W)
    for features in (None, torch.randn(5, H, W - 1, 3)):
        with pytest.raises(ValueError, match="needs features .B, 7, 10, C"):
            heads.query_maps(with_content(), QUERY, H, W, features)


def test_shift_maps_and_their_border():
    maps = np.arange(2 * H * W, dtype=float).reshape(2, H, W)
    np.testing.assert_array_equal(heads.shift_maps(maps, QUERY, 2), maps[:, 1:6, 3:8])
    corner = heads.shift_maps(maps, (0, W - 1), 3)
    expected = np.full((2, 7, 7), NAN)
    expected[:, 3:, :4] = maps[:, :4, -4:]
    np.testing.assert_array_equal(corner, expected)


# --- layers


@pytest.mark.parametrize("index", range(4))
def test_query_maps_are_the_probabilities(index):
    layer, x = layers()[index], torch.randn(5, H, W, 3)
    p = layer.probabilities(x) if index == 3 else layer.probabilities(H, W)
    maps = heads.query_maps(layer, (6, 2), H, W, x)
    np.testing.assert_allclose(maps, p[..., 6, 2, :, :].detach(), atol=1e-6)


def test_geometry_of_layers_of_all_kinds():
    kinds, x = layers(), torch.randn(5, H, W, 3)
    found = heads.geometry(kinds, H, W, [None, None, None, x])
    middle = (H // 2, W // 2)
    for index, layer in enumerate(kinds):
        maps = heads.query_maps(layer, middle, H, W, x)
        described = heads.describe(maps.mean(0) if index == 3 else maps, middle)
        for name, values in described._asdict().items():
            own, padding = np.split(found[name][index], [layer.heads])
            np.testing.assert_allclose(own, values, atol=2e-5, err_msg=name)
            assert np.isnan(padding).all()
    centres, precision = found["parameter_centre"], found["precision"]
    np.testing.assert_array_equal(centres[0, :2], kinds[0].centres.detach())
    np.testing.assert_array_equal(precision[1, :3], kinds[1].precision().detach())
    assert np.isnan(centres[2:]).all() and np.isnan(precision[2:]).all()
    own = kinds[1].value.weight.detach().double().unflatten(1, (3, -1))  # (D, h, C)
    products = torch.einsum("dhc,dgc->hg", own, own)
    np.testing.assert_allclose(found["products"][1, :3, :3], products, rtol=1e-5)
    assert np.isnan(found["products"][1, 3:]).all() and np.isnan(found["products"][2:]).all()


def content_net():
    """A network with content, of three heads and two, with dropout, in training mode."""
    sizes = {"hidden": 8, "mlp": 8, "key_size": 4, "image_size": (28, 28), "image_channels": 1}
    config = ModelConfig(
        kind="learned_content", layers=2, heads=(3, 2), downsampling=4, dropout=0.5, **sizes
    )
    return build_model(config).train()


def test_measuring_leaves_a_network_as_it_was_and_knows_no_dropout_or_autocast():
    net, images = content_net(), torch.randn(20, 1, 28, 28)
    found = [heads.network_geometry(net, images)["centre"] for _ in range(2)]
    features = net.layer_inputs(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(heads.geometry(net.attention_layers, 7, 7, features)["centre"])
    np.testing.assert_array_equal(found[1:], found[:2])
    assert all(module.training for module in net.modules())


def test_attention_of_content_layers_with_different_heads():
    net, images = content_net(), torch.randn(20, 1, 28, 28)
    found = heads.measure_attention(net, images, np.arange(20))
    assert found["pixels"].tolist() == [0, 7]  # there is no 23
    layer, x = net.attention_layers[1], net.layer_inputs(images)[1]
    for number, query in enumerate(found["queries"].tolist()):
        maps = heads.query_maps(layer, query, 7, 7, x)
        np.testing.assert_allclose(found["mean"][number, 1, :2], maps.mean(0), atol=1e-3)
        np.testing.assert_allclose(found["single"][1, number, 1, :2], maps[7], atol=1e-3)
    first, second = (layer.probabilities(half).mean(0).detach() for half in x.tensor_split(2))
    moved = heads.translation_consistency(first.numpy(), second.numpy())
    np.testing.assert_allclose(found["halves"][0, 1, :2], moved, rtol=1e-5)
    for numbers in (found["mean"][..., 0, 0], found["shares"], found["halves"]):
        assert np.isnan(numbers[:, 1, 2]).all() and np.isfinite(numbers[:, 1, :2]).all()


# --- degenerate heads


def test_degenerate_by_the_rule():
    isotropic = quadratic([1.0, 3.1e-3, -3.2e-3, 0.0])  # spread^2: 1, 9.6e-6, 1.02e-5, 0
    assert heads.degenerate(isotropic).tolist() == [False, True, False, True]
    axes = [(4e-3, 3e-3), (990**0.5, 1), (1010**0.5, 1), (3e-3, 3e-3), (NAN, 1)]
    full = quadratic([*map(np.diag, axes), np.ones((2, 2))])  # the last is singular
    assert heads.degenerate(full).tolist() == [False, False, True, True, True, True]
    assert heads.degenerate(quadratic([1.0, 1.0], [[0, NAN], [0, 0]])).tolist() == [True, False]


@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_prune_keeps_the_other_heads_exactly(covariance):
    layer = QuadraticAttention(3, 4, 5, covariance).eval()
    with torch.no_grad():
        layer.spreads[[0, 3]] = 0
    pruned = copy.deepcopy(layer)
    heads.prune(pruned)
    assert (pruned.heads, pruned.value.in_features) == (3, 9)
    stayed = layer.probabilities(H, W)[[1, 2, 4]]
    torch.testing.assert_close(pruned.probabilities(H, W), stayed, rtol=0, atol=0)
    with torch.no_grad():  # silence the dropped heads: then nothing may change
        layer.value.weight[:, :3] = 0
        layer.value.weight[:, 9:12] = 0
    x = torch.randn(2, H, W, 3)
    torch.testing.assert_close(pruned(x), layer(x))
    pruned(x).sum().backward()
    assert pruned.centres.grad.shape == (3, 2)


def test_prune_nothing_and_everything():
    whole, empty = quadratic([1.0, 2.0]).requires_grad_(False), quadratic([0.0, 0.0])
    heads.prune(whole)
    assert not any(kept.requires_grad for kept in whole.parameters())
    heads.prune(empty)
    assert (whole.heads, empty.heads, len(heads.degenerate(empty))) == (2, 0, 0)
    assert heads.geometry([empty], H, W)["centre"].shape == (1, 0, 2)
    assert heads.geometry([empty, whole], H, W)["centre"].shape == (2, 2, 2)


# --- heads together

GRID = np.array([(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)], dtype=float)


def test_a_tap_is_covered_by_a_sharp_head_near_it():
    order = np.random.default_rng(0).permutation(9)
    assert heads.kernel_cells(np.ones(9), GRID[order] + 0.4, 3).all()
    # Dilated: only the middle is in place.
    assert np.argwhere(heads.kernel_cells(np.ones(9), 2 * GRID, 3)).tolist() == [[1, 1]]
    mass = np.where(np.arange(9) == 2, 0.45, 0.55)  # the head of the third tap is no tap
    assert np.argwhere(~heads.kernel_cells(mass, GRID, 3)).tolist() == [[0, 2]]


def test_covered_taps_batched_and_padded():
    centres = np.full((3, 9, 2), NAN)
    centres[0], centres[1, :4] = GRID, 0  # all four heads on the query: one tap
    mass = np.where(np.isnan(centres[..., 0]), NAN, 1)
    assert heads.kernel_cells(mass, centres, 3).sum((1, 2)).tolist() == [9, 1, 0]


@pytest.mark.parametrize(("kernel", "count"), [(3, 9), (4, 16)])
@pytest.mark.parametrize(("start", "std"), [("disc", 0.6), ("gaussian", 0.6), ("gaussian", 2.0)])
def test_taps_by_chance_are_those_of_fresh_layers_whose_heads_snap(kernel, count, start, std):
    config = ModelConfig(heads=count, centre_start=start, centre_std=std)
    state = torch.get_rng_state()
    chance = heads.taps_by_chance(config, kernel)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(chance, heads.taps_by_chance(config, kernel))
    small = replace(config, {"hidden": 1, "layers": 1})
    centres = [build_attention(small, count).centres.detach().numpy() for _ in range(1000)]
    fresh = heads.kernel_cells(np.ones((1000, count)), centres, kernel).sum((1, 2))
    pixels = np.arange(kernel**2 + 1)[:, None]
    apart = (chance <= pixels).mean(1) - (fresh <= pixels).mean(1)
    assert abs(apart).max() < 1.63 / 1000**0.5  # Kolmogorov-Smirnov, at 1%


@pytest.mark.parametrize(
    ("count", "kernel", "covered"), [(9, 3, 9), (9, 5, 9), (25, 3, 9), (9, 2, 4)]
)
def test_heads_that_start_on_taps_cover_theirs_and_chance_has_no_say(count, kernel, covered):
    config = ModelConfig(heads=count, centre_start="taps", layers=1, hidden=1)
    centres = build_attention(config, count).centres.detach().numpy()
    assert heads.kernel_cells(np.ones(count), centres, kernel).sum() == covered
    assert heads.taps_by_chance(config, kernel, 5).tolist() == [covered] * 5


# --- moving queries, content


def test_heads_that_keep_their_shift_are_consistent_also_at_the_borders():
    for layer in layers()[:3]:
        p = layer.probabilities(H, W).detach().numpy()
        np.testing.assert_allclose(heads.translation_consistency(p), 1, atol=1e-5)
    # Wrapped to the far side, a planted head's mass leaves the common window.
    planted_heads = planted_probabilities((0, 0), (1, -2))
    np.testing.assert_array_equal(heads.translation_consistency(planted_heads), 1)


def test_heads_that_stare_at_one_pixel_or_agree_with_no_other_are_not_consistent():
    p = np.zeros((1, H, W, H, W))
    p[..., 3, 4] = 1
    assert heads.translation_consistency(p) == 0
    half = 0.5 * p + 0.5 * planted_probabilities((0, 0))
    assert 0.4 < heads.translation_consistency(half)[0] < 0.75
    # One pixel: nothing to compare.
    assert np.isnan(heads.translation_consistency(np.ones((1, 1, 1, 1, 1)))).all()
    here, other = planted_probabilities((0, 0), (1, 0)), planted_probabilities((0, 0), (0, 1))
    assert heads.translation_consistency(here, other).tolist() == [1, 0]


def test_score_shares_split_the_score_in_three():
    layer, x = with_content().double(), torch.randn(5, 4, 5, 3, dtype=torch.float64)
    mean_query = layer.query(x).mean((0, 1, 2)).unflatten(0, (2, 6))
    r = layer.row_embedding.new_zeros(4, 5, 4, 5, 6)
    for i, j, row, column in np.ndindex(4, 5, 4, 5):
        r[i, j, row, column, :3] = layer.row_embedding[row - i + 10]
        r[i, j, row, column, 3:] = layer.column_embedding[column - j + 10]
    fixed = (r @ mean_query.T).movedim(-1, 0) / 6**0.5  # (h, H, W, H, W)
    content, position = layer.score_parts(x)
    parts = torch.stack([fixed.expand_as(position), position - fixed, content]).detach().numpy()
    parts -= parts.mean((-2, -1), keepdims=True)
    covariance = (parts * parts.sum(0)).mean((1, 3, 4, 5, 6))
    shares = heads.score_shares(layer, x)
    np.testing.assert_allclose(shares, covariance / covariance.sum(0), rtol=1e-6)
    np.testing.assert_allclose(shares.sum(0), 1)
    with torch.no_grad():
        layer.query.weight.zero_()
        layer.query.bias.zero_()
    assert np.isnan(heads.score_shares(layer, x)).all()  # the scores are constant: nothing to share
