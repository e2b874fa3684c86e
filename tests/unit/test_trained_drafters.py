"""The bench of all trained heads: no kind is left out, networks are charged by their matrices, rows are complete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="networks are read with onnx")
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import trained_drafters
from charged import SIZES

from edgedec.drafters import FAMILY
from edgedec.drafters._networks.graphs import Network
from edgedec.export.drafts.networks import MergeWeights, RungWeights, merge_graph, rung_graph
from edgedec.export.drafts.recurrent import lstm_graph
from edgedec.export.students import FAMILY as STUDENTS
from edgedec.models.heads import FAMILY as HEADS


def test_every_kind_that_is_trained_is_on_the_bench() -> None:
    named = {STUDENTS.aliases.get(kind, kind) for kind in trained_drafters.KINDS}
    assert named == {*HEADS.names(), *STUDENTS.names()}
    for drafter, _ in trained_drafters.KINDS.values():
        name, _, rest = drafter.partition(":")
        FAMILY.typed(name, dict(part.split("=") for part in rest.split(",") if part))
    assert set(trained_drafters.SLOW) < set(trained_drafters.KINDS)


def test_every_other_drafter_is_on_the_bench_or_named_as_left_out() -> None:
    trained = {drafter.partition(":")[0] for drafter, _ in trained_drafters.KINDS.values()}
    others = set(FAMILY.names()) - trained - set(trained_drafters.UNTRAINED) - {"off"}
    assert trained_drafters.__doc__ is not None
    left_out = trained_drafters.__doc__.partition("Left out:")[2]
    assert {name for name in others if f"`{name}`" not in left_out} == set()
    for drafter in trained_drafters.UNTRAINED.values():
        FAMILY.typed(drafter, {"path": "x"} if drafter == "datastore" else {})


def test_matrices_of_networks(tmp_path: Path) -> None:
    one, hidden = np.ones, 32
    weights = [
        one((4 * hidden, w), np.float32) if w else one(4 * hidden, np.float32) for w in (64, 32, 0, 0, 32, 32, 0, 0)
    ]
    graphs = {
        "merge": merge_graph(MergeWeights(("a", "b"), one((32, 64), np.float32)), [32, 32], 0.0, "f32"),
        "rung": rung_graph(RungWeights((), one((96, 64), np.float32)), 64, 4, "int8"),
        "lstm": lstm_graph(weights, hidden),
    }
    for name, data in graphs.items():
        (tmp_path / name).write_bytes(data)
    found = {name: trained_drafters.matrices(str(tmp_path / name)) for name in graphs}
    assert found == {"merge": [(32, 64)], "rung": [(96, 64)], "lstm": [(128, 64), (128, 32), (128, 32), (128, 32)]}


def test_a_network_costs_its_share_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix of a layer's size costs a layer; a readout a head of 8,192 tokens; more rows a little more."""
    clock = trained_drafters.head_clock(SIZES["llama-1b"], 2.0, 4096)
    layer = trained_drafters.LAYER
    assert clock.share_of((128, layer // 128)) == pytest.approx(clock.layer)
    assert clock.share_of((4096, 128)) == pytest.approx(clock.head * 8192 / 128256)
    assert clock.share_of((4096, 256)) == pytest.approx(2 * clock.share_of((4096, 128)))
    monkeypatch.setattr(trained_drafters, "matrices", lambda path: [(128, layer // 128)])
    run = clock.network(lambda network, *inputs: "said")
    network: Any = type("N", (), {"_path": tmp_path})()
    for rows, cost in ((1, 2.0 * clock.layer), (5, 2.0 * clock.layer * 1.1)):
        before = clock.drafted
        assert run(network, np.zeros((rows, 7), np.float32)) == "said"
        assert clock.drafted - before == pytest.approx(cost)
    assert Network.run is not run


def test_a_row_names_what_changes_the_text() -> None:
    part = {"tokens_per_call": 2.0, "speed": 1.5, "drafted_calls": 0.25, "identical": True}
    row = {g: {"fixed": part, "governed": part} for g in trained_drafters.GEOMETRIES}
    row |= {"bytes": 2048, "accuracy": [0.5], "seconds": 60.0}
    cells = "| `eagle3` | 2.00 | 2.00 | 25% | 1.50 | 1.50 | 1.50 | 1.50 | 2 | 50% | 60 |"
    assert trained_drafters.line("eagle3", row) == cells
    assert trained_drafters.HEADER.split("\n")[0].count("|") == cells.count("|")
    row["llama-1b"] = {"fixed": part | {"identical": False}, "governed": part}
    assert trained_drafters.line("lud", row).startswith("| `lud` (another text) |")
