"""This host's limits as the native library measures them: bytes read and multiply-adds a second."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_LEAST, _MOST = 1 << 20, 1 << 30


class Ceilings:
    """The best of the probes so far, by `threads` threads. `reason`: why there are none.

    `size`: the bytes that a call reads; what fits a cache is read from there by a call, and by a probe too.
    """

    def __init__(self, threads: int, size: int) -> None:
        self.read_gb_s: float | None = None
        self.int8_gmac_s: float | None = None
        self.reason: str | None = None
        self._threads, self._size = threads, min(max(size, _LEAST), _MOST)
        self._cpu: Any = import_module("edgedec.kernels.cpu")
        try:
            self._cpu.library()
        except (ImportError, AttributeError) as error:
            self.reason = f"no native library to probe with: {error}"

    def probe(self) -> None:
        """Measure both limits once more. A probe that cannot run returns 0."""
        if self.reason is None:
            self.read_gb_s = max(self.read_gb_s or 0.0, self._cpu.probe_read(self._size, self._threads)) or None
            self.int8_gmac_s = max(self.int8_gmac_s or 0.0, self._cpu.probe_int8(self._threads)) or None

    def to_json(self) -> dict[str, Any]:
        return {"read_gb_s": self.read_gb_s, "int8_gmac_s": self.int8_gmac_s, "reason": self.reason}
