"""The attention block in numpy: scores of all slots, masked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.formats import load, store
from edgedec.cache.host import HostCache
from edgedec.runtime import Rows, View
from edgedec.runtimes.reference.differential import subtracted, widened
from edgedec.runtimes.reference.numeric import Array, BlockWeights, normed, rms_norm, sigmoid, softmax
from edgedec.runtimes.reference.views import ScoredSlots, seen, standing_for
from edgedec.spec import Attention, ModelSpec
from edgedec.spec.relative import relative_rows, relative_tensors


class Sight(NamedTuple):
    """What rows see of a block that holds `committed` slots before them."""

    view: View
    committed: int
    rows: Rows


def run(
    block: Attention,
    w: BlockWeights,
    x: Array,
    embedding: Array | None,
    rows: Rows,
    cache: HostCache,
    span: tuple[int, int],
    scales: Array | None,
    view: View | None = None,
) -> tuple[Array, Array, Array]:
    """f(norm(x)) [count, hidden], the attention paid to each slot [n_kv_heads, slots], the queries. embedding [count,
    hidden]: of the rows' tokens, if the block reads it; span: the slots of the computed rows; scales [2, n_kv_heads, 1,
    head_dim]: static scales of a quantized cache; view: what the rows see of the block's slots."""
    positions = rows.positions[rows.first :]
    q, k, v, gate = turned_heads(block, w, _read(block, w, x, embedding), positions)
    data, stop = cache.data(w.number), span[1]
    for i, values in enumerate((k, v)):
        data[i][:, slice(*span)] = store(values, cache.kv, None if scales is None else scales[i])
    keys, values = (load(data[i][:, :stop], cache.kv, None if scales is None else scales[i]) for i in range(2))
    ahead = None if w.spec.causal else block.window
    mask = rows.mask(cache.positions(w.number), block.window, block.sinks, ahead)
    sight = None if view is None else Sight(view, span[0] - rows.first, rows)
    bias = distances(block, w, positions) if block.distances else None
    sink = w.get("sink_logit") if block.sink_logit else None
    if block.relative:
        bias = disentangled(block, w, q, k, positions)
    if block.slopes:
        bias = sloped(block, positions, np.concatenate([cache.positions(w.number), rows.positions]))
    y, paid = attend(q, keys, values, mask, block, sight, bias, sink)
    if block.gate_dim:
        y = (y.reshape(len(y), gate.shape[1], -1) * sigmoid(gate)[:, :, None]).reshape(y.shape)
    y = subtracted(block, w, y) if block.differential else w.norm(y, block.inner_norm, "inner_norm")
    return w.linear(y, "o", block.o_bias), paid, np.ascontiguousarray(q.transpose(1, 0, 2))


def _read(block: Attention, w: BlockWeights, x: Array, embedding: Array | None) -> Array:
    """What qkv reads [count, read]."""
    if not block.paired or embedding is None:
        return w.norm(x, block.norm)
    if block.with_embedding:
        return w.norm(np.concatenate([x, embedding], axis=1), block.norm)
    embedded = w.norm(embedding, block.embedding_norm, "embedding_norm")
    return np.concatenate([embedded, w.norm(x, block.norm)], axis=1)


def distances(block: Attention, w: BlockWeights, positions: NDArray[np.int64]) -> Array:
    """What is added to the scores of a whole text by distance [n_heads, n, n]."""
    apart = np.clip(positions[None, :] - positions[:, None], -block.distances, block.distances) + block.distances
    return np.ascontiguousarray(w.get("distance")[apart].transpose(2, 0, 1))


def disentangled(block: Attention, w: BlockWeights, q: Array, k: Array, positions: NDArray[np.int64]) -> Array:
    """What is added to the scores of a whole text by queries and keys with distances [n_heads, n, n]; q and k
    [n_heads, n, head_dim]."""
    length, scale = len(positions), np.float32(block.scale)
    rows = relative_rows(block, length)[positions[:, None] - positions[None, :] + length - 1]
    found = np.zeros((block.n_heads, length, length), np.float32)
    for name, x, row in (("relative_k", q, rows), ("relative_q", k, rows.T)):
        if name not in relative_tensors(block):
            continue
        table = w.get(name).reshape(block.n_heads, 2 * block.relative, block.head_dim)
        scores = np.take_along_axis(x @ table.transpose(0, 2, 1), row[None].astype(np.int64), axis=2) * scale
        found += scores if name == "relative_k" else scores.transpose(0, 2, 1)
    return found


def sloped(block: Attention, positions: NDArray[np.int64], keys: NDArray[np.int64]) -> Array:
    """What ALiBi adds to the scores [n_heads, n, slots] of keys at the positions `keys`."""
    apart = -np.abs(keys[None, :] - positions[:, None]).astype(np.float32)
    return np.array(block.slopes, np.float32)[:, None, None] * apart


def head_norms(block: Attention, w: BlockWeights, x: Array, name: str) -> Array:
    """x [heads, n, head_dim], each head normed by itself."""
    if block.qk_norm == "head":
        return w.norm(x, block.qk_norm_kind, name)
    weight = w.get(name).reshape(len(x), 1, block.head_dim)
    bias = w.get(f"{name}_bias").reshape(weight.shape) if block.qk_norm_kind == "layer" else None
    return normed(x, block.qk_norm_kind, weight, bias, w.spec.norm_eps)


def _qkv(block: Attention, w: BlockWeights, x: Array) -> tuple[Array, Array, Array, Array]:
    """x [n, read] -> q [n_heads, n, head_dim], k and v [n_kv_heads, n, head_dim], gate [n, gate_dim]."""
    qkv = w.linear(x, "qkv", block.qkv_bias)
    if block.clip:
        qkv = np.clip(qkv, np.float32(-block.clip), np.float32(block.clip))
    v_dim = 0 if block.k_is_v else block.kv_dim
    q, k, v, gate = np.split(qkv, np.cumsum([block.q_dim, block.kv_dim, v_dim]), axis=1)
    v = k if block.k_is_v else v
    if block.qk_norm == "full":
        q, k = w.norm(q, block.qk_norm_kind, "q_norm"), w.norm(k, block.qk_norm_kind, "k_norm")
    if block.differential:
        q = widened(q, block.n_heads)
    q, k, v = (a.reshape(len(x), -1, block.head_dim).transpose(1, 0, 2) for a in (q, k, v))
    if block.qk_norm in ("head", "heads") and not block.qk_norm_last:
        q, k = head_norms(block, w, q, "q_norm"), head_norms(block, w, k, "k_norm")
    return q, k, v, gate


def turned_heads(
    block: Attention, w: BlockWeights, x: Array, positions: NDArray[np.int64]
) -> tuple[Array, Array, Array, Array]:
    """Of rows [n, read] that are normed: q [n_heads, n, head_dim], k and v [n_kv_heads, n, head_dim], as they are
    attended to, and the gate [n, gate_dim]."""
    q, k, v, gate = _qkv(block, w, x)
    q, k = rotate(block, w.spec, q, positions), rotate(block, w.spec, k, positions)
    if block.qk_norm_last:
        q, k = head_norms(block, w, q, "q_norm"), head_norms(block, w, k, "k_norm")
    if block.v_norm:
        v = rms_norm(v, np.ones(block.head_dim, np.float32), w.spec.norm_eps)
    return q, k, v, gate


def paid(
    spec: ModelSpec,
    b: int,
    queries: Array,
    rows: Rows,
    cache: HostCache,
    scales: Array | None,
    sink: Array | None = None,
) -> Array:
    """The attention [n_kv_heads, slots] that the computed rows of a call pay to the slots of block b, their keys being
    written. queries [count, q_dim]: before they are turned; sink [n_heads]: as in `attend`.
    Queries are as they are scored where norms come after the rope."""
    block = spec.attention[b]
    mask = rows.mask(cache.positions(b), block.window, block.sinks)
    q = queries.reshape(len(queries), block.n_heads, block.head_dim).transpose(1, 0, 2)
    if not block.qk_norm_last:
        q = rotate(block, spec, q, rows.positions[rows.first :])
    keys = load(cache.data(b)[0][:, : mask.shape[1]], cache.kv, None if scales is None else scales[0])
    at = np.concatenate([cache.positions(b), rows.positions])
    bias = sloped(block, rows.positions[rows.first :], at) if block.slopes else None
    return attend(q, keys, np.zeros_like(keys), mask, block, sink=sink, bias=bias)[1]


def rotate(block: Attention, spec: ModelSpec, x: Array, positions: NDArray[np.int64]) -> Array:
    """x [heads, n, head_dim] turned by its positions."""
    if block.rope is None:
        return x
    rope = spec.ropes[block.rope]
    angles = rope.angles(positions, spec.original_length)
    cos, sin = (np.float32(rope.scale) * f(angles).astype(np.float32) for f in (np.cos, np.sin))
    parts = np.split(x, 2, axis=-1) if block.differential else [x]
    return np.concatenate([_turned(part, cos, sin) for part in parts], axis=-1)


def _turned(x: Array, cos: Array, sin: Array) -> Array:
    """x [heads, n, dim] whose pairs, j and j + pairs, are turned by angles [n, pairs]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def attend(
    q: Array,
    keys: Array,
    values: Array,
    mask: NDArray[np.bool_],
    block: Attention,
    sight: Sight | None = None,
    bias: Array | None = None,
    sink: Array | None = None,
) -> tuple[Array, Array]:
    """q [heads, n, d], keys and values [kv_heads, total, d], mask [n, total] -> [n, heads * d], and the attention
    paid to each slot [kv_heads, total]. bias [heads, n, total]: added to the scores; sink [heads]: a score of no token
    in the softmax of every row."""
    group, n, kv = block.n_heads // block.n_kv_heads, q.shape[1], block.n_kv_heads
    q, owner = q.reshape(kv, group, n, block.head_dim), None
    scores = _scores(block, q, keys)
    if bias is not None:
        scores = scores + bias.reshape(scores.shape)
    scores = np.where(mask, scores, -np.inf)
    if sight is not None:
        ranks = sight.committed + sight.rows.visible().sum(axis=1) - 1
        least = None if sink is None else sink.reshape(kv, group, 1)
        scored = ScoredSlots(q, keys, scores, sight.committed, ranks, lambda mean: _scores(block, mean, keys), least)
        visible = seen(sight.view, scored)
        scores = np.where(visible[:, None], scores, -np.inf)
        if sight.view.runs is not None:
            scores, owner = standing_for(sight.view, scores, visible)
    weights = softmax(scores) if sink is None else _beside(scores, sink.reshape(kv, group, 1, 1))
    mixed = weights.reshape(kv, group * n, -1) @ values
    y = mixed.reshape(block.n_heads, n, block.head_dim).transpose(1, 0, 2).reshape(n, -1)
    paid = weights.sum(axis=(1, 2))
    return y, paid if owner is None else _owned(paid, owner)


def _beside(scores: Array, sink: Array) -> Array:
    """The softmax of scores [kv_heads, group, n, total] and of a score that has no value [kv_heads, group, 1, 1]."""
    wide = np.broadcast_to(sink, (*scores.shape[:-1], 1)).astype(np.float32)
    return softmax(np.concatenate([scores, wide], axis=-1))[..., :-1]


def _owned(paid: Array, owner: NDArray[np.int64]) -> Array:
    """The attention paid to each slot [kv_heads, total]; attention to a run counts for its first slot."""
    found = np.zeros_like(paid)
    for head, to in enumerate(owner):
        np.add.at(found[head], to, paid[head])
    return found


def _scores(block: Attention, q: Array, keys: Array) -> Array:
    """q [kv_heads, group, n, d], keys [kv_heads, total, d] -> [kv_heads, group, n, total], capped."""
    kv, group, n, d = q.shape
    scores = (q.reshape(kv, group * n, d) @ keys.transpose(0, 2, 1)).reshape(kv, group, n, -1) * np.float32(block.scale)
    return np.tanh(scores / np.float32(block.softcap)) * np.float32(block.softcap) if block.softcap else scores
