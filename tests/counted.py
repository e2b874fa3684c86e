"""A runtime that counts the rows it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edgedec.runtime import Call, CallResult


class CountedRows:
    """Passes everything on to another runtime."""

    def __init__(self, runtime: Any) -> None:
        self._runtime, self.rows = runtime, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    @property
    def capabilities(self) -> Any:
        return replace(self._runtime.capabilities, steps=None)

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        self.rows += sum(call.rows.count for call in calls)
        found: list[CallResult] = self._runtime.forward(calls)
        return found
