"""What a block reads where several stand side by side, or feed one another."""

from __future__ import annotations

from edgedec.runtimes.reference.numeric import Array, BlockWeights
from edgedec.spec import ModelSpec
from edgedec.spec.branches import fed, feeds, first_beside, joined_norm


class BlockInputs:
    """The state before the blocks that are side by side, of one call: some of them may be left out. And that before the
    blocks that feed one another, of which none is."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec, self._first = spec, -1
        self._kept: Array | None = None
        self._last: tuple[int, Array] | None = None

    def add(self, b: int, x: Array, y: Array, w: BlockWeights) -> Array:
        """The state x after block b, which adds y; among blocks whose sum is normed, what they add so far; after one
        that feeds, what the next one reads."""
        if feeds(self._spec.blocks[b]):
            return y
        if fed(self._spec, b) and self._kept is not None:
            return self._kept + y
        kind = joined_norm(self._spec, b)
        if kind == "none" or self._kept is None:
            return x + y
        total = y if b == self._first else x + y
        return total if self._spec.blocks[b].branch else self._kept + w.norm(total, kind, "joined_norm")

    def read(self, b: int, x: Array) -> Array:
        """What block b reads where the state is x."""
        first, self._last = first_beside(self._spec, b), (b, x)
        if first != self._first or self._kept is None:
            self._first, self._kept = first, x
        if fed(self._spec, b):
            return x if feeds(self._spec.blocks[b]) else self._kept + x
        return self._kept

    def before(self, b: int, x: Array) -> Array:
        """The state before block b - 1, asked for before `read(b, x)`: x, if the call leaves that block out."""
        return self._last[1] if self._last is not None and self._last[0] == b - 1 else x
