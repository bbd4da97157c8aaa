"""Verdicts: each claim of the paper is a function here, from finished runs (or numbers) to a card.

claims.yaml has the sentences, where the paper says them, what is tested and why that is fair. A notebook writes

    claims = work.claims("04-claims")
    claims.grid(run)                      # shows the card, and records it in tables/04-claims.json

Every function returns the verdict and the evidence, a line for each number that decided. The verdict is None where the
noise is too large to tell, or something is missing. No torch is imported here.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from attnconv.analysis import results
from attnconv.config import read_yaml
from attnconv.training.runs import Run, read_json, writing

VERDICTS = {True: "holds", False: "does not hold", None: "is undecided"}
POINTS = 1.0
"""Points of accuracy that a convolution in the place of a layer may cost."""
SMALL = 5
"""Side of the largest kernel that is called small: heads on pixels around the query."""
LEVEL = 0.05
"""Of significance: how often chance may give at least what was found."""
DRAWS = 1000
NOT_TRAINED = "one of the two models is not among the runs"
NOT_MEASURED = "what convolutions in the layers' places cost was not measured for this run"

Verdict = tuple[bool | None, list[str]]


@dataclass(frozen=True)
class Sentence:
    """What is claimed and how it is tested: an entry of claims.yaml, which explains the fields."""

    text: str
    figure: str
    test: str
    section: str = ""
    paper: str = "holds"
    reproduction: str = "—"
    question: str = ""

    @property
    def notebook(self) -> str:
        """Number of the notebook that checks it."""
        return self.figure[:2]

    @property
    def source(self) -> str:
        if not self.section:
            return "Ours, not the paper's"
        return f"The paper, {'section ' * self.section[0].isdigit()}{self.section}"


SENTENCES = {
    key: Sentence(**about) for key, about in read_yaml(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items()
}
PAPER_CLAIMS = {key: sentence for key, sentence in SENTENCES.items() if sentence.section}


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))  # "no" must not become undecided
class Claim:
    """A claim that was checked. It shows itself as a card, on GitHub too."""

    key: str
    """Of `SENTENCES`."""
    about: str
    """The runs that were looked at, in words; empty where no run was."""
    holds: bool | None
    """None: it cannot be told."""
    evidence: list[str]

    def __post_init__(self) -> None:
        if self.key not in SENTENCES:
            raise ValueError(f"{self.key!r} is no claim of claims.yaml: {', '.join(SENTENCES)} are.")

    @property
    def sentence(self) -> Sentence:
        return SENTENCES[self.key]

    @property
    def verdict(self) -> str:
        return VERDICTS[self.holds]

    def _repr_markdown_(self) -> str:
        lines = [f"**{self.verdict.capitalize()} here** · {self.sentence.text}"]
        lines += [f"*{self.sentence.source}{f'; here: {self.about}' if self.about else ''}.*"]
        lines += ["", f"Test: {self.sentence.test}", "", *(f"- {line}" for line in self.evidence)]
        return "\n".join(f"> {line}".rstrip() for line in lines)

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, closed: bool = False) -> str:
        """The card; ``closed``, so that test and evidence show at a click."""
        sentence, escape = self.sentence, partial(html.escape, quote=False)
        listed = "".join(f"<li>{escape(line)}</li>" for line in self.evidence)
        where = f"{sentence.source}; here: {self.about}." if self.about else f"{sentence.source}."
        return (
            f'<blockquote class="claim {self.verdict.replace(" ", "-")}">'
            f"<b>{self.verdict.capitalize()} here</b> · {escape(sentence.text)}<br><i>{escape(where)}</i>"
            f"<details{'' if closed else ' open'}><summary>Test and evidence</summary>"
            f"<p>{escape(sentence.test)}</p><ul>{listed}</ul></details></blockquote>"
        )


class Claims:
    """The claims of one notebook: ``claims.grid(run)`` checks one, shows it and keeps it in the file."""

    def __init__(self, file: Path):
        self.file = file
        self.made: list[Claim] = []

    def __getattr__(self, name: str) -> Callable[..., Claim]:
        key = name.replace("_", "-")
        if key not in SENTENCES:
            raise AttributeError(f"There is no claim {name!r}: {', '.join(SENTENCES)} are.")

        def check(*given: Any, about: str = "", **options: Any) -> Claim:
            flat = [one for value in given for one in (value if isinstance(value, (list, tuple)) else [value])]
            runs = dict.fromkeys(run.label for run in flat if isinstance(run, Run))
            holds, evidence = globals()[name](*given, **options)
            return self.record(key, holds, evidence, about or ", ".join(runs))

        return check

    def record(self, key: str, holds: bool | None, evidence: list[str], about: str = "") -> Claim:
        """Keep a claim in the file, in place of what was said of it about the same runs, and return it to be shown."""
        evidence = [re.sub(r"(?<!\w)-(?=\d)", "−", line) for line in evidence]
        claim = Claim(key, about, None if holds is None else bool(holds), evidence)  # NumPy's truth is not JSON
        self.made = [one for one in self.made if (one.key, one.about) != (key, about)] + [claim]
        with writing(self.file) as temporary:
            temporary.write_text(json.dumps([asdict(one) for one in self.made], indent=1) + "\n")
        return claim


def read_claims(file: Path) -> list[Claim]:
    """What a notebook recorded; nothing of a file that is missing or damaged, nor of an entry of another form."""
    found = []
    for value in read_json(file, list):
        with contextlib.suppress(ValidationError, TypeError, ValueError):
            found.append(Claim(**value))
    return found


def recorded(folder: Path) -> dict[str, list[Claim]]:
    """What was recorded in an output folder: for each of `SENTENCES` the claims that were checked."""
    found: dict[str, list[Claim]] = {key: [] for key in SENTENCES}
    for file in sorted((folder / "tables").glob("*-claims*.json")):
        for claim in read_claims(file):
            found[claim.key].append(claim)
    return found


def board(folders: Mapping[str, Path]) -> pd.DataFrame:
    """Every claim of the paper: where it stands, what the paper and 2021 report, and the verdict in each folder."""
    by_folder = {name: recorded(folder) for name, folder in folders.items()}
    rows = []
    for key, sentence in PAPER_CLAIMS.items():
        row = {"The paper says": sentence.text, "Where": sentence.section, "Notebook": sentence.notebook}
        row |= {"Paper": sentence.paper, "2021": sentence.reproduction}
        for name, found in by_folder.items():
            row[name] = ", ".join(dict.fromkeys(claim.verdict for claim in found[key])) or "—"
        rows.append(row)
    return pd.DataFrame(rows)


# --- the theorem ---------------------------------------------------------------------------------------------------


def theorem(difference: float) -> Verdict:
    """``difference``: the largest between the layer's output and the convolution's, of outputs of size 1."""
    return difference < 1e-5, [f"largest difference {difference:.0e}"]


def borders(inside: float, border: float, padded: float) -> Verdict:
    """Largest differences at inner pixels, at border pixels, and everywhere once the input is padded."""
    lines = [
        f"without padding: {inside:.1g} inside, {border:.1g} at the border",
        f"with padding: {padded:.1g} everywhere",
    ]
    return inside < 1e-5 < border and padded < 1e-5, lines


def three_numbers(alphas: ArrayLike, missed: ArrayLike, formula: ArrayLike) -> Verdict:
    """Attention outside the pixel at each alpha, measured and by the formula 1 - 1 / S(alpha)^2."""
    alphas, missed, formula = (np.asarray(values, dtype=float) for values in (alphas, missed, formula))
    off = np.abs(missed - formula).max()
    exact = alphas[missed == 0]
    lines = [f"largest difference from the formula {off:.0e}"]
    lines += [f"exactly zero from alpha = {exact.min():g} on"] if len(exact) else ["nowhere exactly zero"]
    return off < 1e-6 and len(exact) > 0 and bool((missed[alphas >= exact.min()] == 0).all()), lines


def flops(counted: float) -> Verdict:
    """``counted``: of the paper's quadratic model, linear layers only."""
    return round(counted / 1e9, 1) == 6.2, [f"{counted / 1e9:.2f} billion"]


# --- quadratic heads -----------------------------------------------------------------------------------------------


def grid(run: Run) -> Verdict:
    """Is there a layer that training made a small convolution?"""
    if not run.swaps:
        return None, [NOT_MEASURED]
    fine, open_, lines = _small_convolutions(run)
    largest = np.flatnonzero(run.swaps["sizes"] <= SMALL)[-1]
    before, after = run.swaps["error"][:, :, largest]
    name = _named(run.swaps["sizes"][largest])
    lines += [f"relative error as {name}: {_by_layer(after, '.2f')}; before training {_listed(before, '.2f')}"]
    moved = np.linalg.norm(run.heads["parameter_centre"][-1] - run.heads["parameter_centre"][0], axis=-1)
    lines += [f"mean way of the centres, in pixels: {_by_layer(np.nanmean(moved, axis=1), '.1f')}"]
    became = fine & (after < before)
    lines += [
        f"layers that became small convolutions: {_numbers(became)}; that began as ones: {_numbers(fine & ~became)}"
    ]
    return (True if became.any() else None if (fine | open_).any() else False), lines


def local(run: Run) -> Verdict:
    """Do heads that reach farther than all of the first two layers stand in the deeper ones?"""
    reach = run.heads["reach"][-1]
    lines = [f"largest reach of a head, in pixels: {_by_layer(np.nanmax(reach, axis=1), '.1f')}"]
    first, deeper = (part[np.isfinite(part)] for part in (reach[:2], reach[2:]))
    if not len(deeper):
        return None, [*lines, "the network has no deeper layers"]
    beyond = int((deeper > first.max()).sum())
    chance = math.comb(len(first) + len(deeper) - beyond, len(first)) / math.comb(len(first) + len(deeper), len(first))
    lines += [
        f"deeper heads that reach farther than all of layers 1 and 2: {beyond} of {len(deeper)}; "
        f"as many by chance {_chance(chance)}"
    ]
    shallow = int((first > deeper.max()).sum())
    return (True if chance < LEVEL else False if shallow else None), lines


def apart(run: Run) -> Verdict:
    """Do heads duplicate less of each other's attention than the same heads elsewhere?"""
    start, trained = ([run.heads[name][epoch] for name in ("parameter_centre", "precision")] for epoch in (0, -1))
    there, random = np.isfinite(trained[0]).all(-1), np.random.default_rng(0)  # (L, h)
    heads, drawn = there.sum(1), []
    for centres, precision, kept in zip(*trained, there, strict=True):
        anew = random.standard_normal((DRAWS, kept.sum(), 2))
        anew = (anew - anew.mean(1, keepdims=True)) / np.maximum(anew.std(1, keepdims=True), 1e-12)
        anew = (
            centres[kept].mean(0) + centres[kept].std(0) * anew
        )  # mean and spread of the layer's own centres, exactly
        drawn.append([_unshared(places, precision[kept], run.model.grid) for places in anew])
    before, after = (
        np.array([_unshared(c[kept], p[kept], run.model.grid) for c, p, kept in zip(*when, there, strict=True)])
        for when in (start, trained)
    )
    total, by_chance = after.sum(), np.sum(drawn, axis=0)
    at_least = (1 + (by_chance >= total).sum()) / (1 + DRAWS)
    lines = [
        f"attention that no other head duplicates: {_by_layer(after / heads, '.0%')}; "
        f"before training {_listed(before / heads, '.0%')}",
        f"the same heads, centres drawn anew, mean: {_by_layer(np.mean(drawn, axis=1) / heads, '.0%')}",
        f"all layers together {total / heads.sum():.0%} against {by_chance.mean() / heads.sum():.0%}; "
        f"as much by chance {_chance(at_least)}",
    ]
    return (True if at_least < LEVEL else False if at_least > 0.5 else None), lines


def _unshared(centres: NDArray, precision: NDArray, grid: tuple[int, int]) -> float:
    """How many heads' worth of attention a layer's heads have without what they duplicate: sum of the largest P."""
    rows, columns = (np.arange(1 - side, side) for side in grid)
    away = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1) - centres[:, None, None]  # (h, ., ., 2)
    logits = -0.5 * ((away @ precision[:, None]) * away).sum(-1)
    weights = np.exp(logits - logits.max((1, 2), keepdims=True))
    return float((weights / weights.sum((1, 2), keepdims=True)).max(0).sum())


def sixteen(run: Run) -> Verdict:
    """Are there layers that are small convolutions, and heads that look far?"""
    far = np.linalg.norm(run.heads["parameter_centre"][-1], axis=-1) > min(run.model.grid) / 4
    sharp = run.heads["mass"][-1] > 0.5
    lines = [
        f"heads with over half of their attention on one pixel: {_by_layer(sharp.sum(1), 'd', far.shape[1])}",
        f"heads with a centre farther than {min(run.model.grid) / 4:g} pixels: {_by_layer(far.sum(1), 'd')}",
    ]
    if not run.swaps:
        return None, [*lines, NOT_MEASURED]
    fine, open_, more = _small_convolutions(run)
    holds = False if not far.any() else True if fine.any() else None if open_.any() else False
    return holds, lines + more


def pruned(run: Run, whole: Run, control: Run | None) -> Verdict:
    """``whole``: the run whose heads were dropped; ``control``: that run, trained on for as long with all its heads."""
    lines = [
        f"heads before: {_by_layer(whole.model.heads_per_layer, 'd')}; after: {_listed(run.model.heads_per_layer, 'd')}"
    ]
    lines += [f"test accuracy with all heads {100 * whole.test_accuracy:.1f}%"]
    if run.right_at_start is not None:
        lines += [f"without the degenerate ones, before any training {100 * run.right_at_start.mean():.1f}%"]
    if run.model.heads_per_layer == whole.model.heads_per_layer:
        return None, [*lines, "no head was degenerate, so none was dropped"]
    if control is None:
        return None, [*lines, "the opponent, trained on with all heads, is not among the runs"]
    holds, words = results.ahead([run], [control], margin=POINTS)
    return holds, [*lines, f"after {_epochs(run)} more, without them against with all: {words}"]


# --- learned heads -------------------------------------------------------------------------------------------------


def single_pixels(run: Run) -> Verdict:
    """Are there heads on one pixel around the query, and more than by lot?"""
    from scipy.stats import binom

    maps, query = _maps(run)
    single = maps.max((2, 3)) > 0.5
    near = _window(maps, query, 3).max((2, 3)) > 0.5
    lot = 49 / np.prod(run.model.grid)
    chance = float(binom.sf(near.sum() - 1, single.sum(), lot)) if near.any() else 1.0
    lines = [
        f"heads with over half of their attention on one pixel: {_by_layer(single.sum(1), 'd', maps.shape[1])}",
        f"that lies in the 7 × 7 around the query: {near.sum()} of {single.sum()}; as many by lot {_chance(chance)}",
    ]
    return (True if chance < LEVEL else None if near.any() else False), lines


def symmetric(run: Run) -> Verdict:
    """Are far patterns symmetric left-right, more than up-down?"""
    from scipy.stats import binomtest

    maps, query = _maps(run)
    far = _window(maps, query, 2).sum((2, 3)) < 0.5
    height, width = run.model.grid
    side, rise = min(query[1], width - 1 - query[1]), min(query[0], height - 1 - query[0])
    across = _mirrored(maps.sum(2)[..., query[1] - side : query[1] + side + 1])
    upright = _mirrored(maps.sum(3)[..., query[0] - rise : query[0] + rise + 1])
    better = int((across > upright)[far].sum())
    wide = (run.heads["reach"][-1] > _even(run.model.grid, query)).sum(1)
    if not far.any():
        return False, ["all heads are local"]
    alike = [(far & (agreement >= 0.8)).sum() for agreement in (across, upright)]
    lines = [
        f"heads that are not local: {_by_layer(far.sum(1), 'd')}",
        f"agreement of their maps with the mirror image, mean: left-right {across[far].mean():.2f}, "
        f"up-down {upright[far].mean():.2f}; to at least 80%: {alike[0]} and {alike[1]} heads",
        f"heads that reach farther than attention that is spread evenly: {_by_layer(wide, 'd')}",
    ]
    chance = binomtest(better, int(far.sum()), 0.5, alternative="greater").pvalue
    lines += [f"more symmetric left-right than up-down: {better} of {far.sum()}; as many by chance {_chance(chance)}"]
    if chance < LEVEL and (far & (across >= 0.8)).any() and wide.any():
        return True, lines
    return (None if chance < 0.5 else False), lines


def constant_shift(run: Run) -> Verdict:
    """Do concentrated heads of layers 2 and 3 follow the query?"""
    maps, _ = _maps(run)
    moved, same = run.attention["halves"]
    entropy = -(maps * np.log(np.where(maps > 0, maps, 1))).sum((2, 3))
    kept = (moved >= 0.9 * same) & (entropy < 0.5 * np.log(np.prod(run.model.grid)))
    lines = [
        f"agreement of two halves of the images, same query: {_by_layer(same.mean(1), '.2f')}; "
        f"query moved: {_listed(moved.mean(1), '.2f')}",
        f"concentrated heads that keep their shift: {_by_layer(kept.sum(1), 'd', maps.shape[1])}",
    ]
    for layer, head in np.argwhere(kept[1:3]) + (1, 0):
        lines += [f"head {head + 1} of layer {layer + 1}: {same[layer, head]:.2f} and {moved[layer, head]:.2f}"]
    if len(kept) < 3:
        return None, [*lines, "the network has no layer 3"]
    return bool(kept[1:3].any(1).all()), lines


def content_use(run: Run) -> Verdict:
    """Is the positional share of heads' scores larger where they follow the query?"""
    fixed, questions, content = run.attention["shares"]
    rise, error = results.rank_correlation(run.attention["agreement"], fixed)
    lines = [
        f"of what makes scores vary, the same for every image and query: {_by_layer(fixed.mean(1), '.0%')}",
        f"with what the query holds: {_by_layer(questions.mean(1), '.0%')}",
        f"comparison of contents: {_by_layer(content.mean(1), '.0%')}",
        f"rank correlation of a head's first share with its agreement {rise:.2f}, standard error {error:.2f}",
    ]
    return (None if abs(rise) <= 2 * error else rise > 0), lines


def free_start(run: Run) -> Verdict:
    """Did layer 1 of a learned model become a convolution?"""
    if not run.swaps:
        return None, [NOT_MEASURED]
    lost, error = _lost(run)
    nearer = run.swaps["error"][1, 0] <= run.swaps["error"][0, 0] / 2
    lines = [
        f"layer 1 as {_named(size)}: {loss:.2f} points lost; relative error {after:.2f}, before training {before:.2f}"
        for size, loss, before, after in zip(run.swaps["sizes"], lost[0], *run.swaps["error"][:, 0], strict=True)
        if size > 1
    ]
    if (nearer & (lost + 2 * error < 2)[0]).any():
        return True, lines
    return (None if (nearer & (lost - 2 * error < 2)[0]).any() else False), lines


# --- accuracy ------------------------------------------------------------------------------------------------------


def matches_resnet(quadratic: Sequence[Run], resnet: Sequence[Run]) -> Verdict:
    return _ahead(quadratic, resnet, 2.0)


def quadratic_ahead(quadratic: Sequence[Run], learned: Sequence[Run]) -> Verdict:
    return _ahead(quadratic, learned)


def content_lower(learned: Sequence[Run], content: Sequence[Run]) -> Verdict:
    return _ahead(learned, content)


def hybrid(made: Sequence[Run], control: Sequence[Run]) -> Verdict:
    return _ahead(made, control, POINTS)


def _ahead(better: Sequence[Run], worse: Sequence[Run], margin: float = 0.0) -> Verdict:
    """As `results.ahead`; undecided where a longer training may be the reason."""
    if not (better and worse):
        return None, [NOT_TRAINED]
    holds, words = results.ahead(better, worse, margin)
    images = better[0].config["data"]["test_images"]
    lines = [
        f"test accuracy {words}",
        f"{images:,} test images of {better[0].data_title}, seeds: {len(better)} and {len(worse)}",
    ]
    epochs = better[0].train.epochs, worse[0].train.epochs
    if epochs[0] != epochs[1]:
        a, b = (100 * results.curves(runs)[:, min(epochs) - 1].mean() for runs in (better, worse))
        lines += [
            f"trained for {epochs[0]} and {epochs[1]} epochs; after {min(epochs)} of them {a:.1f}% against {b:.1f}%"
        ]
        lead, error = a - b + margin, math.sqrt((a * (100 - a) + b * (100 - b)) / images)
        holds = holds if holds == (lead > 0) and abs(lead) > 2 * error else None
    if better[0].train.lr != worse[0].train.lr:
        lines += [f"learning rates {better[0].train.lr:g} and {worse[0].train.lr:g}"]
    return holds, lines


def content_harder(learned: Sequence[Run], content: Sequence[Run]) -> Verdict:
    """By the training loss, epoch by epoch, or by the learning rate that the recipe had to take."""
    if not (learned and content):
        return None, [NOT_TRAINED]
    epochs = [runs[0].train.epochs for runs in (learned, content)]
    common = min(epochs)
    losses = (
        np.array([[line["train_loss"] for line in run.metrics[:common]] for run in runs]) for runs in (learned, content)
    )
    positions, both = (loss[:, common // 2 :] for loss in losses)  # (seeds, later half of the epochs that both have)
    spread = [np.var(loss, axis=0, ddof=1) / len(loss) for loss in (positions, both) if len(loss) > 1]
    noise = 2 * np.sqrt(sum(spread)) if spread else 0.02 * positions.mean(0)
    gap = both.mean(0) - positions.mean(0)
    rates = [runs[0].train.lr for runs in (learned, content)]
    more, less = (gap > noise).sum(), (gap < -noise).sum()
    lines = [
        f"training loss after {common} epochs {both[:, -1].mean():.3f} with content, "
        f"{positions[:, -1].mean():.3f} without; seeds: {len(content)} and {len(learned)}",
        f"beyond the noise higher with content after {more}, lower after {less} of the last {len(gap)} common epochs",
        f"learning rate {rates[1]:g} with content, {rates[0]:g} without",
    ]
    higher = bool((gap > noise).all()) and epochs[1] <= epochs[0]
    lower = bool((gap < -noise).all()) and epochs[1] >= epochs[0]
    return (True if higher or (rates[1] < rates[0] and not lower) else False if lower else None), lines


def more_than_snapping(taps: NDArray, snapped: NDArray) -> Verdict:
    """Taps covered after training and by snapping before it, of the same seeds: (seeds,) each."""
    gain = taps - snapped
    lines = [f"taps covered {taps.mean():.1f}, by snapping alone {snapped.mean():.1f}; seeds: {len(gain)}"]
    if len(gain) < 2:
        return None, [*lines, "a single seed, so the noise is not known"]
    error = gain.std(ddof=1) / math.sqrt(len(gain))
    lines += [f"difference {gain.mean():+.1f} ± {error:.1f}"]
    return (None if abs(gain.mean()) <= 2 * error else bool(gain.mean() > 0)), lines


# --- numbers and words ---------------------------------------------------------------------------------------------


def _lost(run: Run) -> tuple[NDArray, NDArray]:
    """Points lost with each convolution in one layer's place, and their paired standard errors: (L, S) each."""
    lost = 100 * (run.swaps["whole"].astype(float) - run.swaps["alone"])
    return lost.mean(-1), lost.std(-1) / math.sqrt(lost.shape[-1])


def _small_convolutions(run: Run) -> tuple[NDArray, NDArray, list[str]]:
    """Layers that a `SMALL` convolution may replace for less than `POINTS`, layers where that is open: (L,) each."""
    lost, error = _lost(run)
    small = np.flatnonzero(run.swaps["sizes"] <= SMALL)
    lines = [
        f"points lost with a {_named(run.swaps['sizes'][s])} convolution in one layer's place: "
        f"{_by_layer(lost[:, s], '.1f')}"
        for s in small
        if run.swaps["sizes"][s] > 1
    ]
    fine = (lost + 2 * error < POINTS)[:, small].any(1)
    return fine, ~fine & (lost - 2 * error < POINTS)[:, small].any(1), lines


def _maps(run: Run) -> tuple[NDArray, tuple[int, int]]:
    """What heads attend to at the first query that was kept, the middle of the image: (L, h, H, W)."""
    row, column = run.attention["queries"][0]
    return run.attention["mean"][0].astype(float), (int(row), int(column))


def _window(maps: NDArray, query: tuple[int, int], radius: int) -> NDArray:
    """The pixels at most so far from the query, along either axis."""
    rows, columns = (slice(max(0, place - radius), place + radius + 1) for place in query)
    return maps[..., rows, columns]


def _mirrored(profile: NDArray) -> NDArray:
    """What a profile (..., n), around its middle, has in common with its mirror image, in [0, 1]."""
    total = profile.sum(-1)
    return np.minimum(profile, profile[..., ::-1]).sum(-1) / np.where(total > 0, total, 1)


def _even(grid: tuple[int, int], query: tuple[int, int]) -> float:
    """Reach of attention that is spread evenly over the image, in pixels."""
    return float(np.hypot(*(np.indices(grid) - np.reshape(query, (2, 1, 1)))).mean())


def _listed(values: ArrayLike | Sequence[Any], form: str) -> str:
    return ", ".join(format(int(value) if form == "d" else float(value), form) for value in np.asarray(values)).replace(
        "-", "−"
    )


def _by_layer(values: ArrayLike | Sequence[Any], form: str, of: int | None = None) -> str:
    return f"{_listed(values, form)}{f' of {of}' if of else ''} in layers 1 to {len(np.asarray(values))}"


def _named(size: int) -> str:
    return f"{size} × {size}"


def _numbers(layers: NDArray) -> str:
    return ", ".join(str(layer + 1) for layer in np.flatnonzero(layers)) or "none"


def _chance(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"


def _epochs(run: Run) -> str:
    return f"{run.train.epochs} epoch{'s' * (run.train.epochs > 1)}"
