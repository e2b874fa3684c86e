"""Guidance by a value: each likely token is tried out by a short text of a baseline, which a reward judges (lossy).

Transfer Q* (Chakraborty et al. 2024, arXiv:2405.20495). The rule rests on the authors' code: of the `top_k` likeliest
tokens that of the largest z + weight r, with z the model's logit and r the reward of the text, the token, and ONE
greedy text of `tokens` tokens after it by the baseline, a model aligned to the reward; nothing is normalised. There z
is the baseline's too; here it is the model's, as in the paper's text. Indirect: the baseline was aligned to another
reward r1, and r2 exp((r2 - r1) / 2) counts in place of r. weight 0 is plain decoding. No drafts are used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Annotated

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.gathering import Gathering, GatheringStep
from edgedec.decoding.messages import Completed, Request
from edgedec.errors import UsageError
from edgedec.fusion._base import OfCandidates, likeliest
from edgedec.fusion._companion import Companion
from edgedec.fusion._facts import FusionFacts
from edgedec.fusion._reward import Reward, command_reward
from edgedec.fusion._source import source_of
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.runtime import ALL_LOGITS, Outputs

FACTS = FusionFacts(paper="arXiv:2405.20495", rests="the authors' code")


def make(
    host: OpenedModel,
    command: Annotated[
        str, Opt('A program that reads a line {"text": …} for each text and prints a line with a number for each.')
    ],
    base_command: Annotated[str, Opt("Indirect: the same of the reward that the baseline is aligned to.")] = "",
    bundle: Annotated[str, Opt("The baseline: a model with the same tokens; by default the model itself.")] = "",
    adapter: Annotated[str, Opt("The baseline's adapter: a file, or none for the model without one.")] = "",
    weight: Annotated[float, Opt("How much the reward counts; 0: not at all.", 0)] = 1.0,
    top_k: Annotated[int, Opt("Tokens that are tried.", 1, 64)] = 10,
    tokens: Annotated[int, Opt("Tokens of the baseline's text after each.", 0, 256)] = 20,
    timeout: Annotated[float, Opt("Seconds that a program may take for the texts of one token.", above=0)] = 60.0,
) -> Value:
    rewards = [command_reward(one, timeout, "fuse value") for one in (command, base_command) if one]
    source = source_of(host, "fuse value", bundle, adapter, extra=top_k * (tokens + 1))
    decode: Callable[[Sequence[int]], str] = host.tokenizer.decode
    judges = [_of_tokens(reward, decode) for reward in rewards]
    return Value(Companion(source, "fuse value"), judges, weight, top_k, tokens, host.eos)


TokenReward = Callable[[Sequence[Sequence[int]]], Sequence[float]]


def _of_tokens(reward: Reward, decode: Callable[[Sequence[int]], str]) -> TokenReward:
    return lambda texts: reward([decode(ids) for ids in texts])


class Value(OfCandidates):
    """rewards: of whole texts as tokens; a second one is that of the baseline (indirect). ends: tokens that end a
    text."""

    def __init__(
        self,
        companion: Companion,
        rewards: Sequence[TokenReward],
        weight: float,
        top_k: int,
        tokens: int,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(companion)
        self._rewards, self._weight, self._k, self._tokens, self._ends = list(rewards), weight, top_k, tokens, ends
        self.idle = weight == 0

    def gather(self, step: GatheringStep) -> Gathering:
        if self.idle:
            return
        yield from self.companion.read(step, Outputs())
        assert step.logits is not None
        tokens = likeliest(step.logits[0], self._k)
        texts = yield from self._continued(tokens, step.context)
        values = self._values([[*step.context.ids, *text] for text in texts])
        self.choose(tokens, step.logits[0][tokens].astype(np.float64) + self._weight * values)

    def _continued(
        self, tokens: Sequence[int], context: Context
    ) -> Generator[Sequence[Request], Sequence[Completed], list[list[int]]]:
        """Each token with the baseline's greedy text after it."""
        texts, rows = [[token] for token in tokens], [-1] * len(tokens)
        live, count = list(range(len(tokens))), 0
        for _ in range(min(self._tokens, self.companion.left(context) - 1)):
            live = [i for i in live if texts[i][-1] not in self._ends]
            if not live:
                break
            result = yield from self.companion.grow(
                [texts[i][-1] for i in live], [rows[i] for i in live], ALL_LOGITS, context
            )
            assert result.logits is not None
            for line, i in enumerate(live):
                rows[i] = count + line
                texts[i].append(int(result.logits[line].argmax()))
            count += len(live)
        return texts

    def _values(self, texts: Sequence[Sequence[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        found = [np.array([float(value) for value in reward(texts)]) for reward in self._rewards]
        for values in found:
            if values.shape != (len(texts),) or not np.isfinite(values).all():
                raise UsageError(
                    f"fuse value: the reward gave {values.tolist()!r:.80}; need a finite number for each text"
                )
        if len(found) == 1:
            return found[0]
        base, own = found[1], found[0]
        return own * np.exp((own - base) / 2)
