"""MiniCPM: Llama with multipliers of the embedding, of what a block adds and of the last state; and BlockFFN, by whose
authors it has latent attention and, for an MLP, ungated experts of which a ReLU chooses any number.

The multipliers are where MiniCPM3 has them. The experts are stored as matrices of three axes, or side by side in one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, require_supported, sizes
from edgedec.models._latent import latent_heads, latent_names
from edgedec.models._names import ATTENTION, MLP, Names, Paths, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.minicpm3 import multipliers
from edgedec.spec import Attention, Block, LatentAttention, Mlp, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
ATTENTIONS, FFNS = ("vanilla", "mla"), ("vanilla", "block", "block_linear")
STORED = ("torch", "kernel", "fastmoe")
# Of experts: what routes, and what configs say of other kinds of layers.
_ROUTER = {"router_act": ("relu", "relu"), "norm_after_router": ("rms", "sum")}
_OTHERS = ("moe_routing_strategy", "moe_top_k", "moe_top_p", "num_shared_experts", "ffn_gated", "norm_scale")
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({"model_type": "minicpm", **config})
    table = rope_table(r)
    length = context_length(r, table, context)
    _multipliers(r)  # `weights` needs them
    attention = _attention(r, table)
    turned = attention.rope_dim if isinstance(attention, LatentAttention) else attention.head_dim
    found = ModelSpec(
        **sizes(r, tied=True),
        context_length=length,
        layers=((attention, _ffn(r)),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, turned, length),),
        embed_scale=r.number("scale_emb", 1.0),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    latent = {"latent": latent_names(spec, pairs=False)} if "latent" in spec.kinds else {}
    names: Names = {"attention": ATTENTION, "mlp": MLP, "moe": _expert_names(spec, config), **latent}
    return named(spec, names, times=_multipliers(ConfigReader(config)))


def _multipliers(r: ConfigReader) -> dict[str, float]:
    return multipliers(r, depth=1.0, base=1)


def _choice(r: ConfigReader, key: str, known: tuple[str, ...]) -> str:
    found = r.text(key, known[0])
    if found not in known:
        raise r.fail(key, f"{found!r} is not supported; known: {', '.join(known)}")
    return found


def _attention(r: ConfigReader, table: ConfigReader) -> Attention:
    if _choice(r, "attention_type", ATTENTIONS) == "mla":
        value = r.whole("hidden_size") // r.whole("num_attention_heads")  # whatever v_head_dim says
        return latent_heads(r, table, q_rank=768, sizes=(256, 64, 32, value))
    for key in _LATENT:
        r.value(key, None)
    bias = r.flag("attention_bias", False)
    return Attention(**heads(r), qkv_bias=bias, o_bias=bias)


def _ffn(r: ConfigReader) -> Block:
    for key in _OTHERS:
        r.value(key, None)
    if _choice(r, "ffn_type", FFNS) == "vanilla":
        for key in (*_ROUTER, "expert_size", "num_experts", "block_implementation"):
            r.value(key, None)
        return Mlp(r.whole("intermediate_size"), activation=activation(r))
    r.value("intermediate_size", None)
    _choice(r, "block_implementation", STORED)  # `weights` needs it
    require_supported(r, _ROUTER)
    n = r.whole("num_experts", 40)
    size = r.whole("expert_size", 128)
    return Moe(n, n, size, "relu", normalize=False, gated=False, activation=activation(r))


def _expert_names(spec: ModelSpec, config: Mapping[str, Any]) -> Paths:
    """Where the tensors of experts are, as the implementation that the config names stores them."""
    found: Paths = {
        "norm": ("post_attention_layernorm.weight",),
        "router": ("mlp.router_proj.weight",),
        "score_norm": ("mlp.router_norm.weight",),
        "up": (Part("mlp.up_proj", flat=True),),
        "down": (Part("mlp.down_proj", flat=True),),
    }
    blocks = [block for block in spec.blocks if isinstance(block, Moe)]
    if blocks and config.get("ffn_type") == "block_linear":
        found["down"] = (Part("mlp.down_proj", beside=blocks[0].n_experts),)
    if config.get("block_implementation") == "fastmoe":
        names = ("mlp.experts.up_proj.weight", "mlp.experts.down_proj.weight")
        found |= {key: (Part(name, flat=True),) for key, name in zip(("up", "down"), names, strict=True)}
    return found
