"""Drafts with trained prompt tokens, for which the target itself predicts several tokens ahead (PPD).

    root ─┬─ 5 ── 8 ── p1 ── p2      8 is the last token accepted: what p1 and p2 said are the guesses for the
          └─ p1 ── p2                tokens after the next one, drafted as a tree in the next call

A prompt token is a row of the call that verifies, with an embedding of its own and below a drafted token; it is never
accepted. Where they stand follows from what they are worth: prompt row k below a token is used if the text ends up
there, and brings what guesses at depth k brought of late; it costs a row (the dynamic sparse tree, sized by measured
cost). Training: `train-heads --kind prompt`; layout: `models/drafts/prompt.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, PromptRows
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._prompting import PromptPlan
from edgedec.drafters._slices.stack import READING, Record, chances
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Hidden, Outputs
from edgedec.trees.grow import Follower, grow

DRAFT = "prompt"
# So many tokens are tried at each depth; none less likely than this.
_TOP, _LEAST = 8, 0.005
_SLOW = 0.98
# A prompt row runs if its gain is this multiple of its cost, because its guesses cost rows as well.
_MARGIN = 1.5

Level = list[tuple[int, float]]

FACTS = DrafterFacts(draft=DRAFT, guides=True, paper="PPD: Parallel Prompt Decoding")


def make(
    host: DrafterContext,
    length: Annotated[
        int, Opt("Prompt tokens in a row; 0: as many as were trained.", 0, 64, aliases=("depth", "gamma"))
    ] = 0,
    rows: Annotated[int, Opt("Rows of prompt tokens in a call.", 1)] = 24,
) -> PromptDrafter:
    facts, can = facts_of(host, DRAFT), host.runtime.capabilities
    if not can.trees or not can.embeddings:
        raise UsageError(f"drafter prompt: the runtime {host.runtime.name} runs no rows of embeddings below a tree")
    if length > facts.depth:
        raise UsageError(f"drafter prompt: length={length}: the bundle has {facts.depth} prompt tokens")
    return PromptDrafter(host, prompts_of(host)[: length or facts.depth], rows)


def prompts_of(host: DrafterContext, kind: str = DRAFT) -> Hidden:
    """The embeddings [depth, hidden_size] of the bundle's prompt tokens, or of another kind's."""
    facts, hidden = host.bundle.manifest.drafts[kind], host.runtime.spec.hidden_size
    path = host.bundle.file(facts.embeddings) if facts.embeddings else host.bundle.path
    found = np.fromfile(path, "<f4") if facts.embeddings else np.zeros(0, np.float32)
    if len(found) != facts.depth * hidden or not np.isfinite(found).all():
        raise BundleCorrupt(f"{path}: does not hold {facts.depth} embeddings of {hidden} numbers")
    return found.reshape(-1, hidden)


class PromptDrafter(BaseDrafter):
    outputs = Outputs(top=_TOP)

    def __init__(self, host: DrafterContext, prompts: Hidden, rows: int) -> None:
        self._prompts, self._most = prompts, rows
        self._embeddings = TokenEmbeddings(host)
        # The acceptance rate of each depth, given that the depths before were right.
        self._records = [Record(decay=_SLOW) for _ in prompts]
        self._levels: list[Level] = []
        self._token, self._length = -1, 0
        self._ends: list[tuple[int, int, int]] = []
        self.run = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self._length, self._ends = 0, []
        if not self._levels or nodes < 1 or context.ids[-1] != self._token:
            return Draft()
        self._length = len(self._levels)
        followers = [[(token, p, depth) for token, p in level] for depth, level in enumerate(self._levels, 1)]
        found: list[list[Follower[int]]] = [*followers, []]
        return grow(0, found.__getitem__, nodes, min_path_prob)

    def append(self, context: Context, draft: Draft, plan: PromptPlan) -> Generator[Request, Completed, Draft]:
        """The draft with a chain of prompt tokens below each token where that pays; not while a prompt is read."""
        pending = context.pending()
        lengths = self._lengths(draft, plan) if len(pending) <= READING else {}
        if not lengths:
            return draft
        parents = list[int]()
        for node, length in lengths.items():
            start = len(draft.tokens) + len(parents)
            self._ends.append((node, start - len(draft.tokens), length))
            parents += [node, *range(start, start + length - 1)]
        self.run += len(parents)
        return (yield from self._with_rows(context, draft, lengths, parents))

    def _with_rows(
        self, context: Context, draft: Draft, lengths: Mapping[int, int], parents: Sequence[int]
    ) -> Generator[Request, Completed, Draft]:
        """The draft with prompt tokens: so many below each of these drafted tokens (-1: the root)."""
        known = yield from self._embeddings.of([*context.pending(), *draft.tokens])
        own = [self._prompts[:length] for length in lengths.values()]
        return draft.with_prompts(PromptRows(parents, np.concatenate([known, *own])))

    def _lengths(self, draft: Draft, plan: PromptPlan) -> dict[int, int]:
        """How many prompt tokens below which drafted token (-1: the root)."""
        last = _ends_there(draft.parents, plan.chances)
        worth, brings = list[tuple[float, int, int]](), 1.0
        for depth, record in enumerate(self._records, 1):
            brings *= record.hope
            worth += [(p * brings, node, depth) for node, p in last.items()]
        chosen = sorted((one for one in worth if one[0] > _MARGIN * plan.row), reverse=True)
        found: dict[int, int] = {}
        for _, node, depth in chosen[: max(0, min(self._most, plan.room))]:
            found[node] = max(found.get(node, 0), depth)
        return dict(sorted(found.items()))

    def observe(self, step: StepResult) -> None:
        for depth, (level, token) in enumerate(zip(self._levels[: self._length], step.picked, strict=False)):
            hit = any(token == guess for guess, _ in level)
            self._records[depth].add(hit, min(1.0, sum(p for _, p in level)))
            if not hit:
                break
        self._levels, self._length, self._token = [], 0, step.picked[-1]
        node = step.path[-1] - 1
        place = next(((start, length) for at, start, length in self._ends if at == node), None)
        if place is not None and step.prompted is not None and step.prompted.ids is not None:
            self._levels = _levels(step.prompted.ids, step.prompted.scores, *place)
        self._ends = []

    def reset(self) -> None:
        self._levels, self._length, self._token, self._ends = [], 0, -1, []

    def report(self) -> dict[str, Any]:
        return {"rates": [round(record.rate, 3) for record in self._records], "rows": self.run}


def _ends_there(parents: Sequence[int], chances: Sequence[float]) -> dict[int, float]:
    """The probability of each drafted token (-1: the root) to be the last accepted one.

    parents -1 0 -1, chances 0.6 0.3 0.2 -> {-1: 0.2, 0: 0.3, 1: 0.3, 2: 0.2}
    """
    found = {-1: 1.0} | dict(enumerate(chances))
    for parent, chance in zip(parents, chances, strict=True):
        found[parent] -= chance
    return {node: max(p, 0.0) for node, p in found.items()}


def _levels(ids: Any, scores: Any, start: int, length: int) -> list[Level]:
    """What the prompt rows from `start` on guess, the likeliest first."""
    rows = zip(ids[start : start + length].tolist(), scores[start : start + length].tolist(), strict=True)
    return [[(t, p) for t, p in zip(tokens, chances(s), strict=True) if t >= 0 and p >= _LEAST] for tokens, s in rows]
