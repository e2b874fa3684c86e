"""Settings of the C library's memory allocator for the server (glibc only).

Each thread allocates from one of up to eight pools a core, and threads come and go with models and requests: memory
freed in one pool is not available to the others, so a server's memory grows although its use does not.
"""

from __future__ import annotations

import ctypes
import os

_POOLS, _M_ARENA_MAX = 2, -8


def share_pools() -> None:
    """Limit all threads of this process to two pools, unless MALLOC_ARENA_MAX is set."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        _call("mallopt", _M_ARENA_MAX, _POOLS)


def release_memory() -> None:
    """Return freed memory to the system: otherwise an unloaded model's memory is kept in fragments that are too small
    for the next one."""
    _call("malloc_trim", 0)


def _call(function: str, *numbers: int) -> None:
    try:
        getattr(ctypes.CDLL(None), function)(*numbers)
    except (AttributeError, OSError, TypeError):
        pass
