"""The OpenCL engine, on whatever device there is (PoCL runs it on a CPU), gives the native engine's bytes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import opencl_devices
import pytest
from gpu_engines import runs_on_gpus, told

import edgedec
from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.cpu import loader
from edgedec.kernels.device.interface import DeviceError
from edgedec.kernels.opencl import driver, library
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime
from edgedec.spec import KV_FORMATS, WEIGHT_FORMATS
from edgedec.testing.conformance import run_suite
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

opencl = pytest.importorskip("edgedec.runtimes.opencl")
native = pytest.importorskip("edgedec.runtimes.native")

RUNS = tuple(name for name, spec in MODELS.items() if runs_on_gpus(spec))


REASON = opencl_devices.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON} (Debian: pocl-opencl-icd)")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")
GUARD = 1024


@pytest.fixture(autouse=True)
def first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(driver.DEVICE, "0")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory):
    """Makes a bundle of random weights, once for each model and format."""
    made: dict[tuple[str, str], edgedec.bundle.Bundle] = {}

    def make(model: str, fmt: str) -> edgedec.bundle.Bundle:
        if (model, fmt) not in made:
            folder = tmp_path_factory.mktemp("opencl") / "bundle"
            made[model, fmt] = write_bundle(folder, MODELS[model], random_weights(MODELS[model]), fmt)
        return made[model, fmt]

    return make


class Guarded(driver.OpenclDevice):
    """A device whose memory has guards around every piece; `overrun` says which kernel wrote into one."""

    def __init__(self) -> None:
        super().__init__(driver.chosen())
        self.held, self.overrun = dict[int, int](), list[str]()

    def allocate(self, size: int) -> int:
        at = super().allocate(size + 2 * GUARD) + GUARD
        self.held[at] = size
        for guard in (at - GUARD, at + size):
            ctypes.memset(guard, 0xA5, GUARD)
        return at

    def free(self, address: int) -> None:
        del self.held[address]
        super().free(address - GUARD)

    def _run(self, name: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        super()._run(name, grid, threads, shared, arguments)
        self.synchronize()
        for at, size in self.held.items():
            if any(ctypes.string_at(guard, GUARD) != b"\xa5" * GUARD for guard in (at - GUARD, at + size)):
                self.overrun.append(name)


def check_bytes(bundle: edgedec.bundle.Bundle, kv: str) -> None:
    device = Guarded()
    tested, expected = opencl.OpenclRuntime(bundle, kv, device), native.open(bundle, RuntimeOptions(threads=1, kv=kv))
    ids = np.random.default_rng(0).integers(0, bundle.spec.vocab_size, 19).tolist()
    pairs = list(zip(told(tested, ids), told(expected, ids), strict=True))
    assert len(pairs) == 10
    assert device.launches > 50
    assert device.overrun == []
    for i, (ours, theirs) in enumerate(pairs):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes(), f"result {i}"


@pytest.mark.parametrize(
    ("model", "fmt", "kv"),
    [
        ("plain", "int4", "int8"),
        ("plain", "f16", "f16"),
        ("windows", "int8", "int4"),
        ("experts", "int4", "int8"),
        ("expert groups", "int8", "f16"),
        ("hybrid", "int8", "int8"),
        ("layer norms", "f32", "f32"),
        ("experts of gpt-oss", "int4", "int8"),
        ("experts without gates", "f16", "f16"),
        ("gates of attention", "int8", "int4"),
        ("side by side", "int4", "int8"),
        ("learned positions", "int8", "int8"),
        ("state space beside attention", "f32", "f32"),
        ("short convolution", "int4", "int8"),
        ("delta rule", "int8", "f16"),
        ("layer norms", "int3", "int8"),
        ("hybrid", "int2", "f16"),
    ],
)
def test_the_bytes_of_the_native_engine(bundle, model: str, fmt: str, kv: str) -> None:
    check_bytes(bundle(model, fmt), kv)


@slow
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("fmt", WEIGHT_FORMATS)
@pytest.mark.parametrize("model", RUNS)
def test_the_bytes_of_every_format(bundle, model: str, fmt: str, kv: str) -> None:
    check_bytes(bundle(model, fmt), kv)


@slow
def test_it_conforms() -> None:
    report = run_suite("opencl", lambda bundle, options: open_runtime("opencl", bundle, options))
    assert [f"{f.model}: {f.check}: {f.message}" for f in report.failed] == []


def test_a_text_goes_on_on_the_other_engine(bundle) -> None:
    """Saved by one engine, loaded by the other, and back."""
    made, options = bundle("plain", "int4"), RuntimeOptions(threads=1, kv="int8")
    ids = np.random.default_rng(3).integers(0, 101, 70).tolist()
    engines = opencl.open(made, options), native.open(made, options)
    for first, second in (engines, engines[::-1]):
        cache, other = first.new_cache(96), second.new_cache(96)
        logits_of(first, Rows.chain(ids, 0), cache, 69)
        cache.commit(range(70))
        other.load({name: array.copy() for name, array in cache.save().items()})
        rows = Rows.chain([7], 70)
        assert logits_of(first, rows, cache).tobytes() == logits_of(second, rows, other).tobytes()


def test_nano_tells_its_story_with_drafts(nano: Path) -> None:
    stories = []
    for engine, spec in (("native", "off"), ("opencl", "off"), ("opencl", "copy:fixed=3")):
        session = edgedec.open(nano, engine=engine, kv="int8").session(context=256, speculate=spec)
        text = "Tom had a red ball. Tom had a red ball. Tom had a"
        stories.append("".join(session.generate(text, max_tokens=12, sampling=edgedec.Sampling())))
        drafted = session.report()["drafters"]["copy"]["proposed"] if spec != "off" else 0
    assert drafted > 3
    assert stories[0] == stories[1] == stories[2]


def test_a_device_is_chosen_by_number_or_name_and_refused_by_name(bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    name = driver.chosen().name
    monkeypatch.setenv(driver.DEVICE, name[:8].upper())
    assert driver.chosen().name == name
    for wanted in ("99", "no such device"):
        monkeypatch.setenv(driver.DEVICE, wanted)
        assert driver.why_not() == f"no OpenCL device {wanted!r}"
        with pytest.raises(RuntimeUnavailable, match="engine opencl: no OpenCL device"):
            opencl.open(bundle("plain", "int4"), RuntimeOptions())
    monkeypatch.delenv(driver.DEVICE)
    if not any(facts.gpu for facts in library.devices()):
        assert "EDGEDEC_OPENCL may name one of 0:" in (driver.why_not() or "")


def test_what_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    device = driver.OpenclDevice(driver.chosen())
    with pytest.raises(DeviceError, match="kernel nothing: no such kernel"):
        device.launch("nothing", (1, 1, 1), 32, 0, b"")
    with pytest.raises(DeviceError, match="bytes of local memory, of"):
        device.launch("embed", (1, 1, 1), 32, 1 << 30, b"")
    with pytest.raises(MemoryError, match="in one piece"):
        device.allocate(1 << 50)


def test_kernels_that_do_not_compile_are_named() -> None:
    code = "from edgedec.kernels.opencl import driver; driver.OpenclDevice(driver.chosen(), '__kernel void broken(')"
    # A process of its own: PoCL 3.1 may fall over such a program when it ends.
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "its compiler refuses the kernels: error:" in found.stderr


def test_no_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from edgedec.kernels.opencl import driver; print(driver.why_not())"
    environment = {**os.environ, library.LIBRARY: "/nowhere/libOpenCL.so"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout == "no OpenCL library (/nowhere/libOpenCL.so)\n"


def test_compiled_kernels_are_kept_and_a_damaged_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(driver, "_OWN_CACHE", ())
    text = "__kernel void one(int a, __local uchar* m) { }"
    driver.OpenclDevice(driver.chosen(), text).launch("one", (1, 1, 1), 1, 0, b"\0\0\0\0")
    (kept,) = (tmp_path / "opencl").glob("*.bin")
    whole = kept.read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2]):
        kept.write_bytes(damaged)
        device = driver.OpenclDevice(driver.chosen(), text)
        device.launch("one", (1, 1, 1), 1, 0, b"\0\0\0\0")
        device.synchronize()
        assert len(kept.read_bytes()) > len(damaged)
