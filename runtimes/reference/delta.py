"""The gated delta rule in numpy: every row starts from the state of its parent, so trees need no special case."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation, rms_norm, sigmoid
from edgedec.runtimes.reference.states import given, stepped
from edgedec.spec import Delta

NEAR_ZERO = np.float32(1e-6)  # under the root of a length


class Inputs(NamedTuple):
    """Of each row: vkq [n, conv_dim] before the convolution; the gate [n, inner_size]; beta [n, n_heads]; how much of a
    state is kept [n, n_heads, 1 or key_dim]."""

    vkq: Array
    gate: Array
    beta: Array
    decay: Array


def run(block: Delta, w: BlockWeights, x: Array, rows: Rows, kept: RecurrentState) -> Array:
    """f(norm(x)) [count, hidden] of x [count, hidden]; the state after each row is given to `kept`."""
    inputs = _inputs(block, w, w.linear(w.norm(x, block.norm), "in_proj"))
    out, states = np.empty((len(x), block.n_heads, block.head_dim), np.float32), list[Recurrent]()
    for i in range(len(x)):
        state, out[i] = _step(block, w, stepped(rows, i, states, kept), inputs, i)
        states.append(state)
    kept.write(rows, [given(state) for state in states])
    y = rms_norm(out, w.get("gate_norm"), block.eps or w.spec.norm_eps).reshape(len(x), -1)
    return w.linear(y * inputs.gate, "out_proj")


def _inputs(block: Delta, w: BlockWeights, projected: Array) -> Inputs:
    vkq, z, b, g = np.split(projected, np.cumsum(block.sections)[:-1], axis=1)
    if block.rank:
        z, g = w.linear(z, "gate_up"), w.linear(g, "decay_up")
    steps = np.logaddexp(np.float32(0), g + w.get("dt_bias")).reshape(len(g), block.n_heads, -1)
    decay = np.exp(steps * w.get("a")[:, None]).astype(np.float32)
    gate = activation(z, "silu") if block.gate == "silu" else sigmoid(z)
    return Inputs(vkq, gate, np.float32(block.beta_scale) * sigmoid(b), decay)


def _step(block: Delta, w: BlockWeights, before: Recurrent, inputs: Inputs, i: int) -> tuple[Recurrent, Array]:
    """Row i: the state after it, and its output [n_heads, head_dim] before the norm."""
    window = np.concatenate([before.conv, inputs.vkq[i : i + 1]])
    mixed = activation((window * w.get("conv").T).sum(axis=0), "silu")
    v, k, q = np.split(mixed, [block.inner_size, block.inner_size + block.n_groups * block.key_dim])
    share, v = block.n_heads // block.n_groups, v.reshape(block.n_heads, block.head_dim)
    k, q = (np.repeat(unit(a.reshape(block.n_groups, block.key_dim)), share, axis=0) for a in (k, q))
    state = before.state * inputs.decay[i][:, None, :]
    change = (v - np.einsum("hds,hs->hd", state, k)) * inputs.beta[i][:, None]
    state = (state + change[:, :, None] * k[:, None, :]).astype(np.float32)
    y = np.einsum("hds,hs->hd", state, q * np.float32(block.key_dim**-0.5))
    return Recurrent(window[1:], state), y


def unit(x: Array) -> Array:
    """x [..., n] over its length."""
    return x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + NEAR_ZERO)
