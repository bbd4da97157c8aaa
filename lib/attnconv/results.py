"""From run folders to Table 1 and the curves of figure 2: which runs belong together, what they cost, who is ahead."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from attnconv.config import PRESETS, Profile, config_hash, for_images, replace
from attnconv.cost import cost
from attnconv.heads import in_former_places
from attnconv.runs import JPEG_COPY, Run

CIFAR10_IMAGES = 50_000
"""Training images of CIFAR-10, all of which the paper uses."""

PAPER_TABLE: dict[str, dict[str, float]] = {
    "ResNet18": {"accuracy": 93.8, "parameters": 11.2e6, "flops": 1.1e9},
    "SA quadratic": {"accuracy": 93.8, "parameters": 12.1e6, "flops": 6.2e9},
    "SA learned": {"accuracy": 91.8, "parameters": 12.3e6, "flops": 6.2e9},
    "SA learned + content": {"accuracy": 87.1, "parameters": 29.5e6, "flops": 15e9},
}
"""Table 1 of the paper, by model title: test accuracy (%) on CIFAR-10, parameters, FLOPs as it counts them."""

REPRODUCTION_2021: dict[str, float] = {
    "ResNet18": 94.63,
    "SA quadratic": 93.65,
    "SA quadratic, 16 heads": 93.11,
    "SA learned": 90.36,
    "SA learned, 16 heads": 91.15,
    "SA learned + content": 86.36,
    "SA learned + content, 16 heads": 85.56,
    "SA learned + content, shared attention": 91.00,
}
"""Test accuracy (%) of Prabhu & Varma, ML Reproducibility Challenge 2020, by model title."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One model's row of `results_table`."""

    model: str
    """Its title."""
    accuracies: Sequence[float]
    """Test accuracy of each seed, in [0, 1]."""
    parameters: int
    flops_paper: float
    """FLOPs of one image's forward pass as the paper counts: linear maps and convolutions only."""
    flops_dense: float
    """All matrix products, attention averaged densely."""
    flops_separable: float
    """The same with separable encodings mixed along rows, then columns."""
    seconds: float
    """Training time of a seed, mean."""
    published: str = ""
    """The title by which the published numbers are found, if another."""
    comparable: bool = True
    """Whether data, model and recipe are the paper's, so that its numbers may judge ours."""
    why: str = ""
    """Why not, in a few words."""


def group(runs: Sequence[Run], profile: Profile | None = None) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, under their model's title.

    Where one preset was run in several configurations or on several data sets, that of ``profile`` keeps the title. The
    others get a note in brackets: how they differ or, if that takes too many words, the digits of a run's folder.
    """
    families: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        families.setdefault((run.title, _recipe(run)), []).append(run)
    by_title: dict[str, list[list[Run]]] = {}
    for (title, _), members in families.items():
        by_title.setdefault(title, []).append(members)
    groups = {}
    for title, alike in by_title.items():
        own = [members for members in alike if profile and _is_of(members[0], profile)]
        own = own[0] if len(own) == 1 else None
        labels = [_apart(members[0], own[0]) if own else "" for members in alike]
        for members, label in zip(alike, labels, strict=True):
            plain = members is own or len(alike) == 1
            word = label if label and labels.count(label) == 1 else members[0].config["hash"]
            groups[title if plain else f"{title} ({word})"] = members
    return groups


def _recipe(run: Run) -> str:
    recipe = replace(run.train, {"seed": 0, "checkpoint_seconds": 0.0})
    model = replace(run.model, {"heads": 1}) if run.train.start_from else run.model  # pruning leaves each its own
    return config_hash(model, recipe, run.config["data"]["key"])


def _is_of(run: Run, profile: Profile) -> bool:
    if run.preset not in PRESETS:
        return False
    model, recipe = profile.configs(run.preset, run.train.seed)
    model = for_images(model, run.model.image_size, run.model.image_channels, run.model.classes)
    return not _differing(run.model, model, run) and not _differing(run.train, recipe, run)


def _differing(one: Any, other: Any, run: Run) -> list[str]:
    free = {"seed", "checkpoint_seconds"} | ({"heads"} if run.train.start_from else set())
    return [name for name in vars(one) if name not in free and getattr(one, name) != getattr(other, name)]


def _epochs(run: Run) -> str:
    return f"{run.train.epochs} epoch{'s' * (run.train.epochs != 1)}"


def _apart(run: Run, own: Run) -> str:
    """How a run differs from another of its preset, in at most two items; empty if it takes more."""
    words = [f"{name} {getattr(run.model, name)}" for name in _differing(run.model, own.model, run)]
    for name in _differing(run.train, own.train, run):
        words.append(_epochs(run) if name == "epochs" else f"{name} {getattr(run.train, name)}")
    if run.config["data"]["key"] != own.config["data"]["key"]:
        words.append(run.config["data"]["name"])
    return ", ".join(words) if len(words) <= 2 else ""


def curves(runs: Sequence[Run]) -> np.ndarray:
    """Test accuracy of runs of the same recipe after every epoch: (seeds, epochs), in [0, 1]."""
    return np.array([[line["test_accuracy"] for line in run.metrics] for run in runs])


def result(title: str, runs: Sequence[Run]) -> Result:
    """A row of Table 1 for runs that differ in their seed only."""
    prices = [cost(run.model) for run in runs]  # not the same where heads were pruned
    why = difference(runs[0])
    copy = JPEG_COPY if runs[0].data_title == JPEG_COPY else ""
    return Result(
        model=title,
        accuracies=[run.test_accuracy for run in runs],
        parameters=round(np.mean([price.parameters for price in prices])),
        flops_paper=round(np.mean([price.paper for price in prices])),
        flops_dense=round(np.mean([price.dense for price in prices])),
        flops_separable=round(np.mean([price.separable for price in prices])),
        seconds=float(np.mean([sum(line["seconds"] for line in run.metrics) for run in runs])),
        published=runs[0].title,
        comparable=not why,
        why=", ".join(filter(None, (why, copy))),
    )


def results_table(rows: Sequence[Result], tolerance: float = 1.0) -> pd.DataFrame:
    """Table 1 with our numbers, the paper's and those of the 2021 reproduction, a row a model.

    Accuracies are means over seeds in percent, +- the sample standard deviation from two seeds on. The verdict says
    whether our mean lies within ``tolerance`` points of the paper's, where the two may be compared.
    """
    columns = {
        "Model": [row.model for row in rows],
        "Accuracy (%)": [_mean(row.accuracies) for row in rows],
        "±": [np.std(row.accuracies, ddof=1) * 100 if len(row.accuracies) > 1 else math.nan for row in rows],
        "Seeds": [len(row.accuracies) for row in rows],
        "Paper (%)": [_published(row) for row in rows],
        "Reproduction 2021 (%)": [REPRODUCTION_2021.get(row.published or row.model, math.nan) for row in rows],
        "Against the paper": [_verdict(row, tolerance) for row in rows],
        "Parameters (M)": [_short(row.parameters / 1e6) for row in rows],
        "GFLOPs as in the paper": [_short(row.flops_paper / 1e9) for row in rows],
        "GFLOPs, dense": [_short(row.flops_dense / 1e9) for row in rows],
        "GFLOPs, separable": [_short(row.flops_separable / 1e9) for row in rows],
        "Training (min)": [_short(row.seconds / 60) for row in rows],
    }
    return pd.DataFrame(columns).round({"Accuracy (%)": 2, "±": 2})


def _short(number: float) -> float:
    """To three significant digits."""
    return float(f"{number:.3g}")


def _mean(accuracies: Sequence[float]) -> float:
    return 100 * float(np.mean(accuracies)) if len(accuracies) else math.nan


def _published(row: Result) -> float:
    return PAPER_TABLE.get(row.published or row.model, {}).get("accuracy", math.nan)


def _verdict(row: Result, tolerance: float) -> str:
    if not row.comparable:
        return f"not comparable: {row.why}" if row.why else "not comparable"
    difference = round(_mean(row.accuracies) - _published(row), 2) + 0.0
    if math.isnan(difference):
        return "no number in the paper" if math.isnan(_published(row)) else "not run"
    word = "agrees" if abs(difference) <= tolerance else "differs"
    note = f"; {row.why}" if row.why else ""
    return f"{word}: {difference:+.2f} points (tolerance {tolerance:g})".replace("-", "−") + note


def difference(run: Run) -> str:
    """Why a run's accuracy cannot be held against the paper's, in a few words; empty if it can."""
    if run.config["data"]["name"] != "cifar10":
        return f"on {run.config['data']['name']}"
    base = PRESETS.get(run.preset)
    if base is None:
        return "not a model of the paper"
    of_data = {"image_size", "image_channels", "classes"}
    other = [name for name in _differing(run.model, base.model, run) if name not in of_data]
    words = [f"{name} {getattr(run.model, name)}" for name in other]
    if (images := run.config["data"]["train_images"]) < CIFAR10_IMAGES:
        words.append(f"{images} training images")
    if run.train.epochs != base.train.epochs:
        words.append(_epochs(run))
    if run.train.batch_size != base.train.batch_size or run.train.lr != base.train.lr:
        words.append(f"batch {run.train.batch_size}, learning rate {run.train.lr:g}")
    recipe = ("optimizer", "position_lr", "momentum", "weight_decay", "warmup", "clip", "augment")
    recipe += ("label_smoothing", "validation")
    other = _differing(run.train, base.train, run)
    return ", ".join(words + [f"{name} {getattr(run.train, name)}" for name in recipe if name in other])


def ahead(better: Sequence[Run], worse: Sequence[Run], margin: float = 0.0) -> tuple[bool | None, str]:
    """Whether runs are more accurate than others, by the mean over their seeds, and the numbers in words.

    ``margin``: points that they may lie behind. None within two standard errors, those of the difference: image by
    image where all runs kept their answers to the same test images, else of two independent accuracies. What seeds add
    to it shows with several of them only.
    """
    a, b = (100 * float(np.mean([run.test_accuracy for run in runs])) for runs in (better, worse))
    images = min(run.config["data"]["test_images"] for run in (*better, *worse))
    answers = [run.right for run in (*better, *worse)]
    data = {run.config["data"]["key"] for run in (*better, *worse)}
    if len(data) == 1 and not any(right is None for right in answers):
        difference = np.mean(answers[: len(better)], axis=0) - np.mean(answers[len(better) :], axis=0)
        error, how = 100 * difference.std() / math.sqrt(images), "paired standard error of the difference"
    else:
        error, how = math.sqrt((a * (100 - a) + b * (100 - b)) / images), "standard error of the difference"
    seeds = [
        np.var([100 * run.test_accuracy for run in runs], ddof=1) / len(runs)
        for runs in (better, worse)
        if len(runs) > 1
    ]
    error = max(error, math.sqrt(sum(seeds)))
    lead = a - b + margin
    holds = None if abs(lead) <= 2 * error else lead > 0
    return holds, f"{a:.1f}% against {b:.1f}%, {how} {error:.1f}"


def pruned_from(run: Run, runs: Sequence[Run]) -> tuple[Run | None, dict[str, np.ndarray]]:
    """The run among ``runs`` whose heads this one was pruned from, and its head geometry at their former places.

    None, and the geometry as it is, where no run has the centres that this one started with.
    """
    start = run.heads["parameter_centre"][0]
    for whole in runs:
        if whole is run or whole.preset != run.train.start_from:
            continue
        before = whole.heads["parameter_centre"][-1]
        with contextlib.suppress(ValueError):
            return whole, {name: in_former_places(values[-1], start, before) for name, values in run.heads.items()}
    return None, {name: values[-1] for name, values in run.heads.items()}
