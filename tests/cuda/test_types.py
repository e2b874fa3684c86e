"""Types of decoders with facts and kinds of blocks that came later, on the GPU engines: transformers' logits, the
native engine's bytes, and a text row by row as in one call."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import zoo_golden
from gpu_engines import opened, runs_on_gpus
from zoo_golden import TOKENS

from edgedec.bundle import Bundle
from edgedec.kernels.cpu import loader
from edgedec.models import architecture
from edgedec.runtime import Rows, Runtime, RuntimeOptions, logits_of, open_runtime
from edgedec.spec import ModelSpec
from edgedec.spec.newer import is_newer

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")
EXACT = 1e-4  # float32 sums in another order, as in tests/parity


def spec_of(name: str) -> ModelSpec:
    config = zoo_golden.golden(name).config
    return architecture(config).spec(config)


def later(names: list[str]) -> list[str]:
    """Those with facts or kinds that the GPU engines did not always have, and have now."""
    specs = {name: spec_of(name) for name in names}
    return [name for name, spec in specs.items() if is_newer(spec) and runs_on_gpus(spec)]


FEW = later(zoo_golden.few())
REST = [name for name in later(zoo_golden.names()) if name not in FEW]


def exported(folder: Path, name: str) -> Bundle:
    pytest.importorskip("onnx", reason="checkpoints are exported with onnx")
    pytest.importorskip("safetensors", reason="checkpoints are read with safetensors")
    from edgedec.export.exporter import ExportOptions, export

    golden = zoo_golden.golden(name)
    zoo_golden.write(folder / "checkpoint", golden.config, golden.tensors)
    context = {"phimoe": 72}.get(name)
    return export(
        str(folder / "checkpoint"), folder / "bundle", ExportOptions("f32", kv=("f32",), check=False, context=context)
    )


def whole(runtime: Runtime) -> np.ndarray:
    return logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(40))


def row_by_row(runtime: Runtime) -> np.ndarray:
    cache, found = runtime.new_cache(40), list[np.ndarray]()
    for i, token in enumerate(TOKENS):
        found.append(logits_of(runtime, Rows.chain([token], i), cache))
        cache.commit([0])
    return np.concatenate(found)


def check(engine: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = exported(folder, name)
    ours = opened(engine, bundle, "f32", monkeypatch)
    logits, golden = whole(ours), zoo_golden.golden(name).logits
    assert np.abs(logits - golden).max() < EXACT * max(1.0, float(golden.std()))
    assert logits.tobytes() == whole(open_runtime("native", bundle, RuntimeOptions(threads=1, kv="f32"))).tobytes()
    assert logits.tobytes() == row_by_row(ours).tobytes()


def test_there_are_types_of_each_fact() -> None:
    assert {"gpt_oss", "qwen3_next", "lfm2", "gpt_neox", "bloom", "falcon_h1", "nemotron_h", "phimoe"} <= set(FEW)


@pytest.mark.parametrize("name", FEW)
def test_the_logits_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check("cuda", name, tmp_path, monkeypatch)


@slow
@pytest.mark.parametrize("name", REST)
def test_the_logits_of_the_other_types(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check("cuda", name, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_next", "lfm2", "falcon_h1", "bloom"])
def test_the_logits_of_transformers_on_opencl(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check("opencl", name, tmp_path, monkeypatch)
