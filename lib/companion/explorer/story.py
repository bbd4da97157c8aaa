"""The first page of a site: steps that explain the paper, on the playground and on trained
networks."""

from collections.abc import Iterable, Mapping
from typing import Any

from attnconv.training.runs import Run
from companion import figures
from companion.explorer import assets
from companion.explorer.counts import counted_swaps
from companion.explorer.packing import Tree, array, as_text, pack
from companion.explorer.playground import Playground
from companion.explorer.subject import subject_of

# Files of a run of each preset, without which the page cannot show it.
NEEDS = {
    "quadratic": ["model.safetensors", "heads.npz"],
    "learned": ["model.safetensors"],
    "learned_content": ["model.safetensors", "attention.npz"],
}


def networks(runs: Iterable[Run]) -> dict[str, Run]:
    """Of each preset that the page can show, the longest run that has what it needs."""
    found: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: -run.train.epochs):
        needed = NEEDS.get(run.preset)
        if needed and all((run.path / file).is_file() for file in needed):
            found.setdefault(run.preset, run)
    return found


def story(runs: Mapping[str, Run], words: str) -> str:
    """The page, by which a network of each preset in ``runs`` is shown; ``words`` is the HTML of
    its steps."""
    start = Playground()
    sides = {kind: _side(run) for kind, run in runs.items()}
    data: Tree = dict(pictures=start.pictures, colours=figures.head_colours(20), sides=sides)
    if "learned_content" in runs:
        run = runs["learned_content"]
        kept: Any = run.arrays("attention.npz")
        data["images"] = [array(image) for image in kept["pixels"]]
        data |= {name: run.config["data"][name] for name in ("mean", "std")}
    title = "Attention can be a convolution. Does it learn to be one?"
    return assets.page(title, "story", as_text(pack(data)), start.png(), words)


def _side(run: Run) -> Tree:
    """A network as the page needs it: where its heads look. Where they look at content, this
    takes weights: those of its first two layers."""
    side = dict(subject_of(run).arrays, counted=counted_swaps(run))
    if run.preset != "learned_content":
        return dict(side, weights={})
    early = {}
    for name, values in side["weights"].items():
        if name.startswith(("blocks.0.", "blocks.1.")) or not name.startswith("blocks."):
            early[name] = values
    return dict(side, weights=early, heads=side["heads"][:2], path=None)
