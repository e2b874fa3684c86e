"""Run by test_engine.py with the address sanitizer loaded: texts, trees, commits and chunks on the emulated engine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from edgedec.kernels.cuda import build, emulated
from edgedec.runtime import Call, Outputs, Rows, View, forward_one, logits_of
from edgedec.runtimes import cuda
from edgedec.runtimes._device import frames
from edgedec.spec import ModelSpec
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

frames._SLAB = 0  # every page has memory of its own
LIBRARY = build.emulation("address")
PAID = Outputs(logits=True, attention=True)


def run(model: str, fmt: str, kv: str) -> None:
    spec = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        bundle = write_bundle(Path(folder) / "bundle", spec, random_weights(spec), fmt)  # type: ignore[arg-type]
        runtime = cuda.CudaRuntime(bundle, kv, emulated.Emulated(library=LIBRARY))
        cache, ids = runtime.new_cache(384), np.arange(70) % spec.vocab_size
        logits_of(runtime, Rows.chain(ids, 0), cache, 60)
        cache.commit(range(70))
        logits_of(runtime, Rows.tree([1, 2, 3, 4, 5], [-1, 0, 0, 2, 2], 70), cache)
        cache.commit([0, 2, 4])
        cache.drop(min(spec.attention), [3, 64])
        twin = cache.fork(66)
        second = Call(Rows.chain([2], twin.length), twin)
        calls = [Call(Rows.chain([1], 73), cache, outputs=Outputs(top=7, logsum=True)), second]
        runtime.forward(calls)
        result = forward_one(runtime, Call(Rows.chain([4, 5], 73), cache, outputs=Outputs(True, 3, True, (-1, 1))))
        assert result.logits is not None
        assert np.isfinite(result.logits).all()
        for views in (None, *some_views(spec)):
            call = Call(Rows.tree([1, 2, 3], [-1, 0, 0], 73), cache, outputs=PAID, views=views)
            (result,) = runtime.forward([call])
            assert all(np.isfinite(paid).all() for paid in result.attention.values())
            cache.rollback()
        cache.merge(min(spec.attention), [1, 2], [4, 66], [0.5, 0.25])


def some_views(spec: ModelSpec) -> list[dict[int, View]]:
    """Of a page that is searched for, slots that stand for some, slots near an anchor."""
    slots, runs = np.array([5, 40, 62]), np.array([3, 1, 2])
    some = [View(recent=0, pages=1), View(recent=0, theta=1.0, group=0)]
    found = [dict.fromkeys(spec.attention, view) for view in some]
    heads = {b: block.n_kv_heads for b, block in spec.attention.items()}
    return [*found, {b: View(recent=0, slots=[slots] * n, runs=[runs] * n, group=2) for b, n in heads.items()}]


for name, fmt, kv in [arguments.split(",") for arguments in sys.argv[1:]]:
    run(name, fmt, kv)
    print(name, fmt, kv, "ran")
