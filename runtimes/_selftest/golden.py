"""Makes golden.json: the CPU engine's results of each case, and digests of memory after each launch of the emulation,
whose results are the same bytes.

    python -m edgedec.runtimes._selftest.golden
"""

from __future__ import annotations

import json
import sys
from typing import Any

from edgedec.kernels.cuda.emulated import Emulated
from edgedec.runtimes._selftest.cases import CASES, GoldenCase, run
from edgedec.runtimes._selftest.check import GOLDEN, trace, way
from edgedec.storage.files import replacing

# The ways of `check.way` in use: CUDA's, without tensor cores, without fused products, without both (OpenCL's).
_WAYS = ((), ("matrix",), ("fused",), ("matrix", "fused"))


def expected(case: GoldenCase) -> str:
    """The digest of the case's results on the CPU engine."""
    from edgedec.runtimes.native import NativeRuntime

    return run(NativeRuntime(case.bundle, case.kv, 1))


def facts(case: GoldenCase) -> dict[str, Any]:
    """The entry of a case in golden.json."""
    result, launches = expected(case), dict[str, str]()
    for missing in _WAYS:
        device = Emulated().without(missing)
        seen, found = trace(device, case)
        if found != result:
            raise SystemExit(f"{case.name}: the emulation ({way(device)}) differs from the CPU engine")
        launches[way(device)] = "".join(digest for _, digest in seen)
    return {"result": result, "launches": launches}


def main() -> int:
    text = json.dumps({case.name: facts(case) for case in CASES}, indent=1) + "\n"
    with replacing(GOLDEN) as file:
        file.write(text.encode())
    print(f"{GOLDEN}: {len(CASES)} cases", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
