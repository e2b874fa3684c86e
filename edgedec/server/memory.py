"""What the C library keeps of a server's memory, where it lets itself be told (glibc).

Each thread allocates from one of up to eight pools a core, and threads come and go with models and requests: what one
pool has freed is of no use to the others, so a server's memory grows although what it uses does not.
"""

from __future__ import annotations

import ctypes
import os

_POOLS, _M_ARENA_MAX = 2, -8


def share_pools() -> None:
    """All threads of this process allocate from two pools, unless MALLOC_ARENA_MAX says how many."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        _call("mallopt", _M_ARENA_MAX, _POOLS)


def release_memory() -> None:
    """Give memory that was freed back to the system: an unloaded model's is kept otherwise, in pieces that the next one
    does not fit into."""
    _call("malloc_trim", 0)


def _call(function: str, *numbers: int) -> None:
    try:
        getattr(ctypes.CDLL(None), function)(*numbers)
    except (AttributeError, OSError, TypeError):
        pass
