"""The token of each position that a schedule chose, by the settings of the generation.

Greedy decoding takes the best token, for which the two best of a row are enough. A draw takes one random number for
each position, in their order. Settings that depend on the tokens before (penalties, constraints, DRY, …) need all of
these: then only positions without a masked one before them are filled, so that they mean what they mean elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedec.decoding.chooser import Chooser, Verified, finite_token
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.logits import BaseProcessor, Early
from edgedec.decoding.messages import Token
from edgedec.diffusion.seen import BEST, Line
from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Capabilities, Logits, Outputs
from edgedec.sampling import Probs
from edgedec.sampling.best import Best


class WithoutMask(BaseProcessor):
    """The mask is never a token of a text."""

    def __init__(self, mask: int) -> None:
        self._mask = mask

    def process(self, logits: Logits, path: Sequence[int], early: Early) -> Logits:
        found = logits.copy()
        found[self._mask] = -np.inf
        return found

    def process_best(self, best: Best, path: Sequence[int]) -> Best:
        return best.lower(np.where(best.ids == self._mask, np.float32(-np.inf), best.scores))


class Picker:
    """outputs: what a pass must return of its rows; in_order: whether positions are filled from the left;
    plain: whether the best token is always taken; vocab: the number of tokens. everything: whether all logits are
    needed; entropy: whether that of each row is."""

    def __init__(
        self,
        config: GenerationConfig,
        context: Context,
        ends: frozenset[int],
        capabilities: Capabilities,
        mask: int,
        entropy: bool,
        everything: bool,
    ) -> None:
        self.config, self._context, self.vocab = config, context, context.cache.spec.vocab_size
        self.plain = config.takes_largest
        banned = replace(config, processors=(*config.processors, WithoutMask(mask)))
        self.chooser = Chooser(banned, context, ends, capabilities)
        if self.chooser.chain.early:
            raise UsageError("processors that read inner layers: a diffusion model is decoded without them")
        if self.chooser.chain.gathers:
            raise UsageError("processors that ask for forwards: a diffusion model is decoded without them")
        self.in_order = len(self.chooser.chain) > 1 or config.sampling.extended
        able = capabilities.logsum and (capabilities.entropy or not entropy)
        least = Outputs(top=BEST + 1, logsum=True, entropy=entropy)
        self.outputs = least if self.plain and not everything and able else ALL_LOGITS

    def allowed(self, positions: Sequence[int], masked: Sequence[int]) -> list[int]:
        """Those of the chosen positions that may be filled in this pass, at least one, ascending. masked: all positions
        of the block that are not known."""
        chosen = sorted(set(positions) & set(masked)) or [masked[0]]
        if not self.in_order:
            return chosen
        run = [masked[0]]
        for i in masked[1:]:
            if i != run[-1] + 1 or i not in chosen:
                break
            run.append(i)
        return run

    def distribution(self, line: Line) -> Probs:
        """The distribution that a row's token is drawn from."""
        return self.chooser.distribution(Verified(line.result, {}), line.at, ())

    def with_logprobs(self, token: Token, line: Line) -> Token:
        """The token with what its row says of it, if that is wanted."""
        return token if self.plain else Token(int(token), *self.chooser.logprobs(line.result, line.at, int(token)))

    def pick(self, line: Line, best: int, path: Sequence[int]) -> Token:
        """The token of a row. best: its best one; path: the tokens between the text and its position."""
        if self.plain:
            return Token(finite_token(best))
        rows = Verified(line.result, {})
        token = self.chooser.draw(rows, line.at, path if self.in_order else ())
        return Token(token, *self.chooser.logprobs(line.result, line.at, token))
