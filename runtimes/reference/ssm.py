"""The state-space block in numpy: every row starts from the state of its parent, so trees need no special case."""

from __future__ import annotations

import numpy as np

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation, rms_norm
from edgedec.runtimes.reference.states import given, stepped
from edgedec.spec import Ssm


def run(block: Ssm, w: BlockWeights, x: Array, rows: Rows, kept: RecurrentState) -> Array:
    """f(norm(x)) [count, hidden] of x [count, hidden]; the state after each row is given to `kept`."""
    projected = w.linear(w.norm(x, block.norm), "in_proj", block.proj_bias)
    z, xbc, dt = np.split(projected, [block.inner_size, block.inner_size + block.conv_dim], axis=1)
    dt = np.clip(np.logaddexp(np.float32(0), dt + w.get("dt_bias")), block.dt_min, block.dt_max).astype(np.float32)
    out, states = np.empty((len(x), block.inner_size), np.float32), list[Recurrent]()
    for i in range(len(x)):
        state, out[i] = _step(block, w, stepped(rows, i, states, kept), xbc[i], dt[i])
        states.append(state)
    kept.write(rows, [given(state) for state in states])
    y = out * activation(z, "silu")
    if block.norm_groups:
        groups = y.reshape(len(y), block.norm_groups, -1)
        y = rms_norm(groups, np.ones(1, np.float32), w.spec.norm_eps).reshape(y.shape) * w.get("gate_norm")
    return w.linear(y, "out_proj", block.proj_bias)


def _step(block: Ssm, w: BlockWeights, before: Recurrent, xbc: Array, dt: Array) -> tuple[Recurrent, Array]:
    """One row: xbc [conv_dim], dt [n_heads] -> the state after it, and y [inner_size] before the gate."""
    inputs = np.concatenate([before.conv, xbc[None]])
    mixed = activation((inputs * w.get("conv").T).sum(axis=0) + w.get("conv_bias"), "silu")
    x, b, c = np.split(mixed, [block.inner_size, block.inner_size + block.n_groups * block.state_size])
    x = x.reshape(block.n_heads, block.head_dim)
    share = block.n_heads // block.n_groups
    b, c = (np.repeat(a.reshape(block.n_groups, block.state_size), share, axis=0) for a in (b, c))
    decay = np.exp(dt * w.get("a"))
    state = decay[:, None, None] * before.state + (dt[:, None] * x)[:, :, None] * b[:, None, :]
    y = np.einsum("hds,hs->hd", state, c) + w.get("d")[:, None] * x
    return Recurrent(inputs[1:], state.astype(np.float32)), y.reshape(-1)
