"""The weights for llama.cpp are the bundle's own, to the bit, and mean the same to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import LLAMA3, write_llama

from edgedec.bench.timing import Config
from edgedec.bundle.folder import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.export.gguf import interleaved, nibbles, write_gguf
from edgedec.runtime import Rows, logits_of, open_runtime
from edgedec.spec import ModelSpec

pytest.importorskip("onnx", reason="exporting needs onnx")

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "rope_parameters": LLAMA3}
FORMATS: list[dict[str, Any]] = [
    {"weights": "int4"},
    {"weights": "int4", "target": "cpu"},
    {"weights": "int4", "block": 64, "head": "int8"},
    {"weights": "int8", "embed": "f16"},
    {"weights": "f32"},
]


@pytest.fixture(scope="module", params=FORMATS, ids=lambda options: "-".join(map(str, options.values())))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A little Llama in each format; its head is its own where another format is asked of it."""
    from edgedec.export.exporter import ExportOptions, export

    folder = tmp_path_factory.mktemp("gguf")
    checkpoint = write_llama(folder / "checkpoint", tokenizer=False, tie_word_embeddings=True, **SIZES)
    return export(str(checkpoint), folder / "bundle", ExportOptions(check=False, **request.param))


@pytest.fixture(scope="module")
def path(bundle: Bundle) -> Path:
    path = bundle.path.parent / "weights.gguf"
    write_gguf(bundle, path)
    return path


def test_an_independent_reader_finds_the_same_numbers(bundle: Bundle, path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="reading GGUF back needs the package gguf")
    from gguf.quants import dequantize

    found = {t.name: dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    spec = bundle.spec
    attention, mlp = (spec.blocks[b] for b in (0, 1))
    q, k = attention.q_dim, attention.q_dim + attention.kv_dim
    expected = {"token_embd": bundle.rows("embed"), "output_norm": bundle.rows("final_norm")}
    if not spec.tied:
        expected["output"] = bundle.rows("head")
    for i in range(spec.n_layers):
        qkv, gate_up = bundle.rows(f"blocks.{2 * i}.qkv"), bundle.rows(f"blocks.{2 * i + 1}.gate_up")
        expected |= {
            f"blk.{i}.attn_q": qkv[:q].reshape(attention.n_heads, 2, -1, qkv.shape[1]).swapaxes(1, 2).reshape(q, -1),
            f"blk.{i}.attn_k": qkv[q:k]
            .reshape(attention.n_kv_heads, 2, -1, qkv.shape[1])
            .swapaxes(1, 2)
            .reshape(k - q, -1),
            f"blk.{i}.attn_v": qkv[k:],
            f"blk.{i}.attn_output": bundle.rows(f"blocks.{2 * i}.o"),
            f"blk.{i}.ffn_gate": gate_up[: mlp.inner_size],
            f"blk.{i}.ffn_up": gate_up[mlp.inner_size :],
            f"blk.{i}.ffn_down": bundle.rows(f"blocks.{2 * i + 1}.down"),
            f"blk.{i}.attn_norm": bundle.rows(f"blocks.{2 * i}.norm"),
            f"blk.{i}.ffn_norm": bundle.rows(f"blocks.{2 * i + 1}.norm"),
        }
    assert set(found) == {f"{name}.weight" for name in expected} | {"rope_freqs.weight"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[f"{name}.weight"], values, err_msg=name)


def test_the_file_says_what_the_model_is(bundle: Bundle, path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="reading GGUF back needs the package gguf")
    fields = gguf.GGUFReader(path).fields
    spec = bundle.spec
    assert fields["llama.block_count"].contents() == spec.n_layers
    assert fields["llama.attention.head_count_kv"].contents() == spec.attention[0].n_kv_heads
    assert fields["llama.vocab_size"].contents() == spec.vocab_size
    assert len(fields["tokenizer.ggml.tokens"].contents()) == spec.vocab_size
    base = fields["llama.rope.freq_base"].contents()
    (factors,) = (t.data for t in gguf.GGUFReader(path).tensors if t.name == "rope_freqs.weight")
    turned = base ** -(np.arange(0, 32, 2) / 32) / factors
    np.testing.assert_allclose(turned, spec.ropes[0].inv_freq, rtol=1e-6)


def test_llama_cpp_computes_the_same(bundle: Bundle, path: Path) -> None:
    """Floats agree; quantized weights do too, but for what llama.cpp rounds activations to."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is an extra")
    from edgedec.bench.engines import LlamaCpp

    ids = np.random.default_rng(1).integers(0, bundle.spec.vocab_size, 120).tolist()
    reference = open_runtime("reference", bundle)
    ours = logits_of(reference, Rows.chain(ids, 0), reference.new_cache(len(ids)))
    context = LlamaCpp(Config("llama.cpp", str(bundle.path), 1, 1, gguf=str(path)), 1)._open(len(ids))
    first = context.feed(ids[:100], all_logits=True).copy()
    context.feed(ids[:7], all_logits=False)
    context.forget(100)
    theirs = np.concatenate([first, context.feed(ids[100:], all_logits=True)])
    similar = [float(np.corrcoef(a, b)[0, 1]) for a, b in zip(ours, theirs, strict=True)]
    same = float((ours.argmax(1) == theirs.argmax(1)).mean())
    print(f"llama.cpp: correlation {np.median(similar):.6f}, {min(similar):.6f} at least, {same:.1%} same top token")
    if bundle.manifest.quantization["body"] == "f32":
        assert min(similar) > 0.9999
        assert same > 0.95
    else:  # ONNX Runtime, which rounds activations too, is as far from the reference: 0.998, 0.967 at least, 88%
        assert np.median(similar) > 0.995
        assert min(similar) > 0.9
        assert same > 0.75


def test_attention_may_have_a_scale_of_its_own(tiny: Path, tmp_path: Path) -> None:
    """As that of a model padded to wider heads."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is an extra")
    from edgedec.bench.engines import LlamaCpp

    plain = Bundle.open(tiny)
    spec = changed(plain.spec, scale=3 * plain.spec.attention[0].scale)
    bundle, path = replace(plain, manifest=replace(plain.manifest, spec=spec)), tmp_path / "x.gguf"
    write_gguf(bundle, path)
    ids = np.random.default_rng(1).integers(0, spec.vocab_size, 40).tolist()
    theirs = LlamaCpp(Config("llama.cpp", str(tiny), 40, 1, gguf=str(path)), 1)._open(40).feed(ids, all_logits=True)
    ours, other = (
        logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(40))
        for runtime in (open_runtime("reference", bundle), open_runtime("reference", plain))
    )
    far = float(np.abs(ours - other).max())
    assert np.abs(theirs - ours).max() < 0.1 * far


def changed(spec: ModelSpec, **facts: Any) -> ModelSpec:
    """The spec with other facts in the blocks that have them, else of its own."""
    if facts.keys() & vars(spec).keys():
        return replace(spec, **facts)
    layers = tuple(
        tuple(replace(block, **facts) if facts.keys() <= vars(block).keys() else block for block in layer)
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


@pytest.mark.parametrize(
    "change",
    [
        {"qkv_bias": True},
        {"qk_norm": "head"},
        {"post_norm": "rms"},
        {"window": 8},
        {"gated": False},
        {"activation": "relu"},
        {"final_softcap": 30.0},
        {"final_norm": "layer"},
    ],
    ids=str,
)
def test_another_arithmetic_is_refused(tiny: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    bundle = Bundle.open(tiny)
    other = replace(bundle, manifest=replace(bundle.manifest, spec=changed(bundle.spec, **change)))
    assert other.spec != bundle.spec
    with pytest.raises(RuntimeUnavailable, match="converted to GGUF"):
        write_gguf(other, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_a_width_of_no_whole_blocks_is_refused(tmp_path: Path) -> None:
    from edgedec.export.exporter import ExportOptions, export

    checkpoint = write_llama(tmp_path / "checkpoint", tokenizer=False)
    bundle = export(str(checkpoint), tmp_path / "bundle", ExportOptions(check=False))
    with pytest.raises(RuntimeUnavailable, match="48 wide"):
        write_gguf(bundle, tmp_path / "x.gguf")


def test_the_worked_examples() -> None:
    assert interleaved(1, 6).tolist() == [0, 3, 1, 4, 2, 5]
    assert interleaved(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    values = np.arange(32, dtype=np.uint8) % 16
    block = values[0::2] | values[1::2] << 4
    assert nibbles(block)[:2].tolist() == [0 | 0 << 4, 1 | 1 << 4]
    values = np.random.default_rng(0).integers(0, 16, 32, np.uint8)
    block = nibbles(values[0::2] | values[1::2] << 4)
    assert [*(block & 15), *(block >> 4)] == values.tolist()
