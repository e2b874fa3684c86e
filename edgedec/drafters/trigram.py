"""Drafts from the target's own predictions after the last two tokens, learned while decoding (ADED).

Every verified row shows what the target predicts after two tokens; a new prediction weighs `rate`, so that
the table follows the text. Where two tokens were never met, the last one alone must do (for less). Drafts are built
by exploitation and a bounded share of exploration: what leads where little was learned yet goes a little before
what is as likely and well known, for its row teaches the table even if it is refused (PUCT).
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Annotated, Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, State
from edgedec.drafters._options import Followers, TableNodes
from edgedec.drafters._tables.compiled import CompiledTrigram, compiled
from edgedec.drafters._tables.corpus import corpus_state
from edgedec.drafters._tables.ranked import Ranked, Table, Tail, best_of, grow_ranked
from edgedec.plugins import Opt
from edgedec.runtime import Outputs, TableSettings

_PAIRS, _SINGLES = 1 << 16, 1 << 15
_TEXT = 2048  # of a long prompt the last tokens are learned
_SAID = 0.5  # the weight of a single occurrence in a text
_TRUST, _BACKED_OFF = 0.8, 0.5  # of what was seen after these two tokens, or after the last alone
_TRIED = 4  # so many followers are looked up; the others hardly matter

Pair = tuple[int, int]

FACTS = DrafterFacts(auto=4, table="tokens", paper="ADED: Adaptive Draft-Verification")


def make(
    host: DrafterContext,
    nodes: TableNodes = 16,
    k: Followers = 8,
    rate: Annotated[float, Opt("How fast the tables follow what the model says.", above=0, high=1)] = 0.3,
    explore: Annotated[float, Opt("Most that the exploration bonus adds to a probability.", 0, 1)] = 0.05,
    corpus: Annotated[str, Opt("Text file whose statistics the tables begin with.")] = "",
) -> Drafter:
    vocab = host.bundle.spec.vocab_size
    settings = TableSettings("trigram", vocab, nodes, min(k, vocab), rate=rate, explore=explore)
    start = corpus_state(host, corpus, settings.k, (_PAIRS, _SINGLES)) if corpus else None
    if found := compiled(host, settings, CompiledTrigram, start, corpus):
        return found
    drafter = Trigram(vocab, nodes, k, rate, explore)
    if start is not None:
        drafter.restore(start)
    drafter.pairs, drafter.singles = host.table(
        ("trigram", drafter.k, corpus), lambda: (drafter.pairs, drafter.singles)
    )
    return drafter


class Trigram(BaseDrafter):
    """explore: the most that the exploration bonus adds to a token's probability."""

    def __init__(self, vocab: int, nodes: int = 16, k: int = 8, rate: float = 0.3, explore: float = 0.05) -> None:
        self.vocab, self.nodes, self.k = vocab, nodes, min(k, vocab)
        self.rate, self.explore = rate, explore
        self.outputs = Outputs(top=self.k)
        self.pairs, self.singles = self._tables()
        self._tail, self._read = Tail(2), False

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        if not self._read:
            self._read_text(context.ids[: context.n_prompt][-_TEXT:])
        tail = self._tail.follow(context.ids)
        return grow_ranked(
            (tail[0] if len(tail) > 1 else -1, tail[-1]),
            self._followers,
            _advance,
            min(nodes, self.nodes),
            min_path_prob,
        )

    def observe(self, step: StepResult) -> None:
        histories = self._tail.histories(step)
        if (shown := best_of(step.result, self.k)) is None:
            return
        ids, p = shown
        self.singles.learn([history[-1] for history in histories], ids, p, rate=1.0)
        first = 1 if len(histories[0]) < 2 else 0  # nothing is known to stand before this root
        if pairs := [a * self.vocab + b for a, b in histories[first:]]:
            self.pairs.learn(pairs, ids[first:], p[first:], self.rate)

    def reset(self) -> None:
        self._tail.reset()
        self._read = False

    def state(self) -> State:
        return self.pairs.state("pairs.") | self.singles.state("singles.")

    def restore(self, state: State) -> None:
        pairs, singles = self._tables()
        pairs.restore(state, "pairs.")
        singles.restore(state, "singles.")
        self.pairs, self.singles = pairs, singles

    def report(self) -> dict[str, Any]:
        return {"pairs": len(self.pairs), "tokens": len(self.singles)}

    def _tables(self) -> tuple[Table, Table]:
        return Table(self.k, _PAIRS, self.vocab), Table(self.k, _SINGLES, self.vocab)

    def _read_text(self, ids: list[int]) -> None:
        """What followed what in a prompt."""
        self._read = True
        said = np.full((len(ids), self.k), -1, np.int32)
        said[:-1, 0] = ids[1:]
        p = np.zeros((len(ids), self.k), np.float32)
        p[:-1, 0] = _SAID
        if len(ids) > 1:
            self.singles.learn(ids[:-1], said[:-1], p[:-1], rate=1.0)
        if len(ids) > 2:
            keys = [a * self.vocab + b for a, b in pairwise(ids[:-1])]
            self.pairs.learn(keys, said[1:-1], p[1:-1], self.rate)

    def _followers(self, pair: Pair) -> Ranked | None:
        before, last = pair
        slot = self.pairs.find(before * self.vocab + last)
        if slot >= 0:
            ids, p = self.pairs.row(slot)
            p = [_TRUST * x for x in p]
            return self._explored(last, ids, p, int(self.pairs.visits[slot])) if self.explore else (ids, p, p)
        slot = self.singles.find(last)
        if slot < 0:
            return None
        ids, p = self.singles.row(slot)
        p = [_BACKED_OFF * x for x in p]
        return ids, p, p

    def _explored(self, last: int, ids: list[int], p: list[float], visits: int) -> Ranked:
        """The first few tokens with an exploration bonus p sqrt(N) / (1 + n), for N visits here and n visits after the
        token."""
        pairs, base, urge, haste = self.pairs, last * self.vocab, self.explore * sqrt(visits), p.copy()
        for i, token in enumerate(ids[:_TRIED]):
            slot = pairs.find(base + token)
            known = pairs.visits.item(slot) if slot >= 0 else 0
            haste[i] += min(self.explore, urge * p[i] / (1 + known))
        if sorted(haste, reverse=True) == haste:
            return ids, p, haste
        order = sorted(range(len(p)), key=haste.__getitem__, reverse=True)
        return [ids[i] for i in order], [p[i] for i in order], [haste[i] for i in order]


def _advance(pair: Pair, token: int) -> Pair:
    return pair[1], token
