"""Targets: machines and compilers that a bundle can run on, and how far each was tried.

`edgedec targets` lists them, and docs/devices.md has a table of them.
"""

from __future__ import annotations

from edgedec.plugins import Family
from edgedec.targets._target import Target, Targets, Tried, lacking_packages

__all__ = ["FAMILY", "Target", "Tried", "all_targets", "lacking_packages"]

FAMILY = Family("edgedec.targets", "file of targets", facts=Targets)


def all_targets() -> list[Target]:
    """The targets of all files, by name; those that need no files first."""
    found = [target for facts in FAMILY.all_facts().values() for target in facts.targets]
    return sorted(found, key=lambda target: (target.add, target.name))
