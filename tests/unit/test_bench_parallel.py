"""`edgedec bench parallel`: ParallelBench's tasks, thresholds and puzzles."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import pytest
from typer.testing import CliRunner

from edgedec.bench.parallel import KNOWN, TASKS, tasks_named, ways
from edgedec.bench.puzzles import LatinTask, latin_task, solutions, sudoku_task
from edgedec.cli._app import app


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "parallel", *arguments])


def test_the_tasks_are_parallelbenchs() -> None:
    assert (
        *("copy", "insert_index", "insert_random", "remove_index", "remove_random", "replace_index", "replace_random"),
        *("reverse", "shuffle", "sort", "latin_square_n4", "sudoku_n4_12"),
    ) == TASKS
    assert set(KNOWN) - set(TASKS) == {"insert", "remove", "replace"}
    found = tasks_named(TASKS, 2)
    assert [task.kind for task in found] == [kind for kind in TASKS for _ in range(2)]
    assert [task.prompt for task in tasks_named(TASKS, 2)] == [task.prompt for task in found]


def test_a_latin_square() -> None:
    task = LatinTask(("A", "B", "C", "D"))
    assert task.right("A,B,C,D\nB,A,D,C\nC,D,A,B\nD,C,B,A\n")
    assert task.right("A, B, C, D\nB, C, D, A\nC, D, A, B\nD, A, B, C")
    for wrong in ("A,B,C,D\nA,B,C,D\nA,B,C,D\nA,B,C,D", "A,B,C,D\nB,A,D,C\nC,D,A,B", "", "A,B\nB,A",
                  "A,B,C,E\nB,A,E,C\nC,E,A,B\nE,C,B,A"):  # fmt: skip
        assert not task.right(wrong)
    assert len({latin_task(random.Random(seed)).symbols for seed in range(5)}) == 5


def test_a_sudoku_has_one_solution() -> None:
    assert len(solutions(["0000"] * 4)) == 288
    for seed in range(10):
        task = sudoku_task(random.Random(seed))
        assert task.given.count("0") == 4
        assert [list("".join(grid)) for grid in solutions(task.given.split("\n"))] == [
            list(task.answer.replace("\n", ""))
        ]
        assert task.right(task.answer + "\n")
        assert not task.right(task.given)
        rows = task.answer.split("\n")
        for r, c in product((0, 2), (0, 2)):
            assert {rows[r + i][c + j] for i, j in product(range(2), range(2))} == set("1234")


def test_ways_from_careful_to_bold() -> None:
    assert ways([0.4, 0.9]) == {
        "static": "schedule=static",
        "p=0.9": "schedule=threshold:p=0.9",
        "p=0.4": "schedule=threshold:p=0.4",
        "one pass": "steps=1",
    }


def test_right_answers_against_tokens_a_pass() -> None:
    done = bench(
        "--tasks", "copy,shuffle", "--limit", "2", "--thresholds", "0.9", "-n", "24", "--threads", "1", "--json"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["ways"]
    assert list(found) == ["static", "p=0.9", "one pass"]
    for way in found.values():
        assert list(way["right"]) == ["copy", "shuffle"]
        assert way["mean"] == pytest.approx(sum(way["right"].values()) / 2, abs=1e-3)
        costs = way["by_task"].values()
        assert way["tokens_per_pass"] == pytest.approx(
            sum(c["tokens"] for c in costs) / sum(c["passes"] for c in costs), abs=1e-3
        )
    static, some, one = (found[way]["tokens_per_pass"] for way in found)
    assert static <= 1 < some < one
    text = bench("--tasks", "copy", "--limit", "1", "--thresholds", "0.9", "-n", "8", "--threads", "1").stdout
    assert "tokens a pass" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tasks", "copy,juggle"), "juggle: no such task; there are copy, "),
        (("--thresholds", "0.9,1.5"), "--thresholds 1.5: must be from 0 to 1"),
        (("--thresholds", "high"), "must be numbers such as 0.9,0.5"),
    ],
)
def test_what_is_refused(options: tuple[str, ...], said: str) -> None:
    done = bench(*options)
    assert done.exit_code != 0
    assert said in done.output
