"""A target: a machine or a compiler that can run a bundle, its requirements, and how far it was tested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

# native: on such hardware; emulated: for results, on a simulator or another processor; compiled: accepted by its
# compiler, never run; no: neither.
Tried = Literal["native", "emulated", "compiled", "no"]


def nothing_missing() -> str | None:
    """None: a target without requirements besides edgedec."""
    return None


@dataclass(frozen=True)
class Target:
    """name: as `--for` takes it. engine: what opens it (`--engine`; empty: it is opened elsewhere, as by a browser).
    about: one line. kinds, kv, trees: what it runs, as its runtime declares it. needs: what has to be installed, in
    words (empty: nothing). missing: why it cannot be run here, in one line; None if it can. unmade: why its files
    cannot be made here, where that is said. device: one that the engine is opened with (empty: its usual one). add:
    must files be added to a bundle?"""

    name: str
    engine: str
    about: str
    kinds: tuple[str, ...]
    kv: tuple[str, ...]
    tried: Tried
    needs: str = ""
    missing: Callable[[], str | None] = nothing_missing
    unmade: Callable[[], str | None] = nothing_missing
    trees: bool = True
    device: str = ""
    add: bool = False


@dataclass(frozen=True)
class Targets:
    """The targets that a file declares."""

    targets: tuple[Target, ...] = ()


def lacking_packages(*names: str) -> Callable[[], str | None]:
    """A `missing` that names the first package that cannot be found; nothing is imported."""

    def missing() -> str | None:
        gone = next((name for name in names if find_spec(name) is None), None)
        return None if gone is None else f"{gone} is not installed"

    return missing
