"""Sliders over a picture in a live notebook, and the picture alone in an executed one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from IPython.display import display
from ipywidgets import interactive

PAGES = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")
"""What JupyterLab, VS Code and Colab tell a kernel that has a page in front of it; papermill and nbconvert do not."""


def is_live(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody can turn a slider: a page is in front of the kernel, and ATTNCONV_STATIC is not 1."""
    return environment.get("ATTNCONV_STATIC") != "1" and any(name in environment for name in PAGES)


def turn(draw: Callable[..., Any], **knobs: tuple) -> None:
    """Show what ``draw`` returns, with a slider for each of its arguments; their defaults are where sliders start.

    ``knobs``: (smallest, largest, step) of each argument. In a notebook that is not live: the picture of the defaults.
    """
    if not is_live():
        display(draw())
        return
    sliders = interactive(draw, {"auto_display": True}, **knobs)
    for slider in sliders.children[:-1]:  # the last one is the picture
        slider.continuous_update = False  # draw once, where the slider is let go
    display(sliders)
