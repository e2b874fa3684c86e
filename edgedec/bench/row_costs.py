"""The cost of a call of k rows, which decides whether drafting pays.

A call takes k new tokens after a cached prefix through embedding, all blocks and the head, with the logits
of all k rows. Reading the weights costs the same whatever k is; arithmetic grows with k. Calls of different k are
measured in turns (1 2 4 8, 1 2 4 8, …), so that a slower machine affects all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from edgedec.bundle.manifest import Manifest
from edgedec.cache.rows import Rows
from edgedec.errors import UsageError
from edgedec.runtime.call import Runtime, logits_of
from edgedec.spec import ModelSpec, Moe
from edgedec.spec.macs import row_macs
from edgedec.spec.moe import level_name


@dataclass(frozen=True)
class Work:
    """The least work of a call: `weight_bytes` to read, once, and `macs` multiply-adds for each row.

    Matrices only; the cache of a short prefix is nothing beside them.
    """

    weight_bytes: int
    macs: int

    @classmethod
    def of(cls, manifest: Manifest) -> Work:
        spec = manifest.spec
        shares = _shares(spec)
        read = sum(t.stored_bytes * shares.get(name, 1.0) for name, t in manifest.tensors.items())
        return cls(round(read), row_macs(spec))


def _shares(spec: ModelSpec) -> dict[str, float]:
    """The share of a tensor that any call reads, where that is not all of it: of the embedding next to nothing, unless
    it is the head as well; of stacked experts those of one row, and none that a ReLU chooses, as it may choose none."""
    found = {"lookup": 0.0} if spec.tied else {"embed": 0.0, "lookup": 0.0}
    for b, block in enumerate(spec.blocks):
        if isinstance(block, Moe):
            names = (level_name(name, level) for name in (block.up, "down") for level in range(block.n_levels))
            share = 0.0 if block.router == "relu" else block.top_k / block.n_experts
            found |= dict.fromkeys((f"blocks.{b}.{name}" for name in names), share)
    return found


class RowCall:
    """Runs rows after a prefix and forgets them; returns the seconds that took."""

    def __init__(self, runtime: Runtime, prefix: Sequence[int], longest: int) -> None:
        self._runtime = runtime
        self._cache = runtime.new_cache(len(prefix) + longest)
        if prefix:
            logits_of(runtime, Rows.chain(prefix, 0), self._cache, len(prefix) - 1)
            self._cache.commit(range(len(prefix)))

    def __call__(self, ids: Sequence[int]) -> float:
        rows = Rows.chain(ids, self._cache.length)
        began = perf_counter()
        logits_of(self._runtime, rows, self._cache)
        return perf_counter() - began


def row_costs(
    runtime: Runtime,
    counts: Sequence[int],
    context: int,
    repetitions: int,
    after: Callable[[int], None] = lambda done: None,
) -> dict[int, list[float]]:
    """Seconds of each repetition by number of rows, after one to warm up. `after` is called after each round."""
    check_rows(runtime.spec, counts, context)
    ids = prompt_ids(runtime.spec.vocab_size, context + max(counts))
    call = RowCall(runtime, ids[:context], max(counts))
    seconds: dict[int, list[float]] = {k: [] for k in counts}
    for repetition in range(repetitions + 1):
        # Not counted: threads wake, and what `after` left in the caches goes.
        for _ in range(2):
            call(ids[context : context + 1])
        for k in counts:
            took = call(ids[context : context + k])
            if repetition:
                seconds[k].append(took)
        after(repetition + 1)
    return seconds


def check_rows(spec: ModelSpec, counts: Sequence[int], context: int) -> None:
    """UsageError unless the longest call fits the model's context."""
    if context + max(counts) > spec.context_length:
        raise UsageError(f"{context} tokens and {max(counts)} rows do not fit the context of {spec.context_length}")


def prompt_ids(vocab: int, n: int) -> list[int]:
    """The same random tokens for all engines."""
    ids: list[int] = np.random.default_rng(0).integers(0, vocab, n).tolist()
    return ids
