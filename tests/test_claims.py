"""Verdicts: each follows its evidence, both ways; what is recorded, shown and read back; the
scoreboard.
"""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnconv import heads
from attnconv.attention import QuadraticAttention
from attnconv.config import ModelConfig, TrainConfig
from attnconv.training.runs import find_runs
from companion import verdicts
from companion.claims import PAPER_CLAIMS, SENTENCES, Claim, Claims, board, read_claims, recorded
from companion.evidence import gaussians, mirrored

ROOT = Path(__file__).parents[1]
GRID, QUERY = (16, 16), (8, 8)
IMAGES = 4000


def run_of(heads=None, attention=None, swaps=None, seed=0, **model):
    model = (
        ModelConfig(
            kind="quadratic", image_size=(32, 32), downsampling=2, layers=6, heads=9
        ).model_dump()
        | model
    )
    kept = {"heads": heads or {}, "attention": attention or {}, "swaps": swaps or {}}
    return SimpleNamespace(
        **kept, model=ModelConfig(**model), train=SimpleNamespace(seed=seed), title="SA"
    )


def swaps(lost, error_before, error_after, put_back=None, images=IMAGES):
    """Convolutions of sides 1, 3, 5, 7 in one layer's place: points lost (L, 4), relative errors
    (L, 4).

    ``put_back`` (2, L, 4): those with centres or spreads as they began; else training did all by
    both."""
    whole = np.arange(images) < 0.9 * images
    alone = np.stack(
        [[np.arange(images) < (0.9 - points / 100) * images for points in row] for row in lost]
    )
    error = np.array([error_before, error_after], dtype=float)
    put_back = error[[0, 0]] if put_back is None else np.array(put_back)
    return dict(
        sizes=np.array([1, 3, 5, 7]), whole=whole, alone=alone, error=error, put_back=put_back
    )


GRIDS = swaps([[80, 0, 0, 0]] * 6, np.full((6, 4), 0.9), np.full((6, 4), 0.3))
"""All layers became 3 x 3 convolutions, by all that training did."""


def gaussian_heads(centres, spread=5.0, start=None):
    """heads.npz of quadratic heads with these centres (L, h, 2), before training at ``start``."""
    centres = np.asarray(centres, dtype=float)
    both = np.stack([centres if start is None else np.asarray(start, dtype=float), centres])
    spread = np.reshape(spread, (-1, 1, 1, 1))  # one, or one a layer
    precision = np.broadcast_to(spread**2 * np.eye(2), (*both.shape, 2))
    reach = np.linalg.norm(both, axis=-1)
    found = dict(mass=np.ones(reach.shape), entropy=np.log(256) * (precision[..., 0, 0] < 0.01))
    return dict(parameter_centre=both, centre=both, precision=precision, reach=reach) | found


def nine(step=1):
    return np.stack(np.meshgrid(*[step * np.arange(-1, 2)] * 2, indexing="ij"), -1).reshape(9, 2)


def maps_at(shifts):
    """Maps (L, h, H, W) with all attention at these shifts from the query (L, h, 2)."""
    shifts = np.asarray(shifts)
    maps = np.zeros((*shifts.shape[:-1], *GRID))
    for index in np.ndindex(shifts.shape[:-1]):
        maps[(*index, *(shifts[index] + QUERY))] = 1
    return maps


def attention(maps, **more):
    return dict(queries=np.array([QUERY]), mean=maps[None], **more)


# --- verdicts, each both ways


@pytest.mark.parametrize(
    ("lost", "before", "after", "holds"),
    [
        ([80, 0, 0, 0], 0.9, 0.3, True),
        ([80, 0, 0, 0], 0.1, 0.3, None),  # it began as a convolution: this run cannot tell
        ([80, 0, 0, 0], 0.5, 0.37, True),  # a quarter nearer
        ([80, 0, 0, 0], 0.5, 0.38, None),  # it is nearer to one than before, but not by a quarter
        ([80, 30, 30, 30], 0.9, 0.3, False),
        ([80, 1, 1, 1], 0.9, 0.3, None),  # within the noise of a point
        ([80, 30, 30, 0], 0.9, 0.3, True),  # 7 x 7, as the pictures of the paper show
        ([0, 0, 0, 0], 0.9, 0.3, False),  # the layer does not matter: a 1 x 1 does as well
    ],
)
def test_a_grid_is_a_layer_that_became_a_small_convolution(lost, before, after, holds):
    one = swaps([lost] * 6, np.full((6, 4), before), np.full((6, 4), after))
    run = run_of(gaussian_heads([nine()] * 6, start=[nine(3)] * 6), swaps=one)
    found, evidence, where = verdicts.grid(run)
    assert found is holds and where == ("in layer 1, 2, 3, 4, 5, 6 of 6" if holds else "")
    assert any(
        "mean distance that these heads moved, in pixels: 2.1, 2.1" in line for line in evidence
    )
    assert verdicts.grid(run_of(run.heads))[0] is None  # not measured


def test_a_grid_is_owed_to_the_ways_of_its_heads():
    centres, spreads = np.full((6, 4), 0.3), np.full((6, 4), 0.7)
    heads, layers = gaussian_heads([nine()] * 6, start=[nine(3)] * 6), "1, 2, 3, 4, 5, 6"

    def check(*others):
        put_back = centres, spreads
        one = swaps([[80, 0, 0, 0]] * 6, np.full((6, 4), 0.9), np.full((6, 4), 0.3), put_back)
        return verdicts.grid(
            run_of(heads, swaps=one), *(run_of(other, swaps=one, seed=3) for other in others)
        )

    centres[:, 1] = 0.59  # as 3 x 3, which decides
    assert check()[0] is None  # it would be more than half of the way to one without them
    centres[:, 1] = 0.61
    found, evidence, where = check()
    assert found is True and where == f"in layer {layers} of 6"
    words = (
        "0.90 before training, 0.30 after, 0.61 with centres put back, 0.70 with sharpness put "
        "back. Made by moving"
    )
    assert f"; layer 6 as 3 × 3: {words}: layer 1, 2, 3, 4, 5, 6" in evidence[0]
    assert (
        "sharp head: 9, 9, 9, 9, 9, 9 in layers 1 to 6 (if sharp were over 40%, 9, 9, 9, 9, 9, 9; "
        "over" in evidence[0]
    )
    assert "); five or more, on all sides: layer 1, 2, 3, 4, 5, 6. Layers with" in evidence[0]
    assert (
        "over half of their attention on a pixel: 9, 9, 9, 9, 9, 9 of 9 in layers 1 to 6"
        in evidence[-3]
    )
    assert evidence[-1].startswith(
        "by chance, of 6 layers so snapped, one or more has 9 pixels or more: p = "
    )
    one = GRIDS
    at_home = run_of(gaussian_heads([nine()] * 6, start=[0.9 * nine()] * 6), swaps=one)
    first = gaussian_heads(
        [nine()] + [0 * nine()] * 5, start=[nine(3)] * 6
    )  # a grid in its first layer only
    found, evidence, where = check(first)
    assert found is True and where == f"in layer {layers} of 6; seed 3 in layer 1 of 6"
    assert evidence[-1].startswith(
        "seed 3 holds, in layer 1 of 6; pixels of the 3 × 3 around the query that have"
    )
    assert evidence[-1].endswith(f": layer 1 as 3 × 3: {words}: layer 1")
    found, evidence, _ = verdicts.grid(at_home)  # snapping alone gives as many pixels
    assert found is None and evidence[-2].endswith("made sharp on its nearest: 9, 9, 9, 9, 9, 9")
    assert (
        evidence[-1]
        == "by chance, of 6 layers so snapped, one or more has 9 pixels or more: p = 0.00"
    )


def test_the_smallest_kernel_that_fits_says_whether_a_layer_became_one():
    before, after = np.full((6, 4), 0.08), np.full((6, 4), 0.2)
    before[:, 3], after[:, 3] = 1e-3, 1e-4  # next to nothing, and yet less than half of it
    heads = gaussian_heads([nine()] * 6, start=[nine(3)] * 6)
    assert verdicts.grid(run_of(heads, swaps=swaps([[80, 0, 0, 0]] * 6, before, after)))[0] is None
    assert verdicts.grid(run_of(heads, swaps=swaps([[80, 9, 9, 0]] * 6, before, after)))[0] is True


@pytest.mark.parametrize("turned", [False, True])
def test_a_grid_that_is_not_all_around_the_query_is_one_in_part(turned):
    half = np.repeat(nine()[:6], [2, 2, 2, 1, 1, 1], axis=0)  # rows -1 and 0
    half = half[:, ::-1] if turned else half
    one = GRIDS
    layers = [half] * 2 + [nine()] * 4
    found, evidence, where = verdicts.grid(
        run_of(gaussian_heads(layers[:2] * 3, start=[nine(3)] * 6), swaps=one)
    )
    assert (
        found is True
        and where == "in part: in layer 1, 2, 3, 4, 5, 6 of 6, not on all sides of the query"
    )
    assert "five or more, on all sides: layer none" in evidence[0]
    found, _, where = verdicts.grid(run_of(gaussian_heads(layers, start=[nine(3)] * 6), swaps=one))
    assert found is True and where == "in layer 3, 4, 5, 6 of 6"


def test_a_grid_needs_heads_on_pixels_of_their_own():
    one = GRIDS
    pairs = np.repeat(nine()[:4], [3, 2, 2, 2], axis=0)  # four pixels for nine heads
    assert verdicts.grid(run_of(gaussian_heads([pairs] * 6), swaps=one))[0] is False
    plus = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])
    five, four = np.repeat(plus, [1, 2, 2, 2, 2], axis=0), np.repeat(plus[1:], [3, 2, 2, 2], axis=0)
    found, _, where = verdicts.grid(
        run_of(gaussian_heads([five] * 6, start=[nine(3)] * 6), swaps=one)
    )
    assert found is True and where == "in layer 1, 2, 3, 4, 5, 6 of 6"
    assert (
        verdicts.grid(run_of(gaussian_heads([four] * 6, start=[nine(3)] * 6), swaps=one))[0]
        is False
    )
    soft = gaussian_heads([nine()] * 6)
    soft["mass"] = 0.45 * soft["mass"]
    found, evidence, _ = verdicts.grid(run_of(soft, swaps=one))
    assert (
        found is False
        and "(if sharp were over 40%, 9, 9, 9, 9, 9, 9; over 60%, 0, 0, 0, 0, 0, 0)" in evidence[0]
    )


def test_a_convolution_of_nine_by_nine_is_not_small():
    one = swaps([[80, 30, 30, 30, 0]] * 6, np.full((6, 5), 0.9), np.full((6, 5), 0.3))
    run = run_of(
        gaussian_heads([nine()] * 6, start=[nine(3)] * 6),
        swaps=one | {"sizes": np.array([1, 3, 5, 7, 9])},
    )
    found, evidence, _ = verdicts.grid(run)
    assert found is False and not any("9 × 9" in line for line in evidence)
    assert verdicts.learns_convolution([run])[0] is False and verdicts.free_start(run)[0] is False


def test_a_larger_grid_is_shown_as_a_small_kernel_too():
    """What moving did depends on the kernel's size, so the card has both."""
    before, after = np.full((6, 4), 0.9), np.full((6, 4), 0.3)
    after[:, 1] = 0.6
    one = swaps([[80, 9, 0, 0]] * 6, before, after)  # the 5 × 5 decides
    _, evidence, _ = verdicts.grid(
        run_of(gaussian_heads([nine()] * 6, start=[nine(3)] * 6), swaps=one)
    )
    for size, after in ((3, "0.60"), (5, "0.30")):
        assert f"; layer 6 as {size} × {size}: 0.90 before training, {after} after, " in evidence[0]


def test_first_heads_are_local():
    near, far, heads = nine(), nine(4), ([nine(4)] * 4)

    def found(*layers, start=far, **more):
        return verdicts.local(run_of(gaussian_heads([*layers, *heads], start=[start] * 6, **more)))

    holds, evidence, _ = found(near, near)
    assert (
        holds is True
        and "9, 9, 1, 1, 1, 1 of 9 in layers 1 to 6; before training 1, 1, 1, 1, 1, 1"
        in evidence[0]
    )
    assert (
        found(near, far)[0] is False and found(near, near, spread=0.3)[0] is False
    )  # far, or wide
    some = np.where(np.arange(9)[:, None] < 6, 3.2 * near, near)  # five of nine are not close
    assert found(some, near)[0] is False
    assert found(np.full((9, 2), np.nan), near)[0] is None
    evidence = found(near, near, spread=[0.45, 0.55, 5, 5, 5, 5])[1][0]
    assert ": 5, 9, 1, 1, 1, 1 of 9" in evidence
    assert evidence.endswith("; now over 40%: 9, 9, 1, 1, 1, 1; 60%: 0, 5, 1, 1, 1, 1")
    assert found(near, near, start=near)[::2] == (True, "from the start in layer 1, 2")
    assert found(near, far, start=near)[::2] == (False, "")
    assert (
        "evenly over the image: 0, 9, 9, 9, 9, 9 in"
        in found(near, near, spread=[9, *[0.01] * 5])[1][1]
    )
    layers = {4: [near, near, *heads], 7: [near, far, *heads]}  # by seed
    runs = [
        run_of(gaussian_heads(centres, start=[far] * 6), seed=seed)
        for seed, centres in layers.items()
    ]
    holds, evidence, where = verdicts.local(*runs)
    assert holds is None and evidence[-1] == "seeds differ: seed 4 holds"
    assert where == "holds in 1 of 2 networks, fails in 1"
    assert (
        evidence[-2].startswith("seed 7 does not hold; heads with over half")
        and ": 9, 1, 1," in evidence[-2]
    )
    began = [
        run_of(gaussian_heads([near, near, *heads], start=[near, far] * 3))
    ] * 2  # one of the two layers so
    assert verdicts.local(*began)[::2] == (True, "from the start in layer 1")
    assert (
        verdicts.local(began[0], runs[0])[2] == "from the start in layer 1; seed 4 not"
    )  # a word for each
    assert (
        verdicts.local(runs[0], runs[0])[0] is True and verdicts.local(runs[1], runs[1])[0] is False
    )


@pytest.mark.parametrize(
    ("found", "first", "where"),
    [
        ([True, False], "holds", "holds in 1 of 2 networks, fails in 1"),
        ([False, None, False], "does not hold", "holds in none of 3 networks, fails in 2"),
        ([None, True], "is undecided", "holds in 1 of 2 networks"),
        (
            ["in part: a", "in part: b", False],
            "holds, in part: a",
            "holds in part in 2 of 3 networks, fails in 1",
        ),
        (["in part: a", "all", False], "holds, in part: a", "holds in 2 of 3 networks, fails in 1"),
    ],
)
def test_seeds_that_differ_are_counted(found, first, where):
    runs = [run_of(None, seed=4 + number) for number in range(len(found))]

    def check(run):
        one = found[run.train.seed - 4]
        return (True, ["a line"], one) if isinstance(one, str) else (one, ["a line"], "")

    holds, evidence, counted = verdicts.of_every_seed(check)(*runs)
    assert holds is None and counted == where and evidence[-1] == f"seeds differ: seed 4 {first}"


def test_deeper_heads_look_farther():
    near, far = nine(), nine(4)

    def found(*layers, start=(near,) * 6):
        return verdicts.farther(run_of(gaussian_heads(layers, start=start)))

    assert found(near, near, near, near, far, far)[0] is True
    assert found(near, near, near, near, near, far)[0] is None  # one layer of four
    for step, holds in ((1.64, False), (1.75, True)):  # 0.9 pixels farther, and 1.06
        assert found(near, near, near, near, nine(step), nine(step))[0] is holds
    assert found(near, far, near, near, far, far)[0] is False
    verdict, evidence, _ = found(
        near, near, near, near, far, far, start=[near, near, far, far, near, near]
    )
    assert verdict is None and "2 of 4; before training 2" in evidence[1]  # the start had as many
    wide = gaussian_heads([near, near, near, near, far, far], start=[near] * 6)
    wide["parameter_centre"] = wide["parameter_centre"].copy()
    wide["parameter_centre"][-1, 1, 0] = (
        0,
        9,
    )  # of a flat head, which looks nowhere: its mean shift is near
    assert verdicts.farther(run_of(wide))[0] is True
    none = gaussian_heads([np.full((9, 2), np.nan)] * 2 + [far] * 4)
    assert (
        verdicts.farther(run_of(none))[0] is None
        and verdicts.farther(run_of(gaussian_heads([near] * 2)))[0] is None
    )


def test_arranged_heads_beat_the_same_heads_drawn_anew(monkeypatch):
    monkeypatch.setattr(verdicts, "DRAWS", 60)
    by_lot = np.rint(
        2 * np.random.default_rng(1).normal(size=(20, 2, 9, 2))
    )  # sharp heads, on pixels
    grids = [nine(2)] * 6
    scattered = 3 * by_lot[0, [0] * 6]
    found, evidence, _ = verdicts.apart_by_lot(
        run_of(gaussian_heads([nine()] * 6, spread=3, start=scattered))
    )
    assert found is True and "; p = 0.016" in evidence[0]  # one of 61 at the least, never 0
    sharp = gaussian_heads(
        grids, spread=3, start=scattered
    )  # drawn anew they are put on pixels, which overlaps less
    leads = [
        verdicts.apart_by_lot(run_of(sharp | {"mass": mass}))[1][0]
        for mass in (sharp["mass"], 0 * sharp["mass"])
    ]
    assert "98.6 against 91.7" in leads[0] and "98.6 against 88." in leads[1]
    assert verdicts.apart(run_of(gaussian_heads(grids, spread=2)))[0::2] == (None, "")
    assert (
        verdicts.apart_by_lot(run_of(gaussian_heads(grids, spread=2)))[0] is None
    )  # the start led as much
    pairs = np.repeat([[-2, 0], [2, 0]], [5, 4], axis=0)  # on two pixels only
    found, evidence, _ = verdicts.apart_by_lot(
        run_of(gaussian_heads([pairs] * 6, spread=2, start=grids))
    )
    assert found is False and "22%, 22%" in evidence[1] and "before training 86%" in evidence[1]
    small = [
        run_of(gaussian_heads(centres, spread=2, start=by_lot[0]), image_size=(16, 16))
        for centres in by_lot
    ]
    found = [verdicts.apart_by_lot(run)[0] for run in small]
    assert found.count(True) <= 3  # one in twenty
    bare = np.concatenate([grids[:5], np.full((1, 9, 2), np.nan)])
    start = [*np.tile(3 * by_lot[0, :1], (5, 1, 1)), bare[5]]
    found, evidence, _ = verdicts.apart_by_lot(run_of(gaussian_heads(bare, spread=2, start=start)))
    assert found is True and "in layers 1, 2, 3, 4, 5;" in evidence[1]
    assert verdicts.apart_by_lot(run_of(gaussian_heads(bare[5:])))[0] is None


@pytest.mark.parametrize("covariance", ["isotropic", "full"])
def test_attention_by_shift_is_that_of_the_layer(covariance):
    layer = QuadraticAttention(4, 4, heads=5, covariance=covariance).double()
    maps = heads.query_maps(
        layer, (4, 6), 9, 13
    )  # the middle: it sees every shift that a 5 x 7 image has
    found = gaussians(layer.centres.detach().numpy(), layer.precision().detach().numpy(), (5, 7))
    np.testing.assert_allclose(found, maps, atol=1e-6)


def test_sixteen_heads_are_local_and_long_range():
    pairs = np.tile(nine()[:, None], (1, 2, 1)).reshape(18, 2)[:16]
    local, both = [pairs] * 6, [pairs] * 5 + [pairs * 6]
    fine = swaps([[80, 9, 0, 0]] * 6, np.full((6, 4), 0.9), np.full((6, 4), 0.3))
    lossy = swaps([[80, 9, 9, 9]] * 6, np.full((6, 4), 0.9), np.full((6, 4), 0.3))
    found, evidence, where = verdicts.sixteen(run_of(gaussian_heads(both, start=local), swaps=fine))
    assert (
        found is True
        and where == ""
        and "0, 0, 0, 0, 0, 14 of 16 in layers 1 to 6; before training 0, 0, 0, 0, 0, 0"
        in evidence[0]
    )
    assert (
        verdicts.sixteen(run_of(gaussian_heads(both), swaps=fine))[0] is None
    )  # the start had them, too
    assert verdicts.sixteen(run_of(gaussian_heads(local), swaps=fine))[0] is False
    assert verdicts.sixteen(run_of(gaussian_heads(both, start=local), swaps=lossy))[0] is False
    assert verdicts.sixteen(run_of(gaussian_heads(both, start=local)))[0] is None
    near = swaps([[80, 9, 0, 0]] * 6, np.full((6, 4), 0.1), np.full((6, 4), 0.3))
    found = verdicts.sixteen(run_of(gaussian_heads(both, start=local), swaps=near))
    assert found[::2] == (
        True,
        "local layers began near to convolutions",
    )  # it is said of the trained network


def test_single_pixels_must_lie_around_the_query():
    spread = np.full((3, 9, *GRID), 1 / 256)
    near, lot, same, away = (spread.copy() for _ in range(4))
    near[0] = maps_at([nine()])[0]
    lot[0] = maps_at([nine(4)])[0]  # but for one, just outside the 7 x 7
    same[0] = maps_at([[[0, 1]] * 9])[0]
    away[:] = maps_at([[[0, 7]] * 9] * 3)
    assert verdicts.single_pixels(run_of(attention=attention(near)))[0] is True
    found, evidence, _ = verdicts.single_pixels(run_of(attention=attention(lot)))
    assert found is None and "together 1 of 9; at random p = 0.85" in evidence[3]
    assert verdicts.single_pixels(run_of(attention=attention(same)))[0] is None  # all on one pixel
    assert (
        verdicts.single_pixels(run_of(attention=attention(away)))[0] is False
    )  # far fewer than at random
    assert verdicts.single_pixels(run_of(attention=attention(spread)))[0] is False
    both = [run_of(attention=attention(maps), seed=seed) for seed, maps in enumerate([near, away])]
    found, evidence, where = verdicts.single_pixels(*both)
    assert found is None and where == "holds in 1 of 2 networks, fails in 1"
    assert evidence[-2].startswith(
        "seed 1 does not hold; heads with over half of their attention on one pixel: 9, 9,"
    )


def test_symmetry_is_left_right_and_the_control_up_down():
    sides = (
        maps_at([[[2, -6]] * 9] * 6) + maps_at([[[2, 6]] * 9] * 6)
    ) / 2  # two lobes, left and right, below
    reach = {"reach": np.stack([np.full((6, 9), 5.0), np.full((6, 9), 7.0)])}
    found, evidence, _ = verdicts.symmetric(run_of(reach, attention(sides)))
    assert found is True and "left-right 1.00, up-down -0.07" in evidence[2]
    assert "mirror image: 54; two highest rows: 0" in evidence[0] and "p = 0.016" in evidence[0]
    assert verdicts.symmetric(run_of(reach, attention(sides.swapaxes(2, 3))))[0] is False
    assert (
        verdicts.symmetric(run_of(reach, attention(sides[:4])))[0] is None
    )  # four layers may agree by chance
    assert (
        verdicts.symmetric(run_of({"reach": reach["reach"][::-1]}, attention(sides)))[0] is None
    )  # none looks far
    for ahead, holds in (
        (4, None),
        (5, True),
    ):  # of 54 after and 54 before, the first four are alike in one of 17
        some = {
            "reach": np.stack([np.full(54, 5.0), np.where(np.arange(54) < ahead, 7, 4)]).reshape(
                2, 6, 9
            )
        }
        assert verdicts.symmetric(run_of(some, attention(sides)))[0] is holds
    assert (
        verdicts.symmetric(run_of(reach, attention(maps_at([nine()] * 6))))[0] is False
    )  # all are local
    uneven = (maps_at([[[2, -6]] * 9] * 6) + maps_at([[[2, 3]] * 9] * 6)) / 2
    found, evidence, _ = verdicts.symmetric(run_of(reach, attention(uneven)))
    assert found is not True and "mirror image: 0; two highest rows: 0" in evidence[0]
    even = np.full((6, 9, *GRID), 1 / 256)  # flat: its own mirror image, and no pattern
    assert mirrored(even.sum(2)).max() == 0
    turned = sides.copy()
    turned[0] = sides.swapaxes(2, 3)[0]
    turned[1] = maps_at([[[5, 5]] * 9])[0]  # neither: 1/64 becomes 7/64
    assert verdicts.symmetric(run_of(reach, attention(turned)))[0] is None
    both = run_of(reach, attention(sides)), run_of(reach, attention(turned), seed=1)
    assert verdicts.symmetric(*both)[::2] == (None, "holds in 1 of 2 networks")


def followed(shifts, queries=((8, 8), (6, 7), (9, 10)), spread=0.3):
    """What heads with a peak at these shifts (Q, L, h, 2) attend to; the rest is spread evenly."""
    maps = np.full((*np.shape(shifts)[:3], *GRID), spread / 256)
    for index in np.ndindex(maps.shape[:3]):
        maps[(*index, *(np.array(queries[index[0]]) + shifts[index]))] += 1 - spread
    halves = np.stack([np.full(maps.shape[1:3], 0.8), np.full(maps.shape[1:3], 0.85)])
    return dict(queries=np.array(queries), mean=maps, halves=halves)


def test_a_constant_shift_is_a_peak_that_follows_the_query():
    shifts = np.broadcast_to(nine(), (3, 6, 9, 2)).copy()
    found, evidence, _ = verdicts.constant_shift(run_of(attention=followed(shifts)))
    assert (
        found is True
        and "head 1 of layer 2: shift (-1, -1); agreement of two halves" in evidence[1]
    )
    wandering = shifts.copy()
    wandering[1] += (0, 1)
    assert verdicts.constant_shift(run_of(attention=followed(wandering)))[0] is False
    wandering[:, 1] = shifts[:, 1]  # layer 2 alone is not layers 2 and 3
    assert verdicts.constant_shift(run_of(attention=followed(wandering)))[0] is None
    same = np.zeros_like(shifts)  # at one pixel only
    assert verdicts.constant_shift(run_of(attention=followed(same)))[0] is None
    bars = followed(shifts)
    bars["mean"] = np.broadcast_to(
        bars["mean"].mean(-2, keepdims=True), bars["mean"].shape
    )  # columns, not pixels
    assert verdicts.constant_shift(run_of(attention=bars))[0] is False
    changing = followed(shifts)
    changing["halves"][0] = 0.7  # patterns change with the query more than with the images
    assert verdicts.constant_shift(run_of(attention=changing))[0] is False
    short = followed(shifts[:, :2])
    assert verdicts.constant_shift(run_of(attention=short))[0] is None  # there is no layer 3
    both = run_of(attention=followed(shifts)), run_of(attention=short, seed=1)
    assert verdicts.constant_shift(*both)[::2] == (None, "holds in 1 of 2 networks")


@pytest.mark.parametrize(("more", "holds"), [(0.2, True), (-0.2, False), (0.0, None)])
def test_heads_that_do_not_follow_the_query_use_content(more, holds):
    shifts = np.broadcast_to(nine(), (3, 6, 9, 2)).copy()
    shifts[1, :, 4:] += (0, 1)  # the last five heads do not follow
    seen = followed(shifts)
    content = 0.3 + 0.01 * np.random.default_rng(0).normal(size=(6, 9)) + np.arange(6)[:, None] / 10
    content[:, 4:] += more
    by_content = np.stack([1 - content, 0 * content, content])
    found, evidence, _ = verdicts.content_use(run_of(attention=seen | dict(shares=by_content)))
    assert (
        found is holds
        and "heads that follow the query: 4, 4, 4, 4, 4, 4 in layers 1 to 6" in evidence[0]
    )
    assert "over all layers: of heads that follow the query 55%, of others " in evidence[4]
    by_query = np.stack(
        [1 - content, content, 0 * content]
    )  # content that only says where to look counts as well
    assert verdicts.content_use(run_of(attention=seen | dict(shares=by_query)))[0] is holds
    followers = followed(np.broadcast_to(nine(), (3, 6, 9, 2)))
    found, _, _ = verdicts.content_use(
        run_of(attention=followers | dict(shares=np.full((3, 6, 9), 1 / 3)))
    )
    assert found is None  # there are no others
    by_content[:, 0, 8] = np.nan  # layer 1 has a head fewer than the others
    found, evidence, _ = verdicts.content_use(run_of(attention=seen | dict(shares=by_content)))
    assert found is holds and "—" not in evidence[3]
    both = [
        run_of(attention=seen | dict(shares=shares), seed=seed)
        for seed, shares in enumerate([by_query] * 2)
    ]
    found, evidence, where = verdicts.content_use(*both)
    assert found is holds and where == "" and evidence[-1].startswith("seed 1 ")


def test_most_networks_learn_a_convolution_where_it_is_often():
    def network(after, lost=(80, 9, 9, 0.5), before=0.9, layers=(0,)):
        errors = np.full((2, 6, 4), 0.9)
        errors[:, layers] = np.array([before, after])[:, None, None]
        all_lost = [lost if layer in layers else [80, 30, 30, 30] for layer in range(6)]
        return run_of(swaps=swaps(all_lost, *errors))

    made, kept, none, unsure = (
        network(0.3),
        network(0.7),
        network(0.3, [80, 30, 30, 30]),
        network(0.3, (80, 9, 9, 1)),
    )
    holds, lines, where = verdicts.learns_convolution([made, made, none])
    assert holds is True and where == "in 2 of 3 networks"
    assert lines[0].endswith(": layer 1 as 7 × 7: relative error 0.30, before training 0.90")
    assert lines[2].endswith(": no layer")
    assert verdicts.learns_convolution([made, none])[0] is False  # half of them is not most
    assert verdicts.learns_convolution([kept, kept, made])[0] is False  # training changed little
    assert verdicts.learns_convolution([made, unsure])[0] is None
    assert verdicts.learns_convolution([made, run_of()])[0] is None  # not measured
    assert (
        verdicts.learns_convolution([network(0.3, before=np.nan)])[0] is None
    )  # its start is not known
    assert (
        verdicts.learns_convolution([network(0.675)])[0] is True
        and verdicts.learns_convolution([network(0.685)])[0] is False
    )
    assert verdicts.learns_convolution([])[0] is None


def test_a_free_start_is_one_that_training_changed():
    def network(lost, before, after):
        lost, errors = [[80, 9, 9, lost]] * 6, np.full((2, 6, 4), [[[before]], [[after]]])
        return run_of(swaps=swaps(lost, *errors))

    def found(*numbers):
        return verdicts.free_start(network(*numbers))

    assert found(0.5, 0.9, 0.3)[0] is True
    both = verdicts.free_start(network(0.5, 0.9, 0.3), network(5, 0.9, 0.3))
    assert both[::2] == (None, "holds in 1 of 2 networks, fails in 1")
    assert found(5, 0.9, 0.3)[0] is False and found(1, 0.9, 0.3)[0] is None
    assert found(0.5, 0.5, 0.3)[0] is None  # it was half of one before


def trained(
    accuracy, epochs=10, loss=1.0, lr=0.01, heads=9, start=None, halfway=None, encoding_lr=None
):
    """A run with these answers to 4,000 test images."""
    count = range(1, epochs + 1)
    lines = [
        dict(
            train_loss=loss,
            train_accuracy=0.9,
            test_accuracy=accuracy if halfway is None or e == epochs else halfway,
        )
        for e in count
    ]
    data = dict(key="k", test_images=IMAGES)
    return SimpleNamespace(
        test_accuracy=accuracy,
        right=np.arange(IMAGES) < accuracy * IMAGES,
        right_at_start=None if start is None else np.arange(IMAGES) < start * IMAGES,
        metrics=lines,
        config=dict(data=data, hash="they go on from one run"),
        data_title="a test",
        train=TrainConfig(optimizer="muon", epochs=epochs, lr=lr, encoding_lr=encoding_lr),
        model=ModelConfig(kind="learned", heads=(heads,) * 6, hidden=8, mlp=8),
    )


def test_pruning_is_held_against_as_much_training_with_all_heads():
    whole, cut = trained(0.85), trained(0.86, epochs=3, heads=7, start=0.7)
    assert verdicts.pruned(cut, whole, trained(0.86, epochs=3))[0] is True
    assert (
        verdicts.pruned(cut, whole, trained(0.89, epochs=3))[0] is False
    )  # better than before, but it cost 3 points
    assert verdicts.pruned(cut, whole, None)[0] is None
    assert (
        verdicts.pruned(trained(0.86, epochs=3), whole, trained(0.86, epochs=3))[0] is None
    )  # nothing was dropped
    assert (
        "without the degenerate ones, before it was trained on 70.0%"
        in verdicts.pruned(cut, whole, None)[1]
    )


def hybrid(made, control):
    return verdicts.hybrid(made, control, [trained(0.95)])


@pytest.mark.parametrize("name", ["matches_resnet", "quadratic_ahead", "content_lower", "hybrid"])
def test_accuracies_are_compared(name):
    check = hybrid if name == "hybrid" else getattr(verdicts, name)
    assert check([trained(0.9)], [trained(0.8)])[0] is True
    assert check([trained(0.8)], [trained(0.9)])[0] is False
    assert (
        check([], [trained(0.9)]) == check([trained(0.9)], []) == (None, [verdicts.NOT_TRAINED], "")
    )
    even = {"matches_resnet": True, "hybrid": True}.get(
        name
    )  # they may lie behind, by two points and one
    assert check([trained(0.9)], [trained(0.9)])[0] is even
    # A longer training may be the reason: what both had after as many epochs must say the same.
    assert check([trained(0.9, 20, halfway=0.7)], [trained(0.8, 10)])[0] is None
    assert check([trained(0.9, 20, halfway=0.88)], [trained(0.8, 10)])[0] is True


@pytest.mark.parametrize("beyond", [-0.006, 0.006])
def test_a_model_may_lie_behind_by_its_margin_and_no_more(beyond):
    def behind(points, **more):
        return trained(0.9 - points / 100 - beyond, **more)

    holds = beyond < 0
    assert verdicts.matches_resnet([behind(2)], [trained(0.9)])[0] is holds
    assert hybrid([behind(1)], [trained(0.9)])[0] is holds
    assert (
        verdicts.pruned(behind(1, epochs=3, heads=7), trained(0.95), trained(0.9, epochs=3))[0]
        is holds
    )
    for check in (verdicts.quadratic_ahead, verdicts.content_lower):
        assert check([behind(0)], [trained(0.9)])[0] is holds
    assert (
        verdicts.hybrid([trained(0.9)], [trained(0.8)], [])[0] is None
    )  # what both go on from is not there


def test_a_close_verdict_says_which_spread_would_undo_it():
    (holds, _, where), (far, _, none) = (
        verdicts.quadratic_ahead([trained(0.9)], [trained(b)]) for b in (0.885, 0.8)
    )
    assert holds is far is True and none == ""
    assert where == "if seeds spread by less than 0.53 points"  # 0.74 by both, 0.19 of images
    several = verdicts.quadratic_ahead(
        [trained(0.9), trained(0.9)], [trained(0.885), trained(0.885)]
    )
    assert several[::2] == (True, "")
    words = verdicts.pruned(
        trained(0.86, epochs=3, heads=7), trained(0.85), trained(0.865, epochs=3)
    )[2]
    assert words == "if seeds spread by less than 0.17 points"


def test_harder_to_train_is_said_of_training():
    def found(loss, accuracy=0.7, **more):
        return verdicts.content_harder(
            [trained(0.8, loss=1.0)], [trained(accuracy, loss=loss, **more)]
        )

    assert verdicts.content_harder([trained(0.8)], []) == (None, [verdicts.NOT_TRAINED], "")
    assert found(1.1, accuracy=0.9)[0] is True  # whatever the test accuracy
    assert found(0.9)[0] is False and found(1.01)[0] is None
    assert (
        found(1.1, epochs=20)[0] is None and found(0.9, epochs=5)[0] is None
    )  # another schedule may be the reason
    holds, evidence, where = found(1.01, lr=0.005, encoding_lr=0.05)
    assert where == "at 0.5 times the learning rate" and found(1.01)[2] == ""
    assert (
        holds is None
        and "0.005 of the weights, 0.05 of the encoding; without 0.01 of the weights" in evidence[2]
    )
    assert "; without 0.01 of the weights, 0.003 of the encoding; epochs 10 and 10" in evidence[2]

    def several(*losses):
        return [trained(0.8, loss=loss) for loss in losses]

    assert verdicts.content_harder(several(1.0, 1.01, 1.0), several(1.1, 1.11, 1.1))[0] is True
    assert (
        verdicts.content_harder(several(1.0, 1.2, 1.0), several(1.1, 1.3, 1.1))[0] is None
    )  # seeds differ as much
    assert (
        verdicts.content_harder(several(1.0, 1.01), several(1.1))[0] is True
    )  # one seed: 4.5% of the loss


def test_arithmetic_verdicts():
    assert verdicts.theorem(1e-7)[0] and not verdicts.theorem(1e-3)[0]
    assert verdicts.borders(1e-7, 0.5, 1e-7)[0]
    assert not verdicts.borders(1e-7, 0.5, 0.5)[0] and not verdicts.borders(0.5, 0.5, 1e-7)[0]
    assert not verdicts.borders(1e-7, 1e-7, 1e-7)[0]  # then nothing had to be padded
    holds, evidence, _ = verdicts.flops(6.23e9, 6.5e9, 9.01e9)
    assert (
        holds
        and "9.0 billion, or 6.5 along rows" in evidence[1]
        and not verdicts.flops(9e9, 9e9, 9e9)[0]
    )
    alphas, formula = [1, 10, 104], [0.5, 1e-4, 0]
    assert verdicts.three_numbers(alphas, [0.5, 1e-4, 0], formula)[0]
    assert not verdicts.three_numbers(alphas, [0.5, 2e-4, 0], formula)[0]
    assert not verdicts.three_numbers(alphas[:2], formula[:2], formula[:2])[
        0
    ]  # never exactly one pixel


def test_snapping_is_the_yardstick_of_taps():
    def found(*gains):
        return verdicts.more_than_snapping(np.array(gains) + 4.0, np.full(len(gains), 4.0))[0]

    assert found(2, 2.2, 2.1) is True and found(-2, -2.2, -2.1) is False
    assert (
        found(2, 1.5, 2.5) is True and found(2, 1, 3) is None
    )  # three seeds: beyond 4.3 standard errors
    assert found(2, 2, 2) is None  # that no seed differs says nothing of the noise
    assert verdicts.more_than_snapping(np.array([9]), np.array([3]))[0] is None  # one seed


def test_whether_a_start_pays_is_decided_on_the_fewest_images_and_over_seeds():
    def runs(*accuracies):
        config = {"data": {"test_images": 10_000, "key": "k"}, "hash": "h"}
        return [
            SimpleNamespace(
                test_accuracy=accuracy, config=config, right=None, train=SimpleNamespace(epochs=1)
            )
            for accuracy in accuracies
        ]

    def found(few, many, *others):
        taps, paper = (
            {500: runs(*few[0]), 50_000: runs(*many[0])},
            {500: runs(*few[1]), 50_000: runs(*many[1])},
        )
        return verdicts.convolution_start(taps, paper, {"a CNN": {500: runs(0.7, 0.7)}})

    better, worse, between = (0.5, 0.51, 0.5), (0.4, 0.41, 0.4), (0.4, 0.6, 0.3)
    holds, lines = found((better, worse), (worse, better))
    assert holds is True and lines[0].startswith("500 images: 50.3% against 40.3%")
    assert (
        lines[1].startswith("50,000 images: 40.3% against 50.3%")
        and "against a CNN: 50.3% against 70.0%" in lines[2]
    )
    assert found((worse, better), (better, worse))[0] is False
    assert found((better, between), (better, worse))[0] is None
    holds, lines = found(((0.5,), (0.4,)), ((0.5,), (0.4,)))
    assert holds is None and "a single seed" in lines[-1]


def test_every_claim_has_a_function_and_a_notebook_that_calls_it_and_draws_its_picture():
    for key, sentence in SENTENCES.items():
        name = key.replace("-", "_")
        assert callable(getattr(verdicts, name))
        [notebook] = (ROOT / "notebooks").glob(f"{sentence.figure[:2]}_*.ipynb")
        code = "".join(
            c.source for c in nbformat.read(notebook, as_version=4).cells if c.cell_type == "code"
        )
        assert f"claims.{name}(" in code, f"{notebook.name} does not check {key}"
        drawn = re.findall(
            r'save_figure\([^"]*"([^"]+)"', code
        )  # what an f-string fills in may be anything
        names = [re.sub(r"\\{.*?\\}", ".+", re.escape(name)) for name in drawn]
        assert any(re.fullmatch(name, sentence.figure) for name in names), (
            f"{notebook.name} draws no {sentence.figure}"
        )


# --- what is recorded


def saved(folder, name, *found):
    made = Claims(folder / "tables" / f"{name}.json")
    for claim in found:
        made.record(*claim)
    return made


def test_a_claim_shows_itself_and_is_recorded(tmp_path):
    made = Claims(tmp_path / "tables" / "01-claims.json")
    card = made.theorem(1e-7)
    test = SENTENCES["theorem"].digest
    assert card == Claim(
        "theorem", "", True, ["largest difference 1e-07 of the largest output"], test
    )
    assert read_claims(made.file) == [card]
    shown = card._repr_html_()
    assert (
        "Holds here" in shown
        and SENTENCES["theorem"].text in shown
        and "largest difference 1e-07" in shown
    )
    assert SENTENCES["theorem"].test in shown and "The paper, Theorem 1" in shown
    assert made.record("hybrid", None, ["-0.5 by -1e-07"]).evidence == ["−0.5 by −1e-07"]
    made = Claims(made.file)
    made.theorem(1e-2)  # again, in the same kernel: the last one counts
    assert [claim.holds for claim in read_claims(made.file)] == [False]
    run = next(run for run in find_runs(ROOT / "outputs/evening/runs") if run.preset == "quadratic")
    assert (
        made.local(run).about == f"SA quadratic, seed {run.train.seed}, {run.train.epochs} epochs"
    )
    assert len(read_claims(made.file)) == 2
    with pytest.raises(AttributeError, match="no claim 'gird': theorem, .*grid"):
        made.gird(run)
    with pytest.raises(ValueError, match="'gird' is no claim of claims.yaml: theorem, .*grid"):
        Claim("gird", "", True, ["1"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1, null]",
        '[{"key": "grid"}]',
        '[{"key": "grid", "about": "", "holds": 1, "evidence": ["e"]}]',
    ],
)
def test_what_is_damaged_is_passed_over(tmp_path, text):
    file = tmp_path / "claims.json"
    file.write_text(text)
    assert read_claims(file) == [] == read_claims(tmp_path / "nothing.json")
    file.unlink()
    os.mkfifo(file)  # would never end
    assert read_claims(file) == []


def test_damage_takes_claims_away_but_never_changes_a_verdict(tmp_path):
    made = saved(
        tmp_path,
        "04-claims",
        ("grid", True, ["1"]),
        ("hybrid", False, ["0"]),
        ("local", None, ["?"]),
    )
    content = made.file.read_bytes()

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def damage(data):
        at, kind = (
            data.draw(st.integers(0, len(content) - 1)),
            data.draw(st.sampled_from(["cut", "flip", "type"])),
        )
        damaged = content[:at]
        if kind == "flip":
            damaged += bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]
        elif kind == "type":
            values = json.loads(content)
            name = data.draw(st.sampled_from(["key", "holds", "evidence", "about"]))
            values[at % 3][name] = data.draw(st.sampled_from([5, -1.5, "yes", [], {}, [[1]]]))
            damaged = json.dumps(values).encode()
        made.file.write_bytes(damaged)
        left = iter(made.made)
        for claim in read_claims(made.file):  # those that are left, in their order
            assert any(one.holds is claim.holds and one.key == claim.key for one in left)
            assert all(isinstance(line, str) for line in claim.evidence)

    damage()


def test_the_board_has_every_claim_of_the_paper_and_none_of_ours(tmp_path):
    saved(tmp_path / "one", "04-claims", ("grid", True, ["a"], "seed 0"), ("hybrid", True, ["1"]))
    saved(
        tmp_path / "one",
        "05-claims",
        ("local", None, ["b"], "seed 0"),
        ("local", True, ["c"], "seed 1"),
    )
    saved(tmp_path / "two", "04-claims", ("grid", False, ["d"]))
    saved(
        tmp_path / "two", "04-quadratic_16-claims", ("grid", True, ["e"])
    )  # a user's, of another model
    table = board({"one": tmp_path / "one", "two": tmp_path / "two"})
    assert table["The paper says"].tolist() == [sentence.text for sentence in PAPER_CLAIMS.values()]
    of = dict(zip(PAPER_CLAIMS, table[["one", "two"]].to_numpy().tolist(), strict=True))
    assert of.pop("grid") == ["holds", "does not hold"] and of.pop("local") == [
        "is undecided; holds",
        "—",
    ]
    assert all(verdicts == ["—", "—"] for verdicts in of.values())
    found = recorded(tmp_path / "one")
    assert [claim.about for claim in found["local"]] == ["seed 0", "seed 1"] and found[
        "theorem"
    ] == []


def test_what_another_test_found_is_passed_over(tmp_path):
    made = Claims(tmp_path / "tables" / "01-claims.json")
    made.theorem(1e-7)
    assert recorded(tmp_path)["theorem"] and not recorded(tmp_path)["borders"]
    made.file.write_text(
        made.file.read_text().replace(SENTENCES["theorem"].digest, SENTENCES["borders"].digest)
    )
    assert not recorded(tmp_path)["theorem"]


@pytest.mark.parametrize("places", [[[0, 0]], [[-4, 0], [4, 0]], [[-4, -3], [4, 3]]])
def test_heads_that_no_draw_brings_together_are_not_said_to_overlap(places):
    centres = np.tile(places, (6, 1, 1))
    assert verdicts.apart_by_lot(run_of(gaussian_heads(centres, start=0 * centres)))[0] is None


def test_on_a_grid_within_the_window_every_pixel_is_near_by_chance():
    maps = np.zeros((6, 9, 4, 4))
    maps[..., 0, 0] = 1
    run = run_of(attention={"mean": maps[None], "queries": np.array([[2, 2]])})
    run.model = SimpleNamespace(grid=(4, 4))
    assert "at random p = 1" in verdicts.single_pixels(run)[1][-1]


def test_heads_that_look_left_and_right_on_a_flat_image_are_not_local():
    maps = np.zeros((6, 9, 4, 32))
    maps[..., 2, 6] = maps[..., 2, 26] = 0.5  # ten pixels left and right of the query
    reach = {"reach": np.stack([np.full((6, 9), 5.0), np.full((6, 9), 7.0)])}
    run = run_of(reach, {"mean": maps[None], "queries": np.array([[2, 16]])})
    assert "9, 9, 9, 9, 9, 9 in layers" in verdicts.symmetric(run)[1][1]
