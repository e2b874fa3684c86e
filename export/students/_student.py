"""The base class of draft models in training, apart from the family, whose list needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from edgedec.export.students import Features
from edgedec.spec import ModelSpec


class Student(nn.Module):
    """What a file of this folder provides as `STUDENT`: a class made with a `StudentShape` and a `StudentTarget`."""

    # The share of the training that is done, set before each loss.
    progress = 0.0

    @staticmethod
    def check(spec: ModelSpec) -> None:
        """Refuse a target that drafts of the kind do not fit."""

    @staticmethod
    def depths(spec: ModelSpec, layer: int = 0) -> tuple[int, ...]:
        """After how many of the target's layers the kind reads hidden states, besides the last. layer: that an early
        kind follows."""
        return ()

    def begin(self, features: Features) -> None:
        """Set first weights that depend on the size of the target's states."""

    def logits(self, features: Features, depth: int) -> Tensor:
        """-> [depth, T - depth, kept]: guess k of row t."""
        raise NotImplementedError

    def own_loss(self, features: Features) -> Tensor | None:
        """The loss of a kind that does not learn the target's distribution by `logits`; None for those that do."""
        return None

    def published(self) -> dict[str, Tensor]:
        """Tensors as a published checkpoint names them."""
        raise NotImplementedError

    def config(self) -> Mapping[str, Any]:
        """Its config.json."""
        raise NotImplementedError
