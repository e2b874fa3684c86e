"""Long caches without reading: the cache of a short text, repeated. For the time of steps, not for their output.

Reading 32,768 tokens takes minutes where a step takes a tenth of a second, and a step's time does not depend on the
values of keys and values. This depends on the native engine's format of saved caches (`kernels/cpu/cache.cpp`,
`attention_state.cpp`): a header, then of each block the number of slots, whether they are named, and rows [keys and
values, kv heads, slots].
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.cache.memory import row_bytes
from edgedec.errors import UsageError
from edgedec.runtime import Call, Rows, forward_one

if TYPE_CHECKING:
    from edgedec.runtime import Runtime

Bytes = NDArray[np.uint8]
_READ, _CHUNK = 512, 128
_HEADER, _LENGTH_AT = 32, 24  # bytes of the header, and where its length is


def filled(runtime: Runtime, capacity: int, n: int) -> Cache:
    """A cache of `n` tokens. UsageError for engines and models whose caches are of another kind."""
    cache = runtime.new_cache(capacity)
    if not cache.kind.startswith("native-") or cache.spec.recurrent:
        raise UsageError(
            f"--steps: caches of kind {cache.kind} cannot be filled; use --engine native, and no state spaces"
        )
    ids = np.random.default_rng(0).integers(0, cache.spec.vocab_size, min(n, _READ))
    for at in range(0, len(ids), _CHUNK):
        rows = Rows.chain(ids[at : at + _CHUNK], at)
        forward_one(runtime, Call(rows, cache))
        cache.commit(range(len(rows)))
    state = np.concatenate(list(_stretched(cache, cache.save()["state"], n)))
    cache.load({"length": np.array([n], np.int64), "state": state})
    return cache


def _stretched(cache: Cache, state: Bytes, n: int) -> Iterator[Bytes]:
    """The parts of a saved cache of `n` tokens, whose slots are those of `state`, over and over."""
    held, at = cache.length, _HEADER
    yield np.concatenate([state[:_LENGTH_AT], np.array([n], np.int64).view(np.uint8)])
    for b, block in sorted(cache.spec.attention.items()):
        runs = 2 * block.n_kv_heads
        size = runs * held * row_bytes(block.head_dim, cache.kv)
        if state[at : at + 16].view(np.int64).tolist() != [held, 0]:
            raise UsageError(f"--steps: block {b} is saved in another way")
        rows = state[at + 16 : at + 16 + size].reshape(runs, held, -1)
        yield np.array([n, 0], np.int64).view(np.uint8)
        yield rows[:, np.arange(n) % held].reshape(-1)
        at += 16 + size
