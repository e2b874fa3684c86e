"""The state of a governor's drafters: saved, restored and forked, also in a file for later sessions of the same
bundle and drafters; and what the sessions of one thread share besides the drafters' tables: banks, calibrations and
records."""

from __future__ import annotations

import hashlib
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, cast

import numpy as np

from edgedec.decoding.draft import Drafter, State
from edgedec.errors import UsageError
from edgedec.runtime import Outputs
from edgedec.speculation.bank import AUTO, Bank, Experience, Terms
from edgedec.speculation.deferred import Openings
from edgedec.speculation.record import DrafterRecord
from edgedec.storage.files import cache_folder, replacing
from edgedec.trees.calibration import SharedCalibrations


@lru_cache(1024)
def joined(outputs: tuple[Outputs, ...]) -> Outputs:
    """The union of outputs; cached, because mostly the same drafters learn as at the call before."""
    return reduce(or_, outputs, Outputs())


@dataclass
class SharedLearning:
    """Not for two threads at once."""

    calibrations: SharedCalibrations = field(default_factory=SharedCalibrations)
    banks: dict[Terms, Bank] = field(default_factory=dict)
    experiences: dict[str, Experience] = field(default_factory=dict)

    def bank(self, terms: Terms = AUTO) -> Bank:
        """The bank of all texts with these terms."""
        return self.banks.setdefault(terms, Bank(terms))

    @cached_property
    def openings(self) -> Openings:
        """Of the texts with `auto`."""
        return Openings(self.bank(AUTO))

    def experience(self, name: str) -> Experience:
        """What the drafter of this name did in all texts."""
        return self.experiences.setdefault(name, Experience())


def share_calibrations(members: Sequence[DrafterRecord], shared: SharedLearning) -> None:
    """Share the calibrations, for other sessions to start from."""
    for member in members:
        shared.calibrations.add(member.name, member.calibration)


def counts_of(silent: Counter[str], sizes: Counter[int]) -> dict[str, Any]:
    """The calls without drafts, by reason, and the others by the size of their drafts, as JSON values."""
    by_size = {str(size): calls for size, calls in sorted(sizes.items())}
    return {"silent": silent.total(), "calls": dict(silent), "sizes": by_size}


def calibration_states(members: Sequence[DrafterRecord]) -> State:
    """The calibrations as arrays, by name."""
    return {f"governor.{member.name}": member.calibration.state() for member in members}


def table_states(members: Sequence[DrafterRecord]) -> State:
    """The drafters' learned states, by name."""
    return {f"{member.name}.{key}": array for member in members for key, array in member.drafter.state().items()}


def restore_all(members: Sequence[DrafterRecord], state: State) -> None:
    """Continue from the states of `calibration_states` and `table_states`."""
    parts: dict[str, State] = {}
    for key, array in state.items():
        name, _, rest = key.partition(".")
        parts.setdefault(name, {})[rest] = array
    for member in members:
        if member.name in parts:
            member.drafter.restore(parts[member.name])
        if member.name in parts.get("governor", {}):
            member.calibration.restore(parts["governor"][member.name])


def inherit_all(members: Sequence[DrafterRecord], others: Sequence[DrafterRecord], tables: bool) -> None:
    """Continue from the state of other drafters of the same names; tables: their learned tables too, not only
    calibrations."""
    for member, other in zip(members, others, strict=True):
        member.calibration.restore(other.calibration.state())
        if tables or member.drafter.reads != Outputs():  # a head's state of the text belongs to its session
            member.drafter.inherit(other.drafter)


def state_path(origin: str, words: str) -> Path:
    """The file of a bundle and drafters."""
    names = hashlib.sha256(words.encode()).hexdigest()[:8]
    return cache_folder() / "learned" / f"{origin[:32]}-{names}.npz"


def save_state(path: Path, drafter: Drafter) -> None:
    """Write the drafter's state."""
    state = drafter.state()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez(file, **cast(Any, state))


def load_state(path: Path, drafter: Drafter) -> None:
    """Restore a state; a new one if there is none, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            drafter.restore(dict(kept))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, UsageError):
        drafter.reset()
