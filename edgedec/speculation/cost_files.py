"""Files of measured call costs, per bundle, engine and host in the cache folder; a runtime's sessions share them."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

from edgedec.bundle.folder import Bundle
from edgedec.runtime import Runtime, available_cores
from edgedec.spec import Attention, ModelSpec
from edgedec.spec.macs import row_macs
from edgedec.speculation.bank import TRIAL, Experience
from edgedec.speculation.costs import Costs
from edgedec.speculation.probing import RowProbe
from edgedec.storage.files import cache_folder, replacing

# The version of the file's contents; part of its name.
VERSION = 5
# The cost of a multiply-add of attention, in multiply-adds of a matrix with quantized weights, in a call of one row.
_ATTENTION = 2.0
_LARGEST = 1024

# Weak keys, and the row probe's callback has a weak reference to the costs: otherwise no entry would ever be freed.
_known: WeakKeyDictionary[Runtime, tuple[Costs, RowProbe]] = WeakKeyDictionary()


def host_costs(runtime: Runtime, bundle: Bundle) -> Costs:
    """The cost surface of this runtime on this bundle and host, as far as it is measured; its sessions share it."""
    if runtime in _known:
        return _known[runtime][0]
    path = _path(runtime, bundle)
    points, per_cell, between, known = _read(path) or ({}, 0.0, 0.0, {})
    found = Costs(points, per_cell, min(runtime.capabilities.largest_call, _LARGEST))
    found.cell_calls = cell_calls(runtime.spec)
    found.between.start(between)
    found.experiences |= known
    costs = ref(found)
    _known[runtime] = found, RowProbe(found, lambda: _write(path, costs()))
    return found


def probe_of(costs: Costs) -> RowProbe | None:
    """The row probe that completes these costs; None if they are not a runtime's."""
    return next((row_probe for known, row_probe in list(_known.values()) if known is costs), None)


def cell_calls(spec: ModelSpec) -> float:
    """The estimated cost of a cached token for a single row, in calls of one row, by multiply-adds. Blocks with an
    attention window are left out, as windows are short."""
    blocks = [block for block in spec.blocks if isinstance(block, Attention) and block.window is None]
    cell = sum(2 * block.n_heads * block.head_dim for block in blocks)
    return _ATTENTION * cell / max(row_macs(spec), 1)


def _path(runtime: Runtime, bundle: Bundle) -> Path:
    return cache_folder() / "costs" / f"{_key(runtime, bundle)}.json"


def _key(runtime: Runtime, bundle: Bundle) -> str:
    """The file's name: a hash of everything that changes the surface."""
    from edgedec.version import __version__

    can = runtime.capabilities
    facts = [
        VERSION,
        __version__,
        bundle.digest,
        runtime.name,
        can.device,
        can.threads,
        can.isa,
        runtime.new_cache(1).kind,
        platform.machine(),
        _cpu(),
        available_cores(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _cpu() -> str:
    """What is known of the processor without starting a program, as `platform.processor` does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.node()
    return next((line for line in lines if line.startswith("model name")), "")


def _read(path: Path) -> tuple[dict[int, float], float, float, dict[str, Experience]] | None:
    """Seconds by rows, of a cell, and between calls (0: unknown), and what drafters took and brought; None if there
    is no file, or if its contents are invalid."""
    try:
        kept = json.loads(path.read_text())
        points = {int(k): float(s) for k, s in kept["rows"].items()}
        per_cell, between = float(kept["per_cell"]), float(kept.get("between", 0.0))
        known = {str(name): Experience.known(*map(float, means)) for name, means in kept.get("drafters", {}).items()}
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None
    fine = points and 0 <= per_cell < 1 and all(0 < k <= _LARGEST and 0 < s < 3600 for k, s in points.items())
    fine = fine and all(0 <= x < 3600 for each in known.values() for x in (each.seconds, each.tokens, each.rows))
    return (points, per_cell, between, known) if fine and 0 <= between < 1 else None


def _write(path: Path, costs: Costs | None) -> None:
    if costs is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            kept: dict[str, Any] = {"rows": costs.points(), "per_cell": costs.per_cell}
            if costs.between.known:
                kept["between"] = costs.between.plain
            kept["drafters"] = {
                name: (each.seconds, each.tokens, each.rows)
                for name, each in costs.experiences.items()
                if each.n >= TRIAL
            }
            file.write(json.dumps(kept).encode())
    except OSError:
        pass  # if the folder is not writable, costs are measured again at the next start
