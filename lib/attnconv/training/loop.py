"""One training loop: a run folder in, a run folder out.

Without its bookkeeping, the loop is this:

    for epoch in range(epochs):
        for x, y in batches(images, labels, epoch_plan(len(images), seed=seed, epoch=epoch)):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

All randomness is a function of (seed, epoch): the order of the images, their crops and flips, and
dropout. So what a run needs to go on is its network, its optimizers and the record of its epochs;
no generator's state. A run that was stopped goes on from its last finished epoch, and ends with the
same bits as one that was not, on the same machine. Under torchrun each process takes an equal
share of every batch; a few images are left over where they cannot be shared out.
"""

import copy
import io
import json
import math
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from filelock import FileLock
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm.auto import tqdm

from attnconv.config import ModelConfig, TrainConfig, for_images, identity
from attnconv.heads import GEOMETRY_IMAGES, network_geometry
from attnconv.models import Network, build_model, predict
from attnconv.training.data import Dataset, batches, epoch_plan
from attnconv.training.optimizers import build_optimizers, own_rate
from attnconv.training.runs import Run, RunError, reading, write


class TrainingError(ValueError):
    """Training cannot go on; the message says in which epoch, and what to do."""


def best_device() -> torch.device:
    """CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def settle_products() -> None:
    """Let float32 be float32 on every device, and as fast as that goes."""
    torch.backends.cudnn.allow_tf32 = False  # ten bits of a fraction
    torch.backends.cudnn.benchmark = True
    # On AMD's CPUs oneDNN multiplies 1.2 to 2.4 times as fast as MKL. PyTorch's way to it allows
    # bfloat16 inside, which only CPUs with AMX make use of.
    cpu = Path("/proc/cpuinfo")  # Linux has this file
    if torch.cpu._is_amx_tile_supported():
        return
    if cpu.is_file() and "AuthenticAMD" in cpu.read_text():
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]


def products_of(config: TrainConfig, device: torch.device) -> torch.dtype:
    """The type of products in training: bfloat16 where the device has instructions for it, unless
    the recipe says which. Sums, parameters, norms and losses are in float32.
    """
    if config.precision != "auto":
        return getattr(torch, config.precision)
    native = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


class Evaluation(NamedTuple):
    """Mean cross-entropy (nats), share of right answers in [0, 1], and the class given to each
    image: int64 (N,).
    """

    loss: float
    accuracy: float
    predicted: Tensor


def evaluate(model: nn.Module, data: Dataset) -> Evaluation:
    """Of the test split: evaluation mode, float32, every image once."""
    settle_products()
    device = next(model.parameters()).device
    labels = data.test_labels.to(device)
    few = 20 if device.type == "cpu" else 100  # fill caches
    feed = batches(data.test_images.to(device), labels, None, few, data.mean, data.std)
    logits = torch.cat([predict(model, x) for x, _ in feed])
    loss = F.cross_entropy(logits.double(), labels)
    predicted = logits.argmax(1)
    return Evaluation(loss.item(), (predicted == labels).double().mean().item(), predicted.cpu())


def lr_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a cosine to zero (section
    4).
    """
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def team() -> tuple[int, int]:
    """This process's number, and how many torchrun started: 0 of 1 without it. All wait here."""
    if "WORLD_SIZE" not in os.environ:
        return 0, 1
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
    dist.barrier()
    return dist.get_rank(), dist.get_world_size()


def train_epoch(
    forward: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    config: TrainConfig,
    data: Dataset,
    epoch: int,
) -> dict[str, float]:
    """One pass over the training images: its mean loss, accuracy, last learning rate, seconds."""
    rank, size = team()
    if config.batch_size % size:
        raise TrainingError(f"batch_size = {config.batch_size} must be a multiple of {size}.")
    images = len(data.train_labels) // size * size  # all processes have equal shares
    device = data.train_images.device
    torch.manual_seed(config.seed * 1_000_003 + epoch + 500_009 * rank)  # of dropout
    plan = epoch_plan(images, seed=config.seed, epoch=epoch, augment=config.augment, device=device)
    feed = batches(
        data.train_images, data.train_labels[:images], plan, config.batch_size, data.mean, data.std
    )
    products = products_of(config, device)
    clipped = [p for name, p in forward.named_parameters() if own_rate(name, config) is None]
    steps = math.ceil(images / config.batch_size)
    bar = tqdm(feed, f"epoch {epoch + 1}", steps, leave=False)
    sums = torch.zeros(2).double().to(device)  # of losses and right answers
    started = time.monotonic()

    forward.train()
    for step, (x, y) in enumerate(bar, epoch * steps):
        factor = lr_factor(step, config.epochs * steps, config.warmup)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * group["peak_lr"]
        x, y = x[rank::size], y[rank::size]
        with torch.autocast(device.type, products, enabled=products != torch.float32):
            logits = forward(x)
        loss = F.cross_entropy(logits.float(), y, label_smoothing=config.label_smoothing)
        forward.zero_grad()
        loss.backward()
        if config.clip is not None:
            nn.utils.clip_grad_norm_(clipped, config.clip)
        for optimizer in optimizers:
            optimizer.step()
        # Not read here: a GPU would wait.
        sums += torch.stack([loss.detach() * len(y), (logits.argmax(1) == y).sum()])

    if size > 1:
        dist.all_reduce(sums)
    loss, accuracy = (sums / images).tolist()
    return {
        "train_loss": loss,
        "train_accuracy": accuracy,
        "lr": optimizers[-1].param_groups[0]["lr"],
        "seconds": round(time.monotonic() - started, 3),
    }


def keep_geometry(run: Run, epochs: int, model: nn.Module, images: Tensor) -> None:
    """Write to heads.npz what every head does after so many epochs (`heads.network_geometry`),
    behind what it did before.
    """
    before = run.arrays("heads.npz")
    now = network_geometry(model, images)
    if now:  # a ResNet has no heads
        arrays = {name: np.stack([*before.get(name, ())[:epochs], now[name]]) for name in now}
        write(run.path / "heads.npz", arrays)


def fit(run: Run, model: Network, config: TrainConfig, data: Dataset) -> None:
    """Train from the last finished epoch of a run to the last of all, and leave the weights."""
    rank, _ = team()
    given = data.for_training(config)
    shown, _ = given.few("test", GEOMETRY_IMAGES)
    optimizers = build_optimizers(model, config, products_of(config, shown.device))
    answers = {"label": given.test_labels.cpu()}
    if config.start_from:
        answers["start"] = evaluate(model, given).predicted
    metrics = []
    checkpoint = run.path / "checkpoint.pt"
    if run.begun:
        with reading(checkpoint):
            metrics, weights, states = torch.load(checkpoint, "cpu", weights_only=True)
            model.load_state_dict(weights)
            for optimizer, state in zip(optimizers, states, strict=True):
                optimizer.load_state_dict(state)
    elif rank == 0:
        keep_geometry(run, 0, model, shown)

    forward = DistributedDataParallel(model) if dist.is_initialized() else model
    if config.compile:
        # Models share one forward: beyond eight of them dynamo would quietly stop compiling.
        torch._dynamo.reset()
        # Content's two scores are added up before their softmax: inside it, a CPU's compiler
        # vectorizes neither.
        options: Any = None if shown.is_cuda else {"realize_reads_threshold": 2}
        forward = torch.compile(forward, dynamic=False, options=options)  # type: ignore[assignment]
    for epoch in range(len(metrics), config.epochs):
        line = train_epoch(forward, optimizers, config, given, epoch)
        test = evaluate(model, given)
        if not math.isfinite(line["train_loss"] + test.loss):
            raise TrainingError(
                f"The loss of epoch {epoch + 1} is not finite. Lower learning rates, or clip."
            )
        line |= {"test_loss": test.loss, "test_accuracy": test.accuracy}
        metrics.append({"epoch": epoch + 1, **line})
        if rank == 0:
            keep_geometry(run, epoch + 1, model, shown)
            states = [optimizer.state_dict() for optimizer in optimizers]
            content = io.BytesIO()
            torch.save((metrics, model.state_dict(), states), content)
            # These two together: Ctrl-C says by the metrics where the checkpoint goes on.
            write(run.path / "metrics.jsonl", "".join(json.dumps(one) + "\n" for one in metrics))
            write(checkpoint, content.getvalue())  # last: the epoch is finished

    answers["predicted"] = evaluate(model, given).predicted
    if rank == 0:
        write(run.path / "predictions.npz", answers)
        weights = model.state_dict()
        for name, weight in weights.items():  # layers may share it, or keep it in another order
            weights[name] = weight.clone(memory_format=torch.contiguous_format)
        write(run.path / "model.safetensors", safetensors.torch.save(weights))
        checkpoint.unlink()


def train(
    model_config: ModelConfig,
    config: TrainConfig,
    data: Dataset,
    folder: str | Path,
    *,
    preset: str = "custom",
    start: Network | None = None,
) -> Run:
    """Train a model and leave a run folder. Go on with one that was stopped, return one that is
    finished; wait for another process that trains the same run.

    Args:
        model_config: its image size, channels and classes are taken from ``data``.
        folder: one that holds a run of another configuration or data is refused, never overwritten.
        preset: a name for tables and figures.
        start: a network to go on from, in a fresh one's place; ``config.start_from`` names its run.
            The model's configuration is then that network's.

    Raises:
        DataError: images or labels are of another type or shape than a `Dataset`'s.
        RunError: the folder belongs to another run, or cannot be read.
        TrainingError: the loss is not finite.
        KeyboardInterrupt: after Ctrl-C; it says from which epoch the same call goes on.
    """
    if (start is None) != (config.start_from is None):
        raise RunError(f"start_from = {config.start_from!r} must name the run of start, if any.")
    data.check()
    run = Run(Path(folder))
    settle_products()
    rank, _ = team()
    with FileLock(run.path / ".lock") if rank == 0 else nullcontext():
        team()
        device = best_device()
        torch.manual_seed(config.seed)  # of the first weights
        model = copy.deepcopy(start) or build_model(for_images(model_config, data))
        if model.config != for_images(model.config, data):
            raise RunError(f"start is a network for other images or classes than {data.name} has.")
        products = str(products_of(config, device)).removeprefix("torch.")
        now = {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
            "computation": products + ", compiled" * config.compile,
        }
        file = run.path / "config.json"
        if file.exists():
            there = identity(run.model, run.train, run.config["data"])
            if there != identity(model.config, config, data.about()):
                raise RunError(f"{run.path} holds another run. Give this one a folder of its own.")
            before = run.config["environment"]
            if before | now == before:
                now = before
            elif run.metrics:  # the first epochs were trained otherwise
                now["before"] = before
            if not run.finished and not run.begun and rank == 0:
                for stale in run.path.glob("*.npz"):  # of weights that are gone
                    stale.unlink()
        if run.finished:
            return run
        if rank == 0:
            about = {
                "preset": preset,
                "model": dict(model.config),
                "train": dict(config),
                "data": data.about(),
                "environment": now,
            }
            write(file, json.dumps(about, indent=1) + "\n")
        try:
            fit(run, model.to(device), config, data.to(device))
        except KeyboardInterrupt:
            # Of the last epoch the answers may be missing.
            following = min(len(Run(run.path).metrics) + 1, config.epochs)
            raise KeyboardInterrupt(
                f"The same command goes on from epoch {following} of {config.epochs}."
            ) from None
        team()
    return Run(run.path)


def load_run(folder: str | Path) -> tuple[Network, Run]:
    """The trained network of a run folder, in evaluation mode, and the run itself. `RunError` where
    its weights are not there, or are another model's.
    """
    run = Run(Path(folder))
    weights = run.path / "model.safetensors"
    if run.without_weights:
        raise RunError(f"{run.path} is kept without its weights; train it in a folder of its own.")
    if run.begun and not run.finished:
        raise RunError(f"{run.path} is not finished. Train it to its end.")
    model = build_model(run.model)
    with reading(weights):
        safetensors.torch.load_model(model, weights)
    return model.to(best_device()).eval(), run
