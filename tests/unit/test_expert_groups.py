"""Experts that are chosen from the best groups: the rule, on worked examples, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgedec.errors import BundleCorrupt
from edgedec.runtimes.reference.moe import in_best_groups, route
from edgedec.spec import Moe

BLOCK = Moe(8, 2, 16, "sigmoid", router_bias=True, groups=4, top_groups=2)


def test_the_example_of_the_docstring() -> None:
    found = in_best_groups(np.array([[5, 1, 4, 3]], np.float32), 2, 1)
    assert found.tolist() == [[-np.inf, -np.inf, 4, 3]]


def test_a_group_is_judged_by_its_two_best_and_of_equals_the_first_is_taken() -> None:
    """The best expert of all is left out where its group is not; three experts of a group do not count."""
    scores = np.array([[9, 0, 0, 5, 5, 0, 4, 4, 3], [1, 1, 0, 1, 1, 0, 1, 1, 0]], np.float32)
    kept = np.isfinite(in_best_groups(scores, 3, 1))
    assert kept.tolist() == [[False] * 3 + [True] * 3 + [False] * 3, [True] * 3 + [False] * 6]


def test_the_bias_chooses_and_does_not_weigh() -> None:
    logits = np.array([[2.0, -2.0, 1.5, -3.0, 0.8, 0.4, -1.5, -1.8]], np.float32)
    bias = np.array([0, 0, 0, 0, 0, 0.5, 0, 0], np.float32)
    experts, weights = route(replace(BLOCK, scale=2.5), logits, bias)
    # Groups 2 (0.69 + 1.10) and 0 (0.88 + 0.12) or 1 (0.82 + 0.05): of these experts 5 and 0.
    assert experts.tolist() == [[5, 0]]
    chosen = 1 / (1 + np.exp(-logits[0, [5, 0]]))
    np.testing.assert_allclose(weights[0], chosen / chosen.sum() * 2.5, rtol=1e-6)
    free, _ = route(replace(BLOCK, groups=1, top_groups=1), logits, bias)
    assert free.tolist() == [[5, 0]]
    assert route(replace(BLOCK, top_groups=1), logits, bias)[0].tolist() == [[5, 4]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": 3}, "8 experts are no 3 groups|are not 3 groups"),
        ({"groups": 8}, "not 8 groups of 2 or more"),
        ({"top_groups": 5}, "5 of 4 do not give 2 experts"),
        ({"top_groups": 1, "top_k": 3}, "1 of 4 do not give 3 experts"),
        ({"groups": 0}, "groups"),
        ({"top_groups": 0}, "top_groups"),
        ({"router": "softmax", "router_bias": False}, "only a sigmoid router has them"),
        ({"groups": 1}, "2 of 1 do not give"),
    ],
)
def test_groups_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    replace(BLOCK).check("b")
    with pytest.raises(BundleCorrupt, match=message):
        replace(BLOCK, **changes).check("b")  # type: ignore[arg-type]


def test_experts_by_sparsemixer() -> None:
    """Two rows: the example of `sparse_mixed`, and the same ones further apart; then with weights that sum to 1."""
    logits = np.array([[1.0, 2.0, 1.9], [0.0, 4.0, 1.0]], np.float32)
    block = Moe(3, 2, 16, "sparsemixer", normalize=False, jitter=0.1)
    first = 1 / (1 + np.exp(np.float32(-0.1)))
    experts, weights = route(block, logits)
    assert experts.tolist() == [[1, 2], [1, 2]]
    np.testing.assert_allclose(weights, [[first, 1], [1, 1]], rtol=1e-6)
    _, weights = route(replace(block, normalize=True, scale=3.0), logits)
    np.testing.assert_allclose(weights, 3 * np.array([[first / (1 + first), 1 / (1 + first)], [0.5, 0.5]]), rtol=1e-6)
