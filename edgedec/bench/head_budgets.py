"""Which budget each kv head of a model needs, measured on texts: what `edgedec calibrate` writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgedec.errors import UsageError
from edgedec.policies._head_budgets import Array, budgets_of
from edgedec.runtime import PAGE, Call, Outputs, Rows, forward_one

if TYPE_CHECKING:
    from edgedec.model import Model

# The least number of pages for a choice.
_LEAST = 4 * PAGE
# The queries of a text that are measured: its last ones.
_QUERIES = 8


def measure_budgets(
    model: Model, ids: Sequence[int], length: int, limit: int, progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[Array, int]:
    """The mean over the last queries of texts of `length` tokens, `limit` of them at most: a table of
    `edgedec.policies._head_budgets`, and how many texts there were. UsageError for a text that is too short."""
    can, spec = model.runtime.capabilities, model.spec
    if not (can.queries and can.merge) or not spec.attention:
        raise UsageError(f"calibrate: engine {model.runtime.name} gives no queries of this model; use native")
    if not _LEAST <= length <= spec.context_length:
        raise UsageError(f"calibrate: length {length}: must be from {_LEAST} to {spec.context_length}")
    texts = [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)][:limit]
    if not texts:
        raise UsageError(
            f"calibrate: {len(ids)} tokens: the text must have {length} at least, or take a shorter length"
        )
    found: list[Array] = []
    for i, text in enumerate(texts):
        found += _tables(model, text)
        progress(i + 1, len(texts))
    mean: Array = np.stack(found).mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean, len(texts)


def _tables(model: Model, text: Sequence[int]) -> list[Array]:
    """A table for each of the last queries of a text."""
    runtime, spec, edge = model.runtime, model.spec, len(text) - _QUERIES
    cache, chunk = runtime.new_cache(len(text)), runtime.capabilities.prefill_chunk
    starts = [*range(0, edge, chunk), edge]
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        outputs = Outputs(queries=tuple(spec.attention) if stop == len(text) else ())
        done = forward_one(runtime, Call(Rows.chain(text[start:stop], start), cache, outputs=outputs))
        cache.commit(range(stop - start))
    whole = edge // PAGE * PAGE
    keys = {b: cache.keys(b)[:, :whole] for b in spec.attention}
    return [budgets_of({b: rows[i] for b, rows in done.queries.items()}, keys, spec) for i in range(_QUERIES)]
