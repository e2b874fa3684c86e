"""For tests that watch every call of a native runtime: its generations then make their steps in Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def python_steps(runtime: Any) -> None:
    """From the next generation on, no step is made by the runtime itself."""
    runtime.capabilities = replace(runtime.capabilities, steps=None)
