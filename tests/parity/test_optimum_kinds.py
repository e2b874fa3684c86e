"""Every decoder type that optimum exports: a bundle that computes what transformers 5 computes, or none, with why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from decoder_graphs import optimum_python
from optimum_kinds import ELSEWHERE, KINDS, export_all, write_checkpoints

pytest.importorskip("onnx", reason="importing graphs needs onnx")
pytest.importorskip("torch", reason="needs torch to make the checkpoints")
pytest.importorskip("transformers", reason="needs transformers to make the checkpoints")
pytestmark = [
    pytest.mark.skipif(optimum_python() is None, reason="needs optimum-onnx: `make .venv-optimum`"),
    pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="minutes; set EDGEDEC_SLOW_TESTS"),
]
# What optimum 0.1 computes otherwise than the checkpoint: gemma2 without the soft cap of its attention; Pegasus with
# blocks of sparse attention.
WRONG = ("gemma2", "bigbird_pegasus")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    from edgedec.export.via_optimum import stage

    python, folder = optimum_python(), tmp_path_factory.mktemp("kinds")
    assert python is not None
    write_checkpoints(folder / "checkpoints")
    for kind in KINDS:
        stage(folder / "checkpoints" / kind, folder / "staged" / kind)
    return folder, export_all(python, folder)


def test_these_are_all(made: tuple[Path, dict[str, Any]]) -> None:
    assert set(made[1]["known"]) == {*KINDS, *ELSEWHERE}
    assert made[1]["failed"] == {}


@pytest.mark.parametrize("kind", KINDS)
def test_right_or_refused(made: tuple[Path, dict[str, Any]], kind: str) -> None:
    from edgedec.errors import CheckpointError
    from edgedec.export.decoder_graph import import_graph

    folder, out = made[0], made[0] / "bundles" / kind
    out.parent.mkdir(exist_ok=True)
    graph, checkpoint = folder / "onnx" / kind, folder / "checkpoints" / kind
    if kind in WRONG:
        with pytest.raises(CheckpointError, match=f"a {kind} that computes something else than its checkpoint"):
            import_graph(graph, out, checkpoint=checkpoint, weights=checkpoint)
        assert not out.exists()
        return
    found = import_graph(graph, out, checkpoint=checkpoint, weights=checkpoint)
    assert found.checked.by.startswith("transformers 5")
    assert found.checked.apart is not None
    assert found.checked.apart < 1e-4
