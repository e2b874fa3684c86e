"""GraniteMoE: the softmax of a row's experts is over the chosen ones, and there are multipliers in many places.

Those of the embedding and of attention are in the spec. Those of the residual and of the logits are in the weights: the
last matrix of each block, and the final norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, Heads, activation, finish, heads, sizes
from edgedec.models._names import ATTENTION, EXPERTS, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, ModelSpec, Moe

FACTS = ArchitectureFacts(IGNORED)
GRANITE: Names = {
    "attention": ATTENTION,
    "moe": EXPERTS
    | {
        "router": ("block_sparse_moe.router.layer.weight",),
        "gate_up": (Part("block_sparse_moe.input_linear.weight", flat=True),),
        "down": (Part("block_sparse_moe.output_linear.weight", flat=True),),
    },
}
LAST = ("o", "o_bias", "down", "down_bias", "shared_down", "out_proj", "out_proj_bias")


def granite_heads(r: ConfigReader) -> Heads:
    """The common fields of the attention, its scale given by `attention_multiplier`."""
    common = heads(r)
    common["scale"] = r.number("attention_multiplier", 1.0)
    return common


def multipliers(r: ConfigReader) -> dict[str, float]:
    """Factors of tensors: what a block adds times `residual_multiplier`, logits over `logits_scaling`."""
    residual = dict.fromkeys(LAST, r.number("residual_multiplier", 1.0))
    return residual | {"final_norm": 1 / r.number("logits_scaling", 1.0)}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    multipliers(r)  # `weights` needs them
    bias = r.flag("attention_bias", False)
    attention = Attention(**granite_heads(r), qkv_bias=bias, o_bias=bias)
    moe = Moe(
        n_experts=r.whole("num_local_experts"),
        top_k=r.whole("num_experts_per_tok"),
        inner_size=r.whole("intermediate_size"),
        router="softmax_topk",
        normalize=False,
        activation=activation(r),
    )
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=((attention, moe),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, attention.head_dim, length),),
        embed_scale=r.number("embedding_multiplier", 1.0),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, GRANITE, times=multipliers(ConfigReader(config)))
