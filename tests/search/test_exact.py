"""Searches whose answer is known by enumerating: spans of a passage, given choices, programs judged by tests."""

from __future__ import annotations

import doctest
from itertools import product
from math import inf, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, LawRuntime, Letters, beside, fresh, logps_of, search_of, searched

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.runner import run_loop
from edgedec.drafters.off import Off
from edgedec.errors import ContextFull, RuntimeUnavailable, UsageError
from edgedec.search.strategies import exact_extract, select
from edgedec.search.testing import ByTests, read_tests
from edgedec.search.tree import Completions, TreeNode
from edgedec.testing.fakes import FakeRuntime

ENDS = frozenset({2, 7})


def config(most: int = 10, **more: Any) -> GenerationConfig:
    return GenerationConfig(max_tokens=most, **more)


@pytest.mark.parametrize("module", [exact_extract, select])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).attempted
    assert not doctest.testmod(module).failed


# ── exact extraction (C07) ──


def spans(tokens: list[int], most: int) -> set[tuple[int, ...]]:
    found = {tuple(tokens[i:j]) for i in range(len(tokens)) for j in range(i + 1, min(i + most, len(tokens)) + 1)}
    return {span for span in found if not set(span) & ENDS}


def brute_force(logps: Any, passage: list[int], most: int, mean: bool) -> tuple[tuple[int, ...], float]:
    best, answer = -inf, ()
    for span in sorted(spans(passage, most)):
        total = sum(float(logps(span[:i])[token]) for i, token in enumerate(span))
        total += float(np.log(np.exp(logps(span)[sorted(ENDS)]).sum()))
        value = total / (len(span) + 1) if mean else total
        if value > best:
            best, answer = value, span
    return answer, best


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("passage", ["", "dbjkadbjkfbcadb"])
def test_extraction_is_the_brute_force(mean: bool, passage: str) -> None:
    tokens, lengths, rows, all_rows = PROMPT if not passage else Letters().encode(passage), set[int](), 0, 0
    for seed in range(8):
        runtime = FakeRuntime(seed=seed, spread=8.0)
        for most in (2, 5):
            answer, value = brute_force(logps_of(runtime, PROMPT), tokens, most, mean)
            words = f"exact-extract:most={most},mean={mean},together=2" + (f",passage={passage}" if passage else "")
            search = search_of(runtime, words, config(), ENDS)
            assert tuple(run_loop(runtime, search.loop)) == answer, seed
            assert search._chosen is not None
            assert search._chosen.value == pytest.approx(value, rel=1e-9)
            assert search.room.stats.finish == "eos"
            lengths.add(len(answer))
            rows += search._strategy.rows  # type: ignore[attr-defined]
            all_rows += len(tokens) * most
            assert beside(runtime, words, config(), eos=ENDS) == list(answer)
    assert len(lengths) > 1 or not mean
    assert rows < all_rows * (0.9 if mean else 0.5), "nothing below a bound is looked at"


def test_extraction_needs_an_end() -> None:
    with pytest.raises(UsageError, match="exact-extract: needs an end token"):
        searched(FakeRuntime(), "exact-extract", config())


# ── selection ──


def pick(logps: Any, first: Any, texts: list[str], by: str) -> int:
    """SGLang's rules, each answer read from its beginning."""

    def of(law: Any, text: str) -> list[float]:
        ids = Letters().encode(text)
        return [float(law(tuple(ids[:i]))[token]) for i, token in enumerate(ids)]

    known = [of(logps, text) for text in texts]
    if by == "sum":
        return int(np.argmax([sum(one) for one in known]))
    if by == "mean":
        return int(np.argmax([np.mean(one) for one in known]))
    if by == "unconditional":
        less = [of(first, text) for text in texts]
        return int(np.argmax([np.mean(np.array(a) - np.array(b)) for a, b in zip(known, less, strict=True)]))
    left = list(range(len(texts)))
    for at in range(max(map(len, texts)) + 1):
        over = [i for i in left if len(texts[i]) == at]
        if over or len(left) == 1:
            return (over or left)[0]
        best = max(known[i][at] for i in left)
        left = [i for i in left if known[i][at] == best]
    raise AssertionError


@pytest.mark.parametrize("by", ["mean", "sum", "greedy", "unconditional"])
def test_selection_by_sglangs_rules(by: str) -> None:
    texts, picked = ["ab", "abc", "dd", "e", "fgh"], set[int]()
    for seed in range(10):
        runtime = FakeRuntime(seed=seed)
        wanted = pick(logps_of(runtime, PROMPT), logps_of(runtime, PROMPT[:1]), texts, by)
        words = f'select:by={by},choices=["ab","abc","dd","e","fgh"]'
        search = search_of(runtime, words, config())
        runtime.forwards.clear()
        found = Letters().decode(list(run_loop(runtime, search.loop)))
        assert found == texts[wanted], seed
        assert len(runtime.forwards) == 2 + (by == "unconditional"), "all choices in one call"
        picked.add(wanted)
        assert Letters().decode(beside(runtime, words, config())) == found
    assert len(picked) > 1


def test_rules_of_selection_differ() -> None:
    texts, found = ["ab", "abc", "dd", "e", "fgh"], dict[str, list[int]]()
    for by in ("mean", "sum", "greedy", "unconditional"):
        laws = [FakeRuntime(seed=seed) for seed in range(10)]
        found[by] = [pick(logps_of(law, PROMPT), logps_of(law, PROMPT[:1]), texts, by) for law in laws]
    assert len({tuple(one) for one in found.values()}) == 4


@pytest.mark.parametrize("choices", ['["a"]', '["a","a"]', '["a",""]'])
def test_choices_are_several(choices: str) -> None:
    with pytest.raises(UsageError, match="must be two or more different texts"):
        search_of(FakeRuntime(), f"select:choices={choices}", config())


def test_what_selection_cannot() -> None:
    with pytest.raises(RuntimeUnavailable, match="this engine runs no trees"):
        search_of(FakeRuntime(trees=False), 'select:choices=["a","b"]', config())
    with pytest.raises(ContextFull, match="a choice of 3 tokens; 2 are allowed"):
        searched(FakeRuntime(), 'select:choices=["abc","b"]', config(2))


# ── planning by tests (X07) ──


def test_p_ucb_by_hand() -> None:
    branch: Any = None
    kids = [TreeNode(branch, 0.6, 0.5, 3), TreeNode(branch, 0.3, 0.0, 0), TreeNode(branch, 0.1, 0.9, 1)]
    node = TreeNode(branch, visits=4, children=kids)
    c = 4 + log((4 + 11) / 10)
    values = [q + c * p * sqrt(log(4)) / (1 + n) for q, p, n in ((0.5, 0.6, 3), (0, 0.3, 0), (0.9, 0.1, 1))]
    assert node.chosen() is kids[int(np.argmax(values))] is kids[1]
    kids[1].visit(0.25)
    assert (kids[1].visits, kids[1].best) == (1, 0.25)
    kids[1].visit(0.1)
    assert (kids[1].visits, kids[1].best) == (2, 0.25)
    node.visits = 6
    c = 4 + log((6 + 11) / 10)
    values = [q + c * p * sqrt(log(6)) / (1 + n) for q, p, n in ((0.5, 0.6, 3), (0.25, 0.3, 2), (0.9, 0.1, 1))]
    assert node.chosen() is kids[int(np.argmax(values))]
    assert TreeNode(branch, visits=1, children=[TreeNode(branch, 0.2), TreeNode(branch, 0.8)]).chosen().p == 0.2


def test_known_completions() -> None:
    class Text:
        def __init__(self, tokens: list[int]) -> None:
            self.tokens = tokens

    known, text = Completions(), Text([5, 6, 7, 8])
    known.add(1, text)  # type: ignore[arg-type]
    assert known.of([5, 6]) is text
    assert known.of([5]) is text
    assert known.of([5, 6, 7, 8]) is text
    assert known.of([]) is None, "not greedy before"
    assert known.of([5, 7]) is None
    assert known.of([5, 6, 7, 8, 9]) is None


# A toy language of three letters after the prompt: only one program in 64 passes all tests.
SECRET = "dca"


def law(text: tuple[int, ...]) -> list[float]:
    return [0.4, 0.3, 0.2, 0.1]


def worth(prompt: str, text: str) -> float:
    return sum(a == b for a, b in zip(text, SECRET, strict=False)) / 3


def test_planning_finds_what_sampling_does_not() -> None:
    runtime = LawRuntime(law, 4, 3)

    def run(words: str, seed: int = 7, **more: Any) -> tuple[str, Any]:
        search = search_of(runtime, words, config(3, **more), context=fresh(runtime, runtime.prompt, seed))
        return Letters().decode(list(run_loop(runtime, search.loop))), search

    found, search = run("tests:rollouts=200,children=4", scorer=worth)
    assert found == SECRET
    assert search.room.counts.scorer_calls < 40
    hidden = ["".join(letters) for letters in product("abcd", repeat=3)]
    assert sum(worth("", text) == 1 for text in hidden) == 1
    budget = search.room.counts.scorer_calls
    from edgedec.sampling import Sampling

    one = Sampling(temperature=1.0)
    drawn = [run(f"best:n={budget}", seed, scorer=worth, sampling=one)[0] for seed in range(10)]
    assert sum(text == SECRET for text in drawn) < 5


def test_the_cache_changes_the_work_only() -> None:
    outcomes = list[bool]()
    for seed in range(5):
        runtime = FakeRuntime(seed=seed)

        def run(words: str, runtime: FakeRuntime = runtime) -> tuple[list[Any], Any, Any]:
            search = search_of(runtime, words, config(6, scorer=lambda p, t: t.count("b") / 9), ENDS)
            return list(run_loop(runtime, search.loop)), search.room.counts, search._strategy

        kept, few, strategy = run("tests:rollouts=12")
        again, more, slow = run("tests:rollouts=12,cache=false")
        assert kept == again
        assert few.scorer_calls < more.scorer_calls == 12
        assert strategy.completed <= slow.completed
        outcomes.append(strategy.completed < slow.completed)
        assert beside(runtime, "tests:rollouts=12", config(6, scorer=lambda p, t: t.count("b") / 9), eos=ENDS) == kept
    assert any(outcomes)


def test_one_rollout_is_greedy() -> None:
    runtime = FakeRuntime(seed=3)
    plain = list(run_loop(runtime, decode_loop(fresh(runtime), config(8), Off(), eos=ENDS)))
    assert searched(runtime, "tests:rollouts=1", config(8, scorer=lambda p, t: 0.0), eos=ENDS) == plain


def test_a_program_that_passes_all_ends_the_search() -> None:
    search = search_of(FakeRuntime(), "tests:rollouts=50", config(4, scorer=lambda p, t: 1.0))
    list(run_loop(FakeRuntime(), search.loop))
    assert search.room.counts.scorer_calls == 1


def test_tests_run_in_the_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "tests.py"
    file.write_text("# doubling\nassert f(2) == 4\n\nassert f(0) == 0\nassert f('a') == 'aa'\n")
    scorer = ByTests(read_tests(str(file)), 2.0, whole=True)
    branch: Any = None
    assert scorer.score("def f(x):\n    return ", "x * 2\n", branch).value == 1.0
    partly = scorer.score("def f(x):\n    return ", "x ** 2\n", branch)
    assert partly.value == pytest.approx(2 / 3)
    assert "assert f('a') == 'aa': TypeError" in partly.feedback
    for bad in ("x +\n", "1/0\n", "f(x)\n", "exit(0)\n", "open('/tmp/edgedec-no', 'w').write('x')\n"):
        assert scorer.score("def f(x):\n    return ", bad, branch).value == 0.0, bad
    endless = ByTests(["assert f()"], 0.3, whole=False)
    said = endless.score("", "def f():\n    while True: pass\n", branch)
    assert said.value == 0.0
    assert "processor time" in said.feedback
    hungry = endless.score("", "x = [0] * 10**10\n", branch)
    assert hungry.value == 0.0
    assert endless.score("", "def f(): return 1\n", branch).value == 1.0, "the next program runs as ever"


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "has no tests"), ("# none\n\n", "has no tests"), ("assert f(\n", "is no statement of Python")],
)
def test_bad_tests(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tests.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        search_of(FakeRuntime(), f"tests:file={file}", config())


def test_tests_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs tests: file=…, or a scorer"):
        search_of(FakeRuntime(), "tests", config())
    with pytest.raises(UsageError, match="cannot be read"):
        search_of(FakeRuntime(), f"tests:file={tmp_path}/no.py", config())
    monkeypatch.setenv("EDGEDEC_SANDBOX", "off")
    with pytest.raises(RuntimeUnavailable, match="EDGEDEC_SANDBOX=off"):
        ByTests(["assert 1"], 1.0, whole=True)
