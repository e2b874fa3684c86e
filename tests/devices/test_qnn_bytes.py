"""Keys and values of bytes on Qualcomm's simulator: attention multiplies integers, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

if find_spec("onnxruntime_qnn") is None:
    pytest.skip("onnxruntime-qnn is not installed", allow_module_level=True)
pytest.importorskip("onnx", reason="making artifacts needs onnx")

from edgedec.bundle import Bundle
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.runtimes.ort.providers import PROVIDERS
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

SOC = "qnn:SM8650"
TWO = replace(MODELS["plain"], layers=MODELS["plain"].layers[:2])
# Of QNN's types: unsigned fixed point of 8 and 16 bits.
BYTE, SHORT = 0x408, 0x416


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEDEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_bundle(tmp_path_factory.mktemp("toy") / "toy", TWO, random_weights(TWO, 15), "int4", ("devices",))


def opened(bundle: Bundle, kv: str) -> Runtime:
    return open_runtime("ort", bundle, RuntimeOptions(device=SOC, kv=kv))


@pytest.mark.parametrize("kv", ["int8", "f16"])
def test_what_attention_multiplies(toy: Bundle, kv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that QNN compiles, as it writes it down."""
    dump = {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(tmp_path)}
    qnn = PROVIDERS["qnn"]
    monkeypatch.setitem(PROVIDERS, "qnn", replace(qnn, options=qnn.options | dump))
    opened(toy, kv).load()
    path = next(path for path in tmp_path.glob("*.json") if not path.stem.endswith("tensor_log"))
    graph = json.loads(path.read_text())["graph"]
    tensors, nodes = graph["tensors"], graph["nodes"]
    found = []
    for node in nodes.values():
        if node["type"] == "MatMul":
            names = [*node["input_names"][:2], *node["output_names"]]
            found.append([tensors[name]["data_type"] for name in names])
    integers = [[SHORT, BYTE, SHORT]] * 2 * len(TWO.attention)
    assert [types for types in found if BYTE in types] == (integers if kv == "int8" else [])
    assert len(found) >= len(integers)


def divergence(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """The mean of KL(a || b) of rows of logits."""
    p, q = (x.astype(np.float64) - np.logaddexp.reduce(x.astype(np.float64), axis=-1, keepdims=True) for x in (a, b))
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def logits(runtime: Runtime, n: int) -> NDArray[np.float32]:
    """Of a prompt, and of rows after it."""
    cache, found = runtime.new_cache(2 * n), []
    for start in (0, n):
        rows = Rows.chain(np.arange(start, start + n) * 7 % runtime.spec.vocab_size, start)
        result = forward_one(runtime, Call(rows, cache, outputs=ALL_LOGITS)).logits
        assert result is not None
        found.append(result)
        cache.commit(range(n))
    return np.concatenate(found)


def test_bytes_cost_little_more_than_halves(toy: Bundle) -> None:
    exact = logits(open_runtime("reference", toy, RuntimeOptions(kv="f32")), 8)
    cost = {kv: divergence(exact, logits(opened(toy, kv), 8)) for kv in ("f16", "int8")}
    stored = divergence(exact, logits(open_runtime("reference", toy, RuntimeOptions(kv="int8")), 8))
    assert 0 < cost["f16"] < 1e-3
    # What is stored in eight bits costs most of it.
    assert 0 < cost["int8"] < 2 * stored + 1e-3
