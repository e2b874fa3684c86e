"""GPT-J: attention and feed-forward side by side after one LayerNorm, a rope that turns neighbours in a part of each
head, a head with a bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import ConfigReader, activation, finish, heads, sizes
from edgedec.models._dense import in_pairs, layer_norm, plain
from edgedec.models._names import Names, Paths, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.gpt2 import FIXED, OUTER, UNUSED, WORDS, inner_size
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts((r".*\.attn\.(masked_bias|bias|causal_mask)", r".*embed_positions", r"lm_head\.weight"))
MORE = (*UNUSED, "rotary")
MLP: Paths = {
    **layer_norm("norm", "ln_1"),
    **{"up": ("mlp.fc_in.weight",), "up_bias": ("mlp.fc_in.bias",)},
    **{"down": ("mlp.fc_out.weight",), "down_bias": ("mlp.fc_out.bias",)},
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(plain(config, WORDS, FIXED, MORE))
    table, common = rope_table(r), heads(r)
    length, turned = context_length(r, table, context), r.maybe_whole("rotary_dim", 64) or common["head_dim"]
    attention = Attention(**common, norm="layer", branch=True)
    act = activation(r, default="gelu_new")
    mlp = Mlp(inner_size(r), gated=False, activation=act, bias=True, norm="layer")
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5, eps_key="layer_norm_epsilon"),
        context_length=length,
        layers=((attention, mlp),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, turned, length),),
        final_norm="layer",
        head_bias=True,
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    attention: Paths = {
        **layer_norm("norm", "ln_1"),
        **{"qkv": tuple(f"attn.{x}_proj.weight" for x in "qkv"), "o": ("attn.out_proj.weight",)},
    }
    dim, turned = next(iter(spec.attention.values())).head_dim, 2 * len(spec.ropes[0].inv_freq)
    names: Names = {"attention": in_pairs(attention, dim, turned), "mlp": MLP}
    return named(spec, names, outer=OUTER, layers="transformer.h.")
