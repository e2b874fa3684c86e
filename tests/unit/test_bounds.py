"""However many texts a session reads, its drafters stay within the bounds that docs/speculation.md states."""

from __future__ import annotations

import gc
import random
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.cache.rows import Rows
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, StepResult
from edgedec.decoding.runner import run_requests
from edgedec.drafters import Drafter, DrafterContext, recycling, stand, trigram
from edgedec.drafters import _calls as calls_file
from edgedec.drafters._calls import TokenEmbeddings
from edgedec.drafters._networks.heads import DraftHead
from edgedec.drafters._tables import ranked
from edgedec.drafters._tables.automaton import Automaton
from edgedec.drafters._tables.datastore import Store
from edgedec.drafters.copy import Copy
from edgedec.drafters.recycling import Recycling
from edgedec.drafters.stand import Stand
from edgedec.drafters.suffix import Suffix
from edgedec.drafters.trigram import Trigram
from edgedec.runtime import CallResult
from edgedec.testing.fakes import FakeRuntime

VOCAB, CAP = 97, 40


def calls(drafter: Drafter, texts: int, length: int, seed: int) -> None:
    """Texts of random tokens, every call of which shows more than was asked for."""
    rng, runtime = np.random.default_rng(seed), FakeRuntime()
    for _ in range(texts):
        context = Context(rng.integers(0, VOCAB, 5).tolist(), 5, runtime.new_cache(8))
        drafter.reset()
        while len(context.ids) < length:
            drafter.propose(context, 4, 0.0)
            rows = Rows.chain([context.ids[-1], *rng.integers(0, VOCAB, 3).tolist()], 0)
            ids = np.stack([rng.permutation(VOCAB)[:12] for _ in range(4)]).astype(np.int32)
            scores = -np.sort(rng.random((4, 12)).astype(np.float32), axis=1)
            picked = rng.integers(0, VOCAB, 2).tolist()
            drafter.observe(StepResult(rows, 0, [0, 1], picked, CallResult(ids=ids, scores=scores), 0.0))
            context.ids += picked


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a short test reaches."""
    for file, name in ((recycling, "_CAP"), (trigram, "_PAIRS"), (trigram, "_SINGLES"), (stand, "_CAP")):
        monkeypatch.setattr(file, name, CAP)
    monkeypatch.setattr(ranked, "_FIRST", 4)


def held(table: ranked.Table) -> int:
    """Its keys, if all that belongs to them has a place for each and not more."""
    assert len(table.index) == len(table) <= len(table.keys) == len(table.ids) == len(table.p) == len(table.visits)
    assert table.ids.shape[1] == table.p.shape[1] == table.k
    return len(table.keys)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("texts", [1, 12])
def test_what_is_learned_of_the_model_is_bounded(texts: int) -> None:
    """By tokens and contexts, whatever was read: a full table forgets."""
    known = Recycling(VOCAB)
    calls(known, texts, 100, seed=1)
    assert CAP // 2 <= len(known) <= CAP
    assert len(known._ranked) <= len(known)
    assert all(len(ids) == len(logits) == known.k for ids, logits in known._shown.values())
    two = Trigram(VOCAB)
    calls(two, texts, 100, seed=2)
    assert held(two.pairs) == held(two.singles) == CAP
    three = Stand(VOCAB)
    calls(three, texts, 100, seed=3)
    assert held(three.table) == CAP


@given(seed=st.integers(0, 999), alphabet=st.integers(1, 50), length=st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_what_is_learned_of_a_text_is_bounded_by_it(seed: int, alphabet: int, length: int) -> None:
    """And gone with it."""
    draw = random.Random(seed)
    ids = [draw.randrange(alphabet) for _ in range(length)]
    automaton = Automaton()
    for token in ids:
        automaton.add(token)
    # Blumer et al.: at most 2n - 1 states (and the empty one), 3n - 4 steps between them.
    assert len(automaton.follow) <= max(2 * length, 2)
    assert sum(map(len, automaton.follow)) <= max(3 * length, 3)
    drafter: Any
    for drafter in (Copy(), Suffix()):
        drafter.propose(Context(ids, length, FakeRuntime().new_cache(8)), 8, 0.0)
        if isinstance(drafter, Copy):
            assert sum(map(len, drafter._ends)) <= 4 * length
            assert len(drafter._tracks) <= 4
            assert len(drafter._renamed) <= length
            drafter.reset()
            assert not any(drafter._ends)
        else:
            assert len(drafter._automaton.follow) == len(automaton.follow)
            drafter.reset()
            assert len(drafter._automaton.follow) == 1


def test_stored_texts_are_bounded() -> None:
    drafter = Suffix(Store("00" * 32, VOCAB, limit=200))
    rng = np.random.default_rng(1)
    for _ in range(30):
        ids = rng.integers(0, VOCAB, 50).tolist()
        drafter.propose(Context(ids, 50, FakeRuntime().new_cache(8)), 4, 0.0)
        drafter.reset()
        assert drafter.report()["stored"] <= 200


def answered(proposal: Generator[Any, Completed, Any]) -> Any:
    """What a generator of calls returns, its calls run on a fake."""
    runtime = FakeRuntime()
    try:
        request = next(proposal)
        while True:
            request = proposal.send(run_requests(runtime, [request])[0])
    except StopIteration as stop:
        return stop.value


def test_embeddings_that_heads_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none is missing, however few fit."""
    monkeypatch.setattr(calls_file, "_KEPT", 6 * FakeRuntime().spec.hidden_size)
    host = DrafterContext(FakeRuntime(), None, None)  # type: ignore[arg-type]
    embeddings = TokenEmbeddings(host)
    rng = np.random.default_rng(1)
    for n in (1, 4, 4, 3, 6, 1, 5, 2, 4):
        tokens = rng.choice(13, n, replace=False).tolist()
        assert answered(embeddings.of(tokens))[:, 0].tolist() == tokens
        assert len(embeddings._known) <= 6


@pytest.mark.parametrize("speculate", ["auto", "eagle3:fixed=4", "hydra:fixed=4"])
def test_sessions_leave_nothing_behind(speculate: str) -> None:
    """Of sessions that went no cache stays, no table and no head; looking embeddings up keeps no cache at all."""
    model = edgedec.open("nano", threads=1)

    def alive() -> tuple[int, int]:
        for _ in range(3):  # what a finalizer of the first pass lets go is collected by the next
            gc.collect()
        things = gc.get_objects()
        kept = ("Session", "Governor", "NativeCache", "HostCache")
        found = [type(thing) for thing in things]
        return sum(cls.__name__ in kept for cls in found), found.count(DraftHead)

    before, heads = alive()
    sessions = [model.session(context=64, speculate=speculate) for _ in range(3)]
    for session in sessions:
        list(session.tokens([1, 2, 3], max_tokens=4))
    now, opened = alive()
    # A session, its governor and its cache each, and the cache of a head with layers of its own.
    assert before + 3 * 3 <= now <= before + (3 if speculate.startswith("hydra") else 4) * 3
    assert opened <= heads + 1  # none if a session of another test still has it
    del sessions, session
    assert alive() == (before, heads)
