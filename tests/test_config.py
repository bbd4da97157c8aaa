"""Wrong configurations are refused when they are made, in a line that names value and limit."""

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnconv import config
from attnconv.config import PRESETS, ConfigError, ModelConfig, TrainConfig, replace
from companion.cli import changes
from companion.profile import Profile, load_profile

HASHES = ["2c8a4dcd", "59d39810", "fc5d6398", "c1c646a7", "709f33c3", "19291d10", "1f63b4c3"]
PROFILES = Path(__file__).parents[1] / "notebooks" / "profiles"
Mine = partial(Profile, name="x")


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (
            ModelConfig,
            dict(kind="quadratc"),
            "kind = 'quadratc': Input should be 'quadratic', 'learned'",
        ),
        (
            ModelConfig,
            dict(heads=0),
            "heads.* = 0: Input should be greater than or equal to 1; .*valid tuple",
        ),
        (ModelConfig, dict(heads=(9, 9)), r"heads = \(9, 9\) must be 6, one a layer"),
        (
            ModelConfig,
            dict(heads=16, centre_start="taps"),
            "heads = 16 must be the square of an odd number",
        ),
        (
            ModelConfig,
            dict(heads=[9, 9, 9, 9, 9, -1]),
            "heads.* = -1: Input should be greater than or equal to 0",
        ),
        (ModelConfig, dict(kernels=[2]), r"kernels = \(2,\) must be odd"),
        (ModelConfig, dict(kernels=[3] * 7), "kernels = .* must be one per attention layer"),
        (
            ModelConfig,
            dict(kind="resnet", kernels=[3]),
            "kernels = .* must be one per attention layer",
        ),
        (ModelConfig, dict(hidden=4.5), "hidden = 4.5: Input should be a valid integer"),
        (
            ModelConfig,
            dict(hidden=10**7),
            "hidden = 10000000: Input should be less than or equal to 4096",
        ),
        (ModelConfig, dict(image_size=(3, 4, 5)), r"image_size = \(3, 4, 5\): .*2 items"),
        (ModelConfig, dict(layers=True), "layers = True: Input should be a valid integer"),
        (ModelConfig, dict(dropout=1.0), "dropout = 1.0: Input should be less than 1"),
        (
            ModelConfig,
            dict(centre_std=math.inf),
            "centre_std = inf: Input should be a finite number",
        ),
        (
            ModelConfig,
            dict(spread_start=math.nan),
            "spread_start = nan: Input should be a finite number",
        ),
        (
            ModelConfig,
            dict(kind="learned", covariance="full"),
            "covariance = 'full' must be isotropic",
        ),
        (ModelConfig, dict(kind="learned_content", key_size=5), "key_size = 5 must be even"),
        (ModelConfig, dict(kind="learned_content", hidden=5), "hidden = 5 must be even"),
        (TrainConfig, dict(lr=0.0), "lr = 0.0: Input should be greater than 0"),
        (
            TrainConfig,
            dict(weight_decay=-1.0),
            "weight_decay = -1.0: Input should be greater than or equal to 0",
        ),
        (TrainConfig, dict(images=0), "images = 0: Input should be greater than or equal to 1"),
        (TrainConfig, dict(epochs="6"), "epochs = '6': Input should be a valid integer"),
        (TrainConfig, dict(seed=2**31), "seed = 2147483648: Input should be less than 2147483648"),
        (TrainConfig, dict(validation="x" * 1000), r"validation = 'xx.*\.\.\..*x': Input"),
        (ModelConfig, {"hiden": 3}, "hiden = 3: Extra inputs are not permitted"),
        (ModelConfig, {"a\nb": 3}, "ModelConfig.a b = 3: Extra"),
        (
            TrainConfig,
            dict(compile="max-autotune"),
            "compile = 'max-autotune': Input should be a valid boolean",
        ),
    ],
)
def test_refusals(make, values, message):
    with pytest.raises(ConfigError, match=message) as refused:
        make(**values)
    said = str(refused.value)
    assert "\n" not in said and "https" not in said and len(said) < 600


def test_heads_on_taps_may_be_pruned_and_other_kinds_have_as_many_as_they_like():
    assert ModelConfig(heads=25, centre_start="taps").heads == 25
    assert ModelConfig(layers=2, heads=[9, 4], centre_start="taps").heads == (9, 4)
    assert ModelConfig(kind="learned", heads=16, centre_start="taps").heads == 16
    with pytest.raises(ConfigError, match="key_size = 2 must be at least 4"):
        ModelConfig(kind="learned_content", key_size=2, centre_start="taps")


def test_a_grid_that_the_patches_do_not_fill_is_refused():
    assert ModelConfig(image_size=(28, 32)).grid == (14, 16)
    with pytest.raises(ConfigError, match="downsampling = 4 must divide the image size 28x30"):
        _ = ModelConfig(image_size=(28, 30), downsampling=4).grid


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_is_taken_or_refused_in_one_line(data):
    """Whatever a file may hold: what is taken comes back from JSON as it was."""
    cls = data.draw(st.sampled_from([ModelConfig, TrainConfig]))
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    nested = st.recursive(
        plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4
    )
    values = data.draw(
        st.dictionaries(st.sampled_from(sorted(cls.model_fields)), nested, max_size=3)
    )
    try:
        made = cls(**values)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert cls(**json.loads(made.model_dump_json())) == made


@pytest.mark.parametrize(
    ("text", "value"), [("1e-7", 1e-7), ("3E4", 3e4), ("1.5e-3", 0.0015), ("1", 1.0), ("010", 10.0)]
)
def test_numbers_that_yaml_reads_as_text_are_understood(tmp_path, text, value):
    (tmp_path / "own.yaml").write_text(f"train: {{weight_decay: {text}}}\n")
    found = load_profile(tmp_path / "own.yaml").configs("quadratic")[1].weight_decay
    _, by_command = changes([f"weight_decay={text}"])
    assert found == TrainConfig(**by_command).weight_decay == value and type(found) is float


def test_the_names_of_run_folders_stay():
    """As the first version named them: recorded runs are found by these digits."""
    assert [config.config_hash(PRESETS[name].model, PRESETS[name].train) for name in PRESETS][
        : len(HASHES)
    ] == HASHES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own", b"trian: {}\n", "own.yaml: trian: Extra inputs"),
        (
            "own",
            b"train: {epochs: %s}" % (b"9" * 5000),
            "own.yaml: not valid YAML: Exceeds the limit",
        ),
        ("own", b"train: {", "own.yaml: not valid YAML: .*line 1"),
        (
            "own",
            b"train: {epochs: 3}\ntrain: {epochs: 4}",
            'own.yaml: not valid YAML: .*duplicate key "train".*line 2',
        ),
        ("own", b"train: {epochs: 1:30}", "own.yaml: .*TrainConfig.epochs = '1:30'"),
        ("own", b"recorded: !!bool x", "own.yaml: not valid YAML: 'x'"),
        (
            "own",
            b"description: 2020-01-01",
            "own.yaml: description: .*valid string",
        ),
        ("own", b"4: 3", "own.yaml: keywords must be strings"),
        ("own", b"model: {depth: 3}", "own.yaml: .*ModelConfig.depth = 3: Extra inputs"),
        ("own", b"model: 3", "own.yaml: model: Input should be a valid dictionary"),
        ("own", b"presets: {learned: {modl: {}}}", "own.yaml: presets.learned.modl"),
        ("own", b"presets: {learnt: {}}", "no preset 'learnt'. There are resnet18, quadratic"),
        ("own", b"runs: []", "own.yaml: runs: List should have at least 1 item"),
        ("own", b"seeds: [0, -1]", "own.yaml: .*TrainConfig.seed = -1"),
        ("own", b"train: {seed: 5}", "seed cannot be changed.*seeds: "),
        ("own", b"- train", "own.yaml: 'list' object is not a mapping"),
        ("own", b"study: {3: 4}", "own.yaml: study.3.*valid string"),
        ("own", b"description: caf\xe9\n", "own.yaml: 'utf-8' codec can't decode"),
        ("other", b"", "no profile 'other'.*own"),
        ("folder", b"", "no profile 'folder'"),
    ],
)
def test_profile_errors_name_the_file(tmp_path, name, content, message):
    (tmp_path / "own.yaml").write_bytes(content)
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=message) as refused:
        load_profile(tmp_path / f"{name}.yaml")
    assert "\n" not in str(refused.value) and "://" not in str(refused.value)


def test_where_there_are_no_profiles_the_remedy_is_a_clone(tmp_path):
    with pytest.raises(
        ConfigError, match="'quick' in .*nowhere, which has none. They come with a clone"
    ):
        load_profile(tmp_path / "nowhere" / "quick.yaml")


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_profiles_are_sound_and_their_study_is_of_short_runs_of_a_narrow_model(file):
    profile = load_profile(file)
    for name in PRESETS:
        model, train = profile.configs(name, 3)
        assert train.seed == 3 and ModelConfig(**model.model_dump(mode="json")) == model
    study, longer = profile.study, profile.study.get("longer", {"model": {}, "train": {}})
    model, recipe = profile.configs(
        "quadratic", 0, study["model"] | longer["model"], study["train"] | longer["train"]
    )
    assert recipe.epochs <= 4 and model.hidden <= 32 and recipe.position_lr

    few, paper = study["few"], PRESETS["quadratic"].model
    recipe = profile.configs("quadratic", 0, study["model"], study["train"] | few["train"])[1]
    assert recipe.epochs % 2 == 0, "halves of it, of a CNN and of attention"
    assert few["images"] == sorted(few["images"]) and len(few["images"]) >= 2
    starts = {
        name: profile.configs("quadratic", 0, study["model"] | arm["model"])[0]
        for name, arm in few["starts"].items()
    }
    first, disc = starts.pop("as the paper's"), starts.pop("on a disc")
    assert list(few["starts"])[0] == "as the paper's", "what others are compared with"
    assert all(
        getattr(first, name) == getattr(paper, name)
        for name in ("centre_start", "centre_std", "spread_start")
    )
    if sharp := starts.pop("as the paper's, but sharp", None):
        assert (
            replace(sharp, {"spread_start": first.spread_start}) == first
            and sharp.spread_start == disc.spread_start
        )
    assert disc.centre_start == "disc" and {one.centre_start for one in starts.values()} == {"taps"}
    alphas = [one.spread_start**2 / 2 for one in starts.values()]
    assert [f"on taps, α = {alpha:g}" for alpha in alphas] == list(starts)
    assert disc.spread_start**2 / 2 in alphas, "one on taps as sharp as the one on a disc"


@pytest.mark.parametrize(
    ("name", "model", "train", "message"),
    [
        (
            "quadratic",
            {"image_size": [8, 8]},
            {},
            "image_size cannot be changed: choose other data",
        ),
        (
            "quadratic",
            {"image_channels": 7},
            {},
            "image_channels cannot be changed",
        ),
        ("quadratic", {"classes": 5}, {}, "classes cannot be changed"),
        (
            "quadratic",
            {"kind": "resnet"},
            {},
            "kind cannot be changed.*another preset",
        ),
        (
            "quadratic_pruned",
            {"heads": 3},
            {},
            "heads is that of quadratic_full. Change it there",
        ),
        (
            "quadratic_full",
            {},
            {"start_from": "quadratic_pruned"},
            "start_from cannot be changed",
        ),
        (
            "quadratic_pruned",
            {},
            {"start_from": None},
            "start_from cannot be changed.*another preset",
        ),
        ("quadratic", {}, {"seed": 3}, "seed cannot be changed.*--seed"),
    ],
)
def test_changes_that_would_be_ignored_are_refused(name, model, train, message):
    with pytest.raises(ConfigError, match=message):
        load_profile(PROFILES / "smoke.yaml").configs(name, None, model, train)


def test_the_paper_profile_is_the_papers_recipe():
    profile = load_profile(PROFILES / "paper.yaml")
    for name, preset in PRESETS.items():
        model, train = profile.configs(name)
        assert (model, train) == (preset.model, preset.train)
    _, train = profile.configs("quadratic")
    assert (train.optimizer, train.lr, train.momentum, train.weight_decay) == (
        "sgd",
        0.1,
        0.9,
        1e-4,
    )
    assert (train.batch_size, train.epochs, train.warmup) == (100, 300, 0.05)


def test_changes_come_in_order_and_a_run_that_starts_from_another_has_its_model():
    presets = {"learned": {"train": {"epochs": 3}}, "quadratic_full": {"model": {"heads": 3}}}
    profile = Mine(model={"layers": 2}, train={"epochs": 2}, presets=presets)
    assert profile.configs("quadratic_pruned")[0] == profile.configs("quadratic_full")[0]
    assert profile.configs("quadratic")[1].epochs == 2
    assert profile.configs("learned")[1].epochs == 3
    assert profile.configs("learned", train_changes={"epochs": 4})[1].epochs == 4


def test_the_papers_presets_have_its_dropout_and_the_small_profiles_none():
    attention = [name for name in PRESETS if name != "resnet18"]
    assert {PRESETS[name].model.attention_dropout for name in attention} == {0.1}
    for name in ("quick", "smoke"):
        profile = load_profile(PROFILES / f"{name}.yaml")
        assert {profile.configs(preset)[0].attention_dropout for preset in PRESETS} == {0.0}


@pytest.mark.parametrize("word", ["epochs=", "position_lr= ", "epochs"])
def test_a_change_without_a_value_is_refused(word):
    with pytest.raises(ConfigError, match=f"--set {word}: not NAME=VALUE"):
        changes([word])


def test_a_change_whose_value_is_no_yaml_is_refused():
    with pytest.raises(ConfigError, match="^not valid YAML: "):
        changes(["epochs=3", "kernels=[3"])


def test_no_torch_is_imported():
    code = "import sys, attnconv.config, attnconv.training.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
