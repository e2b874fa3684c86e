"""Lossy: several tokens at once where the model is sure of them (lexical unit decoding, LUD).

Sun et al. 2024 (LREC-COLING; read in a third-party review, since the repository is a README: the number of pads, the
threshold and the steps of the fine-tuning were not to be found, and are ours). Pad rows follow the text; each gives a
further token. Of these tokens the longest prefix counts in which each has the probability `beta` or more, and at least
one token. Nothing verifies them.

    text ── pad ── pad ── pad      "York" 0.99, then "City" 0.95, "," 0.6, "where" 0.97; beta 0.9
      │      │      │      │       -> York City: what comes after the first token below beta is not used
    York   City     ,    where

The tokens of a unit are the rows of the next call, which read them in place of the pads, so the next unit follows in
the same call. Their laws are those of the pads (`_lossy`); a token below `beta` under its own law ends the unit. The
paper fine-tunes the whole model with pads inside the spans that it is sure of; here the pads are trained embeddings and
the model stays as it is (`train-heads --kind lud`, or the prompt tokens of `--kind prompt`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Annotated, Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.logits import LogitsProcessor
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import ALWAYS, BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, PromptRows, Proposal
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._heads.foreseen import upcoming
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._lossy import Replaced, lossy_report, probability
from edgedec.drafters._models.reader import drawn_from
from edgedec.drafters._options import TrainedLength
from edgedec.drafters.prompt import DRAFT as PROMPT
from edgedec.drafters.prompt import prompts_of
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Hidden
from edgedec.sampling import Logits, draw_at

DRAFT = "lud"

FACTS = DrafterFacts(draft=DRAFT, lossy=ALWAYS, paper="Lexical Unit Decoding")


def make(
    host: DrafterContext,
    beta: Annotated[float, Opt("Least probability of each token of a unit.", above=0, high=1)] = 0.9,
    length: TrainedLength = 0,
) -> Lud:
    kind = DRAFT if DRAFT in host.bundle.manifest.drafts or PROMPT not in host.bundle.manifest.drafts else PROMPT
    facts, can = facts_of(host, kind), host.runtime.capabilities
    if not can.trees or not can.embeddings:
        raise UsageError(f"drafter lud: the runtime {host.runtime.name} runs no rows of embeddings below a tree")
    if length > facts.depth:
        raise UsageError(f"drafter lud: length={length}: the bundle has {facts.depth} pads")
    return Lud(host, prompts_of(host, kind)[: length or facts.depth], beta)


class Lud(BaseDrafter):
    """pads: their embeddings [n, hidden_size]."""

    def __init__(self, host: DrafterContext, pads: Hidden, beta: float) -> None:
        self._pads, self._beta, self._vocab = pads, beta, host.runtime.spec.vocab_size
        self._most, self._embeddings = host.runtime.capabilities.largest_call, TokenEmbeddings(host)
        self._replaced = Replaced()
        self.shift: LogitsProcessor | None = self._replaced
        # The law of a token by its index in the text, as a pad gave it.
        self._laws: dict[int, Logits] = {}
        self._at, self._unit, self._padded = 0, list[int](), False
        self._counts, self._sizes = Counter[str](), Counter[int]()

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._replaced.clear()
        self._at = len(context.ids)
        self._unit = self._next_unit(context)
        rows = self._unit[: max(nodes, 0)]
        room = min(context.cache.capacity - self._at, self._most - len(context.pending())) - len(rows)
        self._padded = len(rows) == len(self._unit) and room >= len(self._pads) and context.policy is None
        return self._with_pads(context, Draft.chain(rows)) if self._padded else Draft.chain(rows)

    def _next_unit(self, context: Context) -> list[int]:
        """The tokens after the text that pads gave, as far as each is likely enough; their laws are replaced."""
        found = list[int]()
        numbers = upcoming(context, len(self._laws)) if self._laws else []
        while (law := self._laws.get(self._at + len(found))) is not None:
            token = draw_at(drawn_from(law, self._vocab, context, found), numbers[len(found)])
            if probability(law, token) < self._beta:
                break
            self._replaced.laws[tuple(found)] = law
            found.append(token)
        return found

    def _with_pads(self, context: Context, draft: Draft) -> Generator[Request, Completed, Draft]:
        n, last = len(self._pads), len(draft.tokens)
        known = yield from self._embeddings.of([*context.pending(), *draft.tokens])
        parents = [last - 1, *range(last, last + n - 1)]
        return draft.with_prompts(PromptRows(parents, np.concatenate([known, self._pads])))

    def observe(self, step: StepResult) -> None:
        end = self._at + len(step.picked)
        if list(step.picked) != self._unit[: len(step.picked)]:  # else a call had no room for the whole unit
            self._laws = {at: law for at, law in self._laws.items() if at < end}
        path = tuple(step.picked[:-1])
        whole = self._padded and path in self._replaced.own
        self._sizes[len(path)] += 1
        self._counts["units"] += 1
        self._counts["unverified"] += len(path)
        if whole and probability(self._replaced.own[path], step.picked[-1]) >= self._beta:
            assert step.prompted is not None
            assert step.prompted.logits is not None
            self._laws |= {end + i: row for i, row in enumerate(step.prompted.logits)}

    def reset(self) -> None:
        self._laws, self._at, self._unit, self._padded = {}, 0, [], False
        self._replaced.clear()

    def inherit(self, other: Drafter) -> None:
        if isinstance(other, Lud):
            self._laws = dict(other._laws)

    def report(self) -> dict[str, Any]:
        why = f"another text, of which {self._counts['unverified']} tokens were not verified (beta={self._beta:g})"
        return lossy_report("lud", why, self._counts, self._sizes)
