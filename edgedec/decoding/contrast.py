"""Contrast between layers, as a logits processor (DoLa; Chuang et al. 2023, arXiv:2309.03883)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.decoding.logits import BaseProcessor
from edgedec.errors import UsageError
from edgedec.sampling import Logits

Logprobs = NDArray[np.float64]


class LayerContrast(BaseProcessor):
    """What the model learns in its late layers counts: log p of the last layer less log p of an early one.

    Of the early blocks the one whose distribution is farthest from the last one's (Jensen-Shannon) is taken at each
    token. Tokens below `share` of the likeliest one's probability are not considered. The text is another than the
    model's own: this changes the distribution by intent.

    Worked example, p 0.5 0.4 0.1, early 0.5 0.1 0.4, share 0.3:  log p - log early = 0, log 4, -; the second wins
    """

    def __init__(self, early: Sequence[int], share: float = 0.1) -> None:
        if not early or not 0 < share <= 1:
            raise UsageError(f"layer contrast: {list(early)} and share {share}: needs a block and a share from (0, 1]")
        self.early, self._share = tuple(sorted(set(early))), share

    def process(self, logits: Logits, path: Sequence[int], early: Mapping[int, Logits]) -> Logits:
        last = log_softmax(logits)
        others = [log_softmax(early[block]) for block in self.early]
        other = max(others, key=lambda candidate: jensen_shannon(last, candidate))
        with np.errstate(invalid="ignore"):  # -inf less -inf, of what no layer allows
            contrast = np.where(last >= last.max() + np.log(self._share), last - other, -np.inf)
        return contrast.astype(np.float32)


def log_softmax(logits: Logits) -> Logprobs:
    """Log-probabilities, float64. logits [vocab]."""
    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    return x


def jensen_shannon(a: Logprobs, b: Logprobs) -> float:
    """The Jensen-Shannon divergence of two distributions given by log-probabilities [vocab]."""
    p, q = np.exp(a), np.exp(b)
    middle = np.log(np.maximum((p + q) / 2, np.finfo(np.float64).tiny))
    with np.errstate(invalid="ignore"):
        parts = np.where(p > 0, p * (a - middle), 0), np.where(q > 0, q * (b - middle), 0)
    return float((parts[0].sum() + parts[1].sum()) / 2)
