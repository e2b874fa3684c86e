"""Checkpoint -> bundle, in one pass over the weights and about two layers of memory.

The float model runs beside the writing, a layer at a time, on two texts: one to calibrate cache
scales, one to hold the finished bundle against (`parity`).
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import (
    FORMAT,
    MANIFEST,
    File,
    KVFormat,
    KVScales,
    Manifest,
    Text,
    WeightFormat,
    WeightLayout,
    least_version,
)
from edgedec.cache.host import Cache
from edgedec.errors import BundleError, CheckpointError, UsageError
from edgedec.export.calibrate import kv_scales
from edgedec.export.checkpoint import Checkpoint, open_checkpoint
from edgedec.export.genai import write_genai_config
from edgedec.export.onnx import Layout, write_graphs
from edgedec.export.parity import parity
from edgedec.export.text import copy_text
from edgedec.export.weights import WeightsFile, format_of, names_of
from edgedec.models import Source, architecture
from edgedec.runtime.rows import Rows
from edgedec.runtimes.reference import Reference
from edgedec.spec import KV_FORMATS, WEIGHT_FORMATS, ModelSpec
from edgedec.storage.files import replacing_folder
from edgedec.storage.serde import to_json
from edgedec.text.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
WEIGHTS = "weights.bin"
LAYOUTS: dict[str, WeightLayout] = {"cpu": "interleave16", "portable": "rows"}
CALIBRATION_TOKENS = 512
PARITY_TOKENS = 256


@dataclass(frozen=True)
class ExportOptions:
    """weights: the format of the layers' matrices; head and embed follow it unless given (a tied
    model that gets two formats stores both). kv: cache formats, the default one first. target: the
    machine whose layout quantized matrices are stored in; either is read everywhere."""

    weights: str = "int4"
    head: str | None = None
    embed: str | None = None
    block: int = 32
    kv: tuple[str, ...] = ("f32",)
    target: str = "cpu"
    context: int | None = None
    calibrate: Path | None = None
    check: bool = True
    force: bool = False
    name: str | None = None
    threads: int = 0

    def __post_init__(self) -> None:
        for flag, value in (("weights", self.weights), ("head", self.head), ("embed", self.embed)):
            if value is not None and value not in WEIGHT_FORMATS:
                raise UsageError(f"--{flag} {value}: must be one of {', '.join(WEIGHT_FORMATS)}")
        if self.block not in (32, 64, 128):
            raise UsageError(f"--block {self.block}: must be 32, 64 or 128")
        if not self.kv or len(set(self.kv)) != len(self.kv) or not set(self.kv) <= set(KV_FORMATS):
            raise UsageError(f"--kv {','.join(self.kv)}: must name some of {', '.join(KV_FORMATS)}, each once")
        if self.target not in LAYOUTS:
            raise UsageError(f"--target {self.target}: must be one of {', '.join(LAYOUTS)}")

    @property
    def needs_scales(self) -> bool:
        return bool({"int8", "int4"} & set(self.kv))


def export(
    checkpoint: str, out: Path, options: ExportOptions = ExportOptions(), progress: Progress = lambda *_: None
) -> Bundle:
    """Export the checkpoint at a folder or hub id to the bundle folder `out`."""
    source = open_checkpoint(checkpoint)
    if options.force and out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise UsageError(f"{out}: is not a bundle; --force replaces bundles only")
    try:
        with replacing_folder(out, force=options.force) as folder:
            _Export(source, folder, options, progress, options.name or out.name).run()
        return Bundle.open(out)
    except OSError as error:
        what = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise BundleError(f"{out}: cannot be written: {what}") from None


class _Export:
    """One export into a staging folder."""

    def __init__(self, source: Checkpoint, folder: Path, options: ExportOptions, progress: Progress, name: str) -> None:
        self.source, self.folder, self.options, self.progress, self.name = source, folder, options, progress, name
        model = architecture(source.config)
        spec = model.spec(source.config, options.context)
        self.parts: dict[str, Source] = model.weights(spec)
        source.check(self.parts, spec, model.ignored)
        self.formats = self._formats(spec)
        if spec.tied and self.formats["head"] != self.formats["embed"]:
            spec = replace(spec, tied=False)
            self.parts["head"] = self.parts["embed"]
        self.spec = spec.check("config.json")
        self._check_divisible()

    def run(self) -> None:
        text = copy_text(self.source.folder, self.folder, self.source.config)
        texts = self._texts(text)
        floats = _FloatRun(self.spec, self._read, texts)
        scales: dict[str, list[NDArray[np.float32]]] = {kv: [] for kv in self.options.kv if kv in ("int8", "int4")}
        with (self.folder / WEIGHTS).open("wb") as file:
            weights = WeightsFile(file, LAYOUTS[self.options.target])
            self._write_tensors(weights, floats, scales)
            layout = Layout(
                spec=self.spec,
                weights=WEIGHTS,
                tensors=weights.tensors,
                ropes=tuple(weights.rope(rope, self.spec.context_length) for rope in self.spec.ropes),
                kv_scales=KVScales(**{kv: weights.array(np.stack(layers)) for kv, layers in scales.items()}),
            )
            weights.array(np.zeros(0, np.uint8))  # pad, so that the last tensor may be read in full lines
        manifest = self._manifest(layout, text)
        self._write_manifest(manifest)
        if self.options.check and "parity" in texts:
            ids, said = texts["parity"]
            self.progress("parity", 0, 1)
            bundle = Bundle.open(self.folder)
            found = parity(bundle, ids, floats.logits("parity"), said, self.options.threads)
            self._write_manifest(replace(manifest, parity=found))
            self.progress("parity", 1, 1)

    def _write_tensors(
        self, weights: WeightsFile, floats: _FloatRun, scales: dict[str, list[NDArray[np.float32]]]
    ) -> None:
        shapes, done = self.spec.tensors(), 0
        total = sum(int(np.prod(shape)) for shape in shapes.values())
        rest: list[str] = [name for name in ("final_norm", "head") if name in shapes]
        groups: list[list[str]] = [["embed"], *(names_of(self.spec, i) for i in range(self.spec.n_layers)), rest]
        for layer, names in enumerate(groups):
            for name in names:
                self._write_tensor(weights, name, shapes[name])
                done += int(np.prod(shapes[name]))
                self.progress("weights", done, total)
            if 1 <= layer <= self.spec.n_layers:
                floats.layer(layer - 1)
                for kv, found in scales.items():
                    found.append(kv_scales(floats.kept(layer - 1), kv))

    def _write_tensor(self, weights: WeightsFile, name: str, shape: tuple[int, ...]) -> None:
        fmt = format_of(name, self.formats["body"], self.formats["head"], self.formats["embed"])
        weights.tensor(name, lambda a, b: self._read(name, a, b), shape, fmt, self.options.block)

    def _read(self, name: str, start: int, stop: int) -> NDArray[np.float32]:
        return self.source.read(self.parts[name], start, stop)

    def _formats(self, spec: ModelSpec) -> dict[str, WeightFormat]:
        o = self.options
        head = o.head or (o.embed if spec.tied else None) or o.weights
        found = {"body": o.weights, "head": head, "embed": o.embed or (head if spec.tied else o.weights)}
        return {part: next(f for f in get_args(WeightFormat) if f == name) for part, name in found.items()}

    def _check_divisible(self) -> None:
        """ONNX Runtime's attention wants whole groups of channels; say so here and not as its riddle."""
        head_dim = self.spec.head_dim
        if head_dim % 16:
            raise CheckpointError(f"config.json: head_dim {head_dim} is not a multiple of 16")
        for rope in self.spec.ropes:
            if len(rope.inv_freq) % 8:
                raise CheckpointError(
                    f"config.json: {2 * len(rope.inv_freq)} of {head_dim} channels rotate, not a multiple of 16"
                )

    def _texts(self, text: Text) -> dict[str, tuple[NDArray[np.int64], str]]:
        """What the float model has to read: {purpose: (ids, what it is)}."""
        wanted: dict[str, tuple[Path | None, int]] = {}
        if self.options.needs_scales:
            wanted["calibration"] = (self.options.calibrate, CALIBRATION_TOKENS)
        if self.options.check:
            wanted["parity"] = (None, PARITY_TOKENS)
        found = {}
        for purpose, (path, n) in wanted.items():
            n = min(n, self.spec.context_length)
            if text.tokenizer is None:
                seed = list(wanted).index(purpose)
                ids = np.random.default_rng(seed).integers(0, self.spec.vocab_size, n)
                found[purpose] = (ids, "random tokens (no tokenizer)")
            else:
                path = path or Path(__file__).with_name(f"{purpose}.txt")
                try:
                    content = path.read_text("utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise UsageError(f"--calibrate {path}: not a readable text file ({error})") from None
                ids = np.array(Tokenizer.load(self.folder / text.tokenizer).encode(content)[:n], np.int64)
                found[purpose] = (ids, "built-in text" if purpose == "parity" else path.name)
            if len(ids) < 2 or ids.max() >= self.spec.vocab_size:
                raise UsageError(f"--calibrate {path}: fewer than two tokens, or tokens outside the vocabulary")
        return found

    def _manifest(self, layout: Layout, text: Text) -> Manifest:
        kv: tuple[KVFormat, ...] = tuple(next(f for f in get_args(KVFormat) if f == name) for name in self.options.kv)
        self.progress("graphs", 0, 1)
        graphs = write_graphs(self.folder, layout, kv)
        write_genai_config(self.folder, self.spec, text, graphs.model)
        self.progress("graphs", 1, 1)
        return Manifest(
            format=FORMAT,
            version=least_version(layout.tensors.values()),
            producer=f"edgedec {edgedec.__version__}",
            name=self.name,
            spec=self.spec,
            weights=WEIGHTS,
            quantization={**self.formats, "block": str(self.options.block)},
            tensors=layout.tensors,
            ropes=layout.ropes,
            kv_formats=kv,
            kv_scales=layout.kv_scales,
            graphs=graphs,
            text=text,
            files=self._files(),
        )

    def _files(self) -> dict[str, File]:
        found, paths = {}, sorted(self.folder.iterdir())
        for i, path in enumerate(paths):
            self.progress("hashes", i, len(paths))
            with path.open("rb") as file:
                found[path.name] = File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
        self.progress("hashes", len(paths), len(paths))
        return found

    def _write_manifest(self, manifest: Manifest) -> None:
        (self.folder / MANIFEST).write_text(json.dumps(to_json(manifest), indent=1) + "\n", "utf-8")


class _FloatRun:
    """The float model on some texts, a layer at a time."""

    def __init__(
        self,
        spec: ModelSpec,
        read: Callable[[str, int, int], NDArray[np.float32]],
        texts: dict[str, tuple[NDArray[np.int64], str]],
    ) -> None:
        self._runtime = Reference(spec, read)
        self._rows = {purpose: Rows.chain(ids, 0) for purpose, (ids, _) in texts.items()}
        self._caches: dict[str, Cache] = {p: self._runtime.new_cache(len(rows)) for p, rows in self._rows.items()}
        self._hidden = {purpose: self._runtime.embed(rows.tokens) for purpose, rows in self._rows.items()}

    def layer(self, i: int) -> None:
        blocks = self._runtime.spec.blocks(i, i + 1)
        for purpose, rows in self._rows.items():
            self._hidden[purpose] = self._runtime.run(self._hidden[purpose], rows, self._caches[purpose], blocks)

    def kept(self, i: int) -> NDArray[np.float32]:
        """Keys and values [2, n_kv_heads, n, head_dim] of layer i on the calibration text."""
        kept: NDArray[np.float32] = self._caches["calibration"].data[i][:, :, : len(self._rows["calibration"])]
        return kept

    def logits(self, purpose: str) -> NDArray[np.float32]:
        return self._runtime.head(self._hidden[purpose])
