"""Operations of the governor on all of its drafters: learning from a call, saving and restoring their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from edgedec.decoding.draft import State
from edgedec.decoding.messages import StepResult
from edgedec.runtime import Outputs
from edgedec.speculation.backoff import DrafterStats
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.shared import SharedLearning


def observe_all(members: Sequence[DrafterStats], step: StepResult, merger: CompiledMerger | None) -> None:
    """Let the drafters that observe this call learn from it; the runtime's own tables all in one call."""
    together = 0 if merger is None else sum(1 << n for n in merger.numbers if members[n].observed)
    for number, member in enumerate(members):
        if member.observed and not together >> number & 1:
            since = perf_counter()
            member.drafter.observe(step)
            member.add_observation(perf_counter() - since)
    if merger is not None and together:
        merger.observe(step, together)
        seconds = merger.seconds.tolist()
        for number in merger.numbers:
            if members[number].observed:
                members[number].add_observation(seconds[number])


def times_apart(members: Sequence[DrafterStats]) -> tuple[float, float]:
    """The seconds of expensive drafters at the last call, and the part of it for first proposals."""
    costly = opening = 0.0
    for member in members:
        if member.used and (member.expensive or member.proposals == 1):
            costly += member.last_s
            opening += member.last_s if member.proposals == 1 else 0.0
    return costly, opening


def reading_time(members: Sequence[DrafterStats]) -> float:
    """The learning time per call of the drafters that read every call."""
    return sum(member.observe_s for member in members if member.drafter.reads != Outputs())


def share_calibrations(members: Sequence[DrafterStats], shared: SharedLearning) -> None:
    """Share the calibrations, for other sessions to start from."""
    for member in members:
        shared.calibrations.add(member.name, member.calibration)


def calibration_states(members: Sequence[DrafterStats]) -> State:
    """The calibrations as arrays, by name."""
    return {f"governor.{member.name}": member.calibration.state() for member in members}


def table_states(members: Sequence[DrafterStats]) -> State:
    """The drafters' learned states, by name."""
    return {f"{member.name}.{key}": array for member in members for key, array in member.drafter.state().items()}


def reports(members: Sequence[DrafterStats], silent: int, sizes: Mapping[int, int]) -> dict[str, Any]:
    """Figures for display: calls without drafts, drafts by size, and each drafter's report."""
    by_size = {str(size): calls for size, calls in sorted(sizes.items())}
    return {"silent": silent, "sizes": by_size, "drafters": {member.name: member.report() for member in members}}


def restart_all(members: Sequence[DrafterStats]) -> None:
    """Another text begins."""
    for member in members:
        member.drafter.reset()
        member.restart()


def restore_all(members: Sequence[DrafterStats], state: State) -> None:
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


def inherit_all(members: Sequence[DrafterStats], others: Sequence[DrafterStats], tables: bool) -> None:
    """Continue from the state of other drafters of the same names; tables: their learned tables too, not only
    calibrations."""
    for member, other in zip(members, others, strict=True):
        member.calibration.restore(other.calibration.state())
        if tables or member.drafter.reads != Outputs():  # a head's state of the text belongs to its session
            member.drafter.inherit(other.drafter)
