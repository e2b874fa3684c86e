"""The manifest's facts of compiled libraries, and which of them this machine can run."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime.machines import machines_here
from edgedec.runtimes.tvm.frame import VERSION
from edgedec.spec import KV_FORMATS
from edgedec.storage.serde import from_json

PREFIX = "tvm:"


@dataclass(frozen=True)
class LibraryFacts:
    """Facts of one library. version: of its call table; scratch: bytes of working memory; compiler: the compiler's
    name."""

    version: int
    library: str
    kv: tuple[str, ...]
    scratch: int
    compiler: str


def facts_of(bundle: Bundle, name: str) -> LibraryFacts:
    """The facts of the library for a machine."""
    artifact = bundle.manifest.artifacts[PREFIX + name]
    facts = from_json(LibraryFacts, artifact.facts, f"artifacts.{PREFIX}{name}")
    if facts.version != VERSION or facts.library not in artifact.files or not set(facts.kv) <= set(KV_FORMATS):
        raise RuntimeUnavailable(
            f"{bundle.path}: its library for {name} is of another edgedec; "
            f"make it again: edgedec add {PREFIX}{name} {bundle.path}"
        )
    return facts


def usable(bundle: Bundle) -> list[str]:
    """The machines that the bundle has libraries for and this one is, the best first."""
    return [name for name in machines_here() if PREFIX + name in bundle.manifest.artifacts]
