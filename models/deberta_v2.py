"""DeBERTa-v2 and v3: BERT whose scores have parts of queries and keys by distance, often without positions in the rows.

After transformers' `modeling_deberta_v2.py` and arXiv:2006.03654, arXiv:2111.09543."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from edgedec.models import ArchitectureFacts, Part, Source, Through
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, activation, finish, require_supported
from edgedec.spec import Attention, Dense, EncoderEntry, ModelSpec, Output
from edgedec.spec.encoder import Squash, squash_of

# Tables of positions that no row reads, and heads of pretraining; those that a model does read are no longer ignored.
FACTS = ArchitectureFacts(
    (*e.IGNORED, r"(\w+\.)?embeddings\.position_embeddings\.weight", r"(lm_predictions|mask_predictions)\..*"),
    prefixes=("deberta.",),
    encodes=True,
)
SCORES = "DebertaV2ForSequenceClassification"
TABLE = "encoder.rel_embeddings.weight"
NORM = ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")
# The matrix that a table goes through, where it is that of keys or queries too (`share_att_key`), and where it is not.
SHARED = {"relative_k": "key_proj", "relative_q": "query_proj"}
OWN = {"relative_k": "pos_key_proj", "relative_q": "pos_query_proj"}
ATTENTION: e.Places = {
    **e.BERT_ATTENTION,
    **{
        f"qkv{end}": tuple(f"attention.self.{part}_proj.{kind}" for part in ("query", "key", "value"))
        for end, kind in (("", "weight"), ("_bias", "bias"))
    },
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    r.value("legacy", None)  # of the head over the vocabulary
    require_supported(r, {"relative_attention": (True, False)})
    hidden, length = r.whole("hidden_size"), e.positions(r, context)
    _norm(r)
    r.flag("share_att_key", False)
    r.whole("embedding_size", hidden)
    attention, mlp = e.bert_layer(r)
    if r.whole("attention_head_size", attention.head_dim) != attention.head_dim:
        raise r.fail("attention_head_size", f"must be {attention.head_dim}, hidden_size over num_attention_heads")
    positions = length if r.flag("position_biased_input", True) else 0
    first = _pooler(r, hidden)
    found = ModelSpec(
        **e.bert_sizes(r, eps=_eps(r)),
        context_length=length,
        layers=((_relative(r, attention), mlp),) * r.whole("num_hidden_layers"),
        final_norm="none",
        entry=_convolved(r, e.entry(r, positions, types=r.whole("type_vocab_size", 0, least=0))),
        output=e.score(r, "cls", first) if e.is_score(r, SCORES) else Output(),
    )
    return finish(r, found)


def _convolved(r: ConfigReader, entry: EncoderEntry) -> EncoderEntry:
    """The entry with the convolution that stands beside the first layer, if there is one."""
    size = r.maybe_whole("conv_kernel_size", 0, least=0) or 0
    groups, act = r.whole("conv_groups", 1), _squash(r, "conv_act", "tanh")
    if not size:
        return entry
    if size % 2 == 0 or r.whole("hidden_size") % groups:
        raise r.fail("conv_kernel_size", f"must be odd, found {size}, and conv_groups must divide hidden_size")
    return replace(entry, conv=size, conv_groups=groups, conv_activation=act)


def _squash(r: ConfigReader, key: str, usual: str) -> Squash:
    return "tanh" if r.text(key, usual) == "tanh" else squash_of(activation(r, key, usual))


def _eps(r: ConfigReader) -> float:
    return r.number("layer_norm_eps", 1e-7)


def _norm(r: ConfigReader) -> bool:
    """Whether the rows of distances are normed."""
    names = {name.strip() for name in r.text("norm_rel_ebd", "none").lower().split("|")}
    if not names <= {"none", "layer_norm"}:
        raise r.fail("norm_rel_ebd", f"{r.values['norm_rel_ebd']!r:.40} is not supported; known: 'layer_norm', 'none'")
    return "layer_norm" in names


def _relative(r: ConfigReader, attention: Attention) -> Attention:
    """The block with its scores by distance, whose parts have one scale."""
    scores = _scores(r)
    far = r.maybe_whole("max_relative_positions", -1, least=-1) or -1
    far = r.whole("max_position_embeddings") if far < 1 else far
    buckets = r.maybe_whole("position_buckets", -1, least=-1) or -1
    parts = 3 if scores == "both" else 2
    return replace(
        attention,
        scale=(attention.head_dim * parts) ** -0.5,
        relative=buckets if buckets > 0 else far,
        relative_far=far if buckets > 0 else 0,
        relative_scores=scores,
    )


def _scores(r: ConfigReader) -> Literal["c2p", "p2c", "both"]:
    told = r.value("pos_att_type", None) or []
    names = {name.strip() for name in told.lower().split("|")} if isinstance(told, str) else set(map(str, told))
    match sorted(names):
        case ["c2p", "p2c"]:
            return "both"
        case ["c2p"]:
            return "c2p"
        case ["p2c"]:
            return "p2c"
    raise r.fail("pos_att_type", f"{told!r:.40} is not supported; known: c2p, p2c and both")


def _pooler(r: ConfigReader, hidden: int) -> Dense:
    """The layer that the first row goes through before the labels."""
    if r.whole("pooler_hidden_size", hidden) != hidden:
        raise r.fail("pooler_hidden_size", f"must be hidden_size, {hidden}")
    return Dense(hidden, True, _squash(r, "pooler_hidden_act", "gelu"))


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    r = ConfigReader(config)
    outer = e.embeddings(spec.context_length) | e.heads_of("pooler.dense", "classifier")
    outer |= {
        "conv": (Part("encoder.conv.conv.weight", flat=True),),
        "conv_bias": (Part("encoder.conv.conv.bias"),),
        "conv_norm": (Part("encoder.conv.LayerNorm.weight"),),
        "conv_norm_bias": (Part("encoder.conv.LayerNorm.bias"),),
    }
    if r.whole("embedding_size", spec.hidden_size) != spec.hidden_size:
        wider = Through("embeddings.embed_proj.weight", (0, spec.hidden_size), spec.hidden_size)
        for name in ("embed", "positions", "types"):
            outer[name] = tuple(replace(part, through=wider) for part in outer[name])
    tables = {name: _table(spec.attention[0], r, name) for name in SHARED}
    return e.placed(spec, "encoder.layer.", {**ATTENTION, **tables}, e.BERT_MLP, outer)


def _table(block: Attention, r: ConfigReader, name: str) -> tuple[Part, ...]:
    """The rows of distances as a layer's heads have them, head by head."""
    layer = f"attention.self.{(SHARED if r.flag('share_att_key', False) else OWN)[name]}"
    norm = ("/" + NORM[0], "/" + NORM[1]) if _norm(r) else None
    heads = [(h * block.head_dim, (h + 1) * block.head_dim) for h in range(block.n_heads)]
    through = [Through(f"{layer}.weight", rows, block.q_dim, f"{layer}.bias", norm, _eps(r)) for rows in heads]
    return tuple(Part(f"/{TABLE}", through=one) for one in through)
