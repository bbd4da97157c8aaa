"""Heads whose answer is known: planted shifts, uniform heads, row heads, H != W, one head,
padded heads.
"""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.special import entr

from attnconv import heads
from attnconv.attention import ContentAttention, LearnedAttention, QuadraticAttention
from attnconv.config import ModelConfig, for_images, replace
from attnconv.models import build_attention, build_model
from attnconv.training.data import load_data

H, W, QUERY = 7, 10, (3, 5)


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


def quadratic(centres, spreads, channels=3, out_channels=4):
    """A quadratic layer with these parameters; its covariance is full if the spreads are
    matrices.
    """
    covariance = "full" if np.ndim(spreads) == 3 else "isotropic"
    layer = QuadraticAttention(channels, out_channels, len(spreads), covariance)
    with torch.no_grad():
        layer.centres.copy_(torch.tensor(centres, dtype=torch.float32))
        layer.spreads.copy_(torch.tensor(np.asarray(spreads), dtype=torch.float32))
    return layer


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# --- describe
# -----------------------------------------------------------------------------------------------------


def test_a_description_is_what_its_words_say():
    spread = np.random.default_rng(0).random((5, H, W)) ** 8
    one_tap = planted((0, 0), (-2, 3), (3, -5))
    maps = np.concatenate([one_tap, spread / spread.sum((1, 2), keepdims=True)])
    d = heads.describe(maps, QUERY)
    shifts = np.stack(np.indices((H, W)), -1).reshape(-1, 2) - QUERY
    for head, p in enumerate(maps.reshape(len(maps), -1)):
        np.testing.assert_allclose(d.centre[head], np.average(shifts, axis=0, weights=p))
        np.testing.assert_allclose(
            d.covariance[head], np.cov(shifts.T, aweights=p, ddof=0), atol=1e-12
        )
        np.testing.assert_allclose(d.entropy[head], entr(p).sum())
        np.testing.assert_allclose(d.reach[head], np.average(np.hypot(*shifts.T), weights=p))
        assert d.mass[head] == p[np.abs(shifts - np.rint(d.centre[head])).sum(1).argmin()]
    assert (d.mass[:3] == 1).all() and (d.mass[3:] < maps[3:].max((1, 2))).any()


def test_padded_heads_stay_nan_and_harm_nobody():
    maps = np.concatenate([planted((1, 1)), np.full((1, H, W), np.nan)])
    d = heads.describe(maps, QUERY)
    for name, values in d._asdict().items():
        assert np.isfinite(values[0]).all() and np.isnan(values[1]).all(), name
    assert heads.describe(np.empty((2, 0, H, W)), QUERY).covariance.shape == (2, 0, 2, 2)


@pytest.mark.parametrize("query", [(-1, 0), (7, 0), (0, 10)])
def test_query_outside_the_map_is_refused(query):
    with pytest.raises(ValueError, match="is not a pixel of maps"):
        heads.describe(planted((0, 0)), query)


def test_shift_maps_and_their_border():
    maps = np.arange(2 * H * W, dtype=float).reshape(2, H, W)
    window = heads.shift_maps(maps, QUERY, 2)
    np.testing.assert_array_equal(window, maps[:, 1:6, 3:8])
    corner = heads.shift_maps(maps, (0, W - 1), 3)
    assert (
        corner.shape == (2, 7, 7)
        and np.isnan(corner[:, :3]).all()
        and np.isnan(corner[:, :, 4:]).all()
    )
    np.testing.assert_array_equal(corner[:, 3:, :4], maps[:, :4, -4:])


# --- layers
# -------------------------------------------------------------------------------------------------------


def layers():
    return [
        quadratic([(0.5, -1.5), (9, 9)], [0.7, 1.3]),
        QuadraticAttention(3, 4, 3, "full"),
        LearnedAttention(3, 4, 4, max_size=11),
    ]


def with_content(**options):
    return ContentAttention(3, 4, 2, max_size=11, key_size=6, **options)


@pytest.mark.parametrize("index", range(4))
def test_query_maps_are_the_probabilities(index):
    layer, x = [*layers(), with_content()][index], torch.randn(5, H, W, 3)
    p = layer.probabilities(x) if index == 3 else layer.probabilities(H, W)
    maps = heads.query_maps(layer, (6, 2), H, W, x)
    np.testing.assert_allclose(maps, p[..., 6, 2, :, :].detach(), atol=1e-6)


def test_content_needs_features_of_the_grid():
    for height, features in ((H, None), (6, torch.randn(5, H, W, 3))):
        with pytest.raises(ValueError, match=f"needs features .B, {height}, 10, C"):
            heads.query_maps(with_content(), (5, 2), height, W, features)


def test_geometry_of_layers_of_all_kinds():
    kinds, x = [*layers(), with_content()], torch.randn(5, H, W, 3)
    g = heads.geometry(kinds, H, W, [None, None, None, x])
    middle = (H // 2, W // 2)
    for index, layer in enumerate(kinds):
        maps = heads.query_maps(layer, middle, H, W, x)
        d = heads.describe(maps.mean(0) if layer is kinds[-1] else maps, middle)
        for name in ("centre", "covariance", "mass", "entropy", "reach"):
            assert g[name].dtype == np.float32
            np.testing.assert_allclose(
                g[name][index, : layer.heads], getattr(d, name), atol=2e-5, err_msg=name
            )
            assert np.isnan(g[name][index, layer.heads :]).all()
    np.testing.assert_array_equal(g["parameter_centre"][0, :2], kinds[0].centres.detach())
    np.testing.assert_array_equal(g["precision"][1, :3], kinds[1].precision().detach())
    assert np.isnan(g["parameter_centre"][2:]).all() and np.isnan(g["precision"][2:]).all()


def test_geometry_leaves_the_layers_as_they_were():
    content, x = with_content(dropout=0.5), torch.randn(2, H, W, 3)
    content.train()
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in content.state_dict().items()}
    first, second = (heads.geometry([content], H, W, [x]) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state()) and content.training
    assert all(torch.equal(v, state[k]) for k, v in content.state_dict().items())
    assert all(p.grad is None for p in content.parameters())
    np.testing.assert_array_equal(
        first["centre"], second["centre"]
    )  # no dropout in what is described
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(
            first["centre"], heads.geometry([content], H, W, [x])["centre"]
        )


def test_a_network_is_measured_without_dropout():
    config = ModelConfig(
        layers=2, heads=2, hidden=8, mlp=8, key_size=4, kind="learned_content", dropout=0.5
    )
    data = load_data("embedded").first(10, 20)
    model = build_model(for_images(config, data.image_size, data.image_channels, 10)).train()
    first, second = (heads.network_geometry(model, data) for _ in range(2))
    np.testing.assert_array_equal(first["centre"], second["centre"])


# --- degenerate heads
# ---------------------------------------------------------------------------------------------


def test_degenerate_by_the_rule():
    isotropic = quadratic(
        np.zeros((4, 2)), [1.0, 3.1e-3, -3.2e-3, 0.0]
    )  # spread^2: 1, 9.6e-6, 1.02e-5, 0
    np.testing.assert_array_equal(heads.degenerate(isotropic), [False, True, False, True])
    axes = [(1, 1), (990**0.5, 1), (1010**0.5, 1), (3e-3, 3e-3), (np.nan, 1)]
    full = quadratic(
        np.zeros((6, 2)), [*map(np.diag, axes), np.ones((2, 2))]
    )  # the last is singular
    np.testing.assert_array_equal(heads.degenerate(full), [False, False, True, True, True, True])


@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_prune_keeps_the_other_heads_exactly(covariance):
    layer = QuadraticAttention(3, 4, 5, covariance, dropout=0.1).eval()
    with torch.no_grad():
        layer.spreads[[0, 3]] = 0
    x = torch.randn(2, H, W, 3)
    pruned = copy.deepcopy(layer)
    assert heads.prune(pruned) == [1, 2, 4]
    assert (
        pruned.heads == 3
        and pruned.value.in_features == 9
        and not pruned.training
        and pruned.dropout == 0.1
    )
    torch.testing.assert_close(
        pruned.probabilities(H, W), layer.probabilities(H, W)[[1, 2, 4]], rtol=0, atol=0
    )
    with torch.no_grad():  # silence the dropped heads: then nothing may change
        layer.value.weight[:, :3] = 0
        layer.value.weight[:, 9:12] = 0
        torch.testing.assert_close(pruned(x), layer(x))
    assert set(pruned.state_dict()) == set(layer.state_dict())
    pruned(x).sum().backward()
    assert pruned.centres.grad.shape == (3, 2) and layer.centres.grad is None


def test_prune_nothing_and_everything():
    layer, x = quadratic(np.zeros((2, 2)), [1.0, 2.0]), torch.randn(2, H, W, 3)
    whole, empty = layer(x), quadratic(np.zeros((2, 2)), [0.0, 0.0])
    assert heads.prune(layer) == [0, 1] and heads.prune(empty) == [] and empty.heads == 0
    torch.testing.assert_close(layer(x), whole, rtol=0, atol=0)
    assert heads.geometry([empty], H, W)["centre"].shape == (1, 0, 2)
    assert heads.geometry([empty, layer], H, W)["centre"].shape == (2, 2, 2)
    assert len(heads.degenerate(empty)) == 0


# --- heads together
# -----------------------------------------------------------------------------------------------

GRID = np.array([(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)], dtype=float)


def test_a_tap_is_covered_by_a_sharp_head_near_it():
    order = np.random.default_rng(0).permutation(9)
    assert heads.kernel_cells(np.ones(9), GRID[order] + 0.4, 3).all()
    wide = heads.kernel_cells(np.ones(9), 2 * GRID, 3)  # dilated: only the middle is in place
    assert wide.sum() == 1 and wide[1, 1]
    mass = np.where(np.arange(9) == 2, 0.45, 0.55)  # the head of the third tap is no tap
    assert np.argwhere(~heads.kernel_cells(mass, GRID, 3)).tolist() == [[0, 2]]


def test_covered_taps_batched_padded_and_empty():
    centres = np.full((3, 9, 2), np.nan)
    centres[0], centres[1, :4] = GRID, 0  # all four heads on the query: one tap
    mass = np.where(np.isnan(centres[..., 0]), np.nan, 1)
    assert heads.kernel_cells(mass, centres, 3).sum((1, 2)).tolist() == [9, 1, 0]
    assert heads.kernel_cells(np.empty((0, 9)), np.empty((0, 9, 2)), 3).shape == (0, 3, 3)


@pytest.mark.parametrize("first", [(-2, -2), (-2, -1), (-1, -2), (-1, -1)])
def test_an_even_kernel_is_taken_wherever_the_query_is(first):
    grid = np.stack(
        np.meshgrid(*(np.arange(start, start + 4) for start in first), indexing="ij"), -1
    ).reshape(-1, 2)
    found = heads.kernel_cells(
        np.ones((2, 16)), [grid[::-1], grid + 3], 4
    )  # the other has one corner in place
    assert found[0].all() and found[1].sum() < 5


# --- moving queries, content
# --------------------------------------------------------------------------------------


def test_positional_heads_are_consistent_also_at_the_borders():
    for layer in layers():
        np.testing.assert_allclose(
            heads.translation_consistency(layer.probabilities(H, W).detach()), 1, atol=1e-5
        )
    # A planted shift keeps to it wherever it can; wrapped to the far side its mass leaves the
    # common window.
    np.testing.assert_array_equal(
        heads.translation_consistency(planted_probabilities((0, 0), (1, -2))), 1
    )


def test_a_head_that_stares_at_one_pixel_is_not_consistent():
    p = np.zeros((1, H, W, H, W))
    p[..., 3, 4] = 1
    assert heads.translation_consistency(p) == 0
    half = 0.5 * p + 0.5 * planted_probabilities((0, 0))
    assert 0.4 < heads.translation_consistency(half)[0] < 0.75


def test_agreement_with_other_images_takes_their_map_at_the_middle():
    here, other = planted_probabilities((0, 0), (1, 0)), planted_probabilities((0, 0), (0, 1))
    np.testing.assert_array_equal(heads.translation_consistency(here, other), [1, 0])


def test_score_shares_split_the_score_in_three():
    layer, x = with_content().double(), torch.randn(5, 4, 5, 3, dtype=torch.float64)
    content, position = (
        part.detach().numpy() for part in layer.score_parts(x)
    )  # (B, h, H, W, H, W)
    fixed = (
        layer.query(x).mean((0, 1, 2)).detach().unflatten(0, (layer.heads, -1))
    )  # each head's mean query
    rows, columns = (
        embedding.detach() for embedding in (layer.row_embedding, layer.column_embedding)
    )
    same = np.empty(position.shape[1:])
    half = layer.key_size // 2
    for i, j, row, column in np.ndindex(position.shape[2:]):
        at = rows[row - i + layer.max_size - 1], columns[column - j + layer.max_size - 1]
        same[:, i, j, row, column] = (
            fixed[:, :half] @ at[0] + fixed[:, half:] @ at[1]
        ) / layer.key_size**0.5
    parts = [np.broadcast_to(same, position.shape), position - same, content]
    parts = [part - part.mean((-2, -1), keepdims=True) for part in parts]
    total = sum(parts)
    expected = [
        (part * total).mean((0, 2, 3, 4, 5)) / (total**2).mean((0, 2, 3, 4, 5)) for part in parts
    ]
    shares = heads.score_shares(layer, x)
    np.testing.assert_allclose(shares, expected, rtol=1e-6)
    np.testing.assert_allclose(shares.sum(0), 1)
    with torch.no_grad():
        layer.query.weight.zero_()  # queries that do not look: the same for all, unless keys differ
    np.testing.assert_allclose(heads.score_shares(layer, x)[1], 0, atol=1e-9)
    with torch.no_grad():
        layer.query.bias.zero_()
    assert np.isnan(heads.score_shares(layer, x)).all()  # the scores are constant: nothing to share


def test_a_tap_has_its_mass_on_a_pixel_that_exists() -> None:
    mass = [0.9, 0.51, heads.TAP_MASS, 0.9, 0.9, math.nan]
    centre = [[0, 0], [2.4, -2.4], [0, 0], [2.6, 0], [0, -3.6], [math.nan, math.nan]]
    assert heads.taps(mass, centre, (5, 7)).tolist() == [True, True, False, False, False, False]
    # A Gaussian head whose centre has left the image looks at the edge with all its mass: no tap.
    layer = QuadraticAttention(1, 1, 1)
    with torch.no_grad():
        layer.centres.copy_(torch.tensor([[9.0, 0.0]]))
        layer.spreads.fill_(10.0)
    edge = heads.describe(heads.query_maps(layer, (2, 3), 5, 7), (2, 3))
    assert (
        edge.mass.item() > 0.99
        and not heads.taps(edge.mass, layer.centres.detach().numpy(), (5, 7)).any()
    )


@pytest.mark.parametrize(("kernel", "heads_a_layer"), [(3, 9), (4, 16)])
@pytest.mark.parametrize(("start", "std"), [("disc", 0.6), ("gaussian", 0.6), ("gaussian", 2.0)])
def test_taps_by_chance_are_those_of_fresh_layers_whose_heads_snap(
    kernel, heads_a_layer, start, std
):
    config = ModelConfig(heads=heads_a_layer, centre_start=start, centre_std=std)
    state = torch.get_rng_state()
    counts = heads.taps_by_chance(config, kernel)
    assert counts.shape == (20_000,) and torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(counts, heads.taps_by_chance(config, kernel))
    assert (counts[:200] != heads.taps_by_chance(config, kernel, 200, seed=1)).any()

    small = replace(config, {"hidden": 1, "layers": 1})
    centres = np.stack(
        [build_attention(small, heads_a_layer).centres.detach().numpy() for _ in range(1000)]
    )
    fresh = heads.kernel_cells(np.ones(centres.shape[:2]), centres, kernel).sum((1, 2))
    shares = [np.bincount(some, minlength=kernel**2 + 1) / len(some) for some in (counts, fresh)]
    assert (
        np.abs(np.cumsum(shares[0]) - np.cumsum(shares[1])).max() < 1.63 / 1000**0.5
    )  # Kolmogorov-Smirnov, 1%


@pytest.mark.parametrize(
    ("heads_a_layer", "kernel", "covered"), [(9, 3, 9), (9, 5, 9), (25, 3, 9), (9, 2, 4)]
)
def test_heads_that_start_on_taps_cover_theirs_and_chance_has_no_say(
    heads_a_layer, kernel, covered
):
    config = ModelConfig(heads=heads_a_layer, centre_start="taps", layers=1, hidden=1)
    centres = build_attention(config, heads_a_layer).centres.detach().numpy()
    assert heads.kernel_cells(np.ones(heads_a_layer), centres, kernel).sum() == covered
    assert heads.taps_by_chance(config, kernel, 5).tolist() == [covered] * 5


def test_content_layers_with_different_heads_are_measured_and_the_mode_is_left_alone():
    data = load_data("embedded").first(20, 20)
    sizes = {
        "hidden": 8,
        "mlp": 8,
        "key_size": 4,
        "image_size": (28, 28),
        "image_channels": 1,
        "downsampling": 4,
    }
    net = build_model(ModelConfig(kind="learned_content", layers=2, heads=(3, 2), **sizes)).train()
    found = heads.measure_attention(net, data)
    heads.network_geometry(net, data)
    assert all(module.training for module in net.modules())
    assert found["mean"].shape[:3] == (4, 2, 3)
    for maps in (found["mean"], found["single"]):
        assert np.isnan(maps[..., 1, 2, :, :]).all() and not np.isnan(maps[..., 1, :2, :, :]).any()
    for numbers in (found["shares"], found["halves"]):
        assert np.isnan(numbers[:, 1, 2]).all() and np.isfinite(numbers[:, 1, :2]).all()
