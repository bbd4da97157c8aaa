"""From run folders to Table 1 and the curves of figure 2: which runs belong together, what they
cost, who is ahead.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from attnconv.config import ModelConfig, TrainConfig, config_hash, replace
from attnconv.cost import cost
from attnconv.training.runs import Run

_FREE = {
    "kind",
    "image_size",
    "image_channels",
    "classes",
    "seed",
    "checkpoint_seconds",
    "precision",
    "compile",
}
"""Settings that follow from the preset, the data or the machine."""
_ONLY = {
    "quadratic": ("covariance", "centre_std", "centre_start", "spread_start", "position_lr"),
    "learned": ("encoding_lr",),
    "learned_content": ("encoding_lr", "key_size"),
    "resnet": ("resnet_width",),
}
"""Settings that concern only models of these kinds."""
SEED_SPREAD = {0: 0.7, 20: 0.45}
"""Standard deviation of the accuracy over seeds, in points, of runs of so many epochs or more, from
the record's
repeated runs: .73 over 16 recipes of one epoch, .66 over three of four, .88 over two of ten; and of
those of twenty .42 at most (95%, here rounded up), where quadratic spreads by .25 and ResNet18 by
.02 (three seeds each; quadratic's alone allow 1.1)."""
LOSS_SPREAD = 0.016
"""Standard deviation of the last training loss over seeds, as a share of it: of the record's
recipes of four epochs.
"""
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


def group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, under their model's title, with epochs and digits
    where it has several.
    """
    frame = pd.DataFrame(
        {"title": [run.title for run in runs], "recipe": [_recipe(run) for run in runs]}
    )
    groups = {}
    for title, of_model in frame.groupby("title", sort=False):
        for _, alike in of_model.groupby("recipe", sort=False):
            members = [runs[place] for place in alike.index]
            epochs = members[0].train.epochs
            note = f" ({epochs} epoch{'s' * (epochs > 1)}, {members[0].config['hash']})"
            groups[f"{title}{note if len(alike) < len(of_model) else ''}"] = members
    return groups


def of_all_seeds(run: Run, runs: Sequence[Run]) -> list[Run]:
    """This run, then those of ``runs`` that differ from it in their seed only."""
    return [
        run,
        *(one for one in runs if _recipe(one) == _recipe(run) and one.train.seed != run.train.seed),
    ]


def _recipe(run: Run) -> str:
    recipe = replace(run.train, {"seed": 0, "start_from": None, "checkpoint_seconds": 0.0})
    model = (
        replace(run.model, {"heads": 1}) if run.train.start_from else run.model
    )  # pruning leaves each its own
    return config_hash(model, recipe, run.config["data"]["key"])


def curves(runs: Sequence[Run]) -> np.ndarray:
    """Test accuracy of runs of the same recipe after every epoch: (seeds, epochs), in [0, 1]."""
    return np.array([[line["test_accuracy"] for line in run.metrics] for run in runs])


def results_table(groups: Mapping[str, Sequence[Run]]) -> pd.DataFrame:
    """Table 1 with our numbers, the paper's and those of the 2021 reproduction: a row for each of
    `group`'s.

    Accuracies are means over seeds in percent, ± the sample standard deviation from two seeds on.
    Training takes the median epoch's time for each epoch, since a machine may have been busy, or
    asleep, in some."""
    table = pd.DataFrame([_row(title, runs) for title, runs in groups.items()]).round(
        {"Accuracy (%)": 2, "±": 2}
    )
    costs = table.columns[-5:]
    return table.assign(
        **table[costs].map(lambda number: float(f"{number:.3g}"))
    )  # three significant digits


def _row(title: str, runs: Sequence[Run]) -> dict[str, Any]:
    accuracies = [100 * run.test_accuracy for run in runs]
    prices = [cost(run.model) for run in runs]  # not the same where heads were pruned
    seconds = [
        np.median([line["seconds"] for line in run.metrics]) * len(run.metrics) for run in runs
    ]
    return {
        "Model": title,
        "Accuracy (%)": np.mean(accuracies),
        "±": np.std(accuracies, ddof=1) if len(runs) > 1 else math.nan,
        "Seeds": len(runs),
        "Epochs": runs[0].train.epochs,
        "Paper (%)": PAPER_TABLE.get(runs[0].title, math.nan),
        "Reproduction 2021 (%)": REPRODUCTION_2021.get(runs[0].title, math.nan),
        "Parameters (M)": np.mean([price.parameters for price in prices]) / 1e6,
        "GFLOPs as in the paper": np.mean([price.paper for price in prices]) / 1e9,
        "GFLOPs, dense": np.mean([price.dense for price in prices]) / 1e9,
        "GFLOPs, separable": np.mean([price.separable for price in prices]) / 1e9,
        "Training (min)": np.mean(seconds) / 60,
    }


def settings(
    config: ModelConfig | TrainConfig, full_size: ModelConfig | TrainConfig, kind: str
) -> pd.DataFrame:
    """A model's or a recipe's settings beside those at full size: a row for each that concerns such
    a model.

    ``kind`` is the model's. Columns are ``ours`` and ``at full size``; None is a value that is not
    set or not used."""
    both = {"ours": dict(config), "at full size": dict(full_size)}
    for values in both.values():
        unused = {name for names in _ONLY.values() for name in names}.difference(
            _ONLY[kind]
        ) | _FREE
        unused |= ModelConfig.model_fields.keys() - {"resnet_width"} if kind == "resnet" else set()
        unused |= {"adamw_lr"} if values.get("optimizer") != "muon" else set()
        unused |= {"beta2"} if values.get("optimizer") == "sgd" else set()
        unused |= {"prune"} if not values.get("start_from") else set()
        values.update(dict.fromkeys(unused & values.keys()))  # None
    rows = {name: [values[name] for values in both.values()] for name in dict(config)}
    return pd.DataFrame.from_dict(
        {name: pair for name, pair in rows.items() if any(pair)}, "index", object, [*both]
    )


def ahead(
    better: Sequence[Run], worse: Sequence[Run], margin: float = 0.0, assumed: float | None = None
) -> tuple[bool | None, str]:
    """Whether runs are more accurate than others, by the mean over their seeds, and the numbers in
    words.

    ``margin``: points that they may lie behind. None where chance may be the reason (5%, Student's
    t). The standard
    error of the difference has two parts: of the images, one by one where all runs kept their
    answers to the same test images, else of two independent accuracies; and of the seeds. A side
    with one seed is taken to spread as the other does, and by `SEED_SPREAD` at least, but for runs
    that all go on from the same one, which share what chance gave it; or by ``assumed``, in points,
    if that is given."""
    both = [*better, *worse]
    a, b = (100 * float(np.mean([run.test_accuracy for run in runs])) for runs in (better, worse))
    images = min(run.config["data"]["test_images"] for run in both)
    if len({run.config["data"]["key"] for run in both}) == 1 and all(
        run.right is not None for run in both
    ):
        right, other = (
            np.mean([np.asarray(run.right) for run in runs], axis=0) for runs in (better, worse)
        )
        error, how = 100 * (right - other).std() / math.sqrt(images), "images, paired"
    else:
        error, how = math.sqrt((a * (100 - a) + b * (100 - b)) / images), "images"
    usual = [
        spread
        for epochs, spread in SEED_SPREAD.items()
        if epochs <= min(run.train.epochs for run in both)
    ][-1]
    least = (
        0.0
        if len({run.config.get("start") or run.config["hash"] for run in both}) == 1
        else usual**2
    )
    seeds = [[100 * run.test_accuracy for run in runs] for runs in (better, worse)]
    several = [
        (float(np.var(side, ddof=1)), len(side) - 1) if len(side) > 1 else None for side in seeds
    ]
    # Of a side with one seed: variance, degrees of freedom.
    lone = (
        max([*filter(None, several), (least, math.inf)])
        if assumed is None
        else (assumed**2, math.inf)
    )
    spreads = [own or lone for own in several]
    each = [(spread / len(side), free) for side, (spread, free) in zip(seeds, spreads, strict=True)]
    of_seeds, doubt = (
        sum(spread for spread, _ in each),
        sum(spread**2 / free for spread, free in each),
    )
    if None in several and lone in several:  # one estimate serves both sides, and so does its error
        doubt = of_seeds**2 / lone[1]
    total = error**2 + of_seeds
    freedom = total**2 / doubt if doubt else math.inf  # Welch and Satterthwaite
    lead = a - b + margin
    by_chance = surely(freedom) * math.sqrt(total)
    holds = None if abs(lead) <= by_chance else lead > 0
    parts = f"{how} {error:.1f}" + (f"; seeds {math.sqrt(of_seeds):.1f}" if of_seeds else "")
    words = f"{a:.1f}% against {b:.1f}%, standard error of the difference {math.sqrt(total):.1f} ({parts}), "
    return holds, f"{words}by chance up to {by_chance:.1f}"


def rests_on(
    holds: bool | None, better: Sequence[Run], worse: Sequence[Run], margin: float = 0.0
) -> str:
    """In words, the spread over seeds, of a model trained once, that would undo a verdict of
    `ahead`; none if far.
    """
    if holds is None or min(len(better), len(worse)) > 1:
        return ""
    limit = (
        bisect_left(
            range(1000), True, key=lambda s: ahead(better, worse, margin, s / 100)[0] is None
        )
        / 100
    )
    return f"if seeds spread by less than {limit:.2f} points" * (limit < 2 * SEED_SPREAD[20])


def loss_noise(content: Sequence[Run], learned: Sequence[Run]) -> float:
    """How large chance may make the difference of two models' last training losses (5%): by their
    seeds or, where one model has a single seed, by `LOSS_SPREAD`."""
    ends = [[run.metrics[-1]["train_loss"] for run in runs] for runs in (content, learned)]
    if (seeds := min(map(len, ends))) == 1:
        return 2 * math.sqrt(2) * LOSS_SPREAD * float(np.mean(ends[1]))
    return surely(seeds - 1) * math.sqrt(sum(np.var(end, ddof=1) / len(end) for end in ends))


def surely(freedom: float) -> float:
    """How many standard errors a difference must exceed to be none of chance (5%, both sides):
    Student's t.
    """
    from scipy.stats import t  # takes a second

    return float(t.ppf(0.975, freedom))


def before_pruning(run: Run, runs: Sequence[Run]) -> tuple[Run | None, dict[str, np.ndarray]]:
    """The run whose heads this one was pruned from, if it is among ``runs``, and this one's heads
    after training.

    They stand at the places that they had there, with NaN at heads that were dropped.
    """
    start = next(
        (
            one
            for one in runs
            if run.config.get("kept") and one.config["hash"] == run.config["start"]
        ),
        None,
    )
    heads = {name: values[-1] for name, values in run.heads.items()}
    if start is not None:
        for name, values in heads.items():
            heads[name] = np.full_like(start.heads[name][-1], np.nan)
            for placed, kept, own in zip(heads[name], run.config["kept"], values, strict=True):
                placed[kept] = own[: len(kept)]
    return start, heads


def error_as(run: Run, side: int = 3) -> np.ndarray:
    """Relative error of each layer as a convolution of that side, before training and after: (2,
    layers).
    """
    return run.swaps["error"][:, :, run.swaps["sizes"].tolist().index(side)]


def swap_table(groups: Mapping[str, Sequence[Run]]) -> pd.DataFrame:
    """What networks lose by convolutions in the place of their layers: a row for each network that
    was tried.

    Columns: ``model`` (a title of `group`), ``seed``; ``layers``, ``alone`` or ``up to``, and
    ``layer``, from 1 on;
    ``kernel``: its side; ``how``: ``read``, ``fitted``, or ``shuffled`` for the control;
    ``accuracy`` of the network, that of the ``whole`` one (%), their ``difference`` in points and
    its paired standard ``error``, over so many ``images``. Runs for which nothing was measured
    (`Workspace.swaps`) are left out."""
    kinds = {"alone": ("alone", "read"), "fitted": ("up to", "fitted")}
    kinds |= {"shuffled": ("up to", "shuffled"), "up_to": ("up to", "read")}
    rows = []
    for title, run in ((title, run) for title, runs in groups.items() for run in runs if run.swaps):
        found, whole = run.swaps, run.swaps["whole"]
        for kind, (layers, how) in kinds.items():
            sizes = found["sizes" if how == "read" else f"{how}_sizes"]
            for layer, s in np.ndindex(found[kind].shape[:-1]):
                right = found[kind][layer, s]
                lost = 100.0 * (right.astype(float) - whole)
                row = {"model": title, "seed": run.train.seed, "layers": layers, "layer": layer + 1}
                row |= {"kernel": int(sizes[s]), "how": how}
                row |= {
                    "accuracy": 100 * right.mean(),
                    "whole": 100 * whole.mean(),
                    "images": len(whole),
                }
                rows.append(
                    row | {"difference": lost.mean(), "error": lost.std() / math.sqrt(len(lost))}
                )
    return pd.DataFrame(rows)


def size_as_convolution(table: pd.DataFrame, points: float = 1.0) -> pd.DataFrame:
    """How large a convolution each layer is: the smallest kernel that takes its place, alone, for
    less than a point.

    ``table`` as of `swap_table`. A row a model, a column a layer: the kernel's side, of several
    seeds the largest; infinite where the largest that was tried may cost more than so many
    ``points``, with two standard errors."""
    alone = table[(table["layers"] == "alone") & (table["how"] == "read")]
    enough = alone.assign(
        kernel=alone["kernel"].where(alone["difference"] - 2 * alone["error"] > -points, math.inf)
    )
    smallest = enough.groupby(["model", "seed", "layer"], sort=False)["kernel"].min()
    return smallest.groupby(["model", "layer"], sort=False).max().unstack()
