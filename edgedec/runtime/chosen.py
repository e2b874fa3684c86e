"""Why a runtime was chosen, where `--device auto` chose it: for people to read."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from edgedec.runtime.call import Runtime

_choices: WeakKeyDictionary[Runtime, str] = WeakKeyDictionary()


def note_choice(runtime: Runtime, why: str) -> None:
    _choices[runtime] = why


def why_chosen(runtime: Runtime) -> str:
    """In one line; "" where it was named, or is what is always taken."""
    return _choices.get(runtime, "")
