"""The native runtime at its edges: outputs besides logits, refusals, forks and threads, saved sessions."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle

import edgedec
from edgedec.bundle import Bundle
from edgedec.cache import Cache
from edgedec.errors import ContextFull, RuntimeUnavailable, SessionError, UsageError
from edgedec.kernels.cpu import codes, draft_structs, loader, structs
from edgedec.runtime import (
    Call,
    CallResult,
    Outputs,
    Rows,
    Runtime,
    RuntimeOptions,
    forward_one,
    logits_of,
    open_runtime,
)
from edgedec.runtimes import _native_packing
from edgedec.runtimes.reference import attention
from edgedec.runtimes.reference.numeric import BlockWeights
from edgedec.spec import KV_FORMATS, Attention, Mlp
from edgedec.speculation.bank import Bank, Experience, Means, TextAccount
from edgedec.speculation.record import DrafterRecord

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")

HEADER = Path(__file__).parents[2] / "kernels" / "cpu" / "api.h"
PROMPT = "the ring and one"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A vocabulary of several strips."""
    spec = ODD["large"]
    return write_bundle(tmp_path_factory.mktemp("large") / "b", spec, random_weights(spec), "int4")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    spec = ODD["plain"]
    return write_bundle(tmp_path_factory.mktemp("plain") / "b", spec, random_weights(spec))


def hidden_of(bundle: Bundle, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, bundle.spec.hidden_size)).astype(np.float32)


def head(runtime: Runtime, hidden: np.ndarray, outputs: Outputs) -> CallResult:
    """The head alone, on hidden states."""
    return forward_one(
        runtime, Call(Rows.chain([0] * len(hidden), 0), runtime.new_cache(len(hidden)), (), hidden, outputs)
    )


def head_logits(runtime: Runtime, hidden: np.ndarray) -> np.ndarray:
    logits = head(runtime, hidden, Outputs(logits=True)).logits
    assert logits is not None
    return logits


# -- the best tokens


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_best_are_those_of_all_logits(large: Bundle, threads: int) -> None:
    runtime, hidden = native.NativeRuntime(large, "f32", threads), hidden_of(large, 9)
    logits = head_logits(runtime, hidden)
    order = np.argsort(-logits, axis=1, kind="stable")  # the lowest id of equals first
    for k in (1, 2, 5, 100, 1201, 5000):
        for both in (False, True):
            found = head(runtime, hidden, Outputs(logits=both, top=k))
            assert found.ids.shape == (9, min(k, 1201))
            np.testing.assert_array_equal(found.ids, order[:, :k])
            np.testing.assert_array_equal(found.scores, np.take_along_axis(logits, order[:, :k], 1))
            assert (found.logits is not None) == both
            if both:
                assert found.logits.tobytes() == logits.tobytes()
    rows = Rows.chain(range(9), 0)
    logits = logits_of(runtime, rows, runtime.new_cache(9), 2)
    found = forward_one(runtime, Call(rows, runtime.new_cache(9), outputs=Outputs(top=1, logits_from=2)))
    np.testing.assert_array_equal(found.ids[:, 0], logits.argmax(axis=1))
    assert found.logits is None


def test_of_equals_the_lowest_wins(tmp_path: Path) -> None:
    """A vocabulary of rows that come back every 7 tokens: whichever thread sees them first."""
    spec = ODD["large"]
    read = random_weights(spec)
    table = np.tile(read("embed")[:7], (172, 1))[: spec.vocab_size]
    bundle = write_bundle(tmp_path / "b", spec, lambda name: table if name == "embed" else read(name), "int8")
    for threads in (1, 2):
        runtime = native.NativeRuntime(bundle, "f32", threads)
        for _ in range(20):
            found = head(runtime, hidden_of(bundle, 5), Outputs(top=10))
            first = head_logits(runtime, hidden_of(bundle, 5))[:, :7].argmax(axis=1)
            np.testing.assert_array_equal(found.ids, first[:, None] + 7 * np.arange(10))
            assert (found.scores == found.scores[:, :1]).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("weights", ["f32", "int8", "int4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_has_no_best(tmp_path: Path, weights: str, threads: int, bad: float) -> None:
    """A hidden state that is not finite: its row is lost, the rows beside it are not."""
    spec = ODD["plain"]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), weights)
    runtime = native.NativeRuntime(bundle, "f32", threads)
    hidden = hidden_of(bundle, 3)
    hidden[1, 3] = bad
    found = head(runtime, hidden, Outputs(top=1))
    assert found.ids[[0, 2], 0].tolist() == head_logits(runtime, hidden)[[0, 2]].argmax(axis=1).tolist()
    assert found.ids[1, 0] == -1
    assert not np.isfinite(found.scores[1, 0])


def test_there_is_no_best_token_for_a_row_that_is_not_finite(tmp_path: Path) -> None:
    """A token whose embedding is not finite: the rows after it are lost, those of other branches are not."""
    spec = ODD["plain"]
    read = random_weights(spec)
    embed = read("embed").copy()
    embed[5, 2] = np.inf
    bundle = write_bundle(tmp_path / "b", spec, lambda name: embed if name == "embed" else read(name))
    runtime = native.NativeRuntime(bundle, "f32", 2)
    rows = Rows.tree([1, 5, 2, 3], [-1, 0, 0, 1], 0)
    found = forward_one(runtime, Call(rows, runtime.new_cache(4), outputs=Outputs(top=1))).ids[:, 0].tolist()
    logits = logits_of(runtime, rows, runtime.new_cache(4))
    assert found == [int(logits[0].argmax()), -1, int(logits[2].argmax()), -1]
    with pytest.raises(UsageError, match="not finite"):
        list(edgedec.Model(bundle, runtime).session().tokens([1, 5], max_tokens=1))


# -- calls that differ in one token only

ALIKE = [
    Outputs(top=5, logsum=True),
    Outputs(logits=True),
    Outputs(True, 3, True, temperature=0.7, entropy=True),
    Outputs(entropy=True),
]


def forks_of(runtime: Runtime, n: int) -> list[Cache]:
    """Forks of one text, of different lengths."""
    cache = runtime.new_cache(40)
    forward_one(runtime, Call(Rows.chain(range(9), 0), cache))
    cache.commit(range(9))
    forks = [cache.fork() for _ in range(n)]
    for i, fork in enumerate(forks[1:]):
        forward_one(runtime, Call(Rows.chain(range(i, 2 * i + 1), 9), fork))
        fork.commit(range(i + 1))
    return forks


@pytest.mark.parametrize("outputs", ALIKE)
def test_calls_that_are_alike_give_what_each_gives_alone(
    large: Bundle, outputs: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, packed = native.NativeRuntime(large, "f32", 2), list[int]()
    own = runtime._packer.pack_alike

    def seen(calls: list[Call], keep: list[object]) -> object:
        found = own(calls, keep)
        packed.append(0 if found is None else len(calls))
        return found

    monkeypatch.setattr(runtime._packer, "pack_alike", seen)
    forks = forks_of(runtime, 5)
    rows = Rows.singles([3, 1, 4, 1, 5], [fork.length for fork in forks])
    calls = [Call(row, fork, outputs=outputs) for row, fork in zip(rows, forks, strict=True)]
    together = runtime.forward(calls)
    assert packed == [5]
    for call, result in zip(calls, together, strict=True):
        call.cache.rollback()
        alone = forward_one(runtime, call)
        for name in ("logits", "ids", "scores", "logsum", "entropy"):
            a, b = getattr(result, name), getattr(alone, name)
            assert (a is None) == (b is None)
            if a is not None:
                assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes()), name
        assert (result.hidden, result.attention, result.queries, result.drawn) == ({}, {}, {}, None)
    # Their rows are committed as any others.
    runtime.forward(calls)
    lengths = [fork.length for fork in forks]
    for fork in forks:
        fork.commit((0,))
    assert [fork.length for fork in forks] == [n + 1 for n in lengths]


def test_calls_that_are_not_alike_are_packed_one_by_one(large: Bundle) -> None:
    runtime = native.NativeRuntime(large, "f32", 1)
    other, (cache, *_) = native.NativeRuntime(large, "f32", 1), forks_of(runtime, 2)
    best, hidden = Outputs(top=2), hidden_of(large, 1)
    (row,) = Rows.singles([3], [cache.length])
    call = Call(row, cache, outputs=best)
    pack = runtime._packer.pack_alike
    assert pack([call, call], []) is not None
    for unlike in (
        call._replace(outputs=Outputs(top=3)),
        call._replace(blocks=(0,)),
        call._replace(hidden=hidden),
        call._replace(views={0: object()}),
        call._replace(adapter=object()),
        call._replace(cache=object()),
        call._replace(cache=SimpleNamespace(spec=other.spec)),
        call._replace(rows=Rows.chain([3, 4], cache.length)),
        call._replace(rows=Rows.chain([3, 4], cache.length).extend([], [])),
        call._replace(rows=Rows.embedded(hidden, cache.length)),
        call._replace(rows=replace(row, first=1)),
        call._replace(rows=replace(row, numbers=np.array([0]))),
        call._replace(rows=replace(row, groups=np.array([0]))),
    ):
        assert pack([call, unlike], []) is None, unlike
    for more in ({"hidden": (0,)}, {"attention": True}, {"queries": (0,)}, {"top": 0}):
        outputs = Outputs(top=2)._replace(**more)
        same = call._replace(outputs=outputs)
        assert pack([same, same], []) is None, outputs
    cold = call._replace(outputs=Outputs(logsum=True, temperature=0.0))
    with pytest.raises(UsageError, match=r"temperature 0\.0 of a log-sum"):
        pack([cold, cold], [])


def test_too_many_calls_that_are_alike(large: Bundle) -> None:
    runtime = native.NativeRuntime(large, "f32", 1)
    forks, full, best = forks_of(runtime, 3), runtime.new_cache(9), Outputs(top=2)
    forward_one(runtime, Call(Rows.chain(range(9), 0), full))
    full.commit(range(9))
    runtime._largest = 2
    with pytest.raises(UsageError, match="3 rows in one forward: this runtime takes 2"):
        runtime.forward([Call(Rows.chain([3], fork.length), fork, outputs=best) for fork in forks])
    with pytest.raises(ContextFull, match="10 rows do not fit a cache of 9"):
        runtime.forward([Call(Rows.chain([1], cache.length), cache, outputs=best) for cache in (forks[0], full)])


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_greedy_text_is_that_of_all_logits(tiny: Path, kv: str) -> None:
    model = edgedec.open(tiny, engine="native", kv=kv)
    ids = model.tokenizer.encode(PROMPT)
    best = list(map(int, model.session().tokens(ids, max_tokens=60, ignore_eos=True)))
    logits = list(map(int, model.session().tokens(ids, max_tokens=60, ignore_eos=True, logprobs=0)))
    assert best == logits
    assert len(set(best)) > 5


# -- attention sums


def prompted(runtime: Runtime, before: list[int], room: int) -> Cache:
    """A cache that holds a text, with room for more."""
    cache = runtime.new_cache(len(before) + room)
    for at in range(0, len(before), 128):
        part = before[at : at + 128]
        runtime.forward([Call(Rows.chain(part, at), cache)])
        cache.commit(range(len(part)))
    return cache


def numpy_sums(bundle: Bundle, rows: Rows, before: list[int]) -> dict[int, np.ndarray]:
    """Softmax by hand, block by block, of queries and keys taken from a reference run in float64."""
    spec, reference = bundle.spec, open_runtime("reference", bundle)
    cache = prompted(reference, before, len(rows))
    hidden, found = reference.embed(rows), {}
    for b, block in enumerate(spec.blocks):
        after = forward_one(reference, Call(rows, cache, [b], hidden, Outputs(hidden=(b,)))).hidden[b]
        if isinstance(block, Attention):
            w = BlockWeights(spec, b, reference._weights, None)
            q = attention._qkv(block, w, w.norm(hidden, block.norm))[0]
            q = attention.rotate(block, spec, q, rows.positions).astype(np.float64)
            keys = cache.data(b)[0][:, : len(before) + len(rows)].astype(np.float64)
            keys = np.repeat(keys, block.n_heads // block.n_kv_heads, axis=0)
            scores = q @ keys.transpose(0, 2, 1) * block.scale
            scores = np.where(rows.mask(cache.positions(b), block.window), scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            found[b] = weights.sum(axis=1).reshape(block.n_kv_heads, -1, weights.shape[-1]).sum(axis=1)
        hidden = after
    return found


def sums_of(bundle: Bundle, rows: Rows, before: list[int], threads: int, kv: str = "f32") -> dict[int, np.ndarray]:
    """The attention sums of every block, by a call whose other outputs are what they are without."""
    spec, runtime = bundle.spec, native.NativeRuntime(bundle, kv, threads)
    cache, last = prompted(runtime, before, len(rows)), spec.n_blocks - 1
    plain = forward_one(runtime, Call(rows, cache, outputs=Outputs(logits=True, hidden=(last,))))
    cache.rollback()
    found = forward_one(runtime, Call(rows, cache, outputs=Outputs(logits=True, hidden=(last,), attention=True)))
    assert found.hidden[last].tobytes() == plain.hidden[last].tobytes()
    assert found.logits.tobytes() == plain.logits.tobytes()
    assert plain.attention == {}
    assert found.attention.keys() == spec.attention.keys()
    for b, paid in found.attention.items():
        assert (paid.dtype, paid.shape) == (np.float32, (spec.attention[b].n_kv_heads, len(before) + len(rows)))
    return found.attention


def test_attention_sums_are_the_softmax(plain: Bundle) -> None:
    before, tree = [3, 1, 4, 1, 5, 9, 2, 6], Rows.tree([5, 3, 5, 8, 9], [-1, 0, 0, 2, -1], 8)
    found, expected = sums_of(plain, tree, before, 1), numpy_sums(plain, tree, before)
    assert found.keys() == expected.keys()
    assert len(found) == 3
    for b, paid in found.items():
        np.testing.assert_allclose(paid, expected[b], atol=1e-5)
    windowed = plain.spec.span(1, 2)[0]
    assert (found[windowed][:, 0] == 0).all(), "the second layer's window hides the first token"
    assert (found[0][:, 0] > 0).all()


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_attention_sums_add_up_and_know_no_threads(plain: Bundle, kv: str) -> None:
    spec = plain.spec
    ids = np.random.default_rng(0).integers(0, spec.vocab_size, 450).tolist()
    for n in (1, 7, 150):
        rows = Rows.chain(ids[:n], 300)
        found = sums_of(plain, rows, ids[:300], 1, kv)
        for b, block in spec.attention.items():
            np.testing.assert_allclose(found[b].sum(axis=1), n * block.n_heads // block.n_kv_heads, rtol=1e-4)
        for threads in (2, 3):
            others = sums_of(plain, rows, ids[:300], threads, kv)
            assert {b: paid.tobytes() for b, paid in others.items()} == {b: p.tobytes() for b, p in found.items()}


def test_attention_sums_are_those_of_the_blocks_that_run(plain: Bundle) -> None:
    """In a ragged call, each sequence gets its own; a block gets as many slots as it holds, the pending ones too."""
    spec, runtime = plain.spec, native.NativeRuntime(plain, "f32", 2)
    rows = Rows.chain([1, 2], 8)
    before, wanted = [3, 1, 4, 1, 5, 9, 2, 6], Outputs(attention=True)
    whole, part = prompted(runtime, before, 4), prompted(runtime, before, 4)
    part.drop(2, [1, 5, 6])
    hidden = forward_one(runtime, Call(rows, whole, (0, 1), outputs=Outputs(hidden=(1,)))).hidden[1]
    alone = forward_one(runtime, Call(rows, whole, outputs=wanted)).attention
    calls = [
        Call(rows, part, (2, 3), hidden, wanted),
        Call(rows, whole, outputs=wanted),
        Call(rows, prompted(runtime, before, 4)),
    ]
    few, all_, none = (result.attention for result in runtime.forward(calls))
    assert few.keys() == {2}
    assert few[2].shape == (2, 7)
    np.testing.assert_allclose(few[2].sum(axis=1), 2 * 3, rtol=1e-4)
    assert {b: paid.tobytes() for b, paid in all_.items()} == {b: paid.tobytes() for b, paid in alone.items()}
    assert all_.keys() == spec.attention.keys()
    assert none == {}
    grown = rows.extend([7], [1])
    later = forward_one(runtime, Call(grown, whole, outputs=wanted)).attention
    assert later[0].shape == (2, 11)
    np.testing.assert_allclose(later[0].sum(axis=1), 3, rtol=1e-4)


def test_lists_of_blocks_come_and_go(plain: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lists are held here; a third takes their place, and a list that comes again is what it was."""
    monkeypatch.setattr(_native_packing, "_MOST_BLOCK_LISTS", 2)
    runtime, hidden = native.NativeRuntime(plain, "f32", 1), hidden_of(plain, 2)
    known = runtime._packer._block_lists
    found, held = [], []
    for blocks in ((0, 1), (0, 1), (2, 3), (0, 1, 2), (0, 1), (2, 3)):
        call = Call(Rows.chain([1, 2], 0), runtime.new_cache(8), blocks, hidden, Outputs(hidden=(blocks[-1],)))
        found.append((blocks, forward_one(runtime, call).hidden[blocks[-1]].tobytes()))
        known = runtime._packer._block_lists
        assert {key: values.tolist() for key, values in known.items()} == {key: list(key) for key in known}
        held.append(list(known))
    assert held == [[(0, 1)], [(0, 1)], [(0, 1), (2, 3)], [(0, 1, 2)], [(0, 1, 2), (0, 1)], [(2, 3)]]
    assert len(dict(found)) == len(set(found)) == 3


# -- what is refused


def test_calls_that_cannot_be_are_refused(plain: Bundle, large: Bundle) -> None:
    runtime, spec = native.NativeRuntime(plain, "f32", 2), plain.spec
    rows, cache = Rows.chain([1, 2], 0), runtime.new_cache(8)
    hidden = hidden_of(plain, 2)
    other = native.NativeRuntime(large, "f32", 1).new_cache(8)
    best, logits = Outputs(top=1), Outputs(logits=True)
    loop = Rows(np.array([1, 2]), np.array([0, 1]), np.array([1, 0]))
    for call, says in (
        (Call(Rows.chain([1, spec.vocab_size], 0), cache, ()), "a token outside the vocabulary"),
        (Call(Rows.chain([-1], 0), cache, ()), "a token outside the vocabulary"),
        (Call(Rows.chain([1, spec.vocab_size], 0), cache), "a token outside the vocabulary"),
        (Call(rows, cache, [6], hidden), "a block that the model or the call does not have"),
        (Call(rows, cache, [0, -1], hidden), "a block that the model or the call does not have"),
        (Call(rows, cache, [1, 0], hidden), "a block that the model or the call does not have"),
        (Call(rows, cache, [0], hidden, Outputs(hidden=(1,))), "a block that the model or the call does not have"),
        (Call(rows, cache, [0], hidden[:1]), re.escape("hidden [1, 33]: expected [2, 33]")),
        (Call(rows, cache, [0], hidden[:, :-1]), re.escape("hidden [2, 32]: expected [2, 33]")),
        (Call(rows, cache, [0], hidden[0]), re.escape("hidden [33]: expected [2, 33]")),
        (Call(rows, cache, (), hidden[:, :5], logits), re.escape("hidden [2, 5]: expected [2, 33]")),
        (Call(Rows.chain([1], 0), cache, (), np.zeros((1, 34), np.float32), best), re.escape("hidden [1, 34]")),
        (Call(replace(rows, embeddings=hidden[:, 1:]), cache), re.escape("hidden [2, 32]: expected [2, 33]")),
        (Call(Rows.chain([1], 600), cache), "a position outside the model's context"),
        (Call(Rows.chain([1], -1), cache), "a position outside the model's context"),
        (Call(rows, other), "a cache of another model"),
        (Call(loop, cache), "a parent that does not come before its row"),
        (Call(replace(rows, numbers=np.array([1, 1])), cache), "row numbers that do not ascend"),
        (Call(replace(rows, groups=np.array([0, -2])), cache), "a group that cannot be"),
        (Call(rows.extend([3], [1]), cache), "rows that are not pending"),
        (Call(Rows.chain([], 0), cache), "a call computes at least one row"),
        (Call(rows, cache, outputs=logits._replace(logits_from=-1)), "logits_from -1: the call computes 2 rows"),
        (Call(rows, cache, outputs=logits._replace(logits_from=2)), "logits_from 2: the call computes 2 rows"),
        (Call(rows, cache, outputs=Outputs(logsum=True, temperature=0.0)), "temperature 0.0 of a log-sum"),
        (
            Call(replace(rows, positions=rows.positions[:1]), cache),
            "1 for 2 rows: positions, parents",
        ),
        (Call(replace(rows, parents=np.array([-1])), cache), "1 for 2 rows: positions, parents"),
        (Call(replace(rows, groups=np.array([0])), cache), "1 for 2 rows: positions, parents"),
        (Call(replace(rows, numbers=np.array([0])), cache), "1 for 2 rows: positions, parents"),
    ):
        with pytest.raises(UsageError, match=says):
            runtime.forward([call])
    with pytest.raises(UsageError, match="capacity 0"):
        runtime.new_cache(0)
    with pytest.raises(UsageError, match="two sequences for one cache: join their rows to a tree"):
        runtime.forward([Call(rows, cache), Call(rows, cache)])
    largest = runtime.capabilities.largest_call
    with pytest.raises(UsageError, match=f"{largest + 1} rows in one forward: this runtime takes {largest}"):
        runtime.forward([Call(Rows.chain([1] * (largest + 1), 0), runtime.new_cache(512))])
    with pytest.raises(ContextFull, match="9 rows do not fit a cache of 8"):
        runtime.forward([Call(Rows.chain(range(9), 0), cache)])
    with pytest.raises(UsageError, match="rows that are not pending"):
        cache.commit([0])
    assert cache.length == 0
    assert [cache.slots(b) for b in spec.attention] == [0, 0, 0]
    fresh = runtime.new_cache(8)
    assert logits_of(runtime, rows, cache).tobytes() == logits_of(runtime, rows, fresh).tobytes()


def test_slots_that_a_block_does_not_hold_cannot_be_dropped(plain: Bundle) -> None:
    runtime = native.NativeRuntime(plain, "f32", 1)
    cache = prompted(runtime, [1, 2, 3], 1)
    for slots in ([3], [-1], [0, 7]):
        with pytest.raises(UsageError, match="slots that the block does not hold"):
            cache.drop(0, slots)
    for block in (1, 6, -1):
        with pytest.raises(UsageError, match=f"block {block} keeps no slots that could be dropped"):
            cache.drop(block, [0])
    assert [cache.slots(b) for b in plain.spec.attention] == [3, 3, 3]


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_cache_of_another_engine_is_refused(tiny: Path, kv: str) -> None:
    ort, ours = (edgedec.open(tiny, engine=engine, kv=kv).runtime for engine in ("ort", "native"))
    for runtime, cache in ((ours, ort.new_cache(8)), (ort, ours.new_cache(8))):
        with pytest.raises(UsageError, match="a cache of another engine"):
            logits_of(runtime, Rows.chain([1, 2], 0), cache)


def test_an_unknown_instruction_set_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_ISA", "mmx")
    with pytest.raises(RuntimeUnavailable, match="engine native: instruction set mmx: not for this CPU"):
        edgedec.open(tiny, engine="native")
    monkeypatch.setenv("EDGEDEC_ISA", "scalar")
    assert edgedec.open(tiny, engine="native").runtime.capabilities.isa == "scalar"
    monkeypatch.setenv("EDGEDEC_ISA", "")
    assert edgedec.open(tiny, engine="native").runtime.capabilities.isa == loader.isa()


def test_an_unknown_cache_format_is_refused(tiny: Path) -> None:
    with pytest.raises(UsageError, match="no KV format 'f64'; there are: f32, f16, int8, int4"):
        edgedec.open(tiny, engine="native", kv="f64")


# -- forks, threads, memory given back

FORK = """
import os, sys
import edgedec
model = edgedec.open({path!r}, engine="native", threads=2)
ids = list(range(40))
tell = lambda: list(map(int, model.session().tokens(ids, max_tokens=30, ignore_eos=True)))
expected = tell()
for uses in (True, False):
    child = os.fork()
    if child == 0:
        # Ends as programs end: what is left is cleaned up.
        sys.exit(0 if not uses or tell() == expected == tell() else 1)
    assert os.waitpid(child, 0)[1] == 0
assert tell() == expected
print("same")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_process_works_and_ends(tiny: Path) -> None:
    code = FORK.format(path=str(tiny))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "same\n", done.stderr


def test_sessions_in_threads_say_what_they_say_alone(tiny: Path) -> None:
    model = edgedec.open(tiny, engine="native", threads=2)
    prompts = [[1, 2, 3], [7, 8, 9, 10], list(range(100))]

    def tell(ids: list[int]) -> list[int]:
        return list(map(int, model.session().tokens(ids, max_tokens=40, ignore_eos=True)))

    alone = [tell(ids) for ids in prompts]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            assert list(pool.map(tell, prompts)) == alone


def test_released_and_used_again(tiny: Path) -> None:
    runtime = edgedec.open(tiny, engine="native", threads=2).runtime
    rows, cache = Rows.chain(range(50), 0), runtime.new_cache(60)
    expected = logits_of(runtime, rows, cache)
    cache.commit(range(50))
    following = logits_of(runtime, Rows.chain([3], 50), cache)
    runtime.release()
    runtime.load()
    assert logits_of(runtime, rows, runtime.new_cache(50)).tobytes() == expected.tobytes()
    runtime.release()
    assert logits_of(runtime, Rows.chain([3], 50), cache).tobytes() == following.tobytes()
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(logits_of, runtime, rows, runtime.new_cache(50)) for _ in range(20)]
        for _ in range(10):
            runtime.release()
        assert {call.result().tobytes() for call in calls} == {expected.tobytes()}


# -- saved sessions


def saved(tiny: Path, path: Path, engine: str, kv: str) -> list[int]:
    """A session saved after five tokens, and the eight that follow."""
    session = edgedec.open(tiny, engine=engine, kv=kv).session()
    list(session.tokens([5, 6, 7, 8], max_tokens=5, ignore_eos=True))
    session.save(path)
    return list(map(int, session.tokens(max_tokens=8, ignore_eos=True)))


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_a_saved_session_goes_on(tiny: Path, tmp_path: Path, kv: str) -> None:
    rest = saved(tiny, tmp_path / "saved", "native", kv)
    other = edgedec.open(tiny, engine="native", kv=kv).session()
    other.load(tmp_path / "saved")
    assert list(map(int, other.tokens(max_tokens=8, ignore_eos=True))) == rest


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize(("engine", "into"), [("native", "ort"), ("ort", "native")])
def test_a_saved_cache_stays_with_its_engine(tiny: Path, tmp_path: Path, kv: str, engine: str, into: str) -> None:
    saved(tiny, tmp_path / "saved", engine, kv)
    kinds = {"native": f"native-{kv}", "ort": kv}
    session = edgedec.open(tiny, engine=into, kv=kv).session()
    with pytest.raises(SessionError) as refused:
        session.load(tmp_path / "saved")
    assert f"saved with a {kinds[engine]} cache, this session has {kinds[into]}; open the model with" in str(
        refused.value
    )
    assert session.ids == []


# -- the C interface


class ExperienceStruct(ctypes.Structure):
    """`Experience` is a kind of `Means`: the fields of the one follow those of the other."""

    _fields_ = (("means", Means), *Experience._fields_)


MIRROR = {
    "ed_tensor": structs.TensorStruct,
    "ed_norm": structs.NormStruct,
    "ed_attention": structs.AttentionStruct,
    "ed_mlp": structs.MlpStruct,
    "ed_moe": structs.MoeStruct,
    "ed_ssm": structs.SsmStruct,
    "ed_s6": structs.S6Struct,
    "ed_conv": structs.ConvStruct,
    "ed_delta": structs.DeltaStruct,
    "ed_power_law": structs.PowerLawStruct,
    "ed_latent": structs.LatentStruct,
    "ed_lookup": structs.LookupStruct,
    "ed_altup": structs.AltUpStruct,
    "ed_laurel": structs.LaurelStruct,
    "ed_rwkv7": structs.Rwkv7Struct,
    "ed_channel_mix": structs.ChannelMixStruct,
    "ed_gmu": structs.GmuStruct,
    "ed_pre_router": structs.PreRouterStruct,
    "ed_block": structs.BlockStruct,
    "ed_rope": structs.RopeStruct,
    "ed_model": structs.ModelStruct,
    "ed_lora": structs.LoraStruct,
    "ed_route": structs.RouteStruct,
    "ed_adapter": structs.AdapterStruct,
    "ed_readout": structs.ReadoutStruct,
    "ed_view": structs.ViewStruct,
    "ed_sequence": structs.SequenceRows,
    "ed_sampling": structs.SamplingStruct,
    "ed_step_settings": structs.StepSettingsStruct,
    "ed_step_result": structs.StepResultStruct,
    "ed_steps": structs.StepsStruct,
    "ed_drafter_options": draft_structs.DrafterOptionsStruct,
    "ed_verified": draft_structs.VerifiedStruct,
    "ed_calibration": draft_structs.CalibrationStruct,
    "ed_proposal": draft_structs.ProposalStruct,
    "ed_watch": draft_structs.WatchStruct,
    "ed_draft_tree": draft_structs.DraftTreeStruct,
    "ed_means": Means,
    "ed_experience": ExperienceStruct,
    "ed_record": DrafterRecord,
    "ed_bank": Bank,
    "ed_account": TextAccount,
    "ed_governor": draft_structs.GovernorStruct,
}


def declared() -> dict[str, list[str]]:
    """The structures of the header and their fields' names in order."""
    text = re.sub(r"//.*|\[[^]]*\]", "", HEADER.read_text("utf-8"))
    found = {}
    for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.M | re.S):
        members = [part.strip() for part in body.split(";") if part.strip()]
        found[name] = [re.findall(r"\w+", item)[-1] for member in members for item in member.split(",")]
    return found


def test_structures_are_those_of_the_header() -> None:
    assert declared() == {name: [field for field, _ in mirror._fields_] for name, mirror in MIRROR.items()}
    assert re.search(r"#define ED_ABI (\d+)", HEADER.read_text("utf-8"))[1] == str(loader.ABI)  # type: ignore[index]


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")
def test_structures_lie_in_memory_as_the_compilers_do(tmp_path: Path) -> None:
    lines = []
    for name, fields in declared().items():
        lines.append(f'std::printf("{name} %zu\\n", sizeof({name}));')
        for field in fields:
            where = f"offsetof({name}, {field}), sizeof({name}::{field})"
            lines.append(f'std::printf("{name}.{field} %zu %zu\\n", {where});')
    source = "\n".join(["#include <cstddef>", "#include <cstdio>", f'#include "{HEADER}"', "int main() {", *lines, "}"])
    (tmp_path / "sizes.cpp").write_text(source)
    subprocess.run(["c++", "-std=c++17", tmp_path / "sizes.cpp", "-o", tmp_path / "sizes"], check=True)
    expected = subprocess.check_output([tmp_path / "sizes"], text=True).split("\n")[:-1]
    found = []
    for name, mirror in MIRROR.items():
        found.append(f"{name} {ctypes.sizeof(mirror)}")
        for field, _ in mirror._fields_:
            part = getattr(mirror, field)
            found.append(f"{name}.{field} {part.offset} {part.size}")
    assert found == expected
    assert ctypes.sizeof(Experience) == ctypes.sizeof(ExperienceStruct)
    for field, _ in Experience._fields_:
        assert getattr(Experience, field).offset == getattr(ExperienceStruct, field).offset


def test_every_refusal_has_words() -> None:
    """The numbers that checks of calls (`check.cpp`) and methods of caches (`cache.cpp`) return, and no others."""
    sources = [HEADER.with_name(name).read_text("utf-8") for name in ("check.cpp", "cache.cpp", "attention_state.cpp")]
    caches = sources[1]
    methods = re.findall(r"^int (?:Cache::(?:commit|drop|reserve|load)|ed_cache_adopt)\(.*?^\}", caches, re.M | re.S)
    assert len(methods) == 5
    returned = {int(n) for text in (sources[0], *methods) for n in re.findall(r"(?:return|:) (\d+);", text)}
    returned |= {int(n) for n in re.findall(r"return (1\d);", sources[2])}
    assert returned == {0, *(n for n in codes.ERRORS if n > 0)}


def test_threads_are_as_many_as_asked(tiny: Path, large: Bundle) -> None:
    def threads(runtime: Runtime) -> int:
        assert runtime.threads == runtime.capabilities.threads  # type: ignore[attr-defined]
        return runtime.capabilities.threads

    assert [threads(edgedec.open(tiny, engine="native", threads=n).runtime) for n in (1, 2, 5)] == [1, 2, 5]
    assert threads(edgedec.open(tiny, engine="native").runtime) == 1, "so small a model is not worth a second"
    assert threads(open_runtime("native", large, RuntimeOptions(threads=2))) == 2


def test_a_model_of_one_layer_and_no_rope(tmp_path: Path) -> None:
    sizes = Attention(n_heads=6, n_kv_heads=2, head_dim=10, scale=0.3, rope=None)
    spec = replace(ODD["plain"], layers=((sizes, Mlp(51)),), ropes=())
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec), "int8")
    reference, ours = (open_runtime(name, bundle, RuntimeOptions(kv="f32")) for name in ("reference", "native"))
    rows = Rows.chain([1, 2, 3, 4], 0)
    expected, found = (logits_of(runtime, rows, runtime.new_cache(4)) for runtime in (reference, ours))
    np.testing.assert_allclose(found, expected, atol=0.2)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's map of a process")
def test_the_weights_are_used_where_they_lie(nano: Path) -> None:
    """Mapped, read, and never written: every process that opens the bundle shares the pages."""
    bundle = Bundle.open(nano)
    runtime = open_runtime("native", bundle, RuntimeOptions(threads=1))
    logits_of(runtime, Rows.chain([1, 2, 3], 0), runtime.new_cache(8))
    sizes, inside = dict.fromkeys(("Rss:", "Private_Dirty:", "Anonymous:"), 0), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if first in sizes:
            sizes[first] += int(rest[0]) if inside else 0
        elif not first.endswith(":"):
            inside = line.endswith(str(bundle.file(bundle.manifest.weights).resolve()))
    assert sizes["Rss:"] > 1000
    assert sizes["Private_Dirty:"] == sizes["Anonymous:"] == 0


def test_every_refusal_has_a_message_of_its_own() -> None:
    """A number that two refusals share would lose the message of one."""
    listed = re.findall(r"^    (-?\w+): \"", Path(codes.__file__).read_text("utf-8"), re.MULTILINE)
    assert len(codes.ERRORS) == len(listed) == len(set(codes.ERRORS.values()))
    assert any(message.startswith("a draw from a row") for message in codes.ERRORS.values())
