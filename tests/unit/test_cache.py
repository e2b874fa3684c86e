"""The cache against the plainest thing that could be one: a list of rows."""

from __future__ import annotations

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
from edgedec.cache.host import Cache, kv_bytes_per_token
from edgedec.errors import ContextFull, SessionError, UsageError
from edgedec.spec import KV_FORMATS
from edgedec.testing.fakes import tiny_spec

SPEC = tiny_spec()
DTYPES = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "int4": np.uint8}


class Machine(RuleBasedStateMachine):
    """`rows` is what must be committed, `pending` what the last call wrote behind it; `others` are caches that have
    rows of this one, with what they must hold."""

    def __init__(self, kv: str, shares: bool) -> None:
        super().__init__()
        self.kv, self.shares = kv, shares
        self.others: list[tuple[Cache, list[int]]] = []
        self.patch = mock.patch.object(edgedec.cache.host, "_FIRST", 3)
        self.patch.start()
        self.next = 0

    @initialize(capacity=st.integers(1, 30))
    def start(self, capacity: int) -> None:
        self.cache = self.new(capacity)
        self.rows: list[int] = []
        self.pending: list[int] = []

    def teardown(self) -> None:
        self.patch.stop()

    def new(self, capacity: int) -> Cache:
        return Cache(SPEC, capacity, self.kv, shares=self.shares)

    def put(self, cache: Cache, slot: int, value: int) -> None:
        """A row that no other row, layer, head or part resembles."""
        slot -= cache.n_shared
        for layer in range(SPEC.n_layers):
            cache.keys(layer)[:, slot] = (value + layer) % 100
            cache.values(layer)[:, slot] = (value + layer + 50) % 100
            cache.keys(layer)[1, slot, -1] = (value + 7) % 100

    def expected(self, rows: list[int]) -> np.ndarray:
        cache = Cache(SPEC, max(len(rows), 1), self.kv)
        cache.reserve(len(rows))
        for slot, value in enumerate(rows):
            self.put(cache, slot, value)
        return cache.data[:, :, :, : len(rows)]

    @rule(n=st.integers(1, 12))
    def write(self, n: int) -> None:
        """A call: reserve and write rows behind the committed ones; too many change nothing."""
        if len(self.rows) + n > self.cache.capacity:
            with pytest.raises(ContextFull, match=f"{len(self.rows) + n} rows do not fit"):
                self.cache.reserve(n)
            return
        self.cache.reserve(n)
        self.pending = [self.next + i for i in range(n)]
        self.next += n
        for i, value in enumerate(self.pending):
            self.put(self.cache, self.cache.length + i, value)

    @precondition(lambda self: self.pending)
    @rule(n=st.integers(1, 12))
    def grow(self, n: int) -> None:
        """A growing tree: what is pending survives a second reservation."""
        if len(self.rows) + len(self.pending) + n <= self.cache.capacity:
            self.cache.reserve(len(self.pending) + n)

    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(range(len(self.pending))), unique=True)) if self.pending else []
        self.cache.keep(sorted(chosen))
        self.rows += [self.pending[i] for i in sorted(chosen)]
        self.pending = []

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(self.rows)))
        self.cache.truncate(n)
        self.rows, self.pending = self.rows[:n], []

    @rule(beyond=st.integers(1, 3))
    def truncate_too_far(self, beyond: int) -> None:
        for n in (-beyond, len(self.rows) + beyond):
            with pytest.raises(UsageError, match="cannot truncate"):
                self.cache.truncate(n)

    @rule(go_on=st.booleans())
    def fork(self, go_on: bool) -> None:
        """Go on with the twin or with the original; what happens to the other is not noticed."""
        twin = self.cache.fork()
        other, self.cache = (self.cache, twin) if go_on else (twin, self.cache)
        self.pending = []
        other.data[...] = 1
        other.truncate(0)

    @rule(data=st.data(), behind=st.integers(0, 5), go_on=st.booleans())
    def adopt(self, data: st.DataObject, behind: int, go_on: bool) -> None:
        """Another cache takes over the first n rows, before other rows of its own or none; what is pending here
        survives, and either goes on without the other noticing."""
        n = data.draw(st.integers(0, len(self.rows)))
        known = data.draw(st.integers(0, n))
        other, rows = self.new(self.cache.capacity), self.rows[:n]
        if behind and known == n:
            rows = rows + list(range(self.next, self.next + min(behind, other.capacity - n)))
            known = len(rows)
        self.next += behind
        other.append(self.expected(rows[:known]))
        other.adopt(self.cache, n)
        if self.shares and n:
            assert other.shared is self.cache.shared
        if go_on:
            self.others.append((self.cache, self.rows))
            self.cache, self.rows, self.pending = other, rows, []
        else:
            self.others.append((other, rows))
            for i, value in enumerate(self.pending):
                self.holds(self.cache, self.cache.length + i, value)

    def holds(self, cache: Cache, slot: int, value: int) -> None:
        assert cache.keys(1)[1, slot - cache.n_shared, -1] == (value + 7) % 100

    @rule()
    def save_and_load(self) -> None:
        saved = self.cache.save().copy()
        self.cache = self.new(self.cache.capacity)
        self.cache.load(saved)
        saved[...] = 1
        self.pending = []

    @invariant()
    def holds_the_rows(self) -> None:
        if hasattr(self, "cache"):
            assert self.cache.length == len(self.rows)
            assert self.cache.allocated <= self.cache.capacity
            assert np.array_equal(self.cache.save(), self.expected(self.rows))
            assert self.cache.data.dtype == DTYPES[self.kv]
            for other, rows in self.others:
                assert np.array_equal(other.save(), self.expected(rows))


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_against_a_list(kv: str, shares: bool) -> None:
    quick = settings(max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(lambda: Machine(kv, shares), settings=quick)


def test_the_worked_example_of_keep() -> None:
    cache = Cache(SPEC, 10)
    cache.length = 3
    cache.keys(2)[:, :7] = np.arange(7)[None, :, None]
    cache.keep([0, 2, 3])
    assert cache.length == 6
    assert cache.keys(2)[0, :6, 0].tolist() == [0, 1, 2, 3, 5, 6]


def test_it_grows_by_doubling_and_stops_at_capacity() -> None:
    cache = Cache(SPEC, 1000)
    sizes = [cache.allocated]
    for n in range(0, 1000, 50):
        cache.length = n
        cache.reserve(50)
        sizes.append(cache.allocated)
    assert sorted(set(sizes)) == [256, 512, 1000]
    with pytest.raises(ContextFull, match="1001 rows do not fit a cache of 1000"):
        cache.reserve(51)


def test_pending_rows_survive_growth() -> None:
    cache = Cache(SPEC, 1000)
    cache.length = 250
    cache.reserve(6)
    cache.keys(1)[:, 250:256] = 5
    cache.reserve(7)
    assert cache.allocated > 256
    assert (cache.keys(1)[:, 250:256] == 5).all()


def test_views_are_the_cache_itself() -> None:
    cache = Cache(SPEC, 4)
    cache.keys(1)[:] = 5
    cache.values(1)[:] = 6
    assert (cache.data[1, 0] == 5).all()
    assert (cache.data[1, 1] == 6).all()
    assert not cache.data[[0, 2]].any()


def test_what_a_token_costs() -> None:
    costs = {kv: kv_bytes_per_token(SPEC, kv) for kv in KV_FORMATS}
    assert costs == {"f32": 3 * 2 * 16 * 4, "f16": 3 * 2 * 16 * 2, "int8": 3 * 2 * 16, "int4": 3 * 16}
    for kv, cost in costs.items():
        assert Cache(SPEC, 8, kv).data.nbytes == 8 * cost


def test_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="no KV format 'f8'; there are: f32, f16"):
        Cache(SPEC, 4, "f8")
    with pytest.raises(UsageError, match="capacity 0"):
        Cache(SPEC, 0)
    cache = Cache(SPEC, 4, "f16")
    good = np.zeros((3, 2, 2, 2, 8), np.float16)
    cache.load(good)
    for bad in (good.astype(np.float32), good[:2], good[..., :4], good[0], np.zeros(0, np.float16)):
        with pytest.raises(SessionError, match="not of a f16 cache"):
            cache.load(bad)
        assert cache.length == 2
    with pytest.raises(ContextFull):
        cache.load(np.zeros((3, 2, 2, 5, 8), np.float16))
