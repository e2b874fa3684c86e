"""The record of a search, and its page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from search.laws import Law, LawRuntime, fresh, search_of, table
from typer.testing import CliRunner

import edgedec
from edgedec.bench.search_page import search_page, tree_of
from edgedec.cli import _app
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.runner import run_loop
from edgedec.search.branch import Branch
from edgedec.search.record import BranchTrace, SearchRecord
from edgedec.search.running import SearchRun

PROMPT = "Once upon a time"


# "b" looks best at first, and nothing good follows it.
TRAP = table({(): (0.4, 0.5, 0.1), (0,): (0.05, 0.05, 0.9), (1,): (0.4, 0.35, 0.25)}, (0.3, 0.3, 0.4))
EVEN = table({}, (0.5, 0.3, 0.2))


def data_of(html: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.findall(r'id="data">(.*?)</script>', html, re.S)[0])
    return found


def branch(text: str, **more: Any) -> BranchTrace:
    return BranchTrace(tuple(map(ord, text)), 0, 1, 0.0, 0.0, "", **more)


def traced(
    words: str, most: int, law: Law = TRAP, watch: Callable[[SearchRun], object] = id, **more: Any
) -> tuple[list[BranchTrace], list[int], SearchRun]:
    """The record of a search over tokens 0, 1 and the end 2, its answer, which is that without a record, and itself."""
    runtime, config, answers = LawRuntime(law, 3, 3), GenerationConfig(max_tokens=most, **more), list[list[int]]()
    for out in (None, list[BranchTrace]()):
        search = search_of(runtime, words, config, frozenset({2}), fresh(runtime, runtime.prompt))
        search.trace(out)
        watch(search)
        answers.append([int(token) for token in run_loop(runtime, search.loop)])
    assert answers[0] == answers[1]
    assert out is not None
    return out, answers[0], search


def test_a_beam_on_record() -> None:
    found, answer, _ = traced("beam:width=2,early_stopping=true", 3)
    (chosen,) = [one for one in found if one.chosen]
    assert answer == [0]
    assert (chosen.tokens, chosen.finish, chosen.rank) == ((0,), "eos", 0)
    assert chosen.logp == pytest.approx(-1.0217, abs=1e-4)  # log(.4 * .9)
    assert chosen.value == pytest.approx(chosen.logp / 2)
    ranked = sorted((one for one in found if one.rank >= 0), key=lambda one: one.rank)
    assert [one.rank for one in ranked] == [0, 1]
    assert ranked[0].value > ranked[1].value
    # The text that ran beside the answer was dropped at the end, never chosen.
    assert any(one.tokens[:1] == (1,) and not one.chosen and one.rank < 0 for one in found)
    assert all(0 <= one.first <= one.last for one in found)


def test_times_are_forwards() -> None:
    """Each trial is begun after the forward that found the next token unsure, and dropped after those of its own."""
    found, _, _ = traced("lookahead:threshold=0,top=2,ahead=1", 3)
    answer = next(one for one in found if one.chosen)
    tried = [one for one in found if not one.chosen]
    assert answer.last == max(one.last for one in found)
    assert [one.first for one in tried][:2] == [min(one.first for one in tried)] * 2
    assert all(one.last > one.first for one in tried[:2])


def test_a_text_that_is_taken_up_again_is_one() -> None:
    found, answer, search = traced(
        "refine:n=2,rounds=2,feedback=false", 2, EVEN, scorer=lambda prompt, text: -float(len(prompt))
    )
    assert [list(one.tokens) for one in found if one.chosen] == [answer]
    assert len(found) == search.report()["candidates"]


def test_a_branch_that_is_kept_again_has_one_line() -> None:
    out = list[BranchTrace]()
    record, one = SearchRecord(out), Branch(None, None, frozenset(), None)  # type: ignore[arg-type]
    for forwards, kept in enumerate(([one], [], [one], [])):
        record.keep(kept, forwards)
    assert [(line.first, line.last) for line in out] == [(0, 3)]


def test_the_record_holds_no_dropped_branch() -> None:
    """Whose pages would stay taken."""
    held = list[int]()

    def watch(search: SearchRun) -> None:
        keep, record = search.room.keep, search.room.record

        def kept(branches: Iterable[Branch]) -> None:
            keep(branches)
            held.append(len(record._live) if record else 0)

        search.room.keep = kept  # type: ignore[method-assign]

    found, _, search = traced("beam:width=3", 6, EVEN, watch)
    assert len(found) > 6
    assert max(held) == 3
    assert search.room.record is not None
    assert not search.room.record._live


def test_the_tree_has_each_part_once() -> None:
    texts = ["abc", "abd", "ab", "b", "abc", ""]
    parts = tree_of([branch(text) for text in texts])
    spelt = ["".join(map(chr, part.tokens)) for part in parts]
    assert spelt == ["", "ab", "c", "d", "b"]
    assert [part.parent for part in parts] == [-1, 0, 1, 1, 0]
    assert [part.branches for part in parts] == [(5,), (2,), (0, 4), (1,), (3,)]
    assert [part.leads_to(tuple(map(ord, "abd"))) for part in parts] == [True, True, False, True, False]


@pytest.mark.parametrize("texts", [["a"], ["ab", "abc"], ["a" * 3000, "a" * 2999 + "b"], ["xy", "xz", "y", "zz", "z"]])
def test_the_tree_spells_every_text(texts: list[str]) -> None:
    parts = tree_of([branch(text) for text in texts])
    for i, text in enumerate(texts):
        (at,) = [n for n, part in enumerate(parts) if i in part.branches]
        whole = list[int]()
        while at >= 0:
            whole, at = [*parts[at].tokens, *whole], parts[at].parent
        assert "".join(map(chr, whole)) == text


def test_the_page_holds_the_search_and_loads_nothing() -> None:
    nasty = "</script><img src=x>"
    branches = [branch("ab", chosen=True, rank=0), branch("ac")]
    html = search_page(branches, {"model": nasty, "search": {"tokens": 4}}, nasty, "ab", lambda t: chr(t) + nasty)
    assert nasty not in html
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", html)
    data = data_of(html)
    assert (data["prompt"], data["text"], data["about"]["search"]) == (nasty, "ab", {"tokens": 4})
    assert [row[0] for row in data["branches"]] == [2, 2]
    assert [row[3] for row in data["tree"]] == [1, 1, 0]
    assert data["tree"][0][1] == "a" + nasty


def test_the_command_writes_the_tree(nano: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.html"
    args = ["-t", "1", "-m", nano, "-p", PROMPT, "-n", 8, "--temp", 0, "--search", "beam:width=2", "-o", out, "--json"]
    result = CliRunner().invoke(_app.app, ["trace", *map(str, args)])
    assert result.exit_code == 0, result.stderr
    data, report = data_of(out.read_text("utf-8")), json.loads(result.stdout)
    found = edgedec.open(nano, threads=1).session().search("beam:width=2", PROMPT, max_tokens=8, temperature=0)
    assert data["text"] == found.text
    assert data["about"]["search"] == report["search"] == found.report
    assert sum(row[7] for row in data["branches"]) == 1
    assert "".join(part[1] for part in data["tree"] if part[3]) == found.text
    assert "not used" not in result.stderr  # no drafter was
