"""Whether a device computes the CPU engine's bytes: the full check, which names the wrong kernel, and the short one,
cheap enough for every opening."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from edgedec.kernels.device.interface import Device, DeviceError
from edgedec.runtimes._device.runtime import LaunchedRuntime
from edgedec.runtimes._selftest.cases import CASES, GoldenCase, run
from edgedec.runtimes._selftest.watched import Watched

GOLDEN = Path(__file__).with_name("golden.json")


class KernelFinding(NamedTuple):
    """The finding for a case: the first kernel with wrong bytes ("": all are right), and what is wrong."""

    case: str
    kernel: str
    problem: str


@dataclass(frozen=True)
class Golden:
    """The golden data of a case: a digest of its results, and for each way to launch it (`way`) two bytes of each
    launch's digest."""

    result: str
    launches: dict[str, str]


@cache
def golden() -> dict[str, Golden]:
    """The golden data by the case's name."""
    return {name: Golden(**facts) for name, facts in json.loads(GOLDEN.read_text("utf-8")).items()}


def way(device: Device) -> str:
    """How a device's steps are launched: with or without tensor cores, with or without fused products."""
    return f"{'matrix' if device.has_matrix else 'plain'} {'fused' if device.fused_bytes else 'apart'}"


def examine(device: Device, cases: Iterable[GoldenCase] = CASES) -> Iterator[KernelFinding]:
    """A finding for each case; every launch is compared."""
    for case in cases:
        yield _examined(device, case)


def is_right(device: Device, case: GoldenCase) -> bool:
    """Whether the case's results are the CPU engine's, with the usual launches. A MemoryError is passed on: it is no
    fault of a kernel."""
    try:
        found = run(_runtime(device, case))
    except DeviceError:
        return False
    return found == golden()[case.name].result


def trace(device: Device, case: GoldenCase) -> tuple[list[tuple[str, str]], str]:
    """The kernel and a digest of each launch, and a digest of the results."""
    watched = Watched(device)
    result = run(_runtime(watched, case))
    return watched.seen, result


def _examined(device: Device, case: GoldenCase) -> KernelFinding:
    watched = Watched(device)
    expected = golden()[case.name]
    try:
        result = run(_runtime(watched, case))
        device.synchronize()
    except (DeviceError, MemoryError) as error:
        return _first_wrong(watched, expected, case) or KernelFinding(case.name, watched.running, str(error))
    wrong = _first_wrong(watched, expected, case)
    if wrong or result == expected.result:
        return wrong or KernelFinding(case.name, "", "")
    return KernelFinding(case.name, "?", "results differ from those of the CPU engine, though no launch's bytes do")


def _first_wrong(watched: Watched, expected: Golden, case: GoldenCase) -> KernelFinding | None:
    """The first launch whose bytes differ; later launches read these bytes, so they are no evidence."""
    known = expected.launches[way(watched)]
    for i, (kernel, digest) in enumerate(watched.seen):
        if known[4 * i : 4 * i + 4] != digest:
            said = f"launch {i + 1} of {len(known) // 4}: other bytes than those of the CPU engine"
            return KernelFinding(case.name, kernel, said)
    return None


def _runtime(device: Device, case: GoldenCase) -> LaunchedRuntime:
    return LaunchedRuntime(case.bundle, case.kv, device)
