"""ActQKV: pages by a probe of the latest queries, as many as a layer's attention is spread over."""

from __future__ import annotations

from math import ceil, exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, Text, policy_of, spec_of

from edgedec.errors import SessionError, UsageError
from edgedec.policies._page_choice import KeyMeans, part_means, ranked, worth_of
from edgedec.policies.actqkv import best_pages, probes
from edgedec.runtime import PAGE

SPEC = spec_of(layers=1, kv_heads=1, dim=2)
WORDS = "actqkv:budget=384,every=32,window=3,sinks=4,recent=64"


def chosen(text: Text) -> list[list[int]] | None:
    """The pages that each kv head of block 0 reads in the next step."""
    text.step(1)
    views = text.runtime.calls[-1].views  # type: ignore[attr-defined]
    return None if views is None else [page.tolist() for page in views[0].chosen]


def test_the_query_that_stands_out_chooses_by_hand() -> None:
    """Pages 0 to 5 of 64 and a rest; the latest 3 queries are (0, 1) (0, 1) (8, 0), an earlier one is far larger.

    Their mean is (2.67, .67); distances 2.7, 2.7 and 5.4: the probe is (2.7*0 + 2.7*0 + 5.4*8) / 10.8 = 4 and .5.
    Mean keys: page 2 is (2, 0), score 8; page 3 (0, 10), score 5; page 4 (1.95, 0) of one huge key and 63 small ones,
    score 7.8. Plain mean: page 3 6.7, page 2 5.3. The last query: 2, 4. Bounds: page 4. exp(entropy) of
    softmax(8 5 7.8 0 0 0) is 2.2: three pages.
    """
    queries, keys = np.zeros((400, 1, 2), np.float32), np.zeros((1, 400, 2), np.float32)
    queries[380:], queries[391:393], queries[393] = (0, 90), (0, 1), (8, 0)
    keys[0, 128:192], keys[0, 192:256], keys[0, 256] = (2, 0), (0, 10), (124.8, 0)
    text = Text(Scripted(SPEC, queries={0: queries}, keys={0: keys}), WORDS).read(394)
    assert chosen(text) == [[2, 3, 4]]
    sharp = keys.copy()
    sharp[0, 256] = 0
    text = Text(Scripted(SPEC, queries={0: queries}, keys={0: sharp}), WORDS).read(394)
    assert chosen(text) == [[2, 3]], "exp(entropy) of softmax(8 5) is 1.2"
    text = Text(Scripted(SPEC, queries={0: queries}, keys={0: keys}), WORDS.replace("384", "192")).read(394)
    assert chosen(text) == [[2]], "the budget is less"


def test_probes() -> None:
    assert probes(np.array([[[0.0]], [[0.0]], [[3.0]]], np.float32)).tolist() == [[1.5]]
    assert probes(np.array([[[2.0, 1.0]], [[2.0, 1.0]]], np.float32)).tolist() == [[2, 1]]


def test_worth_and_pages() -> None:
    worth = worth_of(np.array([[1.0], [0.0]], np.float32), np.array([[[0.0], [log(3)]]], np.float32), 1.0)
    np.testing.assert_allclose(worth, [[(0.25 + 0.5) / 2, (0.75 + 0.5) / 2]], rtol=1e-6)
    half = worth_of(np.array([[2.0]], np.float32), np.array([[[0.0], [log(3)]]], np.float32), 0.5)
    np.testing.assert_allclose(half, [[0.25, 0.75]], rtol=1e-6)
    assert worth_of(np.ones((2, 1), np.float32), np.zeros((1, 0, 1), np.float32), 1.0).shape == (1, 0)
    assert [p.tolist() for p in best_pages(np.array([[0.5, 0.5, 0.0]], np.float32), 3)] == [[0, 1]]
    assert [p.tolist() for p in best_pages(np.array([[0.1, 0.4, 0.5]], np.float32), 2)] == [[1, 2]]
    sharp_and_flat = np.array([[0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]], np.float32)
    assert [p.tolist() for p in best_pages(sharp_and_flat, 4)] == [[0, 1, 2], [0, 1, 2]], "of a layer the same number"
    assert [p.tolist() for p in best_pages(np.zeros((1, 0), np.float32), 4)] == [[]]
    assert ranked([1, 3, 3, 2]).tolist() == [1, 2, 3, 0]


def test_means_of_parts() -> None:
    keys = np.arange(14, dtype=np.float32).reshape(1, 7, 2)
    assert part_means(keys, np.array([2, 1, 3]))[0].tolist() == [[1, 2], [4, 5], [8, 9]]
    assert part_means(keys, np.zeros(0, np.int64)).shape == (1, 0, 2)


def naive_pages(queries, keys, ends: int, most: int, scale: float = 1.0) -> list[list[int]]:
    """queries [rows, heads, d]; keys [kv_heads, slots, d]; `ends` full pages."""
    kv, group = len(keys), queries.shape[1] // len(keys)
    worth = np.zeros((kv, ends))
    for head in range(queries.shape[1]):
        rows = queries[:, head].astype(float)
        mean = sum(rows) / len(rows)
        weights = [float(np.sqrt(((row - mean) ** 2).sum())) + 1e-30 for row in rows]
        probe = sum(w * row for w, row in zip(weights, rows, strict=True)) / sum(weights)
        pages = [keys[head // group, p * PAGE : (p + 1) * PAGE].astype(float).mean(axis=0) for p in range(ends)]
        scores = np.array([scale * float(probe @ page) for page in pages])
        shares = np.exp(scores - scores.max())
        worth[head // group] += shares / shares.sum() / group
    entropy = sum(-float(x) * log(max(float(x), 1e-30)) for x in worth.flat) / kv
    count = min(most, ceil(exp(entropy) - 1e-3), ends)
    return [sorted(sorted(range(ends), key=lambda p: (-w[p], p))[:count]) for w in worth]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    n=st.integers(70, 500),
    window=st.integers(1, 8),
    spread=st.sampled_from([0.3, 3, 20]),
    budget=st.sampled_from([300, 448, 1000]),
)
def test_as_in_plain_loops(seed, n, window, spread, budget) -> None:
    rng = np.random.default_rng(seed)
    spec = spec_of(layers=2, kv_heads=2, group=2, dim=3)
    queries = {b: rng.normal(0, 1, (n + 9, 4, 3)).astype(np.float32) for b in (0, 2)}
    keys = {b: rng.normal(0, 1, (2, n + 9, 3)).astype(np.float32) for b in (0, 2)}
    for b in (0, 2):
        keys[b] += np.repeat(rng.normal(0, spread, (2, 9, 3)), PAGE, axis=1)[:, : n + 9]
    words = f"actqkv:budget={budget},every=64,window={window},recent=64"
    runtime = Scripted(spec, queries=queries, keys=keys)
    Text(runtime, words).read(n, 100).step(1)
    views = runtime.calls[-1].views
    assert views is not None
    for b in (0, 2):
        expected = naive_pages(queries[b][max(0, n - window) : n], keys[b], n // PAGE, max(1, ceil(budget / 64) - 3))
        assert [page.tolist() for page in views[b].chosen or ()] == expected


def test_choices_are_made_again() -> None:
    """Every 32 tokens, from the 3 queries before: those of 413 to 415, whose page is 1."""
    queries, keys = np.zeros((500, 1, 2), np.float32), np.zeros((1, 500, 2), np.float32)
    queries[:394], queries[413:416], queries[430] = (9, 0), (0, 9), (9, 0)
    keys[0, 128:192], keys[0, 64:128] = (3, 0), (0, 3)
    runtime = Scripted(SPEC, queries={0: queries}, keys={0: keys})
    text = Text(runtime, WORDS).read(394).step(30)
    views = {call.rows.positions[0]: call for call in runtime.calls if call.views}
    assert [views[at].views[0].chosen[0].tolist() for at in (394, 415, 416, 423)] == [[2], [2], [1], [1]]
    assert [at for at, call in views.items() if call.outputs.queries] == [413, 414, 415]
    assert all(call.blocks is None and call.hidden is None for call in views.values())
    assert [text.policy.room(length) for length in (384, 411, 412, 413, 415)] == [28, 1, 0, 0, 0]


def test_chunks_of_a_prompt() -> None:
    runtime = Scripted(SPEC, queries={0: np.zeros((500, 1, 2), np.float32)})
    Text(runtime, WORDS).read(253, 100)
    assert [(len(call.rows), call.outputs.queries) for call in runtime.calls] == [
        (100, ()),
        (100, ()),
        (50, ()),
        (3, (0,)),
    ]


def test_nothing_is_chosen_of_the_whole_budget() -> None:
    runtime = Scripted(SPEC, queries={0: np.zeros((500, 1, 2), np.float32)})
    Text(runtime, "actqkv:budget=1").read(400).step(3)
    assert all(call.views is None for call in runtime.calls)


def test_options_that_do_not_fit() -> None:
    for words in ("every=200", "every=8", "every=64,window=64"):
        with pytest.raises(UsageError, match=r"must be above window=\d+, at most recent=128"):
            policy_of(f"actqkv:{words}", SPEC)
    policy_of("actqkv:every=128,window=127", SPEC)


# ---- states ----------------------------------------------------------------------------------


def some_text(steps: int = 21) -> Text:
    rng = np.random.default_rng(1)
    keys = np.repeat(rng.normal(0, 3, (1, 9, 2)), PAGE, axis=1).astype(np.float32)[:, :500]
    runtime = Scripted(SPEC, queries={0: rng.normal(0, 1, (500, 1, 2)).astype(np.float32)}, keys={0: keys})
    return Text(runtime, WORDS).read(394).step(steps)


def test_states() -> None:
    text = some_text()
    state = text.policy.state()
    assert state.keys() == {"chosen.0.0", "queries.0"}
    assert state["queries.0"].shape == (2, 1, 2)
    again, twin = policy_of(WORDS, SPEC), text.policy.fork()
    again.restore(state, text.cache)
    assert {name: part.tolist() for name, part in again.state().items()} == {n: p.tolist() for n, p in state.items()}
    text.step(2)
    assert text.policy.state().keys() == {"chosen.0.0"}
    assert twin.state().keys() == {"chosen.0.0", "queries.0"}
    text.policy.reset()
    assert text.policy.state() == {}
    for wrong in (
        {"chosen.1.0": state["chosen.0.0"]},
        {"chosen.0.1": state["chosen.0.0"]},
        {"chosen.0.x": state["chosen.0.0"]},
        {"chosen.0": state["chosen.0.0"]},
        {"other.0.0": state["chosen.0.0"]},
        {"chosen.0.0": state["chosen.0.0"].astype(np.int32)},
        {"chosen.0.0": state["chosen.0.0"][None]},
        {"chosen.0.0": np.array([-1])},
        {"chosen.0.0": np.array([-1, 5])},
        {"chosen.0.0": np.array([6])},
        {"queries.0": state["queries.0"].astype(np.float64)},
        {"queries.0": np.zeros((4, 1, 2), np.float32)},
        {"queries.0": np.zeros((2, 2, 2), np.float32)},
        {"queries.0.0": state["queries.0"]},
        {"queries.1": state["queries.0"]},
    ):
        with pytest.raises(SessionError, match="not of cache policy actqkv"):
            again.restore(wrong, text.cache)
        assert again.state() == {}
    again.restore({"chosen.0.0": np.array([0, 5]), "queries.0": np.zeros((3, 1, 2), np.float32)}, text.cache)
    again.restore({"chosen.0.0": np.zeros(0, np.int64)}, text.cache)


def test_trimmed_texts_forget_pages() -> None:
    text = some_text()
    text.policy.restore({"chosen.0.0": np.array([0, 2, 3, 5])}, text.cache)
    text.policy._means.of(text.cache, 0, np.array([64, 128, 192, 256, 320, 384]))  # type: ignore[attr-defined]
    text.cache.truncate(255)
    text.policy.trim(text.cache)
    assert text.policy.state()["chosen.0.0"].tolist() == [0, 2]
    assert text.policy._means._known[0].shape[1] == 3  # type: ignore[attr-defined]
    text.cache.truncate(192)
    text.policy.trim(text.cache)
    assert text.policy.state()["chosen.0.0"].tolist() == [0, 2]


def test_means_are_made_once() -> None:
    text = some_text(0)
    means = KeyMeans()
    first = means.of(text.cache, 0, np.array([64, 128]))
    twin = means.fork()
    more = means.of(text.cache, 0, np.array([64, 128, 300]))
    assert (more[:, :2] == first).all()
    np.testing.assert_allclose(more[0, 2], text.cache.keys(0)[0, 128:300].mean(axis=0), atol=1e-5)
    assert twin.of(text.cache, 0, np.array([64])).shape == (1, 1, 2)
    means.cut(1)
    again = means.of(text.cache, 0, np.array([64, 90]))
    np.testing.assert_allclose(again[0, 1], text.cache.keys(0)[0, 64:90].mean(axis=0), atol=1e-5)
