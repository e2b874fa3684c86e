"""The epilogue of products, and the part of a matrix that a group of threads computes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgedec.bundle.manifest import Tensor
from edgedec.export.sources.dialects import Dialect
from edgedec.export.sources.functions import ACTIVATIONS, softcap
from edgedec.export.sources.kernel import GroupWork
from edgedec.export.sources.words import LANES, Expr, bind, div, mod
from edgedec.spec import Activation


@dataclass(frozen=True)
class KernelEnd:
    """What is done with a sum: store, or add to the output; glu: the first half of the outputs gates the second."""

    add: bool = False
    glu: bool = False
    bias: bool = False
    activation: Activation | None = None
    softcap: float = 0.0

    @property
    def name(self) -> str:
        """For names of kernels."""
        words = [word for word in ("add", "glu", "bias") if getattr(self, word)]
        return "_".join([*words, *filter(None, [self.activation]), *(["capped"] if self.softcap else [])])


@dataclass(frozen=True)
class Stacked:
    """Matrices of `count` experts one below another, of which a row takes `top_k`. by_pair: its inputs are apart for
    each of these."""

    count: int
    top_k: int
    by_pair: bool = False

    def one(self, t: Tensor) -> Tensor:
        """The matrix of an expert."""
        return replace(t, shape=(t.shape[0] // self.count, *t.shape[1:]))


@dataclass(frozen=True)
class GroupPlace:
    """group: of 16 outputs of a matrix; first: the group that the matrix begins with; source, target: the first row of
    inputs and of outputs."""

    group: Expr
    first: Expr
    source: Expr
    target: Expr


def outputs(t: Tensor, epilogue: KernelEnd) -> int:
    """Of a product: of glu half of the matrix' own."""
    return t.shape[0] // 2 if epilogue.glu else t.shape[0]


def groups_of(t: Tensor, epilogue: KernelEnd) -> int:
    """Groups of outputs."""
    return -(-outputs(t, epilogue) // LANES)


def place_of(work: GroupWork, t: Tensor, epilogue: KernelEnd, stacked: Stacked | None, tile: int) -> GroupPlace:
    """Where a group works. t: of stacked matrices one; tile: rows."""
    if stacked is None:
        row = bind(work.tile * tile)
        return GroupPlace(work.item, 0, row, row)
    each = groups_of(t, epilogue)
    pair = bind(work.tile * stacked.top_k + div(work.item, each))
    first = bind(work["experts"][pair] * (t.shape[0] // LANES))
    return GroupPlace(mod(work.item, each), first, pair if stacked.by_pair else work.tile, pair)


def finish(d: Dialect, work: GroupWork, t: Tensor, e: KernelEnd, row: Expr, output: Expr, sums: list[Expr]) -> None:
    """Store what the sums become. sums: of the output; of glu the gate's first."""
    n, y = outputs(t, e), sums[-1]
    if e.bias:
        y = bind(y + work["bias"][output + (n if e.glu else 0)])
    if e.glu:
        gate = bind(sums[0] + work["bias"][output]) if e.bias else sums[0]
        assert e.activation is not None
        y = d.mul(ACTIVATIONS[e.activation](d, gate), y)
    elif e.activation is not None:
        y = ACTIVATIONS[e.activation](d, y)
    y, at = softcap(d, y, e.softcap), bind(row * n + output)
    work["y"].put(at, bind(work["y"][at] + y) if e.add else y)
