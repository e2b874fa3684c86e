"""Read-ME's split of feed-forwards, its pre-router and the mixtures whose experts that gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bundles import random_weights, write_bundle
from parity.oracle import forward

from edgedec.errors import BundleCorrupt, RuntimeUnavailable, UsageError
from edgedec.export.domain_experts import most_active, own_of_each, shared_by_all, stored_shared
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.spec import ModelSpec, Moe
from edgedec.spec.newer import is_newer
from edgedec.testing.conformance.compare import logits, path, read, run, text, tokens, tree
from edgedec.testing.conformance.models import MODELS

SPEC = MODELS["experts chosen before the layers"].check()
GET = random_weights(SPEC)
ENGINES = ("reference", *(["native"] if why_not() is None else []))


@pytest.fixture(scope="module", params=ENGINES)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    bundle = write_bundle(tmp_path_factory.mktemp("given"), SPEC, GET)
    return open_runtime(request.param, bundle, RuntimeOptions(threads=1, kv="f32"))


def changed(spec: ModelSpec, **fields: object) -> ModelSpec:
    """The model with other fields of its mixtures."""
    layers = (tuple(replace(b, **fields) if isinstance(b, Moe) else b for b in layer) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < 1e-3)


def test_the_larger_half_of_the_neurons_by_magnitude() -> None:
    rows = np.array([[-9.0, 9.0, 1.0, 2.0], [-9.0, -9.0, 1.0, 3.0]])
    assert most_active(np.abs(rows).mean(0)).tolist() == [True, True, False, False]
    assert most_active(rows.mean(0)).tolist() == [False, False, True, True], "a mean with signs keeps others"
    assert most_active(np.ones(6)).tolist() == [True, True, True, False, False, False]


def test_shared_neurons_are_those_of_all_domains() -> None:
    selected = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 1, 0]], bool)
    assert shared_by_all(selected).tolist() == [True, False, False, False, False], "not those of any domain"
    assert own_of_each(selected).astype(int).tolist() == [[0, 1, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 1, 0]]
    same = np.tile(np.arange(128) < 64, (2, 1))
    assert stored_shared(same).tolist() == list(range(32)), "an expert keeps some of its own"
    assert stored_shared(np.stack([same[0], np.arange(128) >= 20])).tolist() == list(range(20, 52))


def test_the_arithmetic_is_that_of_a_second_implementation(runtime: Runtime) -> None:
    ids = tokens(SPEC, 20)
    assert near(text(runtime, ids)[1], forward(SPEC, GET, ids))


def test_wrong_neighbours_are_told_apart(runtime: Runtime) -> None:
    """Another expert in one layer, and a router that sees a token alone."""
    ids = tokens(SPEC, 20)
    own = text(runtime, ids)[1]
    block = 4
    turned = (
        GET(f"blocks.{block}.gate_up").reshape(5, -1)[[1, 2, 3, 4, 0]].reshape(GET(f"blocks.{block}.gate_up").shape)
    )
    assert not near(own, forward(SPEC, lambda name: turned if name == f"blocks.{block}.gate_up" else GET(name), ids))
    assert not near(own[1:], np.concatenate([forward(SPEC, GET, [token]) for token in ids[1:]]))


def test_rows_batches_and_trees_are_the_same(runtime: Runtime) -> None:
    ids, rows = tokens(SPEC, 12), tree(SPEC, 5)
    expected = text(runtime, ids, chunk=12)[1]
    for chunk in (1, 3):
        np.testing.assert_allclose(text(runtime, ids, chunk=chunk)[1], expected, atol=2e-5)
    caches = [text(runtime, ids[:5])[0], text(runtime, ids[:7])[0], text(runtime, ids[:5])[0]]
    calls = [Call(rows, caches[0], outputs=Outputs(logits=True)), Call(Rows.chain(ids[7:], 7), caches[1])]
    calls[1] = calls[1]._replace(outputs=Outputs(logits=True))
    together = [logits(result) for result in runtime.forward(calls)]
    np.testing.assert_allclose(together[1], expected[7:], atol=2e-5)
    for row in range(len(rows)):
        chain = [int(rows.tokens[i]) for i in path(rows, row)]
        np.testing.assert_allclose(together[0][row], read(runtime, chain, caches[2].fork())[-1], atol=2e-5)
    caches[0].commit(path(rows, 7))
    chain = [int(rows.tokens[i]) for i in path(rows, 7)]
    again = read(runtime, ids[:2], caches[0])
    np.testing.assert_allclose(again, text(runtime, [*ids[:5], *chain, *ids[:2]])[1][-2:], atol=2e-5)


def test_a_saved_cache_goes_on(runtime: Runtime) -> None:
    ids = tokens(SPEC, 12)
    cache, expected = text(runtime, ids[:8])[0], text(runtime, ids)[1][8:]
    loaded = runtime.new_cache(64)
    loaded.load({name: array.copy() for name, array in cache.save().items()})
    np.testing.assert_allclose(read(runtime, ids[8:], loaded), expected, atol=2e-5)
    cache.truncate(4)
    np.testing.assert_allclose(read(runtime, ids[4:], cache)[4:], expected, atol=2e-5)


def test_later_layers_read_what_was_chosen_before(runtime: Runtime) -> None:
    """A slice of the stack goes on with the experts of its rows, also of some rows of a tree."""
    rows = tree(SPEC, 4)
    cache = text(runtime, tokens(SPEC, 4))[0]
    whole = logits(run(runtime, rows, cache))
    lower, upper = range(3), range(3, SPEC.n_blocks)
    state = run(runtime, rows, cache, Outputs(hidden=(2,)), blocks=lower).hidden[2]
    np.testing.assert_allclose(logits(run(runtime, rows, cache, blocks=upper, hidden=state)), whole, atol=2e-5)


def test_rows_that_are_added_to_pending_ones_keep_the_experts_of_these(runtime: Runtime) -> None:
    ids = tokens(SPEC, 12)
    rows, cache, lower = Rows.chain(ids, 0), runtime.new_cache(16), range(3)
    whole, states = text(runtime, ids)[1], []
    for first, last in ((0, 5), (5, 12)):
        part = replace(Rows.chain(ids[:last], 0), first=first)
        states.append(run(runtime, part, cache, Outputs(hidden=(2,)), blocks=lower).hidden[2])
    found = logits(run(runtime, rows, cache, blocks=range(3, SPEC.n_blocks), hidden=np.concatenate(states)))
    np.testing.assert_allclose(found, whole, atol=2e-5)


def test_rows_that_no_expert_was_chosen_for_are_refused(runtime: Runtime) -> None:
    rows, state = Rows.chain([1, 2], 0), np.ones((2, SPEC.hidden_size), np.float32)
    with pytest.raises(UsageError, match="block"):
        forward_one(runtime, Call(rows, runtime.new_cache(8), range(3, SPEC.n_blocks), state))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"given_by": 1}, "block 1 is no pre_router before it"),
        ({"given_by": -1}, "given_by: -1 of experts chosen by given"),
        ({"router": "softmax"}, "given_by: 0 of experts chosen by softmax"),
        ({"n_experts": 6}, "no pre_router before it of as many experts"),
        ({"top_k": 2}, "given experts are one a row"),
        ({"normalize": True}, "given experts are one a row"),
        ({"scale": 2.0}, "given experts are one a row"),
    ],
)
def test_experts_that_cannot_be_given_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(BundleCorrupt, match=words):
        changed(SPEC, **fields).check()


def test_a_router_has_no_more_than_heads() -> None:
    router = SPEC.blocks[0]
    for fields in ({"window": 4}, {"norm": "layer"}, {"n_experts": 0}, {"qkv_bias": False}):
        with pytest.raises(BundleCorrupt, match=r"layers\[0\]\[0\]"):
            replace(SPEC, layers=((replace(router, **fields), *SPEC.layers[0][1:]), *SPEC.layers[1:])).check()


def test_readers_of_the_first_formats_are_warned() -> None:
    assert is_newer(SPEC)


@pytest.mark.parametrize("engine", ["ort"])
def test_other_engines_refuse_it_in_a_line(engine: str, tmp_path: object) -> None:
    bundle = write_bundle(tmp_path, SPEC, GET)  # type: ignore[arg-type]
    with pytest.raises(RuntimeUnavailable, match="pre_router"):
        open_runtime(engine, bundle, RuntimeOptions(threads=1))
