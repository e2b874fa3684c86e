"""Published draft checkpoints into a bundle: `edgedec export TARGET --draft PATH`, `edgedec add-draft PATH BUNDLE`.

`models/drafts` describes the kinds; here their tensors are checked, quantized and written: the layers as a bundle
inside the bundle, whose files begin with `draft_KIND.`, dense networks as ONNX graphs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DraftFacts, Text, WeightFormat
from edgedec.errors import BadTensor, CheckpointError, UsageError
from edgedec.export.amend import adding
from edgedec.export.drafts.files import DraftCheckpoint, open_draft
from edgedec.export.drafts.networks import LayerWeights, MergeWeights, RungWeights, merge_graph, rung_graph
from edgedec.export.drafts.recurrent import check_lstm, lstm_file, lstm_names
from edgedec.export.drafts.stack import write_stack
from edgedec.export.drafts.velocity import check_velocities, velocity_file
from edgedec.export.safetensors import Array
from edgedec.export.writer import Add, Contents, Progress, Scales
from edgedec.models.drafts import DraftPlan, Merge, Residual, Rung, draft_kind, kind_of
from edgedec.spec import WEIGHT_FORMATS, ModelSpec

_TOP = 16


@dataclass(frozen=True)
class DraftOptions:
    """weights: the format of its matrices, the target's by default; runtimes: whose files to write, None for those
    that the target has."""

    weights: str | None = None
    runtimes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and self.weights not in WEIGHT_FORMATS:
            raise UsageError(f"--draft-weights {self.weights}: must be one of {', '.join(WEIGHT_FORMATS)}")


def add_draft(
    bundle: Bundle, place: str | Path, options: DraftOptions = DraftOptions(), progress: Progress = lambda *_: None
) -> tuple[Bundle, str]:
    """Put the draft checkpoint at a folder or a hub id into a bundle, replacing one of its kind -> the bundle as
    it is now, and the kind."""
    checkpoint = open_draft(place)
    kind = kind_of(checkpoint.config, checkpoint.tensors, str(checkpoint.folder))
    plan = draft_kind(kind).plan(checkpoint.config, checkpoint.tensors, bundle.spec)
    importer = _Import(bundle, checkpoint, kind, plan, options, progress)
    importer.check()
    with adding(bundle) as staging:
        draft = importer.write(staging.folder)
        drafts = {**bundle.manifest.drafts, kind: draft}
        return staging.install(lambda manifest: replace(manifest, drafts=drafts)), kind


class _Import:
    """One checkpoint on its way into a bundle."""

    def __init__(
        self,
        bundle: Bundle,
        checkpoint: DraftCheckpoint,
        kind: str,
        plan: DraftPlan,
        options: DraftOptions,
        progress: Progress,
    ) -> None:
        self.bundle, self.checkpoint, self.kind, self.plan, self.progress = bundle, checkpoint, kind, plan, progress
        self.options, self.prefix = options, f"draft_{kind}."
        self.format = self._format(options.weights or bundle.manifest.quantization.get("body", "int8"))
        self.dense: Literal["f32", "int8"] = "int8" if self.format in ("int4", "int8") else "f32"

    def _format(self, name: str) -> WeightFormat:
        found: dict[str, WeightFormat] = {"f32": "f32", "f16": "f16", "int8": "int8", "int4": "int4"}
        return found[name]

    # ---- what may be wrong ----

    def check(self) -> None:
        """Refuse a checkpoint that lacks a tensor, has one too many, one of another shape, or is for another target."""
        plan, target = self.plan, self.bundle.spec
        if plan.spec is not None:
            if plan.spec.hidden_size != target.hidden_size:
                raise self._mismatch(f"its hidden_size is {plan.spec.hidden_size}, the target's {target.hidden_size}")
            if plan.spec.vocab_size > target.vocab_size:
                raise self._mismatch(f"it knows {plan.spec.vocab_size} tokens, the target {target.vocab_size}")
            plan.spec.check(f"{self.checkpoint.folder}/config.json")
            for name, shape in plan.spec.tensors().items():
                source = plan.sources[name]
                if source:
                    self.checkpoint._check_one(name, source, shape)
        for use, merge in plan.merges.items():
            if merge.matrix:
                self._require(merge.matrix, (target.hidden_size, len(merge.inputs) * target.hidden_size), use)
            for layer in merge.layers:
                self._require(layer.matrix, (len(merge.inputs) * target.hidden_size,) * 2, use)
        if plan.embeddings:
            self._require(plan.embeddings, (plan.depth, target.hidden_size), "embeddings")
        self._check_rungs()
        check_velocities(self.checkpoint, plan.velocities, target)
        check_lstm(self.checkpoint, plan.lstm, target.hidden_size)
        self._check_spare()

    def _check_rungs(self) -> None:
        target = self.bundle.spec
        for rung in self.plan.rungs:
            shape = self._shape(rung.readout)
            if len(shape) != 2 or shape[1] != self.plan.rung_reads * target.hidden_size:
                raise self._mismatch(f"{rung.readout} is {shape}, the target's hidden_size {target.hidden_size}")
            if shape[0] > target.vocab_size:
                raise self._mismatch(f"{rung.readout} knows {shape[0]} tokens, the target {target.vocab_size}")

    def _check_spare(self) -> None:
        used = {part.name for source in self.plan.sources.values() for part in source or ()}
        for merge in self.plan.merges.values():
            used |= {merge.matrix, merge.bias, *merge.norms} | _layer_names(merge.layers)
        for rung in self.plan.rungs:
            used |= {rung.readout, rung.bias} | _layer_names(rung.layers)
        used |= {name for velocity in self.plan.velocities for name in astuple(velocity)}
        used |= set(lstm_names(self.plan.lstm))
        for name in sorted(set(self.checkpoint.tensors) - used - {self.plan.tokens, self.plan.embeddings}):
            if not any(re.fullmatch(pattern, name) for pattern in self.plan.ignored):
                raise BadTensor(f"{name}: is not part of an {self.kind} draft ({self.checkpoint.folder})")

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self.checkpoint.tensors:
            raise BadTensor(f"{name}: missing from {self.checkpoint.folder}")
        return tuple(self.checkpoint.tensors[name].shape)

    def _require(self, name: str, shape: tuple[int, ...], use: str) -> None:
        if (found := self._shape(name)) != shape:
            raise BadTensor(f"{name}: {found}, expected {shape} ({use} of a target of {self.bundle.spec.hidden_size})")

    def _mismatch(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.checkpoint.folder}: not a draft for {self.bundle.path}: {why}")

    # ---- writing ----

    def write(self, folder: Path) -> DraftFacts:
        """All files, into a staging folder."""
        plan = self.plan
        networks = {use: self._network(folder, use, self._merged(merge)) for use, merge in plan.merges.items()}
        networks |= {f"depth_{i}": self._rung(folder, i, rung) for i, rung in enumerate(plan.rungs, 1)}
        if plan.velocities:
            eps = self.bundle.spec.norm_eps
            networks["velocity"] = velocity_file(folder, self.prefix, self.checkpoint, plan.velocities, eps, self.dense)
        if plan.lstm:
            hidden = self.bundle.spec.hidden_size
            networks["recurrent"] = lstm_file(folder, self.prefix, self.checkpoint, plan.lstm, hidden)
        tokens = self._tokens(folder) if plan.tokens else ""
        stack = self._stack(folder, plan.spec) if plan.spec is not None else ""
        own = self._embeddings(folder) if plan.embeddings else ""
        return DraftFacts(plan.depth, stack, plan.features, networks, tokens, plan.normed, plan.feeds, own, plan.block)

    def _network(self, folder: Path, use: str, weights: MergeWeights) -> str:
        name, hidden = f"{self.prefix}{use}.onnx", self.bundle.spec.hidden_size
        eps = self.plan.spec.norm_eps if self.plan.spec is not None else self.bundle.spec.norm_eps
        (folder / name).write_bytes(merge_graph(weights, [hidden] * len(weights.inputs), eps, self.dense))
        return name

    def _merged(self, merge: Merge) -> MergeWeights:
        whole = self.checkpoint.whole
        norms = tuple(whole(name) + np.float32(merge.norm_add) for name in merge.norms)
        layers = tuple(self._layer_weights(r) for r in merge.layers)
        bias = whole(merge.bias) if merge.bias else None
        return MergeWeights(merge.inputs, self._maybe(merge.matrix), norms, bias, layers)

    def _rung(self, folder: Path, depth: int, rung: Rung) -> str:
        name, weights = f"{self.prefix}depth_{depth}.onnx", self._rung_weights(rung)
        width = (weights.layers[0].matrix if weights.layers else weights.readout).shape[1]
        (folder / name).write_bytes(rung_graph(weights, width, min(_TOP, len(weights.readout)), self.dense))
        return name

    def _rung_weights(self, rung: Rung) -> RungWeights:
        whole = self._maybe
        return RungWeights(
            tuple(self._layer_weights(r) for r in rung.layers), self.checkpoint.whole(rung.readout), whole(rung.bias)
        )

    def _layer_weights(self, r: Residual) -> LayerWeights:
        maybe = self._maybe
        return LayerWeights(self.checkpoint.whole(r.matrix), maybe(r.bias), maybe(r.skip), maybe(r.skip_bias))

    def _maybe(self, name: str) -> Array | None:
        return self.checkpoint.whole(name) if name else None

    def _tokens(self, folder: Path) -> str:
        """The target's token of each draft token."""
        assert self.plan.spec is not None
        offsets, n = self.checkpoint.integers(self.plan.tokens), self.plan.spec.vocab_size
        if len(offsets) != n:
            raise BadTensor(f"{self.plan.tokens}: {len(offsets)} numbers for {n} draft tokens")
        tokens = np.arange(n) + offsets
        if tokens.min() < 0 or tokens.max() >= self.bundle.spec.vocab_size or len(np.unique(tokens)) < n:
            raise BadTensor(f"{self.plan.tokens}: leads outside the target's {self.bundle.spec.vocab_size} tokens")
        (folder / (name := f"{self.prefix}tokens.bin")).write_bytes(tokens.astype("<i4").tobytes())
        return name

    def _embeddings(self, folder: Path) -> str:
        """Trained embeddings as they are."""
        whole = self.checkpoint.whole(self.plan.embeddings)
        (folder / (name := f"{self.prefix}embeddings.bin")).write_bytes(whole.astype("<f4").tobytes())
        return name

    def _stack(self, folder: Path, spec: ModelSpec) -> str:
        """The layers as a bundle of their own."""
        named: Mapping[str, WeightFormat] = {"body": self.format, "head": self.format, "embed": self.format}
        layout, wanted = self._layout(), self.options.runtimes
        runtimes = tuple(name for name in self.bundle.manifest.artifacts if name == "ort") if wanted is None else wanted
        name = f"{self.bundle.manifest.name}-{self.kind}"
        contents = Contents(
            name,
            spec,
            Text(None),
            named,
            32,
            ("f32",),
            layout,
            runtimes,
            prefix=self.prefix,
        )
        return write_stack(folder, contents, lambda add: self._fill(add, spec), self.progress)

    def _layout(self) -> Literal["rows", "interleave16"]:
        layouts = {tensor.layout for tensor in self.bundle.manifest.tensors.values() if tensor.block}
        return "rows" if layouts == {"rows"} else "interleave16"

    def _fill(self, add: Add, spec: ModelSpec) -> Scales:
        for name in spec.tensors():
            add(name, lambda start, stop, name=name: self._read(name, start, stop))  # type: ignore[misc]
        return {}

    def _read(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        source = self.plan.sources[name]
        if source:
            return self.checkpoint.read(source, start, stop)
        if source is not None:
            return np.zeros((stop - start, self.bundle.spec.hidden_size), np.float32)
        readout = "embed" if self.bundle.spec.tied else "head"
        return self.bundle.rows(readout, start, stop)


def _layer_names(layers: Sequence[Residual]) -> set[str]:
    return {name for r in layers for name in (r.matrix, r.bias, r.skip, r.skip_bias)}
