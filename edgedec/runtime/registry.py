"""Runtimes by file name in `runtimes/`: which there are, which run here, opening one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING

from edgedec.errors import RuntimeUnavailable
from edgedec.runtime.call import Runtime

if TYPE_CHECKING:
    from edgedec.bundle import Bundle


@dataclass(frozen=True)
class RuntimeOptions:
    """threads: 0 lets the runtime choose; kv: cache format, None for the bundle's default."""

    threads: int = 0
    kv: str | None = None


def runtime_names() -> list[str]:
    """The runtimes that ship, by file name."""
    package = import_module("edgedec.runtimes")
    return sorted(m.name for m in iter_modules(package.__path__) if not m.name.startswith("_"))


def choose_runtime(bundle: Bundle, wanted: str = "auto") -> str:
    """The runtime that a name means on this bundle; "auto" is the first of `runtimes.PREFERRED` that can run it
    here."""
    if wanted != "auto":
        return wanted
    reasons = []
    for name in import_module("edgedec.runtimes").PREFERRED:
        reason = _module(name).unavailable_reason(bundle)
        if reason is None:
            return str(name)
        reasons.append(f"{name}: {reason}")
    raise RuntimeUnavailable(f"{bundle.path}: no runtime can open it here ({'; '.join(reasons)})")


def open_runtime(name: str, bundle: Bundle, options: RuntimeOptions | None = None) -> Runtime:
    """The runtime `runtimes/<name>.py` on `bundle`; RuntimeUnavailable says what it lacks."""
    module = _module(name)
    reason = module.unavailable_reason(bundle)
    if reason is not None:
        raise RuntimeUnavailable(f"engine {name}: {reason}")
    runtime: Runtime = module.open(bundle, options or RuntimeOptions())
    return runtime


def _module(name: str) -> ModuleType:
    if name not in runtime_names():
        raise RuntimeUnavailable(f"no runtime {name!r}; there are: {', '.join(runtime_names())}")
    return import_module(f"edgedec.runtimes.{name}")


def available_cores() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_kv(bundle: Bundle, wanted: str | None) -> str:
    """The cache format to use: the bundle's first unless another of its formats is wanted."""
    formats = bundle.manifest.kv_formats
    if wanted is not None and wanted not in formats:
        raise RuntimeUnavailable(
            f"{bundle.path}: exported for KV {', '.join(formats)}, not {wanted}; export again with --kv {wanted}"
        )
    return wanted or formats[0]


def lacking_kinds(bundle: Bundle, kinds: tuple[str, ...]) -> str | None:
    """Why a runtime that runs these block kinds cannot open the bundle; None if it can."""
    missing = [kind for kind in bundle.spec.kinds if kind not in kinds]
    return f"has no {', '.join(missing)} blocks, which this model needs" if missing else None
