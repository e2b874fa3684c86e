"""nanochat: norms without weights, after the embedding and on heads of q and k too, and a rope that turns backwards;
squared ReLUs; capped logits. Heads are normed after the rope there; without weights that is the same as before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, heads
from edgedec.models._dense import rotary
from edgedec.models._names import ATTENTION, OUTER, Names, named
from edgedec.spec import Attention, EncoderEntry, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r), qkv_bias=bias, o_bias=bias, qk_norm="head")
    mlp = Mlp(r.whole("intermediate_size"), gated=False, activation=activation(r, default="relu2"))
    cap, entry = r.maybe_number("final_logit_softcapping", 15.0) or 0.0, EncoderEntry(norm="rms")
    layer, dim = (attention, mlp), attention.head_dim
    found = rotary(r, context, layer, dim, tied=False, final_softcap=cap, entry=entry)
    backwards = tuple(replace(rope, inv_freq=tuple(-f for f in rope.inv_freq)) for rope in found.ropes)
    return replace(found, ropes=backwards)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    dim = next(iter(spec.attention.values())).head_dim
    names: Names = {
        "attention": ATTENTION
        | {
            "norm": (Part("self_attn.q_proj.weight", ones=True),),
            **{f"{x}_norm": (Part("self_attn.o_proj.weight", (0, dim), ones=True),) for x in "qk"},
        },
        "mlp": {
            "norm": (Part("mlp.fc1.weight", ones=True),),
            **{"up": ("mlp.fc1.weight",), "down": ("mlp.fc2.weight",)},
        },
    }
    found = named(spec, names, outer={key: OUTER[key] for key in ("embed", "head")})
    return found | {name: (Part(OUTER["embed"], ones=True),) for name in ("entry_norm", "final_norm")}
