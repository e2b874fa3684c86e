"""A small model at the cost of a large one: the same function, in the arithmetic of another geometry.

Speculation has to be measured where a call costs what it costs on a real model, and with text that a model
would really write. So a bundle that can write is padded with zeros to the sizes of a larger model
(`edgedec.export.wide`): every multiplication of the large model is made, and its tokens are those of the small one.
Draft heads are padded too, and their inner layers grow as the hidden state does.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.bundle.manifest import FORMAT, MANIFEST, File, KVScales, Manifest, WeightFormat, least_version
from edgedec.errors import BundleError
from edgedec.export.exporter import LAYOUTS, WEIGHTS, Progress
from edgedec.export.genai import write_genai_config
from edgedec.export.heads import Arrays, arrays_of, build, expected, install
from edgedec.export.onnx import Layout, write_graphs
from edgedec.export.text import COMPANIONS
from edgedec.export.weights import WeightsFile
from edgedec.export.wide import BLOCK, GEOMETRIES, Geometry, Wide, geometry_named
from edgedec.storage.files import cache_folder, replacing_folder
from edgedec.storage.serde import to_json

__all__ = ["GEOMETRIES", "Geometry", "Wide", "geometry_named", "widen", "widened", "widened_path"]

VERSION = 1  # of what is written: another number, and what the cache holds is made again


def widened_path(bundle: Bundle, name: str) -> Path:
    """Where the cache keeps this bundle at the geometry `name`."""
    facts = [bundle.digest, asdict(geometry_named(name)), VERSION]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_folder() / "widened" / f"{bundle.manifest.name}-as-{name}-{key}"


def widened(bundle: Bundle, name: str, progress: Progress = lambda *_: None) -> Bundle:
    """The bundle at the geometry `name`, int4 as `edgedec export` makes it; from the cache if it is there."""
    path = widened_path(bundle, name)
    if path.is_dir():
        try:
            return Bundle.open(path)
        except BundleError:
            pass  # of another age, or spoiled: made again
    return widen(bundle, geometry_named(name), path, f"{bundle.manifest.name}-as-{name}", progress=progress)


def widen(
    bundle: Bundle,
    geometry: Geometry,
    out: Path,
    name: str,
    weights: WeightFormat = "int4",
    progress: Progress = lambda *_: None,
) -> Bundle:
    """Write `bundle` at `geometry` to the folder `out`, which it replaces; its matrices in the format `weights`."""
    wide = Wide(bundle, geometry)
    try:
        with replacing_folder(out, force=True) as folder:
            _write(wide, folder, name, weights, progress)
    except OSError as error:
        raise BundleError(f"{out}: cannot be written: {error.strerror or error}") from None
    return Bundle.open(out)


def _write(wide: Wide, folder: Path, name: str, fmt: WeightFormat, progress: Progress) -> None:
    source, spec = wide.bundle.manifest, wide.spec
    layout = _write_weights(wide, folder, fmt, progress)
    files = {source.text.tokenizer, *COMPANIONS} & set(source.files)
    for file in sorted(file for file in files if file is not None):
        shutil.copyfile(wide.bundle.file(file), folder / file)
    progress("graphs", 0, 1)
    graphs = write_graphs(folder, layout, source.kv_formats)
    write_genai_config(folder, spec, source.text, graphs.model)
    progress("graphs", 1, 1)
    manifest = Manifest(
        format=FORMAT,
        version=least_version(layout.tensors.values()),
        producer=f"edgedec {edgedec.__version__}",
        name=name,
        spec=spec,
        weights=WEIGHTS,
        quantization={"body": fmt, "head": fmt, "embed": fmt, "block": str(BLOCK)},
        tensors=layout.tensors,
        ropes=layout.ropes,
        kv_formats=source.kv_formats,
        kv_scales=layout.kv_scales,
        graphs=graphs,
        text=source.text,
        files=_files(folder, progress),
        source={"widened": wide.bundle.digest},
    )
    (folder / MANIFEST).write_text(json.dumps(to_json(manifest), indent=1) + "\n", "utf-8")
    _widen_heads(wide, folder)


def _write_weights(wide: Wide, folder: Path, fmt: WeightFormat, progress: Progress) -> Layout:
    spec, shapes, done = wide.spec, wide.spec.tensors(), 0
    total = sum(int(np.prod(shape)) for shape in shapes.values())
    with (folder / WEIGHTS).open("wb") as file:
        weights = WeightsFile(file, LAYOUTS["cpu"])
        for name, shape in shapes.items():
            weights.tensor(name, wide.read(name), shape, fmt, BLOCK)
            done += int(np.prod(shape))
            progress("weights", done, total)
        scales = {kv: getattr(wide.bundle.manifest.kv_scales, kv) for kv in ("int8", "int4")}
        layout = Layout(
            spec=spec,
            weights=WEIGHTS,
            tensors=weights.tensors,
            ropes=tuple(weights.rope(rope, spec.context_length) for rope in spec.ropes),
            kv_scales=KVScales(**{k: weights.array(wide.kv_scales(at)) for k, at in scales.items() if at is not None}),
        )
        weights.array(np.zeros(0, np.uint8))  # pad, so that the last tensor may be read in full lines
    return layout


def _files(folder: Path, progress: Progress) -> dict[str, File]:
    found, paths = {}, sorted(folder.iterdir())
    for i, path in enumerate(paths, 1):
        with path.open("rb") as file:
            found[path.name] = File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
        progress("hashes", i, len(paths))
    return found


def _widen_heads(wide: Wide, folder: Path) -> None:
    """The source's draft heads, padded to what `train-heads` makes for this hidden size; an exit stays behind the
    layer where it was, a readout keeps its tokens."""
    for kind, head in wide.bundle.manifest.heads.items():
        arrays, facts = arrays_of(wide.bundle.file(head.file))
        facts = replace(
            facts,
            hidden=wide.spec.hidden_size,
            width=max(facts.width, wide.spec.hidden_size),
            eps=facts.eps * wide.factor**2,
        )
        padded: Arrays = {}
        for name, shape in expected(facts, head.vocab).items():
            padded[name] = np.zeros(shape, arrays[name].dtype)
            part = arrays[name] * np.float32(wide.factor) if name.endswith("norm") else arrays[name]
            padded[name][tuple(slice(n) for n in part.shape)] = part
        install(Bundle.open(folder), build(kind, padded, facts), padded, facts)
