"""gpt-oss: in every head's softmax a score of no token, windows on every other layer, and experts with biases whose
activation is cut off.

The gate and the up of an expert are side by side in the checkpoint, and its matrices are stored turned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, either, finish, heads, sizes, sliding, windows
from edgedec.models._names import ATTENTION, EXPERTS, Names, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, ModelSpec, Moe
from edgedec.spec.moe import ALPHA, LIMIT

FACTS = ArchitectureFacts(IGNORED)
# What transformers assumes where a config says nothing of its rope.
USUAL_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def experts(r: ConfigReader) -> Moe:
    """The block of experts; their activation has fixed limits."""
    for key, wanted in (("swiglu_alpha", ALPHA), ("swiglu_limit", LIMIT)):
        if r.number(key, wanted) != wanted:
            raise r.fail(key, f"is {r.values[key]!r}; supported is {wanted} only")
    if r.text("hidden_act", "silu") != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported; known: silu")
    return Moe(
        n_experts=r.whole(either(r, "num_local_experts", "num_experts")),
        top_k=r.whole(either(r, "num_experts_per_tok", "experts_per_token")),
        inner_size=r.whole("intermediate_size"),
        router="softmax_topk",
        normalize=False,
        bias=True,
        logit_bias=True,
        clamped=True,
    )


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    said = config.get("rope_parameters") or config.get("rope_scaling")
    r = ConfigReader(dict(config) if said else {**config, "rope_scaling": USUAL_ROPE})
    r.value("initial_context_length", None)  # the rope's original length, once more
    table = rope_table(r, 150000.0)
    length = context_length(r, table, context)
    slides = sliding(r, [i % 2 == 0 for i in range(r.whole("num_hidden_layers"))])
    spans = windows(r, slides, r.maybe_whole("sliding_window", 128), length)
    bias = r.flag("attention_bias", True)
    attention = Attention(**heads(r, kv_heads=8, head_dim=64), qkv_bias=bias, o_bias=bias, sink_logit=True)
    moe = experts(r)
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((replace(attention, window=w), moe) for w in spans),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def _names(spec: ModelSpec) -> Names:
    moe, hidden = next(block for block in spec.blocks if isinstance(block, Moe)), spec.hidden_size
    inner, both = moe.inner_size, 2 * moe.inner_size
    up = Part("mlp.experts.gate_up_proj", flat=True, transposed=True, halves=(both, 0, both))
    down = Part("mlp.experts.down_proj", flat=True, transposed=True)
    each = range(moe.n_experts)
    return {
        "attention": ATTENTION | {"sink_logit": ("self_attn.sinks",)},
        "moe": {
            "norm": EXPERTS["norm"],
            "router": ("mlp.router.weight",),
            "router_logit_bias": ("mlp.router.bias",),
            "gate_up": tuple(replace(up, rows=(e * hidden, (e + 1) * hidden)) for e in each),
            "gate_up_bias": (Part("mlp.experts.gate_up_proj_bias", vector=True, halves=(both, 0, both)),),
            "down": tuple(replace(down, rows=(e * inner, (e + 1) * inner)) for e in each),
            "down_bias": (Part("mlp.experts.down_proj_bias", vector=True),),
        },
    }


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, _names(spec))
