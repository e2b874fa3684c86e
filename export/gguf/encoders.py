"""Text encoders in GGUF files: their configs, what becomes of their rows, and the layers after them.

Facts that no file has are those of llama.cpp's graphs: BERT's activation is the GELU, EmbeddingGemma scales queries by
the width of a head. What its converter leaves out (BERT's pooler) makes a classifier another model, which is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Literal

from edgedec.bundle.manifest import EncoderFacts
from edgedec.errors import CheckpointError
from edgedec.export.gguf.common import MAX_CONTEXT, Config, common, expert_count, head_dim, pattern, rows
from edgedec.export.gguf.metadata import GgufFacts
from edgedec.export.gguf.ropes import rope_config
from edgedec.export.sentence_modules import Modules
from edgedec.models import Part, Source, neobert
from edgedec.models.jina_bert_v2 import NORMED
from edgedec.spec import Dense, ModelSpec, Output

# llama.cpp's numbers of poolings; 0 is none, 4 that of scores, which the tensors of the head show.
POOLS: dict[int, Literal["mean", "cls", "last"]] = {1: "mean", 2: "cls", 3: "last"}
_DISTIL_EPS = 1e-12
CAUSAL = "must be false: the rows of an encoder see each other"
_LATE = ("bert", "modern-bert")


def _sizes(f: GgufFacts, model_type: str) -> Config:
    """The entries of an encoder with LayerNorms."""
    if f.flag("attention.causal", False):
        raise f.fail(f.name("attention.causal"), CAUSAL)
    heads = f.whole("attention.head_count", least=1)
    if f.whole("attention.head_count_kv", heads) != heads:
        raise f.fail(f.name("attention.head_count_kv"), f"is not {heads}, the heads of queries")
    return {
        "model_type": model_type,
        "vocab_size": rows(f, "token_embd.weight"),
        "hidden_size": f.whole("embedding_length", least=1),
        "num_hidden_layers": f.whole("block_count", least=1, most=len(f.file.tensors)),
        "num_attention_heads": heads,
        "intermediate_size": f.whole("feed_forward_length", least=1),
        "max_position_embeddings": f.whole("context_length", least=1, most=MAX_CONTEXT),
    }


def _types(f: GgufFacts) -> int:
    """The rows of the table of token types, which older files have as a vector if there is one."""
    table = f.file.tensors.get("token_types.weight")
    found = 0 if table is None else 1 if len(table.shape) == 1 else table.shape[0]
    said = f.file.metadata.get("tokenizer.ggml.token_type_count", found)
    if found and said != found:
        raise f.fail("tokenizer.ggml.token_type_count", f"is {said!r:.40}; token_types.weight has {found} rows")
    return found


def _eps(f: GgufFacts) -> float:
    return f.number("attention.layer_norm_epsilon")


def _bert(f: GgufFacts) -> Config:
    """BERT, RoBERTa and XLM-R, whose positions begin at the first row of the table; DistilBERT has no token types."""
    types, found = _types(f), _sizes(f, "bert")
    if types:
        return found | {"type_vocab_size": types, "layer_norm_eps": _eps(f)} | _score(f, "Bert")
    if abs(_eps(f) / _DISTIL_EPS - 1) > 1e-3:
        raise f.fail(f.name("attention.layer_norm_epsilon"), f"is {_eps(f)}: of BERT without token types it is 1e-12")
    names = {
        **{"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
        **{"intermediate_size": "hidden_dim", "model_type": "model_type"},
    }
    plain = {names.get(key, key): value for key, value in found.items()} | {"model_type": "distilbert"}
    return plain | _score(f, "DistilBert")


def _turned(f: GgufFacts, model_type: str) -> Config:
    """BERT with rotary positions."""
    found = _sizes(f, model_type)
    found |= {"type_vocab_size": _types(f), "layer_norm_eps": _eps(f)}
    return found | rope_config(f, head_dim(f), found["max_position_embeddings"])


def _modern_bert(f: GgufFacts) -> Config:
    found, every = _sizes(f, "modernbert"), "attention.sliding_window_pattern"
    n, eps = found["num_hidden_layers"], _eps(f)
    other = f.number("attention.layer_norm_rms_epsilon", eps)
    if other != eps:
        raise f.fail(f.name("attention.layer_norm_epsilon"), f"is {eps}, and that of RMSNorms {other}: one must be")
    slides = [bool(i % f.whole(every, 3, least=1)) for i in range(n)]
    if f.has(every) and type(f.file.metadata[f.name(every)]) is not int:
        slides = [bool(on) for on in f.each(every, n)]
    scaling = rope_config(f, head_dim(f), found["max_position_embeddings"]).get("rope_scaling")
    full = {"rope_theta": f.number("rope.freq_base"), **(scaling or {"rope_type": "default"})}
    return found | {
        "norm_eps": eps,
        "hidden_activation": f.text(f.name("hidden_activation"), "gelu"),
        "local_attention": f.whole("attention.sliding_window", least=1),
        "layer_types": ["sliding_attention" if on else "full_attention" for on in slides],
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_theta": f.number("rope.freq_base_swa"), "rope_type": "default"},
        },
        "classifier_pooling": _pool(f, "classifier.pooling_type", 1),
        "classifier_bias": "cls.bias" in f.file.tensors,
        **_score(f, "ModernBert"),
    }


def _jina_bert_v2(f: GgufFacts) -> Config:
    """Jina v2, of text and of code, whose queries are normed."""
    if {"cls.weight", "cls.output.weight"} & set(f.file.tensors):
        raise _no_pooler(f)
    return _sizes(f, "jina_bert_v2") | {
        "type_vocab_size": _types(f),
        "layer_norm_eps": _eps(f),
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        NORMED: "blk.0.attn_q_norm.weight" in f.file.tensors,
    }


def _nomic_bert_moe(f: GgufFacts) -> Config:
    """The converter leaves the bias of the experts' sum out."""
    return _turned(f, "nomic_bert") | {
        "num_experts": expert_count(f),
        "moe_top_k": f.whole("expert_used_count", least=1),
        "moe_every_n_layers": f.whole("moe_every_n_layers", least=1),
        "experts_bias": False,
    }


def _neo_bert(f: GgufFacts) -> Config:
    """The width of the feed-forward is two thirds of the config's, in whole eights; the file may have it before."""
    found, width = _sizes(f, "neobert"), rows(f, "blk.0.ffn_up.weight") // 2
    if -(-found["intermediate_size"] // neobert.MULTIPLE) * neobert.MULTIPLE != width:
        raise f.fail(f.name("feed_forward_length"), f"is {found['intermediate_size']}; blk.0.ffn_up.weight has {width}")
    found |= {"intermediate_size": -(-3 * width // 2), "norm_eps": f.number("attention.layer_norm_rms_epsilon")}
    return found | rope_config(f, head_dim(f), found["max_position_embeddings"]) | _score(f, "NeoBERT")


def _euro_bert(f: GgufFacts) -> Config:
    if f.flag("attention.causal", False):
        raise f.fail(f.name("attention.causal"), CAUSAL)
    return common(f, "eurobert")


def _gemma_embedding(f: GgufFacts) -> Config:
    found = common(f, "gemma3_text")
    slides = pattern(f, found["num_hidden_layers"], 6)
    scaling = found.pop("rope_scaling", None) or {"rope_type": "default"}
    local = {"rope_theta": f.number("rope.freq_base_swa", 10_000.0), "rope_type": "default"}
    return found | {
        "use_bidirectional_attention": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": found["head_dim"],
        "sliding_window": f.whole("attention.sliding_window", least=1),
        "layer_types": ["sliding_attention" if on else "full_attention" for on in slides],
        "rope_parameters": {
            "full_attention": {"rope_theta": found.pop("rope_theta"), **scaling},
            "sliding_attention": local,
        },
    }


ENCODERS: Mapping[str, Callable[[GgufFacts], Config]] = {
    "bert": _bert,
    "nomic-bert": lambda f: _turned(f, "nomic_bert"),
    "nomic-bert-moe": _nomic_bert_moe,
    "jina-bert-v2": _jina_bert_v2,
    "neo-bert": _neo_bert,
    "jina-bert-v3": lambda f: _turned(f, "jina_embeddings_v3"),
    "modern-bert": _modern_bert,
    "eurobert": _euro_bert,
    "gemma-embedding": _gemma_embedding,
}


def _score(f: GgufFacts, name: str) -> Config:
    """The entries of a classifier or a reranker, if the file has the layers of one."""
    tensors = f.file.tensors
    if "cls.output.weight" not in tensors and "cls.weight" not in tensors:
        return {}
    if "cls.weight" not in tensors:
        raise _no_pooler(f)
    out = tensors.get("cls.output.weight")
    count = 0 if out is None else 1 if len(out.shape) == 1 else out.shape[0]
    key = f.name("classifier.output_labels")
    said = f.file.metadata.get(key, [f"LABEL_{i}" for i in range(count)])
    if not isinstance(said, list) or len(said) != count:
        raise f.fail(key, f"must be a list of {count} names, one for each row of cls.output.weight")
    labels = {str(i): label for i, label in enumerate(said)}
    return {"architectures": [f"{name}ForSequenceClassification"], "id2label": labels}


def _no_pooler(f: GgufFacts) -> CheckpointError:
    return CheckpointError(
        f"{f.file.path}: has the scores of a classifier (cls.output) and not the layer before them: llama.cpp's "
        "converter leaves BERT's pooler out. Export the model's safetensors"
    )


def _pool(f: GgufFacts, key: str, usual: int) -> Literal["mean", "cls", "last"]:
    found = f.whole(key, usual)
    if found not in POOLS:
        raise f.fail(f.name(key), f"is {found}; supported: 1 (mean), 2 (first token), 3 (last token)")
    return POOLS[found]


def modules_of(f: GgufFacts) -> Modules:
    """Pooling and the dense layers after it, as sentence-transformers' modules are. A file says nothing of a scaling to
    length 1, which nearly all models with a pooling have, and llama.cpp does for each: so these are scaled."""
    late = _dense(f, "dense_2") if f.architecture in _LATE and "dense_2.weight" in f.file.tensors else None
    if late is not None:
        return Modules(EncoderFacts(), Output("vectors", "rows", (late,), True), {}, _layers(("dense_2",), f))
    kind = f.whole("pooling_type", 0, most=4)
    if kind not in POOLS:
        return Modules(EncoderFacts())
    names = tuple(name for name in ("dense_2", "dense_3") if f"{name}.weight" in f.file.tensors)
    dense = tuple(_dense(f, name) for name in names)
    return Modules(EncoderFacts(), Output("vector", _pool(f, "pooling_type", 0), dense, True), {}, _layers(names, f))


def _dense(f: GgufFacts, name: str) -> Dense:
    """A layer after the pooling; the sizes that the metadata has are those of its tensor."""
    shape = f.file.tensors[f"{name}.weight"].shape
    for key, size in ((f"{name}_feat_out", shape[0]), (f"{name}_feat_in", prod(shape[1:]))):
        if f.whole(key, size) != size:
            raise f.fail(f.name(key), f"is {f.whole(key)}; {name}.weight has {size}")
    return Dense(shape[0], f"{name}.bias" in f.file.tensors)


def _layers(names: tuple[str, ...], f: GgufFacts) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for i, name in enumerate(names):
        ends = {"": "weight"} | ({"_bias": "bias"} if f"{name}.bias" in f.file.tensors else {})
        found |= {f"dense.{i}{end}": (Part(f"{name}.{kind}"),) for end, kind in ends.items()}
    return found


def head_weights(spec: ModelSpec, f: GgufFacts) -> dict[str, Source]:
    """Where the layers of the output are."""
    if spec.output is None:
        return {}
    if spec.output.kind != "score":
        return dict(modules_of(f).sources)
    places = {f"dense.{i}{end}": (Part(f"{name}.{kind}"),) for i, name in enumerate(("cls", "cls.output"))
              for end, kind in (("", "weight"), ("_bias", "bias"))}  # fmt: skip
    norm = "cls.norm.bias" if "cls.norm.bias" in f.file.tensors else "cls.norm.weight"
    places["dense.0_norm"] = (Part("cls.norm.weight"),)
    places["dense.0_norm_bias"] = (Part(norm, times=float(norm.endswith("bias"))),)
    return {name: source for name, source in places.items() if name in spec.tensors()}
