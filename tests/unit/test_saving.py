"""Saving and loading of an unfinished text: all of it comes back, or nothing changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drafting import left

from edgedec.bundle.adapter import LoraAdapter
from edgedec.bundle.routed import routed
from edgedec.cache.snapshot import read_file
from edgedec.decoding.context import Context
from edgedec.decoding.draft import BaseDrafter
from edgedec.decoding.saving import load_context, save_context
from edgedec.errors import SessionError, UsageError
from edgedec.runtime import Call, Rows, forward_one
from edgedec.testing.fakes import FakeRuntime, tiny_spec

TEXT, BUNDLE = [i * i % 13 for i in range(20)], "ab" * 32


class Learned(BaseDrafter):
    """Its state is one number; it refuses a negative one."""

    def __init__(self, number: int) -> None:
        self.number, self.resets = number, 0

    def state(self) -> Any:
        return {"number": np.array([self.number])}

    def restore(self, state: Any) -> None:
        if state["number"][0] < 0:
            raise UsageError("a negative number")
        self.number = int(state["number"][0])

    def reset(self) -> None:
        self.resets += 1


def read(n: int = 17, seed: int = 3) -> Context:
    runtime = FakeRuntime(tiny_spec())
    context = Context(list(TEXT), 12, runtime.new_cache(64), rng=np.random.default_rng(seed))
    context.rng.random(5)
    forward_one(runtime, Call(Rows.chain(TEXT[:n], 0), context.cache))
    context.cache.commit(range(n))
    return context


def fresh(**more: Any) -> Context:
    return Context([1], 1, FakeRuntime(tiny_spec()).new_cache(64), **more)


@pytest.mark.parametrize("reread", [False, True])
def test_a_text_comes_back_as_it_was(tmp_path: Path, reread: bool) -> None:
    saved, loaded, runtime, drafter = read(), fresh(), FakeRuntime(tiny_spec(), prefill_chunk=6), Learned(1)
    save_context(tmp_path / "a", BUNDLE, saved, Learned(7), reread)
    load_context(tmp_path / "a", BUNDLE, runtime, loaded, drafter)
    assert left(loaded) == left(saved)
    assert (loaded.n_prompt, drafter.number, drafter.resets) == (12, 7, 1)
    assert (runtime.calls, runtime.rows) == ((3, 17) if reread else (0, 0))
    assert (tmp_path / "a").stat().st_size > 0
    snapshot, _ = read_file(tmp_path / "a")
    assert bool(snapshot.reread) is reread
    assert snapshot.length == 17


def test_a_file_without_its_cache_is_smaller(tmp_path: Path) -> None:
    for reread in (False, True):
        save_context(tmp_path / str(reread), BUNDLE, read(), Learned(7), reread)
    assert (tmp_path / "True").stat().st_size < (tmp_path / "False").stat().st_size / 2


def test_a_text_that_reads_otherwise_is_refused(tmp_path: Path) -> None:
    save_context(tmp_path / "a", BUNDLE, read(), Learned(7), True)

    class Other(FakeRuntime):
        def _embed(self, rows: Rows) -> Any:
            return super()._embed(rows) + 1

    context, drafter = fresh(), Learned(1)
    before = left(context)
    for isa, named in (("", r"engine fake\)"), ("avx2", r"engine fake, avx2\)")):
        with pytest.raises(SessionError, match=f"gives another cache than was saved .{named}"):
            load_context(tmp_path / "a", BUNDLE, Other(tiny_spec(), isa=isa), context, drafter)
    assert (left(context), drafter.number, drafter.resets) == (before, 1, 0)


def test_a_drafter_s_state_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    save_context(tmp_path / "a", BUNDLE, read(), Learned(-7), False)
    context, drafter = fresh(), Learned(1)
    before = left(context)
    with pytest.raises(SessionError, match="a negative number"):
        load_context(tmp_path / "a", BUNDLE, FakeRuntime(tiny_spec()), context, drafter)
    assert (left(context), drafter.number, drafter.resets) == (before, 1, 0)


@pytest.mark.parametrize(("at", "token"), [(0, -1), (7, -1), (7, 1 << 20), (19, None)])
def test_one_token_outside_the_vocabulary_is_enough(tmp_path: Path, at: int, token: int | None) -> None:
    damaged, spec = read(), tiny_spec()
    damaged.ids[at] = spec.vocab_size if token is None else token
    save_context(tmp_path / "a", BUNDLE, damaged, Learned(7), False)
    context, drafter = fresh(), Learned(1)
    before = left(context)
    with pytest.raises(SessionError, match="a token outside the vocabulary"):
        load_context(tmp_path / "a", BUNDLE, FakeRuntime(spec), context, drafter)
    assert (left(context), drafter.number, drafter.resets) == (before, 1, 0)
    damaged.ids[at] = spec.vocab_size - 1
    save_context(tmp_path / "a", BUNDLE, damaged, Learned(7), False)
    load_context(tmp_path / "a", BUNDLE, FakeRuntime(spec), context, drafter)
    assert context.ids[at] == spec.vocab_size - 1


def test_what_reading_would_not_give_is_saved_whole(tmp_path: Path) -> None:
    pruned = read()
    pruned.cache.drop(0, [2, 3])
    with pytest.raises(SessionError, match="holds less than its text"):
        save_context(tmp_path / "a", BUNDLE, pruned, Learned(7), True)
    pruned.policy = SimpleNamespace(words="h2o", state=dict)  # type: ignore[assignment]
    with pytest.raises(SessionError, match="a cache with a policy"):
        save_context(tmp_path / "a", BUNDLE, pruned, Learned(7), True)
    assert not (tmp_path / "a").exists()
    save_context(tmp_path / "a", BUNDLE, pruned, Learned(7), False)
    assert read_file(tmp_path / "a")[0].policy == "h2o"


@pytest.mark.parametrize(
    ("cached", "capacity", "fits"), [(17, 19, True), (17, 18, False), (20, 20, True), (20, 19, False)]
)
def test_a_text_fits_with_one_token_that_is_not_cached(tmp_path: Path, cached: int, capacity: int, fits: bool) -> None:
    save_context(tmp_path / "a", BUNDLE, read(cached), Learned(7), False)
    runtime = FakeRuntime(tiny_spec())
    loaded = Context([1], 1, runtime.new_cache(capacity))
    if not fits:
        with pytest.raises(SessionError, match=f"20 tokens do not fit this session's context of {capacity}"):
            load_context(tmp_path / "a", BUNDLE, runtime, loaded, Learned(1))
        assert (loaded.ids, loaded.cache.length) == ([1], 0)
        return
    load_context(tmp_path / "a", BUNDLE, runtime, loaded, Learned(1))
    assert (loaded.ids, loaded.cache.length) == (TEXT, cached)


def test_cache_policies_are_named(tmp_path: Path) -> None:
    pruned, other = read(), fresh()
    pruned.policy = SimpleNamespace(words="h2o", state=dict)  # type: ignore[assignment]
    other.policy = SimpleNamespace(words="snapkv", state=dict)  # type: ignore[assignment]
    save_context(tmp_path / "h2o", BUNDLE, pruned, Learned(7), False)
    save_context(tmp_path / "whole", BUNDLE, read(), Learned(7), False)
    runtime = FakeRuntime(tiny_spec())
    for name, context, said in (
        ("h2o", fresh(), "saved with cache policy h2o, this session has none; open it with --cache h2o"),
        ("h2o", other, "saved with cache policy h2o, this session has snapkv; open it with --cache h2o"),
        ("whole", other, "saved with the whole cache, this session has snapkv; open it with --cache full"),
    ):
        with pytest.raises(SessionError, match=said):
            load_context(tmp_path / name, BUNDLE, runtime, context, Learned(1))


def test_a_set_of_adapters_is_another_adapter_than_each_of_it(tmp_path: Path) -> None:
    adapted, adapters = read(), [LoraAdapter(name, name * 64, {}) for name in "abc"]
    adapted.adapter = routed(adapters[:2])
    save_context(tmp_path / "s", BUNDLE, adapted, Learned(7), False)
    for other in (None, adapters[0], adapters[1], routed(adapters), routed(adapters[1:])):
        with pytest.raises(SessionError, match="saved with another adapter"):
            load_context(tmp_path / "s", BUNDLE, FakeRuntime(tiny_spec()), fresh(adapter=other), Learned(1))
    again = routed([LoraAdapter("again", adapter.digest, {}) for adapter in adapters[1::-1]])
    load_context(tmp_path / "s", BUNDLE, FakeRuntime(tiny_spec()), fresh(adapter=again), Learned(1))


def test_adapters_are_named(tmp_path: Path) -> None:
    adapted, other = read(), SimpleNamespace(digest="cd" * 32)
    adapted.adapter = other  # type: ignore[assignment]
    save_context(tmp_path / "a", BUNDLE, adapted, Learned(7), False)
    assert read_file(tmp_path / "a")[0].adapter == "cd" * 32
    with pytest.raises(SessionError):
        load_context(tmp_path / "a", BUNDLE, FakeRuntime(tiny_spec()), fresh(), Learned(1))
    load_context(tmp_path / "a", BUNDLE, FakeRuntime(tiny_spec()), fresh(adapter=other), Learned(1))
