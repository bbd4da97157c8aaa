"""How attention averages pixels by P: by all of P, or by its two factors.

Shape letters are those of `attnconv.attention.layers`."""

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL = 64
"""Pixels of an image up to which one product with all of P takes less time than two with its
factors, whose sides are then 8 or less."""
NOTHING = 1e-20
"""Weights that change no sum. CPUs multiply numbers below 1e-38 a hundred times slower."""


def mix_dense(x: Tensor, p: Tensor) -> Tensor:
    """Average pixels by P: x (B, H, W, C), P (h, H, W, H, W) or, where it depends on the images,
    (B, h, H, W, H, W) -> (B, H, W, h C). Costs 2 h N^2 C FLOPs an image.
    """
    # Without images of its own, P is multiplied once with all of them: (h N, N) (N, B C).
    return torch.einsum("...hijkl,...klc->...ijhc", p, x).flatten(-2)


def mix_separable(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Average pixels by P = P_row (x) P_col: along rows of P_row, then of P_col. P is never built,
    but for images of `SMALL` pixels or fewer.

    x (B, H, W, C), P_row (h, Q, H), P_col (h, R, W) -> (B, Q, R, h C). The queries, Q x R, are all
    pixels in a layer of the paper, and fewer where attention stands for a convolution. Costs 2 h N
    (H + W) C FLOPs an image where they are all.
    """
    row = F.threshold(row, NOTHING, 0)
    column = F.threshold(column, NOTHING, 0)
    if x.shape[1] * x.shape[2] <= SMALL:
        return mix_dense(x, row[:, :, None, :, None] * column[:, None, :, None, :])
    # Pixels before images in memory, (H, W, B, C): then one product averages all images.
    rows = torch.einsum("hik,bklc->hilbc", row, x)
    return torch.einsum("hjl,hilbc->bijhc", column, rows).flatten(-2)
