"""Adapters on the native engine: near the reference, and nothing to rows that have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bundles import ODD, random_weights, write_bundle

from edgedec.bundle.adapter import LoraAdapter, LowRank
from edgedec.kernels.cpu import loader
from edgedec.runtime import ALL_LOGITS, Call, Rows
from edgedec.runtimes.reference import Reference
from edgedec.spec import ModelSpec

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
native = pytest.importorskip("edgedec.runtimes.native")


def adapter(spec: ModelSpec, seed: int, rank: int) -> LoraAdapter:
    """For every second matrix of the blocks."""
    rng, found = np.random.default_rng(seed), {}
    for name in sorted(name for name in spec.matrices if name.startswith("blocks."))[seed % 2 :: 2]:
        n, k = spec.tensors()[name]
        a, b = (rng.standard_normal(shape).astype(np.float32) * 0.3 for shape in ((rank, k), (n, rank)))
        found[name] = LowRank(a, b)
    return LoraAdapter(str(seed), str(seed), found)


@pytest.mark.parametrize("name", ["all", "after", "large"])
def test_adapters_of_one_call(tmp_path: Path, name: str) -> None:
    spec = ODD[name]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    ours = native.NativeRuntime(bundle, "f32", 2)
    theirs = Reference(bundle.spec, lambda name, a, b: bundle.rows(name, a, b), "f32")
    adapters = [None, adapter(spec, 0, 4), adapter(spec, 1, 3), None, adapter(spec, 0, 7)]
    texts = [np.random.default_rng(i).integers(0, spec.vocab_size, 3 + 2 * i).tolist() for i in range(5)]

    def calls(runtime: object, adapters: list) -> list[Call]:
        parts = zip(texts, adapters, strict=True)
        return [Call(Rows.chain(ids, 0), runtime.new_cache(40), outputs=ALL_LOGITS, adapter=one) for ids, one in parts]

    found, expected = ours.forward(calls(ours, adapters)), theirs.forward(calls(theirs, adapters))
    plain = ours.forward(calls(ours, [None] * 5))
    for i in range(5):
        np.testing.assert_allclose(found[i].logits, expected[i].logits, atol=2e-3, rtol=1e-3)
        same = found[i].logits.tobytes() == plain[i].logits.tobytes()
        assert same == (adapters[i] is None)
    alone = [ours.forward([call])[0] for call in calls(ours, adapters)]
    assert all(a.logits.tobytes() == b.logits.tobytes() for a, b in zip(alone, found, strict=True))
