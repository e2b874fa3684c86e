"""Shared by the checks: tokens, shorthand for calls, and tolerances of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.runtime import ALL_LOGITS, Call, CallResult, Outputs, Rows, Runtime, forward_one
from edgedec.spec import ModelSpec
from edgedec.spec.branches import cut_sums, early, may_enter
from edgedec.testing.conformance.rounding import allowed
from edgedec.testing.conformance.suite import Subject

# float32 sums in another order, of logits that spread by about 1.
EXACT = 2e-4
ROOM = 160
Array = NDArray[Any]


def tokens(spec: ModelSpec, n: int, seed: int = 0) -> list[int]:
    """n random tokens."""
    found: list[int] = np.random.default_rng(seed).integers(0, spec.vocab_size, n).tolist()
    return found


def tree(spec: ModelSpec, start: int) -> Rows:
    """Nine rows with two roots, twins and branches, after `start` tokens.

    0 ─┬─ 1 ─┬─ 3 ── 5
       │     └─ 4
       └─ 2 ── 6 ── 7
    8
    """
    a, b, c, d = tokens(spec, 4, seed=9)
    return Rows.tree([a, b, c, c, d, a, b, d, c], [-1, 0, 0, 1, 1, 3, 2, 6, -1], start)


def path(rows: Rows, row: int) -> list[int]:
    """The row numbers from a root down to a row."""
    parent = int(rows.parents[row])
    return [*(path(rows, parent) if parent >= 0 else []), row]


def run(runtime: Runtime, rows: Rows, cache: Cache, outputs: Outputs = ALL_LOGITS, **call: Any) -> CallResult:
    """One call; all logits by default."""
    return forward_one(runtime, Call(rows, cache, outputs=outputs, **call))


def read(runtime: Runtime, ids: Sequence[int], cache: Cache, chunk: int = 0, **call: Any) -> Array:
    """Logits [n, vocab_size] of tokens that are committed after those that the cache holds."""
    found = [np.zeros((0, runtime.spec.vocab_size), np.float32)]
    chunk = chunk or runtime.capabilities.prefill_chunk
    for at in range(0, len(ids), chunk):
        part = ids[at : at + chunk]
        found.append(logits(run(runtime, Rows.chain(part, cache.length), cache, **call)))
        cache.commit(range(len(part)))
    return np.concatenate(found)


def text(runtime: Runtime, ids: Sequence[int], **call: Any) -> tuple[Cache, Array]:
    """A cache that holds these tokens, and their logits."""
    cache = runtime.new_cache(ROOM)
    return cache, read(runtime, ids, cache, **call)


def logits(result: CallResult) -> Array:
    assert result.logits is not None, "no logits, although the call wants them"
    return result.logits


def close(found: Array, expected: Array, what: str, within: float = EXACT) -> None:
    """AssertionError unless the arrays differ by at most `within` times their spread."""
    assert found.shape == expected.shape, f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}"
    off = float(np.abs(found.astype(np.float64) - expected).max(initial=0.0))
    limit = allowed(within) * max(1.0, float(expected.std()) if expected.size else 0.0)
    assert off <= limit, f"{what}: off by {off:.2g}, at most {limit:.2g} is rounding"


def near(found: Array, expected: Array, what: str, within: float) -> None:
    """AssertionError unless the root mean square of the difference is at most `within` times the arrays' spread."""
    assert found.shape == expected.shape, f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}"
    off = float(np.sqrt(np.mean((found.astype(np.float64) - expected) ** 2)) / expected.std())
    limit = allowed(within)
    assert off <= limit, f"{what}: off by {off:.2g} of the spread, at most {limit:.2g} is rounding"


def same(subject: Subject, found: Array, expected: Array, what: str) -> None:
    """Equal bytes on a batch-invariant runtime, else close: two ways of one runtime to the same rows."""
    if not subject.capabilities.batch_invariant:
        close(found, expected, what)
        return
    assert found.shape == expected.shape, f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}"
    equal = np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()
    off = float(np.abs(found.astype(np.float64) - expected).max(initial=0.0))
    assert equal, f"{what}: other bytes (off by {off:.2g}), although batch_invariant is declared"


def ends(spec: ModelSpec) -> list[int]:
    """The blocks after which a stack may be cut: the last, and those after which a call may begin."""
    return [b for b in range(spec.n_blocks) if b + 1 == spec.n_blocks or may_enter(spec, b + 1)]


def may_run(spec: ModelSpec, blocks: Sequence[int]) -> bool:
    """Whether a call may run these blocks alone, on states: with those that they read from, no sum cut that is normed,
    and no router first whose state is gone."""
    owners = {spec.owners[b] for b in blocks if b in spec.owners}
    gone = len(blocks) > 0 and early(spec.blocks[blocks[0]])
    return owners <= set(blocks) and not cut_sums(spec, blocks) and not gone
