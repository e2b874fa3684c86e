"""Searches for blocks to skip on a model whose blocks matter unequally, by trials that are random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.drafters._slices.block_search import Search, even
from edgedec.testing.fakes import tiny_spec


def gained(kind: type[Search], seed: int, trials: int) -> float:
    """What the set that a search ends with is worth over the one that it begins with."""
    rng = np.random.default_rng(seed)
    spec = tiny_spec(n_layers=14, hidden_size=32, inner_size=96)
    harm = np.zeros(28)
    harm[2:-2] = rng.permutation(np.geomspace(0.002, 0.3, 24))

    def true(skipped: Sequence[int]) -> float:
        return max(1.0 - float(harm[list(skipped)].sum()), 0.02)

    search = kind(spec, even(spec, 0.45), 6)
    before = search.value(search.skipped, true(search.skipped))
    for _ in range(trials):
        skipped = search.candidate()
        rate, rival = rng.binomial(32, true(skipped)) / 32, None
        if skipped != search.skipped and search.promises(skipped, rate):
            rival = rng.binomial(32, true(search.skipped)) / 32
        search.add_trial(skipped, rate, rival)
    return search.value(search.skipped, true(search.skipped)) / before
