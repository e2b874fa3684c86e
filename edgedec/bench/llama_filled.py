"""Long caches of llama.cpp without reading: the cache of a short text, repeated. For the time of steps.

It depends on llama.cpp's format of a sequence's state (llama-context.cpp, llama-kv-cache.cpp): two words; the numbers
of streams and of cells; of each cell its position and its sequences; whether values are transposed, and the number of
layers; then the keys of each layer (a type, the bytes of a row, rows), and the values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bench.llama_context import LlamaContext
from edgedec.errors import RuntimeUnavailable

Bytes = NDArray[np.uint8]
_READ, _HEAD = 512, 8


def fill(lib: Any, context: LlamaContext, ids: list[int], n: int) -> None:
    """Have `n` tokens in the context, of which some of `ids` are read. RuntimeUnavailable where its state is saved in
    another way."""
    context.feed(ids[: min(n, _READ)], all_logits=False)
    size = lib.llama_state_seq_get_size(context.address, 0)
    state = np.empty(size, np.uint8)
    if lib.llama_state_seq_get_data(context.address, _pointer(state), size, 0) != size:
        raise RuntimeUnavailable("llama.cpp: the state of its cache could not be had")
    long = np.concatenate(list(stretched(state, n)))
    context.forget(0)
    if lib.llama_state_seq_set_data(context.address, _pointer(long), len(long), 0) != len(long):
        raise RuntimeUnavailable(f"llama.cpp: a cache of {n} tokens could not be filled in")
    context.length = n


def _pointer(data: Bytes) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def stretched(state: Bytes, n: int) -> Iterator[Bytes]:
    """The parts of a saved state of `n` tokens, whose cells are those of `state`, over and over."""
    streams, held = _numbers(state, _HEAD, np.uint32, 2)
    at = _HEAD + 8 + 12 * held
    cells = np.array(_numbers(state, _HEAD + 8, np.int32, 3 * held)).reshape(held, 3)
    transposed, layers = _numbers(state, at, np.uint32, 2)
    if streams != 1 or transposed or not (cells == _cells(held)).all():
        raise _other()
    yield state[:_HEAD]
    yield np.array([1, n], np.uint32).view(np.uint8)
    yield _cells(n).view(np.uint8).reshape(-1)
    yield state[at : at + 8]
    at += 8
    for _ in range(2 * layers):
        row = _numbers(state, at + 4, np.uint64, 1)[0]
        rows = np.array(_part(state, at + 12, held * row)).reshape(held, row)
        yield state[at : at + 12]
        yield rows[np.arange(n) % held].reshape(-1)
        at += 12 + held * row
    if at != len(state):
        raise _other()


def _cells(n: int) -> NDArray[np.int32]:
    """Position, number of sequences and the sequence of each cell."""
    return np.stack([np.arange(n), np.ones(n), np.zeros(n)], 1).astype(np.int32)


def _part(state: Bytes, at: int, size: int) -> Bytes:
    if at + size > len(state):
        raise _other()
    return state[at : at + size]


def _numbers(state: Bytes, at: int, kind: Any, count: int) -> list[int]:
    found: list[int] = _part(state, at, count * np.dtype(kind).itemsize).view(kind).tolist()
    return found


def _other() -> RuntimeUnavailable:
    return RuntimeUnavailable("llama.cpp: it saves its cache in another way than is known here")
