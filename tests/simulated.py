"""Decoding in simulated time: a runtime whose calls take what a cost surface says, and whose next token follows from
the last one. What Python takes between calls is simulated as well, in the proportions that were measured: no clock of
this machine is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgedec.bench.dial import Dial
from edgedec.decoding import host_time as gaps
from edgedec.decoding import loop, runner
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import StepResult
from edgedec.decoding.scheduler import batch as batching
from edgedec.decoding.scheduler import job
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters import Draft, Drafter, _calls
from edgedec.drafters.off import Off
from edgedec.runtime import Call, CallResult, Capabilities
from edgedec.speculation import governor as governor_module
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.speculation.probing import RowProbe
from edgedec.speculation.state import SharedLearning

VOCAB = 997
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
Seconds = Callable[[int, int], float]
# Where a clock is read while a text is generated.
CLOCKS = (batching, gaps, job, loop, runner, _calls, governor_module)


@dataclass(frozen=True)
class Python:
    """Seconds that Python takes: for each sequence and call, whatever is drafted; a proposal, and to learn of its call,
    which the drafter's own clock sees; to verify a drafted call and each of its rows, which it does not see; and for
    each accepted token."""

    step: float = 40e-6
    propose: float = 60e-6
    observe: float = 20e-6
    verify: float = 50e-6
    row: float = 5e-6
    token: float = 8e-6


def large(rows: int, cells: int = 0) -> float:
    """A model of 1.2 billion weights on a few cores."""
    return 0.040 + 0.0002 * (rows - 1) + 0.0038 * max(rows - 8, 0) + 3e-6 * cells


def small(rows: int, cells: int = 0) -> float:
    """One of 135 million: arithmetic begins to count at once."""
    return 0.0035 + 0.0006 * (rows - 1) + 1.4e-6 * cells


def tiny(rows: int, cells: int = 0) -> float:
    """One of 3 million: a call takes as long as some lines of Python."""
    return 0.00016 + 0.000045 * (rows - 1) + 0.5e-7 * cells


class Slots:
    """A cache that counts; the first commit after a call stands for what Python does then."""

    kind = "counted"

    def __init__(self, runtime: Simulated, capacity: int) -> None:
        self.runtime, self.capacity, self.length = runtime, capacity, 0
        self.spec = SimpleNamespace(vocab_size=VOCAB, n_blocks=2)
        self.rows = 0

    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)
        takes, drafted = self.runtime.python, max(self.rows - 1, 0) if len(rows) == 1 else 0
        if self.rows:
            self.runtime.now += takes.step + bool(drafted) * takes.verify + drafted * takes.row
        self.runtime.now += takes.token
        self.rows = 0

    def truncate(self, n: int) -> None:
        self.length = n

    def rollback(self) -> None:
        """Nothing is pending."""

    def page_ids(self) -> Any:
        return np.zeros(0, np.int64)


class Simulated:
    """`now`: the seconds that calls and Python took; noise: by how much calls scatter."""

    name = "simulated"

    def __init__(self, seconds: Seconds, noise: float = 0.03, seed: int = 0, python: Python | None = None) -> None:
        self.python = python or Python()
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
        for call in calls:
            call.cache.rows = call.rows.count  # type: ignore[attr-defined]
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


class TimedDial(Dial):
    """A dial that takes simulated time."""

    def __init__(self, runtime: Simulated, text: Sequence[int], right: float, seed: int) -> None:
        super().__init__(text, right, seed, VOCAB)
        self._runtime = runtime

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self._runtime.now += self._runtime.python.propose
        return super().propose(context, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        self._runtime.now += self._runtime.python.observe


class Simulation:
    """n texts with guesses that are right as often as `right`; python: what Python takes between calls."""

    def __init__(
        self, seconds: Seconds, monkeypatch: pytest.MonkeyPatch, noise: float = 0.03, python: Python | None = None
    ) -> None:
        self.runtime = Simulated(seconds, noise, python=python)
        for module in CLOCKS:
            for clock in ("perf_counter", "thread_time"):
                if hasattr(module, clock):
                    monkeypatch.setattr(module, clock, lambda: self.runtime.now)
        self.costs = Costs({}, largest=256)
        self.row_probe = RowProbe(self.costs)

    def run(self, n: int, right: float, tokens: int, fixed: int = -1) -> float:
        """Tokens a second; fixed: 0 governed, -1 no drafts."""
        shared = SharedLearning()
        texts = [text_from(3 + i, 3 * tokens + 20) for i in range(n)]
        dials = [TimedDial(self.runtime, text, right, i) for i, text in enumerate(texts)]
        governors = [
            Governor([("dial", dial)], lambda: self.costs, fixed, row_probe=lambda costs: self.row_probe, shared=shared)
            for dial in dials
        ]
        drafters: list[Drafter] = [Off() if fixed < 0 else governor for governor in governors]
        began = self.runtime.now
        made = self._step(texts, drafters, n * tokens)
        return made / (self.runtime.now - began)

    def ending(self, lengths: Sequence[int], most: int, fixed: int) -> tuple[float, float]:
        """The seconds of texts of these lengths, at most `most` at a time, whose guesses are all wrong, and those of
        the longest call of one row of each; fixed: as of `run`."""
        seconds, _ = self.sharing(lengths, most, 0.0, Governor if fixed >= 0 else None)
        return seconds, self.costs.seconds[most] + self.costs.per_cell * most * max(lengths)

    def sharing(
        self,
        lengths: Sequence[int],
        most: int,
        right: float,
        kind: type[Governor] | None,
        look: float = 0.0,
        left: float | None = None,
    ) -> tuple[float, list[Governor]]:
        """The seconds of texts of these lengths that share a balance, at most `most` at a time, and their governors;
        kind: of these, None: no drafts; look: the seconds of deciding what is asked; left: the first balance in calls
        of one row."""
        shared, began, governors, costs = SharedLearning(), self.runtime.now, list[Governor](), self.costs
        if left is not None:
            shared.bank().open(costs.seconds[1])
            shared.bank().left = left * costs.seconds[1]
        batch = Batch(self.runtime, most=most)  # type: ignore[arg-type]
        for i, length in enumerate(lengths):
            text = text_from(3 + i, length + 3)
            dial = TimedDial(self.runtime, text_from(3 + i, 3 * length + 20), right, i)
            if kind is not None:
                governors.append(kind([("dial", dial)], lambda: costs, shared=shared))
                governors[-1]._begin = self._timed(governors[-1]._begin, look)  # type: ignore[method-assign]
            context = Context(text[:3], 3, Slots(self.runtime, length + 40))  # type: ignore[arg-type]
            config, drafter = GenerationConfig(max_tokens=length), governors[-1] if governors else Off()
            loop = decode_loop(context, config, drafter, capabilities=self.runtime.capabilities)
            batch.add(context, loop, lambda token: None, length + 3)
        batch.run()
        return self.runtime.now - began, governors

    def _timed(self, work: Callable[[Context], None], seconds: float) -> Callable[[Context], None]:
        """It takes so long."""

        def timed(context: Context) -> None:
            self.runtime.now += seconds
            work(context)

        return timed

    def _step(self, texts: Sequence[list[int]], drafters: Sequence[Drafter], until: int) -> int:
        batch, made = Batch(self.runtime), [0]  # type: ignore[arg-type]
        contexts = []
        for text, drafter in zip(texts, drafters, strict=True):
            context = Context(text[:3], 3, Slots(self.runtime, len(text) + 4))  # type: ignore[arg-type]
            config = GenerationConfig(max_tokens=len(text) - 3)
            decoding = decode_loop(context, config, drafter, capabilities=self.runtime.capabilities)
            batch.add(context, decoding, lambda token: made.__setitem__(0, made[0] + (token is not None)), len(text))
            contexts.append(context)
        while made[0] < until and batch.step():
            pass
        assert all(context.ids == text[: len(context.ids)] for context, text in zip(contexts, texts, strict=True))
        for left in batch.jobs:
            batch.cancel(left)
        return made[0]


def measured(seconds: Seconds, monkeypatch: pytest.MonkeyPatch, python: Python | None = None) -> Simulation:
    """On a host where costs are known."""
    simulation = Simulation(seconds, monkeypatch, python=python)
    simulation.costs = Costs(
        {k: seconds(k, 0) for k in COUNTS}, per_cell=seconds(1, 1000) / 1000 - seconds(1, 0) / 1000
    )
    simulation.costs.between.start(simulation.runtime.python.step)
    simulation.row_probe = RowProbe(simulation.costs)
    simulation.row_probe.due = lambda rows, most: 0  # type: ignore[method-assign]
    return simulation
