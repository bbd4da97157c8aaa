"""The attention layers of the paper, channels last: (B, H, W, C) in, (B, H, W, D) out.

Every layer is the paper's multi-head self-attention (eq. 3 and section 1 of its reformulation)

    MHSA(X)_q = sum_h sum_k P_h(q, k) X_k W^h + b,

where P_h(q, .) is a softmax over all key pixels k. `probabilities` is that P; forward, figures and widgets all use
it, or an equal form that never builds it. Shape letters, here and in the notebooks: B images, H x W pixels,
N = H W, C and D channels in and out, h heads; q is a query pixel, k a key pixel and k - q their shift.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

Mixing = Literal["auto", "dense", "separable"]

# Which of the equal forms a layer takes (``mixing="auto"``), and why; `make bench` measures them all.
#
#   encoding                     where             form
#   rows x columns               > SMALL_GRID      CPU: `_Separable`, head by head and a few images at a time. What is
#                                                  live is small enough for the cache, nothing but x is stored, and the
#                                                  averages made again in the backward pass cost less than reading them
#                                                  back: 1.2 to 2 times faster than `mix_separable`, which keeps both.
#                                                  GPU, autocast, torch.compile: `mix_separable`: few large products.
#   rows x columns               <= SMALL_GRID     `mix_dense`: one large matrix product beats many small ones.
#   full covariance, dropout     P fits in BLOCK   `mix_dense`
#   full covariance, dropout     larger            blocks of queries, made again in the backward pass: linear memory
#
# Not here because it never won: projecting before mixing (the same FLOPs where C = D, but the projection would have to
# be made again), channels first, einsum (it copies), one product over all heads (its result leaves the cache).

SMALL_GRID = 64
"""``mixing="auto"`` is dense up to this many pixels: one large matrix product then beats many small ones."""

CHUNK = 2**18
"""Numbers (images x pixels x channels) that `_Separable` mixes at a time: 1 MiB of float32, so that the four arrays of
that size that are live stay in the cache. No fresh 100 MB buffers either, whose page faults cost up to 2x."""

BLOCK = 2**23
"""Entries of P that exist at a time where P does not factor: 32 MiB in float32. Larger grids go by blocks."""

LARGE_GRID = 512
"""Pixels from which content attention on a CPU pads its queries and values to one size: the fused kernel asks for that,
and its memory is linear; on smaller grids the padding costs more than it saves."""


def shifts(length: int, device: torch.device | None = None) -> Tensor:
    """Shift k - q along one axis for every query q (rows) and key k (columns): (length, length), whole pixels."""
    position = torch.arange(length, device=device)
    return position[None, :] - position[:, None]


def _as_autocast(p: Tensor) -> Tensor:
    """P in the type that autocast would give it: now, not after `expand` has made it one for each image."""
    kind = p.device.type
    if p.dtype == torch.float64 or not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return p
    return p.to(torch.get_autocast_dtype(kind))


def _without_autocast(like: Tensor) -> contextlib.AbstractContextManager:
    """Where products of parameters make scores: their rounding to bfloat16 would move the heads."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else contextlib.nullcontext()


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

    x (B, H, W, C), P_row (h, H, H), P_col (h, W, W) -> (B, H, W, h C), equal to `mix_dense` of the outer product.
    """
    batch, height, width, channels = x.shape
    heads = row.shape[0]
    row, column = _as_autocast(row), _as_autocast(column)
    rows = row.transpose(0, 1).reshape(height * heads, height)  # ordered (query row, head)
    mixed = torch.bmm(rows.expand(batch, -1, -1), x.reshape(batch, height, width * channels))
    mixed = mixed.view(batch * height, heads, width, channels)
    columns = column.expand(batch * height, -1, -1, -1)
    mixed = torch.matmul(columns, mixed)  # (B H, h, W, C)
    return mixed.transpose(1, 2).reshape(batch, height, width, heads * channels)


class _Separable(torch.autograd.Function):
    """`mix_separable` and the value projection in one, head by head, for a few images at a time.

    The forward pass stores its inputs only; the backward pass makes the averages again (mixing costs 4/3 of the FLOPs,
    the projection no more). Live beside x and its gradient: four arrays of `CHUNK` numbers. First derivatives only.
    """

    @staticmethod
    def forward(x: Tensor, row: Tensor, column: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        batch, height, width, channels = x.shape
        out = (
            x.new_zeros(batch * height * width, len(weight)) if bias is None else bias.repeat(batch * height * width, 1)
        )
        for images, y in _chunks(x, out):
            for p_row, p_column, values in _heads(row, column, weight, len(images)):
                mixed = torch.bmm(p_column, images.view(-1, width, channels)).view(-1, height, width * channels)
                mixed = torch.bmm(p_row, mixed).view(-1, channels)
                torch.addmm(y, mixed, values.T, out=y)
        return out.view(batch, height, width, -1)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:4])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, row, column, weight = ctx.saved_tensors
        batch, height, width, channels = x.shape
        lines = (-1, width, channels)  # rows of pixels
        planes = (-1, height, width * channels)
        grad = grad.reshape(-1, len(weight))
        d_x, d_row, d_column, d_weight = (
            torch.zeros_like(t, memory_format=torch.contiguous_format) for t in ctx.saved_tensors
        )
        for images, g, d_images in _chunks(x, grad, d_x):
            images, d_images = images.view(lines), d_images.view(lines)
            parts = zip(_heads(row, column, weight, len(g) // (height * width)), d_row, d_column, strict=True)
            for head, ((p_row, p_column, values), d_p_row, d_p_column) in enumerate(parts):
                by_column = torch.bmm(p_column, images).view(planes)
                mixed = torch.bmm(p_row, by_column).view(-1, channels)
                d_values = d_weight[:, head * channels : (head + 1) * channels]
                torch.addmm(d_values, g.T, mixed, out=d_values)
                d_mixed = torch.mm(g, values).view(planes)
                d_p_row += torch.bmm(d_mixed, by_column.mT).sum(0)
                d_by_column = torch.bmm(p_row.mT, d_mixed).view(lines)
                d_p_column += torch.bmm(d_by_column, images.mT).sum(0)
                torch.baddbmm(d_images, p_column.mT, d_by_column, out=d_images)
        return d_x, d_row, d_column, d_weight, grad.sum(0) if ctx.needs_input_grad[4] else None


def _chunks(x: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """x (B, H, W, C) a few images at a time, about `CHUNK` numbers, with the same images' share of other tensors."""
    images = len(x)
    count = max(1, math.ceil(x.numel() / CHUNK))
    at_once = math.ceil(images / min(count, images))  # chunks of about one size
    parts = [t.split(at_once * len(t) // images) for t in others]
    return zip((part.contiguous() for part in x.split(at_once)), *parts, strict=True)


def _heads(row: Tensor, column: Tensor, weight: Tensor, images: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each head's P_row and P_col, repeated (no copies) for the products over images and over rows, and its values."""
    height, heads = row.shape[1], len(row)
    for p_row, p_column, values in zip(row, column, weight.chunk(heads, dim=1), strict=True):
        yield p_row.expand(images, -1, -1), p_column.expand(images * height, -1, -1), values


class PositionalAttention(nn.Module):
    """Attention that looks at positions only: P has no batch axis. A subclass says what the scores are.

    Args:
        channels: C, of the input.
        out_channels: D, of the output.
        heads: h; each averages all C channels and owns a value matrix C x D, a block of rows of ``value``.
        mixing: ``dense`` builds P (h, H, W, H, W); ``separable`` mixes along columns and rows, where the encoding
            factors (an error where it does not); ``auto`` takes the fastest equal form, in memory linear in pixels.
        dropout: on the probabilities, one mask shared by the batch as in the paper. It breaks the product of rows and
            columns, so training then goes through the dense path, or blocks of it.
    """

    separable = True
    """Whether P_h = P_row (x) P_col exactly, at any image size and at the borders too."""

    _kept: tuple | None = None

    def __init__(self, channels: int, out_channels: int, heads: int, mixing: Mixing = "auto", dropout: float = 0.0):
        super().__init__()
        if mixing not in ("auto", "dense", "separable"):
            raise ValueError(f"mixing = {mixing!r} is not one of 'auto', 'dense', 'separable'.")
        if mixing == "separable" and not self.separable:
            raise ValueError(f"{self._title()} does not factor into rows x columns; use mixing='auto' or 'dense'.")
        if mixing == "separable" and dropout > 0:
            raise ValueError("Dropout on the probabilities breaks rows x columns; use mixing='auto' or dropout=0.")
        self.channels, self.out_channels, self.heads = channels, out_channels, heads
        self.mixing, self.dropout = mixing, dropout
        self.value = nn.Linear(heads * channels, out_channels)

    def _title(self) -> str:
        return type(self).__name__

    def axis_logits(self, length: int, axis: int) -> Tensor:
        """Score of each shift along one axis (0 rows, 1 columns): (h, length, length), query x key."""
        raise NotImplementedError

    def _axis_terms(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """What scores are made of: (h, H, H) for rows and (h, W, W) for columns, query x key."""
        return self.axis_logits(height, 0), self.axis_logits(width, 1)

    def _scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Scores from `_axis_terms` that were brought to shapes that broadcast, head first."""
        return rows + columns

    def logits(self, height: int, width: int) -> Tensor:
        """Scores before the softmax over keys: (h, H, W, H, W), query pixel then key pixel."""
        rows, columns = self._axis_terms(height, width)
        return self._scores(rows[:, :, None, :, None], columns[:, None, :, None, :])

    def axis_probabilities(self, length: int, axis: int) -> Tensor:
        """Softmax over keys along one axis (0 rows, 1 columns): (h, length, length); P is the product of both axes."""
        if not self.separable:
            raise ValueError(f"{self._title()} does not factor into rows x columns; use probabilities().")
        return self.axis_logits(length, axis).softmax(-1)

    def probabilities(self, height: int, width: int) -> Tensor:
        """P: (h, H, W, H, W); ``P[h, i, j]`` is how head h, at query pixel (i, j), weighs the key pixels (sum 1)."""
        logits = self.logits(height, width)
        return logits.flatten(-2).softmax(-1).view_as(logits)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, D), for any H and W. Its form: the table at the top of this module."""
        _check_input(x, self.channels, self._title())
        pixels = x.shape[1] * x.shape[2]
        dropping = self.training and self.dropout > 0
        if self.mixing == "dense":
            return self._attend_dense(x)
        if self.separable and not dropping and (self.mixing == "separable" or pixels > SMALL_GRID):
            return self._attend_separable(x)
        return self._attend_dense(x) if self.heads * pixels**2 <= BLOCK else self._attend_blocks(x)

    def _attend_dense(self, x: Tensor) -> Tensor:
        probabilities = F.dropout(self.probabilities(*x.shape[1:3]), self.dropout, self.training)
        return self.value(mix_dense(x, probabilities.to(x.dtype)))

    def _attend_separable(self, x: Tensor) -> Tensor:
        row, column = self._axis_factors(x)
        value = self.value
        plain_value = type(value) is nn.Linear and not (value._forward_hooks or value._forward_pre_hooks)
        if plain_value and self.heads and x.numel() and _eager_on_cpu(x) and not torch.is_autocast_enabled("cpu"):
            return _Separable.apply(x, row, column, value.weight, value.bias)
        return value(mix_separable(x, row, column))

    def _axis_factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """P_row and P_col for x, in its dtype. In inference on a CPU they are kept until a value or the size changes.

        The values themselves are compared, a few hundred numbers: PyTorch's version counters miss ``parameter.data``.
        """
        height, width = x.shape[1:3]
        if torch.is_grad_enabled() or not _eager_on_cpu(x):
            return tuple(self.axis_probabilities(n, axis).to(x.dtype) for axis, n in enumerate((height, width)))
        key = (height, width, x.dtype)
        named = itertools.chain(self.named_parameters(), self.named_buffers())
        state = [tensor for name, tensor in named if not name.startswith("value.")]
        if self._kept is None or self._kept[0] != key or not all(map(torch.equal, self._kept[1], state)):
            with torch.inference_mode(False), torch.no_grad():
                factors = tuple(self.axis_probabilities(n, axis).to(x.dtype) for axis, n in enumerate((height, width)))
                self._kept = (key, [tensor.detach().clone() for tensor in state], factors)
        return self._kept[2]

    def _attend_blocks(self, x: Tensor) -> Tensor:
        """The dense form for as many queries at a time as `BLOCK` allows; none of P is stored for the backward pass."""
        batch, height, width, channels = x.shape
        pixels = height * width
        keys = x.permute(1, 2, 0, 3).reshape(pixels, batch * channels)
        terms = self._axis_terms(height, width)

        def attend(queries: Tensor, rows: Tensor, columns: Tensor, keys: Tensor) -> Tensor:
            """(q,) -> (B, q, D)."""
            rows, columns = rows[:, queries // width], columns[:, queries % width]
            p = self._scores(rows[..., :, None], columns[..., None, :]).flatten(-2).softmax(-1)  # (h, q, N)
            p = F.dropout(p, self.dropout, self.training).to(keys.dtype).transpose(0, 1).reshape(-1, pixels)
            mixed = (p @ keys).view(len(queries), self.heads, batch, channels)
            return self.value(mixed.permute(2, 0, 1, 3).flatten(-2))

        blocks = torch.arange(pixels, device=x.device).split(max(1, BLOCK // (self.heads * pixels)))
        parts = [checkpoint(attend, queries, *terms, keys, use_reentrant=False) for queries in blocks]
        return torch.cat(parts, dim=1).view(batch, height, width, -1)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.out_channels}, heads={self.heads}, mixing={self.mixing!r}"


class QuadraticAttention(PositionalAttention):
    """The quadratic encoding (Lemma 2; appendix for a full covariance): each head is a Gaussian over shifts.

    score_h(q, k) = -1/2 | S_h (k - q - centre_h) |^2, with S_h = Sigma_h^{-1/2}

    Parameters, in pixels of the grid: ``centres`` (h, 2), rows then columns, and ``spreads``, the paper's name for
    Sigma^{-1/2}: (h,) when isotropic (S = spread I, so Lemma 2's alpha = spread^2 / 2), (h, 2, 2) when full. A larger
    spread is a sharper head; the standard deviation is 1 / spread.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        heads: int,
        covariance: Literal["isotropic", "full"] = "isotropic",
        mixing: Mixing = "auto",
        dropout: float = 0.0,
        centre_std: float = 2.0,
        spread_start: float = 1.0,
    ):
        if covariance not in ("isotropic", "full"):
            raise ValueError(f"covariance = {covariance!r} is not one of 'isotropic', 'full'.")
        self.separable = covariance == "isotropic"
        self.covariance = covariance
        super().__init__(channels, out_channels, heads, mixing, dropout)
        self.centres = nn.Parameter(centre_std * torch.randn(heads, 2))
        noise = 0.01 * torch.randn(heads, *(() if self.separable else (2, 2)))
        self.spreads = nn.Parameter(spread_start * (1 if self.separable else torch.eye(2)) + noise)

    def _title(self) -> str:
        return f"QuadraticAttention(covariance={self.covariance!r})"

    def precision(self) -> Tensor:
        """Sigma^{-1} = S^T S of every head: (h, 2, 2), per squared pixel, rows then columns."""
        if self.separable:
            return self.spreads.square()[:, None, None] * _eye(2, self.spreads)
        with _without_autocast(self.spreads):
            return self.spreads.mT @ self.spreads

    def axis_logits(self, length: int, axis: int) -> Tensor:
        if not self.separable:
            raise ValueError(f"{self._title()} does not factor into rows x columns; use logits().")
        offset = shifts(length, self.centres.device) - self.centres[:, axis, None, None]
        return -0.5 * self.spreads.square()[:, None, None] * offset.square()

    def _axis_terms(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        if self.separable:
            return super()._axis_terms(height, width)
        shift = (shifts(height, self.centres.device), shifts(width, self.centres.device))
        return tuple(shift[axis] - self.centres[:, axis, None, None] for axis in (0, 1))  # distances from the centre

    def _scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        if self.separable:
            return rows + columns
        # The square of S (shift - centre), term by term: only the cross term needs the product of rows and columns.
        p = self.precision()[(..., *[None] * (rows.dim() - 1))]
        along = p[:, 0, 0] * rows.square() + p[:, 1, 1] * columns.square()
        return -0.5 * (along + (2 * p[:, 0, 1] * rows) * columns)


class LearnedAttention(PositionalAttention):
    """The learned relative encoding (section 4): score = v_row . r_row[shift] + v_col . r_col[shift] for each head.

    ``row_embedding`` and ``column_embedding`` hold one vector per shift -(max_size-1) .. max_size-1, shared by the
    heads: (2 max_size - 1, embedding_size); ``row_scores`` and ``column_scores`` one vector per head.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        heads: int,
        max_size: int,
        embedding_size: int | None = None,
        mixing: Mixing = "auto",
        dropout: float = 0.0,
    ):
        super().__init__(channels, out_channels, heads, mixing, dropout)
        size = channels if embedding_size is None else embedding_size
        self.max_size = max_size
        self.row_embedding = nn.Parameter(torch.randn(2 * max_size - 1, size))
        self.column_embedding = nn.Parameter(torch.randn(2 * max_size - 1, size))
        bound = 1 / math.sqrt(size)  # as nn.Linear, so that scores start with a variance of 1/3
        self.row_scores = nn.Parameter(torch.empty(heads, size).uniform_(-bound, bound))
        self.column_scores = nn.Parameter(torch.empty(heads, size).uniform_(-bound, bound))

    def axis_logits(self, length: int, axis: int) -> Tensor:
        _check_size(length, self.max_size)
        scores = (self.row_scores, self.column_scores)[axis]
        embedding = (self.row_embedding, self.column_embedding)[axis]
        with _without_autocast(scores):
            by_shift = scores @ embedding.T  # (h, 2 max_size - 1)
        return by_shift[:, shifts(length, scores.device) + self.max_size - 1]


class ContentAttention(nn.Module):
    """Learned relative encoding with content (section 4): score = (q . k + q . r_shift) / sqrt(K), q and k linear in X.

    r_shift joins a row embedding (its first half) and a column embedding (its second half), shared by the heads. P
    depends on the images: it has a leading batch axis, and does not factor. ``mixing="auto"`` computes the same through
    `scaled_dot_product_attention` (in memory linear in pixels, except on small grids on a CPU), ``"dense"`` through
    `probabilities`.
    """

    separable = False

    def __init__(
        self,
        channels: int,
        out_channels: int,
        heads: int,
        max_size: int,
        key_size: int | None = None,
        mixing: Mixing = "auto",
        dropout: float = 0.0,
    ):
        super().__init__()
        if mixing not in ("auto", "dense"):
            raise ValueError(f"mixing = {mixing!r} is not 'auto' or 'dense': with content, P does not factor.")
        key_size = channels if key_size is None else key_size
        if key_size % 2:
            raise ValueError(f"key_size = {key_size} must be even: half for rows, half for columns.")
        self.channels, self.out_channels, self.heads = channels, out_channels, heads
        self.max_size, self.key_size, self.mixing, self.dropout = max_size, key_size, mixing, dropout
        self.query = nn.Linear(channels, heads * key_size)
        self.key = nn.Linear(channels, heads * key_size)
        self.row_embedding = nn.Parameter(torch.randn(2 * max_size - 1, key_size // 2))
        self.column_embedding = nn.Parameter(torch.randn(2 * max_size - 1, key_size // 2))
        self.value = nn.Linear(heads * channels, out_channels)

    def _queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, H, W, C) -> q and k, each (B, h, H, W, K)."""
        split = (self.heads, self.key_size)
        return tuple(linear(x).unflatten(-1, split).permute(0, 3, 1, 2, 4) for linear in (self.query, self.key))

    def _position_logits(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """q . r_row (B, h, H, W, H) and q . r_col (B, h, H, W, W): a score for each key row and each key column."""
        height, width = q.shape[2:4]
        _check_size(max(height, width), self.max_size)
        rows = self.row_embedding[shifts(height, q.device) + self.max_size - 1]  # (H, H, K/2), query x key
        columns = self.column_embedding[shifts(width, q.device) + self.max_size - 1]  # (W, W, K/2)
        q_row, q_column = q.chunk(2, dim=-1)
        return (
            torch.einsum("bhijd,ikd->bhijk", q_row, rows),
            torch.einsum("bhijd,jld->bhijl", q_column, columns),
        )

    def score_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The score's two parts, q . k and q . r, over sqrt(K): each (B, h, H, W, H, W). Their sum is `logits`."""
        _check_input(x, self.channels, type(self).__name__)
        q, k = self._queries_and_keys(x)
        rows, columns = self._position_logits(q)
        scale = 1 / math.sqrt(self.key_size)
        content = torch.einsum("bhijd,bhkld->bhijkl", q, k)
        return scale * content, scale * (rows[..., :, None] + columns[..., None, :])

    def logits(self, x: Tensor) -> Tensor:
        """Scores before the softmax: (B, h, H, W, H, W), query pixel then key pixel."""
        content, position = self.score_parts(x)
        return content + position

    def probabilities(self, x: Tensor) -> Tensor:
        """P for these images, x (B, H, W, C): (B, h, H, W, H, W); the last two axes sum to 1."""
        logits = self.logits(x)
        return logits.flatten(-2).softmax(-1).view_as(logits)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, D), for any H and W up to ``max_size``."""
        _check_input(x, self.channels, type(self).__name__)
        batch, height, width, channels = x.shape
        if self.mixing == "dense":
            p = F.dropout(self.probabilities(x), self.dropout, self.training).to(x.dtype)
            mixed = torch.einsum("bhijkl,bklc->bijhc", p, x)
            return self.value(mixed.reshape(batch, height, width, self.heads * channels))
        q, k = self._queries_and_keys(x)
        rows, columns = self._position_logits(q)
        # [q, q.r_row, q.r_col] . [k, one-hot row, one-hot column] = q.k + q.r: an ordinary dot product.
        eye_h, eye_w = _eye(height, q), _eye(width, q)
        where = torch.cat(
            [eye_h[:, None].expand(-1, width, -1), eye_w[None].expand(height, -1, -1)], dim=-1
        )  # (H, W, H + W)
        where = where.expand(batch, self.heads, -1, -1, -1)
        q = torch.cat([q, rows.to(q.dtype), columns.to(q.dtype)], dim=-1).flatten(2, 3)  # (B, h, N, K + H + W)
        k = torch.cat([k, where], dim=-1).flatten(2, 3)
        x = x.reshape(batch, 1, height * width, channels).expand(-1, self.heads, -1, -1).to(q.dtype)
        if x.device.type != "cpu" or height * width >= LARGE_GRID:
            # Zeros change nothing, and the fused kernels want one size for all, a multiple of 8.
            size = 8 * math.ceil(max(q.shape[-1], channels) / 8)
            q, k, x = (F.pad(t, (0, size - t.shape[-1])) for t in (q, k, x))
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, x, dropout_p=dropout, scale=1 / math.sqrt(self.key_size))
        mixed = (
            mixed[..., :channels].transpose(1, 2).reshape(batch, height, width, self.heads * channels)
        )  # (B, N, h, C) -> ...
        return self.value(mixed)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.out_channels}, heads={self.heads}, key_size={self.key_size}"


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)  # made there: a copy would wait for the device


def _eager_on_cpu(x: Tensor) -> bool:
    """Whether x holds plain numbers that may be looked at here and now."""
    eager = type(x) in (Tensor, nn.Parameter) and not torch.compiler.is_compiling()
    return eager and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def _check_input(x: Tensor, channels: int, title: str) -> None:
    if x.dim() != 4 or x.shape[-1] != channels:
        raise ValueError(f"{title} takes (B, H, W, {channels}), channels last; it was given {tuple(x.shape)}.")


def _check_size(length: int, max_size: int) -> None:
    if length > max_size:
        raise ValueError(
            f"The learned encoding knows shifts up to {max_size - 1}; an image side of {length} needs "
            f"max_size >= {length}, not {max_size}."
        )
