"""Several processes on CPUs (gloo): the loss curve of one process, one writer, and a loud but resumable end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from attnconv.config import TrainConfig, replace
from attnconv.data import epoch_plan, load_data
from attnconv.distributed import Processes
from attnconv.runs import Run, RunError
from attnconv.training import train
from test_training import MODEL

PLAIN = replace(MODEL, {"dropout": 0.0})  # masks differ between processes, as they must
RECIPE = TrainConfig(epochs=3, batch_size=15, lr=0.05, clip=1.0, validation=9, seed=5, precision="float32")
SLOW = replace(RECIPE, {"epochs": 2000})
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import test_distributed as t, test_training
from attnconv.training import TrainingError
try:
    t.train(t.PLAIN, getattr(t, sys.argv[2]), t.small_data(), sys.argv[1])
except TrainingError as error:
    sys.exit(str(error))
except KeyboardInterrupt as stop:
    sys.exit(f"interrupted: {{stop}}")
"""


def small_data():
    return load_data("embedded", progress=False).first(100, 33)


def start(folder: Path, processes: int, recipe: str = "RECIPE") -> list[subprocess.Popen]:
    """What torchrun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = SCRIPT.format(tests=str(Path(__file__).parent))
    given = {"ATTNCONV_QUIET": "1", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(processes)}
    given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), recipe],
            env={**os.environ, **given, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]


def finish(started: list[subprocess.Popen]) -> list[tuple[int, str]]:
    said = [process.communicate(timeout=240)[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, said, strict=True)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(PLAIN, RECIPE, small_data(), tmp_path_factory.mktemp("alone"), device=torch.device("cpu"))


def curve(run: Run) -> list[float]:
    names = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "validation_loss", "validation_accuracy")
    return [line[name] for line in run.metrics for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_follow_the_loss_curve_of_one(alone, tmp_path, processes):
    """Batches of 15 of 91 images: uneven shares, and a last batch of one image, which leaves a process none."""
    for status, said in finish(start(tmp_path, processes)):
        assert status == 0, said
    run = Run(tmp_path)
    assert curve(run) == pytest.approx(curve(alone), abs=1e-4)
    assert run.config["environment"]["processes"] == processes
    assert run.config["hash"] == alone.config["hash"]  # how many processes is no part of what a run is
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in alone.path.iterdir()}
    assert run.heads.keys() == alone.heads.keys()


def wait_for_epochs(folder: Path, epochs: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        file = folder / "metrics.jsonl"
        if file.is_file() and len(file.read_text().splitlines()) >= epochs:
            return
        time.sleep(0.05)
    pytest.fail(f"no {epochs} epochs in two minutes")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_run_with_a_message_and_a_resumable_state(tmp_path, victim):
    started = start(tmp_path, 2, "SLOW")
    wait_for_epochs(tmp_path, 2)
    started[victim].kill()
    results = finish(started)
    assert results[victim][0] == -signal.SIGKILL
    status, said = results[1 - victim]
    assert status == 1 and "lost another one in epoch" in said and "the same command resumes from" in said
    epochs = len(Run(tmp_path).metrics)
    again = start(tmp_path, 2, "SLOW")
    wait_for_epochs(tmp_path, epochs + 2)
    for process in again:
        process.terminate()  # torchrun passes a Ctrl-C or a SIGTERM on to all
    for status, said in finish(again):
        assert status == 1 and "interrupted" in said and "resumes by the same command" in said
    assert (tmp_path / "checkpoint" / "state.pt").is_file()
    lines = [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, len(lines) + 1)) and len(lines) >= epochs + 2


@pytest.mark.parametrize("augment", [False, True])
def test_shares_of_a_plan_make_up_every_batch(augment):
    plan = epoch_plan(25, seed=1, epoch=2, augment=augment)
    shares = [Processes(rank, 3).plan(plan, 10) for rank in range(3)]
    assert [size for _, size in shares] == [4, 3, 3]
    for step in range(3):
        batch = plan.order[step * 10 : (step + 1) * 10]
        parts = [own.order[step * size : (step + 1) * size] for own, size in shares]
        assert sorted(torch.cat(parts).tolist()) == sorted(batch.tolist())
    if augment:
        own, _ = shares[1]
        crop_of = dict(zip(plan.order.tolist(), plan.rows.tolist(), strict=True))
        assert own.rows.tolist() == [crop_of[image] for image in own.order.tolist()]


def test_one_process_takes_no_detour():
    plan, alone = epoch_plan(25, seed=1, epoch=2, augment=True), Processes()
    assert alone.plan(plan, 10) == (plan, 10) and alone.writer and alone.any(True, False) == [True, False]
    model = torch.nn.Linear(1, 1)
    assert alone.wrap(model, torch.device("cpu")) is model


def test_more_processes_than_images_in_a_batch_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("attnconv.training.join", lambda: Processes(0, 20))
    with pytest.raises(RunError, match="batch_size = 15"):
        train(PLAIN, RECIPE, small_data(), tmp_path)
