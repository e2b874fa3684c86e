"""Logits processors of rules for sequences, and for places of a text (`edgedec.sampling.places`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.sampling import Logits
from edgedec.sampling.places import decayed, longest, only, sequence_biased, without
from edgedec.text.breakers import breaker_tokens, word_tokens
from edgedec.text.tokenizer import Tokenizer


class SequenceBias:
    """The biases of a config's sequences, and no bad word."""

    early: tuple[int, ...] = ()

    def __init__(self, config: GenerationConfig, context: Context) -> None:
        self._sequences = (*config.sequence_bias, *((tokens, -inf) for tokens in config.bad_tokens))
        self._looks, self._context = longest(self._sequences), context

    def process(self, logits: Logits, path: Sequence[int], early: object) -> Logits:
        ids = self._context.ids
        return sequence_biased(logits, [*ids[max(len(ids) - self._looks, 0) :], *path], self._sequences)

    def accept(self, token: int) -> None:
        pass

    def reset(self) -> None:
        pass

    def fork(self) -> SequenceBias:
        return self


class Places:
    """Forced tokens, tokens that do not begin a text, and the wish to end. The first token after the prompt is number
    0."""

    early: tuple[int, ...] = ()

    def __init__(self, config: GenerationConfig, ends: frozenset[int]) -> None:
        self._config, self._ends, self._made = config, np.array(sorted(ends), np.int64), config.made
        self._last = None if config.max_tokens is None else config.made + config.max_tokens - 1
        self._first = np.array(sorted(config.begin_suppress_tokens), np.int64)

    def process(self, logits: Logits, path: Sequence[int], early: object) -> Logits:
        config, n = self._config, self._made + len(path)
        if n < len(config.forced_tokens):
            return only(logits, [config.forced_tokens[n]])
        if config.forced_eos_token_id is not None and n == self._last:
            return only(logits, [config.forced_eos_token_id])
        if n == 0 and len(self._first):
            logits = without(logits, self._first)
        if config.exponential_decay_length_penalty is not None:
            start, factor = config.exponential_decay_length_penalty
            logits = decayed(logits, self._ends, n, int(start), factor)
        return logits

    def accept(self, token: int) -> None:
        self._made += 1

    def reset(self) -> None:
        self._made = self._config.made

    def fork(self) -> Places:
        twin = Places(self._config, frozenset(self._ends.tolist()))
        twin._made = self._made
        return twin


def with_tokens(config: GenerationConfig, tokenizer: Callable[[], Tokenizer], vocab: int) -> GenerationConfig:
    """The config with the tokens of its texts: of DRY's sequence breakers, and of bad words."""
    if config.sampling.breaks:
        texts = config.sampling.dry_sequence_breakers
        config = replace(config, breakers=breaker_tokens(tokenizer(), vocab, texts))
    if config.bad_words:
        config = replace(config, bad_tokens=word_tokens(tokenizer(), config.bad_words))
    return config
