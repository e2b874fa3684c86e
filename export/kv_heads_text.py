"""Data for choosing fewer key and value heads: the caches and queries of a float model on a text, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.host import HostCache
from edgedec.export.kv_heads import Heads, Read, SmallerHeads, budget, check_heads
from edgedec.runtime import Call, Outputs, Rows, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.runtimes.reference.attention import turned_heads
from edgedec.runtimes.reference.numeric import BlockWeights
from edgedec.spec import Attention, Mlp, ModelSpec, Moe


def smaller_heads(
    spec: ModelSpec, heads: Heads, read: Read, ids: NDArray[np.int64], pooled: bool = False
) -> SmallerHeads:
    """The model with `heads` key and value heads in each attention block, chosen on a text; or with this share of all
    heads, more of them in the blocks whose output needs them. pooled: by the mean of neighbouring heads instead, to
    compare with."""
    check_heads(spec, heads)
    tried: dict[int, dict[int, SmallerHeads]] = {b: {} for b in spec.attention}
    errors: dict[int, dict[int, float]] = {b: {block.n_kv_heads: 0.0} for b, block in spec.attention.items()}
    runtime = Reference(spec, read)
    cache, hidden = runtime.new_cache(len(ids)), runtime.embed(Rows.chain(ids, 0))
    for b, block in enumerate(spec.blocks):
        entering = hidden
        hidden, paid = _through(runtime, cache, hidden, ids, b)
        if not isinstance(block, Attention):
            continue
        w = BlockWeights(spec, b, read, None)
        caches = cache.data(b)[:, :, : len(ids)] * np.sqrt(paid.mean(axis=0) / paid.mean())[:, None]
        looked = turned_heads(block, w, w.norm(entering, block.norm), np.arange(len(ids)))[0]
        for n in [heads] if isinstance(heads, int) else _divisors(block.n_kv_heads):
            tried[b][n] = one = SmallerHeads(spec, {b: n}, read)
            if pooled:
                one.pool(b)
            else:
                one.learn(b, caches, looked)
            if isinstance(heads, float):
                errors[b][n] = _lost(one, b, entering, hidden, ids)
    chosen = dict.fromkeys(tried, heads) if isinstance(heads, int) else share_out(errors, budget(spec, heads))
    fewer = {b: n for b, n in chosen.items() if n in tried[b]}
    found = SmallerHeads(spec, fewer, read)
    for b, n in fewer.items():
        found.foldings[b] = tried[b][n].foldings[b]
    return found


def share_out(errors: Mapping[int, Mapping[int, float]], heads: int) -> dict[int, int]:
    """errors {block: {heads it may have: what is lost then}} -> heads of each block, together at most `heads`, by
    which the least is lost in all.

    >>> share_out({0: {1: 9.0, 2: 1.0, 4: 0.0}, 2: {1: 1.0, 2: 0.5, 4: 0.0}}, 5)
    {0: 4, 2: 1}
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for choices in errors.values():
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (used, (lost, chosen)), (n, more) in product(best.items(), choices.items()):
            found = lost + more, (*chosen, n)
            if used + n <= heads and found < longer.get(used + n, (np.inf, ())):
                longer[used + n] = found
        best = longer
    return dict(zip(errors, min(best.values())[1], strict=True))


def _divisors(n: int) -> list[int]:
    """What divides n, less than n."""
    return [i for i in range(1, n) if n % i == 0]


def _lost(
    one: SmallerHeads, b: int, entering: NDArray[np.float32], whole: NDArray[np.float32], ids: NDArray[np.int64]
) -> float:
    """How far the state after block b is from what it was, relative to its size, if only this block has fewer heads."""
    runtime = Reference(one.spec, one.read)
    found, _ = _through(runtime, runtime.new_cache(len(ids)), entering, ids, b)
    return float(np.square(found - whole, dtype=np.float64).sum() / np.square(whole, dtype=np.float64).sum())


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
