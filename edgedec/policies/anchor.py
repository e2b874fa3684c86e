"""Computes prompt attention over selected stripes of keys only; steps read everything (AnchorAttention).

Zhang et al. 2025. The anchor of a query is its highest score among the first tokens and the latest ones. Of the others,
those slots are read whose score is at most `theta` below it: whole columns for a group of rows, found with their mean
query. A step is as slow as with the whole cache.

From the abstract: anchors near the maximum from a pattern common to all inputs, stripes by the difference to them, and
sparse loading. Ours: which rows share stripes, and the default `theta`.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.cache import Cache
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._options import Recent, Sinks
from edgedec.policies._views import Always, ViewedReading, Views
from edgedec.runtime import View

FACTS = PolicyFacts(("views",), paper="AnchorAttention")


def make(
    host: PolicyHost,
    theta: Annotated[float, Opt("How far below the anchor a score may be, as the logarithm of a share.")] = 6,
    sinks: Sinks = 64,
    recent: Recent = 256,
    group: Annotated[int, Opt("Rows that share their stripes; 0: all of a chunk.", 0, 1 << 12)] = 0,
) -> Anchor:
    return Anchor(host, Always(sinks, recent), View(sinks, recent, theta=theta, group=group))


class Anchor(ViewedReading):
    def __init__(self, host: PolicyHost, always: Always, view: View) -> None:
        super().__init__(host, CacheBudget(1), always)
        self._reading = dict.fromkeys(host.spec.attention, view)

    def reading(self, cache: Cache) -> Views:
        return self._reading

    def views(self, cache: Cache) -> Views:
        return {}

    def room(self, length: int) -> int:
        return 1 << 30
