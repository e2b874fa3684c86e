"""ModernBERT's decoders (Ettin, arXiv:2507.11412): causal attention, a layer before the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models import _encoders as e
from edgedec.models._common import ConfigReader, activation, finish, require_usual, sliding
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, EncoderEntry, HeadLayer, Mlp, ModelSpec

FACTS = ArchitectureFacts((r"decoder\.weight",))
UNUSED = ("classifier_pooling", "reference_compile", "position_embedding_type", "layer_norm_eps")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for unused in UNUSED:
        r.value(unused, None)
    full = rope_table(r, r.number("global_rope_theta", 160_000.0), "full_attention")
    local = rope_table(r, r.number("local_rope_theta", 10_000.0), "sliding_attention", legacy=False)
    length, hidden, n = context_length(r, full, context), r.whole("hidden_size"), r.whole("num_attention_heads")
    if hidden % n:
        raise r.fail("num_attention_heads", f"{n} do not share {hidden} values evenly")
    mlp = Mlp(
        r.whole("intermediate_size"),
        activation=activation(r, "hidden_activation", "gelu"),
        bias=r.flag("mlp_bias", False),
        norm="layer",
    )
    act = activation(r, "classifier_activation", "gelu")
    found = ModelSpec(
        architecture=r.text("model_type"),
        vocab_size=r.whole("vocab_size"),
        hidden_size=hidden,
        context_length=length,
        layers=tuple((attention, mlp) for attention in _attention(r, hidden // n, length)),
        norm_eps=r.number("norm_eps", 1e-5),
        tied=r.flag("tie_word_embeddings", True),
        ropes=tuple(rope(r, table, hidden // n, length) for table in (full, local)),
        final_norm="layer",
        entry=EncoderEntry(norm="layer"),
        head_bias=r.flag("decoder_bias", True),
        head_layer=HeadLayer(act, r.flag("classifier_bias", False)),
    )
    r.flag("norm_bias", False)
    return finish(r, found)


def _attention(r: ConfigReader, dim: int, length: int) -> list[Attention]:
    """Of each layer. The first reads the normed embedding as it is; a window is half of what the config names, this row
    included."""
    n, layers, every = r.whole("num_attention_heads"), r.whole("num_hidden_layers"), "global_attn_every_n_layers"
    slides = sliding(r, [bool(i % r.whole(every, 3)) for i in range(layers)])
    r.value(every, None)
    window = (r.maybe_whole("local_attention", 128, least=2) or 0) // 2
    if any(slides) and not window:
        raise r.fail("local_attention", "is null, though layers have a window")
    require_usual(r, {"sliding_window": window or -1})
    bias = r.flag("attention_bias", False)
    plain = Attention(n, n, dim, dim**-0.5, qkv_bias=bias, o_bias=bias, norm="layer")
    found = [replace(plain, rope=int(on), window=window if on and window < length else None) for on in slides]
    found[0] = replace(found[0], norm="none")
    return found


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    biased = bool(config.get("norm_bias", False))

    def norm(tensor: str, name: str) -> dict[str, tuple[Part, ...]]:
        bias = Part(f"{name}.bias") if biased else e.zeros(f"{name}.weight")
        return {tensor: (Part(f"{name}.weight"),), f"{tensor}_bias": (bias,)}

    attention: e.Places = {
        **{f"qkv{end}": tuple(f"attn.{part}_proj.{kind}" for part in "qkv") for end, kind in _KINDS},
        **{f"o{end}": (f"attn.Wo.{kind}",) for end, kind in _KINDS},
        **norm("norm", "attn_norm"),
    }
    mlp: e.Places = {
        **{f"gate_up{end}": (f"mlp.Wi.{kind}",) for end, kind in _KINDS},
        **{f"down{end}": (f"mlp.Wo.{kind}",) for end, kind in _KINDS},
        **norm("norm", "mlp_norm"),
    }
    outer: dict[str, Source] = {
        "embed": (Part("model.embeddings.tok_embeddings.weight"),),
        "head": (Part("decoder.weight"),),
        "head_bias": (Part("decoder.bias"),),
        "head_layer": (Part("lm_head.dense.weight"),),
        "head_layer_bias": (Part("lm_head.dense.bias"),),
        **norm("entry_norm", "model.embeddings.norm"),
        **norm("final_norm", "model.final_norm"),
        **norm("head_layer_norm", "lm_head.norm"),
    }
    return e.placed(spec, "model.layers.", attention, mlp, outer)


_KINDS = (("", "weight"), ("_bias", "bias"))
