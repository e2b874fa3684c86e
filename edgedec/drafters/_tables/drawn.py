"""Trees that are drawn from a table's distributions, child by child without replacement (STAND).

Which child is drawn next is settled by what was drawn before it, never by itself, and what was drawn stays: so each
child is a fair draw from what its elder siblings left of q, and verification by `recursive` keeps the distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log

import numpy as np

from edgedec.decoding.messages import StepResult
from edgedec.drafters import Draft, Sampled
from edgedec.drafters._tables.claims import ORDER, RankRecord, together
from edgedec.sampling import Probs, Sampling
from edgedec.trees.choices import Ranks, chosen_nodes

_TINY = 1e-9
_NOWHERE = -2

History = tuple[int, ...]
Place = tuple[int, History]  # depth, the last tokens
# (tokens of context, what follows, how likely) by the longest known end of a history; order 0: nothing.
Known = Callable[[History], tuple[int, list[int], list[float]]]


@dataclass(frozen=True)
class _Open:
    """A node whose children may be drawn: their order, how likely each rank was taken to come true before
    and after experience with its cell, and q."""

    node: int
    tokens: Sequence[int]
    guesses: Sequence[float]
    claims: Sequence[float]
    cell: int
    q: Probs


class DrawnTree:
    """One drawn tree of at most `nodes` tokens."""

    def __init__(
        self, known: Known, record: RankRecord, sampling: Sampling, rng: np.random.Generator, nodes: int
    ) -> None:
        self.known, self.record, self.sampling, self.nodes = known, record, sampling, nodes
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.claims: list[float] = []
        self.probs: list[Probs] = []
        self._opened: dict[int, _Open] = {}
        self._noise: list[list[float]] = rng.gumbel(size=(nodes + 1, record.k)).tolist()

    def draft(self, history: History, min_path_prob: float) -> Draft:
        """Drawn next is always the place likeliest to come true, by its parent's table and its own rank."""
        # (-path, count, path of the parent, rank, parent, history and depth of the parent)
        heap: list[tuple[float, int, float, int, _Open, History, int]] = []
        count, node, depth, worth = 0, -1, 0, 1.0
        while len(self.tokens) < self.nodes:
            if (place := self._open(node, history, depth)) is not None:
                heappush(heap, (-worth * place.claims[0], count, worth, 0, place, history, depth))
                count += 1
            if not heap or -heap[0][0] < min_path_prob:
                break
            negative, _, above, rank, place, history, depth = heappop(heap)
            if rank + 1 < len(place.tokens):
                path = above * place.claims[rank + 1]
                heappush(heap, (-path, count, above, rank + 1, place, history, depth))
                count += 1
            node, worth = len(self.tokens), -negative
            token = self._add(place, rank)
            history, depth = (*history, token)[-ORDER:], depth + 1
        return self._draft()

    def chosen(self, history: History, choices: Sequence[Ranks]) -> Draft:
        """The places of a fixed tree, each with the token drawn there."""
        for _, place, rank in chosen_nodes(choices, (0, history), self._child, deeper, self.nodes):
            self._add(place, rank)
        return self._draft()

    def _child(self, node: int, state: Place) -> _Open | None:
        return self._open(node, state[1], state[0])

    def _add(self, place: _Open, rank: int) -> int:
        self.tokens.append(place.tokens[rank])
        self.parents.append(place.node)
        self.claims.append(place.claims[rank])
        self.probs.append(place.q)
        return self.tokens[-1]

    def _draft(self) -> Draft:
        return Draft(self.tokens, self.parents, self.claims, sampled=Sampled("recursive", self.probs))

    def score(self, step: StepResult) -> None:
        """Record which of the children tried along the accepted path were right."""
        node = -1
        tokens, parents = step.tokens(), (step.rows.parents[step.root :] - step.root).tolist()
        for row, token in zip(step.path, step.picked, strict=True):
            if (place := self._opened.get(node)) is None:
                return
            tried = {tokens[i] for i, parent in enumerate(parents) if parent == row and i}
            mine = [i for i, parent in enumerate(self.parents) if parent == node and self.tokens[i] in tried]
            for rank, i in enumerate(mine):
                self.record.note(place.cell + rank, place.guesses[rank], self.tokens[i] == token)
            node = next((i for i in mine if self.tokens[i] == token), _NOWHERE)

    def _open(self, node: int, history: History, depth: int) -> _Open | None:
        order, ids, p = self.known(history)
        p = _warped(p, self.sampling)
        if not p:
            return None
        noise, total = self._noise[len(self._opened)], sum(p)
        drawn = sorted([(log(x) + g, token) for x, g, token in zip(p, noise, ids, strict=False)], reverse=True)
        pairs = sorted(zip(ids, p, strict=False))
        q = Probs(np.array([t for t, _ in pairs], np.int64), np.array([x / total for _, x in pairs]))
        at = self.record.cell(True, depth, order)
        guesses = _guesses(p[0] / total, len(p))
        scale = self.record.scale[at : at + len(p)]
        claims = together([x * y for x, y in zip(guesses, scale, strict=False)])
        self._opened[node] = place = _Open(node, [token for _, token in drawn], guesses, claims, at, q)
        return place


def deeper(state: Place, token: int) -> Place:
    """The place after another token."""
    depth, history = state
    return depth + 1, (*history, token)[-ORDER:]


def _guesses(most: float, ranks: int) -> list[float]:
    """Claims before experience: the surer q, the likelier it is right; later ranks have what is left."""
    sure = 0.4 + 0.5 * most
    return [sure * (1 - sure) ** rank for rank in range(ranks)]


def _warped(p: Sequence[float], sampling: Sampling) -> list[float]:
    """Probabilities, descending, by the temperature and the cuts of `sampling` (near enough: it is only a draft);
    the best stands at 1."""
    if not p or p[0] <= 0:
        return []
    hot = [(x / p[0]) ** (1 / sampling.temperature) for x in p[: sampling.top_k or None] if x > 0]
    total, mass, kept = sum(hot), 0.0, []
    for x in hot:
        if x <= _TINY or x < sampling.min_p or mass >= sampling.top_p * total:
            break
        kept.append(x)
        mass += x
    return kept
