"""Runs trained for a limited time, packed, brought to another place, and used there; stopped and killed for real."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from attnconv import cli, record, results, speed
from attnconv.config import Profile, TrainConfig, replace, rescaled, scaled
from attnconv.record import measure_attention, pack, rounded, train_all, unpack
from attnconv.runs import Run, RunError, find_runs
from attnconv.training import TrainingError, evaluate, load_run
from attnconv.workspace import open_workspace

PROFILE = """
data: embedded
train_images: 100
test_images: 50
runs: [quadratic, learned_content, resnet18]
model: {downsampling: 4, layers: 2, heads: 3, hidden: 8, mlp: 8, key_size: 4, resnet_width: 4}
train: {epochs: 2, batch_size: 20, lr: 0.05, checkpoint_seconds: 0.0}
"""
NAMES = ("quadratic", "learned_content", "resnet18")


@pytest.fixture(scope="module", autouse=True)
def small():
    """Limits that small models reach: nearly every matrix is rounded. One thread: the models are too small for two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "KEPT_IN_FLOAT32", 40)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp("profiles") / "tiny.yaml"
    path.write_text(PROFILE)
    return path


@pytest.fixture(scope="module")
def away(profile, tmp_path_factory):
    """The machine where training happened: its workspace, with all runs finished and packed in ``box``."""
    work = open_workspace(str(profile), output=tmp_path_factory.mktemp("away"))
    assert train_all(work, NAMES, [0], folder=work.folder / "box") == ([], [])
    return work


@pytest.fixture(scope="module")
def home(away, tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    unpack([away.folder / "box"], folder / "runs")
    return folder


def run_of(work_or_folder, name):
    folder = getattr(work_or_folder, "folder", work_or_folder)
    return next(run for run in find_runs(folder / "runs") if run.preset == name)


# What comes home


def test_the_folder_keeps_to_its_contract(away):
    files = sorted((away.folder / "box").iterdir())
    assert len(files) <= record.MAX_FILES and all(file.stat().st_size < 16 * 2**20 for file in files)
    assert {file.suffix for file in files} == {".zip", ".safetensors"}
    assert all(set(file.name) <= {*"abcdefghijklmnopqrstuvwxyz0123456789._-"} for file in files)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_comes_home_but_for_rounding(away, home, name):
    there, here = run_of(away, name), run_of(home, name)
    assert here.recorded and here.finished and not there.recorded
    assert here.path.name == there.path.name and here.metrics == there.metrics
    for key, values in there.heads.items():
        np.testing.assert_array_equal(values, here.heads[key])
    (old, _), (new, _) = load_run(there.path), load_run(here.path)
    for (key, a), b in zip(old.state_dict().items(), new.state_dict().values(), strict=True):
        assert b.dtype == a.dtype, key
        torch.testing.assert_close(b, rounded(a).to(a.dtype), rtol=0, atol=0)
        if a.is_floating_point():
            torch.testing.assert_close(b, a, rtol=2**-8, atol=1e-30)
    again = evaluate(new, away.data)
    assert again.accuracy == here.config["record"]["test_accuracy_of_rounded_weights"]
    assert again.loss == pytest.approx(evaluate(old, away.data).loss, rel=0.02)


def test_matrices_travel_in_bfloat16_and_small_tensors_as_they_are(home):
    tensors = safetensors.torch.load_file(run_of(home, "quadratic").path / "model.safetensors")
    assert tensors["blocks.0.attention.value.weight"].dtype == torch.bfloat16
    assert tensors["blocks.0.attention.centres"].dtype == tensors["classifier.bias"].dtype == torch.float32


def test_the_manifest_says_where_runs_come_from(home):
    manifest = json.loads((home / "runs" / "runs.json").read_text())
    assert len(manifest) == 3
    entry = manifest[run_of(home, "quadratic").path.name]
    session = entry["sessions"][0]
    assert {"started", "device", "torch", "commit", "command"} <= session.keys() and entry["seconds"] > 0
    assert entry["sha256"].keys() >= {"config.json", "metrics.jsonl", "model.safetensors", "attention.npz"}


def test_unpacking_twice_changes_nothing(away, home):
    before = {file: file.stat().st_mtime_ns for file in home.glob("runs/*/*")}
    assert all(line.endswith("nothing new") for line in unpack([away.folder / "box"], home / "runs"))
    assert {file: file.stat().st_mtime_ns for file in home.glob("runs/*/*")} == before


def test_what_does_not_fit_is_named_and_comes_with_the_next_call(away, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MAX_FILE", 50_000)  # ResNet18 takes several shards
    monkeypatch.setattr(record, "MAX_FILES", 4)
    (away.folder / "runs" / record.PACKED).unlink(missing_ok=True)
    folders, names = [], set()
    for call in range(4):
        folders.append(tmp_path / f"call-{call}")
        left = pack(away.folder / "runs", folders[-1])
        files = list(folders[-1].glob("*.safetensors"))
        assert len(files) < 4 and not names & {file.name for file in files}
        names |= {file.name for file in files}
        assert pack(away.folder / "runs", folders[-1]) == left  # the same files are still there: nothing changes
        assert {file.name for file in folders[-1].glob("*.safetensors")} == {file.name for file in files}
        if len(folders) == 1:
            assert any("resnet18" in line and "weights" in line for line in left)
        if not left:
            break
    said = unpack(folders, tmp_path / "runs")
    assert len(find_runs(tmp_path / "runs")) == 3 and len(folders) > 1
    assert all((run.path / "model.safetensors").is_file() for run in find_runs(tmp_path / "runs")), said


def test_a_run_without_weights_still_has_its_numbers(away, home, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "MAX_FILES", 1)
    (away.folder / "runs" / record.PACKED).unlink(missing_ok=True)
    assert len(pack(away.folder / "runs", tmp_path / "box")) == 3
    unpack([tmp_path / "box"], tmp_path / "runs")
    run = run_of(tmp_path, "learned_content")
    assert run.finished and run.test_accuracy == run_of(away, "learned_content").test_accuracy
    assert run.attention.keys() == run_of(home, "learned_content").attention.keys()
    with pytest.raises(RunError, match="recorded without its weights"):
        load_run(run.path)


def test_weights_may_stay_behind_and_come_later(away, tmp_path):
    said = unpack([away.folder / "box"], tmp_path / "runs", ["resnet18", "quadratic-seed0"])
    assert sum("without weights" in line for line in said) == 2
    there = {run.preset: (run.path / "model.safetensors").is_file() for run in find_runs(tmp_path / "runs")}
    assert there == {"quadratic": False, "learned_content": True, "resnet18": False}
    with pytest.raises(RunError, match="--without-weights quadratic_16: no such run"):
        unpack([away.folder / "box"], tmp_path / "other", ["quadratic_16"])
    assert not (tmp_path / "other").exists()
    unpack([away.folder / "box"], tmp_path / "runs")
    assert all((run.path / "model.safetensors").is_file() for run in find_runs(tmp_path / "runs"))


def test_what_was_measured_after_an_earlier_call_comes_home_too(profile, tmp_path, monkeypatch):
    """The time was up when training had ended, before its attention was measured."""

    def interrupted(*_):
        raise KeyboardInterrupt

    work = open_workspace(str(profile), output=tmp_path / "away")
    with monkeypatch.context() as patch:
        patch.setattr(record, "_check", interrupted)
        train_all(work, NAMES[:1], [0], folder=tmp_path / "first")
    train_all(work, NAMES[:1], [0], folder=tmp_path / "second")
    unpack([tmp_path / "first"], tmp_path / "runs")
    assert not run_of(tmp_path, NAMES[0]).attention
    unpack([tmp_path / "first", tmp_path / "second"], tmp_path / "runs")
    run = run_of(tmp_path, NAMES[0])
    assert "mean" in run.attention and "test_accuracy_of_rounded_weights" in run.config["record"]
    assert (run.path / "model.safetensors").is_file()


def test_weights_are_not_packed_without_their_run(away, tmp_path, monkeypatch):
    (away.folder / "runs" / record.PACKED).unlink(missing_ok=True)
    sizes = [
        sum(len((run.path / name).read_bytes()) for name in record.SMALL if (run.path / name).is_file())
        for run in find_runs(away.folder / "runs")
    ]
    largest = max(sizes)
    monkeypatch.setattr(record, "MAX_FILE", largest - 1)
    assert len(pack(away.folder / "runs", tmp_path / "box")) >= 1
    assert unpack([tmp_path / "box"], tmp_path / "runs")
    monkeypatch.undo()
    pack(away.folder / "runs", tmp_path / "rest")
    unpack([tmp_path / "rest"], tmp_path / "runs")
    assert len(find_runs(tmp_path / "runs")) == 3


# What is refused


def test_a_folder_that_cannot_be_made_is_refused_before_training(profile, tmp_path):
    (tmp_path / "file").touch()
    work = open_workspace(str(profile), output=tmp_path / "away")
    with pytest.raises(RunError, match="cannot be a folder"):
        train_all(work, NAMES, [0], folder=tmp_path / "file")
    assert not (tmp_path / "away" / "runs").exists()
    with pytest.raises(RunError, match="cannot be a folder"):
        record._make(tmp_path / "file")


@pytest.mark.parametrize("error", [OSError(22, "Invalid argument"), RuntimeError("record.zip is encrypted")])
def test_damage_of_any_kind_is_one_message(away, tmp_path, monkeypatch, error):
    """What zipfile raises for flipped bits is of many kinds."""
    box = copy(away, tmp_path / "box")
    random, whole = np.random.default_rng(0), (box / record.ARCHIVE).read_bytes()
    for _ in range(100):
        broken = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            broken[place] ^= 1 << random.integers(8)
        (box / record.ARCHIVE).write_bytes(broken)
        with contextlib.suppress(RunError):
            record._checked(box)

    def testzip(_):
        raise error

    monkeypatch.setattr(zipfile.ZipFile, "testzip", testzip)
    with pytest.raises(RunError, match="is damaged .*copy it again"):
        record._checked(box)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_limit_is_a_limit_too():
    with record._stop_after(math.inf, 1.0):
        time.sleep(0.1)
    with pytest.raises(KeyboardInterrupt), record._stop_after(math.nan, 1.0):
        pass


def copy(away, folder):
    folder.mkdir()
    for file in (away.folder / "box").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_missing_damaged_and_mixed_up_files_are_named_and_nothing_is_written(away, tmp_path):
    with pytest.raises(RunError, match="no record.zip"):
        unpack([tmp_path], tmp_path / "runs")
    box = copy(away, tmp_path / "missing")
    shard = next(box.glob("quadratic-*.safetensors"))
    shard.unlink()
    with pytest.raises(RunError, match=rf"{shard.name} is missing"):
        unpack([box], tmp_path / "runs")
    box = copy(away, tmp_path / "damaged")
    shard = next(box.glob("quadratic-*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(RunError, match=rf"{shard.name} is damaged"):
        unpack([box], tmp_path / "runs")
    box = copy(away, tmp_path / "mixed")
    (box / "other-seed1-00000000.weights-1-of-1.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="other-seed1-00000000.* does not belong"):
        unpack([box], tmp_path / "runs")
    box = copy(away, tmp_path / "zip")
    content = (box / "record.zip").read_bytes()
    (box / "record.zip").write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match="record.zip is damaged"):
        unpack([box], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("what", ["hash", "metrics"])
def test_a_different_run_is_never_overwritten(away, tmp_path, what):
    unpack([away.folder / "box"], tmp_path / "runs")
    path = run_of(tmp_path, "quadratic").path
    if what == "hash":
        config = json.loads((path / "config.json").read_text()) | {"hash": "00000000"}
        (path / "config.json").write_text(json.dumps(config))
    else:
        (path / "metrics.jsonl").write_text((path / "metrics.jsonl").read_text().replace("0.", "0.1"))
    before = {file: file.read_bytes() for file in tmp_path.glob("runs/*/*")}
    with pytest.raises(RunError, match=r"quadratic-seed0-\w+ holds another"):
        unpack([away.folder / "box"], tmp_path / "runs")
    assert {file: file.read_bytes() for file in tmp_path.glob("runs/*/*")} == before


# Stopped and killed


def start(profile, folder, *more):
    command = [sys.executable, "-m", "attnconv", "train-all", "--profile", str(profile), "--output", str(folder)]
    environment = {**os.environ, "ATTNCONV_QUIET": "1", "OMP_NUM_THREADS": "1"}
    command += ["--pack", str(folder / "box"), *more]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_time_runs_out_and_another_machine_goes_on(profile, tmp_path, monkeypatch, capsys):
    """Stopped by the limit in a long run; its checkpoint is carried to a fresh machine, which resumes it."""

    def minutes(folder, limit):
        monkeypatch.setattr(cli, "STARTED", time.monotonic())
        command = ["train-all", "quadratic", "--profile", str(profile), "--epochs", "5000", "--minutes", str(limit)]
        assert cli.main([*command, "--output", str(folder), "--pack", str(folder / "box")]) == 75
        assert time.monotonic() - cli.STARTED < 60 * limit
        assert "To do: quadratic, seed 0. Call again" in capsys.readouterr().out

    for limit in (0.06, 0.2, 0.6):  # 2 of the 3.6 s are kept for checkpoint and packing; a busy machine takes longer
        minutes(tmp_path / "first", limit)
        runs = [Run(file.parent) for file in (tmp_path / "first" / "runs").glob("*/config.json")]
        if runs and runs[0].metrics:
            break
    first = runs[0]
    assert not first.finished and 0 < len(first.metrics) < 5000

    second = tmp_path / "second"
    with monkeypatch.context() as patch:
        patch.setattr(record, "MAX_FILES", 1)
        (tmp_path / "first" / "runs" / record.PACKED).unlink()
        assert "resume" in pack(tmp_path / "first" / "runs", tmp_path / "bare")[0]
    assert "without its checkpoint" in unpack([tmp_path / "bare"], second / "runs")[0]
    said = unpack([tmp_path / "first" / "box"], second / "runs")
    assert "to be resumed" in said[0] and find_runs(second / "runs") == []
    minutes(second, limit)
    run = Run(second / "runs" / first.path.name)
    assert len(run.metrics) > len(first.metrics) and run.metrics[: len(first.metrics)] == first.metrics
    assert len(run.config["sessions"]) == 2
    # The first machine has fewer epochs of the same training: nothing is lost by unpacking its files again.
    assert "nothing new" in unpack([tmp_path / "first" / "box"], second / "runs")[0]


def test_killed_in_the_middle_what_was_packed_is_whole_and_the_rest_resumes(profile, tmp_path):
    long = ("quadratic", "resnet18", "--epochs", "20")
    process = start(profile, tmp_path, *long)
    while process.poll() is None and not list(tmp_path.glob("runs/resnet18*/checkpoint/state.pt")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    process.stdout.close()
    unpack([tmp_path / "box"], tmp_path / "home" / "runs")
    assert [run.preset for run in find_runs(tmp_path / "home" / "runs")] == ["quadratic"]
    process = start(profile, tmp_path, *long)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "Nothing is left to do" in said, said
    unpack([tmp_path / "box"], tmp_path / "home" / "runs")
    assert [run.preset for run in find_runs(tmp_path / "home" / "runs")] == ["resnet18", "quadratic"]


def test_what_was_pushed_out_is_packed_again(away, tmp_path, monkeypatch):
    """A checkpoint gives way to a run that has finished; taken away with the folder, it must not count as taken."""
    runs = tmp_path / "runs"
    shutil.copytree(away.folder / "runs", runs, ignore=shutil.ignore_patterns(record.PACKED))
    real = record._items
    monkeypatch.setattr(record, "_items", lambda folder: real(folder)[:1])
    assert pack(runs, tmp_path / "box") == []
    (first,) = tmp_path.glob("box/*.safetensors")
    monkeypatch.setattr(record, "_items", lambda folder: real(folder)[1::-1])
    monkeypatch.setattr(record, "MAX_FILES", 2)  # room for one of the two
    assert first.name.split(".")[0] in pack(runs, tmp_path / "box")[0] and not first.exists()
    shutil.rmtree(tmp_path / "box")
    assert pack(runs, tmp_path / "box") == [] and first.exists()


def test_a_folder_from_which_some_files_were_taken_is_made_whole(away, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(away.folder / "runs", runs, ignore=shutil.ignore_patterns(record.PACKED))
    for taken in ("record.zip", "quadratic*.safetensors"):
        pack(runs, tmp_path / "box")
        next(tmp_path.glob(f"box/{taken}")).unlink()
        pack(runs, tmp_path / "box")
        unpack([tmp_path / "box"], tmp_path / "home" / "runs")


def test_killed_while_packing_the_folder_stays_whole(away, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    shutil.copytree(away.folder / "runs", runs, ignore=shutil.ignore_patterns(record.PACKED))
    real = record._items
    monkeypatch.setattr(record, "_items", lambda folder: real(folder)[:1])
    pack(runs, tmp_path / "box")
    monkeypatch.setattr(record, "_items", real)
    with monkeypatch.context() as patch:
        patch.setattr(record, "_write_archive", lambda *_: (_ for _ in ()).throw(SystemExit("killed")))
        with pytest.raises(SystemExit):
            pack(runs, tmp_path / "box")
    assert len(unpack([tmp_path / "box"], tmp_path / "home" / "runs")) == 1
    assert pack(runs, tmp_path / "box") == [] and not list(tmp_path.glob("box/.*"))
    assert len(unpack([tmp_path / "box"], tmp_path / "home" / "runs")) == 3


def test_packing_where_there_are_no_runs_is_refused(tmp_path):
    with pytest.raises(RunError, match="holds no runs to pack"):
        pack(tmp_path / "runs", tmp_path / "box")
    assert not (tmp_path / "box").exists()


def test_a_run_that_diverges_does_not_cost_the_others(away, monkeypatch, capsys):
    real = type(away).run

    def broken(self, name, *rest, **more):
        if name == "quadratic":
            raise TrainingError("The loss is nan")
        return real(self, name, *rest, **more)

    monkeypatch.setattr(type(away), "run", broken)
    assert train_all(away, ["quadratic", "resnet18"], [0]) == (["quadratic, seed 0"], [])
    assert "The loss is nan" in capsys.readouterr().out


# A record in use


@pytest.fixture
def without_data(profile, home, tmp_path, monkeypatch):
    """A workspace on the record, on a machine that has no data set and could not get one."""
    monkeypatch.setenv("ATTNCONV_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr("attnconv.data._download", lambda *_: pytest.fail("downloaded"))
    return open_workspace(str(profile), data="cifar10", output=home)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_stands_in_for_training_without_data(without_data, home, name, capsys):
    run = without_data.run(name)
    assert run.path == run_of(home, name).path
    assert "the recorded run" in capsys.readouterr().out
    assert without_data.configs(name) == (run.model, run.train)
    if name != "resnet18":
        assert without_data.attention(run)["mean"].shape == (4, 2, 3, 7, 7)


def test_a_record_stands_in_where_the_data_differ_but_never_for_another_configuration(profile, home, away, tmp_path):
    work = open_workspace(str(profile), output=home)
    assert work.run("quadratic", train_changes={}).recorded
    changed = work.run("quadratic", train_changes={"epochs": 1})
    assert not changed.recorded and changed.train.epochs == 1
    assert work.run("quadratic").recorded  # the changed run is no reason to leave the record
    fresh = work.run("quadratic", fresh=True)
    assert fresh.path.name == run_of(away, "quadratic").path.name
    assert not work.run("quadratic", 1).recorded  # no record of that seed: trained


def test_a_stale_run_that_is_no_record_is_never_used(profile, away, tmp_path):
    unpack([away.folder / "box"], tmp_path / "runs")
    path = run_of(tmp_path, "quadratic").path
    config = json.loads((path / "config.json").read_text())
    del config["record"]
    stale = path.rename(path.with_name("quadratic-seed0-00000000"))
    (stale / "config.json").write_text(json.dumps(config))
    work = open_workspace(str(profile), output=tmp_path)
    assert work.record("quadratic") is None and work.run("quadratic").path != stale


# Attention


@pytest.mark.parametrize("name", NAMES[:2])
def test_kept_attention_is_what_the_layers_do(away, name):
    run = run_of(away, name)
    kept, (model, _) = away.attention(run), load_run(run.path)
    assert kept["mean"].sum((-2, -1)) == pytest.approx(1, abs=1e-5)
    x = record.normalize(away.data.test_images, away.data.mean, away.data.std)
    with torch.no_grad():
        inputs = model.layer_inputs(x)
        for index, layer in enumerate(model.attention_layers):
            p = layer.probabilities(inputs[index]) if name == "learned_content" else layer.probabilities(7, 7)[None]
            for q, (row, column) in enumerate(kept["queries"]):
                maps = p[:, :, row, column].numpy()
                np.testing.assert_allclose(kept["mean"][q, index], maps.mean(0), atol=1e-3)
                for single, image in zip(kept.get("single", ()), kept.get("images", ()), strict=True):
                    np.testing.assert_allclose(single[q, index], maps[image], atol=1e-3)
    if name == "learned_content":
        assert kept["pixels"].shape == (3, 28, 28, 1) and kept["images"].tolist() == [0, 7, 23]
        assert kept["agreement"].shape == kept["content_share"].shape == (2, 3)


def test_heads_that_were_pruned_are_nan(away):
    model, _ = load_run(run_of(away, "quadratic").path)
    layer = model.attention_layers[0]
    layer.heads = 2
    layer.centres, layer.spreads = (torch.nn.Parameter(p[:2].detach()) for p in (layer.centres, layer.spreads))
    mean = measure_attention(model, away.data)["mean"]
    assert np.isnan(mean[:, 0, 2]).all() and np.isfinite(mean[:, 1]).all()


# Other schedules and batch sizes


def test_learning_rates_follow_the_batch_size_with_sgd_only():
    assert scaled(TrainConfig(), 400) == {"batch_size": 400, "lr": 0.4}
    assert scaled(TrainConfig(position_lr=1.0), 50) == {"batch_size": 50, "lr": 0.05, "position_lr": 0.5}
    assert scaled(TrainConfig(optimizer="adamw"), 400) == {"batch_size": 400}


def test_schedules_shrink_in_proportion():
    profile = rescaled(Profile(name="p"), epochs=90, batch_size=200)
    assert (profile.configs("quadratic")[1].epochs, profile.configs("quadratic")[1].lr) == (90, 0.2)
    assert (profile.configs("quadratic_pruned")[1].epochs, profile.configs("quadratic_pruned")[1].lr) == (30, 0.02)
    with pytest.raises(ValueError, match="epochs = 0"):
        rescaled(Profile(name="p"), epochs=0)


def test_a_variant_is_named_by_its_run_and_in_tables(profile, tmp_path, capsys):
    command = ["train", "quadratic", "--profile", str(profile), "--output", str(tmp_path), "--epochs", "1"]
    assert cli.main([*command, "--batch-size", "50"]) == 0
    assert cli.main([*command, "--batch-size", "50", "--set", "lr=0.3"]) == 0
    assert sorted(run.train.lr for run in find_runs(tmp_path / "runs")) == [0.125, 0.3]
    run = min(find_runs(tmp_path / "runs"), key=lambda run: run.train.lr)
    run.config["data"]["name"] = "cifar10"
    model, recipe = open_workspace("paper").profile.configs("quadratic")
    assert results.difference(run) == "smaller model"
    run.__dict__["model"] = model
    assert results.difference(run) == "100 training images, 1 epoch, batch 50, learning rate 0.125"
    run.__dict__["train"] = replace(recipe, {"epochs": 1, "batch_size": 50, "lr": 0.05})
    run.config["data"]["train_images"] = 50_000
    assert results.difference(run) == "1 epoch, batch 50, learning rate 0.05"
    run.__dict__["train"] = replace(recipe, {"optimizer": "adamw", "lr": 0.01})
    assert results.difference(run) == "learning rate 0.01, optimizer adamw"
    run.__dict__["model"] = replace(model, {"mlp": 8})
    assert results.difference(run) == "another model (mlp)"
    run.config["data"]["form"] = "Parquet, JPEG images"
    assert results.result("SA quadratic", [run]).why.endswith("JPEG copy of CIFAR-10")


# Speed


def test_the_speed_report_measures_and_survives_a_row_that_fails(profile, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "matrix_rate", lambda device: 1e11)
    real = speed.cost
    monkeypatch.setattr(speed, "cost", lambda model: real(model) if model.kind == "quadratic" else 1 / 0)
    file = tmp_path / "speed.json"
    report = speed.measure(open_workspace(str(profile)).profile, ["quadratic", "resnet18"], seconds=0.01, file=file)
    assert json.loads(file.read_text()) == report
    rows = {(row["preset"], row["variant"]): row for row in report["rows"]}
    library, dense = rows["quadratic", "library"], rows["quadratic", speed.DENSE_FLOAT32]
    assert library["forward_flops_per_image"] < dense["forward_flops_per_image"]
    assert library["share_of_bfloat16_rate"] == library["flops"] / 1e11 > 0
    assert "ZeroDivisionError" in rows["resnet18", "library"]["error"]
    text = speed.table(report)
    assert "1.0 x" in text and "ZeroDivisionError" in text and "images/s" in text


def test_the_matrix_rate_is_a_rate():
    assert 1e6 < speed.matrix_rate(torch.device("cpu"), 64, 0.01) < 1e15


def test_the_commands_say_what_they_did(profile, away, tmp_path, capsys):
    options = ["--profile", str(profile), "--output"]
    assert cli.main(["unpack", str(away.folder / "box"), *options, str(tmp_path)]) == 0
    assert "finished, with weights" in capsys.readouterr().out
    assert cli.main(["pack", str(tmp_path / "box"), *options, str(tmp_path)]) == 2
    assert "recorded ones are not packed again" in capsys.readouterr().err and not (tmp_path / "box").exists()
    assert cli.main(["unpack", str(Path(tmp_path) / "nothing"), *options, str(tmp_path)]) == 2
    assert "no record.zip" in capsys.readouterr().err
