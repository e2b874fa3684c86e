"""A head that reads blocks: which rows are committed, which are run anew together, and where it starts over."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.decoding.messages import Completed, ForwardOn
from edgedec.drafters._heads.block_reader import BlockReader
from edgedec.drafters._heads.states import Seen
from edgedec.runtime import Call, Hidden, Outputs, forward_one
from edgedec.testing.fakes import FakeRuntime, tiny_spec

SPEC = tiny_spec(n_layers=1)
H, LAST = SPEC.hidden_size, SPEC.n_blocks - 1
WANTED = Outputs(hidden=(LAST,))
A, B, C, D, E, F, G = range(1, 8)


class Counted:
    """A network that adds, and counts its rows in the first state and its calls in the second."""

    inputs = ("c", "embedding", "h", "hidden")

    def run(self, c: Hidden, e: Hidden, h: Hidden, s: Hidden) -> tuple[Hidden, Hidden, Hidden]:
        return e + s, h + len(e), c + 1


class Embedded:
    """Of a token ten times its number."""

    def of(self, tokens: Sequence[int]) -> Generator[Any, Any, Hidden]:
        yield from ()
        return np.repeat(10.0 * np.array(tokens, np.float32)[:, None], H, axis=1)


def reader(size: int = 2, capacity: int = 16) -> BlockReader:
    found = BlockReader.__new__(BlockReader)
    runtime = FakeRuntime(SPEC)
    found.head, found._runtime, found._spec = SimpleNamespace(target_norm=None), runtime, SPEC  # type: ignore[assignment]
    found._cache, found._chunk, found._fuse = runtime.new_cache(capacity), 8, None
    found._base, found._text, found._sure, found._rows, found._at = 0, [], True, None, -1
    found._result, found.calls, found.seconds = None, 0, 0.0
    found.size, found._recurrent, found._known = size, Counted(), Embedded()  # type: ignore[assignment]
    found._forget()
    return found


def states(tokens: Sequence[int]) -> Hidden:
    """Of a token its number: an entering row of token b after token a is 10 b + a."""
    return np.repeat(np.array(tokens, np.float32)[:, None, None], H, axis=2)


def done(steps: Generator[Any, Any, Any]) -> tuple[Any, list[Call]]:
    """What the steps return, and their calls."""
    calls, answer = list[Call](), None
    try:
        while True:
            asked = steps.send(answer)
            assert isinstance(asked, ForwardOn)
            calls.append(asked.call)
            answer = Completed(forward_one(asked.runtime, asked.call), asked.call.rows.count, 0.0)
    except StopIteration as end:
        return end.value, calls


def read(found: BlockReader, ids: list[int], start: int = 0, room: int = 2) -> tuple[Any, list[Any]]:
    """Reads the text, of which the states from `start` on are new -> the result; of each call tokens, positions,
    groups and entering numbers."""
    seen = [Seen(start, states(ids[start:-1]), ids[start + 1 :])]
    result, calls = done(found.read(seen, ids, WANTED, room))
    return result, [shown(call) for call in calls]


def shown(call: Call) -> tuple[list[int], list[int], list[int] | None, list[float]]:
    rows, new = call.rows, slice(call.rows.first, None)
    assert call.hidden is not None
    groups = None if rows.groups is None else rows.groups.tolist()
    return rows.tokens[new].tolist(), rows.positions[new].tolist(), groups, call.hidden[:, 0].tolist()


def test_the_example_and_how_it_goes_on() -> None:
    """Rows (b, c) and (c, d) are one group after (a, b); with e it is (c, d) and (d, e) after two rows."""
    found = reader()
    result, calls = read(found, [A, B, C, D])
    assert calls == [([B], [0], None, [21.0]), ([C, D], [1, 2], [0, 0], [32.0, 43.0])]
    assert result.hidden[LAST].shape == (2, H)
    assert (found._count, found._cache.length, found._at) == (3, 1, 2)
    assert [part[0, 0, 0] for part in found.memory] == [3, 1]
    _, calls = read(found, [A, B, C, D, E], 3)
    assert calls == [([C], [1], None, [32.0]), ([D, E], [2, 3], [0, 0], [43.0, 54.0])]
    assert [part[0, 0, 0] for part in found.memory] == [4, 2]


def test_nothing_is_said_before_a_block_is_full_or_where_states_are_missing() -> None:
    found = reader(3)
    for ids, start in (([A, B], 0), ([A, B, C], 1)):
        result, calls = read(found, ids, start)
        assert (result.hidden, calls) == ({}, [])
    result, calls = read(found, [A, B, C, D], 2)
    assert calls == [([B, C, D], [0, 1, 2], [0, 0, 0], [21.0, 32.0, 43.0])]
    result, calls = done(found.read([], [A, B, C, D, E], WANTED, 2))
    assert (result.hidden, calls) == ({}, [])
    assert done(found.read([Seen(3, states([D]), [E])], [A, B, C, D, E], Outputs(), 2))[0].hidden == {}


def test_blocks_below_others_are_groups_of_their_own() -> None:
    """Two blocks below the last row of the text, then one below the second of them."""
    found = reader()
    read(found, [A, B, C, D])
    above, memory = np.ones((2, 2, H), np.float32), found._blank(2)
    (result, after), calls = done(found.grow_blocks([[E, F], [G, A]], [1, 1], above, memory, WANTED))
    rows = calls[0].rows
    assert shown(calls[0]) == ([E, F, G, A], [3, 4, 3, 4], [0, 0, 1, 1, 2, 2], [51.0, 61.0, 71.0, 11.0])
    assert (rows.first, rows.parents.tolist()) == (2, [-1, 0, 1, 2, 1, 4])
    assert result.hidden[LAST].shape == (4, H)
    assert [part.shape for part in after] == [(2, 2, H)] * 2
    assert [part[0, 0, 0] for part in after] == [2, 1]
    _, calls = done(found.grow_blocks([[B, C]], [5], above[:1], found._blank(1), WANTED))
    rows = calls[0].rows
    assert shown(calls[0]) == ([B, C], [5, 6], [0, 0, 1, 1, 2, 2, 3, 3], [21.0, 31.0])
    assert (rows.first, rows.parents.tolist()) == (6, [-1, 0, 1, 2, 1, 4, 5, 6])


@pytest.mark.parametrize(("room", "kept"), [(8, True), (9, False)])
def test_it_starts_over_where_a_draft_has_no_room(room: int, kept: bool) -> None:
    """Of 14 slots three rows are taken, one comes, and a block of two is run anew below them."""
    found = reader(capacity=14)
    read(found, [A, B, C, D])
    _, calls = read(found, [A, B, C, D, E], 3, room)
    assert (found._base, found._count) == ((0, 4) if kept else (3, 1))
    assert bool(calls) is kept
    assert [part[0, 0, 0] for part in found.memory] == ([4, 2] if kept else [1, 1])
    _, calls = read(found, [A, B, C, D, E, F], 4)  # wherever it began, it goes on
    at = 3 if kept else 0
    assert calls[-1] == ([E, F], [at, at + 1], [0, 0], [54.0, 65.0])
    assert (found._base, found._count) == ((0, 5) if kept else (3, 2))


def test_of_a_long_text_the_last_rows_are_read() -> None:
    """Of eight slots a draft takes three and a block two: of six rows the last three are read, from token 3 on."""
    found = reader(capacity=8)
    assert {part.shape for part in found.memory} == {(2, 1, H)}
    _, calls = read(found, [A, B, C, D, E, F, G], 0, 3)
    assert calls == [([E], [0], None, [54.0]), ([F, G], [1, 2], [0, 0], [65.0, 76.0])]
    assert (found._base, found._count, found._at) == (3, 3, 5)
    assert [part[0, 0, 0] for part in found.memory] == [3, 1]
    assert {part.shape for part in found.memory} == {(2, 1, H)}


def test_a_gap_or_another_text_begins_anew() -> None:
    found = reader()
    read(found, [A, B, C, D])
    read(found, [A, B, C, D, E, F], 4)  # the states at d are missing
    assert (found._base, found._count, found._cache.length) == (4, 1, 0)
    found = reader()
    read(found, [A, B, C, D])
    found.reset()
    _, calls = read(found, [A, B, C, D, E], 3)  # the same text: it goes on
    assert len(calls) == 2
    assert found._count == 4
    found.reset()
    _, calls = read(found, [A, B, G, D], 0)
    assert calls == [([B], [0], None, [21.0]), ([G, D], [1, 2], [0, 0], [72.0, 47.0])]
    assert [part[0, 0, 0] for part in found.memory] == [3, 1]


def test_a_fork_goes_on_by_itself() -> None:
    found, twin = reader(), reader()
    read(found, [A, B, C, D])
    twin.inherit(found)
    for one, token in ((twin, F), (found, E)):
        _, calls = read(one, [A, B, C, D, token], 3)
        assert calls[-1] == ([D, token], [2, 3], [0, 0], [43.0, 10.0 * token + D])
        assert [part[0, 0, 0] for part in one.memory] == [4, 2]
