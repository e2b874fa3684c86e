"""The short self-test: when a device is first opened with a driver, the cases of a model's kernels are run. The
findings are kept in the cache folder until the driver, the kernels or the cases change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from edgedec.errors import EdgedecError
from edgedec.kernels.device.interface import Device, DeviceError
from edgedec.runtimes._selftest.cases import CASES, GoldenCase
from edgedec.runtimes._selftest.check import GOLDEN, KernelFinding, examine, is_right
from edgedec.spec import ModelSpec
from edgedec.storage.files import cache_folder, replacing
from edgedec.storage.serde import from_json

RIGHT, UNKNOWN = "", "?"


class TestedDevice(Device, Protocol):
    """A device whose driver may be faulty. driver: its version ("": none, and no test at opening); kernels: a digest of
    the kernels; variants: optional features, the likeliest culprit first."""

    driver: str
    kernels: str
    variants: tuple[str, ...]

    def without(self, parts: Collection[str]) -> TestedDevice:
        """The device with these variants disabled."""
        ...


@dataclass
class DeviceRecord:
    """The findings for a device. without: the disabled variants; cases: the wrong kernel of each case that was run
    (`RIGHT`: none)."""

    device: str
    driver: str
    without: tuple[str, ...] = ()
    cases: dict[str, str] = field(default_factory=dict)


def checked(engine: str, device: TestedDevice, spec: ModelSpec, formats: Collection[str], kv: str) -> TestedDevice:
    """The device, with variants disabled if needed, that computes the CPU engine's bytes for such a model. DeviceError
    names the wrong kernel."""
    if not device.driver:
        return device
    path, needed = record_path(device), [case for case in CASES if case.concerns(spec, formats, kv)]
    record = _read(path) or DeviceRecord(device.name, device.driver)
    device = device.without(record.without) if record.without else device
    if any(case.name not in record.cases for case in needed):
        device = settle(device, record, needed)
        remember(path, record)
    for case in needed:
        kernel = record.cases[case.name]
        if kernel != RIGHT and _used(kernel, formats, kv):
            raise DeviceError(_refusal(engine, record, kernel, case))
    return device


def settle(device: TestedDevice, record: DeviceRecord, cases: Sequence[GoldenCase]) -> TestedDevice:
    """The variant of the device with the most right cases; the record keeps the disabled variants and the wrong
    kernels."""
    gone, best = record.without, device
    wrong = _wrong(device, [case for case in cases if case.name not in record.cases])
    for parts, other in fewer(device, gone) if wrong else ():
        still = _wrong(other, cases)
        if len(still) < len(wrong):
            best, wrong, record.without, record.cases = other, still, parts, {}
        if not wrong:
            best = _restored(best, record, gone, cases)
            break
    record.cases |= {case.name: RIGHT for case in cases if case not in wrong and case.name not in record.cases}
    record.cases |= {case: kernel or UNKNOWN for case, kernel, _ in examine(best, wrong)}
    return best


def noted(device: TestedDevice, findings: Sequence[KernelFinding]) -> None:
    """Keep the findings of the whole self-test, run with all variants."""
    cases = {finding.case: finding.kernel for finding in findings}
    if device.driver and not any(cases.values()):
        remember(record_path(device), DeviceRecord(device.name, device.driver, (), cases))


def forget(device: TestedDevice) -> None:
    """Delete the findings for a device, so that the next opening tests it again."""
    if device.driver:
        record_path(device).unlink(missing_ok=True)


def record_path(device: TestedDevice) -> Path:
    said = (device.name, device.driver, device.kernels, hashlib.sha256(GOLDEN.read_bytes()).hexdigest())
    return cache_folder() / "self-tests" / f"{hashlib.sha256(chr(0).join(said).encode()).hexdigest()[:32]}.json"


def remember(path: Path, record: DeviceRecord) -> None:
    """Write the findings. Without a writable cache folder the next start repeats the test."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(asdict(record), indent=1).encode())
    except OSError:
        pass


def _read(path: Path) -> DeviceRecord | None:
    """The kept findings; None if there are none or the file is damaged."""
    try:
        return from_json(DeviceRecord, json.loads(path.read_text("utf-8")), path.name)
    except (OSError, ValueError, RecursionError, EdgedecError):
        return None


def fewer(device: TestedDevice, gone: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], TestedDevice]]:
    """Sets of variants to disable besides those `gone` already, each with the device without them: each variant alone,
    then the first two, the first three, … A program that its driver refuses is skipped."""
    left = tuple(part for part in device.variants if part not in gone)
    for some in (*((part,) for part in left), *(left[:n] for n in range(2, len(left) + 1))):
        parts = (*gone, *some)
        other = _compiled(device, parts)
        if other is not None:
            yield parts, other


def _compiled(device: TestedDevice, without: tuple[str, ...]) -> TestedDevice | None:
    """The device without these of its variants; None if its driver refuses the program."""
    try:
        return device.without(without)
    except DeviceError:
        return None


def _restored(
    device: TestedDevice, record: DeviceRecord, gone: tuple[str, ...], cases: Sequence[GoldenCase]
) -> TestedDevice:
    """The device with disabled variants enabled again that turn out not to be at fault."""
    for part in record.without[len(gone) :] if len(record.without) > len(gone) + 2 else ():
        parts = tuple(other for other in record.without if other != part)
        more = _compiled(device, parts)
        if more is not None and not _wrong(more, cases):
            device, record.without = more, parts
    return device


def _wrong(device: Device, cases: Sequence[GoldenCase]) -> list[GoldenCase]:
    return [case for case in cases if not is_right(device, case)]


def _used(kernel: str, formats: Collection[str], kv: str) -> bool:
    """Whether a model of these formats runs the kernel. Kernels without a format in their name run in every model."""
    kind, _, rest = kernel.partition("_")
    if kind == "attend":
        return rest == kv
    return kind not in ("product", "matrix") or rest.split("_")[0] in formats


def _refusal(engine: str, record: DeviceRecord, kernel: str, case: GoldenCase) -> str:
    what = "launches one after another" if kernel == UNKNOWN else f"kernel {kernel}"
    does = "do" if kernel == UNKNOWN else "does"
    return (
        f"{what} of driver {record.driver} {does} not compute the CPU engine's bytes (case: {case.name}); try "
        f"another driver, weights or cache format, then `edgedec doctor --device {engine}`"
    )
