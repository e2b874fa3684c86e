"""Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano: layers of one block each, Mamba-2, attention without positions, or a
plain feed-forward of squared ReLUs, one or many experts.

A time step is at least `time_step_min`, as in transformers 5.24; vLLM sets no such limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models import ArchitectureFacts, Source
from edgedec.models._common import ConfigReader, activation, either, finish, heads, sizes, unrotated_length
from edgedec.models._mamba import BACKBONE, IN_LAYERS, MAMBA, UNUSED, in_mixer, require_conv_bias
from edgedec.models._names import ATTENTION, Names, Paths, named
from edgedec.models.arcee import PLAIN
from edgedec.spec import Attention, Block, Mlp, ModelSpec, Moe, Ssm

FACTS = ArchitectureFacts((r"lm_head\.weight", r"mtp\..*"))
EXPERTS: Paths = {
    "norm": ("norm.weight",),
    "router": ("mixer.gate.weight",),
    "router_bias": ("mixer.gate.e_score_correction_bias",),
    "up": ("mixer.experts.*.up_proj.weight",),
    "down": ("mixer.experts.*.down_proj.weight",),
    "shared_up": ("mixer.shared_experts.up_proj.weight",),
    "shared_down": ("mixer.shared_experts.down_proj.weight",),
}
NAMES: Names = {"ssm": in_mixer(MAMBA), "attention": in_mixer(ATTENTION), "mlp": in_mixer(PLAIN), "moe": EXPERTS}
# What a layer is, as configs name it: a letter of a pattern, the type, an older name of it.
_SSM = ("M", "linear_attention", "mamba")
_ATTENTION = ("*", "full_attention", "attention")
_MLP = ("-", "mlp")
_EXPERTS = ("E", "moe")
# Of layers that predict further tokens, and how a sum is made.
_OTHERS = (
    *(name for name in UNUSED if name != "time_step_min"),
    *("expand", "time_step_limit", "use_mamba_kernels", "mamba_ssm_cache_dtype", "rms_norm_eps", "num_hidden_layers"),
    *("moe_shared_expert_overlap", "moe_latent_size", "n_shared_experts", "norm_eps", "rope_theta"),
    *("partial_rotary_factor", "mtp_layers_block_type", "mtp_hybrid_override_pattern"),
)


def spec(config: Mapping[str, Any], context: int | None = None) -> ModelSpec:
    r = ConfigReader(config)
    for key in _OTHERS:
        r.value(key, None)
    for key in ("attention_bias", "sliding_window"):
        if r.value(key, None):
            raise r.fail(key, "is not supported here")
    kinds: dict[tuple[str, ...], Block] = {_SSM: _ssm(r), _ATTENTION: _attention(r), _MLP: _mlp(r), _EXPERTS: _moe(r)}
    found = ModelSpec(
        **sizes(r, tied=False, eps_key="layer_norm_epsilon", eps=1e-5),
        context_length=unrotated_length(r, context, 4096),
        layers=tuple((block,) for block in _layers(r, kinds)),
    )
    return finish(r, found)


def _layers(r: ConfigReader, kinds: Mapping[tuple[str, ...], Block]) -> list[Block]:
    """The block of each layer, by the list of types or by a pattern of letters; the list counts where both are."""
    key = either(r, "layers_block_type", "layer_types")
    types, pattern = r.items(key, str), r.value("hybrid_override_pattern", None)
    if types is None and pattern is not None:
        key, types = "hybrid_override_pattern", list(r.text("hybrid_override_pattern"))
    if not types:
        raise r.fail("layers_block_type", "is missing: which layers are Mamba-2, attention or feed-forward")
    blocks = {name: block for names, block in kinds.items() for name in names}
    for name in types:
        if name not in blocks:
            raise r.fail(key, f"{name!r} is not supported; known: {', '.join(blocks)}")
    if set(types) & set(_EXPERTS):
        _check_experts(r)
    return [blocks[name] for name in types]


def _ssm(r: ConfigReader) -> Ssm:
    if r.text("mamba_hidden_act", "silu") != "silu":
        raise r.fail("mamba_hidden_act", f"{r.values['mamba_hidden_act']!r} is not supported; known: silu")
    require_conv_bias(r, "use_conv_bias")
    r.value("mamba_proj_bias", False)  # transformers reads `use_bias`
    groups = r.whole("n_groups", 8)
    return Ssm(
        n_heads=r.whole("mamba_num_heads", 128),
        head_dim=r.whole("mamba_head_dim", 64),
        state_size=r.whole("ssm_state_size", 128),
        n_groups=groups,
        conv_size=r.whole("conv_kernel", 4),
        dt_min=r.number("time_step_min", 0.001),
        norm_groups=groups,
        proj_bias=r.flag("use_bias", False),
    )


def _attention(r: ConfigReader) -> Attention:
    """The heads are 128 wide where a config does not say; older ones say it by another name."""
    return Attention(**heads(r, kv_heads=8, head_dim=r.whole("attention_head_dim", 128)), rope=None)


def _mlp(r: ConfigReader) -> Mlp:
    act, bias = activation(r, "mlp_hidden_act", "relu2"), r.flag("mlp_bias", False)
    return Mlp(r.whole("intermediate_size", 21504), gated=False, activation=act, bias=bias)


def _moe(r: ConfigReader) -> Moe:
    return Moe(
        n_experts=r.whole(either(r, "n_routed_experts", "num_local_experts"), 8),
        top_k=r.whole("num_experts_per_tok", 2),
        inner_size=r.whole("moe_intermediate_size", 7688),
        router="sigmoid",
        normalize=r.flag("norm_topk_prob", True),
        scale=r.number("routed_scaling_factor", 1.0),
        router_bias=True,
        groups=r.whole("n_group", 1),
        top_groups=r.whole("topk_group", 1),
        shared_size=r.whole("moe_shared_expert_intermediate_size", 7688),
        activation=activation(r, "mlp_hidden_act", "relu2"),
        gated=False,
    )


def _check_experts(r: ConfigReader) -> None:
    """Refuse what layers of experts may have and a block of them has not."""
    if r.value("moe_latent_size", None) is not None:
        raise r.fail("moe_latent_size", "is set: experts of another width than the hidden size are not supported")
    if r.flag("mlp_bias", False):
        raise r.fail("mlp_bias", "is true: a shared expert with biases is not supported")
    if r.whole("n_shared_experts", 1) != 1:
        raise r.fail("n_shared_experts", f"is {r.values['n_shared_experts']}; supported is 1, of its own width")


def weights(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Source]:
    return named(spec, NAMES, outer=BACKBONE, layers=IN_LAYERS)
