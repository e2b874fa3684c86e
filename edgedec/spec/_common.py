"""Shared by all kinds of blocks: norms, range checks, the shapes of their norms' tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from edgedec.errors import BundleCorrupt

# "scale": a factor of each value and no norm, before the first matrix of a block.
Norm = Literal["rms", "layer", "scale", "none"]
Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu"]
Shapes = dict[str, tuple[int, ...]]
LARGEST = 1 << 24


class UpMatrix:
    """A feed-forward's first matrix, of gates beside ups or of ups alone."""

    inner_size: int
    gated: bool

    @property
    def up(self) -> str:
        """The name of the matrix."""
        return "gate_up" if self.gated else "up"

    @property
    def up_rows(self) -> int:
        """Its rows, those of one expert."""
        return 2 * self.inner_size if self.gated else self.inner_size


def norm_tensors(norm: Norm, name: str, width: int) -> Shapes:
    """The tensors of a norm: a weight, which is all that "scale" multiplies by, and of LayerNorm a bias; none for
    "none"."""
    if norm == "none":
        return {}
    shapes: Shapes = {name: (width,)}
    if norm == "layer":
        shapes[f"{name}_bias"] = (width,)
    return shapes


def require_sizes(where: str, sizes: Mapping[str, int], least: int = 1) -> None:
    """BundleCorrupt for a size that no model can have, before anything is allocated by it."""
    for name, value in sizes.items():
        if not least <= value <= LARGEST:
            raise BundleCorrupt(f"{where}.{name}: {value} is out of range")
