"""How attention averages pixels by P: by all of P, or by its two factors.

Shape letters are those of `attnconv.attention.layers`."""

import torch
from torch import Tensor


def mix_dense(x: Tensor, p: Tensor) -> Tensor:
    """Average pixels by P: x (B, H, W, C), P (h, H, W, H, W) or, where it depends on the images,
    (B, h, H, W, H, W) -> (B, H, W, h C). Costs 2 h N^2 C FLOPs an image.
    """
    # Without images of its own, P is multiplied once with all of them: (h N, N) (N, B C).
    return torch.einsum("...hijkl,...klc->...ijhc", p, x).flatten(-2)


def mix_separable(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Average pixels by P = P_row (x) P_col, never built: along rows of P_row, then of P_col.

    x (B, H, W, C), P_row (h, Q, H), P_col (h, R, W) -> (B, Q, R, h C). The queries, Q x R, are all
    pixels in a layer of the paper, and fewer where attention stands for a convolution. Costs 2 h N
    (H + W) C FLOPs an image where they are all.
    """
    # Pixels before images in memory, (H, W, B, C): then one product averages all images.
    rows = torch.einsum("hik,bklc->hilbc", row, x)
    mixed = torch.einsum("hjl,hilbc->bijhc", column, rows)
    return mixed.flatten(-2)
