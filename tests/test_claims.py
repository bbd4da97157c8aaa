"""Verdicts: each follows from its number, both ways; what is recorded, shown and read back; the
board.
"""

import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from attnconv import heads
from attnconv.attention import QuadraticAttention
from attnconv.config import REPOSITORY, ModelConfig, TrainConfig, replace
from attnconv.training.runs import Run
from companion import statistics, verdicts
from companion.claims import SENTENCES, SIGNS, Claim, Claims, board, recorded

GRID, QUERY, IMAGES = (16, 16), (8, 8), 4000
HOLDS, IN_PART, DOES_NOT, OPEN = SIGNS
SIXTEEN = np.array([[2, 2]] * 16)


def run_of(heads=None, attention=None, swaps=None, seed=0, kind="quadratic", count=9, **more):
    """What verdicts read of a finished run on 16 x 16 pixels."""
    made = Run(Path(f"{kind}-seed{seed}"))
    model = ModelConfig(kind=kind, image_size=(32, 32), downsampling=2, layers=6, heads=count)
    train = TrainConfig(seed=seed, optimizer="muon", epochs=more.pop("epochs", 10))
    kept = {"heads": heads or {}, "attention": attention or {}, "swaps": swaps or {}}
    more["config"] = {"preset": kind}
    vars(made).update(kept, model=model, train=train, **more)
    return made


def gaussian_heads(centres, start=None, spread=5.0, mass=1.0):
    """heads.npz of quadratic heads with these centres (L, h, 2), before training at ``start``."""
    centres = np.asarray(centres, dtype=float)
    both = np.stack([centres if start is None else np.asarray(start, dtype=float), centres])
    precision = np.broadcast_to(spread**2 * np.eye(2), (*both.shape, 2))
    found = {"mass": np.full(both.shape[:-1], mass), "reach": np.linalg.norm(both, axis=-1)}
    return {"parameter_centre": both, "centre": both, "precision": precision} | found


def nine(step=1.0):
    rows, columns = np.mgrid[-1:2, -1:2]
    return step * np.stack([rows, columns], -1).reshape(9, 2)


def on_pixels(count):
    """Nine heads that share so many pixels of the 3 x 3."""
    return nine()[np.minimum(np.arange(9), count - 1)]


def swaps(lost, before=0.9, after=0.3, sizes=(1, 3, 5, 7), layers=6):
    """Convolutions of these sizes in one layer's place: points lost (S,), or (L, S)."""
    lost = np.broadcast_to(lost, (layers, len(sizes)))
    right = np.arange(IMAGES) < (0.9 - lost[..., None] / 100) * IMAGES
    error = np.stack([np.broadcast_to(one, lost.shape) for one in (before, after)])
    whole = np.arange(IMAGES) < 0.9 * IMAGES
    return {"sizes": np.array(sizes), "whole": whole, "alone": right, "error": error}


# --- signs


@pytest.mark.parametrize(
    ("gaps", "doubts", "sign", "words"),
    [
        ([2.0, 2.0, 2.8], 0.4, HOLDS, "+2.3 points on average, the same sign in 3 of 3 seeds"),
        ([-2.0, -2.0], 0.4, DOES_NOT, "−2 points on average, the same sign in 2 of 2 seeds"),
        ([2.0, -0.5, 2.0], 0.4, OPEN, "+1.2 points on average, the same sign in 2 of 3 seeds"),
        ([-2.0, -0.3], 0.4, OPEN, "−1.1 points on average, the same sign in 2 of 2 seeds"),
        ([-0.15], 0.0, DOES_NOT, "−0.15 points"),
    ],
)
def test_differences_are_judged_seed_by_seed(gaps, doubts, sign, words):
    assert verdicts.directed(pd.Series(gaps), doubts) == sign
    assert verdicts.in_seeds(pd.Series(gaps), "points") == words


def test_a_sign_follows_from_a_number_and_its_limits():
    found = [verdicts.graded(value, 5, 4) for value in (6, 5, 4.9, 4, 3.9)]
    assert found == [HOLDS, HOLDS, IN_PART, IN_PART, DOES_NOT]
    assert verdicts.directed(pd.Series([], dtype=float)) == OPEN


ALPHAS, FORMULA = [1, 10, 104], [0.5, 1e-4, 0]


@pytest.mark.parametrize(
    ("claim", "given", "sign"),
    [
        ("theorem", [1e-7], HOLDS),
        ("theorem", [1e-3], DOES_NOT),
        ("borders", [1e-7, 0.5, 1e-7], HOLDS),
        ("borders", [1e-7, 0.5, 0.5], DOES_NOT),
        ("borders", [0.5, 0.5, 1e-7], DOES_NOT),
        ("borders", [1e-7, 1e-7, 1e-7], DOES_NOT),
        ("flops", [6.23e9, 6.5e9, 9.01e9], HOLDS),
        ("flops", [9e9, 9e9, 9e9], DOES_NOT),
        ("three_numbers", [ALPHAS, FORMULA, FORMULA], HOLDS),
        ("three_numbers", [ALPHAS, [0.5, 2e-4, 0], FORMULA], DOES_NOT),
        ("three_numbers", [ALPHAS[:2], FORMULA[:2], FORMULA[:2]], DOES_NOT),
    ],
)
def test_arithmetic_claims(claim, given, sign):
    assert getattr(verdicts, claim)(*given)[0] == sign


# --- Gaussian heads


@pytest.mark.parametrize(
    ("count", "sign"), [(9, HOLDS), (8, HOLDS), (7, IN_PART), (5, IN_PART), (4, DOES_NOT)]
)
def test_a_grid_is_eight_pixels_that_have_a_sharp_head_and_five_are_a_part(count, sign):
    layers = [on_pixels(count), *[on_pixels(1)] * 5]
    found, number, table = verdicts.grid([run_of(gaussian_heads(layers, start=[nine(3)] * 6))])
    assert found == sign and f"in {int(count > 4)} of 6 layers (0." in number
    assert table["layer 1"].tolist() == [count, 1]  # and the start's, made sharp
    assert verdicts.grid([run_of(gaussian_heads(layers, mass=0.5))])[0] == DOES_NOT


def test_of_several_networks_each_decides_and_others_only_stand_in_the_table():
    eight, five = (run_of(gaussian_heads([on_pixels(n)] * 6), seed=n) for n in (8, 5))
    sign, number, _ = verdicts.grid([eight, five])
    assert sign == IN_PART and "in 12 of 12 layers" in number
    sign, _, table = verdicts.grid([eight], [five])
    assert sign == HOLDS and table["network"].nunique() == 2


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("hidden 400", {}),
        ("hidden 400, from taps", {"centre_start": "taps"}),
        ("hidden 400, a CNN", {"kernels": [3] * 6}),
        ("hidden 400", {"kind": "learned", "centre_start": "disc"}),  # has no centres
    ],
)
def test_networks_are_named(words, change):
    run = run_of()
    vars(run)["model"] = replace(run.model, change)
    assert statistics.named(run).endswith(words)


@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_attention_by_shift_is_that_of_the_layer(covariance):
    layer = QuadraticAttention(4, 4, heads=5, covariance=covariance)
    maps = heads.query_maps(layer, (15, 15), 31, 31)  # the middle: it sees every shift there is
    centres, precision = layer.centres.detach().numpy(), layer.precision().detach().numpy()
    run = run_of({"parameter_centre": centres[None, None], "precision": precision[None, None]})
    np.testing.assert_allclose(statistics._gaussians(run)[0, 0], maps, atol=1e-5)


def test_local_heads_have_most_of_their_attention_nearby():
    far = nine(4)

    def found(first, second, **more):
        run = run_of(gaussian_heads([first, second, *[far] * 4], start=[far] * 6, **more))
        return verdicts.local([run])

    some = np.where(np.arange(9)[:, None] < 5, 9, nine())  # five of nine look away
    words = "9 and 9 of 9 heads in layers 1 and 2 (1 and 1 before training)"
    assert found(nine(), nine())[:2] == (HOLDS, words)
    assert found(nine(), some)[0] == IN_PART and found(some, far)[0] == DOES_NOT
    assert found(nine(), nine(), spread=0.3)[0] == DOES_NOT  # they are too wide
    two = np.stack([nine()] * 6)
    two[0, 2:] = np.nan  # layer 1 has two heads
    sign, number, _ = verdicts.local([run_of(gaussian_heads(two), count=[2, *[9] * 5])])
    assert sign == HOLDS and number.startswith("2 and 9 of 2 and 9 heads in")


@pytest.mark.parametrize(
    ("deep", "start", "sign"),
    [
        ([1, 1, 4, 4], 1, HOLDS),
        ([1, 1, 1, 4], 1, IN_PART),
        ([1, 1, 1.6, 1.6], 1, DOES_NOT),  # less than a pixel farther
        ([1, 1, 1.8, 1.8], 1, HOLDS),
        ([1, 1, 4, 4], 4, DOES_NOT),  # as many before training
    ],
)
def test_deeper_layers_have_heads_that_look_farther(deep, start, sign):
    centres = [nine(), nine(), *(nine(step) for step in deep)]
    began = [nine(), nine(), nine(), nine(), nine(start), nine(start)]
    assert verdicts.farther([run_of(gaussian_heads(centres, start=began))])[0] == sign
    wide = gaussian_heads(centres, start=began)
    wide["precision"] = wide["precision"].copy()
    wide["precision"][:, 2:] = 1e-4  # deeper heads are wider than the image: they look nowhere
    assert verdicts.farther([run_of(wide)])[0] == DOES_NOT
    assert verdicts.farther([run_of(gaussian_heads(centres[:2]))])[0] == OPEN


def test_heads_that_overlap_leave_less_attention():
    def found(after, start):
        run = run_of(gaussian_heads([after] * 6, start=[start] * 6, spread=2))
        return verdicts.apart([run])[:2]

    pairs = np.repeat([[-3, 0], [3, 0]], [5, 4], axis=0)  # two places for nine heads
    words = "100% of the attention does not overlap (22% before training)"
    assert found(nine(5), pairs) == (HOLDS, words)
    assert found(on_pixels(7) * 5, pairs)[0] == IN_PART
    assert found(pairs, nine(5))[0] == DOES_NOT


# --- layers as convolutions


@pytest.mark.parametrize(
    ("lost", "before", "after", "smallest", "learned"),
    [
        ([80, 0, 0, 0], 0.9, 0.3, 3, True),
        ([80, 9, 9, 0], 0.9, 0.3, 7, True),
        ([80, 30, 30, 30], 0.9, 0.3, 0, False),
        ([80, 9, 9, 0.9], 0.9, 0.3, 0, False),  # not surely less than a point
        ([0, 0, 0, 0], 0.9, 0.3, 0, False),  # a 1 x 1 does as well
        ([80, 0, 0, 0], 0.4, 0.3, 3, True),  # a quarter nearer
        ([80, 0, 0, 0], 0.4, 0.31, 3, False),
        ([80, 0, 0, 0], np.nan, 0.3, 3, False),  # the start is not known
        ([80, 9, 9, 0], [1, 1, 1, 0.1, 1], [0.3, 0.3, 0.3, 0.2, 0.3], 7, False),  # as a 7 x 7
    ],
)
def test_a_layer_learned_to_be_a_small_convolution(lost, before, after, smallest, learned):
    # A 9 x 9 is not small, whatever it costs.
    run = run_of(swaps=swaps([*lost, 0], before, after, (1, 3, 5, 7, 9)))
    assert (statistics.smallest(run) == smallest).all()
    assert (statistics.learned(run) == learned).all()


def test_layers_are_counted_by_encoding():
    one = swaps([[80, 0, 0, 0]] + [[80, 30, 30, 30]] * 5)
    three = swaps([[80, 0, 0, 0]] * 3 + [[80, 30, 30, 30]] * 3)
    none = swaps([80, 30, 30, 30])
    runs = [run_of(swaps=three), run_of(swaps=three, seed=1), run_of(swaps=one, kind="learned")]
    words = "6 of 12 layers (Gaussian heads), 1 of 6 (learned)"
    assert verdicts.learns_convolution(runs)[:2] == (IN_PART, words)
    assert verdicts.learns_convolution(runs[:2])[0] == HOLDS
    sign, _, table = verdicts.learns_convolution([run_of(swaps=none)], runs[:1])
    assert sign == DOES_NOT
    lost = table[table["what"] == "points lost by a 7 × 7"]["layer 6"]
    assert lost.tolist() == pytest.approx([30, 30], abs=0.1)
    assert verdicts.learns_convolution([])[0] == OPEN
    few = run_of(swaps=swaps([80, 0, 0], sizes=(1, 3, 5), layers=2), kind="learned_content")
    vars(few)["model"] = replace(few.model, {"layers": 2})
    assert verdicts.learns_convolution([*runs, few])[1] == words + ", 2 of 2 (content)"


def test_sixteen_heads_are_local_and_long_range():
    near = gaussian_heads([SIXTEEN] * 6, start=[4 * SIXTEEN] * 6)
    far = gaussian_heads([SIXTEEN] * 5 + [4 * SIXTEEN])
    small, large = swaps([80, 0, 0, 0]), swaps([80] * 4)
    cases = [(far, small, HOLDS), (near, small, IN_PART), (near, large, DOES_NOT)]
    for geometry, found, sign in cases:
        assert verdicts.sixteen([run_of(geometry, swaps=found, count=16)])[0] == sign


# --- learned heads


def maps_at(shifts):
    """Maps (L, h, H, W) with all attention at these shifts from the query (L, h, 2)."""
    shifts = np.asarray(shifts, dtype=int)
    maps = np.zeros((*shifts.shape[:-1], *GRID))
    for index in np.ndindex(shifts.shape[:-1]):
        maps[(*index, *(shifts[index] + QUERY))] = 1
    return maps


def learned_run(maps, reach=(5, 7), seed=0):
    found = {"reach": np.stack([np.full((6, 9), value) for value in reach])}
    attention = {"queries": np.array([QUERY]), "mean": np.asarray(maps)[None]}
    return run_of(found, attention, seed=seed, kind="learned")


def test_single_pixels_lie_around_the_query_one_for_each_head():
    even = np.full((6, 9, *GRID), 1 / 256)
    near, same, away = even.copy(), even.copy(), even.copy()
    near[0], same[0], away[:] = maps_at([nine()]), maps_at([[[0, 1]] * 9]), maps_at([[[0, 7]] * 9])
    assert verdicts.single_pixels([learned_run(near)])[:2] == (HOLDS, "9 of 54 heads")
    assert verdicts.single_pixels([learned_run(same)])[0] == IN_PART
    for none in (away, even):
        assert verdicts.single_pixels([learned_run(none)])[0] == DOES_NOT
    assert verdicts.single_pixels([learned_run(near), learned_run(even, seed=1)])[0] == DOES_NOT


def test_symmetry_is_left_right_more_than_up_down():
    sides = (maps_at([[[2, -6]] * 9] * 6) + maps_at([[[2, 6]] * 9] * 6)) / 2
    sign, number, _ = verdicts.symmetric([learned_run(sides)])
    assert sign == HOLDS and number == "correlation 1.00 left-right, -0.07 up-down"
    few = sides.copy()
    few[:, 3:] = np.nan  # of fewer heads
    assert verdicts.symmetric([learned_run(few)])[:2] == (sign, number)
    turned = sides.swapaxes(2, 3)
    assert verdicts.symmetric([learned_run(turned)])[0] == IN_PART  # some look far all the same
    assert verdicts.symmetric([learned_run(sides, reach=(7, 5))])[0] == IN_PART
    assert verdicts.symmetric([learned_run(turned, reach=(7, 5))])[0] == DOES_NOT
    local = learned_run(maps_at([nine()] * 6))
    assert np.isnan(statistics.mirrored(local, 1)).all()  # no head to judge
    assert verdicts.symmetric([local])[:2] == (IN_PART, "correlation — left-right, — up-down")


def followed(shifts, queries=((8, 8), (6, 7), (9, 10)), moved=0.8):
    """What heads with a peak at these shifts (Q, L, h, 2) attend to; some is spread evenly."""
    maps = np.full((*np.shape(shifts)[:3], *GRID), 0.3 / 256)
    for index in np.ndindex(maps.shape[:3]):
        maps[(*index, *(np.array(queries[index[0]]) + shifts[index]))] += 0.7
    halves = np.stack([np.full(maps.shape[1:3], moved), np.full(maps.shape[1:3], 0.85)])
    return {"queries": np.array(queries), "mean": maps, "halves": halves}


def test_a_constant_shift_is_a_peak_that_follows_the_query():
    shifts = np.broadcast_to(nine().astype(int), (3, 6, 9, 2)).copy()

    def sign(seen):
        return verdicts.constant_shift([run_of(attention=seen, kind="learned_content")])[0]

    assert sign(followed(shifts)) == HOLDS
    wandering = shifts.copy()
    wandering[1] += (0, 1)
    assert sign(followed(wandering)) == DOES_NOT
    wandering[:, 2] = shifts[:, 2]  # layer 3 alone is not layers 2 and 3
    assert sign(followed(wandering)) == IN_PART
    bars = followed(shifts)
    columns = bars["mean"].mean(-2, keepdims=True)  # columns, more than pixels
    assert sign(bars | {"mean": 0.9 * columns + 0.1 * bars["mean"]}) == DOES_NOT
    assert sign(followed(shifts, moved=0.7)) == DOES_NOT  # patterns change with the query


def test_of_one_layer_nothing_is_said_of_the_second():
    one = run_of(attention=followed(np.zeros((3, 1, 9, 2), int)))
    vars(one)["model"] = replace(one.model, {"layers": 1})
    for claim in (verdicts.local, verdicts.constant_shift):
        assert claim([one])[0] == OPEN
    vars(one)["model"] = replace(one.model, {"layers": 2})
    assert verdicts.constant_shift([one])[0] == OPEN


@pytest.mark.parametrize(("more", "sign"), [(0.2, HOLDS), (-0.2, DOES_NOT)])
def test_other_heads_use_content_more(more, sign):
    shifts = np.broadcast_to(nine().astype(int), (3, 6, 9, 2)).copy()
    shifts[1, :, 4:] += (0, 1)  # the last five heads do not follow
    content = 0.3 + np.arange(6)[:, None] / 20 + more * (np.arange(9) >= 4)
    content[0, 8] = np.nan  # layer 1 has a head fewer
    seen = followed(shifts) | {"shares": np.stack([1 - content, content, 0 * content])}
    found, number, table = verdicts.content_use([run_of(attention=seen, kind="learned_content")])
    assert found == sign and table.notna().all(axis=None)
    assert number.startswith(f"{100 * more:+.0f} per".replace("-", "−"))


# --- accuracy


def trained(accuracy, seed=0, epochs=10, loss=1.0, count=9):
    """A run with so many right answers to 4,000 test images."""
    lines = [{"train_loss": loss, "test_accuracy": accuracy}] * epochs
    right = np.arange(IMAGES) < accuracy * IMAGES
    return run_of(kind="learned", seed=seed, epochs=epochs, count=count, metrics=lines, right=right)


def seeds(*accuracies, **more):
    return [trained(accuracy, seed, **more) for seed, accuracy in enumerate(accuracies)]


def test_accuracies_are_compared_seed_by_seed():
    low, high = seeds(0.80, 0.84), seeds(0.82, 0.87)
    words = "−2.5 points on average, the same sign in 2 of 2 seeds"
    assert verdicts.content_lower(low, high)[:2] == (HOLDS, words)
    assert verdicts.quadratic_ahead(high, low)[0] == DOES_NOT
    assert verdicts.content_lower(low, high[::-1])[0] == HOLDS  # pairs by seed, whatever the order
    assert verdicts.content_lower(seeds(0.8, 0.9), seeds(0.82, 0.87))[0] == OPEN
    assert verdicts.content_lower(low, seeds(0.8005, 0.8405))[0] == OPEN  # by two images
    assert verdicts.content_lower(low, seeds(0.82, 0.87, epochs=20))[0] == OPEN
    assert verdicts.content_lower(low, [trained(0.9, seed=7)])[0] == OPEN  # no pair


def test_a_model_may_lie_behind_by_its_margin_and_no_more():
    for behind, sign in ((0.003, HOLDS), (0.017, DOES_NOT), (0.0095, OPEN)):
        assert verdicts.matches_resnet(seeds(0.9 - behind), seeds(0.9))[0] == sign
    whole, control = seeds(0.85), seeds(0.86, epochs=3)
    for accuracy, sign in ((0.855, HOLDS), (0.84, DOES_NOT)):
        cut = seeds(accuracy, epochs=3, count=7)
        assert verdicts.pruned(cut, whole, control)[0] == sign
    assert "without 12 of 54 heads" in verdicts.pruned(cut, whole, control)[1]
    assert verdicts.pruned(control, whole, control)[0] == OPEN  # nothing was dropped
    assert verdicts.pruned(cut, whole, [])[0] == OPEN


def test_harder_to_train_is_said_of_the_training_loss():
    def sign(*losses):
        content = [trained(0.9, seed, loss=loss) for seed, loss in enumerate(losses)]
        return verdicts.content_harder(content, seeds(0.8, 0.8))[0]

    assert sign(1.1, 1.02) == HOLDS and sign(0.9, 0.98) == DOES_NOT and sign(1.1, 0.98) == OPEN


def test_ours():
    more = run_of(gaussian_heads([nine()] * 6, start=[nine(3)] * 6))
    assert verdicts.more_than_snapping([more])[:2] == (HOLDS, "+8 taps a layer")
    fewer = run_of(gaussian_heads([nine(3)] * 6, start=[nine()] * 6))
    assert verdicts.more_than_snapping([fewer], [more])[0] == DOES_NOT
    pairs = {"2,000 images": (seeds(0.6), seeds(0.7))}
    sign, number, table = verdicts.convolution_start(seeds(0.5), seeds(0.4), pairs)
    assert (sign, number, len(table)) == (HOLDS, "+10 points", 2)


# --- what is recorded


def test_every_claim_has_a_function_and_a_notebook_that_calls_it_and_draws_its_picture():
    for key, sentence in SENTENCES.items():
        name = key.replace("-", "_")
        assert callable(getattr(verdicts, name)) and sentence.decides.startswith("holds")
        [notebook] = (REPOSITORY / "notebooks").glob(f"{sentence.figure[:2]}_*.ipynb")
        cells = nbformat.read(notebook, as_version=4).cells
        code = "".join(cell.source for cell in cells if cell.cell_type == "code")
        assert f"claims.{name}(" in code, f"{notebook.name} does not check {key}"
        drawn = re.findall(r'"(\d\d-[^"{]+)', code)  # what an f-string fills in may be anything
        assert any(sentence.figure.startswith(name) for name in drawn), sentence.figure


def test_a_claim_is_recorded_shown_and_read_back(tmp_path):
    made = Claims(tmp_path / "tables" / "04-claims.json")
    geometry = gaussian_heads([nine()] * 6)
    runs = [run_of(geometry, seed=seed) for seed in (0, 1)]
    card = made.grid(runs, [run_of(geometry, seed=2)])
    assert (card.sign, card.networks, len(card.table)) == (HOLDS, 2, 6)
    for said in (f"✔ {card.number}", SENTENCES["grid"].text, "that decide: 2.", "hidden 400"):
        assert said in card._repr_html_()
    card = made.grid(runs[:1])  # again: the last one counts
    assert recorded(tmp_path) == {"grid": card} and "decide: 1." in card.html()
    with pytest.raises(AttributeError, match="no claim 'gird': theorem, .*grid"):
        made.gird(runs)
    made.record(Claim("gird", HOLDS, "1"))  # of a claim that is no more
    assert [*recorded(tmp_path)] == ["grid"]


def test_the_board_says_what_was_found_of_each_claim_of_the_paper(tmp_path):
    made = Claims(tmp_path / "tables" / "04-claims.json")
    made.record(Claim("grid", IN_PART, "4 of 9 pixels"))
    made.record(Claim("more-than-snapping", HOLDS, "1"))  # ours
    table = board(tmp_path).set_index("The paper says")
    texts = [sentence.text for sentence in SENTENCES.values() if sentence.section]
    assert table.index.tolist() == texts
    row = ["4.2, figure 3", "◐", "4 of 9 pixels", "04"]
    assert table.loc[SENTENCES["grid"].text].tolist() == row
    assert table.loc[SENTENCES["local"].text, "Found"] == "—"
