"""Artifacts: the files that one runtime needs besides manifest, weights and tokenizer. One file here a runtime.

A runtime without a file here needs none. A file provides `reason(spec)`, why the runtime cannot run the model, or None;
and `make(folder, request)`, which writes its files and returns what the manifest says of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Protocol, cast

from edgedec.bundle.manifest import Artifact, Text
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.layout import Layout
from edgedec.extras import install_command
from edgedec.runtime import runtime_names
from edgedec.spec import ModelSpec

__all__ = ["Maker", "Request", "choose", "made_for", "maker_names", "makers"]

# Runtimes of models that are imported as they are: nothing can be made for them.
_IMPORTED = {"graph"}


@dataclass(frozen=True)
class Request:
    """What artifacts are made from. kv: the cache formats to support; model_kv: the default one."""

    layout: Layout
    text: Text
    kv: tuple[str, ...]
    model_kv: str


class Maker(Protocol):
    """What a file of this folder provides."""

    def reason(self, spec: ModelSpec) -> str | None:
        """Why the runtime cannot run the model, in one line; None if it can."""

    def make(self, folder: Path, request: Request) -> Artifact:
        """Write the runtime's files into `folder`."""


def makers() -> dict[str, Maker]:
    """The runtimes that need files."""
    return {name: _maker(name) for name in maker_names()}


def maker_names() -> list[str]:
    """The names of `makers`, none of which is imported."""
    return sorted(file.name for file in iter_modules(__path__))


def _maker(name: str) -> Maker:
    try:
        return cast(Maker, import_module(f"{__name__}.{name}"))
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
        return tuple(name for name in found if _maker(name).reason(spec) is None)
    wanted = set(wanted)
    known = sorted({*found, *runtime_names()} - _IMPORTED)
    for name in sorted(wanted):
        if name not in known:
            raise UsageError(f"{flag}{name}: no such runtime; there are: {', '.join(known)}")
        reason = _maker(name).reason(spec) if name in found else None
        if reason is not None:
            raise UsageError(f"{flag}{name}: cannot run this {spec.architecture}: {reason}")
    return tuple(name for name in found if name in wanted)


def made_for(names: Iterable[str], folder: Path, request: Request) -> dict[str, Artifact]:
    """Write the artifacts of these runtimes into `folder`."""
    return {name: _maker(name).make(folder, request) for name in names}
