"""ResNet-50 as an attention-only network: time against the CNN, difference of the outputs, peak
memory.

    python benchmarks/conversion.py [--model resnet50] [--batch 4] [--size 224] [--rounds 9]
    [--threads 2]

The two networks take turns in one process, and the ratio is the median over the rounds, so that a
busy machine slows both alike. Peak memory is the whole process's: Python, torch, and both networks.
"""

import argparse
import time

import numpy as np
import torch
import torchvision
from measure import highest_memory, in_turns

from attnconv.equivalence import convert


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Time a network of torchvision against its attention-only copy."
    )
    parser.add_argument(
        "--model", default="resnet50", help="a classification model of torchvision (random weights)"
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224, help="side of the images, in pixels")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    cnn = torchvision.models.get_model(arguments.model, weights=None).eval()
    x = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
    start = time.perf_counter()
    attention = convert(cnn)
    conversion = time.perf_counter() - start

    with torch.no_grad():
        expected, output = cnn(x), attention(x)
        seconds = in_turns(
            {"CNN": lambda: cnn(x), "attention": lambda: attention(x)}, arguments.rounds, budget=600
        )
    print(
        f"{arguments.model}, batch {arguments.batch}, {arguments.size}x{arguments.size}, "
        f"{arguments.threads} threads"
    )
    print(f"conversion       {conversion:8.2f} s")
    for name, times in seconds.items():
        print(f"{name:17}{np.median(times):8.3f} s")
    ratio = np.median(np.divide(seconds["attention"], seconds["CNN"]))
    print(f"ratio            {ratio:8.2f}    (goal: at most 1.1)")
    print(
        f"relative error   {(output - expected).abs().max() / expected.abs().max():8.1e}    (goal: "
        "at most 1e-5)"
    )
    print(f"peak memory      {highest_memory() / 2**30:8.2f} GiB (goal: at most 2)")


if __name__ == "__main__":
    main()
