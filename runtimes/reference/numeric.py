"""The arithmetic that several kinds of blocks share, in float32, written to be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf

import numpy as np
from numpy.typing import NDArray

from edgedec.spec import ModelSpec, Norm

Array = NDArray[np.float32]
# Rows start..stop of the named weight, as float32.
Weights = Callable[[str, int, int], Array]

_erf = np.vectorize(erf, otypes=[np.float64])


@dataclass(frozen=True)
class BlockWeights:
    """The weights of one block by their names in it; `adapter` may add low-rank weights to a matrix."""

    spec: ModelSpec
    number: int
    weights: Weights
    adapter: Callable[[str, Array, Array], Array] | None = None

    def get(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows start..stop of a tensor (all by default)."""
        full = f"blocks.{self.number}.{name}"
        if stop is None:
            stop = self.spec.shapes[full][0]
        return self.weights(full, start, stop)

    def norm(self, x: Array, kind: Norm, name: str = "norm") -> Array:
        """x [n, hidden] normed by the tensors `name`."""
        if kind == "none":
            return x
        bias = self.get(f"{name}_bias") if kind == "layer" else None
        return normed(x, kind, self.get(name), bias, self.spec.norm_eps)

    def linear(self, x: Array, name: str, bias: bool = False) -> Array:
        """x [n, in] times a matrix, plus its bias."""
        y = x @ self.get(name).T
        if self.adapter is not None:
            y = self.adapter(f"blocks.{self.number}.{name}", x, y)
        return y + self.get(f"{name}_bias") if bias else y

    def watch(self, name: str, expert: int, x: Array) -> None:
        """Show what an expert of a stacked matrix multiplies to an adapter that keeps statistics; others have none of
        this name."""
        if self.adapter is not None:
            self.adapter(expert_name(f"blocks.{self.number}.{name}", expert), x, x)


def expert_name(matrix: str, expert: int) -> str:
    """One expert's rows of a stacked matrix, where the inputs of matrices are told apart."""
    return f"{matrix}[{expert}]"


def normed(x: Array, kind: Norm, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """RMSNorm, LayerNorm, the weights alone or no norm over the last axis."""
    if weight is None or kind == "none":
        return x
    if kind == "scale":
        return x * weight
    if kind == "rms":
        return rms_norm(x, weight, eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + np.float32(eps)) * weight
    return scaled if bias is None else scaled + bias


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., n] over its root mean square, times weight [n]."""
    scale = np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
    return x / scale * weight


def activation(x: Array, kind: str, own: Array | None = None) -> Array:
    """The activation of each value; own: the four numbers of xielu."""
    match kind:
        case "relu2":
            return np.square(np.maximum(x, np.float32(0)))
        case "xielu":
            assert own is not None
            return xielu(x, own)
        case "silu":
            return x / (1 + np.exp(-np.clip(x, -80, None)))
        case "relu":
            return np.maximum(x, np.float32(0))
        case "gelu":
            return (0.5 * x * (1 + _erf(x / np.sqrt(2)))).astype(np.float32)
        case _:
            return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))


def xielu(x: Array, own: Array) -> Array:
    """xIELU (arXiv:2411.13010): b x + p x^2 above 0, b x + n (exp(min(x, eps)) - 1 - x) below. own: the numbers whose
    softplus is p, and n less b; b; eps."""
    p, n, b, eps = own
    p, n = np.log1p(np.exp(p)), b + np.log1p(np.exp(n))
    return np.where(x > 0, p * x * x + b * x, (np.expm1(np.minimum(x, eps)) - x) * n + b * x).astype(np.float32)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return (1 / (1 + np.exp(-np.clip(x, -80, None)))).astype(np.float32)


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
