"""Rows of a prompt teach the tables that ask for it: the text stays the same, and needs fewer calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import left, run

import edgedec
from edgedec.bench.prompts import choose_prompts, read_prompts
from edgedec.decoding.loop import StepTrace
from edgedec.drafters import FAMILY, Draft, Drafter, DrafterContext, make_drafter
from edgedec.drafters._prompting import PromptPlan
from edgedec.drafters.forced import Forced
from edgedec.drafters.off import Off
from edgedec.drafters.prompt import PromptDrafter
from edgedec.drafters.recycling import Recycling
from edgedec.drafters.stand import Stand
from edgedec.errors import UsageError
from edgedec.runtime import Outputs
from edgedec.sampling import Sampling
from edgedec.speculation.governor import Governor
from edgedec.testing.fakes import FakeRuntime

pytestmark = pytest.mark.usefixtures("ticking")

VOCAB = FakeRuntime().spec.vocab_size
PROMPT = np.random.default_rng(3).integers(0, VOCAB, 40).tolist()


def chunked(rows: int) -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.capabilities = replace(runtime.capabilities, prefill_chunk=rows)
    return runtime


def rows_taught(trace: list[StepTrace]) -> list[int]:
    """Of each part of a prompt that was shown to the drafter, the positions of the rows with best tokens."""
    found: list[int] = []
    for part in trace[0].step.prompt:
        assert part.result.ids is not None
        assert len(part.result.ids) == len(part.rows) - part.root
        found += part.rows.positions[part.root :].tolist()
    return found


@pytest.mark.parametrize("chunk", [32, 64])
@pytest.mark.parametrize("wanted", [0, 1, 5, 20, 39, 400])
def test_the_last_rows_of_a_prompt_are_shown(chunk: int, wanted: int) -> None:
    """Whatever chunks it is read in; what they show is what decoding them one at a time shows."""
    runtime, plain = chunked(chunk), chunked(1)
    text, context, _, trace = run(runtime, Recycling(VOCAB, prompt=wanted), PROMPT)
    assert rows_taught(trace) == list(range(39))[max(39 - wanted, 0) :]
    assert all(not each.step.prompt for each in trace[1:])
    same, other, _, _ = run(plain, Off(), PROMPT)
    assert text == same
    assert left(context) == left(other)


@pytest.mark.parametrize("kind", [Recycling, Stand])
def test_what_the_rows_say_is_learned_before_the_second_call(kind: Any) -> None:
    runtime, drafter = chunked(16), kind(VOCAB, prompt=100)
    run(runtime, drafter, PROMPT, max_tokens=1)
    cold = kind(VOCAB)
    run(runtime, cold, PROMPT, max_tokens=1)
    known = set(PROMPT) if kind is Recycling else {(token,) for token in PROMPT}
    assert len(drafter._shown if kind is Recycling else drafter.table) >= len(known)
    assert len(cold._shown if kind is Recycling else cold.table) <= 3


def test_heads_keep_their_states_and_logits_are_not_taught() -> None:
    """A drafter that reads states beside the rows sees those of all rows; sampling from all logits shows none more."""

    class Reading(Recycling):
        def __init__(self) -> None:
            super().__init__(VOCAB, prompt=30)
            self.outputs = replace_hidden(self.outputs)
            self.reads = Outputs(hidden=(0,))
            self.read_rows: list[int] = []

        def read(self, context: Any, rows: Any, result: Any) -> None:
            assert len(result.hidden[0]) == len(rows)
            self.read_rows += rows.positions.tolist()

    reading = Reading()
    _, _, _, trace = run(chunked(32), reading, PROMPT)
    assert reading.read_rows == list(range(32))
    assert rows_taught(trace) == list(range(9, 39))
    assert len(trace[0].step.result.hidden[0]) == len(trace[0].step.rows)
    hot = Sampling(temperature=0.9, seed=1)
    text, _, _, trace = run(chunked(64), Recycling(VOCAB, prompt=30), PROMPT, sampling=hot)
    assert rows_taught(trace) == [] or trace[0].step.result.logits is None
    assert text == run(chunked(64), Off(), PROMPT, sampling=hot)[0]


def replace_hidden(outputs: Outputs) -> Outputs:
    return outputs._replace(hidden=(0,))


@pytest.mark.parametrize(
    ("row", "room", "rows", "lengths"),
    [
        (0.1, 9, 24, {-1: 2, 0: 2, 1: 2, 2: 2}),
        (0.1, 2, 24, {0: 1, 1: 1}),
        (0.1, 9, 3, {0: 1, 1: 2}),
        (0.15, 9, 24, {0: 2, 1: 2}),
        (0.17, 9, 24, {0: 1, 1: 1}),
        (0.19, 9, 24, {}),
        (0.1, 0, 24, {}),
    ],
)
def test_prompt_tokens_come_where_they_bring_most(row: float, room: int, rows: int, lengths: dict[int, int]) -> None:
    """A text ends at the root, and after each drafted token, with .2 .3 .3 .2; the first prompt token is hoped to be
    right in .9 of cases, the second after it again: .18 .27 .27 .18 and .162 .243 .243 .162 tokens, each of which has
    to be above 1.5 times a row's cost."""
    runtime = FakeRuntime()
    host = DrafterContext(runtime, SimpleNamespace(), lambda: pytest.fail("no text"))  # type: ignore[arg-type]
    drafter = PromptDrafter(host, np.zeros((2, runtime.spec.hidden_size), np.float32), rows)
    draft = Draft([5, 6, 7], [-1, 0, -1], [0.6, 0.5, 0.2])
    assert drafter._lengths(draft, PromptPlan([0.6, 0.3, 0.2], room, row)) == lengths


def test_who_passes_it_on() -> None:
    taught = Recycling(VOCAB, prompt=7)
    assert Forced(taught).prompt_rows == 7
    members: list[tuple[str, Drafter]] = [("recycling", taught), ("stand", Stand(VOCAB, prompt=12))]
    governor = Governor(members, lambda: pytest.fail("no costs are needed"))
    assert governor.prompt_rows == 12
    for name in ("recycling", "stand"):
        with pytest.raises(UsageError, match=f"{name}: prompt=-1: must be 0 or more"):
            FAMILY.typed(name, {"prompt": "-1"})


@pytest.mark.parametrize("name", ["recycling", "stand"])
def test_nano_needs_fewer_calls(name: str, nano: Path) -> None:
    """In the first text of a session, by the engine's table and by Python's, alike."""
    model = edgedec.open(nano, threads=1)
    prompts = [model.tokenizer.encode(p.turns[0]) for p in choose_prompts(read_prompts(), ("edit", "code"), 1)]
    calls: dict[tuple[str, bool], int] = {}
    parts, texts = model.runtime.capabilities.drafting, []
    for rows in ("0", "128"):
        for drafting in {parts, None}:
            model.runtime.capabilities = replace(model.runtime.capabilities, drafting=drafting)
            host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
            found = [
                run(model.runtime, make_drafter(name, host, {"prompt": rows}), ids, max_tokens=32) for ids in prompts
            ]
            assert all(stats.accepted > 0 for _, _, stats, _ in found) or rows == "0"
            texts.append([(text, left(context)[1]) for text, context, _, _ in found])
            calls[rows, drafting is None] = sum(stats.calls for _, _, stats, _ in found)
    model.runtime.capabilities = replace(model.runtime.capabilities, drafting=parts)
    plain = [run(model.runtime, Off(), ids, max_tokens=32) for ids in prompts]
    assert all(each == [(text, left(context)[1]) for text, context, _, _ in plain] for each in texts)
    assert len({n for (rows, _), n in calls.items() if rows == "128"}) == 1
    assert 1.2 * calls["128", True] < calls["0", True]


def test_a_session_learns_a_prompt_by_the_governor(nano: Path) -> None:
    """With the tables of the runtime in one group, whichever of them asks; `trigram` has the text itself."""
    model = edgedec.open(nano, threads=1)
    ids = model.tokenizer.encode(read_prompts()[0].turns[0])
    known = []
    for spec in ("recycling:fixed=4+trigram", "recycling:fixed=4,prompt=50+trigram"):
        session = model.session(context=256, speculate=spec)
        list(session.tokens(ids, max_tokens=1))
        report = session.report()["drafters"]
        known.append((report["recycling"]["tokens"], report["trigram"]["pairs"]))
    assert known[0][0] == 1 < 30 < known[1][0] <= 51
    assert known[0][1] == known[1][1]
