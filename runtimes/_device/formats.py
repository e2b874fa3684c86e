"""The format of a block's keys and values, and the bytes of one row (`kernels/cpu/kv.h`)."""

from __future__ import annotations

from edgedec.kernels.device import structs
from edgedec.spec import Attention

# Heads with fewer values than this have no int4 cache, as in the native engine.
_NARROW_HEAD = 16
_SCALE_GROUP = 16


def kv_format(block: Attention, kv: str) -> int:
    """The format in which a block's keys and values are kept."""
    narrow = kv == "int4" and block.head_dim <= _NARROW_HEAD
    return structs.FORMATS["int8" if narrow else kv]


def row_bytes(dim: int, fmt: int) -> int:
    """Bytes of one key or value of a head."""
    match fmt:
        case 1:
            return 4 * dim
        case 2:
            return -(-2 * dim // 4) * 4
        case 3:
            return -(-dim // 4) * 4 + 4
        case _:
            return -(-((dim + 1) // 2) // 4) * 4 + 4 * -(-dim // _SCALE_GROUP)
