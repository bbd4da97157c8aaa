"""Attention layers against grid size, heads and width: time in turns with its spread, peak memory, two lower bounds.

    make bench      (or: python benchmarks/mixing.py [--output DIR] [--repeats 7] [--sides 8 16 32] [--threads 2])

Leaves mixing.json, mixing.md, mixing.csv and mixing.pdf/png in outputs/bench: some seven minutes on two cores.
"""

import argparse
import csv
import json
import statistics
from pathlib import Path

import torch
from measure import FORMS, Case, byte_rate, in_turns, lower_bound, matrix_rate, peak_memory

from attnconv import figures

LARGEST = {"dense": 48, "full covariance": 48, "content": 64}
"""Beyond these sides a form takes too long, or more memory than most machines have."""


def cases(sides: list[int], channels: int, batch: int) -> list[list[Case]]:
    """Groups of cases that take turns: one for each side, then for each number of heads and each width at 16x16."""
    fit = [[f for f in FORMS if side <= LARGEST.get(f, side)] for side in sides]
    groups = [
        [Case(form, side, channels, batch=batch if side <= 64 else 1, training=training) for form in forms]
        for side, forms in zip(sides, fit, strict=True)
        for training in (False, True)
    ]
    groups += [[Case(form, 16, channels, heads, batch) for form in FORMS] for heads in (1, 4, 16)]
    groups += [[Case(form, 16, width, 9, batch) for form in FORMS] for width in (32, 256)]
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[1] / "outputs" / "bench")
    parser.add_argument("--sides", type=int, nargs="+", default=[8, 16, 32, 48, 64, 128, 256])
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    rates = matrix_rate(), byte_rate()
    print(f"{rates[0] / 1e9:.0f} GFLOP/s in matrix products, {rates[1] / 1e9:.1f} GB/s in copies", flush=True)
    rows = []
    for group in cases(options.sides, options.channels, options.batch):
        times = in_turns({case.form: case.call() for case in group}, options.repeats, budget=8)
        for case in group:
            seconds = times[case.form]
            products, traffic = lower_bound(case, *rates)
            row = vars(case) | dict(
                ms=1e3 * statistics.median(seconds), fastest_ms=1e3 * min(seconds), slowest_ms=1e3 * max(seconds)
            )
            row |= dict(products_ms=1e3 * products, bytes_ms=1e3 * traffic)
            row |= dict(peak_mib=peak_memory(case) / 2**20 if case.training else None)
            rows.append(row)
            print("  ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)

    options.output.mkdir(parents=True, exist_ok=True)
    report = dict(flops_per_second=rates[0], bytes_per_second=rates[1], threads=options.threads, rows=rows)
    (options.output / "mixing.json").write_text(json.dumps(report, indent=1) + "\n")
    with open(options.output / "mixing.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")
    (options.output / "mixing.md").write_text("\n".join(lines) + "\n")

    main_rows = [r for r in rows if r["training"] and r["heads"] == 9 and r["channels"] == options.channels]
    curves, bounds = {}, {}
    for form in FORMS:
        own = {r["side"]: r for r in main_rows if r["form"] == form}
        sides = sorted(own)
        spread = [[own[s][k] / own[s]["batch"] for k in ("ms", "fastest_ms", "slowest_ms")] for s in sides]
        curves[form] = (sides, spread)
        if form == "separable":
            products = [own[s]["products_ms"] / own[s]["batch"] for s in sides]
            bounds["separable, its products alone"] = (sides, products)
    figure = figures.cost_growth(curves, bounds, "Forward + backward, one image (ms)")
    figures.save(figure, options.output / "mixing.png")


if __name__ == "__main__":
    main()
