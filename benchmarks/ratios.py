"""The ratios that matter, from calls in turns in one process: what the CPU's fast ways and separability save, and how
near a training step is to its matrix products at the best rate that this CPU reaches for them.

make bench      (or: python benchmarks/ratios.py [steps | parts | layers | memory])
"""

import statistics
import sys
from collections.abc import Callable

import numpy as np
import torch
from measure import Case, Clock, in_turns, matrix_rate, peak_memory, step_flops, training_step

from attnconv.config import ModelConfig, TrainConfig

SIZES = [(128, 2), (64, 2), (128, 4)]
"""Hidden channels and down-sampling of the quadratic model's steps: 16 x 16, 16 x 16 and 8 x 8 positions."""

OTHERS = {
    "learned": dict(kind="learned"),
    "learned + content": dict(kind="learned_content", key_size=16),
    "full covariance": dict(covariance="full"),
    "16 heads": dict(heads=16),
    "ResNet18 of width 16": dict(kind="resnet", resnet_width=16),
}


def steps(rounds: int = 5, batch: int = 100) -> None:
    """Training steps against the plain operations in PyTorch's default float32."""
    rates = {"float32": matrix_rate(), "bfloat16": matrix_rate(bfloat16=True)}
    print("Best rate of a 4096 x 576 x 64 product, GFLOP/s:", {k: round(v / 1e9) for k, v in rates.items()})
    print(
        "Training step, batch 100, 6 layers: ms an image; speed over plain float32 (quartiles); step over its products"
    )
    models = [
        (f"quadratic, hidden {hidden}, {32 // fold} x {32 // fold}", dict(hidden=hidden, downsampling=fold))
        for hidden, fold in SIZES
    ]
    models += [(f"{name}, hidden 64, 16 x 16", dict(hidden=64) | changes) for name, changes in OTHERS.items()]
    for title, changes in models:
        model = ModelConfig(**dict(mlp=2 * changes["hidden"], dropout=0.0) | changes)
        recipes = {name: TrainConfig(optimizer="adamw", lr=1e-3, clip=5.0, precision=name) for name in rates}
        ways = {"plain": training_step(model, recipes["float32"], plain=True)}
        ways |= {name: training_step(model, recipe) for name, recipe in recipes.items()}
        seconds = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                seconds[name].append(way())
        print(f"  {title:36}plain float32 {1e3 * statistics.median(seconds['plain']) / batch:6.2f}", flush=True)
        for name, rate in rates.items():
            low, middle, high = np.quantile(np.divide(seconds["plain"], seconds[name]), [0.25, 0.5, 0.75])
            floor = step_flops(model, batch) / rate
            time = statistics.median(seconds[name])
            print(
                f"    {name:34}{1e3 * time / batch:20.2f} {middle:8.2f} ({low:.2f} to {high:.2f}) {time / floor:8.2f}",
                flush=True,
            )


def parts(repeats: int = 5) -> None:
    """Where the time of a training step goes, operation by operation; what is between operations is not seen."""
    model = ModelConfig(hidden=64, mlp=128, downsampling=2, dropout=0.0)
    step = training_step(model, TrainConfig(optimizer="adamw", lr=1e-3, clip=5.0, precision="auto"))
    step()
    with Clock() as clock:
        for _ in range(repeats):
            step()
    total = sum(clock.seconds.values())
    print("Training step, batch 100, quadratic, hidden 64, 16 x 16: share of the operations' time")
    for kind, seconds in clock.seconds.items():
        print(f"  {kind:34}{seconds / total:8.0%}", flush=True)


def ratio(above: Callable, below: Callable, repeats: int) -> str:
    """Median over rounds of time(above) / time(below), with the quartiles."""
    times = in_turns({"above": above, "below": below}, repeats, budget=60)
    low, middle, high = np.quantile(np.divide(times["above"], times["below"]), [0.25, 0.5, 0.75])
    return f"{middle:6.2f}  ({low:.2f} to {high:.2f})"


def layers() -> None:
    """One layer: the dense form against the separable one, in the same precision."""
    print("One layer of 9 heads, forward + backward: time of dense over time of separable")
    for bfloat16 in (False, True):
        for side, channels, batch, repeats in ((16, 128, 8, 21), (32, 128, 8, 7), (48, 128, 4, 5), (64, 64, 1, 5)):
            calls = [Case(form, side, channels, 9, batch, bfloat16=bfloat16).call() for form in ("dense", "separable")]
            name = "bfloat16" if bfloat16 else "float32"
            words = f"  {side} x {side}, hidden {channels}, {name}"
            print(f"{words:34}{ratio(*calls, repeats)}", flush=True)


def memory() -> None:
    """What forward and backward add to a fresh process."""
    for side, channels, batch in ((16, 128, 8), (32, 128, 8), (48, 128, 4), (64, 64, 1)):
        both = [peak_memory(Case(form, side, channels, 9, batch)) / 2**20 for form in ("separable", "dense")]
        print(f"  {side} x {side}, hidden {channels}: {both[0]:.0f} MiB separable, {both[1]:.0f} MiB dense", flush=True)
    used, dense = peak_memory(Case("separable", 256, 64, 9)) / 2**30, 9 * 256**4 * 4 / 2**30
    print(f"256 x 256, hidden 64, forward + backward: {used:.2f} GiB; P of the dense form: {dense:.0f} GiB")


if __name__ == "__main__":
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; medians")
    wanted = sys.argv[1:] or ["steps", "parts", "layers", "memory"]
    for part in wanted:
        {"steps": steps, "parts": parts, "layers": layers, "memory": memory}[part]()
