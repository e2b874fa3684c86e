"""Facts of decoders that came later than most engines: an engine names those that it has and refuses the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.spec.attention import Attention
from edgedec.spec.latent import Latent
from edgedec.spec.moe import Moe

if TYPE_CHECKING:
    from edgedec.spec import Block, ModelSpec

SINK_LOGIT = "attention with a score of no token"
EXPERT_BIAS = "experts with biases"
CLAMPED = "clamped experts"
CHOICE_BIAS = "experts chosen by softmax and a bias"
LATENT = "latent attention"
NEWER = (SINK_LOGIT, EXPERT_BIAS, CLAMPED, CHOICE_BIAS, LATENT)


def newer(spec: ModelSpec) -> tuple[str, ...]:
    """Those that a model has, in words."""
    found = {fact for block in spec.blocks for fact in _of(block)}
    return tuple(fact for fact in NEWER if fact in found)


def _of(block: Block) -> list[str]:
    if isinstance(block, Latent):
        return [LATENT]
    if isinstance(block, Attention):
        return [SINK_LOGIT] if block.sink_logit else []
    if not isinstance(block, Moe):
        return []
    has = {
        EXPERT_BIAS: block.bias or block.logit_bias,
        CLAMPED: block.clamped,
        CHOICE_BIAS: block.router_bias and block.router == "softmax",
    }
    return [fact for fact, on in has.items() if on]
