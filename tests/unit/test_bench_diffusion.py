"""Tasks on lists, their answers, and `edgedec bench diffusion`: what it reports and refuses; never how fast."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from edgedec.bench.list_tasks import MARK, NAMES, OPERATIONS, ListTask, list_task
from edgedec.cli._app import app

RECIPE = Path(__file__).parents[2] / "models" / "nano"
GIVEN = ["Tom", "Ben", "Amy"]


def asked(kind: str, seed: int) -> tuple[str, list[str]]:
    return OPERATIONS[kind](list(GIVEN), random.Random(seed), NAMES)


# ---- operations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("copy", "Copy the list.", GIVEN),
        ("reverse", "Reverse the list.", ["Amy", "Ben", "Tom"]),
        ("sort", "Sort the list.", ["Amy", "Ben", "Tom"]),
    ],
)
def test_what_is_fixed_by_the_list(kind: str, question: str, answer: list[str]) -> None:
    assert asked(kind, 0) == (question, answer)


def test_what_the_question_names_is_done() -> None:
    for seed in range(30):
        order, answer = asked("remove", seed)
        (gone,) = set(GIVEN) - set(answer)
        assert order == f"Take {gone} out of the list."
        assert answer == [name for name in GIVEN if name != gone]
        order, answer = asked("replace", seed)
        (at,) = (i for i in range(3) if answer[i] != GIVEN[i])
        assert answer[at] not in GIVEN
        assert order == f"Write {answer[at]} instead of {GIVEN[at]} in the list."
        order, answer = asked("insert", seed)
        (new,) = set(answer) - set(GIVEN)
        assert order == f"Put {new} before {answer[answer.index(new) + 1]} in the list."
        assert [name for name in answer if name != new] == GIVEN


def test_what_is_free_is_drawn() -> None:
    assert len({tuple(asked("shuffle", seed)[1]) for seed in range(60)}) == 5  # never the list itself
    places = set()
    for seed in range(60):
        answer = asked("replace_random", seed)[1]
        (at,) = (i for i in range(3) if answer[i] != GIVEN[i])
        places.add(at)
    assert places == {0, 1, 2}
    assert {tuple(asked("remove_random", seed)[1]) for seed in range(60)} == {
        ("Ben", "Amy"), ("Tom", "Amy"), ("Tom", "Ben")}  # fmt: skip
    found = [asked("insert_random", seed)[1] for seed in range(60)]
    assert {next(i for i, name in enumerate(answer) if name not in GIVEN) for answer in found} == {0, 1, 2, 3}


def test_what_a_place_names_is_done() -> None:
    """Names are counted from one; a new one may come after the last."""
    for kind, said, places in (("insert_index", "as name ", 4), ("remove_index", "name ", 3),
                               ("replace_index", "of name ", 3)):  # fmt: skip
        seen = set()
        for seed in range(60):
            order, answer = asked(kind, seed)
            at = int(order.split(said)[1].split()[0]) - 1
            seen.add(at)
            new = [name for name in answer if name not in GIVEN]
            kept = {"insert_index": GIVEN[:at] + new + GIVEN[at:], "remove_index": GIVEN[:at] + GIVEN[at + 1 :],
                    "replace_index": GIVEN[:at] + new + GIVEN[at + 1 :]}  # fmt: skip
            assert answer == kept[kind]
            assert not new or new[0] in order
        assert seen == set(range(places))


def test_a_task_is_a_question_with_its_list() -> None:
    for seed in range(20):
        task = list_task("copy", random.Random(seed))
        order, given, mark, end = task.prompt.split("\n\n")
        assert (order, f"\n\n{mark}\n\n", end) == ("Copy the list.", MARK, "")
        assert tuple(given.split(", ")) == task.given == task.answer
        assert 3 <= len(task.given) <= 6


@pytest.mark.parametrize(
    ("kind", "answer", "right", "wrong"),
    [
        ("copy", ("A", "B", "C"), ["A, B, C", " A, B, C\n"], ["A, B", "A, B, C, D", "A,B,C", "B, A, C", ""]),
        ("shuffle", ("C", "A", "B"), ["A, C, B", "B, C, A"], ["A, B, C", "A, A, B", "A, B", "A, B, C, C", "A, B, D"]),
        ("remove_random", ("B", "C"), ["B, C", "A, C", "A, B"], ["A, B, C", "A", "C, B", "A, D", "A, A"]),
        (
            "insert_random",
            ("A", "X", "B", "C"),
            ["X, A, B, C", "A, X, B, C", "A, B, C, X"],
            ["A, B, C", "A, X, C, B", "A, X, X, B, C", "A, Y, B, C", "X, A, B"],
        ),
        (
            "replace_random",
            ("A", "X", "C"),
            ["X, B, C", "A, X, C", "A, B, X"],
            ["A, B, C", "X, X, C", "A, B, Y", "A, B, C, X", "A, X"],
        ),
    ],
)
def test_what_is_right(kind: str, answer: tuple[str, ...], right: list[str], wrong: list[str]) -> None:
    task = ListTask(kind, "", ("A", "B", "C"), answer)
    assert [text for text in right if not task.right(text)] == []
    assert [text for text in wrong if task.right(text)] == []


# ---- nano's lessons --------------------------------------------------------------------------------


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RECIPE))
    for name in ("lists", "names"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import lists

    yield lists
    for name in ("lists", "names"):
        sys.modules.pop(name, None)


def test_parts_are_answered_one_by_one_and_together(lessons: Any) -> None:
    orders = set()
    for seed in range(20):
        prompt, answer = lessons.parts(random.Random(seed))
        order, given, _, _ = prompt.split("\n\n")
        orders.add(order)
        *answers, whole = answer.split("\n")
        assert whole == "All: " + ", ".join(answers)
        lines = given.split("\n")
        assert len(lines) == len(answers) in (2, 3)
        if order.startswith("Copy"):
            assert answers == lines
        if order.startswith("Reverse"):
            assert answers == [", ".join(reversed(line.split(", "))) for line in lines]
    assert orders == {f"{word} the lists, one by one." for word in ("Copy", "Reverse", "Sort")}


def test_a_lesson_is_a_prompt_and_its_answer(lessons: Any) -> None:
    prompt, answer = lessons.lesson(random.Random(1), "reverse")
    assert prompt.startswith("Reverse the list.\n\n")
    assert answer.split(", ")[::-1] == prompt.split("\n\n")[1].split(", ")


# ---- the command -----------------------------------------------------------------------------------


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "diffusion", *arguments])


def test_ways_are_compared_on_the_same_texts() -> None:
    done = bench("--limit", "2", "--tasks", "copy,sort", "-n", "24", "--threads", "1", "--json")
    assert done.exit_code == 0, done.output
    ways = json.loads(done.stdout)["ways"]
    assert list(ways) == ["off", "schedule=static", "schedule=threshold"]
    for costs in ways.values():
        assert list(costs) == ["copy", "sort"]
        assert {cost["texts"] for cost in costs.values()} == {2}
    plain, one, several = (ways[way]["copy"] for way in ways)
    assert plain["passes"] == plain["tokens"]
    # A fill of one place a pass; several at once take fewer passes, and each pass computes rows.
    assert several["passes"] < one["passes"] < one["rows"]
    assert one["tokens_per_pass"] == pytest.approx(one["tokens"] / one["passes"], abs=1e-3)


def test_texts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "Once", "answer": "no such text"}\n', "utf-8")
    done = bench("--texts", str(path), "--diffusion", "schedule=static", "-n", "8", "--threads", "1")
    assert done.exit_code == 0, done.output
    assert "0/1" in done.stdout
    assert "own" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [("[]\n", "own.jsonl: line 1 is no object"), ('{"prompt": "a"}\n', "line 1 is no object"), ("", "no tasks")],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(content, "utf-8")
    done = bench("--texts", str(path))
    assert done.exit_code != 0
    assert said in done.output


def test_an_unknown_task_is_one_line() -> None:
    done = bench("--tasks", "copy,juggle")
    assert done.exit_code != 0
    assert "juggle: no such task; there are copy, " in done.output
