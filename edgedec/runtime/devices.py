"""Names of devices: `cpu`, `cuda`, `webgpu`, or with a detail, `qnn:SM8650`, `cuda:1`; `auto`: the quickest by
measurement. Without a name the engine chooses, by default the CPU.

A runtime declares in `RuntimeFacts.devices` which it computes on, by default the CPU.
"""

from __future__ import annotations

from typing import NamedTuple

from edgedec.errors import UsageError

UNNAMED, AUTO, CPU = "", "auto", "cpu"
# The names that users may give.
DEVICE_NAMES = (AUTO, CPU, "cuda", "opencl", "webgpu", "dml", "coreml", "openvino", "qnn")


class DeviceName(NamedTuple):
    """name: one of `DEVICE_NAMES`, or `UNNAMED`; detail: a device's number, or its kind such as a SoC."""

    name: str = UNNAMED
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.detail}" if self.detail else self.name

    @property
    def number(self) -> int:
        """The device's number; by default the first."""
        if self.detail and not self.detail.isdigit():
            raise UsageError(f"device {self}: {self.detail!r} is not the number of a device, as in {self.name}:0")
        return int(self.detail or 0)


def parse_device(word: str) -> DeviceName:
    """
    >>> parse_device("qnn:SM8650")
    DeviceName(name='qnn', detail='SM8650')
    """
    if word == UNNAMED:
        return DeviceName()
    name, colon, detail = word.partition(":")
    if name not in DEVICE_NAMES:
        raise UsageError(f"no device {name!r}; there are: {', '.join(DEVICE_NAMES)}")
    if bool(colon) != bool(detail) or (detail and name in (AUTO, CPU)):
        raise UsageError(f"device {word!r}: is a name, or NAME:DETAIL as in cuda:1 or qnn:SM8650")
    return DeviceName(name, detail)
