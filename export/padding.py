"""A small model at the cost of a large one: the same function, in the arithmetic of another geometry.

Speculation has to be measured at the call costs of a real model, on text that a model really generates. A small trained
bundle is therefore padded with zeros to the sizes of a larger model (`edgedec.export.geometry`): every multiplication
of the large model is computed, and the tokens are those of the small one. Draft heads are padded too, and their inner
layers grow as the hidden state does (`edgedec.export.drafts.padded`).
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import WeightFormat
from edgedec.bundle.read_grams import ReadRecord
from edgedec.errors import BundleError
from edgedec.export.drafts.padded import pad_drafts
from edgedec.export.geometry import BLOCK, GEOMETRIES, Geometry, Padded, geometry_named, geometry_of
from edgedec.export.heads import Arrays, arrays_of, build, expected, install
from edgedec.export.read_record import put_record
from edgedec.export.text import COMPANIONS
from edgedec.export.token_counts import put_table, table_of
from edgedec.export.writer import Add, BundleWriter, Contents, Progress, Scales
from edgedec.storage.files import cache_folder, replacing_folder

__all__ = [
    "GEOMETRIES",
    "Geometry",
    "Padded",
    "geometry_named",
    "geometry_of",
    "pad_to_geometry",
    "padded",
    "padded_path",
]

_KEPT_S = 7 * 86_400.0  # unused padded bundles older than this are deleted
VERSION = 4  # of the files; cached bundles of another version are made again


def padded_path(bundle: Bundle, name: str, context: int = 0) -> Path:
    """The cache's path of this bundle at the geometry `name`, with so many positions."""
    facts = [bundle.digest, asdict(geometry_named(name)), VERSION, *([context] if context else [])]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_folder() / "padded" / f"{bundle.manifest.name}-as-{name}-{key}"


def padded(bundle: Bundle, name: str, progress: Progress = lambda *_: None, context: int = 0) -> Bundle:
    """The bundle at the geometry `name`, int4 as in `edgedec export`; from the cache if present. context:
    positions, if more than the bundle's own; beyond those its text is noise, at the same cost."""
    path = padded_path(bundle, name, context)
    if path.is_dir():
        try:
            opened = Bundle.open(path)
        except BundleError:
            pass  # of another version, or damaged: made again
        else:
            os.utime(path)
            return opened
    called = f"{bundle.manifest.name}-as-{name}"
    _remove_old(path.parent, called)
    return pad_to_geometry(bundle, geometry_named(name), path, called, progress=progress, context=context)


def _remove_old(folder: Path, called: str) -> None:
    """Remove bundles of this name that were not opened recently: of other versions of the model or of edgedec."""
    for old in folder.glob(f"{glob.escape(called)}-*"):
        if time.time() - old.stat().st_mtime > _KEPT_S:
            shutil.rmtree(old, ignore_errors=True)


def pad_to_geometry(
    bundle: Bundle,
    geometry: Geometry,
    out: Path,
    name: str,
    weights: WeightFormat = "int4",
    progress: Progress = lambda *_: None,
    context: int = 0,
) -> Bundle:
    """Write `bundle` at `geometry` to the folder `out`, which it replaces; its matrices in the format `weights`."""
    large = Padded(bundle, geometry, context)
    try:
        with replacing_folder(out, force=True) as folder:
            _write(large, folder, name, weights, progress)
    except OSError as error:
        raise BundleError(f"{out}: cannot be written: {error.strerror or error}") from None
    return Bundle.open(out)


def _write(large: Padded, folder: Path, name: str, fmt: WeightFormat, progress: Progress) -> None:
    source = large.bundle.manifest
    files = {source.text.tokenizer, *COMPANIONS} & set(source.files)
    for file in sorted(file for file in files if file is not None):
        shutil.copyfile(large.bundle.file(file), folder / file)
    formats = dict.fromkeys(("body", "head", "embed"), fmt)
    origin = {"padded": large.bundle.digest}
    facts = (name, large.spec, source.text, formats, BLOCK, source.kv_formats)
    contents = Contents(*facts, source=origin, diffusion=source.diffusion)
    BundleWriter(folder, contents, progress).write(lambda add: _fill(large, add))
    _pad_heads(large, folder)
    pad_drafts(large, folder, fmt, progress)
    if (counts := table_of(large.bundle)) is not None:
        put_table(Bundle.open(folder), counts)
    if (record := ReadRecord.of(large.bundle)).parts:
        put_record(Bundle.open(folder), record)


def _fill(large: Padded, add: Add) -> Scales:
    """Write all tensors; the cache scales are the source's."""
    for name in large.spec.tensors():
        add(name, large.read(name))
    offsets = {kv: getattr(large.bundle.manifest.kv_scales, kv) for kv in ("int8", "int4")}
    return {kv: large.kv_scales(offset) for kv, offset in offsets.items() if offset is not None}


def _pad_heads(large: Padded, folder: Path) -> None:
    """The source's draft heads, padded to what `train-heads` makes for this hidden size; an exit stays after the layer
    where it was, a readout keeps its tokens."""
    for kind, head in large.bundle.manifest.heads.items():
        arrays, facts = arrays_of(large.bundle.file(head.file))
        hidden = large.spec.hidden_size
        eps = facts.eps * large.factor**2
        facts = replace(facts, hidden=hidden, width=max(facts.width, hidden), eps=eps)
        grown: Arrays = {}
        for name, shape in expected(facts, head.vocab).items():
            grown[name] = np.zeros(shape, arrays[name].dtype)
            part = arrays[name] * np.float32(large.factor) if name.endswith("norm") else arrays[name]
            grown[name][tuple(slice(n) for n in part.shape)] = part
        install(Bundle.open(folder), build(kind, grown, facts), grown, facts)
