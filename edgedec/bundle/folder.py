"""A bundle: a folder with a manifest, one weights file, a tokenizer and artifacts of runtimes. Read, checked, hashed.

Opening checks every size; `Bundle.verify` checks every sha256. Nothing from a bundle is executed,
unpickled or followed out of its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.advice import advice
from edgedec.bundle.diffusion import check_diffusion
from edgedec.bundle.extents import extents
from edgedec.bundle.integers import Integers, unpacked, values
from edgedec.bundle.interleave import pick, unpack, zeros_by_row
from edgedec.bundle.manifest import FORMAT, LANES, MANIFEST, OLDEST, VERSION, Manifest, Tensor
from edgedec.errors import BundleCorrupt, BundleNotFound, BundleUnsafe, BundleVersion, UsageError
from edgedec.spec import ModelSpec, Output
from edgedec.storage.serde import from_json

ALIGN = 64
MANIFEST_LIMIT = 8 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Bundle:
    """A folder whose manifest has been read and whose sizes have been checked."""

    path: Path
    manifest: Manifest
    digest: str

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> Bundle:
        """The bundle at `path`; `verify` also checks every hash (reads every byte)."""
        bundle = cls._opened(Path(path), MANIFEST)
        if verify:
            bundle.verify()
        return bundle

    @classmethod
    def _opened(cls, folder: Path, name: str) -> Bundle:
        """The bundle described by this manifest file of the folder."""
        raw = _read_manifest(folder, name)
        manifest = _parse(raw, folder / name)
        _check_files(folder, manifest)
        _check_references(manifest, folder / name)
        return cls(folder, manifest, hashlib.sha256(raw).hexdigest())

    def part(self, name: str) -> Bundle:
        """The bundle inside this one whose manifest is its file `name`: the layers of a draft."""
        self.file(name)
        found = Bundle._opened(self.path, name)
        for file, facts in found.manifest.files.items():
            if self.manifest.files.get(file) != facts:
                raise BundleCorrupt(f"{self.path / name}: its file {file!r} is not that of the bundle; export it again")
        return found

    @property
    def spec(self) -> ModelSpec:
        return self.manifest.spec

    @property
    def origin(self) -> str:
        """The model's identity: unchanged when files are added, so that saved sessions stay valid."""
        return self.manifest.origin or self.digest

    def file(self, name: str) -> Path:
        """The path of a file of this bundle."""
        if name not in self.manifest.files:
            raise BundleCorrupt(f"{self.path}: the manifest does not list {name!r}")
        return self.path / name

    def verify(self, progress: Callable[[str, int], None] = lambda name, size: None) -> None:
        """Check every file's sha256; BundleCorrupt names the first that differs."""
        for name, file in self.manifest.files.items():
            self.verify_file(name)
            progress(name, file.size)

    def verify_file(self, name: str) -> None:
        """Check the sha256 of one file."""
        if _sha256(self.file(name)) != self.manifest.files[name].sha256:
            raise BundleCorrupt(f"{self.path / name}: content differs from its hash; export or download it again")

    @property
    def output(self) -> Output | None:
        """What it makes of the rows of a text that it encodes; None if it only generates."""
        modes = self.manifest.modes
        return self.spec.output if modes is None else modes.output

    def require_decoder(self) -> None:
        """UsageError for a text encoder, which generates nothing."""
        if self.spec.output is not None:
            does = "a text encoder, it generates no text; use embed, rerank or classify"
            raise UsageError(f"{self.manifest.name}: {does}")

    @cached_property
    def weights(self) -> NDArray[np.uint8]:
        """The weights file, memory-mapped read-only."""
        return np.memmap(self.file(self.manifest.weights), np.uint8, mode="r").view(np.ndarray)

    def array(self, offset: int, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """A view of the weights file."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.weights[offset : offset + size].view(dtype).reshape(shape)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Rows start..stop of a weight as float32 (all of them by default)."""
        return self._floats(name, slice(start, stop))

    def gather(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows of a matrix that `rows` [n] names, as float32 [n, width]; only their bytes are touched."""
        return self._floats(name, rows)

    def _floats(self, name: str, rows: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        t = self.manifest.tensors[name]
        if t.format == "f32" or t.format == "f16":
            dtype = np.float32 if t.format == "f32" else np.float16
            return self.array(t.data, dtype, t.shape)[rows].astype(np.float32)
        stored = self._rows_of(t, rows, t.data, np.uint32, t.blocks * t.block_bytes // 4)
        scales = self._rows_of(t, rows, t.scales, np.float16, t.scale_count)
        data, zeros = stored.view(np.uint8), self._zeros_of(t, rows)
        offsets = self._rows_of(t, rows, t.offsets, np.float16, t.blocks) if t.offsets else None
        if t.parts:
            scales, offsets = whole_scales(t.format, self._rows_of(t, rows, t.parts, np.uint8, t.blocks), scales)
        return dequantize(data, scales, t.format, t.shape[-1], zeros, offsets)

    def _zeros_of(self, t: Tensor, rows: slice | NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """The zero points [n, blocks] of some rows; None if there are none."""
        if not t.zeros:
            return None
        return zeros_by_row(self.array(t.zeros, np.uint8, (t.zero_bytes,)), t)[rows]

    def _rows_of(self, t: Tensor, rows: slice | NDArray[np.int64], offset: int, dtype: Any, width: int) -> NDArray[Any]:
        """Some rows of a matrix of words [out, width], whichever its layout."""
        n = t.shape[0]
        if t.layout == "rows":
            return self.array(offset, dtype, (n, width))[rows]
        packed = self.array(offset, dtype, (t.groups, width, LANES))
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(n)
            return unpack(packed, start, max(start, stop))
        if ((rows < 0) | (rows >= n)).any():
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {n} were asked for")
        return pick(packed, rows)


def whole_scales(
    fmt: str, parts: NDArray[np.uint8], scales: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Parts [n, blocks] and the scales of 256 weights [n, ...] -> the scales of blocks [n, blocks], and of uint2 their
    offsets."""
    n, wide = len(parts), scales.astype(np.float32)
    if fmt != "uint2":
        return (parts.view(np.int8).reshape(n, -1, 16) * wide[:, :, None]).reshape(n, -1), None
    both, halves = np.stack([parts & 15, parts >> 4]).reshape(2, n, -1, 16), wide.reshape(n, -1, 2)
    found = (both * halves.transpose(2, 0, 1)[..., None]).reshape(2, n, -1)
    return found[0], found[1]


def dequantize(
    data: NDArray[np.uint8],
    scales: NDArray[Any],
    fmt: Integers,
    width: int,
    zeros: NDArray[np.uint8] | None = None,
    offsets: NDArray[Any] | None = None,
) -> NDArray[np.float32]:
    """data uint8 [n, ...] of the blocks, scales, zero points and offsets [n, blocks] -> float32 [n, width]."""
    n, blocks = scales.shape
    codes = unpacked(data.reshape(n, -1), fmt).reshape(n, blocks, -1)
    found = values(codes, fmt, zeros) * scales.astype(np.float32)[..., None]
    if offsets is not None:
        found += offsets.astype(np.float32)[..., None]
    return np.ascontiguousarray(found.reshape(len(scales), -1)[:, :width])


def is_plain(name: str) -> bool:
    """Whether a file of a bundle may have this name."""
    return _NAME.match(name) is not None


def _read_manifest(folder: Path, name: str) -> bytes:
    path = folder / name
    if not path.is_file():
        raise BundleNotFound(f"{folder}: no {name} there; {advice(folder)}")
    if path.stat().st_size > MANIFEST_LIMIT:
        raise BundleCorrupt(f"{path}: larger than any manifest")
    try:
        return path.read_bytes()
    except OSError as error:
        raise BundleNotFound(f"{path}: cannot be read: {error.strerror or error}") from None


def _parse(raw: bytes, path: Path) -> Manifest:
    where = str(path)
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BundleCorrupt(f"{where}: not JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BundleCorrupt(f"{where}: not a manifest of edgedec")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise BundleCorrupt(f"{where}: version {version!r} is not a version")
    if version > VERSION:
        raise BundleVersion(f"{where}: format version {version}, this edgedec reads {VERSION}; upgrade edgedec")
    if version < OLDEST:
        raise BundleVersion(f"{where}: format version {version} of an older edgedec; export the model again")
    return from_json(Manifest, data, path.name)


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, file in manifest.files.items():
        if not is_plain(name) or name == MANIFEST:
            raise BundleUnsafe(f"{folder}: the manifest lists {name!r}, which is not a plain file name")
        path = folder / name
        # realpath and not resolve: a circle of links is no error to it.
        if path.is_symlink() and os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
            raise BundleUnsafe(f"{path}: a link out of the bundle; copy the file in")
        if not path.is_file():
            raise BundleCorrupt(f"{path}: missing; export or download the bundle again")
        if path.stat().st_size != file.size:
            raise BundleCorrupt(f"{path}: {path.stat().st_size} bytes, the manifest says {file.size}")


def _check_references(manifest: Manifest, path: Path) -> None:
    """Check that every name and offset in the manifest exists."""
    where = str(path)
    spec = manifest.spec.check()
    tokenizer = [manifest.text.tokenizer] if manifest.text.tokenizer is not None else []
    heads = [head.file for head in manifest.heads.values()]
    artifacts = [name for artifact in manifest.artifacts.values() for name in artifact.files]
    drafts = [name for draft in manifest.drafts.values() for name in draft.files]
    for name in [manifest.weights, *tokenizer, *artifacts, *heads, *drafts]:
        if name not in manifest.files:
            raise BundleCorrupt(f"{where}: names {name!r}, which is not among its files")
    if not manifest.kv_formats:
        raise BundleCorrupt(f"{where}: names no KV format")
    if manifest.origin and not _SHA256.match(manifest.origin):
        raise BundleCorrupt(f"{where}: origin: {manifest.origin[:60]!r} is not a sha256")
    _check_heads(manifest, where)
    _check_drafts(manifest, where)
    check_diffusion(manifest, where)
    if manifest.modes is not None:
        manifest.modes.check(spec, where)
    if (manifest.encoder is None) != (spec.output is None and manifest.modes is None):
        raise BundleCorrupt(f"{where}: encoder: belongs to a spec with an output, or to modes")
    shapes = {name: t.shape for name, t in manifest.tensors.items()}
    if shapes != spec.tensors():
        raise BundleCorrupt(f"{where}: the weights are not those of the spec")
    size = manifest.files[manifest.weights].size
    for name, start, length in extents(manifest):
        if start < 0 or start % ALIGN or start + length > size:
            raise BundleCorrupt(f"{where}: {name} lies outside {manifest.weights} or is not aligned")


def _check_heads(manifest: Manifest, where: str) -> None:
    """Check that draft heads fit the model; their contents are checked when they are opened."""
    spec = manifest.spec
    for kind, head in manifest.heads.items():
        if not 1 <= head.depth <= 64:
            raise BundleCorrupt(f"{where}: heads.{kind}.depth: {head.depth} is out of range")
        if not 0 <= head.layer < spec.n_layers:
            raise BundleCorrupt(f"{where}: heads.{kind}.layer: {head.layer} of {spec.n_layers} layers")
        if not 0 <= head.top <= head.vocab <= spec.vocab_size:
            raise BundleCorrupt(f"{where}: heads.{kind}: names {head.top} of {head.vocab} of {spec.vocab_size} tokens")


def _check_drafts(manifest: Manifest, where: str) -> None:
    """Check that drafts fit the model; their contents are checked when they are opened."""
    for kind, draft in manifest.drafts.items():
        if not 1 <= draft.depth <= 64:
            raise BundleCorrupt(f"{where}: drafts.{kind}.depth: {draft.depth} is out of range")
        if not 1 <= draft.block <= 64:
            raise BundleCorrupt(f"{where}: drafts.{kind}.block: {draft.block} is out of range")
        if any(not 0 <= block < manifest.spec.n_blocks for block in draft.features):
            raise BundleCorrupt(f"{where}: drafts.{kind}.features: not blocks of {manifest.spec.n_blocks}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
