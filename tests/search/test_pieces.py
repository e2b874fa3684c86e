"""The parts that searches are made of, by hand: widths, embeddings that are kept, the threshold's fit, answers,
prompts of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, fresh, search_of, searched

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.runner import run_loop
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.sampling import Sampling
from edgedec.search import calibrating, embeddings
from edgedec.search.embeddings import KnownEmbeddings
from edgedec.search.extending import best_ids
from edgedec.search.making import needs_operator
from edgedec.search.room import best_of
from edgedec.search.scoring import Score
from edgedec.search.strategies.cautious import perplexity
from edgedec.search.strategies.first import _draws, answer_of
from edgedec.search.strategies.refine import asked
from edgedec.search.tree import TreeNode
from edgedec.testing.fakes import FakeRuntime, SetConstraint, random_reference

INF = float("inf")


def config(most: int = 4, **more: Any) -> GenerationConfig:
    return GenerationConfig(Sampling(temperature=1.0), max_tokens=most, **more)


@pytest.mark.parametrize(
    ("words", "width"),
    [
        ("beam:width=3", 3),
        ("diverse:width=6,groups=3", 6),
        ("best:n=5", 5),
        ("first:n=6,k=2", 6),
        ("cautious:n=7", 7),
        ("lookahead:top=4", 5),
        ("astar:k=3,frontier=10", 13),
        ("rank:beams=3,n=4", 12),
        ("refine:n=5", 5),
        ("tests:rollouts=9", 11),
        ("exact-extract:together=3", 12),
        ("smc:n=9", 9),
        ('select:choices=["a","b"]', 1),
        ("latent", 1),
        ("superposed:weight=0", 1),
    ],
)
def test_a_batch_counts_the_branches_of_a_search(words: str, width: int) -> None:
    """And the tokens that they may hold: the prompt once, and so many texts."""
    given = {"smc": {"constraint": SetConstraint(lambda last: range(13))}}.get(words[:3], {})
    scorer = None if words[:4] == "smc:" else lambda prompt, text: 0.5
    search = search_of(random_reference(seed=3), words, config(4, scorer=scorer, **given))
    assert search.width == width
    assert search.need == len(PROMPT) + 4 * width


def test_a_batch_counts_what_processors_hold_beside_each_branch() -> None:
    """A companion of half the text's length."""
    companion = SimpleNamespace(gather=iter, room=len, held=lambda tokens: tokens // 2)
    search = search_of(FakeRuntime(), "best:n=3", config(6, processors=(companion,)))
    assert search.need == len(PROMPT) + 3 * (6 + (len(PROMPT) + 6) // 2)


def test_open_nodes_are_counted_while_another_is_continued() -> None:
    """A*: at the second popped node there are its two continuations, and the node that stays open."""
    runtime, held = FakeRuntime(), list[int]()

    def worth(prompt: str, text: str) -> float:
        held.append(len({id(one.cache) for one in search.room.forks}))
        return 0.5

    search = search_of(runtime, "astar:k=2,step=1,budget=2,temperature=1", config(scorer=worth))
    assert len(list(run_loop(runtime, search.loop))) == 4
    assert held == [2, 2, 3, 3]


# ── embeddings ──


def fetched(known: KnownEmbeddings, room: Any, tokens: Sequence[int], width: int) -> list[int]:
    """The tokens whose embeddings a call had to compute: each is its token, `width` times."""
    asked = known.of(room, tokens)
    call = next(asked, None)
    computed = [] if call is None else call.rows.tokens.tolist()
    rows = np.repeat(np.array(computed, np.float32)[:, None], width, 1)
    if call is not None:
        with pytest.raises(StopIteration) as end:
            asked.send(SimpleNamespace(result=SimpleNamespace(hidden={-1: rows})))  # type: ignore[arg-type]
        assert end.value.value[:, 0].tolist() == list(tokens)
    return computed


def test_embeddings_that_were_needed_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 4 * embeddings._KEPT == 1 << 20
    monkeypatch.setattr(embeddings, "_KEPT", 6)
    known, room = KnownEmbeddings(), SimpleNamespace(new_cache=lambda: None)
    assert fetched(known, room, [5, 6, 5], 2) == [5, 6]
    assert fetched(known, room, [6, 7], 2) == [7]
    assert fetched(known, room, [8], 2) == [8], "three of two numbers are within the bound"
    assert fetched(known, room, [5, 6, 7, 8], 2) == []
    assert fetched(known, room, [9, 5], 2) == [9], "four are not: what this step needs stays"
    assert fetched(known, room, [5, 9], 2) == []
    assert fetched(known, room, [6], 2) == [6]


@pytest.mark.parametrize("logs", [(-1000.0, -1001.0), (0.0, -1000.0), (1000.0, 999.0)])
def test_shares_of_a_mixture_of_any_size(logs: tuple[float, float]) -> None:
    known = KnownEmbeddings()
    known._known = {3: np.array([1, 0], np.float32), 4: np.array([0, 1], np.float32)}
    mixing = known.mixed(SimpleNamespace(), [3, 4], logs)  # type: ignore[arg-type]
    with pytest.raises(StopIteration) as end:
        next(mixing)
    first = 1 / (1 + exp(logs[1] - logs[0]))
    assert end.value.value.tolist() == [pytest.approx([first, 1 - first])]


# ── look-ahead's threshold ──


def test_both_classes_weigh_the_same_in_the_fit() -> None:
    """At 0: 8 right, 2 wrong; at 1: 2 right, 3 wrong. A right one weighs 1 / 20, a wrong one 1 / 10, so that the odds
    of wrong are 1 : 2 and 3 : 1; the fit is exact at two places but for its pull."""
    entropies = [0.0] * 10 + [1.0] * 5
    wrong = [False] * 8 + [True] * 2 + [False] * 2 + [True] * 3
    assert calibrating.threshold(entropies, wrong) == pytest.approx(log(2) / (log(2) + log(3)), abs=0.002)


def test_the_fit_is_where_the_gradient_is_zero() -> None:
    rng = np.random.default_rng(3)
    for scale in (1.0, 30.0):
        x = rng.random(50) * scale
        y = (x + rng.normal(0, scale / 4, 50) > scale / 2).astype(np.float64)
        weights = np.where(y > 0, 0.5 / y.sum(), 0.5 / (50 - y.sum()))
        a, b = calibrating._fitted(x, y, weights)
        p = 1 / (1 + np.exp(-(a * x + b)))
        assert (weights * (p - y) * x).sum() + 1e-4 * a == pytest.approx(0, abs=1e-10)
        assert (weights * (p - y)).sum() == pytest.approx(0, abs=1e-10)
        assert a > 0


def test_so_many_tokens_of_a_text_calibrate() -> None:
    read = list[int]()

    class Session:
        def append(self, ids: Sequence[int]) -> None:
            read.extend(ids)

        def next_probs(self) -> Any:
            return np.array([0.0, 0.75, 0.25]) if len(read) % 2 else np.array([0.5, 0.5, 0.0])

    # After odd numbers of tokens 1 is the likeliest and follows; after even ones 0 is, and 2 follows.
    found = calibrating.calibrate(Session, [[2, 1] * 300])
    assert len(read) == 511, "of 512 tokens each but the last has a next one"
    assert -(0.75 * log(0.75) + 0.25 * log(0.25)) < found < log(2)


# ── choosing ──


def test_an_end_token_is_a_draw_of_its_own() -> None:
    branches: list[Any] = [SimpleNamespace(tokens=[5, 6], finish=finish) for finish in ("eos", "stop", "dead")]
    assert [_draws(branch) for branch in branches] == [3, 2, 2]


def test_of_equals_the_first() -> None:
    branches: Any = [SimpleNamespace(value=value) for value in (1.0, 3.0, 3.0, 2.0)]
    assert best_of(branches, lambda one: one.value) is branches[1]
    scores = np.array([0.5, -INF, 2.0, 0.5, 2.0, 0.5])
    assert best_ids(scores, 4) == [2, 4, 0, 3]
    assert best_ids(scores, 9) == [2, 4, 0, 3, 5]
    assert best_ids(scores, 1) == [2]


def test_p_ucb_to_a_hundredth() -> None:
    """A node of 4 visits: c = 4 + ln 1.5, and a child of p .2 without visits reaches c .2 sqrt(ln 4) = 1.037."""
    branch: Any = None
    for best, wanted in ((1.03, 1), (1.045, 0)):
        kids = [TreeNode(branch, 0.0, best, 3), TreeNode(branch, 0.2)]
        assert TreeNode(branch, visits=4, children=kids).chosen() is kids[wanted]
    kids = [TreeNode(branch, 0.0, 0.34, 3), TreeNode(branch, 0.2, visits=2)]
    assert TreeNode(branch, visits=4, children=kids).chosen() is kids[1], "1.037 / 3 = .346"
    kids[0].best = 0.35
    assert TreeNode(branch, visits=4, children=kids).chosen() is kids[0]


@pytest.mark.parametrize(
    ("text", "pattern", "wanted"),
    [
        (" so 3, no 4 ", "", "so 3, no 4"),
        ("so 3, no 4", r"\d", "4"),
        ("so 3, no 4", r"(so|no) (\d)", "no"),
        ("so 3, no 4", r"no \d(x)?", ""),
        (" none ", r"\d", "none"),
    ],
)
def test_the_answer_of_a_text(text: str, pattern: str, wanted: str) -> None:
    assert answer_of(text, pattern) == wanted


def test_perplexity_counts_what_a_trial_added() -> None:
    def trial(logp: float, length: int) -> Any:
        return SimpleNamespace(logp=logp, length=length)

    assert perplexity(trial(-2.0, 5), 3) == pytest.approx(exp(1))
    assert perplexity(trial(-2.0, 4), 3) == pytest.approx(exp(2))
    assert perplexity(trial(-2.0, 3), 3) == pytest.approx(exp(2))


def test_bounds_of_entropy_that_are_crossed_are_one_bound() -> None:
    """low 50 and high 1: no entropy is above both, so that each step has one trial."""
    for seed in range(3):
        runtime, ends = FakeRuntime(seed=seed), frozenset({2})
        settings = GenerationConfig(Sampling(temperature=0.8, top_p=0.95), max_tokens=10)
        plain = list(run_loop(runtime, decode_loop(fresh(runtime), settings, Off(), eos=ends)))
        assert searched(runtime, "cautious:n=6,low=50,high=1", config(10), eos=ends) == plain


def test_the_prompt_of_a_round_has_what_was_said_of_the_best() -> None:
    best, worst = ("good", Score(0.75, "nearly")), ("bad", Score(0.5, "far off"))
    assert asked("Q?", best, worst) == (
        "Q?\n\nBest answer so far (score 0.75):\ngood\nAbout it: nearly\n\n"
        "Worst answer so far (score 0.5):\nbad\n\nA better answer:\n"
    )
    assert "About it" not in asked("Q?", ("good", Score(0.75)), worst)


# ── what is refused, and why texts end ──


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("tests", "tests"),
        ("best:command=x", "best: command"),
        ("rank:bundle=x", "rank: bundle"),
        ("superposed:store=x", "superposed: store"),
        ("best:command=''", ""),
        ("beam", ""),
    ],
)
def test_what_only_an_operator_names(words: str, what: str) -> None:
    assert needs_operator(words) == what


def test_choices_fit_a_call_with_the_token_before_them() -> None:
    """Of abc and b the tree has four tokens."""
    words = 'select:choices=["abc","b"]'
    with pytest.raises(UsageError, match="choices of 4 tokens together do not fit a call"):
        searched(FakeRuntime(largest_call=4), words, config(8))
    assert searched(FakeRuntime(largest_call=5), words, config(8))


def test_superposed_texts_have_no_constraint() -> None:
    constrained = config(4, constraint=SetConstraint(lambda last: range(13)))
    with pytest.raises(UsageError, match="does not go with a constraint"):
        searched(random_reference(seed=3), "superposed:weight=0", constrained)


class OfThree(SetConstraint):
    """Texts of three tokens."""

    @property
    def done(self) -> bool:  # type: ignore[override]
        return len(self.accepted) >= 3

    def fork(self) -> OfThree:
        twin = OfThree(self._followers, self._vocab)
        twin.accepted = list(self.accepted)
        return twin


@pytest.mark.parametrize("ends", [frozenset[int](), frozenset({2})])
def test_particles_end_where_a_constraint_is_done(ends: frozenset[int]) -> None:
    """Whether or not the model has an end token."""
    rule = OfThree(lambda last: [5, 6, 7])
    runtime = FakeRuntime()
    search = search_of(runtime, "smc:n=4", config(9, constraint=rule), ends)
    found = list(run_loop(runtime, search.loop))
    assert len(found) == 3
    assert {branch.finish for branch in search.room.ranked} == {"eos"}
    assert sum(branch.value for branch in search.room.ranked) == pytest.approx(1)
