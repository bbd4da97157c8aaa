"""How far each layer of a trained network is a convolution: what is lost when it is made one
(paper, section 4).

`measure_swaps` puts convolutions in the place of one layer, and of the first layers up to each, and
counts answers. It also measures how well each layer's output is met, before training and after it:
which layers *became* convolutions."""

import copy
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from attnconv.config import ConfigError
from attnconv.equivalence.swapping import READ_ON, relative_errors, swap
from attnconv.models import AttentionNet, Convolution
from attnconv.training.data import Dataset, normalize
from attnconv.training.runs import Run

SIZES, SHUFFLED, FITTED = (1, 3, 5, 7, 9), 3, (3, 5)
"""Sides of kernels: of all; of the one with taps in another order, the control; of those that are
fitted besides.
"""
COMPARED = 100
"""Test images on which a layer's output is held against the convolution's."""
BATCH = 250


@torch.no_grad()
def measure_swaps(
    trained: AttentionNet, untrained: AttentionNet | None, data: Dataset
) -> dict[str, np.ndarray]:
    """What a network loses by convolutions in the place of its layers, on all test images.

    Returns:
        Answers, one bit for each of the ``images`` (n) test images, packed along the last axis,
        ceil(n / 8) uint8: ``alone`` (L, S, ...) and ``up_to`` (L, S, ...) say whether it is right
        with a convolution of each of the ``sizes`` (S,) in layer l alone, and in all layers up to
        l; ``fitted`` (L, F, ...) and ``shuffled`` (L, 1, ...) the latter with kernels fitted to
        what the layers see, and with their taps in another order; ``whole`` (...) the network as it
        is. ``error`` (2, L, S): relative error of each layer as a convolution, before training, NaN
        where the ``untrained`` network is not known, and after it; ``fitted_error`` (L, F) of the
        fitted ones. Of quadratic heads also ``put_back`` (2, L, S): that of each layer with its
        centres, or its spreads, as they began.
    """
    device = next(trained.parameters()).device
    height, width = trained.config.grid
    sizes = [size for size in SIZES if size <= min(height, width)]
    fits = [size for size in FITTED if size in sizes]
    if SHUFFLED not in sizes:
        raise ConfigError(
            f"On {height} x {width} pixels no layer is a 3 x 3 convolution: "
            "take a smaller downsampling."
        )
    shown = normalize(data.train_images[:READ_ON].to(device), data.mean, data.std)
    tests = normalize(data.test_images[:COMPARED].to(device), data.mean, data.std)
    seen = trained.eval().layer_inputs(tests)
    read = _read(trained, sizes, shown)
    layers = range(1, len(trained.blocks) + 1)
    fitted = [swap(trained, dict.fromkeys(layers, size), fit=shown) for size in fits]

    error = np.array([_errors(trained, read, seen)] * 2)
    error[0] = np.nan
    found = {"error": error, "fitted_error": _errors(trained, fitted, seen)}
    if untrained is not None:
        untrained.to(device).eval()
        first = _read(untrained, sizes, shown)
        error[0] = _errors(untrained, first, untrained.layer_inputs(tests))
        if trained.config.kind == "quadratic":
            backs = [_put_back(trained, untrained, name) for name in ("centres", "spreads")]
            put_back = [_errors(back, _read(back, sizes, shown), seen) for back in backs]
            found["put_back"] = np.array(put_back)

    shuffled = [_shuffled(read[sizes.index(SHUFFLED)])]
    tried = {"alone": read, "up_to": read, "fitted": fitted, "shuffled": shuffled}
    found["whole"] = _right(trained, data)
    quiet = os.environ.get("ATTNCONV_QUIET") == "1"
    for name, networks in tried.items():
        answers = []
        # up to an hour with content, on two cores
        for layer in tqdm(layers, f"Convolutions, {name}", disable=quiet):
            start = layer - 1 if name == "alone" else 0
            mixed = [_mixed(trained, network, start, layer) for network in networks]
            answers.append([_right(network, data) for network in mixed])
        found[name] = np.array(answers)
    sides = {"sizes": sizes, "fitted_sizes": fits, "shuffled_sizes": [SHUFFLED]}
    found |= {name: np.array(side) for name, side in sides.items()}
    return found | {"images": np.array(len(data.test_labels))}


def _read(network: AttentionNet, sizes: Sequence[int], shown: Tensor) -> list[AttentionNet]:
    """The network with convolutions of each size, read out of all its layers."""
    images = shown if network.config.kind == "learned_content" else None
    layers = range(1, len(network.blocks) + 1)
    return [swap(network, dict.fromkeys(layers, size), images=images) for size in sizes]


def _errors(
    network: AttentionNet, swapped: Sequence[AttentionNet], seen: Sequence[Tensor]
) -> np.ndarray:
    """Relative error of each layer, on what it sees, as each of the convolutions: (L, S)."""
    found = []
    for number, layer in enumerate(network.attention_layers):
        assert not isinstance(layer, Convolution)
        convolutions = [one.attention_layers[number] for one in swapped]
        found.append(relative_errors(convolutions, layer, seen[number]))
    return np.array(found)


def _put_back(trained: AttentionNet, untrained: AttentionNet, name: str) -> AttentionNet:
    """The trained network with all parameters of this name as they began."""
    back = copy.deepcopy(trained)
    state = untrained.state_dict()
    first = {key: value for key, value in state.items() if key.endswith(name)}
    back.load_state_dict(first, strict=False)
    return back


@torch.no_grad()
def _shuffled(network: AttentionNet) -> AttentionNet:
    """A copy of a swapped network, its kernels' taps in another order."""
    network = copy.deepcopy(network)
    for layer in network.attention_layers:
        assert isinstance(layer, Convolution)
        taps = layer.conv.weight.flatten(2)
        order = torch.randperm(taps.shape[2], generator=torch.Generator().manual_seed(0))
        layer.conv.weight.copy_(taps[:, :, order.to(taps.device)].view_as(layer.conv.weight))
    return network


def _mixed(trained: AttentionNet, swapped: AttentionNet, start: int, end: int) -> AttentionNet:
    """The trained network with some of its layers swapped, from start to before end."""
    mixed = copy.deepcopy(trained)
    for layer in range(start, end):
        mixed.blocks[layer].attention = swapped.blocks[layer].attention
    return mixed


def _right(network: AttentionNet, data: Dataset) -> np.ndarray:
    """Whether the network answers each test image right: bits, packed."""
    device = next(network.parameters()).device
    right = []
    batches = zip(data.test_images.split(BATCH), data.test_labels.split(BATCH), strict=True)
    for images, labels in batches:
        answers = network(normalize(images.to(device), data.mean, data.std)).argmax(1)
        right.append(answers.cpu() == labels.cpu())
    return np.packbits(torch.cat(right).numpy())


def untrained(run: Run) -> AttentionNet:
    """The network of a run as it was before its first step: its seed decides the first weights."""
    if run.model.kind == "resnet":
        raise TypeError(f"{run.path} has no attention layers: it is a ResNet18.")
    torch.manual_seed(run.train.seed)
    return AttentionNet(run.model)
