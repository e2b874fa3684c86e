"""RWKV-7 in numpy: time mixing and channel mixing. Every row starts from the state of its parent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation, normed, sigmoid
from edgedec.runtimes.reference.states import given, stepped
from edgedec.spec import ChannelMix, Rwkv7
from edgedec.spec.rwkv7 import MIXED

FASTEST = np.float32(np.exp(-0.5))  # of decays: exp(-FASTEST sigmoid)
NEAR_ZERO = np.float32(1e-12)  # of lengths


class MixedRows(NamedTuple):
    """Of each row and head: r, k, the key that is looked up, how much of it is replaced, decays [n, n_heads, key_dim];
    v [n, n_heads, head_dim]."""

    r: Array
    k: Array
    sought: Array
    replaced: Array
    decay: Array
    v: Array


def run(block: Rwkv7, w: BlockWeights, x: Array, rows: Rows, kept: RecurrentState, first: Array | None) -> Array:
    """f(norm(x)) [count, hidden] of x [count, hidden]; the state after each row is given to `kept`. first [count,
    n_heads * head_dim, in any shape]: the values that are mixed in."""
    x = w.norm(x, block.norm)
    before = _before(x, rows, kept)
    mixed = {name: x + (before - x) * w.get("mix")[i] for i, name in enumerate(MIXED)}
    inputs, states = _inputs(block, w, mixed, first), list[Recurrent]()
    out = np.empty_like(inputs.v)
    for i in range(len(x)):
        start = stepped(rows, i, states, kept)
        state, out[i] = _step(start.state, inputs, i)
        states.append(Recurrent(x[i : i + 1], state, inputs.v[i]))
    kept.write(rows, [given(state) for state in states])
    weight, bias = (w.get(name).reshape(block.n_heads, -1) for name in ("out_norm", "out_norm_bias"))
    y = normed(out, "layer", weight, bias, block.eps)
    bonus = np.sum(inputs.r * inputs.k * w.get("bonus").reshape(block.n_heads, -1), axis=-1, keepdims=True)
    y = (y + bonus * inputs.v).reshape(len(x), -1)
    return w.linear(y * w.linear(sigmoid(w.linear(mixed["gate"], "gate_down")), "gate_up"), "o")


def channel_mix(block: ChannelMix, w: BlockWeights, x: Array, rows: Rows, kept: RecurrentState) -> Array:
    """f(norm(x)) [count, hidden]; each row is given to `kept`."""
    x = w.norm(x, block.norm)
    mixed = x + (_before(x, rows, kept) - x) * w.get("mix")
    kept.write(rows, [given(Recurrent(row[None], kept.committed.state)) for row in x])
    return w.linear(activation(w.linear(mixed, "up"), "relu2"), "down")


def _before(x: Array, rows: Rows, kept: RecurrentState) -> Array:
    """For each computed row x [count, width] its parent's."""
    parents = [int(parent) - rows.first for parent in rows.parents[rows.first :]]
    held = [x[p] if p >= 0 else kept.before(rows, rows.first + i).conv[0] for i, p in enumerate(parents)]
    return np.stack(held)


def _inputs(block: Rwkv7, w: BlockWeights, mixed: dict[str, Array], first: Array | None) -> MixedRows:
    def heads(a: Array) -> Array:
        return a.reshape(len(a), block.n_heads, -1)

    def low(name: str, inner: Array) -> Array:
        return sigmoid(w.linear(inner, f"{name}_up") + w.get(f"{name}_bias"))

    decay = np.exp(-FASTEST * low("decay", np.tanh(w.linear(mixed["decay"], "decay_down"))))
    rate = low("rate", w.linear(mixed["rate"], "rate_down"))
    k, v = w.linear(mixed["k"], "k"), heads(w.linear(mixed["v"], "v"))
    if first is not None:
        v = v + (heads(first) - v) * heads(low("value", w.linear(mixed["v"], "value_down")))
    sought = heads(k * w.get("key_scale"))
    sought = sought / np.maximum(np.sqrt(np.sum(np.square(sought), axis=-1, keepdims=True)), NEAR_ZERO)
    k = k * (1 + (rate - 1) * w.get("key_rate"))
    r = heads(w.linear(mixed["r"], "r"))
    return MixedRows(r, heads(k), sought, sought * heads(rate), heads(decay), v)


def _step(before: Array, inputs: MixedRows, i: int) -> tuple[Array, Array]:
    """Row i: the state [n_heads, head_dim, key_dim] after it, and its output [n_heads, head_dim]."""
    found = np.einsum("hds,hs->hd", before, inputs.sought[i])
    state = before * inputs.decay[i][:, None, :] - found[:, :, None] * inputs.replaced[i][:, None, :]
    state = (state + inputs.v[i][:, :, None] * inputs.k[i][:, None, :]).astype(np.float32)
    return state, np.einsum("hds,hs->hd", state, inputs.r[i])
