"""llama.cpp's types beside ours: what the pass reads back, what it counts, and what `bench formats` makes of a name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights

from edgedec.cli.bench.formats import is_peer, peer_pass
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.gguf.dequantize import dequantize
from edgedec.export.gguf.types import BY_NAME, PEER_TYPES
from edgedec.export.passes import PassContext, PassModel, ggml, make_pass
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._statistics import Statistics
from edgedec.plugins import PluginChoice

SPEC = ODD["plain"]
IDS = np.random.default_rng(0).integers(0, SPEC.vocab_size, 90)
needs_llama = pytest.mark.skipif(find_spec("llama_cpp") is None, reason="no llama-cpp-python here")


def run(folder: Path, body: Any = "f32", **options: Any) -> PassModel:
    held = {tensor: random_weights(SPEC, 0)(tensor) for tensor in SPEC.tensors()}
    context = PassContext(SPEC, dict.fromkeys(("body", "head", "embed"), body), 32, RoundedStore(folder))
    choice = PluginChoice("ggml", {"matrices": "Q3_K", **options})
    return make_pass(choice, context)(
        PassModel(SPEC, lambda name, start, stop: held[name][start:stop]), Statistics((IDS[:50], IDS[50:]))
    )


@pytest.mark.parametrize("imatrix", [False, True])
def test_each_matrix_gets_its_type_and_the_weights_of_its_inputs(
    imatrix: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = dict[str, Any]()

    def read_back(weights: Any, kind: Any, squares: Any) -> Any:
        asked.setdefault(kind.name, []).append((weights.shape, squares))
        return weights + 1

    monkeypatch.setattr(ggml, "read_back", read_back)
    model = run(tmp_path, ends="Q8_0", imatrix=imatrix)
    ends = {"embed", "head"} & set(SPEC.tensors())
    assert len(asked["Q8_0"]) == len(ends)
    assert len(asked["Q3_K"]) == len((SPEC.matrices & set(SPEC.tensors())) - ends) > 2
    known = [squares for shape, squares in asked["Q3_K"] if squares is not None and len(squares) == shape[1]]
    assert len(known) == (len(asked["Q3_K"]) if imatrix else 0)
    assert model.read("final_norm", 0, 2).tolist() == random_weights(SPEC, 0)("final_norm")[:2].tolist()
    name = next(iter(sorted(SPEC.matrices - ends)))
    np.testing.assert_allclose(model.read(name, 1, 3), random_weights(SPEC, 0)(name)[1:3] + 1)
    assert not model.rounded  # they are stored as floats


def test_an_inputs_weight_is_its_mean_square(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def read_back(weights: Any, kind: Any, squares: Any) -> Any:
        asked.append((weights.shape, squares))
        return weights

    monkeypatch.setattr(ggml, "read_back", read_back)
    run(tmp_path, imatrix=True)
    held = {tensor: random_weights(SPEC, 0)(tensor) for tensor in SPEC.tensors()}
    statistics = Statistics((IDS[:50], IDS[50:]))
    first = statistics.run(SPEC, lambda name, start, stop: held[name][start:stop])
    inputs = np.concatenate([first.inputs(0, i, None)["blocks.0.qkv"] for i in range(2)])
    expected = np.square(inputs.astype(float)).mean(axis=0)
    shape = held["blocks.0.qkv"].shape
    assert any(s == shape and np.allclose(squares, expected, rtol=1e-4) for s, squares in asked)


def test_bits_are_those_of_the_types(tmp_path: Path) -> None:
    shapes = SPEC.tensors()
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    ends = sum(sizes[name] for name in ("embed", "head") if name in sizes)
    inner = sum(n for name, n in sizes.items() if name in SPEC.matrices) - ends
    rest = sum(sizes.values()) - inner - ends
    expected = (inner * 110 * 8 / 256 + ends * 34 * 8 / 32 + rest * 32) / sum(sizes.values())
    assert ggml.stored_bits(SPEC, "Q3_K", "Q8_0") == pytest.approx(expected, abs=1e-3)
    assert ggml.stored_bits(SPEC, "Q3_K", "") < ggml.stored_bits(SPEC, "Q3_K", "Q8_0")


def test_names_of_bench_formats() -> None:
    assert [is_peer(name) for name in ("int4", "f16", "Q3_K", "IQ2_XS")] == [False, False, True, True]
    assert peer_pass("Q3_K", "", None) == "ggml:matrices=Q3_K"
    assert peer_pass("Q2_K", "imatrix", "int8") == "ggml:matrices=Q2_K,ends=Q8_0,imatrix=true"
    with pytest.raises(Exception, match="takes no passes but imatrix"):
        peer_pass("Q2_K", "gptq", None)


def test_what_it_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="ggml: Q9: must be one of"):
        run(tmp_path, matrices="Q9")
    with pytest.raises(UsageError, match="give --weights f32"):
        run(tmp_path, body="int4")
    monkeypatch.setattr(ggml, "find_spec", lambda name: None)
    ggml.library.cache_clear()
    with pytest.raises(RuntimeUnavailable, match="need llama-cpp-python"):
        run(tmp_path)


@needs_llama
@pytest.mark.parametrize("kind", sorted(PEER_TYPES))
def test_what_is_read_back_is_what_the_type_holds(kind: str) -> None:
    """As our own reader of GGUF files reads the blocks that the library writes."""
    weights = np.random.default_rng(1).standard_normal((6, 128)).astype(np.float32)
    found = ggml.read_back(weights, PEER_TYPES[kind], np.ones(128))
    bits = 8 * PEER_TYPES[kind].size / PEER_TYPES[kind].block
    error = np.sqrt(np.square(found - weights).mean())
    assert 0 < error < 2.2 * 2 ** (-bits + 0.6)
    if kind in BY_NAME and "IQ" not in kind:
        lib, one = ggml.library(), PEER_TYPES[kind]
        stored = np.empty(weights.size // one.block * one.size, np.uint8)
        whole = weights.reshape(-1, max(128, one.block))
        n, width = whole.shape
        ones = np.ones(width, np.float32)
        lib.ggml_quantize_chunk(one.number, whole.ctypes.data, stored.ctypes.data, 0, n, width, ones.ctypes.data)
        np.testing.assert_array_equal(dequantize(one, stored.reshape(n, -1)).reshape(6, 128), found)


@needs_llama
def test_types_that_need_the_weights_of_inputs_say_so() -> None:
    with pytest.raises(UsageError, match="IQ2_XS needs imatrix=true"):
        ggml.read_back(np.ones((2, 128), np.float32), PEER_TYPES["IQ2_XS"])
    with pytest.raises(UsageError, match="needs blocks of 256; a matrix is"):
        ggml.read_back(np.ones((3, 64), np.float32), PEER_TYPES["Q2_K"])
