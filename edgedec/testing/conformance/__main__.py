"""`python -m edgedec.testing.conformance`: run the suite on one runtime and print what it fails."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from edgedec.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.runtime import RUNTIMES, Runtime, RuntimeOptions, open_runtime
from edgedec.runtime.devices import DEVICE_NAMES
from edgedec.testing.conformance import Finding, run_suite

_MARKS = {"passed": "ok", "failed": "FAILED", "not declared": "-"}


def main(arguments: list[str] | None = None) -> int:
    """0 if the runtime passes, 1 if it fails a check, 2 if it cannot be tested here."""
    parser = argparse.ArgumentParser("python -m edgedec.testing.conformance", description=__doc__)
    names = ", ".join(RUNTIMES.names())
    parser.add_argument(
        "--runtime", required=True, help=f"a file name in runtimes/: {names}; ort:webgpu, cuda:emulated: on a device"
    )
    parser.add_argument("--bundle", type=Path, help="a bundle to run on, instead of the suite's own small ones")
    parser.add_argument("--reference", type=Path, help="the same model for the reference, if it cannot open BUNDLE")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    given = parser.parse_args(arguments)

    name, _, detail = str(given.runtime).partition(":")
    device = f"{name}:{detail}" if detail and name in DEVICE_NAMES else detail

    def opened(bundle: Bundle, options: RuntimeOptions) -> Runtime:
        return open_runtime(name, bundle, replace(options, device=device or options.device))

    try:
        bundle = Bundle.open(given.bundle) if given.bundle else None
        expected = Bundle.open(given.reference) if given.reference else None
        report = run_suite(given.runtime, opened, bundle, _silent if given.json else _line, expected)
    except (EdgedecError, ImportError) as error:
        print(f"untestable: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(report.to_json(), indent=1))
    else:
        print(f"{given.runtime}: {len(report.findings)} checks, {len(report.failed)} failed")
    return 1 if report.failed else 0


def _silent(finding: Finding) -> None:
    pass


def _line(finding: Finding) -> None:
    message = f": {finding.message}" if finding.message else ""
    print(f"{_MARKS[finding.state]:>6}  {finding.model:<12} {finding.check}{message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
