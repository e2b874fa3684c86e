"""A bundle as a checkpoint: what is exported already is stored again in other formats.

Its weights are read as the floats that it stands for, so a bundle of f32, f16 or int8 is the better source. Drafts and
draft heads are not taken along: they were made for the model as it was.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DiffusionFacts, EncoderFacts, Text, WeightFormat
from edgedec.bundle.modes import ModeFacts
from edgedec.errors import CheckpointError, UsageError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.safetensors import Array
from edgedec.export.sentence_modules import Modules
from edgedec.export.weights import Kept
from edgedec.models import Part, Source
from edgedec.spec import ModelSpec

_TEXT = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class BundleSource(Checkpoint):
    """An opened bundle."""

    bundle: Bundle

    @classmethod
    def of(cls, folder: Path) -> BundleSource:
        bundle = Bundle.open(folder)
        if bundle.spec.opaque:
            raise CheckpointError(f"{folder}: its weights are inside an ONNX graph; export the checkpoint")
        return cls(folder, {}, {}, bundle=bundle, modules=Modules(bundle.manifest.encoder or EncoderFacts()))

    def spec(self, context: int | None = None) -> ModelSpec:
        spec = self.bundle.spec
        if context is None or context == spec.context_length:
            return spec
        if not 1 <= context < spec.context_length:
            raise UsageError(f"--ctx-size {context}: the bundle has {spec.context_length}")
        return replace(spec, context_length=context)

    def weights(self, spec: ModelSpec) -> dict[str, Source]:
        return {name: (Part(name),) for name in self.bundle.manifest.tensors}

    def diffusion(self, spec: ModelSpec) -> DiffusionFacts | None:
        return self.bundle.manifest.diffusion

    @cached_property
    def modes(self) -> ModeFacts | None:
        return self.bundle.manifest.modes

    def copy_text(self, target: Path) -> Text:
        own = self.bundle.manifest.text.tokenizer
        for name in {*_TEXT, *([own] if own else [])} & set(self.bundle.manifest.files):
            shutil.copyfile(self.bundle.file(name), target / name)
        return self.bundle.manifest.text

    def suggested(self, sources: Iterable[Source]) -> WeightFormat | None:
        return None

    def kept(self, source: Source, fmt: WeightFormat, block: int, own: bool = False) -> Kept | None:
        return None

    def said(self, parts: Mapping[str, Source], kept: Mapping[str, Kept]) -> dict[str, Any]:
        """The manifest's note on where the weights are from."""
        manifest = self.bundle.manifest
        return {"bundle": manifest.name, "stored": manifest.quantization.get("body", "")}

    def shape(self, source: Source) -> tuple[int, ...]:
        return self.bundle.manifest.tensors[source[0].name].shape

    def read(self, source: Source, start: int, stop: int) -> Array:
        return self.bundle.rows(source[0].name, start, stop)
