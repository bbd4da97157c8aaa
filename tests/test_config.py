"""Wrong configurations are refused when they are made, in a line that names value and limit."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnconv.config import (
    PRESETS,
    REPOSITORY,
    ConfigError,
    ModelConfig,
    TrainConfig,
    for_images,
    identity,
    replace,
    run_name,
)
from attnconv.training.runs import Run

ABOUT = {
    "name": "cifar10",
    "form": "Parquet",
    "classes": ("cat", "dog"),
    "mean": (0.5,),
    "std": (0.2,),
    "train_images": 10,
    "test_images": 5,
}


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (ModelConfig, {"kind": "quadratc"}, "kind = 'quadratc': Input should be 'quadratic',"),
        (ModelConfig, {"heads": 0}, "heads.* = 0: Input should be greater than or equal to 1"),
        (ModelConfig, {"heads": "(9, 9)"}, r"heads.* = '\(9, 9\)': Input should be a valid int"),
        (ModelConfig, {"heads": (9, 9)}, r"heads = \(9, 9\) must be 6, one a layer"),
        (ModelConfig, {"heads": 16, "centre_start": "taps"}, "heads = 16 must be an odd number's"),
        (ModelConfig, {"kernels": [2]}, r"kernels = \(2,\) must be odd"),
        (ModelConfig, {"kernels": [3] * 7}, "kernels = .* must be one per attention layer"),
        (ModelConfig, {"kind": "resnet", "kernels": [3]}, "must be one per attention layer"),
        (ModelConfig, {"hidden": 4.5}, "hidden = 4.5: Input should be a valid integer"),
        (ModelConfig, {"dropout": 1.0}, "dropout = 1.0: Input should be less than 1"),
        (ModelConfig, {"resnet_width": 7}, "resnet_width = 7: .*greater than or equal to 8"),
        (ModelConfig, {"kind": "learned", "covariance": "full"}, "covariance = 'full' must be iso"),
        (ModelConfig, {"hiden": 3}, "ModelConfig: hiden = 3: Extra inputs are not permitted"),
        (TrainConfig, {"lr": 0.0}, "lr = 0.0: Input should be greater than 0"),
        (TrainConfig, {"images": 0}, "images = 0: Input should be greater than 0"),
        (TrainConfig, {"epochs": "6"}, "epochs = '6': Input should be a valid integer"),
        (TrainConfig, {"epochs": "x" * 1000}, r"epochs = 'xx.*\.\.\..*x': Input"),
    ],
)
def test_refusals(make, values, message):
    with pytest.raises(ConfigError, match=message) as refused:
        make(**values)
    said = str(refused.value)
    assert "\n" not in said and "https" not in said and len(said) < 600


@pytest.mark.parametrize(
    "values",
    [
        {"heads": 25, "centre_start": "taps"},
        {"layers": 2, "heads": (9, 4), "centre_start": "taps"},
        {"kind": "learned", "heads": 16, "centre_start": "taps"},
        {"kernels": (3, 0, 5)},
    ],
)
def test_what_is_taken_though_it_is_near_a_limit(values):
    assert all(getattr(ModelConfig(**values), name) == value for name, value in values.items())


def test_layers_and_grid():
    model = ModelConfig(image_size=(28, 32), layers=3, heads=[9, 4, 2], kernels=[0, 3])
    assert model.grid == (14, 16) and model.kernel_per_layer == (0, 3, 0)
    assert model.heads_per_layer == (9, 0, 2)
    with pytest.raises(ConfigError, match="downsampling = 4 must divide the image size 28x30"):
        _ = ModelConfig(image_size=(28, 30), downsampling=4).grid
    images = SimpleNamespace(train_images=np.zeros((1, 30, 20, 1)), classes=("a", "b"))
    fitting = for_images(model, images)
    assert (fitting.grid, fitting.image_channels, fitting.classes) == ((15, 10), 1, 2)


def test_a_configuration_does_not_change_and_replacing_checks_anew():
    recipe = TrainConfig(optimizer="muon")
    assert recipe.rest_lr == recipe.adamw_lr and TrainConfig(lr=0.3).rest_lr == 0.3
    with pytest.raises(ValueError, match="frozen"):
        recipe.lr = 3.0
    assert replace(recipe, {"lr": 1}).lr == 1.0 and recipe.lr == 0.1
    with pytest.raises(ConfigError):
        replace(recipe, {"lr": -1.0})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_is_taken_or_refused_in_one_line(data):
    """Whatever a file may hold: what is taken comes back from JSON as it was."""
    cls = data.draw(st.sampled_from([ModelConfig, TrainConfig]))
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    nested = st.recursive(
        plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4
    )
    names = st.sampled_from(sorted(cls.model_fields))
    try:
        made = cls(**data.draw(st.dictionaries(names, nested, max_size=3)))
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert cls(**json.loads(made.model_dump_json())) == made


def test_a_run_is_named_by_what_its_result_follows_from():
    model, recipe = ModelConfig(), TrainConfig(seed=3)
    name = run_name("quadratic", model, recipe, ABOUT)
    assert name == f"quadratic-seed3-{identity(model, recipe, ABOUT)}"
    assert len(name.rpartition("-")[2]) == 8
    same = [
        (model, replace(recipe, {"compile": True, "precision": "bfloat16"}), ABOUT),
        (model, recipe, ABOUT | {"form": "image folders", "key": "x"}),
        (model, recipe, json.loads(json.dumps(ABOUT))),
        (ModelConfig(heads=9, kernels=[]), replace(recipe, {"lr": 0.1}), ABOUT),
    ]
    assert {identity(*one) for one in same} == {identity(model, recipe, ABOUT)}
    others = [
        (replace(model, {"heads": 4}), recipe, ABOUT),
        (model, replace(recipe, {"seed": 4}), ABOUT),
        (model, replace(recipe, {"start_from": "a-seed0-1"}), ABOUT),
        *((model, recipe, ABOUT | {name: 1}) for name in ABOUT if name != "form"),
    ]
    assert len({identity(*one) for one in others} - {identity(model, recipe, ABOUT)}) == len(others)


@pytest.mark.parametrize("name", ["quadratic-seed0-b7f9ec3a", "learned_content-seed2-06bd6f85"])
def test_the_names_of_run_folders_stay(name):
    """Recorded runs are found by them."""
    run = Run(REPOSITORY / "outputs" / "evening" / "runs" / name)
    assert run_name(run.preset, run.model, run.train, run.config["data"]) == name


def test_presets_are_the_papers_and_those_that_start_from_others():
    preset = PRESETS["quadratic"]
    assert preset.train == TrainConfig() and preset.model.attention_dropout == 0.1
    assert replace(preset.model, {"attention_dropout": 0.0}) == ModelConfig()
    starts = {name: (one.start, one.change) for name, one in PRESETS.items() if one.start}
    assert starts == {
        "quadratic_pruned": ("quadratic_full", "prune"),
        "quadratic_full_longer": ("quadratic_full", ""),
        "quadratic_longer": ("quadratic", ""),
        "hybrid": ("quadratic", "swap"),
    }
    for name, (start, change) in starts.items():
        kernels = (3,) if change == "swap" else ()
        assert PRESETS[name].model == replace(PRESETS[start].model, {"kernels": kernels})


def test_no_torch_is_imported():
    code = "import sys, attnconv.config, attnconv.training.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
