"""What a call of k rows costs on this host: measured once, kept on disk, corrected by every call.

The curve decides how much drafting can pay: where eight rows cost what one costs, wide trees are free;
where they cost eight times as much, nothing is.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter

from edgedec.bundle.folder import Bundle
from edgedec.runtime import Runtime, available_cores
from edgedec.speculation.rowcost import RowCall, prompt_ids
from edgedec.storage.files import cache_folder, replacing

_COUNTS = (1, 16, 4, 8, 2, 32, 3, 6, 12, 24)
_CONTEXT, _ROUNDS = 32, 3
# Seconds that measuring may take at a start, and the calls that are made whatever they take.
_BUDGET, _LEAST = 0.25, 5
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


def known_costs(runtime: Runtime, bundle: Bundle) -> Costs | None:
    """The whole curve, if it was measured before."""
    found = _read(_path(runtime, bundle))
    return Costs(found) if found is not None and set(_counts(runtime)) <= set(found) else None


def host_costs(runtime: Runtime, bundle: Bundle) -> Costs:
    """The curve of this runtime on this bundle and host: from disk if it was measured before. What the time did not
    suffice for is measured at the next start."""
    path = _path(runtime, bundle)
    found = _read(path) or {}
    missing = [k for k in _counts(runtime) if k not in found]
    if missing:
        found |= measure(runtime, missing)
        _write(path, found)
    return Costs(found)


def measure(runtime: Runtime, counts: Sequence[int] = (), seconds: float = _BUDGET) -> dict[int, float]:
    """Seconds by rows, 1 among them: the least of a few rounds, for noise only ever adds. Where calls are slow, what
    two and a half tenths of a second suffice for, but four counts at least, and the coarsest first."""
    counts = counts or _counts(runtime)
    context = min(_CONTEXT, runtime.spec.context_length - max(counts))
    ids = prompt_ids(runtime.spec.vocab_size, context + max(counts))
    call, began = RowCall(runtime, ids[:context], max(counts)), perf_counter()
    for _ in range(2):  # threads wake, and the weights are mapped
        call(ids[context : context + 1])
    found: dict[int, float] = {}
    for done, k in enumerate((1, *counts) * _ROUNDS):
        if done >= _LEAST and perf_counter() - began > seconds:
            break
        took = call(ids[context : context + k])
        found[k] = min(took, found.get(k, took))
    return found


def _counts(runtime: Runtime) -> list[int]:
    """Those that fit the context, the coarsest first."""
    return [k for k in _COUNTS if _CONTEXT + k <= runtime.spec.context_length] or [1]


def _path(runtime: Runtime, bundle: Bundle) -> Path:
    return cache_folder() / "costs" / f"{_key(runtime, bundle)}.json"


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


def share(costs: Costs, others: int) -> float:
    """What a call of one row a text costs each text, beside so many others."""
    rows = min(max(others, 0) + 1, costs.most)
    return costs.seconds[rows] / rows
