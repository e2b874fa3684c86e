"""Kernels' sources of experts, of states and of weights with zero points: the CPU engine's bytes, and WGSL launch by
launch."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from sources.models import EXPERTS, MODELS, bundle_of, machine_of, opened

from edgedec.bundle import Bundle
from edgedec.kernels.cuda import nvrtc
from edgedec.runtimes.tvm.plans import source_of
from edgedec.spec import KV_FORMATS, Moe
from edgedec.testing.sources import prompt_rows
from edgedec.testing.sources.check import check, largest, side_by_side

pytest.importorskip("tvm")
pytest.importorskip("edgedec.runtimes.native")
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="minutes; set EDGEDEC_SLOW_TESTS")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Bundle]:
    """A model of random weights with its sources. how: "int4", or "int8+64": zero points, in blocks of 64."""

    @cache
    def make(model: str, how: str) -> Bundle:
        return bundle_of(tmp_path_factory.mktemp("sources") / "bundle", model, how, ("opencl", "cuda", "webgpu"))

    return make


@pytest.mark.parametrize(
    ("language", "model", "how", "kv"),
    [
        ("cuda", "experts", "int4+32", "f32"),
        ("cuda", "states", "int8+64", "int8"),
    ],
)
def test_bytes_are_the_cpu_engines(
    made: Callable[[str, str], Bundle], language: str, model: str, how: str, kv: str
) -> None:
    """A prompt, a draft tree, single tokens."""
    bundle = made(model, how)
    machine = machine_of(language, bundle.path)
    found = check(bundle, source_of(bundle, language)[1], machine, kv, 3, 40)  # type: ignore[arg-type]
    assert len(found.states) == 5 * bundle.spec.n_blocks
    assert largest(found.states) == largest(found.logits) == 0.0
    assert found.equal == found.decoded == 3


@slow
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize(
    "how", ["f32", "f16", "int8", "int4", "int4+32", "int4+64", "int4+128", "int8+32", "int8+64", "int8+128"]
)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("language", ["cuda", "opencl"])
def test_every_format_gives_the_cpu_engines_bytes(
    made: Callable[[str, str], Bundle], language: str, model: str, how: str, kv: str
) -> None:
    test_bytes_are_the_cpu_engines(made, language, model, how, kv)


@pytest.mark.parametrize(
    ("model", "how"),
    [("experts", "int4+32"), *(pytest.param(*case, marks=slow) for case in (("states", "int8"), ("dense", "int8+64")))],
)
def test_wgsl_kernel_by_kernel(made: Callable[[str, str], Bundle], model: str, how: str) -> None:
    """Each launch on what the exact machine had before it."""
    bundle = made(model, how)
    exact, other = (opened(bundle, language, "f16", 64) for language in ("cuda", "webgpu"))
    found: dict[str, float] = {}
    for rows in (prompt_rows(np.arange(1, 20).tolist(), 0), prompt_rows([5], 19)):
        found |= side_by_side(exact, other, rows)
    kinds = {name.partition("_")[0] for name in found}
    own = {"experts": {"route", "combine"}, "states": {"route", "ssm"}, "dense": set[str]()}
    assert kinds >= {"product", "ready"} | own[model]
    assert max(found.values()) < 1e-3, found


def test_a_row_reads_its_own_experts(made: Callable[[str, str], Bundle]) -> None:
    """The experts that rows were sent to are several, and no more than the router's."""
    bundle = made("experts", "int4+32")
    model, n = opened(bundle, "cuda", "f32", 64), 12
    model.forward(prompt_rows(np.arange(1, 1 + n).tolist(), 0), head_rows=range(n))
    last = EXPERTS.blocks[-1]
    assert isinstance(last, Moe)
    chosen = model.read("experts").reshape(-1)[: n * last.top_k].reshape(n, last.top_k)
    assert all(len(set(row)) == last.top_k for row in chosen.tolist())
    assert len(set(chosen.ravel().tolist())) > 2 * last.top_k
    assert 0 <= chosen.min() <= chosen.max() < last.n_experts


@slow
@pytest.mark.skipif(nvrtc.why_not() is not None, reason=f"no NVRTC: {nvrtc.why_not()}")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90"])
@pytest.mark.parametrize(("model", "how"), [("experts", "int4+32"), ("states", "int8+64"), ("dense", "int8+64")])
def test_cuda_is_compiled_for_gpus(made: Callable[[str, str], Bundle], model: str, how: str, architecture: str) -> None:
    bundle = made(model, how)
    compiled = nvrtc.compile_for(architecture, bundle.file("tvm-cuda.cu"))
    assert set(compiled.kernels) == set(source_of(bundle, "cuda")[1].kernels)
    assert all(use.spills == 0 and use.stack <= 64 for use in compiled.kernels.values())
