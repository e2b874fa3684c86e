"""The engine's governor decides as the classes of `edgedec.speculation` do when both are given the same seconds: the
same drafts, and the same balance, records and calibrations to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, random_weights, write_bundle
from governed import Oracle, Still, governor_of, state_of_governor, store_of
from taught import generated, new_context, watch_steps, with_run

from edgedec import Sampling
from edgedec.decoding.allocation import Others, allocate
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.copy import Copy
from edgedec.drafters.datastore import DatastoreDrafter
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import SILENT, Call, Outputs, Rows, Runtime, StepCosts, open_runtime
from edgedec.runtimes._native_govern import NativeGovernor
from edgedec.speculation.bank import AUTO, NAMED, Terms
from edgedec.speculation.governor import Governor
from edgedec.storage.datastore import Datastore

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
N = 220
# Of a cached token, where texts cost.
CELL = 0.001
# By name: what a call takes by rows, what deciding and learning take at most, between calls a token and a draft.
HOSTS: dict[str, tuple[dict[int, float], float, float, float]] = {
    "texts cost": ({1: 1.0, 8: 1.4, 12: 4.0, 64: 50.0}, 0.02, 0.03, 0.05),
    "rows cost little": ({1: 1.0, 5: 1.2, 6: 4.0, 64: 70.0}, 0.01, 0.0, 0.0),
    "rows cost much": ({1: 1.0, 2: 1.6, 8: 5.0, 64: 40.0}, 0.02, 0.05, 0.02),
    "deciding costs": ({1: 1.0, 8: 1.5, 64: 9.0}, 0.3, 0.02, 0.1),
    "drafting costs more than it brings": ({1: 1.0, 8: 1.5, 64: 9.0}, 2.0, 0.02, 0.9),
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    spec = KINDS["heads by layer"]
    bundle = write_bundle(tmp_path_factory.mktemp("toys") / "toy", spec, random_weights(spec))
    return open_runtime("native", bundle)


def text_of(runtime: Runtime, seed: int) -> list[int]:
    """A prompt, and what follows it."""
    watch_steps(runtime, True)
    context = new_context(runtime, Sampling(), seed, capacity=400)
    generated(runtime, context, Sampling(), Off(), max_tokens=N)
    return context.ids


@pytest.fixture(scope="module")
def store(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Datastore:
    """Half of each text, so that there is nothing to find after it."""
    texts = [text[: len(text) // 2] for text in (text_of(runtime, seed) for seed in range(4))]
    return store_of(tmp_path_factory.mktemp("store"), texts, runtime.spec.vocab_size)


class Tape:
    """Runs steps beside the oracle. same: the decisions that were compared; drafted, right: guesses; took: the most
    seconds of deciding, and of learning."""

    def __init__(self, runtime: Runtime, store: Datastore, took: float, pace: Mapping[int, float]) -> None:
        self.runtime, self.store, self.took, self.pace = runtime, store, took, pace
        self.rng, self.same, self.drafted, self.right = np.random.default_rng(3), 0, 0, 0
        self.texts, self.oracles = dict[int, tuple[Any, Governor]](), dict[int, Oracle]()
        self.silent, self.weights, self.beside, self.deciding = set[str](), set[float](), 0, 0
        self.started: Call | None = None
        self.begin: Callable[[Any], None] = lambda governor: None

    def add(self, context: Any, governor: Governor) -> None:
        self.texts[id(context.cache)] = context, governor

    def oracle(self, step: Any) -> Oracle:
        """That of the step's text; new terms begin with a new governor in the step."""
        governor = self.texts[id(step.cache)][1]
        found = self.oracles.get(id(step.cache))
        if found is None:
            governor._compiled.clear()  # type: ignore[union-attr]  # a tree that was not followed
            self.begin(step._governor)
            found = self.oracles[id(step.cache)] = Oracle(governor, [Copy(), DatastoreDrafter(self.store, 1)])
        elif step._governor.renewed:
            found.renew()
        step._governor.renewed = False
        return found

    def run(self, parts: Any, owner: Any, steps: Any, calls: Any) -> Any:
        without = [step.cache.length for step in steps if id(step.cache) not in self.texts]
        everyone, steps = steps, [step for step in steps if id(step.cache) in self.texts]
        if not steps:
            return parts.run(owner, everyone, calls)
        oracles, contexts = [self.oracle(step) for step in steps], [self.texts[id(step.cache)][0] for step in steps]
        paces = [self.pace.get(oracle.record.own.n, 1.0) for oracle in oracles]
        took = [pace * np.array(self.rng.uniform(0, self.took, 2)) for pace in paces]
        for step, seconds in zip(steps, took, strict=True):
            step._governor.struct.took = seconds.ctypes.data
        chances = [oracle.begin(context) for oracle, context in zip(oracles, contexts, strict=True)]
        self.weights |= {oracle.prices.weight for oracle in oracles}
        several = zip(oracles, chances, contexts, strict=True)
        offers = [oracle.offer(found, context) for oracle, found, context in several if found]
        quiet = [context.cache.length for found, context in zip(chances, contexts, strict=True) if not found]
        quiet += without
        others = Others(len(quiet), sum(quiet), len(quiet), len(quiet))
        for call in calls:  # prompts that are read beside
            read, cells = len(call.rows), call.cache.length * (3 + len(call.rows)) // 4
            last = read - call.outputs.logits_from
            others = Others(*(a + b for a, b in zip(others, (read, cells, last, 1), strict=True)))
            self.beside += 1 if chances else 0
        grants = iter(allocate(offers, others, len(oracles[0].costs.seconds) - 1) if offers else [])
        nodes = [next(grants).nodes if found else 0 for found in chances]
        before = [step._governor.drafted for step in steps]
        started = [] if self.started is None else [self.started]
        done = parts.run(owner, everyone, [*calls, *started])
        assert [step._governor.drafted - n for step, n in zip(steps, before, strict=True)] == nodes
        assert done.rows == len(everyone) + sum(nodes) + sum(len(call.rows) for call in [*calls, *started])
        spent = [sum(each) for oracle, each in zip(oracles, took, strict=True) if oracle.watched]
        assert done.spent == pytest.approx(sum(spent))
        self.deciding = max(self.deciding, len(spent))
        for step, oracle, n, seconds in zip(steps, oracles, nodes, took, strict=True):
            path, picked = step.followed()
            oracle.end(n, sum(nodes), picked, done.rows, seconds.tolist())
            assert oracle.state() == state_of_governor(self.texts[id(step.cache)][1])
            assert step._governor.struct.expected == pytest.approx(oracle.expected)
            self.same, self.drafted, self.right = self.same + 1, self.drafted + n, self.right + len(path) - 1
            self.silent |= set(oracle.silent)
        return done._replace(results=done.results[: len(calls)])


def taped(
    runtime: Runtime,
    store: Datastore,
    name: str,
    terms: Terms,
    texts: int,
    monkeypatch: Any,
    last: bool = False,
    prompts: int = 0,
    started: bool = False,
    pace: Mapping[int, float] = MappingProxyType({}),
    capacity: int = 400,
    begin: Callable[[Any], None] = lambda governor: None,
) -> Tape:
    """So many texts at a time, on a host of these costs. last: no further texts come; prompts: of short texts without
    drafts that come one after another; started: the first block of a draft in progress runs in every forward; pace: how
    many times as long as usual a proposal takes, by how many its text had before; begin: changes the engine's state
    of a text before its first step."""
    seconds, took, plain, draft = HOSTS[name]
    tape, batch, costs = Tape(runtime, store, took, pace), Batch(runtime), Still(seconds, CELL * (name == "texts cost"))
    batch.last, tape.begin = last, begin
    if started:
        rows = Rows.chain([1, 2, 3, 4, 5], 0)
        tape.started = Call(rows, runtime.new_cache(64), range(1), outputs=Outputs(hidden=(0,)))
    renew = NativeGovernor.renew

    def renewed(self: Any, asked: StepCosts, *terms: Any) -> None:
        renew(self, asked._replace(plain=plain, draft=draft), *terms)
        self.renewed = True

    monkeypatch.setattr(NativeGovernor, "renew", renewed)
    watch_steps(runtime, True)
    parts = runtime.capabilities.steps
    runtime.capabilities = with_run(runtime, lambda *asked: tape.run(parts, *asked))
    config = GenerationConfig(max_tokens=N)
    for seed in range(texts):
        context = new_context(runtime, Sampling(), seed, capacity=capacity)
        governor = governor_of(runtime, store, terms, costs, recycling=False)
        tape.add(context, governor)
        loop = decode_loop(context, config, governor, capabilities=runtime.capabilities)
        batch.add(context, loop, lambda token: None, 400)
    for n in range(prompts):
        prompt = tape.rng.integers(0, runtime.spec.vocab_size, 3 + n % 9).tolist()
        other = Context(prompt, len(prompt), runtime.new_cache(64))
        loop = decode_loop(other, GenerationConfig(max_tokens=4), Off(), capabilities=runtime.capabilities)
        batch.add(other, loop, lambda token: None, 64)
        for _ in range(3):
            batch.step()
    batch.run()
    watch_steps(runtime, True)
    return tape


@pytest.mark.parametrize("texts", [1, 4])
@pytest.mark.parametrize("terms", [AUTO, NAMED], ids=["auto", "named"])
@pytest.mark.parametrize("name", HOSTS)
def test_decisions_are_those_of_python(
    runtime: Runtime, store: Datastore, name: str, terms: Terms, texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = taped(runtime, store, name, terms, texts, monkeypatch)
    assert tape.same > 60
    assert tape.deciding == texts
    assert tape.weights == {1.0}, "further texts may come"
    if name != "drafting costs more than it brings":
        assert tape.drafted >= tape.right > 20
    if name != "rows cost little":
        assert tape.silent, "some steps had no draft"


@pytest.mark.parametrize("name", ["rows cost much", "texts cost"])
def test_texts_after_which_no_others_come(
    runtime: Runtime, store: Datastore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token of the text that ends last is worth a call, one of the others only the row that it saves."""
    tape = taped(runtime, store, name, NAMED, 4, monkeypatch, last=True)
    assert tape.same > 100
    assert min(tape.weights) < 0.9
    assert max(tape.weights) > 1.3


@pytest.mark.parametrize("name", ["rows cost little", "texts cost"])
def test_texts_beside_prompts_and_texts_without_drafts(
    runtime: Runtime, store: Datastore, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a prompt count as the tokens that the other texts would have got in their time."""
    tape = taped(runtime, store, name, NAMED, 2, monkeypatch, prompts=30)
    assert tape.same > 100
    assert tape.beside > 10
    assert tape.drafted >= tape.right > 20


@pytest.mark.parametrize("terms", [AUTO, NAMED], ids=["auto", "named"])
def test_a_host_that_is_interrupted(
    runtime: Runtime, store: Datastore, terms: Terms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time counts only until the second, and one far above the usual ones as four of them."""
    monkeypatch.setitem(HOSTS, "is interrupted", ({1: 1.0, 8: 1.5, 64: 9.0}, 0.005, 0.02, 0.01))
    tape = taped(runtime, store, "is interrupted", terms, 3, monkeypatch, pace={1: 0.0, 7: 40.0, 20: 40.0})
    assert tape.same > 100
    assert tape.drafted >= tape.right > 10


@pytest.mark.parametrize("capacity", range(60, 84, 3))
def test_texts_that_fill_their_context(
    runtime: Runtime, store: Datastore, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HOSTS, "rows cost nothing", ({1: 1.0, 64: 1.1}, 0.005, 0.0, 0.0))
    tape = taped(runtime, store, "rows cost nothing", NAMED, 2, monkeypatch, capacity=capacity)
    assert tape.drafted >= tape.right > 10


@pytest.mark.parametrize("seed", range(24))
def test_whatever_the_records_of_earlier_texts_say(
    runtime: Runtime, store: Datastore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this text and of all texts: few proposals or none, quick or slow ones, which added much or nothing."""
    rng = np.random.default_rng(seed)

    def begin(governor: Any) -> None:
        _, _, record, shared = governor._keep
        for means, most in ((record.own, 3), (shared, 10)):
            means.n = int(rng.integers(most))
            means.seconds, means.tokens = rng.uniform(0, 0.2), rng.uniform(0, 2)
            means.rows = means.tokens + rng.uniform(0, 3)
        record.wait, record.next = (int(n) for n in rng.integers(0, 20, 2))
        shared.calls, shared.until, shared.wait = 20, 20 + int(rng.integers(9)), 16

    name = list(HOSTS)[seed % len(HOSTS)]
    assert taped(runtime, store, name, (AUTO, NAMED)[seed % 2], 2, monkeypatch, begin=begin).same > 60


@pytest.mark.parametrize("terms", [AUTO, NAMED], ids=["auto", "named"])
@pytest.mark.parametrize("left", [None, -1.0])
def test_the_end_of_a_text_adds_what_the_next_step_would_have_added(
    runtime: Runtime, store: Datastore, terms: Terms, left: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else changes. The time between calls is the host's, which is next to nothing."""

    def begin(governor: Any) -> None:
        bank = governor._keep[0]
        bank.left = bank.left if left is None else left

    tape = taped(runtime, store, "rows cost little", terms, 3, monkeypatch, begin=begin)
    assert tape.right > 5 or left is not None
    for cache, (_, governor) in tape.texts.items():
        oracle, bank = tape.oracles[cache], governor.account.bank
        assert oracle.fresh > 0
        oracle.account.add_time(oracle.fresh * oracle.prices.token)
        assert bank.left == pytest.approx(oracle.bank.left, abs=2e-3 * terms.rate)
        oracle.bank.left = bank.left
        assert oracle.state() == state_of_governor(governor)


def test_where_the_cost_of_few_rows_is_known_all_of_them_may_run(
    runtime: Runtime, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HOSTS, "few rows are known", ({1: 1.0, 3: 1.1}, 0.01, 0.0, 0.0))
    tape = taped(runtime, store, "few rows are known", NAMED, 1, monkeypatch)
    assert tape.same > 60
    assert tape.drafted > tape.same, "two guesses in most steps"


def test_rows_of_a_draft_in_progress_are_no_tokens(
    runtime: Runtime, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = taped(runtime, store, "rows cost little", NAMED, 1, monkeypatch, started=True)
    assert tape.same > 60
    assert tape.drafted >= tape.right > 20


def test_every_reason_not_to_draft_was_compared(
    runtime: Runtime, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = set[str]()
    for name in HOSTS:
        for terms in (AUTO, NAMED):
            with monkeypatch.context() as patch:
                silent |= taped(runtime, store, name, terms, 1, patch).silent
    assert silent == set(SILENT)
