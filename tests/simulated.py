"""Decoding in simulated time: a runtime whose calls take what a cost surface says, and whose next token follows from
the last one. Drafters' own time is real, and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.bench.dial import Dial
from edgedec.decoding import step as step_module
from edgedec.decoding.batching import Batch
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.drafters import Drafter
from edgedec.drafters.off import Off
from edgedec.generation import GenerationConfig
from edgedec.runtime import Call, CallResult, Capabilities
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.speculation.shared import SharedLearning
from edgedec.speculation.survey import Survey

VOCAB = 997
Seconds = Callable[[int, int], float]


def large(rows: int, cells: int = 0) -> float:
    """A model of 1.2 billion weights on a few cores."""
    return 0.040 + 0.0002 * (rows - 1) + 0.0038 * max(rows - 8, 0) + 3e-6 * cells


def small(rows: int, cells: int = 0) -> float:
    """One of 135 million: arithmetic begins to count at once."""
    return 0.0035 + 0.0006 * (rows - 1) + 1.4e-6 * cells


class Slots:
    """A cache that counts."""

    kind = "counted"

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.spec = SimpleNamespace(vocab_size=VOCAB, n_blocks=2)

    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def truncate(self, n: int) -> None:
        self.length = n

    def rollback(self) -> None:
        """Nothing is pending."""

    def page_ids(self) -> Any:
        return np.zeros(0, np.int64)


class Simulated:
    """`now`: the seconds that calls took; noise: by how much they scatter."""

    name = "simulated"

    def __init__(self, seconds: Seconds, noise: float = 0.03, seed: int = 0) -> None:
        self.capabilities = Capabilities((), (), batch_invariant=True, best_k=8)
        self.spec: Any = SimpleNamespace(n_blocks=2, vocab_size=VOCAB)
        self._seconds, self._noise, self._rng = seconds, noise, np.random.default_rng(seed)
        self.now = 0.0
        self.rows: list[int] = []

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        rows = sum(call.rows.count for call in calls)
        cells = sum(call.rows.count * call.cache.length for call in calls)
        self.now += self._seconds(rows, cells) * float(np.exp(self._noise * abs(self._rng.standard_normal())))
        self.rows.append(rows)
        return [self._result(call) for call in calls]

    def _result(self, call: Call) -> CallResult:
        ids = after(call.rows.tokens[call.outputs.logits_from :]).astype(np.int32)[:, None]
        return CallResult(None, ids, np.zeros(ids.shape, np.float32), np.zeros(len(ids)))


def after(token: Any) -> Any:
    return (token * 31 + 7) % VOCAB


def text_from(token: int, n: int) -> list[int]:
    found = [token]
    while len(found) < n:
        found.append(int(after(found[-1])))
    return found


class Simulation:
    """n texts with guesses that are right as often as `right`; `make`: the drafter of each text around its dial."""

    def __init__(self, seconds: Seconds, monkeypatch: pytest.MonkeyPatch, noise: float = 0.03) -> None:
        self.runtime = Simulated(seconds, noise)
        monkeypatch.setattr(step_module, "perf_counter", lambda: self.runtime.now)
        self.costs = Costs({}, largest=256)
        self.survey = Survey(self.costs)
        self.drafting = 0.0

    def run(self, n: int, right: float, tokens: int, fixed: int = -1) -> float:
        """Tokens a second, drafters' time among it; fixed: 0 governed, -1 no drafts."""
        shared = SharedLearning()
        texts = [text_from(3 + i, 3 * tokens + 20) for i in range(n)]
        dials = [Dial(text, right, i, VOCAB) for i, text in enumerate(texts)]
        governors = [
            Governor([("dial", dial)], lambda: self.costs, fixed, survey=lambda costs: self.survey, shared=shared)
            for dial in dials
        ]
        drafters: list[Drafter] = [Off() if fixed < 0 else governor for governor in governors]
        began = self.runtime.now
        made = self._step(texts, drafters, n * tokens)
        self.drafting = sum(governor.members[0].seconds for governor in governors)
        return made / (self.runtime.now - began + self.drafting)

    def _step(self, texts: Sequence[list[int]], drafters: Sequence[Drafter], until: int) -> int:
        batch, made = Batch(self.runtime), [0]  # type: ignore[arg-type]
        contexts = []
        for text, drafter in zip(texts, drafters, strict=True):
            context = Context(text[:3], 3, Slots(len(text) + 4))  # type: ignore[arg-type]
            config = GenerationConfig(max_tokens=len(text) - 3)
            loop = decode_loop(context, config, drafter, capabilities=self.runtime.capabilities)
            batch.add(context, loop, lambda token: made.__setitem__(0, made[0] + (token is not None)), len(text))
            contexts.append(context)
        while made[0] < until and batch.step():
            pass
        assert all(context.ids == text[: len(context.ids)] for context, text in zip(contexts, texts, strict=True))
        for job in batch.jobs:
            batch.cancel(job)
        return made[0]
