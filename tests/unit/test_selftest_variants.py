"""Which variants of a device are left out where its driver is wrong: those at fault, and no others."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from edgedec.kernels.device.interface import DeviceError
from edgedec.runtimes._selftest import opening
from edgedec.runtimes._selftest.cases import CASES

PARTS = ("a", "b", "c", "d")


class Parted:
    """A device whose bytes are wrong while it uses any of the parts at fault, or too few others."""

    name, driver, kernels, refused = "parted", "1.0", "", ""

    def __init__(self, fault: Collection[str], needs: Collection[str] = (), used: tuple[str, ...] = PARTS) -> None:
        self.fault, self.needs, self.variants = fault, needs, used

    def without(self, parts: Collection[str]) -> Parted:
        if self.refused and set(parts) == set(self.refused):
            raise DeviceError("its compiler refuses the kernels")
        return Parted(self.fault, self.needs, tuple(part for part in PARTS if part not in parts))

    @property
    def right(self) -> bool:
        return not set(self.fault) & set(self.variants) and set(self.needs) <= set(self.variants)


@pytest.fixture(autouse=True)
def by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "is_right", lambda device, case: device.right)
    monkeypatch.setattr(opening, "examine", lambda device, cases: [(case.name, "k", "") for case in cases])


def settled(device: Parted, without: tuple[str, ...] = ()) -> tuple[tuple[str, ...], opening.DeviceRecord]:
    """What is left of the device's parts, and the record."""
    record = opening.DeviceRecord(device.name, device.driver, without)
    left = opening.settle(device.without(without), record, CASES[:1])  # type: ignore[arg-type, type-var]
    assert set(left.variants) == set(PARTS) - set(record.without)
    return left.variants, record


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        ("", "abcd"),
        ("a", "bcd"),
        ("c", "abd"),
        ("d", "abc"),
        ("ab", "cd"),
        ("ac", "bd"),
        ("bd", "ac"),
        ("abcd", ""),
    ],
)
def test_what_is_at_fault_is_left_out_and_nothing_else(fault: str, left: str) -> None:
    found, record = settled(Parted(fault))
    assert found == tuple(left)
    assert record.cases == {CASES[0].name: ""}


def test_what_was_left_out_before_stays_out() -> None:
    """Found with the cases of one model; those of another find one more."""
    assert settled(Parted("ac"), ("a",))[0] == ("b", "d")
    assert settled(Parted("c"), ("a",))[0] == ("b", "d")


def test_a_program_that_the_driver_refuses_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parted, "refused", "b")
    assert settled(Parted("c"))[0] == ("a", "b", "d")
    assert settled(Parted("b"))[0] == ("c", "d")


def test_what_no_variant_helps_keeps_all_of_them() -> None:
    found, record = settled(Parted("", "x"))
    assert found == PARTS
    assert record.cases == {CASES[0].name: "k"}


def test_one_by_one_then_the_first_two_three_and_all() -> None:
    assert [parts for parts, _ in opening.fewer(Parted(""))] == [  # type: ignore[arg-type]
        ("a",), ("b",), ("c",), ("d",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d"),
    ]  # fmt: skip
