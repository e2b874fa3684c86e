"""Steps that the CPU engine makes by itself, of many texts in a batch, and of sessions: as the Python step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, random_weights, write_bundle
from taught import SETTINGS, N, Taught, both, counts, new_context, state_of, text_of, watch_steps, with_run

import edgedec
from edgedec import Sampling
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.scheduler.batch import Batch
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, Rows, Runtime, open_runtime

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


@pytest.fixture(scope="module", params=["heads by layer", "state spaces"])
def runtime(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    spec = KINDS[request.param]
    bundle = write_bundle(tmp_path_factory.mktemp("toys") / "toy", spec, random_weights(spec))
    return open_runtime("native", bundle)


def batched(runtime: Runtime, texts: Sequence[Sequence[int]], drafts: Sequence[str], leave: int) -> Any:
    """States at each token of texts that join one after another; text number `leave` is cancelled after nine tokens."""
    batch, names = Batch(runtime), list(SETTINGS)
    found: list[list[Any]] = [[] for _ in texts]
    contexts, jobs, learned = list[Context](), list[Any](), list[Any]()

    def add(i: int) -> None:
        sampling = SETTINGS[names[i % len(names)]]
        context = new_context(runtime, sampling, i % len(names))
        rests = 0 if drafts[i] == "off" else int(drafts[i])
        told = Taught(texts[i], runtime.spec.vocab_size, rests=rests, top=2)
        drafter = Off() if drafts[i] == "off" else told
        learned.append([] if isinstance(drafter, Off) else drafter.learned)
        config = GenerationConfig(sampling=sampling, max_tokens=N - 3 * (i % 4))
        loop = decode_loop(context, config, drafter, capabilities=runtime.capabilities)

        def given(token: Any) -> None:
            found[i].append("end" if token is None else state_of(context))
            if i == leave and len(found[i]) == 9:
                batch.cancel(jobs[i])

        contexts.append(context)
        jobs.append(batch.add(context, loop, given, 128))

    for i in range(len(texts)):
        add(i)
        batch.step()
        batch.step()
    batch.run()
    assert [job.error for job in jobs] == [None] * len(texts)
    return found, [state_of(context) for context in contexts], learned


def test_texts_in_a_batch_leave_what_they_leave_alone(runtime: Runtime) -> None:
    """All settings at once, with drafts and without, that join, leave and are cancelled."""
    names = list(SETTINGS)
    texts = [text_of(runtime, SETTINGS[name], i) for i, name in enumerate(names)] * 2
    drafts = [("off", "0", "3")[i % 3] for i in range(len(texts))]
    drafts = ["off" if i in (4, 16) else kind for i, kind in enumerate(drafts)]
    python, native, counted = both(runtime, lambda: batched(runtime, texts, drafts, 4))
    assert native == python
    assert counted["beside"] > 5, "prompts are read in the same forwards"
    assert counted["drafted"] > 50
    assert counted["plain"] > 200
    assert len(native[0][4]) == 10, "cancelled after nine"
    for i, states in enumerate(native[0]):
        assert states[-1] == "end"
        at = len(texts[i]) - N - 10
        assert [state[1] for state in states[:-1]] == texts[i][at : at + len(states) - 1]


@pytest.mark.parametrize("drafts", ["off", "0", "2"])
def test_a_text_that_fails_ends_alone_and_the_others_go_on(runtime: Runtime, drafts: str) -> None:
    texts = [text_of(runtime, sampling, i) for i, sampling in enumerate(SETTINGS.values())][:4]
    watch_steps(runtime, False)
    expected = batched(runtime, texts, [drafts] * 4, -1)[0]
    watch_steps(runtime, True)
    parts, failing = runtime.capabilities.steps, set[int]()
    assert parts is not None

    def run(owner: Any, steps: Any, calls: Any) -> Any:
        lengths = {id(step.settings.cache): step.settings.cache.length for step in steps}
        if not failing:
            failing.update([key for key, length in lengths.items() if length > 20][:1])
        if failing & set(lengths):
            raise MemoryError("no page")
        return parts.run(owner, steps, calls)

    runtime.capabilities = with_run(runtime, run)
    batch, found, jobs, contexts = Batch(runtime), [list[Any]() for _ in texts], list[Any](), list[Context]()
    for i, sampling in enumerate(list(SETTINGS.values())[:4]):
        context = new_context(runtime, sampling, i)
        drafter = Off() if drafts == "off" else Taught(texts[i], runtime.spec.vocab_size, rests=int(drafts), top=2)
        config = GenerationConfig(sampling=sampling, max_tokens=N - 3 * (i % 4))
        loop = decode_loop(context, config, drafter, capabilities=runtime.capabilities)
        told = lambda token, i=i, context=context: found[i].append("end" if token is None else state_of(context))  # noqa: E731
        contexts.append(context)
        jobs.append(batch.add(context, loop, told, 128))
    batch.run()
    (failed,) = [i for i, job in enumerate(jobs) if job.error is not None]
    assert "no page" in str(jobs[failed].error)
    for i, states in enumerate(found):
        if i != failed:
            assert states == expected[i]
    made = len(found[failed]) - 1
    assert 0 < made < N - 12
    assert found[failed][:-1] == expected[failed][:made]
    assert state_of(contexts[failed]) == expected[failed][made - 1], "as it was at its last token"
    watch_steps(runtime, True)


# ── sessions ──


@pytest.mark.parametrize("drafts", ["off", "0"])
def test_a_forward_that_the_engine_refuses_is_made_text_by_text(runtime: Runtime, drafts: str) -> None:
    """With the numbers that were drawn for it."""
    texts = [text_of(runtime, sampling, i) for i, sampling in enumerate(SETTINGS.values())]
    watch_steps(runtime, False)
    expected = batched(runtime, texts, [drafts] * len(texts), -1)
    counted = watch_steps(runtime, True)
    parts, refused = runtime.capabilities.steps, list[int]()
    assert parts is not None

    def run(owner: Any, steps: Any, calls: Any) -> Any:
        if len(steps) > 3 and len(refused) < 5:
            refused.append(len(steps))
            calls = [*calls, Call(Rows.chain([runtime.spec.vocab_size], 0), runtime.new_cache(4))]
        return parts.run(owner, steps, calls)

    runtime.capabilities = with_run(runtime, run)
    assert batched(runtime, texts, [drafts] * len(texts), -1) == expected
    assert len(refused) == 5
    assert counted["forwards"] > 5 * 4
    watch_steps(runtime, True)


@pytest.fixture(scope="module")
def model(nano: Path) -> Iterator[edgedec.Model]:
    model = edgedec.open(nano, engine="native", threads=2)
    yield model
    watch_steps(model.runtime, True)


@pytest.mark.parametrize("spec", ["off", "copy:fixed=4", "recycling:fixed=9+copy+trigram", "suffix:fixed=6+stand"])
@pytest.mark.parametrize("name", ["greedy", "top-p", "min-p"])
def test_sessions_of_nano(model: edgedec.Model, spec: str, name: str) -> None:
    ids = model.tokenizer.encode("Say it again: the red fox ran. The red fox ran. The red fox")

    def run() -> Any:
        session, states = model.session(speculate=spec), list[Any]()
        session._context.rng = np.random.default_rng(0)
        for _ in session.tokens(ids, sampling=SETTINGS[name], max_tokens=60):
            states.append(state_of(session._context))
        return states, counts(session.stats), session._drafter.state().keys()

    python, native, counted = both(model.runtime, run)
    assert native == python
    assert counted["plain" if spec == "off" else "drafted"] >= 3
    assert native[1][3] > 0 or spec == "off"


def test_a_session_saved_in_the_middle_of_a_draft(model: edgedec.Model, tmp_path: Path) -> None:
    ids = model.tokenizer.encode("The red fox ran to the barn. The red fox ran to the barn. The red fox")
    sampling = Sampling(temperature=0.6, seed=2)
    watch_steps(model.runtime, False)
    expected = list(model.session(speculate="off").tokens(ids, sampling=sampling, max_tokens=40))
    counted = watch_steps(model.runtime, True)
    for at in range(1, 16):
        session = model.session(speculate="copy:fixed=6")
        tokens = session.tokens(ids, sampling=sampling, max_tokens=40)
        begun = [next(tokens) for _ in range(at)]
        session.save(tmp_path / "s.session")
        other = model.session(speculate="off")
        other.load(tmp_path / "s.session")
        continued = Sampling(temperature=0.6)
        assert begun + list(other.tokens(sampling=continued, max_tokens=40 - at)) == expected
        assert begun + list(tokens) == expected
    assert counted["drafted"] > 20
