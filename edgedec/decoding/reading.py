"""Reading of a text's pending tokens in chunks as large as a call may be; the last chunk is left to the step. Rows that
see each other are one call before that."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from edgedec.decoding.call_rows import apart, first_taught, showing, taught
from edgedec.decoding.context import Context
from edgedec.decoding.draft import Drafter
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.runtime import Call, Capabilities, Outputs, Rows
from edgedec.spec import ModelSpec

_NONE = Outputs()


def read_pending(
    context: Context, capabilities: Capabilities, drafter: Drafter
) -> Generator[Request, Completed, tuple[Rows, list[StepResult]]]:
    """Read pending tokens in chunks until one chunk is left; returns that chunk as rows, and the results of the chunks
    before it that the drafter learns from."""
    cache, shown = context.cache, list[StepResult]()
    yield from read_source(context, drafter)
    while True:
        if cache.length >= len(context.ids):
            # Everything is cached: the last token is run again, for its logits.
            cache.truncate(len(context.ids) - 1)
        pending = context.pending()
        size = context.chunk(capabilities.chunk(cache.length))
        rows = Rows.chain(pending[:size], cache.length)
        if len(pending) <= size:
            return rows, shown
        reads = wanted = drafter.reads
        first = first_taught(len(pending) - 1, drafter.prompt_rows)
        if first < size and (top := drafter.outputs.top):
            wanted = showing(reads, top, first)
        blocks = _keeping(cache.spec, capabilities) if wanted == _NONE else None
        done = yield Call(rows, cache, blocks, outputs=wanted, adapter=context.adapter)
        cache.commit(range(len(rows)))
        if wanted != reads:
            shown.append(taught(rows, wanted.logits_from, size, done.result))
        if reads != _NONE and (reading := drafter.read(context, rows, done.result)) is not None:
            yield from reading


def read_source(context: Context, drafter: Drafter | None = None) -> Generator[Request, Completed, None]:
    """Read the rows of a text that see each other, in one call. The last of them is left: alone it sees the same.
    drafter: receives the others' results if its `reads` name any outputs."""
    cache, n = context.cache, context.together
    if cache.length >= n - 1:
        return
    cache.truncate(0)
    reads = _NONE if drafter is None else drafter.reads
    done = yield Call(Rows.text(np.asarray(context.ids[:n], np.int64)), cache, outputs=reads, adapter=context.adapter)
    cache.commit(range(n - 1))
    if drafter is None or reads == _NONE:
        return
    first = apart(done.result, n - 1, 0)[0]
    if (reading := drafter.read(context, Rows.chain(context.ids[: n - 1], 0), first)) is not None:
        yield from reading


def _keeping(spec: ModelSpec, capabilities: Capabilities) -> range | None:
    """The blocks that rows run whose outputs nobody reads, where layers after them keep nothing of such rows (SambaY,
    Gemma 4); None: all."""
    blocks = spec.span(0, spec.keeping_layers)
    return blocks if capabilities.slices and len(blocks) < spec.n_blocks else None
