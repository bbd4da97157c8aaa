"""One training loop. It writes a run folder, survives being stopped at any moment, and never repeats finished work.

All randomness is a function of (seed, epoch): the order of the images, their crops and flips, and dropout. A run that
was stopped and resumed therefore ends with the same bits, on a CPU, as one that was never stopped. Under torchrun the
same loop runs in every process, on its share of each batch (`Team`, at the end).
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import io
import itertools
import json
import math
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from attnconv import heads
from attnconv.config import ModelConfig, TrainConfig, for_images, replace, to_dict
from attnconv.data import Dataset, batches, epoch_plan, normalize
from attnconv.models import AttentionNet, build_model, position_parameters, predict
from attnconv.precision import Computation, choose, computing
from attnconv.runs import Run, RunError, checksum, identity, locked, reading, writing

GEOMETRY_IMAGES = 32
"""Test images over which the attention of content heads is averaged when their geometry is recorded."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step, why, and what to do."""


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def best_device() -> torch.device:
    """CUDA where there is one (this process's own under torchrun), else the CPU."""
    cuda = f"cuda:{os.environ['LOCAL_RANK']}" if "LOCAL_RANK" in os.environ else "cuda"
    return torch.device(cuda if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy (nats), share of right answers in [0, 1], and the class given to each image: int64 (N,)."""

    loss: float
    accuracy: float
    predicted: Tensor = field(repr=False, compare=False)


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, images: Tensor | None = None, labels: Tensor | None = None) -> Evaluation:
    """Evaluation mode, no augmentation, every image once; the test split unless images and labels are given."""
    images, labels = (data.test_images, data.test_labels) if images is None else (images, labels)
    device = next(model.parameters()).device
    loss, correct = torch.zeros(2, dtype=torch.float64, device=device)
    predicted = []
    with computing(choose(device), device):
        for x, y in batches(images.to(device), labels.to(device), None, 500, data.mean, data.std):
            logits = predict(model, x)
            loss += F.cross_entropy(logits.float(), y, reduction="sum")
            predicted.append(logits.argmax(1))
            correct += (predicted[-1] == y).sum()
    return Evaluation(loss.item() / len(labels), correct.item() / len(labels), torch.cat(predicted).cpu())


def lr_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a cosine to zero (paper's recipe)."""
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def build_optimizer(model: nn.Module, config: TrainConfig) -> Optimizers:
    """SGD, AdamW, or Muon beside AdamW, in groups; each keeps its ``peak_lr``.

    No weight decay on centres and spreads, nor (AdamW, Muon) on biases and norms. Muon takes the matrices between the
    input and the classifier; a convolution's kernel is one, (D, C k k).
    """
    positions = position_parameters(model)
    special = {id(p) for p in positions}
    rest = [(name, p) for name, p in model.named_parameters() if id(p) not in special]
    inside = [(name, p) for name, p in rest if name.startswith(("blocks.", "stages."))]
    inner = [p for name, p in inside if p.dim() > 1 and name.endswith(".weight")]
    by_muon = {id(p) for p in inner} if config.optimizer == "muon" else set()
    others = [p for _, p in rest if id(p) not in by_muon]
    sgd = config.optimizer == "sgd"
    lr = config.adamw_lr if config.optimizer == "muon" else config.lr
    groups = [
        dict(params=[p for p in others if p.dim() > 1 or sgd], peak_lr=lr, weight_decay=config.weight_decay),
        dict(params=[p for p in others if p.dim() <= 1 and not sgd], peak_lr=lr, weight_decay=0.0),
        dict(params=positions, peak_lr=config.position_lr or lr, weight_decay=0.0),
    ]
    groups = [group for group in groups if group["params"]]
    if sgd:
        return Optimizers(torch.optim.SGD(groups, lr=lr, momentum=config.momentum, fused=True))
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(config.momentum, config.beta2), fused=True)
    if not by_muon:
        return Optimizers(adamw)
    twins = [(p, nn.Parameter(p.detach().flatten(1).clone())) for p in inner]
    group = dict(params=[flat for _, flat in twins], peak_lr=config.lr, weight_decay=config.weight_decay)
    return Optimizers(adamw, torch.optim.Muon([group], momentum=config.momentum), twins=twins)


class Optimizers:
    """One or two optimizers that step together. ``twins``: weights, and the same as matrices, which Muon steps."""

    def __init__(self, *optimizers: torch.optim.Optimizer, twins: list[tuple[nn.Parameter, nn.Parameter]] = ()):
        self.all, self.twins = optimizers, twins

    @property
    def param_groups(self) -> list[dict]:
        return [group for optimizer in self.all for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        for optimizer in self.all:
            optimizer.zero_grad()
        for p, _ in self.twins:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for p, flat in self.twins:
            flat.copy_(p.flatten(1))
            flat.grad = None if p.grad is None else p.grad.flatten(1)
        for optimizer in self.all:
            optimizer.step()
        for p, flat in self.twins:
            p.copy_(flat.view(p.shape))

    def state_dict(self) -> list[dict]:
        return [optimizer.state_dict() for optimizer in self.all]

    def load_state_dict(self, states: list[dict]) -> None:
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)


def train(
    model_config: ModelConfig,
    train_config: TrainConfig,
    data: Dataset,
    run_dir: str | Path,
    *,
    preset: str = "custom",
    start: Run | None = None,
    device: torch.device | None = None,
    progress: bool = True,
) -> Run:
    """Train a model and leave a run folder; resume it if it was stopped, return it as it is if it is finished.

    Where another process trains the same run, this one waits for it.

    Args:
        model_config: its image size, channels and classes are taken from ``data``.
        run_dir: the run folder. One that holds a run of another configuration or data is refused, never overwritten.
        preset: a name for tables and figures.
        start: the finished run whose weights come first and whose degenerate heads are dropped, where
            ``train_config.start_from`` asks for one.

    Raises:
        DataError: there are no more images than ``validation`` asks for.
        RunError: the folder belongs to another run, or is damaged.
        TrainingError: the loss is not finite, or the disk is full.
        KeyboardInterrupt: after Ctrl-C, SIGTERM or SIGHUP, once a checkpoint is written; the same call resumes.
    """
    folder = Path(run_dir)
    model_config = for_images(model_config, data.image_size, data.image_channels, len(data.classes))
    data.check_hold_out(train_config.validation)
    if (train_config.start_from is None) != (start is None):
        raise RunError(f"start_from = {train_config.start_from!r}, but the run to start from is {start}.")
    name = identity(model_config, train_config, data.key, start and start.config["hash"])
    team, device = Team(), device or best_device()
    if team.any(_is_finished(folder, name)):
        return Run(folder)
    with locked(folder) if team.leads else contextlib.nullcontext():
        if team.any(_is_finished(folder, name)):
            return Run(folder)  # another process finished it while this one waited
        if (folder / "model.safetensors").exists():
            warnings.warn(f"{folder / 'model.safetensors'} is damaged: the run is trained again.", stacklevel=2)
        set_seed(train_config.seed)
        model = build_model(model_config) if start is None else _pruned(start)
        if device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # kernels of convolutions, as the images are
        trainer = _Trainer(model.to(device), train_config, data.to(device), folder, progress, team)
        resumed = trainer.resume()
        here = environment(device) | {"computation": str(trainer.computation), "processes": team.size}
        before = Run(folder).config.get("sessions", []) if (folder / "config.json").is_file() else []
        config = dict(preset=preset, hash=name, model=to_dict(model.config), train=to_dict(train_config))
        trainer.about = config | dict(data=_about(data), environment=here, sessions=[*before, here])
        trainer.fit(resumed)
    return Run(folder)


def _is_finished(folder: Path, name: str) -> bool:
    """Whether the folder holds this very run, finished; another one there is refused."""
    run = Run(folder)
    if (folder / "config.json").is_file() and run.config["hash"] != name:
        raise RunError(
            f"{folder} holds a run of another configuration or data set ({run.config['hash']}, not {name}); "
            "give this run a folder of its own."
        )
    return run.finished


def load_run(run_dir: str | Path, device: torch.device | None = None) -> tuple[nn.Module, Run]:
    """The trained model of a run folder, in evaluation mode, and the run itself."""
    run = Run(Path(run_dir))
    weights = run.path / "model.safetensors"
    if not run.finished:
        why = "its model.safetensors is damaged" if weights.exists() else "it has no model.safetensors"
        raise RunError(f"{run.path} is not finished: {why}, {len(run.metrics)} epochs of {run.train.epochs}. Train it.")
    with reading(weights):
        model = build_model(run.model)
        safetensors.torch.load_model(model, weights)
    return model.to(device or best_device()).eval(), run


def _about(data: Dataset) -> dict:
    about = dict(name=data.name, form=data.form, key=data.key, classes=list(data.classes))
    about |= dict(train_images=len(data.train_labels), test_images=len(data.test_labels))
    return about | dict(mean=list(data.mean), std=list(data.std))


def environment(device: torch.device) -> dict[str, str | int | None]:
    """Where a run is made, by which code, and when: versions, device, threads, command, commit, date."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    by_command = Path(sys.argv[0]).stem in ("attnconv", "__main__")
    return dict(
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
        command=" ".join(["attnconv", *sys.argv[1:]]) if by_command else None,
        commit=_commit(),
        attnconv=importlib.metadata.version("attnconv"),
        torch=torch.__version__,
        python=platform.python_version(),
        device=gpu or f"{os.cpu_count()} CPU cores, {platform.machine()}",
        threads=torch.get_num_threads(),
    )


def _commit() -> str | None:
    """The commit of this code: git's answer, else $ATTNCONV_COMMIT (for a copy of the repository without .git)."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return os.environ.get("ATTNCONV_COMMIT")


def _pruned(start: Run) -> nn.Module:
    """The trained model of a run without its degenerate heads."""
    model, _ = load_run(start.path, torch.device("cpu"))
    for block in model.blocks:
        block.attention = heads.prune(block.attention)
    model.config = replace(model.config, {"heads": tuple(layer.heads for layer in model.attention_layers)})
    return model


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and SIGHUP set an event instead of breaking a step in the middle; a second one breaks at once.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    event = threading.Event()

    def ask(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    main = threading.current_thread() is threading.main_thread()  # only there Python lets handlers be set
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, ask)
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Trainer:
    """The state of a run under way, all of which a checkpoint holds, and the loop over it."""

    def __init__(self, model: nn.Module, config: TrainConfig, data: Dataset, folder: Path, progress: bool, team: Team):
        self.model, self.config, self.folder, self.progress, self.team = model, config, folder, progress, team
        self.device = next(model.parameters()).device
        self.data, self.validation = data, None
        if config.validation:
            self.data, *self.validation = data.hold_out(config.validation, config.seed)
        self.optimizer = build_optimizer(model, config)
        positions = {id(p) for p in position_parameters(model)}
        self.clipped = [p for p in model.parameters() if id(p) not in positions]
        self.computation = choose(self.device, config.precision)
        self.forward = team.wrap(model, self.device)
        cuda = self.device.type == "cuda"
        if cuda:
            torch.backends.cudnn.benchmark = True
        if compiled := cuda if config.compile is None else config.compile:
            torch._dynamo.reset()  # models share one forward: beyond eight of them dynamo would quietly stop compiling
            # One graph for each batch size that occurs (a last, smaller batch is one more): a graph for all is slower.
            mode = compiled if isinstance(compiled, str) else None
            self.forward = torch.compile(self.forward, dynamic=False, mode=mode)
        self.images = len(self.data.train_labels)
        self.epoch_steps = math.ceil(self.images / config.batch_size)
        self.epoch, self.step = 0, 0  # the next step to take
        self.seconds = 0.0  # of this epoch, in all tries
        self.saved, self.cost = time.monotonic(), 0.0  # when a checkpoint was last written, and how long that took
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # this epoch's loss and right answers
        self.metrics: list[dict] = []
        self.geometry: dict[str, list[np.ndarray]] = {}
        self.about: dict = {}  # config.json

    # The loop.

    def fit(self, resumed: bool) -> None:
        """Train from wherever the run is to its end."""
        try:
            with computing(self.computation, self.device), self.bar() as bar, _asked_to_stop() as stop:
                if not resumed:
                    self.measure_heads()
                self.record()  # the process may have died between a checkpoint and its record
                while self.epoch < self.config.epochs:
                    bar.set_description(f"{self.folder.name}: epoch {self.epoch + 1}/{self.config.epochs}")
                    self.run_epoch(bar, stop)
                    self.finish_epoch(bar)
                self.finish()
        except OSError as error:
            raise TrainingError(f"The run cannot be written: {error}. Make room there; {self.kept()}.") from error
        if stop.is_set():
            raise KeyboardInterrupt(f"{self.folder} is finished.")

    def run_epoch(self, bar: tqdm, stop: threading.Event) -> None:
        """The rest of an epoch, from `step`. On a GPU nothing here waits for the device."""
        config, data = self.config, self.data
        if self.step == 0:
            set_seed(config.seed * 1_000_003 + self.epoch + 500_009 * self.team.rank)  # dropout
        plan = epoch_plan(self.images, seed=config.seed, epoch=self.epoch, augment=config.augment, device=self.device)
        feed = batches(
            data.train_images, data.train_labels, plan, config.batch_size, data.mean, data.std, start=self.step
        )
        self.model.train()
        before, started = self.seconds, time.monotonic()
        for x, y in itertools.islice(feed, self.epoch_steps - self.step):
            loss = self.take_step(x, y)
            self.step += 1
            self.seconds = before + time.monotonic() - started
            bar.update(len(y))
            if self.device.type == "cpu":
                self.refuse_non_finite()
                bar.set_postfix(loss=f"{loss.item():.3f}", **self.last_accuracy(), refresh=False)
            stopping = self.team.any(stop.is_set())
            if stopping or time.monotonic() - self.saved > config.checkpoint_seconds:
                self.save()
            if stopping:
                raise KeyboardInterrupt(
                    f"stopped in epoch {self.epoch + 1} of {config.epochs}; {self.folder} resumes by the same command"
                )
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the steps were only queued
        self.seconds = before + time.monotonic() - started

    def take_step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of the optimizer on images x (B, C, H, W) and labels y (B,); the mean loss, on the device."""
        steps = self.config.epochs * self.epoch_steps
        factor = lr_factor(self.epoch * self.epoch_steps + self.step, steps, self.config.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        images = len(y)
        x, y, weight = self.team.share(x, y)
        with self.computation.autocast(self.device):
            logits = self.forward(x)
        loss = weight * F.cross_entropy(logits.float(), y, label_smoothing=self.config.label_smoothing)
        self.optimizer.zero_grad()
        loss.backward()
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.clipped, self.config.clip)
        self.optimizer.step()
        with torch.no_grad():
            right = (logits.argmax(1) == y).sum() * (weight > 0)
            loss = self.team.mean(loss.detach())
            self.sums += torch.stack([loss * images, self.team.mean(right * self.team.size)])
        return loss

    def finish_epoch(self, bar: tqdm) -> None:
        """Evaluate, measure the heads, write the record and a checkpoint."""
        self.refuse_non_finite()
        loss, right = (self.sums / self.images).tolist()
        # The last epoch's accuracy is the reported one: in float32, as `evaluate` finds it again anywhere.
        last = self.epoch + 1 == self.config.epochs
        with contextlib.nullcontext() if last else self.computation.autocast(self.device):
            test = evaluate(self.model, self.data)
        line = dict(epoch=self.epoch + 1, train_loss=loss, train_accuracy=right)
        line |= dict(test_loss=test.loss, test_accuracy=test.accuracy)
        if self.validation:
            held_out = evaluate(self.model, self.data, *self.validation)
            line |= dict(validation_loss=held_out.loss, validation_accuracy=held_out.accuracy)
        speed = self.images / max(self.seconds, 1e-9)
        line |= dict(lr=self.optimizer.param_groups[0]["lr"], seconds=round(self.seconds, 3))
        self.metrics.append(line | dict(images_per_second=round(speed, 1)))
        self.measure_heads()
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0
        self.sums.zero_()
        bar.set_postfix(loss=f"{loss:.3f}", **self.last_accuracy())
        if last or time.monotonic() - self.saved >= 20 * self.cost:  # epochs can be shorter than what this takes
            self.save()

    def finish(self) -> None:
        """Write what the trained model answers, then its weights, which say that the run is finished."""
        answers = {"predicted": evaluate(self.model, self.data).predicted, "label": self.data.test_labels}
        weights = {name: value.contiguous() for name, value in self.model.state_dict().items()}
        if self.team.leads:
            with writing(self.folder / "predictions.npz") as temporary:
                answers = {name: values.to("cpu", torch.int16).numpy() for name, values in answers.items()}
                np.savez_compressed(temporary, **answers)
            content = safetensors.torch.save(weights)
            self.record(weights=hashlib.sha256(content).hexdigest())
            with writing(self.folder / "model.safetensors") as temporary:
                temporary.write_bytes(content)
            shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
        self.team.any(False)  # the folder is complete when any process returns

    # Checkpoints: the one source of truth. What others read is rewritten from them, never read back.

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint" / "state.pt"

    def save(self) -> None:
        """Write everything that resuming needs, whole or not at all; never the state of a run that diverged."""
        self.refuse_non_finite()
        if not self.team.leads:
            return
        started, content = time.monotonic(), io.BytesIO()  # written by Python: a full disk is then an OSError
        state = dict(
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            epoch=self.epoch,
            step=self.step,
            seconds=self.seconds,
            sums=self.sums,
            metrics=json.dumps(self.metrics),
            geometry={name: torch.from_numpy(np.stack(values)) for name, values in self.geometry.items()},
            bfloat16=self.computation.bfloat16,
            onednn=self.computation.onednn,
            rng=torch.get_rng_state(),
            cuda_rng=torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        )
        torch.save(state, content)
        with writing(self.checkpoint) as temporary:
            temporary.write_bytes(content.getbuffer())
        self.record()
        self.saved = time.monotonic()
        self.cost = self.saved - started

    def resume(self) -> bool:
        """Take the state of the last checkpoint, if there is one."""
        if found := self.checkpoint.is_file():
            with reading(self.checkpoint):
                if damaged := zipfile.ZipFile(self.checkpoint).testzip():  # torch does not compare checksums
                    raise ValueError(f"{damaged} has another checksum")
                state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
                self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
                self.computation = Computation(state["bfloat16"], state["onednn"])  # the same bits as before
                self.sums = state["sums"].to(self.device)
                self.metrics = json.loads(state["metrics"])
                self.geometry = {name: list(values.numpy()) for name, values in state["geometry"].items()}
                torch.set_rng_state(state["rng"])
                if state["cuda_rng"] is not None and self.device.type == "cuda":
                    torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        self.team.any(False)  # nobody goes on, and may write a checkpoint, while another still reads this one
        return found

    def record(self, **more: str) -> None:
        """Write the parts of the run folder that others read."""
        if not self.team.leads:
            return
        with writing(self.folder / "config.json") as temporary:
            about = self.about | {"checksum": checksum(self.about)} | more
            temporary.write_text(json.dumps(about, indent=1) + "\n")
        with writing(self.folder / "metrics.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in self.metrics))
        if self.geometry:
            with writing(self.folder / "heads.npz") as temporary:
                np.savez_compressed(temporary, **{name: np.stack(v) for name, v in self.geometry.items()})

    def measure_heads(self) -> None:
        """Add what every head does now to the history."""
        if not isinstance(self.model, AttentionNet):
            return
        x = normalize(self.data.test_images[:GEOMETRY_IMAGES], self.data.mean, self.data.std)
        self.model.eval()  # no dropout
        with torch.no_grad():
            features = self.model.layer_inputs(x) if self.model.config.kind == "learned_content" else None
            measured = heads.geometry(self.model.attention_layers, *self.model.config.grid, features)
        for name, value in measured.items():
            self.geometry.setdefault(name, []).append(value)

    # What is said.

    def bar(self) -> tqdm:
        """The progress over all images of all epochs; rarely redrawn where it goes to a log."""
        quiet = not (self.progress and self.team.leads) or os.environ.get("ATTNCONV_QUIET") == "1"
        often = sys.stderr.isatty() or "ipykernel" in sys.modules
        done = self.epoch * self.images + min(self.step * self.config.batch_size, self.images)
        look = dict(disable=quiet, unit=" images", dynamic_ncols=True, mininterval=0.1 if often else 30)
        return tqdm(total=self.config.epochs * self.images, initial=done, **look)

    def last_accuracy(self) -> dict[str, str]:
        return {"test accuracy": f"{100 * self.metrics[-1]['test_accuracy']:.1f}%"} if self.metrics else {}

    def kept(self) -> str:
        if self.checkpoint.is_file():
            return f"the same command resumes from the last good checkpoint, {self.checkpoint}"
        return "no checkpoint was written yet"

    def refuse_non_finite(self) -> None:
        """Stop a run that diverged, before its state reaches a checkpoint."""
        loss, lr = self.sums[0].item(), self.optimizer.param_groups[0]["lr"]
        if not math.isfinite(loss):
            raise TrainingError(
                f"The loss is {loss} at epoch {self.epoch + 1}, step {self.step} of {self.epoch_steps} (learning rate "
                f"{lr:.3g}); {self.kept()}. Lower lr or position_lr, or set clip, in a run of its own."
            )


class Team:
    """The processes that torchrun started for one run. Alone, which is the rule, each method gives back what it got.

    The batch size stays that of the whole run: each process takes its share of every batch, and
    `DistributedDataParallel` averages the gradients. One process and several follow the same loss curve (BatchNorm
    aside: on a CPU each process normalises by its own share).
    """

    def __init__(self) -> None:
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        self.leads = self.rank == 0  # one process writes the run folder and speaks to the user
        if self.size > 1 and not dist.is_initialized():
            if torch.cuda.is_available():
                torch.cuda.set_device(best_device())
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
            atexit.register(dist.destroy_process_group)

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model as the training step calls it."""
        if self.size == 1:
            return model
        cuda = device.type == "cuda"
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if cuda else model
        return nn.parallel.DistributedDataParallel(model, device_ids=[device] if cuda else None)

    def share(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        """This process's images and labels of a batch, and their weight: the mean over processes is the batch's."""
        own = slice(self.rank, None, self.size)
        weight = len(y[own]) * self.size / len(y)
        if not weight:
            own = slice(1)  # all must go through the model
        return (x, y, 1.0) if self.size == 1 else (x[own], y[own], weight)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over processes."""
        if self.size > 1:
            dist.all_reduce(value)
            value = value / self.size
        return value

    def any(self, flag: bool) -> bool:
        """Whether any process raised the flag; all wait here for each other. Goes between CPUs, not over a GPU."""
        raised = torch.tensor(flag, dtype=torch.int32)
        if self.size > 1:
            dist.all_reduce(raised, dist.ReduceOp.MAX)
        return bool(raised)
