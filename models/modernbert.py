"""ModernBERT: norms before blocks, a gated feed-forward, rotary positions; two of three layers see near tokens only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, activation, finish, sliding
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Dense, EncoderEntry, Mlp, ModelSpec, Output
from edgedec.spec.encoder import squash_of

FACTS = ArchitectureFacts((r"head\..*", r"decoder\..*", r"classifier\..*"), prefixes=("model.",), encodes=True)
SCORES = "ModernBertForSequenceClassification"
UNUSED = (
    *("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "decoder_bias", "reference_compile"),
    *("repad_logits_with_grad", "initializer_cutoff_factor", "position_embedding_type", "layer_norm_eps"),
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    e.read_always(r)
    for unused in UNUSED:
        r.value(unused, None)
    full = rope_table(r, r.number("global_rope_theta", 160_000.0), "full_attention")
    local = rope_table(r, r.number("local_rope_theta", 10_000.0), "sliding_attention", legacy=False)
    length, heads, hidden = context_length(r, full, context), r.whole("num_attention_heads"), r.whole("hidden_size")
    if hidden % heads:
        raise r.fail("num_attention_heads", f"{heads} do not share {hidden} values evenly")
    dim, layers, every = hidden // heads, r.whole("num_hidden_layers"), r.whole("global_attn_every_n_layers", 3)
    near = sliding(r, [bool(i % every) for i in range(layers)])
    bias, window = r.flag("attention_bias", False), r.whole("local_attention", 128) // 2 + 1
    attention = Attention(heads, heads, dim, dim**-0.5, qkv_bias=bias, o_bias=bias, norm="layer")
    act = activation(r, "hidden_activation", "gelu")
    mlp = Mlp(r.whole("intermediate_size"), activation=act, bias=r.flag("mlp_bias", False), norm="layer")
    kinds = [replace(attention, rope=int(on), window=window if on and window < length else None) for on in near]
    kinds[0] = replace(kinds[0], norm="none")
    found = ModelSpec(
        architecture=r.text("model_type"),
        vocab_size=r.whole("vocab_size"),
        hidden_size=hidden,
        context_length=length,
        layers=tuple((kind, mlp) for kind in kinds),
        norm_eps=r.number("norm_eps", 1e-5),
        tied=True,
        ropes=tuple(rope(r, table, dim, length) for table in (full, local)),
        final_norm="layer",
        causal=False,
        entry=EncoderEntry(norm="layer"),
        output=_output(r, hidden),
    )
    r.flag("norm_bias", False)
    return finish(r, found)


def _output(r: ConfigReader, hidden: int) -> Output:
    pool, act = r.text("classifier_pooling", "cls"), activation(r, "classifier_activation", "gelu")
    bias = r.flag("classifier_bias", False)
    if pool not in ("cls", "mean"):
        raise r.fail("classifier_pooling", f"{pool!r} is not cls or mean")
    return e.score(r, pool, Dense(hidden, bias, squash_of(act), "layer")) if e.is_score(r, SCORES) else Output()


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    biased = bool(config.get("norm_bias", False))

    def norm(tensor: str, name: str) -> dict[str, tuple[str | Part, ...]]:
        return {
            tensor: (f"{name}.weight",),
            f"{tensor}_bias": ((f"{name}.bias",) if biased else (e.zeros(f"{name}.weight"),)),
        }

    attention: e.Places = {
        **{"qkv": ("attn.Wqkv.weight",), "qkv_bias": ("attn.Wqkv.bias",)},
        **{"o": ("attn.Wo.weight",), "o_bias": ("attn.Wo.bias",)},
        **norm("norm", "attn_norm"),
    }
    mlp: e.Places = {
        **{"gate_up": ("mlp.Wi.weight",), "gate_up_bias": ("mlp.Wi.bias",)},
        **{"down": ("mlp.Wo.weight",), "down_bias": ("mlp.Wo.bias",)},
        **norm("norm", "mlp_norm"),
    }
    outer: dict[str, Source] = {"embed": (Part("embeddings.tok_embeddings.weight"),)}
    outer |= e.heads_of("head.dense", "classifier")
    for tensor, name in (
        ("entry_norm", "embeddings.norm"),
        ("final_norm", "final_norm"),
        ("dense.0_norm", "head.norm"),
    ):
        outer |= {
            key: tuple(Part(p) if isinstance(p, str) else p for p in parts) for key, parts in norm(tensor, name).items()
        }
    return e.placed(spec, "layers.", attention, mlp, outer)
