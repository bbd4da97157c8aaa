# ruff: noqa: F401 (what is imported here is what the package offers)
"""The paper's attention layers (`layers`), and how they average pixels (`mixing`)."""

from attnconv.attention.layers import (
    ContentAttention,
    LearnedAttention,
    PositionalAttention,
    QuadraticAttention,
    tap_shifts,
)
