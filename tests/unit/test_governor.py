"""The governor drafts what pays, and nothing where nothing pays."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import draft_of, host
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import decode

from edgedec.decoding.allocation import Offer
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import ConstraintHooks
from edgedec.decoding.context import NEVER, Context, Ends
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import Completed, Request, Stats, StepResult
from edgedec.drafters import BaseDrafter, Draft, Drafter, DrafterContext, DrafterFacts, Proposal
from edgedec.drafters._prompting import PromptPlan
from edgedec.drafters.forced import Forced
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.model import open as open_model
from edgedec.runtime import Call, CallResult, Outputs, Rows
from edgedec.sampling import Sampling
from edgedec.speculation.bank import NAMED, Means
from edgedec.speculation.choose import _has, make_speculation
from edgedec.speculation.costs import Costs
from edgedec.speculation.governor import Governor
from edgedec.speculation.prices import chain_length, useful
from edgedec.speculation.prompting import PromptingGovernor
from edgedec.speculation.proposals import Proposals
from edgedec.speculation.reasons import BANK, TEXTS
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, RandomDrafter, tiny_spec
from edgedec.trees.calibration import BINS, Calibration
from edgedec.trees.merge import TreeMerger, resume

pytestmark = pytest.mark.usefixtures("ticking")

# Calls take milliseconds, as those of a model of 135 million weights; drafters take microseconds.
CALL = 4e-3
FLAT = {1: CALL, 8: 1.3 * CALL, 32: 5 * CALL}
STEEP = {1: CALL, 2: 2 * CALL, 32: 32 * CALL}


def fresh(runtime: FakeRuntime, capacity: int = 700) -> Context:
    return Context([1, 2, 3], 3, runtime.new_cache(capacity), rng=np.random.default_rng(5))


class Still(Costs):
    """The fake runtime's own times mean nothing."""

    def add(self, rows: int, seconds: float, cells: int = 0) -> bool:
        return False


def governed(*drafters: Drafter, costs: dict[int, float] = FLAT, fixed: int = 0) -> Governor:
    return Governor([(f"d{i}", d) for i, d in enumerate(drafters)], lambda: Still(costs), fixed)


def run(drafter: Drafter, n: int = 300, sampling: Sampling | None = None) -> tuple[list[int], Stats]:
    runtime = FakeRuntime(tiny_spec(context_length=2048))
    stats = Stats()
    ask = GenerationConfig(sampling or Sampling(), max_tokens=n)
    return list(map(int, decode(runtime, fresh(runtime), ask, drafter, stats))), stats


def whole(n: int = 300, sampling: Sampling | None = None) -> list[int]:
    return [1, 2, 3, *run(Off(), n, sampling)[0]]


def modelled(stats: Stats, governor: Governor, turns: Sequence[int]) -> float:
    """Time of the calls by the curve, over that of plain decoding."""
    return sum(governor.costs.seconds[rows] for rows in turns) / (stats.generated * governor.costs.seconds[1])


class Counted(BaseDrafter):
    """Notes how many rows each call had."""

    def __init__(self, governor: Governor) -> None:
        self.governor, self.rows = governor, list[int]()

    @property
    def outputs(self) -> Outputs:  # type: ignore[override]
        return self.governor.outputs

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        return self.governor.propose(context, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        self.rows.append(1 if step.root else len(step.rows))
        self.governor.observe(step)

    def reset(self) -> None:
        self.governor.reset()


class Wrong(BaseDrafter):
    """Sure of itself and always wrong."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return Draft.chain([12 if context.ids[-1] != 12 else 11] * nodes, [0.95] * nodes)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_governor_does_the_text_is_the_same(seed: int, sampling: Sampling) -> None:
    text = whole(200, sampling)
    governor = governed(RandomDrafter(seed), PerfectDrafter(text), Wrong(), RandomDrafter(seed + 9))
    assert run(governor, 200, sampling)[0] == text[3:]


def test_a_good_drafter_is_used_to_the_full() -> None:
    counted = Counted(governed(PerfectDrafter(whole())))
    _, stats = run(counted)
    # 7 drafted tokens are best on this curve: 8 tokens in 1.3 calls.
    assert stats.generated / stats.calls > 6
    assert modelled(stats, counted.governor, counted.rows) < 0.3


def test_where_every_row_costs_a_call_nothing_is_drafted() -> None:
    counted = Counted(governed(PerfectDrafter(whole()), costs=STEEP))
    _, stats = run(counted)
    assert stats.proposed == 0


def test_a_drafter_that_is_always_wrong_costs_next_to_nothing() -> None:
    counted = Counted(governed(Wrong()))
    _, stats = run(counted, 400)
    assert stats.generated == 400
    assert modelled(stats, counted.governor, counted.rows) < 1.02


def test_the_good_one_of_two_is_found() -> None:
    counted = Counted(governed(Wrong(), PerfectDrafter(whole(500))))
    _, stats = run(counted, 500)
    assert modelled(stats, counted.governor, counted.rows) < 0.35


class Halfway(PerfectDrafter):
    """Right up to a point, wrong from there on."""

    def __init__(self, tokens: Sequence[int], until: int) -> None:
        super().__init__(tokens)
        self.until = until

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        draft = super().propose(context, nodes, min_path_prob)
        tokens = [(t + 1) % 13 for t in draft.tokens] if len(context.ids) > self.until else draft.tokens
        return Draft(tokens, draft.parents, [0.9] * len(tokens))


def test_it_reacts_when_the_text_changes_its_nature() -> None:
    counted = Counted(governed(Halfway(whole(600), 300)))
    run(counted, 600)
    # All of what it lost in the second half, and it had to find out first.
    late = counted.rows[-280:]
    assert sum(counted.governor.costs.seconds[rows] for rows in late) < 1.02 * len(late)


def test_fixed_drafts_the_same_always() -> None:
    counted = Counted(governed(PerfectDrafter(whole(64)), fixed=3))
    run(counted, 60)
    assert set(counted.rows[1:-3]) == {4}


def test_who_never_earns_rests_and_is_tried_again() -> None:
    asked = []

    class Asked(Wrong):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            asked.append(len(context.ids))
            sum(range(30000))  # not for nothing
            return super().propose(context, nodes, min_path_prob)

    run(governed(PerfectDrafter(whole(600)), Asked(), costs={k: s / 2 for k, s in FLAT.items()}), 600)
    assert 3 <= len(asked) < 100  # of 600


def test_the_report_adds_up() -> None:
    governor = governed(PerfectDrafter(whole(100)))
    _, stats = run(governor, 100)
    report = json.loads(json.dumps(governor.report()))
    assert report["drafters"]["d0"]["proposed"] == stats.proposed
    assert report["drafters"]["d0"]["accepted"] == stats.accepted
    assert sum(report["sizes"].values()) + report["silent"] <= stats.calls


def test_state_goes_to_the_drafter_it_came_from() -> None:
    class Learned(BaseDrafter):
        def __init__(self, value: int) -> None:
            self.value = value

        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
            return Draft()

        def state(self) -> dict[str, Any]:
            return {"x.y": np.array([self.value])}

        def restore(self, state: dict[str, Any]) -> None:
            self.value = int(state["x.y"][0])

    first, second = Learned(1), Learned(2)
    state = governed(first, second).state()
    assert sorted(state) == ["d0.x.y", "d1.x.y", "governor.d0", "governor.d1"]
    third, fourth = Learned(0), Learned(0)
    governed(third, fourth).restore(state)
    assert (third.value, fourth.value) == (1, 2)


# ── the parts ──


def test_chain_length_is_the_best_one() -> None:
    assert chain_length(0.98, Costs(FLAT)) == 7
    assert chain_length(0.98, Costs(STEEP)) == 0
    assert chain_length(0.05, Costs(FLAT)) <= 1
    limit, min_path_prob = useful(Costs(FLAT))
    assert limit == 7
    assert 0.005 <= min_path_prob < 0.05
    # Beside 15 others each further row costs more of what a token is worth.
    fewer, higher = useful(Costs(FLAT), 16)
    assert fewer < limit
    assert higher > 10 * min_path_prob


ESTIMATES = [(k + 0.5) / BINS for k in range(BINS)]


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 10))
    tokens, parents = [], []
    for i in range(n):
        tokens.append(draw(st.integers(0, 3)))
        parents.append(draw(st.integers(-1, i - 1)))
    p = [draw(st.floats(0.01, 0.99)) for _ in range(n)]
    return Draft(tokens, parents, p)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Each node as the tokens from the top to it."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@settings(max_examples=200, deadline=None)
@given(some=st.lists(drafts(), min_size=1, max_size=3), nodes=st.integers(0, 20), picked=st.lists(st.integers(0, 3)))
def test_merged_trees_hold_what_each_of_them_held(some: list[Draft], nodes: int, picked: list[int]) -> None:
    merger = TreeMerger()
    for number, draft in enumerate(some):
        merger.add(number, draft, ESTIMATES)
    order = merger.best_first()
    names = ["a", "b", "c"]
    merged = merger.cut(order, names, "")
    assert set(paths(merged)) == {path for draft in some for path in paths(draft)}
    assert len(set(paths(merged))) == len(merged.tokens)
    for path, by in zip(paths(merged), merged.by, strict=True):
        assert set(by.split("+")) == {names[i] for i, draft in enumerate(some) if path in paths(draft)}
    part = merger.cut(order[:nodes], names, "why")
    assert all(parent < i for i, parent in enumerate(part.parents))
    assert set(paths(part)) <= set(paths(merged))
    chances = [merger.chances[node] for node in order]
    assert chances == sorted(chances, reverse=True)
    came = merger.path(picked)
    longest = max((k for k in range(len(picked) + 1) if k == 0 or tuple(picked[:k]) in set(paths(merged))), default=0)
    assert len(came) == longest


def test_every_guess_below_what_came_true_is_tested() -> None:
    merger = TreeMerger()
    merger.add(0, Draft([7, 8, 9], [-1, 0, 0], [0.5, 0.5, 0.9]), ESTIMATES)
    calibration = Calibration()
    before = list(calibration.estimates)
    merger.test([7, 9, 4], [calibration])
    half, most = int(0.5 * BINS), int(0.9 * BINS)
    assert calibration.tests.sum() == 3
    assert calibration.estimates[half] == pytest.approx((1 + 3 * before[half]) / (2 + 3))
    assert calibration.estimates[most] > before[most]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("nonsense", "no drafter 'nonsense'"),
        ("recycling:fixed=x", "must be a whole number"),
        ("recycling:fixed", "must be OPTION=VALUE"),
        ("recycling:colour=red", "no option 'colour'"),
        ("copy:ngram=many", "ngram=many: must be a whole number"),
        ("", "a name is missing"),
        ("copy:ngram=3,ngram=5", "ngram is given twice"),
        ("exit:stop=maybe", "stop=maybe: must be true or false"),
        ("pearl:overlap=some", "overlap=some: must be one of auto, always, never"),
        ("model:path=/c++/m", r"stands in quotes, as in path='/c\+\+/m'"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: str, wrong: str) -> None:
    model = open_model("nano", threads=1)
    with pytest.raises(UsageError, match=wrong):
        make_speculation(words, DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer))


def test_auto_drafts_only_where_rows_do_not_change_each_other() -> None:
    for engine, drafts_there in (("native", True), ("reference", False)):
        model = open_model("nano", engine=engine)
        there = DrafterContext(model.runtime, model.bundle, lambda m=model: m.tokenizer)  # type: ignore[misc]
        assert isinstance(make_speculation("auto", there), Forced) is drafts_there
        assert isinstance(make_speculation("off", there), Off)


def test_auto_takes_heads_that_are_in_the_bundle_and_drafts_whose_outputs_there_are() -> None:
    def has(facts: DrafterFacts, hidden: bool = True, slices: bool = True) -> bool:
        manifest = SimpleNamespace(heads={"medusa": 1}, drafts={"mtp": 1})
        runtime = SimpleNamespace(capabilities=SimpleNamespace(hidden=hidden, slices=slices))
        given: Any = SimpleNamespace(bundle=SimpleNamespace(manifest=manifest), runtime=runtime)
        return _has(given, facts)

    assert has(DrafterFacts(head="medusa"))
    assert has(DrafterFacts(head="medusa"), hidden=False, slices=False)
    assert not has(DrafterFacts(head="eagle"))
    assert not has(DrafterFacts())
    assert has(DrafterFacts(draft="mtp"))
    assert has(DrafterFacts(draft="mtp", head="eagle"))
    assert not has(DrafterFacts(draft="other"))
    assert not has(DrafterFacts(draft="mtp"), hidden=False)
    assert not has(DrafterFacts(draft="mtp"), slices=False)


def test_on_a_runtime_without_trees_one_chain_is_drafted() -> None:
    text = whole(100)
    runtime = FakeRuntime(tiny_spec(context_length=2048), trees=False)  # refuses trees
    drafters = [("wide", RandomDrafter(1)), ("right", PerfectDrafter(text, decoys=1))]
    governor = Governor(drafters, lambda: Costs(FLAT), fixed=8, trees=False)
    stats, trace = Stats(), list[StepTrace]()
    found = decode(runtime, fresh(runtime), GenerationConfig(max_tokens=100), governor, stats, trace)
    assert list(map(int, found)) == text[3:]
    assert stats.accepted > 10
    assert max(len(each.draft.tokens) for each in trace) > 2
    assert all(list(each.draft.parents) == list(range(-1, len(each.draft.parents) - 1)) for each in trace)


def test_a_runtime_without_slices_has_no_exit_and_no_skipping() -> None:
    runtime = FakeRuntime(tiny_spec(), slices=False)
    for name in ("exit", "skip"):
        with pytest.raises(UsageError, match=f"drafter {name}: the runtime fake runs only the whole stack"):
            make_speculation(name, host(runtime))


def test_what_a_constraint_forces_pays_for_no_guess() -> None:
    """A call is worth the same to the budget whether tokens were forced in it or not: they are no saving of guesses."""
    budgets = []
    for forced in ((), (7, 8, 9)):
        governor = governed(Off())
        drafter = Forced(governor)
        context = fresh(FakeRuntime())
        context.hooks = ConstraintHooks(forced=lambda forced=forced: forced)  # type: ignore[misc]
        assert governor.costs.seconds[1] == CALL
        before = CALL  # what a first text begins with
        draft = draft_of(FakeRuntime(), drafter.propose(context, 9, 0.99))
        assert tuple(draft.tokens) == forced
        rows = Rows.tree([3, *draft.tokens], [-1, *(parent + 1 for parent in draft.parents)], 2)
        n = len(rows)
        drafter.observe(StepResult(rows, 0, range(n), [*draft.tokens, 4], CallResult(), CALL, n))
        budgets.append(governor.account.left - before)
    # Both were one call.
    assert budgets[0] == pytest.approx(budgets[1], abs=CALL / 4)


def test_a_resumed_draft_is_handed_over_if_its_rows_are_the_first() -> None:
    hidden = np.arange(10, dtype=np.float32).reshape(5, 2)  # two pending rows and three drafted
    started = Draft((4, 5, 6), (-1, 0, 1), blocks=range(3, 6), hidden=hidden)
    cut = Draft((4, 5), (-1, 0))
    found = resume(cut, [0, 1], started, [0, 1, 2], 2)
    assert found.blocks == range(3, 6)
    assert found.hidden is not None
    assert found.hidden.tolist() == hidden[:4].tolist()
    between = resume(cut, [0, 2], started, [0, 1, 2], 2)  # a row between them was cut
    assert between.hidden is not None
    assert between.hidden.tolist() == hidden[[0, 1, 2, 4]].tolist()
    assert between.numbers == [0, 2]
    assert resume(cut, [0, 1], started, [1, 2, 3], 2).hidden is None  # another drafter's row comes first
    assert resume(cut, [0, 1], None, [], 2) == cut
    assert resume(cut, [0, 1], replace(started, hidden=None), [0, 1, 2], 2) == cut


def test_a_proposal_counts_its_share_of_a_forward() -> None:
    class Calling(BaseDrafter):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
            return self._calls(context)

        def _calls(self, context: Context) -> Generator[Request, Completed, Draft]:
            yield Call(Rows.chain([1, 2], 0), context.cache, ())
            return Draft()

    governor = governed(Calling(), fixed=1)
    proposal = governor.propose(fresh(FakeRuntime()), 4, 0.0)
    assert not isinstance(proposal, Draft)
    next(proposal)
    time.sleep(0.2)  # the forward, with calls of others
    with pytest.raises(StopIteration):
        proposal.send(Completed(CallResult(), rows=40, seconds=0.2))
    (member,) = governor.members
    assert member.seconds == pytest.approx(0.2 * 2 / 40, abs=0.008)
    assert governor._spent == pytest.approx(member.seconds, abs=0.008)


def test_a_call_whose_first_blocks_have_run_costs_less() -> None:
    """A quarter of the blocks: a quarter of the call with the draft's rows, at most that of the most known rows."""
    seconds = [0.0, 1.0, 1.5, 1.9]
    begun, other = Draft((5, 6), (-1, 0), hidden=np.zeros((3, 2), np.float32), done=0.25), Draft((5, 6), (-1, 0))
    found = Proposals(seconds=seconds)
    assert [found.prepaid(begun, n) for n in (0, 1, 2, 9)] == pytest.approx([0.25, 0.375, 0.475, 0.475])
    assert found.prepaid(other, 2) == 0.0
    assert Proposals(seconds=[0.0]).prepaid(begun, 2) == 0.0, "costs are unknown"


class Prompts(BaseDrafter):
    """Drafts two tokens and would run prompt rows below them. plans: the most drafted rows, those of the draft, and
    the plan."""

    def __init__(self) -> None:
        self.plans, self._nodes = list[tuple[int, int, PromptPlan]](), 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self._nodes = 3 + 30 - len(context.ids) - 1  # after them the text is complete
        return Draft.chain([12, 12][:nodes], [0.9, 0.9][:nodes])

    def append(self, context: Context, draft: Draft, plan: PromptPlan) -> Generator[Request, Completed, Draft]:
        self.plans.append((self._nodes, len(draft.tokens), plan))
        return draft
        yield


@pytest.mark.parametrize("fixed", [0, 3])
def test_prompt_rows_have_the_room_that_the_draft_leaves(fixed: int) -> None:
    prompts, costs = Prompts(), Still({1: CALL, 2: 1.2 * CALL, 33: 7.4 * CALL})
    governor = PromptingGovernor([("it", prompts)], lambda: costs, fixed, terms=NAMED)
    runtime = FakeRuntime(tiny_spec(context_length=2048))
    list(decode(runtime, fresh(runtime), GenerationConfig(max_tokens=30), governor))
    assert any(drafted for _, drafted, _ in prompts.plans)
    for nodes, drafted, plan in prompts.plans:
        assert len(plan.chances) == drafted
        assert 0 <= plan.room <= nodes - drafted
        assert plan.row == (0.0 if fixed else pytest.approx(0.2, rel=0.1)), "of a token's worth; fixed: not weighed"
    if fixed:  # the last calls have little room, the others as much as is asked for
        assert max(plan.room for _, _, plan in prompts.plans) == fixed
    else:
        assert max(plan.room for _, _, plan in prompts.plans) < 30, "no more than the balance allows"


@pytest.mark.parametrize(("ends", "token"), [(Ends(0, 1), CALL), (Ends(3, 1), 0.3 * CALL / 7)])
def test_guesses_weigh_what_the_text_s_tokens_are_worth(ends: Ends, token: float) -> None:
    """At the end of a batch: offered chances are relative to a token of a text whose place is taken by another."""
    offered = dict[Ends, list[float]]()
    for each in (NEVER, ends):
        runtime = FakeRuntime()
        context = fresh(runtime)
        runtime.forward([Call(Rows.chain([1, 2], 0), context.cache)])
        context.cache.commit(range(2))
        context.concurrent, context.ends = 3, each
        proposal = governed(PerfectDrafter([*context.ids, *[4] * 8])).propose(context, 4, 0.0)
        assert not isinstance(proposal, Draft)
        offer = next(item for item in proposal if isinstance(item, Offer))
        offered[each] = list(offer.chances)
        assert (offer.rows, offer.reading, offer.context) == (1, 0, 2)
    mean = (1 + 3 * 0.3 / 7) * CALL / 4  # of a call of four rows
    assert offered[NEVER]
    assert offered[ends] == pytest.approx([chance * token / mean for chance in offered[NEVER]], rel=0.01)


def decoding(runtime: FakeRuntime) -> Context:
    """A text whose last token alone is not cached."""
    context = fresh(runtime)
    runtime.forward([Call(Rows.chain([1, 2], 0), context.cache)])
    context.cache.commit(range(2))
    return context


@pytest.mark.parametrize(("owed", "looked", "rest"), [(0.0, 0.0, 6), (0.5, 0.0, 68), (0.1, 0.1, 63), (5.0, 0.0, 128)])
def test_a_used_up_balance_is_looked_at_again_when_it_is_paid(owed: float, looked: float, rest: int) -> None:
    """With 0.008 a call: what is owed, and four looks, or a row of 0.3 / 7. owed, looked: in calls."""
    governor = governed(PerfectDrafter([1, 2, 3, 4, 4, 4, 4]))
    bank = governor.account.bank
    bank.open(CALL)
    bank.add(-(1 + owed) * CALL)
    governor.account.looked = looked * CALL
    draft = governor.propose(decoding(FakeRuntime()), 4, 0.0)
    assert isinstance(draft, Draft)
    assert (draft.why, draft.rest) == (TEXTS[BANK], rest)
    named = Governor([("it", RandomDrafter(1))], lambda: Still(FLAT), terms=NAMED)
    named.account.bank.open(CALL)
    named.account.bank.add(-9 * CALL)
    draft = named.propose(decoding(FakeRuntime()), 4, 0.0)
    assert isinstance(draft, Draft)
    assert (draft.why, draft.rest) == (TEXTS[BANK], 0), "it is asked as soon as anything is left"


def test_a_drafter_is_not_asked_for_less_than_others_promise() -> None:
    """None of its tokens are likely to be needed; of who was hardly asked that is not known."""
    governor = governed(RandomDrafter(1), RandomDrafter(2))
    context = decoding(FakeRuntime())
    governor._begin(context)
    member = governor.members[1]
    for n, usual, promised, room in (
        (1, 1.0, 3.0, 4), (2, 1.0, 3.0, 0), (4, 1.0, 3.0, 0), (4, 1.0, 0.9, 4), (4, 0.1, 0.4, 4), (4, 0.1, 0.6, 0),
    ):  # fmt: skip
        member.own = Means(0.0, usual, 1.0, n)
        found: Any = SimpleNamespace(promised=lambda prices, promised=promised: promised)
        assert governor._room(member, found, context, 4) == room


@pytest.mark.parametrize("room", [1, 2])
def test_the_last_tokens_of_a_text_are_drafted(room: int) -> None:
    runtime = FakeRuntime()
    governor = governed(PerfectDrafter([1, 2, 3, 4, 5, 6, 7, 8]))
    draft = draft_of(runtime, governor.propose(decoding(runtime), room, 0.0))
    assert len(draft.tokens) == room
    assert not len(draft_of(runtime, governor.propose(decoding(runtime), 0, 0.0)).tokens)
