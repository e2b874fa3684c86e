"""TCA-Attention (You et al. 2025): blocks ranked by the Simpson index of the last query's scores fill a budget."""

from __future__ import annotations

from math import exp, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import CAN, Scripted, Text, policy_of, spec_of

from edgedec.errors import BundleCorrupt, SessionError, UsageError
from edgedec.policies import PolicyHost, make_policy
from edgedec.policies._head_budgets import HEAD_BUDGETS, MASSES, budgets_for, budgets_of, read_budgets, shares_kept
from edgedec.policies._redundancy import (
    DISTRIBUTIONS,
    KEPT,
    SHARES,
    attention_of,
    block_shares,
    core_slots,
    kept_of_blocks,
    needed_budgets,
    token_ranks,
)
from edgedec.policies.tca import Tca, most_budget
from edgedec.runtime import PAGE

SPEC = spec_of(layers=1, kv_heads=1, dim=1)


def distribution(mu: float) -> list[float]:
    """p_k of k = 1, 2, ..., 64 with sigma 1."""
    raw = [exp(-((log2(k) - mu) ** 2) / 2) for k in (1, 2, 4, 8, 16, 32, 64)]
    return [x / sum(raw) for x in raw]


def test_budgets_are_log_gaussian() -> None:
    assert KEPT.tolist() == [1, 2, 4, 8, 16, 32, 64]
    np.testing.assert_allclose(DISTRIBUTIONS, [distribution(i / 2) for i in range(19)], rtol=1e-9)
    kept = [sum(p * k for p, k in zip(distribution(i / 2), KEPT, strict=True)) / 64 for i in range(19)]
    np.testing.assert_allclose(SHARES, kept, rtol=1e-9)
    assert (np.diff(SHARES) > 0).all()
    assert SHARES[0] < 0.04
    assert SHARES[-1] > 0.96


def shares_of(*blocks: dict[int, float]) -> np.ndarray:
    """[1, blocks, PAGE]: these shares of a block's attention, the rest spread evenly over the others."""
    found = np.zeros((1, len(blocks), PAGE), np.float32)
    for block, given_ in zip(found[0], blocks, strict=True):
        block[:] = (1 - sum(given_.values())) / (PAGE - len(given_))
        for at, share in given_.items():
            block[at] = share
    return found


def test_concentrated_blocks_keep_few_by_hand() -> None:
    """Four blocks: the Simpson indices are about 1, .25 (four tokens), 1/64 and .5 (two tokens): ranks 0 2 3 1.

    Budget 4, mu 2: p is .054 .242 .399 .242 .054 .004 0 of 1, 2, ...; cumulated .054 .296 .696 .937 .992. The middles
    .125 .375 .625 .875 of the ranks fall on 2, 4, 4 and 8 tokens. Ranked the other way, or by the largest share of
    *all* attention, block 2 would keep the fewest.
    """
    shares = shares_of({3: 1.0}, {5: 0.25, 6: 0.25, 7: 0.25, 8: 0.25}, {}, {1: 0.5, 9: 0.5})
    assert kept_of_blocks(shares, np.array([4])).tolist() == [[2, 4, 8, 4]]
    assert core_slots(shares, np.array([4]))[0].tolist() == [
        *(0, 3),
        *(64 + at for at in (5, 6, 7, 8)),
        *(128 + at for at in range(8)),
        *(192 + at for at in (0, 1, 2, 9)),
    ], "those that score highest, of equals the first"
    both = np.concatenate([shares, shares])
    assert kept_of_blocks(both, np.array([4, 0])).tolist() == [[2, 4, 8, 4], [1, 2, 2, 1]], "each head has its own"


def test_shares_are_of_each_block_by_hand() -> None:
    """Two query heads of one kv head, 64 keys a block. The first scores log 64 at slot 1 (share 64/127) in block 0; the
    second scores 0 everywhere: 1/64. Their mean. In block 1 all is even, though its scores are far higher."""
    keys = np.zeros((1, 128, 2), np.float32)
    keys[0, 1, 0], keys[0, 64:, 0] = np.log(64), 9
    query = np.array([[1, 0], [0, 1]], np.float32)
    shares = block_shares(query, keys, 1.0)
    assert shares.shape == (1, 2, 64)
    np.testing.assert_allclose(shares[0, 0, 1], (64 / 127 + 1 / 64) / 2, rtol=1e-5)
    np.testing.assert_allclose(shares[0, 0, 0], (1 / 127 + 1 / 64) / 2, rtol=1e-5)
    np.testing.assert_allclose(shares[0, 1], 1 / 64, rtol=1e-5)
    np.testing.assert_allclose(block_shares(query, keys, 0.5)[0, 0, 1], (8 / 71 + 1 / 64) / 2, rtol=1e-5)
    far = block_shares(query * 1e3, keys, 1.0)
    assert far[0, 0, 1] > 0.5, "no exponential is too large"
    whole = attention_of(query, keys, 1.0)
    np.testing.assert_allclose(whole.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(whole[0, 0, 0], (1 / (63 + 64 + 64 * np.exp(9)) + 1 / 128) / 2, rtol=1e-5)


def test_the_least_budget_that_holds_the_mass() -> None:
    """All attention rests on the best eight tokens of one flat block: it is the last of four, at .875."""
    shares = shares_of({3: 1.0}, {5: 0.5, 6: 0.5}, {}, {1: 0.6, 9: 0.4})
    attention = np.zeros((1, 4, PAGE), np.float32)
    attention[0, 2, :8] = 1 / 8
    found = needed_budgets(shares, attention, 0.99)
    kept = [kept_of_blocks(shares, np.array([c]))[0, 2] for c in range(19)]
    assert found.tolist() == [min(c for c in range(19) if kept[c] >= 8)]
    assert needed_budgets(shares, attention, 0.5).tolist() == [min(c for c in range(19) if kept[c] >= 4)]
    assert needed_budgets(shares, attention, 0).tolist() == [0]
    flat = np.full((1, 4, PAGE), 1 / 256, np.float32)
    assert needed_budgets(shares, flat, 1).tolist() == [min(c for c in range(19) if kept_all(shares, c))]


def test_the_largest_budget_where_none_is_enough() -> None:
    """Of twenty blocks the largest budget leaves half of one out: .025 of the blocks is below the .03 that keep 32."""
    shares = np.full((1, 20, PAGE), 1 / PAGE, np.float32)
    attention = np.full((1, 20, PAGE), 1 / (20 * PAGE), np.float32)
    assert kept_of_blocks(shares, np.array([18])).tolist() == [[32] + [64] * 19]
    assert needed_budgets(shares, attention, 1).tolist() == [18]


def kept_all(shares: np.ndarray, budget: int) -> bool:
    return budget == 18 or kept_of_blocks(shares, np.array([budget])).min() == PAGE


def naive(query: np.ndarray, keys: np.ndarray, budget: int, scale: float) -> list[int]:
    """The slots of one kv head. query [group, d]; keys [slots, d]."""
    blocks = len(keys) // PAGE
    rows = []
    for block in range(blocks):
        shares = np.zeros(PAGE)
        for q in query.astype(float):
            scores = [scale * float(q @ key) for key in keys[block * PAGE : (block + 1) * PAGE].astype(float)]
            weights = [exp(score - max(scores)) for score in scores]
            shares += np.array([w / sum(weights) for w in weights]) / len(query)
        rows.append(shares)
    ranked = sorted(range(blocks), key=lambda b: -sum(s * s for s in rows[b]))
    found = []
    for rank, block in enumerate(ranked):
        left, keep = (rank + 0.5) / blocks, 1
        for p, k in zip(distribution(budget / 2), (1, 2, 4, 8, 16, 32, 64), strict=True):
            keep = k
            left -= p
            if left <= 1e-12:
                break
        best = sorted(range(PAGE), key=lambda at: -rows[block][at])[:keep]
        found += [block * PAGE + at for at in best]
    return sorted(found)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 999), blocks=st.integers(1, 6), budget=st.integers(0, 18), spread=st.sampled_from([1, 4]))
def test_slots_as_in_plain_loops(seed: int, blocks: int, budget: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.normal(0, spread, (2, blocks * PAGE, 3)).astype(np.float32)
    query = rng.normal(0, 1, (4, 3)).astype(np.float32)
    found = core_slots(block_shares(query, keys, 0.7), np.array([budget, 18 - budget]))
    assert found[0].tolist() == naive(query[:2], keys[0], budget, 0.7)
    assert found[1].tolist() == naive(query[2:], keys[1], 18 - budget, 0.7)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 999), blocks=st.integers(1, 6), mass=st.sampled_from([0.5, 0.9, 0.99]))
def test_needed_budgets_as_in_plain_loops(seed: int, blocks: int, mass: float) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.normal(0, 2, (2, blocks * PAGE, 3)).astype(np.float32)
    query = rng.normal(0, 1, (4, 3)).astype(np.float32)
    shares, attention = block_shares(query, keys, 1.0), attention_of(query, keys, 1.0)
    found = needed_budgets(shares, attention, mass)
    for head in range(2):
        held = [
            attention[head].reshape(-1)[core_slots(shares, np.full(2, budget))[head]].sum(dtype=float)
            for budget in range(19)
        ]
        assert held == sorted(held)
        enough = [budget for budget in range(19) if held[budget] >= mass * attention[head].sum(dtype=float) - 1e-9]
        assert found[head] == (enough[0] if enough else 18)


def test_ranks_of_tokens() -> None:
    ranks = token_ranks(shares_of({3: 0.5, 1: 0.25}))[0, 0]
    assert (ranks[3], ranks[1], ranks[0], ranks[2], ranks[63]) == (0, 1, 2, 3, 63)


# ---- in a text -------------------------------------------------------------------------------

WORDS = "tca:budget=400,every=32,recent=64,mass=0.9"


def text_of(seed: int, words: str = WORDS, n: int = 1300) -> tuple[Text, dict[int, np.ndarray], dict[int, np.ndarray]]:
    rng = np.random.default_rng(seed)
    spec = spec_of(layers=2, kv_heads=2, group=2, dim=3)
    keys = {b: rng.normal(0, 2, (2, n, 3)).astype(np.float32) for b in (0, 2)}
    queries = {b: rng.normal(0, 1, (n, 4, 3)).astype(np.float32) for b in (0, 2)}
    return Text(Scripted(spec, queries=queries, keys=keys), words, n), queries, keys


def expected(queries: np.ndarray, keys: np.ndarray, length: int, needs: Any, most: int) -> list[list[int]]:
    """The slots of both heads of a block by the query of the last of `length` tokens."""
    whole = length // PAGE * PAGE
    cap = max((c for c in range(19) if SHARES[c] * whole <= most), default=0)
    return [
        naive(queries[length - 1, 2 * head : 2 * head + 2], keys[head, :whole], min(int(needs[head]), cap), 1.0)
        for head in range(2)
    ]


def measured(queries: np.ndarray, keys: np.ndarray, length: int, mass: float) -> np.ndarray:
    whole = keys[:, : length // PAGE * PAGE]
    query = queries[length - 1]
    return needed_budgets(block_shares(query, whole, 1.0), attention_of(query, whole, 1.0), mass)


def test_prompts_and_steps() -> None:
    """Chosen after 512 and 1024 tokens and at the end of a prompt, each by the last query; in steps at every 32nd
    token, with the budgets that the end of the prompt showed."""
    text, queries, keys = text_of(1)
    text.read(1100, 100)
    calls = text.runtime.calls  # type: ignore[attr-defined]
    most = (7 - 3) * PAGE  # 400 tokens are 7 pages, of which 3 may be first and latest ones
    for call in calls:
        at = int(call.rows.positions[0])
        since = {600: 600, 700: 600, 800: 600, 900: 600, 1000: 600}.get(at)
        if since is None:
            assert not call.views
            continue
        for b in (0, 2):
            view = call.views[b]
            assert (view.sinks, view.recent, view.group) == (4, 64, 0)
            needs = measured(queries[b], keys[b], since, 0.9)
            assert [s.tolist() for s in view.slots] == expected(queries[b], keys[b], since, needs, most)
    text.step(1)
    needs = {b: measured(queries[b], keys[b], 1100, 0.9) for b in (0, 2)}
    for b, view in calls[-1].views.items():
        assert [s.tolist() for s in view.slots] == expected(queries[b], keys[b], 1100, needs[b], most)
        assert (view.group, view.pages) == (1, 0)
    before = calls[-1].views[0]
    text.step(19)
    assert calls[-1].views[0] is before
    assert calls[-1].outputs.queries == (0, 2), "the last query before the next choice"
    assert calls[-2].outputs.queries == ()
    text.step(1)  # 1120 tokens
    for b, view in calls[-1].views.items():
        assert [s.tolist() for s in view.slots] == expected(queries[b], keys[b], 1120, needs[b], most)
    assert [text.policy.room(length) for length in (1120, 1149, 1150, 1151)] == [30, 1, 0, 0]


def test_calibrated_budgets(tmp_path: Path) -> None:
    """A table of the bundle says what each head needs; the budget of the option is an upper bound."""
    table = np.zeros((7, 4), np.float32)
    table[:] = np.array([2, 4, 9, 18]) + np.linspace(0, 0, 7)[:, None]
    table[:4, 1] = 3
    (tmp_path / HEAD_BUDGETS).write_bytes(table.astype("<f4").tobytes())
    text, queries, keys = text_of(2)
    host = PolicyHost(text.runtime.spec, CAN, str(tmp_path))
    for words, needs in {
        "tca:budget=100000,every=32,recent=64,mass=0.9": {0: [2, 3], 2: [9, 18]},
        "tca:budget=100000,every=32,recent=64,mass=0.93": {0: [2, 4], 2: [9, 18]},
        "tca:budget=100000,every=32,recent=64,mass=0.95,measured=once": {0: [2, 4], 2: [9, 18]},
    }.items():
        text, queries, keys = text_of(2)
        policy = make_policy(words, host)
        assert policy is not None
        text.policy = policy
        text.read(700).step(1)
        for b, view in text.runtime.calls[-1].views.items():  # type: ignore[attr-defined]
            assert [s.tolist() for s in view.slots] == expected(queries[b], keys[b], 700, needs[b], 100000)
        assert policy.report(text.cache)["measured"] == "once"
        assert not [name for name in policy.state() if name.startswith("needs")]
        policy.reset()
        assert isinstance(policy, Tca)
        assert policy._needs[2].tolist() == [9, 18]
    prompt = make_policy("tca:measured=prompt", host)
    assert isinstance(prompt, Tca)
    assert prompt._needs == {}
    with pytest.raises(UsageError, match=r"the bundle has no head_budgets.bin"):
        make_policy("tca:measured=once", PolicyHost(text.runtime.spec, CAN, str(tmp_path / "none")))
    with pytest.raises(SessionError, match="not of cache policy tca"):
        make_policy("tca", host).restore({"needs.0": np.zeros(2, np.int64)}, text.cache)


def test_tables(tmp_path: Path) -> None:
    spec = spec_of(layers=2, kv_heads=2)
    assert read_budgets("", spec) is None
    assert read_budgets(str(tmp_path), spec) is None
    table = np.arange(28, dtype=np.float32).reshape(7, 4) % 19
    (tmp_path / HEAD_BUDGETS).write_bytes(table.astype("<f4").tobytes())
    found = read_budgets(str(tmp_path), spec)
    assert found is not None
    assert (found == table).all()
    for wrong in (table[:6], table - 1, table + 18, table * np.nan):
        (tmp_path / HEAD_BUDGETS).write_bytes(wrong.astype("<f4").tobytes())
        with pytest.raises(BundleCorrupt, match="make it again with edgedec calibrate"):
            read_budgets(str(tmp_path), spec)
    assert MASSES == (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
    rising = np.linspace(0, 6, 7)[:, None] + np.array([0, 0.5, 15, 0], np.float32)
    needs = budgets_for(rising.astype(np.float32), spec, 0.9)
    assert {b: numbers.tolist() for b, numbers in needs.items()} == {0: [3, 4], 2: [18, 3]}
    assert budgets_for(rising.astype(np.float32), spec, 0.6)[0].tolist() == [1, 1]
    assert budgets_for(rising.astype(np.float32), spec, 0.1)[0].tolist() == [0, 1]
    assert budgets_for(np.full((7, 4), 18.5, np.float32), spec, 0.9)[2].tolist() == [18, 18]
    near = np.full((7, 4), 3.0005, np.float32)
    assert budgets_for(near, spec, 0.9)[0].tolist() == [3, 3], "but for rounding"
    assert budgets_for(near + np.float32(0.001), spec, 0.9)[0].tolist() == [4, 4]
    np.testing.assert_allclose(
        shares_kept(np.array([[0, 18, 0.5]])), [[SHARES[0], SHARES[18], (SHARES[0] + SHARES[1]) / 2]], rtol=1e-6
    )


def test_tables_of_queries() -> None:
    _, queries, keys = text_of(5)
    spec = spec_of(layers=2, kv_heads=2, group=2, dim=3)
    whole = {b: part[:, :512] for b, part in keys.items()}
    table = budgets_of({b: rows[511] for b, rows in queries.items()}, whole, spec)
    assert table.shape == (7, 4)
    for i, mass in enumerate(MASSES):
        assert table[i].tolist() == [float(x) for b in (0, 2) for x in measured(queries[b], keys[b], 512, mass)]


def test_largest_budgets() -> None:
    assert most_budget(1000, int(SHARES[5] * 1000) + 1) == 5
    assert most_budget(1000, int(SHARES[5] * 1000)) == 4
    assert most_budget(1000, 1) == 0
    assert most_budget(0, 10) == 18
    assert most_budget(64, 64) == 18


def test_states() -> None:
    text, _, _ = text_of(3)
    text.read(600).step(8)
    state = text.policy.state()
    assert state.keys() == {f"chosen.{b}.{h}" for b in (0, 2) for h in (0, 1)} | {"needs.0", "needs.2"}
    again, twin = policy_of(WORDS, text.runtime.spec), text.policy.fork()
    again.restore(state, text.cache)
    assert {name: part.tolist() for name, part in again.state().items()} == {n: p.tolist() for n, p in state.items()}
    for name, wrong in {
        "needs.0": state["needs.0"].astype(np.float32),
        "needs.2": np.zeros(3, np.int64),
        "needs.1": state["needs.0"],
    }.items():
        with pytest.raises(SessionError, match="not of cache policy tca"):
            again.restore({name: wrong}, text.cache)
    for number in (-1, 19):
        with pytest.raises(SessionError, match="not of cache policy tca"):
            again.restore({"needs.0": np.array([0, number])}, text.cache)
    assert again.state() == {}
    text.policy.reset()
    assert text.policy.state() == {}
    assert len(twin.state()) == 6
    report = twin.report(text.cache)
    listed = [len(part) for name, part in state.items() if name.startswith("chosen")]
    assert report["chosen"] == round(sum(listed) / 4)
    assert report["measured"] == "prompt"
    assert "chosen" not in text.policy.report(text.cache)


def test_budgets_are_found_once_there_is_a_page() -> None:
    text, queries, keys = text_of(6)
    text.read(40).step(1)
    assert [len(slots) for slots in text.runtime.calls[-1].views[0].slots] == [0, 0]  # type: ignore[attr-defined]
    assert not [name for name in text.policy.state() if name.startswith("needs")]
    text.step(60)
    needs = {b: measured(queries[b], keys[b], 64, 0.9) for b in (0, 2)}
    for b, view in text.runtime.calls[-1].views.items():  # type: ignore[attr-defined]
        assert [s.tolist() for s in view.slots] == expected(queries[b], keys[b], 96, needs[b], 256)


def test_short_texts_and_whole_budgets_are_read_as_a_whole() -> None:
    text, _, _ = text_of(4, "tca:budget=1,recent=64,every=32")
    text.read(900).step(2)
    assert all(not call.views for call in text.runtime.calls)  # type: ignore[attr-defined]
    for words in ("tca:every=200", "tca:every=2,recent=64"):
        if "200" in words:
            with pytest.raises(UsageError, match="must be above window=1, at most recent=128"):
                policy_of(words, SPEC)
        else:
            policy_of(words, SPEC)
