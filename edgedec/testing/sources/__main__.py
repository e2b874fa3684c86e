"""`python -m edgedec.testing.sources BUNDLE --language opencl`: sources of a bundle on a device here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.errors import BundleUnsafe, EdgedecError
from edgedec.runtime.trust import trusting, why_not_run
from edgedec.runtimes.tvm.plans import source_of
from edgedec.testing.sources.check import check, largest
from edgedec.testing.sources.machine import machine_for


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m edgedec.testing.sources", description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--language", default="opencl", help="opencl, webgpu, or cuda (emulated)")
    parser.add_argument("--kv", default="f32", help="f32, f16, int8 or int4")
    parser.add_argument("-n", type=int, default=16, help="tokens to decode")
    parser.add_argument("--trust-code", action="store_true", help="run the sources, whoever made the bundle")
    given = parser.parse_args(arguments)
    try:
        bundle = Bundle.open(find(given.bundle))
        source, plan = source_of(bundle, given.language)
        with trusting(given.trust_code):
            _check_trust(bundle, given.language)
        machine = machine_for(given.language, source, plan)
        found = check(bundle, plan, machine, given.kv, given.n)
    except EdgedecError as error:
        print(f"edgedec: {error}", file=sys.stderr)
        return 1
    print(f"{machine.name}: {len(found.states)} states of blocks, {found.decoded} tokens decoded")
    states, logits = largest(found.states), largest(found.logits)
    print(f"largest difference from the CPU engine: states {states:.2g}, logits {logits:.2g}")
    print(f"greedy tokens as the CPU engine's: {found.equal} of {found.decoded}")
    return 0 if found.equal == found.decoded else 1


def _check_trust(bundle: Bundle, language: str) -> None:
    """BundleUnsafe unless the user trusts the sources: compiled for this processor, they could do anything."""
    reason = why_not_run(bundle)
    if reason is not None:
        raise BundleUnsafe(f"{bundle.path}: its sources in {language} are code; {reason}")


if __name__ == "__main__":
    sys.exit(main())
