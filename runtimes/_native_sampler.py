"""Drawing tokens in C++ (`kernels/cpu/sample.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.errors import UsageError
from edgedec.kernels.cpu import library
from edgedec.kernels.cpu.structs import SamplingStruct
from edgedec.runtime import Call, CallResult, Drawing, SamplingSettings

NO_DRAW = 0, 0, 0.0


class NativeSampler:
    """Draws the tokens of one text by its settings, from rows of logits. `vocab`: the width of a row; `address`: of the
    sampler, for calls that draw."""

    def __init__(self, sampling: SamplingSettings, vocab: int) -> None:
        self._lib = library()
        ids = (c_int32 * len(sampling.bias))(*(token for token, _ in sampling.bias))
        bias = (c_float * len(sampling.bias))(*(value for _, value in sampling.bias))
        settings = SamplingStruct(
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.top_k if sampling.top_k < vocab else 0,
            len(ids),
            ctypes.addressof(ids),
            ctypes.addressof(bias),
        )
        self._vocab, self.address = vocab, self._lib.ed_sampler_new(ctypes.byref(settings), vocab)
        if not self.address:
            raise MemoryError("no memory for a sampler")
        self._draw, self._length = self._lib.ed_sampler_draw, 0
        bare = sampling.repetition_penalty == 1 and sampling.presence_penalty == 0 == sampling.frequency_penalty
        self._follows = not bare  # do the settings depend on the text?

    def read(self, ids: Sequence[int], n_prompt: int) -> None:
        """Start with this text, unless the sampler has it already."""
        if self._follows and len(ids) != self._length:
            array = np.array(ids, np.int64)
            self._raise(self._lib.ed_sampler_read(self.address, array.ctypes.data, len(array), n_prompt))
            self._length = len(array)

    def accept(self, token: int) -> None:
        """Append a generated token to the text."""
        if self._follows:
            self._raise(self._lib.ed_sampler_accept(self.address, token))
            self._length += 1

    def draw(self, logits: NDArray[np.float32], path: Sequence[int], u: float) -> int:
        """The token after the text and `path` at quantile `u`; -1 if this sampler does not decide it. logits [vocab]"""
        n = len(path)
        address = logits.__array_interface__["data"][0]
        return int(self._draw(self.address, address, (ctypes.c_int64 * n)(*path) if n else None, n, u))

    def row(self) -> NDArray[np.float32]:
        """The logits [1, vocab] of the last row that a call drew from without a decision."""
        found = self._lib.ed_sampler_row(self.address)
        assert found
        row = np.ctypeslib.as_array(ctypes.cast(found, ctypes.POINTER(c_float)), (1, self._vocab))
        return np.array(row, np.float32)

    def _raise(self, code: int) -> None:
        if code:
            raise MemoryError("no memory for a sampler")

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._lib.ed_sampler_free(self.address)
            self.address = None


def drawn_by(calls: Sequence[Call]) -> tuple[NDArray[np.int32] | None, int]:
    """An array for the tokens that calls draw, one a call, and its address; None if none of them does."""
    if all(call.outputs.draw is None for call in calls):
        return None, 0
    drawn = np.empty(len(calls), np.int32)
    return drawn, drawn.__array_interface__["data"][0]


def draw_fields(draw: Drawing, drawn_at: int, keep: list[Any]) -> tuple[int, int, float]:
    """The fields of a packed call for its draw."""
    if not isinstance(draw.sampler, NativeSampler):
        raise UsageError("a sampler of another engine")
    keep.append(draw.sampler)
    return draw.sampler.address, drawn_at, draw.number()


def give_drawn(calls: Sequence[Call], results: Sequence[CallResult], drawn: NDArray[np.int32]) -> None:
    """Copy the drawn tokens to the results of their calls."""
    for call, result, token in zip(calls, results, drawn.tolist(), strict=True):
        if call.outputs.draw is not None:
            result.drawn = token
