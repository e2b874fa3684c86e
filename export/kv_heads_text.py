"""Data for choosing fewer key and value heads: the caches and queries of a float model on a text, block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.host import HostCache
from edgedec.export.kv_heads import Read, SmallerHeads
from edgedec.runtime import Call, Outputs, Rows, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.attention import queries
from edgedec.runtimes.reference.numeric import BlockWeights
from edgedec.spec import Attention, Mlp, ModelSpec, Moe


def smaller_heads(
    spec: ModelSpec, heads: int, read: Read, ids: NDArray[np.int64], pooled: bool = False
) -> SmallerHeads:
    """The model with `heads` key and value heads in each attention block, chosen on a text. pooled: by the mean of
    neighbouring heads instead, to compare with."""
    found, runtime = SmallerHeads(spec, heads, read), Reference(spec, read)
    if pooled:
        for b in spec.attention:
            found.pool(b)
        return found
    cache, hidden = runtime.new_cache(len(ids)), runtime.embed(Rows.chain(ids, 0))
    for b, block in enumerate(spec.blocks):
        entering = hidden
        hidden, paid = _through(runtime, cache, hidden, ids, b)
        if isinstance(block, Attention):
            w = BlockWeights(spec, b, read, None)
            caches = cache.data(b)[:, :, : len(ids)]
            looked = queries(block, w, w.norm(entering, block.norm), np.arange(len(ids)))
            found.learn(b, caches * np.sqrt(paid.mean(axis=0) / paid.mean())[:, None], looked)
    return found


def _through(
    runtime: Reference, cache: HostCache, hidden: NDArray[np.float32], ids: NDArray[np.int64], b: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The state after block b, and the attention paid to each slot [n_kv_heads, n] of an attention block."""
    block, parts, chunk = runtime.spec.blocks[b], [], runtime.capabilities.prefill_chunk
    paid = np.zeros((block.n_kv_heads if isinstance(block, Attention) else 0, len(ids)), np.float32)
    cache.truncate(0)
    for at in range(0, len(ids), chunk):
        rows = Rows.chain(ids[at : at + chunk], at)
        wanted = Outputs(hidden=(b,), attention=isinstance(block, Attention))
        result = forward_one(runtime, Call(rows, cache, (b,), hidden[at : at + chunk], wanted))
        parts.append(result.hidden[b])
        if isinstance(block, Attention):
            paid[:, : at + len(rows)] += result.attention[b]
        if not isinstance(block, Mlp | Moe):
            cache.commit(range(len(rows)))
    return np.concatenate(parts), paid
