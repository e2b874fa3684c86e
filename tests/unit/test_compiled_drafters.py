"""The engine's table drafters propose what the Python ones do, number for number, from states that either continues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import reading
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.cache.rows import Rows
from edgedec.decoding.messages import StepResult
from edgedec.drafters import Drafter, DrafterContext, make_drafter
from edgedec.kernels.cpu import loader
from edgedec.runtime import CallResult, TableSettings

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

KINDS = ("copy", "suffix", "recycling", "trigram", "stand")
OPTIONS: dict[str, list[dict[str, str]]] = {
    "copy": [{}, {"ngram": "2", "length": "5"}, {"ngram": "8", "length": "256"}],
    "suffix": [{}],
    "recycling": [{}, {"k": "3", "nodes": "5", "prompt": "9"}, {"k": "1", "prompt": "1"}],
    "trigram": [{}, {"explore": "0", "k": "3"}, {"rate": "1", "explore": "0.4", "nodes": "40"}],
    "stand": [{"prompt": "9"}, {"k": "2", "nodes": "30"}],
}


def pair(name: str, options: dict[str, str], vocab: int, tables: Any = None) -> tuple[Drafter, Drafter]:
    """A Python drafter and the engine's."""
    from edgedec.drafters._tables.compiled import CompiledDrafter
    from edgedec.runtimes._native_drafting import PARTS

    found = []
    for parts in (None, PARTS):
        runtime: Any = SimpleNamespace(capabilities=SimpleNamespace(drafting=parts))
        bundle: Any = SimpleNamespace(spec=SimpleNamespace(vocab_size=vocab), origin="")
        found.append(
            make_drafter(name, DrafterContext(runtime, bundle, lambda: pytest.fail("no text"), tables), options)
        )
    assert not isinstance(found[0], CompiledDrafter)
    assert isinstance(found[1], CompiledDrafter)
    return found[0], found[1]


def step_of(rng: np.random.Generator, ids: list[int], vocab: int, most: int, ties: bool) -> StepResult:
    """A verified call of a random tree below the text, which shows random best tokens."""
    before = int(rng.integers(0, min(len(ids), 4)))
    drafted = int(rng.integers(0, most))
    tokens = ids[len(ids) - 1 - before :] + rng.integers(0, vocab, drafted).tolist()
    parents = [*range(-1, before), *(int(rng.integers(before, before + 1 + i)) for i in range(drafted))]
    path, node = [0], 0
    for i in range(1, drafted + 1):
        if parents[before + i] - before == node and rng.random() < 0.6:
            path.append(node := i)
    picked = [*(tokens[before + i] for i in path[1:]), int(rng.integers(0, vocab))]
    shown = np.stack([rng.permutation(vocab)[:9] for _ in range(drafted + 1)]).astype(np.int32)
    scores = -np.sort(-rng.normal(size=(drafted + 1, shown.shape[1])) * 3).astype(np.float32)
    if ties:
        scores = np.round(scores)
    strange = rng.random(shown.shape) < 0.02
    shown[strange], scores[strange] = -1, np.nan
    result = CallResult(ids=shown, scores=scores) if rng.random() < 0.95 else CallResult()
    prompt = [prompt_of(rng, ids, vocab) for _ in range(int(rng.integers(0, 3)) if rng.random() < 0.3 else 0)]
    return StepResult(Rows.tree(tokens, parents, 5), before, path, picked, result, 0.001, prompt=prompt)


def prompt_of(rng: np.random.Generator, ids: list[int], vocab: int) -> StepResult:
    """A chunk of a prompt, of which the last rows show random best tokens."""
    rows = Rows.chain(ids[-int(rng.integers(1, 9)) :], 0)
    root = int(rng.integers(0, len(rows)))
    shown = np.stack([rng.permutation(vocab)[:9] for _ in range(len(rows) - root)]).astype(np.int32)
    scores = -np.sort(-rng.normal(size=shown.shape) * 3).astype(np.float32)
    return StepResult(rows, root, (), (), CallResult(ids=shown, scores=scores), 0.0)


def text_of(rng: np.random.Generator, n: int, vocab: int) -> list[int]:
    """With repetitions, some of them edited."""
    ids = rng.integers(0, vocab, 6).tolist()
    while len(ids) < n:
        at, length = int(rng.integers(0, len(ids))), int(rng.integers(1, 40))
        piece = ids[at : at + length]
        if rng.random() < 0.5:
            piece[len(piece) // 2] = int(rng.integers(0, vocab))
        if rng.random() < 0.3:
            del piece[: len(piece) // 3]
        ids += piece
    return ids[:n]


def same(a: Drafter, b: Drafter, ids: list[int], nodes: int, least: float) -> int:
    """How many tokens both propose."""
    context = reading(list(ids))
    context.n_prompt = max(1, len(ids) // 2)
    mine, oracle = (d.propose(context, nodes, least) for d in (b, a))
    assert (list(mine.tokens), list(mine.parents)) == (list(oracle.tokens), list(oracle.parents))  # type: ignore[union-attr]
    assert list(mine.p) == list(oracle.p)  # type: ignore[union-attr]
    return len(mine.tokens)  # type: ignore[union-attr]


def equal_states(a: Drafter, b: Drafter) -> None:
    mine, oracle = b.state(), a.state()
    assert set(mine) == set(oracle)
    for key, array in oracle.items():
        assert mine[key].dtype == array.dtype, key
        assert np.array_equal(mine[key], array), key
    assert b.report() == a.report()


def play(a: Drafter, b: Drafter, rng: np.random.Generator, vocab: int, turns: int, ties: bool = False) -> int:
    """Texts and calls for both; how much was proposed."""
    proposed = at = 0
    text: list[int] = []
    for turn in range(turns):
        if not turn or rng.random() < 0.03:
            for each in (a, b):
                each.reset()
            text, at = text_of(rng, 600, vocab), int(rng.integers(1, 200))
        if rng.random() < 0.9:
            proposed += same(a, b, text[:at], int(rng.integers(0, 40)), float(rng.choice([0.0, 0.02, 0.2])))
        step = step_of(rng, text[:at], vocab, 12, ties)
        for each in (a, b):
            each.observe(step)
        at = min(at + int(rng.integers(1, 90 if rng.random() < 0.1 else 6)), len(text))
    return proposed


@pytest.mark.parametrize("name", KINDS)
@given(st.integers(0, 10**6), st.sampled_from([11, 40, 3000]), st.integers(0, 2), st.booleans())
@settings(max_examples=12, deadline=None)
def test_the_same_proposals_and_states(name: str, seed: int, vocab: int, option: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    options = OPTIONS[name][option % len(OPTIONS[name])]
    a, b = pair(name, options, vocab)
    play(a, b, rng, vocab, 25, ties)
    equal_states(a, b)
    # Either continues from the other's state, and a copy of its own goes its own way.
    c, d = pair(name, options, vocab)
    c.restore(b.state())
    d.restore(a.state())
    twin = pair(name, options, vocab)[1]
    twin.inherit(b)
    before = twin.state()
    play(c, d, np.random.default_rng(seed + 1), vocab, 12, ties)
    equal_states(c, d)
    play(a, b, np.random.default_rng(seed + 2), vocab, 6, ties)
    assert all(np.array_equal(array, before[key]) for key, array in twin.state().items())


@pytest.mark.parametrize("name", ["recycling", "stand"])
def test_of_equal_paths_the_first_one_comes_first(name: str) -> None:
    """All tokens are as likely as each other after all tokens, so that only the order decides."""
    a, b = pair(name, {"nodes": "40"}, 13)
    shown = np.stack([np.roll(np.arange(9, dtype=np.int32), i) for i in range(13)])
    rows = Rows.chain(list(range(13)), 0)
    step = StepResult(rows, 0, [0], [3], CallResult(ids=shown, scores=np.zeros(shown.shape, np.float32)), 0.001)
    for each in (a, b):
        each.observe(step)
    assert same(a, b, [5, 3], 40, 0.0) == 40


@pytest.mark.parametrize("name", KINDS)
def test_much_is_proposed(name: str) -> None:
    a, b = pair(name, {}, 11)
    assert play(a, b, np.random.default_rng(3), 11, 80) > 100


@pytest.mark.parametrize("followers", [32, 33])
def test_a_token_of_many_followers_is_left_out(followers: int) -> None:
    """7 is followed 40 times by 8, once each by others, each time after another token: 40 of 40 + 31 + 2.6."""
    a, b = pair("suffix", {}, 500)
    after = [8] * 40 + list(range(100, 99 + followers))
    ids = [token for i, follower in enumerate(after) for token in (200 + i, 7, follower)]
    assert same(a, b, [*ids, 499, 7], 9, 0.0) == (1 if followers == 32 else 0)
    draft = b.propose(reading([*ids, 499, 7]), 9, 0.0)
    assert list(draft.tokens) == [8][: 33 - followers]  # type: ignore[union-attr]
    assert list(draft.p) == pytest.approx([40 / 73.6][: 33 - followers])  # type: ignore[union-attr]


def test_a_continuation_seen_often_counts_no_more() -> None:
    """7 is followed 70 times by 8, each time after another token: 64 of 64 + 2.6."""
    a, b = pair("suffix", {}, 500)
    ids = [*(token for i in range(70) for token in (200 + i, 7, 8)), 499, 7]
    assert same(a, b, ids, 1, 0.0) == 1
    assert b.propose(reading(ids), 1, 0.0).p == pytest.approx([64 / 66.6])  # type: ignore[union-attr]


@pytest.mark.parametrize(("between", "claim"), [(12, 0.225), (13, 0.17)])
def test_a_source_is_waited_for_so_long(between: int, claim: float) -> None:
    """A text leaves its source after 20 tokens and is back, ten places on, after so many others: 0.45 of the 0.5 of a
    run of three tokens, and what one token promises when nobody waits."""
    a, b = pair("copy", {}, 500)
    ids = [*range(60), 300, *range(20), *range(400, 400 + between), 30]
    for end in range(70, len(ids) + 1):
        same(a, b, ids[:end], 9, 0.0)
    draft = b.propose(reading(ids), 9, 0.0)
    assert (draft.tokens[0], draft.p[0]) == (31, pytest.approx(claim))  # type: ignore[union-attr]


def test_best_tokens_end_at_a_score_that_is_not_finite() -> None:
    a, b = pair("recycling", {"k": "3"}, 40)
    for token, scores, p in (
        (5, [1, -np.inf, 0], [0.7]),
        (6, [1, 1, np.nan], [0.35, 0.35]),
        (7, [np.nan, 1, 1], []),
    ):
        shown = CallResult(ids=np.int32([[11, 12, 13]]), scores=np.float32([scores]))
        for each in (a, b):
            each.reset()
            each.observe(StepResult(Rows.chain([token], 0), 0, [0], [1], shown, 0.001))
        assert same(a, b, [3, token], 9, 0.0) == len(p)
        draft = b.propose(reading([3, token]), 9, 0.0)
        assert list(draft.p) == pytest.approx(p)  # type: ignore[union-attr]
    equal_states(a, b)


def test_curiosity_is_bounded() -> None:
    """(5, 6) was seen 25 times, and 11, 12 after it: 0.585 + 0.5 and 0.215 + 0.5, where more would be due. So 12 comes
    before what follows 11, which is 0.62 of 1.085."""
    a, b = pair("trigram", {"k": "2", "explore": "0.5"}, 40)
    for tokens, best, scores, times in (([5, 6], [11, 12], [0, -1], 25), ([6, 11], [14, 15], [0, -0.068], 1)):
        shown = CallResult(ids=np.int32([[1, 2], best]), scores=np.float32([[0, 0], scores]))
        step = StepResult(Rows.chain(tokens, 0), 0, [0], [1], shown, 0.001)
        for _ in range(times):
            for each in (a, b):
                each.observe(step)
    assert same(a, b, [1, 5, 6], 3, 0.0) == 3
    assert list(b.propose(reading([1, 5, 6]), 3, 0.0).tokens) == [11, 12, 14]  # type: ignore[union-attr]


def test_claims_far_back_count_less() -> None:
    """The only token ever shown after 5 comes true every time: at 1,025 claims half of them are kept."""
    a, b = pair("stand", {"k": "1"}, 13)
    step = StepResult(Rows.chain([5], 0), 0, [0], [3], CallResult(ids=np.int32([[3]]), scores=np.float32([[0]])), 0.001)
    for n in range(1, 1030):
        for each in (a, b):
            each.observe(step)
        if n in (1025, 1026, 1029):
            expected = n - 1 if n == 1025 else 512.5 + n - 1026
            assert b.state()["claimed"].max() == b.state()["came"].max() == expected
    equal_states(a, b)


@pytest.mark.parametrize("kind", KINDS[2:])
def test_tables_of_other_settings_are_not_shared(kind: str) -> None:
    from edgedec.runtimes._native_drafting import PARTS

    def of(kind: str, k: int) -> Any:
        return PARTS.table(TableSettings(kind, 40, 8, k, rate=0.3))

    others = [of(other, 2) for other in KINDS[2:] if other != kind]
    for other in (*others, of(kind, 3)):
        with pytest.raises(ValueError, match="refuses"):
            of(kind, 2).share(other)
    of(kind, 2).share(of(kind, 2))


@pytest.mark.parametrize(("before", "said"), [(2047, 1), (2048, 0)])
def test_the_last_tokens_of_a_long_prompt_are_learned(before: int, said: int) -> None:
    """The prompt's only 8 after a 7 is among its last 2,048 tokens together with it, or one too far back."""
    a, b = pair("trigram", {"k": "1", "nodes": "1"}, 9000)
    ids = [5, 6, 7, 8, *range(100, 99 + before), 7]
    context = reading(ids)
    context.n_prompt = len(ids) - 1
    for each in (a, b):
        draft = each.propose(context, 1, 0.0)
        assert list(draft.tokens) == [8][:said]  # type: ignore[union-attr]
        assert list(draft.p) == [0.25][:said], "half of the weight of one occurrence"  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "rows"), [("recycling", 20_000), ("trigram", 75_000), ("stand", 30_000)])
def test_what_is_full_forgets_the_same(name: str, rows: int) -> None:
    """Beyond the bound of every table."""
    vocab, rng = 50_000, np.random.default_rng(1)
    a, b = pair(name, {"k": "2"}, vocab)
    for _ in range(rows // 250):
        tokens = rng.integers(0, vocab, 250)
        shown = (tokens[:, None] * 7 + [[1, 2]]).astype(np.int32) % vocab
        scores = np.tile(np.float32([2, 1]), (250, 1)) + rng.random((250, 1), np.float32)
        step = StepResult(Rows.chain(tokens, 0), 0, [0], [1], CallResult(ids=shown, scores=scores), 0.001)
        for each in (a, b):
            each.observe(step)
    equal_states(a, b)
    assert max(b.report().values()) <= 1 << 16
    assert sum(b.report().values()) < rows * {"stand": 3, "trigram": 2}.get(name, 1)
    play(a, b, rng, 200, 5)
    equal_states(a, b)


@pytest.mark.parametrize("name", KINDS[2:])
def test_sessions_share_what_they_learn(name: str) -> None:
    tables: dict[Any, Any] = {}
    (a, b), (c, d) = (pair(name, {}, 40, tables) for _ in range(2))
    rng = np.random.default_rng(2)
    play(a, b, rng, 40, 20)
    assert b.report() == d.report()
    if name != "stand":  # its record of ranks is each session's own
        for each in (a, b):
            each.reset()
        assert same(c, d, [3, 4, 5, 6], 16, 0.0) == same(a, b, [3, 4, 5, 6], 16, 0.0) > 0


def test_a_vocabulary_beyond_the_keys_is_python_s() -> None:
    from edgedec.drafters.stand import Stand

    with pytest.raises(AssertionError):
        pair("stand", {}, 1 << 20)
    assert isinstance(make_stand_of(1 << 20), Stand)


def make_stand_of(vocab: int) -> Drafter:
    from edgedec.runtimes._native_drafting import PARTS

    runtime: Any = SimpleNamespace(capabilities=SimpleNamespace(drafting=PARTS))
    bundle: Any = SimpleNamespace(spec=SimpleNamespace(vocab_size=vocab), origin="")
    return make_drafter("stand", DrafterContext(runtime, bundle, lambda: pytest.fail("no text")))
