"""The rows of a call: pending tokens, drafts and prompt rows below them; and how a prompt is read in chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import KINDS, random_weights, write_bundle
from drafting import finish, saved

from edgedec.decoding.call_rows import apart, first_taught, showing, taught, with_draft, with_prompts, without
from edgedec.decoding.context import Context
from edgedec.decoding.draft import BaseDrafter, Draft, PromptRows
from edgedec.decoding.reading import read_pending
from edgedec.runtime import Call, CallResult, Outputs, Rows, RuntimeOptions, forward_one, logits_of, open_runtime
from edgedec.testing.fakes import FakeRuntime, tiny_spec


def told(rows: Rows) -> tuple[list[int], list[int], list[int]]:
    return rows.tokens.tolist(), rows.positions.tolist(), rows.parents.tolist()


@pytest.mark.parametrize("pending", [[7], [5, 6, 7]])
def test_a_draft_hangs_below_the_last_pending_token(pending: list[int]) -> None:
    root = len(pending) - 1
    rows = with_draft(Rows.chain(pending, 4), Draft((8, 9, 2), (-1, 0, -1)))
    positions = [*range(4, 5 + root), 5 + root, 6 + root, 5 + root]
    assert told(rows) == ([*pending, 8, 9, 2], positions, [*range(-1, root), root, root + 1, root])
    assert rows.numbers is None


@pytest.mark.parametrize("pending", [[7], [6, 7]])
def test_rows_that_drafting_ran_keep_their_numbers(pending: list[int]) -> None:
    root, hidden = len(pending) - 1, np.zeros((4, 16), np.float32)

    def numbers(*chosen: int, states: Any = hidden) -> list[int] | None:
        draft = Draft((8, 9), (-1, 0), blocks=range(4, 6), hidden=states, numbers=chosen)
        found = with_draft(Rows.chain(pending, 4), draft).numbers
        return None if found is None else found.tolist()

    assert numbers(0, 2) == [*range(root + 1), root + 1, root + 3]
    assert numbers(1, 2) == [*range(root + 1), root + 2, root + 3]
    assert numbers(0, 1) is None
    assert numbers() is None
    assert numbers(0, 2, states=None) is None


def test_prompt_rows_are_below_what_they_name() -> None:
    rows = with_draft(Rows.chain([6, 7], 4), Draft((8, 9), (-1, 0)))
    embeddings = np.ones((7, 16), np.float32)
    found = with_prompts(rows, 1, PromptRows((-1, 1, 2, 3), embeddings))
    # Below the last known token, the second drafted one, and the first two prompt rows.
    positions = [4, 5, 6, 7, 6, 8, 7, 9]
    assert told(found) == ([6, 7, 8, 9, 0, 0, 0, 0], positions, [-1, 0, 1, 2, 1, 3, 4, 5])
    assert found.embeddings is embeddings
    assert found.groups is None
    # Tokens that see each other, below the last drafted one; the rows before them are of no group.
    block = with_prompts(rows, 1, PromptRows((1, 1, 1), tokens=(3, 4, 5), groups=(0, 0, 1)))
    assert told(block) == ([6, 7, 8, 9, 3, 4, 5], [4, 5, 6, 7, 8, 8, 8], [-1, 0, 1, 2, 3, 3, 3])
    assert block.groups is not None
    assert block.groups.tolist() == [-1, -1, -1, -1, 0, 0, 1]


def result(n: int, lines: int) -> CallResult:
    """Of n rows, the head for the last `lines` of them."""
    at = np.arange(n - lines, n)
    ids, scores = at[:, None].astype(np.int32), at[:, None].astype(np.float32)
    sums = at.astype(np.float64)
    return CallResult(at[:, None] * np.ones(3, np.float32), ids, scores, sums, sums, {2: np.arange(n)})


def lines_of(found: CallResult) -> list[Any]:
    assert found.logits is not None
    assert found.ids is not None
    assert found.scores is not None
    assert found.logsum is not None
    assert found.entropy is not None
    arrays = (found.logits[:, 0], found.ids[:, 0], found.scores[:, 0], found.logsum, found.entropy)
    (first, *others) = [array.tolist() for array in arrays]
    assert others == [first] * 4
    return [int(line) for line in first]


def test_the_results_of_prompt_rows_are_apart() -> None:
    own, below = apart(result(7, 5), 4, 2)  # 4 rows, of which the head ran for 2, and 3 prompt rows
    assert (lines_of(own), own.hidden[2].tolist()) == ([2, 3], [0, 1, 2, 3])
    assert (lines_of(below), below.hidden[2].tolist()) == ([4, 5, 6], [4, 5, 6])
    states = CallResult(hidden={2: np.arange(7)})
    assert apart(states, 4, 0)[1].logits is None


def test_what_is_learned_of_a_prompt() -> None:
    assert [first_taught(before, 3) for before in (0, 2, 3, 9)] == [0, 0, 0, 6]
    assert showing(Outputs(), 2, 5) == Outputs(top=2, logits_from=5)
    assert showing(Outputs(hidden=(1,), logits_from=3), 2, 5) == Outputs(top=2, hidden=(1,), logits_from=5)
    assert showing(Outputs(top=4), 2, 5) == Outputs(top=4), "what was asked for is of all rows"
    step = taught(Rows.chain(range(7), 10), 2, 5, result(7, 5))
    assert (len(step.rows), step.root, step.tokens()) == (5, 2, [2, 3, 4])
    assert step.result.ids is not None
    assert step.result.scores is not None
    assert step.result.ids[:, 0].tolist() == step.result.scores[:, 0].tolist() == [2, 3, 4]
    assert (step.path, step.picked, step.result.logits, step.seconds) == ((), (), None, 0.0)
    rest = without(result(7, 5), 3)
    assert (lines_of(rest), rest.hidden[2].tolist()) == ([5, 6], list(range(7)))
    assert without(CallResult(), 3) == CallResult()


# ── reading ──


class Reader(BaseDrafter):
    """Wants the best tokens of a prompt's last rows, and states of all of them; makes a call of its own for each
    chunk."""

    def __init__(self, prompt_rows: int = 0, top: int = 0, reads: Outputs = Outputs()) -> None:  # noqa: B008
        self.prompt_rows, self.outputs, self.reads = prompt_rows, Outputs(top=top), reads
        self.chunks: list[tuple[list[int], list[int]]] = []
        self.runtime = FakeRuntime(tiny_spec())

    def read(self, context: Context, rows: Rows, result: CallResult) -> Any:
        assert result.logits is None
        self.chunks.append((rows.tokens.tolist(), result.hidden[0][:, 0].astype(int).tolist()))
        if len(self.chunks) == 1:
            return None  # nothing to run
        return self._running()

    def _running(self) -> Any:
        yield Call(Rows.chain([1], 0), self.runtime.new_cache(4))


PROMPT = [i * i % 13 for i in range(23)]


def read(drafter: Reader, cached: int = 0, chunk: int = 6) -> tuple[Rows, Any, FakeRuntime, Context]:
    runtime = FakeRuntime(tiny_spec(), prefill_chunk=chunk)
    context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(64))
    if cached:
        forward_one(runtime, Call(Rows.chain(PROMPT[:cached], 0), context.cache))
        context.cache.commit(range(cached))
        runtime.calls = runtime.rows = 0
    rows, shown = finish(runtime, read_pending(context, runtime.capabilities, drafter))
    return rows, shown, runtime, context


@pytest.mark.parametrize(("cached", "last", "calls"), [(0, 18, 3), (5, 17, 2), (17, 17, 0), (22, 22, 0), (23, 22, 0)])
def test_all_chunks_but_the_last_are_read(cached: int, last: int, calls: int) -> None:
    rows, shown, runtime, context = read(Reader(), cached)
    assert told(rows) == (PROMPT[last:], list(range(last, 23)), list(range(-1, 22 - last)))
    assert (runtime.calls, context.cache.length, shown) == (calls, last, [])
    whole = runtime.new_cache(64)
    forward_one(runtime, Call(Rows.chain(PROMPT, 0), whole))
    whole.commit(range(last))
    assert saved(context.cache) == saved(whole)


def test_a_drafter_learns_from_the_last_rows_of_a_prompt() -> None:
    """Of 22 rows before the last one the last 9: five of the third chunk; four are in the chunk that is left."""
    _, shown, _, _ = read(Reader(9, 2))
    assert [(step.root, step.tokens()) for step in shown] == [(1, PROMPT[13:18])]
    assert [step.rows.positions.tolist() for step in shown] == [list(range(12, 18))]
    runtime = FakeRuntime(tiny_spec())
    whole = forward_one(runtime, Call(Rows.chain(PROMPT, 0), runtime.new_cache(64), outputs=Outputs(top=2)))
    assert whole.ids is not None
    assert shown[0].result.ids.tolist() == whole.ids[13:18].tolist()
    assert [step.tokens() for step in read(Reader(12, 2))[1]] == [PROMPT[10:12], PROMPT[12:18]]
    assert [step.tokens() for step in read(Reader(10, 2))[1]] == [PROMPT[12:18]]
    assert read(Reader(4, 2))[1] == [], "all of them are in the chunk that is left"
    assert read(Reader(9, 0))[1] == [], "no tokens are wanted"


def test_a_drafter_reads_every_chunk() -> None:
    drafter = Reader(3, 2, Outputs(hidden=(0,)))
    read(drafter)
    assert drafter.chunks == [(PROMPT[at : at + 6],) * 2 for at in (0, 6, 12)]
    silent = Reader(3, 2)
    read(silent)
    assert silent.chunks == []


class States(Reader):
    """Reads states of a prompt's rows, and makes no calls."""

    def read(self, context: Context, rows: Rows, result: CallResult) -> None:
        self.chunks.append((rows.tokens.tolist(), list(result.hidden)))


@pytest.mark.parametrize(("reads", "blocks"), [(Outputs(), range(8)), (Outputs(hidden=(9,)), None)])
def test_chunks_stop_before_layers_that_keep_nothing(reads: Outputs, blocks: range | None, tmp_path: Path) -> None:
    """Of a decoder whose last layers read what earlier ones keep: unless a drafter reads them, and never the last
    chunk. What follows is the same."""
    spec = KINDS["memory units"]
    runtime = open_runtime(
        "reference", write_bundle(tmp_path / "b", spec, random_weights(spec)), RuntimeOptions(kv="f32")
    )
    assert (spec.keeping_layers, spec.n_layers, tiny_spec().keeping_layers) == (4, 7, tiny_spec().n_layers)
    context, drafter = Context(list(PROMPT), len(PROMPT), runtime.new_cache(64)), States(reads=reads)
    seen, forward = list[Any](), runtime.forward
    runtime.forward = lambda calls: seen.extend(call.blocks for call in calls) or forward(calls)  # type: ignore
    rows, _ = finish(runtime, read_pending(context, replace(runtime.capabilities, prefill_chunk=6), drafter))
    assert (seen, len(rows), len(drafter.chunks)) == ([blocks] * 3, 5, 0 if blocks else 3)
    found = logits_of(runtime, rows, context.cache)
    np.testing.assert_allclose(found, logits_of(runtime, Rows.chain(PROMPT, 0), runtime.new_cache(64))[18:], atol=1e-3)
