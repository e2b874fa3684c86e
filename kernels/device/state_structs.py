"""The structs of kernels that keep states of fixed size, as those in `structs.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

_ssm, _advance = Struct("@8P8i2f"), Struct("@4P6i")
_conv, _delta = Struct("@5P4i"), Struct("@9P12i5fi")


def ssm(
    step: int, projected: int, vectors: Sequence[int], y: int, heads: int, head_dim: int, state_size: int, groups: int,
    conv_size: int, slot: int, width: int, dt_min: float, dt_max: float,
) -> bytes:  # fmt: skip
    """vectors: the convolution's weights and bias, dt's bias, a, d."""
    numbers = heads, head_dim, state_size, groups, conv_size, slot, width, 0
    return _ssm.pack(step, projected, *vectors, y, *numbers, dt_min, dt_max)


def advance(
    source: int, rows: int, to: int, path: int, heads: int, head_dim: int, state_size: int, groups: int, n: int,
    decays: int = 0,
) -> bytes:  # fmt: skip
    """decays: of a head of the delta rule."""
    return _advance.pack(source, rows, to, path, heads, head_dim, state_size, groups, n, decays)


def conv(step: int, projected: int, weights: int, bias: int, y: int, channels: int, conv_size: int, slot: int) -> bytes:
    return _conv.pack(step, projected, weights, bias, y, channels, conv_size, slot, 0)


@dataclass(frozen=True)
class DeltaPlaces:
    """Where the inputs of a delta rule lie: addresses, strides of rows; `beta`: its place in a row of `projected`."""

    projected: int
    width: int
    beta: int
    z: int
    z_stride: int
    g: int
    g_stride: int


def delta(
    step: int, at: DeltaPlaces, vectors: Sequence[int], y: int, sizes: Sequence[int], sigmoid: bool,
    factors: Sequence[float],
) -> bytes:  # fmt: skip
    """vectors: the convolution's weights, dt's bias, a, the norm's weight; sizes: heads, head_dim, key_dim, groups,
    conv_size, slot, decays of a head; factors: beta_scale, eps, near, key_scale, query_scale."""
    *known, decays = sizes
    numbers = *known, at.width, decays, at.beta, at.z_stride, at.g_stride, sigmoid
    return _delta.pack(step, at.projected, at.z, at.g, *vectors, y, *numbers, *factors, 0)
