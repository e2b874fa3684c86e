"""Facts and kinds of blocks that came later than most engines: an engine names those that it has and refuses the
others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.spec.attention import Attention
from edgedec.spec.moe import Moe

if TYPE_CHECKING:
    from edgedec.spec import Block, ModelSpec

SINK_LOGIT = "attention with a score of no token"
GATES = "gates of attention"
EXPERT_BIAS = "experts with biases"
CLAMPED = "clamped experts"
CHOICE_BIAS = "experts chosen by softmax and a bias"
NEWER = (SINK_LOGIT, GATES, EXPERT_BIAS, CLAMPED, CHOICE_BIAS)
_KINDS = frozenset(("conv", "delta", "latent", "s6"))


def newer(spec: ModelSpec) -> tuple[str, ...]:
    """The facts that a model has, in words."""
    found = {fact for block in spec.blocks for fact, on in _of(block).items() if on}
    return tuple(fact for fact in NEWER if fact in found)


def is_newer(spec: ModelSpec) -> bool:
    """Whether a model has facts or kinds that readers of format 8 do not know."""
    return bool(newer(spec) or _KINDS & set(spec.kinds))


def _of(block: Block) -> dict[str, bool]:
    if isinstance(block, Attention):
        return {SINK_LOGIT: block.sink_logit, GATES: block.gate != "none"}
    if isinstance(block, Moe):
        return {
            EXPERT_BIAS: block.bias or block.logit_bias,
            CLAMPED: block.clamped,
            CHOICE_BIAS: block.router_bias and block.router == "softmax",
        }
    return {}
