"""The arithmetic of an encoder's host side, in float32. Every function treats a row or a text by itself, so a text has
the same bytes alone and among others."""

from __future__ import annotations

from math import erf

import numpy as np
from numpy.typing import NDArray

from edgedec.spec import Norm
from edgedec.spec.encoder import Squash

Array = NDArray[np.float32]
_erf = np.vectorize(erf, otypes=[np.float64])


def normed(x: Array, kind: Norm, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """RMSNorm, LayerNorm or no norm over the last axis."""
    if kind == "none" or weight is None:
        return x
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    scaled = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps)) * weight
    return scaled if bias is None else scaled + bias


def convolved(x: Array, weight: Array, bias: Array, groups: int) -> Array:
    """x [n, channels], each row with its neighbours on both sides through weight [channels * channels / groups, size];
    beyond the text all is zero."""
    n, (channels, size) = len(x), (x.shape[1], weight.shape[1])
    beyond = ((size // 2, size // 2), (0, 0))
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, beyond), size, axis=0)
    of_groups = seen.reshape(n, groups, -1).transpose(1, 0, 2)
    matrices = weight.reshape(groups, channels // groups, -1).transpose(0, 2, 1)
    return (of_groups @ matrices).transpose(1, 0, 2).reshape(n, channels) + bias


def squashed(x: Array, kind: Squash) -> Array:
    """An activation of each value, or a softmax over the last axis."""
    match kind:
        case "none":
            return x
        case "tanh":
            return np.tanh(x)
        case "relu":
            return np.maximum(x, np.float32(0))
        case "gelu":
            return (0.5 * x * (1 + _erf(x / np.sqrt(2)))).astype(np.float32)
        case "gelu_tanh":
            return 0.5 * x * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))
        case "softmax":
            e = np.exp(x - x.max(axis=-1, keepdims=True))
            return e / e.sum(axis=-1, keepdims=True)
        case "silu":
            return x * _sigmoid(x)
        case "sigmoid":
            return _sigmoid(x)


def unit(x: Array) -> Array:
    """Vectors of length 1; a vector of zeros stays."""
    length = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
    return (x / np.maximum(length, np.float32(1e-12))).astype(np.float32)


def _sigmoid(x: Array) -> Array:
    return (1 / (1 + np.exp(-np.clip(x, -80, None)))).astype(np.float32)
