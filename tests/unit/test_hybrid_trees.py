"""The bench of trees on hybrids: it measures trees of the right shape, and only where tree and paths agree."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from hybrid_trees import measure, paths_of, tree_parents

from edgedec.runtime import Call, CallResult
from edgedec.spec import Ssm
from edgedec.testing.fakes import FakeRuntime, tiny_layer, tiny_spec

SSM = Ssm(n_heads=2, head_dim=4, state_size=4, n_groups=1, conv_size=3)
HYBRID = tiny_spec(layers=((SSM,), tiny_layer(), (SSM,)))


def test_paths_of_a_tree() -> None:
    assert paths_of([-1, -1, 0, 2, 0]) == [[1], [0, 2, 3], [0, 4]]
    assert paths_of([-1]) == [[0]]


def test_the_tree_takes_the_likeliest_paths() -> None:
    """Chances 0.6, 0.2, 0.1: 0.6 0.36 0.216 0.2 0.1296 0.12 0.12."""
    assert tree_parents(5) == [-1, 0, 1, -1, 2]


def test_rows_of_the_paths_are_counted() -> None:
    times, rows = measure(FakeRuntime(HYBRID), 5)
    assert rows == 5 + 2  # the root and its first four descendants, the root and the one beside them
    assert len(times) == 4
    assert min(times) > 0


class Mixed(FakeRuntime):
    """A runtime whose tree rows are not those of their paths."""

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        found = super().forward(calls)
        for call, result in zip(calls, found, strict=True):
            if len(call.rows) == 6 and result.logits is not None:
                result.logits[-1] += np.float32(1)
        return found


def test_another_result_of_the_tree_is_not_measured() -> None:
    with pytest.raises(AssertionError):
        measure(Mixed(HYBRID), 5)
