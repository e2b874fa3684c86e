"""Rules for sequences, and for places of a text: biases of sequences, first and last tokens, a growing wish to end.

Each is that of Hugging Face's generate, named at its function."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

import numpy as np

from edgedec.sampling.distributions import Ids, Logits

# The exponent of the largest factor: far above any logit, and far below the largest float32.
_MOST = 69.0
# A sequence of tokens, and what is added to the logit of its last one after the others.
Biased = tuple[tuple[int, ...], float]


def sequence_biased(scores: Logits, ids: Sequence[int], sequences: Sequence[Biased]) -> Logits:
    """Scores [vocab] with the bias of every sequence that the next token would complete (`sequence_bias`;
    `bad_words_ids` is -inf). ids: the text.

    text 1 2, [(3,), 1], [(2, 4), 5], [(1, 4), 7]:  3 gets 1, 4 gets 5
    """
    bias = np.zeros(len(scores), np.float32)
    for tokens, value in sequences:
        n = len(tokens) - 1
        if tokens[-1] < len(scores) and n <= len(ids) and list(ids[len(ids) - n :]) == list(tokens[:-1]):
            bias[tokens[-1]] += np.float32(value)
    return scores + bias if bias.any() else scores


def longest(sequences: Sequence[Biased]) -> int:
    """The tokens at the end of a text that `sequence_biased` looks at."""
    return max((len(tokens) - 1 for tokens, _ in sequences), default=0)


def only(scores: Logits, tokens: Sequence[int]) -> Logits:
    """Scores [vocab] that leave nothing but these tokens, all alike (`forced_bos_token_id`, `forced_eos_token_id`)."""
    found = np.full_like(scores, -np.inf)
    found[list(tokens)] = 0
    return found


def without(scores: Logits, tokens: Ids) -> Logits:
    """Scores [vocab] without these tokens (`begin_suppress_tokens`)."""
    found = scores.copy()
    found[tokens[tokens < len(scores)]] = -np.inf
    return found


def decayed(scores: Logits, ends: Ids, generated: int, start: int, factor: float) -> Logits:
    """Scores [vocab] with end tokens ever likelier after `start` generated tokens: each gains
    |score| (factor^(generated - start) - 1) (`exponential_decay_length_penalty`)."""
    if generated <= start:
        return scores
    found, known = scores.copy(), ends[ends < len(scores)]
    known = known[np.isfinite(scores[known])]
    grown = exp(min(log(factor) * (generated - start), _MOST)) - 1
    found[known] += np.abs(scores[known]) * np.float32(grown)
    return found
