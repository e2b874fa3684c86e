"""Small random text encoders and what transformers makes of them, without torch.

`golden/encoders.json.xz` has each model's config and the names and shapes of its tensors, whose values numpy draws;
`golden/encoders.npz` has the states of the rows of TOKENS after the last norm, or the logits. Both are made again, with
torch, by

    python tests/encoders_golden.py

Those that transformers has no class for (`OWN`) are computed by `own_encoders`.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import own_encoders
from numpy.typing import NDArray

GOLDEN = Path(__file__).with_name("golden")
TOKENS = [3, 5, 7, 9, 33, 100, 2, 8, 60, 61, 62, 63, 64, 65, 10, 11, 12, 13, 14, 15, 42, 42, 99]
TYPES = [0] * 8 + [1] * 15
# Widths that nothing shares, an epsilon that is felt, a context that is no power of two, windows shorter than the text.
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "max_position_embeddings": 44,
    "layer_norm_eps": 1e-2,
}
LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DISTIL = {
    **{"vocab_size": 101, "dim": 48, "n_layers": 2, "n_heads": 3, "hidden_dim": 80, "max_position_embeddings": 44},
    "activation": "relu",
}
MODERN = {key: value for key, value in SIZES.items() if key != "layer_norm_eps"} | {
    **{"norm_eps": 1e-2, "local_attention": 6, "num_hidden_layers": 4, "cls_token_id": 1, "sep_token_id": 2},
    **IDS,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 900.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}
DECODER = {key: value for key, value in SIZES.items() if key != "layer_norm_eps"} | {
    **{"num_key_value_heads": 1, "rms_norm_eps": 1e-2, "head_dim": 32},
    **IDS,
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 70.0}}
BIASED = {
    **{
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
        "classifier_pooling": "mean",
    },
    **{"classifier_activation": "silu", "hidden_activation": "relu"},
}
# Name: (the class of transformers, its config).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", SIZES | {"hidden_act": "relu", "type_vocab_size": 3}),
    "bert-score": ("BertForSequenceClassification", SIZES | LABELS),
    "bert-terms": ("BertForMaskedLM", SIZES),
    "distilbert-terms": ("DistilBertForMaskedLM", DISTIL),
    "roberta": ("RobertaModel", SIZES | {"pad_token_id": 4, "type_vocab_size": 1, "hidden_act": "silu"}),
    "roberta-score": ("RobertaForSequenceClassification", SIZES | LABELS),
    "xlm-roberta-score": ("XLMRobertaForSequenceClassification", SIZES | LABELS),
    "camembert": ("CamembertModel", SIZES),
    "distilbert": ("DistilBertModel", DISTIL),
    "distilbert-score": ("DistilBertForSequenceClassification", DISTIL | LABELS),
    "electra": ("ElectraModel", SIZES | {"embedding_size": 24}),
    "electra-score": ("ElectraForSequenceClassification", SIZES | LABELS | {"embedding_size": 48}),
    "mpnet": ("MPNetModel", SIZES),
    "mpnet-score": ("MPNetForSequenceClassification", SIZES | LABELS),
    "nomic": ("NomicBertModel", SIZES | ROPE),
    "gte": ("GteModel", SIZES | ROPE | {"type_vocab_size": 0}),
    "gte-score": ("GteForSequenceClassification", SIZES | ROPE | LABELS),
    "jina": ("JinaEmbeddingsV3Model", SIZES | ROPE),
    "jina-score": ("JinaEmbeddingsV3ForSequenceClassification", SIZES | ROPE | LABELS),
    "modernbert": ("ModernBertModel", MODERN | {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    "modernbert-score": ("ModernBertForSequenceClassification", MODERN | LABELS | BIASED),
    "eurobert": ("EuroBertModel", DECODER | ROPE | {"mask_token_id": 3, "hidden_act": "relu"}),
    "eurobert-score": ("EuroBertForSequenceClassification", DECODER | ROPE | LABELS | {"classifier_pooling": "mean"}),
    "qwen3-score": ("Qwen3ForSequenceClassification", DECODER | ROPE | LABELS),
    "embedding-gemma": (
        "Gemma3TextModel",
        DECODER
        | {"sliding_window": 9, "use_bidirectional_attention": True, "query_pre_attn_scalar": 24}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {"rope_parameters": MODERN["rope_parameters"]},
    ),
}


DEBERTA = SIZES | {
    **{"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 14, "type_vocab_size": 0},
    **{"norm_rel_ebd": "layer_norm", "position_biased_input": False},
}
V3 = DEBERTA | {"share_att_key": True, "position_buckets": 8}
MODELS |= {
    "deberta": ("DebertaV2Model", V3),
    "deberta-score": ("DebertaV2ForSequenceClassification", V3 | LABELS),
    # No buckets, tables of their own, positions and types, a narrower embedding.
    "deberta-plain": (
        "DebertaV2Model",
        DEBERTA
        | {"share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True, "type_vocab_size": 3}
        | {"embedding_size": 24, "hidden_act": "relu"},
    ),
    "deberta-c2p": ("DebertaV2Model", V3 | {"pos_att_type": ["c2p"], "share_att_key": False, "position_buckets": 9}),
    # Beside the first layer a convolution.
    "deberta-conv": ("DebertaV2Model", V3 | {"conv_kernel_size": 5, "conv_groups": 3, "conv_act": "gelu"}),
    "deberta-p2c": ("DebertaV2Model", V3 | {"pos_att_type": ["p2c"], "max_relative_positions": 44}),
}


# ---- of classes that transformers does not have: the models of `own_encoders` -------------------------

JINA2: dict[str, Any] = SIZES | {
    **{"model_type": "bert", "position_embedding_type": "alibi", "type_vocab_size": 3, "feed_forward_type": "geglu"},
    **{"architectures": ["JinaBertForMaskedLM"], "pad_token_id": 0, "model_max_length": 44, "emb_pooler": "mean"},
}
NEO: dict[str, Any] = {
    **{"model_type": "neobert", "architectures": ["NeoBERT"], "vocab_size": 101, "hidden_size": 48, "max_length": 44},
    **{"num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 118, "norm_eps": 1e-2, "dim_head": 16},
    "pad_token_id": 0,
}
NOMIC2: dict[str, Any] = {
    **{"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": 101, "n_embd": 48, "n_head": 3},
    **{"n_layer": 4, "n_inner": 80, "n_positions": 44, "layer_norm_epsilon": 1e-2, "type_vocab_size": 3},
    **{"activation_function": "gelu", "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True},
    **{"rotary_emb_base": 70, "num_experts": 5, "moe_every_n_layers": 2, "moe_top_k": 2, "use_rms_norm": None},
    **{"moe_normalize_expert_weights": False, "num_shared_experts": 0, "router_aux_loss_coef": 0.1},
}


def _named(layers: int, where: str, shapes: dict[str, list[int]], outer: dict[str, list[int]]) -> dict[str, list[int]]:
    """The tensors of layers, `where` with the layer's number before their names, and those outside."""
    return {**outer, **{where.format(i) + name: shape for i in range(layers) for name, shape in shapes.items()}}


def _both(name: str, rows: int, width: int = 0) -> dict[str, list[int]]:
    """A matrix, or a norm, and its bias."""
    return {f"{name}.weight": [rows, width] if width else [rows], f"{name}.bias": [rows]}


def _jina2(kind: str, prefix: str = "") -> dict[str, list[int]]:
    """kind: the feed-forward: that of text, that of code, or BERT's own."""
    shapes = {**_both("attention.output.dense", 48, 48), **_both("attention.output.LayerNorm", 48)}
    for name in ("query", "key", "value"):
        shapes |= _both(f"attention.self.{name}", 48, 48)
    match kind:
        case "text":
            shapes |= {"mlp.gated_layers.weight": [160, 48], **_both("mlp.wo", 48, 80), **_both("mlp.layernorm", 48)}
        case "code":
            shapes |= {"mlp.up_gated_layer.weight": [160, 48], **_both("mlp.down_layer", 48, 80)}
            for name in ("layer_norm_1", "layer_norm_2", "attention.self.layer_norm_q", "attention.self.layer_norm_k"):
                shapes |= _both(name, 48)
        case _:
            shapes |= {**_both("intermediate.dense", 80, 48), **_both("output.dense", 48, 80)}
            shapes |= _both("output.LayerNorm", 48)
    outer = {"embeddings.word_embeddings.weight": [101, 48], "embeddings.token_type_embeddings.weight": [3, 48]}
    outer |= {**_both("embeddings.LayerNorm", 48), **_both("pooler.dense", 48, 48)}
    found = _named(3, "encoder.layer.{}.", shapes, outer)
    return {prefix + name: shape for name, shape in found.items()}


def _neo(prefix: str = "") -> dict[str, list[int]]:
    shapes = {"qkv.weight": [144, 48], "wo.weight": [48, 48], "attention_norm.weight": [48], "ffn_norm.weight": [48]}
    shapes |= {"ffn.w12.weight": [160, 48], "ffn.w3.weight": [48, 80]}
    outer = {"encoder.weight": [101, 48], "layer_norm.weight": [48]}
    return {prefix + name: shape for name, shape in _named(3, "transformer_encoder.{}.", shapes, outer).items()}


def _nomic2() -> dict[str, list[int]]:
    both = {**_both("attn.Wqkv", 144, 48), **_both("attn.out_proj", 48, 48), **_both("norm1", 48), **_both("norm2", 48)}
    dense = {**_both("mlp.fc1", 80, 48), **_both("mlp.fc2", 48, 80)}
    experts = {"mlp.router.layer.weight": [5, 48], "mlp.experts.bias": [48]}
    experts |= {"mlp.experts.mlp.w1": [400, 48], "mlp.experts.mlp.w2": [400, 48]}
    outer = {"embeddings.word_embeddings.weight": [101, 48], "embeddings.token_type_embeddings.weight": [3, 48]}
    found = _named(4, "encoder.layers.{}.", both, {**outer, **_both("emb_ln", 48)})
    for i in range(4):
        found |= {f"encoder.layers.{i}.{name}": shape for name, shape in (experts if i % 2 else dense).items()}
    return found


SCORED = {"id2label": {"0": "no", "1": "maybe", "2": "yes"}, "label2id": LABELS["label2id"]}
# Name: (what computes it, its config, its tensors).
OWN: dict[str, tuple[Callable[..., NDArray[Any]], dict[str, Any], dict[str, list[int]]]] = {
    "jina2": (own_encoders.jina_bert, JINA2, _jina2("text")),
    "jina2-relu": (own_encoders.jina_bert, JINA2 | {"feed_forward_type": "reglu"}, _jina2("text", "bert.")),
    "jina2-plain": (
        own_encoders.jina_bert,
        JINA2 | {"feed_forward_type": "original", "hidden_act": "relu"},
        _jina2("plain"),
    ),
    "jina2-code": (own_encoders.jina_bert, JINA2, _jina2("code")),
    "jina2-score": (
        own_encoders.jina_bert,
        JINA2 | SCORED | {"architectures": ["JinaBertForSequenceClassification"]},
        _jina2("text", "bert.") | _both("classifier", 3, 48),
    ),
    "neobert": (own_encoders.neobert, NEO, _neo()),
    "neobert-score": (
        own_encoders.neobert,
        NEO | SCORED | {"architectures": ["NeoBERTForSequenceClassification"]},
        _neo("model.") | _both("dense", 48, 48) | _both("classifier", 3, 48),
    ),
    "nomic-moe": (own_encoders.nomic_moe, NOMIC2, _nomic2()),
}


class Golden(NamedTuple):
    """Of one model. found: the states [n, hidden_size] of TOKENS, or the logits [labels], of -terms
    [n, vocab_size]."""

    config: dict[str, Any]
    tensors: dict[str, list[int]]
    found: NDArray[np.float32]


@cache
def _recipes() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((GOLDEN / "encoders.json.xz").read_bytes()))
    return found


def golden(name: str) -> Golden:
    if name in OWN:
        _, config, tensors = OWN[name]
        return Golden(config, tensors, _computed(name))
    recipe = _recipes()[name]
    with np.load(GOLDEN / "encoders.npz") as arrays:
        return Golden(recipe["config"], recipe["tensors"], arrays[name])


@cache
def _computed(name: str) -> NDArray[np.float32]:
    compute, config, tensors = OWN[name]
    return compute(config, drawn(tensors), TOKENS, TYPES).astype(np.float32)


def drawn(tensors: dict[str, list[int]], gemma: bool = False) -> dict[str, NDArray[np.float32]]:
    """Every tensor, norms around their neutral value too."""
    found = {}
    for name, shape in tensors.items():
        rng = np.random.default_rng(crc32(name.encode()))
        spread = 0.3 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5
        middle = 1.0 if len(shape) == 1 and name.endswith(".weight") and not gemma else 0.0
        found[name] = (middle + spread * rng.standard_normal(shape)).astype(np.float32)
    return found


def write(folder: Path, config: dict[str, Any], tensors: dict[str, list[int]]) -> Path:
    """A checkpoint of drawn tensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    save_file(drawn(tensors, "gemma" in config["model_type"]), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _made(name: str, folder: Path) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """The recipe of a model, and what transformers makes of it."""
    import torch
    import transformers

    from edgedec.export.safetensors import read_header

    kind, facts = MODELS[name]
    made = getattr(transformers, kind)
    made(made.config_class(**facts)).save_pretrained(folder / "saved")
    config = json.loads((folder / "saved" / "config.json").read_text())
    # transformers halves the window of a config each time that it reads it.
    config |= {
        key: facts[key] for key in ("sliding_window",) if key in facts and "use_bidirectional_attention" in facts
    }
    shapes = {
        tensor: list(stored.shape)
        for tensor, stored in read_header(folder / "saved" / "model.safetensors").items()
        if stored.dtype == "F32"
    }
    model = made.from_pretrained(write(folder / "drawn", config, shapes)).eval()
    types = (
        {"token_type_ids": torch.tensor([TYPES])}
        if facts.get("type_vocab_size", config.get("type_vocab_size", 0)) > 1
        else {}
    )
    with torch.no_grad():
        out = model(torch.tensor([TOKENS]), **types)
    return {"config": config, "tensors": shapes}, (out.logits if "logits" in out else out.last_hidden_state)[0].numpy()


def main() -> None:
    import tempfile

    recipes, arrays = {}, {}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            recipes[name], arrays[name] = _made(name, Path(folder))
        print(name, arrays[name].shape, float(np.abs(arrays[name]).mean()))
    (GOLDEN / "encoders.json.xz").write_bytes(lzma.compress(json.dumps(recipes, sort_keys=True).encode()))
    np.savez_compressed(GOLDEN / "encoders.npz", **arrays)


if __name__ == "__main__":
    main()
