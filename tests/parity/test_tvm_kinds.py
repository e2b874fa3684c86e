"""Compiled libraries of every kind of block and every way to keep weights: the native engine's bytes on the golden
cases, which GPU engines are tested by too."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from libraries import opened
from numpy.typing import NDArray

from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.runtime.machines import machines_here
from edgedec.runtime.trust import trusting
from edgedec.runtimes._selftest.cases import CASES, GoldenCase, run
from edgedec.runtimes._selftest.check import golden
from edgedec.spec import ModelSpec, Moe, Ssm
from edgedec.testing.conformance.bundles import random_weights, write_bundle

pytest.importorskip("tvm_ffi")
pytest.importorskip("tvm")
pytestmark = pytest.mark.skipif(not machines_here() or shutil.which("c++") is None, reason="no machine to compile for")

SLOW = "EDGEDEC_SLOW_TESTS" in os.environ
FEW = [
    case for case in CASES if SLOW or case.model == "ssm" or (case.packing.zeros and case.model in ("dense", "norms"))
]  # that of states has experts, that of norms both kinds of GELU
FEW = [case for case in FEW if case.packing.format not in ("int3", "int2")]  # which libraries do not read


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
@pytest.mark.parametrize("machine", machines_here() if SLOW else machines_here()[:1])
def test_golden_cases(case: GoldenCase, machine: str, tmp_path: Path) -> None:
    runtime = opened(case, tmp_path, machine, threads=2)
    assert set(case.bundle.spec.kinds) <= set(runtime.capabilities.kinds)
    assert any(t.zeros for t in case.bundle.manifest.tensors.values()) == case.packing.zeros
    assert run(runtime) == golden()[case.name].result


WIDE = Ssm(n_heads=3, head_dim=80, state_size=40, conv_size=3, dt_max=0.5)
SPEC = ModelSpec(
    "wide", 101, 96, 256,
    ((WIDE, Moe(40, 6, 24, shared_size=40, shared_gate=True)), (Ssm(2, 128, 24, n_groups=2), Moe(5, 5, 16, "sigmoid"))),
    1e-5, True, (),
)  # fmt: skip


def test_shapes_that_are_no_powers_of_two(tmp_path: Path) -> None:
    """Many experts and few, heads of five and eight lane groups; trees whose path is not the last row."""
    weights = random_weights(SPEC)
    bundle = write_bundle(tmp_path / "wide", SPEC, weights, "int4", (f"tvm:{machines_here()[0]}",))
    with trusting(True):
        told = [_told(open_runtime(name, bundle, RuntimeOptions(2, "f32"))) for name in ("native", "tvm")]
    assert len(told[0]) == len(told[1]) == 6
    assert [a.tobytes() == b.tobytes() for a, b in zip(*told, strict=True)] == [True] * 6


def _told(runtime: Runtime) -> list[NDArray[np.float32]]:
    """Logits of a prompt, then of trees of which paths are kept whose states have to be made again."""
    cache, found = runtime.new_cache(200), []

    def logits(rows: Rows, kept: list[int]) -> None:
        made = forward_one(runtime, Call(rows, cache, outputs=ALL_LOGITS)).logits
        assert made is not None
        found.append(made.copy())
        cache.commit(kept)

    logits(Rows.chain(np.arange(33) * 7 % 101, 0), list(range(33)))
    for turn in range(5):
        start = cache.length
        tree = Rows.tree([11 + turn, 12, 13, 14, 15], parents=[-1, 0, 0, 2, 1], start=start)
        logits(tree, [[0, 1], [0, 2, 3], [0], [0, 2], [0, 1, 4]][turn])
        assert cache.length > start
    return found
