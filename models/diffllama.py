"""DiffLlama: Llama with differential attention, whose pairs are heads of the two halves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._names import LLAMA, Names, named
from edgedec.models._pairs import lambdas, paired, unlearned
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
_PAIRS: Names = {**LLAMA, "attention": LLAMA["attention"] | {"lambdas": lambdas("self_attn."), "pair_norm": ()}}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    r.value("lambda_std_dev", None)  # of the first values
    table, common = rope_table(r), sizes(r, tied=False, eps=1e-5)
    length, single = context_length(r, table, context), heads(r)
    bias = r.flag("attention_bias", False)
    attention = Attention(**paired(r, single), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple((replace(attention, differential=unlearned(i)), mlp) for i in range(r.whole("num_hidden_layers"))),
        ropes=(rope(r, table, single["head_dim"], length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    found = named(spec, _PAIRS)
    for b, block in spec.attention.items():
        like = found[f"blocks.{b}.o"][0].name
        ones = Part(like, (0, block.head_dim), times=1 - block.differential, ones=True)
        found[f"blocks.{b}.pair_norm"] = (ones,)
        for name in ("qkv", "qkv_bias")[: 1 + block.qkv_bias]:
            q, k, v = found[f"blocks.{b}.{name}"]
            counts = (block.n_heads, 2 * block.n_kv_heads, 2 * block.n_kv_heads)
            found[f"blocks.{b}.{name}"] = tuple(
                part for all_heads, n in zip((q, k, v), counts, strict=True) for part in _pairs(all_heads, n, block)
            )
    return found


def _pairs(part: Part, n: int, block: Attention) -> list[Part]:
    """Rows of n heads with those of pairs beside each other: head i, then head n / 2 + i."""
    half = block.head_dim // 2
    order = [i + at for i in range(n // 2) for at in (0, n // 2)]
    return [replace(part, rows=(i * half, (i + 1) * half)) for i in order]
