"""From run folders to Table 1 and the curves of figure 2: which runs belong together, what they
cost, who is ahead.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attnconv.config import PRESETS
from attnconv.cost import cost
from attnconv.training.runs import Run
from companion.statistics import lead, named

SPEED = {"seed", "precision", "compile"}
"""Settings of a recipe that do not tell one from another."""
PAPER_TABLE = {
    "ResNet18": 93.8,
    "SA quadratic": 93.8,
    "SA learned": 91.8,
    "SA learned + content": 87.1,
}
"""Test accuracy (%) on CIFAR-10 in table 1 of the paper, by model title."""
REPRODUCTION_2021 = {
    "ResNet18": 94.63,
    "SA quadratic": 93.65,
    "SA quadratic, 16 heads": 93.11,
    "SA learned": 90.36,
    "SA learned + content": 86.36,
}
"""The same of Prabhu & Varma, ML Reproducibility Challenge 2020."""
COSTS = {
    "parameters": ("Parameters (M)", 1e6),
    "paper": ("GFLOPs as in the paper", 1e9),
    "dense": ("GFLOPs, dense", 1e9),
    "separable": ("GFLOPs, separable", 1e9),
}
"""Columns of Table 1 and their units, by the field of `attnconv.cost`."""


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, under their model's title, with the digits of the first
    where it has several.
    """
    recipes: Any = defaultdict(dict)  # by seed: a copy of a run's folder is no other
    for run in runs:
        recipes[run.title, _recipe(run)].setdefault(run.train.seed, run)
    titles = [title for title, _ in recipes]
    groups = {}
    for (title, _), of_seed in recipes.items():
        members = [*of_seed.values()]
        groups[title + f" ({members[0].path.name[-8:]})" * (titles.count(title) > 1)] = members
    return groups


def of_all_seeds(run: Run, runs: Sequence[Run]) -> list[Run]:
    """This run, then those of ``runs`` that differ from it in their seed only."""
    alike = [one for one in runs if _recipe(one) == _recipe(run)]
    return [run, *(one for one in alike if one.train.seed != run.train.seed)]


def _recipe(run: Run) -> tuple[str, ...]:
    """What runs of one recipe share: model, training and data."""
    pruned = {"heads"} if run.train.start_from else set()  # each seed has its own left
    model = run.model.model_dump_json(exclude=pruned)
    training = run.train.model_dump_json(exclude={*SPEED, "start_from"})  # it names a seed's run
    start = Run(run.path.with_name(str(run.train.start_from)))
    before = _recipe(start) if start.finished else ()
    data = map(run.config["data"].get, ("name", "train_images", "test_images", "digest"))
    return model, training, *before, *map(str, data)


def of_the_paper(run: Run) -> bool:
    """Whether a preset's run is the paper's own network by the paper's recipe, for however many
    epochs."""
    preset = PRESETS[run.preset]
    free = {"epochs", *SPEED}
    own = run.train.model_dump(exclude=free)
    return run.model == preset.model and own == preset.train.model_dump(exclude=free)


def results_table(groups: Mapping[str, Sequence[Run]]) -> pd.DataFrame:
    """Table 1 with our numbers, the paper's and those of the 2021 reproduction: a row for each of
    `group`'s.

    Accuracies are means over seeds in percent, ± the sample standard deviation from two seeds on.
    """
    rows = []
    for title, runs in groups.items():
        accuracies = pd.Series([100 * run.test_accuracy for run in runs])
        prices = pd.DataFrame([cost(run.model) for run in runs])  # pruned seeds differ
        row = {
            "Model": title,
            "Accuracy (%)": round(accuracies.mean(), 2),
            "±": round(accuracies.std(), 2),
            "Seeds": len(runs),
            "Epochs": runs[0].train.epochs,
            "Paper (%)": PAPER_TABLE.get(runs[0].title, math.nan),
            "Reproduction 2021 (%)": REPRODUCTION_2021.get(runs[0].title, math.nan),
        }
        for field, (column, unit) in COSTS.items():
            row[column] = float(f"{prices[field].mean() / unit:.3g}")
        rows.append(row)
    return pd.DataFrame(rows)


def ahead(runs: Sequence[Run], others: Sequence[Run], of: str = "test_accuracy") -> pd.DataFrame:
    """How far runs are ahead of others of the same seeds, which saw the same images in the same
    order: a row a pair. Runs that answered other test images, or in another order, are no pair.

    Accuracies are in percent, and their difference in points. Its standard error is that of the
    test images alone, paired; of a loss it is NaN."""
    of_seed = {other.train.seed: other for other in others}
    accuracy = of == "test_accuracy"
    unit = 100 if accuracy else 1
    rows = []
    for run in runs:
        other = of_seed.get(run.train.seed)
        if other is not None and np.array_equal(_labels(run), _labels(other)):
            mine, its = unit * run.metrics[-1][of], unit * other.metrics[-1][of]
            error = lead(run.right, other.right)[1] if accuracy else math.nan
            rows.append([named(run), mine, named(other), its, mine - its, error])
    columns = ["network", of.replace("_", " "), "against", "its", "difference", "standard error"]
    return pd.DataFrame(rows, columns=columns)


def _labels(run: Run) -> Any:
    return run.arrays("predictions.npz").get("label")


def error_as(run: Run) -> np.ndarray:
    """Relative error of each layer as a 3 x 3 convolution, before training and after: (2,
    layers).
    """
    return run.swaps["error"][:, :, run.swaps["sizes"].tolist().index(3)]


def swap_table(groups: Mapping[str, Sequence[Run]]) -> pd.DataFrame:
    """What networks lose by convolutions in the place of their layers: a row for each network that
    was tried.

    Columns: ``model`` (a title of `group`), ``seed``; ``layers``, ``alone`` or ``up to``; ``how``:
    ``read``, ``fitted``, or ``shuffled`` for the control; ``layer``, from 1 on; ``kernel``: its
    side; ``accuracy`` of the network, that of the ``whole`` one (%), their ``difference`` in points
    and its paired standard ``error``, over so many ``images``. Runs for which nothing was measured
    (`Workspace.swaps`) are left out."""
    kinds = {
        "alone": ("alone", "read"),
        "fitted": ("up to", "fitted"),
        "shuffled": ("up to", "shuffled"),
        "up_to": ("up to", "read"),
    }
    rows = []
    for title, runs in groups.items():
        for run in runs:
            for kind, (layers, how) in kinds.items() if run.swaps else ():
                about = {"model": title, "seed": run.train.seed, "layers": layers, "how": how}
                rows += [about | row for row in _swapped(run, kind)]
    return pd.DataFrame(rows)


def _swapped(run: Run, kind: str) -> Iterator[dict[str, Any]]:
    sizes = run.swaps.get(f"{kind}_sizes", run.swaps["sizes"])
    whole, right = run.swaps["whole"], run.swaps[kind]
    differences, errors = lead(right, whole)  # (layers, sizes)
    for layer, place in np.ndindex(differences.shape):
        yield {
            "layer": layer + 1,
            "kernel": int(sizes[place]),
            "accuracy": 100 * right[layer, place].mean(),
            "whole": 100 * whole.mean(),
            "images": len(whole),
            "difference": differences[layer, place],
            "error": errors[layer, place],
        }
