"""Equal, faster forms of the averages that attention takes, and which one is taken when.

`attnconv.attention` says what a layer computes. Everything here computes the same numbers with other products:

  P                        where                form, and why
  rows x columns           CPU, > SMALL_GRID    `attend`: two short averages and one projection, all heads in each
                                                product, a few images at a time, positions before images in memory. What
                                                is live fits the cache; only the input is stored for the backward pass.
  one P over all pixels    CPU                  `attend` again: an image is then one long row of pixels.
  (small grids, full covariance, dropout)
  either                   GPU, torch.compile,  `mix_separable` or `mix_dense`, then the value projection: plain
                           torch.func, hooks    operations that PyTorch can fuse, transform and differentiate.
  one P, more than BLOCK   anywhere             `attend_in_blocks` of queries, made again in the backward pass, so that
                                                memory is linear in pixels.
  P of images (content)    CPU                  `attend_content`: one product, or beyond STORED one for a few images at
                                                a time, made again in the backward pass.
                           GPU                  PyTorch's fused attention kernel.

`make bench` measures them. Shape letters are those of `attnconv.attention`; b are the images of one chunk.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from attnconv.attention import PositionalAttention

SMALL_GRID = 64
"""Up to this many pixels P over all of them is one product that is as fast as two short ones."""

CHUNK = 2**21
"""Bytes that the averages of all heads take for the images of one chunk: what is live then stays in the cache."""

BLOCK = 2**23
"""Entries of P that exist at a time where it is not made whole: 32 MiB in float32."""

STORED = 2**26
"""Entries of the P of images (content) that are stored for the backward pass: 256 MiB in float32."""


def attend_by_position(layer: PositionalAttention, x: Tensor) -> Tensor:
    """Forward pass of a layer whose P has no batch axis: (B, H, W, C) -> (B, H, W, D), by the table above."""
    height, width = x.shape[1:3]
    dropout = layer.dropout if layer.training else 0.0
    if layer.separable and layer.mixing != "dense" and not dropout:
        if layer.mixing == "separable" or height * width > SMALL_GRID:
            return attend(x, layer.axis_probabilities(height, 0), layer.axis_probabilities(width, 1), layer.value)
    if layer.mixing == "dense" or layer.heads * (height * width) ** 2 <= BLOCK:
        return attend(x, None, F.dropout(layer.probabilities(height, width), dropout), layer.value)
    return attend_in_blocks(x, layer.score_terms(height, width), layer.value, dropout)


# The averages as plain operations.


def mix_dense(x: Tensor, probabilities: Tensor) -> Tensor:
    """Average pixels by P: x (B, H, W, C), P (h, H, W, H, W) -> (B, H, W, h C). Costs 2 h N^2 C FLOPs an image."""
    batch, height, width, channels = x.shape
    heads, pixels = probabilities.shape[0], height * width
    probabilities = _as_autocast(probabilities)
    # Rows ordered (query, head), so that the product is already channels last: no copy.
    rows = probabilities.reshape(heads, pixels, pixels).transpose(0, 1).reshape(pixels * heads, pixels)
    mixed = torch.bmm(rows.expand(batch, -1, -1), x.reshape(batch, pixels, channels))  # (B, N h, C)
    return mixed.view(batch, height, width, heads * channels)


def mix_separable(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Average pixels by P = P_row (x) P_col, rows first, then columns; costs 2 h N (H + W) C FLOPs an image.

    x (B, H, W, C), P_row (h, Q, H), P_col (h, R, W) -> (B, Q, R, h C), equal to `mix_dense` of the outer product. The
    queries, Q x R, are all pixels in a layer of the paper, and fewer where attention stands for a convolution.
    """
    batch, height, width, channels = x.shape
    heads, queries, _ = row.shape
    row, column = _as_autocast(row), _as_autocast(column)
    rows = row.transpose(0, 1).reshape(queries * heads, height)  # ordered (query row, head)
    mixed = torch.bmm(rows.expand(batch, -1, -1), x.reshape(batch, height, width * channels))
    mixed = mixed.view(batch * queries, heads, width, channels)
    columns = column.expand(batch * queries, -1, -1, -1)
    mixed = torch.matmul(columns, mixed)  # (B Q, h, R, C)
    return mixed.transpose(1, 2).reshape(batch, queries, column.shape[1], heads * channels)


def scores(rows: Tensor, columns: Tensor, *terms: Tensor) -> Tensor:
    """Scores of the queries at those rows and columns, each (q,), for all keys: (h, q, H, W).

    ``terms`` are those of `PositionalAttention.score_terms`: a score for rows (h, H, H) and one for columns (h, W, W),
    query x key, which are added; for a full covariance two more of these shapes, which are multiplied.
    """
    row, column, *cross = (term[:, where] for term, where in zip(terms, (rows, columns) * 2, strict=False))
    total = row[..., :, None] + column[..., None, :]
    return total + cross[0][..., :, None] * cross[1][..., None, :] if cross else total


def without_autocast(like: Tensor) -> contextlib.AbstractContextManager:
    """Where products of parameters make scores: their rounding to bfloat16 would move the heads."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()


def in_torch_func() -> bool:
    """Whether a transform of torch.func is at work: vmap, grad, jvp, ..."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _as_autocast(p: Tensor) -> Tensor:
    """P in the type that autocast would give it: cast once here, not once for each image after `expand`."""
    return p.to(_product_type(p))


def _product_type(x: Tensor) -> torch.dtype:
    """The type in which x is multiplied: autocast's, or its own where autocast is off or leaves it alone."""
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on and x.dtype != torch.float64 else x.dtype


def _eager_on_cpu(x: Tensor) -> bool:
    """Whether x holds plain numbers on a CPU: nothing is traced, compiled or transformed."""
    eager = type(x) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling() and not in_torch_func()
    return eager and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64, torch.bfloat16)


# The averages and the value projection in one.


def attend(x: Tensor, row: Tensor | None, column: Tensor, value: nn.Linear) -> Tensor:
    """sum_h sum_k P_h(q, k) X_k W^h + b, with P = P_row (x) P_col, or one P over all pixels where ``row`` is None.

    x (B, H, W, C); P_row (h, H, H) and P_col (h, W, W), or None and P (h, H, W, H, W); ``value`` holds W (D, h C) and b
    (D,). Returns (B, H, W, D). Takes the form of the table above; all of them have all derivatives.
    """
    row, column = None if row is None else row.to(x.dtype), column.to(x.dtype)
    plain = type(value) is nn.Linear and not (value._forward_hooks or value._forward_pre_hooks)
    dtype, heads, pixels = _product_type(x), len(column), x.shape[1] * x.shape[2]
    large = row is not None or pixels > SMALL_GRID
    if plain and large and heads and x.numel() and _eager_on_cpu(x) and dtype == _product_type(value.weight):
        column = column.reshape(heads, pixels, pixels) if row is None else column
        return _Attend.apply(x, row, column, value.weight, value.bias, dtype)
    return value(_mix(x, row, column))


def _mix(x: Tensor, row: Tensor | None, column: Tensor) -> Tensor:
    if row is None:
        return mix_dense(x, column.view(len(column), *x.shape[1:3], *x.shape[1:3]))
    return mix_separable(x, row, column)


class _Attend(torch.autograd.Function):
    """Average along columns of pixels, project with each head's W^h, then average along rows and add up the heads:

        y[h, i]   = sum_k P_row[h, i, k] x[k]               (h H x H) (H x W b C)
        v[h]      = y[h] W^h                                (H W b x C) (C x D) for each head
        out[i]    = sum_{h, l} P_col[h, :, l] v[h, i, l]    (W x h W) (h W x b D) for each row of pixels

    Each product takes all heads, and a chunk of images whose pixels come first in memory, (H, W, b, C): three times as
    fast as small products head by head. With one P over all pixels the first average is left out (H = 1, W = N). The
    forward pass stores its inputs only: to make y and v again costs less than to read them back. Products are taken in
    ``dtype``, sums over chunks in float32 or better. Where a graph of the gradients is asked for (second derivatives),
    the gradients are those of the plain operations.
    """

    @staticmethod
    def forward(ctx, x, row, column, weight, bias, dtype):
        ctx.save_for_backward(x, row, column, weight, bias)
        ctx.dtype, exact = dtype, torch.promote_types(weight.dtype, torch.float32)
        first, second, values = _matrices(row, column, weight, dtype)
        shift = weight.new_zeros(1, dtype=dtype) if bias is None else bias.to(dtype)
        out = x.new_empty(*x.shape[:3], len(weight), dtype=dtype)
        for images, groups in _chunks(x, values):
            pixels, total = _pixels_first(x[images], row, dtype), None
            for heads in groups:
                y = _average_columns(pixels, first, heads)
                v = _rows_first(torch.bmm(y, values[heads]), pixels)
                part = torch.bmm(second[:, heads].flatten(1).expand(len(v), -1, -1), v)  # (H, W, b D)
                total = part if total is None else total.to(exact).add_(part)
            torch.add(_images_first(total, out[images]), shift, out=out[images])
        return out

    @staticmethod
    def backward(ctx, grad):
        if torch.is_grad_enabled():
            return _plain_gradients(ctx, grad)
        x, row, column, weight, bias = ctx.saved_tensors
        dtype, exact = ctx.dtype, torch.promote_types(weight.dtype, torch.float32)
        first, second, values = _matrices(row, column, weight, dtype)
        d_x = torch.empty_like(x, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None
        d_first, d_second, d_values = (
            None if t is None else torch.zeros_like(t, dtype=exact) for t in (first, second, values)
        )
        for images, groups in _chunks(x, values):
            pixels, total = _pixels_first(x[images], row, dtype), None
            g = _pixels_first(grad[images], row, dtype).flatten(2)  # (H, W, b D)
            for heads in groups:
                # y and v as in the forward pass, then its three products backwards, the last one first.
                y = _average_columns(pixels, first, heads)
                v = _rows_first(torch.bmm(y, values[heads]), pixels)
                rows = second[:, heads]  # (W, h, W)
                d_second[:, heads] += torch.bmm(g, v.mT).sum(0, dtype=exact).view(rows.shape)
                d_v = torch.bmm(rows.flatten(1).T.expand(len(g), -1, -1), g)
                d_v = _heads_first(d_v, values[heads])  # (h, H W b, D)
                d_values[heads] += torch.bmm(y.mT, d_v)
                if first is None and d_x is None:
                    continue
                part = torch.bmm(d_v, values[heads].mT)  # the gradient of y
                if first is None:
                    part = part.sum(0)
                else:
                    part = part.view(-1, pixels[0].numel())  # (h H, W b C)
                    d_first[heads] += torch.mm(pixels.flatten(1), part.T).T.view(first[heads].shape)
                    part = torch.mm(first[heads].flatten(0, 1).T, part) if d_x is not None else None
                if d_x is not None:
                    total = part if total is None else total.to(exact).add_(part)
            if d_x is not None:
                d_x[images].copy_(_images_first(total, d_x[images]))
        d_column = d_second.transpose(0, 1)
        d_weight = d_values.permute(2, 0, 1).flatten(1)
        d_bias = None if bias is None else grad.flatten(0, -2).sum(0, dtype=exact)
        return d_x, d_first, d_column, d_weight, d_bias, None


def _matrices(row: Tensor | None, column: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor | None, ...]:
    """P_row (h, H, H), P_col (W, h, W) and W^h (h, C, D), so that products of all heads need no copies."""
    first = None if row is None else row.to(dtype)
    second = column.transpose(0, 1).to(dtype).contiguous()
    values = weight.unflatten(1, (len(column), -1)).permute(1, 2, 0).to(dtype).contiguous()
    return first, second, values


def _chunks(x: Tensor, values: Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Slices of images, and of the heads: in groups where those of one image take more than `CHUNK`."""
    heads, head = len(values), x[0].numel() * values.itemsize  # bytes of one head's averages of an image
    at_once, group = _evenly(len(x), CHUNK // (heads * head)), _evenly(heads, CHUNK // head)
    groups = [slice(start, min(start + group, heads)) for start in range(0, heads, group)]
    for start in range(0, len(x), at_once):
        yield slice(start, start + at_once), groups


def _evenly(total: int, most: int) -> int:
    """The size of equal parts of a total, none larger than ``most``, nor smaller than 1."""
    return math.ceil(total / math.ceil(total / max(1, most)))


def _pixels_first(x: Tensor, row: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(b, H, W, C) -> (H, W, b, C), copied in that order; without P_row (1, H W, b, C): one long row."""
    x = x.permute(1, 2, 0, 3)
    x = x.new_empty(x.shape, dtype=dtype).copy_(x)
    return x.flatten(0, 1)[None] if row is None else x


def _images_first(part: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_pixels_first`, a view: (H, W, b D) in any grouping -> (b, H, W, D)."""
    return part.view(*like.shape[1:3], len(like), -1).permute(2, 0, 1, 3)


def _average_columns(pixels: Tensor, first: Tensor | None, heads: slice) -> Tensor:
    """(H, W, b, C) -> (h, H W b, C); without P_row the pixels themselves, for every head."""
    channels = pixels.shape[-1]
    if first is None:
        return pixels.view(1, -1, channels).expand(heads.stop - heads.start, -1, -1)
    return torch.mm(first[heads].flatten(0, 1), pixels.flatten(1)).view(len(first[heads]), -1, channels)


def _rows_first(v: Tensor, pixels: Tensor) -> Tensor:
    """(h, H W b, D) -> (H, h W, b D): what one row of pixels needs lies together."""
    height, width = pixels.shape[:2]
    return v.view(len(v), height, -1).transpose(0, 1).reshape(height, len(v) * width, -1)


def _heads_first(v: Tensor, values: Tensor) -> Tensor:
    """(H, h W, b D) -> (h, H W b, D): the inverse."""
    heads, _, out_channels = values.shape
    return v.view(len(v), heads, -1).transpose(0, 1).reshape(heads, -1, out_channels)


def _plain_gradients(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of `_Attend` as functions of its inputs that can be differentiated again."""
    # Views of the inputs stand for them: a gradient with respect to one must not run on into what made it.
    inputs = [t if t is None else t.view_as(t) for t in ctx.saved_tensors]
    x, row, column, weight, bias = inputs
    with torch.autocast("cpu", ctx.dtype, enabled=ctx.dtype in (torch.bfloat16, torch.float16)):
        out = F.linear(_mix(x, row, column), weight, bias)
    wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(out, wanted, grad.to(out.dtype), create_graph=True))
    return *(next(found) if needed else None for needed in ctx.needs_input_grad[:5]), None


# Where P is too large to be made whole, or to be stored.


def attend_in_blocks(x: Tensor, terms: tuple[Tensor, ...], value: nn.Linear, dropout: float) -> Tensor:
    """As `attend`, for as many queries at a time as `BLOCK` allows; none of P is stored for the backward pass.

    ``terms`` are what `scores` adds up. Whatever the backward pass reads is an argument of each block, so that PyTorch
    notices if it was changed.
    """
    batch, height, width, channels = x.shape
    pixels = height * width
    keys = x.permute(1, 2, 0, 3).reshape(pixels, batch * channels)
    heads = value.in_features // channels

    def attend(queries: Tensor, keys: Tensor, weight: Tensor, bias: Tensor | None, *terms: Tensor) -> Tensor:
        """(q,) -> (B, q, D)."""
        p = scores(queries // width, queries % width, *terms).flatten(-2).softmax(-1)  # (h, q, N)
        p = F.dropout(p, dropout).to(keys.dtype).transpose(0, 1).reshape(-1, pixels)
        mixed = (p @ keys).view(len(queries), heads, batch, channels)
        return F.linear(mixed.permute(2, 0, 1, 3).flatten(-2), weight, bias)

    blocks = torch.arange(pixels, device=x.device).split(max(1, BLOCK // (heads * pixels)))
    parts = [_made_again(attend, queries, keys, value.weight, value.bias, *terms) for queries in blocks]
    return torch.cat(parts, dim=1).view(batch, height, width, -1)


def attend_content(
    q: Tensor, k: Tensor, rows: Tensor, columns: Tensor, x: Tensor, scale: float, dropout: float = 0.0
) -> Tensor:
    """The averages of all heads where scores depend on the images: x (B, H, W, C) -> (B, H, W, h C).

    q and k (B, h, H, W, K); ``rows`` (B, h, H, W, H) and ``columns`` (B, h, H, W, W) are each query's scores for key
    rows and key columns. P = softmax(scale (q . k + rows + columns)).
    """
    batch, heads, height, width, _ = q.shape
    # [q, rows, columns] . [k, one-hot row, one-hot column] = q . k + rows + columns: an ordinary dot product.
    one_hot = [torch.eye(n, dtype=k.dtype, device=k.device) for n in (height, width)]
    one_hot = [one_hot[0][:, None].expand(-1, width, -1), one_hot[1][None].expand(height, -1, -1)]
    where = torch.cat(one_hot, dim=-1).expand(batch, heads, -1, -1, -1)  # (B, h, H, W, H + W)
    q = torch.cat([q, rows.to(q.dtype), columns.to(q.dtype)], dim=-1).flatten(2, 3)  # (B, h, N, K + H + W)
    k = torch.cat([k, where], dim=-1).flatten(2, 3)
    mixed = _attend_to_all(q, k, x.flatten(1, 2).to(q.dtype), scale, dropout)
    return mixed.view(batch, height, width, -1)


def _attend_to_all(q: Tensor, k: Tensor, x: Tensor, scale: float, dropout: float) -> Tensor:
    """softmax(scale q k^T) x for every head: q and k (B, h, N, K), x (B, N, C) -> (B, N, h C)."""
    heads, pixels, channels = q.shape[1], q.shape[2], x.shape[-1]
    if q.device.type == "cpu":

        def attend(q: Tensor, k: Tensor, x: Tensor) -> Tensor:
            p = F.dropout(torch.matmul(q, k.mT).softmax(-1), dropout)
            mixed = torch.matmul(p.flatten(1, 2), x.to(p.dtype))  # (b, h N, C): one product for all heads
            return mixed.unflatten(1, p.shape[1:3]).transpose(1, 2).flatten(2)

        q, at_once = q * scale, max(1, STORED // max(1, heads * pixels**2))
        if len(x) <= at_once:
            return attend(q, k, x)
        parts = zip(*(t.split(at_once) for t in (q, k, x)), strict=True)
        return torch.cat([_made_again(attend, *part) for part in parts])
    # Zeros change nothing, and the fused kernels want one size for all, a multiple of 8.
    x = x[:, None].expand(-1, heads, -1, -1)
    size = 8 * math.ceil(max(q.shape[-1], channels) / 8)
    q, k, x = (F.pad(t, (0, size - t.shape[-1])) for t in (q, k, x))
    mixed = F.scaled_dot_product_attention(q, k, x, dropout_p=dropout, scale=scale)
    return mixed[..., :channels].transpose(1, 2).flatten(2)


def _made_again(function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """function(*inputs), computed again in the backward pass instead of stored."""
    if in_torch_func():  # it does not know saved tensors that are made again
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False)
