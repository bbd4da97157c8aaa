"""Table 1, pairs of seeds and what swaps cost: what they say of runs."""

import math
from pathlib import Path

import numpy as np
import pytest

from attnconv.config import PRESETS, ModelConfig, replace
from attnconv.cost import cost
from attnconv.training.runs import Run
from companion import results


def run(preset: str, accuracy: float, data: str = "cifar10", folder: str = "a", **changes) -> Run:
    """What is read of a run of a preset, with changes to its configurations."""
    made = Run(Path(f"{preset}-{folder:0>8}"))
    about = {"name": data, "key": data, "train_images": 50_000, "test_images": 10_000}
    base = PRESETS.get(preset, PRESETS["quadratic"])
    of_model = {name: value for name, value in changes.items() if name in ModelConfig.model_fields}
    of_recipe = {name: value for name, value in changes.items() if name not in of_model}
    vars(made).update(
        config={"preset": preset, "data": about},
        model=replace(base.model, of_model),
        train=replace(base.train, of_recipe),
        metrics=[{"test_accuracy": 0.2}, {"test_accuracy": accuracy}],
        right=np.arange(10_000) < 10_000 * accuracy,
    )
    return made


GROUPS = {
    "ResNet18": [run("resnet18", accuracy) for accuracy in (0.9463, 0.9451, 0.947)],
    "mine_1 | 50% & more": [run("learned", 0.9231)],
}


def test_table_1_has_means_over_seeds_and_costs_of_the_model():
    first, second = results.results_table(GROUPS).to_dict("records")
    assert (first["Model"], first["Accuracy (%)"], first["Seeds"]) == ("ResNet18", 94.61, 3)
    assert first["Parameters (M)"] == 11.2 and first["Epochs"] == 300
    assert first["±"] == pytest.approx(np.std([94.63, 94.51, 94.7], ddof=1), abs=0.006)
    assert math.isnan(second["±"]) and second["Paper (%)"] == 91.8  # whatever its row is called
    price = cost(PRESETS["learned"].model)
    counts = [second[column] for column, _ in list(results.COSTS.values())[1:]]
    flops = [price.paper, price.dense, price.separable]
    assert counts == [pytest.approx(count / 1e9, rel=0.005) for count in flops]
    titles = {preset.title for preset in PRESETS.values()}
    assert titles >= results.PAPER_TABLE.keys() | results.REPRODUCTION_2021.keys()


def test_seeds_share_a_row_and_recipes_do_not():
    own, seed = run("quadratic", 0.9, epochs=6), run("quadratic", 0.9, epochs=6, seed=1)
    longer = run("quadratic", 0.9, folder="b", epochs=7)
    copy = run("quadratic", 0.9, folder="z", epochs=6)  # of a run's folder
    assert (
        results.group([own, seed, copy]) == {"SA quadratic": [own, seed]}
        and results.group([]) == {}
    )
    names = ["SA quadratic (0000000b)", "SA quadratic (0000000a)"]
    assert results.group([longer, own, seed]) == {names[0]: [longer], names[1]: [own, seed]}
    assert results.of_all_seeds(own, [longer, seed, own]) == [own, seed]
    elsewhere = run("quadratic", 0.8, "another", "c", epochs=6)
    wider = run("quadratic", 0.7, folder="d", epochs=6, hidden=800)
    assert len(results.group([own, elsewhere, wider])) == 3
    mended = run("quadratic", 0.9, folder="e", epochs=6)
    mended.config["data"]["digest"] = 1
    assert len(results.group([own, mended])) == 2


def test_the_papers_own_network_is_known_whatever_its_length():
    assert results.of_the_paper(run("quadratic", 0.9, epochs=40, seed=3))
    for other in ({"hidden": 64}, {"lr": 0.2}, {"optimizer": "muon"}):
        assert not results.of_the_paper(run("quadratic", 0.9, **other))


def test_runs_are_compared_with_those_of_the_same_seed(monkeypatch):
    runs = [run("quadratic", 0.9, seed=seed) for seed in (0, 1, 2)]
    others = [run("learned", accuracy, seed=seed) for seed, accuracy in ((2, 0.8), (1, 0.95))]
    table = results.ahead(runs, others)
    assert table["difference"].tolist() == pytest.approx([-5, 10])
    # They differ on one image of ten.
    assert table["standard error"][1] == pytest.approx(100 * math.sqrt(0.1 * 0.9 / 10_000))
    assert results.ahead(runs, []).empty
    monkeypatch.setattr(results, "_labels", id)  # other test images
    assert results.ahead(runs, others).empty


@pytest.fixture
def swapped():
    """Two layers, kernels of 1 and 3, 100 images, of which the whole network knows 90."""
    alone = np.arange(100) < np.array([[89, 90], [40, 70]])[..., None]
    made, without = run("quadratic", 0.9, seed=4), run("learned", 0.9)
    swaps = {"whole": np.arange(100) < 90, "sizes": np.array([1, 3]), "alone": alone}
    swaps |= {"up_to": alone, "fitted": alone[:, :1], "shuffled": alone[:, :1]}
    swaps |= {"fitted_sizes": np.array([3]), "shuffled_sizes": np.array([3])}
    vars(made).update(swaps=swaps)
    vars(without).update(swaps={})
    return results.swap_table({"SA quadratic": [made, without]})


def test_swaps_become_rows(swapped):
    assert len(swapped) == 12 and (swapped["seed"] == 4).all() and (swapped["whole"] == 90).all()
    row = swapped.set_index(["layers", "how", "layer", "kernel"]).loc["alone", "read", 2, 3]
    assert (row["accuracy"], row["difference"], row["images"]) == (70, -20, 100)
    assert row["error"] == pytest.approx(4)
