"""The reason for the choice of `--device auto`, for display."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from edgedec.runtime.call import Runtime

_choices: WeakKeyDictionary[Runtime, str] = WeakKeyDictionary()


def note_choice(runtime: Runtime, why: str) -> None:
    _choices[runtime] = why


def why_chosen(runtime: Runtime) -> str:
    """The reason in one line; "" if the runtime was named, or is the default."""
    return _choices.get(runtime, "")
