"""The models of the conformance suite: a few small layers each, together every option of every block kind."""

from __future__ import annotations

from dataclasses import replace

from edgedec.spec import (
    S6,
    AltUp,
    Attention,
    Block,
    ChannelMix,
    Conv,
    Delta,
    EncoderEntry,
    Gmu,
    HeadLayer,
    LatentAttention,
    Laurel,
    Lookup,
    Mlp,
    ModelSpec,
    Moe,
    PowerLaw,
    PreRouter,
    Rope,
    Rwkv7,
    SharedAttention,
    Ssm,
)

HIDDEN, VOCAB, CONTEXT = 64, 101, 384


def _rope(pairs: int, theta: float = 1e4, scale: float = 1.0) -> Rope:
    return Rope(tuple(theta ** (-j / pairs) for j in range(pairs)), scale)


def _spec(name: str, *layers: tuple[Block, ...]) -> ModelSpec:
    return ModelSpec(name, VOCAB, HIDDEN, CONTEXT, layers, 1e-5, False, (_rope(16), _rope(8, 5e2, 1.3)))


_HEADS = Attention(n_heads=4, n_kv_heads=2, head_dim=32, scale=32**-0.5)
_SSM = Ssm(n_heads=4, head_dim=16, state_size=16, n_groups=2, norm_groups=2, dt_min=0.001, dt_max=0.5)
# Channels that fill no vector, and ranks that fill no block of weights.
_S6 = S6(inner_size=88, state_size=10, dt_rank=5, conv_size=3)
_PAIRS = Attention(n_heads=4, n_kv_heads=2, head_dim=32, scale=0.25, rope=None, differential=0.55)
_DELTA = Delta(n_heads=4, head_dim=16, key_dim=24, n_groups=2, conv_size=3)
_RWKV7 = Rwkv7(HIDDEN, 3, head_dim=20, key_dim=24, decay_rank=9, rate_rank=7, gate_rank=11)
_POWER = PowerLaw(2, 2, 32, 32**-0.5, norm="none", inner_size=96, entry=True)
_LATENT = LatentAttention(4, 1, 64, 0.2, rank=32, rope_dim=32, nope_dim=24, v_dim=16)
_GLOBAL = Attention(4, 1, 48, 0.15, qk_norm="head", v_norm=True, post_norm="rms")
_MOE = Moe(n_experts=6, top_k=2, inner_size=16)
_PLAIN = replace(_MOE, gated=False)
_RELU = replace(_PLAIN, n_experts=10, top_k=10, router="relu", normalize=False)
_GIVEN = replace(_MOE, n_experts=5, top_k=1, router="given", normalize=False, given_by=0)
_EARLY = replace(_MOE, activation="relu", early_router=True)
_GPT_OSS = Moe(6, 2, 24, "softmax_topk", normalize=False, bias=True, logit_bias=True, clamped=True)


def _updated(streams: int, active: int, *blocks: Block) -> tuple[Block, ...]:
    """Blocks that read and change one of the streams."""
    return (AltUp("predict", streams, active), *blocks, AltUp("correct", streams, active))


MODELS: dict[str, ModelSpec] = {
    "plain": _spec("plain", (_HEADS, Mlp(96)), (replace(_HEADS, rope=1), Mlp(96)), (_HEADS, Mlp(96))),
    "windows": _spec(
        "windows",
        (replace(_HEADS, window=5), Mlp(96)),
        (replace(_HEADS, window=9, sinks=2), Mlp(96)),
        (replace(_HEADS, rope=None), Mlp(96)),
    ),
    "options": replace(
        _spec(
            "options",
            (
                replace(_HEADS, qk_norm="head", qkv_bias=True, o_bias=True, softcap=4.0, post_norm="rms"),
                Mlp(96, activation="gelu_tanh", post_norm="rms"),
            ),
            (replace(_HEADS, qk_norm="full", norm="none", post_norm="rms"), Mlp(96, activation="gelu", norm="none")),
        ),
        tied=True,
        final_softcap=6.0,
        embed_scale=2.5,
    ),
    "layer norms": replace(
        _spec(
            "layer norms",
            (replace(_HEADS, norm="layer", qkv_bias=True, o_bias=True), Mlp(80, False, "gelu", True, norm="layer")),
            (Attention(2, 2, 32, 0.2, norm="layer"), Mlp(96, False, "relu", norm="layer")),
            (Attention(6, 1, 16, 0.25, rope=1, norm="layer"), Mlp(96, True, bias=True, norm="layer")),
        ),
        final_norm="layer",
    ),
    "side by side": replace(
        _spec(
            "side by side",
            (
                replace(_HEADS, branch=True, qk_norm="heads", qk_norm_kind="layer", clip=1.5, norm="layer"),
                Mlp(96, False, "relu2", True, norm="layer", inner_norm="rms"),
            ),
            (replace(_HEADS, branch=True, qk_norm="head", qk_norm_kind="layer"), replace(Mlp(96), branch=True), _MOE),
        ),
        head_bias=True,
        final_norm="layer",
    ),
    "learned positions": replace(
        _spec(
            "learned positions",
            (replace(_HEADS, rope=None, slopes=(0.5, 0.25, 0.1, 0.02), inner_norm="layer"), Mlp(96, False, "xielu")),
            (replace(_HEADS, qk_norm="head", qk_norm_last=True), Mlp(96, activation="relu2")),
        ),
        entry=EncoderEntry(positions=CONTEXT, norm="layer"),
    ),
    "experts": _spec(
        "experts",
        (_HEADS, _MOE),
        (_HEADS, replace(_MOE, router="softmax_topk", top_k=3, shared_size=32, post_norm="rms")),
        (_HEADS, replace(_MOE, router="softmax", normalize=False, scale=1.5, shared_size=16, shared_gate=True)),
        (_HEADS, replace(_MOE, router="sigmoid", router_bias=True, scale=0.7)),
        (_HEADS, replace(_MOE, router="sigmoid", normalize=False, activation="gelu_tanh")),
    ),
    "experts of gpt-oss": _spec(
        "experts of gpt-oss",
        (replace(_HEADS, sink_logit=True, window=6), replace(_GPT_OSS, top_k=3, inner_size=32)),
        (replace(_HEADS, sink_logit=True, qkv_bias=True, o_bias=True), _GPT_OSS),
        (_HEADS, replace(_MOE, router_bias=True, shared_size=32)),
    ),
    "experts without gates": _spec(
        "experts without gates",
        (_HEADS, replace(_PLAIN, shared_size=40)),
        (_HEADS, replace(_PLAIN, router="sigmoid", router_bias=True, groups=3, top_groups=2, activation="relu2")),
        (_HEADS, replace(_PLAIN, inner_size=32, activation="gelu", bias=True, logit_bias=True)),
    ),
    "experts by sparsemixer": _spec(
        "experts by sparsemixer",
        (_HEADS, replace(_MOE, router="sparsemixer", normalize=False, jitter=0.3)),
        (_HEADS, replace(_PLAIN, router="sparsemixer", top_k=3, jitter=0.05, scale=1.5)),
        (_HEADS, replace(_MOE, router="sparsemixer", shared_size=24, logit_bias=True)),
    ),
    "experts by ReLU": _spec(
        "experts by ReLU",
        (_HEADS, _RELU),
        (_HEADS, replace(_RELU, logit_bias=True, scale=1.5, activation="relu2", post_norm="rms")),
        (_HEADS, replace(_MOE, n_experts=3, top_k=3, router="relu", normalize=False, shared_size=24)),
    ),
    "experts chosen before the layers": _spec(
        "experts chosen before the layers",
        (PreRouter(4, 4, 16, 1.0, rope=1, n_experts=5), _HEADS, _GIVEN),
        (replace(_HEADS, window=7), replace(_GIVEN, inner_size=24, shared_size=32, post_norm="rms")),
        (_HEADS, replace(_GIVEN, gated=False, shared_size=16, shared_gate=True)),
    ),
    "experts chosen before attention": _spec(
        "experts chosen before attention",
        (_HEADS, replace(_EARLY, router="sigmoid")),
        (replace(_HEADS, window=7, rope=None), replace(_EARLY, router_norm=True, drop_below=0.8, protect_from=50.0)),
        (Conv(64), replace(_EARLY, router="softmax_topk", normalize=False, top_k=3, shared_size=24)),
        (replace(_SSM, post_norm="rms"), replace(_EARLY, gated=False, router_bias=True, router="sigmoid")),
        (_HEADS, Mlp(96), replace(_EARLY, logit_bias=True)),
    ),
    "latent": _spec(
        "latent",
        (replace(_LATENT, q_rank=40, qkv_bias=True, o_bias=True, inner_eps=1e-4), Mlp(96)),
        (replace(_LATENT, rope=1, rope_dim=16, head_dim=48, window=7), _MOE),
        (_LATENT, Mlp(96)),
    ),
    "shared slots": replace(
        _spec(
            "shared slots",
            (
                replace(_GLOBAL, n_kv_heads=2, head_dim=32, window=6),
                Mlp(96),
                Lookup(24, post_norm="rms", state_scale=True),
            ),
            (replace(_GLOBAL, rope=1), Mlp(80), Lookup(12, "silu", norm="rms")),
            (SharedAttention(0, 4, 2, 32, 0.15, window=6, qk_norm="head", post_norm="rms"), Mlp(96, state_scale=True)),
            (SharedAttention(3, 2, 1, 48, 0.1, rope=1, softcap=4.0, q_bias=True, o_bias=True), Lookup(24)),
        ),
        tied=True,
        embed_scale=2.5,
    ),
    "streams": _spec(
        "streams",
        (
            AltUp("enter", 3),
            *_updated(3, 1, replace(_HEADS, window=6, branch=True), Laurel(5, 0.7), Mlp(96, sparsity=0.6)),
            Lookup(12, streams=True, input_scale=True, post_norm="rms"),
        ),
        (
            *_updated(3, 1, replace(_GLOBAL, rope=1, branch=True), Laurel(9, post_norm="rms"), Mlp(80)),
            Lookup(24, "silu", norm="rms", streams=True),
            AltUp("leave", 3),
        ),
        (_HEADS, Mlp(96, activation="gelu", sparsity=0.3)),
    ),
    "streams and shared slots": _spec(
        "streams and shared slots",
        (_HEADS, AltUp("enter", 2), *_updated(2, 0, replace(_HEADS, branch=True, softcap=4.0), Laurel(20))),
        (*_updated(2, 0, SharedAttention(3, 4, 2, 32, 0.2, branch=True), Laurel(6, 0.6)), AltUp("leave", 2)),
    ),
    "experts beside a feed-forward": _spec(
        "experts beside a feed-forward",
        (
            replace(_GLOBAL, k_is_v=True, head_dim=32, qkv_bias=True),
            Mlp(96, branch=True, post_norm="rms"),
            replace(_MOE, router_norm=True, expert_scale=True, post_norm="rms", joined="rms", state_scale=True),
        ),
        (
            replace(_HEADS, v_norm=True, window=7),
            replace(_MOE, branch=True, router_norm=True),
            replace(_MOE, expert_scale=True, router="sigmoid", joined="layer"),
        ),
    ),
    "experts in levels": _spec(
        "experts in levels",
        (_HEADS, replace(_MOE, levels=(1, 0, 1, 2, 0, 1), drop_below=0.7, protect_from=52.0)),
        (
            _HEADS,
            replace(_MOE, router="softmax_topk", normalize=False, top_k=3, levels=(0, 1, 0, 0, 0, 1), shared_size=16),
        ),
        (_HEADS, replace(_GPT_OSS, levels=(1, 0, 0, 1, 0, 0), drop_below=0.5)),
        (_HEADS, replace(_PLAIN, drop_below=0.8, router_norm=True, expert_scale=True, protect_from=50.0)),
    ),
    "power law": replace(_spec("power law", (_POWER,), (replace(_POWER, entry=False),)), final_norm="none"),
    "state space": _spec("state space", (_SSM,), (replace(_SSM, n_groups=1, norm_groups=1, proj_bias=True),)),
    "selective": _spec(
        "selective",
        (_S6,),
        (replace(_S6, inner_size=64, state_size=16, conv_size=4, proj_bias=True, part_norm="rms", part_eps=0.01),),
        (replace(_S6, part_norm="plain", post_norm="rms"),),
    ),
    "selective hybrid": _spec("selective hybrid", (_S6, Mlp(96)), (replace(_HEADS, rope=None), _MOE), (_S6, _MOE)),
    "memory units": _spec(
        "memory units",
        (_S6, Mlp(96)),
        (replace(_PAIRS, window=7, qkv_bias=True), Mlp(96)),
        (replace(_S6, inner_size=64), _MOE),
        (replace(_PAIRS, n_heads=8, head_dim=16, o_bias=True, softcap=4.0), Mlp(96)),
        (Gmu(4, 64, bias=True), Mlp(96)),
        (SharedAttention(6, 4, 2, 16, 0.35, rope=None, differential=0.7, q_bias=True, post_norm="rms"), Mlp(96)),
        (Gmu(0, 88, norm="none", post_norm="rms"),),
    ),
    "pairs of heads": _spec(
        "pairs of heads",
        (replace(_PAIRS, rope=1, qkv_bias=True), Mlp(96)),
        (replace(_PAIRS, rope=0, n_kv_heads=1, head_dim=72, window=5), Mlp(96)),
        (SharedAttention(2, 2, 1, 72, 0.2, rope=1, window=5, differential=0.4), Mlp(96)),
    ),
    "state space beside attention": _spec(
        "state space beside attention",
        (replace(_SSM, branch=True, norm_groups=0), replace(_HEADS, window=7), Mlp(96)),
        (replace(_SSM, norm_groups=0, n_groups=1, proj_bias=True),),
    ),
    "hybrid": _spec("hybrid", (_SSM, Mlp(96)), (replace(_HEADS, window=7), _MOE), (_SSM,), (_HEADS, Mlp(96))),
    "blocks that feed": replace(
        _spec(
            "blocks that feed",
            (replace(_HEADS, with_embedding=True, feeds=True), Mlp(96, bias=True, feeds=True), _SSM),
            (_HEADS, Mlp(96)),
            (
                replace(_GLOBAL, with_embedding=True, rope=None, window=7, feeds=True),
                Mlp(80, False, "gelu", feeds=True, post_norm="rms"),
                replace(_MOE, shared_size=16),
            ),
        ),
        head_layer=HeadLayer("gelu", bias=True),
        head_bias=True,
    ),
    "short convolution": _spec(
        "short convolution",
        (Conv(64), Mlp(96)),
        (_HEADS, Mlp(96)),
        (Conv(80, 5, bias=True, post_norm="rms"), Mlp(96)),
    ),
    "time and channel mixing": replace(
        _spec(
            "time and channel mixing",
            (replace(_RWKV7, norm="rms"), ChannelMix(HIDDEN, 80)),  # LayerNorm leaves nothing of equal values
            (replace(_RWKV7, values_of=0, value_rank=5, eps=0.01), ChannelMix(HIDDEN, 96, norm="rms", post_norm="rms")),
            (replace(_HEADS, window=7), Mlp(96)),
            (replace(_RWKV7, n_heads=4, head_dim=15, key_dim=32, values_of=2, value_rank=33, post_norm="rms"),),
        ),
        entry=EncoderEntry(norm="layer"),
        final_norm="layer",
    ),
    "delta rule": _spec(
        "delta rule",
        (_DELTA, Mlp(96)),
        (replace(_HEADS, gate="channel", qk_norm="head", qkv_bias=True), Mlp(96)),
        (replace(_DELTA, n_heads=3, n_groups=3, beta_scale=2.0, eps=0.01, gate="sigmoid"),),
        (replace(_DELTA, head_dim=20, decay="channel", rank=16),),
        (replace(_HEADS, gate="head", window=7), Mlp(96)),
    ),
    "channel decays beside latent attention": replace(
        _spec(
            "channel decays beside latent attention",
            (replace(_DELTA, n_groups=4, decay="channel", gate="sigmoid", rank=24), Mlp(96)),
            (replace(_LATENT, rope=None), replace(_MOE, router="sigmoid", router_bias=True, shared_size=16)),
            (replace(_DELTA, decay="channel"),),
        ),
        ropes=(),
    ),
    "expert groups": _spec(
        "expert groups",
        (_HEADS, replace(_MOE, router="sigmoid", router_bias=True, groups=3, top_groups=2, shared_size=16)),
        (_HEADS, Moe(12, 3, 16, "sigmoid", router_bias=True, scale=2.5, groups=4, top_groups=1, normalize=False)),
    ),
    "gates of attention": _spec(
        "gates of attention",
        (replace(_HEADS, gate="channel", qk_norm="head", qkv_bias=True), Mlp(96)),
        (replace(_HEADS, gate="head", window=7, sink_logit=True), Mlp(96, activation="relu2")),
    ),
}
