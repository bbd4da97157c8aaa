"""Right answers with convolutions in the place of any of a network's layers: for all 2^L choices
of layers, so that the page's accuracy bar moves at once.

`keep_counts` takes a while, and keeps them with the run, in ``subsets.npz``. Without that file the
page has what `measure_swaps` counted: of single layers and of the first layers up to each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnconv.equivalence import swap
from attnconv.models import AttentionNet, evaluating
from attnconv.training import load_run
from attnconv.training.data import load_data, normalize
from attnconv.training.runs import Run

SIZES = (3, 7)  # sides of the kernels
BATCH = 25  # images, in as many copies as there are choices
FILE = "subsets.npz"
Counts = dict[int, dict[int, tuple[int, int, int]]]
"""By size and choice of layers: right answers, those with attention everywhere, and of how many
images."""


@torch.no_grad()
def count_swaps(
    model: AttentionNet, images: Tensor, labels: Tensor, sizes: Sequence[int]
) -> NDArray:
    """Right answers on some images (N, C, H, W) with convolutions in the place of some layers.

    Returns (S, 2^L) counts: the bits of the second index say which layers are convolutions of
    that size, the first layer's bit being the lowest. Choices that begin alike share what they
    compute: 2^(L + 1) blocks, not L 2^L."""
    many = len(model.blocks)
    right = np.zeros((len(sizes), 2**many), np.int64)
    with evaluating(model):
        for place, size in enumerate(sizes):
            swapped = swap(model, dict.fromkeys(range(1, many + 1), size)).eval()
            for some, theirs in zip(images.split(BATCH), labels.split(BATCH), strict=True):
                seen = [model.pixels(some)]  # of every choice among the layers so far
                for attention, convolution in zip(model.blocks, swapped.blocks, strict=True):
                    seen = [block(x) for block in (attention, convolution) for x in seen]
                for choice, x in enumerate(seen):
                    answers = model.classifier(x.mean(dim=(1, 2))).argmax(-1)
                    right[place, choice] += (answers == theirs).sum().item()
    return right


def counted_swaps(run: Run | None) -> Counts:
    """What is known of a run. Of single layers and of the first ones `measure_swaps` has counted
    more images."""
    known: Counts = {}
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
    model, run = load_run(folder)
    some = load_data(data).first(None, many)
    images = normalize(some.test_images, some.mean, some.std)
    right = count_swaps(model, images, some.test_labels, SIZES)
    file = run.path / FILE
    np.savez_compressed(file, images=len(images), sizes=SIZES, right=right)
    return file
