"""Wrong configurations are refused when they are made, with a message that names value, limit and remedy."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnconv import config
from attnconv.batch.cli import changes
from attnconv.config import PRESETS, ConfigError, ModelConfig, Profile, TrainConfig, from_dict, load_profile, scaled

HUGE = 10**5000
HASHES = ["2c8a4dcd", "59d39810", "fc5d6398", "c1c646a7", "709f33c3", "19291d10", "1f63b4c3"]
PROFILES = Path(__file__).parents[1] / "notebooks" / "profiles"
Mine = partial(Profile, name="x")


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (ModelConfig, dict(kind="quadratc"), "kind = 'quadratc' must be 'quadratic', 'learned'"),
        (ModelConfig, dict(heads=0), "heads = 0 must be greater than or equal to 1, or be a list"),
        (ModelConfig, dict(heads=(9, 9)), r"heads = \(9, 9\) must be one number per layer \(6\)"),
        (ModelConfig, dict(heads=[9, 9, 9, 9, 9, -1]), "heads = .*-1.* must .*be greater than or equal to 0"),
        (ModelConfig, dict(hidden=4.5), "hidden = 4.5 must be a whole number"),
        (ModelConfig, dict(hidden=10**7), "hidden = 10000000 must be less than or equal to 4096"),
        (ModelConfig, dict(hidden=HUGE), "hidden = a number of thousands of digits must be less than or equal to"),
        (TrainConfig, dict(lr=HUGE), "lr = a number of thousands of digits must be a number"),
        (ModelConfig, dict(image_size=(3, 4, 5)), r"image_size = \(3, 4, 5\) must .*2 items"),
        (ModelConfig, dict(layers=True), "layers = True must be a whole number"),
        (ModelConfig, dict(dropout=1.0), "dropout = 1.0 must be less than 1"),
        (ModelConfig, dict(centre_std=math.inf), "centre_std = inf must be a finite number"),
        (ModelConfig, dict(spread_start=math.nan), "spread_start = nan must be a finite number"),
        (ModelConfig, dict(spread_start=0.0), "spread_start = 0.0 must be greater than 0"),
        (ModelConfig, dict(kind="learned", covariance="full"), "kind 'quadratic' only"),
        (ModelConfig, dict(kind="learned_content", key_size=5), "key_size = 5 must be even"),
        (ModelConfig, dict(kind="learned_content", hidden=5), "hidden = 5 must be even"),
        (TrainConfig, dict(lr=-1.0), "lr = -1.0 must be greater than 0"),
        (TrainConfig, dict(weight_decay=math.inf), "weight_decay = inf must be a finite number"),
        (TrainConfig, dict(clip="none"), "clip = 'none' must be a number"),
        (TrainConfig, dict(epochs="6"), "epochs = '6' must be a whole number. Write it without quotes"),
        (TrainConfig, dict(optimizer="adam"), "optimizer = 'adam' must be 'sgd', 'adamw' or 'muon'"),
        (TrainConfig, dict(seed=2**31), "seed = 2147483648 must be less than 2147483648"),
        (TrainConfig, dict(validation="x" * 1000), r"validation = 'xx.*x\.\.\. must be"),
        (from_dict, dict(cls=ModelConfig, values={"hiden": 3}), "Did you mean 'hidden'"),
        (from_dict, dict(cls=ModelConfig, values={3: 3}), "no value named '3'. Known names: kind, "),
        (from_dict, dict(cls=ModelConfig, values=[3]), r"ModelConfig: \[3\] must hold 'name: value' lines"),
        (config.preset, dict(name="quadratic16"), "Did you mean 'quadratic_16'"),
        (Profile, {}, "Profile.name = None must be given"),
        (Mine, dict(model={"depth": 3}), "no value named 'depth'"),
        (Mine, dict(model=3), "Profile.model = 3 must be 'name: value' lines"),
        (Mine, dict(presets={"learned": {"modl": {}}}), "presets.learned.modl = 'modl' must be 'model' or 'train'"),
        (Mine, dict(presets={"learnt": {}}), "no preset 'learnt'.*Did you mean 'learned'"),
        (Mine, dict(presets={"learned": 3}), "presets.learned = 3 must be 'name: value' lines"),
        (Mine, dict(presets={"learned": {"train": 3}}), "presets.learned.train = 3 must be 'name: value' lines"),
        (Mine, dict(presets={"learned": {"model": ["a"]}}), r"learned.model = \['a'\] must be 'name: value' lines"),
        (Mine, dict(presets={"learned": {3: {}, "a": {}}}), "presets.learned.3 = 3 must be 'model' or 'train'"),
        (Mine, dict(presets={3: {}}), "presets.3 = 3 must be a string"),
        (Mine, dict(model={"classes": 5}), "classes = 5 cannot be set.*other data"),
        (Mine, dict(train={"start_from": "quadratic_full"}), "start_from = .* cannot be set.*quadratic_pruned"),
        (Mine, dict(presets={"quadratic_pruned": {"model": {"heads": 3}}}), "heads cannot be changed"),
        (Mine, dict(presets={"learned": {"model": None}}), "learned.model = None must be 'name: value' lines"),
        (Mine, dict(runs=()), r"runs = \(\) must have at least 1 item"),
        (Mine, dict(seeds=[0, -1]), r"seeds = \[0, -1\] must be greater than or equal to 0"),
    ],
)
def test_refusals(make, values, message):
    with pytest.raises(ConfigError, match=message) as refused:
        make(**values)
    said = str(refused.value)
    assert "\n" not in said and "pydantic" not in said and len(said) < 600


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_is_taken_or_refused_in_one_line(data):
    """Whatever a file may hold: what is taken comes back from JSON as it was."""
    cls = data.draw(st.sampled_from([ModelConfig, TrainConfig, Profile]))
    plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    nested = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(plain, inner), max_leaves=4)
    values = data.draw(st.dictionaries(st.sampled_from(sorted(cls.model_fields)), nested, max_size=3))
    try:
        made = from_dict(cls, {"name": "x", **values} if cls is Profile else values)
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert from_dict(cls, json.loads(json.dumps(config.to_dict(made)))) == made


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
    assert [config.config_hash(PRESETS[name].model, PRESETS[name].train) for name in PRESETS][: len(HASHES)] == HASHES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own", b"trian: {}\n", "own.yaml.*Did you mean 'train'"),
        ("own", b"train: {epochs: %s}" % (b"9" * 5000), "own.yaml is not valid YAML: Exceeds the limit"),
        ("own", b"train: {", "own.yaml is not valid YAML"),
        ("own", b"train: {epochs: 3}\ntrain: {epochs: 4}", "own.yaml is not valid YAML: a name stands twice.*line 1"),
        ("own", b"train: {epochs: 1:30}", "own.yaml is not valid YAML: .*'1:30'"),
        ("own", b"recorded: !!bool x", "own.yaml is not valid YAML: 'x'"),
        ("own", b"- train", r"own.yaml: Profile: \['train'\] must hold 'name: value' lines"),
        ("own", b"description: caf\xe9\n", "own.yaml cannot be read as UTF-8"),
        ("other", b"", "no profile 'other'.*own"),
        ("folder", b"", "folder.yaml cannot be read.*directory"),
    ],
)
def test_profile_errors_name_the_file(tmp_path, name, content, message):
    (tmp_path / "own.yaml").write_bytes(content)
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=message):
        load_profile(tmp_path / f"{name}.yaml")


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_profiles_are_sound_and_their_study_is_of_short_runs_of_a_narrow_model(file):
    profile = load_profile(file)
    for name in PRESETS:
        model, train = profile.configs(name, 3)
        assert train.seed == 3 and from_dict(ModelConfig, config.to_dict(model)) == model
    study, longer = profile.study, profile.study.longer or profile.study
    model, recipe = profile.configs("quadratic", 0, study.model | longer.model, study.train | longer.train)
    assert recipe.epochs <= 4 and model.hidden <= 32 and recipe.position_lr


@pytest.mark.parametrize(
    ("name", "model", "train", "message"),
    [
        ("quadratic", {"image_size": [8, 8]}, {}, "image_size.*cannot be set.*that of the images"),
        ("quadratic", {"image_channels": 7}, {}, "image_channels = 7 cannot be set.*that of the images"),
        ("quadratic", {"classes": 5}, {}, "classes = 5 cannot be set.*that of the images"),
        ("quadratic", {"kind": "resnet"}, {}, "kind = 'resnet' cannot be set.*another preset.*resnet18"),
        ("quadratic_pruned", {"heads": 3}, {}, "'quadratic_full', so heads cannot be changed: change 'quadratic_full'"),
        ("quadratic_full", {}, {"start_from": "quadratic_pruned"}, "start_from = 'quadratic_pruned' cannot be set"),
        ("quadratic_pruned", {}, {"start_from": None}, "start_from = None cannot be set: it is the preset's"),
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
    assert (train.optimizer, train.lr, train.momentum, train.weight_decay) == ("sgd", 0.1, 0.9, 1e-4)
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


def test_learning_rates_follow_the_batch_size_with_sgd_only():
    assert scaled(TrainConfig(), 400) == {"batch_size": 400, "lr": 0.4}
    own = {"position_lr": 1.0, "encoding_lr": 0.5}
    assert scaled(TrainConfig(**own), 50) == {"batch_size": 50, "lr": 0.05, "position_lr": 0.5, "encoding_lr": 0.25}
    assert scaled(TrainConfig(optimizer="adamw"), 400) == {"batch_size": 400}
    for size in (0, 10**400):
        with pytest.raises(ConfigError, match="batch_size = .* must be"):
            scaled(TrainConfig(), size)
