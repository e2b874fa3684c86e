"""Embeddings of each layer (Gemma 4): a token has a few values of its own for every layer, which a gate made of the
state lets in.

For the state x of a row, its embedding x0 as it entered the first block, and the block's part t of the token's row of
the table `lookup`: e = rms(context x0) * context_norm + t; out(activation(gate norm(x)) * e).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Activation, Norm, Shapes, norm_tensors, require_sizes

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class Lookup:
    """`size`: values of a token for this block; those of all such blocks lie side by side in a row of the table.
    `state_scale`: as of a feed-forward; `streams`: added to all streams but the first, not to the state (`spec.altup`);
    `input_scale`: the gate reads the state times a learned vector."""

    size: int
    activation: Activation = "gelu_tanh"
    norm: Norm = "none"
    post_norm: Norm = "none"
    state_scale: bool = False
    streams: bool = False
    input_scale: bool = False
    kind: Literal["lookup"] = "lookup"
    after: ClassVar[Norm] = "none"
    branch: ClassVar[bool] = False

    def tensors(self, hidden: int) -> Shapes:
        """Every weight of the block with its shape, but for the table that all share; matrices are (out, in)."""
        shapes = self.matrices(hidden) | {"context_norm": (self.size,)}
        shapes |= norm_tensors(self.norm, "norm", hidden) | norm_tensors(self.post_norm, "post_norm", hidden)
        if self.state_scale:
            shapes["state_scale"] = (1,)
        if self.input_scale:
            shapes["input_scale"] = (hidden,)
        return shapes

    def matrices(self, hidden: int) -> Shapes:
        """The tensors that are quantized."""
        return {"gate": (self.size, hidden), "context": (self.size, hidden), "out": (hidden, self.size)}

    def check(self, where: str) -> None:
        """Refuse numbers that no model can have."""
        require_sizes(where, {"size": self.size})
        if self.activation == "xielu":
            raise BundleCorrupt(f"{where}.activation: a gate has no xielu")
        if (self.input_scale and self.norm != "none") or (self.streams and self.state_scale):
            raise BundleCorrupt(f"{where}: a scale of what is normed, or of a state that nothing is added to")


def check_lookups(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for embeddings of layers in a model that is given rows without tokens."""
    if spec.lookups and spec.output is not None:
        raise BundleCorrupt(f"{where}.output: a text encoder with lookup blocks, which read tokens")
