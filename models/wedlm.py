"""WeDLM (arXiv:2512.22737): Qwen3, or Qwen2 without `qk_norm`, with causal attention over reordered rows. Unshifted.

Rests on the authors' code: known tokens come first, masks after them, each at its own position. A window of 16 masks is
their decoding's default; training used blocks of 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Fills, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._diffusion import base_config
from edgedec.models._names import named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.qwen2 import qwen_windows
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(
    IGNORED, Fills(shift=False, context="causal", block=16, block_key="wedlm_window_size", mask=151665)
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(base_config(config, "wedlm_window_size"))
    table = rope_table(r)
    length = context_length(r, table, context)
    attention = Attention(
        **heads(r, kv_heads=32),
        qk_norm="head" if r.flag("qk_norm", False) else "none",
        qkv_bias=r.flag("attention_bias", True),
    )
    mlp = Mlp(r.whole("intermediate_size"), activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=False),
        context_length=length,
        layers=((attention, mlp),) * len(qwen_windows(r, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
