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
  P of images (content)    CPU                  `attend_content`: products and a softmax for a few images at a time.
                           GPU                  PyTorch's fused attention kernel.

`make bench` measures them. Shape letters are those of `attnconv.attention`; b are the images of one chunk.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SMALL_GRID = 64
"""Up to this many pixels P over all of them is one product that is as fast as two short ones."""

CHUNK = 2**21
"""Bytes that the averages of all heads take for the images of one chunk: what is live then stays in the cache."""

BLOCK = 2**23
"""Entries of P that exist at a time where it is not made whole: 32 MiB in float32."""


# The averages as plain operations.


def mix_dense(x: Tensor, probabilities: Tensor) -> Tensor:
    """Average pixels by P: x (B, H, W, C), P (h, H, W, H, W) -> (B, H, W, h C). Costs 2 h N^2 C FLOPs an image."""
    batch, height, width, channels = x.shape
    heads, pixels = probabilities.shape[0], height * width
    probabilities = as_autocast(probabilities)
    # Rows ordered (query, head), so that the product is already channels last: no copy.
    rows = probabilities.reshape(heads, pixels, pixels).transpose(0, 1).reshape(pixels * heads, pixels)
    mixed = torch.bmm(rows.expand(batch, -1, -1), x.reshape(batch, pixels, channels))  # (B, N h, C)
    return mixed.view(batch, height, width, heads * channels)


def mix_separable(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Average pixels by P = P_row (x) P_col, rows first, then columns; costs 2 h N (H + W) C FLOPs an image.

    x (B, H, W, C), P_row (h, H, H), P_col (h, W, W) -> (B, H, W, h C), equal to `mix_dense` of the outer product.
    """
    batch, height, width, channels = x.shape
    heads = row.shape[0]
    row, column = as_autocast(row), as_autocast(column)
    rows = row.transpose(0, 1).reshape(height * heads, height)  # ordered (query row, head)
    mixed = torch.bmm(rows.expand(batch, -1, -1), x.reshape(batch, height, width * channels))
    mixed = mixed.view(batch * height, heads, width, channels)
    columns = column.expand(batch * height, -1, -1, -1)
    mixed = torch.matmul(columns, mixed)  # (B H, h, W, C)
    return mixed.transpose(1, 2).reshape(batch, height, width, heads * channels)


def as_autocast(p: Tensor) -> Tensor:
    """P in the type that autocast would give it: now, not after `expand` has made it one for each image."""
    return p.to(_product_type(p))


def without_autocast(like: Tensor) -> contextlib.AbstractContextManager:
    """Where products of parameters make scores: their rounding to bfloat16 would move the heads."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()


def _product_type(x: Tensor) -> torch.dtype:
    """The type in which x is multiplied: autocast's, or its own where autocast is off or leaves it alone."""
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on and x.dtype != torch.float64 else x.dtype


def eager_on_cpu(x: Tensor) -> bool:
    """Whether x holds plain numbers that may be looked at here and now: nothing is traced or transformed."""
    eager = type(x) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling() and not _in_torch_func()
    return eager and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64, torch.bfloat16)


def _in_torch_func() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


# The averages and the value projection in one.


def attend(x: Tensor, row: Tensor | None, column: Tensor, value: nn.Linear) -> Tensor:
    """sum_h sum_k P_h(q, k) X_k W^h + b, with P = P_row (x) P_col, or one P over all pixels where ``row`` is None.

    x (B, H, W, C); P_row (h, H, H) and P_col (h, W, W), or None and P (h, H, W, H, W); ``value`` holds W (D, h C) and b
    (D,). Returns (B, H, W, D). Takes the form of the table above; all of them have all derivatives.
    """
    plain = type(value) is nn.Linear and not (value._forward_hooks or value._forward_pre_hooks)
    dtype, heads, pixels = _product_type(x), len(column), x.shape[1] * x.shape[2]
    large = row is not None or pixels > SMALL_GRID
    if plain and large and heads and x.numel() and eager_on_cpu(x) and dtype == _product_type(value.weight):
        column = column.reshape(heads, pixels, pixels) if row is None else column
        return _Attend.apply(x, row, column, value.weight, value.bias, dtype)
    return value(_mix(x, row, column))


def _mix(x: Tensor, row: Tensor | None, column: Tensor) -> Tensor:
    if row is None:
        return mix_dense(x, column.to(x.dtype).view(len(column), *x.shape[1:3], *x.shape[1:3]))
    return mix_separable(x, row.to(x.dtype), column.to(x.dtype))


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
        for images, groups, scratch in _chunks(x, values):
            pixels, total = _pixels_first(x[images], row, dtype), None
            for heads in groups:
                y = _average_columns(pixels, first, values, heads, scratch[0])
                v = _project(y, values[heads], scratch[1])
                v = _heads_within_rows(v, pixels, scratch[2])
                part = torch.bmm(second[:, heads].flatten(1).expand(len(v), -1, -1), v)  # (H, W, b D)
                total = part if total is None else total.to(exact).add_(part)
            torch.add(_images_first(total, out[images]), shift, out=out[images])
        return out

    @staticmethod
    def backward(ctx, grad):
        x, row, column, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _plain_gradients(ctx, grad)
        dtype, exact = ctx.dtype, torch.promote_types(weight.dtype, torch.float32)
        first, second, values = _matrices(row, column, weight, dtype)
        d_x = torch.empty_like(x, memory_format=torch.contiguous_format) if ctx.needs_input_grad[0] else None
        d_first, d_second, d_values = (
            None if t is None else torch.zeros_like(t, dtype=exact) for t in (first, second, values)
        )
        for images, groups, scratch in _chunks(x, values):
            pixels, g = _pixels_first(x[images], row, dtype), _pixels_first(grad[images], row, dtype).flatten(2)
            total = None
            for heads in groups:
                y = _average_columns(pixels, first, values, heads, scratch[0])
                v = _project(y, values[heads], scratch[1])
                v = _heads_within_rows(v, pixels, scratch[2])
                rows = second[:, heads]  # (W, h, W)
                d_second[:, heads] += torch.bmm(g, v.mT).sum(0, dtype=exact).view(rows.shape)
                free = scratch[1] if len(g) > 1 else scratch[2]  # `_rows_within_heads` copies to the last one
                d_v = torch.bmm(rows.flatten(1).T.expand(len(g), -1, -1), g, out=_start(free, *v.shape))
                d_v = _rows_within_heads(d_v, values[heads], scratch[2])  # (h, H W b, D)
                d_values[heads] += torch.bmm(y.mT, d_v)
                if first is None and d_x is None:
                    continue
                d_y = torch.bmm(d_v, values[heads].mT, out=_start(scratch[1], *y.shape))
                if first is None:
                    part = d_y.sum(0)
                else:
                    matrix = first[heads].flatten(0, 1)  # (h H, H)
                    d_y, lines = d_y.view(len(matrix), -1), pixels.flatten(1)  # (h H, W b C), (H, W b C)
                    d_first[heads] += torch.mm(lines, d_y.T).T.view(first[heads].shape)
                    part = torch.mm(matrix.T, d_y) if d_x is not None else None
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


def _chunks(x: Tensor, values: Tensor) -> Iterator[tuple[slice, list[slice], list[Tensor]]]:
    """Slices of images; the heads, in groups where those of one image take more than `CHUNK`; and three buffers.

    Each buffer is for heads x pixels x images x channels (in or out) of a group and a slice.
    """
    heads, channels, out_channels = values.shape
    images, head = len(x), x[0].numel() * values.itemsize  # bytes of one head's averages of an image
    at_once = _evenly(images, CHUNK // (heads * head))
    group = heads if CHUNK >= heads * head else _evenly(heads, CHUNK // head)
    groups = [slice(start, min(start + group, heads)) for start in range(0, heads, group)]
    numbers = group * at_once * x[0, ..., 0].numel() * max(channels, out_channels)
    buffers = [x.new_empty(numbers, dtype=values.dtype) for _ in range(3)]
    for start in range(0, images, at_once):
        yield slice(start, min(start + at_once, images)), groups, buffers


def _evenly(total: int, most: int) -> int:
    """The size of equal parts of a total, none larger than ``most``, nor smaller than 1."""
    return math.ceil(total / math.ceil(total / max(1, most)))


def _start(buffer: Tensor, *shape: int) -> Tensor:
    return buffer[: math.prod(shape)].view(shape)


def _pixels_first(x: Tensor, row: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(b, H, W, C) -> (H, W, b, C), copied in that order; without P_row (1, H W, b, C): one long row."""
    x = x.permute(1, 2, 0, 3)
    x = x.new_empty(x.shape, dtype=dtype).copy_(x)
    return x.flatten(0, 1)[None] if row is None else x


def _images_first(part: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_pixels_first`, a view: (H, W, b D) in any grouping -> (b, H, W, D)."""
    return part.view(*like.shape[1:3], len(like), -1).permute(2, 0, 1, 3)


def _average_columns(pixels: Tensor, first: Tensor | None, values: Tensor, heads: slice, out: Tensor) -> Tensor:
    """(H, W, b, C) -> (h, H W b, C)."""
    count, channels = values[heads].shape[:2]
    if first is None:
        return pixels.view(1, -1, channels).expand(count, -1, -1)
    matrix = first[heads].flatten(0, 1)  # (h H, H)
    y = torch.mm(matrix, pixels.flatten(1), out=_start(out, len(matrix), pixels[0].numel()))
    return y.view(count, -1, channels)


def _project(y: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """(h, H W b, C) -> (h, H W b, D)."""
    return torch.bmm(y, values, out=_start(out, *y.shape[:2], values.shape[2]))


def _heads_within_rows(v: Tensor, pixels: Tensor, out: Tensor) -> Tensor:
    """(h, H W b, D) -> (H, h W, b D): what one row of pixels needs lies together."""
    heads, (height, width) = len(v), pixels.shape[:2]
    if height > 1:
        v = v.view(heads, height, -1).transpose(0, 1)
        v = _start(out, *v.shape).copy_(v)
    return v.view(height, heads * width, -1)


def _rows_within_heads(v: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """(H, h W, b D) -> (h, H W b, D): the inverse."""
    heads, _, out_channels = values.shape
    if len(v) > 1:
        v = v.view(len(v), heads, -1).transpose(0, 1)
        v = _start(out, *v.shape).copy_(v)
    return v.view(heads, -1, out_channels)


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


# Where P is too large to be made whole: blocks of queries.


def attend_in_blocks(
    x: Tensor,
    scores: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    terms: tuple[Tensor, ...],
    value: nn.Linear,
    dropout: float,
) -> Tensor:
    """As `attend`, for as many queries at a time as `BLOCK` allows; none of P is stored for the backward pass.

    ``scores(rows, columns, *terms)`` are the logits (h, q, H, W) of the queries at those rows and columns (q,), made of
    ``terms``. Whatever the backward pass reads is an argument of each block, so that PyTorch notices if it was changed.
    """
    batch, height, width, channels = x.shape
    pixels = height * width
    keys = x.permute(1, 2, 0, 3).reshape(pixels, batch * channels)
    heads = value.in_features // channels
    inputs = (keys, *terms, value.weight, value.bias)

    def attend(queries: Tensor, keys: Tensor, *others: Tensor) -> Tensor:
        """(q,) -> (B, q, D)."""
        *terms, weight, bias = others
        p = scores(queries // width, queries % width, *terms).flatten(-2).softmax(-1)  # (h, q, N)
        p = F.dropout(p, dropout).to(keys.dtype).transpose(0, 1).reshape(-1, pixels)
        mixed = (p @ keys).view(len(queries), heads, batch, channels)
        return F.linear(mixed.permute(2, 0, 1, 3).flatten(-2), weight, bias)

    blocks = torch.arange(pixels, device=x.device).split(max(1, BLOCK // (heads * pixels)))
    if _in_torch_func():  # it does not know saved tensors that are made again
        parts = [attend(queries, *inputs) for queries in blocks]
    else:
        parts = [checkpoint(attend, queries, *inputs, use_reentrant=False) for queries in blocks]
    return torch.cat(parts, dim=1).view(batch, height, width, -1)


# P of images.


def attend_content(q: Tensor, k: Tensor, x: Tensor, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(scale q k^T) x for every head: q and k (B, h, N, K), x (B, N, C) -> (B, N, h C)."""
    if eager_on_cpu(q) and eager_on_cpu(x) and q.numel() and not dropout:
        return _AttendContent.apply(q * scale, k, x)
    if q.device.type == "cpu":
        return _plain_content(q * scale, k, x, dropout)
    # Zeros change nothing, and the fused kernels want one size for all, a multiple of 8.
    heads, channels = q.shape[1], x.shape[-1]
    x = x[:, None].expand(-1, heads, -1, -1)
    size = 8 * math.ceil(max(q.shape[-1], channels) / 8)
    q, k, x = (F.pad(t, (0, size - t.shape[-1])) for t in (q, k, x))
    mixed = F.scaled_dot_product_attention(q, k, x, dropout_p=dropout, scale=scale)
    return mixed[..., :channels].transpose(1, 2).flatten(2)


def _plain_content(q: Tensor, k: Tensor, x: Tensor, dropout: float = 0.0) -> Tensor:
    p = F.dropout(torch.matmul(q, k.mT).softmax(-1), dropout)
    mixed = torch.matmul(p.flatten(1, 2), x.to(p.dtype))  # (B, h N, C): one product for all heads
    return mixed.unflatten(1, p.shape[1:3]).transpose(1, 2).flatten(2)


class _AttendContent(torch.autograd.Function):
    """`_plain_content` for a few images at a time: P is in the cache when it is used, and made again, not stored."""

    @staticmethod
    def forward(ctx, q, k, x):
        ctx.save_for_backward(q, k, x)
        batch, heads, pixels, _ = q.shape
        out = q.new_empty(batch, pixels, heads, x.shape[-1])
        for images in _content_chunks(q):
            p = _content_probabilities(q[images], k[images])
            mixed = torch.bmm(p.flatten(1, 2), x[images].to(p.dtype))
            out[images].copy_(mixed.unflatten(1, (heads, pixels)).transpose(1, 2))
        return out.flatten(2)

    @staticmethod
    def backward(ctx, grad):
        q, k, x = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = [t.view_as(t) for t in (q, k, x)]
            wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=True) if needed]
            found = iter(torch.autograd.grad(_plain_content(*inputs), wanted, grad, create_graph=True))
            return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)
        d_q, d_k, d_x = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, x))
        grad = grad.unflatten(2, (q.shape[1], -1))
        for images in _content_chunks(q):
            p = _content_probabilities(q[images], k[images])  # (b, h, N, N)
            g = grad[images].transpose(1, 2).flatten(1, 2)  # (b, h N, C)
            xs = x[images].to(p.dtype)
            d_x[images].copy_(torch.bmm(p.flatten(1, 2).mT, g))
            d_p = torch.bmm(g, xs.mT).view_as(p)
            d_scores = torch.ops.aten._softmax_backward_data(d_p, p, -1, p.dtype).flatten(0, 1)  # (b h, N, N)
            d_q[images].copy_(torch.bmm(d_scores, k[images].flatten(0, 1)).view_as(q[images]))
            d_k[images].copy_(torch.bmm(d_scores.mT, q[images].flatten(0, 1)).view_as(k[images]))
        return d_q, d_k, d_x


def _content_chunks(q: Tensor) -> Iterator[slice]:
    """Slices of images whose P takes about `CHUNK` bytes."""
    batch, heads, pixels, _ = q.shape
    at_once = max(1, CHUNK // (heads * pixels**2 * q.itemsize))
    return (slice(start, min(start + at_once, batch)) for start in range(0, batch, at_once))


def _content_probabilities(q: Tensor, k: Tensor) -> Tensor:
    """(b, h, N, K) twice -> P (b, h, N, N)."""
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT)
    return torch.softmax(scores, -1).view(*q.shape[:3], -1)
