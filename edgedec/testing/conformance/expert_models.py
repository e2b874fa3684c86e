"""Those models of the conformance suite that are about experts."""

from __future__ import annotations

from dataclasses import replace

from edgedec.spec import Conv, Mlp, ModelSpec, Moe, PreRouter
from edgedec.testing.conformance.parts import GLOBAL, HEADS, MOE, PLAIN, SSM, spec_of

_RELU = replace(PLAIN, n_experts=10, top_k=10, router="relu", normalize=False)
_GIVEN = replace(MOE, n_experts=5, top_k=1, router="given", normalize=False, given_by=0)
_EARLY = replace(MOE, activation="relu", early_router=True)
_GPT_OSS = Moe(6, 2, 24, "softmax_topk", normalize=False, bias=True, logit_bias=True, clamped=True)

EXPERT_MODELS: dict[str, ModelSpec] = {
    "experts": spec_of(
        "experts",
        (HEADS, MOE),
        (HEADS, replace(MOE, router="softmax_topk", top_k=3, shared_size=32, post_norm="rms")),
        (HEADS, replace(MOE, router="softmax", normalize=False, scale=1.5, shared_size=16, shared_gate=True)),
        (HEADS, replace(MOE, router="sigmoid", router_bias=True, scale=0.7)),
        (HEADS, replace(MOE, router="sigmoid", normalize=False, activation="gelu_tanh")),
    ),
    "experts of gpt-oss": spec_of(
        "experts of gpt-oss",
        (replace(HEADS, sink_logit=True, window=6), replace(_GPT_OSS, top_k=3, inner_size=32)),
        (replace(HEADS, sink_logit=True, qkv_bias=True, o_bias=True), _GPT_OSS),
        (HEADS, replace(MOE, router_bias=True, shared_size=32)),
    ),
    "experts without gates": spec_of(
        "experts without gates",
        (HEADS, replace(PLAIN, shared_size=40)),
        (HEADS, replace(PLAIN, router="sigmoid", router_bias=True, groups=3, top_groups=2, activation="relu2")),
        (HEADS, replace(PLAIN, inner_size=32, activation="gelu", bias=True, logit_bias=True)),
    ),
    "sums normed twice": spec_of(
        "sums normed twice",
        (replace(HEADS, norm="scale", after="layer", again="layer"), replace(PLAIN, sum_bias=True, after="layer")),
        (replace(HEADS, window=7, after="rms", again="rms"), replace(MOE, sum_bias=True, shared_size=16)),
        (replace(HEADS, post_norm="rms", after="layer", again="rms"), Mlp(96, after="rms")),
    ),
    "experts by sparsemixer": spec_of(
        "experts by sparsemixer",
        (HEADS, replace(MOE, router="sparsemixer", normalize=False, jitter=0.3)),
        (HEADS, replace(PLAIN, router="sparsemixer", top_k=3, jitter=0.05, scale=1.5)),
        (HEADS, replace(MOE, router="sparsemixer", shared_size=24, logit_bias=True)),
    ),
    "experts by ReLU": spec_of(
        "experts by ReLU",
        (HEADS, _RELU),
        (HEADS, replace(_RELU, logit_bias=True, scale=1.5, activation="relu2", post_norm="rms")),
        (HEADS, replace(MOE, n_experts=3, top_k=3, router="relu", normalize=False, shared_size=24)),
    ),
    "experts chosen before the layers": spec_of(
        "experts chosen before the layers",
        (PreRouter(4, 4, 16, 1.0, rope=1, n_experts=5), HEADS, _GIVEN),
        (replace(HEADS, window=7), replace(_GIVEN, inner_size=24, shared_size=32, post_norm="rms")),
        (HEADS, replace(_GIVEN, gated=False, shared_size=16, shared_gate=True)),
    ),
    "experts chosen before attention": spec_of(
        "experts chosen before attention",
        (HEADS, replace(_EARLY, router="sigmoid")),
        (replace(HEADS, window=7, rope=None), replace(_EARLY, router_norm=True, drop_below=0.8, protect_from=50.0)),
        (Conv(64), replace(_EARLY, router="softmax_topk", normalize=False, top_k=3, shared_size=24)),
        (replace(SSM, post_norm="rms"), replace(_EARLY, gated=False, router_bias=True, router="sigmoid")),
        (HEADS, Mlp(96), replace(_EARLY, logit_bias=True)),
    ),
    "experts beside a feed-forward": spec_of(
        "experts beside a feed-forward",
        (
            replace(GLOBAL, k_is_v=True, head_dim=32, qkv_bias=True),
            Mlp(96, branch=True, post_norm="rms"),
            replace(MOE, router_norm=True, expert_scale=True, post_norm="rms", joined="rms", state_scale=True),
        ),
        (
            replace(HEADS, v_norm=True, window=7),
            replace(MOE, branch=True, router_norm=True),
            replace(MOE, expert_scale=True, router="sigmoid", joined="layer"),
        ),
    ),
    "experts in levels": spec_of(
        "experts in levels",
        (HEADS, replace(MOE, levels=(1, 0, 1, 2, 0, 1), drop_below=0.7, protect_from=52.0)),
        (
            HEADS,
            replace(MOE, router="softmax_topk", normalize=False, top_k=3, levels=(0, 1, 0, 0, 0, 1), shared_size=16),
        ),
        (HEADS, replace(_GPT_OSS, levels=(1, 0, 0, 1, 0, 0), drop_below=0.5)),
        (HEADS, replace(PLAIN, drop_below=0.8, router_norm=True, expert_scale=True, protect_from=50.0)),
    ),
    "expert groups": spec_of(
        "expert groups",
        (HEADS, replace(MOE, router="sigmoid", router_bias=True, groups=3, top_groups=2, shared_size=16)),
        (HEADS, Moe(12, 3, 16, "sigmoid", router_bias=True, scale=2.5, groups=4, top_groups=1, normalize=False)),
    ),
}
