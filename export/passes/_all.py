"""The passes of one export, one after another, and what is left of them when it is interrupted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from edgedec.bundle.adapter import LowRank
from edgedec.bundle.manifest import WeightFormat
from edgedec.errors import UsageError
from edgedec.export.passes import PassContext, PassModel, Progress, chosen, make_pass
from edgedec.export.passes._calibration import LENGTH, OWN, CalibrationText, kept, of_file, wanted_tokens
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._statistics import Ids, Statistics
from edgedec.export.weights import Kept
from edgedec.plugins import PluginChoice
from edgedec.runtimes.reference.numeric import Weights
from edgedec.spec import ModelSpec
from edgedec.version import __version__


@dataclass(frozen=True)
class Passed:
    """What passes have made. read: of the tensors that they may have changed; formats: of single matrices; kept: those
    that are rounded; record: for the manifest; low_rank: of the adapter beside them; spec: of a model whose blocks are
    others than before."""

    read: Weights | None = None
    formats: Mapping[str, WeightFormat] = field(default_factory=dict)
    kept: Mapping[str, Kept] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    low_rank: Mapping[str, LowRank] = field(default_factory=dict)
    spec: ModelSpec | None = None


@dataclass(frozen=True)
class TextSources:
    """Where calibration text comes from. encode: tokens of a text, None without a tokenizer; samples: the model's own
    text of so many tokens, in rows of so many."""

    encode: Callable[[str], list[int]] | None
    samples: Callable[[int, int], tuple[Ids, ...]]


@dataclass(frozen=True)
class Passing:
    """What is chosen for an export, and its folder beside the bundle, which is there while the export runs and after an
    interruption. calibrate: a text file; None: the model's own text."""

    choices: list[PluginChoice]
    folder: Path
    calibrate: Path | None
    progress: Progress

    @classmethod
    def of(cls, out: Path, source: Path, options: Any, progress: Progress) -> Passing:
        """For an export of the checkpoint at `source` to `out`. options: an `ExportOptions`."""
        choices = chosen(options.passes, options.quality)
        path = None if options.calibrate is None or str(options.calibrate) == OWN else options.calibrate
        if not choices:
            return cls([], out.with_name(f".{out.name}.passes"), path, progress)
        formats = (options.weights, options.head, options.embed, options.block, options.context, options.kv_heads)
        facts = [__version__, [list(choice) for choice in choices], formats, _files(source), _hash(path)]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        return cls(choices, out.with_name(f".{out.name}.passes-{key}"), path, progress)

    @cached_property
    def store(self) -> RoundedStore:
        return RoundedStore(self.folder)

    def run(
        self, model: PassModel, parts: Mapping[str, WeightFormat], block: int, fixed: frozenset[str], texts: TextSources
    ) -> Passed:
        """All passes on a model. parts: the formats of body, head and embed; fixed: matrices that stay as they are."""
        if not self.choices:
            return Passed(formats=model.formats)
        if "pre_router" in model.spec.kinds:  # passes run blocks one at a time
            raise UsageError("--passes: of a model whose experts are chosen before its layers no block runs alone")
        calibration = self._calibration(texts, model.spec)
        context = PassContext(model.spec, parts, block, self.store, self.progress, fixed)
        statistics = Statistics(calibration.texts)
        for choice in self.choices:
            model = make_pass(choice, context)(model, statistics)
        rounded = {name: one.kept() for name, one in model.rounded.items()}
        spec = None if model.spec == context.spec else model.spec
        return Passed(model.read, model.formats, rounded, self._record(calibration), model.low_rank, spec)

    def _calibration(self, texts: TextSources, spec: ModelSpec) -> CalibrationText:
        tokens = wanted_tokens(sum(map(prod, spec.tensors().values())))
        length = min(LENGTH, spec.context_length)
        if self.calibrate is None:
            return kept(self.folder / "calibration.npy", lambda: texts.samples(tokens, length))
        if texts.encode is None:
            raise UsageError(f"--calibrate {self.calibrate}: the model has no tokenizer; leave it out")
        return of_file(self.calibrate, texts.encode, tokens, length, spec.vocab_size)

    def _record(self, calibration: CalibrationText) -> dict[str, Any]:
        words = "+".join(map(_words, self.choices))
        facts = {"text": calibration.name, "tokens": calibration.tokens, "sha256": calibration.sha256}
        return {"passes": words, "calibration": facts}


def _words(choice: PluginChoice) -> str:
    """A pass as it is written: name:option=value,…"""
    options = ",".join(f"{key}={_word(value)}" for key, value in choice.options.items())
    return f"{choice.name}:{options}" if options else choice.name


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, tuple) else str(value)


def _files(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the files of a checkpoint."""
    paths = sorted(source.iterdir()) if source.is_dir() else [source]
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.is_file()]


def _hash(path: Path | None) -> str:
    if path is None:
        return OWN
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"--calibrate {path}: not a readable text file ({error.strerror or error})") from None
