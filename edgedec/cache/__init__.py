"""KV caches and recurrent states: the interface, caches in host memory, prefix sharing, saved sessions."""

from edgedec.cache.base import Cache, kv_bytes_per_token
from edgedec.cache.host import HostCache

__all__ = ["Cache", "HostCache", "kv_bytes_per_token"]
