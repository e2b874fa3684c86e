"""Sets of adapters on the native engine: near the reference, and the bytes of a row depend on that row alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle
from gated import gated

import edgedec
from edgedec.bundle.adapter import LoraAdapter
from edgedec.bundle.routed import RoutedAdapters, routed
from edgedec.kernels.cpu import loader
from edgedec.runtime import ALL_LOGITS, Call, Rows
from edgedec.runtimes.reference import Reference

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")
PROMPT = "Once upon a time there was a little cat who wanted a friend."
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


def engine(tmp_path: Path, name: str, threads: int = 2) -> Any:
    return native.NativeRuntime(write_bundle(tmp_path / "b", ODD[name], random_weights(ODD[name])), "f32", threads)


def logits(runtime: Any, adapter: Any, cuts: tuple[int, ...] = ()) -> Any:
    """The logits of the text, read in pieces that end at `cuts`."""
    cache, found, at = runtime.new_cache(40), [], 0
    for end in (*cuts, len(TEXT)):
        call = Call(Rows.chain(TEXT[at:end], at), cache, outputs=ALL_LOGITS, adapter=adapter)
        found.append(runtime.forward([call])[0].logits)
        cache.commit(range(end - at))
        at = end
    return np.concatenate(found)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("name", ["all", "after", "large"])
def test_logits_are_the_references(tmp_path: Path, name: str, n: int) -> None:
    runtime = engine(tmp_path, name)
    spec = runtime.spec
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    theirs = Reference(spec, lambda name, a, b: bundle.rows(name, a, b), "f32")
    # Other seeds than those by which one row scores two adapters within 2e-8 of each other.
    adapters = [gated(4 + seed, spec, rank=2 + seed) for seed in range(n)]
    found = logits(runtime, routed(adapters))
    np.testing.assert_allclose(found, logits(theirs, routed(adapters)), atol=5e-3, rtol=1e-3)
    for one in (None, *adapters):
        assert np.abs(found - logits(runtime, one)).max() > 0.05


@pytest.mark.parametrize("name", ["all", "large"])
def test_bytes_are_the_same_alone_in_a_batch_and_in_pieces(tmp_path: Path, name: str) -> None:
    runtime = engine(tmp_path, name)
    four = [gated(seed, runtime.spec) for seed in range(4)]
    several: list[Any] = [routed(four), None, four[1], routed(four[1:3]), routed(four)]
    alone = [logits(runtime, adapter) for adapter in several]
    calls = [Call(Rows.chain(TEXT, 0), runtime.new_cache(40), outputs=ALL_LOGITS, adapter=a) for a in several]
    for one, together in zip(alone, runtime.forward(calls), strict=True):
        assert together.logits.tobytes() == one.tobytes()
    assert len({one.tobytes() for one in alone}) == 4
    for cuts in ((1,), (5, 6, 13), tuple(range(1, len(TEXT)))):
        assert logits(runtime, several[0], cuts).tobytes() == alone[0].tobytes()
    assert logits(engine(tmp_path, name, 1), several[0]).tobytes() == alone[0].tobytes()


@pytest.fixture(scope="module")
def nano_sets() -> tuple[Any, dict[str, Any]]:
    """The engine of nano, and its text with: one adapter, another one, the set of both, a larger set."""
    model = edgedec.open("nano", engine="native", threads=2)
    a, b, c = (loud(gated(seed, model.spec, rank=2)) for seed in range(3))
    return model, {"a": a, "b": b, "ab": routed([a, b]), "abc": routed([a, b, c])}


def loud(adapter: LoraAdapter) -> LoraAdapter:
    """Less, so that texts are texts still."""
    quieter = {name: low._replace(b=low.b * np.float32(0.2)) for name, low in adapter.matrices.items()}
    return LoraAdapter(adapter.name, adapter.digest, quieter)


def text(model: Any, adapter: Any, speculate: str = "off") -> tuple[list[int], Any]:
    session = model.session(speculate=speculate, context=192, adapter=adapter)
    found = session.tokens(model.tokenizer.encode(PROMPT), max_tokens=24, ignore_eos=True, sampling=edgedec.Sampling())
    return [int(t) for t in found], session


def test_texts_of_sets_are_the_same_with_drafts_and_shared_prefixes(nano_sets: tuple[Any, dict[str, Any]]) -> None:
    """Texts with the same prompt in any order: no cache is that of another set."""
    shared, sets = nano_sets
    apart = edgedec.open("nano", engine="native", threads=2, prefix_tokens=0)
    expected = {name: text(apart, adapter)[0] for name, adapter in sets.items()}
    assert len({tuple(ids) for ids in expected.values()}) == 4
    for name in ("a", "ab", "abc", "b", "ab", "a", "abc"):
        assert text(shared, sets[name])[0] == expected[name], name
    drafted, session = text(shared, sets["ab"], "recycling:fixed=10")
    assert drafted == expected["ab"]
    assert session.stats.proposed > 10


def test_a_tree_has_the_bytes_of_its_paths(tmp_path: Path) -> None:
    runtime = engine(tmp_path, "all")
    adapter: RoutedAdapters = routed([gated(seed, runtime.spec) for seed in range(3)])
    cache = runtime.new_cache(40)
    runtime.forward([Call(Rows.chain(TEXT[:6], 0), cache, adapter=adapter)])
    cache.commit(range(6))
    fork = cache.fork(6, 40)
    #  2 - 6 - 5   and   2 - 7
    tree = Rows.tree([2, 6, 5, 7], [-1, 0, 1, 0], 6)
    found = runtime.forward([Call(tree, cache, outputs=ALL_LOGITS, adapter=adapter)])[0].logits
    for tokens, path in (([2, 6, 5], [0, 1, 2]), ([2, 7], [0, 3])):
        twin = fork.fork(6, 40)
        chain = runtime.forward([Call(Rows.chain(tokens, 6), twin, outputs=ALL_LOGITS, adapter=adapter)])[0].logits
        assert chain.tobytes() == found[path].tobytes()
