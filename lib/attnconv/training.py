"""One training loop. It writes a run folder, survives being stopped at any moment, and never repeats finished work.

All randomness is a function of (seed, epoch): the order of the images, their crops and flips, and dropout. A run that
was stopped and resumed therefore ends with the same bits, on a CPU, as one that was never stopped. Under torchrun the
same loop runs in every process, on its share of each batch (`attnconv.distributed`).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
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
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from attnconv import heads
from attnconv.config import ModelConfig, TrainConfig, for_images, replace, to_dict
from attnconv.data import Dataset, batches, epoch_plan, normalize
from attnconv.distributed import Processes, is_loss_of_a_process, join, own_device
from attnconv.models import AttentionNet, build_model, position_parameters, predict
from attnconv.precision import Computation, choose, computing
from attnconv.runs import Run, RunError, identity, locked, writing

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
    return own_device()


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy (nats) and share of right answers, in [0, 1]."""

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, images: Tensor | None = None, labels: Tensor | None = None) -> Evaluation:
    """Evaluation mode, no augmentation, every image once; the test split unless images and labels are given."""
    images, labels = (data.test_images, data.test_labels) if images is None else (images, labels)
    device = next(model.parameters()).device
    loss, correct = torch.zeros(2, dtype=torch.float64, device=device)
    with computing(choose(device), device):
        for x, y in batches(images.to(device), labels.to(device), None, 500, data.mean, data.std):
            logits = predict(model, x)
            loss += F.cross_entropy(logits.float(), y, reduction="sum")
            correct += (logits.argmax(1) == y).sum()
    return Evaluation(loss.item() / len(labels), correct.item() / len(labels))


@torch.no_grad()
def save_predictions(model: nn.Module, data: Dataset, folder: Path) -> None:
    """Write predictions.npz: the class that the model gives each test image, and its label (`Run.right`)."""
    device = next(model.parameters()).device
    feed = batches(data.test_images.to(device), data.test_labels.to(device), None, 500, data.mean, data.std)
    with computing(choose(device), device):
        predicted = torch.cat([predict(model, x).argmax(1) for x, _ in feed])
    arrays = {"predicted": predicted, "label": data.test_labels}
    with writing(folder / "predictions.npz") as temporary:
        np.savez_compressed(temporary, **{name: a.to("cpu", torch.int16).numpy() for name, a in arrays.items()})


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
    inner = [p for name, p in rest if name.startswith(("blocks.", "stages.")) and _is_matrix(name, p)]
    by_muon = {id(p) for p in inner} if config.optimizer == "muon" else set()
    sgd = config.optimizer == "sgd"
    others = [p for _, p in rest if id(p) not in by_muon]
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
    flat = [nn.Parameter(p.detach().flatten(1)) for p in inner]
    group = dict(params=flat, peak_lr=config.lr, weight_decay=config.weight_decay)
    muon = torch.optim.Muon([group], momentum=config.momentum)
    return Optimizers(adamw, muon, twins=list(zip(inner, flat, strict=True)))


def _is_matrix(name: str, p: Tensor) -> bool:
    return p.dim() > 1 and name.endswith(".weight")


class Optimizers:
    """One or two optimizers that step together. ``twins``: kernels, and the same as matrices, which Muon steps."""

    def __init__(self, *optimizers: torch.optim.Optimizer, twins: list[tuple[nn.Parameter, nn.Parameter]] = ()):
        self.all, self.twins = optimizers, twins

    @property
    def param_groups(self) -> list[dict]:
        return [group for optimizer in self.all for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        for optimizer in self.all:
            optimizer.zero_grad(set_to_none=True)
        for p, _ in self.twins:
            p.grad = None

    def step(self) -> None:
        # Channels-last kernels share no memory with their matrices.
        apart = [(p.detach(), flat.detach()) for p, flat in self.twins if p.data_ptr() != flat.data_ptr()]
        for p, flat in self.twins:
            flat.grad = None if p.grad is None else p.grad.flatten(1)
        for p, flat in apart:
            flat.copy_(p.flatten(1))
        for optimizer in self.all:
            optimizer.step()
        for p, flat in apart:
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

    Args:
        model_config: its image size, channels and classes are taken from ``data``.
        run_dir: the run folder. One that holds a run of another configuration or data is refused, never overwritten.
        preset: a name for tables and figures.
        start: the finished run whose weights come first and whose degenerate heads are dropped, where
            ``train_config.start_from`` asks for one.

    Raises:
        DataError: there are no more images than ``validation`` asks for.
        RunError: the folder belongs to another run, or another process is training it.
        TrainingError: the loss is not finite, or another process of a run in several went away.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is written; the same call resumes.
    """
    run = Run(Path(run_dir))
    model_config = for_images(model_config, data.image_size, data.image_channels, len(data.classes))
    data.check_hold_out(train_config.validation)
    if (train_config.start_from is None) != (start is None):
        raise RunError(f"start_from = {train_config.start_from!r}, but the run to start from is {start}.")
    name = identity(model_config, train_config, data.key, start and start.config["hash"])
    if (run.path / "config.json").is_file() and run.config["hash"] != name:
        raise RunError(
            f"{run.path} holds a run of another configuration or data set ({run.config['hash']}, not {name}); "
            "give this run a folder of its own."
        )
    if run.finished:
        return run
    processes = join()
    if train_config.batch_size < processes.size:
        raise RunError(
            f"batch_size = {train_config.batch_size} is less than one image for each of {processes.size} processes."
        )
    device = device or best_device()
    with locked(run.path) if processes.writer else contextlib.nullcontext():
        if run.finished and not processes.several:
            return run  # another process finished it just now
        set_seed(train_config.seed)
        model = build_model(model_config) if start is None else _pruned(start)
        info = dict(name=data.name, form=data.form, key=data.key, classes=list(data.classes))
        info |= dict(train_images=len(data.train_labels), test_images=len(data.test_labels))
        info |= dict(mean=list(data.mean), std=list(data.std))
        config = dict(preset=preset, hash=name, model=to_dict(model.config), train=to_dict(train_config), data=info)
        if device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # kernels of convolutions, as the images are
        trainer = _Trainer(model.to(device), train_config, data.to(device), run.path, progress, processes)
        resumed = trainer.resume()
        here = environment(device) | {"computation": str(trainer.computation)}
        here |= {"processes": processes.size} if processes.several else {}
        before = Run(run.path).config.get("sessions", []) if (run.path / "config.json").is_file() else []
        if processes.writer:
            _write_json(run.path / "config.json", config | dict(environment=here, sessions=[*before, here]))
        trainer.fit(resumed)
    return Run(run.path)


def load_run(run_dir: str | Path, device: torch.device | None = None) -> tuple[nn.Module, Run]:
    """The trained model of a run folder, in evaluation mode, and the run itself."""
    run = Run(Path(run_dir))
    model = build_model(run.model)
    if not run.finished:
        raise RunError(f"{run.path} is not finished: {len(run.metrics)} of {run.train.epochs} epochs. Train it first.")
    safetensors.torch.load_model(model, run.path / "model.safetensors")
    return model.to(device or best_device()).eval(), run


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


def _write_json(path: Path, value: dict) -> None:
    with writing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and SIGHUP set an event instead of breaking a step in the middle; a second one breaks at once.

    A SIGHUP that is ignored, as under nohup, stays ignored.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    hang_up = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, *hang_up)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Trainer:
    """The state of a run under way, all of which a checkpoint holds, and the loop over it."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        data: Dataset,
        folder: Path,
        progress: bool,
        processes: Processes = Processes(),  # noqa: B008 (frozen)
    ):
        self.model, self.config, self.folder, self.progress = model, config, folder, progress
        self.processes = processes
        self.device = next(model.parameters()).device
        self.validation = None
        if config.validation:
            data, *self.validation = data.hold_out(config.validation, config.seed)
        self.data = data
        self.optimizer = build_optimizer(model, config)
        positions = {id(p) for p in position_parameters(model)}
        self.clipped = [p for p in model.parameters() if id(p) not in positions]
        cuda = self.device.type == "cuda"
        if cuda:
            torch.backends.cudnn.benchmark = True
        self.computation = choose(self.device, config.precision)
        compiled = cuda if config.compile is None else config.compile
        # One graph for each batch size that occurs (a last, smaller batch is one more): a graph for all is slower.
        mode = compiled if isinstance(compiled, str) else None
        forward = processes.wrap(model, self.device)
        if compiled:
            torch._dynamo.reset()  # models share one forward: beyond eight of them dynamo would quietly stop compiling
        self.forward = torch.compile(forward, dynamic=False, mode=mode) if compiled else forward
        self.epoch_steps = math.ceil(len(data.train_labels) / config.batch_size)
        self.epoch, self.step = 0, 0  # the next step to take
        self.seconds = 0.0  # of this epoch, in all tries
        self.saved, self.cost = time.monotonic(), 0.0  # when a checkpoint was last written, and how long that took
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # this epoch's loss and right answers
        self.metrics: list[dict] = []
        self.geometry: dict[str, list[np.ndarray]] = {}

    # Checkpoints: the one source of truth. metrics.jsonl and heads.npz are rewritten from it, never read back.

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint" / "state.pt"

    def save(self) -> None:
        """Write everything that resuming needs, whole or not at all."""
        started = time.monotonic()
        sums = self.processes.total(self.sums)
        if not self.processes.writer:
            return
        state = dict(
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            epoch=self.epoch,
            step=self.step,
            seconds=self.seconds,
            sums=sums,
            metrics=json.dumps(self.metrics),
            geometry={name: torch.from_numpy(np.stack(values)) for name, values in self.geometry.items()},
            bfloat16=self.computation.bfloat16,
            onednn=self.computation.onednn,
            rng=torch.get_rng_state(),
            cuda_rng=torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        )
        with writing(self.checkpoint) as temporary:
            torch.save(state, temporary)
        self.record()
        self.saved = time.monotonic()
        self.cost = self.saved - started

    def resume(self) -> bool:
        """Take the state of the last checkpoint, if there is one."""
        if not self.checkpoint.is_file():
            return False
        try:
            state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            raise RunError(f"{self.checkpoint} is damaged ({error}); remove {self.folder} to start again.") from error
        if "onednn" not in state:
            raise RunError(f"{self.checkpoint} is of an older version; remove {self.folder} to start again.")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self.computation = Computation(state["bfloat16"], state["onednn"])  # the same bits as before
        self.sums = state["sums"].to(self.device)
        if not self.processes.writer:
            self.sums.zero_()  # they are summed over the processes again
        self.metrics = json.loads(state["metrics"])
        self.geometry = {name: list(values.numpy()) for name, values in state["geometry"].items()}
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        return True

    def record(self) -> None:
        """Write the parts of the run folder that others read."""
        if not self.processes.writer:
            return
        with writing(self.folder / "metrics.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in self.metrics))
        if self.geometry:
            with writing(self.folder / "heads.npz") as temporary:
                np.savez_compressed(temporary, **{name: np.stack(v) for name, v in self.geometry.items()})

    def measure_heads(self) -> None:
        """Add what every head does now to the history."""
        if not isinstance(self.model, AttentionNet) or not self.processes.writer:
            return
        x = normalize(self.data.test_images[:GEOMETRY_IMAGES], self.data.mean, self.data.std)
        mode = self.model.training
        self.model.eval()  # no dropout
        with torch.no_grad():
            features = self.model.layer_inputs(x) if self.model.config.kind == "learned_content" else None
            measured = heads.geometry(self.model.attention_layers, *self.model.config.grid, features)
        self.model.train(mode)
        for name, value in measured.items():
            self.geometry.setdefault(name, []).append(value)

    # The loop.

    def fit(self, resumed: bool) -> None:
        """Train from wherever the run is to its end."""
        try:
            with computing(self.computation, self.device):
                self._fit(resumed)
        except RuntimeError as error:
            if not self.processes.several or isinstance(error, TrainingError) or not is_loss_of_a_process(error):
                raise
            kept = "there is no checkpoint yet: the same command starts again"
            if self.checkpoint.is_file():
                kept = f"the same command resumes from {self.checkpoint}"
            raise TrainingError(
                f"Process {self.processes.rank} of {self.processes.size} lost another one in epoch {self.epoch + 1} of "
                f"{self.config.epochs}, step {self.step} of {self.epoch_steps}; {kept}. ({str(error).splitlines()[0]})"
            ) from error

    def _fit(self, resumed: bool) -> None:
        if resumed:
            self.record()  # the process may have died between a checkpoint and its record
        else:
            self.measure_heads()
        self.processes.wait()  # nobody writes a checkpoint while another still reads one
        images, config = len(self.data.train_labels), self.config
        done = self.epoch * images + min(self.step * config.batch_size, images)
        quiet = not (self.progress and self.processes.writer) or os.environ.get("ATTNCONV_QUIET") == "1"
        seen = sys.stderr.isatty() or "ipykernel" in sys.modules
        look = dict(disable=quiet, unit=" images", dynamic_ncols=True, mininterval=0.1 if seen else 30)  # a log: rarely
        bar = tqdm(total=config.epochs * images, initial=done, **look)
        with bar, _asked_to_stop() as stop:
            while self.epoch < config.epochs:
                bar.set_description(f"{self.folder.name}: epoch {self.epoch + 1}/{config.epochs}")
                self.run_epoch(bar, stop)
                self.finish_epoch(bar)
        if self.processes.writer:
            save_predictions(self.model, self.data, self.folder)
            with writing(self.folder / "model.safetensors") as temporary:
                safetensors.torch.save_model(self.model, str(temporary))
            shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
        self.processes.wait()  # the folder is complete when any of them returns
        if stop.is_set():
            raise KeyboardInterrupt(f"{self.folder} is finished.")

    def run_epoch(self, bar: tqdm, stop: threading.Event) -> None:
        """The rest of an epoch, from `step`. On a GPU nothing here waits for the device."""
        config, data = self.config, self.data
        if self.step == 0 or not self.processes.writer:  # a checkpoint holds the first process's random state
            set_seed(config.seed * 1_000_003 + self.epoch + 500_009 * self.processes.rank)  # dropout
        plan = epoch_plan(
            len(data.train_labels), seed=config.seed, epoch=self.epoch, augment=config.augment, device=self.device
        )
        self.model.train()
        before, started = self.seconds, time.monotonic()
        plan, own_batch = self.processes.plan(plan, config.batch_size)
        feed = batches(data.train_images, data.train_labels, plan, own_batch, data.mean, data.std, start=self.step)
        for x, y in itertools.islice(feed, self.epoch_steps - self.step):
            value = 0.0
            bar.update(self.images_of_step())
            loss = self.take_step(x, y)
            self.step += 1
            self.seconds = before + time.monotonic() - started
            if self.device.type == "cpu":
                value = loss.item()
                bar.set_postfix(loss=f"{value:.3f}", **self.last_accuracy(), refresh=False)
            due = self.processes.writer and time.monotonic() - self.saved > config.checkpoint_seconds
            stopping, due, broken = self.processes.any(stop.is_set(), due, not math.isfinite(value))
            self.refuse_non_finite(math.nan if broken and math.isfinite(value) else value)
            if stopping or due:
                self.refuse_non_finite(self.processes.total(self.sums)[0].item())
                self.save()
            if stopping:
                raise KeyboardInterrupt(
                    f"stopped in epoch {self.epoch + 1} of {config.epochs}; {self.folder} resumes by the same command"
                )
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the steps were only queued
        self.seconds = before + time.monotonic() - started

    def images_of_step(self) -> int:
        """How many images the batch of the next step has, over all processes."""
        return min(self.config.batch_size, len(self.data.train_labels) - self.step * self.config.batch_size)

    def take_step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of the optimizer on images x and labels y; the loss, on the device."""
        steps = self.config.epochs * self.epoch_steps
        factor = lr_factor(self.epoch * self.epoch_steps + self.step, steps, self.config.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["peak_lr"]
        counted = len(y)
        if not counted:  # a small last batch can leave this process none, but all must go through the model
            x, y = x.new_zeros(1, *x.shape[1:]), y.new_zeros(1)
        with self.computation.autocast(self.device):
            logits = self.forward(x)
        reduction, smoothing = "sum" if self.processes.several else "mean", self.config.label_smoothing
        loss = F.cross_entropy(logits.float(), y, reduction=reduction, label_smoothing=smoothing)
        if self.processes.several:
            loss = loss * (counted > 0)
            total = loss.detach()
            loss = loss * (self.processes.size / self.images_of_step())  # the average over processes is the mean
        self.optimizer.zero_grad()
        loss.backward()
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.clipped, self.config.clip)
        self.optimizer.step()
        with torch.no_grad():
            total = total if self.processes.several else loss.detach() * len(y)
            self.sums += torch.stack([total, (logits.argmax(1) == y)[:counted].sum()])
        return loss.detach()

    def finish_epoch(self, bar: tqdm) -> None:
        """Evaluate, measure the heads, write the record and a checkpoint."""
        loss, right = self.processes.total(self.sums).tolist()
        self.refuse_non_finite(loss)
        images = len(self.data.train_labels)
        # The last epoch's accuracy is the reported one: in float32, as `evaluate` finds it again anywhere.
        last = self.epoch + 1 == self.config.epochs
        with contextlib.nullcontext() if last else self.computation.autocast(self.device):
            self.processes.same_buffers(self.model)
            test = self.evaluate(self.data.test_images, self.data.test_labels)
        line = dict(epoch=self.epoch + 1, train_loss=loss / images, train_accuracy=right / images)
        line |= dict(test_loss=test.loss, test_accuracy=test.accuracy)
        if self.validation:
            held_out = self.evaluate(*self.validation)
            line |= dict(validation_loss=held_out.loss, validation_accuracy=held_out.accuracy)
        line |= dict(lr=self.optimizer.param_groups[0]["lr"])
        line |= dict(seconds=round(self.seconds, 3), images_per_second=round(images / max(self.seconds, 1e-9), 1))
        self.metrics.append(line)
        self.measure_heads()
        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0
        self.sums.zero_()
        bar.set_postfix(loss=f"{line['train_loss']:.3f}", **self.last_accuracy())
        due = last or time.monotonic() - self.saved >= 20 * self.cost  # epochs can be shorter than what this takes
        if any(self.processes.any(due and self.processes.writer)):
            self.save()

    def evaluate(self, images: Tensor, labels: Tensor) -> Evaluation:
        """As `evaluate`, each process on its share of the images."""
        if not self.processes.several:
            return evaluate(self.model, self.data, images, labels)
        own = self.processes.share(labels)
        result = evaluate(self.model, self.data, self.processes.share(images), own) if len(own) else Evaluation(0, 0)
        sums = torch.tensor([result.loss, result.accuracy], dtype=torch.float64) * len(own)
        return Evaluation(*(self.processes.total(sums) / len(labels)).tolist())

    def last_accuracy(self) -> dict[str, str]:
        return {"test accuracy": f"{100 * self.metrics[-1]['test_accuracy']:.1f}%"} if self.metrics else {}

    def refuse_non_finite(self, loss: float) -> None:
        """Stop a run that diverged, before its state reaches a checkpoint."""
        if math.isfinite(loss):
            return
        lr = self.optimizer.param_groups[0]["lr"]
        kept = "no checkpoint was written yet"
        if self.checkpoint.is_file():
            kept = f"the last good checkpoint is {self.checkpoint}"
        raise TrainingError(
            f"The loss is {loss} at epoch {self.epoch + 1}, step {self.step} of {self.epoch_steps} "
            f"(learning rate {lr:.3g}); {kept}. Lower lr or position_lr, or set clip."
        )
