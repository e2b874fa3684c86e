"""The check that a text's cache fits the machine's memory, before the text is read."""

from __future__ import annotations

from edgedec.cache import memory
from edgedec.cache.base import Cache
from edgedec.cache.memory import cache_bytes
from edgedec.errors import ContextFull
from edgedec.runtime.capabilities import Capabilities
from edgedec.spec import KV_FORMATS

# A smaller cache is allocated without reading how much memory is free.
_SMALL = 64 << 20


def check_memory(cache: Cache, tokens: int, can: Capabilities, held: int | None = None) -> None:
    """ContextFull if the cache of a text of up to `tokens` tokens needs more memory than is free. can: the engine's
    capabilities; a device's memory is not checked; held: the most tokens that a policy keeps at a time, None: no
    policy."""
    if can.device != "cpu":
        return
    page_slots, formats = can.page_slots, can.kv_formats
    spec, kv = cache.spec, cache.kv
    most = tokens if held is None else held
    need = cache_bytes(spec, kv, most, page_slots)
    free = None if need < _SMALL else memory.available_memory()
    if free is None or need - cache.nbytes <= free:
        return
    smaller = [other for other in KV_FORMATS[KV_FORMATS.index(kv) + 1 :] if other in formats]
    fits = [f"{other} {_size(cache_bytes(spec, other, most, page_slots))}" for other in smaller]
    instead = f", or a smaller cache format (--kv: {', '.join(fits)})" if fits else ""
    pruned = ", or keep only a part of the text (--cache streaming, lossy)"
    instead += pruned if held is None and can.drop and spec.attention else ""
    raise ContextFull(
        f"{tokens} tokens take {_size(need)} of cache in {kv}, and {_size(free)} of memory are free: shorten the "
        f"text, take a smaller context (--ctx-size){instead}"
    )


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.0f} MiB"
