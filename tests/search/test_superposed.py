"""Superposed decoding: the texts of a plain loop that reads everything anew, what n-grams say, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search.laws import PROMPT, beside, fresh, logps_of, search_of, searched

import edgedec
from edgedec.cli._app import run_app
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.runner import run_loop
from edgedec.drafters.off import Off
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.runtime import Call, Outputs, Rows, Runtime
from edgedec.search.running import SearchRun
from edgedec.search.strategies.superposed import NGrams, SuperposedRule, SuperposedTexts
from edgedec.storage.datastore import Datastore, write_datastore
from edgedec.testing.fakes import FakeRuntime, random_reference

CONFIG, VOCAB = GenerationConfig(max_tokens=7), 13
SHARES = [0.01, 0.04, 0.15, 0.18, 0.12]


def store_of(folder: Path, documents: list[list[int]], segment: int = 1 << 21) -> Datastore:
    write_datastore(folder / "it.store", "ab" * 32, VOCAB, documents, None, segment)
    return Datastore(folder / "it.store", "ab" * 32, VOCAB)


def share_by_hand(documents: list[list[int]], ids: list[int], token: int) -> float:
    q = 0.0
    for n, weight in enumerate(SHARES, 1):
        if len(ids) < n:
            break
        after = [d[i + n] for d in documents for i in range(len(d) - n) if d[i : i + n] == ids[-n:]]
        q += weight * after.count(token) / len(after) if after else 0.0
    return q


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=5),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_shares_of_ngrams_are_those_of_a_plain_count(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], ids: list[int]
) -> None:
    grams = NGrams(store_of(tmp_path_factory.mktemp("store"), documents))
    assert grams.after(ids, [0, 1, 2]) == pytest.approx([share_by_hand(documents, ids, token) for token in range(3)])


def test_the_example_of_the_docstring(tmp_path: Path) -> None:
    grams = NGrams(store_of(tmp_path, [[1, 2, 3], [9, 2, 4]]))
    assert grams.after([1, 2], [3, 4, 5]) == pytest.approx([0.01 / 2 + 0.04, 0.01 / 2, 0.0])


def by_hand(
    runtime: Runtime, documents: list[list[int]], n: int, steps: int, temperature: float, weight: float, end: int
) -> tuple[list[tuple[float, list[int], bool]], int]:
    """The texts with their scores over their lengths, the best first, every row read anew at each step; and how often
    no token fitted a text."""

    def embedded(tokens: list[int]) -> np.ndarray:
        call = Call(Rows.chain(tokens, 0), runtime.new_cache(len(tokens)), (), outputs=Outputs(hidden=(-1,)))
        return runtime.forward([call])[0].hidden[-1]

    rows, running, ended, unfit = embedded(PROMPT), [(0.0, list[int]())], list[tuple[float, list[int]]](), 0
    for _ in range(steps):
        call = Call(Rows.embedded(rows, 0), runtime.new_cache(64), outputs=Outputs(logits=True))
        logits = runtime.forward([call])[0].logits[-1].astype(np.float64) / temperature
        best = np.argsort(-logits, kind="stable")[: 3 * n]
        p = np.exp(logits[best] - logits[best].max())
        p /= p.sum()
        found = []
        for score, text in running:
            q = [share_by_hand(documents, [*PROMPT, *text], int(token)) for token in best]
            unfit += not any(q)
            for token, chance, fit in zip(best.tolist(), p, q, strict=True):
                if fit:
                    found.append((score + (1 - weight) * np.log(chance) + weight * np.log(fit), [*text, token]))
                elif not any(q):
                    found.append((score + (1 - weight) * np.log(chance) - 200, [*text, token]))
        found = sorted(found, key=lambda one: -one[0])[: 2 * n]
        ended = sorted([*ended, *(one for one in found if one[1][-1] == end)], key=lambda one: -one[0])[:n]
        running = [one for one in found if one[1][-1] != end][:n]
        if not running:
            break
        w = np.exp(np.array([score for score, _ in running]) - running[0][0])
        mixed = (w / w.sum())[None] @ embedded([text[-1] for _, text in running])
        rows = np.concatenate([rows, mixed.astype(np.float32)])
    texts = [(score / len(text), text, True) for score, text in ended]
    texts += [(score / len(text), text, False) for score, text in running]
    return sorted(texts, key=lambda one: -one[0]), unfit


def run(runtime: Runtime, rule: SuperposedRule, end: int = -1, rank: int = 0) -> tuple[list[int], SearchRun]:
    search = search_of(runtime, "superposed:weight=0", CONFIG, frozenset([end] if end >= 0 else []))
    search._strategy = SuperposedTexts(rule, rank)
    return list(run_loop(runtime, search.loop)), search


def documents(seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(20, 300)).tolist() for _ in range(5)]


@pytest.mark.parametrize(
    ("n", "temperature", "weight", "seed"), [(3, 0.06, 0.54, 3), (2, 1.0, 0.3, 4), (4, 0.4, 0.9, 5)]
)
def test_the_texts_of_the_oracle(tmp_path: Path, n: int, temperature: float, weight: float, seed: int) -> None:
    runtime, texts = random_reference(seed=seed), documents()
    grams = NGrams(store_of(tmp_path, texts))
    ends = 0
    for end in range(VOCAB):
        expected, _ = by_hand(runtime, texts, n, 7, temperature, weight, end)
        given, search = run(runtime, SuperposedRule(n, temperature, weight, grams), end)
        found = search.found("").texts
        assert len(found) == len(expected) >= n
        for one, (value, text, over) in zip(found, expected, strict=True):
            assert (list(one.tokens), one.finish) == (text[:-1] if over else text, "eos" if over else "length")
            assert one.value == pytest.approx(value, rel=1e-4)
            ends += over
        assert given == list(found[0].tokens)
    assert ends > 0


@pytest.mark.parametrize(
    ("texts", "n"),
    [([[3, 1], [4, 1, 5, 6, 7, 8, 9]], 2), ([[12]], 2), ([[5, i, i] for i in range(13)], 4), ([[5] + [0] * 9], 5)],
)
def test_a_text_that_no_token_fits_goes_on_behind_the_others(tmp_path: Path, texts: list[list[int]], n: int) -> None:
    runtime = random_reference(seed=3)
    rule = SuperposedRule(n, 0.5, 0.54, NGrams(store_of(tmp_path, texts)))
    expected, unfit = by_hand(runtime, texts, n, 7, 0.5, 0.54, -1)
    found = run(runtime, rule)[1].found("").texts
    assert (unfit > 0) == (n == 2)
    assert [list(one.tokens) for one in found] == [text for _, text, _ in expected]
    assert [one.value for one in found] == pytest.approx([value for value, _, _ in expected], rel=1e-4)


def test_one_text_without_documents_is_greedy_decoding() -> None:
    runtime = random_reference(seed=3)
    plain = list(run_loop(runtime, decode_loop(fresh(runtime), CONFIG, Off())))
    assert searched(runtime, "superposed:n=1,weight=0", CONFIG) == plain
    assert beside(runtime, "superposed:n=1,weight=0", CONFIG) == plain


def test_one_row_a_token_whatever_the_number_of_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, seen = random_reference(seed=3), list[Call]()
    forward = runtime.forward
    monkeypatch.setattr(runtime, "forward", lambda calls: seen.extend(calls) or forward(calls))
    grams = NGrams(store_of(tmp_path, documents()))
    for n in (1, 4):
        seen.clear()
        search = run(runtime, SuperposedRule(n, 0.5, 0.54, grams))[1]
        assert [len(call.rows) for call in seen if call.blocks is None] == [len(PROMPT) - 1] + [1] * 7
        assert len(search.found("").texts) == n


def test_penalties_and_the_least_length_are_of_each_text() -> None:
    def repeat(texts: list[tuple[int, ...]]) -> list[bool]:
        return [any(a == b for a, b in pairwise([PROMPT[-1], *text])) for text in texts]

    runtime, words = random_reference(seed=1), "superposed:weight=0,n=4,temperature=1"
    penalty = CONFIG.override({"repetition_penalty": 1e6, "repeat_last_n": 1})
    assert any(repeat(search_texts(runtime, words, CONFIG)))
    assert repeat(search_texts(runtime, words, penalty)) == [False] * 4
    end = int(np.argmax(logps_of(runtime, PROMPT)(())))
    assert search_texts(runtime, words, CONFIG, end)[0] == ()
    late = search_texts(runtime, words, CONFIG.override({"min_tokens": 3}), end)
    assert min(map(len, late)) >= 3


def search_texts(runtime: Runtime, words: str, config: GenerationConfig, end: int = -1) -> list[tuple[int, ...]]:
    search = search_of(runtime, words, config, frozenset([end] if end >= 0 else []))
    list(run_loop(runtime, search.loop))
    return [one.tokens for one in search.found("").texts]


def test_ranks_and_stop_strings(tmp_path: Path) -> None:
    runtime, grams = random_reference(seed=3), NGrams(store_of(tmp_path, documents()))
    rule = SuperposedRule(3, 0.06, 0.54, grams)
    texts = run(runtime, rule)[1].found("").texts
    assert run(runtime, rule, rank=2)[0] == list(texts[2].tokens) != list(texts[0].tokens)
    stop = chr(97 + texts[0].tokens[2])
    search = search_of(runtime, "superposed:weight=0", CONFIG.override({"stop": [stop]}))
    search._strategy = SuperposedTexts(rule)
    list(run_loop(runtime, search.loop))
    stopped = [one for one in search.found("").texts if one.finish == "stop"]
    assert stopped
    assert all(stop not in one.text and one.tokens[-1] == texts[0].tokens[2] for one in stopped)


def test_what_it_does_not_go_with() -> None:
    runtime = random_reference(seed=3)
    with pytest.raises(UsageError, match="store: name a datastore"):
        searched(runtime, "superposed", CONFIG)
    with pytest.raises(UsageError, match="rank=3: 3 texts are written"):
        searched(runtime, "superposed:weight=0,rank=3", CONFIG)
    with pytest.raises(RuntimeUnavailable, match="runs no rows of embeddings"):
        searched(FakeRuntime(embeddings=False), "superposed:weight=0", CONFIG)


def test_nano_with_a_datastore(nano: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line; and what its steps left is read by no other text."""
    heroes = ["little girl named Lily", "boy named Tim", "big dog", "little bird", "girl who had a cat", "boy and girl"]
    told = [f"Once upon a time, there was a {hero}. {who} loved to play." for hero in heroes for who in ("She", "He")]
    (tmp_path / "stories.txt").write_text("\n\n".join(told))
    store = tmp_path / "stories.store"
    assert run_app(["datastore", "build", str(tmp_path / "stories.txt"), "-m", str(nano), "-o", str(store)]) == 0
    capsys.readouterr()
    words = f"superposed:store={store}"
    assert run_app(["run", "-m", str(nano), "-p", "Once upon a time", "-n", "8", "--search", words]) == 0
    said = capsys.readouterr().out
    model = edgedec.open(nano, threads=1)
    session = model.session()
    found = session.search(words, "Once upon a time", max_tokens=8)
    assert found.text.strip() in said
    assert len({one.tokens for one in found.texts}) == 3
    assert found.report["lossy"]
    ids = model.tokenizer.encode("Once upon a time")
    given: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "repetition_penalty": 1.0}
    clean = edgedec.open(nano, threads=1, prefix_tokens=0).session()
    assert list(session.tokens(None, **given)) == list(clean.tokens([*ids, *found.tokens], **given))
