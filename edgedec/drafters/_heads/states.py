"""The input of a draft head: the target's hidden states at the tokens of the text, collected from calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.bundle import Bundle
from edgedec.decoding.messages import StepResult
from edgedec.runtime import CallResult, Hidden, Rows
from edgedec.spec import Norm

# The most rows that are stored while nothing is drafted; after more, the head starts over at a later token.
_MOST = 2048


@dataclass(frozen=True)
class Seen:
    """The target's states [n, features, hidden_size] at the tokens `start` .. of a text, and the token after each."""

    start: int
    states: Hidden
    follow: list[int]

    @property
    def end(self) -> int:
        """The token after the last one."""
        return self.start + len(self.follow)


def _joined(parts: Sequence[Seen]) -> Seen:
    """Parts that follow one another as one: a head reads them in one call."""
    if len(parts) == 1:
        return parts[0]
    states = np.concatenate([part.states for part in parts])
    return Seen(parts[0].start, states, [token for part in parts for token in part.follow])


class SeenStates:
    """States of past calls that the head has not read yet, in order."""

    def __init__(self, features: Sequence[int]) -> None:
        self._features = features
        self._seen: list[Seen] = []
        self._rows = 0

    def observe(self, step: StepResult) -> None:
        """Add the states of a verified call's accepted rows."""
        path = path_of(step)
        tokens = step.rows.tokens[path].tolist()
        self._add(step.rows, step.result, path, [*tokens[1:], step.picked[-1]])

    def passed(self, step: StepResult, states: Hidden) -> None:
        """The states [n, hidden_size] that the draft computed for the accepted rows; the call continued after those
        blocks."""
        tokens = step.rows.tokens[path_of(step)].tolist()
        self._keep(Seen(int(step.rows.positions[0]), states[:, None], [*tokens[1:], step.picked[-1]]))

    def read(self, rows: Rows, result: CallResult, follow: Sequence[int]) -> None:
        """Add the states of a chunk of the prompt; `follow`: the token after each."""
        self._add(rows, result, list(range(len(rows))), list(follow))

    def _add(self, rows: Rows, result: CallResult, chosen: list[int], follow: list[int]) -> None:
        if any(block not in result.hidden for block in self._features):
            return  # a resumed call, which had passed some of these blocks already
        states = np.stack([result.hidden[block][chosen] for block in self._features], axis=1)
        self._keep(Seen(int(rows.positions[0]), states, follow))

    def _keep(self, seen: Seen) -> None:
        self._seen.append(seen)
        self._rows += len(seen.follow)
        while self._rows > _MOST and len(self._seen) > 1:
            self._rows -= len(self._seen.pop(0).follow)

    def inherit(self, other: SeenStates) -> None:
        """Take over the states of another session of the same text."""
        self._seen, self._rows = list(other._seen), other._rows

    def take(self) -> list[Seen]:
        """Return all states, consecutive parts joined, and remove them."""
        found, self._seen, self._rows = self._seen, [], 0
        runs: list[list[Seen]] = []
        for part in found:
            if runs and runs[-1][-1].end == part.start:
                runs[-1].append(part)
            else:
                runs.append([part])
        return [_joined(run) for run in runs]


def path_of(step: StepResult) -> list[int]:
    """The rows of a call that became part of the text."""
    return [*range(step.root), *(step.root + row for row in step.path)]


class LastNorm:
    """The last norm of a model."""

    def __init__(self, bundle: Bundle) -> None:
        spec = bundle.spec
        self._kind: Norm = spec.final_norm
        self._eps = np.float32(spec.norm_eps)
        self._weight = None if self._kind == "none" else bundle.rows("final_norm")
        self._bias = bundle.rows("final_norm_bias") if self._kind == "layer" else None

    def __call__(self, x: Hidden) -> Hidden:
        """x [n, hidden_size] normed."""
        if self._weight is None:
            return x
        if self._kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        found: Hidden = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + self._eps) * self._weight
        return found if self._bias is None else found + self._bias
