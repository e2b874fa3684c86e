"""A bundle of a small random diffusion model, exported from a checkpoint with a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoints import VOCAB, write_llama

from edgedec.export.exporter import ExportOptions, export

MASK = VOCAB
FACTS = {"mask": MASK, "shift": True, "context": "causal", "block": 4}


def exported(folder: Path, size: int = 128, **facts: Any) -> Path:
    """The bundle's folder. size: of the context; facts: of the section `diffusion`, where they are others."""
    checkpoint = write_llama(
        folder / "checkpoint", vocab_size=VOCAB + 8, max_position_embeddings=512, diffusion=FACTS | facts
    )
    export(str(checkpoint), folder / "tiny", ExportOptions(weights="f32", check=False, runtimes=(), context=size))
    return folder / "tiny"
