"""How far each layer of a trained network is a convolution: what is lost when it is made one
(paper, section 4).

`measure_swaps` puts convolutions in the place of one layer, and of the first layers up to each, and
counts answers. It also measures how well each layer's output is met, before training and after it:
which layers *became* convolutions."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from attnconv.config import ConfigError
from attnconv.equivalence.swapping import AT_ONCE, READ_ON, relative_errors, swap
from attnconv.models import AttentionNet
from attnconv.training import evaluate
from attnconv.training.data import Dataset, batches
from attnconv.training.runs import Arrays, Run

SIZES = (1, 3, 5, 7, 9)
"""Sides of the kernels that are read out of layers."""
FITTED = (3, 5)
"""Sides of those that are fitted besides."""
SHUFFLED = 3
"""Side of the control: the kernel that is read, its taps in another order."""
COMPARED = 100
"""Test images on which a layer's output is held against the convolution's."""


@torch.no_grad()
def measure_swaps(trained: AttentionNet, untrained: AttentionNet | None, data: Dataset) -> Arrays:
    """What a network loses by convolutions in the place of its layers, on all test images.

    Returns:
        Answers, one bit for each of the ``images`` (n) test images, packed along the last axis,
        ceil(n / 8) uint8: ``alone`` (L, S, ...) and ``up_to`` (L, S, ...) say whether it is right
        with a convolution of each of the ``sizes`` (S,) in layer l alone, and in all layers up to
        l; ``fitted`` (L, F, ...) and ``shuffled`` (L, 1, ...) the latter with kernels fitted to
        what the layers see, and with their taps in another order; ``whole`` (...) the network as it
        is. ``error`` (2, L, S): relative error of each layer as a convolution, before training, NaN
        where the ``untrained`` network is not known, and after it.
    """
    grid = trained.config.grid
    sizes = [size for size in SIZES if size <= min(grid)]
    fits = [size for size in FITTED if size in sizes]
    if SHUFFLED not in sizes:
        raise ConfigError(
            f"On {grid[0]} x {grid[1]} pixels no layer is a 3 x 3 convolution: "
            "take a smaller downsampling."
        )
    device = next(trained.parameters()).device
    data = data.to(device)
    shown, _ = data.few("train", READ_ON)
    tests, _ = data.few("test", COMPARED)
    read = _swapped(trained, sizes, images=shown)
    tried = {
        "alone": read,
        "up_to": read,
        "fitted": _swapped(trained, fits, fit=shown),
        "shuffled": [_shuffled(read[sizes.index(SHUFFLED)])],
    }

    after = _errors(trained, read, tests)
    before = np.full_like(after, np.nan)
    if untrained is not None:
        untrained.to(device)
        before = _errors(untrained, _swapped(untrained, sizes, images=shown), tests)
    right = evaluate(trained, data).predicted == data.test_labels.cpu()
    found = {
        "images": np.array(len(right)),
        "sizes": np.array(sizes),
        "fitted_sizes": np.array(fits),
        "shuffled_sizes": np.array([SHUFFLED]),
        "error": np.array([before, after]),
        "whole": np.packbits(right),
    }
    answers: Any = defaultdict(list)
    feed = batches(data.test_images, data.test_labels, None, AT_ONCE, data.mean, data.std)
    # half an hour with content, on two cores
    for images, labels in tqdm(feed, "Convolutions", len(right) // AT_ONCE):
        seen = trained.layer_inputs(images)
        for name, networks in tried.items():
            given = [_classes(trained, one, seen, name == "alone") for one in networks]
            answers[name].append(torch.stack(given, 1) == labels)
    for name, parts in answers.items():
        found[name] = np.packbits(torch.cat(parts, 2).cpu(), axis=2)
    return found


def _swapped(network: AttentionNet, sizes: Sequence[int], **shown: Tensor) -> list[AttentionNet]:
    """The network, in evaluation mode from here on, with convolutions of each size in all its
    layers, read or fitted."""
    layers = range(1, len(network.blocks) + 1)
    return [swap(network.eval(), dict.fromkeys(layers, size), **shown) for size in sizes]


def _errors(network: AttentionNet, swapped: Sequence[AttentionNet], images: Tensor) -> np.ndarray:
    """Relative error of each layer, on what it sees, as each of the convolutions: (L, S)."""
    found = []
    for number, seen in enumerate(network.layer_inputs(images)):
        convolutions = [one.attention_layers[number] for one in swapped]
        found.append(relative_errors(convolutions, network.blocks[number].attention, seen))
    return np.array(found)


@torch.no_grad()
def _shuffled(network: AttentionNet) -> AttentionNet:
    """A copy of a swapped network, its kernels' taps in another order."""
    network = copy.deepcopy(network)
    for block in network.blocks:
        weight = block.attention.conv.weight
        taps = weight.flatten(2)
        order = torch.randperm(taps.shape[2], generator=torch.Generator().manual_seed(0))
        weight.copy_(taps[:, :, order].view_as(weight))
    return network


def _classes(
    trained: AttentionNet, swapped: AttentionNet, seen: Sequence[Tensor], alone: bool
) -> Tensor:
    """The class given to each image with one layer swapped, or all up to it, from what the trained
    network's layers see: (L, B)."""
    x = seen[0]
    logits = []
    for number, block in enumerate(swapped.blocks):
        x = block(seen[number] if alone else x)
        rest = torch.nn.Sequential(*trained.blocks[number + 1 :])
        logits.append(trained.classifier(rest(x).mean((1, 2))))
    return torch.stack(logits).argmax(2)


def untrained(run: Run) -> AttentionNet:
    """The network of a run as it was before its first step: its seed decides the first weights."""
    torch.manual_seed(run.train.seed)
    return AttentionNet(run.model)
