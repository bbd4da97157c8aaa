"""`attnconv`, with dropout whose masks cost a CPU little: `python faster_dropout.py train ...`.

PyTorch draws each number of a mask alone, a fifth of the paper's recipe's time on a CPU. Here a number gets sixteen
random bits, of a generator that torch's own one seeds: the same share is kept (p is a multiple of 1 / 65,536), and a
resumed run goes on with the same bits.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

from attnconv.batch.cli import main


@torch.library.custom_op("attnconv::kept", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def kept(x: Tensor, p: float) -> Tensor:
    """Whether each number of x stays: with probability 1 - p."""
    seed = torch.randint(2**63 - 1, ()).item()
    bits = torch.from_numpy(np.random.SFC64(seed).random_raw(x.numel() // 4 + 1).view(np.int16))
    return (bits[: x.numel()] >= round(p * 2**16) - 2**15).view(x.shape)


@kept.register_fake
def _(x: Tensor, p: float) -> Tensor:
    return torch.empty(x.shape, dtype=torch.bool)


def forward(self: nn.Dropout, x: Tensor) -> Tensor:
    return x * (kept(x, self.p) * (1 / (1 - self.p))) if self.training and self.p else x


nn.Dropout.forward = forward
sys.exit(main())
