"""What a call of k rows costs on this host: measured once, kept on disk, corrected by every call.

The curve decides how much drafting can pay: where eight rows cost what one costs, wide trees are free;
where they cost eight times as much, nothing is.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from edgedec.bundle.folder import Bundle
from edgedec.runtime import Runtime, available_cores
from edgedec.speculation.rowcost import row_costs
from edgedec.storage.files import cache_folder, replacing

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_CONTEXT, _ROUNDS = 32, 3
# How fast the curve follows what is measured on line; one outlier counts as no more than a factor of two.
# The curve for more rows is written anew when it is off by `_STEP`.
_RATE, _SHARED, _WILD, _STEP = 0.15, 0.08, 0.7, 0.02


class Costs:
    """seconds[k] of a call of k rows, k from 1. Corrected on line by two factors, for one row and for more."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        """measured: seconds by rows, 1 among them; between them a straight line, beyond them the last slope."""
        self._base = _filled(measured)
        self._one = self._more = self._applied = 0.0
        self.seconds = list(self._base)

    @property
    def most(self) -> int:
        """The most rows that anything is known about."""
        return len(self._base) - 1

    def add(self, rows: int, seconds: float) -> None:
        """A call of so many rows took so long. The host may have changed for all calls, so the other
        factor follows by half."""
        if not 1 <= rows <= self.most or seconds <= 0:
            return
        wrong = max(-_WILD, min(_WILD, math.log(seconds / self.seconds[rows])))
        if rows == 1:
            self._one, self._more = self._one + _RATE * wrong, self._more + _SHARED * wrong
        else:
            self._one, self._more = self._one + _SHARED * wrong, self._more + _RATE * wrong
        self.seconds[1] = self._base[1] * math.exp(self._one)
        if abs(self._more - self._applied) > _STEP:
            self._applied, more = self._more, math.exp(self._more)
            self.seconds[2:] = [base * more for base in self._base[2:]]


def _filled(measured: Mapping[int, float]) -> list[float]:
    """{1: a, 2: b, 4: d} -> [0, a, b, (b + d) / 2, d]; made to rise: more rows never cost less."""
    known = sorted(measured)
    seconds = [0.0, measured[1]]
    for low, high in pairwise(known):
        step = (measured[high] - measured[low]) / (high - low)
        seconds += [max(seconds[-1], measured[low] + step * (k - low)) for k in range(low + 1, high + 1)]
    for k in range(2, len(seconds)):
        seconds[k] = max(seconds[k], seconds[k - 1])
    return seconds


def host_costs(runtime: Runtime, bundle: Bundle) -> Costs:
    """The curve of this runtime on this bundle and host: from disk if it was measured before."""
    path = cache_folder() / "costs" / f"{_key(runtime, bundle)}.json"
    found = _read(path)
    if found is None:
        found = measure(runtime)
        _write(path, found)
    return Costs(found)


def measure(runtime: Runtime) -> dict[int, float]:
    """The least of a few rounds: noise only ever adds."""
    counts = [k for k in _COUNTS if _CONTEXT + k <= runtime.spec.context_length] or [1]
    context = _CONTEXT if counts != [1] else 0
    return {k: min(seconds) for k, seconds in row_costs(runtime, counts, context, _ROUNDS).items()}


def _key(runtime: Runtime, bundle: Bundle) -> str:
    """Whatever changes the curve changes the name."""
    from edgedec.version import __version__

    can = runtime.capabilities
    host = [platform.machine(), platform.processor(), _cpu(), available_cores()]
    facts = [
        __version__,
        bundle.digest,
        runtime.name,
        can.device,
        can.threads,
        can.isa,
        runtime.new_cache(1).kind,
        *host,
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.node()
    return next((line for line in lines if line.startswith("model name")), "")


def _read(path: Path) -> dict[int, float] | None:
    """What was measured; None if nothing was, or if the file holds something else."""
    try:
        found = {int(k): float(s) for k, s in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    fine = 1 in found and all(0 < k <= 1024 and 0 < s < 3600 for k, s in found.items())
    return found if fine else None


def _write(path: Path, measured: Mapping[int, float]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps(measured).encode())
    except OSError:
        pass  # a folder that cannot be written costs a second at the next start, no more
