"""A GGUF file as a checkpoint: the exporter reads, checks and writes it as it does any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from edgedec.bundle.integers import Integers
from edgedec.bundle.manifest import DiffusionFacts, Text, WeightFormat
from edgedec.errors import CheckpointError
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.diffusion import diffusion_facts
from edgedec.export.gguf.activations import activations
from edgedec.export.gguf.common import head_dim, nextn_layers
from edgedec.export.gguf.config import PAIRED, UNORDERED, config_of
from edgedec.export.gguf.encoders import head_weights, modules_of
from edgedec.export.gguf.file import GgufFile
from edgedec.export.gguf.gemma3n import gemma3n_weights
from edgedec.export.gguf.gemma4 import gemma4_weights, ignored
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.names import FLAT, IGNORED, named
from edgedec.export.gguf.tensor import GgufTensor
from edgedec.export.gguf.tokenizer import TOKENS, write_text
from edgedec.export.gguf.types import BLOCK, KEPT, LEAST, OWN, PARTED, SUGGESTED, SUPER
from edgedec.export.quantize import Bytes, Half, quantize
from edgedec.export.weights import Kept
from edgedec.models import Part, Source, minicpm3
from edgedec.models._common import ConfigReader
from edgedec.models.cohere import logit_scale
from edgedec.models.granitemoe import multipliers
from edgedec.spec import ModelSpec

# Matrices that older converters wrote without their one row.
ONE_ROW = ("token_types.weight", "cls.output.weight")
# Types whose tensors are as in the checkpoint, under other names.
OTHERWISE = {"gemma4_text": gemma4_weights, "gemma3n_text": gemma3n_weights}
TURNED = ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm")


@dataclass(frozen=True)
class GgufCheckpoint(Checkpoint):
    """One or more GGUF files of one model."""

    facts: GgufFacts
    tensors: Mapping[str, GgufTensor]

    @classmethod
    def of(cls, path: Path) -> GgufCheckpoint:
        facts = GgufFacts(GgufFile.open(path))
        return cls(path, config_of(facts), _tensors(facts), facts, modules=modules_of(facts))

    def spec(self, context: int | None = None) -> ModelSpec:
        try:
            return super().spec(context)
        except CheckpointError as error:  # its text names the config that was made from the metadata
            raise type(error)(str(error).replace("config.json", str(self.folder), 1)) from None

    def weights(self, spec: ModelSpec) -> dict[str, Source]:
        kind, times = self.config["model_type"], dict[str, float]()
        if kind.startswith("granite"):
            times = multipliers(ConfigReader(self.config))
        if kind in ("minicpm", "minicpm3"):
            times = minicpm3.multipliers(ConfigReader(self.config))
        if kind.startswith("cohere"):
            times = {"final_norm": logit_scale(ConfigReader(self.config))}
        if kind in OTHERWISE:
            found, unread = OTHERWISE[kind](spec, self.config), ignored(spec)
        else:
            found = named(spec, self.tensors, times, self.facts.architecture) | activations(self.facts, spec)
            found |= head_weights(spec, self.facts)
            # Embeddings have no use for the head of a decoder.
            unread = () if spec.output is None else (r"output\.weight",)
        drafting = (rf"blk\.{spec.n_layers + i}\..*" for i in range(nextn_layers(self.facts)))
        self.check(found, spec, (*IGNORED, *unread, *drafting))
        return found

    def diffusion(self, spec: ModelSpec) -> DiffusionFacts | None:
        return diffusion_facts(self.config, spec, where=str(self.folder))

    def copy_text(self, target: Path) -> Text:
        return write_text(self.facts, target)

    def tokenizer_size(self) -> int:
        tokens = self.facts.file.metadata.get(TOKENS, ())
        return len(tokens) if isinstance(tokens, list) else 0

    def suggested(self, sources: Iterable[Source]) -> WeightFormat | None:
        """The format for the type that most of the values have; of a matrix of several types, for its finest."""
        values: Counter[WeightFormat | None] = Counter()
        for source in sources:
            tensors = [self.tensors[name] for name in {part.name for part in source}]
            found = [SUGGESTED.get(tensor.dtype) for tensor in tensors]
            rounded = len({OWN.get(tensor.dtype) for tensor in tensors}) > 1  # some would be, so at 8 bits
            finest: WeightFormat | None = None if None in found else "int8" if rounded or "int8" in found else "int4"
            values[finest] += sum(prod(tensor.shape) for tensor in tensors)
        return values.most_common(1)[0][0] if values else None

    def kept(self, source: Source, fmt: WeightFormat, block: int, own: bool = False) -> Kept | None:
        """Parts of other types than the kept ones are rounded. own: `fmt` was not asked for, so a matrix all of one
        type may have that type's format."""
        plain = all(part.plain for part in source)
        if block != BLOCK or not plain or (fmt != "int4" and fmt != "int8"):
            return None
        kinds = {self.tensors[part.name].dtype for part in source}
        formats = {OWN.get(kind) for kind in kinds}
        if own and len(formats) == 1 and (found := formats.pop()):
            if kinds <= set(PARTED):
                return Kept(found, SUPER // 16, lambda start, stop: self._in_parts(source, start, stop), parts=True)
            has_least = bool(kinds & set(LEAST))
            return Kept(found, block, lambda start, stop: self._stored(source, found, has_least, start, stop))
        if not any(fmt in KEPT.get(self.tensors[part.name].dtype, ()) for part in source):
            return None
        least = any(self.tensors[part.name].dtype in LEAST for part in source)
        return Kept(fmt, block, lambda start, stop: self._stored(source, fmt, least, start, stop))

    def _stored(
        self, source: Source, fmt: Integers, least: bool, start: int, stop: int
    ) -> tuple[Bytes, Half, Half | None]:
        """Rows as stored; a factor is applied to their scales and offsets. least: there are offsets."""
        found = [self._stored_part(part, fmt, a, b) for part, a, b in self._pieces(source, start, stop)]
        data, scales, offsets = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
        return data, scales, offsets if least else None

    def _in_parts(self, source: Source, start: int, stop: int) -> tuple[Bytes, Half, Bytes]:
        """The same of types whose scales have parts."""
        found = list[tuple[Bytes, Half, Bytes]]()
        for part, a, b in self._pieces(source, start, stop):
            first = a + (part.rows[0] if part.rows else 0)
            data, steps, parts = self.tensors[part.name].in_parts(part.name, first, b - a)
            found.append((data, (steps * np.float32(part.times)).astype(np.float16), parts))
        data, scales, parts = (np.concatenate(pieces) for pieces in zip(*found, strict=True))
        return data, scales, parts

    def _pieces(self, source: Source, start: int, stop: int) -> Iterator[tuple[Part, int, int]]:
        """The parts that rows start..stop are in, and which of a part's rows."""
        at = 0
        for part in source:
            rows = self._part_shape(part)[0]
            a, b = max(start, at) - at, min(stop, at + rows) - at
            if a < b:
                yield part, a, b
            at += rows

    def _stored_part(self, part: Part, fmt: Integers, start: int, stop: int) -> tuple[Bytes, Half, Half]:
        tensor, first = self.tensors[part.name], start + (part.rows[0] if part.rows else 0)
        if fmt in (*KEPT.get(tensor.dtype, ()), OWN.get(tensor.dtype)):
            data, scales, offsets = tensor.stored(part.name, first, stop - start, fmt)
            scales, offsets = scales * np.float32(part.times), offsets * np.float32(part.times)
            return data, scales.astype(np.float16), offsets.astype(np.float16)
        data, rounded = quantize(self.read((part,), start, stop), fmt, BLOCK)
        return data, rounded, np.zeros_like(rounded)


def _tensors(facts: GgufFacts) -> dict[str, GgufTensor]:
    """The tensors with vectors as vectors and, where the architecture needs it, q and k in a checkpoint's order."""
    found = dict(facts.file.tensors)
    for name, tensor in found.items():
        if name.endswith(FLAT) and not (name.endswith("ssm_a") and tensor.shape[-1] > 1):  # Mamba-1's is a matrix
            found[name] = replace(tensor, shape=(prod(tensor.shape),))
        elif len(tensor.shape) > 1 and name.endswith((".bias", "norm.weight")):
            found[name] = replace(tensor, shape=tuple(n for n in tensor.shape if n != 1) or (1,))
        elif name in ONE_ROW and len(tensor.shape) == 1:
            found[name] = replace(tensor, shape=(1, *tensor.shape))
        elif name.endswith("ffn_gate_inp_shexp.weight"):
            found[name] = replace(tensor, shape=(1, prod(tensor.shape)))
    return {name: _turned(facts, name, tensor) for name, tensor in found.items()}


def _turned(facts: GgufFacts, name: str, tensor: GgufTensor) -> GgufTensor:
    if facts.architecture not in PAIRED or not name.startswith("blk."):
        return tensor
    dim, what = head_dim(facts), name.split(".")[2] if name.count(".") > 1 else ""
    if what in ("attn_q_norm", "attn_k_norm") and tensor.shape[0] == dim:
        return tensor  # one for all heads, which Llama's kin have after another rope
    heads = facts.whole("attention.head_count", least=1)
    both = heads + facts.whole("attention.head_count_kv", heads)
    rows = {"attn_qkv": both * dim, **dict.fromkeys(TURNED, tensor.shape[0])}.get(what, 0)
    if rows and (dim % 2 or rows % dim or rows > tensor.shape[0]):
        raise CheckpointError(f"{facts.file.path}: {name} has {tensor.shape[0]} rows, not whole heads of {dim}")
    # The converter orders whole heads; what it leaves as it is lies in pairs as far as it turns.
    rotated = facts.whole("rope.dimension_count", dim, most=dim) if facts.architecture in UNORDERED else dim
    return replace(tensor, turned=rows, head_dim=dim, rotated=rotated)
