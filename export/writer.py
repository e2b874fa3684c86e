"""One writer of bundles, for the exporter and the padding tool: weights, artifacts, hashes, and the manifest last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

import edgedec
from edgedec.bundle.manifest import (
    FORMAT,
    MANIFEST,
    OLDEST,
    VERSION,
    WITH_DIFFUSION,
    WITH_ENCODERS,
    WITH_ROPES,
    WITH_ZEROS,
    Artifact,
    DiffusionFacts,
    EncoderFacts,
    File,
    KVFormat,
    KVScales,
    Manifest,
    Text,
    WeightFormat,
    WeightLayout,
)
from edgedec.bundle.modes import ModeFacts
from edgedec.export.artifacts import Request, choose, made_for
from edgedec.export.layout import Layout
from edgedec.export.weights import Kept, Read, WeightsFile, format_of
from edgedec.spec import ModelSpec
from edgedec.spec.newer import is_newer
from edgedec.storage.serde import to_json

Progress = Callable[[str, int, int], None]
# Cache scales [2, n_kv_heads, head_dim] of each attention block in order, by format.
Scales = Mapping[str, Sequence[NDArray[np.float32]]]


class Add(Protocol):
    """Writes a tensor by its name. `read` gives its rows as floats; `kept`, if there is one, as they are stored."""

    def __call__(self, name: str, read: Read, kept: Kept | None = None) -> None: ...


WEIGHTS = "weights.bin"


@dataclass(frozen=True)
class Contents:
    """The contents of a bundle besides its weights. formats: of "body", "head" and "embed"; own: of other tensors; kv:
    cache formats, the default one first; runtimes: those to make artifacts for, None for all that can run the model;
    prefix: of the names of its files; diffusion: of a diffusion language model; encoder: of a text
    encoder; modes: of a model whose first tokens choose which rows see each other."""

    name: str
    spec: ModelSpec
    text: Text
    formats: Mapping[str, WeightFormat]
    block: int
    kv: tuple[str, ...]
    layout: WeightLayout = "interleave16"
    runtimes: tuple[str, ...] | None = None
    source: dict[str, Any] = field(default_factory=dict)
    own: Mapping[str, WeightFormat] = field(default_factory=dict)
    prefix: str = ""
    diffusion: DiffusionFacts | None = None
    encoder: EncoderFacts | None = None
    modes: ModeFacts | None = None

    def format_of(self, name: str) -> WeightFormat:
        """The format that a tensor is stored in."""
        formats = self.formats
        return self.own.get(name) or format_of(self.spec, name, formats["body"], formats["head"], formats["embed"])


class BundleWriter:
    """One bundle on its way into an empty folder, which may hold the tokenizer's files already."""

    def __init__(self, folder: Path, contents: Contents, progress: Progress = lambda *_: None) -> None:
        self.folder, self.contents, self.progress = folder, contents, progress
        self._runtimes = choose(
            contents.spec, contents.runtimes, formats=[*contents.formats.values(), *contents.own.values()]
        )
        self._shapes, self._done = contents.spec.tensors(), 0
        self._weights = contents.prefix + WEIGHTS

    def write(self, fill: Callable[[Add], Scales]) -> Manifest:
        """Write all files. `fill` writes every tensor with `add(name, read)` and returns the cache scales."""
        contents = self.contents
        layout = self._write_weights(fill)
        self.progress("graphs", 0, 1)
        request = Request(layout, contents.text, contents.kv, contents.kv[0], self.folder, progress=self.progress)
        artifacts = made_for(self._runtimes, self.folder, request)
        self.progress("graphs", 1, 1)
        manifest = self._manifest(layout, artifacts)
        write_manifest(self.folder, manifest)
        return manifest

    def _write_weights(self, fill: Callable[[Add], Scales]) -> Layout:
        spec = self.contents.spec
        with (self.folder / self._weights).open("wb") as file:
            gathered = ("lookup",) if self.contents.spec.output is None else ("lookup", "embed")
            weights = WeightsFile(file, self.contents.layout, gathered)
            scales = fill(lambda name, read, kept=None: self._add(weights, name, read, kept))
            ropes = tuple(weights.rope(rope, spec) for rope in spec.ropes)
            offsets = {
                kv: weights.array(np.concatenate([np.zeros(0, np.float32), *(a.ravel() for a in found)]))
                for kv, found in scales.items()
            }
            weights.array(np.zeros(0, np.uint8))  # pad, so that the last tensor may be read in full lines
        return Layout(spec, self._weights, weights.tensors, ropes, KVScales(**offsets), self.contents.prefix)

    def _add(self, weights: WeightsFile, name: str, read: Read, kept: Kept | None) -> None:
        fmt = self.contents.format_of(name)
        weights.tensor(name, read, self._shapes[name], fmt, self.contents.block, kept)
        self._done += int(np.prod(self._shapes[name]))
        self.progress("weights", self._done, sum(int(np.prod(shape)) for shape in self._shapes.values()))

    def _manifest(self, layout: Layout, artifacts: dict[str, Artifact]) -> Manifest:
        contents = self.contents
        return Manifest(
            format=FORMAT,
            version=_version(layout, contents),
            producer=f"edgedec {edgedec.__version__}",
            name=contents.name,
            spec=contents.spec,
            weights=self._weights,
            quantization={**contents.formats, "block": str(contents.block or "row")},
            tensors=layout.tensors,
            ropes=layout.ropes,
            kv_formats=tuple(next(f for f in get_args(KVFormat) if f == kv) for kv in contents.kv),
            kv_scales=layout.kv_scales,
            text=contents.text,
            files=hashed(self.folder, self.progress),
            artifacts=artifacts,
            source=contents.source,
            diffusion=contents.diffusion,
            encoder=contents.encoder,
            modes=contents.modes,
        )


def hashed(folder: Path, progress: Progress = lambda *_: None) -> dict[str, File]:
    """Size and sha256 of every file of a folder but a manifest."""
    found, paths = {}, sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    for i, path in enumerate(paths):
        progress("hashes", i, len(paths))
        with path.open("rb") as file:
            found[path.name] = File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
    progress("hashes", len(paths), len(paths))
    return found


def manifest_text(manifest: Manifest) -> str:
    """The manifest as it stands in its file."""
    return json.dumps(to_json(manifest), indent=1) + "\n"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a new bundle."""
    (folder / MANIFEST).write_text(manifest_text(manifest), "utf-8")


def _version(layout: Layout, contents: Contents) -> int:
    """The oldest format that says all that the bundle has."""
    tensors = layout.tensors.values()
    newest = ("int5", "nl4", "mx4")
    if is_newer(layout.spec) or any(t.offsets or t.parts or t.row_scales or t.format in newest for t in tensors):
        return VERSION
    if contents.encoder is not None or any(t.format in ("int3", "int2") for t in tensors):
        return WITH_ENCODERS
    if contents.diffusion is not None:
        return WITH_DIFFUSION
    if layout.spec.original_length:
        return WITH_ROPES
    return WITH_ZEROS if any(tensor.zeros for tensor in tensors) else OLDEST
