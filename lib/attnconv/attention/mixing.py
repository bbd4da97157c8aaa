"""Equal, faster forms of the averages that attention takes, and which one is taken when.

`attnconv.attention` says what a layer computes. Everything here computes the same numbers with
other products:

  P                        where                form, and why
  rows x columns           CPU, large grids     `attend`: two short averages and one projection, all heads in each
                                                product, a few images at a time, positions before images in memory. What
                                                is live fits the cache; only the input is stored for the backward pass.
  one P over all pixels    CPU                  `attend` again: an image is then one long row of pixels.
  (small grids: SMALL_GRID and SMALL_GRID_CUDA;
  full covariance, dropout)
  either                   GPU, torch.compile,  `mix_separable` or `mix_dense`, then the value projection: plain
                           torch.func, hooks    operations that PyTorch can fuse, transform and differentiate.
  one P, more than BLOCK   anywhere             `attend_in_blocks` of queries, made again in the backward pass, so that
                                                memory is linear in pixels.
  P of images (content)    CPU                  `attend_content`: one product, or beyond STORED one for a few images at
                                                a time, made again in the backward pass.
                           GPU                  PyTorch's fused attention kernel; one product where keys or values have
                                                more than FUSED numbers, as the paper's have.

`make bench` measures them. Shape letters are those of `attnconv.attention`; b are the images of one
chunk."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Mixing = Literal["auto", "dense", "separable"]

SMALL_GRID = (
    64  # up to so many pixels P over all of them is one product that is as fast as two short ones
)
SMALL_GRID_CUDA = 256  # the same on a GPU, whose matrix units large products fill: docs/costs.md
CHUNK = (
    2**22
)  # bytes that the averages of all heads take for the images of one chunk: they stay in the cache
BLOCK = 2**23  # entries of P that exist at a time where it is not made whole: 32 MiB in float32
# numbers of a key, or of a value, up to which PyTorch's fused kernel on a GPU is the fast one
FUSED = 256
STORED = (
    2**26
)  # entries of the P of images (content) that are stored for the backward pass: 256 MiB in float32
AUTOCAST = (
    "cpu",
    "cuda",
    "mps",
    "xpu",
)  # kinds of devices; to ask torch itself breaks the graph in torch 2.11


def attend_by_position(layer: Any, x: Tensor) -> Tensor:
    """Forward pass of a `PositionalAttention`, by the table above: (B, H, W, C) -> (B, H, W, D)."""
    height, width = x.shape[1:3]
    dropout = layer.dropout if layer.training else 0.0
    factors = layer.separable and layer.mixing != "dense" and not dropout
    small = SMALL_GRID_CUDA if x.is_cuda else SMALL_GRID
    if factors and (layer.mixing == "separable" or height * width > small):
        return attend(
            x, layer.axis_probabilities(height, 0), layer.axis_probabilities(width, 1), layer.value
        )
    if layer.mixing == "dense" or layer.heads * (height * width) ** 2 <= BLOCK:
        return attend(x, None, F.dropout(layer.probabilities(height, width), dropout), layer.value)
    return attend_in_blocks(x, layer.score_terms(height, width), layer.value, dropout)


# The averages as plain operations.


def mix_dense(x: Tensor, p: Tensor) -> Tensor:
    """Average pixels by P: x (B, 1, N, C), P (h, N, N) -> (B, 1, N, h C). Costs 2 h N^2 C FLOPs
    an image.
    """
    batch, _, pixels, channels = x.shape
    # Rows ordered (query, head), so that the product is already channels last: no copy. Autocast
    # would cast P once for each image after `expand`.
    rows = p.to(_product_type(p)).transpose(0, 1).reshape(-1, pixels)  # (N h, N)
    mixed = torch.bmm(rows.expand(batch, -1, -1), x.reshape(batch, pixels, channels))  # (B, N h, C)
    return mixed.view(batch, 1, pixels, len(p) * channels)


def mix_separable(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Average pixels by P = P_row (x) P_col, rows first, then columns; costs 2 h N (H + W) C FLOPs
    an image.

    x (B, H, W, C), P_row (h, Q, H), P_col (h, R, W) -> (B, Q, R, h C). The queries, Q x R, are all
    pixels in a layer of the paper, and fewer where attention stands for a convolution."""
    batch, height, width, channels = x.shape
    heads, queries, _ = row.shape
    row, column = (p.to(_product_type(p)) for p in (row, column))
    rows = row.transpose(0, 1).reshape(queries * heads, height)  # ordered (query row, head)
    mixed = torch.bmm(rows.expand(batch, -1, -1), x.reshape(batch, height, width * channels))
    mixed = mixed.view(batch * queries, heads, width, channels)
    mixed = torch.matmul(column.expand(batch * queries, -1, -1, -1), mixed)  # (B Q, h, R, C)
    return mixed.transpose(1, 2).reshape(batch, queries, column.shape[1], heads * channels)


def scores(rows: Tensor, columns: Tensor, *terms: Tensor) -> Tensor:
    """Scores of the queries at those rows and columns, each (q,), for all keys: (h, q, H, W).

    ``terms``: a score for rows (h, H, H) and one for columns (h, W, W), query x key, which are
    added; for a full covariance two more such pairs, S (k - q - centre), half of whose squares is
    taken off."""
    parts = [term[:, where] for term, where in zip(terms, (rows, columns) * 3, strict=False)]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    total, *stretched = (row[..., :, None] + column[..., None, :] for row, column in pairs)
    return total - 0.5 * sum(along.square() for along in stretched) if stretched else total


def in_torch_func() -> bool:
    """Whether a transform of torch.func is at work: vmap, grad, jvp, ..."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _product_type(x: Tensor) -> torch.dtype:
    """The type in which x is multiplied: autocast's, or its own where autocast is off or leaves
    it alone.
    """
    kind = x.device.type
    on = kind in AUTOCAST and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on and x.dtype != torch.float64 else x.dtype


def _eager_on_cpu(x: Tensor) -> bool:
    """Whether x holds plain numbers on a CPU: nothing is traced, compiled or transformed."""
    eager = (
        type(x) in (Tensor, nn.Parameter)
        and not torch.compiler.is_compiling()
        and not in_torch_func()
    )
    return (
        eager
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64, torch.bfloat16)
    )


# The averages and the value projection in one.


def attend(x: Tensor, row: Tensor | None, column: Tensor, value: nn.Linear) -> Tensor:
    """sum_h sum_k P_h(q, k) X_k W^h + b, with P = P_row (x) P_col, or one P over all pixels where
    ``row`` is None.

    x (B, H, W, C); P_row (h, H, H) and P_col (h, W, W), or None and P (h, H, W, H, W); ``value``
    holds W (D, h C) and b (D,). Returns (B, H, W, D). All forms have all derivatives."""
    size, dtype = x.shape[1:3], _product_type(x)
    row, column = None if row is None else row.to(x.dtype), column.to(x.dtype)
    if row is None:  # an image is then one long row of pixels
        x, column = x.flatten(1, 2)[:, None], column.flatten(3, 4).flatten(1, 2)
    hooks = (
        value._forward_hooks
        or value._forward_pre_hooks
        or value._backward_hooks
        or value._backward_pre_hooks
    )
    plain = type(value) is nn.Linear and not hooks
    large = x.numel() and len(column) and (row is not None or x.shape[2] > SMALL_GRID)
    if plain and large and _eager_on_cpu(x) and dtype == _product_type(value.weight):
        y = _by_chunks(x, row, column, value, dtype)
    else:
        y = value(mix_dense(x, column) if row is None else mix_separable(x, row, column))
    return y.flatten(1, 2).unflatten(1, size)


def _by_chunks(
    x: Tensor, row: Tensor | None, column: Tensor, value: nn.Linear, dtype: torch.dtype
) -> Tensor:
    """`attend` for a few images at a time and, where those of one image take more than `CHUNK`, a
    few heads.

    Only the input is stored for the backward pass: to make averages again costs less than to read
    them back."""
    heads, head = (
        len(column),
        x[0].numel() * dtype.itemsize,
    )  # bytes of one head's averages of an image
    splits, chunks = (
        -(-heads // max(1, CHUNK // head)),
        -(-len(x) // max(1, CHUNK // (heads * head))),
    )  # equal parts
    values = (
        value.weight.unflatten(1, (heads, -1)).permute(1, 2, 0).contiguous().chunk(splits)
    )  # W^h: (h, C, D)
    rows: Sequence[Tensor | None] = [None] * len(values) if row is None else row.chunk(splits)
    groups = list(zip(rows, column.chunk(splits), values, strict=True))
    parts = (
        (_made_again(_heads_together, some, *group, dtype) for group in groups)
        for some in x.chunk(chunks)
    )
    out = torch.cat([functools.reduce(torch.add, of_heads) for of_heads in parts])
    return out if value.bias is None else out + value.bias.to(dtype)


def _heads_together(
    x: Tensor, row: Tensor | None, column: Tensor, values: Tensor, dtype: torch.dtype
) -> Tensor:
    """Average along columns of pixels, project with each head's W^h, then average along rows and
    add up the heads:

        y[h, i]   = sum_k P_row[h, i, k] x[k]               (h H x H) (H x W b C)
        v[h]      = y[h] W^h                                (H W b x C) (C x D) for each head
        out[i]    = sum_{h, l} P_col[h, :, l] v[h, i, l]    (W x h W) (h W x b D) for each row of pixels

    x (b, H, W, C) -> (b, H, W, D). Each product takes all heads, and images whose pixels come first
    in memory, (H, W, b, C): three times as fast as small products head by head. Without P_row, H is
    1 and y the pixels themselves. Products are taken in ``dtype``; gradients of chunks add up in
    that of the parameters."""
    (images, height, width, channels), heads = x.shape, len(values)
    pixels = (
        x.permute(1, 2, 0, 3).to(dtype, memory_format=torch.contiguous_format).flatten(1)
    )  # (H, W b C)
    y = pixels if row is None else row.to(dtype).flatten(0, 1) @ pixels  # (h H, W b C)
    y = y.view(-1, height * width * images, channels).expand(heads, -1, -1)
    v = (
        torch.bmm(y, values.to(dtype))
        .view(heads, height, -1)
        .transpose(0, 1)
        .reshape(height, heads * width, -1)
    )
    column = column.to(dtype).transpose(0, 1).flatten(1)  # (W, h W)
    out = torch.bmm(column.expand(height, -1, -1), v)  # (H, W, b D)
    return out.view(height, width, images, -1).permute(2, 0, 1, 3)


# Where P is too large to be made whole, or to be stored.


def attend_in_blocks(
    x: Tensor, terms: tuple[Tensor, ...], value: nn.Module, dropout: float
) -> Tensor:
    """As `attend`, for as many queries at a time as `BLOCK` allows; ``terms`` are what `scores`
    adds up.
    """
    batch, height, width, channels = x.shape
    heads, pixels = len(terms[0]), height * width
    keys = x.permute(1, 2, 0, 3).reshape(pixels, batch * channels)

    def mix(queries: Tensor, keys: Tensor, *terms: Tensor) -> Tensor:
        """(q,) -> (B, q, h C)."""
        p = scores(queries // width, queries % width, *terms).flatten(-2).softmax(-1)  # (h, q, N)
        p = F.dropout(p, dropout).to(keys.dtype).transpose(0, 1).reshape(-1, pixels)
        return (p @ keys).view(len(queries), heads, batch, channels).permute(2, 0, 1, 3).flatten(-2)

    # Terms and keys are arguments of each block, so that PyTorch notices if what the backward pass
    # reads was changed.
    blocks = torch.arange(pixels, device=x.device).split(max(1, BLOCK // (heads * pixels)))
    mixed = torch.cat([_made_again(mix, queries, keys, *terms) for queries in blocks], dim=1)
    return value(mixed).unflatten(1, (height, width))


def attend_content(
    q: Tensor, k: Tensor, rows: Tensor, columns: Tensor, x: Tensor, dropout: float = 0.0
) -> Tensor:
    """The averages of all heads where scores depend on the images: x (B, H, W, C) -> (B, H, W, h
    C).

    q and k (B, h, H, W, K); ``rows`` (B, h, H, W, H) and ``columns`` (B, h, H, W, W) are each
    query's scores for key rows and key columns. P = softmax((q . k + rows + columns) / sqrt(K)).
    """
    batch, heads, height, width, size = q.shape
    scale, channels = 1 / math.sqrt(size), x.shape[-1]
    # [q, rows, columns] . [k, one-hot row, one-hot column] = q . k + rows + columns: an ordinary
    # dot product.
    row, column = (torch.eye(n, dtype=k.dtype, device=k.device) for n in (height, width))
    where = torch.cat(
        [row[:, None].expand(-1, width, -1), column.expand(height, -1, -1)], dim=-1
    )  # (H, W, H + W)
    q = torch.cat([q, rows.to(q.dtype), columns.to(q.dtype)], dim=-1).flatten(
        2, 3
    )  # (B, h, N, K + H + W)
    k = torch.cat([k, where.expand(batch, heads, -1, -1, -1)], dim=-1).flatten(2, 3)
    x, wanted = x.flatten(1, 2).to(q.dtype), 8 * math.ceil(max(q.shape[-1], channels) / 8)
    if q.device.type == "cpu" or wanted > FUSED:
        mixed = _attend_to_all(q * scale, k, x, dropout)
    else:  # zeros change nothing, and the fused kernels want one size for all, a multiple of 8
        x = x[:, None].expand(-1, heads, -1, -1)
        q, k, x = (F.pad(t, (0, wanted - t.shape[-1])) for t in (q, k, x))
        mixed = F.scaled_dot_product_attention(q, k, x, dropout_p=dropout, scale=scale)[
            ..., :channels
        ].transpose(1, 2)
    return mixed.reshape(batch, height, width, heads * channels)


def _attend_to_all(q: Tensor, k: Tensor, x: Tensor, dropout: float) -> Tensor:
    """softmax(q k^T) x for every head: q and k (B, h, N, K), x (B, N, C) -> (B, N, h, C); memory
    as `STORED` says.
    """

    def attend(q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        p = F.dropout(torch.matmul(q, k.mT).softmax(-1), dropout)
        mixed = torch.matmul(
            p.flatten(1, 2), x.to(p.dtype)
        )  # (b, h N, C): one product for all heads
        return mixed.unflatten(1, p.shape[1:3]).transpose(1, 2)

    at_once = max(1, STORED // max(1, q.shape[1] * q.shape[2] ** 2))
    if x.shape[0] <= at_once:  # as `len` would tell torch.export that the batch is of this size
        return attend(q, k, x)
    parts = zip(*(t.split(at_once) for t in (q, k, x)), strict=True)
    return torch.cat([_made_again(attend, *part) for part in parts])


def _made_again(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """function(*inputs), computed again in the backward pass instead of stored."""
    # Without gradients nothing is stored, and two seconds to import PyTorch's compiler are saved.
    # torch.func does not know saved tensors that are made again.
    if not torch.is_grad_enabled() or in_torch_func():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False)
