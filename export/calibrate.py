"""Static scales for int8 and int4 caches, channel by channel, from the model's keys and values on a calibration text.

ONNX Runtime's attention needs one constant scale per channel. Candidates are fractions of the channel's largest
magnitude; the one with the least error on the calibration text is used. int8 keeps a margin, because it has range to
spare and other texts have larger extremes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
_MARGIN = 1.15
_SHRINK = np.linspace(1.0, 0.5, 11)


def kv_scales(kept: Array, kv: str) -> Array:
    """kept [2, n_kv_heads, n, head_dim], keys and values of an attention block (a latent one has one part) -> scales
    [2, n_kv_heads, head_dim]."""
    peak = np.abs(kept).max(axis=2)
    # A channel that is always zero may be any scale; 1 keeps it zero.
    peak = np.where(peak > 0, peak, 1.0)
    if kv == "int8":
        return (peak * _MARGIN / 127).astype(np.float32)
    losses = np.stack([_loss(kept, peak * shrink / 7) for shrink in _SHRINK])
    best = _SHRINK[losses.argmin(axis=0)]
    return (peak * best / 7).astype(np.float32)


def _loss(kept: Array, scales: Array) -> Array:
    """Squared error of int4 rounding, summed over tokens: [2, n_kv_heads, head_dim]."""
    scales = scales[:, :, None]
    rounded = np.clip(np.rint(kept / scales), -8, 7) * scales
    loss: Array = np.square(rounded - kept).sum(axis=2)
    return loss
