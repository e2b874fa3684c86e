"""Rows: what each one sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.errors import UsageError
from edgedec.runtime import Rows

WINDOWS = st.one_of(st.none(), st.integers(1, 7))


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


def naive_mask(
    parents: list[int],
    first: int,
    committed: list[int],
    positions: list[int],
    window: int | None = None,
    sinks: int = 0,
    groups: list[int] | None = None,
) -> list[list[bool]]:
    """Row by row and key by key, from the definition alone."""
    groups = groups or [-1] * len(parents)
    far, mask = 10**9 if window is None else window, []
    for row in range(first, len(parents)):
        members = [row] if groups[row] < 0 else [i for i in range(len(parents)) if groups[i] == groups[row]]
        seen = {other for member in members for other in lineage(parents, member)} | set(members)
        keys = [(True, at) for at in committed] + [(i in seen, at) for i, at in enumerate(positions)]
        mask.append([sees and (positions[row] - at < far or at < sinks) for sees, at in keys])
    return mask


def test_the_worked_example() -> None:
    rows = Rows.tree([7, 8, 9, 5], parents=[-1, 0, 0, 2], start=3)
    assert rows.positions.tolist() == [3, 4, 4, 5]
    assert rows.visible().astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
    mask = rows.mask(np.arange(3))
    assert mask[:, :3].all()
    assert (mask[:, 3:] == rows.visible()).all()
    assert [rows.children(i).tolist() for i in (-1, 0, 1, 2)] == [[0], [1, 2], [], [3]]
    grouped = Rows(rows.tokens, rows.positions, rows.parents, groups=np.array([-1, 0, -1, 0]))
    assert grouped.visible().astype(int).tolist() == [[1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1]]


@given(trees(), st.integers(0, 6), WINDOWS, st.integers(0, 3), st.data())
def test_the_mask_is_the_definition(
    parents: list[int], length: int, window: int | None, sinks: int, data: st.DataObject
) -> None:
    """Whatever slots the block holds, and whatever rows see each other."""
    rows, n = Rows.tree(list(range(len(parents))), parents, length), len(parents)
    committed = sorted(data.draw(st.sets(st.integers(0, max(length - 1, 0)), max_size=length)))
    groups = data.draw(st.lists(st.integers(-1, 1), min_size=n, max_size=n))
    where = rows.positions.tolist()
    for given_groups in (None, groups):
        facts = (rows.tokens, rows.positions, rows.parents)
        grouped = Rows(*facts, groups=None if given_groups is None else np.array(given_groups))
        found = grouped.mask(np.array(committed, np.int64), window, sinks)
        assert found.tolist() == naive_mask(parents, 0, committed, where, window, sinks, given_groups)


@given(trees(), st.integers(0, 6), WINDOWS, st.data())
def test_a_grown_tree_is_the_whole_tree_less_its_first_rows(
    parents: list[int], length: int, window: int | None, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(parents)))
    tokens, committed = list(range(len(parents))), np.arange(length)
    grown = Rows.tree(tokens[:cut], parents[:cut], length).extend(tokens[cut:], parents[cut:])
    whole = Rows.tree(tokens, parents, length)
    assert (grown.first, grown.count, len(grown)) == (cut, len(parents) - cut, len(parents))
    assert grown.tokens.tolist() == whole.tokens.tolist()
    assert grown.positions.tolist() == whole.positions.tolist()
    expected = naive_mask(parents, cut, committed.tolist(), whole.positions.tolist(), window)
    assert grown.mask(committed, window).tolist() == expected


def test_windows_on_both_sides_by_hand() -> None:
    """Rows at 2, 3, 4, 3 that all see each other, after slots at 0 and 1; the last two are computed: each sees what is
    less than 2 positions away."""
    rows = Rows(np.arange(4), np.array([2, 3, 4, 3]), np.array([-1, 0, 1, 0]), 2, groups=np.zeros(4, np.int64))
    mask = rows.mask(np.arange(2), window=2, ahead=2)
    assert mask.astype(int).tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]]
    mask = rows.mask(np.arange(2), ahead=1)
    assert mask.astype(int).tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1]]


def test_what_is_added_keeps_groups_numbers_and_positions() -> None:
    rows = Rows(
        np.arange(3),
        np.array([9, 30, 31]),
        np.array([-1, 0, 1]),
        groups=np.array([0, 0, -1]),
        numbers=np.array([2, 4, 7]),
    )
    more = rows.extend([5, 6], [2, -1])
    assert more.positions.tolist() == [9, 30, 31, 32, 9]
    assert more.groups is not None
    assert more.groups.tolist() == [0, 0, -1, -1, -1]
    assert more.row_numbers().tolist() == [2, 4, 7, 8, 9]
    assert rows.extend([], []).count == 0
    with pytest.raises(UsageError, match="row 3: parent 3 does not come before it"):
        rows.extend([5], [3])


@given(trees(), st.data())
def test_selected_rows_see_what_they_saw_of_each_other(parents: list[int], data: st.DataObject) -> None:
    n = len(parents)
    rows, first = Rows.tree(list(range(n)), parents, 4), data.draw(st.integers(0, n - 1))
    whole = Rows(rows.tokens, rows.positions, rows.parents, first)
    chosen = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    part = whole.select(chosen)
    kept = [row for row in chosen if row >= first]
    assert (part.count, part.row_numbers().tolist()) == (len(kept), chosen)
    assert part.tokens.tolist() == chosen
    assert part.positions.tolist() == rows.positions[chosen].tolist()
    assert part.visible().tolist() == rows.visible()[np.ix_(kept, chosen)].tolist()
    again = part.select(range(len(part)))
    assert again.row_numbers().tolist() == chosen
    assert again.parents.tolist() == part.parents.tolist()


def test_the_worked_example_of_select() -> None:
    part = Rows.chain([5, 6, 7, 8], 0).select([0, 3])
    assert part.parents.tolist() == [-1, 0]
    assert part.positions.tolist() == part.row_numbers().tolist() == [0, 3]
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    part = Rows.embedded(values, 0).select([1, 2])
    assert part.embeddings is not None
    assert part.embeddings.tolist() == values[1:3].tolist()
    later = Rows(*(np.array(x) for x in ([5, 6, 7, 8], [0, 1, 2, 3], [-1, 0, 1, 2])), first=2, embeddings=values[:2])
    part = later.select([1, 3])
    assert (part.first, part.count) == (1, 1)
    assert part.embeddings is not None
    assert part.embeddings.tolist() == values[1:2].tolist(), "of row 3, the second that is computed"
    grouped = Rows(part.tokens, part.positions, part.parents, groups=np.array([3, 4])).select([1])
    assert grouped.groups is not None
    assert grouped.groups.tolist() == [4]


@given(st.integers(0, 9), st.integers(0, 9), WINDOWS)
def test_a_chain_is_the_tree_of_only_children(n: int, start: int, window: int | None) -> None:
    chain, tree = Rows.chain(range(n), start), Rows.tree(range(n), range(-1, n - 1), start)
    assert chain.is_chain
    assert tree.is_chain
    assert chain.positions.tolist() == tree.positions.tolist() == list(range(start, start + n))
    assert np.array_equal(chain.mask(np.arange(start), window), tree.mask(np.arange(start), window))


def test_one_token_of_each_text_is_a_chain_of_one() -> None:
    made = Rows.singles([7, 8, 9], [3, 0, 5])
    for rows, token, start in zip(made, (7, 8, 9), (3, 0, 5), strict=True):
        known, chain = vars(rows), vars(Rows.chain([token], start))
        assert known.keys() == chain.keys()
        assert all(np.array_equal(known[name], chain[name]) for name in chain)
        assert {known[name].dtype for name in ("tokens", "positions", "parents")} == {np.dtype(np.int64)}
        assert rows.mask(np.arange(2)).tolist() == [[True, True, True]]
    assert Rows.singles([], []) == []


def test_the_first_rows_of_a_tree() -> None:
    tree = Rows.tree([7, 8, 9, 5], [-1, 0, 0, 2], 3)
    part = tree.head(3)
    assert (part.tokens.tolist(), part.positions.tolist(), part.parents.tolist()) == ([7, 8, 9], [3, 4, 4], [-1, 0, 0])
    assert [len(tree.head(n)) for n in (0, 1, 3)] == [0, 1, 3]
    assert tree.head(4) is tree.head(5) is tree


def test_rows_in_groups_are_no_chain() -> None:
    chain = Rows.chain([1, 2], 0)
    assert not Rows(chain.tokens, chain.positions, chain.parents, groups=np.array([0, 0])).is_chain


def test_whole_texts_and_embedded_rows_by_hand() -> None:
    values = np.arange(6, dtype=np.float64).reshape(3, 2)
    for rows, tokens in ((Rows.text(np.array([5, 6, 7])), [5, 6, 7]), (Rows.text(None, values), [0, 0, 0])):
        assert (rows.tokens.tolist(), rows.positions.tolist()) == (tokens, [0, 1, 2])
        assert (rows.parents.tolist(), rows.groups.tolist()) == ([-1, 0, 1], [0, 0, 0])
        assert (rows.first, rows.count, rows.is_text, rows.is_chain) == (0, 3, True, False)
        assert rows.visible().all()
        found = Rows(rows.tokens, rows.positions, rows.parents, groups=rows.groups)
        assert rows.is_text == found.is_text, "what is set is what is found"
        assert (rows.is_chain, rows.from_zero) == (found.is_chain, found.from_zero) == (False, True)
    assert rows.embeddings.dtype == np.float32
    assert rows.embeddings.tolist() == values.tolist()
    rows = Rows.embedded(values, 4)
    assert (rows.tokens.tolist(), rows.positions.tolist(), rows.parents.tolist()) == ([0, 0, 0], [4, 5, 6], [-1, 0, 1])
    assert (rows.embeddings.tolist(), rows.is_chain, rows.is_text) == (values.tolist(), True, False)
    assert not rows.from_zero


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 2, 0], [-2]])
def test_a_parent_must_come_first(parents: list[int]) -> None:
    with pytest.raises(UsageError, match="does not come before"):
        Rows.tree([1] * len(parents), parents, 0)
