"""Wrong configurations are refused when they are made, with a message that names value, limit and remedy."""

from pathlib import Path

import pytest

from attnconv import config
from attnconv.config import (
    PRESETS,
    ConfigError,
    ModelConfig,
    Profile,
    TrainConfig,
    from_dict,
    load_profile,
    scaled,
    to_dict,
)

PROFILES = Path(__file__).parents[1] / "notebooks" / "profiles"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(kind="quadratc"), "kind = 'quadratc'.*'quadratic'"),
        (lambda: ModelConfig(heads=0), "heads = 0 must be: at least 1"),
        (lambda: ModelConfig(heads=(9, 9)), "one number per layer"),
        (lambda: ModelConfig(hidden=4.5), "hidden = 4.5 .*whole number"),
        (lambda: ModelConfig(layers=True), "layers = True"),
        (lambda: ModelConfig(dropout=1.0), r"dropout = 1.0 must be: in \[0, 1\)"),
        (lambda: ModelConfig(kind="learned", covariance="full"), "kind 'quadratic' only"),
        (lambda: ModelConfig(kind="learned_content", key_size=5), "even"),
        (lambda: TrainConfig(lr=-1.0), "lr = -1.0 must be: positive"),
        (lambda: TrainConfig(lr=float("nan")), "lr = nan must be: positive and finite"),
        (lambda: TrainConfig(epochs="6"), "epochs = '6'"),
        (lambda: TrainConfig(optimizer="adam"), "one of 'sgd', 'adamw'"),
        (lambda: from_dict(ModelConfig, {"hiden": 3}), "Did you mean 'hidden'"),
        (lambda: config.preset("quadratic16"), "Did you mean 'quadratic_16'"),
        (lambda: Profile(name="x", model={"depth": 3}), "no value named 'depth'"),
        (lambda: Profile(name="x", presets={"learned": {"modl": {}}}), "unknown section 'modl'"),
        (lambda: Profile(name="x", presets={"learnt": {}}), "no preset 'learnt'"),
        (lambda: Profile(name="x", presets={"learned": 3}), "preset 'learned': 3 must be sections"),
        (lambda: Profile(name="x", presets={"learned": {"train": 3}}), "preset 'learned': train = 3 must hold"),
        (lambda: Profile(name="x", presets={"learned": {"model": ["a"]}}), r"model = \['a'\] must hold"),
        (lambda: Profile(name="x", presets={"learned": {3: {}, "a": {}}}), "unknown section 3"),
        (lambda: Profile(name="x", model={"classes": 5}), "classes = 5 cannot be set.*other data"),
        (lambda: Profile(name="x", train={"start_from": "quadratic_full"}), "cannot start from 'quadratic_full'"),
        (lambda: Profile(name="x", runs=()), "at least one preset"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("value", ["1e-3", "3e-4"])
def test_yaml_reads_numbers_without_a_point_as_text_and_the_error_says_so(tmp_path, value):
    (tmp_path / "own.yaml").write_text(f"train: {{lr: {value}}}\n")
    with pytest.raises(ConfigError, match=r"own\.yaml.*lr.*write 0\.0"):
        load_profile(tmp_path / "own.yaml")


def test_profile_errors_name_the_file(tmp_path):
    (tmp_path / "own.yaml").write_text("trian: {}\n")
    with pytest.raises(ConfigError, match="own.yaml.*Did you mean 'train'"):
        load_profile(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text("train: {")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_profile(tmp_path / "own.yaml")
    with pytest.raises(ConfigError, match="no profile 'other'.*own"):
        load_profile(tmp_path / "other.yaml")
    (tmp_path / "own.yaml").write_bytes(b"description: caf\xe9\n")
    with pytest.raises(ConfigError, match="own.yaml cannot be read as UTF-8"):
        load_profile(tmp_path / "own.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match="folder.yaml cannot be read.*directory"):
        load_profile(tmp_path / "folder.yaml")


@pytest.mark.parametrize("file", sorted(PROFILES.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_profiles_are_sound(file):
    profile = load_profile(file)
    for name in PRESETS:
        model, train = profile.configs(name, 3)
        assert train.seed == 3 and from_dict(ModelConfig, to_dict(model)) == model


@pytest.mark.parametrize(
    ("name", "model", "train", "message"),
    [
        ("quadratic", {"image_size": [8, 8]}, {}, "image_size.*cannot be set.*that of the images"),
        ("quadratic", {"image_channels": 7}, {}, "image_channels = 7 cannot be set.*that of the images"),
        ("quadratic", {"classes": 5}, {}, "classes = 5 cannot be set.*that of the images"),
        ("quadratic", {"kind": "resnet"}, {}, "kind = 'resnet' cannot be set.*another preset.*resnet18"),
        ("quadratic_pruned", {"heads": 3}, {}, "'quadratic_full', so heads cannot be changed: change 'quadratic_full'"),
        ("resnet18", {}, {"start_from": "learned"}, "'resnet18' cannot start from 'learned'"),
        ("learned", {}, {"start_from": "learned"}, "'learned' cannot start from 'learned'"),
        ("quadratic", {}, {"start_from": "quadratic_full"}, "of one model"),
        ("quadratic_full", {}, {"start_from": "quadratic_ful"}, "Did you mean 'quadratic_full'"),
    ],
)
def test_changes_that_would_be_ignored_are_refused(name, model, train, message):
    with pytest.raises(ConfigError, match=message):
        load_profile(PROFILES / "smoke.yaml").configs(name, None, model, train)


def test_a_run_that_starts_from_another_has_its_model():
    profile = Profile(name="x", model={"layers": 2}, presets={"quadratic_full": {"model": {"heads": 3}}})
    assert profile.configs("quadratic_pruned")[0] == profile.configs("quadratic_full")[0]
    assert profile.configs("quadratic_pruned", None, {"heads": 4}, {"start_from": None})[0].heads == 4
    with pytest.raises(ConfigError, match="heads cannot be changed"):
        Profile(name="x", presets={"quadratic_pruned": {"model": {"heads": 3}}})


def test_the_paper_profile_is_the_papers_recipe():
    profile = load_profile(PROFILES / "paper.yaml")
    for name, preset in PRESETS.items():
        model, train = profile.configs(name)
        assert (model, train) == (preset.model, preset.train)
    _, train = profile.configs("quadratic")
    assert (train.optimizer, train.lr, train.momentum, train.weight_decay) == ("sgd", 0.1, 0.9, 1e-4)
    assert (train.batch_size, train.epochs, train.warmup) == (100, 300, 0.05)


def test_changes_come_in_order():
    profile = Profile(name="x", train={"epochs": 2}, presets={"learned": {"train": {"epochs": 3}}})
    assert profile.configs("quadratic")[1].epochs == 2
    assert profile.configs("learned")[1].epochs == 3
    assert profile.configs("learned", train_changes={"epochs": 4})[1].epochs == 4


def test_the_papers_presets_have_its_dropout_and_the_small_profiles_none():
    attention = [name for name in PRESETS if name != "resnet18"]
    assert {PRESETS[name].model.attention_dropout for name in attention} == {0.1}
    for name in ("quick", "smoke"):
        profile = load_profile(PROFILES / f"{name}.yaml")
        assert {profile.configs(preset)[0].attention_dropout for preset in PRESETS} == {0.0}


def test_hash_names_a_configuration():
    a, b = ModelConfig(), ModelConfig(heads=4)
    assert config.config_hash(a) == config.config_hash(ModelConfig()) != config.config_hash(b)


def test_learning_rates_follow_the_batch_size_with_sgd_only():
    assert scaled(TrainConfig(), 400) == {"batch_size": 400, "lr": 0.4}
    assert scaled(TrainConfig(position_lr=1.0), 50) == {"batch_size": 50, "lr": 0.05, "position_lr": 0.5}
    assert scaled(TrainConfig(optimizer="adamw"), 400) == {"batch_size": 400}
