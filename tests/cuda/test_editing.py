"""What cache policies call for on the GPU engines, with the native engine's bytes: attention sums, queries, slots that
are merged, dropped by head, attached."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_engines import both, tokens

from edgedec.errors import ContextFull, UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import Call, Outputs, Rows, Runtime, logits_of
from edgedec.spec import KV_FORMATS

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
PAID = Outputs(logits=True, attention=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("editing")


def edited(runtime: Runtime, seed: int) -> list[bytes]:
    """Keys, saved states and logits of a text whose slots are merged, dropped by head and attached, and of a fork."""
    rng, cache, ids = np.random.default_rng(seed), runtime.new_cache(200), tokens(150)
    for at in (0, 75):
        logits_of(runtime, Rows.chain(ids[at : at + 75], at), cache, 74)
        cache.commit(range(75))
    twin, found = cache.fork(), list[bytes]()
    for b, block in runtime.spec.attention.items():
        chosen = rng.permutation(cache.slots(b))
        weights = rng.random((block.n_kv_heads, 9)).astype(np.float32)
        cache.merge(b, chosen[[0, 0, 1, 2, 2, 2, 3, 4, 5]].tolist(), chosen[6:15].tolist(), weights)
        cache.drop(b, chosen[6:15])
        if block.window is None:
            gone = np.stack([np.sort(rng.choice(cache.slots(b), 40, False)) for _ in range(block.n_kv_heads)])
            cache.drop_by_head(b, gone)
        found += [cache.keys(b).tobytes(), cache.keys(b, 70).tobytes(), cache.positions(b).tobytes()]
    logits_of(runtime, Rows.chain([1, 2, 3], 150), cache)
    cache.attach(2)
    found.append(cache.save()["state"].tobytes())
    for one in (cache, twin):
        found.append(logits_of(runtime, Rows.chain([4, 5], 150), one).tobytes())
        one.commit([0, 1])
        found.append(one.save()["state"].tobytes())
    return found


@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("model", ["layer norms", "windows"])
def test_edited_slots_are_those_of_the_native_engine(folders, model, kv, monkeypatch):
    ours, theirs = both(folders, "cuda", model, kv, monkeypatch)
    found, expected = edited(ours, 1), edited(theirs, 1)
    assert len(found) > 9
    assert [a == b for a, b in zip(found, expected, strict=True)] == [True] * len(found)


def paid(runtime: Runtime) -> list[bytes]:
    """Attention sums and queries: of a text in chunks and of one beside it that wants none, of a tree across the end
    of a chunk of keys, of rows that see each other, after slots were dropped."""
    cache, other, ids, found = runtime.new_cache(384), runtime.new_cache(40), tokens(290), list[bytes]()
    outputs = PAID._replace(queries=tuple(runtime.spec.attention))
    for at in (0, 100, 200):
        n = 50 if at == 200 else 100
        calls = [Call(Rows.chain(ids[at : at + n], at), cache, outputs=outputs)]
        results = runtime.forward([Call(Rows.chain([5], other.length), other, outputs=Outputs(True)), *calls])
        cache.commit(range(n))
        other.commit([0])
        assert not results[0].attention
        found += [part.tobytes() for part in (*results[1].attention.values(), *results[1].queries.values())]
        if at == 100:
            for b in runtime.spec.attention:
                cache.drop(b, [b + 1, 40, 41])
    depth = Rows.tree(list(range(9)), [-1, 0, 1, 1, 3, 4, 4, 6, 7], 250)
    grouped = Rows(np.arange(4), np.arange(250, 254), np.arange(-1, 3), groups=np.array([0, 0, 0, -1]))
    for rows in (depth,) if runtime.spec.recurrent else (depth, grouped):
        (result,) = runtime.forward([Call(rows, cache, outputs=outputs)])
        cache.rollback()
        found += [part.tobytes() for part in (*result.attention.values(), *result.queries.values())]
    return found


@pytest.mark.parametrize(
    ("engine", "model", "kv"),
    [
        ("cuda", "plain", "f32"),
        ("cuda", "windows", "int8"),
        ("cuda", "options", "f16"),
        ("cuda", "layer norms", "int4"),
        ("cuda", "hybrid", "int8"),
        ("opencl", "windows", "int8"),
    ],
)
def test_attention_sums_are_those_of_the_native_engine(folders, engine, model, kv, monkeypatch):
    ours, theirs = both(folders, engine, model, kv, monkeypatch)
    found, expected = paid(ours), paid(theirs)
    assert [a == b for a, b in zip(found, expected, strict=True)] == [True] * len(found)
    assert len({len(part) for part in found}) > 2


def test_weights_are_kept_of_a_few_heads_at_a_time(folders, monkeypatch):
    from edgedec.runtimes._device import sums

    ours, theirs = both(folders, "cuda", "plain", "int8", monkeypatch)
    monkeypatch.setattr(sums, "_KEPT_BYTES", 1)
    assert paid(ours) == paid(theirs)
    assert ours._stack.memory.generation > 0


def test_what_cannot_be_done_is_refused(folders, monkeypatch):
    ours, _ = both(folders, "cuda", "windows", "f32", monkeypatch)
    cache = ours.new_cache(40)
    logits_of(ours, Rows.chain(tokens(20), 0), cache, 19)
    cache.commit(range(20))
    with pytest.raises(UsageError, match="has a window"):
        cache.drop_by_head(0, np.array([[1], [2]]))
    with pytest.raises(UsageError, match="block 1 keeps no slots that could be merged"):
        cache.merge(1, [1], [2], [0.5])
    with pytest.raises(UsageError, match="rows cannot be attached"):
        cache.attach(1)
    logits_of(ours, Rows.chain([1, 2], 20), cache)
    cache.attach(2)
    for _ in range(31):
        logits_of(ours, Rows.chain([1, 2], 20), cache)
        cache.attach(2)
    logits_of(ours, Rows.chain([1, 2], 20), cache)
    with pytest.raises(ContextFull, match="at most 64 slots more than tokens"):
        cache.attach(2)
