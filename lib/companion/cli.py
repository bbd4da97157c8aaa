"""The ``attnconv`` command: reproduce, train."""

import argparse
import errno
import os
import re
import sys
from typing import Any

from attnconv import __version__
from attnconv.config import PRESETS, ConfigError, ModelConfig, TrainConfig
from companion._old import read_yaml


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        prog="attnconv", description="Self-attention as convolution: reproduce the paper."
    )
    top.add_argument("--version", action="version", version=f"attnconv {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    both = argparse.ArgumentParser(add_help=False)
    size = "model size and recipe: smoke, quick (default), evening or paper, a file of notebooks/profiles"
    both.add_argument("--profile", dest="profile_name", default="quick", help=size)
    both.add_argument(
        "--data", help="embedded, cifar10, or a path to images (default: the profile's)"
    )

    run = commands.add_parser(
        "reproduce", parents=[both], help="run the notebooks, but for what is done and unchanged"
    )
    only = "these notebooks (04, or 03:learned for one of its runs), and what they need"
    run.add_argument("--only", nargs="+", default=[], metavar="NN", help=only)
    run.add_argument(
        "--force", action="store_true", help="run again what is up to date (with --only: only that)"
    )
    at_once = (
        "notebooks at a time (default: one for each core, 4 at most; 1 on a machine with a GPU)"
    )
    run.add_argument("--jobs", dest="at_once", type=int, metavar="N", help=at_once)
    where = run.add_mutually_exclusive_group()
    beside = "where results go (default: outputs/<profile>, or outputs/reproduced/<profile> beside a committed record)"
    where.add_argument("--output", metavar="DIR", help=beside)
    again = "train all again, into outputs/<profile>-retrained (once: remove it to train yet again)"
    where.add_argument("--retrain", action="store_true", help=again)
    where.add_argument(
        "--record", action="store_true", help="write the committed record outputs/<profile> itself"
    )
    run.add_argument(
        "--dry", action="store_true", help="say what would be done, and why, and what is missing"
    )
    run.set_defaults(call=_reproduce)

    train = commands.add_parser(
        "train", parents=[both], help="train one model of the paper, or resume it; no notebook"
    )
    train.add_argument("preset", metavar="PRESET", help=", ".join(PRESETS))
    train.add_argument("--seed", type=int, help="default: the profile's first")
    train.add_argument(
        "--output",
        metavar="DIR",
        help="the run folder goes to DIR/runs (default: as for reproduce)",
    )
    words: dict[str, Any] = dict(dest="words", action="append", default=[])
    train.add_argument(
        "--epochs", **words, type="epochs={}".format, metavar="N", help="as --set epochs=N"
    )
    train.add_argument(
        "--set",
        **words,
        metavar="NAME=VALUE",
        help="a ModelConfig or TrainConfig value; repeatable",
    )
    train.set_defaults(call=_train)
    return top


def _reproduce(only: list[str], **options: Any) -> int:
    from companion.reproduce import reproduce  # imports papermill, which takes a second

    return reproduce(only=" ".join(only).split(), **options)  # make hands over all of them as one


def changes(words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``NAME=VALUE`` words as changes to `ModelConfig` and to `TrainConfig`."""
    model, train = dict[str, Any](), dict[str, Any]()
    known = [*ModelConfig.model_fields, *TrainConfig.model_fields]
    for word in words:
        name, equals, value = word.partition("=")
        if not (equals and value.strip()) or name not in known:
            raise ConfigError(
                f"--set {word}: not NAME=VALUE with a known name. Names: {', '.join(sorted(known))}."
            )
        try:
            (model if name in ModelConfig.model_fields else train)[name] = read_yaml(value)
        except ConfigError as error:
            raise ConfigError(f"--set {word}: {error}") from None
    return model, train


def _train(
    preset: str, profile_name: str, seed: int | None, words: list[str], **options: Any
) -> int:
    from companion.workspace import open_workspace

    model, train = changes(words)
    work = open_workspace(profile_name, **options)
    _, recipe = work.profile.configs(preset, seed, model, train)  # a wrong value costs no time
    work.data.hold_out(recipe.validation, recipe.seed)
    run = work.run(preset, seed, model_changes=model, train_changes=train, fresh=True)
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        print(
            f"{run.title}: {run.test_accuracy:.2%} test accuracy after {len(run.metrics)} epochs\n{run.path}"
        )
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; an error that the library explains is one message and exit status 2, no
    traceback.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(
            errors="replace"
        )  # a terminal without UTF-8 gets a '?', not a traceback
    try:
        options = vars(parser().parse_args(arguments))
        return options.pop("call")(**options)
    except KeyboardInterrupt:
        print("\nStopped. To go on from there, run the same command again.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if not (said := explained(error)):
            raise
        print(f"attnconv: {said}", file=sys.stderr)
        return 2


def explained(error: Exception) -> str:
    """A message with a remedy; empty for an error that is a mistake of this library."""
    if type(error).__module__.startswith("attnconv."):
        return str(error)
    if isinstance(error, ImportError):
        remedy = "pip install '.[notebooks]' in a clone of the repository, or 'make clean' and the same make command"
        return f"{error}. It comes with what the notebooks need: {remedy}."
    lacks = re.search(
        r"out of memory|not enough memory|can(no|')t allocate", str(error)
    )  # torch's, on GPUs and CPUs
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and lacks):
        return f"There is not enough memory ({str(error)[:200]}). Choose a smaller model, batch or data set."
    if isinstance(error, OSError) and (
        error.filename or error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
    ):
        return f"{error}. Check that path, its permissions and the disk's space."
    return ""
