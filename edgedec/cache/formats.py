"""Keys and values in the formats of caches in plain arrays: numbers, or q with a static scale a channel.

value = q * scale; int4: two channels a byte, the low nibble first, stored q + 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def store(x: Array, kv: str, scales: Array | None) -> NDArray[Any]:
    """x [n_kv_heads, n, head_dim] in the cache's format. scales [n_kv_heads, 1, head_dim]: of a quantized one."""
    if scales is None:
        return x.astype(np.float16 if kv == "f16" else np.float32)
    q = np.rint(x / scales)
    if kv == "int8":
        return np.clip(q, -128, 127).astype(np.int8)
    stored = (np.clip(q, -8, 7) + 8).astype(np.uint8)
    return stored[..., 0::2] | stored[..., 1::2] << 4


def load(stored: NDArray[Any], kv: str, scales: Array | None) -> Array:
    """The inverse of `store`."""
    if scales is None:
        return stored.astype(np.float32)
    if kv == "int4":
        pairs = np.stack([stored & 15, stored >> 4], axis=-1)
        stored = pairs.reshape(*stored.shape[:2], -1).astype(np.int8) - 8
    return stored * scales
