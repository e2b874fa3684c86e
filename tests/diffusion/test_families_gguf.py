"""GGUF files of LLaDA, Dream and LLaDA-MoE, by the rules of llama.cpp's converter: the bundles of their checkpoints."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusion import families
from diffusion.families import FAMILIES, MASK, drawn, write
from numpy.typing import NDArray

from edgedec.errors import CheckpointError
from edgedec.export.opening import open_source

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

gguf = pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")

Floats = NDArray[np.float32]
ARCHITECTURES = {"llada": "llada", "llada_biased": "llada", "dream": "dream", "llada_moe": "llada-moe"}
OUTER = {
    **{"model.transformer.wte": "token_embd", "model.transformer.ln_f": "output_norm"},
    **{"model.transformer.ff_out": "output", "model.embed_tokens": "token_embd", "model.norm": "output_norm"},
    "lm_head": "output",
}
INNER = {
    **{"attn_norm": "attn_norm", "ff_norm": "ffn_norm", "attn_out": "attn_output", "ff_out": "ffn_down"},
    **{"ff_proj": "ffn_gate", "up_proj": "ffn_up", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v"},
    **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
    **{"self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"},
    **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
}


def converted(name: str) -> dict[str, Floats]:
    """A family's tensors as llama.cpp stores them: LLaDA's q and k with neighbouring channels, experts stacked."""
    found: dict[str, Any] = {}
    stacks: dict[str, list[Floats]] = defaultdict(list)
    for tensor, values in drawn(FAMILIES[name].tensors).items():
        stem, _, kind = tensor.rpartition(".")
        if stem in OUTER:
            found[f"{OUTER[stem]}.{kind}"] = values
            continue
        layer, part = re.fullmatch(r"model\.(?:transformer\.blocks|layers)\.(\d+)\.(.*)", stem).groups()  # type: ignore[union-attr]
        expert = re.fullmatch(r"mlp\.experts\.\d+\.(gate|up|down)_proj", part)
        if expert:
            stacks[f"blk.{layer}.ffn_{expert[1]}_exps.weight"].append(values)
            continue
        if name.startswith("llada") and part in ("q_proj", "k_proj") and "transformer" in tensor:
            heads = values.shape[0] // 16
            values = values.reshape(heads, 2, 8, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        found[f"blk.{layer}.{INNER[part]}.{kind}"] = values
    return found | {key: np.stack(parts) for key, parts in stacks.items()}


def metadata(name: str) -> dict[str, Any]:
    c = FAMILIES[name].config
    moe = "expert_intermediate_size" in c
    found: dict[str, Any] = {
        "block_count": 3,
        "context_length": 256,
        "embedding_length": 48,
        "feed_forward_length": 72,
        "attention.head_count": 3,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-4,
        "attention.causal": False,
        "rope.dimension_count": 16,
        "rope.freq_base": float(c["rope_theta"]),
        **({"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 16} if moe else {}),
    }
    return {f"{ARCHITECTURES[name]}.{key}": value for key, value in found.items()}


def write_gguf(path: Path, name: str, **extra: Any) -> Path:
    writer = gguf.GGUFWriter(path, ARCHITECTURES[name])
    adds: dict[type, Any] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string
    }  # fmt: skip
    shift = {} if name == "dream" else {"diffusion.shift_logits": False}
    for key, value in ({**metadata(name), "tokenizer.ggml.mask_token_id": MASK, **shift, **extra}).items():
        if value is not None:
            adds[type(value)](key, value)
    for tensor, values in converted(name).items():
        writer.add_tensor(tensor, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# llama.cpp has experts in every layer.
DENSE_FIRST = {"moe_layer_freq": [1, 1, 1]}


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "llada_moe"])
def test_a_file_is_the_bundle_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    options = ExportOptions(weights="f32", check=False, runtimes=(), name="m")
    ours = export(
        str(write(tmp_path / "c", name, rms_norm_eps=float(np.float32(1e-4)), eos_token_id=None)),
        tmp_path / "ours",
        options,
    )
    theirs = export(str(write_gguf(tmp_path / "m.gguf", name)), tmp_path / "theirs", options)
    assert theirs.manifest.diffusion == ours.manifest.diffusion == FAMILIES[name].facts
    assert replace(theirs.spec, architecture=ours.spec.architecture) == ours.spec
    for tensor in ours.spec.tensors():
        np.testing.assert_array_equal(theirs.rows(tensor), ours.rows(tensor), tensor)


def test_a_file_of_llada_moe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = families.LLADA_MOE | DENSE_FIRST
    shapes = families._qwen(config | {"intermediate_size": 72}, bias=True, norms=True, o_bias=True)
    every = replace(FAMILIES["llada_moe"], config=config, tensors=families._routed(shapes, (0, 1, 2), 48, 6, 16))
    monkeypatch.setitem(FAMILIES, "llada_moe", every)
    test_a_file_is_the_bundle_of_its_checkpoint("llada_moe", tmp_path)


def facts_of(path: Path) -> Any:
    source = open_source(path)
    return source.diffusion(source.spec())


def test_the_metadata_say_how_it_is_decoded(tmp_path: Path) -> None:
    assert facts_of(write_gguf(tmp_path / "1.gguf", "dream", **{"diffusion.shift_logits": False})).shift is False
    assert facts_of(write_gguf(tmp_path / "2.gguf", "llada", **{"diffusion.shift_logits": True})).shift is True
    assert facts_of(write_gguf(tmp_path / "3.gguf", "llada", **{"tokenizer.ggml.mask_token_id": 5})).mask == 5


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"tokenizer.ggml.mask_token_id": None}, "mask_token_id is missing"),
        ({"tokenizer.ggml.mask_token_id": "M"}, "mask_token_id must be a whole number"),
        ({"tokenizer.ggml.mask_token_id": 104}, "mask 104, block 32: does not fit"),
        ({"diffusion.shift_logits": 1}, "must be true or false"),
        ({"llada.rope.scaling.type": "linear", "llada.rope.scaling.factor": 2.0}, "LLaDA turns whole heads"),
        ({"llada.rope.dimension_count": 8}, "LLaDA turns whole heads"),
    ],
)
def test_wrong_metadata_are_refused_in_one_line(extra: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as found:
        facts_of(write_gguf(tmp_path / "m.gguf", "llada", **extra))
    assert "\n" not in str(found.value)
    assert "m.gguf" in str(found.value)
