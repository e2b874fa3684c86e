"""TIR by hand: pointers, vectors of sixteen lanes, and the functions of floats that all kernels share.

The vectors are those of `kernels/cpu/simd/wide.h`: the same operations in the same order, whatever the machine's own
width. LLVM may fuse a multiplication into an addition, so every product that is added to something goes through `mul`,
which prevents this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.functions import ERF

LANES = 16
_EVERYTHING = 1 << 40
Expr = Any


def int64(x: Expr) -> Expr:
    """A number or an expression as int64."""
    return T.int64(x) if isinstance(x, int) else T.Cast("int64", x) if _dtype(x) != "int64" else x


def _dtype(x: Expr) -> str:
    return str(getattr(x.ty, "dtype", "handle"))


def bind(x: Expr) -> Expr:
    """A variable of this value, computed once.

    A stack slot, which LLVM turns into a register. TVM's own bound variables are replaced by their values in every
    simplifying pass, so a chain of variables that are used twice each grows exponentially.
    """
    dtype = _dtype(x)
    if dtype in ("handle", "bool"):
        return T.bind(x) if dtype == "handle" else x
    place = T.alloc_buffer((1,), dtype, scope="local")
    T.buffer_store(place, x, [0])
    return place[0]


@dataclass(frozen=True)
class Ptr:
    """Memory of one type from `base` elements after `buffer` on; the address of `buffer` is a multiple of 64 if
    vectors are loaded."""

    buffer: Expr
    base: Expr

    def __getitem__(self, i: Expr) -> Expr:
        return self.buffer[self.base + int64(i)]

    def vec(self, i: Expr, lanes: int = LANES) -> Expr:
        """Neighbouring elements."""
        return self.buffer[T.ramp(self.base + int64(i), 1, lanes)]

    def put(self, i: Expr, value: Expr, lanes: int = 1) -> None:
        """Store an element, or `lanes` neighbouring ones."""
        at = self.base + int64(i)
        T.buffer_store(self.buffer, value, [at if lanes == 1 else T.ramp(at, 1, lanes)])

    def at(self, i: Expr) -> Ptr:
        """The memory from element i on."""
        return Ptr(self.buffer, bind(self.base + int64(i)))


def part_of(x: Ptr, i: Expr, count: int) -> Expr:
    """Sixteen neighbouring elements, of which the first `count` lie in memory; the others are 0."""
    if count == LANES:
        return bind(x.vec(i))
    dtype = str(x.buffer.dtype)
    lanes = local(LANES, dtype)
    for j in range(LANES):
        lanes.put(j, x[i + j] if j < count else T.Cast(dtype, T.int32(0)))
    return bind(lanes.vec(0))


def put_part(x: Ptr, i: Expr, value: Expr, count: int) -> None:
    """Store the first `count` of sixteen lanes."""
    if count == LANES:
        return x.put(i, value, LANES)
    value = bind(value)
    for j in range(count):
        x.put(i + j, T.Shuffle([value], [T.int32(j)]))


def by_parts(n: int, work: Callable[[Expr, int], None]) -> None:
    """Sixteen elements at a time: work(first, how many of them there are)."""
    if n // LANES:
        with T.serial(n // LANES) as i:
            work(bind(int64(i) * LANES), LANES)
    if n % LANES:
        work(T.int64(n // LANES * LANES), n % LANES)


def masked(value: Expr, count: int) -> Expr:
    """The first `count` of sixteen lanes; 0 in the others."""
    if count == LANES:
        return value
    inside = T.ramp(T.int32(0), T.int32(1), LANES) < T.broadcast(T.int32(count), LANES)
    return bind(T.Select(inside, value, spread(0.0)))


def prefetch(x: Ptr, i: Expr) -> None:
    """Prefetch an element; it may lie outside of the memory."""
    place = T.address_of(x.buffer[x.base + int64(i)])
    T.evaluate(T.call_intrin("void", "tirx.prefetch", place, T.int32(0), T.int32(3), T.int32(1)))


def pointer(address: Expr, dtype: str) -> Ptr:
    """The memory at an address."""
    data = T.bind(T.reinterpret("handle", address))
    return Ptr(T.decl_buffer((T.int64(_EVERYTHING),), dtype, data=data), T.int64(0))


def local(count: int, dtype: str) -> Ptr:
    """Variables that a loop may change; few enough for registers or the stack."""
    return Ptr(T.alloc_buffer((count,), dtype, scope="local"), T.int64(0))


def intrinsic(dtype: str, name: str, *arguments: Expr) -> Expr:
    """A pure LLVM intrinsic."""
    return T.call_llvm_pure_intrin(dtype, name, *arguments)


def spread(x: Expr, lanes: int = LANES) -> Expr:
    """A scalar in all lanes."""
    return T.broadcast(T.float32(x) if isinstance(x, float) else x, lanes)


def reinterpret(dtype: str, x: Expr) -> Expr:
    return T.reinterpret(dtype, x)


def lanes_of(x: Expr) -> int:
    """How many lanes a value has."""
    text = _dtype(x)
    return int(text.rpartition("x")[2]) if "x" in text else 1


def like(x: Expr, value: float) -> Expr:
    """A number in as many lanes as x has."""
    n = lanes_of(x)
    return T.float32(value) if n == 1 else spread(value, n)


def _type(x: Expr, base: str) -> str:
    n = lanes_of(x)
    return base if n == 1 else f"{base}x{n}"


def mul(a: Expr, b: Expr) -> Expr:
    """a * b, rounded: never part of a fused operation."""
    return bind(intrinsic(_type(a, "float32"), "llvm.arithmetic.fence", a * b))


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    """a * b + c, rounded once."""
    return bind(intrinsic(_type(a, "float32"), "llvm.fma", a, b, c))


def larger(a: Expr, b: Expr) -> Expr:
    """a > b ? a : b, lane by lane."""
    return bind(T.Select(a > b, a, b))


def smaller(a: Expr, b: Expr) -> Expr:
    """a < b ? a : b, lane by lane."""
    return bind(T.Select(a < b, a, b))


def absolute(x: Expr) -> Expr:
    return bind(intrinsic(_type(x, "float32"), "llvm.fabs", x))


def rounded(x: Expr) -> Expr:
    """To the nearest integer, ties to even; of values that an int32 holds."""
    nearest = intrinsic(_type(x, "float32"), "llvm.nearbyint", x)
    return bind(T.Cast(_type(x, "int32"), nearest))


def exp(x: Expr) -> Expr:
    """e^x: 2^n * p(r), r = x - n ln 2."""
    x = smaller(larger(x, like(x, -87.0)), like(x, 88.0))
    n = rounded(mul(x, like(x, 1.44269504088896341)))
    whole = bind(T.Cast(_type(x, "float32"), n))
    r = fma(whole, like(x, 2.12194440e-4), fma(whole, like(x, -0.693359375), x))
    p = like(x, 1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, like(x, c))
    p = bind(fma(p, mul(r, r), r) + like(x, 1.0))
    bias, shift = (T.int32(127), T.int32(23)) if lanes_of(x) == 1 else (
        T.broadcast(T.int32(127), lanes_of(x)), T.broadcast(T.int32(23), lanes_of(x)))  # fmt: skip
    return mul(p, reinterpret(_type(x, "float32"), (n + bias) << shift))


def tanh(x: Expr) -> Expr:
    """1 - 2 / (e^2x + 1)."""
    e = exp(bind(x + x))
    return bind(like(x, 1.0) - bind(like(x, 2.0) / (e + like(x, 1.0))))


def sigmoid(x: Expr) -> Expr:
    return bind(like(x, 1.0) / (like(x, 1.0) + exp(bind(like(x, 0.0) - x))))


def softplus(x: Expr) -> Expr:
    """log(1 + e^x): the larger of x and 0, and log(1 + e^-|x|)."""
    return bind(larger(x, like(x, 0.0)) + _log1p(exp(bind(like(x, 0.0) - absolute(x)))))


def _log1p(u: Expr) -> Expr:
    """log(1 + u) of u in 0..1: twice the series of atanh(z), z = u / (2 + u)."""
    z = bind(u / bind(like(u, 2.0) + u))
    w = mul(z, z)
    p = like(u, 1.0 / 17.0)
    for n in (15, 13, 11, 9, 7, 5, 3, 1):
        p = fma(p, w, like(u, 1.0 / n))
    return mul(bind(z + z), p)


def _silu(x: Expr) -> Expr:
    return bind(x / bind(like(x, 1.0) + exp(bind(like(x, 0.0) - x))))


def _gelu(x: Expr) -> Expr:
    z = smaller(like(x, 5.5), absolute(x))
    u = fma(mul(z, z), like(x, 0.0661157025), like(x, -1.0))
    p = like(x, ERF[0])
    for c in ERF[1:]:
        p = fma(p, u, like(x, c))
    erf = smaller(like(x, 1.0), mul(z, p))
    return mul(like(x, 0.5), fma(absolute(x), erf, x))


def _gelu_tanh(x: Expr) -> Expr:
    cube = mul(mul(x, x), x)
    t = tanh(mul(like(x, 0.7978845608028654), fma(like(x, 0.044715), cube, x)))
    return mul(mul(like(x, 0.5), x), bind(like(x, 1.0) + t))


def _relu(x: Expr) -> Expr:
    return larger(like(x, 0.0), x)


ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}


# ---- across lanes ------------------------------------------------------------------------------------


def pick(x: Expr, y: Expr | None, indices: Sequence[int]) -> Expr:
    """Lanes of x, or of x and y side by side."""
    return bind(T.Shuffle([x] if y is None else [x, y], [T.int32(i) for i in indices]))


def total(x: Expr) -> Expr:
    """The sum of sixteen lanes: halves added to halves."""
    n = LANES
    while n > 1:
        n //= 2
        low, high = pick(x, None, range(n)), pick(x, None, range(n, 2 * n))
        x = bind(low + high)
    return x


def totals(rows: Sequence[Expr]) -> Expr:
    """Lane i is total(rows[i]), of sixteen."""
    values, width = list(rows), LANES
    while len(values) > 1:
        half = width // 2
        low = [i for i in range(2 * LANES) if i % width < half]
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [bind(pick(x, y, low) + pick(x, y, [i + half for i in low])) for x, y in pairs]
        width = half
    return values[0]


def most(x: Expr) -> Expr:
    """The largest of sixteen lanes."""
    n = LANES
    while n > 1:
        n //= 2
        x = larger(pick(x, None, range(n)), pick(x, None, range(n, 2 * n)))
    return x
