"""A limit of what ONNX Runtime may take for the values of graphs, checked before each allocation.

A graph of a few bytes may make a value of any size. ONNX Runtime's allocator for a whole process has a limit; a session
that uses it fails with one line where a value would exceed it. The limit is one for all sessions of the process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from edgedec.cache.memory import available_memory

# Where the system does not say what is free.
_UNKNOWN = 4 << 30
_LEAST = 1 << 30
_FEW_ROWS = 16
_SHRINK = "memory.enable_memory_arena_shrinkage"


def limit_values(options: Any) -> None:
    """Let a session with these options take its values from the limited allocator."""
    _limited()
    options.add_session_config_entry("session.use_env_allocators", "1")


def returning(rows: int | None = None) -> Any:
    """Options of a run after which unused memory goes back to the system, since an allocator keeps what it once had;
    None for a call of few rows, which takes little, and to which that would add a tenth of its time."""
    return None if rows is not None and rows <= _FEW_ROWS else _returning()


@cache
def _returning() -> Any:
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry(_SHRINK, "cpu:0")
    return options


@cache
def _limited() -> int:
    """Make the allocator, three quarters of what is free now: its bytes at most."""
    import onnxruntime as ort

    most = max(_LEAST, (available_memory() or _UNKNOWN) * 3 // 4)
    where = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    # 1: exactly what is requested, not the next power of two.
    ort.create_and_register_allocator(where, ort.OrtArenaCfg({"max_mem": most, "arena_extend_strategy": 1}))
    return most
