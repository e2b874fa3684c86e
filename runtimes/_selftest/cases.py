"""The golden cases: a text, a tree and single rows on a small model, and the digest of a runtime's results."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import Call, Outputs, Rows, Runtime, View, forward_one
from edgedec.runtimes._selftest.models import SPECS, VOCAB, GoldenBundle, Packing
from edgedec.spec import KV_FORMATS, ModelSpec
from edgedec.spec.newer import newer

_TOP = 5
# Rows of the text (tensor cores take those of the first call), then of steps after it: every tile of a product.
_FIRST, _STEPS = 40, (1, 2, 4)
# The case of cache policies: a text of three full pages and a partial one; a page selected by score, slots that stand
# for later ones, and slots near an anchor.
_LONG = 205
_SLOTS = np.array([3, 10, 70, 100, 130])
_VIEWS = (
    View(recent=0, pages=1, slots=[_SLOTS, _SLOTS + 1], runs=[np.array([1, 4, 9, 2, 3])] * 2, group=2),
    View(sinks=1, recent=2, theta=0.5, group=0),
)


@dataclass(frozen=True)
class GoldenCase:
    """A model, how its weights are kept, and the format of its cache."""

    model: str
    packing: Packing
    kv: str

    @property
    def name(self) -> str:
        block = f" in blocks of {self.packing.block}" if self.packing.block else ""
        zeros = " with zero points" if self.packing.zeros else ""
        return f"{self.model}, {self.packing.format}{block}{zeros}, cache {self.kv}"

    @property
    def bundle(self) -> Any:
        return _bundle(self.model, self.packing)

    def concerns(self, spec: ModelSpec, formats: Collection[str], kv: str) -> bool:
        """Whether a model of these weight formats, with this cache, runs kernels of the case."""
        if self.model in ("moe", "ssm", "conv", "delta"):
            return self.model in spec.kinds
        if self.model == "facts":
            return bool(newer(spec))
        if self.model == "policies":
            return False  # used by cache policies only: reported by the whole self-test, but no model is refused for it
        if self.model == "norms":
            return True
        # Products of int3 and int2 have one case each, whatever the cache.
        return self.packing.format in formats and (self.kv == kv or self.packing.format in ("int3", "int2"))


_PACKINGS = (Packing("int4"), Packing("int8", 64), Packing("f16", 0), Packing("f32", 0))
CASES = (
    *(GoldenCase("dense", packing, kv) for packing in _PACKINGS for kv in KV_FORMATS),
    GoldenCase("dense", Packing("int4", 16), "int8"),
    GoldenCase("dense", Packing("int4", 64, True), "int8"),
    GoldenCase("norms", Packing("int8", 32, True), "int8"),
    GoldenCase("moe", Packing("int4"), "int8"),
    GoldenCase("ssm", Packing("int8"), "int8"),
    *(GoldenCase("policies", Packing("int4"), kv) for kv in KV_FORMATS),
    GoldenCase("dense", Packing("int3"), "int8"),
    GoldenCase("dense", Packing("int2", 64), "int8"),
    GoldenCase("facts", Packing("int4"), "int8"),
    GoldenCase("conv", Packing("int4"), "int8"),
    GoldenCase("delta", Packing("int8"), "int8"),
)


@cache
def _bundle(model: str, packing: Packing) -> GoldenBundle:
    return GoldenBundle(SPECS[model], packing)


def run(runtime: Runtime) -> str:
    """A digest of a runtime's results on the case's text."""
    made = hashlib.blake2b(digest_size=8)
    for array in _paid(runtime) if runtime.spec.architecture == "policies" else _told(runtime):
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()


def _told(runtime: Runtime) -> Iterator[NDArray[Any]]:
    cache = runtime.new_cache(96)
    yield from _results(runtime, Rows.chain(_ids(_FIRST), 0), cache, _FIRST - 3)
    cache.commit(range(_FIRST))
    yield from _results(runtime, Rows.tree([1, 2, 3, 4, 5], [-1, 0, 0, 2, 2], _FIRST), cache)
    cache.commit([0, 2, 3])
    for n in _STEPS:
        length = cache.length
        yield from _results(runtime, Rows.chain(_ids(n), length), cache)
        cache.commit(range(n))
    yield cache.save()["state"]


def _paid(runtime: Runtime) -> Iterator[NDArray[Any]]:
    """The operations of cache policies: attention sums and queries of a tree, after dropped slots, and of rows with a
    view."""
    cache, blocks = runtime.new_cache(_LONG + 16), tuple(runtime.spec.attention)
    wanted = Outputs(True, attention=True, queries=blocks)
    forward_one(runtime, Call(Rows.chain(_ids(_LONG), 0), cache))
    cache.commit(range(_LONG))
    for b in blocks:
        cache.drop(b, [b, 7, 8])
    tree, views = Rows.tree([1, 2, 3, 4, 5], [-1, 0, 0, 2, 2], _LONG), [None, *_VIEWS]
    for view in views:
        seen = None if view is None else dict.fromkeys(blocks, view)
        found = forward_one(runtime, Call(tree, cache, outputs=wanted, views=seen))
        assert found.logits is not None
        yield from (found.logits, *found.attention.values(), *found.queries.values())
    cache.commit([0, 2])
    yield cache.save()["state"]


def _ids(n: int) -> list[int]:
    return [7 * i % VOCAB for i in range(3, n + 3)]


def _results(runtime: Runtime, rows: Rows, cache: Any, logits_from: int = 0) -> Iterator[NDArray[Any]]:
    last = runtime.spec.n_blocks - 1
    outputs = Outputs(True, _TOP, False, (0, last), False, logits_from)
    found = forward_one(runtime, Call(rows, cache, outputs=outputs))
    assert found.logits is not None
    assert found.ids is not None
    assert found.scores is not None
    yield from (found.logits, found.ids, found.scores, found.hidden[0], found.hidden[last])
