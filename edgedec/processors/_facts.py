"""What the files of `edgedec.processors` declare of themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessorFacts:
    """lossy: is the distribution another than the model's own? layers: does it need the logits of inner layers?
    paper: where the method is from."""

    lossy: bool = True
    layers: bool = False
    paper: str = ""
