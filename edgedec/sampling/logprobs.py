"""Log-probabilities under the model itself, before any sampling setting."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime.best import kth_largest
from edgedec.sampling.distributions import Logits, finite
from edgedec.sampling.settings import check_whole


def logprob(logits: Logits, token: int) -> float:
    """The log-probability of a token. logits [vocab]."""
    if not 0 <= token < len(logits):
        raise UsageError(f"token {token} is outside the vocabulary of {len(logits)}")
    return float(logits[token]) - _log_total(logits)


def top_logprobs(logits: Logits, n: int) -> list[tuple[int, float]]:
    """The n likeliest tokens with their log-probabilities, descending, ties by id. logits [vocab]."""
    check_whole("n", n)
    if n == 0:
        return []
    total = _log_total(logits)
    near = np.flatnonzero(logits >= (kth_largest(logits, n) if n < len(logits) else -inf))
    order = near[np.argsort(-logits[near], kind="stable")][:n]
    return [(int(i), float(logits[i]) - total) for i in order]


def best_logprobs(
    ids: NDArray[np.int32], scores: Logits, logsum: float, token: int, n: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """`logprob` and `top_logprobs` from the k best of a row, ids and scores [k], and its log-sum. The token is one of
    them, and n at most k."""
    own = float(scores[np.flatnonzero(ids == token)[0]]) - logsum
    top = zip(ids[:n].tolist(), scores[:n].tolist(), strict=True)
    return own, tuple((t, x - logsum) for t, x in top if t >= 0)


def _log_total(logits: Logits) -> float:
    """log sum exp, float64. logits [vocab]."""
    top = finite(np.max(logits))
    return top + float(np.log(np.exp(logits.astype(np.float64) - top).sum()))
