"""PEARL: drafting while the target runs changes nothing but the time; it stops where it does not pay."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut import first_layers
from drafting import SAMPLINGS, left, run, saved
from python_steps import python_steps

import edgedec
from edgedec.drafters import pearl as file
from edgedec.drafters._models import ahead
from edgedec.drafters._models.ahead import Ahead
from edgedec.drafters.off import Off
from edgedec.drafters.pearl import Pace, Pearl, length
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, CallResult
from edgedec.testing.fakes import FakeRuntime, tiny_spec

# Seconds that nothing takes on any machine: a test that waits so long has failed.
LONG = 60
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


class Slow(FakeRuntime):
    """A fake model whose forwards take a while, four times as long while another of those on `core` runs; `wrong`: how
    often it says something else."""

    def __init__(self, seconds: float = 0.0, core: list[int] | None = None, wrong: float = 0.0) -> None:
        super().__init__(tiny_spec(context_length=512))
        self.seconds, self.core, self.wrong, self.broken = seconds, core if core is not None else [], wrong, False

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        if self.broken:
            raise RuntimeError("out of memory")
        self.core.append(1)
        for _ in range(8):
            time.sleep(self.seconds / 8 * (4 if len(self.core) > 1 else 1))
        self.core.pop()
        return super().forward(calls)

    def head(self, hidden: Any) -> Any:
        logits = super().head(hidden)
        amiss = (np.abs(hidden[:, 0].astype(np.int64)) * 7919 % 100) < 100 * self.wrong
        logits[amiss] = -logits[amiss]
        return logits


def pearl(runtime: FakeRuntime, overlap: str = "always", gamma: int = 8) -> Pearl:
    return Pearl(runtime, 13, gamma, overlap)


def drafted(ahead: Ahead) -> None:
    """Wait until the draft model has drafted all it may, however busy the machine is."""
    with ahead._state:
        assert ahead._state.wait_for(lambda: not ahead._busy(), LONG), "the draft model does not run"


class Patient(FakeRuntime):
    """A call of the target ends when the draft model has drafted all it may; `running` is set until then."""

    def __init__(self, drafter: Pearl, running: threading.Event | None = None) -> None:
        super().__init__(tiny_spec(context_length=512))
        self.drafter, self.running = drafter, running if running is not None else threading.Event()

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        self.running.set()
        drafted(self.drafter._ahead)
        self.running.clear()
        return super().forward(calls)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("overlap", ["always", "auto"])
@pytest.mark.parametrize("wrong", [0.0, 0.4, 1.0])
def test_the_text_and_what_it_leaves_are_those_of_plain_decoding(overlap: str, wrong: float, sampling: Any) -> None:
    plain, context, *_ = run(Slow(), Off(), max_tokens=100, sampling=sampling)
    for patient in (False, True):  # the first takes what is there, the second has drafts on any machine
        drafter = pearl(Slow(0.0 if patient else 0.0005, wrong=wrong), overlap)
        target = Patient(drafter) if patient else Slow(0.001)
        tokens, own, stats, _ = run(target, drafter, max_tokens=100, sampling=sampling)
        assert tokens == plain
        assert left(own) == left(context)
    # What is always wrong is found out by the first token of each draft, before it is sent.
    assert stats.proposed > 5 or (wrong == 1.0 and drafter.report()["steps"] > 20)
    if wrong == 0.0 and not sampling.temperature:
        assert stats.accepted > 5


class Gated(Slow):
    """A draft model that runs only while the target does."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        assert self.open.wait(LONG), "the target does not run"
        return super().forward(calls)


def test_it_drafts_while_the_target_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft model runs at no other time, and its steps take so long that it is never waited for."""
    clock = count(0.0, 1000.0)
    monkeypatch.setattr(ahead, "perf_counter", lambda: next(clock))
    draft = Gated()
    drafter = pearl(draft)
    _, _, stats, _ = run(Patient(drafter, draft.open), drafter, max_tokens=100)
    draft.open.set()
    report = drafter.report()
    assert report["waited"] == 0
    assert report["ready"] == stats.calls - 1, "each call but the first has a draft"
    assert report["steps"] > 80
    assert stats.generated / stats.calls > 4


def timed(overlap: str, slower: int) -> float:
    began = time.perf_counter()
    run(Slow(0.024 * slower), pearl(Slow(0.004 * slower), overlap), max_tokens=60)
    return time.perf_counter() - began


@pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="measures times; set EDGEDEC_SLOW_TESTS")
def test_two_cores_are_faster_than_turns() -> None:
    assert any(timed("always", slower) < 0.9 * timed("never", slower) for slower in (1, 2, 4))


def test_where_cores_are_busy_it_drafts_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core: the clock goes on by what both models take, and four times as fast while both run."""
    clock = [0.0]

    class OneCore(Patient):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            both = self.drafter._ahead._busy()
            found = super().forward(calls)
            clock[0] += 0.002 * (4 if both else 1)
            return found

    class Beside(Slow):
        def forward(self, calls: Sequence[Call]) -> list[CallResult]:
            clock[0] += 0.001 * (4 if threading.current_thread() is not threading.main_thread() else 1)
            return super().forward(calls)

    monkeypatch.setattr(file, "perf_counter", lambda: clock[0])
    drafter = pearl(Beside(), "auto", gamma=4)
    run(OneCore(drafter), drafter, max_tokens=400, capacity=600)
    report = drafter.report()
    assert report["speed"]["turns"] > report["speed"]["overlap"] > 0
    assert not report["overlap"]
    assert report["turns"]["steps"] > 0


def test_the_pace_follows_what_is_measured() -> None:
    pace = Pace("auto")
    speeds = {True: 100.0, False: 150.0}
    used = []
    for call in range(1500):
        if call == 700:
            speeds = {True: 200.0, False: 150.0}
        used.append(pace.overlap)
        pace.add(2, 2 / speeds[pace.overlap], pace.overlap)
    assert set(used[:40]) == {True}
    assert sum(used[60:380]) == 0  # turns were faster
    assert sum(used[60:700]) < 60  # but for trials
    assert sum(used[1200:]) > 250
    first = Pace("auto")
    for call in range(Pace.FIRST):  # the first two calls do not count
        first.add(2, 100.0 if call < 2 else 0.5, True)
    assert first.rates == {"overlap": 4.0, "turns": 0.0}
    for overlap in ("always", "never"):
        fixed = Pace(overlap)
        for _ in range(900):
            fixed.add(1, 0.1, fixed.overlap)
            assert fixed.overlap == (overlap == "always")


@pytest.mark.parametrize(
    ("n", "p", "step", "call", "expected"),
    [(0, 0.9, 2, 10, 0), (0, 0.6, 1, 10, 3), (3, 0.9, 1, 3, 3), (0, 0.01, 1, 10, 0), (2, 0.95, 0.01, 10, 8)],
)
def test_how_long_it_waits(n: int, p: float, step: float, call: float, expected: int) -> None:
    assert length(n, 8, p, step, call) == expected


def test_sequences_of_a_batch_are_not_kept_waiting() -> None:
    drafter = pearl(Slow(0.001))
    context = run(Slow(), drafter, max_tokens=20)[1]
    context.concurrent = 3
    assert not hasattr(drafter.propose(context, 8, 0.0), "tokens")  # a generator: the calls of `model`, in turns


def test_its_thread_ends_with_it() -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "edgedec-draft"]

    def ended() -> bool:
        gc.collect()
        for thread in threads():
            thread.join(LONG)
        return not threads()

    assert ended()
    drafter = pearl(Slow(0.001))
    run(Slow(0.002), drafter)
    assert len(threads()) == 1
    del drafter
    assert ended()


def test_a_draft_model_that_fails_does_not_end_the_text() -> None:
    draft = Slow()
    drafter = pearl(draft)
    draft.broken = True
    tokens, *_ = run(Patient(drafter), drafter)
    assert tokens == run(Slow(), Off())[0]
    assert "out of memory" in drafter.report()["trouble"]


@needs_native
@pytest.mark.parametrize("kv", ["f32", "int8"])
def test_on_the_engine_text_and_cache_are_those_of_plain_decoding(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kv: str
) -> None:
    small = first_layers(nano, tmp_path / "small", 4)
    model = edgedec.open("nano", engine="native", kv=kv, threads=1)
    python_steps(model.runtime)
    forward, started, start = model.runtime.forward, list[Ahead](), Ahead.start

    def patient(calls: Sequence[Call]) -> list[CallResult]:
        for one in started:
            drafted(one)
        return forward(calls)

    monkeypatch.setattr(Ahead, "start", lambda self: (started.append(self), start(self)))
    monkeypatch.setattr(model.runtime, "forward", patient)
    live, off = (model.session(speculate=s) for s in (f"pearl:path={small},overlap=always,kv=f32,fixed=6+copy", "off"))
    for prompt in ("Once upon a time", "One day, Lily found a key. One day, Lily"):
        ids = model.tokenizer.encode(prompt)
        assert list(live.tokens(ids, max_tokens=120)) == list(off.tokens(ids, max_tokens=120))
        assert saved(live._context.cache) == saved(off._context.cache)
    report = live.report()["drafters"]["pearl"]
    assert report["accepted"] > 0
    assert "trouble" not in report


@pytest.mark.parametrize(("spec", "message"), [("pearl", "no draft model"), ("pearl:path=nano,overlap=x", "overlap=x")])
def test_a_wrong_spec_is_refused(nano: Path, spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        edgedec.open("nano").session(speculate=spec)
