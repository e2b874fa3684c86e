"""A GGUF file is the model it was made from: to transformers, which made it, and to llama.cpp, which reads it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ggufs
import numpy as np
import pytest
from ggufs import MODELS, gguf
from numpy.typing import NDArray

from edgedec.bench.timing import Config
from edgedec.bundle import Bundle
from edgedec.errors import BadTensor
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.gguf.types import SUGGESTED
from edgedec.export.opening import open_source
from edgedec.runtime import Rows, Runtime, logits_of, open_runtime
from edgedec.runtimes.reference import Reference

torch = pytest.importorskip("torch", reason="the models are built with torch")

Floats = NDArray[np.float32]
IDS = np.random.default_rng(1).integers(3, 101, 24)
GREEDY = 64
BIG = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
QUANTIZED = ("Q4_0", "Q8_0")


def of_file(path: Path) -> Reference:
    """The float model straight from the file."""
    source = open_source(path)
    spec = source.spec()
    parts = source.weights(spec)
    whole = {name: source.read(part, 0, source.shape(part)[0]) for name, part in parts.items()}
    return Reference(spec, lambda name, start, stop: whole[name][start:stop])


def logits_by_torch(model: Any, ids: NDArray[np.int64]) -> Floats:
    torch.set_num_threads(1)  # so little work is done sooner by one
    with torch.no_grad():
        found: Floats = model(torch.tensor(ids)[None]).logits[0].numpy()
    return found


def all_logits(runtime: Runtime, ids: NDArray[np.int64] = IDS) -> Floats:
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids)))


def greedy(runtime: Runtime, ids: Sequence[int], n: int) -> list[int]:
    """The n likeliest tokens, one after another."""
    cache, at, found = runtime.new_cache(len(ids) + n), 0, list[int]()
    rows = list(ids)
    for _ in range(n):
        logits = logits_of(runtime, Rows.chain(rows, at), cache)
        cache.commit(range(len(rows)))
        at += len(rows)
        rows = [int(logits[-1].argmax())]
        found += rows
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_a_file_is_the_one_that_wrote_it(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    path = ggufs.write(model, tmp_path / "m.gguf")
    assert np.abs(all_logits(of_file(path)) - logits_by_torch(model, IDS)).max() < 1e-4
    bundle = export(str(path), tmp_path / "b", ExportOptions(weights="f32", check=False, runtimes=("native",)))
    n = min(GREEDY, bundle.spec.context_length - 8)  # beyond it Phi-3's rope is another
    found = greedy(open_runtime("native", bundle), IDS[:8].tolist(), n)
    text = np.array([*IDS[:8], *found])
    assert found == logits_by_torch(model, text)[7:-1].argmax(1).tolist()
    assert len(set(found)) > 1


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_tensor_for_each_expert(kind: str, tmp_path: Path) -> None:
    """As Mixtral's files had before llama.cpp stacked them: the same bundle, byte for byte."""
    options = ExportOptions(check=False, runtimes=("native",), name="m")
    found = []
    for apart in (False, True):
        path = ggufs.write(MODELS["mixtral"](), tmp_path / f"{apart}.gguf", kind, apart)
        source = open_source(path)
        assert any("ffn_gate.0.weight" in name for name in source.tensors) == apart
        bundle = export(str(path), tmp_path / f"bundle-{apart}", options)
        found.append((bundle.path / "weights.bin").read_bytes())
    assert found[0] == found[1]
    few = ggufs.write(MODELS["mixtral"](), tmp_path / "few.gguf", kind, True, **{"llama.expert_count": 6})
    with pytest.raises(BadTensor, match=r"ffn_gate\.5\.weight: missing"):
        export(str(few), tmp_path / "few", options)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_floats_are_read_as_they_are(kind: str, tmp_path: Path) -> None:
    model = MODELS["llama"]()
    path = ggufs.write(model, tmp_path / "m.gguf", kind)
    assert {t.tensor_type.name for t in gguf.GGUFReader(path).tensors} == {kind, "F32"}
    dtype = torch.float16 if kind == "F16" else torch.bfloat16
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(parameter.to(dtype).float())
    assert np.abs(all_logits(of_file(path)) - logits_by_torch(model, IDS)).max() < 1e-4


def quantized(kind: str, path: Path) -> Path:
    """A Llama all of whose matrices are whole blocks."""
    import zoo

    model = zoo._causal("Llama", **BIG, rms_norm_eps=1e-5, rope_parameters=zoo.LLAMA3)()
    return ggufs.write(model, path, kind)


@pytest.mark.parametrize("target", ["cpu", "portable"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_integers_are_kept(kind: str, target: str, tmp_path: Path) -> None:
    """The bundle's floats are those that the package gguf finds in the file, to the bit; q and k in our order."""
    path = quantized(kind, tmp_path / "m.gguf")
    bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, target=target, runtimes=("native",)))
    fmt = {"Q4_0": "int4", "Q8_0": "int8"}[kind]
    assert bundle.manifest.quantization == {"body": fmt, "head": fmt, "embed": fmt, "block": "32"}
    theirs = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    assert np.array_equal(bundle.rows("embed"), theirs["token_embd.weight"])
    assert np.array_equal(bundle.rows("blocks.1.down"), theirs["blk.0.ffn_down.weight"])
    gate_up = np.concatenate([theirs["blk.0.ffn_gate.weight"], theirs["blk.0.ffn_up.weight"]])
    assert np.array_equal(bundle.rows("blocks.1.gate_up"), gate_up)
    q = theirs["blk.0.attn_q.weight"].reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    assert np.array_equal(bundle.rows("blocks.0.qkv")[:256], q)
    assert np.abs(all_logits(open_runtime("reference", bundle)) - all_logits(of_file(path))).max() < 1e-4


def test_another_block_or_format_is_quantized_anew(tmp_path: Path) -> None:
    path = quantized("Q4_0", tmp_path / "m.gguf")
    for weights, block in (("int8", 32), ("int4", 64)):
        options = ExportOptions(weights=weights, block=block, runtimes=("native",), check=True)
        bundle = export(str(path), tmp_path / f"{weights}{block}", options)
        assert bundle.manifest.quantization["body"] == weights
        assert bundle.manifest.parity is not None
        assert 0 < bundle.manifest.parity.kl["f32"] < (0.05 if weights == "int8" else 2.0)


def test_a_factor_goes_to_the_scales(tmp_path: Path) -> None:
    """Granite multiplies what a block adds: the integers stay, their scales take the factor."""
    import zoo

    config = zoo.GRANITE | {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 32}
    path = ggufs.write(zoo._causal("GraniteMoe", **config)(), tmp_path / "m.gguf", "Q8_0")
    bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))
    assert np.abs(all_logits(open_runtime("reference", bundle)) - all_logits(of_file(path))).max() < 2e-2


# llama.cpp itself


def theirs(path: Path, folder: Path, ids: NDArray[np.int64] = IDS) -> Floats:
    """llama.cpp's logits, with a float cache."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="comparing with llama.cpp needs the package llama_cpp")
    from edgedec.cli._bench_engines import LlamaCpp

    engine = LlamaCpp(Config("llama.cpp", str(folder), len(ids), 1, gguf=str(path)), 1)
    assert llama_cpp is not None
    return np.asarray(engine._open(len(ids)).feed(ids, all_logits=True))


@pytest.mark.parametrize(
    "name", ["llama", "llama_bias_yarn_tied", "mixtral", "smollm3", "granitemoe", "qwen3", "qwen3_moe"]
)
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path) -> None:
    names = [f"<{i}>" for i in range(101)]
    model = MODELS[name]()
    path = ggufs.write(model, tmp_path / "m.gguf", **{"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": names})
    bundle = export(str(path), tmp_path / "b", ExportOptions(weights="f32", check=False, runtimes=("native",)))
    found = theirs(path, bundle.path)
    # Its cache is f16 and so are some of its products.
    assert np.abs(found - all_logits(of_file(path))).max() < 0.05
    assert (found.argmax(1) == all_logits(open_runtime("native", bundle)).argmax(1)).mean() > 0.9


@pytest.mark.parametrize("kind", QUANTIZED)
def test_llama_cpp_is_as_near_on_the_same_integers(kind: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [f"<{i}>" for i in range(101)]}
    import zoo

    model = zoo._causal("Llama", **BIG, rms_norm_eps=1e-5)()
    path = ggufs.write(model, tmp_path / "m.gguf", kind, **names)
    bundle: Bundle = export(str(path), tmp_path / "b", ExportOptions(check=False, runtimes=("native",)))
    exact, ours = all_logits(of_file(path)), all_logits(open_runtime("native", bundle))
    found = theirs(path, bundle.path)
    assert rms(ours - exact) < 0.1 * exact.std()  # activations are rounded to 8 bits, there as here
    assert rms(found - ours) < 0.1 * exact.std()
    assert rms(ours - exact) < 1.5 * rms(found - exact)


QUANTIZE = """
import ctypes, llama_cpp, sys
kind, source, target = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))
"""


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "Q4_0", "Q5_1"])
def test_files_that_llama_cpp_quantized(kind: str, tmp_path: Path) -> None:
    """Types mixed as it mixes them: the file's own values give its logits, and the bundle is near them."""
    pytest.importorskip("llama_cpp", reason="llama.cpp makes these files")
    import zoo

    names: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [f"<{i}>" for i in range(101)]}
    model = zoo._causal("Llama", **BIG, rms_norm_eps=1e-5)()
    floats, path = ggufs.write(model, tmp_path / "f.gguf", **names), tmp_path / "m.gguf"
    # In a process of its own: where its log went earlier in this one may be gone.
    subprocess.run([sys.executable, "-c", QUANTIZE, kind, floats, path], check=True, capture_output=True)
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert set(kinds.values()) > {"F32"}
    mixed = export(str(path), tmp_path / "m", ExportOptions(check=False))
    formats = {name: t.format for name, t in mixed.manifest.tensors.items() if name.startswith("blocks")}
    assert formats["blocks.1.down"] == SUGGESTED[kinds["blk.0.ffn_down.weight"]]
    assert kind != "Q4_K_M" or set(formats.values()) == {"f32", "int4", "int8"}
    assert rms(all_logits(open_runtime("native", mixed)) - all_logits(open_runtime("ort", mixed))) < 0.2
    bundle = export(str(path), tmp_path / "b", ExportOptions(weights="int8", check=False, runtimes=("native",)))
    exact = all_logits(of_file(path))
    assert rms(theirs(path, bundle.path) - exact) < 0.1 * exact.std()
    assert rms(all_logits(open_runtime("native", bundle)) - exact) < 0.2 * exact.std()


def rms(values: Floats) -> float:
    return float(np.sqrt((values.astype(np.float64) ** 2).mean()))
