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
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
SMALL = 7
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
    for file in sorted((folder / "tables").glob("??-claims.json")):
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
    return difference < 1e-5, [f"largest difference {difference:.0e} of the largest output"]


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


def grid(run: Run, unmoved: ArrayLike | None = None) -> Verdict:
    """Is there a layer that training made a small convolution, by moving heads to pixels of their own?

    ``unmoved`` (L,): each layer's relative error as 3 x 3 if its centres are put back to where they began.
    """
    if not run.swaps:
        return None, [NOT_MEASURED]
    small, lines = _small_convolutions(run)
    sharp, centres = run.heads["mass"][-1] > 0.5, run.heads["parameter_centre"]
    own = np.array([_pixels(layer[which]) for layer, which in zip(centres[-1], sharp, strict=True)])
    snapped = np.array([_pixels(layer) for layer in centres[0]])
    before, after = run.swaps["error"][:, :, run.swaps["sizes"].tolist().index(3)]
    control = before if unmoved is None else np.minimum(before, unmoved)
    there = small.fine & (own > 4)
    made = there & (own > snapped) & (after <= 0.75 * control)
    moved = np.linalg.norm(centres[-1] - centres[0], axis=-1)
    lines += [
        f"heads with over half of their attention on a pixel: {_by_layer(sharp.sum(1), 'd', sharp.shape[1])}; "
        f"mean way of these heads' centres, in pixels: {_listed(_mean(np.where(sharp, moved, np.nan)), '.1f')}",
        f"pixels of the 3 × 3 around the query that such a head has: {_by_layer(own, 'd')}; "
        f"the start's heads, each made sharp on its nearest pixel: {_listed(snapped, 'd')}",
        f"relative error as 3 × 3: {_by_layer(after, '.2f')}; before training {_listed(before, '.2f')}"
        + ("" if unmoved is None else f"; with centres put back to where they began {_listed(unmoved, '.2f')}"),
        f"layers that are grids: {_numbers(there)}; of them training made: {_numbers(made)}",
    ]
    return (True if made.any() else None if there.any() or (small.open & (own > 4)).any() else False), lines


def _pixels(centres: NDArray) -> int:
    """How many pixels of the 3 x 3 around the query are nearest to one of these centres (h, 2)."""
    return len({tuple(place) for place in np.rint(centres) if (np.abs(place) <= 1).all()})


def local(run: Run) -> Verdict:
    """Do most heads of the first two layers look at the 5 x 5 around the query?"""
    there, middle = np.isfinite(run.heads["centre"]).all(-1).sum(-1), [side - 1 for side in run.model.grid]  # no shift
    epochs = [[*zip(run.heads["parameter_centre"][e], run.heads["precision"][e], strict=True)] for e in (0, -1)]
    before, after = (
        np.array([(_window(_gaussians(*one, run.model.grid), middle, 2).sum((1, 2)) > 0.5).sum() for one in layers])
        for layers in epochs
    )
    heads = run.heads["centre"].shape[2]
    lines = [
        f"heads with over half of their attention in the 5 × 5 around the query: {_by_layer(after, 'd', heads)}; "
        f"before training {_listed(before, 'd')}"
    ]
    if not there[-1, :2].all():
        return None, [*lines, "there are no heads in the first two layers"]
    return bool((2 * after > there[-1])[:2].all()), lines


def farther(run: Run) -> Verdict:
    """Do deeper layers have heads that look farther than all of the first two layers' do?"""
    away = np.linalg.norm(run.heads["centre"][[0, -1]], axis=-1)  # (2, L, h), before and after
    farthest = np.where(np.isfinite(away), away, 0).max(-1)  # (2, L)
    if farthest.shape[1] < 3 or not np.isfinite(away[1, :2]).any():
        return None, ["there are no deeper layers, or no heads in the first two"]
    before, after = (farthest[:, 2:] >= farthest[:, :2].max(1, keepdims=True) + 1).sum(1)
    deeper = farthest.shape[1] - 2
    lines = [
        f"farthest mean shift of a head, in pixels: {_by_layer(farthest[1], '.1f')}; "
        f"before training {_listed(farthest[0], '.1f')}",
        f"deeper layers with a head at least a pixel farther than all of layers 1 and 2: {after} of {deeper}; "
        f"before training {before}",
        f"mean reach, in pixels: {_by_layer(np.nanmean(run.heads['reach'][-1], axis=1), '.1f')}",
    ]
    return (True if 2 * after >= deeper and after > before else False if after == 0 else None), lines


def apart(run: Run) -> Verdict:
    """Do heads duplicate less of each other's attention than the same heads elsewhere, more so than at the start?"""
    there = np.isfinite(run.heads["parameter_centre"][-1]).all(-1)  # (L, h)
    there, layers = there[there.any(1)], np.flatnonzero(there.any(1))
    if not len(layers):
        return None, ["there are no heads"]
    heads, random = there.sum(1), np.random.default_rng(0)
    shares, anew = [], []  # (L,), (L, DRAWS) each, before training and after
    for epoch in (0, -1):
        centres, precision = (run.heads[name][epoch][layers] for name in ("parameter_centre", "precision"))
        kept = [(c[k], p[k]) for c, p, k in zip(centres, precision, there, strict=True)]
        shares.append(np.array([_unshared(c, p, run.model.grid) for c, p in kept]))
        anew.append(np.array([[_unshared(d, p, run.model.grid) for d in _redrawn(c, random)] for c, p in kept]))
    start, end = (100 * (share.sum() - draws.sum(0)) / heads.sum() for share, draws in zip(shares, anew, strict=True))
    p = (1 + (end <= 0).sum()) / (1 + DRAWS)
    p_more = (1 + (end <= start).sum()) / (1 + DRAWS)
    lines = [
        f"attention that is left when duplicates count once: {_listed(shares[1] / heads, '.0%')} "
        f"in layers {_comma(layers + 1)}; before training {_listed(shares[0] / heads, '.0%')}",
        f"the same heads, centres drawn anew, mean: {_listed(anew[1].mean(1) / heads, '.0%')}",
        f"lead of all layers together over what was drawn anew: {end.mean():.1f} points of "
        f"{100 * shares[1].sum() / heads.sum():.0f}; {_chance(p)}",
        f"before training: {start.mean():.1f} points; {_chance(p_more)} that training added to it",
    ]
    return (True if max(p, p_more) < LEVEL else False if p > 1 - LEVEL else None), lines


def _redrawn(centres: NDArray, random: np.random.Generator) -> NDArray:
    """Centres (h, 2) from a normal distribution, with exactly the mean and the spread of these: (DRAWS, h, 2)."""
    drawn = random.standard_normal((DRAWS, *centres.shape))
    drawn = (drawn - drawn.mean(1, keepdims=True)) / np.maximum(drawn.std(1, keepdims=True), 1e-12)
    return centres.mean(0) + centres.std(0) * drawn


def _unshared(centres: NDArray, precision: NDArray, grid: tuple[int, int]) -> float:
    """How many heads' worth of attention a layer's heads have without what they duplicate: sum of the largest P."""
    return float(_gaussians(centres, precision, grid).max(0).sum())


def _gaussians(centres: NDArray, precision: NDArray, grid: tuple[int, int]) -> NDArray:
    """What a layer's heads give to each shift that an image of that size has: (h, 2 H - 1, 2 W - 1)."""
    rows, columns = (np.arange(1 - side, side) for side in grid)
    away = np.stack(np.meshgrid(rows, columns, indexing="ij"), -1) - centres[:, None, None]  # (h, ., ., 2)
    logits = -0.5 * ((away @ precision[:, None]) * away).sum(-1)
    weights = np.exp(logits - logits.max((1, 2), keepdims=True))
    return weights / weights.sum((1, 2), keepdims=True)


def sixteen(run: Run) -> Verdict:
    """Are there layers that are small convolutions, and heads that look far?"""
    limit = min(run.model.grid) / 4
    before, after = (np.linalg.norm(run.heads["centre"][epoch], axis=-1) > limit for epoch in (0, -1))
    lines = [
        f"heads with a centre of attention farther than {limit:g} pixels: "
        f"{_by_layer(after.sum(1), 'd', after.shape[1])}; before training {_listed(before.sum(1), 'd')}",
    ]
    if not run.swaps:
        return None, [*lines, NOT_MEASURED]
    small, more = _small_convolutions(run)
    lines += [
        *more,
        f"layers that are small convolutions: {_numbers(small.fine)}; "
        f"of them training brought twice as near: {_numbers(small.became)}",
    ]
    if after.sum() <= before.sum():
        return (None if after.any() else False), lines
    return (True if small.became.any() else None if (small.fine | small.open).any() else False), lines


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
    epochs = f"{run.train.epochs} epoch{'s' * (run.train.epochs > 1)}"
    return holds, [*lines, f"trained on for {epochs}, without them against with all: {words}"]


# --- learned heads -------------------------------------------------------------------------------------------------


def single_pixels(run: Run) -> Verdict:
    """Are there heads on pixels around the query, each on one of its own, and more than by lot?"""
    from scipy.stats import binom

    maps, query = _maps(run)
    single = maps.max((2, 3)) > 0.5
    peaks = np.stack(np.unravel_index(maps.reshape(*maps.shape[:2], -1).argmax(-1), maps.shape[2:]), -1) - query
    near = single & (abs(peaks) <= 3).all(-1)
    own = [{*map(tuple, of_layer[kept].tolist())} for of_layer, kept in zip(peaks, near, strict=True)]
    different, count = sum(map(len, own)), int(single.sum())
    lot = 49 / np.prod(run.model.grid)
    chance = float(binom.sf(different - 1, count, lot))
    lines = [
        f"heads with over half of their attention on one pixel: {_by_layer(single.sum(1), 'd', maps.shape[1])}",
        f"different pixels of the 7 × 7 around the query among theirs: {_by_layer([len(one) for one in own], 'd')}",
        f"their shifts: {', '.join(sorted({f'({a:+d}, {b:+d})' for one in own for a, b in one})) or 'none'}".replace(
            "-", "−"
        ),
        f"together {different} of {count}; by lot {_chance(chance)}",
    ]
    if not count:
        return False, lines
    return (True if chance < LEVEL else False if binom.cdf(near.sum(), count, lot) < LEVEL else None), lines


def symmetric(run: Run) -> Verdict:
    """Are patterns that are not local symmetric left-right, more than up-down, and do some heads look far?"""
    maps, query = _maps(run)
    wide = _window(maps, query, 2).sum((2, 3)) < 0.5
    height, width = run.model.grid
    side, rise = min(query[1], width - 1 - query[1]), min(query[0], height - 1 - query[0])
    profiles = (
        maps.sum(2)[..., query[1] - side : query[1] + side + 1],
        maps.sum(3)[..., query[0] - rise : query[0] + rise + 1],
    )
    across, upright = map(_mirrored, profiles)
    if not wide.any():
        return False, ["all heads are local"]
    before, after = run.heads["reach"][0], run.heads["reach"][-1]
    far = (after > np.nanmax(before)).sum(1)
    pairs = [(wide & _twin_peaks(profile)).sum() for profile in profiles]
    of_layers = np.array([(a - u)[w].mean() for a, u, w in zip(across, upright, wide, strict=True) if w.any()])
    signs = np.array(list(itertools.product((1, -1), repeat=len(of_layers))))
    chances = [float((sign * signs @ of_layers >= sign * of_layers.sum() - 1e-12).mean()) for sign in (1, -1)]
    lines = [
        f"heads that are not local: {_by_layer(wide.sum(1), 'd')}",
        f"correlation of their profiles with the mirror image, mean: left-right {across[wide].mean():.2f}, "
        f"up-down {upright[wide].mean():.2f}",
        f"heads whose two highest columns are each other's mirror image: {pairs[0]}; two highest rows: {pairs[1]}",
        f"left-right less up-down: {_listed(of_layers, '.2f')} in layers {_comma(np.flatnonzero(wide.any(1)) + 1)}; "
        f"as much by chance {_chance(chances[0])}",
        f"heads that reach farther than any did before training, {np.nanmax(before):.1f} pixels: {_by_layer(far, 'd')}",
    ]
    holds = chances[0] < LEVEL and pairs[0] > pairs[1] and far.any()
    return (True if holds else False if chances[1] < LEVEL else None), lines


def constant_shift(run: Run) -> Verdict:
    """Do heads of layers 2 and 3 look at pixels at a fixed shift, and follow the query?"""
    moved, same = run.attention["halves"]
    kept, shifts = following(run)
    lines = [f"heads with a peak that follows the query: {_by_layer(kept.sum(1), 'd', kept.shape[1])}"]
    if len(kept) < 3:
        return None, [*lines, "the network has no layer 3"]
    for layer, head in np.argwhere(kept[1:3]) + (1, 0):
        lines += [
            f"head {head + 1} of layer {layer + 1}: shift ({_listed(shifts[layer, head], 'd')}); agreement of two "
            f"halves of the images {same[layer, head]:.2f}, with the query moved {moved[layer, head]:.2f}"
        ]
    different = [len({*map(tuple, shifts[layer][kept[layer]].tolist())}) for layer in (1, 2)]
    return (True if min(different) > 1 else False if max(different) == 0 else None), lines


def following(run: Run) -> tuple[NDArray, NDArray]:
    """Heads (L, h) whose attention has a peak that stays at one shift (L, h, 2) as the query moves.

    At each query that was kept, the peak lies at this shift, where over half of what exceeds evenly spread attention
    lies within a pixel of it; over all queries, heads agree nine tenths as well as two halves of the images do.
    """
    maps, queries = run.attention["mean"].astype(float), run.attention["queries"]
    places = np.stack(np.unravel_index(maps.reshape(*maps.shape[:3], -1).argmax(-1), maps.shape[3:]), -1)
    shifts = places - queries[:, None, None]  # (Q, L, h, 2)
    above = np.maximum(maps - 1 / math.prod(maps.shape[3:]), 0)
    around = np.zeros(maps.shape[:3])
    for index in np.ndindex(around.shape):
        around[index] = _window(above[index], places[index].tolist(), 1).sum()
    peaked = (around > 0.5 * above.sum((3, 4))) & (shifts == shifts[0]).all(-1)
    moved, same = run.attention["halves"]
    return peaked.all(0) & (moved >= 0.9 * same), shifts[0]


def content_use(run: Run) -> Verdict:
    """Do heads that do not follow the query compare contents more than those that do, in their own layer?"""
    fixed, questions, content = run.attention["shares"]
    kept, _ = following(run)
    lines = [
        f"of what makes scores vary, the same for every image and query: {_by_layer(fixed.mean(1), '.0%')}",
        f"with what the query holds: {_by_layer(questions.mean(1), '.0%')}",
        f"comparison of contents: {_by_layer(content.mean(1), '.0%')}",
    ]
    mixed = np.flatnonzero(kept.any(1) & ~kept.all(1))
    if not len(mixed):
        return None, [*lines, "no layer has both heads that follow the query and others"]
    random = np.random.default_rng(0)
    shuffled = [kept[mixed], *(random.permuted(kept[mixed], axis=1) for _ in range(DRAWS))]
    content = content + questions  # the query's content decides on the second part
    more = np.array([_of_others(content[mixed], one) - _of_others(content[mixed], ~one) for one in shuffled])
    p, p_less = (float((sign * more >= sign * more[0] - 1e-12).mean()) for sign in (1, -1))
    lines += [
        f"heads that follow the query: {_by_layer(kept.sum(1), 'd')}; where both kinds are, what content "
        f"decides of theirs {_of_others(content[mixed], ~kept[mixed]):.0%}, of the others' "
        f"{_of_others(content[mixed], kept[mixed]):.0%}; {_chance(p)}"
    ]
    return (True if p < LEVEL else False if p_less < LEVEL else None), lines


def _of_others(values: NDArray, left_out: NDArray) -> float:
    """Mean over layers of the mean over a layer's other heads: (L, h) both."""
    return float(np.mean([of_layer[~out].mean() for of_layer, out in zip(values, left_out, strict=True)]))


def free_start(run: Run) -> Verdict:
    """Did layer 1 of a learned model become a convolution?"""
    if not run.swaps:
        return None, [NOT_MEASURED]
    small, lines = _small_convolutions(run)
    before, after = run.swaps["error"][:, 0]
    lines += [
        f"layer 1 as {_named(size)}: relative error {now:.2f}, before training {then:.2f}"
        for size, then, now in zip(run.swaps["sizes"], before, after, strict=True)
        if 1 < size <= SMALL
    ]
    if small.fine[0] and small.became[0]:
        return True, lines
    return (None if small.fine[0] or small.open[0] else False), lines


# --- accuracy ------------------------------------------------------------------------------------------------------


def matches_resnet(quadratic: Sequence[Run], resnet: Sequence[Run]) -> Verdict:
    return _ahead(quadratic, resnet, 2.0)


def hybrid(made: Sequence[Run], control: Sequence[Run]) -> Verdict:
    holds, lines = _ahead(made, control, POINTS)
    worse = results.ahead(control, made)[0] if made and control else None
    return holds, [*lines, "surely less accurate"] if worse else lines


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
    for name, words in (("lr", "learning rates"), ("encoding_lr", "of the encoding")):
        rates = [getattr(runs[0].train, name) or runs[0].train.adamw_lr for runs in (better, worse)]
        if rates[0] != rates[1] and (name == "lr" or all(runs[0].model.kind != "resnet" for runs in (better, worse))):
            lines += [f"{words} {rates[0]:g} and {rates[1]:g}"]
    return holds, lines


quadratic_ahead = content_lower = _ahead  # who should be ahead comes first


def content_harder(learned: Sequence[Run], content: Sequence[Run]) -> Verdict:
    """By the training loss at the end, where all rates have fallen to zero; for trainings of one length."""
    if not (learned and content):
        return None, [NOT_TRAINED]
    losses, accuracies = (
        [np.array([run.metrics[-1][name] for run in runs]) for runs in (content, learned)]
        for name in ("train_loss", "train_accuracy")
    )
    seeds = min(map(len, losses))
    gap = losses[0].mean() - losses[1].mean()
    noise = 0.02 * losses[1].mean()
    if seeds > 1:
        noise = results.surely(seeds - 1) * math.sqrt(sum(np.var(loss, ddof=1) / len(loss) for loss in losses))
    epochs = [runs[0].train.epochs for runs in (content, learned)]
    rates = [
        f"{runs[0].train.lr:g} of the weights"
        + (f", {rate:g} of the encoding" if (rate := runs[0].train.encoding_lr) else "")
        for runs in (content, learned)
    ]
    lines = [
        f"training loss at the end {losses[0].mean():.3f} with content, {losses[1].mean():.3f} without; noise "
        f"{noise:.3f}{'' if seeds > 1 else ', by convention'}; seeds: {len(content)} and {len(learned)}",
        f"training accuracy at the end {accuracies[0].mean():.1%} and {accuracies[1].mean():.1%}",
        f"learning rates with content {rates[0]}; without {rates[1]}; epochs {epochs[0]} and {epochs[1]}",
    ]
    return (None if epochs[0] != epochs[1] or abs(gap) <= noise else bool(gap > 0)), lines


def more_than_snapping(taps: NDArray, snapped: NDArray) -> Verdict:
    """Taps covered after training and by snapping before it, of the same seeds: (seeds,) each."""
    gain = taps - snapped
    lines = [f"taps covered {taps.mean():.1f}, by snapping alone {snapped.mean():.1f}; seeds: {len(gain)}"]
    if len(gain) < 2:
        return None, [*lines, "a single seed, so the noise is not known"]
    error = gain.std(ddof=1) / math.sqrt(len(gain))
    lines += [f"difference {gain.mean():+.1f} ± {error:.1f}"]
    sure = error > 0 and abs(gain.mean()) > results.surely(len(gain) - 1) * error
    return (bool(gain.mean() > 0) if sure else None), lines


def convolution_start(
    taps: Mapping[int, Sequence[Run]],
    paper: Mapping[int, Sequence[Run]],
    others: Mapping[str, Mapping[int, Sequence[Run]]],
) -> Verdict:
    """Runs from two starts, and from others by name, by the number of their training images; the fewest decide."""
    fewest = min(taps)
    holds, _ = results.ahead(taps[fewest], paper[fewest])
    lines = [f"{images:,} images: {results.ahead(taps[images], paper[images])[1]}" for images in sorted(taps)]
    for name, runs in others.items():
        lines.append(f"{fewest:,} images, against {name}: {results.ahead(taps[fewest], runs[fewest])[1]}")
    if (seeds := len(taps[fewest])) < 2:
        return None, [*lines, "a single seed, so the noise is not known"]
    return holds, [*lines, f"seeds: {seeds}"]


# --- numbers and words ---------------------------------------------------------------------------------------------


def _lost(run: Run) -> tuple[NDArray, NDArray]:
    """Points lost with each convolution in one layer's place, and their paired standard errors: (L, S) each."""
    lost = 100 * (run.swaps["whole"].astype(float) - run.swaps["alone"])
    return lost.mean(-1), lost.std(-1) / math.sqrt(lost.shape[-1])


class _Small(NamedTuple):
    """Layers by what a convolution of at most `SMALL` does in their place: (L,) bool each."""

    fine: NDArray
    """It costs less than `POINTS`, and a 1 × 1 costs more: the layer matters."""
    open: NDArray
    """The noise is too large to tell."""
    became: NDArray
    """It is fine, and the smallest convolution that is so is at most half as far from the layer as before training."""


def _small_convolutions(run: Run) -> tuple[_Small, list[str]]:
    """Layers that a small convolution may replace, and the numbers in words."""
    lost, error = _lost(run)
    sizes = run.swaps["sizes"]
    small = (sizes > 1) & (sizes <= SMALL)
    least, most = lost - 2 * error, lost + 2 * error  # (L, S)
    matters = (least[:, sizes == 1] > POINTS).all(1)
    fits = (most < POINTS) & small & matters[:, None]
    maybe = (least < POINTS) & small & (most[:, sizes == 1] > POINTS).all(1, keepdims=True)
    smallest = fits.argmax(1)  # where none fits, the first, which is left out below
    before, after = (error[np.arange(len(fits)), smallest] for error in run.swaps["error"])
    lines = [
        f"points lost with a {_named(size)} convolution in one layer's place: {_by_layer(lost[:, s], '.1f')}"
        for s, size in enumerate(sizes)
        if size <= SMALL
    ]
    became = after <= before / 2
    decisive = [
        f"{layer + 1} as {_named(sizes[smallest[layer]])} {after[layer]:.2f}, before training {before[layer]:.2f}"
        for layer in np.flatnonzero(fits.any(1))
    ]
    words = "relative error of the smallest that surely costs less than a point (two standard errors): layer"
    lines += [f"{words} {'; '.join(decisive) or 'none'}"]
    return _Small(fits.any(1), maybe.any(1) & ~fits.any(1), fits.any(1) & became), lines


def _maps(run: Run) -> tuple[NDArray, tuple[int, int]]:
    """What heads attend to at the first query that was kept, the middle of the image: (L, h, H, W)."""
    row, column = run.attention["queries"][0]
    return run.attention["mean"][0].astype(float), (int(row), int(column))


def _window(maps: NDArray, query: Sequence[int], radius: int) -> NDArray:
    """The pixels at most so far from the query, along either axis."""
    rows, columns = (slice(max(0, place - radius), place + radius + 1) for place in query)
    return maps[..., rows, columns]


def _mirrored(profile: NDArray) -> NDArray:
    """Correlation of the logarithm of a profile (..., n) with that of its mirror image; 0 where it is flat."""
    height = np.log(np.maximum(profile, 1e-12))
    height = height - height.mean(-1, keepdims=True)
    square = (height**2).sum(-1)
    return (height * height[..., ::-1]).sum(-1) / np.where(square > 1e-12, square, np.inf)


def _twin_peaks(profile: NDArray) -> NDArray:
    """Whether the two highest places of a profile (..., n) are each other's mirror image."""
    return np.argsort(profile, axis=-1)[..., -2:].sum(-1) == profile.shape[-1] - 1


def _mean(values: NDArray) -> NDArray:
    """Over a layer's heads; NaN where it has none."""
    counts = np.isfinite(values).sum(1)
    return np.where(counts, np.nansum(values, axis=1) / np.maximum(counts, 1), np.nan)


def _listed(values: ArrayLike | Sequence[Any], form: str) -> str:
    numbers = (int(value) if form == "d" else float(value) for value in np.asarray(values))
    return ", ".join("—" if np.isnan(number) else format(number, form) for number in numbers).replace("-", "−")


def _by_layer(values: ArrayLike | Sequence[Any], form: str, of: int | None = None) -> str:
    return f"{_listed(values, form)}{f' of {of}' if of else ''} in layers 1 to {len(np.asarray(values))}"


def _named(size: int) -> str:
    return f"{size} × {size}"


def _numbers(layers: NDArray) -> str:
    return _comma(np.flatnonzero(layers) + 1) or "none"


def _comma(numbers: NDArray) -> str:
    return ", ".join(map(str, numbers))


def _chance(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
