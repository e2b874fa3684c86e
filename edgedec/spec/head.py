"""A layer between the final norm and the matrix of the logits, as masked language models and ModernBERT's decoders
have it.

What the head's matrix reads is norm(activation(W n + b)) of the normed state n. States that calls take and return are
those before all of it: a slice, an early exit and a draft head read what they read of any model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgedec.errors import BundleCorrupt
from edgedec.spec._common import Activation, Norm, Shapes, norm_tensors

if TYPE_CHECKING:
    from edgedec.spec import ModelSpec


@dataclass(frozen=True)
class HeadLayer:
    """W is as wide as the state on both sides; `bias`: whether there is b."""

    activation: Activation = "gelu"
    bias: bool = False
    norm: Norm = "layer"

    def tensors(self, hidden: int) -> Shapes:
        """Its tensors by their names in a bundle; the first is quantized."""
        shapes: Shapes = {"head_layer": (hidden, hidden)} | norm_tensors(self.norm, "head_layer_norm", hidden)
        return shapes | ({"head_layer_bias": (hidden,)} if self.bias else {})


def check_head(spec: ModelSpec, where: str) -> None:
    """BundleCorrupt for a layer before a head that a text encoder does not have, or of an activation with weights."""
    if spec.head_layer is None:
        return
    if spec.output is not None:
        raise BundleCorrupt(f"{where}.head_layer: belongs to a decoder")
    if spec.head_layer.activation == "xielu":
        raise BundleCorrupt(f"{where}.head_layer.activation: xielu has weights, which it has not")
