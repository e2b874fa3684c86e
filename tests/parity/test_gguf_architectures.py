"""Further architectures of GGUF files, written by the rules of llama.cpp's converter, are what transformers made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from readings import all_logits, of_file

torch = pytest.importorskip("torch", reason="the models are built with torch")
pytest.importorskip("gguf", reason="GGUF files are written with the package gguf")

from gguf_architectures import MODELS, write  # noqa: E402

from edgedec.export.gguf.config import ARCHITECTURES  # noqa: E402
from edgedec.export.gguf.dense import DENSE  # noqa: E402
from edgedec.export.gguf.hybrids import HYBRIDS  # noqa: E402
from edgedec.export.gguf.mixtures import MIXTURES  # noqa: E402

IDS = np.random.default_rng(1).integers(3, 101, 24).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_a_file_is_the_one_that_wrote_it(name: str, tmp_path: Path) -> None:
    model, path = write(name, tmp_path / "m.gguf")
    torch.set_num_threads(1)
    with torch.no_grad():
        expected = model(torch.tensor(IDS)[None]).logits[0].numpy()
    found = all_logits(of_file(path), IDS)
    assert expected.std() > 0.05
    assert np.abs(found - expected).max() < 1e-3 * max(1.0, np.abs(expected).max())


def test_every_architecture_is_tried() -> None:
    assert {arch for arch, _ in MODELS.values()} == {*DENSE, *MIXTURES, *HYBRIDS, "lfm2moe", "olmo2"}
    assert {*DENSE, *MIXTURES, *HYBRIDS} < set(ARCHITECTURES)
