"""A config.json of transformers 5 in the words of transformers 4, which optimum reads checkpoints with.

transformers 4 knows no `rope_parameters`: it would take a rope's base from its default and its scaling from nowhere,
and say nothing. What it has no words for is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.errors import CheckpointError

Config = dict[str, Any]
_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
# Other names of the base and of the share of a head that is turned.
_BASE = {"gpt_neox": "rotary_emb_base"}
_SHARE = {"gpt_neox": "rotary_pct"}
# Names that one of them has otherwise.
_RENAMED = {"qwen3_moe": {"num_local_experts": "num_experts"}}
_LOCAL_BASE = ("gemma3", "gemma3_text")


def older(config: Mapping[str, Any], where: str) -> Config:
    """The config, and every config inside it, without `rope_parameters` and `dtype`."""
    found = dict(config)
    for key, value in config.items():
        if isinstance(value, dict) and "model_type" in value:
            found[key] = older(value, f"{where} {key}")
    if "dtype" in found:
        found.setdefault("torch_dtype", found.pop("dtype"))
    kind, table = str(found.get("model_type", "")), found.pop("rope_parameters", None)
    for new, old in _RENAMED.get(kind, {}).items():
        if new in found:
            found.setdefault(old, found.pop(new))
    if table is None:
        return found
    if not isinstance(table, dict):
        raise CheckpointError(f"{where}: rope_parameters: expected an object")
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    return found | (_by_layer(kind, tables, where) if tables else _flat(kind, table, where))


def _flat(kind: str, table: Mapping[str, Any], where: str) -> Config:
    """rope_theta, rope_scaling and partial_rotary_factor of one table."""
    rest = dict(table)
    rope_type = rest.pop("rope_type", rest.pop("type", "default"))
    if rope_type not in _KINDS:
        raise CheckpointError(f"{where}: rope_type {rope_type!r} is newer than what optimum reads: {', '.join(_KINDS)}")
    found: Config = {}
    if (base := rest.pop("rope_theta", None)) is not None:
        found[_BASE.get(kind, "rope_theta")] = base
    if (share := rest.pop("partial_rotary_factor", None)) is not None:
        found[_SHARE.get(kind, "partial_rotary_factor")] = share
    if rope_type != "default":
        found["rope_scaling"] = {"rope_type": rope_type, **rest}
    return found


def _by_layer(kind: str, tables: Mapping[str, Mapping[str, Any]], where: str) -> Config:
    """Of layers of both kinds, as Gemma 3 has them; the sliding ones are not scaled."""
    full, local = tables.get("full_attention"), tables.get("sliding_attention")
    scaled = local is not None and local.get("rope_type", "default") != "default"
    if kind not in _LOCAL_BASE or full is None or local is None or len(tables) > 2 or scaled:
        raise CheckpointError(f"{where}: rope_parameters by layer type ({', '.join(tables)}): optimum reads no such")
    return _flat(kind, full, where) | {"rope_local_base_freq": local.get("rope_theta", 10000.0)}
