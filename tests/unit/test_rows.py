"""Rows: what each one sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime.rows import Rows


@st.composite
def trees(draw: st.DrawFn, most: int = 8) -> list[int]:
    """Parents of a tree."""
    n = draw(st.integers(1, most))
    return [draw(st.integers(-1, i - 1)) for i in range(n)]


def lineage(parents: list[int], row: int) -> list[int]:
    """The row and its ancestors, nearest first."""
    found = []
    while row >= 0:
        found.append(row)
        row = parents[row]
    return found


def naive_mask(parents: list[int], first: int, length: int, window: int | None) -> list[list[bool]]:
    """Row by row and key by key, from the definition alone."""
    depth = [len(lineage(parents, i)) - 1 for i in range(len(parents))]
    where = [*range(length), *(length + d for d in depth)]
    mask = []
    for row in range(first, len(parents)):
        family = lineage(parents, row)
        far = 10**9 if window is None else window
        sees = [key < length or key - length in family for key in range(length + len(parents))]
        mask.append([s and where[length + row] - where[key] < far for key, s in enumerate(sees)])
    return mask


def test_the_worked_example() -> None:
    rows = Rows.tree([7, 8, 9, 5], parents=[-1, 0, 0, 2], start=3)
    assert rows.positions.tolist() == [3, 4, 4, 5]
    assert rows.ancestors().astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    assert rows.mask(3)[:, :3].all()
    assert (rows.mask(3)[:, 3:] == rows.ancestors()).all()
    assert [rows.children(i).tolist() for i in (-1, 0, 1, 2)] == [[0], [1, 2], [], [3]]


@given(trees(), st.integers(0, 6), st.one_of(st.none(), st.integers(1, 7)))
def test_the_mask_is_the_definition(parents: list[int], length: int, window: int | None) -> None:
    rows = Rows.tree(list(range(len(parents))), parents, length)
    assert rows.mask(length, window).tolist() == naive_mask(parents, 0, length, window)


@given(trees(), st.integers(0, 6), st.one_of(st.none(), st.integers(1, 7)), st.data())
def test_a_grown_tree_is_the_whole_tree_less_its_first_rows(
    parents: list[int], length: int, window: int | None, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(parents)))
    tokens = list(range(len(parents)))
    grown = Rows.tree(tokens[:cut], parents[:cut], length).grown(tokens[cut:], parents[cut:])
    whole = Rows.tree(tokens, parents, length)
    assert (grown.first, grown.count, len(grown)) == (cut, len(parents) - cut, len(parents))
    assert grown.tokens.tolist() == whole.tokens.tolist()
    assert grown.positions.tolist() == whole.positions.tolist()
    assert grown.mask(length, window).tolist() == naive_mask(parents, cut, length, window)


@given(st.integers(0, 9), st.integers(0, 9), st.one_of(st.none(), st.integers(1, 7)))
def test_a_chain_is_the_tree_of_only_children(n: int, start: int, window: int | None) -> None:
    chain, tree = Rows.chain(range(n), start), Rows.tree(range(n), range(-1, n - 1), start)
    assert chain.is_chain
    assert tree.is_chain
    assert chain.positions.tolist() == tree.positions.tolist() == list(range(start, start + n))
    assert np.array_equal(chain.mask(start, window), tree.mask(start, window))


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-2]])
def test_a_parent_must_come_first(parents: list[int]) -> None:
    with pytest.raises(UsageError, match="does not come before"):
        Rows.tree([1] * len(parents), parents, 0)
