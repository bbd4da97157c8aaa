# ruff: noqa: F401 (what is imported here is what the package offers)
"""Convolution as attention: `theorem` is the paper's, `surgery` whole networks there, `reading` the
way back, `swapping` what a network loses by it."""

from attnconv.attention import tap_shifts
from attnconv.equivalence.reading import attention_to_conv
from attnconv.equivalence.surgery import TapAttention, conv_to_attention, convert
from attnconv.equivalence.swapping import swap, unswap
from attnconv.equivalence.theorem import (
    ALPHA,
    missed_mass,
    padded_attention,
    quadratic_scores,
    theorem_1,
    value_matrices,
)
