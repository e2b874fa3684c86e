"""The GPU engines beside the native one, on models of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.kernels.cuda import emulated
from edgedec.kernels.opencl import driver
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one, logits_of, open_runtime
from edgedec.runtimes._device.runtime import FACTS_OF_MODELS, KINDS
from edgedec.spec import ModelSpec
from edgedec.spec.newer import newer
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

# All that a head can show.
ALL = Outputs(True, 5, True, (-1, 0), False, 0, 0.7)


def runs_on_gpus(spec: ModelSpec) -> bool:
    """Whether the GPU engines have all kinds of blocks and facts of a model."""
    return set(spec.kinds) <= set(KINDS) and set(newer(spec)) <= set(FACTS_OF_MODELS)


def both(folder: Path, engine: str, model: str, kv: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Runtime, Runtime]:
    """The engine and the native one on a model of random weights."""
    path, spec = folder / f"{model} {engine} {kv}", MODELS[model]
    bundle = write_bundle(path, spec, random_weights(spec), "int4")
    ours = opened(engine, bundle, kv, monkeypatch)
    return ours, open_runtime("native", bundle, RuntimeOptions(threads=1, kv=kv))


def opened(engine: str, bundle: Bundle, kv: str, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """The engine, emulated or on the first OpenCL device; without one the test is skipped."""
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
    monkeypatch.setenv("EDGEDEC_OPENCL", "0")
    why = emulated.why_not() if engine == "cuda" else driver.why_not()
    if why:
        pytest.skip(f"{engine}: {why}")
    return open_runtime(engine, bundle, RuntimeOptions(threads=1, kv=kv))


def tokens(n: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, 101, n).tolist()
    return found


def told(runtime: Runtime, ids: list[int]) -> Iterator[np.ndarray]:
    """All that a runtime says of a text in one call, of a tree, of a path of it, and of a later row."""
    cache = runtime.new_cache(80)
    yield logits_of(runtime, Rows.chain(ids, 0), cache)
    cache.commit(range(len(ids)))
    n = len(ids)
    tree = Rows.tree([1, 2, 3, 4, 5], [-1, 0, 0, 2, 2], n)
    yield logits_of(runtime, tree, cache)
    yield logits_of(runtime, tree.extend([6, 7], [1, 4]), cache)
    cache.commit([0, 2, 4, 6])
    first = next(b for b, block in enumerate(runtime.spec.blocks) if not block.branch)  # after which there is a state
    result = forward_one(runtime, Call(Rows.chain([5], n + 4), cache, outputs=ALL._replace(hidden=(-1, first))))
    yield from (result.logits, result.ids, result.scores, result.logsum, result.hidden[-1], result.hidden[first])
    cache.commit([0])
    yield cache.save()["state"]
