"""Means of a few examples, moved towards the texts that are to be labelled: optimal transport.

A few examples say little of where a label's texts lie. OpTA of BECLR (Poulakakis-Daktylidis and Jamali-Rad 2024)
transports the labels' means onto the texts: the plan with the least cost, entropy added (Sinkhorn, Cuturi 2013), takes
the share of each label to the texts, and a label's mean becomes the mean of the texts that it reaches. The authors'
constants: squared distances over their largest, entropy 0.05, five passes with one example a label and one pass with
more. There the moved mean counts 0.7 with five examples, and all with one, at 15 texts a label; here it counts
texts / (texts + examples), which is 0.75 and 0.94 there, and less when there are few texts.

The authors' labels are all as frequent ("even"). Where they are not, that costs more than it gains; "measured" gives a
label the texts that are nearest to its mean. A text's result depends on the other texts either way.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.encoding.numeric import Array, unit

Align = Literal["measured", "even"]
# exp(-1 / _ENTROPY) is 2e-9: costs of 0 to 1 need no logarithms.
_ENTROPY, _ROUNDS, _EXACT = 0.05, 1000, 1e-6
Wide = NDArray[np.float64]


def aligned(means: Array, examples: NDArray[np.int64], texts: Array, align: Align) -> Array:
    """Means [labels, width] of so many `examples` [labels], moved towards `texts` [n, width]; all of length 1."""
    moved = means
    for _ in range(5 if examples.max() == 1 else 1):
        count = _counts(moved, texts, align)
        reached = count > 0
        plan = transport(_costs(moved[reached], texts), count[reached] / max(1, len(texts)))
        weight = (count / (count + examples))[reached, None]
        moved = means.copy()
        mixed = weight * _targets(plan, texts) + (1 - weight) * means[reached]
        moved[reached] = unit(mixed.astype(np.float32))
    return moved


def _counts(means: Array, texts: Array, align: Align) -> Wide:
    """How many of the texts each label takes."""
    if align == "even":
        return np.full(len(means), len(texts) / len(means))
    return np.bincount((texts @ means.T).argmax(axis=1), minlength=len(means)).astype(np.float64)


def _costs(means: Array, texts: Array) -> Wide:
    """Squared distances of vectors of length 1, over their largest."""
    costs: Wide = np.maximum(2 - 2 * (means.astype(np.float64) @ texts.T.astype(np.float64)), 0)
    return costs / max(costs.max(initial=0), 1e-12)


def transport(costs: Wide, shares: Wide) -> Wide:
    """The plan [rows, columns] of least cost less entropy: rows sum to `shares`, columns to the same each.

    >>> transport(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.5, 0.5])).round(3).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    kernel, column = np.exp(-costs / _ENTROPY), np.ones(costs.shape[1])
    row = np.ones(len(costs))
    for _ in range(_ROUNDS):
        row = shares / (kernel @ column)
        column = 1 / (costs.shape[1] * (row @ kernel))
        if (np.abs(row * (kernel @ column) - shares) <= _EXACT * shares).all():
            break
    return row[:, None] * kernel * column


def _targets(plan: Wide, texts: Array) -> Wide:
    """The mean of the texts that each row reaches."""
    return (plan / plan.sum(axis=1, keepdims=True)) @ texts
