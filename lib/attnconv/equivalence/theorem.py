"""Theorem 1: a layer of self-attention can be any convolution.

A K x K convolution adds up one matrix product for each tap Delta of its kernel. Multi-head
self-attention adds up one for each head h:

    Conv(X)_q = sum_Delta X_{q + Delta} W_Delta + b,
    MHSA(X)_q = sum_h sum_k P_h(q, k) X_k W^h + b.

*A head that always looks at the same shift k - q = Delta is one tap of the kernel.* The rest is to
find such heads.

**Theorem 1.** A layer of N_h heads of dimension D_h, with output dimension D_out and a relative
positional encoding of dimension D_p >= 3, can express any convolution with a kernel of sqrt(N_h) x
sqrt(N_h) and min(D_h, D_out) output channels.

- Lemma 1 (`value_matrices`): where the heads look at the K^2 taps, one each, W^h = W_Delta(h) gives
  the convolution.
- Lemma 2 (`quadratic_scores`): the quadratic encoding, of dimension 3, makes a head look at any
  shift.
- `theorem_1` puts them together; `padded_attention` settles the border.
- `missed_mass` says how much of a head's attention is elsewhere while it is not yet infinitely
  sharp.

The condition on D_h: W^h = W_val^h W_out^h has rank D_h at most. The heads of this library own one
full matrix W^h, so all output channels are right."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnconv.attention import QuadraticAttention, tap_shifts

# a softmax is then exactly one-hot: exp(-alpha) is 0 beyond 104 in float32, 745 in float64
ALPHA = 800.0


def value_matrices(kernel: Tensor) -> Tensor:
    """Lemma 1: W^h is the kernel's slice at the tap that head h looks at.

    (D, C, K, K) -> (D, K^2 C): the slices side by side, as ``value.weight`` of an attention layer
    holds its heads."""
    return kernel.flatten(2).transpose(1, 2).flatten(1)


def quadratic_scores(shifts: Tensor, centres: Tensor, alpha: float) -> Tensor:
    """Lemma 2: scores v_h . r_delta of the quadratic encoding, for shifts (n, 2) and heads' centres
    (h, 2): (h, n).

    A score of relative attention has four terms (Transformer-XL): query with key, query with
    position, and the same with two learned vectors u and v in the query's place. The lemma takes
    W_qry = W_key = 0, which leaves the last, and W^_key = I, so that the score is v . r_delta. With

        r_delta = (|delta|^2, delta_1, delta_2),        v = -alpha (1, -2 Delta_1, -2 Delta_2)

    it is -alpha |delta - Delta|^2 + alpha |Delta|^2. The last term is the same for all keys, and
    the softmax cancels it: attention is a Gaussian around Delta. As alpha grows, all of it goes to
    the one pixel at shift Delta. `QuadraticAttention` computes -alpha |delta - Delta|^2, with alpha
    = spread^2 / 2."""
    r = torch.cat([shifts.square().sum(-1, keepdim=True), shifts], dim=-1)  # (n, 3)
    v = -alpha * torch.cat([torch.ones_like(centres[:, :1]), -2 * centres], dim=-1)  # (h, 3)
    return v @ r.T.to(v.dtype)  # shifts may be whole numbers


def checked_alpha(alpha: float) -> float:
    """Lemma 2's sharpness, if it is one."""
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha = {alpha} must be a positive number.")
    return float(alpha)


def theorem_1(kernel: Tensor, bias: Tensor | None, alpha: float = ALPHA) -> QuadraticAttention:
    """The attention layer that is a convolution: kernel (D, C, K, K) and bias (D,) or None, stride
    1; K^2 heads.

    It equals the convolution at every query whose taps all lie in the image: `padded_attention`
    makes that all of them."""
    alpha = checked_alpha(alpha)
    out_channels, channels, height, width = kernel.shape
    layer = QuadraticAttention(channels, out_channels, heads=height * width).to(kernel)
    with torch.no_grad():
        layer.centres.copy_(tap_shifts((height, width)))  # Lemma 2: head h looks at tap h ...
        layer.spreads.fill_(math.sqrt(2 * alpha))  # ... and nowhere else
        layer.value.weight.copy_(value_matrices(kernel))  # Lemma 1
        layer.value.bias.copy_(torch.zeros(1) if bias is None else bias)
    return layer


def padded_attention(layer: nn.Module, x: Tensor, margin: int) -> Tensor:
    """The paper's remedy at the border: pad with zeros, attend, and keep the queries of the image
    itself.

    Channels last, (B, H, W, C) -> (B, H, W, D), with margin = (K - 1) / 2. Without it a softmax
    shares out all of its mass among the pixels that exist, where a convolution counts those outside
    as zero."""
    padded = F.pad(x, (0, 0, margin, margin, margin, margin))
    return layer(padded)[:, margin : margin + x.shape[1], margin : margin + x.shape[2]]


def missed_mass(alpha: float | Tensor) -> float | Tensor:
    """Attention mass that an isotropic Gaussian head leaves off its centre: 1 - 1/S^2, about 4
    exp(-alpha).

    S = sum over n in Z of exp(-alpha n^2), for an integer centre far from the borders: the
    probability at the centre is 1/S along each axis. Takes a number, or a tensor elementwise
    (float64)."""
    a = torch.as_tensor(alpha, dtype=torch.float64)
    if not (a > 0).all():
        raise ValueError(f"alpha = {alpha} must be positive: a flat head has no centre.")
    terms = math.ceil(math.sqrt(40 / a.min().item())) + 1  # exp(-40) is below float64's rounding
    n = torch.arange(1, terms + 1).to(a)
    beside = 2 * torch.exp(-a[..., None] * n.square()).sum(-1)  # S - 1, without cancellation
    missed = -torch.expm1(-2 * torch.log1p(beside))
    return missed if isinstance(alpha, Tensor) else missed.item()
