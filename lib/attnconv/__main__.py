"""``python -m attnconv train PRESET``: one run of the paper, without profiles and notebooks."""

import argparse
import os
import sys
from pathlib import Path

from attnconv.config import PRESETS, for_images, replace, run_name


def keep_buffers() -> None:
    """Start this process again so that it keeps large buffers. Fetched from the kernel for each
    batch, they cost up to half the time on CPUs. A process reads these settings when it starts.
    """
    settings = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
    if not settings.keys() <= os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, os.environ | settings)


def main(arguments: list[str] | None = None) -> None:
    """Train a preset that starts from no other. An error that the library explains is one line."""
    parser = argparse.ArgumentParser("attnconv")
    parser.add_argument("command", choices=["train"])
    parser.add_argument("preset", choices=[name for name in PRESETS if not PRESETS[name].start])
    parser.add_argument("--data", default="embedded", help="embedded, cifar10, or a path")
    parser.add_argument("--output", required=True, help="runs go to OUTPUT/runs")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args(arguments)

    from attnconv.training import train  # imports torch
    from attnconv.training.data import load_data

    preset = PRESETS[told.preset]
    try:
        recipe = replace(preset.train, {"epochs": told.epochs, "seed": told.seed})
        data = load_data(told.data)
        model = for_images(preset.model, data)
        name = run_name(told.preset, model, recipe, data.about())
        run = train(model, recipe, data, Path(told.output, "runs", name), preset=told.preset)
    except (KeyboardInterrupt, ValueError, OSError) as error:
        sys.exit(f"attnconv: {error}")
    print(f"{run.path}: {run.test_accuracy:.2%} test accuracy")


if __name__ == "__main__":
    keep_buffers()
    if "--profile" in sys.argv:  # profiles are the companion's
        os.execv(sys.executable, [sys.executable, "-m", "companion", *sys.argv[1:]])
    main()
