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
    PowerLaw,
    Rwkv7,
    SharedAttention,
)
from edgedec.testing.conformance.expert_models import EXPERT_MODELS
from edgedec.testing.conformance.parts import CONTEXT, GLOBAL, HEADS, HIDDEN, MOE, SSM, spec_of

# Channels that fill no vector, and ranks that fill no block of weights.
_S6 = S6(inner_size=88, state_size=10, dt_rank=5, conv_size=3)
_PAIRS = Attention(n_heads=4, n_kv_heads=2, head_dim=32, scale=0.25, rope=None, differential=0.55)
_DELTA = Delta(n_heads=4, head_dim=16, key_dim=24, n_groups=2, conv_size=3)
_RWKV7 = Rwkv7(HIDDEN, 3, head_dim=20, key_dim=24, decay_rank=9, rate_rank=7, gate_rank=11)
_POWER = PowerLaw(2, 2, 32, 32**-0.5, norm="none", inner_size=96, entry=True)
_LATENT = LatentAttention(4, 1, 64, 0.2, rank=32, rope_dim=32, nope_dim=24, v_dim=16)


def _updated(streams: int, active: int, *blocks: Block) -> tuple[Block, ...]:
    """Blocks that read and change one of the streams."""
    return (AltUp("predict", streams, active), *blocks, AltUp("correct", streams, active))


MODELS: dict[str, ModelSpec] = {
    "plain": spec_of("plain", (HEADS, Mlp(96)), (replace(HEADS, rope=1), Mlp(96)), (HEADS, Mlp(96))),
    "windows": spec_of(
        "windows",
        (replace(HEADS, window=5), Mlp(96)),
        (replace(HEADS, window=9, sinks=2), Mlp(96)),
        (replace(HEADS, rope=None), Mlp(96)),
    ),
    "options": replace(
        spec_of(
            "options",
            (
                replace(HEADS, qk_norm="head", qkv_bias=True, o_bias=True, softcap=4.0, post_norm="rms"),
                Mlp(96, activation="gelu_tanh", post_norm="rms"),
            ),
            (replace(HEADS, qk_norm="full", norm="none", post_norm="rms"), Mlp(96, activation="gelu", norm="none")),
        ),
        tied=True,
        final_softcap=6.0,
        embed_scale=2.5,
    ),
    "layer norms": replace(
        spec_of(
            "layer norms",
            (replace(HEADS, norm="layer", qkv_bias=True, o_bias=True), Mlp(80, False, "gelu", True, norm="layer")),
            (Attention(2, 2, 32, 0.2, norm="layer"), Mlp(96, False, "relu", norm="layer")),
            (Attention(6, 1, 16, 0.25, rope=1, norm="layer"), Mlp(96, True, bias=True, norm="layer")),
        ),
        final_norm="layer",
    ),
    "side by side": replace(
        spec_of(
            "side by side",
            (
                replace(HEADS, branch=True, qk_norm="heads", qk_norm_kind="layer", clip=1.5, norm="layer"),
                Mlp(96, False, "relu2", True, norm="layer", inner_norm="rms"),
            ),
            (replace(HEADS, branch=True, qk_norm="head", qk_norm_kind="layer"), replace(Mlp(96), branch=True), MOE),
        ),
        head_bias=True,
        final_norm="layer",
    ),
    "learned positions": replace(
        spec_of(
            "learned positions",
            (replace(HEADS, rope=None, slopes=(0.5, 0.25, 0.1, 0.02), inner_norm="layer"), Mlp(96, False, "xielu")),
            (replace(HEADS, qk_norm="head", qk_norm_last=True), Mlp(96, activation="relu2")),
        ),
        entry=EncoderEntry(positions=CONTEXT, norm="layer"),
    ),
    "norms of sums": replace(
        spec_of(
            "norms of sums",
            (
                replace(HEADS, rope=None, norm="none", after="layer", qkv_bias=True, o_bias=True),
                Mlp(96, False, "gelu", True, norm="none", after="layer"),
            ),
            (replace(HEADS, window=7, post_norm="rms", after="rms"), Mlp(80, after="rms")),
        ),
        tied=True,
        entry=EncoderEntry(positions=CONTEXT, norm="layer"),
        final_norm="none",
    ),
    "latent": spec_of(
        "latent",
        (replace(_LATENT, q_rank=40, qkv_bias=True, o_bias=True, inner_eps=1e-4), Mlp(96)),
        (replace(_LATENT, rope=1, rope_dim=16, head_dim=48, window=7), MOE),
        (_LATENT, Mlp(96)),
    ),
    "shared slots": replace(
        spec_of(
            "shared slots",
            (
                replace(GLOBAL, n_kv_heads=2, head_dim=32, window=6),
                Mlp(96),
                Lookup(24, post_norm="rms", state_scale=True),
            ),
            (replace(GLOBAL, rope=1), Mlp(80), Lookup(12, "silu", norm="rms")),
            (SharedAttention(0, 4, 2, 32, 0.15, window=6, qk_norm="head", post_norm="rms"), Mlp(96, state_scale=True)),
            (SharedAttention(3, 2, 1, 48, 0.1, rope=1, softcap=4.0, q_bias=True, o_bias=True), Lookup(24)),
        ),
        tied=True,
        embed_scale=2.5,
    ),
    "streams": spec_of(
        "streams",
        (
            AltUp("enter", 3),
            *_updated(3, 1, replace(HEADS, window=6, branch=True), Laurel(5, 0.7), Mlp(96, sparsity=0.6)),
            Lookup(12, streams=True, input_scale=True, post_norm="rms"),
        ),
        (
            *_updated(3, 1, replace(GLOBAL, rope=1, branch=True), Laurel(9, post_norm="rms"), Mlp(80)),
            Lookup(24, "silu", norm="rms", streams=True),
            AltUp("leave", 3),
        ),
        (HEADS, Mlp(96, activation="gelu", sparsity=0.3)),
    ),
    "streams and shared slots": spec_of(
        "streams and shared slots",
        (HEADS, AltUp("enter", 2), *_updated(2, 0, replace(HEADS, branch=True, softcap=4.0), Laurel(20))),
        (*_updated(2, 0, SharedAttention(3, 4, 2, 32, 0.2, branch=True), Laurel(6, 0.6)), AltUp("leave", 2)),
    ),
    "power law": replace(spec_of("power law", (_POWER,), (replace(_POWER, entry=False),)), final_norm="none"),
    "state space": spec_of("state space", (SSM,), (replace(SSM, n_groups=1, norm_groups=1, proj_bias=True),)),
    "selective": spec_of(
        "selective",
        (_S6,),
        (replace(_S6, inner_size=64, state_size=16, conv_size=4, proj_bias=True, part_norm="rms", part_eps=0.01),),
        (replace(_S6, part_norm="plain", post_norm="rms"),),
    ),
    "selective hybrid": spec_of("selective hybrid", (_S6, Mlp(96)), (replace(HEADS, rope=None), MOE), (_S6, MOE)),
    "memory units": spec_of(
        "memory units",
        (_S6, Mlp(96)),
        (replace(_PAIRS, window=7, qkv_bias=True), Mlp(96)),
        (replace(_S6, inner_size=64), MOE),
        (replace(_PAIRS, n_heads=8, head_dim=16, o_bias=True, softcap=4.0), Mlp(96)),
        (Gmu(4, 64, bias=True), Mlp(96)),
        (SharedAttention(6, 4, 2, 16, 0.35, rope=None, differential=0.7, q_bias=True, post_norm="rms"), Mlp(96)),
        (Gmu(0, 88, norm="none", post_norm="rms"),),
    ),
    "pairs of heads": spec_of(
        "pairs of heads",
        (replace(_PAIRS, rope=1, qkv_bias=True), Mlp(96)),
        (replace(_PAIRS, rope=0, n_kv_heads=1, head_dim=72, window=5), Mlp(96)),
        (SharedAttention(2, 2, 1, 72, 0.2, rope=1, window=5, differential=0.4), Mlp(96)),
    ),
    "state space beside attention": spec_of(
        "state space beside attention",
        (replace(SSM, branch=True, norm_groups=0), replace(HEADS, window=7), Mlp(96)),
        (replace(SSM, norm_groups=0, n_groups=1, proj_bias=True),),
    ),
    "hybrid": spec_of("hybrid", (SSM, Mlp(96)), (replace(HEADS, window=7), MOE), (SSM,), (HEADS, Mlp(96))),
    "blocks that feed": replace(
        spec_of(
            "blocks that feed",
            (replace(HEADS, with_embedding=True, feeds=True), Mlp(96, bias=True, feeds=True), SSM),
            (HEADS, Mlp(96)),
            (
                replace(GLOBAL, with_embedding=True, rope=None, window=7, feeds=True),
                Mlp(80, False, "gelu", feeds=True, post_norm="rms"),
                replace(MOE, shared_size=16),
            ),
        ),
        head_layer=HeadLayer("gelu", bias=True),
        head_bias=True,
    ),
    "short convolution": spec_of(
        "short convolution",
        (Conv(64), Mlp(96)),
        (HEADS, Mlp(96)),
        (Conv(80, 5, bias=True, post_norm="rms"), Mlp(96)),
    ),
    "time and channel mixing": replace(
        spec_of(
            "time and channel mixing",
            (replace(_RWKV7, norm="rms"), ChannelMix(HIDDEN, 80)),  # LayerNorm leaves nothing of equal values
            (replace(_RWKV7, values_of=0, value_rank=5, eps=0.01), ChannelMix(HIDDEN, 96, norm="rms", post_norm="rms")),
            (replace(HEADS, window=7), Mlp(96)),
            (replace(_RWKV7, n_heads=4, head_dim=15, key_dim=32, values_of=2, value_rank=33, post_norm="rms"),),
        ),
        entry=EncoderEntry(norm="layer"),
        final_norm="layer",
    ),
    "delta rule": spec_of(
        "delta rule",
        (_DELTA, Mlp(96)),
        (replace(HEADS, gate="channel", qk_norm="head", qkv_bias=True), Mlp(96)),
        (replace(_DELTA, n_heads=3, n_groups=3, beta_scale=2.0, eps=0.01, gate="sigmoid"),),
        (replace(_DELTA, head_dim=20, decay="channel", rank=16),),
        (replace(HEADS, gate="head", window=7), Mlp(96)),
    ),
    "channel decays beside latent attention": replace(
        spec_of(
            "channel decays beside latent attention",
            (replace(_DELTA, n_groups=4, decay="channel", gate="sigmoid", rank=24), Mlp(96)),
            (replace(_LATENT, rope=None), replace(MOE, router="sigmoid", router_bias=True, shared_size=16)),
            (replace(_DELTA, decay="channel"),),
        ),
        ropes=(),
    ),
    "gates of attention": spec_of(
        "gates of attention",
        (replace(HEADS, gate="channel", qk_norm="head", qkv_bias=True), Mlp(96)),
        (replace(HEADS, gate="head", window=7, sink_logit=True), Mlp(96, activation="relu2")),
    ),
    **EXPERT_MODELS,
}
