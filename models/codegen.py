"""CodeGen: GPT-J whose q, v and k are fused in four parts, each for a quarter of the heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._dense import layer_norm
from edgedec.models._names import Names, named
from edgedec.models.gpt2 import OUTER
from edgedec.models.gptj import FACTS as GPTJ
from edgedec.models.gptj import MLP
from edgedec.models.gptj import spec as gptj
from edgedec.spec import ModelSpec

FACTS = ArchitectureFacts(GPTJ.ignored)
PARTS = 4


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    return gptj(config, context)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    block = next(iter(spec.attention.values()))
    share, pairs = block.q_dim // PARTS, (block.head_dim, 0, 2 * len(spec.ropes[0].inv_freq))

    def rows(place: int, order: tuple[int, int, int] | None) -> tuple[Part, ...]:
        starts = (part * 3 * share + place * share for part in range(PARTS))
        return tuple(Part("attn.qkv_proj.weight", (at, at + share), halves=order) for at in starts)

    qkv = (*rows(0, pairs), *rows(2, pairs), *rows(1, None))
    attention = layer_norm("norm", "ln_1") | {"qkv": qkv, "o": ("attn.out_proj.weight",)}
    names: Names = {"attention": attention, "mlp": MLP}
    return named(spec, names, outer=OUTER, layers="transformer.h.")
