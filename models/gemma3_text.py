"""Gemma 3, text only: Gemma 2 with q/k norms for the attention cap, and another rope for windowed layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import Source
from edgedec.models._common import IGNORED, Reader, activation, finish, named, sizes, sliding, windows
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.gemma2 import GEMMA, embed_scale, refuse_bidirectional
from edgedec.spec import Layer, ModelSpec

ignored = IGNORED
# Published multimodal configs leave these out of text_config wherever they are the usual ones.
USUAL = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "max_position_embeddings": 131072,
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = Reader({**USUAL, **config})
    refuse_bidirectional(r)
    r.value("hidden_act", None)  # a leftover: the activation is hidden_activation
    if r.value("attn_logit_softcapping", None) is not None:
        raise r.fail("attn_logit_softcapping", "is set, but transformers ignores it: no telling what is meant")
    common, full = sizes(r, tied=True, kv_heads=4, head_dim=256), rope_table(r, 1e6, "full_attention")
    local = rope_table(r, r.number("rope_local_base_freq", 1e4), "sliding_attention", legacy=False)
    length = context_length(r, full, context)
    bias, every = r.flag("attention_bias", False), r.whole("sliding_window_pattern", 6)
    slides = sliding(r, [(i + 1) % every != 0 for i in range(r.whole("num_hidden_layers"))])
    spans = windows(r, slides, r.maybe_whole("sliding_window", 4096), length)
    common["attn_scale"] = r.number("query_pre_attn_scalar", 256) ** -0.5
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple(Layer(rope=int(on), window=w) for on, w in zip(slides, spans, strict=True)),
        ropes=tuple(rope(r, table, common["head_dim"], length) for table in (full, local)),
        norm_after=True,
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
        activation=activation(r, "hidden_activation", "gelu_pytorch_tanh"),
        final_softcap=r.maybe_number("final_logit_softcapping") or 0.0,
        embed_scale=embed_scale(common["hidden_size"]),
    )
    return finish(r, found)


def weights(spec: ModelSpec) -> dict[str, Source]:
    return named(spec, GEMMA, norm_add=1.0)
