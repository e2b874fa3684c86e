"""DeltaLLM (Qi et al. 2025): a run of keys alike is scored once, in prompts and in steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, Text, policy_of, spec_of

from edgedec.errors import SessionError, UsageError
from edgedec.policies.deltallm import DeltaLLM, run_starts
from edgedec.runtime import PAGE

SPEC = spec_of(layers=2, kv_heads=2, dim=2)


def page(*values: float) -> np.ndarray:
    """[1, PAGE, 1]: each value for an equal part of a page."""
    return np.repeat(np.array(values, np.float32), PAGE // len(values))[None, :, None]


def test_runs_by_hand() -> None:
    """Keys 0, 1, 5 and 7, sixteen of each; a run is at most 32 long. With a quarter of a page, 16 runs, everything
    fits; with 4 of 64 each value is a run of its own, 0 and 1 not together though they are near; with 2 of 64 the runs
    are 0 with 1 and 5 with 7: 2 away from the first of its run, not from the key before."""
    keys = page(0, 1, 5, 7)
    assert np.flatnonzero(run_starts(keys, 32, 4 / 64)[0]).tolist() == [0, 16, 32, 48]
    assert np.flatnonzero(run_starts(keys, 32, 3 / 64)[0]).tolist() == [0, 32, 48]
    assert np.flatnonzero(run_starts(keys, 32, 2 / 64)[0]).tolist() == [0, 32]
    assert np.flatnonzero(run_starts(keys, 16, 0.25)[0]).tolist() == [0, 16, 32, 48], "no run is longer than the span"
    slope = np.arange(PAGE, dtype=np.float32)[None, :, None]
    assert np.flatnonzero(run_starts(slope, 16, 8 / 64)[0]).tolist() == list(range(0, PAGE, 8)), (
        "of the first, not the last"
    )


def naive_starts(keys: np.ndarray, span: int, share: float) -> list[int]:
    """keys [slots, d]: of all distances that could be near, the least with which few enough runs begin."""
    found = []
    for at in range(0, len(keys), PAGE):
        part = keys[at : at + PAGE].astype(float)
        groups = [range(g, g + span) for g in range(0, PAGE, span)]
        apart = [0.0, *(float(((part[i] - part[g[0]]) ** 2).sum()) for g in groups for i in g)]
        best = None
        for near in sorted(apart):
            starts = []
            for group in groups:
                first = group[0]
                starts.append(first)
                for i in group[1:]:
                    if float(((part[i] - part[first]) ** 2).sum()) > near + 1e-5:
                        starts.append(i)
                        first = i
            if len(starts) <= share * PAGE + 1e-9:
                best = starts
                break
        found += [at + start for start in best or range(0, PAGE, span)]
    return found


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    pages=st.integers(1, 2),
    span=st.sampled_from([2, 8, 32, 64]),
    share=st.sampled_from([0.2, 0.5, 0.75]),
)
def test_shares(seed: int, pages: int, span: int, share: float) -> None:
    """At most the share, and not far below it: one bisection step; each part of a span begins a run."""
    keys = np.random.default_rng(seed).normal(0, 1, (2, pages * PAGE, 3)).astype(np.float32)
    share = max(share, 1 / span)
    starts = run_starts(keys, span, share).reshape(2, pages, PAGE)
    assert (starts.mean(axis=2) <= share).all()
    assert starts[:, :, ::span].all()
    assert run_starts(keys, span, 1.0).all() or run_starts(keys, span, 1.0).mean() > 0.99
    for head in range(2):
        expected = naive_starts(keys[head], span, share)
        got = np.flatnonzero(starts[head].reshape(-1)).tolist()
        assert abs(len(got) - len(expected)) <= 2 * pages + 0.05 * len(expected), "as near the share as can be"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 999), span=st.sampled_from([8, 64]), share=st.sampled_from([0.25, 0.5]))
def test_runs_are_of_what_is_near_the_first(seed: int, span: int, share: float) -> None:
    """There is a distance such that keys within it of the first of their run are in it, and all others begin one."""
    keys = np.cumsum(np.random.default_rng(seed).normal(0, 1, (1, PAGE, 2)), axis=1).astype(np.float32)
    starts = run_starts(keys, span, share)[0]
    inside, outside, first = [0.0], [np.inf], 0
    for i in range(PAGE):
        if i % span:
            apart = float(((keys[0, i] - keys[0, first]) ** 2).sum())
            (outside if starts[i] else inside).append(apart)
        first = i if starts[i] else first
    assert max(inside) <= min(outside) + 1e-4
    fewer = np.flatnonzero(starts).tolist()
    assert len(fewer) <= share * PAGE


# ---- in a text -------------------------------------------------------------------------------

WORDS = "deltallm:budget=0.25,span=16,sinks=4,recent=64"


def text_of(words: str = WORDS, n: int = 700) -> tuple[Text, dict[int, np.ndarray]]:
    rng = np.random.default_rng(7)
    keys = {b: rng.normal(0, 1, (2, n, 2)).astype(np.float32) for b in (0, 2)}
    return Text(Scripted(SPEC, keys=keys), words, n), keys


def listed(view: Any) -> list[tuple[list[int], list[int]]]:
    return [(s.tolist(), r.tolist()) for s, r in zip(view.slots, view.runs, strict=True)]


def expected(keys: np.ndarray, slots: int) -> list[tuple[list[int], list[int]]]:
    """Of whole pages: the first slots of runs and their lengths."""
    whole = slots // PAGE * PAGE
    found = []
    for head in range(2):
        first = np.flatnonzero(run_starts(keys[head : head + 1, :whole], 16, 0.25)[0])
        found.append((first.tolist(), np.diff([*first, whole]).tolist()))
    return found


def test_prompts_and_steps_are_read_with_the_runs_of_full_pages() -> None:
    text, keys = text_of()
    text.read(250, 100).step(70)
    calls = text.runtime.calls  # type: ignore[attr-defined]
    assert not calls[0].views
    for call, slots, group in ((calls[1], 100, 0), (calls[2], 200, 0), (calls[3], 250, 1), (calls[-1], 319, 1)):
        for b in (0, 2):
            view = call.views[b]
            assert listed(view) == expected(keys[b], slots)
            assert (view.sinks, view.recent, view.group, view.pages, view.theta) == (4, 64, group, 0, None)
    assert calls[3].views is calls[8].views, "views are made once a page"
    assert calls[3].blocks is None
    assert calls[-1].views is not calls[3].views
    assert text.policy.room(300) == 64


def test_what_is_scored() -> None:
    """Of 320 tokens 5 pages; each head scores a quarter of them, and the 68 first and latest ones."""
    text, _ = text_of()
    text.read(320).step(1)
    assert isinstance(text.policy, DeltaLLM)
    report = text.policy.report(text.cache)
    counts = [len(slots) for heads in text.policy._runs.values() for slots, _ in heads]
    assert report["scored"] == round(sum(counts) / (4 * 320), 4)
    assert 0.2 < report["scored"] <= 0.25
    assert report["looked_at"] == 68 + round(report["scored"] * (321 - 68))
    fresh, _ = text_of()
    assert fresh.policy.report(fresh.cache)["scored"] == 1.0
    assert fresh.policy.report(fresh.cache)["looked_at"] == 0


def test_texts_that_are_cut_forked_and_restored() -> None:
    text, keys = text_of()
    text.read(300).step(1)
    twin = text.policy.fork()
    text.cache.truncate(200)
    text.policy.trim(text.cache)
    text.ids = text.ids[:201]
    text.step(1)
    views = text.runtime.calls[-1].views  # type: ignore[attr-defined]
    assert listed(views[0]) == expected(keys[0], 200)
    assert isinstance(twin, DeltaLLM)
    assert twin._pages == 4
    assert len(twin._runs[0][0][0]) > len(text.policy._runs[0][0][0])  # type: ignore[attr-defined]
    text.policy.restore({}, text.cache)
    assert text.policy._runs == {}  # type: ignore[attr-defined]
    text.step(1)
    assert listed(text.runtime.calls[-1].views[0]) == expected(keys[0], 200)  # type: ignore[attr-defined]
    with pytest.raises(SessionError, match="not of cache policy deltallm"):
        text.policy.restore({"x": np.zeros(1)}, text.cache)


def test_the_whole_budget_is_the_whole_cache() -> None:
    text, _ = text_of("deltallm:budget=1")
    text.read(300, 100).step(3)
    assert all(not call.views for call in text.runtime.calls)  # type: ignore[attr-defined]
    assert text.policy.room(5) == 1 << 30


@pytest.mark.parametrize("words", ["budget=0.01", "span=3", "span=2,budget=0.4", "budget=0.06"])
def test_options_that_cannot_be(words: str) -> None:
    with pytest.raises(UsageError, match=r"span must divide 64, budget be from 1/span to 1"):
        policy_of(f"deltallm:{words}", SPEC)


def test_options_that_can_be() -> None:
    for words in ("span=2,budget=0.5", "budget=0.0625", "span=64,budget=0.02"):
        policy_of(f"deltallm:{words}", SPEC)
