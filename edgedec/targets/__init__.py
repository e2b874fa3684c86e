"""Targets by file: each file here has `TARGETS`, those of one runtime or program.

`edgedec targets` lists them, and docs/devices.md has a table of them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from edgedec.targets.target import Target, Tried, lacking_packages

__all__ = ["Target", "Tried", "all_targets", "lacking_packages"]

_HELPERS = {"target"}


def all_targets() -> list[Target]:
    """The targets of all files, by name; those that need no files first."""
    names = sorted(file.name for file in iter_modules(__path__) if file.name not in _HELPERS)
    found = [target for name in names for target in import_module(f"{__name__}.{name}").TARGETS]
    return sorted(found, key=lambda target: (target.add, target.name))
