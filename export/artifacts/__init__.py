"""Artifacts: the files that one runtime needs besides manifest, weights and tokenizer. One file here a runtime.

A runtime without a file here needs none. A file whose artifacts are for a kind of machine each, named `tvm:x86-64-v3`,
provides `maker(machine)`, `machines()` and `here()`; they are made when they are named. What makes them, and any other
file, provides `reason(spec)`, why the runtime cannot run the model, or None; and `make(folder, request)`, which writes
its files and returns what the manifest says of them. One with ON_REQUEST is made only where it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol, cast

from edgedec.bundle.manifest import Artifact, Text
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.layout import Layout
from edgedec.extras import install_command
from edgedec.runtime import runtime_names
from edgedec.spec import ModelSpec

__all__ = ["Maker", "Request", "Tuning", "choose", "made_for", "maker_names", "makers"]

# Runtimes that no files are made for: of models imported as they are, and of other runtimes.
_NEVER_MADE = {"graph", "paired"}
# Files whose artifacts are for a kind of machine each.
_BY_MACHINE = {"qnn", "tvm"}
# The artifact of the ort runtime's devices, which others by machine build on.
_DEVICES = "devices"


Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Tuning:
    """How the schedules of compiled libraries are chosen. measure: those that no record of this processor says are
    measured here; database: the file of the records (None: the user's own)."""

    measure: bool = False
    database: Path | None = None


@dataclass(frozen=True)
class Request:
    """What artifacts are made from. kv: the cache formats to support; model_kv: the default one; weights: the
    folder of the weights file."""

    layout: Layout
    text: Text
    kv: tuple[str, ...]
    model_kv: str
    weights: Path | None = None
    tuning: Tuning = Tuning()
    progress: Progress = lambda *_: None


class Maker(Protocol):
    """What a file of this folder provides."""

    def reason(self, spec: ModelSpec) -> str | None:
        """Why the runtime cannot run the model, in one line; None if it can."""

    def make(self, folder: Path, request: Request) -> Artifact:
        """Write the runtime's files into `folder`."""


def makers() -> dict[str, Maker]:
    """The runtimes that need files, without those by machine."""
    return {name: _maker(name) for name in maker_names()}


def files_for(runtime: str, spec: ModelSpec) -> tuple[str, ...]:
    """The artifacts that a runtime needs on this machine for a model; none if it cannot run that. runtime: with a
    device behind a colon, what that needs."""
    if runtime in _BY_MACHINE:
        here: tuple[str, ...] = _module(runtime).here()
        return tuple(name for name in here if _maker(name).reason(spec) is None)
    runtime = _DEVICES if ":" in runtime else runtime
    return (runtime,) if runtime in maker_names() and _maker(runtime).reason(spec) is None else ()


def maker_names() -> list[str]:
    """The names of `makers`, none of which is imported."""
    return sorted(file.name for file in iter_modules(__path__) if file.name not in _BY_MACHINE)


def _maker(name: str) -> Maker:
    runtime, _, machine = name.partition(":")
    return cast(Maker, _module(runtime).maker(machine) if runtime in _BY_MACHINE else _module(name))


def _module(name: str) -> Any:
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "edgedec":
            raise
        why = f"files for {name} need {error.name}: {install_command('export')}; or write none: --for native"
        raise RuntimeUnavailable(why) from None


def choose(spec: ModelSpec, wanted: Iterable[str] | None, flag: str = "--for ") -> tuple[str, ...]:
    """The runtimes to make artifacts for: all that can run the model, or those of `wanted` that need files.

    UsageError for a runtime that does not exist or cannot run the model.
    """
    found = maker_names()
    if spec.opaque:
        raise UsageError("the model is one ONNX graph of another program: only the runtime graph can run it")
    if wanted is None:
        usual = [name for name in found if not getattr(_maker(name), "ON_REQUEST", False)]
        return tuple(name for name in usual if _maker(name).reason(spec) is None)
    wanted = set(wanted)
    if any(name.startswith("qnn:") for name in wanted):
        wanted.add(_DEVICES)
    known = sorted({*found, *runtime_names()} - _NEVER_MADE)
    found += sorted(name for name in wanted if name.partition(":")[0] in _BY_MACHINE)
    for name in sorted(wanted):
        if name not in known and name not in found:
            raise UsageError(f"{flag}{name}: no such runtime; there are: {', '.join(known)}")
        reason = _maker(name).reason(spec) if name in found else None
        if reason is not None:
            raise UsageError(f"{flag}{name}: cannot run this {spec.architecture}: {reason}")
    return tuple(name for name in found if name in wanted)


def made_for(names: Iterable[str], folder: Path, request: Request) -> dict[str, Artifact]:
    """Write the artifacts of these runtimes into `folder`."""
    return {name: _maker(name).make(folder, request) for name in names}
