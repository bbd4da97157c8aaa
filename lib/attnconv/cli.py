"""The ``attnconv`` command: reproduce, train, train-all, pack, unpack, speed, doctor."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from attnconv import __version__
from attnconv.config import PRESETS, ConfigError, ModelConfig, TrainConfig, rescaled, scaled

STARTED = time.monotonic()
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
    at_once = "notebooks at a time (default: one for each core, 4 at most; 1 on a machine with a GPU)"
    run.add_argument("--jobs", type=int, metavar="N", help=at_once)
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
    batch = "SGD's learning rates follow in proportion (the paper's: 0.1 at 100)"
    train.add_argument("--batch-size", type=int, metavar="N", help=batch)
    other = "any other value of ModelConfig or TrainConfig; may be repeated"
    train.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE", help=other)
    train.set_defaults(call=_train)

    every = commands.add_parser("train-all", help="train several models for a limited time, and pack them up; resumes")
    every.add_argument("presets", nargs="*", metavar="PRESET", help="in this order (default: the profile's)")
    every.add_argument("--profile", default="paper", help="model size and recipe (default: paper)")
    every.add_argument("--data", help=DATA_HELP)
    every.add_argument("--seeds", type=int, nargs="+", metavar="N", help="default: the profile's")
    every.add_argument("--output", metavar="DIR", help="run folders go to DIR/runs (default: outputs/<profile>)")
    epochs = "of the longest schedule; the others in proportion"
    every.add_argument("--epochs", type=int, metavar="N", help=epochs)
    every.add_argument("--batch-size", type=int, metavar="N", help=batch)
    every.add_argument("--minutes", type=float, metavar="M", help="stop cleanly before so much time has passed")
    every.add_argument("--pack", metavar="DIR", help="leave what has to be kept in DIR: 8 files below 16 MiB at most")
    every.set_defaults(call=_train_all)

    pack = commands.add_parser("pack", help="leave what is to be kept of a profile's runs in 8 files below 16 MiB")
    pack.add_argument("folder", metavar="DIR")
    unpack = commands.add_parser("unpack", help="put packed runs back into run folders, all checksums verified")
    unpack.add_argument("folders", nargs="+", metavar="DIR", help="one or more folders that pack or train-all left")
    some = "presets (quadratic_full) or seeds (quadratic-seed1) of which only numbers and pictures are wanted"
    unpack.add_argument("--without-weights", nargs="+", default=[], metavar="RUN", help=some)
    for command, call in ((pack, _pack), (unpack, _unpack)):
        command.add_argument("--profile", default="paper", help="default: paper")
        command.add_argument("--output", metavar="DIR", help="run folders are in DIR/runs (default: outputs/<profile>)")
        command.set_defaults(call=call)

    speed = commands.add_parser("speed", help="measure training steps against this machine's rate of matrix products")
    speed.add_argument("presets", nargs="*", default=["quadratic"], metavar="PRESET", help="default: quadratic")
    speed.add_argument("--profile", default="paper", help="model size and recipe (default: paper)")
    speed.add_argument("--batch-size", type=int, metavar="N")
    speed.add_argument("--seconds", type=float, default=2.0, metavar="S", help="for each row (default: 2)")
    speed.add_argument("--json", metavar="FILE", help="write the report there too, row by row")
    speed.set_defaults(call=_speed)

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
    if options.batch_size is not None:
        train = scaled(work.profile.configs(options.preset)[1], options.batch_size) | train
    _, recipe = work.profile.configs(options.preset, options.seed, model, train)  # a wrong value costs no time
    work.data.check_hold_out(recipe.validation)
    try:
        run = work.run(options.preset, options.seed, model_changes=model, train_changes=train, fresh=True)
    except KeyboardInterrupt:
        print("\nStopped. To resume from the last checkpoint, run the same command again.", file=sys.stderr)
        return 130
    if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
        print(f"{run.title}: {run.test_accuracy:.2%} test accuracy after {len(run.metrics)} epochs\n{run.path}")
    return 0


def _train_all(options: argparse.Namespace) -> int:
    import dataclasses

    from attnconv.record import train_all
    from attnconv.workspace import open_workspace

    work = open_workspace(options.profile, data=options.data, output=options.output)
    profile = rescaled(work.profile, options.epochs, options.batch_size)
    seconds = None if options.minutes is None else 60 * options.minutes - (time.monotonic() - STARTED)
    failed, left = train_all(
        dataclasses.replace(work, profile=profile),
        options.presets or profile.runs,
        options.seeds or profile.seeds,
        seconds=seconds,
        folder=Path(options.pack) if options.pack else None,
    )
    if failed:
        print(f"Failed: {'; '.join(failed)}.")
    print(f"To do: {'; '.join(left)}. Call again to go on." if left else "Nothing is left to do.")
    return 75 if left else 1 if failed else 0  # 75: for a while not to be had (sysexits.h), call again


def _pack(options: argparse.Namespace) -> int:
    from attnconv.record import pack, say_left
    from attnconv.workspace import open_workspace

    say_left(pack(open_workspace(options.profile, output=options.output).folder / "runs", Path(options.folder)))
    return 0


def _unpack(options: argparse.Namespace) -> int:
    from attnconv.record import unpack
    from attnconv.workspace import open_workspace

    runs = open_workspace(options.profile, output=options.output).folder / "runs"
    print("\n".join(unpack(map(Path, options.folders), runs, options.without_weights)) + f"\n{runs}")
    return 0


def _speed(options: argparse.Namespace) -> int:
    from attnconv.speed import measure, table
    from attnconv.workspace import open_workspace

    file = Path(options.json) if options.json else None
    profile = open_workspace(options.profile).profile
    how = dict(batch_size=options.batch_size, seconds=options.seconds, file=file)
    print(table(measure(profile, options.presets, **how)))
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
    for preset in options.presets or profile.runs:
        profile.configs(preset, None, model, train)  # a wrong value costs no time
    named = str(Path(options.profile).resolve()) if options.profile.endswith(".yaml") else options.profile
    how = dict(named=named, options=passed_on, processes=options.processes)
    commands = jobs(profile, options.presets, options.seeds, **how)
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
    except (ValueError, RuntimeError) as error:
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
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        print(f"attnconv: {error}. Check that path, its permissions and the disk's space.", file=sys.stderr)
        return 2
