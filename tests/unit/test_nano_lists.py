"""The lessons on lists that nano-block learns from: what each operation asks, and what answers it."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "models" / "nano"


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(RECIPE))
    for name in ("lists", "names"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import lists

    yield lists
    for name in ("lists", "names"):
        sys.modules.pop(name, None)


GIVEN = ["Tom", "Ben", "Amy"]


@pytest.mark.parametrize(
    ("kind", "asked", "answer"),
    [
        ("copy", "Copy the list.", GIVEN),
        ("reverse", "Reverse the list.", ["Amy", "Ben", "Tom"]),
        ("sort", "Sort the list.", ["Amy", "Ben", "Tom"]),
    ],
)
def test_what_is_fixed_by_the_list(lists: Any, kind: str, asked: str, answer: list[str]) -> None:
    assert lists.OPERATIONS[kind](GIVEN, random.Random(0)) == (asked, answer)


def test_what_the_question_names_is_done(lists: Any) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        order, answer = lists.OPERATIONS["remove"](GIVEN, rng)
        (gone,) = set(GIVEN) - set(answer)
        assert order == f"Take {gone} out of the list."
        assert answer == [name for name in GIVEN if name != gone]
        order, answer = lists.OPERATIONS["replace"](GIVEN, rng)
        (at,) = (i for i in range(3) if answer[i] != GIVEN[i])
        assert answer[at] not in GIVEN
        assert order == f"Write {answer[at]} instead of {GIVEN[at]} in the list."
        order, answer = lists.OPERATIONS["insert"](GIVEN, rng)
        (new,) = set(answer) - set(GIVEN)
        assert order == f"Put {new} before {answer[answer.index(new) + 1]} in the list."
        assert [name for name in answer if name != new] == GIVEN


def test_what_is_free_is_drawn(lists: Any) -> None:
    orders = {tuple(lists.OPERATIONS["shuffle"](GIVEN, random.Random(seed))[1]) for seed in range(60)}
    assert len(orders) == 6
    places = set()
    for seed in range(60):
        answer = lists.OPERATIONS["replace_any"](GIVEN, random.Random(seed))[1]
        (at,) = (i for i in range(3) if answer[i] != GIVEN[i])
        places.add(at)
    assert places == {0, 1, 2}


def test_a_lesson_is_a_prompt_and_its_answer(lists: Any) -> None:
    for seed in range(20):
        prompt, answer = lists.lesson(random.Random(seed), "copy")
        order, given, mark, end = prompt.split("\n\n")
        assert (order, mark, end) == ("Copy the list.", "List:", "")
        assert given == answer
        assert 3 <= len(given.split(", ")) <= 6


def test_parts_are_answered_one_by_one_and_together(lists: Any) -> None:
    kinds = set()
    for seed in range(20):
        prompt, answer = lists.parts(random.Random(seed))
        order, given, _, _ = prompt.split("\n\n")
        kinds.add(order)
        *answers, whole = answer.split("\n")
        assert whole == "All: " + ", ".join(answers)
        asked = given.split("\n")
        assert len(asked) == len(answers) in (2, 3)
        if order.startswith("Copy"):
            assert answers == asked
        if order.startswith("Reverse"):
            assert answers == [", ".join(reversed(line.split(", "))) for line in asked]
    assert kinds == {f"{word} the lists, one by one." for word in ("Copy", "Reverse", "Sort")}
