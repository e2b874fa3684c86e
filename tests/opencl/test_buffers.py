"""The OpenCL engine with its memory in plain buffers, as devices of OpenCL 1.2 have it: the same bytes, and what its
allocator hands out never overlaps."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import opencl_devices
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.kernels.cpu import loader
from edgedec.kernels.device.interface import Buffer, DeviceError
from edgedec.kernels.opencl import driver, memory, sources, variants
from edgedec.runtime import Rows, RuntimeOptions, logits_of
from edgedec.runtimes import native, opencl
from edgedec.runtimes._selftest import opening
from edgedec.runtimes._selftest.cases import CASES
from edgedec.runtimes._selftest.models import SPECS
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

REASON = opencl_devices.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON} (Debian: pocl-opencl-icd)")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="kernels compile long; set EDGEDEC_SLOW_TESTS")
SMALL = "__kernel void one(int a, __local uchar* memory) { }"


@pytest.fixture(autouse=True)
def first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(driver.DEVICE, "0")


def in_buffers(text: str | None = None) -> driver.OpenclDevice:
    return driver.OpenclDevice(driver.chosen(), text, (variants.SHARED,))


@pytest.mark.parametrize(("model", "kv"), [("plain", "int8"), pytest.param("hybrid", "f16", marks=slow)])
def test_the_bytes_of_the_native_engine(tmp_path: Path, model: str, kv: str) -> None:
    bundle = write_bundle(tmp_path / "bundle", MODELS[model], random_weights(MODELS[model]), "int4")
    device, ids = in_buffers(), [7 * i % 101 for i in range(70)]
    found = []
    for runtime in (opencl.OpenclRuntime(bundle, kv, device), native.open(bundle, RuntimeOptions(threads=1, kv=kv))):
        cache = runtime.new_cache(96)
        told = [logits_of(runtime, Rows.chain(ids, 0), cache, 69)]
        cache.commit(range(70))
        told.append(logits_of(runtime, Rows.tree([1, 2, 3], [-1, 0, 0], 70), cache))
        cache.commit([0, 2])
        fork = cache.fork(66)
        told += [logits_of(runtime, Rows.chain([5], one.length), one) for one in (cache, fork)]
        found.append([array.tobytes() for array in told] + [cache.save()["state"].tobytes()])
    assert found[0] == found[1]
    assert device.launches > 20
    assert variants.SHARED not in device.variants


def test_a_device_without_shared_memory_is_used() -> None:
    facts = driver.chosen()
    old = facts.__class__(**{**facts.__dict__, "shared_memory": False, "version": "OpenCL 1.2"})
    assert old.lacks() is None
    device = driver.OpenclDevice(old, SMALL)
    assert variants.SHARED not in device.variants
    device.launch("one", (1, 1, 1), 1, 0, b"\0\0\0\0")
    device.synchronize()


@slow
def test_broken_shared_memory_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A driver whose shared memory gives back other bytes: the self-test takes the variant with buffers."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    read = memory.SharedMemory.read

    def wrong(self: memory.SharedMemory, address: int, host: int, size: int) -> None:
        read(self, address, host, size)
        ctypes.memset(host, 0x7F, 1)

    monkeypatch.setattr(memory.SharedMemory, "read", wrong)
    monkeypatch.setattr(opening, "CASES", [case for case in CASES if case.model == "ssm"])
    facts = driver.chosen()
    plain = facts.__class__(**{**facts.__dict__, "exact_division": False})  # one program less to compile
    first = driver.OpenclDevice(plain)
    device = opening.checked("opencl", first, SPECS["ssm"], ["f32"], "f32")
    assert isinstance(device, driver.OpenclDevice)
    assert (*device.variants, variants.SHARED) == first.variants
    assert isinstance(device._memory, memory.ArenaMemory)


def test_memory_grows_into_further_buffers_and_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_FIRST", 1 << 16)
    device = in_buffers(SMALL)
    arrays = [np.random.default_rng(i).integers(0, 255, 50_000 * (i + 1)).astype(np.uint8) for i in range(6)]
    buffers = [Buffer.of(device, array) for array in arrays]
    assert sum(handle > 0 for handle in device._memory.handles) > 2
    other = Buffer(device, arrays[5].nbytes)
    device.copy(other.at, buffers[5].at, arrays[5].nbytes)
    for buffer, array in zip([*buffers, other], [*arrays, arrays[5]], strict=True):
        found = np.zeros_like(array)
        device.read(buffer.at, found)
        assert found.tobytes() == array.tobytes()
    free = [arena._free for arena in device._memory._arenas]
    del buffers, other, buffer
    gc.collect()
    assert all(arena._free == [(256, arena.size)] for arena in device._memory._arenas), free


def test_pieces_begin_where_a_device_wants_parts_of_buffers() -> None:
    device = driver.OpenclDevice(replace(driver.chosen(), shared_memory=False, aligned=4096), SMALL)
    places = [device._memory._place(device.allocate(size))[1] for size in (1, 5000, 300, 4096)]  # type: ignore[attr-defined]
    assert places == [4096, 8192, 16384, 20480]


def test_more_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = driver.chosen()
    little = facts.__class__(**{**facts.__dict__, "shared_memory": False, "most": 1 << 20})
    device = driver.OpenclDevice(little, SMALL)
    with pytest.raises(MemoryError, match="1 MiB in one piece, of which it has at most 1"):
        device.allocate((1 << 20) + 1)
    kept = [device.allocate(1 << 19) for _ in range(memory.ARENAS)]
    with pytest.raises(MemoryError, match="beside 4 MiB in buffers"):
        kept.append(device.allocate(1 << 19))
    device.free(kept[0])
    assert device.allocate(1 << 19) == kept[0]


def test_a_driver_that_moves_buffers_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    device = in_buffers(SMALL)
    buffer = Buffer.of(device, np.zeros(9, np.uint8))
    bases = device._memory._bases()
    monkeypatch.setattr(device._memory, "_bases", lambda: [base + 4096 for base in bases])
    device.launch("one", (1, 1, 1), 1, 0, b"\0\0\0\0")
    with pytest.raises(DeviceError, match="its driver moves buffers"):
        device.read(buffer.at, np.zeros(9, np.uint8))


def test_every_kernel_takes_the_buffers() -> None:
    text = sources.with_arenas(sources.source())
    assert text.count("__global uchar* arena3)") == sources.source().count("__local uchar* memory)") + 1
    assert "__local uchar* memory)" not in text


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=60))
def test_pieces_never_overlap_and_room_is_found_again(steps: list[tuple[bool, int]]) -> None:
    arena, held = memory.Arena(1, 1 << 15, 256), dict[int, int]()
    for take, size in steps:
        if take:
            start = arena.take(size)
            if start is None:
                assert all(stop - at < -(-size // 256) * 256 for at, stop in arena._free)
                continue
            assert start % 256 == 0
            assert 256 <= start <= start + size <= arena.size
            assert all(start + size <= at or at + n <= start for at, n in held.items())
            held[start] = size
        elif held:
            gone = sorted(held)[size % len(held)]
            arena.give_back(gone)
            del held[gone]
    for at in held:
        arena.give_back(at)
    assert arena._free == [(256, 1 << 15)]
