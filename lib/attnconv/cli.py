"""The ``attnconv`` command: reproduce, train, sweep, doctor."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import yaml

from attnconv import __version__
from attnconv.config import PRESETS, ConfigError, ModelConfig, TrainConfig

DATA_HELP = "embedded, cifar10, fashion-mnist, or a path to images (default: the profile's)"


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(prog="attnconv", description="Self-attention as convolution: reproduce the paper.")
    top.add_argument("--version", action="version", version=f"attnconv {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("reproduce", help="run the notebooks; what is done and unchanged is not done again")
    run.add_argument("--profile", default="quick", help="smoke, quick (default) or paper: a file of notebooks/profiles")
    run.add_argument("--data", help=DATA_HELP)
    only = "these notebooks (04, or 03:learned for one of its runs), and what they need"
    run.add_argument("--only", nargs="+", default=[], metavar="NN", help=only)
    run.add_argument("--force", action="store_true", help="run again what is up to date (with --only: only that)")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks at a time (default: 1)")
    run.add_argument("--output", metavar="DIR", help="where results go (default: outputs/<profile>)")
    more = "change a parameter of the notebooks of --only; may be repeated"
    pair = ("NAME", "VALUE")
    run.add_argument("-p", dest="parameters", nargs=2, action="append", default=[], metavar=pair, help=more)
    run.set_defaults(call=_reproduce)

    train = commands.add_parser("train", help="train one model of the paper, or resume it; no notebook")
    train.add_argument("preset", metavar="PRESET", help=", ".join(PRESETS))
    train.add_argument("--profile", default="quick", help="model size and recipe: smoke, quick (default) or paper")
    train.add_argument("--data", help=DATA_HELP)
    train.add_argument("--seed", type=int, help="default: the profile's first")
    train.add_argument("--output", metavar="DIR", help="the run folder goes to DIR/runs (default: outputs/<profile>)")
    train.add_argument("--epochs", type=int, metavar="N")
    train.add_argument("--batch-size", type=int, metavar="N")
    other = "any other value of ModelConfig or TrainConfig; may be repeated"
    train.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE", help=other)
    train.set_defaults(call=_train)

    sweep = commands.add_parser("sweep", help="write one training job per preset and seed, for GNU parallel or Slurm")
    sweep.add_argument("presets", nargs="*", metavar="PRESET", help="default: the profile's runs")
    sweep.add_argument("--profile", default="paper", help="model size and recipe (default: paper)")
    sweep.add_argument("--seeds", nargs="+", type=int, default=[], metavar="N", help="default: the profile's")
    sweep.add_argument("--processes", type=int, default=1, metavar="N", help="torchrun with N processes for each job")
    form = "lines (default), for `attnconv sweep | parallel -j 4`; slurm, for `attnconv sweep --form slurm | sbatch`"
    sweep.add_argument("--form", choices=["lines", "slurm"], default="lines", help=form)
    sweep.add_argument("--data", help=DATA_HELP)
    sweep.add_argument("--output", metavar="DIR", help="passed on to every job")
    sweep.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE", help="passed on too")
    sweep.set_defaults(call=_sweep)

    doctor = commands.add_parser("doctor", help="what this machine has, which data and runs there are, what is missing")
    doctor.set_defaults(call=_doctor)
    return top


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is not a YAML value: {error}") from error


def _reproduce(options: argparse.Namespace) -> int:
    from attnconv.reproduce import reproduce

    if options.parameters and not options.only:
        raise ConfigError("-p changes a parameter of the notebooks that --only names; name one, as in --only 04.")
    return reproduce(
        options.profile,
        data=options.data,
        only=options.only,
        force=options.force,
        at_once=options.jobs,
        output=options.output,
        parameters={name: _value(value) for name, value in options.parameters},
    )


def changes(words: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``NAME=VALUE`` words as changes to `ModelConfig` and to `TrainConfig`."""
    model, train = {}, {}
    known = [*ModelConfig.__dataclass_fields__, *TrainConfig.__dataclass_fields__]
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            raise ConfigError(f"--set {word}: not NAME=VALUE with a known name. Names: {', '.join(sorted(known))}.")
        (model if name in ModelConfig.__dataclass_fields__ else train)[name] = _value(value)
    return model, train


def _train(options: argparse.Namespace) -> int:
    from attnconv.workspace import open_workspace

    model, train = changes(options.changes)
    for name in ("epochs", "batch_size"):
        if (value := getattr(options, name)) is not None:
            train[name] = value
    work = open_workspace(options.profile, data=options.data, output=options.output)
    work.profile.configs(options.preset, options.seed, model, train)  # a wrong value costs no time
    try:
        run = work.run(options.preset, options.seed, model_changes=model, train_changes=train)
    except KeyboardInterrupt:
        print("\nStopped. To resume from the last checkpoint, run the same command again.", file=sys.stderr)
        return 130
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        print(f"{run.title}: {run.test_accuracy:.2%} test accuracy after {len(run.metrics)} epochs\n{run.path}")
    return 0


def _sweep(options: argparse.Namespace) -> int:
    from attnconv.sweep import jobs, slurm
    from attnconv.workspace import open_workspace

    if options.processes < 1:
        raise ConfigError(f"--processes {options.processes} must be at least 1.")
    profile = open_workspace(options.profile, data=options.data, output=options.output).profile
    model, train = changes(options.changes)
    passed_on = [f"--set={word}" for word in options.changes]
    passed_on += [f"--{name}={value}" for name in ("data", "output") if (value := getattr(options, name))]
    for preset in options.presets:
        profile.configs(preset, None, model, train)  # a wrong value costs no time
    commands = jobs(profile, options.presets, options.seeds, options=passed_on, processes=options.processes)
    print(slurm(commands, options.processes) if options.form == "slurm" else "\n".join(commands))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from attnconv.doctor import doctor

    return doctor()


def main(arguments: list[str] | None = None) -> int:
    """Run a command; an error that the library explains is one message and exit status 2, no traceback."""
    options = parser().parse_args(arguments)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 gets a '?', not a traceback
    try:
        return options.call(options)
    except ValueError as error:
        if not type(error).__module__.startswith("attnconv."):
            raise
        print(f"attnconv: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
