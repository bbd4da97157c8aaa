"""Convolution as attention: `theorem` is the paper's, `surgery` whole networks there, `reading` the way back."""

from attnconv.equivalence.reading import KernelReport, attention_to_conv
from attnconv.equivalence.surgery import TapAttention, conv_to_attention, convert
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
    "TapAttention",
    "attention_to_conv",
    "conv_to_attention",
    "convert",
    "missed_mass",
    "padded_attention",
    "quadratic_scores",
    "tap_shifts",
    "theorem_1",
    "value_matrices",
]
