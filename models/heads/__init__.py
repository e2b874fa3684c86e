"""Draft heads: small networks on top of a model's hidden states. One file a kind; file name = kind.

A file describes the arithmetic once, over `Ops`; training, the ONNX graph and the tests' oracle each have
their own. A head's state is read through the model's own final norm and rows of its own head matrix.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, cast

from edgedec.errors import UsageError

V = TypeVar("V")


class Ops(Protocol[V]):
    """Arithmetic on rows [n, width] of some kind; weights go by name, matrices are (out, in)."""

    def linear(self, x: V, name: str) -> V:
        """x times the matrix `name`."""

    def norm(self, x: V, name: str) -> V:
        """x over its root mean square, times the vector `name`."""

    def silu(self, x: V) -> V: ...

    def add(self, x: V, y: V) -> V: ...


class HeadArchitecture(Protocol):
    """What a file of this folder provides.

    AHEAD: is its first state of the token after the next one (1), or of the next (0)? READS: does it take the tokens
    in between? EARLY: does it follow an early layer instead of the last? INPUTS: of its graph, [n, hidden] each;
    STATE: the name of the graph's output of states, "" if it has none; STACKED: does the graph give the guesses of all
    depths, [n, depth, top], or of one, [n, top]?
    """

    AHEAD: int
    READS: bool
    EARLY: bool
    INPUTS: tuple[str, ...]
    STATE: str
    STACKED: bool

    def shapes(self, hidden: int, width: int, depth: int) -> dict[str, tuple[int, ...]]:
        """The weights by name; one that starts at zero ends in `down`."""

    def states(self, ops: Ops[Any], hidden: Any, embeddings: Sequence[Any], depth: int) -> list[Any]:
        """hidden [n, H], embeddings of the `depth` tokens after it [n, H] each -> a state [n, H] for each depth."""

    def run(self, ops: Ops[Any], inputs: Sequence[Any], depth: int) -> list[Any]:
        """What the exported graph computes of its INPUTS: a state [n, H] for each depth that it has."""


def kinds() -> tuple[str, ...]:
    """Every kind that has a file here."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def architecture(kind: str) -> HeadArchitecture:
    """The file of a kind."""
    if kind not in kinds():
        raise UsageError(f"no draft head {kind!r}; there are: {', '.join(kinds())}")
    return cast(HeadArchitecture, importlib.import_module(f"{__name__}.{kind}"))
