"""One training loop. It writes a run folder, survives being stopped at any moment, and never repeats finished work.

Without its bookkeeping, the loop is this:

    for epoch in range(epochs):
        for x, y in batches(images, labels, epoch_plan(len(images), seed=seed, epoch=epoch)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

All randomness is a function of (seed, epoch): the order of the images, their crops and flips, and dropout. A run that
was stopped and resumed therefore ends with the same bits, on a CPU, as one that was never stopped.

In this order: the paper's recipe, the step and the loop (`Trainer`), its checkpoints, and `train`. A trained model is
judged by `attnconv.models.evaluate`, and loaded again by `attnconv.checkpoints.load_run`. Under torchrun the same loop
runs in every process (`attnconv.machine.Team`); alone, as is the rule, each call of the team gives back what it got.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from attnconv import heads
from attnconv.checkpoints import load_run, packed_weights, read_state, write_state
from attnconv.config import ModelConfig, TrainConfig, for_images, replace, to_dict
from attnconv.data import Dataset, batches, epoch_plan, normalize
from attnconv.machine import Team, best_device, compiled, environment, signals_to_stop
from attnconv.models import AttentionNet, build_model, encoding_parameters, evaluate, position_parameters
from attnconv.precision import Computation, choose, computing
from attnconv.runs import Run, RunError, identity, locked, reading, write_record, writing

GEOMETRY_IMAGES = 32
"""Test images over which the attention of content heads is averaged when their geometry is recorded."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step, why, and what to do."""


# The recipe ------------------------------------------------------------------------------------------------------


def lr_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a cosine to zero (paper's recipe, section 4)."""
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _where_heads_look(model: nn.Module, config: TrainConfig) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Centres and spreads, and learned encodings with a rate of their own: neither is decayed or clipped."""
    return position_parameters(model), encoding_parameters(model) if config.encoding_lr else []


def build_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """SGD (the paper's), AdamW, or AdamW and Muon. Each group of parameters keeps its ``peak_lr``.

    Centres and spreads have no weight decay, and a learning rate of their own where ``position_lr`` gives one. The same
    is true of learned encodings where ``encoding_lr`` gives one. With AdamW and Muon, biases and norms have no weight
    decay either. Muon takes the weights between the input and the classifier.
    """
    sgd, muon = config.optimizer == "sgd", config.optimizer == "muon"
    positions, encodings = _where_heads_look(model, config)
    inner = [
        p
        for name, p in model.named_parameters()
        if muon and name.startswith(("blocks.", "stages.")) and name.endswith(".weight") and p.dim() > 1
    ]
    apart = {id(p) for p in [*positions, *encodings, *inner]}
    rest = [p for p in model.parameters() if id(p) not in apart]
    lr = config.adamw_lr if muon else config.lr
    groups = [
        dict(params=[p for p in rest if p.dim() > 1 or sgd], peak_lr=lr, weight_decay=config.weight_decay),
        dict(params=[p for p in rest if p.dim() <= 1 and not sgd], peak_lr=lr, weight_decay=0.0),
        dict(params=positions, peak_lr=config.position_lr or lr, weight_decay=0.0),
        dict(params=encodings, peak_lr=config.encoding_lr, weight_decay=0.0),
    ]
    groups = [group for group in groups if group["params"]]
    if sgd:
        return [torch.optim.SGD(groups, lr=lr, momentum=config.momentum, fused=True)]
    adamw = torch.optim.AdamW(groups, lr=lr, betas=(config.momentum, config.beta2), fused=True)
    return [adamw, Muon(inner, config)] if inner else [adamw]


class Muon(torch.optim.Muon):
    """PyTorch's Muon takes matrices only. This one takes any weight, and steps (D, C, k, k) as a matrix (D, C k k)."""

    def __init__(self, weights: list[nn.Parameter], config: TrainConfig):
        self.weights = weights
        self.matrices = [nn.Parameter(weight.detach().flatten(1).clone()) for weight in weights]
        group = dict(params=self.matrices, peak_lr=config.lr, weight_decay=config.weight_decay)
        super().__init__([group], momentum=config.momentum)

    @torch.no_grad()
    def step(self) -> None:
        for weight, matrix in zip(self.weights, self.matrices, strict=True):
            matrix.copy_(weight.flatten(1))
            matrix.grad = None if weight.grad is None else weight.grad.flatten(1)
        super().step()
        for weight, matrix in zip(self.weights, self.matrices, strict=True):
            weight.copy_(matrix.view_as(weight))
            matrix.grad = None


# The step and the loop -------------------------------------------------------------------------------------------


class Trainer:
    """The state of a run under way, and the loop over it."""

    def __init__(self, model: nn.Module, config: TrainConfig, data: Dataset, folder: Path, progress: bool, team: Team):
        self.model, self.config, self.folder, self.progress, self.team = model, config, folder, progress, team
        self.device = next(model.parameters()).device
        self.computation = choose(self.device, config.precision)
        self.forward = compiled(team.wrap(model, self.device), self.device, config.compile)
        self.optimizers = build_optimizers(model, config)
        apart = {id(p) for group in _where_heads_look(model, config) for p in group}
        self.clipped = [p for p in model.parameters() if id(p) not in apart]
        self.data, self.validation = data, None
        if config.validation:
            self.data, *self.validation = data.hold_out(config.validation, config.seed)
        self.images = len(self.data.train_labels)
        self.epoch_steps = math.ceil(self.images / config.batch_size)

        # What changes while it trains: a checkpoint holds all of it.
        self.epoch, self.step = 0, 0  # the next step to take
        self.seconds = 0.0  # that this epoch's steps took, in all sessions together
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)  # this epoch's loss and right answers
        self.metrics: list[dict] = []
        self.geometry: dict[str, list[np.ndarray]] = {}

        self.about: dict = {}  # config.json
        self.saved = time.monotonic()  # when a checkpoint was last written

    @property
    def groups(self) -> list[dict]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def take_step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step on images x (B, C, H, W) and labels y (B,). The mean loss, on the device."""
        # The learning rate is a function of the step alone, so that a resumed run needs no scheduler's state.
        steps = self.config.epochs * self.epoch_steps
        factor = lr_factor(self.epoch * self.epoch_steps + self.step, steps, self.config.warmup)
        for group in self.groups:
            group["lr"] = factor * group["peak_lr"]

        # Forward: matrix products in bfloat16 where that is chosen, the loss always in float32.
        images = len(y)
        x, y, weight = self.team.share(x, y)
        with self.computation.autocast(self.device):
            logits = self.forward(x)
        loss = weight * F.cross_entropy(logits.float(), y, label_smoothing=self.config.label_smoothing)

        # Backward and update.
        self.model.zero_grad()
        loss.backward()
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.clipped, self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()

        # The epoch's sums stay on the device: on a GPU, reading them here would make every step wait.
        loss = loss.detach()
        right = (logits.argmax(1) == y).sum() * (weight > 0)
        self.sums += self.team.mean(torch.stack([loss * images, right * self.team.size]))
        return loss

    def run_epoch(self, bar: tqdm, stop: threading.Event) -> None:
        """The rest of an epoch, from `step` on."""
        config, data = self.config, self.data
        # Order, crops and flips come from the plan. Dropout's masks begin anew with every epoch; within one,
        # a checkpoint has the generator's state. Each process draws its own.
        if self.step == 0:
            torch.manual_seed(config.seed * 1_000_003 + self.epoch + 500_009 * self.team.rank)
        plan = epoch_plan(self.images, seed=config.seed, epoch=self.epoch, augment=config.augment, device=self.device)
        feed = batches(
            data.train_images, data.train_labels, plan, config.batch_size, data.mean, data.std, start=self.step
        )

        self.model.train()
        before, started = self.seconds, time.monotonic()
        for x, y in feed:
            loss = self.take_step(x, y)
            self.step += 1
            self.seconds = before + time.monotonic() - started
            bar.update(len(y))
            if self.device.type == "cpu":
                self.refuse_non_finite()
                bar.set_postfix(loss=f"{loss.item():.3f}", **self.last_accuracy(), refresh=False)

            # Where one process is asked to stop, all stop at this step.
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

    def finish_epoch(self, bar: tqdm) -> None:
        """Evaluate, measure the heads, write the record and a checkpoint."""
        self.refuse_non_finite()
        loss, accuracy = (self.sums / self.images).tolist()

        # The last epoch's accuracy is the reported one: in float32, as `evaluate` finds it again anywhere.
        last = self.epoch + 1 == self.config.epochs
        with contextlib.nullcontext() if last else self.computation.autocast(self.device):
            test = evaluate(self.model, self.data)
        line = dict(epoch=self.epoch + 1, train_loss=loss, train_accuracy=accuracy)
        line |= dict(test_loss=test.loss, test_accuracy=test.accuracy)
        if self.validation:
            held_out = evaluate(self.model, self.data, *self.validation)
            line |= dict(validation_loss=held_out.loss, validation_accuracy=held_out.accuracy)
        speed = self.images / max(self.seconds, 1e-9)
        line |= dict(lr=self.groups[0]["lr"], seconds=round(self.seconds, 3), images_per_second=round(speed, 1))
        self.metrics.append(line)
        self.measure_heads()

        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0
        self.sums.zero_()
        bar.set_postfix(loss=f"{loss:.3f}", **self.last_accuracy())
        self.save()

    def fit(self) -> None:
        """Train from wherever the run is to its end."""
        try:
            with computing(self.computation, self.device), self.bar() as bar, signals_to_stop() as stop:
                if not self.geometry:
                    self.measure_heads()  # before training
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

    def finish(self) -> None:
        """Write the answers to the test images, then the weights, which say that the run is finished."""
        answers = {"predicted": evaluate(self.model, self.data).predicted, "label": self.data.test_labels}
        if self.team.leads:
            with writing(self.folder / "predictions.npz") as temporary:
                answers = {name: values.to("cpu", torch.int16).numpy() for name, values in answers.items()}
                np.savez_compressed(temporary, **answers)
            weights = packed_weights(self.model)
            self.about |= {"weights": hashlib.sha256(weights).hexdigest()}
            self.record()
            with writing(self.folder / "model.safetensors") as temporary:
                temporary.write_bytes(weights)
            shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
        self.team.any(False)  # the folder is complete when any process returns

    # Checkpoints: a run resumes from them alone. What others read is rewritten from them, never read back.

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint" / "state.pt"

    def save(self) -> None:
        """Write everything that resuming needs, whole or not at all; never the state of a run that diverged."""
        self.refuse_non_finite()
        if not self.team.leads:
            return
        state = dict(
            model=self.model.state_dict(),
            optimizer=[optimizer.state_dict() for optimizer in self.optimizers],
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
        write_state(self.checkpoint, state)
        self.record()
        self.saved = time.monotonic()

    def resume(self) -> None:
        """Take the state of the last checkpoint, if there is one."""
        if self.checkpoint.is_file():
            with reading(self.checkpoint):
                state = read_state(self.checkpoint)
                self.model.load_state_dict(state["model"])
                for optimizer, own in zip(self.optimizers, state["optimizer"], strict=True):
                    optimizer.load_state_dict(own)
                self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
                self.sums = state["sums"].to(self.device)
                self.metrics = json.loads(state["metrics"])
                self.geometry = {name: list(values.numpy()) for name, values in state["geometry"].items()}
                if self.epoch != len(self.metrics) or not (
                    0 <= self.step <= self.epoch_steps and self.epoch <= self.config.epochs
                ):
                    raise ValueError(f"epoch {self.epoch}, step {self.step} is no place in this run")
                # This machine may choose another arithmetic, which would give other bits.
                self.computation = Computation(state["bfloat16"], state["onednn"])
                torch.set_rng_state(state["rng"])
                if state["cuda_rng"] is not None and self.device.type == "cuda":
                    torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        self.team.any(False)  # nobody goes on, and may write a checkpoint, while another still reads this one

    def record(self) -> None:
        """Write the parts of the run folder that others read."""
        if self.team.leads:
            write_record(self.folder, self.about, self.metrics, self.geometry)

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
        loss, lr = self.sums[0].item(), self.groups[0]["lr"]
        if not math.isfinite(loss):
            raise TrainingError(
                f"The loss is {loss} at epoch {self.epoch + 1}, step {self.step} of {self.epoch_steps} (learning rate "
                f"{lr:.3g}); {self.kept()}. Lower lr, position_lr or encoding_lr, or set clip, in a run of its own."
            )


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
    # Refuse what cannot work before anything is written.
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

        # The seed decides the first weights; a checkpoint replaces them.
        torch.manual_seed(train_config.seed)
        model = build_model(model_config) if start is None else _pruned(start)
        if device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # kernels of convolutions, as the images are
        trainer = Trainer(model.to(device), train_config, data.to(device), folder, progress, team)
        trainer.resume()

        # config.json says how the run is made. Each start and each resumption adds to its sessions.
        here = environment(device) | {"computation": str(trainer.computation), "processes": team.size}
        before = Run(folder).config.get("sessions", []) if (folder / "config.json").is_file() else []
        trainer.about = dict(preset=preset, hash=name, model=to_dict(model.config), train=to_dict(train_config))
        trainer.about |= dict(data=data.about(), environment=here, sessions=[*before, here])
        trainer.fit()
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


def _pruned(start: Run) -> nn.Module:
    """The trained model of a run without its degenerate heads."""
    model, _ = load_run(start.path, torch.device("cpu"))
    for block in model.blocks:
        block.attention = heads.prune(block.attention)
    model.config = replace(model.config, {"heads": tuple(layer.heads for layer in model.attention_layers)})
    return model
