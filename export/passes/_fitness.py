"""How far a model with other weights is from the floats: KL divergence on some of the calibration texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.export.passes._statistics import Statistics
from edgedec.runtimes.reference.numeric import Array, Weights
from edgedec.spec import ModelSpec

# Of each position the likeliest tokens alone are kept: EvoPress finds 512 enough.
_LIKELIEST = 512


class Fitness:
    """The float model's likeliest tokens on all texts, and how others differ there."""

    def __init__(self, spec: ModelSpec, read: Weights, statistics: Statistics) -> None:
        self._spec, self.statistics = spec, statistics
        self._kept = []
        for logits in _logits(spec, read, statistics):
            found = log_probabilities(logits)
            places = np.argsort(-found, axis=1, kind="stable")[:, :_LIKELIEST]
            self._kept.append((places, np.take_along_axis(found, places, axis=1)))

    def picked(self, tokens: int, rng: np.random.Generator) -> list[int]:
        """Texts of at least so many tokens together, drawn at random; all if there are not so many."""
        order, found, n = rng.permutation(len(self.statistics.texts)), list[int](), 0
        for i in order:
            if n >= tokens:
                break
            found.append(int(i))
            n += len(self.statistics.texts[i])
        return sorted(found)

    def __call__(self, read: Weights, texts: Sequence[int], spec: ModelSpec | None = None) -> float:
        """Nats a token of these texts; spec: of a model whose blocks are others."""
        some, total, rows = Statistics(tuple(self.statistics.texts[i] for i in texts)), 0.0, 0
        for i, logits in zip(texts, _logits(spec or self._spec, read, some), strict=True):
            places, floats = self._kept[i]
            own = np.take_along_axis(log_probabilities(logits), places, axis=1)
            total += float((np.exp(floats) * (floats - own)).sum())
            rows += len(places)
        return total / max(rows, 1)


def _logits(spec: ModelSpec, read: Weights, statistics: Statistics) -> list[Array]:
    run = statistics.run(spec, read)
    for b in range(spec.n_blocks):
        run.advance(b)
    return [run.logits(i) for i in range(len(statistics.texts))]


def log_probabilities(logits: Array) -> Array:
    """[rows, vocab_size] of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found
