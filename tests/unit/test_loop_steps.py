"""The loop and its steps by hand: what a drafter is asked and shown, what each call returns, and when a text ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from drafting import left
from loops import decode

from edgedec.decoding import step as stepping
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import BaseDrafter, Draft, PromptRows, Sampled
from edgedec.decoding.logits import BaseProcessor
from edgedec.decoding.loop import StepTrace, TextGeneration, decode_loop
from edgedec.decoding.messages import Completed, Stats, StepResult, Waiting
from edgedec.decoding.step import VerifiedStep
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Call, CallResult, Outputs, Rows, logits_of
from edgedec.sampling import Probs, Sampling, logprob, top_logprobs
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, SetConstraint, tiny_spec

PROMPT = [3, 1, 4, 1, 5]
WARM = Sampling(temperature=1.0)
SPEC = tiny_spec()


class Logged(FakeRuntime):
    """Keeps the calls."""

    def __init__(self, **more: Any) -> None:
        super().__init__(SPEC, **more)
        self.log: list[Call] = []

    def forward(self, calls: Sequence[Call]) -> list[CallResult]:
        self.log += calls
        return super().forward(calls)


class Asked(BaseDrafter):
    """Drafts what it is told to, call by call, and keeps what it is asked and shown."""

    def __init__(self, *drafts: Draft, **facts: Any) -> None:
        self.drafts, self.events, self.seen = list(drafts), list[Any](), list[StepResult]()
        self.rooms: list[int] = []
        for name, value in facts.items():
            setattr(self, name, value)

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.events.append(len(context.ids))
        self.rooms.append(nodes)
        return self.drafts.pop(0) if self.drafts else Draft()

    def prepare(self) -> None:
        self.events.append("prepare")

    def reset(self) -> None:
        self.events.append("reset")

    def observe(self, step: StepResult) -> None:
        self.seen.append(step)


def context_of(on: FakeRuntime, capacity: int = 64, **more: Any) -> Context:
    return Context(list(PROMPT), 5, on.new_cache(capacity), rng=np.random.default_rng(7), **more)


def run(on: FakeRuntime, drafter: Any = None, context: Context | None = None, eos: Any = (), **config: Any) -> Any:
    """The tokens, the context, the counts and the trace of a generation."""
    context, stats, trace = context or context_of(on), Stats(), list[StepTrace]()
    options = GenerationConfig(**{"max_tokens": 8} | config)
    found = list(decode(on, context, options, drafter or Off(), stats, trace, frozenset(eos)))
    return found, context, stats, trace


# ── the loop ──


def test_counts_and_the_trace_of_accepted_drafts() -> None:
    plain, _, stats, _ = run(Logged())
    assert (stats.prompt, stats.cached, stats.generated, stats.calls, stats.finish) == (5, 0, 8, 8, "length")
    on, text = Logged(), [*PROMPT, *plain]
    drafter = Asked(Draft(), Draft.chain(plain[1:4]), Draft.chain([plain[5], (plain[6] + 1) % 13]))
    found, _, stats, trace = run(on, drafter)
    assert found == plain
    assert (stats.calls, stats.proposed, stats.accepted) == (4, 5, 4)
    assert [step.length for step in trace] == [5, 6, 10, 12]
    assert [len(step.draft.tokens) for step in trace] == [0, 3, 2, 0]
    assert [len(step.step.path) - 1 for step in trace] == [0, 3, 1, 0]
    assert [call.rows.tokens.tolist() for call in on.log] == [
        *(PROMPT, text[5:9], [*text[9:11], (plain[6] + 1) % 13], text[11:12])
    ]
    assert min(step.seconds for step in trace) > 0
    assert stats.decode_s > 0
    assert (drafter.events, len(drafter.seen)) == ([5, "prepare", 6, 10, 12], 4)
    assert drafter.rooms == [7, 6, 2, 0], "the next token needs no draft"


def test_how_much_may_be_drafted() -> None:
    def rooms(capacity: int = 64, **more: Any) -> list[int]:
        drafter, on = Asked(), Logged(**more.pop("can", {}))
        context = context_of(on, capacity)
        context.policy = more.pop("policy", None)
        run(on, drafter, context, max_tokens=more.pop("max_tokens", 3), **more)
        return drafter.rooms

    assert rooms(9, max_tokens=4) == [3, 2, 1, 0]
    assert rooms(7, max_tokens=3) == [2, 1, 0]
    assert rooms(9, max_tokens=5) == [4, 3, 2, 1, 0]
    assert rooms(20, max_tokens=40, stop_tokens=frozenset(range(13))) == [15]
    assert rooms(can={"largest_call": 8, "prefill_chunk": 8}, max_tokens=20)[:2] == [3, 7]

    class Slow(SetConstraint):
        slow = True

    assert rooms(constraint=Slow(lambda last: range(13))) == [0, 0, 0]
    assert rooms(constraint=SetConstraint(lambda last: range(13))) == [2, 1, 0]


def test_a_drafter_that_rests_is_not_asked() -> None:
    drafter, on = Asked(Draft(), Draft(rest=3), Draft(rest=1)), Logged()
    _, _, stats, trace = run(on, drafter, max_tokens=9)
    assert [n for n in drafter.events if n != "prepare"] == [5, 6, 10, 12, 13]
    assert len(drafter.seen) == 5
    assert stats.calls == len(trace) == 9
    bound = Asked(Draft(rest=3), outputs=Outputs(top=2))
    run(Logged(), bound, constraint=SetConstraint(lambda last: range(13)), max_tokens=4)
    assert [n for n in bound.events if n != "prepare"] == [5, 6, 7, 8], "a constraint is asked each time"
    shown, told = Logged(), Asked(Draft(rest=2), outputs=Outputs(top=2))
    run(shown, told, max_tokens=4)
    assert [call.outputs.top for call in shown.log] == [2, 1, 1, 2], "and its outputs are not computed"


def test_a_call_whose_result_nobody_needs_is_part_of_the_rest() -> None:
    """Where the runtime's own steps can make it; elsewhere it is a call like any other, and the drafter rests after
    it."""
    draft = Draft(rest=3, unseen=True)
    drafter = Asked(draft, draft)
    assert len(run(Logged(), drafter, max_tokens=6)[0]) == 6
    assert [n for n in drafter.events if n != "prepare"] == [5, 9]
    text = TextGeneration(context_of(Logged()), GenerationConfig(WARM), drafter)
    for own, seen in ((4, False), (0, True)):
        text.context.left = own
        assert text.rests(draft) is not seen
        assert not text.rests(Draft(rest=3))
    text.context.left, text._resting, text._rest = 4, draft, 2  # own steps were possible, and are not any more
    proposing = text.draft(Rows.chain([1], 0))
    with pytest.raises(StopIteration) as ended:
        next(proposing)
    assert ended.value.value is draft
    assert not text.rests(draft)
    assert text._rest == 1


@pytest.mark.parametrize("ends", ["eos", "stop", "limit", "constraint"])
def test_why_a_text_ends(ends: str) -> None:
    plain = run(Logged())[0]
    at = next(i for i, token in enumerate(plain) if token not in plain[:i] and i)
    end = int(plain[at])
    for drafter in (None, PerfectDrafter([*PROMPT, *plain])):
        if ends == "limit":
            found, context, stats, _ = run(Logged(), drafter, max_tokens=at)
        elif ends == "constraint":
            constraint = SetConstraint(lambda last: range(13))
            accept = constraint.accept

            def until(token: int, accept: Any = accept, constraint: Any = constraint) -> None:
                accept(token)
                constraint.done = len(constraint.accepted) == at

            constraint.accept = until  # type: ignore[method-assign]
            found, context, stats, _ = run(Logged(), drafter, constraint=constraint)
        else:
            eos, stop = ((end,), ()) if ends == "eos" else ((), (end,))
            found, context, stats, _ = run(Logged(), drafter, eos=eos, stop_tokens=frozenset(stop))
        assert found == plain[:at]
        assert stats.finish == ("length" if ends == "limit" else "eos")
        assert (context.ids, stats.generated) == ([*PROMPT, *found], at)
        assert context.cache.length <= len(context.ids)
    assert run(Logged(), eos=(end,), ignore_eos=True)[0] == plain
    assert run(Logged(), max_tokens=0)[0] == []


def test_a_full_context_ends_slides_or_is_refused() -> None:
    found, context, stats, _ = run(Logged(), None, context_of(Logged(), 8), max_tokens=None)
    assert (len(found), stats.finish, len(context.ids)) == (4, "context", 9)
    with pytest.raises(ContextFull, match="9 tokens do not fit a context of 8"):
        run(Logged(), None, context_of(Logged(), 8))
    with pytest.raises(ContextFull):
        run(Logged(), None, context_of(Logged(), 4), max_tokens=None)
    drafter = Asked()
    found, context, stats, _ = run(Logged(), drafter, context_of(Logged(), 8, sinks=2), max_tokens=6)
    assert (len(found), stats.finish, drafter.events.count("reset")) == (6, "length", 1)
    assert len(context.ids) == 6
    with pytest.raises(UsageError, match="nothing to continue"):
        run(Logged(), None, Context([], 0, Logged().new_cache(4)))


def test_a_drafter_s_shift_is_the_last_processor() -> None:
    class Adding(BaseProcessor):
        def __init__(self, token: int) -> None:
            self.token = token

        def process(self, logits: Any, path: Any, early: Any) -> Any:
            changed = np.full_like(logits, -1e9)
            changed[self.token] = 0.0
            return changed

    assert run(Logged(), Asked(shift=Adding(7)), processors=(Adding(2),))[0] == [7] * 8
    assert run(Logged(), Asked(), processors=(Adding(2),))[0] == [2] * 8


def test_what_is_left_after_an_interrupt() -> None:
    on, constraint = Logged(), SetConstraint(lambda last: range(13))
    context = context_of(on)
    text = TextGeneration(context, GenerationConfig(WARM, constraint=constraint), Off())

    def interrupted() -> None:
        with text.attached():
            assert context.hooks.forced == constraint.forced
            assert context.sampling == WARM
            on.forward([Call(Rows.chain([*PROMPT, 1, 2], 0), context.cache)])
            context.cache.commit(range(6))
            context.ids = context.ids[:4]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert context.hooks.forced() == ()
    assert context.cache.length == 4


@pytest.mark.parametrize("prompt_rows", [0, 2, 3])
def test_a_prompt_s_last_rows_are_shown(prompt_rows: int) -> None:
    """In chunks of three: 3 1 4 are read before the call of 1 5."""
    drafter = Asked(outputs=Outputs(top=2), prompt_rows=prompt_rows)
    on = Logged(prefill_chunk=3)
    run(on, drafter, max_tokens=2)
    rows = [(step.root, step.tokens()) for step in drafter.seen[0].prompt]
    before = {0: [], 2: [(2, [4]), (0, [1])], 3: [(1, [1, 4]), (0, [1])]}[prompt_rows]
    assert rows == before
    assert drafter.seen[1].prompt == ()
    assert [len(step.result.ids) for step in drafter.seen] == [1, 1]
    whole = logits_of(FakeRuntime(SPEC), Rows.chain(PROMPT, 0), FakeRuntime(SPEC).new_cache(8))
    best = np.argsort(-whole, axis=1, kind="stable")[:, :2]
    assert [ids for step in drafter.seen[0].prompt for ids in step.result.ids.tolist()] == [
        *best[4 - prompt_rows : 4].tolist()
    ]
    assert drafter.seen[0].result.ids.tolist() == best[4:].tolist()


# ── a step ──


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("decoys", [0, 2])
def test_at_every_token_the_text_is_that_of_plain_decoding(sampling: Sampling, decoys: int) -> None:
    on = FakeRuntime(SPEC)
    plain, states = context_of(on), list[Any]()
    for _ in decode(on, plain, GenerationConfig(sampling, max_tokens=12), Off()):
        states.append((list(plain.ids), *left(plain)[1:]))
    drafted, stats = context_of(on), Stats()
    drafter = PerfectDrafter([*plain.ids, *[0] * 9], decoys)
    config = GenerationConfig(sampling, max_tokens=12)
    # At a token its row is pending, in plain decoding too: the caches are the same.
    for at, _ in enumerate(decode(on, drafted, config, drafter, stats)):
        assert (list(drafted.ids), *left(drafted)[1:]) == states[at]
    assert stats.accepted == (6 if decoys else 11)
    assert left(drafted) == left(plain)


def test_log_probabilities_and_who_proposed() -> None:
    plain = run(Logged())[0]
    draft = Draft((int(plain[1] + 1) % 13, *map(int, plain[1:4])), (-1, -1, 1, 2), by=("a", "b", "c", "d"))
    found = run(Logged(), Asked(Draft(), draft), logprobs=2)[0]
    assert [token.by for token in found] == ["", "b", "c", "d", "", "", "", ""]
    logits = logits_of(FakeRuntime(SPEC), Rows.chain([*PROMPT, *plain], 0), FakeRuntime(SPEC).new_cache(32))
    for i, token in enumerate(found):
        assert token.logprob == pytest.approx(logprob(logits[4 + i], int(token)))
        assert token.top == tuple(top_logprobs(logits[4 + i], 2))
    assert found[0].token == int(plain[0])


class Early(BaseProcessor):
    """Adds the logits after two blocks."""

    early = (1, 3)

    def process(self, logits: Any, path: Any, early: Mapping[int, Any]) -> Any:
        assert sorted(early) == [1, 3]
        return logits + early[1] - early[3]


def test_early_logits_are_of_the_row_s_own_state() -> None:
    on = FakeRuntime(SPEC)
    plain, _, _, _ = run(on, processors=(Early(),))
    ids = list(PROMPT)
    for token in plain:
        cache = on.new_cache(32)
        (done,) = on.forward([Call(Rows.chain(ids, 0), cache, outputs=Outputs(True, hidden=(1, 3)))])
        assert done.logits is not None
        early = {block: on.head(states[-1:])[0] for block, states in done.hidden.items()}
        assert int(Early().process(done.logits[-1], [], early).argmax()) == token
        ids.append(token)
    found, _, stats, _ = run(on, PerfectDrafter(ids, 1), processors=(Early(),))
    assert found == plain
    assert stats.accepted > 3
    assert found != run(on)[0]


def test_what_a_call_returns_and_runs() -> None:
    on = FakeRuntime(SPEC)
    context = context_of(on)
    step = VerifiedStep(context, GenerationConfig(), frozenset(), Stats(), on.capabilities)
    first = Rows.chain(PROMPT, 0)
    planned = step.call(first, Draft(), Outputs(), 0)
    assert (planned.root, planned.begin, planned.rows) == (4, 4, first)
    assert planned.call.outputs == Outputs(top=1, logits_from=4)
    assert step.call(first, Draft(), Outputs(top=3), 2).call.outputs == Outputs(top=3, logits_from=2)
    assert step.call(first, Draft(), Outputs(top=3), 9).begin == 0
    assert step.call(first, Draft(), Outputs(hidden=(2,)), 0).call.outputs == Outputs(False, 1, False, (2,), False, 4)
    assert step.call(first, Draft(), Outputs(True, 3), 2).begin == 4
    one = step.call(Rows.chain([5], 4), Draft((1, 2), (-1, 0)), Outputs(top=3), 2)
    assert (one.root, one.begin, one.call.outputs, len(one.rows)) == (0, 0, Outputs(top=3), 3)
    hidden = np.zeros((3, 16), np.float32)
    resumed = Draft((1, 2), (-1, 0), blocks=range(2, 6), hidden=hidden)
    call = step.call(Rows.chain([5], 4), resumed, Outputs(hidden=(1, 3)), 0).call
    assert (call.blocks, call.hidden is hidden, call.outputs.hidden) == (range(2, 6), True, (3,))
    early = VerifiedStep(context, GenerationConfig(processors=(Early(),)), frozenset(), Stats(), on.capabilities)
    call = early.call(Rows.chain([5], 4), resumed, Outputs(), 0).call
    assert (call.blocks, call.hidden, call.outputs.hidden) == (None, None, (1, 3))
    prompts = PromptRows((-1,), np.zeros((4, 16), np.float32))
    below = step.call(Rows.chain([5], 4), Draft((1, 2), (-1, 0), prompts=prompts), Outputs(), 0)
    assert (len(below.rows), len(below.call.rows)) == (3, 4)


def test_results_of_prompt_rows_are_shown_apart() -> None:
    embeddings = np.zeros((4, SPEC.hidden_size), np.float32)
    embeddings[:, 0] = [5, 1, 2, 9]
    drafter = Asked(Draft(), Draft((1, 2), (-1, 0), prompts=PromptRows((1,), embeddings)), outputs=Outputs(top=2))
    run(Logged(), drafter, max_tokens=3)
    first, second = drafter.seen[:2]
    assert first.prompted is None
    assert second.prompted is not None
    assert second.prompted.ids is not None
    assert second.result.ids is not None
    assert (len(second.result.ids), len(second.prompted.ids), len(second.rows)) == (3, 1, 3)


def test_nothing_is_asked_below_an_end_token() -> None:
    plain = [int(token) for token in run(Logged())[0]]
    at = next(i for i, token in enumerate(plain) if token not in plain[:i] and 0 < i < 6)
    for sampling in (Sampling(repetition_penalty=1.0001), Sampling(), Sampling(temperature=0.001, top_k=2)):
        constraint = SetConstraint(lambda last: range(13))
        drafter = Asked(Draft(), Draft.chain([*plain[1:7]]))
        found, _, stats, _ = run(
            Logged(), drafter, sampling=sampling, constraint=constraint, stop_tokens=frozenset({plain[at]})
        )
        assert found == plain[:at]
        assert max(map(len, constraint.asked)) == at - 1, "the end token follows these"
        assert stats.calls == 2


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_a_step_waits_for_the_masks_of_a_draft(sampling: Sampling) -> None:
    class Late(SetConstraint):
        """A mask is known at the second look."""

        looked: set[tuple[int, ...]] = set()  # noqa: RUF012

        def begun(self, path: Sequence[int]) -> bool:
            known = (len(self.accepted), *path) in self.looked
            self.looked.add((len(self.accepted), *path))
            return known

    on, config = FakeRuntime(SPEC), GenerationConfig(sampling, constraint=Late(lambda last: range(1, 13)), max_tokens=8)
    plain = run(on, sampling=sampling, constraint=SetConstraint(lambda last: range(1, 13)))
    context, stats = context_of(on), Stats()
    context.hooks = context.hooks._replace(parks=True)
    loop = decode_loop(context, config, PerfectDrafter([*PROMPT, *map(int, plain[0])]), stats)
    answer: Any = None
    found, waits = list[int](), 0
    while True:
        try:
            item = loop.send(answer)
        except StopIteration:
            break
        answer = None
        if isinstance(item, Waiting):
            waits += 1
        elif isinstance(item, Call):
            (result,) = on.forward([item])
            answer = Completed(result, len(item.rows), 0.1)
        else:
            found.append(item)  # type: ignore[arg-type]
    assert waits > 3
    assert found == plain[0]
    assert stats.accepted > 3
    assert left(context) == left(plain[1])


class Saying:
    """A runtime's sampler that always says 7."""

    def __init__(self, sampling: Any, vocab: int) -> None:
        pass

    def read(self, ids: Any, n_prompt: int) -> None:
        pass

    def draw(self, logits: Any, path: Any, u: float) -> int:
        return 7


def test_a_call_without_a_draft_draws_its_token() -> None:
    on = FakeRuntime(SPEC, sampler=Saying, draws=True)
    context = context_of(on)
    step = VerifiedStep(context, GenerationConfig(WARM), frozenset(), Stats(), on.capabilities)
    planned = step.call(Rows.chain(PROMPT, 0), Draft(), Outputs(hidden=(2,)), 0)
    assert planned.drawing is not None
    assert planned.call.outputs == Outputs(hidden=(2,), logits_from=4, draw=planned.drawing)
    prompts = PromptRows((-1,), np.zeros((2, 16), np.float32))
    for draft in (Draft.chain([1]), Draft(prompts=prompts)):
        drafted = step.call(Rows.chain([5], 4), draft, Outputs(), 0)
        assert (drafted.drawing, drafted.call.outputs.logits) == (None, True)
    before = str(context.rng.bit_generator.state)
    running = step.forward(planned)
    assert next(running) is planned.call
    planned.drawing.number()
    assert str(context.rng.bit_generator.state) != before
    with pytest.raises(ContextFull):
        running.throw(ContextFull("no room"))
    assert str(context.rng.bit_generator.state) == before, "the number is put back"
    seen = planned.shown(Completed(CallResult(drawn=9), 5, 0.5, 3, False))
    assert list(step.choose(planned, Draft(), seen)) == []
    assert (seen.path, seen.picked) == ([0], [9])
    assert (seen.root, seen.seconds, seen.total, seen.cells, seen.whole) == (4, 0.5, 5, 3, False)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_a_drawn_draft_has_its_own_verifier(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tokens that were drawn; the others are followed as any draft. A greedy text needs none."""
    asked: list[Any] = []

    def noting(name: str) -> Any:
        def verify(rows: Rows, target: Any, drafted: Any, rng: Any, root: int) -> Any:
            asked.append((name, rows.tokens.tolist(), root, len(drafted), target(root, []).of(4) > 0))
            return [root, root + 1], [4, 6]

        return verify

    monkeypatch.setattr(stepping, "verifier", noting)
    laws = [Probs(np.array([4]), np.ones(1))] * 2
    draft = Draft((4, 2, 6), (-1, 0, 0), sampled=Sampled("by hand", laws))
    drafter = Asked(draft, Draft.chain([1, 2]))
    found, context, _, _ = run(Logged(), drafter, sampling=sampling, max_tokens=8)
    if sampling.temperature:
        assert asked == [("by hand", [*PROMPT, 4, 2], 4, 2, True)]
        assert found[:2] == [4, 6]
        assert drafter.seen[0].path == [0, 1, 3], "the 6 was not drawn, and comes true"
        assert drafter.seen[0].picked[:2] == [4, 6]
    else:
        assert (asked, found) == ([], run(Logged())[0])
    assert context.ids == [*PROMPT, *found]
