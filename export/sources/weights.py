"""Where the parts of a quantized matrix lie: scales and zero points of its blocks, and its steps."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources.kernel import GroupWork
from edgedec.export.sources.words import LANES, Array, Expr, bind, byte_of, div, half_of, mod


def is_quantized(t: Tensor) -> bool:
    """Is it multiplied as integers?"""
    return t.format in ("int4", "int8")


def kind_of(t: Tensor) -> str:
    """How weights are kept, for names of kernels."""
    return f"{t.format}_zeros" if t.zeros else t.format


def parts_of(t: Tensor) -> tuple[str, ...]:
    """The arrays beside the data of a matrix, by what follows its name."""
    return (("scales", "zeros") if t.zeros else ("scales",)) if is_quantized(t) else ()


def zero_of(work: GroupWork, t: Tensor, group: Expr, block: Expr, lane: Expr) -> Expr:
    """What stands for zero in a block of one output, of weights with zero points."""
    at = bind(group * t.blocks + block)
    if t.format == "int8":
        return byte_of(work["zeros"], bind(at * LANES + lane))
    pair = byte_of(work["zeros"], bind(at * (LANES // 2) + mod(lane, LANES // 2)))
    return bind((pair >> (div(lane, LANES // 2) * T.int32(4))) & T.int32(15))


def scale_of(scales: Array, t: Tensor, group: Expr, block: Expr, lane: Expr) -> Expr:
    """The scale of a block of one output."""
    word = scales[(group * t.blocks + block) * (LANES // 2) + (lane >> T.int32(1))]
    return half_of(word, bind(lane & T.int32(1)))


def step_of(t: Tensor) -> int:
    """Inputs of a step."""
    return 16 if t.block == 16 else 32


def steps_of(t: Tensor) -> int:
    """Steps of a row; the last may be filled up."""
    return t.blocks * t.block // step_of(t)
