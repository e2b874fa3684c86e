"""What the files of text encoders share: sizes of BERT's configs, where its kind of weights is, and heads of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from edgedec.models import Part, Source
from edgedec.models._common import ConfigReader, activation
from edgedec.spec import Attention, Dense, EncoderEntry, Mlp, ModelSpec, Output
from edgedec.spec.encoder import Squash

Places = Mapping[str, tuple[str | Part, ...]]
"""Tensors of a block, and where they are within a layer of the checkpoint."""

# Tensors of pretraining and of poolers, which no embedding reads; those that one does read are no longer ignored.
IGNORED = (
    r"(\w+\.)?embeddings\.position_ids",
    r"(\w+\.)?pooler\..*",
    r"(cls|lm_head|vocab_\w+|mlm_head|predictions|discriminator_predictions|generator_\w+)\..*",
)
# Of BERT's head over the vocabulary.
TERMS = ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias")
# transformers' modules of sentence-transformers' classes after a score.
_SQUASH: dict[str, Squash] = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
    "torch.nn.modules.activation.Tanh": "tanh",
}


class BertSizes(TypedDict):
    """The fields of a ModelSpec that BERT's relatives read alike."""

    architecture: str
    vocab_size: int
    hidden_size: int
    norm_eps: float
    tied: bool
    causal: bool


def bert_sizes(
    r: ConfigReader, hidden: str = "hidden_size", eps: float | None = None, positions: str = "absolute"
) -> BertSizes:
    """eps: of norms, where the config has none; positions: the only type of these that will do."""
    read_always(r)
    for key in ("is_decoder", "add_cross_attention"):
        if r.flag(key, False):
            raise r.fail(key, "is set: a decoder of this type is not an encoder")
    if r.text("position_embedding_type", "absolute") != positions:
        raise r.fail("position_embedding_type", f"must be {positions}")
    return BertSizes(
        architecture=r.text("model_type"),
        vocab_size=r.whole("vocab_size"),
        hidden_size=r.whole(hidden),
        norm_eps=r.number("layer_norm_eps", 1e-12) if eps is None else eps,
        tied=True,
        causal=False,
    )


def read_always(r: ConfigReader) -> None:
    """Keys that only classifiers read."""
    r.value("tie_word_embeddings", True)
    r.items("architectures", str)
    r.table("sentence_transformers")
    r.value("sbert_ce_default_activation_function", None)
    r.maybe_whole("num_labels")


def post_norm(heads: int, hidden: int, inner: int, act: Any, *, distances: int = 0) -> tuple[Attention, Mlp]:
    """A layer of BERT: each block's sum is normed, everything has biases."""
    dim = hidden // heads
    attention = Attention(
        heads, heads, dim, dim**-0.5, None, qkv_bias=True, o_bias=True, norm="none", after="layer", distances=distances
    )
    return attention, Mlp(inner, gated=False, activation=act, bias=True, norm="none", after="layer")


def bert_layer(r: ConfigReader, *, distances: int = 0) -> tuple[Attention, Mlp]:
    """As BERT's config names things."""
    heads, hidden = r.whole("num_attention_heads"), r.whole("hidden_size")
    if hidden % heads:
        raise r.fail("num_attention_heads", f"{heads} do not share {hidden} values evenly")
    act = activation(r, "hidden_act", "gelu")
    return post_norm(heads, hidden, r.whole("intermediate_size"), act, distances=distances)


def positions(r: ConfigReader, context: int | None, offset: int = 0) -> int:
    """The longest text; the first `offset` rows of the table are of padding."""
    longest = r.whole("max_position_embeddings") - offset
    if longest < 1 or (context is not None and not 1 <= context <= longest):
        raise r.fail("max_position_embeddings", f"gives {longest} positions; a context of {context} is out of range")
    return context or longest


def labels(r: ConfigReader) -> tuple[str, ...]:
    """The names of a classifier's logits."""
    named, count = r.table("id2label"), r.maybe_whole("num_labels")
    if not named:
        return tuple(f"LABEL_{i}" for i in range(count or 2))
    if count not in (None, len(named)) or set(named) != {str(i) for i in range(len(named))}:
        raise r.fail("id2label", f"must name labels 0 to {(count or len(named)) - 1}")
    return tuple(str(named[str(i)]) for i in range(len(named)))


def score(r: ConfigReader, pool: Any, *dense: Dense, bias: bool = True) -> Output:
    """The head of a classifier or a reranker: `dense`, and a layer of logits."""
    names = labels(r)
    layers = (*dense, Dense(len(names), bias))
    return Output("score", pool, layers, labels=names, squash=_squash(r, len(names)))


def _squash(r: ConfigReader, count: int) -> Squash:
    """sentence-transformers' own word for it, else what the problem and the number of labels say."""
    told = r.table("sentence_transformers").get("activation_fn") or r.value(
        "sbert_ce_default_activation_function", None
    )
    if told is not None:
        if told not in _SQUASH:
            raise r.fail("activation_fn", f"{told!r} is not one of {', '.join(_SQUASH)}")
        return _SQUASH[told]
    match r.value("problem_type", None):
        case "regression":
            return "none"
        case "multi_label_classification":
            return "sigmoid"
        case _:
            return "sigmoid" if count == 1 else "softmax"


def last_token_score(r: ConfigReader, name: str) -> Output | None:
    """The head of a decoder that was saved by the class `name` to score texts; None for one that generates them."""
    return score(r, "last", bias=False) if is_score(r, name) else None


def is_score(r: ConfigReader, name: str) -> bool:
    """Whether the checkpoint was saved by the class `name`, which scores texts."""
    return name in (r.items("architectures", str) or ())


def zeros(name: str) -> Part:
    """As many zeros as a vector has values: the bias of a LayerNorm without one."""
    return Part(name, times=0.0)


def many_zeros(name: str, length: int, count: int) -> tuple[Part, ...]:
    """`count` zeros, of a vector `name` of `length` values: the bias of a matrix without one, in a block with
    biases."""
    return tuple(Part(name, (0, min(length, count - at)), times=0.0) for at in range(0, count, length))


def entry(r: ConfigReader, context: int, *, types: int, width: int = 0) -> EncoderEntry:
    return EncoderEntry(context, types, "layer", width)


def embeddings(context: int, offset: int = 0, prefix: str = "embeddings.") -> dict[str, Source]:
    """Where BERT's tables are."""
    return {
        "embed": (Part(f"{prefix}word_embeddings.weight"),),
        "positions": (Part(f"{prefix}position_embeddings.weight", (offset, offset + context)),),
        "types": (Part(f"{prefix}token_type_embeddings.weight"),),
        "entry_norm": (Part(f"{prefix}LayerNorm.weight"),),
        "entry_norm_bias": (Part(f"{prefix}LayerNorm.bias"),),
    }


def pair(name: str, bias: bool = True) -> dict[str, tuple[str, ...]]:
    """A LayerNorm's tensors, without its own name in front."""
    return {"": (f"{name}.weight",), "_bias": (f"{name}.bias",)} if bias else {"": (f"{name}.weight",)}


def heads_of(*names: str) -> dict[str, Source]:
    """Where the layers of an output are, in order."""
    found: dict[str, Source] = {}
    for i, name in enumerate(names):
        found |= {f"dense.{i}": (Part(f"{name}.weight"),), f"dense.{i}_bias": (Part(f"{name}.bias"),)}
    return found


def placed(
    spec: ModelSpec,
    inner: str,
    attention: Places,
    mlp: Places,
    outer: Mapping[str, Source],
    experts: Places | None = None,
) -> dict[str, Source]:
    """Every tensor of `spec`: those of blocks within `inner` + the layer's number, the others by `outer`."""
    found = {name: source for name, source in outer.items() if name in spec.tensors()}
    by_kind = {"attention": attention, "mlp": mlp, "moe": experts or {}}
    for b, block in enumerate(spec.blocks):
        where, places = f"{inner}{spec.layer_of(b)}.", by_kind[block.kind]
        for tensor in block.tensors(spec.hidden_size):
            parts = (Part(path) if isinstance(path, str) else path for path in places[tensor])
            found[f"blocks.{b}.{tensor}"] = tuple(_within(where, part) for part in parts)
    return found


def _within(where: str, part: Part) -> Part:
    """The part in a layer; a name with a slash in front is of no layer."""
    return part.renamed(lambda name: name[1:] if name.startswith("/") else where + name)


BERT_ATTENTION: Places = {
    **{
        f"qkv{end}": tuple(f"attention.self.{part}.{kind}" for part in ("query", "key", "value"))
        for end, kind in (("", "weight"), ("_bias", "bias"))
    },
    "o": ("attention.output.dense.weight",),
    "o_bias": ("attention.output.dense.bias",),
    "after_norm": ("attention.output.LayerNorm.weight",),
    "after_norm_bias": ("attention.output.LayerNorm.bias",),
}
BERT_MLP: Places = {
    "up": ("intermediate.dense.weight",),
    "up_bias": ("intermediate.dense.bias",),
    "down": ("output.dense.weight",),
    "down_bias": ("output.dense.bias",),
    "after_norm": ("output.LayerNorm.weight",),
    "after_norm_bias": ("output.LayerNorm.bias",),
}
