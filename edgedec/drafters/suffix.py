"""Drafts what followed the longest suffixes of the text when they came before (SuffixDecoding).

SuffixDecoding: a suffix automaton of the text (prompt and output) counts what follows every substring; the
tree grows where it is likeliest (DySpec). The longest suffix that came before counts first; what it leaves open
goes to the next shorter one, and so on, as in PPM. With `store=FILE`, past texts count too: the
retrieval half of RASD.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from weakref import finalize

from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, State
from edgedec.drafters._tables.automaton import Automaton
from edgedec.drafters._tables.compiled import CompiledSuffix, compiled
from edgedec.drafters._tables.datastore import END, Index, Store, check_texts
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import TableSettings
from edgedec.trees.grow import Follower, grow

_LEAST = 0.04  # a path less likely than this is not worth its row anywhere
_LEVELS = 3  # how many suffixes count, the longest first
_CROWD = 32  # a state with more followers than this is of little use
_PLACES = 12  # of past texts are looked at, of the two best lengths
_LONG = 64
# The weight of unseen tokens in occurrences, by the length of the match.
_OPEN = [8.0, *(2.6 * length**-1.1 for length in range(1, _LONG + 1))]

# Places of past texts by the length of their match, longest first.
Places = list[tuple[int, list[int]]]
# (state of the automaton, length of the match, how likely a token must be here, places of past texts, the token
# after all that, if it is still to be followed: -1 is none)
Match = tuple[int, int, float, Places, int]

FACTS = DrafterFacts(auto=2, table="text", paper="Suffix automaton over the text and finished texts (SAM decoding)")


def make(
    host: DrafterContext,
    store: Annotated[str, Opt("File that keeps finished texts for later ones; by default none does.")] = "",
) -> Drafter:
    if not store and (found := compiled(host, TableSettings("suffix"), CompiledSuffix)):
        return found
    digest, vocab = host.bundle.origin, host.bundle.spec.vocab_size
    return Suffix(Store(digest, vocab, Path(store)) if store else None, digest, vocab)


class Suffix(BaseDrafter):
    def __init__(self, store: Store | None = None, digest: str = "", vocab: int = 0) -> None:
        self._digest, self._vocab = digest, vocab
        self._keep(store)
        self.reset()

    def _keep(self, store: Store | None) -> None:
        self._store = store
        if store is not None:
            finalize(self, store.finish)  # the last text of a session is followed by no reset

    def reset(self) -> None:
        if self._store is not None:
            self._store.finish()
        self._automaton = Automaton()
        self._read = 0
        self._index: Index | None = None

    def state(self) -> State:
        return {} if self._store is None else {"texts": self._store.flat()}

    def restore(self, state: State) -> None:
        if not state:
            return
        if set(state) != {"texts"}:
            raise UsageError(f"drafter suffix: a state of {', '.join(sorted(state))}: not of this drafter")
        try:
            texts = check_texts(state["texts"], self._vocab)
        except ValueError as error:
            raise UsageError(f"drafter suffix: state of another model ({error})") from None
        if self._store is None:
            self._keep(Store(self._digest, self._vocab))
        assert self._store is not None
        self._store.restore(texts)

    def report(self) -> dict[str, Any]:
        if self._store is None:
            return {}
        return {"stored": len(self._store), **({"trouble": self._store.trouble} if self._store.trouble else {})}

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        ids = context.ids
        self._catch_up(ids)
        if nodes <= 0:
            return Draft()
        state, length = self._automaton.matched()
        places = self._elsewhere(ids)
        min_path_prob = max(min_path_prob, _LEAST)
        return grow(
            (state, length, min_path_prob, places, -1), self._followers if places else self._local, nodes, min_path_prob
        )

    def _elsewhere(self, ids: list[int]) -> Places:
        """Places of past texts that match the text's end; the match is extended beyond the index's depth."""
        if self._index is None:
            return []
        places = self._index.find(ids, _PLACES)[:2]
        if places:
            length, group = places[0]
            places[0] = self._index.agreement(group[0], ids, length, _LONG), group
        return places

    def _catch_up(self, ids: list[int]) -> None:
        if len(ids) < self._read:  # never between two resets; but a wrong index would be worse than a slow one
            self.reset()
        if self._store is not None:
            self._store.follow(ids)
            if self._read == 0:
                self._index = self._store.index()
        add = self._automaton.add
        for token in ids[self._read :]:
            add(token)
        self._read = len(ids)

    def _local(self, match: Match) -> list[Follower[Match]]:
        """What may follow by the text itself."""
        state, length, least, _, _ = match
        automaton, left = self._automaton, 1.0
        follow, count = automaton.follow, automaton.count
        found: list[Follower[Match]] = []
        known: set[int] = set()
        for _ in range(_LEVELS):
            if state <= 0 or left <= least:
                break
            after, unseen = follow[state], _OPEN[length if length < _LONG else _LONG]
            if len(after) == 1:
                [(token, target)] = after.items()
                n = count[target]
                p = left * n / (n + unseen)
                left -= p
                if p > least and token not in known:
                    found.append((token, p, (target, length + 1, least / p, [], -1)))
                    known.add(token)
            elif after and len(after) <= _CROWD:
                total = sum([count[target] for target in after.values()]) + unseen
                enough = least * total / left
                if enough < total:
                    for token, target in after.items():
                        n = count[target]
                        if n > enough and token not in known:
                            p = left * n / total
                            found.append((token, p, (target, length + 1, least / p, [], -1)))
                            known.add(token)
                left *= unseen / total
            state = automaton.link[state]
            length = automaton.length[state]
        return found

    def _followers(self, match: Match) -> list[Follower[Match]]:
        """What may follow by the text and past ones: the past ones come first where they match longer."""
        state, length, least, places, last = match
        if last >= 0:
            match = state, length, least, places, _ = self._advance(match)
        if not places:
            return self._local(match)
        found: dict[int, float] = {}
        left = 1.0
        for matched, group in places:
            if (state > 0 and matched <= length) or left <= least:
                break
            said, unseen = self._past(group), _OPEN[min(matched, _LONG)]
            total = len(group) + unseen
            for token, n in said.items():
                found.setdefault(token, left * n / total)
            left *= unseen / total
        if left > least:
            for token, p, _ in self._local((state, length, least / left, [], -1)):
                found.setdefault(token, left * p)
        return [(token, p, (state, length, least / p, places, token)) for token, p in found.items() if p > least]

    def _past(self, places: list[int]) -> dict[int, int]:
        assert self._index is not None
        back, said = self._index.back, dict[int, int]()
        for place in places:
            token = back[place - 1] if place else END
            if token != END:
                said[token] = said.get(token, 0) + 1
        return said

    def _advance(self, match: Match) -> Match:
        """The match one token later."""
        state, length, least, places, token = match
        assert self._index is not None
        follow, link, back = self._automaton.follow, self._automaton.link, self._index.back
        kept: Places = []
        for matched, group in places:
            on = [place - 1 for place in group if place and back[place - 1] == token]
            if on:
                kept.append((matched + 1, on))
        while state > 0 and token not in follow[state]:
            state = link[state]
            length = self._automaton.length[state]
        return follow[state].get(token, 0), length + 1, least, kept, -1
