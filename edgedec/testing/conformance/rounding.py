"""How far a runtime's outputs may be from float32 sums while its checks run: what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_rounding: ContextVar[float] = ContextVar("rounding", default=0.0)


@contextmanager
def rounded(by: float) -> Iterator[None]:
    """Inside, arrays may differ by so much of their spread."""
    token = _rounding.set(by)
    try:
        yield
    finally:
        _rounding.reset(token)


def allowed(within: float) -> float:
    """What may differ: what a check allows, or what the runtime declares if that is more."""
    return max(within, _rounding.get())
