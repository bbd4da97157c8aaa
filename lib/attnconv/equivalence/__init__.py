"""Convolution as attention: `theorem` is the paper's, `surgery` whole networks there, `reading` the way back."""

from attnconv.equivalence.reading import KernelReport, attention_to_conv
from attnconv.equivalence.surgery import (
    RankReport,
    TapAttention,
    conv_to_attention,
    convert,
    rank_limited,
)
from attnconv.equivalence.theorem import (
    ALPHA,
    missed_mass,
    padded_attention,
    quadratic_scores,
    tap_shifts,
    theorem_1,
    value_matrices,
)

__all__ = [
    "ALPHA",
    "KernelReport",
    "RankReport",
    "TapAttention",
    "attention_to_conv",
    "conv_to_attention",
    "convert",
    "missed_mass",
    "padded_attention",
    "quadratic_scores",
    "rank_limited",
    "tap_shifts",
    "theorem_1",
    "value_matrices",
]
