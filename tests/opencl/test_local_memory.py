"""Attention on GPUs whose threads share little memory: smaller tiles, the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import opencl_devices
import pytest
from gpu_engines import tokens, told

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.kernels.device.interface import Device
from edgedec.kernels.opencl import driver
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.runtimes._device.runtime import LaunchedRuntime
from edgedec.runtimes._device.tiles import attend_bytes, keys_at_once, most_rows
from edgedec.spec import KV_FORMATS, Attention
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native: {loader.why_not()}")
no_opencl = pytest.mark.skipif(
    opencl_devices.why_not() is not None, reason=f"opencl: {opencl_devices.why_not()} (Debian: pocl-opencl-icd)"
)
no_cuda = pytest.mark.skipif(emulated.why_not() is not None, reason=f"cuda: {emulated.why_not()}")


def bundle_of(folder: Path, dim: int, heads: int = 4) -> Bundle:
    """A model whose two kv heads have so many values."""
    spec = MODELS["plain"]
    layers = [(replace(a, head_dim=dim, n_heads=heads, n_kv_heads=2, rope=None), mlp) for a, mlp in spec.layers]
    spec = replace(spec, layers=tuple(layers))
    return write_bundle(folder / "bundle", spec, random_weights(spec), "int4")


def check(bundle: Bundle, kv: str, device: Device) -> None:
    ours = LaunchedRuntime(bundle, kv, device)
    theirs = open_runtime("native", bundle, RuntimeOptions(threads=1, kv=kv))
    ids = tokens(40)
    for i, (one, other) in enumerate(zip(told(ours, ids), told(theirs, ids), strict=True)):
        assert one.tobytes() == other.tobytes(), f"result {i}"


@no_opencl
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_32_kib_of_local_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dim: int, kv: str) -> None:
    """What GPUs of phones have."""
    monkeypatch.setenv(driver.DEVICE, "0")
    check(bundle_of(tmp_path, dim), kv, driver.OpenclDevice(replace(driver.chosen(), local=32 << 10)))


@no_opencl
def test_eight_heads_of_a_kv_head_in_32_kib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(driver.DEVICE, "0")
    check(bundle_of(tmp_path, 256, 16), "f16", driver.OpenclDevice(replace(driver.chosen(), local=32 << 10)))


@no_cuda
@pytest.mark.parametrize("kv", KV_FORMATS)
def test_64_kib_of_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str) -> None:
    """What GPUs of sm_75 have."""
    monkeypatch.setattr(emulated.Emulated, "shared_bytes", 64 << 10)
    check(bundle_of(tmp_path, 256), kv, emulated.Emulated())


@no_cuda
def test_what_does_not_fit_is_named_when_a_model_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated.Emulated, "shared_bytes", 16 << 10)
    said = (
        "emulated: attention of 8 heads of 256 values with a cache of f32 needs 25,604 bytes of memory that a "
        "work-group shares, of 16,384; use another device, as --device cpu"
    )
    with pytest.raises(RuntimeUnavailable) as caught:
        open_runtime("cuda", bundle_of(tmp_path, 256, 16), RuntimeOptions(kv="f32", device="cuda:emulated"))
    assert str(caught.value) == said


def test_rows_give_way_before_keys_do() -> None:
    block = Attention(4, 2, 128, scale=1.0)
    assert most_rows({0: block}, {0: 132}, 227 << 10) == 8
    assert most_rows({0: block}, {0: 132}, 32 << 10) == 6
    assert attend_bytes(12, 128, 132, 32) <= 32 << 10 < attend_bytes(14, 128, 132, 32)
    wide = replace(block, head_dim=256)
    assert most_rows({0: block, 1: wide}, {0: 132, 1: 1024}, 32 << 10) == 1
    assert keys_at_once(2, 256, 1024, 32 << 10) == 16
    assert keys_at_once(12, 128, 132, 32 << 10) == 32
    assert keys_at_once(12, 128, 132, 227 << 10, 256) == 256
    assert keys_at_once(16, 256, 1024, 227 << 10, 256) == 128
