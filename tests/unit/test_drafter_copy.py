"""The drafter that copies: honest trees, long chains, and few calls on texts that repeat with edits."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from drafting import accepted, check, reading, replay
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import decode

import edgedec
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.drafters import Drafter, DrafterContext, make_drafter
from edgedec.drafters._tables.tracks import CLAIMS, Track, TrackTree, ahead_of, strength
from edgedec.drafters.copy import Copy
from edgedec.errors import UsageError
from edgedec.testing.fakes import FakeRuntime

TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=120)


def prose(n: int, seed: int = 0, vocab: int = 300) -> list[int]:
    """Words as often as words are, each with a few favourite followers."""
    rng = Random(seed)
    ids = [0]
    for _ in range(n - 1):
        ids.append(int(vocab * rng.random() ** 3) if rng.random() < 0.8 else (ids[-1] * 7 + 1) % vocab)
    return ids


def renamed(source: list[int], every: int = 25, fresh: int = 1000) -> list[int]:
    return [fresh + token if i % every == every - 1 else token for i, token in enumerate(source)]


@given(TEXTS, st.integers(0, 20), st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_every_draft_is_honest(text: list[int], nodes: int, min_path_prob: float, step: int) -> None:
    drafter, ids = Copy(), []
    for start in range(0, len(text), step):
        ids += text[start : start + step]
        check(drafter.propose(reading(ids), nodes, min_path_prob), nodes, min_path_prob)


@given(st.lists(st.integers(0, 4), min_size=80, max_size=200), st.integers(0, 90), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_reading_at_once_indexes_what_reading_in_steps_does(text: list[int], head: int, ngram: int) -> None:
    slow, fast = Copy(ngram), Copy(ngram)
    for i in range(1, len(text) + 1):
        slow.propose(reading(text[:i]), 8, 0.0)
    fast.propose(reading(text[: max(1, head)]), 8, 0.0)
    fast.propose(reading(text), 8, 0.0)
    assert slow._ends == fast._ends
    assert slow._key == fast._key


def test_copies_a_text_in_long_chains() -> None:
    source = prose(400)
    assert replay(Copy(), [*source, 998, 999, *source[:4]], source[4:]) > 8


def test_finds_back_after_renamed_words() -> None:
    source = prose(500)
    assert replay(Copy(), [*source, 998, 999, *source[:4]], renamed(source)[4:]) > 4


@pytest.mark.parametrize("edit", ["insert", "omit", "replace three"])
def test_finds_back_after_other_edits(edit: str) -> None:
    source = prose(500, seed=1)
    output: list[int] = []
    for i in range(0, len(source), 25):
        part = source[i : i + 25]
        new = {
            "insert": [*part, 1000 + i],
            "omit": part[3:],
            "replace three": [*part[:-3], 1000 + i, 1001 + i, 1002 + i],
        }
        output += new[edit]
    assert replay(Copy(), [*source, 998, 999, *source[:4]], output[4:]) > 4


def test_realigns_at_once_in_one_call() -> None:
    """After a replaced, an inserted and an omitted token the very next draft holds what follows."""
    source = list(range(100, 140))
    for new, follows in ((999, 111), (999, 110), (112, 113)):
        drafter = Copy()
        draft = drafter.propose(reading([*source, 1, 2, *source[:10], new]), 40, 0.0)
        assert accepted(draft, [follows, follows + 1, follows + 2]) >= 2, (new, follows)


def test_remembers_a_replacement() -> None:
    """Where the source says the replaced word again, the new word is drafted, and the old one beside it."""
    source = [*range(100, 120), 7, *range(130, 150), 7, *range(160, 170)]
    output = [8 if token == 7 else token for token in source]
    drafter = Copy()
    for n in range(1, 36):
        drafter.propose(reading([*source, 1, 2, *output[:n]]), 15, 0.0)
    draft = drafter.propose(reading([*source, 1, 2, *output[:36]]), 60, 0.0)
    assert accepted(draft, output[36:]) >= 9
    assert {7, 8} <= set(draft.tokens)
    assert drafter.report()["replacements"] == 1
    for n in range(36, 45):
        draft = drafter.propose(reading([*source, 1, 2, *output[:n]]), 15, 0.0)
    assert draft.tokens[0] == output[44]


def test_a_replacement_that_does_not_last_is_given_up() -> None:
    source = [token for i in range(20) for token in (7, *range(100 + 10 * i, 109 + 10 * i))]
    output = [8, *source[1:]]
    output[20] = 8
    text = [*source, 1, 2, *range(100, 109)]
    drafter, taken = Copy(), []
    for i in range(10, len(output)):
        draft = drafter.propose(reading([*text, *output[10:i]]), 15, 0.0)
        if source[i] == 7:
            taken.append(draft.tokens[0])
    assert 8 in taken[2:4]
    assert set(taken[-8:]) == {7}


def test_long_agreement_claims_much_and_a_lone_token_little() -> None:
    source = list(range(100, 180))
    long = Copy().propose(reading([*source, 1, 2, *source[:40]]), 30, 0.0)
    assert len(long.tokens) == 30
    assert min(long.p) > 0.95
    fresh = Copy().propose(reading([5, 6, 7, 8, 9, 6]), 30, 0.0)
    assert 0 < fresh.p[0] < 0.3
    assert len(fresh.tokens) < 4
    assert not Copy().propose(reading([1, 2, 3]), 30, 0.0).tokens


def test_a_loop_is_drafted_beyond_the_end_of_the_text() -> None:
    draft = Copy().propose(reading([1, 2, 3] * 12), 20, 0.0)
    assert list(draft.tokens) == [1, 2, 3] * 6 + [1, 2]


def test_reset_forgets_the_text() -> None:
    drafter, source = Copy(), prose(60)
    ids = [*source, 999, *source[:20]]
    first = drafter.propose(reading(ids), 15, 0.0)
    assert first.tokens
    drafter.reset()
    assert not drafter.propose(reading([5, 11, 17]), 15, 0.0).tokens
    drafter.reset()
    again = drafter.propose(reading(ids), 15, 0.0)
    assert (again.tokens, again.p) == (first.tokens, first.p)


def test_a_text_that_ends_early_does_no_harm() -> None:
    """The loop accepted more than the text took up, or the text shrank without a word."""
    drafter, source = Copy(), prose(80)
    ids = [*source, *source[:10]]
    text = reading(ids)
    drafter.propose(text, 15, 0.0)
    ids.append(source[10])
    check(drafter.propose(text, 15, 0.0), 15, 0.0)
    del ids[5:]
    check(drafter.propose(text, 15, 0.0), 15, 0.0)


@pytest.mark.parametrize("options", [{"ngram": 0}, {"ngram": 99}, {"length": 0}, {"length": 1000}])
def test_wrong_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"drafter copy: .*: must be from 1 to"):
        make_drafter("copy", None, options)  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [1, 7])
def test_output_is_what_plain_decoding_gives(nodes: int) -> None:
    from edgedec.testing.fakes import Limited

    runtime = FakeRuntime()
    for seed in range(4):
        prompt = np.random.default_rng(seed).integers(0, 3, 20).tolist()
        plain = list(
            decode(runtime, Context(list(prompt), 20, runtime.new_cache(64)), GenerationConfig(max_tokens=40), _off())
        )
        cached = Context(list(prompt), 20, runtime.new_cache(64))
        assert list(decode(runtime, cached, GenerationConfig(max_tokens=40), Limited(Copy(), nodes))) == plain


def _off() -> Drafter:
    from edgedec.drafters.off import Off

    return Off()


@pytest.mark.parametrize("prompt", ["Once upon a time", "Tom had a red ball. Tom had a red ball. Tom", "The cat sat."])
def test_nano_says_the_same_with_it(prompt: str) -> None:
    model = edgedec.open("nano", threads=1)
    ids = model.tokenizer.encode(prompt)
    plain = list(model.session(speculate="off").tokens(ids, max_tokens=48))
    drafter = make_drafter("copy", DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer))
    text = Context(list(ids), len(ids), model.runtime.new_cache(256))
    assert list(decode(model.runtime, text, GenerationConfig(max_tokens=48), drafter)) == plain
    assert list(model.session(speculate="copy").tokens(ids, max_tokens=48)) == plain


# ---- tracks ------------------------------------------------------------------------------------------------


def test_longer_agreement_claims_more() -> None:
    """1 - 1.4 / run from nine tokens on, at most 0.975, the same beyond 64."""
    assert CLAIMS[:9] == [0.05, 0.17, 0.38, 0.5, 0.6, 0.67, 0.72, 0.77, 0.81]
    assert CLAIMS[9:64] == pytest.approx([1 - 1.4 / run if run < 56 else 0.975 for run in range(9, 64)])
    assert CLAIMS[64:] == [0.975] * 257
    assert strength(Track(3, 4, 0.5)) == pytest.approx(0.3)
    assert strength(Track(3, 99)) == strength(Track(3, 64)) == 0.975


def tree_of(floor: float) -> TrackTree:
    """5 6 7 by a place of two tokens that is doubted by half, then 5 9 by one of none, and 8 at 0.4."""
    tree = TrackTree(floor)
    tree.begin([5, 6, 7], Track(0, 2, 0.5))
    tree.extend([5, 9, 4], Track(0, 0))
    tree.add(-1, 8, 0.4)
    return tree


def test_branches_get_what_the_first_chain_leaves() -> None:
    """5 at 0.19, 6 at 0.5 and 7 at 0.6; 9 beside 6 at 0.17 of the half that is left, 4 after it at 0.38; 8 beside 5 at
    0.4 of 0.81."""
    tree = tree_of(0.0)
    assert tree.tokens == [5, 6, 7, 9, 4, 8]
    assert tree.parents == [-1, 0, 1, 0, 3, -1]
    assert tree.claims == pytest.approx([0.19, 0.5, 0.6, 0.085, 0.38, 0.324])
    assert tree.paths == pytest.approx([0.19, 0.095, 0.057, 0.01615, 0.006137, 0.324])
    assert tree.add(-1, 8, 0.9) == 5
    assert tree.add(-1, 3, 0.5) == 6
    assert tree.claims[6] == pytest.approx(0.5 * (0.81 - 0.324))
    assert tree.add(5, 3, 0.5) == 7
    assert (tree.claims[7], tree.paths[7]) == pytest.approx((0.5, 0.162))


def test_unlikely_paths_are_left_out_and_the_likeliest_kept() -> None:
    assert tree_of(0.06).tokens == [5, 6, 8]
    assert tree_of(0.01).tokens == [5, 6, 7, 9, 8]
    draft = tree_of(0.0).cut(4)
    assert (draft.tokens, draft.parents) == ([5, 6, 7, 8], [-1, 0, 1, -1])
    assert draft.p == pytest.approx([0.19, 0.5, 0.6, 0.324])
    draft = tree_of(0.0).cut(1)
    assert (draft.tokens, draft.parents) == ([8], [-1])
    assert tree_of(0.0).cut(6).tokens == [5, 6, 7, 9, 4, 8]


def test_the_end_of_a_text_starts_over() -> None:
    assert ahead_of([1, 2, 3, 4, 5], 1, 3) == [2, 3, 4]
    assert ahead_of([1, 2, 3, 4, 5], 3, 5) == [4, 5, 4, 5, 4]
    assert ahead_of([1, 2, 3], 3, 5) == []
