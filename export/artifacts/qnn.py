"""Contexts for the HTP of one of Qualcomm's SoCs: the parts of the stack at every bucket, compiled ahead of time.

The buckets of a part are compiled into one binary, in which each weight is once. Compiling needs onnxruntime-qnn, whose
compiler runs on x86-64 Linux too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from edgedec.bundle.manifest import Artifact
from edgedec.errors import RuntimeUnavailable
from edgedec.export.artifacts import ArtifactFacts, Request
from edgedec.export.artifacts.devices import MOST
from edgedec.export.onnx import unsupported_on_devices, write_portable
from edgedec.runtime import DeviceName
from edgedec.runtimes.ort.device_shapes import ROWS, CallShape, lengths
from edgedec.runtimes.ort.providers import Placed, missing
from edgedec.runtimes.ort.sessions import session_options
from edgedec.runtimes.ort.shipped import ShippedContexts, key
from edgedec.runtimes.ort.socs import check_soc
from edgedec.spec import ModelSpec
from edgedec.storage.serde import to_json

FACTS = ArtifactFacts(by_machine=True)
_SHARE, _LAST = "ep.share_ep_contexts", "ep.stop_share_ep_contexts"


@dataclass(frozen=True)
class QnnMaker:
    """Compiles for one SoC."""

    soc: str

    def reason(self, spec: ModelSpec) -> str | None:
        """Why the HTP cannot run the model; None if it can."""
        return unsupported_on_devices(spec)

    def write(self, folder: Path, request: Request) -> Artifact:
        """Compile every part of the stack at every bucket: for an int8 cache if that is the bundle's first, else
        f16."""
        kv = "int8" if request.model_kv == "int8" else "f16"
        models, binaries = dict[str, str](), list[str]()
        with _graphs(folder, request, kv) as (sources, parts):
            for part in parts:
                found, binary = _compiled(sources, part, folder, request, Placed(DeviceName("qnn", self.soc)))
                models |= found
                binaries.append(binary)
        contexts = ShippedContexts(models, tuple(binaries))
        return Artifact(tuple(sorted(contexts.names)), to_json(contexts))


def maker(soc: str) -> QnnMaker:
    """What compiles for a SoC; UsageError unless there is one, RuntimeUnavailable unless its compiler is here."""
    check_soc(soc)
    why = missing(DeviceName("qnn", soc))
    if why is not None:
        raise RuntimeUnavailable(why)
    return QnnMaker(soc)


def here() -> tuple[str, ...]:
    """The artifacts that this machine needs: none, its graphs are compiled when they are opened."""
    return ()


@contextmanager
def _graphs(folder: Path, request: Request, kv: str) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A temporary folder with graphs and their weights file, and the parts of the stack in it."""
    assert request.weights is not None
    work = folder / ".compiling"
    work.mkdir()
    try:
        weights, place = request.layout.weights, work / request.layout.weights
        try:
            place.hardlink_to(request.weights / weights)
        except OSError:  # another file system
            shutil.copyfile(request.weights / weights, place)
        _, _, parts, _ = write_portable(work, replace(request.layout, prefix=""), [kv], "device_", MOST)
        yield work, parts[kv]
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compiled(sources: Path, part: str, folder: Path, request: Request, placed: Placed) -> tuple[dict[str, str], str]:
    """The models of a part by `key`, and the binary that they share, written into `folder`."""
    context = request.layout.spec.context_length
    shapes = [CallShape(rows, past) for past in lengths(context) for rows in ROWS if rows <= context]
    stem, models = f"qnn_{placed.device.detail}_{part.removesuffix('.onnx')}", dict[str, str]()
    placed.options["enable_htp_weight_sharing"] = "1"
    for i, shape in enumerate(shapes):
        name = f"{stem}.r{shape.rows}.p{shape.past}_ctx.onnx"
        options = session_options(1)
        for size, length in shape.sizes.items():
            options.add_free_dimension_override_by_name(size, length)
        entries = {"ep.context_enable": "1", "ep.context_embed_mode": "0", _SHARE: "1"}
        entries |= {"ep.context_file_path": str(folder / name)} | ({_LAST: "1"} if i == len(shapes) - 1 else {})
        for entry, value in entries.items():
            options.add_session_config_entry(entry, value)
        placed.open(str(_named(sources / part, shape)), options)
        models[key(f"{request.layout.prefix}{part}", shape)] = name
    first = stem + f".r{shapes[0].rows}.p{shapes[0].past}"
    return models, next(path.name for path in folder.glob(f"{first}*.bin"))


def _named(graph: Path, shape: CallShape) -> Path:
    """The graph under a unique name: the compiler mixes up the tensors of graphs with the same name."""
    model = onnx.load(str(graph), load_external_data=False)
    model.graph.name = f"{model.graph.name}_{shape.rows}_{shape.past}"
    path = graph.with_name(f"{model.graph.name}.onnx")
    path.write_bytes(model.SerializeToString())
    return path
