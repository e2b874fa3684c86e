"""What the files of `edgedec.fusion` declare of themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FusionFacts:
    """lossy: is the distribution another than the model's own? rests: what the rule was read from. paper: where the
    method is from."""

    lossy: bool = True
    rests: str = ""
    paper: str = ""
