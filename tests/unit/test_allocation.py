"""One decision for all sequences of a call: as many tokens a second as any choice of nodes could give."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.decoding.allocation import MARGIN, Grant, Offer, Others, allocate, best_of_one, grant_alone, text_cells
from edgedec.runtime import Capabilities
from edgedec.speculation.costs import Costs

# A call of a model of 1.2 billion weights on a few cores: reading the weights, then arithmetic.
LARGE = Costs({1: 0.040, 4: 0.042, 8: 0.048, 16: 0.075, 32: 0.140, 64: 0.270, 128: 0.530, 256: 1.05})


def offers(*chances: Sequence[float], costs: Costs = LARGE, context: int = 0) -> list[Offer]:
    return [Offer(own, 1, context, costs) for own in chances]


def chain(p: float, n: int = 12) -> list[float]:
    """Path chances of a chain each of whose tokens is accepted with p."""
    return [p**depth for depth in range(1, n + 1)]


def rate(costs: Costs, many: Sequence[Offer], counts: Sequence[int], rows: int = 0, tokens: int = 0) -> float:
    """Expected tokens a second if each sequence runs so many nodes."""
    drafted = sum(sum(offer.chances[:n]) for offer, n in zip(many, counts, strict=True))
    total = rows + len(many) + sum(counts)
    return (tokens + len(many) + drafted) / costs.seconds[total]


def test_the_worked_example() -> None:
    costs = Costs({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 2.0})
    many = offers([0.9, 0.2], [0.5], costs=costs)
    assert [grant.nodes for grant in allocate(many, Others(), 256)] == [1, 1]
    (first, _) = allocate(many, Others(), 256)
    assert first.drafted == 2
    assert first.speed == pytest.approx(3.4 / 1.3 / (2 / 1.1))


def test_of_one() -> None:
    costs = Costs({1: 1.0, 2: 1.1, 3: 1.2, 4: 4.0})
    assert grant_alone(Offer([0.9, 0.8, 0.7], 1, 0, costs), Capabilities((), ())) == Grant(
        2, 2, pytest.approx(2.7 / 1.2)
    )
    assert best_of_one(Offer([0.05], 1, 0, costs), Others(), 256) == Grant(0, 0, 1.0)
    assert best_of_one(Offer([], 1, 0, costs), Others(), 256).nodes == 0
    beside = best_of_one(Offer([0.9, 0.8], 1, 0, costs), Others(1, 0, 1, 1), 256)
    assert beside == Grant(1, 1, pytest.approx(2.9 / 1.2 / (2 / 1.1)))


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Offer], Costs]:
    seconds = [draw(st.floats(0.1, 1.0))]
    for _ in range(9):
        seconds.append(seconds[-1] + draw(st.sampled_from([0.0, 0.01, 0.05, 0.3])))
    costs = Costs(dict(enumerate(seconds, 1)))
    many = []
    for _ in range(draw(st.integers(1, 3))):
        chances, last = [], 1.0
        for _ in range(draw(st.integers(0, 3))):
            last *= draw(st.floats(0.05, 0.99))
            chances.append(last)
        many.append(Offer(chances, 1, 0, costs))
    return many, costs


@settings(max_examples=300, deadline=None)
@given(situations())
def test_no_other_choice_gives_more_tokens_a_second(situation: tuple[list[Offer], Costs]) -> None:
    many, costs = situation
    grants = allocate(many, Others(), 256)
    found = rate(costs, many, [grant.nodes for grant in grants])
    every = product(*(range(len(offer.chances) + 1) for offer in many))
    choices = [counts for counts in every if len(many) + sum(counts) <= costs.most]
    best = max(rate(costs, many, counts) for counts in choices)
    assert found <= best * (1 + 1e-9)
    plain = rate(costs, many, [0] * len(many))
    if found != pytest.approx(best, rel=1e-9):  # what the best one promises is too near to what it costs
        assert found == plain
        chosen = max(choices, key=lambda counts: rate(costs, many, counts))
        tokens = sum(sum(offer.chances[:n]) for offer, n in zip(many, chosen, strict=True))
        extra = costs.seconds[len(many) + sum(chosen)] - costs.seconds[len(many)]
        assert tokens < (MARGIN + 1e-9) * plain * extra
    assert sum(grant.nodes for grant in grants) == grants[0].drafted


@settings(max_examples=200, deadline=None)
@given(situations(), st.integers(0, 4))
def test_one_sequence_is_a_batch_of_one(situation: tuple[list[Offer], Costs], others: int) -> None:
    """The plain loop and the vectors agree."""
    (offer, *_), costs = situation
    beside = Others(others, 0, others, others)
    alone = best_of_one(offer, beside, 256)
    empty = Offer([], 0, 0, costs, 0, 0.0)
    together = allocate([offer, empty], beside, 256)[0]
    assert alone.nodes == together.nodes
    assert alone.speed == pytest.approx(together.speed)


@pytest.mark.parametrize("n", [1, 4, 8, 16, 64])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.7, 0.9])
def test_a_batch_is_never_slower_and_near_the_best_fixed_length(n: int, p: float) -> None:
    """By the curve: 8 texts with guesses right 7 times of ten made 0.92 of plain when each decided by itself."""
    many = offers(*[chain(p)] * n)
    counts = [grant.nodes for grant in allocate(many, Others(), 256)]
    found, plain = rate(LARGE, many, counts), rate(LARGE, many, [0] * n)
    lengths = [length for length in range(13) if n * (1 + length) <= 256]
    best = max(rate(LARGE, many, [length] * n) for length in lengths)
    assert found >= plain
    assert found >= 0.98 * best


def test_drafts_are_given_out_beside_more_than_32_rows() -> None:
    """Nobody is refused for how many others there are, only for what rows cost."""
    flat = Costs({1: 1.0, 256: 1.2})
    grants = allocate(offers(*[chain(0.9)] * 64, costs=flat), Others(), 256)
    assert sum(grant.nodes for grant in grants) == 192


def test_who_guesses_well_gets_the_rows() -> None:
    many = offers(chain(0.95), *[chain(0.2)] * 7)
    counts = [grant.nodes for grant in allocate(many, Others(), 256)]
    assert counts[0] >= 4
    assert sum(counts[1:]) <= 1


def test_rows_of_prompts_do_not_make_poor_guesses_worth_it() -> None:
    """Beside a long prompt a drafted row adds little to the call; it still has to pay by what tokens cost else."""
    slope = Costs({1: 1.0, 2: 1.6, 256: 154.0})
    poor = offers([0.3, 0.2], [0.3, 0.2], costs=slope)
    reading = Others(120, 0, 0, 0)
    assert [grant.nodes for grant in allocate(poor, Others(), 256)] == [0, 0]
    assert [grant.nodes for grant in allocate(poor, reading, 256)] == [0, 0]
    assert best_of_one(poor[0], reading, 256).nodes == 0
    assert best_of_one(offers([0.95], costs=slope)[0], reading, 256).nodes == 1


def test_a_long_text_makes_rows_dearer() -> None:
    costs = Costs({1: 0.004, 16: 0.006}, per_cell=1e-6)
    short, long = (best_of_one(offers(chain(0.6), costs=costs, context=n)[0], Others(), 256) for n in (10, 4000))
    assert short.nodes > long.nodes > 0


def test_the_largest_call_and_static_shapes_are_kept() -> None:
    flat = Costs({1: 1.0, 256: 1.001})
    many = offers(chain(0.9), chain(0.9), costs=flat)
    assert sum(grant.nodes for grant in allocate(many, Others(), 9)) == 7
    assert allocate(many, Others(), 2)[0].nodes == 0
    assert allocate(many, Others(8, 0, 8, 8), 9)[0].nodes == 0
    # A call of 3 rows is computed as one of 4: the fourth is free.
    steps = Costs({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 3.0, 8: 3.3})
    for grants in (allocate(offers(chain(0.5), [], costs=steps), Others(), 8, (1, 4, 8)),):
        assert grants[0].nodes == 2
    assert best_of_one(offers(chain(0.5), costs=steps)[0], Others(), 8, (1, 4, 8)).nodes == 3


def test_equal_chances_keep_parents_before_children() -> None:
    flat = Costs({1: 1.0, 4: 1.05, 5: 9.0})
    grants = allocate(offers([0.5, 0.5, 0.5], [0.5, 0.5], costs=flat), Others(), 256)
    assert sum(grant.nodes for grant in grants) == 2


# ── every part of the sum ──


def formula(
    many: Sequence[Offer], others: Others, counts: Sequence[int], buckets: Sequence[int]
) -> tuple[float, float]:
    """By the module's docstring: how many times the rate of plain decoding these counts give, and the tokens that the
    call is credited with besides the drafted ones."""
    costs, n = many[0].costs, sum(counts)

    def at(rows: int) -> float:
        return costs.seconds[min((size for size in buckets if size >= rows), default=rows)]

    rows = others.rows + sum(offer.rows for offer in many)
    decoding = others.decoding + sum(offer.rows - offer.reading for offer in many)
    cells = others.cells + sum(text_cells(offer.rows, offer.context) for offer in many)
    between, tokens = sum(offer.between for offer in many), others.tokens + sum(offer.tokens for offer in many)
    plain = at(rows) + costs.per_cell * cells + between
    alone = at(decoding) + costs.per_cell * cells * decoding / rows + between
    without = tokens * plain / alone  # as many as plain decoding gives beside the prompt's rows
    took = at(rows + n) + between + sum(offer.extra for offer, k in zip(many, counts, strict=True) if k)
    took += costs.per_cell * (cells + sum(k * offer.context for offer, k in zip(many, counts, strict=True)) / 4)
    drafted = sum(sum(offer.chances[:k]) for offer, k in zip(many, counts, strict=True))
    return (without + drafted) / took / (tokens / alone), without


def likeliest(many: Sequence[Offer], n: int) -> list[int]:
    """How many nodes of each offer are among the n likeliest of all."""
    merged = sorted((-chance, i) for i, offer in enumerate(many) for chance in offer.chances)
    return [sum(owner == i for _, owner in merged[:n]) for i in range(len(many))]


def best_by_hand(
    many: Sequence[Offer], others: Others, largest: int, buckets: Sequence[int]
) -> tuple[list[int], float]:
    known = min(largest, len(many[0].costs.seconds) - 1)
    room = max((size for size in buckets if size <= known), default=known)
    room -= others.rows + sum(offer.rows for offer in many)
    found, speed, without = [0] * len(many), 1.0, 0.0
    for n in range(1, min(room, sum(len(offer.chances) for offer in many)) + 1):
        rate, without = formula(many, others, likeliest(many, n), buckets)
        if rate > speed:
            found, speed = likeliest(many, n), rate
    gain = sum(sum(offer.chances[:k]) for offer, k in zip(many, found, strict=True))
    worth = speed > 1 and gain >= MARGIN * ((without + gain) / speed - without)
    return (found, speed) if worth else ([0] * len(many), 1.0)


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("buckets", [(), (2, 5, 9, 16)])
def test_a_grant_is_the_best_by_the_formula(sequences: int, buckets: tuple[int, ...]) -> None:
    """With prompts, other sequences' calls, contexts and the time between calls."""
    rng, granted = np.random.default_rng(sequences), 0
    for _ in range(150):
        costs = Costs(dict(enumerate(1.0 + np.cumsum(rng.choice([0.0, 0.02, 0.1, 0.4], 20)), 1)), per_cell=1e-4)
        many = []
        for _ in range(sequences):
            chances = np.cumprod(rng.uniform(0.3, 0.99, rng.integers(0, 5))).tolist()
            rows, times = int(rng.integers(1, 3)), rng.uniform(0.0, 0.1, 2)
            context, reading = int(rng.integers(0, 4000)), int(rng.integers(0, rows))
            many.append(Offer(chances, rows, context, costs, reading, float(rng.integers(1, 3)), *times.tolist()))
        n = int(rng.integers(0, 4))
        others = Others(n, 900 * n, int(rng.integers(0, n + 1)), n)
        largest = int(rng.choice([8, 15, 256]))
        found = allocate(many, others, largest, buckets)
        counts, speed = best_by_hand(many, others, largest, buckets)
        assert [grant.nodes for grant in found] == counts
        assert {grant.drafted for grant in found} == {sum(counts)}
        assert found[0].speed == pytest.approx(speed)
        if sequences == 1:
            assert best_of_one(many[0], others, largest, buckets) == found[0]
        granted += sum(counts) > 0
    assert granted > 25, "it is about drafts that run"


def test_the_attention_of_rows() -> None:
    assert [text_cells(rows, 100) for rows in (1, 2, 3, 8)] == [100, 125, 150, 275]
    assert text_cells(3, 0) == 0


def test_a_long_offer_alone_is_what_it_is_beside_an_empty_one() -> None:
    """More nodes than the plain loop is for."""
    flat = Costs({1: 1.0, 256: 1.01})
    (offer,) = offers([0.9] * 60, costs=flat)
    assert allocate([offer], Others(), 256) == [best_of_one(offer, Others(), 256)]
    assert allocate([offer], Others(), 256)[0].nodes == 60


def test_a_call_beyond_what_was_measured_has_no_room() -> None:
    costs = Costs({1: 1.0, 4: 1.1})
    for beside in (Others(3, 0, 3, 3), Others(9, 0, 9, 9)):
        assert allocate(offers([0.9], [0.9], costs=costs), beside, 256) == [Grant(0, 0, 1.0)] * 2
        assert allocate(offers([0.9], costs=costs), beside._replace(rows=beside.rows + 1), 256) == [Grant(0, 0, 1.0)]
    assert allocate(offers([0.9], costs=costs), Others(2, 0, 2, 2), 256)[0].nodes == 1


def test_a_draft_pays_with_a_margin() -> None:
    """A fifth more tokens than plain decoding gives in its time: not a little less, and a little more."""
    costs = Costs({1: 1.0, 2: 1.5})
    for chance, nodes in ((0.59, 0), (0.61, 1)):
        for many in (
            offers([chance], costs=costs),
            [*offers([chance], costs=costs), Offer([], 0, 0, costs, tokens=0.0)],
        ):
            assert allocate(many, Others(), 256)[0].nodes == nodes
