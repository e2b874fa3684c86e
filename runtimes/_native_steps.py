"""Decoding steps in C++ (`kernels/cpu/step.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np

from edgedec.errors import UsageError
from edgedec.kernels.cpu import Engine, library
from edgedec.kernels.cpu.structs import StepResultStruct, StepSettingsStruct, StepsStruct, pack_sequence
from edgedec.runtime import CallResult, Rows, StepGovernor, StepSettings
from edgedec.runtimes._native_adapter import NativeAdapter
from edgedec.runtimes._native_cache import NativeCache, address, raise_refusal
from edgedec.runtimes._native_govern import NativeGovernor
from edgedec.runtimes._native_sampler import NativeSampler


class NativeStep:
    """The steps of one generation. The library draws from numpy's own generator, whose state is thus never copied."""

    def __init__(self, settings: StepSettings) -> None:
        cache, sampler = settings.cache, settings.sampler
        if not isinstance(cache, NativeCache) or not isinstance(sampler, NativeSampler | None):
            raise UsageError("a cache or a sampler of another engine")
        given: Any = settings.adapter
        adapter = None if given is None else NativeAdapter(cache.spec, given)
        ends = (c_int64 * len(settings.ends))(*settings.ends)
        numbers = None if settings.rng is None else settings.rng.bit_generator.ctypes
        asked = StepSettingsStruct(
            cache.handle.address,
            None if sampler is None else sampler.address,
            None if adapter is None else adapter.address,
            None if numbers is None else ctypes.cast(numbers.next_double, c_void_p).value,
            None if numbers is None else numbers.state_address,
            ctypes.addressof(ends),
            len(ends),
            cache.spec.vocab_size,
        )
        self.settings, self.cache, self._lib = settings, cache, library()
        self._keep: Any = (cache.handle, adapter, numbers)
        self.address = self._lib.ed_step_new(ctypes.byref(asked))
        if not self.address:
            raise MemoryError("no memory for a decoding step")
        self.alone = NativeRun([self.address])
        self._found = StepResultStruct.from_address(self._lib.ed_step_results(self.address))
        self._draft: Any = None
        self._governor: NativeGovernor | None = None

    def start(self, token: int) -> None:
        self._draft = self._governor = None
        self._lib.ed_step_start(self.address, token)

    def govern(self, governor: StepGovernor, ids: Sequence[int]) -> None:
        if not isinstance(governor, NativeGovernor):
            raise UsageError("a governor of another engine")
        more, self._governor = governor.group.unread(ids), governor
        if self._lib.ed_step_govern(self.address, governor.address, more.buffer_info()[0], len(more)):
            raise MemoryError("no memory for a decoding step")

    def draft(self, rows: Rows, top: int) -> CallResult:
        n = len(rows)
        top = min(top, self.cache.spec.vocab_size)
        ids, scores = (np.empty((n, top), np.int32), np.empty((n, top), np.float32)) if top else (None, None)
        best = (0, 0) if ids is None or scores is None else (address(ids), address(scores))
        arrays = [np.ascontiguousarray(values, np.int64) for values in (rows.tokens, rows.positions, rows.parents)]
        tokens, positions, parents = map(address, arrays)
        packed = (n, 0, 0, 0, top, 0, 0.0, 0, 0, tokens, 0, positions, parents, 0, 0, 0, 0, *best, *[0] * 12, 0.0)
        self._lib.ed_step_draft(self.address, pack_sequence(*packed))
        self._draft = arrays, ids, scores
        return CallResult(ids=ids, scores=scores)

    def decide(self, token: int) -> None:
        if code := self._lib.ed_step_decide(self.address, token):
            raise_refusal(code)
        if not self.undecided:
            self.cache.length += 1

    @property
    def undecided(self) -> bool:
        return bool(self._found.undecided)

    @property
    def accepted(self) -> int:
        return int(self._found.accepted)

    def by(self, row: int) -> int:
        return int(self._lib.ed_step_by(self.address, row))

    def followed(self) -> tuple[list[int], list[int]]:
        found, n = self._found, self._found.accepted
        if n == 0:
            return [0], []
        path, picked = ((c_int64 * n).from_address(where)[:] for where in (found.path, found.picked))
        return path, picked

    @property
    def number(self) -> float:
        return float(self._found.at)

    @property
    def numbers(self) -> int:
        return int(self._found.numbers)

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._lib.ed_step_free(self.address)
            self.address = None


class NativeRun:
    """One forward of steps and packed calls: their addresses, and what it returns."""

    def __init__(self, addresses: Sequence[int], packed: Sequence[bytes] = ()) -> None:
        n, self._others = len(addresses), c_char_p(b"".join(packed))
        self._steps, self.tokens = (c_void_p * n)(*addresses), (c_int32 * n)()
        others = ctypes.cast(self._others, c_void_p)
        self.struct = StepsStruct(
            None, ctypes.addressof(self._steps), others, ctypes.addressof(self.tokens), n=n, n_others=len(packed)
        )
        self.struct.address = ctypes.addressof(self.struct)


def run_steps(engine: Engine, steps: Sequence[NativeStep], packed: Sequence[bytes]) -> tuple[int, NativeRun]:
    """One forward of steps and packed calls: the status, and what it returned."""
    alone = len(steps) == 1 and not packed
    run = steps[0].alone if alone else NativeRun([step.address for step in steps], packed)
    code = engine.run_steps(run.struct)
    if not code:
        for step, token in zip(steps, run.tokens, strict=True):
            if token >= 0:
                step.cache.length += 1
    return code, run
