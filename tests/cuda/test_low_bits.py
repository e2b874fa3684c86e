"""Bundles of int3 and int2 on the GPU engines: the native engine's bytes in every block size and layout, the planes in
the device's memory as they are stored, and drafts that do not change a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, ODD, random_weights, write_bundle
from checkpoints import write_llama
from gpu_engines import opened, told

import edgedec
from edgedec.bundle import Bundle
from edgedec.kernels.cpu import loader
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.runtimes._device.runtime import LaunchedRuntime
from edgedec.spec import ModelSpec

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native: {loader.why_not()}")
ENGINES, LOW = ("cuda", "opencl"), ("int3", "int2")
MODELS: dict[str, ModelSpec] = {
    "plain": ODD["plain"],  # gates that are no whole groups, sizes that are no whole blocks
    "tied": ODD["large"],  # the embedding is the head; activations fused
    "routers": KINDS["routers"],  # experts, shared ones too
    "delta rules": KINDS["delta rules"],
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
    monkeypatch.setenv("EDGEDEC_OPENCL", "0")


def low_bundle(folder: Path, model: str, fmt: str, block: int = 32, layout: str = "interleave16") -> Any:
    spec = MODELS[model]
    return write_bundle(folder / "b", spec, random_weights(spec, 3), fmt, block=block, layout=layout)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "fmt", "block", "layout"),
    [
        ("plain", "int3", 32, "rows"),
        ("plain", "int2", 64, "interleave16"),
        ("tied", "int3", 128, "interleave16"),
        ("tied", "int2", 32, "interleave16"),
        ("tied", "int2", 256, "rows"),
        ("routers", "int3", 64, "interleave16"),
        ("routers", "int2", 32, "rows"),
        ("delta rules", "int3", 256, "interleave16"),
    ],
)
def test_the_bytes_of_the_native_engine(
    engine: str, model: str, fmt: str, block: int, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = low_bundle(tmp_path, model, fmt, block, layout)
    matrices = [t for name, t in bundle.manifest.tensors.items() if name in bundle.spec.matrices]
    assert {(t.format, t.block) for t in matrices} == {(fmt, block)}
    ours = opened(engine, bundle, "int8", monkeypatch)
    native = open_runtime("native", bundle, RuntimeOptions(threads=1, kv="int8"))
    ids = np.random.default_rng(4).integers(0, bundle.spec.vocab_size, 40).tolist()  # as many as tensor cores take
    pairs = list(zip(told(ours, ids), told(native, ids), strict=True))
    assert [a.tobytes() == b.tobytes() for a, b in pairs] == [True] * 10
    assert np.ptp(pairs[0][0]) > 0.1


@pytest.mark.parametrize("fmt", LOW)
def test_the_planes_lie_on_the_device_as_they_are_stored(
    fmt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = low_bundle(tmp_path, "tied", fmt, 64)
    runtime: Any = opened("cuda", bundle, "int8", monkeypatch)
    assert isinstance(runtime, LaunchedRuntime)
    runtime.load()
    tensors = [t for name, t in bundle.manifest.tensors.items() if name in bundle.spec.matrices]
    assert runtime._stack.model.nbytes == sum(t.stored_bytes for t in tensors)
    bits = 8 * sum(t.data_bytes for t in tensors) / sum(16 * t.groups * t.block * t.blocks for t in tensors)
    assert bits == int(fmt[3:])


@pytest.fixture(scope="module", params=LOW)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    write_llama(folder / "checkpoint")
    export(str(folder / "checkpoint"), folder / "b", ExportOptions(weights=request.param, check=False))
    return folder / "b"


@pytest.mark.parametrize("engine", ENGINES)
def test_drafts_do_not_change_its_text(engine: str, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(engine, Bundle.open(exported), "int8", monkeypatch)
    prompt, texts, drafted = "the thing and the other thing and the other", list[str](), 0
    for name, spec in (("native", "off"), (engine, "off"), (engine, "copy:length=4,fixed=4")):
        session = edgedec.open(exported, engine=name, kv="int8").session(speculate=spec)
        texts.append("".join(session.generate(prompt, max_tokens=24, ignore_eos=True)))
        drafted = session.stats.proposed
    assert drafted > 0
    assert texts[0] == texts[1] == texts[2]
