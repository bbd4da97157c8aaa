"""How far each layer of a trained network is a convolution: what is lost when it is made one
(paper, section 4).

`measure_swaps` puts convolutions in the place of one layer, and of the first layers up to each, and
counts answers. It also measures how well each layer's output is met, before training and after it:
which layers *became* convolutions."""

import copy
import math

import numpy as np
import torch
from torch import Tensor

from attnconv.config import ConfigError
from attnconv.equivalence.swapping import READ_ON, relative_errors, swap
from attnconv.models import AttentionNet, Convolution
from attnconv.training.data import Dataset, normalize
from attnconv.training.machine import progress_bar
from attnconv.training.runs import Run

SIZES, SHUFFLED, FITTED = (1, 3, 5, 7, 9), (3,), (3, 5)
"""Sides of kernels: of all; of those with taps in another order, the control; of those that are
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

    Returns: Answers, one bit for each of the ``images`` (n) test images, packed along the last
        axis, ceil(n / 8) uint8: ``alone`` (L, S, ...) and ``up_to`` (L, S, ...) say whether it is
        right with a convolution of each of the ``sizes`` (S,) in layer l alone, and in all layers
        up to l; ``fitted`` (L, F, ...) and ``shuffled`` (L, 1, ...) the latter with kernels fitted
        to what the layers see, and with their taps in another order; ``whole`` (...) the network as
        it is. ``error`` (2, L, S): relative error of each layer as a convolution, before training,
        NaN where the ``untrained`` network is not known, and after it; ``fitted_error`` (L, F) of
        the fitted ones. Of quadratic heads also ``put_back`` (2, L, S): that of each layer with its
        centres, or its spreads, as they began."""
    device = next(trained.parameters()).device
    height, width = trained.config.grid
    if not {*SHUFFLED} <= {*(sizes := [size for size in SIZES if size <= min(height, width)])}:
        raise ConfigError(
            f"On {height} x {width} pixels no layer is a 3 x 3 convolution: take a smaller downsampling."
        )
    fits = [size for size in FITTED if size in sizes]
    shown = normalize(data.train_images[:READ_ON].to(device), data.mean, data.std)
    tests = normalize(data.test_images[:COMPARED].to(device), data.mean, data.std)
    layers, seen = range(1, len(trained.blocks) + 1), trained.eval().layer_inputs(tests)

    def made(network: AttentionNet, size: int, **how: Tensor) -> AttentionNet:
        return swap(network, dict.fromkeys(layers, size), **how)

    def read(network: AttentionNet) -> list[AttentionNet]:
        images = {"images": shown} if network.config.kind == "learned_content" else {}
        return [made(network, size, **images) for size in sizes]

    def errors(
        network: AttentionNet, swapped: list[AttentionNet], x: list[Tensor] = seen
    ) -> list[list[float]]:
        convs = zip(*(one.attention_layers for one in swapped), strict=True)  # of each layer
        layers = [layer for layer in network.attention_layers if not isinstance(layer, Convolution)]
        return [relative_errors(*each) for each in zip(convs, layers, x, strict=True)]

    after = read(trained)
    fitted = [made(trained, size, fit=shown) for size in fits]
    error, backs = np.array([errors(trained, after)] * 2), []
    error[0] = math.nan
    if untrained is not None:
        error[0] = errors(
            untrained.to(device).eval(), read(untrained), untrained.layer_inputs(tests)
        )
        for name in ("centres", "spreads") if trained.config.kind == "quadratic" else ():
            back = copy.deepcopy(trained)
            first = {
                key: value for key, value in untrained.state_dict().items() if key.endswith(name)
            }
            back.load_state_dict(first, strict=False)
            backs.append(errors(back, read(back)))
    shuffled = [_shuffled(copy.deepcopy(after[sizes.index(size)])) for size in SHUFFLED]
    networks = {"up_to": after, "fitted": fitted, "shuffled": shuffled}

    labels = data.test_labels.to(device)
    tried = {"alone": after, **networks}
    right: dict[str, np.ndarray] = {"whole": np.zeros(len(labels), bool)}
    right |= {
        name: np.zeros((len(layers), len(some), len(labels)), bool) for name, some in tried.items()
    }
    with progress_bar(len(labels), leave=False) as bar:
        bar.set_description(
            "Convolutions in the layers' place"
        )  # up to an hour with content, on two cores
        for start in range(0, len(labels), BATCH):
            part = slice(start, start + BATCH)
            x, y = normalize(data.test_images[part].to(device), data.mean, data.std), labels[part]
            inputs = trained.layer_inputs(x)
            right["whole"][part] = _right(trained, len(layers) - 1, inputs[-1], y)
            for name, some in networks.items():
                for n, network in enumerate(some):
                    so_far = inputs[0]
                    for i, block in enumerate(network.blocks):
                        so_far = block(so_far)
                        right[name][i, n, part] = up_to = _right(trained, i + 1, so_far, y)
                        if name == "up_to":
                            right["alone"][i, n, part] = (
                                _right(trained, i + 1, block(inputs[i]), y) if i else up_to
                            )
            bar.update(len(y))
    sides = {
        "sizes": sizes,
        "fitted_sizes": fits,
        "shuffled_sizes": SHUFFLED,
        "images": len(labels),
    }
    return (
        {name: np.array(value) for name, value in sides.items()}
        | {name: np.packbits(answers, axis=-1) for name, answers in right.items()}
        | {"error": error, "fitted_error": np.array(errors(trained, fitted))}
        | ({"put_back": np.array(backs)} if backs else {})
    )


@torch.no_grad()
def _shuffled(network: AttentionNet) -> AttentionNet:
    """The same swapped network, its kernels' taps in another order."""
    for layer in network.attention_layers:
        assert isinstance(layer, Convolution)
        taps = layer.conv.weight.flatten(2)
        order = torch.randperm(taps.shape[2], generator=torch.Generator().manual_seed(0)).to(
            taps.device
        )
        layer.conv.weight.copy_(taps[:, :, order].view_as(layer.conv.weight))
    return network


def _right(network: AttentionNet, done: int, x: Tensor, labels: Tensor) -> np.ndarray:
    """Whether the network answers right, going on from what its first ``done`` blocks give, x
    (B, H, W, C): (B,).
    """
    for block in network.blocks[done:]:
        x = block(x)
    return (network.classifier(x.mean(dim=(1, 2))).argmax(1) == labels).cpu().numpy()


def untrained(run: Run) -> AttentionNet:
    """The network of a run as it was before its first step: its seed decides the first weights."""
    if run.model.kind == "resnet":
        raise TypeError(f"{run.path} has no attention layers: it is a ResNet18.")
    torch.manual_seed(run.train.seed)
    return AttentionNet(run.model)
