"""`edgedec doctor --device`: golden cases of every kernel on the device at hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgedec.cli._output import print_table
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import parse_device

if TYPE_CHECKING:
    from edgedec.runtimes._selftest.check import KernelFinding
    from edgedec.runtimes._selftest.opening import TestedDevice

_TESTED = ("cuda", "opencl")


def test_device(word: str) -> dict[str, Any]:
    """The results of the cases on a device; `problems` names each kernel whose bytes are wrong."""
    from edgedec.runtimes._selftest import check, opening

    device = _opened(word)
    findings = list(check.examine(device))
    opening.forget(device)
    opening.noted(device, findings)
    wrong = [finding for finding in findings if finding.kernel]
    return {
        "device": device.name,
        "driver": device.driver,
        "used": getattr(device, "summary", list)(),
        "cases": [finding._asdict() for finding in findings],
        "instead": _without(device, wrong),
        "problems": [f"kernel {f.kernel}: {f.problem} (case: {f.case})" for f in wrong],
    }


def survey(name: str) -> dict[str, Any]:
    """The times of the available engines for a model, measured now, and the choice of `--device auto`."""
    from edgedec.bundle import Bundle
    from edgedec.bundle.locate import find
    from edgedec.runtime import RuntimeOptions
    from edgedec.runtimes.paired import Surveyed

    found = Surveyed.of(Bundle.open(find(name)), RuntimeOptions(device="auto"), again=True)
    return {
        "engines": {
            device: {
                "engine": runtime.name,
                "device": runtime.capabilities.device,
                "driver": runtime.capabilities.driver,
                **(asdict(found.costs[device]) if device in found.costs else {}),
            }
            for device, runtime in found.engines.items()
        },
        "missing": found.missing,
        "prefill": found.split.prefill,
        "decode": found.split.decode,
        "why": found.why(),
        "problems": [],
    }


def show_survey(report: dict[str, Any]) -> None:
    """Print a table of engines by rows of a call, and the chosen engines."""
    measured = {device: facts for device, facts in report["engines"].items() if "rows" in facts}
    for device, facts in measured.items():
        calls = [
            (f"{rows} row{'s' * (rows > 1)}", f"{1e3 * seconds:.2f} ms", f"{rows / seconds:,.0f} tokens/s")
            for rows, seconds in zip(facts["rows"], facts["seconds"], strict=True)
        ]
        handed = f"{1e3 * facts['fixed']:.2f} ms and {1e6 * facts['each']:.1f} µs a token"
        print_table(
            [*calls, *([("handed over", handed)] if device != "cpu" else [])], title=f"{device}: {facts['device']}"
        )
    print(f"\n--device auto is {report['why']}")


def _opened(word: str) -> TestedDevice:
    from edgedec.kernels.device.interface import DeviceError
    from edgedec.runtimes import cuda, opencl

    place = parse_device(word)
    if place.name not in _TESTED:
        raise UsageError(f"--device {word}: the self-test is of {' and '.join(_TESTED)}")
    try:
        return (cuda if place.name == "cuda" else opencl).open_device(place)
    except DeviceError as error:
        raise RuntimeUnavailable(f"device {word}: {error}") from None


def _without(device: TestedDevice, wrong: list[KernelFinding]) -> dict[str, list[str]]:
    """Of each case that is wrong, the fewest variants of the device that have to go; no entry: it stays wrong."""
    from edgedec.runtimes._selftest.cases import CASES
    from edgedec.runtimes._selftest.check import is_right
    from edgedec.runtimes._selftest.opening import fewer

    found, names = dict[str, list[str]](), [finding.case for finding in wrong]
    for parts, other in fewer(device) if wrong else ():
        for case in CASES:
            if case.name in names and case.name not in found and is_right(other, case):
                found[case.name] = list(parts)
    return found


def show(report: dict[str, Any]) -> None:
    """A table of cases, then what is wrong."""
    print("\n".join([f"{report['device']}, driver {report['driver'] or 'none'}", *report["used"]]))
    print_table([(f["case"], (f["kernel"] and f"{f['kernel']}: {f['problem']}") or "right") for f in report["cases"]])
    for case, parts in report["instead"].items():
        print(f"\nright without {', '.join(parts)}, which is what edgedec will do: {case}")
    wrong = len(report["problems"])
    kernels = sorted({f["kernel"] for f in report["cases"] if f["kernel"]})
    print(f"\n{wrong} of {len(report['cases'])} cases are wrong: {', '.join(kernels)}" if wrong else "\nall is well")
