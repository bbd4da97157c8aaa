"""From run folders to the rows of Table 1 and the curves of figure 2: which runs belong together, what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnconv.config import PRESETS, config_hash, replace
from attnconv.cost import cost
from attnconv.figures import Result
from attnconv.runs import Run

CIFAR10_IMAGES = 50_000
"""Training images of CIFAR-10, all of which the paper uses."""


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, under their model's title.

    Where one preset was run in several configurations or on several data sets, digits of each join the title.
    """
    families: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        recipe = replace(run.train, {"seed": 0, "checkpoint_seconds": 0.0})
        model = replace(run.model, {"heads": 1}) if run.train.start_from else run.model  # pruning leaves each its own
        digits = config_hash(model, recipe, run.config["data"]["key"])
        families.setdefault((run.title, digits), []).append(run)
    titles = [title for title, _ in families]
    return {
        title if titles.count(title) == 1 else f"{title} ({digits})": members
        for (title, digits), members in families.items()
    }


def curves(runs: Sequence[Run]) -> np.ndarray:
    """Test accuracy of runs of the same recipe after every epoch: (seeds, epochs), in [0, 1]."""
    return np.array([[line["test_accuracy"] for line in run.metrics] for run in runs])


def result(title: str, runs: Sequence[Run]) -> Result:
    """A row of Table 1 for runs that differ in their seed only."""
    prices = [cost(run.model) for run in runs]  # not the same where heads were pruned
    why = difference(runs[0])
    data = runs[0].config["data"]
    copy = "JPEG copy of CIFAR-10" if data["name"] == "cifar10" and "JPEG" in data["form"] else ""
    return Result(
        model=title,
        accuracies=[run.test_accuracy for run in runs],
        parameters=round(np.mean([price.parameters for price in prices])),
        flops_paper=round(np.mean([price.paper for price in prices])),
        flops_dense=round(np.mean([price.dense for price in prices])),
        flops_separable=round(np.mean([price.separable for price in prices])),
        seconds=float(np.mean([sum(line["seconds"] for line in run.metrics) for run in runs])),
        comparable=not why,
        why=", ".join(filter(None, (why, copy))),
    )


def difference(run: Run) -> str:
    """Why a run's accuracy cannot be held against the paper's, in a few words; empty if it can."""
    base = PRESETS.get(run.preset)
    if run.config["data"]["name"] != "cifar10":
        return f"on {run.config['data']['name']}"
    if base is None or (run.model.hidden, run.model.layers) != (base.model.hidden, base.model.layers):
        return "smaller model"
    if run.model.resnet_width != base.model.resnet_width:
        return "smaller model"
    free = {"image_size", "image_channels", "classes"} | ({"heads"} if run.train.start_from else set())
    if other := [name for name in vars(base.model) if name not in free and _differ(run.model, base.model, name)]:
        return f"another model ({', '.join(other)})"
    words = []
    if (images := run.config["data"]["train_images"]) < CIFAR10_IMAGES:
        words.append(f"{images} training images")
    if run.train.epochs != base.train.epochs:
        words.append(f"{run.train.epochs} epochs")
    if run.train.batch_size != base.train.batch_size:
        words.append(f"batch {run.train.batch_size}, learning rate {run.train.lr:g}")
    elif run.train.lr != base.train.lr:
        words.append(f"learning rate {run.train.lr:g}")
    recipe = ("optimizer", "position_lr", "momentum", "weight_decay", "warmup", "clip", "augment", "validation")
    words += [f"{name} {getattr(run.train, name)}" for name in recipe if _differ(run.train, base.train, name)]
    return ", ".join(words)


def _differ(one: object, other: object, name: str) -> bool:
    return getattr(one, name) != getattr(other, name)
