"""What one text of a batch has no room for ends that text, by name; the others are what they are alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from python_steps import python_steps

import edgedec
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.scheduler.job import Job
from edgedec.errors import BundleCorrupt, ContextFull
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, CallResult

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
PROMPTS = ["Once upon a time", "Tom and Lily", "One day, a little fox"]
Refuses = Callable[[Sequence[Call]], None]


def refusing(model: Any, refuses: Refuses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model's engine refuse what `refuses` raises for."""
    python_steps(model.runtime)
    forward = model.runtime.forward

    def guarded(calls: Sequence[Call]) -> list[CallResult]:
        refuses(calls)
        found: list[CallResult] = forward(calls)
        return found

    monkeypatch.setattr(model.runtime, "forward", guarded)


def run(
    model: Any, batch: Batch, speculate: str = "off", prompts: Sequence[str] = PROMPTS
) -> tuple[list[Any], list[Job]]:
    told, jobs = [list[int]() for _ in prompts], list[Job]()
    for prompt, tokens in zip(prompts, told, strict=True):
        session, ids = model.session(speculate=speculate), model.tokenizer.encode(prompt)
        jobs.append(session.submit(batch, ids, lambda t, held=tokens: None if t is None else held.append(int(t)),
                                   max_tokens=30, ignore_eos=True))  # fmt: skip
    batch.run()
    return told, jobs


def alone(nano: Any) -> list[list[int]]:
    model = edgedec.open(nano, engine="native", threads=1)
    told = []
    for prompt in PROMPTS:
        session = model.session(speculate="off")
        told.append([int(t) for t in session.tokens(model.tokenizer.encode(prompt), max_tokens=30, ignore_eos=True)])
    return told


@pytest.mark.parametrize("speculate", ["off", "copy:fixed=3"])
@pytest.mark.parametrize("error", [ContextFull("9 pages: the device holds 8"), MemoryError("the device's 8 pages")])
def test_the_text_that_grew_too_long_ends_and_no_other(
    nano: Any, monkeypatch: pytest.MonkeyPatch, speculate: str, error: Exception
) -> None:
    model, together = edgedec.open(nano, engine="native", threads=1), list[int]()
    first = tuple(model.tokenizer.encode(PROMPTS[1]))[:3]
    grown: set[int] = set()

    def refuses(calls: Sequence[Call]) -> None:
        for call in calls:
            if call.cache.length == 0 and tuple(call.rows.tokens[:3]) == first:
                grown.add(id(call.cache))
            if id(call.cache) in grown and call.cache.length >= 14:
                together.append(len(calls))
                raise error

    refusing(model, refuses, monkeypatch)
    batch = Batch(model.runtime)
    told, jobs = run(model, batch, speculate)
    expected = alone(nano)
    assert together[:2] == [3, 1]  # all at once, then that text by itself
    assert (told[0], told[2]) == (expected[0], expected[2])
    assert 0 < len(told[1]) < 30
    assert told[1] == expected[1][: len(told[1])]
    assert [job.done for job in jobs] == [True] * 3
    assert [job.error is None for job in jobs] == [True, False, True]
    assert isinstance(jobs[1].error, ContextFull)
    assert "8" in str(jobs[1].error)
    assert "\n" not in str(jobs[1].error)
    assert (jobs[1].error is error) == isinstance(error, ContextFull)
    assert len(batch) == 0


def test_texts_that_rest_are_let_go_before_one_that_runs_ends(nano: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, short = edgedec.open(nano, engine="native", threads=1), list[int]()
    batch = Batch(model.runtime)
    run(model, batch, prompts=[PROMPTS[0] + " there was a dog." * 8])
    assert len(batch.prefixes) > 0

    def refuses(calls: Sequence[Call]) -> None:
        if len(batch.prefixes) > 0:
            short.append(len(calls))
            raise MemoryError

    refusing(model, refuses, monkeypatch)
    told, jobs = run(model, batch)
    assert short
    assert told == alone(nano)
    assert [job.error for job in jobs] == [None] * 3


def test_a_beginning_that_cannot_be_shared_is_read(nano: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, failed = edgedec.open(nano, engine="native", threads=1), list[int]()
    batch, text = Batch(model.runtime), PROMPTS[0] + " there was a dog." * 8
    (first,), _ = run(model, batch, prompts=[text])

    def short(*_: object) -> Any:
        failed.append(1)
        raise MemoryError

    held = next(iter(batch.prefixes.caches()))
    monkeypatch.setattr(type(held), "fork", short)
    (second,), (job,) = run(model, batch, prompts=[text])
    assert failed
    assert (second, job.error) == (first, None)


@pytest.mark.parametrize("error", [OSError("the driver left"), BundleCorrupt("a.onnx: ONNX Runtime cannot run it")])
def test_an_engine_that_breaks_is_no_text_s_fault(nano: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    model, together = edgedec.open(nano, engine="native", threads=1), list[int]()

    def refuses(calls: Sequence[Call]) -> None:
        together.append(len(calls))
        raise error

    refusing(model, refuses, monkeypatch)
    with pytest.raises(type(error), match=str(error)):
        run(model, Batch(model.runtime))
    assert together == [3]  # none is run once more
