"""KV caches in host memory, prefix sharing, saved sessions."""
