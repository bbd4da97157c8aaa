"""How models are trained and kept: the loop, its data, its optimizers, run folders.

What stands below is imported when it is first asked for: to read run folders
(`attnconv.training.runs`) takes no torch.
"""

from typing import Any

__all__ = ["evaluate", "load_run", "lr_factor", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from attnconv.training import loop

    return getattr(loop, name)
