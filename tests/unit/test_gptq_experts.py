"""GPTQ of experts: each for the rows that are routed to it, with what all rows say where these are few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BadTensor
from edgedec.export.grids import GRIDS
from edgedec.export.passes import PassContext, PassModel, _experts, chosen, make_pass
from edgedec.export.passes._experts import rounded_experts, stacked
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._solve import solve
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.allocate import rounded as nearest
from edgedec.runtimes.reference.moe import route
from edgedec.runtimes.reference.numeric import Array
from edgedec.spec import Moe
from edgedec.testing.conformance.bundles import random_weights
from edgedec.testing.conformance.models import MODELS

SPEC = MODELS["experts"]
HELD = random_weights(SPEC)
IDS = np.random.default_rng(0).integers(0, SPEC.vocab_size, 240)
TEXTS = Statistics((IDS[:120], IDS[120:]))
B = next(b for b, block in enumerate(SPEC.blocks) if isinstance(block, Moe))


def read(name: str, start: int, stop: int) -> Array:
    return HELD[name][start:stop]


def before(b: int) -> Any:
    run = TEXTS.run(SPEC, read)
    for at in range(b):
        run.advance(at)
    return run


def test_an_experts_moments_are_of_the_rows_routed_to_it() -> None:
    run, block = before(B), SPEC.blocks[B]
    assert isinstance(block, Moe)
    from edgedec.runtimes.reference.numeric import normed

    rows = np.concatenate(run.state())
    x = normed(rows, block.norm, HELD[f"blocks.{B}.norm"], None, SPEC.norm_eps)
    experts, _ = route(block, x @ HELD[f"blocks.{B}.router"].T)
    counts = np.bincount(experts.ravel(), minlength=block.n_experts)
    found = run.expert_moments(B, f"blocks.{B}.gate_up", range(block.n_experts))
    assert {expert: known.rows for expert, known in found.items()} == {e: n for e, n in enumerate(counts) if n}
    assert len(set(counts)) > 1
    for expert, known in found.items():
        own = x[(experts == expert).any(axis=1)].astype(np.float64)
        np.testing.assert_allclose(known.diagonal[0], own.T @ own, rtol=1e-3, atol=1e-2)
    assert f"blocks.{B}.gate_up" not in run.moments(B)  # what has no name of its own is not watched
    assert all("[" not in name for name in run.order(B))


@pytest.mark.parametrize("most", [1 << 25, 1])
def test_each_expert_is_rounded_for_its_own_inputs(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_experts, "_MOST", most)  # all experts at a time, and one
    stack = next(iter(stacked(SPEC, B)))
    name, rows = stack.name, stack.rows
    run, weights = before(B), HELD[name]
    codes, scales = rounded_experts(run, B, stack, weights, GRIDS["int3"], 32, 0.01, 1)
    assert (len(codes), codes.shape) == (len(weights), weights.shape)
    known = run.expert_moments(B, name, range(len(weights) // rows))
    total, seen = sum(one.diagonal[0] for one in known.values()), sum(one.rows for one in known.values())
    for expert in (0, 2):
        part = weights[expert * rows : (expert + 1) * rows].astype(np.float64)
        mixed = known[expert].diagonal[0] + 0.25 * part.shape[1] / seen * total
        expected, steps = solve(part, [mixed], GRIDS["int3"], 32, 0.01, True, 1)
        np.testing.assert_array_equal(codes[expert * rows : (expert + 1) * rows], expected)
        np.testing.assert_array_equal(scales[expert * rows : (expert + 1) * rows], steps)


def error(stored: dict[str, Array]) -> float:
    """What rounded experts of the first such block change in what it adds, squared."""
    change = 0.0
    for run, other in ((before(B), before(B)),):
        other._weights._read = lambda name, a, b: stored.get(name, HELD[name])[a:b]
        run.advance(B)
        other.advance(B)
        change += sum(float(np.square(a - b).sum()) for a, b in zip(run.state(), other.state(), strict=True))
    return change


def test_rounded_experts_change_less_than_nearest_ones() -> None:
    names, clever = list(stacked(SPEC, B)), dict[str, Array]()
    from edgedec.export.quantize import from_codes

    for stack in names:
        found = rounded_experts(before(B), B, stack, HELD[stack.name], GRIDS["int3"], 32, 0.01, 2)
        clever[stack.name] = from_codes(*found, "int3", 32)
    plain = {stack.name: nearest(HELD[stack.name], "int3", 32) for stack in names}
    assert 0 < error(clever) < 0.8 * error(plain)


def test_the_pass_takes_them_and_goes_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: Any = dict.fromkeys(("body", "head", "embed"), "int4")
    context = PassContext(SPEC, parts, 32, RoundedStore(tmp_path))

    def run(source: Any = read) -> PassModel:
        return make_pass(chosen("gptq:sweeps=0")[0], context)(PassModel(SPEC, source), TEXTS)

    model = run()
    assert {stack.name for b in range(SPEC.n_blocks) for stack in stacked(SPEC, b)} <= set(model.rounded)
    assert len(list(stacked(SPEC, B))) == 2
    name = f"blocks.{B}.down"
    assert (model.read(name, 0, 8) != nearest(HELD[name][:8], "int4", 32)).any()
    monkeypatch.setattr("edgedec.export.passes.gptq.rounded_experts", None)  # what is there is not made again
    np.testing.assert_array_equal(run().read(name, 0, 8), model.read(name, 0, 8))
    monkeypatch.undo()
    RoundedStore(tmp_path).remove()
    with pytest.raises(BadTensor, match=rf"{name}: holds weights that are not finite"):
        run(lambda n, a, b: read(n, a, b) * (np.nan if n == name else 1))
