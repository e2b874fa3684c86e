"""Embeddings of a layer in numpy."""

from __future__ import annotations

from edgedec.runtimes.reference.numeric import Array, BlockWeights, activation, rms_norm
from edgedec.spec import Lookup


def run(block: Lookup, w: BlockWeights, x: Array, embedding: Array, own: Array) -> Array:
    """f(norm(x)) [n, hidden]. embedding [n, hidden]: of the rows' tokens; own [n, size]: their values here."""
    context = rms_norm(w.linear(embedding, "context"), w.get("context_norm"), w.spec.norm_eps)
    x = x * w.get("input_scale") if block.input_scale else w.norm(x, block.norm)
    gate = activation(w.linear(x, "gate"), block.activation)
    return w.linear(gate * (context + own), "out")
