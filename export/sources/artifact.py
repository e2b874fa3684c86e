"""Sources of a model's kernels as an artifact, `tvm:opencl`: one text of all of them, and a plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from edgedec.bundle.manifest import Artifact, Tensor
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.artifacts import Request
from edgedec.extras import install_command
from edgedec.runtimes.tvm.frame import LANES
from edgedec.runtimes.tvm.plans import VERSION, SourceFacts
from edgedec.runtimes.tvm.support import sources_lack
from edgedec.spec import KV_FORMATS, ModelSpec
from edgedec.storage.serde import to_json

LANGUAGES = ("opencl", "metal", "cuda", "webgpu")


@dataclass(frozen=True)
class SourceMaker:
    """Makes the sources in one language."""

    language: str

    def reason(self, spec: ModelSpec) -> str | None:
        """Why there are no sources of the model; None if there are."""
        return sources_lack(spec)

    def write(self, folder: Path, request: Request) -> Artifact:
        """Write the text and the plan."""
        layout, where = request.layout, f"--for tvm:{self.language}"
        _check({name: t for name, t in layout.tensors.items() if name in layout.spec.matrices}, where)
        try:
            from edgedec.export.sources.dialects import DIALECTS
            from edgedec.export.sources.plan import planned
            from edgedec.export.sources.text import text_of
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "edgedec":
                raise
            raise RuntimeUnavailable(f"{where}: needs {error.name}: {install_command('tvm')}") from None
        dialect = DIALECTS[self.language]
        kernels, plan = planned(layout.spec, layout.tensors, dialect, KV_FORMATS)
        source, listed = (f"{layout.prefix}tvm-{self.language}.{suffix}" for suffix in (dialect.suffix, "json"))
        (folder / source).write_text(text_of(kernels), "utf-8")
        (folder / listed).write_text(json.dumps(to_json(plan), separators=(",", ":")) + "\n", "utf-8")
        facts = SourceFacts(VERSION, source, listed, KV_FORMATS, f"apache-tvm {metadata.version('apache-tvm')}")
        return Artifact((source, listed), to_json(facts))


def _check(tensors: dict[str, Tensor], where: str) -> None:
    """UsageError for weights that sources have no products for."""
    for name, t in tensors.items():
        if len(t.shape) == 2 and t.shape[-1] % LANES:
            raise UsageError(f"{where}: {name}: {t.shape[-1]} inputs, not a multiple of {LANES}")
