"""Ministral 3: Mistral with YaRN. Its queries grow with positions beyond the original length; contexts end there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes, windows
from edgedec.models._names import named
from edgedec.models._rope import rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec

FACTS = ArchitectureFacts(IGNORED)
OWN = ("llama_4_scaling_beta", "max_position_embeddings")
USUAL: dict[str, Any] = {
    **{"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
}


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    given = config.get("rope_parameters") or config.get("rope_scaling") or USUAL
    kept = {key: value for key, value in given.items() if key not in OWN} if isinstance(given, dict) else given
    r = ConfigReader({**config, "rope_scaling": None, "rope_parameters": kept})
    table, n = rope_table(r), r.whole("num_hidden_layers")
    length = _length(r, table.whole("original_max_position_embeddings"), context)
    window = r.maybe_whole("sliding_window")
    attention, mlp = (
        Attention(**heads(r, kv_heads=8, head_dim=128)),
        Mlp(r.whole("intermediate_size"), activation=activation(r)),
    )
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=tuple((replace(attention, window=w), mlp) for w in windows(r, [window is not None] * n, window, length)),
        ropes=(rope(r, table, attention.head_dim, length),),
    )
    return finish(r, found)


def _length(r: ConfigReader, original: int, asked: int | None) -> int:
    """The context: at most the length up to which queries do not grow."""
    longest = min(original, r.whole("max_position_embeddings"))
    if asked is not None and not 1 <= asked <= longest:
        raise r.fail("original_max_position_embeddings", f"is {longest}; a context of {asked} is out of range here")
    return asked or longest


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec)
