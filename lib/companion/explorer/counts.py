"""Right answers with convolutions in the place of any of a network's layers: for all 2^L choices
of layers, so that the page's accuracy bar moves at once.

    python -m companion.explorer.counts RUN DATA [IMAGES]

counts them on a data set's test images, which takes a while, and keeps them with the run, in
``subsets.npz``. Without that file the page has what `measure_swaps` counted: of single layers and
of the first layers up to each."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnconv.equivalence import swap
from attnconv.models import AttentionNet, evaluating
from attnconv.training.data import load_data, normalize
from attnconv.training.runs import Run
from companion.explorer.subject import Subject, subject_of

SIZES = (3, 7)  # sides of the kernels
MOST_LAYERS = 8
BATCH = 100
FILE = "subsets.npz"


def sizes_of(side: Subject) -> list[int]:
    """Sides of the kernels that can take the place of any of a network's layers."""
    heads = side.config.heads_per_layer
    if side.content or not all(heads) or len(heads) > MOST_LAYERS:
        return []
    return [size for size in SIZES if size <= min(side.config.grid)]


@torch.no_grad()
def count_swaps(
    model: AttentionNet, images: Tensor, labels: Tensor, sizes: Sequence[int]
) -> NDArray:
    """Right answers on some images (N, C, H, W) with convolutions in the place of some layers.

    Returns (S, 2^L) counts: the bits of the second index say which layers are convolutions of
    that size, the first layer's bit being the lowest."""
    layers = range(1, len(model.blocks) + 1)
    right = np.zeros((len(sizes), 2 ** len(layers)), np.int64)
    with evaluating(model):
        for place, size in enumerate(sizes):
            pair = model, swap(model, dict.fromkeys(layers, size)).eval()
            for some, theirs in zip(images.split(BATCH), labels.split(BATCH), strict=True):
                _count(pair, model.pixels(some), theirs, right[place], 0, 0)
    return right


def _count(
    pair: tuple[AttentionNet, AttentionNet],
    x: Tensor,
    labels: Tensor,
    right: NDArray,
    layer: int,
    choice: int,
) -> None:
    """Add the right answers of all choices that begin with this one. Those share what is before
    ``layer``, x: so 2^(L + 1) blocks are computed, not L 2^L."""
    model, swapped = pair
    if layer == len(model.blocks):
        says = model.classifier(x.mean(dim=(1, 2))).argmax(-1)
        right[choice] += (says == labels).sum().item()
        return
    _count(pair, model.blocks[layer](x), labels, right, layer + 1, choice)
    _count(pair, swapped.blocks[layer](x), labels, right, layer + 1, choice + 2**layer)


def counted_swaps(run: Run | None) -> dict[int, dict[int, tuple[int, int, int]]]:
    """What is known of a run, by size and choice of layers: right answers, those with attention
    everywhere, and of how many images. Of single layers and of the first ones `measure_swaps` has
    counted more images."""
    known: dict[int, dict[int, tuple[int, int, int]]] = {}
    if run is None or run.model.kind == "learned_content":
        return known
    kept, swaps = run.arrays(FILE), run.swaps
    for size, right in zip(kept.get("sizes", ()), kept.get("right", ()), strict=True):
        known[int(size)] = {}
        for choice, count in enumerate(right):
            known[int(size)][choice] = int(count), int(right[0]), int(kept["images"])
    for place, size in enumerate(swaps.get("sizes", ())):
        of = known.setdefault(int(size), {})
        whole, images = int(swaps["whole"].sum()), int(swaps["images"])
        of[0] = whole, whole, images
        for layer in range(run.model.layers):
            of[2**layer] = int(swaps["alone"][layer, place].sum()), whole, images
            of[2 ** (layer + 1) - 1] = int(swaps["up_to"][layer, place].sum()), whole, images
    return known


def keep_counts(folder: str | Path, data: str, many: int | None = None) -> Path:
    """Count on a data set's first test images, and keep the counts with a run."""
    side, some = subject_of(folder), load_data(data).first(None, many)
    images = normalize(some.test_images, some.mean, some.std)
    right = count_swaps(side.model, images, some.test_labels, sizes_of(side))
    file = Path(folder) / FILE
    np.savez_compressed(file, images=len(images), sizes=sizes_of(side), right=right)
    return file


if __name__ == "__main__":
    folder, data, *many = sys.argv[1:]
    print(keep_counts(folder, data, int(many[0]) if many else None))
