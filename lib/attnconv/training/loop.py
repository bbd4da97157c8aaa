"""One training loop. It writes a run folder, survives being stopped at any moment, and never
repeats finished work.

Without its bookkeeping, the loop is this:

    for epoch in range(epochs):
        for x, y in batches(images, labels, epoch_plan(len(images), seed=seed, epoch=epoch)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

All randomness is a function of (seed, epoch): the order of the images, their crops and flips, and
dropout. So a run that was stopped and resumed ends with the same bits, on CPUs of one kind and with
as many threads, as one that was never stopped. Under torchrun the same loop runs in every process
(`machine.Team`)."""

import contextlib
import hashlib
import json
import math
import shutil
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm.auto import tqdm

from attnconv import heads
from attnconv.config import ModelConfig, TrainConfig, for_images
from attnconv.equivalence.swapping import READ_ON, swap, unswap
from attnconv.models import AttentionNet, Convolution, Network, build_model, predict
from attnconv.training import machine
from attnconv.training.checkpoints import load_run, read_state, write_state
from attnconv.training.data import Dataset, batches, epoch_plan, normalize
from attnconv.training.machine import Computation, choose
from attnconv.training.optimizers import Muon, build_optimizers, own_rates
from attnconv.training.runs import LEFTOVERS, Run, RunError, held, identity, write, write_arrays


class Evaluation(NamedTuple):
    """Mean cross-entropy (nats), share of right answers in [0, 1], and the class given to each
    image: int64 (N,).
    """

    loss: float
    accuracy: float
    predicted: Tensor


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, *others: Tensor) -> Evaluation:
    """Evaluation mode, no augmentation, every image once: of the test split, or of ``others``,
    (images, labels).
    """
    device = next(model.parameters()).device
    images, labels = (part.to(device) for part in others or (data.test_images, data.test_labels))
    logits = torch.cat(
        [predict(model, x) for x, _ in batches(images, labels, None, 500, data.mean, data.std)]
    )
    loss, predicted = F.cross_entropy(logits.double(), labels), logits.argmax(1)
    return Evaluation(loss.item(), (predicted == labels).double().mean().item(), predicted.cpu())


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step, why, and what to do."""


def lr_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a cosine to zero (paper's
    recipe, section 4).
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


class Trainer:
    """The state of a run under way, and the loop over it."""

    def __init__(
        self, model: nn.Module, config: TrainConfig, data: Dataset, folder: Path, team: machine.Team
    ):
        self.model, self.config, self.folder, self.team = model, config, folder, team
        self.checkpoint = folder / "checkpoint" / "state.pt"
        self.remedy = f"The same command resumes from the last good checkpoint, {self.checkpoint}, where there is one."
        self.device = next(model.parameters()).device
        self.optimizers = build_optimizers(model, config)
        apart = own_rates(model, config)
        self.clipped = [p for p in model.parameters() if p not in apart]
        self.data, self.validation = data, list[Tensor]()  # the images and labels that are held out
        if config.validation:
            self.data, *self.validation = data.hold_out(config.validation, config.seed)
        if config.images:
            self.data = self.data.few(config.images, config.seed)
        self.images = len(self.data.train_labels)  # of an epoch
        self.epoch_steps = math.ceil(self.images / config.batch_size)
        computation = choose(self.device, config.precision)
        compiles = machine.to_be_compiled(
            self.device, computation, config.compile, config.epochs * self.images
        )
        # torch 2.15's compiler fails on the gradient of this layer's padding.
        compiles = compiles and not any(isinstance(layer, Convolution) for layer in model.modules())
        self.computation = replace(computation, compiled=compiles)

        # What changes while it trains: a checkpoint holds all of it.
        self.epoch, self.step = 0, 0  # the next step to take
        self.seconds = 0.0  # that this epoch's steps took, in all sessions together
        self.sums = torch.zeros(
            2, dtype=torch.float64, device=self.device
        )  # this epoch's loss and right answers
        self.metrics: list[dict] = []
        self.geometry: dict[str, list[np.ndarray]] = {}

        self.forward: Callable[[Tensor], Tensor] = model
        self.about: dict = {}  # config.json
        self.first_answers: Tensor | None = (
            None  # to the test images, where the run goes on from another one
        )
        self.saved = time.monotonic()  # when a checkpoint was last written

    @property
    def lr(self) -> float:
        """What the recipe's ``lr`` is at the last step: with Muon the rate of the matrices."""
        return self.optimizers[-1].param_groups[0]["lr"]

    def take_step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step on images x (B, C, H, W) and labels y (B,). The mean loss, on the device."""
        # The learning rate is a function of the step alone, so that a resumed run needs no
        # scheduler's state.
        steps = self.config.epochs * self.epoch_steps
        factor = lr_factor(self.epoch * self.epoch_steps + self.step, steps, self.config.warmup)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * group["peak_lr"]

        # Forward: matrix products in bfloat16 where that is chosen, the loss always in float32.
        images = len(y)
        x, y, weight = self.team.share(x, y)
        with self.computation.autocast(self.device):
            logits = self.forward(x)
        loss = weight * F.cross_entropy(
            logits.float(), y, label_smoothing=self.config.label_smoothing
        )

        # Backward and update.
        self.model.zero_grad()
        loss.backward()
        self.team.average_gradients(self.model)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.clipped, self.config.clip)
        for optimizer in self.optimizers:
            optimizer.step()

        # The epoch's sums stay on the device: on a GPU, reading them here would make every step
        # wait.
        loss = loss.detach()
        right = (logits.argmax(1) == y).sum() * (weight > 0)
        self.sums += self.team.mean(torch.stack([loss * images, right * self.team.size]))
        return loss

    def run_epoch(self, bar: tqdm, stop: threading.Event) -> None:
        """The rest of an epoch, from `step` on."""
        config, data = self.config, self.data
        # Dropout's masks begin anew with every epoch, in each process with others; a checkpoint
        # within an epoch has the generator's state. The plan says order, crops and flips.
        if self.step == 0:
            torch.manual_seed(config.seed * 1_000_003 + self.epoch + 500_009 * self.team.rank)
        plan = epoch_plan(
            self.images,
            seed=config.seed,
            epoch=self.epoch,
            augment=config.augment,
            device=self.device,
        )
        images, labels = data.train_images, data.train_labels
        feed = batches(
            images, labels, plan, config.batch_size, data.mean, data.std, start=self.step
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
                bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)

            # Where one process is asked to stop, or is to save, all do so at this step.
            stopped = self.team.any(stop.is_set())
            if self.team.any(time.monotonic() - self.saved > config.checkpoint_seconds) or stopped:
                self.save()
            if stopped:
                place = f"epoch {self.epoch + 1} of {config.epochs}"
                raise KeyboardInterrupt(
                    f"stopped in {place}; the same command resumes {self.folder}"
                )
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the steps were only queued
        self.seconds = before + time.monotonic() - started

    def finish_epoch(self) -> None:
        """Evaluate, measure the heads, write the record and a checkpoint."""
        self.refuse_non_finite()
        loss, accuracy = (self.sums / self.images).tolist()

        # The last epoch's accuracy is the reported one: in float32, as `evaluate` finds it again
        # anywhere.
        last = self.epoch + 1 == self.config.epochs
        with contextlib.nullcontext() if last else self.computation.autocast(self.device):
            test = evaluate(self.model, self.data)
        self.refuse_non_finite(
            test.loss
        )  # the epoch's last step, too, may be the one that diverged
        line = dict(epoch=self.epoch + 1, train_loss=loss, train_accuracy=accuracy)
        line |= dict(test_loss=test.loss, test_accuracy=test.accuracy)
        if self.validation:
            held_out = evaluate(self.model, self.data, *self.validation)
            line |= dict(validation_loss=held_out.loss, validation_accuracy=held_out.accuracy)
        speed = self.images / max(self.seconds, 1e-9)
        line |= dict(lr=self.lr, seconds=round(self.seconds, 3), images_per_second=round(speed, 1))
        self.metrics.append(line)
        self.measure_heads()

        self.epoch, self.step, self.seconds = self.epoch + 1, 0, 0.0
        self.sums.zero_()
        self.save()

    def fit(self) -> None:
        """Train from wherever the run is to its end."""
        cuda = self.device.type == "cuda"
        self.team.align(self.model)
        if self.computation.compiled:
            # models share one forward: beyond eight of them dynamo would quietly stop compiling
            torch._dynamo.reset()
            # A graph for all batch sizes would be slower. On a CPU the compiler's own random
            # numbers, for dropout, take twice as long as torch's.
            self.forward = torch.compile(
                self.model, dynamic=False, options={"fallback_random": not cuda}
            )
        benchmark = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = benchmark or cuda
        for optimizer in self.optimizers:
            if isinstance(optimizer, Muon):
                optimizer.bfloat16 = self.computation.bfloat16
        try:
            done = self.epoch * self.images + self.step * self.config.batch_size
            bar = machine.progress_bar(
                self.config.epochs * self.images, done, drawn=self.team.leads
            )
            with bar, machine.signals_to_stop() as stop:
                if not self.geometry:
                    self.measure_heads()  # before training
                self.record()  # the process may have died between a checkpoint and its record
                while self.epoch < self.config.epochs:
                    tested = (
                        f" (test accuracy {self.metrics[-1]['test_accuracy']:.1%})"
                        if self.metrics
                        else ""
                    )
                    bar.set_description(
                        f"{self.folder.name}: epoch {self.epoch + 1}/{self.config.epochs}{tested}"
                    )
                    self.run_epoch(bar, stop)
                    self.finish_epoch()
                self.finish()
        except OSError as error:
            raise TrainingError(
                f"The run cannot be written: {error}. Make room there. {self.remedy}"
            ) from error
        finally:
            torch.backends.cudnn.benchmark = benchmark
        if stop.is_set():
            raise KeyboardInterrupt(f"{self.folder} is finished.")

    def finish(self) -> None:
        """Write the answers to the test images, then the weights, which say that the run is
        finished.
        """
        answers = {
            "predicted": evaluate(self.model, self.data).predicted,
            "label": self.data.test_labels,
        }
        answers |= {"start": self.first_answers} if self.first_answers is not None else {}
        if self.team.leads:
            arrays = {
                name: values.to("cpu", torch.int16).numpy() for name, values in answers.items()
            }
            write_arrays(self.folder / "predictions.npz", arrays)
            weights = safetensors.torch.save(
                {n: value.contiguous() for n, value in self.model.state_dict().items()}
            )
            self.about |= {"weights": hashlib.sha256(weights).hexdigest()}
            self.record()
            write(self.folder / "model.safetensors", weights)
            shutil.rmtree(self.checkpoint.parent, ignore_errors=True)
        self.team.any(False)  # the folder is complete when any process returns

    # A run resumes from checkpoints alone. What others read is written anew from them, never read
    # back.

    def save(self) -> None:
        """Write everything that resuming needs, whole or not at all; never the state of a run
        that diverged.
        """
        self.refuse_non_finite()
        # Dropout draws from these generators, in each process other masks: (processes, bytes).
        generators, cuda = self.team.stacked(torch.get_rng_state()), self.device.type == "cuda"
        cuda_generators = self.team.stacked(torch.cuda.get_rng_state(self.device)) if cuda else None
        if self.team.leads:
            state = dict(
                model=self.model.state_dict(),
                optimizer=[optimizer.state_dict() for optimizer in self.optimizers],
                place=(self.epoch, self.step, self.seconds),
                sums=self.sums,
                metrics=json.dumps(self.metrics),
                geometry={
                    name: torch.from_numpy(np.stack(values))
                    for name, values in self.geometry.items()
                },
                computation=asdict(self.computation),
                rng=generators,
                cuda_rng=cuda_generators,
                threads=torch.get_num_threads(),
            )
            write_state(self.checkpoint, state)
            self.record()
        self.saved = time.monotonic()

    def resume(self) -> None:
        """Take the state of the last checkpoint, if there is one."""
        if self.checkpoint.is_file():
            state, team = read_state(self.checkpoint), self.team
            if (size := len(state["rng"])) != team.size:
                raise RunError(
                    f"{self.checkpoint} is of {size} process(es), not {team.size}: resume it with {size}."
                )
            self.model.load_state_dict(state["model"])
            for optimizer, own in zip(self.optimizers, state["optimizer"], strict=True):
                optimizer.load_state_dict(own)
            self.epoch, self.step, self.seconds = state["place"]
            self.sums, self.metrics = state["sums"].to(self.device), json.loads(state["metrics"])
            self.geometry = {
                name: list(values.numpy()) for name, values in state["geometry"].items()
            }
            chosen, self.computation = (
                self.computation,
                Computation(**state["computation"]),
            )  # bits stay the same
            if self.computation.compiled:  # it says so where it cannot be
                self.computation = replace(
                    self.computation, compiled=machine.compiler_works(self.device)
                )
            if self.config.precision == "auto" and self.computation.bfloat16 > chosen.bfloat16:
                slow = "goes on in float32: it was begun in bfloat16, for which this machine has no instructions."
                warnings.warn(f"{self.folder.name} {slow}", stacklevel=4)
                self.computation = replace(chosen, compiled=self.computation.compiled)
            if (threads := state.get("threads", torch.get_num_threads())) != (
                here := torch.get_num_threads()
            ):
                other = (
                    f"goes on with {here} thread(s), was begun with {threads}: it rounds otherwise"
                )
                warnings.warn(
                    f"{self.folder.name} {other}. OMP_NUM_THREADS={threads} keeps it.", stacklevel=4
                )
            torch.set_rng_state(
                state["rng"][team.rank].clone()
            )  # torch crashes on part of a tensor
            if state["cuda_rng"] is not None and self.device.type == "cuda":
                torch.cuda.set_rng_state(state["cuda_rng"][team.rank].clone(), self.device)
        self.team.any(
            False
        )  # nobody goes on, and may write a checkpoint, while another still reads this one

    def record(self) -> None:
        """Write what others read of a run under way: config.json, metrics.jsonl and, with heads,
        heads.npz.
        """
        if self.team.leads:
            write(self.folder / "config.json", json.dumps(self.about, indent=1) + "\n")
            write(
                self.folder / "metrics.jsonl",
                "".join(json.dumps(line) + "\n" for line in self.metrics),
            )
            if self.geometry:
                write_arrays(self.folder / "heads.npz", self.geometry)

    def measure_heads(self) -> None:
        """Add what every head does now to the history."""
        for name, value in heads.network_geometry(self.model, self.data).items():
            self.geometry.setdefault(name, []).append(value)

    def refuse_non_finite(self, loss: float | None = None) -> None:
        """Stop a run that diverged, before its state reaches a checkpoint. Without a ``loss``:
        by the epoch's sum.
        """
        loss, lr = self.sums[0].item() if loss is None else loss, self.lr
        if not math.isfinite(loss):
            where = f"epoch {self.epoch + 1}, step {self.step} of {self.epoch_steps} (learning rate {lr:.3g})"
            other = "Lower lr, position_lr or encoding_lr, or set clip, in a run of its own."
            raise TrainingError(f"The loss is {loss} at {where}. {other} {self.remedy}")


def _started(start: Run, model_config: ModelConfig, recipe: TrainConfig, data: Dataset) -> Network:
    """The network of a finished run, as another run goes on from it: with its first layers swapped
    for convolutions where ``kernels`` asks for them; with attention, as sharp as ``spread_start``,
    for its convolutions where it does not; or without its degenerate heads, if ``prune``."""
    network, _ = load_run(start.path, torch.device("cpu"))
    if not isinstance(network, AttentionNet):
        return network
    if sizes := {layer: size for layer, size in enumerate(model_config.kernels, 1) if size}:
        return swap(
            network, sizes, images=normalize(data.train_images[:READ_ON].cpu(), data.mean, data.std)
        )
    if any(network.config.kernels):
        return unswap(network, model_config.spread_start)
    return heads.pruned(network) if recipe.prune else network


def train(
    model_config: ModelConfig,
    train_config: TrainConfig,
    data: Dataset,
    run_dir: str | Path,
    *,
    preset: str = "custom",
    start: Run | None = None,
) -> Run:
    """Train a model and leave a run folder; resume it if it was stopped, return it as it is if it
    is finished.

    Where another process trains the same run, this one waits for it.

    Args: model_config: its image size, channels and classes are taken from ``data``. run_dir: one
        that holds a run of another configuration or data is refused, never overwritten. preset: a
        name for tables and figures. start: the finished run whose weights come first, where
        ``start_from`` asks for one. The network is then that run's: of ``model_config`` only
        ``kernels`` and ``spread_start`` count (see `_started`).

    Raises: DataError: there are no more images than ``validation`` asks for. RunError: the folder
        belongs to another run, or is damaged. TrainingError: the loss is not finite, or the disk is
        full. KeyboardInterrupt: after Ctrl-C, SIGTERM or SIGHUP, once a checkpoint is written; the
        same call resumes."""
    folder = Path(run_dir)
    model_config = for_images(model_config, data.image_size, data.image_channels, len(data.classes))
    if (train_config.start_from is None) != (start is None):
        raise RunError(
            f"start_from = {train_config.start_from!r}, but the run to start from is {start}."
        )
    name = identity(model_config, train_config, data.key, start.config["hash"] if start else None)
    team, device = machine.Team(), machine.best_device()
    if team.any(Run(folder).finished_as(name)):
        return Run(folder)
    with held(folder, wait=True) if team.leads else contextlib.nullcontext():
        if team.any(Run(folder).finished_as(name)):
            return Run(folder)  # another process finished it while this one waited
        if (folder / "model.safetensors").exists():
            warnings.warn(
                f"{folder / 'model.safetensors'} is damaged: the run is trained again.",
                stacklevel=2,
            )
        measured = folder / "attention.npz", folder / "swaps.npz"  # of weights that are lost
        for leftover in [*folder.rglob(LEFTOVERS), *measured] if team.leads else ():
            leftover.unlink(missing_ok=True)

        # The seed decides the first weights; a checkpoint replaces them.
        torch.manual_seed(train_config.seed)
        model = (
            _started(start, model_config, train_config, data)
            if start
            else build_model(model_config)
        )
        if device.type == "cuda":
            model.to(
                memory_format=torch.channels_last
            )  # kernels of convolutions, as the images are
        trainer = Trainer(model.to(device), train_config, data.to(device), folder, team)
        trainer.first_answers = evaluate(model, trainer.data).predicted if start else None
        trainer.resume()

        # config.json says how the run is made. Each start and each resumption adds to its sessions.
        here = machine.environment(device) | {
            "computation": str(trainer.computation),
            "processes": team.size,
        }
        before = (
            Run(folder).config.get("sessions", []) if (folder / "config.json").is_file() else []
        )
        model_values, train_values = (
            config.model_dump(mode="json") for config in (model.config, train_config)
        )
        trainer.about = dict(
            preset=preset, hash=name, model=model_values, train=train_values, data=data.about()
        )
        trainer.about |= dict(environment=here, sessions=[*before, here])
        if start:
            trainer.about |= dict(start=start.config["hash"], kept=getattr(model, "kept", None))
        trainer.fit()
    return Run(folder)
