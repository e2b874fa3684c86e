"""Tensors of a checkpoint under other names: saved with a head's prefix or without one, or norms in TensorFlow's
words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from edgedec.models import Source

_NORMS = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
_DECODER = "model."


def renamed(weights: Mapping[str, Source], names: Collection[str], prefixes: Sequence[str]) -> dict[str, Source]:
    """The weights with the names that the checkpoint has; a tensor under none of them keeps its usual name."""
    return {
        name: tuple(
            replace(part, name=next((n for n in _candidates(part.name, prefixes) if n in names), part.name))
            for part in source
        )
        for name, source in weights.items()
    }


def _candidates(name: str, prefixes: Sequence[str]) -> Iterator[str]:
    """The names that a tensor may have, the usual one first."""
    plain = [name, *(prefix + name for prefix in prefixes)]
    if name.startswith(_DECODER):
        plain.append(name.removeprefix(_DECODER))
    yield from plain
    for found, old in _NORMS:
        yield from (one.replace(found, old) for one in plain if found in one)
