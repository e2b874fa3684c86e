"""A gpt-oss with MXFP4 experts: every engine computes with the checkpoint's, and the CPU engine the same bytes on every
instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mxfp4_models import SETTINGS, SMALL, tensors, written
from readings import all_logits, kl, same_bytes_everywhere

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.export.checkpoint import Checkpoint
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu import loader
from edgedec.runtime import open_runtime
from edgedec.runtimes.reference import Reference

pytest.importorskip("onnx", reason="exporting needs onnx")
pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
IDS = np.random.default_rng(1).integers(3, 101, 24).tolist()
EXPERTS = ("blocks.1.gate_up", "blocks.1.down")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    config, published, _ = tensors(SMALL, 0.15)
    folder = tmp_path_factory.mktemp("mxfp4") / "checkpoint"
    return written(folder, config | {"quantization_config": SETTINGS}, published)


def exported(checkpoint: Checkpoint, folder: Path, **options: object) -> Bundle:
    made = ExportOptions(**{"check": False, "runtimes": ("native",), **options})  # type: ignore[arg-type]
    return export(str(checkpoint.folder), folder / "b", made)


def of_bundle(bundle: Bundle, floats: Checkpoint | None = None) -> Reference:
    """The float model of a bundle's weights; its experts those of a checkpoint, where one is given."""
    sources = {} if floats is None else floats.weights(bundle.spec)

    def rows(name: str, start: int, stop: int) -> np.ndarray:
        if floats is None or name not in EXPERTS:
            return bundle.rows(name, start, stop)
        return floats.read(sources[name], start, stop)

    return Reference(bundle.spec, rows)


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_every_engine_computes_with_the_checkpoints_experts(
    checkpoint: Checkpoint, target: str, tmp_path: Path
) -> None:
    bundle = exported(checkpoint, tmp_path, target=target, runtimes=("native", "ort"))
    assert {bundle.manifest.tensors[name].format for name in EXPERTS} == {"mx4"}
    exact = all_logits(of_bundle(bundle, checkpoint), IDS)
    assert exact.std() > 0.05
    assert np.array_equal(all_logits(of_bundle(bundle), IDS), exact)
    assert np.abs(all_logits(open_runtime("reference", bundle), IDS) - exact).max() < 5e-3 * exact.std()
    eight = exported(checkpoint, tmp_path / "8", weights="int8")
    near = kl(all_logits(of_bundle(eight), IDS), all_logits(open_runtime("native", eight), IDS))
    for engine, share in (("native", 1.2), ("ort", 2.5)):  # which round activations to 8 bits
        assert kl(exact, all_logits(open_runtime(engine, bundle), IDS)) < share * near + 1e-6
    with pytest.raises(RuntimeUnavailable, match="reads no mx4 weights; native, reference and ort do") as caught:
        open_runtime("opencl", bundle)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_the_same_bytes_in_any_call_on_any_machine(checkpoint: Checkpoint, target: str, tmp_path: Path) -> None:
    bundle = exported(checkpoint, tmp_path, target=target)
    same_bytes_everywhere(bundle, IDS)
