"""Runtimes by file name in `runtimes/`: listing, availability on this host, opening."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from edgedec.errors import RuntimeUnavailable
from edgedec.plugins import Family
from edgedec.runtime.call import Runtime
from edgedec.runtime.chosen import note_choice, why_chosen
from edgedec.runtime.devices import AUTO, CPU, UNNAMED, DeviceName, parse_device
from edgedec.runtime.long_ropes import with_long_ropes
from edgedec.spec.newer import newer

if TYPE_CHECKING:
    from edgedec.bundle import Bundle
from edgedec.bundle.integers import low_bits


@dataclass(frozen=True)
class RuntimeOptions:
    """threads: 0 lets the runtime choose; kv: cache format, None for the bundle's default; device: a name of
    `edgedec.runtime.devices`, "" for the runtime's default; device_cache: bytes of a device's memory that cache pages
    may take, others are in host memory until they are used (0: all of the device's memory)."""

    threads: int = 0
    kv: str | None = None
    device: str = UNNAMED
    device_cache: int = 0


@dataclass(frozen=True)
class RuntimeFacts:
    """The declarations of a runtime's file. kinds: block kinds that it runs; devices: devices that it supports;
    numbered_gpus: its GPUs are not numbered consecutively, the file's `gpu_numbers()` lists them; files: whether files
    can be exported for it; low_bits: whether it reads weights of int3 and int2; kept: and all that is kept of GGUF and
    MXFP4 files, other integers, offsets and parts of scales."""

    kinds: tuple[str, ...] = ()
    devices: tuple[str, ...] = (CPU,)
    numbered_gpus: bool = False
    files: bool = True
    low_bits: bool = False
    kept: bool = False


RUNTIMES = Family("edgedec.runtimes", "runtime", facts=RuntimeFacts, packages=True, error=RuntimeUnavailable)
_opened: WeakKeyDictionary[Runtime, RuntimeOptions] = WeakKeyDictionary()


def choose_runtime(bundle: Bundle, wanted: str = "auto", device: str = UNNAMED) -> str:
    """The runtime of a name for this bundle; "auto" is the first of `runtimes.PREFERRED` that can run it on this host,
    or, for a device, the first that supports it."""
    if wanted != "auto":
        return wanted
    place, reasons = parse_device(device), []
    for name in _candidates(place):
        reason = _reason(name, bundle, place)
        if reason is None:
            return name
        reasons.append(f"{name}: {reason}")
    on = f" on {place}" if place.name else ""
    raise RuntimeUnavailable(f"{bundle.path}: no runtime can open it here{on} ({'; '.join(reasons)})")


def unavailable_reason(name: str, bundle: Bundle, device: str = UNNAMED) -> str | None:
    """Why the runtime `name` cannot open the bundle here, or on this device, in one line; None if it can."""
    return _reason(name, bundle, parse_device(device))


def open_runtime(name: str, bundle: Bundle, options: RuntimeOptions | None = None) -> Runtime:
    """The runtime `runtimes/<name>.py` on `bundle`; RuntimeUnavailable names what is missing."""
    engine = open_engine(name, bundle, options)
    runtime = with_long_ropes(engine)
    _opened.setdefault(runtime, opened_with(engine))
    if why := why_chosen(engine):
        note_choice(runtime, why)
    return runtime


def open_engine(name: str, bundle: Bundle, options: RuntimeOptions | None = None) -> Runtime:
    """As `open_runtime`, as part of another runtime: positions are as the spec numbers them (`spec.rope`)."""
    options = options or RuntimeOptions()
    reason = _reason(name, bundle, parse_device(options.device))
    if reason is not None:
        raise RuntimeUnavailable(f"engine {name}: {reason}")
    runtime: Runtime = RUNTIMES.file(name).open(bundle, options)
    # A runtime that opened another one has that one's options already.
    _opened.setdefault(runtime, options)
    return runtime


def opened_with(runtime: Runtime) -> RuntimeOptions:
    """The options that a runtime was opened with; the defaults if it was not opened by `open_runtime`."""
    return _opened.get(runtime, RuntimeOptions())


def devices_of(name: str) -> tuple[str, ...]:
    """The devices that a runtime supports."""
    return RUNTIMES.facts(name).devices


def missing_device(name: str, device: str) -> str | None:
    """The reason, in one line, why a runtime's device is missing on this host; None if it is present."""
    reason: str | None = RUNTIMES.file(name).missing(parse_device(device))
    return reason


def gpu_numbers(name: str) -> list[int] | None:
    """The numbers of a runtime's GPUs if they are not consecutive; else None."""
    return list(RUNTIMES.file(name).gpu_numbers()) if RUNTIMES.facts(name).numbered_gpus else None


def device_said(error: Exception) -> str | None:
    """The message of a failed device, in one line; None for other errors."""
    said: str | None = import_module("edgedec.runtimes._lost").said(error)
    return said


def device_lost(runtime: Runtime) -> bool:
    """Whether a runtime's device has failed for the rest of this process."""
    return bool(import_module("edgedec.runtimes._lost").is_lost(runtime))


def _candidates(device: DeviceName) -> list[str]:
    """The runtimes that compute on a device: those made for it before those that serve many, then as preferred."""
    preferred: list[str] = list(import_module("edgedec.runtimes").PREFERRED)
    if device.name in (UNNAMED, CPU):
        return preferred
    own = [name for name in RUNTIMES.names() if name not in preferred]
    return [name for name in [*own, *preferred] if device.name in devices_of(name)]


def _reason(name: str, bundle: Bundle, device: DeviceName) -> str | None:
    """Why a runtime cannot open a bundle here, on this device; None if it can."""
    if device.name not in (UNNAMED, AUTO, *devices_of(name)):
        return f"computes on {', '.join(devices_of(name))}, not on {device.name}"
    reason: str | None = _unread(bundle, RUNTIMES.facts(name)) or RUNTIMES.file(name).unavailable_reason(bundle, device)
    return reason


def _unread(bundle: Bundle, facts: RuntimeFacts) -> str | None:
    """Which weights of a bundle a runtime does not read, in one line; None if it reads all."""
    tensors, read = bundle.manifest.tensors.values(), ("int3", "int2") if facts.low_bits else ()
    if facts.kept:
        return None
    if found := low_bits(tensor.format for tensor in tensors if tensor.format not in read):
        return f"reads no {found} weights; native, reference and ort do"
    of_k_types = [what for what in ("offsets", "parts") if any(getattr(tensor, what) for tensor in tensors)]
    if not of_k_types:
        return None
    with_what = " and ".join(of_k_types).replace("parts", "parts of scales")
    return f"reads no weights with {with_what}, as of GGUF's K types; native, reference and ort do (or --weights int4)"


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


def lacking_kinds(
    bundle: Bundle, kinds: tuple[str, ...], encoders: bool = False, facts: tuple[str, ...] = ()
) -> str | None:
    """Why a runtime that runs these block kinds cannot open the bundle; None if it can. encoders: whether it runs the
    blocks of text encoders; facts: what it has of `spec.newer`."""
    if bundle.spec.encoder and not encoders:
        return "runs no text encoders, which this model is"
    missing = [kind for kind in bundle.spec.kinds if kind not in kinds]
    if missing:
        return f"has no {', '.join(missing)} blocks, which this model needs"
    facts_missing = [fact for fact in newer(bundle.spec) if fact not in facts]
    return f"has no {', '.join(facts_missing)}, which this model needs" if facts_missing else None
