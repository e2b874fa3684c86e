"""The native CPU engine: C++ kernels (`kernels.h`), blocks and paged caches over them (`engine.h`, `cache.h`), and
their C interface (`api.h`), mirrored here. Its arguments are addresses and numbers; `edgedec.runtimes.native` makes
them from a bundle."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from typing import Any

from edgedec.kernels.cpu import drafting
from edgedec.kernels.cpu.codes import FORMATS
from edgedec.kernels.cpu.loader import library as _library
from edgedec.kernels.cpu.structs import ModelStruct, StepsStruct


class Engine:
    """A model opened on a thread pool. `keep`: the owner of the memory that `model` points to."""

    def __init__(self, model: ModelStruct, threads: int, isa: str | None, keep: Any) -> None:
        self._lib, self._model, self._keep, self._pid = library(), model, keep, os.getpid()
        self._engine = self._lib.ed_open(ctypes.byref(model), threads, isa.encode() if isa else None)
        self._run, self._run_steps = self._lib.ed_run, self._lib.ed_steps_run
        if not self._engine:
            raise OSError(f"instruction set {isa}: not for this CPU" if isa else "not enough memory")

    @property
    def isa(self) -> str:
        name: bytes = self._lib.ed_engine_isa(self._engine)
        return name.decode()

    def run(self, sequences: bytes, n: int) -> int:
        """Runs n packed sequences: 0, or a number of `codes.ERRORS`. Releases the GIL."""
        return int(self._run(self._engine, sequences, n))

    def run_steps(self, run: StepsStruct) -> int:
        """Runs steps and other sequences: 0, or a number of `codes.ERRORS`."""
        run.engine = self._engine
        code: int = self._run_steps(run.address)
        return code

    def trim(self) -> None:
        """Frees the working memory of earlier calls."""
        self._lib.ed_trim(self._engine)

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # A forked process inherits the memory but not the threads: joining them would block forever.
        if getattr(self, "_engine", None) and getpid() == self._pid:
            self._lib.ed_close(self._engine)
            self._engine = None


class CachePool:
    """The pages of all caches of one model in one format."""

    def __init__(self, model: ModelStruct, kv: str) -> None:
        self._lib = library()
        self.handle = self._lib.ed_cache_pool_new(ctypes.byref(model), FORMATS[kv])
        if not self.handle:
            raise MemoryError("no pool of cache pages")

    @property
    def pages(self) -> int:
        """Pages in use by any cache."""
        return int(self._lib.ed_cache_pool_pages(self.handle))

    def trim(self) -> None:
        """Frees memory that is kept for later pages."""
        self._lib.ed_cache_pool_trim(self.handle)

    def new_cache(self, capacity: int) -> CacheHandle:
        """An empty cache."""
        return CacheHandle(self._lib.ed_cache_new(self.handle, capacity))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._lib.ed_cache_pool_free(self.handle)
            self.handle = None


class CacheHandle:
    """A cache of the library. Methods that can be refused return 0 or a number of `codes.ERRORS`."""

    def __init__(self, address: int | None) -> None:
        if not address:
            raise MemoryError("no memory for a cache")
        self.address, self._lib = address, library()
        self._commit = self._lib.ed_cache_commit

    @property
    def length(self) -> int:
        return int(self._lib.ed_cache_length(self.address))

    def fork(self, length: int, capacity: int) -> CacheHandle:
        return CacheHandle(self._lib.ed_cache_fork(self.address, length, capacity))

    def commit(self, rows: Sequence[int]) -> int:
        n = len(rows)
        # One row, the first: plain decoding.
        numbers = None if n == 1 and rows[0] == 0 else (c_int64 * n)(*rows)
        return int(self._commit(self.address, numbers, n))

    def attach(self, n: int) -> int:
        return int(self._lib.ed_cache_attach(self.address, n))

    def rollback(self) -> None:
        # When the garbage collector ends a suspended generation, its cache may be freed already.
        if self.address:
            self._lib.ed_cache_rollback(self.address)

    def truncate(self, length: int) -> int:
        """Truncate the cache; returns the new length."""
        if not self.address:
            return length
        return int(self._lib.ed_cache_truncate(self.address, length))

    def drop(self, block: int, slots: int, n: int) -> int:
        """Drop the slots in an int64 array [n] at an address, ascending."""
        return int(self._lib.ed_cache_drop(self.address, block, slots, n))

    def drop_by_head(self, block: int, slots: int, n: int) -> int:
        """Drop the slots in an int64 array [kv_heads, n] at an address, ascending."""
        return int(self._lib.ed_cache_drop_by_head(self.address, block, slots, n))

    def merge(self, block: int, into: int, slots: int, weights: int, n: int) -> int:
        """Merge slots, given arrays at addresses: int64 [n], int64 [n], float32 [kv_heads, n]."""
        return int(self._lib.ed_cache_merge(self.address, block, into, slots, weights, n))

    def keys(self, block: int, start: int, out: int) -> None:
        """Copy the keys of the slots from `start` on into float32 [kv_heads, slots - start, head_dim] at an address."""
        self._lib.ed_cache_keys(self.address, block, start, out)

    def offload(self, block: int, pages: int, n: int, folder: bytes) -> int:
        """Move the pages in an int32 array [n] at an address to files."""
        return int(self._lib.ed_cache_offload(self.address, block, pages, n, folder))

    def slots(self, block: int) -> int:
        return int(self._lib.ed_cache_slots(self.address, block))

    def positions(self, block: int, out: int) -> None:
        """Copy the positions into int64 [slots] at an address."""
        self._lib.ed_cache_positions(self.address, block, out)

    def tokens(self, block: int, out: int) -> None:
        self._lib.ed_cache_tokens(self.address, block, out)

    def page_ids(self, out: int | None) -> int:
        """Copy the page numbers into int64 at an address; returns their count."""
        return int(self._lib.ed_cache_page_ids(self.address, out))

    def pages(self) -> tuple[int, int]:
        """The number of pages held, and how many of them are shared."""
        held, shared = c_int64(), c_int64()
        self._lib.ed_cache_pages(self.address, ctypes.byref(held), ctypes.byref(shared))
        return held.value, shared.value

    @property
    def nbytes(self) -> int:
        return int(self._lib.ed_cache_bytes(self.address))

    @property
    def save_bytes(self) -> int:
        return int(self._lib.ed_cache_save_bytes(self.address))

    def save(self, out: int) -> None:
        self._lib.ed_cache_save(self.address, out)

    def load(self, data: int, size: int) -> int:
        return int(self._lib.ed_cache_load(self.address, data, size))

    def rest_bytes(self, start: int) -> int:
        return int(self._lib.ed_cache_rest_bytes(self.address, start))

    def save_rest(self, start: int, out: int) -> None:
        self._lib.ed_cache_save_rest(self.address, start, out)

    def append(self, data: int, size: int) -> int:
        return int(self._lib.ed_cache_append(self.address, data, size))

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._lib.ed_cache_free(self.address)
            self.address = 0


@cache
def page_slots() -> int:
    """Slots of a cache page."""
    return int(library().ed_cache_page_slots())


def probe_read(size: int, threads: int) -> float:
    """GB/s that `threads` threads read from memory."""
    return float(library().ed_probe_read(size, threads))


def probe_int8(threads: int, isa: str | None = None) -> float:
    """10^9 int8 multiply-adds a second, from registers."""
    return float(library().ed_probe_int8(isa.encode() if isa else None, threads))


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ed_open": (c_void_p, [POINTER(ModelStruct), c_int, c_char_p]),
    "ed_close": (None, [c_void_p]),
    "ed_engine_isa": (c_char_p, [c_void_p]),
    "ed_run": (c_int, [c_void_p, c_char_p, c_int]),
    "ed_trim": (None, [c_void_p]),
    "ed_sampler_new": (c_void_p, [c_void_p, c_int]),
    "ed_sampler_free": (None, [c_void_p]),
    "ed_sampler_read": (c_int, [c_void_p, c_void_p, c_int, c_int]),
    "ed_sampler_accept": (c_int, [c_void_p, c_int64]),
    "ed_sampler_draw": (c_int, [c_void_p, c_void_p, c_void_p, c_int, c_double]),
    "ed_sampler_row": (c_void_p, [c_void_p]),
    "ed_step_new": (c_void_p, [c_void_p]),
    "ed_step_free": (None, [c_void_p]),
    "ed_step_results": (c_void_p, [c_void_p]),
    "ed_step_start": (None, [c_void_p, c_int64]),
    "ed_step_draft": (None, [c_void_p, c_char_p]),
    "ed_steps_run": (c_int, [c_void_p]),
    "ed_step_decide": (c_int, [c_void_p, c_int64]),
    "ed_step_govern": (c_int, [c_void_p, c_void_p, c_void_p, c_int]),
    "ed_step_by": (c_int32, [c_void_p, c_int]),
    **drafting.signatures(),
    "ed_probe_read": (c_double, [c_uint64, c_int]),
    "ed_probe_int8": (c_double, [c_char_p, c_int]),
    "ed_cache_page_slots": (c_int, []),
    "ed_cache_pool_new": (c_void_p, [POINTER(ModelStruct), c_int]),
    "ed_cache_pool_free": (None, [c_void_p]),
    "ed_cache_pool_pages": (c_int64, [c_void_p]),
    "ed_cache_pool_trim": (None, [c_void_p]),
    "ed_cache_new": (c_void_p, [c_void_p, c_int]),
    "ed_cache_free": (None, [c_void_p]),
    "ed_cache_length": (c_int, [c_void_p]),
    "ed_cache_fork": (c_void_p, [c_void_p, c_int, c_int]),
    "ed_cache_adopt": (c_int, [c_void_p, c_void_p, c_int]),
    "ed_cache_commit": (c_int, [c_void_p, c_void_p, c_int]),
    "ed_cache_attach": (c_int, [c_void_p, c_int]),
    "ed_cache_rollback": (None, [c_void_p]),
    "ed_cache_truncate": (c_int, [c_void_p, c_int]),
    "ed_cache_drop": (c_int, [c_void_p, c_int, c_void_p, c_int]),
    "ed_cache_drop_by_head": (c_int, [c_void_p, c_int, c_void_p, c_int]),
    "ed_cache_merge": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_int]),
    "ed_cache_keys": (None, [c_void_p, c_int, c_int, c_void_p]),
    "ed_cache_offload": (c_int, [c_void_p, c_int, c_void_p, c_int, c_char_p]),
    "ed_cache_slots": (c_int, [c_void_p, c_int]),
    "ed_cache_positions": (None, [c_void_p, c_int, c_void_p]),
    "ed_cache_tokens": (None, [c_void_p, c_int, c_void_p]),
    "ed_cache_reserve": (c_int, [c_void_p, c_int]),
    "ed_cache_pages": (None, [c_void_p, c_void_p, c_void_p]),
    "ed_cache_page_ids": (c_int, [c_void_p, c_void_p]),
    "ed_cache_bytes": (c_uint64, [c_void_p]),
    "ed_cache_save_bytes": (c_uint64, [c_void_p]),
    "ed_cache_save": (None, [c_void_p, c_void_p]),
    "ed_cache_load": (c_int, [c_void_p, c_void_p, c_uint64]),
    "ed_cache_rest_bytes": (c_uint64, [c_void_p, c_int]),
    "ed_cache_save_rest": (None, [c_void_p, c_int, c_void_p]),
    "ed_cache_append": (c_int, [c_void_p, c_void_p, c_uint64]),
}


@cache
def library() -> ctypes.CDLL:
    """The library with its functions' types; ImportError with the reason if it cannot be loaded."""
    lib = _library()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib
