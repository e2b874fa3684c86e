"""Which experts a text uses: by hand, beside the runtime's own choices, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bench.expert_use import expert_use, used_by
from edgedec.bench.experts import rows_choosing
from edgedec.errors import UsageError
from edgedec.runtime import open_runtime
from edgedec.runtimes.reference import moe
from edgedec.spec import Mlp, ModelSpec, Moe
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

pytest.importorskip("onnx", reason="bundles are written with onnx")
HEADS = MODELS["plain"].attention[0]
RELU = Moe(10, 10, 16, "relu", normalize=False, gated=False)
IDS = np.random.default_rng(0).integers(0, 101, 43).tolist()


def bundle_of(folder: Path, *blocks: Any) -> Any:
    spec: ModelSpec = replace(MODELS["plain"], layers=(blocks, blocks))
    return write_bundle(folder, spec, random_weights(spec))


def test_rows_that_use_no_expert() -> None:
    experts = np.array([[0, -1, 2], [-1, -1, -1]])
    assert used_by(experts, 3).tolist() == [[True, False, True], [False] * 3]
    assert rows_choosing(np.array([[-1, -1], [0, -1], [0, 3]]), 2, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "blocks",
    [
        (HEADS, RELU),
        (HEADS, replace(RELU, logit_bias=True, norm="layer")),
        (HEADS, Moe(6, 2, 16)),
        (HEADS, Moe(8, 2, 16, "sigmoid", router_bias=True, groups=4, top_groups=2)),
        (HEADS, Mlp(96, branch=True), Moe(6, 2, 16, router_norm=True)),
        (HEADS, Moe(6, 2, 16, early_router=True)),
    ],
    ids=["relu", "relu with biases", "softmax", "groups", "beside a feed-forward", "before attention"],
)
def test_the_shares_are_those_of_the_experts_that_run(
    tmp_path: Path, blocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two windows, of 30 and 13 tokens, in chunks of 4: 7 and 3 whole ones."""
    bundle, seen = bundle_of(tmp_path / "b", *blocks), list[Any]()
    facts = blocks[-1]

    def noted(usual: Any) -> Any:
        return lambda *args: seen.append(found := usual(*args)) or found

    monkeypatch.setattr(moe, "experts_of", noted(moe.experts_of))  # as blocks that run look it up
    found = expert_use(open_runtime("reference", bundle), bundle, IDS, 30, 4)
    assert len(seen) == 4
    own = [used_by(experts, facts.n_experts) for experts, _ in seen]
    for use, first, second in zip(found.blocks.values(), own[:2], own[2:], strict=True):
        assert (len(first), len(second)) == (30, 13)
        assert use.token == pytest.approx(np.concatenate([first, second]).mean())
        parts = [part[at : at + 4] for part in (first, second) for at in range(0, len(part) - 3, 4)]
        assert len(parts) == 10
        assert use.chunk == pytest.approx(np.mean([part.any(axis=0).mean() for part in parts]))
        assert use.token < use.chunk < 1
    assert found.token == pytest.approx(np.mean([use.token for use in found.blocks.values()]))
    assert list(found.blocks) == [len(blocks) - 1, 2 * len(blocks) - 1]


def test_texts_that_have_no_chunk_and_models_without_experts_are_refused(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path / "b", HEADS, RELU)
    runtime = open_runtime("reference", bundle)
    with pytest.raises(UsageError, match="5 tokens in windows of 30: at least a chunk of 8"):
        expert_use(runtime, bundle, IDS[:5], 30, 8)
    with pytest.raises(UsageError, match="at most the context"):
        expert_use(runtime, bundle, IDS, 1000, 8)
    dense = bundle_of(tmp_path / "dense", HEADS, Mlp(96))
    with pytest.raises(UsageError, match="no block of it has experts"):
        expert_use(open_runtime("reference", dense), dense, IDS, 30, 8)


def test_the_report() -> None:
    from edgedec.bench.expert_use import BlockUse, ExpertUse

    use = ExpertUse(40, 8, {1: BlockUse(10, 0.2, 0.5), 3: BlockUse(10, 0.4, 0.6)})
    report = json.loads(json.dumps(use.to_json()))
    assert report["shares"] == {"token": pytest.approx(0.3), "chunk": pytest.approx(0.55)}
    assert report["blocks"]["3"] == {"experts": 10, "token": 0.4, "chunk": 0.6, "bytes": 0}
