"""The files of a run that hold tensors: the state of a run under way, and the weights of a finished
one.

Both are read as tensors only, and neither where a bit of it has changed.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from attnconv.models import Network, build_model
from attnconv.training.machine import best_device
from attnconv.training.runs import Run, RunError, reading, write


def write_state(file: Path, state: dict[str, Any]) -> None:
    """Write the state of a run under way (tensors, numbers and text), whole or not at all,
    behind its sha256.
    """
    content = io.BytesIO()
    torch.save(state, content)  # Python writes the file: a full disk is then an OSError
    write(file, hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())


def read_state(file: Path) -> dict[str, Any]:
    """What `write_state` wrote, on the CPU. `RunError` where the file is damaged."""
    with reading(file):
        content = io.BytesIO(file.read_bytes())
        digest, state = content.read(hashlib.sha256().digest_size), content.read()
        if hashlib.sha256(state).digest() != digest:
            raise ValueError("it is not what was written")
        return torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)


def load_run(run_dir: str | Path, device: torch.device | None = None) -> tuple[Network, Run]:
    """The trained model of a run folder, in evaluation mode, and the run itself. Raises `RunError`
    where the run is not finished, or its weights are damaged, left out or another model's."""
    run = Run(Path(run_dir))
    weights = run.path / "model.safetensors"
    if run.without_weights:
        raise RunError(
            f"{run.path} is kept without its weights; train it again, in another folder, to have them."
        )
    if not run.finished:
        why = (
            "its model.safetensors is damaged"
            if weights.exists()
            else "it has no model.safetensors"
        )
        raise RunError(
            f"{run.path} is not finished: {why}, {len(run.metrics)} epochs of {run.train.epochs}. Train it."
        )
    model = build_model(run.model)
    with reading(weights):
        safetensors.torch.load_model(model, weights)
    return model.to(device or best_device()).eval(), run
