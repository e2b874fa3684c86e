"""Falcon-H1: in every layer Mamba-2 and attention side by side, then a gated MLP; multipliers in many places.

That of the embedding is in the spec, the others are in the weights: those of inputs and outputs in the matrices, one
for each of z, x, B, C and dt in the rows of the first matrix of Mamba-2, that of the logits in the final norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, heads, sizes
from edgedec.models._mamba import MAMBA, mamba
from edgedec.models._names import ATTENTION, OUTER, Names, Paths, named
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.models.bamba import BAMBA
from edgedec.spec import Attention, Mlp, ModelSpec, Ssm

FACTS = ArchitectureFacts((*IGNORED, r".*mamba\.mup_vector"))


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    table = rope_table(r)
    length = context_length(r, table, context)
    for key in ("layers_block_type", "layer_types"):
        if set(r.items(key, str) or ["hybrid"]) != {"hybrid"}:
            raise r.fail(key, "is not supported; known: hybrid")
    _multipliers(r)  # `weights` needs them
    _lists(r)
    bias = r.flag("attention_bias", False)
    attention = Attention(**heads(r, kv_heads=8), qkv_bias=bias, o_bias=bias)
    mlp = Mlp(r.whole("intermediate_size"), bias=r.flag("mlp_bias", False), activation=activation(r))
    found = ModelSpec(
        **sizes(r, tied=False, eps=1e-5),
        context_length=length,
        layers=((_ssm(r), attention, mlp),) * r.whole("num_hidden_layers"),
        ropes=(rope(r, table, attention.head_dim, length),),
        embed_scale=r.number("embedding_multiplier", 1.0),
    )
    return finish(r, found)


def _ssm(r: ConfigReader) -> Ssm:
    """The norm of the gated channels is left out by default; where it is there, it comes after the gate."""
    inner = r.maybe_whole("mamba_d_ssm", 1024)
    found, normed = mamba(r, inner), r.flag("mamba_rms_norm", False)
    if r.flag("mamba_norm_before_gate", True) and normed:
        raise r.fail("mamba_norm_before_gate", "is true: a norm before the gate is not supported")
    if r.flag("projectors_bias", False) != found.proj_bias:
        raise r.fail("projectors_bias", "is not mamba_proj_bias: biases of one of two matrices are not supported")
    return replace(found, branch=True, norm_groups=found.n_groups if normed else 0)


def _multipliers(r: ConfigReader) -> dict[str, float]:
    names = (
        *("lm_head_multiplier", "key_multiplier", "attention_in_multiplier", "attention_out_multiplier"),
        *("ssm_in_multiplier", "ssm_out_multiplier"),
    )
    return {name: r.number(name, 1.0) for name in names}


def _lists(r: ConfigReader) -> tuple[list[float], list[float]]:
    """Those of z, x, B, C and dt, and those of an MLP's gate and output."""
    found = []
    for key, n in (("ssm_multipliers", 5), ("mlp_multipliers", 2)):
        values = r.items(key, float)
        if values is not None and (len(values) != n or min(values) <= 0):
            raise r.fail(key, f"must be {n} positive numbers, found {values!r:.60}")
        found.append([float(value) for value in values or [1.0] * n])
    return found[0], found[1]


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    r = ConfigReader(config)
    one, (rows, (gate, down)) = _multipliers(r), _lists(r)
    names = _names(next(b for b in spec.blocks if isinstance(b, Ssm)), one, rows, gate)
    times = {
        **dict.fromkeys(("o", "o_bias"), one["attention_out_multiplier"]),
        **dict.fromkeys(("out_proj", "out_proj_bias"), one["ssm_out_multiplier"]),
        **dict.fromkeys(("down", "down_bias"), down),
        "final_norm": one["lm_head_multiplier"],
    }
    return named(spec, names, outer=OUTER | {"final_norm": "model.final_layernorm.weight"}, times=times)


def _names(ssm: Ssm, one: Mapping[str, float], rows: list[float], gate: float) -> Names:
    """The names with the multipliers of single parts."""
    into, keys = one["attention_in_multiplier"], one["key_multiplier"]
    attention = ATTENTION | {
        "qkv": _timed(ATTENTION, "qkv", (into, into * keys, into)),
        "qkv_bias": _timed(ATTENTION, "qkv_bias", (1.0, keys, 1.0)),
    }
    mamba = MAMBA | {
        "in_proj": _rows(ssm, "mamba.in_proj.weight", [one["ssm_in_multiplier"] * value for value in rows]),
        "in_proj_bias": _rows(ssm, "mamba.in_proj.bias", rows),
    }
    mlp = BAMBA["mlp"] | {name: _timed(BAMBA["mlp"], name, (gate, 1.0)) for name in ("gate_up", "gate_up_bias")}
    return {"attention": attention, "ssm": mamba, "mlp": mlp}


def _timed(paths: Paths, tensor: str, times: tuple[float, ...]) -> Source:
    return tuple(Part(str(name), times=by) for name, by in zip(paths[tensor], times, strict=True))


def _rows(block: Ssm, name: str, times: list[float]) -> Source:
    """The rows of z, x, B, C and dt, each with its factor."""
    wide, at, found = block.n_groups * block.state_size, 0, list[Part]()
    for n, by in zip((block.inner_size, block.inner_size, wide, wide, block.n_heads), times, strict=True):
        found.append(Part(name, (at, at + n), times=by))
        at += n
    return tuple(found)
