"""Steps of the CPU engine that draft by themselves: at every token the text, the cache and the random state are those
of plain decoding by the Python step, for one text and for many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from bundles import KINDS, random_weights, write_bundle
from governed import CALLS, Still, governor_of, store_of
from loops import decode
from taught import SETTINGS, N, generated, new_context, state_of, text_of, watch_steps, with_run

import edgedec
from edgedec import Sampling
from edgedec.decoding import host_time
from edgedec.decoding.allocation import text_cells
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import Runtime, open_runtime
from edgedec.speculation.bank import AUTO, NAMED
from edgedec.speculation.compiled import CompiledMerger
from edgedec.speculation.state import SharedLearning
from edgedec.storage.datastore import Datastore

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


@pytest.fixture(scope="module", params=["heads by layer", "state spaces"])
def runtime(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    spec = KINDS[request.param]
    bundle = write_bundle(tmp_path_factory.mktemp("toys") / "toy", spec, random_weights(spec))
    return open_runtime("native", bundle)


@pytest.fixture(scope="module")
def texts(runtime: Runtime) -> dict[str, list[int]]:
    """By settings: the prompt, and what follows it in plain decoding."""
    return {name: text_of(runtime, sampling) for name, sampling in SETTINGS.items()}


@pytest.fixture(scope="module")
def store(runtime: Runtime, texts: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> Datastore:
    return store_of(tmp_path_factory.mktemp("store"), list(texts.values()), runtime.spec.vocab_size)


def plain(runtime: Runtime, sampling: Sampling, **options: Any) -> tuple[list[Any], Any, list[Any]]:
    """States at each token and at the end, and the counts of texts and reasons, of the Python step without drafts."""
    watch_steps(runtime, False)
    context = new_context(runtime, sampling, **options.pop("of", {}))
    states, stats = generated(runtime, context, sampling, Off(), **options)
    return states, state_of(context), [stats.generated, stats.finish]


def governed(runtime: Runtime, sampling: Sampling, store: Datastore, **options: Any) -> tuple[Any, Counter[str], Any]:
    """The same of governed steps; the steps that were made, and the governor."""
    counted, governor = watch_steps(runtime, True), governor_of(runtime, store)
    context = new_context(runtime, sampling, **options.pop("of", {}))
    states, stats = generated(runtime, context, sampling, governor, **options)
    counted["proposed"], counted["accepted"], counted["calls"] = stats.proposed, stats.accepted, stats.calls
    return (states, state_of(context), [stats.generated, stats.finish]), counted, governor


@pytest.mark.parametrize("name", SETTINGS)
def test_governed_steps_leave_what_plain_decoding_leaves(runtime: Runtime, store: Datastore, name: str) -> None:
    expected = plain(runtime, SETTINGS[name])
    found, counted, governor = governed(runtime, SETTINGS[name], store)
    assert found == expected
    assert counted["governed"] > 3
    assert counted["proposed"] > counted["accepted"] > 3, "right and wrong guesses ran"
    assert counted["calls"] < N - 3
    report = governor.report()
    assert sum(int(size) * calls for size, calls in report["sizes"].items()) == counted["proposed"]
    members = report["drafters"]
    assert sum(member["accepted"] for member in members.values()) >= counted["accepted"]
    assert members["datastore"]["accepted"] > 0
    assert members["recycling"]["tokens"] > 20, "tables learn from the steps"


@pytest.mark.parametrize("name", ["greedy", "temperature"])
def test_forwards_count_the_drafts_that_ran(runtime: Runtime, name: str) -> None:
    """A governed step without guesses is not a draft."""
    counted, governor = watch_steps(runtime, True), governor_of(runtime, None, recycling=False)
    generated(runtime, new_context(runtime, SETTINGS[name]), SETTINGS[name], governor)
    assert 3 < counted["drafts"] == sum(governor.report()["sizes"].values()) < counted["governed"]


@pytest.mark.parametrize("native", [False, True])
def test_tables_whose_guesses_ran_are_used(runtime: Runtime, store: Datastore, native: bool) -> None:
    watch_steps(runtime, native)
    governor = governor_of(runtime, store)
    generated(runtime, new_context(runtime, Sampling()), Sampling(), governor)
    report = governor.report()
    assert max(map(int, report["sizes"])) > 2
    members = report["drafters"]
    assert members["datastore"]["accepted"] > 3
    assert {member["state"] for member in members.values()} == {"used"}


def test_tokens_carry_the_names_of_their_drafters(runtime: Runtime, store: Datastore) -> None:
    watch_steps(runtime, True)
    context, governor = new_context(runtime, Sampling()), governor_of(runtime, store)
    tokens = list(decode(runtime, context, GenerationConfig(max_tokens=N), governor))
    named = [name for token in tokens for name in token.by.split("+") if name]
    assert set(named) <= {"copy", "recycling", "datastore"}
    members = governor.report()["drafters"]
    assert Counter(named) == {name: it["accepted"] for name, it in members.items() if it["accepted"]}


@pytest.mark.parametrize("name", ["greedy", "temperature", "undecided"])
def test_a_stop_token_ends_the_text_wherever_it_stands(
    runtime: Runtime, store: Datastore, texts: dict[str, list[int]], name: str
) -> None:
    sampling, lengths = SETTINGS[name], set[int]()
    for end in dict.fromkeys(texts[name][-N - 10 : -10]):
        stops = {"stop_tokens": frozenset({end, 1000})}
        expected = plain(runtime, sampling, **stops)
        found, counted, _ = governed(runtime, sampling, store, **stops)
        assert found == expected
        assert found[2][1] == "eos"
        lengths |= {len(found[0])} if counted["governed"] else set()
    assert len(lengths) > 4


def test_a_stop_token_that_was_drafted_saves_no_call(
    runtime: Runtime, store: Datastore, texts: dict[str, list[int]]
) -> None:
    """What drafts save is the calls that plain decoding would have made: one a token, the stop token included."""
    costs, drafted = Still({rows: 1e3 * seconds for rows, seconds in CALLS.items()}), 0
    for end in dict.fromkeys(texts["greedy"][-N - 10 : -10]):
        watch_steps(runtime, True)
        context, governor = new_context(runtime, Sampling()), governor_of(runtime, store, costs=costs)
        _, stats = generated(runtime, context, Sampling(), governor, stop_tokens=frozenset({end, 1000}))
        saved, tokens = governor.account.bank.saved / 1e3, stats.generated + 1
        assert saved == pytest.approx(tokens - stats.calls, abs=0.2), "the time between calls is next to nothing"
        drafted += stats.accepted > tokens - stats.calls
    assert drafted > 2, "the stop token was one of the guesses that were right"


@pytest.mark.parametrize("name", ["greedy", "top-p", "penalties"])
def test_a_text_closed_copied_or_continued_at_any_token(runtime: Runtime, store: Datastore, name: str) -> None:
    sampling = SETTINGS[name]
    config = GenerationConfig(sampling=sampling, max_tokens=14)
    states = plain(runtime, sampling, max_tokens=20)[0]
    for at in range(1, 14):
        counted, governor = watch_steps(runtime, True), governor_of(runtime, store)
        context = new_context(runtime, sampling)
        tokens = decode(runtime, context, config, governor)
        for _ in range(at):
            next(tokens)
        twin = context.fork()
        tokens.close()
        assert state_of(context) == state_of(twin) == states[at - 1]
        assert counted["governed"] > 0 or at < 4
        watch_steps(runtime, True)
        for each, drafter in ((twin, Off()), (context, governor)):
            more, _ = generated(runtime, each, sampling, drafter, max_tokens=5)
            assert [state[1] for state in more] == [state[1] for state in states[at : at + 5]]


@pytest.mark.parametrize("name", ["greedy", "temperature"])
@pytest.mark.parametrize("sinks", [None, 2])
def test_a_full_context_ends_or_slides(runtime: Runtime, store: Datastore, name: str, sinks: int | None) -> None:
    options: dict[str, Any] = {"of": {"capacity": 24, "sinks": sinks}, "max_tokens": None if sinks is None else 45}
    expected = plain(runtime, SETTINGS[name], **{**options, "of": dict(options["of"])})
    found, counted, _ = governed(runtime, SETTINGS[name], store, **options)
    assert found == expected
    assert found[2][1] == ("context" if sinks is None else "length")
    assert counted["accepted"] > 0


@pytest.mark.parametrize("limit", range(1, 12))
def test_no_token_more_than_asked(runtime: Runtime, store: Datastore, limit: int) -> None:
    sampling = SETTINGS["temperature"]
    expected = plain(runtime, sampling, max_tokens=limit)
    assert governed(runtime, sampling, store, max_tokens=limit)[0] == expected


@pytest.mark.parametrize("fails", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("late", [False, True])
def test_a_step_that_fails_or_is_interrupted_takes_no_number(
    runtime: Runtime, store: Datastore, fails: type[BaseException], late: bool
) -> None:
    """Before the forward or after it: the text continues as if the step had not been begun."""
    sampling = SETTINGS["temperature"]
    states = plain(runtime, sampling)[0]
    for at in range(1, 7):
        counted = watch_steps(runtime, True)
        parts, left = runtime.capabilities.steps, [at]

        def failing(owner: Any, steps: Any, calls: Any, parts: Any = parts, left: list[int] = left) -> Any:
            left[0] -= 1
            if not left[0] and not late:
                raise fails
            done = parts.run(owner, steps, calls)
            if not left[0]:
                raise fails
            return done

        context, governor = new_context(runtime, sampling), governor_of(runtime, store)
        runtime.capabilities = with_run(runtime, failing)
        with pytest.raises(fails):
            for _ in decode(runtime, context, GenerationConfig(sampling=sampling, max_tokens=N), governor):
                pass
        watch_steps(runtime, True)
        n = len(context.ids) - context.n_prompt
        assert [state[4] for state in states[n - 1 : n]] == [state_of(context)[4]]
        more, _ = generated(runtime, context, sampling, governor, max_tokens=8)
        assert [state[1] for state in more] == [state[1] for state in states[n : n + 8]]
        assert counted["governed"] == at - (not late)


def test_texts_in_a_batch_leave_what_they_leave_alone(
    runtime: Runtime, store: Datastore, texts: dict[str, list[int]]
) -> None:
    """They join one after another, plain ones among them; one is cancelled in the middle."""
    names = [*SETTINGS, *list(SETTINGS)[:4]]
    expected = [plain(runtime, SETTINGS[name], max_tokens=N - 3 * (i % 4)) for i, name in enumerate(names)]
    counted, shared, costs = watch_steps(runtime, True), SharedLearning(), Still()
    batch, found, jobs = Batch(runtime), [list[Any]() for _ in names], list[Any]()

    def add(i: int) -> None:
        sampling = SETTINGS[names[i]]
        context = new_context(runtime, sampling)
        drafter = Off() if i % 5 == 4 else governor_of(runtime, store, costs=costs, shared=shared)
        config = GenerationConfig(sampling=sampling, max_tokens=N - 3 * (i % 4))

        def given(token: Any) -> None:
            if token is not None:
                found[i].append(state_of(context))
            if i == 2 and len(found[i]) == 9:
                batch.cancel(jobs[i])

        loop = decode_loop(context, config, drafter, capabilities=runtime.capabilities)
        jobs.append(batch.add(context, loop, given, 128))

    for i in range(len(names)):
        add(i)
        batch.step()
    batch.run()
    assert [job.error for job in jobs] == [None] * len(names)
    for i, states in enumerate(found):
        assert states == expected[i][0][: 9 if i == 2 else None]
    assert counted["governed"] > 40
    assert counted["forwards"] < N + len(names) - 4, "drafts make them fewer than one a token"


@pytest.mark.parametrize("n", [1, 2, 3, 9, N])
def test_a_text_earns_for_all_its_tokens_where_it_is_closed(runtime: Runtime, store: Datastore, n: int) -> None:
    """A balance that is far below zero: nothing is drafted, and a call takes a second."""
    counted, governor = watch_steps(runtime, True), governor_of(runtime, store, AUTO)
    context = new_context(runtime, Sampling())
    bank = governor.account.bank
    bank.open(CALLS[1])
    bank.left = -50.0
    tokens = decode(runtime, context, GenerationConfig(max_tokens=N), governor)
    for _ in range(n):
        next(tokens)
    tokens.close()
    assert (counted["plain"], counted["governed"]) == (n - 1, 0), "it rests"
    assert bank.left == pytest.approx(-50.0 + 0.008 * n, abs=0.003)
    list(decode(runtime, context, GenerationConfig(max_tokens=9), governor))
    assert counted["governed"] == 9
    assert bank.left == pytest.approx(-50.0 + 0.008 * (n + 9), abs=0.003), "it goes on from there"


@pytest.mark.parametrize("n", range(5, N, 3))
def test_steps_are_drained_before_the_end_of_a_text_is_accounted_for(
    runtime: Runtime, store: Datastore, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine has not accounted for yet is the tokens of its last step that were delivered."""
    counted, governor = watch_steps(runtime, True), governor_of(runtime, store)
    context = new_context(runtime, Sampling())
    earned = list[float]()
    monkeypatch.setattr(governor.account, "add_time", earned.append)
    tokens = decode(runtime, context, GenerationConfig(max_tokens=N), governor)
    for _ in range(n):
        next(tokens)
    before = len(earned)
    assert counted["governed"] > 0
    assert governor._steps is not None
    tokens.close()
    steps = governor._steps.governor
    assert governor._prices is not None
    assert [seconds / governor._prices.token for seconds in earned[before:]] == pytest.approx(
        [len(context.ids) - steps.struct.length]  # type: ignore[attr-defined]
    )
    assert steps.drain().steps == 0
    assert governor.members[0].proposed + governor.members[2].proposed > 0


@pytest.mark.parametrize("terms", [AUTO, NAMED], ids=["auto", "named"])
def test_the_costs_of_calls_are_learned_from_governed_steps(runtime: Runtime, store: Datastore, terms: Any) -> None:
    counted, costs = watch_steps(runtime, True), Still()
    context = new_context(runtime, Sampling())
    _, stats = generated(runtime, context, Sampling(), governor_of(runtime, store, terms, costs))
    assert counted["governed"] > 3
    assert sum(rows - 1 for rows, _, _ in costs.added) == stats.proposed, "each call with a draft"
    assert 0 < len(costs.added) <= stats.calls
    assert all(seconds > 0 for _, seconds, _ in costs.added)
    assert costs.added[-1][2] > costs.added[1][2] > 0, "the cached tokens grow"


def test_the_cells_of_a_call_are_what_its_rows_attend_to(runtime: Runtime, store: Datastore) -> None:
    """Beside another text, and with drafts: keys and values are read once for all rows of a text."""
    watch_steps(runtime, True)
    parts, seen = runtime.capabilities.steps, list[tuple[float, int]]()

    def run(owner: Any, steps: Any, calls: Any) -> Any:
        lengths, before = [step.settings.cache.length for step in steps], [drafted_of(step) for step in steps]
        done = parts.run(owner, steps, calls)  # type: ignore[union-attr]
        rows = [1 + drafted_of(step) - n for step, n in zip(steps, before, strict=True)]
        assert done.rows == sum(rows)
        assert done.drafts == sum(n > 1 for n in rows)
        cells = sum(text_cells(n, length) for n, length in zip(rows, lengths, strict=True))
        seen.append((cells - done.cells, max(rows)))
        return done

    def drafted_of(step: Any) -> int:
        return 0 if step._governor is None else int(step._governor.drafted)

    runtime.capabilities = with_run(runtime, run)
    batch = Batch(runtime)
    for seed, drafter in enumerate((governor_of(runtime, store), Off())):
        context = new_context(runtime, Sampling(), seed)
        loop = decode_loop(context, GenerationConfig(max_tokens=N), drafter, capabilities=runtime.capabilities)
        batch.add(context, loop, lambda token: None, 128)
    batch.run()
    watch_steps(runtime, True)
    assert max(rows for _, rows in seen) > 2
    assert max(abs(off) for off, _ in seen) <= 2, "they are rounded for each text"


def test_the_tables_record_has_the_time_of_every_proposal(
    runtime: Runtime, store: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of steps that Python makes, as a trace needs them, whether guesses ran or not. The clock moves in proposals."""
    watch_steps(runtime, True)
    now, proposals, watch = [0.0], [0], CompiledMerger.watch

    def watched(self: Any, *asked: Any) -> int:
        now[0], proposals[0] = now[0] + 0.01, proposals[0] + 1
        return watch(self, *asked)

    monkeypatch.setattr(CompiledMerger, "watch", watched)
    for clock in ("perf_counter", "thread_time"):
        monkeypatch.setattr(host_time, clock, lambda: now[0])
    context, governor, trace = new_context(runtime, Sampling()), governor_of(runtime, store), list[Any]()
    list(decode(runtime, context, GenerationConfig(max_tokens=N), governor, trace=trace))
    drafts = sum(len(step.draft.tokens) > 0 for step in trace)
    assert 0 < drafts < proposals[0]
    assert governor._group is not None
    assert governor._group.seconds == pytest.approx(0.01 * proposals[0])


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.mark.parametrize("name", ["greedy", "top-p", "penalties"])
@pytest.mark.parametrize("spec", ["auto", "copy+recycling+trigram", "suffix"])
def test_sessions_of_nano(model: edgedec.Model, spec: str, name: str) -> None:
    prompt = model.tokenizer.encode("One day Tom met a cat. Again: One day Tom met a cat. Again: One")
    options: dict[str, Any] = {"sampling": SETTINGS[name], "max_tokens": 120, "ignore_eos": True}
    expected = list(model.session(speculate="off").tokens(prompt, **options))
    counted = watch_steps(model.runtime, True)
    session = model.session(speculate=spec)
    assert list(session.tokens(prompt, **options)) == expected
    assert counted["governed"] > 0 or spec == "auto"
