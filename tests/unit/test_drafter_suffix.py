"""The suffix automaton, the datastore of past texts, and the drafter that reads both."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from drafting import check, reading, replay
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import decode

import edgedec
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.drafters import DrafterContext, make_drafter
from edgedec.drafters._tables.automaton import MOST, Automaton
from edgedec.drafters._tables.datastore import END, Index, Store, read_texts, write_texts
from edgedec.drafters.off import Off
from edgedec.drafters.suffix import Suffix
from edgedec.errors import UsageError
from edgedec.testing.fakes import FakeRuntime, Limited

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=80)
DIGEST = "ab" * 32


def words(n: int, seed: int = 0) -> list[int]:
    rng = Random(seed)
    return [int(300 * rng.random() ** 2) for _ in range(n)]


def occurrences(text: list[int], part: list[int]) -> int:
    return sum(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def state_of(automaton: Automaton, part: list[int]) -> int:
    state = 0
    for token in part:
        state = automaton.follow[state][token]
    return state


@given(TEXTS)
@settings(max_examples=120, deadline=None)
def test_the_automaton_finds_the_longest_suffix_that_came_before(text: list[int]) -> None:
    automaton = Automaton()
    for n, token in enumerate(text, 1):
        automaton.add(token)
        head = text[:n]
        longest = next((k for k in range(n - 1, 0, -1) if occurrences(head, head[n - k :]) > 1), 0)
        state, length = automaton.matched()
        assert length == longest
        assert state == state_of(automaton, head[n - length :])


@given(TEXTS, st.data())
@settings(max_examples=120, deadline=None)
def test_the_automaton_counts_every_substring(text: list[int], data: st.DataObject) -> None:
    automaton = Automaton()
    for token in text:
        automaton.add(token)
    for _ in range(8):
        start = data.draw(st.integers(0, len(text) - 1))
        part = text[start : data.draw(st.integers(start + 1, len(text)))]
        assert automaton.count[state_of(automaton, part)] == min(MOST, occurrences(text, part))
    assert len(automaton.follow) <= 2 * len(text) + 1


def test_counts_stop_at_the_cap() -> None:
    automaton = Automaton()
    for token in [1] * (MOST + 40) + [2]:
        automaton.add(token)
    counts = [automaton.count[state_of(automaton, [1] * n)] for n in (1, 40, 41, 42, MOST, MOST + 40)]
    assert counts == [MOST, MOST, MOST, MOST - 1, 41, 1]


@given(TEXTS, st.integers(0, 20), st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_draft_is_honest(text: list[int], nodes: int, min_path_prob: float, step: int, stored: bool) -> None:
    store = Store(DIGEST, 4)
    if stored:
        store.add(np.array([*text[::-1], END, *text[: len(text) // 2], END], np.int32))
    drafter, ids = Suffix(store if stored else None), []
    for start in range(0, len(text), step):
        ids += text[start : start + step]
        check(drafter.propose(reading(ids), nodes, min_path_prob), nodes, max(min_path_prob, 0.04))


def test_the_likelier_follower_comes_first_and_longer_matches_claim_more() -> None:
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]
    draft = Suffix().propose(reading(text), 2, 0.0)
    assert (draft.tokens[0], draft.parents[0]) == (3, -1)
    assert draft.p[0] > 0.4
    long = Suffix().propose(reading([*range(100, 140), 1, *range(100, 120)]), 15, 0.0)
    assert list(long.tokens) == list(range(120, 135))
    assert list(long.p) == sorted(long.p)
    assert long.p[0] > 0.9
    short = Suffix().propose(reading([*range(100, 140), 1, 100]), 15, 0.0)
    assert short.p[0] < 0.4


def test_shorter_suffixes_speak_where_the_longer_leave_room() -> None:
    text = [5, 1, 2, 6, 1, 3, 7, 1, 3, 8, 1, 3, 5, 1]
    draft = Suffix().propose(reading(text), 8, 0.0)
    below_root = {token: p for token, parent, p in zip(draft.tokens, draft.parents, draft.p, strict=True) if parent < 0}
    assert set(below_root) == {2, 3}


def test_few_calls_on_texts_that_repeat() -> None:
    source = words(400)
    assert replay(Suffix(), [*source, 998, 999, *source[:4]], source[4:]) > 8
    edited = [1000 + token if i % 25 == 24 else token for i, token in enumerate(source)]
    assert replay(Suffix(), [*source, 998, 999, *source[:4]], edited[4:]) > 4


def test_reset_forgets_the_text() -> None:
    drafter = Suffix()
    ids = [*words(60), 999, *words(60)[:20]]
    first = drafter.propose(reading(ids), 15, 0.0)
    assert first.tokens
    drafter.reset()
    assert not drafter.propose(reading([5, 11, 17]), 15, 0.0).tokens
    drafter.reset()
    again = drafter.propose(reading(ids), 15, 0.0)
    assert (again.tokens, again.p) == (first.tokens, first.p)
    assert drafter.state() == {}


def test_a_text_that_ends_early_does_no_harm() -> None:
    """The loop accepted more than the text took up, or the text shrank without a word."""
    drafter = Suffix(Store(DIGEST, 1000))
    ids = [*words(80), *words(80)[:10]]
    text = reading(ids)
    drafter.propose(text, 15, 0.0)
    ids.append(words(80)[10])
    check(drafter.propose(text, 15, 0.0), 15, 0.0)
    del ids[5:]
    check(drafter.propose(text, 15, 0.0), 15, 0.0)
    drafter.reset()
    assert len(drafter.state()["texts"]) > 80


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
@settings(max_examples=100, deadline=None)
def test_the_index_finds_the_longest_match(texts: list[list[int]], query: list[int]) -> None:
    flat = [token for text in texts for token in [*text, END]]
    index = Index(np.array(flat, np.int32))
    found = index.find(query, 5)
    lengths = [_common(flat[: len(flat) - r], query) for r in range(len(flat) + 1)]
    for length, places in found:
        assert all(lengths[r] == length for r in places)
    got = [length for length, places in found for _ in places]
    assert got == sorted((n for n in lengths if n >= 2), reverse=True)[:5]


def test_agreement_goes_further_back_than_the_index() -> None:
    index = Index(np.array([9, *range(100, 140), END], np.int32))
    [(length, [place])] = index.find(list(range(110, 130)), 3)
    assert length == 12
    assert [index.agreement(place, list(range(start, 130)), 12, 64) for start in (110, 100, 99)] == [20, 30, 30]
    assert index.agreement(place, list(range(100, 130)), 12, 16) == 16


def _common(head: list[int], query: list[int]) -> int:
    """How long a suffix of both is the same; an end matches nothing; no more than 12."""
    length = 0
    for a, b in zip(reversed(head), reversed(query[-12:]), strict=False):
        if a != b:
            break
        length += 1
    return length


def host(vocab: int = 1000, digest: str = DIGEST) -> DrafterContext:
    bundle = SimpleNamespace(origin=digest, spec=SimpleNamespace(vocab_size=vocab))
    return DrafterContext(None, bundle, None)  # type: ignore[arg-type]


def test_texts_outlive_the_session(tmp_path: Path) -> None:
    path, source = tmp_path / "texts", words(300)
    options = {"store": str(path)}
    first = make_drafter("suffix", host(), options)
    first.propose(reading(source[:200]), 8, 0.0)
    ids = source[:200]
    first.propose(reading(ids), 8, 0.0)
    ids += source[200:]  # the last call's tokens: no proposal saw them
    first.reset()
    assert read_texts(path, DIGEST, 1000).tolist() == [*source, END]
    second = make_drafter("suffix", host(), options)
    assert isinstance(second, Suffix)
    assert replay(second, source[:4], source[4:]) > 8
    draft = second.propose(reading([*source[:60]]), 15, 0.0)
    assert list(draft.tokens) == source[60:75]
    assert draft.p[0] > 0.95
    assert replay(Suffix(), source[:4], source[4:]) < 2
    assert second.report()["stored"] == 301


def test_the_last_text_is_kept_without_a_reset(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    drafter = make_drafter("suffix", host(), {"store": str(path)})
    drafter.propose(reading([1, 2, 3, 4]), 8, 0.0)
    assert not path.exists()
    del drafter
    gc.collect()
    assert read_texts(path, DIGEST, 1000).tolist() == [1, 2, 3, 4, END]


def test_two_sessions_share_a_file_and_a_chat_is_one_text(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    a, b = (make_drafter("suffix", host(), {"store": str(path)}) for _ in range(2))
    a.propose(reading([1, 2, 3]), 8, 0.0)
    b.propose(reading([7, 8, 9]), 8, 0.0)
    a.reset()
    b.reset()
    b.propose(reading([7, 8, 9, 10, 11]), 8, 0.0)
    b.reset()
    assert read_texts(path, DIGEST, 1000).tolist() == [1, 2, 3, END, 7, 8, 9, 10, 11, END]


def test_no_match_crosses_a_border() -> None:
    store = Store(DIGEST, 1000)
    store.add(np.array([1, 2, 3, END, 4, 5, 6, END], np.int32))
    drafter = Suffix(store, DIGEST, 1000)
    assert not drafter.propose(reading([9, 1, 2, 3]), 8, 0.0).tokens
    drafter.reset()
    assert not drafter.propose(reading([2, 3, 4]), 8, 0.0).tokens
    drafter.reset()
    assert list(drafter.propose(reading([9, 4, 5]), 8, 0.0).tokens) == [6]


def test_the_store_keeps_the_latest_texts() -> None:
    store = Store(DIGEST, 1000, limit=10)
    for i in range(6):
        store.add(np.array([i, i, i, END], np.int32))
    assert store.flat().tolist() == [4, 4, 4, END, 5, 5, 5, END]
    store.add(np.array([*range(100, 130), END], np.int32))
    assert store.flat().tolist() == [*range(121, 130), END]


def test_learning_survives_as_a_state(tmp_path: Path) -> None:
    source = words(200)
    first = Suffix(Store(DIGEST, 1000), DIGEST, 1000)
    first.propose(reading(source), 8, 0.0)
    first.reset()
    state = first.state()
    second = Suffix(None, DIGEST, 1000)
    second.restore(state)
    assert replay(second, source[:4], source[4:]) > 8
    assert np.array_equal(second.state()["texts"][: len(source)], source)
    second.restore(second.state())
    second.restore({})


@pytest.mark.parametrize(
    "state",
    [
        {"other": np.zeros(1, np.int32)},
        {"texts": np.array([1, 2])},
        {"texts": np.array([[1, END]], np.int32)},
        {"texts": np.array([1, 2], np.int32)},
        {"texts": np.array([1000, END], np.int32)},
        {"texts": np.array([-2, END], np.int32)},
    ],
)
def test_foreign_states_are_refused(state: dict[str, np.ndarray]) -> None:
    with pytest.raises(UsageError, match="drafter suffix"):
        Suffix(None, DIGEST, 1000).restore(state)


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_wild_files_are_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "wild"
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="wild"):
        read_texts(path, DIGEST, 1000)


@given(st.integers(0, 10**6), st.integers(1, 255), st.booleans())
@settings(max_examples=80, deadline=None)
def test_damaged_files_are_refused(tmp_path_factory: pytest.TempPathFactory, at: int, flip: int, cut: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    write_texts(path, DIGEST, np.array([*words(30), END], np.int32))
    raw = bytearray(path.read_bytes())
    at %= len(raw)
    if cut:
        del raw[at:]
    else:
        raw[at] ^= flip
    path.write_bytes(bytes(raw))
    with pytest.raises(UsageError, match="damaged"):
        read_texts(path, DIGEST, 1000)


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    write_texts(path, DIGEST, np.array([1, 999, END], np.int32))
    with pytest.raises(UsageError, match=r"texts.*another bundle"):
        make_drafter("suffix", host(digest="cd" * 32), {"store": str(path)})
    with pytest.raises(UsageError, match=r"texts.*vocabulary of 10"):
        make_drafter("suffix", host(vocab=10), {"store": str(path)})
    with pytest.raises(UsageError, match="no such folder"):
        make_drafter("suffix", host(), {"store": str(tmp_path / "none" / "texts")})
    with pytest.raises(UsageError, match="datastore"):
        make_drafter("suffix", host(), {"store": str(tmp_path)})


def test_a_file_that_cannot_be_written_stops_no_text(tmp_path: Path) -> None:
    path = tmp_path / "texts"
    drafter = make_drafter("suffix", host(), {"store": str(path)})
    drafter.propose(reading([1, 2, 3, 4]), 8, 0.0)
    path.write_bytes(b"something else")
    drafter.reset()
    assert "texts" in drafter.report()["trouble"]
    assert path.read_bytes() == b"something else"


@pytest.mark.parametrize("stored", [False, True])
def test_output_is_what_plain_decoding_gives(stored: bool) -> None:
    runtime = FakeRuntime()
    for seed in range(4):
        prompt = np.random.default_rng(seed).integers(0, 3, 20).tolist()
        plain = list(
            decode(runtime, Context(list(prompt), 20, runtime.new_cache(64)), GenerationConfig(max_tokens=40), Off())
        )
        store = Store(DIGEST, 13)
        if stored:
            store.add(np.array([*prompt, *plain, END], np.int32))
        again = Context(list(prompt), 20, runtime.new_cache(64))
        drafter = Limited(Suffix(store if stored else None), 7)
        assert list(decode(runtime, again, GenerationConfig(max_tokens=40), drafter)) == plain


@pytest.mark.parametrize("prompt", ["Once upon a time", "Tom had a red ball. Tom had a red ball. Tom", "The cat sat."])
def test_nano_says_the_same_with_it(prompt: str, tmp_path: Path) -> None:
    model = edgedec.open("nano", threads=1)
    ids = model.tokenizer.encode(prompt)
    plain = list(model.session(speculate="off").tokens(ids, max_tokens=48))
    assert list(model.session(speculate="suffix").tokens(ids, max_tokens=48)) == plain
    here, path = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), tmp_path / "texts"
    for options in ({}, {"store": str(path)}, {"store": str(path)}):
        drafter, stats = make_drafter("suffix", here, options), Stats()
        text = Context(list(ids), len(ids), model.runtime.new_cache(256))
        assert list(decode(model.runtime, text, GenerationConfig(max_tokens=48), drafter, stats=stats)) == plain
        drafter.reset()
    assert stats.calls < 20


def test_the_index_is_made_anew_when_an_eighth_of_it_would_be_new() -> None:
    store = Store(DIGEST, 500)
    store.add(np.array([*words(79), END], np.int32))
    first = store.index()
    store.add(np.array([*words(9, 1), END], np.int32))
    assert len(store) == 90
    assert store.index() is first, "10 of 80 are not more than an eighth"
    store.add(np.array([5, END], np.int32))
    assert store.index() is not first


def test_places_of_two_lengths_are_looked_at() -> None:
    """The longest match, and what matches as long as that without its first tokens."""
    drafter = Suffix()
    drafter._index = Index(np.array([1, 2, 3, 4, 9, END, 8, 2, 3, 4, 7, END, 6, 3, 4, 5, END], np.int32))
    found = drafter._elsewhere([1, 2, 3, 4])
    assert [length for length, _ in found] == [4, 3], "not those of two tokens, though there are some"
