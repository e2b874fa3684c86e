"""Phi-4-mini-flash (SambaY): Mamba beside differential attention with a window, then gated memory units beside
attention over the keys and values of one layer (arXiv:2507.06607)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import (
    IGNORED,
    ConfigReader,
    activation,
    finish,
    heads,
    require_supported,
    sizes,
    unrotated_length,
)
from edgedec.models._mamba import S6_PATHS, dt_rank, require_conv_bias
from edgedec.models._names import OUTER, Names, Paths, named
from edgedec.models._pairs import lambdas, paired, unlearned
from edgedec.spec import S6, Attention, Block, Gmu, Mlp, ModelSpec, SharedAttention

FACTS = ArchitectureFacts(IGNORED)
PAIR_EPS = 1e-5


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    require_supported(r, {"mb_per_layer": (2, 2)})
    r.value("rope_theta", None)  # there is no rope
    length, n = unrotated_length(r, context), r.whole("num_hidden_layers")
    if n % 4 or n < 8:
        raise r.fail("num_hidden_layers", f"is {n}; of these models it is a multiple of 4, of at least 8")
    fed = Mlp(r.whole("intermediate_size"), bias=r.flag("mlp_bias", False), activation=activation(r), norm="layer")
    mixers = _mixers(r, n, _windows(r, n, length))
    common = sizes(r, tied=True, eps=1e-5, eps_key="layer_norm_eps")
    if common["norm_eps"] != PAIR_EPS:
        raise r.fail("layer_norm_eps", f"is {common['norm_eps']}; the norms of pairs of heads have {PAIR_EPS} always")
    found = ModelSpec(
        **common,
        context_length=length,
        layers=tuple((mixer, fed) for mixer in mixers),
        final_norm="layer",
        head_bias=r.flag("lm_head_bias", False),
    )
    return finish(r, found)


def _mixers(r: ConfigReader, n: int, windows: list[int | None]) -> list[Block]:
    """What is before the feed-forward of each layer. Layer n/2 is the memory, layer n/2 + 1 has the shared slots."""
    memory, made = _mamba(r), list[Block]()
    attention, cross = _attention(r, windows), n // 2 + 2
    unit = Gmu(2 * (n // 2), memory.inner_size, bias=memory.proj_bias, norm="layer")
    for i in range(n):
        if i % 2 == 0:
            made.append(memory if i < cross else unit)
        else:
            made.append(attention[i] if i < cross else _shared(attention[i], 2 * (n // 2 + 1)))
    return made


def _attention(r: ConfigReader, windows: list[int | None]) -> list[Attention]:
    """Two heads beside each other are a pair: one key of both halves, one value, queries of half of that."""
    base = Attention(**paired(r, heads(r)), rope=None, qkv_bias=True, o_bias=True, norm="layer")
    return [replace(base, window=window, differential=unlearned(i)) for i, window in enumerate(windows)]


def _shared(block: Attention, owner: int) -> SharedAttention:
    sizes = (block.n_heads, block.n_kv_heads, block.head_dim, block.scale)
    return SharedAttention(
        owner, *sizes, rope=None, q_bias=True, o_bias=True, differential=block.differential, norm="layer"
    )


def _windows(r: ConfigReader, n: int, context: int) -> list[int | None]:
    """Of each layer; the config has one for all that may have one, or a list as the authors' code makes it of that."""
    found = r.value("sliding_window", 2047)
    sizes = found if isinstance(found, list) else [found if i < n // 2 and i % 2 else None for i in range(n)]
    if len(sizes) != n or any(size is not None and (type(size) is not int or size < 1) for size in sizes):
        raise r.fail(
            "sliding_window", f"must be a whole number of at least 1, or of each layer one or null: {found!r:.60}"
        )
    late = [i for i, size in enumerate(sizes) if size is not None and (i >= n // 2 or i % 2 == 0)]
    if late:
        raise r.fail("sliding_window", f"is set for layer {late[0]}, which has none")
    return [size if size is not None and size < context else None for size in sizes]


def _mamba(r: ConfigReader) -> S6:
    if activation(r) != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported by Mamba blocks; known: silu")
    require_conv_bias(r, "mamba_conv_bias")
    return S6(
        inner_size=r.whole("mamba_expand", 2) * r.whole("hidden_size"),
        state_size=r.whole("mamba_d_state", 16),
        dt_rank=dt_rank(r, "mamba_dt_rank"),
        conv_size=r.whole("mamba_d_conv", 4),
        proj_bias=r.flag("mamba_proj_bias", False),
        norm="layer",
    )


def _moved(paths: Paths) -> Paths:
    """Of Mamba: its weights are in `attn` too."""
    return {
        tensor: tuple(
            part.replace("mamba.", "attn.")
            if isinstance(part, str)
            else replace(part, name=part.name.replace("mamba.", "attn."))
            for part in parts
        )
        for tensor, parts in paths.items()
    }


_NORM: Paths = {"norm": ("input_layernorm.weight",), "norm_bias": ("input_layernorm.bias",)}
_PAIRS: Paths = {
    **_NORM,
    "o": ("attn.out_proj.weight",),
    "o_bias": ("attn.out_proj.bias",),
    "lambdas": lambdas("attn.inner_cross_attn."),
    "pair_norm": ("attn.inner_cross_attn.subln.weight",),
}
PHI4FLASH: Names = {
    "attention": _PAIRS | {"qkv": ("attn.Wqkv.weight",), "qkv_bias": ("attn.Wqkv.bias",)},
    "shared_attention": _PAIRS | {"q": ("attn.Wqkv.weight",), "q_bias": ("attn.Wqkv.bias",)},
    "s6": _moved(S6_PATHS) | _NORM,
    "gmu": {
        **_NORM,
        "gate": ("attn.in_proj.weight",),
        "gate_bias": ("attn.in_proj.bias",),
        "out": ("attn.out_proj.weight",),
        "out_bias": ("attn.out_proj.bias",),
    },
    "mlp": {
        "norm": ("post_attention_layernorm.weight",),
        "norm_bias": ("post_attention_layernorm.bias",),
        "gate_up": ("mlp.fc1.weight",),
        "gate_up_bias": ("mlp.fc1.bias",),
        "down": ("mlp.fc2.weight",),
        "down_bias": ("mlp.fc2.bias",),
    },
}
_OUTER = OUTER | {
    "final_norm": "model.final_layernorm.weight",
    "final_norm_bias": "model.final_layernorm.bias",
    "head_bias": "lm_head.bias",
}


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    found = named(spec, PHI4FLASH, outer=_OUTER)
    for b, block in enumerate(spec.blocks):
        if isinstance(block, Attention | SharedAttention):
            (part,) = found[f"blocks.{b}.pair_norm"]
            found[f"blocks.{b}.pair_norm"] = (replace(part, times=1 - block.differential),)
    return found
