"""Artifacts: the files that one runtime needs besides manifest, weights and tokenizer. One file here a runtime.

A runtime without a file here needs none. A file has `FACTS` and two functions: `reason(spec)`, why the runtime cannot
run the model, or None; and `write(folder, request)`, which writes its files and returns the manifest's facts of them.
A file with one artifact per kind of machine, such as `tvm:x86-64-v3`, has instead `maker(machine)`, an object with
these two, and `here()`, the artifacts for this machine; they are made only by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from edgedec.bundle.integers import low_bits
from edgedec.bundle.manifest import Artifact, Text
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.layout import Layout
from edgedec.extras import install_command
from edgedec.plugins import Family
from edgedec.runtime import RUNTIMES
from edgedec.spec import ModelSpec

__all__ = ["FAMILY", "ArtifactFacts", "Maker", "Request", "Tuning", "choose", "files_for", "made_for"]

# The artifact of the ort runtime's devices, which others by machine build on.
_DEVICES = "devices"


Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ArtifactFacts:
    """What a file of this folder declares. on_request: its artifact is made only where it is named; by_machine: its
    artifacts are for a kind of machine each; low_bits: whether it can be made of int3 and int2."""

    on_request: bool = False
    by_machine: bool = False
    low_bits: bool = False

    @property
    def usual(self) -> bool:
        return not self.on_request and not self.by_machine


FAMILY = Family("edgedec.export.artifacts", "artifact", where="--for", facts=ArtifactFacts)


@dataclass(frozen=True)
class Tuning:
    """How the schedules of compiled libraries are chosen. measure: schedules without a record of this processor are
    measured now; database: the file of the records (None: the user's own)."""

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

    def write(self, folder: Path, request: Request) -> Artifact:
        """Write the runtime's files into `folder`."""


def files_for(runtime: str, spec: ModelSpec) -> tuple[str, ...]:
    """The artifacts that a runtime needs on this machine for a model; none if it cannot run the model. runtime: may
    name a device after a colon."""
    name = _DEVICES if ":" in runtime else runtime
    if name not in FAMILY:
        return ()
    here: tuple[str, ...] = _file(name).here() if _facts(name).by_machine else (name,)
    return tuple(one for one in here if _maker(one).reason(spec) is None)


def _file(name: str) -> Any:
    try:
        return FAMILY.file(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "edgedec":
            raise
        why = f"files for {name} need {error.name}: {install_command('export')}; or write none: --for native"
        raise RuntimeUnavailable(why) from None


def _facts(name: str) -> ArtifactFacts:
    _file(name)  # its error names the missing packages
    return FAMILY.facts(name)


def _maker(name: str) -> Maker:
    file, colon, machine = name.partition(":")
    return cast(Maker, _file(file).maker(machine) if colon else _file(file))


def choose(
    spec: ModelSpec, wanted: Iterable[str] | None, flag: str = "--for ", formats: Iterable[str] = ()
) -> tuple[str, ...]:
    """The runtimes to make artifacts for: all that can run the model, or those of `wanted` that need files. formats: of
    its matrices; few files can be made of int3 and int2.

    UsageError for a runtime that does not exist or cannot run the model.
    """
    if spec.opaque:
        raise UsageError("the model is one ONNX graph of another program: only the runtime graph can run it")
    low = low_bits(formats)
    if wanted is None:
        usual = [name for name in FAMILY.names() if _facts(name).usual and not (low and not _facts(name).low_bits)]
        return tuple(name for name in usual if _maker(name).reason(spec) is None)
    wanted = set(wanted)
    if any(name.startswith("qnn:") for name in wanted):
        wanted.add(_DEVICES)
    made = [name for name in sorted(wanted, key=lambda name: (":" in name, name)) if _is_artifact(name)]
    for name in sorted(wanted):
        if name not in made and not _is_runtime(name):
            raise UsageError(f"{flag}{name}: no such runtime; there are: {', '.join(_known())}")
        reason = _maker(name).reason(spec) if name in made else None
        if name in made and low and not _facts(name.partition(":")[0]).low_bits:
            raise UsageError(f"{flag}{name}: reads no {low} weights; native, reference and ort do")
        if reason is not None:
            raise UsageError(f"{flag}{name}: cannot run this {spec.architecture}: {reason}")
    return tuple(made)


def _is_artifact(name: str) -> bool:
    """Whether it is the name of an artifact: of a file here, with a machine if its artifacts are by machine."""
    file, colon, _ = name.partition(":")
    return file in FAMILY and _facts(file).by_machine == bool(colon)


def _is_runtime(name: str) -> bool:
    """Whether it is a runtime that files can be made for, or that needs none."""
    return name in RUNTIMES and RUNTIMES.facts(name).files


def _known() -> list[str]:
    """The runtimes and artifacts that can be named without a machine."""
    return sorted({*filter(_is_artifact, FAMILY.names()), *filter(_is_runtime, RUNTIMES.names())})


def made_for(names: Iterable[str], folder: Path, request: Request) -> dict[str, Artifact]:
    """Write the artifacts of these runtimes into `folder`."""
    return {name: _maker(name).write(folder, request) for name in names}
