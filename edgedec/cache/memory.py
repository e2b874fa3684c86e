"""Bytes that a cache of so many tokens takes, and bytes that are free on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from edgedec.cache.base import kv_bytes_per_token
from edgedec.spec import Attention, ModelSpec, Opaque

# int4 heads of so few values are kept as int8 (kernels/cpu/attention_block.cpp).
NARROW, _GROUP = 16, 16
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def cache_bytes(spec: ModelSpec, kv: str, tokens: int, page_slots: int = 0) -> int:
    """Bytes of a cache that holds so many tokens. page_slots: of an engine with pages, whose rows carry their own
    scales (`kernels/cpu/kv.h`); 0: of plain arrays."""
    states = sum(
        4 * (block.conv_dim * (block.conv_size - 1) + block.n_heads * block.head_dim * block.state_size)
        for block in spec.recurrent.values()
    )
    if not page_slots:
        return states + tokens * kv_bytes_per_token(spec, kv)
    slots = -(-tokens // page_slots) * page_slots
    blocks = [block for block in spec.blocks if isinstance(block, Attention | Opaque)]
    return states + slots * sum(block.kv_parts * block.n_kv_heads * row_bytes(block.head_dim, kv) for block in blocks)


def row_bytes(head_dim: int, kv: str) -> int:
    """Bytes of one key or value of a head in a page.

    int4, 64 values -> 32 bytes of nibbles, 4 groups of a scale and a least value (4 bytes each): 48
    """
    if kv == "int4" and head_dim <= NARROW:
        kv = "int8"
    if kv == "int4":
        return _words(-(-head_dim // 2)) + scale_bytes(head_dim)
    if kv == "int8":
        return _words(head_dim) + 4
    return head_dim * 4 if kv == "f32" else _words(2 * head_dim)


def scale_bytes(head_dim: int) -> int:
    """Bytes of the scales and least values of an int4 row."""
    return 4 * -(-head_dim // _GROUP)


def _words(n: int) -> int:
    return -(-n // 4) * 4


def available_memory() -> int | None:
    """Bytes that a program can allocate now without swapping, within its control group; None if unknown."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    free = None if found is None else int(found[1]) * 1024
    limit = _group_room()
    return free if limit is None else limit if free is None else min(free, limit)


def _group_room() -> int | None:
    """The rest of the control group's limit; pages of files count as free."""
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        files = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        return None if most == "max" else int(most) - int(used) + (int(files[1]) if files else 0)
    except (OSError, ValueError):
        return None


def tokens_that_fit(spec: ModelSpec, kv: str, page_slots: int = 0) -> int | None:
    """The number of tokens whose caches take three quarters of the free memory; None if that is unknown."""
    free, each = available_memory(), cache_bytes(spec, kv, page_slots or 1, page_slots) - cache_bytes(spec, kv, 0)
    return None if free is None or not each else free * 3 // 4 // each * (page_slots or 1)
