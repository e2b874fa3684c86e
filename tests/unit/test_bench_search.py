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
from edgedec.bench.search import SearchCost, compare, form, wilson
from edgedec.cli import _app


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
    wrong = CliRunner().invoke(_app.app, [*words, "--search", "bean"])
    assert wrong.exit_code
