"""The choice of tokens in a generation: the outputs of the head that it needs, and each next token's distribution.

It requests the least that decides the token: the largest logit, the k best with the log-sum, or all logits
(`edgedec.sampling.best` has the rule for the k best). Where the k best do not decide, the loop computes all logits of
these rows from their last hidden state, and chooses again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from edgedec.decoding.chain import make_chain
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.logits import (
    LogitsChain,
)
from edgedec.decoding.messages import Stats
from edgedec.decoding.shaping import Shaping
from edgedec.decoding.weighed import WeighedDraws
from edgedec.errors import UsageError
from edgedec.runtime import CallResult, Capabilities, Drawing, Logits, Outputs, StepSettings, TokenSampler
from edgedec.sampling import Probs, Sampling, draw_at, logprob, top_logprobs
from edgedec.sampling.best import Best, decided, quick_distribution
from edgedec.sampling.distributions import distribution, point
from edgedec.sampling.logprobs import best_logprobs

PLAIN = Sampling(temperature=1.0)
LARGEST, ALL = Outputs(top=1), Outputs(logits=True)
# Values of k that mostly decide the token: for top-p, for other settings, and the margin above a top-k setting.
_NUCLEUS, _FEW, _SPARE = 128, 64, 16
# The weight of each call in the running mean of fallbacks; above the limit, the next _WHILE calls take all logits.
_WEIGHT, _LIMIT, _WHILE = 0.1, 0.25, 32
_TEMPERATURES = 0.05, 20.0


class Undecided(Exception):
    """The k best of a row do not decide its token."""


class Verified(NamedTuple):
    """The outputs of the rows that are verified, the root first; early: logits [rows, vocab] by block."""

    result: CallResult
    early: Mapping[int, Logits]


class Chooser:
    """Distributions of next tokens for one generation. `fallbacks`: the calls whose k best did not decide the tokens;
    `sufficed`: the calls whose k best did."""

    def __init__(
        self,
        config: GenerationConfig,
        context: Context,
        ends: frozenset[int],
        capabilities: Capabilities,
        stats: Stats | None = None,
    ) -> None:
        self.config, self._vocab = config, context.cache.spec.vocab_size
        self.chain: LogitsChain = make_chain(config, context, ends)
        # True if only the token of the largest logit is needed.
        self.takes_largest = config.takes_largest and not self.chain
        self._hidden, self._fusing = self.chain.early, self.chain.fusing
        if self._fusing is not None and config.sampling.steers:
            raise UsageError("mirostat and adaptive-p: not with a fusion of whole distributions; use other settings")
        self._context = context
        if config.awrs and self._fusing is not None:
            raise UsageError("awrs: not with a fusion of whole distributions; leave one of them out")
        self._weighed = WeighedDraws(config.constraint, config.sampling, stats) if config.awrs else None
        own = self.takes_largest or self._weighed is not None
        self._sampler = None if own else self._make_sampler(capabilities)
        # None where `edgedec.sampling.distributions` covers the settings.
        self._shaping = Shaping(config.sampling, context) if config.sampling.extended else None
        # True if the sampler covers all settings, so that a call without drafts can draw the token itself.
        self._draws = (
            capabilities.draws and self._sampler is not None and not self._adjusted and config.logprobs is None
        )
        # Penalties widen the bounds of the k best; a sampler that reads all logits is quicker then.
        all_logits = own or (self._sampler is not None and config.sampling.adjusts)
        k = 0 if all_logits else best_needed(config, self.chain, capabilities, self._vocab)
        wanted = Outputs(top=k, logsum=_sums(config), temperature=_temperature(config))
        self._best = wanted._replace(hidden=(context.cache.spec.n_blocks - 1,)) if k else ALL
        self.fallbacks = self.sufficed = 0
        self._mean, self._pause = 0.0, 0

    @property
    def outputs(self) -> Outputs:
        """The outputs that the next call must return."""
        wanted = LARGEST if self.takes_largest else ALL if self._pause else self._best
        return wanted | Outputs(hidden=self._hidden) if self._hidden else wanted

    @property
    def may_fall_back(self) -> bool:
        """Whether the next call's outputs may leave a token undecided."""
        return self._best is not ALL and not self._pause

    def distribution(self, rows: Verified, at: int, path: Sequence[int]) -> Probs:
        """The distribution of the token after row `at`, at the end of `path`; raises Undecided if it needs all
        logits."""
        result, sampling = rows.result, self.config.sampling
        if result.logits is not None:
            scores = self._processed(rows, at, path)
            if self._weighed is not None:
                return self._weighed.masked(scores, path)
            return self._of_scores(scores, path) if self._fusing is None else self._fused(scores, path)
        assert result.ids is not None
        assert result.scores is not None
        logsum = None if result.logsum is None else float(result.logsum[at])
        best = Best.of(result.ids[at], result.scores[at], self._vocab, logsum, self._best.temperature)
        found = decided(self.chain.process_best(best, path), sampling)
        if found is None:
            raise Undecided
        return found

    def _of_scores(self, scores: Logits, path: Sequence[int]) -> Probs:
        """The distribution that temperature and cuts make of processed logits."""
        if self._shaping is not None:
            return self._shaping.distribution(scores, path)
        return quick_distribution(scores, self.config.sampling)

    def _fused(self, scores: Logits, path: Sequence[int]) -> Probs:
        """As `_of_scores`, of two distributions. Greedy takes the likeliest token of those at temperature 1, uncut."""
        assert self._fusing is not None
        other = self.chain.process_other(self._fusing.other(path), path)
        if self.config.sampling.temperature > 0:
            return self._fusing.fuse(self._of_scores(scores, path), self._of_scores(other, path), path)
        found = self._fusing.fuse(distribution(scores, PLAIN), distribution(other, PLAIN), path)
        return point(int(found.ids[np.argmax(found.p)]))

    def drawing(self) -> Drawing | None:
        """The draw of the next token in the call itself; None if it depends on more than the call's logits and the
        text."""
        if not self._draws or not Drawing.possible(rng := self._context.rng):
            return None
        assert self._sampler is not None
        self.follow()
        return Drawing(self._sampler, rng if self.config.sampling.temperature > 0 else None)

    def drawn(self, result: CallResult, drawing: Drawing) -> int:
        """The token that a call drew after its last row; if the call could not decide it, Python draws it with the same
        random number."""
        assert result.drawn is not None
        return result.drawn if result.drawn >= 0 else self.decide((), drawing.number())

    def decide(self, path: Sequence[int], u: float) -> int:
        """The token after the text and `path`, drawn with the number `u` from the row that the runtime left open."""
        if self._sampler is None:
            return finite_token(-1)
        rows = Verified(CallResult(logits=self._sampler.row()), {})
        return draw_at(self.distribution(rows, 0, path), u)

    def step_settings(self, ends: frozenset[int]) -> StepSettings | None:
        """The settings for the runtime's own steps; None if a token depends on more than they cover."""
        context, rng = self._context, None
        if not self.takes_largest:
            if not self._draws or not Drawing.possible(context.rng):
                return None
            rng = context.rng if self.config.sampling.temperature > 0 else None
        return StepSettings(context.cache, self._sampler, rng, context.adapter, ends)

    def follow(self) -> None:
        """Let the sampler have the text as it is now."""
        if self._sampler is not None:
            self._sampler.read(self._context.ids, self._context.n_prompt)

    def draw(self, rows: Verified, at: int, path: Sequence[int]) -> int:
        """Draw the token after row `at`, at the end of `path`, with one random number (none if greedy)."""
        u = self._context.rng.random() if self.config.sampling.temperature > 0 else 0.0
        if self._weighed is not None:
            return self._weighed.draw(self._processed(rows, at, path), path, u)
        if self._sampler is not None and rows.result.logits is not None:
            logits = self._processed(rows, at, path) if self._adjusted else rows.result.logits[at]
            if logits.dtype == np.float32 and logits.shape == (self._vocab,) and logits.flags.c_contiguous:
                self._sampler.read(self._context.ids, self._context.n_prompt)
                token = self._sampler.draw(logits, path, u)
                if token >= 0:
                    return token
        return draw_at(self.distribution(rows, at, path), u)

    def _processed(self, rows: Verified, at: int, path: Sequence[int]) -> Logits:
        """All logits of row `at` after the processors."""
        assert rows.result.logits is not None
        early = {block: logits[at] for block, logits in rows.early.items()}
        return self.chain.process(rows.result.logits[at], path, early)

    def accept(self, token: int) -> None:
        """Note that `token` was generated and is in the text."""
        self.chain.accept(token)
        self.weigh(token)

    def weigh(self, token: int) -> None:
        """Count the weight of a drawn token, also of one that ends the text and is no part of it."""
        if self._weighed is not None:
            self._weighed.accept(token)
        if self._shaping is not None:
            self._shaping.accept(token)
        if self._sampler is not None:
            self._sampler.accept(token)

    def _make_sampler(self, capabilities: Capabilities) -> TokenSampler | None:
        """The runtime's sampler, or None if it has none or does not support these settings."""
        sampling = self.config.sampling
        if self._fusing is not None or capabilities.sampler is None or sampling.typical_p < 1 or sampling.extended:
            return None
        self._adjusted = len(self.chain) > sampling.adjusts or sampling.repeat_last_n >= 0
        if any(token >= self._vocab for token, _ in sampling.bias):
            return None
        if self._adjusted:  # the chain applies the penalties
            sampling = replace(sampling, repetition_penalty=1, presence_penalty=0, frequency_penalty=0, logit_bias=())
        return capabilities.sampler(sampling, self._vocab)

    def note(self, fell_back: bool) -> None:
        """Count a verified call: decided by the k best, or with a fallback to all logits."""
        if self._pause:
            self._pause -= 1
        elif self._best is not ALL:
            self.fallbacks, self.sufficed = self.fallbacks + fell_back, self.sufficed + (not fell_back)
            self._mean += _WEIGHT * (fell_back - self._mean)
            if self._mean > _LIMIT:
                self._mean, self._pause = _LIMIT / 2, _WHILE

    def logprobs(self, result: CallResult, at: int, token: int) -> tuple[float | None, tuple[tuple[int, float], ...]]:
        """The log-probability of the token after row `at`, and the likeliest ones, if they are wanted."""
        n = self.config.logprobs
        if n is None:
            return None, ()
        if result.logits is not None:
            return logprob(result.logits[at], token), tuple(top_logprobs(result.logits[at], n))
        assert result.ids is not None
        assert result.scores is not None
        assert result.logsum is not None
        return best_logprobs(result.ids[at], result.scores[at], float(result.logsum[at]), token, n)


def best_needed(config: GenerationConfig, chain: LogitsChain, capabilities: Capabilities, vocab: int) -> int:
    """The k for which the k best tokens can decide with these settings; 0 if all logits are needed or cost no more."""
    sampling, n = config.sampling, config.logprobs
    if not chain.takes_best or chain.early or not capabilities.slices or sampling.extended:
        return 0
    if sampling.temperature > 0 and sampling.top_k == 0 and sampling.top_p == 1 and sampling.min_p == 0:
        return 0
    if _sums(config) and not capabilities.logsum:
        return 0
    if _nucleus(config) and sampling.temperature != 1:
        low, high = _TEMPERATURES
        if not capabilities.temperatures or n is not None or not low <= sampling.temperature <= high:
            return 0
    most = min(capabilities.best_k, vocab - 1)
    least = max(sampling.top_k + 1 if sampling.temperature else 1, n or 0)
    if least > most:
        return 0
    # Penalties take from the known tokens and widen the bounds of the others.
    ample = max(least + _SPARE, _NUCLEUS if _nucleus(config) else _FEW) * (2 if sampling.adjusts else 1)
    return min(ample, most)


def _nucleus(config: GenerationConfig) -> bool:
    """Whether top-p is computed over all tokens."""
    sampling = config.sampling
    return sampling.temperature > 0 and sampling.top_k == 0 and sampling.top_p < 1


def _sums(config: GenerationConfig) -> bool:
    return config.logprobs is not None or _nucleus(config)


def _temperature(config: GenerationConfig) -> float:
    """The temperature of the log-sum."""
    return config.sampling.temperature if _nucleus(config) else 1.0


def finite_token(token: int) -> int:
    """The runtime's own choice; UsageError if there was none."""
    if token < 0:
        raise UsageError("logits: the largest is not finite; need at least one finite value and no NaN or +inf")
    return token
