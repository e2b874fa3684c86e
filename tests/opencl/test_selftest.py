"""The self-test on an OpenCL device: right where the driver is, and a planted fault is named, left out or refused."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
from collections.abc import Collection
from pathlib import Path

import opencl_devices
import pytest

import edgedec
from edgedec.kernels.device.interface import DeviceError
from edgedec.kernels.opencl import driver, sources, variants
from edgedec.runtimes._selftest import check, opening
from edgedec.runtimes._selftest.cases import CASES
from edgedec.runtimes._selftest.models import SPECS

INT4 = CASES[2]


pytestmark = pytest.mark.skipif(
    opencl_devices.why_not() is not None, reason=f"opencl: {opencl_devices.why_not()} (Debian: pocl-opencl-icd)"
)
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")


@pytest.fixture(autouse=True)
def first_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setenv(driver.DEVICE, "0")


class Faulty(driver.OpenclDevice):
    """A driver that gives the first number of `embed` the wrong sign."""

    def _run(self, name: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        super()._run(name, grid, threads, shared, arguments)
        if name == "embed":
            self.synchronize()
            (address,) = struct.unpack_from("@Q", arguments, 48)
            (value,) = ctypes.string_at(address + 3, 1)
            ctypes.memset(address + 3, value ^ 0x80, 1)


def test_a_device_is_tested_when_it_is_first_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[driver.OpenclDevice]()

    class Counted(driver.OpenclDevice):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(driver, "OpenclDevice", Counted)
    for _ in range(2):
        assert edgedec.open("nano", device="opencl:0", kv="int8").runtime.name == "opencl"
    first, second = made
    assert first.launches > 100
    assert second.launches == 0
    record = json.loads(opening.record_path(first).read_text("utf-8"))
    assert record["driver"] == first.driver
    assert set(record["cases"].values()) == {""}


def test_a_planted_fault_is_named_and_refused() -> None:
    device = Faulty(driver.chosen())
    device.variants = ()
    (finding,) = check.examine(device, [INT4])
    assert finding.kernel == "embed"
    with pytest.raises(DeviceError, match=f"kernel embed of driver {re.escape(device.driver)}.*doctor --device opencl"):
        opening.checked("opencl", device, SPECS["dense"], ["int4"], "int8")


@slow
def test_a_variant_of_the_program_that_is_wrong_is_left_out() -> None:
    """Division that is said to be exact and is not: kernels then correct it themselves."""
    facts = driver.chosen()
    if "EXACT_DIVISION" not in variants.offered(facts):
        pytest.skip("the device offers no exact division")
    text = sources.source().replace("#ifdef EXACT_DIVISION\n  return q;", "#ifdef EXACT_DIVISION\n  return q * 1.001f;")
    assert text != sources.source()
    device = opening.checked("opencl", driver.OpenclDevice(facts, text), SPECS["dense"], ["int4"], "int8")
    assert "EXACT_DIVISION" not in device.variants
    record = json.loads(opening.record_path(driver.OpenclDevice(facts, text)).read_text("utf-8"))
    assert "EXACT_DIVISION" in record["without"]


@slow
def test_a_packed_dot_product_that_is_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that offers the extension, with a product that forgets its last factor."""
    facts = driver.chosen()
    if "cl_khr_integer_dot_product" in facts.extensions:
        pytest.skip("the device has such a product of its own")
    offers = facts.__class__(**{**facts.__dict__, "extensions": facts.extensions | {"cl_khr_integer_dot_product"}})
    wrong = """inline int dot_4x8packed_ss_int(uint a, uint b) {
      const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
      return p.x + p.y + p.z;
    }
    """
    monkeypatch.setattr(opening, "CASES", [case for case in CASES if case.model == "ssm"])
    first = driver.OpenclDevice(offers, wrong + sources.source())
    assert "PACKED_DOT" in first.variants
    device = opening.checked("opencl", first, SPECS["ssm"], ["int8"], "int8")
    assert device.variants == first.variants[1:]


def test_the_options_of_a_program_name_its_variants() -> None:
    facts = driver.chosen()
    said: Collection[str] = driver.OpenclDevice(facts, "__kernel void one(int a, __local uchar* m) { }").variants
    assert set(said) == set(variants.offered(facts))
    with_dot = facts.__class__(**{**facts.__dict__, "extensions": facts.extensions | {"cl_khr_integer_dot_product"}})
    assert variants.offered(with_dot)[0] == "PACKED_DOT"
