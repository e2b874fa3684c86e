"""Rates of taken guesses that drafters learn, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgedec.drafters.jacobi import Jacobi
from edgedec.drafters.model import ModelDrafter


def step(taken: int, guesses: int) -> Any:
    """A call of the text's last token and some guesses, of which the first `taken` stand."""
    result = SimpleNamespace(logits=None, ids=None)
    return SimpleNamespace(path=range(taken + 1), rows=range(guesses + 1), root=0, result=result, picked=[])


@pytest.mark.parametrize(
    ("taken", "drafted", "expected"),
    # 0.05 of the way to 1 for a guess that stands, to 0 for the first that does not; those after it say nothing.
    [
        (0, 3, (0.475, 0.2)),
        (2, 3, (((0.5 * 0.95 + 0.05) * 0.95 + 0.05) * 0.95, 0.2)),
        (2, 1, (0.5 * 0.95 + 0.05, (0.2 * 0.95 + 0.05) * 0.95)),
        (3, 0, (0.5, ((0.2 * 0.95 + 0.05) * 0.95 + 0.05) * 0.95 + 0.05)),
    ],
)
def test_jacobi_learns_how_often_guesses_stand(taken: int, drafted: int, expected: tuple[float, float]) -> None:
    """Those that calls before drew or named apart from new ones."""
    drafter = Jacobi(13, 3)
    drafter._drafted = drafted
    drafter.observe(step(taken, 3))
    assert drafter._rates == pytest.approx(expected)


def test_a_draft_model_learns_how_often_its_draws_are_taken() -> None:
    drafter = ModelDrafter.__new__(ModelDrafter)
    drafter._drawn, drafter._taken = True, [0.7, 0.25]
    drafter._learn(0, True)
    drafter._learn(1, False)
    assert drafter._taken == pytest.approx([0.7 + 0.03 * 0.3, 0.25 * 0.97])
