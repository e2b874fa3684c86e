"""Compiled libraries of the golden cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgedec.runtimes._selftest.cases import GoldenCase
from edgedec.runtimes.tvm import TvmRuntime
from edgedec.runtimes.tvm.artifact import LibraryFacts
from edgedec.runtimes.tvm.frame import VERSION


def opened(case: GoldenCase, folder: Path, machine: str, threads: int) -> TvmRuntime:
    """A runtime over a library of the case's model, compiled here."""
    from edgedec.export.compiled.library import compiled, emitted
    from edgedec.export.compiled.machines import MACHINES

    bundle: Any = case.bundle
    emit = emitted(bundle.spec, bundle.manifest.tensors, MACHINES[machine], (case.kv,))
    compiled(emit, folder / "lib.so")
    bundle.file = lambda name: folder / name
    facts = LibraryFacts(VERSION, "lib.so", (case.kv,), emit.scratch_bytes, "here")
    return TvmRuntime(bundle, machine, facts, case.kv, threads)
