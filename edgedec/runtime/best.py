"""The k best of a row of logits, without sorting the vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STRIPS = 64


def kth_largest(row: NDArray[np.float32], k: int) -> float:
    """The k-th largest of row [n], 1 <= k <= n; no NaN.

    The k-th largest of the maxima of n/64 disjoint strips is a lower bound, and few numbers reach it.
    """
    n, width = len(row), len(row) // _STRIPS
    if k < width // 2:
        maxima = row[: width * _STRIPS].reshape(_STRIPS, width).max(axis=0)
        row = row[row >= np.partition(maxima, width - k)[width - k]]
        n = len(row)
    return float(np.partition(row, n - k)[n - k])


def best(logits: NDArray[np.float32], k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """logits [n, vocab] -> the k best tokens of each row and their logits.

    The best first, the lowest of equals first; -1 where a logit is not finite.
    """
    k = min(k, logits.shape[1])
    if k == 1:
        ids = logits.argmax(axis=1)[:, None]
    else:
        ids = np.array([_best(row, k) for row in logits], np.int64).reshape(-1, k)
    scores = logits[np.arange(len(ids))[:, None], ids]
    # argmax returns the first NaN, so a row with a NaN has it in its first place.
    return np.where(np.isfinite(scores), ids, -1).astype(np.int32), scores


def _best(row: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """row [vocab] -> [k]."""
    first = row.argmax()
    if np.isnan(row[first]):
        return np.array([first] * k, np.int64)
    near = np.flatnonzero(row >= kth_largest(row, k))
    return near[np.argsort(-row[near], kind="stable")][:k]
