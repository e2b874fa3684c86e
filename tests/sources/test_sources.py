"""Kernels' sources: the CPU engine's bytes where a machine rounds as it does, and little apart where it does not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sources.models import machine_of, opened

from edgedec.bundle import Bundle
from edgedec.bundle.locate import NANO, find
from edgedec.errors import BundleCorrupt, EdgedecError, RuntimeUnavailable, UsageError
from edgedec.export.amend import add_artifact
from edgedec.kernels.cuda import nvrtc
from edgedec.runtimes.tvm.plans import MARK, source_of
from edgedec.spec import KV_FORMATS, Attention, Mlp, ModelSpec, Moe, Rope, Ssm
from edgedec.storage.serde import to_json
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.sources import MachineMissing, machine_for, prompt_rows
from edgedec.testing.sources.__main__ import main
from edgedec.testing.sources.check import check, largest, side_by_side

pytest.importorskip("tvm")
pytest.importorskip("edgedec.runtimes.native")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")

_ROPE = Rope(tuple(1e4 ** (-j / 16) for j in range(16)))
_HEADS = Attention(4, 2, 32, 32**-0.5, qk_norm="head", qkv_bias=True, softcap=8.0)
# Norms of heads, biases, soft caps, a window with sinks, norms after blocks, gates.
MANY = ModelSpec(
    "many", 101, 64, 512,
    (
        (_HEADS, Mlp(96, activation="gelu")),
        (replace(_HEADS, window=9, sinks=2, qk_norm="none"), Mlp(96, post_norm="rms", activation="gelu_tanh")),
    ),
    1e-5, False, (_ROPE,), final_softcap=6.0,
)  # fmt: skip
# Layer norms, plain and biased feed-forward, norms of all queries, no rope, tied embeddings.
_PLAIN = Attention(2, 2, 64, 0.2, rope=None, qk_norm="full", o_bias=True, norm="layer")
LAYERS = ModelSpec(
    "layers", 67, 80, 512,
    ((_PLAIN, Mlp(64, gated=False, activation="relu", bias=True, norm="layer")),
     (replace(_PLAIN, head_dim=16, post_norm="layer", norm="none"), Mlp(64, norm="none"))),
    1e-5, True, (), final_norm="layer", embed_scale=2.5,
)  # fmt: skip
MODELS = {"many": MANY, "layers": LAYERS}
LANGUAGES = ("cuda", "opencl")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Bundle]:
    """A model of random weights with its sources, once for each format."""

    @cache
    def make(model: str, fmt: str) -> Bundle:
        spec = replace(MODELS[model], final_softcap=0.0) if fmt == "f16" else MODELS[model]
        folder = tmp_path_factory.mktemp("sources") / "bundle"
        wanted = tuple(f"tvm:{name}" for name in ("opencl", "cuda", "webgpu", "metal"))
        return write_bundle(folder, spec, random_weights(spec), fmt, wanted)

    return make


@pytest.mark.parametrize(
    ("language", "model", "fmt", "kv"),
    [("cuda", "many", "int4", "f32"), ("cuda", "layers", "f16", "int8"), ("opencl", "many", "int4", "int4"),
     ("opencl", "layers", "f16", "f16")],
)  # fmt: skip
def test_bytes_are_the_cpu_engines(
    made: Callable[[str, str], Bundle], language: str, model: str, fmt: str, kv: str
) -> None:
    """A prompt of more than a chunk of keys, a draft tree, single tokens."""
    bundle = made(model, fmt)
    machine = machine_of(language, bundle.path)
    found = check(bundle, source_of(bundle, language)[1], machine, kv, 3, 270)  # type: ignore[arg-type]
    assert len(found.states) == 7 * bundle.spec.n_blocks
    assert largest(found.states) == largest(found.logits) == 0.0
    assert found.equal == found.decoded == 3


def test_the_order_of_threads_changes_nothing(made: Callable[[str, str], Bundle]) -> None:
    """Between barriers a thread reads nothing that another writes."""
    bundle = made("many", "int4")
    machine = machine_of("cuda", bundle.path)
    backwards = machine.reversed()  # type: ignore[attr-defined]
    found = check(bundle, source_of(bundle, "cuda")[1], backwards, "int8", 1, 20)
    assert len(found.states) > 0
    assert largest(found.states) == largest(found.logits) == 0.0


@slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("fmt", ["f32", "f16", "int8", "int4"])
@pytest.mark.parametrize("model", MODELS)
def test_every_format_gives_the_cpu_engines_bytes(
    made: Callable[[str, str], Bundle], language: str, model: str, fmt: str, kv: str
) -> None:
    test_bytes_are_the_cpu_engines(made, language, model, fmt, kv)


@pytest.mark.parametrize(
    ("model", "fmt", "kv"), [("many", "int4", "f16"), pytest.param("layers", "int8", "int8", marks=slow)]
)
def test_wgsl_kernel_by_kernel(made: Callable[[str, str], Bundle], model: str, fmt: str, kv: str) -> None:
    """Each launch on what the exact machine had before it."""
    bundle = made(model, fmt)
    exact, other = (opened(bundle, language, kv, 64) for language in ("cuda", "webgpu"))
    found: dict[str, float] = {}
    for rows in (prompt_rows(np.arange(1, 42).tolist(), 0), prompt_rows([5], 41)):
        found |= side_by_side(exact, other, rows)
    assert len(found) >= 12
    assert {name.partition("_")[0] for name in found} >= {
        "embed",
        "norm",
        "ready",
        "product",
        "store",
        "attend",
        "best",
    }
    assert max(found.values()) < 1e-3, found


@pytest.mark.parametrize("language", [pytest.param("opencl", marks=slow), "webgpu"])
def test_nano_tells_its_story(tmp_path: Path, language: str) -> None:
    """Greedy tokens of a whole model."""
    folder = tmp_path / "nano"
    shutil.copytree(find(NANO), folder)
    bundle = add_artifact(folder, f"tvm:{language}")
    machine = machine_of(language, bundle.path)
    found = check(bundle, source_of(bundle, language)[1], machine, "f32", 24)  # type: ignore[arg-type]
    assert found.equal == found.decoded == 24
    assert language != "opencl" or largest(found.logits) == 0.0


@pytest.mark.skipif(nvrtc.why_not() is not None, reason=f"no NVRTC: {nvrtc.why_not()}")
@pytest.mark.parametrize(
    "architecture", ["sm_90", *(pytest.param(name, marks=slow) for name in ("sm_75", "sm_80", "sm_120"))]
)
def test_cuda_is_compiled_for_gpus(made: Callable[[str, str], Bundle], architecture: str) -> None:
    bundle = made("many", "int4")
    _, plan = source_of(bundle, "cuda")
    compiled = nvrtc.compile_for(architecture, bundle.file("tvm-cuda.cu"))
    assert set(compiled.kernels) == set(plan.kernels)
    assert all(use.spills == 0 and use.stack <= 64 for use in compiled.kernels.values())


def test_every_language_has_every_kernel(made: Callable[[str, str], Bundle]) -> None:
    bundle = made("many", "int4")
    plans = []
    for language in ("opencl", "cuda", "webgpu", "metal"):
        text, plan = source_of(bundle, language)
        assert [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)] == list(plan.kernels)
        plans.append(replace(plan, language=""))
    assert all(plan == plans[0] for plan in plans)


# ---- what is refused ---------------------------------------------------------------------------------


def test_a_changed_source_is_refused(made: Callable[[str, str], Bundle], tmp_path: Path) -> None:
    for name in ("tvm-opencl.cl", "tvm-opencl.json"):
        copy = tmp_path / name
        shutil.copytree(made("many", "int4").path, copy)
        raw = bytearray((copy / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (copy / name).write_bytes(raw)
        with pytest.raises(BundleCorrupt, match=name):
            source_of(Bundle.open(copy), "opencl")


def test_what_has_no_sources_is_named(made: Callable[[str, str], Bundle], tmp_path: Path) -> None:
    for block, reason in (
        (Ssm(3, 8, 16), r"block 1 \(ssm\): 24 inner values, not a multiple of 16"),
        (Moe(6, 2, 24), r"block 1 \(moe\): 24 inner values, not a multiple of 16"),
    ):
        spec = replace(MANY, layers=((_HEADS, block),))
        bundle = write_bundle(tmp_path / block.kind, spec, random_weights(spec), "int4")
        with pytest.raises(UsageError, match=reason):
            add_artifact(bundle.path, "tvm:webgpu")
    with pytest.raises(RuntimeUnavailable, match="no sources in opencl: edgedec add tvm:opencl"):
        source_of(bundle, "opencl")
    with pytest.raises(UsageError, match=r"tvm:opencl.*tvm:webgpu"):
        add_artifact(bundle.path, "tvm:glsl")
    with pytest.raises(MachineMissing, match="nothing here runs it"):
        machine_for("metal", *source_of(made("many", "int4"), "metal"))


def complaint(run: Callable[[], object]) -> str:
    """What an error says; empty if there is none."""
    try:
        run()
    except EdgedecError as error:
        return str(error)
    return ""


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_plans_are_errors_of_one_line(
    made: Callable[[str, str], Bundle], monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    bundle = made("many", "int4")
    _, plan = source_of(bundle, "opencl")
    raw = bytearray(json.dumps(to_json(plan)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: bytes(raw))
        assert "\n" not in complaint(lambda: source_of(bundle, "opencl"))


@pytest.mark.parametrize("language", ["cuda", "opencl", "webgpu"])
def test_sources_of_others_are_compiled_only_on_request(
    made: Callable[[str, str], Bundle],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    language: str,
) -> None:
    compiled = list[str]()

    def stop(name: str, source: str, plan: object) -> None:
        compiled.append(name)
        raise MachineMissing("stopped here")

    monkeypatch.setattr("edgedec.testing.sources.__main__.machine_for", stop)
    path = str(made("many", "int4").path)
    assert main([path, "--language", language]) == 1
    assert f"its sources in {language} are code; if you trust who made" in capsys.readouterr().err
    assert not compiled
    assert main([path, "--language", language, "--trust-code"]) == 1
    assert compiled == [language]
    assert main([path, "--language", language]) == 1
    assert compiled == [language], "trust ends with the call"


def test_the_check_is_a_program(made: Callable[[str, str], Bundle], capsys: pytest.CaptureFixture[str]) -> None:
    bundle = made("many", "int4")
    machine_of("cuda", bundle.path)
    assert main([str(bundle.path), "--language", "cuda", "-n", "2", "--trust-code"]) == 0
    said = capsys.readouterr().out
    assert "greedy tokens as the CPU engine's: 2 of 2" in said
    assert main([str(bundle.path), "--language", "fortran"]) == 1
    assert "has no sources in fortran" in capsys.readouterr().err
