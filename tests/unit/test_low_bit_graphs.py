"""Weights in fewer bits as ONNX nodes: run by ONNX Runtime, their codes are those of int4 or int8 with equal values."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.bundle.integers import BITS, packed
from edgedec.bundle.manifest import Tensor

pytest.importorskip("onnx", reason="graphs are built with onnx")
ort = pytest.importorskip("onnxruntime", reason="graphs are run by onnxruntime")

from edgedec.export.graph import UINT8, Graph  # noqa: E402
from edgedec.export.low_bits import codes_of, stored_codes  # noqa: E402

# ggml's table of IQ4_NL, and twice the 4-bit floats of MXFP4.
NL4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
MX4 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]
# What a code stands for, and the code that stands for zero in what ONNX Runtime multiplies by.
MEANT = {
    "int3": ([q - 4 for q in range(8)], 8),
    "int2": ([2 * q - 3 for q in range(4)], 8),
    "int5": ([q - 16 for q in range(32)], 128),
    "int6": ([q - 32 for q in range(64)], 128),
    "uint2": (list(range(4)), 128),
    "nl4": (NL4, 128),
    "mx4": (MX4, 128),
}


def ran(fmt: str, data: np.ndarray, block: int, whole: bool) -> np.ndarray:
    """The codes that the nodes make of stored bytes [rows, bytes]; whole: two of int4 in a byte, as they are stored."""
    graph, n = Graph("codes", "weights.bin", {}), len(data)
    tensor = Tensor(fmt, (n, data.shape[1] * 8 // BITS[fmt]), 0, block=block)  # type: ignore[arg-type]
    given = graph.input("data", UINT8, data.shape)
    made = stored_codes(graph, given, tensor) if whole else codes_of(graph, graph.reshaped(given, [0, 1, -1]), tensor)
    graph.output(made, UINT8, [None, None, None])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(graph.model().SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"data": data})[0]
    return found


@pytest.mark.parametrize("fmt", MEANT)
def test_codes_keep_their_values(fmt: str) -> None:
    values, zero = MEANT[fmt]
    codes = np.random.default_rng(3).permutation(np.arange(2 * 96) % len(values)).reshape(2, 96).astype(np.uint8)
    assert set(codes.ravel()) == set(range(len(values)))
    expected = np.array(values)[codes] + zero
    data = packed(codes, fmt)
    np.testing.assert_array_equal(ran(fmt, data, 32, False)[:, 0], expected)
    stored = ran(fmt, data, 32, True)
    if zero == 8:  # two in a byte, the first in the low nibble
        assert stored.shape == (2, 3, 16)
        stored = np.stack([stored & 15, stored >> 4], axis=-1)
    np.testing.assert_array_equal(stored.reshape(2, 96), expected)


def test_where_the_bits_of_a_code_lie() -> None:
    """By hand: of mx4 weight 4 s + b is in byte b at bits 4 s to 4 s + 3; of nl4 the first of two is the low nibble."""
    codes = ran("mx4", np.array([[0x72, *[0] * 15]], np.uint8), 32, False)[0, 0]
    assert codes.tolist() == [2 + 128, *[128] * 3, 12 + 128, *[128] * 27]
    codes = ran("nl4", np.array([[0x72, *[0] * 15]], np.uint8), 32, False)[0, 0]
    assert codes.tolist() == [-83 + 128, -10 + 128, *[1] * 30]
