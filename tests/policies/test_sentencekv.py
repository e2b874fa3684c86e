"""SentenceKV (Zhu et al. 2025): whole sentences by their mean keys and the mean of the latest queries."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, Text, policy_of, spec_of

from edgedec.errors import UsageError
from edgedec.policies._sentences import SentenceEnds
from edgedec.policies._views import Always
from edgedec.policies.sentencekv import best_slots, unread
from edgedec.runtime import PAGE

SPEC = spec_of(layers=1, kv_heads=1, dim=2)
WORDS = "sentencekv:budget=212,every=32,window=2,sinks=4,recent=64,longest=20,disk=off"


def decode(ids: list[int]) -> str:
    return "".join({1: " a", 2: "."}.get(token, chr(token)) for token in ids)


def chosen(text: Text) -> list[list[int]] | None:
    text.step(1)
    views = text.runtime.calls[-1].views  # type: ignore[attr-defined]
    return None if views is None else [slots.tolist() for slots in views[0].slots]


def sentences(lengths: list[int], size: int) -> list[int]:
    ids = [token for n in lengths for token in [1] * (n - 1) + [2]]
    return ids + [1] * (size - len(ids))


def test_the_mean_query_chooses_by_hand() -> None:
    """Five sentences of 25 tokens; the budget leaves one page, 64 slots: two of them.

    The latest two queries are (4, 0) and (0, 4), their mean (2, 2); the ones before are (9, -9).

        sentence        0-25    25-50   50-75   75-100   100-125
        mean key        (0, 0)  (3, 0)  (0, 3)  (2, 2)   (1.9, 1.9)
        mean query      0       6       6       8        7.6          75-100 and 100-125
        the last one    0       0       12      8        7.6          50-75 and 75-100
        the first one   0       12      0       8        7.6          25-50 and 75-100
        all rows        0       +       -       0        0            25-50
        first keys      9, 9                             0            0-25
    """
    size = 300
    queries, keys = np.zeros((size, 1, 2), np.float32), np.zeros((1, size, 2), np.float32)
    queries[:200], queries[200], queries[201] = (9, -9), (4, 0), (0, 4)
    for start, key in ((25, (3, 0)), (50, (0, 3)), (75, (2, 2)), (100, (1.9, 1.9))):
        keys[0, start : start + 25] = key
    keys[0, 100], keys[0, 124] = (0, 0), (3.8, 3.8)
    keys[0, 0], keys[0, 1:25] = (24, 24), (-1, -1)
    runtime = Scripted(SPEC, queries={0: queries}, keys={0: keys})
    ids = sentences([25, 25, 25, 25, 25], 202)
    text = Text(runtime, WORDS.replace("longest=20", "longest=30"), decode=decode).read(ids)
    assert text.policy.pages(202) == 1  # type: ignore[attr-defined]
    assert chosen(text) == [list(range(75, 125))]


def test_sentences_among_the_latest_are_not_listed() -> None:
    """After 202 tokens of recent=64, every=32: from token 170 on all is read until the next choice."""
    keys, queries = np.zeros((1, 300, 2), np.float32), np.ones((300, 1, 2), np.float32)
    runtime = Scripted(SPEC, queries={0: queries}, keys={0: keys})
    found = chosen(Text(runtime, WORDS.replace("212", "1000"), decode=decode).read(202))
    assert found == [list(range(180))], "sentences of 20: the last begins before 170"
    found = chosen(Text(runtime, WORDS.replace("212", "1000"), decode=decode).read(212))
    assert found == [list(range(180))], "180 - 200 begins with the latest"
    found = chosen(Text(runtime, WORDS.replace("212", "1000"), decode=decode).read(213))
    assert found == [list(range(200))]


def test_best_slots() -> None:
    starts, ends = np.array([0, 3, 8]), np.array([3, 8, 10])
    worth = np.array([1, 5, 3], np.float32)
    assert best_slots(worth, starts, ends, 7).tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert best_slots(worth, starts, ends, 5).tolist() == [3, 4, 5, 6, 7]
    assert best_slots(worth, starts, ends, 4).tolist() == []
    assert best_slots(worth, starts, ends, 10).tolist() == list(range(10))
    assert best_slots(np.ones(3, np.float32), starts, ends, 3).tolist() == [0, 1, 2], "of equals the first"


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 999), n=st.integers(100, 420), budget=st.sampled_from([260, 400, 900]))
def test_as_in_plain_loops(seed: int, n: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    spec = spec_of(layers=2, kv_heads=2, group=2, dim=3)
    ids = np.where(rng.random(n) < 0.1, 2, 1).tolist()
    queries = {b: rng.normal(0, 1, (n + 9, 4, 3)).astype(np.float32) for b in (0, 2)}
    keys = {b: rng.normal(0, 2, (2, n + 9, 3)).astype(np.float32) for b in (0, 2)}
    words = f"sentencekv:budget={budget},every=32,window=4,recent=64,longest=15,disk=off"
    runtime = Scripted(spec, queries=queries, keys=keys)
    Text(runtime, words, decode=decode).read(ids).step(1)
    cuts, begun = [0], 0
    for at in range(n):  # after a stop that no stop follows, and after 15 tokens; the last token's is open
        follows = at + 1 < n
        if follows and ((ids[at] == 2 and ids[at + 1] != 2) or at + 1 - begun >= 15):
            begun = at + 1
            cuts.append(begun)
    if (ids[n - 1] == 2) or n - begun >= 15:
        cuts.append(n)  # the token that waits is known
    spans = [(a, b) for a, b in itertools.pairwise(cuts) if a < n - 64 + 32]
    most = max(1, -(-budget // 64) - 3) * 64
    views = runtime.calls[-1].views
    assert views is not None
    for b in (0, 2):
        mean = queries[b][n - 4 : n].mean(axis=0)
        for head in range(2):
            worth = np.zeros(len(spans))
            for q in mean[2 * head : 2 * head + 2]:
                scores = np.array([float(q @ keys[b][head, a:z].mean(axis=0)) for a, z in spans])
                shares = np.exp(scores - scores.max())
                worth += shares / shares.sum()
            room, slots = most, []
            for i in sorted(range(len(spans)), key=lambda i: (-worth[i], i)):
                a, z = spans[i]
                if z - a > room:
                    break
                slots += range(a, z)
                room -= z - a
            assert (views[b].slots or ())[head].tolist() == sorted(slots)


# ---- where sentences end ---------------------------------------------------------------------


def ends(text: str, longest: int = 99) -> list[str]:
    """The sentences of a text, a token a character."""
    found = SentenceEnds(lambda ids: "".join(map(chr, ids)), longest)
    found.read([ord(c) for c in text])
    cut = [0, *found.up_to(len(text))]
    return [text[a:b] for a, b in itertools.pairwise(cut)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A b. C d! E", ["A b.", " C d!"]),
        ('He said "Go." She went. ', ['He said "Go."', " She went."]),
        ("It is 3.14, e.g. much... So", ["It is 3.14, e.g.", " much..."]),
        ("one\ntwo\n\nthree", ["one\n", "two\n", "\n"]),
        ("你好。再见！", ["你好。"]),
        ("a?b!c", ["a?", "b!"]),
        ('a!")x', ['a!")']),
        ('a"x', []),
        ("no end at all", []),
    ],
)
def test_sentences(text: str, found: list[str]) -> None:
    assert ends(text) == found


def test_long_sentences_are_cut() -> None:
    assert ends("abcdefgh. X", 4) == ["abcd", "efgh", "."]
    assert ends("abcdefgh", 4) == ["abcd"], "the last token's sentence is open"


def test_tokens_of_several_letters() -> None:
    words = {1: " one", 2: " two. ", 3: "\n\n", 4: ' "', 5: '."', 6: " x"}
    found = SentenceEnds(lambda ids: "".join(words[i] for i in ids), 99)
    found.read([1, 2, 4, 1, 5, 6, 3, 1])
    assert found.up_to(99).tolist() == [2, 5, 7]
    assert found.up_to(6).tolist() == [2, 5]
    assert found.up_to(5).tolist() == [2, 5]
    assert found.up_to(4).tolist() == [2]


def test_tokenizers_that_drop_the_first_space() -> None:
    """A token's text is that inside a text: " 3" after a stop begins a sentence, "3" goes on with it."""
    words = {1: " a.", 2: " 3", 3: "3"}
    for then, found in ((2, [1]), (3, [])):
        ends = SentenceEnds(lambda ids: "".join(words[i] for i in ids).removeprefix(" "), 99)
        ends.read([1, then, 2])
        assert ends.up_to(9).tolist() == found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text('ab. "\n3', max_size=40), st.integers(0, 40), st.integers(1, 12), st.integers(0, 40))
def test_a_text_that_grows_and_is_cut(text: str, first: int, longest: int, cut: int) -> None:
    """As the whole text at once, also for a fork; what is cut off may have been different."""
    ids = [ord(c) for c in text]
    grown, whole = (SentenceEnds(lambda t: "".join(map(chr, t)), longest) for _ in range(2))
    cut, first = min(cut, first, len(ids)), min(first, len(ids))
    grown.read([*ids[:cut], *map(ord, ". x\nz" * 9)][: max(first, cut)])
    grown.cut(cut)
    twin = grown.fork()
    for each in (grown, twin, whole):
        each.read(ids)
    assert grown.up_to(len(ids)).tolist() == twin.up_to(len(ids)).tolist() == whole.up_to(len(ids)).tolist()


def test_cuts_read_no_more_than_is_needed() -> None:
    found = SentenceEnds(lambda t: "".join(map(chr, t)), 99)
    found.read([ord(c) for c in "One. Two. Three. Four"])
    found.cut(10)
    assert (found._seen, found._ends) == (9, [4, 9])
    found.cut(0)
    assert (found._seen, found._ends) == (0, [])


# ---- on disk ---------------------------------------------------------------------------------


def test_unread_pages() -> None:
    heads = [np.array([70, 71]), np.array([200])]
    assert unread(heads, 10 * PAGE + 5, Always(4, 128)).tolist() == [2, 4, 5, 6, 7]
    assert unread(heads, 10 * PAGE + 5, Always(0, 64)).tolist() == [0, 2, 4, 5, 6, 7, 8]
    assert unread([np.array([10 * PAGE + 2])], 10 * PAGE + 5, Always(65, 64)).tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert unread([], 100, Always(0, 200)).tolist() == []


def test_pages_rest_and_come_back(tmp_path: Path) -> None:
    """400 tokens: page 1 holds what is read, pages 2 to 4 rest; then another sentence is read, and they are not put
    there again."""
    queries, keys = np.zeros((500, 1, 2), np.float32), np.zeros((1, 500, 2), np.float32)
    queries[:402], queries[402:] = (9, 0), (0, 9)
    keys[0, 60:80], keys[0, 140:160] = (9, 0), (0, 9)
    runtime = Scripted(SPEC, queries={0: queries}, keys={0: keys})
    words = f"sentencekv:budget=212,every=32,window=2,sinks=4,recent=64,longest=20,disk={tmp_path}/p"
    text = Text(runtime, words).read(400)
    pages = [sorted({slot // PAGE for slot in found}) for found in (chosen(text) or [])]
    cold = [p for p in range(1, 5) if p not in pages[0]]
    assert text.cache.written == [(0, cold)]  # type: ignore[attr-defined]
    assert (tmp_path / "p").is_dir()
    report = text.policy.report(text.cache)
    assert report["pages_on_disk"] == len(cold)
    assert report["memory"] == text.cache.nbytes
    twin = text.policy.fork()
    text.step(17)
    again = [slots.tolist() for slots in text.runtime.calls[-1].views[0].slots]  # type: ignore[attr-defined]
    text.policy.trim(text.cache)
    then = text.policy._resting[0].tolist()  # type: ignore[attr-defined]
    assert 2 not in then
    assert again is not None
    assert text.cache.written[1:] == [(0, [p for p in then if p not in cold])]  # type: ignore[attr-defined]
    assert twin.report(text.cache)["pages_on_disk"] == len(cold)
    text.cache.truncate(3 * PAGE)
    text.policy.trim(text.cache)
    assert all(page < 3 for page in text.policy._resting[0])  # type: ignore[attr-defined]
    text.policy.reset()
    assert text.policy.report(text.cache)["pages_on_disk"] == 0
    assert twin.report(text.cache)["pages_on_disk"] == len(cold)


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from scripted import CAN

    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"disk=.*file: .*name another folder"):
        policy_of(f"sentencekv:disk={tmp_path}/file", SPEC)
    off = policy_of(f"sentencekv:disk={tmp_path}/none", SPEC, can=replace(CAN, offload=False))
    assert off._folder == ""  # type: ignore[attr-defined]
    assert not (tmp_path / "none").exists()
    assert policy_of("sentencekv:disk=off", SPEC)._folder == ""  # type: ignore[attr-defined]
    monkeypatch.setattr("edgedec.policies.sentencekv.cache_folder", lambda: tmp_path / "default")
    assert policy_of("sentencekv", SPEC)._folder == str(tmp_path / "default")  # type: ignore[attr-defined]


def test_a_sentence_that_was_cut_off_is_found_anew() -> None:
    keys, queries = np.zeros((1, 300, 2), np.float32), np.ones((300, 1, 2), np.float32)
    runtime = Scripted(SPEC, queries={0: queries}, keys={0: keys})
    text = Text(runtime, WORDS, decode=decode).read(sentences([10, 12, 18, 20, 20], 202))
    text.cache.truncate(30)
    text.policy.trim(text.cache)
    state = text.policy.state()
    assert max(int(part.max(initial=0)) for name, part in state.items() if name.startswith("chosen")) < 30
    assert text.policy._sentences._ends == [10, 22]  # type: ignore[attr-defined]
    text.policy.reset()
    assert text.policy._sentences._ends == []  # type: ignore[attr-defined]
