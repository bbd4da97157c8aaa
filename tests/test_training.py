"""The training loop: what it leaves, that it resumes to the same bits after real kills, and what
it refuses.
"""

import itertools
import json
import math
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from shutil import copytree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from filelock import FileLock

from attnconv import heads
from attnconv.config import REPOSITORY, ModelConfig, TrainConfig, for_images, replace
from attnconv.equivalence import swap, unswap
from attnconv.models import build_model
from attnconv.training import evaluate, load_run, loop, lr_factor, train
from attnconv.training.data import augment, batches, epoch_plan, load_data, normalize
from attnconv.training.optimizers import (
    ENCODINGS,
    POSITIONS,
    build_optimizers,
    orthogonal,
    own_rate,
)
from attnconv.training.runs import Run, RunError, find_runs, write

MODEL = ModelConfig(downsampling=4, layers=2, heads=3, hidden=8, mlp=8, key_size=4, resnet_width=8)
"""With dropout, as the defaults have it: its masks must be the same after resuming."""
RECIPE = TrainConfig(epochs=3, batch_size=25, lr=0.05, seed=5, precision="float32")
"""Four steps an epoch."""
RATES = {"sgd": 0.05, "adamw": 0.01, "muon": 0.02}


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
    return copytree(run.path, tmp_path / "copy")


def timeless(run):
    """Its metrics, without what a clock says."""
    return [{**line, "seconds": 0} for line in run.metrics]


def assert_same_run(a: Run, b: Run):
    weights = [(one.path / "model.safetensors").read_bytes() for one in (a, b)]
    assert weights[0] == weights[1] and timeless(a) == timeless(b)
    np.testing.assert_equal(a.heads, b.heads)
    np.testing.assert_equal(a.arrays("predictions.npz"), b.arrays("predictions.npz"))


def interrupt(monkeypatch, epochs):
    """Let a training get a Ctrl-C inside the epoch after so many."""
    train_epoch = loop.train_epoch

    def interrupted(forward, optimizers, config, data, epoch):
        steps = []

        def raising(*_):
            steps.append(1)
            if len(steps) == 3:
                signal.raise_signal(signal.SIGINT)

        handle = forward.register_forward_pre_hook(raising) if epoch == epochs else None
        try:
            return train_epoch(forward, optimizers, config, data, epoch)
        finally:
            if handle:
                handle.remove()

    monkeypatch.setattr(loop, "train_epoch", interrupted)


def train_in_two(monkeypatch, *args, epochs=1, **options) -> Run:
    """Train, with a Ctrl-C after so many epochs; then go on."""
    with monkeypatch.context() as patch:
        interrupt(patch, epochs)
        with pytest.raises(KeyboardInterrupt, match=f"goes on from epoch {epochs + 1} of"):
            train(*args, **options)
    return train(*args, **options)


# What a run leaves


def test_a_run_folder_is_complete_and_what_is_recorded_is_the_saved_models(run, data):
    files = {file.name for file in run.path.iterdir()} - {".lock"}
    arrays = {"heads.npz", "model.safetensors", "predictions.npz"}
    assert files == {"config.json", "metrics.jsonl"} | arrays
    assert [line["epoch"] for line in run.metrics] == [1, 2, 3]
    assert (run.model.image_size, run.model.image_channels) == ((28, 28), 1)
    assert run.train == RECIPE and run.config["environment"]["computation"] == "float32"
    assert run.label == "SA quadratic, seed 5, 3 epochs"

    model, again = load_run(run.path)
    found = evaluate(model, data)
    assert not model.training and again.metrics == run.metrics
    assert found.accuracy == run.test_accuracy == run.right.mean()
    assert found.loss == run.metrics[-1]["test_loss"]

    shown = normalize(data.test_images[: heads.GEOMETRY_IMAGES], data.mean, data.std)
    for name, values in heads.network_geometry(model, shown).items():
        np.testing.assert_array_equal(run.heads[name][-1], values)
    torch.manual_seed(RECIPE.seed)
    first = [layer.centres.detach().numpy() for layer in build_model(run.model).attention_layers]
    np.testing.assert_array_equal(run.heads["parameter_centre"][0], first)
    assert len(run.heads["centre"]) == 4


def test_training_learns(data, tmp_path):
    recipe = TrainConfig(epochs=40, batch_size=20, optimizer="adamw", lr=0.01, augment=False)
    model = replace(MODEL, {"dropout": 0.0, "hidden": 16})
    learned = train(model, replace(recipe, {"position_lr": 0.1}), data, tmp_path)
    assert learned.metrics[-1]["train_accuracy"] > 0.8  # chance is 0.1


@pytest.mark.parametrize("precision", ["bfloat16", "compiled"])
def test_other_ways_to_compute_train_to_about_the_same(precision, run, data, tmp_path):
    how = {"precision": "bfloat16"} if precision == "bfloat16" else {"compile": True}
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    other = train(MODEL, replace(RECIPE, how), data, tmp_path)
    losses = [[line["train_loss"] for line in one.metrics] for one in (run, other)]
    np.testing.assert_allclose(*losses, rtol=0.02)
    if precision == "compiled":  # on toys it may give the same bits
        assert graphs["unique_graphs"] > 0
    else:
        assert losses[0] != losses[1]
    assert other.config["environment"]["computation"].endswith(precision)
    assert other.metrics[-1]["test_loss"] == evaluate(load_run(other.path)[0], data).loss


@pytest.mark.parametrize(
    ("precision", "bfloat16", "wanted"),
    [
        ("auto", True, torch.bfloat16),
        ("auto", False, torch.float32),
        ("float32", True, torch.float32),
        ("bfloat16", False, torch.bfloat16),
    ],
)
def test_bfloat16_is_taken_where_the_device_has_instructions_for_it(
    precision, bfloat16, wanted, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    assert loop.products_of(TrainConfig(precision=precision), torch.device("cpu")) == wanted


def test_float32_is_float32():
    loop.settle_products()
    a, b = torch.randn(2, 300, 300)
    error = (a @ b - (a.double() @ b.double())).norm() / (a @ b).norm()
    assert error < 1e-6  # of bfloat16 it is a hundred times larger


# Being stopped


@pytest.mark.parametrize(
    ("kind", "optimizer", "changes"),
    [
        ("quadratic", "sgd", {}),
        ("quadratic", "muon", {"precision": "bfloat16"}),
        ("learned", "muon", {"clip": 1.0, "label_smoothing": 0.1}),
        ("learned_content", "adamw", {"images": 7}),
        ("resnet", "muon", {}),
    ],
)
def test_a_run_that_was_interrupted_ends_with_the_same_bits(
    kind, optimizer, changes, data, tmp_path, monkeypatch
):
    model = replace(MODEL, {"kind": kind, "attention_dropout": 0.1})
    recipe = replace(RECIPE, {"optimizer": optimizer, "lr": RATES[optimizer], **changes})
    whole = train(model, recipe, data, tmp_path / "whole")
    assert whole.metrics[-1]["train_loss"] < whole.metrics[0]["train_loss"]
    assert bool(whole.heads) == (kind != "resnet")
    for epochs in (0, 2):
        cut = train_in_two(
            monkeypatch, model, recipe, data, tmp_path / f"cut{epochs}", epochs=epochs
        )
        assert_same_run(cut, whole)


def trains(model, recipe, folder, environment):
    """What a process of its own does. It may die at a step, or before it gives a file its name."""
    torch.set_num_threads(1)
    os.environ |= environment
    calls = itertools.count()

    def dying(function):
        def called(*args):
            if next(calls) == int(os.environ.get("DIES_AT", -1)):
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args)

        return called

    loop.lr_factor, os.replace = dying(loop.lr_factor), dying(os.replace)
    train(model, recipe, small_data(), folder, preset="quadratic")


def start(*args, **environment):
    """A process that trains. A fork of this one: a new one would first import for ten seconds."""
    process = multiprocessing.get_context("fork").Process(target=trains, args=(*args, environment))
    process.start()
    return process


def ended(process) -> int:
    process.join()
    return process.exitcode


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bits(data, tmp_path):
    recipe = replace(RECIPE, {"epochs": 9, "optimizer": "muon", "lr": 0.02})
    model, folder, threads = MODEL, tmp_path / "cut", torch.get_num_threads()
    torch.set_num_threads(1)
    whole = train(model, recipe, data, tmp_path / "whole", preset="quadratic")
    # An epoch is four steps and three files, after config.json.
    for moment in np.random.default_rng().integers(0, 16, 3):
        process = start(model, recipe, folder, DIES_AT=str(moment))
        assert ended(process) == -signal.SIGKILL and not Run(folder).finished
    assert_same_run(train(model, recipe, data, folder, preset="quadratic"), whole)
    assert {file.name for file in folder.iterdir()} == {file.name for file in whole.path.iterdir()}
    torch.set_num_threads(threads)


def test_a_checkpoint_travels_in_pieces_and_one_that_cannot_be_read_says_what_to_delete(
    data, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, 1)
        train(MODEL, RECIPE, data, tmp_path)
    pieces = runpy.run_path(f"{REPOSITORY}/benchmarks/pieces.py")
    pieces["pack"](tmp_path, tmp_path / "pieces")
    pieces["unpack"](tmp_path / "pieces", tmp_path / "again")
    again = train(MODEL, RECIPE, data, tmp_path / "again")
    assert again.metrics[0] == Run(tmp_path).metrics[0]
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1000])
    said = f"^{re.escape(str(checkpoint))} cannot be read .*delete {re.escape(str(tmp_path))} and"
    with pytest.raises(RunError, match=said) as refused:
        train(MODEL, RECIPE, data, tmp_path)
    assert "\n" not in str(refused.value)


def test_a_loss_that_is_not_finite_stops_the_run_before_its_state_is_kept(data, tmp_path):
    with pytest.raises(loop.TrainingError, match="loss of epoch 1 is not finite. Lower"):
        # One step an epoch.
        train(MODEL, replace(RECIPE, {"lr": 1e30, "batch_size": 100}), data, tmp_path)
    assert not {"checkpoint.pt", "model.safetensors"} & {file.name for file in tmp_path.iterdir()}


def test_a_second_training_waits_and_finds_the_run_finished(run, data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "train_epoch", lambda *_: pytest.fail("trained again"))
    with ThreadPoolExecutor() as pool:
        with FileLock(tmp_path / ".lock"):
            second = pool.submit(train, MODEL, RECIPE, data, tmp_path, preset="quadratic")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.5)
            copytree(run.path, tmp_path, dirs_exist_ok=True)
        assert second.result(timeout=60).metrics == run.metrics


def test_what_is_written_is_whole_or_as_it_was(tmp_path, monkeypatch):
    """What a process that was killed leaves, the next one replaces."""
    file = tmp_path / "a.npz"
    write(file, {"a": np.arange(3)})
    before = file.read_bytes()

    def half(unfinished, **_):
        unfinished.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(np, "savez_compressed", half)
        write(file, {"a": np.arange(4)})
    assert file.read_bytes() == before
    write(file, {"a": np.arange(3)})
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


# What is never repeated, overwritten or misread


@pytest.mark.parametrize("change", [{"lr": 0.06}, {"seed": 1}, {}])
def test_another_configuration_or_data_set_never_overwrites(run, data, change):
    before = (run.path / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="holds another run. Give"):
        train(MODEL, replace(RECIPE, change), data if change else data.first(90, 50), run.path)
    assert (run.path / "model.safetensors").read_bytes() == before


def test_speed_settings_do_not_make_another_run(run, data):
    other = train(MODEL, replace(RECIPE, {"compile": True, "precision": "auto"}), data, run.path)
    assert other.metrics == run.metrics and other.train == RECIPE


def test_a_run_says_in_which_arithmetic_it_began(data, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, 1)
        train(MODEL, replace(RECIPE, {"precision": "bfloat16"}), data, tmp_path)
    now = train(MODEL, RECIPE, data, tmp_path).config["environment"]
    assert now["computation"] == "float32"
    assert now["before"]["computation"] == "bfloat16"


def test_unfinished_runs_are_not_found_and_runs_without_weights_are(run, data, copy):
    half = copytree(copy, copy.with_name("half"))
    (half / "model.safetensors").unlink()
    with pytest.raises(RunError, match="model.safetensors cannot be read"):
        load_run(half)
    (half / "checkpoint.pt").touch()
    with pytest.raises(RunError, match="half is not finished"):
        load_run(half)
    script = REPOSITORY / "docs" / "lighten.py"
    subprocess.run([sys.executable, script, copy], check=True)
    [light] = find_runs(copy.parent)
    assert light.metrics == run.metrics and light.right.tolist() == run.right.tolist()
    with pytest.raises(RunError, match="is kept without its weights"):
        load_run(copy)
    assert train(MODEL, RECIPE, data, copy) == light and not (copy / "model.safetensors").exists()


def test_what_was_measured_of_lost_weights_goes_with_them(run, data, copy):
    measured = [copy / f"{name}.npz" for name in ("attention", "swaps", "subsets")]
    for file in measured:
        file.write_bytes(b"of the former weights")
    train(MODEL, RECIPE, data, copy)  # it is finished
    assert all(file.exists() for file in measured)
    (copy / "model.safetensors").unlink()
    assert_same_run(train(MODEL, RECIPE, data, copy), run)
    assert not any(file.exists() for file in measured)


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("config.json", lambda run: run.config),
        ("metrics.jsonl", lambda run: run.test_accuracy),
        ("heads.npz", lambda run: run.heads),
        ("predictions.npz", lambda run: run.right),
        ("model.safetensors", lambda run: load_run(run.path)),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, look, run, copy):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=f"{name} cannot be read .*delete {copy}") as refused:
        look(Run(copy))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("part", ["model", "train"])
def test_a_configuration_of_another_version_is_refused_by_its_file(part, copy):
    config = json.loads((copy / "config.json").read_text())
    config[part]["hiden"] = 3
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="config.json cannot be read .*hiden = 3: Extra inputs"):
        getattr(Run(copy), part)


def test_runs_are_found_in_the_order_of_the_presets(run, tmp_path):
    for preset, seed in (("mine", 0), ("learned", 1), ("quadratic", 0), ("learned", 0)):
        folder = copytree(run.path, tmp_path / f"{preset}-{seed}")
        config = json.loads((folder / "config.json").read_text()) | {"preset": preset}
        config["train"]["seed"] = seed
        (folder / "config.json").write_text(json.dumps(config))
    names = [one.path.name for one in find_runs(tmp_path)]
    assert names == ["quadratic-0", "learned-0", "learned-1", "mine-0"]
    assert [one.title for one in find_runs(tmp_path)][-1] == "mine"


# The recipe


@pytest.mark.parametrize(
    ("smoothing", "clip"), [(0.0, None), (0.3, None), (0.0, 0.05), (0.3, 0.05)]
)
def test_steps_do_what_the_recipe_says(smoothing, clip, data):
    """Plain SGD by hand: a smoothed label, gradients clipped but for the positions', each group's
    rate at that step. The line says what the steps gave; the last batch is smaller.
    """
    plain = {"momentum": 0.0, "weight_decay": 0.0, "label_smoothing": smoothing, "clip": clip}
    rates = {"lr": 0.1, "position_lr": 0.5, "warmup": 0.4}
    recipe = TrainConfig(epochs=2, batch_size=30, precision="float32", seed=3, **plain, **rates)
    model = build_model(for_images(replace(MODEL, {"dropout": 0.0}), data))
    by_hand = deepcopy(model)
    loop.train_epoch(model, build_optimizers(model, recipe), recipe, data, 0)
    line = loop.train_epoch(model, build_optimizers(model, recipe), recipe, data, 1)

    place = 0  # of eight steps, three of them warm-up
    for epoch in (0, 1):
        plan = epoch_plan(100, seed=3, epoch=epoch, augment=True)
        images = augment(data.train_images[plan.order], *plan.crops)
        labels = data.train_labels[plan.order]
        losses = right = 0.0
        for x, y in batches(images, labels, None, 30, data.mean, data.std):
            logits = by_hand(x)
            wanted = (1 - smoothing) * F.one_hot(y, 10) + smoothing / 10
            loss = -(wanted * logits.log_softmax(1)).sum(1).mean()
            losses += len(y) * loss.item()
            right += (logits.argmax(1) == y).sum().item()
            by_hand.zero_grad()
            loss.backward()
            named = dict(by_hand.named_parameters())
            others = [p.grad.norm() for name, p in named.items() if not name.endswith(POSITIONS)]
            share = min(1.0, clip / torch.stack(others).norm().item()) if clip else 1.0
            assert clip is None or share < 1
            factor = (place + 1) / 3 if place < 3 else (1 + math.cos(math.pi * (place - 3) / 5)) / 2
            with torch.no_grad():
                for name, p in named.items():
                    p -= factor * (0.5 if name.endswith(POSITIONS) else 0.1 * share) * p.grad
            place += 1
    assert line["train_loss"] == pytest.approx(losses / 100, rel=1e-5)
    assert line["train_accuracy"] == right / 100
    assert line["lr"] == pytest.approx(0.1 * (1 + math.cos(math.pi * 4 / 5)) / 2)
    for now, p in zip(model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(now, p, rtol=1e-3, atol=1e-5)


def test_dropout_draws_by_seed_and_epoch(data):
    masks = []
    for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        recipe = TrainConfig(seed=seed, batch_size=100)
        torch.manual_seed(99)
        loop.train_epoch(model, build_optimizers(model, recipe), recipe, data, epoch)
        masks.append(torch.rand(3).tolist())
    assert masks[0] == masks[1] and masks[0] != masks[2] and masks[0] != masks[3] != masks[2]


def test_on_few_images_a_run_takes_as_many_steps(data, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(loop, "batches", lambda *args: seen.append(args) or batches(*args))
    train(MODEL, replace(RECIPE, {"images": 7, "epochs": 1}), data, tmp_path)
    images, labels = seen[0][:2]
    assert len(labels) == 100 and len(images.flatten(1).unique(dim=0)) == 7


def test_learning_rate_warms_up_then_falls_as_a_cosine():
    factors = [lr_factor(step, 100, 0.1) for step in range(100)]
    assert factors[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert factors[10] == 1 and factors[55] == pytest.approx(0.5) and 0 < factors[99] < 0.001
    assert lr_factor(0, 1, 0.0) == 1


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [
        ("sgd", lambda p: torch.optim.SGD([p], lr=0.1, momentum=0.7, weight_decay=0.2)),
        ("adamw", lambda p: torch.optim.AdamW([p], lr=0.1, betas=(0.7, 0.8), weight_decay=0.2)),
        ("muon", lambda p: torch.optim.Muon([p], lr=0.1, momentum=0.7, weight_decay=0.2)),
    ],
)
def test_optimizers_step_as_the_recipe_says(optimizer, reference):
    """Three steps of a weight between input and classifier, beside PyTorch's own."""
    model = build_model(MODEL)
    recipe = TrainConfig(optimizer=optimizer, lr=0.1, momentum=0.7, beta2=0.8, weight_decay=0.2)
    weight = model.blocks[0].output.weight
    own = torch.nn.Parameter(weight.detach().clone())
    built, beside = build_optimizers(model, recipe, torch.bfloat16), reference(own)
    for group in (group for one in built for group in one.param_groups):
        group["lr"] = group["peak_lr"]  # as the loop does at the peak
    for _ in range(3):
        own.grad = torch.randn_like(own)
        for p in model.parameters():
            p.grad = own.grad.clone() if p is weight else None  # frozen
        for one in (*built, beside):
            one.step()
        torch.testing.assert_close(weight, own)


@pytest.mark.parametrize("changes", [{}, {"kind": "resnet"}, {"heads": (0, 3)}])
def test_muon_takes_the_matrices_and_kernels_between_input_and_classifier(changes):
    model = build_model(replace(MODEL, changes))
    config = TrainConfig(optimizer="muon", lr=0.02, adamw_lr=0.001, position_lr=0.1)
    adamw, muon = build_optimizers(model, config)
    taken = {id(p) for group in muon.param_groups for p in group["params"]}
    named = {name: p for name, p in model.named_parameters() if id(p) in taken}
    assert len(named) == len(taken)
    inner = [n for n, p in model.named_parameters() if n.startswith(("blocks", "stages"))]
    matrices = {n for n in inner if dict(model.named_parameters())[n].dim() > 1}
    assert named.keys() == {name for name in matrices if not name.endswith("centres")}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for optimizer in (adamw, muon):
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


def test_muon_orthogonalizes_as_its_run_computes():
    """In float32 singular values come near 1 and directions stay; in bfloat16 about so."""
    for shape in ((24, 60), (60, 24)):
        matrix = torch.randn(shape)
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        around = u.T @ orthogonal(matrix, torch.float32) @ v.T
        torch.testing.assert_close(around, around.diagonal().diag(), atol=1e-5, rtol=0)
        assert 0.6 < around.diagonal().min() and around.diagonal().max() < 1.3
        coarse = orthogonal(matrix, torch.bfloat16)
        assert coarse.dtype == torch.bfloat16
        torch.testing.assert_close(coarse.float(), u @ around @ v, atol=0.05, rtol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("kind", ["learned", "learned_content", "quadratic"])
def test_positions_and_encodings_have_rates_of_their_own_and_then_no_weight_decay(optimizer, kind):
    model = build_model(replace(MODEL, {"kind": kind}))
    base = 0.2 if optimizer == "muon" else 0.1
    recipe = TrainConfig(optimizer=optimizer, lr=0.1, adamw_lr=0.2, weight_decay=0.3)
    names = {id(p): name for name, p in model.named_parameters()}
    number = {"learned": 4, "learned_content": 2, "quadratic": 2}[kind] * MODEL.layers
    assert sum(name.endswith(POSITIONS + ENCODINGS) for name in names.values()) == number
    for encoding, position in ((None, None), (0.7, 0.5)):
        config = replace(recipe, {"encoding_lr": encoding, "position_lr": position})
        groups = [
            group for built in build_optimizers(model, config) for group in built.param_groups
        ]
        found = {
            names[id(p)]: (group["peak_lr"], group["weight_decay"])
            for group in groups
            for p in group["params"]
        }
        assert found.keys() == set(names.values())
        for name, rates in found.items():
            if name.endswith(POSITIONS):
                assert rates == (position or base, 0.0)
            elif name.endswith(ENCODINGS):
                assert rates == ((encoding, 0.0) if encoding else (base, 0.3))
            apart = name.endswith(POSITIONS) or bool(encoding and name.endswith(ENCODINGS))
            assert (own_rate(name, config) is not None) == apart
        assert found["embed.weight"] == (base, 0.3)
        assert found["embed.bias"] == (base, 0.3 if optimizer == "sgd" else 0.0)


# Runs that go on from others


def pruned(network):
    with torch.no_grad():
        network.attention_layers[0].spreads[1].zero_()  # a head that looks everywhere alike
    return heads.pruned(network)


def tied(network):
    network.blocks[1].mlp = network.blocks[0].mlp
    return swap(network, {1: 3}).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "change",
    [lambda net: net, pruned, lambda net: swap(net, {1: 3}), lambda net: net.float(), tied],
)
def test_a_run_goes_on_from_a_network_which_stays_as_it_was(
    change, run, data, tmp_path, monkeypatch
):
    first = change(load_run(run.path)[0])
    before = {name: value.clone() for name, value in first.state_dict().items()}
    recipe = replace(RECIPE, {"epochs": 2, "start_from": run.path.name})
    went_on = train(MODEL, recipe, data, tmp_path / "on", start=first)
    assert all(torch.equal(before[name], value) for name, value in first.state_dict().items())
    assert went_on.model == first.config and load_run(went_on.path)[0].config == first.config
    first_answers = evaluate(first, data).predicted
    assert (went_on.arrays("predictions.npz")["start"] == first_answers.numpy()).all()
    shown = normalize(data.test_images[: heads.GEOMETRY_IMAGES], data.mean, data.std)
    for name, values in heads.network_geometry(first, shown).items():
        np.testing.assert_array_equal(went_on.heads[name][0], values)
    args = (MODEL, recipe, data, tmp_path / "cut")
    assert_same_run(train_in_two(monkeypatch, *args, start=first), went_on)


def test_attention_goes_on_from_the_kernels_of_a_cnn(data, tmp_path):
    as_cnn = replace(MODEL, {"kernels": [3, 3], "heads": 9})
    write(tmp_path / "cnn" / "mine.npz", {"no": "run's"})
    cnn = train(as_cnn, replace(RECIPE, {"epochs": 1, "compile": True}), data, tmp_path / "cnn")
    recipe = replace(RECIPE, {"epochs": 1, "start_from": "cnn"})
    run = train(MODEL, recipe, data, tmp_path / "on", start=unswap(load_run(cnn.path)[0], 6.0))
    assert cnn.config["environment"]["computation"] == "float32, compiled"
    answers = [one.arrays("predictions.npz") for one in (run, cnn)]
    assert (answers[0]["start"] == answers[1]["predicted"]).all()
    assert run.model.centre_start == "taps"
    assert (tmp_path / "cnn" / "mine.npz").exists()
    assert run.heads["parameter_centre"][0, 0].tolist() == [
        [r, c] for r in (-1, 0, 1) for c in (-1, 0, 1)
    ]


@pytest.mark.parametrize(("name", "given"), [("other", False), (None, True)])
def test_a_start_and_its_name_come_together(name, given, run, data, tmp_path):
    network = load_run(run.path)[0] if given else None
    with pytest.raises(RunError, match="start_from = .* must name the run of start"):
        train(MODEL, replace(RECIPE, {"start_from": name}), data, tmp_path, start=network)
    recipe = replace(RECIPE, {"start_from": "other"})
    with pytest.raises(RunError, match="start is a network for other images or classes"):
        train(MODEL, recipe, data, tmp_path, start=build_model(MODEL))
    assert not (tmp_path / "config.json").exists()


# Several processes, as torchrun starts them

SHARED = TrainConfig(epochs=3, batch_size=12, lr=0.05, clip=1.0, seed=5, precision="float32")


@pytest.mark.slow
def test_several_processes_follow_the_loss_curve_of_one(data, tmp_path):
    """Batches of 12 of 100 images: the last is smaller."""
    model = replace(MODEL, {"dropout": 0.0})  # masks differ between processes, as they must
    alone = train(model, SHARED, data, tmp_path / "alone", preset="quadratic")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **names} for rank in range(2)]
    team = [start(model, SHARED, tmp_path / "team", **rank) for rank in ranks]
    assert [ended(process) for process in team] == [0, 0]
    shared = Run(tmp_path / "team")
    for a, b in zip(timeless(alone), timeless(shared), strict=True):
        assert a == pytest.approx(b, abs=1e-4)
    assert {file.name for file in alone.path.iterdir()} == {
        file.name for file in shared.path.iterdir()
    }


# The command


def test_the_command_keeps_large_buffers():
    """It starts itself once more, with settings that count from the start."""
    code = "import os, sys; from companion.cli import keep_buffers; keep_buffers()\n"
    code += "print(os.environ['MALLOC_MMAP_MAX_'], *sys.argv)"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC")}
    words = [sys.executable, "-c", code, "a b"]
    said = subprocess.run(words, env=bare, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said == "0 -c a b\n"


def test_training_knows_nothing_of_the_companion():
    code = "import sys, attnconv.training.loop\n"
    code += "sys.exit(any(name.startswith('companion') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_module_is_the_command():
    words = [sys.executable, "-m", "attnconv", "train", "quadratic", "--profile=nowhere"]
    said = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 2 and said.stderr.startswith("attnconv: There is no profile")
