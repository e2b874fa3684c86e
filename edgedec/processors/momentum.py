"""Momentum decoding: a likely token, unless it would go on along a sequence of the text (lossy).

Lan et al. 2022, arXiv:2212.02175. The rule rests on the authors' code, with its table for GPT-2 XL: of the `top_k`
likeliest tokens that of the largest p - alpha r, where r is the length of the longest sequence of at most five tokens
that ends with it and is in the text already, prompt included; 0 for a new token. Made for a temperature of 0. alpha 0
is plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.logits import BaseProcessor, Early
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.processors._facts import ProcessorFacts
from edgedec.sampling import Ids, Logits

FACTS = ProcessorFacts(lossy=True, paper="arXiv:2212.02175")
# The longest sequence that counts.
_LONGEST = 5


def make(
    host: OpenedModel,
    alpha: Annotated[float, Opt("What each token of a repeated sequence costs; 0: nothing.", 0)] = 0.2,
    top_k: Annotated[int, Opt("Candidates.", 1, 1024)] = 5,
) -> Momentum:
    return Momentum(alpha, top_k)


class Momentum(BaseProcessor):
    """Worked example, text a b c a b, p .6 for c and .3 for d, alpha .2:  c .6 - .2 · 3 (a b c), d .3; d wins"""

    def __init__(self, alpha: float = 0.2, top_k: int = 5) -> None:
        self._alpha, self._k = alpha, top_k
        self._context: Context | None = None

    def attach(self, context: Context) -> None:
        self._context = context

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        if self._alpha == 0 or self._context is None:
            return logits
        p = np.exp(logits.astype(np.float64) - logits.max())
        p /= p.sum()
        tokens = np.argsort(-logits, kind="stable")[: self._k]
        ids = np.array([*self._context.ids, *path], np.int64)
        found = np.full(len(logits), -np.inf, np.float32)
        found[tokens] = p[tokens] - self._alpha * np.array([repeated_length(ids, token) for token in tokens.tolist()])
        found[logits == -np.inf] = -np.inf
        return found

    def fork(self) -> Momentum:
        return Momentum(self._alpha, self._k)


def repeated_length(ids: Ids, token: int, longest: int = _LONGEST) -> int:
    """The tokens of the longest sequence that ends the text with this token after it, and is in the text already.

    >>> repeated_length(np.array([1, 2, 3, 1, 2]), 3), repeated_length(np.array([1, 2, 3, 1, 2]), 1)
    (3, 1)
    """
    ends, n = np.flatnonzero(ids == token), 0
    while len(ends) and n < longest:
        n += 1
        if n > len(ids):
            break
        ends = ends[ends >= n]
        ends = ends[ids[ends - n] == ids[len(ids) - n]]
    return n
