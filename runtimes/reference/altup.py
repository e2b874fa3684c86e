"""Alternating updates in numpy: the streams beside the state, in one call."""

from __future__ import annotations

import numpy as np

from edgedec.runtimes.reference.numeric import Array, BlockWeights, rms_norm
from edgedec.spec import AltUp, ModelSpec
from edgedec.spec.altup import LEAST


class Streams:
    """Those of a call's rows [streams, n, hidden], zero until a block makes them. Rows of hidden states are the state
    and these side by side."""

    def __init__(self, spec: ModelSpec, n: int) -> None:
        self._spec = spec
        count = next((block.streams for block in spec.altups.values()), 0)
        self._values = np.zeros((count, n, spec.hidden_size), np.float32)

    def take(self, x: Array) -> Array:
        """The state [n, hidden] of rows [n, width], and keep their streams."""
        parts = x.reshape(len(x), -1, self._spec.hidden_size)
        if parts.shape[1] > 1:
            self._values = np.ascontiguousarray(parts[:, 1:].transpose(1, 0, 2))
        return parts[:, 0]

    def rows(self, block: int, x: Array) -> Array:
        """Rows [n, width] of the state x [n, hidden] after a block, and of the streams if there are any."""
        if self._spec.width(block) == self._spec.hidden_size:
            return x
        return np.concatenate([x, *self._values], axis=1)

    def add(self, y: Array) -> None:
        """Add y [n, hidden] to all streams but the first; the state, and rows that were given, stay."""
        self._values = np.concatenate([self._values[:1], self._values[1:] + y])

    def run(self, block: AltUp, w: BlockWeights, x: Array) -> Array:
        """The state after an altup block."""
        match block.step:
            case "enter":
                self._values = np.stack([x, *_projected(block, w, [x] * (block.streams - 1), x)])
                return x
            case "predict":
                n, streams = len(x), self._values
                made = _modes(w, streams[block.active]) @ w.get("coefs").T
                coefs = made.reshape(n, block.streams, block.streams)
                self._values = streams + np.einsum("nik,knh->inh", coefs, streams)
            case "correct":
                shares = 1 + _modes(w, x) @ w.get("coefs").T
                self._values = self._values + shares.T[:, :, None] * (x - self._values[block.active])
            case "leave":
                first = self._values[0]
                return np.mean([first, *_projected(block, w, [*self._values[1:]], first)], axis=0, dtype=np.float32)
        return self._values[block.active]


def _modes(w: BlockWeights, x: Array) -> Array:
    """What the router makes of x [n, hidden]: [n, streams]."""
    return np.tanh(rms_norm(x, w.get("router_norm"), w.spec.norm_eps) @ w.get("router").T)


def _projected(block: AltUp, w: BlockWeights, streams: list[Array], like: Array) -> list[Array]:
    """Each of `streams` [n, hidden] through its projection, as large as `like` [n, hidden]."""
    size = np.sqrt(np.mean(np.square(like), axis=1, keepdims=True))
    found = [w.linear(x, name) for x, name in zip(streams, block.projections, strict=True)]
    least = np.float32(LEAST)
    return [y * size / np.sqrt(np.maximum(np.mean(np.square(y), axis=1, keepdims=True), least)) for y in found]
