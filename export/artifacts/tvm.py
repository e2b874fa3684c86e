"""Libraries of a model compiled for a kind of machine, `tvm:x86-64-v3`: for the tvm runtime; and sources for GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgedec.bundle.integers import low_bits
from edgedec.bundle.manifest import Artifact
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.artifacts import ArtifactFacts, Request
from edgedec.export.sources.artifact import LANGUAGES, SourceMaker
from edgedec.extras import install_command
from edgedec.runtime.machines import MACHINES, machines_here
from edgedec.runtimes.tvm import artifact as held
from edgedec.runtimes.tvm.frame import VERSION
from edgedec.runtimes.tvm.support import library_lacks
from edgedec.spec import KV_FORMATS, ModelSpec
from edgedec.storage.serde import to_json

FACTS = ArtifactFacts(by_machine=True)
_TUNED = ".tuning.json"
log = logging.getLogger("edgedec.export")


def machines() -> list[str]:
    """The machines that there are libraries for."""
    return [f"{held.PREFIX}{name}" for name in (*MACHINES, *LANGUAGES)]


def here() -> tuple[str, ...]:
    """The best of the machine kinds that this machine supports."""
    return tuple(f"{held.PREFIX}{name}" for name in machines_here()[:1])


@dataclass(frozen=True)
class MachineMaker:
    """Makes the library for one machine."""

    machine: str

    def reason(self, spec: ModelSpec) -> str | None:
        """Why the library cannot run the model; None if it can."""
        return library_lacks(spec)

    def write(self, folder: Path, request: Request) -> Artifact:
        """Compile and link the library; write the tuning records with it."""
        stored = request.layout.tensors.values()
        if any(tensor.offsets for tensor in stored):
            raise UsageError("--for tvm: compiles no weights with offsets, as of GGUF's K types; add --weights int4")
        if found := low_bits(tensor.format for tensor in stored):
            raise UsageError(f"--for tvm: compiles no {found} weights; add --weights int4")
        if request.tuning.measure and self.machine not in machines_here():
            raise UsageError(
                f"--tune: this machine is not {self.machine}; "
                "tune on one that is and bring its database with --tuning FILE"
            )
        code, progress = _compiler(self.machine), request.progress
        machine, tensors, spec = code.machines.MACHINES[self.machine], request.layout.tensors, request.layout.spec
        records = _records(code, self.machine, request)
        progress("writing code", 0, 1)
        here = code.database.processor_here()
        emit = code.library.emitted(spec, tensors, machine, KV_FORMATS, records.schedules(self.machine, here))
        if request.tuning.measure:
            _measure(code, machine, emit.products, records, request)
        schedules = records.schedules(self.machine, here)
        if any(schedules.of(product) != used for product, used in emit.products.items()):
            emit = code.library.emitted(spec, tensors, machine, KV_FORMATS, schedules)
        progress("writing code", 1, 1)
        name = f"{request.layout.prefix}tvm-{self.machine}"
        progress("compiling", 0, 1)
        code.library.compiled(emit, folder / f"{name}.so")
        progress("compiling", 1, 1)
        files = [f"{name}.so", *_tuned_by(code, folder / f"{name}{_TUNED}", records, self.machine, emit.products)]
        version = f"apache-tvm {metadata.version('apache-tvm')}"
        facts = held.LibraryFacts(VERSION, files[0], KV_FORMATS, emit.scratch_bytes, version)
        return Artifact(tuple(files), to_json(facts))


def _records(code: Any, machine: str, request: Request) -> Any:
    """All tuning records: those shipped with edgedec, the bundle's, the user's; later ones have priority."""
    own = request.tuning.database
    in_bundle = (request.weights or Path()) / f"{request.layout.prefix}tvm-{machine}{_TUNED}"
    places = (code.database.SHIPPED, *([in_bundle] if request.weights else []), own or code.database.usual_place())
    found = code.database.TuningDatabase()
    for place in places:
        must_exist = place == own and not request.tuning.measure
        for record in code.database.TuningDatabase.read(place, must_exist).records.values():
            found.add(record)
    return found


def _measure(code: Any, machine: Any, products: Iterable[Any], records: Any, request: Request) -> None:
    """Measure schedules without a record of this processor, and keep the records in the user's database. UsageError
    before the measurement if that cannot be written; if writing fails afterwards, the records are still in the
    bundle."""
    place = request.tuning.database or code.database.usual_place()
    own = code.database.TuningDatabase.read(place, must_exist=False)
    _write(own, place)
    code.tuner.tune(machine, list(products), own, request.progress)
    for record in own.records.values():
        records.add(record)
    try:
        _write(own, place)
    except UsageError as error:
        log.warning("%s; what was measured is in the bundle alone", error)


def _write(own: Any, place: Path) -> None:
    try:
        own.write(place)
    except OSError as error:
        raise UsageError(f"{place}: cannot be written: {error.strerror or error}") from None


def _tuned_by(code: Any, path: Path, records: Any, machine: str, products: Iterable[Any]) -> list[str]:
    """Write the records that a library was compiled with; the file's name, none without records."""
    used = records.used(machine, code.database.processor_here(), products)
    if not used.records:
        return []
    path.write_bytes(used.text())
    return [path.name]


def maker(machine: str) -> MachineMaker | SourceMaker:
    """The maker of the library for a machine, or of sources in a language; UsageError lists the supported ones."""
    if machine in LANGUAGES:
        return SourceMaker(machine)
    if machine not in MACHINES:
        raise UsageError(f"--for tvm:{machine}: no such machine; there are: {', '.join(machines())}")
    return MachineMaker(machine)


def _compiler(machine: str) -> Any:
    """The modules that write, tune and compile a library, imported at first use."""
    try:
        names = ("machines", "library", "database", "tuner")
        return SimpleNamespace(**{name: import_module(f"edgedec.export.compiled.{name}") for name in names})
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "edgedec":
            raise
        raise RuntimeUnavailable(f"--for tvm:{machine}: needs {error.name}: {install_command('tvm')}") from None
