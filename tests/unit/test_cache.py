"""The cache in host memory against the plainest thing that could be one: lists of rows, one a block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import edgedec.cache.host
from edgedec.cache import HostCache, kv_bytes_per_token
from edgedec.cache.recurrent import Recurrent
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.runtime import Rows
from edgedec.spec import KV_FORMATS, ModelSpec, Ssm
from edgedec.testing.fakes import tiny_layer, tiny_spec

SPEC = tiny_spec()
HYBRID = tiny_spec(layers=(tiny_layer(), (Ssm(2, 8, 4),), tiny_layer(), (Ssm(2, 8, 4),)))
DTYPES = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "int4": np.uint8}


@dataclass
class Row:
    """What one row is in every block: `value` tells it from all others."""

    value: int
    position: int
    token: int = -1


@dataclass
class Model:
    """What a cache must hold: committed rows by attention block; the value a recurrent block is at, and the values at
    which it may be found again, by length."""

    length: int = 0
    rows: dict[int, list[Row]] = field(default_factory=dict)
    states: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def copy(self) -> Model:
        rows = {b: [Row(r.value, r.position, r.token) for r in held] for b, held in self.rows.items()}
        return Model(self.length, rows, {b: list(states) for b, states in self.states.items()})

    def truncate(self, length: int) -> None:
        for b, held in self.rows.items():
            self.rows[b] = [row for row in held if row.token < length]
        self.length = length


class Machine(RuleBasedStateMachine):
    """`cache` against `model`; `pending`: by block the rows that calls have written, by number; `others`: caches that
    were forked, with what they must hold."""

    def __init__(self, spec: ModelSpec, kv: str) -> None:
        super().__init__()
        self.spec, self.kv = spec, kv
        self.others: list[tuple[HostCache, Model]] = []
        self.patch = mock.patch.object(edgedec.cache.host, "_FIRST", 3)
        self.patch.start()
        self.next = 1

    def teardown(self) -> None:
        self.patch.stop()

    @initialize(capacity=st.integers(1, 40))
    def start(self, capacity: int) -> None:
        self.cache = HostCache(self.spec, capacity, self.kv)
        self.model = Model(0, {b: [] for b in self.spec.attention}, {b: [(0, 0)] for b in self.spec.recurrent})
        self.forget()

    def forget(self) -> None:
        """No row is pending."""
        self.pending: dict[int, dict[int, Row]] = {b: {} for b in range(self.spec.n_blocks)}
        self.tree: Rows | None = None
        self.done = 0

    def fill(self, blocks: Any, rows: Rows, made: list[Row]) -> None:
        """Run a call: write the rows' values into each block."""
        spans = self.cache.write(blocks, rows)
        for b in blocks:
            numbers = rows.row_numbers()[rows.first :].tolist()
            if rows.first == 0:
                self.pending[b] = {}
            self.pending[b] |= dict(zip(numbers, made, strict=True))
            if b in spans:
                for slot, row in zip(range(*spans[b]), made, strict=True):
                    put(self.cache, b, slot, row.value)
            if b in self.spec.recurrent:
                states = [state_of(self.cache, b, row.value) for row in made]
                self.cache.state(b).write(rows, [lambda state=state: state for state in states])

    def new_rows(self, parents: list[int], start: int) -> tuple[Rows, list[Row]]:
        rows = Rows.tree([0] * len(parents), parents, start)
        made = [Row(self.next + i, int(position)) for i, position in enumerate(rows.positions)]
        self.next += len(parents)
        return rows, made

    @rule(data=st.data(), n=st.integers(1, 20))
    def call(self, data: st.DataObject, n: int) -> None:
        """A tree through all blocks, or through the first ones and some of its rows through the others."""
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
        rows, made = self.new_rows(parents, self.model.length)
        blocks = range(self.spec.n_blocks)
        if self.model.length + n > self.cache.capacity:
            with pytest.raises(ContextFull, match=f"{self.model.length + n} rows do not fit"):
                self.cache.write(blocks, rows)
            return
        if not self.done:
            self.cache.rollback()
        self.forget()
        cut = data.draw(st.integers(1, len(blocks)))
        self.fill(blocks[:cut], rows, made)
        chosen = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))) if data.draw(st.booleans()) else None
        if cut < len(blocks):
            part = rows if chosen is None else rows.select(chosen)
            used = made if chosen is None else [made[i] for i in chosen]
            if data.draw(st.booleans()):  # what a drafter wrote there is replaced
                self.fill(blocks[cut:], part, [Row(row.value + 1, row.position) for row in used])
            self.fill(blocks[cut:], part, used)
        self.tree = rows if chosen is None or cut == len(blocks) else None

    @precondition(lambda self: self.tree is not None and not self.done)
    @rule(data=st.data(), n=st.integers(1, 6))
    def grow(self, data: st.DataObject, n: int) -> None:
        """More rows of the tree that the last call began."""
        assert self.tree is not None
        before = len(self.tree)
        if self.model.length + before + n > self.cache.capacity:
            return
        parents = [data.draw(st.integers(-1, before + i - 1)) for i in range(n)]
        self.tree = self.tree.extend([0] * n, parents)
        made = [Row(self.next + i, int(p)) for i, p in enumerate(self.tree.positions[before:])]
        self.next += n
        self.fill(range(self.spec.n_blocks), self.tree, made)

    @precondition(lambda self: any(self.pending.values()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Some of the rows after those committed, in one commit or more."""
        size = 1 + max(max(held, default=-1) for held in self.pending.values())
        left = range(self.done, size)
        chosen = sorted(data.draw(st.sets(st.sampled_from(left)))) if left else []
        self.cache.commit(chosen)
        for b, held in self.model.rows.items():
            for i, number in enumerate(chosen):
                if number in self.pending[b]:
                    row = self.pending[b][number]
                    held.append(Row(row.value, row.position, self.model.length + i))
        self.model.length += len(chosen)
        for b, states in self.model.states.items():
            mine = [self.pending[b][number].value for number in chosen if number in self.pending[b]]
            if mine:
                states.append((self.model.length, mine[-1]))
        self.done = chosen[-1] + 1 if chosen else self.done

    @precondition(lambda self: any(self.pending.values()))
    @rule(wrong=st.sampled_from(["beyond", "twice", "back"]))
    def commit_wrongly(self, wrong: str) -> None:
        size = 1 + max(max(held, default=-1) for held in self.pending.values())
        rows = {"beyond": [size], "twice": [self.done, self.done], "back": [self.done - 1]}[wrong]
        with pytest.raises(UsageError, match="cannot be committed"):
            self.cache.commit(rows)

    @rule()
    def rollback(self) -> None:
        self.cache.rollback()
        self.forget()

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, self.model.length))
        self.cache.truncate(n)
        self.settle(self.cache, self.model, n)
        self.forget()

    def settle(self, cache: HostCache, model: Model, asked: int) -> None:
        """After a truncation to `asked`: the length is that, or where all recurrent blocks were before."""
        assert cache.length == asked or (self.spec.recurrent and cache.length < asked)
        before = model.length
        model.truncate(cache.length)
        if cache.length < before:
            for b, states in model.states.items():
                model.states[b] = [pair for pair in states if pair[0] <= cache.length]

    @rule(beyond=st.integers(1, 3))
    def truncate_too_far(self, beyond: int) -> None:
        for n in (-beyond, self.model.length + beyond):
            with pytest.raises(UsageError, match="cannot truncate"):
                self.cache.truncate(n)

    @rule(data=st.data(), go_on=st.booleans())
    def fork(self, data: st.DataObject, go_on: bool) -> None:
        """Go on with the fork or with the original; the other must not change."""
        n = data.draw(st.one_of(st.none(), st.integers(0, self.model.length)))
        twin, model = self.cache.fork(n, data.draw(st.sampled_from([None, 60]))), self.model.copy()
        self.settle(twin, model, self.model.length if n is None else n)
        if go_on:
            self.others.append((self.cache, self.model))
            self.cache, self.model = twin, model
            self.forget()
        else:
            self.others.append((twin, model))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        b = data.draw(st.sampled_from(sorted(self.spec.attention)))
        held = self.model.rows[b]
        gone = data.draw(st.sets(st.sampled_from(range(len(held))))) if held else set()
        self.cache.drop(b, sorted(gone))
        self.model.rows[b] = [row for i, row in enumerate(held) if i not in gone]
        self.forget()
        with pytest.raises(UsageError, match="the block holds"):
            self.cache.drop(b, [len(self.model.rows[b])])

    @rule()
    def save_and_load(self) -> None:
        saved = {name: array.copy() for name, array in self.cache.save().items()}
        self.cache = HostCache(self.spec, self.cache.capacity, self.kv)
        self.cache.load(saved)
        for array in saved.values():
            array[...] = 0
        for b, states in self.model.states.items():
            self.model.states[b] = [(0, 0), (self.model.length, states[-1][1])]
        self.forget()

    @invariant()
    def holds_what_it_must(self) -> None:
        if hasattr(self, "cache"):
            for cache, model in [(self.cache, self.model), *self.others]:
                self.check(cache, model)

    def check(self, cache: HostCache, model: Model) -> None:
        assert cache.length == model.length <= cache.capacity
        for b, held in model.rows.items():
            assert cache.slots(b) == len(held)
            assert cache.positions(b).tolist() == [row.position for row in held]
            saved = cache.save()
            assert saved[f"slots.{b}"][1].tolist() == [row.token for row in held]
            assert saved[f"kv.{b}"].dtype == DTYPES[self.kv]
            expected = np.array([pattern(cache, b, row.value) for row in held]).reshape(-1, *pattern(cache, b, 0).shape)
            assert np.array_equal(saved[f"kv.{b}"].transpose(2, 0, 1, 3), expected)
            assert cache.data(b).shape[2] <= max(cache.capacity, 3)
        for b, states in model.states.items():
            assert cache.state(b).committed.state.max() == states[-1][1]


def pattern(cache: HostCache, b: int, value: int) -> np.ndarray:
    """[2, n_kv_heads, width]: what no other row, block, head or part resembles."""
    shape = (2, cache.data(b).shape[1], cache.data(b).shape[3])
    mixed = value * 7 + b * 3 + np.arange(np.prod(shape))
    return (mixed % 101).reshape(shape).astype(DTYPES[cache.kv])


def put(cache: HostCache, b: int, slot: int, value: int) -> None:
    cache.data(b)[:, :, slot] = pattern(cache, b, value)


def state_of(cache: HostCache, b: int, value: int) -> Recurrent:
    zero = cache.state(b).committed
    return Recurrent(np.full_like(zero.conv, value), np.full_like(zero.state, value))


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("spec", [SPEC, HYBRID], ids=["attention", "hybrid"])
def test_against_lists(spec: ModelSpec, kv: str) -> None:
    quick = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: Machine(spec, kv), settings=quick)


def filled(spec: ModelSpec = SPEC, n: int = 5, kv: str = "f32", capacity: int = 20) -> HostCache:
    cache = HostCache(spec, capacity, kv)
    rows = Rows.chain([0] * n, 0)
    for b, span in cache.write(range(spec.n_blocks), rows).items():
        for slot in range(*span):
            put(cache, b, slot, slot)
    for b in spec.recurrent:
        states = [state_of(cache, b, i + 1) for i in range(n)]
        cache.state(b).write(rows, [lambda state=state: state for state in states])
    cache.commit(range(n))
    return cache


def test_commit_moves_rows_down() -> None:
    cache = filled(n=3)
    tree = Rows.tree([0] * 4, [-1, 0, 0, 2], 3)
    for b, (start, stop) in cache.write(range(6), tree).items():
        assert (start, stop) == (3, 7)
        for slot in range(start, stop):
            put(cache, b, slot, 10 + slot)
    cache.commit([0, 2])
    cache.commit([3])
    assert cache.length == cache.slots(4) == 6
    expected = [pattern(cache, 4, value) for value in (0, 1, 2, 13, 15, 16)]
    assert np.array_equal(cache.data(4)[:, :, :6].transpose(2, 0, 1, 3), expected)
    assert cache.positions(4).tolist() == [0, 1, 2, 3, 4, 5]


def test_it_grows_by_doubling_and_stops_at_capacity() -> None:
    cache, sizes = HostCache(SPEC, 1000), set()
    for n in range(0, 1000, 50):
        cache.write(range(6), Rows.chain([0] * 50, n))
        cache.commit(range(50))
        sizes.add(cache.data(0).shape[2])
    assert sorted(sizes) == [256, 512, 1000]
    with pytest.raises(ContextFull, match="1001 rows do not fit a cache of 1000"):
        cache.write(range(6), Rows.chain([0], 1000))


def test_blocks_that_hold_the_same_slots_share_one_map() -> None:
    cache = filled()
    assert len({id(slots) for slots in cache._maps.values()}) == 1
    cache.drop(2, [1])
    assert len({id(slots) for slots in cache._maps.values()}) == 2
    cache.drop(0, [1])
    cache.drop(4, [1])
    assert len({id(slots) for slots in cache._maps.values()}) == 1
    rows = Rows.chain([0, 0], 5)
    cache.write(range(2), rows)
    cache.write(range(2, 6), rows)
    cache.commit([0, 1])
    assert len({id(slots) for slots in cache._maps.values()}) == 1
    assert [cache.slots(b) for b in (0, 2, 4)] == [6, 6, 6]


def test_a_whole_text_has_each_token_in_the_slot_of_its_position() -> None:
    cache = filled()
    assert cache.is_whole()
    assert HostCache(SPEC, 8).is_whole(), "an empty one"
    cache.drop(2, [cache.slots(2) - 1])
    assert not cache.is_whole(), "one block holds fewer slots"
    for b in (0, 4):
        cache.drop(b, [cache.slots(b) - 1])
    assert not cache.is_whole(), "all blocks hold fewer slots than tokens"
    moved = HostCache(SPEC, 8)
    moved.write(range(6), Rows.chain([0, 0], 3))
    moved.commit([0, 1])
    assert not moved.is_whole(), "two tokens at positions 3 and 4"


def test_a_block_left_out_commits_no_row_of_an_earlier_tree() -> None:
    cache = filled(HYBRID, 2)
    for tree, blocks in ((Rows.chain([0] * 3, 2), range(6)), (Rows.chain([0] * 3, 3), range(3))):
        cache.write(blocks, tree)
        for b in set(blocks) & set(HYBRID.recurrent):
            states = [state_of(cache, b, 40 + i) for i in range(3)]
            cache.state(b).write(tree, [lambda state=state: state for state in states])
        cache.commit([0])
    cache.commit([1, 2])
    assert (cache.length, cache.slots(0), cache.slots(3)) == (6, 6, 3)
    assert cache.state(5).committed.state.max() == 40


def test_calls_of_blocks_without_state_leave_the_pending_rows() -> None:
    cache = filled(n=2, capacity=4)
    cache.write(range(6), Rows.chain([0, 0], 2))
    cache.commit([0])
    assert cache.write((1,), Rows.chain([0] * 9, 0)) == cache.write((), Rows.chain([0] * 9, 0)) == {}
    cache.commit([1])
    assert cache.length == cache.slots(0) == 4


def test_no_rows_are_added_to_a_tree_of_which_some_are_committed() -> None:
    cache = filled(n=2)
    tree = Rows.chain([0, 0], 2)
    cache.write(range(6), tree)
    cache.commit([0])
    with pytest.raises(UsageError, match="rows from 2 on cannot be added"):
        cache.write(range(6), tree.extend([0], [1]))


def test_a_fork_holds_no_more_than_it_needs() -> None:
    cache = filled(n=300, capacity=1000)
    assert cache.data(0).shape[2] == 512
    twin = cache.fork(10, 50)
    assert (twin.length, twin.capacity, twin.data(0).shape[2]) == (10, 50, 10)
    assert cache.fork().data(0).shape[2] == 300
    with pytest.raises(UsageError, match="capacity 9: the fork has 10 tokens"):
        cache.fork(10, 9)
    with pytest.raises(UsageError, match="cannot truncate 300 cached tokens to 301"):
        cache.fork(301)


def test_truncation_goes_back_to_a_state_that_was_kept() -> None:
    """Chunks of 16 rows and more end in one; the empty text is always one."""
    cache, kept = HostCache(HYBRID, 400), [0]
    for size in (20, 3, 16, 30, 5, 17, 40, 16):
        rows = Rows.chain([0] * size, cache.length)
        cache.write(range(HYBRID.n_blocks), rows)
        for b in HYBRID.recurrent:
            states = [state_of(cache, b, cache.length + i + 1) for i in range(size)]
            cache.state(b).write(rows, [lambda state=state: state for state in states])
        cache.commit(range(size))
        kept += [cache.length] if size >= 16 else []
    assert cache.length == 147
    for asked in (147, 146, 131, 100, 91, 90, 60, 2):
        cache.truncate(min(asked, cache.length))
        expected = asked if asked == 147 else max(n for n in [0, *kept[-4:]] if n <= asked)
        assert cache.length == min(expected, cache.length)
        assert cache.state(5).committed.state.max() == cache.length
        assert cache.slots(0) == cache.length
    assert cache.length == 0


def test_what_a_token_costs() -> None:
    costs = {kv: kv_bytes_per_token(SPEC, kv) for kv in KV_FORMATS}
    assert costs == {"f32": 3 * 2 * 16 * 4, "f16": 3 * 2 * 16 * 2, "int8": 3 * 2 * 16, "int4": 3 * 16}
    for kv, cost in costs.items():
        assert HostCache(SPEC, 8, kv).nbytes == 8 * cost


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="no KV format 'f8'; there are: f32, f16"):
        HostCache(SPEC, 4, "f8")
    with pytest.raises(UsageError, match="capacity 0"):
        HostCache(SPEC, 0)
    with pytest.raises(UsageError, match="int4 holds two channels a byte"):
        HostCache(tiny_spec(layers=(tiny_layer(head_dim=9),)), 4, "int4")
    with pytest.raises(UsageError, match="block 1 keeps no slots"):
        filled().drop(1, [0])
    with pytest.raises(UsageError, match="block 2 keeps no slots"):
        filled(HYBRID).drop(2, [0])


@pytest.mark.parametrize("spec", [SPEC, HYBRID], ids=["attention", "hybrid"])
def test_arrays_of_no_such_cache_are_refused(spec: ModelSpec) -> None:
    good, target = filled(spec, 4, "f16").save(), filled(spec, 2, "f16")
    slots, kv = good["slots.0"], good["kv.0"]
    bad: list[dict[str, Any]] = [{}, good | {"more": kv}, filled(spec, 4, "f32").save(), filled(n=4).save()]
    bad += [good | {"length": np.array([n])} for n in (-1, 3, 21)] + [good | {"length": np.array([4.0])}]
    bad += [good | {"kv.0": kv[:, :, :3]}, good | {"kv.0": kv[..., :2]}, good | {"kv.0": kv[0]}]
    changes = (-slots, slots[:, ::-1], slots[::-1, ::-1], slots + 1, slots[:, :3])
    bad += [good | {"slots.0": changed} for changed in changes]
    bad += [{key: array for key, array in good.items() if key != name} for name in good]
    for arrays in bad:
        with pytest.raises(SessionError, match=r"not of a f16 cache|slots are not in order"):
            target.load(arrays)
        assert (target.length, target.slots(0)) == (2, 2)
    target.load(good)
    assert target.length == 4
