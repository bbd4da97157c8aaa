"""Train on a machine that is at hand for minutes only, and take the run along in small files.

    python benchmarks/pieces.py train quadratic RUNS --profile paper --data cifar10 --minutes 12
    python benchmarks/pieces.py pack RUN PIECES         # the run in files of at most 15 MiB
    python benchmarks/pieces.py unpack PIECES RUN       # the run again, ready to go on

The schedule is that of all epochs from the first on. ``train`` stops when the time is over; the
epoch that was under way is lost. Weights travel in bfloat16, and the optimizer's momentum does not:
a training that goes on from pieces begins with none. The run's file ``interrupted`` says after
which epochs.
"""

import argparse
import signal
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from attnconv.models import build_model
from attnconv.training import train
from attnconv.training.loop import products_of
from attnconv.training.optimizers import build_optimizers
from attnconv.training.runs import Run
from companion.workspace import open_workspace

PIECE = 15 * 2**20  # bytes
SMALL = ("config.json", "metrics.jsonl", "heads.npz", "predictions.npz", "interrupted")


def train_for(preset: str, runs: Path, profile: str, data: str, minutes: float) -> None:
    """Train until the run is finished or the time is over."""
    work = open_workspace(profile, data=data, output=runs)
    model, recipe = work.configs(preset)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    folder = runs / work.name(preset)
    try:
        train(model, recipe, work.data, folder, preset=preset)
    except KeyboardInterrupt as said:
        print(said)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(folder, Run(folder).metrics[-1:])


def weights_of(run: Path) -> dict[str, Tensor]:
    """The weights after the last finished epoch."""
    checkpoint = run / "checkpoint.pt"
    if checkpoint.exists():
        _, weights, _ = torch.load(checkpoint, "cpu", weights_only=True)
        return weights
    return safetensors.torch.load_file(run / "model.safetensors")


def halved(value: Tensor) -> Tensor:
    """Large matrices in bfloat16."""
    large = value.is_floating_point() and value.numel() > 4096
    return value.bfloat16() if large else value


def pack(run: Path, pieces: Path) -> None:
    """The run's small files, and its weights, in files of at most `PIECE`."""
    pieces.mkdir(parents=True, exist_ok=True)
    for name in SMALL:
        if (run / name).exists():
            (pieces / name).write_bytes((run / name).read_bytes())
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, value in weights_of(run).items():
        value = halved(value).contiguous()
        if size + value.nbytes > PIECE:
            parts.append({})
            size = 0
        parts[-1][name] = value
        size += value.nbytes
    for number, part in enumerate(parts, 1):
        name = f"weights-{number}-of-{len(parts)}.safetensors"
        safetensors.torch.save_file(part, pieces / name)
    sizes = [file.stat().st_size for file in pieces.iterdir()]
    print(f"{len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB, in {pieces}")


def unpack(pieces: Path, run: Path) -> None:
    """A run folder whose checkpoint has these weights, and optimizers that begin anew."""
    run.mkdir(parents=True)
    for name in SMALL:
        if (pieces / name).exists():
            (run / name).write_bytes((pieces / name).read_bytes())
    about = Run(run)
    model = build_model(about.model)
    weights = {}
    for file in sorted(pieces.glob("weights-*.safetensors")):
        weights |= safetensors.torch.load_file(file)
    model.load_state_dict(weights)  # copied into float32
    if (run / "predictions.npz").exists():  # the training's last file but for the weights
        safetensors.torch.save_model(model, str(run / "model.safetensors"))
        return
    products = products_of(about.train, torch.device("cpu"))
    optimizers = build_optimizers(model, about.train, products)
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save((about.metrics, model.state_dict(), states), run / "checkpoint.pt")
    with (run / "interrupted").open("a") as file:
        file.write(f"{len(about.metrics)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("preset")
    training.add_argument("runs", type=Path)
    training.add_argument("--profile", default="paper")
    training.add_argument("--data", default="cifar10")
    training.add_argument("--minutes", type=float, default=12)
    for name in ("pack", "unpack"):
        command = commands.add_parser(name)
        command.add_argument("source", type=Path)
        command.add_argument("target", type=Path)
    asked = parser.parse_args()
    if asked.command == "train":
        train_for(asked.preset, asked.runs, asked.profile, asked.data, asked.minutes)
    elif asked.command == "pack":
        pack(asked.source, asked.target)
    else:
        unpack(asked.source, asked.target)


if __name__ == "__main__":
    main()
