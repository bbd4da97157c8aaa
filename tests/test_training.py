"""The training loop: what it leaves, that it resumes to the same bits after real kills, and what
it refuses.
"""

import errno
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from attnconv.training.machine import Computation, Team
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import DistStoreError

from attnconv import heads
from attnconv.config import ConfigError, ModelConfig, TrainConfig, replace
from attnconv.equivalence import swap
from attnconv.models import build_model
from attnconv.training import (
    Trainer,
    TrainingError,
    build_optimizers,
    checkpoints,
    evaluate,
    load_run,
    lr_factor,
    machine,
    optimizers,
    train,
)
from attnconv.training import loop as training
from attnconv.training.data import DataError, augment, epoch_plan, load_data, normalize
from attnconv.training.optimizers import encoding_parameters, orthogonal, position_parameters
from attnconv.training.runs import Run, RunError, find_runs, held, identity, writing
from companion import results, swaps
from companion.cli import explained, main
from companion.profile import load_profile
from companion.workspace import PROFILES
from conftest import assert_waits, damaged

MODEL = ModelConfig(downsampling=4, layers=2, heads=3, hidden=8, mlp=8, key_size=4, resnet_width=8)
"""With dropout, as the defaults have it: its masks must be the same after resuming."""
RECIPE = TrainConfig(
    epochs=3,
    batch_size=20,
    lr=0.05,
    augment=True,
    checkpoint_seconds=0.0,
    validation=20,
    seed=5,
    precision="float32",
)
"""Four steps an epoch, with a checkpoint after each."""


def small_data():
    return load_data("embedded").first(100, 50)


@pytest.fixture(scope="module")
def data():
    return small_data()


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return train(MODEL, RECIPE, data, tmp_path_factory.mktemp("run"), preset="quadratic")


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run's folder, to be spoiled."""
    return shutil.copytree(run.path, tmp_path / "copy")


@pytest.fixture(scope="module")
def attention(run, data):
    """What attention.npz holds of the run."""
    seen = data.test_images, data.test_labels
    images = normalize(data.test_images, data.mean, data.std)
    return heads.measure_attention(load_run(run.path)[0], images, *(one.numpy() for one in seen))


def test_bfloat16_trains_to_about_the_same(run, data, tmp_path):
    half = train(
        MODEL, replace(RECIPE, {"precision": "bfloat16"}), data, tmp_path, preset="quadratic"
    )
    losses = [[line["train_loss"] for line in one.metrics] for one in (run, half)]
    np.testing.assert_allclose(*losses, rtol=0.02)
    assert losses[0] != losses[1]
    again = evaluate(load_run(half.path)[0], data)  # in float32, and so is the last epoch's
    assert half.metrics[-1]["test_loss"] == pytest.approx(again.loss, rel=1e-5)
    assert half.test_accuracy == pytest.approx(run.test_accuracy, abs=0.1)


@pytest.mark.parametrize(
    ("kind", "optimizer", "precision"),
    [
        ("quadratic", "sgd", "float32"),
        ("quadratic", "muon", "bfloat16"),
        ("learned", "adamw", "float32"),
        ("learned_content", "adamw", "bfloat16"),
        ("resnet", "muon", "float32"),
        ("quadratic", "muon", "compiled"),
    ],
)
def test_every_optimizer_learns_and_resumes_to_the_same_bits(
    kind, optimizer, precision, data, tmp_path, monkeypatch
):
    model = replace(MODEL, {"kind": kind, "attention_dropout": 0.1})
    rate = dict(sgd=0.05, adamw=0.01, muon=0.02)[optimizer]
    recipe = dict(optimizer=optimizer, lr=rate, precision=precision, label_smoothing=0.1, clip=1.0)
    if precision == "compiled":
        recipe |= {"precision": "bfloat16", "compile": True}
        model = replace(model, {"layers": 1})  # each takes half a minute to compile
    recipe = replace(
        RECIPE, recipe | {"checkpoint_seconds": 60.0}
    )  # as in real use: one an epoch, and when stopped
    whole = train(model, recipe, data, tmp_path / "whole")
    assert whole.metrics[-1]["train_loss"] < whole.metrics[0]["train_loss"]
    assert ("compiled" in whole.config["sessions"][0]["computation"]) == (precision == "compiled")
    interrupted(monkeypatch, 6, model, recipe, data, tmp_path / "cut")
    assert_same_run(train(model, recipe, data, tmp_path / "cut"), whole)
    if precision == "compiled":  # its dropout is that of eager training
        eager = train(model, replace(recipe, {"compile": False}), data, tmp_path / "eager")
        assert eager.metrics[0]["train_loss"] == pytest.approx(
            whole.metrics[0]["train_loss"], rel=1e-3
        )
    if kind == "resnet":
        assert not whole.heads
        return
    network, _ = load_run(whole.path)
    seen = normalize(data.test_images[: heads.GEOMETRY_IMAGES], data.mean, data.std)
    measured = heads.geometry(
        network.attention_layers, *network.config.grid, network.layer_inputs(seen)
    )
    for name, values in measured.items():
        np.testing.assert_allclose(
            whole.heads[name][-1], values, rtol=1e-4, atol=1e-6
        )  # without dropout


def test_muon_takes_the_matrices_and_kernels_between_input_and_classifier(data):
    config = TrainConfig(optimizer="muon", lr=0.02, adamw_lr=0.001, position_lr=0.1)
    resnet = build_model(replace(MODEL, {"kind": "resnet"}))
    for model in (
        build_model(MODEL),
        resnet,
        deepcopy(resnet).to(memory_format=torch.channels_last),
    ):
        optimizers = build_optimizers(model, config)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] if group["peak_lr"] == 0.02 else 0.0
            optimizer.step()
        moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        inner = {
            n
            for n, p in model.named_parameters()
            if p.dim() > 1 and n.startswith(("blocks", "stages"))
        }
        assert moved == {name for name in inner if not name.endswith("centres")}


def test_muon_steps_where_pruning_left_a_layer_without_heads():
    model = build_model(replace(MODEL, {"heads": (0, 3)}))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for optimizer in build_optimizers(model, TrainConfig(optimizer="muon")):
        optimizer.step()
    assert model.attention_layers[0].value.weight.shape == (8, 0)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_run_says_how_it_computed_and_goes_on_like_that_elsewhere(data, tmp_path, monkeypatch):
    half, single = Computation(bfloat16=True), Computation()
    monkeypatch.setattr(training, "choose", lambda *_: single)
    whole = train(MODEL, RECIPE, data, tmp_path / "whole")
    assert whole.config["environment"]["computation"] == "float32"
    interrupted(monkeypatch, 9, MODEL, RECIPE, data, tmp_path / "cut")
    monkeypatch.setattr(
        training, "choose", lambda *_: half
    )  # a machine that would choose otherwise
    assert_same_run(train(MODEL, RECIPE, data, tmp_path / "cut"), whole)


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
def test_a_run_begun_in_bfloat16_goes_on_in_float32_where_that_is_all(
    precision, data, tmp_path, monkeypatch
):
    """On a CPU without the instructions bfloat16 is many times slower; who asks for it has it
    all the same.
    """
    recipe = replace(RECIPE, {"precision": precision})
    monkeypatch.setattr(training, "choose", lambda *_: Computation(bfloat16=True))
    whole = train(MODEL, recipe, data, tmp_path / "whole")
    assert whole.config["environment"]["computation"] == "bfloat16"
    interrupted(monkeypatch, 9, MODEL, recipe, data, tmp_path / "cut")
    monkeypatch.setattr(training, "choose", lambda *_: Computation())
    if precision == "bfloat16":
        assert_same_run(train(MODEL, recipe, data, tmp_path / "cut"), whole)
        return
    with pytest.warns(UserWarning, match="goes on in float32: it was begun in bfloat16"):
        cut = train(MODEL, recipe, data, tmp_path / "cut")
    assert [one["computation"] for one in cut.config["sessions"]] == ["bfloat16", "float32"]
    assert cut.metrics[-1]["train_loss"] != whole.metrics[-1]["train_loss"]
    assert cut.metrics[-1]["train_loss"] == pytest.approx(whole.metrics[-1]["train_loss"], rel=0.02)


def test_what_is_compiled_on_a_cpu(monkeypatch):
    cpu, half, single = torch.device("cpu"), Computation(bfloat16=True), Computation()
    monkeypatch.setattr(machine, "compiler_works", lambda _: True)
    evening, quick = (
        load_profile(PROFILES / f"{name}.yaml").configs("quadratic")[1]
        for name in ("evening", "quick")
    )
    assert machine.to_be_compiled(cpu, half, None, evening.epochs * 50_000)
    assert not machine.to_be_compiled(
        cpu, half, None, quick.epochs * 6_000
    )  # shorter than compiling takes
    assert not machine.to_be_compiled(cpu, single, None, evening.epochs * 50_000)  # gains nothing
    assert not machine.to_be_compiled(cpu, half, False, 10**9)
    assert machine.to_be_compiled(cpu, single, True, 1)
    monkeypatch.setattr(machine, "compiler_works", lambda _: False)
    assert not machine.to_be_compiled(cpu, half, True, 10**9)


@pytest.mark.parametrize("works", [True, False])
def test_on_a_gpu_too_nothing_is_compiled_without_a_compiler(works, monkeypatch):
    gpu, half = torch.device("cuda"), Computation(bfloat16=True)
    if not torch.cuda.is_available():  # nothing can be tried there
        with pytest.warns(UserWarning, match="Training is not compiled"):
            assert not machine.compiler_works.__wrapped__(gpu)
    monkeypatch.setattr(machine, "compiler_works", lambda device: works and device == gpu)
    for images, by_rule in (
        (99_999, False),
        (100_000, works),
    ):  # a shorter one ends before it is compiled
        choices = [
            machine.to_be_compiled(gpu, half, asked, images) for asked in (None, True, False)
        ]
        assert choices == [by_rule, works, False]
    assert machine.to_be_compiled(gpu, Computation(), None, 100_000) == works


def test_networks_with_convolutions_in_the_place_of_attention_are_not_compiled(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        machine, "to_be_compiled", lambda *_: True
    )  # whether there is a compiler here or not
    run = train(
        replace(MODEL, {"kernels": [3]}),
        replace(RECIPE, {"epochs": 1, "compile": True}),
        data,
        tmp_path,
    )
    assert "compiled" not in run.config["environment"]["computation"]


def test_without_a_compiler_training_says_so_and_goes_on(data, tmp_path, monkeypatch):
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/no/such/compiler",))
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    torch.compiler.reset()  # what another test has compiled
    machine.compiler_works.cache_clear()
    try:
        with pytest.warns(
            UserWarning, match=r"not compiled \(.*compiler.*\): the same, a little slower"
        ):
            run = train(MODEL, replace(RECIPE, {"epochs": 1, "compile": True}), data, tmp_path)
    finally:
        machine.compiler_works.cache_clear()
    assert run.finished and run.config["environment"]["computation"].startswith("float32")
    assert "compiled" not in run.config["environment"]["computation"]


def test_a_compiler_that_fails_without_a_word_is_named_by_its_error(monkeypatch):
    def fails(_):
        raise NotImplementedError

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.warns(UserWarning, match=r"not compiled \(NotImplementedError:\): the same"):
        assert not machine.compiler_works.__wrapped__(torch.device("cpu"))


def test_a_run_begun_compiled_does_not_say_so_where_it_cannot_be(data, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "to_be_compiled", lambda *_: True)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(machine, "compiler_works", lambda _: True)
    interrupted(monkeypatch, 9, MODEL, RECIPE, data, tmp_path)
    monkeypatch.setattr(machine, "compiler_works", lambda _: False)
    run = train(MODEL, RECIPE, data, tmp_path, preset="quadratic")
    assert ["compiled" in one["computation"] for one in run.config["sessions"]] == [True, False]


def strip(metrics):
    """Metrics without what a clock says."""
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "images_per_second")}
        for line in metrics
    ]


def assert_same_run(a: Run, b: Run):
    assert (a.path / "model.safetensors").read_bytes() == (
        b.path / "model.safetensors"
    ).read_bytes()
    assert strip(a.metrics) == strip(b.metrics)
    np.testing.assert_equal(a.heads, b.heads)


def ask_to_stop(monkeypatch, steps):
    """Let a training get a Ctrl-C while the step after this many is under way: it is finished,
    and in a checkpoint.
    """
    take_step, taken = training.Trainer.take_step, itertools.count()

    def stepping(trainer, x, y):
        if next(taken) == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(trainer, x, y)

    monkeypatch.setattr(training.Trainer, "take_step", stepping)


def interrupted(monkeypatch, steps, model, recipe, data, folder, **options):
    """Train, with such a Ctrl-C."""
    said = f"stopped in epoch {steps // 4 + 1} of {recipe.epochs}; the same command resumes"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match=said):
        ask_to_stop(patch, steps)
        train(model, recipe, data, folder, preset="quadratic", **options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (folder / "checkpoint" / "state.pt").is_file()


def test_a_run_folder_is_complete(run, data):
    files = {file.name for file in run.path.iterdir()} - {".lock"}
    assert files == {
        "config.json",
        "metrics.jsonl",
        "heads.npz",
        "model.safetensors",
        "predictions.npz",
    }
    assert [line["epoch"] for line in run.metrics] == [1, 2, 3]
    assert run.model.image_size == (28, 28) and run.train == RECIPE
    assert (
        run.config["data"]["key"] == data.key
        and run.config["environment"]["torch"] == torch.__version__
    )
    assert run.heads["centre"].shape == (4, 2, 3, 2)


def test_a_run_names_the_command_and_the_commit_of_this_library_alone(monkeypatch):
    monkeypatch.delenv("ATTNCONV_COMMIT", raising=False)
    programs = {"bin/attnconv": True, "lib/attnconv/__main__.py": True, "mine/__main__.py": False}
    for program, ours in programs.items():
        monkeypatch.setattr(sys, "argv", [program, "train", "learned"])
        assert machine.environment(torch.device("cpu"))["command"] == (
            "attnconv train learned" if ours else None
        )
    monkeypatch.setattr(machine, "__file__", "/not/in/this/repository.py")
    assert machine.environment(torch.device("cpu"))["commit"] is None


def test_what_is_recorded_is_the_saved_models(run, data):
    model, again = load_run(run.path)
    assert not model.training
    assert evaluate(model, data).accuracy == run.test_accuracy == again.metrics[-1]["test_accuracy"]
    assert run.right.mean() == run.test_accuracy
    held_out = data.hold_out(RECIPE.validation, RECIPE.seed)[1:]
    on_them = evaluate(model, data, *held_out)
    assert on_them.accuracy == run.metrics[-1]["validation_accuracy"]
    assert on_them.loss == pytest.approx(run.metrics[-1]["validation_loss"], rel=1e-6)
    for layer, centres in zip(
        model.attention_layers, run.heads["parameter_centre"][-1], strict=True
    ):
        np.testing.assert_array_equal(layer.centres.detach().numpy(), centres)


def test_training_learns(data, tmp_path):
    recipe = TrainConfig(
        epochs=40, batch_size=20, optimizer="adamw", lr=0.01, position_lr=0.1, augment=False
    )
    run = train(replace(MODEL, {"dropout": 0.0, "hidden": 16}), recipe, data, tmp_path)
    assert run.metrics[-1]["train_accuracy"] > 0.8  # chance is 0.1


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(run, data, tmp_path):
    assert_same_run(run, train(MODEL, RECIPE, data, tmp_path / "same"))
    other = train(MODEL, replace(RECIPE, {"seed": 6}), data, tmp_path / "other")
    assert other.metrics[-1]["train_loss"] != run.metrics[-1]["train_loss"]


def test_the_seed_decides_the_first_weights(run):
    torch.manual_seed(RECIPE.seed)
    for network in (build_model(run.model), swaps.untrained(run)):
        first = [layer.centres.detach().numpy() for layer in network.attention_layers]
        np.testing.assert_array_equal(run.heads["parameter_centre"][0], first)


def before_each_step(monkeypatch, look):
    """What ``look`` finds in every trainer and its batch, before it takes the step: a list that
    grows.
    """
    take_step, found = training.Trainer.take_step, []

    def step(trainer, x, y):
        found.append(look(trainer, x, y))
        return take_step(trainer, x, y)

    monkeypatch.setattr(training.Trainer, "take_step", step)
    return found


def test_the_line_of_an_epoch_says_what_its_steps_gave(data, tmp_path, monkeypatch):
    def answers(trainer, x, y):
        logits = trainer.model(x)
        return len(y), F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).sum().item()

    told = before_each_step(monkeypatch, answers)
    recipe = replace(
        RECIPE, {"epochs": 2, "batch_size": 30, "validation": 0}
    )  # the last batch is of 10
    run = train(replace(MODEL, {"dropout": 0.0}), recipe, data, tmp_path)
    for line, steps in zip(run.metrics, (told[:4], told[4:]), strict=True):
        assert sum(images for images, *_ in steps) == 100
        assert line["train_loss"] == pytest.approx(
            sum(images * loss for images, loss, _ in steps) / 100
        )
        assert line["train_accuracy"] == pytest.approx(sum(right for *_, right in steps) / 100)


# Being stopped


FORKS = multiprocessing.get_context("forkserver")
PRELOADED = [
    "pytest",
    "hypothesis.strategies",
    "torch._dynamo",
    "attnconv.training.loop",
]
PRELOADED += ["unittest.mock", "companion.results", "companion.cli", "companion.workspace"]
FORKS.set_forkserver_preload(PRELOADED)
"""So a process of `start` need not import them."""


def train_apart(
    model: ModelConfig,
    recipe: TrainConfig,
    folder: Path,
    *,
    nohup=False,
    stop_at=None,
    **environment,
):
    """What a process of `start` does. It exits with 130 if it was asked to stop."""
    os.environ.update(environment)
    if nohup:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.MonkeyPatch.context() as patch:
            ask_to_stop(patch, stop_at)
            train(model, recipe, small_data(), folder, preset="quadratic")
    except KeyboardInterrupt:
        sys.exit(130)


def start(*args, **options) -> multiprocessing.process.BaseProcess:
    process = FORKS.Process(target=train_apart, args=args, kwargs=options, daemon=True)
    process.start()
    return process


def signal_after_checkpoint(
    process: multiprocessing.process.BaseProcess, folder: Path, number: int
) -> None:
    """Send a signal at a random moment after a new one is there; a busy machine may take as long
    as it needs.
    """
    state = folder / "checkpoint" / "state.pt"
    before = state.stat().st_mtime_ns if state.is_file() else 0
    while process.is_alive() and not (state.is_file() and state.stat().st_mtime_ns > before):
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.02))
    os.kill(process.pid, number)
    process.join()


def test_a_run_stopped_at_random_moments_ends_bit_identical(data, tmp_path):
    recipe, folder = replace(RECIPE, {"epochs": 12}), tmp_path / "cut"
    whole = train(MODEL, recipe, data, tmp_path / "whole", preset="quadratic")
    for number in (
        signal.SIGKILL,
        signal.SIGINT,
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGKILL,
        signal.SIGHUP,
    ):
        process = start(MODEL, recipe, folder)
        signal_after_checkpoint(process, folder, number)
        assert (
            process.exitcode == (-number if number == signal.SIGKILL else 130)
            and not Run(folder).finished
        )
    (folder / ".metrics-0123cdef.jsonl").touch()  # what a kill inside `writing` leaves
    (folder / "checkpoint" / ".state-0123cdef.pt").touch()
    process = start(MODEL, recipe, folder, nohup=True)
    signal_after_checkpoint(process, folder, signal.SIGHUP)  # which stops nothing under nohup
    assert process.exitcode == 0
    assert_same_run(whole, Run(folder))
    assert {file.name for file in folder.iterdir()} == {file.name for file in whole.path.iterdir()}


def test_checkpoints_are_no_more_than_asked_for_and_keep_the_time_of_an_epoch(
    data, tmp_path, monkeypatch
):
    write, written = training.write_state, []
    monkeypatch.setattr(
        training,
        "write_state",
        lambda file, state: written.append(state["place"]) or write(file, state),
    )
    recipe = replace(RECIPE, {"checkpoint_seconds": 60.0})
    interrupted(monkeypatch, 6, MODEL, recipe, data, tmp_path)
    assert [place[:2] for place in written] == [(1, 0), (1, 3)], "after an epoch, and when stopped"
    trainer = Trainer(build_model(Run(tmp_path).model), recipe, data, tmp_path, Team())
    trainer.resume()
    assert (trainer.epoch, trainer.step, trainer.seconds) == written[-1] and trainer.seconds > 0


def test_a_second_training_waits_and_finds_the_run_finished(
    run, data, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(training, "Trainer", lambda *_: pytest.fail("trained again"))
    with ThreadPoolExecutor() as pool:
        with held(tmp_path, wait=True):
            with (
                pytest.raises(RunError, match="Another process is at work in"),
                held(tmp_path, wait=False),
            ):
                pass
            second = pool.submit(train, MODEL, RECIPE, data, tmp_path, preset="quadratic")
            assert_waits(second, capsys)
            shutil.copytree(run.path, tmp_path, dirs_exist_ok=True)
        assert second.result(timeout=60).metrics == run.metrics


def test_of_a_folder_only_what_a_killed_training_left_is_removed(run, data, tmp_path):
    left, others = (
        tmp_path / ".state-0123abcd.pt",
        [tmp_path / ".pre-commit-config.yaml", tmp_path / "a/.env-local"],
    )
    for file in (left, *others):
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    assert_same_run(run, train(MODEL, RECIPE, data, tmp_path, preset="quadratic"))
    assert not left.exists() and all(file.exists() for file in others)


def test_a_full_disk_ends_a_run_in_one_line_and_it_resumes(run, data, tmp_path):
    """A limit on the size of files stands in for it: another error on the same path."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = rf"{os.strerror(errno.EFBIG)} \(the disk at /.* has \d+ MiB left\): '{tmp_path}/checkpoint/state.pt'.*room"
    try:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (4000, before[1])
        )  # a checkpoint is larger, config.json is not
        with pytest.raises(TrainingError, match=said) as stopped:
            train(MODEL, RECIPE, data, tmp_path, preset="quadratic")
        assert "\n" not in str(stopped.value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.rglob(".*-????????.*"))
    assert_same_run(run, train(MODEL, RECIPE, data, tmp_path, preset="quadratic"))


def test_an_error_of_writing_names_the_file_and_its_disk_even_where_a_library_names_neither(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Path, "is_mount", lambda place: place == tmp_path)
    for error in (OSError("encoder error -2"), OSError(errno.ENOSPC, "No space left on device")):
        with pytest.raises(OSError) as stopped, writing(tmp_path / "figures" / "a.png"):
            raise error
        said = rf"{error.strerror or error} \(the disk at {tmp_path} has \d+ MiB left\): '{tmp_path}/figures/a.png'"
        assert re.search(said, str(stopped.value)) and explained(stopped.value).startswith(
            str(stopped.value)
        )


def test_a_second_signal_breaks_off_at_once_and_then_signals_are_what_they_were():
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    with machine.signals_to_stop() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == before


def test_what_is_written_is_whole_or_as_it_was(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(KeyError), writing(tmp_path / "a.txt") as temporary:
        temporary.write_text("ne")
        raise KeyError
    assert (tmp_path / "a.txt").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_every_file_is_on_the_disk_before_it_gets_its_name_and_the_weights_come_last(
    data, tmp_path, monkeypatch
):
    """Else a power cut could leave an empty file that says the run is finished."""
    on_disk, named = [], []
    fsync, move = os.fsync, os.replace

    def content_of(file) -> tuple[int, int, int]:
        about = os.stat(file)
        return about.st_ino, about.st_size, about.st_mtime_ns

    def recorded_replace(source, target) -> None:
        assert content_of(source) in on_disk, f"{target} is not on the disk"
        move(source, target)
        named.append(Path(target).name)

    monkeypatch.setattr(
        os, "fsync", lambda file: fsync(file) or on_disk.append(content_of(file.fileno()))
    )
    monkeypatch.setattr(os, "replace", recorded_replace)
    run = train(MODEL, replace(RECIPE, {"epochs": 1}), data, tmp_path)
    assert set(named) == {file.name for file in run.path.iterdir()} - {".lock"} | {"state.pt"}
    assert named.index("model.safetensors") == len(named) - 1


# What is never repeated or overwritten


@pytest.mark.parametrize("change", [{"lr": 0.06}, {"seed": 1}, {"epochs": 4}, {}])
def test_another_configuration_or_data_set_never_overwrites(run, data, change):
    before = (run.path / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="another configuration or data set"):
        train(MODEL, replace(RECIPE, change), data if change else data.first(90, 50), run.path)
    assert (run.path / "model.safetensors").read_bytes() == before


def test_identity_ignores_only_what_cannot_change_the_result():
    same = identity(MODEL, replace(RECIPE, {"checkpoint_seconds": 9.0}), "k")
    others = [
        (MODEL, RECIPE, "l"),
        (MODEL, replace(RECIPE, {"seed": 6}), "k"),
        (replace(MODEL, {"heads": 4}), RECIPE, "k"),
    ]
    assert same == identity(MODEL, RECIPE, "k") and same not in [
        identity(*other) for other in others
    ]


def test_unfinished_runs_are_not_found_and_not_loaded(run, tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text((run.path / "config.json").read_text())
    assert find_runs(tmp_path) == []
    with pytest.raises(
        RunError, match="is not finished: it has no model.safetensors, 0 epochs of 3"
    ):
        load_run(tmp_path / "half")
    with pytest.raises(RunError, match="half has no finished epoch yet"):
        _ = Run(tmp_path / "half").test_accuracy
    with pytest.raises(RunError, match="no run folder"):
        load_run(tmp_path)


def test_weights_are_left_out_and_nothing_else(run, data, copy):
    script = Path(__file__).parents[1] / "docs" / "lighten.py"
    subprocess.run([sys.executable, script, copy], check=True)
    light = Run(copy)
    assert light.finished and light.metrics == run.metrics and find_runs(copy.parent) == [light]
    np.testing.assert_equal(light.heads | {"right": light.right}, run.heads | {"right": run.right})
    with pytest.raises(RunError, match="kept without its weights; train it again"):
        load_run(copy)
    assert train(MODEL, RECIPE, data, copy) == light and not (copy / "model.safetensors").exists()
    (copy / "predictions.npz").unlink()
    with pytest.raises(RunError, match="predictions.npz is damaged .*it is missing"):
        Run(copy).check()


# Damage


def test_weights_are_not_called_damaged_where_the_network_cannot_be_built(run, monkeypatch):
    def fails(_):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(checkpoints, "build_model", fails)
    with pytest.raises(RuntimeError, match="^operator torchvision"):
        load_run(run.path)


@pytest.mark.filterwarnings("ignore:The run folder one is left out")
def test_damage_is_named_or_harmless(run, attention, copy, tmp_path):
    np.savez_compressed(copy / "attention.npz", **attention)
    content = {file.name: file.read_bytes() for file in copy.iterdir() if file.name != ".lock"}
    runs, weights = tmp_path / "runs", dict(load_run(run.path)[0].state_dict())

    def arrays(run: Run) -> dict:
        return run.heads | run.attention | {"right": run.right}

    whole = arrays(Run(copy))
    (runs / "foreign").mkdir(parents=True)
    (runs / "foreign" / "config.json").write_text("[1, 2]")
    (runs / "foreign" / "model.safetensors").touch()
    folder = runs / "one"
    folder.mkdir()

    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def damage(data):
        name = data.draw(st.sampled_from(sorted(content)))
        for other in content:
            (folder / other).write_bytes(content[other])
        if data.draw(st.integers(0, 9)):
            (folder / name).write_bytes(damaged(content[name], data.draw))
        else:
            (folder / name).unlink()
        with pytest.warns(
            UserWarning, match="foreign is left out: .*foreign/config.json is damaged"
        ):
            found = find_runs(runs)  # never breaks
        one = Run(folder)
        try:
            one.check()
            model, _ = load_run(folder)
            found_arrays = arrays(one)
        except (RunError, ConfigError) as error:
            assert (
                str(folder) in str(error)
                and "\n" not in str(error)
                and "pydantic" not in str(error)
            )
            assert found == [] or name in ("model.safetensors", "attention.npz")
            return
        assert found == [one] and len(one.metrics) == len(run.metrics)
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        if (folder / name).exists():
            np.testing.assert_equal(found_arrays, whole)

    damage()


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "heads.npz", "predictions.npz", "attention.npz"]
)
def test_of_a_run_folder_only_regular_files_are_read(run, copy, name):
    def refused(why: str) -> None:
        with pytest.raises(RunError, match=f"{name} is damaged .*{why}"):
            Run(copy).check()
            _ = Run(copy).attention

    file = copy / name
    file.unlink(missing_ok=True)
    os.mkfifo(file)  # would never end
    refused("it is no regular file")
    file.unlink()
    if name == "heads.npz":
        refused("it is missing")


def test_a_damaged_checkpoint_is_named_or_resumes_to_the_same_bits(
    run, data, tmp_path, monkeypatch
):
    interrupted(monkeypatch, 9, MODEL, RECIPE, data, tmp_path / "cut")
    state = tmp_path / "cut" / "checkpoint" / "state.pt"
    content = state.read_bytes()

    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def damage(drawn):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "cut", tmp_path / "copy")
        (tmp_path / "copy" / "checkpoint" / "state.pt").write_bytes(damaged(content, drawn.draw))
        try:
            again = train(MODEL, RECIPE, data, tmp_path / "copy", preset="quadratic")
        except RunError as error:
            assert "state.pt is damaged" in str(error) and f"remove {tmp_path / 'copy'}" in str(
                error
            )
        else:
            assert_same_run(run, again)

    damage()


@pytest.mark.parametrize("size", [0, 1000, None])
def test_a_finished_run_whose_weights_are_damaged_is_trained_again(run, data, copy, size):
    file = copy / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(
        content[:size] if size is not None else content[:-1] + bytes([content[-1] ^ 1])
    )
    assert not Run(copy).finished
    with pytest.raises(RunError, match="its model.safetensors is damaged"):
        load_run(copy)
    with pytest.warns(UserWarning, match="model.safetensors is damaged: the run is trained again"):
        assert_same_run(run, train(MODEL, RECIPE, data, copy, preset="quadratic"))


def test_what_was_measured_of_lost_weights_goes_with_them(run, data, copy):
    measured = [copy / "attention.npz", copy / "swaps.npz"]
    for file in measured:
        file.write_bytes(b"of the former weights")
    train(MODEL, RECIPE, data, copy, preset="quadratic")  # it is finished
    assert all(file.exists() for file in measured)
    (copy / "model.safetensors").unlink()
    assert_same_run(run, train(MODEL, RECIPE, data, copy, preset="quadratic"))
    assert not any(file.exists() for file in measured)


def put_config(folder: Path, part: str, **changes: object) -> None:
    """Write a config.json as if the run had been made with these changes to a part of it."""
    config = json.loads((folder / "config.json").read_text())
    config[part] |= changes
    config["hash"] = identity(config["model"], config["train"], config["data"]["key"])
    (folder / "config.json").write_text(json.dumps(config))


def put_weights(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write a model.safetensors as if the run had ended with it."""
    content = safetensors.torch.save(weights)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"weights": hashlib.sha256(content).hexdigest()})
    )
    (folder / "model.safetensors").write_bytes(content)


def test_weights_must_be_those_of_the_model_and_numbers_within_their_limits(copy):
    put_config(copy, "model", hidden=16)
    with pytest.raises(RunError, match="model.safetensors is damaged .*size mismatch"):
        load_run(copy)
    put_config(copy, "train", lr=-1.0)
    with pytest.raises(
        RunError,
        match="config.json is damaged .*TrainConfig.lr = -1.0: Input should be greater than",
    ):
        Run(copy).check()


# The recipe


@pytest.mark.parametrize(
    ("smoothing", "clip"), [(0.0, None), (0.3, None), (0.0, 0.05), (0.3, 0.05)]
)
def test_a_step_does_what_the_recipe_says(smoothing, clip, data):
    """Plain SGD by hand: a smoothed label, gradients clipped but for the positions', each
    group's rate at that step.
    """
    model = build_model(replace(MODEL, {"dropout": 0.0}))
    recipe = TrainConfig(
        epochs=2, batch_size=20, lr=0.1, position_lr=0.5, momentum=0.0, weight_decay=0.0, warmup=0.3,
        label_smoothing=smoothing, clip=clip, precision="float32",
    )  # fmt: skip
    trainer = Trainer(model, recipe, data, Path("unused"), Team())
    x, y = torch.randn(5, 3, 32, 32), torch.arange(5)
    for trainer.epoch, trainer.step, place in ((0, 1, 1), (1, 1, 6), (1, 2, 7)):  # of ten steps
        before = deepcopy(model)
        loss = trainer.take_step(x, y)
        wanted = (1 - smoothing) * F.one_hot(y, 10) + smoothing / 10
        by_hand = -(wanted * before(x).log_softmax(1)).sum(1).mean()
        torch.testing.assert_close(loss, by_hand.detach())
        before.zero_grad()
        by_hand.backward()
        positions = position_parameters(before)
        others = [
            p.grad.norm() for p in before.parameters() if not any(p is one for one in positions)
        ]
        share = 1.0 if clip is None else min(1.0, clip / torch.stack(others).norm().item())
        factor = (place + 1) / 3 if place < 3 else (1 + math.cos(math.pi * (place - 3) / 7)) / 2
        for now, p in zip(model.parameters(), before.parameters(), strict=True):
            rate = 0.5 if any(p is one for one in positions) else 0.1 * share
            torch.testing.assert_close(now, p - factor * rate * p.grad, rtol=1e-4, atol=1e-6)
        assert clip is None or share < 1


def test_a_process_without_an_image_left_adds_nothing(data):
    model = build_model(replace(MODEL, {"dropout": 0.0}))
    team = Team()
    team.size, team.mean, team.average_gradients = 2, lambda value: value, lambda model: None
    team.share = lambda x, y: (x[:1], y[:1], 0.0)
    trainer = Trainer(model, TrainConfig(epochs=1), data, Path("unused"), team)
    x = torch.randn(1, 3, 32, 32)
    trainer.take_step(x, model(x).argmax(1))  # it would be right
    assert trainer.sums.tolist() == [0, 0]


@pytest.mark.parametrize("augmented", [True, False])
def test_an_epoch_has_the_images_and_masks_of_its_seed(augmented, data, tmp_path, monkeypatch):
    found = before_each_step(monkeypatch, lambda trainer, x, y: (x, torch.get_rng_state().tolist()))
    train(
        MODEL, replace(RECIPE, {"epochs": 2, "augment": augmented, "validation": 0}), data, tmp_path
    )
    seen, masks = zip(*found, strict=True)
    for epoch, batches in enumerate((seen[:5], seen[5:])):
        plan = epoch_plan(100, seed=RECIPE.seed, epoch=epoch, augment=augmented)
        images = data.train_images[plan.order]
        if augmented:
            images = augment(images, *plan.crops)
        torch.testing.assert_close(torch.cat(batches), normalize(images, data.mean, data.std))
    assert len(seen) == 10 and masks[0] != masks[5], "every epoch drops other values"


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        ("sgd", lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.7, weight_decay=0.2)),
        ("adamw", lambda p: torch.optim.AdamW([p], lr=0.1, betas=(0.7, 0.8), weight_decay=0.2)),
        (
            "muon",
            lambda p: torch.optim.Muon([p], lr=0.1, momentum=0.7, weight_decay=0.2, nesterov=True),
        ),
    ],
)
def test_optimizers_step_as_the_recipe_says(optimizer, reference):
    """Three steps of a weight between input and classifier, beside PyTorch's own."""
    model = build_model(MODEL)
    recipe = TrainConfig(optimizer=optimizer, lr=0.1, momentum=0.7, beta2=0.8, weight_decay=0.2)
    weight = model.blocks[0].output.weight
    own = torch.nn.Parameter(weight.detach().clone())
    built, beside = build_optimizers(model, recipe), reference(own)
    for group in (group for one in built for group in one.param_groups):
        group["lr"] = group["peak_lr"]  # as the loop does at the peak
    for _ in range(3):
        own.grad = torch.randn_like(own)
        for p in model.parameters():
            p.grad = own.grad.clone() if p is weight else torch.zeros_like(p)
        for one in (*built, beside):
            one.step()
        torch.testing.assert_close(weight, own)


def test_muon_orthogonalizes_as_its_run_computes():
    """In float32, singular values come near 1 and directions stay; PyTorch's own, in bfloat16,
    are close to it.
    """
    for shape in ((24, 60), (60, 24)):
        matrix = torch.randn(shape)
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        around = u.T @ orthogonal(matrix, torch.float32) @ v.T
        torch.testing.assert_close(around, around.diagonal().diag(), atol=1e-5, rtol=0)
        assert 0.6 < around.diagonal().min() and around.diagonal().max() < 1.3
        torch.testing.assert_close(
            orthogonal(matrix, torch.bfloat16).float(), u @ around @ v, atol=0.05, rtol=0
        )


@pytest.mark.parametrize("bfloat16", [False, True])
def test_muon_computes_in_the_type_of_the_run(bfloat16, data, tmp_path, monkeypatch):
    types = set()
    monkeypatch.setattr(
        optimizers,
        "orthogonal",
        lambda matrix, dtype: types.add(dtype) or orthogonal(matrix, dtype),
    )
    train(
        MODEL,
        replace(RECIPE, {"optimizer": "muon", "precision": ["float32", "bfloat16"][bfloat16]}),
        data,
        tmp_path,
    )
    assert types == {torch.bfloat16 if bfloat16 else torch.float32}


def test_a_diverging_run_stops_and_says_where(data, tmp_path):
    recipe = replace(RECIPE, {"lr": 1e30})
    said = r"loss is (nan|inf) at epoch 1, step \d+ of 4 \(learning rate 1e\+30\).*state.pt"
    with pytest.raises(TrainingError, match=said):
        train(MODEL, recipe, data, tmp_path)
    state = checkpoints.read_state(tmp_path / "checkpoint" / "state.pt")
    assert math.isfinite(state["sums"][0].item())


def test_a_run_whose_last_step_diverges_is_not_finished(data, tmp_path):
    recipe = TrainConfig(
        epochs=1, batch_size=100, lr=1e30, checkpoint_seconds=60.0, precision="float32"
    )
    with pytest.raises(
        TrainingError, match=r"loss is (nan|inf) at epoch 1, step 1 of 1 \(learning rate 1e\+30\)"
    ):
        train(MODEL, recipe, data, tmp_path)
    assert not (tmp_path / "model.safetensors").exists() and not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_a_diverging_run_says_the_rate_that_the_recipe_calls_lr(optimizer, data):
    recipe = TrainConfig(optimizer=optimizer, lr=0.5, adamw_lr=0.001, position_lr=0.01)
    trainer = Trainer(build_model(MODEL), recipe, data, Path("unused"), Team())
    trainer.take_step(torch.randn(5, 3, 32, 32), torch.arange(5))
    trainer.sums[0] = math.nan
    factor = lr_factor(0, recipe.epochs * trainer.epoch_steps, recipe.warmup)
    with pytest.raises(TrainingError, match=re.escape(f"(learning rate {0.5 * factor:.3g})")):
        trainer.refuse_non_finite()


def test_learning_rate_warms_up_then_falls_as_a_cosine():
    factors = [lr_factor(step, 100, 0.1) for step in range(100)]
    assert factors[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert factors[10] == 1 and factors[55] == pytest.approx(0.5) and 0 < factors[99] < 0.001
    assert lr_factor(0, 1, 0.0) == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize(
    ("kind", "number"), [("learned", 4), ("learned_content", 2), ("quadratic", 0)]
)
def test_positions_and_encodings_have_rates_of_their_own_and_then_no_weight_decay(
    optimizer, kind, number, data
):
    model = build_model(replace(MODEL, {"kind": kind, "covariance": "isotropic"}))
    base = 0.2 if optimizer == "muon" else 0.1
    recipe = TrainConfig(optimizer=optimizer, lr=0.1, adamw_lr=0.2, weight_decay=0.3)
    encodings, positions = encoding_parameters(model), position_parameters(model)
    assert (len(encodings), len(positions)) == (
        number * model.config.layers,
        0 if number else 2 * model.config.layers,
    )
    for rate in (None, 0.7):
        config = replace(recipe, {"encoding_lr": rate, "position_lr": rate and 0.5})
        groups = [g for built in build_optimizers(model, config) for g in built.param_groups]
        of = {id(p): (g["peak_lr"], g["weight_decay"]) for g in groups for p in g["params"]}
        assert {of[id(p)] for p in positions} <= {(0.5 if rate else base, 0.0)}
        assert {of[id(p)] for p in encodings} <= {(0.7, 0.0) if rate else (base, 0.3)}
        assert of[id(model.embed.weight)] == (base, 0.3)
        assert of[id(model.embed.bias)] == (base, 0.3 if optimizer == "sgd" else 0.0)
        assert len(of) == len(list(model.parameters()))
        clipped = {id(p) for p in Trainer(model, config, data, Path("unused"), Team()).clipped}
        apart = {id(p) for p in [*positions, *(encodings if rate else [])]}
        assert clipped == {id(p) for p in model.parameters()} - apart


def test_more_validation_than_training_images_are_refused(data, tmp_path):
    with pytest.raises(DataError, match="100 validation images cannot be held out of 100"):
        train(MODEL, replace(RECIPE, {"validation": 100}), data, tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.name != ".lock"]


def right(model, data) -> np.ndarray:
    return (evaluate(model, data).predicted == data.test_labels).numpy()


def test_pruning_starts_from_a_run_and_drops_its_degenerate_heads(data, tmp_path):
    full = replace(MODEL, {"covariance": "full"})
    first = train(
        full, replace(RECIPE, {"epochs": 1}), data, tmp_path / "full", preset="quadratic_full"
    )
    model, _ = load_run(first.path)
    with torch.no_grad():
        model.attention_layers[0].spreads[1].zero_()  # a head that looks everywhere alike
    put_weights(first.path, model.state_dict())
    first = Run(first.path)
    recipe = replace(RECIPE, {"epochs": 1, "start_from": "quadratic_full"})
    run = train(full, recipe, data, tmp_path / "pruned", preset="quadratic_pruned", start=first)
    assert run.model.heads == (2, 3)
    before, placed = results.before_pruning(run, [run, first])
    assert before is first and np.isnan(placed["centre"][0, 1]).all()
    np.testing.assert_array_equal(placed["centre"][0, [0, 2]], run.heads["centre"][-1, 0, :2])
    assert results.before_pruning(run, [run])[0] is None
    assert load_run(run.path)[0].attention_layers[0].centres.shape == (2, 2)
    assert (
        run.heads["centre"].shape == (2, 2, 3, 2) and np.isnan(run.heads["centre"][:, 0, 2]).all()
    )
    assert (run.right_at_start == right(heads.pruned(load_run(first.path)[0]), data)).all()
    with pytest.raises(RunError, match="start_from"):
        train(full, recipe, data, tmp_path / "no-start")

    whole = train(full, replace(recipe, {"prune": False}), data, tmp_path / "whole", start=first)
    assert (
        whole.model.heads_per_layer == (3, 3) and (whole.right_at_start == right(model, data)).all()
    )
    assert whole.config["hash"] != run.config["hash"] and first.right_at_start is None
    assert results.before_pruning(whole, [whole, first])[0] is None, "it was not pruned"


def test_a_hybrid_goes_on_from_a_run_whose_first_layers_were_swapped(data, tmp_path, monkeypatch):
    first = train(
        MODEL, replace(RECIPE, {"epochs": 1}), data, tmp_path / "whole", preset="quadratic"
    )
    recipe = replace(RECIPE, {"epochs": 2, "start_from": "quadratic", "prune": False})
    config = replace(MODEL, {"kernels": [3]})
    hybrid = train(config, recipe, data, tmp_path / "hybrid", preset="hybrid", start=first)
    swapped = swap(load_run(first.path)[0], {1: 3})
    assert (hybrid.right_at_start == right(swapped, data)).all()
    network, _ = load_run(hybrid.path)
    kernels = [net.attention_layers[0].conv.weight for net in (network, swapped)]
    assert not torch.allclose(*kernels) and torch.allclose(
        *kernels, atol=0.1
    )  # trained, from the swapped ones on
    assert (
        np.isnan(hybrid.heads["mass"][:, 0]).all() and np.isfinite(hybrid.heads["mass"][:, 1]).all()
    )
    interrupted(monkeypatch, 5, config, recipe, data, tmp_path / "cut", start=first)
    assert_same_run(train(config, recipe, data, tmp_path / "cut", start=first), hybrid)


def test_on_few_images_a_run_sees_these_alone_in_as_many_steps_and_resumes_to_the_same_bits(
    data, tmp_path, monkeypatch
):
    recipe = replace(RECIPE, {"images": 7, "validation": 20})
    with monkeypatch.context() as patch:
        seen = before_each_step(patch, lambda trainer, x, y: (x, y))
        few = train(MODEL, replace(recipe, {"augment": False}), data, tmp_path / "few")
    assert len(seen) == 3 * 4 and [len(x) for x, _ in seen[:4]] == [20] * 4, (
        "steps as on all images"
    )
    chosen = data.hold_out(20, recipe.seed)[0].few(
        7, recipe.seed
    )  # its first seven images are all there are
    known = normalize(chosen.train_images[:7], data.mean, data.std).flatten(1)
    for epoch in (0, 1):
        images, labels = (
            torch.cat(parts) for parts in zip(*seen[4 * epoch : 4 * epoch + 4], strict=True)
        )
        distances = torch.cdist(
            images.flatten(1), known, compute_mode="donot_use_mm_for_euclid_dist"
        )
        assert distances.min(1).values.max() < 1e-3
        which = distances.argmin(1)
        assert torch.equal(labels, chosen.train_labels[which])
        assert set(which.bincount(minlength=7).tolist()) == {11, 12}, (
            "80 images, each of 7 as often"
        )
    assert few.train.images == 7 and few.config["data"]["train_images"] == 100

    whole = train(MODEL, recipe, data, tmp_path / "whole")
    interrupted(monkeypatch, 6, MODEL, recipe, data, tmp_path / "cut")
    assert_same_run(train(MODEL, recipe, data, tmp_path / "cut"), whole)


def test_a_run_on_few_images_has_a_name_of_its_own_and_those_on_all_keep_theirs(run):
    before = {
        name: value for name, value in run.config["train"].items() if name != "images"
    }  # as of earlier versions
    assert identity(run.config["model"], before, run.config["data"]["key"]) == run.config["hash"]
    few = replace(run.train, {"images": 50})
    assert identity(run.config["model"], few, run.config["data"]["key"]) != run.config["hash"]


def test_attention_goes_on_from_the_kernels_of_a_cnn(data, tmp_path, monkeypatch):
    as_cnn = replace(MODEL, {"kernels": [3, 3], "heads": 9})
    cnn = train(as_cnn, replace(RECIPE, {"epochs": 1}), data, tmp_path / "cnn", preset="quadratic")
    config = replace(MODEL, {"heads": 9, "centre_start": "taps", "spread_start": 6.0})
    recipe = replace(RECIPE, {"epochs": 2, "start_from": "quadratic", "prune": False})
    run = train(config, recipe, data, tmp_path / "attention", start=cnn)
    assert (run.right_at_start == cnn.right).all() and run.config["start"] == cnn.config["hash"]
    assert run.model == replace(config, {"image_size": (28, 28), "image_channels": 1})
    network, _ = load_run(run.path)
    assert all(layer.heads == 9 for layer in network.attention_layers)
    kernel, values = (
        load_run(cnn.path)[0].attention_layers[0].conv.weight,
        network.attention_layers[0].value.weight,
    )
    kernel = kernel.permute(0, 2, 3, 1).flatten(1)
    assert not torch.allclose(values, kernel) and torch.allclose(
        values, kernel, atol=0.2
    )  # trained, from the CNN's on
    assert run.heads["parameter_centre"][0, 0].tolist() == [
        [r, c] for r in (-1, 0, 1) for c in (-1, 0, 1)
    ]
    interrupted(monkeypatch, 5, config, recipe, data, tmp_path / "cut", start=cnn)
    assert_same_run(train(config, recipe, data, tmp_path / "cut", start=cnn), run)


# Several processes, as torchrun starts them

SHARED = TrainConfig(
    epochs=3, batch_size=15, lr=0.05, clip=1.0, validation=9, seed=5, precision="float32"
)
PLAIN = replace(MODEL, {"dropout": 0.0})
"""Masks of dropout differ between processes, as they must."""


def trained_by(count: int, model: ModelConfig, folder: Path, *, stop_at: int | None = None) -> None:
    """Train with so many processes. The second one is asked to stop, where one is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = dict(
        OMP_NUM_THREADS="1", WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
    )
    ranks = [dict(RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(count)]
    team = [
        start(model, SHARED, folder, stop_at=stop_at if rank["RANK"] == "1" else None, **rank)
        for rank in ranks
    ]
    for process in team:
        process.join()
    assert [process.exitcode for process in team] == [130 if stop_at else 0] * count
    assert (folder / "checkpoint" / "state.pt").is_file() == bool(stop_at)


@pytest.mark.slow
def test_several_processes_follow_the_loss_curve_of_one_and_stop_where_one_is_asked_to(
    data, tmp_path
):
    """Batches of 15 of 91 images: unequal shares, and a last batch of one, which leaves two of
    three processes none.

    torchrun passes a Ctrl-C or a SIGTERM on to all processes, but they do not get it at the same
    step."""
    trained_by(3, PLAIN, tmp_path / "team", stop_at=8)
    trained_by(3, PLAIN, tmp_path / "team")
    alone, shared = (
        train(PLAIN, SHARED, data, tmp_path / "alone", preset="quadratic"),
        Run(tmp_path / "team"),
    )
    assert (
        alone.config["hash"] == shared.config["hash"]
    )  # how many processes is no part of what a run is
    assert [session["processes"] for session in shared.config["sessions"]] == [3, 3]
    for a, b in zip(strip(alone.metrics), strip(shared.metrics), strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    assert {file.name for file in alone.path.iterdir()} == {
        file.name for file in shared.path.iterdir()
    }


@pytest.mark.slow
def test_several_processes_resume_to_the_same_bits_with_dropout_and_only_as_many_as_they_were(
    data, tmp_path
):
    """One process alone draws other masks than each of several, so as many must go on."""
    trained_by(3, MODEL, tmp_path / "whole")
    trained_by(3, MODEL, tmp_path / "cut", stop_at=10)
    with pytest.raises(RunError, match=r"state.pt is of 3 process\(es\), not 1: resume"):
        train(MODEL, SHARED, data, tmp_path / "cut", preset="quadratic")
    trained_by(3, MODEL, tmp_path / "cut")
    assert_same_run(Run(tmp_path / "cut"), Run(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"RANK": "1"}, "of 1 processes none has rank 1"),
        ({"RANK": "-1"}, "none has rank -1"),
        ({"WORLD_SIZE": "abc"}, "invalid literal for int.*'abc'"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "of 0 processes none has rank 0"),
        ({"WORLD_SIZE": "2"}, "environment variable RANK expected"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "of 2 processes none has rank 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "environment variable MASTER_ADDR expected"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "no.host.invalid", "MASTER_PORT": "1"},
            "[Nn]ame",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"},
            "invalid literal.*'x'",
        ),
    ],
)
def test_processes_that_cannot_be_a_team_are_refused_in_one_line(
    variables, why, tmp_path, monkeypatch, capsys
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "quadratic", "--profile", "smoke", "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and re.search(
        f"no team of processes.*{why}.*one process, unset them", said
    )
    assert all(f"{name}={value}" in said for name, value in variables.items()) and not list(
        tmp_path.iterdir()
    )


def test_processes_that_do_not_come_are_named(monkeypatch):
    monkeypatch.setattr(
        torch.distributed, "init_process_group", Mock(side_effect=DistStoreError("1/2\njoined."))
    )
    for name, value in dict(
        RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1"
    ).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError,
        match=r"no team of processes, as RANK=0, .*MASTER_PORT=1 asks for \(.*1/2 joined",
    ):
        Team()
