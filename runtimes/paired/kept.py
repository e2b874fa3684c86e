"""Costs of engines, measured once and kept in the cache folder until the bundle, an engine, a driver or the host
changes."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from edgedec.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.runtime import Runtime, available_cores
from edgedec.runtimes.paired.costs import CPU, EngineCosts
from edgedec.storage.files import cache_folder, replacing
from edgedec.storage.serde import from_json
from edgedec.version import __version__

_VERSION = 1


def kept_path(bundle: Bundle, engines: Mapping[str, Runtime]) -> Path:
    """The file with the costs of these engines on this bundle."""
    facts = [_VERSION, __version__, bundle.digest, platform.machine(), _processor(), available_cores()]
    for device, runtime in engines.items():
        can = runtime.capabilities
        facts += [device, runtime.name, can.device, can.driver, can.threads, can.isa, runtime.new_cache(1).kind]
    return cache_folder() / "engines" / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}.json"


def read_costs(path: Path, devices: Mapping[str, object]) -> dict[str, EngineCosts] | None:
    """The kept costs by device, without those that failed when they were measured; None if there is no intact file."""
    try:
        kept = json.loads(path.read_text("utf-8"))
        costs = {str(device): from_json(EngineCosts, one, path.name) for device, one in kept.items()}
    except (OSError, ValueError, AttributeError, RecursionError, EdgedecError):
        return None
    return costs if {CPU} <= costs.keys() <= devices.keys() and all(one.sound for one in costs.values()) else None


def write_costs(path: Path, costs: Mapping[str, EngineCosts]) -> None:
    """Write the costs. Without a writable cache folder the next start repeats the measurement."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(json.dumps({device: asdict(one) for device, one in costs.items()}, indent=1).encode())
    except OSError:
        pass


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() or platform.node()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
