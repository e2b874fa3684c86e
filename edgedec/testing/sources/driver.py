"""A model by the plan of its sources: arrays of a bundle put on a device, rows run launch by launch.

Sequences are not kept apart here: there is one, whose pages lie in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.interleave import pack, packed_zeros, zeros_by_row
from edgedec.bundle.manifest import Tensor
from edgedec.runtimes.tvm.plans import ROW_NUMBERS, LaunchPlan, PlannedLaunch
from edgedec.testing.sources.machine import SourceMachine

_FILL = {"int4": 0x88888888, "int8": 0x80808080}
_TYPES: dict[str, Any] = {"float32": np.float32, "int32": np.int32, "uint32": np.uint32}
_PAGE = 64
Floats = NDArray[np.float32]
Watch = Callable[[int, PlannedLaunch], None]


def prompt_rows(tokens: Sequence[int], start: int) -> NDArray[np.int32]:
    """Rows [n, 9] of a text whose first token stands at position `start`."""
    rows = np.zeros((len(tokens), len(ROW_NUMBERS)), np.int32)
    rows[:, :4] = [(token, start + i, i, start) for i, token in enumerate(tokens)]
    rows[:, 4:6], rows[:, 8] = -1, len(tokens)
    return rows


def tree_rows(tokens: Sequence[int], parents: Sequence[int], start: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Rows of a draft tree after `start` tokens, and the paths that lead to them."""
    rows, path = prompt_rows(tokens, start), list[int]()
    for i in range(len(tokens)):
        line, at = [i], parents[i]
        while at >= 0:
            line, at = [at, *line], parents[at]
        rows[i, 1], rows[i, 4], rows[i, 5] = start + len(line) - 1, len(path), len(path) + len(line)
        path += line
    return rows, np.array(path, np.int32)


class SourceModel:
    """A bundle's model on a device, with one sequence of up to `capacity` tokens."""

    def __init__(self, bundle: Bundle, plan: LaunchPlan, machine: SourceMachine, kv: str, capacity: int) -> None:
        self.bundle, self.plan, self.machine, self.kv = bundle, plan, machine, kv
        self.types = {name: facts.type for name, facts in plan.arrays.items()}
        self.sizes: dict[str, int] = {}
        for name, facts in plan.arrays.items():
            self._allocate(name, facts.elements * 4)
        n = -(-capacity // _PAGE)
        for name, words in plan.pages[kv].items():
            self.types[name] = "uint32"
            self._allocate(name, n * words * 4)
        for name, floats in plan.states.items():
            self.types[name] = "float32"
            self._allocate(name, floats * 4)
        self._put("pages", np.arange(n, dtype=np.int32)[::-1])
        self._put_weights()

    def forward(
        self,
        rows: NDArray[np.int32],
        path: NDArray[np.int32] | None = None,
        head_rows: Sequence[int] = (),
        watch: Watch = lambda i, launch: None,
    ) -> Floats:
        """Run rows; the logits [len(head_rows), vocab]. watch: called after each launch, with its number."""
        self._put("rows", rows)
        if path is not None:
            self._put("path", path)
        self._put("which", np.array(head_rows or [0], np.int32))
        counts = {"rows": len(rows), "head_rows": len(head_rows)}
        for i, launch in enumerate(self.plan.launches[self.kv]):
            if counts[launch.over]:
                kernel, groups = self.chosen(launch, counts[launch.over])
                self.machine.launch(kernel, groups, launch.arrays)
                watch(i, launch)
        logits = np.zeros((len(head_rows), self.bundle.spec.vocab_size), np.float32)
        if head_rows:
            self.machine.read("logits", logits)
        return logits

    def commit(self, rows: Sequence[int]) -> None:
        """Bring states to the end of these rows of the last call."""
        self._put("commit", np.array([0, 0, len(rows), *rows], np.int32))
        for launch in self.plan.commits:
            self.machine.launch(launch.kernels["1"], (launch.items, 1), launch.arrays)

    def chosen(self, launch: PlannedLaunch, n: int) -> tuple[str, tuple[int, int]]:
        """The kernel for n rows, and its groups."""
        tile = max((tile for tile in map(int, launch.kernels) if tile <= n), default=1)
        return launch.kernels[str(tile)], (launch.items, -(-n // tile))

    def best(self, n: int) -> list[int]:
        """The best token of each of the head's rows."""
        found = np.zeros(n, np.int32)
        self.machine.read("ids", found)
        return [int(token) for token in found]

    def read(self, name: str) -> NDArray[Any]:
        """The whole of an array."""
        found = np.zeros(self.sizes[name] // 4, _TYPES[self.types[name]])
        self.machine.read(name, found)
        return found

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Fill an array."""
        self._put(name, array)

    def filled(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Fill an array from its beginning; the whole of it."""
        self._put(name, array)
        return self.read(name)

    def hidden(self, n: int) -> Floats:
        """The state of the first n rows."""
        found = np.zeros((n, self.bundle.spec.hidden_size), np.float32)
        self.machine.read("hidden", found)
        return found

    # ---- what lies on the device ----

    def _allocate(self, name: str, size: int) -> None:
        self.sizes[name] = size
        self.machine.allocate(name, size)

    def _put(self, name: str, array: NDArray[Any]) -> None:
        self.machine.write(name, array)

    def _place(self, name: str, array: NDArray[Any]) -> None:
        """Make an array of what it holds."""
        self.types[name] = "float32" if array.dtype == np.float32 else "uint32"
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        raw = np.concatenate([raw, np.zeros(-raw.size % 4, np.uint8)])
        self._allocate(name, raw.size)
        self._put(name, raw)

    def _put_weights(self) -> None:
        """The tensors that launches name."""
        wanted = {name for launch in self.plan.launches[self.kv] for name in launch.arrays} - set(self.sizes)
        for name in sorted(wanted):
            if name.startswith("rope."):
                self._rope(name)
            elif not name.endswith((".scales", ".zeros")):
                self._tensor(name, self.bundle.manifest.tensors[name])

    def _tensor(self, name: str, t: Tensor) -> None:
        bundle = self.bundle
        if t.format in ("f32", "f16"):
            return self._place(name, bundle.array(t.data, np.float32 if t.format == "f32" else np.uint16, t.shape))
        words = t.blocks * t.block_bytes // 4
        self._place(name, self._packed(t, t.data, np.uint32, words, _FILL[t.format]))
        self._place(f"{name}.scales", self._packed(t, t.scales, np.uint16, t.blocks, 0))
        if t.zeros:
            self._place(f"{name}.zeros", self._zeros(t))

    def _packed(self, t: Tensor, at: int, dtype: Any, words: int, fill: int) -> NDArray[Any]:
        """Words of a matrix as 16 rows side by side."""
        if t.layout == "interleave16":
            return self.bundle.array(at, dtype, (t.groups, words, 16))
        return pack(self.bundle.array(at, dtype, (t.shape[0], words)), fill)

    def _zeros(self, t: Tensor) -> NDArray[np.uint8]:
        """Zero points of a matrix as 16 rows side by side."""
        stored = self.bundle.array(t.zeros, np.uint8, (t.zero_bytes,))
        if t.layout == "interleave16":
            return stored
        return packed_zeros(zeros_by_row(stored.reshape(t.shape[0], -1), t), replace(t, layout="interleave16")).ravel()

    def _rope(self, name: str) -> None:
        _, number, part = name.split(".")
        spec = self.bundle.spec
        shape = (spec.positions, len(spec.ropes[int(number)].inv_freq))
        at = self.bundle.manifest.ropes[int(number)][("cos", "sin").index(part)]
        self._place(name, self.bundle.array(at, np.float32, shape))


def outputs_of(launch: PlannedLaunch) -> tuple[str, ...]:
    """The arrays that a launch writes: its last one, but for heads, which are turned where they lie, rows that are made
    ready, and experts, which are chosen and weighed."""
    kernel = next(iter(launch.kernels.values()))
    if kernel.startswith(("heads_", "norm_whole_", "ssm_norm_")):
        return launch.arrays[:1]
    several = {"ready": 3, "route": 2}.get(kernel.partition("_")[0], 1)
    return launch.arrays[-several:]
