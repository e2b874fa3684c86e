"""The Mamba-2 blocks of hybrid models: their fields of a config, and the names of their weights. And of models of
state-space blocks alone what their configs and weights have in common."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf

from edgedec.models import Part
from edgedec.models._common import ConfigReader, Sizes, activation, unrotated_length
from edgedec.models._names import Paths
from edgedec.spec import S6, Ssm

MAMBA: Paths = {
    "norm": ("input_layernorm.weight",),
    "in_proj": ("mamba.in_proj.weight",),
    "in_proj_bias": ("mamba.in_proj.bias",),
    "conv": (Part("mamba.conv1d.weight", flat=True),),
    "conv_bias": ("mamba.conv1d.bias",),
    "dt_bias": ("mamba.dt_bias",),
    "a": (Part("mamba.A_log", exp=True, times=-1.0),),
    "d": ("mamba.D",),
    "gate_norm": ("mamba.norm.weight",),
    "out_proj": ("mamba.out_proj.weight",),
    "out_proj_bias": ("mamba.out_proj.bias",),
}  # Of Mamba-1.
S6_PATHS: Paths = {
    **{name: MAMBA[name] for name in ("norm", "in_proj", "in_proj_bias", "conv", "conv_bias", "a", "d")},
    "x_proj": ("mamba.x_proj.weight",),
    "dt_proj": ("mamba.dt_proj.weight",),
    "dt_bias": ("mamba.dt_proj.bias",),
    "dt_norm": ("mamba.dt_layernorm.weight",),
    "b_norm": ("mamba.b_layernorm.weight",),
    "c_norm": ("mamba.c_layernorm.weight",),
    **{name: MAMBA[name] for name in ("out_proj", "out_proj_bias")},
}


# Models of such blocks alone: their weights outside of layers, and keys that steer training or how a sum is made.
BACKBONE = {"embed": "backbone.embeddings.weight", "final_norm": "backbone.norm_f.weight", "head": "lm_head.weight"}
IN_LAYERS = "backbone.layers."
UNUSED = (
    *("chunk_size", "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_init_scheme"),
    *("time_step_max", "time_step_min", "time_step_scale", "use_associative_scan", "use_mambapy"),
    # Of the authors' own code, and what transformers does not read either.
    *("d_inner", "d_model", "fused_add_norm", "n_layer", "norm_before_gate", "pad_vocab_size_multiple", "ssm_cfg"),
)
# They have no positions, so nothing in them bounds a text.
LONGEST = 1 << 20


def in_mixer(paths: Paths) -> Paths:
    """Paths within a layer of one block, which is the mixer of that layer, and its norm."""

    def moved(name: str) -> str:
        return re.sub(r"^(mamba|self_attn|mlp)\.", "mixer.", re.sub(r"^\w+_layernorm\.", "norm.", name))

    return {
        tensor: tuple(moved(p) if isinstance(p, str) else replace(p, name=moved(p.name)) for p in parts)
        for tensor, parts in paths.items()
    }


def alone(r: ConfigReader, context: int | None, *, tied: bool) -> tuple[Sizes, int]:
    """The common fields of a model of state-space blocks alone, and its context."""
    for key in UNUSED:
        r.value(key, None)
    if activation(r) != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported by Mamba blocks; known: silu")
    if not r.flag("rms_norm", True):
        raise r.fail("rms_norm", "is false: norms by mean and deviation are not supported here")
    require_conv_bias(r, "use_conv_bias")
    common = Sizes(
        architecture=r.text("model_type"),
        vocab_size=r.whole("vocab_size"),
        hidden_size=r.whole("hidden_size"),
        norm_eps=r.number("layer_norm_epsilon", 1e-5),
        tied=r.flag("tie_word_embeddings", tied),
    )
    return common, unrotated_length(r, context, LONGEST)


def require_conv_bias(r: ConfigReader, key: str) -> None:
    if not r.flag(key, True):
        raise r.fail(key, "is false: convolutions without a bias are not supported")


def dt_rank(r: ConfigReader, key: str) -> int:
    """Values that a time step is made of; "auto" is a sixteenth of the hidden size, rounded up."""
    return -(-r.whole("hidden_size") // 16) if r.value(key, "auto") == "auto" else r.whole(key)


def s6(r: ConfigReader) -> S6:
    """The block that a config of Mamba-1 blocks alone describes; `expand` counts where there is no other size."""
    r.value("expand", 2)
    return S6(
        inner_size=r.maybe_whole("intermediate_size") or r.whole("expand", 2) * r.whole("hidden_size"),
        state_size=r.whole("state_size", 16),
        dt_rank=dt_rank(r, "time_step_rank"),
        conv_size=r.whole("conv_kernel", 4),
        proj_bias=r.flag("use_bias", False),
    )


def mamba(r: ConfigReader, inner: int | None = None) -> Ssm:
    """The block that the `mamba_` keys of a config describe. inner: channels of another number than `mamba_expand`
    says."""
    if activation(r) != "silu":
        raise r.fail("hidden_act", f"{r.values['hidden_act']!r} is not supported by Mamba blocks; known: silu")
    require_conv_bias(r, "mamba_conv_bias")
    r.value("mamba_chunk_size", None)  # how a chunk is summed, not what is computed
    n_heads, groups = r.whole("mamba_n_heads", 128), r.whole("mamba_n_groups", 1)
    low, high = step_limits(r)
    return Ssm(
        n_heads=n_heads,
        head_dim=_head_dim(r, n_heads, inner),
        state_size=r.whole("mamba_d_state", 256),
        n_groups=groups,
        conv_size=r.whole("mamba_d_conv", 4),
        dt_min=low,
        dt_max=high,
        norm_groups=groups,
        proj_bias=r.flag("mamba_proj_bias", False),
    )


def _head_dim(r: ConfigReader, n_heads: int, inner: int | None) -> int:
    """The width of a head; "auto" is what fills the channels, `mamba_expand` times the hidden size by default."""
    expanded = r.whole("mamba_expand", 2) * r.whole("hidden_size")
    inner = inner or expanded
    dim = inner // n_heads if r.value("mamba_d_head", "auto") == "auto" else r.whole("mamba_d_head")
    if dim * n_heads != inner:
        raise r.fail("mamba_n_heads", f"{n_heads} heads of {dim} do not fill {inner} channels")
    return dim


def step_limits(r: ConfigReader) -> tuple[float, float]:
    """The range of a time step. JSON has no infinity, so transformers writes {"__float__": "Infinity"}."""
    found = r.value("time_step_limit", None)
    if found is None:
        return Ssm.dt_min, Ssm.dt_max
    values = [inf if item == {"__float__": "Infinity"} else item for item in found] if isinstance(found, list) else []
    if len(values) != 2 or any(type(item) not in (int, float) for item in values) or not 0 <= values[0] <= values[1]:
        raise r.fail("time_step_limit", f"must be two ascending numbers of at least 0, found {found!r:.60}")
    return float(values[0]), min(float(values[1]), Ssm.dt_max)
