"""The paper's attention, written naively from its formulas in float64: loops, no shared code
with the library.
"""

import math

import numpy as np


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def quadratic_scores(centres, spreads, height, width):
    """-1/2 |S (shift - centre)|^2 for every head, query and key pixel."""
    scores = np.empty((len(centres), height, width, height, width))
    for h, i, j, k, m in np.ndindex(scores.shape):
        matrix = spreads[h] * np.eye(2) if np.ndim(spreads[h]) == 0 else spreads[h]
        offset = matrix @ (np.array([k - i, m - j]) - centres[h])
        scores[h, i, j, k, m] = -0.5 * offset @ offset
    return scores


def learned_scores(row_embedding, column_embedding, row_scores, column_scores, height, width):
    """v_row . r_row[shift] + v_col . r_col[shift]."""
    middle = len(row_embedding) // 2
    scores = np.empty((len(row_scores), height, width, height, width))
    for h, i, j, k, m in np.ndindex(scores.shape):
        rows = row_scores[h] @ row_embedding[k - i + middle]
        scores[h, i, j, k, m] = rows + column_scores[h] @ column_embedding[m - j + middle]
    return scores


def content_scores(x, query, key, row_embedding, column_embedding, heads):
    """(q . k + q . r) / sqrt(K) of one image x (H, W, C); query and key are (weight, bias) of a
    linear map.
    """
    height, width, _ = x.shape
    q, k = (x @ weight.T + bias for weight, bias in (query, key))
    size = q.shape[-1] // heads
    middle = len(row_embedding) // 2
    scores = np.empty((heads, height, width, height, width))
    for h, i, j, a, b in np.ndindex(scores.shape):
        own, other = q[i, j, h * size : (h + 1) * size], k[a, b, h * size : (h + 1) * size]
        position = np.concatenate([row_embedding[a - i + middle], column_embedding[b - j + middle]])
        scores[h, i, j, a, b] = own @ (other + position) / math.sqrt(size)
    return scores


def attention(x, scores, weight, bias):
    """Sum over heads and keys of P X W^h + b for one image x (H, W, C); weight (D, h C) holds
    the heads' W^h.
    """
    height, width, channels = x.shape
    out = np.empty((height, width, len(bias)))
    for i, j in np.ndindex(height, width):
        total = bias.copy()
        for h in range(len(scores)):
            p = softmax(scores[h, i, j])
            assert abs(p.sum() - 1) < 1e-12
            mean = sum(p[k, m] * x[k, m] for k, m in np.ndindex(height, width))
            total += weight[:, h * channels : (h + 1) * channels] @ mean
        out[i, j] = total
    return out
