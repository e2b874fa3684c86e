"""The layer with power law graph attention in numpy (PLDR-LLM): the arithmetic of its G-cache.

    u = LN(attention(q G, k, v) + x)        x = LN(x) before, in the layer that says so
    y = LN(down(silu(gate u) * up u) + u)

Keys and values are cached by slot, as in any attention. G, the energy-curvature tensor, is the second cache: it is
inferred once, and the network that computes it from the queries (`export.power_law`) is not run again, so a row does
not depend on later rows.
"""

from __future__ import annotations

import numpy as np

from edgedec.cache.formats import load, store
from edgedec.cache.host import HostCache
from edgedec.runtime import Rows, View
from edgedec.runtimes.reference.attention import Sight, attend, rotate
from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation
from edgedec.spec import PowerLaw


def run(
    block: PowerLaw,
    w: BlockWeights,
    x: Array,
    rows: Rows,
    cache: HostCache,
    span: tuple[int, int],
    scales: Array | None,
    view: View | None = None,
) -> tuple[Array, Array, Array]:
    """The difference between the layer's output and x [count, hidden], the attention paid to each slot [n_kv_heads,
    slots], the queries; span: the slots of the computed rows; scales, view: as in attention."""
    entered = w.norm(x, "layer", "entry_norm") if block.entry else x
    y, paid, queries = _attention(block, w, entered, rows, cache, span, scales, view)
    u = w.norm(y + entered, "layer", "attention_norm")
    gate, up = np.split(w.linear(u, "gate_up", True), 2, axis=1)
    fed = w.linear(activation(gate, "silu") * up, "down", True)
    return w.norm(fed + u, "layer", "output_norm") - x, paid, queries


def _attention(
    block: PowerLaw,
    w: BlockWeights,
    x: Array,
    rows: Rows,
    cache: HostCache,
    span: tuple[int, int],
    scales: Array | None,
    view: View | None,
) -> tuple[Array, Array, Array]:
    positions = rows.positions[rows.first :]
    parts = np.split(w.linear(x, "qkv", True), 3, axis=1)
    q, k, v = (a.reshape(len(x), block.n_heads, block.head_dim).transpose(1, 0, 2) for a in parts)
    q, k = rotate(block, w.spec, q, positions), rotate(block, w.spec, k, positions)
    q = q @ w.get("curvature").reshape(block.n_heads, block.head_dim, block.head_dim)
    data, stop = cache.data(w.number), span[1]
    for i, values in enumerate((k, v)):
        data[i][:, slice(*span)] = store(values, cache.kv, None if scales is None else scales[i])
    keys, values = (load(data[i][:, :stop], cache.kv, None if scales is None else scales[i]) for i in range(2))
    sight = None if view is None else Sight(view, span[0] - rows.first, rows)
    y, paid = attend(q, keys, values, rows.mask(cache.positions(w.number)), block, sight)
    return w.linear(y, "o", True), paid, np.ascontiguousarray(q.transpose(1, 0, 2))
