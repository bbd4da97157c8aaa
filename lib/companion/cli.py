"""The ``attnconv`` command: reproduce, train."""

import argparse
import os
import sys
from dataclasses import replace
from typing import Any

from attnconv import __version__
from attnconv.config import PRESETS, ConfigError, ModelConfig, TrainConfig
from companion.profile import read_yaml


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        prog="attnconv", description="Self-attention as convolution: reproduce the paper."
    )
    top.add_argument("--version", action="version", version=f"attnconv {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    both = argparse.ArgumentParser(add_help=False)
    option = both.add_argument
    size = "how large: smoke, quick (default), evening or paper, a file of notebooks/profiles"
    option("--profile", dest="profile_name", default="quick", help=size)
    images = "embedded, cifar10, or a path to images (default: the profile's)"
    option("--data", default="", help=images)

    about = "run the notebooks, but for what is done and unchanged"
    run = commands.add_parser("reproduce", parents=[both], help=about)
    run.set_defaults(call=_reproduce)
    option = run.add_argument
    only = "these notebooks (04, or 03:learned for one of its runs), and what they need"
    option("--only", nargs="+", default=[], metavar="NN", help=only)
    again = "run again what is up to date (with --only: only that)"
    option("--force", action="store_true", help=again)
    at_once = "notebooks at a time (default: one a core, 4 at most; 1 on a machine with a GPU)"
    option("--jobs", dest="at_once", type=int, metavar="N", help=at_once)
    option("--dry", action="store_true", help="say what would be done, why, and what cannot work")
    option = run.add_mutually_exclusive_group().add_argument
    beside = "outputs/<profile>, or outputs/reproduced/<profile> beside a committed record"
    option("--output", default="", metavar="DIR", help=f"where results go (default: {beside})")
    anew = "train all again, into outputs/<profile>-retrained"
    option("--retrain", action="store_true", help=anew)
    option("--record", action="store_true", help="write the committed record outputs/<profile>")

    about = "train one model of the paper, or resume it; no notebook"
    train = commands.add_parser("train", parents=[both], help=about)
    train.set_defaults(call=_train)
    option = train.add_argument
    option("preset", metavar="PRESET", help=", ".join(PRESETS))
    option("--seed", type=int, help="default: the profile's first")
    where = "the run folder goes to DIR/runs (default: as for reproduce)"
    option("--output", default="", metavar="DIR", help=where)
    words: dict[str, Any] = {"dest": "words", "action": "append", "default": []}
    option("--epochs", **words, type="epochs={}".format, metavar="N", help="as --set epochs=N")
    value = "a ModelConfig or TrainConfig value; repeatable"
    option("--set", **words, metavar="NAME=VALUE", help=value)
    return top


def _reproduce(only: list[str], **options: Any) -> int:
    from companion.reproduce import reproduce  # imports nbconvert, which takes a second

    return reproduce(only=" ".join(only).split(), **options)  # make hands over all of them as one


def changes(words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``NAME=VALUE`` words as changes to `ModelConfig` and to `TrainConfig`."""
    model: dict[str, Any] = {}
    train: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name in ModelConfig.model_fields:
            model[name] = read_yaml(value)
        elif name in TrainConfig.model_fields:
            train[name] = read_yaml(value)
        else:
            known = ", ".join(sorted([*ModelConfig.model_fields, *TrainConfig.model_fields]))
            raise ConfigError(f"--set {word}: no NAME=VALUE with a known name. Names: {known}.")
    return model, train


def _train(preset: str, profile_name: str, seed: int | None, words: list[str], **where: Any) -> int:
    from companion.workspace import open_workspace  # imports torch

    model, train = changes(words)
    work = replace(open_workspace(profile_name, **where), record=None)  # it is to be trained
    run = work.run(preset, seed, model_changes=model, train_changes=train)
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        said = f"{run.test_accuracy:.2%} test accuracy after {len(run.metrics)} epochs"
        print(f"{run.title}: {said}\n{run.path}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command. An error that the library explains is one line and exit status 2."""
    try:
        options = vars(parser().parse_args(arguments))
        return options.pop("call")(**options)
    except KeyboardInterrupt:
        print("\nStopped. To go on from there, run the same command again.", file=sys.stderr)
        return 130
    except Exception as error:
        said = explained(error)
        if not said:
            raise
        print(f"attnconv: {said}", file=sys.stderr)
        return 2


def explained(error: Exception) -> str:
    """A message with a remedy; empty for an error that is a mistake of this library."""
    if type(error).__module__.startswith("attnconv.") or isinstance(error, OSError):
        return str(error)
    if isinstance(error, ImportError):
        return f"{error}. In a clone of the repository: pip install '.[notebooks]'."
    return ""
