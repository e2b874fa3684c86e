"""Calls: what is wanted of them adds up, wrong ones are refused in one line, the best tokens are the best.

What a runtime makes of calls is the conformance suite's (`test_conformance.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from edgedec.errors import UsageError
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, best, check_calls, forward_one, head_outputs, logits_of
from edgedec.spec import Ssm
from edgedec.testing.fakes import FakeRuntime, random_reference, tiny_layer, tiny_spec

PROMPT = [3, 1, 4, 1, 5]
TREE = Rows.tree([9, 2, 6, 5, 3, 5], [-1, 0, 0, 2, 1, 3], len(PROMPT))
WANTS = [
    Outputs(logits, top, logsum, hidden, logits_from=start)
    for logits, top, logsum, hidden, start in product([True, False], [0, 1, 4], [True, False], [(), (-1, 2)], [0, 5])
]


@pytest.mark.parametrize("make", [FakeRuntime, random_reference])
@pytest.mark.parametrize("wanted", WANTS, ids=str)
def test_what_is_wanted_is_part_of_all_there_is(make: Callable[[], Any], wanted: Outputs) -> None:
    runtime = make()

    def prompted() -> Any:
        cache = runtime.new_cache(16)
        logits_of(runtime, Rows.chain(PROMPT, 0), cache)
        cache.commit(range(len(PROMPT)))
        return cache

    everything = Outputs(True, 4, True, (-1, 2))
    whole = forward_one(runtime, Call(TREE, prompted(), outputs=everything))
    found = forward_one(runtime, Call(TREE, prompted(), outputs=wanted))
    start = wanted.logits_from
    for name, asked in (
        ("logits", wanted.logits),
        ("ids", wanted.top),
        ("scores", wanted.top),
        ("logsum", wanted.logsum),
    ):
        mine, theirs = getattr(found, name), getattr(whole, name)
        assert (mine is not None) == bool(asked), name
        if mine is not None:
            width = slice(0, wanted.top) if name in ("ids", "scores") else slice(None)
            expected = theirs[start:, width] if theirs.ndim == 2 else theirs[start:]
            np.testing.assert_allclose(mine, expected, atol=1e-5)
    assert found.hidden.keys() == set(wanted.hidden)
    for block, states in found.hidden.items():
        np.testing.assert_allclose(states, whole.hidden[block], atol=1e-5)


def test_outputs_add_up() -> None:
    one, other = Outputs(False, 3, hidden=(2,), logits_from=4), Outputs(False, 1, True, (0, 2), True, 2)
    assert one | other == other | one == Outputs(False, 3, True, (0, 2), True, 2)
    assert Outputs() | ALL_LOGITS == ALL_LOGITS
    assert not Outputs(hidden=(1,)).head
    assert all(wanted.head for wanted in (ALL_LOGITS, Outputs(top=1), Outputs(logsum=True)))


def _rows(**changes: Any) -> Rows:
    return replace(Rows.chain([1, 2, 3], 0), **changes)


SPEC, STATES = tiny_spec(), np.zeros((3, 16), np.float32)
HYBRID = tiny_spec(layers=(tiny_layer(), (Ssm(2, 8, 4),)))
RUNTIME, CACHE = FakeRuntime(SPEC), FakeRuntime(SPEC).new_cache(8)
CHAIN = Rows.chain([1, 2, 3], 0)
WRONG: list[tuple[str, list[Call], dict[str, Any]]] = [
    ("two calls for one cache", [Call(CHAIN, CACHE)] * 2, {}),
    ("3 rows in one forward: this runtime takes 2", [Call(CHAIN, CACHE)], {"largest_call": 2}),
    ("the cache is of another model", [Call(CHAIN, FakeRuntime(tiny_spec(3)).new_cache(8))], {}),
    ("a call computes at least one row", [Call(Rows.chain([], 0), CACHE)], {}),
    ("a call computes at least one row", [Call(replace(CHAIN, first=3), CACHE)], {}),
    ("token 13 is outside the vocabulary of 13", [Call(Rows.chain([1, 13], 0), CACHE)], {}),
    ("token -1 is outside", [Call(Rows.chain([-1], 0), CACHE)], {}),
    (r"embeddings \[3, 15\]: expected \[3, 16\]", [Call(_rows(embeddings=STATES[:, 1:]), CACHE)], {}),
    ("declares no embeddings", [Call(_rows(embeddings=STATES), CACHE)], {"embeddings": False}),
    ("declares no groups", [Call(_rows(groups=np.array([0, 0, -1])), CACHE)], {"groups": False}),
    ("declares no selections", [Call(CHAIN.select([0, 2]), CACHE)], {"selections": False}),
    ("row numbers: must be ascending", [Call(_rows(numbers=np.array([0, 2, 2])), CACHE)], {}),
    ("row numbers", [Call(_rows(numbers=np.array([-1, 2, 3])), CACHE)], {}),
    ("declares no trees", [Call(Rows.tree([1, 2], [-1, -1], 0), CACHE)], {"trees": False}),
    ("declares no slices", [Call(CHAIN, CACHE, blocks=(0, 1))], {"slices": False}),
    ("declares no slices", [Call(CHAIN, CACHE, hidden=STATES)], {"slices": False}),
    (r"blocks \[2, 1\]: must be ascending", [Call(CHAIN, CACHE, blocks=(2, 1))], {}),
    (r"blocks \[1, 1\]", [Call(CHAIN, CACHE, blocks=[1, 1])], {}),
    ("blocks 4 to 6: the model has 0 to 5", [Call(CHAIN, CACHE, blocks=(4, 6))], {}),
    ("blocks -1 to 0", [Call(CHAIN, CACHE, blocks=(-1, 0))], {}),
    (r"hidden \[2, 16\]: expected \[3, 16\]", [Call(CHAIN, CACHE, hidden=STATES[:2])], {}),
    ("declares no attention_sums", [Call(CHAIN, CACHE, outputs=Outputs(attention=True))], {"attention_sums": False}),
    ("declares no logsum", [Call(CHAIN, CACHE, outputs=Outputs(logsum=True))], {"logsum": False}),
    (
        "declares no temperatures",
        [Call(CHAIN, CACHE, outputs=Outputs(logsum=True, temperature=0.5))],
        {"temperatures": False},
    ),
    ("logits_from 3: the call computes 3 rows", [Call(CHAIN, CACHE, outputs=Outputs(True, logits_from=3))], {}),
    ("hidden states after block 3", [Call(CHAIN, CACHE, blocks=(0, 1), outputs=Outputs(hidden=(3,)))], {}),
    ("hidden states after block -1", [Call(CHAIN, CACHE, hidden=STATES, outputs=Outputs(hidden=(-1,)))], {}),
    ("declares no adapters", [Call(CHAIN, CACHE, adapter=object())], {"adapters": False}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("says", "calls", "can"), WRONG, ids=[says for says, *_ in WRONG])
def test_a_wrong_call_is_refused_in_one_line(says: str, calls: list[Call], can: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=says) as error:
        check_calls(calls, SPEC, replace(RUNTIME.capabilities, **can))
    assert "\n" not in str(error.value)


def test_right_calls_are_not_refused() -> None:
    caches = [RUNTIME.new_cache(8) for _ in range(6)]
    calls = [
        Call(CHAIN, caches[0], outputs=Outputs(True, 2, True, (-1, 5), True, 2)),
        Call(CHAIN, caches[1], range(2, 6), STATES),
        Call(CHAIN, caches[2], (), STATES, ALL_LOGITS),
        Call(Rows.chain([99], 0), caches[3], (3,), STATES[:1]),  # a token that nobody reads
        Call(_rows(groups=np.array([0, 0, 1]), embeddings=STATES), caches[4]),
        Call(CHAIN.select([1, 2]), caches[5], (0, 4, 5), STATES[:2]),
    ]
    check_calls(calls, SPEC, RUNTIME.capabilities)
    with pytest.raises(UsageError, match="a recurrent block has no state of rows that see each other"):
        check_calls(
            [Call(_rows(groups=np.array([0, 0, 1])), FakeRuntime(HYBRID).new_cache(8))], HYBRID, RUNTIME.capabilities
        )


def test_the_best_and_the_lowest_of_equals() -> None:
    logits = np.array([[1, 5, 3, 5, 5, 0], [0, 0, 0, 0, 0, 0], [-1, -2, -3, -4, -5, -6]], np.float32)
    for k in range(1, 9):
        ids, scores = best(logits, k)
        expected = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_array_equal(scores, np.take_along_axis(logits, expected, 1))
    assert best(logits[:0], 4)[0].shape == (0, 4)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_best_where_logits_are_not_finite(bad: float, k: int) -> None:
    logits = np.array([[1, 2, 3, 4], [1, 2, bad, 4], [4, 3, -np.inf, -np.inf]], np.float32)
    ids, _ = best(logits, k)
    assert ids[0].tolist() == [3, 2, 1, 0][:k]
    assert ids[1, 0] == -1
    assert ids[2].tolist() == [0, 1, -1, -1][:k]


def test_the_log_sum_is_that_of_all_logits() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 1000), np.float32) * 30
    found = head_outputs(logits, Outputs(logsum=True)).logsum
    np.testing.assert_allclose(found, np.logaddexp.reduce(logits.astype(np.float64), axis=1), rtol=1e-12)
