"""Attention over the slots of another block in numpy."""

from __future__ import annotations

from edgedec.cache.formats import load
from edgedec.cache.host import HostCache
from edgedec.runtime import Rows
from edgedec.runtimes.reference.attention import attend, rotate
from edgedec.runtimes.reference.differential import subtracted, widened
from edgedec.runtimes.reference.numeric import Array, BlockWeights
from edgedec.spec import SharedAttention


def run(block: SharedAttention, w: BlockWeights, x: Array, rows: Rows, cache: HostCache, scales: Array | None) -> Array:
    """f(norm(x)) [count, hidden]. scales [2, n_kv_heads, 1,
    head_dim]: of the block whose slots are read, in a quantized cache."""
    like, owner = block.attention, block.slots_of
    stop = cache.pending_span(owner, rows)[1]
    q = w.linear(w.norm(x, block.norm), "q", block.q_bias)
    if block.differential:
        q = widened(q, block.n_heads)
    q = q.reshape(len(x), block.n_heads, block.head_dim).transpose(1, 0, 2)
    if block.qk_norm == "head":
        q = w.norm(q, "rms", "q_norm")
    q = rotate(like, w.spec, q, rows.positions[rows.first :])
    data = cache.data(owner)
    keys, values = (load(data[i][:, :stop], cache.kv, None if scales is None else scales[i]) for i in range(2))
    y = attend(q, keys, values, rows.mask(cache.positions(owner), block.window, block.sinks), like)[0]
    if block.differential:
        y = subtracted(block, w, y)
    return w.linear(y, "o", block.o_bias)
