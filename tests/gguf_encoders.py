"""GGUF files of the drawn text encoders: ggml's names by the package gguf, and what llama.cpp's converter changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import encoder_checkpoints
import encoders_golden
import llama_cpp_process
import numpy as np
from ggufs import Array, add_value, finish, gguf

MODERN = {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
# ModernBERT's files have no biases but those of its head.
UNBIASED = {
    **{"norm_bias": False, "attention_bias": False, "mlp_bias": False, "hidden_activation": "gelu"},
    **{"classifier_activation": "gelu", "classifier_bias": False},
}
# llama.cpp's name of each of the encoders' models that its converter knows, and what the file cannot say of the golden
# config: other activations than the usual ones, other layers.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"hidden_act": "gelu"}),
    "distilbert": ("bert", {"activation": "gelu"}),
    "distilbert-score": ("bert", {"activation": "gelu"}),
    "roberta": ("bert", {"hidden_act": "gelu"}),
    "roberta-score": ("bert", {}),
    "xlm-roberta-score": ("bert", {}),
    "camembert": ("bert", {}),
    "nomic": ("nomic-bert", {}),
    "jina": ("jina-bert-v3", {}),
    "modernbert": ("modern-bert", MODERN),
    "modernbert-score": ("modern-bert", MODERN | UNBIASED),
    "eurobert": ("eurobert", {"hidden_act": "silu", "head_dim": 16}),
    "embedding-gemma": ("gemma-embedding", {"query_pre_attn_scalar": 32}),
    "jina2": ("jina-bert-v2", {}),
    "jina2-code": ("jina-bert-v2", {}),
    "neobert": ("neo-bert", {"intermediate_size": 120}),
    "neobert-score": ("neo-bert", {"intermediate_size": 120}),
    "nomic-moe": ("nomic-bert-moe", {"experts_bias": False}),
}
# BERT's words for those of other configs.
_WORDS = {
    **{"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    **{"n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "rotary_emb_base": "rope_theta"},
    **{"layer_norm_epsilon": "layer_norm_eps", "max_length": "max_position_embeddings"},
}
_PREFIX = re.compile(r"^(bert|roberta|distilbert|model|nomic_bert)\.")
# Of BERT's kin, the tensors that the converter leaves out.
_BIASES = re.compile(r".*(norm|Wqkv|Wi|Wo|dense)\.bias")
_LEFT_OUT = ("pooler.", "cls.", "lm_head.", "embeddings.position_ids", "decoder.")
_SPACED = "▁"
# Types whose positions begin after the padding token's number, which the converter cuts off, and what it adds to norms
# of Gemma.
OFFSET, SHIFT = ("roberta", "xlm-roberta", "camembert"), np.float32(1)


class Written(NamedTuple):
    """A checkpoint in a folder, and its file."""

    folder: Path
    path: Path


def write(name: str, folder: Path, tokens: dict[str, Any] | None = None, **changed: Any) -> Written:
    """The checkpoint of a golden model, with a config that a file can say, and its GGUF file; changed: metadata, or
    tensors, that are not as the converter writes them."""
    arch, (config, shapes) = MODELS[name][0], _recipe(name)
    checkpoint = encoders_golden.write(folder / "checkpoint", config, shapes)
    tensors: dict[str, Any] = tensors_of(name)
    if tokens:
        tokens = tokens | {"tokenizer.ggml.token_type_count": len(tensors.get("token_types.weight", "1"))}
    writer = gguf.GGUFWriter(folder / "m.gguf", arch)
    metadata = {f"{arch}.{key}": value for key, value in metadata_of(name).items()} | (tokens or {})
    for key, value in changed.items():
        (tensors if key.endswith((".weight", ".bias")) else metadata)[key] = value
    for key, value in metadata.items():
        if value is not None:
            add_value(writer, key, value)
    for tensor, values in tensors.items():
        if values is not None:
            writer.add_tensor(tensor, np.ascontiguousarray(values, np.float32))
    finish(writer)
    return Written(checkpoint, folder / "m.gguf")


def _recipe(name: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The config of a model that a file can say, and the shapes of its tensors."""
    of, own = encoders_golden.golden(name), MODELS[name][1]
    shapes = dict(of.tensors)
    if own.get("norm_bias") is False:
        shapes = {tensor: shape for tensor, shape in shapes.items() if not _BIASES.fullmatch(tensor)}
    if own.get("experts_bias") is False:
        shapes = {tensor: shape for tensor, shape in shapes.items() if not tensor.endswith("mlp.experts.bias")}
    if "head_dim" in own:
        shapes = {tensor: _narrow(tensor, shape) for tensor, shape in shapes.items()}
    return of.config | own, shapes


def tensors_of(name: str) -> dict[str, Array]:
    """The tensors of a model's file."""
    config, shapes = _recipe(name)
    return converted(encoders_golden.drawn(shapes, "gemma" in config["model_type"]), config, MODELS[name][0])


def metadata_of(name: str) -> dict[str, Any]:
    """The metadata of a model's file, without the architecture before it."""
    return facts(_recipe(name)[0], MODELS[name][0])


def as_llama_cpp_reads(name: str) -> dict[str, Any]:
    """The tensors of a model, where llama.cpp takes their rows in another order than the model's authors: NeoBERT's
    queries, keys and values are not head by head, the gates of Jina's models for code not below the ups."""
    found = {}
    for tensor, values in tensors_of(name).items():
        if name.startswith("neobert") and "attn_qkv" in tensor:
            heads = _recipe(name)[0]["num_attention_heads"]
            found[tensor] = values.reshape(heads, 3, -1, values.shape[1]).swapaxes(0, 1).reshape(values.shape)
        if name == "jina2-code" and "ffn_up" in tensor:
            found[tensor] = np.roll(values, len(values) // 2, axis=0)
    return found


def _narrow(tensor: str, shape: list[int]) -> list[int]:
    """Heads half as wide, so that all together are as wide as the state."""
    if re.search(r"[qkv]_proj", tensor):
        return [shape[0] // 2, *shape[1:]]
    return [shape[0], shape[1] // 2] if "o_proj" in tensor else shape


def facts(c: dict[str, Any], arch: str) -> dict[str, Any]:
    """The metadata that the converter writes of a config, without the architecture before it."""
    c = {_WORDS.get(key, key): value for key, value in c.items()}

    def first(*keys: str) -> Any:
        return next(c[key] for key in keys if key in c)

    offset = c["pad_token_id"] + 1 if c["model_type"] in ("roberta", "xlm-roberta", "camembert") else 0
    found: dict[str, Any] = {
        "block_count": first("num_hidden_layers", "n_layers"),
        "context_length": c["max_position_embeddings"] - offset,
        "embedding_length": first("hidden_size", "dim"),
        "feed_forward_length": first("intermediate_size", "hidden_dim"),
        "attention.head_count": first("num_attention_heads", "n_heads"),
        "attention.causal": False,
        "pooling_type": 1,
    }
    if arch in ("eurobert", "gemma-embedding"):
        found["attention.layer_norm_rms_epsilon"] = float(c["rms_norm_eps"])
        found |= {"attention.head_count_kv": c["num_key_value_heads"]}
        found |= {"attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"]}
    else:
        eps = {"distilbert": 1e-12}.get(c["model_type"]) or c.get("layer_norm_eps") or c["norm_eps"]
        found["attention.layer_norm_epsilon"] = float(eps)
    if arch == "neo-bert":
        found["attention.layer_norm_rms_epsilon"] = found.pop("attention.layer_norm_epsilon")
        found |= {"feed_forward_length": int(2 * c["intermediate_size"] / 3), "rope.freq_base": 10000.0}
        found |= {"rope.scaling.type": "none", "pooling_type": 2}
    if arch == "nomic-bert-moe":
        found |= {"expert_count": c["num_experts"], "expert_used_count": c["moe_top_k"]}
        found |= {"moe_every_n_layers": c["moe_every_n_layers"], "rope.freq_base": float(c["rope_theta"])}
    ropes = c.get("rope_parameters") or {}
    if ropes:
        found["rope.freq_base"] = float(ropes.get("full_attention", ropes)["rope_theta"])
    if "sliding_attention" in ropes:
        found["rope.freq_base_swa"] = float(ropes["sliding_attention"]["rope_theta"])
    if arch == "modern-bert":
        found |= {"attention.sliding_window": c["local_attention"], "attention.sliding_window_pattern": 3}
        found["attention.layer_norm_rms_epsilon"] = found["attention.layer_norm_epsilon"]
    if arch == "gemma-embedding":
        found["attention.sliding_window"] = c["sliding_window"]
        found["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in c["layer_types"]]
    if any("SequenceClassification" in of for of in c.get("architectures", ())):
        found["classifier.output_labels"] = list(c["id2label"].values())
    return found


def converted(tensors: dict[str, Array], c: dict[str, Any], arch: str) -> dict[str, Array]:
    """The tensors by ggml's names, as llama.cpp wants them."""
    c = {_WORDS.get(key, key): value for key, value in c.items()}
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, c.get("num_hidden_layers") or c["n_layers"])
    found, offset = dict[str, Array](), c.get("pad_token_id", 0) + 1
    for name, values in tensors.items():
        plain = _PREFIX.sub("", name) if arch != "gemma-embedding" else name
        if plain.startswith(_LEFT_OUT):
            continue
        if c["model_type"] in OFFSET and "position_embeddings" in plain:
            values = values[offset:]
        if re.fullmatch(r"classifier\.(weight|bias)", plain):  # the converter's own name of it
            plain = plain.replace("classifier", "classifier.out_proj")
        if "experts.mlp." in plain:  # an expert's second matrix is stored as its first one is
            values = values.reshape(c["num_experts"], c["intermediate_size"], -1)
            values, plain = values.transpose(0, 2, 1) if plain.endswith("w2") else values, f"{plain}.weight"
        if arch == "gemma-embedding" and plain.endswith("norm.weight"):
            values = values + SHIFT
        stem, _, end = plain.rpartition(".")
        theirs = names.get_name(stem) or names.get_name(f"model.{stem}")
        assert theirs is not None, name
        found[f"{theirs}.{end}"] = values
    return found


def padded(count: int) -> list[str]:
    """Words for so many tokens."""
    return [*WORDS, *(f"word{i}" for i in range(len(WORDS), count))][:count]


def types_of(count: int) -> list[int]:
    """The types that the golden text has in a model with so many."""
    return encoders_golden.TYPES if count > 1 else [0] * len(encoders_golden.TYPES)


WORDS = list(dict.fromkeys(encoder_checkpoints.WORDS))
# Of all the tokens of a golden model.
NAMES = padded(101)


def vocabulary(words: list[str] = NAMES) -> dict[str, Any]:
    """BERT's words as llama.cpp writes them: those in brackets are special."""
    special = set(words[:5])
    spelled = [w if w in special else w[2:] if w.startswith("##") else _SPACED + w for w in words]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": spelled,
        "tokenizer.ggml.token_type": [3 if word in special else 1 for word in words],
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }


def llama_cpp_states(path: Path, ids: list[int], pooling: int = 0) -> Array:
    """llama.cpp's states of the rows [n, hidden_size], or with a pooling what it makes of them (4: scores)."""
    return np.array(llama_cpp_process.asked("states", path, ids, pooling), np.float32)


def pieces(**changed: Any) -> dict[str, Any]:
    """XLM-R's kind of vocabulary: scored pieces."""
    words = ["▁the", "▁cat", "▁c", "▁", "s", "at", "cat", "▁sat", "A", "▁A", *"abcdeghtxz.,!", "▁do", "g", "gs"]
    words = ["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys(words)]
    words += [f"▁word{i}" for i in range(len(words), 100)] + ["<mask>"]
    scores = [0.0] * 4 + [-1.0 - 0.25 * ((7 * i) % 13) for i in range(len(words) - 5)] + [0.0]
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [3, 3, 3, 2, *[1] * (len(words) - 5), 3],
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.precompiled_charsmap": charsmap("Ａ", "A"),
        **{f"tokenizer.ggml.{name}_token_id": i for name, i in IDS.items()},
        **{f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")},
    } | changed  # fmt: skip


IDS = {"bos": 0, "padding": 1, "eos": 2, "seperator": 2, "unknown": 3, "cls": 0, "mask": 100}


def charsmap(character: str, meant: str) -> bytes:
    """SentencePiece's table in which one character stands for another: the size of a double array, the array, and
    strings that end with zero. A unit has its label in the low byte, a leaf in bit 8, an offset from bit 10 on."""
    raw = character.encode()
    units = np.zeros(256 * (len(raw) + 2), np.uint32)
    at = 0
    for i, label in enumerate(b"\0" + raw):
        base, last = 256 * (i + 1), i == len(raw)
        units[at] = (label if i else 0) | ((at ^ base) << 10) | (int(last) << 8)
        at = base if last else base ^ raw[i]
    units[at] = 1 << 31
    return np.uint32(units.nbytes).tobytes() + units.tobytes() + meant.encode() + b"\0"
