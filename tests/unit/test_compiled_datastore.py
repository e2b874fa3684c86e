"""The engine's datastore drafter proposes what the Python one does, number for number, from the same mapped file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import check, reading
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.drafters import Draft, DrafterContext
from edgedec.drafters.datastore import CompiledDatastore, DatastoreDrafter, drafter_of
from edgedec.kernels.cpu import loader
from edgedec.runtime import TableSettings
from edgedec.storage.datastore import Datastore, write_datastore

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

DIGEST = "ab" * 32


def made(folder: Path, texts: list[list[int]], segment: int, vocab: int = 6) -> Datastore:
    write_datastore(folder / "it.store", DIGEST, vocab, texts, None, segment)
    return Datastore(folder / "it.store", DIGEST, vocab)


def compiled_of(store: Datastore, least: int = 1) -> CompiledDatastore:
    from edgedec.runtimes._native_drafting import PARTS

    runtime: Any = SimpleNamespace(capabilities=SimpleNamespace(drafting=PARTS))
    bundle: Any = SimpleNamespace()
    found = drafter_of(DrafterContext(runtime, bundle, lambda: pytest.fail("no text")), store, least)
    assert isinstance(found, CompiledDatastore)
    return found


def same(store: Datastore, least: int, texts: list[list[int]], nodes: int, worth: float) -> int:
    """How many tokens both propose after each beginning of these texts."""
    oracle, mine, n = DatastoreDrafter(store, least), compiled_of(store, least), 0
    for text in texts:
        oracle.reset()
        mine.reset()
        for end in range(1, len(text) + 1):
            a, b = (each.propose(reading(text[:end]), nodes, worth) for each in (oracle, mine))
            assert (list(b.tokens), list(b.parents)) == (list(a.tokens), list(a.parents))
            assert list(b.p) == list(a.p)
            n += len(a.tokens)
    assert mine.report() == oracle.report()
    return n


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_the_same_proposals(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Of few tokens, so that matches are many, of all lengths, and at the ends of documents and segments; the texts
    go on as the documents do, or have tokens that no document has."""
    letters = data.draw(st.integers(1, 4))
    documents = st.lists(st.integers(0, letters - 1), min_size=1, max_size=40)
    texts = data.draw(st.lists(documents, min_size=1, max_size=8))
    store = made(tmp_path_factory.mktemp("store"), texts, data.draw(st.sampled_from([3, 17, 60, 1 << 21])))
    asked = [data.draw(st.lists(st.integers(0, letters), min_size=1, max_size=20)), data.draw(st.sampled_from(texts))]
    nodes, worth = data.draw(st.integers(0, 40)), data.draw(st.sampled_from([0.0, 0.05, 0.2]))
    same(store, data.draw(st.integers(1, 12)), asked, nodes, worth)


@pytest.mark.parametrize("segment", [500, 1 << 21])
def test_much_is_proposed_from_many_places(tmp_path: Path, segment: int) -> None:
    rng = np.random.default_rng(0)
    texts = [(rng.integers(0, 5, 400) // 2).tolist() for _ in range(20)]
    assert same(made(tmp_path, texts, segment), 2, [text[:60] for text in texts[:3]], 30, 0.0) > 1000


def test_a_table_of_its_own_for_every_session_and_the_file_for_all(tmp_path: Path) -> None:
    store = made(tmp_path, [[1, 2, 3, 4, 5] * 4], 8)
    first, second = compiled_of(store), compiled_of(made(tmp_path, [[1, 2, 0]], 8))
    second.inherit(first)
    twin = first.table.fork()
    del first
    group = second.parts.group([twin, second.table], [])
    assert group.propose_one(0, [9, 1, 2], 1, 3, 0.0)[0] == [3, 4, 5]
    assert group.propose_one(1, [9, 1, 2], 1, 3, 0.0)[0] == [0]
    assert second.report() == {"stored": 4, "lookups": 1, "matches": 1}


@given(st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_arrays_that_no_file_has_are_read_within_their_bounds(seed: int) -> None:
    """As if the file were written to after it was checked; the sanitizers see the same in `tests/native`."""
    from edgedec.runtimes._native_drafting import PARTS

    rng = np.random.default_rng(seed)
    n, wild = int(rng.integers(0, 60)), np.array([-(1 << 31), -1, 60, (1 << 31) - 1])
    tokens, order = rng.integers(0, 3, n), rng.integers(0, max(n, 1), n)
    for array in (tokens, order):
        array[rng.random(n) < 0.2] = rng.choice(wild)
    chosen = TableSettings("datastore", 6, ngram=1)
    table = PARTS.table(chosen)
    assert table is not None
    table.index(tokens.astype(np.int32), order.astype(np.int32))
    group = PARTS.group([table], [])
    for end in range(1, 30):
        nodes = int(rng.integers(0, 30))
        draft = Draft(*group.propose_one(0, rng.integers(0, 3, end).tolist(), 1, nodes, 0.0))
        check(draft, nodes, 0.04, 6)
        group.reset()


@pytest.mark.parametrize("least", [0, 13])
def test_what_cannot_be_is_refused(least: int) -> None:
    from edgedec.runtimes._native_drafting import PARTS

    assert PARTS.table(TableSettings("datastore", 6, ngram=least)) is None
    other = PARTS.table(TableSettings("copy", ngram=3))
    assert other is not None
    with pytest.raises(ValueError, match="refuses"):
        other.index(np.zeros(3, np.int32), np.zeros(3, np.int32))
