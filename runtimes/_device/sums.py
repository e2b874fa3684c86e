"""Attention sums and queries of a step, as far as its calls request them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.device import structs
from edgedec.runtime import Call, CallResult
from edgedec.runtimes._device.stack import Stack, StepShape
from edgedec.runtimes._device.table import PageTable

Ints = NDArray[np.int32]
# Memory for attention weights; as many kv heads are processed at a time as fit.
_KEPT_BYTES = 64 << 20


def places(calls: Sequence[Call], tables: Sequence[Sequence[PageTable]]) -> tuple[Ints, int]:
    """For each view and sequence [.., 4]: the offset of its slots among all (-1: not requested), their number, the
    computed rows; and the largest number of slots."""
    lines, most = list[tuple[int, int, int, int]](), 0
    for of_view in tables:
        at = 0
        for call, table in zip(calls, of_view, strict=True):
            slots = table.start + len(call.rows) if call.outputs.attention else 0
            lines.append((at if slots else -1, slots, call.rows.count, 0))
            at += slots
        most = max(most, at)
    return np.array(lines, np.int32).reshape(-1, 4), most


def heads_at_once(kv_heads: int, queries: int, items: int) -> int:
    """The number of kv heads whose weights are kept at a time."""
    return max(1, min(kv_heads, _KEPT_BYTES // max(4 * structs.CHUNK * queries * items, 1)))


def keep_queries(stack: Stack, step: int, shape: StepShape, number: int, qkv: int, q_dim: int, width: int) -> None:
    """Copy the queries of a block, if they are requested."""
    if number in shape.queries:
        kept = stack.floats(f"queries {number}", q_dim)
        stack.launch("copy_rows", (shape.rows, 1), 128, 0, structs.copy_rows(step, qkv, kept, q_dim, width))


def fill(stack: Stack, shape: StepShape, calls: Sequence[Call], tables: Sequence[Sequence[PageTable]],
         results: Sequence[CallResult]) -> None:  # fmt: skip
    """Add attention sums and queries to the results of calls."""
    attending = [b for b in shape.blocks if b in stack.spec.attention]
    for b, view in zip(attending if shape.paid else (), shape.views, strict=False):
        found = stack.read(f"paid {b}", 0, stack.spec.attention[b].n_kv_heads, shape.paid)
        at = 0
        for call, table, result in zip(calls, tables[view], results, strict=True):
            slots = table.start + len(call.rows) if call.outputs.attention else 0
            if slots:
                result.attention[b] = found[:, at : at + slots].copy()
            at += slots
    for b in shape.queries:
        _fill_queries(stack, b, calls, results)


def _fill_queries(stack: Stack, block: int, calls: Sequence[Call], results: Sequence[CallResult]) -> None:
    facts, row = stack.spec.attention[block], 0
    for call, result in zip(calls, results, strict=True):
        n = call.rows.count
        if block in call.outputs.queries:
            read = stack.read(f"queries {block}", row, n, facts.q_dim)
            result.queries[block] = read.reshape(n, facts.n_heads, facts.head_dim)
        row += n
