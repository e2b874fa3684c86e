"""Tensors of a checkpoint under other names: saved with a head's prefix or without one, norms in TensorFlow's words, or
all experts in one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from edgedec.models import Part, Source

_NORMS = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
_DECODER = "model."
_EXPERT, _STACKED = ".experts.0.", {"gate_proj": "gate_up_proj", "down_proj": "down_proj"}


def renamed(weights: Mapping[str, Source], names: Collection[str], prefixes: Sequence[str]) -> dict[str, Source]:
    """The weights with the names that the checkpoint has; a tensor under none of them keeps its usual name."""
    return {
        key: tuple(
            part.renamed(lambda name: next((n for n in _candidates(name, prefixes) if n in names), name))
            for part in source
        )
        for key, source in weights.items()
    }


def replaced(
    weights: Mapping[str, Source], names: Collection[str], renames: Sequence[tuple[str, str]]
) -> dict[str, Source]:
    """The weights; where the checkpoint lacks a name, under the name with a part replaced."""

    def found(name: str) -> str:
        others = (name.replace(usual, other) for usual, other in renames)
        return name if name in names else next((other for other in others if other in names), name)

    return {key: tuple(part.renamed(found) for part in source) for key, source in weights.items()}


def together(weights: Mapping[str, Source], names: Collection[str]) -> dict[str, Source]:
    """The weights; of experts that a checkpoint has in one tensor, that tensor."""
    return {key: _together(source, names) for key, source in weights.items()}


def _together(source: Source, names: Collection[str]) -> Source:
    """layers.0.mlp.experts.0.gate_proj.weight, … -> layers.0.mlp.experts.gate_up_proj"""
    where, expert, matrix = source[0].name.partition(_EXPERT)
    stacked = f"{where}.experts.{_STACKED.get(matrix.removesuffix('.weight'), '')}"
    return (Part(stacked, flat=True),) if expert and source[0].name not in names and stacked in names else source


def _candidates(name: str, prefixes: Sequence[str]) -> Iterator[str]:
    """The names that a tensor may have, the usual one first."""
    plain = [name, *(prefix + name for prefix in prefixes)]
    if name.startswith(_DECODER):
        plain.append(name.removeprefix(_DECODER))
    yield from plain
    for found, old in _NORMS:
        yield from (one.replace(found, old) for one in plain if found in one)
