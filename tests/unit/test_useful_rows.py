"""Which rows may pay on a host, and which of them are measured: by the rules, worked out by hand."""

from __future__ import annotations

from itertools import accumulate

import pytest

from edgedec.decoding.host_time import BetweenCalls
from edgedec.speculation.bank import Bank
from edgedec.speculation.costs import Costs
from edgedec.speculation.prices import SURE, Prices, UsefulRows, chain_length, useful
from edgedec.speculation.probing import COUNTS, RowProbe


def best_chain(p: float, seconds: list[float], rows: int) -> int:
    """The length with the most tokens a second, of all up to 64; of equal ones the shortest."""
    tokens = [rows, *(rows + t for t in accumulate(p**n for n in range(1, 65)))]
    known = range(min(64, len(seconds) - 1 - rows) + 1)
    return max(known, key=lambda n: (tokens[n] / seconds[rows + n], -n))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, SURE, 0.9999])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(
    "points", [{1: 1.0, 8: 1.3, 32: 5.0}, {1: 1.0, 2: 2.0, 32: 32.0}, {1: 1.0, 200: 1.2}, {1: 1.0, 4: 1.4, 6: 1.5}]
)
def test_a_chain_has_the_length_with_the_most_tokens_a_second(points: dict[int, float], rows: int, p: float) -> None:
    costs = Costs(points)
    assert chain_length(p, costs, rows) == best_chain(p, costs.seconds, rows)
    if rows == 1:
        assert chain_length(p, costs) == chain_length(p, costs, 1)


def test_a_node_pays_from_half_of_what_the_cheapest_row_costs_on() -> None:
    costs = Costs({1: 1.0, 3: 1.2, 5: 1.8, 64: 60.0})
    limit, least = useful(costs)
    assert limit == best_chain(SURE, costs.seconds, 1) == 4
    assert least == pytest.approx(0.1 / 2), "two rows more take 0.2, four 0.8; a token is worth 1"
    company = useful(costs, 2)
    assert company[0] == best_chain(SURE, costs.seconds, 2)
    assert company[1] == pytest.approx(0.1 * 2 / 1.1 / 2), "of two rows, the third takes 0.1 of 1.1 for two tokens"
    assert useful(Costs({1: 1.0, 128: 1.01})) == (64, 0.005), "never less than 1 in 200"
    assert useful(Costs({1: 1.0, 2: 2.5})) == (0, 1.0)
    assert chain_length(SURE, costs, 65) == 0, "of so many rows nothing is known"


def test_limits_are_renewed_in_other_company_with_more_points_and_at_intervals() -> None:
    costs, rows = Costs({1: 1.0, 8: 1.3, 64: 9.0}), UsefulRows()
    assert rows.update(costs, 20)
    assert (rows.limit, rows.least) == useful(costs, 20)
    assert not any(rows.update(costs, n) for n in (20, 22, 18, 20))
    assert rows.update(costs, 23)
    assert rows.update(costs, 20), "and back"
    assert (rows.limit, rows.least) == useful(costs, 20)
    costs.add(30, 3.0)
    assert rows.update(costs, 20)
    later = [rows.update(costs, 20) for _ in range(600)]
    assert [n for n, renewed in enumerate(later, 9) if renewed] == [257, 513], "the calls 1, 257, 513"


def test_prices_are_of_64_rows_at_most() -> None:
    costs, between = Costs({1: 1.0, 200: 200.0}), BetweenCalls()
    found = Prices.of(costs, between, 1, 0)
    assert (len(found.added), found.added[64]) == (65, pytest.approx(64.0))
    late = Prices.of(costs, between, 150, 0, reading=20)
    assert (len(late.added), late.added[30]) == (31, pytest.approx(30.0)), "200 rows are known"
    assert late.call == pytest.approx(150.0)


def test_guesses_of_long_ago_count_little() -> None:
    bank = Bank()
    bank.add_guesses(2.0, 1)
    bank.add_guesses(3.0, 2)
    assert (bank.expected, bank.accepted) == (pytest.approx(2 * 0.99 + 3), pytest.approx(0.99 + 2))
    assert bank.trust == pytest.approx((2.99 + 4) / (4.98 + 4))


# ── measuring ──


def measuring(points: dict[int, float], largest: int = 256) -> tuple[Costs, RowProbe, list[int]]:
    costs, kept = Costs(points, largest=largest), list[int]()
    return costs, RowProbe(costs, lambda: kept.append(costs.known)), kept


def test_measuring_is_paid_from_a_hundredth_of_the_time() -> None:
    """Two calls at first, 1 % of each call, 12 calls at most. A call of 8 rows for 3.5 instead of 1 takes 2.5."""
    costs, probe, _ = measuring({1: 1.0})
    assert probe.due(1, 256) == 0, "not before the first call"
    probe.add(1.0, 1.0)
    assert probe._left == pytest.approx(2.01)
    assert probe.more(1, 0) == 0
    assert probe.more(1, 6) == 0, "8 rows do not fit"
    assert probe.more(1, 7) == 7, "what rows cost is not known, and one call is tried"
    assert probe.due(1, 256) == 0, "one at a time"
    costs.add(8, 3.5)
    probe.add(3.5, 1.0)
    assert probe._left == pytest.approx(2.01 + 0.035 - 2.5)
    assert probe.due(1, 256) == 0, "in debt"
    for _ in range(200):
        probe.add(1.0, 1.0)
    assert probe._left == pytest.approx(2.01 + 0.035 - 2.5 + 2.0)
    assert probe.due(1, 256) == 3, "3 rows, for 0.7 by the curve"
    probe.add(100.0, 1.0)  # another program had the core
    assert probe._left == pytest.approx(2.01 + 0.035 - 2.5 + 2.0 + 1.0 - 12.0)
    for _ in range(3000):
        probe.add(1.0, 1.0)
    assert probe._left == pytest.approx(12.0)


def test_what_costs_more_than_can_be_saved_is_measured_too() -> None:
    """At nine tenths of the largest balance."""
    dear = Costs({1: 1.0, 2: 1.01, 3: 1.02, 256: 400.0})
    wanted, cost = RowProbe(dear)._wanted(1)
    assert wanted > 3
    assert cost == pytest.approx(min(dear.seconds[wanted] - 1.0, 0.9 * 12 * 1.0))


def test_row_counts_are_measured_in_their_order_and_as_far_as_rows_may_pay() -> None:
    costs, probe, kept = measuring({1: 1.0}, largest=20)
    probe.add(1.0, 1.0)
    asked = list[int]()
    for n in range(60):
        probe._left = 12.0
        if rows := probe.due(1, 256):
            asked.append(rows)
        rows = rows or 1
        costs.add(rows, 1.0 + 0.02 * (rows - 1) + 1e-9 * n)
        probe.add(1.0, 1.0)
    assert asked == [8, 3, 16, 2, 5, 12, 4, 6, 8, 3, 16], "each once, then the coarsest again"
    assert probe.complete(1)
    assert kept == sorted(kept)
    assert kept[0] == 4, "the first points are not kept"
    assert len(kept) == len(set(kept)) == costs.known - 3, "then each new one is"


def test_a_count_that_may_not_pay_is_left_out() -> None:
    """Alone, rows up to twice the best chain and two more; where nothing is known, up to 64 more."""
    costs, probe, _ = measuring({1: 1.0, 3: 1.1, 8: 4.0})
    assert chain_length(SURE, costs, 1) == 2
    probe.add(1.0, 1.0)
    missing = [k for k in COUNTS if 1 < k <= 1 + 2 * 2 + 2 and costs.calls(k) < 1]
    assert missing == [2, 5, 4, 6]
    assert probe._wanted(1)[0] == 2
    assert RowProbe(Costs({100: 3.0}, largest=256))._wanted(100)[0] == 128
    assert RowProbe(Costs({100: 3.0}, largest=120))._wanted(100)[0] == 0
    assert RowProbe(Costs({}, largest=120))._wanted(1) == (0, 0.0), "the first calls show what their own rows cost"


def test_points_that_contradict_one_another_are_measured_again() -> None:
    costs = Costs({1: 1.0, 2: 1.5, 3: 1.0})
    assert costs.doubted == [2, 3]
    assert RowProbe(costs)._wanted(1)[0] == 2
    costs.add(2, 1.5)
    assert RowProbe(costs)._wanted(1)[0] == 3, "that of fewer calls"


def test_drafts_of_texts_that_wait_for_each_other_take_their_share_of_a_pause() -> None:
    """All of them together prolong a call by its own time and the pause, whatever they would gain."""
    costs = Costs({1: 0.010, 4: 0.012, 128: 0.074})
    alone, company = UsefulRows(), UsefulRows()
    assert alone.update(costs, 1, 0.05)
    assert alone.limit == useful(costs)[0]
    assert company.update(costs, 4)
    assert company.limit == useful(costs, 4)[0] > 30
    assert company.update(costs, 5, 0.05)
    taken = [costs.seconds[5 + n] - costs.seconds[5] for n in (company.limit, company.limit + 1)]
    assert taken[0] <= (costs.seconds[5] + 0.05) / 5 < taken[1]
    assert 10 < company.limit < 30
    two, limit = Costs({1: 0.010, 2: 0.011, 128: 0.2}), company.limit
    assert company.update(two, 2, 0.001)
    assert 0 < company.limit < min(limit, useful(two, 2)[0]), "two wait for each other already"
    assert company.update(Costs({1: 0.01, 8: 0.012, 128: 0.9}), 8, 0.001)
    assert company.limit == 0, "a row takes longer than that"
