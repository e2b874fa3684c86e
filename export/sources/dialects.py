"""The languages of kernels: their names of operations that TVM lacks."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.words import Expr, bind, f32, i32, u32


@dataclass(frozen=True)
class Dialect:
    """kind: TVM's name of the code generator. head: lines before its text. begins:
    how a kernel's own text begins. fma, nearest, root: functions of floats that
    round once."""

    name: str
    kind: str
    suffix: str
    head: str
    begins: str
    fused: str = "fma"
    nearest: str = "rint"
    square_root: str = "sqrt"

    def fma(self, a: Expr, b: Expr, c: Expr) -> Expr:
        """a * b + c, rounded once."""
        return bind(T.call_pure_extern("float32", self.fused, a, b, c))

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b, rounded: never part of a fused operation."""
        return bind(a * b)

    def rounded(self, x: Expr) -> Expr:
        """The nearest integer, of ties the even one; of values that an int32 holds."""
        return bind(T.Cast("int32", bind(T.call_pure_extern("float32", self.nearest, x))))

    def divide(self, a: Expr, b: Expr) -> Expr:
        """a / b to nearest: drivers' own division may be off by an ulp or two, which one remainder mends."""
        q = bind(a / b)
        r = self.fma(bind(f32(0.0) - q), b, a)
        better = self.fma(r, bind(f32(1.0) / b), q)
        finite = T.And(bind(r - r) == f32(0.0), bind(better - better) == f32(0.0))
        return bind(T.Select(finite, better, q))

    def root(self, x: Expr) -> Expr:
        """The square root of what is above 0, to nearest."""
        y = bind(T.call_pure_extern("float32", self.square_root, x))
        rest = self.fma(bind(f32(0.0) - y), y, x)
        better = self.fma(rest, bind(f32(0.5) / y), y)
        return bind(T.Select(T.And(y > f32(0.0), x < f32(3e38)), better, y))

    def dot4(self, total: Expr, weights: Expr, inputs: Expr) -> Expr:
        """total + the products of four signed bytes each of two words."""
        for shift in (24, 16, 8, 0):
            pair = [(i32(word) << T.int32(shift)) >> T.int32(24) for word in (weights, inputs)]
            total = total + pair[0] * pair[1]
        return bind(total)


class _Cuda(Dialect):
    def mul(self, a: Expr, b: Expr) -> Expr:
        return bind(T.call_pure_extern("float32", "__fmul_rn", a, b))

    def divide(self, a: Expr, b: Expr) -> Expr:
        return bind(T.call_pure_extern("float32", "__fdiv_rn", a, b))

    def root(self, x: Expr) -> Expr:
        return bind(T.call_pure_extern("float32", "__fsqrt_rn", x))

    def dot4(self, total: Expr, weights: Expr, inputs: Expr) -> Expr:
        return bind(T.call_pure_extern("int32", "__dp4a", i32(weights), i32(inputs), total))


class _Wgsl(Dialect):
    def dot4(self, total: Expr, weights: Expr, inputs: Expr) -> Expr:
        return bind(total + T.call_pure_extern("int32", "dot4I8Packed", u32(weights), u32(inputs)))


_METAL = "#include <metal_stdlib>\nusing namespace metal;\n#pragma clang fp contract(off)\n"
DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("opencl", "opencl", "cl", "#pragma OPENCL FP_CONTRACT OFF\n", "__kernel"),
        Dialect("metal", "metal", "metal", _METAL, "kernel void"),
        _Cuda("cuda", "cuda", "cu", "#define uint unsigned int\n", 'extern "C"', "__fmaf_rn", "rintf"),
        _Wgsl("webgpu", "webgpu", "wgsl", "", "@group", "fma", "round"),
    )
}
