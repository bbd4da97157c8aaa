"""How models are trained and kept: the loop, its data, optimizers and machine, run folders and
checkpoints.

What stands below is imported when it is first asked for: to read run folders
(`attnconv.training.runs`) takes no torch."""

import importlib
from typing import Any

_OFFERED = {
    **dict.fromkeys(("Trainer", "TrainingError", "lr_factor", "train"), "attnconv.training.loop"),
    "load_run": "attnconv.training.checkpoints",
    "build_optimizers": "attnconv.training.optimizers",
    "evaluate": "attnconv.training.loop",
}
__all__ = list(_OFFERED)


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OFFERED[name]), name)
