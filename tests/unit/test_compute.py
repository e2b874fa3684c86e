"""A call by its pieces or by a runtime's own quicker way: what is wanted of it is the same."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle

from edgedec.cache.host import Cache
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime.core import Begun, Output, Runtime, RuntimeOptions, Want, best, compute, forward, open_runtime
from edgedec.runtime.rows import Rows
from edgedec.testing.fakes import FakeRuntime, random_reference

PROMPT = [3, 1, 4, 1, 5]
TREE = Rows.tree([9, 2, 6, 5, 3, 5], [-1, 0, 0, 2, 1, 3], len(PROMPT))
WANTS = [Want(logits, top, hidden) for logits, top, hidden in product([True, False], [0, 1, 4], [True, False])]
RUNTIMES = ["fake", "random", "reference", "native", "ort"]


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Runtime:
    from edgedec.bundle.folder import Bundle

    if request.param == "fake":
        return FakeRuntime()
    if request.param == "random":
        return random_reference()
    if request.param == "ort":
        return open_runtime("ort", Bundle.open(tiny), RuntimeOptions(threads=1))
    if request.param == "native" and (reason := why_not()):
        pytest.skip(f"native engine: {reason}")
    spec = ODD["plain"]
    bundle = write_bundle(tmp_path_factory.mktemp("plain") / "b", spec, random_weights(spec))
    return open_runtime(request.param, bundle, RuntimeOptions(threads=1))


def prompted(runtime: Runtime) -> Cache:
    cache = runtime.new_cache(16)
    forward(runtime, Rows.chain(PROMPT, 0), cache)
    cache.keep(range(len(PROMPT)))
    return cache


def by_pieces(runtime: Runtime, rows: Rows, cache: Cache, skip: int, want: Want) -> Output:
    hidden = runtime.run(runtime.embed(rows.tokens[rows.first :]), rows, cache, runtime.spec.blocks())[skip:]
    logits = runtime.head(hidden)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, : want.top]
    return Output(
        logits if want.logits else None,
        ids.astype(np.int32) if want.top else None,
        np.take_along_axis(logits, ids, 1) if want.top else None,
        hidden if want.hidden else None,
    )


def same(found: Output, expected: Output, within: float) -> None:
    for name in ("logits", "scores", "hidden"):
        a, b = getattr(found, name), getattr(expected, name)
        if name == "scores" and a is None and b is not None and b.shape[1] == 1:
            continue  # the score of the best token alone may be left out
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_allclose(a, b, atol=within, rtol=0, err_msg=name)
    assert (found.ids is None) == (expected.ids is None)
    if found.ids is not None:
        assert found.ids.dtype == np.int32
        np.testing.assert_array_equal(found.ids, expected.ids)


def within(runtime: Runtime, numpy: float = 0.0) -> float:
    """How far apart numbers may be: not at all, but ONNX Runtime's graphs and numpy's products add up in
    an order that depends on what shares the call."""
    return {"ort": 1e-4, "reference": numpy}.get(runtime.name, 0.0)


def written(cache: Cache, rows: Rows) -> bytes:
    return cache.data[:, :, :, : cache.length + len(rows)].tobytes()


@pytest.mark.parametrize("want", WANTS, ids=str)
@pytest.mark.parametrize("skip", [0, 2, 5])
def test_what_is_wanted_is_what_the_pieces_give(runtime: Runtime, want: Want, skip: int) -> None:
    cache, other = prompted(runtime), prompted(runtime)
    same(compute(runtime, TREE, cache, skip, want), by_pieces(runtime, TREE, other, skip, want), within(runtime))
    if runtime.name != "ort":
        assert written(cache, TREE) == written(other, TREE)
    assert cache.length == len(PROMPT)


@pytest.mark.parametrize("want", WANTS, ids=str)
def test_of_a_chain_too(runtime: Runtime, want: Want) -> None:
    chain, caches = Rows.chain([2, 7, 1], len(PROMPT)), (prompted(runtime), prompted(runtime))
    same(compute(runtime, chain, caches[0], 2, want), by_pieces(runtime, chain, caches[1], 2, want), within(runtime))


@pytest.mark.parametrize("want", [Want(), Want(False, 3), Want(False, 0, True), Want(True, 2, True)], ids=str)
def test_rows_that_were_begun_go_on(runtime: Runtime, want: Want) -> None:
    """Through the first blocks, one row at a time as a drafter's are, and then all together through the rest."""
    expected, blocks = by_pieces(runtime, TREE, prompted(runtime), 1, want), runtime.spec.blocks()
    whole = prompted(runtime)
    compute(runtime, TREE, whole, 1, want)
    for cut in (0, 1, 2, 4, len(blocks)):
        cache, hidden = prompted(runtime), []
        for n in range(len(TREE)):
            row = Rows(TREE.tokens[: n + 1], TREE.positions[: n + 1], TREE.parents[: n + 1], first=n)
            hidden.append(
                runtime.run(runtime.embed(row.tokens[n:]), row, cache, blocks[:cut])
                if cut
                else runtime.embed(row.tokens[n:])
            )
        begun = Begun(np.concatenate(hidden), cut)
        before = begun.hidden.copy()
        same(compute(runtime, TREE, cache, 1, want, begun), expected, within(runtime, numpy=1e-4))
        np.testing.assert_array_equal(begun.hidden, before, "the drafter's states were written over")
        if runtime.name not in ("ort", "reference"):  # numpy's products know how many rows there are
            assert written(cache, TREE) == written(whole, TREE)


def test_calls_that_are_quicker_are_taken() -> None:
    class Quick(FakeRuntime):
        def call(self, rows: Rows, cache: Cache, skip: int, want: Want, begun: Begun | None = None) -> Output:  # type: ignore[override]
            assert (rows, skip, want, begun) == (TREE, 3, Want(top=2), None)
            return answer

    runtime, answer = Quick(), Output()
    assert compute(runtime, TREE, runtime.new_cache(16), 3, Want(top=2)) is answer
    assert runtime.calls == 0


def test_wants_add_up() -> None:
    assert Want(False, 3) | Want(False, 1, True) == Want(False, 3, True)
    assert Want(False) | Want(True) == Want() == Want() | Want(False)


def test_the_best_and_the_lowest_of_equals() -> None:
    logits = np.array([[1, 5, 3, 5, 5, 0], [0, 0, 0, 0, 0, 0], [-1, -2, -3, -4, -5, -6]], np.float32)
    for k in range(1, 9):
        ids, scores = best(logits, k)
        expected = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(ids, expected)
        np.testing.assert_array_equal(scores, np.take_along_axis(logits, expected, 1))


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_best_where_logits_are_not_finite(bad: float, k: int) -> None:
    logits = np.array([[1, 2, 3, 4], [1, 2, bad, 4], [4, 3, -np.inf, -np.inf]], np.float32)
    ids, _ = best(logits, k)
    assert ids[0].tolist() == [3, 2, 1, 0][:k]
    assert ids[1, 0] == -1
    assert ids[2].tolist() == [0, 1, -1, -1][:k]
