"""The training loop: what it leaves, that it resumes to the same bits after real kills, and what it refuses."""

import copy
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from attnconv import heads, training
from attnconv.config import ModelConfig, TrainConfig, replace
from attnconv.data import DataError, load_data, normalize
from attnconv.models import build_model, position_parameters
from attnconv.precision import Computation
from attnconv.runs import Run, RunError, find_runs, identity, locked
from attnconv.training import TrainingError, build_optimizer, evaluate, load_run, lr_factor, set_seed, train

MODEL = ModelConfig(downsampling=4, layers=2, heads=3, hidden=8, mlp=8, key_size=4, resnet_width=4, dropout=0.1)
RECIPE = TrainConfig(epochs=3, batch_size=20, lr=0.05, augment=True, checkpoint_seconds=0.0, seed=5)


@pytest.fixture(scope="module")
def data():
    return load_data("embedded", progress=False).first(100, 50)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return train(MODEL, RECIPE, data, tmp_path_factory.mktemp("run"), preset="quadratic")


def test_bfloat16_trains_to_about_the_same(run, data, tmp_path):
    whole, half = (
        train(MODEL, replace(RECIPE, {"precision": name}), data, tmp_path / name, preset="quadratic")
        for name in ("float32", "bfloat16")
    )
    losses = [[line["train_loss"] for line in one.metrics] for one in (whole, half)]
    np.testing.assert_allclose(*losses, rtol=0.02)
    assert losses[0] != losses[1]
    assert half.test_accuracy == pytest.approx(whole.test_accuracy, abs=0.1)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("kind", ["quadratic", "learned_content", "resnet"])
def test_every_optimizer_learns_and_resumes_to_the_same_bits(optimizer, kind, data, tmp_path, monkeypatch):
    model = replace(MODEL, {"kind": kind})
    rates = dict(sgd=0.05, adamw=0.01, muon=0.02)
    recipe = replace(RECIPE, {"optimizer": optimizer, "lr": rates[optimizer], "label_smoothing": 0.1, "clip": 1.0})
    whole = train(model, recipe, data, tmp_path / "whole", progress=False)
    assert whole.metrics[-1]["train_loss"] < whole.metrics[0]["train_loss"]
    steps, take_step = [], training._Trainer.take_step

    def break_off(trainer, x, y):
        steps.append(1)
        if len(steps) == 8:
            raise RuntimeError("power cut")
        return take_step(trainer, x, y)

    monkeypatch.setattr(training._Trainer, "take_step", break_off)
    with pytest.raises(RuntimeError, match="power cut"):
        train(model, recipe, data, tmp_path / "cut", progress=False)
    assert_same_run(train(model, recipe, data, tmp_path / "cut", progress=False), whole)


def test_muon_takes_the_matrices_and_kernels_between_input_and_classifier(data):
    config = TrainConfig(optimizer="muon", lr=0.02, adamw_lr=0.001, position_lr=0.1)
    resnet = build_model(replace(MODEL, {"kind": "resnet"}))
    for model in (build_model(MODEL), resnet, copy.deepcopy(resnet).to(memory_format=torch.channels_last)):
        optimizer = build_optimizer(model, config)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        for group in optimizer.param_groups:
            group["lr"] = group["peak_lr"] if group["peak_lr"] == 0.02 else 0.0
        optimizer.step()
        moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        inner = {n for n, p in model.named_parameters() if p.dim() > 1 and n.startswith(("blocks", "stages"))}
        assert moved == {name for name in inner if not name.endswith("centres")}


def test_a_checkpoint_of_an_older_version_is_refused_clearly(data, tmp_path, monkeypatch):
    def stop(trainer, bar):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training._Trainer, "finish_epoch", stop)
        train(MODEL, RECIPE, data, tmp_path / "run", progress=False)
    file = tmp_path / "run" / "checkpoint" / "state.pt"
    state = torch.load(file, weights_only=True)
    del state["onednn"]
    torch.save(state, file)
    with pytest.raises(RunError, match="older version; remove .*run to start again"):
        train(MODEL, RECIPE, data, tmp_path / "run", progress=False)


def test_a_run_says_how_it_computed_and_goes_on_like_that_elsewhere(data, tmp_path, monkeypatch):
    ways = [Computation(bfloat16=True), Computation()]
    monkeypatch.setattr(training, "choose", lambda *_: ways[0])
    whole = train(MODEL, RECIPE, data, tmp_path / "whole", progress=False)
    assert whole.config["environment"]["computation"] == "bfloat16"
    evaluate, calls = training._Trainer.finish_epoch, []

    def stop_after_two(trainer, bar):
        evaluate(trainer, bar)
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("power cut")

    monkeypatch.setattr(training._Trainer, "finish_epoch", stop_after_two)
    with pytest.raises(RuntimeError, match="power cut"):
        train(MODEL, RECIPE, data, tmp_path / "cut", progress=False)
    monkeypatch.setattr(training, "choose", lambda *_: ways[1])  # a machine that would choose otherwise
    assert_same_run(train(MODEL, RECIPE, data, tmp_path / "cut", progress=False), whole)


def strip(metrics):
    """Metrics without what a clock says."""
    return [{k: v for k, v in line.items() if k not in ("seconds", "images_per_second")} for line in metrics]


def assert_same_run(a: Run, b: Run):
    assert (a.path / "model.safetensors").read_bytes() == (b.path / "model.safetensors").read_bytes()
    assert strip(a.metrics) == strip(b.metrics)
    assert a.heads.keys() == b.heads.keys()
    for name, values in a.heads.items():
        np.testing.assert_array_equal(values, b.heads[name])


def test_a_run_folder_is_complete(run, data):
    files = {file.name for file in run.path.iterdir()} - {".lock"}
    assert files == {"config.json", "metrics.jsonl", "heads.npz", "model.safetensors"}
    assert [line["epoch"] for line in run.metrics] == [1, 2, 3]
    assert run.model.image_size == (28, 28) and run.train == RECIPE
    assert run.config["data"]["key"] == data.key and run.config["environment"]["torch"] == torch.__version__
    assert run.heads["centre"].shape == (4, 2, 3, 2)


def test_the_reported_accuracy_is_the_last_epochs_of_the_saved_model(run, data):
    model, again = load_run(run.path)
    assert not model.training
    assert evaluate(model, data).accuracy == run.test_accuracy == again.metrics[-1]["test_accuracy"]
    assert run.right.mean() == run.test_accuracy


def test_recorded_centres_are_the_parameters(run):
    model, _ = load_run(run.path)
    for layer, centres in zip(model.attention_layers, run.heads["parameter_centre"][-1], strict=True):
        np.testing.assert_array_equal(layer.centres.detach().numpy(), centres)


@pytest.mark.parametrize("kind", ["quadratic", "learned", "learned_content", "resnet"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_kind_trains(kind, optimizer, data, tmp_path):
    recipe = replace(RECIPE, {"optimizer": optimizer, "lr": 0.01, "clip": 1.0, "epochs": 1})
    run = train(replace(MODEL, {"kind": kind}), recipe, data, tmp_path)
    assert run.finished and math.isfinite(run.metrics[-1]["test_loss"])
    assert bool(run.heads) == (kind != "resnet")


def test_training_learns(data, tmp_path):
    recipe = TrainConfig(epochs=40, batch_size=20, optimizer="adamw", lr=0.01, position_lr=0.1, augment=False)
    run = train(replace(MODEL, {"dropout": 0.0, "hidden": 16}), recipe, data, tmp_path)
    assert run.metrics[-1]["train_accuracy"] > 0.8  # chance is 0.1


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(run, data, tmp_path):
    assert_same_run(run, train(MODEL, RECIPE, data, tmp_path / "same"))
    other = train(MODEL, replace(RECIPE, {"seed": 6}), data, tmp_path / "other")
    assert other.metrics[-1]["train_loss"] != run.metrics[-1]["train_loss"]


def test_set_seed_covers_python_numpy_and_torch():
    draws = []
    for _ in range(2):
        set_seed(3)
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]


# Being stopped


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import test_training as t
t.train(t.MODEL, t.RECIPE, t.load_data("embedded", progress=False).first(100, 50), sys.argv[1], preset="quadratic")
"""


def start(folder: Path) -> subprocess.Popen:
    code = SCRIPT.format(tests=str(Path(__file__).parent))
    environment = {**os.environ, "ATTNCONV_QUIET": "1"}
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], env=environment, stderr=subprocess.PIPE)


def wait_for_checkpoint(process: subprocess.Popen, folder: Path) -> None:
    state = folder / "checkpoint" / "state.pt"
    before = state.stat().st_mtime_ns if state.is_file() else 0
    while process.poll() is None and not (state.is_file() and state.stat().st_mtime_ns > before):
        time.sleep(0.001)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_run_stopped_at_random_moments_ends_bit_identical(run, tmp_path, kill):
    chance = random.Random(int(kill))
    stops = 0
    while not Run(tmp_path).finished:
        process = start(tmp_path)
        if stops < 3:
            wait_for_checkpoint(process, tmp_path)
            time.sleep(chance.uniform(0, 0.02))
            process.send_signal(kill)
            stops += process.wait(60) != 0
        else:
            assert process.wait(60) == 0, process.stderr.read().decode()
        process.stderr.close()
    assert stops == 3
    assert_same_run(run, Run(tmp_path))


def test_an_interrupt_says_how_to_go_on(data, tmp_path, monkeypatch):
    monkeypatch.setattr(training._Trainer, "take_step", interrupted_after(3, training._Trainer.take_step))
    with pytest.raises(KeyboardInterrupt, match="epoch 1 of 3.*resumes by the same command"):
        train(MODEL, RECIPE, data, tmp_path)
    assert (tmp_path / "checkpoint" / "state.pt").is_file()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupted_after(steps, take_step):
    def stepping(self, x, y):
        if self.step == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(self, x, y)

    return stepping


def test_resuming_in_process_ends_bit_identical_with_rare_checkpoints(run, data, tmp_path, monkeypatch):
    """With a checkpoint per epoch and one at the interrupt, as in real use."""
    recipe = replace(RECIPE, {"checkpoint_seconds": 60.0})
    with monkeypatch.context() as patch:
        patch.setattr(training._Trainer, "take_step", interrupted_after(2, training._Trainer.take_step))
        with pytest.raises(KeyboardInterrupt):
            train(MODEL, recipe, data, tmp_path)
    assert_same_run(run, train(MODEL, recipe, data, tmp_path))


# What is never repeated or overwritten


def test_a_finished_run_is_not_trained_again(run, data, monkeypatch):
    monkeypatch.setattr(training, "_Trainer", lambda *_: pytest.fail("trained again"))
    assert train(MODEL, RECIPE, data, run.path, preset="quadratic").metrics == run.metrics


@pytest.mark.parametrize("change", [{"lr": 0.06}, {"seed": 1}, {"epochs": 4}])
def test_another_configuration_never_overwrites(run, data, change):
    before = (run.path / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="another configuration"):
        train(MODEL, replace(RECIPE, change), data, run.path)
    assert (run.path / "model.safetensors").read_bytes() == before


def test_other_data_never_overwrite(run, data):
    with pytest.raises(RunError, match="data set"):
        train(MODEL, RECIPE, data.first(90, 50), run.path)


def test_identity_ignores_only_what_cannot_change_the_result():
    same = identity(MODEL, replace(RECIPE, {"checkpoint_seconds": 9.0}), "k")
    assert same == identity(MODEL, RECIPE, "k") != identity(MODEL, RECIPE, "l")


def test_a_second_process_is_refused(data, tmp_path):
    with locked(tmp_path), pytest.raises(RunError, match="another process"):
        train(MODEL, RECIPE, data, tmp_path)


def test_unfinished_runs_are_not_found_and_not_loaded(run, tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text((run.path / "config.json").read_text())
    assert find_runs(tmp_path) == []
    with pytest.raises(RunError, match="not finished: 0 of 3 epochs"):
        load_run(tmp_path / "half")
    with pytest.raises(RunError, match="no run folder"):
        load_run(tmp_path)


def test_a_damaged_checkpoint_is_named(data, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match="state.pt is damaged"):
        train(MODEL, RECIPE, data, tmp_path)


# The recipe


def test_a_diverging_run_stops_and_says_where(data, tmp_path):
    recipe = replace(RECIPE, {"lr": 1e30})
    with pytest.raises(
        TrainingError, match=r"loss is (nan|inf) at epoch 1, step \d+ of 5 \(learning rate 1e\+30\).*state.pt"
    ):
        train(MODEL, recipe, data, tmp_path)
    state = torch.load(tmp_path / "checkpoint" / "state.pt", weights_only=True)
    assert math.isfinite(state["sums"][0].item())


def test_learning_rate_warms_up_then_falls_as_a_cosine():
    factors = [lr_factor(step, 100, 0.1) for step in range(100)]
    assert factors[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert factors[10] == 1 and factors[55] == pytest.approx(0.5) and 0 < factors[99] < 0.001
    assert lr_factor(0, 1, 0.0) == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_no_weight_decay_on_centres_and_spreads_and_their_own_rate(optimizer):
    model = build_model(MODEL)
    built = build_optimizer(model, TrainConfig(optimizer=optimizer, lr=0.1, position_lr=0.7, weight_decay=0.3))
    group = {id(p): g for g in built.param_groups for p in g["params"]}
    assert len(group) == len(list(model.parameters()))
    for p in position_parameters(model):
        assert (group[id(p)]["peak_lr"], group[id(p)]["weight_decay"]) == (0.7, 0.0)
    assert group[id(model.embed.weight)]["weight_decay"] == 0.3
    assert group[id(model.embed.bias)]["weight_decay"] == (0.3 if optimizer == "sgd" else 0.0)


def test_validation_images_are_held_out_of_training(data, tmp_path):
    run = train(MODEL, replace(RECIPE, {"validation": 20, "epochs": 1}), data, tmp_path)
    assert 0 <= run.metrics[0]["validation_accuracy"] <= 1
    rest, images, labels = data.hold_out(20, RECIPE.seed)
    assert len(rest.train_labels) == 80 and torch.bincount(labels).tolist() == [2] * 10


def test_more_validation_than_training_images_leaves_no_run_folder(data, tmp_path):
    with pytest.raises(DataError, match="100 validation images cannot be held out of 100"):
        train(MODEL, replace(RECIPE, {"validation": 100}), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pruning_starts_from_a_run_and_drops_its_degenerate_heads(data, tmp_path):
    full = replace(MODEL, {"covariance": "full"})
    first = train(full, replace(RECIPE, {"epochs": 1}), data, tmp_path / "full", preset="quadratic_full")
    model, _ = load_run(first.path)
    with torch.no_grad():
        model.attention_layers[0].spreads[1].zero_()  # a head that looks everywhere alike
    training.safetensors.torch.save_model(model, first.path / "model.safetensors")
    recipe = replace(RECIPE, {"epochs": 1, "start_from": "quadratic_full"})
    run = train(full, recipe, data, tmp_path / "pruned", preset="quadratic_pruned", start=first)
    assert run.model.heads == (2, 3)
    assert load_run(run.path)[0].attention_layers[0].centres.shape == (2, 2)
    assert run.heads["centre"].shape == (2, 2, 3, 2) and np.isnan(run.heads["centre"][:, 0, 2]).all()
    with pytest.raises(RunError, match="start_from"):
        train(full, recipe, data, tmp_path / "no-start")


def test_config_json_rebuilds_the_model(run):
    config = json.loads((run.path / "config.json").read_text())
    assert config["model"]["heads"] == 3 and config["preset"] == "quadratic"


def test_heads_are_measured_without_dropout(data, tmp_path):
    model = replace(MODEL, {"kind": "learned_content", "dropout": 0.5})
    run = train(model, replace(RECIPE, {"epochs": 1}), data, tmp_path)
    network, _ = load_run(run.path)
    seen = normalize(data.test_images[: training.GEOMETRY_IMAGES], data.mean, data.std)
    with torch.no_grad():
        inputs = network.eval().layer_inputs(seen)
        expected = heads.geometry(network.attention_layers, *network.config.grid, inputs)
    for name in ("reach", "entropy", "mass"):
        np.testing.assert_allclose(run.heads[name][-1], expected[name], rtol=1e-4, atol=1e-6)
