"""The files of a run that hold tensors: the state of a run under way, and the weights of a finished one.

Both are read strictly: what is damaged, or made to harm, is refused before any of it is used.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors.torch
import torch
from torch import nn

from attnconv.attention.precision import Computation
from attnconv.models import build_model
from attnconv.training.machine import best_device
from attnconv.training.runs import Run, RunError, reading, writing

if TYPE_CHECKING:
    from attnconv.training import Trainer

KINDS = dict(epoch=int, step=int, seconds=float, bfloat16=bool, onednn=bool, compiled=bool)
"""Types that `torch.load` does not see to."""


def write_state(file: Path, run: Trainer) -> None:
    """Write all that changes while a run is trained, whole or not at all."""
    state = dict(
        model=run.model.state_dict(),
        optimizer=[optimizer.state_dict() for optimizer in run.optimizers],
        epoch=run.epoch,
        step=run.step,
        seconds=run.seconds,
        sums=run.sums,
        metrics=json.dumps(run.metrics),
        geometry={name: torch.from_numpy(np.stack(values)) for name, values in run.geometry.items()},
        bfloat16=run.computation.bfloat16,
        onednn=run.computation.onednn,
        compiled=run.computation.compiled,
        rng=torch.get_rng_state(),
        cuda_rng=torch.cuda.get_rng_state(run.device) if run.device.type == "cuda" else None,
    )
    content = io.BytesIO()
    torch.save(state, content)  # Python writes the file: a full disk is then an OSError
    with writing(file) as temporary:
        temporary.write_bytes(content.getbuffer())


def read_state(file: Path, run: Trainer) -> None:
    """Put a run where it was when the state was written. `RunError` where the file is damaged."""
    with reading(file):
        archive = zipfile.ZipFile(file)
        members = archive.infolist()
        if any(m.compress_type for m in members) or sum(m.file_size for m in members) > file.stat().st_size:
            raise ValueError("it is packed, which torch never does")
        if damaged := archive.testzip():  # torch does not compare checksums
            raise ValueError(f"{damaged} has another checksum")
        state = torch.load(file, map_location="cpu", weights_only=True)
        if wrong := [name for name, kind in KINDS.items() if type(state[name]) is not kind]:
            raise ValueError(f"its {wrong[0]} is {state[wrong[0]]!r}")
        run.model.load_state_dict(state["model"])
        for optimizer, own in zip(run.optimizers, state["optimizer"], strict=True):
            optimizer.load_state_dict(own)
        run.epoch, run.step, run.seconds = state["epoch"], state["step"], state["seconds"]
        run.sums = state["sums"].to(run.device)
        run.metrics = json.loads(state["metrics"])
        if run.epoch != len(run.metrics) or not (0 <= run.step <= run.epoch_steps and run.epoch <= run.config.epochs):
            raise ValueError(f"epoch {run.epoch}, step {run.step} is no place in this run")
        run.geometry = {name: list(values.numpy()) for name, values in state["geometry"].items()}
        run.computation = Computation(state["bfloat16"], state["onednn"], state["compiled"])  # chosen at its start
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] is not None and run.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], run.device)


def packed_weights(model: nn.Module) -> bytes:
    """The content of a model.safetensors."""
    return safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()})


def load_run(run_dir: str | Path, device: torch.device | None = None) -> tuple[nn.Module, Run]:
    """The trained model of a run folder, in evaluation mode, and the run itself."""
    run = Run(Path(run_dir))
    weights = run.path / "model.safetensors"
    if not run.finished:
        why = "its model.safetensors is damaged" if weights.exists() else "it has no model.safetensors"
        raise RunError(f"{run.path} is not finished: {why}, {len(run.metrics)} epochs of {run.train.epochs}. Train it.")
    with reading(weights):
        with torch.device("meta"):  # takes no memory
            state = build_model(run.model).state_dict()
        wanted = {n: (list(v.shape), "F32" if v.is_floating_point() else "I64") for n, v in state.items()}
        with safetensors.safe_open(weights, "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            if wanted != {name: (part.get_shape(), part.get_dtype()) for name, part in parts.items()}:
                raise ValueError("its weights are not those of the model in config.json")
        model = build_model(run.model)
        safetensors.torch.load_model(model, weights)
        if not all(value.isfinite().all() for value in model.state_dict().values()):
            raise ValueError("its weights are not all finite")
    return model.to(device or best_device()).eval(), run
