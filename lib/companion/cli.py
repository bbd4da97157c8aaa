"""The ``attnconv`` command: reproduce, train."""

import argparse
import os
import sys
from dataclasses import replace
from typing import Any

from attnconv import __version__
from attnconv.config import PRESETS, ConfigError, ModelConfig, TrainConfig
from companion.profile import Changes, read_yaml


def keep_buffers() -> None:
    """Start this process again so that it keeps large buffers. Fetched from the kernel for each
    batch, they cost up to half the time on CPUs. A process reads these settings when it starts.
    """
    settings = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
    if not settings.keys() <= os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, os.environ | settings)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        "attnconv", description="Self-attention as convolution: reproduce the paper."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(required=True)
    run = commands.add_parser("reproduce", help="run the notebooks, but for what is up to date")
    train = commands.add_parser("train", help="train one model of the paper, or resume it")
    run.set_defaults(call=_reproduce)
    train.set_defaults(call=_train)
    for option in run.add_argument, train.add_argument:
        option("--profile", default="quick", help="smoke, quick (default), evening or paper")
        option("--data", default="", help="embedded, cifar10, or a path (default: the profile's)")
        option("--output", default="", help="where results go (default: outputs/<profile>)")

    option = run.add_argument
    option("--only", nargs="+", default=[], help="these notebooks (04, 03:learned) and their needs")
    option("--force", action="store_true", help="run again what is up to date (of --only)")
    option("--jobs", type=int, help="notebooks at a time (default: one a core, 4 at most)")
    option("--dry", action="store_true", help="say what would be done, and what cannot work")

    option = train.add_argument
    option("preset", help=", ".join(PRESETS))
    option("--seed", type=int, help="default: the profile's first")
    option("--set", action="append", default=[], help="a configuration's NAME=VALUE; repeatable")
    option("--epochs", action="append", dest="set", type="epochs={}".format, help="of the training")
    return top


def _reproduce(only: list[str], **options: Any) -> int:
    from companion.reproduce import reproduce  # imports nbconvert, which takes a second

    return reproduce(only=" ".join(only).split(), **options)  # make hands over all of them as one


def _train(preset: str, seed: int | None, **options: Any) -> int:
    from companion.workspace import open_workspace  # imports torch

    model: Changes = {}
    recipe: Changes = {}
    for word in options.pop("set"):
        name, given, value = word.partition("=")
        if not given:
            raise ConfigError(f"--set {word}: write NAME=VALUE.")
        known = ModelConfig.model_fields | TrainConfig.model_fields
        if name not in known:
            raise ConfigError(f"{name} = {value}: there are only {', '.join(known)}.")
        changes = model if name in ModelConfig.model_fields else recipe
        changes[name] = read_yaml(value)
    work = replace(open_workspace(**options), record=None)  # what is recorded is trained, too
    run = work.run(preset, seed, model_changes=model, train_changes=recipe)
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        print(
            f"{run.title}: {run.test_accuracy:.2%} test accuracy after {len(run.metrics)} epochs\n"
            f"{run.path}"
        )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command. An error that the library explains is one line and exit status 2."""
    if arguments is None:
        keep_buffers()
    status = 2
    try:
        options = vars(parser().parse_args(arguments))
        return options.pop("call")(**options)
    except KeyboardInterrupt as error:
        said = str(error) or "Stopped. To go on from there, run the same command again."
        status = 130
    except ImportError as error:
        said = f"{error}. In a clone of the repository: pip install '.[notebooks]'."
    except (ValueError, OSError) as error:
        said = str(error)
    print(f"attnconv: {said}", file=sys.stderr)
    return status
