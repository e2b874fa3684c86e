"""Gemma 3, text only: Gemma 2 with q/k norms for the attention cap, and another rope for windowed layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, finish, sizes, sliding, windows
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.gemma2 import GEMMA, embed_scale, gemma_heads, gemma_mlp
from edgedec.spec import Attention, ModelSpec, Output

FACTS = ArchitectureFacts(IGNORED)
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
    r = ConfigReader({**USUAL, **config})
    encodes = r.value("use_bidirectional_attention", None) is True
    r.value("hidden_act", None)  # a leftover: the activation is hidden_activation
    if r.value("attn_logit_softcapping", None) is not None:
        raise r.fail("attn_logit_softcapping", "is set, but transformers ignores it: what is meant is not clear")
    full = rope_table(r, 1e6, "full_attention")
    local = rope_table(r, r.number("rope_local_base_freq", 1e4), "sliding_attention", legacy=False)
    length = context_length(r, full, context)
    bias, every = r.flag("attention_bias", False), r.whole("sliding_window_pattern", 6)
    slides = sliding(r, [(i + 1) % every != 0 for i in range(r.whole("num_hidden_layers"))])
    spans = windows(r, slides, _window(r, encodes), length)
    attention = Attention(**gemma_heads(r), qk_norm="head", qkv_bias=bias, o_bias=bias, post_norm="rms")
    mlp, common = gemma_mlp(r), sizes(r, tied=True)
    kinds = [replace(attention, rope=int(on), window=w) for on, w in zip(slides, spans, strict=True)]
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple((kind, mlp) for kind in kinds),
        ropes=tuple(rope(r, table, attention.head_dim, length) for table in (full, local)),
        final_softcap=r.maybe_number("final_logit_softcapping") or 0.0,
        embed_scale=embed_scale(common["hidden_size"]),
        causal=not encodes,
        output=Output() if encodes else None,
    )
    return finish(r, found)


def _window(r: ConfigReader, encodes: bool) -> int | None:
    """Tokens that a row sees with itself; in an encoder (EmbeddingGemma) to each side."""
    window = r.maybe_whole("sliding_window", 4096)
    return window // 2 + 1 if encodes and window is not None else window


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, GEMMA, norm_add=1.0)
