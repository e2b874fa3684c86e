"""Adapters on the GPU engines: the native engine's bytes, alone, mixed in one call, and after they were released."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.bundle.adapter import LoraAdapter, LowRank
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated
from edgedec.kernels.opencl import driver
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, open_runtime
from edgedec.spec import ModelSpec
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
WANTED = Outputs(logits=True, hidden=(0, 1))


@pytest.fixture(params=["cuda", "opencl"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
    monkeypatch.setenv("EDGEDEC_OPENCL", "0")
    why = emulated.why_not() if request.param == "cuda" else driver.why_not()
    if why:
        pytest.skip(f"{request.param}: {why}")
    return str(request.param)


def adapter(spec: ModelSpec, seed: int, rank: int, every: int = 2) -> LoraAdapter:
    """For some of the matrices that both engines can change."""
    rng, found = np.random.default_rng(seed), {}
    kinds = ("qkv", "o", "gate_up", "up", "down", "in_proj", "out_proj", "decay_up")
    blocks = [b for b, block in enumerate(spec.blocks) if block.kind != "moe"]
    names = sorted(f"blocks.{b}.{kind}" for b in blocks for kind in kinds if f"blocks.{b}.{kind}" in spec.matrices)
    for name in names[seed % every :: every]:
        n, k = spec.tensors()[name]
        a, b = (rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in ((rank, k), (n, rank)))
        found[name] = LowRank(a, b)
    return LoraAdapter(str(seed), str(seed), found)


def told(runtime: Runtime, adapters: list[LoraAdapter | None]) -> list[bytes]:
    """Two steps of a text for each adapter, all in one call."""
    caches, found = [runtime.new_cache(40) for _ in adapters], []
    for first, count in ((0, 5), (5, 1)):
        texts = [[(3 + i * 7 + j) % 101 for j in range(first, first + count)] for i in range(len(caches))]
        rows = [Rows.chain(text, first) for text in texts]
        calls = [Call(r, c, outputs=WANTED, adapter=a) for r, c, a in zip(rows, caches, adapters, strict=True)]
        results = runtime.forward(calls)
        found += [r.logits.tobytes() + r.hidden[0].tobytes() + r.hidden[1].tobytes() for r in results]
        for cache in caches:
            cache.commit(range(count))
    return found + [cache.save()["state"].tobytes() for cache in caches]


@pytest.mark.parametrize(
    ("model", "fmt"),
    [
        ("plain", "int4"),
        ("layer norms", "int8"),
        ("options", "f16"),
        ("hybrid", "int4"),
        ("plain", "f32"),
        ("delta rule", "int8"),
        ("short convolution", "int4"),
        ("learned positions", "int8"),
        ("gates of attention", "f16"),
    ],
)
def test_the_bytes_of_the_native_engine(engine: str, model: str, fmt: str, tmp_path: Path) -> None:
    if engine == "opencl" and (model, fmt) not in (("plain", "int4"), ("hybrid", "int4")):
        pytest.skip("the host's side is that of cuda, and compiling for PoCL takes long")
    spec = MODELS[model]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), fmt)  # type: ignore[arg-type]
    adapters = [None, adapter(spec, 0, 4, 1), adapter(spec, 1, 3), None, adapter(spec, 0, 17)]
    ours, theirs = (open_runtime(name, bundle, RuntimeOptions(threads=1, kv="int8")) for name in (engine, "native"))
    found, expected = told(ours, adapters), told(theirs, adapters)
    assert found == expected
    plain = told(ours, [None] * 5)
    assert [a == b for a, b in zip(found[:5], plain[:5], strict=True)] == [a is None for a in adapters]


def test_an_adapter_that_goes_takes_its_memory_and_no_other_gets_its_launches(tmp_path: Path) -> None:
    from edgedec.runtimes.cuda import CudaRuntime

    spec = MODELS["plain"]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), "int4")
    runtime = CudaRuntime(bundle, "int8", emulated.Emulated())
    native = open_runtime("native", bundle, RuntimeOptions(kv="int8"))
    for seed in range(3):
        one = adapter(spec, seed, 4)
        assert told(runtime, [one]) == told(native, [one])
        assert len(runtime._adapters._known) == 1
        del one
        gc.collect()
    assert len(runtime._adapters._known) == 0
    runtime.release()
    one = adapter(spec, 7, 4)
    assert told(runtime, [one]) == told(native, [one])


def test_what_cannot_be_changed_is_named(tmp_path: Path) -> None:
    from edgedec.runtimes.cuda import CudaRuntime

    spec = MODELS["experts"]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), "int4")
    runtime = CudaRuntime(bundle, "int8", emulated.Emulated())
    n, k = spec.tensors()["blocks.1.router"]
    low = LowRank(np.ones((2, k), np.float32), np.ones((n, 2), np.float32))
    one = LoraAdapter("x", "x", {"blocks.1.router": low})
    with pytest.raises(UsageError, match=r"add nothing to blocks\.1\.router; use --engine reference"):
        told(runtime, [one])


def test_a_text_with_an_adapter_and_drafts(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
    told, drafted = [], 0
    for engine, speculate in (("native", "off"), ("cuda", "off"), ("cuda", "copy:fixed=3")):
        model = edgedec.open(nano, engine=engine)
        one = adapter(model.spec, 1, 4)
        small = {name: LowRank(low.a * 0.1, low.b * 0.1) for name, low in one.matrices.items()}
        session = model.session(context=128, speculate=speculate, adapter=LoraAdapter("a", "a", small))
        text = "Tom had a red ball. Tom had a red ball. Tom had a"
        told.append("".join(session.generate(text, max_tokens=8, sampling=edgedec.Sampling())))
        if speculate != "off":
            drafted = session.report()["drafters"]["copy"]["proposed"]
    assert drafted > 0
    assert told[0] == told[1] == told[2]
