"""A draft's LSTM of two layers as an ONNX graph. Its matrices are float32: the operator has no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgedec.errors import BadTensor
from edgedec.export.drafts.files import DraftCheckpoint
from edgedec.export.drafts.networks import DenseGraph
from edgedec.export.graph import FLOAT
from edgedec.export.safetensors import Array

LAYERS = 2
_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def lstm_names(prefix: str) -> list[str]:
    """The tensors of a torch LSTM of two layers."""
    return [f"{prefix}{part}_l{i}" for i in range(LAYERS) for part in _PARTS] if prefix else []


def check_lstm(checkpoint: DraftCheckpoint, prefix: str, hidden: int) -> None:
    """Refuse an LSTM that lacks a tensor or does not fit the target."""
    for name in lstm_names(prefix):
        wide = 2 * hidden if name.endswith("weight_ih_l0") else hidden
        expected = (4 * hidden, wide) if ".weight" in name else (4 * hidden,)
        if name not in checkpoint.tensors:
            raise BadTensor(f"{name}: missing from {checkpoint.folder}")
        if (found := tuple(checkpoint.tensors[name].shape)) != expected:
            raise BadTensor(f"{name}: {found}, expected {expected} (of a target of {hidden})")


def lstm_file(folder: Path, prefix: str, checkpoint: DraftCheckpoint, lstm: str, hidden: int) -> str:
    """Write the graph -> the name of its file."""
    weights = [checkpoint.whole(name) for name in lstm_names(lstm)]
    (folder / (name := f"{prefix}recurrent.onnx")).write_bytes(lstm_graph(weights, hidden))
    return name


def lstm_graph(weights: list[Array], hidden: int) -> bytes:
    """Rows of n sequences "embedding" and "hidden" [rows, n, hidden] and the states before them "h" and "c"
    [2, n, hidden] -> the outputs "state" [rows, n, hidden] and the states after them "h_after", "c_after"."""
    g = DenseGraph("lstm", 0.0, "f32")
    x = g.node("Concat", [g.input(name, FLOAT, ["rows", "n", hidden]) for name in ("embedding", "hidden")], axis=-1)
    h, c = (g.input(name, FLOAT, [LAYERS, "n", hidden]) for name in ("h", "c"))
    after: list[tuple[str, str]] = []
    shape = g.constant(np.array([0, -1, hidden], np.int64))
    for i in range(LAYERS):
        w, r, b_w, b_r = weights[4 * i : 4 * i + 4]
        held = [g.held(_ordered(w)[None]), g.held(_ordered(r)[None])]
        bias = g.held(np.concatenate([_ordered(b_w), _ordered(b_r)])[None])
        at = g.constant(np.array([i], np.int64))
        begin = [g.node("Gather", [state, at], axis=0) for state in (h, c)]
        out = [f"{name}{i}" for name in ("y", "y_h", "y_c")]
        y, *states = g.nodes("LSTM", [x, *held, bias, "", *begin], out, hidden_size=hidden)
        x = g.node("Reshape", [y, shape])
        after.append((states[0], states[1]))
    g.node("Identity", [x], out="state")
    g.output("state", FLOAT, ["rows", "n", hidden])
    for j, name in enumerate(("h_after", "c_after")):
        g.node("Concat", [pair[j] for pair in after], out=name, axis=0)
        g.output(name, FLOAT, [LAYERS, "n", hidden])
    return g.bytes("the LSTM of a draft")


def _ordered(x: Array) -> Array:
    """Torch's gates (input, forget, cell, output) in ONNX's order (input, output, forget, cell)."""
    i, f, cell, o = np.split(x.astype(np.float32), 4)
    return np.concatenate([i, o, f, cell])
