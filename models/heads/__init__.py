"""Draft heads: small networks on a model's hidden states, which `edgedec train-heads` trains.

A file describes the arithmetic once, over `Ops`; training, the ONNX graph and the tests' oracle each have
their own. A head's state is read through the model's own final norm and rows of its own head matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from edgedec.plugins import Family

V = TypeVar("V")


class Ops(Protocol[V]):
    """Arithmetic on rows [n, width] of some kind; weights go by name, matrices are (out, in)."""

    def linear(self, x: V, name: str) -> V:
        """x times the matrix `name`."""

    def norm(self, x: V, name: str) -> V:
        """x over its root mean square, times the vector `name`."""

    def silu(self, x: V) -> V: ...

    def add(self, x: V, y: V) -> V: ...


@dataclass(frozen=True)
class HeadFacts:
    """What a file of this folder declares. ahead: is its first state of the token after the next one (1), or of the
    next (0)? reads: does it take the tokens in between? early: does it follow an early layer instead of the last?
    inputs: of its graph, [n, hidden] each; state: the name of the graph's output of states, "" if it has none; stacked:
    does the graph give the guesses of all depths, [n, depth, top], or of one, [n, top]?"""

    ahead: int = 1
    reads: bool = False
    early: bool = False
    inputs: tuple[str, ...] = ("hidden",)
    state: str = ""
    stacked: bool = False


FAMILY = Family("edgedec.models.heads", "draft head", facts=HeadFacts)


class HeadArchitecture(Protocol):
    """What a file of this folder provides."""

    FACTS: HeadFacts

    def shapes(self, hidden: int, width: int, depth: int) -> dict[str, tuple[int, ...]]:
        """The weights by name; one that starts at zero ends in `down`."""

    def states(self, ops: Ops[Any], hidden: Any, embeddings: Sequence[Any], depth: int) -> list[Any]:
        """hidden [n, H], embeddings of the `depth` tokens after it [n, H] each -> a state [n, H] for each depth."""

    def run(self, ops: Ops[Any], inputs: Sequence[Any], depth: int) -> list[Any]:
        """What the exported graph computes of its inputs: a state [n, H] for each depth that it has."""


def architecture(kind: str) -> HeadArchitecture:
    """The file of a kind."""
    return cast(HeadArchitecture, FAMILY.file(kind))
