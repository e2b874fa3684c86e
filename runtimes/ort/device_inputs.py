"""The inputs of a call of a graph for devices: state, positions, masks, past keys and values; and its outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.cache.host import HostCache
from edgedec.runtime import Rows
from edgedec.runtimes.ort.device_shapes import CallShape

Array = NDArray[np.float32]
# The value of hidden slots in masks; softmax makes it 0 in float16, too.
_HIDDEN = np.float32(-30000)
_SIGN = np.uint8(128)


class DeviceInputs:
    """The inputs of one call on some blocks, each made once. spans: the slots of its computed rows by attention block;
    embedding [count, hidden_size]: of the rows' tokens, if a block reads it."""

    def __init__(
        self, bundle: Bundle, blocks: list[int], rows: Rows, cache: HostCache, embedding: Array | None = None
    ) -> None:
        self.spec, self.rows, self.cache = bundle.spec, rows, cache
        self._bundle, self._embedding = bundle, embedding
        self.spans = cache.write(blocks, rows)
        self._masks: dict[tuple[int, int, int], Array] = {}
        self._turns: dict[tuple[int, int], tuple[Array, Array]] = {}

    def slots(self, blocks: range | list[int]) -> int:
        """Slots before the computed rows that the graph of these blocks needs."""
        return max((self.spans[b][0] for b in blocks if b in self.spans), default=0)

    def feed(self, blocks: range | list[int], x: Array, shape: CallShape) -> dict[str, NDArray[Any]]:
        """The inputs of the graph of these blocks by name. x [count, hidden]: the state that enters it."""
        spec, found = self.spec, {"hidden": _padded(x, shape.rows)}
        for b in blocks:
            if b not in spec.attention:
                continue
            block, number = spec.attention[b], list(spec.attention).index(b)
            if block.paired and self._embedding is not None:
                found["embedding"] = _padded(self._embedding, shape.rows)
            if block.rope is not None:
                found[f"cos.{block.rope}"], found[f"sin.{block.rope}"] = self._turn(block.rope, shape.rows)
            window = spec.windows.index((block.window, block.sinks))
            found[f"mask.{window}"] = self._mask(b, window, shape)
            for i, part in enumerate(("key", "value")):
                found[f"past.{number}.{part}"] = self._past(b, i, shape.past)
        return found

    def take(self, blocks: range | list[int], outputs: dict[str, NDArray[Any]]) -> None:
        """Put the keys and values of the computed rows into the cache."""
        for b in blocks:
            if b in self.spans:
                number, (start, stop) = list(self.spec.attention).index(b), self.spans[b]
                for i, part in enumerate(("key", "value")):
                    new = outputs[f"new.{number}.{part}"][0, :, : stop - start]
                    self.cache.data(b)[i][:, start:stop] = _signed(new) if self.cache.kv == "int8" else new

    def _turn(self, rope: int, rows: int) -> tuple[Array, Array]:
        """cos and sin [1, 1, rows, pairs] of the rows' positions."""
        if (rope, rows) not in self._turns:
            pairs = len(self.spec.ropes[rope].inv_freq)
            at = self.rows.positions[self.rows.first :]
            tables = [
                self._bundle.array(offset, np.float32, (self.spec.positions, pairs))
                for offset in self._bundle.manifest.ropes[rope]
            ]
            cos, sin = (_padded(table[at], rows)[None] for table in tables)
            self._turns[rope, rows] = cos, sin
        return self._turns[rope, rows]

    def _mask(self, b: int, window: int, shape: CallShape) -> Array:
        """float32 [1, 1, rows, total]: 0 where a row sees a slot. Padding slots come between past slots and row slots;
        a padding row sees itself."""
        start, stop = self.spans[b]
        key = (window, start, shape.past)
        if key not in self._masks:
            facts, n = self.spec.attention[b], stop - start
            sees = self.rows.mask(self.cache.positions(b), facts.window, facts.sinks)
            mask = np.full((shape.rows, shape.past + shape.rows), _HIDDEN, np.float32)
            mask[:n, :start][sees[:, :start]] = 0
            mask[:n, shape.past : shape.past + n][sees[:, start:]] = 0
            spare = np.arange(n, shape.rows)
            mask[spare, shape.past + spare] = 0
            self._masks[key] = mask[None, None]
        return self._masks[key]

    def _past(self, b: int, i: int, past: int) -> NDArray[Any]:
        """Keys (i = 0) or values [1, n_kv_heads, past, head_dim]; the cache's own memory where that is what it has."""
        data, start = self.cache.data(b)[i], self.spans[b][0]
        if data.shape[1] != past:
            grown = np.zeros((data.shape[0], past, data.shape[2]), data.dtype)
            grown[:, :start] = data[:, :start]
            data = grown
        return (data.view(np.uint8) ^ _SIGN if data.dtype == np.int8 else data)[None]


def _signed(stored: NDArray[np.uint8]) -> NDArray[np.int8]:
    """q + 128 -> q."""
    return (stored ^ _SIGN).view(np.int8)


def _padded(x: Array, rows: int) -> Array:
    """x [n, width] -> [1, rows, width]."""
    if len(x) == rows:
        return np.ascontiguousarray(x, np.float32)[None]
    found = np.zeros((1, rows, x.shape[1]), np.float32)
    found[0, : len(x)] = x
    return found
