"""What the models of the conformance suite are made of."""

from __future__ import annotations

from dataclasses import replace

from edgedec.spec import Attention, Block, ModelSpec, Moe, Rope, Ssm

HIDDEN, VOCAB, CONTEXT = 64, 101, 384


def _rope(pairs: int, theta: float = 1e4, scale: float = 1.0) -> Rope:
    return Rope(tuple(theta ** (-j / pairs) for j in range(pairs)), scale)


def spec_of(name: str, *layers: tuple[Block, ...]) -> ModelSpec:
    return ModelSpec(name, VOCAB, HIDDEN, CONTEXT, layers, 1e-5, False, (_rope(16), _rope(8, 5e2, 1.3)))


HEADS = Attention(n_heads=4, n_kv_heads=2, head_dim=32, scale=32**-0.5)
GLOBAL = Attention(4, 1, 48, 0.15, qk_norm="head", v_norm=True, post_norm="rms")
SSM = Ssm(n_heads=4, head_dim=16, state_size=16, n_groups=2, norm_groups=2, dt_min=0.001, dt_max=0.5)
MOE = Moe(n_experts=6, top_k=2, inner_size=16)
PLAIN = replace(MOE, gated=False)
