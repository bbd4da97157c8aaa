"""The ratios that matter, from calls in turns in one process: what separability saves, and how near the floor it is.

make bench      (or: python benchmarks/ratios.py)
"""

from collections.abc import Callable

import numpy as np
import torch

from attnconv.attention import PositionalAttention
from attnconv.models import build_model
from attnconv.timing import Case, in_turns, peak_memory
from attnconv.workspace import open_workspace


def ratio(above: Callable, below: Callable, repeats: int) -> str:
    """Median over rounds of time(above) / time(below), with the quartiles."""
    times = in_turns({"above": above, "below": below}, repeats, budget=60)
    low, middle, high = np.quantile(np.divide(times["above"], times["below"]), [0.25, 0.5, 0.75])
    return f"{middle:6.2f}  ({low:.2f} to {high:.2f})"


def model_step(mixing: str, batch: int) -> Callable:
    """Forward and backward of the paper's quadratic model on random images."""
    model = build_model(open_workspace("paper").profile.configs("quadratic")[0])
    for layer in model.modules():
        if isinstance(layer, PositionalAttention):
            layer.mixing = mixing
    images = torch.randn(batch, 3, 32, 32)
    return lambda: (model.zero_grad(), model(images).sum().backward())


def main() -> None:
    print(f"{torch.get_num_threads()} threads, float32, torch {torch.__version__}; medians of ratios (quartiles)")
    print("One layer of 9 heads, forward + backward: time of dense over time of separable; peak memory")
    for side, channels, batch, repeats in ((16, 128, 8, 21), (32, 128, 8, 9), (48, 128, 8, 5), (64, 64, 1, 5)):
        dense, separable = (Case(form, side, channels, 9, batch) for form in ("dense", "separable"))
        memory = " against ".join(f"{peak_memory(case) / 2**20:.0f}" for case in (dense, separable))
        words = f"  {side} x {side}, hidden {channels}, batch {batch}"
        print(f"{words:34}{ratio(dense.call(), separable.call(), repeats)}  {memory} MiB", flush=True)
    print("Forward: time of separable attention over time of its value projection alone")
    for side in (16, 48):
        separable, values = (Case(form, side, 128, 9, 8, False) for form in ("separable", "value projection"))
        print(f"  {f'{side} x {side}, hidden 128, batch 8':32}{ratio(separable.call(), values.call(), 25)}", flush=True)
    print("The paper's whole model, forward + backward: time of dense over time of separable")
    for batch, repeats in ((8, 9), (32, 5)):
        print(
            f"  {f'batch {batch}':32}{ratio(*(model_step(m, batch) for m in ('dense', 'separable')), repeats)}",
            flush=True,
        )
    memory, dense = peak_memory(Case("separable", 256, 64, 9)) / 2**30, 9 * 256**4 * 4 / 2**30
    print(f"256 x 256, hidden 64, forward + backward: {memory:.2f} GiB; P of the dense form: {dense:.0f} GiB")


if __name__ == "__main__":
    main()
