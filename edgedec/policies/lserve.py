"""Streaming heads and selected pages (LServe, K03): some heads read the first and latest tokens, others search.

Yang et al. 2025. Heads differ: many pay nearly all attention to the first tokens and to those nearby. Which ones is
measured on the beginning of the prompt, which is read as a whole: of all kv heads the share `stream` that pays the
least elsewhere streams from then on, in the prompt and after it. The others read a prompt as a whole, and in a step the
pages whose bounds are highest (`quest`). The paper keeps a selection for several steps; here every row selects, as
bounds in bfloat16 cost little beside the pages that are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.errors import SessionError
from edgedec.policies import PolicyHost, PolicyState
from edgedec.policies._budget import CacheBudget, budget_of
from edgedec.policies._views import NONE, Always, ViewedReading, Views, always_of, share
from edgedec.runtime import CallResult, Outputs, View

NEEDS = ("views", "attention_sums")
# The beginning of a prompt that is read as a whole, in tokens beyond what streaming heads see.
_MEASURED = 256
Heads = NDArray[np.bool_]


def make(host: PolicyHost, budget: float = 2048, stream: float = 0.5, sinks: int = 64, recent: int = 256) -> LServe:
    """budget: tokens that a searching head reads in a step, a number or a share of the text; stream: the share of kv
    heads that stream; sinks, recent: the first and the latest tokens, which every head reads."""
    always = always_of("lserve", sinks, recent)
    return LServe(host, budget_of("lserve", budget), always, share("lserve", "stream", stream))


class LServe(ViewedReading):
    """`_streaming`: bool [kv heads] by attention block, once they are known."""

    def __init__(self, host: PolicyHost, budget: CacheBudget, always: Always, stream: float) -> None:
        super().__init__(host, budget, always)
        self._stream, self._streaming = stream, dict[int, Heads]()

    def _due(self, length: int) -> bool:
        """Is the next chunk one that heads are measured on?"""
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
    """Of all heads the share that paid the least to what is neither first nor late. attention: [kv_heads, slots] by
    block; of equals the first."""
    paid = {b: _elsewhere(sums, always) for b, sums in attention.items()}
    every = np.concatenate(list(paid.values()))
    chosen = np.zeros(len(every), bool)
    chosen[np.argsort(every, kind="stable")[: int(stream * len(every))]] = True
    ends = np.cumsum([len(part) for part in paid.values()])
    return dict(zip(paid, np.split(chosen, ends[:-1]), strict=True))


def _elsewhere(sums: NDArray[np.float32], always: Always) -> NDArray[np.float64]:
    """The share of each head's attention [kv_heads] that goes to neither."""
    between = sums[:, always.sinks : max(always.sinks, sums.shape[1] - always.recent)]
    share_of: NDArray[np.float64] = between.sum(axis=1, dtype=np.float64) / sums.sum(axis=1, dtype=np.float64)
    return share_of
