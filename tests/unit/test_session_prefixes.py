"""Sessions of a model continue from what others have read: the same text, fewer rows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted import CountedRows

import edgedec
from edgedec import Sampling, UsageError
from edgedec.kernels.cpu import loader

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


@pytest.fixture(scope="module")
def plain(nano: Path) -> edgedec.Model:
    """A model whose sessions share nothing."""
    return edgedec.open(nano, engine="native", threads=1, prefix_tokens=0)


@pytest.fixture
def model(plain: edgedec.Model) -> edgedec.Model:
    return edgedec.Model(plain.bundle, plain.runtime, 1024)


def text(n: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, 4000, n).tolist()
    return ids


def generate(model: edgedec.Model, ids: list[int], n: int = 12, **options: Any) -> tuple[list[int], edgedec.Session]:
    session = model.session(speculate=options.pop("speculate", "off"))
    return list(session.tokens(ids, max_tokens=n, ignore_eos=True, **options)), session


@needs_native
@pytest.mark.parametrize("speculate", ["off", "auto", "copy+recycling:fixed=5", "exit:fixed=2"])
def test_the_second_session_reads_what_is_its_own(model: edgedec.Model, plain: edgedec.Model, speculate: str) -> None:
    system, runtime = text(300), CountedRows(model.runtime)
    model.runtime = runtime  # type: ignore[assignment]
    for seed in range(3):
        ids, before = [*system, *text(20, seed + 1)], runtime.rows
        options = {"sampling": Sampling(temperature=0.9, seed=seed)}
        found, session = generate(model, ids, 40, speculate=speculate, **options)
        expected, alone = generate(plain, ids, 40, **options)
        assert found == expected
        assert session._context.cache.save().keys() == alone._context.cache.save().keys()
        for name, array in session._context.cache.save().items():
            assert np.array_equal(array, alone._context.cache.save()[name])
        if seed:
            assert session.stats.cached == 300, "what the texts have in common"
            if speculate == "off":
                assert runtime.rows - before == 20 + 39


@needs_native
def test_two_that_live_hold_the_common_pages_once(model: edgedec.Model) -> None:
    ids = text(200)
    first, second = model.session(speculate="off"), model.session(speculate="off")
    running = first.tokens([*ids, 5], max_tokens=30, ignore_eos=True)
    next(running)
    other = second.tokens([*ids, 6], max_tokens=30, ignore_eos=True)
    next(other)
    pages = [session._context.cache.page_ids() for session in (first, second)]
    assert len(np.intersect1d(*pages)) == 3
    assert list(running)
    assert list(other)


@needs_native
def test_whole_texts_are_continued_from_too(model: edgedec.Model) -> None:
    """A conversation that goes on in a session of its own, as an app without state makes it."""
    found, session = generate(model, text(100), 80)
    _, later = generate(model, [*session.ids, 5, 6, 7])
    assert len(found) == 80
    assert later.stats.cached == 128


@needs_native
def test_no_more_is_held_than_there_is_room_for(model: edgedec.Model) -> None:
    for seed in range(8):
        generate(model, text(300, seed))
        assert model.prefixes.shared.held() <= 1024
    assert len(model.prefixes.shared) == 4
    assert generate(model, text(300, 0))[1].stats.cached == 0, "the least recently used went first"
    assert generate(model, text(300, 7))[1].stats.cached == 256


@needs_native
def test_short_texts_and_texts_too_long_are_not_held(model: edgedec.Model) -> None:
    generate(model, text(40), 4)
    small = edgedec.Model(model.bundle, model.runtime, 128)
    generate(small, text(300), 4)
    assert len(model.prefixes.shared) == len(small.prefixes.shared) == 0


@needs_native
def test_sessions_of_several_threads(model: edgedec.Model, plain: edgedec.Model) -> None:
    system = text(260)
    prompts = [[*system, *text(10, seed)] for seed in range(1, 7)]
    expected = [generate(plain, ids)[0] for ids in prompts]
    found: dict[int, list[list[int]]] = {}
    cached: list[int] = []

    def work(i: int) -> None:
        for turn in range(4):
            tokens, session = generate(model, prompts[(i + turn) % 6])
            found.setdefault((i + turn) % 6, []).append(tokens)
            cached.append(session.stats.cached)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(tokens == expected[i] for i, several in found.items() for tokens in several)
    assert cached.count(256) >= 12


@pytest.mark.parametrize("engine", ["ort", "reference"])
def test_without_pages_nothing_is_shared(nano: Path, engine: str) -> None:
    model = edgedec.open(nano, engine=engine, prefix_tokens=1024)
    ids = text(100)
    generate(model, ids, 2)
    assert generate(model, ids, 2)[1].stats.cached == 0
    assert len(model.prefixes.shared) == 0


def test_a_negative_number_is_refused(nano: Path) -> None:
    with pytest.raises(UsageError, match="prefix_tokens -1: must be 0"):
        edgedec.open(nano, prefix_tokens=-1)


@needs_native
def test_it_is_on_by_default(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.model.PREFIX_TOKENS", 4096)
    model = edgedec.open(nano, engine="native")
    generate(model, text(100), 2)
    assert generate(model, text(100), 2)[1].stats.cached == 64
