"""Lets some kv heads read the first and latest tokens only, and the others selected pages (LServe).

Yang et al. 2025. Heads differ: many pay nearly all attention to the first tokens and to those nearby. Which ones is
measured on the beginning of the prompt, which is read as a whole: of all kv heads the share `stream` that pays the
least elsewhere streams from then on, in the prompt and after it. The others read a prompt as a whole, and in a step the
pages whose bounds are highest (`quest`). The paper keeps a selection for several steps; here every row selects, as
bounds in bfloat16 cost little beside the pages that are read.

From the abstract: half of the heads streaming in both phases, a constant number of pages by a query-centric similarity.
Ours: how streaming heads are found, and one level of pages instead of a hierarchy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget
from edgedec.policies._options import Recent, Sinks
from edgedec.policies._options import budget as budget_rule
from edgedec.policies._views import NONE, Always, ViewedReading, Views
from edgedec.runtime import CallResult, Outputs, View

# The beginning of a prompt that is read as a whole, in tokens beyond what streaming heads see.
_MEASURED = 256
Heads = NDArray[np.bool_]

FACTS = PolicyFacts(("views", "attention_sums"), paper="LServe")


def make(
    host: PolicyHost,
    budget: Annotated[
        float, Opt("Tokens that a searching head reads in a step: a number, or a share of the text.", must=budget_rule)
    ] = 2048,
    stream: Annotated[float, Opt("Share of the kv heads that read the first and latest tokens only.", 0, 1)] = 0.5,
    sinks: Sinks = 64,
    recent: Recent = 256,
) -> LServe:
    return LServe(host, CacheBudget(budget), Always(sinks, recent), stream)


class LServe(ViewedReading):
    """`_streaming`: bool [kv heads] by attention block, once they are known."""

    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, stream: float) -> None:
        super().__init__(host, budget, always)
        self._stream, self._streaming = stream, dict[int, Heads]()

    def _due(self, length: int) -> bool:
        """Whether heads are measured on the next chunk."""
        return not self._streaming and length >= sum(self.always)

    def reads(self, cache: Cache) -> Outputs:
        return Outputs(attention=True) if self._due(cache.length) else NONE

    def reading(self, cache: Cache) -> Views:
        if not self._streaming:
            return {}
        return {b: self._view(b, None, 0) for b in self.spec.attention}

    def was_read(self, cache: Cache, result: CallResult) -> None:
        if result.attention and cache.length >= sum(self.always) + _MEASURED:
            self._streaming = streaming_heads(result.attention, self.always, self._stream)

    def key(self, pages: int | None) -> Any:
        return pages, bool(self._streaming)

    def view(self, block: int, pages: int | None) -> View | None:
        return self._view(block, pages, 1)

    def _view(self, block: int, pages: int | None, group: int) -> View:
        heads = self._streaming.get(block, np.zeros(self.spec.attention[block].n_kv_heads, bool))
        return View(*self.always, tuple(0 if streams else pages for streams in heads.tolist()), group=group)

    # ---- the life of a text --------------------------------------------------------------------

    def reset(self) -> None:
        self._streaming, self._made = {}, (None, {})

    def state(self) -> PolicyState:
        return {f"streaming.{b}": heads.astype(np.uint8) for b, heads in self._streaming.items()}

    def restore(self, state: Mapping[str, NDArray[Any]], cache: Cache) -> None:
        expected = {f"streaming.{b}": (block.n_kv_heads,) for b, block in self.spec.attention.items()}
        found = {name: heads.shape for name, heads in state.items() if heads.dtype == np.uint8}
        if state and (found != expected or len(found) != len(state)):
            raise SessionError(f"the saved state is not of cache policy {self.name}")
        self.reset()
        self._streaming = {int(name.partition(".")[2]): heads.astype(bool) for name, heads in state.items()}


def streaming_heads(attention: Mapping[int, NDArray[np.float32]], always: Always, stream: float) -> dict[int, Heads]:
    """The share `stream` of all heads with the least attention to slots that are neither first nor late. attention:
    [kv_heads, slots] by block; lower heads first among equals."""
    paid = {b: _elsewhere(sums, always) for b, sums in attention.items()}
    every = np.concatenate(list(paid.values()))
    chosen = np.zeros(len(every), bool)
    chosen[np.argsort(every, kind="stable")[: int(stream * len(every))]] = True
    ends = np.cumsum([len(part) for part in paid.values()])
    return dict(zip(paid, np.split(chosen, ends[:-1]), strict=True))


def _elsewhere(sums: NDArray[np.float32], always: Always) -> NDArray[np.float64]:
    """The share of each head's attention [kv_heads] to slots that are neither first nor late."""
    between = sums[:, always.sinks : max(always.sinks, sums.shape[1] - always.recent)]
    share_of: NDArray[np.float64] = between.sum(axis=1, dtype=np.float64) / sums.sum(axis=1, dtype=np.float64)
    return share_of
