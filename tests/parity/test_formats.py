"""What quantization costs a trained model, format by format, and that cutting and drafting cost it nothing.

The float model is the one that ships, its weights widened again: no larger trained model is at hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_safetensors

from edgedec.bundle import Bundle
from edgedec.cache import Cache

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import (
    ALL_LOGITS,
    Call,
    Outputs,
    Rows,
    Runtime,
    RuntimeOptions,
    forward_one,
    logits_of,
    open_runtime,
)
from edgedec.spec import KV_FORMATS

ENGINES = ["ort", *(["native"] if why_not() is None else [])]
# KL divergence in nats a token beside the float model, at most: {weights: by cache, as in KV_FORMATS}.
LARGEST_KL = {"f32": (1e-9, 1e-6, 2e-3, 0.25), "int8": (3e-3, 3e-3, 5e-3, 0.25), "int4": (0.2, 0.2, 0.2, 0.45)}
# Perplexity over the float model's, at most (and its inverse at least): 256 tokens may also be guessed better.
LARGEST_RATIO = {"f32": (1.0001, 1.001, 1.02, 1.16), "int8": (1.02, 1.02, 1.02, 1.16), "int4": (1.2, 1.2, 1.2, 1.33)}
LEAST_TOP1 = {"f32": (0.999, 0.98, 0.95, 0.7), "int8": (0.95, 0.95, 0.95, 0.7), "int4": (0.7, 0.7, 0.7, 0.6)}


def widened(bundle: Bundle, folder: Path) -> Path:
    """A bundle of a plain Llama as a float32 checkpoint."""
    spec, tensors = bundle.spec, {"model.embed_tokens.weight": bundle.rows("embed")}
    assert spec.architecture == "llama"
    attention, mlp = spec.layers[0]
    for i in range(spec.n_layers):
        p, (first, second) = f"model.layers.{i}", spec.span(i, i + 1)
        q, k, v = np.split(bundle.rows(f"blocks.{first}.qkv"), [attention.q_dim, attention.q_dim + attention.kv_dim])
        o, down = bundle.rows(f"blocks.{first}.o"), bundle.rows(f"blocks.{second}.down")
        gate, up = np.split(bundle.rows(f"blocks.{second}.gate_up"), 2)
        tensors |= {f"{p}.self_attn.{n}_proj.weight": w for n, w in (("q", q), ("k", k), ("v", v), ("o", o))}
        tensors |= {f"{p}.mlp.{n}_proj.weight": w for n, w in (("gate", gate), ("up", up), ("down", down))}
        tensors |= {f"{p}.input_layernorm.weight": bundle.rows(f"blocks.{first}.norm")}
        tensors |= {f"{p}.post_attention_layernorm.weight": bundle.rows(f"blocks.{second}.norm")}
    tensors["model.norm.weight"] = bundle.rows("final_norm")
    if not spec.tied:
        tensors["lm_head.weight"] = bundle.rows("head")
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors)
    frequencies = spec.ropes[0].inv_freq
    config = {
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": mlp.inner_size,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": spec.context_length,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": round(frequencies[1] ** -len(frequencies), 3),
        "tie_word_embeddings": spec.tied,
        "hidden_act": "silu",
        "bos_token_id": bundle.manifest.text.bos,
        "eos_token_id": list(bundle.manifest.text.eos),
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(bundle.file("tokenizer.json").read_bytes())
    return folder


@pytest.fixture(scope="module")
def checkpoint(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return widened(Bundle.open(nano), tmp_path_factory.mktemp("nano") / "checkpoint")


@pytest.fixture(scope="module", params=list(LARGEST_KL))
def bundle(request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    options = ExportOptions(weights=request.param, kv=KV_FORMATS)
    return export(str(checkpoint), tmp_path_factory.mktemp(request.param) / "nano", options)


def test_every_format_stays_near_the_float_model(bundle: Bundle) -> None:
    weights, parity = bundle.manifest.quantization["body"], bundle.manifest.parity
    assert parity is not None
    assert 1 < parity.reference_perplexity < bundle.spec.vocab_size / 8
    for at, kv in enumerate(KV_FORMATS):
        ratio = parity.perplexity[kv] / parity.reference_perplexity
        assert -1e-6 < parity.kl[kv] < LARGEST_KL[weights][at], (weights, kv)
        assert 1 / LARGEST_RATIO[weights][at] < ratio < LARGEST_RATIO[weights][at], (weights, kv)
        assert parity.top1[kv] > LEAST_TOP1[weights][at], (weights, kv)


def test_fewer_bits_cost_more(bundle: Bundle) -> None:
    """A report that does not tell the formats apart would measure nothing."""
    parity = bundle.manifest.parity
    assert parity is not None
    if bundle.manifest.quantization["body"] == "f32":
        assert sorted(parity.kl, key=parity.kl.__getitem__) == list(KV_FORMATS)
    else:
        assert parity.kl["f32"] > 1e-5


@pytest.fixture(scope="module")
def ids(nano: Path) -> list[int]:
    import edgedec

    text = "Once upon a time, there was a little girl who lived near a forest. She had a small dog and a red hat."
    return edgedec.open(nano).tokenizer.encode(text)


def prefilled(runtime: Runtime, ids: list[int]) -> Cache:
    cache = runtime.new_cache(len(ids) + 16)
    logits_of(runtime, Rows.chain(ids, 0), cache)
    cache.commit(range(len(ids)))
    return cache


@pytest.mark.parametrize("engine", ENGINES)
def test_cuts_and_trees_give_the_same_logits(bundle: Bundle, ids: list[int], engine: str) -> None:
    """On the native engine: bit for bit. ONNX Runtime: float weights to float32 rounding; of quantized ones
    MatMulNBits adds up one row and several in different orders and rounds their activations to int8, so a
    row's logits move by a little (docs: exactness)."""
    runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1, kv="f32"))
    exactly = 0.0 if engine == "native" else 1e-4
    # Up to 0.14 on nano int4; a row that saw another path is off by 8.
    within = 0.2 if engine == "ort" and bundle.manifest.quantization["body"] != "f32" else exactly
    blocks, rows = bundle.spec.span(), Rows.chain(ids, 0)
    expected = logits_of(runtime, rows, runtime.new_cache(len(ids)))
    for at in (*range(2, len(blocks), 2), 1, len(blocks) - 1):
        cache = runtime.new_cache(len(ids))
        low = forward_one(runtime, Call(rows, cache, blocks[:at], outputs=Outputs(hidden=(at - 1,)))).hidden[at - 1]
        found = forward_one(runtime, Call(rows, cache, blocks[at:], low, ALL_LOGITS)).logits
        np.testing.assert_allclose(found, expected, atol=exactly, rtol=0)  # the same rows: the same sums
    tree = Rows.tree([ids[5], ids[6], ids[7], ids[6], ids[9]], [-1, 0, 1, 0, 3], len(ids))
    found = logits_of(runtime, tree, prefilled(runtime, ids))
    for row, path in ((2, [0, 1, 2]), (4, [0, 3, 4])):
        cache = prefilled(runtime, ids)
        for token in tree.tokens[path]:
            logits = logits_of(runtime, Rows.chain([token], cache.length), cache)
            cache.commit([0])
        np.testing.assert_allclose(found[row], logits[0], atol=within, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_runtimes_agree_on_the_bundle_that_ships(nano: Path, ids: list[int], engine: str) -> None:
    """The reference widens weights and keeps activations whole; the others round those to int8. The native
    engine has quantized caches of its own kind: it is held to a float one there."""
    bundle = Bundle.open(nano)
    for kv in bundle.manifest.kv_formats if engine == "ort" else KV_FORMATS:
        theirs = kv if engine == "ort" else "f32"
        p, q = (
            _log_probs(open_runtime(name, bundle, RuntimeOptions(kv=kv)), ids)
            for name, kv in (("reference", theirs), (engine, kv))
        )
        assert (np.exp(p) * (p - q)).sum(axis=1).mean() < (0.06 if engine != "ort" and kv == "int4" else 0.005), kv


def _log_probs(runtime: Runtime, ids: list[int]) -> np.ndarray:
    logits = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids))).astype(np.float64)
    return logits - np.logaddexp.reduce(logits, axis=1)[:, None]
