"""What the caches of a batch hold, while idle prefixes leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from edgedec.cache import Cache
from edgedec.decoding.scheduler.job import Job


class HeldTokens:
    """Tokens of cache: those of `promised`, and those of caches, each page of `page` tokens once, or, where caches have
    no pages (`page` 0), those of `idle`. It is counted once; then `drop` takes the time of one cache, however many
    there are.

    `running` [a, b, c], `idle` [c, d] and [d], pages of 16: 64 tokens; without the first idle one: 64, as d is held
    still; without both: 48.
    """

    def __init__(self, page: int, running: Iterable[Cache], idle: Iterable[Cache], promised: int) -> None:
        left = list(idle)
        self._page, self._rest = page, promised if page else promised + sum(cache.length for cache in left)
        pages = [cache.page_ids() for cache in (*running, *left)] if page else []
        ids, holders = np.unique(np.concatenate([*pages, np.zeros(0, np.int64)]), return_counts=True)
        self._holders = dict(zip(ids.tolist(), holders.tolist(), strict=True))

    def drop(self, cache: Cache) -> None:
        """Leave out an idle cache."""
        if not self._page:
            self._rest -= cache.length
            return
        for page in cache.page_ids().tolist():
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]

    @property
    def tokens(self) -> int:
        return self._page * len(self._holders) + self._rest


def holding(jobs: Sequence[Job], need: Callable[[Job], int], idle: Iterable[Cache], page: int) -> HeldTokens:
    """What running sequences and idle prefixes hold, and what those may still fill. need: tokens that a sequence takes
    at most; page: tokens of a page, 0: there are none."""
    # A policy overwrites what it drops, so pages that it shares with forks do not stay shared.
    whole = [job for job in jobs if job.context.policy is None]
    promised = sum(need(job) for job in jobs if job.context.policy is not None)
    for job in whole:
        filled = sum(len(cache.page_ids()) for cache in job.caches) if page else 0
        promised += max(need(job) - page * filled, 0)
    return HeldTokens(page, [cache for job in whole for cache in job.caches], idle, promised)
