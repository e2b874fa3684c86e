"""Drafts from n-gram tables that keep the target's probabilities (STAND).

Under the last one, two and three tokens stand the target's best next tokens with their mean probabilities over the
latest visits. The longest known context drafts. Greedily (and by default) the likeliest tokens; with `verify=recursive`
under sampling, children are drawn without replacement from the table's distribution at the temperature at hand
(Gumbel-top-k), for a verifier that accepts them by it. The tree's shape is learned: by depth, length of the context
and rank among its siblings, what came true is held against what was claimed, and the next claims follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log
from operator import ge
from typing import Annotated, Any, Literal

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, Sampled, State
from edgedec.drafters._options import Followers, PromptRowsRead, TableNodes
from edgedec.drafters._tables.compiled import CompiledStand, compiled
from edgedec.drafters._tables.ranked import Ranked, Table, Tail, best_of, grow_ranked, keys_of, total_of
from edgedec.drafters._tables.states import checked_record
from edgedec.plugins import Opt
from edgedec.runtime import Outputs, TableSettings
from edgedec.sampling import Probs, Sampling

_CAP = 1 << 16
_ORDER = 3
_DEPTHS = 4  # deeper counts as this deep
_RATE = 0.3  # of a mean over visits the latest counts so much, at least
_STRENGTH = 8.0  # claims that a cell must have made before experience weighs as much as they
_FORGET = 1024.0
_MOST = 0.97
_TINY = 1e-9
_NOWHERE = -2

History = tuple[int, ...]
Place = tuple[int, History]  # depth, the last tokens

FACTS = DrafterFacts(table="tokens", paper="STAND: Model-Free Speculative Sampling")


def make(
    host: DrafterContext,
    nodes: TableNodes = 16,
    k: Followers = 8,
    verify: Annotated[Literal["match", "recursive"], Opt("Verification; recursive: of drawn tokens.")] = "match",
    prompt: PromptRowsRead = 0,
) -> Drafter:
    vocab = host.bundle.spec.vocab_size
    drafter = Stand(vocab, nodes, k, verify, prompt)
    settings = TableSettings("stand", vocab, nodes, drafter.k)
    if verify == "match" and (found := compiled(host, settings, CompiledStand)):
        found.prompt_rows = prompt
        return found
    drafter.table = host.table(("stand", drafter.k), lambda: drafter.table)
    return drafter


class RankRecord:
    """Claims and outcomes, by cell [draft drawn or not, depth, order, rank]. `scale`: the factor on a cell's claims."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.shape = (2, _DEPTHS, _ORDER, k)
        n = 2 * _DEPTHS * _ORDER * k
        self.claimed, self.came, self.scale = [0.0] * n, [0.0] * n, [1.0] * n

    def cell(self, drawn: bool, depth: int, order: int) -> int:
        """Where the ranks of these nodes begin."""
        return ((drawn * _DEPTHS + min(depth, _DEPTHS - 1)) * _ORDER + order - 1) * self.k

    def note(self, at: int, claim: float, came: bool) -> None:
        self.claimed[at] += claim
        self.came[at] += came
        if self.claimed[at] > _FORGET:
            self.claimed[at] /= 2
            self.came[at] /= 2
        self.scale[at] = (self.came[at] + _STRENGTH) / (self.claimed[at] + _STRENGTH)

    def take_up(self, claimed: list[float], came: list[float]) -> None:
        self.claimed, self.came = claimed, came
        self.scale = [(b + _STRENGTH) / (a + _STRENGTH) for a, b in zip(claimed, came, strict=True)]


class Stand(BaseDrafter):
    def __init__(self, vocab: int, nodes: int = 16, k: int = 8, verify: str = "match", prompt: int = 0) -> None:
        self.prompt_rows = prompt
        self.vocab, self.nodes, self.k, self.verify = vocab, nodes, min(k, vocab), verify
        self.outputs = Outputs(top=self.k)
        self.table, self.record = Table(self.k, _CAP, vocab), RankRecord(self.k)
        self._tail = Tail(_ORDER)
        self._drawn: _Drawing | None = None

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        tail, nodes = self._tail.follow(context.ids), min(nodes, self.nodes)
        if self.verify == "recursive" and context.sampling.temperature > 0 and nodes > 0:
            self._drawn = _Drawing(self, context.sampling, context.rng, nodes)
            return self._drawn.draft(tail, min_path_prob)
        self._drawn = None
        return grow_ranked((0, tail), self._followers, _advance, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        for part in step.prompt if self.prompt_rows else ():
            self._learn(part, self._tail.histories(part))
        histories = self._tail.histories(step)
        if self._drawn is None:
            self._score(step, histories)
        else:
            self._drawn.score(step)
            self._drawn = None
        self._learn(step, histories)

    def _learn(self, step: StepResult, histories: Sequence[History]) -> None:
        if (shown := best_of(step.result, self.k)) is not None:
            keys: list[int] = []
            lines: list[int] = []
            for i, history in enumerate(histories):
                keys += keys_of(history, self.vocab)
                lines += [i] * len(history)
            self.table.learn(keys, shown[0][lines], shown[1][lines], _RATE)

    def reset(self) -> None:
        self._tail.reset()
        self._drawn = None

    def state(self) -> State:
        record = self.record
        kept = {"claimed": record.claimed, "came": record.came}
        return self.table.state() | {
            name: np.array(values, np.float32).reshape(record.shape) for name, values in kept.items()
        }

    def restore(self, state: State) -> None:
        record = RankRecord(self.k)
        claimed, came = checked_record(state, record.shape)
        table = Table(self.k, _CAP, self.vocab)
        table.restore(state)
        record.take_up(claimed.ravel().tolist(), came.ravel().tolist())
        self.table, self.record = table, record

    def report(self) -> dict[str, Any]:
        return {"contexts": len(self.table)}

    def known(self, history: History) -> tuple[int, list[int], list[float]]:
        """(tokens of context, what follows, how likely) by the longest known end of `history`; order 0: nothing."""
        keys = keys_of(history, self.vocab)
        for n in range(len(keys), 0, -1):
            slot = self.table.find(keys[n - 1])
            if slot >= 0:
                return n, *self.table.row(slot)
        return 0, [], []

    def _followers(self, state: Place) -> Ranked | None:
        depth, history = state
        order, ids, p = self.known(history)
        if not order:
            return None
        scale, at = self.record.scale, self.record.cell(False, depth, order)
        p = _together([x * scale[at + rank] for rank, x in enumerate(p)])
        if all(map(ge, p, p[1:])):
            return ids, p, p
        ranks = sorted(range(len(p)), key=p.__getitem__, reverse=True)
        p = [p[rank] for rank in ranks]
        return [ids[rank] for rank in ranks], p, p

    def _score(self, step: StepResult, histories: Sequence[History]) -> None:
        """What the table claimed to follow each accepted row, and what did; drafted or not."""
        for depth, (row, token) in enumerate(zip(step.path, step.picked, strict=True)):
            order, ids, p = self.known(histories[row])
            at = self.record.cell(False, depth, order)
            for rank, x in enumerate(p):
                self.record.note(at + rank, x, ids[rank] == token)


def _advance(state: Place, token: int) -> Place:
    depth, history = state
    return depth + 1, (*history, token)[-_ORDER:]


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


class _Drawing:
    """One drawn tree. Whether another token is drawn is settled by what was drawn before it, never by itself, and
    what was drawn stays: so each child is a fair draw from what its elder siblings left of q."""

    def __init__(self, owner: Stand, sampling: Sampling, rng: np.random.Generator, nodes: int) -> None:
        self.owner, self.sampling, self.nodes = owner, sampling, nodes
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.claims: list[float] = []
        self.probs: list[Probs] = []
        self._opened: dict[int, _Open] = {}
        self._noise: list[list[float]] = rng.gumbel(size=(nodes + 1, owner.k)).tolist()

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
            token = place.tokens[rank]
            self.tokens.append(token)
            self.parents.append(place.node)
            self.claims.append(place.claims[rank])
            self.probs.append(place.q)
            history, depth = (*history, token)[-_ORDER:], depth + 1
        return Draft(self.tokens, self.parents, self.claims, sampled=Sampled("recursive", self.probs))

    def score(self, step: StepResult) -> None:
        """Record which of the children tried along the accepted path were right."""
        record, node = self.owner.record, -1
        tokens, parents = step.tokens(), (step.rows.parents[step.root :] - step.root).tolist()
        for row, token in zip(step.path, step.picked, strict=True):
            if (place := self._opened.get(node)) is None:
                return
            tried = {tokens[i] for i, parent in enumerate(parents) if parent == row and i}
            mine = [i for i, parent in enumerate(self.parents) if parent == node and self.tokens[i] in tried]
            for rank, i in enumerate(mine):
                record.note(place.cell + rank, place.guesses[rank], self.tokens[i] == token)
            node = next((i for i in mine if self.tokens[i] == token), _NOWHERE)

    def _open(self, node: int, history: History, depth: int) -> _Open | None:
        order, ids, p = self.owner.known(history)
        p = _warped(p, self.sampling)
        if not p:
            return None
        noise, total = self._noise[len(self._opened)], sum(p)
        drawn = sorted([(log(x) + g, token) for x, g, token in zip(p, noise, ids, strict=False)], reverse=True)
        pairs = sorted(zip(ids, p, strict=False))
        q = Probs(np.array([t for t, _ in pairs], np.int64), np.array([x / total for _, x in pairs]))
        at = self.owner.record.cell(True, depth, order)
        guesses = _guesses(p[0] / total, len(p))
        scale = self.owner.record.scale[at : at + len(p)]
        claims = _together([x * y for x, y in zip(guesses, scale, strict=False)])
        self._opened[node] = place = _Open(node, [token for _, token in drawn], guesses, claims, at, q)
        return place


def _together(claims: Sequence[float]) -> list[float]:
    """Claims of siblings, each scaled by its own record: at most one of them comes true, so their sum is at most 1."""
    capped = [min(claim, _MOST) for claim in claims]
    total = total_of(capped)
    return [claim / total for claim in capped] if total > 1 else capped


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
