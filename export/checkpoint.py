"""Hugging Face checkpoints: a config.json and safetensors files, read a few rows at a time.

Files are read, not memory-mapped: a mapped page counts as resident memory once touched, and a model is
exported on machines that cannot hold it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.bundle.advice import advice
from edgedec.bundle.manifest import DiffusionFacts, EncoderFacts, Text, WeightFormat
from edgedec.bundle.modes import ModeFacts
from edgedec.errors import BadTensor, CheckpointError
from edgedec.export.diffusion import diffusion_facts
from edgedec.export.links import check_links
from edgedec.export.modes import mode_facts, recognised, with_modes
from edgedec.export.moved import moved, stored_shape
from edgedec.export.products import product_rows, shape_of
from edgedec.export.quantized import IntegerMatrix, OwnMatrix, Quantization, QuantizedMatrix, find, without_settings
from edgedec.export.quantized._stack import OwnPart, StackedPart, block_of, own_format, own_rows, stored_rows
from edgedec.export.renamed import renamed, replaced, together
from edgedec.export.safetensors import Array, Stored, read_json
from edgedec.export.sentence_modules import Modules, read_modules, terms_sources
from edgedec.export.shards import stored_tensors
from edgedec.export.text import copy_text
from edgedec.export.weights import Kept
from edgedec.models import Part, Source, architecture
from edgedec.models.drafts.mtp import mtp_tensors
from edgedec.spec import ModelSpec
from edgedec.text.tokenizer import Tokenizer

COMPARED_ROWS = 4096


@dataclass(frozen=True)
class Checkpoint:
    """A folder's config and the whereabouts of its tensors; nothing is loaded until it is read."""

    folder: Path
    config: dict[str, Any]
    tensors: Mapping[str, Stored | QuantizedMatrix]
    quantization: Quantization | None = field(default=None, kw_only=True)
    modules: Modules = field(default=Modules(EncoderFacts()), kw_only=True)
    _whole: dict[Part, Array] = field(default_factory=dict, kw_only=True, repr=False, compare=False)

    @classmethod
    def open(cls, folder: str | Path) -> Checkpoint:
        folder = Path(folder)
        check_links(folder)
        modules = read_modules(folder)
        config = recognised(folder, read_json(folder / "config.json"), modules.output is not None)
        stored: dict[str, Stored] = {**stored_tensors(folder), **modules.tensors}
        quantization = find(folder, config, stored)
        if quantization is None:
            return cls(folder, config, stored, modules=modules)
        found = quantization.found
        floats = {name: tensor for name, tensor in stored.items() if name not in found.used}
        tensors: dict[str, Stored | QuantizedMatrix] = {**floats, **found.matrices}
        return cls(folder, without_settings(config), tensors, quantization=quantization, modules=modules)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def spec(self, context: int | None = None) -> ModelSpec:
        """What the config describes, and sentence-transformers' modules after it."""
        return self.modules.applied(architecture(self.config).spec(self._shown, context))

    @property
    def _shown(self) -> dict[str, Any]:
        """The config with what only the tensors show."""
        facts = architecture(self.config).FACTS
        there = {prefix + name: key for name, key in facts.shown for prefix in ("", *facts.prefixes)}
        return self.config | {key: True for name, key in there.items() if name in self.tensors}

    def weights(self, spec: ModelSpec) -> dict[str, Source]:
        """Every tensor of `spec` with what it is stacked from, once none is missing and none left over."""
        model = architecture(self.config)
        found = model.weights(spec, self._shown)
        if spec.output is not None and spec.output.of_terms:
            found |= terms_sources(model.FACTS.terms)
        found |= {name: source for name, source in self.modules.sources.items() if name in spec.tensors()}
        if spec.output is not None:
            found = renamed(found, self.tensors, model.FACTS.prefixes)
        elif model.FACTS.renames:
            found = replaced(found, self.tensors, model.FACTS.renames)
        found = together(found, self.tensors)
        self.check(found, spec, (*model.FACTS.ignored, *mtp_tensors(self.config)))
        return found

    def diffusion(self, spec: ModelSpec) -> DiffusionFacts | None:
        """How it is decoded if it is a diffusion model."""
        return diffusion_facts(self.config, spec, self.folder)

    def copy_text(self, target: Path) -> Text:
        """Write the tokenizer into `target`; returns the manifest's text facts."""
        text = copy_text(self.folder, target, self.config)
        return text if self.modes is None else with_modes(target, text)

    @cached_property
    def modes(self) -> ModeFacts | None:
        """How texts are given to a model whose first tokens choose which rows see each other."""
        return mode_facts(self.folder, self.config)

    def tokenizer_size(self) -> int:
        """Tokens of its tokenizer; 0: it has none here."""
        file = self.folder / "tokenizer.json"
        return Tokenizer.load(file).vocab_size if file.is_file() else 0

    def suggested(self, sources: Iterable[Source]) -> WeightFormat | None:
        """The bundle's format for the stored integers; None for floats."""
        if self.quantization is None:
            return None
        parts = [self.tensors.get(part.name) for source in sources for part in source]
        stored = Counter(part.suggested for part in parts if isinstance(part, QuantizedMatrix))
        # Matrices that the checkpoint left in floats are sensitive: they get int8.
        return stored.most_common(1)[0][0] if stored else "int8"

    def kept(self, source: Source, fmt: WeightFormat, block: int, own: bool = False) -> Kept | None:
        """How to read rows in `fmt` as stored, without rounding; None if they are stored in another format. own: nobody
        asked for `fmt`, and a format that only stored weights have may stand for it."""
        if self.quantization is None or (fmt != "int4" and fmt != "int8"):
            return None
        of = [self._own(part) for part in source] if own else []
        if held := own_format(of):
            return Kept(*held, lambda start, stop: own_rows(of, *held, start, stop))
        parts = [self._stacked(part) for part in source]
        found = block_of(parts, fmt)
        return Kept(fmt, found, lambda start, stop: stored_rows(parts, fmt, found, start, stop)) if found else None

    def _own(self, part: Part) -> OwnPart:
        matrix = self.tensors.get(part.name)
        held = matrix if isinstance(matrix, OwnMatrix) and matrix.holds(part) else None
        return OwnPart(held, part, self._part_shape(part)[0], lambda start, stop: self.read((part,), start, stop))

    def _stacked(self, part: Part) -> StackedPart:
        matrix = self.tensors.get(part.name)
        plain = isinstance(matrix, IntegerMatrix) and part.plain
        rows = self._part_shape(part)[0]
        return StackedPart(
            matrix if plain and isinstance(matrix, IntegerMatrix) else None,
            part.rows[0] if part.rows else 0,
            rows,
            part.times,
            lambda start, stop: self.read((part,), start, stop),
        )

    def said(self, parts: Mapping[str, Source], kept: Mapping[str, Kept]) -> dict[str, Any]:
        """The manifest's note on a quantized checkpoint: the method, and how many matrices keep their integers."""
        if self.quantization is None:
            return {}
        counted = Counter(f"{one.format} in blocks of {one.block}" for one in kept.values())
        stored = [[self.tensors.get(part.name) for part in source] for source in parts.values()]
        quantized = sum(any(isinstance(part, QuantizedMatrix) for part in of) for of in stored)
        rounded = [
            name
            for name in kept
            if not all(
                m.exact
                for m in map(self.tensors.get, {p.name for p in parts[name]})
                if isinstance(m, IntegerMatrix | OwnMatrix)
            )
        ]
        return {
            "method": self.quantization.method,
            "quantized": quantized,
            "kept": dict(sorted(counted.items())),
            "rounded_scales": len(rounded),
        }

    def shape(self, source: Source) -> tuple[int, ...]:
        """The shape of the stacked source."""
        shapes = [self._part_shape(part) for part in source]
        for part, shape in zip(source, shapes, strict=True):
            if shape[1:] != shapes[0][1:]:
                raise BadTensor(f"{part.name}: shape {shape} does not stack under {shapes[0]}")
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def read(self, source: Source, start: int, stop: int) -> Array:
        """Rows start to stop-1 of the stacked source: float32 [stop - start, ...]."""
        shape = self.shape(source)
        if not 0 <= start <= stop <= shape[0]:
            raise BadTensor(f"{source[0].name}: rows {start} to {stop} of {shape[0]} do not exist")
        out = np.empty((stop - start, *shape[1:]), np.float32)
        at = 0
        for part in source:
            rows = self._part_shape(part)[0]
            a, b = max(start, at), min(stop, at + rows)
            if a < b:
                self._fill(out[a - start : b - start], part, a - at)
            at += rows
        return out

    def check(self, weights: Mapping[str, Source], spec: ModelSpec, ignored: Sequence[str]) -> None:
        """Refuse a checkpoint that lacks a tensor, has one too many, or one of another shape."""
        for name, shape in spec.tensors().items():
            self._check_one(name, weights[name], shape)
        used = {name for source in weights.values() for part in source for name in part.names}
        for name in self.names:
            spare = self.quantization.found.spare if self.quantization else ()
            if name not in used and name not in spare and not any(re.fullmatch(pattern, name) for pattern in ignored):
                raise BadTensor(f"{name}: {self.tensors[name].shape} is not part of a {spec.architecture} model")
        if spec.tied and spec.output is None:
            self._check_tied(weights["embed"], used)

    def _check_one(self, name: str, source: Source, shape: tuple[int, ...]) -> None:
        for stored in (stored for part in source for stored in part.names):
            if stored not in self.tensors:
                raise BadTensor(f"{stored}: missing from {self.folder}; part of {name} {shape}")
            self.tensors[stored].require_readable(stored)
        found = self.shape(source)
        if found != shape:
            raise BadTensor(f"{source[0].name}: {name} has shape {found}, expected {shape}")

    def _check_tied(self, embed: Source, used: set[str]) -> None:
        """Refuse a stored head that differs from the embedding although the config ties them."""
        for name in self.names:
            if name in used or not (name == "decoder.weight" or name.endswith("lm_head.weight")):
                continue
            head, rows = (Part(name),), self.shape(embed)[0]
            same = self.shape(head) == self.shape(embed) and all(
                np.array_equal(self.read(head, at, end), self.read(embed, at, end))
                for at in range(0, rows, COMPARED_ROWS)
                for end in (min(at + COMPARED_ROWS, rows),)
            )
            if not same:
                raise BadTensor(f"{name}: differs from the embedding; set tie_word_embeddings to false in config.json")

    def _part_shape(self, part: Part) -> tuple[int, ...]:
        return shape_of(part, self.tensors, self.folder)

    def _fill(self, out: Array, part: Part, row: int) -> None:
        """Rows from `row` of `part` on, as many as `out` has."""
        values = self._values(part, row, out.shape)
        with np.errstate(over="ignore"):  # what overflows is refused below
            np.multiply(np.exp(values) if part.exp else values, np.float32(part.times), out=out)
        np.add(out, np.float32(part.add), out=out)
        if not np.isfinite(out).all():
            raise BadTensor(f"{part.name}: holds values that are not finite")

    def _values(self, part: Part, row: int, shape: tuple[int, ...]) -> Array:
        if part.ones:
            return np.ones(shape, np.float32)
        if part.product:
            return product_rows(part, row, row + shape[0], self._rows)
        return self._moved(part, row, shape) if part.moved else self._stored_values(part, row, shape)

    def _rows(self, name: str, rows: tuple[int, int] | None) -> Array:
        """Rows of a tensor; None: all of them, which are kept as `_moved` keeps them."""
        shape, whole = self.tensors[name].shape, Part(name)
        if rows is not None:
            return self.tensors[name].values(name, rows[0], (rows[1] - rows[0], *shape[1:]))
        if whole not in self._whole:
            self._whole.clear()
            self._whole[whole] = self.tensors[name].values(name, 0, shape)
        return self._whole[whole]

    def _stored_values(self, part: Part, row: int, shape: tuple[int, ...]) -> Array:
        row += part.rows[0] if part.rows else 0
        return self.tensors[part.name].values(part.name, row, shape)

    def _moved(self, part: Part, row: int, shape: tuple[int, ...]) -> Array:
        """Rows of a part whose rows are stored in another order. The last whole part is kept: it is read in pieces."""
        if part not in self._whole:
            self._whole.clear()
            stored = stored_shape(part, self._part_shape(part))
            self._whole[part] = moved(part, self._stored_values(part, 0, stored))
        return self._whole[part][row : row + shape[0]]


def open_checkpoint(place: str | Path) -> Checkpoint:
    """The checkpoint at a folder."""
    path = Path(place)
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        raise CheckpointError(f"{path}: {advice(path)}")
    if not path.is_dir():
        raise CheckpointError(f"{place}: neither a folder nor a GGUF file nor a Hub id such as org/name")
    return Checkpoint.open(path)
