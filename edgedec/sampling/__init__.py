"""Sampling: from the logits of one row, or from the k best and the log-sum, to a token."""

from edgedec.sampling.distributions import (
    Floats,
    Ids,
    Logits,
    Probs,
    adjust,
    distribution,
    draw,
    draw_at,
    probs,
    residual,
)
from edgedec.sampling.logprobs import logprob, top_logprobs
from edgedec.sampling.settings import Sampling

__all__ = [
    "Floats",
    "Ids",
    "Logits",
    "Probs",
    "Sampling",
    "adjust",
    "distribution",
    "draw",
    "draw_at",
    "logprob",
    "probs",
    "residual",
    "top_logprobs",
]
