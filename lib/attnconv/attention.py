"""The attention layers of the paper, channels last: (B, H, W, C) in, (B, H, W, D) out.

Every layer is the paper's multi-head self-attention (eq. 3 and section 1 of its reformulation)

    MHSA(X)_q = sum_h sum_k P_h(q, k) X_k W^h + b,

where P_h(q, .) is a softmax over all key pixels k. `probabilities` is that P; forward, figures and widgets all use
it, or an equal form that never builds it. Shape letters, here and in the notebooks: B images, H x W pixels,
N = H W, C and D channels in and out, h heads; q is a query pixel, k a key pixel and k - q their shift.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnconv import mixing
from attnconv.mixing import attend, attend_content, attend_in_blocks, eager_on_cpu, without_autocast

Mixing = Literal["auto", "dense", "separable"]


def shifts(length: int, device: torch.device | None = None) -> Tensor:
    """Shift k - q along one axis for every query q (rows) and key k (columns): (length, length), whole pixels."""
    position = torch.arange(length, device=device)
    return position[None, :] - position[:, None]


def evenly_on_a_disc(points: int) -> Tensor:
    """Points (points, 2) of a sunflower, turned by a random angle: evenly over a disc of radius 2, so of standard
    deviation 1 along each axis. No grid is in them: each point turns by the golden angle from the one before."""
    place = torch.arange(points)
    radius = 2 * ((place + 0.5) / points).sqrt()
    angle = 2 * math.pi * torch.rand(()) + place * math.pi * (3 - math.sqrt(5))
    return radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)


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

    def _terms(self, height: int, width: int) -> tuple[Tensor, ...]:
        """What `_scores` adds up: (h, H, H) for rows and (h, W, W) for columns, query x key."""
        return self.axis_logits(height, 0), self.axis_logits(width, 1)

    @staticmethod
    def _scores(rows: Tensor, columns: Tensor, *terms: Tensor) -> Tensor:
        """Scores of the queries at those rows and columns (q,), made of `_terms`: (h, q, H, W)."""
        row, column = terms
        return row[:, rows, :, None] + column[:, columns, None, :]

    def logits(self, height: int, width: int) -> Tensor:
        """Scores before the softmax over keys: (h, H, W, H, W), query pixel then key pixel."""
        terms = self._terms(height, width)
        rows, columns = (term.shape[1] for term in terms[:2])  # of queries
        query = torch.arange(rows * columns, device=terms[0].device)
        return self._scores(query // columns, query % columns, *terms).unflatten(1, (rows, columns))

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
        """(B, H, W, C) -> (B, H, W, D), for any H and W. Equal forms: the table at the top of `attnconv.mixing`."""
        _check_input(x, self.channels, self._title())
        height, width = x.shape[1:3]
        pixels, dropout = height * width, self.dropout if self.training else 0.0
        separable = self.separable and not dropout and self.mixing != "dense"
        if separable and (self.mixing == "separable" or pixels > mixing.SMALL_GRID):
            return attend(x, *self._axis_factors(x), self.value)
        if self.mixing == "dense" or self.heads * pixels**2 <= mixing.BLOCK:
            return attend(x, None, F.dropout(self.probabilities(height, width), dropout), self.value)
        return attend_in_blocks(x, self._scores, self._terms(height, width), self.value, dropout)

    def _axis_factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """P_row and P_col for x, in its dtype. In inference on a CPU they are kept until a value or the size changes.

        The values themselves are compared, a few hundred numbers: PyTorch's version counters miss ``parameter.data``.
        """
        height, width = x.shape[1:3]
        if torch.is_grad_enabled() or not eager_on_cpu(x):
            return tuple(self.axis_probabilities(n, axis).to(x.dtype) for axis, n in enumerate((height, width)))
        key = (height, width, x.dtype)
        named = itertools.chain(self.named_parameters(), self.named_buffers())
        state = [tensor for name, tensor in named if not name.startswith("value.")]
        if self._kept is None or self._kept[0] != key or not all(map(torch.equal, self._kept[1], state)):
            with torch.inference_mode(False), torch.no_grad():
                factors = tuple(self.axis_probabilities(n, axis).to(x.dtype) for axis, n in enumerate((height, width)))
                self._kept = (key, [tensor.detach().clone() for tensor in state], factors)
        return self._kept[2]

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
        centre_start: Literal["gaussian", "disc"] = "gaussian",
        spread_start: float = 1.0,
    ):
        if covariance not in ("isotropic", "full"):
            raise ValueError(f"covariance = {covariance!r} is not one of 'isotropic', 'full'.")
        self.separable = covariance == "isotropic"
        self.covariance = covariance
        super().__init__(channels, out_channels, heads, mixing, dropout)
        start = torch.randn(heads, 2) if centre_start == "gaussian" else evenly_on_a_disc(heads)
        self.centres = nn.Parameter(centre_std * start)
        noise = 0.01 * torch.randn(heads, *(() if self.separable else (2, 2)))
        self.spreads = nn.Parameter(spread_start * (1 if self.separable else torch.eye(2)) + noise)

    def _title(self) -> str:
        return f"QuadraticAttention(covariance={self.covariance!r})"

    def precision(self) -> Tensor:
        """Sigma^{-1} = S^T S of every head: (h, 2, 2), per squared pixel, rows then columns."""
        if self.separable:
            return self.spreads.square()[:, None, None] * _eye(2, self.spreads)
        with without_autocast(self.spreads):
            return self.spreads.mT @ self.spreads

    def axis_logits(self, length: int, axis: int) -> Tensor:
        if not self.separable:
            raise ValueError(f"{self._title()} does not factor into rows x columns; use logits().")
        offset = shifts(length, self.centres.device) - self.centres[:, axis, None, None]
        return -0.5 * self.spreads.square()[:, None, None] * offset.square()

    def _terms(self, height: int, width: int) -> tuple[Tensor, ...]:
        if self.separable:
            return super()._terms(height, width)
        # The square of S (shift - centre), term by term: only the cross term needs rows and columns at once.
        shift = (shifts(height, self.centres.device), shifts(width, self.centres.device))
        rows, columns = (shift[axis] - self.centres[:, axis, None, None] for axis in (0, 1))  # from the centre
        p = self.precision()[..., None, None]
        return -0.5 * p[:, 0, 0] * rows.square(), -0.5 * p[:, 1, 1] * columns.square(), -p[:, 0, 1] * rows, columns

    @staticmethod
    def _scores(rows: Tensor, columns: Tensor, *terms: Tensor) -> Tensor:
        sum_of_axes = PositionalAttention._scores(rows, columns, *terms[:2])
        if len(terms) == 2:
            return sum_of_axes
        row, column = terms[2:]
        return sum_of_axes + row[:, rows, :, None] * column[:, columns, None, :]


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
        with without_autocast(scores):
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
        dropout = self.dropout if self.training else 0.0
        x = x.flatten(1, 2).to(q.dtype)  # (B, N, C)
        mixed = attend_content(q, k, x, 1 / math.sqrt(self.key_size), dropout)  # (B, N, h C)
        return self.value(mixed).view(batch, height, width, -1)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.out_channels}, heads={self.heads}, key_size={self.key_size}"


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)  # made there: a copy would wait for the device


def _check_input(x: Tensor, channels: int, title: str) -> None:
    if x.dim() != 4 or x.shape[-1] != channels:
        raise ValueError(f"{title} takes (B, H, W, {channels}), channels last; it was given {tuple(x.shape)}.")


def _check_size(length: int, max_size: int) -> None:
    if length > max_size:
        raise ValueError(
            f"The learned encoding knows shifts up to {max_size - 1}; an image side of {length} needs "
            f"max_size >= {length}, not {max_size}."
        )
