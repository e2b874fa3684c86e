"""The tolerance of a runtime's outputs against float32 sums during its checks, as the runtime declares it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_rounding: ContextVar[float] = ContextVar("rounding", default=0.0)


@contextmanager
def rounded(by: float) -> Iterator[None]:
    """A context in which arrays may differ by this share of their spread."""
    token = _rounding.set(by)
    try:
        yield
    finally:
        _rounding.reset(token)


def allowed(within: float) -> float:
    """The tolerance: the check's, or the runtime's declared one if that is larger."""
    return max(within, _rounding.get())
