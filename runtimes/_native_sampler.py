"""Drawing tokens in C++ (`kernels/cpu/sample.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32

import numpy as np
from numpy.typing import NDArray

from edgedec.kernels.cpu import library
from edgedec.kernels.cpu.structs import SamplingStruct
from edgedec.runtime import SamplingSettings


class NativeSampler:
    """Draws the tokens of one text by its settings, from rows of logits. `vocab`: the width of a row."""

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
        self._handle = self._lib.ed_sampler_new(ctypes.byref(settings), vocab)
        if not self._handle:
            raise MemoryError("no memory for a sampler")
        self._draw, self._length = self._lib.ed_sampler_draw, 0

    def read(self, ids: Sequence[int], n_prompt: int) -> None:
        """Begin with this text, if it is not the one so far."""
        if len(ids) != self._length:
            array = np.array(ids, np.int64)
            self._raise(self._lib.ed_sampler_read(self._handle, array.ctypes.data, len(array), n_prompt))
            self._length = len(array)

    def accept(self, token: int) -> None:
        """One more token of the text was generated."""
        self._raise(self._lib.ed_sampler_accept(self._handle, token))
        self._length += 1

    def draw(self, logits: NDArray[np.float32], path: Sequence[int], u: float) -> int:
        """The token after the text and `path` at `u` of the distribution; -1: not decided here. logits [vocab]"""
        n = len(path)
        address = logits.__array_interface__["data"][0]
        return int(self._draw(self._handle, address, (ctypes.c_int64 * n)(*path) if n else None, n, u))

    def _raise(self, code: int) -> None:
        if code:
            raise MemoryError("no memory for a sampler")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.ed_sampler_free(self._handle)
            self._handle = None
