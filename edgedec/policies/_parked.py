"""Hidden states of tokens that were pruned at a stage, so that they can be computed later (LazyLLM's auxiliary
cache)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import SessionError
from edgedec.policies import PolicyState
from edgedec.policies._pruned import Hidden, Ints, Stage

_PARTS = ("positions", "tokens", "hidden")
# Tokens farther apart than _GAP are restored in separate calls, at most _RUNS.
_GAP, _RUNS = 64, 4


@dataclass(frozen=True)
class Left:
    """Tokens [n] by their positions [n], ascending, and their states [n, hidden_size] before the blocks that they have
    not run."""

    positions: Ints
    tokens: Ints
    hidden: Hidden

    @classmethod
    def of(cls, stage: Stage, rows: Ints) -> Left:
        """The states of some rows of a stage after its blocks."""
        assert stage.out is not None
        return cls(stage.rows.positions[rows], stage.rows.tokens[rows], stage.out[rows])

    def at(self, positions: Ints) -> Left:
        """The tokens at these positions, which must be present."""
        rows = np.searchsorted(self.positions, positions)
        return Left(self.positions[rows], self.tokens[rows], np.ascontiguousarray(self.hidden[rows]))

    def plus(self, other: Left) -> Left:
        """The union with other tokens, which replace tokens at the same positions."""
        stay = ~np.isin(self.positions, other.positions)
        joined = [np.concatenate([getattr(self, name)[stay], getattr(other, name)]) for name in _PARTS]
        order = np.argsort(joined[0], kind="stable")
        return Left(*(part[order] for part in joined))

    def save(self, stage: int) -> PolicyState:
        return {f"left.{stage}.{name}": getattr(self, name) for name in _PARTS}


def restored(state: Mapping[str, NDArray[Any]], stages: int, hidden_size: int, length: int) -> dict[int, Left]:
    """By stage what `Left.save` returned, of a text of so many tokens; SessionError for anything else."""
    found, known = {}, [str(i) for i in range(1, stages)]
    for i in sorted({name.split(".")[1] for name in state if "." in name}):
        names = [f"left.{i}.{part}" for part in _PARTS]
        if i not in known or any(name not in state for name in names):
            raise SessionError(f"left.{i}: the saved state is not of cache policy lazyllm")
        found[int(i)] = _checked(i, [state[name] for name in names], hidden_size, length)
    if len(state) != len(found) * len(_PARTS):
        raise SessionError("the saved state is not of cache policy lazyllm")
    return found


def _checked(stage: str, parts: list[NDArray[Any]], hidden_size: int, length: int) -> Left:
    positions, tokens, hidden = parts
    n = positions.size
    fits = positions.dtype == tokens.dtype == np.int64 and hidden.dtype == np.float32
    fits = fits and positions.shape == tokens.shape == (n,) and hidden.shape == (n, hidden_size)
    if not fits or (
        n and not (positions[0] >= 0 and positions[-1] < length and (positions[1:] > positions[:-1]).all())
    ):
        raise SessionError(f"left.{stage}: the saved state is not of cache policy lazyllm")
    return Left(np.array(positions), np.array(tokens), np.array(hidden))


def runs(positions: Ints, worth: NDArray[np.float32]) -> Iterator[Ints]:
    """The numbers of those that are near each other, a run after the other: the `_RUNS` that are worth most together.

    positions 3 5 90 400 401 (and two more runs), worth 1 1 1 1 1 … -> [0 1], [2], [3 4], …
    """
    ends = np.flatnonzero(np.diff(positions) > _GAP) + 1
    parts = np.split(np.arange(len(positions)), ends)
    best = np.argsort([-float(worth[part].sum()) for part in parts], kind="stable")[:_RUNS]
    yield from (parts[i] for i in np.sort(best))
