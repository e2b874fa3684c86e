"""Attention's two products with keys and values of bytes: quantized operands and results, so that an NPU multiplies
integers: 16 bits by 8.

No range comes from calibration. A query is divided by the sum of its absolute values; then its products with keys of
-128 to 127 stay within these. Weights of a softmax are 0 to 1 and sum up to 1: so do their products with values.
"""

from __future__ import annotations

import numpy as np

from edgedec.export.graph import Graph
from edgedec.export.onnx.common import ints, scalar

_MOST, _MIDDLE = 32767, 32768
_BYTE = (1.0, np.uint8(128))
_UNIT = (1 / _MOST, np.uint16(_MIDDLE))
_PRODUCT = (128 / _MOST, np.uint16(_MIDDLE))
_SHARE = (1 / 65535, np.uint16(0))
# The least float16 that is normal.
_LEAST = 2.0**-14


def stored(g: Graph, x: str, name: str) -> str:
    """Keys or values in units of their scales, as the uint8 output `name`."""
    # Compilers remove a quantization followed at once by a dequantization, and with it the clipping.
    x = g.node("Clip", [x, scalar(g, -128.0), scalar(g, 127.0)])
    return g.node("QuantizeLinear", [x, *_range(g, _BYTE)], out=name)


def joined(g: Graph, parts: list[str]) -> str:
    """Keys or values uint8 [1, kv heads, slots, dim], one after another: what a product takes."""
    floats = [g.node("DequantizeLinear", [part, *_range(g, _BYTE)]) for part in parts]
    return _quantized(g, g.node("Concat", floats, axis=2), _BYTE)


def scores(g: Graph, q: str, keys: str) -> str:
    """q [1, kv heads, rows, dim] times keys, as `joined` makes them -> [1, kv heads, rows, slots]."""
    size = g.node("ReduceSum", [g.node("Abs", [q]), ints(g, -1)], keepdims=1)
    size = g.node("Max", [size, scalar(g, _LEAST)])
    unit = _quantized(g, g.node("Div", [q, size]), _UNIT)
    turned = _quantized(g, g.node("Transpose", [keys], perm=[0, 1, 3, 2]), _BYTE)
    return g.node("Mul", [_quantized(g, g.node("MatMul", [unit, turned]), _PRODUCT), size])


def mixed(g: Graph, weights: str, values: str) -> str:
    """weights [1, kv heads, rows, slots] of a softmax times values -> [1, kv heads, rows, dim]."""
    return _quantized(g, g.node("MatMul", [_quantized(g, weights, _SHARE), values]), _PRODUCT)


def _quantized(g: Graph, x: str, unit: tuple[float, np.uint8 | np.uint16]) -> str:
    """x rounded to the values of a quantized range."""
    integers = g.node("QuantizeLinear", [x, *_range(g, unit)])
    return g.node("DequantizeLinear", [integers, *_range(g, unit)])


def _range(g: Graph, unit: tuple[float, np.uint8 | np.uint16]) -> list[str]:
    """The scale and the zero point."""
    step, zero = unit
    return [scalar(g, step), g.constant(np.array(zero))]
