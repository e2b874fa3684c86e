"""What several searches do with parts of texts: the distribution of a next token, its entropy, where a part ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.messages import Token
from edgedec.sampling import Probs
from edgedec.sampling.best import quick_distribution
from edgedec.search.branch import Branch
from edgedec.search.extending import Floats
from edgedec.search.rolling import Until
from edgedec.text.tokenizer import Tokenizer

Change = Callable[[GenerationConfig], GenerationConfig]


def sampled(temperature: float, top_p: float) -> Change:
    """Loops that sample like this; other settings stay."""
    return lambda config: replace(
        config, sampling=replace(config.sampling, temperature=temperature, top_p=top_p, seed=None)
    )


def greedy(config: GenerationConfig) -> GenerationConfig:
    """Loops that take the likeliest token."""
    return replace(config, sampling=replace(config.sampling, temperature=0.0))


def law(scores: Floats, config: GenerationConfig) -> Probs:
    """The distribution that the settings make of log-probabilities [vocab]."""
    return quick_distribution(scores.astype(np.float32), config.sampling)


def entropy(probs: Probs) -> float:
    """In nats."""
    return float(-(probs.p * np.log(probs.p)).sum())


def entropy_of(scores: Floats) -> float:
    """Of log-probabilities [vocab], which sum to one; in nats."""
    known = scores[scores > -np.inf]
    return float(-(np.exp(known) * known).sum())


def at_line(tokenizer: Callable[[], Tokenizer]) -> Until:
    """After a token with a line break."""
    return lambda branch, token: "\n" in tokenizer().decode([token])


def after(tokenizer: Callable[[], Tokenizer], marks: str) -> Until:
    """After a token that ends in one of these characters, spaces aside, or that has a line break."""

    def ends(branch: Branch, token: Token) -> bool:
        text = tokenizer().decode([token])
        return "\n" in text or text.strip()[-1:] in tuple(marks)

    return ends
