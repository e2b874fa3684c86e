"""Reads the sentences that match the latest queries; the others lie on disk (SentenceKV).

Zhu et al. 2025. A text is cut where its sentences end; the mean key of each sentence and kv head stands for it. A kv
head reads the sentences whose mean keys the mean of the latest queries pays most attention to, as many as fit the
budget, slot by slot, beside the first and the latest tokens. They are chosen after a prompt and after every `every`
tokens. Pages that no head of a block reads go to a file, and come back when one does: memory is that of what is read,
and the text's end. Prompts are read as a whole. The paper averages the queries of the sentence in the making; here
those of the last `window` rows, as a sentence's end cannot be known before it is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._options import ChoiceEvery, Queries, ReadBudget, Recent, Sinks
from edgedec.policies._page_choice import NEEDS, Array, Ints, Probing, probing_of, ranked, worth_of
from edgedec.policies._sentences import SentenceEnds
from edgedec.policies._views import Always
from edgedec.runtime import PAGE, View
from edgedec.storage.files import cache_folder

__all__ = ["NEEDS"]
_NO_DISK = "off"

FACTS = PolicyFacts(NEEDS, paper="SentenceKV")


def make(
    host: PolicyHost,
    budget: ReadBudget = 1024,
    every: ChoiceEvery = 32,
    window: Queries = 8,
    sinks: Sinks = 4,
    recent: Recent = 128,
    longest: Annotated[int, Opt("Tokens of a sentence at most.", 1, 1 << 12)] = 48,
    disk: Annotated[
        str, Opt("Folder for what is not read; by default edgedec's cache folder; off: it stays in memory.")
    ] = "",
) -> SentenceKV:
    always = probing_of("sentencekv", every, window, sinks, recent)
    folder = "" if disk == _NO_DISK or not host.capabilities.offload else _folder(disk)
    ends = SentenceEnds(host.decode, longest)
    return SentenceKV(host, CacheBudget(budget), always, every, window, ends, folder)


def _folder(disk: str) -> str:
    """The folder for pages, made if there is none; UsageError if that cannot be."""
    folder = Path(disk) if disk else cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--cache sentencekv: disk={folder}: {error.strerror or error}; name another folder") from None
    return str(folder)


class SentenceKV(Probing):
    """What is chosen is slots. `_resting`: the pages of each block that are on disk and unread."""

    def __init__(
        self,
        host: PolicyHost,
        budget: CacheBudget,
        always: Always,
        every: int,
        window: int,
        ends: SentenceEnds,
        folder: str,
    ) -> None:
        super().__init__(host, budget, always, every, window)
        self._sentences, self._folder = ends, folder
        self._ids: Sequence[int] = ()
        self._resting: dict[int, Ints] = {}

    def follow(self, ids: Sequence[int]) -> None:
        self._ids = ids

    # ---- what is read --------------------------------------------------------------------------

    def ends(self, cache: Cache) -> Ints:
        self._sentences.read(self._ids[: cache.length])
        return self._sentences.up_to(cache.length)

    def pick(self, cache: Cache, block: int, queries: Array, ends: Ints, pages: int) -> list[Ints]:
        means = self._means.of(cache, block, ends)
        # Sentences among the latest tokens are read in any case until the next choice.
        starts = np.concatenate([np.zeros(1, np.int64), ends])[: len(ends)]
        n = int(np.searchsorted(starts, cache.length - self.always.recent + self._every))
        worth = worth_of(queries.mean(axis=0), means[:, :n], self.spec.attention[block].scale)
        return [best_slots(head, starts[:n], ends[:n], pages * PAGE) for head in worth]

    def view(self, block: int, pages: int | None) -> View | None:
        return View(*self.always, slots=self._chosen[block]) if pages is not None and block in self._chosen else None

    # ---- where the rest is ---------------------------------------------------------------------

    def chose(self, cache: Cache) -> None:
        for b, heads in self._chosen.items() if self._folder else ():
            cold = unread(heads, cache.slots(b), self.always)
            known = self._resting.get(b, np.zeros(0, np.int64))
            cache.offload(b, np.setdiff1d(cold, known), self._folder)
            self._resting[b] = cold

    def reset(self) -> None:
        super().reset()
        self._sentences.cut(0)
        self._resting = {}

    def trim(self, cache: Cache) -> None:
        self._sentences.cut(cache.length)
        super().trim(cache)
        self._resting = {b: pages[pages < cache.slots(b) // PAGE] for b, pages in self._resting.items()}

    def fork(self) -> Self:
        twin = super().fork()
        twin._sentences, twin._resting = self._sentences.fork(), dict(self._resting)
        return twin

    def report(self, cache: Cache) -> dict[str, Any]:
        resting = sum(len(pages) for pages in self._resting.values())
        return {**super().report(cache), "memory": cache.nbytes, "pages_on_disk": resting}


def best_slots(worth: Array, starts: Ints, ends: Ints, most: int) -> Ints:
    """The slots of the sentences that are worth most, ascending, `most` of them at most.

    worth 1 5 3 of sentences 0-3, 3-8, 8-10, most 7 -> 3 4 5 6 7 8 9
    """
    order = ranked(worth)
    taken = np.cumsum(ends[order] - starts[order]) <= most
    chosen = np.sort(order[taken])
    parts = [np.arange(starts[i], ends[i]) for i in chosen]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def unread(heads: Sequence[Ints], slots: int, always: Always) -> Ints:
    """The full pages that hold none of the slots that heads read, and neither the first nor the latest tokens."""
    pages = np.ones(slots // PAGE, bool)
    for listed in heads:
        pages[listed[listed < len(pages) * PAGE] // PAGE] = False
    pages[: -(-always.sinks // PAGE)] = False
    pages[max(0, slots - always.recent) // PAGE :] = False
    return np.flatnonzero(pages)
