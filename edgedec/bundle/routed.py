"""A set of LoRA adapters, of which each token takes two at each matrix: PHATGOOSE.

Muqeeth, Liu, Liu, Raffel, "Learning to Route Among Specialized Experts for Zero-Shot Generalization", arXiv:2402.05859;
read: r-three/phatgoose, `src/models/addons/moe.py`. Each adapter has a gate, a vector for each matrix of the
checkpoint, which was trained beside its frozen weights. The input of a matrix and the gates are standardized (less
their mean, over their standard deviation), and the score of an adapter is their product over sqrt(width). The weights
of the two adapters with the best scores are those of a softmax over all adapters, divided by their sum.

    scores 2, 0, 1 -> softmax 0.665, 0.090, 0.245 -> adapters 0 and 2 with 0.731 and 0.269

Matrices that a bundle stacks from several (q, k and v) are routed part by part, as they were trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.adapter import LoraAdapter, LowRank, open_adapter
from edgedec.errors import UsageError
from edgedec.spec import ModelSpec

TAKEN = 2
# Added to a variance, and to the sum of the weights that are taken, as the authors do.
NORM_EPS, SUM_EPS = 1e-5, 1e-6
Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Route:
    """Outputs first .. first + count of a matrix. gates [adapters, in]: standardized, over sqrt(in); low: what each
    adapter adds to these outputs."""

    first: int
    count: int
    gates: Array
    low: tuple[LowRank, ...]

    def add(self, x: Array, y: Array) -> None:
        """Add to y [n, out] what the adapters make of x [n, in]."""
        weights = weights_of(standardized(x) @ self.gates.T)
        for i, low in enumerate(self.low):
            rows = np.flatnonzero(weights[:, i])
            found = ((x[rows] @ low.a.T) * weights[rows, i, None]) @ low.b.T
            y[rows, self.first : self.first + self.count] += found


@dataclass(frozen=True, eq=False)
class RoutedAdapters:
    """A set of adapters, in the place of one. `digest` names the set, in whatever order it was given."""

    name: str
    digest: str
    matrices: Mapping[str, tuple[Route, ...]]

    def apply(self, name: str, x: Array, y: Array) -> Array:
        """y [n, out] of the matrix `name` on x [n, in], with the additions of the adapters that each row takes."""
        routes = self.matrices.get(name)
        if routes is None:
            return y
        y = y.astype(np.float32)
        for route in routes:
            route.add(x.astype(np.float32, copy=False), y)
        return y


def standardized(x: Array) -> Array:
    """x [n, width] less the mean of each row, over its standard deviation."""
    centered = x - x.mean(-1, keepdims=True)
    return (centered / np.sqrt((centered**2).mean(-1, keepdims=True) + NORM_EPS)).astype(np.float32)


def weights_of(scores: Array) -> Array:
    """scores [n, adapters] -> the weight of each adapter, 0 for those that are not taken; of equals the first."""
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    taken = np.argsort(-scores, axis=-1, kind="stable")[:, :TAKEN]
    best = np.take_along_axis(shares, taken, -1)
    weights = np.zeros_like(shares)
    np.put_along_axis(weights, taken, best / (best.sum(-1, keepdims=True) + np.float32(SUM_EPS)), -1)
    return weights


def open_adapters(paths: Sequence[str | os.PathLike[str]], spec: ModelSpec) -> LoraAdapter | RoutedAdapters:
    """The adapter of a file, or the set of those of several files; UsageError if they are not for models of this
    spec."""
    found = [open_adapter(path, spec) for path in paths]
    return found[0] if len(found) == 1 else routed(found)


def routed(adapters: Sequence[LoraAdapter]) -> RoutedAdapters:
    """The set of these adapters; UsageError if one lacks gates or changes other matrices than the others."""
    found = sorted(adapters, key=lambda adapter: adapter.digest)
    for one, other in pairwise(found):
        if one.digest == other.digest:
            raise UsageError(f"adapters {one.name!r} and {other.name!r} are the same; give each of a set once")
    for adapter in found:
        _check(adapter, found[0])
    names = found[0].matrices
    matrices = {name: tuple(_routes([adapter.matrices[name] for adapter in found])) for name in names}
    digest = sha256("\n".join(["phatgoose", *(adapter.digest for adapter in found)]).encode()).hexdigest()
    return RoutedAdapters("+".join(adapter.name for adapter in adapters), digest, matrices)


def _check(adapter: LoraAdapter, first: LoraAdapter) -> None:
    for name, low in adapter.matrices.items():
        if low.gates is None:
            raise UsageError(
                f"adapter {adapter.name!r} has no gates of {name}, and only adapters with gates make a set; "
                "train them: edgedec train-lora --from FOLDER"
            )
    if set(adapter.matrices) == set(first.matrices):
        left = [name for name, low in adapter.matrices.items() if not _same_parts(low, first.matrices[name])]
    else:
        left = sorted(set(adapter.matrices) ^ set(first.matrices))
    if left:
        raise UsageError(
            f"adapters {first.name!r} and {adapter.name!r} change different parts of the model (of {left[0]}); "
            "adapters of a set have the same target_modules"
        )


def _same_parts(one: LowRank, other: LowRank) -> bool:
    a, b = one.gates, other.gates
    return a is not None and b is not None and np.array_equal(a.parts[:, 1:], b.parts[:, 1:])


def _routes(lows: Sequence[LowRank]) -> Iterator[Route]:
    """The parts of a matrix, each with the low ranks of all adapters."""
    gates = [low.gates for low in lows if low.gates is not None]
    at = [0] * len(lows)
    for part, (_, first, count) in enumerate(gates[0].parts.tolist()):
        own, width = list[LowRank](), lows[0].a.shape[1]
        for i, low in enumerate(lows):
            end = at[i] + int(gates[i].parts[part, 0])
            own.append(LowRank(low.a[at[i] : end], np.ascontiguousarray(low.b[first : first + count, at[i] : end])))
            at[i] = end
        vectors = standardized(np.stack([gate.vectors[part] for gate in gates]))
        yield Route(first, count, vectors * np.float32(1 / width**0.5), tuple(own))
