"""Rows of a call are divided between clients, then between their requests; counted, without a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from jobs import cache

from edgedec.decoding.allocation import Grant, Offer, Others, allocate
from edgedec.decoding.context import Context
from edgedec.decoding.scheduler.batch import Batch
from edgedec.decoding.scheduler.job import Job, grant_offers
from edgedec.decoding.scheduler.shares import RowShares, divide
from edgedec.runtime import Capabilities
from edgedec.speculation.costs import Costs
from edgedec.testing.fakes import FakeRuntime, tiny_spec

MOST = 256


@dataclass(eq=False)
class Text:
    """A text of a client's request ("a1"), whose calls have so many rows: the chunks of its prompt, then one each."""

    name: str
    chunks: list[int] = field(default_factory=list)
    own: int = 1
    calls: list[int] = field(default_factory=list)

    @property
    def owner(self) -> tuple[str, str]:
        return self.name[0], self.name

    @property
    def rows(self) -> int:
        return self.chunks[0] if self.chunks else self.own

    def waits(self, until: int) -> int:
        """The most calls in a row without it."""
        ran = [-1, *self.calls, until]
        return max(after - before - 1 for before, after in pairwise(ran))


def reads(name: str, chunks: int, size: int = 128) -> Text:
    return Text(name, [size] * chunks, own=0)


def run(texts: Sequence[Text], calls: int, shares: RowShares | None = None) -> list[int]:
    """The rows of these calls, of texts that take turns as in a batch."""
    shares, running, found = shares or RowShares(), list(texts), list[int]()
    for call in range(calls):
        if not (running := [text for text in running if text.rows]):
            break
        shares.keep(text.owner for text in running)
        chosen = shares.choose(running, [text.rows for text in running], MOST)
        assert len(set(chosen)) == len(chosen) > 0
        shares.note(chosen)
        running = [*(text for text in running if text not in chosen), *chosen]
        found.append(sum(text.rows for text in chosen))
        for text in chosen:
            text.calls.append(call)
            del text.chunks[:1]
    assert max(found) <= MOST
    return found


@pytest.mark.parametrize("many", [1, 8, 60])
@pytest.mark.parametrize("same", [True, False], ids=["one request", "requests"])
def test_one_does_not_wait_for_the_many_of_another(many: int, same: bool) -> None:
    """Neither a text that is generated nor one that is read, at whatever place they stand."""
    for place in (0, many // 2, many):
        texts = [reads("a1" if same else f"a{i}", 40) for i in range(many)]
        token, prompt = Text("b1"), reads("c1", 8)
        texts[place:place] = [token, prompt]
        run(texts, 20)
        assert token.waits(20) == 0
        assert prompt.waits(prompt.calls[-1]) <= 1
        # Two clients read, and one prompt fits beside the token: every second call.
        assert prompt.calls[-1] <= 16


def test_requests_of_one_client_share_in_the_same_way() -> None:
    many, token, prompt = [reads("a1", 40) for _ in range(20)], Text("a2"), reads("a3", 8)
    run([*many, token, prompt], 20)
    assert token.waits(20) == 0
    assert prompt.calls[-1] <= 16
    assert prompt.waits(prompt.calls[-1]) <= 1


def test_clients_come_before_requests() -> None:
    """Ten requests of a client have together what the one of another has."""
    many, one = [reads(f"a{i}", 40) for i in range(10)], reads("b1", 40)
    run([*many, one], 20)
    assert len(one.calls) == 20
    assert [len(text.calls) for text in many] == [2] * 10


@pytest.mark.parametrize(
    "names",
    [["a1"] * 200, [f"a{i}" for i in range(200)], [f"{chr(200 + i)}1" for i in range(200)]],
    ids=["a request", "requests", "clients"],
)
@pytest.mark.parametrize("name", ["b1", "a1", "a900"])
def test_nobody_starves_where_many_tokens_leave_no_room_for_a_prompt(names: list[str], name: str) -> None:
    tokens, prompt = [Text(name) for name in names], reads(name, 10)
    rows = run([*tokens, prompt], 20)
    # A request with a token and a prompt waits for itself, too.
    most = 2 if (name, len(set(names))) == ("a1", 200) else 1
    assert prompt.waits(prompt.calls[-1] if not prompt.chunks else 20) <= most
    assert len(prompt.calls) >= 6
    assert max(text.waits(20) for text in tokens) <= 1
    assert min(rows) >= 200


def test_what_one_does_not_use_is_not_kept_for_later() -> None:
    """A client whose text had a row a call may not fill calls by itself afterwards, nor may one that comes new."""
    shares, token, many = RowShares(), Text("b1"), [reads(f"a{i}", 400) for i in range(4)]
    run([token, *many], 100, shares)
    late, new = [reads(f"b{i}", 40) for i in range(3)], [reads(f"c{i}", 40) for i in range(3)]
    before = sum(len(text.calls) for text in many)
    run([*late, *many, *new], 30, shares)
    had = [sum(len(text.calls) for text in texts) for texts in (late, many, new)]
    had[1] -= before
    assert sum(had) == 60
    assert all(abs(n - 20) <= 2 for n in had), had


def test_an_owner_without_anything_left_is_counted_as_the_least_of_those_beside_it_that_wait() -> None:
    shares = RowShares()
    had = {"a1": 100, "a2": 60, "a3": 10, "a4": 80, "b1": 50, "b2": 7, "c1": 3}
    shares._had.update({(name[0], name): n for name, n in had.items()})
    shares._lift([("a", "a3"), ("a", "a4"), ("b", "b2"), ("c", "c1")], [("a", "a1"), ("a", "a2"), ("b", "b1")])
    found = {name: shares._had[name[0], name] for name in had}
    assert found == {**had, "a3": 60, "a4": 80, "b2": 50}, "of the same client, and never less than before"


def test_only_rows_that_others_wait_for_are_counted() -> None:
    shares, texts = RowShares(), [Text(f"{name}1", own=128) for name in "abc"]
    for few in (2, 3, 2, 2):
        before = dict(shares._had)
        shares.note(shares.choose(texts[:few], [128] * few, MOST))
        assert (shares._had == before) is (few == 2)


def test_texts_of_one_owner_take_turns_as_they_stand() -> None:
    rng = random.Random(5)
    for _ in range(200):
        rows = [rng.choice([1, 2, 17, 128, 256]) for _ in range(rng.randrange(1, 40))]
        texts = [Text("a1", own=n) for n in rows]
        taken, expected = 0, []
        for text, n in zip(texts, rows, strict=True):
            if not expected or taken + n <= MOST:
                expected.append(text)
                taken += n
        assert RowShares().choose(texts, rows, MOST) == expected


def test_what_a_batch_leaves_out_comes_first_in_its_next_call() -> None:
    """Three prompts of one owner, of which two fit into a call: each is in two of three calls."""
    batch, texts = Batch(FakeRuntime(tiny_spec(), largest_call=MOST)), [reads("a1", 9), reads("a1", 9), reads("a1", 9)]
    for text in texts:
        text.is_own = False  # type: ignore[attr-defined]
    batch._running = list(texts)  # type: ignore[arg-type]
    ran = [[texts.index(text) for text in batch._next_jobs()] for _ in range(6)]  # type: ignore[arg-type]
    assert ran == [[0, 1], [2, 0], [1, 2], [0, 1], [2, 0], [1, 2]]


def test_what_fits_runs() -> None:
    texts = [Text(f"{name}1", own=20) for name in "abcdefghijkl"]
    shares = RowShares()
    assert shares.choose(texts, [20] * 12, MOST) == texts
    large = [Text("a1", own=300)]
    assert shares.choose([*large, *texts], [300, *[20] * 12], MOST), "a call that is too large is left to the runtime"


def test_owners_that_left_are_forgotten() -> None:
    shares = RowShares()
    run([reads(f"{name}1", 3) for name in "abcdef"], 4, shares)
    assert shares._had
    shares.keep([("a", "a1")])
    assert set(shares._had) <= {("a",), ("a", "a1")}
    shares.keep([])
    assert not shares._had
    assert not shares._left


# ── drafted rows ──


@pytest.mark.parametrize(
    ("room", "wanted", "owners", "found"),
    [
        (10, [9, 9, 2], ["a1", "a2", "b1"], [4, 4, 2]),
        (10, [9, 9, 9], ["a1", "a2", "b1"], [2, 3, 5]),
        (12, [9, 9, 9], ["a1", "a1", "a2"], [3, 3, 6]),
        (100, [9, 9, 2], ["a1", "a2", "b1"], [9, 9, 2]),
        (0, [9, 2], ["a1", "b1"], [0, 0]),
        (7, [9, 9], ["a1", "b1"], [3, 4]),
    ],
)
def test_room_is_divided(room: int, wanted: list[int], owners: list[str], found: list[int]) -> None:
    assert divide(room, wanted, [(name[0], name) for name in owners]) == found


def costs(largest: int) -> Costs:
    """Rows cost little, so that every likely guess pays."""
    return Costs({k: 1.0 + 0.001 * k for k in (1, 2, 4, 8, 16, 32, 64)}, largest=largest)


def test_guesses_of_one_have_room_beside_the_better_ones_of_another() -> None:
    offers = [Offer([0.9] * 10, 1, 0, costs(24)) for _ in range(6)] + [Offer([0.8, 0.7, 0.6, 0.0001], 1, 0, costs(24))]
    owners = [("a", "a1")] * 6 + [("b", "b1")]
    alone = allocate(offers, Others(), 24)
    assert [grant.nodes for grant in alone] == [10, 7, 0, 0, 0, 0, 0], "all room goes to the better ones"
    found = allocate(offers, Others(), 24, divide=lambda room, wanted: divide(room, wanted, owners))
    assert [grant.nodes for grant in found] == [2, 2, 2, 2, 3, 3, 3], "what pays, not the last one"
    assert {grant.drafted for grant in found} == {17}


def test_all_room_that_pays_is_used() -> None:
    """Rows after a step of the costs are nearly free: also guesses that would not pay at the mean cost of a row run."""
    step = Costs({k: 1.0 if k <= 10 else 2.0 for k in (*range(1, 13), 24, 64)}, largest=64)
    offers = [Offer([0.9] * 15 + [0.2] * 20, 1, 0, step) for _ in range(2)]
    alone = allocate(offers, Others(), 64)
    assert sum(grant.nodes for grant in alone) == 62
    found = allocate(offers, Others(), 64, divide=lambda room, wanted: divide(room, wanted, [("a",), ("b",)]))
    assert sum(grant.nodes for grant in found) == 62


def test_without_want_of_room_guesses_run_as_they_pay() -> None:
    offers = [Offer([0.9] * 4, 1, 0, costs(64)), Offer([0.5] * 4, 1, 0, costs(64))]
    assert allocate(offers, Others(), 64, divide=lambda room, wanted: [0, 0]) == allocate(offers, Others(), 64)


def test_a_batch_divides_between_owners() -> None:
    """Six texts of one client and one of another; with one owner the best guesses run."""
    for owners in (["a1"] * 6 + ["b1"], ["a1"] * 7):
        found: dict[int, Grant] = {}

        def offering(i: int, p: float, found: Any = found) -> Any:
            found[i] = yield Offer([p] * 10, 1, 0, costs(24))

        given = [(i, offering(i, 0.9 if i < 6 else 0.8)) for i in range(7)]
        jobs = [Job(Context([1], 1, cache(0)), loop, lambda token: None, 8) for _, loop in given]
        for job, name in zip(jobs, owners, strict=True):
            job.owner = name[0], name
            job.advance()
        grant_offers(jobs, 6, Capabilities((), (), largest_call=24))
        assert (found[6].nodes > 0) is (owners[6] == "b1")
        assert sum(grant.nodes for grant in found.values()) == 17
