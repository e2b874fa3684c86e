"""TIR by hand, one thread's scalars: values, arrays of words, conversions that every language has.

All memory is float32, int32 or uint32: WGSL has no smaller ones. Indices are int32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

LANES, CHUNK, PAGE_SLOTS, STRIP = 16, 256, 64, 512
# Stands for "nothing is seen": WGSL has no infinities.
NOTHING = -3.0e38
Expr = Any


def dtype_of(x: Expr) -> str:
    """The type of a value."""
    return str(x.ty.dtype)


def bind(x: Expr) -> Expr:
    """A variable of this value, computed once.

    This is an array of one element: for TVM's own variables the code generators visit the values recursively, which
    takes exponential time in a chain of variables that are used twice.
    """
    if isinstance(x, int) or dtype_of(x) == "bool":
        return x
    place = T.alloc_buffer((1,), dtype_of(x), scope="local")
    T.buffer_store(place, x, [0])
    return place[0]


def i32(x: Expr) -> Expr:
    """The bits as int32."""
    return x if dtype_of(x) == "int32" else bind(T.reinterpret("int32", bind(x)))


def u32(x: Expr) -> Expr:
    """The bits as uint32."""
    return x if dtype_of(x) == "uint32" else bind(T.reinterpret("uint32", bind(x)))


def as_float(x: Expr) -> Expr:
    """The float of these bits."""
    return bind(T.reinterpret("float32", bind(x)))


def f32(x: float) -> Expr:
    """A constant. TVM prints floats with seven digits: those that need more stand as their bits."""
    exact = np.float32(x)
    return T.float32(x) if np.float32(f"{exact:.6e}") == exact else as_float(T.int32(int(exact.view(np.int32))))


def div(a: Expr, b: Expr) -> Expr:
    """a / b of numbers that are not negative."""
    return a // b if isinstance(a, int) and isinstance(b, int) else bind(T.truncdiv(a, b))


def mod(a: Expr, b: Expr) -> Expr:
    """The remainder of numbers that are not negative."""
    return a % b if isinstance(a, int) and isinstance(b, int) else bind(T.truncmod(a, b))


@dataclass(frozen=True)
class Array:
    """Memory of one type from `base` elements on."""

    buffer: Expr
    base: Expr = 0

    def __getitem__(self, i: Expr) -> Expr:
        return bind(self.buffer[self.base + i])

    def put(self, i: Expr, value: Expr) -> None:
        """Store an element."""
        T.buffer_store(self.buffer, value, [self.base + i])

    def at(self, i: Expr) -> Array:
        """The memory from element i on."""
        return Array(self.buffer, bind(self.base + i))


def own(count: int, dtype: str = "float32") -> Array:
    """Variables of a thread that a loop may change."""
    return Array(T.alloc_buffer((count,), dtype, scope="local"))


def shared(count: int, dtype: str = "float32") -> Array:
    """Memory of a group of threads."""
    return Array(T.alloc_buffer((count,), dtype, scope="shared"))


def barrier() -> None:
    """Wait until all threads of the group are here."""
    T.evaluate(T.tvm_storage_sync("shared"))


def branch(condition: Expr, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
    """If, and else."""
    with T.If(condition):
        with T.Then():
            then()
        if otherwise is not None:
            with T.Else():
                otherwise()


def strided(thread: Expr, threads: int, count: int, run: Callable[[Expr], None]) -> None:
    """Run for each of `count` items, shared out among the threads of a group."""
    rounds = -(-count // threads)

    def one(i: Expr) -> None:
        if count % threads:
            branch(i < count, lambda: run(i))
        else:
            run(i)

    if rounds == 1:
        return one(thread)
    with T.serial(rounds) as turn:
        one(bind(turn * threads + thread))


def larger(a: Expr, b: Expr) -> Expr:
    """a > b ? a : b."""
    return bind(T.Select(a > b, a, b))


def smaller(a: Expr, b: Expr) -> Expr:
    """a < b ? a : b."""
    return bind(T.Select(a < b, a, b))


def absolute(x: Expr) -> Expr:
    """Without the sign bit."""
    return as_float(bind(i32(x) & T.int32(0x7FFFFFFF)))


def total(lanes: list[Expr]) -> Expr:
    """The sum of sixteen values: halves added to halves."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [bind(lanes[i] + lanes[i + half]) for i in range(half)]
    return lanes[0]


def byte_of(words: Array, i: Expr) -> Expr:
    """Byte i of an array of words, as int32."""
    return bind((i32(words[div(i, 4)]) >> (mod(i, 4) * T.int32(8))) & T.int32(255))


def half_of(word: Expr, which: Expr) -> Expr:
    """One of the two float16 of a word as float32."""
    bits = bind((i32(word) >> (which << T.int32(4))) & T.int32(0xFFFF))
    size, sign = bind(bits & T.int32(0x7FFF)), bind((bits & T.int32(0x8000)) << T.int32(16))
    usual = bind((size << T.int32(13)) + T.int32(112 << 23))
    endless = bind((size << T.int32(13)) | T.int32(0x7F800000))
    wide = bind(T.Select(size >= T.int32(0x7C00), endless, usual))
    least = i32(bind(T.Cast("float32", size) * f32(2.0**-24)))
    return as_float(bind(T.Select(size < T.int32(0x400), least, wide) | sign))


def half_bits(nearest: Callable[[Expr], Expr], x: Expr) -> Expr:
    """The float16 next to a float, as int32; ties to even. nearest: rounds a float to an int32."""
    bits = i32(x)
    size, sign = bind(bits & T.int32(0x7FFFFFFF)), bind((bits >> T.int32(16)) & T.int32(0x8000))
    small = nearest(bind(smaller(as_float(size), T.float32(1.0)) * f32(2.0**24)))
    odd = bind((size >> T.int32(13)) & T.int32(1))
    usual = bind((size - T.int32(112 << 23) + T.int32(0xFFF) + odd) >> T.int32(13))
    endless = bind(T.Select(size > T.int32(0x7F800000), T.int32(0x7E00), T.int32(0x7C00)))
    wide = bind(T.Select(size >= T.int32(0x47800000), endless, usual))
    return bind(T.Select(size < T.int32(0x38800000), small, wide) | sign)
