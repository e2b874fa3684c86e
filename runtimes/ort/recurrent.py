"""The host's part of a state-space block: the inputs of its graph for a tree, and the state after any row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.spec import Ssm

Array = NDArray[np.float32]
OUTPUTS = ("xbc", "dt", "mixed", "state_out")


class TreeInputs:
    """The pending tree of one block: the state that it began with, and the inputs of its rows so far."""

    def __init__(self, block: Ssm, a: Array, rows: Rows, kept: RecurrentState) -> None:
        self.block, self.rows, self._a, self._kept = block, rows, a, kept
        self.start = kept.start if rows.first else kept.committed
        self.xbc, self.dt = np.zeros((0, block.conv_dim), np.float32), np.zeros((0, block.n_heads), np.float32)
        if rows.first:
            earlier = cast(_After, kept.pending[rows.first - 1]).tree
            self.xbc, self.dt = earlier.xbc[: rows.first], earlier.dt[: rows.first]
        self._mixed = np.zeros((0, block.conv_dim), np.float32)

    def inputs(self, b: int) -> dict[str, NDArray[Any]]:
        """What the graph of the block, which is number b, takes besides hidden states."""
        size = self.block.conv_size
        return {
            f"past_xbc.{b}": self.xbc,
            f"past_dt.{b}": self.dt,
            f"conv.{b}": self.start.conv,
            f"state.{b}": self.start.state,
            f"paths.{size}": paths(self.rows, size),
            "ancestors": ancestors(self.rows),
        }

    def take(self, xbc: Array, dt: Array, mixed: Array, last: Array) -> None:
        """The outputs of the graph: the inputs of the computed rows, the convolved ones of all rows, the last row's
        state."""
        self.xbc, self.dt, self._mixed = np.concatenate([self.xbc, xbc]), np.concatenate([self.dt, dt]), mixed
        n = len(self.rows)
        states: list[Callable[[], Recurrent]] = [_After(self, row) for row in range(self.rows.first, n)]
        if states:
            states[-1] = _After(self, n - 1, last)
        self._kept.write(self.rows, states)

    def after(self, row: int, state: Array | None = None) -> Recurrent:
        """The block's state and history after a row; `state`: its recurrent state, if already computed."""
        path = _path(self.rows, row)
        size = self.block.conv_size - 1
        inputs = np.concatenate([self.start.conv, self.xbc[path]])
        return Recurrent(inputs[len(inputs) - size :], self._state(path) if state is None else state)

    def _state(self, path: list[int]) -> Array:
        """The recurrent state after the rows of a path [n_heads, head_dim, state_size]."""
        block, dt = self.block, self.dt[path]
        sums = np.cumsum(dt * self._a, axis=0)
        x, keys, _ = np.split(
            self._mixed[path], [block.inner_size, block.inner_size + block.n_groups * block.state_size], 1
        )
        x = x.reshape(len(path), block.n_heads, block.head_dim) * (dt * np.exp(sums[-1] - sums))[:, :, None]
        keys = np.repeat(keys.reshape(len(path), block.n_groups, -1), block.n_heads // block.n_groups, axis=1)
        added = x.transpose(1, 2, 0) @ keys.transpose(1, 0, 2)
        return (self.start.state * np.exp(sums[-1])[:, None, None] + added).astype(np.float32)


@dataclass(frozen=True)
class _After:
    """The state after a row, computed when it is needed."""

    tree: TreeInputs
    row: int
    state: Array | None = None

    def __call__(self) -> Recurrent:
        return self.tree.after(self.row, self.state)


def _path(rows: Rows, row: int) -> list[int]:
    """The rows from the root to `row`."""
    found = []
    while row >= 0:
        found.append(row)
        row = int(rows.parents[row])
    return found[::-1]


def paths(rows: Rows, size: int) -> NDArray[np.int64]:
    """The last `size` inputs on each row's own path [n, size], as places among the size - 1 inputs before the tree and
    its rows.

    size 3, rows with parents -1 0 0 -> [[0 1 2], [1 2 3], [1 2 4]]
    """
    found = np.empty((len(rows), size), np.int64)
    for row, parent in enumerate(rows.parents):
        before = np.arange(size - 1) if parent < 0 else found[parent, 1:]
        found[row] = [*before, size - 1 + row]
    return found


def ancestors(rows: Rows) -> Array:
    """float32 [n, n]: 1 where row r has row j among its ancestors, itself included."""
    found = np.eye(len(rows), dtype=np.float32)
    for row, parent in enumerate(rows.parents):
        if parent >= 0:
            found[row] += found[parent]
    return found
