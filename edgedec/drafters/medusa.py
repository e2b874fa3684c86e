"""Drafts with Medusa heads: one for each token ahead, independent of each other.

One run of a small graph gives candidates for every depth; the tree takes their likeliest combinations, or the shape
that `choices` names. Heads that were published (`models/drafts/medusa.py`) are a graph each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path
from typing import Annotated, Any

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts
from edgedec.drafters._heads.ladder import Ladder
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._networks.heads import Floats, HeadInterface, open_head
from edgedec.drafters._options import TrainedLength
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Outputs
from edgedec.trees.grow import Follower, grow

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
HEAD = HeadInterface("medusa", inputs=("hidden",), outputs=("ids", "logprobs"))
DRAFT = "medusa"
_LEAST, _MOST = 1e-4, 0.999

FACTS = DrafterFacts(auto=10, head=HEAD.kind, draft=DRAFT, guides=True, paper="Medusa")


def make(
    host: DrafterContext,
    length: TrainedLength = 0,
    choices: Annotated[str, Opt("JSON file of a fixed tree: paths of ranks, as [[0], [0, 0], [1]].")] = "",
) -> Medusa:
    tree = read_choices(Path(choices)) if choices else ()
    if DRAFT in host.bundle.manifest.drafts:
        ladder = Ladder(host, facts_of(host, DRAFT))
        fits(tree, length or ladder.depth)
        return Medusa(ladder.stacked, length or ladder.depth, host.runtime.spec.n_blocks - 1, tree)
    head = open_head(host.bundle, HEAD, host.runtime.capabilities.threads)
    depth = min(length or head.facts.depth, head.facts.depth)
    fits(tree, depth)
    return Medusa(head.run, depth, host.runtime.spec.n_blocks - 1, tree)


def read_choices(path: Path) -> tuple[tuple[int, ...], ...]:
    """The paths of a fixed tree, shorter ones first; UsageError if they are not a tree."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"drafter medusa: choices={path}: cannot be read ({error})") from None
    if not isinstance(found, list) or not all(
        isinstance(p, list) and p and all(type(i) is int for i in p) for p in found
    ):
        raise UsageError(f"drafter medusa: choices={path}: expected a list of paths such as [[0], [0, 0], [1]]")
    paths = {tuple(p) for p in found}
    if any(len(p) > 1 and p[:-1] not in paths for p in paths) or any(i < 0 for p in paths for i in p):
        raise UsageError(f"drafter medusa: choices={path}: a path without the path before it")
    return tuple(sorted(paths, key=lambda p: (len(p), p)))


def fits(tree: Sequence[Sequence[int]], depth: int) -> None:
    """UsageError if a fixed tree is deeper than the heads that are used."""
    if tree and len(tree[-1]) > depth:
        raise UsageError(f"drafter medusa: choices: paths of {len(tree[-1])} tokens, and there are {depth} heads")


class Medusa(BaseDrafter):
    def __init__(
        self, run: Callable[[Floats], list[Any]], depth: int, block: int, choices: Sequence[Sequence[int]] = ()
    ) -> None:
        """run: a state [1, hidden_size] -> ids and logprobs [1, depth, top]; block: the model's last, whose output it
        reads; choices: paths of a fixed tree, shorter ones first."""
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


def chosen(choices: Sequence[Sequence[int]], levels: Sequence[tuple[list[int], list[float]]], nodes: int) -> Draft:
    """The tree of these paths of ranks, as far as there are depths, ranks and nodes for it."""
    place: dict[tuple[int, ...], int] = {(): -1}
    tokens: list[int] = []
    parents: list[int] = []
    claims: list[float] = []
    for path in choices:
        above, rank = tuple(path[:-1]), path[-1]
        if (
            len(tokens) >= nodes
            or above not in place
            or len(path) > len(levels)
            or rank >= len(levels[len(path) - 1][0])
        ):
            continue
        ids, logprobs = levels[len(path) - 1]
        place[tuple(path)] = len(tokens)
        tokens.append(ids[rank])
        parents.append(place[above])
        claims.append(min(exp(logprobs[rank]), _MOST))
    return Draft(tokens, parents, claims)
