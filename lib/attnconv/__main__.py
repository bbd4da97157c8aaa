"""``python -m attnconv train PRESET``: one run of the paper, without profiles and notebooks."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from attnconv.config import PRESETS, ModelConfig, for_images, replace, run_name


def read_value(text: str) -> object:
    """What JSON says, or the word itself, such as adamw."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def run(preset: str, data: str, output: Path, words: list[str]) -> None:
    """Train a preset with changes ``NAME=VALUE`` to its model and its recipe."""
    from attnconv.training import train
    from attnconv.training.data import load_data

    parts = [word.partition("=") for word in words]
    changes = {name: read_value(text) for name, _, text in parts}
    of_model = {name: changes.pop(name) for name in ModelConfig.model_fields if name in changes}
    model = replace(PRESETS[preset].model, of_model)
    recipe = replace(PRESETS[preset].train, changes)
    images = load_data(data)
    sizes = images.image_size, images.image_channels, len(images.classes)
    model = for_images(model, *sizes)
    folder = output / "runs" / run_name(preset, model, recipe, images.about())
    accuracy = train(model, recipe, images, folder, preset=preset).test_accuracy
    print(f"{folder}: {accuracy:.2%} test accuracy")


def main(arguments: list[str] | None = None) -> int:
    """Run a command. An error that the library explains is one line and exit status 2."""
    top = argparse.ArgumentParser("attnconv")
    train = top.add_subparsers(required=True).add_parser("train", help="train, or go on with it")
    fresh = [name for name in PRESETS if not PRESETS[name].start]  # others: companion, by profile
    train.add_argument("preset", choices=fresh)
    train.add_argument("--data", default="embedded", help="embedded, cifar10, or a path")
    train.add_argument("--output", type=Path, required=True, help="runs go to OUTPUT/runs")
    words: Any = {"dest": "words", "action": "append"}
    train.add_argument("--seed", metavar="N", type="seed={}".format, **words)
    train.add_argument("--epochs", metavar="N", type="epochs={}".format, **words)
    train.add_argument("--set", metavar="NAME=VALUE", **words)
    train.set_defaults(words=[])
    try:
        run(**vars(top.parse_args(arguments)))
    except KeyboardInterrupt as stop:
        print(f"\n{stop}", file=sys.stderr)
        return 130
    except Exception as error:
        if not type(error).__module__.startswith("attnconv."):
            raise
        print(f"attnconv: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
