"""How attention averages pixels by P: by all of P, or by its two factors.

Shape letters are those of `attnconv.attention.layers`."""

import torch
from torch import Tensor


def mix_dense(x: Tensor, p: Tensor) -> Tensor:
    """Average pixels by P: x (B, H, W, C), P (h, H, W, H, W) or, where it depends on the images,
    (B, h, H, W, H, W) -> (B, H, W, h C). Costs 2 h N^2 C FLOPs an image.
    """
    if p.dim() == 5:
        mixed = torch.einsum("hijkl,bklc->bijhc", p, x)
    else:
        mixed = torch.einsum("bhijkl,bklc->bijhc", p, x)
    return mixed.flatten(-2)


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


def scores(rows: Tensor, columns: Tensor, *terms: Tensor) -> Tensor:
    """Scores of the queries at those rows and columns, two index tensors of one shape or that
    broadcast to one, (..), for all keys: (h, .., H, W).

    ``terms`` are a score for rows (h, H, H) and one for columns (h, W, W), query x key, which are
    added up. For a full covariance the two summands of S u follow, (h, 2, H, H) and (h, 2, W, W),
    half of whose square is taken off."""
    row, column, *stretched = terms
    total = row[:, rows, :, None] + column[:, columns, None, :]
    if stretched:
        row, column = stretched
        along = row[:, :, rows, :, None] + column[:, :, columns, None, :]
        total = total - 0.5 * along.square().sum(1)
    return total
