"""The gated short convolution in numpy: every row reads the last inputs of its parent."""

from __future__ import annotations

import numpy as np

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.runtimes.reference.numeric import Array, BlockWeights
from edgedec.runtimes.reference.states import given, stepped
from edgedec.spec import Conv


def run(block: Conv, w: BlockWeights, x: Array, rows: Rows, kept: RecurrentState) -> Array:
    """f(norm(x)) [count, hidden] of x [count, hidden]; the last inputs after each row are given to `kept`."""
    before, gate, values = np.split(w.linear(w.norm(x, block.norm), "in_proj", block.bias), 3, axis=1)
    inputs, kernel = before * values, w.get("conv").T
    bias = w.get("conv_bias") if block.bias else np.float32(0)
    out, states = np.empty_like(inputs), list[Recurrent]()
    for i in range(len(x)):
        start = stepped(rows, i, states, kept)
        window = np.concatenate([start.conv, inputs[i : i + 1]])
        out[i] = (window * kernel).sum(axis=0) + bias
        states.append(Recurrent(window[1:], start.state))
    kept.write(rows, [given(state) for state in states])
    return w.linear(gate * out, "out_proj", block.bias)
