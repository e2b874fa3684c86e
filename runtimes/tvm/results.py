"""The output arrays of the head, and each call's results from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgedec.runtime import Call, CallResult
from edgedec.runtimes.tvm import host
from edgedec.runtimes.tvm.frame import STRIP

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class HeadArrays:
    """Outputs of the head's rows: all logits, the `top` best tokens, a maximum and a sum per strip; None: not
    requested."""

    top: int
    logits: Floats | None
    ids: NDArray[np.int32] | None
    scores: Floats | None
    sums: Floats | None

    @classmethod
    def make(cls, calls: Sequence[Call], vocab: int, rows: int) -> HeadArrays:
        """Arrays for all that these calls request."""
        if not rows:
            return cls(0, None, None, None, None)
        top = min(max(call.outputs.top for call in calls), vocab)
        sums = any(call.outputs.logsum for call in calls)
        strips = -(-vocab // STRIP)
        return cls(
            top,
            host.aligned(rows * vocab, np.float32).reshape(rows, vocab),
            host.aligned(rows * top, np.int32).reshape(rows, top) if top else None,
            host.aligned(rows * top, np.float32).reshape(rows, top) if top else None,
            host.aligned(rows * strips * 2, np.float32).reshape(rows, strips, 2) if sums else None,
        )

    def addresses(self) -> dict[str, int]:
        """The addresses of the arrays; 0: not requested."""
        arrays = {"logits": self.logits, "ids": self.ids, "scores": self.scores, "sums": self.sums}
        return {name: 0 if array is None else array.ctypes.data for name, array in arrays.items()}


def results(calls: Sequence[Call], states: dict[int, Floats], head: HeadArrays) -> list[CallResult]:
    """The requested results of each call."""
    found, row, head_row = [], 0, 0
    for call in calls:
        wanted, count = call.outputs, call.rows.count
        result = CallResult(hidden={b: states[b][row : row + count] for b in wanted.hidden})
        if wanted.head:
            n = count - wanted.logits_from
            _fill(result, call, head, slice(head_row, head_row + n))
            head_row += n
        found.append(result)
        row += count
    return found


def _fill(result: CallResult, call: Call, head: HeadArrays, rows: slice) -> None:
    wanted = call.outputs
    if wanted.logits and head.logits is not None:
        result.logits = head.logits[rows]
    if wanted.top and head.ids is not None and head.scores is not None:
        top = min(wanted.top, head.top)
        result.ids, result.scores = head.ids[rows, :top].copy(), head.scores[rows, :top].copy()
    if wanted.logsum and head.sums is not None:
        result.logsum = np.array([_log_sum(line, wanted.temperature) for line in head.sums[rows].tolist()])


def _log_sum(line: list[list[float]], temperature: float) -> float:
    """The log-sum of strips merged in order, as in the native engine (kernels/cpu/head.cpp)."""
    most, total = max(strip[0] for strip in line), 0.0
    for top, part in line:
        total += part * math.exp((top - most) / temperature)
    return most / temperature + math.log(total)
