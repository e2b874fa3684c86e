"""The latent attention block in numpy: one vector a slot, keys and values of the heads absorbed (`spec.latent`)."""

from __future__ import annotations

import numpy as np

from edgedec.cache.formats import load, store
from edgedec.cache.host import HostCache
from edgedec.runtime import Rows, View
from edgedec.runtimes.reference.attention import Sight, attend, rotate
from edgedec.runtimes.reference.numeric import Array, BlockWeights, rms_norm
from edgedec.spec import LatentAttention


def run(
    block: LatentAttention,
    w: BlockWeights,
    x: Array,
    rows: Rows,
    cache: HostCache,
    span: tuple[int, int],
    scales: Array | None,
    view: View | None = None,
) -> tuple[Array, Array, Array]:
    """f(norm(x)) [count, hidden], the attention paid to each slot [1, slots], the absorbed queries; span: the slots of
    the computed rows; scales [1, 1, 1, head_dim]: of a quantized cache; view: as in attention."""
    normed, positions = w.norm(x, block.norm), rows.positions[rows.first :]
    q = rotate(block, w.spec, queries(block, w, normed), positions)
    key = rotate(block, w.spec, _key(block, w, normed)[None], positions)
    data, stop, scale = cache.data(w.number), span[1], None if scales is None else scales[0]
    data[0][:, slice(*span)] = store(key, cache.kv, scale)
    keys = load(data[0][:, :stop], cache.kv, scale)
    sight = None if view is None else Sight(view, span[0] - rows.first, rows)
    mask = rows.mask(cache.positions(w.number), block.window, block.sinks)
    y, paid = attend(q, keys, keys, mask, block, sight)
    state = y.reshape(len(x), block.n_heads, block.head_dim)[..., block.rope_dim :]
    up = w.get("v_up").reshape(block.n_heads, block.v_dim, block.rank)
    values = np.einsum("nhr,hvr->nhv", state, up).reshape(len(x), -1)
    return w.linear(values, "o", block.o_bias), paid, np.ascontiguousarray(q.transpose(1, 0, 2))


def queries(block: LatentAttention, w: BlockWeights, x: Array) -> Array:
    """x [n, hidden], normed -> [n_heads, n, rope_dim + rank], not turned yet."""
    if block.q_rank:
        low = w.linear(x, "q_a", block.qkv_bias)
        x = rms_norm(low, w.get("q_a_norm"), block.inner_eps)
    q = w.linear(x, "q").reshape(len(x), block.n_heads, -1)
    turned, rest = np.split(q, [block.rope_dim], axis=2)
    up = w.get("k_up").reshape(block.n_heads, block.rank, block.nope_dim)
    absorbed = np.einsum("nhd,hrd->nhr", rest, up)
    return np.ascontiguousarray(np.concatenate([turned, absorbed], axis=2).transpose(1, 0, 2))


def _key(block: LatentAttention, w: BlockWeights, x: Array) -> Array:
    """x [n, hidden], normed -> [n, rope_dim + rank]."""
    turned, state = np.split(w.linear(x, "kv_a", block.qkv_bias), [block.rope_dim], axis=1)
    return np.concatenate([turned, rms_norm(state, w.get("kv_norm"), block.inner_eps)], axis=1)
