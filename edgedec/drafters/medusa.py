"""Drafts with Medusa heads: one for each token ahead, independent of each other.

One run of a small graph gives candidates for every depth; the tree takes their likeliest combinations, or the shape
that `choices` names. Heads that were published (`models/drafts/medusa.py`) are a graph each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts
from edgedec.drafters._heads.ladder import Ladder
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._networks.heads import Floats, HeadInterface, open_head
from edgedec.drafters._options import Choices, TrainedLength
from edgedec.errors import UsageError
from edgedec.runtime import Outputs
from edgedec.trees.choices import Ranks, chosen_draft, chosen_nodes, read_choices
from edgedec.trees.grow import Follower, grow

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
HEAD = HeadInterface("medusa", inputs=("hidden",), outputs=("ids", "logprobs"))
DRAFT = "medusa"
_LEAST, _MOST = 1e-4, 0.999

FACTS = DrafterFacts(auto=10, head=HEAD.kind, draft=DRAFT, guides=True, paper="Medusa")


def make(
    host: DrafterContext,
    length: TrainedLength = 0,
    choices: Choices = "",
) -> Medusa:
    tree = read_choices(Path(choices), "medusa") if choices else ()
    if DRAFT in host.bundle.manifest.drafts:
        ladder = Ladder(host, facts_of(host, DRAFT))
        fits(tree, length or ladder.depth)
        return Medusa(ladder.stacked, length or ladder.depth, host.runtime.spec.n_blocks - 1, tree)
    head = open_head(host.bundle, HEAD, host.runtime.capabilities.threads)
    depth = min(length or head.facts.depth, head.facts.depth)
    fits(tree, depth)
    return Medusa(head.run, depth, host.runtime.spec.n_blocks - 1, tree)


def fits(tree: Sequence[Ranks], depth: int) -> None:
    """UsageError if a fixed tree is deeper than the heads that are used."""
    if (longest := max(map(len, tree), default=0)) > depth:
        raise UsageError(f"drafter medusa: choices: paths of {longest} tokens, and there are {depth} heads")


class _Level(NamedTuple):
    tokens: Sequence[int]
    claims: Sequence[float]


class Medusa(BaseDrafter):
    def __init__(
        self, run: Callable[[Floats], list[Any]], depth: int, block: int, choices: Sequence[Ranks] = ()
    ) -> None:
        """run: a state [1, hidden_size] -> ids and logprobs [1, depth, top]; block: the model's last, whose output it
        reads; choices: paths of a fixed tree, each after the one before its last rank."""
        self._run, self._depth, self._block, self._choices = run, depth, block, choices
        self.outputs = Outputs(hidden=(block,))
        self._hidden: Floats | None = None
        self._token = -1

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        # The observed state is that of the token before the last; the text may have ended earlier.
        if self._hidden is None or nodes < 1 or context.ids[-1] != self._token:
            return Draft()
        ids, logprobs = self._run(self._hidden)  # [1, depth, top] each, the likeliest first
        levels = list(zip(ids[0].tolist(), logprobs[0].tolist()))[: self._depth]
        if self._choices:
            return chosen(self._choices, levels, nodes)
        followers = [_followers(*level, depth) for depth, level in enumerate(levels, 1)]
        followers.append([])
        return grow(0, followers.__getitem__, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        last = step.root + step.path[-1]
        self._hidden, self._token = step.result.hidden[self._block][last : last + 1].copy(), step.picked[-1]

    def reset(self) -> None:
        self._hidden, self._token = None, -1


def _followers(ids: list[int], logprobs: list[float], depth: int) -> list[Follower[int]]:
    """Of every node above this depth the same; the unlikely are left out."""
    return [(token, min(p, _MOST), depth) for token, p in zip(ids, map(exp, logprobs)) if p >= _LEAST]


def chosen(choices: Sequence[Ranks], levels: Sequence[tuple[list[int], list[float]]], nodes: int) -> Draft:
    """The tree of these paths of ranks, as far as there are depths, ranks and nodes for it."""

    def followers(node: int, depth: int) -> _Level | None:
        if depth >= len(levels):
            return None
        ids, logprobs = levels[depth]
        return _Level(ids, [min(exp(logprob), _MOST) for logprob in logprobs])

    return chosen_draft(chosen_nodes(choices, 0, followers, lambda depth, token: depth + 1, nodes))
