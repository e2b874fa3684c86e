"""An ONNX decoder from another exporter -> bundle: the output of `optimum-cli export onnx`, unchanged.

The graph and its data are copied and hashed; the spec has the number of layers and their keys and values, and
everything else is inside the graph (`edgedec.spec.opaque`). Needs the `export` extra (onnx), to find the graph's data
files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import edgedec
from edgedec.bundle import MANIFEST, Bundle
from edgedec.bundle.manifest import FORMAT, OLDEST, Artifact, KVScales, Manifest
from edgedec.bundle.onnx_rules import DECODER_RULES, check_graph
from edgedec.errors import BundleError, CheckpointError, UsageError
from edgedec.export.checkpoint_logits import Expected, checkpoint_logits
from edgedec.export.import_check import Checked, check_import
from edgedec.export.links import check_link, check_links
from edgedec.export.safetensors import read_json
from edgedec.export.text import copy_text
from edgedec.export.writer import Progress, hashed, write_manifest
from edgedec.runtimes.graph.interface import Interface, interface_of
from edgedec.runtimes.ort.sessions import ERRORS, session_options
from edgedec.spec import ModelSpec
from edgedec.storage.files import replacing_folder

RUNTIME = "graph"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\Z")
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
_WIDTH = ("hidden_size", "n_embd", "d_model")
# The context of a model without a limit of its own (ALiBi).
_NO_LIMIT, _NO_BOUND = 2048, 1 << 31


@dataclass(frozen=True)
class ImportOptions:
    """file: the graph, if the folder has several. context: another length than the config's."""

    file: str | None = None
    context: int | None = None
    name: str | None = None
    force: bool = False
    threads: int = 0


@dataclass(frozen=True)
class Imported:
    """The bundle, and how it was checked."""

    bundle: Bundle
    checked: Checked

    @property
    def off(self) -> float:
        return self.checked.off


def import_graph(
    source: Path,
    out: Path,
    options: ImportOptions = ImportOptions(),
    progress: Progress = lambda *_: None,
    checkpoint: Path | None = None,
    weights: Path | None = None,
) -> Imported:
    """Import the ONNX decoder in the folder `source` to the bundle folder `out`. checkpoint: what it was made of, whose
    config and text files are taken; weights: the folder with all of it, which the graph is compared with."""
    graph, *_ = files = _checked_files(source, options.file)
    places = (checkpoint,) if checkpoint else (graph.parent, source)
    config = read_json(next((p for p in places if (p / "config.json").is_file()), source) / "config.json")
    if options.force and out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise UsageError(f"{out}: is not a bundle; --force replaces bundles only")
    with replacing_folder(out, force=options.force) as folder:
        for i, file in enumerate(files):
            progress("copying", i, len(files))
            shutil.copyfile(file, folder / file.name)
        progress("copying", len(files), len(files))
        spec, interface = _spec(folder / graph.name, config, options)
        tokens = checkpoint or (source if (source / "tokenizer.json").is_file() else graph.parent)
        text = copy_text(tokens, folder, config)
        names = tuple(file.name for file in files)
        manifest = Manifest(
            format=FORMAT,
            version=OLDEST,
            producer=f"edgedec {edgedec.__version__}",
            name=options.name or out.name,
            spec=spec,
            weights=max(names, key=lambda name: (folder / name).stat().st_size),
            quantization={},
            tensors={},
            ropes=(),
            kv_formats=(interface.kv,),  # type: ignore[arg-type]
            kv_scales=KVScales(),
            text=text,
            files=hashed(folder, progress),
            artifacts={RUNTIME: Artifact(names)},
            source={"graph": graph.name},
        )
        write_manifest(folder, manifest)
        progress("parity", 0, 1)
        checked = _checked(folder, manifest, options.threads, weights, config)
        progress("parity", 1, 1)
    return Imported(Bundle.open(out), checked)


def _checked_files(source: Path, name: str | None) -> list[Path]:
    """The decoder's graph, which may be opened, and its data files."""
    graph = find_graph(source, name)
    check_links(source, "onnx")
    files = [graph, *_data_files(graph)]
    for file in files:
        check_link(source, file)
    try:
        check_graph(graph, DECODER_RULES, {file.name: file.stat().st_size for file in files[1:]})
    except BundleError as error:
        raise CheckpointError(str(error)) from None
    return files


def _checked(
    folder: Path, manifest: Manifest, threads: int, checkpoint: Path | None, config: dict[str, Any]
) -> Checked:
    """Compare the bundle with its checkpoint, if there is one, and note the result in it."""

    def expected(ids: NDArray[np.int64]) -> Expected | None:
        return None if checkpoint is None else checkpoint_logits(checkpoint, config, ids)

    checked = check_import(Bundle.open(folder), threads, expected)
    if checked.apart is not None:
        beside = {"parity": checked.apart, "parity_with": checked.by}
        write_manifest(folder, replace(manifest, source=manifest.source | beside))
    return checked


def find_graph(source: Path, file: str | None = None) -> Path:
    """The decoder's graph in a folder: the one named, else model.onnx, else the only one."""
    if not source.is_dir():
        raise CheckpointError(f"{source}: no such folder; expected one that `optimum-cli export onnx` wrote")
    found = sorted([*source.glob("*.onnx"), *source.glob("onnx/*.onnx")])
    if file is not None:
        if source / file not in found:
            raise UsageError(f"--file {file}: not in {source}; there are: {_names(found, source) or 'none'}")
        return source / file
    if any(path.name.startswith("encoder") for path in found):
        raise CheckpointError(f"{source}: an encoder-decoder; edgedec runs decoders only")
    for name in ("model.onnx", "onnx/model.onnx", "decoder_with_past_model.onnx"):
        if source / name in found:
            return source / name
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{source}: several graphs, choose one with --file: {_names(found, source)}")
    raise CheckpointError(
        f"{source}: no ONNX graph there; make one with `optimum-cli export onnx`, or `edgedec export`"
    )


def _names(paths: list[Path], source: Path) -> str:
    return ", ".join(str(path.relative_to(source)) for path in paths)


def _data_files(graph: Path) -> list[Path]:
    """The external data files of a graph, by the names in it."""
    if not _PLAIN.match(graph.name):
        raise CheckpointError(f"{graph}: rename it to a plain file name")
    try:
        model = onnx.load(str(graph), load_external_data=False)
    except Exception as error:  # protobuf's own classes, and any other error on a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{graph}: not an ONNX graph, or cut short ({reason})") from None
    for opset in model.opset_import:
        if opset.domain not in _DOMAINS:
            raise CheckpointError(
                f"{graph}: uses operators of {opset.domain!r}, which need code that edgedec never loads"
            )
    names = sorted(set(_locations(model.graph)))
    for name in names:
        if not _PLAIN.match(name):
            raise CheckpointError(f"{graph}: its weights are in {name!r}, which is not a plain file name")
        if not (graph.parent / name).is_file():
            raise CheckpointError(f"{graph.parent / name}: missing; {graph.name} keeps weights there, copy it too")
    return [graph.parent / name for name in names]


def _locations(graph: Any) -> Iterator[str]:
    """The names of data files of a graph and of the graphs inside its nodes."""
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for inner in (attribute.g, *attribute.graphs):
                yield from _locations(inner)
    for tensor in tensors:
        yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _spec(graph: Path, config: Mapping[str, Any], options: ImportOptions) -> tuple[ModelSpec, Interface]:
    """The opaque spec of a graph, from graph and config."""
    import onnxruntime as ort

    try:
        session = ort.InferenceSession(str(graph), session_options(1), providers=["CPUExecutionProvider"])
    except ERRORS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{graph.name}: ONNX Runtime cannot open it: {reason}") from None
    found = interface_of(session, graph.name, CheckpointError)
    limit = min(_number(config, _CONTEXT) or _NO_LIMIT, _traced(config))
    if options.context is not None and not 1 <= options.context <= limit:
        raise UsageError(f"--ctx-size {options.context}: must be from 1 to {limit}, the model's limit")
    vocab = found.vocab_size or _number(config, ("vocab_size",))
    if not vocab:
        raise CheckpointError("config.json: vocab_size is missing, and the graph does not say it")
    spec = ModelSpec(
        architecture=str(config.get("model_type", "unknown")),
        vocab_size=vocab,
        hidden_size=_number(config, _WIDTH) or 1,
        context_length=options.context or limit,
        layers=tuple((block,) for block in found.spec_blocks),
        norm_eps=0.0,
        tied=False,
    )
    return spec.check("config.json"), found


def _traced(config: Mapping[str, Any]) -> int:
    """The longest text that has the ropes of the traced one: a graph has LongRoPE's short factors only."""
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = table.get("rope_type", table.get("type")) if isinstance(table, dict) else None
    if kind not in ("longrope", "su"):
        return _NO_BOUND
    original = "original_max_position_embeddings"
    return _number(config, (original,)) or _number(table, (original, "max_position_embeddings")) or 4096


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The first of these keys that is a whole number above 0; 0 if none is."""
    values = (config.get(name) for name in names)
    return next((value for value in values if type(value) is int and value > 0), 0)
