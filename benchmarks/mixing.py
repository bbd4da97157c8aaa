"""Attention layers against grid size, heads and width: time in turns with its spread, peak memory,
a lower bound.

    make bench
    python benchmarks/mixing.py [--output DIR] [--repeats 7] [--sides 8 16 32] [--threads 2]

Leaves mixing.csv and mixing.md in outputs/bench: some seven minutes on two cores.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from measure import FORMS, Case, in_turns, matrix_rate, peak_memory

LARGEST = {"dense": 48, "full covariance": 48, "content": 64}
"""Beyond these sides a form takes too long, or more memory than most machines have."""
TIMES = ["ms", "fastest_ms", "slowest_ms"]


def cases(sides: list[int], channels: int, batch: int) -> list[list[Case]]:
    """Groups of cases that take turns: one for each side, then for each number of heads and each
    width at 16x16.
    """
    fit = [[f for f in FORMS if side <= LARGEST.get(f, side)] for side in sides]
    groups = [
        [
            Case(form, side, channels, batch=batch if side <= 64 else 1, training=training)
            for form in forms
        ]
        for side, forms in zip(sides, fit, strict=True)
        for training in (False, True)
    ]
    groups += [[Case(form, 16, channels, heads, batch) for form in FORMS] for heads in (1, 4, 16)]
    groups += [[Case(form, 16, width, 9, batch) for form in FORMS] for width in (32, 256)]
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parents[1] / "outputs" / "bench"
    )
    parser.add_argument("--sides", type=int, nargs="+", default=[8, 16, 32, 48, 64, 128, 256])
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    rate = matrix_rate()
    print(f"{rate / 1e9:.0f} GFLOP/s in matrix products", flush=True)
    rows = []
    for group in cases(options.sides, options.channels, options.batch):
        times = in_turns({case.form: case.call() for case in group}, options.repeats, budget=8)
        for case in group:
            spread = np.quantile(times[case.form], [0.5, 0, 1]) * 1e3
            row = (
                vars(case)
                | dict(zip(TIMES, spread, strict=True))
                | {"products_ms": 1e3 * case.flops / rate}
            )
            row["peak_mib"] = peak_memory(case) / 2**20 if case.training else None
            rows.append(row)
            print(
                "  ".join(
                    f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()
                ),
                flush=True,
            )

    import pandas as pd  # here, as each process that measures memory imports this file

    table = pd.DataFrame(rows)
    options.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.output / "mixing.csv", index=False)
    table.to_markdown(options.output / "mixing.md", index=False, floatfmt=".3g")


if __name__ == "__main__":
    main()
