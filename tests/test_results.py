"""Table 1: what it says of a run, and the files that it becomes."""

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from attnconv.config import PRESETS, ModelConfig, replace
from attnconv.cost import cost
from attnconv.training.runs import Run, find_runs, identity
from companion import results
from companion.profile import Profile
from companion.workspace import Workspace


def run(
    preset: str,
    accuracy: float,
    data: str = "cifar10",
    form: str = "",
    seconds: float = 60,
    **changes,
) -> Run:
    """What the table reads of a run of a preset, with changes to its configurations."""
    made = Run(Path(preset))
    about = {"name": data, "form": form, "key": data, "train_images": 50_000, "test_images": 10_000}
    base = PRESETS.get(preset, PRESETS["quadratic"])
    of_model = {name: value for name, value in changes.items() if name in ModelConfig.model_fields}
    of_recipe = {name: value for name, value in changes.items() if name not in of_model}
    config = {"preset": preset, "hash": str(accuracy), "data": about}
    metrics = [{"test_accuracy": accuracy, "seconds": seconds}]
    model, train = replace(base.model, of_model), replace(base.train, of_recipe)
    vars(made).update(
        _parsed=SimpleNamespace(preset=preset),
        config=config,
        model=model,
        train=train,
        metrics=metrics,
    )
    return made


GROUPS = {
    "ResNet18": [run("resnet18", accuracy) for accuracy in (0.9463, 0.9451, 0.947)],
    "SA learned": [run("learned", 0.9231, form="Parquet, JPEG images", seconds=80_000)],
    "mine_1 | 50% & more": [run("quadratic", 0.5, "Fashion_MNIST", epochs=6)],
    "another": [run("quadratic_full", 0.5)],
    "less": [run("quadratic", 0.5, form="Parquet, JPEG images", epochs=6)],
}


def test_results_table():
    table = results.results_table(GROUPS)
    assert table["Model"].tolist() == list(GROUPS)
    first = table.iloc[0]
    assert first["Accuracy (%)"] == 94.61 and first["Parameters (M)"] == 11.2
    assert (first["Seeds"], first["Epochs"]) == (3, 300)
    assert first["±"] == pytest.approx(np.std([94.63, 94.51, 94.7], ddof=1), abs=0.006)
    price = cost(PRESETS["learned"].model)
    flops = [price.paper, price.dense, price.separable]
    assert table.iloc[1, -4:-1].tolist() == [
        pytest.approx(count / 1e9, rel=0.005) for count in flops
    ]
    assert math.isnan(table["±"][1]) and table["Training (min)"].tolist()[:2] == [1, 1330]
    assert table["Paper (%)"].tolist()[:3] == [93.8, 91.8, 93.8], (
        "of the model, whatever its row is called"
    )
    small = run("quadratic", 0.5, layers=1, hidden=4, mlp=4)
    assert results.results_table({"small": [small]})["Parameters (M)"][0] == 0.000353, (
        "three digits of whatever size"
    )


def test_settings_stand_beside_those_at_full_size():
    ours, paper = run("quadratic", 0.9, hidden=96, optimizer="muon", clip=5.0), PRESETS["quadratic"]
    model = results.settings(ours.model, paper.model, "quadratic")
    assert model.loc["hidden"].to_dict() == {"ours": 96, "at full size": 400}
    assert not {"key_size", "resnet_width", "classes", "kernels"} & set(model.index)
    recipe = results.settings(ours.train, paper.train, "quadratic")
    assert recipe.loc["clip"].tolist() == [5.0, None] and recipe.loc["adamw_lr"].tolist() == [
        0.003,
        None,
    ]
    assert not {"seed", "position_lr", "validation", "prune"} & set(recipe.index), (
        "neither uses them"
    )
    own = results.settings(paper.train, paper.train, "resnet")
    assert (own["ours"] == own["at full size"]).all() and not {"adamw_lr", "beta2"} & set(own.index)
    assert list(results.settings(paper.model, paper.model, "resnet").index) == ["resnet_width"]


def test_seeds_share_a_row_and_recipes_do_not():
    own, longer, seed = (
        run("quadratic", 0.9, **c) for c in ({"epochs": 6}, {"epochs": 7}, {"epochs": 6, "seed": 1})
    )
    assert results.group([longer]) == {"SA quadratic": [longer]}, "nothing to tell it from"
    assert results.group([own, seed]) == {"SA quadratic": [own, seed]} and results.group([]) == {}
    titles = {"SA quadratic (7 epochs, 0.9)": [longer], "SA quadratic (6 epochs, 0.9)": [own, seed]}
    assert results.group([longer, own, seed]) == titles
    elsewhere, wider = (
        run("quadratic", 0.8, "another copy", epochs=6),
        run("quadratic", 0.7, epochs=6, hidden=800),
    )
    assert len(results.group([own, elsewhere, wider])) == 3
    assert list(results.group([own, run("mine", 0.6)])) == ["SA quadratic", "mine"]


def test_a_table_becomes_three_files(tmp_path):
    work = Workspace(Profile(name="p"), "embedded", tmp_path)
    frame = results.results_table(GROUPS)
    work.save_table(frame, "table")
    markdown, plain, latex = (
        (tmp_path / "tables" / f"table.{form}").read_text() for form in ("md", "csv", "tex")
    )
    lines = markdown.splitlines()
    assert len(lines) == 7 and "94.61" in lines[2] and "11.2 " in lines[2] and "—" in lines[3]
    rows = list(csv.DictReader(plain.splitlines()))
    assert rows[2]["Model"] == "mine_1 | 50% & more" and rows[3]["±"] == ""
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "tables" / "table.csv"), frame, check_dtype=False
    )
    assert r"mine\_1 | 50\% \& more" in latex and "94.61" in latex and "---" in latex
    assert not list(tmp_path.rglob(".*")), "no temporary file stays"


def test_runs_come_in_the_order_of_presets_then_of_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "check", lambda run: None)
    for name, preset, seed in (
        ("a", "mine", 0),
        ("b", "quadratic", 1),
        ("c", "resnet18", 0),
        ("d", "quadratic", 0),
    ):
        base = PRESETS["quadratic"]
        config = {
            "preset": preset,
            "model": base.model.model_dump(mode="json"),
            "data": {"key": "k"},
        }
        config["train"] = replace(base.train, {"seed": seed}).model_dump(mode="json")
        config["hash"] = identity(config["model"], config["train"], "k")
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        (tmp_path / name / "model.safetensors").touch()
    order = [(made.preset, made.train.seed) for made in find_runs(tmp_path)]
    listed = [name for name in PRESETS if name in ("quadratic", "resnet18")]
    own = {"quadratic": [("quadratic", 0), ("quadratic", 1)], "resnet18": [("resnet18", 0)]}
    assert order == [*own[listed[0]], *own[listed[1]], ("mine", 0)]


def test_the_last_epoch_counts_and_curves_are_of_the_test_images():
    made = run("quadratic", 0.9)
    vars(made).update(
        metrics=[{"test_accuracy": a, "train_accuracy": a / 2} for a in (0.2, 0.8, 0.6)]
    )
    assert (
        made.test_accuracy == 0.6 and results.curves([made, made]).tolist() == [[0.2, 0.8, 0.6]] * 2
    )


def test_swaps_become_rows_and_the_size_that_costs_less_than_a_point():
    """Two layers, kernels of 1 and 3: each alone, and up to each; 100 images, of which the whole
    network knows 90.
    """
    right = np.arange(100)[:, None] < np.array(
        [89.0, 90, 40, 70]
    )  # alone: layer 1 with 1, 3; layer 2 with 1, 3
    swapped = {
        "whole": np.arange(100) < 90,
        "sizes": np.array([1, 3]),
        "alone": right.T.reshape(2, 2, 100),
    }
    swapped["up_to"] = np.arange(100) < np.array([[90, 90], [90, 30]])[..., None]
    swapped |= {
        f"{how}{end}": value
        for how in ("fitted", "shuffled")
        # fmt: skip
        for end, value in (("_sizes", np.array([3])), ("", swapped["up_to"][:, :1]))
    }
    made = run("quadratic", 0.9, seed=4)
    vars(made).update(swaps=swapped)
    without = run("learned", 0.9)
    vars(without).update(swaps={})
    table = results.swap_table({"SA quadratic": [made, without]})
    assert len(table) == 12 and (table["seed"] == 4).all() and (table["whole"] == 90).all()
    (row,) = table[
        (table["layers"] == "alone") & (table["layer"] == 2) & (table["kernel"] == 3)
    ].to_dict("records")
    assert (row["accuracy"], row["difference"], row["images"]) == (70, -20, 100) and row[
        "error"
    ] == pytest.approx(4)
    assert table[(table["how"] == "shuffled")]["layer"].tolist() == [1, 2]
    sizes = results.size_as_convolution(table)
    assert sizes.loc["SA quadratic"].to_dict() == {1: 3, 2: math.inf}, (
        "one image of a hundred may be more than a point"
    )
    for points, kernel in ((2, 3), (4, 1)):  # two are within the noise
        assert results.size_as_convolution(table, points).loc["SA quadratic"].to_dict() == {
            1: kernel,
            2: math.inf,
        }
    other = table.assign(seed=5, difference=table["difference"].where(table["kernel"] > 1, -50))
    both = results.size_as_convolution(pd.concat([table, other]), 4)
    assert both.loc["SA quadratic", 1] == 3, "what serves every seed"


def test_published_numbers_belong_to_the_presets():
    titles = {preset.title for preset in PRESETS.values()}
    assert set(results.PAPER_TABLE) <= titles
    assert {"ResNet18", "SA quadratic", "SA quadratic, 16 heads", "SA learned"} <= set(
        results.REPRODUCTION_2021
    )


def runs(*accuracies, right=None, epochs=1):
    """What `results.ahead` reads of runs."""
    data = {"test_images": 10_000 if right is None else len(right), "key": "k"}
    return [
        SimpleNamespace(
            test_accuracy=accuracy,
            config={"data": data, "hash": f"{seed} {accuracy}"},
            right=right,
            train=SimpleNamespace(epochs=epochs),
        )
        for seed, accuracy in enumerate(accuracies)
    ]


def test_a_lead_is_undecided_within_its_noise():
    assert results.ahead(runs(0.948, 0.95, 0.952), runs(0.90))[0] is True
    assert (
        results.ahead(runs(0.94, 0.96), runs(0.90))[0] is None
    )  # two seeds that differ by two points say little
    assert results.ahead(runs(0.90), runs(0.95))[0] is False
    assert results.ahead(runs(0.95), runs(0.948))[0] is None
    assert (
        results.ahead(runs(0.90, 0.94), runs(0.89))[0] is None
    )  # a difference between seeds is noise too
    assert results.ahead(runs(1.0), runs(1.0))[0] is None
    # Seeds 0.58 and images 0.41 make 0.71 points. With so few seeds 2.1 of these errors are not
    # enough.
    holds, evidence = results.ahead(runs(0.91, 0.92, 0.93), runs(0.905, 0.905, 0.905))
    assert holds is None and "standard error of the difference 0.7" in evidence
    assert results.ahead(runs(0.91, 0.92, 0.93), runs(0.88, 0.88, 0.88))[0] is True
    # One seed is taken to spread by 0.7 points, each side (0.45 from 20 epochs on), or as the other
    # does: more, if so.
    assert results.ahead(runs(0.955, epochs=20), runs(0.94, epochs=20))[0] is True
    assert results.ahead(runs(0.955, epochs=20), runs(0.94, epochs=19))[0] is None
    holds, evidence = results.ahead(runs(0.955), runs(0.95), margin=2)
    assert (
        holds is True
        and "95.5% against 95.0%, standard error of the difference 1.0 (images 0.3; seeds 1.0), by chance up to 2.0"
        in evidence
    )
    assert results.ahead(runs(0.952), runs(0.94), margin=0)[0] is None
    assert results.ahead(runs(0.97), runs(0.9401, 0.94, 0.9399))[0] is True
    assert results.ahead(runs(0.97), runs(0.96, 0.94, 0.92))[0] is None
    # Two seeds, .71 points apart from their mean, for both sides: one degree of freedom, not two.
    assert results.ahead(runs(1.0), runs(0.945, 0.955))[0] is None


def test_the_spread_over_seeds_that_would_undo_a_verdict():
    """1.96 errors must be 1.5 points: 0.765, of which the images' are 0.41 and 0.46 each side's
    of one seed.
    """
    one, other = runs(0.91, epochs=20), runs(0.895, epochs=20)

    def limit(*given):
        return float(
            results.rests_on(True, *given).removeprefix("if seeds spread by less than ").split()[0]
        )

    assert limit(one, other) == pytest.approx(0.46, abs=0.011)
    for spread, holds in ((0.45, True), (0.47, None)):
        assert results.ahead(one, other, assumed=spread)[0] is holds
    assert limit(other, one, 2.5) == pytest.approx(0.21, abs=0.011)  # a point is left of the margin
    assert results.rests_on(True, runs(0.91, 0.92), runs(0.89, 0.89)) == ""  # nothing is assumed


def test_answers_to_the_same_images_are_compared_image_by_image():
    hard = (
        np.arange(1000) % 10 == 0
    )  # both are wrong about the same hundred images, one about ten more
    (one,), (other,) = (
        runs(right.mean(), right=right) for right in (~hard, ~hard & (np.arange(1000) >= 11))
    )
    assert results.ahead([one], [other])[0] is None  # seeds may differ as much
    for run in (one, other):
        run.config["start"] = "the same"  # but both go on from one run
    holds, evidence = results.ahead([one], [other])
    assert holds is True and "standard error of the difference 0.3 (images, paired 0.3)" in evidence
    one.right = None  # without its answers the error is three times that
    holds, evidence = results.ahead([one], [other])
    assert holds is None and "1.4" in evidence
