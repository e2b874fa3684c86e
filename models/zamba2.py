"""Zamba2: Mamba-2, in some layers with a shared transformer block that feeds it (arXiv:2411.15242).

The rule is that of transformers' modeling_zamba2.py. A few blocks of weights are used in turn, each use with low-rank
adapters of its own and a matrix after it. A bundle has the weights of every use with its adapters added and with that
matrix multiplied into the last one: the product is exact but for rounding, a use reads as many bytes as it would of
shared weights, and engines, formats and adapters need to know of neither. What it costs is storage, that of a shared
block for each use but the first.

Time steps have the least value that transformers' scan of a prompt gives them; its single steps have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Part, Source
from edgedec.models._common import IGNORED, ConfigReader, activation, finish, require_usual, sizes, unrotated_length
from edgedec.models._mamba import MAMBA, require_conv_bias
from edgedec.models._names import OUTER
from edgedec.models._rope import context_length, rope, rope_table
from edgedec.spec import Attention, Mlp, ModelSpec, Rope, Ssm

FACTS = ArchitectureFacts(IGNORED)
# The eps of the norm inside of Mamba, whatever the config says of the others.
GATE_EPS = 1e-5
UNUSED = (
    *("chunk_size", "kv_channels", "num_query_groups", "time_step_floor", "time_step_max", "use_mamba_kernels"),
    "use_mem_eff_path",
)
_MAMBA = ("linear_attention", "mamba", "mamba2")
_USUAL = ["mamba"] + (["mamba"] * 5 + ["hybrid"]) * 7 + ["mamba"] * 4 + ["hybrid"] + ["mamba"] * 3 + ["hybrid"]
_USUAL += ["mamba"] * 2


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader({"max_position_embeddings": 4096, **config})
    for unused in UNUSED:
        r.value(unused, None)
    if r.flag("use_long_context", False):
        raise r.fail("use_long_context", "is set: versions of transformers differ in what it does to the rope")
    hybrid, ssm, attention = _hybrid(r), _mamba(r), _attention(r)
    length, ropes = _positions(r, context, attention.head_dim)
    bias = r.flag("add_bias_linear", False)
    inner = r.maybe_whole("intermediate_size") or 4 * r.whole("hidden_size")
    mlp = Mlp(inner, activation=activation(r, default="gelu"), bias=bias, feeds=True)
    r.whole("num_mem_blocks", 1), r.whole("adapter_rank", 128), r.flag("use_shared_attention_adapter", False)
    common = sizes(r, tied=True, eps=GATE_EPS)
    if not common["tied"]:
        raise r.fail("tie_word_embeddings", "is false, and with it transformers shares no blocks; known: true")
    if common["norm_eps"] != GATE_EPS:
        raise r.fail("rms_norm_eps", f"is {common['norm_eps']}; the norm inside of Mamba has {GATE_EPS} always")
    layers = tuple((attention, mlp, ssm) if on else (ssm,) for on in hybrid)
    return finish(r, ModelSpec(**common, context_length=length, layers=layers, ropes=ropes))


def _hybrid(r: ConfigReader) -> list[bool]:
    """Which layers a shared block feeds."""
    n, types = r.whole("num_hidden_layers", len(_USUAL)), r.items("layers_block_type", str) or _USUAL
    if len(types) != n:
        raise r.fail("layers_block_type", f"names {len(types)} layers of {n}")
    if unknown := sorted(set(types) - {*_MAMBA, "hybrid"}):
        raise r.fail("layers_block_type", f"{unknown[0]!r} is not supported")
    found = [kind == "hybrid" for kind in types]
    require_usual(r, {"hybrid_layer_ids": [i for i, on in enumerate(found) if on]})
    return found


def _mamba(r: ConfigReader) -> Ssm:
    require_conv_bias(r, "use_conv_bias")
    n_heads, groups = r.whole("n_mamba_heads", 8), r.whole("mamba_ngroups", 1)
    inner = r.whole("mamba_expand", 2) * r.whole("hidden_size")
    if inner % n_heads:
        raise r.fail("n_mamba_heads", f"{n_heads} heads do not share {inner} channels evenly")
    require_usual(r, {"mamba_headdim": inner // n_heads})
    return Ssm(
        n_heads=n_heads,
        head_dim=inner // n_heads,
        state_size=r.whole("mamba_d_state", 64),
        n_groups=groups,
        conv_size=r.whole("mamba_d_conv", 4),
        dt_min=r.number("time_step_min", 0.001),
        norm_groups=groups,
        proj_bias=r.flag("add_bias_linear", False),
    )


def _attention(r: ConfigReader) -> Attention:
    """Heads as wide as twice the hidden size gives, which is what they read."""
    width, n = 2 * r.whole("hidden_size"), r.whole("num_attention_heads", 32)
    kv, dim = r.maybe_whole("num_key_value_heads") or n, width // n
    if width % n:
        raise r.fail("num_attention_heads", f"{n} do not share {width} values evenly")
    if kv != n and r.flag("use_shared_attention_adapter", False):
        raise r.fail("num_key_value_heads", f"is not {n}, though adapters of keys and values are as wide as of queries")
    require_usual(r, {"attention_hidden_size": width, "attention_head_dim": dim})
    turned = 0 if r.flag("use_mem_rope", False) else None
    return Attention(n, kv, dim, (dim / 2) ** -0.5, rope=turned, with_embedding=True, feeds=True)


def _positions(r: ConfigReader, context: int | None, dim: int) -> tuple[int, tuple[Rope, ...]]:
    if not r.flag("use_mem_rope", False):
        for key in ("rope_parameters", "rope_scaling", "rope_theta"):
            r.value(key, None)
        return unrotated_length(r, context), ()
    table = rope_table(r)
    length = context_length(r, table, context)
    return length, (rope(r, table, dim, length),)


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    outer = OUTER | {"final_norm": "model.final_layernorm.weight"}
    found: dict[str, Source] = {name: (Part(outer[name]),) for name in spec.tensors() if name in outer}
    hybrid = [i for i, layer in enumerate(spec.layers) if len(layer) > 1]
    for b, block in enumerate(spec.blocks):
        i = spec.layer_of(b)
        here = f"model.layers.{i}."
        if isinstance(block, Ssm):
            own = _mamba_parts(here + ("mamba_decoder." if i in hybrid else ""))
        else:
            use, turns = hybrid.index(i), int(config.get("num_mem_blocks", 1))
            shared = f"model.layers.{hybrid[use % turns]}.shared_transformer."
            adapted = bool(config.get("use_shared_attention_adapter", False))
            own = _attention_parts(shared, use, adapted) | _mlp_parts(shared, use, here + "linear.weight")
            own["norm"] = own["norm" if isinstance(block, Attention) else "mlp_norm"]
        found |= {f"blocks.{b}.{tensor}": own[tensor] for tensor in block.tensors(spec.hidden_size)}
    return found


def _mamba_parts(where: str) -> dict[str, Source]:
    parts = {name: tuple(Part(p) if isinstance(p, str) else p for p in source) for name, source in MAMBA.items()}
    return {name: tuple(_within(where, part) for part in source) for name, source in parts.items()}


def _within(where: str, part: Part) -> Part:
    return Part(where + part.name, times=part.times, exp=part.exp, flat=part.flat)


def _attention_parts(shared: str, use: int, adapted: bool) -> dict[str, Source]:
    """Of one use of a shared block; the adapters of queries, keys and values are optional."""
    at = f"{shared}self_attn."

    def projection(name: str) -> Part:
        adapter = f"{at}linear_{name}_adapter_list.{use}."
        plus = (f"{adapter}1.weight", f"{adapter}0.weight") if adapted else ()
        return Part(f"{at}{name}_proj.weight", plus=plus)

    return {
        "norm": (Part(f"{shared}input_layernorm.weight"),),
        "qkv": tuple(map(projection, "qkv")),
        "o": (Part(f"{at}o_proj.weight"),),
    }


def _mlp_parts(shared: str, use: int, linear: str) -> dict[str, Source]:
    """Of one use of a shared block, and the matrix after it."""
    at = f"{shared}feed_forward."
    adapter = f"{at}gate_up_proj_adapter_list.{use}."
    return {
        "mlp_norm": (Part(f"{shared}pre_ff_layernorm.weight"),),
        "gate_up": (Part(f"{at}gate_up_proj.weight", plus=(f"{adapter}1.weight", f"{adapter}0.weight")),),
        "gate_up_bias": (Part(f"{at}gate_up_proj.bias"),),
        "down": (Part(f"{at}down_proj.weight", left=linear),),
        "down_bias": (Part(f"{at}down_proj.bias", left=linear),),
    }
