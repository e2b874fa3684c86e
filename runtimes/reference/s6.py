"""The selective state space of Mamba-1 in numpy: every row starts from the state of its parent."""

from __future__ import annotations

import numpy as np

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation, rms_norm
from edgedec.runtimes.reference.states import given, stepped
from edgedec.spec import S6


def run(block: S6, w: BlockWeights, x: Array, rows: Rows, kept: RecurrentState) -> Array:
    """f(norm(x)) [count, hidden] of x [count, hidden]; the state after each row is given to `kept`."""
    inputs, z = np.split(w.linear(w.norm(x, block.norm), "in_proj", block.proj_bias), 2, axis=1)
    histories, mixed = _convolved(w, inputs, rows, kept)
    low, b, c = _parts(block, w, mixed)
    dt = np.logaddexp(np.float32(0), w.linear(low, "dt_proj") + w.get("dt_bias"))
    a, d = w.get("a"), w.get("d")
    y, states = np.empty_like(mixed), list[Recurrent]()
    for i in range(len(x)):
        before = stepped(rows, i, states, kept)
        state = np.exp(dt[i][:, None] * a) * before.state[0] + (dt[i] * mixed[i])[:, None] * b[i]
        y[i] = state @ c[i] + d * mixed[i]
        states.append(Recurrent(histories[i], state.astype(np.float32)[None], y[i]))
    kept.write(rows, [given(state) for state in states])
    return w.linear(y * activation(z, "silu"), "out_proj", block.proj_bias)


def _convolved(w: BlockWeights, inputs: Array, rows: Rows, kept: RecurrentState) -> tuple[list[Array], Array]:
    """inputs [count, inner] -> the last inputs after each row [conv_size - 1, inner], and the convolved ones."""
    kernel, bias, histories, mixed = w.get("conv").T, w.get("conv_bias"), list[Array](), np.empty_like(inputs)
    for i in range(len(inputs)):
        parent = int(rows.parents[rows.first + i]) - rows.first
        before = histories[parent] if parent >= 0 else kept.before(rows, rows.first + i).conv
        taps = np.concatenate([before, inputs[i : i + 1]])
        mixed[i] = (taps * kernel).sum(axis=0) + bias
        histories.append(taps[1:])
    return histories, activation(mixed, "silu")


def _parts(block: S6, w: BlockWeights, mixed: Array) -> list[Array]:
    """What the time steps are made of, B and C, normed where the model does so."""
    found = np.split(w.linear(mixed, "x_proj"), [block.dt_rank, block.dt_rank + block.state_size], axis=1)
    if block.part_norm == "none":
        return found
    weights = [w.get(name) if block.part_norm == "rms" else np.ones(1, np.float32) for name in _NORMS]
    return [rms_norm(part, weight, block.part_eps) for part, weight in zip(found, weights, strict=True)]


_NORMS = ("dt_norm", "b_norm", "c_norm")
