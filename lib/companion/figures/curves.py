"""What layers become by training: how near they are to convolutions."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from companion.figures import style
from companion.figures.style import DOTTED, PALETTE, Look, legend_below, styled

_BETTER, _WORSE = PALETTE[2], PALETTE[3]


@styled
def error_before_and_after(errors: Mapping[str, ArrayLike]) -> Figure:
    """Relative errors of 3 x 3 convolutions in layers' places, before training and after, an arrow
    a layer: ``{model: (2, layers)}``, or of several seeds (seeds, 2, layers), which stand beside
    each other."""
    figure, axes = style.panels(
        list(errors), 1.6, "Layer", "Relative error as a\n3 × 3 convolution"
    )
    dot: Look = {"s": 10, "linewidths": 0.8, "zorder": 3, "clip_on": False}
    arrow: Look = {
        "angles": "xy",
        "scale_units": "xy",
        "scale": 1,
        "units": "inches",
        "width": 0.9 / 72,
        "headlength": 9,
        "headaxislength": 9,
    }
    for ax, values in zip(axes, errors.values(), strict=True):
        layers = np.arange(1, np.shape(values)[-1] + 1)
        before, after = np.moveaxis(np.reshape(values, (-1, 2, len(layers))), 1, 0)
        seeds = len(before)
        aside = 0.2 * (np.arange(seeds) - (seeds - 1) / 2)
        x = layers + aside[:, None]  # (seeds, layers), as before and after
        ax.scatter([], [], facecolors="white", edgecolors="#4d4d4d", label="before training", **dot)
        kinds = {"smaller": (_BETTER, after < before), "larger": (_WORSE, after >= before)}
        for name, (colour, which) in kinds.items():
            places, start, end = x[which], before[which], after[which]
            ax.quiver(places, start, 0 * places, end - start, color=colour, **arrow)
            ax.scatter(places, start, facecolors="white", edgecolors=colour, **dot)
            ax.scatter(places, end, color=colour, label=f"after: {name}", **dot)
        ax.axhline(
            1, color="0.5", linewidth=0.8, linestyle=DOTTED, zorder=1, label="the bias alone"
        )
        ax.set(xticks=layers, xlim=(0.5, len(layers) + 0.5))
        if seeds > 1:
            ax.set_title(f"{ax.get_title()}, {seeds} seeds")
    axes[0].set_ylim(0, max(1.1, axes[0].get_ylim()[1]))  # of all panels
    legend_below(figure)
    return figure
