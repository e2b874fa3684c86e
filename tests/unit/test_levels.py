"""Trees drafted level by level, by hand (`edgedec.drafters._heads.levels`)."""

from __future__ import annotations

import pytest

from edgedec.drafters._heads.levels import Levels


def test_the_likeliest_nodes_of_a_level_are_expanded() -> None:
    levels = Levels(nodes=5, beam=2, least=0.05)
    assert levels.together == 1.0
    levels.add([[7, 8, 9]], [[0.5, 0.3, 0.1]])
    assert (levels.tokens, levels.rows) == ([7, 8], [0, 0])
    assert levels.together == pytest.approx(0.8)
    # After 8 the first is likelier (0.27) than the second after 7 (0.2); the second after 8 is below the least.
    levels.add([[1, 2], [3, 4]], [[0.6, 0.4], [0.9, 0.1]])
    assert (levels.tokens, levels.rows) == ([1, 3], [0, 1])
    assert levels.together == pytest.approx(0.3 + 0.27)
    draft = levels.draft()
    assert (draft.tokens, draft.parents) == ([7, 8, 1, 3, 2], [-1, -1, 0, 1, 0])
    assert draft.p == pytest.approx([0.5, 0.3, 0.6, 0.9, 0.4])


def test_children_of_the_worst_node_of_a_full_draft_are_not_expanded() -> None:
    levels = Levels(nodes=2, beam=4, least=0.0)
    levels.add([[7, 8, 9]], [[0.5, 0.3, 0.1]])
    assert levels.tokens == [7], "8 is the worst of two, 9 is not among them"
    levels.add([[1]], [[0.9]])
    assert levels.draft().tokens == [7, 1]
    assert levels.tokens == []
    assert levels.together == 0
