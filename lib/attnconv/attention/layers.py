"""The attention layers of the paper, channels last: (B, H, W, C) in, (B, H, W, D) out.

Every layer is multi-head self-attention (eq. 3). Its value and output matrices follow each other
without a non-linearity between them, so each head has one matrix W^h:

    MHSA(X)_q = sum_h sum_k P_h(q, k) X_k W^h + b
    P_h(q, .) = softmax over all key pixels k of score_h(q, k)

The layers differ in their scores only: `QuadraticAttention` and `LearnedAttention` look at
positions, `ContentAttention` at what the pixels hold too. `probabilities` is P. Shape letters, here
and in the notebooks: B images, H x W pixels, N = H W, C and D channels in and out, h heads; q is a
query pixel, k a key pixel and k - q their shift."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnconv.attention.mixing import NOTHING, mix_dense, mix_separable


class PositionalAttention(nn.Module):
    """Attention that looks at positions only: P has no batch axis. A subclass says what the scores
    are.

    Args (of the subclasses too):
        channels, out_channels: C of the input, D of the output.
        heads: h; each averages all C channels and owns a value matrix C x D: C columns of
            ``value.weight``, transposed.
        dropout: on the probabilities, one mask shared by the batch as in the paper.
    """

    separable = True
    """Whether P_h = P_row (x) P_col exactly, at any image size and at the borders too. Then P is
    never built, except where it drops out or an image is small."""

    def __init__(self, channels: int, out_channels: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.channels = channels
        self.out_channels = out_channels
        self.heads = heads
        self.dropout = dropout
        self.value = nn.Linear(heads * channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, D), for any H and W."""
        _check_input(x, self)
        height, width = x.shape[1:3]
        if self.separable and not (self.training and self.dropout):
            by_axis = self.axis_probabilities(height, 0), self.axis_probabilities(width, 1)
            return self.value(mix_separable(x, *by_axis))
        p = F.threshold(self.probabilities(height, width), NOTHING, 0)
        return self.value(mix_dense(x, F.dropout(p, self.dropout, self.training)))

    def probabilities(
        self, height: int, width: int, query: tuple[int, int] | None = None
    ) -> Tensor:
        """P: (h, H, W, H, W); ``P[h, i, j]`` is how head h, at query pixel (i, j), weighs the
        key pixels (sum 1). With a ``query`` (row, column) that pixel's alone: (h, H, W).
        """
        rows, columns = self.score_terms(height, width)
        if query is not None:
            rows = rows[..., query[0], None, :]
            columns = columns[..., query[1], None, :]
        logits = rows[..., :, None, :, None] + columns[..., None, :, None, :]  # (h, H, W, H, W)
        if not self.separable:
            logits = -0.5 * logits.square().sum(1)
        p = logits.flatten(-2).softmax(-1).view_as(logits).to(next(self.parameters()).dtype)
        return p if query is None else p[:, 0, 0]

    def score_terms(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """What a score adds up, query x key: a term for rows (h, H, H) and one for columns (h, W,
        W).
        """
        return self.axis_logits(height, 0), self.axis_logits(width, 1)

    def axis_logits(self, length: int, axis: int) -> Tensor:
        """Score of each shift along one axis (0 rows, 1 columns): (h, length, length), query x
        key.
        """
        raise NotImplementedError

    def axis_probabilities(self, length: int, axis: int) -> Tensor:
        """Softmax over keys along one axis (0 rows, 1 columns): (h, length, length); P is the
        product of both axes.
        """
        return self.axis_logits(length, axis).softmax(-1)

    def shifts(self, length: int, axis: int) -> Tensor:
        """Shift k - q of every query and key along one axis (0 rows, 1 columns): (length,
        length), query x key.
        """
        return _shifts(length, next(self.parameters()).device)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.out_channels}, heads={self.heads}"


class QuadraticAttention(PositionalAttention):
    """The quadratic encoding (Lemma 2; appendix for a full covariance): each head is a Gaussian
    over shifts.

    score_h(q, k) = -1/2 | S_h (k - q - centre_h) |^2, with S_h = Sigma_h^{-1/2}

    Parameters, in pixels of the grid: ``centres`` (h, 2), rows then columns, and ``spreads``, the
    paper's name for Sigma^{-1/2}: (h,) when isotropic (S = spread I, so Lemma 2's alpha = spread^2
    / 2), (h, 2, 2) when full. A larger spread is a sharper head; the standard deviation is 1 /
    spread."""

    def __init__(
        self,
        channels: int,
        out_channels: int,
        heads: int,
        covariance: str = "isotropic",
        centre_std: float = 2.0,
        centre_start: str = "gaussian",
        spread_start: float = 1.0,
        dropout: float = 0.0,
    ):
        if covariance not in ("isotropic", "full"):
            raise ValueError(f"covariance = {covariance!r} is not one of 'isotropic', 'full'.")
        super().__init__(channels, out_channels, heads, dropout)
        self.separable = covariance == "isotropic"
        self.centres = nn.Parameter(first_centres(centre_start, heads, centre_std))
        if self.separable:
            spreads = spread_start + 0.01 * torch.randn(heads)
        else:
            spreads = spread_start * torch.eye(2) + 0.01 * torch.randn(heads, 2, 2)
        self.spreads = nn.Parameter(spreads)

    def axis_logits(self, length: int, axis: int) -> Tensor:
        if not self.separable:
            raise ValueError(
                "A full covariance does not factor into rows x columns; use probabilities()."
            )
        spreads = self.spreads.double()[:, None, None]
        scores = -0.5 * (spreads * self._offsets(length, axis)).square()
        highest = scores.detach().amax(-1, keepdim=True)  # makes no difference to a softmax
        return (scores - highest).to(self.spreads.dtype)

    def score_terms(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Where the covariance is full, S (shift - centre) is the sum of the two: (h, 2, H, H) and
        (h, 2, W, W).
        """
        if self.separable:
            return super().score_terms(height, width)
        s = self.spreads.double()[..., None, None]  # (h, 2, 2, 1, 1)
        rows = s[:, :, 0] * self._offsets(height, 0)[:, None]
        columns = s[:, :, 1] * self._offsets(width, 1)[:, None]
        return rows, columns

    def _offsets(self, length: int, axis: int) -> Tensor:
        """Shift less centre along one axis: (h, length, length), query x key.

        In float64: a centre far off the image, or a long, thin head, makes large scores, and what
        counts is how little they differ."""
        return self.shifts(length, axis) - self.centres.double()[:, axis, None, None]

    def precision(self) -> Tensor:
        """Sigma^{-1} = S^T S of every head: (h, 2, 2), per squared pixel, rows then columns."""
        s = self.spreads
        if self.separable:
            return s.square()[:, None, None] * torch.eye(2).to(s)
        # Not by a matrix product, which autocast would round.
        return (s[..., None] * s[..., None, :]).sum(1)


class LearnedAttention(PositionalAttention):
    """The learned relative encoding (section 4): score = v_row . r_row[shift] + v_col .
    r_col[shift] for each head.

    ``row_embedding`` and ``column_embedding`` hold one vector for each shift, -(max_size - 1) ..
    max_size - 1, shared by the heads: (2 max_size - 1, C). ``row_scores`` and ``column_scores``
    hold one vector for each head: (h, C)."""

    def __init__(
        self, channels: int, out_channels: int, heads: int, max_size: int, dropout: float = 0.0
    ):
        super().__init__(channels, out_channels, heads, dropout)
        self.max_size = max_size
        self.row_embedding = nn.Parameter(torch.randn(2 * max_size - 1, channels))
        self.column_embedding = nn.Parameter(torch.randn(2 * max_size - 1, channels))
        bound = 1 / math.sqrt(channels)  # as nn.Linear, so that scores start with a variance of 1/3
        self.row_scores = nn.Parameter(torch.empty(heads, channels).uniform_(-bound, bound))
        self.column_scores = nn.Parameter(torch.empty(heads, channels).uniform_(-bound, bound))

    def axis_logits(self, length: int, axis: int) -> Tensor:
        vectors = (self.row_scores, self.column_scores)[axis]
        embedding = (self.row_embedding, self.column_embedding)[axis]
        # Not by a matrix product, which autocast would round.
        by_shift = (vectors[:, None] * embedding).sum(-1)  # (h, 2 max_size - 1)
        return _of_shifts(by_shift.T, length).movedim(2, 0)


class ContentAttention(nn.Module):
    """Learned relative encoding with content (section 4): score = (q . k + q . r_shift) / sqrt(K),
    q and k linear in X.

    r_shift joins a row embedding (its first half) and a column embedding (its second half), shared
    by the heads. P depends on the images: it has a leading batch axis, and does not factor. Args
    are those of `PositionalAttention`, the largest side of an image, and K = ``key_size``, C where
    it is None; each image has a dropout mask of its own."""

    def __init__(
        self,
        channels: int,
        out_channels: int,
        heads: int,
        max_size: int,
        key_size: int | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        key_size = channels if key_size is None else key_size
        if key_size % 2:
            raise ValueError(
                f"key_size = {key_size} must be even: half for rows, half for columns."
            )
        self.channels = channels
        self.out_channels = out_channels
        self.heads = heads
        self.max_size = max_size
        self.key_size = key_size
        self.dropout = dropout
        self.query = nn.Linear(channels, heads * key_size)
        self.key = nn.Linear(channels, heads * key_size)
        self.row_embedding = nn.Parameter(torch.randn(2 * max_size - 1, key_size // 2))
        self.column_embedding = nn.Parameter(torch.randn(2 * max_size - 1, key_size // 2))
        self.value = nn.Linear(heads * channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W, D), for any H and W up to ``max_size``."""
        p = F.dropout(self.probabilities(x), self.dropout, self.training)
        return self.value(mix_dense(x, p))

    def probabilities(self, x: Tensor) -> Tensor:
        """P for these images, x (B, H, W, C): (B, h, H, W, H, W); the last two axes sum to 1."""
        content, position = self.score_parts(x)
        return (content + position).flatten(-2).softmax(-1).view_as(content)

    def score_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The score's two parts, q . k and q . r, over sqrt(K): each (B, h, H, W, H, W)."""
        _check_input(x, self)
        split = (self.heads, self.key_size)
        q = self.query(x).unflatten(-1, split) / math.sqrt(self.key_size)  # (B, H, W, h, K)
        content = torch.einsum("bijhd,bklhd->bhijkl", q, self.key(x).unflatten(-1, split))
        height, width = x.shape[1:3]
        rows = _of_shifts(self.row_embedding, height)  # (H, H, K/2)
        columns = _of_shifts(self.column_embedding, width)
        q_row, q_column = q.chunk(2, dim=-1)
        by_row = torch.einsum("bijhd,ikd->bhijk", q_row, rows)
        by_column = torch.einsum("bijhd,jld->bhijl", q_column, columns)
        return content, by_row[..., :, None] + by_column[..., None, :]

    @torch.no_grad()
    def start_on_taps(self, alpha: float) -> None:
        """Put head h on tap h of a kernel, with Lemma 2's sharpness, whatever the pixels hold
        (key_size >= 4).

        W_qry = 0 leaves of a query its bias. Two numbers of each half of r are (shift^2, shift),
        and the biases weigh them so that the score is -alpha |shift - tap|^2. Keys are 0 there; the
        others wait for queries to grow."""
        if self.key_size < 4:
            raise ValueError(
                f"key_size = {self.key_size} must be at least 4: two numbers each for rows and"
                " columns."
            )
        shift = torch.arange(1 - self.max_size, self.max_size)
        for embedding in (self.row_embedding, self.column_embedding):
            embedding[:, 0] = shift.square() / self.max_size
            embedding[:, 1] = shift
        weight = alpha * math.sqrt(self.key_size)
        biases = torch.zeros(self.heads, 2, self.key_size // 2)  # rows and columns
        biases[..., 0] = -weight * self.max_size
        biases[..., 1] = 2 * weight * first_taps(self.heads)
        self.query.weight.zero_()
        self.query.bias.copy_(biases.flatten())
        for part in (self.key.weight, self.key.bias):
            part.unflatten(0, biases.shape)[:, :, :2] = 0


def tap_shifts(kernel_size: Sequence[int], dilation: Sequence[int] = (1, 1)) -> Tensor:
    """Shift (rows, columns) of every tap of a kernel, row by row: (taps, 2). For 3 x 3: (-1, -1),
    (-1, 0), ... (1, 1).

    Tap t of K looks dilation (t - (K-1)/2) pixels away from the query; an even kernel has one tap
    more to the right, like PyTorch's padding='same'."""
    axes = (
        torch.arange(taps) * step - step * (taps - 1) // 2
        for taps, step in zip(kernel_size, dilation, strict=True)
    )
    return torch.cartesian_prod(*axes)


def first_taps(heads: int) -> Tensor:
    """As many shifts (heads, 2), the first taps of the smallest kernel with an odd side that has
    them.
    """
    side = (math.isqrt(max(heads - 1, 0)) + 1) | 1
    return tap_shifts((side, side))[:heads]


def first_centres(start: str, heads: int, std: float, layers: tuple[int, ...] = ()) -> Tensor:
    """Centres that layers begin with: (*layers, h, 2); ``std`` is their standard deviation, but on
    taps.
    """
    if start == "gaussian":
        return std * torch.randn(*layers, heads, 2)
    if start == "disc":
        return std * evenly_on_a_disc(heads, layers)
    if start == "taps":
        return 1.0 * first_taps(heads).repeat(*layers, 1, 1)  # in the default type
    raise ValueError(f"centre_start = {start!r} is not one of 'gaussian', 'disc', 'taps'.")


def evenly_on_a_disc(points: int, discs: tuple[int, ...]) -> Tensor:
    """Points spread evenly over discs of radius 2 (standard deviation 1 along each axis): (*discs,
    points, 2).

    They lie like the seeds of a sunflower, each turned by the golden angle from the one before, and
    each disc by a random one: the start holds no grid for the heads to find."""
    place = torch.arange(points)
    radius = 2 * ((place + 0.5) / points).sqrt()
    angle = 2 * math.pi * torch.rand(*discs, 1) + place * math.pi * (3 - math.sqrt(5))
    return radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=-1)


def _shifts(length: int, device: torch.device) -> Tensor:
    """Shift k - q of every query and key: (length, length)."""
    position = torch.arange(length, device=device)
    return position - position[:, None]


def _of_shifts(encoding: Tensor, length: int) -> Tensor:
    """What an encoding (2 max_size - 1, ...) of the shifts -(max_size - 1) .. max_size - 1 has for
    every query and key: (length, length, ...).
    """
    max_size = len(encoding) // 2 + 1
    if length > max_size:
        raise ValueError(
            f"An image side of {length} needs an encoding with max_size >= {length}, not"
            f" {max_size}."
        )
    return encoding[_shifts(length, encoding.device) + max_size - 1]


def _check_input(x: Tensor, layer: PositionalAttention | ContentAttention) -> None:
    if x.dim() != 4 or x.shape[-1] != layer.channels:
        raise ValueError(
            f"{type(layer).__name__} takes (B, H, W, {layer.channels}), channels last; it was given"
            f" {tuple(x.shape)}."
        )
