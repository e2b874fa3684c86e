"""StableLM 2 and 3B: Llama with LayerNorms and a rope in a quarter of each head; the 12B norms heads and has its blocks
side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import LAYER_OUTER, layer_norm, rotary
from edgedec.models._names import ATTENTION, MLP, named
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    beside, normed = r.flag("use_parallel_residual", False), r.flag("qk_layernorm", False)
    attention = Attention(
        **heads(r),
        qkv_bias=r.flag("use_qkv_bias", False),
        norm="layer",
        qk_norm="heads" if normed else "none",
        qk_norm_kind="layer" if normed else "rms",
        branch=beside,
    )
    mlp, dim = Mlp(r.whole("intermediate_size"), activation=activation(r), norm="layer"), attention.head_dim
    facts: dict[str, Any] = {"eps": 1e-5, "eps_key": "layer_norm_eps", "share": 0.25, "final_norm": "layer"}
    return rotary(r, context, (attention, mlp), dim, tied=False, **facts)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block = next(iter(spec.attention.values()))
    second = "input_layernorm" if block.branch else "post_attention_layernorm"
    attention = ATTENTION | layer_norm("norm", "input_layernorm")
    for tensor, count in (("q", block.n_heads), ("k", block.n_kv_heads)):
        norms = [f"self_attn.{tensor}_layernorm.norms.{head}.weight" for head in range(count)]
        attention |= {f"{tensor}_norm": tuple(norms)}
        attention |= {f"{tensor}_norm_bias": tuple(Part(name, times=0.0) for name in norms)}
    return named(spec, {"attention": attention, "mlp": MLP | layer_norm("norm", second)}, outer=LAYER_OUTER)
