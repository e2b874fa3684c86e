"""SentenceKV and DeltaLLM: where sentences end, what is read, what is on disk, which keys stand for others."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pruning import generate, same

import edgedec
from edgedec import UsageError
from edgedec.kernels.cpu import loader
from edgedec.policies import actqkv, sentencekv
from edgedec.policies._page_choice import KeyMeans, part_means
from edgedec.policies._sentences import SentenceEnds
from edgedec.policies._views import Always
from edgedec.policies.deltallm import run_starts
from edgedec.runtime import PAGE, Call, Outputs, Rows, View, forward_one

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def ids(model: edgedec.Model) -> list[int]:
    said = "One day, Lily saw a big red ball in the park. She ran to the ball and kicked it. "
    said += "Tom had a little dog who liked to dig. They all played until it was dark and then went home to sleep. "
    return model.tokenizer.encode("Once upon a time there was a girl. " + said * 20)[:900]


# ---- sentences ------------------------------------------------------------------------------


def _ends(text: str, longest: int = 99) -> list[str]:
    """The sentences of a text, a token a character."""
    ends = SentenceEnds(lambda ids: "".join(map(chr, ids)), longest)
    ends.read([ord(c) for c in text])
    return [text[a:b] for a, b in zip([0, *ends.up_to(len(text))], ends.up_to(len(text)), strict=False)]


def test_the_space_before_a_word_ends_a_sentence() -> None:
    """Tokenizers that leave out the space at the beginning of a text: 'end.' and 'Next' are two sentences."""
    words = ["end.", "Next", "3."]
    ends = SentenceEnds(lambda ids: " ".join(words[i] for i in ids), 99)
    ends.read([0, 1, 2, 1])
    assert ends.up_to(4).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A b. C d! E", ["A b.", " C d!"]),
        ('He said "Go." She went. ', ['He said "Go."', " She went."]),
        ("It is 3.14, e.g. much... So", ["It is 3.14, e.g.", " much..."]),
        ("one\ntwo\n\nthree", ["one\n", "two\n", "\n"]),
        ("你好。再见！", ["你好。"]),
        ("no end at all", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert _ends(text) == sentences


def test_a_long_sentence_is_cut() -> None:
    assert _ends("abcdefgh. X", 4) == ["abcd", "efgh", "."]


@given(st.text('ab. "\n3', max_size=60), st.integers(0, 60), st.integers(1, 12), st.integers(0, 60))
def test_sentences_of_a_text_that_grows_and_is_cut(text: str, first: int, longest: int, cut: int) -> None:
    """As of the whole text at once, also for a fork."""
    ids = [ord(c) for c in text]
    grown, whole = (SentenceEnds(lambda t: "".join(map(chr, t)), longest) for _ in range(2))
    grown.read(ids[:first])
    grown.read([*ids[:cut], ord("x")][: len(ids)] if cut < first else ids[:first])
    grown.cut(min(cut, first))
    twin = grown.fork()
    for each in (grown, twin, whole):
        each.read(ids)
        assert each.up_to(len(ids)).tolist() == whole.up_to(len(ids)).tolist() if each is whole else True
    assert grown.up_to(len(ids)).tolist() == twin.up_to(len(ids)).tolist() == whole.up_to(len(ids)).tolist()


def test_sentences_of_nano(model: edgedec.Model, ids: list[int]) -> None:
    policy = model.policy("sentencekv")
    assert isinstance(policy, sentencekv.SentenceKV)
    policy.follow(ids)
    ends = policy._sentences
    ends.read(ids)
    cut = [0, *ends.up_to(len(ids))]
    said = [model.tokenizer.decode(ids[a:b]).strip() for a, b in pairwise(cut)]
    assert said[1:3] == [
        "One day, Lily saw a big red ball in the park.",
        "She ran to the ball and kicked it.",
    ]


def test_the_best_slots_fit_and_are_whole_sentences() -> None:
    starts, ends = np.array([0, 3, 8]), np.array([3, 8, 10])
    worth = np.array([1, 5, 3], np.float32)
    assert sentencekv.best_slots(worth, starts, ends, 7).tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert sentencekv.best_slots(worth, starts, ends, 5).tolist() == [3, 4, 5, 6, 7]
    assert sentencekv.best_slots(worth, starts, ends, 4).tolist() == []


def test_unread_pages() -> None:
    heads = [np.array([70, 71]), np.array([200])]
    assert sentencekv.unread(heads, 10 * PAGE + 5, Always(4, 128)).tolist() == [2, 4, 5, 6, 7]


def test_less_is_read_of_sentences(model: edgedec.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What each head reads beside the first and latest pages are whole sentences, and not the same of all heads."""
    views: list[Any] = []
    forward = model.runtime.forward
    monkeypatch.setattr(
        model.runtime, "forward", lambda calls: (views.extend(c.views for c in calls), forward(calls))[1]
    )
    _, session = generate(model, ids, "sentencekv:budget=300,recent=64,disk=off", 5)
    view = views[-1][max(views[-1])]
    assert len({tuple(view.listed("slots", head)) for head in range(2)}) == 2
    ends = {0, *session._context.policy._sentences.up_to(len(ids)).tolist()}  # type: ignore[union-attr]
    for head in range(2):
        slots = view.listed("slots", head)
        assert 20 < len(slots) < 300
        breaks = np.flatnonzero(np.diff(slots) > 1)
        assert {int(slots[0]), *slots[breaks + 1].tolist(), *(slots[breaks] + 1).tolist()} <= ends


# ---- on disk --------------------------------------------------------------------------------


def test_what_is_not_read_is_on_disk(model: edgedec.Model, ids: list[int], tmp_path: Path) -> None:
    words = f"sentencekv:budget=256,recent=64,disk={tmp_path}/pages"
    there, aside = generate(model, ids, "sentencekv:budget=256,recent=64,disk=off", 40), generate(model, ids, words, 40)
    assert aside[1].cache_report()["pages_on_disk"] > 50
    assert aside[1].cache_report()["memory"] < 0.75 * there[1].cache_report()["memory"]
    assert there[0] == aside[0]
    assert there[1]._context.cache.save()["state"].tobytes() == aside[1]._context.cache.save()["state"].tobytes()
    assert (tmp_path / "pages").is_dir()
    assert not list((tmp_path / "pages").iterdir()), "files without names: nothing to clean up"


def test_forks_truncated_and_grown_texts_share_pages_on_disk(
    model: edgedec.Model, ids: list[int], tmp_path: Path
) -> None:
    runtime = model.runtime
    cache, ids = runtime.new_cache(900), ids[:600]
    for at in range(0, 600, 100):
        forward_one(runtime, Call(Rows.chain(ids[at : at + 100], at), cache))
        cache.commit(range(100))
    whole, held = cache.save()["state"].tobytes(), cache.nbytes
    twin = cache.fork()
    cache.offload(0, [1, 2, 3], str(tmp_path))
    assert cache.nbytes == held, "others hold these pages too"
    del twin
    cache.offload(0, [1, 2, 3], str(tmp_path))
    cache.offload(0, [2, 3, 5], str(tmp_path))  # again: they rest
    page = held // len(model.spec.attention) // 10
    assert cache.nbytes == held - 4 * page
    twin = cache.fork()
    assert twin.save()["state"].tobytes() == cache.save()["state"].tobytes() == whole
    twin.truncate(2 * PAGE + 5)
    forward_one(runtime, Call(Rows.chain(ids[2 * PAGE + 5 : 2 * PAGE + 69], 2 * PAGE + 5), twin))
    twin.commit(range(64))
    assert cache.save()["state"].tobytes() == whole, "a fork that writes into such a page copies it first"
    fresh = cache.fork(2 * PAGE + 69)
    assert fresh.save()["state"].tobytes() == twin.save()["state"].tobytes()
    cache.truncate(2 * PAGE + 5)  # now a page on disk is written into
    forward_one(runtime, Call(Rows.chain(ids[2 * PAGE + 5 : 2 * PAGE + 69], 2 * PAGE + 5), cache))
    cache.commit(range(64))
    assert cache.save()["state"].tobytes() == twin.save()["state"].tobytes() == fresh.save()["state"].tobytes()
    assert np.array_equal(cache.keys(0)[:, PAGE:], cache.keys(0, PAGE))


def test_pages_that_cannot_go_to_disk(nano: Path, ids: list[int], tmp_path: Path) -> None:
    model = edgedec.open(nano, engine="native", threads=1)
    cache = model.runtime.new_cache(100)
    forward_one(model.runtime, Call(Rows.chain(ids[:70], 0), cache))
    cache.commit(range(70))
    for pages in ([1], [-1]):
        with pytest.raises(UsageError, match="slots that the block does not hold"):
            cache.offload(0, pages, str(tmp_path))
    with pytest.raises(UsageError, match=r"nowhere: no file for cache pages: the folder cannot be written"):
        cache.offload(0, [0], str(tmp_path / "nowhere"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"disk=.*file: .*name another folder"):
        model.session(cache=f"sentencekv:disk={tmp_path}/file")


# ---- mean keys ------------------------------------------------------------------------------


def test_means_grow_with_the_text(model: edgedec.Model, ids: list[int]) -> None:
    """What was made is not made again, and is what it would be."""
    cache, means, ends = model.runtime.new_cache(900), KeyMeans(), np.arange(7, 900, 13)
    read: list[int] = []
    for at in range(0, 900, 90):
        forward_one(model.runtime, Call(Rows.chain(ids[at : at + 90], at), cache))
        cache.commit(range(len(ids[at : at + 90])))
        keys = cache.keys

        def counted(block: int, start: int = 0, keys: Any = keys) -> Any:
            read.append(start)
            return keys(block, start)

        cache.keys = counted  # type: ignore[method-assign]
        known = ends[ends <= cache.length]
        grown = means.of(cache, 2, known)
        cache.keys = keys  # type: ignore[method-assign]
        np.testing.assert_array_equal(grown, KeyMeans().of(cache, 2, known))
    assert read == sorted(read)
    assert read[-1] > 700
    means.cut(3)
    np.testing.assert_array_equal(means.of(cache, 2, ends[:9]), KeyMeans().of(cache, 2, ends[:9]))
    assert part_means(np.array([[[1.0], [3.0], [5.0]]], np.float32), np.array([2, 1])).tolist() == [[[2.0], [5.0]]]
    assert actqkv.page_ends(cache).tolist()[:2] == [64, 128]


# ---- keys that stand for others -------------------------------------------------------------


def test_runs_of_keys_alike() -> None:
    keys = np.repeat(np.array([0, 1, 50, 90], np.float32), PAGE // 4)[None, :, None] + np.zeros(3, np.float32)
    starts = run_starts(np.concatenate([keys, keys + 0.1 * np.arange(PAGE)[:, None]], axis=1), 16, 0.25)
    assert starts.shape == (1, 2 * PAGE)
    assert np.flatnonzero(starts[0, :PAGE]).tolist() == [0, 16, 32, 48]
    rng = np.random.default_rng(2)
    noise = rng.normal(size=(2, 4 * PAGE, 8)).astype(np.float32)
    for share in (0.2, 0.5, 0.9):
        kept = run_starts(noise, 8, share).reshape(2, 4, PAGE).mean(axis=2)
        assert (kept <= share).all()
        assert (kept > share - 0.15).all()
    assert run_starts(noise, 8, 1.0).all()


def test_runs_of_one_are_slots(model: edgedec.Model, ids: list[int]) -> None:
    cache, listed = model.runtime.new_cache(500), [np.arange(0, 300, 3), np.array([70])]
    for at in range(0, 400, 100):
        forward_one(model.runtime, Call(Rows.chain(ids[at : at + 100], at), cache))
        cache.commit(range(100))
    found = []
    for runs in (None, [np.ones(len(part), np.int64) for part in listed]):
        view = View(slots=listed, runs=runs)
        call = Call(Rows.chain([7], 400), cache, outputs=Outputs(logits=True), views={0: view})
        found.append(forward_one(model.runtime, call).logits)
    assert found[0].tobytes() == found[1].tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("slots", "runs", "said"),
    [
        (None, [[1], [1]], "needs one for each"),
        ([[3], [3]], [[1], []], "needs one for each"),
        ([[3], [3]], [[0], [1]], "each from 1 on"),
        ([[60], [3]], [[5], [1]], "in one page"),
        ([[3, 5], [3]], [[3, 1], [1]], "up to the next slot"),
        ([[99], [3]], [[2], [1]], "up to the next slot"),
    ],
)
def test_runs_that_cannot_be(model: edgedec.Model, slots: Any, runs: Any, said: str) -> None:
    made = [np.array(part, np.int64) for part in runs]
    with pytest.raises(UsageError, match=said):
        View(slots=slots and [np.array(part) for part in slots], runs=made).check(0, 2, 100)


def test_a_prompt_is_read_with_fewer_keys(model: edgedec.Model, ids: list[int]) -> None:
    words = "deltallm:budget=0.4,recent=64,sinks=4"
    dense, session = generate(model, ids, "full", 20), generate(model, ids, words, 20)
    report = session[1].cache_report()
    assert report["lossy"]
    assert 0.2 < report["scored"] <= 0.4
    states = [each[1]._context.cache.save()["state"].tobytes() for each in (dense, session)]
    assert states[0] != states[1], "the prompt was read with fewer keys"
    again = generate(model, ids, words, 20, "copy:fixed=5")
    assert again[1].stats.proposed > 0
    assert again[0] == session[0]
    assert same(again[1], session[1])


@pytest.mark.parametrize("words", ["deltallm:budget=0.01", "deltallm:span=3", "deltallm:budget=0"])
def test_options_of_deltallm(model: edgedec.Model, words: str) -> None:
    with pytest.raises(UsageError, match=r"span must divide 64, budget be from 1/span to 1|budget=0: must be above 0"):
        model.session(cache=words)
