"""A GGUF file as a checkpoint: the exporter reads, checks and writes it as it does any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from edgedec.bundle.manifest import DiffusionFacts, Text, WeightFormat
from edgedec.errors import CheckpointError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.diffusion import diffusion_facts
from edgedec.export.gguf.config import PAIRED, config_of, head_dim
from edgedec.export.gguf.file import GgufFile
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.names import FLAT, IGNORED, named
from edgedec.export.gguf.tensor import GgufTensor
from edgedec.export.gguf.tokenizer import write_text
from edgedec.export.gguf.types import BLOCK, KEPT, SUGGESTED
from edgedec.export.quantize import Bytes, Half
from edgedec.export.weights import Kept
from edgedec.models import Source
from edgedec.models._common import ConfigReader
from edgedec.models.granitemoe import multipliers
from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class GgufCheckpoint(Checkpoint):
    """One or more GGUF files of one model."""

    facts: GgufFacts
    tensors: Mapping[str, GgufTensor]

    @classmethod
    def of(cls, path: Path) -> GgufCheckpoint:
        facts = GgufFacts(GgufFile.open(path))
        return cls(path, config_of(facts), _tensors(facts), facts)

    def spec(self, context: int | None = None) -> ModelSpec:
        try:
            return super().spec(context)
        except CheckpointError as error:  # its text names the config that was made from the metadata
            raise type(error)(str(error).replace("config.json", str(self.folder), 1)) from None

    def weights(self, spec: ModelSpec) -> dict[str, Source]:
        granite = self.config["model_type"].startswith("granite")
        found = named(spec, self.tensors, multipliers(ConfigReader(self.config)) if granite else {})
        self.check(found, spec, IGNORED)
        return found

    def diffusion(self, spec: ModelSpec) -> DiffusionFacts | None:
        return diffusion_facts(self.config, spec, where=str(self.folder))

    def copy_text(self, target: Path) -> Text:
        return write_text(self.facts, target)

    def suggested(self, sources: Iterable[Source]) -> WeightFormat | None:
        """The format for the type that most of the values have."""
        values: Counter[str] = Counter()
        for source in sources:
            for name in {part.name for part in source}:
                values[self.tensors[name].dtype] += prod(self.tensors[name].shape)
        return SUGGESTED.get(values.most_common(1)[0][0]) if values else None

    def kept(self, source: Source, fmt: WeightFormat, block: int) -> Kept | None:
        plain = all(part.add == 0 and not part.exp for part in source)
        kinds = {self.tensors[part.name].dtype for part in source}
        if block != BLOCK or not plain or len(kinds) != 1 or KEPT.get(next(iter(kinds))) != fmt:
            return None
        return Kept(KEPT[kinds.pop()], block, lambda start, stop: (*self._stored(source, start, stop), None))

    def _stored(self, source: Source, start: int, stop: int) -> tuple[Bytes, Half]:
        """Rows as stored; a factor is applied to their scales."""
        data, scales, at = [], [], 0
        for part in source:
            rows = self._part_shape(part)[0]
            a, b = max(start, at) - at, min(stop, at + rows) - at
            if a < b:
                first = a + (part.rows[0] if part.rows else 0)
                some, steps = self.tensors[part.name].stored(part.name, first, b - a)
                data.append(some)
                scales.append((steps * np.float32(part.times)).astype(np.float16) if part.times != 1 else steps)
            at += rows
        return np.concatenate(data), np.concatenate(scales)


def _tensors(facts: GgufFacts) -> dict[str, GgufTensor]:
    """The tensors with vectors as vectors and, where the architecture needs it, q and k in a checkpoint's order."""
    found = dict(facts.file.tensors)
    for name, tensor in found.items():
        if name.endswith(FLAT):
            found[name] = replace(tensor, shape=(prod(tensor.shape),))
        elif len(tensor.shape) > 1 and name.endswith((".bias", "norm.weight")):
            found[name] = replace(tensor, shape=tuple(n for n in tensor.shape if n != 1) or (1,))
    return {name: _turned(facts, name, tensor) for name, tensor in found.items()}


def _turned(facts: GgufFacts, name: str, tensor: GgufTensor) -> GgufTensor:
    if facts.architecture not in PAIRED or not name.startswith("blk."):
        return tensor
    dim, what = head_dim(facts), name.split(".")[2] if name.count(".") > 1 else ""
    heads = facts.whole("attention.head_count", least=1)
    both = heads + facts.whole("attention.head_count_kv", heads)
    rows = {"attn_q": tensor.shape[0], "attn_k": tensor.shape[0], "attn_qkv": both * dim}.get(what, 0)
    if rows and (dim % 2 or rows % dim or rows > tensor.shape[0]):
        raise CheckpointError(f"{facts.file.path}: {name} has {tensor.shape[0]} rows, not whole heads of {dim}")
    return replace(tensor, turned=rows, head_dim=dim)
