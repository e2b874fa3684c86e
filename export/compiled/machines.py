"""The processors that libraries are compiled for: compiler options, and how each multiplies bytes.

Sums of integers are exact in any order, so each machine takes the instructions that it has. A line of weights is 64
bytes, four of each of 16 outputs; it is worked on in pieces of `width` outputs, one native vector each.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from edgedec.export.compiled.lanes import Expr, bind, intrinsic, reinterpret


@dataclass(frozen=True)
class Processor:
    """triple, cpu, features: LLVM's names. width: outputs of a native vector. offset8: the offset of int8 weights in
    products; zero_bytes: zero points may be added to nibbles before products. linker: commands that can link for it,
    the first that is there. by_twos: two rows are multiplied by two outputs at once."""

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    width: int
    linker: tuple[str, ...]
    offset8: int = 0
    zero_bytes: bool = False
    by_twos: bool = False

    def ready4(self, words: Expr, shifted: Expr | None) -> tuple[Expr, ...]:
        """A line of nibbles: the low ones and the high ones as bytes, `shifted` added to each."""
        mask, four = T.broadcast(T.int32(0x0F0F0F0F), self.width), T.broadcast(T.int32(4), self.width)
        pair = bind(words & mask), bind((words >> four) & mask)
        return pair if shifted is None else tuple(self._bytes(part) + shifted for part in pair)

    def ready8(self, words: Expr) -> tuple[Expr, ...]:
        """A line of bytes."""
        return (words,)

    def begin(self, offset: Expr, nibbles: bool) -> Expr:
        """The initial sums of a step."""
        del nibbles
        return bind(T.broadcast(offset, self.width))

    def dot4(self, sums: Expr, nibbles: Expr, x: Expr) -> Expr:
        """Sums, and bytes of weights by four inputs: 0 2 4 6 of eight for low nibbles, 1 3 5 7 for high ones."""
        raise NotImplementedError

    def dot8(self, sums: Expr, ready: tuple[Expr, ...], x: Expr) -> Expr:
        """Sums, and a line of bytes by four inputs."""
        raise NotImplementedError

    def end(self, sums: Expr, offset: Expr, nibbles: bool) -> Expr:
        """int32 sums; `offset` is their initial value."""
        del offset, nibbles
        return sums

    def two_by_two(self, sums: Expr, rows: Expr, outputs: Expr) -> Expr:
        """Sums [2 rows, 2 outputs], and eight bytes of each of two rows by eight of each of two outputs."""
        raise NotImplementedError

    def _bytes(self, words: Expr) -> Expr:
        return bind(reinterpret(f"int8x{4 * self.width}", words))

    def _spread(self, x: Expr) -> Expr:
        return self._bytes(T.broadcast(x, self.width))


class _Vnni(Processor):
    """AVX-512 VNNI: unsigned weights by signed inputs, into 32 bits."""

    def dot4(self, sums: Expr, nibbles: Expr, x: Expr) -> Expr:
        return self.dot8(sums, (nibbles,), x)

    def dot8(self, sums: Expr, ready: tuple[Expr, ...], x: Expr) -> Expr:
        w = self._bytes(ready[0])
        return bind(intrinsic("int32x16", "llvm.x86.avx512.vpdpbusd.512", sums, w, self._spread(x)))


class _Avx2(Processor):
    """AVX2: pairs into 16 bits, which hold a step of nibbles (at most 30480); int8 weights as sign and size."""

    def begin(self, offset: Expr, nibbles: bool) -> Expr:
        del offset
        return bind(T.broadcast(T.int16(0), 16) if nibbles else T.broadcast(T.int32(0), 8))

    def dot4(self, sums: Expr, nibbles: Expr, x: Expr) -> Expr:
        pairs = intrinsic("int16x16", "llvm.x86.avx2.pmadd.ub.sw", self._bytes(nibbles), self._spread(x))
        return bind(sums + pairs)

    def ready8(self, words: Expr) -> tuple[Expr, ...]:
        zero = T.broadcast(T.int8(0), 32)
        value = self._bytes(words ^ T.broadcast(T.int32(-0x7F7F7F80), 8))
        return value, bind(T.Select(value < zero, zero - value, value))

    def dot8(self, sums: Expr, ready: tuple[Expr, ...], x: Expr) -> Expr:
        value, size = ready
        signed = intrinsic("int8x32", "llvm.x86.avx2.psign.b", self._spread(x), value)
        pairs = intrinsic("int16x16", "llvm.x86.avx2.pmadd.ub.sw", size, signed)
        return bind(sums + self._wide(pairs))

    def end(self, sums: Expr, offset: Expr, nibbles: bool) -> Expr:
        return bind(self._wide(sums) + T.broadcast(offset, 8)) if nibbles else sums

    def _wide(self, pairs: Expr) -> Expr:
        return intrinsic("int32x8", "llvm.x86.avx2.pmadd.wd", pairs, T.broadcast(T.int16(1), 16))


class _DotProd(Processor):
    """ARM's sdot: signed by signed, into 32 bits."""

    def dot4(self, sums: Expr, nibbles: Expr, x: Expr) -> Expr:
        return self.dot8(sums, (nibbles,), x)

    def ready8(self, words: Expr) -> tuple[Expr, ...]:
        return (bind(words ^ T.broadcast(T.int32(-0x7F7F7F80), 4)),)

    def dot8(self, sums: Expr, ready: tuple[Expr, ...], x: Expr) -> Expr:
        return bind(intrinsic("int32x4", "llvm.aarch64.neon.sdot", sums, self._bytes(ready[0]), self._spread(x)))


class _Matrix(_DotProd):
    """ARM's smmla: two rows by two outputs, eight inputs of each."""

    def two_by_two(self, sums: Expr, rows: Expr, outputs: Expr) -> Expr:
        return bind(intrinsic("int32x4", "llvm.aarch64.neon.smmla", sums, self._bytes(rows), self._bytes(outputs)))


_ARM = ("+neon", "+dotprod", "+fullfp16")
_NATIVE, _LINUX = ("c++", "g++", "clang++"), ("aarch64-linux-gnu-g++",)
# Libraries for Android use no system library, so any linker for the processor works.
_ANDROID = (
    "aarch64-linux-android-clang++",
    "zig c++ -target aarch64-linux-android -nostdlib -Wl,-z,max-page-size=16384",
    "aarch64-linux-gnu-g++ -nostdlib -Wl,-z,max-page-size=16384",
)
MACHINES: dict[str, Processor] = {
    machine.name: machine
    for machine in (
        _Avx2("x86-64-v3", "x86_64-linux-gnu", "x86-64-v3", (), 8, _NATIVE),
        _Vnni("x86-64-v4", "x86_64-linux-gnu", "x86-64-v4", ("+avx512vnni",), 16, _NATIVE, 128, True),
        _DotProd("aarch64-linux", "aarch64-linux-gnu", "generic", _ARM, 4, _LINUX, 0, True),
        _Matrix("aarch64-linux-i8mm", "aarch64-linux-gnu", "generic", (*_ARM, "+i8mm"), 4, _LINUX, 0, True, True),
        _DotProd("aarch64-android", "aarch64-linux-android", "generic", _ARM, 4, _ANDROID, 0, True),
    )
}
