"""Anchored decoding: the divergence within the budget at every prefix, the ends, the debt, and every path of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from fusing import INF, PROMPT, Floats, companion, law, logp, naive, run

from edgedec.decoding.context import Context
from edgedec.errors import UsageError
from edgedec.fusion._source import Source
from edgedec.fusion.anchor import Anchored, _Tilt, anchored
from edgedec.sampling import Probs, Sampling, distribution
from edgedec.testing.fakes import FakeRuntime, PerfectDrafter, RandomDrafter, SetConstraint

SAFE = FakeRuntime(seed=5, spread=4.0)
WARM, CUT = Sampling(temperature=1.0), Sampling(temperature=0.8, top_k=6, repetition_penalty=1.2)


def safe() -> Source:
    return Source(SAFE, own=False, follows_adapter=False)


def anchor(k: float, debt: int = 0, on: FakeRuntime | None = None, special: Sequence[int] = ()) -> Anchored:
    return Anchored(companion(safe()), k, debt, Source(on or FakeRuntime()), frozenset(special))


def probs(p: Any, ids: Sequence[int] = ()) -> Probs:
    return Probs(np.array(ids or range(len(p)), np.int64), np.array(p, np.float64))


def divergence(p: Probs, q: Probs) -> float:
    return float(sum(x * np.log(x / q.of(int(t))) if q.of(int(t)) else INF for t, x in zip(p.ids, p.p, strict=True)))


def dense(p: Probs) -> Floats:
    found = np.zeros(13)
    found[p.ids] = p.p
    return found


def slow_anchored(risky: Probs, safe: Probs, budget: float) -> Probs:
    """The last mixture in a fine grid of exponents that stays within the budget, of the same tokens."""
    theta = np.linspace(0, 1, 2001)[:, None]
    p = safe.p ** (1 - theta) * risky.p**theta
    p /= p.sum(axis=1, keepdims=True)
    fits = (p * np.log(p / safe.p)).sum(axis=1) <= budget
    return Probs(safe.ids, p[np.flatnonzero(fits)[-1]])


@pytest.mark.parametrize("seed", range(8))
def test_the_distribution_is_that_of_a_fine_grid(seed: int) -> None:
    rng, n = np.random.default_rng(seed), 9
    risky, safe = (probs(rng.dirichlet(np.full(n, 0.3 + seed / 4)) + 1e-9) for _ in range(2))
    risky, safe = (Probs(one.ids, one.p / one.p.sum()) for one in (risky, safe))
    far = divergence(risky, safe)
    for budget in (1e-6, 0.01, 0.1, 0.4, far * 0.5, far * 0.99, far * 1.01):
        found, cost = anchored(risky, safe, budget)
        assert divergence(found, safe) == pytest.approx(cost, abs=1e-9)
        assert cost <= budget
        assert np.abs(found.p - slow_anchored(risky, safe, budget).p).max() < 2e-3
        if budget < far:
            assert cost > budget * (1 - 1e-2) - 1e-7  # nothing is left over
        else:
            assert found is risky


def test_the_worked_example() -> None:
    found, cost = anchored(probs([0.9, 0.1]), probs([0.5, 0.5]), 0.1)
    assert cost == pytest.approx(0.1, abs=1e-3)
    theta = np.log(found.p[0] / found.p[1]) / np.log(9)
    assert theta == pytest.approx(0.428, abs=2e-3)
    assert found.p == pytest.approx([0.72, 0.28], abs=5e-3)


def test_a_budget_of_one_nat() -> None:
    """Far apart: at θ = 0.349 the divergence is 1."""
    risky, safe = probs([0.999, 0.001]), probs([0.01, 0.99])
    found, cost = anchored(risky, safe, 1.0)
    assert divergence(found, safe) == pytest.approx(cost)
    assert 0.9999 < cost <= 1.0
    assert np.abs(found.p - slow_anchored(risky, safe, 1.0).p).max() < 3e-3


@pytest.mark.parametrize("theta", [0.1, 0.5, 0.9])
def test_the_slope_is_that_of_the_cost(theta: float) -> None:
    rng = np.random.default_rng(1)
    tilt = _Tilt(rng.dirichlet(np.ones(9)), rng.dirichlet(np.ones(9)))
    assert tilt.slope(theta) == pytest.approx((tilt.cost(theta + 1e-5) - tilt.cost(theta - 1e-5)) / 2e-5, rel=1e-4)


def test_the_ends() -> None:
    risky, safe = probs([0.9, 0.1]), probs([0.5, 0.5])
    assert anchored(risky, safe, 0.0) == (safe, 0.0)
    assert anchored(risky, safe, INF)[0] is risky
    assert anchored(risky, safe, 5.0)[0] is risky
    assert anchored(risky, safe, -1.0) == (safe, 0.0)


def test_distributions_with_other_tokens() -> None:
    safe = probs([0.5, 0.5], [0, 1])
    assert anchored(probs([1.0], [3]), safe, 9.0) == (safe, 0.0)  # nothing in common
    one, cost = anchored(probs([0.4, 0.6], [1, 3]), safe, 0.7)
    assert (one.ids.tolist(), one.p.tolist()) == ([1], [1.0])  # log 2 = .693: the only token that both have
    assert cost == pytest.approx(np.log(2))
    assert anchored(probs([0.4, 0.6], [1, 3]), safe, 0.69) == (safe, 0.0)
    wide = probs([0.4, 0.4, 0.2], [0, 1, 2])
    found, cost = anchored(probs([0.9, 0.1], [0, 1]), wide, 0.3)
    assert 0.22 < cost <= 0.3  # losing token 2 alone costs -log .8
    assert found.ids.tolist() == [0, 1]


def spent_along(k: float, sampling: Sampling, on: FakeRuntime, new: Sequence[int], debt: float = 0.0) -> list[Probs]:
    """The distributions along a text, and a check of the bound at each prefix."""
    spent, found = 0.0, list[Probs]()
    for t in range(len(new) + 1):
        ids = [*PROMPT, *new[:t]]
        risky, calm = (_probs(law(one, ids), sampling, ids) for one in (on, SAFE))
        best, cost = anchored(risky, calm, max(0.0, (t + 1) * k - debt - spent))
        spent += cost
        assert spent <= max((t + 1) * k - debt, 0.0) + 1e-9
        found.append(best)
    return found


def _probs(logits: Floats, sampling: Sampling, ids: Sequence[int]) -> Probs:
    from edgedec.sampling import probs

    return probs(logits, sampling, ids, len(PROMPT))


@pytest.mark.parametrize("sampling", [WARM, CUT], ids=["drawn", "cut"])
@pytest.mark.parametrize("k", [0.05, 0.3])
def test_the_sum_of_divergences_stays_within_the_budget_at_every_prefix(k: float, sampling: Sampling) -> None:
    on = FakeRuntime()
    for new in product((1, 6, 11), repeat=3):
        found = spent_along(k, sampling, on, new)
        made = anchor(k)
        path = list(new)
        step = Planted(on, made, sampling)
        for t in range(len(path) + 1):
            assert np.allclose(dense(step.at(path[:t])), dense(found[t]), atol=1e-12)


class Planted:
    """An anchor whose companion gives the safe law at any path."""

    def __init__(self, on: FakeRuntime, made: Anchored, sampling: Sampling) -> None:
        self.on, self.made, self.sampling = on, made, sampling

    def at(self, path: list[int]) -> Probs:
        ids = [*PROMPT, *path]
        pair = [_probs(law(one, ids), self.sampling, ids) for one in (self.on, SAFE)]
        return self.made.fuse(pair[0], pair[1], path)


@pytest.mark.parametrize("sampling", [WARM, CUT], ids=["drawn", "cut"])
@pytest.mark.parametrize("k", [0.05, 0.3, 1.0])
def test_texts_are_those_of_the_rule_with_any_draft(k: float, sampling: Sampling) -> None:
    on = FakeRuntime()
    wanted = naive(lambda new: spent_along(k, sampling, on, new)[-1], greedy=False, n=16)
    made = anchor(k)
    assert run(on, [made], sampling=sampling, n=16) == wanted
    assert made.spent == pytest.approx(sum(_costs(k, sampling, on, wanted)))
    assert made.spent <= 16 * k
    whole = [*PROMPT, *wanted]
    for drafter in (PerfectDrafter(whole), PerfectDrafter(whole, decoys=2), RandomDrafter(2)):
        again = anchor(k)
        assert run(on, [again], drafter, sampling, n=16) == wanted
        assert again.spent == pytest.approx(made.spent, abs=1e-9)


def _costs(k: float, sampling: Sampling, on: FakeRuntime, new: Sequence[int]) -> list[float]:
    found = spent_along(k, sampling, on, new)[:-1]
    ids = [[*PROMPT, *new[:t]] for t in range(len(new))]
    return [divergence(p, _probs(law(SAFE, one), sampling, one)) for p, one in zip(found, ids, strict=True)]


@pytest.mark.parametrize("sampling", [Sampling(), WARM, CUT], ids=["greedy", "drawn", "cut"])
def test_no_budget_is_the_safe_model_and_any_is_the_risky_one(sampling: Sampling) -> None:
    on = FakeRuntime()
    assert run(on, [anchor(0)], sampling=sampling) == run(SAFE, (), sampling=sampling)
    assert run(on, [anchor(INF)], sampling=sampling) == run(on, (), sampling=sampling)
    assert run(on, (), sampling=sampling) != run(SAFE, (), sampling=sampling)


def test_greedy_takes_the_likeliest_of_the_uncut_distribution() -> None:
    on = FakeRuntime()
    wanted = naive(lambda new: spent_along(0.2, WARM, on, new)[-1], greedy=True, n=16)
    assert run(on, [anchor(0.2)], n=16) == wanted
    assert wanted not in (run(on, (), n=16), run(SAFE, (), n=16))


def test_both_are_constrained() -> None:
    on = FakeRuntime()
    found = run(on, [anchor(0.3)], sampling=WARM, constraint=SetConstraint(lambda last: {2, 4, 6}))
    assert set(found) == {2, 4, 6}


def test_a_fork_has_a_budget_of_its_own() -> None:
    made = anchor(0.3)
    step = Planted(FakeRuntime(), made, WARM)
    step.at([])
    twin = made.fork()
    for one in (made, twin):
        one.accept(4)
    assert made.spent == twin.spent > 0
    step.at([])
    made.accept(1)
    assert (twin.tokens, made.tokens) == (1, 2)
    assert made.spent > twin.spent
    assert twin.budget() == pytest.approx(0.6 - twin.spent)
    made.reset()
    assert (made.tokens, made.spent, made.budget()) == (0, 0.0, 0.3)


def test_costs_of_paths_that_were_not_taken_are_forgotten() -> None:
    made = anchor(0.3)
    step = Planted(FakeRuntime(), made, WARM)
    for path in ([], [4], [5], [4, 1]):
        step.at(path)
    expected = made.budget([4, 1])
    made.accept(4)
    assert made.budget([1]) == pytest.approx(expected)
    with pytest.raises(KeyError):
        made.budget([5, 1])


@pytest.mark.parametrize("n", [1, 2, 9])
def test_the_prompts_debt(n: int) -> None:
    """The mean of the n largest log-ratios above 0 of the prompt's tokens, without special ones."""
    on, k, special = FakeRuntime(prefill_chunk=2), 0.3, (1,)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    gaps = [
        float((logp(law(on, prompt[:i])) - logp(law(SAFE, prompt[:i])))[prompt[i]])
        for i in range(1, len(prompt))
        if prompt[i] not in special
    ]
    largest = sorted((gap for gap in gaps if gap > 0), reverse=True)[:n]
    made = anchor(k, n, on, special)
    run(on, [made], sampling=WARM, prompt=prompt, n=3)
    assert len(largest) >= min(n, 2)
    assert made.debt == pytest.approx(sum(largest) / len(largest), abs=1e-6)
    made.reset()
    assert made.debt is None


def test_a_debt_is_paid_before_anything_is_spent() -> None:
    made = replace_debt(anchor(0.3), 0.5)
    step = Planted(FakeRuntime(), made, WARM)
    assert made.budget() == 0
    first = step.at([])
    assert np.allclose(dense(first), dense(_probs(law(SAFE, PROMPT), WARM, PROMPT)))
    made.accept(1)
    assert made.budget() == pytest.approx(0.1)


def replace_debt(made: Anchored, debt: float) -> Anchored:
    made.debt = debt
    return made


def test_settings_that_depend_on_what_was_drawn_are_refused() -> None:
    for sampling in (replace(WARM, mirostat=2), replace(WARM, adaptive_target=0.3)):
        with pytest.raises(UsageError, match="mirostat and adaptive-p: not with a fusion"):
            run(FakeRuntime(), [anchor(0.3)], sampling=sampling)
    with pytest.raises(UsageError, match="two that fuse whole distributions"):
        run(FakeRuntime(), [anchor(0.3), anchor(0.2)])


def test_the_steps_prompt_is_counted_once() -> None:
    on = FakeRuntime()
    made = anchor(0.3, 2, on)
    run(on, [made], n=1)
    debt = made.debt
    made.fork()
    assert debt is not None
    context = Context([*PROMPT, 1], len(PROMPT), on.new_cache(64))
    assert next(made.gather(_step(context)), None) is not None
    assert made.debt == debt


def _step(context: Context) -> Any:
    from edgedec.decoding.gathering import GatheringStep
    from edgedec.runtime import Rows

    return GatheringStep(context, Rows.chain(context.ids, 0), len(context.ids) - 1)


def test_distribution_of_one_token() -> None:
    assert distribution(np.zeros(3, np.float32), Sampling()).ids.tolist() == [0]
    point = probs([1.0], [2])
    assert anchored(point, point, 0.1)[0] is point
