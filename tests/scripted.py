"""A runtime whose attention, queries and keys are given, and texts read with it: what tests of cache policies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import HostCache
from edgedec.decoding.apply_policy import settle
from edgedec.policies import CachePolicy, PolicyHost, WorkingPolicy, make_policy
from edgedec.runtime import Call, CallResult, Capabilities, Rows, Runtime, forward_one
from edgedec.spec import Attention, Mlp, ModelSpec

Array = NDArray[np.float32]
CAN = Capabilities(
    kinds=("attention", "mlp"),
    kv_formats=("f32",),
    drop_by_head=True,
    merge=True,
    attach=True,
    views=True,
    queries=True,
    offload=True,
)


def spec_of(layers: int = 2, kv_heads: int = 2, group: int = 1, dim: int = 2, context: int = 4096) -> ModelSpec:
    """A stack of attention blocks (0, 2, 4, ...) with an mlp after each; scores are q * k."""
    block = Attention(kv_heads * group, kv_heads, dim, 1.0, rope=None)
    return ModelSpec("scripted", 50, 2, context, ((block, Mlp(4)),) * layers, 1e-5, True, ())


class RecordingCache(HostCache):
    """`written`: the pages of each block that were put on disk, one list a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.written: list[tuple[int, list[int]]] = []

    def offload(self, block: int, pages: Sequence[int] | NDArray[np.int64], folder: str) -> None:
        self.written.append((block, [int(page) for page in pages]))


class Scripted:
    """paid: by block [kv_heads, rows, slots], by positions; queries: by block [positions, n_heads, dim]; keys: by block
    [kv_heads, positions, dim]. Values hold their position. The state of a row after block b is [position, b]: rows that
    enter a block must come from the one before it. `apart`: heads hold slots of their own. `calls`: all so far."""

    name = "scripted"

    def __init__(
        self,
        spec: ModelSpec,
        paid: Mapping[int, Array] | None = None,
        queries: Mapping[int, Array] | None = None,
        keys: Mapping[int, Array] | None = None,
        apart: bool = False,
    ) -> None:
        self.spec, self.capabilities = spec, CAN
        self._paid, self._queries, self._keys, self._apart = paid or {}, queries or {}, keys or {}, apart
        self.calls: list[Call] = []

    def new_cache(self, capacity: int) -> RecordingCache:
        return RecordingCache(self.spec, capacity)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        self.calls += calls
        return [self._run(call) for call in calls]

    def _run(self, call: Call) -> CallResult:
        blocks = list(range(self.spec.n_blocks)) if call.blocks is None else list(call.blocks)
        rows, cache, result = call.rows, call.cache, CallResult()
        assert isinstance(cache, HostCache)
        assert rows.parents.tolist() == list(range(-1, len(rows) - 1))
        assert len(rows.positions) == len(rows)
        at = rows.positions[rows.first :]
        if blocks and blocks[0] > 0:
            assert call.hidden is not None
            assert (call.hidden == np.stack([at, np.full(len(at), blocks[0] - 1)], axis=1)).all()
        spans = cache.write(blocks, rows)
        for b in [b for b in blocks if b in self.spec.attention]:
            start, stop = spans[b]
            data = cache.data(b)
            data[1][:, start:stop] = at[:, None]
            if b in self._keys:
                data[0][:, start:stop] = self._keys[b][:, at]
            if call.outputs.attention:
                result.attention[b] = self._sums(call, b, data[1][:, :stop, 0].astype(int))
            if b in call.outputs.queries:
                result.queries[b] = self._queries[b][at]
        for b in call.outputs.hidden:
            result.hidden[b] = np.stack([at, np.full(len(at), b)], axis=1).astype(np.float32)
        return result

    def _sums(self, call: Call, b: int, held: NDArray[Any]) -> Array:
        at = np.concatenate([call.cache.positions(b), call.rows.positions])
        heads = [held[h] if self._apart else at for h in range(len(held))]
        paid = self._paid.get(b)
        if paid is None:
            return np.zeros((len(heads), len(at)), np.float32)
        new = call.rows.positions[call.rows.first :]
        return np.stack([paid[h][np.ix_(new, slots)].sum(axis=0) for h, slots in enumerate(heads)]).astype(np.float32)


class Text:
    """A text under a policy, read and continued by given tokens as decoding does it."""

    def __init__(self, runtime: Any, words: str, room: int = 600, decode: Any = None) -> None:
        self.runtime: Runtime = runtime
        self.policy = policy_of(words, runtime.spec, decode, runtime.capabilities)
        self.cache, self.ids, self.adapter = self.runtime.new_cache(room), list[int](), None
        self.together = 0

    def pending(self) -> list[int]:
        return self.ids[self.cache.length :]

    def read(self, tokens: int | Sequence[int], most: int = 128) -> Text:
        """A prompt of so many tokens, or of these, and one more that waits for its step."""
        self.ids += [1] * tokens if isinstance(tokens, int) else tokens
        self.ids += [1]
        self._settle(most)
        return self

    def step(self, times: int = 1, token: int = 1) -> Text:
        """Steps of one row each, and the decisions that are due after them."""
        for _ in range(times):
            self._settle(128)
            row = Rows.chain(self.ids[-1:], self.cache.length)
            result = forward_one(self.runtime, self.policy.shape(Call(row, self.cache)))
            self.cache.commit([0])
            self.policy.observe(self.cache, result)
            self.ids.append(token)
        self._settle(128)
        return self

    def _settle(self, most: int) -> None:
        run(self.runtime, settle(self, most))  # type: ignore[arg-type]

    def work(self) -> None:
        if isinstance(self.policy, WorkingPolicy):
            run(self.runtime, self.policy.work(self.cache, None))

    def kept(self) -> list[list[int]]:
        """The positions that each attention block holds."""
        return [self.cache.positions(b).tolist() for b in self.runtime.spec.attention]


class Syllables:
    """Tokens of which every third begins a word."""

    def pieces(self, ids: Sequence[int]) -> list[bytes | None]:
        return [b"%s%d." % (b"" if i % 3 else b" ", i) for i in ids]

    def whole(self, joined: bytes) -> bool:
        return b" " not in joined[1:]


def run(runtime: Any, calls: Any) -> None:
    """Run the calls that a generator yields, one by one."""
    done = None
    try:
        while True:
            done = type("Done", (), {"result": forward_one(runtime, calls.send(done))})
    except StopIteration:
        return


def policy_of(words: str, spec: ModelSpec, decode: Any = None, can: Capabilities = CAN) -> CachePolicy:
    host = PolicyHost(spec, can, decode=decode, images=True, joinable=Syllables)  # type: ignore[arg-type]
    policy = make_policy(words, host)
    assert policy is not None
    return policy


def pays(heads: int, size: int, entries: Mapping[tuple[int, int, int], float]) -> Array:
    """[heads, size, size] with these weights at (head, row, slot), and nothing elsewhere."""
    found = np.zeros((heads, size, size), np.float32)
    for at, weight in entries.items():
        found[at] = weight
    return found


def any_paid(seed: int, heads: int, size: int) -> Array:
    """Attention of random rows [heads, rows, slots]: each row's sums to 1 over itself and what comes before it."""
    weights = np.exp(np.random.default_rng(seed).normal(0, 2, (heads, size, size))) * np.tri(size)
    return (weights / weights.sum(axis=2, keepdims=True)).astype(np.float32)
