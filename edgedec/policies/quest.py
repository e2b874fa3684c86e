"""Pages that a query can score high in (Quest): everything is kept, a step reads the pages whose bounds are highest.

Tang et al. 2024. Of each page of keys the least and the largest value of each dimension are known; what a query can
score there at most is a sum over dimensions. Each row and kv head reads its own pages. The first layers, whose
attention is spread, read everything. Prompts are read as a whole.
"""

from __future__ import annotations

from edgedec.policies import PolicyHost
from edgedec.policies._budget import CacheBudget, budget_of
from edgedec.policies._eviction import checked
from edgedec.policies._views import Always, Viewing, always_of
from edgedec.runtime import View

NEEDS = ("views",)


def make(host: PolicyHost, budget: float = 2048, sinks: int = 4, recent: int = 128, dense: int = 2) -> Quest:
    """budget: tokens that a step reads, a number or a share of the text; sinks, recent: the first and the latest ones,
    which are always read; dense: layers that read everything."""
    checked("quest", {"dense": (dense, 0, host.spec.n_layers)})
    return Quest(host, budget_of("quest", budget), always_of("quest", sinks, recent), dense)


class Quest(Viewing):
    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, dense: int) -> None:
        super().__init__(host, budget, always)
        self._from = host.spec.span(0, dense)[-1] + 1 if dense else 0

    def view(self, block: int, pages: int | None) -> View | None:
        return super().view(block, pages) if block >= self._from else None
