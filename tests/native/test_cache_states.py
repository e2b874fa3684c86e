"""The native cache beside the reference's as a hypothesis state machine: whatever is done in whatever order, both hold
the same slots and say nearly the same of the next rows. A failure is shrunk to the fewest steps that show it."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from bundles import random_weights, write_bundle
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, rule

from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, Outputs, Rows, Runtime, View, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.spec import Attention, Mlp, ModelSpec, Rope

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

ROOM, VOCAB = 260, 31
CLOSE = {"atol": 2e-3, "rtol": 0}
WIDE = Attention(4, 2, 8, 0.35)
ROPE = Rope(tuple(1e3 ** (-j / 4) for j in range(4)))
SPEC = ModelSpec("states", VOCAB, 16, ROOM, ((WIDE, Mlp(16)), (WIDE, Mlp(16))), 1e-5, True, (ROPE,))
BLOCKS = tuple(SPEC.attention)
OUTPUTS = Outputs(logits=True, attention=True)
SEEDS, SIZES, SHARES = st.integers(0, 1 << 16), st.sampled_from([1, 2, 9, 70]), st.floats(0, 1)


class Text:
    """The same text in a cache of each runtime."""

    def __init__(self, caches: tuple[Any, ...]) -> None:
        self.caches = caches

    @property
    def length(self) -> int:
        return int(self.caches[0].length)

    def part(self, share: float) -> int:
        return round(share * self.length)


class Caches(RuleBasedStateMachine):
    """What `check` compares is what a policy, a search or a server could have left."""

    runtimes: tuple[Runtime, ...] = ()
    done: ClassVar[set[str]] = set()
    texts = Bundle("texts")

    @initialize(target=texts)
    def one(self) -> Text:
        return Text(tuple(runtime.new_cache(ROOM) for runtime in self.runtimes))

    def ran(self, text: Text, rows: Rows, views: dict[int, View] | None = None) -> None:
        """Both run these rows, and say nearly the same."""
        calls = [Call(rows, cache, outputs=OUTPUTS, views=views) for cache in text.caches]
        ours, theirs = (forward_one(runtime, call) for runtime, call in zip(self.runtimes, calls, strict=True))
        np.testing.assert_allclose(ours.logits, theirs.logits, **CLOSE)
        for block in BLOCKS:
            np.testing.assert_allclose(ours.attention[block], theirs.attention[block], **CLOSE)

    def each(self, text: Text, name: str, *args: Any) -> None:
        for cache in text.caches:
            getattr(cache, name)(*args)
        self.done.add(name)

    @rule(text=texts, n=SIZES, seed=SEEDS, kept=SHARES)
    def append(self, text: Text, n: int, seed: int, kept: float) -> None:
        """A chain, of which the first rows are kept."""
        n = min(n, ROOM - text.length)
        if n:
            self.ran(text, Rows.chain(np.random.default_rng(seed).integers(0, VOCAB, n), text.length))
            self.each(text, "commit", range(max(1, round(kept * n))))

    @rule(text=texts, seed=SEEDS, gives_up=st.booleans())
    def draft(self, text: Text, seed: int, gives_up: bool) -> None:
        """A tree, of which one path is kept, or nothing."""
        rng, n = np.random.default_rng(seed), min(7, ROOM - text.length)
        if not n:
            return
        parents = [int(rng.integers(-1, i)) for i in range(n)]
        self.ran(text, Rows.tree(rng.integers(0, VOCAB, n).tolist(), parents, text.length))
        if gives_up:
            return self.each(text, "rollback")
        path, row = list[int](), int(rng.integers(n))
        while row >= 0:
            path.insert(0, row)
            row = parents[row]
        return self.each(text, "commit", path)

    @rule(text=texts, share=SHARES)
    def truncate(self, text: Text, share: float) -> None:
        self.each(text, "truncate", text.part(share))

    @rule(text=texts, block=st.sampled_from(BLOCKS), seed=SEEDS)
    def drop(self, text: Text, block: int, seed: int) -> None:
        n, rng = text.caches[0].slots(block), np.random.default_rng(seed)
        self.each(text, "drop", block, np.flatnonzero(rng.random(n) < 0.3))

    @rule(text=texts, block=st.sampled_from(BLOCKS), seed=SEEDS)
    def merge(self, text: Text, block: int, seed: int) -> None:
        n, rng = text.caches[0].slots(block), np.random.default_rng(seed)
        into, slots = np.split(rng.permutation(n)[: n // 6 * 2], 2)
        weights = rng.random((WIDE.n_kv_heads, len(slots)), np.float32) / 4
        self.each(text, "merge", block, into.tolist(), slots.tolist(), weights)
        self.each(text, "drop", block, np.sort(slots))

    @rule(text=texts, n=st.integers(1, 3), seed=SEEDS, blocks=st.sampled_from([None, BLOCKS[1]]))
    def attach(self, text: Text, n: int, seed: int, blocks: int | None) -> None:
        """Slots of no token, in all blocks or in one."""
        if not text.length or text.length + n > ROOM:
            return
        hidden = np.random.default_rng(seed).standard_normal((n, SPEC.hidden_size)).astype(np.float32)
        rows = Rows(np.zeros(n, np.int64), np.full(n, text.length - 1), np.arange(-1, n - 1))
        self.each(text, "rollback")  # another block may hold rows of an earlier call
        for runtime, cache in zip(self.runtimes, text.caches, strict=True):
            chosen = range(SPEC.n_blocks) if blocks is None else (blocks,)
            runtime.forward([Call(rows, cache, chosen, hidden)])
        if all(cache.slots(b) + n <= text.length + 64 for cache in text.caches for b in BLOCKS):
            self.each(text, "attach", n)

    @rule(target=texts, text=texts, share=SHARES)
    def fork(self, text: Text, share: float) -> Text:
        """Another text with the same beginning, in the same pages."""
        self.done.add("fork")
        return Text(tuple(cache.fork(text.part(share)) for cache in text.caches))

    @rule(text=texts)
    def load(self, text: Text) -> None:
        for runtime, old in zip(self.runtimes, text.caches, strict=True):
            new = runtime.new_cache(ROOM)
            new.load(old.save())
            text.caches = tuple(new if cache is old else cache for cache in text.caches)
        self.done.add("load")

    @rule(text=texts, seed=SEEDS, pages=st.integers(0, 3))
    def look(self, text: Text, seed: int, pages: int) -> None:
        """Rows that see a part of it, and are given up."""
        if text.length < ROOM:
            view = View(sinks=1, recent=1, pages=pages)
            self.ran(text, Rows.chain([seed % VOCAB], text.length), dict.fromkeys(BLOCKS, view))
            self.each(text, "rollback")

    @rule(text=texts, seed=SEEDS)
    def check(self, text: Text, seed: int) -> None:
        ours, theirs = text.caches
        assert ours.length == theirs.length
        for block in BLOCKS:
            np.testing.assert_array_equal(ours.positions(block), theirs.positions(block))
            np.testing.assert_allclose(ours.keys(block), theirs.keys(block), **CLOSE)
        if text.length < ROOM:
            self.ran(text, Rows.chain([seed % VOCAB], text.length))


def test_any_order_of_what_a_cache_can_do() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_bundle(Path(folder) / "b", SPEC, random_weights(SPEC, 5))
        runtime = native.NativeRuntime(bundle, "f32", 2)
        reference = Reference(bundle.spec, lambda name, a, b: bundle.rows(name, a, b), "f32")
        Caches.runtimes, Caches.done = (runtime, reference), set()
        chosen = settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize="EDGEDEC_SLOW_TESTS" not in os.environ,  # what was done is asserted below
        )
        Caches.TestCase.settings = chosen
        Caches.TestCase().runTest()
    assert {"commit", "rollback", "truncate", "drop", "merge", "attach", "fork", "load"} <= Caches.done
    gc.collect()
    assert runtime.pages == 0
