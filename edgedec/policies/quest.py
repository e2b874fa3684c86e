"""Reads the pages whose key bounds a query can score highest in; everything is kept (Quest).

Tang et al. 2024. Of each page of keys the least and the largest value of each dimension are known; what a query can
score there at most is a sum over dimensions. Each row and kv head reads its own pages. The first layers, whose
attention is spread, read everything. Prompts are read as a whole.
"""

from __future__ import annotations

from typing import Annotated

from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._budget import CacheBudget
from edgedec.policies._options import ReadBudget, Recent, Sinks
from edgedec.policies._views import Always, Viewing
from edgedec.runtime import View

FACTS = PolicyFacts(("views",), paper="Quest")


def make(
    host: PolicyHost,
    budget: ReadBudget = 2048,
    sinks: Sinks = 4,
    recent: Recent = 128,
    dense: Annotated[int, Opt("First layers that read everything.", 0)] = 2,
) -> Quest:
    if dense > host.spec.n_layers:
        raise UsageError(f"--cache quest: dense={dense}: must be from 0 to {host.spec.n_layers}")
    return Quest(host, CacheBudget(budget), Always(sinks, recent), dense)


class Quest(Viewing):
    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, dense: int) -> None:
        super().__init__(host, budget, always)
        self._from = host.spec.span(0, dense)[-1] + 1 if dense else 0

    def view(self, block: int, pages: int | None) -> View | None:
        return super().view(block, pages) if block >= self._from else None
