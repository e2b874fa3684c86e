"""Drafts continuations retrieved from documents (REST, RASD).

`edgedec datastore build` makes the file: tokens and a suffix array, memory-mapped. The places with the longest match
vote for what comes next, those with half of it have what is left, as in PPM; the tree grows where it is likeliest
(DySpec). Beside a drafter that is a model (`model`, a trained head) the tree is pruned by that one's
probabilities: `edgedec.speculation.guide`. The native runtime does the same in C++ (`kernels/cpu/spec_datastore.cpp`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from edgedec.bundle import Bundle
from edgedec.decoding.context import Context
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts
from edgedec.drafters._networks.shared import SharedInstances
from edgedec.drafters._options import named
from edgedec.drafters._tables.compiled import CompiledDrafter, compiled
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import TableSettings
from edgedec.storage.datastore import END, Datastore, Match, identity
from edgedec.trees.grow import Follower, grow

# Its tree is pruned by the probabilities of a draft model, if there is one.
_LEAST = 0.04  # a path less likely than this is not worth its row anywhere
_PLACES = 32
# The weight of unseen tokens in occurrences, by the length of the match.
_OPEN = [8.0, *(2.6 * length**-1.1 for length in range(1, 65))]
_stores: SharedInstances[Datastore] = SharedInstances()

# Places by the length of their match, the longest first.
State = list[tuple[int, list[Match]]]

FACTS = DrafterFacts(guided=True, paper="REST; RASD: Retrieval-Augmented Speculative Decoding")


def make(
    host: DrafterContext,
    path: Annotated[str, Opt("File of `edgedec datastore build FILE -m MODEL -o STORE`.", must=named)],
    least: Annotated[int, Opt("Shortest match that is drafted from, in tokens.", 1, 12)] = 2,
) -> Drafter:
    return drafter_of(host, opened(path, host.bundle), least)


def drafter_of(host: DrafterContext, store: Datastore, least: int) -> Drafter:
    """The runtime's own drafter of a datastore if it has one, else Python's."""
    found = compiled(host, TableSettings("datastore", store.vocab, ngram=least), CompiledDatastore)
    if found is None:
        return DatastoreDrafter(store, least)
    found.open(store)
    return found


def opened(path: str, bundle: Bundle) -> Datastore:
    """The datastore of this file; it serves all models that have the tokenizer of the bundle."""
    manifest, file = bundle.manifest, Path(path)
    if manifest.text.tokenizer is None:
        raise UsageError(f"datastore: {bundle.path} has no tokenizer, so documents cannot be looked up")
    digest, vocab = manifest.files[manifest.text.tokenizer].sha256, bundle.spec.vocab_size
    return _stores.get((*identity(file), digest), lambda: Datastore(file, digest, vocab))


class DatastoreDrafter(BaseDrafter):
    def __init__(self, store: Datastore, least: int = 2) -> None:
        self._store, self._least = store, least
        self._lookups = self._matches = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        if nodes < 1:
            return Draft()
        places = [(n, group) for n, group in self._store.find(context.ids, _PLACES) if n >= self._least]
        self._lookups, self._matches = self._lookups + 1, self._matches + bool(places)
        return grow(places, _followers, nodes, max(min_path_prob, _LEAST)) if places else Draft()

    def report(self) -> dict[str, Any]:
        return {"stored": self._store.tokens, "lookups": self._lookups, "matches": self._matches}


class CompiledDatastore(CompiledDrafter):
    """The runtime's own, which reads the file where it is mapped."""

    def open(self, store: Datastore) -> None:
        self._store = store
        for segment in store.segments:
            self.table.index(*segment.arrays)

    def inherit(self, other: Drafter) -> None:
        pass  # nothing is learned

    def report(self) -> dict[str, Any]:
        lookups, matches = self.table.figure(0), self.table.figure(1)
        return {"stored": self._store.tokens, "lookups": lookups, "matches": matches}


def _followers(places: State) -> list[Follower[State]]:
    """The tokens that may follow: the longest matches first, shorter ones share the remaining probability."""
    found: dict[int, float] = {}
    left = 1.0
    for length, group in places:
        said: dict[int, int] = {}
        for match in group:
            if (token := match.next) != END:
                said[token] = said.get(token, 0) + 1
        unseen = _OPEN[min(length, len(_OPEN) - 1)]
        total = len(group) + unseen
        for token, n in said.items():
            found[token] = found.get(token, 0.0) + left * n / total
        left *= unseen / total
    return [(token, p, _advanced(places, token)) for token, p in found.items()]


def _advanced(places: State, token: int) -> State:
    """The places one token later, those where it came."""
    found = [(length + 1, [match.after() for match in group if match.next == token]) for length, group in places]
    return [(length, group) for length, group in found if group]
