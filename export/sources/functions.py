"""Functions of one float in the contract's polynomials (`kernels/cpu/simd/wide.h`)."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.words import Expr, absolute, as_float, bind, f32, larger, smaller

_EXP = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# erf(z / sqrt 2) / z by the powers of u = 2 (z / 5.5)^2 - 1, the highest first.
ERF = (
    -0.00182441855,
    0.00518571865,
    -0.00503447885,
    0.00494790031,
    -0.0125868116,
    0.0228529368,
    -0.0307461657,
    0.0400581807,
    -0.0518837906,
    0.0642273426,
    -0.0776093975,
    0.0954712108,
    -0.12834394,
    0.25710389,
)
_ONE = 1.0


def exp(d: Dialect, x: Expr) -> Expr:
    """e^x: 2^n * p(r), r = x - n ln 2."""
    x = smaller(larger(x, f32(-87.0)), f32(88.0))
    n = d.rounded(d.mul(x, f32(1.44269504088896341)))
    whole = bind(T.Cast("float32", n))
    r = d.fma(whole, f32(2.12194440e-4), d.fma(whole, f32(-0.693359375), x))
    p = f32(1.9875691500e-4)
    for c in _EXP:
        p = d.fma(p, r, f32(c))
    p = bind(d.fma(p, d.mul(r, r), r) + f32(_ONE))
    return d.mul(p, as_float(bind((n + T.int32(127)) << T.int32(23))))


def softplus(d: Dialect, x: Expr) -> Expr:
    """log(1 + e^x)."""
    return bind(larger(x, f32(0.0)) + _log1p(d, exp(d, bind(f32(0.0) - absolute(x)))))


def _log1p(d: Dialect, u: Expr) -> Expr:
    """log(1 + u) of u in 0..1: twice the series of atanh(z), z = u / (2 + u)."""
    z = d.divide(u, bind(f32(2.0) + u))
    w, p = d.mul(z, z), f32(1 / 17)
    for n in (15, 13, 11, 9, 7, 5, 3, 1):
        p = d.fma(p, w, f32(1 / n))
    return d.mul(bind(z + z), p)


def tanh(d: Dialect, x: Expr) -> Expr:
    """1 - 2 / (e^2x + 1)."""
    return bind(f32(_ONE) - d.divide(f32(2.0), bind(exp(d, bind(x + x)) + f32(_ONE))))


def softcap(d: Dialect, x: Expr, cap: float) -> Expr:
    """cap * tanh(x / cap); x where there is no cap."""
    return d.mul(f32(cap), tanh(d, d.divide(x, f32(cap)))) if cap > 0 else x


def _silu(d: Dialect, x: Expr) -> Expr:
    return d.divide(x, bind(f32(_ONE) + exp(d, bind(f32(0.0) - x))))


def _gelu(d: Dialect, x: Expr) -> Expr:
    z = smaller(f32(5.5), absolute(x))
    u = d.fma(d.mul(z, z), f32(0.0661157025), f32(-1.0))
    p = f32(ERF[0])
    for c in ERF[1:]:
        p = d.fma(p, u, f32(c))
    erf = smaller(f32(_ONE), d.mul(z, p))
    return d.mul(f32(0.5), d.fma(absolute(x), erf, x))


def _gelu_tanh(d: Dialect, x: Expr) -> Expr:
    cube = d.mul(d.mul(x, x), x)
    t = tanh(d, d.mul(f32(0.7978845608028654), d.fma(f32(0.044715), cube, x)))
    return d.mul(d.mul(f32(0.5), x), bind(f32(_ONE) + t))


def _relu(d: Dialect, x: Expr) -> Expr:
    del d
    return larger(f32(0.0), x)


ACTIVATIONS: dict[str, Callable[[Dialect, Expr], Expr]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}
