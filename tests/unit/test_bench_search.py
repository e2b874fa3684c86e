"""`edgedec bench search`: shares with intervals, tokens and scorer calls of every way."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.bench import search
from edgedec.bench.diffusion import GivenTask
from edgedec.bench.search import SearchCost, at_equal_tokens, compare, form, wilson
from edgedec.bench.search_budgets import at_tokens
from edgedec.cli import _app
from edgedec.errors import UsageError
from edgedec.search import parse_search


def test_examples() -> None:
    assert doctest.testmod(search).attempted
    assert not doctest.testmod(search).failed


@pytest.mark.parametrize(("right", "texts"), [(0, 5), (3, 7), (60, 60), (1, 200)])
def test_an_interval_holds_its_share(right: int, texts: int) -> None:
    low, high = wilson(right, texts)
    assert 0 <= low <= right / texts <= high <= 1
    assert wilson(right * 4, texts * 4)[1] - wilson(right * 4, texts * 4)[0] < high - low
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_scorer_knows_the_form_only() -> None:
    assert form("Sort the list.\n\nTom, Amy\n\nList:\n\n", "Tom, Amy") == form("any", "Amy, Tom") == 1.0
    assert form("", "Amy, Amy") == 0.5
    assert form("", "Amy, house") == 0.5
    assert form("", " ") == 0.0


def test_ways_on_the_same_texts(nano: Path) -> None:
    model = edgedec.open(nano, threads=1)
    greedy = "".join(model.session().generate("Once upon a time", max_tokens=6))
    tasks = [GivenTask("story", "Once upon a time", greedy), GivenTask("story", "The cat", "no")]
    found = compare(model, ["greedy", "sampled", "best:n=2", "beam:width=2"], tasks, 6, 1.0, True, lambda at, of: None)
    costs = {way: cost.to_json() for way, cost in found.items()}
    assert (costs["greedy"]["right"], costs["greedy"]["texts"], costs["greedy"]["share"]) == (1, 2, 0.5)
    assert costs["greedy"]["tokens_per_text"] == 6
    assert costs["best:n=2"]["tokens_per_text"] == 12
    assert costs["best:n=2"]["scorer_calls_per_text"] == 2
    assert costs["beam:width=2"]["scorer_calls"] == 0
    assert all(cost["seconds"] > 0 for cost in costs.values())
    assert SearchCost().to_json()["share"] == 0


def test_the_number_of_texts_by_hand() -> None:
    """Asked for 60 of 25 tokens a text: 2 texts have 50, 3 have 75. Its other options stay."""

    def linear(way: str) -> float:
        return 25.0 * parse_search(way).options.get("n", 8)

    assert at_tokens("best:n=4", 60, linear) == "best:n=2"
    assert at_tokens("best:n=4", 65, linear) == "best:n=3"
    assert at_tokens("best:n=4", 62.5, linear) == "best:n=2", "of equals the fewest"
    assert at_tokens("best:by=likelihood", 100, linear) == "best:by=likelihood,n=4"
    assert at_tokens("best:n=4", 1, linear) == "best:n=1"
    assert at_tokens("lookahead", 60, linear) == "lookahead", "it has no number of texts"
    assert at_tokens("best:n=4,command='a, b'", 50, linear) == "best:n=2,command='a, b'"


def test_numbers_that_a_search_refuses_are_left_out() -> None:
    def even(way: str) -> float:
        width = parse_search(way).options["width"]
        if width % 2:
            raise UsageError("groups: must divide width")
        return 10.0 * width

    assert at_tokens("diverse:width=4", 50, even) == "diverse:width=4"
    assert at_tokens("diverse:width=4", 58, even) == "diverse:width=6"

    def no(way: str) -> float:
        if way != "beam:width=4":
            raise UsageError("no")
        return 40.0

    assert at_tokens("beam:width=4", 400, no) == "beam:width=4"


def test_ways_at_equal_tokens(nano: Path) -> None:
    model = edgedec.open(nano, threads=1)
    tasks = [GivenTask("story", "Once upon a time", "no"), GivenTask("story", "The cat", "no")]
    ways = ["greedy", "best:n=4", "diverse:width=2", "cautious:n=2"]
    taken = at_equal_tokens(model, ways, tasks, 6, 1.0, 36)
    assert taken[:2] == ["greedy", "best:n=6"]
    costs = compare(model, taken, tasks, 6, 1.0, False, lambda at, of: None)
    assert costs["best:n=6"].to_json()["tokens_per_text"] == 36
    assert 24 <= costs[taken[2]].to_json()["tokens_per_text"] <= 48


def test_the_command(nano: Path, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "Once upon a time", "answer": "x"}\n')
    ways = ["--search", "greedy", "--search", "beam:width=2"]
    words = ["bench", "search", "-m", str(nano), "-t", "1", "--texts", str(file), "-n", "4", *ways]
    out = CliRunner().invoke(_app.app, [*words, "--json"])
    assert out.exit_code == 0, out.output
    assert list(json.loads(out.stdout)["ways"]) == ["greedy", "beam:width=2"]
    shown = CliRunner().invoke(_app.app, words)
    assert "scorer calls" in shown.stdout
    assert "0/1" in shown.stdout
    equal = CliRunner().invoke(_app.app, [*words, "--search", "best:n=2", "--tokens", "12", "--json"])
    assert equal.exit_code == 0, equal.output
    assert "best:n=3" in json.loads(equal.stdout)["ways"]
    wrong = CliRunner().invoke(_app.app, [*words, "--search", "bean"])
    assert wrong.exit_code
