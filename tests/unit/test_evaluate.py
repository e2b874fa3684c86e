"""Perplexity beside the plainest computation of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.bench import perplexity as evaluate
from edgedec.bench.perplexity import Perplexity, perplexity, windows
from edgedec.errors import UsageError
from edgedec.runtime import Rows, logits_of


def naive(model: Any, ids: list[int], window: int, stride: int, begin: list[int]) -> float:
    """Sum of -log p, each token from a forward pass of its own over what its window shows of the past."""
    nll, stop = 0.0, min(window, len(ids))
    starts = dict.fromkeys(range(1, stop), 0)
    while stop < len(ids):
        start = stop + stride - window + len(begin)
        starts |= dict.fromkeys(range(stop, min(stop + stride, len(ids))), start)
        stop += stride
    for i, start in starts.items():
        past = [*(begin if start else []), *ids[start:i]]
        logits = logits_of(model.runtime, Rows.chain(past, 0), model.runtime.new_cache(len(past)))[-1].astype(
            np.float64
        )
        nll += np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[ids[i]]
    return nll


@pytest.fixture(scope="module")
def reference(tiny: Path) -> edgedec.Model:
    return edgedec.open(tiny, engine="reference")


@pytest.fixture(scope="module")
def ids(reference: edgedec.Model) -> list[int]:
    found: list[int] = np.random.default_rng(5).integers(3, reference.spec.vocab_size, 40).tolist()
    return found


@pytest.mark.parametrize(("window", "stride"), [(48, 20), (40, 39), (16, 8), (16, 15), (7, 1), (2, 1)])
def test_perplexity_is_what_plain_forward_passes_say(
    reference: edgedec.Model, ids: list[int], window: int, stride: int
) -> None:
    found = perplexity(reference, ids, window, stride)
    assert found.tokens == len(ids) - 1
    assert found.nll == pytest.approx(naive(reference, ids, window, stride, []), rel=1e-5)


@pytest.mark.parametrize(("window", "stride"), [(48, 20), (16, 8), (16, 15), (2, 1)])
def test_a_begin_token_stands_before_every_window(
    reference: edgedec.Model, ids: list[int], window: int, stride: int
) -> None:
    text = replace(reference.bundle.manifest.text, bos=1)
    manifest = replace(reference.bundle.manifest, text=text)
    model: Any = SimpleNamespace(
        runtime=reference.runtime, spec=reference.spec, bundle=SimpleNamespace(manifest=manifest)
    )
    ids = [1, *ids]
    found = perplexity(model, ids, window, stride)
    assert found.nll == pytest.approx(naive(model, ids, window, stride, [1]), rel=1e-5)
    if window < len(ids):
        assert found.nll != pytest.approx(naive(model, ids, window, stride, []), rel=1e-5)


def test_chunks_change_nothing(reference: edgedec.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = perplexity(reference, ids, 32, 16)
    monkeypatch.setattr(evaluate, "_LOGITS", 3 * reference.spec.vocab_size)
    largest = 0
    forward = reference.runtime.forward

    def counted(calls: Any) -> Any:
        nonlocal largest
        largest = max(largest, *(call.rows.count for call in calls), 0)
        return forward(calls)

    monkeypatch.setattr(reference.runtime, "forward", counted)
    assert perplexity(reference, ids, 32, 16).nll == pytest.approx(whole.nll, rel=1e-5)
    assert largest == 3


def test_the_fast_runtime_agrees(tiny: Path, reference: edgedec.Model, ids: list[int]) -> None:
    fast = perplexity(edgedec.open(tiny), ids, 24, 12)
    assert fast.nll == pytest.approx(perplexity(reference, ids, 24, 12).nll, rel=1e-4)


@pytest.mark.parametrize("begin", [0, 1])
def test_windows_score_every_token_once_with_a_past(begin: int) -> None:
    for n in range(2, 14):
        for window in range(2, 9):
            for stride in range(1, window):
                scored: list[int] = []
                for start, first, stop in windows(n, window, stride, begin):
                    past = first - start + (begin if start else 0)
                    assert past >= 1
                    assert stop - start + (begin if start else 0) <= window
                    scored += range(first, stop)
                    assert first == 1 or past >= window - stride
                assert scored == list(range(1, n)), (n, window, stride)


def test_worked_example() -> None:
    assert list(windows(7, 4, 2)) == [(0, 1, 4), (2, 4, 6), (4, 6, 7)]


def test_progress_counts_up_to_all(reference: edgedec.Model, ids: list[int]) -> None:
    calls: list[tuple[int, int]] = []
    perplexity(reference, ids, 16, 8, lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1] == (39, 39)


def test_numbers() -> None:
    found = Perplexity(nll=4 * np.log(8.0), tokens=4)
    assert found.value == pytest.approx(8)
    assert found.bits == pytest.approx(12)
    assert Perplexity(1e6, 2).value == float("inf")


@pytest.mark.parametrize(
    ("n", "window", "stride", "said"),
    [
        (1, 8, 4, "at least 2"),
        (0, 8, 4, "at least 2"),
        (9, 1, 1, "window 1"),
        (9, 10**6, 4, "window 1000000"),
        (9, 8, 8, "stride 8"),
        (9, 8, 0, "stride 0"),
    ],
)
def test_refused(reference: edgedec.Model, ids: list[int], n: int, window: int, stride: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        perplexity(reference, ids[:n], window, stride)


def test_tokens_outside_the_vocabulary_are_refused(reference: edgedec.Model) -> None:
    with pytest.raises(UsageError, match="vocabulary"):
        perplexity(reference, [3, reference.spec.vocab_size], 8, 4)
