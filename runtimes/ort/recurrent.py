"""The host's part of a recurrent block: the inputs of its graph for a tree, and the state after any row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgedec.cache.recurrent import Recurrent, RecurrentState
from edgedec.runtime import Rows
from edgedec.spec import Delta, Ssm, Stateful

Array = NDArray[np.float32]


class RecurrentTree:
    """The pending tree of one block: the state that it began with, and the inputs of its rows so far by name, first
    those that are convolved. `outputs`: of the block's graph, in order."""

    def __init__(self, block: Stateful, a: Array, rows: Rows, kept: RecurrentState) -> None:
        self.block, self.rows, self.a, self._kept = block, rows, a, kept
        self.start = kept.start if rows.first else kept.committed
        self.inputs = {name: np.zeros((0, *shape), np.float32) for name, shape in self.shapes().items()}
        if rows.first:
            earlier = cast(_After, kept.pending[rows.first - 1]).tree
            self.inputs = {name: array[: rows.first] for name, array in earlier.inputs.items()}
        self.mixed = np.zeros((0, block.conv_dim), np.float32)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The inputs of a row."""
        return {"inputs": (self.block.conv_dim,)}

    def order(self) -> dict[str, NDArray[Any]]:
        """Inputs of the graph that follow from the tree alone."""
        return {}

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self.inputs, *(("mixed", "state_out") if self.block.n_heads else ()))

    def given(self, b: int) -> dict[str, NDArray[Any]]:
        """What the graph of the block, which is number b, takes besides hidden states."""
        size = self.block.conv_size
        state: dict[str, NDArray[Any]] = {f"state.{b}": self.start.state} if self.block.n_heads else {}
        past: dict[str, NDArray[Any]] = {f"past_{name}.{b}": array for name, array in self.inputs.items()}
        known: dict[str, NDArray[Any]] = {f"conv.{b}": self.start.conv, f"paths.{size}": paths(self.rows, size)}
        return past | known | state | self.order()

    def take(self, found: Sequence[Array]) -> None:
        """The outputs of the graph: the inputs of the computed rows, the convolved ones of all rows, the last row's
        state."""
        named = dict(zip(self.outputs, found, strict=True))
        self.inputs = {name: np.concatenate([array, named[name]]) for name, array in self.inputs.items()}
        self.mixed = named.get("mixed", self.mixed)
        n = len(self.rows)
        states: list[Callable[[], Recurrent]] = [_After(self, row) for row in range(self.rows.first, n)]
        if states:
            states[-1] = _After(self, n - 1, named.get("state_out"))
        self._kept.write(self.rows, states)

    def after(self, row: int, state: Array | None = None) -> Recurrent:
        """The block's state and history after a row; `state`: its recurrent state, if already computed."""
        path, size = _path(self.rows, row), self.block.conv_size - 1
        inputs = np.concatenate([self.start.conv, next(iter(self.inputs.values()))[path]])
        return Recurrent(inputs[len(inputs) - size :], self.state(path) if state is None else state)

    def state(self, path: list[int]) -> Array:
        """The recurrent state after the rows of a path [n_heads, head_dim, state_size]."""
        return self.start.state

    def split(self, path: list[int]) -> tuple[Array, Array, Array]:
        """The convolved inputs of rows: values [n, n_heads, head_dim], and the two that groups of heads share, for each
        head [n, n_heads, state_size]."""
        block = self.block
        assert isinstance(block, Delta | Ssm)
        wide = block.n_groups * block.state_size
        x, *shared = np.split(self.mixed[path], [block.inner_size, block.inner_size + wide], axis=1)
        each = (a.reshape(len(path), block.n_groups, -1) for a in shared)
        first, second = (np.repeat(a, block.n_heads // block.n_groups, axis=1) for a in each)
        return x.reshape(len(path), block.n_heads, block.head_dim), first, second


class SsmTree(RecurrentTree):
    """Of a state-space block: one masked product gives all rows."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"xbc": (self.block.conv_dim,), "dt": (self.block.n_heads,)}

    def order(self) -> dict[str, NDArray[Any]]:
        return {"ancestors": ancestors(self.rows)}

    def state(self, path: list[int]) -> Array:
        dt = self.inputs["dt"][path]
        sums = np.cumsum(dt * self.a, axis=0)
        x, keys, _ = self.split(path)
        added = (x * (dt * np.exp(sums[-1] - sums))[:, :, None]).transpose(1, 2, 0) @ keys.transpose(1, 0, 2)
        return (self.start.state * np.exp(sums[-1])[:, None, None] + added).astype(np.float32)


class DeltaTree(RecurrentTree):
    """Of the gated delta rule: one row after another."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        block = self.block
        assert isinstance(block, Delta)
        heads = block.n_heads
        return {"vkq": (block.conv_dim,), "beta": (heads,), "decay": (heads, block.decays // heads)}

    def order(self) -> dict[str, NDArray[Any]]:
        return updates(self.rows)

    def state(self, path: list[int]) -> Array:
        values, keys, _ = self.split(path)
        keys = unit(keys)
        state, beta, decay = self.start.state, self.inputs["beta"][path], self.inputs["decay"][path]
        for v, k, b, d in zip(values, keys, beta, decay, strict=True):
            state = state * d[:, None, :]
            change = (v - (state * k[:, None, :]).sum(axis=2)) * b[:, None]
            state = state + change[:, :, None] * k[:, None, :]
        return state


def tree_of(block: Stateful, a: Array, rows: Rows, kept: RecurrentState) -> RecurrentTree:
    """The pending tree of a block with the rows of a call. a: its tensor of that name, if it has one."""
    made = {"ssm": SsmTree, "delta": DeltaTree}.get(block.kind, RecurrentTree)
    return made(block, a, rows, kept)


def unit(x: Array) -> Array:
    """x [..., n] over its length, as the graph computes it."""
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + np.float32(1e-6))


def updates(rows: Rows) -> dict[str, NDArray[Any]]:
    """The order in which rows are applied: `updates`, of which those with a 1 in `resets` begin a path, and each row's
    place in it, `ends`.

    parents -1 0 0 -> updates 0 1 0 2, resets 1 0 1 0, ends 0 1 3
    """
    order, resets, ends, last = list[int](), list[float](), list[int](), None
    for row, parent in enumerate(rows.parents.tolist()):
        path = [row] if parent == last and parent >= 0 else _path(rows, row)
        resets += [float(one != row or parent < 0) if i == 0 else 0.0 for i, one in enumerate(path)]
        order += path
        ends.append(len(order) - 1)
        last = row
    return {"updates": np.array(order), "resets": np.array(resets, np.float32), "ends": np.array(ends)}


@dataclass(frozen=True)
class _After:
    """The state after a row, computed when it is needed."""

    tree: RecurrentTree
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
