"""What opening a session and forking one cost: heads opened once, texts shared, no room for drafts of its own."""

from __future__ import annotations

import gc
import shutil
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from threading import Barrier
from time import sleep
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.bundle import Bundle
from edgedec.decoding.context import Context
from edgedec.drafters._networks.shared import OfRuntime
from edgedec.kernels.cpu.loader import why_not
from edgedec.session import Session
from edgedec.testing.fake_runtime import FakeRuntime

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"native engine: {why_not()}")

LIMIT = 48 << 10  # bytes; the list of 8,000 tokens alone takes 64,000
FORKS = 8


@pytest.fixture
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The cyclic garbage collector is off: what is freed had no cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def member(session: Session, name: str = "eagle3") -> Any:
    """The drafter of this name."""
    governor = session._drafter.drafter  # type: ignore[attr-defined]
    return next(member.drafter for member in governor.members if member.name == name)


def bytes_of(make: Callable[[], Any]) -> float:
    """Bytes that one of several such objects holds."""
    make()
    tracemalloc.start()
    try:
        kept = [make() for _ in range(FORKS)]
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()


# ---- heads ----


def test_sessions_share_one_opened_head(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bundle is read once; what a session computes with it is its own."""
    opened, part = list[str](), Bundle.part
    monkeypatch.setattr(Bundle, "part", lambda bundle, name: opened.append(name) or part(bundle, name))
    first, second = model.session(), model.session()
    readers = [member(session)._reader for session in (first, second, first.fork(), model.session(speculate="eagle3"))]
    assert len(opened) == 1
    assert len({id(reader.head) for reader in readers}) == 1
    for own in ("_cache", "_embeddings"):
        assert len({id(getattr(reader, own)) for reader in readers}) == len(readers)
    assert len({id(reader._embeddings._known) for reader in readers}) == len(readers)


def test_models_do_not_share_an_opened_head(model: edgedec.Model, nano: Path) -> None:
    """It is released with its model; weights are shared as before."""
    other = edgedec.open(nano, engine="native", threads=1)
    heads = [member(each.session())._reader.head for each in (model, other)]
    assert heads[0] is not heads[1]
    assert heads[0].runtime is heads[1].runtime


def test_a_model_that_is_dropped_is_freed_with_its_head(nano: Path, tmp_path: Path) -> None:
    model = edgedec.open(copytree(nano, tmp_path / "alone"), engine="native", threads=1)
    session = model.session()
    list(session.tokens([1, 2, 3, 1, 2], max_tokens=4, ignore_eos=True))
    head = member(session)._reader.head
    known = [weakref.ref(each) for each in (model.runtime, head, head.runtime)]
    del session, head
    gc.collect()
    assert all(each() is not None for each in known), "without sessions it stays open for the next one"
    del model
    gc.collect()
    assert [each() for each in known] == [None] * 3


def test_a_head_that_cannot_be_opened_is_tried_again(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(bundle: Bundle, name: str) -> Bundle:
        raise MemoryError(name)

    with monkeypatch.context() as patched:
        patched.setattr(Bundle, "part", fail)
        with pytest.raises(MemoryError):
            model.session()
    assert member(model.session())._reader.head.runtime.spec.n_blocks > 0


def test_threads_that_open_at_once_get_one_object() -> None:
    runtime, made, shared, start = FakeRuntime(), list[object](), OfRuntime[object](), Barrier(4)

    def make() -> object:
        sleep(0.01)  # the others are waiting meanwhile
        made.append(object())
        return made[-1]

    def get() -> object:
        start.wait()
        return shared.get(runtime, "head", make)

    with ThreadPoolExecutor(4) as pool:
        found = [done.result() for done in [pool.submit(get) for _ in range(4)]]
    assert len(made) == 1
    assert all(each is made[0] for each in found)
    assert shared.get(FakeRuntime(), "head", make) is not made[0]


def test_sessions_opened_at_once_draft_alike(model: edgedec.Model) -> None:
    ids, start = list(range(40, 60)) * 2, Barrier(3)

    def run() -> tuple[Session, list[int]]:
        start.wait()
        session = model.session(speculate="eagle3+copy:fixed=3")
        return session, list(map(int, session.tokens(ids, max_tokens=24, ignore_eos=True)))

    with ThreadPoolExecutor(3) as pool:
        found = [done.result() for done in [pool.submit(run) for _ in range(3)]]
    plain = list(map(int, model.session(speculate="off").tokens(ids, max_tokens=24, ignore_eos=True)))
    assert [tokens for _, tokens in found] == [plain] * 3
    assert len({id(member(session)._reader.head) for session, _ in found}) == 1
    assert all(session.report()["drafters"]["eagle3"]["proposed"] > 9 for session, _ in found)


# ---- texts ----


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a context of 16,384 tokens and a random head."""
    torch = pytest.importorskip("torch", reason="needs torch and transformers to write checkpoints")
    from draft_checkpoints import eagle3, target

    from edgedec.export.drafts import add_draft
    from edgedec.export.exporter import ExportOptions, export

    folder, context = tmp_path_factory.mktemp("long"), 16384
    checkpoint = target(4)
    checkpoint.config.max_position_embeddings = context
    checkpoint.save_pretrained(folder / "checkpoint")
    options = ExportOptions(weights="int8", check=False, runtimes=())
    bundle = export(str(folder / "checkpoint"), folder / "bundle", options)
    torch.manual_seed(5)
    head = eagle3()
    head.config.update(max_position_embeddings=context)
    add_draft(bundle, head.save(folder / "draft"))
    shutil.rmtree(folder / "checkpoint")
    return folder / "bundle"


@pytest.mark.parametrize("length", [960, 8000])
def test_a_fork_holds_little_however_long_the_text(length: int, long: Path) -> None:
    """Neither room for drafts nor a copy of the text, its own or the head's."""
    model = edgedec.open(long, engine="native", threads=1)
    ids = np.random.default_rng(0).integers(3, model.spec.vocab_size, length).tolist()
    for words in ("off", "auto", "eagle3+copy+suffix:fixed=4"):
        session = model.session(speculate=words)
        list(session.tokens(ids, max_tokens=4, ignore_eos=True))
        if words.startswith("eagle3"):
            assert len(member(session)._reader._text) > length
        assert bytes_of(session.fork) < LIMIT
        assert session.fork().ids == session.ids
        assert len(session.ids) == length + 4


def test_a_session_holds_little(model: edgedec.Model) -> None:
    assert 0 < bytes_of(model.session) < LIMIT


def test_a_fork_continues_its_text_whatever_becomes_of_the_other(model: edgedec.Model) -> None:
    """The other one goes on, slides or gets another prompt before the fork looks at its text."""
    ids = list(range(40, 60)) * 2
    whole = list(map(int, model.session(speculate="off").tokens(ids, max_tokens=20, ignore_eos=True)))
    for words in ("off", "auto", "eagle3+copy:fixed=3"):
        session = model.session(speculate=words, context=64, on_full="slide")
        assert list(map(int, session.tokens(ids, max_tokens=8, ignore_eos=True))) == whole[:8]
        before, forks = session.ids, [session.fork() for _ in range(3)]
        forks.append(forks[0].fork())  # of a fork that has not been used
        list(session.tokens(max_tokens=40, ignore_eos=True))
        assert len(session.ids) < len(before) + 40, "it slid"
        assert list(map(int, forks[0].tokens(max_tokens=12, ignore_eos=True))) == whole[8:]
        list(session.tokens([7, 8, 9], max_tokens=2, ignore_eos=True))
        forks[1].append([5])
        assert forks[1].ids == [*before, 5]
        assert list(map(int, forks[2].tokens(max_tokens=12, ignore_eos=True))) == whole[8:]
        assert list(map(int, forks[3].tokens(max_tokens=12, ignore_eos=True))) == whole[8:]
        assert forks[0].ids == forks[2].ids == forks[3].ids == [*before, *whole[8:]]
        assert session.ids[:3] == [7, 8, 9]


def test_texts_of_forks_are_lists_of_their_own() -> None:
    context = Context([1, 2, 3], 3, FakeRuntime().new_cache(4), sinks=1)
    first, second = context.fork(), context.fork()
    context.ids.append(4)
    first.ids.append(5)
    assert (context.ids, first.ids, second.ids) == ([1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3])
    third = first.fork()
    context.make_room()
    first.make_room()
    assert (context.ids, first.ids) == ([1, 4], [1, 5])
    assert (third.ids, second.ids) == ([1, 2, 3, 5], [1, 2, 3])
    unused = second.fork()
    unused.ids = [9]  # as a saved text is loaded
    assert (unused.fork().ids, second.ids) == ([9], [1, 2, 3])
    assert "ids=[1, 2, 3]" in repr(second.fork())
    with pytest.raises(AttributeError, match="idz"):
        _ = context.idz  # type: ignore[attr-defined]


# ---- what is freed ----


@pytest.mark.usefixtures("uncollected")
def test_a_session_that_drafted_is_freed_at_once(model: edgedec.Model) -> None:
    """Its tables, too, without a garbage collection."""
    session = model.session(speculate="copy+suffix+eagle3:fixed=4")
    list(session.tokens([40, 41, 42] * 9, max_tokens=20, ignore_eos=True))
    assert session.report()["drafters"]["copy"]["proposed"] > 9
    group = session._drafter.drafter._compiled._group  # type: ignore[attr-defined]
    known = [weakref.ref(each) for each in (session, session._context, group, *filter(None, group._tables))]
    assert len(known) == 5
    del session, group
    assert [each() for each in known] == [None] * 5


@pytest.mark.usefixtures("uncollected")
def test_a_fork_does_not_keep_the_other_session(model: edgedec.Model) -> None:
    session = model.session()
    list(session.tokens([40, 41, 42], max_tokens=3, ignore_eos=True))
    twin, known = session.fork(), weakref.ref(session)
    del session
    assert known() is None
    assert len(twin.ids) == 6
