"""Drivers that allow a kernel fewer threads than others do."""

from __future__ import annotations

import opencl_devices
import pytest

from edgedec.kernels.device.interface import DeviceError
from edgedec.kernels.opencl import driver
from edgedec.runtimes._selftest.cases import CASES
from edgedec.runtimes._selftest.check import examine, is_right

pytestmark = pytest.mark.skipif(
    opencl_devices.why_not() is not None, reason=f"opencl: {opencl_devices.why_not()} (Debian: pocl-opencl-icd)"
)


class Limited(driver.OpenclDevice):
    """A device whose driver allows every kernel so many threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        super().__init__(driver.chosen())

    def _allowed(self, kernel: int) -> int:
        return min(super()._allowed(kernel), self._limit)


@pytest.fixture(autouse=True)
def first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(driver.DEVICE, "0")


@pytest.mark.parametrize("limit", [160, 64, 32])
def test_the_bytes_do_not_depend_on_it(limit: int) -> None:
    device = Limited(limit)
    assert device.most_threads == limit
    assert [case.name for case in CASES if case.kv == "int8" and not is_right(device, case)] == []


@pytest.mark.parametrize("limit", [160, 64])
def test_threads_without_a_value_write_none(limit: int) -> None:
    """Every launch leaves what it does not compute: rows of 64 values by 128 threads once wrote into the next row."""
    facts = [case for case in CASES if case.model == "facts"]
    assert len(facts) == 1
    assert [finding for finding in examine(Limited(limit), facts) if finding.kernel] == []


def test_what_a_kernel_cannot_do_with_is_named() -> None:
    device = Limited(64)
    with pytest.raises(DeviceError, match=r"product_int4_8 needs work-groups of 128 threads; the driver allows it 64$"):
        device.launch("product_int4_8", (1, 1, 1), 128, 4096 * 8, bytes(8))
    with pytest.raises(DeviceError, match=r"attend_f32 needs work-groups of 32 threads; the driver allows it 16$"):
        Limited(16).launch("attend_f32", (1, 1, 1), 128, 4096, bytes(8))


def test_asking_what_is_allowed_makes_no_kernels() -> None:
    device = driver.OpenclDevice(driver.chosen())
    before = set(device._kernels)
    assert device.most_threads > 0
    assert set(device._kernels) == before
