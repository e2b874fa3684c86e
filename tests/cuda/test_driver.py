"""The engine through `driver.py`, on a libcuda of the tests (fake_cuda.py): which functions are called when."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cuda import ATTRIBUTES, FakeCuda

import edgedec
from edgedec.bench import device, device_report
from edgedec.bundle import Bundle
from edgedec.cli import main
from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import driver, emulated, library
from edgedec.kernels.device.interface import Buffer, DeviceError
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime, why_chosen
from edgedec.runtimes._device import paged
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCuda]:
    """A machine with a GPU, as far as the driver's functions tell."""
    fake = FakeCuda()
    (tmp_path / "engine.sm_90.cubin").write_bytes(b"kernels")
    monkeypatch.setattr(library, "libcuda", lambda: fake)
    monkeypatch.setenv(driver.CUBINS, str(tmp_path))
    monkeypatch.setenv("EDGEDEC_CUDA", "0")
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    yield fake
    gc.collect()


def test_shares_of_an_unknown_gpu_are_of_what_its_driver_says(
    cuda: FakeCuda, nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "KNOWN", {})
    runtime = open_runtime("cuda", Bundle.open(nano), RuntimeOptions(threads=1))
    found = device.measure(runtime, 1000, rows=(1,), context=4, prefill=4, repetitions=1)
    assert (found.memory_rate, found.tensor_rate) == (2e3 * ATTRIBUTES[36] * ATTRIBUTES[37] / 8, 0)
    step, prefill = found.steps
    assert step.share == pytest.approx(step.bandwidth / found.memory_rate)
    assert prefill.share == 0
    monkeypatch.setattr(FakeCuda, "cuDeviceGetAttribute", lambda self, value, which, number: 1)
    assert runtime.memory_rate == 0


def bundle_of(folder: Path, model: str) -> Any:
    return write_bundle(folder / model, MODELS[model], random_weights(MODELS[model]), "int4")


@pytest.mark.parametrize("model", ["plain", "hybrid"])
def test_first_steps_are_captured_and_give_the_cpu_engine_s_bytes(cuda: FakeCuda, tmp_path: Path, model: str) -> None:
    """Nothing was loaded before: weights, working memory and kernels come with the first step of each shape."""
    bundle, found = bundle_of(tmp_path, model), []
    for name in ("cuda", "native"):
        runtime = open_runtime(name, bundle, RuntimeOptions(threads=1, kv="int8"))
        cache, told = runtime.new_cache(96), list[bytes]()
        for n in (40, 1, 1, 3):
            told.append(logits_of(runtime, Rows.chain(np.arange(n) % 101, cache.length), cache).tobytes())
            cache.commit(range(n))
        found.append([*told, cache.save()["state"].tobytes()])
    assert found[0] == found[1]
    assert cuda.called.count("cuStreamBeginCapture_v2") > 2
    assert cuda.called.count("cuGraphLaunch") > cuda.called.count("cuStreamBeginCapture_v2")
    assert (tmp_path / "cache" / "self-tests").is_dir()


def test_between_begin_and_end_of_a_capture_there_are_launches_only(cuda: FakeCuda, tmp_path: Path) -> None:
    runtime: Any = open_runtime("cuda", bundle_of(tmp_path, "plain"), RuntimeOptions(kv="int8"))
    for n in (1, 33):
        logits_of(runtime, Rows.chain(range(n), 0), runtime.new_cache(40))
    inside, seen = False, set[str]()
    for name in cuda.called:
        inside = inside and name != "cuStreamEndCapture"
        seen |= {name} if inside else set()
        inside = inside or name == "cuStreamBeginCapture_v2"
    assert seen == {"cuLaunchKernel"}


@pytest.mark.parametrize("own", [True, False])
def test_what_is_freed_while_launches_are_recorded_is_freed_after_that(cuda: FakeCuda, own: bool) -> None:
    gpu = driver.Gpu()
    buffers = [Buffer(gpu if own else driver.Gpu(), 1000)]  # of another model of this process
    at = buffers[0].at

    def launches() -> None:
        buffers.clear()
        gc.collect()
        assert at in cuda.held

    gpu.record(launches)
    assert at not in cuda.held
    again = Buffer(gpu, 1000).at  # nothing is recorded any more
    gc.collect()
    assert again not in cuda.held


def test_what_is_no_launch_spoils_a_recording(cuda: FakeCuda) -> None:
    gpu = driver.Gpu()
    held = Buffer(gpu, 256)
    with pytest.raises(DeviceError, match=r"copying to the GPU|running kernels"):
        gpu.record(lambda: gpu.write(held.at, np.zeros(4)))
    gpu.write(held.at, np.arange(4.0))  # the next is whole
    out = np.zeros(4)
    gpu.read(held.at, out)
    assert out.tolist() == [0, 1, 2, 3]


def test_large_copies_are_in_the_stream_too(cuda: FakeCuda) -> None:
    gpu, data = driver.Gpu(), np.arange(3 << 20, dtype=np.int32)
    held, out = Buffer(gpu, data.nbytes), np.empty_like(data)
    gpu.write(held.at, data)
    assert cuda.called[-3:] == ["cuMemcpyHtoDAsync_v2", "cuCtxSetCurrent", "cuStreamSynchronize"]
    gpu.read(held.at, out)
    assert (out == data).all()


def test_a_gpu_without_memory_swaps_and_goes_on(cuda: FakeCuda, nano: Path) -> None:
    """No limit is given: the pages of many texts fill the GPU, and those of texts that rest leave it."""
    model = edgedec.open(nano, engine="cuda", kv="f32")
    runtime: Any = model.runtime
    runtime.load()
    logits_of(runtime, Rows.chain(np.arange(70) % 100, 0), runtime.new_cache(128))
    cuda.memory, caches, told = sum(cuda.held.values()) + (5 << 20), [], []
    for i in range(18):
        caches.append(runtime.new_cache(128))
        told.append(logits_of(runtime, Rows.chain((np.arange(70) + i) % 100, 0), caches[-1], 69).tobytes())
        caches[-1].commit(range(70))
    assert runtime._pool.frames.swapped > 0
    assert 0 < runtime._pool.budget.most <= 13 << 20  # with the slabs that were there
    for i in range(2):
        logits_of(runtime, Rows.chain([5], 70), caches[i])
        again = runtime.new_cache(128)
        assert logits_of(runtime, Rows.chain((np.arange(70) + i) % 100, 0), again, 69).tobytes() == told[i]


def test_pages_make_room_for_what_a_step_computes_with(
    cuda: FakeCuda, nano: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have all of the GPU's memory when a step's own is to grow."""
    monkeypatch.setattr(paged, "_RELIEF", 1 << 20)
    runtime: Any = edgedec.open(nano, engine="cuda", kv="f32").runtime
    caches, run, short = [runtime.new_cache(128) for _ in range(12)], runtime._run, [1]
    for cache in caches:
        logits_of(runtime, Rows.chain(np.arange(70) % 100, 0), cache, 69)
        cache.commit(range(70))
    expected = logits_of(runtime, Rows.chain([5], 70), caches[0]).tobytes()
    before = runtime._pool.budget.taken

    def once_short(*rest: Any) -> Any:
        if short:
            raise MemoryError(short.pop())
        return run(*rest)

    runtime._run = once_short
    assert logits_of(runtime, Rows.chain([5], 70), caches[0]).tobytes() == expected
    assert not short
    assert 0 < runtime._pool.budget.most < before
    assert runtime._pool.frames.away > 0


def test_the_report_runs_to_its_end(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device_report, "_STORY", 2)
    out = tmp_path / "report.json"
    assert device_report.main(["--small", "--out", str(out)]) == 0
    assert "cuEventElapsedTime" in cuda.called


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (100, "no NVIDIA GPU: the driver finds none, or CUDA_VISIBLE_DEVICES hides it"),
        (803, "GPU: starting the driver: fake error 803 (CUDA error 803)"),
        (2, "GPU: starting the driver: fake error 2 (CUDA error 2)"),
    ],
)
def test_a_driver_that_does_not_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, nano: Path, code: int, said: str
) -> None:
    monkeypatch.delenv("EDGEDEC_CUDA", raising=False)
    monkeypatch.setenv("EDGEDEC_OPENCL", "no such device")
    fake = FakeCuda(started=code)
    monkeypatch.setattr(library, "ctypes", SimpleNamespace(CDLL=lambda name: fake))
    monkeypatch.setattr(library, "libcuda", library.libcuda.__wrapped__)
    assert driver.why_not() == said
    model = edgedec.open(nano, device="auto")
    assert model.runtime.name == "native"
    assert f"cuda: {said}" in why_chosen(model.runtime)


def test_a_driver_older_than_the_kernels_is_named(cuda: FakeCuda, nano: Path) -> None:
    cuda.version = 12080
    with pytest.raises(RuntimeUnavailable) as caught:
        edgedec.open(nano, engine="cuda")
    assert re.fullmatch(
        r"engine cuda: the NVIDIA driver \(CUDA 12\.8(, [\d.]+)?\) is older than the kernels, which are of CUDA 13\.0: "
        "install driver 580 or later",
        str(caught.value),
    )
    cuda.version = 13010
    assert driver.why_not() is None


def test_weights_that_do_not_fit_are_one_line(cuda: FakeCuda, nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, need = Bundle.open(nano).path, Bundle.open(nano).manifest.tensors.values()
    mib = -(-sum(tensor.stored_bytes for tensor in need) >> 20)
    edgedec.open(nano, engine="cuda")  # tested, and remembered
    gc.collect()
    cuda.memory = sum(cuda.held.values()) + (1 << 20)
    assert main(["run", "-m", str(nano), "--engine", "cuda", "-p", "Once"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        f"edgedec: engine cuda: NVIDIA H100 of a test has no memory for the weights of {path}: they "
    )
    assert f"they need {mib:,} MiB, 0 MiB are free (GPU: taking " in said
    assert said.endswith("export the model with fewer bits (--weights int4), or use another device, as --device cpu\n")
    gc.collect()
    assert sum(cuda.held.values()) <= cuda.memory - (1 << 20)


def test_no_memory_for_the_self_test_says_nothing_of_kernels(cuda: FakeCuda, nano: Path) -> None:
    """It was remembered as wrong kernels."""
    cuda.memory = 1 << 10
    with pytest.raises(
        RuntimeUnavailable, match=r"engine cuda: GPU: taking \d+ bytes: .*; other programs may hold its"
    ):
        edgedec.open(nano, engine="cuda")
    cuda.memory = 1 << 40
    assert edgedec.open(nano, engine="cuda").runtime.name == "cuda"


def test_a_model_that_goes_leaves_nothing_with_the_driver(cuda: FakeCuda, nano: Path) -> None:
    for _ in range(10):
        model = edgedec.open(nano, engine="cuda")
        assert len(list(model.session(speculate="off").generate("Once", max_tokens=2))) > 0
        assert cuda.retained == 1
        del model
        gc.collect()
    assert (cuda.retained, cuda.living(), cuda.left_behind) == (0, [], [])


def test_devices_of_one_gpu_end_one_by_one(cuda: FakeCuda) -> None:
    first, second = driver.Gpu(), driver.Gpu()
    plain = first.without(["matrix"])
    held = Buffer(first, 1000)
    del first
    assert cuda.retained == 2
    del plain
    assert cuda.retained == 2  # memory is there
    del held
    assert (cuda.retained, cuda.living()) == (1, ["module", "stream", "c_ubyte_Array_4194304"])
    del second
    assert (cuda.retained, cuda.living(), cuda.left_behind) == (0, [], [])


def test_memory_and_graphs_go_before_their_device_in_whatever_order_they_are_found(cuda: FakeCuda) -> None:
    ring: list[Any] = [driver.Gpu()]
    ring += [Buffer(ring[0], 1000), ring[0].record(lambda: None), ring]
    other = driver.Gpu()

    def launches() -> None:
        ring.clear()
        gc.collect()
        assert cuda.retained == 2

    ring[3].append(ring[:3])  # a collection finds them all at once
    ring[1].ring = ring[0].ring = ring[:3]
    other.record(launches)
    gc.collect()
    assert (cuda.retained, cuda.left_behind) == (1, [])
    del other, launches
    gc.collect()
    assert (cuda.retained, cuda.living(), cuda.left_behind) == (0, [], [])


@pytest.mark.parametrize("failing", ["cuModuleLoadData", "cuStreamCreate", "cuMemAllocHost_v2"])
def test_a_device_that_cannot_be_opened_leaves_nothing(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr(cuda, failing, lambda *_: 999)
    with pytest.raises(DeviceError, match="CUDA error 999"):
        driver.Gpu()
    assert (cuda.retained, cuda.living(), cuda.left_behind) == (0, [], [])
