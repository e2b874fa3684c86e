"""Steps that the CPU engine makes by itself: at every token the text, the cache and the random state are those of the
Python step, for one text and for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bundles import KINDS, random_weights, write_bundle
from loops import decode
from taught import SETTINGS, N, Taught, both, counts, generated, new_context, state_of, text_of, watch_steps, with_run

from edgedec import Sampling
from edgedec.bundle.adapter import LoraAdapter, LowRank, adaptable
from edgedec.decoding.config import GenerationConfig
from edgedec.drafters.off import Off
from edgedec.kernels.cpu import loader
from edgedec.runtime import Runtime, open_runtime

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


@pytest.fixture(scope="module", params=["heads by layer", "state spaces"])
def runtime(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    spec = KINDS[request.param]
    bundle = write_bundle(tmp_path_factory.mktemp("toys") / "toy", spec, random_weights(spec))
    return open_runtime("native", bundle)


@pytest.mark.parametrize("name", SETTINGS)
def test_plain_steps_leave_what_the_python_step_leaves(runtime: Runtime, name: str) -> None:
    sampling = SETTINGS[name]

    def run() -> Any:
        context = new_context(runtime, sampling)
        states, stats = generated(runtime, context, sampling, Off())
        return states, counts(stats), state_of(context)

    python, native, counted = both(runtime, run)
    assert native == python
    assert (counted["plain"], counted["drafted"]) == (N - 1, 0), "all but the call that reads the prompt"


def test_the_time_of_forwards_is_part_of_the_time_of_steps(runtime: Runtime) -> None:
    watch_steps(runtime, True)
    _, stats = generated(runtime, new_context(runtime, Sampling()), Sampling(), Off())
    assert 0 < stats.forward_s < stats.decode_s


@pytest.mark.parametrize("rests", [0, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_steps_with_drafts_leave_what_the_python_step_leaves(runtime: Runtime, name: str, rests: int) -> None:
    sampling, text = SETTINGS[name], text_of(runtime, SETTINGS[name])

    def run() -> Any:
        context = new_context(runtime, sampling)
        drafter = Taught(text, runtime.spec.vocab_size, rests=rests, top=3 * (name in ("greedy", "top-p")))
        states, stats = generated(runtime, context, sampling, drafter)
        return states, counts(stats), state_of(context), drafter.learned

    python, native, counted = both(runtime, run)
    assert [state[1] for state in native[0]] == text[-N - 10 : -10]
    assert native == python
    assert counted["drafted"] > 3
    assert (counted["plain"] > 3) == (rests > 0)
    calls, _, proposed, accepted, _ = native[1]
    assert proposed > accepted > 3
    assert calls < N


@pytest.mark.parametrize("drafts", [False, True])
def test_an_adapter_is_part_of_each_step(runtime: Runtime, drafts: bool) -> None:
    rng, spec, sampling = np.random.default_rng(1), runtime.spec, SETTINGS["temperature"]
    shapes = {name: shape for name, shape in spec.tensors().items() if name in adaptable(spec)}
    low = {
        name: LowRank(*(rng.normal(0, 0.3, size).astype(np.float32) for size in ((2, k), (n, 2))))
        for name, (n, k) in shapes.items()
    }
    adapter, text = LoraAdapter("one", "1", low), text_of(runtime, sampling)

    def run() -> Any:
        context = new_context(runtime, sampling, adapter=adapter)
        drafter = Taught(text, spec.vocab_size) if drafts else Off()
        return generated(runtime, context, sampling, drafter)[0]

    python, native, counted = both(runtime, run)
    assert native == python
    assert [state[1] for state in native] != text[-N - 10 : -10], "it changes the text"
    assert counted["drafted" if drafts else "plain"] > 9


@pytest.mark.parametrize("name", ["greedy", "temperature", "undecided"])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_stop_token_ends_the_text_wherever_it_stands(runtime: Runtime, name: str, drafts: bool) -> None:
    """At every place of the text once, in a draft too, where the draft goes on after it."""
    sampling, text = SETTINGS[name], text_of(runtime, SETTINGS[name])
    found = set[int]()
    for end in dict.fromkeys(text[-N - 10 : -10]):

        def run(end: int = end) -> Any:
            context = new_context(runtime, sampling)
            drafter = Taught(text, runtime.spec.vocab_size, rests=2) if drafts else Off()
            states, stats = generated(runtime, context, sampling, drafter, stop_tokens=frozenset({end, 1000}))
            learned = drafter.learned if isinstance(drafter, Taught) else None
            return states, counts(stats), state_of(context), learned

        python, native, counted = both(runtime, run)
        assert native == python
        assert native[1][-1] == "eos"
        found |= {len(native[0])} if counted["plain"] + counted["drafted"] else set()
    assert len(found) > 4


@pytest.mark.parametrize("name", ["greedy", "top-p", "penalties"])
def test_a_text_closed_copied_or_continued_at_any_token(runtime: Runtime, name: str) -> None:
    sampling, text = SETTINGS[name], text_of(runtime, SETTINGS[name])
    config = GenerationConfig(sampling=sampling, max_tokens=12)
    for at in range(1, 12):

        def run(at: int = at) -> Any:
            context, drafter = new_context(runtime, sampling), Taught(text, runtime.spec.vocab_size, rests=2)
            tokens = decode(runtime, context, config, drafter)
            for _ in range(at):
                next(tokens)
            twin = context.fork()
            tokens.close()
            closed = state_of(context), state_of(twin)
            more = [generated(runtime, each, sampling, Off(), max_tokens=5)[0] for each in (twin, context)]
            return closed, more

        python, native, counted = both(runtime, run)
        assert native == python
        assert native[1][0] == native[1][1]
        assert counted["plain"] > 0
        assert counted["drafted"] > 0 or at < 6


@pytest.mark.parametrize("name", ["greedy", "temperature"])
@pytest.mark.parametrize("sinks", [None, 2])
def test_a_full_context_ends_or_slides(runtime: Runtime, name: str, sinks: int | None) -> None:
    """With a limit and without one, and with drafts up to the last row that the cache holds."""
    sampling, text = SETTINGS[name], text_of(runtime, SETTINGS[name])
    for drafts in (False, True):

        def run(drafts: bool = drafts) -> Any:
            context = new_context(runtime, sampling, capacity=24, sinks=sinks)
            drafter = Taught(text, runtime.spec.vocab_size, rests=2) if drafts else Off()
            limit = None if sinks is None else 45
            states, stats = generated(runtime, context, sampling, drafter, max_tokens=limit)
            return states, counts(stats), state_of(context)

        python, native, counted = both(runtime, run)
        assert native == python
        assert native[1][-1] == ("context" if sinks is None else "length")
        assert counted["drafted"] > 0 if drafts else counted["plain"] > 15


@pytest.mark.parametrize("fails", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("late", ["", "ran", "committed"])
@pytest.mark.parametrize("drafts", [False, True])
def test_a_step_that_fails_or_is_interrupted_takes_no_number(
    runtime: Runtime, fails: type[BaseException], late: str, drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the forward or after it: the text continues as if the step had not been begun."""
    sampling = SETTINGS["temperature"]
    text = text_of(runtime, sampling)
    for at in range(2, 9):
        counted = watch_steps(runtime, True)
        parts, left = runtime.capabilities.steps, [at]
        assert parts is not None

        def failing(owner: Any, steps: Any, calls: Any, parts: Any = parts, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0]:
                return parts.run(owner, steps, calls)
            if late == "ran":
                with monkeypatch.context() as patch:
                    patch.setattr(owner._engine, "run_steps", interrupted(owner._engine.run_steps))
                    parts.run(owner, steps, calls)
            if late:
                parts.run(owner, steps, calls)
            raise fails

        def interrupted(run: Any) -> Any:
            """Right after the library's function, before anything of its result is taken."""

            def once(asked: Any) -> None:
                assert run(asked) == 0
                raise fails

            return once

        drafter = Taught(text, runtime.spec.vocab_size, rests=1) if drafts else Off()
        context, config = new_context(runtime, sampling), GenerationConfig(sampling=sampling, max_tokens=N)
        runtime.capabilities = with_run(runtime, failing)
        with pytest.raises(fails):
            for _ in decode(runtime, context, config, drafter):
                pass
        watch_steps(runtime, True)
        assert context.cache.length == context.cache.handle.length  # type: ignore[attr-defined]
        assert context.cache.length in (len(context.ids) - 1, len(context.ids) - (not late))
        assert context.ids == text[: len(context.ids)]
        assert context.rng.bit_generator.state == _rng_after(sampling, len(context.ids) - context.n_prompt)
        generated(runtime, context, sampling, Off(), max_tokens=10)
        assert context.ids == text[: len(context.ids)]
        assert counted["forwards"] == at - (not late)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_step_that_had_no_memory_fails(runtime: Runtime, drafts: bool) -> None:
    """The engine reports it in place of the first token."""
    text = text_of(runtime, Sampling())
    counted = watch_steps(runtime, True)
    parts = runtime.capabilities.steps
    assert parts is not None

    def short(owner: Any, steps: Any, calls: Any) -> Any:
        found = parts.run(owner, steps, calls)
        return found._replace(tokens=[-2]) if counted["forwards"] == 4 else found

    runtime.capabilities = with_run(runtime, short)
    context = new_context(runtime, Sampling())
    drafter = Taught(text, runtime.spec.vocab_size, rests=1) if drafts else Off()
    with pytest.raises(MemoryError, match="no memory for a decoding step"):
        list(decode(runtime, context, GenerationConfig(max_tokens=N), drafter))
    assert counted["forwards"] == 4
    assert context.ids == text[: len(context.ids)]
    watch_steps(runtime, True)


def _rng_after(sampling: Sampling, n: int) -> Any:
    rng = np.random.default_rng(sampling.seed)
    for _ in range(n):
        rng.random()
    return rng.bit_generator.state
