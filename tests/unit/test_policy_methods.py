"""What each cache policy keeps, and the arithmetic of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pruning import equal, generate, repeating, run_calls

import edgedec
from edgedec.kernels.cpu import loader
from edgedec.policies import PolicyHost, make_policy
from edgedec.policies._budget import dropped, pooled
from edgedec.policies._pruned import Stage, cuts
from edgedec.policies.d2o import merge_weights, nearest, spread_of
from edgedec.policies.prefixkv import prefixes
from edgedec.policies.pyramidkv import level
from edgedec.runtime import Outputs, Rows, forward_one
from edgedec.runtime.call import Call

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def ids(model: edgedec.Model) -> list[int]:
    return repeating(model, 300)


def test_reference_keeps_the_same_slots(model: edgedec.Model, nano: Path, ids: list[int]) -> None:
    reference = edgedec.open(nano, engine="reference")
    for words in ("h2o:budget=40", "fastkv:budget=0.2,rate=0.5,window=16"):
        kept = []
        for each in (model, reference):
            session = generate(each, ids[:80], words, 1)[1]
            cache = session._context.cache
            kept.append([cache.positions(b) for b in each.spec.attention])
        agree = [len(np.intersect1d(a, b)) / len(a) for a, b in zip(*kept, strict=True)]
        assert min(agree) > 0.9, words  # what the two engines round differently may change places


def test_upper_layers_of_all_rows_are_the_whole_stack(model: edgedec.Model, ids: list[int]) -> None:
    spec, runtime = model.spec, model.runtime
    cut = spec.span(0, 5)[-1] + 1
    whole, staged = runtime.new_cache(400), runtime.new_cache(400)
    forward_one(runtime, Call(Rows.chain(ids[:200], 0), whole))
    whole.commit(range(200))
    lower = Stage(range(cut), Rows.chain(ids[:200], 0), None)
    run_calls(runtime, lower.run(staged, 64, 32, True, None))
    upper = lower.above(range(cut, spec.n_blocks), np.arange(200))
    run_calls(runtime, upper.run(staged, 64, 32, False, None))
    staged.commit(range(200))
    assert equal([whole.save(), staged.save()])


def test_fastkv_runs_fewer_rows_above(model: edgedec.Model, ids: list[int]) -> None:
    session = generate(model, ids, "fastkv:budget=1,rate=0.3,layer=4", 1)[1]
    slots = [session._context.cache.slots(b) for b in model.spec.attention]
    assert slots == [len(ids)] * 4 + [90] * 10, "with the whole budget nothing is evicted from what went up"


def test_lazyllm_sends_fewer_on_at_each_stage(model: edgedec.Model, ids: list[int]) -> None:
    session = generate(model, ids, "lazyllm:keep=0.25,stages=3,first=0.3", 1)[1]
    slots = [session._context.cache.slots(b) for b in model.spec.attention]
    n = len(ids)
    assert slots == sorted(slots, reverse=True)
    assert (slots[0], slots[-1]) == (n, 1 + -(-(n - 1) // 4))
    assert len(set(slots)) == 4


def test_budgets_of_layers(model: edgedec.Model, ids: list[int]) -> None:
    found = {}
    for words in ("snapkv:budget=0.2", "pyramidkv:budget=0.2", "prefixkv:budget=0.2"):
        session = generate(model, ids, words, 1)[1]
        found[words[:4]] = [session._context.cache.slots(b) for b in model.spec.attention]
    assert len(set(found["snap"])) == 1
    assert found["pyra"] == sorted(found["pyra"], reverse=True) != found["snap"]
    assert len(set(found["pref"])) > 3
    assert sum(found["pref"]) <= sum(found["snap"]) + len(found["snap"])
    assert abs(sum(found["pyra"]) - sum(found["snap"])) <= len(found["snap"])


def test_heads_keep_slots_of_their_own(model: edgedec.Model, ids: list[int]) -> None:
    """The keys that each head holds are those of the whole cache that its own scores say."""
    session = generate(model, ids, "snapkv:budget=0.2,heads=apart", 1)[1]
    cache, dense = session._context.cache, generate(model, ids, "full", 1)[1]._context.cache
    apart = 0
    for b in model.spec.attention:
        held, whole = cache.keys(b), dense.keys(b)
        assert cache.slots(b) == generate(model, ids, "snapkv:budget=0.2", 1)[1]._context.cache.slots(b)
        where = [[int(np.flatnonzero((whole[h] == key).all(axis=1))[0]) for key in held[h][:-1]] for h in range(2)]
        assert all(found == sorted(set(found)) for found in where)
        assert np.maximum(*where).tolist() == cache.positions(b)[:-1].tolist()
        apart += where[0] != where[1]
    assert apart > 10


def test_heads_alike_only_where_the_engine_cannot(nano: Path) -> None:
    with pytest.raises(edgedec.UsageError, match="heads=apart: this engine drops slots for all heads alike"):
        edgedec.open(nano, engine="ort").session(cache="snapkv:heads=apart")
    with pytest.raises(edgedec.UsageError, match="heads=both: must be one of alike, apart"):
        edgedec.open(nano).session(cache="h2o:heads=both")


def test_streaming_keeps_the_first_and_the_latest(model: edgedec.Model, ids: list[int]) -> None:
    session = generate(model, ids, "streaming:budget=50,sinks=6,every=25", 1)[1]
    n = len(ids) - 1
    assert session._context.cache.positions(0).tolist() == [*range(6), *range(n - 44, n + 1)], (
        "and the row after the prompt"
    )
    list(session.tokens(max_tokens=200, ignore_eos=True))
    assert max(session._context.cache.slots(b) for b in model.spec.attention) < 50 + 25


# ---- the parts ------------------------------------------------------------------------------


def test_dropped_slots() -> None:
    scores = np.array([9, 1, 5, 3, 4, 0], np.float32)
    assert dropped(scores, 4, 1, 1).tolist() == [1, 3]
    assert dropped(scores, 6, 1, 1).tolist() == []
    assert dropped(np.zeros(6, np.float32), 4, 1, 1).tolist() == [1, 2], "of equals the oldest"
    assert dropped(scores, 2, 4, 4).tolist() == [2, 3, 4, 5]


def test_pooled_sums() -> None:
    paid = np.array([[0, 3, 0, 0, 0, 0], [0, 0, 0, 0, 0, 6]], np.float32)
    assert pooled(paid, 1).tolist() == [0, 3, 0, 0, 0, 6]
    assert pooled(paid, 3).tolist() == [1.5, 1, 1, 0, 2, 3]
    assert pooled(paid[:, :0], 3).tolist() == []


def test_levels_and_prefixes() -> None:
    assert level(np.array([30.0, 20.0, 10.0]), 25) == [25, 22, 12]
    found = prefixes({1: np.array([0.5, 0.8, 1.0]), 3: np.array([0.9, 1.0, 1.0])}, 3, 1)
    assert found == {1: 2, 3: 1}
    assert sum(prefixes({b: np.linspace(0.01, 1, 100) for b in range(4)}, 100, 8).values()) <= 100


def test_matches_of_merged_slots() -> None:
    keys = np.array([[[1, 0], [0, 1], [3, 0.1], [0, -2], [0.1, 5]]], np.float32)
    best, similar = nearest(keys, np.array([2, 4]), np.array([0, 1, 3]))
    assert best.tolist() == [0, 1]
    assert (similar > 0.99).all()
    assert np.allclose(merge_weights(np.array([3, 3, 5]), np.ones(3, np.float32)), [1 / 3, 1 / 3, 1 / 2])
    assert spread_of(np.full(4, 4, np.float32)) == 4
    assert spread_of(np.array([9, 0, 0], np.float32)) == 1


def test_merging_happens(model: edgedec.Model, ids: list[int]) -> None:
    """The same slots stay, and hold something else."""
    merged, evicted = (generate(model, ids, words, 1)[1] for words in ("d2o:budget=0.2", "h2o:budget=0.2"))
    state = merged._context.policy.state()  # type: ignore[union-attr]
    assert all(0 < state[f"threshold.{b}"][0] <= 1 for b in model.spec.attention)
    b, cache = max(model.spec.attention), merged._context.cache
    known = generate(model, ids, "full", 1)[1]._context.cache.keys(b)[:, cache.positions(b)]
    changed = np.abs(known - cache.keys(b)).max(axis=(0, 2)) > 1e-6
    assert 3 < changed.sum() < len(changed)
    assert not changed[:4].any(), "attention rests on the first ones: nothing is merged into them"
    assert evicted.cache_report()["slots"] > 0


def test_cuts() -> None:
    assert cuts(10, 4, 3) == [(0, 4), (4, 7), (7, 10)]
    assert cuts(3, 4, 3) == [(0, 3)]
    assert cuts(130, 64, 32) == [(0, 64), (64, 98), (98, 130)]


def test_outputs_are_asked_for_only_where_they_are_used(model: edgedec.Model, ids: list[int]) -> None:
    """A policy that only prunes prompts costs a step nothing."""
    policy = make_policy("snapkv", PolicyHost(model.spec, model.runtime.capabilities))
    assert policy is not None
    cache = model.runtime.new_cache(64)
    call = Call(Rows.chain([1], 0), cache, outputs=Outputs(top=1))
    assert policy.shape(call) is call
