"""The GPU engines beside the native one, on models of random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec.kernels.cuda import emulated
from edgedec.kernels.opencl import driver
from edgedec.runtime import Runtime, RuntimeOptions, open_runtime
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS


def both(folder: Path, engine: str, model: str, kv: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Runtime, Runtime]:
    """The engine and the native one on a model of random weights."""
    monkeypatch.setenv("EDGEDEC_CUDA", "emulated")
    monkeypatch.setenv("EDGEDEC_OPENCL", "0")
    why = emulated.why_not() if engine == "cuda" else driver.why_not()
    if why:
        pytest.skip(f"{engine}: {why}")
    path, spec = folder / f"{model} {engine} {kv}", MODELS[model]
    bundle = write_bundle(path, spec, random_weights(spec), "int4")
    ours, theirs = (open_runtime(name, bundle, RuntimeOptions(threads=1, kv=kv)) for name in (engine, "native"))
    return ours, theirs


def tokens(n: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, 101, n).tolist()
    return found
