"""Output arrays of the head and of attention blocks, filled by the native engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.runtime import Call, Outputs
from edgedec.runtimes._native_cache import NativeCache, address
from edgedec.spec import ModelSpec

Arrays = dict[int, NDArray[np.float32]]


Filled = NDArray[Any] | None


def head_arrays(
    vocab: int, wanted: Outputs, n: int, logits: NDArray[np.float32] | None
) -> tuple[tuple[Filled, ...], int, tuple[int, ...]]:
    """Arrays of `n` rows of logits, best tokens, their scores, log-sums and entropies (None if not requested); the
    number of best tokens; the addresses of the arrays. logits: an existing array to use."""
    ids = scores = logsum = entropy = None
    logits_at = ids_at = scores_at = logsum_at = entropy_at = top = 0
    if wanted.logits:
        if logits is None:
            logits = np.empty((n, vocab), np.float32)
        logits_at = address(logits)
    if wanted.top:
        top = min(wanted.top, vocab if wanted.readout is None else len(wanted.readout))
        ids, scores = np.empty((n, top), np.int32), np.empty((n, top), np.float32)
        ids_at, scores_at = address(ids), address(scores)
    if wanted.logsum:
        logsum = np.empty(n, np.float64)
        logsum_at = address(logsum)
    if wanted.entropy:
        entropy = np.empty(n, np.float64)
        entropy_at = address(entropy)
    return (logits, ids, scores, logsum, entropy), top, (logits_at, ids_at, scores_at, logsum_at, entropy_at)


def attention_arrays(spec: ModelSpec, call: Call, cache: NativeCache, keep: list[Any]) -> tuple[Arrays, int]:
    """Arrays [n_kv_heads, slots] by attention block, and the address of their list, one entry a block of the call."""
    blocks = _run(spec, call)
    paid = {
        b: np.zeros((spec.attention[b].n_kv_heads, cache.slots(b) + len(call.rows)), np.float32)
        for b in blocks
        if b in spec.attention
    }
    return paid, _listed(paid, blocks, keep)


def query_arrays(spec: ModelSpec, call: Call, keep: list[Any]) -> tuple[Arrays, int]:
    """Arrays [count, n_heads, head_dim] by attention block, and the address of their list."""
    blocks, found = _run(spec, call), Arrays()
    for b in call.outputs.queries:
        if b not in spec.attention or b not in blocks:
            raise UsageError(f"queries of block {b}: the call runs no such attention block")
        facts = spec.attention[b]
        found[b] = np.empty((call.rows.count, facts.n_heads, facts.head_dim), np.float32)
    return found, _listed(found, blocks, keep)


def _run(spec: ModelSpec, call: Call) -> Sequence[int]:
    """The blocks that a call runs."""
    return range(spec.n_blocks) if call.blocks is None else call.blocks


def _listed(arrays: Arrays, blocks: Sequence[int], keep: list[Any]) -> int:
    """The address of a list of addresses, 0 for a block without an array."""
    places = np.array([address(arrays[b]) if b in arrays else 0 for b in blocks], np.uintp)
    keep.append(places)
    return address(places)
