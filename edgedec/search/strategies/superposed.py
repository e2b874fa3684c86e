"""Superposed decoding: n texts at the price of one; each step reads a mixture of their last tokens; lossy.

Shen et al. (arXiv:2405.18400), from the authors' code (github RAIVNLab/SuperposedDecoding, MIT). One cache is all
texts'. A step reads sum w_i E_i, E_i the embedding of the last token of text i and w the softmax of the texts' scores.
The law that comes of it is one for all texts, but for penalties and the like; sharpened by `temperature` and cut to the
3 n likeliest tokens. What fits after which text is for n-grams of documents to say:

    score of text + token = score of text + (1 - weight) log p + weight log q

with q = sum over lengths 2 to 6 of w_l · the share of `token` after the last l - 1 tokens in the documents; lengths
that the documents do not have add nothing. A text that no token fits pays 200 in place of the second term. The 2 n best
are looked at; those that end are set apart, the n best of the others go on.

A text that ended scores the sum over its length, the end counted: the authors' perplexity. That such texts and those
cut at the limit are one list, and that stop strings end a text, are our own choices. Without documents (weight=0) all
texts have one law, so they soon tell nothing apart: then only n=1, greedy decoding, makes sense.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from edgedec.decoding.chain import make_chain
from edgedec.decoding.messages import Token
from edgedec.drafters.datastore import opened
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Outputs
from edgedec.search.branch import Branch
from edgedec.search.embeddings import KnownEmbeddings
from edgedec.search.extending import NextTokens, forwarded, next_tokens, outputs_of
from edgedec.search.facts import SearchFacts
from edgedec.search.host import SearchHost
from edgedec.search.options import Rank
from edgedec.search.room import Room
from edgedec.search.strategies.beam import chosen
from edgedec.storage.datastore import END, Datastore
from edgedec.text.stream import TextStream

FACTS = SearchFacts(operator=("store",), fixed=True, paper="arXiv:2405.18400", rests="authors' code")
# By the number of tokens before the last one of an n-gram.
_SHARES = (0.01, 0.04, 0.15, 0.18, 0.12)
# The n-grams' part of the score of a text that no token fits.
_UNFIT = -200.0


def make(
    host: SearchHost,
    n: Annotated[int, Opt("Texts.", 1, 64)] = 3,
    store: Annotated[str, Opt("File of `edgedec datastore build FILE -m MODEL -o STORE`: the documents.")] = "",
    weight: Annotated[float, Opt("Of the documents' n-grams.", 0, 1)] = 0.54,
    temperature: Annotated[float, Opt("Of the one law; the authors take 0.12 for n=10.", above=0, high=10)] = 0.06,
    rank: Rank = 0,
) -> SuperposedTexts:
    if not host.capabilities.embeddings:
        raise RuntimeUnavailable("--search superposed: this engine runs no rows of embeddings")
    if rank >= n:
        raise UsageError(f"--search superposed: rank={rank}: {n} texts are written; must be below n")
    if weight and not (store and host.model is not None):
        raise UsageError("--search superposed: store: name a datastore (edgedec datastore build), or give weight=0")
    grams = NGrams(opened(store, host.model.bundle)) if weight and host.model is not None else None
    return SuperposedTexts(SuperposedRule(n, temperature, weight, grams), rank)


class NGrams:
    """The n-grams of documents."""

    def __init__(self, store: Datastore) -> None:
        self._store = store

    def after(self, ids: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """q of each token after a text.

        After "a b" in the documents "a b c" and "x b d": c has 1 of 2 after b and 1 of 1 after a b, 0.01 / 2 + 0.04.
        """
        before = list(ids[-len(_SHARES) :])
        totals = self._store.counts(before)
        ends = self._store.counts([*before, END])[1:]
        return [self._share(totals, ends, self._store.counts([*before, token])[1:]) for token in tokens]

    @staticmethod
    def _share(totals: list[int], ends: list[int], found: list[int]) -> float:
        """totals: places of the last 1, 2, … tokens; ends: those that end a document; found: those before a token."""
        q = 0.0
        for i, count in enumerate(found):
            q += _SHARES[i] * count / (totals[i] - (ends[i] if i < len(ends) else 0))
        return q


@dataclass(frozen=True)
class SuperposedRule:
    """n: texts; temperature: of the law; weight: of the n-grams; grams: None where that is 0."""

    n: int
    temperature: float
    weight: float
    grams: NGrams | None = None

    def law(self, nexts: NextTokens) -> list[tuple[int, float]]:
        """The 3 n likeliest tokens with the logarithms of their shares."""
        ids = nexts.ids[: 3 * self.n]
        scores = np.array(nexts.logps[: 3 * self.n]) / self.temperature
        shares = scores - np.logaddexp.reduce(scores)
        return list(zip(ids, shares.tolist(), strict=True))

    def scores(self, ids: Sequence[int], law: Sequence[tuple[int, float]]) -> list[float]:
        """What each token of the law adds to the score of a text; -inf for one that does not fit."""
        plain = [(1 - self.weight) * share for _, share in law]
        if self.grams is None:
            return plain
        q = self.grams.after(ids, [token for token, _ in law])
        if not any(q):
            return [score + _UNFIT for score in plain]
        with np.errstate(divide="ignore"):
            return (np.array(plain) + self.weight * np.log(q)).tolist()


@dataclass
class _Text:
    """A text of several: its tokens, its score, why it ended, and what finds its stop strings."""

    tokens: list[Token]
    score: float = 0.0
    finish: str = ""
    stream: TextStream | None = None

    def with_token(self, token: Token, score: float, ends: frozenset[int]) -> _Text:
        if token in ends:
            return _Text(self.tokens, score, "eos")
        stream = None if self.stream is None else self.stream.fork()
        stopped = stream is not None and stream.push(token).stopped
        return _Text([*self.tokens, token], score, "stop" if stopped else "", stream)

    @property
    def value(self) -> float:
        return self.score / max(len(self.tokens) + (self.finish == "eos"), 1)


class SuperposedTexts:
    width = 1

    def __init__(self, rule: SuperposedRule, rank: int = 0) -> None:
        self._rule, self._rank = rule, rank
        self._embeddings = KnownEmbeddings()

    def run(self, room: Room) -> Generator[Any, Any, Branch]:
        carrier = yield from room.root()
        _check(carrier)
        k, chain = 3 * self._rule.n, make_chain(carrier.rest(), room.context, room.ends)
        running, ended = [_Text([], stream=carrier.stream)], list[_Text]()
        while running and len(running[0].tokens) < room.most:
            wanted = outputs_of(carrier, Outputs(top=k, logsum=True), False, room.host.capabilities)
            (result,) = yield from forwarded(room, [carrier], [wanted])
            laws = [next_tokens(chain, result, k, text.tokens) for text in running[: len(running) if len(chain) else 1]]
            running, over = self._step(room, running, laws)
            ended = sorted([*ended, *over], key=lambda text: -text.score)[: self._rule.n]
            if running:
                tokens, scores = [int(text.tokens[-1]) for text in running], [text.score for text in running]
                carrier.embedding = yield from self._embeddings.mixed(room, tokens, scores)
                carrier.context.ids.append(int(running[0].tokens[-1]))
        ended += [replace(text, finish=room.limit) for text in running]
        return chosen(room, [_as_branch(room, carrier, text) for text in ended], self._rank)

    def _step(self, room: Room, texts: Sequence[_Text], laws: Sequence[NextTokens]) -> tuple[list[_Text], list[_Text]]:
        """One token further: the texts that go on, the best first, and those that end. laws: one, or one of each
        text."""
        n, prompt, found = self._rule.n, room.context.ids, list[tuple[float, int, int]]()
        for at, text in enumerate(texts):
            law = self._rule.law(laws[at % len(laws)])
            more = self._rule.scores([*prompt, *text.tokens], law)
            found += [(text.score + add, at, token) for (token, _), add in zip(law, more, strict=True) if add > -np.inf]
        found.sort(key=lambda each: -each[0])
        made = [
            texts[at].with_token(laws[at % len(laws)].token(token, room.config.logprobs), score, room.ends)
            for score, at, token in found[: 2 * n]
        ]
        going = [text for text in made if not text.finish][:n]
        room.counts.tokens += len(going)
        return going, [text for text in made if text.finish]


def _check(carrier: Branch) -> None:
    """UsageError for what one cache of several texts cannot have."""
    if carrier.config.constraint is not None:
        raise UsageError("--search superposed: does not go with a constraint")
    if carrier.context.policy is not None:
        raise UsageError("--search superposed: does not go with a cache policy, which may read the text again")


def _as_branch(room: Room, carrier: Branch, text: _Text) -> Branch:
    """A text that has ended; what the steps left in the cache is no text's."""
    return replace(
        carrier,
        context=room.context,
        tokens=text.tokens,
        logp=text.score,
        value=text.value,
        finish=text.finish,
        embedding=None,
    )
