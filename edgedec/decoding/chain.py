"""The processors that a generation's settings make, in their order."""

from __future__ import annotations

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.logits import (
    ConstraintMask,
    LogitsChain,
    LogitsProcessor,
    MinTokens,
    Penalties,
    ReadsText,
    Repeats,
)
from edgedec.decoding.placed import Places, SequenceBias
from edgedec.decoding.weighed import Follower


def make_chain(config: GenerationConfig, context: Context, ends: frozenset[int]) -> LogitsChain:
    """The processors that a generation has."""
    found: list[LogitsProcessor] = list(config.processors)
    for processor in found:
        if isinstance(processor, ReadsText):
            processor.attach(context)
    if config.biases:
        found.append(SequenceBias(config, context))
    if config.sampling.adjusts:
        found.append(Penalties(config.sampling, context))
    if config.sampling.repeats:
        found.append(Repeats(config.sampling, context, config.breakers))
    if config.places:
        found.append(Places(config, ends))
    if config.constraint is not None:
        mask = ConstraintMask(config.constraint, context)
        found.append(Follower(mask) if config.awrs else mask)
    if config.min_tokens and ends:
        found.append(MinTokens(ends, config.min_tokens))
    return LogitsChain(found)
