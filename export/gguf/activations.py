"""Learned activations, whose numbers GGUF files have in their metadata: Apertus' xIELU (arXiv:2411.13010)."""

from __future__ import annotations

from edgedec.export.gguf.metadata import GgufFacts
from edgedec.models import Part, Source
from edgedec.spec import ModelSpec

# In the order of the tensor; their keys have no architecture before them.
_PLACES = ("alpha_p", "alpha_n", "beta", "eps")


def activations(facts: GgufFacts, spec: ModelSpec) -> dict[str, Source]:
    """Such tensors of `spec`, each number as so many times a one."""
    names = [f"blocks.{b}.xielu" for b, block in enumerate(spec.blocks) if "xielu" in block.tensors(spec.hidden_size)]
    if not names:
        return {}
    each = [facts.numbers(f"xielu.{place}", spec.n_layers) for place in _PLACES]
    one = Part("token_embd.weight", (0, 1), ones=True)
    return {
        name: tuple(
            Part(one.name, one.rows, times=values[spec.layer_of(int(name.split(".")[1]))], ones=True) for values in each
        )
        for name in names
    }
