"""The ratios that matter, from calls in turns in one process: what bfloat16 and separability save,
and how near a training step is to its matrix products at the best rate that this CPU reaches for
them.

make bench      (or: python benchmarks/ratios.py [steps | layers | memory])
"""

import statistics
import sys
from collections.abc import Callable

import numpy as np
import torch
from measure import Case, in_turns, matrix_rate, peak_memory, step_flops, training_step

from attnconv.config import ModelConfig, TrainConfig

MODELS = {
    "quadratic, hidden 128, 16 x 16": dict(hidden=128),
    "quadratic, hidden 64, 16 x 16": dict(hidden=64),
    "quadratic, hidden 128, 8 x 8": dict(hidden=128, downsampling=4),
    "learned, hidden 64, 16 x 16": dict(hidden=64, kind="learned"),
    "learned + content, hidden 64": dict(hidden=64, kind="learned_content", key_size=16),
    "full covariance, hidden 64": dict(hidden=64, covariance="full"),
    "16 heads, hidden 64": dict(hidden=64, heads=16),
    "ResNet18 of width 16": dict(hidden=64, kind="resnet", resnet_width=16),
}
"""Models whose training steps are timed; down-sampling is 2 where nothing is said."""


def steps(rounds: int = 5, batch: int = 100) -> None:
    """Training steps in float32 and in bfloat16."""
    rates = {"float32": matrix_rate(), "bfloat16": matrix_rate(bfloat16=True)}
    print(
        "Best rate of a 4096 x 576 x 64 product, GFLOP/s:",
        {k: round(v / 1e9) for k, v in rates.items()},
    )
    print(
        f"Training step, batch {batch}, 6 layers: ms an image; float32 over it (quartiles); step"
        " over its products"
    )
    for title, changes in MODELS.items():
        model = ModelConfig(**dict(mlp=2 * changes["hidden"], dropout=0.0) | changes)
        ways = {}
        for name in rates:
            recipe = TrainConfig(optimizer="adamw", lr=1e-3, clip=5.0, precision=name)
            ways[name] = training_step(model, recipe)
        seconds = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                seconds[name].append(way())
        print(f"  {title}", flush=True)
        for name, rate in rates.items():
            low, middle, high = np.quantile(
                np.divide(seconds["float32"], seconds[name]), [0.25, 0.5, 0.75]
            )
            floor = step_flops(model, batch) / rate
            time = statistics.median(seconds[name])
            print(
                f"    {name:34}{1e3 * time / batch:8.2f} {middle:8.2f}"
                f" ({low:.2f} to {high:.2f}) {time / floor:8.2f}",
                flush=True,
            )


def ratio(above: Callable, below: Callable, repeats: int) -> str:
    """Median over rounds of time(above) / time(below), with the quartiles."""
    times = in_turns({"above": above, "below": below}, repeats, budget=60)
    low, middle, high = np.quantile(np.divide(times["above"], times["below"]), [0.25, 0.5, 0.75])
    return f"{middle:6.2f}  ({low:.2f} to {high:.2f})"


def layers() -> None:
    """One layer: the dense form against the separable one, in the same precision."""
    print("One layer of 9 heads, forward + backward: time of dense over time of separable")
    for bfloat16 in (False, True):
        for side, channels, batch, repeats in (
            (16, 128, 8, 21),
            (32, 128, 8, 7),
            (48, 128, 4, 5),
            (64, 64, 1, 5),
        ):
            calls = [
                Case(form, side, channels, 9, batch, bfloat16=bfloat16).call()
                for form in ("dense", "separable")
            ]
            name = "bfloat16" if bfloat16 else "float32"
            words = f"  {side} x {side}, hidden {channels}, {name}"
            print(f"{words:34}{ratio(*calls, repeats)}", flush=True)


def memory() -> None:
    """What forward and backward add to a fresh process."""
    for side, channels, batch in ((16, 128, 8), (32, 128, 8), (48, 128, 4), (64, 64, 1)):
        both = [
            peak_memory(Case(form, side, channels, 9, batch)) / 2**20
            for form in ("separable", "dense")
        ]
        print(
            f"  {side} x {side}, hidden {channels}: {both[0]:.0f} MiB separable, {both[1]:.0f} MiB dense",
            flush=True,
        )
    used, dense = peak_memory(Case("separable", 256, 64, 9)) / 2**30, 9 * 256**4 * 4 / 2**30
    print(
        f"256 x 256, hidden 64, forward + backward: {used:.2f} GiB; P of the dense form: {dense:.0f} GiB"
    )


if __name__ == "__main__":
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}; medians")
    for part in sys.argv[1:] or ["steps", "layers", "memory"]:
        {"steps": steps, "layers": layers, "memory": memory}[part]()
