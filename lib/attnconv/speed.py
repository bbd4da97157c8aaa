"""How fast a training step is on this machine, and how much of what the machine can do that is.

Every row is the real step (augmentation, forward, backward, optimizer) on random images of the profile's size. Its
FLOPs are three times those of the forward pass that the row takes: separable where the encoding factors and the row
mixes so, else dense; the paper's own count leaves the mixing out and is not used here.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnconv.config import PRESETS, ModelConfig, Profile, TrainConfig, replace
from attnconv.cost import cost
from attnconv.data import Dataset, batches, epoch_plan
from attnconv.models import build_model
from attnconv.runs import writing
from attnconv.training import _Trainer, best_device, environment, set_seed


@dataclass(frozen=True)
class Variant:
    """One way to compute the same step."""

    name: str
    mixing: str = "auto"
    precision: str = "auto"
    compile: bool | str | None = None
    kinds: tuple[str, ...] = ("quadratic", "learned", "learned_content", "resnet")


DENSE_FLOAT32 = "dense float32"
"""The formulation of the original code: P built for every pair of pixels, float32, no compiler."""
VARIANTS = (
    Variant("library"),
    Variant("CUDA graphs", compile="reduce-overhead"),
    Variant("dense", mixing="dense", kinds=("quadratic", "learned", "learned_content")),
    Variant(DENSE_FLOAT32, mixing="dense", precision="float32", compile=False),
)


def matrix_rate(device: torch.device, size: int | None = None, seconds: float = 1.0) -> float:
    """FLOP/s of a large square matrix product of random bfloat16 numbers: the ceiling of everything else."""
    size = size or (8192 if device.type == "cuda" else 512)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / _seconds(lambda: a @ b, device, seconds)


def _seconds(call: Callable[[], object], device: torch.device, budget: float, warm_up: int = 3) -> float:
    """Time of a call: the median over five rounds that share the budget."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def spend(times: int) -> float:
        wait()
        started = time.perf_counter()
        for _ in range(times):
            call()
        wait()
        return (time.perf_counter() - started) / times

    spend(warm_up)
    times = max(1, int(budget / 5 / max(spend(1), 1e-9)))
    return statistics.median(spend(times) for _ in range(5))


def measure(
    profile: Profile,
    presets: Iterable[str] = ("quadratic",),
    *,
    batch_size: int | None = None,
    seconds: float = 2.0,
    file: Path | None = None,
) -> dict[str, Any]:
    """Measure every variant of these presets, one after the other; ``file`` gets the report as JSON after every row.

    A row that fails (out of memory, say) says why, and the others are measured all the same.
    """
    device = best_device()
    set_seed(0)
    report: dict[str, Any] = dict(environment=environment(device), bfloat16_flops=matrix_rate(device), rows=[])
    for name in presets:
        model, recipe = profile.configs(name, train_changes={} if batch_size is None else {"batch_size": batch_size})
        for variant in VARIANTS:
            if model.kind in variant.kinds and (variant.compile != "reduce-overhead" or device.type == "cuda"):
                row = dict(preset=name, title=PRESETS[name].title, variant=variant.name, batch_size=recipe.batch_size)
                try:
                    row |= _measure(model, recipe, variant, device, seconds)
                    row["share_of_bfloat16_rate"] = row["flops"] / report["bfloat16_flops"]
                except Exception as error:  # compilers and devices raise many kinds
                    row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                report["rows"].append(row)
                if file:
                    with writing(file) as temporary:
                        temporary.write_text(json.dumps(report, indent=1) + "\n")
    return report


def _measure(model: ModelConfig, recipe: TrainConfig, variant: Variant, device: torch.device, seconds: float) -> dict:
    recipe = replace(recipe, {"precision": variant.precision, "compile": variant.compile, "start_from": None})
    network = build_model(model)
    layers = getattr(network, "attention_layers", [])
    for layer in layers:
        layer.mixing = variant.mixing
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)
        torch.cuda.reset_peak_memory_stats(device)
    data = _random_images(model, 100 * recipe.batch_size).to(device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _Trainer(network.to(device), recipe, data, Path(folder), progress=False)
        feed = _feed(data, recipe)
        network.train()
        started = time.perf_counter()
        trainer.take_step(*next(feed)).item()  # compiles
        start = time.perf_counter() - started
        step = _seconds(lambda: trainer.take_step(*next(feed)), device, seconds)
    price = cost(model)
    flops = price.dense if variant.mixing == "dense" else price.separable
    rate = recipe.batch_size / step
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return dict(
        images_per_second=rate,
        step_ms=1e3 * step,
        first_step_seconds=start,
        forward_flops_per_image=flops,
        flops=3 * flops * rate,
        memory_bytes=memory,
    )


def _random_images(model: ModelConfig, count: int) -> Dataset:
    images = torch.randint(0, 256, (count, *model.image_size, model.image_channels), dtype=torch.uint8)
    labels = torch.randint(0, model.classes, (count,))
    statistics = ((0.5,) * model.image_channels, (0.25,) * model.image_channels)
    return Dataset("random", "", "", tuple(map(str, range(model.classes))), images, labels, images, labels, *statistics)


def _feed(data: Dataset, recipe: TrainConfig):
    epoch = 0
    while True:
        plan = epoch_plan(
            len(data.train_labels), seed=0, epoch=epoch, augment=recipe.augment, device=data.train_images.device
        )
        yield from batches(data.train_images, data.train_labels, plan, recipe.batch_size, data.mean, data.std)
        epoch += 1


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    from attnconv.reproduce import table as columns

    rows = [("model", "form", "batch", "images/s", "ms a step", "first step", "TFLOP/s", "of bf16 rate", "against f32")]
    base = {r["preset"]: r.get("images_per_second") for r in report["rows"] if r["variant"] == DENSE_FLOAT32}
    for row in report["rows"]:
        start = (row["title"], row["variant"], str(row["batch_size"]))
        if "error" in row:
            rows.append((*start, "", "", "", "", "", row["error"][:80]))
            continue
        gain = f"{row['images_per_second'] / base[row['preset']]:.1f} x" if base.get(row["preset"]) else ""
        numbers = f"{row['images_per_second']:.0f}", f"{row['step_ms']:.2f}", f"{row['first_step_seconds']:.0f} s"
        rates = f"{row['flops'] / 1e12:.3g}", f"{row['share_of_bfloat16_rate']:.1%}"
        rows.append((*start, *numbers, *rates, gain))
    heading = f"{report['environment']['device']}: {report['bfloat16_flops'] / 1e12:.4g} TFLOP/s in bfloat16 products"
    return f"{heading}\n\n{columns(rows)}"
